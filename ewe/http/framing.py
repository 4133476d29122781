"""Framing: where a request's body ends, and whether the connection may outlive it. RFC 9112 sections 6 and 9.3."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ewe.http.limits import RequestLimits
from ewe.http.status import HTTPError

LENGTH = re.compile(r"0|[1-9][0-9]{0,18}")  # no sign, no list, no leading zeros; fits into 64 bits


def body_length(
    values: Mapping[str, str],
    fields: tuple[tuple[str, str], ...],
    version: tuple[int, int],
    limits: RequestLimits,
) -> int | None:
    """Return the length of the body in bytes: 0 if there is none, None if it is chunked.

    Raises HTTPError: 400 if two servers could frame the body differently; 413 above max_body; 501 for other
    codings.
    """
    coding = values.get("transfer-encoding")
    length = values.get("content-length")
    if coding is not None:
        if length is not None:
            raise HTTPError(400, "both Content-Length and Transfer-Encoding")
        if version != (1, 1):
            raise HTTPError(400, "Transfer-Encoding in an HTTP/1.0 request")
        codings = [name.strip(" \t").lower() for name in coding.split(",")]
        if "" in codings:
            raise HTTPError(400, f"transfer coding {coding[:40]!r} has an empty element")
        if codings[-1] != "chunked" or codings.count("chunked") > 1:
            raise HTTPError(400, f"transfer coding {coding[:40]!r} does not end in one chunked")
        if len(codings) > 1:
            raise HTTPError(501, f"transfer coding {coding[:40]!r} is not implemented")
        return None
    if length is None:
        return 0
    if LENGTH.fullmatch(length) is None or sum(name == "content-length" for name, _ in fields) != 1:
        raise HTTPError(400, f"Content-Length is malformed: {length[:40]!r}")
    if int(length) > limits.max_body:
        raise HTTPError(
            413, f"a body of {length} bytes is declared; the limit is {limits.max_body} (max-body)"
        )
    return int(length)


def allows_keep_alive(connection: str | None, version: tuple[int, int]) -> bool:
    """Return whether the client allows the connection to stay open: RFC 9112 section 9.3."""
    if connection is None:
        return version == (1, 1)
    if connection == "keep-alive":  # of most browsers
        return True
    options = {option.strip(" \t").lower() for option in connection.split(",")}
    if "close" in options:
        return False
    return version == (1, 1) or "keep-alive" in options
