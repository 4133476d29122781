"""Full load: as many kept connections as a browser-heavy site has, and every model with its default settings.

A rate and a mean hide the clients that wait longest. A model with few workers may serve most clients fast, and let
one wait for seconds. Two figures show it: the longest wait of a request, and p99 divided by the median (the tail).

Possible failures: the longest wait is often that of a first request, so there is no warm-up. A p99 of too few
requests is chance, and is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ewe_lab.bench.experiment import Bench, Load, ServerUnderTest
from ewe_lab.bench.results import Cell, ExperimentTable, figure
from ewe_lab.bench.verdicts import FAILS, HOLDS, NOT_TESTABLE, Finding
from ewe_lab.experiments.clients import measure_once, measure_repeatedly
from ewe_lab.experiments.tested_servers import APACHE_PREFORK, ASYNCIO, FORK, NGINX, POOL, THREAD

PREFORK = ServerUnderTest("prefork", model="prefork")  # with its own range of workers
SERVERS = (FORK, PREFORK, THREAD, POOL, ASYNCIO, APACHE_PREFORK, NGINX)
CLIENTS = 64
MAX_WAIT_S = 1.0
MAX_P99_TO_MEDIAN = 10.0  # the slowest hundredth takes at most so many times the median
MODELS_OF_EWE = ("fork", "prefork", "thread", "pool", "asyncio")


def run(lab: Bench) -> Iterator[Cell]:
    """Measure each server with clients that keep their connections and ask without a pause; yield the cells.

    There is no warm-up: the longest wait may be that of a first request. A quick run leaves Apache out.
    """
    root = lab.site([])
    quick_servers = [tested for tested in SERVERS if tested.name in MODELS_OF_EWE or tested is NGINX]
    for tested in lab.servers(quick_servers if lab.quick else SERVERS):
        # A server that closes a connection counts no error: the client opens another one, as a browser does
        load = Load("closed", users=CLIENTS, seconds=lab.quick_or_full(1.5, 4), warm_up=0, reopens=True)
        measure = partial(measure_once, lab, tested, load, root=root)
        cell = measure_repeatedly(lab, Cell(tested.name, value="extra.longest", unit="s"), measure)
        for sample in cell.samples:
            # Without a single time there is no figure: the cell then has no longest wait
            if sample.service is not None:
                sample.extra["longest"] = sample.service.max
                if (p99 := figure(sample, "service.p99")) is not None:  # None: of too few requests
                    # At least 1 µs, so that nothing is divided by 0
                    sample.extra["tail"] = p99 / max(sample.service.p50, 1e-6)
        yield cell


def worst_figures(cell: Cell) -> dict[str, float]:
    """Return the greatest of each extra figure among the repeats of a cell."""
    names = {name for sample in cell.samples for name in sample.extra}
    return {name: max(sample.extra.get(name, 0.0) for sample in cell.samples) for name in names}


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim holds if under each model no request waited longer than MAX_WAIT_S, and p99 is at most
    MAX_P99_TO_MEDIAN times the median. run() has put both into the extra figures of a sample: `longest` in seconds,
    and `tail`, p99 divided by the median. Of the repeats the worst figure counts. A p99 of too few requests is not
    judged: its sample has no `tail`.
    """
    found = {
        cell.server: worst
        for cell in table.cells
        if cell.server in MODELS_OF_EWE and "longest" in (worst := worst_figures(cell))
    }
    if not found:
        return Finding(NOT_TESTABLE, "No model was measured.")
    holds = all(
        each["longest"] <= MAX_WAIT_S and each.get("tail", 0.0) <= MAX_P99_TO_MEDIAN
        for each in found.values()
    )
    summary = "; ".join(
        f"{name} {1000 * each['longest']:,.0f} ms, "
        + (f"{each['tail']:.1f} times" if "tail" in each else "too few requests for p99")
        for name, each in found.items()
    )
    return Finding(HOLDS if holds else FAILS, f"The longest wait, and p99 beside p50: {summary}.")
