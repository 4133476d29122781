"""Thesis, table A.7: the kernel's network parameters, then and here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.papers import printed

LEAST, DEFAULT, MOST = "least", "default", "most"
THESIS_MACHINE = "TAS01"  # the machine whose parameters the thesis prints; two others have 129024 as defaults
PRINTED = printed("T-A7")


def run(lab: Bench) -> Iterator[Cell]:
    """Read each parameter, and yield the cells. Nothing is changed."""
    for name, printed_values in PRINTED.items():
        empty = Cell(name, value="extra.value", unit="", paper_server=THESIS_MACHINE)
        try:
            values = [float(word) for word in Path("/proc/sys/net", name).read_text().split()]
        except (OSError, ValueError):
            yield replace(empty, paper=printed_values[0], failure="not readable here")
            continue
        # A parameter has three values or one
        columns = (LEAST, DEFAULT, MOST) if len(printed_values) > 1 else ("",)
        for column, paper, value in zip(columns, printed_values, values, strict=False):
            sample = Sample(tool="sysctl", seconds=0.0, extra={"value": value})
            yield replace(empty, column=column, paper=paper, samples=[sample])


def check(table: ExperimentTable) -> Finding:
    """Return the finding: the claim holds if all parameters are unchanged, and in part if some are.

    A changed parameter is not a fault of this machine, but worth knowing.
    """
    readable = [cell for cell in table.cells if cell.median is not None]
    if not readable:
        return Finding(NOT_TESTABLE, "No parameter could be read.")
    same = sum(cell.median == cell.paper for cell in readable)
    return Finding(
        HOLDS if same == len(readable) else IN_PART if same else FAILS,
        f"{same} of {len(readable)} parameters are as printed.",
    )
