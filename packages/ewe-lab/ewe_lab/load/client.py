"""The client of a load: one connection, kept or not, one request after the other, every failure by its kind.

It runs under locust's gevent or on plain sockets, and does only what a measurement needs: it sends the same bytes
each time, and reads the status of an answer and finds its end.
"""

from __future__ import annotations

import errno
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ewe.closed_loop import WrongAnswer
from ewe.http.response_head import ResponseHead, parse_response_head
from ewe.http.response_reader import CutResponse, ResponseReader
from ewe.http.status import HTTPError
from ewe_lab.bench.experiment import Load

RECEIVE_BYTES = 256 * 1024  # bytes of one receive
ERROR_KINDS = {  # by errno: the kind of the error, as results.ERRORS explains it
    errno.ECONNREFUSED: "ref",
    errno.ECONNRESET: "res",
    errno.EPIPE: "res",
    errno.ETIMEDOUT: "st",
    errno.EMFILE: "fd",
    errno.ENFILE: "fd",
    errno.EADDRNOTAVAIL: "addr",
}


class StatusError(WrongAnswer):
    """An answer other than 2xx or 3xx; the connection may be kept."""


class BadAnswer(WrongAnswer):
    """An answer that is not HTTP, or not of the length expected; the text is one line."""


class IncompleteAnswer(OSError):
    """The server closed before its answer was complete."""


def error_kind(error: BaseException) -> str:
    """Return the kind of an exception, one of results.ERRORS."""
    if isinstance(error, StatusError):
        return "status"
    if isinstance(error, IncompleteAnswer | ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "res"
    if isinstance(error, ssl.SSLError):  # its errno is a number of the TLS library
        return "ct" if "timed out" in str(error) else "other"
    if isinstance(error, TimeoutError) and error.errno is None:  # our own timer; the kernel's is ETIMEDOUT
        return "ct"
    if isinstance(error, OSError):
        return ERROR_KINDS.get(error.errno or 0, "other")
    return "other"


@dataclass(frozen=True)
class LoadTarget:
    """The requests of a load, and the address of the server.

    family, address: of the socket. host: the name of the server, for TLS. requests: as bytes, to be sent in turn.
    timeout_s: of one request. length: of the expected body in bytes, None: any. reopens: reopen a connection that
    the server closed. context: for TLS, else None.
    """

    family: int
    address: Any
    host: str
    requests: tuple[bytes, ...]
    timeout_s: float
    keep_alive: bool
    length: int | None
    reopens: bool
    context: ssl.SSLContext | None
    method: str = "GET"


def port_of(url: str) -> int:
    """Return the port of a URL. Raises ValueError."""
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def load_target(load: Load, url: str) -> LoadTarget:
    """Resolve the address of the server, write the requests of the load, and return both.

    Raises OSError if the server's name is unknown, ValueError if `url` is not the URL of a server.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url} is not the URL of a server")
    # The first address only, once: no request of the load resolves the name
    first, *_ = socket.getaddrinfo(parts.hostname, port_of(url), type=socket.SOCK_STREAM)
    family, _, _, _, address = first
    fields = f"Host: {parts.netloc}\r\nUser-Agent: ewe-lab\r\n"
    if not load.keep_alive:
        fields += "Connection: close\r\n"
    fields += "".join(f"{name}: {value}\r\n" for name, value in load.headers)
    paths = load.paths or (load.path,)
    context = tls_context(load.tls or "default") if parts.scheme == "https" else None
    return LoadTarget(
        family=family,
        address=address,
        host=parts.hostname,
        requests=tuple(f"{load.method} {path} HTTP/1.1\r\n{fields}\r\n".encode() for path in paths),
        timeout_s=load.timeout,
        keep_alive=load.keep_alive,
        length=load.length,
        reopens=load.reopens,
        context=context,
        method=load.method,
    )


def tls_context(name: str) -> ssl.SSLContext:
    """Return the TLS context of a client: it accepts any certificate and resumes no session.

    name: "default" or "parity" (Load.tls). parity is TLS as in the thesis of 2011: TLS 1.2 with AES256-SHA, a
    cipher suite whose key exchange is RSA.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.options |= ssl.OP_NO_TICKET
    if name == "parity":
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("AES256-SHA:@SECLEVEL=0")  # level 0: OpenSSL refuses no cipher for its age
    return context


class LoadConnection:
    """The connection of a client: opened by the first request, and again after it was closed.

    connections: how many were opened. received: bytes of answers.
    """

    def __init__(self, target: LoadTarget) -> None:
        self.target = target
        self.sock: socket.socket | None = None
        self.connections = 0
        self.received = 0
        self.status = 0  # of the last answer
        self.socket_timeout_s = 0.0  # as it was set last; 0 for a new socket
        self.reader = ResponseReader(parse_response_head, self.target.method)

    def ask(self, number: int = 0) -> None:
        """Send the request with that number and read the whole answer. The requests of a load take turns.

        A browser sends a request again if the server has closed the kept connection meanwhile (RFC 9112 section
        9.3.1), and so do we for a load that `reopens`. Raises OSError, StatusError, BadAnswer.
        """
        is_kept_connection, received_before = self.sock is not None, self.received
        try:
            self.send_and_receive(number)
        except (ConnectionError, IncompleteAnswer):
            has_part_of_answer = self.received > received_before
            if not self.target.reopens or not is_kept_connection or has_part_of_answer:
                raise
            self.send_and_receive(number)

    def send_and_receive(self, number: int) -> None:
        """Send the request with that number, in turn, and read the whole answer. Raises the same as ask()."""
        self.deadline = time.perf_counter() + self.target.timeout_s  # for connecting, sending and receiving
        try:
            sock = self.sock
            if sock is None:
                sock = self.sock = self.connect()
            sock.sendall(self.target.requests[number % len(self.target.requests)])
            head = self.read_answer()
        except BaseException:
            self.close()
            raise
        self.status = head.status
        if not head.reusable or not self.target.keep_alive:
            self.close()
        if not 200 <= head.status < 400:
            raise StatusError(head.status)

    def connect(self) -> socket.socket:
        """Open a connection within the request's time limit, and return it. Raises OSError."""
        sock = socket.socket(self.target.family, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.target.timeout_s)
            sock.connect(self.target.address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            if self.target.context:
                sock.settimeout(self.time_left_s())
                sock = self.target.context.wrap_socket(sock, server_hostname=self.target.host)
        except BaseException:
            sock.close()
            raise
        self.socket_timeout_s = 0.0
        return sock

    def close(self) -> None:
        """Close, if open, and forget the bytes that were received and not read."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None
            self.reader = ResponseReader(parse_response_head, self.target.method)

    def time_left_s(self) -> float:
        """Return the rest of the request's time limit in seconds. Raises TimeoutError."""
        left = self.deadline - time.perf_counter()
        if left <= 0:
            raise TimeoutError
        return left

    def receive(self) -> bytes:
        """Return the next bytes, b"" at the end. Raises OSError."""
        assert self.sock is not None
        left = self.time_left_s()
        # To set nearly the same limit again would cost a system call
        if not 0.99 * self.socket_timeout_s <= left <= self.socket_timeout_s:
            self.sock.settimeout(left)
            self.socket_timeout_s = left
        data = self.sock.recv(RECEIVE_BYTES)
        self.received += len(data)
        return data

    def read_answer(self) -> ResponseHead:
        """Read an answer to its end; return its head. Raises OSError, BadAnswer."""
        reader = self.reader
        reader.begin()
        try:
            length = len(reader.feed(b"")) if reader.buffer else 0  # bytes that came with the answer before
            while not reader.finished:
                if data := self.receive():
                    length += len(reader.feed(data))
                else:
                    reader.end()  # complete if the answer ends with the connection, else CutResponse
                    self.close()
        except CutResponse as error:
            raise IncompleteAnswer(error.cause) from None
        except HTTPError as error:
            raise BadAnswer(f"the answer cannot be read: {error.cause}") from None
        head = reader.head
        assert head is not None  # an answer has one if it is finished
        if head.status < 300 and self.target.length not in (None, length):
            raise BadAnswer(f"the body has {length} bytes, not {self.target.length}")
        return head
