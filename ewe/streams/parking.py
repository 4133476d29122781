"""Parking while an upstream works: the pool's conversations wait for it without a worker.

A proxied request spends most of its time waiting for the upstream. A worker of the pool must not wait as well: five
slow requests would stop a pool of five. The conversation therefore parks, and two events may resume it:

    main thread's epoll ──▶ the client's socket: the client has left ──▶ the conversation is queued
                        ──▶ the upstream's socket: it can be read    ──▶ ParkedPoll.set() ──▶ queued

ParkedPoll is a WakeEvent (wake_events.py) that the main thread sets when epoll reports the upstream's socket. epoll
watches the client's socket as for any parked conversation. It watches the upstream's socket in addition
(UpstreamSockets), with EPOLLONESHOT, and knows that descriptor also between two waits.

An upstream on the same machine answers within a millisecond, and parking costs two system calls and a change of
threads. A wait of a request therefore polls the socket for POLL_FIRST_S in the worker, and parks only then. After
the first wait of the request that was longer, its other waits park at once.

Programs still occupy their worker (Stream.poller()), so a pool limits how many programs run at once.

Possible failures: an event of the client resumes the conversation, in another worker, while the first worker still
parks it. The first worker must not register the upstream's socket for a wait that is over, since its entry would
replace that of the next wait. `is_over` prevents this. A conversation that goes on also removes `wake`, so a late
set() wakes no conversation. A wake-up that comes too early does no harm: the caller of every wait checks again.

Read next: processors/pool_parking.py, which calls park() and handle_ready().
"""

from __future__ import annotations

import math
import time
from _thread import allocate_lock
from collections.abc import Callable, Sequence
from select import POLLIN, POLLOUT, poll
from typing import TYPE_CHECKING

from ewe.streams.base import Disconnected, Timeout, Wait, Want
from ewe.streams.descriptor_set import (
    ENDED,
    EPOLLIN,
    EPOLLONESHOT,
    EPOLLOUT,
    EPOLLRDHUP,
    GONE,
    polled_state,
)
from ewe.streams.poller import HALF_CLOSED_S, BlockingPoller

if TYPE_CHECKING:
    import socket

    from ewe.streams.listener import Listener

# Seconds that a worker polls an upstream's socket before the conversation parks
POLL_FIRST_S = 0.002


class ParkedPoll:
    """A WakeEvent that the main thread sets when epoll reports a descriptor.

    client_events, mask: events of epoll(7), for the client's socket and for `descriptor`. descriptor: -1 for none;
    then another conversation sets the event (PoolWakeEvent).
    """

    __slots__ = ("client_events", "descriptor", "is_over", "is_set", "lock", "mask", "wake")

    def __init__(self, client_events: int, descriptor: int = -1, mask: int = 0) -> None:
        self.client_events = client_events
        self.descriptor = descriptor
        self.mask = mask
        self.is_set = False
        self.wake: Callable[[], None] | None = None  # resumes the parked conversation
        self.is_over = False  # the conversation has gone on
        self.lock = allocate_lock()  # protects `is_over` while the descriptor is registered with epoll

    def set(self) -> None:
        """Resume the conversation, if it is parked already. Any thread may call this."""
        self.is_set = True
        if (wake := self.wake) is not None:
            wake()

    def park(self, resume: Callable[[], None], watch: Callable[[ParkedPoll], None]) -> None:
        """Note that the conversation is parked: set() then calls resume(). If the event is set, call resume() now.

        watch: a function that has epoll watch `descriptor`; it is called if there is one.
        """
        self.wake = resume
        if self.descriptor >= 0:
            watch(self)
        if self.is_set:  # checked last: another thread may call set() at any point
            resume()

    async def wait(self, seconds: float) -> bool:
        """Raise NotImplementedError: PoolPoller.wait() waits instead."""
        raise NotImplementedError

    def close(self) -> None:
        """Note that the conversation goes on, perhaps while a worker still parks it."""
        with self.lock:
            self.is_over = True
        self.wake = None


class UpstreamSockets:
    """The upstreams' sockets that the listener's epoll watches, and the ParkedPoll of each."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.polls: dict[int, ParkedPoll] = {}

    def watch(self, poll: ParkedPoll) -> None:
        """Have epoll watch the upstream of a parked conversation, unless the conversation has gone on.

        Any thread may call this.
        """
        descriptor, events = poll.descriptor, poll.mask | EPOLLONESHOT
        try:
            with poll.lock:
                if poll.is_over:  # the client's event came first
                    return
                self.polls[descriptor] = poll
                try:
                    self.listener.watch(descriptor, events, again=True)
                except FileNotFoundError:
                    self.listener.watch(descriptor, events)
        except OSError:  # resume the conversation: its next call meets the error
            poll.set()

    def handle_ready(self, descriptor: int) -> None:
        """Resume the conversation that waits for a socket which epoll has reported, if one still waits."""
        poll = self.polls.pop(descriptor, None)
        if poll is not None:
            poll.set()


class PoolPoller(BlockingPoller):
    """A poller that parks the conversation while it waits for one descriptor."""

    def __init__(self, client: socket.socket) -> None:
        super().__init__(client)
        self.polls_first = True  # each wait so far was shorter than POLL_FIRST_S

    async def wait(
        self, descriptors: Sequence[int], since: float, seconds: float, writable: int = -1
    ) -> list[int]:
        """Wait in this thread for POLL_FIRST_S, then park, until the descriptor is ready. See Poller.wait().

        descriptors, writable: they may name one descriptor only.
        """
        descriptor = descriptors[0] if descriptors else writable
        # One entry of epoll watches one descriptor.
        assert all(each == descriptor for each in descriptors) and writable in (-1, descriptor)
        expires = time.monotonic() + seconds
        if self.polls_first and descriptor >= 0:
            watched = poll()
            watched.register(descriptor, (POLLIN if descriptors else 0) | (POLLOUT if writable >= 0 else 0))
            if watched.poll(min(POLL_FIRST_S, seconds) * 1000):
                return [descriptor]
            self.polls_first = False
        mask = (EPOLLIN if descriptors else 0) | (EPOLLOUT if writable >= 0 else 0)
        while True:
            ended_at = self.client_ended_at
            # A client that has closed its sending side counts as gone once the upstream was silent for
            # HALF_CLOSED_S.
            silent_until = math.inf if ended_at is None else max(ended_at, since) + HALF_CLOSED_S
            client_events = EPOLLONESHOT if ended_at is not None else EPOLLRDHUP | EPOLLONESHOT
            parked = ParkedPoll(client_events, descriptor, mask)
            try:
                await Wait(Want.PROGRAM, min(expires, silent_until), parked)
            except Timeout:
                pass
            finally:
                parked.close()
            if parked.is_set:
                return [descriptor]
            now = time.monotonic()
            if now >= silent_until:
                raise Disconnected
            if now >= expires:
                return []
            self.client_ended_at = end_of_client(self.client, ended_at)


def end_of_client(client: socket.socket, ended_at: float | None) -> float | None:
    """Return the time.monotonic() at which a client was first seen to have closed its sending side, else None.

    Such a client may still wait for the response. ended_at: the result of the last call for this client, None
    before. Raises Disconnected if the client has left.
    """
    descriptor = client.fileno()
    state = GONE if descriptor < 0 else polled_state(descriptor, ended=ended_at is not None)
    if state == GONE:
        raise Disconnected
    return time.monotonic() if state == ENDED and ended_at is None else ended_at
