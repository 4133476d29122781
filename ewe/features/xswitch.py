"""X-Switch, seen from the web server: the paper's mod_x. Programs go to a server that keeps their interpreters.

It is a FastCGI responder (config.xswitch) like any other, but for two things: a script of the site that it has
no engine for is run here as a plain CGI program; and each user's own cgi-bin (/~alice/cgi-bin/) is its business, as
are pages that are programs (ewe.features.pages).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.features.fastcgi import Responder, ResponderSource
from ewe.features.gateway import Script, is_nph, refuse_trace, response, variables
from ewe.features.spool import Spooled, spooled
from ewe.http import Refused, Request, Response

if TYPE_CHECKING:
    from ewe.config import Config
    from ewe.http import Limits
    from ewe.streams import Stream

STATUS = "/xswitch-status"
# The fields by which it marks answers of its own
NO_ENGINE = ("X-Switch", "no-engine")
REFUSED = ("X-Switch", "refused")


class XSwitch:
    """The way to X-Switch. Raises ValueError for an address that is unknown."""

    def __init__(self, config: Config, limits: Limits) -> None:
        assert config.xswitch is not None
        try:
            self.responder = Responder(config.xswitch, keeps=True)
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

        Raises Refused: 502 and 503 where it cannot be reached, 504 where it is silent, and what it refuses with.
        """
        params = variables(request, io, script, body.length, root)
        timeout = self.config.program_timeout
        source = ResponderSource(self.responder, io, params, body.copy(), script.name, timeout)
        try:
            await source.begin()
            if is_nph(script) and (await source.first()).startswith(b"Status:"):
                script = Script("", script.name, "")  # X-Switch's own answer: it has a head to be parsed
            found = await response(request, script, source, self.limits)
            if NO_ENGINE in found.fields:
                source.end()
                return None
            if REFUSED in found.fields:
                retry = [field for field in found.fields if field[0] == "Retry-After"]
                raise Refused(found.status, f"{script.name}: refused by X-Switch, whose log says why", retry)
        except BaseException:
            source.end()
            raise
        return found

    async def run(self, script: Script, request: Request, io: Stream, root: str) -> Response:
        """Answer with a program that nobody but X-Switch may run, a user's or a page. Raises Refused."""
        refuse_trace(request)
        body = await spooled(request.body, self.config.spool)
        try:
            found = await self.answer(request, io, script, body, root)
        finally:
            body.close()
        if found is None:
            raise Refused(500, f"{script.name}: X-Switch has no engine for it")
        return found
