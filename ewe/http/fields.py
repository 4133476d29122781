"""Header fields, name and value: RFC 9110 section 5, RFC 9112 section 5."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ewe.bounded import BoundedDict
from ewe.http.limits import RequestLimits
from ewe.http.status import HTTPError

TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]"  # tchar: RFC 9110 section 5.6.2
REASON = re.compile(r"[\t\x20-\x7e\x80-\xff]*")  # of a status line, RFC 9112 section 4
# field-line = field-name ":" OWS field-value OWS; field-value is visible, obs-text, space or tab: section 5
FIELD_LINE = re.compile(rf"({TOKEN}+):[\t ]*+([\t\x20-\x7e\x80-\xff]*)")
# Most field lines of a client are the same in each of its requests, and in those of other clients with the same
# browser. A line that was parsed before costs a lookup.
MAX_CACHED_LINES = 1024
MAX_CACHED_LINE_CHARS = 256
# Lines of these fields are not cached: they differ between clients and requests.
VARYING = frozenset({
    "authorization", "content-length", "cookie", "proxy-authorization", "range", "referer", "x-api-key",
    "x-auth-token", "x-csrf-token",
})  # fmt: skip
parsed_lines: BoundedDict[str, tuple[str, str]] = BoundedDict(MAX_CACHED_LINES)


def parse_fields(block: str, limits: RequestLimits) -> tuple[tuple[str, str], ...]:
    """Return (name in lower case, value) of each field line. Each line of the block ends in CRLF.

    Raises HTTPError: 400 for a malformed line, 431 above a limit.
    """
    lines = block.split("\r\n")
    lines.pop()
    # Before the lines are parsed: 9,000 lines would block an event loop, and replace the whole cache.
    if len(lines) > limits.max_fields:
        raise HTTPError(
            431, f"there are {len(lines)} field lines; the limit is {limits.max_fields} (max-fields)"
        )
    fields = tuple([parsed_lines.get(line) or parse_field_line(line) for line in lines])
    if len(block) > limits.max_field and len(longest := max(lines, key=len)) > limits.max_field:
        raise HTTPError(431, f"field {longest[:40]!r} has more than {limits.max_field} bytes (max-field)")
    return fields


def fields_of_head(head: bytes, limits: RequestLimits) -> tuple[tuple[str, str], ...]:
    """Return the fields of a refused head, for the access log; () if it is incomplete or a field is malformed."""
    _, _, block = head.removesuffix(b"\r\n").partition(b"\r\n")
    try:
        return parse_fields(block.decode("latin-1"), limits)
    except HTTPError:
        return ()


def parse_field_line(line: str) -> tuple[str, str]:
    """Return (name in lower case, value) of a field line without its CRLF; cache it if it is short.

    Raises HTTPError(400) for a malformed line.
    """
    match = FIELD_LINE.fullmatch(line)
    if match is None:
        raise HTTPError(400, f"a field line is malformed: {line[:80]!r}")
    field = (match[1].lower(), match[2].rstrip(" \t"))
    if len(line) <= MAX_CACHED_LINE_CHARS and field[0] not in VARYING:
        parsed_lines[line] = field
    return field


def joined(fields: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return name -> value. Values of equal names are joined by ", " (RFC 9110 section 5.3), cookies by "; "."""
    values = dict(fields)
    if len(values) == len(fields):  # no name comes twice
        return values
    values = {}
    for name, value in fields:
        if name in values:
            values[name] += ("; " if name == "cookie" else ", ") + value
        else:
            values[name] = value
    return values
