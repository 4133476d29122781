"""The requests in the trace: which one each connection makes, and which feature answers it (setting `trace`).

The middleware does not see the connection's stream if TLS is over it. But a worker runs one conversation at a time,
and ewe.server.trace writes down which: `trace.worker.stream`.

It also tells that stream whether the response is complete, so that no feature works on it any more.

Read next: ewe.trace, which lists the events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.features.answered_by import noted
from ewe.features.base import Middleware
from ewe.features.declaration import Feature
from ewe.http.messages import Source
from ewe.http.status import HTTPError
from ewe.scoreboard import FILES
from ewe.streams.base import Disconnected
from ewe.trace import Trace, trace_at

if TYPE_CHECKING:
    from ewe.features.plan import HasProxies
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

MAX_NAME_CHARS = 100  # of a feature, in an event


class Requests(Middleware):
    """Writes each request, and the status of its response."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the inner handler's response."""
        worker = self.trace.worker
        stream, name = worker.stream, worker.connection
        if stream is not None:  # None: a model awaits the conversation instead of resuming it
            stream.complete = False
        self.trace.write("request", name, f"{request.method} {request.target}")
        io.answered_by = FILES
        status = 500
        try:
            response = await self.inner.respond(request, io)
            status = response.status if response is not None else 404
            if stream is not None:
                stream.complete = response is None or not isinstance(response.body, Source)
            return response
        except HTTPError as error:
            status = error.status
            raise
        except Disconnected:
            if not io.has_client():
                status = 499  # as in the access log
            raise
        finally:
            # The head is sent next, or the conversation ends
            self.trace.hold("answered", name, f"{status} {io.answered_by[:MAX_NAME_CHARS]}")


def server_middleware(site: HasProxies) -> Requests:
    """Return the middleware around all sites."""
    return Requests(trace_at(str(site.config.trace)))


FEATURE = Feature("trace", server_middleware=server_middleware, answered_by=noted)
