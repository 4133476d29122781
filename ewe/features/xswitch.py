"""X-Switch as an upstream of the web server: the paper's mod_x. X-Switch runs programs in persistent interpreters.

ewe uses it like any other FastCGI upstream (`xswitch`), with two differences. If X-Switch has no engine for a
script of the site, ewe runs the script as a plain CGI program. Only X-Switch runs the programs of users
(/~alice/cgi-bin/) and pages that are programs (ewe.features.pages), each as its owner.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ewe.config.defaults import XSWITCH_STATUS_PATH
from ewe.config.messages import ConfigError
from ewe.config.setting_types import is_local
from ewe.features import xswitch_command
from ewe.features import xswitch_settings as settings
from ewe.features.base import Mount, ProtectedSource
from ewe.features.declaration import Feature, MeasureError, Runner, SupervisedProcess
from ewe.gateway.cgi import is_nph, refuse_trace, response
from ewe.gateway.connections import Connections
from ewe.gateway.own_names import foreign_host_response
from ewe.gateway.responder import ResponderSource, parameters
from ewe.gateway.scripts import Script
from ewe.gateway.spool import EMPTY, Spooled, spooled
from ewe.http.messages import NO_BODY, Request, Response
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.base import Explanation
    from ewe.features.plan import LocationPlan, Plan
    from ewe.http.limits import RequestLimits
    from ewe.streams.base import Stream
    from ewe.trace import Trace

# The fields that mark an answer of X-Switch itself, and not of a script
NO_ENGINE = ("X-Switch", "no-engine")
REFUSED = ("X-Switch", "refused")
# The numbers of X-Switch besides its engines
NUMBERS = ("queue", "connections", "requests", "refused", "started", "queue_timeouts", "program_timeouts")
MAX_STATUS_BYTES = 64 * 1024  # read of the answer with the numbers
TRACED = b"XSWITCH_TRACE"  # the parameter with the name of the client's connection in the trace


class XSwitch:
    """The connections to X-Switch."""

    def __init__(self, config: Config, limits: RequestLimits) -> None:
        """limits: of responses. Raises ValueError for a malformed address in the setting `xswitch`."""
        address = config[settings.XSWITCH]
        assert address is not None
        try:
            self.connections = Connections([address], keeps=True)
        except ValueError as reason:
            raise ValueError(f"{reason} (xswitch)") from None
        self.config = config
        self.limits = limits
        self.table = settings_table(config[settings.XSWITCH_CONFIG])
        self.directories = script_directories(self.table)
        self.trace: Trace | None = None
        if config.trace is not None:
            from ewe.trace import trace_at

            self.trace = trace_at(config.trace)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the page /xswitch-status. X-Switch shows it only to clients on this machine."""
        if request.path != XSWITCH_STATUS_PATH:
            return None
        # A browser on this machine may run a page of another site, whose name leads to this server (DNS rebinding)
        if (
            is_local(io.client[0])
            and (refused := foreign_host_response(request, self.config.names)) is not None
        ):
            return refused
        body = EMPTY if request.body is NO_BODY else await spooled(request.body, self.config.spool)
        try:
            return await self.answer(request, io, Script("", XSWITCH_STATUS_PATH, ""), body, "")
        finally:
            body.close()

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the line about the page /xswitch-status."""
        is_status = request.path == XSWITCH_STATUS_PATH
        if is_status:
            yield "  answer    the status page of X-Switch, for clients on this machine   (xswitch-status)"
        return is_status

    async def answer(
        self,
        request: Request,
        io: Stream,
        script: Script,
        body: Spooled,
        root: str,
        extra_variables: tuple[tuple[bytes, bytes], ...] = (),
    ) -> Response | None:
        """Return X-Switch's answer; None if it has no engine for the script. The caller closes the body.

        extra_variables: for the script, in addition to those of the request.

        Raises HTTPError: 503 if X-Switch cannot be reached, 502 if it closes the connection early, 504 if it is
        silent, or the status with which it refuses the request.
        """
        if self.trace is not None:  # so that the trace of X-Switch can name the connection that asks
            extra_variables = (*extra_variables, (TRACED, self.trace.worker.connection.encode()))
        params = parameters(self.connections, request, io, script, body.length, root, extra_variables)
        timeout = self.config.program_timeout
        source = ResponderSource(self.connections, request, io, params, body.copy(), script.name, timeout)
        try:
            await source.begin()
            # A script nph-... writes a whole response, which begins with HTTP/1.1. An answer of X-Switch itself
            # begins with Status. Without the script's file, response() parses its head
            if is_nph(script) and (await source.read_start()).startswith(b"Status:"):
                script = Script("", script.name, "")
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
        extra_variables: tuple[tuple[bytes, bytes], ...] = (),
    ) -> Response:
        """Return the response of a program that only X-Switch may run: a user's program, or a page.

        Raises HTTPError.
        """
        refuse_trace(request)
        body = EMPTY if request.body is NO_BODY else await spooled(request.body, self.config.spool)
        try:
            found = await self.answer(request, io, script, body, root, extra_variables)
        finally:
            body.close()
        if found is None:
            raise HTTPError(500, f"{script.name}: X-Switch has no engine for it")
        return found


def settings_table(file: str | None) -> dict[str, Any]:
    """Return X-Switch's settings file as a table, which X-Switch itself checks. Raises ValueError."""
    if file is None:
        return {}
    import tomllib

    try:
        with open(file, "rb") as source:
            return tomllib.load(source)
    except OSError as reason:
        raise ValueError(f"cannot read {file}: {reason.strerror} (xswitch-config)") from None
    except (ValueError, RecursionError) as reason:
        raise ValueError(f"{file}: {reason} (xswitch-config)") from None


def script_directories(table: dict[str, Any]) -> tuple[str, ...]:
    """Return the directories in which every file is a script, from the table of X-Switch's settings file."""
    directories = table.get("directories", {})
    if not isinstance(directories, dict):
        return ()
    return tuple(each for each in directories if each.startswith("/") and each.strip("/"))


def provide(plan: Plan) -> XSwitch | None:
    """Return the XSwitch object, for all features with programs that X-Switch runs. Raises ValueError."""
    return XSwitch(plan.config, plan.limits) if plan.config[settings.XSWITCH] is not None else None


def protected(plan: Plan, root: str) -> Iterator[ProtectedSource]:
    """Yield the script directories in X-Switch's settings file, and that file itself."""
    switch, file = plan.provided("xswitch"), plan.config[settings.XSWITCH_CONFIG]
    for directory in switch.directories if switch is not None else ():
        yield ProtectedSource(directory=directory)
    if file and plan.shows(file, root):
        yield ProtectedSource(directory=os.path.abspath(file))


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield the mount of the status page of X-Switch."""
    if plan.config[settings.XSWITCH_STATUS] and (switch := plan.provided("xswitch")) is not None:
        yield Mount(XSWITCH_STATUS_PATH, switch)


def gateway(location: LocationPlan, kind: str, targets: tuple[str, ...]) -> Runner:
    """Return the Runner that passes the scripts of a location to X-Switch. Raises ConfigError if there is none.

    kind, targets: those of the setting `gateway`, which have no meaning here: there is one X-Switch.
    """
    switch, root = location.plan.provided("xswitch"), location.static.root
    if switch is None:
        raise ConfigError(
            f"{location.label_of('gateway')} xswitch needs an X-Switch: --xswitch, or the model -x"
        )

    async def run(script: Script, request: Request, io: Stream) -> Response | None:
        answer: Response = await switch.run(script, request, io, root)
        return answer

    return Runner(run, needs_files=True)


class XSwitchNumbers:
    """X-Switch's engines and counters for the status, without names of users and scripts."""

    name = "xswitch"
    title = "X-Switch"

    def __init__(self, address: str) -> None:
        """Raises ValueError for an invalid address."""
        self.address = address
        self.connections = Connections([address], keeps=True)

    async def numbers(self, request: Request, io: Stream, seconds: float) -> dict[str, Any]:
        """Ask X-Switch for its numbers; return them for the status.

        "engines": language -> the number of engines. The names in NUMBERS: a whole number each. "ended": reason ->
        the number of engines that have ended for it. seconds: the time limit of the connection, and of the answer.
        Raises HTTPError, Timeout; MeasureError if the answer has another shape.
        """
        self.connections.connect_timeout_s = seconds
        extra_variables = {b"XSWITCH_STATUS": b"counts"}
        data = await ask_status(self.connections, request, io, extra_variables, seconds, MAX_STATUS_BYTES)
        try:
            answer = json.loads(data)
            return {
                "engines": answer["engines"],
                **{name: int(answer[name]) for name in NUMBERS},
                "ended": answer["ended"],
            }
        except (ValueError, KeyError, TypeError):
            raise MeasureError(
                f"{self.address} does not tell its numbers: it is no X-Switch of this version"
            ) from None


async def ask_status(
    connections: Connections,
    request: Request,
    io: Stream,
    extra_variables: dict[bytes, bytes],
    seconds: float,
    max_bytes: int,
) -> bytes:
    """Return the body of X-Switch's answer to a request for its status page, cut after max_bytes or `seconds`.

    extra_variables: in addition to SCRIPT_NAME. X-Switch learns nothing else of the client's request. seconds: also
    the longest silence. max_bytes: of the answer with its head; the last piece may exceed it. Raises HTTPError,
    Timeout.
    """
    variables = {b"SCRIPT_NAME": XSWITCH_STATUS_PATH.encode(), **extra_variables}
    params = connections.codec.encode_request(variables, 0)  # 0: the request has no body
    source = ResponderSource(connections, request, io, params, EMPTY.copy(), "X-Switch", seconds)
    deadline = time.monotonic() + seconds
    pieces: list[bytes] = []
    left_bytes = max_bytes
    try:
        await source.begin()
        while left_bytes > 0 and time.monotonic() < deadline and (piece := await source.receive()):
            pieces.append(piece)
            left_bytes -= len(piece)
    finally:
        source.end()
    _, _, body = b"".join(pieces).partition(b"\r\n\r\n")  # without the head
    return body


def measures(config: Config) -> XSwitchNumbers | None:
    """Return the X-Switch whose numbers the status shows."""
    address = config[settings.XSWITCH]
    return XSwitchNumbers(address) if address is not None else None


def fixed(config: Config) -> Iterator[str]:
    """Yield the setting that X-Switch reads at its start."""
    yield settings.XSWITCH_CONFIG.name


FEATURE = Feature(
    "xswitch",
    settings=settings.SETTINGS,
    provide=provide,
    protected=protected,
    mounts=mounts,
    gateway=gateway,
    process=SupervisedProcess(
        xswitch_command.is_needed, xswitch_command.check, xswitch_command.completed, xswitch_command.command
    ),
    fixed=fixed,
    measures=measures,
)
