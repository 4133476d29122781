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
from ewe.xswitch.process import CONTROL_DESCRIPTOR, start
from ewe.xswitch.protocol import MarkReader, ProtocolError, request_lines

PIECE_BYTES = 64 * 1024  # that one call reads or writes
MAX_DRAINED_PIECES = 64  # pieces of output that are read after the end mark; a socket buffers far less
MAX_ERROR_BYTES = 1 << 20  # of standard error that a ScriptResult has
CLEANUP_TIMEOUT_S = 0.3  # seconds in which an engine may end by itself, and remove its temporary files


class ScriptResult(NamedTuple):
    """The answer of an engine. status: the exit status; None if the engine ended without its end mark."""

    output: bytes
    errors: bytes
    status: int | None


def receive_bytes(sock: socket.socket) -> bytes:
    """Return the bytes that have arrived, b"" if the engine has closed the other end; wait for either.

    If the engine closes its end before it has read all bytes, recv(2) reports a reset. This also counts as the end
    of the connection.
    """
    try:
        return sock.recv(PIECE_BYTES)
    except ConnectionResetError:
        return b""


def is_readable(file: socket.socket | int, seconds: float) -> bool:
    """Wait for at most `seconds`; return whether a file can be read."""
    ready, _, _ = select.select([file], [], [], seconds)
    return bool(ready)


class Driver:
    """One engine process and its sockets. `with Driver(command) as engine: engine.ask("/x.py")`."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        become: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the engine. become: called in its process before the command runs. Raises OSError."""
        self.data, engine_data = socket.socketpair()
        self.control, engine_control = socket.socketpair()
        self.errors = tempfile.TemporaryFile()
        self.mark_reader = MarkReader()
        # The engine closed its sockets within an answer, or right after it: its process will end soon
        self.is_ending = False
        descriptors = {
            0: engine_data.fileno(),
            1: engine_data.fileno(),
            2: self.errors.fileno(),
            CONTROL_DESCRIPTOR: engine_control.fileno(),
        }
        variables = {"PATH": SEARCH_PATH, "LANG": "C.UTF-8"} if environment is None else environment
        self.pid = start(command, variables, descriptors, become)
        self.pidfd = os.pidfd_open(self.pid)
        engine_data.close()
        engine_control.close()

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
    ) -> ScriptResult:
        """Make the engine run a script. Raises TimeoutError, ProtocolError, ConnectionError."""
        variables = {
            "PATH": SEARCH_PATH,
            "CONTENT_LENGTH": str(len(body)),
            **(environment or {}),
        }
        pairs = {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}
        # The engine's standard error is a copy of this descriptor, and both have one position in the file. Without
        # the new position the errors would stand behind those of all earlier requests
        os.lseek(self.errors.fileno(), 0, os.SEEK_SET)
        self.errors.truncate(0)
        self.control.sendall(request_lines(os.fsencode(file), map(os.fsencode, arguments), pairs))
        output, status = self.converse(body, time.monotonic() + seconds)
        self.is_ending |= status is None
        errors = os.pread(self.errors.fileno(), MAX_ERROR_BYTES, 0)
        return ScriptResult(output, errors, status)

    def converse(self, body: bytes, deadline: float) -> tuple[bytes, int | None]:
        """Send the body and read the output, until the mark or the engine's end.

        Return the output and the exit status, None without a mark. deadline: the monotonic time at which the whole
        answer must be there. Raises TimeoutError, ProtocolError.
        """
        run = ScriptRun(self, body)
        while not run.has_ended:
            seconds_left = deadline - time.monotonic()
            if seconds_left < 0:
                raise TimeoutError("its answer has no end")
            if not run.transfer(seconds_left):
                raise TimeoutError("it does not answer")
        return bytes(run.output), run.status

    def drain(self) -> bytes:
        """Read and return the output that was in the socket when the mark came. Raises ProtocolError."""
        output = b""
        for _ in range(MAX_DRAINED_PIECES):
            if not is_readable(self.data, 0):
                return output
            piece = receive_bytes(self.data)
            if not piece:
                self.is_ending = True
                return output
            output += piece
        raise ProtocolError("its output goes on after its mark")

    def ends(self, seconds: float = 5) -> bool:
        """Close the sockets; return whether the engine then ends by itself."""
        self.control.close()
        self.data.close()
        return is_readable(self.pidfd, seconds)  # a pidfd can be read once the process has ended

    def close(self) -> None:
        """Close the sockets, and kill the engine if it does not end."""
        self.control.close()
        self.data.close()
        self.errors.close()
        if self.pid:
            is_readable(self.pidfd, CLEANUP_TIMEOUT_S)  # waits for the end of the process
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # its process group does not exist yet, or no longer
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self.pidfd)
            self.pid = 0


class ScriptRun:
    """A script that an engine runs: its body on the way there, its output and its mark on the way back.

    has_ended: the mark has come, or the engine has ended. status: the script's exit status; None without a mark.
    """

    def __init__(self, driver: Driver, body: bytes) -> None:
        """body: the bytes that were not sent yet."""
        self.driver = driver
        self.body = body
        self.output = bytearray()
        self.status: int | None = None
        self.has_ended = False
        self.control_ended = False  # the engine has closed its control socket

    def transfer(self, seconds: float) -> bool:
        """Wait at most `seconds` until a socket is ready, then send and receive once. Raises ProtocolError.

        Return False if no socket became ready.
        """
        driver = self.driver
        reading = [driver.data] if self.control_ended else [driver.control, driver.data]
        ready, writable, _ = select.select(reading, [driver.data] if self.body else [], [], seconds)
        if writable:
            try:
                self.body = self.body[driver.data.send(self.body[:PIECE_BYTES]) :]
            except ConnectionError:
                self.body = b""  # the engine has closed its socket: `data` is at its end, too
        # First the mark: an engine that ends right after it has closed `data`, too
        if driver.control in ready:
            mark_bytes = receive_bytes(driver.control)
            self.control_ended = not mark_bytes
            self.status = driver.mark_reader.feed(mark_bytes) if mark_bytes else None
            if self.status is not None:
                self.output += driver.drain()
                self.has_ended = True
        elif driver.data in ready:
            piece = receive_bytes(driver.data)
            self.has_ended = not piece
            self.output += piece
        return bool(ready or writable)


__all__ = ["Driver", "ProtocolError", "ScriptResult", "ScriptRun"]
