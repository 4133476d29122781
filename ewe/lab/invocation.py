"""One invocation of the lab: its parts are carried out, what comes of them is shown and written.

Whatever happens (an interrupt, an experiment that cannot go on) what there is until then is kept: results.json
is written after every part, the report at the end.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ewe.lab import report
from ewe.lab.bench import LabBench
from ewe.lab.experiment import Experiment
from ewe.lab.interrupts import INTERRUPTED, heed_interrupts, ignore_interrupts
from ewe.lab.machine import machine
from ewe.lab.processes import LabError, end_children, tree
from ewe.lab.progress import Progress
from ewe.lab.results import Cell, Results, Table, save

DESCRIPTORS = 20_000
MUCH = 0.25  # of the server's core, for programs that are not the server (the kernel's own work counts too)


@dataclass(frozen=True)
class Part:
    """A table to be filled. run: yields its cells, None: it cannot be run; seconds: that it should take."""

    table: Table
    run: Callable[[LabBench], Iterator[Cell]] | None
    seconds: float
    experiment: Experiment | None = None


def now() -> datetime:
    """Return the time, with the zone."""
    return datetime.now().astimezone()


def new_directory(wanted: Path | None) -> Path:
    """Make the directory for what is written. Raises LabError."""
    directory = wanted or Path(f"ewe-lab-{now():%Y-%m-%d-%H%M%S}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise LabError(f"nothing can be written to {directory}: {reason.strerror} (--out)") from None
    if not os.access(directory, os.W_OK):
        raise LabError(f"nothing can be written to {directory} (--out)")
    return directory


def carry_out(
    parts: Sequence[Part], directory: Path, *, command: str, quick: bool, repeats: int, used: Sequence[str]
) -> int:
    """Carry out all parts, write results.json and the report, show the tables; return the exit status."""
    results = Results(now().isoformat(timespec="seconds"), command, machine(used))
    progress = Progress(sum(part.seconds for part in parts))
    before = {each.pid for each in tree(os.getpid())}
    status = 0
    more_descriptors()
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
        progress.note("interrupted: this is what there is until then")
    finally:
        ignore_interrupts()
        end_children(but=before)
    if status == INTERRUPTED and results.tables:
        show(parts[len(results.tables) - 1], progress)
    for path in report.write(results, directory):
        progress.note(f"written: {path}")
    return status


def more_descriptors() -> None:
    """Raise the limit of descriptors, which servers and loads inherit, as far as we may and they could need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def carry_out_part(part: Part, lab: LabBench, progress: Progress) -> int:
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
    except (LabError, OSError) as reason:  # no more processes, no more room, ...
        table.notes.append(f"It could not go on: {reason}.")
        return 1
    finally:
        progress.end()
        table.notes += others(table)
        table.seconds = time.monotonic() - began
    return 1 if any(cell.failure for cell in table.cells) or not table.cells else 0


def others(table: Table) -> list[str]:
    """Say, a sentence for each core, that it had other work too."""
    samples = [sample for cell in table.cells for sample in cell.samples if sample.seconds]
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


def show(part: Part, progress: Progress) -> None:
    """Print a table."""
    progress.clear()
    print(report.text(part.table, part.experiment), end="\n\n", flush=True)
