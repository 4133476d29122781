"""LibCGI libraries in separate processes (`libcgi-isolation = process`): X-Switch runs them.

A host (ewe/libcgi/host.c) calls the library. The host is an engine of X-Switch, and serves many requests, like the
interpreter of a script. A library that crashes, or writes to a wrong address, damages only this engine. The price
is the way to X-Switch and back. X-Switch checks the owner of the library, and that no other user can have written
it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ewe.config.defaults import LIBCGI_PREFIX, LIBCGI_SUFFIX
from ewe.features import libcgi_settings as settings
from ewe.gateway import scripts
from ewe.gateway.scripts import Script, script_of
from ewe.http.messages import Request, Response

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.base import Explanation
    from ewe.features.xswitch import XSwitch
    from ewe.streams.base import Stream

LIMIT = b"LIBCGI_TIMEOUT_MS"  # the variable with the time limit for the host; a client's header cannot set it


class LibCGIProcess:
    """Answers for the libraries of the site."""

    def __init__(
        self,
        config: Config,
        switch: XSwitch,
        document_root: str,
        directory: str = "",
        prefix: str = LIBCGI_PREFIX,
    ) -> None:
        """directory, prefix: replace `libcgi-path` and /libcgi-bin/."""
        self.directory = directory or os.path.realpath(config[settings.LIBCGI_PATH])
        self.prefix = prefix.rstrip("/")
        self.switch = switch
        self.document_root = document_root
        # Each request tells the host its time limit: libcgi-timeout in milliseconds, at least 1
        self.extra_variables = ((LIMIT, b"%d" % max(round(config[settings.LIBCGI_TIMEOUT] * 1000), 1)),)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the response of the library at the path; None if there is none. Raises HTTPError."""
        script = self.find(request.path)
        if script is None:
            return None
        return await self.switch.run(script, request, io, self.document_root, self.extra_variables)

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the lines of `ewe --explain` about the library at the path; return whether there is one.

        Raises HTTPError(403) if the server may not enter a directory on the way to the library.
        """
        script = self.find(request.path)
        if script is not None:
            yield from scripts.lines_about_script(script, "libcgi-path, on X-Switch")
        return script is not None

    def find(self, path: str) -> Script | None:
        """Return the library at a path; None for other files in the directory, such as sources."""
        script = script_of(self.directory, self.prefix, path, indexes=())
        return script if script is not None and script.file.endswith(LIBCGI_SUFFIX) else None
