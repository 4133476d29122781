"""Runs one engine without X-Switch, over blocking sockets: for the checker, the tests and measurements."""

from __future__ import annotations

import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ewe.config.defaults import SEARCH_PATH
from ewe.xswitch.process import CONTROL, start
from ewe.xswitch.protocol import MarkReader, ProtocolError, request_lines

PIECE = 64 * 1024
TIDIES_IN = 0.3  # seconds that an engine has to end by itself, and to remove its temporary files


class Answer(NamedTuple):
    """What an engine answered. status: the exit status; None if the engine ended without its end mark."""

    output: bytes
    errors: bytes
    status: int | None


def received(sock: socket.socket) -> bytes:
    """Return what has come, b"" if the other end is closed, even with unread data."""
    try:
        return sock.recv(PIECE)
    except ConnectionResetError:
        return b""


class Driver:
    """One engine process and its sockets. `with Driver(command) as engine: engine.ask("/x.py")`."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        become: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the engine. become: called in its process before the command runs. Raises OSError."""
        self.data, its_data = socket.socketpair()
        self.control, its_control = socket.socketpair()
        self.errors = tempfile.TemporaryFile()
        self.mark = MarkReader()
        self.ending = False  # it closed its sockets within an answer: its process ends, if not at once
        descriptors = {
            0: its_data.fileno(),
            1: its_data.fileno(),
            2: self.errors.fileno(),
            CONTROL: its_control.fileno(),
        }
        variables = {"PATH": SEARCH_PATH, "LANG": "C.UTF-8"} if environment is None else environment
        self.pid = start(command, variables, descriptors, become)
        self.exited = os.pidfd_open(self.pid)
        its_data.close()
        its_control.close()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(
        self,
        file: str,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        body: bytes = b"",
        seconds: float = 10,
    ) -> Answer:
        """Have the engine run a script. Raises TimeoutError, ProtocolError, BrokenPipeError."""
        variables = {
            "PATH": SEARCH_PATH,
            "CONTENT_LENGTH": str(len(body)),
            **(environment or {}),
        }
        pairs = {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}
        self.errors.truncate(0)
        self.control.sendall(request_lines(os.fsencode(file), map(os.fsencode, arguments), pairs))
        output, status = self.converse(body, time.monotonic() + seconds)
        self.ending = status is None
        return Answer(output, os.pread(self.errors.fileno(), 1 << 20, 0).lstrip(b"\0"), status)

    def converse(self, body: bytes, deadline: float) -> tuple[bytes, int | None]:
        """Send the body and read the output, until the mark or the engine's end."""
        exchange = Exchange(self, body)
        while not exchange.over:
            if not exchange.go_on(max(0, deadline - time.monotonic())):
                raise TimeoutError("it does not answer")
        return bytes(exchange.output), exchange.status

    def drained(self) -> bytes:
        """Return the output that was there when the mark came."""
        output = b""
        while select.select([self.data], [], [], 0)[0] and (piece := self.data.recv(PIECE)):
            output += piece
        return output

    def ends(self, seconds: float = 5) -> bool:
        """Close the sockets; return whether the engine then ends by itself."""
        self.control.close()
        self.data.close()
        return bool(select.select([self.exited], [], [], seconds)[0])

    def close(self) -> None:
        """Close the sockets, and kill the engine if it does not end."""
        self.control.close()
        self.data.close()
        self.errors.close()
        if self.pid:
            select.select([self.exited], [], [], TIDIES_IN)
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # its process group does not exist yet, or no longer
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self.exited)
            self.pid = 0


class Exchange:
    """A script that an engine runs: its body on the way there, its output and its mark on the way back.

    over: the mark has come, or the engine has ended. status: the script's exit status; None without a mark.
    """

    def __init__(self, driver: Driver, body: bytes) -> None:
        self.driver = driver
        self.body = body
        self.output = bytearray()
        self.status: int | None = None
        self.over = False
        self.marks_end = False  # the engine has closed its control socket

    def go_on(self, seconds: float) -> bool:
        """Move what can be moved within `seconds`; return whether anything could. Raises ProtocolError."""
        driver = self.driver
        reading = [driver.data] if self.marks_end else [driver.control, driver.data]
        ready, room, _ = select.select(reading, [driver.data] if self.body else [], [], seconds)
        if room:
            self.body = self.body[driver.data.send(self.body[:PIECE]) :]
        if driver.data in ready:
            piece = received(driver.data)
            self.over = not piece
            self.output += piece
        elif driver.control in ready:
            said = received(driver.control)
            self.marks_end = not said
            self.status = driver.mark.feed(said) if said else None
            if self.status is not None:
                self.output += driver.drained()
                self.over = True
        return bool(ready or room)


__all__ = ["Answer", "Driver", "Exchange", "ProtocolError"]
