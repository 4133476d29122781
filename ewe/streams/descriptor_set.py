"""Descriptor sets: the descriptors that a process watches with epoll(7), or with poll(2) on a system without epoll.

A listener and the pool watch many descriptors at once. Any thread may add a descriptor while another thread waits.
Linux has epoll for this. macOS has only poll(2), as every POSIX system, and poll(2) keeps no set between two calls:

    epoll     the kernel keeps the set         register() during a wait counts at once
    poll(2)   each call hands over the set     register() during a wait would count at the next call

Where the system has epoll, descriptor_set() returns select.epoll() itself, without any layer around it. Elsewhere
it returns a PollSet, which has the same methods and takes the same constants:

    any thread ── register(7, EPOLLIN | EPOLLONESHOT) ─▶ `wanted`, `changed` ── a byte ─▶ wake pipe
    waiting thread: poll(2) returns ─▶ hand the changes to the poll object ─▶ poll(2) ─▶ events

- Only one thread at a time may use a poll object. Other threads that call poll() wait for their turn.
- EPOLLONESHOT: a reported descriptor leaves the set, until it is registered or modified again.
- EPOLLRDHUP, "the peer has closed its sending side": some systems have no POLLRDHUP. The set then watches for
  bytes, and peeks at them with MSG_PEEK. Unread bytes hide the end of the stream behind them, and poll(2) would
  report them again at once. The set therefore stops watching such a descriptor for bytes.
- EPOLLEXCLUSIVE does nothing: all processes wake for a connection, and one of them accepts it.

Possible failures: a descriptor is closed while it is in the set. epoll forgets it. poll(2) reports POLLNVAL, and
the set then forgets it, too. If its number belongs to another file by then, the set reports that file once. A
caller must therefore tolerate an event that it did not ask for, and register() and modify() accept any number,
known or unknown.

PollSet.poll() takes time proportional to the number of descriptors: enough for a laptop.

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

# The constants of epoll(7), with Linux's values for a system without epoll. Those of poll(2) have the same values.
EPOLLIN: int = getattr(select, "EPOLLIN", 0x001)
EPOLLOUT: int = getattr(select, "EPOLLOUT", 0x004)
EPOLLRDHUP: int = getattr(select, "EPOLLRDHUP", 0x2000)
EPOLLONESHOT: int = getattr(select, "EPOLLONESHOT", 1 << 30)
# Edge-triggered: each arrival of bytes is one event. Only epoll has it.
EPOLLET: int = getattr(select, "EPOLLET", 0)
# Only one of the waiting processes wakes. PyPy does not define this constant.
EPOLLEXCLUSIVE: int = getattr(select, "EPOLLEXCLUSIVE", 0)
POLLRDHUP: int = getattr(select, "POLLRDHUP", 0)
HAS_EPOLL = hasattr(select, "epoll")
# The event by which poll(2) notices that a peer has closed its sending side; see peeked_state().
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
        """Wait up to `timeout` seconds (-1: no limit); return the ready descriptors, each with its events."""
        ...

    def fileno(self) -> int:
        """Return the set's own descriptor: it can be read while one in the set is ready. A PollSet has none."""
        ...

    def close(self) -> None:
        """Close the set's own descriptors."""
        ...


def descriptor_set() -> DescriptorSet:
    """Return an empty set that uses epoll(7) where Python offers it, else poll(2)."""
    return select.epoll() if hasattr(select, "epoll") else PollSet()


class PollSet:
    """A set that poll(2) watches; see above. A forked child must make its own set."""

    def __init__(self) -> None:
        """Make an empty set. Raises OSError."""
        self.wanted: dict[int, int] = {}  # descriptor -> events
        self.changed: set[int] = set()  # descriptors whose entry in the poll object differs from `wanted`
        self.lock = allocate_lock()  # protects `wanted`, `changed` and `waits`; no holder of it waits
        self.turn = allocate_lock()  # held by the thread that waits in poll(2)
        self.waits = False  # that thread has registered all changes, and waits
        self.poll_object = select.poll()
        self.wake_reader, self.wake_writer = nonblocking_pipe()
        self.poll_object.register(self.wake_reader, select.POLLIN)

    def register(self, fd: int, eventmask: int = EPOLLIN, /) -> None:
        """Watch a descriptor for these events. If another thread waits in poll(2), wake it to include them."""
        with self.lock:
            self.wanted[fd] = eventmask
            self.changed.add(fd)
            wakes, self.waits = self.waits, False
        if wakes:
            os.write(self.wake_writer, b"\0")

    modify = register

    def unregister(self, fd: int, /) -> None:
        """Stop watching a descriptor; do nothing if the set does not know it. Any thread may call this."""
        with self.lock:
            self.wanted.pop(fd, None)
            self.changed.add(fd)  # an event that poll(2) reports meanwhile is dropped

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        """Return (descriptor, events) of the ready descriptors, as select.epoll.poll() does. Threads take turns.

        timeout: seconds; None or a negative number: no limit.
        """
        seconds = -1.0 if timeout is None or timeout < 0 else timeout
        expires = math.inf if seconds < 0 else time.monotonic() + seconds
        if not self.turn.acquire(timeout=seconds):
            return []
        try:
            while True:
                self.hand_over()
                left_s = max(expires - time.monotonic(), 0)
                found = self.poll_object.poll(None if seconds < 0 else math.ceil(left_s * 1000))
                if ready := self.still_wanted(found):
                    return ready
                if time.monotonic() >= expires:
                    return []
        finally:
            self.waits = False
            self.turn.release()

    def hand_over(self) -> None:
        """Apply all changes to the poll object, and note that a further change has to wake this thread."""
        with self.lock:
            for fd in self.changed:
                if fd in self.wanted:
                    self.poll_object.register(fd, mask_of(self.wanted[fd]))
                else:
                    self.forget(fd)
            self.changed.clear()
            self.waits = True

    def forget(self, fd: int) -> None:
        """Remove a descriptor from the poll object, if it is there."""
        try:
            self.poll_object.unregister(fd)
        except KeyError:
            pass

    def still_wanted(self, found: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the events that poll(2) has found, without those that the set no longer wants.

        A descriptor with EPOLLONESHOT, or one that was closed, leaves the set. The wake pipe is emptied.
        """
        ready: list[tuple[int, int]] = []
        with self.lock:
            self.waits = False
            for fd, events in found:
                if fd == self.wake_reader:
                    drain_pipe(fd)
                    continue
                wanted = self.wanted.get(fd)
                if wanted is None:
                    continue
                if events & select.POLLNVAL:  # the descriptor was closed
                    del self.wanted[fd]
                    self.changed.add(fd)
                    continue
                # Without POLLRDHUP, CLOSING is POLLIN: only whether the peer has ended matters, and not its bytes.
                if events == select.POLLIN and not wanted & EPOLLIN:
                    peer = peeked_state(fd)
                    if peer == UNREAD:
                        # poll(2) would report the unread bytes again at once.
                        self.poll_object.modify(fd, mask_of(wanted) & ~select.POLLIN)
                    if peer in (OPEN, UNREAD):
                        continue
                if wanted & EPOLLONESHOT:
                    del self.wanted[fd]
                    self.changed.add(fd)
                ready.append((fd, events))
        return ready

    def fileno(self) -> int:
        """Raise OSError: this set has no descriptor."""
        raise OSError(errno.ENOTSUP, "a set of poll(2) has no descriptor")

    def close(self) -> None:
        """Close the wake pipe."""
        # Do not take the lock: in a forked child, a thread of the parent may still appear to hold it.
        os.close(self.wake_reader)
        os.close(self.wake_writer)


def mask_of(events: int) -> int:
    """Return the poll(2) events that correspond to these epoll(7) events."""
    mask = (select.POLLIN if events & EPOLLIN else 0) | (select.POLLOUT if events & EPOLLOUT else 0)
    return mask | (CLOSING if events & EPOLLRDHUP else 0)


def drain_pipe(reader: int) -> None:
    """Read and drop the bytes in a wake pipe."""
    try:
        os.read(reader, 4096)
    except BlockingIOError:
        pass


# The states of a peer: it sends nothing; its bytes wait unread; it has closed its sending side; it has left.
OPEN, UNREAD, ENDED, GONE = "open", "unread", "ended", "gone"


def polled_state(fd: int, *, ended: bool) -> str:
    """Return the present state of a peer, by poll(2). ended: it was ENDED before, so it is ENDED or GONE now."""
    watched = select.poll()
    watched.register(fd, 0 if ended else CLOSING)
    found = watched.poll(0)
    if not found:
        return ENDED if ended else OPEN
    [(_, events)] = found
    return state_by_events(fd, events, ended=ended)


def state_by_events(fd: int, events: int, *, ended: bool) -> str:
    """Return the state of a peer, from the events that poll(2) has returned for its socket.

    poll(2) was asked for the events CLOSING, or for none (0) if the peer was ENDED before. On a system with
    POLLRDHUP, POLLHUP means that the peer has left. On macOS, POLLHUP may also mean that the peer has closed only
    its sending side, and poll(2) reports nothing at all if it is asked for 0.
    """
    if events & select.POLLERR or (ended and events):
        return GONE
    if POLLRDHUP:
        return GONE if events & LEFT else ENDED
    peer = peeked_state(fd)
    return ENDED if peer == UNREAD and events & LEFT else peer


def peeked_state(fd: int) -> str:
    """Return the state of a peer, by a recv(2) that only peeks. Unread bytes hide the stream's end behind them."""
    sock = SocketType(socket.AF_UNIX, socket.SOCK_STREAM, 0, fd)  # recv(2) does not use the address family
    try:
        return UNREAD if sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) else ENDED
    except BlockingIOError:
        return OPEN
    except OSError:
        return GONE
    finally:
        sock.detach()
