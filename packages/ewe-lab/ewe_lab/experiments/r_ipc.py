"""RDBMS, section 3.3: the kinds of IPC between a gateway and the daemon, bare and under ewe-dbd.

Pipes, Unix sockets, TCP and message queues carry the same bytes at different prices. Two measurements show them:

    bare         two processes exchange messages, and do nothing else (../load/ipc_kinds.py)
    statement    a client sends SELECT 1 to ewe-dbd at an address of each kind: parsing and the database are added

Possible failures: the bare price is a small part of a statement's time, so a difference there may be chance.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator

from ewe.database.client import Client
from ewe.database.protocol import ClientRequest, DatabaseError
from ewe.database.timing import ask_once, consume, fastest
from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.processes import LabError, cpu_seconds, load_core, on_core
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.bench.verdicts import LEVEL_RATIO, NOT_TESTABLE, Finding, verdict_of_parts
from ewe_lab.experiments.child_process import figures_of
from ewe_lab.load.ipc_kinds import ANSWER, EXCHANGE, KINDS, STREAM
from ewe_lab.stacks import databases
from ewe_lab.stacks.servers import free_port

EXCHANGE_COUNTS = (2_000, 10_000)  # exchanges of a round, quick and full
ROUNDS = 3
MAX_RUN_S = 120.0  # seconds for all bare kinds
STATEMENT_COUNTS = (200, 1_000)  # statements at each address, quick and full
STATEMENT = "SELECT 1"
QUEUES, SOCKETS = ("POSIX queue", "System V queue"), ("Unix socket", "TCP loopback")
EXCHANGE_COLUMN = "exchange of 64 bytes"
KEPT_CONNECTION, NEW_CONNECTION = "statement, kept connection", "statement, a connection each"
REMARKS = (
    "Bare: two processes on one core, as on the paper's machine, which only exchange messages. CPU is that of "
    "both.",
    "Statement: SELECT 1 through ewe-dbd, the fastest of its batches. CPU is the daemon's alone. ewe-dbd has no "
    "queues of System V.",
    "The paper used queues of messages in one test and named pipes in the other, so it compares none of them.",
)


def run(lab: Bench) -> Iterator[Cell]:
    """Measure the bare kinds, then the daemon at an address of each kind; yield the cells."""
    yield from measure_bare_kinds(lab)
    yield from measure_daemon(lab)
    lab.notes += REMARKS


def measure_bare_kinds(lab: Bench) -> Iterator[Cell]:
    """Measure two processes that only exchange messages; yield a cell for each kind of call and of IPC."""
    count = int(lab.quick_or_full(*EXCHANGE_COUNTS))
    try:
        found = measure_rounds(count)
    except LabError as reason:
        found = dict.fromkeys(KINDS, str(reason))
    for name, title in (
        (EXCHANGE, EXCHANGE_COLUMN),
        (ANSWER, "answer of 5,605 bytes"),
        (STREAM, "a message in a stream"),
    ):
        for kind in KINDS:
            figures = found[kind]
            cell = Cell(kind, title, value="extra.micros", unit="µs", load=f"{count} calls, {ROUNDS} rounds")
            if isinstance(figures, str):
                cell.failure = figures
            else:
                cell.samples = [
                    Sample(
                        "exchanges", seconds=0.0, extra={"micros": wall, "cpu": cpu, "per_second": 1e6 / wall}
                    )
                    for wall, cpu in zip(figures[name], figures[f"{name} cpu"], strict=True)
                ]
            yield cell


def measure_rounds(count: int) -> dict[str, dict[str, list[float]] | str]:
    """Run `count` calls of each kind of IPC, between two processes, in ROUNDS rounds; return the times.

    By kind of IPC: the reason as text if this kind cannot be used here; else by kind of call the µs of a call in
    each round (EXCHANGE, ANSWER), or of one message (STREAM), and as f"{EXCHANGE} cpu" the µs of CPU time of both
    processes for the same. Raises LabError.
    """
    times_by_kind: dict[str, dict[str, list[float]] | str] = figures_of(
        "ewe_lab.load.ipc_kinds", [str(count), str(ROUNDS)], MAX_RUN_S,
        f"the exchanges took longer than {MAX_RUN_S:g} s",
    )  # fmt: skip
    return times_by_kind


def measure_daemon(lab: Bench) -> Iterator[Cell]:
    """Measure a statement at each address of a daemon; yield the cells.

    The statement is sent over a kept connection, and over a new one each time. TCP needs the key of the database.
    """
    secret, pipes = secrets.token_hex(8), lab.directory / "pipes"
    addresses = {
        "pipe": f"fifo:{pipes}",
        "POSIX queue": f"mq:ewe-lab-{os.getpid()}",
        "TCP loopback": f"127.0.0.1:{free_port()}",
    }
    with databases.open_database(lab, databases.SQLITE) as database:
        try:
            with (
                databases.daemon(lab, database, listen=list(addresses.values()), key=secret) as daemon,
                on_core(load_core()),
            ):
                request = ClientRequest(databases.DATABASE_NAME, STATEMENT, "CSV", key=secret, read_only=True)
                for kind, address in {"Unix socket": daemon.address, **addresses}.items():
                    yield from measure_address(lab, kind, address, request, daemon.pid)
        except LabError as reason:
            lab.notes.append(f"The daemon is left out: {reason}")


def measure_address(lab: Bench, kind: str, address: str, request: ClientRequest, pid: int) -> Iterator[Cell]:
    """Measure one address; yield its two cells. kind: of IPC. pid: of the daemon."""
    count = int(lab.quick_or_full(*STATEMENT_COUNTS))
    cells = {
        name: Cell(kind, name, value="extra.micros", unit="µs", load=f"{count} statements")
        for name in (KEPT_CONNECTION, NEW_CONNECTION)
    }
    try:
        with Client(address) as client:
            ways: dict[str, Callable[[], None]] = {
                KEPT_CONNECTION: lambda: consume(client.ask(request)),
                NEW_CONNECTION: lambda: ask_once(address, request),
            }
            for _ in range(lab.repeats):
                for name, way in ways.items():
                    (least,) = fastest([way], max(count // 100, 1))  # seconds of a call, in the fastest batch
                    before, began = cpu_seconds(pid), time.perf_counter()
                    for _ in range(count):
                        way()
                    wall, cpu = time.perf_counter() - began, cpu_seconds(pid) - before
                    extra = {"micros": least * 1e6, "cpu": cpu / count * 1e6, "per_second": count / wall}
                    cells[name].samples.append(Sample("ewe-dbd", seconds=0.0, extra=extra))
    except (OSError, DatabaseError) as reason:
        for cell in cells.values():
            cell.failure = str(reason)
    yield from cells.values()


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim holds if both kinds of queues take less time for an exchange than both kinds of sockets.
    """
    found = {
        cell.server: min(cell.values)
        for cell in table.cells
        if cell.column == EXCHANGE_COLUMN and cell.values
    }
    queues = [found[kind] for kind in QUEUES if kind in found]
    sockets = [found[kind] for kind in SOCKETS if kind in found]
    if not queues or not sockets:
        return Finding(NOT_TESTABLE, "Queues and sockets were not both measured.")
    part_holds = [queue * LEVEL_RATIO < each for queue in queues for each in sockets]
    summary = ", ".join(f"{kind} {micros:.1f} µs" for kind, micros in found.items())
    return Finding(
        verdict_of_parts(part_holds),
        f"An exchange of 64 bytes takes: {summary}.",
    )
