"""Streams: the same calls on a blocking socket, a pool's parked socket and an event loop's transport.

A conversation awaits a stream; what that means is the stream's business. A BlockingStream (here) never
pauses, so run() takes a conversation over it to its end with one send(). A PoolStream (ewe.poolstream)
pauses where its worker would wait for the client: it yields a Wait, and whoever runs it goes on with
something else. An EventStream (ewe.eventstream) pauses too and is its own protocol: the event loop's
callbacks resume the conversation directly.

What every stream promises (tests/test_streams.py checks all three):

- receive() returns at least one byte, or b"" once the peer has ended; after b"" always b"".
- send() returns when all is written or handed to a buffer that is not full: back-pressure.
- Each wait has a deadline: allow(seconds) before the waits of receive(), config.write_timeout for each
  wait of send(). Past it Timeout is raised. A connection that is gone raises Disconnected.
- finish() lets the exchange in progress end and an idle connection at once; abort() ends all now, the
  programs too. Both may be called from another thread or a signal handler. close() twice is fine.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from enum import Enum
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from ewe.programs import Program, ProgramWaits

T = TypeVar("T")

RECEIVE = 64 * 1024  # bytes asked of the kernel at once
SLICE = 1.0  # seconds: blocking calls on sockets return that often, to look at deadlines and at a stop
SENDFILE = 512 * 1024  # bytes to the kernel at once, so that one fast client does not hold a loop or a worker
LINGER = 2.0  # seconds to read on after our side is closed: RFC 9112 section 9.6
LINGER_BYTES = 1024 * 1024  # and at most so much of what nobody wants
CORK = getattr(socket, "MSG_MORE", 0)  # "more follows": the head leaves in one packet with the file's start


class Timeout(Exception):
    """A wait took longer than its deadline."""


class Disconnected(Exception):
    """The peer is gone, or the connection was ended by abort()."""


class Want(Enum):
    """What a paused conversation waits for."""

    BYTES = "the client to send, or to finish sending"
    ROOM = "the client to read"
    PROGRAM = "a program to write or to end"


class Timeouts(Protocol):
    """The waits a stream bounds by itself, in seconds. Config has them."""

    write_timeout: float
    head_timeout: float
    min_rate: int  # bytes a second, 0: none


class Pace:
    """Bounds how long one thing takes to send: write_timeout, and from then on at least min_rate on the whole.

    A client that reads a byte now and then makes every single wait succeed, and holds us all the same.
    """

    __slots__ = ("began", "sent", "timeouts")

    def __init__(self, timeouts: Timeouts) -> None:
        self.timeouts = timeouts
        self.began = time.monotonic()
        self.sent = 0

    def check(self, sent: int) -> None:
        """Take note of bytes sent. Raises Timeout when it goes too slowly."""
        self.sent += sent
        if self.timeouts.min_rate:
            allowed = self.timeouts.write_timeout + self.sent / self.timeouts.min_rate
            if time.monotonic() - self.began > allowed:
                raise Timeout


class Wait:
    """Pauses the conversation: `await Wait(...)` hands itself to whoever runs it.

    expires: on time.monotonic(); the runner throws Timeout into the conversation after that.
    """

    __slots__ = ("expires", "want")

    def __init__(self, want: Want, expires: float) -> None:
        self.want = want
        self.expires = expires

    def __await__(self) -> Generator[Wait, None, None]:
        yield self


def run(conversation: Coroutine[Any, None, T]) -> T:
    """Run a conversation whose streams block: it never pauses, so one send() takes it to its end."""
    try:
        conversation.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    conversation.close()
    raise RuntimeError("a blocking stream paused")


class Stream:
    """What the conversation and the features know of a client's connection: both stream and io.

    client: (address, port). server: (address, port) on which it was accepted. scheme: "http".
    requests: answered so far. stopping: the exchange in progress, or the next, is the last. finishing: there
    is no next one.
    """

    scheme = "http"

    def __init__(self, client: tuple[str, int], server: tuple[str, int], timeouts: Timeouts) -> None:
        self.client = client
        self.server = server
        self.timeouts = timeouts
        self.requests = 0
        self.stopping = self.finishing = False
        self.idle = False
        self.aborted = False
        self.programs: set[Program] = set()

    async def next_request(self, idle: float) -> bytes:
        """Wait between requests, at most idle seconds; return the next bytes, b"" when there are no more."""
        raise NotImplementedError

    def allow(self, seconds: float) -> None:
        """Set the deadline of all receive() calls from now on, until the next allow()."""
        raise NotImplementedError

    async def receive(self, limit: int = RECEIVE) -> bytes:
        """Return the next bytes, b"" at the end. Raises Timeout, Disconnected."""
        raise NotImplementedError

    async def send(self, *parts: bytes) -> None:
        """Write all parts, small ones in one system call. Raises Timeout, Disconnected."""
        raise NotImplementedError

    async def send_file(self, file: int, offset: int, count: int, head: bytes = b"") -> None:
        """Send head, then count bytes of an open file from the page cache.

        Raises Disconnected as well when the file has become shorter: no padding is ever sent.
        """
        raise NotImplementedError

    async def linger(self) -> None:
        """End our side, then read off for a moment what the client still sends.

        Without it the kernel would answer those bytes with a reset, and the client could lose a response
        that it has not read yet (RFC 9112 section 9.6).
        """
        raise NotImplementedError

    async def read_off(self) -> None:
        """Read for LINGER seconds, and at most LINGER_BYTES, what nobody wants."""
        self.allow(LINGER)
        wanted = LINGER_BYTES
        try:
            while wanted > 0 and (data := await self.receive()):
                wanted -= len(data)
        except (Timeout, Disconnected):
            pass

    async def spawn(
        self,
        command: Sequence[str | bytes],
        environment: Mapping[bytes, bytes],
        directory: str,
        stdin: int,
        name: str,
    ) -> Program:
        """Start a program; see ewe.programs. It is ended when this stream is aborted. Raises OSError."""
        from ewe.programs import start

        return start(self.programs, self.program_waits(), command, environment, directory, stdin, name)

    def program_waits(self) -> ProgramWaits:
        """Return how this model waits for a program."""
        raise NotImplementedError

    def finish(self) -> None:
        """Let the exchange in progress be the last; end an idle connection now."""
        raise NotImplementedError

    def abort(self) -> None:
        """End the connection and its programs now; the conversation meets Disconnected."""
        raise NotImplementedError

    def break_off(self) -> None:
        """Make the close a reset: an answer that only the close delimits must not look whole when it is not."""
        raise NotImplementedError

    def kill_programs(self) -> None:
        """Kill what was started for this connection; the conversation sees its end, and reaps it."""
        for program in list(self.programs):
            program.signal(9)

    def reap_programs(self) -> None:
        """Kill and reap what the conversation left behind."""
        for program in list(self.programs):
            program.kill()

    def close(self) -> None:
        """Close the connection."""
        raise NotImplementedError


class BlockingStream(Stream):
    """A stream over a blocking socket: the serial, fork, prefork and thread models.

    The socket carries the kernel's own time limits (SO_RCVTIMEO, SO_SNDTIMEO: set_timeouts()), inherited
    from the listener, so that the common case costs one system call and no timer.
    """

    def __init__(
        self, sock: socket.socket, client: tuple[str, int], server: tuple[str, int], timeouts: Timeouts
    ) -> None:
        super().__init__(client, server, timeouts)
        self.socket = sock
        self.expires = 0.0

    async def next_request(self, idle: float) -> bytes:
        waited = 0.0
        self.idle = True  # before the look at finishing: finish() sets finishing before it looks at idle
        try:
            while not self.finishing:
                try:
                    return self.socket.recv(RECEIVE)
                except BlockingIOError:
                    waited += SLICE
                    if waited >= idle:
                        break
                    continue
                except OSError:
                    raise Disconnected from None
            return self.what_came()
        finally:
            self.idle = False

    def what_came(self) -> bytes:
        """Return what arrived just before a stop: it is answered still."""
        try:
            return self.socket.recv(RECEIVE, socket.MSG_DONTWAIT)
        except OSError:
            return b""

    def allow(self, seconds: float) -> None:
        self.expires = time.monotonic() + seconds

    async def receive(self, limit: int = RECEIVE) -> bytes:
        while True:
            left = self.expires - time.monotonic()
            if left <= 0:
                raise Timeout
            try:
                if left < SLICE:
                    set_timeouts(self.socket, max(left, 0.001), None)
                return self.socket.recv(limit)
            except BlockingIOError:
                continue
            except OSError:
                raise Disconnected from None
            finally:
                if left < SLICE:
                    self.restore_slice()

    def restore_slice(self) -> None:
        """Back to the usual slice after a shorter wait."""
        try:
            set_timeouts(self.socket, SLICE, None)
        except OSError:
            pass  # closed meanwhile: abort()

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
        """Send what a time limit of the kernel left over, if the client reads at all. Raises Timeout, OSError."""
        pace = Pace(self.timeouts)
        while data:
            sent = self.socket.send(data)
            data = data[sent:]
            pace.check(sent)

    async def send_file(self, file: int, offset: int, count: int, head: bytes = b"") -> None:
        try:
            if head:
                self.socket.sendall(head, CORK if count else 0)
            target = self.socket.fileno()
            pace = Pace(self.timeouts)
            while count:
                sent = os.sendfile(target, file, offset, min(count, SENDFILE))
                if sent == 0:
                    raise Disconnected("the file has become shorter")
                offset += sent
                count -= sent
                pace.check(sent)
        except BlockingIOError:
            raise Timeout from None
        except OSError:
            raise Disconnected from None

    async def linger(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            return
        await self.read_off()

    def program_waits(self) -> ProgramWaits:
        return PollWaits(self.socket)

    def finish(self) -> None:
        self.finishing = self.stopping = True
        if self.idle:
            self.shutdown(socket.SHUT_RD)  # wakes a recv() in whatever thread; what came is still read

    def abort(self) -> None:
        self.aborted = self.finishing = self.stopping = True
        self.shutdown(socket.SHUT_RDWR)
        self.kill_programs()

    def break_off(self) -> None:
        reset_at_close(self.socket)

    def shutdown(self, how: int) -> None:
        """Shut the socket down, if it is still there."""
        try:
            self.socket.shutdown(how)
        except OSError:
            pass

    def close(self) -> None:
        self.reap_programs()
        self.socket.close()


def reset_at_close(sock: socket.socket) -> None:
    """Have the kernel answer with a reset once the socket is closed (SO_LINGER with no time to linger)."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ON_FOR_NOTHING)
    except OSError:
        pass  # gone already


def set_timeouts(sock: socket.socket, receive: float | None, send: float | None) -> None:
    """Give a blocking socket the kernel's time limits, in seconds; accepted TCP sockets inherit them."""
    for option, seconds in ((socket.SO_RCVTIMEO, receive), (socket.SO_SNDTIMEO, send)):
        if seconds is not None:
            whole = int(seconds)
            sock.setsockopt(socket.SOL_SOCKET, option, TIMEVAL.pack(whole, int((seconds - whole) * 1e6)))


TIMEVAL = Struct("@ll")  # struct timeval
ON_FOR_NOTHING = Struct("@ii").pack(1, 0)  # struct linger


class PollWaits:
    """Wait for a program with poll(2), and notice meanwhile that the client left."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.left_at: float | None = None  # when the client was first seen to have closed its side

    async def wait(
        self,
        descriptors: Sequence[int],
        since: float,
        seconds: float,
        writable: int = -1,
        stays: bool = False,
    ) -> list[int]:
        from select import POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP, poll

        poller = poll()
        if writable >= 0:
            poller.register(writable, POLLOUT)
        for descriptor in descriptors:
            poller.register(descriptor, POLLIN | POLLOUT if descriptor == writable else POLLIN)
        client = self.client.fileno()
        if client < 0:
            raise Disconnected
        poller.register(client, POLLRDHUP if self.left_at is None else 0)
        now = time.monotonic()
        expires = now + seconds
        while True:
            gone_at = None if self.left_at is None else max(self.left_at, since) + HALF_CLOSED
            until = expires if gone_at is None else min(expires, gone_at)
            events = dict(poller.poll(max(until - now, 0) * 1000))
            about_client = events.pop(client, 0)
            now = time.monotonic()
            if about_client & (POLLHUP | POLLERR) or (gone_at is not None and now >= gone_at):
                raise Disconnected
            if events:
                return list(events)
            if about_client:  # it has closed its side: it may have left, or wait for the answer all the same
                self.left_at = now
                poller.modify(client, 0)
            elif now >= expires:
                return []

    def forget(self, descriptor: int) -> None:
        """Nothing stays here between two waits."""

    def after(self, seconds: float, exited: int, function: Callable[[], None]) -> None:
        """Wait here, then call function."""
        from select import POLLIN, poll

        poller = poll()
        poller.register(exited, POLLIN)
        poller.poll(seconds * 1000)
        function()


HALF_CLOSED = 2.0  # seconds a program may stay silent once the client has closed its sending side
