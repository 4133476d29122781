"""The dynamic tests of the thesis: pages of PHP and Python, served in several ways.

As in the static tests, the sweep over the number of clients is charted as measured, and the best point of each
stack stands beside the figure that the text of the thesis gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ewe_lab.bench.experiment import Bench, Load, RunningServer
from ewe_lab.bench.processes import LabError, last_line
from ewe_lab.bench.results import Cell, Sample
from ewe_lab.experiments.thesis_static import (
    BEST_COLUMN_PREFIX,
    CLIENT_COUNTS,
    KEEP_ALIVE,
    PARITY,
    READ_OFF,
    TLS_1_3_CLIENTS,
    TLS_1_3_PREFIX,
    best_cell,
    figure_or_0,
)
from ewe_lab.stacks.backends import URL_ERRORS, opener
from ewe_lab.stacks.ways import MAX_PROCESSES, ServingStack, serve_stack

QUICK_CLIENT_COUNTS = (32,)
CGI_CLIENTS = f"CGI is asked by at most {MAX_PROCESSES} clients at once, since each of them is a process."
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
    """One dynamic test. printed: by column and stack. gone: for servers that no longer exist, by column.

    clients, quick: the numbers of clients at once in a full run, and with --quick. plain: the printed figures
    without TLS of the same stacks. If they are given, the test runs over TLS, with the cipher of 2011 and that of
    today.
    """

    stacks: Sequence[ServingStack]
    printed: Mapping[str, Mapping[str, Printed]]
    gone: Mapping[str, Printed] | None = None
    clients: Sequence[int] = CLIENT_COUNTS
    quick: Sequence[int] = QUICK_CLIENT_COUNTS
    notes: Sequence[str] = ()
    plain: Mapping[str, Mapping[str, Printed]] | None = None


def described(ways: Sequence[Mapping[str, Any]], **others: Any) -> DynamicTest:
    """Return a dynamic test, as a paper's file describes it.

    ways: the fields of each ServingStack. others: the other fields of DynamicTest.
    """
    return DynamicTest([ServingStack(**each) for each in ways], **others)


def table(lab: Bench, **fields: Any) -> Iterator[Cell]:
    """Measure a dynamic test, as a paper's file describes it; yield the cells. fields: as in described()."""
    yield from run(lab, described(**fields))


def run(lab: Bench, test: DynamicTest) -> Iterator[Cell]:
    """Measure every stack that can run here; yield the cells."""
    lab.notes += [READ_OFF, *test.notes]
    if any(stack.by == "cgi" for stack in test.stacks):
        lab.notes.append(CGI_CLIENTS)
    if test.plain is not None:
        lab.notes += [PARITY, HTTP_1_0]
    cells: list[Cell] = []
    for stack in test.stacks:
        if lacking := stack.why_missing or (stack.why_missing_for_tls if test.plain is not None else ""):
            lab.notes.append(lacking)
            continue
        for cell in measure(lab, test, stack):
            cells.append(cell)
            yield cell
    for column, (name, figure) in (test.gone or {}).items():
        lab.notes += [CHEROKEE] if CHEROKEE not in lab.notes else []
        yield Cell(name.lower(), BEST_COLUMN_PREFIX + column, paper=figure, paper_server=name)
    if test.plain is not None:
        lab.notes += [cost_of_tls(cells, column) for column in test.printed]


def measure(lab: Bench, test: DynamicTest, stack: ServingStack) -> Iterator[Cell]:
    """Measure a stack; yield its cells. If it fails, the missing ones have the reason.

    1. Sweep the number of clients in each column: with and without keep-alive. A test over TLS uses the cipher of
       2011 here, which ewe does not offer.
    2. A test over TLS: measure one number of clients with TLS 1.3.
    3. Measure the best point of each column again, unless the run is quick.
    4. A test over TLS: measure one number of clients without TLS, on a server that is started for this.
    """
    over_tls = test.plain is not None
    swept: dict[str, list[Cell]] = {}
    with_tls_1_3: list[Cell] = []
    lacking = list(test.printed)  # the columns whose best point has not been measured
    try:
        with serve_stack(lab, stack, tls=over_tls) as (server, path):
            probe(server.url.rstrip("/") + path, stack.page)
            has_cipher = not over_tls or stack.front != "ewe"
            for column in test.printed if has_cipher else ():
                swept[column] = list(sweep_clients(lab, test, stack, column, server, path))
                if len(swept[column]) > 1:  # a single point is no curve; it is the best one below
                    yield from swept[column]
            if over_tls:
                with_tls_1_3 = list(measure_fixed_clients(lab, test, stack, TLS_1_3_PREFIX, server, path))
        for column, cells in swept.items():
            best = with_printed_figure(test.printed[column], stack, best_cell(cells, None))
            if not lab.quick:
                # The best of many single measurements may be luck, so its point is measured again, several times
                best.samples = list(repeat_point(lab, test, stack, column, max(cells, key=figure_or_0)))
            lacking.remove(column)
            yield best
        yield from with_tls_1_3
        if over_tls:
            with serve_stack(lab, stack) as (server, path):
                yield from measure_fixed_clients(lab, test, stack, PLAIN, server, path)
    except LabError as reason:
        for column in lacking:
            cell = Cell(stack.name, BEST_COLUMN_PREFIX + column, failure=str(reason))
            yield with_printed_figure(test.printed[column], stack, cell)
        if not lacking:
            yield Cell(stack.name, failure=str(reason))


def sweep_clients(
    lab: Bench, test: DynamicTest, stack: ServingStack, column: str, server: RunningServer, path: str
) -> Iterator[Cell]:
    """Measure a running stack with every number of clients, one after another; yield a cell for each number.

    column: KEEP_ALIVE, or the column without kept connections. A test with figures for plain HTTP (`test.plain`)
    runs over TLS, here with the cipher of 2011 ("parity").
    """
    counts = test.quick if lab.quick else test.clients
    # A set: numbers above the most that the stack can serve become the same number
    for count in sorted(
        {min(count, stack.max_connections(keep_alive=column == KEEP_ALIVE)) for count in counts}
    ):
        load = load_of(lab, stack, column, count, path, "parity" if test.plain is not None else "")
        yield measure_point(lab, server, load, Cell(stack.name, column, count))


def measure_fixed_clients(
    lab: Bench, test: DynamicTest, stack: ServingStack, how: str, server: RunningServer, path: str
) -> Iterator[Cell]:
    """Measure a running stack with TLS_1_3_CLIENTS; yield a cell for each column.

    how: the prefix of the columns' names, TLS_1_3_PREFIX or PLAIN (no TLS).
    """
    for column in test.printed:
        load = load_of(lab, stack, column, TLS_1_3_CLIENTS, path, "default" if how == TLS_1_3_PREFIX else "")
        cell = measure_point(lab, server, load, Cell(stack.name, how + column))
        yield with_printed_figure((test.plain or {}).get(column, {}), stack, cell) if how == PLAIN else cell


def measure_point(lab: Bench, server: RunningServer, load: Load, cell: Cell) -> Cell:
    """Run a load; return the cell with the sample."""
    cell.command, cell.load = server.command, load.description()
    cell.samples.append(lab.load(server, load))
    return cell


def cost_of_tls(cells: Sequence[Cell], column: str) -> str:
    """Return a note on the cost of TLS 1.3 for each stack: the rate without TLS divided by the rate with it.

    column: the name of a column without its prefix. The cells of the column with TLS 1.3 have TLS_1_3_PREFIX before
    this name, and those without TLS have PLAIN.
    """
    rates = {(cell.server, cell.column): cell.median for cell in cells}
    ratios = []
    for (server, cell_column), rate_without_tls in rates.items():
        rate_with_tls = rates.get((server, TLS_1_3_PREFIX + column))
        if cell_column == PLAIN + column and rate_without_tls and rate_with_tls:
            ratios.append(f"{server} {rate_without_tls / rate_with_tls:.1f}")
    return f"TLS 1.3 divides the rate by, {column}: {', '.join(ratios) or 'none was measured'}."


def repeat_point(
    lab: Bench, test: DynamicTest, stack: ServingStack, column: str, cell: Cell
) -> Iterator[Sample]:
    """Measure a point again, each time with new processes, since many clients change the state of the old ones.

    cell: of the point. Yields the samples.
    """
    over_tls = test.plain is not None
    for _ in range(lab.repeats):
        with serve_stack(lab, stack, tls=over_tls) as (server, path):
            tls = "parity" if over_tls else ""
            yield lab.load(server, load_of(lab, stack, column, int(cell.x or 0), path, tls))


def load_of(lab: Bench, stack: ServingStack, column: str, count: int, path: str, tls: str = "") -> Load:
    """Return the load of one point. column: KEEP_ALIVE or NO_KEEP_ALIVE. count: of clients. tls: as in Load."""
    seconds = lab.quick_or_full(2, 4) if stack.by == "cgi" else lab.quick_or_full(0.8, 2)
    # A Java virtual machine first compiles the code.
    warm_up = lab.quick_or_full(2, 3) if stack.language == "java" else lab.quick_or_full(0.3, 0.5)
    return Load(
        "saturation", users=count, keep_alive=column == KEEP_ALIVE, seconds=seconds, warm_up=warm_up,
        path=path, length=len(stack.page), tls=tls,
    )  # fmt: skip


def with_printed_figure(printed: Mapping[str, Printed], stack: ServingStack, cell: Cell) -> Cell:
    """Add the printed figure to a cell, if the document has one; return the cell."""
    name, figure = printed.get(stack.name, ("", 0.0))
    if name:
        cell.paper, cell.paper_server = figure, name
    return cell


def probe(url: str, page: str) -> None:
    """Send one request, and check the answer. Raises LabError."""
    try:
        with opener().open(url, timeout=20) as answer:
            body = answer.read().decode("latin-1")
    except URL_ERRORS as reason:
        raise LabError(f"a first request failed: {last_line(str(reason))}") from None
    if body != page:
        raise LabError(f"a first request brought {len(body)} bytes, {body[:40]!r}, not {len(page)}")
