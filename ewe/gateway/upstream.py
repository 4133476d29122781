"""Upstream: a connection to a server behind this one: an HTTP server, a FastCGI responder or X-Switch.

    client ◀── Stream ── feature ── Upstream ── socket, not blocking ──▶ responder
                                       └── waits with the poller of the client's stream

The socket never blocks. When nothing can be sent or received, the poller of the client's stream waits, in the way
of the model that runs the client's conversation, and notices if the client leaves. The same code therefore runs
under every model. A connection can be kept for the next request; it then gets the poller of the next client.

Read next: streams/poller.py; connections.py, which opens and keeps connections; responder.py, which uses one.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from socket import SocketType  # without the Python methods that socket.socket adds to each call
from typing import Any

from ewe.config.setting_types import parse_address
from ewe.streams.base import RECEIVE_BYTES, Poller, Timeout

# Seconds between two tries while a Unix socket's backlog is full. No event reports that it has room again.
RETRY_CONNECT_S = 0.05
# The type of new sockets, which do not block; some systems have no SOCK_NONBLOCK
SOCKET_TYPE = socket.SOCK_STREAM | getattr(socket, "SOCK_NONBLOCK", 0)


class UpstreamAddress:
    """The address of a server, unix:PATH or HOST:PORT; the host is looked up once. Raises ValueError.

    connections.py keeps three facts here. idle_connections: kept for later requests. open_count: the number of all
    connections, with those that are being made. left_out_until: on time.monotonic(), 0 while the server can be
    reached.
    """

    def __init__(self, address: str) -> None:
        kind, host, port = parse_address(address)
        self.text = address
        self.idle_connections: list[Upstream] = []
        self.open_count = 0
        self.left_out_until = 0.0
        # Families and arguments of connect(2): localhost may be ::1 and 127.0.0.1, and the server at one of them
        self.targets: list[tuple[int, Any]]
        if kind == "unix":
            self.targets = [(socket.AF_UNIX, host)]
        elif kind == "tcp":
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except socket.gaierror as reason:
                raise ValueError(f"{address}: the host is unknown ({reason.strerror})") from None
            # `where` of an IPv6 address has four items. The last one is the number of an interface, without which
            # connect(2) refuses a link-local address.
            self.targets = [(family, where) for family, _, _, _, where in found]
        else:
            raise ValueError(f"{address}: expected unix:PATH or HOST:PORT")

    async def connect(self, poller: Poller, seconds: float) -> Upstream:
        """Return a new connection to the address. Raises OSError; Timeout after `seconds`; Disconnected.

        poller: that of the client for whom the connection is made. It waits for the connection, and raises
        Disconnected if this client leaves.

        The targets are tried one after the other. A target may drop each packet, as a broken route of IPv6 does.
        Each therefore gets an equal share of the time that is left, and later connections try a silent one last.
        """
        *others, last = self.targets
        deadline = time.monotonic() + seconds
        for tried, target in enumerate(others):
            share_s = (deadline - time.monotonic()) / (len(others) + 1 - tried)
            try:
                return await self.connect_to(*target, poller, share_s)
            except OSError:
                pass  # the next target may answer
            except Timeout:
                self.targets = [*(each for each in self.targets if each is not target), target]
        return await self.connect_to(*last, poller, deadline - time.monotonic())

    async def connect_to(self, family: int, target: Any, poller: Poller, seconds: float) -> Upstream:
        """Return a new connection to one of the targets. Raises as connect()."""
        sock = SocketType(family, SOCKET_TYPE)
        try:
            if SOCKET_TYPE == socket.SOCK_STREAM:  # this system has no SOCK_NONBLOCK
                sock.setblocking(False)
            # A Unix socket connects at once, or its backlog is full.
            if error := sock.connect_ex(target):
                await self.wait_until_connected(sock, target, error, poller, seconds)
            if family != socket.AF_UNIX:
                # Otherwise the kernel would hold back the last, short piece of a request until the server has
                # acknowledged the pieces before it.
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            sock.close()
            raise
        return Upstream(sock, poller, self)

    async def wait_until_connected(
        self, sock: SocketType, target: Any, error: int, poller: Poller, seconds: float
    ) -> None:
        """Wait until the socket is connected. Raises OSError, Timeout, Disconnected.

        error: the errno of the first connect(2).

        - EINPROGRESS: the socket becomes writable when TCP has connected or failed. SO_ERROR holds the result.
        - EAGAIN: the backlog of a Unix socket is full. connect(2) is repeated.
        """
        # Pollers also want the time of the program's last output. An upstream has sent nothing before this moment.
        since = time.monotonic()
        while error not in (0, errno.EISCONN):
            left_s = since + seconds - time.monotonic()
            if left_s <= 0:
                raise Timeout
            if error == errno.EINPROGRESS:
                if not await poller.wait([], since, left_s, writable=sock.fileno()):
                    raise Timeout
                error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not error:
                    return
            elif error == errno.EAGAIN:
                await poller.wait([], since, min(RETRY_CONNECT_S, left_s))
                error = sock.connect_ex(target)
                continue
            raise OSError(error, os.strerror(error))


class Upstream:
    """One connection to an address. poller: that of the client that the connection serves now.

    requester: the codec's end of the connection (responder.py), which numbers the requests; None before the first
    one, and if the upstream speaks HTTP. was_reset: send() has met a reset of the connection.
    """

    __slots__ = (
        "address", "awaits_answer", "descriptor", "poller", "requester", "socket", "was_reset", "written_bytes",
    )  # fmt: skip

    def __init__(self, sock: SocketType, poller: Poller, address: UpstreamAddress) -> None:
        self.address = address
        self.socket = sock
        self.descriptor = sock.fileno()
        self.poller = poller
        self.awaits_answer = False  # bytes were sent, and since then nothing was received or waited for
        self.written_bytes = 0  # for all requests together
        self.was_reset = False
        self.requester: Any = None

    def is_open(self) -> bool:
        """Return whether an idle connection is still good: its server has neither closed it nor sent anything."""
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def send(self, data: bytes | memoryview) -> int:
        """Send the bytes that the kernel accepts now, and return their number. Raises OSError."""
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            return 0
        except ConnectionResetError:
            self.was_reset = True
            raise
        self.awaits_answer = True
        self.written_bytes += sent
        return sent

    def receive_now(self) -> bytes | None:
        """Return the bytes that have arrived, b"" at the end, None if there are none. Raises OSError."""
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        self.awaits_answer = False
        if not data:
            self.check_reset()
        return data

    def check_reset(self) -> None:
        """Raise ConnectionResetError if the connection has ended by a reset, which the kernel reports only once."""
        if self.was_reset:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    def end_sending(self) -> None:
        """Tell the server that the request is complete: shut down the sending side."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the next receive() meets the end

    async def receive(self, seconds: float) -> bytes:
        """Return the next bytes, b"" at the end.

        Raises Timeout after `seconds` without any, OSError if the connection is lost, Disconnected if the client
        has left.
        """
        since = time.monotonic()
        waited = False
        while True:
            # Just after a request was sent, its answer has hardly come: wait first, and save a recv(2)
            if not self.awaits_answer:
                try:
                    data = self.socket.recv(RECEIVE_BYTES)
                except BlockingIOError:
                    pass
                else:
                    if not data:
                        self.check_reset()
                    if not waited:
                        await self.poller.share(len(data))
                    return data
            self.awaits_answer = False
            left_s = since + seconds - time.monotonic()
            if left_s <= 0 or not await self.poller.readable(self.descriptor, since, left_s):
                raise Timeout
            waited = True

    async def exchange(self, outgoing: memoryview, seconds: float) -> tuple[memoryview, bytes | None]:
        """Wait until something can be sent or received, and do it.

        Return the unsent rest of `outgoing`, and the bytes that arrived: b"" at the end, None if none arrived. A
        server may answer before it has read the whole request, so neither direction waits for the other. Raises as
        receive().

        If the server closes the connection before it has read the whole request, TCP resets it. The bytes of the
        answer that arrived before the reset are returned all the same.
        """
        since = time.monotonic()
        descriptor = self.descriptor
        while outgoing:
            try:
                sent = self.send(outgoing)
            except (BrokenPipeError, ConnectionResetError):
                break
            data = None if sent else self.receive_now()
            if sent or data is not None:
                await self.poller.share(sent + len(data or b""))
                return outgoing[sent:], data
            left_s = since + seconds - time.monotonic()
            if left_s <= 0 or not await self.poller.wait([descriptor], since, left_s, descriptor):
                raise Timeout
        return memoryview(b""), await self.receive(seconds)

    def close(self) -> None:
        """Close the connection."""
        if self.descriptor >= 0:
            self.poller.forget(self.descriptor)
            self.descriptor = -1
            self.socket.close()

    def __del__(self) -> None:
        """Close an idle connection when its site is replaced, after a reload."""
        self.close()
