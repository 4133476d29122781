"""Responses that web servers take more slowly than engines write them are kept here, so that the engine is free.

Without this, a visitor who reads slowly would hold an engine for as long as the reading takes, and a few such
visitors all the engines of a user. A response that does not fit into the connection waits in memory (up to
outbox.FULL_BYTES), then in a file without a name. The file has a limit for each response (`spool`), and all files
together have one (`max-spool`), of which one user may take a quarter. At a limit the engine waits, as it would
without a file.
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
    from ewe.xswitch.switch.loop import Callback, Loop

SHARES = 4  # one user may take this fraction of max-spool: a quarter


class SpoolSpace:
    """Counts the bytes in files, in all and for each user."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.used = 0
        self.of_user: Counter[str] = Counter()

    def allows(self, user: str, answer: int) -> bool:
        """Return whether a response of this user may grow; `answer`: its bytes in a file so far."""
        most = self.settings.max_spool
        return answer < self.settings.spool and self.used < most and self.of_user[user] < most / SHARES

    def add(self, user: str, count: int) -> None:
        """Count bytes that a file has more; negative: fewer."""
        self.used += count
        self.of_user[user] += count
        if not self.of_user[user]:
            del self.of_user[user]


class SpoolingOutbox(Outbox):
    """An outbox with a file behind it. Its order: pending, then the file, then what the disk had no room for.

    The file is emptied as a whole, once it has been read to its end.
    """

    def __init__(
        self, loop: Loop, sock: socket.socket, full: Callback, room: Callback, space: SpoolSpace
    ) -> None:
        super().__init__(loop, sock, full, room)
        self.space = space
        self.user = ""  # the user whose response this is
        self.file = -1
        self.begin = self.end = 0  # of the part of the file that is not written yet
        self.rest = b""

    def keep(self, data: bytes) -> None:
        if not self.end and not self.rest:
            fits = max(0, FULL_BYTES - len(self.pending))
            self.pending += data[:fits]
            data = data[fits:]
        if data:
            self.store(data)
        if self.rest or (self.end and not self.space.allows(self.user, self.end)):
            self.full()

    def store(self, data: bytes) -> None:
        """Put data behind everything that waits."""
        if self.rest or not self.space.allows(self.user, self.end):
            self.rest += data
            return
        try:
            if self.file < 0:
                with tempfile.TemporaryFile(buffering=0) as file:
                    self.file = os.dup(file.fileno())
            written = os.pwrite(self.file, data, self.end)
        except OSError:
            written = 0  # the disk is full
        self.space.add(self.user, written)
        self.end += written
        self.rest = data[written:]

    def refill(self) -> None:
        if self.begin < self.end:
            self.pending = os.pread(self.file, min(WRITE_BYTES, self.end - self.begin), self.begin)
            self.begin += len(self.pending)
            if self.begin == self.end:
                self.empty()
        if not self.pending:
            self.pending, self.rest = self.rest, b""

    def is_full(self) -> bool:
        return bool(self.end or self.rest) or super().is_full()

    def empty(self) -> None:
        """Close the file, and count its bytes as free."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
        self.space.add(self.user, -self.end)
        self.begin = self.end = 0

    def close(self) -> None:
        super().close()
        self.empty()
        self.rest = b""
