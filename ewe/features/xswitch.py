"""X-Switch, seen from the web server: the paper's mod_x. X-Switch runs programs and keeps their interpreters.

ewe asks it as any other FastCGI responder (config.xswitch), with two differences. If X-Switch has no engine for a
script of the site, ewe runs the script as a plain CGI program. And only X-Switch runs the programs of users
(/~alice/cgi-bin/) and pages that are programs (ewe.features.pages), each as its owner.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ewe.config.defaults import XSWITCH_STATUS_PATH
from ewe.config.messages import ConfigError
from ewe.config.setting_types import is_local
from ewe.features.base import Claim, Mount
from ewe.features.declaration import Feature, Runner
from ewe.gateway.cgi import is_nph, refuse_trace, response
from ewe.gateway.connections import Connections
from ewe.gateway.own_names import foreign
from ewe.gateway.responder import ResponderSource, parameters
from ewe.gateway.scripts import Script
from ewe.gateway.spool import EMPTY, Spooled, spooled
from ewe.http.messages import NO_BODY, Request, Response
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.plan import LocationPlan, Plan
    from ewe.http.limits import Limits
    from ewe.streams.base import Stream

# The fields that mark an answer which X-Switch gives itself, not a script
NO_ENGINE = ("X-Switch", "no-engine")
REFUSED = ("X-Switch", "refused")


class XSwitch:
    """The way to X-Switch. Raises ValueError for an address that is unknown."""

    def __init__(self, config: Config, limits: Limits) -> None:
        assert config.xswitch is not None
        try:
            self.connections = Connections([config.xswitch], keeps=True)
        except ValueError as reason:
            raise ValueError(f"{reason} (xswitch)") from None
        self.config = config
        self.limits = limits
        self.directories = script_directories(config.xswitch_config)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer for /xswitch-status: X-Switch shows it to this machine only."""
        if request.path != XSWITCH_STATUS_PATH:
            return None
        if is_local(io.client[0]) and (refused := foreign(request, self.config.names)) is not None:
            return refused
        body = EMPTY if request.body is NO_BODY else await spooled(request.body, self.config.spool)
        try:
            return await self.answer(request, io, Script("", XSWITCH_STATUS_PATH, ""), body, "")
        finally:
            body.close()

    async def answer(
        self,
        request: Request,
        io: Stream,
        script: Script,
        body: Spooled,
        root: str,
        more: tuple[tuple[bytes, bytes], ...] = (),
    ) -> Response | None:
        """Return X-Switch's answer; None if it has no engine for the script. The caller closes the body.

        more: variables that the script is told besides those of the request.

        Raises HTTPError: 503 if it cannot be reached, 502 if it breaks off, 504 if it is silent, or the status with
        which it refuses.
        """
        params = parameters(self.connections, request, io, script, body.length, root, more)
        timeout = self.config.program_timeout
        source = ResponderSource(self.connections, request, io, params, body.copy(), script.name, timeout)
        try:
            await source.begin()
            if is_nph(script) and (await source.first()).startswith(b"Status:"):
                script = Script("", script.name, "")  # X-Switch answers itself, with a head to parse
            found = await response(request, script, source, self.limits)
            if NO_ENGINE in found.fields:
                source.end()
                return None
            if REFUSED in found.fields:
                retry = [field for field in found.fields if field[0] == "Retry-After"]
                raise HTTPError(
                    found.status,
                    f"{script.name}: X-Switch answers {found.status}, and its log says why",
                    retry,
                )
        except BaseException:
            source.end()
            raise
        return found

    async def run(
        self,
        script: Script,
        request: Request,
        io: Stream,
        root: str,
        more: tuple[tuple[bytes, bytes], ...] = (),
    ) -> Response:
        """Answer with a program that only X-Switch may run: a user's, or a page. Raises HTTPError."""
        refuse_trace(request)
        body = EMPTY if request.body is NO_BODY else await spooled(request.body, self.config.spool)
        try:
            found = await self.answer(request, io, script, body, root, more)
        finally:
            body.close()
        if found is None:
            raise HTTPError(500, f"{script.name}: X-Switch has no engine for it")
        return found


def script_directories(file: str | None) -> tuple[str, ...]:
    """Return the directories whose files are all scripts, as X-Switch's settings say.

    X-Switch itself checks that file. Raises ValueError if it cannot be read.
    """
    if file is None:
        return ()
    import tomllib

    try:
        with open(file, "rb") as source:
            table = tomllib.load(source)
    except OSError as reason:
        raise ValueError(f"{file}: {reason.strerror} (xswitch-config)") from None
    except (ValueError, RecursionError) as reason:
        raise ValueError(f"{file}: {reason} (xswitch-config)") from None
    directories = table.get("directories", {})
    if not isinstance(directories, dict):
        return ()
    return tuple(each for each in directories if each.startswith("/") and each.strip("/"))


def provide(plan: Plan) -> XSwitch | None:
    """Return the way to X-Switch, for all features whose programs it runs. Raises ValueError."""
    return XSwitch(plan.config, plan.limits) if plan.config.xswitch is not None else None


def claims(plan: Plan, root: str) -> Iterator[Claim]:
    """Yield the directories of scripts that X-Switch's settings name, and those settings."""
    switch, file = plan.provided("xswitch"), plan.config.xswitch_config
    for directory in switch.directories if switch is not None else ():
        yield Claim(directory=directory)
    if file and plan.shows(file, root):
        yield Claim(directory=os.path.abspath(file))


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield the page of X-Switch's engines."""
    if plan.config.xswitch_status and (switch := plan.provided("xswitch")) is not None:
        yield Mount(XSWITCH_STATUS_PATH, switch)


def gateway(location: LocationPlan, kind: str, addresses: tuple[str, ...]) -> Runner:
    """Return what runs the scripts of a location. Raises ConfigError if there is no X-Switch."""
    switch, root = location.plan.provided("xswitch"), location.static.root
    if switch is None:
        raise ConfigError(f"{location.at('gateway')} xswitch needs an X-Switch: --xswitch, or the model -x")

    async def run(script: Script, request: Request, io: Stream) -> Response | None:
        answer: Response = await switch.run(script, request, io, root)
        return answer

    return Runner(run, needs_files=True)


FEATURE = Feature(
    "xswitch",
    settings=("xswitch", "xswitch_config", "xswitch_status"),
    provide=provide,
    claims=claims,
    mounts=mounts,
    gateway=gateway,
)
