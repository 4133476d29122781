"""The reverse proxy: ewe sends a request to another HTTP server, the upstream, and passes its response back.

    client ◀──▶ Stream ── Proxy (features/proxy.py) ── UpstreamExchange ── Upstream ── HTTP/1.1 ──▶ upstream server
                                │  head: http/request_head.py        │
                                └─ Response ◀ http/response_reader.py ┘

Both directions stream, and neither waits for the other: next_bytes() sends the next piece of the request's body,
or returns the next bytes of the response, as they arrive. A piece is at most the result of one recv(2), so a body
of gigabytes needs no more memory than a short one. Nothing is spooled: unlike a FastCGI responder, an HTTP server
does not occupy one process for each request that it reads. One exception: a server of HTTP/1.0 does not understand
chunks. Once an upstream has answered with HTTP/1.0, later bodies without a length are spooled first.

- **Connections** are kept, taken in turn, limited and left out as those of FastCGI (connections.py).
- **A kept connection may be closed** by the upstream just as a request begins on it. ewe sends the request again on
  a new connection if its method may be repeated (RFC 9110 section 9.2.2), or if no byte of it could be written. ewe
  never repeats a request after a byte of its response. It also never repeats one after it has read a piece of the
  body, because it does not keep the piece: the client gets 502.
- **Interim responses** (100, 102, 103) are read and dropped. Trailers are dropped.
- **An early final response** (413, 401) is passed on while the body is still arriving.
- **Upgrade**: after a 101 the connection belongs to another protocol (tunnel.py).

Possible failures: the upstream cannot be reached, or no connection is free (503). It is silent too long (504). Its
response is malformed, too long, or ends early (502; if the head has left, the client's connection is aborted). The
client leaves (ewe closes the connection to the upstream, which notices that).

Source: RFC 9110 section 7, RFC 9112. Read next: connections.py, tunnel.py.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ewe.gateway.tunnel import NOTHING, Tunnel
from ewe.http.messages import NO_BODY, BodyReader, Request, Source
from ewe.http.response_head import ResponseHead, parse_response_head
from ewe.http.response_reader import ResponseReader
from ewe.http.status import HTTPError
from ewe.streams.base import Timeout
from ewe.timeouts import count_timeout

if TYPE_CHECKING:
    from ewe.gateway.connections import Connections
    from ewe.gateway.spool import Spooled
    from ewe.gateway.upstream import Upstream, UpstreamAddress
    from ewe.streams.base import Stream

REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})  # RFC 9110 section 9.2.2
MAX_INTERIM = 100  # interim responses to one request
PIECE_BYTES = 64 * 1024  # of a spooled body, sent at once
LAST_CHUNK = b"0\r\n\r\n"


class SpooledBody(BodyReader):
    """A spooled request body, with the interface of a body that has a length."""

    finished = False
    pending = b""

    def __init__(self, spooled: Spooled) -> None:
        self.spooled = spooled
        self.length = spooled.length
        self.offset = 0

    async def receive(self) -> bytes:
        """Return the next piece of the spooled body; b"" at the end. It never waits."""
        piece = os.pread(self.spooled.descriptor, PIECE_BYTES, self.offset)
        self.offset += len(piece)
        self.finished = not piece or self.offset == self.length
        return piece

    async def send_continue(self) -> None:
        """Do nothing: the client has sent the whole body."""

    def has_arrived(self) -> bool:
        """Return True: the whole body is spooled."""
        return True


class UpstreamExchange(Source):
    """One request to the upstream, and its response's body.

    head: of the request, without the field that frames its body (Content-Length or Transfer-Encoding). name: the
    upstream's, for messages. timeout_s: how long the upstream may be silent. body_timeout_s: how long the client
    may be silent while it sends its body. upgrades: the protocols that the request may switch to.
    """

    has_received = False  # at least one byte of this response has arrived
    has_taken_body = False  # a piece of the request's body was taken, so the request cannot be sent again
    finished = False
    decoded = b""  # bytes that whole_body() has decoded, and receive() has not returned yet
    upstream: Upstream | None = None
    address: UpstreamAddress | None = None  # the address in use
    preferred: UpstreamAddress | None = None

    def __init__(
        self,
        connections: Connections,
        request: Request,
        body: BodyReader,
        io: Stream,
        head: bytes,
        name: str,
        timeout_s: float,
        body_timeout_s: float,
        upgrades: frozenset[str] = frozenset(),
    ) -> None:
        self.connections = connections
        self.request = request
        self.body = body
        self.io = io
        self.name = name
        self.timeout_s = timeout_s
        self.body_timeout_s = body_timeout_s
        self.upgrades = upgrades
        self.reader = ResponseReader(parse_response_head, request.method)
        length = body.known_length()
        self.is_chunked = length is None
        if length is None:
            framing = b"Transfer-Encoding: chunked\r\n\r\n"
        elif body is not NO_BODY or "content-length" in request.values:  # a body, perhaps an empty one
            framing = b"Content-Length: %d\r\n\r\n" % length
        else:
            framing = b"\r\n"
        self.head = head + framing

    # The request

    async def begin(self, must_be_new: bool = False) -> None:
        """Begin the request on a kept connection, unless it must be new. Raises HTTPError(503), Disconnected."""
        upstream = await self.connections.open(self.io, must_be_new=must_be_new, preferred=self.preferred)
        self.upstream = upstream
        self.address = upstream.address
        # By these two, repeat_or_raise() decides whether the request may be sent again.
        self.written_before = upstream.written_bytes
        self.is_first_request = not upstream.written_bytes  # of the connection
        self.body_over = self.body is NO_BODY
        data = self.head
        if not self.body_over:
            await self.body.send_continue()
            if self.body.has_arrived():  # head and first piece of the body leave in one system call
                data += await self.next_piece()
        try:
            sent = upstream.send(data)
        except OSError:
            sent = 0  # next_bytes() meets the end of the connection, and handles it
        self.outgoing = NOTHING if sent == len(data) else memoryview(data)[sent:]

    async def next_piece(self) -> bytes:
        """Return the next piece of the request's body, framed. Raises as BodyReader.receive().

        From now on the request is not sent again (`has_taken_body`): ewe keeps no piece that came from the client.
        """
        self.has_taken_body = True
        piece = await self.body.receive()
        self.body_over = not piece or self.body.finished
        if not self.is_chunked:
            return piece
        framed = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
        return framed + LAST_CHUNK if self.body_over else framed

    async def next_bytes(self) -> bytes:
        """Return the next bytes of the response, b"" at the end; meanwhile send the request's body.

        Raises HTTPError: 502, 504, and those of the body; Disconnected.
        """
        while True:
            upstream = self.upstream
            assert upstream is not None
            data: bytes | None
            try:
                if self.outgoing:
                    self.outgoing, data = await upstream.exchange(self.outgoing, self.timeout_s)
                elif self.body_over:
                    data = await upstream.receive(self.timeout_s)
                else:
                    data = await self.send_next_piece(upstream)
            except Timeout:
                count_timeout("upstream")
                raise HTTPError(
                    504, f"{self.name}: silent for {self.timeout_s:g} s (proxy-timeout)"
                ) from None
            except OSError:
                await self.repeat_or_raise()
                continue
            if data:
                self.has_received = True
                return data
            if data is not None:  # the end of the connection
                if self.has_received:
                    return b""
                await self.repeat_or_raise()

    async def send_next_piece(self, upstream: Upstream) -> bytes | None:
        """Take the next piece of the request's body for next_bytes() to send; return bytes of the response.

        If they come first, no piece is taken. Return None if none have arrived. Raises as BodyReader.receive().
        """
        if not self.body.has_arrived():
            wait_began = time.monotonic()
            try:
                client_is_ready = await self.io.either(upstream.descriptor, self.body_timeout_s)
            except Timeout:
                count_timeout("body")
                cause = f"the body stopped for {self.body_timeout_s:g} s (body-timeout)"
                raise HTTPError(408, cause) from None
            self.body.count_wait(time.monotonic() - wait_began)  # the body's min-rate must see this wait, too
            if not client_is_ready:
                return upstream.receive_now()
        self.outgoing = memoryview(await self.next_piece())
        return upstream.receive_now()  # the upstream may answer before it has read the whole body

    async def repeat_or_raise(self) -> None:
        """Begin again on a new connection if the kept one has ended and a repeat is safe. Raises HTTPError."""
        upstream = self.upstream
        assert upstream is not None
        if self.has_received:
            raise HTTPError(502, f"{self.name}: the server closed the connection within its response")
        if self.is_first_request:
            cause = f"{upstream.address.text} closed the connection without a response"
            self.connections.leave_out(upstream.address, cause)
            raise HTTPError(502, f"{self.name}: {cause}")
        is_unsent = upstream.written_bytes == self.written_before
        if self.has_taken_body or not (is_unsent or self.request.method in REPEATABLE):
            raise HTTPError(502, f"{self.name}: the server closed a kept connection; not sent again")
        self.upstream = None
        self.connections.release(upstream)
        await self.begin(must_be_new=True)

    # The response

    async def read_head(self) -> ResponseHead:
        """Return the head of the final response; interim ones are dropped. Raises HTTPError(502, 504)."""
        reader = self.reader
        for _ in range(MAX_INTERIM):
            head_deadline = 0.0  # of a head that has begun; 0.0: no byte of it has arrived
            while True:
                if reader.buffer:
                    try:
                        head = reader.read_head()
                    except HTTPError as refused:
                        raise HTTPError(502, f"{self.name}: {refused.cause}") from None
                    if head is not None:
                        break
                    now = time.monotonic()
                    head_deadline = head_deadline or now + self.timeout_s
                    if now > head_deadline:
                        count_timeout("upstream")
                        raise HTTPError(504, f"{self.name}: a head took {self.timeout_s:g} s (proxy-timeout)")
                if not (data := await self.next_bytes()):
                    self.take_end_of_connection()  # raises HTTPError: no head has ended yet
                reader.buffer += data
            if head.status >= 200:
                self.length = head.length
                self.reusable = head.reusable and reader.ends_before_close
                if reader.finished:
                    self.end_response()
                return head
            if head.status == 101:
                if head.upgrade.lower() not in self.upgrades:
                    raise HTTPError(
                        502, f"{self.name}: it switches to {head.upgrade[:40]!r} without being asked"
                    )
                return head
        raise HTTPError(502, f"{self.name}: more than {MAX_INTERIM} interim responses")

    def take_end_of_connection(self) -> None:
        """Take the end of the upstream's connection. Raises HTTPError(502) within a response."""
        try:
            self.reader.end()
        except HTTPError as error:
            raise HTTPError(502, f"{self.name}: {error.cause}") from None
        self.end_response()

    def whole_body(self) -> bytes | None:
        """Return the body if all of it came with the head; None if receive() must return its pieces.

        ewe can send a whole body together with the head, in one system call. Raises HTTPError(502) for malformed
        chunks.
        """
        if self.finished:
            return b""
        if not self.reader.seems_complete():
            return None
        self.decoded = self.decode()
        # seems_complete() can be wrong about chunks. At the true end decode() has called end_response(), which
        # releases the upstream's connection.
        return self.take_decoded() if self.upstream is None else None

    def take_decoded(self) -> bytes:
        """Return the decoded bytes that came with the head; b"" on a second call."""
        piece, self.decoded = self.decoded, b""
        return piece

    async def receive(self) -> bytes:
        """Return the next decoded bytes of the response's body; b"" at its end. Raises as Source.receive()."""
        if self.decoded:
            return self.take_decoded()
        reader = self.reader
        while not self.finished:
            data = b""
            if reader.needs_data and not (data := await self.next_bytes()):
                self.take_end_of_connection()
                return b""
            if piece := self.decode(data):
                return piece
        return b""

    def decode(self, data: bytes = b"") -> bytes:
        """Decode the bytes that have arrived, the last in `data`; return the result. Raises HTTPError(502)."""
        try:
            piece = self.reader.read_body(data)
        except HTTPError as refused:
            raise HTTPError(502, f"{self.name}: in its response {refused.cause}") from None
        if self.reader.finished:
            self.end_response()
        return piece

    def end_response(self) -> None:
        """End the response. Its connection may carry another request if this request was sent completely.

        Bytes after the end belong to no request: the connection is then closed.
        """
        self.finished = True
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            is_complete = self.body_over and not self.outgoing and not self.reader.buffer
            self.connections.release(upstream, reusable=self.reusable and is_complete)
        self.end()

    def tunnel(self, head: ResponseHead, idle_s: float) -> Tunnel:
        """Return the tunnel for the protocol that the connection has switched to. head: of the 101."""
        upstream, self.upstream = self.upstream, None
        assert upstream is not None
        lines = head.encoded + b"Connection: Upgrade\r\nUpgrade: %b\r\n\r\n" % head.upgrade.encode("latin-1")
        first_bytes = lines + self.reader.buffer  # the client gets the head, and what has arrived after it
        return Tunnel(self.connections, upstream, self.io, first_bytes, self.name, idle_s)

    def end(self) -> None:
        """Release the connection and the spooled body. An upstream that still works sees the connection close."""
        if self.upstream is not None:
            self.connections.release(self.upstream)
            self.upstream = None
        if isinstance(self.body, SpooledBody):
            self.body.spooled.close()

    async def close(self) -> None:
        """Release the connection and the spooled body, if end() has not done so."""
        self.end()
