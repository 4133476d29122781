"""A FastCGI program in Python, for experiments: `python -m ewe_lab.stacks.responder SOCKET CHILDREN ANSWER`.

ANSWER is a number of bytes, or a CGI script in Python that is executed for each request.
This program replaces flup, with which the thesis ran Python programs. Like flup it is written in Python, and each
of its children answers one connection at a time. ewe.gateway.records implements the protocol.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping

from ewe.gateway.records import Aborted, Began, FastCGIError, Responder
from ewe_lab.stacks.script_runner import output_of

Answer = Callable[[Mapping[bytes, bytes]], bytes]  # from the parameters of a request to the output

RESPONSE_HEAD = b"Content-Type: text/plain\r\n\r\n"


def serve(listener: socket.socket, answer: Answer) -> None:
    """Accept and answer, one connection after the other."""
    while True:
        connection, _ = listener.accept()
        with connection:
            try:
                converse(connection, answer)
            except (OSError, FastCGIError):
                pass  # the web server closed the connection, or did not speak FastCGI
            # Of the script: this request has no answer, and the process serves the next one
            except Exception:
                traceback.print_exc()


def converse(connection: socket.socket, answer: Answer) -> None:
    """Answer the requests of one connection, until it ends or a request asks to close it.

    Raises OSError, FastCGIError.
    """
    responder = Responder()
    keep, params = False, dict[bytes, bytes]()
    while data := connection.recv(65536):
        for event in responder.feed(data):
            if isinstance(event, Began):
                keep, params = event.keep, event.params
            elif isinstance(event, Aborted):
                return
            elif not event.data:  # an Input without bytes: the end of the request's body
                connection.sendall(responder.output(answer(params)) + responder.end())
                if not keep:
                    return
        if responder.reply:  # answers to management records, and refusals of requests
            connection.sendall(responder.take_reply())


def answer_of(argument: str) -> Answer:
    """Return the function that answers requests. argument: ANSWER of the command line.

    For a number: a constant response whose body has as many bytes. Otherwise it is the path of a script, which the
    function executes with the parameters of the request as its environment.
    """
    if argument.isdecimal():
        constant = RESPONSE_HEAD + b"x" * (int(argument) - 1) + b"\n"
        return lambda params: constant

    def answer(params: Mapping[bytes, bytes]) -> bytes:
        return output_of(argument, {os.fsdecode(name): os.fsdecode(value) for name, value in params.items()})

    return answer


def main() -> None:
    """Start the children, which share the listening socket, and wait for a signal."""
    path, children, answer = sys.argv[1], int(sys.argv[2]), answer_of(sys.argv[3])
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1024)
        for _ in range(children):
            if not os.fork():
                serve(listener, answer)  # does not return
        signal.pause()


if __name__ == "__main__":
    main()
