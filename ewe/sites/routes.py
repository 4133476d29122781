"""Routes: a site is a tree. Each node is a handler, and chooses the next node by the request.

    Hosts         chooses a [[site]]: by the name in Host and the server's address (ewe.http.virtual_hosts)
    SiteRoutes    chooses a location: the first in the file that covers the path; the last one covers every path
      a chain     filters (limit-rate, headers, compression, error-pages) around guards (methods, allow, auth)
      First       calls the handlers of the location (ewe.sites.rules) one after the other
    FeatureChain  calls the features of a document root one after the other; its files come last

A node without a choice is left out: a server without tables begins with its FeatureChain.

A rewrite, a `try` that has found another path, and a local redirect of a program raise Reroute. The exception
leaves the chain without a response. SiteRoutes then begins again with its first location, at most MAX_REDIRECTS
times. The guards of every location on the way see the request; only the filters of the last location see the
response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.features.base import Failures, Middleware, Reroute, explained, proxy_of, respond_with
from ewe.features.declaration import Mounted
from ewe.http.error_pages import error_page
from ewe.http.local_redirect import redirected_request
from ewe.http.messages import Request, Response
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ewe.features.base import Explanation, Handler, Mount
    from ewe.features.static import Static
    from ewe.http.virtual_hosts import VirtualHosts
    from ewe.sites.match import Match
    from ewe.streams.base import Stream

MAX_REDIRECTS = 10  # local redirects and rewrites of one request: RFC 3875 section 6.2.2
EVERY_METHOD = ("Allow", "GET, HEAD, POST, OPTIONS")


class FeatureChain:
    """Calls the features of one document root, one after the other; its files come last.

    site: the routes that follow a local redirect, if this node is the root of the tree. guarded: an authorizer is
    around this node, for `ewe --explain`.
    """

    def __init__(self, mounts: Sequence[Mount], static: Static) -> None:
        self.routes: list[tuple[str, Handler]] = []
        self.static = static
        self.site: SiteRoutes | None = None
        self.guarded = False
        for at, mount in enumerate(mounts):
            handler = mount.handler
            if isinstance(handler, Mounted) and isinstance(handler.handler, Middleware):
                # The features after the middleware are inside of it, for requests below its path. They also follow
                # it in `routes`, for all other requests.
                rest = FeatureChain(mounts[at + 1 :], static)
                handler = handler.around(rest)
            self.routes.append((mount.path, handler))

    async def respond(self, request: Request, io: Stream) -> Response:
        """Return the response of the first feature that answers. Raises HTTPError, and the features' exceptions."""
        try:
            for prefix, handler in self.routes:
                if request.path.startswith(prefix):
                    response = await handler.respond(request, io)
                    if response is not None:
                        if response.target is None:
                            return response
                        raise Reroute(redirected_request(request, response.target or "/"), by_program=True)
        except Reroute as other:  # from a feature, or from inside a middleware (RFC 3875 section 6.2.2)
            if self.site is None:
                raise
            reroute = other.with_traceback(None)
        else:
            if request.path == "*":
                return Response(204, (EVERY_METHOD,))
            return await self.static.respond(request, io) or error_page(404, "there is no such file")
        return await self.site.response_elsewhere(reroute, io)

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the lines about the feature, or the file, that answers; return True: the files answer last."""
        if self.guarded:
            yield "  decides   an authorizer may answer instead (fastcgi-authorizer)"
        for prefix, handler in self.routes:
            if request.path.startswith(prefix):
                try:
                    if (yield from explained(handler, request, io)):
                        return True
                except HTTPError as refused:
                    yield f"  answer    {refused.status}: {refused.cause}"
                    return True
        yield from self.static.explain(request, "no program is at this path")
        return True

    def proxy_at(self, path: str) -> object | None:
        """Return the proxy that answers for a path; None if another feature comes before it.

        A mounted middleware is a part of the result: one reading of a path may be inside of it, and one outside.
        """
        for prefix, handler in self.routes:
            if path.startswith(prefix):
                if isinstance(handler, Mounted) and isinstance(handler.handler, Middleware):
                    if not handler.covers(path):
                        continue
                    inner = proxy_of(handler.handler, path)
                    return None if inner is None else (handler, inner)
                proxy_at = getattr(handler, "proxy_at", None)
                if proxy_at is None:
                    return None
                proxy: object | None = proxy_at(path)
                if proxy is not None:
                    return proxy
        return None


class Variables(Middleware):
    """Give programs more variables: those of `env`, and Authorization with `pass-authorization`."""

    def __init__(self, inner: Handler, variables: dict[bytes, bytes], *, passes_authorization: bool) -> None:
        self.inner = inner
        self.variables = variables
        self.passes_authorization = passes_authorization

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the inner handler's response."""
        return await respond_with(self.joined(request, io.variables), self.inner, request, io)

    def joined(self, request: Request, before: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Return the variables of the settings, and those that guards have set (`before`), which win.

        The caller may not change the dict: many requests share it.
        """
        authorization = request.values.get("authorization") if self.passes_authorization else None
        if authorization is not None:
            passed = {b"HTTP_AUTHORIZATION": authorization.encode("latin-1", "replace")}
            return self.variables | passed | before
        return self.variables | before if before else self.variables

    def proxy_at(self, path: str) -> object | None:
        """Return the inner handler's proxy for a path (ewe.features.encoded_slashes)."""
        return proxy_of(self.inner, path)


class Location:
    """One location of a site: the paths that it covers, and the handler for them.

    match: None for the last location, which covers every path. inner: the handler that answers. filters, guards:
    the middlewares around it, with the innermost filter and the outermost guard first. guard_keys, filter_keys: the
    keys of the settings that ask for them.
    """

    def __init__(
        self,
        match: Match | None,
        inner: Handler,
        guards: Sequence[Middleware],
        filters: Sequence[Middleware],
        site: Handler,
    ) -> None:
        """site: the handler for other paths of the site, such as an error page."""
        self.match = match
        self.inner = inner
        self.filters = filters
        self.site = site
        self.guard_keys: list[str] = []
        self.filter_keys: list[str] = []
        handler = inner
        for guard in reversed(guards):
            handler = guard.around(handler, site)
        self.handler = self.in_filters(handler)

    def in_filters(self, handler: Handler) -> Handler:
        """Wrap a handler in the filters of this location."""
        if self.filters:
            handler = Failures(handler)
        for each in self.filters:
            handler = each.around(handler, self.site)
        return handler


class SiteRoutes:
    """The locations of one site.

    has_table: the site is a [[site]]. guarded: an authorizer may answer before any location.
    """

    def __init__(self, *, has_table: bool) -> None:
        self.locations: list[Location] = []
        self.has_table = has_table
        self.guarded = False

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the response of the location that covers the request's path. Raises HTTPError."""
        io.counted_by = ()
        for location in self.locations:  # the loop of find(), without the cost of a call
            if location.match is None or location.match.covers(request.path):
                break
        try:
            return await location.handler.respond(request, io)
        except Reroute as other:
            # The traceback's frames refer to this frame: a cycle that only the garbage collector could free.
            reroute = other.with_traceback(None)
        return await self.response_elsewhere(reroute, io)

    def find(self, path: str) -> Location:
        """Return the first location that covers a path. Raises HTTPError(414)."""
        for location in self.locations:
            if location.match is None or location.match.covers(path):
                return location
        raise AssertionError("the last location covers every path")

    async def response_elsewhere(self, reroute: Reroute, io: Stream, *, unguarded: bool = False) -> Response:
        """Return the response for the request of a Reroute, and of those that follow it: MAX_REDIRECTS at most.

        unguarded: skip guards and filters, for an error page. A program's local redirect is then refused, since no
        guard would see its target. Raises HTTPError.
        """
        before = io.tried, io.variables  # of the request that is answered, for the caller
        try:
            for _ in range(MAX_REDIRECTS):
                # `tried`: if a rule `try` has found the path, it does not search again
                request, io.variables, io.tried = reroute.request, reroute.variables, reroute.tried
                location = self.find(request.path)
                handler = location.inner if unguarded else location.handler
                try:
                    return await handler.respond(request, io) or error_page(404, "there is no such file")
                except Reroute as other:
                    reroute = other.with_traceback(None)
                if unguarded and reroute.by_program:
                    raise HTTPError(500, "its answer is a local redirect")
            failure = too_many_redirects(reroute)
            if unguarded:
                raise failure
            # The filters of the last location see the failure, as they see the location's other responses.
            response = await location.in_filters(FailingHandler(failure)).respond(reroute.request, io)
            return response or error_page(500, failure.cause)
        finally:
            io.tried, io.variables = before

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the lines about the locations that a request passes, its rewrites, and the handler that answers.

        Return True: if no handler answers, the answer is 404.
        """
        for _ in range(MAX_REDIRECTS + 1):
            location = self.find(request.path)
            yield from self.lines_about_location(location, request.path)
            if location.guard_keys:
                yield f"  decides   {', '.join(location.guard_keys)}: may answer instead"
            try:
                answered = yield from explained(location.inner, request, io)
            except Reroute as other:
                request, io.tried = other.request, other.tried
                yield f"            so ewe looks {request.path} up"
                continue
            except HTTPError as refused:
                yield f"  answer    {refused.status}: {refused.cause}"
                answered = True
            if not answered:
                yield "  answer    404: nothing here answers"
            if location.filter_keys:
                yield f"  finishes  {', '.join(location.filter_keys)}: may change the answer"
            return True
        yield f"  answer    500: more than {MAX_REDIRECTS} rewrites"
        return True

    def lines_about_location(self, location: Location, path: str) -> Iterator[str]:
        """Yield the line of --explain about the location that covers a path, with the number of those before it."""
        if not self.has_table:
            return
        if location.match is None:  # the last location, which is in no file
            why = "no location covers this path" if len(self.locations) > 1 else "the site has no locations"
            yield f"  location  none: {why}"
            return
        table, before = location.match.table, self.locations.index(location)
        passed = f", after {before} that do not" if before else ""
        yield f"  location  {table.origin}: {table}   (the first that covers {path}{passed})"

    def proxy_at(self, path: str) -> object | None:
        """Return the location and the proxy that answer for a path; None if another handler may answer."""
        location = self.find(path)
        proxy = None if self.guarded else proxy_of(location.inner, path)
        return None if proxy is None else (location, proxy)


def too_many_redirects(last: Reroute) -> HTTPError:
    """Return the error of a request that was sent to other paths MAX_REDIRECTS times, and then by `last`."""
    what = f"local redirects, the last to {last.request.target!r}"
    if not last.by_program:
        what = f"rewrites, the last to {last.request.path!r}"
    return HTTPError(500, f"more than {MAX_REDIRECTS} {what}")


class UnguardedSite:
    """A site without the guards and filters of its locations, for error pages."""

    def __init__(self, routes: SiteRoutes) -> None:
        self.routes = routes

    async def respond(self, request: Request, io: Stream) -> Response:
        """Return the response for the request's path. Raises HTTPError."""
        return await self.routes.response_elsewhere(Reroute(request, io.variables), io, unguarded=True)


class FailingHandler:
    """A handler that raises an error for every request."""

    def __init__(self, error: HTTPError) -> None:
        self.error = error

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Raise the error."""
        raise self.error


class Hosts:
    """Chooses one of several sites."""

    def __init__(self, hosts: VirtualHosts[Handler]) -> None:
        self.hosts = hosts

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the response of the site that the request asks for. Raises HTTPError."""
        # Behind a proxy, io.server is the proxy's address: take this server's own one.
        server = io.server if io.endpoints is None else io.endpoints.server
        return await self.hosts.choose(request.host, server).respond(request, io)

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the lines of the site that the request asks for (ewe.sites.explain names it, and the reason)."""
        return (yield from explained(self.hosts.choose(request.host, io.server), request, io))
