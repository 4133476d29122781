"""The contract of a stream: the calls that a conversation awaits, and the promises of every kind of stream.

The HTTP conversation is written once, as a coroutine that awaits a stream. "await" means "may pause". The kinds of
stream differ in two points: whether a call pauses, and which code resumes the conversation:

    conversation ── await stream.receive() ──┬── BlockingStream  recv(2) waits in the kernel; never pauses
                                             │     run() takes the conversation to its end with one send(None)
                                             ├── PoolStream      pauses: yields Wait(want, expires) to its worker;
                                             │     an epoll watches the socket, any worker resumes it
                                             ├── EventStream     pauses: the event loop's callbacks resume it
                                             └── SecureStream    TLS over one of the others; pauses when they do

The calls are the same for all of them:

    next_request()   wait between two requests; meanwhile a model may lend the thread to another connection
    set_deadline()   set when the receive() calls that follow raise Timeout
    receive()        the next bytes
    send(), send_file()
    share()          count work that was done without a wait; after much work let other conversations run
    poller()         wait for something else than the client: a program, an upstream (streams/poller.py)
    event_stream()   the model's own stream, if an event loop runs the conversation (streams/loops.py)
    either()         wait for the client and an upstream at once: for bytes that go both ways
    wake_event()     wait for another conversation (streams/wake_events.py)
    call()           call a function that may block: in this thread, or in one beside the loop (streams/calls.py)
    has_client()     is the client still there?
    linger(), close()   end the connection; linger() first lets the client read the response
    has_unread_bytes()  has the client sent more? Then close() without linger() may send a reset
    has_unsent_bytes()  has the client bytes to take? If not, it is not the client that is slow
    reset_at_close()    make close() a reset, which shows the client that a response was aborted
    finish(), abort()                 a stop, from another thread or from a signal handler

What every stream promises (tests/streams/test_streams.py checks each promise over each kind):

- receive() returns at least one byte. When the peer has closed its sending side it returns b"", now and later.
- send() returns when all bytes are written, or are in a buffer that still has room: back-pressure. A slow client
  slows the conversation down, and fills no memory.
- Every wait has a deadline. That of receive() is set by set_deadline(). Each wait of a send() may take
  write_timeout, and the send() as a whole must keep up with min_rate. A wait that takes longer raises Timeout.
- A client that takes its bytes at once is never too slow for min_rate, however many conversations are in the queue.
  If the whole process stands still during a send for longer than the bound, that time may count as the client's.
- Any call raises Disconnected if the connection is lost. Afterwards only close() and has_client() may be called.
- Where conversations share a thread (EventStream; PoolStream with parking = always), a conversation that never
  needs to wait pauses after TURN_BYTES.
- call() returns the function's result, and raises its exceptions. A function that takes longer than its
  deadline raises Timeout, and `abandoned` is called after it.
- finish() lets the exchange in progress end, and ends an idle connection now. abort() ends both now, and kills the
  connection's programs. close() may be called twice.

Possible failures, and where each is prevented:

- A client sends, or reads, one byte every few seconds. Each single wait succeeds, and the connection stays open for
  hours. The deadline of a head is therefore for the whole head. MinRate bounds the time of each send(), of a file,
  and of a body that comes in pieces (ewe.response_writer).
- A stop comes between the check of `finishing` and the system call that waits. Blocking calls return every
  RECEIVE_TIMEOUT_S (streams/blocking.py). In the other kinds, finish() and abort() can end the wait.
- The server closes the connection while bytes from the client are unread. The kernel then sends a reset, and the
  client may lose a response that it has not read yet. If bytes have come before the close, linger() reads for a
  moment first.

Read next: streams/blocking.py, the shortest kind; then conversation.py, which makes these calls.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Generator, Sequence
from enum import Enum
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from ewe.streams.wake_events import ParkedWakeEvent, WakeEvent

T = TypeVar("T")

RECEIVE_BYTES = 64 * 1024  # bytes requested from the kernel at once
# Bytes to the kernel at once: a fast client must not occupy an event loop or a worker
SENDFILE_BYTES = 512 * 1024
# A part of a file up to this length is read, and sent with its head: one packet, and not two as with sendfile(2)
COPIED_BYTES = 16 * 1024
LINGER_S = 2.0  # seconds for which linger() reads after it has closed our side: RFC 9112 section 9.6
LINGER_BYTES = 1024 * 1024  # the most bytes that linger() reads
# Bytes that one conversation may handle without a pause, where conversations share a thread.
TURN_BYTES = 256 * 1024
CALL_COST_BYTES = 4096  # bytes added for each call, since even a call that sends little costs time
NO_VARIABLES: dict[bytes, bytes] = {}
EVERY_ADDRESS = ("0.0.0.0", "::")  # a socket bound to one of these listens on all addresses of the machine


class Timeout(Exception):
    """A wait passed its deadline."""


class Disconnected(Exception):
    """The connection cannot be used any more: the peer left, abort() ended it, or a response was aborted."""


class ForeignAwait(RuntimeError):
    """A feature awaits an object that no model knows, such as a Future of asyncio: nothing would resume it."""


class Want(Enum):
    """The event that a paused conversation waits for."""

    __hash__ = object.__hash__  # Enum's own, a function in Python, would cost each pause of the pool a call
    BYTES = "the client to send, or to finish sending"
    ROOM = "the client to read"
    PROGRAM = "a program to write or to end"
    TURN = "the others to have had their turn"
    EITHER = "the client to send, or another server"
    WAKE_EVENT = "another conversation to wake this one"
    CALL = "a function that may block to return"


class Timeouts(Protocol):
    """The settings by which a stream bounds its waits (ewe.config.settings.Config has them)."""

    write_timeout: float  # seconds
    head_timeout: float  # seconds
    min_rate: int  # bytes per second; 0: no minimum


class MinRate:
    """Bounds the time in which a client takes a number of bytes: those of a send(), of a file, or of a body.

    The bound is write_timeout, plus one second for each min_rate bytes sent. If a client reads one byte every few
    seconds, every single wait succeeds. Only the sum of the waits shows how slow the client is.

    The time that the server needs is not the client's. Three rules keep them apart:

    - exclude() takes out the time in which a source makes the next piece; `queued_s` of the stream, the time in
      which the conversation was in a queue.
    - A client that has taken all bytes is not late, also after a long time: the thread has waited for the
      processor, or for the GIL. The measure then begins again. (Stream.has_unsent_bytes() knows it on Linux only.)
    - check() is called before more is sent. After the last byte, a response is complete and not late.
    """

    __slots__ = ("began", "sent", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.began = time.monotonic() - stream.queued_s
        self.sent = 0

    def count(self, sent: int) -> None:
        """Count `sent` bytes that were sent."""
        self.sent += sent

    def exclude(self, seconds: float) -> None:
        """Take out `seconds` in which the client was not waited for."""
        self.began += seconds

    def check(self) -> None:
        """Raise Timeout if the client is late. Call this before the next bytes are sent."""
        timeouts, stream = self.stream.timeouts, self.stream
        if timeouts.min_rate:
            now = time.monotonic() - stream.queued_s
            if now - self.began > timeouts.write_timeout + self.sent / timeouts.min_rate:
                if stream.has_unsent_bytes():
                    raise Timeout
                self.began, self.sent = now, 0


class Child(Protocol):
    """A program started for one connection (ewe.gateway.programs). It ends with the connection, or before."""

    def signal(self, signum: int) -> None:
        """Send a signal to the program and to the processes that it started. Any thread may call this."""

    def kill(self) -> None:
        """Kill and reap the program and the processes that it started."""


class Poller(Protocol):
    """Waits for descriptors other than the client's socket."""

    async def wait(
        self,
        descriptors: Sequence[int],
        since: float,
        seconds: float,
        writable: int = -1,
    ) -> list[int]:
        """Wait until a descriptor can be read, or `writable` (-1: none) can be written; return the ready ones.

        seconds: the longest wait; after it the list is empty. since: the time.monotonic() of the program's last
        output. Raises Disconnected when the client has left, or when it has closed its sending side and the program
        has been silent for HALF_CLOSED_S.
        """
        ...

    async def readable(self, descriptor: int, since: float, seconds: float) -> bool:
        """Wait until one descriptor can be read; return False after `seconds`. It may return True too early.

        The poller may go on watching the descriptor: the caller calls forget() before it closes the descriptor.
        since: the time.monotonic() of the other end's last output. Raises Disconnected as wait() does.
        """
        ...

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor that readable() has waited for; it is about to be closed."""
        ...

    async def share(self, size: int) -> None:
        """Note that `size` bytes were read or written without a wait; see Stream.share()."""
        ...

    def after(self, seconds: float, exit_descriptor: int, function: Callable[[], None]) -> None:
        """Call `function` when a program has exited, or after `seconds` at the latest.

        exit_descriptor: can be read once the program has exited (ewe.gateway.exits).
        """
        ...


class Wait:
    """Pauses a conversation: `await Wait(...)` yields the Wait to the model that runs the conversation.

    want: the event that lets the conversation go on. expires: the time.monotonic() at which the model throws
    Timeout into the conversation. event: the WakeEvent that resumes the conversation, if it waits for one. watched:
    for the model's use. ready_at: the time.monotonic() at which the client's room came, and the conversation went
    into the queue; 0.0: it did not go there.
    """

    __slots__ = ("event", "expires", "ready_at", "want", "watched")

    def __init__(self, want: Want, expires: float, event: ParkedWakeEvent | None = None) -> None:
        self.want = want
        self.expires = expires
        self.event = event
        self.watched = False
        self.ready_at = 0.0

    def __await__(self) -> Generator[Wait, None, None]:
        """Yield this Wait, once, to the model that runs the conversation."""
        yield self


class Endpoints(NamedTuple):
    """The two ends of a connection, without a proxy's headers. trusted: a trusted proxy is the peer."""

    client: tuple[str, int]
    server: tuple[str, int]
    scheme: str
    trusted: bool


class Stream:
    """A client's connection, for the conversation and the features. The module's docstring lists its promises.

    client: the client's (address, port). server: the (address, port) of the listening socket. scheme: "http" or
    "https". requests: the number of answered requests. programs: the programs that run for this connection.

    stopping: at most one more exchange follows: the one in progress or, on an idle connection, the next. It is set
    when the process retires, gets new settings, or stops. finishing: no exchange follows the one in progress; an
    idle connection ends now, unless a request has arrived already. idle: the conversation is in next_request().
    in_handshake: it waits there for the client's part of a TLS handshake, and not for a request.
    aborted: abort() was called. unsent: the number of bytes of its file that the last send_file() has not sent;
    above 0 if send_file() failed. is_counted: it counts for its client's limit (connections-per-client). may_block:
    its calls wait in the kernel, instead of pausing. gives_way: the idle connection has ended, since another client
    waits for its worker (streams/serial.py). queued_s: the seconds for which receive() and send() have waited for
    their turn, behind other conversations, and not for the client.

    Facts about the exchange in progress that are not in the request: variables: additional variables for programs
    (set by guards, by the setting `env`, by error pages). user: the name that a guard has authenticated, for the
    access log. answered_by: the feature that answers; "" before the request is at the site. counted_by: the
    rate limits that have counted the request. tried: the handler of `try` that has found the path.

    libcgi_block, gateway_params: the variables of this connection, as LibCGI and the protocol of a gateway encode
    them, kept for the next request. The first item of gateway_params is the protocol's codec.

    Behind a proxy (ewe.gateway.proxies) `client`, `server` and `scheme` come from the proxy's headers. peer: the
    address of the proxy. endpoints: the client, server and scheme of the connection itself; None: the same.
    """

    scheme = "http"
    may_block = True
    gives_way = False
    peer: tuple[str, int] | None = None
    endpoints: Endpoints | None = None
    unsent = 0
    queued_s = 0.0
    in_handshake = False
    is_counted = False
    variables: dict[bytes, bytes] = NO_VARIABLES
    user = ""
    answered_by = ""
    counted_by: tuple[object, ...] = ()
    tried: object = None
    libcgi_block = b""
    gateway_params: tuple[object, bytes] = (None, b"")
    # Made when the first program starts: an idle connection needs none
    own_programs: set[Child] | None = None

    def __init__(self, client: tuple[str, int], server: tuple[str, int], timeouts: Timeouts) -> None:
        self.client = client
        self.server = server
        self.timeouts = timeouts
        self.requests = 0
        self.stopping = self.finishing = False
        self.idle = False
        self.aborted = False

    @property
    def programs(self) -> set[Child]:
        """The programs that run for this connection."""
        if self.own_programs is None:
            self.own_programs = set()
        return self.own_programs

    async def next_request(self, seconds: float) -> bytes:
        """Return the first bytes of the next request; b"" if none come within `seconds`, or at a stop.

        Raises Disconnected.
        """
        raise NotImplementedError

    def set_deadline(self, seconds: float) -> None:
        """Set the deadline of the following receive() calls: `seconds` from now, for all of them together."""
        raise NotImplementedError

    async def receive(self, limit: int = RECEIVE_BYTES) -> bytes:
        """Return the next bytes; b"" after the client has closed its sending side. Raises Timeout, Disconnected.

        limit: the most bytes to request from the kernel. An event stream ignores it, and returns all the bytes that
        its loop has read.
        """
        raise NotImplementedError

    async def send(self, *parts: bytes) -> None:
        """Write all parts, in one system call if they fit. Raises Timeout, Disconnected."""
        raise NotImplementedError

    async def send_file(self, file: int, offset: int, count: int, head: bytes = b"") -> None:
        """Send `head`, then `count` bytes of an open file from `offset` on. Kinds that can use sendfile(2) do so.

        Raises Timeout and Disconnected; Disconnected also if the file has become shorter, since the announced
        length can no longer be sent.
        """
        raise NotImplementedError

    async def send_copy(self, file: int, offset: int, count: int, head: bytes = b"") -> None:
        """Send the same as send_file() without sendfile(2): read the bytes, and send the first with `head`.

        Raises Timeout, Disconnected like send_file().
        """
        self.unsent = count
        # send() bounds the time of one piece. MinRate bounds that of all pieces.
        min_rate = MinRate(self) if count > RECEIVE_BYTES else None
        while count:
            if min_rate is not None:
                min_rate.check()
            data = os.pread(file, min(count, RECEIVE_BYTES), offset)
            await (self.send(head, data) if head else self.send(data))
            if not data:
                raise Disconnected("the file has become shorter")
            head = b""
            offset += len(data)
            count -= len(data)
            self.unsent = count
            if min_rate is not None:
                min_rate.count(len(data))
        if head:
            await self.send(head)

    async def share(self, size: int) -> None:
        """Count `size` bytes of work that was done without a wait; after TURN_BYTES let other conversations run.

        This default does nothing: where each conversation has its own thread or process, the kernel schedules them.
        """

    async def call(
        self,
        function: Callable[..., T],
        *arguments: Any,
        seconds: float = math.inf,
        abandoned: Callable[[], None] | None = None,
    ) -> T:
        """Return function(*arguments). The function may block, and may run in another thread.

        This default calls the function in this thread: the model has given the connection a thread or a process,
        which may wait. Under an event loop, an executor thread makes the call (streams/calls.py), and the loop
        serves other connections.

        seconds: the time limit. abandoned: called without arguments if the call raises Timeout or Disconnected. It
        is called after the function has returned, or instead of the function if that had not begun. It may block,
        and should undo the function's effects, since the function's result is lost.

        Raises the function's exceptions (except StopIteration, which a coroutine cannot raise); Timeout if the
        function takes longer than `seconds` (this default notices it only when the function has returned);
        Disconnected if the connection is lost meanwhile and the model can see that.
        """
        if seconds == math.inf:
            return function(*arguments)
        expires = time.monotonic() + seconds
        try:
            value = function(*arguments)
        except Exception:
            if time.monotonic() <= expires:
                raise
        else:
            if time.monotonic() <= expires:
                return value
        if abandoned is not None:
            abandoned()
        raise Timeout

    async def linger(self) -> None:
        """Close our sending side, then read and drop the bytes that the client still sends, for a moment.

        Otherwise the kernel would answer those bytes with a reset, and the client could lose a response that it has
        not read yet (RFC 9112 section 9.6).
        """
        raise NotImplementedError

    def has_unread_bytes(self) -> bool:
        """Return whether the client has sent bytes that no call has returned. This default cannot tell."""
        return False

    def has_unsent_bytes(self) -> bool:
        """Return whether the client's system has yet to take bytes that were sent. This default cannot tell.

        The last packets do not count, since even a client that reads at once may acknowledge them late.
        """
        return True

    async def drop_input(self) -> None:
        """Read and drop bytes, for LINGER_S and up to LINGER_BYTES."""
        self.set_deadline(LINGER_S)
        wanted = LINGER_BYTES
        try:
            while wanted > 0 and (data := await self.receive()):
                wanted -= len(data)
        except (Timeout, Disconnected):
            pass

    def server_address(self) -> str:
        """Return the server's own address on this connection; "unix:" for a Unix socket.

        `server` may not be such an address: a listening socket can be bound to every address of the machine.
        """
        if (self.peer or self.client)[0] == "unix:" and self.server[0] == "localhost":
            return "unix:"
        return self.bound_to() if self.server[0] in EVERY_ADDRESS else self.server[0]

    def bound_to(self) -> str:
        """Return the local address of the connection's socket."""
        raise NotImplementedError

    def poller(self) -> Poller:
        """Return the model's poller for a program's pipes or an upstream's socket."""
        raise NotImplementedError

    def event_stream(self) -> Any:
        """Return the model's own stream (PausingStream) if an event loop runs it; None under the other models."""
        return None

    def upstream_poller(self) -> Poller:
        """Return the model's poller for an upstream. If possible, its waits occupy no thread."""
        return self.poller()

    async def either(self, descriptor: int, seconds: float) -> bool:
        """Wait until the client has sent bytes or closed its side, or until an upstream's socket can be read.

        Return True for the client, False for the upstream. It may return too early. Raises Timeout after `seconds`,
        and Disconnected. The caller calls the poller's forget() before it closes the descriptor.
        """
        raise NotImplementedError

    def has_client(self) -> bool:
        """Return True if the client is connected, and has not closed its sending side; False if that is unknown."""
        return False

    def wake_event(self) -> WakeEvent:
        """Return a new WakeEvent, by which another conversation can wake this one. Raises OSError."""
        raise NotImplementedError

    def finish(self) -> None:
        """Make the exchange in progress the last; end an idle connection now. Any thread may call this."""
        raise NotImplementedError

    def abort(self) -> None:
        """End the connection and kill its programs now. Any thread may call this.

        The call in which the conversation waits raises Disconnected; next_request() may return b"", as at a stop.
        """
        raise NotImplementedError

    def reset_at_close(self) -> None:
        """Make close() send a reset, so that an aborted response without a length does not look complete."""
        raise NotImplementedError

    def kill_programs(self) -> None:
        """Kill the programs of this connection. The conversation notices their end, and reaps them."""
        for program in list(self.own_programs or ()):
            program.signal(9)  # SIGKILL

    def reap_programs(self) -> None:
        """Kill and reap the programs that the conversation left behind."""
        for program in list(self.own_programs or ()):
            program.kill()

    def close(self) -> None:
        """Close the connection, and kill its programs."""
        raise NotImplementedError


# The argument of SO_LINGER, `struct linger` of socket(7): l_onoff 1, l_linger 0 seconds
LINGER_0_S = Struct("@ii").pack(1, 0)


def reset_at_close(sock: socket.socket) -> None:
    """Make the kernel send a reset when the socket is closed: SO_LINGER with a time of 0 (socket(7)).

    The kernel drops the unsent bytes. A client that gets a reset knows that the response is incomplete. An ordinary
    close would look like the end of a response without a length.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0_S)
    except OSError:
        pass  # the connection is gone already
