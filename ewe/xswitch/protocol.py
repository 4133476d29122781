"""The engine protocol: two lines to an engine's control socket, and the end mark that the engine returns.

    X-Switch    file TAB argument TAB ... LF
                NAME=value TAB NAME=value ... LF      %, TAB, LF in a word are written as %25, %09, %0A
    engine      EOT, the exit status in decimal, LF   the end mark, after the output

Source: X-Switch paper, section 3.2.1; docs/xswitch-internals.md defines the protocol. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MARK = re.compile(rb"\x04([0-9]{1,3})\n")
MARK_START = re.compile(rb"(\x04[0-9]{0,3})?")
SUCCESS = b"\x040\n"  # the mark of most requests
MAX_MARK_BYTES = 5
MAX_LINES_BYTES = 200 * 1024  # of both lines together: a socket accepts so many at once


class ProtocolError(Exception):
    """A request that the protocol cannot carry, or an engine that violates the protocol. The text is one line."""


def encode_words(words: Iterable[bytes]) -> bytes:
    """Return words as one line: tabs separate them, and tabs, line feeds and "%" in them are percent-encoded."""
    line = b"\0".join(words)  # NUL first: the tabs that separate words must not be encoded
    if b"%" in line:
        line = line.replace(b"%", b"%25")
    if b"\t" in line:
        line = line.replace(b"\t", b"%09")
    if b"\n" in line:
        line = line.replace(b"\n", b"%0A")
    return line.replace(b"\0", b"\t") + b"\n"


def request_lines(file: bytes, arguments: Iterable[bytes], environment: Mapping[bytes, bytes]) -> bytes:
    """Return the two lines of a request. Raises ProtocolError if they contain a NUL, or are too long."""
    command = (file, *arguments)
    variables = [*map(b"=".join, environment.items())]
    lines = encode_words(command) + encode_words(variables)
    # N words need N - 1 tabs between them, and no words none. encode_words() encodes the tabs within words, but
    # turns a NUL within a word into a tab: lines with a NUL therefore have too many tabs.
    tabs_between_words = len(command) - 1 + (len(variables) - 1 if variables else 0)
    if lines.count(b"\t") != tabs_between_words:
        raise ProtocolError("a NUL in the request's arguments or headers")
    if len(lines) > MAX_LINES_BYTES:
        raise ProtocolError(f"the request's arguments and headers exceed {MAX_LINES_BYTES} bytes")
    return lines


class MarkReader:
    """Reads the end marks of one engine."""

    def __init__(self) -> None:
        self.buffer = b""

    def feed(self, data: bytes) -> int | None:
        """Return the exit status once the mark is complete, None before. Raises ProtocolError."""
        if data == SUCCESS and not self.buffer:
            return 0
        self.buffer += data
        match = MARK.match(self.buffer)
        if match is not None and match.end() == len(self.buffer):
            self.buffer = b""
            return int(match[1])
        if len(self.buffer) >= MAX_MARK_BYTES or not MARK_START.fullmatch(self.buffer):
            raise ProtocolError(f"the engine wrote {self.buffer[:20]!r} where its mark should be")
        return None
