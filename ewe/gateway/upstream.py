"""A connection to a server behind this one (a FastCGI responder, X-Switch), waited for as the model waits.

The socket does not block; where nothing can be sent or received, the client's stream says how to wait, and
notices meanwhile that the client left (ewe.programs.ProgramWaits). So the same code runs under every model.
"""

from __future__ import annotations

import errno
import os
import socket
import time

from ewe.kinds import parse_address
from ewe.programs import ProgramWaits
from ewe.streams import RECEIVE, Timeout

CROWDED = (
    0.05  # seconds between two tries where a Unix socket's backlog is full: nothing tells when it is not
)


class Place:
    """Where a server is: unix:PATH or HOST:PORT, looked up once. Raises ValueError for anything else."""

    def __init__(self, address: str) -> None:
        family, host, port = parse_address(address)
        self.address = address
        self.target: str | tuple[str, int]
        if family == "unix":
            self.family, self.target = socket.AF_UNIX, host
        elif family == "tcp":
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            except socket.gaierror as reason:
                raise ValueError(f"{address}: the host is unknown ({reason.strerror})") from None
            self.family, self.target = found[0], found[4][:2]  # type: ignore[assignment]
        else:
            raise ValueError(f"{address}: expected unix:PATH or HOST:PORT")

    async def connect(self, waits: ProgramWaits, seconds: float) -> Upstream:
        """Connect within so many seconds. Raises OSError, Timeout, Disconnected."""
        sock = socket.socket(self.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            await self.connected(sock, waits, seconds)
            if self.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            sock.close()
            raise
        return Upstream(sock, waits)

    async def connected(self, sock: socket.socket, waits: ProgramWaits, seconds: float) -> None:
        """Return once the socket is connected."""
        since = time.monotonic()
        while True:
            number = sock.connect_ex(self.target)
            if number in (0, errno.EISCONN):
                return
            left = since + seconds - time.monotonic()
            if left <= 0:
                raise Timeout
            if number == errno.EINPROGRESS:
                if not await waits.wait([], since, left, sock.fileno()):
                    raise Timeout
                number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not number:
                    return
            elif number == errno.EAGAIN:
                await waits.wait([], since, min(CROWDED, left))
                continue
            raise OSError(number, os.strerror(number))


class Upstream:
    """One connection. waits: of the client it serves just now."""

    def __init__(self, sock: socket.socket, waits: ProgramWaits) -> None:
        self.socket = sock
        self.descriptor = sock.fileno()
        self.waits = waits
        self.asked = False  # something was sent, and nothing has come since

    def is_open(self) -> bool:
        """Is an idle connection still good? One that its server closed, or on which it spoke, is not."""
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    async def exchange(self, outgoing: memoryview, seconds: float) -> tuple[memoryview, bytes | None]:
        """Send and receive what is possible, at least something of either.

        Return what is left to send, and the bytes that came: b"" at the end, None for none yet. A server may
        answer before it has read all, so neither direction waits for the other. Raises Timeout after so many
        seconds without either, OSError for a connection that is lost, Disconnected when the client left.
        """
        since = time.monotonic()
        descriptor = self.descriptor
        while True:
            sent = 0
            if outgoing:
                try:
                    sent = self.socket.send(outgoing)
                except BlockingIOError:
                    pass
                except BrokenPipeError:  # it reads no more, but may have said something
                    outgoing = memoryview(b"")
            data: bytes | None = None
            if sent:
                self.asked = True
            elif self.asked:  # so soon there is hardly an answer: wait first
                self.asked = False
            else:
                try:
                    data = self.socket.recv(RECEIVE)
                except BlockingIOError:
                    pass
            if sent or data is not None:
                return outgoing[sent:], data
            left = since + seconds - time.monotonic()
            writable = descriptor if outgoing else -1
            if left <= 0 or not await self.waits.wait([descriptor], since, left, writable, True):
                raise Timeout

    def close(self) -> None:
        """Close the connection."""
        if self.descriptor >= 0:
            self.waits.forget(self.descriptor)
            self.descriptor = -1
            self.socket.close()

    def __del__(self) -> None:
        """Idle ones go with their site when it is replaced."""
        self.close()
