"""The traced stream: a stream over the model's own one, which writes an event at each wait and at each send.

Read ewe.trace for the events, and for those that may be held: they go to the file together with the next event.
These are held, because ewe's own code follows them and cannot wait before the next event is written:

    goes-on     of a wait for a request: the head is parsed, then `request` is written
    answered    the head of the response is sent next
    waits       for a request, and `sends`: if the stream below does not block, since the conversation parks instead
    sent        if the response is complete: the next wait follows, or the end. (Else a feature makes the next one.)
    sends       also if it is the first of its connection, and short: the kernel has room for it
    accepted    if the model runs the conversation at once (ewe.server.trace)
    ended       if the stream below blocks, and no program is left: the thread closes the connection next
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from ewe.streams.base import RECEIVE_BYTES, Child, Disconnected, Poller, Stream, Timeout
from ewe.streams.over import StreamOver
from ewe.trace import Trace

T = TypeVar("T")
ROOM_BYTES = 4096  # an empty send buffer has room for more than these, on each system


class TracedStream(StreamOver):
    """Writes the events of one connection, around each call of the stream below (Stream describes the calls).

    name: the connection's name in the trace. why: why it has ended.
    """

    def __init__(self, below: Stream, trace: Trace, name: str) -> None:
        super().__init__(below)
        self.scheme = below.scheme
        self.trace = trace
        self.name = name
        self.why = "the server closes"
        self.complete = False  # is the response in progress complete before its first byte is sent?
        self.has_sent = False
        self.before_wait = trace.writer(may_hold=not below.may_block)

    @property
    def programs(self) -> set[Child]:
        """The programs that run for this connection."""
        if self.below.own_programs is None:
            self.below.own_programs = TracedPrograms(self.trace, self.name)
        return self.below.own_programs

    def end(self) -> None:
        """Write the event `ended`."""
        closes_next = self.below.may_block and not self.below.own_programs
        self.trace.writer(may_hold=closes_next)("ended", self.name, self.why)

    @contextmanager
    def wait(self, what: str) -> Iterator[None]:
        """Write that the conversation waits, and how the wait ends."""
        self.trace.write("waits", self.name, what)
        how = ""  # in the event goes-on: "" for a wait that has ended well
        try:
            yield
        except Timeout:
            how = self.why = "timeout"
            raise
        except Disconnected:
            how, self.why = "left", "the client has left"
            raise
        finally:
            self.trace.write("goes-on", self.name, how)

    async def next_request(self, seconds: float) -> bytes:
        """Wait below for the next request, or for a TLS handshake; return the first bytes. If none come, note why
        the connection ends.
        """
        began = time.monotonic()
        how = ""
        what = "bytes" if self.in_handshake else "request"
        self.before_wait("waits", self.name, what)  # hold() or write(): see the top of this file
        try:
            data = await self.below.next_request(seconds)
            if not data and time.monotonic() - began >= seconds:
                how, self.why = "timeout", "timeout" if self.in_handshake else "no request came in time"
        except Disconnected:
            how, self.why = "left", "the client has left"
            raise
        finally:
            self.trace.hold("goes-on", self.name, how)
        if not data and not how:
            if self.below.gives_way:
                self.why = "another client waits"
            else:
                self.why = "the server stops" if self.finishing else "the client closes"
        return data

    async def receive(self, limit: int = RECEIVE_BYTES) -> bytes:
        with self.wait("bytes"):
            return await self.below.receive(limit)

    async def send(self, *parts: bytes) -> None:
        """Write all parts below, and the events `sends` and `sent` (0 bytes if it fails)."""
        size = sum(map(len, parts))
        if size <= ROOM_BYTES and not self.has_sent:
            self.trace.hold("sends", self.name)
        else:
            self.before_wait("sends", self.name)
        self.has_sent = True
        sent = 0
        try:
            await self.below.send(*parts)
            sent = size
        finally:
            self.after_send(sent)

    def after_send(self, sent: int) -> None:
        """Write the event `sent`. sent: bytes."""
        if self.complete:
            self.trace.hold("sent", self.name, sent)
        else:
            self.trace.write("sent", self.name, sent)

    async def send_file(self, file: int, offset: int, count: int, head: bytes = b"") -> None:
        """Send `head` and a part of a file below; write the events `sends` and `sent`."""
        self.trace.write("sends", self.name)  # a disk may be slow
        self.has_sent = True
        try:
            await super().send_file(file, offset, count, head)
        finally:
            self.after_send(len(head) + count - self.unsent)

    async def linger(self) -> None:
        with self.wait("close"):
            await self.below.linger()

    def poller(self) -> Poller:
        return TracedPoller(self, self.below.poller(), "program")

    def upstream_poller(self) -> Poller:
        return TracedPoller(self, self.below.upstream_poller(), "server")

    async def either(self, descriptor: int, seconds: float) -> bool:
        with self.wait("server"):
            return await self.below.either(descriptor, seconds)

    async def call(
        self,
        function: Callable[..., T],
        *arguments: Any,
        seconds: float = math.inf,
        abandoned: Callable[[], None] | None = None,
    ) -> T:
        """Return function(*arguments), called below."""
        with self.wait("call"):
            return await self.below.call(function, *arguments, seconds=seconds, abandoned=abandoned)


class TracedPoller:
    """A poller that writes an event at each wait. what: what the conversation waits for."""

    def __init__(self, stream: TracedStream, poller: Poller, what: str) -> None:
        self.stream = stream
        self.poller = poller
        self.what = what
        self.forget = poller.forget
        self.share = poller.share
        self.after = poller.after

    async def wait(
        self, descriptors: Sequence[int], since: float, seconds: float, writable: int = -1
    ) -> list[int]:
        """Wait as the model's poller does."""
        with self.stream.wait(self.what):
            return await self.poller.wait(descriptors, since, seconds, writable)

    async def readable(self, descriptor: int, since: float, seconds: float) -> bool:
        """Wait as the model's poller does."""
        with self.stream.wait(self.what):
            return await self.poller.readable(descriptor, since, seconds)


class TracedPrograms(set[Child]):
    """The programs of one connection. It writes an event when one is started, and when one is reaped."""

    def __init__(self, trace: Trace, name: str) -> None:
        super().__init__()
        self.trace = trace
        self.name = name

    def add(self, program: Child) -> None:
        """Add a program that was started."""
        super().add(program)
        self.trace.write("program", self.name, getattr(program, "pid", ""))

    def discard(self, program: object) -> None:
        """Remove a program that was reaped."""
        if program in self:
            super().discard(program)
            self.trace.write("exited", self.name, getattr(program, "pid", ""))
