"""WSGI: Python applications inside the server (PEP 3333), such as those of Flask, Django and Bottle.

    respond: spool the body -> io.call(begin) -> bytes, files, or a Source whose receive() is io.call(more)
                                                    └─ after the response, also if it was aborted: io.call(finish)

The application is imported once, when the server starts, and stays until the process ends. Under every model, the
stream's call() calls it: in the connection's own thread or process, or, beside an event loop, in an executor
thread. gateway/wsgi.py makes the call itself, by the rules of PEP 3333.

The request's body is spooled first (gateway/spool.py), so that wsgi.input never waits for a slow client, and the
application occupies a thread only while it works.
"""

from __future__ import annotations

from io import BytesIO
from typing import IO, TYPE_CHECKING

from ewe.gateway.cgi import refuse_trace
from ewe.gateway.spool import spooled
from ewe.gateway.wsgi import BLOCK_BYTES, Application, ErrorStream, Invocation, add_request, constant_environ
from ewe.http.error_pages import error_page, fault_page
from ewe.http.messages import BodyReader, Request, Response, Source
from ewe.http.status import HTTPError
from ewe.registry import load_application
from ewe.streams.base import Disconnected, Stream, Timeout
from ewe.timeouts import count_timeout

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.base import Explanation


class WSGI:
    """Answers below one path with a WSGI application."""

    def __init__(
        self, config: Config, path: str, name: str, *, multithread: bool = False, multiprocess: bool = False
    ) -> None:
        """name: module:app, which load() imports. multithread, multiprocess: see ServerPlan."""
        self.name = name
        self.path = path.rstrip("/")
        self.application: Application
        self.constants = constant_environ(self.path, multithread, multiprocess)
        self.spool_memory_bytes = config.spool
        self.timeout_s = config.program_timeout
        self.development = config.development

    def load(self) -> None:
        """Import the application, before the first request. Raises ValueError with a text of one line."""
        self.application = load_application(self.name, "wsgi")

    started = None

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the line about the application, if the path is below its own."""
        path, root = request.path, self.path
        below = not root or path == root or path.startswith(root + "/")
        if below:
            yield f"  answer    WSGI application {self.name} at {root or '/'}"
        return below

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the application's response; None for another path.

        Raises HTTPError: 504 if the application is silent for program_timeout, and the errors of the request's
        body.
        """
        path = request.path
        if path != self.path and not path.startswith(self.path + "/"):
            return None
        refuse_trace(request)
        file, length = await self.body_of(request.body)
        environ = self.constants.copy()
        environ["wsgi.input"] = file
        environ["wsgi.errors"] = ErrorStream(self.name)
        add_request(environ, request, io, path[len(self.path) :], length)
        name = f"{request.line!r} from {io.client[0]}"
        invocation = Invocation(self.application, environ, name, self.spool_memory_bytes)
        try:
            await io.call(invocation.begin, seconds=self.timeout_s, abandoned=invocation.finish)
        except Timeout:
            raise self.silent() from None
        head = invocation.head
        if invocation.fault or head is None:
            return (
                fault_page(invocation.fault) if self.development else error_page(500, f"{self.name} failed")
            )
        # begin() has finished the call if all of the body is bytes, and the application has nothing to close.
        if invocation.finished and type(invocation.body) is bytes:
            response = Response(head.status, head.fields, invocation.body, reason=head.reason)
        else:
            # Without a whole body, the application makes one block in each further call.
            body = invocation.body if invocation.body is not None else Blocks(self, invocation, io)
            # send_response() does not call close() of a response of bytes: make it a tuple.
            if type(body) is bytes:
                body = (body,)
            response = Finishing(head.status, head.fields, body, reason=head.reason)
            response.invocation, response.io = invocation, io
        response.length = invocation.length
        return response

    async def body_of(self, body: BodyReader) -> tuple[IO[bytes], int]:
        """Read the whole body of a request; return a file with it, and its length in bytes. Raises HTTPError."""
        if body.length == 0:
            return BytesIO(), 0
        if body.length is not None and body.length <= BLOCK_BYTES:
            pieces = []
            while piece := await body.receive():
                pieces.append(piece)
            return BytesIO(b"".join(pieces)), body.length
        # In a file, since its length is unknown or large
        spooled_body = await spooled(body, self.spool_memory_bytes)
        return open(spooled_body.descriptor, "rb", buffering=BLOCK_BYTES), spooled_body.length

    def silent(self) -> HTTPError:
        """Return the error for an application that takes too long, and count the timeout."""
        count_timeout("program")
        return HTTPError(504, f"{self.name} was silent for {self.timeout_s:g} s (program-timeout)")


class Blocks(Source):
    """The blocks of an application's body. Each needs one call of the application. Finishing.close() ends them."""

    def __init__(self, feature: WSGI, invocation: Invocation, io: Stream) -> None:
        self.feature = feature
        self.invocation = invocation
        self.io = io
        self.length = invocation.length

    async def receive(self) -> bytes:
        """Have the application make its next block; return it. b"" at the end. Raises HTTPError(500, 504)."""
        invocation = self.invocation
        try:
            block = await self.io.call(
                invocation.more, seconds=self.feature.timeout_s, abandoned=invocation.finish
            )
        except Timeout:
            invocation.abandoned = True
            raise self.feature.silent() from None
        except Disconnected:
            invocation.abandoned = True
            raise
        if invocation.fault:
            raise HTTPError(500, f"{self.feature.name} failed")
        return block


class Finishing(Response):
    """A response whose close() calls the application's close(), also if the client leaves."""

    __slots__ = ("invocation", "io")
    invocation: Invocation
    io: Stream

    async def close(self) -> None:
        """Release the body of this response, then call the application's close() (PEP 3333).

        An abandoned call may still run in another thread. The stream then ends the invocation after it.
        """
        try:
            await super().close()
        finally:
            if not (self.invocation.finished or self.invocation.abandoned):
                await self.io.call(self.invocation.finish, abandoned=self.invocation.finish)
