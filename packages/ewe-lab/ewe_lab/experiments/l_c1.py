"""LibCGI, section 5: what the first call of a library costs more than the others."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ewe_lab.bench.experiment import Bench, Contender, Running
from ewe_lab.bench.processes import LabError, on_core, one_line, two_cores
from ewe_lab.bench.results import Cell, Sample, Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, NOT_TESTABLE, Finding
from ewe_lab.experiments.libcgi_tables import LIBCGI, SIZES, TABLE_2, size_name
from ewe_lab.experiments.papers import printed
from ewe_lab.load import pinger
from ewe_lab.load.child import environment
from ewe_lab.stacks import gateways
from ewe_lab.stacks.forms import PROGRAM, body, forms_of
from ewe_lab.stacks.gateways import Program

LOADING, LATER, FIRST = "loading", "later", "first"
PRINTED = {
    LOADING: printed("L-C1")[LOADING],
    LATER: TABLE_2[size_name(SIZES[0])][LIBCGI] * 1000,
}  # µs; the second of table 2
LIBRARIES = (20, 100)  # equal libraries, each loaded once
ENGINES = (3, 10)  # engines of X-Switch, each started once
CALLS = 10  # later calls of each
ENGINE, IMPORT = "X-Switch engine", "import of a WSGI module"
Measure = Callable[[], tuple[list[float], list[float]]]  # µs of first calls, and of later ones
SLOW = 3.0  # times a call: a loading that is more than that is not small
IMPORTING = """\
import sys, time
sys.path.insert(0, sys.argv[1])
began = time.perf_counter()
import bytes_wsgi
print((time.perf_counter() - began) * 1e6)
"""
REMARKS = (
    "Each call has a new connection. Loading is the first call less a later one: finding the file, dlopen and "
    "initfunc; for X-Switch the start of an engine.",
    "ewe imports a WSGI module when it starts, so that no request pays for it.",
)


def run(lab: Bench) -> Iterator[Cell]:
    """Measure the first and the later calls of libraries and of engines, and an import."""
    programs = forms_of(lab, SIZES[:1])
    if lacking := gateways.missing(gateways.LIBCGI, Program(programs, PROGRAM)):
        lab.notes.append(f"LibCGI is left out: {lacking.partition(': ')[2]}")
    else:
        yield from cells(lab, LIBCGI, lambda: libraries(lab, programs))
    yield from cells(lab, ENGINE, lambda: engines(lab, programs))
    cell = Cell(LOADING, IMPORT, None, "extra.micros", "µs")
    cell.samples = [of_micros([imported(programs) for _ in range(int(lab.seconds(*ENGINES)))])]
    yield cell
    lab.notes += REMARKS


def cells(lab: Bench, column: str, measure: Measure) -> Iterator[Cell]:
    """Return the cells of a column."""
    found = {name: Cell(name, column, None, "extra.micros", "µs") for name in (FIRST, LATER, LOADING)}
    try:
        for _ in range(lab.repeats):
            first, later = measure()
            found[FIRST].samples.append(of_micros(first))
            found[LATER].samples.append(of_micros(later))
            found[LOADING].samples.append(of_micros([statistics.median(first) - statistics.median(later)]))
    except LabError as reason:
        for cell in found.values():
            cell.failure = str(reason)
    if column == LIBCGI:
        for name, micros in PRINTED.items():
            found[name].paper, found[name].paper_server = micros, name
    yield from found.values()


def of_micros(micros: list[float]) -> Sample:
    """Return a sample of times."""
    return Sample("pinger", 0.0, len(micros), len(micros), extra={"micros": statistics.median(micros)})


def libraries(lab: Bench, programs: Path) -> tuple[list[float], list[float]]:
    """Return the µs of the first call of many equal libraries, and of later calls."""
    where = lab.directory / "libraries"
    where.mkdir(exist_ok=True)
    names = [f"bytes{number}.so" for number in range(int(lab.seconds(*LIBRARIES)))]
    for name in names:
        shutil.copy(programs / "bytes.so", where / name)
    contender = gateways.in_place(where / names[0], Contender(LIBCGI, model="thread"))
    with lab.start(contender, programs) as server, on_core(two_cores()[1]):
        called(server, "/28.html")
        first = [called(server, f"/libcgi-bin/{name}") for name in names]
        later = [called(server, f"/libcgi-bin/{name}") for name in names for _ in range(CALLS)]
    return first, later


def engines(lab: Bench, programs: Path) -> tuple[list[float], list[float]]:
    """Return the µs of the first call of some engines, each of a new X-Switch, and of later calls."""
    first, later = [], []
    program = Program(programs, "bytes.py")
    for _ in range(int(lab.seconds(*ENGINES))):
        contender = Contender(ENGINE, model="thread")
        with (
            gateways.ready(lab, gateways.XSWITCH, program, contender) as (found, path),
            lab.start(found, programs) as server,
            on_core(two_cores()[1]),
        ):
            called(server, "/28.html")
            first.append(called(server, path))
            later += [called(server, path) for _ in range(CALLS)]
    return first, later


def called(server: Running, path: str) -> float:
    """Return the µs of one call over a new connection. Raises LabError."""
    with pinger.http(server.url, path, body(28)) as ask:
        began = time.perf_counter()
        ask()
        return (time.perf_counter() - began) * 1e6


def imported(programs: Path) -> float:
    """Return the µs of an import in a new interpreter. Raises LabError."""
    command = [sys.executable, "-S", "-c", IMPORTING, str(programs)]
    with on_core(two_cores()[0]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment())
    try:
        return float(done.stdout)
    except ValueError:
        raise LabError(one_line(done.stderr)) from None


def check(table: Table) -> Finding:
    """The claim holds if loading a library is small beside what it saves: at most a few calls."""
    found = {cell.server: cell.median for cell in table.cells if cell.column == LIBCGI}
    loading, later = found.get(LOADING), found.get(LATER)
    if loading is None or not later:
        return Finding(NOT_TESTABLE, "No library was loaded.")
    told = f"Loading takes {loading:,.0f} µs, {loading / later:.1f} times a later call ({later:,.0f} µs)"
    return Finding(HOLDS if loading < SLOW * later else FAILS, f"{told}; printed: 0.3 times.")
