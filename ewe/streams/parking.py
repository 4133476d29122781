"""Parking while another server works: how the pool's conversations wait for it without holding a worker.

A proxied request spends most of its time waiting for the server behind ewe. A worker of the pool must not wait with
it: five slow requests would stop a pool of five. The conversation therefore parks, and two things may resume it:

    main thread's epoll ──▶ the client's socket: it has left        ──▶ the conversation is queued
                        ──▶ the other server's socket: it can be read ──▶ ParkedPoll.ring() ──▶ queued

ParkedPoll is a bell (bells.py) that epoll rings. The client's socket is watched as for any parked conversation; the
other one is watched in addition (OtherSockets), with EPOLLONESHOT, and stays known to epoll between two waits.

A server on the same machine answers within a millisecond, and parking costs two system calls and a change of
threads. The first wait of a request therefore looks for EAGER seconds in place. Only then does it park.

Programs still hold their worker (Stream.poller()): a pool bounds how many of them run at once.

What can go wrong: the client's event resumes the conversation, with another worker, while the first worker still
parks it. The first worker must not have the other socket watched for a wait that is over: it would take the place
of the next wait's. `over` prevents that. A conversation that goes on also takes `wake` away. A ring that is too
late wakes nobody, and one that is too early is looked at again: every wait may return too early.

Read next: processors/pool_parking.py, which calls park() and ready().
"""

from __future__ import annotations

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
    look_at,
)
from ewe.streams.poller import HALF_CLOSED, BlockingPoller

if TYPE_CHECKING:
    import socket

    from ewe.streams.listener import Listener

EAGER = 0.002  # seconds


class ParkedPoll:
    """A bell that the main thread's epoll rings. client_events, mask: of epoll(7); descriptor: -1 for none."""

    __slots__ = ("client_events", "descriptor", "lock", "mask", "over", "rung", "wake")

    def __init__(self, client_events: int, descriptor: int = -1, mask: int = 0) -> None:
        self.client_events = client_events
        self.descriptor = descriptor
        self.mask = mask
        self.rung = False
        self.wake: Callable[[], None] | None = None
        self.over = False  # the conversation has gone on
        self.lock = allocate_lock()  # for `over`: held while epoll is told to watch the descriptor

    def ring(self) -> None:
        self.rung = True
        if (wake := self.wake) is not None:
            wake()

    def events(self) -> int:
        return self.client_events

    def park(self, resume: Callable[[], None], watch: Callable[[ParkedPoll], None]) -> None:
        self.wake = resume
        if self.descriptor >= 0:
            watch(self)
        if self.rung:  # checked last: it may ring at any point
            resume()

    async def heard(self, seconds: float) -> bool:
        raise NotImplementedError  # PoolPoller.wait() waits

    def close(self) -> None:
        """Note that the conversation goes on, perhaps while a worker still parks it."""
        with self.lock:
            self.over = True
        self.wake = None


class OtherSockets:
    """The sockets of other servers that the listener's epoll watches, and the bell of each."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.bells: dict[int, ParkedPoll] = {}

    def watch(self, bell: ParkedPoll) -> None:
        """Have epoll ring the bell of a conversation that is parked, unless it has gone on; from any thread."""
        descriptor, events = bell.descriptor, bell.mask | EPOLLONESHOT
        try:
            with bell.lock:
                if bell.over:  # the client's event came first
                    return
                self.bells[descriptor] = bell
                try:
                    self.listener.watch(descriptor, events, True)
                except FileNotFoundError:
                    self.listener.watch(descriptor, events)
        except OSError:  # let the conversation find out
            bell.ring()

    def ready(self, descriptor: int) -> None:
        """Ring the bell of a socket that epoll has reported, if it still has one."""
        bell = self.bells.pop(descriptor, None)
        if bell is not None:
            bell.ring()


class PoolPoller(BlockingPoller):
    """Wait for one descriptor, parked."""

    def __init__(self, client: socket.socket) -> None:
        super().__init__(client)
        self.eager = True

    async def wait(
        self, descriptors: Sequence[int], since: float, seconds: float, writable: int = -1
    ) -> list[int]:
        descriptor = descriptors[0] if descriptors else writable
        assert all(each == descriptor for each in descriptors) and writable in (-1, descriptor)
        now = time.monotonic()
        expires = now + seconds
        if self.eager and descriptor >= 0:
            self.eager = False
            watched = poll()
            watched.register(descriptor, (POLLIN if descriptors else 0) | (POLLOUT if writable >= 0 else 0))
            if watched.poll(min(EAGER, seconds) * 1000):
                self.eager = True
                return [descriptor]
            now = time.monotonic()
        mask = (EPOLLIN if descriptors else 0) | (EPOLLOUT if writable >= 0 else 0)
        while True:
            ended_at = self.client_ended_at
            gone_at = expires if ended_at is None else max(ended_at, since) + HALF_CLOSED
            client_events = EPOLLONESHOT if ended_at is not None else EPOLLRDHUP | EPOLLONESHOT
            parked = ParkedPoll(client_events, descriptor, mask)
            try:
                await Wait(Want.PROGRAM, min(expires, gone_at), parked)
            except Timeout:
                pass
            finally:
                parked.close()
            if parked.rung:
                return [descriptor]
            now = time.monotonic()
            if ended_at is not None and now >= gone_at:
                raise Disconnected
            if now >= expires:
                return []
            self.look_at_client()

    def look_at_client(self) -> None:
        """Find out whether the client has left, or has closed its sending side. Raises Disconnected."""
        client = self.client.fileno()
        if client < 0:
            raise Disconnected
        side = look_at(client, self.client_ended_at is not None)
        if side == GONE:
            raise Disconnected
        if side == ENDED and self.client_ended_at is None:
            self.client_ended_at = time.monotonic()
