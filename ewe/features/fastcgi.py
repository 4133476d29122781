"""FastCGI, SCGI and uwsgi: programs that wait behind a socket answer for an extension, or for all below a path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ewe.bounded import TimedCache
from ewe.config.setting_types import parse_responder
from ewe.features.base import Claim, Mount
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
    from ewe.features.plan import LocationPlan, Plan
    from ewe.features.static import Static
    from ewe.gateway.connections import Codec
    from ewe.http.limits import Limits
    from ewe.streams.base import Stream


MAX_PATHS = 1000
SCRIPT_CACHE_S = 1.0  # the responder opens a script by its name, and looks itself
CODECS = {
    "fastcgi": "ewe.gateway.records:Requester",
    "scgi": "ewe.gateway.scgi:Requester",
    "uwsgi": "ewe.gateway.uwsgi:Requester",
}


def features(config: Config, static: Static, limits: Limits) -> Iterator[FastCGI]:
    """Yield a feature for each extension and each path that fastcgi, scgi and uwsgi name, in this order; / is last.

    An extension or a path that is named more than once has several addresses. Those that have the same addresses
    share the connections, and so their limit. Raises ValueError for an address that is unknown.
    """
    found: list[FastCGI] = []
    for setting, named in (("fastcgi", config.fastcgi), ("scgi", config.scgi), ("uwsgi", config.uwsgi)):
        if named:
            found += of_protocol(config, static, limits, setting, named, load(CODECS[setting]))
    yield from sorted(found, key=lambda feature: feature.where == "/")


def of_protocol(
    config: Config, static: Static, limits: Limits, setting: str, named: tuple[str, ...], codec: Codec
) -> Iterator[FastCGI]:
    """Yield the features of one setting, whose responders speak one protocol. Raises ValueError."""
    responders: dict[tuple[str, ...], Connections] = {}
    addresses: dict[str, list[str]] = {}
    for where, address in map(parse_responder, named):
        addresses.setdefault(where.rstrip("/") or "/", []).append(address)
    for where, several in addresses.items():
        known = tuple(several)
        if known not in responders:
            responders[known] = connections_of(config, several, setting, codec)
        yield FastCGI(where, responders[known], config, static, limits)


def connections_of(
    config: Config, addresses: list[str], setting: str, codec: Codec = Requester
) -> Connections:
    """Return the connections to one responder's addresses. Raises ValueError for an address that is unknown."""
    try:
        return Connections(
            addresses,
            config.fastcgi_keep,
            config.fastcgi_retry,
            config.fastcgi_connections,
            config.fastcgi_patience,
            codec,
        )
    except ValueError as reason:
        raise ValueError(f"{reason} ({setting})") from None


class FastCGI:
    """The files of one extension, or all below one path, answered by a responder."""

    def __init__(
        self, where: str, connections: Connections, config: Config, static: Static, limits: Limits
    ) -> None:
        """where: the extension or the path that the setting names."""
        self.where = where
        self.connections = connections
        self.known: TimedCache[str, Script] = TimedCache(MAX_PATHS, SCRIPT_CACHE_S)
        self.config = config
        self.static = static
        self.limits = limits
        self.affinity: Affinity | None = None
        if config.fastcgi_affinity is not None and len(connections.places) > 1:
            self.affinity = Affinity(config.fastcgi_affinity, where, connections.places)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer with what the responder says; None if it is not asked for this. Raises HTTPError."""
        script = self.find(request.path)
        if script is None:
            return None
        refuse_trace(request)
        root, affinity = self.static.root, self.affinity
        return await ask(self.connections, request, io, script, root, self.config, self.limits, affinity)

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield which script the responder gets. Raises HTTPError(403, 404)."""
        script = self.find(request.path)
        if script is not None:
            yield from scripts.explained(script, f"a responder for {self.where}")
        return script is not None

    def find(self, path: str) -> Script | None:
        """Return the script that a path leads to. Raises HTTPError(403, 404)."""
        return self.known_or_found(path) if self.where[0] == "." else self.below(path)

    def below(self, path: str) -> Script | None:
        """Return the one script that answers for all below a path."""
        name = self.where.rstrip("/")
        if path != name and not path.startswith(name + "/"):
            return None
        return Script(self.static.root + name, name, path[len(name) :])

    def known_or_found(self, path: str) -> Script | None:
        """Return what extended() found for the path, a second ago at most. Raises HTTPError(403, 404).

        A path that leads to no script is not remembered: a script that has just come must not be taken for a file.
        """
        script = self.known.get(path, None)
        if script is None and (script := self.extended(path)) is not None:
            self.known[path] = script
        return script

    def extended(self, path: str) -> Script | None:
        """Return the script with our extension that a path leads to: a file, what follows it, or an index."""
        if path.endswith("/") and any(name.endswith(self.where) for name in self.config.defaultindex):
            path += self.static.index_of(path)
        end = 0
        while (at := path.find(self.where, end)) >= 0:
            end = at + len(self.where)
            if path[end : end + 1] not in ("", "/"):
                continue
            if self.static.has(path[:end]):
                return Script(self.static.name(path[:end]), path[:end], path[end:])
            if not os.path.isdir(self.static.name(path[:end])):
                return None  # nothing can lie below it
        return None


def claims(plan: Plan, root: str) -> Iterator[Claim]:
    """Yield the extensions and the directories that responders answer for."""
    config = plan.config
    for where, _ in map(parse_responder, (*config.fastcgi, *config.scgi, *config.uwsgi)):
        if where[0] == ".":
            yield Claim(extension=where)
        elif where != "/":
            yield Claim(directory=root + where)


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield a handler for each extension and each path. Raises ValueError."""
    for feature in features(plan.config, plan.static, plan.limits):
        yield Mount("/", feature)


def files(location: LocationPlan) -> Iterator[Mount]:
    """Yield the handlers of extensions, for the files of an alias. Raises ValueError."""
    for feature in features(location.config, location.static, location.plan.limits):
        if feature.where[0] == ".":
            yield Mount("/", feature)


def gateway(location: LocationPlan, kind: str, addresses: tuple[str, ...]) -> Runner:
    """Return what asks the responder of a location. Raises ValueError."""
    config, plan = location.config, location.plan
    limits, root = plan.limits, plan.static.root
    connections = connections_of(config, list(addresses), "gateway", load(CODECS[kind]))
    affinity = None
    if config.fastcgi_affinity is not None and len(connections.places) > 1:
        affinity = Affinity(config.fastcgi_affinity, location.table.what, connections.places)

    async def run(script: Script, request: Request, io: Stream) -> Response | None:
        return await ask(connections, request, io, script, root, config, limits, affinity)

    return Runner(run)


FEATURE = Feature(
    "fastcgi",
    settings=(
        "fastcgi", "fastcgi_start", "scgi", "uwsgi", "fastcgi_keep", "fastcgi_retry", "fastcgi_affinity",
        "fastcgi_connections", "fastcgi_patience",
    ),
    claims=claims,
    mounts=mounts,
    files=files,
    gateway=gateway,
    late=("ewe.gateway.scgi", "ewe.gateway.uwsgi", "ewe.gateway.affinity", "ewe.gateway.responder"),
)  # fmt: skip
