"""The head of a response from an upstream. This module mirrors the parser of requests (parser.py).

    HTTP/1.1 200 OK\\r\\n            status line: version, status, reason      RFC 9112 section 4
    Content-Length: 12\\r\\n         field lines                               RFC 9112 section 5
    \\r\\n                           the empty line that ends the head

It is as strict as that parser. If two readers could frame a response differently, an attacker could replace the
response to another client (response splitting, RFC 9112 section 11.1). Content-Length together with
Transfer-Encoding, two lengths, an unknown coding, bare line feeds and folded fields are refused: the client gets
502.

ewe never copies the upstream's head. It drops the hop-by-hop fields, and writes the others again from their names
and values.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import NamedTuple

from ewe.http.fields import FIELD_LINE
from ewe.http.framing import LENGTH
from ewe.http.messages import encode_head
from ewe.http.status import BODILESS_STATUSES, REASONS, HTTPError

MAX_HEAD_BYTES = 64 * 1024  # bytes of a head; a longer one is refused
MAX_HEAD_FIELDS = 200  # of a head; one with more is refused
MAX_CACHED_HEAD_BYTES = 512  # bytes; longer heads are not cached
BEGINNING = b"HTTP/1."
STATUS_LINE = re.compile(r"HTTP/1\.([0-9]) ([1-5][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
# Fields that concern one connection (RFC 9110 section 7.6.1), in either direction. Fields that Connection names are
# dropped, too.
HOP_BY_HOP = frozenset({
    "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
# Fields of a response that ewe.response_writer sends itself, and one for proxies that ask for a password.
NOT_PASSED_ON = HOP_BY_HOP | {"date", "server", "content-length", "proxy-authenticate"}
MAPPED = frozenset({"location", "content-location", "set-cookie"})


class ResponseHead(NamedTuple):
    """A response's head, parsed.

    fields: the fields for the client. length: the length of the body in bytes, None if unknown. chunked: the body
    is chunked. reusable: the connection may be used for another request. upgrade: the protocol to which the
    connection switches. http_1_0: the version is HTTP/1.0. mapped: at least one of MAPPED is present. encoded: the
    status line and the fields, as bytes for the client.
    """

    status: int
    reason: str
    fields: tuple[tuple[str, str], ...]
    length: int | None
    chunked: bool
    reusable: bool
    upgrade: str
    http_1_0: bool
    mapped: bool
    encoded: bytes


def parse_response_head(head: bytes) -> ResponseHead:
    """Parse a whole head, from the status line to the empty line. Raises HTTPError(502)."""
    # A long head goes past the cache of lru_cache (__wrapped__), so that the cache stays small.
    parse = cached_response_head if len(head) <= MAX_CACHED_HEAD_BYTES else cached_response_head.__wrapped__
    return parse(head)


@functools.lru_cache(maxsize=512)  # most servers send the same head again and again, within a second
def cached_response_head(head: bytes) -> ResponseHead:
    """Return the parsed head, as parse_response_head() does. Raises HTTPError(502)."""
    line, _, block = head.decode("latin-1")[:-2].partition("\r\n")
    first = STATUS_LINE.fullmatch(line)
    if first is None:
        raise HTTPError(502, f"its status line is malformed: {line[:80]!r}")
    http_1_0, status = first[1] == "0", int(first[2])
    values: dict[str, list[str]] = {}
    fields: list[tuple[str, str]] = []
    for each in block.split("\r\n")[:-1]:
        match = FIELD_LINE.fullmatch(each)
        if match is None:
            raise HTTPError(502, "a field line of its response is malformed")
        name, value = match[1], match[2].rstrip(" \t")
        values.setdefault(name.lower(), []).append(value)
        fields.append((name, value))
    if len(fields) > MAX_HEAD_FIELDS:
        raise HTTPError(502, f"its response has {len(fields)} fields; the limit is {MAX_HEAD_FIELDS}")
    options = options_of(values.get("connection", ()))
    length, chunked = framing(values, http_1_0)
    dropped = NOT_PASSED_ON | options
    passed = tuple((name, value) for name, value in fields if name.lower() not in dropped)
    reason = first[3] if first[3] else REASONS.get(status, "Unknown")
    # A 204 and a 304 have no body. A server that frames one may send it, and the next client's response would begin
    # with it. The Content-Length of a 304 frames none: it is that of the 200 (RFC 9110 section 8.6).
    frames_forbidden_body = (status in BODILESS_STATUSES and chunked) or (status == 204 and bool(length))
    return ResponseHead(
        status=status,
        reason=reason,
        fields=passed,
        length=length,
        chunked=chunked,
        reusable="close" not in options
        and (not http_1_0 or "keep-alive" in options)
        and not frames_forbidden_body,
        upgrade=", ".join(values.get("upgrade", ())),
        http_1_0=http_1_0,
        mapped=not MAPPED.isdisjoint(values),
        encoded=encode_head(status, reason, passed),
    )


def framing(values: dict[str, list[str]], http_1_0: bool) -> tuple[int | None, bool]:
    """Return the length of the body (None: unknown), and whether it is chunked. Raises HTTPError(502).

    values: field name -> the values of its lines. http_1_0: the version is HTTP/1.0. Source: RFC 9112 section 6.3.
    A response to HEAD, or with a status in BODILESS_STATUSES, never has a body.
    """
    codings, lengths = values.get("transfer-encoding"), values.get("content-length")
    if codings is not None:
        if lengths is not None:
            raise HTTPError(502, "its response has both Content-Length and Transfer-Encoding")
        if http_1_0:
            raise HTTPError(502, "its HTTP/1.0 response has a Transfer-Encoding")
        if [coding.lower() for coding in codings] != ["chunked"]:
            raise HTTPError(502, f"transfer coding {', '.join(codings)[:40]!r} is not implemented")
        return None, True
    if lengths is None:
        return None, False
    if len(lengths) > 1 or LENGTH.fullmatch(lengths[0]) is None:
        raise HTTPError(502, f"its Content-Length is malformed: {', '.join(lengths)[:40]!r}")
    return int(lengths[0]), False


def options_of(values: Iterable[str]) -> frozenset[str]:
    """Return the options of Connection fields, in lower case."""
    return frozenset(option.strip(" \t").lower() for value in values for option in value.split(","))


def is_bodiless(method: str, status: int) -> bool:
    """Return whether a response has no body, independently of its fields."""
    return method == "HEAD" or status in BODILESS_STATUSES
