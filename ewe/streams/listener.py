"""Listening sockets: open them, wait for connections, accept.

    addresses ── open_sockets() ─▶ sockets ── Listener(sockets), one per process ─▶ Accepted, Accepted, ...

The server opens the sockets once, before it drops its privileges and forks workers. Each process that accepts has
its own Listener over the shared sockets: a descriptor set (descriptor_set.py: epoll(7), or its replacement) and a
wake pipe. The set contains

- the listening sockets, with EPOLLEXCLUSIVE, so that only one process wakes for a connection;
- the wake pipe: a signal handler, or another thread, writes a byte to end the wait;
- the lifeline: a pipe whose other end the supervisor keeps open. It reaches its end when the supervisor dies, even
  if the supervisor is killed;
- the descriptors that a model adds with watch(): the pool's parked connections.

On Linux an accepted socket is blocking, and inherits the time limits of the listening socket. On other systems an
accepted socket is non-blocking if the listening socket is, and only some systems pass the time limits on. There,
take() sets both.

Several workers that hold many connections each should hold about equally many. Two habits of the kernel prevent it:

- The kernel keeps the processes that wait for a socket in a list, and wakes the first one. While that process has
  time for each client, it gets all of them.
- A process that has woken accepts a whole burst of clients before another process runs.

A listener that takes turns (takes_turns) therefore accepts one connection, goes to the end of the list, and yields
the processor to processes that are ready to run (end_turn).

Possible failures: at the connection limit a model stops watching the sockets, and new connections wait in the
kernel's backlog. Without a free descriptor, or if a rule of the system forbids it, accept(2) fails, and the
connection stays at the head of the backlog. epoll would report it again at once, in an endless loop. The listener
therefore stops accepting for ACCEPT_PAUSE_S.

Read next: processors/serial.py, the shortest model.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from ewe import logger
from ewe.config.messages import Failure
from ewe.config.setting_types import parse_address
from ewe.streams.blocking import RECEIVE_TIMEOUT_S, TIMEVAL, set_timeouts
from ewe.streams.descriptor_set import EPOLLEXCLUSIVE, EPOLLIN, descriptor_set
from ewe.streams.descriptors import nonblocking_pipe

# For asyncio's servers on Unix sockets. When a server closes, Python 3.13 would remove the socket's path, but other
# workers may still need the path, and the server's user may not be allowed to search its directory.
KEEPS_SOCKET_PATH: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
WILDCARDS = {"0.0.0.0", "::"}  # each stands for all addresses of its family
WILDCARD_EXCLUDES_EACH = sys.platform == "linux"  # no other socket may listen at the same port of one address
# Bytes, unix(7). BSD and macOS have the smaller limit.
MAX_UNIX_PATH_BYTES = 107 if sys.platform == "linux" else 103
ACCEPTS_AT_ONCE = 16  # connections accepted at once, before the open connections have their turn
ACCEPT_PAUSE_S = 0.1  # seconds without accepting after a failure, such as no descriptor or memory left
LOG_EVERY_S = 10.0  # seconds between two log lines about a failed accept(2)
let_others_run = getattr(os, "sched_yield", lambda: None)  # not every Python has it
# Whether Python uses accept4(2). The new socket then is blocking, although the listening socket is not. Systems
# with accept4(2) have the constant SOCK_NONBLOCK, too.
ACCEPTED_BLOCK = hasattr(socket, "SOCK_NONBLOCK")


class ForkCounter:
    """Counts the forks between the first process and this one, so that a Listener notices that it is inherited."""

    count = 0


def count_fork() -> None:
    """Count a fork, in the child."""
    ForkCounter.count += 1


os.register_at_fork(after_in_child=count_fork)


class StartError(Failure):
    """The server cannot start. The text is one line: the reason, and the remedy."""


class InheritedSocket(socket.socket):
    """A socket of the program that starts the server (fd://N). The path of a Unix socket is that program's."""


class Accepted:
    """One accepted connection. client, server: (address, port); ("unix:", 0) over a Unix socket."""

    __slots__ = ("client", "server", "socket")

    def __init__(self, sock: socket.socket, client: tuple[str, int], server: tuple[str, int]) -> None:
        self.socket = sock
        self.client = client
        self.server = server


def open_sockets(addresses: Sequence[str], backlog: int, write_timeout: float) -> list[socket.socket]:
    """Listen on addresses: HOST:PORT, [V6]:PORT, unix:PATH, fd://N. Raises StartError.

    write_timeout: seconds, SO_SNDTIMEO of the accepted TCP sockets.
    """
    sockets: list[socket.socket] = []
    opened: list[str] = []
    try:
        for address in addresses:
            for sock in open_address(address):
                sockets.append(sock)
                sock.listen(backlog)
                sock.setblocking(False)
                if sock.family != socket.AF_UNIX:
                    # Accepted sockets inherit these options, which saves three system calls per connection.
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    set_timeouts(sock, RECEIVE_TIMEOUT_S, write_timeout)
            opened.append(address)
    except (OSError, UnicodeError) as reason:  # a host label of more than 63 characters raises UnicodeError
        close_sockets(sockets)
        is_used = isinstance(reason, OSError) and reason.errno == errno.EADDRINUSE
        conflict = conflict_of(address, opened) if is_used else ""
        raise StartError(conflict or why_not_opened(address, reason)) from None
    return sockets


def conflict_of(address: str, earlier: Iterable[str]) -> str:
    """Return one line about an earlier address of this server that excludes an address; "" if none does.

    Only one socket can listen at a port of an address. On Linux, 0.0.0.0 and [::] exclude each address of their
    family. With SO_REUSEADDR, macOS and the BSDs let the socket of one address listen beside them.
    """
    for other in earlier:
        for family, host, port in names_of(address):
            for its_family, its_host, its_port in names_of(other):
                is_wildcard = WILDCARD_EXCLUDES_EACH and not WILDCARDS.isdisjoint((host, its_host))
                if (family, port) == (its_family, its_port) and (host == its_host or is_wildcard):
                    return f"{address} is in use by this server, which listens at {other}, too; leave one out"
    return ""


@cache
def names_of(address: str) -> list[tuple[object, str, int]]:
    """Return the family, the host and the port of each socket of an address; [] for port 0 or an unknown host.

    A name is resolved once: --check-config compares each pair of addresses.
    """
    kind, host, port = parse_address(address)
    if kind != "tcp":
        return [(kind, host, port)]
    if port:
        with suppress(OSError, UnicodeError):
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            return [(family, str(where[0]), port) for family, _, _, _, where in found]
    return []


def open_address(address: str) -> Iterator[socket.socket]:
    """Yield a bound socket for each network address to which a configured address resolves. Raises OSError."""
    kind, host, port = parse_address(address)
    if kind == "unix":
        yield open_unix(host)
    elif kind == "fd":
        yield InheritedSocket(fileno=port)  # of fd://N: the descriptor
    else:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, socket_type, protocol, _, where in dict.fromkeys(found):  # without duplicates
            sock = socket.socket(family, socket_type, protocol)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:  # otherwise [::] would take the port of 0.0.0.0, too
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind(where)
            except OSError:
                sock.close()
                raise
            yield sock


def try_address(address: str) -> str:
    """Check whether open_sockets() could open an address; return a note about a doubt, or "".

    The check does not listen, and creates or removes no file. Raises StartError if open_sockets() would fail,
    except for an address in use, which gives a note.
    """
    kind, host, _ = parse_address(address)
    if kind == "fd":
        return f"{address} comes from the program that starts the server, and cannot be checked"
    if kind == "unix":
        return try_unix(host)
    try:
        for sock in open_address(address):
            sock.close()
    except (OSError, UnicodeError) as reason:
        if isinstance(reason, OSError) and reason.errno == errno.EADDRINUSE:
            return f"{address} is in use, by this server or by another"
        raise StartError(why_not_opened(address, reason)) from None
    return ""


def try_unix(path: str) -> str:
    """Return a note if the Unix socket exists, "" if not. Raises StartError for a path that cannot be bound."""
    directory = os.path.dirname(os.path.abspath(path))
    if os.path.lexists(path):
        if not is_socket(path):
            raise StartError(why_not_opened(f"unix:{path}", OSError(errno.EADDRINUSE, "")))
        return f"unix:{path} is there: a server uses it, or has left it behind"
    if not os.path.isdir(directory):
        raise StartError(f"unix:{path}: there is no directory {directory}; make it")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise StartError(f"unix:{path}: {directory} may not be written; choose another path")
    if len(os.fsencode(path)) > MAX_UNIX_PATH_BYTES:
        raise StartError(f"unix:{path} has more than {MAX_UNIX_PATH_BYTES} bytes; choose a shorter path")
    return ""


def open_unix(path: str) -> socket.socket:
    """Bind a Unix socket. Remove first a socket that a dead server has left behind. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if is_socket(path):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.setblocking(False)  # connect(2) would wait for a server whose backlog is full
                if probe.connect_ex(path) == errno.ECONNREFUSED:
                    os.unlink(path)
        sock.bind(path)
        os.chmod(path, 0o666)  # a proxy runs as another user; the permissions of the directory limit access
    except OSError:
        sock.close()
        raise
    return sock


def is_socket(path: str) -> bool:
    """Return whether a path names a Unix socket."""
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def why_not_opened(address: str, reason: OSError | UnicodeError) -> str:
    """Return one line: the reason why an address cannot be opened, and the remedy."""
    if isinstance(reason, UnicodeError):
        return f"{address}: the host is malformed"
    if reason.errno == errno.EADDRINUSE:
        if address.startswith("unix:") and not is_socket(address.removeprefix("unix:")):
            return f"{address} is there and no socket; choose another path"
        advice = "another path" if address.startswith("unix:") else "another port, or 0 for a free one"
        return f"{address} is in use by another server; choose {advice}"
    if reason.errno == errno.EADDRNOTAVAIL:
        return f"{address} is not an address of this machine; 127.0.0.1 always is, 0.0.0.0 means all"
    if reason.errno == errno.EACCES:
        advice = "another path" if address.startswith("unix:") else "a port above 1023"
        return f"{address} may not be opened without privileges; choose {advice}"
    if isinstance(reason, socket.gaierror):
        return f"{address}: the host is unknown ({reason.strerror})"
    return f"cannot listen on {address}: {reason.strerror or reason}"


def close_sockets(sockets: Sequence[socket.socket]) -> None:
    """Close listening sockets, and remove the paths of Unix sockets that this server has bound."""
    for sock in sockets:
        name = sock.getsockname() if sock.family == socket.AF_UNIX else ""
        sock.close()
        if name and isinstance(name, str) and not isinstance(sock, InheritedSocket):
            try:
                os.unlink(name)
            except OSError:
                pass


def url(sock: socket.socket, scheme: str) -> str:
    """Return the URL of a listening socket; unix:PATH for a Unix socket."""
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"{scheme}://{host}:{name[1]}/"


class Listener:
    """All listening sockets of the server, from which the processor of one process accepts connections.

    The simplest processor is `for accepted in listener: ...`. The loop ends after close(); wake() ends a wait
    early. A signal handler or another thread may call both. Several threads may run such a loop, and a forked child
    may continue it. lifeline: a descriptor that reaches its end when the supervisor dies.
    """

    def __init__(
        self, sockets: Sequence[socket.socket], lifeline: int = -1, takes_turns: bool = False
    ) -> None:
        """sockets: bound and listening. The listener does not close them.

        takes_turns: other processes accept from the same sockets, and each holds many connections.
        """
        self.sockets = {sock.fileno(): sock for sock in sockets}
        self.names = {descriptor: server_name(sock) for descriptor, sock in self.sockets.items()}
        self.lifeline = lifeline
        self.takes_turns = takes_turns
        self.accepts_at_once = 1 if takes_turns else ACCEPTS_AT_ONCE
        self.closed = False
        self.last_socket = -1  # the descriptor of the socket that had the last connection
        self.backlog_poll: select.poll | None = None  # of the listening sockets alone
        # Moments of time.monotonic(): nothing is accepted before the first, no failure is logged before the second.
        # 0.0: no limit
        self.accept_from = self.log_from = 0.0
        self.open_descriptors()

    def open_descriptors(self) -> None:
        """Open the descriptor set and the wake pipe. Each process that accepts needs its own."""
        self.forks = ForkCounter.count
        self.watched = descriptor_set()
        self.wake_reader, self.wake_writer = nonblocking_pipe()
        self.watched.register(self.wake_reader, EPOLLIN)
        if self.lifeline >= 0:
            self.watched.register(self.lifeline, EPOLLIN)
        self.accepting = False

    def open_in_child(self) -> None:
        """Replace the parent's descriptor set and wake pipe: signals must end the waits of this process.

        The listening sockets stay those of the parent.
        """
        self.close_descriptors()
        self.open_descriptors()
        try:
            signal.set_wakeup_fd(self.wake_writer, warn_on_full_buffer=False)
        except ValueError:
            pass  # only the main thread may set the descriptor

    def __iter__(self) -> Iterator[Accepted]:
        """Yield connections until close()."""
        while not self.closed:
            accepted = self.accept()
            if accepted is not None:
                yield accepted
        self.wake()  # another thread may wait, too

    def accept(self, room: bool = True, seconds: float = -1) -> Accepted | None:
        """Return the next connection, or None if a signal, wake() or the time ended the wait.

        room: False at the processor's connection limit; new connections then wait in the backlog. seconds: the
        longest wait; -1: no limit.
        """
        accepted, _ = self.wait(seconds, 1 if room else 0)
        return accepted[0] if accepted else None

    def wait(self, seconds: float, max_accepts: int) -> tuple[list[Accepted], list[int]]:
        """Wait for connections, and for the descriptors that watch() has added.

        seconds: the longest wait; -1: no limit. Return up to `max_accepts` connections (0: they wait in the
        backlog), and the watched descriptors that are ready.
        """
        if self.forks != ForkCounter.count:  # this process is a child, and has inherited the listener
            self.open_in_child()
        if accept_from := self.accept_from:  # read once: another thread may change it
            pause = accept_from - time.monotonic()
            if pause > 0:
                max_accepts = 0
                seconds = pause if seconds < 0 else min(seconds, pause)
            else:
                self.accept_from = 0.0
        accepting = max_accepts > 0 and not self.closed
        # Without this comparison the call would do nothing, once for each parked request.
        if accepting is not self.accepting:
            self.watch_sockets(accepting)
        accepted: list[Accepted] = []
        others: list[int] = []
        ready = self.watched.poll(seconds)
        if len(self.sockets) > 1 and len(ready) > 1:
            # The sockets take turns: a busy one must not keep the clients of the others waiting.
            ready.sort(key=lambda event: (event[0] <= self.last_socket, event[0]))
        for descriptor, _ in ready:
            if descriptor in self.sockets:
                self.accept_from_socket(descriptor, max_accepts - len(accepted), accepted)
                if self.takes_turns and accepted:
                    self.end_turn(descriptor)
            elif descriptor == self.wake_reader:
                try:
                    os.read(self.wake_reader, 4096)
                except BlockingIOError:
                    pass  # another thread has emptied the pipe
            elif descriptor == self.lifeline:
                self.unwatch_lifeline()
                self.close()
            else:
                others.append(descriptor)
        return accepted, others

    def unwatch_lifeline(self) -> None:
        """Stop watching the lifeline: its end would end each further wait at once, and drain() would poll."""
        try:
            self.watched.unregister(self.lifeline)
        except FileNotFoundError:
            pass  # another thread has done it

    def watch(self, descriptor: int, events: int, again: bool = False) -> None:
        """Have wait() return a descriptor when one of these epoll(7) events happens; any thread may call this.

        again: the descriptor was watched before, with EPOLLONESHOT, and is still in the set. Raises OSError.
        """
        if again:
            self.watched.modify(descriptor, events)
        else:
            self.watched.register(descriptor, events)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching a descriptor. Raises OSError."""
        self.watched.unregister(descriptor)

    def watch_sockets(self, wanted: bool) -> None:
        """Watch the listening sockets, or stop watching them: connections then wait in the backlog."""
        if wanted is not self.accepting:
            self.accepting = wanted
            for descriptor in self.sockets:
                try:
                    if wanted:
                        self.watched.register(descriptor, EPOLLIN | EPOLLEXCLUSIVE)
                    else:
                        self.watched.unregister(descriptor)
                except (FileExistsError, FileNotFoundError):
                    pass  # another thread has done it

    def limit_sends(self, seconds: float) -> None:
        """Set the longest wait of a send(2) to clients that are accepted from now on (write-timeout)."""
        for sock in self.sockets.values():
            set_timeouts(sock, send_s=seconds)

    def end_turn(self, descriptor: int) -> None:
        """Let other processes accept the next connections of a listening socket: go to the end of the list."""
        try:
            self.watched.unregister(descriptor)
            self.watched.register(descriptor, EPOLLIN | EPOLLEXCLUSIVE)
            if not self.accepting:  # another thread has stopped watching the sockets meanwhile
                self.watched.unregister(descriptor)
        except (FileExistsError, FileNotFoundError):
            pass  # another thread has done it
        let_others_run()

    def accept_from_socket(self, descriptor: int, max_accepts: int, accepted: list[Accepted]) -> None:
        """Accept up to `max_accepts` connections of one listening socket, and append them to `accepted`.

        If accept(2) fails, as for a process that is out of descriptors, nothing is accepted for ACCEPT_PAUSE_S.
        """
        listening = self.sockets[descriptor]
        for _ in range(max_accepts):
            try:
                sock, client = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return  # another process has accepted the connection, or the client has left
            except OSError as reason:
                self.accept_from = time.monotonic() + ACCEPT_PAUSE_S
                self.log_accept_failure(reason)
                return
            if not ACCEPTED_BLOCK:
                adopt_settings(sock, listening)
            if listening.family == socket.AF_UNIX:
                client = ("unix:", 0)
            self.last_socket = descriptor
            accepted.append(Accepted(sock, (client[0], client[1]), self.names[descriptor]))

    def log_accept_failure(self, reason: OSError) -> None:
        """Log that accept(2) fails, at most once in LOG_EVERY_S."""
        now = time.monotonic()
        if now >= self.log_from:
            self.log_from = now + LOG_EVERY_S
            logger.errors.error(f"cannot accept: {reason.strerror}; new connections wait until it can")

    def has_waiting(self) -> bool:
        """Return whether a client waits to be accepted."""
        if self.backlog_poll is None:
            self.backlog_poll = poll_of(self.sockets)
        return bool(self.backlog_poll.poll(0))

    def wake(self) -> None:
        """End the wait in progress. If no thread waits, end the next wait."""
        if self.wake_writer < 0:
            return
        try:
            os.write(self.wake_writer, b"\0")
        except BlockingIOError:
            pass  # the pipe is full, so the wait is about to end anyway

    def close(self) -> None:
        """Stop accepting. The sockets stay open, since other processes may share them."""
        self.closed = True
        self.wake()

    def leave(self) -> None:
        """Close the inherited sockets, set and pipe, in a forked child that runs one conversation."""
        self.closed = True
        for sock in self.sockets.values():
            sock.close()
        self.close_descriptors()

    def close_descriptors(self) -> None:
        """Close this process's copies of the set and the wake pipe; the parent's stay open."""
        reader, writer = self.wake_reader, self.wake_writer
        self.wake_reader = self.wake_writer = -1  # first: a signal handler may call wake() at any point
        os.close(reader)
        os.close(writer)
        self.watched.close()


def poll_of(descriptors: Iterable[int]) -> select.poll:
    """Return a poll object that watches descriptors for bytes, or listening sockets for clients."""
    found = select.poll()
    for descriptor in descriptors:
        found.register(descriptor, select.POLLIN)
    return found


def adopt_settings(sock: socket.socket, listening: socket.socket) -> None:
    """Make an accepted socket blocking, and copy the options of its listening socket to it."""
    sock.setblocking(True)
    if listening.family == socket.AF_UNIX:
        return
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            sock.setsockopt(
                socket.SOL_SOCKET, option, listening.getsockopt(socket.SOL_SOCKET, option, TIMEVAL.size)
            )
    except OSError:
        pass  # the client has left already; the conversation will notice it


def server_name(sock: socket.socket) -> tuple[str, int]:
    """Return the (address, port) on which a socket listens; ("localhost", 80) for a Unix socket."""
    name = sock.getsockname()
    return ("localhost", 80) if sock.family == socket.AF_UNIX else (name[0], name[1])


def socket_names(addresses: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Return the server_name() of each TCP socket at these addresses, such as 127.0.0.1 for localhost."""
    found: list[tuple[str, int]] = []
    for _, host, port in map(parse_address, addresses):
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            found += [(str(where[0]), port) for *_, where in infos]
        except (OSError, UnicodeError):  # open_sockets() fails for this reason
            found.append((host, port))
    return tuple(dict.fromkeys(found))
