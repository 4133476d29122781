"""LibCGI, section 4.3: a library that shares the server's address space and cannot reach the interpreter's heap.

A library in the server's process can write to all of its memory. The paper asks for a boundary that is cheaper than
a process. Two such boundaries are compared with a process, and with no boundary at all:

    METHODS      in place, protection keys, mprotect, process: how long does a call take?
    DAMAGES      which damage does the boundary stop? Mistakes of a library first (MISTAKES), then the others

../load/protected_calls.py explains both, and measures them in a separate process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.bench.verdicts import NOT_TESTABLE, Finding, verdict_of_parts, with_capital
from ewe_lab.experiments.child_process import figures_of
from ewe_lab.load.protected_calls import (
    DAMAGES,
    ENDED,
    KEYS,
    METHODS,
    MPROTECT,
    PROCESS,
    STOPPED,
    UNPROTECTED,
)
from ewe_lab.stacks import compiled

CALL_COUNTS = {  # of a round, by method; quick and full
    UNPROTECTED: (1_000_000, 10_000_000),
    KEYS: (1_000_000, 10_000_000),
    MPROTECT: (100, 1_000),
    PROCESS: (5_000, 50_000),
}
MAX_RUN_S = 300.0  # seconds for all methods
MUCH_LESS_RATIO = 2  # how many times a process must cost, if a key costs much less
TIME, STOPS = "time of a call", "stopped by {}"
MISTAKES = list(DAMAGES)[:3]  # the damage of a mistake, which the boundary is there for
REMARKS = (
    "In place: a call through a pointer, as ewe calls a library, with a point to which a fault jumps back. The "
    "library writes 28 bytes. Protection keys, mprotect: the heap is closed before the call and opened after it. "
    "Process: the same call by another process on the same core, over a pair of sockets.",
    "1: the damage was stopped, and the server goes on. 0: it was not. The heap is that of the interpreter, "
    "pymalloc's arenas; the stack, and the memory of malloc(), which library and libc share, stay open.",
    "Not stopped by any boundary in one address space: exit(), an endless loop, a leak. L-F1 has those.",
    "mprotect closes the heap for all threads of the process, so no other thread may run Python meanwhile. A "
    "protection key closes it for the calling thread alone.",
)


def run(lab: Bench) -> Iterator[Cell]:
    """Measure each method, then let the library do each kind of damage under it; yield the cells."""
    try:
        found = measure(lab)
    except LabError as reason:
        yield Cell(KEYS, TIME, value="extra.nanos", unit="ns", failure=str(reason))
        return
    for method in METHODS:
        yield from cells_of(lab, method, found["methods"][method])
    size = f"{found['bytes'] / 1024:,.0f} KB in {found['pieces']} pieces"
    lab.notes += [f"Closed: {size}.", *REMARKS]


def measure(lab: Bench) -> dict[str, Any]:
    """Build the library, and return the figures of ewe_lab.load.protected_calls. Raises LabError."""
    library = lab.directory / "protection.so"
    compiled.build_library(compiled.SOURCES / "protection.c", library)
    counts = [str(int(lab.quick_or_full(*CALL_COUNTS[method]))) for method in METHODS]
    found: dict[str, Any] = figures_of(
        "ewe_lab.load.protected_calls", [str(library), *counts], MAX_RUN_S,
        f"the calls took longer than {MAX_RUN_S:g} s",
    )  # fmt: skip
    return found


def cells_of(lab: Bench, method: str, found: dict[str, Any] | str) -> Iterator[Cell]:
    """Yield the cells of a method: its time, then one for each kind of damage.

    found: its figures, or the reason why there are none.
    """
    load = f"{lab.quick_or_full(*CALL_COUNTS[method]):,.0f} calls a round"
    cell = Cell(method, TIME, value="extra.nanos", unit="ns", load=load)
    if isinstance(found, str):
        cell.failure = found
        yield cell
        return
    cell.samples = [Sample("calls", seconds=0.0, extra={"nanos": nanos}) for nanos in found["nanos"]]
    yield cell
    for deed, outcome in found["outcomes"].items():
        sample = Sample("calls", seconds=0.0, extra={"stopped": float(outcome == STOPPED)})
        cell = Cell(deed, STOPS.format(method), value="extra.stopped", unit="of 1", samples=[sample])
        cell.remark = outcome if outcome == ENDED else ""
        yield cell


def why_not_measured(table: ExperimentTable) -> str:
    """Return the reason why protection keys (KEYS) have no figure, as the beginning of a sentence."""
    failures = [cell.failure for cell in table.cells if cell.server == KEYS and cell.failure]
    return with_capital(failures[0] if failures else "nothing was measured")


def check(table: ExperimentTable) -> Finding:
    """Return the finding: the claim holds if keys stop the damage of mistakes, for half of a process's time.

    Damage that a library does on purpose is named, and is no part of the claim: the paper trusts the
    authors of libraries.
    """
    times = {cell.server: cell.median for cell in table.cells if cell.column == TIME and cell.median}
    summary = ", ".join(f"{method} {nanos:,.0f} ns" for method, nanos in times.items())
    stopped = {
        cell.server: cell.median == 1
        for cell in table.cells
        if cell.column == STOPS.format(KEYS) and cell.samples
    }
    if KEYS not in times or PROCESS not in times or not stopped:
        return Finding(NOT_TESTABLE, f"{why_not_measured(table)}. A call takes: {summary or 'unknown'}.")
    part_holds = [stopped.get(deed, False) for deed in MISTAKES]
    part_holds.append(times[KEYS] * MUCH_LESS_RATIO <= times[PROCESS])  # the last part: the cost
    passed = ", ".join(f"“{deed}”" for deed, held in stopped.items() if not held) or "nothing"
    return Finding(
        verdict_of_parts(part_holds),
        f"Keys stop {sum(stopped.values())} of {len(stopped)} kinds of damage, {sum(part_holds[:-1])} of "
        f"{len(MISTAKES)} that a mistake does. Not stopped: {passed}. A call takes: {summary}.",
    )
