"""The contract of a stream: the calls that a conversation awaits, and what each kind of stream promises about them.

The HTTP conversation is written once, as a coroutine that awaits a stream. "await" means "may pause". The kinds of
stream differ in whether a call pauses, and in who resumes the conversation:

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
    share()          work was done without a wait; let the others have a turn when it was much
    poller()         wait for something else than the client: a program, another server (streams/poller.py)
    either()         wait for the client and another server at once: for bytes that go both ways
    bell()           wait for another conversation (streams/bells.py)
    call()           call a function that may block: in place, or in a thread beside the loop (streams/calls.py)
    linger(), close()   end the connection; linger() first lets the client read the response
    reset_at_close()    make close() a reset, by which the client sees that a response was cut
    finish(), abort()                 a stop, from another thread or from a signal handler

What every stream promises (tests/streams/test_streams.py checks each promise over each kind):

- receive() returns at least one byte, or b"" when the peer has closed its sending side, and then always b"".
- send() returns when all bytes are written, or are in a buffer that still has room: back-pressure. A slow client
  slows the conversation down, and fills no memory.
- Every wait has a deadline. That of receive() is set by set_deadline(). Each wait of a send() may take
  write_timeout, and the send() as a whole must keep up with min_rate. A wait that takes longer raises Timeout.
- A connection that is gone raises Disconnected, from any call. After it the stream is only good for close().
- Where conversations share a thread (EventStream; PoolStream with parking = always), one that never needs to wait
  pauses after SHARE bytes.
- call() returns what the function returned, and raises what it raised. A function that takes longer than its
  deadline raises Timeout, and `abandoned` is called after it.
- finish() lets the exchange in progress end, and ends an idle connection now. abort() ends both now, and kills the
  connection's programs. close() may be called twice.

What can go wrong, and where it is prevented:

- A client sends, or reads, one byte every few seconds: each single wait succeeds and the connection is held for
  hours. The deadline of a head is for the whole head. MinRate bounds each send() of a response.
- A stop comes between the check of `finishing` and the system call that waits. Blocking calls return every SLICE
  (streams/blocking.py), the other kinds wait where the stop can reach them.
- The server closes while bytes from the client are unread: the kernel answers with a reset, and the client may lose
  a response that it has not read yet. linger() reads for a moment first.

Read next: streams/blocking.py, the shortest kind; then conversation.py, which awaits all of this.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Generator, Sequence
from enum import Enum
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from ewe.streams.bells import Bell, ParkedBell

T = TypeVar("T")

RECEIVE = 64 * 1024  # bytes asked of the kernel at once
SENDFILE = 512 * 1024  # bytes to the kernel at once: a fast client must not hold an event loop or a worker
LINGER = 2.0  # seconds to read on after our side is closed: RFC 9112 section 9.6
LINGER_BYTES = 1024 * 1024  # bytes to read then, at most
# Bytes that one conversation may handle without a pause, where conversations share a thread.
SHARE = 256 * 1024
CALL = 4096  # bytes added for each call: a call costs time however little it sends
NO_VARIABLES: dict[bytes, bytes] = {}
EVERY_ADDRESS = ("0.0.0.0", "::")  # what a socket is bound to that listens on all addresses of the machine


class Timeout(Exception):
    """A wait passed its deadline."""


class Disconnected(Exception):
    """The connection is of no more use: the peer left, abort() ended it, or a response had to be cut short."""


class Want(Enum):
    """What a paused conversation waits for."""

    BYTES = "the client to send, or to finish sending"
    ROOM = "the client to read"
    PROGRAM = "a program to write or to end"
    TURN = "the others to have had their turn"
    EITHER = "the client to send, or another server"
    BELL = "another conversation to ring"
    CALL = "a function that may block to return"


class Timeouts(Protocol):
    """The settings by which a stream bounds its waits (ewe.config.settings.Config has them)."""

    write_timeout: float  # seconds
    head_timeout: float  # seconds
    min_rate: int  # bytes per second; 0: no minimum


class MinRate:
    """Bounds one slow send() or send_file(): write_timeout, plus one second for each min_rate bytes sent.

    A client that reads one byte every few seconds lets every single wait of the call succeed; only their sum shows
    how slow it is. The next call has its own bound.
    """

    __slots__ = ("began", "sent", "timeouts")

    def __init__(self, timeouts: Timeouts) -> None:
        self.timeouts = timeouts
        self.began = time.monotonic()
        self.sent = 0

    def check(self, sent: int) -> None:
        """Count bytes that were sent. Raises Timeout if the call is slower than it may be."""
        self.sent += sent
        if self.timeouts.min_rate:
            allowed = self.timeouts.write_timeout + self.sent / self.timeouts.min_rate
            if time.monotonic() - self.began > allowed:
                raise Timeout


class Child(Protocol):
    """A program started for one connection (ewe.gateway.programs): it ends, at the latest, with the connection."""

    def signal(self, number: int) -> None:
        """Send a signal to the program and all that it started; from any thread."""

    def kill(self) -> None:
        """Kill and reap the program and all that it started."""


class Poller(Protocol):
    """What a stream offers for waiting on descriptors other than its client's."""

    async def wait(
        self,
        descriptors: Sequence[int],
        since: float,
        seconds: float,
        writable: int = -1,
    ) -> list[int]:
        """Wait until a descriptor can be read, or `writable` can be written; return those that can.

        seconds: at most so long; then the list is empty. since: when the program last wrote something, on
        time.monotonic(). Raises Disconnected when the client has left, or has closed its sending side and the
        program has been silent for HALF_CLOSED seconds.
        """
        ...

    async def readable(self, descriptor: int, since: float, seconds: float) -> bool:
        """Wait until one descriptor can be read; return False after `seconds`. It may return True too early.

        The caller will wait for the descriptor again, and calls forget() before it closes it. since, and what this
        raises: as wait().
        """
        ...

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor that readable() has waited for; it is about to be closed."""
        ...

    async def share(self, size: int) -> None:
        """Note that `size` bytes were read or written without a wait; see Stream.share()."""
        ...

    def after(self, seconds: float, exited: int, function: Callable[[], None]) -> None:
        """Call function once the descriptor `exited` can be read, after `seconds` at the latest."""
        ...


class Wait:
    """Pauses a conversation: `await Wait(...)` yields the Wait to the model that runs the conversation.

    want: the event that lets the conversation go on. expires: on time.monotonic(); then the model throws Timeout
    into the conversation. bell: what rings, if it waits for a bell. watched: for the model's use.
    """

    __slots__ = ("bell", "expires", "want", "watched")

    def __init__(self, want: Want, expires: float, bell: ParkedBell | None = None) -> None:
        self.want = want
        self.expires = expires
        self.bell = bell
        self.watched = False

    def __await__(self) -> Generator[Wait, None, None]:
        yield self


class Connected(NamedTuple):
    """What a connection says by itself of its client and server. trusted: its peer is a trusted proxy."""

    client: tuple[str, int]
    server: tuple[str, int]
    scheme: str
    trusted: bool


class Stream:
    """A client's connection, as the conversation and the features know it. See the module for its promises.

    client: the client's (address, port). server: the (address, port) of the listening socket. scheme: "http" or
    "https". requests: how many were answered. programs: those that run for this connection.

    stopping: at most one more exchange: the one in progress or, on an idle connection, the next. Set when the
    process retires, gets new settings, or stops. finishing: no exchange after the one in progress; an idle
    connection ends now, unless a request has arrived already. idle: the conversation is in next_request().
    aborted: abort() was called. unsent: how many bytes of its file the last send_file() has not sent; above 0 if it
    was broken off.

    The exchange in progress, as far as the client has not said it: variables: what programs are told besides the
    request (by guards, the setting `env`, error pages). user: the name that a guard has asked for, for the access
    log. counted: the rates that have counted the request. tried: the handler of `try` that has found the path.

    block, params: the variables of this connection as LibCGI and FastCGI encode them, remembered for the next
    request; before params the protocol's codec.

    Behind a proxy (ewe.gateway.proxies) `client`, `server` and `scheme` are what the proxy says of the request in
    progress. peer: then the address that has connected. connected: what the connection says of the three by itself.
    """

    scheme = "http"
    peer: tuple[str, int] | None = None
    connected: Connected | None = None
    unsent = 0
    variables: dict[bytes, bytes] = NO_VARIABLES
    user = ""
    counted: tuple[object, ...] = ()
    tried: object = None
    block = b""
    params: tuple[object, bytes] = (None, b"")

    def __init__(self, client: tuple[str, int], server: tuple[str, int], timeouts: Timeouts) -> None:
        self.client = client
        self.server = server
        self.timeouts = timeouts
        self.requests = 0
        self.stopping = self.finishing = False
        self.idle = False
        self.aborted = False
        self.programs: set[Child] = set()

    async def next_request(self, seconds: float) -> bytes:
        """Return the first bytes of the next request; b"" if none come within `seconds`, or at a stop.

        Raises Disconnected.
        """
        raise NotImplementedError

    def set_deadline(self, seconds: float) -> None:
        """Set the deadline of the receive() calls that follow: `seconds` from now, for all of them together."""
        raise NotImplementedError

    async def receive(self, limit: int = RECEIVE) -> bytes:
        """Return the next bytes, b"" at the end. Raises Timeout, Disconnected.

        limit: bytes asked of the kernel; an event stream returns all that its loop has read.
        """
        raise NotImplementedError

    async def send(self, *parts: bytes) -> None:
        """Write all parts, in one system call where they fit. Raises Timeout, Disconnected."""
        raise NotImplementedError

    async def send_file(self, file: int, offset: int, count: int, head: bytes = b"") -> None:
        """Send `head`, then `count` bytes of an open file from `offset` on: sendfile(2), where the kind can.

        Raises Timeout and Disconnected; Disconnected also if the file has become shorter, since the promised length
        can no longer be sent.
        """
        raise NotImplementedError

    async def share(self, size: int) -> None:
        """Count `size` bytes of work that was done without a wait; after SHARE bytes let other conversations run.

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

        This default calls it in place: the model has given the connection a thread or a process, which may wait.
        Beside an event loop another thread makes the call (streams/calls.py), and the loop serves others.

        seconds: the deadline. abandoned: called, without arguments, if the call raises Timeout or Disconnected;
        always after the function has returned, or in place of it if it had not begun. It may block, too, and
        should undo what the function has done: nobody gets its result.

        Raises what the function raises (not StopIteration, which no coroutine can raise); Timeout if it takes
        longer than `seconds`, in place only when it has returned; Disconnected if the connection is lost
        meanwhile and the model can see that.
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
        """Close our sending side, then read and drop for a moment what the client still sends.

        Otherwise the kernel would answer those bytes with a reset, and the client could lose a response that it has
        not read yet (RFC 9112 section 9.6).
        """
        raise NotImplementedError

    async def read_off(self) -> None:
        """Read and drop bytes for LINGER seconds, LINGER_BYTES at most."""
        self.set_deadline(LINGER)
        wanted = LINGER_BYTES
        try:
            while wanted > 0 and (data := await self.receive()):
                wanted -= len(data)
        except (Timeout, Disconnected):
            pass

    def server_address(self) -> str:
        """Return the server's own address on this connection; "unix:" for a Unix socket.

        `server` will not do: a listening socket may be bound to every address of the machine.
        """
        if (self.peer or self.client)[0] == "unix:" and self.server[0] == "localhost":
            return "unix:"
        return self.bound_to() if self.server[0] in EVERY_ADDRESS else self.server[0]

    def bound_to(self) -> str:
        """Return the local address of the connection's socket."""
        raise NotImplementedError

    def poller(self) -> Poller:
        """Return how this stream's model waits for a program's pipes or another server's socket."""
        raise NotImplementedError

    def upstream_poller(self) -> Poller:
        """Return how this model waits for another server without holding a thread, where it can."""
        return self.poller()

    async def either(self, descriptor: int, seconds: float) -> bool:
        """Wait until the client has sent bytes or ended its side, or until another server's socket can be read.

        Return whether it was the client. It may return too early. seconds: at most so long; raises Timeout after
        it, Disconnected. The caller calls the poller's forget() before it closes the descriptor.
        """
        raise NotImplementedError

    def bell(self) -> Bell:
        """Return a new bell, by which another conversation wakes this one. Raises OSError."""
        raise NotImplementedError

    def finish(self) -> None:
        """Make the exchange in progress the last; end an idle connection now. Any thread may call this."""
        raise NotImplementedError

    def abort(self) -> None:
        """End the connection and its programs now: the conversation's call raises Disconnected. From any thread."""
        raise NotImplementedError

    def reset_at_close(self) -> None:
        """Make close() a reset, so that a cut response that only the close delimits does not look complete."""
        raise NotImplementedError

    def kill_programs(self) -> None:
        """Kill the programs of this connection; the conversation sees their end and reaps them."""
        for program in list(self.programs):
            program.signal(9)

    def reap_programs(self) -> None:
        """Kill and reap the programs that the conversation left behind."""
        for program in list(self.programs):
            program.kill()

    def close(self) -> None:
        """Close the connection, and end its programs."""
        raise NotImplementedError


def reset_at_close(sock: socket.socket) -> None:
    """Have the kernel send a reset when the socket is closed: SO_LINGER with a time of 0."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ON_FOR_NOTHING)
    except OSError:
        pass  # the connection is gone already


ON_FOR_NOTHING = Struct("@ii").pack(1, 0)  # struct linger: on, 0 seconds
