"""The interface of ewe's features: handlers, middlewares, and the declaration of a feature.

A *handler* answers requests: with a file, with the output of a program, or with a page that it makes. It has one
method, respond(). A handler that passes a request on returns None.

    /cgi-bin/hello.py ──▶ CGI ──None──▶ FastCGI ──None──▶ ... ──None──▶ Static ──None──▶ 404
                           └─Response──▶ the client

A *middleware* is a handler that contains the next handler. It can refuse a request, change it, or change the
response. A guard, a cache, compression, a rate limit and error pages are middlewares:

    request ──▶ LimitRate ──▶ Headers ──▶ Auth ──▶ the handler that answers
    client  ◀── slower   ◀── fields  ◀── 401  ◀──┘

A site is a tree of both (ewe.sites.routes). A handler that no setting asks for is not in the tree.

A *feature* is declared in the last lines of its module, for the builder of that tree:

    FEATURE = Feature("markdown", mounts=mounts)

The builder knows no feature by name. It reads the names of the modules in ewe.config.feature_table. It imports a
module only if the settings need it, since a fork is slower if its parent has loaded more. Your own feature needs no
entry there: the setting `mount` switches it on. docs/write-a-feature.md shows an example.

A handler does not know which concurrency model runs it. It may await the client's stream (`io`) and the request's
body, but it must not block on a socket or a pipe itself. One handler object serves all requests of a process, in
the thread model many at once. A forked process has a copy.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from ewe.http.error_pages import error_page
from ewe.http.local_redirect import redirected_request
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

    # The type of each explain(): a generator that yields the lines which `ewe --explain` prints for a request, and
    # returns whether the handler answers. `yield from` passes the lines on, and has this value.
    Explanation = Generator[str, None, bool]


class Handler(Protocol):
    """An object that answers requests."""

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return a response, or None to pass the request on. Raises HTTPError."""
        ...


class Middleware:
    """A handler that contains the next one. A subclass awaits self.inner.respond(), and acts before and after it.

    One middleware may be part of several chains, each time around another handler: around() returns a copy. The
    copies share the objects of the middleware, such as the counts of a rate limit.

    site: the handler for other paths of the same site, without the middlewares of their locations.
    """

    inner: Handler
    site: Handler

    def around(self, inner: Handler, site: Handler) -> Self:
        """Return a copy of this middleware around another handler."""
        other = copy(self)
        other.inner, other.site = inner, site
        return other

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the response of the inner handler. Raises HTTPError, and the inner handler's exceptions."""
        return await self.inner.respond(request, io)

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the lines of the inner handler; return whether it answers."""
        return (yield from explained(self.inner, request, io))


def explained(handler: Handler, request: Request, io: Stream) -> Explanation:
    """Yield a handler's lines for `ewe --explain`; return whether it answers (the value of `yield from`).

    No program is started, and nothing is sent.

    A handler may have a method explain() for this, with the same arguments and results. Raises HTTPError if the
    handler would refuse the request, and Reroute for another path.
    """
    explain = getattr(handler, "explain", None)
    if explain is not None:
        return bool((yield from explain(request, io)))
    yield f"  asks      {type(handler).__name__}, which alone knows whether it answers"
    return True  # not known, so the explanation ends here, as if the handler answered


class First:
    """Calls several handlers, one after the other. The first response counts; without one the answer is 404."""

    def __init__(self, handlers: Sequence[Handler]) -> None:
        self.handlers = handlers

    async def respond(self, request: Request, io: Stream) -> Response:
        """Return the first response. Raises the handlers' exceptions, and Reroute for a local redirect."""
        for handler in self.handlers:
            response = await handler.respond(request, io)
            if response is not None:
                if response.target is not None:
                    raise Reroute(redirected_request(request, response.target), by_program=True)
                return response
        return error_page(404, "there is no such file")

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the lines of the handlers, up to the first that answers; return whether one answers."""
        for handler in self.handlers:
            if (yield from explained(handler, request, io)):
                return True
        return False

    def proxy_at(self, path: str) -> object | None:
        """Return the proxy that answers for a path; None if another handler comes before it."""
        return proxy_of(self.handlers[0], path)


class Failures(Middleware):
    """Converts an HTTPError into a response, so that the outer middlewares can change it."""

    def __init__(self, inner: Handler) -> None:
        self.inner = inner

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the inner handler's response, or the page of its HTTPError."""
        try:
            return await self.inner.respond(request, io)
        except HTTPError as error:
            return error_page(error.status, error.cause, error.fields)


class Reroute(Exception):
    """The site must answer for another path: after a rewrite, after `try`, or after a local redirect.

    request: the request for that path. variables: the variables that guards have set; None: none. tried: the
    handler of `try` that has found the path, and must not search again; None: another rule has found it.
    by_program: a program has sent a local redirect; an error page may not do that.
    """

    def __init__(
        self,
        request: Request,
        variables: dict[bytes, bytes] | None = None,
        tried: Handler | None = None,
        *,
        by_program: bool = False,
    ) -> None:
        super().__init__(request)
        self.request = request
        self.variables = variables or {}
        self.tried = tried
        self.by_program = by_program


class Mount(NamedTuple):
    """A handler, and the beginning of the paths for which it is called.

    last: it is called after the handlers of all features. bare: no middleware of a feature is around it.
    """

    path: str
    handler: Handler
    last: bool = False
    bare: bool = False


class ProtectedSource(NamedTuple):
    """A source that ewe never sends as a file (ewe.gateway.protected_sources). Each field may be empty.

    extension: protects files with this extension below the document root. directory: protects all files below this
    directory. executables: protects executable files below this directory, which contains the document root.
    sources: a directory with the sources of Python applications.
    """

    extension: str = ""
    directory: str = ""
    executables: str = ""
    sources: str = ""


def proxy_of(handler: Handler, path: str) -> object | None:
    """Return the proxy that answers for a path; None if the handler may answer without one (encoded_slashes.py)."""
    proxy_at = getattr(handler, "proxy_at", None)
    return proxy_at(path) if proxy_at is not None else None


async def respond_with(
    variables: dict[bytes, bytes], inner: Handler, request: Request, io: Stream
) -> Response | None:
    """Return a handler's response, while programs get these variables. Raises the handler's exceptions."""
    before = io.variables
    io.variables = variables
    try:
        return await inner.respond(request, io)
    finally:
        io.variables = before
