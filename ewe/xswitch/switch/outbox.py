"""Bytes that wait to be written to a non-blocking socket, and back-pressure for their source.

    send() --> the socket           as many bytes as it accepts at once
           --> pending --> socket   the rest, when there is room; above FULL_BYTES the outbox calls on_full(),
                                    and on_room() when it is below again

A peer that has closed the socket sets `failed`. The outbox drops all later data, and calls on_room(): the owner
then sees the failure. It never calls on_room() from within send(), because the caller of send() may be in a
critical step.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ewe.xswitch.switch.loop import Callback, EventLoop

WRITE_BYTES = 256 * 1024  # that one send(2) gets at most
FULL_BYTES = 64 * 1024  # that may wait before on_full() is called


class Outbox:
    """Writes to one socket, in order.

    on_full: called when more than FULL_BYTES wait. on_room: called when no more than FULL_BYTES wait again.
    """

    def __init__(self, loop: EventLoop, sock: socket.socket, on_full: Callback, on_room: Callback) -> None:
        self.loop = loop
        self.sock = sock
        self.on_full = on_full
        self.on_room = on_room
        self.pending = b""  # the bytes that wait for room in the socket
        self.failed = False  # the peer has closed the socket, or the file of a SpoolingOutbox cannot be read
        self.last_write_at = 0.0  # monotonic time at which the socket last accepted pending bytes

    def send(self, data: bytes) -> None:
        """Write data now, or as soon as there is room."""
        if not self.pending:
            sent = self.write(data)
            if sent == len(data):
                if self.failed:
                    self.loop.call_soon(self.on_room)  # later: the caller may be in a critical step
                return
            data = data[sent:]
            self.last_write_at = time.monotonic()
            self.loop.add_writer(self.sock, self.on_writable)
        self.queue_data(data)

    def queue_data(self, data: bytes) -> None:
        """Append data to the pending bytes: the socket has no room for them."""
        self.pending += data
        if self.is_full():
            self.on_full()

    def is_full(self) -> bool:
        """Return whether more than FULL_BYTES wait."""
        return len(self.pending) > FULL_BYTES

    def refill(self) -> None:
        """Make bytes that wait elsewhere pending, once all pending ones are written. A subclass has such bytes."""

    def write(self, data: bytes) -> int:
        """Return how many bytes were written; all of them if the peer has closed the socket."""
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self.failed = True
            return len(data)

    def on_writable(self) -> None:
        """Write pending bytes: the event loop calls this when the socket has room."""
        sent = self.write(self.pending[:WRITE_BYTES])
        self.last_write_at = time.monotonic()
        self.pending = b"" if self.failed else self.pending[sent:]
        if not self.pending and not self.failed:
            self.refill()
        if not self.pending:
            self.loop.remove_writer(self.sock)
        if self.failed or not self.is_full():
            self.on_room()

    def close(self) -> None:
        """Drop the pending bytes."""
        if self.pending:
            self.loop.remove_writer(self.sock)
            self.pending = b""
