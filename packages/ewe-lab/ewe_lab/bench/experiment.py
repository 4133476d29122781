"""What an experiment is, and what it may ask of the bench.

    def run(lab: Bench) -> Iterator[Cell]:
        for contender in lab.servers(CONTENDERS):
            yield lab.measure(contender, load, Cell(...))

An experiment is data (the document's claim, what is varied, how it is charted), which stands in a TOML file, and a
generator `run`. It yields each cell when it is complete, so that the cells of an interrupted run are kept.
ewe_lab/experiments holds them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ewe_lab.bench.results import Cell, Sample


@dataclass(frozen=True)
class Contender:
    """A server to measure. name: in tables (`thread`, `nginx`); kind: `ewe` or the name of a peer.

    options: of its command line. most: connections it can keep open and serve at once. variables: of its
    environment, for ewe only; directories in PYTHONPATH come after those of ewe. also: processes that work for it
    and are not its children.
    """

    name: str
    kind: str = "ewe"
    model: str = ""
    options: tuple[str, ...] = ()
    most: int = 1_000_000
    variables: tuple[tuple[str, str], ...] = ()
    also: tuple[int, ...] = ()


def in_words(seconds: float) -> str:
    """Return a time as `100 ms`, `2 s`, `5 min`."""
    if seconds >= 120 and seconds % 60 == 0:
        return f"{seconds / 60:g} min"
    return f"{seconds:g} s" if seconds >= 1 or not seconds else f"{seconds * 1000:g} ms"


@dataclass(frozen=True)
class Load:
    """A load in one of three shapes.

    closed      users that send a request, wait for the answer, think, and send the next. How fast they ask depends
                on the server, so a closed loop hides stalls
    arrivals    `rate` new sessions a second, however fast the server is, each of `calls` requests on one connection
                with `think` seconds between. With `users`, all sessions share that many connections and wait for a
                free one. `phases`: the rate changes, (seconds, sessions a second). `poisson`: at random times, as
                visitors come who do not know of each other; the times are the same in every run
    ceiling     as many requests as the server answers, from wrk or ab

    What counts: closed: the replies within `seconds`; times and errors of all requests that were under way then,
    however late they ended, and those that never ended as errors (ct). arrivals with `sessions`: everything from
    the first request that is due to the last end, without warm-up, as httperf counts. Other arrivals: the replies
    within `seconds`; times and errors of the requests that were due within, however late they ended.
    """

    shape: str = "closed"  # closed, arrivals, ceiling
    users: int = 0  # closed: at once; ceiling: connections; arrivals: connections shared, 0: one a session
    think: float = 0.0  # seconds between an answer and the next request
    seconds: float = 5.0  # measured; arrivals with `sessions`: the longest it may take
    warm_up: float = 1.0  # seconds before, thrown away
    rate: float = 0.0  # arrivals: sessions a second
    sessions: int = 0  # arrivals: how many, 0: until `seconds` are over
    calls: int = 1  # requests of one session
    phases: tuple[tuple[float, float], ...] = ()
    poisson: bool = False
    timeout: float = 5.0  # of one request, from its sending (ct)
    keep_alive: bool = True
    reopens: bool = False  # as browsers do: a connection that the server has closed while the user thought
    path: str = "/index.html"
    paths: tuple[str, ...] = ()  # in turn, in place of `path`: what a visitor looks at
    length: int | None = None  # of the body expected; another is an error
    tls: str = ""  # "", "default", or "parity": TLS 1.2, AES256-SHA, no resumption
    tool: str = ""  # "": the best that is here; locust, wrk, ab, httperf

    @property
    def duration(self) -> float:
        """Seconds that are measured: of all phases, or `seconds`."""
        return sum(seconds for seconds, _ in self.phases) or self.seconds

    def words(self) -> str:
        """Return the load as a sentence's end: `50 users, 100 ms think time, 10 s`."""
        parts = []
        if self.shape == "arrivals":
            parts += self._arrivals_in_words()
        else:
            who = "user" if self.shape == "closed" else "connection"
            parts.append(f"{self.users} {who}{'s' if self.users != 1 else ''}")
            if self.shape == "closed":
                parts.append(f"{in_words(self.think)} think time" if self.think else "no think time")
            else:
                parts[0] += " at full speed"
        if not self.sessions and not self.phases:
            parts.append(in_words(self.seconds))
        if not self.keep_alive:
            parts.append("a connection a request")
        if self.tls:
            parts.append("TLS 1.2 AES256-SHA" if self.tls == "parity" else "TLS")
        return ", ".join(parts)

    def _arrivals_in_words(self) -> list[str]:
        if self.phases:
            parts = [" then ".join(f"{rate:g}/s for {in_words(length)}" for length, rate in self.phases)]
        elif self.sessions:
            parts = [f"{self.sessions} sessions at {self.rate:g}/s"]
        else:
            parts = [f"{self.rate:g} sessions/s"]
        if self.poisson:
            parts.append("at random times")
        if self.calls > 1:
            parts.append(f"{self.calls} calls each")
            if self.think:
                parts.append(f"{in_words(self.think)} think time")
        if self.users:
            parts.append(f"over {self.users} connections")
        return parts


class Bench(Protocol):
    """What the lab offers an experiment. All of it ends what it began, also when an exception passes."""

    quick: bool
    repeats: int  # measurements of a cell
    directory: Path  # the run's own; removed at the end
    notes: list[str]  # of the table: append a sentence
    prefix: list[str]  # of the commands of servers: enters the network of a slow link

    def seconds(self, quick: float, full: float) -> float:
        """Return one of the two."""

    def servers(self, contenders: Iterable[Contender]) -> Iterator[Contender]:
        """Yield those that can run here; note the others, with the package that brings them."""

    def site(self, sizes: Sequence[int]) -> Path:
        """Return a document root with a file /SIZE.html of each size (and /index.html, 1 KB)."""

    def certificate(self) -> Path:
        """Return a PEM file with a key and a certificate for localhost. Raises LabError."""

    def start(
        self, contender: Contender, root: Path, *options: str, tls: bool = False
    ) -> AbstractContextManager[Running]:
        """Run a server on the server's core; it has ended when the block is left. Raises LabError."""

    def load(self, server: Running, load: Load) -> Sample:
        """Run a load once on the load's core, and watch the server meanwhile. Raises LabError."""

    def probe(self, server: Running, load: Load) -> None:
        """Send one request and check its answer against the load. Raises LabError."""

    def measure(self, contender: Contender, load: Load, cell: Cell, root: Path, *options: str) -> Cell:
        """Start, warm up, load, end: as often as the lab repeats. Fill in the cell and return it.

        A LabError becomes the cell's failure.
        """

    def linked(self, speed: str) -> AbstractContextManager[str]:
        """Within the block, what is started runs behind a link of `10mbit`, `100mbit` or `1gbit`.

        Yields why it could not be made, "" if it was: the caller says so in its cells.
        """


class Running(Protocol):
    """A server that runs. url: with the slash; command: for a report, without paths of this machine."""

    @property
    def pid(self) -> int:
        """Of its first process."""

    @property
    def url(self) -> str:
        """Where it answers."""

    @property
    def command(self) -> str:
        """What ran it."""

    @property
    def also(self) -> tuple[int, ...]:
        """Processes that work for it without being its children: an application's behind a web server."""


@dataclass(frozen=True)
class Chart:
    """A chart of a table's cells. kind: bars (log axis, paper hatched beside ours), lines (against x), scatter (as
    lines, with a fit of second degree), stacked (a breakdown), errors (stacked by kind), timeline (each second of
    one cell's middle sample)."""

    kind: str
    title: str
    value: str = ""  # "": the cell's own figure
    columns: tuple[str, ...] = ()  # (): all
    x: str = ""  # the axis's title
    y: str = ""
    across: bool = False  # stacked: a bar for each column, of the servers' figures
    log_x: bool = False
    log_y: bool = False
    quiet: bool = False  # a terminal does not list its cells


@dataclass(frozen=True)
class Experiment:
    """One experiment of a document (or of ours). A table of data, but for `run`."""

    id: str
    document: str  # EWE, X-Switch, LibCGI, RDBMS, thesis, ewe
    source: str  # `table 2`, `figures 4.1 and 4.2`, `section 5.2`
    title: str
    claim: str  # one sentence: what the document says, or what we expect
    varies: str  # what is varied
    measures: str  # what is measured
    quick: bool = False  # belongs to `run --all --quick`
    minutes: float = 1.0  # in full, roughly
    quick_seconds: float = 0.0  # with --quick; the catalogue fills it in
    reference: str = ""  # server over which all others are shown, in ours
    paper_reference: str = ""  # in the document
    by_column: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # a column's own: ours, theirs
    charts: tuple[Chart, ...] = ()
    errata: tuple[str, ...] = ()  # errors found in the document that touch this table
    loads: bool = True  # False: no server is put under load, so that nothing that loads has to be installed
    needs: str = ""  # what has to come first: it is listed with this reason, and not run
    run: Callable[[Bench], Iterator[Cell]] | None = None
    machine: Mapping[str, str] = field(default_factory=dict)  # the document's

    def references(self, column: str) -> tuple[str, str]:
        """Return the server over which a column's figures are shown, in ours and in the document."""
        return self.by_column.get(column, (self.reference, self.paper_reference))
