"""Accepts other X-Switches: a connection that has not shown a trusted certificate gets no further.

    accepted ── Handshake ──▶ trusted: WebServerConnections.connected()
                    └──────▶ no TLS, no certificate, another CA, too slow: closed, and a line of the log

A stranger on the network reaches only this file and OpenSSL. It can cost a descriptor for HANDSHAKE_S seconds. Of
more than MAX_HANDSHAKES at once, the oldest ends. The log has at most LINES_PER_MINUTE lines of such ends.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from typing import NamedTuple

from ewe.logger import ErrorLog
from ewe.xswitch.switch.loop import EventLoop
from ewe.xswitch.switch.tls_socket import Handshake, TlsSocket, reason_of, tls_socket

HANDSHAKE_S = 5.0  # seconds that a handshake may take
MAX_HANDSHAKES = 500  # at once
LINES_PER_MINUTE = 30


class PendingHandshake(NamedTuple):
    """The handshake of a connection. peer: the address. ends_at: the monotonic time at which it takes too long."""

    handshake: Handshake
    peer: str
    ends_at: float


class TlsAcceptor:
    """Does the handshakes of accepted connections. context: used for those that are accepted from now on."""

    def __init__(
        self,
        loop: EventLoop,
        log: ErrorLog,
        context: ssl.SSLContext,
        connected: Callable[[socket.socket], None],
    ) -> None:
        """connected: called with a connection whose peer has shown a trusted certificate."""
        self.loop = loop
        self.log = log
        self.context = context
        self.connected = connected
        self.pending: dict[TlsSocket, PendingHandshake] = {}  # the oldest comes first
        self.minute = 0  # the minute of the monotonic clock in which a connection was last refused
        self.refusals = 0  # in that minute

    def accepted(self, plain: socket.socket) -> None:
        """Begin the handshake of a new connection."""
        try:
            peer = str(plain.getpeername()[0])
            sock = tls_socket(self.context, plain)
        except (OSError, ValueError) as reason:  # it has ended already, or has sent no TLS
            plain.close()
            self.log_refusal("a peer", reason_of(reason))
            return
        if len(self.pending) >= MAX_HANDSHAKES:
            self.end(next(iter(self.pending)), f"more than {MAX_HANDSHAKES} handshakes at once")
        handshake = Handshake(self.loop, sock, lambda reason: self.end(sock, reason))
        self.pending[sock] = PendingHandshake(handshake, peer, time.monotonic() + HANDSHAKE_S)

    def end(self, sock: TlsSocket, reason: str) -> None:
        """End a handshake. reason: why it has failed, "" if it has not."""
        pending = self.pending.pop(sock)
        pending.handshake.stop()
        if reason:
            sock.close()
            self.log_refusal(pending.peer, reason)
        else:
            self.connected(sock)

    def log_refusal(self, peer: str, reason: str) -> None:
        """Log that a connection was closed, unless the log has LINES_PER_MINUTE such lines of this minute."""
        minute = int(time.monotonic() // 60)
        if minute != self.minute:
            self.minute, self.refusals = minute, 0
        self.refusals += 1
        if self.refusals <= LINES_PER_MINUTE:
            more = "; no more such lines until the next minute" if self.refusals == LINES_PER_MINUTE else ""
            self.log.warning(f"{peer} was refused: {reason}{more}")

    def tick(self, now: float) -> None:
        """End the handshakes that take too long."""
        for sock in [sock for sock, pending in self.pending.items() if now > pending.ends_at]:
            self.end(sock, f"no handshake within {HANDSHAKE_S:g} s")

    def close(self) -> None:
        """End all handshakes, without a line in the log."""
        for sock, pending in self.pending.items():
            pending.handshake.stop()
            sock.close()
        self.pending.clear()
