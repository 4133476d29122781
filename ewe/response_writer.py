"""How a response is sent: its head, its body, and its line of the access log."""

from __future__ import annotations

import time

from ewe import logger
from ewe.http.dates import http_date
from ewe.http.error_pages import error_page
from ewe.http.messages import Region, Request, Response, Source
from ewe.http.status import BODILESS, HTTPError
from ewe.streams.base import Disconnected, Stream


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
                    stream.break_off()
                raise
            finally:
                sent = writer.sent
                await response.close()
    finally:
        if response.cause:
            report(stream, request, response)
        if logger.access.enabled:
            log(stream, request, response, sent, began)
    return keep_alive


def fault(stream: Stream, request: Request) -> Response:
    """Log the exception that is being handled, a fault in the server's code, and return a 500."""
    logger.errors.exception(f"{request.line!r} from {stream.client[0]} failed")
    return error_page(500, "a fault of the server")


def log(stream: Stream, request: Request, response: Response, sent: int, began: float) -> None:
    """Write an exchange's line of the access log."""
    micros = int((time.perf_counter() - began) * 1e6)
    logger.access.write(logger.Exchange(stream.client[0], stream.server[1], request, response, sent, micros))


def report(stream: Stream, request: Request, response: Response) -> None:
    """Write to the error log why a client did not get what it wanted."""
    message = f"{stream.client[0]} {request.line[:200]!r}: {response.status}, {response.cause}"
    if response.status >= 500:
        logger.errors.warning(message)
    elif response.status == 404:
        logger.errors.debug(message)
    else:
        logger.errors.info(message)


class ResponseWriter:
    """Sends one response whose body is a tuple or a Source.

    sent: bytes of the body so far (of a raw response: with its head). ends_with_close: only the close tells the
    client where the body ends.

    It also decides how the client learns where the body ends: by Content-Length, by chunks (HTTP/1.1), or by the
    close of the connection (RFC 9112 section 6.3).
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
                await self.stream.send_file(piece.file, piece.offset, piece.count, head)
                self.sent += piece.count
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
