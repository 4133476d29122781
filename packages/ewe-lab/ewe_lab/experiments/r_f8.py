"""RDBMS, figure 8: the time to connect and to retrieve, and the time that the daemon adds to a call.

A page from a database has two costs: to connect (Tcon), and to run the statement and fetch the rows (Tret). Where
Tcon is a large part of both, a daemon that keeps its connections saves it on each page:

    CGI, embedded SQL     program ══ Tcon ══▶ database ── Tret ──▶ rows       for each request
    CGI, daemon           program ─ Tcon ─▶ daemon ── Tret ──▶ rows           the daemon has connected before

The programs report both times by their own clocks, in the head of their answer (http_clients.timings_in()).

The daemon has a price, too: a statement goes through one process more. The row `the daemon adds` is that price, the
difference of two calls of a statement that does nothing.

Read next: ../stacks/reports.py, the programs of all scenarios.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from ewe.database.client import Client
from ewe.database.drivers import Database as Named
from ewe.database.drivers import connect
from ewe.database.layouts import fragments
from ewe.database.protocol import ClientRequest, DatabaseError
from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.processes import LabError, cpu_seconds, load_core, on_core
from ewe_lab.bench.results import Cell, ExperimentTable, Sample, Usage
from ewe_lab.bench.verdicts import NOT_TESTABLE, Finding, verdict_of_parts
from ewe_lab.experiments.database_runs import measure_databases, reversed_every_second_turn, start_ways
from ewe_lab.load.http_pinger import ping
from ewe_lab.stacks import reports
from ewe_lab.stacks.database_ways import CGI_DAEMON, EMBEDDED, ODBC, TYPE_2, TYPE_4, WAYS
from ewe_lab.stacks.databases import DATABASE_NAME, POSTGRESQL, SQLITE, LabDatabase, RunningDaemon
from ewe_lab.stacks.reports import DYNAMIC

ROWS = (EMBEDDED, ODBC, TYPE_2, CGI_DAEMON, TYPE_4)
CON, RET, DYNAMIC_RET = "Tcon", "Tret", "Tret, dynamic SQL"
WALL_CLOCK_FIGURES = {CON: "con_wall", RET: "ret_wall"}
REQUESTS_PER_ROUND = 10  # in a round
ROUND_COUNTS = (1, 5)  # quick and full
WARM_UP_REQUESTS = {TYPE_2: 60, TYPE_4: 60}
DEFAULT_WARM_UP_REQUESTS = 2
MIN_IMPORTANT_SHARE = 0.2  # least share of the time for the paper's "a very important percentage"
ADDED_TIME_ROW = "the daemon adds"
CALL_STATEMENT = "SELECT 1 AS one"
CALLS_PER_BLOCK = (100, 500)  # in a block, quick and full
BLOCK_COUNT = 10  # blocks of each kind, in turns; the fastest counts, since other programs only add to a time
MAX_ADDED_US = 150.0  # µs that the daemon may add to a call
REMARKS = (
    "Tcon and Tret: CPU time of the program, by its own clock, as in the paper; medians. SQLite works in the "
    "program. PostgreSQL and the daemon are other processes: their time is in the figures by the clock.",
    "Scenario 7 connects to the daemon, which is connected to the database. Its SQL is always dynamic.",
    f"The row `the daemon adds`: the time of {CALL_STATEMENT!r} through the daemon, over a kept connection on its "
    "Unix socket, minus the time of the same call by the same driver in the client itself.",
)
Call = Callable[[], bytes]


def column_of(system: str, part: str, clock: str = "CPU") -> str:
    """Return the name of a column. system: of the database. part: CON, RET ...

    clock: `CPU`, or `wall` for real time.
    """
    return f"{system}: {part}" + ("" if clock == "CPU" else ", by the clock")


def run(lab: Bench) -> Iterator[Cell]:
    """Measure the scenarios on each database, and the time that its daemon adds; yield the cells."""
    yield from measure_databases(lab, partial(measure_database, lab))
    lab.notes += REMARKS


def measure_database(lab: Bench, database: LabDatabase, daemon: RunningDaemon) -> Iterator[Cell]:
    """Measure the scenarios on a database, and the time that its daemon adds; yield the cells."""
    yield from measure_scenarios(lab, database, daemon)
    yield measure_added_time(lab, database, daemon)


def measure_scenarios(lab: Bench, database: LabDatabase, daemon: RunningDaemon) -> Iterator[Cell]:
    """Measure the scenarios on a database, in turns; yield their cells. Turn 0 warms up, and is not counted."""
    cells = {name: cells_of(name, database.name) for name in ROWS}
    with start_ways(lab, database, daemon, ROWS) as (ways, failed):
        for name, reason in failed.items():
            for cell in cells[name].values():
                cell.failure = reason
        for turn in range(int(lab.quick_or_full(*ROUND_COUNTS)) + 1):
            for name in reversed_every_second_turn(list(ways), turn):
                server, path = ways[name]
                count = REQUESTS_PER_ROUND if turn else WARM_UP_REQUESTS.get(name, DEFAULT_WARM_UP_REQUESTS)
                for sql in WAYS[name].sql:
                    try:
                        url_path = reports.report_url(path, sql)
                        sample = ping(
                            lab, server, url_path, clients=1, requests=count, digest=database.digest
                        )
                    except LabError as reason:
                        for cell in cells[name].values():
                            cell.failure = str(reason)
                        break
                    if turn:
                        add_samples(cells[name], sql, sample, is_first=sql == WAYS[name].sql[0])
    for found in cells.values():
        yield from (cell for cell in found.values() if cell.samples or cell.failure)


def cells_of(name: str, system: str) -> dict[str, Cell]:
    """Return the cells of a scenario, by CON, RET, DYNAMIC_RET and the values of WALL_CLOCK_FIGURES.

    The first three are CPU times of the program: to connect to the database, to retrieve the rows, and to retrieve
    them by dynamic SQL. The others are times by the clock. name: of the scenario. system: the name of the database.
    """
    cells_by_name = {
        CON: Cell(name, column_of(system, CON), value="extra.con", unit="ms"),
        RET: Cell(name, column_of(system, RET), value="extra.ret", unit="ms"),
    }
    for part, value in WALL_CLOCK_FIGURES.items():
        cells_by_name[value] = Cell(name, column_of(system, part, "wall"), value=f"extra.{value}", unit="ms")
    cells_by_name[DYNAMIC_RET] = Cell(name, column_of(system, DYNAMIC_RET), value="extra.ret", unit="ms")
    for cell in cells_by_name.values():
        cell.load = f"1 client, {REQUESTS_PER_ROUND} requests, a connection a request"
    return cells_by_name


def add_samples(cells: dict[str, Cell], sql: str, sample: Sample, *, is_first: bool) -> None:
    """Add a sample, which has all figures, to each cell that shows one of them. cells: of the sample's scenario.

    is_first: whether `sql` is the first kind of SQL of the scenario, which is static if it has both. The columns
    Tcon and Tret, and those by the clock, are about this kind. Another column has the time to retrieve by dynamic
    SQL.
    """
    if is_first:
        for part in (CON, RET, *WALL_CLOCK_FIGURES.values()):
            cells[part].samples.append(sample)
    if sql == DYNAMIC:
        cells[DYNAMIC_RET].samples.append(sample)


def measure_added_time(lab: Bench, database: LabDatabase, daemon: RunningDaemon) -> Cell:
    """Measure the time that the daemon adds to a call; return the cell."""
    cell = Cell(ADDED_TIME_ROW, column_of(database.name, "a call"), value="extra.micros", unit="µs")
    cell.load = f"{CALL_STATEMENT}, one after the other over a kept connection"
    count = int(lab.quick_or_full(*CALLS_PER_BLOCK))
    try:
        connection = connect(Named(DATABASE_NAME, database.driver, database.source, write=False))
        try:
            with Client(daemon.address) as client, on_core(load_core()):
                by_daemon = call_by(client)

                def direct() -> bytes:  # makes the same page as the daemon, by the same functions
                    found = connection.execute(CALL_STATEMENT, ())
                    page = b"".join(fragments("TABLE", found.columns, found.rows))
                    connection.end(commit=True)
                    return page

                if by_daemon() != direct():
                    raise LabError("the daemon's answer differs from the driver's")
                for _ in range(lab.repeats):
                    cell.samples.append(
                        measure_extra_time(direct, by_daemon, count, (*database.pids, daemon.pid))
                    )
        finally:
            connection.close()
    except (DatabaseError, LabError) as reason:
        cell.failure = str(reason)
    return cell


def measure_extra_time(direct: Call, by_daemon: Call, count: int, server_pids: Sequence[int]) -> Sample:
    """Return a sample with the extra time of calls through the daemon: the fastest block of each kind counts.

    count: the calls of a block. server_pids: the processes of the database and of the daemon. The sample's usage is
    the extra CPU time of client, daemon and database together.
    """
    direct_s, daemon_s, extra_cpu_s = [], [], 0.0
    for _ in range(BLOCK_COUNT):
        cpu_before = time.thread_time() + cpu_seconds(*server_pids)
        direct_s.append(median_call_s(direct, count))
        cpu_between = time.thread_time() + cpu_seconds(*server_pids)
        daemon_s.append(median_call_s(by_daemon, count))
        cpu_after = time.thread_time() + cpu_seconds(*server_pids)
        extra_cpu_s += (cpu_after - cpu_between) - (cpu_between - cpu_before)
    calls = BLOCK_COUNT * count
    fastest_direct, fastest_daemon = min(direct_s) * 1e6, min(daemon_s) * 1e6
    extra = {
        "micros": fastest_daemon - fastest_direct, "direct": fastest_direct, "daemon": fastest_daemon,
    }  # fmt: skip
    usage = Usage(cpu=extra_cpu_s)
    return Sample(
        "pinger", seconds=0.0, requests=calls, replies=calls, connections=1, usage=usage, extra=extra
    )


def call_by(client: Client) -> Call:
    """Return a function that sends CALL_STATEMENT through the daemon, and returns the answer."""
    request = ClientRequest(DATABASE_NAME, CALL_STATEMENT)
    return lambda: b"".join(client.ask(request))


def median_call_s(call: Call, count: int) -> float:
    """Return the median time of `count` calls, in seconds."""
    durations = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        durations.append(time.perf_counter() - began)
    return statistics.median(durations)


def medians_of(table: ExperimentTable, column: str) -> dict[str, float]:
    """Return the medians of a column by scenario, in the order of ROWS, without those that were not measured."""
    found = {cell.server: cell.median for cell in table.cells if cell.column == column}
    return {name: median for name in ROWS if (median := found.get(name)) is not None}


def shares_of_connecting(
    connect_ms: Mapping[str, float], retrieve_ms: Mapping[str, float]
) -> dict[str, float]:
    """Return the share of its time that each scenario needs to connect, where both times are known."""
    return {
        name: ms / (ms + retrieve_ms[name])
        for name, ms in connect_ms.items()
        if name in retrieve_ms and ms + retrieve_ms[name] > 0
    }


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim has three parts. ODBC and JDBC type 2 need a large share of their time to connect. Embedded SQL
    connects in the shortest time. Scenario 7, the daemon, needs the longest time to retrieve.

    The third part is judged by the clock, since the daemon's work is not in the gateway's CPU time. It is not
    judged if scenario 7 was not measured.
    """
    pieces, part_holds = [], []
    for system in (SQLITE, POSTGRESQL):
        connect_ms = medians_of(table, column_of(system, CON))
        retrieve_wall_ms = medians_of(table, column_of(system, RET, "wall"))
        # Scenario 7 does not connect to a database.
        database_connect_ms = {name: ms for name, ms in connect_ms.items() if name != CGI_DAEMON}
        if EMBEDDED not in database_connect_ms or len(database_connect_ms) < 2:
            continue
        shares = shares_of_connecting(connect_ms, medians_of(table, column_of(system, RET)))
        part_holds += [shares[name] >= MIN_IMPORTANT_SHARE for name in (ODBC, TYPE_2) if name in shares]
        part_holds.append(min(database_connect_ms, key=database_connect_ms.__getitem__) == EMBEDDED)
        if CGI_DAEMON in retrieve_wall_ms:
            part_holds.append(max(retrieve_wall_ms, key=retrieve_wall_ms.__getitem__) == CGI_DAEMON)
        # The name of a scenario begins with its number
        share_texts = ", ".join(f"{name.partition(' ')[0]} {share:.0%}" for name, share in shares.items())
        pieces.append(f"{system}: connecting is of the CPU time {share_texts}")
    if not pieces:
        return Finding(NOT_TESTABLE, "Embedded SQL was not measured beside another scenario.")
    sentence = ". ".join(pieces)
    added_us = [
        cell.median for cell in table.cells if cell.server == ADDED_TIME_ROW and cell.median is not None
    ]
    if added_us:
        target = f"the target is {MAX_ADDED_US:.0f} µs"
        sentence += f"; the daemon adds at most {max(added_us):.0f} µs to a call ({target})"
    return Finding(verdict_of_parts(part_holds), f"{sentence}.")
