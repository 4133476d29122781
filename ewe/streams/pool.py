"""The pool's stream: where its worker would wait for the client, the conversation is parked instead.

A pool has few threads and many connections. A worker that waits in recv(2) for a slow client is lost to all others:
five silent clients stop a pool of five. This stream therefore tries each call without blocking, and pauses where
the call would wait:

    worker ── conversation.send(None) ─▶ stream.receive() ─▶ recv(2): nothing there yet
           ◀─ Wait(BYTES, expires) ────────────┘
       │ parks the connection with the main thread's epoll, and takes the next conversation from the queue
    main thread: epoll says "readable" ─▶ queue ─▶ any worker: conversation.send(None) ─▶ recv(2) again

A Wait says what the conversation waits for and until when; processors/pool_parking.py does the parking. A
conversation may thus begin in one thread and end in another, but two threads never run it at once: it is parked, or
queued, or with one worker.

With parking = idle only next_request() pauses, and the other calls are those of the blocking stream.

What can go wrong: a client that sends one byte at a time is ready again before the main thread checks its deadline.
receive() therefore compares the clock itself. A client as fast as the server is always ready. With parking = always
the conversation therefore goes to the end of the queue after SHARE bytes (turn).

Read next: processors/pool.py.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable
from select import POLLIN, poll
from typing import TYPE_CHECKING, Any

from ewe.streams.base import (
    CALL,
    RECEIVE,
    SENDFILE,
    SHARE,
    Disconnected,
    MinRate,
    Poller,
    Timeout,
    Timeouts,
    Wait,
    Want,
)
from ewe.streams.blocking import BlockingStream
from ewe.streams.descriptor_set import EPOLLIN, EPOLLONESHOT, EPOLLRDHUP, GONE, look_at
from ewe.streams.descriptors import send_region
from ewe.streams.parking import ParkedPoll, PoolPoller
from ewe.streams.poller import HALF_CLOSED

if TYPE_CHECKING:
    from ewe.streams.bells import Bell


class PoolStream(BlockingStream):
    """A stream whose conversation pauses where a worker of the pool would wait for the client.

    parks_always: it pauses in every wait for the client (parking = always), not only between requests (idle).
    """

    def __init__(
        self,
        sock: socket.socket,
        client: tuple[str, int],
        server: tuple[str, int],
        timeouts: Timeouts,
        parks_always: bool,
    ) -> None:
        super().__init__(sock, client, server, timeouts)
        self.parks_always = parks_always
        # Bytes, and CALL for each call, since the last turn(). Parking does not reset the count.
        self.handled = 0
        if parks_always:
            sock.setblocking(False)

    async def next_request(self, seconds: float) -> bytes:
        self.idle = True
        try:
            if self.finishing:
                return self.arrived_before_stop()
            # Wait before the first recv(): the main thread starts conversations, and must not run a request.
            wait = Wait(Want.BYTES, time.monotonic() + seconds)
            while True:
                await wait
                try:
                    return self.socket.recv(RECEIVE)
                except BlockingIOError:
                    continue
                except OSError:
                    raise Disconnected from None
        except Timeout:
            # The request may have come while this process had no processor: epoll then reports only the time.
            return self.arrived_before_stop()
        finally:
            self.idle = False

    async def receive(self, limit: int = RECEIVE) -> bytes:
        if not self.parks_always:
            return await super().receive(limit)
        while True:
            try:
                return self.checked(self.socket.recv(limit))
            except BlockingIOError:
                # Each byte of a slow client wakes the main thread, which queues the conversation before it checks
                # deadlines.
                if time.monotonic() > self.expires:
                    raise Timeout from None
                await Wait(Want.BYTES, self.expires)
            except OSError:
                raise Disconnected from None

    async def send(self, *parts: bytes) -> None:
        if not self.parks_always:
            return await super().send(*parts)
        data = memoryview(b"".join(parts) if len(parts) > 1 else parts[0])
        pace: MinRate | None = None
        while data:
            try:
                sent = self.socket.send(data)
            except BlockingIOError:
                pace = await self.room(pace)
                continue
            except OSError:
                raise Disconnected from None
            data = data[sent:]
            if pace is not None:
                pace.check(sent)
            self.handled += CALL + sent
            if self.handled > SHARE:
                await self.turn()

    def upstream_poller(self) -> Poller:
        return PoolPoller(self.socket) if self.parks_always else super().upstream_poller()

    async def either(self, descriptor: int, seconds: float) -> bool:
        if not self.parks_always:
            return await super().either(descriptor, seconds)
        expires = time.monotonic() + seconds
        client = poll()
        client.register(self.socket, POLLIN)
        while True:
            parked = ParkedPoll(EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, descriptor, EPOLLIN)
            try:
                await Wait(Want.EITHER, expires, parked)
            finally:
                parked.close()
            if client.poll(0):  # its receive() will not wait
                return True
            if parked.rung:
                return False

    def bell(self) -> Bell:
        return PoolBell(self) if self.parks_always else super().bell()

    async def share(self, size: int) -> None:
        self.handled += CALL + size
        if self.handled > SHARE and self.parks_always:
            await self.turn()

    async def turn(self) -> None:
        """Go to the end of the queue: every conversation that is ready now comes first."""
        self.handled = 0
        await Wait(Want.TURN, math.inf)

    async def room(self, pace: MinRate | None) -> MinRate:
        """Wait until the client has read something, and return `pace`, or a new MinRate if it is None.

        Raises Timeout if the client reads nothing for write_timeout, or is slower than min_rate.
        """
        pace = pace or MinRate(self.timeouts)
        pace.check(0)
        await Wait(Want.ROOM, time.monotonic() + self.timeouts.write_timeout)
        return pace

    async def send_file(self, file: int, offset: int, count: int, head: bytes = b"") -> None:
        if not self.parks_always:
            return await super().send_file(file, offset, count, head)
        self.unsent = count
        if head:
            await self.send(head)
        pace = MinRate(self.timeouts)
        while count:
            try:
                sent = send_region(self.socket.fileno(), file, offset, min(count, SENDFILE))
            except BlockingIOError:
                await self.room(pace)
                continue
            except OSError:
                raise Disconnected from None
            if sent == 0:
                raise Disconnected("the file has become shorter")
            offset += sent
            count -= sent
            self.unsent = count
            pace.check(sent)
            await self.share(sent)


class PoolBell:
    """Park; the bell queues the conversation, and any worker resumes it. See ParkedBell."""

    def __init__(self, stream: PoolStream) -> None:
        self.stream = stream
        self.rung = False
        self.wake: Callable[[], None] | None = None
        self.client_ended_at: float | None = None

    def ring(self) -> None:
        self.rung = True
        if self.wake is not None:
            self.wake()

    async def heard(self, seconds: float) -> bool:
        expires = time.monotonic() + seconds
        while not self.rung:
            now = time.monotonic()
            gone_at = None if self.client_ended_at is None else self.client_ended_at + HALF_CLOSED
            if gone_at is not None and now >= gone_at:
                raise Disconnected
            if now >= expires:
                return False
            self.wake = None  # the last wait's
            try:
                await Wait(Want.BELL, expires if gone_at is None else min(expires, gone_at), self)
            except Timeout:
                continue
            if not self.rung:
                self.look_at_client()
        return True

    def look_at_client(self) -> None:
        """Find out what the client did: it has left, or closed its sending side. Raises Disconnected."""
        if look_at(self.stream.socket.fileno(), self.client_ended_at is not None) == GONE:
            raise Disconnected
        self.client_ended_at = time.monotonic()

    def events(self) -> int:
        return EPOLLONESHOT if self.client_ended_at is not None else EPOLLRDHUP | EPOLLONESHOT

    def park(self, resume: Callable[[], None], watch: Callable[[Any], None]) -> None:
        self.wake = resume
        if self.rung:  # checked last: it may ring at any point
            resume()

    def close(self) -> None:
        """Do nothing."""
