"""EWE, section 4.1: does fork beat thread because each thread builds its processor?"""

from __future__ import annotations

from collections.abc import Iterator

from ewe_lab.bench.experiment import Bench, Chart, Contender, Experiment, Load
from ewe_lab.bench.results import Cell
from ewe_lab.experiments.ewe_figures import E_T3_PRINTED as PRINTED
from ewe_lab.experiments.ewe_tables import MACHINE

AS_THEN, BOTH_BUILD, BOTH_SHARE = "as in 2006: threads build", "both build", "both share"
THREAD = Contender("thread", model="thread", most=1000)
FORK = Contender("fork", model="fork", most=256)
BUILDING_THREAD = Contender("thread", model="ewe_lab.stacks.variants:BuildingThread", most=1000)
BUILDING_FORK = Contender("fork", model="ewe_lab.stacks.variants:BuildingFork", most=256)
PAIRS = {
    AS_THEN: (BUILDING_THREAD, FORK),
    BOTH_BUILD: (BUILDING_THREAD, BUILDING_FORK),
    BOTH_SHARE: (THREAD, FORK),
}


def run(lab: Bench) -> Iterator[Cell]:
    """Measure both models, each way."""
    root = lab.site([])
    load = Load("ceiling", users=32, keep_alive=False, seconds=lab.seconds(1, 3), warm_up=0.5)
    for column, pair in PAIRS.items():
        for contender, printed in zip(lab.servers(pair), ("EWE -t", "EWE -f"), strict=True):
            paper = PRINTED.of("request rate", printed) if column == AS_THEN else None
            cell = Cell(contender.name, column, paper=paper, paper_server=printed)
            yield lab.measure(contender, load, cell, root)


EXPERIMENT = Experiment(
    id="E-C1",
    document="EWE",
    source="section 4.1",
    title="Where the processor object is built",
    claim="Fork beats thread (1.72 times, table 3) because each thread builds a processor object and each process "
    "inherits one.",
    varies="who builds what answers requests: each connection, or the server once",
    measures="replies a second, a connection for each",
    minutes=2.0,
    reference="thread",
    paper_reference="EWE -t",
    charts=(Chart("bars", "Replies a second, over the thread model's"),),
    errata=("“while each new thread gets an existing copy of one”: the second thread must read process.",),
    run=run,
    machine=MACHINE,
)
