"""Checks of lines that may be incomplete. Heads and chunked bodies consist of lines.

A client may send a line in any number of pieces. The server must not wait for the end of a line that cannot become
a valid line, and its result must not depend on how the bytes were divided. Both follow from one rule: **the first
byte that cannot be part of a valid line decides.** A pattern for the *beginning* of a valid line matches as many
bytes as possible. After the match there must be the line's LF, or the end of the bytes that have arrived.
"""

from __future__ import annotations

import re

from ewe.http.fields import TOKEN
from ewe.http.status import HTTPError

# The beginning of a valid field line.
BEGUN_FIELD_LINE = re.compile(rf"(?:{TOKEN}+(?::[\t\x20-\x7e\x80-\xff]*)?)?\r?")
MATCHED_BYTES = 64  # bytes of a line to match, if the bytes after them have been checked without a pattern
IN_NAME = "".join(re.findall(TOKEN, bytes(range(128)).decode("ascii"))).encode("ascii")
IN_LINE = bytes({*b"\t\r", *range(0x20, 0x7F), *range(0x80, 0x100)})


def line_is_complete(text: str, begins: int, end: int, what: str, start: int = 0) -> bool:
    """Return True if the line from `begins` is complete; False if its next byte has not arrived.

    text: the bytes that have arrived, decoded. end: the offset after the bytes that can be part of a valid line, as
    a pattern has matched them; a CR is the last of them if the line is complete. what: the line's name, for the
    message. start: the offset of `text` in the head. Raises HTTPError(400) if the byte at `end` cannot continue the
    line: it is not the LF of a CRLF.
    """
    if end == len(text):
        return False
    if end == begins or text[end - 1 : end + 1] != "\r\n":
        before = text[max(begins, end - 80) : end]
        cause = f"{what} is malformed at its byte {end - begins + 1}, {ord(text[end]):#04x}, after {before!r}"
        raise HTTPError(400, cause, offset=start + end)
    return True


def beginning(data: bytes, start: int, longest: int) -> bytes:
    """Return `data`, shortened to the first MATCHED_BYTES of the line at `start` if the later bytes are valid.

    A client may send byte by byte, and the whole line is checked each time. Searching for invalid bytes with
    translate() is ten times as fast as matching a pattern. start: above 0 for a field line, which may have fewer
    kinds of bytes before its colon than after it.
    """
    line = data[start:]
    # IN_LINE and IN_NAME are the valid bytes: translate() deletes them, and invalid bytes remain.
    if not MATCHED_BYTES < len(line) <= longest or b"\n" in line or b"\r" in line[:-1]:
        return data
    if start and line.partition(b":")[0].translate(None, IN_NAME):
        return data
    return data if line.translate(None, IN_LINE) else data[: start + MATCHED_BYTES]
