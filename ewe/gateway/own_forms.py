"""Forms of this server's own pages: a page of another site must not send one in a visitor's name (CSRF).

A browser sends the password of a log-in, and a cookie, with each request to the server, also with a form of another
site's page. Every browser says in one of two fields where a form comes from, and no page can change them:
Sec-Fetch-Site (Fetch Metadata), on secure connections and to this machine, or Origin (Fetch Standard). A program
that sends neither is not a browser, and does not act with a visitor's rights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.http.messages import Request

FORM = "application/x-www-form-urlencoded"


async def form_data(request: Request, max_bytes: int) -> bytes:
    """Return the body of a form that a page of this site has sent. Raises HTTPError(403, 413, 415)."""
    if reason := cross_site(request):
        raise HTTPError(403, f"a form of another site: {reason}")
    return await form_body(request, max_bytes)


async def form_body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a form. Raises HTTPError(413, 415)."""
    kind = request.values.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM:
        raise HTTPError(415, f"a form of the type {kind[:60]!r}: it must be {FORM}", (("Accept", FORM),))
    too_large = HTTPError(413, f"a form of more than {max_bytes} bytes")
    if request.length is not None and request.length > max_bytes:
        raise too_large
    data = bytearray()
    while piece := await request.body.receive():
        data += piece
        if len(data) > max_bytes:
            raise too_large
    return bytes(data)


def cross_site(request: Request) -> str:
    """Return the reason why a form may come from another site; "" if it comes from this site."""
    site, origin = request.values.get("sec-fetch-site"), request.values.get("origin")
    if site is not None:  # "none": the visitor, and no page, has caused the request
        return "" if site in ("same-origin", "none") else f"Sec-Fetch-Site is {site[:40]!r}"
    # "null", the origin of a page without one, has no host.
    host = "" if origin is None else origin.partition("://")[2]
    if origin is None or (host and host.lower() == request.host.lower()):
        return ""
    return f"Origin is {origin[:80]!r}, Host {request.host!r}"
