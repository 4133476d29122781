"""The pool's stream: where a worker would wait for the client, the conversation pauses and is parked.

A pool has few threads and many connections. A worker that waits in recv(2) for a slow client cannot serve others:
five silent clients stop a pool of five. This stream therefore tries each call without blocking, and pauses where
the call would wait:

    worker ── conversation.send(None) ─▶ stream.receive() ─▶ recv(2): nothing there yet
           ◀─ Wait(BYTES, expires) ────────────┘
       │ parks the connection with the main thread's epoll, and takes the next conversation from the queue
    main thread: epoll says "readable" ─▶ queue ─▶ any worker: conversation.send(None) ─▶ recv(2) again

A Wait contains the event that the conversation waits for, and the deadline. processors/pool_parking.py parks it. A
conversation may therefore begin in one thread and end in another. Two threads never run it at once: it is parked,
or queued, or one worker runs it.

With parking = idle only next_request() pauses, and the other calls are those of the blocking stream.

Possible failures: a client that sends one byte at a time is ready again before the main thread checks its deadline.
receive() therefore checks the deadline itself. A client as fast as the server is always ready. With parking =
always, the conversation therefore goes to the end of the queue after TURN_BYTES (yield_turn).

Read next: processors/pool.py.
"""

from __future__ import annotations

import math
import socket
import time
from select import POLLIN, poll
from typing import TYPE_CHECKING

from ewe.streams.base import (
    CALL_COST_BYTES,
    COPIED_BYTES,
    RECEIVE_BYTES,
    SENDFILE_BYTES,
    TURN_BYTES,
    Disconnected,
    MinRate,
    Poller,
    Timeout,
    Timeouts,
    Wait,
    Want,
)
from ewe.streams.blocking import BlockingStream, set_timeouts
from ewe.streams.descriptor_set import EPOLLIN, EPOLLONESHOT, EPOLLRDHUP
from ewe.streams.descriptors import send_region
from ewe.streams.parking import ParkedPoll, PoolPoller, end_of_client
from ewe.streams.poller import HALF_CLOSED_S
from ewe.timeouts import counted_if_empty

if TYPE_CHECKING:
    from ewe.streams.wake_events import WakeEvent


class PoolStream(BlockingStream):
    """A stream whose conversation pauses where a worker of the pool would wait for the client.

    parks_always: the conversation pauses in every wait for the client (parking = always), not only between requests
    (parking = idle).
    """

    def __init__(
        self,
        sock: socket.socket,
        client: tuple[str, int],
        server: tuple[str, int],
        timeouts: Timeouts,
        parks_always: bool,
    ) -> None:
        """sock: the client's. With parks_always, its calls fail instead of waiting, so that the conversation can
        pause.
        """
        super().__init__(sock, client, server, timeouts)
        self.parks_always = parks_always
        # Bytes, and CALL_COST_BYTES for each call, since the last yield_turn(). Parking does not reset the count.
        self.handled_bytes = 0
        if parks_always:
            sock.setblocking(False)
        elif client[1] == 0:  # over a Unix socket, which has not inherited the limits of the listening socket
            set_timeouts(sock, self.tick_s, timeouts.write_timeout)

    @property
    def may_block(self) -> bool:  # type: ignore[override]
        """A call may wait in the kernel."""
        return not self.parks_always

    async def next_request(self, seconds: float) -> bytes:
        """Pause until the client sends; return the first bytes. The connection is parked meanwhile.

        Return b"" if none come within `seconds`, or at a stop. Raises Disconnected.
        """
        self.idle = True
        try:
            if self.finishing:
                return self.arrived_bytes()
            # Pause before the first recv(): the main thread runs the conversation to this point, and must not
            # answer a request.
            wait = Wait(Want.BYTES, time.monotonic() + seconds)
            while True:
                await wait
                try:
                    return self.socket.recv(RECEIVE_BYTES)
                except BlockingIOError:
                    continue
                except OSError:
                    raise Disconnected from None
        except Timeout:
            # The request may have come before epoll could report it: the kernel did not schedule this process.
            return counted_if_empty(self, self.arrived_bytes())
        finally:
            self.idle = False

    async def receive(self, limit: int = RECEIVE_BYTES) -> bytes:
        """Return the next bytes, at most `limit`; with parking = always, pause while there are none.

        b"": the client has closed its sending side. With parking = always, others run after TURN_BYTES, before the
        bytes are returned. Raises Timeout at the deadline, Disconnected.
        """
        if not self.parks_always:
            return await super().receive(limit)
        while True:
            try:
                data = self.raise_if_aborted(self.socket.recv(limit))
            except BlockingIOError:
                if time.monotonic() > self.expires:
                    raise Timeout from None
                await Wait(Want.BYTES, self.expires)
            except OSError:
                raise Disconnected from None
            else:
                await self.share(len(data))
                return data

    async def send(self, *parts: bytes) -> None:
        """Write all parts; with parking = always, pause while the socket's buffer is full. Raises Timeout,
        Disconnected.
        """
        if not self.parks_always:
            return await super().send(*parts)
        data = memoryview(b"".join(parts) if len(parts) > 1 else parts[0])
        min_rate: MinRate | None = None
        while data:
            try:
                sent = self.socket.send(data)
            except BlockingIOError:
                min_rate = min_rate or MinRate(self)
                await self.wait_for_socket_room()
                continue
            except OSError:
                raise Disconnected from None
            data = data[sent:]
            if min_rate is not None and data:
                min_rate.count(sent)
                min_rate.check()
            self.handled_bytes += CALL_COST_BYTES + sent
            if self.handled_bytes > TURN_BYTES:
                await self.yield_turn()

    def upstream_poller(self) -> Poller:
        """Return a PoolPoller, whose waits occupy no worker; without parking = always, a BlockingPoller."""
        return PoolPoller(self.socket) if self.parks_always else super().upstream_poller()

    async def either(self, descriptor: int, seconds: float) -> bool:
        """Pause until the client or the upstream's socket is ready; return True for the client.

        Raises Timeout after `seconds`, Disconnected.
        """
        if not self.parks_always:
            return await super().either(descriptor, seconds)
        expires = time.monotonic() + seconds
        client, watched = self.socket.fileno(), poll()
        watched.register(client, POLLIN)
        watched.register(descriptor, POLLIN)
        while True:
            parked = ParkedPoll(EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, descriptor, EPOLLIN)
            timeout = None
            try:
                await Wait(Want.EITHER, expires, parked)
            except Timeout as reason:  # perhaps the threads were held up, and an event is due
                timeout = reason
            finally:
                parked.close()
            ready = [number for number, _ in watched.poll(0)]
            if ready or parked.is_set:
                return client in ready  # then receive() will not wait
            if timeout is not None:
                raise timeout

    def wake_event(self) -> WakeEvent:
        """Return a new PoolWakeEvent; without parking = always, a BlockingWakeEvent. Raises OSError."""
        return PoolWakeEvent(self) if self.parks_always else super().wake_event()

    async def share(self, size: int) -> None:
        """Count `size` bytes of work; after TURN_BYTES go to the end of the queue, with parking = always."""
        self.handled_bytes += CALL_COST_BYTES + size
        if self.handled_bytes > TURN_BYTES and self.parks_always:
            await self.yield_turn()

    async def yield_turn(self) -> None:
        """Go to the end of the queue. Every conversation that is ready now comes first."""
        self.handled_bytes = 0
        began = time.monotonic()
        await Wait(Want.TURN, math.inf)
        self.queued_s += time.monotonic() - began

    async def wait_for_socket_room(self) -> None:
        """Wait until the client has read some bytes. Raises Timeout if it reads nothing for write_timeout."""
        wait = Wait(Want.ROOM, time.monotonic() + self.timeouts.write_timeout)
        try:
            await wait
        except Timeout:  # perhaps the threads were held up, and an event is due
            if self.has_unsent_bytes():
                raise
        if wait.ready_at:
            self.queued_s += time.monotonic() - wait.ready_at

    async def send_file(self, file: int, offset: int, count: int, head: bytes = b"") -> None:
        """Send as a BlockingStream does; with parking = always, pause while the socket's buffer is full."""
        if not self.parks_always:
            return await super().send_file(file, offset, count, head)
        if count <= COPIED_BYTES:
            return await self.send_copy(file, offset, count, head)
        self.unsent = count
        if head:
            await self.send(head)
        min_rate = MinRate(self)
        while count:
            try:
                sent = send_region(self.socket.fileno(), file, offset, min(count, SENDFILE_BYTES))
            except BlockingIOError:
                await self.wait_for_socket_room()
                continue
            except OSError:
                raise Disconnected from None
            offset += sent
            count -= sent
            self.unsent = count
            min_rate.count(sent)
            if count:
                min_rate.check()
            await self.share(sent)


class PoolWakeEvent(ParkedPoll):
    """A WakeEvent that parks the conversation. set() queues it, and any worker resumes it. See ParkedWakeEvent."""

    def __init__(self, stream: PoolStream) -> None:
        super().__init__(EPOLLRDHUP | EPOLLONESHOT)
        self.stream = stream
        self.client_ended_at: float | None = None  # when the client was first seen to have closed its side

    async def wait(self, seconds: float) -> bool:
        """Pause until set() is called; return False after `seconds`.

        Raises Disconnected if the client leaves, or HALF_CLOSED_S after it has closed its sending side.
        """
        expires = time.monotonic() + seconds
        while not self.is_set:
            now = time.monotonic()
            # How long a client that has closed its sending side is waited for: it may have left.
            client_until = math.inf if self.client_ended_at is None else self.client_ended_at + HALF_CLOSED_S
            if now >= client_until:
                raise Disconnected
            if now >= expires:
                return False
            self.wake = None  # set by the last wait
            try:
                await Wait(Want.WAKE_EVENT, min(expires, client_until), self)
            except Timeout:
                continue
            if not self.is_set:  # then an event of the client's socket has resumed the conversation
                self.client_ended_at = end_of_client(self.stream.socket, self.client_ended_at)
                if self.client_ended_at is not None:  # now watch only for its leaving
                    self.client_events = EPOLLONESHOT
        return True
