"""RDBMS, figure 5: three ways to a database, for 1 to 16 clients, behind a link of 10 Mbit/s and at full speed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.database_runs import Started, in_turns, measured, started
from ewe_lab.load.http_pinger import ping
from ewe_lab.stacks.database_ways import CGI_DEMON, EMBEDDED, IN_PROCESS, KEPT
from ewe_lab.stacks.databases import Asked, Database

ROWS = {  # of figure 3: the scenario's number there, and ours
    EMBEDDED: "1 CGI, embedded SQL",
    CGI_DEMON: "2 CGI, demon",
    IN_PROCESS: "3 in process, demon",
    KEPT: "X-Switch, kept",
}
FIRST, SECOND, THIRD = (ROWS[name] for name in (EMBEDDED, CGI_DEMON, IN_PROCESS))
CLIENTS = (1, 2, 4, 6, 8, 10, 12, 14, 16)
QUICK_CLIENTS = (1, 4, 16)
REQUESTS = (4, 100)  # of each client, quick and full; in all rounds together
LINKS = {"full speed": "", "10 Mbit/s": "10mbit"}
WARM = 4  # clients that ask once before, so that connections are made
LEVEL = 0.95  # of another's time: less may be chance
REMARKS = (
    "Each client sends its requests one after the other, each over a new connection. Response time runs from the "
    "established connection to the last byte. Curves: the polynomial of second degree with the least squares.",
    "Web server, demon and database share one core. Scenario 3 is a LibCGI library in ewe's process, which keeps "
    "connections to the demon. The last row is not in the paper: a page in PHP under X-Switch, with a persistent "
    "connection to the database.",
    "The database works on one report much longer than a demon or a connection takes, so compare CPU times: their "
    "differences are those of the ways.",
)


def column_of(place: str, link: str) -> str:
    """Return the name of a column."""
    return f"{place}, {link}"


def run(lab: Bench) -> Iterator[Cell]:
    """Measure each database at full speed, then behind the link."""
    yield from measured(lab, partial(on, lab))
    lab.notes += REMARKS


def on(lab: Bench, database: Database, demon: Asked) -> Iterator[Cell]:
    """Measure a database."""
    for link, speed in LINKS.items():
        if not speed:
            yield from column(lab, database, demon, link)
            continue
        with lab.linked(speed) as why:
            if why:
                lab.notes.append(f"Not behind a link of {link}: {why}")
            else:
                yield from column(lab, database, demon, link)


def column(lab: Bench, database: Database, demon: Asked, link: str) -> Iterator[Cell]:
    """Measure all ways on a database, in turns at each number of clients."""
    counts = QUICK_CLIENTS if lab.quick else CLIENTS
    name = column_of(database.name, link)
    cells = {
        way: {count: Cell(row, name, count, "extra.response", "ms") for count in counts}
        for way, row in ROWS.items()
    }
    with started(lab, database, demon, ROWS) as (ways, failed):
        for way, reason in failed.items():
            for cell in cells[way].values():
                cell.failure = reason
        for server, path in ways.values():
            ping(lab, server, path, WARM, 1, database.digest)
        for turn in range(lab.repeats):
            for count in counts:
                measure(lab, ways, cells, count, turn, database.digest)
    for way in ROWS:
        yield from (cell for cell in cells[way].values() if cell.samples or cell.failure)


def measure(
    lab: Bench, ways: Started, cells: dict[str, dict[int, Cell]], count: int, turn: int, page: str
) -> None:
    """Let so many clients ask each way once more."""
    requests = max(1, round(lab.seconds(*REQUESTS) / lab.repeats))
    for way in in_turns(list(ways), turn + count):
        server, path = ways[way]
        cell = cells[way][count]
        try:
            cell.samples.append(ping(lab, server, path, count, requests, page))
        except LabError as reason:
            cell.failure = str(reason)
        cell.command = server.command
        cell.load = f"{count} clients, {requests} requests each, a connection a request"


def check(table: Table) -> Finding:
    """The claim has two parts: 3 before 2 before 1 at every number of clients, and a gap that grows with it.

    Times are compared, of which one within 5 % of another is not behind it.
    """
    found = {(cell.server, cell.column, cell.x): cell.median for cell in table.cells if cell.median}
    told, orders, gaps = [], [], []
    for name in dict.fromkeys(cell.column for cell in table.cells):
        counts = sorted({cell.x for cell in table.cells if cell.column == name and cell.x is not None})
        whole = []
        for count in counts:
            times = [found.get((row, name, count)) for row in (FIRST, SECOND, THIRD)]
            if None not in times:
                whole.append([time for time in times if time is not None])
        if not whole:
            continue
        orders += [third * LEVEL < second and second * LEVEL < first for first, second, third in whole]
        gaps.append(whole[-1][0] - whole[-1][2] > whole[0][0] - whole[0][2])
        told.append(f"{name}: {whole[-1][0] / whole[-1][1]:.2f} and {whole[-1][0] / whole[-1][2]:.2f}")
    if not told:
        return Finding(NOT_TESTABLE, "The three scenarios were not all measured.")
    word = HOLDS if all(orders) and all(gaps) else IN_PART if any(orders) or any(gaps) else FAILS
    return Finding(
        word,
        f"The order is kept in {sum(orders)} of {len(orders)} settings, and the gap grows in {sum(gaps)} of "
        f"{len(gaps)} columns. Scenario 1 takes, with the most clients, times 2's and 3's: {'; '.join(told)}.",
    )
