"""EWE, table 1: the defaults of its settings, and ours."""

from __future__ import annotations

from collections.abc import Iterator

from ewe.config.settings import Config
from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.results import Cell, Sample, Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, Finding
from ewe_lab.experiments.papers import printed

PRINTED = printed("E-T1")  # option of 2006: our setting, the printed default
CLAIMED = ("port", "poolthreads", "indexes", "persistent")


def run(lab: Bench) -> Iterator[Cell]:
    """Compare each printed default with ours."""
    for option, (name, then) in PRINTED.items():
        ours = getattr(Config, name).default
        same = ours == then
        if not same:
            lab.notes.append(f"{option}: {then!r} in 2006, {ours!r} here.")
        sample = Sample("settings", 0.0, extra={"same": float(same)})
        yield Cell(option, value="extra.same", unit="(1: as in 2006)", samples=[sample])


def check(table: Table) -> Finding:
    """The claim holds if the defaults that it names are unchanged."""
    other = [cell.server for cell in table.cells if cell.median == 0]
    told = f"{len(table.cells) - len(other)} of {len(table.cells)} defaults are as printed"
    return Finding(
        FAILS if set(CLAIMED) & set(other) else HOLDS,
        told + (f"; others: {', '.join(other)}." if other else "."),
    )
