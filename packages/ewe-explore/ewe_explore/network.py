"""Sockets in memory: a program's connections, without the kernel.

A connection is two pipes, one in each direction. A call that would wait in the kernel blocks its lane instead. A
send, a receive, an accept and a close are steps. Each step also names the pipes or the port that it uses: a send()
on one socket conflicts with a recv() on another one. The module also has select(), poll() and epoll, so that
`selectors` works. File descriptors are numbers above FIRST_DESCRIPTOR, counted for each run.

The behaviour is that of Linux: send() to a closed peer raises BrokenPipeError, connect() to a port without a
listening socket raises ConnectionRefusedError, a timeout raises TimeoutError, and close() in one thread does not
wake a recv() in another thread, but shutdown() does. The differences to Linux: no byte is lost, reordered or cut,
and a full pipe contains BUFFER_BYTES bytes.

Read next: modules.py.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from ewe_explore.primitives import Primitive, Unexplored, inside_invariant
from ewe_explore.scheduler import Abandoned, PartUse, Run, active_run, line_of_program, this_run

FIRST_DESCRIPTOR = 1000  # descriptors are larger numbers
FIRST_PORT = 50_000  # the ports that the explorer chooses are larger numbers
BUFFER_BYTES = 64 * 1024
Address = tuple[str, int]


class Network:
    """The sockets of one run."""

    def __init__(self) -> None:
        self.sockets: dict[int, Any] = {}  # by descriptor
        self.listening: dict[int, Socket] = {}  # by port
        self.last_descriptor = FIRST_DESCRIPTOR
        self.last_port = FIRST_PORT

    def add(self, item: Any) -> int:
        """Register a socket; return its descriptor."""
        self.last_descriptor += 1
        self.sockets[self.last_descriptor] = item
        return self.last_descriptor


def network() -> Network:
    """Return the network of the run in progress."""
    run = this_run()
    if run.network is None:
        run.network = Network()
    found: Network = run.network
    return found


class Pipe:
    """The bytes in one direction of a connection."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.at_end = False  # no byte follows: a close() or shutdown() has ended this direction
        self.reader_closed = False

    def readable(self) -> bool:
        return bool(self.data) or self.at_end

    def writable(self) -> bool:
        return len(self.data) < BUFFER_BYTES or self.reader_closed


def use_of_pipe(pipe: Pipe | None, writes: bool = True) -> tuple[PartUse, ...]:
    """Return the use of a pipe by a step; none without a connection."""
    return () if pipe is None else (PartUse(pipe, None, writes),)


def use_of_port(port: int, writes: bool = True) -> tuple[PartUse, ...]:
    """Return the use of a port by a step: its listening socket, and the connections in the backlog of that."""
    return (PartUse(network(), f"port {port}", writes),) if active_run() else ()


def use_of_descriptor(number: int, writes: bool) -> tuple[PartUse, ...]:
    """Return the use of a descriptor by a step. writes: the step closes it."""
    return (PartUse(network(), f"descriptor {number}", writes),) if active_run() else ()


class Socket(Primitive):
    """A stream socket in memory."""

    dup = Unexplored()
    recvfrom = Unexplored()
    recvfrom_into = Unexplored()
    recvmsg = Unexplored()
    recvmsg_into = Unexplored()
    sendfile = Unexplored()
    sendmsg = Unexplored()
    sendto = Unexplored()

    def __init__(
        self,
        family: int = socket.AF_INET,
        type: int = socket.SOCK_STREAM,
        proto: int = 0,
        fileno: int | None = None,
    ) -> None:
        super().__init__()
        self.family = family
        self.type = type
        self.proto = proto
        self.incoming: Pipe | None = None  # None until the socket is connected
        self.outgoing: Pipe | None = None
        self.other_end: Socket | None = None  # the other end of the connection, for the reasons of a wait
        self.is_in_backlog = False  # no accept() has returned this end yet
        self.backlog: deque[Socket] | None = None  # of a listening socket: accept() has not returned them yet
        self.backlog_limit = 128
        self.is_shut = False  # a listening socket that was shut down: accept() does not wait any more
        self.local_address: Address = ("0.0.0.0", 0)  # getsockname()
        self.peer_address: Address = ("0.0.0.0", 0)  # getpeername()
        self.timeout: float | None = None  # settimeout(), in seconds
        self.receive_timeout_s: float | None = None  # SO_RCVTIMEO, in seconds
        self.number = network().add(self) if active_run() else -1  # fileno()
        self.is_closing = False  # close() was called; the last file of makefile() closes the socket
        self.closed = False
        self._io_refs = 0  # open files of makefile(), which counts them

    # Timeouts

    def settimeout(self, seconds: float | None) -> None:
        self.timeout = seconds

    def gettimeout(self) -> float | None:
        return self.timeout

    def setblocking(self, flag: bool) -> None:
        self.timeout = None if flag else 0.0

    def getblocking(self) -> bool:
        return self.timeout != 0.0

    def setsockopt(self, level: int, option: int, *value: Any) -> None:
        """Accept an option. Only the kernel's limit for a receive changes a connection in memory."""
        if level == socket.SOL_SOCKET and option == socket.SO_RCVTIMEO and isinstance(value[0], bytes):
            whole, millionths = struct.unpack("@ll", value[0])  # struct timeval: seconds, microseconds
            self.receive_timeout_s = whole + millionths / 1e6 or None  # 0: no limit (socket(7))

    def getsockopt(self, *_: Any) -> int:
        return 0

    def wait_until(
        self,
        run: Run | None,
        verb: str,
        then: str,
        ready: Callable[[], bool],
        *,
        dont_wait: bool = False,
        receives: bool = False,
    ) -> None:
        """Block until ready() is true. Raises BlockingIOError, TimeoutError, OSError.

        run: None outside of a run; then it never waits. verb, then: texts for the timeline, of the wait and of the
        step after it. receives: a receive without a timeout of Python's ends after the socket option SO_RCVTIMEO
        (receive_timeout_s), and then with EAGAIN, as in the kernel.
        """
        self.check_open()
        if run is None or ready():
            return
        if dont_wait or self.timeout == 0.0:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        limited = self.timeout is None and receives
        seconds = self.receive_timeout_s if limited else self.timeout
        if not self.wait(run, verb, ready, seconds, then=then):
            if limited:
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            raise TimeoutError("timed out")

    def check_open(self) -> None:
        """Raise OSError (EBADF) if the socket is closed. It belongs after a point, at which a lane may close it."""
        if self.closed:
            raise OSError(errno.EBADF, "Bad file descriptor")

    # Servers

    def bind(self, address: Address) -> None:
        """Take an address; port 0: a free one.

        Raises OSError if a socket listens at the port already (EADDRINUSE), or if this one has an address (EINVAL).
        """
        self.check_open()
        if self.local_address[1]:
            raise OSError(errno.EINVAL, "Invalid argument")
        host, port = address[0], address[1]
        if port == 0:
            network().last_port += 1
            port = network().last_port
        else:
            this_run().note_unseen(f"whether port {port} is free here", *line_of_program())
            if port in network().listening:
                raise OSError(errno.EADDRINUSE, "Address already in use")
        self.local_address = (host or "0.0.0.0", port)

    def listen(self, backlog: int = 128) -> None:
        """Listen at the port of bind(), or at a free one without a bind(). Raises OSError.

        A second call changes the backlog; after shutdown() it listens again. Two sockets may have bound one port
        (SO_REUSEADDR), but only one of them listens.
        """
        self.point("listens on", uses=use_of_port(self.local_address[1]))
        self.check_open()
        if not self.local_address[1]:
            self.bind(self.local_address)
        if network().listening.get(self.local_address[1], self) is not self:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        if self.backlog is None:
            self.backlog = deque()
        self.is_shut = False
        self.backlog_limit = max(backlog, 1)
        network().listening[self.local_address[1]] = self
        self.recompute_runnable_lanes()

    def accept(self) -> tuple[Socket, Address]:
        """Return the connection that has waited longest in the backlog, and its client's address."""
        run = self.point("accepts from", uses=use_of_port(self.local_address[1]))
        if self.backlog is None and not self.closed:
            raise OSError(errno.EINVAL, "Invalid argument")
        self.wait_until(run, "waits for a connection of", "accepts from", self.readable)
        if not self.backlog:  # another thread has shut the listening socket down
            raise OSError(errno.EINVAL, "Invalid argument")
        found = self.backlog.popleft()
        found.is_in_backlog = False
        self.recompute_runnable_lanes()
        return found, found.peer_address

    def has_stopped_listening(self) -> bool:
        """Return whether this listening socket was closed, or shut down."""
        return self.closed or self.is_shut

    def connect(self, address: Address) -> None:
        """Connect to a listening socket: the other end goes into its backlog.

        Raises ConnectionRefusedError; OSError if this socket is closed (EBADF), or has a connection (EISCONN).
        """
        run = self.point("connects", uses=use_of_port(address[1]))
        self.check_open()
        if self.incoming is not None:
            raise OSError(errno.EISCONN, "Transport endpoint is already connected")
        server = network().listening.get(address[1])
        if server is None or server.backlog is None or server.has_stopped_listening():
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        queue = server.backlog
        # As in Linux, one connection more than the limit may wait
        verb = "waits for room in the backlog of"
        self.wait_until(run, verb, "connects", lambda: len(queue) <= server.backlog_limit)
        if server.has_stopped_listening():  # another lane has ended the listening socket meanwhile
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        network().last_port += 1
        other = Socket()
        self.peer_address, self.local_address = server.local_address, ("127.0.0.1", network().last_port)
        connect_ends(self, other)
        # The timeline names it as the socket that accepts it
        other.line_of_creation = server.line_of_creation
        other.local_address, other.peer_address = self.peer_address, self.local_address
        other.is_in_backlog = True
        queue.append(other)
        self.recompute_runnable_lanes()

    def connect_ex(self, address: Address) -> int:
        """Connect as connect() does; return the number of the error, 0 without one."""
        try:
            self.connect(address)
        except OSError as reason:
            return reason.errno or 0
        return 0

    # Bytes

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return at most `size` bytes, b"" at the end. flags: MSG_DONTWAIT, and MSG_PEEK, which keeps the bytes."""
        if size <= 0:
            if size < 0:
                raise ValueError("negative buffersize in recv")
            return b""  # Python makes no system call for no bytes, so it does not wait
        run = self.point("receives from", uses=use_of_pipe(self.incoming))
        pipe = self.incoming
        if pipe is None and not self.closed:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        dont_wait = bool(flags & socket.MSG_DONTWAIT)
        self.wait_until(
            run, "waits for bytes of", "receives from", self.readable, dont_wait=dont_wait, receives=True
        )
        assert pipe is not None
        data = bytes(pipe.data[:size])
        if not flags & socket.MSG_PEEK:
            del pipe.data[:size]
        self.recompute_runnable_lanes()
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive at most `nbytes` bytes (0: as many as fit) into a buffer; return their number."""
        if nbytes > len(buffer):
            raise ValueError("buffer too small for requested bytes")
        data = self.recv(nbytes or len(buffer), flags)
        buffer[: len(data)] = data
        return len(data)

    def send(self, data: Any, flags: int = 0) -> int:
        """Send the bytes for which the pipe has room; return their number. Raises BrokenPipeError."""
        run = self.point("sends to", uses=use_of_pipe(self.outgoing))
        pipe = self.outgoing
        if pipe is None and not self.closed:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        dont_wait = bool(flags & socket.MSG_DONTWAIT)
        self.wait_until(run, "waits for room in", "sends to", self.writable, dont_wait=dont_wait)
        assert pipe is not None
        if pipe.reader_closed or pipe.at_end:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        part = bytes(data)[: BUFFER_BYTES - len(pipe.data)]
        pipe.data += part
        self.recompute_runnable_lanes()
        return len(part)

    def sendall(self, data: Any, flags: int = 0) -> None:
        unsent = bytes(data)
        while True:  # at least one send(), also of no bytes: it raises the errors of the connection
            unsent = unsent[self.send(unsent, flags) :]
            if not unsent:
                return

    def shutdown(self, how: int) -> None:
        """End one direction or both: a recv() or an accept() that waits in another lane then returns.

        A listening socket can only be shut for reading, and then refuses connections (shutdown(2) of Linux). Raises
        OSError if the socket is closed (EBADF), or has no connection (ENOTCONN).
        """
        if self.run_is_over():
            return
        self.point("shuts down", uses=self.uses())
        self.check_open()
        if self.backlog is not None:
            if how != socket.SHUT_WR:
                self.is_shut = True
                self.refuse_connections()
            return
        if self.incoming is None or self.outgoing is None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        if how in (socket.SHUT_WR, socket.SHUT_RDWR):
            self.outgoing.at_end = True
        if how in (socket.SHUT_RD, socket.SHUT_RDWR):
            self.incoming.at_end = True
        self.recompute_runnable_lanes()

    def close(self) -> None:
        """Close the socket: both directions end, and the connections in its backlog are closed, too.

        A socket with open files of makefile() stays open until the last of them is closed.
        """
        self.is_closing = True
        if self.closed or self._io_refs > 0:
            return
        if not self.run_is_over():
            self.point("closes", uses=self.uses() + use_of_descriptor(self.number, writes=True))
        self.closed = True
        if active_run():  # else the network has ended with its run
            network().sockets.pop(self.number, None)
        if self.outgoing is not None and self.incoming is not None:
            self.outgoing.at_end = True  # the other side reads the end
            # Not `at_end`: a recv() of another lane on this socket goes on waiting, as in Linux
            self.incoming.reader_closed = True
        self.refuse_connections()

    def refuse_connections(self) -> None:
        """Refuse new connections, and close those in the backlog."""
        if active_run() and network().listening.get(self.local_address[1]) is self:
            del network().listening[self.local_address[1]]
        # All at once: each close() below is a point, at which an accept() of another lane must find none of them
        refused = list(self.backlog or ())
        if self.backlog:
            self.backlog.clear()
        self.recompute_runnable_lanes()
        for each in refused:
            each.close()

    def detach(self) -> int:
        return self.number

    def uses(self, writes: bool = True) -> tuple[PartUse, ...]:
        """Return the use of all that this socket shares with others: its port if it listens, else its two pipes."""
        if self.backlog is not None:
            return use_of_port(self.local_address[1], writes)
        return use_of_pipe(self.incoming, writes) + use_of_pipe(self.outgoing, writes)

    def readable(self) -> bool:
        """Return whether accept() (if the socket listens) or recv() would return at once."""
        if self.backlog is not None:
            return bool(self.backlog) or self.is_shut
        return self.incoming is not None and self.incoming.readable()

    def writable(self) -> bool:
        return self.outgoing is not None and (self.outgoing.writable() or self.outgoing.at_end)

    # The rest

    def fileno(self) -> int:
        return -1 if self.closed else self.number

    def getsockname(self) -> Address:
        return self.local_address

    def getpeername(self) -> Address:
        return self.peer_address

    def makefile(self, *args: Any, **named: Any) -> Any:
        makefile: Any = socket.socket.makefile  # it calls only methods that this class has
        return makefile(self, *args, **named)

    def _decref_socketios(self) -> None:
        """Note that a file of makefile() is closed: SocketIO.close() calls this method."""
        self._io_refs -= 1
        if self.is_closing:
            # The file closes itself when it is not used any more. Python would print an exception then, and the
            # next step of the lane raises Abandoned again
            with suppress(Abandoned):
                self.close()

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect_ends(one: Socket, other: Socket) -> None:
    """Connect two sockets."""
    one.incoming = other.outgoing = Pipe()
    one.outgoing = other.incoming = Pipe()
    one.other_end, other.other_end = other, one


def socketpair(family: int = socket.AF_UNIX, type: int = socket.SOCK_STREAM, proto: int = 0) -> Any:
    """Return two connected sockets."""
    one, other = Socket(family, type, proto), Socket(family, type, proto)
    connect_ends(one, other)
    return one, other


def create_connection(address: Address, timeout: Any = None, source_address: Any = None, **_: Any) -> Socket:
    """Return a socket that is connected to an address."""
    sock = Socket()
    if isinstance(timeout, int | float):
        sock.settimeout(timeout)
    sock.connect(address)
    return sock


def create_server(address: Address, *, backlog: int | None = None, **_: Any) -> Socket:
    """Return a listening socket."""
    sock = Socket()
    sock.bind(address)
    sock.listen(backlog or 128)
    return sock


# Waiting for several sockets


def descriptor_of(item: Any) -> int:
    """Return a descriptor, or that of an object with fileno()."""
    return item if isinstance(item, int) else int(item.fileno())


def socket_of(item: Any) -> Socket:
    """Return the socket of a descriptor or of an object with fileno(). Raises ValueError."""
    number = descriptor_of(item)
    found = network().sockets.get(number)
    if not isinstance(found, Socket):
        raise ValueError(f"descriptor {number} is not a socket of the explorer")
    return found


def uses_of(items: Iterable[Any]) -> tuple[PartUse, ...]:
    """Return the uses of descriptors by a step, and those of their sockets (Socket.uses()).

    A closed socket has a use of its descriptor only: the close() of another lane may have come first.
    """
    found: list[PartUse] = []
    for item in items if active_run() else ():
        number = item.number if isinstance(item, Socket) else descriptor_of(item)
        found += use_of_descriptor(number, writes=False)
        if isinstance(each := network().sockets.get(number), Socket):
            found += each.uses(writes=False)
    return tuple(found)


def resolved(item: Any) -> Socket | int:
    """Return a socket itself, or the descriptor of any other item: its fileno() is called once, as in Python."""
    return item if isinstance(item, Socket) else descriptor_of(item)


class Selection(Primitive):
    """A call that waits for several sockets."""

    def begin(self, find_items: Callable[[], Iterable[Any]]) -> Run | None:
        """Record the step of the call; return the run. find_items: returns the descriptors of the sockets now."""
        if inside_invariant() or not active_run():
            return None
        run = self.point("looks at the sockets of", uses=uses_of(find_items()))
        if run is not None and (step := run.current.last_step) is not None:
            step.other_uses = (*step.other_uses, *uses_of(find_items()))  # other lanes may have added sockets
        return run

    def wait_for_any(
        self, run: Run | None, find_ready: Callable[[], list[tuple[int, int]]], seconds: float | None
    ) -> list[tuple[int, int]]:
        """Wait until find_ready() finds one, for at most `seconds` (None: no limit); return what it finds then."""
        if run is None:
            return []
        if not find_ready() and seconds != 0:
            self.wait(
                run,
                "waits for a socket of",
                lambda: bool(find_ready()),
                seconds,
                then="looks at the sockets of",
            )
        return find_ready()


def select_call(
    readers: Iterable[Any], writers: Iterable[Any], _errors: Iterable[Any], timeout: float | None = None
) -> tuple[list[Any], list[Any], list[Any]]:
    """Implement select.select(). The third list, of sockets with an exceptional condition, is always empty.

    Raises ValueError for a socket that is closed, and for a negative timeout.
    """
    if timeout is not None and timeout < 0:
        raise ValueError("timeout must be non-negative")
    readers, writers = list(readers), list(writers)
    to_read, to_write = [resolved(each) for each in readers], [resolved(each) for each in writers]
    selection = Selection()
    selection.fixed_name = "select()"
    run = selection.begin(lambda: (*to_read, *to_write))
    # The sockets of now: the scheduler calls find_ready(), and another lane may have closed one of them by then
    read_sockets, write_sockets = (
        [socket_of(each) for each in to_read],
        [socket_of(each) for each in to_write],
    )
    reading, writing = 0, 1  # which of the two lists an index belongs to

    def find_ready() -> list[tuple[int, int]]:
        found = [(reading, index) for index, each in enumerate(read_sockets) if each.readable()]
        return found + [(writing, index) for index, each in enumerate(write_sockets) if each.writable()]

    ready = selection.wait_for_any(run, find_ready, timeout)
    return (
        [readers[index] for which, index in ready if which == reading],
        [writers[index] for which, index in ready if which == writing],
        [],
    )


class Poll(Selection):
    """Implement select.poll(): timeouts are in milliseconds."""

    timeout_unit_s = 0.001
    read, write = select.POLLIN, select.POLLOUT
    once = 0  # the flag of a socket that is reported once: poll has none

    def __init__(self) -> None:
        super().__init__()
        self.watched: dict[int, int] = {}
        self.closed = False

    def check_open(self) -> None:
        """Raise ValueError if this object is closed. Only epoll has a close()."""
        if self.closed:
            raise ValueError("I/O operation on closed epoll object")

    def register(self, item: Any, events: int = select.POLLIN | select.POLLOUT) -> None:
        """Watch a socket. Only epoll refuses a watched one (FileExistsError); poll changes its events."""
        item = resolved(item)
        # Before the tests: also a call that fails uses these objects, and the search must know that
        self.point("watches a socket with", uses=uses_of([item]))
        self.check_open()
        number = socket_of(item).number
        if self.once and number in self.watched:
            raise FileExistsError(errno.EEXIST, "File exists")
        self.watched[number] = events
        self.recompute_runnable_lanes()

    def modify(self, item: Any, events: int) -> None:
        """Watch a socket for other events. Raises FileNotFoundError if it is not watched."""
        item = resolved(item)
        self.point("watches a socket with", uses=uses_of([item]))
        self.check_open()
        number = descriptor_of(item)
        if number not in self.watched:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        self.watched[number] = events
        self.recompute_runnable_lanes()

    def unregister(self, item: Any) -> None:
        """Stop watching a socket. Raises KeyError if it is not watched."""
        item = resolved(item)
        self.point("forgets a socket of", uses=uses_of([item]))
        self.check_open()
        number = descriptor_of(item)
        del self.watched[number]

    def ready(self) -> list[tuple[int, int]]:
        """Return the ready descriptors with their events."""
        found = []
        for number, events in self.watched.items():
            each = network().sockets.get(number)
            if each is None:
                continue  # the socket is closed, so epoll does not watch it any more
            come = (self.read if each.readable() else 0) | (self.write if each.writable() else 0)
            come &= events
            if come:
                found.append((number, come))
        return found

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        """Return the ready descriptors with their events. One that was watched for a single event is disarmed."""
        seconds = None if timeout is None or timeout < 0 else timeout * self.timeout_unit_s
        run = self.begin(lambda: list(self.watched))
        self.check_open()
        found = self.wait_for_any(run, self.ready, seconds)
        for number, _ in found:
            if self.watched[number] & self.once:
                self.watched[number] = self.once
        return found


class Epoll(Poll):
    """Implement select.epoll(): timeouts are in seconds."""

    timeout_unit_s = 1.0
    read, write = getattr(select, "EPOLLIN", 1), getattr(select, "EPOLLOUT", 4)
    once = getattr(select, "EPOLLONESHOT", 1 << 30)

    def __init__(self, sizehint: int = -1, flags: int = 0) -> None:
        super().__init__()
        self.number = network().add(self) if active_run() else -1

    def fileno(self) -> int:
        return self.number

    def unregister(self, item: Any) -> None:
        """Stop watching a socket. Raises FileNotFoundError if it is not watched."""
        try:
            super().unregister(item)
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory") from None

    def close(self) -> None:
        """Close the object. As in Linux, a poll() that waits in another lane goes on."""
        if not self.run_is_over() and not self.closed:
            self.point("closes")
        self.closed = True

    def __enter__(self) -> Epoll:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
