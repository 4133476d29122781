"""Watchers: the descriptors that an event loop watches for its conversations, also between two waits.

A gateway waits for the same server again and again. To add the server's socket to the loop for each wait, and to
remove it afterwards, would cost system calls each time. A Watcher therefore adds a descriptor once, and remembers
which conversation waits for it at the moment:

    EventPoller.readable() ─▶ waiting[descriptor] = stream ─▶ the conversation pauses
    event loop: readable   ─▶ ready(descriptor) ─▶ stream.step()       while a conversation waits
                                                └▶ forget(descriptor)  while none does

What can go wrong: a descriptor is closed while it is watched, and its number is given to the next file that is
opened. Who closes one calls the poller's forget() first.

Read next: EventPoller in event.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from ewe.streams.base import Want
from ewe.streams.descriptor_set import EPOLLIN, HAS_EPOLL, descriptor_set

if TYPE_CHECKING:
    import asyncio


class Paused(Protocol):
    """A stream whose conversation may have paused, as a Watcher knows it (EventStream)."""

    want: Want | None

    def step(self) -> None:
        """Resume the conversation."""


class Watcher:
    """The descriptors that an event loop watches also between two waits.

    waiting: the stream whose conversation waits for a descriptor, None while none does.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiting: dict[int, Paused | None] = {}

    def watch(self, descriptor: int) -> None:
        """Begin to watch: whether the descriptor can be read, or its other end has closed it."""
        self.loop.add_reader(descriptor, self.ready, descriptor)

    def ready(self, descriptor: int) -> None:
        """Wake the conversation whose descriptor can be read."""
        stream = self.waiting.get(descriptor)
        if stream is not None:
            if stream.want is Want.PROGRAM or stream.want is Want.EITHER:
                stream.step()
        else:  # the loop would call again and again for bytes that no conversation reads
            self.forget(descriptor)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor; it is about to be closed."""
        if descriptor in self.waiting:
            del self.waiting[descriptor]
            try:
                self.unwatch(descriptor)
            except OSError:
                pass  # the garbage collector has just closed the socket, and the kernel has forgotten it

    def unwatch(self, descriptor: int) -> None:
        """Take a descriptor from what is watched. Raises OSError if the kernel does not know it."""
        self.loop.remove_reader(descriptor)

    def watch_again(self, descriptor: int) -> None:
        """Watch a known descriptor after another reader took its place: a loop has one for each descriptor."""
        if descriptor in self.waiting:
            self.watch(descriptor)


class EpollWatcher(Watcher):
    """A Watcher with one epoll(7), which the loop watches.

    To add a descriptor to the loop itself and to remove it costs uvloop seven system calls; here it costs two.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.epoll = descriptor_set()
        loop.add_reader(self.epoll.fileno(), self.ready_ones)

    def watch(self, descriptor: int) -> None:
        self.epoll.register(descriptor, EPOLLIN)

    def ready_ones(self) -> None:
        """Wake the conversations whose descriptors can be read."""
        for descriptor, _ in self.epoll.poll(0):
            self.ready(descriptor)

    def unwatch(self, descriptor: int) -> None:
        self.epoll.unregister(descriptor)


# One for each loop that needs one; it ends with its loop.
WATCHERS: WeakKeyDictionary[asyncio.AbstractEventLoop, Watcher] = WeakKeyDictionary()


def watcher_of(loop: asyncio.AbstractEventLoop) -> Watcher:
    """Return a loop's watcher, which is made when it is first needed."""
    watcher = WATCHERS.get(loop)
    if watcher is None:
        watcher = WATCHERS[loop] = (EpollWatcher if HAS_EPOLL else Watcher)(loop)
    return watcher
