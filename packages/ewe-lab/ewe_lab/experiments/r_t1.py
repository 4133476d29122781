"""RDBMS, table 1: marks for kinds of gateways. The row `performance` is measured; the other rows are prose.

The paper gives each kind of gateway a mark for its performance, ++, + or -, and no figures. Here a mark is a ratio
of measured times: how many times as fast as CGI is a call?

    1 (CGI itself) ── - ── 2 ── + ── 10 ── ++        MEDIUM_FACTOR, GOOD_FACTOR

All servers run side by side and take turns, so a disturbance of the machine meets all of them. The claim is about
the order of the kinds, and needs no marks: is_faster().

Possible failures: a JVM compiles a method only after many calls, so the servlet gets more calls before each round
(WARM_UP_CALLS).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from ewe_lab.bench.experiment import Bench, RunningServer, ServerUnderTest
from ewe_lab.bench.processes import LabError, cpu_seconds, load_core, on_core
from ewe_lab.bench.results import Cell, ExperimentTable, Sample, Usage
from ewe_lab.bench.verdicts import NOT_TESTABLE, Finding, may_be_chance, verdict_of_parts
from ewe_lab.experiments.papers import printed
from ewe_lab.load import pinger
from ewe_lab.stacks import gateways, ways
from ewe_lab.stacks.applications import HELLO
from ewe_lab.stacks.forms import PROGRAM, body, write_forms
from ewe_lab.stacks.gateways import CgiProgram

COLUMN, TIMES = "marks", "time of a call"
MARKS = {1: "-", 2: "+", 3: "++"}
PRINTED = printed("R-T1")  # marks, 1 to 3
CGI, API, SERVLET, FASTCGI = "CGI", "server API", "servlet", "FastCGI"
ANSWER_BYTES = 28  # bytes of the answer


@dataclass(frozen=True)
class GatewayKind:
    """A kind of gateway. gateway, program: of ewe, "" for the servlet. paper: the name of the kind in the paper."""

    gateway: str
    program: str
    paper: str


class KindCells(NamedTuple):
    """The two cells of a kind of gateway: its marks, and the time of a call."""

    marks: Cell
    time: Cell


class RunningGateway(NamedTuple):
    """A server with the program behind a gateway. path: of the URL. answer: the body of a right answer."""

    server: RunningServer
    path: str
    answer: bytes


KINDS = {
    CGI: GatewayKind(gateways.CGI, PROGRAM, "CGI"),
    API: GatewayKind(gateways.LIBCGI, PROGRAM, "ISAPI, NSAPI"),
    SERVLET: GatewayKind("", "", "Servlet API"),
    FASTCGI: GatewayKind(gateways.FASTCGI, PROGRAM, "FastCGI"),
}
ROUND_COUNTS = (2, 6)  # quick and full; the kinds take turns
CALL_COUNTS = (60, 300)  # in a round, quick and full
WARM_UP_CALLS = {SERVLET: 1000}  # calls before a round: a JVM compiles methods that are called often
DEFAULT_WARM_UP_CALLS = 3
GOOD_FACTOR, MEDIUM_FACTOR = 10, 2  # times faster than CGI: ++ and +
REMARKS = (
    f"++ is {GOOD_FACTOR} times as fast as CGI or more, + is {MEDIUM_FACTOR} times as fast. All answer a few "
    "bytes, "
    "on a kept connection; in C but for the servlet, which X-Switch's JVM runs. LibCGI is ewe's server API. WAI, "
    "an object of CORBA, has no counterpart.",
    "Language independence: any language for CGI and FastCGI; for LibCGI C and languages that link like C (the "
    "paper gives a - too); for servlets the languages of the JVM. Python has WSGI and ASGI in ewe's process.",
    "Portability: CGI and FastCGI run behind every server; WSGI has brought it to Python. LibCGI is ewe's alone.",
    "Popularity has changed: CGI (++ in the paper) is rare, and FastCGI and similar protocols (+ in the paper) "
    "run PHP and much of Python.",
    "Low level server programming: a library or a servlet reaches the server's memory, a CGI program does not.",
)


def run(lab: Bench) -> Iterator[Cell]:
    """Measure the kinds that can run here, in turns; yield their cells."""
    found = {kind: cells_of(kind) for kind in KINDS}
    with ExitStack() as exits:
        gateways_by_kind: dict[str, RunningGateway] = {}
        for kind in KINDS:
            try:
                if lacking := why_missing(lab, kind):
                    lab.notes.append(f"{kind} is left out: {lacking}")
                else:
                    gateways_by_kind[kind] = exits.enter_context(serve_kind(lab, kind))
            except LabError as reason:
                for cell in found[kind]:
                    cell.failure = str(reason)
        for turn in range(int(lab.quick_or_full(*ROUND_COUNTS))):
            for kind in gateways_by_kind if turn % 2 == 0 else reversed(gateways_by_kind):
                timed = found[kind].time
                try:
                    timed.samples.append(measure_gateway(lab, kind, gateways_by_kind[kind]))
                except LabError as reason:
                    timed.failure = str(reason)
    give_marks(found)
    for kind in KINDS:
        yield from (cell for cell in found[kind] if cell.samples or cell.failure)
    lab.notes += REMARKS


def cells_of(kind: str) -> KindCells:
    """Return the empty cells of a kind, with the paper's mark."""
    gateway_kind = KINDS[kind]
    marks = Cell(
        kind,
        COLUMN,
        value="extra.marks",
        unit="of 3",
        paper=PRINTED[gateway_kind.paper],
        paper_server=gateway_kind.paper,
    )
    marks.paper_note = MARKS[PRINTED[gateway_kind.paper]]
    load = "one client on a kept connection"
    return KindCells(marks, Cell(kind, TIMES, value="extra.micros", unit="µs", load=load))


def why_missing(lab: Bench, kind: str) -> str:
    """Return the reason if a kind of gateway cannot run here, else ""."""
    if kind == SERVLET:
        message = ways.technology("xswitch java").why_missing
    else:
        found = KINDS[kind]
        message = gateways.why_missing(found.gateway, CgiProgram(write_forms(lab), found.program))
    # "NAME is left out: REASON". The row has another name
    return message.partition(": ")[2]


@contextmanager
def serve_kind(lab: Bench, kind: str) -> Iterator[RunningGateway]:
    """Serve the program by a kind of gateway; yield the running gateway. Raises LabError."""
    if kind == SERVLET:
        with ways.serve_stack(lab, ways.technology("xswitch java")) as (server, path):
            yield RunningGateway(server, path, HELLO.encode())
        return
    gateway_kind = KINDS[kind]
    programs = write_forms(lab)
    tested = ServerUnderTest(kind, model="thread")
    program = CgiProgram(programs, gateway_kind.program)
    with (
        gateways.start_gateway(lab, gateway_kind.gateway, program, tested, keeps=True) as (adapted, path),
        lab.start(adapted, programs) as server,
    ):
        yield RunningGateway(server, path, body(ANSWER_BYTES))


def measure_gateway(lab: Bench, kind: str, gateway: RunningGateway) -> Sample:
    """Measure one round of a kind of gateway: warm it up, then time each call. Return the sample. Raises LabError.

    The sample's figure `extra.micros` is the median of the times, in µs. Its usage is the CPU time of the server
    and of the processes that work for it.
    """
    server = gateway.server
    count = int(lab.quick_or_full(*CALL_COUNTS))
    durations_us: list[float] = []
    with pinger.http(server.url, gateway.path, gateway.answer) as call, on_core(load_core()):
        pinger.ping(call, WARM_UP_CALLS.get(kind, DEFAULT_WARM_UP_CALLS))
        cpu_before = cpu_seconds(server.pid, *server.other_pids)
        for _ in range(count):
            began = time.perf_counter()
            call()
            durations_us.append((time.perf_counter() - began) * 1e6)
        usage = Usage(cpu=cpu_seconds(server.pid, *server.other_pids) - cpu_before)
    extra = {"micros": statistics.median(durations_us)}
    return Sample(
        "pinger",
        seconds=sum(durations_us) / 1e6,
        requests=count,
        replies=count,
        connections=1,
        usage=usage,
        extra=extra,
    )


def give_marks(found: dict[str, KindCells]) -> None:
    """Give each kind its marks, by how many times as fast as CGI it is. found: the cells by kind."""
    cgi_median = found[CGI].time.median
    for cells in found.values():
        if cgi_median and cells.time.median:
            faster = cgi_median / cells.time.median
            given = 3 if faster >= GOOD_FACTOR else 2 if faster >= MEDIUM_FACTOR else 1
            cells.marks.samples.append(
                Sample("pinger", seconds=0.0, extra={"marks": given, "faster": faster})
            )


def is_faster(one: Cell, other: Cell) -> bool:
    """Whether a kind takes less time than another one, by more than the repeats differ by chance."""
    if one.median is None or other.median is None:
        return False
    return one.median < other.median and not may_be_chance(one, other)


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim has two parts: a server API is faster than FastCGI and servlets, and these are faster than CGI.
    """
    timed = {cell.server: cell for cell in table.cells if cell.column == TIMES and cell.median}
    between = [timed[kind] for kind in (FASTCGI, SERVLET) if kind in timed]
    if CGI not in timed or API not in timed or not between:
        return Finding(NOT_TESTABLE, "CGI, a server API and a persistent gateway were not all measured.")
    part_holds = (
        all(is_faster(each, timed[CGI]) for each in between),
        all(is_faster(timed[API], each) for each in between),
    )
    medians = {kind: cell.median for kind, cell in timed.items() if cell.median}
    summary = ", ".join(
        f"{kind} {medians[CGI] / time:.1f}"
        + (" (may be chance)" if may_be_chance(timed[kind], timed[CGI]) else "")
        for kind, time in medians.items()
        if kind != CGI
    )
    verdict = verdict_of_parts(part_holds)
    return Finding(verdict, f"Times as fast as CGI ({medians[CGI]:,.0f} µs): {summary}.")
