"""FastCGI, SCGI and uwsgi: programs that wait behind a socket answer for an extension, or for all below a path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ewe.bounded import TimedCache
from ewe.config.setting_types import parse_responder
from ewe.gateway.affinity import Affinity
from ewe.gateway.cgi import refuse_trace
from ewe.gateway.connections import Connections
from ewe.gateway.records import Requester
from ewe.gateway.responder import ask
from ewe.gateway.scripts import Script
from ewe.http.messages import Request, Response

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.static import Static
    from ewe.gateway.connections import Codec
    from ewe.http.limits import Limits
    from ewe.streams.base import Stream


MAX_PATHS = 1000
SCRIPT_CACHE_S = 1.0  # the responder opens a script by its name, and looks itself


def features(config: Config, static: Static, limits: Limits) -> Iterator[FastCGI]:
    """Yield a feature for each extension and each path that fastcgi, scgi and uwsgi name, in this order; / is last.

    An extension or a path that is named more than once has several addresses. Those that have the same addresses
    share the connections, and so their limit. Raises ValueError for an address that is unknown.
    """
    found = [*of_protocol(config, static, limits, "fastcgi", config.fastcgi, Requester)]
    if config.scgi:
        from ewe.gateway.scgi import Requester as SCGI

        found += of_protocol(config, static, limits, "scgi", config.scgi, SCGI)
    if config.uwsgi:
        from ewe.gateway.uwsgi import Requester as Uwsgi

        found += of_protocol(config, static, limits, "uwsgi", config.uwsgi, Uwsgi)
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
        script = self.known_or_found(request.path) if self.where[0] == "." else self.below(request.path)
        if script is None:
            return None
        refuse_trace(request)
        root, affinity = self.static.root, self.affinity
        return await ask(self.connections, request, io, script, root, self.config, self.limits, affinity)

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
