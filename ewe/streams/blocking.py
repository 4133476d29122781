"""The blocking stream: each call waits in the kernel, so the conversation never pauses.

In models that give each connection a process or a thread (serial, fork, prefork, thread), a call may simply wait.
receive() is recv(2): while the client is silent, the process or thread sleeps, and the kernel runs others. A
coroutine that never pauses runs to its end like a plain function, and run() only has to start it:

    run(conversation)
      └─ conversation.send(None)
           ├─ stream.receive() ─▶ recv(2)       sleeps in the kernel
           ├─ stream.send()    ─▶ send(2)
           ├─ ...
           └─ StopIteration: the conversation has ended

Deadlines need no timer. The socket has the kernel's own time limits, SO_RCVTIMEO (RECEIVE_TIMEOUT_S) and
SO_SNDTIMEO (write_timeout), which it inherits from the listening socket. The common case therefore costs one system
call. A recv() that gets no bytes in RECEIVE_TIMEOUT_S returns. receive() then checks its deadline, and
next_request() checks whether the server stops.

Possible failures: another thread, or a signal handler, calls finish() between the check of `finishing` and recv().
shutdown(SHUT_RD) wakes a recv() that already waits, and RECEIVE_TIMEOUT_S bounds a recv() that starts later.

Read next: streams/pool.py, which pauses where a wait would occupy a worker.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Coroutine
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeVar

from ewe.streams.base import (
    RECEIVE_BYTES,
    SENDFILE_BYTES,
    Disconnected,
    ForeignAwait,
    MinRate,
    Poller,
    Stream,
    Timeout,
    Timeouts,
    reset_at_close,
)
from ewe.streams.descriptor_set import OPEN, UNREAD, polled_state
from ewe.streams.descriptors import Waker, has_unsent_bytes, send_region
from ewe.streams.poller import BlockingPoller
from ewe.timeouts import counted_if_empty

if TYPE_CHECKING:
    from ewe.streams.wake_events import WakeEvent

T = TypeVar("T")

# Seconds after which a blocking recv() returns, so that ewe can check deadlines and stops
RECEIVE_TIMEOUT_S = 1.0
CORK = getattr(socket, "MSG_MORE", 0)  # "more follows": the head and the file's first bytes share a packet


def run(conversation: Coroutine[Any, None, T]) -> T:
    """Run a conversation over blocking streams to its end, and return its result.

    The streams never pause, so one send() is enough. A feature may pause the conversation by mistake: it then gets
    a RuntimeError where it has paused. Raises the conversation's exceptions.
    """
    try:
        conversation.send(None)
        while True:
            conversation.throw(ForeignAwait)
    except StopIteration as finished:
        result: T = finished.value
        return result


class BlockingStream(Stream):
    """A stream over a blocking socket that has time limits (set_timeouts). Stream describes the methods."""

    tick_s = RECEIVE_TIMEOUT_S  # the receive time limit of its socket

    def __init__(
        self, sock: socket.socket, client: tuple[str, int], server: tuple[str, int], timeouts: Timeouts
    ) -> None:
        super().__init__(client, server, timeouts)
        self.socket = sock
        self.expires = 0.0

    async def next_request(self, seconds: float) -> bytes:
        """Wait in recv(2); return the first bytes of the next request. Return b"" if none come within `seconds`, at
        a stop, or if ends_for_waiting_client(). Raises Disconnected.
        """
        waited_s = 0.0
        # Set before `finishing` is read, since finish() sets `finishing` before it reads `idle`.
        self.idle = True
        try:
            while not self.finishing:
                try:
                    return self.socket.recv(RECEIVE_BYTES)
                except BlockingIOError:  # no bytes within tick_s
                    if (waited_s := waited_s + self.tick_s) >= seconds:
                        return counted_if_empty(self, self.arrived_bytes())
                    if self.ends_for_waiting_client():
                        break
                except OSError:
                    raise Disconnected from None
            return self.arrived_bytes()
        finally:
            self.idle = False

    def ends_for_waiting_client(self) -> bool:
        """Return whether an idle connection ends now, because another client waits for its worker."""
        return False

    def arrived_bytes(self) -> bytes:
        """Return the bytes that have arrived, b"" if none have: a request that came before a stop is answered."""
        try:
            return self.socket.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
        except OSError:
            return b""

    def set_deadline(self, seconds: float) -> None:
        self.expires = time.monotonic() + seconds

    async def receive(self, limit: int = RECEIVE_BYTES) -> bytes:
        """Wait in recv(2); return at most `limit` bytes, b"" at the end. Raises Timeout at the deadline,
        Disconnected.
        """
        while True:
            left_s = self.expires - time.monotonic()
            if left_s <= 0:
                raise Timeout
            try:
                if left_s < self.tick_s:
                    set_timeouts(self.socket, max(left_s, 0.001))  # to the kernel, 0 means no limit
                return self.raise_if_aborted(self.socket.recv(limit))
            except BlockingIOError:
                continue
            except OSError:
                raise Disconnected from None
            finally:
                if left_s < self.tick_s:
                    self.restore_receive_timeout()

    def raise_if_aborted(self, data: bytes) -> bytes:
        """Return the bytes that recv() returned. Raises Disconnected if abort() ended it, not the client."""
        if not data and self.aborted:
            raise Disconnected
        return data

    def restore_receive_timeout(self) -> None:
        """Restore the usual time limit after a shorter wait."""
        try:
            set_timeouts(self.socket, self.tick_s)
        except OSError:
            pass  # the connection is gone; the next call raises Disconnected

    async def send(self, *parts: bytes) -> None:
        """Write all parts, and wait for room in the socket's buffer. Raises Timeout, Disconnected."""
        data = b"".join(parts) if len(parts) > 1 else parts[0]
        try:
            sent = self.socket.send(data)
            if sent < len(data):
                self.send_rest(memoryview(data)[sent:])
        except BlockingIOError:  # the kernel's time limit has passed
            raise Timeout from None
        except OSError:
            raise Disconnected from None

    def send_rest(self, data: memoryview) -> None:
        """Send the bytes that the first send() did not. Raises Timeout if min_rate is not reached, and OSError."""
        min_rate = MinRate(self)
        while data:
            min_rate.check()
            sent = self.socket.send(data)
            data = data[sent:]
            min_rate.count(sent)

    async def send_file(self, file: int, offset: int, count: int, head: bytes = b"") -> None:
        """Send `head`, then a part of a file with sendfile(2). Raises Timeout; Disconnected, also if the file
        became shorter.
        """
        self.unsent = count
        try:
            if head:
                self.socket.sendall(head, CORK if count else 0)
            target = self.socket.fileno()
            min_rate = MinRate(self)
            while count:
                min_rate.check()
                sent = send_region(target, file, offset, min(count, SENDFILE_BYTES))
                offset += sent
                count -= sent
                min_rate.count(sent)
        except BlockingIOError:
            raise Timeout from None
        except OSError:
            raise Disconnected from None
        finally:
            self.unsent = count

    async def linger(self) -> None:
        """Close our sending side, then read and drop bytes until the client closes its side, LINGER_S at most."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            return
        await self.drop_input()

    def has_unread_bytes(self) -> bool:
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:  # none has arrived, or the connection is gone
            return False

    def has_unsent_bytes(self) -> bool:
        return has_unsent_bytes(self.socket.fileno())

    def bound_to(self) -> str:
        return str(self.socket.getsockname()[0])

    def poller(self) -> Poller:
        """Return a BlockingPoller: it waits in this thread."""
        return BlockingPoller(self.socket)

    async def either(self, descriptor: int, seconds: float) -> bool:
        """Wait in poll(2); return whether the client's socket is ready. Raises Timeout after `seconds`;
        Disconnected if the socket is closed.
        """
        from select import POLLIN, poll

        watched = poll()
        client = self.socket.fileno()
        if client < 0:
            raise Disconnected
        watched.register(client, POLLIN)
        watched.register(descriptor, POLLIN)
        ready = watched.poll(seconds * 1000)
        if not ready:
            raise Timeout
        return any(number == client for number, _ in ready)

    def has_client(self) -> bool:
        client = self.socket.fileno()
        return not self.aborted and client >= 0 and polled_state(client, ended=False) in (OPEN, UNREAD)

    def wake_event(self) -> WakeEvent:
        """Return a new BlockingWakeEvent. Raises OSError if no descriptor is left."""
        return BlockingWakeEvent(self.poller())

    def finish(self) -> None:
        """Make the exchange in progress the last. If the connection is idle, end the wait in recv(2)."""
        self.finishing = self.stopping = True
        if self.idle:
            self.shutdown(socket.SHUT_RD)  # wakes recv() in any thread; bytes that arrived can still be read

    def abort(self) -> None:
        """End both directions of the connection, which ends a wait in recv(2) or send(2), and kill its programs."""
        self.aborted = self.finishing = self.stopping = True
        self.shutdown(socket.SHUT_RDWR)
        self.kill_programs()

    def reset_at_close(self) -> None:
        reset_at_close(self.socket)

    def shutdown(self, how: int) -> None:
        """Shut the socket down, if it is still open."""
        try:
            self.socket.shutdown(how)
        except OSError:
            pass

    def close(self) -> None:
        """Kill and reap the programs that are left, then close the socket."""
        self.reap_programs()
        self.socket.close()


class BlockingWakeEvent:
    """A WakeEvent that waits with poll(2) for a Waker, and for the client to leave.

    Raises OSError if no descriptor is left.
    """

    def __init__(self, poller: Poller) -> None:
        self.poller = poller
        self.waker = Waker()

    def set(self) -> None:
        """Wake the thread that waits. Any thread may call this."""
        self.waker.wake()

    async def wait(self, seconds: float) -> bool:
        """Wait in this thread until set() is called; return False after `seconds`. Raises Disconnected."""
        return bool(await self.poller.wait([self.waker.reader], time.monotonic(), seconds))

    def close(self) -> None:
        """Close the Waker's descriptors."""
        self.waker.close()


def set_timeouts(sock: socket.socket, receive_s: float | None = None, send_s: float | None = None) -> None:
    """Set the kernel's time limits of a blocking socket; None leaves a limit unchanged.

    An accepted TCP socket inherits the limits of its listening socket; an accepted Unix socket does not.
    """
    for option, seconds in ((socket.SO_RCVTIMEO, receive_s), (socket.SO_SNDTIMEO, send_s)):
        if seconds is not None:
            whole = int(seconds)
            sock.setsockopt(socket.SOL_SOCKET, option, TIMEVAL.pack(whole, int((seconds - whole) * 1e6)))


TIMEVAL = Struct("@ll")  # struct timeval
