"""RDBMS, table 1: kinds of gateways, judged. The row `performance` is measured; the others are prose."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ewe_lab.bench.experiment import Bench, Contender, Running
from ewe_lab.bench.processes import LabError, cpu_seconds, on_core, two_cores
from ewe_lab.bench.results import Cell, Sample, Table, Usage
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.papers import printed
from ewe_lab.load import pinger
from ewe_lab.stacks import gateways, ways
from ewe_lab.stacks.applications import HELLO
from ewe_lab.stacks.forms import PROGRAM, body, forms_of
from ewe_lab.stacks.gateways import Program

COLUMN, TIMES = "marks", "time of a call"
MARKS = {1: "-", 2: "+", 3: "++"}
PRINTED = printed("R-T1")  # marks, 1 to 3
CGI, API, SERVLET, FASTCGI = "CGI", "server API", "servlet", "FastCGI"
SIZE = 28  # bytes of the answer


@dataclass(frozen=True)
class Kind:
    """A kind of gateway. gateway: of ewe, and the program; "" for the servlet. paper: its name there."""

    gateway: str
    program: str
    paper: str


KINDS = {
    CGI: Kind(gateways.CGI, PROGRAM, "CGI"),
    API: Kind(gateways.LIBCGI, PROGRAM, "ISAPI, NSAPI"),
    SERVLET: Kind("", "", "Servlet API"),
    FASTCGI: Kind(gateways.FASTCGI, PROGRAM, "FastCGI"),
}
ROUNDS = (2, 6)  # quick and full; the kinds take turns
CALLS = (60, 300)
WARM = {SERVLET: 1000}  # calls before: a JVM compiles what is called often
GOOD, MEDIUM = 10, 2  # times faster than CGI: ++ and +
REMARKS = (
    f"++ is {GOOD} times as fast as CGI or more, + is {MEDIUM} times as fast. All answer a few bytes, on a kept "
    "connection; in C but for the servlet, which X-Switch's JVM runs. LibCGI is ewe's server API. WAI, an object "
    "of CORBA, has no counterpart.",
    "Language independence: any language for CGI and FastCGI, C and what links like it for LibCGI (- there, too), "
    "Java and its kin for servlets. Python has WSGI and ASGI in ewe's process.",
    "Portability: CGI and FastCGI run behind every server; WSGI has brought it to Python. LibCGI is ewe's alone.",
    "Popularity has turned: CGI (++ there) is rare, FastCGI and its kin (+ there) run PHP and much of Python.",
    "Low level server programming: a library or a servlet reaches the server's memory, a CGI program does not.",
)


def run(lab: Bench) -> Iterator[Cell]:
    """Measure the kinds that can run here, in turns."""
    found = {kind: cells_of(kind) for kind in KINDS}
    with ExitStack() as stack:
        servers: dict[str, tuple[Running, str, bytes]] = {}
        for kind in KINDS:
            try:
                if lacking := missing(lab, kind):
                    lab.notes.append(f"{kind} is left out: {lacking}")
                else:
                    servers[kind] = stack.enter_context(served(lab, kind))
            except LabError as reason:
                for cell in found[kind]:
                    cell.failure = str(reason)
        for turn in range(int(lab.seconds(*ROUNDS))):
            for kind in servers if turn % 2 == 0 else reversed(servers):
                try:
                    sample = called(lab, kind, *servers[kind])
                except LabError as reason:
                    found[kind][1].failure = str(reason)
                else:
                    found[kind][1].samples.append(sample)
    judge(found)
    for kind in KINDS:
        yield from (cell for cell in found[kind] if cell.samples or cell.failure)
    lab.notes += REMARKS


def cells_of(kind: str) -> tuple[Cell, Cell]:
    """Return a kind's cells: its marks, and its time."""
    of = KINDS[kind]
    marks = Cell(kind, COLUMN, None, "extra.marks", "of 3", paper=PRINTED[of.paper], paper_server=of.paper)
    marks.paper_note = MARKS[PRINTED[of.paper]]
    return marks, Cell(kind, TIMES, None, "extra.micros", "µs", load="one client on a kept connection")


def missing(lab: Bench, kind: str) -> str:
    """Return why a kind cannot run here, "" if it can."""
    if kind == SERVLET:
        return ways.technology("xswitch java").missing.partition(": ")[2]
    of = KINDS[kind]
    return gateways.missing(of.gateway, Program(forms_of(lab), of.program)).partition(": ")[2]


@contextmanager
def served(lab: Bench, kind: str) -> Iterator[tuple[Running, str, bytes]]:
    """Run a kind; yield the server, the path and the body of an answer."""
    if kind == SERVLET:
        with ways.served(lab, ways.technology("xswitch java")) as (server, path):
            yield server, path, HELLO.encode()
        return
    of = KINDS[kind]
    programs = forms_of(lab)
    contender = Contender(kind, model="thread")
    with (
        gateways.ready(lab, of.gateway, Program(programs, of.program), contender, keeps=True) as (
            found,
            path,
        ),
        lab.start(found, programs) as server,
    ):
        yield server, path, body(SIZE)


def called(lab: Bench, kind: str, server: Running, path: str, answer: bytes) -> Sample:
    """Call a gateway again and again; return the sample. Raises LabError."""
    took, count = [], int(lab.seconds(*CALLS))
    with pinger.http(server.url, path, answer) as ask, on_core(two_cores()[1]):
        pinger.ping(ask, WARM.get(kind, 3))
        before = cpu_seconds(server.pid, *server.also)
        for _ in range(count):
            began = time.perf_counter()
            ask()
            took.append((time.perf_counter() - began) * 1e6)
        usage = Usage(cpu_seconds(server.pid, *server.also) - before)
    extra = {"micros": statistics.median(took)}
    return Sample("pinger", sum(took) / 1e6, count, count, 1, usage=usage, extra=extra)


def judge(found: dict[str, tuple[Cell, Cell]]) -> None:
    """Give each kind its marks, from its time over CGI's."""
    slowest = found[CGI][1].median
    for marks, timed in found.values():
        if slowest and timed.median:
            faster = slowest / timed.median
            given = 3 if faster >= GOOD else 2 if faster >= MEDIUM else 1
            marks.samples.append(Sample("pinger", 0.0, extra={"marks": given, "faster": faster}))


def check(table: Table) -> Finding:
    """The claim holds if a server API is before FastCGI and servlets, and these are before CGI."""
    found = {cell.server: cell.median for cell in table.cells if cell.column == TIMES and cell.median}
    between = [found[kind] for kind in (FASTCGI, SERVLET) if kind in found]
    if CGI not in found or API not in found or not between:
        return Finding(NOT_TESTABLE, "CGI, a server API and a persistent gateway were not all measured.")
    kept = (max(between) < found[CGI], found[API] < min(between))
    told = ", ".join(f"{kind} {found[CGI] / time:.1f}" for kind, time in found.items() if kind != CGI)
    word = HOLDS if all(kept) else IN_PART if any(kept) else FAILS
    return Finding(word, f"Times as fast as CGI ({found[CGI]:,.0f} µs): {told}.")
