"""A table of times that all processes of the server share: when each client may come again.

Two guards remember clients: the request rate limit, and the limit of failed log-ins. One process of eight sees an
eighth of the requests, and the child of the fork model sees one connection. Each would count too few. The table
therefore lies in memory that fork(2) does not copy:

    supervisor ── made here ──┬── worker 1 ──┐
                              ├── worker 2 ──┼── the same pages of memory: (digest of a key, time), 24 bytes each
                              └── child ─────┘

An entry is a key and a time on time.monotonic(), which is the same in all processes. **A time in the past has no
meaning**, so an expired entry is a free slot. No entry is ever deleted, and no cleaner has to run.

The table never grows. A key belongs to one bucket of 8 slots. If all 8 are in use, the entry that expires first
makes room. A flood of addresses thus replaces the entries that matter least.

The table contains only digests (BLAKE2b, 128 bits, with a random key that is made with the table). No attacker can
choose keys that fall into one bucket, and a dump of the memory shows no address, name or password.

Possible failures, and where each is prevented:

- **Two processes change an entry at once.** locked() takes a record lock (fcntl(2)) of the table's file, and a lock
  of this process's threads. The kernel gives back the lock of a process that is killed.
- **The server is restarted.** The table begins empty. A reload (HUP) makes a new table, too.

SharedLock is such a lock without a table, for requests of several processes. Some of them may hold it together, and
others only alone (WebDAV).
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from hashlib import blake2b
from mmap import mmap
from struct import Struct

from ewe.gateway.spool import memory_file

SLOT = Struct("=16sd")  # digest of the key, time on time.monotonic()
BUCKET_SLOTS = 8  # slots of a bucket
BUCKET_BYTES = BUCKET_SLOTS * SLOT.size
LOCK_RETRY_S = 0.002  # seconds between two tries to take a SharedLock
BUCKETS = 2048  # 16,384 slots, 384 KB; the kernel allocates memory only for the parts in use


class SharedTable:
    """Keys and their times, in memory that this process shares with the processes that it forks.

    whole: of a part(), the table that closes the file; None: this table closes it.
    """

    whole: SharedTable | None = None

    def __init__(self, buckets: int = BUCKETS) -> None:
        """Make an empty table. Raises OSError."""
        self.buckets = buckets
        self.secret = os.urandom(32)
        self.file = memory_file("ewe-guards")
        weakref.finalize(self, os.close, self.file)
        os.ftruncate(self.file, buckets * BUCKET_BYTES)
        self.memory = mmap(self.file, buckets * BUCKET_BYTES)
        self.lock = threading.Lock()

    def part(self, name: bytes) -> SharedTable:
        """Return a table in the same memory, whose keys differ from those of this table and of other parts."""
        part = copy(self)
        part.secret = self.digest(b"part", name)
        part.whole = self
        return part

    def digest(self, *parts: bytes) -> bytes:
        """Return the digest of a key that has several parts."""
        hashed = blake2b(key=self.secret, digest_size=16)
        for part in parts:
            hashed.update(b"%d:" % len(part))  # with the lengths, ("ab", "c") and ("a", "bc") differ
            hashed.update(part)
        return hashed.digest()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other thread or process change the table while the body of the `with` statement runs."""
        # lockf() locks the file against other processes, but not against the threads of this process.
        with self.lock:
            fcntl.lockf(self.file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self.file, fcntl.LOCK_UN)

    def get(self, digest: bytes) -> float:
        """Return the time.monotonic() of a key; 0.0 if the table has none, or has dropped it."""
        start = self.bucket(digest)
        for own, until in SLOT.iter_unpack(self.memory[start : start + BUCKET_BYTES]):
            if own == digest:
                return float(until)
        return 0.0

    def put(self, digest: bytes, until: float) -> None:
        """Set the time.monotonic() of a key. The caller is in locked() if the new time depends on the old one."""
        start = self.bucket(digest)
        offset, earliest = start, float("inf")
        for slot, (stored, expires) in enumerate(SLOT.iter_unpack(self.memory[start : start + BUCKET_BYTES])):
            if stored == digest:
                offset = start + slot * SLOT.size
                break
            if expires < earliest:
                offset, earliest = start + slot * SLOT.size, expires
        SLOT.pack_into(self.memory, offset, digest, until)

    def bucket(self, digest: bytes) -> int:
        """Return the offset at which the bucket of a key begins."""
        return int.from_bytes(digest[:8], "little") % self.buckets * BUCKET_BYTES


class SharedLock:
    """A lock that the threads of this process share with all processes that it forks.

    Several threads and processes may hold it together, or one of them alone (exclusive).
    """

    def __init__(self) -> None:
        """Raises OSError."""
        self.file = memory_file("ewe-lock")
        weakref.finalize(self, os.close, self.file)
        self.lock = threading.Lock()
        self.holders = 0  # threads of this process that hold it; -1: one, alone

    def acquire(self, timeout_s: float, *, exclusive: bool) -> bool:
        """Take the lock, and return whether that was possible within the time. May block. Raises OSError."""
        until = time.monotonic() + timeout_s
        while not self.take(exclusive):
            if time.monotonic() > until:
                return False
            time.sleep(LOCK_RETRY_S)
        return True

    def take(self, exclusive: bool) -> bool:
        """Take the lock if that is possible now, and return whether it was. Raises OSError."""
        with self.lock:
            if self.holders < 0 or (exclusive and self.holders):
                return False
            if (
                not self.holders
            ):  # a record lock belongs to a process: its first thread takes it, the last one ends it
                mode = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
                try:
                    fcntl.lockf(self.file, mode | fcntl.LOCK_NB)
                except (BlockingIOError, PermissionError):  # lockf(3) allows both
                    return False
            self.holders = -1 if exclusive else self.holders + 1
            return True

    def release(self) -> None:
        """Give the lock back."""
        with self.lock:
            self.holders = max(self.holders - 1, 0)
            if not self.holders:
                fcntl.lockf(self.file, fcntl.LOCK_UN)


class Rate:
    """Limits an event of each key: `burst` times at once, then `per_second` times a second.

    The count is exact (generic cell rate algorithm). A key's time is the moment at which its whole burst is
    available again. Each event moves that time 1/per_second later, and no event may move it further than the burst
    allows.
    """

    def __init__(self, per_second: float, burst: float, table: SharedTable) -> None:
        self.interval_s = 1 / per_second  # seconds by which each event moves the key's time
        self.burst_s = max(burst, 1) * self.interval_s  # seconds from now that the key's time may reach
        self.table = table

    def take(self, key: bytes) -> float:
        """Count one event, and return 0.0; or count nothing, and return the seconds until the event is allowed."""
        digest = self.table.digest(b"rate", key)
        with self.table.locked():
            now = time.monotonic()
            until = max(self.table.get(digest), now) + self.interval_s  # the key's time after this event
            wait = until - now - self.burst_s
            if wait > 1e-6:  # the times are sums of rounded numbers
                return wait
            self.table.put(digest, until)
        return 0.0

    def wait(self, key: bytes) -> float:
        """Return the seconds until one more event is allowed; 0.0 for now. Count nothing."""
        until = self.table.get(self.table.digest(b"rate", key))
        return max(until + self.interval_s - time.monotonic() - self.burst_s, 0.0) if until else 0.0

    def charge(self, key: bytes, max_wait_s: float) -> None:
        """Count one event in any case. max_wait_s: the longest wait of a key for its next event."""
        digest = self.table.digest(b"rate", key)
        with self.table.locked():
            now = time.monotonic()
            until = max(self.table.get(digest), now) + self.interval_s
            self.table.put(digest, min(until, now + self.burst_s + max_wait_s))
