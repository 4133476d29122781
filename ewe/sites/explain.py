"""`ewe --explain URL`: print the site, the location and the rule that would answer a request, and the reason.

It visits the same objects as a request, in the same order. It starts no program, and sends nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ewe.features.base import explained
from ewe.http.messages import Request
from ewe.http.status import HTTPError
from ewe.http.target import checked_host, host_in_url, parse_target
from ewe.http.virtual_hosts import VirtualHosts, name_of, wildcards_for

if TYPE_CHECKING:
    from ewe.site import Site
    from ewe.sites.certificates import BuiltSite

QUESTION = re.compile(r"(?:([A-Za-z]+)\s+)?(?:(https?)://([^/?#]+))?(/[^#\s]*)?")


class NoConnection:
    """The attributes of a stream that templates read. It has no connection."""

    client = ("127.0.0.1", 0)
    connected = None
    tried: object = None
    variables: dict[bytes, bytes] = {}

    def __init__(self, scheme: str, server: tuple[str, int]) -> None:
        self.scheme = scheme
        self.server = server


def explain(site: Site, question: str, server: tuple[str, int]) -> Iterator[str]:
    """Yield the lines of the answer. question: [METHOD] URL. server: the address to which the client connects.

    Raises ValueError for a malformed question.
    """
    match = QUESTION.fullmatch(question.strip())
    if match is None or not (match[3] or match[4]):
        raise ValueError(f"{question!r} is no URL: write /path, http://host/path or POST /path")
    method, scheme, target = match[1] or "GET", match[2] or "http", match[4] or "/"
    host = match[3] or host_in_url(server[0])
    request = Request(method.upper(), target, (1, 1), (("host", host),))
    try:
        request.host = checked_host(host)
        parse_target(request, site.limits.encoded_slashes)
    except HTTPError as refused:
        raise ValueError(f"{question!r}: {refused.cause} ({refused.status})") from None
    io = NoConnection(scheme, server)
    yield f"{request.method} {scheme}://{request.host}{target}"
    if request.path != target.partition("?")[0]:
        yield f"  path      {request.path}   (decoded, without dot segments and double slashes)"
    built = site.built
    if not built:
        yield "  site      the only one: the settings have no [[site]]"
    else:
        chosen = VirtualHosts([(each.host, each) for each in built]).choose(request.host, server)
        yield from lines_about_site(chosen, built, request)
    try:
        # From the root, since a middleware around all sites may answer, too
        yield from explained(site.root, request, io)  # type: ignore[arg-type]
    except HTTPError as refused:
        yield f"  answer    {refused.status}: {refused.cause}"


def lines_about_site(chosen: BuiltSite, built: Sequence[BuiltSite], request: Request) -> Iterator[str]:
    """Yield the lines about the chosen site, with the reason."""
    host, name = chosen.host, name_of(request.host)
    if name in host.names:
        why = f"{name} is one of its names"
    elif wildcard := next((each for each in wildcards_for(name) if each in host.names), ""):
        why = f"{name} matches its name {wildcard}"
    elif not host.names:
        why = "it has no names, and no other site has this one" if len(built) > 1 else "the only one"
    else:
        why = f"no site has the name {name}, and this is the first"
    if host.listen:
        why += "; it listens at " + ", ".join(f"{address}:{port}" for address, port in host.listen)
    yield f"  site      {chosen.table.origin}: {chosen.table}   ({why})"
    yield f"            documentroot = {chosen.plan.static.root}"
