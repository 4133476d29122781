"""Load from ab (Apache's): ceilings with a connection for each request, or with a chosen TLS protocol."""

from __future__ import annotations

import csv
import math
import os
import re
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ewe_lab.bench.experiment import Load
from ewe_lab.bench.processes import LabError, cpu_seconds, ended, one_line, running, text_of, tool
from ewe_lab.bench.results import Sample, Times
from ewe_lab.load.child import Marks

MOST = 2_000_000  # requests of one run: ab keeps 32 bytes for each
TRIES = 2  # ab ends when a connection is reset, for instance behind a token bucket; then it is started again
PARITY = ("-f", "TLS1.2", "-Z", "AES256-SHA:@SECLEVEL=0")
FIGURES = {
    "seconds": r"Time taken for tests: +([\d.]+) seconds",
    "complete": r"Complete requests: +(\d+)",
    "failed": r"Failed requests: +(\d+)",
    "status": r"Non-2xx responses: +(\d+)",
    "received": r"Total transferred: +(\d+) bytes",
    "mean": r"Time per request: +([\d.]+) \[ms\] \(mean\)",
}


@dataclass(frozen=True)
class Done:
    """The report of one run of ab, and the share of its core that ab used."""

    figures: dict[str, float]
    times: Times | None
    client: float


def parse_ab(text: str) -> dict[str, float]:
    """Read ab's report. Raises LabError."""
    found = {name: match[1] for name, pattern in FIGURES.items() if (match := re.search(pattern, text))}
    if failed := re.search(r"^SSL handshake failed.*\n.*?:error:[^:]*:[^:]*:[^:]*:([^:]*)", text, re.M):
        raise LabError(
            f"ab: no TLS connection with this protocol and cipher: {failed[1]}"
        )  # ab counts those statuses
    if "seconds" not in found or "complete" not in found:
        raise LabError(f"ab: {one_line(text)}")
    return {name: float(value) for name, value in found.items()}


def read_times(path: Path, figures: dict[str, float]) -> Times | None:
    """Read the percentiles that ab wrote to a file. The times include connecting. None if there are none."""
    try:
        with path.open(newline="") as file:
            share = {int(row[0]): float(row[1]) / 1e3 for row in list(csv.reader(file))[1:]}
        count = int(figures["complete"])
        return Times(count, figures["mean"] / 1e3, share[50], share[90], share[95], share[99], share[100])
    except (OSError, ValueError, KeyError, IndexError):
        return None


def run_ab(load: Load, url: str, core: int | None, marks: Marks, prefix: Sequence[str]) -> Sample:
    """Run ab twice: to warm up, and to count. Raises LabError."""
    if load.warm_up:
        once(load, url, load.warm_up, core, prefix)
    marks.begin()
    done = once(load, url, load.seconds, core, prefix)
    marks.end()
    figures = done.figures
    complete, bad, failed = (int(figures.get(name, 0)) for name in ("complete", "status", "failed"))
    errors = {"status": bad, "res": max(failed, 0)}
    replies = max(complete - bad - failed, 0)
    return Sample(
        "ab",
        figures["seconds"],
        complete,
        replies,
        connections=0 if load.keep_alive else complete,
        received=figures.get("received", 0.0),
        errors={name: count for name, count in errors.items() if count},
        service=done.times,
        client=done.client,
    )


def once(load: Load, url: str, seconds: float, core: int | None, prefix: Sequence[str]) -> Done:
    """Run ab for so many seconds; repeat it if a connection reset ended it."""
    for attempt in range(TRIES):
        try:
            return attempted(load, url, seconds, core, prefix)
        except LabError as reason:
            if attempt + 1 == TRIES or "reset" not in str(reason):
                raise
    raise AssertionError


def attempted(load: Load, url: str, seconds: float, core: int | None, prefix: Sequence[str]) -> Done:
    """Run ab once."""
    with tempfile.TemporaryDirectory(prefix="ewe-lab-ab-") as directory:
        table = Path(directory) / "times.csv"
        # ab takes whole seconds. An interrupt ends it earlier, and it reports the time that really passed.
        command = [
            *prefix, tool("ab"), "-q", "-r", "-l", "-t", str(math.ceil(seconds) + 5), "-n", str(MOST),
            "-c", str(load.users), "-s", str(math.ceil(load.timeout)), "-e", str(table),
            *(["-k"] if load.keep_alive else []), *(PARITY if load.tls == "parity" else []),
        ]  # fmt: skip
        with (
            tempfile.TemporaryFile() as output,
            running([*command, url.rstrip("/") + load.path], output, core) as started,
        ):
            began = time.monotonic()
            if not ended(started, seconds):
                os.kill(started.pid, signal.SIGINT)
                if not ended(started, load.timeout + 10):
                    raise LabError("ab does not end")
            client = cpu_seconds(started.pid) / (time.monotonic() - began)
            figures = parse_ab(text_of(output))
            return Done(figures, read_times(table, figures), client)
