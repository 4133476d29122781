"""The counters of the status, the access log and the clients agree: under every model, and if a response is cut."""

from __future__ import annotations

import re
import socket
import ssl
from pathlib import Path

import pytest
from support.server import Server, Start, wait_until

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
