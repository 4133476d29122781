"""The front: one thread that accepts connections and reads request heads. This file is given, and complete.

    connection ─▶ its head comes in pieces; a selector watches all connections ─▶ head complete: arrive(Request)

To schedule by file size, a server has to read a request before it has a worker for it. A client that sends half a
request must not delay other clients, so the front never waits for a single client.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from urllib.parse import unquote

from conversation import SILENCE_S, BadRequest, refusal, split_head
from schedule import Request

ACCEPT_PAUSE_S = 0.05  # seconds of pause when no descriptor is free
READ_TIMEOUT_S = 60.0  # seconds that a client may take to read its response
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\nConnection: close\r\n\r\nbusy\n"


class Stop(Exception):
    """SIGTERM has arrived: the server has to end."""


def stop(number: int, frame: object) -> None:
    """Interrupt the loop. A second SIGTERM must not interrupt the end of the server."""
    signal.signal(number, lambda *_: None)
    raise Stop


class IncompleteRequest:
    """A connection with an incomplete request.

    port: the client's. deadline: when the connection is closed (time.monotonic()).
    """

    def __init__(self, connection: socket.socket, port: int) -> None:
        self.connection = connection
        self.port = port  # after a reset by the client, the socket does not know it any more
        self.buffer = b""
        self.deadline = time.monotonic() + SILENCE_S


def serve(listener: socket.socket, root: str, arrive: Callable[[Request, bytes], None]) -> None:
    """Read requests until SIGTERM. Call arrive(request, head) for each; arrive() must not block."""
    signal.signal(signal.SIGTERM, stop)
    listener.setblocking(False)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ, None)
        try:
            while True:
                # The listener has no data. With each connection, its IncompleteRequest is registered.
                incomplete_requests = [
                    key.data for key in selector.get_map().values() if key.data is not None
                ]
                first = min((each.deadline for each in incomplete_requests), default=None)
                for key, _ in selector.select(None if first is None else max(0.0, first - time.monotonic())):
                    if key.data is None:
                        accept(listener, selector)
                    else:
                        read_on(key.data, selector, root, arrive)
                for each in incomplete_requests:  # a closed connection has the descriptor -1
                    if each.deadline < time.monotonic() and each.connection.fileno() >= 0:
                        forget(each, selector)
        except Stop:
            listener.close()


def accept(listener: socket.socket, selector: selectors.BaseSelector) -> None:
    """Accept one connection."""
    try:
        connection, (_, port) = listener.accept()
    except BlockingIOError:
        return
    except OSError:  # no descriptor is free: select() would return again immediately
        time.sleep(ACCEPT_PAUSE_S)
        return
    connection.setblocking(False)
    selector.register(connection, selectors.EVENT_READ, IncompleteRequest(connection, port))


def read_on(
    incomplete: IncompleteRequest,
    selector: selectors.BaseSelector,
    root: str,
    arrive: Callable[[Request, bytes], None],
) -> None:
    """Read the next bytes of a request. Pass the request on when its head is complete."""
    try:
        data = incomplete.connection.recv(65536)
        head, _ = split_head(incomplete.buffer + data)
    except BlockingIOError:
        return
    except OSError:
        forget(incomplete, selector)
        return
    except BadRequest as refused:
        answer(incomplete.connection, refusal(refused.status))
        forget(incomplete, selector)
        return
    incomplete.buffer += data
    if head is not None:
        incomplete.deadline = float("inf")  # the connection now belongs to the schedule
        selector.unregister(incomplete.connection)
        incomplete.connection.settimeout(READ_TIMEOUT_S)
        target = target_of(head)
        arrive(Request(incomplete.port, target, size_of(root, target), incomplete.connection), head)
    elif not data:
        forget(incomplete, selector)


def forget(incomplete: IncompleteRequest, selector: selectors.BaseSelector) -> None:
    """Close a connection without a complete request."""
    selector.unregister(incomplete.connection)
    incomplete.connection.close()


def answer(connection: socket.socket, data: bytes) -> None:
    """Send a short response, which fits into the kernel's buffer."""
    try:
        connection.send(data)
    except OSError:
        pass  # the client has disconnected


def refuse(connection: socket.socket) -> None:
    """Answer a dropped request with 503, and close its connection."""
    answer(connection, BUSY)
    connection.close()


def target_of(head: bytes) -> str:
    """Return the target of a request: the second word of its head; "" if there is none."""
    words = head.split(b" ", 2)
    return words[1].decode("latin-1") if len(words) > 1 else ""


def size_of(root: str, target: str) -> int:
    """Return the size of the file that a target names, in bytes; 0 if there is none.

    The schedule alone uses the size, so the path is not checked here: the conversation does it later.
    """
    path = root + unquote(target.partition("?")[0])
    try:
        return os.path.getsize(path)
    except (OSError, ValueError):  # ValueError: a NUL byte in the path
        return 0
