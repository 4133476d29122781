"""RDBMS, section 4: one to four demons, each with one connection to the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from ewe.database.access_log import REPORT
from ewe_lab.bench.experiment import Bench, Contender, Running
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.load.http_pinger import ping
from ewe_lab.stacks import asking, databases
from ewe_lab.stacks.databases import DATABASES, POSTGRESQL, SQLITE, Database

DEMONS = (1, 2, 3, 4)
CLIENTS = 16
REQUESTS = (4, 25)  # of each client, quick and full; in all rounds together
ROUNDS = (1, 3)
WAITS_MS = 20
WAIT = f"SELECT 'waited' AS word FROM pg_sleep({WAITS_MS / 1000})"
BUSY, IDLE = "the report", f"waits {WAITS_MS} ms"
COLUMNS = {  # name: the database and the statement
    f"{SQLITE}, {BUSY}": (SQLITE, REPORT),
    f"{POSTGRESQL}, {BUSY}": (POSTGRESQL, REPORT),
    f"{POSTGRESQL}, {IDLE}": (POSTGRESQL, WAIT),
}
GAIN = 1.3  # times the rate of one demon: less may be chance
REMARKS = (
    f"{CLIENTS} clients, each with a new connection for every request, ask an application in ewe's process "
    f"({CLIENTS} threads of the pool), which asks the demons. Like the paper's, a demon has one connection and one "
    "statement at a time.",
    "The report keeps a core busy as long as it runs, so that demons help as far as there are cores: demons and "
    "database may have all of them here. A statement that waits (for a lock or a disk; here it is pg_sleep, "
    f"{WAITS_MS} ms) leaves the core to others.",
)


def run(lab: Bench) -> Iterator[Cell]:
    """Measure the columns one after the other, and the numbers of demons in turns."""
    for name in DATABASES:
        if lacking := databases.missing(name):
            lab.notes.append(f"{name} is left out: {lacking}")
            continue
        with databases.opened(lab, name, pinned=False) as database:
            for column, (of, statement) in COLUMNS.items():
                if of == name:
                    yield from cells_of(lab, column, database, statement)
    lab.notes += REMARKS


def cells_of(lab: Bench, column: str, database: Database, statement: str) -> Iterator[Cell]:
    """Measure a column."""
    cells = {count: Cell("demons", column, count) for count in DEMONS}
    try:
        with ExitStack() as stack:
            servers = {count: started(lab, stack, database, statement, count) for count in DEMONS}
            measure(lab, cells, servers, database.digest if statement == REPORT else "")
    except LabError as reason:
        for cell in cells.values():
            cell.failure = str(reason)
    yield from cells.values()


def started(lab: Bench, stack: ExitStack, database: Database, statement: str, count: int) -> Running:
    """Run so many demons, and ewe with the application that asks them."""
    settings = (f"demons = {count}", f"connections = {count}")  # which they share
    asked = stack.enter_context(databases.demon(lab, database, *settings, pinned=False))
    contender = Contender(
        f"{count} demons",
        model="pool",
        options=("--poolthreads", str(CLIENTS), "--wsgi", "/report=ewe_lab.stacks.asking:application"),
        variables=((asking.DEMON, asked.address), (asking.STATEMENT, statement)),
        also=(asked.pid, *database.pids),
    )
    return stack.enter_context(lab.start(contender, lab.site([])))


def measure(lab: Bench, cells: dict[int, Cell], servers: dict[int, Running], digest: str) -> None:
    """Ask all servers in turns. Raises LabError."""
    rounds = int(lab.seconds(*ROUNDS))
    requests = round(lab.seconds(*REQUESTS) / rounds)
    for server in servers.values():
        ping(lab, server, "/report", CLIENTS, 1, digest)  # connections are made
    for turn in range(rounds):
        for count in servers if turn % 2 == 0 else reversed(servers):
            cells[count].samples.append(ping(lab, servers[count], "/report", CLIENTS, requests, digest))
    for count, server in servers.items():
        cells[count].command = server.command
        cells[count].load = f"{CLIENTS} clients, {requests} requests each, a connection a request"


def check(table: Table) -> Finding:
    """The hope holds if four demons answer more than one: where statements wait, and where they work."""
    rate = {(cell.column, cell.x): cell.median for cell in table.cells if cell.median}
    gains = {}
    for column in COLUMNS:
        one, four = rate.get((column, DEMONS[0])), rate.get((column, DEMONS[-1]))
        if one and four:
            gains[column] = four / one
    if not gains:
        return Finding(NOT_TESTABLE, "No database could be asked.")
    kept = [gain >= GAIN for gain in gains.values()]
    told = "; ".join(f"{column} {gain:.2f}" for column, gain in gains.items())
    return Finding(
        HOLDS if all(kept) else IN_PART if any(kept) else FAILS,
        f"Four demons answer, times one's rate: {told}.",
    )
