"""Listening sockets: opened from addresses, waited for, and the connections taken off them."""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from select import EPOLLEXCLUSIVE, EPOLLIN, epoll
from typing import Any

from ewe import logger
from ewe.kinds import parse_address
from ewe.streams import SLICE, set_timeouts

OVERLOADED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
# For asyncio's servers of Unix sockets: Python 3.13 would remove the name with the server, which other workers
# may still need, and look for it, where its user may not be allowed to look.
KEEPS_NAME: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
PAUSE = 0.1  # seconds without accepting when the system has no descriptor or memory left
COMPLAIN = 10.0  # seconds between two complaints about that


class StartError(Exception):
    """The server cannot start; the text is one line that says why and what to do."""


class Accepted:
    """One accepted connection. client, server: (address, port); ("unix:", 0) over a Unix socket."""

    __slots__ = ("client", "server", "socket")

    def __init__(self, sock: socket.socket, client: tuple[str, int], server: tuple[str, int]) -> None:
        self.socket = sock
        self.client = client
        self.server = server


def open_sockets(addresses: Sequence[str], backlog: int, write_timeout: float) -> list[socket.socket]:
    """Listen on HOST:PORT, [V6]:PORT, unix:PATH and fd://N. Raises StartError."""
    sockets: list[socket.socket] = []
    try:
        for address in addresses:
            for sock in open_address(address):
                sock.listen(backlog)
                sock.setblocking(False)
                if sock.family != socket.AF_UNIX:
                    # Accepted sockets inherit these, so that none of them costs a call per connection.
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    set_timeouts(sock, SLICE, write_timeout)
                sockets.append(sock)
    except (OSError, UnicodeError) as reason:  # a host label over 63 characters is a UnicodeError
        close_sockets(sockets)
        raise StartError(explain(address, reason)) from None
    return sockets


def open_address(address: str) -> Iterator[socket.socket]:
    """Yield a bound socket for each address that one text stands for. Raises OSError."""
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


def open_unix(path: str) -> socket.socket:
    """Bind a Unix socket; one that a dead server left is removed, a live one is not. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                try:
                    probe.connect(path)
                except ConnectionRefusedError:
                    os.unlink(path)
        sock.bind(path)
        os.chmod(path, 0o666)  # a proxy runs as somebody else; the directory says who may come in
    except OSError:
        sock.close()
        raise
    return sock


def explain(address: str, reason: OSError | UnicodeError) -> str:
    """Return one line that says why an address cannot be listened on, and what to do."""
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
    """Close listening sockets, and remove the names of Unix ones."""
    for sock in sockets:
        name = sock.getsockname() if sock.family == socket.AF_UNIX else ""
        sock.close()
        if name and isinstance(name, str):
            try:
                os.unlink(name)
            except OSError:
                pass


def url(sock: socket.socket, scheme: str) -> str:
    """Return where a listening socket can be reached."""
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"{scheme}://{host}:{name[1]}/"


class Listener:
    """What a processor accepts connections from: all listening sockets of the server, as one process sees them.

    A processor in its simplest form is `for accepted in listener: ...`. The loop ends after close(), which
    may be called by a signal handler or another thread; wake() ends a wait early. lifeline: a descriptor
    that reaches its end when the supervisor dies.
    """

    def __init__(self, sockets: Sequence[socket.socket], lifeline: int = -1) -> None:
        """Make it in the process that accepts: an epoll descriptor is not to be shared."""
        self.sockets = {sock.fileno(): sock for sock in sockets}
        self.names = {number: server_name(sock) for number, sock in self.sockets.items()}
        self.epoll = epoll()
        self.wake_reader, self.wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.epoll.register(self.wake_reader, EPOLLIN)
        self.lifeline = lifeline
        if lifeline >= 0:
            self.epoll.register(lifeline, EPOLLIN)
        self.closed = False
        self.accepting = False
        self.accept_from = self.complain_from = 0.0

    def __iter__(self) -> Iterator[Accepted]:
        """Yield connections until close()."""
        while not self.closed:
            accepted = self.accept()
            if accepted is not None:
                yield accepted

    def accept(self, room: bool = True) -> Accepted | None:
        """Wait for the next connection. None: woken by a signal or wake(); look around and call again.

        room: False at a processor's ceiling, so that new connections wait in the backlog.
        """
        accepted, _ = self.wait(-1, 1 if room else 0)
        return accepted[0] if accepted else None

    def wait(self, seconds: float, most: int) -> tuple[list[Accepted], list[int]]:
        """Wait for connections, and for other descriptors registered with self.epoll; seconds: -1 for ever.

        Return at most `most` connections of each socket, and the other descriptors that are ready.
        """
        now = time.monotonic() if self.accept_from else 0.0
        if now < self.accept_from:
            most = 0
            seconds = self.accept_from - now
        elif self.accept_from:
            self.accept_from = 0.0
        self.watch_sockets(most > 0 and not self.closed)
        accepted: list[Accepted] = []
        others: list[int] = []
        for number, _ in self.epoll.poll(seconds):
            if number in self.sockets:
                self.take(number, most, accepted)
            elif number == self.wake_reader:
                os.read(self.wake_reader, 4096)
            elif number == self.lifeline:
                self.close()
            else:
                others.append(number)
        return accepted, others

    def watch_sockets(self, wanted: bool) -> None:
        """Watch the listening sockets or do not: what is not accepted waits in the backlog."""
        if wanted is not self.accepting:
            self.accepting = wanted
            for number in self.sockets:
                if wanted:
                    self.epoll.register(number, EPOLLIN | EPOLLEXCLUSIVE)  # one process wakes, not all
                else:
                    self.epoll.unregister(number)

    def take(self, number: int, most: int, accepted: list[Accepted]) -> None:
        """Accept up to `most` connections of one socket."""
        listening = self.sockets[number]
        for _ in range(most):
            try:
                sock, client = listening.accept()
            except BlockingIOError:
                return  # another process was quicker
            except OSError as reason:
                if reason.errno in OVERLOADED:
                    self.accept_from = time.monotonic() + PAUSE
                    self.complain(reason)
                return
            if listening.family == socket.AF_UNIX:
                client = ("unix:", 0)
            accepted.append(Accepted(sock, (client[0], client[1]), self.names[number]))

    def complain(self, reason: OSError) -> None:
        """Say that nothing can be accepted, but not each time."""
        now = time.monotonic()
        if now >= self.complain_from:
            self.complain_from = now + COMPLAIN
            logger.errors.error(f"cannot accept: {reason.strerror}; new connections wait until it can")

    def wake(self) -> None:
        """End the wait in progress."""
        try:
            os.write(self.wake_writer, b"\0")
        except BlockingIOError:
            pass  # it is about to end anyway

    def close(self) -> None:
        """Accept no more. The sockets stay open: other processes may share them."""
        self.closed = True
        self.wake()

    def release(self) -> None:
        """Close what only waiting needs: in a forked child, and at the end."""
        for number in (self.wake_reader, self.wake_writer):
            os.close(number)
        self.epoll.close()


def server_name(sock: socket.socket) -> tuple[str, int]:
    """Return the (address, port) a socket listens on."""
    name = sock.getsockname()
    return ("localhost", 80) if sock.family == socket.AF_UNIX else (name[0], name[1])
