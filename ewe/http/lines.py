"""Lines: the request line, and checks of lines that may be incomplete. Heads and chunked bodies consist of lines.

A client may send a head, or any line, in pieces. The server must not wait for the end of a line that cannot become
a valid line: a client that speaks TLS, or HTTP/0.9, gets an answer at once. And the server's result must not depend
on how the bytes were divided. Both follow from one rule: **the first byte that cannot be part of a valid line
decides.** A pattern for the *beginning* of a valid line matches as many bytes as possible. After the match there
must be the line's LF, or the end of the bytes that have arrived.
"""

from __future__ import annotations

import re

from ewe.http.fields import TOKEN
from ewe.http.limits import RequestLimits
from ewe.http.status import HTTPError

# request-line = method SP request-target SP HTTP-version: RFC 9112 section 3
MAX_METHOD_CHARS = 32  # characters; the longest registered method, UPDATEREDIRECTREF, has 17
REQUEST_LINE = re.compile(rf"({TOKEN}{{1,{MAX_METHOD_CHARS}}}) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])")
# The beginnings of a valid request line and of a valid field line
BEGUN_REQUEST_LINE = re.compile(rf"(?:({TOKEN}+)(?: (?:([\x21-\x7e]+)(?: [HTTP/0-9.]{{0,8}})?)?)?)?\r?")
BEGUN_FIELD_LINE = re.compile(rf"(?:{TOKEN}+(?::[\t\x20-\x7e\x80-\xff]*)?)?\r?")
MATCHED_BYTES = 64  # bytes of a line to match, if the bytes after them have been checked without a pattern
# The bytes that a field name may have, and those of a line
VALID_IN_NAME = "".join(re.findall(TOKEN, bytes(range(128)).decode("ascii"))).encode("ascii")
VALID_IN_LINE = bytes({*b"\t\r", *range(0x20, 0x7F), *range(0x80, 0x100)})


def parse_request_line(line: str, limits: RequestLimits) -> tuple[str, str, tuple[int, int]]:
    """Return method, target and version. A minor version above 1 counts as 1 (RFC 9110 section 2.5).

    Raises HTTPError: 400, 414, 505. If the line has several faults, check_head() finds the first.
    """
    match = REQUEST_LINE.fullmatch(line)
    if match is None:
        raise HTTPError(400, f"the request line is malformed: {line[:80]!r}")
    method, target, major, minor = match.groups()
    if len(target) > limits.max_target:
        raise HTTPError(414, f"the target has more than {limits.max_target} bytes (max-target)")
    if major != "1":
        raise HTTPError(505, f"HTTP/{major}.{minor} is not spoken here")
    return method, target, (1, 0) if minor == "0" else (1, 1)


def check_partial_head(arrived: bytes, limits: RequestLimits, checked: int = 0) -> int:
    """Check the part of a head that has arrived; raise HTTPError if it can no longer become a valid head.

    checked: the result of the previous call, so that a complete line is checked only once; 0 in the first call.
    Returns the offset of the last line. Raises the errors of check_head().
    """
    max_line_bytes = min(limits.max_field if checked else limits.max_target, limits.max_head - checked)
    return check_head(without_valid_rest(arrived, checked, max_line_bytes), limits, checked)


def check_head(arrived: bytes, limits: RequestLimits, start: int = 0) -> int:
    """Check a head, or the part that has arrived, from the line at `start` on.

    Return the offset of the last line. The first byte that cannot be part of a valid head decides; the bytes after
    it have no effect. Raises HTTPError: 400, 414, 431, 501 for a long method, 505.
    """
    text = arrived[start : limits.max_head + 1].decode("latin-1")
    number = arrived.count(b"\n", 0, start)  # of the line; 0: the request line
    line_start = 0  # in `text`
    while line_start < len(text):
        if number:
            line = checked_field_line(text, line_start, number, limits, start)
        else:
            line = checked_request_line(text, limits)
        if not line:  # None: it is incomplete; "": the empty line, which ends the head
            break
        line_start += len(line) + 2
        number += 1
    if len(arrived) > limits.max_head:
        raise HTTPError(
            431, f"the head has more than {limits.max_head} bytes (max-head)", offset=limits.max_head
        )
    return start + line_start


def checked_request_line(text: str, limits: RequestLimits) -> str | None:
    """Return the request line at the beginning of a head, without its CRLF; None if it is incomplete.

    Raises the errors of check_head().
    """
    begun = BEGUN_REQUEST_LINE.match(text)
    assert begun is not None  # the pattern also matches an empty text
    check_request_sizes(begun, limits)
    if not line_is_complete(text, 0, begun.end(), "the request line"):
        return None
    line = text[: begun.end() - 1]
    try:
        parse_request_line(line, limits)
    except HTTPError as error:
        error.offset = begun.end()
        raise
    return line


def checked_field_line(
    text: str, line_start: int, number: int, limits: RequestLimits, text_start: int
) -> str | None:
    """Return the field line at `line_start`, or the empty line, without its CRLF; None if it is incomplete.

    number: of the line in the head, from 1 on. text_start: the offset of `text` in the head. Raises HTTPError: 400,
    431.
    """
    begun = BEGUN_FIELD_LINE.match(text, line_start)
    assert begun is not None  # the pattern also matches an empty text
    check_field_size(begun[0], number, limits, text_start + line_start)
    if not line_is_complete(text, line_start, begun.end(), "a field line", text_start):
        return None
    line = text[line_start : begun.end() - 1]
    if line and ":" not in line:
        cause = f"a field line is malformed: {line[:80]!r}"
        raise HTTPError(400, cause, offset=text_start + begun.end())
    return line


def check_request_sizes(begun: re.Match[str], limits: RequestLimits) -> None:
    """Raise HTTPError if the method or the target of a request line, or of its beginning, is too long."""
    method, target = begun.groups(default="")
    if len(method) > MAX_METHOD_CHARS:
        cause = f"method {method[:MAX_METHOD_CHARS]!r} goes on; the limit is {MAX_METHOD_CHARS} characters"
        raise HTTPError(501, cause, offset=MAX_METHOD_CHARS)
    if len(target) > limits.max_target:
        cause = f"the target has more than {limits.max_target} bytes (max-target)"
        raise HTTPError(414, cause, offset=begun.start(2) + limits.max_target)


def check_field_size(begun: str, number: int, limits: RequestLimits, offset: int) -> None:
    """Raise HTTPError(431) if a field line, or its beginning, is too long, or exceeds max_fields.

    offset: the offset of the line in the head.
    """
    size = len(begun.rstrip("\r"))
    if size and number > limits.max_fields:
        cause = f"there are more than {limits.max_fields} field lines (max-fields)"
        raise HTTPError(431, cause, offset=offset)
    if size > limits.max_field:
        cause = (
            f"field {begun[: min(40, limits.max_field)]!r} has more than {limits.max_field} bytes (max-field)"
        )
        raise HTTPError(431, cause, offset=offset + limits.max_field)


def line_is_complete(text: str, line_start: int, valid_end: int, name: str, text_start: int = 0) -> bool:
    """Return True if a line is complete; False if its next byte has not arrived.

    text: the bytes that have arrived, decoded; the line begins at `line_start`. valid_end: the end of the bytes
    that can be part of a valid line, as a pattern has matched them; the last of them is the CR if the line is
    complete. name: of the line, for the message. text_start: the offset of `text` in the head.

    Raises HTTPError(400) if the byte at `valid_end` cannot continue the line: it is not the LF of a CRLF.
    """
    if valid_end == len(text):
        return False
    if valid_end == line_start or text[valid_end - 1 : valid_end + 1] != "\r\n":
        number, byte = valid_end - line_start + 1, ord(text[valid_end])
        before = text[max(line_start, valid_end - 80) : valid_end]
        cause = f"{name} is malformed at its byte {number}, {byte:#04x}, after {before!r}"
        raise HTTPError(400, cause, offset=text_start + valid_end)
    return True


def without_valid_rest(data: bytes, line_start: int, max_line_bytes: int) -> bytes:
    """Return `data` with only the first MATCHED_BYTES of its last line, if the line's later bytes are valid.

    A client may send byte by byte, and the whole line is checked each time. Searching for invalid bytes with
    translate() is ten times as fast as matching a pattern. line_start: above 0 for a field line, which may have
    fewer kinds of bytes before its colon than after it. A line that is complete, or that has more than
    `max_line_bytes`, is not shortened.
    """
    line = data[line_start:]
    # translate() deletes the valid bytes, so the invalid ones remain.
    if not MATCHED_BYTES < len(line) <= max_line_bytes or b"\n" in line or b"\r" in line[:-1]:
        return data
    if line_start and line.partition(b":")[0].translate(None, VALID_IN_NAME):
        return data
    return data if line.translate(None, VALID_IN_LINE) else data[: line_start + MATCHED_BYTES]
