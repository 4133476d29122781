"""Chunked bodies, decoded as they arrive: RFC 9112 section 7.1. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable

from ewe.http import BEGINNING, TOKEN, Limits, Refused, never_in_head, parse_fields


class ChunkedDecoder:
    """Decode a chunked body: RFC 9112 section 7.1. Feed it what arrives; it keeps what it cannot use yet.

        chunked-body = *( size [ extensions ] CRLF data CRLF ) "0" [ extensions ] CRLF trailers CRLF

    Extensions are checked and dropped, trailers too (section 7.1.2 allows it). After finished is True,
    rest holds the bytes behind the body. Raises Refused(400), 413 past max_body, 431 for long trailers.
    """

    # chunk-size up to 2**60; BWS and any extension that keeps to section 7.1.1
    QUOTED = r'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*"'
    SIZE_LINE = re.compile(
        rf"([0-9A-Fa-f]{{1,15}})(?:[ \t]*;[ \t]*{TOKEN}+(?:[ \t]*=[ \t]*(?:{TOKEN}+|{QUOTED}))?)*"
    )
    BEGUN = re.compile(r"(?:[0-9A-Fa-f]{1,15}(?:[ \t]*(?:;.*)?|\r))?", re.DOTALL)
    MAX_LINE = 1024  # bytes of a size line with its extensions; nobody needs more, and it bounds the buffer
    MAX_EXTENSIONS = 16 * 1024  # bytes in all: a megabyte of extensions to one byte of data is an attack

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.rest = b""
        self.at = 0  # what of rest was used: cut off once a feed(), for a thousand chunks may come at once
        self.finished = False
        self.total = 0
        self.overhead = 0
        self.left = 0  # of the chunk that is being read
        self.state: Callable[[list[bytes]], bool] = self.read_size

    def feed(self, data: bytes) -> bytes:
        """Take what arrived, return the decoded bytes in it."""
        self.rest = self.rest + data if self.rest else data
        pieces: list[bytes] = []
        while not self.finished and self.state(pieces):
            pass
        self.rest = self.rest[self.at :]
        self.at = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def take_line(self, limit: int, status: int) -> str | None:
        """Take one line off rest, without its CRLF; None when it is not complete yet."""
        end = self.rest.find(b"\r\n", self.at, self.at + limit + 2)
        if end < 0:
            if len(self.rest) - self.at >= limit + 2:
                raise Refused(status, f"a chunk's size or trailer line has more than {limit} bytes")
            if never_in_head(self.rest[self.at :]):
                raise Refused(400, f"a bad byte in a chunk's line: {self.rest[self.at :][:40]!r}")
            return None
        line = self.rest[self.at : end].decode("latin-1")
        self.at = end + 2
        return line

    def read_size(self, _: list[bytes]) -> bool:
        """Read a size line."""
        line = self.take_line(self.MAX_LINE, 400)
        if line is None:
            begun = self.rest[self.at : self.at + BEGINNING].decode("latin-1")
            if self.BEGUN.fullmatch(begun) is None:
                raise Refused(400, f"no chunk's size line begins like this: {begun!r}")
            return False
        match = self.SIZE_LINE.fullmatch(line)
        if match is None:
            raise Refused(400, f"a chunk's size line is malformed: {line[:40]!r}")
        self.left = int(match[1], 16)
        self.total += self.left
        self.overhead += len(line) - len(match[1])
        if self.total > self.limits.max_body:
            raise Refused(413, f"a chunked body has more than {self.limits.max_body} bytes (max-body)")
        if self.overhead > self.MAX_EXTENSIONS:
            raise Refused(400, f"a chunked body has more than {self.MAX_EXTENSIONS} bytes of extensions")
        self.state = self.read_data if self.left else self.read_trailer
        self.overhead_of_trailer = 0
        return True

    def read_data(self, pieces: list[bytes]) -> bool:
        """Read what is there of a chunk's data, then its CRLF."""
        if self.left:
            piece = self.rest[self.at : self.at + self.left]
            if not piece:
                return False
            pieces.append(piece)
            self.left -= len(piece)
            self.at += len(piece)
            return not self.left
        end = self.rest[self.at : self.at + 2]
        if not b"\r\n".startswith(end):
            raise Refused(400, "a chunk's data does not end in CRLF")
        if len(end) < 2:
            return False
        self.at += 2
        self.state = self.read_size
        return True

    def read_trailer(self, _: list[bytes]) -> bool:
        """Read a trailer line, or the empty line that ends the body."""
        line = self.take_line(self.limits.max_field, 431)
        if line is None:
            return False
        if line:
            parse_fields(line + "\r\n", self.limits)
            self.overhead_of_trailer += len(line) + 2
            if self.overhead_of_trailer > self.limits.max_head:
                raise Refused(431, f"the trailers have more than {self.limits.max_head} bytes (max-head)")
        else:
            self.finished = True
        return True
