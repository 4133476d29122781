"""Listening sockets: opening them, waiting for connections, accepting.

    addresses ── open_sockets() ─▶ sockets ── Listener(sockets), one per process ─▶ Accepted, Accepted, ...

The sockets are opened once, before the server drops its privileges and forks workers. Each process that accepts
has its own Listener over the shared sockets: a set of descriptors (an epoll(7), or what stands for it:
descriptor_set.py) and a wake pipe. The set has

- the listening sockets, with EPOLLEXCLUSIVE, so that one process wakes for a connection and not all;
- the wake pipe: a signal handler, or another thread, writes a byte to end the wait;
- the lifeline: a pipe that the supervisor holds open. It reaches its end when the supervisor dies, however it dies;
- what a model adds with watch(): the pool's parked connections.

On Linux an accepted socket blocks, and has the time limits of the listening socket. Elsewhere it does not block if
the listening socket does not, and whether it has its time limits is each system's decision; take() sets both there.

What can go wrong: at the ceiling a model stops watching the sockets, and new connections wait in the kernel's
backlog. Without a free descriptor accept(2) fails while the connection stays at the head of the backlog, so that
epoll would report it again at once, and the process would spin; the listener stops accepting for PAUSE seconds.

Read next: processors/serial.py, the shortest model.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ewe import logger
from ewe.config.messages import Failure
from ewe.config.setting_types import parse_address
from ewe.streams.blocking import SLICE, TIMEVAL, set_timeouts
from ewe.streams.descriptor_set import EPOLLEXCLUSIVE, EPOLLIN, descriptor_set
from ewe.streams.descriptors import EXHAUSTED, nonblocking_pipe

# For asyncio's servers of Unix sockets. Python 3.13 would remove the socket's path with the server, but other
# workers may still need the path, and the server's user may not be allowed to look for it.
KEEPS_NAME: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
MAX_UNIX_PATH = (
    107 if sys.platform == "linux" else 103
)  # bytes, unix(7); the smaller one is that of BSD and macOS
ACCEPTS = 16  # connections that are accepted at once, before the open connections have their turn
PAUSE = 0.1  # seconds without accepting when the system has no descriptor or memory left
COMPLAIN = 10.0  # seconds between two lines of the log about that
# Whether Python accepts with accept4(2): the new socket then blocks, although the listening socket does not.
# Systems that have this call have the constant, too.
ACCEPTED_BLOCK = hasattr(socket, "SOCK_NONBLOCK")


class Forks:
    """Counts the forks between the first process and this one: a Listener sees by it that it was inherited."""

    count = 0


def forked() -> None:
    """Count a fork, in the child."""
    Forks.count += 1


os.register_at_fork(after_in_child=forked)


class StartError(Failure):
    """The server cannot start; the text is one line that says why and what to do."""


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
    try:
        for address in addresses:
            for sock in open_address(address):
                sock.listen(backlog)
                sock.setblocking(False)
                if sock.family != socket.AF_UNIX:
                    # Accepted sockets inherit these options, which saves three system calls per connection.
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    set_timeouts(sock, SLICE, write_timeout)
                sockets.append(sock)
    except (OSError, UnicodeError) as reason:  # a host label over 63 characters is a UnicodeError
        close_sockets(sockets)
        raise StartError(explain(address, reason)) from None
    return sockets


def open_address(address: str) -> Iterator[socket.socket]:
    """Yield a bound socket for each network address that an address of the settings stands for. Raises OSError."""
    family, host, number = parse_address(address)
    if family == "unix":
        yield open_unix(host)
    elif family == "fd":
        yield socket.socket(fileno=number)
    else:
        kinds = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for tcp, kind, protocol, _, where in dict.fromkeys(kinds):
            sock = socket.socket(tcp, kind, protocol)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if tcp == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind(where)
            except OSError:
                sock.close()
                raise
            yield sock


def try_address(address: str) -> str:
    """Return a note on what open_sockets() would meet, "" if nothing; without listening or changing a name.

    Raises StartError if open_sockets() would fail. An address in use is only a note.
    """
    family, host, _ = parse_address(address)
    if family == "fd":
        return f"{address} comes from the program that starts the server, and cannot be checked"
    if family == "unix":
        return try_unix(host)
    try:
        for sock in open_address(address):
            sock.close()
    except (OSError, UnicodeError) as reason:
        if isinstance(reason, OSError) and reason.errno == errno.EADDRINUSE:
            return f"{address} is in use, by this server or by another"
        raise StartError(explain(address, reason)) from None
    return ""


def try_unix(path: str) -> str:
    """Return a note if the Unix socket exists, "" if not. Raises StartError for a path that cannot be bound."""
    directory = os.path.dirname(os.path.abspath(path))
    if os.path.exists(path):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise StartError(f"unix:{path} is there and no socket; choose another path")
        return f"unix:{path} is there: a server uses it, or has left it behind"
    if not os.path.isdir(directory):
        raise StartError(f"unix:{path}: there is no directory {directory}; make it")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise StartError(f"unix:{path}: {directory} may not be written; choose another path")
    if len(os.fsencode(path)) > MAX_UNIX_PATH:
        raise StartError(f"unix:{path} has more than {MAX_UNIX_PATH} bytes; choose a shorter path")
    return ""


def open_unix(path: str) -> socket.socket:
    """Bind a Unix socket, and remove first what a dead server has left there. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                try:
                    probe.connect(path)
                except ConnectionRefusedError:
                    os.unlink(path)
        sock.bind(path)
        os.chmod(path, 0o666)  # a proxy runs as another user; the directory says who may connect
    except OSError:
        sock.close()
        raise
    return sock


def explain(address: str, reason: OSError | UnicodeError) -> str:
    """Return one line that says why an address cannot be opened, and what to do."""
    if isinstance(reason, UnicodeError):
        return f"{address}: the host is malformed"
    if reason.errno == errno.EADDRINUSE:
        advice = "another path" if address.startswith("unix:") else "another port, or 0 for a free one"
        return f"{address} is in use by another server; choose {advice}"
    if reason.errno == errno.EADDRNOTAVAIL:
        return f"{address} is not an address of this machine; 127.0.0.1 always is, 0.0.0.0 means all"
    if reason.errno == errno.EACCES:
        return f"{address} may not be opened without privileges; choose a port above 1023"
    if isinstance(reason, socket.gaierror):
        return f"{address}: the host is unknown ({reason.strerror})"
    return f"cannot listen on {address}: {reason.strerror or reason}"


def close_sockets(sockets: Sequence[socket.socket]) -> None:
    """Close listening sockets, and remove the paths of Unix sockets."""
    for sock in sockets:
        name = sock.getsockname() if sock.family == socket.AF_UNIX else ""
        sock.close()
        if name and isinstance(name, str):
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
    """What a processor accepts connections from: all listening sockets of the server, for one process.

    The simplest processor is `for accepted in listener: ...`. The loop ends after close(); wake() ends a wait
    early. A signal handler or another thread may call both. Several threads may have such a loop, and a forked
    child may go on with it. lifeline: a descriptor that reaches its end when the supervisor dies.
    """

    def __init__(self, sockets: Sequence[socket.socket], lifeline: int = -1) -> None:
        """sockets: bound and listening; they stay the caller's."""
        self.sockets = {sock.fileno(): sock for sock in sockets}
        self.names = {number: server_name(sock) for number, sock in self.sockets.items()}
        self.lifeline = lifeline
        self.closed = False
        self.accept_from = self.complain_from = 0.0
        self.open()

    def open(self) -> None:
        """Open the set of descriptors and the wake pipe; each process that accepts needs its own."""
        self.forks = Forks.count
        self.watched = descriptor_set()
        self.wake_reader, self.wake_writer = nonblocking_pipe()
        self.watched.register(self.wake_reader, EPOLLIN)
        if self.lifeline >= 0:
            self.watched.register(self.lifeline, EPOLLIN)
        self.accepting = False

    def open_in_child(self) -> None:
        """Replace the parent's set and wake pipe by our own; signals end the waits of this process."""
        self.close_waiting()
        self.open()
        try:
            signal.set_wakeup_fd(self.wake_writer, warn_on_full_buffer=False)
        except ValueError:
            pass  # not in this thread

    def __iter__(self) -> Iterator[Accepted]:
        """Yield connections until close()."""
        while not self.closed:
            accepted = self.accept()
            if accepted is not None:
                yield accepted
        self.wake()  # pass the wake-up on: another thread may wait too

    def accept(self, room: bool = True) -> Accepted | None:
        """Return the next connection; None if a signal or wake() ended the wait: the caller looks and calls again.

        room: False at a processor's ceiling: accept nothing, so that new connections wait in the backlog.
        """
        accepted, _ = self.wait(-1, 1 if room else 0)
        return accepted[0] if accepted else None

    def wait(self, seconds: float, most: int) -> tuple[list[Accepted], list[int]]:
        """Wait for connections, and for the descriptors that watch() was told of.

        seconds: at most so long; -1: without a limit. Return up to `most` connections of each listening socket, and
        the watched descriptors that are ready.
        """
        if self.forks != Forks.count:
            self.open_in_child()
        now = time.monotonic() if self.accept_from else 0.0
        if now < self.accept_from:
            most = 0
            seconds = self.accept_from - now
        elif self.accept_from:
            self.accept_from = 0.0
        self.watch_sockets(most > 0 and not self.closed)
        accepted: list[Accepted] = []
        others: list[int] = []
        for number, _ in self.watched.poll(seconds):
            if number in self.sockets:
                self.take(number, most, accepted)
            elif number == self.wake_reader:
                try:
                    os.read(self.wake_reader, 4096)
                except BlockingIOError:
                    pass  # another thread has emptied the pipe
            elif number == self.lifeline:
                self.leave_lifeline()
                self.close()
            else:
                others.append(number)
        return accepted, others

    def leave_lifeline(self) -> None:
        """Stop watching the lifeline: its end would end each further wait at once, and a drain would spin."""
        try:
            self.watched.unregister(self.lifeline)
        except FileNotFoundError:
            pass  # another thread has done it

    def watch(self, descriptor: int, events: int, again: bool = False) -> None:
        """Have wait() return a descriptor when one of the epoll(7) events has come; any thread may call this.

        again: the descriptor was watched before, with EPOLLONESHOT, and is still known. Raises OSError.
        """
        (self.watched.modify if again else self.watched.register)(descriptor, events)

    def unwatch(self, descriptor: int) -> None:
        """Forget a watched descriptor. Raises OSError."""
        self.watched.unregister(descriptor)

    def watch_sockets(self, wanted: bool) -> None:
        """Watch the listening sockets, or stop watching: connections then wait in the backlog."""
        if wanted is not self.accepting:
            self.accepting = wanted
            for number in self.sockets:
                try:
                    if wanted:
                        self.watched.register(number, EPOLLIN | EPOLLEXCLUSIVE)
                    else:
                        self.watched.unregister(number)
                except (FileExistsError, FileNotFoundError):
                    pass  # another thread has done it

    def take(self, number: int, most: int, accepted: list[Accepted]) -> None:
        """Accept up to `most` connections of one socket."""
        listening = self.sockets[number]
        for _ in range(most):
            try:
                sock, client = listening.accept()
            except BlockingIOError:
                return  # another process has accepted the connection
            except OSError as reason:
                if reason.errno in EXHAUSTED:
                    self.accept_from = time.monotonic() + PAUSE
                    self.complain(reason)
                return
            if not ACCEPTED_BLOCK:
                adopt_settings(sock, listening)
            if listening.family == socket.AF_UNIX:
                client = ("unix:", 0)
            accepted.append(Accepted(sock, (client[0], client[1]), self.names[number]))

    def complain(self, reason: OSError) -> None:
        """Log that nothing can be accepted, once in COMPLAIN seconds."""
        now = time.monotonic()
        if now >= self.complain_from:
            self.complain_from = now + COMPLAIN
            logger.errors.error(f"cannot accept: {reason.strerror}; new connections wait until it can")

    def wake(self) -> None:
        """End the wait in progress, if this process waits at all."""
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
        """Close all that is the parent's, in a forked child that holds one conversation and accepts nothing."""
        self.closed = True
        for sock in self.sockets.values():
            sock.close()
        self.close_waiting()

    def close_waiting(self) -> None:
        """Close this process's copies of the set and the wake pipe; the parent's stay open."""
        reader, writer = self.wake_reader, self.wake_writer
        self.wake_reader = self.wake_writer = -1  # first: a signal handler may call wake() at any point
        os.close(reader)
        os.close(writer)
        self.watched.close()


def adopt_settings(sock: socket.socket, listening: socket.socket) -> None:
    """Have an accepted socket block, with the options that its listening socket was given for it."""
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
        pass  # the client has left already; its conversation finds out


def server_name(sock: socket.socket) -> tuple[str, int]:
    """Return the (address, port) that a socket listens on; ("localhost", 80) for a Unix socket."""
    name = sock.getsockname()
    return ("localhost", 80) if sock.family == socket.AF_UNIX else (name[0], name[1])
