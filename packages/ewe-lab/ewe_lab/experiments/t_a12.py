"""Thesis, table A.12: PHP with and without an accelerator, which keeps compiled pages in shared memory.

Of the three accelerators of the thesis none is left. PHP has its own since 2013, the opcache, which replaced APC.
A stand-in takes the place of the blog whose main page the thesis loaded: 16 included files with 64 functions each,
of which the page calls 16. Compiling is most of its work, as with a large framework.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ewe_lab.bench.experiment import Bench, Load
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, Sample, Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.papers import printed
from ewe_lab.experiments.thesis_dynamic import probe
from ewe_lab.experiments.thesis_memory import SETTLES, look
from ewe_lab.stacks.programs import write_blog
from ewe_lab.stacks.ways import Way, served

BEFORE, AFTER = "VmRSS before the main page", "VmRSS after the main page"
WHOLE, COST = "all processes, PSS, after the main page", "the main page at full speed"
WITH = " opcache"
ASKED = 40  # requests before the measurement: each of a server's processes has then loaded the page
WITHIN = 1.10  # of the memory without: the most that is printed is 1.08, of Xcache under PHP-FPM
SAVES = 1.10  # times as much CPU time without as with it: less may be chance


@dataclass(frozen=True)
class Interpreter:
    """A way to run PHP. document: its name in table A.12, "" if it is not there."""

    way: Way
    document: str = ""

    def printed(self, opcache: bool) -> Sequence[float]:
        """Return the kB before and after the main page, without or with APC."""
        figures: Sequence[float] = PRINTED[self.document]["APC" if opcache else "without"]
        return figures


PRINTED = printed("T-A12")
INTERPRETERS = (
    Interpreter(Way("apache-prefork", "mod_php", "php", label="mod_php"), "mod_php"),
    Interpreter(Way("lighttpd", "php-cgi", "php", label="FastCGI"), "FastCGI"),
    Interpreter(Way("nginx", "php-fpm", "php", label="PHP-FPM"), "PHP-FPM"),
    Interpreter(Way("ewe", "xswitch", "php", label="ewe")),
)
NOTE = (
    "Beside PHP with its opcache stand the figures of APC, which it replaced. VmRSS counts the opcache's pages "
    "that a process has touched; PSS divides them among the processes, which no longer have a copy each."
)


def run(lab: Bench) -> Iterator[Cell]:
    """Measure each way to run PHP, without its opcache and with it."""
    lab.notes.append(NOTE)
    write_blog(lab)
    for each in INTERPRETERS:
        if each.way.missing:
            lab.notes.append(each.way.missing)
            continue
        yield from measured(lab, each, False)
        yield from measured(lab, each, True)
    for name, (document, *kilobytes) in PRINTED[
        "gone"
    ].items():  # accelerators that no longer exist, by a short name
        for column, figure in zip((BEFORE, AFTER), kilobytes, strict=True):
            yield Cell(name, column, unit="kB", paper=figure, paper_server=document)


def measured(lab: Bench, each: Interpreter, opcache: bool) -> Iterator[Cell]:
    """Start PHP, look at its memory, ask for the main page, look again, and load it."""
    way = replace(each.way, program="blog", opcache=opcache)
    name = way.name + (WITH if opcache else "")
    load = Load(
        "ceiling", users=4, seconds=lab.seconds(1, 3), warm_up=lab.seconds(0.3, 0.5), length=len(way.page)
    )
    try:
        with served(lab, way) as (server, path):
            if way.by != "xswitch":  # which starts no engine before it is asked
                time.sleep(SETTLES)
                yield memory(each, name, BEFORE, look(server, way), server.command, opcache)
            for _ in range(ASKED):
                probe(server.url.rstrip("/") + path, way.page)
            after = look(server, way)
            yield memory(each, name, AFTER, after, server.command, opcache)
            yield Cell(
                name, WHOLE, value="extra.pss", unit="kB", samples=[after], command=server.command,
                load=f"{ASKED} requests before",
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
                load=load.words(),
            )
    except LabError as reason:
        yield Cell(name, failure=str(reason))


def memory(each: Interpreter, name: str, column: str, sample: Sample, command: str, opcache: bool) -> Cell:
    """Return a cell with the resident memory of what runs PHP."""
    asked = f"{ASKED} requests before" if column == AFTER else "none"
    cell = Cell(name, column, value="extra.program", unit="kB", samples=[sample], command=command, load=asked)
    if each.document:
        cell.paper = each.printed(opcache)[column == AFTER]
        cell.paper_server = each.document + (" with APC" if opcache else "")
    return cell


def check(table: Table) -> Finding:
    """The claim has two parts, for each way to run PHP: less time, and hardly more memory."""
    found = {(cell.server, cell.column): cell.median for cell in table.cells if cell.median}
    told, parts = [], []
    for each in INTERPRETERS:
        name = each.way.name
        cost, memory = (
            (found.get((name, column)), found.get((name + WITH, column))) for column in (COST, AFTER)
        )
        if cost[0] and cost[1] and memory[0] and memory[1]:
            saved, grown = cost[0] / cost[1], memory[1] / memory[0]
            parts += [saved >= SAVES, grown <= WITHIN]
            told.append(f"{name} {saved:.1f} and {grown:.2f}")
    if not parts:
        return Finding(NOT_TESTABLE, "No way to run PHP was measured with and without its opcache.")
    word = HOLDS if all(parts) else IN_PART if any(parts) else FAILS
    return Finding(
        word,
        "CPU time without the opcache over that with it, and VmRSS with it over that without: "
        f"{', '.join(told)}.",
    )
