"""FastCGI: programs that wait behind a socket, such as php-fpm, answer for an extension or for all below a path."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ewe.config.setting_types import parse_responder
from ewe.gateway.cgi import refuse_trace
from ewe.gateway.responder import Responder, ask
from ewe.gateway.scripts import Script
from ewe.http.messages import Request, Response

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.static import Static
    from ewe.http.limits import Limits
    from ewe.streams.base import Stream


class FastCGI:
    """The files of one extension, or all below one path, answered by a responder."""

    def __init__(self, setting: str, config: Config, static: Static, limits: Limits) -> None:
        """setting: as config.fastcgi has it. Raises ValueError where its address is unknown."""
        self.where, address = parse_responder(setting)
        try:
            self.responder = Responder(address, config.fastcgi_keep)
        except ValueError as reason:
            raise ValueError(f"{reason} (fastcgi)") from None
        self.config = config
        self.static = static
        self.limits = limits

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer with what the responder says; None if it is not asked for this. Raises HTTPError."""
        script = self.extended(request.path) if self.where[0] == "." else self.below(request.path)
        if script is None:
            return None
        refuse_trace(request)
        return await ask(self.responder, request, io, script, self.static.root, self.config, self.limits)

    def below(self, path: str) -> Script | None:
        """Return the one script that answers for all below a path."""
        name = self.where.rstrip("/")
        if path != name and not path.startswith(name + "/"):
            return None
        return Script(self.static.root + name, name, path[len(name) :])

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
