"""A scene for a measurement: no server runs. The grader reads a student's measurements, and checks the data.

    runs.json       {"format": "ewe-runs/1", "log": "server.log", "report": "lab/results.json", "runs": [RUN, ...]}
    a RUN           {"kind": "closed", "clients": 4, "repetition": 1, "began": 81.0, "seconds": 1.0,
                     "rate": 198.0, "mean_ms": 20.1, "p99_ms": 24.8, "requests": [[due, sent, done], ...]}
                    {"kind": "open", "rate_wanted": 150, ...}
    server.log      a line for each request that the server has served: arrival start end

All times are seconds of time.monotonic(), which is one clock for all processes of a machine. The grader can
therefore find each request of the data in the server's log. Data and log are two independent records, so an
invented or omitted request is visible.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ewe_classroom.grader.sandbox import SandboxLimits
from ewe_classroom.grader.scene import Scene
from ewe_classroom.grader.subject import BadSubject, StartCommand

FORMAT = "ewe-runs/1"
# A request takes about 60 bytes: the limit is a quarter of a million requests, or 20 minutes of measuring. Python
# needs up to twenty times as many bytes for the numbers of such a file.
MAX_FILE_BYTES = 16 << 20
MAX_RUNS = 1000  # a lab of twenty loads and three repetitions has sixty


def from_path(text: str) -> StartCommand:
    """Return the start command of a file of runs. Raises BadSubject."""
    path = Path(text).absolute()
    if not os.path.isfile(path):  # false for a name that is too long, where Path.is_file() raises an error
        raise BadSubject(f"{text}: not a file; python3 measure.py makes runs.json")
    if path.suffix != ".json":
        raise BadSubject(f"{text}: this lab grades data; run python3 {path.name}, and name its runs.json")
    return StartCommand((str(path),), path.parent, shlex.quote(text))


def from_command(text: str) -> StartCommand:
    """Refuse a command, because data is not a program. Raises BadSubject."""
    raise BadSubject("--command: this lab grades data; name its file: ewe-grade --lab measure runs.json")


@dataclass(frozen=True)
class TimedRequest:
    """One request. due: its time in the schedule of an open load; in a closed loop, due equals sent."""

    due: float
    sent: float
    done: float


@dataclass(frozen=True)
class ServedRequest:
    """One line of the server's log."""

    arrival: float
    start: float
    end: float


@dataclass(frozen=True)
class LoadRun:
    """One run. level: the number of clients (closed), or the planned requests a second (open)."""

    kind: str
    level: float
    repetition: int
    began: float
    seconds: float
    rate: float
    mean_ms: float
    p99_ms: float
    requests: tuple[TimedRequest, ...]

    @property
    def name(self) -> str:
        what = f"{self.level:g} clients" if self.kind == "closed" else f"{self.level:g} requests a second"
        return f"the {self.kind} run of {what}, repetition {self.repetition}"

    @property
    def completed(self) -> int:
        """Return the number of responses before the end of the run."""
        return sum(request.done <= self.began + self.seconds for request in self.requests)


def finite_number(value: Any) -> float:
    """Return a number of the data. Raises ValueError for NaN and infinity, TypeError, OverflowError.

    A comparison with NaN is always false, so NaN would pass each check of a difference.
    """
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is no number of a measurement")
    return number


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value such that at least `share` of all values do not exceed it; 0.0 without values."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else 0.0


def run_of_row(row: dict[str, Any]) -> LoadRun:
    """Return a run of the file. Raises KeyError, TypeError, ValueError or OverflowError if it is malformed."""
    return LoadRun(
        kind=str(row["kind"]),
        level=finite_number(row["clients" if row["kind"] == "closed" else "rate_wanted"]),
        repetition=int(row["repetition"]),
        began=finite_number(row["began"]),
        seconds=finite_number(row["seconds"]),
        rate=finite_number(row["rate"]),
        mean_ms=finite_number(row["mean_ms"]),
        p99_ms=finite_number(row["p99_ms"]),
        requests=tuple(TimedRequest(*map(finite_number, each)) for each in row["requests"]),
    )


class RunSubject:
    """A file of runs, with the interface of a server under test (Subject). No process runs, so nothing ends."""

    def __init__(
        self,
        start_command: StartCommand,
        site: None,
        workers: int,
        limits: SandboxLimits,
        port: int,
        output: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Take the arguments of Subject (subject.py), so that Grading can make either.

        limits, port and output have no use without a process.
        """
        self.start_command, self.site, self.workers = start_command, site, workers
        self.environment = dict(environment or {})
        self.path = Path(start_command.command[0])

    def alive(self) -> bool:
        return True

    def close(self) -> None:
        pass

    def log(self, lines: int = 12) -> str:
        return ""

    def __enter__(self) -> RunSubject:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class RunScene(Scene):
    """The scene of a check of a measurement."""

    subject: Any

    def table(self) -> dict[str, Any]:
        """Return the contents of the file of runs. Fail if the file is missing, too large or malformed."""
        path = self.subject.path
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                self.fail(
                    f"{path.name} has more than {MAX_FILE_BYTES >> 20} MB",
                    "measure for some seconds, not for hours",
                )
            table = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            self.fail(f"cannot read {path.name}: {error.strerror}", "hand in runs.json")
        except (ValueError, RecursionError) as error:  # RecursionError: thousands of lists within lists
            self.fail(f"{path.name} is not JSON: {error}", "let measure.py write it, and do not edit it")
        if not isinstance(table, dict) or table.get("format") != FORMAT:
            self.fail(
                f"{path.name} is not of the format {FORMAT}", "let measure.py write it, and do not edit it"
            )
        return table

    def runs(self, kind: str = "") -> list[LoadRun]:
        """Return the runs of a kind ("closed" or "open"), or all for "". Fail if one cannot be read."""
        found = []
        rows = self.table().get("runs")
        rows = rows if isinstance(rows, list) else []
        if len(rows) > MAX_RUNS:
            self.fail(
                f"the file has {len(rows)} runs; the limit is {MAX_RUNS}",
                "measure fewer loads, or fewer repetitions",
            )
        for number, row in enumerate(rows, 1):
            try:
                found.append(run_of_row(row))
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                reason = f"{type(error).__name__}: {error}"
                self.fail(
                    f"run {number} of the file cannot be read ({reason})",
                    f"write runs in the format {FORMAT}",
                )
            if not found[-1].requests or min(found[-1].seconds, found[-1].level) <= 0:
                self.fail(f"{found[-1].name} has no request, no duration or no load", "measure again")
        if not found:
            self.fail("the file has no runs", "run python3 measure.py to its end")
        chosen = [run for run in found if not kind or run.kind == kind]
        if not chosen:
            self.fail(
                f"the file has no {kind} run", "measure closed and open loops: sections 2 and 3 of the text"
            )
        return chosen

    def served(self) -> list[ServedRequest]:
        """Return the server's log, sorted by end time. Fail without a log."""
        name = str(self.table().get("log", ""))
        try:
            lines = self.text_beside(Path(name).name).splitlines() if name else []
            found = [ServedRequest(*map(finite_number, line.split())) for line in lines]
        except (OSError, TypeError, ValueError):
            found = []
        if not found:
            self.fail(
                f"the log of the server ({name or 'no name in the file'}) is missing or malformed",
                "hand in the file that queue_server.py has written, beside runs.json",
            )
        return sorted(found, key=lambda each: each.end)

    def text_beside(self, name: str) -> str:
        """Return the text of a file that the data names: in the directory of the data, or in one below it.

        Some platforms take files without directories, so the file may also lie directly beside the data. A student
        chooses the name. A name that leads elsewhere is not followed: /dev/zero would fill the grader's memory, and
        a FIFO keep it waiting. Raises OSError if there is no such file, ValueError if it is not text.
        """
        directory: Path = self.subject.path.parent
        leads_elsewhere = Path(name).is_absolute() or ".." in Path(name).parts
        for path in (*([] if leads_elsewhere else [directory / name]), directory / Path(name).name):
            if path.is_file() and path.stat().st_size <= MAX_FILE_BYTES:
                return path.read_text(encoding="utf-8")
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)

    def levels(self, kind: str) -> dict[float, list[LoadRun]]:
        """Return the runs of a kind, grouped by level, the lowest level first."""
        found: dict[float, list[LoadRun]] = {}
        for run in sorted(self.runs(kind), key=lambda run: (run.level, run.repetition)):
            found.setdefault(run.level, []).append(run)
        return found
