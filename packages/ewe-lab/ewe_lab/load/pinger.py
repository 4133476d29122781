"""A pinger: it sends one request after another over one connection, with as little other work as possible.

    with http("http://127.0.0.1:4000/", "/cgi-bin/hello.pl", b"hello\\n") as ask:
        took = ping(ask, 10_000)

It measures what a layer costs. The bytes of the request are made once; in an answer the pinger only looks for the
end and for the body. It can ask for the same script in three ways: HTTP to a web server, FastCGI to an X-Switch,
the engine protocol to an engine. Raises LabError.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from ewe.gateway.records import END_REQUEST, HEADER, VERSION, Requester
from ewe.http.response_head import parse_response_head
from ewe.http.response_reader import ResponseReader
from ewe.http.status import HTTPError
from ewe.xswitch.protocol import request_lines
from ewe.xswitch.tools.driver import Driver
from ewe_lab.bench.processes import LabError, on_core

PIECE_BYTES = 64 * 1024
ANSWER_TIMEOUT_S = 20  # seconds that an answer may take
END_RECORD = HEADER.pack(VERSION, END_REQUEST, 1, 8, 0)  # the head of the last record; eight bytes follow
END_WITH_STATUS_0 = b"\x040\n"  # the end mark of an engine whose script succeeded
MARK_BYTES = 16  # more than any end mark has
LAST_CHUNK = b"\r\n0\r\n\r\n"

SendRequest = Callable[[], bytes]


@dataclass(frozen=True)
class PingTime:
    """The duration of `count` requests. client_cpu_s: of the pinger itself."""

    count: int
    seconds: float
    client_cpu_s: float

    @property
    def micros(self) -> float:
        """The µs of a request."""
        return self.seconds / self.count * 1e6


def ping(ask: SendRequest, count: int) -> PingTime:
    """Send `count` requests; return how long they took."""
    began, cpu = time.perf_counter(), time.thread_time()
    for _ in range(count):
        ask()
    return PingTime(count, time.perf_counter() - began, time.thread_time() - cpu)


def set_kernel_timeout(sock: socket.socket) -> socket.socket:
    """Set a time limit in the kernel: Python's own timeout would cost a poll() before each receive."""
    sock.setblocking(True)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", ANSWER_TIMEOUT_S, 0))
    return sock


def request_function(
    sock: socket.socket, request: bytes, body: bytes, is_ended: Callable[[bytes], bool]
) -> SendRequest:
    """Return a function that sends the request and returns the complete answer. It raises LabError.

    body: a part of each right answer. is_ended: returns whether the bytes so far are a complete answer. The socket
    has the kernel's time limit.
    """

    def ask() -> bytes:
        """Send the request; return the whole answer, if it is a right one. Raises LabError."""
        try:
            sock.sendall(request)
            answer = sock.recv(PIECE_BYTES)
            while not is_ended(answer):
                more = sock.recv(PIECE_BYTES)
                if not more:
                    raise LabError(f"the connection was closed after {answer[:80]!r}")
                answer += more
        except OSError as reason:
            raise LabError(f"the pinger has no answer: {reason.strerror or reason}") from None
        if body not in answer:
            raise LabError(f"the pinger was answered {answer[:80]!r}")
        return answer

    return ask


def is_complete(answer: bytes) -> bool:
    """Return whether a response has arrived whole, as its head says."""
    reader = ResponseReader(parse_response_head)
    try:
        reader.feed(answer)
    except HTTPError:
        return False
    return reader.finished


@contextmanager
def http(url: str, path: str, body: bytes) -> Iterator[SendRequest]:
    """Connect to a web server; yield a function that sends a request over this connection. Raises LabError.

    path: of the URL, with its query. body: a part of each right answer, with which an answer usually ends.
    """
    parts = urlsplit(url)
    request = f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUser-Agent: ewe-lab\r\n\r\n".encode()

    def is_ended(answer: bytes) -> bool:
        # Nearly always the first test is enough, and it is much faster than to parse the head
        return answer.endswith((body, LAST_CHUNK)) or is_complete(answer)

    try:
        sock = socket.create_connection((parts.hostname or "", parts.port or 80), ANSWER_TIMEOUT_S)
    except OSError as reason:
        raise LabError(f"{url} cannot be reached: {reason.strerror or reason}") from None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with sock:
        yield request_function(set_kernel_timeout(sock), request, body, is_ended)


def ends_with_end_record(answer: bytes) -> bool:
    """Whether the last record of an answer is FastCGI's END_REQUEST: a head of eight bytes, and eight bytes."""
    return answer[-16:-8] == END_RECORD


@contextmanager
def fastcgi(path: str, params: Mapping[str, str], body: bytes) -> Iterator[SendRequest]:
    """Connect to a FastCGI responder on a Unix socket; yield a function that sends a request. Raises LabError.

    path: of the socket. params: of the request. body: a part of each right answer.
    """
    pairs = [(name.encode(), value.encode()) for name, value in params.items()]
    requester = Requester()
    request = requester.begin(pairs, keep=True) + requester.input(b"")
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(path)
        except OSError as reason:
            raise LabError(f"{path} cannot be reached: {reason.strerror or reason}") from None
        yield request_function(set_kernel_timeout(sock), request, body, is_ended=ends_with_end_record)


class PingedEngine(NamedTuple):
    """A running engine. send_request: sends it a request, and returns its output."""

    send_request: SendRequest
    pid: int


@contextmanager
def engine(
    command: Sequence[str], script: str, params: Mapping[str, str], body: bytes, core: int | None
) -> Iterator[PingedEngine]:
    """Start an engine on a core; yield it, with a function that sends it a request.

    command: starts the engine. script: the path of the script that each request names. params: its variables. body:
    a part of each right answer. core: None for any. The output must fit into a socket buffer: the function reads it
    once, when the engine has ended the answer.
    """
    pairs = {name.encode(): value.encode() for name, value in {**params, "CONTENT_LENGTH": "0"}.items()}
    lines = request_lines(os.fsencode(script), (), pairs)
    with on_core(core):
        driver = Driver(command)
    with driver:
        control, data = set_kernel_timeout(driver.control), set_kernel_timeout(driver.data)

        def ask() -> bytes:
            """Send the request; return the engine's output, if it is a right one. Raises LabError."""
            try:
                control.sendall(lines)
                mark = control.recv(MARK_BYTES)  # the end of the response: all output has been written
                answer = data.recv(PIECE_BYTES) if mark == END_WITH_STATUS_0 else b""
            except OSError as reason:
                raise LabError(f"the engine does not answer: {reason.strerror or reason}") from None
            if body not in answer:
                message = os.pread(driver.errors.fileno(), 200, 0).strip()
                raise LabError(f"the engine answered {(message or mark + answer)[:80]!r}")
            return answer

        yield PingedEngine(ask, driver.pid)
