"""LibCGI, section 5: the extra time of the first call of a library.

The first call of a library pays for its loading (dlopen() and initfunc()), and later calls do not. Loading itself
cannot be observed from outside, so it is a difference:

    time of the first call - time of a later call = loading

Each library can be loaded once, so there are many equal copies of it. The same is measured for engines of X-Switch,
whose first call starts a process, and for the import of a Python module, which ewe does at its start.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from ewe_lab.bench.experiment import Bench, RunningServer, ServerUnderTest
from ewe_lab.bench.processes import LabError, last_line, load_core, on_core, server_core
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.bench.verdicts import FAILS, HOLDS, NOT_TESTABLE, Finding
from ewe_lab.experiments.libcgi_tables import LIBCGI, SIZES, TABLE_2, size_name
from ewe_lab.experiments.papers import printed
from ewe_lab.load import pinger
from ewe_lab.load.child import environment
from ewe_lab.stacks import gateways
from ewe_lab.stacks.forms import PROGRAM, body, write_forms
from ewe_lab.stacks.gateways import CgiProgram

LOADING, LATER, FIRST = "loading", "later", "first"
# The second figure of table 2, in µs
PRINTED = {LOADING: printed("L-C1")[LOADING], LATER: TABLE_2[size_name(SIZES[0])][LIBCGI] * 1000}
LIBRARY_COUNTS = (20, 100)  # equal libraries, each loaded once: quick and full
ENGINE_COUNTS = (3, 10)  # engines of X-Switch, each started once: quick and full
LATER_CALLS = 10  # later calls of each
ENGINE, IMPORT = "X-Switch engine", "import of a WSGI module"


class CallTimesUs(NamedTuple):
    """The µs of the first calls of some libraries or engines, and of later calls."""

    first: list[float]
    later: list[float]


Measure = Callable[[], CallTimesUs]
MAX_LOADING_RATIO = 3.0  # loading costs little if it takes less than this many later calls
IMPORT_TIMEOUT_S = 30  # seconds that the import and the start of its interpreter may take
IMPORT_PROGRAM = """\
import sys, time
sys.path.insert(0, sys.argv[1])
began = time.perf_counter()
import bytes_wsgi
print((time.perf_counter() - began) * 1e6)
"""
REMARKS = (
    "Each call has a new connection. Loading is the time of the first call minus that of a later one: it covers "
    "the search for the file, dlopen and initfunc, and for X-Switch the start of an engine.",
    "ewe imports a WSGI module when it starts, so that no request pays for it.",
)


def run(lab: Bench) -> Iterator[Cell]:
    """Measure the first and the later calls of libraries and of engines, and an import; yield the cells."""
    programs = write_forms(lab, SIZES[:1])
    if lacking := gateways.why_missing(gateways.LIBCGI, CgiProgram(programs, PROGRAM)):
        _, _, reason = lacking.partition(": ")  # without the gateway's name
        lab.notes.append(f"LibCGI is left out: {reason}")
    else:
        yield from measure_column(lab, LIBCGI, lambda: time_libraries(lab, programs))
    yield from measure_column(lab, ENGINE, lambda: time_engines(lab, programs))
    cell = Cell(LOADING, IMPORT, value="extra.micros", unit="µs")
    cell.samples = [sample_of([time_import(programs) for _ in range(int(lab.quick_or_full(*ENGINE_COUNTS)))])]
    yield cell
    lab.notes += REMARKS


ANSWER_BYTES = 28  # of every program and of the file
WARM_UP_PATH = f"/{ANSWER_BYTES}.html"  # a file: the server's first request also costs its own start


def measure_column(lab: Bench, column: str, measure: Measure) -> Iterator[Cell]:
    """Measure a column: the first calls, the later calls, and their difference; yield the three cells.

    measure: makes the calls, and returns their times. A LabError that it raises becomes the cells' failure.
    """
    cells_by_name = {
        name: Cell(name, column, value="extra.micros", unit="µs") for name in (FIRST, LATER, LOADING)
    }
    try:
        for _ in range(lab.repeats):
            times_us = measure()
            loading_us = statistics.median(times_us.first) - statistics.median(times_us.later)
            cells_by_name[FIRST].samples.append(sample_of(times_us.first))
            cells_by_name[LATER].samples.append(sample_of(times_us.later))
            cells_by_name[LOADING].samples.append(sample_of([loading_us]))
    except LabError as reason:
        for cell in cells_by_name.values():
            cell.failure = str(reason)
    if column == LIBCGI:
        for name, micros in PRINTED.items():
            # A column's rows are compared with each other, so the row's name is the server's, in the paper too
            cells_by_name[name].paper, cells_by_name[name].paper_server = micros, name
    yield from cells_by_name.values()


def sample_of(micros: list[float]) -> Sample:
    """Return the sample of some calls, with the median of their µs."""
    extra = {"micros": statistics.median(micros)}
    return Sample("pinger", seconds=0.0, requests=len(micros), replies=len(micros), extra=extra)


def time_libraries(lab: Bench, programs: Path) -> CallTimesUs:
    """Call many equal libraries, each first once and later LATER_CALLS times; return the times. Raises LabError.

    programs: the directory of the forms of the program (forms.py), one of which is the library.
    """
    directory = lab.directory / "libraries"
    directory.mkdir(exist_ok=True)
    names = [f"bytes{number}.so" for number in range(int(lab.quick_or_full(*LIBRARY_COUNTS)))]
    for name in names:
        shutil.copy(programs / "bytes.so", directory / name)
    # The name of one library is enough: the server calls all of its directory
    tested = gateways.in_process(directory / names[0], ServerUnderTest(LIBCGI, model="thread"))
    with lab.start(tested, programs) as server, on_core(load_core()):
        time_call(server, WARM_UP_PATH)
        first = [time_call(server, f"/libcgi-bin/{name}") for name in names]
        later = [time_call(server, f"/libcgi-bin/{name}") for name in names for _ in range(LATER_CALLS)]
    return CallTimesUs(first, later)


def time_engines(lab: Bench, programs: Path) -> CallTimesUs:
    """Call some engines, each of a new X-Switch, first once and later LATER_CALLS times; return the times.

    programs: as in time_libraries(). Raises LabError.
    """
    first, later = [], []
    program = CgiProgram(programs, "bytes.py")
    for _ in range(int(lab.quick_or_full(*ENGINE_COUNTS))):
        tested = ServerUnderTest(ENGINE, model="thread")
        with (
            gateways.start_gateway(lab, gateways.XSWITCH, program, tested) as (adapted, path),
            lab.start(adapted, programs) as server,
            on_core(load_core()),
        ):
            time_call(server, WARM_UP_PATH)
            first.append(time_call(server, path))
            later += [time_call(server, path) for _ in range(LATER_CALLS)]
    return CallTimesUs(first, later)


def time_call(server: RunningServer, path: str) -> float:
    """Return the µs of one call over a new connection, without the time of connecting. Raises LabError."""
    with pinger.http(server.url, path, body(ANSWER_BYTES)) as ask:  # connects
        began = time.perf_counter()
        ask()
        return (time.perf_counter() - began) * 1e6


def time_import(programs: Path) -> float:
    """Import the WSGI module bytes_wsgi, which is in `programs`, in a new interpreter; return the µs of the import.

    The start of the interpreter is not part of this time. Raises LabError if the import fails or does not end.
    """
    command = [sys.executable, "-S", "-c", IMPORT_PROGRAM, str(programs)]
    try:
        with on_core(server_core()):
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, env=environment()
            )
    except subprocess.TimeoutExpired:
        raise LabError(f"the import of a WSGI module did not end within {IMPORT_TIMEOUT_S} s") from None
    try:
        return float(done.stdout)
    # A failed import prints no number, but its error as the last line
    except ValueError:
        raise LabError(last_line(done.stderr)) from None


def check(table: ExperimentTable) -> Finding:
    """Return the finding: the claim holds if loading a library takes less than three later calls."""
    medians = {cell.server: cell.median for cell in table.cells if cell.column == LIBCGI}
    loading, later = medians.get(LOADING), medians.get(LATER)
    if loading is None or not later:
        return Finding(NOT_TESTABLE, "No library was loaded.")
    summary = f"Loading takes {loading:,.0f} µs, {loading / later:.1f} times a later call ({later:,.0f} µs)"
    bound = f"less than {MAX_LOADING_RATIO:g} times counts as little"
    return Finding(
        HOLDS if loading < MAX_LOADING_RATIO * later else FAILS, f"{summary}; printed: 0.3 times; {bound}."
    )
