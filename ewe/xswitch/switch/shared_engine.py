"""The main process's end of an engine that runs several requests at once, over one FastCGI connection each.

Java servlets are written for one process with many threads, and sessions are in its memory. Each user therefore has
one JVM, and the user's requests share it:

    scheduler --- SharedEngine (one process) -+- EngineConnection --- Exchange
                                              +- EngineConnection --- Exchange
                                              +- EngineConnection     (unused, kept for the next request)

The scheduler sees one engine: it has room until `connections` requests run, and is idle once none runs. An
EngineConnection is a FastCGIEngine whose process belongs to the SharedEngine.

A thread cannot be killed alone. To end one request by force, the whole process is killed, and its other requests
fail too.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence

from ewe.xswitch.switch.context import Context
from ewe.xswitch.switch.engine import CLOSED, OVER, Engine, exit_text
from ewe.xswitch.switch.exchange import Exchange
from ewe.xswitch.switch.exchange_table import ABANDONED
from ewe.xswitch.switch.fastcgi_engine import FastCGIEngine
from ewe.xswitch.switch.loop import NO_RESOURCES
from ewe.xswitch.switch.scheduler import Key

REPORT_SECONDS = 0.05  # within which suexecme reports that a process has ended, or was not started
POLL_SECONDS = 0.2  # between two checks of the connection of a request whose client has left


class EngineConnection(FastCGIEngine):
    """One connection to a SharedEngine."""

    def __init__(self, shared_engine: SharedEngine, data: socket.socket) -> None:
        """data: the main process's end of the connection."""
        super().__init__(shared_engine.context, shared_engine.key, data, -1)
        self.shared_engine = shared_engine
        self.name = shared_engine.name
        self.has_body = False  # of the running request

    def send_request(self, exchange: Exchange) -> None:
        """Send the head of a request, and the part of its body that has arrived.

        If the request has no body, send the end of the body at once: it may not have arrived yet, and Jetty closes
        the connection if it answers before that end.
        """
        self.has_body = exchange.params.get(b"CONTENT_LENGTH", b"") not in (b"", b"0")
        if self.has_body:
            super().send_request(exchange)
        else:
            body_pieces = exchange.take_body()  # at most the end of the body, which is sent here
            head = self.requester.begin(exchange.environment().items(), keep=True)
            self.outbox.send(head + self.requester.input(b""))
            if self.outbox.failed:
                self.give_back(exchange, body_pieces)

    def give_back(self, exchange: Exchange, body_pieces: Sequence[bytes] = ()) -> None:
        """Close the unused connections, too: they may have ended as this one has."""
        for connection in list(self.shared_engine.unused_connections):
            connection.close()
        super().give_back(exchange, body_pieces)

    def send_body(self, data: bytes) -> None:
        if self.has_body:
            super().send_body(data)

    def response_complete(self, output: bytes, status: int, must_close: bool = False) -> None:
        """Close the connection after a request with a body: Jetty closes it if the servlet has not read all."""
        super().response_complete(output, status, must_close or self.has_body)

    def pause_output(self) -> None:
        super().pause_output()
        self.shared_engine.set_deadline()

    def resume_output(self) -> None:
        super().resume_output()
        self.shared_engine.set_deadline()

    def restart_deadline(self, awaits_body: bool) -> None:
        super().restart_deadline(awaits_body)
        self.shared_engine.set_deadline()

    def on_data(self) -> None:
        """Read the response. Wait if suexecme has not answered yet: its answer explains why a connection ends."""
        if self.shared_engine.pid:
            super().on_data()
        else:
            pause_for_report(self)

    def fail(self, cause: str) -> None:
        """Close after a short wait: if the process is ending, the whole engine fails, not this request alone."""
        if self.exchange is None or self.shared_engine.state is CLOSED:
            super().fail(cause)
        else:
            self.stop_reading()
            self.loop.call_later(REPORT_SECONDS, self.fail_alone, cause)

    def fail_alone(self, cause: str) -> None:
        """Close only this connection: the engine's process has not ended."""
        if self.state is not CLOSED:
            super().fail(cause)

    def become_idle(self) -> None:
        self.shared_engine.connection_free(self)

    def announce_close(self) -> None:
        self.shared_engine.connection_closed(self)

    def client_left(self) -> None:
        """Make Jetty's next write fail, which ends a servlet that continues to write.

        A servlet that does not write may run until its time limit: other requests need the engine.
        """
        if self.exchange is None or self.exchange.state is not ABANDONED:
            return  # the request has ended in the meantime
        if not self.shared_engine.pid:
            self.loop.call_later(REPORT_SECONDS, self.client_left)
            return
        self.stop_reading()
        self.shared_engine.set_deadline()
        self.data.shutdown(socket.SHUT_RD)
        self.poll_for_end()

    def poll_for_end(self) -> None:
        """Close once the engine has closed the connection; until then, ask the system again each POLL_SECONDS.

        The event loop does not watch the connection any more: client_left() has shut down the reading direction,
        and epoll would report that again and again.
        """
        if self.state is CLOSED:
            return
        poller = select.poll()
        poller.register(self.data, 0)  # no events but POLLHUP and POLLERR, which always count
        if poller.poll(0):
            exchange = self.take_exchange()
            if exchange is not None:
                exchange.complete(b"", 0)
            self.close()
        else:
            self.loop.call_later(POLL_SECONDS, self.poll_for_end)


def pause_for_report(engine: Engine) -> None:
    """Stop reading for REPORT_SECONDS: by then suexecme's answer may say why the connection has ended."""
    engine.pause_output()
    engine.loop.call_later(REPORT_SECONDS, engine.resume_output)


class SharedEngine(Engine):
    """An engine that runs several requests at once: one process with many EngineConnections.

    The data connection of the SharedEngine itself carries no requests. When it ends, the process has ended.
    """

    def __init__(
        self,
        context: Context,
        key: Key,
        data: socket.socket,
        error_pipe: int,
        listener_descriptor: int,
        max_connections: int,
    ) -> None:
        """listener_descriptor: a descriptor (O_PATH) of the engine's listening socket, which has no name any more.

        max_connections: the largest number of EngineConnections, and so of requests at once. data: a connection
        that carries no requests. error_pipe: see Engine.
        """
        super().__init__(context, key, data, error_pipe)
        self.listener_descriptor = listener_descriptor
        self.max_connections = max_connections
        self.connections: set[EngineConnection] = set()
        self.unused_connections: list[EngineConnection] = []  # those of `connections` that run no request

    # Requests

    def running_count(self) -> int:
        """Return how many requests run."""
        return len(self.connections) - len(self.unused_connections)

    def has_room(self) -> bool:
        """Return whether another request may be assigned: the limits for requests allow it."""
        max_requests = self.context.settings.max_requests_of(self.language)
        return (
            self.state is not CLOSED
            and self.running_count() < self.max_connections
            and self.ended_requests < max_requests
        )

    def assign(self, exchange: Exchange) -> None:
        """Run an exchange on an unused connection, or on a new one."""
        try:
            connection = self.unused_connections.pop() if self.unused_connections else self.connect()
        except OSError as reason:
            cause = f"no connection to its engine: {reason.strerror}"
            # Without resources here, the engine lives, with its other requests and sessions
            if reason.errno in NO_RESOURCES and (self.pid or self.connections):
                exchange.fail(503, cause)
                if not self.running_count():
                    self.context.scheduler.release(self)  # it was taken from the idle engines
                return
            exchange.assigned(self)
            self.end(cause)
            exchange.engine_was_dead(cause=cause)  # it got no byte of the request
            return
        self.errors.begin(exchange.script)
        self.script = exchange.script
        self.used_at = time.monotonic()
        connection.assign(exchange)
        self.set_deadline()

    def connect(self) -> EngineConnection:
        """Open one more connection. Raises OSError."""
        data = socket.socket(socket.AF_UNIX)
        try:
            data.setblocking(False)
            # The socket's own name is removed. Linux finds the socket by this name of the descriptor
            data.connect(f"/proc/self/fd/{self.listener_descriptor}")
        except OSError:
            data.close()
            raise
        connection = EngineConnection(self, data)
        self.connections.add(connection)
        return connection

    def connection_free(self, connection: EngineConnection) -> None:
        """Keep a connection for the next request: its own has ended."""
        self.unused_connections.append(connection)
        self.request_ended()

    def connection_closed(self, connection: EngineConnection) -> None:
        """Forget a connection; if a request ran on it, that has ended."""
        self.connections.discard(connection)
        if connection in self.unused_connections:
            self.unused_connections.remove(connection)
        elif self.state is not CLOSED:
            self.request_ended()

    def request_ended(self) -> None:
        """Count an ended request, and make the scheduler use the room, unless end() was called."""
        self.ended_requests += 1
        self.used_at = time.monotonic()
        self.set_deadline()
        if self.state is OVER:
            return
        if self.running_count():
            self.context.scheduler.dispatch()  # a waiting exchange may take the connection
        else:
            self.context.scheduler.release(self)

    def check_spinning(self) -> bool:
        """Return False: a JVM has threads that run between two requests."""
        return False

    def set_deadline(self) -> None:
        """Set the deadline of the engine to the earliest one of its requests."""
        self.deadline = min((connection.deadline for connection in self.connections), default=float("inf"))

    def on_data(self) -> None:
        """End if the data connection has ended: the process has ended, too. Wait as an EngineConnection does."""
        if not self.pid:
            pause_for_report(self)
        elif self.receive() is not None:  # b"" at the end; data would break the protocol
            self.end()

    # The end

    def take_exchanges(self) -> list[tuple[Exchange, str]]:
        """Forget the running exchanges. Return each with its expiry_cause(), or "" if it has time left."""
        now = time.monotonic()
        for connection in list(self.connections):
            connection.release_output()
        causes = [
            connection.expiry_cause() if connection.deadline < now else "" for connection in self.connections
        ]
        exchanges = [connection.take_exchange() for connection in self.connections]
        return [
            (exchange, cause)
            for exchange, cause in zip(exchanges, causes, strict=True)
            if exchange is not None  # an unused connection has none
        ]

    def expire(self) -> None:
        """Close the engine: a request has passed its deadline. The other requests fail, too."""
        taken_exchanges = self.take_exchanges()
        self.end_cause = "killed: " + next(
            (cause for _, cause in taken_exchanges if cause), "a request took too long"
        )
        self.close()
        for exchange, cause in taken_exchanges:
            if cause:
                exchange.timed_out(cause)
            else:
                exchange.engine_failed("another request took too long, and the engine was ended")

    def start_refused(self, status: int, cause: str) -> None:
        """Close the engine: suexecme does not start its process. All its requests fail."""
        taken_exchanges = self.take_exchanges()
        self.end_cause = cause
        self.close()
        for exchange, _ in taken_exchanges:
            exchange.fail(status, cause)

    def fail(self, cause: str) -> None:
        """Close the engine: it breaks the protocol, or has ended. All its requests fail."""
        taken_exchanges = self.take_exchanges()
        self.end_cause = cause
        self.close()
        for exchange, _ in taken_exchanges:
            exchange.engine_failed(cause)

    def close_sockets(self) -> None:
        """Close all connections, and the descriptor of the listening socket."""
        for connection in list(self.connections):
            connection.close()
        os.close(self.listener_descriptor)
        super().close_sockets()

    def process_ended(self, status: int) -> None:
        """Note the exit status, and end the running requests."""
        super().process_ended(status)
        self.end()

    def end(self, cause: str = "the engine has ended") -> None:
        """Close the engine, whose process has ended. Requests without a complete response fail.

        cause: for the log, if the exit status is not known.
        """
        if self.state is CLOSED:
            return
        self.stop_reading()  # the state OVER, for request_ended()
        try:
            for connection in list(self.connections):
                connection.read_rest()
        finally:
            self.fail(cause if self.exit_status is None else exit_text(self.exit_status))
