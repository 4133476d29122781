"""HTTP as bytes on a socket: reading responses byte-exact, ending a connection with a reset."""

from __future__ import annotations

import socket
import ssl
import struct
from typing import Any

PEEKED_BYTES = 4096  # more than a head has


def request_of(line: str, *fields: str, body: bytes = b"") -> bytes:
    """Return a request to the host ewe: "GET /" is one of HTTP/1.1."""
    line = line if "HTTP/" in line else line + " HTTP/1.1"
    return "\r\n".join((line, "Host: ewe", *fields, "", "")).encode("latin-1") + body


def chunked(*pieces: bytes) -> bytes:
    """Return a chunked body."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))


def read_all(sock: socket.socket) -> bytes:
    """Return everything until the server closes."""
    data = b""
    while piece := sock.recv(65536):
        data += piece
    return data


def read_response(sock: socket.socket, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """Read one response off a kept connection, byte-exact; return status, fields (lower case), body."""
    file = sock.makefile("rb", buffering=0)
    head = read_to(sock, b"\r\n\r\n", "within a head")
    lines = head.decode("latin-1").split("\r\n")
    status = int(lines[0].split(" ")[1])
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:-2])}
    body = b""
    if method == "HEAD" or status in (204, 304) or status < 200:
        return status, fields, body
    if fields.get("transfer-encoding") == "chunked":
        while True:
            line = read_to(sock, b"\r\n", f"after {len(body)} bytes of chunks")
            size = int(line, 16)
            body += read_exactly(file, size)
            assert read_exactly(file, 2) == b"\r\n"
            if size == 0:
                return status, fields, body
    if "content-length" in fields:
        return status, fields, read_exactly(file, int(fields["content-length"]))
    return status, fields, read_all(sock)


def read_to(sock: socket.socket, end: bytes, where: str) -> bytes:
    """Return the bytes up to `end`, and `end`; leave the bytes that follow in the socket. where: for the error."""
    data = b""
    while not data.endswith(end):
        # A peek finds the end in one call, without a call for each byte. A TLS socket has no peek
        seen = b"" if isinstance(sock, ssl.SSLSocket) else sock.recv(PEEKED_BYTES, socket.MSG_PEEK)
        place = (data + seen).find(end)
        piece = sock.recv(place + len(end) - len(data) if place >= 0 else len(seen) or 1)
        if not piece:
            raise ConnectionError(f"the connection ended {where}: {data!r}")
        data += piece
    return data


def read_exactly(file: Any, count: int) -> bytes:
    """Return count bytes."""
    data = b""
    while len(data) < count:
        piece = file.read(count - len(data))
        if not piece:
            raise ConnectionError(f"the connection ended after {len(data)} of {count} bytes")
        data += piece
    return data


def reset(sock: socket.socket) -> None:
    """End a connection with a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
