"""Slow clients: some connect, begin a request and never end it. Do the other clients notice?

    silent clients    GET /index.html HTTP/1.1, Host: ...   and no empty line: a worker waits for it
    other clients     50 requests a second, each due at its time, with a limit of 2 s

A silent client occupies a worker under the models that have a fixed number of them. As soon as the silent clients
are as many as the workers, all others wait. Threads for each client, the pool with parking and event loops go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from ewe_lab.bench.experiment import Bench, Load, RunningServer
from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.bench.verdicts import FAILS, HOLDS, NOT_TESTABLE, Finding
from ewe_lab.experiments.clients import UNFINISHED_HEAD, connections, measure_once
from ewe_lab.experiments.tested_servers import APACHE_PREFORK, MODELS, NGINX

# models whose workers are all occupied by the silent clients
FIXED_WORKER_MODELS = ("serial", "pool-2006", "prefork")
UNAFFECTED_MODELS = ("thread", "pool", "asyncio")
SILENT_CLIENTS = 64  # more than the workers of any model with a fixed number of workers


def run(lab: Bench) -> Iterator[Cell]:
    """Measure each server with more and more silent clients; yield the cells."""
    root = lab.site([])
    counts = (0, SILENT_CLIENTS) if lab.quick else (0, 4, 16, SILENT_CLIENTS, 300)
    load = Load("arrivals", rate=50, seconds=lab.quick_or_full(1.5, 4), warm_up=0, timeout=2.0)
    for tested in lab.servers((*MODELS, NGINX) if lab.quick else (*MODELS, APACHE_PREFORK, NGINX)):
        for count in counts:
            cell = Cell(tested.name, x=count, value="response.p99", unit="s")
            silent_clients = partial(hold_silent_connections, count=count)
            yield add_lost_share(measure_once(lab, tested, load, cell, root, beside=silent_clients))


@contextmanager
def hold_silent_connections(server: RunningServer, count: int) -> Iterator[None]:
    """Hold connections with an unfinished head during the block."""
    with connections(server.url, count, UNFINISHED_HEAD):
        yield


def add_lost_share(cell: Cell) -> Cell:
    """Add to each sample the percentage of its requests that got no answer; return the cell."""
    for sample in cell.samples:
        sample.extra["unanswered"] = 100 * (sample.lost or 0.0)
    return cell


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim holds if FIXED_WORKER_MODELS lose over half of the requests each, UNAFFECTED_MODELS under 1 %.
    """
    percent_lost = {
        cell.server: cell.samples[0].extra["unanswered"]
        for cell in table.cells
        if cell.x == SILENT_CLIENTS and cell.samples
    }
    occupied = [name for name in FIXED_WORKER_MODELS if name in percent_lost]
    unaffected = [name for name in UNAFFECTED_MODELS if name in percent_lost]
    if not occupied or not unaffected:
        return Finding(NOT_TESTABLE, f"No figures with {SILENT_CLIENTS} silent clients.")
    most_are_lost = all(percent_lost[name] > 50 for name in occupied)
    hardly_any_are_lost = all(percent_lost[name] < 1 for name in unaffected)
    verdict = HOLDS if most_are_lost and hardly_any_are_lost else FAILS
    summary = ", ".join(f"{name} {percent_lost[name]:.0f} %" for name in (*occupied, *unaffected))
    return Finding(verdict, f"Requests without an answer beside {SILENT_CLIENTS} silent clients: {summary}.")
