"""Forms of this server's own pages: a page of another site must not send one in a visitor's name (CSRF).

A browser sends the password of a log-in, and a cookie, with each request to the server, also with a form of another
site's page. Every browser says in one of two fields where a form comes from: Sec-Fetch-Site (Fetch Metadata), or
Origin (RFC 6454). A program that sends neither is not a browser, and does not act with a visitor's rights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.http.messages import Request


async def form_data(request: Request, most_bytes: int) -> bytes:
    """Return the body of a form that a page of this site has sent. Raises HTTPError(403, 413, 415)."""
    refuse_other_sites(request)
    kind = request.values.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPError(415, f"a form of the type {kind[:60]!r}")
    data = bytearray()
    while piece := await request.body.receive():
        data += piece
        if len(data) > most_bytes:
            raise HTTPError(413, f"a form of more than {most_bytes} bytes")
    return bytes(data)


def refuse_other_sites(request: Request) -> None:
    """Raise HTTPError(403) for a form of another site."""
    site = request.values.get("sec-fetch-site")
    origin = request.values.get("origin")
    if site is not None:
        allowed = site in ("same-origin", "none")
    else:
        allowed = origin is None or origin.partition("://")[2] == request.host
    if not allowed:
        raise HTTPError(403, f"a form of another site: Sec-Fetch-Site {site}, Origin {origin}")
