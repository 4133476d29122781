"""Checks of the responses of a mounted handler, which may be that of other people.

The server alone frames a response (ewe.response_writer). Two answers to the question where a body ends are a way to
split a response (RFC 9112 sections 6.3 and 11.1). A Content-Length must therefore be the length of the body. It
tells the length of a Source that has none, and HEAD may have that of GET (RFC 9110 section 8.6). The fields of the
server are dropped, as those of a CGI program are (RFC 3875 section 6.3).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ewe.gateway.cgi import NOT_PASSED_ON
from ewe.http.messages import CLOSED, Response, Source, body_size
from ewe.http.status import BODILESS_STATUSES

if TYPE_CHECKING:
    from ewe.http.messages import Request

REASON = re.compile(r"[\t\x20-\x7e\x80-\xff]*")  # reason-phrase: RFC 9112 section 4


def checked(found: object, request: Request, feature: str) -> Response | None:
    """Return what a feature has returned, without the fields of the server. feature: its name, for messages.

    Raises TypeError, ValueError for an object that cannot be sent.
    """
    if found is None:
        return None
    if not isinstance(found, Response):
        kind = type(found).__name__
        raise TypeError(f"respond() of {feature} has returned {kind}; it must return a Response or None")
    # A local redirect is not sent. A raw response has its own head.
    if found.target is not None or (isinstance(found.body, Source) and found.body.raw):
        return found
    try:
        return framed(found, request)
    except (TypeError, ValueError) as reason:
        raise type(reason)(f"the response of {feature}: {reason}") from None


def framed(response: Response, request: Request) -> Response:
    """Return a response whose length and fields agree with its body. Raises TypeError, ValueError."""
    # A feature may have assigned anything to the attributes.
    given: Any = response
    status, reason, length, body = given.status, given.reason, given.length, response.body
    if not isinstance(status, int) or not 200 <= status <= 599 or REASON.fullmatch(reason) is None:
        raise ValueError(f"status {status!r} {reason!r}")
    if body is CLOSED:
        raise ValueError("it was sent before")
    size, bodiless = body_size(body), request.method == "HEAD" or status in BODILESS_STATUSES
    if length is not None and (not isinstance(length, int) or length < 0):
        raise ValueError(f"length {length!r}")
    if not bodiless and not isinstance(body, Source) and length != size:
        raise ValueError(f"length {length}, but the body has {size} bytes")
    if status == 205 and size and not bodiless:  # RFC 9110 section 15.3.6
        raise ValueError("a 205 has no content")
    fields, announced = fields_of_feature(response)
    if announced is not None:
        if length is None or (bodiless and not size):
            length = announced
        elif announced != length and status not in BODILESS_STATUSES:
            raise ValueError(f"Content-Length {announced}, but the body has {length} bytes")
    if len(fields) == len(response.fields):
        return response
    own = response.with_fields(fields)
    own.length = length
    if isinstance(body, Source) and body.length is None:
        body.length = length  # the content cache must not keep a shorter body
    return own


def fields_of_feature(response: Response) -> tuple[list[tuple[str, str]], int | None]:
    """Return the fields that the server does not set, and the Content-Length. Raises TypeError, ValueError."""
    fields: list[tuple[str, str]] = []
    lengths: set[int] = set()
    given: Any = response.fields
    for field in given:
        name, value = field if isinstance(field, tuple | list) else (None, None)
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TypeError(f"field {field!r} is no pair of texts")
        lower = name.lower()
        if lower == "content-length":
            if not (value.isascii() and value.isdigit() and len(value) < 19):
                raise ValueError(f"Content-Length {value!r}")
            lengths.add(int(value))
        elif lower not in NOT_PASSED_ON:
            fields.append((name, value))
    if len(lengths) > 1:
        raise ValueError(f"Content-Length is {' and '.join(map(str, lengths))}")
    return fields, lengths.pop() if lengths else None
