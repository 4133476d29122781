"""How the dynamic tests of the thesis run: pages of PHP and Python, served in several ways.

As in the static tests, the sweep over the number of clients is charted as measured, and the best point of each way
stands beside the figure that the text of the thesis gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ewe_lab.bench.experiment import Bench, Load, Running
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, Sample
from ewe_lab.experiments.thesis_static import (
    AT_TODAY,
    BEST,
    CLIENTS,
    KEEP,
    PARITY,
    READ_OFF,
    TODAY,
    best,
    height,
)
from ewe_lab.stacks.backends import opener
from ewe_lab.stacks.ways import MOST_PROCESSES, Way, served

QUICK = (32,)
AGAIN = 2  # more measurements of the best point, in full
CGI_CLIENTS = f"CGI is asked by at most {MOST_PROCESSES} clients at once, since each of them is a process."
CHEROKEE = "Cherokee is in no current distribution: its printed figures are shown, and cannot be tested."
PLAIN = "no TLS, "
HTTP_1_0 = (
    "ab speaks HTTP/1.0, in which a connection can only be kept if the response has a Content-Length. Lighttpd and "
    "mod_php add it to a program's response; nginx and Apache's proxies do not, and close. What lighttpd gained by "
    "keep-alive in 2011 may have come from that. The columns of TLS 1.3 and those without TLS have kept "
    "connections from wrk, which speaks HTTP/1.1."
)
Printed = Sequence[Any]  # the document's name of a server, requests a second


@dataclass(frozen=True)
class DynamicTest:
    """One dynamic test. printed: by column and name of the way. gone: for servers that no longer exist, by column.

    clients: at once, in full and with --quick. plain: the test is over TLS, with the cipher of 2011 and with that
    of today; these figures are printed for the same ways without TLS.
    """

    ways: Sequence[Way]
    printed: Mapping[str, Mapping[str, Printed]]
    gone: Mapping[str, Printed] | None = None
    clients: Sequence[int] = CLIENTS
    quick: Sequence[int] = QUICK
    notes: Sequence[str] = ()
    plain: Mapping[str, Mapping[str, Printed]] | None = None


def described(ways: Sequence[Mapping[str, Any]], **of: Any) -> DynamicTest:
    """Return a dynamic test, as a paper's file describes it. of: the other fields of the test."""
    return DynamicTest([Way(**each) for each in ways], **of)


def table(lab: Bench, **of: Any) -> Iterator[Cell]:
    """Measure a dynamic test, as a paper's file describes it."""
    yield from run(lab, described(**of))


def run(lab: Bench, test: DynamicTest) -> Iterator[Cell]:
    """Measure every way that can run here."""
    lab.notes += [READ_OFF, *test.notes]
    if any(way.by == "cgi" for way in test.ways):
        lab.notes.append(CGI_CLIENTS)
    if test.plain is not None:
        lab.notes += [PARITY, HTTP_1_0]
    cells: list[Cell] = []
    for way in test.ways:
        if lacking := way.missing or (way.missing_for_tls if test.plain is not None else ""):
            lab.notes.append(lacking)
            continue
        for cell in measure(lab, test, way):
            cells.append(cell)
            yield cell
    for column, (name, figure) in (test.gone or {}).items():
        lab.notes += [CHEROKEE] if CHEROKEE not in lab.notes else []
        yield Cell(name.lower(), BEST + column, paper=figure, paper_server=name)
    if test.plain is not None:
        lab.notes += [cost_of_tls(cells, column) for column in test.printed]


def measure(lab: Bench, test: DynamicTest, way: Way) -> Iterator[Cell]:
    """Measure a way: every number of clients, with and without keep-alive; then its best points."""
    over_tls = test.plain is not None
    swept: dict[str, list[Cell]] = {}
    today: list[Cell] = []
    try:
        with served(lab, way, tls=over_tls) as (server, path):
            probe(server.url.rstrip("/") + path, way.page)
            for column in test.printed if not (over_tls and way.front == "ewe") else ():
                swept[column] = list(sweep(lab, test, way, column, server, path))
                if len(swept[column]) > 1:
                    yield from swept[column]
            if over_tls:
                today = list(at_today(lab, test, way, TODAY, server, path))
        for column, cells in swept.items():
            top = beside(test.printed[column], way, best(cells, None))
            if not lab.quick:
                top.samples = [*top.samples, *again(lab, test, way, column, max(cells, key=height))]
            yield top
        yield from today
        if over_tls:
            with served(lab, way) as (server, path):
                yield from at_today(lab, test, way, PLAIN, server, path)
    except LabError as reason:
        yield Cell(way.name, failure=str(reason))


def sweep(lab: Bench, test: DynamicTest, way: Way, column: str, server: Running, path: str) -> Iterator[Cell]:
    """Measure a running way with every number of clients."""
    counts = test.quick if lab.quick else test.clients
    for count in sorted({min(count, way.most(column == KEEP)) for count in counts}):
        load = load_of(lab, way, column, count, path, "parity" if test.plain is not None else "")
        yield loaded(lab, server, load, Cell(way.name, column, count))


def at_today(lab: Bench, test: DynamicTest, way: Way, how: str, server: Running, path: str) -> Iterator[Cell]:
    """Measure a running way with one number of clients. how: TODAY or PLAIN."""
    for column in test.printed:
        load = load_of(lab, way, column, AT_TODAY, path, "default" if how == TODAY else "")
        cell = loaded(lab, server, load, Cell(way.name, how + column))
        yield beside((test.plain or {}).get(column, {}), way, cell) if how == PLAIN else cell


def loaded(lab: Bench, server: Running, load: Load, cell: Cell) -> Cell:
    """Run a load; return the cell with the sample."""
    cell.command, cell.load = server.command, load.words()
    cell.samples.append(lab.load(server, load))
    return cell


def cost_of_tls(cells: Sequence[Cell], column: str) -> str:
    """Return a note: what TLS 1.3 costs each way, as the rate without over the rate with it."""
    rates = {(cell.server, cell.column): cell.median for cell in cells}
    told = []
    for (server, where), plain in rates.items():
        secure = rates.get((server, TODAY + column))
        if where == PLAIN + column and plain and secure:
            told.append(f"{server} {plain / secure:.1f}")
    return f"TLS 1.3 divides the rate by, {column}: {', '.join(told) or 'none was measured'}."


def again(lab: Bench, test: DynamicTest, way: Way, column: str, of: Cell) -> Iterator[Sample]:
    """Measure a point again, each time with new processes: a thousand clients leave traces in the old ones."""
    over_tls = test.plain is not None
    for _ in range(AGAIN):
        with served(lab, way, tls=over_tls) as (server, path):
            tls = "parity" if over_tls else ""
            yield lab.load(server, load_of(lab, way, column, int(of.x or 0), path, tls))


def load_of(lab: Bench, way: Way, column: str, count: int, path: str, tls: str = "") -> Load:
    """Return the load of one point."""
    seconds = lab.seconds(2, 4) if way.by == "cgi" else lab.seconds(0.8, 2)
    warm_up = (
        lab.seconds(2, 3) if way.language == "java" else lab.seconds(0.3, 0.5)
    )  # until the virtual machine has compiled the code
    return Load(
        "ceiling", users=count, keep_alive=column == KEEP, seconds=seconds, warm_up=warm_up,
        path=path, length=len(way.page), tls=tls,
    )  # fmt: skip


def beside(printed: Mapping[str, Printed], way: Way, cell: Cell) -> Cell:
    """Add the printed figure to a cell."""
    name, figure = printed.get(way.name, ("", 0.0))
    if name:
        cell.paper, cell.paper_server = figure, name
    return cell


def probe(url: str, page: str) -> None:
    """Ask once, and check the answer. Raises LabError."""
    try:
        with opener().open(url, timeout=20) as answer:
            body = answer.read().decode("latin-1")
    except OSError as reason:
        raise LabError(f"a first request failed: {reason}") from None
    if body != page:
        raise LabError(f"a first request brought {len(body)} bytes, {body[:40]!r}, not {len(page)}")
