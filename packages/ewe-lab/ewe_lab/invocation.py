"""One run of the lab: fill its tables one after the other, print each, write the results and the report.

Nothing that was measured is lost: results.json is written after every table, and the report is also made when an
interrupt ends the run or an experiment cannot go on.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ewe.config.command import INTERRUPTED
from ewe_lab.bench import figures, verdicts
from ewe_lab.bench.disturbance import leave_out_disturbed, notes_on_other_programs
from ewe_lab.bench.experiment import Experiment
from ewe_lab.bench.foreign import OtherProgramsWatch
from ewe_lab.bench.interrupts import ignore_interrupts, raise_on_first_interrupt
from ewe_lab.bench.processes import LabError, allow_descriptors, end_descendants, process_tree, two_cores
from ewe_lab.bench.progress import Progress
from ewe_lab.bench.results import Cell, ExperimentTable, Results, save
from ewe_lab.lab_bench import FAILURES, LabBench
from ewe_lab.report import report
from ewe_lab.stacks.machine import machine_facts

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
    """Make the directory for the results, and return it. Raises LabError if it cannot be written.

    wanted: None for a new one in the working directory, with the time in its name.
    """
    directory = wanted or Path(f"ewe-lab-{now():%Y-%m-%d-%H%M%S}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise LabError(f"cannot write {directory}: {reason.strerror} (--out)") from None
    if not os.access(directory, os.W_OK):
        raise LabError(f"cannot write {directory}: {os.strerror(errno.EACCES)} (--out)")
    return directory


def fill_tables(
    plan: Sequence[PlannedTable],
    directory: Path,
    *,
    command: str,
    quick: bool,
    repeats: int,
    noted_servers: Sequence[str],
) -> int:
    """Fill and print all tables, write results.json and the report; return the exit status.

    The status is 1 if something could not be measured, INTERRUPTED after an interrupt, else 0. command: the command
    line of the run. repeats: measurements of a cell. noted_servers: those whose versions the report names. Raises
    OSError if a file cannot be written.
    """
    results = Results(
        started=now().isoformat(timespec="seconds"), command=command, machine=machine_facts(noted_servers)
    )
    progress = Progress(sum(planned.seconds for planned in plan))
    pids_before = {process.pid for process in process_tree(os.getpid())}
    status = 0
    allow_descriptors(WANTED_DESCRIPTORS)
    raise_on_first_interrupt()
    try:
        if planned_time := progress.planned_time_text():
            progress.print_line(f"The run takes {planned_time}, and longer on a busy machine.")
        with progress, LabBench(progress, quick=quick, repeats=repeats) as lab:
            for planned in plan:
                results.tables.append(planned.table)
                try:
                    status = max(status, fill_table(planned, lab, progress))
                    print_table(planned, progress)  # first: the disk may be full
                except Exception as reason:  # a mistake in the experiment, or in its check: the figures stay
                    try:
                        save(results, directory / "results.json")
                    except OSError as failure:  # the author needs the first error, not this one
                        reason.add_note(f"results.json was not written: {failure}")
                    raise
                save(results, directory / "results.json")
    except KeyboardInterrupt:
        status = INTERRUPTED
        if results.tables:
            results.tables[-1].interrupted = True
        progress.print_line("interrupted: the results until then follow")
    finally:
        ignore_interrupts()  # from here on, so that the report is written
        end_descendants(spared=pids_before)
    if status == INTERRUPTED and results.tables:
        print_table(plan[len(results.tables) - 1], progress)  # the table that was being filled
    for path in report.write(results, directory):
        progress.print_line(f"written: {path}")
    return status


def fill_table(planned: PlannedTable, lab: LabBench, progress: Progress) -> int:
    """Fill a table; return 1 if something could not be measured, else 0."""
    table = planned.table
    if planned.run is None:
        return 0
    began = time.monotonic()
    lab.notes, lab.started, lab.command_prefix = table.notes, [], []  # nothing of the table before
    progress.begin_table(planned.seconds)
    progress.show_step(f"{table.id}: {table.title}")
    watch = OtherProgramsWatch(two_cores())
    lab.other_programs, lab.repeated_for_others, lab.vain_repeats = watch, 0, 0
    try:
        with watch:
            clock = CellClock(watch)
            for cell in planned.run(lab):
                clock.note(cell)
                table.cells.append(without_negative_figure(cell))
    except KeyboardInterrupt:
        # Keep the samples of the cells that are not complete. `is`: two cells may be equal
        for cell in lab.started:
            if cell.samples and all(cell is not complete for complete in table.cells):
                cell.failure = cell.failure or "interrupted"
                table.cells.append(cell)
        raise
    except FAILURES as reason:
        table.notes.append(f"The experiment could not go on: {reason}.")
        table.interrupted = True  # it lacks rows, so it says nothing about the claim
        return 1
    except Exception:  # a mistake in the function of the experiment
        table.interrupted = True
        raise
    finally:
        progress.end_table()
        table.foreign, table.cores = watch.foreign_share(), len(watch.cores)
        table.seconds = time.monotonic() - began
        lab.other_programs = None
        if verdicts.is_timed(planned.experiment):
            leave_out_disturbed(table)
        if lab.repeated_for_others:
            table.notes.append(
                f"{lab.repeated_for_others} of the measurements were made a second time: other programs had the"
                " cores during the first one."
            )
        table.notes += notes_on_other_programs(table)
    return 1 if any(cell.failure for cell in table.cells) or not table.cells else 0


def without_negative_figure(cell: Cell) -> Cell:
    """Remove a cell's samples, and note a failure, if its figure is a negative time or share. Return the cell.

    An experiment subtracts two runs to find the time of a layer. No layer takes less than no time: the two runs
    differed by chance by more than the layer.
    """
    if cell.unit in DIFFERENCE_UNITS and cell.median is not None and cell.median < 0:
        difference = f"{figures.number_text(cell.median)} {cell.unit}"
        cell.failure = f"not resolved: the difference is {difference}, so the runs differ by more than it"
        cell.samples.clear()
    return cell


class CellClock:
    """Notes how many cores other programs had, for samples of experiments with their own client.

    LabBench.load() does so for all others. Such an experiment measures from one cell to the next, or all cells
    together and then yields them at once. These share the time until the first of them.
    """

    def __init__(self, watch: OtherProgramsWatch) -> None:
        self.watch = watch
        self.begin = watch.take_reading()
        self.foreign_cores: float | None = None  # in the last time that was long enough to know

    def note(self, cell: Cell) -> None:
        """Note the share since the last cell in the samples of a cell that have none."""
        new = [each for each in cell.samples if each.foreign_cores is None and not each.elsewhere]
        if not new:
            self.begin = self.watch.take_reading()
            return
        cores = self.watch.cores_since(self.begin)
        if cores is not None:
            self.foreign_cores, self.begin = cores, self.watch.take_reading()
        for sample in new:
            sample.foreign_cores = self.foreign_cores


def print_table(planned: PlannedTable, progress: Progress) -> None:
    """Print a table that has been filled, in place of the line with the current step."""
    progress.clear()
    print(report.text(planned.table, planned.experiment), end="\n\n", flush=True)
