"""CGI/1.1: RFC 3875. ewe starts a program below `cgi-path` for each request.

    respond: find the script -> spool the body -> start -> read the head -> document, redirect or NPH

If no program is found, respond() returns None, and the document root may have a file at that path (EWE section
3.3). If the file is not executable, the answer is 403. The EWE of 2006 sent such a file as text, and so published
the source of every program without its execute bit.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from ewe.config.defaults import SEARCH_PATH
from ewe.config.setting_types import is_local
from ewe.features.cgi_settings import CGI_PATH
from ewe.gateway import scripts
from ewe.gateway.cgi import arguments, refuse_trace, response, variables
from ewe.gateway.programs import import_before_fork, start
from ewe.gateway.scripts import Script, fault_of, is_application, leading_parts
from ewe.gateway.spool import spooled
from ewe.http.messages import Request, Response
from ewe.http.status import HTTPError
from ewe.streams.descriptors import EXHAUSTED

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.base import Explanation
    from ewe.features.static import Static
    from ewe.features.xswitch import XSwitch
    from ewe.http.limits import RequestLimits
    from ewe.streams.base import Stream

PREFIX = "/cgi-bin"


class CGI:
    """Runs the programs of one directory."""

    def __init__(
        self, config: Config, static: Static, limits: RequestLimits, switch: XSwitch | None = None
    ) -> None:
        """switch: X-Switch, which runs every script for which it has an engine; None: no X-Switch."""
        import_before_fork()
        self.directory = os.path.realpath(config[CGI_PATH])
        self.follows_links = config.symlinks == "follow"
        self.timeout_s = config.program_timeout
        self.spool_memory_bytes = config.spool
        self.document_root = static.root
        self.limits = limits
        self.switch = switch
        # Programs would run as root. Only a server on a loopback address may start them then (respond()).
        self.would_be_root = os.geteuid() == 0 and config.user is None

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the response of the program at the request's path; None if there is none. Raises HTTPError."""
        script = self.find(request.path)
        if script is None:
            return None
        refuse_trace(request)
        return await self.run(script, request, io)

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the lines about the program that answers. Raises the errors of find()."""
        script = self.find(request.path)
        if script is not None:
            yield from scripts.lines_about_script(script, "cgi-path", executable=True)
        return script is not None

    async def run(self, script: Script, request: Request, io: Stream) -> Response:
        """Run a program, and return its response.

        Raises HTTPError: 502 if the program fails or its head is malformed, 504 if it is silent, 403 if it would
        run as root for clients of a network.
        """
        body = await spooled(request.body, self.spool_memory_bytes)
        try:
            if self.switch is not None:
                found = await self.switch.answer(request, io, script, body, self.document_root)
                if found is not None:
                    return found
            if self.would_be_root and not is_local(io.server[0]):
                raise HTTPError(403, f"{script.name} would run as root for a network (user)")
            environment = variables(request, io, script, body.length, self.document_root)
            environment.setdefault(b"PATH", os.environb.get(b"PATH", SEARCH_PATH.encode()))
            command: list[str | bytes] = [script.file, *arguments(request)]
            directory = os.path.dirname(script.file)
            try:
                program = start(io, command, environment, directory, body.descriptor, script, self.timeout_s)
            except (OSError, ValueError) as reason:
                if isinstance(reason, OSError) and reason.errno in EXHAUSTED:
                    raise
                fault = fault_of(script.file) or str(reason)
                raise HTTPError(502, f"{script.name} cannot be started: {fault}") from None
        finally:
            body.close()
        try:
            return await response(request, script, program, self.limits)
        except BaseException:
            program.end()
            raise

    # The request: RFC 3875 section 4

    def find(self, path: str) -> Script | None:
        """Return the script for a path: the first part of the path that is a file, or a web application.

        Raises HTTPError: 403 if the file is not executable, 404 if a symbolic link leads out of the directory.
        """
        for script in leading_parts(self.directory, PREFIX, path):
            file = script.file
            try:
                mode = os.lstat(file).st_mode
                if stat.S_ISLNK(mode):
                    if not self.is_inside(file):
                        raise HTTPError(404, f"{file} leads out of {self.directory} (symlinks = inside)")
                    mode = os.stat(file).st_mode
            except (OSError, ValueError):
                return None
            if stat.S_ISDIR(mode):
                if self.switch is None or not is_application(file):
                    continue
            elif not stat.S_ISREG(mode):
                return None
            elif not os.access(file, os.X_OK):
                raise HTTPError(403, f"{file} is not executable: chmod +x {file}")
            return script
        return None

    def is_inside(self, file: str) -> bool:
        """Return whether the real path of a file is below the directory, or symbolic links are followed."""
        return self.follows_links or os.path.realpath(file).startswith(self.directory.rstrip("/") + "/")
