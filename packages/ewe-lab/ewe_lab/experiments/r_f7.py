"""RDBMS, figure 7: all ways to a database, one client."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.bench.verdicts import NOT_TESTABLE, Finding, verdict_of_parts
from ewe_lab.experiments.database_runs import measure_databases, reversed_every_second_turn, start_ways
from ewe_lab.load.http_pinger import ping
from ewe_lab.stacks.database_ways import CGI_DAEMON, SERVER_API, TYPE_2, TYPE_4, WAYS
from ewe_lab.stacks.databases import POSTGRESQL, SQLITE, LabDatabase, RunningDaemon

REQUESTS_PER_ROUND = 10  # in a round
ROUND_COUNTS = (1, 5)  # quick and full
WARM_UP_REQUESTS = {TYPE_2: 60, TYPE_4: 60}  # requests before: a JVM compiles methods that are called often
DEFAULT_WARM_UP_REQUESTS = 2
MAX_EQUAL_RATIO = 1.25  # ratio of two times that are about equal
REMARKS = (
    "3, 5 and 6 are our interpretation of the lost figure: a server API with a connection for each request, with a "
    "pool of connections, and with one connection that the threads share. Rows without a number are not in the "
    "paper.",
    "All send the same bytes. Web server, programs, daemon and database share one core.",
)


def run(lab: Bench) -> Iterator[Cell]:
    """Measure all ways on each database, in turns; yield the cells."""
    yield from measure_databases(lab, partial(measure_ways, lab))
    lab.notes += REMARKS


def measure_ways(lab: Bench, database: LabDatabase, daemon: RunningDaemon) -> Iterator[Cell]:
    """Measure all ways on a database, in turns; yield a cell for each. Turn 0 warms up, and is not counted."""
    cells = {name: Cell(name, database.name, value="extra.response", unit="ms") for name in WAYS}
    with start_ways(lab, database, daemon, WAYS) as (ways, failed):
        for name, reason in failed.items():
            cells[name].failure = reason
        for turn in range(int(lab.quick_or_full(*ROUND_COUNTS)) + 1):
            for name in reversed_every_second_turn(list(ways), turn):
                server, path = ways[name]
                cells[name].command = server.command
                cells[name].load = f"1 client, {REQUESTS_PER_ROUND} requests, a connection a request"
                count = REQUESTS_PER_ROUND if turn else WARM_UP_REQUESTS.get(name, DEFAULT_WARM_UP_REQUESTS)
                try:
                    sample = ping(lab, server, path, clients=1, requests=count, digest=database.digest)
                except LabError as reason:
                    cells[name].failure = str(reason)
                else:
                    cells[name].samples += [sample] if turn else []
    yield from (cell for cell in cells.values() if cell.samples or cell.failure)


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim holds if the times of CGI with the daemon and of the server API differ by at most MAX_EQUAL_RATIO.
    """
    pieces, part_holds = [], []
    for system in (SQLITE, POSTGRESQL):
        medians = {cell.server: cell.median for cell in table.cells if cell.column == system and cell.median}
        others = [medians[name] for name in SERVER_API if name in medians]
        if CGI_DAEMON not in medians or not others:
            continue
        ratio = medians[CGI_DAEMON] / statistics.median(others)
        part_holds.append(1 / MAX_EQUAL_RATIO <= ratio <= MAX_EQUAL_RATIO)
        pieces.append(f"{system} {ratio:.2f}")
    if not pieces:
        return Finding(NOT_TESTABLE, "CGI with the daemon and the server API were not both measured.")
    verdict = verdict_of_parts(part_holds)
    return Finding(
        verdict, f"Time of CGI with the daemon over that of the server API's scenarios: {'; '.join(pieces)}."
    )
