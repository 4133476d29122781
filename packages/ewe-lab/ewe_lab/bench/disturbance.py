"""Disturbed measurements: those during which other programs had more than a quarter of a core.

A mean over a whole experiment hides them. In a row of 24 measurements, seven may have shared their cores with a
compiler, while the mean of the row is still below the limit. Each measurement is therefore decided apart:

    measured ──▶ disturbed? ──▶ once more, with a new server (LabBench.undisturbed), if that is possible
                     │ again
                     ▼
                 its row has other measurements?  yes: this one is left out, and the table says so
                                                  no: the row has no verdict; its figures are printed

`Sample.foreign_cores` has the answer of the clock in foreign.py. A report made before that field existed has two
other clocks, one for each core. They counted the interrupts that the load itself causes. As many as the replies can
explain are taken off, and the shares are reduced to all that other programs had while the table was measured.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

from ewe_lab.bench.figures import percent_text
from ewe_lab.bench.foreign import MAX_FOREIGN_SHARE
from ewe_lab.bench.results import Cell, ExperimentTable, Sample

# The most that the interrupts of a reply may take, with its connection, where the earlier clocks counted them
MAX_INTERRUPTS_S_PER_REPLY = 60e-6
OTHER_PROGRAMS = "other programs had much of the cores in each measurement"


def is_disturbed(sample: Sample) -> bool:
    """Whether other programs had more than MAX_FOREIGN_SHARE of a core while a sample was measured."""
    return sample.foreign_cores is not None and sample.foreign_cores > MAX_FOREIGN_SHARE


def samples_of(table: ExperimentTable) -> list[Sample]:
    """Return the samples of a table, each once: lines of a table may repeat the samples of another cell."""
    return list({id(sample): sample for cell in table.cells for sample in cell.samples}.values())


def disturbed_samples(table: ExperimentTable) -> dict[int, float]:
    """Return how many cores other programs had during each disturbed measurement, by the id() of its sample.

    A sample of an earlier report has no `foreign_cores`. The two old clocks (see above) then say how many cores
    other programs had. Together they may claim more CPU time than these programs had while the table was measured.
    In that case each claim is reduced by the same factor.
    """
    samples = samples_of(table)
    found = {id(sample): sample.foreign_cores or 0.0 for sample in samples if is_disturbed(sample)}
    by_old_clocks = {
        id(sample): cores
        for sample in samples
        if sample.foreign_cores is None
        and not sample.elsewhere
        and sample.seconds
        and (cores := cores_by_old_clocks(sample)) > MAX_FOREIGN_SHARE
    }
    if by_old_clocks and table.foreign is not None:
        claimed_s = sum(
            by_old_clocks[id(each)] * each.seconds for each in samples if id(each) in by_old_clocks
        )
        foreign_s = table.foreign * table.cores * table.seconds
        factor = min(foreign_s / claimed_s, 1.0)
        by_old_clocks = {key: cores * factor for key, cores in by_old_clocks.items()}
    return found | {key: cores for key, cores in by_old_clocks.items() if cores > MAX_FOREIGN_SHARE}


def cores_by_old_clocks(sample: Sample) -> float:
    """Return how much of one core other programs had, by the clocks of earlier reports; 0 if it is not known."""
    cores = max(sample.foreign_on_server_core or 0.0, sample.foreign_on_load_core or 0.0)
    return cores - sample.rate * MAX_INTERRUPTS_S_PER_REPLY


def without_disturbed(table: ExperimentTable) -> ExperimentTable:
    """Return a table without its disturbed measurements; the same table if there is none.

    A row of which nothing remains gets OTHER_PROGRAMS as its failure.
    """
    disturbed = disturbed_samples(table)
    if not disturbed:
        return table
    return replace(table, cells=[without_samples(cell, disturbed) for cell in table.cells])


def without_samples(cell: Cell, disturbed: dict[int, float]) -> Cell:
    """Return a cell without its disturbed samples. disturbed: as disturbed_samples() returns them."""
    kept = [sample for sample in cell.samples if id(sample) not in disturbed]
    if len(kept) == len(cell.samples):
        return cell
    return replace(cell, samples=kept, failure=cell.failure if kept else OTHER_PROGRAMS)


def lost_rows(table: ExperimentTable) -> list[Cell]:
    """Return the rows of a table of which each measurement was disturbed."""
    disturbed = disturbed_samples(table)
    return [
        cell
        for cell in table.cells
        if cell.samples and not cell.line and all(id(sample) in disturbed for sample in cell.samples)
    ]


def lost_rows_clause(table: ExperimentTable) -> str:
    """Return a clause about the rows of which each measurement was disturbed, "" if there is none."""
    lost = lost_rows(table)
    rows = sum(bool(cell.samples) and not cell.line for cell in table.cells)
    return f"in {len(lost)} of {rows} rows {OTHER_PROGRAMS}" if lost else ""


def leave_out_disturbed(table: ExperimentTable) -> None:
    """Remove the disturbed samples of rows that have others, and count them in `table.left_out`."""
    disturbed = disturbed_samples(table)
    kept_ids: set[int] = set()
    for cell in table.cells:
        kept = [sample for sample in cell.samples if id(sample) not in disturbed]
        cell.samples[:] = kept or cell.samples
        kept_ids |= {id(sample) for sample in cell.samples}
    table.left_out += sum(key not in kept_ids for key in disturbed)


def left_out_sentence(table: ExperimentTable) -> str:
    """Return a sentence about the measurements that are left out of a verdict, "" if there is none.

    Those are counted that were removed when the table was measured, and those that a verdict does not use.
    """
    count = table.left_out + len(disturbed_samples(table))
    if not count:
        return ""
    everything = table.left_out + len(samples_of(table))
    are = "is" if count == 1 else "are"
    return f"{count} of {everything} measurements {are} left out: other programs had the cores."


def notes_on_other_programs(table: ExperimentTable) -> list[str]:
    """Return the notes of a table about its measurements beside other programs."""
    notes = []
    if table.left_out:
        measured = "measurement is" if table.left_out == 1 else "measurements are"
        notes.append(
            f"{table.left_out} {measured} left out: other programs had more than"
            f" {percent_text(MAX_FOREIGN_SHARE)} of a core, and the row has other measurements."
        )
    if disturbed := disturbed_samples(table):
        notes.append(
            f"Other programs had {statistics.median(disturbed.values()):.0%} of a core in"
            f" {len(disturbed)} of {len(samples_of(table))} measurements: run it again on a quiet machine"
            " before you believe rates and times; the CPU time of a reply suffers less."
        )
    return notes
