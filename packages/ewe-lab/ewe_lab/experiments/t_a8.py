"""Thesis, tables A.8 and A.11: the memory of an idle server.

A server with several processes has a master, which starts the others and serves nothing, and workers. The thesis
prints the resident memory (VmRSS) and the address space (VmSize) of both; PSS of all processes is added, since the
processes share most of their pages. Each server is measured plain and with TLS, whose library takes memory.

Possible failures: a helper process looks like a worker. Only a child with the name of its parent counts as one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from ewe_lab.bench.experiment import Bench, ServerUnderTest
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, Sample, Usage
from ewe_lab.experiments.papers import printed
from ewe_lab.experiments.tested_servers import (
    APACHE_EVENT,
    APACHE_PREFORK,
    APACHE_WORKER,
    CADDY,
    H2O,
    LIGHTTPD,
    MODELS,
    MONGREL2,
    NGINX,
    TOMCAT,
    YAWS,
)
from ewe_lab.experiments.thesis_memory import error_of_psutil_as_lab_error
from ewe_lab.experiments.thesis_static import PRINTED_NAMES

WORKER, SIZE, WHOLE = "worker, VmRSS", "worker, VmSize", "all processes, PSS"
MASTER, MASTER_SIZE = "master, VmRSS", "master, VmSize"
VALUES = {  # column: the name of its figure, in the order of the printed figures
    WORKER: "extra.rss",
    SIZE: "extra.vmsize",
    MASTER: "extra.master_rss",
    MASTER_SIZE: "extra.master_vmsize",
    WHOLE: "extra.pss",
}
SETTLE_S = 0.5  # seconds after which a server has started all its processes
SERVERS = (
    APACHE_PREFORK,
    APACHE_WORKER,
    APACHE_EVENT,
    LIGHTTPD,
    NGINX,
    MONGREL2,
    YAWS,
    TOMCAT,
    H2O,
    CADDY,
    *MODELS,
)
PRINTED = printed("T-A8")  # kB, in the order of VALUES: plain, and with TLS


def run(lab: Bench) -> Iterator[Cell]:
    """Start each server, plain and with TLS, and read the memory of its processes; yield the cells."""
    for tested in lab.servers(SERVERS):
        for tls in (False, True):
            yield from measure_footprint(lab, tested, tls=tls)


def measure_footprint(lab: Bench, tested: ServerUnderTest, *, tls: bool) -> Iterator[Cell]:
    """Measure one server; yield a cell for each of VALUES. A server that cannot use TLS here is skipped."""
    figures: Sequence[float] = PRINTED.get(tested.name, {}).get("TLS" if tls else "plain", ())
    document = PRINTED_NAMES[tested.name] if figures else ""
    suffix = " (TLS)" if tls else ""
    try:
        with lab.start(tested, lab.site([]), tls=tls) as server:
            time.sleep(SETTLE_S)
            sample = measure_memory(server.pid)
            command = server.command
    except LabError as reason:
        if not tls:
            cell = Cell(tested.name, WORKER, value="extra.rss", unit="kB", failure=str(reason))
            if figures:
                cell.paper, cell.paper_server = figures[0], document
            yield cell
        return
    for index, (column, value) in enumerate(VALUES.items()):
        if value.removeprefix("extra.") not in sample.extra:
            continue  # a server of one process has no master
        cell = Cell(tested.name, column + suffix, value=value, unit="kB", samples=[sample], command=command)
        if index < len(figures):
            cell.paper, cell.paper_server = figures[index], document
        cell.load = "none"
        yield cell


@error_of_psutil_as_lab_error()
def measure_memory(root: int) -> Sample:
    """Return the memory of the largest serving process, of its master if it has one, and of all processes.

    Raises LabError.
    """
    import psutil

    master = psutil.Process(root)
    family = [master, *master.children(recursive=True)]
    # A helper process with another name serves no requests.
    children_of_same_name = [each for each in family[1:] if each.name() == master.name()]
    workers = children_of_same_name or family  # without such children the first process serves
    memory = [worker.memory_info() for worker in workers]
    largest = max(memory, key=lambda each: each.rss)
    pss = sum(each.memory_full_info().pss for each in family)
    usage = Usage(
        cpu=0.0, memory=pss, threads=sum(each.num_threads() for each in family), processes=len(family)
    )
    extra = {"rss": largest.rss / 1024, "vmsize": largest.vms / 1024, "pss": pss / 1024}
    if children_of_same_name:
        of_master = master.memory_info()
        extra |= {"master_rss": of_master.rss / 1024, "master_vmsize": of_master.vms / 1024}
    return Sample("psutil", seconds=0.0, usage=usage, extra=extra)
