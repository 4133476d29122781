"""The classes that describe an experiment, and the interface of the bench that runs it.

    def run(lab: Bench) -> Iterator[Cell]:
        for tested in lab.servers(TESTED_SERVERS):
            yield lab.fill_cell(tested, load, Cell(...))

An experiment is data and a generator `run`. The data (the document's claim, the varied setting, the charts) stand
in a TOML file. `run` yields each cell when it is complete, so that the cells of an interrupted run are kept.
ewe_lab/experiments holds all experiments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from ewe_lab.bench.results import Cell, Sample


@dataclass(frozen=True)
class ServerUnderTest:
    """A server under test. name: in tables (`thread`, `nginx`); kind: `ewe` or the name of another server.

    options: of the command line. most: the connections that the server can keep open and serve at once. variables:
    of the environment, for ewe only; directories in PYTHONPATH come after those of ewe. other_pids: processes that
    work for the server and are not its children.
    """

    name: str
    kind: str = "ewe"
    model: str = ""
    options: tuple[str, ...] = ()
    most: int = 1_000_000  # max_connections: the TOML file of a paper has this shorter key
    variables: tuple[tuple[str, str], ...] = ()
    other_pids: tuple[int, ...] = ()

    @property
    def max_connections(self) -> int:
        """The connections that the server can keep open and serve at once."""
        return self.most


def duration_text(seconds: float) -> str:
    """Return a time as `100 ms`, `2 s`, `5 min`."""
    if seconds >= 120 and seconds % 60 == 0:
        return f"{seconds / 60:g} min"
    return f"{seconds:g} s" if seconds >= 1 or not seconds else f"{seconds * 1000:g} ms"


@dataclass(frozen=True)
class Load:
    """A load in one of three shapes.

    closed      users that send a request, wait for the answer, think, and send the next request. The rate of the
                requests depends on the server, so a closed loop hides stalls
    arrivals    `rate` new sessions a second, however fast the server is, each of `calls` requests on one connection
                with `think` seconds between. With `users`, all sessions share that many connections and wait for a
                free one. `phases`: the rate changes, (seconds, sessions a second). `poisson`: sessions begin at
                random times, as independent visitors do; the times are the same in every run
    saturation  as many requests as the server answers, from wrk or ab

    These requests are counted. closed: the replies within `seconds`, and the times and errors of all requests that
    were in progress in that time, however late they ended; a request that never ended is an error (ct). arrivals
    with `sessions`: everything from the first request that is due to the last end, without warm-up, as httperf
    counts. Other arrivals: the replies within `seconds`, and the times and errors of the requests that were due in
    that time, however late they ended.
    """

    shape: str = "closed"  # closed, arrivals, saturation
    users: int = 0  # closed: at once; saturation: connections; arrivals: connections shared, 0: one a session
    think: float = 0.0  # seconds between an answer and the next request
    seconds: float = 5.0  # measured; arrivals with `sessions`: the longest it may take
    warm_up: float = 1.0  # seconds before the measurement, not counted
    requests: int = 0  # saturation by ab: end after so many requests, and at the latest after `seconds`
    rate: float = 0.0  # arrivals: sessions a second
    sessions: int = 0  # arrivals: how many, 0: until `seconds` are over
    calls: int = 1  # requests of one session
    phases: tuple[tuple[float, float], ...] = ()
    poisson: bool = False
    timeout: float = 5.0  # of one request, from its sending (ct)
    keep_alive: bool = True
    varied: bool = False  # saturation with wrk: each request has its own query string and cookie
    method: str = "GET"  # or HEAD: by ab and locust only
    headers: tuple[tuple[str, str], ...] = ()  # of each request; httperf sends none
    status: int = 0  # of the expected answers, if it is an error
    reopens: bool = False  # reopen a connection that the server closed during a think time, as browsers do
    path: str = "/index.html"
    paths: tuple[str, ...] = ()  # the pages of a visit, requested in this order, in place of `path`
    length: int | None = None  # of the expected body; another length is an error. wrk and httperf do not look
    tls: str = ""  # "", "default", or "parity": TLS 1.2, AES256-SHA, no resumption
    tool: str = ""  # locust, wrk, ab, httperf; "": the best of those that are installed

    @property
    def duration(self) -> float:
        """The measured seconds: the sum of all phases, or `seconds`."""
        return sum(seconds for seconds, _ in self.phases) or self.seconds

    def description(self) -> str:
        """Return the load as text: `50 users, 100 ms think time, 10 s`."""
        plural = "s" if self.users != 1 else ""
        if self.shape == "arrivals":
            parts = self._arrivals_parts()
        elif self.shape == "closed":
            parts = [f"{self.users} user{plural}"]
            parts.append(f"{duration_text(self.think)} think time" if self.think else "no think time")
        else:
            parts = [f"{self.users} connection{plural} at full speed"]
        if self.requests:
            parts.append(f"{self.requests:,} requests")
        elif not self.sessions and not self.phases:
            parts.append(duration_text(self.seconds))
        if not self.keep_alive:
            parts.append("a connection a request")
        if self.tls:
            parts.append("TLS 1.2 AES256-SHA" if self.tls == "parity" else "TLS")
        return ", ".join(parts)

    def _arrivals_parts(self) -> list[str]:
        """Return the parts of the description that say when sessions begin, and what a session is."""
        if self.phases:
            parts = [" then ".join(f"{rate:g}/s for {duration_text(length)}" for length, rate in self.phases)]
        elif self.sessions:
            parts = [f"{self.sessions} sessions at {self.rate:g}/s"]
        else:
            parts = [f"{self.rate:g} sessions/s"]
        if self.poisson:
            parts.append("at random times")
        if self.calls > 1:
            parts.append(f"{self.calls} calls each")
            if self.think:
                parts.append(f"{duration_text(self.think)} think time")
        if self.users:
            parts.append(f"over {self.users} connections")
        return parts


class Bench(Protocol):
    """The interface of the lab for an experiment. Every method stops its processes, also after an exception."""

    quick: bool
    repeats: int  # measurements of a cell
    directory: Path  # the run's own; removed at the end
    notes: list[str]  # of the table: append a sentence
    # The words before each command of a server or a load, such as those that enter the network of a slow link
    command_prefix: list[str]

    def quick_or_full(self, quick: float, full: float) -> float:
        """Return `quick` in a quick run, else `full`: of seconds, or of a number of requests."""

    def servers(self, tested_servers: Iterable[ServerUnderTest]) -> Iterator[ServerUnderTest]:
        """Yield the servers that can run here; add a note for each of the others with the missing package."""

    def site(self, sizes: Sequence[int]) -> Path:
        """Return a document root with a file /SIZE.html of each size (and /index.html, 1 KB)."""

    def certificate(self) -> Path:
        """Return a PEM file with a key and a certificate for localhost. Raises LabError."""

    def start(
        self, tested: ServerUnderTest, root: Path, *options: str, tls: bool = False
    ) -> AbstractContextManager[RunningServer]:
        """Run a server on the server's core; it has ended when the block is left. Raises LabError."""

    def load(self, server: RunningServer, load: Load) -> Sample:
        """Run a load once on the load's core, and watch the server meanwhile. Raises LabError."""

    def undisturbed(self, measure: Callable[[], Sample]) -> Sample:
        """Measure, and once more if other programs had the cores; return the last sample. Raises LabError."""

    def probe(self, server: RunningServer, load: Load) -> None:
        """Send one request and check its answer against the load. Raises LabError."""

    def fill_cell(self, tested: ServerUnderTest, load: Load, cell: Cell, root: Path, *options: str) -> Cell:
        """Start, warm up, load and stop the server, as often as the lab repeats. Add the samples to the cell.

        root: the document root. options: more options of the server. Return the cell. A LabError becomes the
        cell's failure.
        """

    def behind_link(self, speed: str) -> AbstractContextManager[str]:
        """Run the servers and loads of the block behind a link of `10mbit`, `100mbit` or `1gbit`.

        Yields the problem if the link cannot be made, else "". The caller writes the problem into its cells.
        """


class RunningServer(Protocol):
    """A running server."""

    @property
    def pid(self) -> int:
        """The id of the server's first process."""

    @property
    def url(self) -> str:
        """The URL at which the server answers, with a slash at its end."""

    @property
    def command(self) -> str:
        """The command that started the server, for a report, without paths of this machine."""

    @property
    def other_pids(self) -> tuple[int, ...]:
        """Processes that work for the server and are not its children: an application behind a web server."""


CHART_KINDS = ("bars", "lines", "scatter", "stacked", "errors", "timeline")  # Chart says what each one draws
LOAD_SHAPES = ("closed", "arrivals", "saturation")  # Load says what each one sends


class ServedPath(NamedTuple):
    """A running server, and the path of a URL at which it answers with the measured program or file."""

    server: RunningServer
    path: str


@dataclass(frozen=True)
class Chart:
    """A chart of a table's cells.

    kind: bars (log axis, paper hatched beside ours), lines (against x), scatter (as lines, with a fit of second
    degree), stacked (a breakdown), errors (stacked by kind), timeline (each second of one cell's middle sample).
    """

    kind: str
    title: str
    value: str = ""  # the name of a figure, "": the cell's own; of a timeline: a server
    columns: tuple[str, ...] = ()  # (): all
    x: str = ""  # the axis's title
    y: str = ""
    across: bool = False  # stacked: a bar for each column, made of the servers' figures
    log_x: bool = False
    log_y: bool = False
    quiet: bool = False  # a terminal does not list its cells


@dataclass(frozen=True)
class Experiment:
    """One experiment of a document (or of ours). All fields but `run` are data."""

    id: str
    document: str  # EWE, X-Switch, LibCGI, RDBMS, thesis, ewe
    source: str  # `table 2`, `figures 4.1 and 4.2`, `section 5.2`
    title: str
    claim: str  # one sentence: the document's claim, or our expectation
    varies: str  # the varied setting
    measures: str  # the measured quantity
    paper_figure: str = ""  # the document's figure for the claim, in words; "": the claim says it
    quick: bool = False  # belongs to `run --all --quick`
    minutes: float = 1.0  # the duration of a full run, roughly
    quick_seconds: float = 0.0  # the duration of a run with --quick
    reference: str = ""  # the server by whose figure all others are divided, in our run
    paper_reference: str = ""  # the same in the document
    by_column: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # the two references of a column
    charts: tuple[Chart, ...] = ()
    errata: tuple[str, ...] = ()  # errors found in the document that touch this table
    # False: the verdict is about settings, events or memory; other programs cannot change it
    timed: bool = True
    loads: bool = True  # False: no server is put under load, so no load generator has to be installed
    needs: str = ""  # a missing precondition: the experiment is listed with this reason, and not run
    run: Callable[[Bench], Iterator[Cell]] | None = None
    machine: Mapping[str, str] = field(default_factory=dict)  # the document's

    def references(self, column: str) -> tuple[str, str]:
        """Return the reference servers of a column: in our run, and in the document."""
        return self.by_column.get(column, (self.reference, self.paper_reference))
