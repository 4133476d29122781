"""RDBMS, section 4: one to four database daemons, each with one connection to the database.

A daemon with one connection runs one statement at a time, so the others wait in its queue. Do more daemons help?

    16 clients ──▶ ewe ──▶ 1, 2, 3 or 4 daemons ──▶ a connection each ──▶ the database

It depends on the statement. A report that computes keeps a core busy, and more daemons help only if there are more
cores. A statement that waits, for a lock or a disk, leaves its core to others, and each further daemon helps. Both
are measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

from ewe.database.access_log import REPORT
from ewe_lab.bench.experiment import Bench, RunningServer, ServerUnderTest
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.bench.verdicts import NOT_TESTABLE, Finding, verdict_of_parts
from ewe_lab.load.http_pinger import ping
from ewe_lab.stacks import asking, databases
from ewe_lab.stacks.databases import DATABASES, POSTGRESQL, SQLITE, LabDatabase

DAEMON_COUNTS = (1, 2, 3, 4)
CLIENTS = 16
REQUESTS_PER_CLIENT = (4, 25)  # of each client, in all rounds together; quick and full
ROUND_COUNTS = (1, 3)  # quick and full
STATEMENT_WAIT_MS = 20
WAIT_STATEMENT = f"SELECT 'waited' AS word FROM pg_sleep({STATEMENT_WAIT_MS / 1000})"
BUSY, IDLE = "the report", f"waits {STATEMENT_WAIT_MS} ms"


class AskedStatement(NamedTuple):
    """A statement, and the name of the database that it is sent to."""

    database: str
    statement: str


COLUMNS = {
    f"{SQLITE}, {BUSY}": AskedStatement(SQLITE, REPORT),
    f"{POSTGRESQL}, {BUSY}": AskedStatement(POSTGRESQL, REPORT),
    f"{POSTGRESQL}, {IDLE}": AskedStatement(POSTGRESQL, WAIT_STATEMENT),
}
MIN_RATE_RATIO = 1.3  # a smaller ratio to the rate of one daemon may be chance
REMARKS = (
    f"{CLIENTS} clients, each with a new connection for every request, ask an application in ewe's process "
    f"({CLIENTS} threads of the pool), which asks the daemons. As in the paper, a daemon has one connection and "
    "one statement at a time.",
    "The report keeps a core busy as long as it runs, so that more daemons help only if there are more cores: "
    "daemons and database may use all cores here. A statement that waits (for a lock or a disk; here it is "
    f"pg_sleep, {STATEMENT_WAIT_MS} ms) leaves the core to other processes.",
)


def run(lab: Bench) -> Iterator[Cell]:
    """Measure the columns one after the other; yield the cells.

    Within a column the numbers of daemons take turns.
    """
    for name in DATABASES:
        if lacking := databases.why_missing(name):
            lab.notes.append(f"{name} is left out: {lacking}")
            continue
        with databases.open_database(lab, name, pinned=False) as database:
            for column, asked in COLUMNS.items():
                if asked.database == name:
                    yield from measure_column(lab, column, database, asked.statement)
    lab.notes += REMARKS


def measure_column(lab: Bench, column: str, database: LabDatabase, statement: str) -> Iterator[Cell]:
    """Measure a column: one statement, with each number of daemons; yield its cells."""
    cells = {count: Cell("daemons", column, count) for count in DAEMON_COUNTS}
    try:
        with ExitStack() as exits:
            servers = {
                count: start_daemons(lab, exits, database, statement, count) for count in DAEMON_COUNTS
            }
            # Only the digest of the report is known: the other answer is not checked
            measure(lab, cells, servers, database.digest if statement == REPORT else "")
    except LabError as reason:
        for cell in cells.values():
            cell.failure = str(reason)
    yield from cells.values()


def start_daemons(
    lab: Bench, exits: ExitStack, database: LabDatabase, statement: str, count: int
) -> RunningServer:
    """Run `count` daemons, and ewe with a WSGI application that asks them; return the running ewe.

    Each daemon has one connection to the database. The daemons and ewe end when `exits` is closed. Raises LabError.
    """
    # `connections` is the number for all daemons together: each of them has one
    settings = (f"daemons = {count}", f"connections = {count}")
    # On all cores (pinned=False): more daemons help only if there are more cores
    running_daemon = exits.enter_context(databases.daemon(lab, database, *settings, pinned=False))
    tested = ServerUnderTest(
        f"{count} daemons",
        model="pool",
        options=("--poolthreads", str(CLIENTS), "--wsgi", "/report=ewe_lab.stacks.asking:application"),
        variables=((asking.DAEMON, running_daemon.address), (asking.STATEMENT, statement)),
        other_pids=(running_daemon.pid, *database.pids),
    )
    return exits.enter_context(lab.start(tested, lab.site([])))


def measure(lab: Bench, cells: dict[int, Cell], servers: dict[int, RunningServer], digest: str) -> None:
    """Ask all servers in turns, and add the samples to the cells. Raises LabError.

    cells, servers: by number of daemons. digest: of a right answer, "" for any.
    """
    rounds = int(lab.quick_or_full(*ROUND_COUNTS))
    requests = round(lab.quick_or_full(*REQUESTS_PER_CLIENT) / rounds)
    for server in servers.values():
        # Opens the connections before the measurement
        ping(lab, server, "/report", clients=CLIENTS, requests=1, digest=digest)
    for turn in range(rounds):
        for count in servers if turn % 2 == 0 else reversed(servers):
            sample = ping(lab, servers[count], "/report", clients=CLIENTS, requests=requests, digest=digest)
            cells[count].samples.append(sample)
    for count, server in servers.items():
        cells[count].command = server.command
        cells[count].load = f"{CLIENTS} clients, {requests} requests each, a connection a request"


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim holds for a column if four daemons answer at least MIN_RATE_RATIO times the requests of one.
    """
    rate = {(cell.column, cell.x): cell.median for cell in table.cells if cell.median}
    gains = {}
    for column in COLUMNS:
        one, four = rate.get((column, DAEMON_COUNTS[0])), rate.get((column, DAEMON_COUNTS[-1]))
        if one and four:
            gains[column] = four / one
    if not gains:
        return Finding(NOT_TESTABLE, "No database could be asked.")
    part_holds = [gain >= MIN_RATE_RATIO for gain in gains.values()]
    summary = "; ".join(f"{column} {gain:.2f}" for column, gain in gains.items())
    return Finding(
        verdict_of_parts(part_holds),
        f"Rate of four daemons over that of one: {summary}.",
    )
