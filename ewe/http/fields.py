"""Header fields, name and value: RFC 9110 section 5, RFC 9112 section 5."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ewe.http.limits import RequestLimits
from ewe.http.status import HTTPError

TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]"  # tchar: RFC 9110 section 5.6.2
# field-line = field-name ":" OWS field-value OWS; field-value is visible, obs-text, space or tab: section 5
FIELD_LINES = re.compile(rf"(?:{TOKEN}+:[\t\x20-\x7e\x80-\xff]*\r\n)*")
FIELD_LINE = re.compile(rf"{TOKEN}+:[\t\x20-\x7e\x80-\xff]*")


def parse_fields(block: str, limits: RequestLimits) -> tuple[tuple[str, str], ...]:
    """Return (name in lower case, value) of each field line. Each line of the block ends in CRLF.

    Raises HTTPError: 400 for a malformed line, 431 above a limit.
    """
    if FIELD_LINES.fullmatch(block) is None:
        raise HTTPError(400, f"a field line is malformed: {first_bad_line(block)[:80]!r}")
    lines = block.split("\r\n")
    lines.pop()
    if len(lines) > limits.max_fields:
        raise HTTPError(
            431, f"there are {len(lines)} field lines; the limit is {limits.max_fields} (max-fields)"
        )
    if len(block) > limits.max_field and len(longest := max(lines, key=len)) > limits.max_field:
        raise HTTPError(431, f"field {longest[:40]!r} has more than {limits.max_field} bytes (max-field)")
    fields = []
    for line in lines:
        name, _, value = line.partition(":")
        fields.append((name.lower(), value.strip(" \t")))
    return tuple(fields)


def first_bad_line(block: str) -> str:
    """Return the first malformed line of a block that FIELD_LINES did not match."""
    for line in block.split("\r\n"):
        if FIELD_LINE.fullmatch(line) is None:
            return line
    return block


def joined(fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return name -> value. Values of equal names are joined by ", " (RFC 9110 section 5.3), cookies by "; "."""
    values: dict[str, str] = {}
    for name, value in fields:
        if name in values:
            values[name] += ("; " if name == "cookie" else ", ") + value
        else:
            values[name] = value
    return values
