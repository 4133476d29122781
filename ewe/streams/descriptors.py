"""Descriptors: the limit on open ones, wake pipes, and sendfile(2).

Not every system has eventfd(2), pipe2(2), and a sendfile(2) that works for all files. This module has the
replacements.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import struct
import sys
import termios

from ewe.log_files import EVENTFD_FLAGS
from ewe.streams.base import Disconnected

# The system has no descriptors, buffers, memory or processes left. The server is overloaded (503), not faulty
# (500).
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN}
NO_SENDFILE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSOCK, errno.ENOTSUP, errno.EOPNOTSUPP}
UNREADABLE = {errno.EIO, errno.ESTALE}  # faults of a disk, and of a file on another machine
COPY_BYTES = 64 * 1024  # bytes read and written at once where sendfile(2) cannot be used
# Bytes that a peer which reads at once may not have acknowledged: two packets (RFC 9293 section 3.8.6.3), and more
# than these. If a peer does not read, a socket's buffer holds many times as many.
DELAYED_BYTES = 4096
OPEN_MAX = 10240  # <sys/syslimits.h> of macOS: the system refuses more, although the hard limit is higher


def descriptor_limit() -> int | None:
    """Return how many descriptors this process may have open; None: no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> None:
    """Raise the limit as far as the system allows. A connection needs one descriptor, an X-Switch engine three."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for more in (hard, max(soft, OPEN_MAX)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            return
        except (ValueError, OSError):
            pass  # the system calls the hard limit "unlimited", but does not grant that


def send_region(target: int, file: int, offset: int, count: int) -> int:
    """Send a part of a file with sendfile(2); return how many bytes were sent.

    Some file systems and sockets do not support sendfile(2) (ENOTSUP and similar errors). Then up to COPY_BYTES are
    read and written. If the socket's buffer becomes full, Python returns the number of bytes sent, also on macOS.
    Only a call that has sent nothing raises BlockingIOError. Raises OSError if the connection is lost; Disconnected
    if the announced length can no longer be sent, since the file has become shorter or cannot be read.
    """
    try:
        sent = os.sendfile(target, file, offset, count)
    except OSError as reason:
        if reason.errno in UNREADABLE:
            raise Disconnected(f"the file cannot be read: {reason.strerror}") from None
        if reason.errno not in NO_SENDFILE:
            raise
        data = os.pread(file, min(count, COPY_BYTES), offset)
        sent = os.write(target, data) if data else 0
    if not sent:
        raise Disconnected("the file has become shorter")
    return sent


def has_unsent_bytes(descriptor: int) -> bool:
    """Return whether a socket holds more than DELAYED_BYTES that the peer's system has not acknowledged.

    Linux tells it (SIOCOUTQ, tcp(7)), and only Linux. True if it is unknown.
    """
    try:
        count = int(struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))[0])
        return count > DELAYED_BYTES
    except (OSError, ValueError):  # ValueError: the socket is closed
        return True


def nonblocking_pipe() -> tuple[int, int]:
    """Return the reading and the writing end of a new pipe. Raises OSError.

    Both ends are non-blocking, and executed programs do not inherit them.
    """
    if hasattr(os, "pipe2"):
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        return reader, writer
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer


class Waker:
    """Wakes a thread that waits until `reader` can be read. It is an eventfd(2), or a pipe on other systems."""

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
            pass  # the pipe is full, so `reader` can be read already

    def clear(self) -> None:
        """Read and drop the bytes that wake() has written."""
        try:
            os.read(self.reader, 4096)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.reader)
        if self.writer != self.reader:
            os.close(self.writer)


ONE = (1).to_bytes(8, sys.byteorder)  # eventfd(2) adds it to its counter
