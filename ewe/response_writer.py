"""How a response is sent: its head, its body, and its line of the access log.

A feature returns a Response: a status, fields, and a body. Before the first byte leaves, three questions are open:

1. **How does the client find the end of the body** (RFC 9112 section 6.3)? A known length is in the response's
   Content-Length. If the length is unknown, HTTP/1.1 sends chunks. HTTP/1.0 has no chunks: the close of the
   connection ends the body.
2. **May the connection stay open?** The conversation says whether it may. A body that only the close ends, or a
   program that wrote more than its Content-Length, still closes it. The head says so: end_of_head().
3. **How many system calls?** The head and the first bytes of the body leave together. A Source may need long for
   its first piece, so there the head leaves at once.

The kind of the body decides who sends it:

    bytes                   send_response() itself: the common case, in one call of the stream
    (bytes or Region, ...)  ResponseWriter.send_pieces(): files by sendfile(2)
    Source                  ResponseWriter: send_chunks(), send_source() up to a length or the close, or send_raw()

What can go wrong: once the head is out, no other status can be sent. A body that ends early must not pass for the
whole. The client notices a missing last chunk and missing bytes of a Content-Length by itself. A body that only the
close ends would look complete, so the connection then ends with a reset: Stream.reset_at_close().

Read next: ewe.http.messages (Response, Source, Region).
"""

from __future__ import annotations

import time

from ewe import logger
from ewe.http.dates import http_date
from ewe.http.error_pages import error_page
from ewe.http.messages import Region, Request, Response, Source
from ewe.http.status import BODILESS, HTTPError
from ewe.streams.base import Disconnected, Stream, Timeout


class Date:
    """The Date field (RFC 9110 section 6.6.1), made once a second."""

    second = -1
    line = b""


def date_line() -> bytes:
    """Return the lines of the Date and Server fields."""
    now = int(time.time())
    if now != Date.second:
        Date.line = f"Date: {http_date(now)}\r\nServer: ewe\r\n".encode()
        Date.second = now
    return Date.line


def end_of_head(request: Request, keep_alive: bool) -> bytes:
    """Return how the response's head ends: with the Connection field, if it needs one (RFC 9112 section 9.3)."""
    if not keep_alive:
        return b"Connection: close\r\n\r\n"
    return b"\r\n" if request.version == (1, 1) else b"Connection: keep-alive\r\n\r\n"


async def send_response(
    stream: Stream, request: Request, response: Response, keep_alive: bool, began: float
) -> bool:
    """Send a response and write its line of the access log; return whether the connection is kept.

    A response that fails once its head is out is cut: raises Timeout or Disconnected, or what a fault raised.
    """
    try:
        head = response.encoded()
    except ValueError:  # a feature has set a field that could split the response
        await response.close()
        response = fault(stream, request)
        head = response.encoded()
    body = response.body
    sent = 0
    cut = ""
    try:
        if type(body) is bytes:
            end = end_of_head(request, keep_alive)
            if request.method == "HEAD" or not body:
                await stream.send(head, date_line(), end)
            else:
                await stream.send(head, date_line(), end, body)
                sent = len(body)
        else:
            writer = ResponseWriter(stream, request, response, keep_alive)
            try:
                keep_alive = await writer.send()
            except BaseException:
                # After an ordinary close the client would take the part that it has for the whole body.
                if writer.ends_with_close:
                    stream.reset_at_close()
                raise
            finally:
                sent = writer.sent
                await response.close()
    except BaseException as reason:
        if response.status != 101:  # either side may end a tunnel whenever it likes
            cut = f"cut after {sent} bytes: {why_cut(stream, reason)}"
        raise
    finally:
        if response.cause or cut:
            report(stream, request, response, response.cause or cut)
        if logger.access.enabled:
            log(stream, request, response, sent, began, "X" if cut else "+" if keep_alive else "-")
    return keep_alive


def why_cut(stream: Stream, reason: BaseException) -> str:
    """Return in words why a response was cut short."""
    if stream.aborted:
        return "the server stops"
    if isinstance(reason, Timeout):
        return "the client reads too slowly (write-timeout, min-rate)"
    if isinstance(reason, Disconnected):
        return str(reason) or "the client has left"
    return "a fault"


def fault(stream: Stream, request: Request) -> Response:
    """Log the exception that is being handled, a fault in the server's code, and return a 500."""
    logger.errors.exception(f"{request.line!r} from {stream.client[0]} failed")
    return error_page(500, "a fault of the server")


def log(stream: Stream, request: Request, response: Response, sent: int, began: float, ending: str) -> None:
    """Write an exchange's line of the access log.

    ending: for %X, "X" if the response was cut short, "+" if the connection is kept, "-" if not.
    began: on time.perf_counter(), when the first bytes of the request had arrived and the response before it was
    sent. The logged time ends here, and includes the sending.
    """
    micros = int((time.perf_counter() - began) * 1e6)
    exchange = logger.Exchange(
        stream.client[0], stream.server, request, response, sent, micros, ending, stream.user
    )
    stream.user = ""
    logger.access.write(exchange)


def report(stream: Stream, request: Request, response: Response, cause: str) -> None:
    """Write to the error log why a client did not get what it wanted."""
    message = f"{stream.client[0]} {request.line[:200]!r}: {response.status}, {cause}"
    if response.status >= 500:
        logger.errors.warning(message)
    elif response.status == 404:
        logger.errors.debug(message)
    else:
        logger.errors.info(message)


class ResponseWriter:
    """Sends one response whose body is a tuple or a Source.

    sent: bytes of the body so far, for the access log (of a raw response: with its head). A piece in memory counts
    once all of it is sent. ends_with_close: only the close of the connection tells the client where the body ends.
    """

    def __init__(self, stream: Stream, request: Request, response: Response, keep_alive: bool) -> None:
        self.stream = stream
        self.request = request
        self.response = response
        self.keep_alive = keep_alive
        self.sent = 0
        self.ends_with_close = False

    async def send(self) -> bool:
        """Send head and body; return whether the connection is kept."""
        body = self.response.body
        bodiless = self.request.method == "HEAD" or self.response.status in BODILESS
        if isinstance(body, Source):
            if body.raw:
                self.ends_with_close = True
                return await self.send_raw(body)
            chunked = body.length is None and self.request.version == (1, 1) and not bodiless
            if body.length is None and not chunked and not bodiless:
                self.ends_with_close = True
                self.keep_alive = False
            await self.stream.send(self.head(b"Transfer-Encoding: chunked\r\n" if chunked else b""))
            if not bodiless:
                await (self.send_chunks(body) if chunked else self.send_source(body))
            return self.keep_alive
        assert isinstance(body, tuple)
        await self.send_pieces(() if bodiless else body)
        return self.keep_alive

    def head(self, framing: bytes = b"") -> bytes:
        """Return the head to send."""
        end = end_of_head(self.request, self.keep_alive)
        return b"".join((self.response.encoded(), date_line(), framing, end))

    async def send_pieces(self, pieces: tuple[bytes | Region, ...]) -> None:
        """Send bytes and parts of files, the first of them together with the head."""
        head = self.head()
        for piece in pieces:
            if isinstance(piece, bytes):
                await self.stream.send(head, piece)
                self.sent += len(piece)
            else:
                try:
                    await self.stream.send_file(piece.file, piece.offset, piece.count, head)
                finally:
                    self.sent += piece.count - self.stream.unsent
            head = b""
        if head:
            await self.stream.send(head)

    async def next_piece(self, source: Source) -> bytes:
        """Return the next piece. Part of the response may be out, so an HTTPError becomes Disconnected."""
        try:
            return await source.receive()
        except HTTPError as reason:
            self.response.cause = f"cut after {self.sent} bytes: {reason.cause}"
            raise Disconnected from None

    async def send_chunks(self, source: Source) -> None:
        """Send pieces as chunks, since their total length is unknown: RFC 9112 section 7.1."""
        while piece := await self.next_piece(source):
            await self.stream.send(b"%x\r\n" % len(piece), piece, b"\r\n")
            self.sent += len(piece)
        await self.stream.send(b"0\r\n\r\n")

    async def send_source(self, source: Source) -> None:
        """Send pieces as they are, up to the known length or the close of the connection.

        Raises Disconnected if fewer bytes come than Content-Length promised.
        """
        while piece := await self.next_piece(source):
            if source.length is not None and self.sent + len(piece) > source.length:
                piece = piece[: source.length - self.sent]
                self.response.cause = f"more than the {source.length} bytes of its Content-Length"
                self.keep_alive = False
                if not piece:
                    break
            await self.stream.send(piece)
            self.sent += len(piece)
        if source.length is not None and self.sent < source.length:
            self.response.cause = f"cut: {self.sent} bytes came, Content-Length is {source.length}"
            raise Disconnected

    async def send_raw(self, source: Source) -> bool:
        """Send a response that a program wrote itself, with its head (RFC 3875 section 5). The close ends it."""
        while piece := await self.next_piece(source):
            await self.stream.send(piece)
            self.sent += len(piece)
        return False
