"""Thesis, table 3.2: the test load as counts of requests, from 1,000 to 500,000, in place of seconds.

The thesis's test ends after a number of requests, the lab's after a time. If a server's rate is the same for each
number, both give the same figure. ab counts the requests, each over its own connection.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ewe_lab.bench.experiment import Bench, Load
from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.bench.verdicts import (
    FAILS,
    NOT_TESTABLE,
    Finding,
    bounds_of_ratio,
    is_between,
    is_client_limited,
    not_judged_clause,
    ratio_factor,
    verdict_of_open_parts,
)
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

    The claim holds if no server's rate depends on the number of requests, with equally many clients. Each two rates
    are compared. If the load generator was the limit of one of them, they are judged only if a faster one could not
    make them equal: two rates of a load generator are equal for any server. If fewer ratios are judged than not,
    the claim holds in part at most.
    """
    groups: dict[tuple[str, float | None], list[Cell]] = {}
    for cell in table.cells:
        if cell.median is not None:
            groups.setdefault((cell.server, cell.x), []).append(cell)
    ratios = [
        (one, other, bounds)
        for group in groups.values()
        for one, other in itertools.combinations(group, 2)
        if (bounds := bounds_of_ratio(one, other))
    ]
    if not ratios:
        return Finding(NOT_TESTABLE, "No server was measured with two numbers of requests.")
    words = [is_between(bounds, 1 / MAX_EQUAL_RATIO, MAX_EQUAL_RATIO) for _, _, bounds in ratios]
    open_clause = not_judged_clause(words.count(None), "ratio")
    judged = [pair for pair, word in zip(ratios, words, strict=True) if word is not None]
    if not judged:
        return Finding(NOT_TESTABLE, f"The rates of one server are not compared{open_clause}.")
    one, other, _ = max(judged, key=lambda pair: factor_of(pair[0], pair[1]))
    more = "or more" if is_client_limited(one) or is_client_limited(other) else "at most"
    return Finding(
        FAILS if False in words else verdict_of_open_parts(words),
        f"The rates of one server differ by a factor of {factor_of(one, other):.2f} {more} ({one.server},"
        f" {one.x:g} clients){open_clause}.",
    )


def factor_of(one: Cell, other: Cell) -> float:
    """Return the factor, at least 1, between the rates of two measured cells."""
    assert one.median is not None and other.median is not None
    return ratio_factor(one.median, other.median)
