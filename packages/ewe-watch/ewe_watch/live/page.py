"""The live page as a feature of the server: the page itself, the stream of changes, and the buttons.

    GET  /TOKEN/            the page          GET  /TOKEN/changes   Server-Sent Events
    GET  /TOKEN/live.js ...  its parts        GET  /TOKEN/trace/0   the recording of a model
    POST /TOKEN/do          a button          GET  /TOKEN/page      the recordings of all models as one page

A button starts processes and floods, so no other web page may press it. Three walls keep them out:

- the token, a secret in the URL, without which there is only 404;
- the field Host must name this server's own address, so a name that an attacker's DNS points to 127.0.0.1 is
  refused (DNS rebinding);
- a button needs the media type application/json, which a form cannot send, and a field Origin that is this page's.

A link to the page may come from elsewhere, such as the file that opens the browser (serve.py). Other cross-site
requests are refused.

The Content Security Policy allows only the page's own files. What a trace says is shown as text.
"""

from __future__ import annotations

import hmac
import json
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ewe.config.messages import ConfigError, Failure
from ewe.http.messages import Response, Source
from ewe.http.status import HTTPError
from ewe_watch.live.actions import execute_action
from ewe_watch.live.director import ActionError, ChangeReader, Director
from ewe_watch.live.run_page import run_page
from ewe_watch.page import lanes_program, part, style

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.http.messages import Request
    from ewe.streams.base import Stream
    from ewe_watch.live.scenes import SceneChooser

MOST_BODY_BYTES = 8 * 1024
PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "": ("text/html", lambda: part("live/live.html")),
    "live.js": ("text/javascript", lambda: part("live/live.js")),
    "lanes.js": ("text/javascript", lanes_program),
    "live.css": ("text/css", lambda: part("live/live.css")),
    "watch.css": ("text/css", style),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE = (
    ("Content-Security-Policy", POLICY),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
)


class WatchPage:
    """The page. director, token, chooser: set before the server starts, since the server makes the object."""

    director: Director
    token: str
    chooser: SceneChooser

    def __init__(self, config: Config, path: str) -> None:
        pass

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the part of the page that the path names, or the answer to a button. Raises HTTPError."""
        port = io.server[1]
        if request.get("host") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            raise HTTPError(421, "the field Host names another server")
        token, _, name = request.path[1:].partition("/")
        # As bytes, because compare_digest() takes only ASCII as text. It takes the same time for each wrong token.
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode()):
            raise HTTPError(404, "a wrong token")
        if request.get("sec-fetch-site") in ("cross-site", "same-site") and not (
            name == "" and is_navigation(request)
        ):
            raise HTTPError(403, "another web page asks")
        if name == "do":
            return await self.do(request, io)
        if request.method not in ("GET", "HEAD"):
            raise HTTPError(405, f"{request.method} to a page", (("Allow", "GET, HEAD"),))
        if name == "changes" and request.method == "GET":
            return self.changes(io)
        if found := re.fullmatch(r"trace/(\d)", name):
            return self.recording(int(found[1]))
        if name == "page":
            models = list(self.director.models)
            if not models:
                raise HTTPError(404, "no model is shown")
            text = run_page(models, time.monotonic())
            return attachment("ewe-watch.html", "text/html", text.encode("utf-8", "replace"))
        if name in PARTS:
            kind, made = PARTS[name]
            return Response(200, (("Content-Type", f"{kind}; charset=utf-8"), *SAFE), made().encode())
        raise HTTPError(404, "no such part of the page")

    async def do(self, request: Request, io: Stream) -> Response:
        """Press a button; return 204, or 409 with one line that says why not. Raises HTTPError."""
        if request.method != "POST":
            raise HTTPError(405, f"{request.method} to a button", (("Allow", "POST"),))
        if request.get("origin") != f"http://{request.get('host')}":
            raise HTTPError(403, "the button of another web page")
        if (request.get("content-type") or "").partition(";")[0] != "application/json":
            raise HTTPError(415, "a button sends JSON")
        body = b""
        while piece := await request.body.receive():
            body += piece
            if len(body) > MOST_BODY_BYTES:
                raise HTTPError(413, "a long action")
        try:
            action = json.loads(body)
            if not isinstance(action, dict):
                raise ActionError("an action is a JSON object")
            # By call(), because it waits for models and clients
            await io.call(execute_action, self.director, self.chooser, action)
        except RecursionError:  # of json.loads()
            text = "a nested action"
        except (ConfigError, Failure, ValueError) as reason:
            text = str(reason).partition("\n")[0]  # a ConfigError may have several lines
        else:
            return Response(204, SAFE, b"")
        fields = (("Content-Type", "text/plain; charset=utf-8"), *SAFE)
        return Response(409, fields, text.encode("utf-8", "replace"))

    def changes(self, io: Stream) -> Response:
        """Return the stream of changes. Raises HTTPError."""
        try:
            reader = self.director.reader()
        except ActionError as reason:
            raise HTTPError(503, str(reason)) from None
        return Response(
            200, (("Content-Type", "text/event-stream"), *SAFE), ChangeStream(self.director, reader, io)
        )

    def recording(self, number: int) -> Response:
        """Return the trace of a model. Raises HTTPError."""
        try:
            model = self.director.model(number)
        except ActionError as reason:
            raise HTTPError(404, str(reason)) from None
        name = re.sub(r"[^a-z0-9]+", "-", model.choice.label.lower()).strip("-")
        return attachment(f"{name}.trace", "text/plain", model.recording.text())


def attachment(name: str, kind: str, data: bytes) -> Response:
    """Return a file that the browser stores. name: for the user. kind: its media type. data: UTF-8."""
    fields = (
        ("Content-Type", f"{kind}; charset=utf-8"),
        ("Content-Disposition", f'attachment; filename="{name}"'),
        *SAFE,
    )
    return Response(200, fields, data)


def is_navigation(request: Request) -> bool:
    """Return whether a browser follows a link, and shows the answer in a whole window (Fetch Metadata, W3C)."""
    fetch = (request.get("sec-fetch-mode"), request.get("sec-fetch-dest"))
    return request.method == "GET" and fetch == ("navigate", "document")


class ChangeStream(Source):
    """The body of the stream of changes."""

    def __init__(self, director: Director, reader: ChangeReader, io: Stream) -> None:
        self.director = director
        self.change_reader = reader
        self.io = io

    async def receive(self) -> bytes:
        """Return the next events; b"" when the server stops."""
        return await self.io.call(self.change_reader.next)

    async def close(self) -> None:
        """Forget the page."""
        self.director.leave(self.change_reader)
