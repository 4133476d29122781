"""Grade one server many times, to find marks that differ: `ewe-grade --repeat 200 --jobs 4 --runs FILE`.

    the command ─┬─ fork ─▶ run 1: private network, server, all checks ─▶ its report, through a pipe ─┐
       jobs at   ├─ fork ─▶ run 2: ...                                                                ├─▶ FILE, one
       a time    └─ fork ─▶ run 3: ...                                                                ┘   line a run

Each run is a process with a private network, so that simultaneous runs may use the same port, and a failing run
does not affect the others. The command appends a line to FILE for each finished run. If the same command is given
again, it reads FILE and does only the missing runs: two hundred runs may take several nights.

Possible failures: a run or the whole command is killed. A killed run does not count. If the command ends, its runs
end, too (PR_SET_PDEATHSIG), and the next command removes an incomplete last line from FILE.
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
from typing import Any, NamedTuple

from ewe.config.messages import ConfigError, one_line
from ewe_classroom.grader.processes import end_with_parent
from ewe_classroom.grader.verdicts import Report

FORMAT = "ewe-runs/1"
READ_BYTES = 1 << 20  # the most bytes of one read of a pipe


@dataclass(frozen=True)
class GradingRun:
    """The summary of one run.

    marks: check -> status of its verdict, such as "passed". failed: check that has failed -> its explanation.
    """

    marks: dict[str, str]
    failed: dict[str, str]
    seconds: float


def summary_of(report: Report) -> GradingRun:
    """Return the summary of a report, which goes into the file of runs (Runs.add)."""
    return GradingRun(
        marks={verdict.name: verdict.status for verdict in report.verdicts},
        failed={verdict.name: verdict.text() for verdict in report.failed},
        seconds=report.seconds,
    )


class Runs:
    """The finished runs, in memory and in a file. about: lab, server and checks, which must match the file."""

    def __init__(self, file: Path | None, about: dict[str, Any]) -> None:
        """Read the file, if it exists. Raises ConfigError."""
        self.file = file
        self.finished_runs: list[GradingRun] = []
        if file is None:
            return
        head = {"format": FORMAT, **about}
        try:
            lines = file.read_text().splitlines(keepends=True) if file.exists() else []
            # A command that was killed may have left half a line.
            complete_lines = [line for line in lines if line.endswith("\n")]
            if complete_lines:
                same = json.loads(complete_lines[0]) == head
            else:  # a new file, or the half of a head
                same = json.dumps(head).startswith("".join(lines))
            self.finished_runs = (
                [GradingRun(**json.loads(line)) for line in complete_lines[1:]] if same else []
            )
            # Never overwrite a file of something else, or the runs of many nights
            if same and not complete_lines:
                file.write_text(json.dumps(head) + "\n")
            elif same and len(complete_lines) < len(lines):
                os.truncate(file, len("".join(complete_lines).encode()))
        except OSError as reason:
            raise ConfigError(f"--runs: cannot write {file}: {reason.strerror}") from None
        except (ValueError, TypeError, RecursionError):
            raise ConfigError(f"--runs: {file} was not written by --runs; choose another file") from None
        if not same:
            raise ConfigError(
                f"--runs: {file} has runs of another server, lab or choice of checks; choose another file"
            )

    def add(self, run: GradingRun) -> None:
        """Add a finished run to the list and to the file. Raises ConfigError, for example if the disk is full."""
        self.finished_runs.append(run)
        if self.file is None:
            return
        try:
            with open(self.file, "a") as out:
                out.write(json.dumps(vars(run)) + "\n")
        except OSError as reason:
            raise ConfigError(f"--runs: cannot write {self.file}: {reason.strerror}") from None

    def flips(self) -> dict[str, Counter[str]]:
        """Return check -> status -> number of runs, for every check with more than one status."""
        counts: dict[str, Counter[str]] = {}
        for run in self.finished_runs:
            for name, status in run.marks.items():
                counts.setdefault(name, Counter())[status] += 1
        return {name: count for name, count in counts.items() if len(count) > 1}

    def summary(self) -> Iterator[str]:
        """Yield the lines of the summary: the checks with different marks, an explanation of each, the totals."""
        flips = self.flips()
        for name, count in flips.items():
            yield f"differs: {name}: " + ", ".join(
                f"{times} times {status}" for status, times in count.items()
            )
            texts = [run.failed[name] for run in self.finished_runs if name in run.failed]
            yield from (f"    {line}" for line in (texts[0].splitlines() if texts else ()))
        verdicts = sum(len(run.marks) for run in self.finished_runs)
        failing = sorted({name for run in self.finished_runs for name in run.failed} - flips.keys())
        if failing:
            yield f"failed in each run: {', '.join(failing)}"
        yield f"{len(self.finished_runs)} runs, {verdicts} checks, {len(flips)} with different marks"


def in_processes(grade: Callable[[], Report], count: int, jobs: int) -> Iterator[Report]:
    """Grade `count` times in child processes, `jobs` at a time; yield each report when it is complete.

    Raises ConfigError if a child could not grade, or was killed.
    """
    running: dict[int, GradingChild] = {}  # the pipe of a child -> the child
    not_begun = count  # runs that have no process yet
    with selectors.DefaultSelector() as selector:
        try:
            while not_begun or running:
                while not_begun and len(running) < jobs:
                    not_begun -= 1
                    child = begin(grade, list(running))
                    running[child.pipe] = child
                    selector.register(child.pipe, selectors.EVENT_READ)
                for key, _ in selector.select():
                    child = running[key.fd]
                    block = os.read(key.fd, READ_BYTES)
                    child.received.extend(block)
                    # The end of the pipe: the child has ended. Only the child has its writing end.
                    if not block:
                        selector.unregister(key.fd)
                        del running[key.fd]
                        os.close(key.fd)
                        os.waitpid(child.pid, 0)
                        yield result(bytes(child.received))
        finally:
            # Children still run after an error, after Ctrl-C, or if the caller takes no more reports.
            for child in running.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGTERM)
            for child in running.values():
                os.close(child.pipe)
                os.waitpid(child.pid, 0)


class GradingChild(NamedTuple):
    """A child process that grades. pipe: the reading end for its report. received: the report's bytes so far."""

    pid: int
    pipe: int
    received: bytearray


def begin(grade: Callable[[], Report], others: list[int]) -> GradingChild:
    """Fork a child that grades, and sends its report through a pipe.

    others: the pipes of the other children, which the child inherits and closes. The child never returns.
    """
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:  # the parent: without its copy of the writing end, it sees the end of the pipe
        os.close(writer)
        return GradingChild(pid, reader, bytearray())
    status = 1
    try:
        end_with_parent(signal.SIGTERM, parent)
        for descriptor in (reader, *others):
            os.close(descriptor)
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
        os._exit(status)  # also after SystemExit, which the handler of SIGTERM raises


def result(data: bytes) -> Report:
    """Return the report that a child has sent.

    Raises ConfigError if the child sent a message, nothing, or a part: the kernel may kill it while it writes.
    """
    try:
        outcome = pickle.loads(data)
    except (EOFError, pickle.UnpicklingError):
        outcome = "a run was killed before its report; give the same command again"
    if isinstance(outcome, Report):
        return outcome
    raise ConfigError(one_line(str(outcome)))
