"""One run of the lab: fill its tables one after the other, print each, write the results and the report.

Nothing that was measured is lost: results.json is written after every table, and the report is also made when an
interrupt ends the run or an experiment cannot go on.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ewe.config.command import INTERRUPTED
from ewe_lab.bench.experiment import Experiment
from ewe_lab.bench.interrupts import heed_interrupts, ignore_interrupts
from ewe_lab.bench.processes import LabError, allow_descriptors, end_children, tree
from ewe_lab.bench.progress import Progress
from ewe_lab.bench.results import Cell, Results, Table, save
from ewe_lab.lab_bench import LabBench
from ewe_lab.report import report
from ewe_lab.stacks.machine import machine

DESCRIPTORS = 20_000
MUCH = 0.25  # share of a core that other programs (and the kernel) had: from here on a note says so


@dataclass(frozen=True)
class PlannedTable:
    """A table to fill. run: yields its cells, None if it cannot be run. seconds: an estimate of its duration."""

    table: Table
    run: Callable[[LabBench], Iterator[Cell]] | None
    seconds: float
    experiment: Experiment | None = None


def now() -> datetime:
    """Return the time with the time zone."""
    return datetime.now().astimezone()


def new_directory(wanted: Path | None) -> Path:
    """Make the directory for the results. Raises LabError if it cannot be written."""
    directory = wanted or Path(f"ewe-lab-{now():%Y-%m-%d-%H%M%S}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise LabError(f"nothing can be written to {directory}: {reason.strerror} (--out)") from None
    if not os.access(directory, os.W_OK):
        raise LabError(f"nothing can be written to {directory} (--out)")
    return directory


def carry_out(
    parts: Sequence[PlannedTable],
    directory: Path,
    *,
    command: str,
    quick: bool,
    repeats: int,
    used: Sequence[str],
) -> int:
    """Fill and print all tables, write results.json and the report; return the exit status."""
    results = Results(now().isoformat(timespec="seconds"), command, machine(used))
    progress = Progress(sum(part.seconds for part in parts))
    before = {each.pid for each in tree(os.getpid())}
    status = 0
    allow_descriptors(DESCRIPTORS)
    heed_interrupts()
    try:
        with progress, LabBench(progress, quick=quick, repeats=repeats) as lab:
            for part in parts:
                results.tables.append(part.table)
                status = max(status, carry_out_part(part, lab, progress))
                save(results, directory / "results.json")
                show(part, progress)
    except KeyboardInterrupt:
        status = INTERRUPTED
        for table in results.tables[-1:]:
            table.interrupted = True
        progress.note("interrupted: this is what was measured until then")
    finally:
        ignore_interrupts()
        end_children(but=before)
    if status == INTERRUPTED and results.tables:
        show(parts[len(results.tables) - 1], progress)
    for path in report.write(results, directory):
        progress.note(f"written: {path}")
    return status


def carry_out_part(part: PlannedTable, lab: LabBench, progress: Progress) -> int:
    """Fill a table; return 1 if something could not be measured."""
    table = part.table
    if part.run is None:
        return 0
    began = time.monotonic()
    lab.notes, lab.started, lab.prefix = table.notes, [], []
    progress.begin(part.seconds)
    progress.say(f"{table.id}: {table.title}")
    try:
        for cell in part.run(lab):
            table.cells.append(cell)
    except KeyboardInterrupt:
        for cell in lab.started:
            if cell.samples and all(cell is not each for each in table.cells):
                cell.failure = cell.failure or "interrupted"
                table.cells.append(cell)
        raise
    except (LabError, OSError) as reason:  # no more processes, a full disk, ...
        table.notes.append(f"The experiment could not go on: {reason}.")
        return 1
    finally:
        progress.end()
        table.notes += others(table)
        table.seconds = time.monotonic() - began
    return 1 if any(cell.failure for cell in table.cells) or not table.cells else 0


def others(table: Table) -> list[str]:
    """Return a sentence for each core on which other programs ran."""
    cells = [cell for cell in table.cells if not cell.line]  # a line has the samples of another cell
    samples = [sample for cell in cells for sample in cell.samples if sample.seconds]
    shares = {
        "server": [
            sample.usage.core - sample.usage.cpu / sample.seconds
            for sample in samples
            if sample.usage and sample.usage.core is not None
        ],
        "load": [
            sample.core - sample.client
            for sample in samples
            if sample.core is not None and sample.client is not None
        ],
    }
    notes = []
    for whose, found in shares.items():
        if disturbed := [share for share in found if share > MUCH]:
            notes.append(
                f"Other programs had {statistics.median(disturbed):.0%} of the {whose}'s core in"
                f" {len(disturbed)} of {len(found)} measurements: run it again on a quiet machine before you"
                " believe rates and times; the CPU time of a reply suffers less."
            )
    return notes


def show(part: PlannedTable, progress: Progress) -> None:
    """Print a table."""
    progress.clear()
    print(report.text(part.table, part.experiment), end="\n\n", flush=True)
