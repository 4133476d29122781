"""Lines that may not have ended yet. Heads and chunked bodies are both made of lines.

A client sends a line in any number of pieces. Its server must not wait for the end of a line that can no longer
become a good one, and the verdict must not depend on how the bytes were cut. Both follow from one rule: **the first
byte with which no good line can go on decides.** A pattern for the *beginning* of a good line matches as much as it
can; where the match stops, there must be the line's LF, or the end of what has arrived.
"""

from __future__ import annotations

import re

from ewe.http.fields import TOKEN
from ewe.http.status import HTTPError

# What a good field line may begin with.
BEGUN_FIELD_LINE = re.compile(rf"(?:{TOKEN}+(?::[\t\x20-\x7e\x80-\xff]*)?)?\r?")
BEGINNING = 64  # bytes: enough of a line whose rest has been checked by counting
IN_LINE = bytes({*b"\t\r", *range(0x20, 0x7F), *range(0x80, 0x100)})


def line_ends(text: str, begins: int, end: int, what: str, start: int = 0) -> bool:
    """Return whether the line that begins at `begins` ends with an LF at `end`; False if no byte is there yet.

    what: the line's name, for the message. start: the offset of `text` in the head. Raises HTTPError(400) if
    another byte is there, or if no CR precedes the LF.
    """
    if end == len(text):
        return False
    if end == begins or text[end - 1 : end + 1] != "\r\n":
        before = text[max(begins, end - 80) : end]
        cause = f"{what} is malformed at its byte {end - begins + 1}, {ord(text[end]):#04x}, after {before!r}"
        raise HTTPError(400, cause, place=start + end)
    return True


def beginning(data: bytes, start: int, longest: int) -> bytes:
    """Return data, cut after the first BEGINNING bytes of the line at `start` if the bytes after them are good.

    A client may send byte by byte, and each time the whole line is checked. To count bad bytes is ten times as fast
    as to match a pattern.
    """
    line = data[start:]
    if not BEGINNING < len(line) <= longest or b"\n" in line or b"\r" in line[:-1]:
        return data
    return data if line.translate(None, IN_LINE) else data[: start + BEGINNING]
