"""Chunked bodies, decoded as they arrive: RFC 9112 section 7.1. No I/O.

A chunk begins with its size in hexadecimal digits. A chunk of size 0 ends the body, and trailers may follow it:

    5;name=value CRLF hello CRLF 0 CRLF X-Checksum: 7 CRLF CRLF

The bytes arrive in pieces that may end anywhere, also between CR and LF. `state` is the method that reads the next
part. It returns False if the part is not complete:

    read_size ── size above 0 ──▶ read_data ──▶ read_size ...
        └─────── size 0 ────────▶ read_trailer ── empty line ──▶ finished

Possible failure: two servers read the same bytes as different bodies (request smuggling). Each line must therefore
match the grammar: a bare LF, a sign before a size, or data of another length than its size is refused with 400.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

from ewe.http.fields import FIELD_LINE, TOKEN
from ewe.http.limits import RequestLimits
from ewe.http.lines import BEGUN_FIELD_LINE, line_is_complete, without_valid_rest
from ewe.http.status import HTTPError

HEX_DIGITS = b"0123456789abcdefABCDEF"


class ChunkedDecoder:
    """Decodes a chunked body. feed() takes the bytes that arrive, in pieces of any size.

    Extensions and trailers are checked and dropped (section 7.1.2 allows it). An incomplete line stays in `rest`.
    When `finished` is True, `rest` holds the bytes after the body. Raises HTTPError: 400; 413 above max_body; 431
    for long trailers.
    """

    # chunk-size below 2**60, then extensions as section 7.1.1 defines them
    QUOTED = r'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*"'
    SIZE_LINE = re.compile(
        rf"([0-9A-Fa-f]{{1,15}})(?:[ \t]*;[ \t]*{TOKEN}+(?:[ \t]*=[ \t]*(?:{TOKEN}+|{QUOTED}))?)*"
    )
    BEGUN_SIZE_LINE = re.compile(r"(?:[0-9A-Fa-f]{1,15}[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?)?\r?")
    SHORT_LINE_BYTES = 15 + 2  # bytes of a size line without extensions, with its CRLF
    MAX_LINE_BYTES = 1024  # bytes of a size line with its extensions; this bounds the buffer
    MAX_CHUNKS = 1000  # chunks decoded in one feed(): a thousand chunks of one byte take some milliseconds
    MAX_EXTENSION_BYTES = 16 * 1024  # in one body: a megabyte of them for a byte of data is an attack

    rest = b""
    at = 0  # bytes of `rest` that have been decoded; each feed() removes them once, at its end
    finished = False
    body_bytes = 0
    extension_bytes = 0
    trailer_bytes = 0
    left_bytes = 0  # bytes of the current chunk still to come
    room_bytes = 0  # decoded bytes that this feed() may still return
    fault: HTTPError | None = None  # an error behind bytes that feed() had to return first
    needs_data = True  # decoding needs more bytes from the client

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self.state: Callable[[list[bytes]], bool] = self.read_size

    def feed(self, data: bytes, most: int = sys.maxsize) -> bytes:
        """Take the bytes that have arrived; return up to `most` decoded bytes, of at most MAX_CHUNKS chunks.

        While `needs_data` is False, feed(b"") returns more. The bytes before an error are returned first, and the
        next feed() raises the error. A reader therefore gets the same bytes before the error, in whichever pieces
        they arrived.
        """
        if self.fault is not None:
            raise self.fault
        self.rest = self.rest + data if self.rest else data
        self.room_bytes = most
        pieces: list[bytes] = []
        try:
            while not self.finished and len(pieces) < self.MAX_CHUNKS and self.state(pieces):
                pass
        except HTTPError as error:
            self.fault = error
            if not pieces:
                raise
        self.needs_data = self.room_bytes > 0 and self.fault is None and len(pieces) < self.MAX_CHUNKS
        self.rest = self.rest[self.at :]
        self.at = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def take_line(self, good: re.Pattern[str], limit: int) -> re.Match[str] | None:
        """Take one line from `rest`; return its match without CRLF, or None if no valid line could be taken.

        good: the pattern of a valid line. limit: the most bytes of a line, without CRLF. After None, check_line()
        distinguishes an incomplete line, which more bytes may complete, from a malformed or too long one.
        """
        end = self.rest.find(b"\r\n", self.at, self.at + limit + 2)
        if end < 0:
            return None
        match = good.fullmatch(self.rest[self.at : end].decode("latin-1"))
        if match is not None:
            self.at = end + 2
        return match

    def check_line(self, begun: re.Pattern[str], name: str, limit: int, status: int) -> None:
        """Raise HTTPError for a line that take_line() did not take, unless it is the beginning of a valid line.

        The first byte that cannot be part of a valid line decides (lines.py). begun: a pattern that matches the
        bytes with which a valid line may begin. name: of the line, for the message. limit: as in take_line().
        status: of the error for a longer line.
        """
        text = without_valid_rest(self.rest[self.at : self.at + limit + 2], 0, limit).decode("latin-1")
        match = begun.match(text)
        assert match is not None  # the patterns also match an empty text
        if len(match[0].rstrip("\r")) > limit:
            raise HTTPError(status, f"{name} has more than {limit} bytes")
        if line_is_complete(text, 0, match.end(), name):
            raise HTTPError(400, f"{name} is malformed: {match[0][:40]!r}")

    def read_size(self, pieces: list[bytes]) -> bool:
        """Read a size line. Take chunks without extensions that have arrived whole: they need no pattern."""
        rest, at = self.rest, self.at
        while (end := rest.find(b"\r\n", at, at + self.SHORT_LINE_BYTES)) > at:
            if (digits := rest[at:end]).strip(HEX_DIGITS):
                break
            size = int(digits, 16)
            data_end = end + 2 + size
            if (
                not 0 < size < self.room_bytes
                or rest[data_end : data_end + 2] != b"\r\n"
                or len(pieces) >= self.MAX_CHUNKS - 1
                or self.body_bytes + size > self.limits.max_body
            ):
                self.at = end + 2
                self.begin_chunk(size)
                return True
            pieces.append(rest[end + 2 : data_end])
            self.room_bytes -= size
            self.body_bytes += size
            self.at = at = data_end + 2
        match = self.take_line(self.SIZE_LINE, self.MAX_LINE_BYTES)
        if match is None:
            self.check_line(self.BEGUN_SIZE_LINE, "a chunk's size line", self.MAX_LINE_BYTES, 400)
            return False
        self.extension_bytes += len(match[0]) - len(match[1])
        self.begin_chunk(int(match[1], 16))
        if self.extension_bytes > self.MAX_EXTENSION_BYTES:
            raise HTTPError(
                400, f"a chunked body has more than {self.MAX_EXTENSION_BYTES} bytes of extensions"
            )
        return True

    def begin_chunk(self, size: int) -> None:
        """Begin a chunk; size: 0 for the last one. Raises HTTPError(413)."""
        self.left_bytes = size
        self.body_bytes += size
        if self.body_bytes > self.limits.max_body:
            raise HTTPError(413, f"a chunked body has more than {self.limits.max_body} bytes (max-body)")
        self.state = self.read_data if size else self.read_trailer

    def read_data(self, pieces: list[bytes]) -> bool:
        """Read the data of a chunk, as far as the data has arrived, then the CRLF after it."""
        if self.left_bytes:
            wanted = self.left_bytes if self.left_bytes < self.room_bytes else self.room_bytes
            piece = self.rest[self.at : self.at + wanted]
            if not piece:
                return False
            pieces.append(piece)
            self.left_bytes -= len(piece)
            self.room_bytes -= len(piece)
            self.at += len(piece)
            if self.left_bytes or self.room_bytes <= 0:
                return False
        end = self.rest[self.at : self.at + 2]
        if not b"\r\n".startswith(end):
            raise HTTPError(400, "a chunk's data does not end in CRLF")
        if len(end) < 2:
            return False
        self.at += 2
        self.state = self.read_size
        return True

    def read_trailer(self, _: list[bytes]) -> bool:
        """Read a trailer line, or the empty line that ends the body."""
        if self.rest.startswith(b"\r\n", self.at):
            self.at += 2
            self.finished = True
            return True
        match = self.take_line(FIELD_LINE, self.limits.max_field)
        if match is None:
            self.check_line(BEGUN_FIELD_LINE, "a trailer's field line", self.limits.max_field, 431)
            return False
        self.trailer_bytes += len(match[0]) + 2
        if self.trailer_bytes > self.limits.max_head:
            raise HTTPError(431, f"the trailers have more than {self.limits.max_head} bytes (max-head)")
        return True
