"""Bytes that wait to be written to a non-blocking socket, and back-pressure for the side that makes them.

    send() --> the socket           what it takes at once
           --> pending --> socket   the rest, when there is room; above FULL_BYTES the outbox calls full()
                                    when it is below again, it calls room()

A peer that has closed the socket sets `failed`. What is sent from then on is dropped, and room() is called, so that
the owner hears of it; never from within send(), whose caller is in the middle of something.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ewe.xswitch.switch.loop import Callback, Loop

WRITE_BYTES = 256 * 1024  # written at once
FULL_BYTES = 64 * 1024  # that may wait before full() is called


class Outbox:
    """Writes to one socket, in order. full, room: called when much waits, and when it no longer does."""

    def __init__(self, loop: Loop, sock: socket.socket, full: Callback, room: Callback) -> None:
        self.loop = loop
        self.sock = sock
        self.full = full
        self.room = room
        self.pending = b""
        self.failed = False
        self.moved = 0.0  # when the socket last took some of what was pending

    def send(self, data: bytes) -> None:
        """Write data now, or as soon as there is room."""
        if not self.pending:
            sent = self.write(data)
            if sent == len(data):
                if self.failed:
                    self.loop.call_soon(self.room)
                return
            data = data[sent:]
            self.moved = time.monotonic()
            self.loop.add_writer(self.sock, self.on_room)
        self.keep(data)

    def keep(self, data: bytes) -> None:
        """Keep data that the socket has no room for."""
        self.pending += data
        if self.is_full():
            self.full()

    def is_full(self) -> bool:
        """Return whether so much waits that no more should come."""
        return len(self.pending) > FULL_BYTES

    def refill(self) -> None:
        """Make what waits elsewhere pending: all that was pending is written. A subclass has such a place."""

    def write(self, data: bytes) -> int:
        """Return how many bytes were written; all of them if the peer has closed the socket."""
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self.failed = True
            return len(data)

    def on_room(self) -> None:
        """Go on writing: the socket has room."""
        sent = self.write(self.pending[:WRITE_BYTES])
        self.moved = time.monotonic()
        self.pending = b"" if self.failed else self.pending[sent:]
        if not self.pending and not self.failed:
            self.refill()
        if not self.pending:
            self.loop.remove_writer(self.sock)
        if self.failed or not self.is_full():
            self.room()

    def close(self) -> None:
        """Drop what waits."""
        if self.pending:
            self.loop.remove_writer(self.sock)
            self.pending = b""
