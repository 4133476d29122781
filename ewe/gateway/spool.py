"""Request bodies as files: in memory when small, in an unlinked temporary file when large.

So a program gets a real file as standard input and a true CONTENT_LENGTH, however the client framed its
request, and a slow client costs no program.
"""

from __future__ import annotations

import os

from ewe.http import BodyReader, Refused

NOTHING = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # all empty bodies share it


class Spooled:
    """A request body in a file. descriptor: at its start, ready to be read. length: in bytes."""

    __slots__ = ("closed", "descriptor", "length", "shared")

    def __init__(self, descriptor: int, length: int, shared: bool = False) -> None:
        """shared: the descriptor is not this body's own."""
        self.descriptor = descriptor
        self.length = length
        self.shared = shared
        self.closed = False

    def copy(self) -> Spooled:
        """Return the same body once more, to be closed for itself."""
        own = self.descriptor if self.shared else os.dup(self.descriptor)
        return Spooled(own, self.length, self.shared)

    def close(self) -> None:
        """Let the file go."""
        if not self.closed and not self.shared:
            os.close(self.descriptor)
        self.closed = True


async def spooled(body: BodyReader, memory: int) -> Spooled:
    """Read a body to its end into a file; up to `memory` bytes of it stay in memory.

    Raises Refused: what reading it raises, 507 when the disk is full.
    """
    if body.length == 0:
        return Spooled(NOTHING, 0, shared=True)
    in_memory = body.length is None or body.length <= memory
    descriptor = -1
    length = 0
    try:
        descriptor = memory_file() if in_memory else temporary_file()
        while piece := await body.receive():
            length += len(piece)
            if in_memory and length > memory:
                in_memory = False
                descriptor = moved_to_disk(descriptor)
            write(descriptor, piece)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return Spooled(descriptor, length)
    except BaseException as reason:
        if descriptor >= 0:
            os.close(descriptor)
        if isinstance(reason, OSError):
            raise Refused(507, f"a request body cannot be spooled: {reason.strerror}") from None
        raise


def memory_file() -> int:
    """Return a new file that has no disk behind it."""
    return os.memfd_create("ewe-body") if hasattr(os, "memfd_create") else temporary_file()


def temporary_file() -> int:
    """Return a new file that has no name, so that nothing is left whatever happens. Raises OSError."""
    directory = os.environ.get("TMPDIR") or "/tmp"
    if hasattr(os, "O_TMPFILE"):
        try:
            return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            pass  # a file system without it
    from tempfile import mkstemp

    descriptor, name = mkstemp(prefix="ewe-", dir=directory)
    os.unlink(name)
    return descriptor


def moved_to_disk(memory: int) -> int:
    """Return a temporary file with what a memory file holds, which is closed."""
    disk = temporary_file()
    try:
        os.lseek(memory, 0, os.SEEK_SET)
        while data := os.read(memory, 1024 * 1024):
            write(disk, data)
    except OSError:
        os.close(disk)
        raise
    os.close(memory)
    return disk


def write(descriptor: int, data: bytes) -> None:
    """Write all of it. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
