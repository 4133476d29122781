"""RDBMS, figure 8: what connecting and retrieving take, and what the demon adds to a call."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

from ewe.database.client import Client
from ewe.database.drivers import Database as Named
from ewe.database.drivers import connect
from ewe.database.layouts import fragments
from ewe.database.protocol import ClientRequest, DatabaseError
from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.processes import LabError, cpu_seconds, on_core, two_cores
from ewe_lab.bench.results import Cell, Sample, Table, Usage
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.database_runs import in_turns, measured, started
from ewe_lab.load.http_pinger import ping
from ewe_lab.stacks import reports
from ewe_lab.stacks.database_ways import CGI_DEMON, EMBEDDED, ODBC, TYPE_2, TYPE_4, WAYS
from ewe_lab.stacks.databases import NAME, POSTGRESQL, SQLITE, Asked, Database
from ewe_lab.stacks.reports import DYNAMIC

ROWS = (EMBEDDED, ODBC, TYPE_2, CGI_DEMON, TYPE_4)
CON, RET, DYNAMIC_RET = "Tcon", "Tret", "Tret, dynamic SQL"
CLOCK = {CON: "con_wall", RET: "ret_wall"}
REQUESTS = 10  # in a round
ROUNDS = (1, 5)  # quick and full
WARM = {TYPE_2: 60, TYPE_4: 60}
WARM_OTHERS = 2
MUCH = 0.2  # of the time: a very important percentage
ADDS = "the demon adds"
CALL = "SELECT 1 AS one"
CALLS = (100, 500)  # in a block, quick and full
BLOCKS = 10  # by turns; the fastest counts, since other programs only add to a time
WANTED = 150.0  # µs that the demon may add to a call
REMARKS = (
    "Tcon and Tret: CPU time of the program, by its own clock, as in the paper; medians. SQLite works in the "
    "program. PostgreSQL and the demon work elsewhere: their time is in the figures by the clock.",
    "Scenario 7 connects to the demon, which is connected to the database. Its SQL is always dynamic.",
    f"What the demon adds: the time of {CALL!r} through it, over a kept connection on its Unix socket, less the "
    "time of the same call by the same driver in the client itself.",
)
Call = Callable[[], bytes]


def column_of(place: str, part: str, clock: str = "CPU") -> str:
    """Return the name of a column."""
    return f"{place}: {part}" + ("" if clock == "CPU" else ", by the clock")


def run(lab: Bench) -> Iterator[Cell]:
    """Measure the scenarios on each database, then the demon."""
    yield from measured(lab, partial(on, lab))
    lab.notes += REMARKS


def on(lab: Bench, database: Database, demon: Asked) -> Iterator[Cell]:
    """Measure a database."""
    yield from parts(lab, database, demon)
    yield added(lab, database, demon)


def parts(lab: Bench, database: Database, demon: Asked) -> Iterator[Cell]:
    """Measure the scenarios on a database, in turns."""
    cells = {name: cells_of(name, database.name) for name in ROWS}
    with started(lab, database, demon, ROWS) as (ways, failed):
        for name, reason in failed.items():
            for cell in cells[name].values():
                cell.failure = reason
        for turn in range(int(lab.seconds(*ROUNDS)) + 1):
            for name in in_turns(list(ways), turn):
                server, path = ways[name]
                count = REQUESTS if turn else WARM.get(name, WARM_OTHERS)
                for sql in WAYS[name].sql:
                    try:
                        sample = ping(lab, server, reports.asked(path, sql), 1, count, database.digest)
                    except LabError as reason:
                        for cell in cells[name].values():
                            cell.failure = str(reason)
                        break
                    if turn:  # the first turn warms up
                        keep(cells[name], sql, sample, sql == WAYS[name].sql[0])
    for found in cells.values():
        yield from (cell for cell in found.values() if cell.samples or cell.failure)


def cells_of(name: str, place: str) -> dict[str, Cell]:
    """Return the cells of a scenario on a database, by part."""
    found = {part: Cell(name, column_of(place, part), None, f"extra.{part}", "ms") for part in (CON, RET)}
    found[CON].value, found[RET].value = "extra.con", "extra.ret"
    for part, value in CLOCK.items():
        found[value] = Cell(name, column_of(place, part, "wall"), None, f"extra.{value}", "ms")
    found[DYNAMIC_RET] = Cell(name, column_of(place, DYNAMIC_RET), None, "extra.ret", "ms")
    for cell in found.values():
        cell.load = f"1 client, {REQUESTS} requests, a connection a request"
    return found


def keep(cells: dict[str, Cell], sql: str, sample: Sample, is_first: bool) -> None:
    """Add a sample to the cells that it is for."""
    if is_first:
        for part in (CON, RET, *CLOCK.values()):
            cells[part].samples.append(sample)
    if sql == DYNAMIC:
        cells[DYNAMIC_RET].samples.append(sample)


def added(lab: Bench, database: Database, demon: Asked) -> Cell:
    """Measure what the demon adds to a call."""
    cell = Cell(ADDS, column_of(database.name, "a call"), None, "extra.micros", "µs")
    cell.load = f"{CALL}, one after the other over a kept connection"
    count = int(lab.seconds(*CALLS))
    try:
        connection = connect(Named(NAME, database.driver, database.place, False))
        try:
            with Client(demon.address) as client, on_core(two_cores()[1]):
                by_demon = asker(client)

                def direct() -> bytes:
                    found = connection.execute(CALL, ())
                    page = b"".join(fragments("TABLE", found.columns, found.rows))
                    connection.end(commit=True)
                    return page

                if by_demon() != direct():
                    raise LabError("the demon answers otherwise than the driver")
                for _ in range(lab.repeats):
                    cell.samples.append(compared(direct, by_demon, count, (database.pids, demon.pid)))
        finally:
            connection.close()
    except (DatabaseError, LabError) as reason:
        cell.failure = str(reason)
    return cell


def compared(direct: Call, by_demon: Call, count: int, servers: tuple[tuple[int, ...], int]) -> Sample:
    """Return what calls through the demon take more than direct ones. servers: of the database, and the demon.

    The sample's usage is the CPU time that they take more, in client, demon and database together.
    """
    pids, demon = servers
    one, other, more = [], [], 0.0
    for _ in range(BLOCKS):
        began = time.thread_time() + cpu_seconds(*pids, demon)
        one.append(timed(direct, count))
        between = time.thread_time() + cpu_seconds(*pids, demon)
        other.append(timed(by_demon, count))
        more += time.thread_time() + cpu_seconds(*pids, demon) - between - (between - began)
    calls = BLOCKS * count
    extra = {"micros": (min(other) - min(one)) * 1e6, "direct": min(one) * 1e6, "demon": min(other) * 1e6}
    return Sample("pinger", 0.0, calls, calls, 1, usage=Usage(more), extra=extra)


def asker(client: Client) -> Call:
    """Return a call through the demon."""
    request = ClientRequest(NAME, CALL)
    return lambda: b"".join(client.ask(request))


def timed(call: Call, count: int) -> float:
    """Return the median of so many calls, in seconds."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def check(table: Table) -> Finding:
    """The claim has three parts: ODBC and type 2 connect for long, embedded SQL the shortest; 7 retrieves longest.

    The last is judged by the clock: the demon's work is not in the gateway's CPU time.
    """
    found = {(cell.server, cell.column): cell.median for cell in table.cells if cell.median is not None}
    told, kept = [], []
    for place in (SQLITE, POSTGRESQL):
        con = {name: time for name in ROWS if (time := found.get((name, column_of(place, CON)))) is not None}
        ret = {name: time for name in ROWS if (time := found.get((name, column_of(place, RET)))) is not None}
        wall = {name: time for name in ROWS if (time := found.get((name, column_of(place, RET, "wall"))))}
        own = {
            name: time for name, time in con.items() if name != CGI_DEMON
        }  # 7 does not connect to a database
        if EMBEDDED not in own or len(own) < 2:
            continue
        shares = {name: con[name] / (con[name] + ret[name]) for name in con if con[name] + ret[name] > 0}
        kept += [shares[name] >= MUCH for name in (ODBC, TYPE_2) if name in shares]
        kept.append(min(own, key=own.__getitem__) == EMBEDDED)
        kept.append(bool(wall) and max(wall, key=wall.__getitem__) == CGI_DEMON)
        words = ", ".join(f"{name.partition(' ')[0]} {share:.0%}" for name, share in shares.items())
        told.append(f"{place}: connecting is of the CPU time {words}")
    adds = {
        cell.column: cell.median for cell in table.cells if cell.server == ADDS and cell.median is not None
    }
    if not told:
        return Finding(NOT_TESTABLE, "Embedded SQL was not measured beside another scenario.")
    word = HOLDS if all(kept) else IN_PART if any(kept) else FAILS
    if adds:
        worst = max(adds.values())
        told.append(f"the demon adds at most {worst:.0f} µs to a call ({WANTED:.0f} are wanted)")
    return Finding(word, f"{'. '.join(told)}.".replace(". the", "; the"))
