"""Engines on another machine: requests go, as FastCGI over TLS, to the X-Switch there, which has the engines.

    web server ── Exchange ── FarConnection ═══TLS═══▶ the other X-Switch ── its engines, users and files
                                  │
                              FarEngine, one for each [engines.NAME] with an `address`

The other X-Switch decides everything about a script: whether it exists and may run, its owner, its engine and its
time. It divides its engines among users, and refuses what is too much. Here a FarEngine is one more engine of the
scheduler, with room for `connections` requests. Each request has a connection to itself, so none waits behind
another one, and back-pressure is that of TCP. Connections are kept for later requests.

Whether the other machine answers is one state for all requests:

    UNKNOWN ---answers--> UP ---no connection, no TLS, or SILENT_S without an answer---> DOWN
                           ^                                                              |
                           +------ answers, at a new connection each RETRY_S -------------+

One more connection, the health check, carries no requests. It sends a ping (GET_VALUES, section 4.1 of FastCGI)
each PING_S. While the state is DOWN, requests get 503 at once. Requests that run when the other machine becomes
silent are not ended: it may only be slow. They have `time-limit`, as the script of a local engine has, and the
timeouts of TCP (tls_socket.py). If the connection of a request ends, the exchange does what it does when an engine
dies: it repeats a GET that had no answer, and ends another request with 502.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import time
from enum import Enum
from typing import Any

from ewe.config.setting_types import parse_address
from ewe.gateway.records import GET_VALUES, FastCGIError, encode_pairs, record
from ewe.xswitch.engine_kinds import EngineKind
from ewe.xswitch.switch.context import Context
from ewe.xswitch.switch.exchange import Exchange
from ewe.xswitch.switch.exchange_table import ABANDONED
from ewe.xswitch.switch.fastcgi_engine import FastCGIEngine
from ewe.xswitch.switch.loop import NO_RESOURCES
from ewe.xswitch.switch.outbox import Outbox
from ewe.xswitch.switch.tls_socket import Handshake, TlsSocket, reason_of, tls_socket

CONNECT_S = 5.0  # seconds that a connection and its handshake may take
PING_S = 2.0  # between two pings
SILENT_S = 6.0  # without an answer to one: the other machine is down
RETRY_S = 2.0  # between two connections to a machine that is down
MAX_UNUSED = 64  # connections that are kept for later requests
PING = record(GET_VALUES, 0, encode_pairs([(b"FCGI_MPXS_CONNS", b"")]))
# Parameters between ewe and this X-Switch: the other one would take them for its own.
LOCAL_PARAMS = (b"XSWITCH_ENGINE", b"XSWITCH_TRACE")


class HostState(Enum):
    """Whether the other machine answers."""

    UNKNOWN = "unknown"
    UP = "up"
    DOWN = "down"


class HeldOutbox(Outbox):
    """An outbox that keeps its bytes until release(): the handshake comes first."""

    is_held = True

    def send(self, data: bytes) -> None:
        if self.is_held:
            self.queue_data(data)
        else:
            super().send(data)

    def release(self) -> None:
        """Begin to write."""
        self.is_held = False
        if self.pending:
            self.loop.add_writer(self.sock, self.on_writable)


class FarConnection(FastCGIEngine):
    """One connection to the other machine: for one request at a time, or for the health check."""

    def __init__(self, far_engine: FarEngine, data: TlsSocket) -> None:
        """data: a connecting socket."""
        super().__init__(far_engine.context, far_engine.key, data, -1)
        self.far_engine = far_engine
        self.name = far_engine.user  # in the trace
        self.tls = data
        self.has_answered = False  # whether it has answered a ping
        self.outbox: HeldOutbox = HeldOutbox(self.loop, data, self.pause_body, self.resume_body)
        self.connects_until = time.monotonic() + CONNECT_S
        self.loop.remove_reader(data)
        self.handshake: Handshake | None = Handshake(self.loop, data, self.handshake_ended)

    def handshake_ended(self, reason: str) -> None:
        """Send what waits, or close. reason: of a failure, or ""."""
        if reason:
            self.fail_to_connect(reason)
            return
        self.handshake = None
        self.loop.add_reader(self.data, self.on_data)
        self.outbox.release()

    def fail_to_connect(self, reason: str) -> None:
        """Close: there is no connection. The request has not left this machine."""
        exchange = self.take_exchange()
        self.tls.fault = reason
        self.far_engine.mark_down(reason)
        self.close()
        if exchange is not None:
            exchange.fail(503, self.far_engine.down_cause())

    def send_request(self, exchange: Exchange) -> None:
        """Write a request with the web server's parameters: the environment is made where the script is."""
        params = [(name, value) for name, value in exchange.params.items() if name not in LOCAL_PARAMS]
        head = self.requester.begin(params, keep=True)
        self.outbox.send(head + b"".join(map(self.requester.input, exchange.take_body())))

    def pause_output(self) -> None:
        if self.handshake is None:
            super().pause_output()

    def on_data(self) -> None:
        """Read the response; between two requests, the answer to a ping."""
        piece = self.receive()
        if piece is None:
            return
        if not piece or self.exchange is not None:
            self.handle_records(piece)
            return
        try:
            self.requester.feed(piece)
        except FastCGIError as error:
            self.fail(str(error))
        else:
            self.far_engine.answered(self)

    def fail(self, cause: str) -> None:
        """Close; the exchange decides whether the request is repeated, and has a new connection for that.

        The kept connections may have ended, too, though the event loop has not come to them yet. ABANDONED: the
        client has left within its body, and the other machine has not failed.
        """
        if self.exchange is not None and self.exchange.state is not ABANDONED:
            self.far_engine.close_unused()
        super().fail(f"{self.far_engine.name}: {self.tls.fault or cause}")

    def client_left(self) -> None:
        """Close: the other X-Switch then gives the script as long as its setting `abandoned` says."""
        exchange = self.take_exchange()
        self.close()
        if exchange is not None:
            exchange.complete(b"", 0)

    def become_idle(self) -> None:
        self.far_engine.connection_free(self)

    def announce_close(self) -> None:
        self.far_engine.connection_closed(self)

    def close_sockets(self) -> None:
        if self.handshake is not None:
            self.handshake.stop()
        super().close_sockets()


class FarEngine:
    """The engines of another machine, which the scheduler sees as one engine with room for many requests."""

    def __init__(self, context: Context, kind: EngineKind, tls: ssl.SSLContext) -> None:
        """tls: the context of the end that connects."""
        self.context = context
        self.kind = kind
        self.tls = tls
        self.name = f"engines {kind.name} on {kind.address}"
        self.user, self.language = f"@{kind.name}", kind.name  # no account has such a name
        self.key = self.user, self.language
        self.state = HostState.UNKNOWN
        self.reason = ""  # why the other machine is down
        self.changed_at = time.monotonic()
        self.ended_requests = 0
        self.connections: set[FarConnection] = set()
        self.unused_connections: list[FarConnection] = []  # those of `connections` that run no request
        self.health_check: FarConnection | None = None
        self.next_check_at = 0.0  # when the next health check may begin
        self.pinged_at = 0.0  # when the last ping was sent
        # When the last answer to a ping came; before the first one, when the health check was connected
        self.silent_since = 0.0
        self.is_closed = False

    # Requests

    def running_count(self) -> int:
        """Return how many requests run."""
        return len(self.connections) - len(self.unused_connections)

    def has_room(self) -> bool:
        """Return whether assign() takes a request now; while the other machine is down, assign() refuses each."""
        return self.state is HostState.DOWN or self.running_count() < self.kind.connections

    def assign(self, exchange: Exchange) -> None:
        """Run an exchange on a kept connection, or on a new one."""
        if self.state is HostState.DOWN:
            exchange.fail(503, self.down_cause())
            return
        try:
            connection = self.unused_connections.pop() if self.unused_connections else self.connect()
        except OSError as reason:
            if reason.errno in NO_RESOURCES:
                exchange.fail(503, f"{self.name}: {reason.strerror}")
                return
            self.mark_down(reason_of(reason))
            exchange.fail(503, self.down_cause())
            return
        self.connections.add(connection)
        connection.assign(exchange)

    def connect(self) -> FarConnection:
        """Begin one more connection. Raises OSError."""
        _, host, port = parse_address(self.kind.address)
        plain = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            sock = tls_socket(self.tls, plain, host)
        except BaseException:
            plain.close()
            raise
        error = sock.connect_ex((host, port))
        if error not in (0, errno.EINPROGRESS):
            sock.close()
            raise OSError(error, os.strerror(error))
        return FarConnection(self, sock)

    def connection_free(self, connection: FarConnection) -> None:
        """Keep a connection whose request has ended, if few are kept."""
        self.ended_requests += 1
        self.unused_connections.append(connection)
        if len(self.unused_connections) > MAX_UNUSED or self.is_closed:
            connection.close()
        self.context.scheduler.dispatch()

    def close_unused(self) -> None:
        """Close the connections that are kept for later requests."""
        for connection in list(self.unused_connections):
            connection.close()

    def connection_closed(self, connection: FarConnection) -> None:
        """Forget a connection."""
        if connection is self.health_check:
            self.health_check_closed(connection)
        if connection not in self.connections:
            return  # the health check carries no requests
        self.connections.remove(connection)
        if connection in self.unused_connections:
            self.unused_connections.remove(connection)
        else:
            self.ended_requests += 1
            self.context.scheduler.dispatch()

    # Whether the other machine answers

    def tick(self, now: float) -> None:
        """Ask the other machine, and end what has taken too long."""
        for connection in list(self.connections):
            if connection.handshake is not None and now > connection.connects_until:
                connection.fail_to_connect(f"no connection within {CONNECT_S:g} s")
            elif now > connection.deadline:
                connection.expire()
        if self.is_closed:
            return
        if self.health_check is None:
            if now >= self.next_check_at:
                self.begin_health_check(now)
        elif self.health_check.handshake is not None:
            self.silent_since = now  # SILENT_S begins after the handshake
            if now > self.health_check.connects_until:
                self.health_check.fail_to_connect(f"no connection within {CONNECT_S:g} s")
        elif now > self.silent_since + SILENT_S:
            self.health_check.tls.fault = f"no answer for {SILENT_S:g} s"
            self.mark_down(self.health_check.tls.fault)
            self.health_check.close()
        elif now > self.pinged_at + PING_S:
            self.pinged_at = now
            self.health_check.outbox.send(PING)

    def begin_health_check(self, now: float) -> None:
        """Connect, and send the first ping."""
        self.next_check_at = now + RETRY_S
        try:
            self.health_check = self.connect()
        except OSError as reason:
            if reason.errno not in NO_RESOURCES:  # else this machine is at fault
                self.mark_down(reason_of(reason))
            return
        self.silent_since = self.pinged_at = now
        self.health_check.outbox.send(PING)

    def health_check_closed(self, connection: FarConnection) -> None:
        """Connect again soon. The other X-Switch may only have started again: the next connection shows that."""
        self.health_check = None
        if connection.has_answered and self.state is HostState.UP:
            self.next_check_at = 0.0
        else:
            self.mark_down(connection.tls.fault or "it closed the connection")

    def answered(self, connection: FarConnection) -> None:
        """Note an answer to a ping. Bytes on connections for requests do not change the state."""
        if connection is not self.health_check:
            return
        connection.has_answered = True
        self.silent_since = time.monotonic()  # SILENT_S begins again
        if self.state is not HostState.UP:
            self.state = HostState.UP
            self.changed_at = self.silent_since
            self.reason = ""
            self.context.log.info(f"{self.name}: it answers")

    def mark_down(self, reason: str) -> None:
        """Refuse requests until the other machine answers again. reason: for the log and the status."""
        if self.state is HostState.DOWN or self.is_closed:
            return
        self.state = HostState.DOWN
        self.changed_at = time.monotonic()
        self.reason = reason
        self.context.log.error(f"{self.name}: down, {reason}; asked again every {RETRY_S:g} s")
        self.close_unused()
        self.context.scheduler.dispatch()  # the waiting requests are refused

    def down_cause(self) -> str:
        """Return why a request is refused, for the log."""
        return f"{self.name} are down: {self.reason}"

    # The end, and the status

    def use_certificate(self, tls: ssl.SSLContext) -> None:
        """Use another certificate for new connections."""
        self.tls = tls
        self.close_unused()
        if (health_check := self.health_check) is not None:
            # Not by health_check_closed(): the other machine has not closed the connection
            self.health_check, self.next_check_at = None, 0.0
            health_check.close()

    def close(self) -> None:
        """Close the connections that run no request, the health check included; running requests end normally."""
        self.is_closed = True
        self.close_unused()
        if self.health_check is not None:
            self.health_check.close()

    def fail(self, cause: str) -> None:
        """End all running requests."""
        self.close()
        for connection in list(self.connections):
            connection.fail(cause)

    def describe(self, now: float) -> dict[str, Any]:
        """Return the state of the other machine, for the status."""
        return {
            "engines": self.kind.name,
            "address": self.kind.address,
            "state": self.state.value,
            "seconds": round(now - self.changed_at, 1),
            "reason": self.reason,
            "running": self.running_count(),
            "requests": self.ended_requests,
            "connections": len(self.connections),
        }
