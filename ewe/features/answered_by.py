"""Which feature answers a request: a note on the client's stream, for the trace and for the counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.features.base import Middleware, proxy_of
from ewe.features.declaration import Mounted

if TYPE_CHECKING:
    from ewe.features.base import Handler
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream


class AnsweredBy(Middleware):
    """Notes the name of a feature if it answers, or refuses, a request."""

    def __init__(self, inner: Handler, feature: str) -> None:
        self.inner = inner
        self.feature = feature

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the inner handler's response, and note the feature on the stream (Stream.answered_by).

        An exception is an answer, too: an HTTPError becomes an error page, any other exception a 500. After None
        nothing is noted, since the next feature may answer. Raises the inner handler's exceptions.
        """
        try:
            response = await self.inner.respond(request, io)
        except BaseException:
            io.answered_by = self.feature
            raise
        if response is not None:
            io.answered_by = self.feature
        return response


class AnsweredByProxy(AnsweredBy):
    """Notes the name of a proxy. Only this class has proxy_at(): any other handler may answer without a proxy."""

    def proxy_at(self, path: str) -> object | None:
        """Return the inner handler's proxy for a path (ewe.features.encoded_slashes)."""
        return proxy_of(self.inner, path)


def noted(handler: Handler) -> Handler:
    """Return a handler that notes the name of its feature."""
    if isinstance(handler, AnsweredBy):
        return handler
    made = AnsweredByProxy if hasattr(handler, "proxy_at") else AnsweredBy
    return made(handler, feature_of(handler))


def feature_of(handler: Handler) -> str:
    """Return the name of a handler's feature: "cgi" for one of ewe's own, "hello.Hello" for another."""
    if isinstance(handler, Mounted):
        return feature_of(handler.handler)
    if isinstance(handler, Middleware) and hasattr(handler, "inner"):
        return feature_of(handler.inner)
    module = type(handler).__module__
    if module.startswith("ewe.features."):
        return module.split(".")[2]  # ewe.features.cgi.programs: "cgi"
    return f"{module}.{type(handler).__name__}"
