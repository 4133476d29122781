"""Encoded slashes: only a reverse proxy may get a path with %2F.

`/packages/@scope%2Fname` has two readings: "@scope%2Fname" is one segment, or it is two segments. npm's registries
and GitLab use the first reading, most file servers the second. If ewe chose the location by one reading, and the
upstream the file by the other, a visitor could bypass a rule: by `/open%2F..%2Fprivate`, or by `/private%2Fx` if
the rule is for `/private/`.

Other handlers never get such a path; the answer is 404. If a site has a proxy, the parser decodes %2F, and this
middleware checks the path before any feature gets the request. The request goes on only if both readings of the
path lead to the same proxy, and to the same location with its rules. The proxy then sends the client's target
unchanged. If decoding creates a dot segment, a hidden name or an empty segment, the answer is 404
(ewe.http.target).

A site without proxies does not have this middleware.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ewe.features.base import Handler, Middleware
from ewe.http.status import HTTPError
from ewe.http.target import ENCODED_SLASH, has_encoded_slash, with_kept_slashes

if TYPE_CHECKING:
    from ewe.features.base import Explanation
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream


class WithProxies(Handler, Protocol):
    """A site that can name the proxy for a path."""

    def proxy_at(self, path: str) -> object | None:
        """Return the proxy that answers for a path, with the location; None if another feature may answer."""
        ...


class EncodedSlashes(Middleware):
    """Lets a path with %2F reach a site only if both its readings lead to the same proxy."""

    inner: WithProxies

    def __init__(self, inner: WithProxies) -> None:
        self.inner = inner

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the site's response. Raises HTTPError(404), and the site's exceptions."""
        if has_encoded_slash(request.target) and not same_proxy(self.inner, request):
            raise HTTPError(404, ENCODED_SLASH)
        return await self.inner.respond(request, io)

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the site's lines, or the line about a path whose readings differ."""
        if same_proxy(self.inner, request):
            return (yield from super().explain(request, io))
        yield f"  answer    404: {ENCODED_SLASH}, and its two readings do not lead to the same proxy"
        return True


def same_proxy(site: WithProxies, request: Request) -> bool:
    """Return whether the path has no encoded slash, or both its readings lead to the same proxy."""
    path, _, _ = request.target.partition("?")
    if not has_encoded_slash(path):
        return True
    # One reading of the path decodes %2F, and the other one keeps it.
    proxy = site.proxy_at(request.path)
    return proxy is not None and proxy == site.proxy_at(with_kept_slashes(request.target))
