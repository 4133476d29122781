"""Grading one server many times: does a mark differ from run to run? `ewe-grade --repeat 200 --jobs 4 --runs FILE`.

    the command ─┬─ fork ─▶ run 1: private network, server, all checks ─▶ its report, through a pipe ─┐
       jobs at   ├─ fork ─▶ run 2: ...                                                                ├─▶ FILE, one
       a time    └─ fork ─▶ run 3: ...                                                                ┘   line a run

Each run is a process with a private network, so that runs at the same time may use the same port, and one of them
that fails takes no other with it. The command appends a line to FILE for each run that has ended. The same command,
given again, reads FILE and does only the runs that are missing: two hundred runs may take several nights.

What can go wrong: a run is killed, or the command is. A killed run counts as not done. A run ends with the command
(PR_SET_PDEATHSIG), and a last line that is cut off in FILE is removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import selectors
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ewe.config.messages import ConfigError, one_line
from ewe_classroom.grader.sandbox import end_with_parent
from ewe_classroom.grader.verdicts import Report

FORMAT = "ewe-runs/1"


@dataclass(frozen=True)
class Run:
    """What is kept of one run. marks: the status of each check; failed: why, for each check that failed."""

    marks: dict[str, str]
    failed: dict[str, str]
    seconds: float


def kept(report: Report) -> Run:
    """Return what is kept of a report."""
    return Run(
        {verdict.name: verdict.status for verdict in report.verdicts},
        {verdict.name: verdict.text() for verdict in report.failed},
        report.seconds,
    )


class Runs:
    """The runs so far, in memory and in a file. about: what is graded; a file about something else is refused."""

    def __init__(self, file: Path | None, about: dict[str, Any]) -> None:
        """Read the file, if it exists. Raises ConfigError."""
        self.file = file
        self.done: list[Run] = []
        if file is None:
            return
        head = {"format": FORMAT, **about}
        try:
            lines = file.read_text().splitlines(keepends=True) if file.exists() else []
            whole = [line for line in lines if line.endswith("\n")]
            same = not whole or json.loads(whole[0]) == head
            self.done = [Run(**json.loads(line)) for line in whole[1:]] if same else []
            if same:
                file.write_text("".join(whole) or json.dumps(head) + "\n")
        except OSError as reason:
            raise ConfigError(f"--runs: {file}: {reason.strerror}") from None
        except (ValueError, TypeError):
            raise ConfigError(f"--runs: {file} is no file that --runs has written") from None
        if not same:
            raise ConfigError(
                f"--runs: {file} holds runs of another server, lab or choice of checks; choose another file"
            )

    def add(self, run: Run) -> None:
        """Keep one more run."""
        self.done.append(run)
        if self.file is not None:
            with open(self.file, "a") as out:
                out.write(json.dumps(vars(run)) + "\n")

    def flips(self) -> dict[str, Counter[str]]:
        """Return how often each status came, for each check that did not always have the same one."""
        counts: dict[str, Counter[str]] = {}
        for run in self.done:
            for name, status in run.marks.items():
                counts.setdefault(name, Counter())[status] += 1
        return {name: count for name, count in counts.items() if len(count) > 1}

    def summary(self) -> Iterator[str]:
        """Yield what to print: which marks differed, one explanation for each, and how many runs there were."""
        flips = self.flips()
        for name, count in flips.items():
            yield f"differs: {name}: " + ", ".join(
                f"{times} times {status}" for status, times in count.items()
            )
            texts = [run.failed[name] for run in self.done if name in run.failed]
            yield from (f"    {line}" for line in (texts[0].splitlines() if texts else ()))
        verdicts = sum(len(run.marks) for run in self.done)
        failing = sorted({name for run in self.done for name in run.failed} - flips.keys())
        if failing:
            yield f"failed in each run: {', '.join(failing)}"
        yield f"{len(self.done)} runs, {verdicts} checks, {len(flips)} with different marks"


def in_processes(grade: Callable[[], Report], count: int, jobs: int) -> Iterator[Report]:
    """Grade `count` times, each time in a child process, `jobs` at a time; yield each report as it comes.

    Raises ConfigError: a child could not grade.
    """
    running: dict[int, tuple[int, bytearray]] = {}  # pipe: (pid, what has come through it)
    left = count
    with selectors.DefaultSelector() as selector:
        try:
            while left or running:
                while left and len(running) < jobs:
                    left -= 1
                    reader, pid = begin(grade, list(running))
                    running[reader] = (pid, bytearray())
                    selector.register(reader, selectors.EVENT_READ)
                for key, _ in selector.select():
                    pid, data = running[key.fd]
                    more = os.read(key.fd, 1 << 20)
                    data += more
                    if not more:
                        selector.unregister(key.fd)
                        del running[key.fd]
                        os.close(key.fd)
                        os.waitpid(pid, 0)
                        yield result(bytes(data))
        finally:
            for pid, _ in running.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            for reader, (pid, _) in running.items():
                os.close(reader)
                os.waitpid(pid, 0)


def begin(grade: Callable[[], Report], others: list[int]) -> tuple[int, int]:
    """Fork a child that grades; return the pipe through which its report comes, and the child's number."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return reader, pid
    status = 1
    try:
        end_with_parent(signal.SIGTERM)
        for each in (reader, *others):
            os.close(each)
        try:
            outcome: Report | str = grade()
        except ConfigError as error:
            outcome = str(error)
        with open(writer, "wb") as out:
            pickle.dump(outcome, out)
        status = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)  # also at SystemExit, which SIGTERM raises


def result(data: bytes) -> Report:
    """Return the report that a child has sent. Raises ConfigError."""
    outcome = pickle.loads(data) if data else "a run was ended before its report; the same command goes on"
    if isinstance(outcome, Report):
        return outcome
    raise ConfigError(one_line(str(outcome)))
