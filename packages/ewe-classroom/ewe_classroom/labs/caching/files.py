"""A small cache of files in memory. It answers from memory what it can prove to be unchanged.

    get(path) ─▶ os.stat(path) ─▶ as remembered? ─▶ yes: the bytes that are held
                                                └─▶ no: open, read, remember; let go of the oldest

One system call for each request is the price of never sending an old file. All threads share the cache.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

from conditional import etag_of

ROOM = 8 << 20  # bytes of files that are held at most
LARGEST = 4 << 20  # a larger file is not held
YOUNG_NS = 50_000_000  # a file that was changed this recently may change again without another time


@dataclass(frozen=True)
class File:
    """One version of a file. version: what must stay the same so that the bytes are still good."""

    body: bytes
    etag: str
    changed: int  # seconds since 1970, without the fraction
    version: tuple[int, ...]


def version_of(info: os.stat_result) -> tuple[int, ...]:
    """Return what tells two versions of a file apart."""
    # --- solution
    return info.st_mtime_ns, info.st_size, info.st_ino
    # --- starter
    # # Is that enough? Think of two changes in one second, and of an old backup that is put back.
    # return (int(info.st_mtime),)
    # --- end


def load(path: str) -> File:
    """Read a file. Raises OSError if there is none."""
    with open(path, "rb") as file:
        info = os.fstat(file.fileno())  # of the opened file: the name may lead to another one by now
        if not stat.S_ISREG(info.st_mode):
            raise FileNotFoundError(path)
        body = file.read()
    return File(body, etag_of(info.st_mtime_ns, info.st_size), int(info.st_mtime), version_of(info))


class Files:
    """The cache. Any thread may call get()."""

    def __init__(self, room: int = ROOM) -> None:
        self.room = room
        self.held: OrderedDict[str, File] = OrderedDict()  # what was not asked for the longest comes first
        self.size = 0
        self.lock = threading.Lock()

    def get(self, path: str) -> File:
        """Return a file as it is now. Raises OSError if there is none."""
        # --- solution
        version = version_of(os.stat(path))
        with self.lock:
            found = self.held.get(path)
            if found is not None and found.version == version:
                self.held.move_to_end(path)
                return found
        found = load(path)  # without the lock: another thread's file need not wait for this disk
        self.keep(path, found)
        return found
        # --- starter
        # # Fast, and wrong from the first change on. It also never lets go of a file.
        # if path not in self.held:
        #     self.held[path] = load(path)
        # return self.held[path]
        # --- end

    def keep(self, path: str, file: File) -> None:
        """Remember a file, and let go of the oldest ones while there is no room."""
        # --- solution
        is_young = time.time_ns() - file.version[0] < YOUNG_NS
        with self.lock:
            before = self.held.pop(path, None)
            self.size -= len(before.body) if before else 0
            if is_young or len(file.body) > LARGEST:
                return
            self.held[path] = file
            self.size += len(file.body)
            while self.size > self.room:
                _, oldest = self.held.popitem(last=False)
                self.size -= len(oldest.body)
        # --- end
