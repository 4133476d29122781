"""Thesis, the load test (section 4.4): a blog and its visitors, in three phases.

The thesis let 100 visitors a second come to a WordPress for 30 minutes, 450 for 10 minutes and 200 for 20 minutes.
450 a second was as much as its machine could answer. The phases here are therefore shares of a capacity, which is
measured first. Visitors come at random times, as those of tsung, the tool of the thesis, do:

    visitors a second
        100 %                      ┌──────┐
                                   │      │
         44 %                      │      └─────────────┐
         22 %  ────────────────────┘                    │
               │◀──── 1/2 ────────▶│◀ 1/6 ▶│◀── 1/3 ───▶│

A visitor looks at the main page, thinks, and looks at one post. All servers of a blog get the same visitors: at the
capacity of Apache prefork with mod_php for WordPress, and of ewe's prefork model for the blog of SQL pages.

Two facts can mislead a reader. Server, PHP and database share one core here, and the load has the other. A blog of
SQL pages does far less work for a page than WordPress, so its capacity is greater and more visitors come to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from ewe_lab.bench import figures
from ewe_lab.bench.experiment import Bench, Load
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, ExperimentTable, Sample, figure
from ewe_lab.bench.verdicts import MAX_LOST_SHARE, NOT_TESTABLE, Finding, verdict_of_parts
from ewe_lab.experiments.papers import printed
from ewe_lab.experiments.visitors import (
    CAPACITY_CLIENTS,
    CAPACITY_PHASE,
    DATABASE,
    PARTS,
    PHASES,
    PROGRAM,
    WEB,
    VisitedBlog,
)
from ewe_lab.stacks import sql_blog, wordpress
from ewe_lab.stacks.ways import ServingStack, serve_stack

WORDPRESS, SQL = "WordPress", "pages from SQL"
MEMORY, CPU = "memory at its peak", "CPU in the second phase"


@dataclass(frozen=True)
class StackUnderTest:
    """A server under test with WordPress. document: its name in the thesis. full: it is in full runs only."""

    stack: ServingStack
    document: str = ""
    full: bool = False


PREFORK, EVENT = "prefork mod_php", "event php-fpm"
PAGE_CACHE = "ewe php-fpm, page cache"  # no request of a cached page reaches PHP
PRINTED = printed("T-LD")  # by server: memory in GB, CPU in percent
TESTED_STACKS = (
    StackUnderTest(ServingStack("apache-prefork", "mod_php", "php"), "Apache prefork"),
    StackUnderTest(ServingStack("apache-event", "php-fpm", "php"), "Apache event"),
    StackUnderTest(ServingStack("nginx", "php-fpm", "php"), "Nginx"),
    StackUnderTest(ServingStack("lighttpd", "php-fpm", "php"), "Lighttpd", full=True),
    StackUnderTest(ServingStack("ewe", "php-fpm", "php")),
    StackUnderTest(ServingStack("ewe", "xswitch", "php")),
    StackUnderTest(
        ServingStack("ewe", "php-fpm", "php", label=PAGE_CACHE, options=("--content-cache", "32m"))
    ),
)
LONG_WAIT_S = 0.5  # seconds: a visitor notices a longer wait
# Of the third phase's p95 to the first's; a greater one comes from a queue of the second phase
GROWN_WAIT_RATIO = 2
ALL_CPU_PERCENT = 95  # of a core; the thesis prints 90 for a server that does not take all
MIN_VISITORS = 20  # visitors in the second phase: with fewer, the lost share says nothing


class PrintedColumn(NamedTuple):
    """A column of which the thesis prints figures. value: the name of our figure. key: in PRINTED."""

    column: str
    value: str
    unit: str
    key: str


FIGURES = (
    PrintedColumn(MEMORY, "usage.memory", "GB", key="memory"),
    PrintedColumn(CPU, "extra.cpu", "%", key="cpu"),
)
FRUGAL = ("Nginx", "Lighttpd")  # which need less memory and CPU time than prefork, by the claim
UNAVAILABLE_SERVER = "Cherokee"
NOTES = (
    "The thesis's figures are those of the whole machine, as Ganglia saw it, caches of files included. Ours are of "
    "web server, PHP and database together (PSS), on one core.",
    "WordPress has PHP's opcache. The thesis also installed a cache of pages. One row has ewe's content cache: "
    "WordPress allows a visitor without a session to see a page that is up to a minute old. Its posts have plain "
    "permalinks (/?p=1), as in the thesis.",
)


def run(lab: Bench) -> Iterator[Cell]:
    """Load WordPress on each server, then the blog of SQL pages on each model and database; yield the cells."""
    lab.notes.extend(NOTES)
    cells: list[Cell] = []
    for each in (measure_wordpress(lab), measure_sql_blog(lab)):
        for cell in each:
            cells.append(cell)
            yield cell
    for column, value, unit, key in FIGURES:
        yield Cell(
            UNAVAILABLE_SERVER.lower(),
            column,
            value=value,
            unit=unit,
            paper=PRINTED[UNAVAILABLE_SERVER][key],
            paper_server=UNAVAILABLE_SERVER,
        )
    lab.notes.extend(observations(cells))


# ---------------------------------------------------------------------------------------------------------
# The two blogs


def measure_wordpress(lab: Bench) -> Iterator[Cell]:
    """Install WordPress once, and load it behind each server; yield the cells.

    The first server's capacity is measured. All servers get visitors by this capacity.
    """
    if packages := wordpress.missing_packages():
        lab.notes.append(f"WordPress is left out: apt install {packages}")
        return
    present = []
    for each in TESTED_STACKS:
        if each.full and lab.quick:
            continue
        if lacking := each.stack.why_missing:
            lab.notes.append(lacking)
        else:
            present.append(each)
    capacity = 0.0
    with error_as_cell(WORDPRESS) as failed, wordpress.wordpress(lab) as blog:
        paths = ("/", blog.post)
        for each in present:
            with (
                error_as_cell(each.stack.name) as failed_here,
                serve_stack(lab, each.stack, root=blog.root) as (server, _),
            ):
                visited = VisitedBlog(lab, server, database_pids=blog.database_pids, paths=paths)
                if not capacity:
                    capacity = visited.capacity()
                    lab.notes.append(capacity_note(WORDPRESS, each.stack.name, capacity))
                else:
                    visited.warm()
                load, sample = visited.load(capacity)
                yield from cells_of(each.stack.name, each.document, WORDPRESS, visited, load, sample)
            yield from failed_here
    yield from failed


def measure_sql_blog(lab: Bench) -> Iterator[Cell]:
    """Load the blog of SQL pages, under two models and on each database that is here; yield the cells.

    As with WordPress, the first server's capacity decides how many visitors come to all.
    """
    capacity = 0.0
    for each in sql_blog.BLOGS:
        if each.full and lab.quick:
            continue
        if lacking := each.why_missing:
            lab.notes.append(lacking)
            continue
        with error_as_cell(each.name) as failed, each.serve(lab) as (server, database_pids, paths):
            visited = VisitedBlog(lab, server, database_pids=database_pids, paths=paths)
            if not capacity:
                capacity = visited.capacity()
                lab.notes.append(capacity_note(SQL, each.name, capacity))
            else:
                visited.warm()
            load, sample = visited.load(capacity)
            yield from cells_of(each.name, "", SQL, visited, load, sample)
        yield from failed


@contextmanager
def error_as_cell(name: str) -> Iterator[list[Cell]]:
    """Turn a LabError of the block into a cell, in the list that this yields; without an error it is empty."""
    failed: list[Cell] = []
    try:
        yield failed
    except LabError as reason:
        failed.append(Cell(name, failure=str(reason)))


def capacity_note(blog: str, name: str, capacity: float) -> str:
    """Return a sentence on the capacity and the shares of the phases."""
    return (
        f"{blog}: {name} answers {figures.number_text(capacity)} visitors a second at best, with "
        f"{CAPACITY_CLIENTS} clients that never pause. The phases are 22, 100 and 44 % of this rate, for all"
        " servers of this blog."
    )


# ---------------------------------------------------------------------------------------------------------
# Figures


def cells_of(
    name: str, document: str, blog: str, visited: VisitedBlog, load: Load, sample: Sample
) -> Iterator[Cell]:
    """Yield the cells of one server: the phases, the figures that the thesis prints, the parts of the CPU time.

    name: of the server in the table. document: its name in the thesis, "" without one. blog: WORDPRESS or SQL.
    """
    command = visited.server.command
    yield Cell(name, blog, samples=[sample], command=command, load=load.description())
    light = replace(sample, timeline=[], phases=[], running=[])  # the first cell has them; once is enough
    for column, value, unit, key in FIGURES:
        paper = PRINTED.get(document, {}).get(key)
        yield Cell(
            name, column, value=value, unit=unit, samples=[light], command=command, load=load.description(),
            paper=paper, paper_server=document if paper else "",
        )  # fmt: skip
    for part in PARTS:
        if part in sample.extra:
            yield Cell(name, part, value=f"extra.{part}", unit="ms", samples=[light], load=load.description())


# ---------------------------------------------------------------------------------------------------------
# Observations


def samples_with_phases(cells: Sequence[Cell], blog: str) -> dict[str, Sample]:
    """Return the samples with three phases, by server."""
    return {
        cell.server: cell.samples[0]
        for cell in cells
        if cell.column == blog and cell.samples and len(cell.samples[0].phases) == len(PHASES)
    }


def observations(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield sentences on each blog: the CPU time of a page, the waits, the memory, and the lost visitors.

    The last sentence compares the CPU time of a page of both blogs, each on the server where a page takes least. A
    server that answered no page has no CPU time of a page. The server with a page cache has a sentence apart: it
    makes few of the pages that it sends.
    """
    least_cpu_ms = {}
    for blog in (WORDPRESS, SQL):
        samples = samples_with_phases(cells, blog)
        if not samples:
            continue
        made = {name: sample for name, sample in samples.items() if name != PAGE_CACHE}
        cpu_ms = page_times_ms(made)
        if cpu_ms:
            least_cpu_ms[blog] = min(cpu_ms.values())
        # Not the server with mod_php: there PHP's CPU time is a part of the web server's
        with_programs = {name: sample for name, sample in made.items() if sample.extra.get(PROGRAM)}
        yield (
            f"{blog}: a page takes {range_text(cpu_ms, milliseconds)} of CPU in all. Where a process beside the "
            "web server runs the pages, its part is "
            f"{range_text(part_times_ms(with_programs, PROGRAM), milliseconds)}, "
            f"the web server's {range_text(part_times_ms(with_programs, WEB), milliseconds)}, the database's "
            f"{range_text(part_times_ms(made, DATABASE), milliseconds)}."
        )
        if PAGE_CACHE in samples:
            cached_ms = page_times_ms({PAGE_CACHE: samples[PAGE_CACHE]})
            yield f"{blog}: from a page cache, a page takes {range_text(cached_ms, milliseconds)} of CPU in all."
        yield (
            f"{blog}: 95 of 100 pages came within {', '.join(wait_range(samples, phase) for phase in range(3))} "
            f"in the three phases. {waiting_servers_text(samples)}"
        )
        memory = {name: sample.usage.memory for name, sample in samples.items() if sample.usage}
        peaks = range_text(memory, figures.size_text)
        yield f"{blog}: memory at its peak is {peaks}. {lost_visitors_text(samples)}"
    if least_cpu_ms.get(WORDPRESS) and least_cpu_ms.get(SQL):
        cost_ratio = figures.number_text(least_cpu_ms[WORDPRESS] / least_cpu_ms[SQL])
        yield f"A page of WordPress costs {cost_ratio} times the CPU time of the same page from SQL."


def milliseconds(value: float | None) -> str:
    """Return a time in ms as text."""
    return figures.time_text(None if value is None else value / 1e3)


def page_times_ms(samples: Mapping[str, Sample]) -> dict[str, float]:
    """Return the CPU time of a page in ms, all parts together, by server; without servers that answered no page."""
    return {
        name: sum(sample.extra.get(part, 0.0) for part in PARTS)
        for name, sample in samples.items()
        if any(part in sample.extra for part in PARTS)
    }


def part_times_ms(samples: Mapping[str, Sample], part: str) -> dict[str, float | None]:
    """Return the CPU time of one part for a page in ms, by server; without servers that have no such part."""
    return {name: sample.extra[part] for name, sample in samples.items() if sample.extra.get(part)}


def range_text(values: Mapping[str, float | None], text: Callable[[float | None], str]) -> str:
    """Return the least and the greatest figure, with the servers that have them."""
    known = sorted((value, name) for name, value in values.items() if value is not None)
    if not known:
        return figures.NO_FIGURE
    (least, first), (most, last) = known[0], known[-1]
    return f"{text(least)} ({first})" + (f" to {text(most)} ({last})" if len(known) > 1 else "")


def cpu_text(percent: float | None) -> str:
    """Return a CPU time in percent of one core as text."""
    return figures.percent_text(None if percent is None else percent / 100)


def wait_range(samples: Mapping[str, Sample], phase: int) -> str:
    """Return the range of the 95th percentiles in a phase."""
    times = {
        name: response.p95
        for name, sample in samples.items()
        if (response := sample.phases[phase].response) is not None
    }
    return range_text(times, figures.time_text)


def waiting_servers_text(samples: Mapping[str, Sample]) -> str:
    """Say which servers began the third phase with a queue of the second: their p95 is long, and has grown."""
    servers = []
    for name, sample in samples.items():
        first, last = sample.phases[0].response, sample.phases[-1].response
        if first and last and last.p95 > max(LONG_WAIT_S, GROWN_WAIT_RATIO * first.p95):
            servers.append(f"{name} ({figures.time_text(last.p95)} after {figures.time_text(first.p95)})")
    if servers:
        return f"A queue of the second phase kept the visitors of the third waiting: {', '.join(servers)}."
    return "No server kept a queue from the second phase into the third."


def lost_visitors_text(samples: Mapping[str, Sample]) -> str:
    """Say which servers lost visitors."""
    lost = [
        f"{name} ({figures.percent_text(sample.lost)})"
        for name, sample in samples.items()
        if (sample.lost or 0) > MAX_LOST_SHARE
    ]
    return f"Visitors were lost by {', '.join(lost)}." if lost else "No server lost a visitor in a hundred."


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim has five parts: prefork loses visitors and takes all CPU; event loses none; nginx and lighttpd need
    less memory than prefork, and less CPU time in the second phase.
    """
    samples = samples_with_phases(table.cells, WORDPRESS)
    prefork = samples.pop(PREFORK, None)
    others = {each.stack.name for each in TESTED_STACKS if each.document} & set(samples)
    if prefork is None or not others:
        return Finding(NOT_TESTABLE, "WordPress was not measured on Apache prefork and another server.")
    if (came := prefork.phases[CAPACITY_PHASE].sessions) < MIN_VISITORS:
        sentence = (
            f"Only {came} visitors came in the second phase, too few to judge: Apache prefork was too slow."
        )
        return Finding(NOT_TESTABLE, sentence)
    parts = [*parts_about_visitors(prefork, samples.get(EVENT)), *parts_about_costs(prefork, samples)]
    verdict = verdict_of_parts([part.holds for part in parts])
    return Finding(verdict, "; ".join(part.text for part in parts) + ".")


class ClaimPart(NamedTuple):
    """A part of the claim. text: its figures in words."""

    holds: bool
    text: str


def parts_about_visitors(prefork: Sample, event: Sample | None) -> Iterator[ClaimPart]:
    """Yield the parts of the claim about the visitors that prefork and event lost, and about prefork's CPU time."""
    lost = prefork.phases[CAPACITY_PHASE].lost or 0.0
    text = f"Apache prefork lost {figures.percent_text(lost)} of its visitors in the second phase"
    yield ClaimPart(lost > MAX_LOST_SHARE, text)
    if (cpu := figure(prefork, "extra.cpu")) is not None:
        yield ClaimPart(cpu >= ALL_CPU_PERCENT, f"it took {cpu_text(cpu)} of the core")
    if event is not None:
        lost = event.phases[CAPACITY_PHASE].lost or 0.0
        yield ClaimPart(lost <= MAX_LOST_SHARE, f"Apache event lost {figures.percent_text(lost)}")


def parts_about_costs(prefork: Sample, samples: Mapping[str, Sample]) -> Iterator[ClaimPart]:
    """Yield the parts of the claim that nginx and lighttpd need less memory and less CPU time than prefork."""
    frugal = {each.stack.name for each in TESTED_STACKS if each.document in FRUGAL} & set(samples)
    for column, name, text_of in ((MEMORY, "usage.memory", figures.size_text), (CPU, "extra.cpu", cpu_text)):
        found = {server: figure(samples[server], name) for server in sorted(frugal)}
        of_prefork = figure(prefork, name)
        if of_prefork and found and all(found.values()):
            text = f"{column}: prefork {text_of(of_prefork)}, nginx and lighttpd {range_text(found, text_of)}"
            need_less = all(value is not None and value < of_prefork for value in found.values())
            yield ClaimPart(need_less, text)
