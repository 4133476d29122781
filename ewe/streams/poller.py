"""Pollers: how a conversation waits for a program or for another server, under every model.

A feature that runs a program waits for the program's pipes; a gateway to another server waits for that server's
socket. Neither is the client's connection, so the stream's own receive() and send() do not help. How to wait is
again the model's decision, and so each stream has a poller beside its calls for the client:

    feature ── await io.poller().wait([pipe, ...], ...) ──┬── BlockingPoller   poll(2) here; the thread waits
                                                          └── EventPoller      pause; the loop's reader resumes

The pool uses the BlockingPoller: a program holds its worker, as it does in the thread model.

All pollers watch the client too. A client that disconnects ends the wait with Disconnected, so that its program
can be ended. A client that only closes its sending side may still read the answer (`printf ... | nc -N`), or may
have left: from the outside both look alike. Such a client is believed to be there as long as the program writes
something every HALF_CLOSED seconds.

What can go wrong: a descriptor that is closed while a poller watches it. Its number is given to the next file that
is opened, and the poller would wake the wrong conversation. wait() therefore watches only until it returns.
readable() watches on (it saves an event loop system calls in each wait): its caller must call forget() before it
closes the descriptor.

Read next: gateway/programs.py, gateway/upstream.py.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from ewe.streams.base import Disconnected, Timeout, Want
from ewe.streams.descriptor_set import (
    CLOSING,
    ENDED,
    EPOLLIN,
    GONE,
    HAS_EPOLL,
    OPEN,
    SENDS,
    descriptor_set,
    side_after,
)

if TYPE_CHECKING:
    import asyncio

    from ewe.streams.event import EventStream

# Seconds that a program may stay silent once the client has closed its sending side. The event loop checks this
# once in as many seconds, so there it may be twice as long.
HALF_CLOSED = 2.0


class Poller(Protocol):
    """What a stream offers for waiting on descriptors other than its client's."""

    async def wait(
        self,
        descriptors: Sequence[int],
        since: float,
        seconds: float,
        writable: int = -1,
    ) -> list[int]:
        """Wait until a descriptor can be read, or `writable` can be written; return those that can.

        seconds: at most so long; then the list is empty. since: when the program last wrote something, on
        time.monotonic(). Raises Disconnected when the client has left, or has closed its sending side and the
        program has been silent for HALF_CLOSED seconds.
        """
        ...

    async def readable(self, descriptor: int, since: float, seconds: float) -> bool:
        """Wait until one descriptor can be read; return False after `seconds`. It may return True too early.

        The caller will wait for the descriptor again, and calls forget() before it closes it. since, and what this
        raises: as wait().
        """
        ...

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor that readable() has waited for; it is about to be closed."""
        ...

    async def share(self, size: int) -> None:
        """Note that `size` bytes were read or written without a wait; see Stream.share()."""
        ...

    def after(self, seconds: float, exited: int, function: Callable[[], None]) -> None:
        """Call function once the descriptor `exited` can be read, after `seconds` at the latest."""
        ...


class BlockingPoller:
    """Wait with poll(2), for the program and for the client's end at once."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.client_ended_at: float | None = None  # when the client was first seen to have closed its side

    async def wait(
        self,
        descriptors: Sequence[int],
        since: float,
        seconds: float,
        writable: int = -1,
    ) -> list[int]:
        import select

        watched = select.poll()
        if writable >= 0:
            watched.register(writable, select.POLLOUT)
        for descriptor in descriptors:
            watched.register(
                descriptor, select.POLLIN | select.POLLOUT if descriptor == writable else select.POLLIN
            )
        client = self.client.fileno()
        if client < 0:
            raise Disconnected
        watched.register(client, CLOSING if self.client_ended_at is None else 0)
        now = time.monotonic()
        expires = now + seconds
        while True:
            gone_at = None if self.client_ended_at is None else max(self.client_ended_at, since) + HALF_CLOSED
            until = expires if gone_at is None else min(expires, gone_at)
            events = dict(watched.poll(max(until - now, 0) * 1000))
            about_client = events.pop(client, 0)
            side = (
                side_after(client, about_client, self.client_ended_at is not None) if about_client else OPEN
            )
            now = time.monotonic()
            if side == GONE or (gone_at is not None and now >= gone_at):
                raise Disconnected
            if events:
                return list(events)
            if side == ENDED:  # it may have left, or may still read
                self.client_ended_at = now
            if side in (ENDED, SENDS):
                watched.modify(client, 0)
            elif now >= expires:
                return []

    async def readable(self, descriptor: int, since: float, seconds: float) -> bool:
        return bool(await self.wait((descriptor,), since, seconds))

    def forget(self, descriptor: int) -> None:
        """Do nothing: poll(2) watches nothing between two waits."""

    async def share(self, size: int) -> None:
        """Do nothing: the program holds this thread, and no other conversation waits for the thread."""

    def after(self, seconds: float, exited: int, function: Callable[[], None]) -> None:
        """Wait in this thread, then call function."""
        from select import POLLIN, poll

        watched = poll()
        watched.register(exited, POLLIN)
        watched.poll(seconds * 1000)
        function()


class Watcher:
    """The descriptors that an event loop watches also between two waits.

    waiting: the stream whose conversation waits for a descriptor, None while none does.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiting: dict[int, EventStream | None] = {}

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


class EventPoller:
    """Wait with the event loop's readers and writers; EventStream sees the client's end."""

    def __init__(self, stream: EventStream) -> None:
        self.stream = stream

    async def wait(
        self,
        descriptors: Sequence[int],
        since: float,
        seconds: float,
        writable: int = -1,
    ) -> list[int]:
        stream, loop = self.stream, self.stream.loop
        ready: list[int] = []

        def possible(descriptor: int) -> None:
            ready.append(descriptor)
            stream.happened(Want.PROGRAM)

        for descriptor in descriptors:
            loop.add_reader(descriptor, possible, descriptor)
        if writable >= 0:
            loop.add_writer(writable, possible, writable)
        expires = stream.clock.now + seconds
        try:
            while not ready:
                now = stream.clock.now
                if stream.ended and now > max(since, stream.client_ended_at) + HALF_CLOSED:
                    raise Disconnected
                if now > expires:
                    break
                try:
                    await stream.wait(Want.PROGRAM, min(expires - now, HALF_CLOSED))
                except Timeout:
                    continue
        finally:
            for descriptor in descriptors:
                loop.remove_reader(descriptor)
                if not HAS_EPOLL and (watcher := stream.watcher or WATCHERS.get(loop)) is not None:
                    watcher.watch_again(descriptor)
            if writable >= 0:
                loop.remove_writer(writable)
        return ready

    async def readable(self, descriptor: int, since: float, seconds: float) -> bool:
        stream = self.stream
        watcher = stream.watcher or self.watcher()
        if descriptor not in watcher.waiting:
            watcher.watch(descriptor)
        watcher.waiting[descriptor] = stream
        expires = stream.clock.now + seconds
        try:
            while True:
                now = stream.clock.now
                if stream.ended and now > max(since, stream.client_ended_at) + HALF_CLOSED:
                    raise Disconnected
                if now > expires:
                    return False
                try:
                    await stream.wait(Want.PROGRAM, min(expires - now, HALF_CLOSED))
                except Timeout:
                    continue
                return True
        finally:
            if descriptor in watcher.waiting:
                watcher.waiting[descriptor] = None

    async def either(self, descriptor: int, seconds: float) -> None:
        """Wait until the client has sent bytes or ended its side, or until the descriptor can be read.

        Raises as Stream.either().
        """
        stream = self.stream
        watcher = stream.watcher or self.watcher()
        if descriptor not in watcher.waiting:
            watcher.watch(descriptor)
        watcher.waiting[descriptor] = stream
        try:
            await stream.wait(Want.EITHER, seconds)
        finally:
            if descriptor in watcher.waiting:
                watcher.waiting[descriptor] = None

    async def share(self, size: int) -> None:
        await self.stream.share(size)

    def forget(self, descriptor: int) -> None:
        # Another conversation may have made the loop watch it.
        watcher = self.stream.watcher or WATCHERS.get(self.stream.loop)
        if watcher is not None:
            watcher.forget(descriptor)

    def watcher(self) -> Watcher:
        """Return the loop's watcher, which is made when it is first needed; the stream remembers it."""
        loop = self.stream.loop
        watcher = WATCHERS.get(loop)
        if watcher is None:
            watcher = WATCHERS[loop] = (EpollWatcher if HAS_EPOLL else Watcher)(loop)
        self.stream.watcher = watcher
        return watcher

    def after(self, seconds: float, exited: int, function: Callable[[], None]) -> None:
        """Have the loop call function after `seconds`."""
        self.stream.loop.call_later(seconds, function)
