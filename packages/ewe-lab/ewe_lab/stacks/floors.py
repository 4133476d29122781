"""Servers that do the least that a model can do in Python: no server in Python under the same model is faster.

    python -IS floors.py loop 8080 page.html [certificate.pem]

    loop      an event loop (epoll) that receives and sends
    parse     the same, and splits the head of each request into its fields
    thread    a thread for each connection
    fork      a process for each connection

Each answers every request with the bytes of one file, looks for `Connection: close` and HTTP/1.0, and checks no
more. A server that reads requests does more. The difference between it and its floor is the cost of this work;
the distance of the floor from a server in C is the cost of the interpreter. It imports as few modules as it can,
because a forked child may copy what its parent has loaded.
"""

from __future__ import annotations

import _thread
import os
import select
import socket
import sys

TYPE_CHECKING = False  # typing itself is a module that a child might copy
if TYPE_CHECKING:
    from collections.abc import Callable
    from ssl import SSLContext
    from typing import Any

    # To a request whose connection is kept, and to one whose connection is closed
    Answers = tuple[bytes, bytes]
    Serve = Callable[[socket.socket, Answers], bool]

RECEIVE_BYTES = 65536
CONNECTION_CLOSE = b"\r\nConnection: close\r\n"
HTTP_1_0 = b" HTTP/1.0\r\n"
WANT_READ = 2  # ssl.SSL_ERROR_WANT_READ
BACKLOG = 4096


def answer_once(connection: socket.socket, answers: Answers) -> bool:
    """Answer one request; return whether the connection is kept."""
    head = connection.recv(RECEIVE_BYTES)
    closes = not head or CONNECTION_CLOSE in head or HTTP_1_0 in head
    if head:
        connection.sendall(answers[closes])
    return not closes


def parse_once(connection: socket.socket, answers: Answers) -> bool:
    """Split the head of one request into its fields, and answer it; return whether the connection is kept."""
    head = connection.recv(RECEIVE_BYTES)
    if not head:
        return False
    line, _, field_lines = head.decode("latin-1").partition("\r\n")
    _method, _target, _version = line.split(" ")  # not used: the work counts
    fields = {}
    for each in field_lines.split("\r\n"):
        name, _, value = each.partition(":")
        fields[name.lower()] = value.strip()
    closes = fields.get("connection") == "close"
    connection.sendall(answers[closes])
    return not closes


def converse(connection: socket.socket, answers: Answers) -> None:
    """Answer the requests of one connection."""
    try:
        while answer_once(connection, answers):
            pass
    except OSError:
        pass
    connection.close()


def loop(
    listener: socket.socket, answers: Answers, context: SSLContext | None, serve: Serve = answer_once
) -> None:
    """Serve all connections from one event loop. context: of TLS; None for connections without TLS."""
    connections: dict[int, socket.socket] = {}
    poller = select.epoll()
    poller.register(listener, select.EPOLLIN)
    while True:
        for descriptor, _ in poller.poll():
            if descriptor == listener.fileno():
                connection, _ = listener.accept()
                if context:  # the first receive makes the handshake
                    connection = context.wrap_socket(
                        connection, server_side=True, do_handshake_on_connect=False
                    )
                connection.setblocking(False)
                poller.register(connection, select.EPOLLIN)
                connections[connection.fileno()] = connection
                continue
            try:
                is_kept = serve(connections[descriptor], answers)
            except OSError as error:
                is_kept = bool(context) and error.errno == WANT_READ  # part of a TLS record: more will come
            if not is_kept:
                ended = connections.pop(descriptor)
                if context:
                    send_close_notify(ended)
                ended.close()  # which also removes it from the poller


def send_close_notify(connection: Any) -> None:
    """Send close_notify (RFC 8446 section 6.1). Without it ab takes each answer for one that was cut."""
    try:
        connection.unwrap()
    except OSError:  # the client's close_notify has not come: a floor does not wait for it
        pass


def parse(listener: socket.socket, answers: Answers, context: SSLContext | None) -> None:
    """Serve all connections from one event loop that parses."""
    loop(listener, answers, context, parse_once)


def thread(listener: socket.socket, answers: Answers, context: SSLContext | None) -> None:
    """Start a thread for each connection. context: not used, since only the floors with an event loop serve TLS."""
    while True:
        connection, _ = listener.accept()
        _thread.start_new_thread(converse, (connection, answers))


def fork(listener: socket.socket, answers: Answers, context: SSLContext | None) -> None:
    """Start a process for each connection, and reap those that have ended. context: not used, as in thread()."""
    while True:
        connection, _ = listener.accept()
        if not os.fork():
            converse(connection, answers)
            os._exit(0)
        connection.close()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:  # pid 0: children are left, and none has ended
                pass
        except ChildProcessError:  # no child is left
            pass


def tls_context(certificate: str) -> SSLContext:
    """Return the TLS context of the event loop."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


KINDS = {"loop": loop, "parse": parse, "thread": thread, "fork": fork}


def main(kind: str, port: str, file: str, certificate: str = "") -> None:
    """Serve the bytes of a file until the process is stopped. kind: one of KINDS."""
    with open(file, "rb") as source:
        body = source.read()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n"
    answers = (f"{head}\r\n".encode() + body, f"{head}Connection: close\r\n\r\n".encode() + body)
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=BACKLOG)
    KINDS[kind](listener, answers, tls_context(certificate) if certificate else None)


if __name__ == "__main__":
    main(*sys.argv[1:])
