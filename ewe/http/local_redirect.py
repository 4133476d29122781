"""Local redirects: a program names another target of this server as the answer (RFC 3875 section 6.2.2)."""

from __future__ import annotations

from ewe.http.messages import Request
from ewe.http.status import HTTPError
from ewe.http.target import parse_target


def redirected_request(request: Request, target: str) -> Request:
    """Return the request for the target of a local redirect: GET or HEAD, without a body. Raises HTTPError(502)."""
    fields = tuple(
        (name, value) for name, value in request.fields if not name.startswith(("content-", "if-", "range"))
    )
    method = "HEAD" if request.method == "HEAD" else "GET"
    other = Request(method, target, request.version, fields)
    try:
        parse_target(other)
    except HTTPError as refused:
        raise HTTPError(502, f"a local redirect: {refused.cause}") from None
    other.host = request.host
    return other
