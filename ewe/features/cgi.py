"""CGI/1.1: RFC 3875. Programs below config.cgi_path, started once for each request.

    respond: find the script -> spool the body -> start -> read the head -> document, redirect or NPH

Where there is no such file, or it may not be executed, normal parsing takes place (EWE section 3.3).
"""

from __future__ import annotations

import os
import signal
import stat
from typing import TYPE_CHECKING

from ewe.features.gateway import GatewaySource, Script, arguments, refuse_trace, response, variables
from ewe.features.spool import spooled
from ewe.features.webapp import is_application
from ewe.http import Refused, Request, Response
from ewe.kinds import is_local
from ewe.programs import prepare

if TYPE_CHECKING:
    from ewe.config import Config
    from ewe.features.static import Static
    from ewe.features.xswitch import XSwitch
    from ewe.http import Limits
    from ewe.programs import Program
    from ewe.streams import Stream

PREFIX = "/cgi-bin/"
# Exit statuses of a program that did not end of its own will. Not SIGTERM and the like: `kill 0` is how many
# a shell script ends, itself included.
CRASHES = {
    -number
    for number in (
        signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGKILL, signal.SIGSEGV,
        signal.SIGSYS, signal.SIGXCPU, signal.SIGXFSZ,
    )
}  # fmt: skip


class CGI:
    """Run the programs of one directory."""

    def __init__(self, config: Config, static: Static, limits: Limits, switch: XSwitch | None = None) -> None:
        """switch: what is asked first, and runs all that it has an engine for."""
        prepare()
        self.directory = os.path.realpath(config.cgi_path)
        self.follows = config.symlinks == "follow"
        self.timeout = config.program_timeout
        self.spool = config.spool
        self.document_root = static.root
        self.limits = limits
        self.switch = switch
        self.would_be_root = os.geteuid() == 0 and config.user is None

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer with the program at the request's path; None if there is none.

        Raises Refused: 502 for a program that fails or whose head is malformed, 504 for a silent one, 403 where
        it would run as root for a network.
        """
        script = self.find(request.path)
        if script is None:
            return None
        refuse_trace(request)
        body = await spooled(request.body, self.spool)
        try:
            if self.switch is not None:
                found = await self.switch.answer(request, io, script, body, self.document_root)
                if found is not None:
                    return found
            if self.would_be_root and not is_local(io.server[0]):
                raise Refused(403, f"{script.name} would run as root for a network (user)")
            environment = variables(request, io, script, body.length, self.document_root)
            environment[b"PATH"] = os.environb.get(b"PATH", b"/usr/local/bin:/usr/bin:/bin")
            command: list[str | bytes] = [script.file, *arguments(request)]
            directory = os.path.dirname(script.file)
            try:
                program = await io.spawn(command, environment, directory, body.descriptor, script.name)
            except (OSError, ValueError) as reason:
                raise Refused(502, f"{script.name} cannot be started: {reason}") from None
        finally:
            body.close()
        try:
            source = ProgramSource(program, script.name, self.timeout)
            return await response(request, script, source, self.limits)
        except BaseException:
            program.end()
            raise

    # The request: RFC 3875 section 4

    def find(self, path: str) -> Script | None:
        """Return the script that a path leads to: its first part that is an executable file, or an application."""
        segments = path[len(PREFIX) :].split("/")
        file = self.directory
        for count, segment in enumerate(segments, 1):
            if not segment or segment.startswith("."):
                return None
            file += "/" + segment
            try:
                mode = os.lstat(file).st_mode
                if stat.S_ISLNK(mode):
                    if not self.is_inside(file):
                        return None
                    mode = os.stat(file).st_mode
            except (OSError, ValueError):
                return None
            if stat.S_ISDIR(mode):
                if self.switch is None or not is_application(file):
                    continue
            elif not stat.S_ISREG(mode) or not os.access(file, os.X_OK):
                return None
            name = PREFIX + "/".join(segments[:count])
            return Script(file, name, path[len(name) :])
        return None

    def is_inside(self, file: str) -> bool:
        """Does the file lie below the directory, links resolved?"""
        return self.follows or os.path.realpath(file).startswith(self.directory.rstrip("/") + "/")


class ProgramSource(GatewaySource):
    """What a program of our own writes. timeout: how long it may be silent, in seconds."""

    def __init__(self, program: Program, name: str, timeout: float) -> None:
        super().__init__(name)
        self.program = program
        self.timeout = timeout

    async def read(self) -> bytes:
        if self.finished:
            return b""
        data = await self.program.receive(self.timeout)
        if data is None:
            self.program.end()
            raise Refused(504, f"{self.name}: silent for {self.timeout:g} s (program-timeout)")
        if not data:
            self.finished = True
            status = await self.program.wait()
            if status in CRASHES:  # what came so far must not pass for the whole
                raise Refused(502, f"{self.name}: ended by signal {-status}")
        return data

    def how_it_ended(self) -> str:
        return f"exit status {self.program.status}"

    def end(self) -> None:
        self.program.end()
