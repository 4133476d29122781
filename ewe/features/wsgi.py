"""WSGI: Python applications inside the server (PEP 3333), such as those of Flask, Django and Bottle.

    respond: spool the body -> io.call(begin) -> bytes, files, or a Source whose receive() is io.call(more)
                                                    └─ after the response, however it ended: io.call(finish)

The application is imported once, when the server starts, and lives as long as the process. Under every model it is
called through the stream's call(): in place where the connection has a thread or a process, in a call thread beside
an event loop. What PEP 3333 says about the call itself is in gateway/wsgi.py.

The request's body is spooled first (gateway/spool.py), so that wsgi.input never waits for a slow client, and a
thread is held only while the application works.
"""

from __future__ import annotations

from io import BytesIO
from typing import IO, TYPE_CHECKING

from ewe.gateway.cgi import refuse_trace
from ewe.gateway.spool import spooled
from ewe.gateway.wsgi import SMALL, Application, Errors, Invocation, add_request, constants
from ewe.http.error_pages import error_page, fault_page
from ewe.http.messages import BodyReader, Request, Response, Source
from ewe.http.status import HTTPError
from ewe.registry import load_application
from ewe.streams.base import Stream, Timeout

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.base import Explanation


class WSGI:
    """Answer with an application, below one path."""

    def __init__(
        self, config: Config, path: str, name: str, *, threads: bool = False, processes: bool = False
    ) -> None:
        """name: module:app, which load() imports.

        threads, processes: several threads of this process, or several processes, may call it at the same time.
        """
        self.name = name
        self.path = path.rstrip("/")
        self.application: Application
        self.constants = constants(self.path, threads, processes)
        self.spool = config.spool
        self.timeout = config.program_timeout
        self.development = config.development

    def load(self) -> None:
        """Import the application, before the first request. Raises ValueError, in one line."""
        self.application = load_application(self.name, "wsgi")

    started = None

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the application, below its path."""
        path, root = request.path, self.path
        below = not root or path == root or path.startswith(root + "/")
        if below:
            yield f"  answer    WSGI application {self.name} at {root or '/'}"
        return below

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer with what the application returns; None outside of its path.

        Raises HTTPError: 504 if the application is silent for program_timeout, and those of the request's body.
        """
        path = request.path
        if path != self.path and not path.startswith(self.path + "/"):
            return None
        refuse_trace(request)
        file, length = await self.body_of(request.body)
        environ = self.constants.copy()
        environ["wsgi.input"] = file
        environ["wsgi.errors"] = Errors(self.name)
        add_request(environ, request, io, path[len(self.path) :], length)
        name = f"{request.line!r} from {io.client[0]}"
        run = Invocation(self.application, environ, name, self.spool)
        try:
            await io.call(run.begin, seconds=self.timeout, abandoned=run.finish)
        except Timeout:
            raise self.silent() from None
        head = run.head
        if run.fault or head is None:
            return fault_page(run.fault) if self.development else error_page(500, f"{self.name} failed")
        if run.finished and type(run.body) is bytes:
            response = Response(head.status, head.fields, run.body, reason=head.reason)
        else:
            body = run.body if run.body is not None else Blocks(self, run, io)
            if type(body) is bytes:
                body = (body,)
            response = Finishing(head.status, head.fields, body, reason=head.reason)
            response.run, response.io = run, io
        response.length = run.length
        return response

    async def body_of(self, body: BodyReader) -> tuple[IO[bytes], int]:
        """Return a file with the request's body, read to its end, and its length in bytes. Raises HTTPError."""
        if body.length == 0:
            return BytesIO(), 0
        if body.length is not None and body.length <= SMALL:
            pieces = []
            while piece := await body.receive():
                pieces.append(piece)
            return BytesIO(b"".join(pieces)), body.length
        whole = await spooled(body, self.spool)
        return open(whole.descriptor, "rb", buffering=SMALL), whole.length

    def silent(self) -> HTTPError:
        """Return the error for an application that takes too long."""
        return HTTPError(504, f"{self.name} was silent for {self.timeout:g} s (program-timeout)")


class Blocks(Source):
    """The blocks of an application's body, one call for each."""

    def __init__(self, feature: WSGI, run: Invocation, io: Stream) -> None:
        self.feature = feature
        self.run = run
        self.io = io
        self.length = run.length

    async def receive(self) -> bytes:
        run = self.run
        try:
            block = await self.io.call(run.more, seconds=self.feature.timeout, abandoned=run.finish)
        except Timeout:
            raise self.feature.silent() from None
        if run.fault:
            raise HTTPError(500, f"{self.feature.name} failed")
        return block

    async def close(self) -> None:
        """Do nothing: Finishing.close() ends the invocation."""


class Finishing(Response):
    """A response after which the application's close() is called, also if the client leaves."""

    __slots__ = ("io", "run")
    run: Invocation
    io: Stream

    async def close(self) -> None:
        if not self.run.finished:
            await self.io.call(self.run.finish, abandoned=self.run.finish)
