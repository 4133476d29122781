"""EWE, section 3.2: persistent connections, on and off."""

from __future__ import annotations

from collections.abc import Iterator

from ewe_lab.bench.experiment import Bench, Load
from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, LEVEL_RATIO, NOT_TESTABLE, Finding
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
    that answers none without them is not judged.
    """
    rates: dict[str, dict[str, float]] = {}
    for cell in table.cells:
        if cell.median is not None:
            rates.setdefault(cell.server, {})[cell.column] = cell.median
    gains = {name: found[ON] / found[OFF] for name, found in rates.items() if found.get(OFF) and ON in found}
    if not gains:
        return Finding(NOT_TESTABLE, "No model was measured both ways.")
    gaining_count = sum(gain > LEVEL_RATIO for gain in gains.values())
    verdict = HOLDS if gaining_count == len(gains) else IN_PART if gaining_count else FAILS
    summary = ", ".join(f"{name} {gain:.1f}" for name, gain in gains.items())
    return Finding(
        verdict, f"Replies on kept connections over replies with a connection for each: {summary}."
    )
