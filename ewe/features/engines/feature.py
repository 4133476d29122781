"""The handler of the page of engines: the rights of visitors, and the requests to X-Switch.

A visitor has logged in (`auth`), and the name of the log-in is the name of an account. A visitor reaches the
engines of that account; an administrator reaches those of all users. X-Switch decides with the same rule: it gets
the visitor's scope with each request, and it believes the web server only if the server's account is one of its
`managers` (ewe.xswitch.switch.control).

    GET  /engines/            the engines, and the limits of their users
    GET  /engines/log         the latest messages of X-Switch about the scripts
    POST /engines/restart     a form: another engine takes the place of each
    POST /engines/drain       a form: they end

**Forged requests.** A page of another site could make the visitor's browser send one of these forms, with the
visitor's password. Three checks prevent that, each of which is enough for a browser of today:

- the form has a token: an HMAC (RFC 2104) of the visitor's name and the time, with a key that only this server
  knows. Another site can neither read nor guess it. It is valid for TOKEN_S seconds;
- Sec-Fetch-Site or Origin must say that a page of this server has sent the form (ewe.gateway.own_forms);
- over loopback, Host must be a name of this server (DNS rebinding, ewe.gateway.own_names).

**Pages of the same origin.** These checks do not stop the script of a page with the same scheme, name and port: it
may read the page of engines, with the token. Users write such pages below /~NAME/. The builder therefore refuses a
site that has users' pages (ewe.features.engines). The handler also refuses the requests of scripts and frames: if a
visitor opens the page, the browser sends Sec-Fetch-Dest: document.

A GET changes nothing. The page has no script, and its Content-Security-Policy allows none.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from ewe.features.engines import pages
from ewe.features.xswitch import ask_status
from ewe.gateway.own_forms import form_data
from ewe.gateway.own_names import misdirected_response
from ewe.http.messages import Request, Response
from ewe.http.status import HTTPError
from ewe.http.target import percent_encode

if TYPE_CHECKING:
    from ewe.features.base import Explanation
    from ewe.gateway.connections import Connections
    from ewe.streams.base import Stream

ACTIONS = ("restart", "drain")
TOKEN_S = 12 * 3600  # seconds in which a form may be sent
ANSWER_TIMEOUT_S = 5.0  # seconds in which X-Switch must answer
MAX_ANSWER_BYTES = 8 << 20  # of X-Switch
MAX_FORM_BYTES = 4096  # of a form; its few fields are short
PID_OR_NOTHING = re.compile(r"([1-9][0-9]{0,8})?", re.ASCII)
MAX_FIELDS = 8  # of a form, and of a query
TEXT = (("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store"))
HTML = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Cache-Control", "no-store"),
    (
        "Content-Security-Policy",
        f"default-src 'none'; style-src '{pages.STYLE_HASH}'; form-action 'self'; base-uri 'none';"
        " frame-ancestors 'none'",
    ),
    ("X-Frame-Options", "DENY"),
    ("X-Content-Type-Options", "nosniff"),
    # Not no-referrer: a browser would then send "Origin: null" with the forms.
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


class EnginesPage:
    """Answers below the prefix of one location, which has a log-in."""

    def __init__(
        self, prefix: str, administrators: Collection[str], connections: Connections, hosts: Collection[str]
    ) -> None:
        """prefix: without a slash at its end. administrators: visitors who reach all engines.

        connections: to X-Switch. hosts: the names of the sites.
        """
        self.path = prefix + "/"
        self.base = percent_encode(self.path)  # for links
        self.administrators = frozenset(name.encode() for name in administrators)
        self.connections = connections
        self.hosts = hosts
        self.key = secrets.token_bytes(32)  # made before a fork: all workers of the server have the same one

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return a page, or the redirect after a form. Raises HTTPError."""
        if request.path + "/" == self.path:
            return Response(308, (("Location", self.base), *TEXT), self.base.encode())
        if (refused := misdirected_response(request, io, self.hosts)) is not None:
            return refused
        if request.values.get("sec-fetch-dest", "document") != "document":
            raise HTTPError(403, "engines: a script or a frame asks for the page, and not a visitor")
        visitor = io.variables.get(b"REMOTE_USER", b"")
        if not visitor:
            raise HTTPError(403, "engines: no log-in says who the visitor is (auth)")
        name = request.path.removeprefix(self.path)
        if name in ACTIONS:
            allow(request, "POST")
            return await self.act(name, visitor, request, io)
        if name not in ("", "log"):
            raise HTTPError(404, "the page of engines has only ./, log, restart and drain")
        allow(request, "GET, HEAD")
        return await self.show(name, visitor, request, io)

    async def show(self, name: str, visitor: bytes, request: Request, io: Stream) -> Response:
        """Return a page. name: "" for the page of engines, "log" for the page of messages."""
        query = fields_of(request.query or "")
        user = query.get("user", "")
        parameters = {b"XSWITCH_ACTION": b"log" if name else b"list", b"XSWITCH_USER": user.encode()}
        answer = await self.ask(visitor, parameters, request, io)
        view = pages.EnginesView(
            self.base,
            visitor.decode("utf-8", "replace"),
            self.is_administrator(visitor),
            self.token(visitor),
            user,
        )
        if name:
            text = pages.log_page(view, answer["log"])
        else:
            # After a form, the redirect's query tells the action that was done.
            text = pages.engines_page(view, answer, action_done(query))
        return Response(200, HTML, text.encode("utf-8", "replace"))

    async def act(self, name: str, visitor: bytes, request: Request, io: Stream) -> Response:
        """Restart or drain the engines that a form names; redirect to the page. Raises HTTPError."""
        data = await form_data(request, MAX_FORM_BYTES)
        form = fields_of(data.decode("latin-1"))
        if not self.is_token(form.get("token", ""), visitor):
            raise HTTPError(403, "engines: the form has no valid token; load the page again")
        pid, user = form.get("pid", ""), form.get("user", "")
        if not PID_OR_NOTHING.fullmatch(pid) or not (pid or user):
            raise HTTPError(400, "engines: the form names neither the process of an engine nor a user")
        chosen = {b"XSWITCH_PIDS": pid.encode(), b"XSWITCH_USER": user.encode()}
        found = await self.ask(visitor, {b"XSWITCH_ACTION": name.encode(), **chosen}, request, io)
        counts = "&".join(f"{key}={len(found[key])}" for key in ("ended", "ending", "unknown"))
        shown_user = f"&user={pages.quoted(form['shown-user'])}" if form.get("shown-user") else ""
        return Response(303, (("Location", f"{self.base}?did={name}&{counts}{shown_user}"), *TEXT), b"done\n")

    async def ask(
        self, visitor: bytes, action: dict[bytes, bytes], request: Request, io: Stream
    ) -> dict[str, Any]:
        """Return X-Switch's answer to an action (ewe.xswitch.switch.control). Raises HTTPError."""
        sees_all = self.is_administrator(visitor)
        params = {
            b"XSWITCH_SCOPE": b"all" if sees_all else b"user:" + visitor,
            b"XSWITCH_FOR": visitor,
            **{name: value for name, value in action.items() if value},
        }
        data = await ask_status(self.connections, request, io, params, ANSWER_TIMEOUT_S, MAX_ANSWER_BYTES)
        try:
            found: dict[str, Any] = json.loads(data)
        except ValueError:
            raise HTTPError(
                502, "engines: X-Switch's answer is not complete, or of another version"
            ) from None
        if "error" in found:
            raise HTTPError(403, f"engines: X-Switch refuses: {found['error']}")
        return found

    def is_administrator(self, visitor: bytes) -> bool:
        """Return whether a visitor reaches the engines of all users."""
        return visitor in self.administrators

    def token(self, visitor: bytes) -> str:
        """Return a token for the forms of a visitor's page."""
        return self.signed(f"{int(time.time()):x}", visitor)

    def signed(self, at: str, visitor: bytes) -> str:
        """Return the token of a time, in hexadecimal seconds since the epoch."""
        return f"{at}.{hmac.digest(self.key, at.encode() + b' ' + visitor, 'sha256').hex()}"

    def is_token(self, token: str, visitor: bytes) -> bool:
        """Return whether a token was made for this visitor in the last TOKEN_S seconds."""
        at = token.partition(".")[0]
        if not hmac.compare_digest(token.encode(), self.signed(at, visitor).encode()):
            return False
        return 0 <= time.time() - int(at, 16) < TOKEN_S

    def explain(self, request: Request, io: Stream) -> Explanation:
        yield "  answer    the page of X-Switch's engines, for visitors who have logged in"
        return True


def allow(request: Request, methods: str) -> None:
    """Raise HTTPError(405) for other methods: RFC 9110 section 15.5.6."""
    if request.method not in methods.split(", "):
        raise HTTPError(405, f"engines: {request.method}", (("Allow", methods),))


def fields_of(text: str) -> dict[str, str]:
    """Return the fields of a form or of a query. Raises HTTPError(400)."""
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"))
    except ValueError:
        raise HTTPError(400, f"engines: more than {MAX_FIELDS} fields, or one that is not UTF-8") from None


def action_done(query: dict[str, str]) -> pages.ActionDone | None:
    """Return the action that the query of the page tells: it has just been done. None if it tells no action."""
    counts = [query.get(key, "") for key in ("ended", "ending", "unknown")]
    if query.get("did") not in ACTIONS or not all(
        text.isascii() and text.isdigit() and len(text) < 5 for text in counts
    ):
        return None
    return pages.ActionDone(query["did"], *map(int, counts))
