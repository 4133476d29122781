"""X-Switch, seen from the web server: the paper's mod_x. Programs go to a server that keeps their interpreters.

It is a FastCGI responder (config.xswitch) like any other, but for two things: a script of the site that it has
no engine for is run here as a plain CGI program, and each user's own cgi-bin (/~alice/cgi-bin/) is its business.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ewe.features.fastcgi import Responder, ResponderSource
from ewe.features.gateway import Script, response, variables
from ewe.features.spool import Spooled, spooled
from ewe.features.webapp import is_application
from ewe.http import Refused, Request, Response

if TYPE_CHECKING:
    from ewe.config import Config
    from ewe.features.users import Home
    from ewe.http import Limits
    from ewe.streams import Stream

STATUS = "/xswitch-status"
NO_ENGINE = ("X-Switch", "no-engine")  # a field of its answer


class XSwitch:
    """The way to X-Switch. Raises ValueError for an address that is unknown."""

    def __init__(self, config: Config, limits: Limits) -> None:
        assert config.xswitch is not None
        try:
            self.responder = Responder(config.xswitch)
        except ValueError as reason:
            raise ValueError(f"{reason} (xswitch)") from None
        self.config = config
        self.limits = limits

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer for /xswitch-status: X-Switch shows it to this machine only."""
        if request.path != STATUS:
            return None
        body = await spooled(request.body, self.config.spool)
        try:
            return await self.answer(request, io, Script("", STATUS, ""), body, "")
        finally:
            body.close()

    async def answer(
        self, request: Request, io: Stream, script: Script, body: Spooled, root: str
    ) -> Response | None:
        """Return X-Switch's answer, None where it has no engine for the script. The body stays the caller's.

        Raises Refused: 502 and 503 where it cannot be reached, 504 where it is silent.
        """
        params = variables(request, io, script, body.length, root)
        timeout = self.config.program_timeout
        source = ResponderSource(self.responder, io, params, body.copy(), script.name, timeout)
        try:
            await source.begin()
            found = await response(request, script, source, self.limits)
            if NO_ENGINE in found.fields:
                source.end()
                return None
        except BaseException:
            source.end()
            raise
        return found

    def has_application(self, home: Home, path: str) -> bool:
        """Does a path lead to a web application of a user's, or into one?"""
        script = script_of(home, path)
        return script is not None and is_application(script.file)

    async def run_of(self, home: Home, request: Request, io: Stream) -> Response | None:
        """Answer with a program of a user's own, None if there is none at the path. Raises Refused."""
        script = script_of(home, request.path)
        if script is None:
            return None
        if request.method == "TRACE":
            raise Refused(
                405, "TRACE to a program", (("Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"),)
            )
        body = await spooled(request.body, self.config.spool)
        try:
            found = await self.answer(request, io, script, body, home.root)
        finally:
            body.close()
        if found is None:
            raise Refused(500, f"{script.name}: X-Switch has no engine for it")
        return found


def script_of(home: Home, path: str) -> Script | None:
    """Return the script of a user's that a path leads to: its first part that is no directory or an application.

    Whether it may run, and that no link leads out, is for X-Switch to say.
    """
    prefix = f"/~{home.name}"
    segments = path[len(prefix) :].split("/")[1:]
    file = home.root
    for count, segment in enumerate(segments, 1):
        if not segment or segment.startswith("."):
            return None
        file += "/" + segment
        if not os.path.isdir(file) or is_application(file):
            name = prefix + "/" + "/".join(segments[:count])
            return Script(file, name, path[len(name) :]) if os.path.lexists(file) else None
    return None
