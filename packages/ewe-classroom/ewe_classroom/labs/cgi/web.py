"""The server around CGI: connections, requests with bodies, and files. This file is given, and complete.

    main thread: accept ─▶ start a thread ─▶ accept ...
                                └──▶ read a request and its body ─▶ /cgi-bin/...  your respond()
                                                                 └▶ other paths: a file of the directory

conversation.py is the work of the first lab.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http import HTTPStatus

from conversation import SILENCE_S, BadRequest, find, listen, parse, split_head

ACCEPT_PAUSE_S = 0.05  # seconds of pause when no descriptor or thread is free
GRACE_S = 10.0  # seconds for the conversations in progress after SIGTERM
MAX_BODY_BYTES = 8 << 20  # bytes of a request's body; the server refuses a longer body (413)
MAX_LENGTH_DIGITS = 18  # of Content-Length: int() refuses 4,301 digits with a ValueError
BODILESS_STATUSES = (204, 304)
MAX_HOPS = 5  # local redirects of one request
PROGRAMS = "/cgi-bin/"


@dataclass(frozen=True)
class Request:
    """One request. path: still percent-encoded. fields: names in lower case. client: its address.

    port: the port of the server. hops: the local redirects so far.
    """

    method: str
    path: str
    query: str
    version: str
    fields: dict[str, str]
    body: bytes
    client: str
    port: int
    hops: int = 0


@dataclass(frozen=True)
class Response:
    """One response. The server adds Content-Length and Connection."""

    status: int
    body: bytes = b""
    fields: list[tuple[str, str]] = field(default_factory=list)


class Refused(Exception):
    """The server refuses the request with this status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


Respond = Callable[[Request, str], Response]


class Stop(Exception):
    """SIGTERM has arrived: the server has to end."""


def stop(number: int, frame: object) -> None:
    """Interrupt the loop that accepts connections. A second SIGTERM must not interrupt the end of the server."""
    signal.signal(number, lambda *_: None)
    raise Stop


def main(respond: Respond) -> None:
    """Run a server: program PORT DIRECTORY [WORKERS]. respond: answers the requests below /cgi-bin/."""
    if len(sys.argv) not in (3, 4):
        sys.exit(f"usage: {sys.argv[0]} PORT DIRECTORY")
    with listen(int(sys.argv[1])) as listener:
        serve(listener, os.path.realpath(sys.argv[2]), respond)


def serve(listener: socket.socket, root: str, respond: Respond) -> None:
    """Accept connections, and start a thread for each; at SIGTERM, let the conversations in progress end."""
    threads: set[threading.Thread] = set()
    signal.signal(signal.SIGTERM, stop)
    try:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                time.sleep(ACCEPT_PAUSE_S)
                continue
            thread = threading.Thread(
                target=run_conversation, args=(connection, root, respond, threads), daemon=True
            )
            threads.add(thread)
            try:
                thread.start()
            except RuntimeError:  # no thread is left
                threads.discard(thread)
                connection.close()
                time.sleep(ACCEPT_PAUSE_S)
    except Stop:
        listener.close()
    end = time.monotonic() + GRACE_S
    for thread in list(threads):
        if thread.is_alive():  # the last one has not started if SIGTERM came before start()
            thread.join(max(0.0, end - time.monotonic()))


def run_conversation(
    connection: socket.socket, root: str, respond: Respond, threads: set[threading.Thread]
) -> None:
    """Run one conversation, in a thread. Remove the thread from `threads`, for which serve() waits at the end."""
    try:
        with connection:
            converse(connection, root, respond)
    except OSError:
        pass  # the client has disconnected, or is silent
    finally:
        threads.discard(threading.current_thread())


def converse(connection: socket.socket, root: str, respond: Respond) -> None:
    """Answer the requests of one connection until it ends. Raises OSError."""
    connection.settimeout(SILENCE_S)
    buffer = b""
    while True:
        try:
            head, buffer = split_head(buffer)
            while head is None:
                data = connection.recv(65536)
                if not data:
                    return
                head, buffer = split_head(buffer + data)
            request, buffer = read_request(connection, head, buffer)
        except (BadRequest, Refused) as refused:
            connection.sendall(encode(Response(refused.status), keeps_open=False, is_head=False))
            return
        keeps_open = request.version == "HTTP/1.1" and request.fields.get("connection", "").lower() != "close"
        response = answer(request, root, respond)
        connection.sendall(encode(response, keeps_open=keeps_open, is_head=request.method == "HEAD"))
        if not keeps_open:
            return


def read_request(connection: socket.socket, head: bytes, buffer: bytes) -> tuple[Request, bytes]:
    """Return a request with its body, and the bytes after it. Raises BadRequest, Refused, OSError."""
    method, path, fields = parse(head)
    version = fields.pop("version")  # parse() has put the version of the request line there
    query = head.split(b" ")[1].decode("latin-1").partition("?")[2]
    if "transfer-encoding" in fields:
        raise Refused(411)  # this server does not read chunked bodies: it needs Content-Length
    text = fields.get("content-length", "0")
    if not text.isdecimal():
        raise Refused(400)
    # int() of a text with thousands of digits raises ValueError
    if len(text) > MAX_LENGTH_DIGITS or int(text) > MAX_BODY_BYTES:
        raise Refused(413)
    length = int(text)
    parts = [buffer]  # the first bytes of the body may have come with the head
    missing = length - len(buffer)
    while missing > 0:
        data = connection.recv(min(missing, 65536))
        if not data:
            raise ConnectionError("the client disconnected within the body")
        parts.append(data)
        missing -= len(data)
    buffer = b"".join(parts)
    address, _ = connection.getpeername()
    _, port = connection.getsockname()
    return Request(method, path, query, version, fields, buffer[:length], address, port), buffer[length:]


def answer(request: Request, root: str, respond: Respond) -> Response:
    """Return the response of a program or a file. An exception of respond() becomes a 500."""
    try:
        if request.path.startswith(PROGRAMS):
            return respond(request, root)
        if request.method not in ("GET", "HEAD"):
            return Response(405)
        return Response(200, find(root, request.path))
    except (BadRequest, Refused) as refused:
        return Response(refused.status, f"{refused.status} {reason(refused.status)}\n".encode())
    except Exception as problem:
        print(f"{request.path}: {problem!r}", file=sys.stderr, flush=True)
        return Response(500, b"500 Internal Server Error\n")


def local_redirect(request: Request, root: str, location: str, respond: Respond) -> Response:
    """Answer a local redirect as if the client had requested its path. Raises Refused after MAX_HOPS redirects.

    Without a limit, two programs that redirect to each other would never end.
    """
    if request.hops >= MAX_HOPS:
        raise Refused(502)
    path, _, query = location.partition("?")
    # Without the body, its type and its length would be wrong.
    fields = {name: value for name, value in request.fields.items() if not name.startswith("content-")}
    asked = replace(
        request, method="GET", path=path, query=query, fields=fields, body=b"", hops=request.hops + 1
    )
    return answer(asked, root, respond)


def reason(status: int) -> str:
    """Return the reason phrase of a status."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def encode(response: Response, *, keeps_open: bool, is_head: bool) -> bytes:
    """Return a response as bytes. is_head: leave out the body, because the method was HEAD."""
    is_bodiless = response.status in BODILESS_STATUSES
    lines = [f"HTTP/1.1 {response.status} {reason(response.status)}"]
    lines += [f"{name}: {value}" for name, value in response.fields]
    lines += [] if is_bodiless else [f"Content-Length: {len(response.body)}"]
    lines += [f"Connection: {'keep-alive' if keeps_open else 'close'}"]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
    return head + (b"" if is_head or is_bodiless else response.body)
