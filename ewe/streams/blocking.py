"""The blocking stream: each call waits in the kernel, so the conversation never pauses.

Models that give each connection a process or a thread (serial, fork, prefork, thread) may simply wait. receive() is
recv(2); while the client is silent the process or thread sleeps, and the kernel runs others. A coroutine whose
awaits never pause runs to its end as a plain function does, and run() is all that it needs:

    run(conversation)
      └─ conversation.send(None)
           ├─ stream.receive() ─▶ recv(2)       sleeps in the kernel
           ├─ stream.send()    ─▶ send(2)
           ├─ ...
           └─ StopIteration: the conversation has ended

Deadlines need no timer. The socket carries the kernel's own time limits, SO_RCVTIMEO (SLICE) and SO_SNDTIMEO
(write_timeout), inherited from the listening socket: the common case costs one system call. A recv() that finds
nothing in SLICE seconds returns; then receive() looks at its deadline, and next_request() at a stop.

What can go wrong: finish() comes from another thread, or from a signal handler, just between the look at
`finishing` and recv(). shutdown(SHUT_RD) wakes a recv() that already waits, and SLICE bounds one that starts later.

Read next: streams/pool.py, which waits only where that costs no thread.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Coroutine
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeVar

from ewe.streams.base import (
    RECEIVE,
    SENDFILE,
    Disconnected,
    MinRate,
    Poller,
    Stream,
    Timeout,
    Timeouts,
    reset_at_close,
)
from ewe.streams.descriptors import Waker, send_region
from ewe.streams.poller import BlockingPoller

if TYPE_CHECKING:
    from ewe.streams.bells import Bell

T = TypeVar("T")

SLICE = 1.0  # seconds after which a blocking recv() returns, so that deadlines and stops are seen
CORK = getattr(socket, "MSG_MORE", 0)  # "more follows": head and first bytes of the file leave in one packet


def run(conversation: Coroutine[Any, None, T]) -> T:
    """Run a conversation over blocking streams to its end, and return what it returns.

    It never pauses, so one send() is enough. Raises RuntimeError if it pauses, and what the conversation raises.
    """
    try:
        conversation.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    conversation.close()
    raise RuntimeError("a blocking stream paused")


class BlockingStream(Stream):
    """A stream over a blocking socket that has time limits (set_timeouts)."""

    def __init__(
        self, sock: socket.socket, client: tuple[str, int], server: tuple[str, int], timeouts: Timeouts
    ) -> None:
        super().__init__(client, server, timeouts)
        self.socket = sock
        self.expires = 0.0

    async def next_request(self, seconds: float) -> bytes:
        waited = 0.0
        # Set before the look at finishing, since finish() sets finishing before it looks at idle.
        self.idle = True
        try:
            while not self.finishing:
                try:
                    return self.socket.recv(RECEIVE)
                except BlockingIOError:
                    waited += SLICE
                    if waited >= seconds:
                        break
                    continue
                except OSError:
                    raise Disconnected from None
            return self.arrived_before_stop()
        finally:
            self.idle = False

    def arrived_before_stop(self) -> bytes:
        """Return the bytes that have arrived already: a request that came before a stop is still answered."""
        try:
            return self.socket.recv(RECEIVE, socket.MSG_DONTWAIT)
        except OSError:
            return b""

    def set_deadline(self, seconds: float) -> None:
        self.expires = time.monotonic() + seconds

    async def receive(self, limit: int = RECEIVE) -> bytes:
        while True:
            left = self.expires - time.monotonic()
            if left <= 0:
                raise Timeout
            try:
                if left < SLICE:
                    set_timeouts(self.socket, max(left, 0.001), None)
                return self.checked(self.socket.recv(limit))
            except BlockingIOError:
                continue
            except OSError:
                raise Disconnected from None
            finally:
                if left < SLICE:
                    self.restore_slice()

    def checked(self, data: bytes) -> bytes:
        """Return what recv() returned. Raises Disconnected if abort(), not the client, has made its end."""
        if not data and self.aborted:
            raise Disconnected
        return data

    def restore_slice(self) -> None:
        """Restore the usual SLICE after a shorter wait."""
        try:
            set_timeouts(self.socket, SLICE, None)
        except OSError:
            pass  # the connection is gone; the next call raises Disconnected

    async def send(self, *parts: bytes) -> None:
        data = b"".join(parts) if len(parts) > 1 else parts[0]
        try:
            sent = self.socket.send(data)
            if sent < len(data):
                self.send_rest(memoryview(data)[sent:])
        except BlockingIOError:
            raise Timeout from None
        except OSError:
            raise Disconnected from None

    def send_rest(self, data: memoryview) -> None:
        """Send what the kernel's time limit left unsent, at min_rate at least. Raises Timeout, OSError."""
        pace = MinRate(self.timeouts)
        while data:
            sent = self.socket.send(data)
            data = data[sent:]
            pace.check(sent)

    async def send_file(self, file: int, offset: int, count: int, head: bytes = b"") -> None:
        self.unsent = count
        try:
            if head:
                self.socket.sendall(head, CORK if count else 0)
            target = self.socket.fileno()
            pace = MinRate(self.timeouts)
            while count:
                sent = send_region(target, file, offset, min(count, SENDFILE))
                if sent == 0:
                    raise Disconnected("the file has become shorter")
                offset += sent
                count -= sent
                pace.check(sent)
        except BlockingIOError:
            raise Timeout from None
        except OSError:
            raise Disconnected from None
        finally:
            self.unsent = count

    async def linger(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            return
        await self.read_off()

    def bound_to(self) -> str:
        return str(self.socket.getsockname()[0])

    def poller(self) -> Poller:
        return BlockingPoller(self.socket)

    async def either(self, descriptor: int, seconds: float) -> bool:
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

    def bell(self) -> Bell:
        return BlockingBell(self.poller())

    def finish(self) -> None:
        self.finishing = self.stopping = True
        if self.idle:
            self.shutdown(socket.SHUT_RD)  # wakes recv() in any thread; bytes that arrived can still be read

    def abort(self) -> None:
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
        self.reap_programs()
        self.socket.close()


class BlockingBell:
    """Wait with poll(2) for a Waker, and for the client's end. Raises OSError if no descriptor is left."""

    def __init__(self, poller: Poller) -> None:
        self.poller = poller
        self.waker = Waker()

    def ring(self) -> None:
        self.waker.wake()

    async def heard(self, seconds: float) -> bool:
        return bool(await self.poller.wait([self.waker.reader], time.monotonic(), seconds))

    def close(self) -> None:
        self.waker.close()


def set_timeouts(sock: socket.socket, receive: float | None, send: float | None) -> None:
    """Set the kernel's time limits of a blocking socket, in seconds; None leaves one as it is.

    TCP sockets inherit them from the listening socket that they are accepted from; Unix sockets do not.
    """
    for option, seconds in ((socket.SO_RCVTIMEO, receive), (socket.SO_SNDTIMEO, send)):
        if seconds is not None:
            whole = int(seconds)
            sock.setsockopt(socket.SOL_SOCKET, option, TIMEVAL.pack(whole, int((seconds - whole) * 1e6)))


TIMEVAL = Struct("@ll")  # struct timeval
