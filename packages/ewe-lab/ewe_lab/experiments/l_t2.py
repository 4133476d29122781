"""LibCGI, table 2: the time of a request in the server, for each way to call its program.

One client sends one request after another, to a program that answers with as many bytes as the query says
(forms.py). The server notes each time itself (variants.Timed), so neither the client nor the network is in it:

    client ──request──▶ ewe: received ─▶ CGI, FastCGI, LibCGI, ... ─▶ the program ─▶ sent to the kernel ──▶ client
                             └───────────────── the handling time of the paper ──────────────────┘

For the answer of 1 KB the time is divided into three parts: the CPU time of ewe's process, that of all other
processes, and the rest, in which the kernel started a program, or a process waited.

Possible failures: the CPU time of one request is too short for the kernel's clock. The parts are therefore means
over all requests of a size, while the handling time is a median.

Read next: ../stacks/gateways.py, which starts each way.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ewe_lab.bench.experiment import Bench, RunningServer, ServerUnderTest
from ewe_lab.bench.processes import LabError, cpu_seconds, load_core, on_core, own_cpu_seconds, read_process
from ewe_lab.bench.results import Cell, ExperimentTable, Sample, Usage
from ewe_lab.bench.verdicts import CLOSE_SHARE, NOT_TESTABLE, Finding, verdict_of_parts
from ewe_lab.experiments.libcgi_tables import CGI, FASTCGI, LIBCGI, SIZES, STATIC, TABLE_2, size_name
from ewe_lab.load import pinger
from ewe_lab.stacks import gateways
from ewe_lab.stacks.forms import body, write_forms
from ewe_lab.stacks.gateways import CgiProgram
from ewe_lab.stacks.variants import TIMES_VARIABLE

CGI_PYTHON, ENGINE, APPLICATION = "CGI in Python", "X-Switch engine", "WSGI in process"


class GatewayToProgram(NamedTuple):
    """A gateway of ewe, and the file of the program that it runs. Both are "" for a file without a program."""

    gateway: str
    file: str


WAYS = {  # by the name of the row
    CGI: GatewayToProgram(gateways.CGI, "bytes.cgi"),
    CGI_PYTHON: GatewayToProgram(gateways.CGI, "bytes.py"),
    FASTCGI: GatewayToProgram(gateways.FASTCGI, "bytes.cgi"),
    ENGINE: GatewayToProgram(gateways.XSWITCH, "bytes.py"),
    LIBCGI: GatewayToProgram(gateways.LIBCGI, "bytes.cgi"),
    APPLICATION: GatewayToProgram(gateways.WSGI, "bytes.py"),
    STATIC: GatewayToProgram("", ""),
}
PRINTED = (CGI, FASTCGI, LIBCGI)
REQUEST_COUNTS = (150, 1_000)  # requests of each size, quick and full
START_COUNTS = (20, 200)  # the same if each request starts an interpreter
WARM_UP_REQUESTS = 3  # requests before the measurement
SERVER, PROGRAM, REST = "time in ewe", "time in the program", "rest"
# How often, and after which pauses, the file of times is read until the server has written it: 4 s in all
READ_TRIES, READ_PAUSE_S = 200, 0.02
REMARKS = (
    "The median time from the receipt of a request until its response has been handed to the kernel, by the "
    "server's clock (thread model, one client on a kept connection).",
    "The same program in C as CGI, FastCGI (one process, kept connections) and LibCGI; in Python as CGI, in an "
    "engine of X-Switch and as WSGI. The Web server's row is a file of that size.",
    "The parts of the time, for 1 KB: CPU time of ewe's process, CPU time of all other processes (for LibCGI and "
    "WSGI the program is in ewe's process), and the rest, in which neither ewe nor the program ran.",
)


@dataclass(frozen=True)
class Handling:
    """The requests of one size, as the server handled them. times_s: of each request in the server.

    server_cpu_s, program_cpu_s: of all requests together, in ewe's process and in all others.
    """

    times_s: list[float]
    server_cpu_s: float
    program_cpu_s: float


class HandlingParts(NamedTuple):
    """The µs of a request in which ewe ran, in which the program ran, and in which neither ran."""

    server_us: float
    program_us: float
    rest_us: float


def run(lab: Bench) -> Iterator[Cell]:
    """Measure each way with each size; yield the cells."""
    programs = write_forms(lab, SIZES)
    for name, way in WAYS.items():
        program = CgiProgram(programs, way.file)
        if way.gateway and (lacking := gateways.why_missing(way.gateway, program)):
            _, _, why = lacking.partition(": ")  # without the gateway's name
            lab.notes.append(f"{name} is left out: {why}")
            continue
        yield from measure_way(lab, name, way.gateway, program)
    lab.notes += REMARKS


def measure_way(lab: Bench, name: str, gateway: str, program: CgiProgram) -> list[Cell]:
    """Measure a way as often as the lab repeats; return its cells: one for each size, then the parts of 1 KB.

    name: of the row. gateway: "" for the files. program: its directory has all forms, and the files.
    """
    cells = {size: empty_cell(name, size) for size in SIZES}
    parts = [Cell(name, part, value="extra.micros", unit="µs") for part in (SERVER, PROGRAM, REST)]
    try:
        for _ in range(lab.repeats):
            found = measure_sizes(lab, name, gateway, program)
            for size, handling in found.items():
                cells[size].samples.append(sample(handling))
            figures = micros_by_part(found[SIZES[1]])  # 1 KB
            for cell, figure in zip(parts, figures, strict=True):
                extra = {"micros": figure, "share": figure / sum(figures) * 100}
                cell.samples.append(Sample("pinger", seconds=0.0, extra=extra))
    except LabError as reason:
        for cell in (*cells.values(), *parts):
            cell.failure = str(reason)
    return [*cells.values(), *parts]


def empty_cell(name: str, size: int) -> Cell:
    """Return an empty cell of a row, with the paper's figure if there is one. size: of the answer, in bytes."""
    # `extra.millis` is the figure that sample() gives
    cell = Cell(name, size_name(size), value="extra.millis", unit="ms")
    cell.load = "one client on a kept connection"
    if name in PRINTED:
        cell.paper = TABLE_2[size_name(size)][name]
        cell.paper_server = name
    return cell


def measure_sizes(lab: Bench, name: str, gateway: str, program: CgiProgram) -> dict[int, Handling]:
    """Start the server once and send requests of each size; return the handling by size. Raises LabError.

    name, gateway, program: as in measure_way().
    """
    programs = program.directory
    times = programs / "times"
    found = {}
    tested = ServerUnderTest(
        name, model="ewe_lab.stacks.variants:Timed", variables=((TIMES_VARIABLE, str(times)),)
    )
    with ExitStack() as exits:
        path = ""
        if gateway:
            tested, path = exits.enter_context(
                gateways.start_gateway(lab, gateway, program, tested, keeps=True)
            )
        server = exits.enter_context(lab.start(tested, programs))
        for size in SIZES:
            times.write_text("")
            times.chmod(0o666)  # the server may have another account
            target = f"{path}?{size}" if gateway else f"/{size}.html"
            count = int(lab.quick_or_full(*(START_COUNTS if name == CGI_PYTHON else REQUEST_COUNTS)))
            found[size] = handle_requests(server, target, size, count, times)
    return found


def handle_requests(server: RunningServer, target: str, size: int, count: int, times: Path) -> Handling:
    """Send `count` requests after a few others, which are not counted; return their times and CPU seconds.

    target: of the requests. size: of the answer, in bytes. times: the file into which the server writes the time of
    each request. Raises LabError.
    """
    with pinger.http(server.url, target, body(size)) as ask, on_core(load_core()):
        pinger.ping(ask, WARM_UP_REQUESTS)
        server_before, all_before = cpu_seconds_of(server.pid), cpu_seconds(server.pid, *server.other_pids)
        pinger.ping(ask, count)
        server_cpu_s = cpu_seconds_of(server.pid) - server_before
        all_cpu_s = cpu_seconds(server.pid, *server.other_pids) - all_before
    times_s = read_times(times, WARM_UP_REQUESTS + count)[WARM_UP_REQUESTS:]
    return Handling(times_s, server_cpu_s, max(0.0, all_cpu_s - server_cpu_s))


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU seconds of the server's own process. Raises LabError."""
    found = read_process(pid)
    if found is None:
        raise LabError("the server has ended")
    return own_cpu_seconds(found)


def read_times(file: Path, count: int) -> list[float]:
    """Return the seconds of each request; the server writes them when the connection ends. Raises LabError."""
    for _ in range(READ_TRIES):
        lines = file.read_text().splitlines()
        if len(lines) >= count:
            return [float(line) for line in lines[:count]]
        time.sleep(READ_PAUSE_S)
    raise LabError(f"the server noted {len(lines)} of {count} requests")


def sample(handling: Handling) -> Sample:
    """Return the sample of a size: the median time of a request in the server, in ms."""
    millis = statistics.median(handling.times_s) * 1e3
    count = len(handling.times_s)
    extra, usage = {"millis": millis}, Usage(cpu=handling.server_cpu_s + handling.program_cpu_s)
    return Sample(
        "pinger", seconds=0.0, requests=count, replies=count, connections=1, extra=extra, usage=usage
    )


def micros_by_part(handling: Handling) -> HandlingParts:
    """Divide the time of a request.

    The first two parts are means: the kernel gives the CPU time of all requests together. The rest is the median
    time of a request without these means.
    """
    count = len(handling.times_s)
    server_us, program_us = handling.server_cpu_s / count * 1e6, handling.program_cpu_s / count * 1e6
    # A few slow requests can make the means greater than the median
    rest_us = max(0.0, statistics.median(handling.times_s) * 1e6 - server_us - program_us)
    return HandlingParts(server_us, program_us, rest_us)


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim has two parts: LibCGI is faster than FastCGI, and this than CGI; the gain shrinks with the size.
    """
    figures = {(cell.server, cell.column): cell.median for cell in table.cells}
    pieces, orders, gains = [], [], []
    for size in SIZES:
        cgi, fastcgi, library = (figures.get((name, size_name(size))) for name in PRINTED)
        if not cgi or not fastcgi or not library:
            continue
        margin = 1.0 if size == SIZES[0] else 1 + CLOSE_SHARE  # the times of large answers are nearly equal
        orders.append(library < fastcgi * margin and fastcgi < cgi * margin)
        gains.append(cgi / library)
        pieces.append(f"{size_name(size)} {cgi / library:.1f} and {fastcgi / library:.1f}")
    if not pieces:
        return Finding(NOT_TESTABLE, "CGI, FastCGI and LibCGI were not all measured.")
    part_holds = [all(orders)]
    if len(gains) > 1:  # one size shows no change
        part_holds.append(gains[-1] < gains[0])  # at the greatest size, and at the least
    verdict = verdict_of_parts(part_holds)
    return Finding(verdict, f"LibCGI is faster than CGI and FastCGI by a factor of: {'; '.join(pieces)}.")
