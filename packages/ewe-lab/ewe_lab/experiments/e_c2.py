"""EWE, section 4.1: threads share one table of descriptors, processes do not."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from ewe_lab.bench.experiment import Bench, Contender
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, Sample, Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.clients import ASKING, answered, connections

LIMITS = (64, 256, 1024)
QUIET = 1.5  # seconds without an answer: by then every accepted connection has its answer
MANY = ("--connections", "2000")  # so that descriptors are the first limit that is reached
BEHIND_ITS_BACK = (
    "The limit is lowered when the server runs already. Started with it, ewe keeps its ceiling of connections "
    "below it, so that a descriptor is left for the file that is asked for; here the event loop accepts on."
)
SERVERS = (
    Contender("thread", model="thread", options=MANY),
    Contender("asyncio", model="asyncio", options=MANY),
    Contender("fork", model="fork", options=MANY),
)


def run(lab: Bench) -> Iterator[Cell]:
    """Open connections, keep them open, and count those that are answered."""
    root = lab.site([])
    lab.notes.append(BEHIND_ITS_BACK)
    for limit in LIMITS:
        offers = (limit // 2, limit, 2 * limit) if limit < 1024 else (512, 1024, 1500)
        for contender in lab.servers(SERVERS):
            for offered in offers[1:] if lab.quick else offers:
                cell = Cell(contender.name, f"limit {limit}", offered, "extra.accepted", "connections")
                cell.load = f"{offered} connections, one request each, kept open"
                try:
                    with lab.start(contender, root) as server:
                        cell.command = server.command
                        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, limit))
                        with connections(server.url, offered, ASKING) as opened:
                            count = answered(opened, QUIET)
                    sample = Sample("sockets", 0.0, offered, count, len(opened))
                    sample.extra["accepted"] = count
                    cell.samples.append(sample)
                except LabError as reason:
                    cell.failure = str(reason)
                yield cell


def check(table: Table) -> Finding:
    """The claim holds if threads stop below the limit and fork answers every connection."""
    kept: list[str] = []
    broken: list[str] = []
    for limit in LIMITS:
        found = {
            cell.server: (cell.median or 0) / cell.x
            for cell in table.cells
            if cell.column == f"limit {limit}" and cell.x and cell.x > limit and cell.samples
        }
        if "thread" in found and "fork" in found:
            good = found["thread"] < 0.99 and found["fork"] >= 0.99
            told = (
                f"at {limit}, thread {found['thread']:.0%} and fork {found['fork']:.0%} of what was offered"
            )
            (kept if good else broken).append(told)
    if not kept and not broken:
        return Finding(NOT_TESTABLE, "Thread and fork were not both measured.")
    word = IN_PART if kept and broken else HOLDS if kept else FAILS
    return Finding(word, f"Connections answered {'; '.join([*kept, *broken])}.")
