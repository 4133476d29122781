"""One run of the lab: fill its tables one after the other, print each, write the results and the report.

Nothing that was measured is lost: results.json is written after every table, and the report is also made when an
interrupt ends the run or an experiment cannot go on.
"""

from __future__ import annotations

import errno
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ewe.config.command import INTERRUPTED
from ewe_lab.bench import figures
from ewe_lab.bench.experiment import Experiment
from ewe_lab.bench.foreign import MAX_FOREIGN_SHARE, OtherProgramsWatch
from ewe_lab.bench.interrupts import heed_interrupts, ignore_interrupts
from ewe_lab.bench.processes import LabError, allow_descriptors, end_children, process_tree, two_cores
from ewe_lab.bench.progress import Progress
from ewe_lab.bench.results import Cell, ExperimentTable, Results, save
from ewe_lab.lab_bench import LabBench
from ewe_lab.report import report
from ewe_lab.stacks.machine import machine

WANTED_DESCRIPTORS = 20_000
DIFFERENCE_UNITS = ("µs", "ms", "s", "%")  # units in which an experiment subtracts one run from another


@dataclass(frozen=True)
class PlannedTable:
    """A table to fill. run: yields the cells; None if the experiment cannot run. seconds: estimated duration."""

    table: ExperimentTable
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
        raise LabError(f"cannot write {directory}: {reason.strerror} (--out)") from None
    if not os.access(directory, os.W_OK):
        raise LabError(f"cannot write {directory}: {os.strerror(errno.EACCES)} (--out)")
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
    before = {each.pid for each in process_tree(os.getpid())}
    status = 0
    allow_descriptors(WANTED_DESCRIPTORS)
    heed_interrupts()
    try:
        if plan := progress.plan():
            progress.note(f"The run takes {plan}, and longer on a busy machine.")
        with progress, LabBench(progress, quick=quick, repeats=repeats) as lab:
            for part in parts:
                results.tables.append(part.table)
                status = max(status, carry_out_part(part, lab, progress))
                save(results, directory / "results.json")
                print_table(part, progress)
    except KeyboardInterrupt:
        status = INTERRUPTED
        for table in results.tables[-1:]:
            table.interrupted = True
        progress.note("interrupted: the results until then follow")
    finally:
        ignore_interrupts()
        end_children(but=before)
    if status == INTERRUPTED and results.tables:
        print_table(parts[len(results.tables) - 1], progress)
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
    watch = OtherProgramsWatch(two_cores())
    try:
        with watch:
            for cell in part.run(lab):
                table.cells.append(without_negative_figure(cell))
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
        table.foreign, table.cores = watch.share(), len(watch.cores)
        table.notes += foreign_sentence(table)
        table.seconds = time.monotonic() - began
    return 1 if any(cell.failure for cell in table.cells) or not table.cells else 0


def without_negative_figure(cell: Cell) -> Cell:
    """Return a cell without its figure if that is a negative time or share: a difference lost in the noise.

    No layer of a server takes less than no time. The subtracted runs differed by more than the layer.
    """
    if cell.unit in DIFFERENCE_UNITS and cell.median is not None and cell.median < 0:
        text = f"{figures.number(cell.median)} {cell.unit}"
        cell.failure = f"not resolved: the difference is {text}, so the runs differ by more than it"
        cell.samples.clear()
    return cell


def foreign_sentence(table: ExperimentTable) -> list[str]:
    """Return a sentence for each core of which other programs used more than the share MAX_FOREIGN_SHARE."""
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
        if disturbed := [share for share in found if share > MAX_FOREIGN_SHARE]:
            notes.append(
                f"Other programs had {statistics.median(disturbed):.0%} of the {whose}'s core in"
                f" {len(disturbed)} of {len(found)} measurements: run it again on a quiet machine before you"
                " believe rates and times; the CPU time of a reply suffers less."
            )
    return notes


def print_table(part: PlannedTable, progress: Progress) -> None:
    """Print a table."""
    progress.clear()
    print(report.text(part.table, part.experiment), end="\n\n", flush=True)
