"""The event loop's stream: its callbacks resume the conversation directly, without Task, Future or timer."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any

from ewe import logger
from ewe.streams import (
    HALF_CLOSED,
    RECEIVE,
    SENDFILE,
    Disconnected,
    Pace,
    Stream,
    Timeout,
    Timeouts,
    Want,
    reset_at_close,
)

if TYPE_CHECKING:
    import asyncio

    from ewe.programs import ProgramWaits


class EventStream(Stream):
    """A stream that is an asyncio protocol, and resumes its conversation directly when what it wants happened.

        connection_made, data_received*, eof_received?, connection_lost;
        between them pause_writing, resume_writing, in turn

    start(stream) makes the conversation. clock.now is time.monotonic(), up to a quarter of a second old:
    the processor renews it and calls look(now) on every stream, so that no request needs a timer.
    """

    HIGH = 64 * 1024  # bytes that may wait for the conversation before reading pauses

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        start: Callable[[Stream], Coroutine[Any, None, None]],
        server: tuple[str, int],
        timeouts: Timeouts,
        entered: Callable[[EventStream], EventStream],
        gone: Callable[[Stream], None],
    ) -> None:
        super().__init__(("", 0), server, timeouts)
        self.loop = loop
        self.clock = clock
        self.start = start
        self.entered = entered
        self.gone = gone
        self.arrived = b""
        self.ended = False  # the client will send no more
        self.lost = False
        self.full = False  # the transport's buffer is: wait before sending more
        self.reading = True
        self.want: Want | None = None
        self.expires = 0.0
        self.patience = 0.0
        self.left_at = 0.0
        self.transport: asyncio.Transport
        self.conversation: Coroutine[Any, None, None] | None = None

    # What the event loop calls

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin the conversation."""
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self.client = (peer[0], peer[1]) if peer else ("unix:", 0)
        self.entered(self)
        self.conversation = self.start(self)
        self.step()

    def data_received(self, data: bytes) -> None:
        """Take bytes; go on if they are waited for, else keep them, and past HIGH stop reading."""
        if self.want is Want.BYTES:
            self.arrived = data
            self.step()
        else:
            self.arrived += data
            if len(self.arrived) > self.HIGH and self.reading:
                self.reading = False
                self.transport.pause_reading()

    def eof_received(self) -> bool:
        """The client has sent its last byte; it may still wait for the answer."""
        self.ended = True
        self.left_at = self.clock.now
        if self.want is Want.BYTES:
            self.step()
        return True  # the transport stays open: closing is the conversation's business

    def connection_lost(self, reason: Exception | None) -> None:
        """Tell a conversation that is not over, so that its finally blocks run."""
        self.lost = self.ended = True
        if self.want is not None:
            self.step(Disconnected())
        self.gone(self)

    def pause_writing(self) -> None:
        """The buffer is full."""
        self.full = True

    def resume_writing(self) -> None:
        """The buffer has drained."""
        self.full = False
        if self.want is Want.ROOM:
            self.step()

    def step(self, error: Exception | None = None) -> None:
        """Resume the conversation until it pauses again or ends."""
        assert self.conversation is not None
        self.want = None
        try:
            if error is None:
                self.conversation.send(None)
            else:
                self.conversation.throw(error)
        except StopIteration:
            self.want = None
            self.expires = self.clock.now + self.timeouts.write_timeout
            self.close()
        except BaseException:
            logger.errors.exception(f"a conversation with {self.client[0]} failed")
            self.abort()

    def look(self, now: float) -> None:
        """Notice deadlines."""
        if now > self.expires:
            if self.want is not None:
                self.step(Timeout())
            elif self.expires and not self.lost:
                self.transport.abort()  # it ended, and the client did not read the rest

    # What the conversation awaits

    async def wait(self, want: Want, seconds: float) -> None:
        """Pause; raises what look() and connection_lost() throw."""
        if self.lost:
            raise Disconnected
        self.expires = self.clock.now + seconds + TICK
        self.want = want
        await PAUSE

    async def next_request(self, idle: float) -> bytes:
        if not self.arrived and not self.ended:
            if self.finishing or self.lost:
                return b""
            self.idle = True
            self.expires = self.clock.now + idle + TICK
            self.want = Want.BYTES
            try:
                await PAUSE
            except Timeout:
                return b""
            finally:
                self.idle = False
        return self.take()

    def take(self) -> bytes:
        """Return what arrived."""
        data = self.arrived
        self.arrived = b""
        if not self.reading and not self.lost:
            self.reading = True
            self.transport.resume_reading()
        return data

    def allow(self, seconds: float) -> None:
        self.patience = self.clock.now + seconds

    async def receive(self, limit: int = RECEIVE) -> bytes:
        if not self.arrived and not self.ended:
            left = self.patience - self.clock.now
            if left + TICK < 0:  # a trickle of bytes must not outrun the look at deadlines
                raise Timeout
            await self.wait(Want.BYTES, left)
        return self.take()

    async def send(self, *parts: bytes) -> None:
        if self.lost:
            raise Disconnected
        self.transport.write(b"".join(parts) if len(parts) > 1 else parts[0])
        if self.full:
            await self.emptied()

    async def emptied(self) -> None:
        """Wait until the buffer is not full; a client that reads has another write_timeout for the rest."""
        pace = Pace(self.timeouts)
        left = self.transport.get_write_buffer_size()
        while self.full:
            try:
                await self.wait(Want.ROOM, self.timeouts.write_timeout)
            except Timeout:
                before, left = left, self.transport.get_write_buffer_size()
                if left >= before:
                    raise
                pace.check(before - left)

    async def send_file(self, file: int, offset: int, count: int, head: bytes = b"") -> None:
        """Write to a duplicate of the socket: a loop lets nobody else watch a transport's own descriptor."""
        if self.lost:
            raise Disconnected
        if head:
            await self.send(head)
        if not count:
            return
        await self.drained()
        pace = Pace(self.timeouts)
        target = os.dup(self.transport.get_extra_info("socket").fileno())
        try:
            while count:
                try:
                    sent = os.sendfile(target, file, offset, min(count, SENDFILE))
                except BlockingIOError:
                    sent = -1
                except OSError:
                    raise Disconnected from None
                if sent == 0:
                    raise Disconnected("the file has become shorter")
                if sent > 0:
                    offset += sent
                    count -= sent
                pace.check(max(sent, 0))
                if count:
                    await self.room(target)
        finally:
            os.close(target)

    async def drained(self) -> None:
        """Wait until the transport holds nothing back, so that what is written past it comes after."""
        if self.transport.get_write_buffer_size():
            self.transport.set_write_buffer_limits(high=0)
            try:
                if self.transport.get_write_buffer_size():
                    self.full = True
                    await self.wait(Want.ROOM, self.timeouts.write_timeout)
            finally:
                self.transport.set_write_buffer_limits(high=self.HIGH)

    async def room(self, target: int) -> None:
        """Wait until the socket takes more."""
        self.loop.add_writer(target, self.happened, Want.ROOM)
        try:
            await self.wait(Want.ROOM, self.timeouts.write_timeout)
        finally:
            self.loop.remove_writer(target)

    def happened(self, want: Want) -> None:
        """Go on if this is what is waited for."""
        if self.want is want:
            self.step()

    async def linger(self) -> None:
        if self.lost:
            return
        try:
            self.transport.write_eof()
        except (OSError, RuntimeError):
            return
        await self.read_off()

    def program_waits(self) -> ProgramWaits:
        return EventWaits(self)

    def finish(self) -> None:
        self.finishing = self.stopping = True
        self.soon(self.end_idle)

    def end_idle(self) -> None:
        """End the wait between requests."""
        if self.idle:
            self.happened(Want.BYTES)

    def abort(self) -> None:
        self.aborted = self.finishing = self.stopping = self.lost = True
        self.kill_programs()
        self.soon(self.transport.abort)

    def break_off(self) -> None:
        reset_at_close(self.transport.get_extra_info("socket"))

    def soon(self, function: Callable[[], None]) -> None:
        """Have the loop call a function: we may be in another thread."""
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            pass  # it is closed, and the connection with it

    def close(self) -> None:
        self.reap_programs()
        if not self.lost:
            self.transport.close()


class Clock:
    """A time of day that costs nothing to read."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = time.monotonic()


TICK = 0.25  # seconds between two looks at all deadlines of an event loop


class _Pause:
    """`await PAUSE` gives control back to the event loop."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


PAUSE: Awaitable[None] = _Pause()


# Descriptors that an event loop goes on watching between two waits, which saves it half a dozen system calls for
# each, and what to call when they can be read: None while nobody waits.
WATCHED: dict[int, Callable[[int], None] | None] = {}


def readable(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    """A watched descriptor can be read, or has been closed by its other end."""
    possible = WATCHED[descriptor]
    if possible is not None:
        possible(descriptor)
    else:  # it would be told again and again
        del WATCHED[descriptor]
        loop.remove_reader(descriptor)


class EventWaits:
    """Wait for a program with the event loop's readers."""

    def __init__(self, stream: EventStream) -> None:
        self.stream = stream

    async def wait(
        self,
        descriptors: Sequence[int],
        since: float,
        seconds: float,
        writable: int = -1,
        stays: bool = False,
    ) -> list[int]:
        stream, loop = self.stream, self.stream.loop
        ready: list[int] = []

        def possible(descriptor: int) -> None:
            ready.append(descriptor)
            stream.happened(Want.PROGRAM)

        for descriptor in descriptors:
            if not stays:
                loop.add_reader(descriptor, possible, descriptor)
                continue
            if descriptor not in WATCHED:
                loop.add_reader(descriptor, readable, loop, descriptor)
            WATCHED[descriptor] = possible
        if writable >= 0:
            loop.add_writer(writable, possible, writable)
        expires = stream.clock.now + seconds
        try:
            while not ready:
                now = stream.clock.now
                if stream.ended and now > max(since, stream.left_at) + HALF_CLOSED:
                    raise Disconnected
                if now > expires:
                    break
                try:
                    await stream.wait(Want.PROGRAM, min(expires - now, HALF_CLOSED))
                except Timeout:
                    continue
        finally:
            for descriptor in descriptors:
                if not stays:
                    loop.remove_reader(descriptor)
                elif descriptor in WATCHED:
                    WATCHED[descriptor] = None
            if writable >= 0:
                loop.remove_writer(writable)
        return ready

    def forget(self, descriptor: int) -> None:
        if descriptor in WATCHED:
            del WATCHED[descriptor]
            self.stream.loop.remove_reader(descriptor)

    def after(self, seconds: float, exited: int, function: Callable[[], None]) -> None:
        """Call function after so many seconds."""
        self.stream.loop.call_later(seconds, function)
