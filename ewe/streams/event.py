"""The event loop's stream: the loop's callbacks resume the conversation directly.

One thread serves every connection, so no conversation may wait in a system call. asyncio's usual design puts a
StreamReader, a Future and a Task between the socket and the conversation. Each costs an object per wait, and a
round of the loop. EventStream is an asyncio.Protocol itself, and resumes the coroutine from the callback:

    event loop                  EventStream                            conversation
    data_received(data) ──────▶ want is BYTES? step() ── send(None) ─▶ goes on after `await receive()`
                                else keep the bytes                      │
                                want = ROOM, say    ◀── await PAUSE ───────┘  (pauses again, or ends)
    resume_writing()    ──────▶ want is ROOM?  step()
    tick, 4 per second  ──────▶ check_deadline(now): past it? step(Timeout)
    connection_lost()   ──────▶ step(Disconnected), so that the conversation's finally blocks run

`want` is the event that the paused conversation waits for; any other event leaves it paused. Bytes that arrive
meanwhile stay in `input_buffer`. After HIGH_WATER_BYTES the stream stops reading, and TCP slows the client down.

No request sets a timer: creating and cancelling a timer would cost more than reading a short request. The model
checks the deadlines of all streams every DEADLINE_CHECK_S. Clock keeps the time of the last check, and reading that
attribute is cheaper than a system call.

Possible failures, and where each is prevented:

- The loop finds out in send() that the client has left, but calls connection_lost() only in its next round. Until
  then, the transport's is_closing() shows the end.
- sendfile(2) bypasses the transport. Bytes in the transport's buffer must be sent first (drain). The loop lets
  no other code watch the transport's descriptor, so send_file() watches a duplicate.
- A conversation that always finds bytes to read and room to write never pauses, and no other conversation runs.
  After TURN_BYTES it goes on in the loop's next round (yield_turn).

Read next: processors/event.py, which makes the loop, the streams and the ticks.
"""

from __future__ import annotations

import fcntl
import math
import os
import struct
import termios
import time
from collections.abc import Awaitable, Callable, Coroutine
from socket import AF_UNIX
from typing import TYPE_CHECKING, Any, TypeVar

from ewe import logger
from ewe.streams.base import (
    CALL_COST_BYTES,
    COPIED_BYTES,
    RECEIVE_BYTES,
    SENDFILE_BYTES,
    TURN_BYTES,
    Disconnected,
    ForeignAwait,
    MinRate,
    Poller,
    Stream,
    Timeout,
    Timeouts,
    Want,
    reset_at_close,
)
from ewe.streams.calls import ExecutorCall
from ewe.streams.descriptors import has_unsent_bytes, send_region
from ewe.streams.event_poller import EventPoller, LoopWakeEvent
from ewe.streams.watcher import EventModel, Watcher
from ewe.timeouts import counted_if_empty

if TYPE_CHECKING:
    import asyncio

    from ewe.streams.wake_events import WakeEvent


T = TypeVar("T")
READ_ALL_S = 0.01  # seconds in which the loop will have read the bytes that have arrived
FIRST_REQUEST_S = 1.0  # seconds for the first request of a new connection, when the server stops


class EventStream(Stream):
    """A Stream (which describes most methods) that is an asyncio protocol. The loop calls, in this order:

        connection_made, data_received*, eof_received?, connection_lost
        and in between, alternately: pause_writing, resume_writing

    The model sets clock.now every DEADLINE_CHECK_S, and then calls check_deadline(now).
    """

    may_block = False
    HIGH_WATER_BYTES = 64 * 1024  # in `input_buffer`; above it the stream stops reading
    watcher: Watcher | None = None  # the loop's; None until the conversation waits for an upstream
    buffered_bytes = 0  # in the transport's buffer after the end of the conversation, at the last check

    def __init__(self, model: EventModel, server: tuple[str, int], timeouts: Timeouts) -> None:
        super().__init__(("", 0), server, timeouts)
        self.model = model
        self.loop = model.loop
        self.clock = model.clock
        self.input_buffer = b""  # bytes of the client that the conversation has not received yet
        self.client_ended = False  # the client has closed its sending side
        self.lost = False  # the connection cannot be used any more
        self.output_full = False  # the transport's buffer is full: wait before sending more
        self.reading = True  # the loop reads from the socket; see HIGH_WATER_BYTES
        self.handled_bytes = 0  # bytes read and sent since the conversation was last resumed
        self.want: Want | None = None
        # Moments of time.monotonic(): the end of the present wait, and of all receive() calls; see set_deadline()
        self.expires = 0.0
        self.receive_deadline = 0.0
        self.client_ended_at = 0.0
        self.transport: asyncio.Transport
        self.conversation: Coroutine[Any, None, None] | None = None

    # Called by the event loop

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start the conversation, unless admit() refuses the connection."""
        self.transport = transport
        peer = transport.get_extra_info("peername")
        # A client of a Unix socket has no address. Its name is "", or the path to which its own socket is bound.
        if isinstance(peer, tuple):
            self.client = (peer[0], peer[1])
        elif transport.get_extra_info("socket").family == AF_UNIX:
            self.client = ("unix:", 0)
        if self.model.admit(self):
            self.conversation = self.model.converse(self)
            self.step()

    def data_received(self, data: bytes) -> None:
        """Resume the conversation if it waits for bytes, else keep them. Stop reading after HIGH_WATER_BYTES."""
        if self.want is Want.BYTES:
            self.input_buffer = data  # it was empty, or the conversation would not wait
            self.step()
        else:
            self.input_buffer += data
            if len(self.input_buffer) > self.HIGH_WATER_BYTES and self.reading:
                self.reading = False
                self.transport.pause_reading()
            if self.want is Want.EITHER:
                self.step()

    def eof_received(self) -> bool:
        """Note that the client has closed its sending side. The client may still wait for the response."""
        self.client_ended = True
        self.client_ended_at = self.clock.now
        if self.want is Want.BYTES or self.want is Want.EITHER:
            self.step()
        return True  # keep the transport open: the conversation decides when to close

    def connection_lost(self, reason: Exception | None) -> None:
        """Throw Disconnected into a conversation that has not ended, so that its finally blocks run."""
        self.lost = self.client_ended = True
        if self.want is not None:
            self.step(Disconnected())
        self.model.connection_lost(self)

    def pause_writing(self) -> None:
        """Note that the transport's buffer is full."""
        self.output_full = True

    def resume_writing(self) -> None:
        """Note that the transport's buffer has room again."""
        self.output_full = False
        if self.want is Want.ROOM:
            self.step()

    def step(self, error: Exception | None = None) -> None:
        """Resume the conversation, which runs until it pauses again or ends. error: thrown into it."""
        assert self.conversation is not None
        self.want = None
        self.handled_bytes = 0
        try:
            if error is None:
                self.conversation.send(None)
            else:
                self.conversation.throw(error)
            while self.want is None:
                self.conversation.throw(ForeignAwait)
        except StopIteration:
            self.expires = self.clock.now + self.timeouts.write_timeout  # see drop_slow_reader()
            self.buffered_bytes = self.transport.get_write_buffer_size()
            self.close()
        except BaseException:
            logger.errors.exception(f"a conversation with {self.client[0]} failed")
            # Not abort(): the exit status of the worker would say that a stop has aborted requests.
            self.transport.abort()

    def check_deadline(self, now: float) -> None:
        """End a wait whose deadline has passed, or a closing connection whose client reads too slowly."""
        if now > self.expires:
            if self.want is not None and self.has_happened():
                # It happened while the kernel did not schedule this process: let the loop read or write first.
                self.expires = now + DEADLINE_CHECK_S
            elif self.want is not None:
                self.step(Timeout())
            elif self.expires and not self.lost:  # the conversation has ended; 0: it has not waited yet
                self.drop_slow_reader(now)

    def has_happened(self) -> bool:
        """Return whether the bytes, or the room, for which the conversation waits are in the kernel already."""
        descriptor = self.transport.get_extra_info("socket").fileno()
        if self.want is Want.BYTES:
            return unread_bytes(descriptor) > 0
        return self.want is Want.ROOM and not has_unsent_bytes(descriptor)

    def drop_slow_reader(self, now: float) -> None:
        """Drop a closing connection, unless its client has read min_rate bytes a second for write_timeout."""
        left_bytes, timeouts = self.transport.get_write_buffer_size(), self.timeouts
        if self.buffered_bytes - left_bytes >= max(timeouts.min_rate * timeouts.write_timeout, 1):
            self.buffered_bytes = left_bytes
            self.expires = now + timeouts.write_timeout
        else:
            self.transport.abort()

    # Awaited by the conversation

    async def wait(self, want: Want, seconds: float) -> None:
        """Pause until `want` has happened. Raises Disconnected; Timeout after `seconds` (see check_deadline())."""
        if self.lost:
            raise Disconnected
        self.expires = self.clock.now + seconds + DEADLINE_CHECK_S
        self.want = want
        await PAUSE

    async def next_request(self, seconds: float) -> bytes:
        """Pause until the client sends; return all bytes that have come. Return b"" if none come within `seconds`,
        or at a stop. Raises Disconnected.
        """
        if not self.input_buffer and not self.client_ended:
            if self.lost or (self.finishing and self.requests):
                return b""
            self.idle = True
            if self.finishing:
                # Not clock.now: it is old if the kernel did not schedule this process for a while.
                self.expires = time.monotonic() + min(seconds, FIRST_REQUEST_S) + DEADLINE_CHECK_S
            else:
                self.expires = self.clock.now + seconds + DEADLINE_CHECK_S
            self.want = Want.BYTES
            try:
                await PAUSE
            except Timeout:
                return counted_if_empty(self, b"")
            finally:
                self.idle = False
        return self.take_input()

    def take_input(self) -> bytes:
        """Return all bytes that have arrived, and resume reading."""
        data, self.input_buffer = self.input_buffer, b""
        if not self.reading and not self.lost:
            self.reading = True
            self.transport.resume_reading()
        return data

    def set_deadline(self, seconds: float) -> None:
        self.receive_deadline = self.clock.now + seconds

    async def receive(self, limit: int = RECEIVE_BYTES) -> bytes:
        """Return all bytes that have arrived; pause until some arrive. b"": the client has closed its side.

        `limit` is ignored: the loop has read the bytes already. Raises Timeout at the deadline, Disconnected.
        """
        if not self.input_buffer and not self.client_ended:
            left_s = self.receive_deadline - self.clock.now
            # The deadline may have passed already, since it is for several calls of receive() together. A wait ends
            # up to DEADLINE_CHECK_S after its deadline, and this check allows the same time.
            if left_s + DEADLINE_CHECK_S < 0:
                raise Timeout
            await self.wait(Want.BYTES, left_s)
        return self.take_input()

    async def send(self, *parts: bytes) -> None:
        """Give all parts to the transport; pause if its buffer is full. Raises Timeout, Disconnected."""
        transport = self.transport
        handled = self.handled_bytes
        # An earlier write of this round may have failed. The loop calls connection_lost() only in its next round.
        if self.lost or (handled and transport.is_closing()):
            raise Disconnected
        data = b"".join(parts) if len(parts) > 1 else parts[0]
        transport.write(data)
        if self.output_full:
            await self.wait_for_buffer_room()
            return
        self.handled_bytes = handled = handled + CALL_COST_BYTES + len(data)
        if handled > TURN_BYTES:
            await self.yield_turn()

    async def share(self, size: int) -> None:
        """Count `size` bytes of work; after TURN_BYTES pause until the next round of the loop."""
        self.handled_bytes += CALL_COST_BYTES + size
        if self.handled_bytes > TURN_BYTES:
            await self.yield_turn()

    async def yield_turn(self) -> None:
        """Pause until the loop's next round. Every other connection that is ready comes first."""
        began = time.monotonic()
        self.loop.call_soon(self.resume_if_waiting_for, Want.TURN)
        await self.wait(Want.TURN, math.inf)
        self.queued_s += time.monotonic() - began

    async def wait_for_buffer_room(self) -> None:
        """Wait until the transport's buffer has room. Raises Disconnected; Timeout if the client takes no byte
        within write_timeout, or is slower than min_rate.
        """
        min_rate = MinRate(self)
        left_bytes = self.transport.get_write_buffer_size()
        while self.output_full:
            try:
                await self.wait(Want.ROOM, self.timeouts.write_timeout)
            except Timeout:
                before, left_bytes = left_bytes, self.transport.get_write_buffer_size()
                if left_bytes >= before:
                    raise
                min_rate.count(before - left_bytes)
                min_rate.check()

    async def send_file(self, file: int, offset: int, count: int, head: bytes = b"") -> None:
        """Send with sendfile(2). While the socket is full, the loop watches a duplicate of its descriptor."""
        if count <= COPIED_BYTES:
            await self.send_copy(file, offset, count, head)
            return
        self.unsent = count
        if head:
            await self.send(head)
        await self.drain()
        if self.lost or self.transport.is_closing():  # its descriptor may belong to another file soon
            raise Disconnected
        min_rate = MinRate(self)
        target = self.transport.get_extra_info("socket").fileno()
        watched = -1
        try:
            while count:
                try:
                    sent = send_region(target, file, offset, min(count, SENDFILE_BYTES))
                except BlockingIOError:
                    sent = 0
                except OSError:
                    raise Disconnected from None
                offset += sent
                count -= sent
                min_rate.count(sent)
                if count:
                    min_rate.check()
                if count and watched < 0:  # once: the duplicate serves all further waits
                    try:
                        target = watched = os.dup(target)  # during a wait, the loop may close its own
                    except OSError:
                        break  # the process has no descriptor left
                if count:
                    await self.wait_for_socket_room(target)
        finally:
            self.unsent = count
            if watched >= 0:
                os.close(watched)
        if count:
            await self.send_copy(file, offset, count)
        await self.share(sent)

    async def drain(self) -> None:
        """Wait until the transport's buffer is empty, so that sendfile(2) sends its bytes after those."""
        if size := self.transport.get_write_buffer_size():
            # With a limit of 0 the loop calls resume_writing() only when the buffer is empty.
            self.transport.set_write_buffer_limits(high=0)
            try:
                if self.transport.get_write_buffer_size():
                    self.output_full = True
                    await self.wait(Want.ROOM, self.timeouts.write_timeout)
            except Timeout:  # the client may have read a part
                if self.transport.get_write_buffer_size() >= size:
                    raise
                await self.wait_for_buffer_room()
            finally:
                self.transport.set_write_buffer_limits(high=self.HIGH_WATER_BYTES)

    async def wait_for_socket_room(self, target: int) -> None:
        """Wait until the socket's buffer has room. target: its descriptor, or a duplicate. Raises Timeout,
        Disconnected.
        """
        self.loop.add_writer(target, self.resume_if_waiting_for, Want.ROOM)
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
        """Have an executor thread call function(*arguments); pause, then return its result.

        An executor thread also calls `abandoned`. Arguments and exceptions: Stream.call().
        """
        call = ExecutorCall(function, arguments, self.call_ended, abandoned)
        self.model.executor.put(call)
        try:
            await self.wait(Want.CALL, seconds)
        except BaseException:
            call.dropped = True
            raise
        value: T = call.result()
        return value

    def call_ended(self) -> None:
        """Resume the conversation, which waits for a call that has ended."""
        self.resume_if_waiting_for(Want.CALL)

    def resume_if_waiting_for(self, want: Want) -> None:
        """Resume the conversation if it waits for this event."""
        if self.want is want:
            self.step()

    async def linger(self) -> None:
        """Close our sending side, then read and drop bytes until the client closes its side, LINGER_S at most."""
        if self.lost:
            return
        try:
            self.transport.write_eof()
        except (OSError, RuntimeError):  # RuntimeError: uvloop has closed the transport
            return
        await self.drop_input()

    def has_unread_bytes(self) -> bool:
        sock = self.transport.get_extra_info("socket")
        return not self.lost and bool(self.input_buffer or unread_bytes(sock.fileno()))

    def has_unsent_bytes(self) -> bool:
        return self.transport.get_write_buffer_size() > 0 or has_unsent_bytes(
            self.transport.get_extra_info("socket").fileno()
        )

    def bound_to(self) -> str:
        name = self.transport.get_extra_info("sockname")
        return str(name[0]) if name else self.server[0]

    def poller(self) -> Poller:
        """Return an EventPoller: the conversation pauses, and the loop watches the descriptors."""
        return EventPoller(self)

    def event_stream(self) -> EventStream:
        return self

    async def either(self, descriptor: int, seconds: float) -> bool:
        """Pause until the client has sent bytes or closed its side, or until an upstream's socket can be read.

        descriptor: of that socket. Return True for the client. If both are ready, the client comes first. Raises
        Timeout after `seconds`, Disconnected.
        """
        if not self.input_buffer and not self.client_ended:
            # The pause ends for either of the two. data_received() fills input_buffer meanwhile.
            await EventPoller(self).either(descriptor, seconds)
        return bool(self.input_buffer) or self.client_ended

    def has_client(self) -> bool:
        return not (self.lost or self.client_ended or self.transport.is_closing())

    def wake_event(self) -> WakeEvent:
        return LoopWakeEvent(self)

    def finish(self) -> None:
        """Make the exchange in progress the last, and have the loop call end_idle(). Any thread may call this."""
        self.finishing = self.stopping = True
        self.call_soon(self.end_idle)

    def end_idle(self) -> None:
        """End the wait between two requests, unless bytes of a request have arrived.

        A client that has just connected gets FIRST_REQUEST_S for its first request.
        """
        if not self.idle:
            return
        if not self.requests:
            self.expires = min(self.expires, time.monotonic() + FIRST_REQUEST_S + DEADLINE_CHECK_S)
        elif unread_bytes(self.transport.get_extra_info("socket").fileno()):
            self.loop.call_later(READ_ALL_S, self.end_idle)
        else:
            self.resume_if_waiting_for(Want.BYTES)

    def abort(self) -> None:
        """Kill the programs, and have the loop drop the connection now. Any thread may call this."""
        self.aborted = self.finishing = self.stopping = self.lost = True
        self.kill_programs()
        self.call_soon(self.transport.abort)

    def reset_at_close(self) -> None:
        reset_at_close(self.transport.get_extra_info("socket"))

    def call_soon(self, function: Callable[[], None]) -> None:
        """Have the loop call a function. Any thread may call this."""
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            pass  # the loop is closed, and the connection with it

    def close(self) -> None:
        """Kill and reap the programs that are left. The transport closes the connection once its buffer is sent."""
        self.reap_programs()
        if not self.lost:
            self.transport.close()


class Clock:
    """The time.monotonic() of the loop's last tick. An attribute is cheaper to read than the system's clock."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = time.monotonic()


DEADLINE_CHECK_S = 0.25  # seconds between two checks of the deadlines of all connections of an event loop


class _Pause:
    """`await PAUSE` returns control to step(), and from there to the event loop."""

    __slots__ = ()

    def __await__(self) -> Any:
        """Return an iterator that pauses the coroutine once."""
        # It pauses once, as a generator would, with a third of its memory: each idle connection holds one.
        return iter((None,))


PAUSE: Awaitable[None] = _Pause()


def unread_bytes(descriptor: int) -> int:
    """Return how many unread bytes have arrived on a socket; 0 if it is closed."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0])
    except OSError:
        return 0
