"""LibCGI: the libraries below config.libcgi_path, called inside this process.

    respond: known with this request? ─▶ find the library ─▶ spool the body ─▶ io.call() ─▶ read the output's head

Installing is copying: /libcgi-bin/shop.so/add/3 calls processfunc() of libcgi-bin/shop.so, with PATH_INFO /add/3.
Only files whose names end in .so are libraries. Nothing in the directory is ever sent as a file.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from ewe.config.defaults import LIBCGI_PREFIX, LIBCGI_SUFFIX
from ewe.config.linux import needs_linux
from ewe.gateway import scripts
from ewe.gateway.cgi import is_nph, of_connection, of_request, refuse_trace
from ewe.gateway.scripts import Script, leading_parts
from ewe.gateway.spool import spooled
from ewe.http.messages import NO_BODY, MadeOfRequests, Request, Response
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ewe.config.settings import Config
    from ewe.features.base import Explanation
    from ewe.features.libcgi.libraries import Libraries
    from ewe.features.libcgi.output import Answers, AnyOutput
    from ewe.http.limits import Limits
    from ewe.streams.base import Stream


NOT_KNOWN: tuple[None, bytes] = (None, b"")


class LibCGI:
    """Call the libraries of one directory.

    load() comes with the first library. ctypes and the rest would else be in every child that the fork model makes
    for a site without libraries: a fork cost a tenth more page faults.
    """

    def __init__(
        self,
        config: Config,
        document_root: str,
        limits: Limits,
        directory: str = "",
        prefix: str = LIBCGI_PREFIX,
    ) -> None:
        """directory, prefix: other ones than config.libcgi_path and /libcgi-bin/."""
        self.directory = directory or os.path.realpath(config.libcgi_path)
        self.prefix = prefix.rstrip("/")
        self.document_root = document_root
        self.spool = config.spool
        self.timeout = config.libcgi_timeout
        self.max_output = config.libcgi_max_output
        self.follows = config.symlinks == "follow"
        self.limits = limits
        self.loaded: list[tuple[Libraries, Answers]] = []
        # What a request without a body leads to, and its variables
        self.known: MadeOfRequests[tuple[Target | None, bytes]] = MadeOfRequests()
        if holds_libraries(self.directory):
            self.load()  # forked children inherit the shim, and need not load it for each connection

    def load(self) -> None:
        """Load what calls libraries. If several threads do so at once, the first one's counts for all."""
        from ewe.features.libcgi.libraries import Libraries
        from ewe.features.libcgi.output import Answers
        from ewe.features.libcgi.shim import NotBuilt

        libraries = Libraries(self.directory, self.timeout, follows=self.follows, max_output=self.max_output)
        self.loaded.append((libraries, Answers(self.limits)))
        try:
            self.loaded[0][0].start()
        except NotBuilt:
            pass  # each request is told

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer with the library at the request's path; None if there is none.

        Raises HTTPError: 500 for a fault or a malformed head, 503 and 403 where nothing can be loaded.
        """
        known, first = self.known.get(request, NOT_KNOWN)
        if (
            known is None
            or known.server is not io.server
            or known.scheme != io.scheme
            or known.variables is not io.variables
        ):
            script = self.find(request.path)
            if script is None:
                return None
            refuse_trace(request)
            if not self.loaded:
                await io.call(self.load)
            known = Target(self, script, io, request.method)
            if request.body is NO_BODY:
                first = block(of_request(request, io, script, 0, self.document_root))
                self.known[request] = (known, first)
        elif known.plain:
            # The usual case, in few steps: a call costs a microsecond, and each step here a tenth.
            output = await io.call(known.call, known.file, first, io.block or variables_of(io))
            if type(output) is bytes and (remembered := known.responses.get(output)) is not None:
                return remembered
            return await self.answer(request, known, output, io)
        libraries, _ = self.loaded[0]
        script = known.script
        if request.body is NO_BODY:
            output = await io.call(libraries.call, script.file, first, variables_of(io))
        else:
            body = await spooled(request.body, self.spool)
            found = block(of_request(request, io, script, body.length, self.document_root))
            # The call closes the body. Closed here when the client leaves, its descriptor could be another body's
            # by the time that a thread beside the event loop maps it.
            call = libraries.call_with
            output = await io.call(call, script.file, found, variables_of(io), body, abandoned=body.close)
        return await self.answer(request, known, output, io)

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield which library answers."""
        script = self.find(request.path)
        if script is not None:
            yield from scripts.explained(script, "libcgi-path")
        return script is not None

    async def answer(self, request: Request, known: Target, output: AnyOutput, io: Stream) -> Response:
        """Return the response that an output says. Raises HTTPError(500) for a malformed head."""
        libraries, answers = self.loaded[0]
        if known.plain and (remembered := answers.remembered(output)) is not None:
            return remembered
        try:
            return await answers.response(request, known.script, output)
        except HTTPError as refused:
            await io.call(libraries.malformed, known.file)
            raise HTTPError(500, f"{refused.cause}; it is unloaded") from None

    def find(self, path: str) -> Script | None:
        """Return the library that a path leads to: its first part that is a file, if its name ends in .so."""
        for script in leading_parts(self.directory, self.prefix, path):
            try:
                mode = os.stat(script.file).st_mode
            except (OSError, ValueError):
                return None
            if stat.S_ISDIR(mode):
                continue
            return script if stat.S_ISREG(mode) and script.file.endswith(LIBCGI_SUFFIX) else None
        return None


class Target:
    """What a remembered request leads to.

    server, scheme, variables: its block was made for these. plain: its output may be a remembered one. That of an
    nph- library may not, nor one for HEAD: the library may print less then, and Content-Length would say so.
    """

    __slots__ = ("call", "file", "plain", "responses", "scheme", "script", "server", "variables")

    def __init__(self, feature: LibCGI, script: Script, io: Stream, method: str) -> None:
        libraries, answers = feature.loaded[0]
        self.script = script
        self.file = script.file
        self.call = libraries.call
        self.responses = answers.responses
        self.plain = method != "HEAD" and not is_nph(script)
        self.server = io.server
        self.scheme = io.scheme
        self.variables = io.variables


def variables_of(io: Stream) -> bytes:
    """Return the block of the variables that depend on the client's connection alone, made once for each."""
    if not io.block:
        io.block = block(of_connection(io))
    return io.block


def block(variables: Mapping[bytes, bytes]) -> bytes:
    """Return variables as core.h wants them. A value with a NUL is cut there, as in every environment."""
    return b"".join([b"%b=%b\0" % (name, value) for name, value in variables.items()]) + b"\0"


def holds_libraries(directory: str) -> bool:
    """Return whether a directory has a library in it."""
    try:
        return any(name.endswith(LIBCGI_SUFFIX) for name in os.listdir(directory))
    except OSError:
        return False


def obstacle(config: Config) -> str:
    """Return why no library could be called with these settings, in one line; "" if nothing stands in the way."""
    if not holds_libraries(config.libcgi_path):
        return ""
    if reason := needs_linux("LibCGI", "ewe --host 0.0.0.0 4000"):
        return f"{reason} (libcgi-path)"
    from ewe.features.libcgi.libraries import AS_ROOT
    from ewe.features.libcgi.shim import NOT_BUILT
    from ewe.libcgi.build import shim

    if not shim().exists():
        return f"{NOT_BUILT} (libcgi-path)"
    if os.geteuid() == 0 and config.user is None:
        return AS_ROOT
    return ""
