"""LibCGI, table 2: how long a request is in the server, by the way in which its program is called."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ewe_lab.bench.experiment import Bench, Contender, Running
from ewe_lab.bench.processes import LabError, cpu_seconds, on_core, own_seconds, process, two_cores
from ewe_lab.bench.results import Cell, Sample, Table, Usage
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.libcgi_tables import CGI, FASTCGI, LIBCGI, SIZES, STATIC, TABLE_2, size_name
from ewe_lab.load import pinger
from ewe_lab.stacks import gateways
from ewe_lab.stacks.forms import body, forms_of
from ewe_lab.stacks.gateways import Program
from ewe_lab.stacks.variants import TIMES

CGI_PYTHON, ENGINE, APPLICATION = "CGI in Python", "X-Switch engine", "WSGI in process"
WAYS = {  # name: the gateway and the program, "" for the file
    CGI: (gateways.CGI, "bytes.cgi"),
    CGI_PYTHON: (gateways.CGI, "bytes.py"),
    FASTCGI: (gateways.FASTCGI, "bytes.cgi"),
    ENGINE: (gateways.XSWITCH, "bytes.py"),
    LIBCGI: (gateways.LIBCGI, "bytes.cgi"),
    APPLICATION: (gateways.WSGI, "bytes.py"),
    STATIC: ("", ""),
}
PRINTED = (CGI, FASTCGI, LIBCGI)
COUNT = (150, 1_000)  # requests of each size, quick and full
STARTS = (20, 200)  # where each starts an interpreter
WARM = 3  # requests before
SERVER, PROGRAM, REST = "time in ewe", "time in the program", "rest"
REMARKS = (
    "From the receipt of a request until its response has been handed to the kernel, by the server's clock (thread "
    "model, one client on a kept connection): the median.",
    "The same program in C as CGI, FastCGI (one process, kept connections) and LibCGI; in Python as CGI, in an "
    "engine of X-Switch and as WSGI. The Web server's row is a file of that size.",
    "Where the time goes, of 1 KB: CPU time of ewe's process, of all others (for LibCGI and WSGI: the program is "
    "in ewe's), and the rest of the time, in which nobody ran or other programs of this machine did.",
)


@dataclass(frozen=True)
class Handling:
    """The requests of one size. seconds: of each in the server. server, program: CPU seconds of all together."""

    seconds: list[float]
    server: float
    program: float


def run(lab: Bench) -> Iterator[Cell]:
    """Measure each way with each size."""
    programs = forms_of(lab, SIZES)
    for name, (gateway, file) in WAYS.items():
        program = Program(programs, file)
        if gateway and (lacking := gateways.missing(gateway, program)):
            lab.notes.append(f"{name} is left out: {lacking.partition(': ')[2]}")
            continue
        cells = {size: cell_of(name, size) for size in SIZES}
        parts = [Cell(name, part, None, "extra.micros", "µs") for part in (SERVER, PROGRAM, REST)]
        for _ in range(lab.repeats):
            try:
                found = measured(lab, name, gateway, programs, file)
            except LabError as reason:
                for cell in (*cells.values(), *parts):
                    cell.failure = str(reason)
                break
            for size, handling in found.items():
                cells[size].samples.append(sample(handling))
            figures = spent(found[SIZES[1]])
            for cell, figure in zip(parts, figures, strict=True):
                extra = {"micros": figure, "share": figure / sum(figures) * 100}
                cell.samples.append(Sample("pinger", 0.0, extra=extra))
        yield from cells.values()
        yield from parts
    lab.notes += REMARKS


def cell_of(name: str, size: int) -> Cell:
    """Return an empty cell with the figure that the paper prints."""
    cell = Cell(name, size_name(size), None, "extra.millis", "ms")
    cell.load = "one client on a kept connection"
    if name in PRINTED:
        cell.paper = TABLE_2[size_name(size)][name]
        cell.paper_server = name
    return cell


def measured(lab: Bench, name: str, gateway: str, programs: Path, file: str) -> dict[int, Handling]:
    """Start the server once and send requests of each size. Raises LabError."""
    times = programs / "times"
    found = {}
    contender = Contender(name, model="ewe_lab.stacks.variants:Timed", variables=((TIMES, str(times)),))
    with ExitStack() as stack:
        path = ""
        if gateway:
            contender, path = stack.enter_context(
                gateways.ready(lab, gateway, Program(programs, file), contender, keeps=True)
            )
        server = stack.enter_context(lab.start(contender, programs))
        for size in SIZES:
            times.write_text("")
            times.chmod(0o666)  # the server may have another account
            target = f"{path}?{size}" if gateway else f"/{size}.html"
            count = int(lab.seconds(*(STARTS if name == CGI_PYTHON else COUNT)))
            found[size] = handled(server, target, size, count, times)
    return found


def handled(server: Running, target: str, size: int, count: int, times: Path) -> Handling:
    """Send `count` requests after a few others. Raises LabError."""
    with pinger.http(server.url, target, body(size)) as ask, on_core(two_cores()[1]):
        pinger.ping(ask, WARM)
        own, whole = clock(server.pid), cpu_seconds(server.pid, *server.also)
        pinger.ping(ask, count)
        own, whole = clock(server.pid) - own, cpu_seconds(server.pid, *server.also) - whole
    seconds = read_times(times, WARM + count)[WARM:]
    return Handling(seconds, own, max(0.0, whole - own))


def clock(pid: int) -> float:
    """Return the CPU seconds of the server's own process. Raises LabError."""
    found = process(pid)
    if found is None:
        raise LabError("the server has ended")
    return own_seconds(found)


def read_times(file: Path, count: int) -> list[float]:
    """Return the seconds of each request; the server writes them when the connection ends. Raises LabError."""
    for _ in range(200):
        lines = file.read_text().splitlines()
        if len(lines) >= count:
            return [float(line) for line in lines[:count]]
        time.sleep(0.02)
    raise LabError(f"the server noted {len(lines)} of {count} requests")


def sample(of: Handling) -> Sample:
    """Return the sample of a size."""
    millis = statistics.median(of.seconds) * 1e3
    count = len(of.seconds)
    usage = Usage(of.server + of.program)
    return Sample("pinger", 0.0, count, count, 1, extra={"millis": millis}, usage=usage)


def spent(of: Handling) -> tuple[float, float, float]:
    """Return the µs of a request that ewe, the program and nobody of the two had the CPU."""
    count = len(of.seconds)
    server, program = of.server / count * 1e6, of.program / count * 1e6
    return server, program, max(0.0, statistics.median(of.seconds) * 1e6 - server - program)


def check(table: Table) -> Finding:
    """The claim has two parts: LibCGI is before FastCGI, and that before CGI, at each size; and the gap closes."""
    figures = {(cell.server, cell.column): cell.median for cell in table.cells}
    told, orders, gains = [], [], []
    for size in SIZES:
        cgi, fastcgi, library = (figures.get((name, size_name(size))) for name in PRINTED)
        if not cgi or not fastcgi or not library:
            continue
        orders.append(library < fastcgi < cgi)
        gains.append(cgi / library)
        told.append(f"{size_name(size)} {cgi / library:.1f} and {fastcgi / library:.1f}")
    if not told:
        return Finding(NOT_TESTABLE, "CGI, FastCGI and LibCGI were not all measured.")
    kept = (all(orders), gains[-1] < gains[0])
    word = HOLDS if all(kept) else IN_PART if any(kept) else FAILS
    return Finding(word, f"LibCGI is faster than CGI and FastCGI by a factor of: {'; '.join(told)}.")
