"""EWE, section 3.2: persistent connections, on and off."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ewe_lab.bench.experiment import Bench, Load
from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.bench.verdicts import (
    LEVEL_RATIO,
    NOT_TESTABLE,
    Finding,
    bounds_of_ratio,
    is_between,
    not_judged_clause,
    verdict_of_open_parts,
)
from ewe_lab.experiments.tested_servers import MODELS

ON, OFF = "persistent", "not persistent"


def run(lab: Bench) -> Iterator[Cell]:
    """Measure each model with kept connections, and with a connection for each request; yield the cells.

    In the second case neither side keeps a connection: the load opens one for each request, and the server closes
    each one after its response.
    """
    root = lab.site([])
    for tested in lab.servers(MODELS):
        for column in (ON, OFF):
            load = Load(
                "saturation", users=32, keep_alive=column == ON, seconds=lab.quick_or_full(1, 3), warm_up=0.5
            )
            options = () if column == ON else ("--no-persistent",)
            yield lab.fill_cell(tested, load, Cell(tested.name, column), root, *options)


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim holds for a model that answers more requests, by over 10 % (LEVEL_RATIO), on kept connections. A model
    that answers none without them is not judged. If the load generator was the limit of one of the two rates, the
    model is judged only if a faster one could not change the word. If fewer models are judged than not, the claim
    holds in part at most.
    """
    cells = {(cell.server, cell.column): cell for cell in table.cells if cell.median is not None}
    gains = {
        name: bounds_of_ratio(cells[name, ON], without)
        for (name, column), without in cells.items()
        if column == OFF and without.median and (name, ON) in cells
    }
    if not gains:
        return Finding(NOT_TESTABLE, "No model was measured both ways.")
    # The limit itself is not "over 10 %"
    least = math.nextafter(LEVEL_RATIO, math.inf)
    judged = [bounds and is_between(bounds, least, math.inf) for bounds in gains.values()]
    summary = ", ".join(
        f"{name} {(cells[name, ON].median or 0) / (cells[name, OFF].median or math.inf):.1f}"
        for name in gains
    )
    return Finding(
        verdict_of_open_parts(judged),
        f"Replies on kept connections over replies with a connection for each: {summary}"
        f"{not_judged_clause(judged.count(None), 'model')}.",
    )
