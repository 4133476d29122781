"""LibCGI, table 1: the cost of starting a CGI program, step by step.

To start a program takes several steps: fork() copies the tables of the parent's memory, exec() loads the program,
and the interpreter of a script starts. Which one costs most, and does the size of the parent matter?

    parent of 10 MB, and of 500 MB ── fork ──▶ child ── exec ──▶ program ── its first statement ──▶ its answer

../load/steps.py takes the times, in a process whose size this experiment chooses: the lab's own process would be a
parent of another size.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.bench.verdicts import FAILS, HOLDS, NOT_TESTABLE, Finding
from ewe_lab.experiments.child_process import figures_of
from ewe_lab.experiments.papers import printed
from ewe_lab.load.steps import EXEC, FORK, STEPS, TOTAL
from ewe_lab.stacks import compiled

PRINTED = printed("L-T1")  # µs
PARENT_MB = (10, 500)  # MB
START_COUNTS = {"C": (100, 500), "Python": (30, 500)}  # starts of each program, quick and full
MAX_MEASUREMENT_S = 300.0  # the longest that one measurement may take
PYTHON_STAMP = """\
from time import monotonic_ns
began = monotonic_ns()
import os
os.write(1, began.to_bytes(8, "little") + monotonic_ns().to_bytes(8, "little"))
"""
REMARKS = (
    "The program in C does nothing before its answer. The exec of the program in Python includes the start of the "
    "interpreter: it ends with the script's first statement.",
    "Parent and program share one core, as on the machine of the paper. Total is measured separately, and "
    "is not the sum of the steps: the child may run before fork returns to the parent.",
    "ewe starts programs with vfork or posix_spawn, never with fork, so the size of the server does not matter.",
)


def column_of(language: str, megabytes: int) -> str:
    """Return the name of the column of a program's language and the size of its parent."""
    return f"{language}, parent of {megabytes} MB"


PRINTED_COLUMN = column_of("C", PARENT_MB[0])  # the column whose figures the document prints


def run(lab: Bench) -> Iterator[Cell]:
    """Measure the steps for a program in C and one in Python, with a small and a large parent; yield cells."""
    script = lab.directory / "stamp.py"
    script.write_text(PYTHON_STAMP)
    commands = {"Python": [sys.executable, "-S", "-E", str(script)]}
    try:
        commands = {"C": [str(compiled.build_source(lab, "stamp"))], **commands}
    except LabError as reason:
        lab.notes.append(f"The program in C is left out: {reason}")
    for language, command in commands.items():
        for megabytes in PARENT_MB:
            yield from measure_column(lab, language, megabytes, command)
    lab.notes += REMARKS


def measure_column(lab: Bench, language: str, megabytes: int, command: Sequence[str]) -> Iterator[Cell]:
    """Measure one column; yield a cell for each step. Each repeat gives a sample: the medians of all its starts.

    language: of the program, `C` or `Python`. megabytes: the size of the parent. command: starts the program.
    """
    column = column_of(language, megabytes)
    found = [Cell(step, column, value="extra.micros", unit="µs") for step in STEPS]
    if column == PRINTED_COLUMN:
        for cell in found:
            cell.paper = PRINTED.get(cell.server)
            cell.paper_server = {FORK: "Fork", EXEC: "Exec", TOTAL: "Total"}.get(cell.server, cell.server)
            if cell.paper is None:  # the paper does not have this step
                cell.paper_server = ""
    count = int(lab.quick_or_full(*START_COUNTS[language]))
    try:
        for _ in range(lab.repeats):
            steps = measure_starts(megabytes, count, command)
            for cell in found:
                cell.samples.append(sample(steps[cell.server]))
    except LabError as reason:
        for cell in found:
            cell.failure = str(reason)
    name = "stamp" if language == "C" else "python3 -S stamp.py"
    for cell in found:
        cell.command = name
        cell.load = f"{count} starts"
        yield cell


def measure_starts(megabytes: int, count: int, command: Sequence[str]) -> dict[str, list[float]]:
    """Let another process start a program `count` times; return the µs of each start, by step.

    megabytes: the size of that process, which is the parent. command: starts the program. Raises LabError.
    """
    name = Path(command[0]).name
    steps: dict[str, list[float]] = figures_of(
        "ewe_lab.load.steps", [str(megabytes), str(count), *command], MAX_MEASUREMENT_S,
        f"{name} could not be started {count} times in {MAX_MEASUREMENT_S:g} s",
    )  # fmt: skip
    return steps


def sample(times_us: Sequence[float]) -> Sample:
    """Return the sample of a step: the median of its starts, and the 5th and 95th percentiles."""
    low, *_, high = statistics.quantiles(times_us, n=20)  # every fifth percentile, from the 5th to the 95th
    extra = {"micros": statistics.median(times_us), "p5": low, "p95": high}
    return Sample("starts", seconds=0.0, requests=len(times_us), replies=len(times_us), extra=extra)


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim holds if, for the small parent and the program in C, exec takes most of the total.
    """
    medians = {cell.server: cell.median for cell in table.cells if cell.column == PRINTED_COLUMN}
    total, exec_time = medians.get(TOTAL), medians.get(EXEC)
    if not total or not exec_time:
        return Finding(NOT_TESTABLE, "The program in C was not measured.")
    large = {cell.server: cell.median for cell in table.cells if cell.column == column_of("C", PARENT_MB[1])}
    summary = f"Starting a program in C takes {total:,.0f} µs, {exec_time / total:.0%} of it exec"
    if (fork := large.get(FORK)) and (before := medians.get(FORK)):
        summary += (
            f"; fork grows from {before:,.0f} to {fork:,.0f} µs with the parent, posix_spawn does not need to"
        )
    return Finding(HOLDS if exec_time > total / 2 else FAILS, f"{summary}.")
