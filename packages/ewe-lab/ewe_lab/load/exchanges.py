"""The cost of handing a request to another process: `python -m ewe_lab.load.exchanges COLUMN COUNT ROUNDS`.

Two processes of the server's core exchange COUNT requests, in three ways that differ by one thing each:

    1 byte        a byte there, a byte back, over a kept connection: both processes were woken once
    2 raw         as many bytes as a request and an answer have (over a new connection, if the column has one)
    3 protocol    the same request and answer, encoded and decoded at both ends

The differences are the parts of the LibCGI paper's section 2.1: run 1 is the transfer of control, 2 - 1 the
communication, 3 - 2 the protocol. All of it runs in Python, as ewe does.

Prints JSON: by run, the µs of an exchange in each round.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from ewe.gateway.records import Began, Ended, Requester, Responder
from ewe.xswitch.protocol import MarkReader, request_lines

BYTE, RAW, PROTOCOL = "1 byte", "2 raw", "3 protocol"
RUNS = (BYTE, RAW, PROTOCOL)
EACH_CONNECTION, KEPT_CONNECTION, ENGINE = (
    "FastCGI, a connection each",
    "FastCGI, kept connection",
    "engine protocol",
)
COLUMNS = (EACH_CONNECTION, KEPT_CONNECTION, ENGINE)
PIECE_BYTES = 64 * 1024
MAX_RUN_S = 120  # seconds for everything; then SIGALRM ends both processes
SCRIPT = b"/srv/cgi-bin/bytes"
ANSWER = b"Content-Type: text/plain\r\n\r\n" + b"x" * 27 + b"\n"
END_OF_ANSWER = b"\x040\n"
VARIABLES = {  # the variables that ewe sends for a request of wrk
    b"GATEWAY_INTERFACE": b"CGI/1.1", b"SERVER_SOFTWARE": b"ewe", b"SERVER_NAME": b"127.0.0.1",
    b"SERVER_PORT": b"4000", b"SERVER_PROTOCOL": b"HTTP/1.1", b"REQUEST_METHOD": b"GET", b"REQUEST_SCHEME": b"http",
    b"REQUEST_URI": b"/cgi-bin/bytes?28", b"QUERY_STRING": b"28", b"REMOTE_ADDR": b"127.0.0.1",
    b"REMOTE_HOST": b"127.0.0.1", b"REMOTE_PORT": b"40000", b"HTTP_HOST": b"127.0.0.1:4000",
    b"SCRIPT_NAME": b"/cgi-bin/bytes", b"SCRIPT_FILENAME": SCRIPT, b"DOCUMENT_ROOT": b"/srv/htdocs",
    b"CONTENT_LENGTH": b"0",
}  # fmt: skip

Sockets = tuple[socket.socket, ...]  # one, or an engine's control and data
Exchange = Callable[[Sockets], None]
Serve = Callable[[Sockets], bool]  # answers one request; False: the other end has closed


def receive_exactly(sock: socket.socket, size: int) -> bytes:
    """Return `size` bytes; fewer if the other end has closed."""
    data = sock.recv(PIECE_BYTES)
    while len(data) < size and (more := sock.recv(PIECE_BYTES)):
        data += more
    return data


# ---------------------------------------------------------------------------------------------------------
# Both ends of each run


def ask_byte(socks: Sockets) -> None:
    """Send a byte and receive one."""
    socks[0].send(b".")
    socks[0].recv(1)


def serve_byte(socks: Sockets) -> bool:
    """Send back a byte; return False if the other end has closed."""
    return bool(byte := socks[0].recv(1)) and bool(socks[0].send(byte))


def fastcgi_sizes() -> tuple[bytes, bytes]:
    """Return the bytes of a FastCGI request and of its answer."""
    request = fastcgi_request(Requester())
    responder = Responder()
    responder.feed(request)  # an answer refers to its request
    return request, responder.output(ANSWER) + responder.end()


def fastcgi_request(requester: Requester) -> bytes:
    """Return an encoded request."""
    return requester.begin(VARIABLES.items(), keep=True) + requester.input(b"")


def ask_fastcgi(socks: Sockets) -> None:
    """Encode a request and send it, then receive and decode the answer. Raises OSError."""
    requester = Requester()
    socks[0].sendall(fastcgi_request(requester))
    while data := socks[0].recv(PIECE_BYTES):
        if any(isinstance(event, Ended) for event in requester.feed(data)):
            return
    raise OSError("the answer was cut")


def serve_fastcgi(socks: Sockets) -> bool:
    """Receive and decode a request, encode and send the answer; return False if the other end has closed."""
    responder = Responder()
    while data := socks[0].recv(PIECE_BYTES):
        for event in responder.feed(data):
            # After Began comes the end of the request's input, since ask_fastcgi() sends no body
            if not isinstance(event, Began):
                socks[0].sendall(responder.output(ANSWER) + responder.end())
                return True
    return False


def ask_engine(socks: Sockets) -> None:
    """Encode a request for an engine, send it, receive its output and its end mark."""
    control, data = socks
    control.sendall(request_lines(SCRIPT, (), VARIABLES))
    mark = MarkReader()
    while mark.feed(control.recv(16)) is None:  # an end mark has a few bytes
        pass
    data.recv(PIECE_BYTES)


def serve_engine(socks: Sockets) -> bool:
    """Receive and decode a request as an engine does, send the output and the end mark.

    Return False if the other end has closed.
    """
    control, data = socks
    lines = b""
    while lines.count(b"\n") < 2:  # a line with the command, and one with the variables
        if not (more := control.recv(PIECE_BYTES)):
            return False
        lines += more
    command, variables = lines.splitlines()
    for line in (command, variables):
        if b"%" in line:
            line = unquote_to_bytes(line)
        dict(word.partition(b"=")[::2] for word in line.split(b"\t"))  # only the work counts
    data.sendall(ANSWER)
    control.sendall(END_OF_ANSWER)
    return True


class ExchangeEnds(NamedTuple):
    """Both ends of a run: the function that asks, and the function that serves one request."""

    ask: Exchange
    serve: Serve


def raw_ends(request: bytes, answer: bytes, mark: bytes = b"") -> ExchangeEnds:
    """Return both ends of an exchange of as many bytes as `request` and `answer` have.

    mark: the end mark of an engine, which it sends on the control socket after its output on the data socket.
    """

    def ask(socks: Sockets) -> None:
        socks[0].sendall(request)
        if mark:
            receive_exactly(socks[0], len(mark))
        receive_exactly(socks[-1], len(answer))

    def serve(socks: Sockets) -> bool:
        """Receive a request, send the answer; return False if the other end has closed."""
        if len(receive_exactly(socks[0], len(request))) < len(request):
            return False
        socks[-1].sendall(answer)
        if mark:
            socks[0].sendall(mark)
        return True

    return ExchangeEnds(ask, serve)


def ends_of(column: str, name: str) -> ExchangeEnds:
    """Return both ends of a run. column: one of COLUMNS. name: one of RUNS."""
    if name == BYTE:
        return ExchangeEnds(ask_byte, serve_byte)
    if column == ENGINE:
        lines = request_lines(SCRIPT, (), VARIABLES)
        if name == RAW:
            return raw_ends(lines, ANSWER, END_OF_ANSWER)
        return ExchangeEnds(ask_engine, serve_engine)
    if name == RAW:
        return raw_ends(*fastcgi_sizes())
    return ExchangeEnds(ask_fastcgi, serve_fastcgi)


# ---------------------------------------------------------------------------------------------------------
# Two processes


@contextmanager
def child(work: Callable[[], None], *ours: socket.socket) -> Iterator[None]:
    """Run a function in a child during the block. ours: sockets that the child does not keep open."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(MAX_RUN_S)
            for sock in ours:
                sock.close()
            work()
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def time_kept_connections(ask: Exchange, serve: Serve, pairs: int, count: int) -> float:
    """Return the mean µs of `count` exchanges over connections that stay open. Raises OSError.

    ask, serve: the two ends of an exchange; a child runs `serve`. pairs: the number of socket pairs, 1 or 2.
    """
    ours, theirs = zip(*(socket.socketpair() for _ in range(pairs)), strict=True)

    def work() -> None:
        while serve(theirs):
            pass

    with child(work, *ours):
        ask(ours)  # not timed
        began = perf_counter()
        for _ in range(count):
            ask(ours)
        duration = perf_counter() - began
    for sock in (*ours, *theirs):
        sock.close()
    return duration / count * 1e6


def time_new_connections(ask: Exchange, serve: Serve, count: int) -> float:
    """Return the mean µs of `count` exchanges, each over a new connection of a Unix socket. Raises OSError.

    ask, serve: the two ends of an exchange; a child runs `serve`.
    """
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listener:
        path = f"{directory}/socket"
        listener.bind(path)
        listener.listen(16)

        def work() -> None:
            while True:
                connection, _ = listener.accept()
                with connection:
                    serve((connection,))

        def connect_and_ask() -> None:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(path)
                ask((sock,))

        with child(work):
            connect_and_ask()  # not timed
            began = perf_counter()
            for _ in range(count):
                connect_and_ask()
            return (perf_counter() - began) / count * 1e6


def measure_column(column: str, count: int, rounds: int) -> dict[str, list[float]]:
    """Return the µs of an exchange in each round, by run. count: the exchanges of a run."""
    found: dict[str, list[float]] = {name: [] for name in RUNS}
    for _ in range(rounds):
        for name in RUNS:
            ask, serve = ends_of(column, name)
            if column == EACH_CONNECTION and name != BYTE:
                found[name].append(time_new_connections(ask, serve, count))
            else:
                pairs = 2 if column == ENGINE else 1  # an engine has a socket for control and one for data
                found[name].append(time_kept_connections(ask, serve, pairs, count))
    return found


def main() -> None:
    """Measure and print."""
    signal.alarm(MAX_RUN_S)
    column, count, rounds = sys.argv[1:]
    print(json.dumps(measure_column(column, int(count), int(rounds))))


if __name__ == "__main__":
    main()
