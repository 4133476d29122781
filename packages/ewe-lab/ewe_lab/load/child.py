"""Run locust in a child process: gevent patches the standard library there only, and it is pinned to its core.

gevent replaces the sockets, threads and sleeps of the whole process by its own. The lab's process watches a server
meanwhile, and needs the true ones. It therefore talks to locust through pipes:

    lab ── standard input: {"url": ..., "load": {...}} ──▶ child: python -m ewe_lab.load
        ◀── standard output: begin                    ──  the warm-up is over: the lab begins to watch
        ◀──                  end                      ──  the measured time is over: the lab stops
        ◀──                  {"requests": ...}        ──  the sample, in JSON

Possible failures: an exception in one user of locust ends this user and not the load. The sample would then lack
requests, so a traceback on the standard error makes the load fail. A child that hangs is killed after
child_timeout_s().

Read next: __main__.py, the child.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Protocol

import ewe
import ewe_lab
from ewe_lab.bench.experiment import Load
from ewe_lab.bench.processes import FIGURES_BYTES, LabError, bounded_file, last_line, output_text, running
from ewe_lab.bench.results import Sample, value_from_json

START_TIMEOUT_S = 20.0  # seconds that a thousand users may take on a busy machine
LOCUST_MISSING = "locust is missing: pip install 'ewe-lab[locust]'"


class WindowObserver(Protocol):
    """An object that learns when the measured time begins and ends."""

    def begin(self) -> None:
        """The warm-up is over. A second call: the measurement has failed, and begins again."""

    def end(self) -> None:
        """The measured time is over."""


class NoObserver:
    """An observer that does nothing."""

    def begin(self) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


def has_locust() -> bool:
    """Whether locust is installed."""
    return find_spec("locust") is not None


def run_locust(
    load: Load,
    url: str,
    core: int | None = None,
    observer: WindowObserver | None = None,
    prefix: Sequence[str] = (),
) -> Sample:
    """Run a load from a child process on a core; return its sample. Raises LabError.

    core: None for any. observer: learns when the measured time begins and ends. prefix: the first words of the
    child's command, such as those that run it behind a slow link.
    """
    if not has_locust():
        raise LabError(LOCUST_MISSING)
    observer = observer or NoObserver()
    with tempfile.TemporaryFile() as order, bounded_file() as errors:
        order.write(json.dumps({"url": url, "load": asdict(load)}).encode())
        order.seek(0)
        command = [*prefix, sys.executable, "-m", "ewe_lab.load"]
        with running(
            command, errors, core, env=environment(), stdin=order, stdout=subprocess.PIPE
        ) as started:
            assert started.stdout is not None
            with started.stdout as answer:
                return receive_sample(answer, child_timeout_s(load), observer, errors)


def environment() -> dict[str, str]:
    """Return an environment in which a child imports this ewe, and locust sees no setting of the user."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LOCUST_", "EWE_"))}
    # The directories in which the packages ewe and ewe_lab lie
    homes = dict.fromkeys(str(Path(file).resolve().parents[1]) for file in (ewe.__file__, ewe_lab.__file__))
    paths = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))  # a child runs in another directory
    env["PYTHONPATH"] = os.pathsep.join((*homes, *map(os.path.abspath, paths)))
    return env


def child_timeout_s(load: Load) -> float:
    """Return the seconds after which a child must have ended."""
    return START_TIMEOUT_S + load.warm_up + load.duration + load.timeout + load.think


def receive_sample(answer: IO[bytes], seconds: float, observer: WindowObserver, errors: IO[bytes]) -> Sample:
    """Read the lines that a child prints, `begin`, `end` and a sample in JSON; return the sample. Raises LabError.

    answer: the child's standard output. seconds: the longest time until the sample. observer: learns of
    begin and end. errors: the child's standard error, a file.
    """
    for line in lines_within(answer, seconds):
        if line == b"begin":
            observer.begin()
        elif line == b"end":
            observer.end()
        elif line.startswith(b"{"):
            if "Traceback" in output_text(errors):  # a user failed, and its requests are missing
                break
            found = value_from_json(Sample, json.loads(line))
            assert isinstance(found, Sample)
            return found
    raise LabError(f"the load failed: {last_line(output_text(errors))}")


def lines_within(file: IO[bytes], seconds: float) -> Iterator[bytes]:
    """Yield the lines of a pipe as they arrive. Raises LabError after `seconds`."""
    end = time.monotonic() + seconds
    pieces: list[bytes] = []  # of a line that is not complete
    length = 0  # of these pieces together, in bytes
    while True:
        if not select.select([file], [], [], max(end - time.monotonic(), 0))[0]:
            raise LabError(f"the load did not end within {seconds:.0f} s")
        piece = os.read(file.fileno(), 65536)
        if not piece:
            return
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = b"".join((*pieces, lines[0]))
            pieces, length = [], 0
        pieces.append(rest)
        length += len(rest)
        if length > FIGURES_BYTES:
            raise LabError(f"the load printed a line of more than {FIGURES_BYTES:,} bytes")
        yield from lines
