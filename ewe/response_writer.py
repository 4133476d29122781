"""The response writer: sends a response's head and body, and writes its line of the access log.

A feature returns a Response: a status, fields, and a body. Before the first byte is sent, three questions are open:

1. **How does the client find the end of the body** (RFC 9112 section 6.3)? A known length is in the response's
   Content-Length. If the length is unknown, HTTP/1.1 sends chunks. HTTP/1.0 has no chunks: the close of the
   connection ends the body.
2. **May the connection stay open?** The conversation decides first. The response may still close the connection: if
   only the close can end the body, or if a program has written more than its Content-Length. end_of_head() writes
   the decision into the head.
3. **How many system calls?** The head and the first bytes of the body are sent together. A Source may need a long
   time for its first piece, so its head is sent at once.

The kind of the body decides which method sends it:

    bytes                   send_response() itself: the common case, in one call of the stream. Above SLICE_BYTES,
                            ResponseWriter.send_slices()
    (bytes or Region, ...)  ResponseWriter.send_pieces(): files by sendfile(2)
    Source                  ResponseWriter: send_chunks(), send_source() up to a length or the close, or send_raw()

Possible failures: after the head is sent, no other status can be sent. A body that ends early must not look
complete. The client notices a missing last chunk, and missing bytes of a Content-Length. A body that only the close
ends would look complete, so the connection is then closed by a reset: Stream.reset_at_close().

Read next: ewe.http.messages (Response, Source, Region).
"""

from __future__ import annotations

import time
from typing import Any

from ewe import logger
from ewe.http.dates import http_date
from ewe.http.error_pages import error_page
from ewe.http.messages import Region, Request, Response, Source
from ewe.http.status import BODILESS_STATUSES, HTTPError
from ewe.streams.base import Disconnected, MinRate, Stream, Timeout
from ewe.timeouts import count_timeout

# Bytes in memory that one call of the stream sends. If the client leaves, the log has the slices that were sent.
SLICE_BYTES = 256 * 1024
PIECE_TYPES = (bytes, bytearray, memoryview)


class Date:
    """The Date field (RFC 9110 section 6.6.1), which is formatted once a second."""

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
    """Return the end of the head: an empty line, after Connection if it is needed (RFC 9112 section 9.3)."""
    if not keep_alive:
        return b"Connection: close\r\n\r\n"
    return b"\r\n" if request.version == (1, 1) else b"Connection: keep-alive\r\n\r\n"


async def send_response(
    stream: Stream, request: Request, response: Response, keep_alive: bool, began: float
) -> bool:
    """Send a response and write its line of the access log; return whether the connection is kept.

    If the response fails after its head was sent, it is aborted. Raises Timeout, or Disconnected if the client has
    left or if the body's Source has failed.
    """
    body = response.body
    try:
        head = response.encoded_head or response.encoded()  # a cached response has it already
    except Exception:
        # A feature has set a field that could split the response, or the response was sent before.
        refused, response = response, fault_response(stream, request)
        try:
            await refused.close()
        except BaseException as reason:
            log_or_raise(stream, request, reason)
        head, body = response.encoded(), response.body
    sent = 0
    aborted = ""
    try:
        if type(body) is bytes and len(body) <= SLICE_BYTES:
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
                # After an ordinary close the client would believe that it has the whole body.
                if writer.ends_with_close:
                    stream.reset_at_close()
                raise
            finally:
                sent = writer.sent
                if type(body) is not bytes:  # a response of bytes may be sent again
                    try:
                        await response.close()
                    except BaseException as reason:  # the response has been sent, or is aborted
                        log_or_raise(stream, request, reason)
    except BaseException as reason:
        if response.status != 101:  # either side may end a tunnel at any time
            aborted = f"aborted after {sent} bytes: {why_aborted(stream, reason)}"
        raise
    finally:
        if response.cause or aborted:
            log_failed_request(stream, request, response, response.cause or aborted)
        if logger.access.enabled:
            ending = logger.ABORTED if aborted else logger.KEPT_OPEN if keep_alive else logger.CLOSED
            log_exchange(stream, request, response, sent, began, ending)
    return keep_alive


def why_aborted(stream: Stream, reason: BaseException) -> str:
    """Return the reason why a response was aborted, for the log; count a timeout."""
    if stream.aborted:
        return "the server stops"
    if isinstance(reason, Timeout):
        count_timeout("write")
        return "the client reads too slowly (write-timeout, min-rate)"
    if isinstance(reason, Disconnected):
        return str(reason) or "the client has left"
    return "a fault"


def ends_conversation(stream: Stream, reason: BaseException) -> bool:
    """Return whether an exception ends the conversation. Any other one is a fault of a feature.

    Disconnected may be that of another connection. GeneratorExit comes from coroutine.close(), which ends the inner
    coroutines first: it has no frame below the one that catches it, unlike that of a feature.
    """
    if isinstance(reason, Disconnected):
        return not stream.has_client()
    return isinstance(reason, GeneratorExit) and (
        reason.__traceback__ is None or reason.__traceback__.tb_next is None
    )


def fault_response(stream: Stream, request: Request) -> Response:
    """Log the current exception, a fault in the server's code or in a feature, and return a 500."""
    log_fault(stream, request)
    return error_page(500, "a fault of the server")


def log_fault(stream: Stream, request: Request) -> None:
    """Log the current exception, with its traceback."""
    logger.errors.exception(f"{request.line!r} from {stream.client[0]} failed")


def log_or_raise(stream: Stream, request: Request, reason: BaseException) -> None:
    """Log `reason`, the current exception; raise it again if it ends the conversation."""
    if ends_conversation(stream, reason):
        raise reason
    log_fault(stream, request)


def log_exchange(
    stream: Stream, request: Request, response: Response, sent: int, began: float, ending: str
) -> None:
    """Write an exchange's line of the access log.

    ending: logger.ABORTED, KEPT_OPEN or CLOSED.
    began: the time.perf_counter() at which the first bytes of the request had arrived and the previous response was
    sent. The logged duration ends at this call, so it includes the sending.
    """
    micros = int((time.perf_counter() - began) * 1e6)
    exchange = logger.AccessLogEntry(
        stream.client[0], stream.server, request, response, sent, micros, ending, stream.user
    )
    stream.user = ""
    if logger.count_exchange is not None:
        logger.count_exchange(exchange, stream.answered_by)
        stream.answered_by = ""
    if logger.access.writes:
        logger.access.write(exchange)


def log_failed_request(stream: Stream, request: Request, response: Response, cause: str) -> None:
    """Write to the error log why a request failed. The level depends on the status."""
    message = f"{stream.client[0]} {request.line[:200]!r}: {response.status}, {cause}"
    if response.status >= 500:
        logger.errors.warning(message)
    elif response.status == 404:
        logger.errors.debug(message)
    else:
        logger.errors.info(message)


class ResponseWriter:
    """Sends one response whose body is a tuple, a Source, or more than SLICE_BYTES of bytes.

    sent: the bytes of the body sent so far, for the access log (for a raw response, with its head). Of a piece in
    memory, the slices that the stream has taken count. ends_with_close: only the close of the connection shows the
    end of the body.
    """

    def __init__(self, stream: Stream, request: Request, response: Response, keep_alive: bool) -> None:
        self.stream = stream
        self.request = request
        self.response = response
        self.keep_alive = keep_alive
        self.sent = 0
        self.ends_with_close = False
        self.length = response.length  # the Content-Length; None: unknown

    async def send(self) -> bool:
        """Send the head and the body; return whether the connection is kept."""
        body = self.response.body
        bodiless = self.request.method == "HEAD" or self.response.status in BODILESS_STATUSES
        if isinstance(body, Source):
            if body.raw:
                self.ends_with_close = True
                return await self.send_raw(body)
            length = self.length
            chunked = length is None and self.request.version == (1, 1) and not bodiless
            if length is None and not chunked and not bodiless:
                self.ends_with_close = True
                self.keep_alive = False
            await self.stream.send(self.head(b"Transfer-Encoding: chunked\r\n" if chunked else b""))
            if not bodiless:
                await (self.send_chunks(body) if chunked else self.send_source(body))
            return self.keep_alive
        pieces = (body,) if isinstance(body, bytes) else body
        await self.send_pieces(() if bodiless else pieces)
        return self.keep_alive

    def head(self, framing: bytes = b"") -> bytes:
        """Return the complete head, as bytes. framing: the field lines that frame the body.

        send_response() has encoded the fields before.
        """
        end = end_of_head(self.request, self.keep_alive)
        return b"".join((self.response.encoded_head, date_line(), framing, end))

    async def send_pieces(self, pieces: tuple[bytes | Region, ...]) -> None:
        """Send bytes and parts of files. The first piece is sent together with the head."""
        head = self.head()
        for piece in pieces:
            if isinstance(piece, bytes):
                if len(piece) <= SLICE_BYTES:
                    await self.stream.send(head, piece)
                    self.sent += len(piece)
                else:
                    await self.send_slices(piece, head)
            else:
                try:
                    await self.stream.send_file(piece.file, piece.offset, piece.count, head)
                finally:
                    self.sent += piece.count - self.stream.unsent
            head = b""
        if head:
            await self.stream.send(head)

    async def send_slices(self, piece: bytes, before: bytes = b"", after: bytes = b"") -> None:
        """Send a piece of more than SLICE_BYTES, and count each slice that the stream has taken.

        before, after: bytes that are sent with the first and with the last slice, and are not counted. min_rate
        bounds the time of the whole piece, or each slice could take write_timeout. Raises Timeout, Disconnected.
        """
        min_rate = MinRate(self.stream)
        size = len(piece)
        view = memoryview(piece)  # its slices are no copies
        for start in range(0, size, SLICE_BYTES):
            min_rate.check()
            part = view[start : start + SLICE_BYTES]
            parts: list[Any] = [before, part] if before else [part]
            if after and start + SLICE_BYTES >= size:
                parts.append(after)
            await self.stream.send(*parts)
            self.sent += len(part)
            before = b""
            min_rate.count(len(part))

    def min_rate_for(self, source: Source) -> MinRate | None:
        """Return the bound of the time in which the client takes all pieces; None if the source has its own."""
        return None if source.bounds_client_time else MinRate(self.stream)

    async def next_piece(self, source: Source, min_rate: MinRate | None) -> bytes:
        """Return the next piece. A part of the response may have been sent, so a failure becomes Disconnected.

        min_rate: of min_rate_for(). The time of the source does not count. Raises Timeout if there is a next piece,
        and the client was too slow for the pieces before it.
        """
        stream = self.stream
        began = time.monotonic() - stream.queued_s
        try:
            piece = await source.receive()
            given: Any = piece  # a feature of other people may return anything
            if not isinstance(given, PIECE_TYPES):  # None would look like the end
                raise TypeError(f"receive() has returned {type(given).__name__}; it must return bytes")
        except HTTPError as reason:
            cause = reason.cause
        except BaseException as reason:
            log_or_raise(self.stream, self.request, reason)
            cause = "a fault"
        else:
            if piece and min_rate is not None:
                min_rate.exclude(time.monotonic() - stream.queued_s - began)
                min_rate.check()
            return piece
        self.response.cause = f"aborted after {self.sent} bytes: {cause}"
        raise Disconnected

    async def send_chunks(self, source: Source) -> None:
        """Send pieces as chunks, since their total length is unknown: RFC 9112 section 7.1."""
        min_rate = self.min_rate_for(source)
        while piece := await self.next_piece(source, min_rate):
            if len(piece) <= SLICE_BYTES:
                await self.stream.send(b"%x\r\n" % len(piece), piece, b"\r\n")
                self.sent += len(piece)
            else:
                await self.send_slices(piece, b"%x\r\n" % len(piece), b"\r\n")
            if min_rate is not None:
                min_rate.count(len(piece))
        await self.stream.send(b"0\r\n\r\n")

    async def send_source(self, source: Source) -> None:
        """Send pieces unchanged, up to the known length, or until the source ends.

        Raises Disconnected if the source has fewer bytes than the Content-Length.
        """
        length = self.length
        min_rate = self.min_rate_for(source)
        while piece := await self.next_piece(source, min_rate):
            if length is not None and self.sent + len(piece) > length:
                piece = piece[: length - self.sent]
                self.response.cause = f"more than the {length} bytes of its Content-Length"
                self.keep_alive = False
                if not piece:
                    break
            if len(piece) <= SLICE_BYTES:
                await self.stream.send(piece)
                self.sent += len(piece)
            else:
                await self.send_slices(piece)
            if min_rate is not None:
                min_rate.count(len(piece))
        if length is not None and self.sent < length:
            self.response.cause = f"aborted: {self.sent} bytes came, Content-Length is {length}"
            raise Disconnected

    async def send_raw(self, source: Source) -> bool:
        """Send a complete response of a program, with its head (RFC 3875 section 5). The close marks its end."""
        min_rate = self.min_rate_for(source)
        while piece := await self.next_piece(source, min_rate):
            if len(piece) <= SLICE_BYTES:
                await self.stream.send(piece)
                self.sent += len(piece)
            else:
                await self.send_slices(piece)
            if min_rate is not None:
                min_rate.count(len(piece))
        return False
