"""The results of the lab as data. They are written to results.json, read back, joined and charted.

    Results                     one invocation of the lab: the machine, and its tables
      ExperimentTable           one experiment (or one `compare`): finished, interrupted, or skipped
        Cell                    one server at one setting, with the printed figure of the document
          Sample                one run of a load against the server
            Second              the figures of one second of that run

Units: seconds, bytes, events a second, and shares from 0 to 1 (of one core). None means not measured.
Everything is plain data, so that a report can be made from a file years later on another machine.
"""

from __future__ import annotations

import json
import math
import statistics
import types
import typing
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

FORMAT = 1  # of results.json; a file of another format is rejected
PRECISION = 0.001  # relative precision of a time: the width of a bucket of the histogram
# Times that must lie beyond a percentile. How many lie there varies from run to run by about the root of their
# number: ten vary by a third, two by two thirds, and of a p99 of 100 times a single slow one is the whole figure.
MIN_TIMES_ABOVE_PERCENTILE = 10
SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
# Figures of a sample itself. Those of its times and of its usage have a name with a point, such as service.p99
FIGURES_OF_SAMPLE = (
    "rate", "request_rate", "connection_rate", "kilobytes", "micros", "lost", "seconds", "requests", "replies",
    "connections", "received", "sessions", "client", "core",
)  # fmt: skip
# A load generator that uses more than this share of its core may be the bottleneck
CLIENT_LIMITED_SHARE = 0.7

# The kinds of errors of EWE (tables 2 to 5, after httperf), in the order in which they are shown.
ERRORS = {
    "ct": "client timeout: our own timer ran out, or the run ended before an answer came",
    "st": "socket timeout: the kernel gave up (ETIMEDOUT)",
    "ref": "connection refused (ECONNREFUSED)",
    "res": "connection reset, or closed before the answer was complete (ECONNRESET, EPIPE)",
    "fd": "the client had no descriptor left (EMFILE)",
    "addr": "the client had no local port left (EADDRNOTAVAIL)",
    "status": "an answer other than 2xx or 3xx",
    "other": "anything else",
}


@dataclass
class Times:
    """A distribution of times: of the answers, and of the requests that were never answered.

    The load waited for a request without an answer, and then gave up. The time until then is part of the
    percentiles and of max. at_least: the shortest such time, None if every request was answered. A percentile that
    is not below at_least is a lower bound. count, mean: of the answers alone, as httperf counts. buckets: (time,
    count) for a chart, at most a few hundred. unanswered: the number of requests without an answer; an old file
    lacks it, and has the buckets.
    """

    count: int
    mean: float | None  # None: no request was answered
    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    buckets: list[tuple[float, int]] = field(default_factory=list)
    at_least: float | None = None
    unanswered: int = 0

    @property
    def all(self) -> int:
        """The number of times in the percentiles: answers, and requests that were never answered."""
        return max(self.count + self.unanswered, sum(count for _, count in self.buckets))

    def is_lower_bound(self, value: float) -> bool:
        """Whether a percentile is a lower bound: it is not below `at_least`, which a bucket may have rounded."""
        return self.at_least is not None and value >= self.at_least * (1 - PRECISION)


@dataclass
class Second:
    """One second of a run, counted from the end of the warm-up.

    replies, errors: of requests that ended in this second. The last second also has the errors of the requests
    without an answer at the end. cpu: share of one core, of all processes of the server. memory: PSS, or RSS where
    the system does not report PSS.
    """

    at: int
    replies: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    p50: float | None = None  # of the response time if there is one, else of the service time
    p99: float | None = None
    due: int | None = None  # requests that were due, if the load has a schedule
    cpu: float | None = None
    memory: float | None = None
    threads: int | None = None
    processes: int | None = None
    descriptors: int | None = None
    switches: int | None = None  # context switches, both kinds


@dataclass
class Usage:
    """The resources that a server used during a run, over its whole process tree. cpu: CPU seconds."""

    cpu: float
    memory: float | None = None  # peak; PSS where the system reports it
    threads: int | None = None  # threads, processes, descriptors: each at its peak
    processes: int | None = None
    descriptors: int | None = None
    voluntary: int | None = None  # context switches
    involuntary: int | None = None
    # The share of the server's core that was busy with programs, other programs included, interrupts not
    core: float | None = None
    # Seconds in which a thread could run and waited for a core, summed over all threads; None: not known
    wait_s: float | None = None


@dataclass
class Sample:
    """One run of a load. tool: locust, wrk, ab, httperf or the lab's own pinger.

    running: the mean service time of the first 1, 2, 5, 10, 20 ... answers. phases: the figures of each phase,
    without a timeline, if the rate of the load changes. sessions: the number begun, if a session sends several
    requests and its first error ends it; else 0. service: from sending a request to the end of its answer.
    response: from the time at which the request was due; None if the load has no schedule. client: the share of its
    core that the load generator used; core: the share of that core that was busy, other programs included.
    foreign_cores: how many cores other programs had during the measurement; None if it is not known.
    """

    tool: str
    seconds: float  # the measured time, without warm-up
    requests: int = 0
    replies: int = 0
    connections: int = 0
    received: float = 0.0  # bytes of answers
    errors: dict[str, int] = field(default_factory=dict)
    service: Times | None = None
    response: Times | None = None
    client: float | None = None
    core: float | None = None
    usage: Usage | None = None
    timeline: list[Second] = field(default_factory=list)
    extra: dict[str, float] = field(default_factory=dict)  # figures that only one experiment has, by name
    notes: list[str] = field(default_factory=list)  # reasons to doubt the sample, a sentence each
    sessions: int = 0
    running: list[tuple[int, float]] = field(default_factory=list)
    phases: list[Sample] = field(default_factory=list)
    elsewhere: bool = False  # the server was a target that ran already, perhaps on another machine
    foreign_cores: float | None = None

    @property
    def tried(self) -> int:
        """The number by which errors are divided: sessions if the load has them, else requests."""
        failed = sum(self.errors.values())
        return max(self.sessions, failed) if self.sessions else max(self.requests, self.replies + failed)

    @property
    def lost(self) -> float | None:
        """Share of the sessions or requests that ended in an error."""
        return sum(self.errors.values()) / self.tried if self.tried else None

    @property
    def rate(self) -> float:
        """Replies a second."""
        return self.replies / self.seconds if self.seconds else 0.0

    @property
    def request_rate(self) -> float:
        """Requests a second."""
        return self.requests / self.seconds if self.seconds else 0.0

    @property
    def connection_rate(self) -> float:
        """Connections a second."""
        return self.connections / self.seconds if self.seconds else 0.0

    @property
    def kilobytes(self) -> float:
        """KB (1024 bytes, as in httperf) of answers a second."""
        return self.received / self.seconds / 1024 if self.seconds else 0.0

    @property
    def foreign_on_server_core(self) -> float | None:
        """The share of the server's core that other programs had; None if it is not known."""
        if self.usage is None or self.usage.core is None or not self.seconds or self.usage.cpu < 0:
            return None
        return self.usage.core - self.usage.cpu / self.seconds

    @property
    def foreign_on_load_core(self) -> float | None:
        """The share of the load generator's core that other programs had; None if it is not known."""
        return None if self.core is None or self.client is None else self.core - self.client

    @property
    def micros(self) -> float | None:
        """The server's CPU time for a reply, in µs.

        None also if it is negative: an earlier report lost the CPU time of programs that nobody waits for.
        """
        if self.usage is None or not self.replies or self.usage.cpu < 0:
            return None
        return self.usage.cpu / self.replies * 1e6


@dataclass
class Cell:
    """One server at one setting.

    column: the setting's name (`as printed`, `think 100 ms`, `keep-alive`). x: the position on the x axis (users,
    rate, bytes), None without an axis. value: the name of the cell's figure: `rate`, `micros`, `service.p50`,
    `usage.memory`, `extra.frozen`. paper: the document's figure for it, in the document's unit. paper_server: the
    document's name of the server.
    """

    server: str
    column: str = ""
    x: float | None = None
    value: str = "rate"
    unit: str = "req/s"
    paper: float | None = None
    paper_server: str = ""
    paper_note: str = ""  # a remark on the printed figure, for example its errors: "773 ct"
    samples: list[Sample] = field(default_factory=list)
    failure: str = ""  # the reason if a sample is missing
    command: str = ""  # the command that ran the server
    load: str = ""  # the load in words
    remark: str = ""  # how this row differs from the document's
    line: str = ""  # a line of a printed table: the samples are those of another cell
    samples_of: int | None = None  # in a kept report: the index of the cell with the same samples

    @property
    def setting(self) -> str:
        """The name of the column without the name of the line."""
        return self.column.removesuffix(f": {self.line}") if self.line else self.column

    @property
    def values(self) -> list[float]:
        """The cell's figure in each sample that has it."""
        found = (figure(sample, self.value) for sample in self.samples)
        return [value for value in found if value is not None]

    @property
    def median(self) -> float | None:
        """The median of the cell's figure over its samples."""
        return statistics.median(self.values) if self.values else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """The least and the greatest figure."""
        return (min(self.values), max(self.values)) if self.values else None

    @property
    def was_client_limited(self) -> bool:
        """Whether the load generator was so busy that it may be the bottleneck."""
        shares = [sample.client for sample in self.samples if sample.client is not None]
        return bool(shares) and statistics.median(shares) > CLIENT_LIMITED_SHARE


def times_needed(percentile: str, beyond: int = MIN_TIMES_ABOVE_PERCENTILE) -> int:
    """Return how many times must be measured for a percentile: p50 20, p90 100, p95 200, p99 1,000.

    beyond: how many of them must lie beyond the percentile.
    """
    return round(beyond / (1 - SHARES[percentile]))


def has_too_few_times(sample: Sample, name: str) -> bool:
    """Whether a figure is a percentile of fewer times than it needs."""
    kind, _, part = name.partition(".")
    times = getattr(sample, kind) if kind in ("service", "response") and part in SHARES else None
    return times is not None and times.all < times_needed(part)


def figure(sample: Sample, name: str) -> float | None:
    """Return a figure of a sample by its name: `rate`, `service.p99`, `usage.memory`, `extra.accepted`.

    A percentile of too few times is no figure: None. Neither is NaN: it is on neither side of any other figure, so
    each comparison would take it for the smaller one.
    """
    if has_too_few_times(sample, name):
        return None
    value: Any = sample
    # `usage.memory` is sample.usage.memory, `extra.accepted` sample.extra["accepted"]
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else getattr(value, part, None)
        if value is None:
            return None
    number = float(value)
    return None if math.isnan(number) else number


def is_figure_name(name: str) -> bool:
    """Whether figure() knows a name. Each experiment has its own names after `extra.`."""
    first, _, part = name.partition(".")
    if first == "extra":
        return bool(part)
    if first in ("service", "response"):
        return part in ("count", "mean", "max", *SHARES)
    if first == "usage":
        return part in types_of_fields(Usage)
    return name in FIGURES_OF_SAMPLE


@dataclass
class ExperimentTable:
    """One experiment as it was run. id: `E-T2`, or `compare`. skipped: the reason if it was not run at all.

    interrupted: the experiment has not run to its end, because of an interrupt or of a failure outside of a cell.
    foreign: the share of the cores that other programs had meanwhile. None: nobody looked. left_out: the number of
    measurements that were removed, because other programs had the cores meanwhile (disturbance.py).
    """

    id: str
    title: str = ""
    cells: list[Cell] = field(default_factory=list)
    skipped: str = ""
    interrupted: bool = False
    quick: bool = False
    seconds: float = 0.0  # duration
    command: str = ""  # the command that repeats the experiment
    notes: list[str] = field(default_factory=list)
    foreign: float | None = None
    cores: int = 2  # the number of cores of which `foreign` is a share
    left_out: int = 0


@dataclass
class Results:
    """One run of the lab. machine: the facts on which the figures depend, by name; no names of hosts or persons."""

    started: str  # ISO 8601, with the zone
    command: str
    machine: dict[str, str] = field(default_factory=dict)
    tables: list[ExperimentTable] = field(default_factory=list)
    format: int = FORMAT


# ---------------------------------------------------------------------------------------------------------
# To JSON and back

T = TypeVar("T")


class BadResults(Exception):
    """A file is not a results.json that this version can read. The text is one line."""


def save(results: Results, path: Path) -> None:
    """Write results.json. Raises OSError."""
    write_and_rename(path, json.dumps(asdict(results), ensure_ascii=False, indent=1) + "\n")


def write_and_rename(path: Path, text: str) -> None:
    """Write a complete file, then rename it over the old one: a reader never sees half a file. Raises OSError.

    A byte of the command line that is not UTF-8, such as one of a file's name, becomes `?`.
    """
    new = path.with_name(path.name + ".new")
    try:
        new.write_text(text, encoding="utf-8", errors="replace", newline="")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def load(path: Path) -> Results:
    """Read a results.json, or a kept report (kept_reports.py); return the results.

    Raises OSError if the file cannot be read, and BadResults if it has another format or not the fields of Results.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as reason:
        raise BadResults(f"{path}: not results of the lab: {reason}") from None
    return results_of_text(text, str(path))


def results_of_text(text: str, name: str) -> Results:
    """Return the results in the text of a file. name: of the file, for an error. Raises BadResults, as load()."""
    try:
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise BadResults(f"{name}: not results of the lab in format {FORMAT}")
        results = value_from_json(Results, data)
        assert isinstance(results, Results)
        for table in results.tables:
            restore_samples(table.cells)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as reason:
        raise BadResults(f"{name}: not results of the lab: {reason}") from None
    return results


def restore_samples(cells: Sequence[Cell]) -> None:
    """Give a cell what a kept report has once, in another cell: the samples of a measurement, its command and load.

    kept_reports.without_repeated_samples() has left them out; reports of earlier versions have the command and the
    load in each cell. Raises IndexError for a missing cell.
    """
    for cell in cells:
        if cell.samples_of is not None:
            first = cells[cell.samples_of]
            cell.samples = list(first.samples)
            cell.command, cell.load = cell.command or first.command, cell.load or first.load
            cell.samples_of = None


def value_from_json(kind: Any, value: Any) -> Any:
    """Return a value from JSON as the type `kind`, that of a field's annotation. Raises TypeError."""
    if kind is float and type(value) is int:  # JSON does not tell 5.0 from 5
        return float(value)
    if is_dataclass(kind) and isinstance(kind, type):
        field_types = types_of_fields(kind)
        if unknown := set(value) - field_types.keys():
            raise TypeError(f"{kind.__name__} has no {sorted(unknown)[0]}")
        return kind(**{name: value_from_json(field_types[name], part) for name, part in value.items()})
    arguments = typing.get_args(kind)
    if arguments:
        return value_of_generic_type(typing.get_origin(kind), arguments, value)
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not {kind.__name__}")
    return value


def value_of_generic_type(origin: Any, arguments: Sequence[Any], value: Any) -> Any:
    """Return a value from JSON as `X | None`, a list, a dictionary, or else a tuple. Raises TypeError."""
    if origin in (typing.Union, types.UnionType):  # the only unions are `X | None`
        if value is None:
            return None
        return value_from_json(next(type_ for type_ in arguments if type_ is not types.NoneType), value)
    if origin is list:
        return [value_from_json(arguments[0], part) for part in value]
    if origin is dict:
        return {key: value_from_json(arguments[1], part) for key, part in value.items()}
    if arguments[-1] is Ellipsis:
        return tuple(value_from_json(arguments[0], part) for part in value)
    return tuple(value_from_json(type_, part) for type_, part in zip(arguments, value, strict=True))


@cache
def types_of_fields(kind: type) -> dict[str, Any]:
    """Return the type of each field of a dataclass. Its annotations are texts, which take long to evaluate."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def seconds_since_1970(started: str) -> float:
    """Return a time in ISO 8601 as seconds since 1970; 0.0 for another text.

    Two such texts cannot be compared as they are: 09:30+00:00 is later than 10:00+01:00.
    """
    try:
        return datetime.fromisoformat(started).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def join_runs(parts: Sequence[Results]) -> Results:
    """Return runs, in any order, as one. There must be at least one.

    A later table replaces an earlier one with the same id. All other fields are those of the latest run.
    """
    by_time = sorted(parts, key=lambda part: seconds_since_1970(part.started))
    latest = by_time[-1]
    tables = {table.id: table for part in by_time for table in part.tables}
    return Results(
        started=latest.started, command=latest.command, machine=latest.machine, tables=list(tables.values())
    )
