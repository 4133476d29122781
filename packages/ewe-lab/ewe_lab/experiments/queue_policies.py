"""What a scheduled pool does beyond the order of its queue: a response in progress, and a full queue (lab 7).

Two scenes with a pool of one thread. Neither needs a clock: the access log or the statuses show the order.

    in progress   a large file has begun, its client pauses ── small ones come ──▶ which of them end before it?
    full queue    the thread is occupied ── 16 requests come, 8 may wait ──▶ which 8 are served?

The first scene shows what `srpt` adds to `sff`. With parking = idle a thread sends a response to its end, and small
files wait for a large one that has begun (head-of-line blocking). `srpt` needs parking = always, which puts a
response in progress back into the queue. First come, first served with parking = always stands beside it: there,
too, a response that waits for its client occupies no thread.

Read next: sff.py, the order of a queue.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ewe_lab.bench.experiment import Bench, RunningServer, ServerUnderTest
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.bench.verdicts import NOT_TESTABLE, Finding, verdict_of_parts
from ewe_lab.experiments.clients import measure_cells
from ewe_lab.experiments.sff import (
    BUFFER_BYTES,
    OCCUPIES_BYTES,
    ONE_THREAD,
    RECEIVE_BYTES,
    SETTLE_S,
    SMALL_BYTES,
    SMALL_ONES,
    connect_and_ask,
    ends_of,
    settled_targets,
    targets,
)

IN_PROGRESS_BYTES = 64 * 1024 * 1024  # more than the buffers of both sockets
LARGE_BYTES = 1024 * 1024
QUEUE_LENGTH = 8
HALF = "ssLssLss"  # the small and large files of the first half of the requests, and of the second
SPACING_S = 0.005  # between two requests, so that they come in this order
PASSED = "small files before one in progress"
SMALL_SERVED, LARGE_SERVED, EARLY_SERVED = (
    "small files served",
    "large files served",
    "served of the first half",
)
NO_AGEING = ("--schedule-ageing", "1000000")
SFF = (*ONE_THREAD, "--schedule", "sff", *NO_AGEING)
ALWAYS = ("--parking", "always", "--poolthreads", "1")
ORDERS = {  # server: the small files that pass a large one in progress
    ServerUnderTest("fifo, parking idle", model="pool", options=ONE_THREAD): 0,
    ServerUnderTest("sff, parking idle", model="pool", options=SFF): 0,
    ServerUnderTest("fifo, parking always", model="pool", options=ALWAYS): SMALL_ONES,
    ServerUnderTest(
        "srpt, parking always", model="pool", options=(*ALWAYS, "--schedule", "srpt", *NO_AGEING)
    ): SMALL_ONES,
}


class ServedCounts(NamedTuple):
    """How many files are served: small ones, large ones, and those that were requested in the first half."""

    small: float
    large: float
    early: float


DROPS = {  # by the value of the setting `overload`
    "refuse": ServedCounts(small=6, large=2, early=8),
    "drop-oldest": ServedCounts(small=6, large=2, early=0),
    "drop-largest": ServedCounts(small=8, large=0, early=6),
}


def run(lab: Bench) -> Iterator[Cell]:
    """Send small files behind a large one in progress, then fill a queue, by each policy; yield the cells."""
    root = lab.site([])
    sizes = {"occupies": OCCUPIES_BYTES, "begun": IN_PROGRESS_BYTES, "L": LARGE_BYTES, "s": SMALL_BYTES}
    for name, size in sizes.items():
        (root / name).write_bytes(bytes(size))
    log = lab.directory / "order.log"
    for tested in lab.servers(tuple(ORDERS)):
        logging = replace(tested, options=(*tested.options, "--access-log", str(log)))
        cells = [Cell(tested.name, PASSED, value="extra.passed", unit="requests")]
        yield from measure_cells(lab, logging, root, cells, partial(measure_passing, log=log), lab.repeats)
    columns = ((SMALL_SERVED, "small"), (LARGE_SERVED, "large"), (EARLY_SERVED, "early"))
    for tested in lab.servers(dropping_servers()):
        cells = [Cell(tested.name, column, value=f"extra.{key}", unit="requests") for column, key in columns]
        yield from measure_cells(lab, tested, root, cells, measure_full_queue, lab.repeats)


def dropping_servers() -> tuple[ServerUnderTest, ...]:
    """Return a pool with a short queue for each policy of a full queue."""
    short = (*SFF, "--queue", str(QUEUE_LENGTH))
    return tuple(ServerUnderTest(name, model="pool", options=(*short, "--overload", name)) for name in DROPS)


def measure_passing(server: RunningServer, log: Path) -> Sample:
    """Begin a large file, and ask for small ones while its client pauses; count those that end before it.

    log: the server's access log. Raises LabError.
    """
    opened: list[socket.socket] = []
    served = len(targets(log))
    began = time.monotonic()
    try:
        begun = connect_and_ask(server, "/begun")
        opened.append(begun)
        begun.recv(1)  # the response has begun
        opened += [connect_and_ask(server, "/s") for _ in range(SMALL_ONES)]
        time.sleep(SETTLE_S)
        ends = ends_of(opened)
        order = settled_targets(log, served + 1 + SMALL_ONES)[served:]
    except OSError as reason:
        raise LabError(f"a client got no response: {reason.strerror or reason}") from None
    finally:
        for sock in opened:
            sock.close()
    extra = {"passed": float(order[: order.index("/begun")].count("/s"))}
    return Sample("sockets", seconds=max(ends) - began, requests=len(ends), replies=len(ends), extra=extra)


def measure_full_queue(server: RunningServer) -> Sample:
    """Occupy the only thread, send more requests than may wait, count those with status 200. Raises LabError."""
    opened: list[socket.socket] = []
    began = time.monotonic()
    try:
        occupies = connect_and_ask(server, "/occupies", BUFFER_BYTES)
        opened.append(occupies)
        occupies.recv(1)  # the thread serves this client
        for size in HALF * 2:
            opened.append(connect_and_ask(server, f"/{size}"))
            time.sleep(SPACING_S)
        time.sleep(SETTLE_S)
        occupies.close()  # with unread bytes: the kernel resets the connection, and the thread is free at once
        is_served = [status_of(sock) == 200 for sock in opened[1:]]
    except OSError as reason:
        raise LabError(f"a client got no response: {reason.strerror or reason}") from None
    finally:
        for sock in opened:
            sock.close()
    served = [(number, size) for number, size in enumerate(HALF * 2) if is_served[number]]
    extra = {
        "small": float(sum(size == "s" for _, size in served)),
        "large": float(sum(size == "L" for _, size in served)),
        "early": float(sum(number < len(HALF) for number, _ in served)),
    }
    return Sample(
        "sockets",
        seconds=time.monotonic() - began,
        requests=len(is_served),
        replies=len(is_served),
        extra=extra,
    )


def status_of(sock: socket.socket) -> int:
    """Read a whole response; return its status. Raises OSError; LabError if the response has no status line."""
    head = b""
    while received := sock.recv(RECEIVE_BYTES):
        head = (head + received)[:16]
    try:
        return int(head.split()[1])  # HTTP/1.1 200 OK
    except (IndexError, ValueError):
        raise LabError("a response has no status line") from None


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim: one part for each order, and one for each policy of a full queue."""
    found = {(cell.server, cell.column): cell.median for cell in table.cells if cell.median is not None}
    try:
        orders = {tested.name: found[tested.name, PASSED] for tested in ORDERS}
        drops = {
            name: ServedCounts(
                found[name, SMALL_SERVED], found[name, LARGE_SERVED], found[name, EARLY_SERVED]
            )
            for name in DROPS
        }
    except KeyError:
        return Finding(NOT_TESTABLE, "Not all policies were measured.")
    parts = [orders[tested.name] == count for tested, count in ORDERS.items()]
    parts += [drops[name] == counts for name, counts in DROPS.items()]
    verdict = verdict_of_parts(parts)
    before = ", ".join(f"{name} {count:.0f}" for name, count in orders.items())
    kept = "; ".join(
        f"{name} {each.small:.0f} small and {each.large:.0f} large files, {each.early:.0f} of them asked for first"
        for name, each in drops.items()
    )
    return Finding(
        verdict,
        f"Of {SMALL_ONES} small files, so many ended before the one in progress: {before}. A queue of "
        f"{QUEUE_LENGTH} served of {2 * len(HALF)} requests: {kept}.",
    )
