"""RDBMS, figure 7: all ways to a database, one client."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.database_runs import in_turns, measured, started
from ewe_lab.load.http_pinger import ping
from ewe_lab.stacks.database_ways import CGI_DEMON, SERVER_API, TYPE_2, TYPE_4, WAYS
from ewe_lab.stacks.databases import POSTGRESQL, SQLITE, Asked, Database

REQUESTS = 10  # in a round
ROUNDS = (1, 5)  # quick and full
WARM = {TYPE_2: 60, TYPE_4: 60}  # requests before: a JVM compiles what is called often
WARM_OTHERS = 2
ALIKE = 1.25  # ratio of two times that are about equal
REMARKS = (
    "3, 5 and 6 are our reading of the lost figure: a server API with a connection for each request, with a pool "
    "of connections, and with one connection that the threads share. Rows without a number are not in the paper.",
    "All send the same bytes. Web server, programs, demon and database share one core.",
)


def run(lab: Bench) -> Iterator[Cell]:
    """Measure all ways on each database, in turns."""
    yield from measured(lab, partial(column, lab))
    lab.notes += REMARKS


def column(lab: Bench, database: Database, demon: Asked) -> Iterator[Cell]:
    """Measure all ways on a database."""
    cells = {name: Cell(name, database.name, None, "extra.response", "ms") for name in WAYS}
    with started(lab, database, demon, WAYS) as (ways, failed):
        for name, reason in failed.items():
            cells[name].failure = reason
        for turn in range(int(lab.seconds(*ROUNDS)) + 1):
            for name in in_turns(list(ways), turn):
                server, path = ways[name]
                cells[name].command = server.command
                cells[name].load = f"1 client, {REQUESTS} requests, a connection a request"
                count = REQUESTS if turn else WARM.get(name, WARM_OTHERS)
                try:
                    sample = ping(lab, server, path, 1, count, database.digest)
                except LabError as reason:
                    cells[name].failure = str(reason)
                else:
                    cells[name].samples += [sample] if turn else []  # the first turn warms up
    yield from (cell for cell in cells.values() if cell.samples or cell.failure)


def check(table: Table) -> Finding:
    """The claim holds if CGI with the demon takes about as long as the server API's scenarios, or less."""
    told, kept = [], []
    for place in (SQLITE, POSTGRESQL):
        found = {cell.server: cell.median for cell in table.cells if cell.column == place and cell.median}
        others = [found[name] for name in SERVER_API if name in found]
        if CGI_DEMON not in found or not others:
            continue
        ratio = found[CGI_DEMON] / statistics.median(others)
        kept.append(ratio <= ALIKE)
        told.append(f"{place} {ratio:.2f}")
    if not told:
        return Finding(NOT_TESTABLE, "CGI with the demon and the server API were not both measured.")
    word = HOLDS if all(kept) else IN_PART if any(kept) else FAILS
    return Finding(word, f"CGI with the demon takes, times the server API's scenarios: {'; '.join(told)}.")
