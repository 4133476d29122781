"""Thesis, table A.12: PHP with and without an accelerator, which keeps compiled pages in shared memory.

None of the three accelerators of the thesis exists any more. PHP has its own since 2013, the opcache, which
replaced APC. The thesis loaded the main page of a blog. Here a page takes its place that includes 16 files with 64
functions each and calls 16 of the functions. Compiling is most of its work, as with a large framework.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from ewe_lab.bench.experiment import Bench, Load
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.bench.verdicts import NOT_TESTABLE, Finding, verdict_of_parts
from ewe_lab.experiments.papers import printed
from ewe_lab.experiments.thesis_dynamic import probe
from ewe_lab.experiments.thesis_memory import SETTLE_S, measure_memory
from ewe_lab.stacks.programs import write_blog
from ewe_lab.stacks.ways import ServingStack, serve_stack

BEFORE, AFTER = "VmRSS before the main page", "VmRSS after the main page"
WHOLE, COST = "all processes, PSS, after the main page", "the main page at full speed"
WITH_OPCACHE = " opcache"
REQUESTS_BEFORE = 40  # requests before the measurement: each of a server's processes has then loaded the page
# greatest ratio of memory with to memory without; the greatest printed one is 1.08 (Xcache, PHP-FPM)
MAX_MEMORY_RATIO = 1.10
MIN_CPU_RATIO = 1.10  # least ratio of CPU time without to CPU time with; a smaller one may be chance


class PrintedMemory(NamedTuple):
    """The printed memory of a process that runs PHP, in kB: before and after the main page."""

    before: float
    after: float


@dataclass(frozen=True)
class Interpreter:
    """A way to run PHP. document: its name in table A.12, "" if it is not there."""

    stack: ServingStack
    document: str = ""

    def printed(self, *, opcache: bool) -> PrintedMemory:
        """Return the printed memory. opcache: with APC, the accelerator of the thesis."""
        return PrintedMemory(*PRINTED[self.document]["APC" if opcache else "without"])


PRINTED = printed("T-A12")
INTERPRETERS = (
    Interpreter(ServingStack("apache-prefork", "mod_php", "php", label="mod_php"), "mod_php"),
    Interpreter(ServingStack("lighttpd", "php-cgi", "php", label="FastCGI"), "FastCGI"),
    Interpreter(ServingStack("nginx", "php-fpm", "php", label="PHP-FPM"), "PHP-FPM"),
    Interpreter(ServingStack("ewe", "xswitch", "php", label="ewe")),
)
NOTE = (
    "Beside PHP with its opcache stand the figures of APC, which it replaced. VmRSS counts the opcache's pages "
    "that a process has touched; PSS divides them among the processes, which no longer have a copy each."
)


def run(lab: Bench) -> Iterator[Cell]:
    """Measure each way to run PHP, without its opcache and with it; yield the cells."""
    lab.notes.append(NOTE)
    write_blog(lab)
    for each in INTERPRETERS:
        if each.stack.why_missing:
            lab.notes.append(each.stack.why_missing)
            continue
        for opcache in (False, True):
            yield from measure_interpreter(lab, each, opcache=opcache)
    # Accelerators that no longer exist, by a short name.
    for name, (document, *kilobytes) in PRINTED["gone"].items():
        for column, figure in zip((BEFORE, AFTER), kilobytes, strict=True):
            yield Cell(name, column, unit="kB", paper=figure, paper_server=document)


def measure_interpreter(lab: Bench, interpreter: Interpreter, *, opcache: bool) -> Iterator[Cell]:
    """Start PHP, read its memory, request the main page, read the memory again, and load the page.

    Yields a cell for each figure, or one with the failure. opcache: whether PHP has it.
    """
    stack = replace(interpreter.stack, program="blog", opcache=opcache)
    name = stack.name + (WITH_OPCACHE if opcache else "")
    load = Load(
        "saturation",
        users=4,
        seconds=lab.quick_or_full(1, 3),
        warm_up=lab.quick_or_full(0.3, 0.5),
        length=len(stack.page),
    )
    try:
        with serve_stack(lab, stack) as (server, path):
            if stack.by != "xswitch":  # X-Switch starts no engine before the first request
                time.sleep(SETTLE_S)
                yield memory_cell(
                    interpreter, name, BEFORE, measure_memory(server, stack), server.command, opcache=opcache
                )
            for _ in range(REQUESTS_BEFORE):
                probe(server.url.rstrip("/") + path, stack.page)
            after = measure_memory(server, stack)
            yield memory_cell(interpreter, name, AFTER, after, server.command, opcache=opcache)
            yield Cell(
                name, WHOLE, value="extra.pss", unit="kB", samples=[after], command=server.command,
                load=f"{REQUESTS_BEFORE} requests before",
            )  # fmt: skip
            load = replace(load, path=path)
            samples = [lab.load(server, load) for _ in range(1 if lab.quick else 3)]
            yield Cell(
                name,
                COST,
                value="micros",
                unit="µs",
                samples=samples,
                command=server.command,
                load=load.description(),
            )
    except LabError as reason:
        yield Cell(name, failure=str(reason))


def memory_cell(
    interpreter: Interpreter, name: str, column: str, sample: Sample, command: str, *, opcache: bool
) -> Cell:
    """Return a cell with the resident memory of the process that runs PHP. column: BEFORE or AFTER."""
    load_text = f"{REQUESTS_BEFORE} requests before" if column == AFTER else "none"
    cell = Cell(
        name, column, value="extra.program", unit="kB", samples=[sample], command=command, load=load_text
    )
    if interpreter.document:
        printed_memory = interpreter.printed(opcache=opcache)
        cell.paper = printed_memory.after if column == AFTER else printed_memory.before
        cell.paper_server = interpreter.document + (" with APC" if opcache else "")
    return cell


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim has two parts for each way to run PHP: the opcache saves CPU time, and needs hardly more memory.
    """
    medians = {(cell.server, cell.column): cell.median for cell in table.cells if cell.median}
    pieces, parts = [], []
    for each in INTERPRETERS:
        name = each.stack.name
        cost, cost_with, memory, memory_with = (
            medians.get((server, column))
            for column in (COST, AFTER)
            for server in (name, name + WITH_OPCACHE)
        )
        if cost and cost_with and memory and memory_with:
            saved, grown = cost / cost_with, memory_with / memory
            parts += [saved >= MIN_CPU_RATIO, grown <= MAX_MEMORY_RATIO]
            pieces.append(f"{name} {saved:.1f} and {grown:.2f}")
    if not parts:
        return Finding(NOT_TESTABLE, "No way to run PHP was measured with and without its opcache.")
    verdict = verdict_of_parts(parts)
    return Finding(
        verdict,
        "CPU time without the opcache over that with it, and VmRSS with it over that without: "
        f"{', '.join(pieces)}.",
    )
