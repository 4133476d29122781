"""The main process's end of one FastCGI connection to a web server: one exchange at a time.

    OPEN ---finish, without keep-alive---> ENDING ---all is written---> SHUT ---the web server closes---> CLOSED

A connection is not closed at once after its last response: the end of the web server's input may still be on its
way. The kernel would answer it with a reset, and the web server could lose the response. The connection is
therefore shut down in one direction (SHUT), and closed when the web server has closed its side, or after
LINGER_SECONDS.

Back-pressure goes through the exchange in both directions. When the web server takes the response slowly, the
outbox spools it in memory and in a file (spool.py), and then makes the engine wait. When the engine takes the body
slowly, the exchange makes this connection pause reading. A web server that sends requests and takes no responses
waits, too: the next request is read when the outbox has room.

WebServerConnections holds all connections. Another X-Switch (tls_acceptor.py) is a web server here.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from enum import Enum

from ewe.gateway.records import Aborted, Began, FastCGIError, Responder
from ewe.xswitch.switch.context import STALLED_SECONDS, Context
from ewe.xswitch.switch.exchange import Exchange
from ewe.xswitch.switch.exchange_table import DONE, HAS_ENGINE
from ewe.xswitch.switch.loop import RECEIVE_BYTES
from ewe.xswitch.switch.spool import SpoolingOutbox

LINGER_SECONDS = 2.0  # that a web server may take to close a connection after its last response


class ConnectionState(Enum):
    """Whether the connection accepts requests: see the picture at the top of this file."""

    OPEN = "requests are taken"
    ENDING = "no more requests are taken, and the last response is being written"
    SHUT = "all is written, and the web server is expected to close"
    CLOSED = "the socket is closed"


# Plain names: Python 3.11 takes 0.1 us to look up a member in its class.
OPEN, ENDING, SHUT, CLOSED = ConnectionState


# Makes the exchange of a new request. It is called with the connection, the request's parameters, and the pieces of
# the body that have arrived; b"" is the end of the body.
BeginExchange = Callable[["WebServerConnection", dict[bytes, bytes], Sequence[bytes]], Exchange]


class WebServerConnection:
    """One connection of a web server."""

    def __init__(
        self,
        context: Context,
        sock: socket.socket,
        begin_exchange: BeginExchange,
        on_close: Callable[[WebServerConnection], None],
    ) -> None:
        """on_close: called with this connection when it closes."""
        self.context = context
        self.loop = context.loop
        self.socket = sock
        self.begin_exchange = begin_exchange
        self.on_close = on_close
        self.outbox = SpoolingOutbox(
            self.loop, sock, self.pause_writing, self.resume_writing, context.spool_space
        )
        self.responder = Responder()
        self.exchange: Exchange | None = None
        self.state = OPEN
        self.is_reading = True  # whether the event loop watches for input
        self.closes_at = float("inf")  # the monotonic time at which the connection closes in any case
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.loop.add_reader(sock, self.on_data)

    def on_data(self) -> None:
        """Read records, or the end of the input. Most web servers end it to report that their client has left."""
        if self.outbox.pending and self.state is OPEN and self.exchange is None and self.outbox.is_full():
            # The web server takes no responses: leave its next request unread until resume_writing()
            self.pause_reading()
            return
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.handle_records(data)
        elif self.exchange is None and self.outbox.pending:
            # The input has ended after a whole request: the web server will still read the rest of the response
            self.pause_reading()
            self.end()
        else:
            self.client_left()
            self.close()

    def handle_records(self, data: bytes) -> None:
        """Handle the FastCGI records in `data`: the beginning of a request, pieces of its body, or its abort.

        A request that begins is started last, once, with all pieces of its body that `data` contains.
        """
        if self.state is not OPEN:
            return
        began: Began | None = None  # the beginning of a request, if `data` contains it
        body: list[bytes] = []  # the pieces that came with the request's beginning: usually all
        try:
            for event in self.responder.feed(data):
                if isinstance(event, Began):
                    began = event
                elif isinstance(event, Aborted):
                    began = None
                    self.client_left()
                    if self.responder.id:  # 0: the response has ended, at a piece of the body in `data`
                        self.finish(self.responder.end())
                    break  # all other events of `data` belong to the aborted request
                elif began is not None:  # a part of the body, or its end: b""
                    body.append(event.data)
                elif self.exchange is not None:
                    self.exchange.body_arrived(event.data)
            if self.responder.reply and self.outbox.is_full():
                raise FastCGIError("it sends records that need answers, and takes no answers")
        except FastCGIError as error:
            self.context.log.warning(f"a web server's connection closed: {error}")
            self.client_left()
            self.close()
            return
        if self.responder.reply:
            self.outbox.send(self.responder.take_reply())
        if began is not None:
            try:
                # ScriptRequests.begin(), not a method of this class
                exchange = self.begin_exchange(self, began.params, body)
            except Exception:
                self.close()  # no response will follow
                raise
            if exchange.state is not DONE:  # DONE: the request was refused, and its response is sent
                self.exchange = exchange

    def new_exchange(self, params: dict[bytes, bytes], script: str, body: Sequence[bytes]) -> Exchange:
        """Return a new exchange that has got the pieces of its body. It is DONE if the body is refused.

        script: the path of the request's script. body: the pieces that have arrived with the beginning of the
        request; b"" at the end: no more follow. Later pieces come by Exchange.body_arrived().
        """
        exchange = self.context.exchange_class(self, self.context, params, script)
        if exchange.body_bytes_left < 0:
            exchange.fail(400, "CONTENT_LENGTH is no number")
        for piece in body:
            if exchange.state is not DONE:
                exchange.body_arrived(piece)
        return exchange

    def client_left(self) -> None:
        """Tell the exchange that its response is no longer wanted."""
        if (exchange := self.take_exchange()) is not None:
            exchange.client_left()

    def take_exchange(self) -> Exchange | None:
        """Return the exchange, and forget it."""
        exchange, self.exchange = self.exchange, None
        return exchange

    # Called by the exchange

    def send_output(self, data: bytes) -> None:
        if not self.outbox.pending and self.exchange is not None:
            self.outbox.user = self.exchange.user
        self.outbox.send(self.responder.output(data))

    def end_response(self, data: bytes, status: int) -> None:
        """Send the rest of the response, and its end (ResponseReceiver)."""
        exchange = self.take_exchange()
        if not self.outbox.pending and exchange is not None:
            self.outbox.user = exchange.user
        self.finish(self.responder.output(data) + self.responder.end(status))

    def break_off(self) -> None:
        self.take_exchange()
        self.close()

    def pause_reading(self) -> None:
        if self.is_reading and self.state is not CLOSED:
            self.is_reading = False
            self.loop.remove_reader(self.socket)

    def resume_reading(self) -> None:
        if not self.is_reading and self.state is not CLOSED:
            self.is_reading = True
            self.loop.add_reader(self.socket, self.on_data)

    # The end of a request, and of the connection

    def finish(self, data: bytes) -> None:
        """Send the last records of a request. Then the connection is free for the next one, or is closed."""
        self.outbox.send(data)
        if not self.is_reading:
            self.resume_reading()
        if not self.responder.keep or self.context.is_stopping:
            self.end()

    def end(self) -> None:
        """Accept no more requests; close once the last response is sent and the web server has closed."""
        if self.state is OPEN:
            self.state = ENDING
            self.shut_if_written()

    def shut_if_written(self) -> None:
        """In the state ENDING, once all is written, shut down the sending direction; close soon afterwards."""
        if self.state is not ENDING or self.outbox.pending:
            return
        self.state = SHUT
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the web server has closed the connection
        if self.is_reading:
            self.closes_at = time.monotonic() + LINGER_SECONDS
        else:  # without reading, the end of the input cannot be seen
            self.close()

    def close(self) -> None:
        """Close the connection at once, and tell the owner (on_close). Bytes that were not sent yet are dropped."""
        if self.state is CLOSED:
            return
        self.pause_reading()
        self.state = CLOSED
        self.outbox.close()
        self.socket.close()
        self.on_close(self)

    def is_overdue(self, now: float) -> bool:
        """Return whether to close now: the web server does not close, or accepts nothing of a spooled response."""
        is_stalled = (
            self.exchange is None
            and self.outbox.pending
            and now > self.outbox.last_write_at + STALLED_SECONDS
        )
        return bool(is_stalled) or now > self.closes_at

    # Called by the outbox

    def pause_writing(self) -> None:
        """Make the engine wait: the web server is slower."""
        if self.exchange is not None:
            self.exchange.pause_output()

    def resume_writing(self) -> None:
        """Make the engine continue, or read the next request; close if the web server has closed the connection.

        The outbox calls this when it has room again, or when its socket has failed. If no more requests are
        accepted, and all is written, shut down the sending direction.
        """
        if self.outbox.failed:
            self.client_left()
            self.close()
        elif self.exchange is not None:
            self.exchange.resume_output()
        else:
            self.resume_reading()
        self.shut_if_written()


class WebServerConnections:
    """All connections of web servers. open: those that are not closed."""

    def __init__(self, context: Context, begin_exchange: BeginExchange) -> None:
        self.context = context
        self.begin_exchange = begin_exchange
        self.open: set[WebServerConnection] = set()

    def connected(self, sock: socket.socket) -> None:
        """Serve a new connection."""
        if self.context.is_stopping:  # its TLS handshake has ended after stop(), which would wait for it
            sock.close()
            return
        self.open.add(WebServerConnection(self.context, sock, self.begin_exchange, self.open.discard))

    def tick(self, now: float) -> None:
        """Close the connections that are overdue. Called a few times a second. now: the monotonic time."""
        for connection in [connection for connection in self.open if connection.is_overdue(now)]:
            connection.close()

    def stop(self) -> None:
        """Close the connections without a request; the others close after their responses."""
        for connection in list(self.open):
            if connection.exchange is None:
                (connection.end if connection.outbox.pending else connection.close)()

    def fail(self, status: int, cause: str) -> None:
        """End the exchanges that have no engine with an error. The engines of the others end, too."""
        for connection in list(self.open):
            exchange = connection.exchange
            if exchange is not None and exchange.state not in HAS_ENGINE:
                exchange.fail(status, cause)

    def close(self) -> None:
        """Close all connections at once."""
        for connection in list(self.open):
            connection.close()
