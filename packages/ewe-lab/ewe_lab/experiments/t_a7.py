"""Thesis, table A.7: the kernel's network parameters, then and here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.bench.verdicts import HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.papers import printed

LEAST, DEFAULT, MOST = "least", "default", "most"
PRINTED = printed("T-A7")  # the parameters of TAS01; TAS02 and TAS03 have 129024 as defaults


def run(lab: Bench) -> Iterator[Cell]:
    """Read each parameter; nothing is changed."""
    for name, then in PRINTED.items():
        try:
            values = [float(word) for word in Path("/proc/sys/net", name).read_text().split()]
        except (OSError, ValueError):
            yield Cell(name, value="extra.value", unit="", paper=then[0], paper_server="TAS01",
                       failure="not readable here")  # fmt: skip
            continue
        for column, paper, value in zip(
            (LEAST, DEFAULT, MOST) if len(then) > 1 else ("",), then, values, strict=False
        ):
            sample = Sample("sysctl", 0.0, extra={"value": value})
            yield Cell(
                name,
                column,
                value="extra.value",
                unit="",
                paper=paper,
                paper_server="TAS01",
                samples=[sample],
            )


def check(table: ExperimentTable) -> Finding:
    """Count the unchanged parameters. A difference is not a fault, but a reader should know it."""
    seen = [cell for cell in table.cells if cell.median is not None]
    if not seen:
        return Finding(NOT_TESTABLE, "No parameter could be read.")
    same = sum(cell.median == cell.paper for cell in seen)
    return Finding(
        HOLDS if same == len(seen) else IN_PART, f"{same} of {len(seen)} parameters are as printed."
    )
