"""The event loop's stream: the loop's callbacks resume the conversation directly.

One thread serves every connection, so no conversation may wait in a system call. asyncio's own way would put a
StreamReader, a Future and a Task between the socket and the conversation; each costs an object per wait and a round
of the loop. EventStream is the asyncio.Protocol itself and resumes the coroutine from the callback:

    event loop                  EventStream                            conversation
    data_received(data) ──────▶ want is BYTES? step() ── send(None) ─▶ goes on after `await receive()`
                                else keep the bytes                      │
                                want = ROOM, say    ◀── await PAUSE ───────┘  (pauses again, or ends)
    resume_writing()    ──────▶ want is ROOM?  step()
    tick, 4 per second  ──────▶ check_deadline(now): past it? step(Timeout)
    connection_lost()   ──────▶ step(Disconnected), so that the conversation's finally blocks run

`want` says what the paused conversation waits for; an event that it does not wait for leaves it paused. Bytes that
come meanwhile stay in `arrived`; past HIGH bytes the stream stops reading, and TCP slows the client down.

No request sets a timer: creating and cancelling one would cost more than reading a short request. The model checks
the deadlines of all streams every TICK seconds. Clock has the time of the last check, which costs nothing to read.

What can go wrong:

- The loop finds out in send() that the client has left, but calls connection_lost() only in its next round; until
  then is_closing() is the sign.
- sendfile(2) writes past the transport. What the transport still buffers must go out first (drained), and the loop
  lets no one else watch the transport's descriptor, so send_file() watches a duplicate.
- A conversation that always finds bytes to read and room to write never pauses, and nothing else runs. After SHARE
  bytes it goes on in the loop's next round (turn).

Read next: processors/event.py, which makes the loop, the streams and the ticks.
"""

from __future__ import annotations

import fcntl
import math
import os
import struct
import termios
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from socket import AF_UNIX
from typing import TYPE_CHECKING, Any, TypeVar

from ewe import logger
from ewe.streams.base import (
    CALL,
    RECEIVE,
    SENDFILE,
    SHARE,
    Disconnected,
    MinRate,
    Poller,
    Stream,
    Timeout,
    Timeouts,
    Want,
    reset_at_close,
)
from ewe.streams.calls import Call, CallThreads
from ewe.streams.descriptor_set import HAS_EPOLL
from ewe.streams.descriptors import send_region
from ewe.streams.poller import HALF_CLOSED
from ewe.streams.watcher import WATCHERS, Watcher, watcher_of

if TYPE_CHECKING:
    import asyncio

    from ewe.streams.bells import Bell


T = TypeVar("T")
UNREAD = 0.01  # seconds in which the loop reads what has come
FIRST = 1.0  # seconds that a client who has just connected has for its first request, once the server ends


class EventStream(Stream):
    """A stream that is an asyncio protocol. The loop calls, in this order:

        connection_made, data_received*, eof_received?, connection_lost
        and between these pause_writing, resume_writing in turn

    admit(stream): registers the connection; False if it is refused. start(stream): makes the conversation.
    on_lost(stream): called when the connection has ended. clock: the model sets clock.now every TICK seconds, and
    then calls check_deadline(now). calls: the threads of this loop, for call().
    """

    HIGH = 64 * 1024  # bytes that may wait for the conversation before reading pauses
    watcher: Watcher | None = None  # the loop's, once the conversation has waited for another server

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        start: Callable[[Stream], Coroutine[Any, None, None]],
        server: tuple[str, int],
        timeouts: Timeouts,
        admit: Callable[[EventStream], bool],
        on_lost: Callable[[Stream], None],
        calls: CallThreads,
    ) -> None:
        super().__init__(("", 0), server, timeouts)
        self.loop = loop
        self.clock = clock
        self.start = start
        self.admit = admit
        self.on_lost = on_lost
        self.calls = calls
        self.arrived = b""
        self.ended = False  # the client has closed its sending side
        self.lost = False
        self.full = False  # the transport's buffer is full: wait before sending more
        self.reading = True
        self.handled = 0  # bytes read and sent since the conversation was last resumed
        self.want: Want | None = None
        self.expires = 0.0
        self.receive_deadline = 0.0
        self.client_ended_at = 0.0
        self.transport: asyncio.Transport
        self.conversation: Coroutine[Any, None, None] | None = None

    # What the event loop calls

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin the conversation."""
        self.transport = transport
        peer = transport.get_extra_info("peername")
        if peer:
            self.client = (peer[0], peer[1])
        elif transport.get_extra_info("socket").family == AF_UNIX:
            self.client = ("unix:", 0)
        if self.admit(self):
            self.conversation = self.start(self)
            self.step()

    def data_received(self, data: bytes) -> None:
        """Resume the conversation if it waits for bytes, else keep them; past HIGH bytes stop reading."""
        if self.want is Want.BYTES:
            self.arrived = data
            self.step()
        else:
            self.arrived += data
            if len(self.arrived) > self.HIGH and self.reading:
                self.reading = False
                self.transport.pause_reading()
            if self.want is Want.EITHER:
                self.step()

    def eof_received(self) -> bool:
        """Note that the client has closed its sending side; it may still wait for the response."""
        self.ended = True
        self.client_ended_at = self.clock.now
        if self.want is Want.BYTES or self.want is Want.EITHER:
            self.step()
        return True  # keep the transport open: the conversation decides when to close

    def connection_lost(self, reason: Exception | None) -> None:
        """Throw Disconnected into a conversation that has not ended, so that its finally blocks run."""
        self.lost = self.ended = True
        if self.want is not None:
            self.step(Disconnected())
        self.on_lost(self)

    def pause_writing(self) -> None:
        """Note that the transport's buffer is full."""
        self.full = True

    def resume_writing(self) -> None:
        """Note that the transport's buffer has drained."""
        self.full = False
        if self.want is Want.ROOM:
            self.step()

    def step(self, error: Exception | None = None) -> None:
        """Resume the conversation until it pauses again or ends."""
        assert self.conversation is not None
        self.want = None
        self.handled = 0
        try:
            if error is None:
                self.conversation.send(None)
            else:
                self.conversation.throw(error)
        except StopIteration:
            self.expires = self.clock.now + self.timeouts.write_timeout
            self.close()
        except BaseException:
            logger.errors.exception(f"a conversation with {self.client[0]} failed")
            self.abort()

    def check_deadline(self, now: float) -> None:
        """End a wait that is past its deadline, or a closing connection whose client does not read the rest."""
        if now > self.expires:
            if self.idle and unread(self.transport.get_extra_info("socket").fileno()):
                # Its request came while this process had no processor: the loop reads it first.
                self.expires = now + TICK
            elif self.want is not None:
                self.step(Timeout())
            elif self.expires and not self.lost:
                self.transport.abort()  # the conversation ended, and the client did not read the rest

    # What the conversation awaits

    async def wait(self, want: Want, seconds: float) -> None:
        """Pause until `want` has happened. Raises Timeout after `seconds` (from check_deadline()), Disconnected."""
        if self.lost:
            raise Disconnected
        self.expires = self.clock.now + seconds + TICK
        self.want = want
        await PAUSE

    async def next_request(self, seconds: float) -> bytes:
        if not self.arrived and not self.ended:
            if self.lost or (self.finishing and self.requests):
                return b""
            self.idle = True
            if self.finishing:
                # Not the clock's time: a loop that had no processor for a while has not set it since.
                self.expires = time.monotonic() + min(seconds, FIRST) + TICK
            else:
                self.expires = self.clock.now + seconds + TICK
            self.want = Want.BYTES
            try:
                await PAUSE
            except Timeout:
                return b""
            finally:
                self.idle = False
        return self.take()

    def take(self) -> bytes:
        """Return all bytes that have arrived, and read on."""
        data = self.arrived
        self.arrived = b""
        if not self.reading and not self.lost:
            self.reading = True
            self.transport.resume_reading()
        return data

    def set_deadline(self, seconds: float) -> None:
        self.receive_deadline = self.clock.now + seconds

    async def receive(self, limit: int = RECEIVE) -> bytes:
        if not self.arrived and not self.ended:
            left = self.receive_deadline - self.clock.now
            # The deadline may have passed before this wait: Body.more() computes it from min_rate.
            if left + TICK < 0:
                raise Timeout
            await self.wait(Want.BYTES, left)
        return self.take()

    async def send(self, *parts: bytes) -> None:
        transport = self.transport
        handled = self.handled
        # An earlier write of this turn may have failed; the loop calls connection_lost() only in its next round.
        if self.lost or (handled and transport.is_closing()):
            raise Disconnected
        data = b"".join(parts) if len(parts) > 1 else parts[0]
        transport.write(data)
        if self.full:
            await self.emptied()
            return
        self.handled = handled = handled + CALL + len(data)
        if handled > SHARE:
            await self.turn()

    async def share(self, size: int) -> None:
        self.handled += CALL + size
        if self.handled > SHARE:
            await self.turn()

    async def turn(self) -> None:
        """Go on in the loop's next round: every other connection that is ready comes first."""
        self.loop.call_soon(self.happened, Want.TURN)
        await self.wait(Want.TURN, math.inf)

    async def emptied(self) -> None:
        """Wait until the buffer is not full; a client that keeps min_rate gets another write_timeout."""
        pace = MinRate(self.timeouts)
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
        """Send with sendfile(2), past the transport, on a duplicate of its descriptor, which the loop can watch."""
        self.unsent = count
        if self.lost:
            raise Disconnected
        if head:
            await self.send(head)
        if not count:
            return
        await self.drained()
        pace = MinRate(self.timeouts)
        try:
            target = os.dup(self.transport.get_extra_info("socket").fileno())
        except OSError:  # the process has no descriptor left
            await self.send_copy(file, offset, count)
            return
        try:
            while count:
                try:
                    sent = send_region(target, file, offset, min(count, SENDFILE))
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
            self.unsent = count
            os.close(target)
        await self.share(max(sent, 0))

    async def send_copy(self, file: int, offset: int, count: int) -> None:
        """Read and send a part of a file: slower than sendfile(2), but without another descriptor."""
        while count:
            data = os.pread(file, min(count, RECEIVE), offset)
            if not data:
                raise Disconnected("the file has become shorter")
            await self.send(data)
            offset += len(data)
            count -= len(data)
            self.unsent = count

    async def drained(self) -> None:
        """Wait until the transport's buffer is empty, so that bytes written past the transport come after it."""
        if self.transport.get_write_buffer_size():
            # With a limit of 0 the loop calls resume_writing() only when the buffer is empty.
            self.transport.set_write_buffer_limits(high=0)
            try:
                if self.transport.get_write_buffer_size():
                    self.full = True
                    await self.wait(Want.ROOM, self.timeouts.write_timeout)
            finally:
                self.transport.set_write_buffer_limits(high=self.HIGH)

    async def room(self, target: int) -> None:
        """Wait until the socket has room for more."""
        self.loop.add_writer(target, self.happened, Want.ROOM)
        try:
            await self.wait(Want.ROOM, self.timeouts.write_timeout)
        finally:
            self.loop.remove_writer(target)

    async def call(
        self,
        function: Callable[..., T],
        *arguments: Any,
        seconds: float = math.inf,
        abandoned: Callable[[], None] | None = None,
    ) -> T:
        call = Call(function, arguments, self.call_ended, abandoned)
        self.calls.put(call)
        try:
            await self.wait(Want.CALL, seconds)
        except BaseException:
            call.dropped = True
            raise
        value: T = call.result()
        return value

    def call_ended(self) -> None:
        """Resume the conversation: the call that it waits for has ended."""
        self.happened(Want.CALL)

    def happened(self, want: Want) -> None:
        """Resume the conversation if it waits for this."""
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

    def bound_to(self) -> str:
        name = self.transport.get_extra_info("sockname")
        return str(name[0]) if name else self.server[0]

    def poller(self) -> Poller:
        return EventPoller(self)

    async def either(self, descriptor: int, seconds: float) -> bool:
        if not self.arrived and not self.ended:
            await EventPoller(self).either(descriptor, seconds)
        return bool(self.arrived) or self.ended

    def bell(self) -> Bell:
        return EventBell(self)

    def finish(self) -> None:
        self.finishing = self.stopping = True
        self.soon(self.end_idle)

    def end_idle(self) -> None:
        """End the wait between requests, unless the next one is there unread, or a new client may be sending it."""
        if not self.idle:
            return
        if not self.requests:
            self.expires = min(self.expires, time.monotonic() + FIRST + TICK)
        elif unread(self.transport.get_extra_info("socket").fileno()):
            self.loop.call_later(UNREAD, self.end_idle)
        else:
            self.happened(Want.BYTES)

    def abort(self) -> None:
        self.aborted = self.finishing = self.stopping = self.lost = True
        self.kill_programs()
        self.soon(self.transport.abort)

    def reset_at_close(self) -> None:
        reset_at_close(self.transport.get_extra_info("socket"))

    def soon(self, function: Callable[[], None]) -> None:
        """Have the loop call a function; this may be another thread than the loop's."""
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            pass  # the loop is closed, and the connection with it

    def close(self) -> None:
        self.reap_programs()
        if not self.lost:
            self.transport.close()


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
        """Return the loop's watcher; the stream remembers it."""
        watcher = self.stream.watcher = watcher_of(self.stream.loop)
        return watcher

    def after(self, seconds: float, exited: int, function: Callable[[], None]) -> None:
        """Have the loop call function after `seconds`."""
        self.stream.loop.call_later(seconds, function)


class EventBell:
    """Pause; the loop resumes the conversation in its next round, not inside the one that rings."""

    def __init__(self, stream: EventStream) -> None:
        self.stream = stream
        self.rung = False

    def ring(self) -> None:
        self.rung = True
        self.stream.loop.call_soon(self.stream.happened, Want.BELL)

    async def heard(self, seconds: float) -> bool:
        stream = self.stream
        began = stream.clock.now
        while not self.rung:
            now = stream.clock.now
            if stream.ended and now > max(began, stream.client_ended_at) + HALF_CLOSED:
                raise Disconnected
            if now > began + seconds:
                return False
            try:
                await stream.wait(Want.BELL, min(began + seconds - now, HALF_CLOSED))
            except Timeout:
                continue
        return True

    def close(self) -> None:
        """Do nothing."""


class Clock:
    """The time of the loop's last tick on time.monotonic(): an attribute is cheaper to read than a clock."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = time.monotonic()


TICK = 0.25  # seconds between two looks at the deadlines of all connections of an event loop


class _Pause:
    """`await PAUSE` gives control back to step(), and so to the event loop."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


PAUSE: Awaitable[None] = _Pause()


def unread(descriptor: int) -> int:
    """Return how many bytes have come on a socket that were not read yet; 0 if it is closed."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0])
    except OSError:
        return 0
