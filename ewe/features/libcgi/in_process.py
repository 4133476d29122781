"""LibCGI in-process: this process calls the libraries below `libcgi-path`.

    respond: cached for this request? ─▶ find the library ─▶ spool the body ─▶ io.call() ─▶ read the output's head

A library is installed by copying it: /libcgi-bin/shop.so/add/3 calls processfunc() of libcgi-bin/shop.so, with
PATH_INFO /add/3. Only files whose names end in .so are libraries. No file of the directory is ever sent.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from ewe.config.defaults import LIBCGI_PREFIX, LIBCGI_SUFFIX
from ewe.config.linux import needs_linux
from ewe.features import libcgi_settings as settings
from ewe.gateway import scripts
from ewe.gateway.cgi import connection_variables, is_nph, refuse_trace, request_variables
from ewe.gateway.scripts import Script, leading_parts
from ewe.gateway.spool import spooled
from ewe.http.messages import NO_BODY, Request, RequestCache, Response
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ewe.config.settings import Config
    from ewe.features.base import Explanation
    from ewe.features.libcgi.libraries import Libraries
    from ewe.features.libcgi.output import Answers, AnyOutput
    from ewe.http.limits import RequestLimits
    from ewe.streams.base import Stream


class Loaded(NamedTuple):
    """The objects that LibCGI.load() makes: one calls the libraries, the other makes responses of their outputs."""

    libraries: Libraries
    answers: Answers


class LibCGI:
    """Calls the libraries of one directory.

    load() is called only if there is a library. Otherwise, ctypes and other modules would be loaded in every child
    of the fork model, and make a fork slower: it would have a tenth more page faults.
    """

    def __init__(
        self,
        config: Config,
        document_root: str,
        limits: RequestLimits,
        directory: str = "",
        prefix: str = LIBCGI_PREFIX,
    ) -> None:
        """limits: of the head that a library writes.

        directory, prefix: replace `libcgi-path` and /libcgi-bin/.
        """
        self.directory = directory or os.path.realpath(config[settings.LIBCGI_PATH])
        self.prefix = prefix.rstrip("/")
        self.document_root = document_root
        self.spool_memory_bytes = config.spool
        self.timeout_s = config[settings.LIBCGI_TIMEOUT]
        self.max_output_bytes = config[settings.LIBCGI_MAX_OUTPUT]
        self.follows_links = config.symlinks == "follow"
        self.limits = limits
        # Only the first element is used; empty before load(). Threads may append at once, since append() is atomic.
        self.loaded: list[Loaded] = []
        # Of requests without a body
        self.prepared_calls: RequestCache[PreparedCall] = RequestCache()
        if holds_libraries(self.directory):
            # Forked children inherit the shim, ewe's C library (shim.py), and need not load it for each connection
            self.load()

    def load(self) -> None:
        """Load the modules that call libraries, and the shim; append a Loaded to `loaded`.

        If several threads do this at once, all use the first one. Another thread may use it before this one has
        loaded the shim: Libraries.start() makes it wait for that.
        """
        from ewe.features.libcgi.libraries import Libraries
        from ewe.features.libcgi.output import Answers
        from ewe.features.libcgi.shim import NotBuilt

        libraries = Libraries(
            self.directory,
            self.timeout_s,
            follows_links=self.follows_links,
            max_output_bytes=self.max_output_bytes,
        )
        self.loaded.append(Loaded(libraries, Answers(self.limits)))
        try:
            self.loaded[0].libraries.start()  # not those of this thread, if another thread has been faster
        except NotBuilt:
            pass  # each request gets a 503 with the reason

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the response of the library at the request's path; None if there is none.

        Raises HTTPError: 500 for a fault or a malformed head, 503 or 403 if the library cannot be loaded.

        The PreparedCall of a request without a body is cached, and made again for another server, scheme or set of
        variables. A short output that the library has printed before may have a cached response (may_cache).

        The variables of a call are two blocks: `request_block` depends on the request, variables_of() on the
        connection.
        """
        prepared = self.prepared_calls.get(request)
        if (
            prepared is None
            or prepared.server is not io.server
            or prepared.scheme != io.scheme
            or prepared.variables is not io.variables
        ):
            script = self.find(request.path)
            if script is None:
                return None
            refuse_trace(request)
            if not self.loaded:
                await io.call(self.load)
            prepared = PreparedCall(self, script, io, request.method)
            if request.body is NO_BODY:
                variables = request_variables(request, io, script, 0, self.document_root)
                prepared.request_block = block(variables)
                self.prepared_calls[request] = prepared
        elif prepared.may_cache:
            # The usual case needs few steps: a call takes a microsecond, and each step here a tenth of that.
            output = await io.call(
                prepared.call, prepared.file, prepared.request_block, io.libcgi_block or variables_of(io)
            )
            if type(output) is bytes and (cached_response := prepared.responses.get(output)) is not None:
                return cached_response
            return await self.answer(request, prepared, output, io)
        script = prepared.script
        if request.body is NO_BODY:
            output = await io.call(prepared.call, script.file, prepared.request_block, variables_of(io))
        else:
            body = await spooled(request.body, self.spool_memory_bytes)
            request_block = block(request_variables(request, io, script, body.length, self.document_root))
            call = self.loaded[0].libraries.call_with
            # The call closes the body. If it were closed here when the client leaves, an executor thread could map
            # its descriptor later, when the number belongs to another body.
            try:
                output = await io.call(
                    call, script.file, request_block, variables_of(io), body, abandoned=body.close
                )
            except OSError:  # no executor thread can be started, so the call has not begun
                body.close()
                raise
        return await self.answer(request, prepared, output, io)

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the lines about the library that answers."""
        script = self.find(request.path)
        if script is not None:
            yield from scripts.lines_about_script(script, "libcgi-path")
        return script is not None

    async def answer(
        self, request: Request, prepared: PreparedCall, output: AnyOutput, io: Stream
    ) -> Response:
        """Return the response for an output. Raises HTTPError(500) for a malformed head.

        The library that has written a malformed head is unloaded.
        """
        libraries, answers = self.loaded[0]
        if prepared.may_cache and (cached_response := answers.cached_response(output)) is not None:
            return cached_response
        try:
            return await answers.response(request, prepared.script, output)
        except HTTPError as refused:
            await io.call(libraries.unload_malformed, prepared.file)
            raise HTTPError(500, f"{refused.cause}; it is unloaded") from None

    def find(self, path: str) -> Script | None:
        """Return the library for a path: the first part of the path that is a file, if its name ends in .so."""
        for script in leading_parts(self.directory, self.prefix, path):
            try:
                mode = os.stat(script.file).st_mode
            except (OSError, ValueError):
                return None
            if stat.S_ISDIR(mode):
                continue
            return script if stat.S_ISREG(mode) and script.file.endswith(LIBCGI_SUFFIX) else None
        return None


class PreparedCall:
    """The library for a request, and the facts that are needed to call it.

    call: the function that calls a library (Libraries.call). responses: the cached responses of all libraries, each
    by its short output. server, scheme, variables: the connection's facts from which the block of variables was
    made. request_block: the variables of a request without a body, as a block. may_cache: the response may be a
    cached one. No response of an nph- library and none for HEAD is cached: a library can print less for HEAD, and
    Content-Length would be wrong.
    """

    __slots__ = (
        "call", "file", "may_cache", "request_block", "responses", "scheme", "script", "server", "variables"
    )  # fmt: skip

    def __init__(self, feature: LibCGI, script: Script, io: Stream, method: str) -> None:
        """script: the library's file. io: the stream of the client's connection. method: of the request."""
        libraries, answers = feature.loaded[0]
        self.script = script
        self.file = script.file
        self.call = libraries.call
        self.responses = answers.responses
        self.may_cache = method != "HEAD" and not is_nph(script)
        self.server = io.server
        self.scheme = io.scheme
        self.variables = io.variables
        self.request_block = b""


def variables_of(io: Stream) -> bytes:
    """Return the block of the variables that depend only on the client's connection. It is made once."""
    if not io.libcgi_block:
        io.libcgi_block = block(connection_variables(io))
    return io.libcgi_block


def block(variables: Mapping[bytes, bytes]) -> bytes:
    """Return variables in the format of core.h. A NUL ends a value, as in every environment."""
    return b"".join([b"%b=%b\0" % (name, value) for name, value in variables.items()]) + b"\0"


def holds_libraries(directory: str) -> bool:
    """Return whether a directory contains a library."""
    try:
        return any(name.endswith(LIBCGI_SUFFIX) for name in os.listdir(directory))
    except OSError:
        return False


def reason_unusable(config: Config) -> str:
    """Return one line why no library could be called with these settings; "" if libraries can be called.

    Also return "" if the directory has no library.
    """
    if not holds_libraries(config[settings.LIBCGI_PATH]):
        return ""
    # Off Linux, the reason ends with a command that runs ewe in a container.
    if reason := needs_linux("LibCGI", in_container="ewe --host 0.0.0.0 4000"):
        return f"{reason} (libcgi-path)"
    from ewe.features.libcgi.libraries import AS_ROOT_MESSAGE
    from ewe.features.libcgi.shim import NOT_BUILT_MESSAGE
    from ewe.libcgi.build import shim_file

    if not shim_file().exists():
        return f"{NOT_BUILT_MESSAGE} (libcgi-path)"
    if os.geteuid() == 0 and config.user is None:
        return AS_ROOT_MESSAGE
    return ""
