"""The body of a request, decoded on demand: RFC 9112 section 6.

A body has a known length, or it comes in chunks. The server reads a body only when a feature asks for it:

    client ──bytes──▶ stream ──▶ receive(): cut at the length, or decoded from chunks ──▶ feature

- **100-continue.** A client with a large body may wait until the server asks for it. The first receive() sends
  "100 Continue" (RFC 9110 section 10.1.1). If no feature reads, the client never sends.
- **Deadlines.** body_timeout bounds each wait. But a client that sends a byte now and then could keep the
  connection busy for hours. min_rate therefore bounds the whole body: after body_timeout, at least that many bytes
  per second must have come. Only the seconds count for which the server has waited for the client. A feature may
  work for a minute between two pieces, and the client cannot send meanwhile: its buffers are full.
- **The rest.** Before the next request can be read, this body must be read to its end. skip() drops a rest of up to
  MAX_SKIPPED_BYTES. If the rest is longer, the connection closes.

Possible failures: malformed chunks or an early end (400), a client that stops sending (408), a body that is too
large (413). The end of such a body cannot be found, so the connection closes after the response.
"""

from __future__ import annotations

import sys
import time

from ewe.http.chunked import ChunkedDecoder
from ewe.http.limits import RequestLimits
from ewe.http.messages import BodyReader, Request
from ewe.http.status import HTTPError
from ewe.streams.base import TURN_BYTES, Stream, Timeout
from ewe.timeouts import count_timeout

MAX_SKIPPED_BYTES = 64 * 1024  # bytes of an unread body that are read and dropped to keep the connection
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Body(BodyReader):
    """The body of one request.

    length: the length in bytes; None if the body is chunked. finished: the whole body has been read. pending: bytes
    that have arrived and are not read yet; when the body is finished, they belong to the next request. ahead: bytes
    that look_ahead() has read for the next receive(). left_bytes: the bytes of a known length still to come. A
    client that expects "100 Continue" gets it when a feature reads for the first time (RFC 9110 section 10.1.1).
    """

    def __init__(
        self, stream: Stream, request: Request, pending: bytes, limits: RequestLimits, timeout_s: float
    ) -> None:
        self.stream = stream
        self.length = request.length
        self.left_bytes = request.length or 0
        self.pending = pending
        self.timeout_s = timeout_s
        self.expects = request.expects  # the client waits for "100 Continue"
        self.decoder = ChunkedDecoder(limits) if request.length is None else None
        self.ahead = b""
        self.finished = False
        self.broken = False
        self.waited_s = 0.0  # seconds for which the server has waited for the client
        self.received_bytes = 0

    async def receive(self, most: int = sys.maxsize) -> bytes:
        """Return the next decoded bytes; b"" at the end. most: the largest number of bytes, for a chunked body.

        Raises HTTPError: 400 for malformed framing or an early end, 408 for a client that stops sending, 413 for a
        body that is too large.
        """
        if self.ahead:
            piece, self.ahead = self.ahead, b""
            return piece
        while not self.finished:
            if self.expects:
                await self.send_continue()
            data = self.pending
            if not data:
                if self.decoder is None or self.decoder.needs_data:
                    data = await self.next_bytes()
                else:
                    await self.stream.share(TURN_BYTES)
            self.pending = b""
            piece = self.take_chunked(self.decoder, data, most) if self.decoder else self.take(data)
            if piece:
                return piece
        return b""

    async def send_continue(self) -> None:
        """Send "100 Continue" if the client waits for it. Raises HTTPError(408), Disconnected."""
        if self.expects and not self.finished:
            self.expects = False
            if not self.pending:
                try:
                    await self.stream.send(CONTINUE)
                except Timeout:
                    count_timeout("write")
                    self.broken = True
                    raise HTTPError(408, "the client does not read (write-timeout)") from None

    def known_length(self) -> int | None:
        """Return the length in bytes, None if unknown. See BodyReader.known_length()."""
        return len(self.ahead) if self.length is None and self.finished else self.length

    def has_arrived(self) -> bool:
        """Return whether receive() would return bytes, or the end, without waiting."""
        if self.ahead or self.pending or self.finished:
            return True
        return self.decoder is not None and not self.decoder.needs_data

    async def look_ahead(self) -> None:
        """Read MAX_SKIPPED_BYTES + 1 of a chunked body, or the whole body, before a feature answers.

        A request with malformed framing is then refused for every resource, and ewe knows before it responds
        whether the connection can be kept. Later bytes are not checked, even if they have arrived. If the client
        waits for "100 Continue", nothing is read. Raises the exceptions of receive().
        """
        pieces: list[bytes] = []
        size = 0
        while (
            not self.expects
            and size <= MAX_SKIPPED_BYTES
            and (piece := await self.receive(MAX_SKIPPED_BYTES + 1 - size))
        ):
            pieces.append(piece)
            size += len(piece)
        self.ahead = b"".join(pieces)

    def take(self, data: bytes) -> bytes:
        """Return the part of `data` that belongs to a body of known length; the bytes after it become `pending`."""
        piece = data[: self.left_bytes]
        self.left_bytes -= len(piece)
        if not self.left_bytes:
            self.finished = True
            self.pending = data[len(piece) :]
        return piece

    def take_chunked(self, decoder: ChunkedDecoder, data: bytes, most: int) -> bytes:
        """Decode a part of a chunked body; return at most `most` bytes."""
        try:
            piece = decoder.feed(data, most)
        except HTTPError:
            self.broken = True
            raise
        if decoder.finished:
            self.finished = True
            self.pending = decoder.rest
        return piece

    async def next_bytes(self) -> bytes:
        """Wait for the next bytes, and return them. Raises HTTPError: 408, or 400 if the client closes its side."""
        stream = self.stream
        wait_began = time.monotonic() - stream.queued_s
        rate = stream.timeouts.min_rate
        left_s = self.timeout_s + self.received_bytes / rate - self.waited_s if rate else self.timeout_s
        try:
            # A stream that has bytes already, as under a proxy, does not look at its deadline
            if left_s <= 0:
                raise Timeout
            stream.set_deadline(min(self.timeout_s, left_s))
            data = await stream.receive()
        except Timeout:
            count_timeout("body")
            self.broken = True
            what = f"came slower than {rate} bytes a second (min-rate)"
            if left_s >= self.timeout_s:
                what = f"stopped for {self.timeout_s:g} s (body-timeout)"
            raise HTTPError(408, f"the body {what}") from None
        self.count_wait(time.monotonic() - stream.queued_s - wait_began)
        self.received_bytes += len(data)
        if not data:
            self.broken = True
            raise HTTPError(400, "the client ended within a body")
        return data

    def count_wait(self, seconds: float) -> None:
        self.waited_s += seconds

    def may_be_skipped(self) -> bool:
        """Return whether the rest of the body is short enough to be dropped; False before "100 Continue".

        The result does not depend on how many bytes have arrived: the same request must always get the same result.
        """
        # A chunked body that is not finished: look_ahead() has read more than MAX_SKIPPED_BYTES.
        if self.finished or self.broken or self.expects or self.length is None:
            return self.finished
        return self.left_bytes <= MAX_SKIPPED_BYTES

    async def skip(self) -> bool:
        """Read and drop the rest, up to MAX_SKIPPED_BYTES; return whether the body has been read to its end."""
        skipped = 0
        try:
            while not self.finished and skipped <= MAX_SKIPPED_BYTES:
                skipped += len(await self.receive())
        except HTTPError:
            return False
        return self.finished
