"""A FastCGI program in Python, for experiments: `python -m ewe.lab.stacks.responder SOCKET CHILDREN BYTES`.

It takes the place of flup, with which the thesis ran Python programs: it too is written in Python, and each of its
children answers one connection at a time. ewe.gateway.records implements the protocol.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from ewe.gateway.records import Aborted, Began, FastCGIError, Responder

HEAD = b"Content-Type: text/plain\r\n\r\n"


def serve(listener: socket.socket, answer: bytes) -> None:
    """Accept and answer, one connection after the other."""
    while True:
        connection, _ = listener.accept()
        with connection:
            try:
                converse(connection, answer)
            except (OSError, FastCGIError):
                pass  # the web server closed the connection, or did not speak FastCGI


def converse(connection: socket.socket, answer: bytes) -> None:
    """Answer the requests of one connection. Raises OSError, FastCGIError."""
    responder = Responder()
    keep = False
    while data := connection.recv(65536):
        for event in responder.feed(data):
            if isinstance(event, Began):
                keep = event.keep
            elif isinstance(event, Aborted):
                return
            elif not event.data:
                connection.sendall(responder.output(answer) + responder.end())
                if not keep:
                    return
        if responder.reply:
            connection.sendall(responder.take_reply())


def main() -> None:
    """Start the children and wait for a signal."""
    path, children, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1024)
        answer = HEAD + b"x" * (size - 1) + b"\n"
        for _ in range(children):
            if not os.fork():
                serve(listener, answer)
        signal.pause()


if __name__ == "__main__":
    main()
