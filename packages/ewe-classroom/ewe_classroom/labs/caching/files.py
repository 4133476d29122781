"""A small cache of files in memory. It answers from memory if it can prove that a file is unchanged.

    get(path) ─▶ os.stat(path) ─▶ same version? ─▶ yes: return the stored bytes
                                                └─▶ no: open, read and store the file; drop the oldest files

The cache never sends an old version. This costs one system call for each request. All threads share the cache.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

from conditional import etag_of

MAX_CACHE_BYTES = 8 << 20  # the maximum size of all stored files, in bytes
MAX_FILE_BYTES = 4 << 20  # the maximum size of one stored file, in bytes
# Nanoseconds. A file that changed so recently may change again and keep its modification time
YOUNG_NS = 50_000_000


@dataclass(frozen=True)
class File:
    """One version of a file. version: values of os.stat(); if they are equal, the file is unchanged."""

    body: bytes
    etag: str
    changed: int  # seconds since 1970, without the fraction
    version: tuple[int, ...]


def version_of(info: os.stat_result) -> tuple[int, ...]:
    """Return the values of os.stat() that distinguish two versions of a file."""
    # --- solution
    return info.st_mtime_ns, info.st_size, info.st_ino
    # --- starter
    # # Is that enough? Consider two changes in one second, and a restored backup.
    # return (int(info.st_mtime),)
    # --- end


def load(path: str) -> File:
    """Read a file. Raises OSError if there is none."""
    with open(path, "rb") as file:
        info = os.fstat(file.fileno())  # of the open file: another file may have this name by now
        if not stat.S_ISREG(info.st_mode):
            raise FileNotFoundError(path)
        body = file.read()
    return File(body, etag_of(info.st_mtime_ns, info.st_size), int(info.st_mtime), version_of(info))


class Files:
    """The cache. Any thread may call get(). max_bytes: of all stored files. stored_bytes: their bytes now."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.stored: OrderedDict[str, File] = OrderedDict()  # the least recently requested file comes first
        self.stored_bytes = 0
        self.lock = threading.Lock()

    def get(self, path: str) -> File:
        """Return the current version of a file. Raises OSError if there is no file."""
        # --- solution
        version = version_of(os.stat(path))
        with self.lock:
            found = self.stored.get(path)
            if found is not None and found.version == version:
                self.stored.move_to_end(path)
                return found
        found = load(path)  # without the lock, so that other threads do not wait for the disk
        self.keep(path, found)
        return found
        # --- starter
        # # This is fast, but wrong after the first change. It also never drops a file.
        # if path not in self.stored:
        #     self.stored[path] = load(path)
        # return self.stored[path]
        # --- end

    def keep(self, path: str, file: File) -> None:
        """Store a file; drop the least recently requested files while the cache exceeds its size."""
        # --- solution
        changed_ns, *_ = file.version
        is_young = time.time_ns() - changed_ns < YOUNG_NS
        with self.lock:
            old_version = self.stored.pop(path, None)
            self.stored_bytes -= len(old_version.body) if old_version else 0
            if is_young or len(file.body) > MAX_FILE_BYTES:
                return
            self.stored[path] = file
            self.stored_bytes += len(file.body)
            while self.stored_bytes > self.max_bytes:
                _, oldest = self.stored.popitem(last=False)
                self.stored_bytes -= len(oldest.body)
        # --- end
