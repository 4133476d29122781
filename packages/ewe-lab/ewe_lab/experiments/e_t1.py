"""EWE, table 1: the defaults of its settings, and ours."""

from __future__ import annotations

from collections.abc import Iterator

from ewe.config.count_range import CountRange
from ewe.config.settings import SETTINGS
from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.bench.verdicts import FAILS, HOLDS, Finding
from ewe_lab.experiments.papers import printed

PRINTED = printed("E-T1")  # option of 2006: our setting, the printed default
CLAIMED = ("port", "poolthreads", "indexes", "persistent")


def run(lab: Bench) -> Iterator[Cell]:
    """Compare each printed default with ours; yield the cells."""
    for option, (name, printed_default) in PRINTED.items():
        ours = SETTINGS[name].default
        # A pool that parks grows. The pool of 2006 (parking = never) does not, and has as many threads as then.
        smallest = int(ours) if isinstance(ours, CountRange) else ours
        as_printed = (printed_default, (printed_default,))  # a setting may be a list today, of one default
        same = smallest in as_printed
        if ours not in as_printed:
            lab.notes.append(f"{option}: {printed_default!r} in 2006, {ours!r} here.")
        sample = Sample("settings", seconds=0.0, extra={"same": float(same)})
        yield Cell(option, value="extra.same", unit="(1: as in 2006)", samples=[sample])


def check(table: ExperimentTable) -> Finding:
    """Return the finding: the claim holds if the defaults of CLAIMED are unchanged."""
    other = [cell.server for cell in table.cells if cell.median == 0]
    summary = f"{len(table.cells) - len(other)} of {len(table.cells)} defaults are as printed"
    return Finding(
        FAILS if set(CLAIMED) & set(other) else HOLDS,
        summary + (f"; others: {', '.join(other)}." if other else "."),
    )
