"""X-Switch, section 3: events against threads, a result that the paper cites."""

from __future__ import annotations

from collections.abc import Iterator

from ewe_lab.bench.experiment import Bench, Chart, Experiment, Load
from ewe_lab.bench.results import Cell
from ewe_lab.experiments.contenders import APACHE_EVENT, APACHE_WORKER, ASYNCIO, NGINX, POOL, THREAD

PRINTED = {"thread": 1.0, "asyncio": 1.18, "pool": 1.18}
PAPER = {"thread": "threads", "asyncio": "events", "pool": "hybrid"}


def run(lab: Bench) -> Iterator[Cell]:
    """Measure each server at saturation."""
    root = lab.site([])
    load = Load("ceiling", users=100, seconds=lab.seconds(1, 3), warm_up=0.5)
    for contender in lab.servers((THREAD, POOL, ASYNCIO, APACHE_WORKER, APACHE_EVENT, NGINX)):
        cell = Cell(
            contender.name,
            "saturated",
            unit="",
            paper=PRINTED.get(contender.name),
            paper_server=PAPER.get(contender.name, ""),
        )
        yield lab.measure(contender, load, cell, root)


EXPERIMENT = Experiment(
    id="X-C1",
    document="X-Switch",
    source="section 3.2.1, after Pariag and others (2007)",
    title="Events against threads",
    claim="An event-driven or hybrid server has up to 18 % more throughput than the best one with threads.",
    varies="the concurrency model",
    measures="replies a second at saturation",
    minutes=2.0,
    reference="thread",
    paper_reference="threads",
    charts=(
        Chart("bars", "Replies a second, over the thread model's"),
        Chart("bars", "CPU time for a reply, in µs", "micros"),
    ),
    errata=("The figure is cited from Pariag and others, and is the most that they saw.",),
    run=run,
)
