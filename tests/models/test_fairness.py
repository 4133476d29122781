"""One client that always has something to do, and the others: a thread or a loop that serves many goes round.

The server is stopped (SIGSTOP) while both clients send, so that it finds both waiting; the access log tells who was
answered first. No clock is read.
"""

from __future__ import annotations

import os
import signal
import ssl
import struct
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET

import pytest
from support.server import Server, Start, wait_until

SHARED = ("asyncio --loop uvloop", "asyncio --loop asyncio", "pool --poolthreads 1")
OTHER = b"GET /?other HTTP/1.1\r\nHost: ewe\r\n\r\n"


def lines(server: Server) -> list[str]:
    """Return the lines of the access log."""
    return server.access_file.read_text().splitlines() if server.access_file.exists() else []


def order(server: Server, first: bytes, count: int) -> int:
    """Send `first` on one connection, then a request on another; return how many were answered before that.

    count: how many answers `first` gets.
    """
    with server.connect() as busy, server.connect() as other:
        for sock in (busy, other):  # both are known to the server, and it waits for both
            sock.sendall(b"HEAD /?known HTTP/1.1\r\nHost: ewe\r\n\r\n")
            assert sock.recv(1000).startswith(b"HTTP/1.1 200")
        wait_until(lambda: len(lines(server)) == 2, 30)
        os.kill(server.pid, signal.SIGSTOP)
        busy.sendall(first)
        other.sendall(OTHER)
        os.kill(server.pid, signal.SIGCONT)
        wait_until(lambda: len(lines(server)) >= count + 3, 30, lambda: f"{len(lines(server))} lines")
    return next(number for number, line in enumerate(lines(server)[2:]) if "?other" in line)


@pytest.mark.parametrize("name", SHARED)
def test_a_pipeline_of_thousands(start: Start, name: str) -> None:
    count = 1500
    server = start(name, "--requests", "0")
    assert order(server, b"HEAD /?busy HTTP/1.1\r\nHost: ewe\r\n\r\n" * count, count) < count / 5


@pytest.mark.parametrize("name", SHARED)
def test_requests_that_cost_much_and_send_little(start: Start, name: str) -> None:
    server = start(name)
    for number in range(1000):
        (server.root / f"{number}.txt").touch()
    (server.root / "index.html").unlink()
    assert order(server, b"HEAD /?busy HTTP/1.1\r\nHost: ewe\r\n\r\n" * 40, 40) < 10


@pytest.mark.parametrize("name", SHARED)
def test_a_body_of_tiny_chunks(start: Start, name: str) -> None:
    """A chunk of one byte takes longer to decode than to send."""
    server = start(name)
    head = b"POST / HTTP/1.1\r\nHost: ewe\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert order(server, head + b"1\r\nx\r\n" * 9000 + b"0\r\n\r\n", 1) == 0


@pytest.mark.parametrize("name", SHARED)
def test_a_download_whose_client_left(start: Start, name: str, tmp_path: Path) -> None:
    """The file is not encrypted to its end for nobody."""
    server = start(name, "--tls", "self")
    with (server.root / "large").open("wb") as file:
        file.truncate(1 << 32)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with context.wrap_socket(server.connect()) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: ewe\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        client.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: lines(server), 30)
    assert str(1 << 32) not in lines(server)[0]
