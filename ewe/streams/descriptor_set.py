"""Descriptor sets: what a process waits for with epoll(7), or with poll(2) where the system has no epoll.

A listener and the pool watch many descriptors at once, and any thread adds one while another thread waits. Linux
has epoll for that. macOS has poll(2), which every POSIX system has, and which knows nothing between two calls:

    epoll     the kernel keeps the set         register() during a wait counts at once
    poll(2)   each call hands over the set     register() during a wait would count at the next call

descriptor_set() returns select.epoll() itself where there is one, so that nothing lies between a model and the
kernel. A PollSet has the same calls elsewhere, and takes the same constants:

    any thread ── register(7, EPOLLIN | EPOLLONESHOT) ─▶ `wanted`, `changed` ── a byte ─▶ wake pipe
    waiting thread: poll(2) returns ─▶ hand the changes to the poll object ─▶ poll(2) ─▶ events

- A poll object is used by one thread at a time: a thread that waits, waits alone. Others wait for their turn.
- EPOLLONESHOT: a descriptor that was reported leaves the set, until it is registered or modified again.
- EPOLLRDHUP, "the peer has closed its sending side": some systems have no POLLRDHUP. The set then watches for
  bytes, and looks at them with MSG_PEEK. Bytes that wait hide the end behind them, and would be reported again at
  once. The set stops watching such a descriptor for bytes.
- EPOLLEXCLUSIVE does nothing: all processes wake for a connection, and one of them accepts it.

What can go wrong: a descriptor is closed while it is in the set. epoll forgets it. poll(2) reports POLLNVAL, and
the set forgets it, too. If its number belongs to another file by then, the set reports that file once: who waits
must bear an event that is not for him. register() and modify() therefore accept a number that is known or not.

A PollSet costs time that grows with the number of its descriptors. It is right for a laptop, and not for load.

Read next: listener.py, parking.py.
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import time
from _socket import SocketType
from _thread import allocate_lock
from typing import Protocol

from ewe.streams.descriptors import nonblocking_pipe

# The numbers of epoll(7); a system without it gets them from here, and the constants of poll(2) are alike.
EPOLLIN: int = getattr(select, "EPOLLIN", 0x001)
EPOLLOUT: int = getattr(select, "EPOLLOUT", 0x004)
EPOLLRDHUP: int = getattr(select, "EPOLLRDHUP", 0x2000)
EPOLLONESHOT: int = getattr(select, "EPOLLONESHOT", 1 << 30)
# One process wakes, not all; PyPy does not define it.
EPOLLEXCLUSIVE: int = getattr(select, "EPOLLEXCLUSIVE", 0)
POLLRDHUP: int = getattr(select, "POLLRDHUP", 0)
HAS_EPOLL = hasattr(select, "epoll")
# What poll(2) watches a peer for, to notice that it has closed its sending side; see side_of().
CLOSING = POLLRDHUP or select.POLLIN
LEFT = select.POLLHUP | select.POLLERR


class DescriptorSet(Protocol):
    """The calls of select.epoll that ewe uses. Any thread may call them at any time."""

    def register(self, fd: int, eventmask: int = ..., /) -> None:
        """Watch a descriptor. Raises OSError."""
        ...

    def modify(self, fd: int, eventmask: int, /) -> None:
        """Watch a known descriptor for other events. Raises FileNotFoundError if epoll does not know it."""
        ...

    def unregister(self, fd: int, /) -> None:
        """Stop watching a descriptor. Raises FileNotFoundError if epoll does not know it."""
        ...

    def poll(self, timeout: float | None = ..., /) -> list[tuple[int, int]]:
        """Wait up to `timeout` seconds (-1: no limit); return the descriptors that are ready, and events."""
        ...

    def fileno(self) -> int:
        """Return a descriptor that can be read while another one of the set is ready. A PollSet has none."""
        ...

    def close(self) -> None:
        """Close what the set holds."""
        ...


def descriptor_set() -> DescriptorSet:
    """Return an empty set: of epoll(7) where Python offers it, else of poll(2)."""
    return select.epoll() if hasattr(select, "epoll") else PollSet()


class PollSet:
    """A set whose descriptors poll(2) watches; see above. It is of one process: a forked child makes another."""

    def __init__(self) -> None:
        """Make an empty set. Raises OSError."""
        self.wanted: dict[int, int] = {}  # descriptor -> events
        self.changed: set[int] = set()  # descriptors that the poll object does not know as `wanted` has them
        self.lock = allocate_lock()  # for all of these; nobody waits while holding it
        self.turn = allocate_lock()  # held by the thread that waits in poll(2)
        self.waits = False  # that thread has handed over all changes, and waits
        self.watched = select.poll()
        self.wake_reader, self.wake_writer = nonblocking_pipe()
        self.watched.register(self.wake_reader, select.POLLIN)

    def register(self, fd: int, eventmask: int = EPOLLIN, /) -> None:
        with self.lock:
            self.wanted[fd] = eventmask
            self.changed.add(fd)
            wakes, self.waits = self.waits, False
        if wakes:
            os.write(self.wake_writer, b"\0")

    modify = register

    def unregister(self, fd: int, /) -> None:
        with self.lock:
            self.wanted.pop(fd, None)
            self.changed.add(fd)  # an event that poll(2) reports meanwhile is dropped

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        limited = timeout is not None and timeout >= 0
        expires = time.monotonic() + timeout if limited and timeout else 0.0
        if not self.turn.acquire(timeout=timeout if limited and timeout is not None else -1):
            return []
        try:
            while True:
                left = max(expires - time.monotonic(), 0) if expires else 0
                self.hand_over()
                found = self.watched.poll(math.ceil(left * 1000) if limited else None)
                if ready := self.taken(found):
                    return ready
                if limited and time.monotonic() >= expires:
                    return []
        finally:
            self.waits = False
            self.turn.release()

    def hand_over(self) -> None:
        """Tell the poll object all changes, and note that a further change has to wake this thread."""
        with self.lock:
            for fd in self.changed:
                if fd in self.wanted:
                    self.watched.register(fd, mask_of(self.wanted[fd]))
                else:
                    self.forget(fd)
            self.changed.clear()
            self.waits = True

    def forget(self, fd: int) -> None:
        """Take a descriptor out of the poll object, if it is there."""
        try:
            self.watched.unregister(fd)
        except KeyError:
            pass

    def taken(self, found: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return those events that poll(2) has found and the set still wants."""
        ready: list[tuple[int, int]] = []
        with self.lock:
            self.waits = False
            for fd, events in found:
                if fd == self.wake_reader:
                    empty(fd)
                    continue
                wanted = self.wanted.get(fd)
                if wanted is None:
                    continue
                if events & select.POLLNVAL:  # it was closed
                    del self.wanted[fd]
                    self.changed.add(fd)
                    continue
                if events == select.POLLIN and not wanted & EPOLLIN:  # watched for the end alone: CLOSING
                    side = side_of(fd)
                    if side == SENDS:
                        self.watched.modify(fd, mask_of(wanted) & ~select.POLLIN)
                    if side in (OPEN, SENDS):
                        continue
                if wanted & EPOLLONESHOT:
                    del self.wanted[fd]
                    self.changed.add(fd)
                ready.append((fd, events))
        return ready

    def fileno(self) -> int:
        raise OSError(errno.ENOTSUP, "a set of poll(2) has no descriptor")

    def close(self) -> None:
        # Without the lock: in a forked child, a thread that does not exist there may hold it.
        os.close(self.wake_reader)
        os.close(self.wake_writer)


def mask_of(events: int) -> int:
    """Return the events of poll(2) for those of epoll(7)."""
    mask = (select.POLLIN if events & EPOLLIN else 0) | (select.POLLOUT if events & EPOLLOUT else 0)
    return mask | (CLOSING if events & EPOLLRDHUP else 0)


def empty(reader: int) -> None:
    """Read what is in a wake pipe."""
    try:
        os.read(reader, 4096)
    except BlockingIOError:
        pass


# What a peer does: nothing; its bytes wait; it has closed its sending side; it has left.
OPEN, SENDS, ENDED, GONE = "open", "sends", "ended", "gone"


def look_at(fd: int, ended: bool) -> str:
    """Return what a peer does now. ended: it was ENDED before, and is so at least."""
    watched = select.poll()
    watched.register(fd, 0 if ended else CLOSING)
    found = watched.poll(0)
    return side_after(fd, found[0][1], ended) if found else ENDED if ended else OPEN


def side_after(fd: int, events: int, ended: bool) -> str:
    """Return what a peer does, for which poll(2) has returned events: of CLOSING, or of 0 if it was ENDED before.

    With POLLRDHUP, POLLHUP means that the peer has left. On macOS it may have closed its sending side only, and
    poll(2) tells nothing at all if it is asked for 0.
    """
    if events & select.POLLERR or (ended and events):
        return GONE
    if POLLRDHUP:
        return GONE if events & LEFT else ENDED
    side = side_of(fd)
    return ENDED if side == SENDS and events & LEFT else side


def side_of(fd: int) -> str:
    """Return what recv(2) tells of a peer. An end behind bytes that wait is not seen."""
    sock = SocketType(socket.AF_UNIX, socket.SOCK_STREAM, 0, fd)  # recv(2) does not look at the family
    try:
        return SENDS if sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) else ENDED
    except BlockingIOError:
        return OPEN
    except OSError:
        return GONE
    finally:
        sock.detach()
