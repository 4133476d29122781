"""Thesis, table 3.2: the test load as counts of requests, from 1,000 to 500,000, in place of seconds.

The thesis's test ends after a number of requests, the lab's after a time. If a server's rate is the same for each
number, both give the same figure. ab counts the requests, each over its own connection.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ewe_lab.bench.experiment import Bench, Load
from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.bench.verdicts import FAILS, HOLDS, NOT_TESTABLE, Finding, is_client_limited
from ewe_lab.experiments.clients import measure_once
from ewe_lab.experiments.tested_servers import APACHE_PREFORK, ASYNCIO, LIGHTTPD, NGINX, THREAD

SERVERS = (APACHE_PREFORK, NGINX, LIGHTTPD, THREAD, ASYNCIO)
REQUEST_COUNTS = (1_000, 10_000, 100_000, 500_000)  # requests
CLIENT_COUNTS = (1, 10, 100, 250, 500, 1000)
QUICK_REQUEST_COUNTS, QUICK_CLIENT_COUNTS = REQUEST_COUNTS[:2], (10, 100)
MAX_RUN_S = 300.0  # seconds of one run
PAGE_BYTES = 168  # bytes of the page
# Ratio of the greatest rate to the least up to which the number of requests does not matter
MAX_EQUAL_RATIO = 1.5


def run(lab: Bench) -> Iterator[Cell]:
    """Measure each server with each number of requests and of clients; yield the cells.

    Each request has its own connection.
    """
    root = lab.site([PAGE_BYTES])
    for tested in lab.servers(SERVERS):
        for count in QUICK_REQUEST_COUNTS if lab.quick else REQUEST_COUNTS:
            for clients in QUICK_CLIENT_COUNTS if lab.quick else CLIENT_COUNTS:
                load = Load(
                    "saturation", users=clients, requests=count, seconds=MAX_RUN_S, warm_up=0.3, keep_alive=False,
                    path=f"/{PAGE_BYTES}.html", length=PAGE_BYTES, tool="ab",
                )  # fmt: skip
                cell = measure_once(
                    lab, tested, load, Cell(tested.name, f"{count:,} requests", clients), root
                )
                for sample in cell.samples:
                    if sample.requests < count:
                        sample.notes.append(f"{sample.requests:,} of {count:,} requests in {MAX_RUN_S:g} s")
                yield cell


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim holds if no server's rate depends on the number of requests, with equally many clients. A rate of
    which the load generator was the limit is not judged: such rates are equal for any server.
    """
    rates: dict[tuple[str, float | None], list[float]] = {}
    for cell in table.cells:
        if cell.median is not None and not is_client_limited(cell):
            rates.setdefault((cell.server, cell.x), []).append(cell.median)
    spread = {
        key: max(found) / min(found) if min(found) else math.inf
        for key, found in rates.items()
        if len(found) > 1 and max(found)
    }
    if not spread:
        return Finding(NOT_TESTABLE, "No server was measured with two numbers of requests.")
    (server, clients), greatest = max(spread.items(), key=lambda each: each[1])
    return Finding(
        HOLDS if greatest <= MAX_EQUAL_RATIO else FAILS,
        f"The rates of one server differ by a factor of {greatest:.2f} at most ({server}, {clients:g} clients).",
    )
