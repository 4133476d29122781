"""Spooling: a request's body is collected in a file before a program or a responder is asked.

    client ── slow, chunked or not ──▶ spooled() ──▶ file in memory (memfd), at most `spool` bytes
                                                └──▶ temporary file without a name, when it is larger
                                                          │ standard input, or records of FastCGI
                                                          ▼
                                                       program

A program needs CONTENT_LENGTH before it starts (RFC 3875 section 4.1.2), but a chunked body has no length until its
end. A program that reads from a slow client also waits, and occupies its process or its engine. Spooling solves
both problems: the program starts when the whole body has come, and reads a real file at full speed.
"""

from __future__ import annotations

import os

from ewe.http.messages import BodyReader
from ewe.http.status import HTTPError
from ewe.streams.descriptors import EXHAUSTED

NOTHING = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # stands for every empty body


class Spooled:
    """A request's body in a file. descriptor: of the file, read from its start. length: in bytes."""

    __slots__ = ("closed", "descriptor", "length", "shared")

    def __init__(self, descriptor: int, length: int, shared: bool = False) -> None:
        """shared: this object stands for all empty bodies, and close() leaves the file open."""
        self.descriptor = descriptor
        self.length = length
        self.shared = shared
        self.closed = False

    def copy(self) -> Spooled:
        """Return a second Spooled of the same body, which must be closed separately."""
        return self if self.shared else Spooled(os.dup(self.descriptor), self.length)

    def close(self) -> None:
        """Close the file."""
        if not self.closed and not self.shared:
            self.closed = True
            os.close(self.descriptor)


EMPTY = Spooled(NOTHING, 0, shared=True)


async def spooled(body: BodyReader, max_memory_bytes: int) -> Spooled:
    """Read a body to its end into a file: in memory up to `max_memory_bytes`, else on disk.

    Raises HTTPError: 507 if the disk is full, and those of BodyReader.receive(); OSError if the system has no
    descriptor or no memory left.
    """
    if body.length == 0:
        return EMPTY
    in_memory = body.length is None or body.length <= max_memory_bytes
    descriptor = -1
    length = 0
    try:
        descriptor = memory_file("ewe-body") if in_memory else temporary_file()
        while piece := await body.receive():
            length += len(piece)
            if in_memory and length > max_memory_bytes:
                in_memory = False
                descriptor = moved_to_disk(descriptor)
            write(descriptor, piece)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return Spooled(descriptor, length)
    except BaseException as reason:
        if descriptor >= 0:
            os.close(descriptor)
        if isinstance(reason, OSError) and reason.errno not in EXHAUSTED:
            raise HTTPError(507, f"a request body cannot be spooled: {reason.strerror}") from None
        raise


def memory_file(name: str) -> int:
    """Return the descriptor of a new file in memory; on disk if the system has no memfd. Raises OSError."""
    return os.memfd_create(name) if hasattr(os, "memfd_create") else temporary_file()


def temporary_file() -> int:
    """Return the descriptor of a new file without a name, which vanishes when it is closed. Raises OSError."""
    directory = os.environ.get("TMPDIR") or "/tmp"
    if hasattr(os, "O_TMPFILE"):
        try:
            return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            pass  # this file system cannot make files without a name
    from tempfile import mkstemp

    descriptor, name = mkstemp(prefix="ewe-", dir=directory)
    os.unlink(name)
    return descriptor


def moved_to_disk(descriptor: int) -> int:
    """Return a temporary file with the content of a memory file, and close the memory file. Raises OSError."""
    disk = temporary_file()
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        while data := os.read(descriptor, 1024 * 1024):
            write(disk, data)
    except OSError:
        os.close(disk)
        raise
    os.close(descriptor)
    return disk


def write(descriptor: int, data: bytes) -> None:
    """Write all the data. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
