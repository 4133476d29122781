"""What the lab measures, as data: it is written to results.json, read back, joined and charted.

    Results                     one invocation of the lab: the machine, and its tables
      Table                     one experiment (or one `compare`), finished, cut short or not to be run here
        Cell                    one server at one setting, with what the document printed for it
          Sample                one run of a load against it
            Second              what happened in one second of that run

Units: seconds, bytes, events a second, and shares from 0 to 1 (of one core). None means not measured.
Everything is plain data, so that a report can be made of a file years later on another machine.
"""

from __future__ import annotations

import json
import statistics
import types
import typing
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

FORMAT = 1  # of results.json; a file of another format is rejected
PRECISION = 0.001  # relative precision of a time: the width of a bucket of the histogram
CLIENT_LIMITED = 0.7  # share of its core from which on the load generator may be the bottleneck

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

    A request without an answer has waited at least until the load stopped waiting for it. That time is part of the
    percentiles and of max. at_least: the shortest such time, None if every request was answered. A percentile that
    is not below it is a lower bound. count, mean: of the answers alone, as httperf counts. buckets: (time, count)
    for a chart, at most a few hundred.
    """

    count: int
    mean: float | None  # None: there was no answer
    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    buckets: list[tuple[float, int]] = field(default_factory=list)
    at_least: float | None = None

    def is_bound(self, value: float) -> bool:
        """Whether a percentile is a lower bound: requests that had waited no longer were never answered."""
        return self.at_least is not None and value >= self.at_least * (1 - PRECISION)


@dataclass
class Second:
    """One second of a run, counted from the end of the warm-up.

    replies, errors: of requests that ended in this second. The last second also has the errors of the requests
    that were still waiting at the end. cpu: share of one core, of all processes of the server. memory: PSS, or RSS
    where the system does not report PSS.
    """

    at: int
    replies: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    p50: float | None = None  # of the response time if there is one, else of the service time
    p99: float | None = None
    due: int | None = None  # requests that were due, where the load keeps a schedule
    cpu: float | None = None
    memory: float | None = None
    threads: int | None = None
    processes: int | None = None
    descriptors: int | None = None
    switches: int | None = None  # context switches, both kinds


@dataclass
class Usage:
    """What a server used during a run, over its whole process tree. cpu: CPU seconds."""

    cpu: float
    memory: float | None = None  # peak; PSS where the system reports it
    threads: int | None = None  # all at their peak
    processes: int | None = None
    descriptors: int | None = None
    voluntary: int | None = None  # context switches
    involuntary: int | None = None
    core: float | None = None  # share of the server's core that was busy, other programs included


@dataclass
class Sample:
    """One run of a load. tool: locust, wrk, ab, httperf or the lab's own pinger.

    running: the mean service time of the first 1, 2, 5, 10, 20 ... answers. phases: where the rate of the load
    changes, the figures of each phase, without a timeline.
    sessions: the number begun, if a session sends several requests and its first error ends it; else 0.
    service: from sending a request to the end of its answer. response: from the time at which the request was
    due; None if the load has no schedule. client: the share of its core that the load generator used; core: the
    share of that core that was busy, other programs included.
    """

    tool: str
    seconds: float  # that were measured, without warm-up
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

    @property
    def tried(self) -> int:
        """The number of which errors are a share: of sessions if the load has them, else of requests."""
        failed = sum(self.errors.values())
        return max(self.sessions, failed) if self.sessions else max(self.requests, self.replies + failed)

    @property
    def lost(self) -> float | None:
        """Share of the sessions or requests that ended in an error: the one figure for a loss."""
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
    def micros(self) -> float | None:
        """The server's CPU time for a reply, in µs."""
        return self.usage.cpu / self.replies * 1e6 if self.usage and self.replies else None


@dataclass
class Cell:
    """One server at one setting.

    column: the setting's name (`as printed`, `think 100 ms`, `keep-alive`). x: where it stands on the x axis
    (users, rate, bytes), None where there is no axis. value: the name of the figure that counts: `rate`,
    `micros`, `service.p50`, `usage.memory`, `extra.frozen`. paper: what the document printed for it, in the
    document's unit, for the server it calls paper_server.
    """

    server: str
    column: str = ""
    x: float | None = None
    value: str = "rate"
    unit: str = "req/s"
    paper: float | None = None
    paper_server: str = ""
    paper_note: str = ""  # for example its errors: "773 ct"
    samples: list[Sample] = field(default_factory=list)
    failure: str = ""  # why a sample is missing
    command: str = ""  # the command that ran the server
    load: str = ""  # the load in words
    remark: str = ""  # how this row differs from the document's
    line: str = ""  # a line of a printed table: the samples are those of another cell

    @property
    def setting(self) -> str:
        """Return the name of the column without the name of the line."""
        return self.column.removesuffix(f": {self.line}") if self.line else self.column

    @property
    def values(self) -> list[float]:
        """Return the figure that counts, of each sample that has it."""
        found = (figure(sample, self.value) for sample in self.samples)
        return [value for value in found if value is not None]

    @property
    def median(self) -> float | None:
        """Return the median of the figure that counts."""
        return statistics.median(self.values) if self.values else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """Return the least and the greatest figure."""
        return (min(self.values), max(self.values)) if self.values else None

    @property
    def client_limited(self) -> bool:
        """Whether the load generator was so busy that it may be the bottleneck."""
        shares = [sample.client for sample in self.samples if sample.client is not None]
        return bool(shares) and statistics.median(shares) > CLIENT_LIMITED


def figure(sample: Sample, name: str) -> float | None:
    """Return a figure of a sample by its name: `rate`, `service.p99`, `usage.memory`, `extra.accepted`."""
    found: Any = sample
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else getattr(found, part, None)
        if found is None:
            return None
    return float(found)


@dataclass
class Table:
    """One experiment as it was run. id: `E-T2`, or `compare`. skipped: why it was not run at all."""

    id: str
    title: str = ""
    cells: list[Cell] = field(default_factory=list)
    skipped: str = ""
    interrupted: bool = False
    quick: bool = False
    seconds: float = 0.0  # duration
    command: str = ""  # the command that repeats it
    notes: list[str] = field(default_factory=list)


@dataclass
class Results:
    """One run of the lab. machine: facts that the figures depend on, by name; no names of hosts or persons."""

    started: str  # ISO 8601, with the zone
    command: str
    machine: dict[str, str] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    format: int = FORMAT


# ---------------------------------------------------------------------------------------------------------
# To JSON and back

T = TypeVar("T")


class BadResults(Exception):
    """A file is not a results.json that this version can read. The text is one line."""


def save(results: Results, path: Path) -> None:
    """Write results.json by renaming a complete file. Raises OSError."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps(asdict(results), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def load(path: Path) -> Results:
    """Read results.json. Raises OSError, BadResults."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise BadResults(f"{path}: not results of the lab in format {FORMAT}")
        results = build(Results, found)
    except (ValueError, TypeError, KeyError, AttributeError) as reason:
        raise BadResults(f"{path}: not results of the lab: {reason}") from None
    assert isinstance(results, Results)
    return results


def build(kind: Any, value: Any) -> Any:
    """Convert a value from JSON to the type of a field's annotation. Raises TypeError."""
    if kind is float and type(value) is int:
        return float(value)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        known = {each.name for each in fields(kind)}
        if unknown := set(value) - known:
            raise TypeError(f"{kind.__name__} has no {sorted(unknown)[0]}")
        return kind(**{name: build(hints[name], part) for name, part in value.items()})
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return build(next(each for each in arguments if each is not types.NoneType), value)
    if origin is list:
        return [build(arguments[0], part) for part in value]
    if origin is tuple and arguments[-1] is Ellipsis:
        return tuple(build(arguments[0], part) for part in value)
    if origin is tuple:
        return tuple(build(each, part) for each, part in zip(arguments, value, strict=True))
    if origin is dict:
        return {key: build(arguments[1], part) for key, part in value.items()}
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not {kind.__name__}")
    return value


def join(parts: Sequence[Results]) -> Results:
    """Join runs. A later table replaces an earlier one with the same id."""
    latest = max(parts, key=lambda part: part.started)
    tables = {
        table.id: table for part in sorted(parts, key=lambda part: part.started) for table in part.tables
    }
    return Results(latest.started, latest.command, latest.machine, list(tables.values()))
