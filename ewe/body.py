"""The body of a request, decoded on demand: RFC 9112 section 6."""

from __future__ import annotations

import time

from ewe.chunked import ChunkedDecoder
from ewe.http import BodyReader, Limits, Refused, Request
from ewe.streams import Stream, Timeout

SKIP = 64 * 1024  # bytes of an unwanted body that are read off to keep the connection
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


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
