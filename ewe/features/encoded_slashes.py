"""Encoded slashes: a path with %2F, which only a reverse proxy may get.

`/packages/@scope%2Fname` can be read in two ways: "@scope%2Fname" is one segment, or it is two. npm's registries
and GitLab take the first reading, most file servers the second. If ewe chose the location by one reading and the
next server the file by the other, a visitor could pass by a rule: `/open%2F..%2Fprivate`, or `/private%2Fx` where
the rule is for `/private/`.

Everywhere in ewe such a path is 404. A site that has a proxy lets the parser decode it, and asks here before any
feature sees the request. The request goes on only if both readings of the path lead to the same proxy, and to the
same location with its rules. The proxy then sends the target as the client wrote it. A path whose encoded slashes
make segments of dots, hidden names or empty segments is 404 before (ewe.http.target).

A site without proxies has none of this on its way.
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
    """A site that says which proxy answers."""

    def proxy_at(self, path: str) -> object | None:
        """Return the proxy that answers for a path, with the location; None if another feature may answer."""
        ...


class EncodedSlashes(Middleware):
    """Let a path with %2F reach a site only where both its readings lead to the same proxy."""

    inner: WithProxies

    def __init__(self, inner: WithProxies) -> None:
        self.inner = inner

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the site's response. Raises HTTPError(404), and what the site raises."""
        if has_encoded_slash(request.target) and not same_proxy(self.inner, request):
            raise HTTPError(404, ENCODED_SLASH)
        return await self.inner.respond(request, io)

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the site's lines, or that the path can be read in two ways."""
        if same_proxy(self.inner, request):
            return (yield from super().explain(request, io))
        yield f"  answer    404: {ENCODED_SLASH}, and its two readings do not lead to the same proxy"
        return True


def same_proxy(site: WithProxies, request: Request) -> bool:
    """Return whether the path has no encoded slash, or both its readings lead to the same proxy."""
    if not has_encoded_slash(request.target.partition("?")[0]):
        return True
    proxy = site.proxy_at(request.path)
    return proxy is not None and proxy == site.proxy_at(with_kept_slashes(request.target))
