"""The conversation: requests in, responses out, over any stream. The one place that speaks HTTP to a client.

    converse: next_request, head [100 Continue] body?, respond, head body, again or close

Nothing here knows which concurrency model runs it: start reading at converse().
"""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING

from ewe import logger
from ewe.body import Body
from ewe.dates import http_date
from ewe.features.errors import error_page
from ewe.http import (
    BODILESS,
    NO_BODY,
    Refused,
    Region,
    Request,
    Response,
    Source,
    check_partial_head,
    parse_request,
)
from ewe.streams import Disconnected, Stream, Timeout

if TYPE_CHECKING:
    from ewe.site import Site

OVERLOADED = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # no descriptors, no memory: busy, not at fault

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
    checked = 0
    pending, empty = without_empty_line(pending)
    try:
        while (end := pending.find(b"\r\n\r\n")) < 0:
            checked = check_partial_head(pending, site.limits, checked)
            if not timed:
                stream.allow(patience)
                timed = True
            data = await stream.receive()
            if not data:
                if not pending:
                    return b"", b""
                raise Refused(400, "the client ended within a head")
            pending += data
            if not empty and not checked:
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
        self.ends_with_close = False  # nothing else tells the client where the body ends

    async def send(self) -> bool:
        """Send all; return whether the connection is kept."""
        body = self.response.body
        bodiless = self.request.method == "HEAD" or self.response.status in BODILESS
        if isinstance(body, Source):
            if body.raw:
                self.ends_with_close = True
                return await self.send_raw(body)
            chunked = body.length is None and self.request.version == (1, 1) and not bodiless
            if body.length is None and not chunked and not bodiless:
                self.ends_with_close = True
                self.keeps = False
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
        except BaseException as reason:
            if self.ends_with_close:
                self.stream.break_off()
            if not isinstance(reason, Refused):
                raise
            self.response.cause = f"cut after {self.sent} bytes: {reason.cause}"
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
