"""The conversation: requests in, responses out, over any stream. The one place that speaks HTTP to a client.

    converse: next_request, head [100 Continue] body?, respond, head body, again or close

Nothing here knows which concurrency model runs it: start reading at converse().
"""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING

from ewe import logger
from ewe.features.errors import error_page
from ewe.http import (
    NO_BODY,
    BodyReader,
    ChunkedDecoder,
    Limits,
    Refused,
    Region,
    Request,
    Response,
    Source,
    check_partial_head,
    http_date,
    parse_request,
)
from ewe.streams import Disconnected, Stream, Timeout

if TYPE_CHECKING:
    from ewe.site import Site

SKIP = 64 * 1024  # bytes of an unwanted body that are read off to keep the connection
OVERLOADED = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # no descriptors, no memory: busy, not at fault
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

# Heads seen before, whole and byte for byte, and what they mean: browsers and load generators repeat
# themselves. Only heads without a body, only short ones; forgotten all at once when there are too many.
HEADS: dict[bytes, Request] = {}
MAX_HEADS = 1024
MAX_REMEMBERED = 2048  # bytes


async def converse(stream: Stream, site: Site) -> None:
    """Hold one client's conversation: read requests, answer them, until either side closes."""
    patience = site.config.head_timeout  # a client that connects speaks at once; later it may be idle
    pending = b""
    try:
        while True:
            if not pending:
                pending = await stream.next_request(patience)
                if not pending:
                    return
                patience = site.idle
            began = time.perf_counter()
            request = HEADS.get(pending)
            if request is not None:
                pending = b""
            else:
                try:
                    request, pending = await read_request(stream, pending, site)
                except Unreadable as unreadable:
                    await refuse(stream, unreadable, began)
                    return
                if request is None:
                    return
            response = await answer(request, stream, site)
            stream.requests += 1
            keeps = (
                request.keeps
                and site.persistent
                and not stream.stopping
                and stream.requests != site.config.requests
            )
            body = request.body
            if body is not NO_BODY:
                keeps = keeps and body.may_be_skipped()
            keeps = await send_response(stream, request, response, keeps, began)
            if body is not NO_BODY:
                rest = await body.skip() if keeps or body.finished else None
                if rest is None:
                    if not body.finished:
                        await stream.linger()
                    return
                pending = rest
            if not keeps:
                if pending:  # it sends on; unread, that would turn the close into a reset
                    await stream.linger()
                return
    except (Timeout, Disconnected):
        return  # the client is gone, or does not read: there is nobody to tell


async def converse_securely(stream: Stream, site: Site) -> None:
    """Hold a conversation over TLS."""
    from ewe.tls import SecureStream

    assert site.tls is not None
    secure = SecureStream(stream, site.tls)
    try:
        agreed = await secure.handshake(site.config.tls_timeout)
    except (Timeout, Disconnected):
        return
    if agreed:
        await converse(secure, site)
        await secure.goodbye()


async def read_request(stream: Stream, pending: bytes, site: Site) -> tuple[Request | None, bytes]:
    """Return the request that begins with the pending bytes, and the bytes that follow its head.

    None if the client ended between requests. Raises Unreadable.
    """
    head = rest = b""
    try:
        head, rest = await read_head(stream, pending, site)
        if not head:
            return None, b""
        request = HEADS.get(head) or parse_request(head, site.limits)
        if stream.scheme != "https" and request.target[:6].lower() == "https:":  # RFC 9110 section 7.4
            raise Refused(421, "an https URL over a connection that is not secured")
    except Refused as refused:
        raise Unreadable(refused, head) from None
    if request.length == 0:
        if len(head) <= MAX_REMEMBERED:
            if len(HEADS) >= MAX_HEADS:
                HEADS.clear()
            HEADS[head] = request
        return request, rest
    request.body = Body(stream, request, rest, site.limits, site.config.body_timeout)
    return request, b""


async def read_head(stream: Stream, pending: bytes, site: Site) -> tuple[bytes, bytes]:
    """Return a head, its empty line included, and what follows; b"" if the client ended before it began.

    Raises Unreadable: 408 when the head is not there in time, and as check_partial_head().
    """
    patience = site.config.head_timeout
    timed = False
    pending, empty = without_empty_line(pending)
    try:
        while (end := pending.find(b"\r\n\r\n")) < 0:
            check_partial_head(pending, site.limits)
            if not timed:
                stream.allow(patience)
                timed = True
            data = await stream.receive()
            if not data:
                if not pending:
                    return b"", b""
                raise Refused(400, "the client ended within a head")
            pending += data
            if not empty:
                pending, empty = without_empty_line(pending)
    except Timeout:
        late = Refused(408, f"the head did not come in {patience:g} s (head-timeout)")
        raise Unreadable(late, pending) from None
    except Refused as refused:
        raise Unreadable(refused, pending) from None
    return pending[: end + 4], pending[end + 4 :]


def without_empty_line(pending: bytes) -> tuple[bytes, bool]:
    """Drop the one empty line that may precede a request line (RFC 9112 section 2.2); was it there?"""
    return pending.removeprefix(b"\r\n"), pending.startswith(b"\r\n")


class Unreadable(Exception):
    """A request whose head cannot be read, so that nobody knows where it ends. head: what there is of it."""

    def __init__(self, refused: Refused, head: bytes) -> None:
        super().__init__(refused, head)
        self.refused = refused
        self.head = head


async def answer(request: Request, stream: Stream, site: Site) -> Response:
    """Return the site's response; what a feature raises becomes a status here, and only here."""
    try:
        if request.length is None:
            await request.body.look_ahead()
        return await site.respond(request, stream)
    except Refused as refused:
        return error_page(refused.status, refused.cause, refused.fields)
    except (Timeout, Disconnected):
        raise
    except OSError as reason:
        if reason.errno not in OVERLOADED:
            logger.errors.exception(f"{request.line!r} from {stream.client[0]} failed")
            return error_page(500, "a fault of the server")
        return error_page(503, f"{reason.strerror}", (("Retry-After", "1"),))
    except Exception:
        logger.errors.exception(f"{request.line!r} from {stream.client[0]} failed")
        return error_page(500, "a fault of the server")


async def refuse(stream: Stream, unreadable: Unreadable, began: float) -> None:
    """Answer a request that could not be read, and end: nobody knows where the next one begins."""
    line = unreadable.head[:200].partition(b"\r\n")[0].decode("latin-1")
    request = Request("HEAD" if line.startswith("HEAD ") else "", "", (1, 1))
    request.line = line
    refused = unreadable.refused
    response = error_page(refused.status, refused.cause, refused.fields)
    await send_response(stream, request, response, False, began)
    await stream.linger()


def busy() -> bytes:
    """Return the whole response to a connection for which there is no room."""
    page = error_page(503, "", (("Retry-After", "1"),))
    assert isinstance(page.body, bytes)
    return page.encoded() + b"Connection: close\r\n\r\n" + page.body


BUSY = busy()


# ---------------------------------------------------------------------------------------------------------
# Responses out


class Date:
    """The Date field (RFC 9110 section 6.6.1), made once a second."""

    second = -1
    line = b""


def date_line() -> bytes:
    """Return the Date field's line."""
    now = int(time.time())
    if now != Date.second:
        Date.line = f"Date: {http_date(now)}\r\nServer: ewe\r\n".encode()
        Date.second = now
    return Date.line


# How the head ends, by (the connection is kept, the client speaks 1.1): RFC 9112 section 9.3
ENDS = {
    (True, True): b"\r\n",
    (True, False): b"Connection: keep-alive\r\n\r\n",
    (False, True): b"Connection: close\r\n\r\n",
    (False, False): b"Connection: close\r\n\r\n",
}


async def send_response(
    stream: Stream, request: Request, response: Response, keeps: bool, began: float
) -> bool:
    """Send a response and write its line of the access log; return whether the connection is kept."""
    body = response.body
    sent = 0
    try:
        if type(body) is bytes:
            head = response.encoded()
            end = ENDS[keeps, request.version == (1, 1)]
            if request.method == "HEAD" or not body:
                await stream.send(head, date_line(), end)
            else:
                await stream.send(head, date_line(), end, body)
                sent = len(body)
        else:
            sending = Sending(stream, request, response, keeps)
            try:
                keeps = await sending.send()
            finally:
                sent = sending.sent
                await response.close()
    finally:
        if response.cause:
            report(stream, request, response)
        if logger.access.enabled:
            micros = int((time.perf_counter() - began) * 1e6)
            logger.access.write(
                logger.Exchange(stream.client[0], stream.server[1], request, response, sent, micros)
            )
    return keeps


def report(stream: Stream, request: Request, response: Response) -> None:
    """Write to the error log why a request was not served as the client wanted."""
    message = f"{stream.client[0]} {request.line[:200]!r}: {response.status}, {response.cause}"
    if response.status >= 500:
        logger.errors.warning(message)
    elif response.status == 404:
        logger.errors.debug(message)
    else:
        logger.errors.info(message)


class Sending:
    """The sending of one response whose body is not just bytes. sent: bytes of the body so far."""

    def __init__(self, stream: Stream, request: Request, response: Response, keeps: bool) -> None:
        self.stream = stream
        self.request = request
        self.response = response
        self.keeps = keeps
        self.sent = 0

    async def send(self) -> bool:
        """Send all; return whether the connection is kept."""
        body = self.response.body
        bodiless = self.request.method == "HEAD" or self.response.status in (204, 304)
        if isinstance(body, Source):
            if body.raw:
                return await self.send_raw(body)
            chunked = body.length is None and self.request.version == (1, 1) and not bodiless
            if body.length is None and not chunked and not bodiless:
                self.keeps = False  # only the close tells a 1.0 client where the body ends
            await self.stream.send(self.head(b"Transfer-Encoding: chunked\r\n" if chunked else b""))
            if not bodiless:
                await (self.send_chunks(body) if chunked else self.send_source(body))
            return self.keeps
        assert isinstance(body, tuple)
        await self.send_pieces(() if bodiless else body)
        return self.keeps

    def head(self, framing: bytes = b"") -> bytes:
        """Return the head to send."""
        end = ENDS[self.keeps, self.request.version == (1, 1)]
        return b"".join((self.response.encoded(), date_line(), framing, end))

    async def send_pieces(self, pieces: tuple[bytes | Region, ...]) -> None:
        """Send bytes and parts of files; the head leaves with the first of them."""
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
        """Return the next piece; what goes wrong now can only cut the connection."""
        try:
            return await source.receive()
        except Refused as refused:
            self.response.cause = f"cut after {self.sent} bytes: {refused.cause}"
            raise Disconnected from None

    async def send_chunks(self, source: Source) -> None:
        """Send pieces of unknown total length: RFC 9112 section 7.1."""
        while piece := await self.next_piece(source):
            await self.stream.send(b"%x\r\n" % len(piece), piece, b"\r\n")
            self.sent += len(piece)
        await self.stream.send(b"0\r\n\r\n")

    async def send_source(self, source: Source) -> None:
        """Send pieces as they are: up to the known length, or to the end of the connection."""
        while piece := await self.next_piece(source):
            if source.length is not None and self.sent + len(piece) > source.length:
                piece = piece[: source.length - self.sent]
                self.response.cause = f"more than the {source.length} bytes of its Content-Length"
                self.keeps = False
                if not piece:
                    break
            await self.stream.send(piece)
            self.sent += len(piece)
        if source.length is not None and self.sent < source.length:
            self.response.cause = f"cut: {self.sent} bytes came, Content-Length is {source.length}"
            raise Disconnected

    async def send_raw(self, source: Source) -> bool:
        """Send a program's own response, head included (RFC 3875 section 5); its end is the close."""
        while piece := await self.next_piece(source):
            await self.stream.send(piece)
            self.sent += len(piece)
        return False


# ---------------------------------------------------------------------------------------------------------
# Bodies in


class Body(BodyReader):
    """The body of one request, decoded on demand: RFC 9112 section 6.

    length: in bytes, None when chunked. finished: all of it was read. A client that expects it is told
    "100 Continue" when something reads for the first time (RFC 9110 section 10.1.1).
    """

    def __init__(
        self, stream: Stream, request: Request, pending: bytes, limits: Limits, timeout: float
    ) -> None:
        self.stream = stream
        self.length = request.length
        self.left = request.length or 0
        self.pending = pending
        self.timeout = timeout
        self.asks = request.expects and not pending
        self.decoder = ChunkedDecoder(limits) if request.length is None else None
        self.ahead = b""  # decoded, and not yet asked for
        self.finished = False
        self.broken = False
        self.began = 0.0  # when something first waited for it
        self.received = 0

    async def receive(self) -> bytes:
        """Return the next decoded bytes, b"" at the end.

        Raises Refused: 400 for bad framing or an early end, 408 for a client that stops, 413 for too much.
        """
        if self.ahead:
            piece, self.ahead = self.ahead, b""
            return piece
        while not self.finished:
            if self.asks:
                self.asks = False
                await self.stream.send(CONTINUE)
            data = self.pending or await self.more()
            self.pending = b""
            piece = self.take_chunked(data) if self.decoder else self.take(data)
            if piece:
                return piece
        return b""

    async def look_ahead(self) -> None:
        """Read the first SKIP bytes of a chunked body, or all of it, before anything answers.

        So that a request with bad framing is refused whatever it asks for, and how the answer ends (kept or
        closed) is known before it is sent. Not if the client waits to be told. Raises as receive().
        """
        pieces: list[bytes] = []
        size = 0
        while not self.asks and size <= SKIP and (piece := await self.receive()):
            pieces.append(piece)
            size += len(piece)
        self.ahead = b"".join(pieces)

    def take(self, data: bytes) -> bytes:
        """Take what belongs to a body of known length."""
        piece = data[: self.left]
        self.left -= len(piece)
        if not self.left:
            self.finished = True
            self.pending = data[len(piece) :]
        return piece

    def take_chunked(self, data: bytes) -> bytes:
        """Take what belongs to a chunked body."""
        assert self.decoder is not None
        try:
            piece = self.decoder.feed(data)
        except Refused:
            self.broken = True
            raise
        if self.decoder.finished:
            self.finished = True
            self.pending = self.decoder.rest
        return piece

    async def more(self) -> bytes:
        """Return what arrives next."""
        now = time.monotonic()
        self.began = self.began or now
        rate = self.stream.timeouts.min_rate
        left = self.began + self.timeout + self.received / rate - now if rate else self.timeout
        self.stream.allow(min(self.timeout, left))
        try:
            data = await self.stream.receive()
        except Timeout:
            self.broken = True
            what = f"came slower than {rate} bytes a second (min-rate)"
            if left >= self.timeout:
                what = f"stopped for {self.timeout:g} s (body-timeout)"
            raise Refused(408, f"the body {what}") from None
        self.received += len(data)
        if not data:
            self.broken = True
            raise Refused(400, "the client ended within a body")
        return data

    def may_be_skipped(self) -> bool:
        """Is what was not read cheap to read off? Not if the client was never told to send it."""
        if self.finished or self.broken or self.asks or self.length is None:  # look_ahead() has read SKIP
            return self.finished
        return self.left - len(self.pending) <= SKIP

    async def skip(self) -> bytes | None:
        """Read off what is left, up to SKIP bytes; return what follows the body, None to close instead."""
        skipped = 0
        try:
            while not self.finished and skipped <= SKIP:
                skipped += len(await self.receive())
        except Refused:
            return None
        return self.pending if self.finished else None
