"""Thesis, section 2.4.3: what the crash of one handler costs under each model.

Clients connect and send half a request each. One of them completes its request: the handler ends its process, as a
segmentation fault does. Then the others complete theirs. A client without an answer has lost its connection. At the
end a new client asks. Only such events count, and no time.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

from ewe_lab.bench.experiment import Bench, RunningServer, ServerUnderTest
from ewe_lab.bench.processes import ENDED_STATES, LabError, read_process
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.clients import host_and_port, measure_cells

OTHER_CLIENTS = 6  # clients beside the one whose handler crashes
LOST_COLUMN, NEW_CLIENT_COLUMN = "clients that lose their connection", "a new client is answered"
CRASH_OPTIONS = ("--mount", "/crash=ewe_lab.stacks.variants:Crash")
ANSWER_TIMEOUT_S = 20.0  # seconds for one answer
NEW_CLIENT_TIMEOUT_S = 15.0  # seconds for which a new client tries
UNFINISHED_HEAD = "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
SERVERS = (
    ServerUnderTest("serial", model="serial", options=CRASH_OPTIONS),
    ServerUnderTest("fork", model="fork", options=CRASH_OPTIONS),
    ServerUnderTest("prefork", model="prefork", options=("--workers", "8", *CRASH_OPTIONS)),
    ServerUnderTest("thread", model="thread", options=CRASH_OPTIONS),
    ServerUnderTest("pool", model="pool", options=CRASH_OPTIONS),
    ServerUnderTest("asyncio", model="asyncio", options=CRASH_OPTIONS),
    ServerUnderTest("thread, 2 processes", model="thread", options=("--workers", "2", *CRASH_OPTIONS)),
)
ISOLATED_MODELS, SHARED_PROCESS_MODELS = ("fork", "prefork"), ("serial", "thread", "pool", "asyncio")


def run(lab: Bench) -> Iterator[Cell]:
    """Crash a handler under each model; yield the cells."""
    root = lab.site([])
    for tested in lab.servers(SERVERS):
        cells = [
            Cell(tested.name, LOST_COLUMN, value="extra.lost", unit=f"of {OTHER_CLIENTS}"),
            Cell(tested.name, NEW_CLIENT_COLUMN, value="extra.again", unit="(1: yes)"),
        ]
        yield from measure_cells(lab, tested, root, cells, crash_and_count)


def crash_and_count(server: RunningServer) -> Sample:
    """Let one handler crash; return the answers of the other clients and of a new one. Raises LabError."""
    server_address = host_and_port(server.url)
    opened: list[socket.socket] = []
    try:
        for number in range(1 + OTHER_CLIENTS):
            opened.append(socket.create_connection(server_address, ANSWER_TIMEOUT_S))
            path = "/index.html" if number else "/crash"  # the handler of the first client crashes
            opened[-1].sendall(UNFINISHED_HEAD.format(path=path).encode())
        crashing, *others = opened
        if complete_request(crashing):
            raise LabError("the handler did not crash")
        lost = sum(not complete_request(each) for each in others)
    except OSError as reason:
        raise LabError(f"the clients could not connect: {reason.strerror or reason}") from None
    finally:
        for each in opened:
            each.close()
    again = float(new_client_is_answered(server_address, server.pid))
    return Sample("sockets", seconds=0.0, extra={"lost": lost, "again": again})


def complete_request(sock: socket.socket) -> bool:
    """Complete a request by the empty line that ends its head; return whether it is answered with status 200."""
    try:
        sock.sendall(b"\r\n")
        return sock.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def new_client_is_answered(address: tuple[str, int], pid: int) -> bool:
    """Return whether a new client gets an answer before the server ends or NEW_CLIENT_TIMEOUT_S passes.

    pid: of the server's first process.
    """
    end = time.monotonic() + NEW_CLIENT_TIMEOUT_S
    while time.monotonic() < end and (found := read_process(pid)) and found.state not in ENDED_STATES:
        try:
            with socket.create_connection(address, 1.0) as sock:
                sock.sendall(UNFINISHED_HEAD.format(path="/index.html").encode())
                if complete_request(sock):
                    return True
        except OSError:
            pass
        time.sleep(0.1)
    return False


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim has two parts: processes lose no other client; one process loses them all, and answers no more.
    """
    medians = {(cell.server, cell.column): cell.median for cell in table.cells if cell.median is not None}
    # An interrupted run may have one of the two figures of a model
    models = [
        server
        for server, column in medians
        if column == LOST_COLUMN and (server, NEW_CLIENT_COLUMN) in medians
    ]
    apart = [
        medians[model, LOST_COLUMN] == 0 and medians[model, NEW_CLIENT_COLUMN] == 1
        for model in ISOLATED_MODELS
        if model in models
    ]
    together = [
        medians[model, LOST_COLUMN] == OTHER_CLIENTS and not medians[model, NEW_CLIENT_COLUMN]
        for model in SHARED_PROCESS_MODELS
        if model in models
    ]
    if not apart or not together:
        return Finding(NOT_TESTABLE, "Models of one process and of several were not both measured.")
    parts = (all(apart), all(together))
    verdict = HOLDS if all(parts) else IN_PART if any([*apart, *together]) else FAILS
    later = {model: "" if medians[model, NEW_CLIENT_COLUMN] else " and all later ones" for model in models}
    summary = ", ".join(f"{model} {medians[model, LOST_COLUMN]:.0f}{later[model]}" for model in models)
    return Finding(verdict, f"Of {OTHER_CLIENTS} other clients lose their connection: {summary}.")
