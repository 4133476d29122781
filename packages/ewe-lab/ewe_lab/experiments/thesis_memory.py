"""Tables A.9 and A.10 of the thesis: the memory of the processes that run PHP and Python.

"How much memory does a server need?" has several answers, so each row has three figures:

    the largest process that runs the program, VmRSS     as the thesis measured it
    the largest process of the web server, VmRSS         the same for the server in front
    all processes, PSS                                   today's answer: a page that n processes share counts 1/n

A process may be both, for example with a module of PHP in Apache. The program's processes are those beside the web
server (`other_pids`), or X-Switch's engines, or else the web server's own.

Possible failures: an interpreter grows when it first runs a program, so some requests come before the measurement.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ewe_lab.bench.experiment import Bench, RunningServer
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, Sample, Usage
from ewe_lab.experiments.thesis_dynamic import probe
from ewe_lab.stacks.ways import ServingStack, serve_stack

if TYPE_CHECKING:
    from psutil import Process

PROGRAM, SERVER, ALL_PROCESSES = "what runs the program, VmRSS", "web server, VmRSS", "all processes, PSS"
VALUES = {PROGRAM: "extra.program", SERVER: "extra.server", ALL_PROCESSES: "extra.pss"}
REQUESTS_BEFORE = 20  # requests before the measurement: an interpreter grows when it first runs a program
SETTLE_S = 0.5  # seconds
ENGINE_COMMAND_PARTS = "/engines/", "php-cgi"  # in the command line of an engine of X-Switch
Printed = Sequence[Any]  # the document's name, kB


def table(
    lab: Bench,
    ways: Sequence[Mapping[str, Any]],
    printed: Mapping[str, Mapping[str, Printed]],
    gone: Mapping[str, float] | None = None,
) -> Iterator[Cell]:
    """Measure the memory of some stacks, as a paper's file describes them; yield the cells.

    ways: the fields of each ServingStack. printed, gone: as in run().
    """
    yield from run(lab, [ServingStack(**each) for each in ways], printed, gone or {})


def run(
    lab: Bench,
    stacks: Sequence[ServingStack],
    printed: Mapping[str, Mapping[str, Printed]],
    gone: Mapping[str, float],
) -> Iterator[Cell]:
    """Measure every stack that can run here; yield the cells.

    printed: the document's name and its kB, by column and stack. gone: the kB of servers that no longer exist.
    """
    for stack in stacks:
        if stack.why_missing:
            lab.notes.append(stack.why_missing)
            continue
        cells = [Cell(stack.name, column, value=value, unit="kB") for column, value in VALUES.items()]
        for cell in cells:
            cell.paper_server, cell.paper = printed.get(cell.column, {}).get(stack.name, ("", None))
            cell.load = f"{REQUESTS_BEFORE} requests before"
        try:
            with serve_stack(lab, stack) as (server, path):
                for _ in range(REQUESTS_BEFORE):
                    probe(server.url.rstrip("/") + path, stack.page)
                time.sleep(SETTLE_S)
                sample = measure_memory(server, stack)
            for cell in cells:
                cell.samples, cell.command = [sample], server.command
        except LabError as reason:
            for cell in cells:
                cell.failure = str(reason)
        yield from cells
    for name, figure in gone.items():
        yield Cell(name.lower(), SERVER, unit="kB", paper=figure, paper_server=name)


@contextmanager
def error_of_psutil_as_lab_error() -> Iterator[None]:
    """Raise LabError if psutil cannot read a process of the block: it has ended, or belongs to another account."""
    import psutil

    try:
        yield
    except psutil.Error as reason:
        raise LabError(f"the memory of a process could not be read: {reason}") from None


@error_of_psutil_as_lab_error()
def measure_memory(server: RunningServer, stack: ServingStack) -> Sample:
    """Return the memory of the largest process that runs the program, of the largest web server process, of all.

    Raises LabError.
    """
    # web: the web server's processes. beside: those that only run the program
    web = process_family(server.pid)
    beside = [each for pid in server.other_pids for each in process_family(pid)]
    if stack.by == "xswitch":  # ewe started X-Switch, so its engines are among ewe's descendants
        beside = [
            each for each in web if any(word in " ".join(each.cmdline()) for word in ENGINE_COMMAND_PARTS)
        ]
        web = [each for each in web if each not in beside]
    everyone = {*web, *beside}
    pss = sum(each.memory_full_info().pss for each in everyone)
    threads = sum(each.num_threads() for each in everyone)
    usage = Usage(cpu=0.0, memory=pss, threads=threads, processes=len(everyone))
    program = largest_bytes(beside or web)  # without processes beside it, the web server runs the program
    extra = {"program": program / 1024, "server": largest_bytes(web) / 1024, "pss": pss / 1024}
    return Sample("psutil", seconds=0.0, usage=usage, extra=extra)


def process_family(pid: int) -> list[Process]:
    """Return a process and its descendants."""
    import psutil

    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def largest_bytes(processes: Sequence[Process]) -> int:
    """Return the resident memory of the largest process in bytes. The first process is the parent of the others."""
    return max(each.memory_info().rss for each in processes[1:] or processes)
