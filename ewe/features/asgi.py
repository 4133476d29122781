"""ASGI: an application answers below a path, such as one of Starlette, FastAPI or Django (setting `asgi`).

    request ──▶ respond(): scope ──▶ ApplicationCall (ewe.gateway.asgi) ──▶ the application, on its loop
    client  ◀── Response or ApplicationBody ◀── ApplicationHead, pieces ◀──────┘

The feature converts a Request into a scope, and the messages of the application into a Response. If the first piece
completes the response, the body is bytes. Otherwise the body is a Source (ApplicationBody), and the conversation
asks the application for one piece after the other. If the application names a file as its body
(http.response.pathsend), the kernel sends the file.

Read next: ewe/gateway/asgi.py.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

from ewe.config.messages import docs_page
from ewe.gateway.asgi import FAULT, Application, ApplicationCall, ApplicationHead
from ewe.gateway.cgi import refuse_trace
from ewe.http.error_pages import error_page, fault_page
from ewe.http.messages import Region, Request, RequestCache, Response, Source, hides_authorization
from ewe.http.status import BODILESS_STATUSES, HTTPError
from ewe.http.target import path_of_target
from ewe.registry import load_application
from ewe.streams.base import CALL_COST_BYTES, Timeout
from ewe.streams.descriptors import EXHAUSTED
from ewe.streams.loops import open_channel
from ewe.timeouts import count_timeout

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.base import Explanation
    from ewe.streams.base import Stream

MAX_JOINED_BYTES = 64 * 1024  # of small pieces that are sent together

REMEDY = f"run it in a server that has (uvicorn, daphne), behind --proxy ({docs_page('proxy.md')})"


def asks_for_websocket(request: Request) -> bool:
    """Return whether a request opens a WebSocket: RFC 6455 section 4.2.1, without its key and version."""
    if "upgrade" not in request.values or request.method != "GET" or request.version != (1, 1):
        return False
    options = request.values.get("connection", "").lower().split(",")
    protocols = request.values["upgrade"].lower().split(",")
    return "upgrade" in [each.strip() for each in options] and "websocket" in [
        each.strip() for each in protocols
    ]


class ASGI:
    """Answers below one path with an application."""

    def __init__(self, config: Config, path: str, name: str) -> None:
        """name: module:app, which load() imports."""
        self.name = name
        self.application: Application
        self.config = config
        self.root_path = path.rstrip("/")
        # The part of the scope that depends only on the request: equal requests without a body share it
        self.scopes: RequestCache[dict[str, Any]] = RequestCache()

    def load(self) -> None:
        """Import the application, before the first request. Raises ValueError with a text of one line."""
        program = load_application(self.name, "asgi")
        self.application = Application.of(self.name, program, self.config.program_timeout)

    @property
    def started(self) -> Application:
        """The application, which is started before the first connection."""
        return self.application

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the line about the application, if the path is below its own."""
        path, root = request.path, self.root_path
        below = not root or path == root or path.startswith(root + "/")
        if below:
            yield f"  answer    ASGI application {self.name} at {root or '/'}"
        return below

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the application's response; None for another path. Raises HTTPError, Disconnected."""
        path, root = request.path, self.root_path
        if root and path != root and not path.startswith(root + "/"):
            return None
        refuse_trace(request)
        if asks_for_websocket(request):
            raise HTTPError(
                501, f"{self.application.text} was asked for a WebSocket, which --asgi has not: {REMEDY}"
            )
        call = ApplicationCall(
            self.application, request, self.scope(request, io), open_channel(io, self.config.loop)
        )
        try:
            call.channel.call(call.start)
            head = await call.next()
            if head is FAULT:
                return self.fault(call)
            return self.response(call, head)
        except Timeout:
            call.give_up(cancel=True)
            count_timeout("program")
            raise HTTPError(504, self.silence()) from None
        except BaseException:
            call.give_up()
            raise

    def silence(self) -> str:
        """Return the reason of a 504: the application has sent nothing for its time limit."""
        application = self.application
        return f"{application.text} was silent for {application.timeout_s:g} s (program-timeout)"

    def fault(self, call: ApplicationCall) -> Response:
        """Return the page of a fault in the application."""
        call.channel.close()  # the application has ended: nothing else will come over the channel
        if self.config.development and call.fault:
            return fault_page(call.fault)
        return error_page(500, f"{self.application.text} failed")

    def response(self, call: ApplicationCall, head: ApplicationHead) -> Response:
        """Return the response that begins with this head. Raises HTTPError."""
        if head.status == 205:  # a 205 has no content, and Content-Length: 0 says so: RFC 9110 section 15.3.6
            call.end_without_body()
            return Response(head.status, head.fields)
        if not head.more:
            call.channel.close()
            if head.path is not None:
                return file_response(head, self.application.text)
            if head.length is None or head.length == len(head.piece):
                whole = Response(head.status, head.fields, head.piece)
                # An empty body for HEAD does not show the length of GET's body
                if not head.piece and head.length is None and call.request.method == "HEAD":
                    whole.length = None
                return whole
        return Response(head.status, head.fields, ApplicationBody(self, call, head))

    def scope(self, request: Request, io: Stream) -> dict[str, Any]:
        """Return the scope of a request (ASGI, HTTP connection scope)."""
        request_part = self.scopes.get(request) if not io.variables else None
        if request_part is None:
            request_part = of_request(request, io.variables)
            if not io.variables:
                self.scopes[request] = request_part
        address = io.server_address()
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            **request_part,
            "headers": list(request_part["headers"]),
            "scheme": io.scheme,
            "root_path": self.root_path,
            "client": None if io.client[0] == "unix:" else io.client,
            "server": (io.server[0], None) if address == "unix:" else (address, io.server[1]),
            "state": dict(self.application.state),
            "extensions": {"http.response.pathsend": {}},
        }


def of_request(request: Request, variables: dict[bytes, bytes]) -> dict[str, Any]:
    """Return the part of a scope that depends on the request, and on the variables of the exchange."""
    found: dict[str, Any] = {
        "http_version": "1.1" if request.version == (1, 1) else "1.0",
        "method": request.method,
        "path": request.path.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
        "raw_path": path_of_target(request.target).encode("latin-1"),
        "query_string": (request.query or "").encode("latin-1"),
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.fields],
    }
    if variables:  # set by guards or by the setting `env`
        if hides_authorization(variables):
            found["headers"] = [field for field in found["headers"] if field[0] != b"authorization"]
        found["ewe.variables"] = {name.decode(): value.decode("latin-1") for name, value in variables.items()}
    return found


def file_response(head: ApplicationHead, error_prefix: str) -> Response:
    """Return a response whose body is the file that the application has named (ASGI's extension pathsend).

    Raises HTTPError, and OSError if no descriptor is left.
    """
    assert head.path is not None
    try:
        # O_NONBLOCK: to open a FIFO would wait for a writer.
        file = os.open(head.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as reason:
        if reason.errno in EXHAUSTED:
            raise
        raise HTTPError(500, f"{error_prefix}: pathsend of {head.path!r}: {reason.strerror}") from None
    file_status = os.fstat(file)
    size = file_status.st_size
    if not stat.S_ISREG(file_status.st_mode) or head.length not in (None, size):
        os.close(file)
        raise HTTPError(500, f"{error_prefix}: pathsend of {head.path!r}: no file of Content-Length bytes")
    return Response(head.status, head.fields, (Region(file, 0, size),), release=lambda: os.close(file))


class ApplicationBody(Source):
    """The body of a response, in the pieces that the application sends."""

    def __init__(self, feature: ASGI, call: ApplicationCall, head: ApplicationHead) -> None:
        self.feature = feature
        self.call = call
        self.length = head.length
        self.status = head.status
        self.piece = head.piece
        self.more = head.more
        # Bytes taken since the application was last told their number (count_taken)
        self.untold_bytes = len(head.piece) + CALL_COST_BYTES

    async def receive(self) -> bytes:
        """Return the next piece. Raises HTTPError if the application fails, Disconnected."""
        call = self.call
        while True:
            piece, self.piece = self.piece, b""
            if piece:
                return piece
            if not self.more:
                return b""
            if self.untold_bytes:
                call.channel.call(call.count_taken, self.untold_bytes)
                self.untold_bytes = 0
            await self.next()

    async def next(self) -> None:
        """Wait for the next piece, and join the pieces that have arrived after it."""
        try:
            item = await self.call.next()
        except Timeout:
            self.call.give_up(cancel=True)
            count_timeout("program")
            raise HTTPError(504, self.feature.silence()) from None
        if item is FAULT:
            self.more = False
            raise HTTPError(500, f"{self.feature.application.text} failed")
        piece, self.more = item
        pieces, total = [piece], len(piece)
        items = self.call.channel.items
        while self.more and total < MAX_JOINED_BYTES and items and type(items[0]) is tuple:
            piece, self.more = items.popleft()
            pieces.append(piece)
            total += len(piece)
        self.untold_bytes += total + CALL_COST_BYTES * len(pieces)
        self.piece = b"".join(pieces)

    async def close(self) -> None:
        """Tell the application that its response has ended, unless it has sent the last piece itself."""
        call = self.call
        if not self.more:
            call.channel.close()
        elif call.request.method == "HEAD" or self.status in BODILESS_STATUSES:
            call.end_without_body()
        else:
            call.give_up()
