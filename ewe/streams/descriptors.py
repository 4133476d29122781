"""Descriptors: how many a process may have open, pipes that wake, and files that go to sockets.

Not every system has eventfd(2), pipe2(2) and a sendfile(2) for all files. What stands for them is here.
"""

from __future__ import annotations

import errno
import os
import resource
import sys

# The system has no descriptors, buffers, memory or processes left. The server is busy: 503, not a fault (500).
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN}
NO_SENDFILE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSOCK, errno.ENOTSUP, errno.EOPNOTSUPP}
COPY = 64 * 1024  # bytes
OPEN_MAX = 10240  # <sys/syslimits.h> of macOS: it refuses more, although the hard limit is higher


def limit() -> int | None:
    """Return how many descriptors this process may have open; None: as many as it wants."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def allow_all() -> None:
    """Raise the limit as far as the system lets us: a connection takes one, an engine of X-Switch three."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for more in (hard, max(soft, OPEN_MAX)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            return
        except (ValueError, OSError):
            pass  # a system that calls the limit "unlimited" and does not grant it


def send_region(target: int, file: int, offset: int, count: int) -> int:
    """Send a part of a file with sendfile(2); return how many bytes were sent, 0 at the file's end. Raises OSError.

    Not every file system and socket can do that (ENOTSUP and the like): then up to COPY bytes are copied. At a full
    socket, Python returns on macOS, too, what was sent; only a call that has sent nothing raises BlockingIOError.
    """
    try:
        return os.sendfile(target, file, offset, count)
    except OSError as reason:
        if reason.errno not in NO_SENDFILE:
            raise
    data = os.pread(file, min(count, COPY), offset)
    return os.write(target, data) if data else 0


def nonblocking_pipe() -> tuple[int, int]:
    """Return the reading and the writing end of a new pipe; neither is inherited, nor waits. Raises OSError."""
    if hasattr(os, "pipe2"):
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        return reader, writer
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer


class Waker:
    """Wakes what waits until `reader` can be read: an eventfd(2), or a pipe where the system has none."""

    __slots__ = ("reader", "writer")

    def __init__(self) -> None:
        """Raises OSError if no descriptor is left."""
        if hasattr(os, "eventfd"):
            self.reader = self.writer = os.eventfd(0, EVENTFD_FLAGS)
        else:
            self.reader, self.writer = nonblocking_pipe()

    def wake(self) -> None:
        """Make `reader` readable; any thread may call this."""
        try:
            os.write(self.writer, ONE)
        except BlockingIOError:
            pass  # the pipe is full, and so can be read

    def clear(self) -> None:
        """Read all that wake() has written."""
        try:
            os.read(self.reader, 4096)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.reader)
        if self.writer != self.reader:
            os.close(self.writer)


EVENTFD_FLAGS: int = getattr(os, "EFD_CLOEXEC", 0) | getattr(os, "EFD_NONBLOCK", 0)
ONE = (1).to_bytes(8, sys.byteorder)  # eventfd(2) adds it to its counter
