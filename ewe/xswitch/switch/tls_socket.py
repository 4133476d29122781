"""TLS in the main process: a socket that the other parts use like a plain one, and the handshake before that.

WebServerConnection, Engine and Outbox call recv(), send(), shutdown() and close() of a socket that never waits. A
TlsSocket has the same calls. The parts above it therefore do not know about TLS:

    recv()    reads as many whole TLS records as fit. No decrypted byte stays behind in OpenSSL, where epoll does
              not see it
    send()    writes record after record, until the kernel's buffer is full

Only the handshake differs: it reads and writes by turns, and epoll has to be told what it waits for. A Handshake
does that, and reports its end once.

No renegotiation exists in TLS 1.3, so reading and writing never wait for each other after the handshake.

Source: RFC 8446. Read next: far_engine.py (the end that connects), tls_acceptor.py (the other end).
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any

from ewe.xswitch.switch.loop import EventLoop

RECORD_BYTES = 16 * 1024  # of data in one record at most: RFC 8446 section 5.1
# A peer that has gone without a word is noticed after about half a minute, also if nothing is sent to it.
KEEPALIVE_IDLE_S = 10
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_PROBES = 4
UNACKNOWLEDGED_MS = 30_000  # that sent bytes may stay unacknowledged


class TlsSocket(ssl.SSLSocket):
    """A TLS connection that never waits. fault: why it has ended, for the log; "" if the peer has closed it."""

    fault = ""

    def recv(self, limit: int = RECORD_BYTES, flags: int = 0) -> bytes:
        """Return the data of whole records; b"" at the end. Raises BlockingIOError if none has arrived.

        One record is read even above the limit, since OpenSSL could keep a rest. flags: ignored.
        """
        pieces: list[bytes] = []
        bytes_left = max(limit, RECORD_BYTES)
        while bytes_left >= RECORD_BYTES:
            try:
                piece = super().recv(RECORD_BYTES)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not pieces:
                    raise BlockingIOError from None
                break
            except OSError as reason:
                self.fault = self.fault or reason_of(reason)
                piece = b""
            if not piece:
                break
            pieces.append(piece)
            bytes_left -= len(piece)
        return b"".join(pieces)

    def send(self, data: Any, flags: int = 0) -> int:
        """Return how many bytes were sent. Raises BlockingIOError if the kernel has no room, OSError."""
        sent = 0
        view = memoryview(data)
        while sent < len(view):
            try:
                # One record at a time. After a write that was not complete OpenSSL expects the same bytes again,
                # and at least as many as it has taken. The outbox may offer fewer of a long piece (WRITE_BYTES).
                sent += super().send(view[sent : sent + RECORD_BYTES])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not sent:
                    raise BlockingIOError from None
                break
        return sent

    def shutdown(self, how: int) -> None:
        """Shut the connection down. What the peer still sends is decrypted as before."""
        socket.socket.shutdown(self, how)


def tls_socket(context: ssl.SSLContext, sock: socket.socket, server_hostname: str | None = None) -> TlsSocket:
    """Return a socket with TLS. server_hostname: of the peer, for the end that connects; it connects afterwards."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
    context.sslsocket_class = TlsSocket
    tls_sock = context.wrap_socket(
        sock,
        server_side=server_hostname is None,
        do_handshake_on_connect=False,
        server_hostname=server_hostname,
    )
    assert isinstance(tls_sock, TlsSocket)
    tls_sock.fault = ""  # wrap_socket() tries to read from a socket that is not connected
    return tls_sock


class Handshake:
    """Does the handshake of one connection in the event loop."""

    def __init__(self, loop: EventLoop, sock: TlsSocket, on_end: Callable[[str], None]) -> None:
        """on_end: called once, with the reason of a failure, or "". The loop does not watch the socket then."""
        self.loop = loop
        self.sock = sock
        self.on_end = on_end
        loop.add_writer(sock, self.step)  # it can be written once it is connected

    def step(self) -> None:
        """Go on until the handshake waits for the peer, or has ended."""
        self.stop()
        try:
            if error := self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):  # of connect(2)
                raise OSError(error, os.strerror(error))
            self.sock.do_handshake()
        except ssl.SSLWantReadError:
            self.loop.add_reader(self.sock, self.step)
        except ssl.SSLWantWriteError:
            self.loop.add_writer(self.sock, self.step)
        except (OSError, ValueError) as reason:
            # ENOTCONN: the event was that of a former file with this number (loop.py)
            if getattr(reason, "errno", 0) == errno.ENOTCONN:
                self.loop.add_writer(self.sock, self.step)
            else:
                self.on_end(reason_of(reason))
        else:
            self.on_end("")

    def stop(self) -> None:
        """Watch the socket no more."""
        self.loop.remove_reader(self.sock)
        self.loop.remove_writer(self.sock)


def reason_of(error: Exception) -> str:
    """Return the cause of a failed connection, in one line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError):
        return "it closed the connection"
    if isinstance(error, ssl.SSLError):
        words = (error.reason or "no TLS").lower().replace("_", " ")
        if "alert" in words:
            return f"it refuses the certificate of this X-Switch, or the handshake ({words})"
        return words
    return getattr(error, "strerror", None) or str(error)
