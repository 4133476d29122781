"""RDBMS, figure 5: three ways to a database, for 1 to 16 clients, behind a link of 10 Mbit/s and at full speed.

    1    CGI, embedded SQL        each request starts a program, which connects to the database
    2    CGI, daemon              each request starts a program, which asks the daemon; the daemon stays connected
    3    in process, daemon       a library in ewe's process asks the daemon: no program is started
    X-Switch, kept                an interpreter stays, with its connection to the database (not in the paper)

All ways run side by side, and take turns at each number of clients: a disturbance of the machine then meets all of
them. Each client opens a connection for each request, and the time runs from the established connection to the
last byte (http_clients.py).

Possible failures: the database works on the report for longer than a way takes, so the response times are nearly
equal. The CPU times still differ, and REMARKS says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from ewe_lab.bench.experiment import Bench, ServedPath
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.bench.verdicts import NOT_TESTABLE, Finding, verdict_of_parts
from ewe_lab.experiments.database_runs import (
    Started,
    measure_databases,
    reversed_every_second_turn,
    start_ways,
)
from ewe_lab.load.http_pinger import ping
from ewe_lab.stacks.database_ways import CGI_DAEMON, EMBEDDED, IN_PROCESS, KEPT
from ewe_lab.stacks.databases import LabDatabase, RunningDaemon

ROWS = {  # of figure 3: the scenario's number there, and ours
    EMBEDDED: "1 CGI, embedded SQL",
    CGI_DAEMON: "2 CGI, daemon",
    IN_PROCESS: "3 in process, daemon",
    KEPT: "X-Switch, kept",
}
FIRST, SECOND, THIRD = (ROWS[name] for name in (EMBEDDED, CGI_DAEMON, IN_PROCESS))
CLIENT_COUNTS = (1, 2, 4, 6, 8, 10, 12, 14, 16)
QUICK_CLIENT_COUNTS = (1, 4, 16)
REQUESTS_PER_CLIENT = (4, 100)  # of each client, in all rounds together; quick and full
LINKS = {"full speed": "", "10 Mbit/s": "10mbit"}
# Clients that send one request each before the measurement, so that connections are open
WARM_UP_CLIENTS = 4
MIN_TIME_RATIO = 0.95  # a smaller difference of two times than 5 % may be chance
REMARKS = (
    "Each client sends its requests one after the other, each over a new connection. Response time runs from the "
    "established connection to the last byte. Curves: the polynomial of second degree with the least squares.",
    "Web server, daemon and database share one core. Scenario 3 is a LibCGI library in ewe's process, which keeps "
    "connections to the daemon. The last row is not in the paper: a page in PHP under X-Switch, with a persistent "
    "connection to the database.",
    "The database works on one report much longer than the daemon or a new connection takes. Compare CPU times: "
    "their differences are the costs of the ways.",
)


def column_of(system: str, link: str) -> str:
    """Return the name of the column of a database and a link. system: the database's name. link: a key of LINKS."""
    return f"{system}, {link}"


def run(lab: Bench) -> Iterator[Cell]:
    """Measure each database at full speed, then behind the link; yield the cells."""
    yield from measure_databases(lab, partial(measure_database, lab))
    lab.notes += REMARKS


def measure_database(lab: Bench, database: LabDatabase, daemon: RunningDaemon) -> Iterator[Cell]:
    """Measure a database at full speed and behind the link; yield the cells."""
    for link, speed in LINKS.items():
        if not speed:
            yield from measure_ways(lab, database, daemon, link)
            continue
        with lab.behind_link(speed) as problem:
            if problem:
                lab.notes.append(f"Not behind a link of {link}: {problem}")
            else:
                yield from measure_ways(lab, database, daemon, link)


def measure_ways(lab: Bench, database: LabDatabase, daemon: RunningDaemon, link: str) -> Iterator[Cell]:
    """Measure all ways on a database, in turns at each number of clients; yield the cells.

    The lab's repeats share the requests of a client, see measure(). A way that cannot run here has no cells.
    """
    counts = QUICK_CLIENT_COUNTS if lab.quick else CLIENT_COUNTS
    name = column_of(database.name, link)
    cells = {
        way: {count: Cell(row, name, count, value="extra.response", unit="ms") for count in counts}
        for way, row in ROWS.items()
    }
    with start_ways(lab, database, daemon, ROWS) as (started, failed):
        ways, silent = warm_up(lab, started, database.digest)
        for way, reason in (failed | silent).items():
            for cell in cells[way].values():
                cell.failure = reason
        for turn in range(lab.repeats):
            for count in counts:
                measure(lab, ways, cells, count, turn, database.digest)
    for way in ROWS:
        yield from (cell for cell in cells[way].values() if cell.samples or cell.failure)


def warm_up(lab: Bench, ways: Started, digest: str) -> tuple[Started, dict[str, str]]:
    """Ask each way before the measurement; return those that answer, and the reasons for which the others do not.

    digest: of a right answer.
    """
    warm: dict[str, ServedPath] = {}
    silent: dict[str, str] = {}
    for way, served in ways.items():
        try:
            ping(lab, served.server, served.path, clients=WARM_UP_CLIENTS, requests=1, digest=digest)
            warm[way] = served
        except LabError as reason:
            silent[way] = str(reason)
    return warm, silent


def measure(
    lab: Bench, ways: Started, cells: dict[str, dict[int, Cell]], count: int, turn: int, digest: str
) -> None:
    """Load each way with `count` clients, and add a sample to its cell, or a failure.

    cells: by way and number of clients. turn: the number of the repeat, by which the order changes. digest: of a
    right answer.
    """
    requests = max(1, round(lab.quick_or_full(*REQUESTS_PER_CLIENT) / lab.repeats))
    for way in reversed_every_second_turn(list(ways), turn + count):
        server, path = ways[way]
        cell = cells[way][count]
        try:
            sample = ping(lab, server, path, clients=count, requests=requests, digest=digest)
            cell.samples.append(sample)
        except LabError as reason:
            cell.failure = str(reason)
        cell.command = server.command
        cell.load = f"{count} clients, {requests} requests each, a connection a request"


def check(table: ExperimentTable) -> Finding:
    """Return the finding: the claim's two parts are an order, and a gap that grows.

    At every number of clients scenario 3 is faster than 2, and 2 than 1. The gap between 1 and 3 is greater with
    the most clients than with the fewest. Two times that differ by less than 5 % do not break the order.
    """
    pieces, orders, gaps = [], [], []
    for name in dict.fromkeys(cell.column for cell in table.cells):
        complete = times_by_clients([cell for cell in table.cells if cell.column == name])
        if not complete:
            continue
        orders += [
            third * MIN_TIME_RATIO < second and second * MIN_TIME_RATIO < first
            for first, second, third in complete
        ]
        first, second, third = complete[-1]
        if len(complete) > 1:  # one number of clients shows no growth
            first_of_few, _, third_of_few = complete[0]
            gaps.append(first - third > first_of_few - third_of_few)
        pieces.append(f"{name}: {first / second:.2f} and {first / third:.2f}")
    if not pieces:
        return Finding(NOT_TESTABLE, "The three scenarios were not all measured.")
    verdict = verdict_of_parts([*orders, *gaps])
    return Finding(
        verdict,
        f"The order is kept in {sum(orders)} of {len(orders)} settings, and the gap grows in {sum(gaps)} of "
        f"{len(gaps)} columns. Time of scenario 1 over that of 2 and of 3, with the most clients: "
        f"{'; '.join(pieces)}.",
    )


def times_by_clients(cells: Sequence[Cell]) -> list[list[float]]:
    """Return the times of the three scenarios, from the fewest clients to the most, where all three are known."""
    medians = {(cell.server, cell.x): cell.median for cell in cells if cell.median}
    found = []
    for count in sorted({cell.x for cell in cells if cell.x is not None}):
        times = [
            median for row in (FIRST, SECOND, THIRD) if (median := medians.get((row, count))) is not None
        ]
        if len(times) == 3:
            found.append(times)
    return found
