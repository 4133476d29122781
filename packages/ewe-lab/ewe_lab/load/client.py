"""The client of a load: one connection, kept or not, one request after the other, every failure by its kind.

It runs under locust's gevent or on plain sockets, and does only what a measurement needs: it sends the same bytes
each time, and reads the status of an answer and finds its end.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ewe.http.response_head import ResponseHead, is_bodiless, parse_response_head
from ewe.http.status import HTTPError
from ewe_lab.bench.experiment import Load

RECEIVE = 256 * 1024  # bytes of one receive
HEAD_AT_MOST = 64 * 1024
KINDS = {
    errno.ECONNREFUSED: "ref",
    errno.ECONNRESET: "res",
    errno.EPIPE: "res",
    errno.ETIMEDOUT: "st",
    errno.EMFILE: "fd",
    errno.ENFILE: "fd",
    errno.EADDRNOTAVAIL: "addr",
}


class Status(Exception):
    """An answer other than 2xx or 3xx; the connection may be kept."""


class BadAnswer(Exception):
    """An answer that is not HTTP, or not of the length expected; the text is one line."""


class Cut(OSError):
    """The server closed before its answer was complete."""


def kind(error: BaseException) -> str:
    """Return the kind of an exception, one of results.ERRORS."""
    if isinstance(error, Status):
        return "status"
    if isinstance(error, Cut | ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "res"
    if isinstance(error, ssl.SSLError):  # its errno is a number of the TLS library
        return "ct" if "timed out" in str(error) else "other"
    if isinstance(error, TimeoutError) and error.errno is None:
        return "ct"
    if isinstance(error, OSError):
        return KINDS.get(error.errno or 0, "other")
    return "other"


@dataclass(frozen=True)
class Target:
    """The requests of a load, and the address of the server."""

    family: int
    address: Any
    host: str
    requests: tuple[bytes, ...]
    timeout: float
    keep_alive: bool
    length: int | None
    reopens: bool
    context: ssl.SSLContext | None


def target(load: Load, url: str) -> Target:
    """Resolve the address once and write the request. Raises OSError, ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url} is not the URL of a server")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    family, _, _, _, address = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)[0]
    fields = f"Host: {parts.netloc}\r\nUser-Agent: ewe-lab\r\n"
    if not load.keep_alive:
        fields += "Connection: close\r\n"
    paths = load.paths or (load.path,)
    context = tls_context(load.tls or "default") if parts.scheme == "https" else None
    return Target(
        family,
        address,
        parts.hostname,
        tuple(f"GET {path} HTTP/1.1\r\n{fields}\r\n".encode() for path in paths),
        load.timeout,
        load.keep_alive,
        load.length,
        load.reopens,
        context,
    )


def tls_context(name: str) -> ssl.SSLContext:
    """Return the TLS context of a client: it accepts any certificate and resumes no session.

    parity: as the thesis of 2011 did, TLS 1.2 with AES256-SHA and the RSA key exchange.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.options |= ssl.OP_NO_TICKET
    if name == "parity":
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("AES256-SHA:@SECLEVEL=0")
    return context


def parse_head(head: bytes) -> ResponseHead:
    """Parse the head of an answer, with its empty line. Raises BadAnswer."""
    try:
        return parse_response_head(head)
    except HTTPError as error:
        raise BadAnswer(f"the answer cannot be read: {error.cause}") from None


class Connection:
    """The connection of a client: opened by the first request, and again after it was closed.

    connections: how many were opened. received: bytes of answers.
    """

    def __init__(self, to: Target) -> None:
        self.to = to
        self.sock: socket.socket | None = None
        self.connections = 0
        self.received = 0
        self.rest = b""  # received bytes of the answer that are not parsed yet

    def ask(self, number: int = 0) -> None:
        """Send the request with that number, in turn, and read the whole answer.

        A browser sends a request again if the server has closed the kept connection meanwhile (RFC 9112 section
        9.3.1), and so do we for a load that `reopens`. Raises OSError, Status, BadAnswer.
        """
        kept, received = self.sock is not None, self.received
        try:
            self.exchange(number)
        except (ConnectionError, Cut):
            if not (self.to.reopens and kept and self.received == received):
                raise
            self.exchange(number)

    def exchange(self, number: int) -> None:
        """Do what ask() says, once."""
        self.deadline = time.perf_counter() + self.to.timeout
        try:
            sock = self.sock
            if sock is None:
                sock = self.sock = self.connect()
            sock.sendall(self.to.requests[number % len(self.to.requests)])
            head = self.read_answer()
        except BaseException:
            self.close()
            raise
        if not head.reusable or not self.to.keep_alive:
            self.close()
        if not 200 <= head.status < 400:
            raise Status(head.status)

    def connect(self) -> socket.socket:
        """Open a connection within the rest of the request's time limit. Raises OSError."""
        sock = socket.socket(self.to.family, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.to.timeout)
            sock.connect(self.to.address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            if self.to.context:
                sock.settimeout(self.left())
                sock = self.to.context.wrap_socket(sock, server_hostname=self.to.host)
        except BaseException:
            sock.close()
            raise
        return sock

    def close(self) -> None:
        """Close, if open."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None
            self.rest = b""

    def left(self) -> float:
        """Return the rest of the request's time limit in seconds. Raises TimeoutError."""
        left = self.deadline - time.perf_counter()
        if left <= 0:
            raise TimeoutError
        return left

    def receive(self) -> bytes:
        """Return the next bytes, b"" at the end. Raises OSError."""
        assert self.sock is not None
        self.sock.settimeout(self.left())
        data = self.sock.recv(RECEIVE)
        self.received += len(data)
        return data

    def read_answer(self) -> ResponseHead:
        """Read an answer to its end."""
        head = self.read_head()
        while head.status < 200:
            head = self.read_head()
        if is_bodiless("GET", head.status):
            length = 0
        elif head.chunked:
            length = self.skip_chunks()
        elif head.length is None:
            length = self.skip_all()
            self.close()
        else:
            length = head.length
            self.skip(length)
        if head.status < 300 and length != (self.to.length if self.to.length is not None else length):
            raise BadAnswer(f"the body has {length} bytes, not {self.to.length}")
        return head

    def read_head(self) -> ResponseHead:
        """Read and parse the head; bytes after it stay in the buffer."""
        data = self.rest
        while (end := data.find(b"\r\n\r\n")) < 0:
            if len(data) > HEAD_AT_MOST:
                raise BadAnswer("the head of the answer has no end")
            more = self.receive()
            if not more:
                raise Cut("closed before the head of the answer was complete")
            data = data + more if data else more
        text, self.rest = data[: end + 4], data[end + 4 :]
        return parse_head(text)

    def skip(self, count: int) -> None:
        """Read so many bytes. Raises Cut if there are fewer."""
        missing = count - len(self.rest)
        if missing <= 0:
            self.rest = self.rest[count:]
            return
        while missing > 0:
            data = self.receive()
            if not data:
                raise Cut(f"closed {missing} bytes before the end of the answer")
            missing -= len(data)
        self.rest = data[missing:] if missing < 0 else b""

    def skip_all(self) -> int:
        """Read until the server closes; return the number of bytes."""
        length = len(self.rest)
        while data := self.receive():
            length += len(data)
        self.rest = b""
        return length

    def skip_chunks(self) -> int:
        """Read a chunked body and its trailers; return its length."""
        length = 0
        while True:
            line = self.read_line()
            digits = line.partition(b";")[0].strip()
            if not re.fullmatch(rb"[0-9A-Fa-f]{1,16}", digits):
                raise BadAnswer(f"a chunk begins with {line[:20]!r}")
            size = int(digits, 16)
            if not size:
                break
            self.skip(size)
            length += size
            if self.read_line():
                raise BadAnswer("a chunk does not end where it should")
        while self.read_line():
            pass
        return length

    def read_line(self) -> bytes:
        """Return a line without its end."""
        while (end := self.rest.find(b"\r\n")) < 0:
            if len(self.rest) > HEAD_AT_MOST:
                raise BadAnswer("a line of the answer has no end")
            data = self.receive()
            if not data:
                raise Cut("closed within a chunked body")
            self.rest += data
        line, self.rest = self.rest[:end], self.rest[end + 2 :]
        return line
