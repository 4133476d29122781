"""RDBMS, section 2.8: forking before the request comes, or when it does."""

from __future__ import annotations

from collections.abc import Iterator

from ewe_lab.bench.experiment import Bench, Chart, Experiment, Load
from ewe_lab.bench.results import Cell
from ewe_lab.experiments.contenders import FORK, PREFORK

PRINTED = {"fork": 1.0, "prefork": 2.0}


def run(lab: Bench) -> Iterator[Cell]:
    """Measure both, a connection for each request."""
    root = lab.site([])
    load = Load("ceiling", users=8, keep_alive=False, seconds=lab.seconds(1.5, 3), warm_up=0.5)
    for contender in lab.servers((FORK, PREFORK)):
        cell = Cell(
            contender.name,
            "a connection each",
            unit="",
            paper=PRINTED[contender.name],
            paper_server=f"{contender.name}ing",
        )
        yield lab.measure(contender, load, cell, root)


EXPERIMENT = Experiment(
    id="R-C1",
    document="RDBMS",
    source="section 2.8, after McGrath (1995)",
    title="Forking beforehand",
    claim="A pool of processes made beforehand practically doubles the performance of forking for each request.",
    varies="when a process is made",
    measures="replies a second, a connection for each",
    quick=True,
    minutes=0.7,
    reference="fork",
    paper_reference="forking",
    charts=(
        Chart("bars", "Replies a second, over the fork model's"),
        Chart("bars", "CPU time for a reply, in µs", "micros"),
    ),
    errata=("The figure is cited from McGrath's measurements of other servers.",),
    run=run,
)
