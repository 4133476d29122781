"""The site: where a URL leads. It asks the features mounted at a path, in order, until one answers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from ewe.features.errors import error_page
from ewe.features.static import Static
from ewe.http import Limits, Refused, Request, Response, locate

if TYPE_CHECKING:
    from ewe.config import Config
    from ewe.streams import Stream

IDLE_SOCKET = 75.0  # seconds a connection may be idle where it costs a socket only
IDLE_WORKER = 5.0  # and where it holds a process or a thread
MAX_REDIRECTS = 10  # local redirects of one request, RFC 3875 section 6.2.2


class Feature(Protocol):
    """What answers requests."""

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return a response, or None to pass. Raises Refused."""
        ...


class Site:
    """All that one server offers, under every model the same."""

    def __init__(self, config: Config, *, holds_idle: bool = False) -> None:
        """holds_idle: an idle connection holds a worker, so that it is kept for a shorter time."""
        self.config = config
        self.persistent = config.persistent
        self.limits = Limits(
            config.max_target, config.max_head, config.max_field, config.max_fields, config.max_body
        )
        self.idle = config.idle if config.idle is not None else IDLE_WORKER if holds_idle else IDLE_SOCKET
        self.tls = None
        if config.tls == "self" or config.tls_cert is not None:
            from ewe.tls import server_context

            self.tls = server_context(config.tls_cert, config.tls_key)
        self.static = Static(config)
        self.mounts: list[tuple[str, Feature]] = []
        switch = None
        if config.xswitch is not None:
            from ewe.features.xswitch import XSwitch

            switch = XSwitch(config, self.limits)
            self.mounts.append(("/xswitch-status", switch))
        if os.path.isdir(config.cgi_path):
            from ewe.features.cgi import CGI

            self.mounts.append(("/cgi-bin/", CGI(config, self.static, self.limits, switch)))

        if config.userdir is not None:
            from ewe.features.users import Users

            self.mounts.append(("/~", Users(config, switch)))
        if config.fastcgi:
            from ewe.features.fastcgi import FastCGI

            self.mounts += [("/", FastCGI(each, config, self.static, self.limits)) for each in config.fastcgi]
        if switch is not None:
            from ewe.features.pages import SitePages

            self.mounts.append(("/", SitePages(switch, self.static.root, config.defaultindex)))

    async def respond(self, request: Request, io: Stream) -> Response:
        """Return the response to a request. Raises Refused, and what a feature could not foresee."""
        for prefix, feature in self.mounts:
            if request.path.startswith(prefix):
                response = await feature.respond(request, io)
                if response is not None:
                    return response if response.target is None else await self.follow(request, response, io)
        if request.path == "*":
            return Response(204, (("Allow", "GET, HEAD, POST, OPTIONS"),))
        return await self.static.respond(request, io) or error_page(404, "there is no such file")

    async def follow(self, request: Request, response: Response, io: Stream) -> Response:
        """Answer a local redirect as if the client had asked for its target (RFC 3875 section 6.2.2)."""
        redirects = request.redirects + 1
        if redirects > MAX_REDIRECTS:
            raise Refused(500, f"more than {MAX_REDIRECTS} local redirects, the last to {response.target!r}")
        return await self.respond(moved(request, response.target or "/", redirects), io)


def moved(request: Request, target: str, redirects: int) -> Request:
    """Return the GET (or HEAD) request for the target of a local redirect, without a body."""
    fields = tuple(
        (name, value) for name, value in request.fields if not name.startswith(("content-", "if-", "range"))
    )
    method = "HEAD" if request.method == "HEAD" else "GET"
    other = Request(method, target, request.version, fields)
    try:
        locate(other)
    except Refused as refused:
        raise Refused(502, f"a local redirect: {refused.cause}") from None
    other.host = request.host
    other.redirects = redirects
    return other
