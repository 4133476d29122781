"""The reverse proxy: one request is passed to another HTTP server, and its response comes back.

    client ◀──▶ Stream ── Proxy (features/proxy.py) ── Exchange ── Upstream ── HTTP/1.1 ──▶ the next server
                                │  head: http/request_head.py        │
                                └─ Response ◀── http/response_head.py ┘

Both directions stream, and neither waits for the other: more() sends the next piece of the request's body, or
returns the next bytes of the response, as they come. A piece is at most what one recv(2) returned, so that a body
of gigabytes needs no more memory than a short one. Nothing is spooled: unlike a FastCGI responder, the next
server holds no process for each request that it reads. One exception: a server of HTTP/1.0 understands no chunks.
Once one has answered, the next bodies without a length are spooled first.

- **Connections** are kept, taken in turn, limited and left out as those of FastCGI (connections.py).
- **A kept connection may be closed** by the next server just as a request begins on it. A request without a body,
  of a method that may be repeated (RFC 9110 section 9.2.2), is then sent again on a new connection; so is any
  request of which nothing could be written. Never after a byte of the response.
- **Interim responses** (100, 102, 103) are read and dropped. Trailers are dropped.
- **A response that says goodbye early** (413, 401) is passed on while the body still comes.
- **Upgrade**: after a 101 the connection belongs to another protocol (tunnel.py).

What can go wrong: the next server cannot be reached, or no connection is free (503); it is silent too long (504);
its response is malformed, too long, or cut (502, or the client's connection is cut, once the head has left); the
client leaves (the connection to the next server is closed, and it notices).

Source: RFC 9110 section 7, RFC 9112. Read next: connections.py, tunnel.py.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ewe.gateway.tunnel import Tunnel
from ewe.http.chunked import ChunkedDecoder
from ewe.http.limits import Limits
from ewe.http.messages import NO_BODY, BodyReader, Request, Source
from ewe.http.response_head import BEGINNING, MAX_HEAD, ResponseHead, is_bodiless, parse_response_head
from ewe.http.status import HTTPError
from ewe.streams.base import Timeout

if TYPE_CHECKING:
    from ewe.gateway.connections import Connections
    from ewe.gateway.spool import Spooled
    from ewe.gateway.upstream import Place, Upstream
    from ewe.streams.base import Stream

REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})  # RFC 9110 section 9.2.2
MAX_INTERIM = 100  # interim responses to one request
NOTHING = memoryview(b"")
PIECE = 64 * 1024  # bytes of a spooled body that are sent at once
LAST_CHUNK = b"0\r\n\r\n"
# A response may be as long as it likes: it is not kept.
UNLIMITED = Limits(max_body=1 << 62)


class SpooledBody(BodyReader):
    """A request's body that has been spooled, as if it came with a length."""

    finished = False
    pending = b""

    def __init__(self, spooled: Spooled) -> None:
        self.spooled = spooled
        self.length = spooled.length
        self.offset = 0

    async def receive(self) -> bytes:
        piece = os.pread(self.spooled.descriptor, PIECE, self.offset)
        self.offset += len(piece)
        self.finished = not piece or self.offset == self.length
        return piece

    async def invite(self) -> None:
        """Do nothing: the client has sent all."""

    def has_arrived(self) -> bool:
        return True


class Exchange(Source):
    """One request to the next server, and its response's body. head: of the request, up to its framing.

    timeout: seconds that the next server may be silent. upgrades: the protocols that the request may switch to.
    """

    arrived = b""
    heard = False  # any byte of this response
    consumed = False  # a piece of the request's body was taken: it cannot be sent again
    finished = False
    upstream: Upstream | None = None
    place: Place | None = None  # that is asked
    preferred: Place | None = None
    decoder: ChunkedDecoder | None = None
    left = 0  # bytes of a body with a length that are still to come

    def __init__(
        self,
        connections: Connections,
        request: Request,
        body: BodyReader,
        io: Stream,
        head: bytes,
        name: str,
        timeout: float,
        body_timeout: float,
        upgrades: frozenset[str] = frozenset(),
    ) -> None:
        self.connections = connections
        self.request = request
        self.body = body
        self.io = io
        self.name = name
        self.timeout = timeout
        self.body_timeout = body_timeout
        self.upgrades = upgrades
        length = body.known_length()
        self.chunks = length is None
        if length is None:
            framing = b"Transfer-Encoding: chunked\r\n\r\n"
        elif body is not NO_BODY or "content-length" in request.values:
            framing = b"Content-Length: %d\r\n\r\n" % length
        else:
            framing = b"\r\n"
        self.head = head + framing

    # The request

    async def begin(self, new: bool = False) -> None:
        """Begin the request on a kept connection, unless it must be `new`. Raises HTTPError(503), Disconnected."""
        upstream = await self.connections.open(self.io, (), new, self.preferred)
        self.upstream = upstream
        self.place = upstream.place
        self.written_before = upstream.written
        self.fresh = not upstream.written
        self.body_over = self.body is NO_BODY
        data = self.head
        if not self.body_over:
            await self.body.invite()
            if self.body.has_arrived():  # the head and the first of the body leave in one system call
                data += await self.next_piece()
        try:
            sent = upstream.send(data)
        except OSError:
            sent = 0  # more() meets the same error, and decides what it means
        self.outgoing = NOTHING if sent == len(data) else memoryview(data)[sent:]

    async def next_piece(self) -> bytes:
        """Return the next piece of the request's body, framed. Raises as BodyReader.receive()."""
        self.consumed = True
        piece = await self.body.receive()
        self.body_over = not piece or self.body.finished
        if not self.chunks:
            return piece
        framed = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
        return framed + LAST_CHUNK if self.body_over else framed

    async def more(self) -> bytes:
        """Return the next bytes of the response, b"" at the end; meanwhile send the request's body.

        Raises HTTPError: 502, 504, and those of the body; Disconnected.
        """
        while True:
            upstream = self.upstream
            assert upstream is not None
            data: bytes | None
            try:
                if self.outgoing:
                    self.outgoing, data = await upstream.exchange(self.outgoing, self.timeout)
                elif self.body_over:
                    data = await upstream.receive(self.timeout)
                else:
                    data = await self.feed(upstream)
            except Timeout:
                raise HTTPError(504, f"{self.name}: silent for {self.timeout:g} s (proxy-timeout)") from None
            except OSError:
                await self.lost()
                continue
            if data:
                self.heard = True
                return data
            if data is not None:
                if self.heard:
                    return b""
                await self.lost()

    async def feed(self, upstream: Upstream) -> bytes | None:
        """Take the next piece of the request's body, or return bytes of the response that come before it."""
        if not self.body.has_arrived():
            try:
                client = await self.io.either(upstream.descriptor, self.body_timeout)
            except Timeout:
                cause = f"the body stopped for {self.body_timeout:g} s (body-timeout)"
                raise HTTPError(408, cause) from None
            if not client:
                return upstream.receive_now()
        self.outgoing = memoryview(await self.next_piece())
        return upstream.receive_now()  # it may answer before it has read all

    async def lost(self) -> None:
        """Begin again on a new connection if the kept one has ended and that is safe. Raises HTTPError(502)."""
        upstream = self.upstream
        assert upstream is not None
        if self.heard:
            raise HTTPError(502, f"{self.name}: the server closed the connection within its response")
        if self.fresh:
            cause = f"{upstream.place.address} closed the connection without a response"
            self.connections.leave_out(upstream.place, cause)
            raise HTTPError(502, f"{self.name}: {cause}")
        untouched = upstream.written == self.written_before
        if self.consumed or not (untouched or self.request.method in REPEATABLE):
            raise HTTPError(502, f"{self.name}: the server closed a kept connection; not sent again")
        self.upstream = None
        self.connections.release(upstream)
        await self.begin(new=True)

    # The response

    async def read_head(self) -> ResponseHead:
        """Return the head of the final response; interim ones are dropped. Raises HTTPError(502, 504)."""
        for _ in range(MAX_INTERIM):
            until = 0.0  # when a head that has begun must have come
            while (end := self.arrived.find(b"\r\n\r\n", 0, MAX_HEAD)) < 0:
                if len(self.arrived) >= MAX_HEAD:
                    raise HTTPError(
                        502, f"{self.name}: the head of its response has more than {MAX_HEAD} bytes"
                    )
                if self.arrived[: len(BEGINNING)] != BEGINNING[: len(self.arrived)]:
                    raise HTTPError(502, f"{self.name}: no HTTP response, but {self.arrived[:40]!r}")
                # Such a head may never show the end that the loop looks for: the wait would last until the timeout.
                if self.arrived.count(b"\n") != self.arrived.count(b"\r\n"):
                    raise HTTPError(
                        502, f"{self.name}: a line of its response's head ends with a bare LF, not CRLF"
                    )
                if self.arrived:
                    now = time.monotonic()
                    until = until or now + self.timeout
                    if now > until:
                        raise HTTPError(504, f"{self.name}: a head took {self.timeout:g} s (proxy-timeout)")
                data = await self.more()
                if not data:
                    raise HTTPError(502, f"{self.name}: the server closed the connection within a head")
                self.arrived += data
            block, self.arrived = self.arrived[: end + 4], self.arrived[end + 4 :]
            try:
                head = parse_response_head(block)
            except HTTPError as refused:
                raise HTTPError(502, f"{self.name}: {refused.cause}") from None
            if head.status >= 200:
                self.frame(head)
                return head
            if head.status == 101:
                if head.upgrade.lower() not in self.upgrades:
                    raise HTTPError(
                        502, f"{self.name}: it switches to {head.upgrade[:40]!r} without being asked"
                    )
                return head
        raise HTTPError(502, f"{self.name}: more than {MAX_INTERIM} interim responses")

    def frame(self, head: ResponseHead) -> None:
        """Note where the body of the final response ends."""
        self.reusable = head.reusable
        self.delimited = True
        if is_bodiless(self.request.method, head.status):
            self.length = head.length
            self.over()
        elif head.chunked:
            self.decoder = ChunkedDecoder(UNLIMITED)
        elif head.length is not None:
            self.length = self.left = head.length
            if not head.length:
                self.over()
        else:
            self.delimited = self.reusable = False

    def whole_body(self) -> bytes | None:
        """Return the body if all of it has come with the head; else None, and receive() returns its pieces."""
        if self.finished:
            return b""
        if self.decoder is not None:
            if not self.arrived.endswith(LAST_CHUNK):
                return None
        elif not self.delimited or len(self.arrived) < self.left:
            return None
        self.first = self.take()
        return self.take_first() if self.upstream is None else None

    first = b""  # decoded bytes that receive() has not returned yet

    def take_first(self) -> bytes:
        """Return the decoded bytes that came with the head."""
        piece, self.first = self.first, b""
        return piece

    async def receive(self) -> bytes:
        if self.first:
            return self.take_first()
        while not self.finished:
            if not self.arrived and (self.decoder is None or self.decoder.hungry):
                self.arrived = await self.more()
                if not self.arrived:
                    if self.delimited:
                        raise HTTPError(
                            502, f"{self.name}: the server closed the connection within its response"
                        )
                    self.over()
                    return b""
            if piece := self.take():
                return piece
        return b""

    def take(self) -> bytes:
        """Return the decoded bytes of what has arrived. Raises HTTPError(502)."""
        data, self.arrived = self.arrived, b""
        if self.decoder is not None:
            try:
                piece = self.decoder.feed(data)
            except HTTPError as refused:
                raise HTTPError(502, f"{self.name}: in its response {refused.cause}") from None
            if self.decoder.finished:
                self.arrived = self.decoder.rest
                self.over()
            return piece
        if self.delimited:
            piece, self.arrived = data[: self.left], data[self.left :]
            self.left -= len(piece)
            if not self.left:
                self.over()
            return piece
        return data

    def over(self) -> None:
        """The response has ended; the connection may carry another request if this one has been sent.

        Bytes after the end belong to no response that anybody has asked for: then it is closed.
        """
        self.finished = True
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            through = self.body_over and not self.outgoing and not self.arrived
            self.connections.release(upstream, reusable=self.reusable and through)
        self.end()

    def tunnel(self, head: ResponseHead, idle: float) -> Tunnel:
        """Return what carries the bytes of the protocol that the connection has switched to."""
        upstream, self.upstream = self.upstream, None
        assert upstream is not None
        lines = head.encoded + b"Connection: Upgrade\r\nUpgrade: %b\r\n\r\n" % head.upgrade.encode("latin-1")
        return Tunnel(self.connections, upstream, self.io, lines + self.arrived, self.name, idle)

    def end(self) -> None:
        """Let go of what is held; a server that still works sees the connection close."""
        if self.upstream is not None:
            self.connections.release(self.upstream)
            self.upstream = None
        if isinstance(self.body, SpooledBody):
            self.body.spooled.close()

    async def close(self) -> None:
        self.end()
