"""Slow clients: some connect, begin a request and never end it. Do the other clients notice?"""

from __future__ import annotations

from collections.abc import Iterator

from ewe_lab.bench.experiment import Bench, Load, Running
from ewe_lab.bench.results import Cell, Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, NOT_TESTABLE, Finding
from ewe_lab.experiments.clients import SILENT, connections, once
from ewe_lab.experiments.contenders import APACHE_PREFORK, MODELS, NGINX

HELD = ("serial", "pool-2006", "prefork")  # as many workers as there are silent clients, or fewer
STANDS = ("thread", "pool", "asyncio")
MANY = 64  # silent clients: more than a model with a fixed number of workers has


def run(lab: Bench) -> Iterator[Cell]:
    """Measure each server with more and more silent clients."""
    root = lab.site([])
    counts = (0, MANY) if lab.quick else (0, 4, 16, MANY, 300)
    load = Load("arrivals", rate=50, seconds=lab.seconds(1.5, 4), warm_up=0, timeout=2.0)
    for contender in lab.servers((*MODELS, NGINX) if lab.quick else (*MODELS, APACHE_PREFORK, NGINX)):
        for count in counts:

            def silent(server: Running, count: int = count) -> Iterator[None]:
                with connections(server.url, count, SILENT):
                    yield

            cell = Cell(contender.name, x=count, value="response.p99", unit="s")
            yield lost(once(lab, contender, load, cell, root, silent))


def lost(cell: Cell) -> Cell:
    """Add the share of requests without an answer to the sample."""
    for sample in cell.samples:
        sample.extra["unanswered"] = 100 * sum(sample.errors.values()) / max(sample.requests, 1)
    return cell


def check(table: Table) -> Finding:
    """The claim holds if the models with a worker for each connection lose most, and the others nothing."""
    share = {
        cell.server: cell.samples[0].extra["unanswered"]
        for cell in table.cells
        if cell.x == MANY and cell.samples
    }
    held = [name for name in HELD if name in share]
    stands = [name for name in STANDS if name in share]
    if not held or not stands:
        return Finding(NOT_TESTABLE, f"No figures with {MANY} silent clients.")
    word = HOLDS if all(share[n] > 50 for n in held) and all(share[n] < 1 for n in stands) else FAILS
    told = ", ".join(f"{name} {share[name]:.0f} %" for name in (*held, *stands))
    return Finding(word, f"Requests without an answer beside {MANY} silent clients: {told}.")
