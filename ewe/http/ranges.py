"""Range requests: RFC 9110 section 14."""

from __future__ import annotations

import os
import re

from ewe.http.messages import Region, Response

MAX_RANGES = 32  # a request for more gets the whole file: section 14.2 warns of many small ranges
SPEC = re.compile(r"([0-9]{0,19})-([0-9]{0,19})")
ONE_RANGE = re.compile(r"bytes=([0-9]{1,19})-([0-9]{0,19})")  # as most clients ask
# The beginning of the head with one range; the range and the field lines of the whole file follow
ONE_PART = b"HTTP/1.1 206 Partial Content\r\nContent-Range: "


def satisfiable_ranges(value: str, size: int) -> list[tuple[int, int]] | None:
    """Return the (offset, count) of each satisfiable range, in the order of the field `value`.

    Return None if the field is malformed or has too many ranges: the whole file is then sent. Return an empty list
    if no range can be satisfied: the status is then 416 (section 15.5.17).
    """
    one = ONE_RANGE.fullmatch(value)
    if one is not None and (begin := int(one[1])) <= (end := int(one[2] or size - 1)):
        return [(begin, min(end, size - 1) - begin + 1)] if begin < size else []
    unit, _, specs = value.partition("=")
    if unit.lower() != "bytes":
        return None
    ranges = []
    for spec in specs.split(","):
        if spec := spec.strip(" \t"):  # an empty element of the list is ignored: section 5.6.1.2
            parsed = parsed_range(spec, size)
            if parsed is None:
                return None
            ranges.append(parsed)
    if not 0 < len(ranges) <= MAX_RANGES:
        return None
    satisfiable = [(first, last - first + 1) for first, last in ranges if first <= last]
    # Several ranges that cost as much as the whole file are no use to a client.
    if len(satisfiable) > 1 and (many_overlap(satisfiable) or sum(count for _, count in satisfiable) >= size):
        return None
    return satisfiable


def parsed_range(spec: str, size: int) -> tuple[int, int] | None:
    """Return the first and last byte of a range; None if the whole field must be ignored.

    last < first: the range cannot be satisfied.
    """
    match = SPEC.fullmatch(spec)
    if match is None:
        return None
    first, last = match.groups()
    if first:
        begin, end = int(first), int(last) if last else size - 1
        if last and end < begin:
            return None  # invalid, so the whole field must be ignored: section 14.1.1
        return begin, min(end, size - 1)
    count = int(last) if last else None
    if count is None or (count and not size):
        # The suffix of an empty file is satisfiable (section 14.1.2), but no Content-Range can express it.
        return None
    return max(size - count, 0), size - 1 if count else -1  # "-0" asks for no byte


def many_overlap(ranges: list[tuple[int, int]]) -> bool:
    """Return whether more than two ranges overlap. Section 14.2 allows a server to ignore such a field."""
    end, times = 0, 0
    for offset, count in sorted(ranges):
        times += offset < end
        end = max(end, offset + count)
    return times > 1


def unsatisfiable_fields(size: int) -> tuple[tuple[str, str], ...]:
    """Return the fields of a 416: section 15.5.17."""
    return (("Content-Range", f"bytes */{size}"),)


def partial_response(
    ranges: list[tuple[int, int]],
    parts: list[bytes | Region],
    size: int,
    kind: str,
    fields: tuple[tuple[str, str], ...],
    field_lines: bytes,
) -> Response:
    """Return the 206 for ranges of a file. Several ranges become a multipart/byteranges (section 14.6).

    parts: the bytes or the Region of each range. size, kind: the bytes and the Content-Type of the whole file.
    fields: all other fields. field_lines: the Content-Type and these fields, encoded.
    """
    if len(ranges) == 1:
        ((offset, count),) = ranges
        (part,) = parts
        where = f"bytes {offset}-{offset + count - 1}/{size}"
        body = part if isinstance(part, bytes) else (part,)
        head = ONE_PART + where.encode() + b"\r\n" + field_lines
        return Response(206, (("Content-Range", where), ("Content-Type", kind), *fields), body, head=head)
    boundary = os.urandom(12).hex()
    pieces: list[bytes | Region] = []
    for (offset, count), part in zip(ranges, parts, strict=True):
        last = offset + count - 1
        lead = (
            f"\r\n--{boundary}\r\nContent-Type: {kind}\r\nContent-Range: bytes {offset}-{last}/{size}\r\n\r\n"
        )
        pieces += [lead.encode("latin-1"), part]
    pieces.append(f"\r\n--{boundary}--\r\n".encode())
    about = ("Content-Type", f"multipart/byteranges; boundary={boundary}")
    return Response(206, (about, *fields), tuple(pieces))
