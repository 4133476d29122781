"""An HTTP server behind a proxy: it says what a test wants, byte for byte, and notes what it was asked."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

# Heads of responses that can be read in two ways, or not at all
BAD_HEADS = [
    b"HTTP/2 200 OK\r\n\r\n",
    b"HTTP/1.1 99 Low\r\n\r\n",
    b"HTTP/1.1 600 High\r\n\r\n",
    b"HTTP/1.1 2000 Long\r\n\r\n",
    b"HTTP/1.1  200 OK\r\n\r\n",
    b"http/1.1 200 OK\r\n\r\n",
    b"HTTP/1.1 200 OK\nA: b\r\n\r\n",
    b"HTTP/1.1 200 O\rK\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nA: b\0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0x5\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 201 + b"\r\n",
]


class Asked:
    """One request. head: with its empty line. body: decoded. file: what the rest is read from."""

    def __init__(self, head: bytes, body: bytes, file: Any = None) -> None:
        self.head = head
        self.file = file
        self.body = body
        line, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        self.method, self.target, _ = line.split(" ")
        self.fields = [
            (name.lower(), value.strip()) for name, _, value in (each.partition(":") for each in lines)
        ]

    def all(self, name: str) -> list[str]:
        """Return the values of a field."""
        return [value for own, value in self.fields if own == name]


class HTTPUpstream:
    """Listens on a free port, or on a Unix socket. Each connection has a thread.

    answers: the response for each path, as bytes, or a function of (connection, request) that sends it and returns
    whether the connection stays open. A path without a response gets the request as a JSON object. A response of
    bytes closes the connection unless it ends in KEEP.
    """

    KEEP = b"\0keep"

    def __init__(self, path: str = "") -> None:
        if path:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(path)
            self.listener.listen(64)
        else:
            self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
            self.port = self.listener.getsockname()[1]
        self.answers: dict[str, Any] = {}
        self.asked: list[Asked] = []
        self.connections = 0
        self.open: set[socket.socket] = set()
        self.ended = threading.Semaphore(0)  # released once for each connection that the other side has ended
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        """Accept connections until close()."""
        with suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                self.connections += 1
                self.open.add(sock)
                threading.Thread(target=self.serve, args=(sock,), daemon=True).start()

    def serve(self, sock: socket.socket) -> None:
        """Answer the requests of one connection."""
        try:
            with sock.makefile("rb") as file:
                while (asked := self.read(file, sock)) is not None:
                    self.asked.append(asked)
                    if not self.answer(sock, asked):
                        break
                else:
                    self.ended.release()
        except OSError:
            self.ended.release()
        finally:
            self.open.discard(sock)
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def read(self, file: Any, sock: socket.socket) -> Asked | None:
        """Return the next request; None at the end."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = file.readline()
            if not line:
                return None
            head += line
        asked = Asked(head, b"", file)
        path = asked.target.partition("?")[0]
        if path.endswith("/unread"):
            return asked
        length, chunked = asked.all("content-length"), asked.all("transfer-encoding")
        assert len(length) + len(chunked) <= 1, head
        if chunked:
            assert chunked == ["chunked"]
            while size := int(file.readline(), 16):
                asked.body += file.read(size)
                assert file.read(2) == b"\r\n"
            assert file.readline() == b"\r\n"
        elif length:
            asked.body = file.read(int(length[0]))
            if len(asked.body) < int(length[0]):
                return None
        return asked

    def answer(self, sock: socket.socket, asked: Asked) -> bool:
        """Send the response; return whether the connection stays open."""
        found: bytes | Callable[[socket.socket, Asked], bool] | None
        found = self.answers.get(asked.target.partition("?")[0])
        if callable(found):
            return bool(found(sock, asked))
        if found is None:
            about = {
                "method": asked.method, "target": asked.target, "fields": asked.fields,
                "length": len(asked.body), "sha": hashlib.sha256(asked.body).hexdigest(),
            }  # fmt: skip
            body = json.dumps(about).encode()
            found = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body + self.KEEP
        sock.sendall(found.removesuffix(self.KEEP))
        return found.endswith(self.KEEP)

    def close_idle(self) -> None:
        """Close every connection, as a server does with idle ones."""
        for sock in list(self.open):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop listening, and close all connections."""
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.close_idle()
