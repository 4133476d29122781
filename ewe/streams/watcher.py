"""Watchers: the descriptors that an event loop watches for its conversations, also between two waits.

A gateway waits for the same upstream again and again. Adding the upstream's socket to the loop for each wait, and
removing it afterwards, would cost system calls each time. A Watcher therefore adds a descriptor once, and records
which conversation waits for it at present:

    EventPoller.readable() ─▶ waiting[descriptor] = stream ─▶ the conversation pauses
    event loop: readable   ─▶ handle_ready(descriptor) ─▶ stream.step()       while a conversation waits
                                                       └▶ forget(descriptor)  while none does

Possible failures: a descriptor is closed while it is watched, and the next file that is opened gets its number.
Code that closes a watched descriptor must therefore call the poller's forget() first.

Read next: event_poller.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary, proxy

from ewe.streams.base import Want
from ewe.streams.descriptor_set import EPOLLIN, HAS_EPOLL, descriptor_set

if TYPE_CHECKING:
    import asyncio


class EventModel(Protocol):
    """The parts of the event model (processors/event.py) that its streams use. executor: the executor threads."""

    loop: Any
    clock: Any
    executor: Any

    def admit(self, stream: Any) -> bool: ...

    def converse(self, stream: Any) -> Any: ...

    def connection_lost(self, stream: Any) -> None: ...


class Paused(Protocol):
    """The part of an EventStream that a Watcher uses: a stream whose conversation may have paused."""

    want: Want | None

    def step(self) -> None:
        """Resume the conversation."""


class Watcher:
    """The descriptors that an event loop watches, also between two waits.

    waiting: descriptor -> the stream whose conversation waits for it; None while no conversation waits.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = proxy(loop)  # WATCHERS refers to this watcher, which must not keep the loop in memory
        self.waiting: dict[int, Paused | None] = {}

    def watch(self, descriptor: int) -> None:
        """Begin to watch whether a descriptor can be read, or whether its other end is closed."""
        self.loop.add_reader(descriptor, self.handle_ready, descriptor)

    def handle_ready(self, descriptor: int) -> None:
        """Resume the conversation that waits for a descriptor, which can be read now."""
        stream = self.waiting.get(descriptor)
        if stream is not None:
            if stream.want is Want.PROGRAM or stream.want is Want.EITHER:
                stream.step()
        else:  # the loop would call handle_ready() again and again for bytes that no conversation reads
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
        """Remove a descriptor from the loop or its epoll. Raises OSError if the kernel does not know it."""
        self.loop.remove_reader(descriptor)

    def watch_again(self, descriptor: int) -> None:
        """Watch a descriptor again after another reader has replaced this one: a loop has one per descriptor."""
        if descriptor in self.waiting:
            self.watch(descriptor)


class EpollWatcher(Watcher):
    """A Watcher with one epoll(7), which the loop watches.

    Adding a descriptor to uvloop itself and removing it costs seven system calls. Here it costs two.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.epoll = descriptor_set()
        loop.add_reader(self.epoll.fileno(), self.poll)

    def watch(self, descriptor: int) -> None:
        self.epoll.register(descriptor, EPOLLIN)

    def poll(self) -> None:
        """Resume the conversations whose descriptors can be read."""
        for descriptor, _ in self.epoll.poll(0):
            self.handle_ready(descriptor)

    def unwatch(self, descriptor: int) -> None:
        self.epoll.unregister(descriptor)


# The Watcher of each loop that needs one. It is garbage-collected with its loop.
WATCHERS: WeakKeyDictionary[asyncio.AbstractEventLoop, Watcher] = WeakKeyDictionary()


def watcher_of(loop: asyncio.AbstractEventLoop) -> Watcher:
    """Return a loop's watcher; make it when it is first needed."""
    watcher = WATCHERS.get(loop)
    if watcher is None:
        watcher = WATCHERS[loop] = (EpollWatcher if HAS_EPOLL else Watcher)(loop)
    return watcher
