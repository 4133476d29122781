"""The backends of features_of_others.py: two HTTP servers, SCGI, uwsgi, php-cgi for FastCGI."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from .place import free_ports

QUIET_SECONDS = 0.3
"""A request has ended when nothing more of it came for so long."""
counter = itertools.count(1)


def receive_until_quiet(client: socket.socket) -> bytes:
    """Return all bytes of a request; its end is a pause."""
    client.settimeout(5)
    received = client.recv(65536)
    client.settimeout(QUIET_SECONDS)
    with suppress(TimeoutError):
        while chunk := client.recv(65536):
            received += chunk
    client.settimeout(5)
    return received


def http(name: str) -> Callable[[socket.socket], None]:
    """Return an HTTP server that answers with its name, a running number and the request as it received it."""

    def answer(client: socket.socket) -> None:
        request = receive_until_quiet(client)
        if b"upgrade: websocket" in request.lower():
            client.sendall(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
            )
            client.sendall(b"echo " + client.recv(100))
            return
        body = f"{name} number {next(counter)}\n".encode() + request
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n"
        head += "Cache-Control: max-age=60\r\nConnection: close\r\n\r\n"
        client.sendall(head.encode() + body)

    return answer


def scgi(client: socket.socket) -> None:
    """Answer any SCGI request."""
    receive_until_quiet(client)
    client.sendall(b"Status: 200 OK\r\nContent-Type: text/plain\r\n\r\nscgi 42")


def uwsgi(client: socket.socket) -> None:
    """Answer any uwsgi request."""
    receive_until_quiet(client)
    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nuwsgi 42")


def serve(answer: Callable[[socket.socket], None]) -> socket.socket:
    """Answer every connection in a thread, until the listener is closed."""
    listener = socket.create_server(("127.0.0.1", 0))

    def one(client: socket.socket) -> None:
        with client, suppress(OSError):
            answer(client)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=one, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener


@contextmanager
def running() -> Iterator[dict[str, int]]:
    """Run all of them; yield their ports by the words of the settings files."""
    listeners = {
        "UP1": serve(http("one")),
        "UP2": serve(http("two")),
        "SCGI": serve(scgi),
        "UWSGI": serve(uwsgi),
    }
    ports = {name: listener.getsockname()[1] for name, listener in listeners.items()} | free_ports("PHP")
    php = subprocess.Popen(["php-cgi", "-b", f"127.0.0.1:{ports['PHP']}"], start_new_session=True)
    try:
        yield ports
    finally:
        os.killpg(php.pid, signal.SIGTERM)
        php.wait()
        for listener in listeners.values():
            listener.close()
