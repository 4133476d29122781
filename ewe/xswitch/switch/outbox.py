"""What is to be written to a socket that does not block: an engine's, or a web server's."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ewe.xswitch.loop import Callback, Loop

PIECE = 256 * 1024  # bytes written at once
FULL = 64 * 1024  # bytes that wait before who has more of them is told to hold back


class Outbox:
    """Writes to one socket, in order. full, room: called when much waits, and when no longer.

    failed: nobody will read the rest, and what is sent from then on is dropped; room is called then, too.
    """

    def __init__(self, loop: Loop, sock: socket.socket, full: Callback, room: Callback) -> None:
        self.loop = loop
        self.sock = sock
        self.full = full
        self.room = room
        self.pending = b""
        self.failed = False

    def send(self, data: bytes) -> None:
        """Write data, now or as soon as there is room."""
        if not self.pending:
            sent = self.write(data)
            if sent == len(data):
                if self.failed:
                    self.loop.call_soon(self.room)
                return
            data = data[sent:]
            self.loop.add_writer(self.sock, self.on_room)
        self.pending += data
        if len(self.pending) > FULL:
            self.full()

    def write(self, data: bytes) -> int:
        """Return how many bytes could be written; all, where nobody will read them."""
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self.failed = True
            return len(data)

    def on_room(self) -> None:
        """Go on writing."""
        sent = self.write(self.pending[:PIECE])
        self.pending = b"" if self.failed else self.pending[sent:]
        if not self.pending:
            self.loop.remove_writer(self.sock)
        if len(self.pending) < FULL:
            self.room()

    def close(self) -> None:
        """Write no more."""
        if self.pending:
            self.loop.remove_writer(self.sock)
            self.pending = b""
