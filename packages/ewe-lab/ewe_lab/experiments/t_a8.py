"""Thesis, tables A.8 and A.11: the memory of an idle server."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ewe_lab.bench.experiment import Bench, Contender
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, Sample, Usage
from ewe_lab.experiments.contenders import (
    APACHE_EVENT,
    APACHE_PREFORK,
    APACHE_WORKER,
    CADDY,
    H2O,
    LIGHTTPD,
    MODELS,
    NGINX,
    TOMCAT,
    YAWS,
)
from ewe_lab.experiments.papers import printed
from ewe_lab.experiments.thesis_static import NAMES

WORKER, SIZE, WHOLE = "worker, VmRSS", "worker, VmSize", "all processes, PSS"
SETTLES = 0.5  # seconds after which a server has started all its processes
SERVERS = (APACHE_PREFORK, APACHE_WORKER, APACHE_EVENT, LIGHTTPD, NGINX, YAWS, TOMCAT, H2O, CADDY, *MODELS)
PRINTED = printed("T-A8")  # kB of a worker, VmRSS and VmSize: plain, and with TLS


def run(lab: Bench) -> Iterator[Cell]:
    """Start each server, plain and with TLS, and look at its processes."""
    for contender in lab.servers(SERVERS):
        for tls in (False, True):
            yield from footprint(lab, contender, tls)


def footprint(lab: Bench, contender: Contender, tls: bool) -> Iterator[Cell]:
    """Measure one server. A peer without TLS here is skipped."""
    then = PRINTED.get(contender.name)
    suffix = " (TLS)" if tls else ""
    try:
        with lab.start(contender, lab.site([]), tls=tls) as server:
            time.sleep(SETTLES)
            sample = look(server.pid)
            command = server.command
    except LabError as reason:
        if not tls:
            yield Cell(contender.name, WORKER, value="extra.rss", unit="kB", failure=str(reason))
        return
    for index, (column, value) in enumerate(
        ((WORKER, "extra.rss"), (SIZE, "extra.vmsize"), (WHOLE, "extra.pss"))
    ):
        cell = Cell(
            contender.name, column + suffix, value=value, unit="kB", samples=[sample], command=command
        )
        if then and index < 2:
            cell.paper, cell.paper_server = then["TLS" if tls else "plain"][index], NAMES[contender.name]
        cell.load = "none"
        yield cell


def look(root: int) -> Sample:
    """Return the memory of the largest serving process, and of all processes."""
    import psutil

    master = psutil.Process(root)
    family = [master, *master.children(recursive=True)]
    same = [
        each for each in family[1:] if each.name() == master.name()
    ]  # a helper process with another name serves no requests
    workers = same or family
    memory = [worker.memory_info() for worker in workers]
    largest = max(memory, key=lambda each: each.rss)
    pss = sum(each.memory_full_info().pss for each in family)
    usage = Usage(0.0, pss, sum(each.num_threads() for each in family), len(family))
    extra = {"rss": largest.rss / 1024, "vmsize": largest.vms / 1024, "pss": pss / 1024}
    return Sample("psutil", 0.0, usage=usage, extra=extra)
