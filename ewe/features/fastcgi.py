"""FastCGI, SCGI and uwsgi: upstreams behind a socket answer for an extension, or for all paths below one path."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ewe.bounded import TimedCache
from ewe.config.setting_types import parse_program, parse_responder
from ewe.features import fastcgi_settings as settings
from ewe.features.base import Mount, ProtectedSource
from ewe.features.declaration import Feature, Runner
from ewe.gateway import scripts
from ewe.gateway.affinity import Affinity
from ewe.gateway.cgi import refuse_trace
from ewe.gateway.connections import Connections
from ewe.gateway.records import Requester
from ewe.gateway.responder import ask
from ewe.gateway.scripts import Script
from ewe.http.messages import Request, Response
from ewe.registry import load

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.base import Explanation
    from ewe.features.declaration import ProgramMaker
    from ewe.features.plan import LocationPlan, Plan
    from ewe.features.static import Static
    from ewe.gateway.connections import Codec
    from ewe.http.limits import RequestLimits
    from ewe.streams.base import Stream


MAX_PATHS = 1000  # in memory, with the script of each
SCRIPT_CACHE_S = 1.0  # an old entry does no harm: the upstream itself opens the script by its name
CODECS = {
    "fastcgi": "ewe.gateway.records:Requester",
    "scgi": "ewe.gateway.scgi:Requester",
    "uwsgi": "ewe.gateway.uwsgi:Requester",
}


def features(config: Config, static: Static, limits: RequestLimits) -> Iterator[FastCGI]:
    """Yield the handlers of the settings fastcgi, scgi and uwsgi, in this order; that of the path / comes last.

    Raises ValueError for an invalid address.
    """
    found: list[FastCGI] = []
    for setting in settings.OF_PROTOCOLS:
        if named := config[setting]:
            found += of_protocol(config, static, limits, setting.key, named, load(CODECS[setting.key]))
    yield from sorted(found, key=lambda feature: not (feature.extension or feature.path))


def of_protocol(
    config: Config, static: Static, limits: RequestLimits, setting: str, named: tuple[str, ...], codec: Codec
) -> Iterator[FastCGI]:
    """Yield the handlers of one setting, one for each extension or path. Raises ValueError.

    named: the values of the setting, such as ".php=unix:/run/php.sock". Values with the same extension or path name
    the addresses of one handler. Handlers with the same addresses share the connections, and so their limit.
    """
    connections: dict[tuple[str, ...], Connections] = {}
    upstreams: dict[str, list[str]] = {}  # extension or path -> addresses
    for covered, address in map(parse_responder, named):
        upstreams.setdefault(covered.rstrip("/") or "/", []).append(address)
    for covered, addresses in upstreams.items():
        key = tuple(addresses)
        if key not in connections:
            connections[key] = connections_of(config, addresses, setting, codec)
        yield FastCGI(covered, connections[key], config, static, limits)


def connections_of(
    config: Config, addresses: list[str], setting: str, codec: Codec = Requester
) -> Connections:
    """Return the connections to the addresses of one upstream.

    setting: names the addresses, for messages. codec: the web server's end of one connection, which speaks the
    upstream's protocol. Raises ValueError for an invalid address.
    """
    try:
        return Connections(
            addresses,
            config[settings.FASTCGI_KEEP],
            retry_s=config[settings.FASTCGI_RETRY],
            limit=config[settings.FASTCGI_CONNECTIONS],
            queue_timeout_s=config[settings.FASTCGI_QUEUE_TIMEOUT],
            codec=codec,
        )
    except ValueError as reason:
        raise ValueError(f"{reason} ({setting})") from None


class FastCGI:
    """Passes requests for one extension, or for all paths below one path, to an upstream."""

    def __init__(
        self, covered: str, connections: Connections, config: Config, static: Static, limits: RequestLimits
    ) -> None:
        """covered: the extension or the path in the setting, such as ".php" or "/app"."""
        self.extension = covered if covered.startswith(".") else ""
        self.path = "" if self.extension else covered.rstrip("/")
        self.connections = connections
        self.scripts_by_path: TimedCache[str, Script] = TimedCache(MAX_PATHS, SCRIPT_CACHE_S)
        self.config = config
        self.static = static
        self.limits = limits
        self.affinity = Affinity.of(config[settings.FASTCGI_AFFINITY], covered, connections.addresses)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the upstream's response; None for another path. Raises HTTPError."""
        script = self.find(request.path)
        if script is None:
            return None
        refuse_trace(request)
        root, affinity = self.static.root, self.affinity
        return await ask(self.connections, request, io, script, root, self.config, self.limits, affinity)

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the lines about the script that the upstream gets. Raises HTTPError(403, 404)."""
        script = self.find(request.path)
        if script is not None:
            why = f"a responder for {self.extension or self.path or '/'}"
            yield from scripts.lines_about_script(script, why)
        return script is not None

    def find(self, path: str) -> Script | None:
        """Return the script for a path, None if there is none. Raises HTTPError(403, 404)."""
        if not self.extension:
            return self.script_below_path(path)
        # A path without a script is not cached: a script that has just been written must not be sent as a file.
        return self.scripts_by_path.find_existing(path, self.script_with_extension)

    def script_below_path(self, path: str) -> Script | None:
        """Return the script that answers for all paths below `self.path`; None for another path."""
        name = self.path
        if path != name and not path.startswith(name + "/"):
            return None
        # Upstreams expect a file name in SCRIPT_FILENAME, even if no such file exists.
        return Script(file=self.static.root + name, name=name, path_info=path[len(name) :])

    def script_with_extension(self, path: str) -> Script | None:
        """Return the script with the extension: a file, perhaps with a longer path, or an index file.

        Raises HTTPError(403, 404).
        """
        if path.endswith("/") and any(name.endswith(self.extension) for name in self.config.defaultindex):
            path += self.static.index_of(path)
        end = 0
        while (at := path.find(self.extension, end)) >= 0:
            end = at + len(self.extension)
            if path[end : end + 1] not in ("", "/"):
                continue
            if self.static.has(path[:end]):
                return Script(self.static.name(path[:end]), path[:end], path[end:])
            if not os.path.isdir(self.static.name(path[:end])):
                return None  # neither a file nor a directory: no script can be below it
        return None


def protected(plan: Plan, root: str) -> Iterator[ProtectedSource]:
    """Yield the extensions and the directories for which upstreams answer."""
    named = (each for setting in settings.OF_PROTOCOLS for each in plan.config[setting])
    for covered, _ in map(parse_responder, named):
        if covered[0] == ".":
            yield ProtectedSource(extension=covered)
        elif covered != "/":
            yield ProtectedSource(directory=root + covered)


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield the handler of each extension and each path. Each decides whether it answers. Raises ValueError."""
    for feature in features(plan.config, plan.static, plan.limits):
        yield Mount("/", feature)


def files(location: LocationPlan) -> Iterator[Mount]:
    """Yield the mounts of extensions, for the files of `alias`. Raises ValueError."""
    for feature in features(location.config, location.static, location.plan.limits):
        if feature.extension:
            yield Mount("/", feature)


def gateway(location: LocationPlan, kind: str, targets: tuple[str, ...]) -> Runner:
    """Return the Runner that passes requests to the upstream of a location. Raises ValueError."""
    config, plan, table = location.config, location.plan, location.table
    limits, root = plan.limits, plan.static.root
    connections = connections_of(config, list(targets), "gateway", load(CODECS[kind]))
    # Affinity takes a text with a slash at its beginning for the path of the cookie. A pattern is not a path.
    covered = f"~{table.match_value}" if table.match_key == "pattern" else table.match_value
    affinity = Affinity.of(config[settings.FASTCGI_AFFINITY], covered, connections.addresses)

    async def run(script: Script, request: Request, io: Stream) -> Response | None:
        return await ask(connections, request, io, script, root, config, limits, affinity)

    return Runner(run)


def programs(config: Config) -> Iterator[ProgramMaker]:
    """Yield the maker of each program of fastcgi-start."""
    if config[settings.FASTCGI_START]:
        from ewe.features.fastcgi_programs import FastCGIProgram

        for where, count, command in map(parse_program, config[settings.FASTCGI_START]):
            yield partial(FastCGIProgram, where, count, command)


def fixed(config: Config) -> Iterator[str]:
    """Yield the setting whose programs are started once, before root is given up."""
    yield "fastcgi_start"


def needs(config: Config) -> Iterator[str]:
    """Yield one line for each program of fastcgi-start that does not exist."""
    for word in (shlex.split(parse_program(each).command)[0] for each in config[settings.FASTCGI_START]):
        if shutil.which(word) is None:
            yield f"there is no program {word!r}; install it, or name its path (fastcgi-start)"


FEATURE = Feature(
    "fastcgi",
    settings=settings.OF_RESPONDERS,
    protected=protected,
    mounts=mounts,
    files=files,
    gateway=gateway,
    programs=programs,
    fixed=fixed,
    needs=needs,
    late=("ewe.gateway.scgi", "ewe.gateway.uwsgi", "ewe.gateway.affinity", "ewe.gateway.responder"),
)
