"""The counters of the status, the access log and the clients agree: under every model, and if a response is cut."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.server import Server, Start, wait_until, write_program
from support.wire import read_response

PIECE_BYTES = 8 << 20
READ_BYTES = 300_000  # of a response, before the client leaves
APPLICATIONS = """
PIECE = bytes(8 << 20)
HEAD = [("Content-Type", "application/octet-stream")]


def whole(environ, start_response):
    start_response("200 OK", HEAD)
    return [PIECE]


def block(environ, start_response):
    start_response("200 OK", HEAD)
    yield PIECE
"""


def metrics(server: Server, tls: bool = False) -> dict[str, float]:
    """Return each metric of the status: the sum of its samples."""
    with connected(server, tls) as sock:
        sock.sendall(b"GET /ewe-status/metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        data = b""
        while piece := sock.recv(65536):
            data += piece
    found = dict[str, float]()
    for name, value in re.findall(r"^(\w+)(?:{.*})? (\S+)$", data.decode(), re.MULTILINE):
        found[name] = found.get(name, 0) + float(value)
    return found


def connected(server: Server, tls: bool) -> socket.socket:
    """Return a connection whose receive buffer is too small for a large body."""
    sock = socket.socket()
    sock.settimeout(60)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    sock.connect(("127.0.0.1", server.port))
    if not tls:
        return sock
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(sock)


def logged(server: Server, path: str) -> list[int]:
    """Return the bytes of each line of the access log about a path."""
    lines = server.access_file.read_text().splitlines()
    return [int(line.split()[9].replace("-", "0")) for line in lines if f" {path} " in line]


def leave_early(server: Server, path: str, version: str, tls: bool) -> None:
    """Ask for a body, read some of it, and close the connection."""
    with connected(server, tls) as sock:
        sock.sendall(f"GET {path} HTTP/{version}\r\nHost: localhost\r\n\r\n".encode())
        read = 0
        while read < READ_BYTES:
            read += len(sock.recv(65536))


@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=pytest.mark.needs("OpenSSL"))])
def test_a_piece_that_is_cut_counts_the_bytes_that_were_sent(
    start: Start, model_or_loop: str, tls: bool, tmp_path: Path
) -> None:
    (tmp_path / "pieces.py").write_text(APPLICATIONS)
    options = ("--wsgi", "/whole=pieces:whole", "--wsgi", "/block=pieces:block", "--status", "/ewe-status")
    server = start(model_or_loop, *options, *(("--tls", "self") if tls else ()))
    for path in ("/whole", "/block"):
        for at, version in enumerate(("1.1", "1.0")):
            leave_early(server, path, version, tls)
            wait_until(lambda path=path, at=at: len(logged(server, path)) == at + 1, 20)  # type: ignore[misc]
    sizes = [*logged(server, "/whole"), *logged(server, "/block")]
    assert len(sizes) == 4 and all(0 < size < PIECE_BYTES for size in sizes), sizes
    found = metrics(server, tls)
    assert found["ewe_responses_aborted_total"] == 4
    assert found["ewe_response_body_bytes_total"] == sum(sizes)


Exchanges = Counter[tuple[int, int]]  # (status, bytes of the body)
WITH_WORKERS = ("prefork --workers 2", "thread --workers 2", "pool --workers 2", "asyncio --workers 2")
REQUESTS = (
    ("GET", "/"),
    ("GET", "/nope"),
    ("HEAD", "/"),
    ("GET", "/cgi-bin/p.sh"),
    ("POST", "/"),
    ("GET", "/large"),
)


def visit(server: Server, times: int, seen: Exchanges) -> None:
    """Send each request on its own connection, and note the statuses and the sizes of the bodies."""
    for _ in range(times):
        for method, path in REQUESTS:
            with server.connect() as sock:
                line = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"
                sock.sendall(line.encode() + b"Connection: close\r\n\r\n")
                status, _, body = read_response(sock, method)
            seen[status, len(body)] += 1


def from_log(server: Server) -> Exchanges:
    """Return the exchanges in the access log, without those about the status."""
    lines = [line.split() for line in server.access_file.read_text().splitlines()]
    return Exchanges(
        (int(each[8]), int(each[9].replace("-", "0"))) for each in lines if "ewe-status" not in each[6]
    )


def from_status(server: Server) -> dict[str, Any]:
    """Return the numbers of the status, without the requests for it."""
    body = server.ask(b"GET /ewe-status?json HTTP/1.0\r\nHost: localhost\r\n\r\n").partition(b"\r\n\r\n")[2]
    found = json.loads(body)
    assert found["by_feature"].pop("status", None) is None  # nobody has asked before
    assert isinstance(found, dict)
    return found


def prepare(server: Server) -> None:
    """Make a program and a large file."""
    write_program(server.cgi / "p.sh", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nhello'\n")
    (server.root / "large").write_bytes(bytes(PIECE_BYTES))


def agree(server: Server, seen: Exchanges) -> None:
    """Compare the clients' exchanges with the log, and the sums with the status."""
    wait_until(lambda: from_log(server) == seen, 20, lambda: f"{from_log(server)} and {seen}")
    found = from_status(server)
    by_status = Counter[str]()
    for counts in found["by_feature"].values():
        by_status.update(counts)
    wanted = Counter[str]()
    for (status, _), count in seen.items():
        wanted[str(status)] += count
    assert by_status == wanted
    assert found["requests"] == sum(found["duration"]["counts"]) == seen.total()
    assert found["bytes"] == sum(size * count for (_, size), count in seen.items())
    assert found["aborted"] == 0 and found["busy"] == 1  # the request for the status itself


def visit_at_once(server: Server, clients: int, times: int) -> Exchanges:
    """Let some clients visit at the same time; return their exchanges."""
    seen = [Exchanges() for _ in range(clients)]
    threads = [threading.Thread(target=visit, args=(server, times, each)) for each in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = sum(seen, Exchanges())
    assert total.total() == clients * times * len(REQUESTS)  # no thread has failed
    return total


def test_counters_clients_and_log_agree(start: Start, variant: str) -> None:
    server = start(variant, "--status", "/ewe-status")
    prepare(server)
    agree(server, visit_at_once(server, 4, 3))


@pytest.mark.parametrize("workers", WITH_WORKERS)
def test_they_agree_while_workers_retire(start: Start, workers: str) -> None:
    server = start(workers, "--status", "/ewe-status", "--retire", "5")
    prepare(server)
    first = set(server.processes())
    seen = visit_at_once(server, 4, 4)
    wait_until(lambda: len(first & set(server.processes())) == 1, 20)  # all workers were replaced
    agree(server, seen)


def test_an_exchange_whose_process_is_killed_is_in_neither(start: Start) -> None:
    server = start("fork", "--status", "/ewe-status")
    prepare(server)
    seen = visit_at_once(server, 1, 1)
    with connected(server, False) as sock:
        sock.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert sock.recv(1000)
        (child,) = server.processes()[1:]
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: child not in server.processes(), 20)
    agree(server, seen + visit_at_once(server, 2, 1))
