"""Spools responses that web servers take more slowly than engines write them, so that the engine becomes free.

Without spooling, a visitor who reads slowly would occupy an engine for as long as the reading takes, and a few such
visitors all the engines of a user. A response that does not fit into the connection waits in memory (up to
outbox.FULL_BYTES), then in a file without a name. There is a limit for the file of each response (`spool`) and for
all files together (`max-spool`). One user may use a quarter of `max-spool`. At a limit the engine waits.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from typing import TYPE_CHECKING

from ewe.xswitch.switch.outbox import FULL_BYTES, WRITE_BYTES, Outbox

if TYPE_CHECKING:
    import socket

    from ewe.xswitch.settings import Settings
    from ewe.xswitch.switch.loop import Callback, EventLoop

USERS_SHARES = 4  # one user may use max-spool divided by this number: a quarter of it


class SpoolSpace:
    """Counts the bytes in files, in all and for each user."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.used_bytes = 0
        self.bytes_of_user: Counter[str] = Counter()

    def allows(self, user: str, file_bytes: int) -> bool:
        """Return whether the file of a response of this user may grow (`spool`, `max-spool`).

        file_bytes: the bytes of the response in its file so far.
        """
        limit = self.settings.max_spool
        return (
            file_bytes < self.settings.spool
            and self.used_bytes < limit
            and self.bytes_of_user[user] < limit / USERS_SHARES
        )

    def add(self, user: str, count: int) -> None:
        """Count bytes added to a file; negative: bytes freed."""
        self.used_bytes += count
        self.bytes_of_user[user] += count
        if not self.bytes_of_user[user]:
            del self.bytes_of_user[user]


class SpoolingOutbox(Outbox):
    """An outbox with a file behind it. Bytes leave in this order: `pending`, the file, then `unspooled`.

    `unspooled` has the bytes that the file did not accept. The file is emptied as a whole, once all of it was read.
    """

    def __init__(
        self, loop: EventLoop, sock: socket.socket, on_full: Callback, on_room: Callback, space: SpoolSpace
    ) -> None:
        super().__init__(loop, sock, on_full, on_room)
        self.space = space
        self.user = ""  # the user whose response this is
        self.spool_file = -1  # a descriptor; -1: there is no file
        # The part of the file that was not sent yet lies between these two positions
        self.file_begin = self.file_end = 0
        self.unspooled = b""

    def queue_data(self, data: bytes) -> None:
        """Keep data that the socket has no room for: in memory up to FULL_BYTES, then in the file.

        Call on_full() if the file may not grow further (SpoolSpace.allows), or cannot because the disk is full:
        then `unspooled` has the rest.
        """
        if not self.file_end and not self.unspooled:
            room_bytes = max(0, FULL_BYTES - len(self.pending))
            self.pending += data[:room_bytes]
            data = data[room_bytes:]
        if data:
            self.spool(data)
        if self.unspooled or (self.file_end and not self.space.allows(self.user, self.file_end)):
            self.on_full()

    def spool(self, data: bytes) -> None:
        """Append data to the waiting bytes: to the file, or to `unspooled` if the file must not grow, or cannot."""
        if self.unspooled or not self.space.allows(self.user, self.file_end):
            self.unspooled += data
            return
        try:
            if self.spool_file < 0:
                # dup(2): the descriptor stays open without the Python file, which is not needed
                with tempfile.TemporaryFile(buffering=0) as file:
                    self.spool_file = os.dup(file.fileno())
            written = os.pwrite(self.spool_file, data, self.file_end)
        except OSError:
            written = 0  # the disk is full
        self.space.add(self.user, written)
        self.file_end += written
        self.unspooled = data[written:]

    def refill(self) -> None:
        """Make the next bytes of the file pending, or `unspooled` once the whole file was read."""
        if self.file_begin < self.file_end:
            try:
                self.pending = os.pread(
                    self.spool_file, min(WRITE_BYTES, self.file_end - self.file_begin), self.file_begin
                )
            except OSError:
                self.failed = True  # the connection closes: the response must not pass for complete
                return
            self.file_begin += len(self.pending)
            if self.file_begin == self.file_end:
                self.close_file()
        if not self.pending:
            self.pending, self.unspooled = self.unspooled, b""

    def is_full(self) -> bool:
        return bool(self.file_end or self.unspooled) or super().is_full()

    def close_file(self) -> None:
        """Close the file, and count its bytes as free."""
        if self.spool_file >= 0:
            os.close(self.spool_file)
            self.spool_file = -1
        self.space.add(self.user, -self.file_end)
        self.file_begin = self.file_end = 0

    def close(self) -> None:
        super().close()
        self.close_file()
        self.unspooled = b""
