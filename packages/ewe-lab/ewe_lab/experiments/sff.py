"""The order in which a pool serves waiting requests: which requests gain by it, and which ones wait (lab 7).

A pool of one thread serves one client at a time. One client occupies it with a download that it does not read. Then
requests come, a large file first, and many small ones; all of them wait. The first client leaves, and the queue
empties by the policy:

    occupied ── large, small, small, ... wait ──▶ the thread is free: t = 0 ──▶ each response ends at its own t

The response times therefore differ by the order alone: there are no arrivals meanwhile, and no idle time. The
access log has the order, because the kernel may have several responses when the clients look.
"""

from __future__ import annotations

import select
import socket
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from ewe_lab.bench.experiment import Bench, RunningServer, ServerUnderTest
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.bench.verdicts import NOT_TESTABLE, Finding, verdict_of_parts
from ewe_lab.experiments.clients import host_and_port, measure_cells

SMALL_BYTES = 16 * 1024
LARGE_FACTORS = (1, 100, 4000)  # how many times as large as a small file the large one is
SMALL_ONES = 40
MAX_ALIKE_RATIO = 2  # of the mean by sff to that by fifo, or the reverse, if all files have the same size
AGEING = 8  # the default of schedule-ageing
OCCUPIES_BYTES = 16 * 1024 * 1024  # more than the buffers of both sockets
BUFFER_BYTES = 64 * 1024  # of the client that does not read
RECEIVE_BYTES = 1024 * 1024  # of one receive
TIMEOUT_S = 20.0
SETTLE_S = 0.3  # seconds until the server has seen all heads
MEAN, BEFORE = "mean response time", "small files before the large one"
ONE_THREAD = ("--parking", "idle", "--poolthreads", "1")
SFF = (*ONE_THREAD, "--schedule", "sff")
FIFO, AGEING_SFF, PURE_SFF = "fifo", f"sff, ageing {AGEING}", "sff, no ageing"
SERVERS = (
    ServerUnderTest(FIFO, model="pool", options=ONE_THREAD),
    ServerUnderTest(AGEING_SFF, model="pool", options=SFF),
    ServerUnderTest(PURE_SFF, model="pool", options=(*SFF, "--schedule-ageing", "1000000")),
)


def run(lab: Bench) -> Iterator[Cell]:
    """Empty a queue by each policy, with a large file of different sizes; yield the cells."""
    root = lab.site([])
    for name, size in (("occupies", OCCUPIES_BYTES), ("small", SMALL_BYTES)):
        (root / name).write_bytes(bytes(size))
    for factor in LARGE_FACTORS:
        (root / f"large-{factor}").write_bytes(bytes(SMALL_BYTES * factor))
    log = lab.directory / "order.log"
    for tested in lab.servers(SERVERS):
        logging = replace(tested, options=(*tested.options, "--access-log", str(log)))
        for factor in LARGE_FACTORS:
            cells = [
                Cell(tested.name, MEAN, factor, value="extra.mean", unit="ms"),
                Cell(tested.name, BEFORE, factor, value="extra.before", unit="requests"),
            ]
            measure = partial(measure_emptying, large=f"/large-{factor}", log=log)
            yield from measure_cells(lab, logging, root, cells, measure, lab.repeats)


def connect_and_ask(server: RunningServer, path: str, receive_buffer_bytes: int = 0) -> socket.socket:
    """Connect and send a request; return the connection, with the response still unread. Raises OSError.

    receive_buffer_bytes: the size of the client's buffer; 0: as the system chooses.
    """
    sock = socket.socket()
    sock.settimeout(TIMEOUT_S)
    if receive_buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    sock.connect(host_and_port(server.url))
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    return sock


def measure_emptying(server: RunningServer, large: str, log: Path) -> Sample:
    """Let requests wait, and then be served; return their mean response time, and the place of the large file.

    The first client occupies the only thread, so that all others wait until it leaves. large: the path of the large
    file. log: the server's access log. Raises LabError.

    The figures of the sample: `extra.mean` in ms, and `extra.before`, how many small files came before the large
    one.
    """
    opened: list[socket.socket] = []
    try:
        occupies = connect_and_ask(server, "/occupies", BUFFER_BYTES)
        opened.append(occupies)
        occupies.recv(1)  # the thread serves this client
        for path in (large, *["/small"] * SMALL_ONES):
            opened.append(connect_and_ask(server, path))
        time.sleep(SETTLE_S)
        served = len(targets(log))
        began = time.monotonic()
        occupies.close()  # with unread bytes: the kernel resets the connection, and the thread is free at once
        ends = [end - began for end in ends_of(opened[1:])]
        # The log also gets the lines of the first client and of the large file
        order = settled_targets(log, served + 2 + SMALL_ONES)[served:]
    except OSError as reason:
        raise LabError(f"a client got no response: {reason.strerror or reason}") from None
    finally:
        for sock in opened:
            sock.close()
    before = order[: order.index(large)].count("/small")
    extra = {"mean": 1000 * statistics.mean(ends), "before": float(before)}
    return Sample("sockets", seconds=max(ends), requests=len(ends), replies=len(ends), extra=extra)


def targets(log: Path) -> list[str]:
    """Return the targets of the requests in an access log."""
    lines = log.read_text().splitlines() if log.exists() else []
    # ... "GET /small HTTP/1.1" ...; the last line may not be complete yet
    return [line.split('"')[1].split()[1] for line in lines if line.count('"') >= 2]


def settled_targets(log: Path, lines: int) -> list[str]:
    """Return the targets in an access log once it has so many lines. Raises LabError."""
    end = time.monotonic() + TIMEOUT_S
    while len(found := targets(log)) < lines:
        if time.monotonic() > end:
            raise LabError(f"the access log has {len(found)} of {lines} lines")
        time.sleep(0.01)
    return found


def ends_of(clients: list[socket.socket]) -> list[float]:
    """Read all responses; return the time.monotonic() of the end of each. Raises OSError, LabError."""
    ends: dict[int, float] = {}
    poll = select.poll()
    by_descriptor = {sock.fileno(): sock for sock in clients}
    for sock in clients:
        sock.setblocking(False)
        poll.register(sock, select.POLLIN)
    while len(ends) < len(clients):
        found = poll.poll(TIMEOUT_S * 1000)
        if not found:
            raise LabError(f"a client got no response within {TIMEOUT_S:g} s")
        for descriptor, _ in found:
            # No bytes: the server has closed, so the response is complete
            if not by_descriptor[descriptor].recv(RECEIVE_BYTES):
                ends[descriptor] = time.monotonic()
                poll.unregister(descriptor)
    return [ends[sock.fileno()] for sock in clients]


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim: it holds if all of its four parts hold, and in part if some do.

    1. If the sizes differ most, sff without ageing at least halves the mean response time of fifo.
    2. In the same case, sff with ageing reaches less than half of this gain.
    3. If all files have the same size, sff and fifo have means within a factor of MAX_ALIKE_RATIO.
    4. The pool serves this many small files before the large one: none by fifo, AGEING by sff with ageing, and all
       by sff without ageing.
    """
    found = {
        (cell.server, cell.column, cell.x): cell.median for cell in table.cells if cell.median is not None
    }
    largest_factor = LARGE_FACTORS[-1]
    try:
        policies = (FIFO, AGEING_SFF, PURE_SFF)
        fifo_ms, aged_ms, pure_ms = (found[name, MEAN, largest_factor] for name in policies)
        equal_ratio = found[PURE_SFF, MEAN, 1] / found[FIFO, MEAN, 1]
        before_fifo, before_aged, before_pure = (found[name, BEFORE, largest_factor] for name in policies)
    except (KeyError, ZeroDivisionError):
        return Finding(NOT_TESTABLE, "Not all policies were measured.")
    parts = (
        pure_ms <= fifo_ms / 2,
        fifo_ms - aged_ms < (fifo_ms - pure_ms) / 2,
        1 / MAX_ALIKE_RATIO < equal_ratio < MAX_ALIKE_RATIO,
        before_fifo == 0 and before_aged == AGEING and before_pure == SMALL_ONES,
    )
    verdict = verdict_of_parts(parts)
    return Finding(
        verdict,
        f"With a file {largest_factor:,} times as large: {fifo_ms:.1f} ms by fifo, {aged_ms:.1f} ms by sff with "
        f"ageing, {pure_ms:.1f} ms without; alike, sff takes {equal_ratio:.2f} times as long as fifo. Before the "
        f"large file came {before_fifo:.0f}, {before_aged:.0f} and {before_pure:.0f} of {SMALL_ONES} small ones.",
    )
