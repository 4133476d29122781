"""LibCGI, table 1: what it costs to start a CGI program, step by step."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.processes import LabError, ended, one_line, running, text_of, two_cores
from ewe_lab.bench.results import Cell, Sample, Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, NOT_TESTABLE, Finding
from ewe_lab.experiments.papers import printed
from ewe_lab.load.child import environment
from ewe_lab.load.steps import EXEC, FORK, STEPS, TOTAL
from ewe_lab.stacks import compiled

PRINTED = printed("L-T1")  # µs
PARENTS = (10, 500)  # MB
COUNT = {"C": (100, 500), "Python": (30, 500)}  # starts of each program, quick and full
SECONDS = 300.0  # that one measurement may take
PYTHON_STAMP = """\
from time import monotonic_ns
began = monotonic_ns()
import os
os.write(1, began.to_bytes(8, "little") + monotonic_ns().to_bytes(8, "little"))
"""
REMARKS = (
    "The program in C does nothing before its answer. That in Python is an interpreter's start: its exec ends "
    "with the script's first statement.",
    "Parent and program have one core together, as on the machine of the paper. Total is measured by itself, and "
    "is not the sum of the steps: the child may run before fork returns to the parent.",
    "ewe starts programs with vfork or posix_spawn, never with fork: the size of the server then costs nothing.",
)


def column_of(language: str, megabytes: int) -> str:
    """Return the name of a column."""
    return f"{language}, parent of {megabytes} MB"


CHARTED = column_of("C", PARENTS[0])


def run(lab: Bench) -> Iterator[Cell]:
    """Measure the steps for a program in C and one in Python, with a small and a large parent."""
    script = lab.directory / "stamp.py"
    script.write_text(PYTHON_STAMP)
    commands = {"Python": [sys.executable, "-S", "-E", str(script)]}
    try:
        commands = {"C": [str(compiled.built(lab, "stamp"))], **commands}
    except LabError as reason:
        lab.notes.append(f"The program in C is left out: {reason}")
    for language, command in commands.items():
        for megabytes in PARENTS:
            yield from cells(lab, language, megabytes, command)
    lab.notes += REMARKS


def cells(lab: Bench, language: str, megabytes: int, command: Sequence[str]) -> Iterator[Cell]:
    """Measure one column: as often as the lab repeats, the median of all starts each time."""
    column = column_of(language, megabytes)
    found = [Cell(step, column, None, "extra.micros", "µs") for step in STEPS]
    if column == CHARTED:
        for cell in found:
            cell.paper = PRINTED.get(cell.server)
            cell.paper_server = {FORK: "Fork", EXEC: "Exec", TOTAL: "Total"}.get(cell.server, cell.server)
            if cell.paper is None:
                cell.paper_server = ""
    count = int(lab.seconds(*COUNT[language]))
    try:
        for _ in range(lab.repeats):
            steps = measured(megabytes, count, command)
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


def measured(megabytes: int, count: int, command: Sequence[str]) -> dict[str, list[float]]:
    """Return the µs of each step of each start, measured by another process. Raises LabError."""
    asked = [sys.executable, "-m", "ewe_lab.load.steps", str(megabytes), str(count), *command]
    with (
        tempfile.TemporaryFile() as said,
        tempfile.TemporaryFile() as output,
        running(asked, said, two_cores()[0], env=environment(), stdout=output) as started,
    ):
        if not ended(started, SECONDS):
            raise LabError(f"{Path(command[0]).name} could not be started {count} times in {SECONDS:g} s")
        output.seek(0)
        try:
            steps: dict[str, list[float]] = json.loads(output.read())
        except ValueError:
            raise LabError(one_line(text_of(said))) from None
    return steps


def sample(times: Sequence[float]) -> Sample:
    """Return the sample of a step: the median of its starts, and how nine in ten lie about it."""
    low, *_, high = statistics.quantiles(times, n=20)
    extra = {"micros": statistics.median(times), "p5": low, "p95": high}
    return Sample("starts", 0.0, len(times), len(times), extra=extra)


def check(table: Table) -> Finding:
    """The claim holds if, for the small parent and the program in C, exec takes most of the total."""
    found = {cell.server: cell.median for cell in table.cells if cell.column == CHARTED}
    whole, most = found.get(TOTAL), found.get(EXEC)
    if not whole or not most:
        return Finding(NOT_TESTABLE, "The program in C was not measured.")
    large = {cell.server: cell.median for cell in table.cells if cell.column == column_of("C", PARENTS[1])}
    told = f"Starting a program in C takes {whole:,.0f} µs, {most / whole:.0%} of it exec"
    if (fork := large.get(FORK)) and (before := found.get(FORK)):
        told += (
            f"; fork grows from {before:,.0f} to {fork:,.0f} µs with the parent, posix_spawn does not need to"
        )
    return Finding(HOLDS if most > whole / 2 else FAILS, f"{told}.")
