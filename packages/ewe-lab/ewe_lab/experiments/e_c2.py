"""EWE, section 4.1: threads share one table of descriptors, processes do not.

A process may open a limited number of files and sockets. Under the thread model all connections are in one process,
so the limit stops the server; under fork each connection is in its own process, which needs few:

    limit 64:   thread    ████████████ 64 ░░░░░░░░░░░░  the other connections get no answer
                fork      ████████████████████████████  each child has its own 64

The event loop stands beside both: it is one process, too.

Possible failures: ewe adapts its connection limit to the limit of descriptors when it starts. The experiment
therefore lowers the limit of the running server (BEHIND_ITS_BACK).
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ewe_lab.bench.experiment import Bench, ServerUnderTest
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.clients import COMPLETE_HEAD, connections, count_answered, measure_repeatedly

LIMITS = (64, 256, 1024)
ALMOST_ALL = 0.99  # share of the connections
QUIET_S = 1.5  # seconds without an answer: by then every accepted connection has its answer
CONNECTION_LIMIT_OPTION = ("--connections", "2000")  # so that descriptors are the first limit that is reached
BEHIND_ITS_BACK = (
    "The limit of descriptors is lowered while the server runs. If ewe starts under the limit, it keeps its "
    "connection limit below, so that a descriptor is left for the requested file; here the event loop accepts "
    "further connections."
)
SERVERS = (
    ServerUnderTest("thread", model="thread", options=CONNECTION_LIMIT_OPTION),
    ServerUnderTest("asyncio", model="asyncio", options=CONNECTION_LIMIT_OPTION),
    ServerUnderTest("fork", model="fork", options=CONNECTION_LIMIT_OPTION),
)


def run(lab: Bench) -> Iterator[Cell]:
    """Open connections, keep them open, and count the connections that get an answer; yield the cells."""
    root = lab.site([])
    lab.notes.append(BEHIND_ITS_BACK)
    for limit in LIMITS:
        # Twice 1,024 would be more than CONNECTION_LIMIT_OPTION allows
        offers = (limit // 2, limit, 2 * limit) if limit < 1024 else (512, 1024, 1500)
        for tested in lab.servers(SERVERS):
            for offered in offers[1:] if lab.quick else offers:
                cell = Cell(
                    tested.name, f"limit {limit}", offered, value="extra.accepted", unit="connections"
                )
                cell.load = f"{offered} connections, one request each, kept open"
                measure = partial(offer_connections, lab, tested, root, limit)
                yield measure_repeatedly(lab, cell, measure)


def offer_connections(lab: Bench, tested: ServerUnderTest, root: Path, limit: int, cell: Cell) -> Cell:
    """Open `cell.x` connections to a server with so many descriptors; add the sample to the cell, and return it.

    The sample's figure `extra.accepted` is the number of connections that got an answer. A LabError, or a limit
    that the kernel refuses, becomes the cell's failure.
    """
    offered = int(cell.x or 0)
    try:
        with lab.start(tested, root) as server:
            cell.command = server.command
            # Only now: at its start ewe would take the limit into account (BEHIND_ITS_BACK)
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, limit))
            with connections(server.url, offered, COMPLETE_HEAD) as opened:
                count = count_answered(opened, QUIET_S)
        sample = Sample("sockets", seconds=0.0, requests=offered, replies=count, connections=len(opened))
        sample.extra["accepted"] = count
        cell.samples.append(sample)
    except (LabError, OSError) as reason:
        cell.failure = str(reason)
    return cell


def check(table: ExperimentTable) -> Finding:
    """Return the finding: the claim holds if threads stop below the limit and fork answers every connection."""
    confirmed: list[str] = []
    broken: list[str] = []
    for limit in LIMITS:
        answered_shares = {
            cell.server: (cell.median or 0) / cell.x
            for cell in table.cells
            if cell.column == f"limit {limit}" and cell.x and cell.x > limit and cell.samples
        }
        if "thread" in answered_shares and "fork" in answered_shares:
            good = answered_shares["thread"] < ALMOST_ALL <= answered_shares["fork"]
            summary = (
                f"at {limit}, thread {answered_shares['thread']:.0%} and fork {answered_shares['fork']:.0%} "
                "of what was offered"
            )
            (confirmed if good else broken).append(summary)
    if not confirmed and not broken:
        return Finding(NOT_TESTABLE, "Thread and fork were not both measured.")
    verdict = IN_PART if confirmed and broken else HOLDS if confirmed else FAILS
    return Finding(verdict, f"Connections answered {'; '.join([*confirmed, *broken])}.")
