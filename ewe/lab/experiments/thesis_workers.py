"""Event-driven servers with more than one process. The printed figures are nginx's; the server is ewe's
event loop, which takes `--workers` and shares its socket among them just as nginx does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack

from ewe.lab.experiment import Bench, Chart, Contender, Experiment, Load
from ewe.lab.experiments.thesis import KEEP, MACHINE, NO_KEEP
from ewe.lab.results import Cell

ONE_CORE = (
    "Server processes are pinned to one core here, so that a gain by more of them is not to be expected: the "
    "thesis had two cores. What can be seen is whether they cost anything."
)


def experiment(
    id: str, figures: str, title: str, claim: str, size: int,
    keep: Mapping[int, float], no_keep: Mapping[int, float], link: str = "",
) -> Experiment:  # fmt: skip
    """Return the experiment with printed rates by number of processes."""
    printed = {KEEP: keep, NO_KEEP: no_keep}
    return Experiment(
        id=id, document="thesis", source=figures, title=title, claim=claim, varies="processes", minutes=2.0,
        measures="replies a second", reference=name(1), paper_reference="Nginx 1",
        charts=(Chart("bars", "Replies a second over those of one process"),),
        errata=("The printed figures are nginx's; what is measured is ewe's event loop.",),
        run=lambda lab: run(lab, size, printed, link), machine=MACHINE,
    )  # fmt: skip


def name(workers: int) -> str:
    return "1 process" if workers == 1 else f"{workers} processes"


def run(lab: Bench, size: int, printed: Mapping[str, Mapping[int, float]], link: str) -> Iterator[Cell]:
    """Measure one, two, four and eight processes."""
    root = lab.site([size])
    lab.notes.append(ONE_CORE)
    with ExitStack() as stack:
        if link and (why := stack.enter_context(lab.linked(link))):
            lab.notes.append(f"Not behind a link of {link}, which would bound the rate: {why}")
        for column, rates in printed.items():
            for workers, rate in rates.items():
                contender = Contender(name(workers), model="asyncio", options=("--workers", str(workers)))
                load = Load(
                    "ceiling", users=100, keep_alive=column == KEEP, seconds=lab.seconds(1, 2), warm_up=0.5,
                    path=f"/{size}.html", length=size,
                )  # fmt: skip
                cell = Cell(contender.name, column, paper=rate, paper_server=f"Nginx {workers}")
                yield lab.measure(contender, load, cell, root)
