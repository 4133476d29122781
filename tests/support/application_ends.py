"""The application's ends of SCGI and uwsgi: they read the requests that ewe sends, and refuse all other bytes."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from ewe.gateway import scgi, uwsgi

MAX_HEAD_BYTES = 256 * 1024  # bytes of a netstring that read_scgi_request() accepts
MAX_DIGITS = 7  # of a netstring's length; more than MAX_HEAD_BYTES has, so that its message names the limit
Found = tuple[dict[bytes, bytes], bytes] | None


class WireError(ValueError):
    """Bytes that the protocol does not allow; the text is one line."""


def read_scgi_request(data: bytes) -> Found:
    """Return a request's variables, and the bytes after them. None: the netstring is not complete.

    Raises WireError.
    """
    first = data[: MAX_DIGITS + 1]
    digits, colon, _ = first.partition(b":")
    if (digits and not digits.isdigit()) or (colon and not digits) or (not colon and len(first) > MAX_DIGITS):
        raise WireError(f"{first!r} begins no netstring")
    if not colon:
        return None
    length = int(digits)
    if digits != b"%d" % length:
        raise WireError(f"the netstring's length {digits.decode()} begins with 0")
    if length > MAX_HEAD_BYTES:
        raise WireError(f"a netstring of {digits.decode()} bytes; {MAX_HEAD_BYTES} is the limit")
    start = len(digits) + 1
    end = start + length
    if len(data) <= end:
        return None
    if data[end : end + 1] != b",":
        raise WireError("the netstring does not end in a comma")
    return decode_pairs(data[start:end]), data[end + 1 :]


def decode_pairs(content: bytes) -> dict[bytes, bytes]:
    """Return the variables of a netstring. Raises WireError."""
    words = content.split(b"\0")
    if words.pop() or len(words) % 2:
        raise WireError("the netstring's last variable has no end")
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    if len(pairs) * 2 != len(words) or b"" in pairs:
        raise WireError("a name comes twice, or is empty")
    if words[:1] != [b"CONTENT_LENGTH"] or not words[1].isdigit() or pairs.get(b"SCGI") != b"1":
        raise WireError("CONTENT_LENGTH is not the first variable, or SCGI=1 is missing")
    return pairs


def read_uwsgi_request(data: bytes) -> Found:
    """Return a request's variables, and the bytes after them. None: the packet is not complete.

    Raises WireError.
    """
    if data and data[0] != uwsgi.WSGI:
        raise WireError(f"modifier1 is {data[0]}, not {uwsgi.WSGI}")
    if len(data) < uwsgi.HEADER.size:
        return None
    end = uwsgi.HEADER.size + uwsgi.HEADER.unpack_from(data)[1]
    if len(data) < end:
        return None
    pairs = {}
    at = uwsgi.HEADER.size
    while at < end:
        words = []
        for _ in range(2):
            start = at + uwsgi.LENGTH.size
            at = start + uwsgi.LENGTH.unpack_from(data, at)[0] if start <= end else end + 1
            if at > end:
                raise WireError("a variable goes beyond the end of its block")
            words.append(data[start:at])
        pairs[words[0]] = words[1]
    return pairs, data[end:]


READERS: dict[ModuleType, Callable[[bytes], Found]] = {scgi: read_scgi_request, uwsgi: read_uwsgi_request}
