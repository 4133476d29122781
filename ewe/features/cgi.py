"""CGI/1.1: RFC 3875. Programs below config.cgi_path, started once for each request.

    respond: find the script -> spool the body -> start -> read the head -> document, redirect or NPH

Where there is no such file, or it may not be executed, normal parsing takes place (EWE section 3.3).
"""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

from ewe import __version__, logger
from ewe.features.spool import spooled
from ewe.http import Refused, Request, Response, Source, parse_fields, unescape
from ewe.kinds import is_local
from ewe.programs import prepare

if TYPE_CHECKING:
    from ewe.config import Config
    from ewe.features.static import Static
    from ewe.http import Limits
    from ewe.programs import Program
    from ewe.streams import Stream

PREFIX = "/cgi-bin/"
MAX_HEAD = 64 * 1024  # bytes of a program's head
HEAD_END = re.compile(rb"\n\r?\n")
FIRST_END = re.compile(rb"\A\r?\n")  # a head that is empty
STATUS = re.compile(r"([2-5][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
NPH_STATUS = re.compile(rb"HTTP/[0-9]\.[0-9] ([1-5][0-9]{2})[ \r\n]")
LOCAL = re.compile(r"/[\x21-\x7e]*")
ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[\x21-\x7e]+")
DISCARD = 1024 * 1024  # bytes of a body nobody wants that are read, before the program is ended
# Exit statuses of a program that did not end of its own will. Not SIGTERM and the like: `kill 0` is how many
# a shell script ends, itself included.
CRASHES = {
    -number
    for number in (
        signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGKILL, signal.SIGSEGV,
        signal.SIGSYS, signal.SIGXCPU, signal.SIGXFSZ,
    )
}  # fmt: skip

# The connection is the server's business (RFC 3875 section 6.3), and so are these; Content-Length is the
# length of the Source.
NOT_PASSED_ON = frozenset({
    "status", "connection", "keep-alive", "proxy-authenticate", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade", "date", "server", "content-length",
})  # fmt: skip
# Fields that no program sees: they have variables of their own, are not its business (section 4.1.18), or
# are dangerous (HTTP_PROXY is a setting to many libraries).
WITHHELD = frozenset({
    "content-length", "content-type", "authorization", "proxy-authorization", "proxy", "transfer-encoding",
})  # fmt: skip
FIELD_NAME = re.compile(r"[a-z0-9-]+")  # Content_Length would become CONTENT_LENGTH too


class Script:
    """A program that a URL leads to: its file, its part of the path, and what follows."""

    __slots__ = ("file", "name", "path_info")

    def __init__(self, file: str, name: str, path_info: str) -> None:
        self.file = file
        self.name = name
        self.path_info = path_info


class CGI:
    """Run the programs of one directory."""

    def __init__(self, config: Config, static: Static, limits: Limits) -> None:
        prepare()
        self.directory = os.path.realpath(config.cgi_path)
        self.follows = config.symlinks == "follow"
        self.timeout = config.program_timeout
        self.spool = config.spool
        self.document_root = static.root
        self.limits = limits
        self.would_be_root = os.geteuid() == 0 and config.user is None

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer with the program at the request's path; None if there is none.

        Raises Refused: 502 for a program that fails or whose head is malformed, 504 for a silent one, 403 where
        it would run as root for a network.
        """
        script = self.find(request.path)
        if script is None:
            return None
        if self.would_be_root and not is_local(io.server[0]):
            raise Refused(403, f"{script.name} would run as root for a network (user)")
        if request.method == "TRACE":
            raise Refused(
                405, "TRACE to a program", (("Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"),)
            )
        body = await spooled(request.body, self.spool)
        try:
            environment = self.environment(request, io, script, body.length)
            command: list[str | bytes] = [script.file, *arguments(request)]
            directory = os.path.dirname(script.file)
            try:
                program = await io.spawn(command, environment, directory, body.descriptor, script.name)
            except (OSError, ValueError) as reason:
                raise Refused(502, f"{script.name} cannot be started: {reason}") from None
        finally:
            body.close()
        try:
            return await self.read_response(request, script, program)
        except BaseException:
            program.end()
            raise

    # The request: RFC 3875 section 4

    def find(self, path: str) -> Script | None:
        """Return the script that a path leads to: its first part that is an executable file."""
        segments = path[len(PREFIX) :].split("/")
        file = self.directory
        for count, segment in enumerate(segments, 1):
            if not segment or segment.startswith("."):
                return None
            file += "/" + segment
            if os.path.isdir(file):
                continue
            if not os.path.isfile(file) or not os.access(file, os.X_OK) or not self.is_inside(file):
                return None
            name = PREFIX + "/".join(segments[:count])
            return Script(file, name, path[len(name) :])
        return None

    def is_inside(self, file: str) -> bool:
        """Does the file lie below the directory, links resolved?"""
        return self.follows or os.path.realpath(file).startswith(self.directory.rstrip("/") + "/")

    def environment(self, request: Request, io: Stream, script: Script, length: int) -> dict[bytes, bytes]:
        """Return the meta-variables: section 4.1, and the few that all servers add."""
        host, port = split_host(request.host)
        values = {
            "GATEWAY_INTERFACE": "CGI/1.1",
            "SERVER_SOFTWARE": f"ewe/{__version__}",
            "SERVER_NAME": host or io.server[0],
            "SERVER_PORT": str(io.server[1] or port or 80),
            "SERVER_PROTOCOL": request.protocol,
            "REQUEST_METHOD": request.method,
            "REQUEST_SCHEME": io.scheme,
            "REQUEST_URI": request.target,
            "QUERY_STRING": request.query or "",
            "REMOTE_ADDR": io.client[0],
            "REMOTE_HOST": io.client[0],
            "REMOTE_PORT": str(io.client[1]),
        }
        if io.scheme == "https":
            values["HTTPS"] = "on"
        if request.body.length != 0:
            values["CONTENT_LENGTH"] = str(length)
        if (kind := request.values.get("content-type")) is not None:
            values["CONTENT_TYPE"] = kind
        for name, value in request.values.items():
            if name not in WITHHELD and FIELD_NAME.fullmatch(name):
                values["HTTP_" + name.upper().replace("-", "_")] = value
        if request.host:
            values["HTTP_HOST"] = request.host  # the target's, where it has one: RFC 9112 section 3.2.2
        environment = {name.encode(): value.encode("latin-1", "replace") for name, value in values.items()}
        environment[b"PATH"] = os.environb.get(b"PATH", b"/usr/local/bin:/usr/bin:/bin")
        paths = {
            "SCRIPT_NAME": script.name,
            "SCRIPT_FILENAME": script.file,
            "DOCUMENT_ROOT": self.document_root,
        }
        if script.path_info:
            paths["PATH_INFO"] = script.path_info
            paths["PATH_TRANSLATED"] = self.document_root + script.path_info
        return environment | {name.encode(): os.fsencode(path) for name, path in paths.items()}

    # The response: RFC 3875 section 6

    async def read_response(self, request: Request, script: Script, program: Program) -> Response:
        """Return the response that the program gives."""
        source = ProgramSource(program, script.name, self.timeout)
        if os.path.basename(script.file).startswith("nph-"):
            return await non_parsed(source)
        fields = parse_head(await source.read_head(), script.name, self.limits)
        values = {name.lower(): value for name, value in fields}
        location = values.get("location")
        status = values.get("status")
        if location is not None and status is None and LOCAL.fullmatch(location):
            await source.discard()  # the program may go on for a while: Location first, then the work
            await source.close()
            return Response(200, target=location)
        passed = tuple((name, value) for name, value in fields if name.lower() not in NOT_PASSED_ON)
        if "content-length" in values:
            source.length = content_length(fields, script.name)
        number, reason = response_status(status, location, script.name)
        if number == 205:  # it has no content, and says so with a length of 0: RFC 9110 section 15.3.6
            await source.discard()
            await source.close()
            return Response(number, passed, reason=reason)
        response = Response(number, passed, source, reason=reason)
        source.unwanted = request.method == "HEAD" or response.status in (204, 304)
        return response


def arguments(request: Request) -> list[bytes]:
    """Return the command line of an indexed query, one without "=": section 4.4."""
    query = request.query
    if not query or "=" in query or request.method not in ("GET", "HEAD"):
        return []
    words = [os.fsencode(unescape(word)) for word in query.split("+")]
    return [] if any(b"\0" in word for word in words) else words


def split_host(host: str) -> tuple[str, str]:
    """Return the name and the port ("" if none) of a Host field."""
    name, colon, port = host.rpartition(":")
    return (name, port) if colon and not port.endswith("]") else (host, "")


def parse_head(head: bytes, name: str, limits: Limits) -> tuple[tuple[str, str], ...]:
    """Return the fields of a program's head; lines end in LF or CRLF (section 6.2). Raises Refused(502)."""
    text = head.decode("latin-1").replace("\r\n", "\n").replace("\n", "\r\n")
    try:
        parse_fields(text, limits)
    except Refused as refused:
        raise Refused(502, f"{name}: in its head {refused.cause}") from None
    fields = []
    for line in text.split("\r\n")[:-1]:
        own, _, value = line.partition(":")
        fields.append((own, value.strip(" \t")))
    own_names = [own.lower() for own, _ in fields]
    if not {"content-type", "location", "status"} & set(own_names):
        raise Refused(502, f"{name}: its head has neither Content-Type, Location nor Status")
    for once in ("content-type", "location", "status", "content-length"):
        if own_names.count(once) > 1:
            raise Refused(502, f"{name}: its head has {once} more than once")
    return tuple(fields)


def response_status(status: str | None, location: str | None, name: str) -> tuple[int, str | None]:
    """Return the status, and the reason that the program gives for it, of a document or client redirect.

    Sections 6.2.1, 6.2.3, 6.2.4 and 6.3.3. Raises Refused(502).
    """
    if location is not None and not (ABSOLUTE.fullmatch(location) or status is not None):
        raise Refused(502, f"{name}: Location {location[:80]!r} is neither a path nor a URL")
    if status is None:
        return 200 if location is None else 302, None
    match = STATUS.fullmatch(status)
    if match is None:
        raise Refused(502, f"{name}: Status {status[:40]!r} is malformed")
    return int(match[1]), match[2]


def content_length(fields: tuple[tuple[str, str], ...], name: str) -> int:
    """Return the Content-Length that a program declares."""
    value = next(value for own, value in fields if own.lower() == "content-length")
    if not (value.isascii() and value.isdigit() and len(value) < 19):
        raise Refused(502, f"{name}: Content-Length {value[:40]!r} is malformed")
    return int(value)


async def non_parsed(source: ProgramSource) -> Response:
    """Return the response of an nph- program, which writes its own head: section 5."""
    start = await source.first()
    match = NPH_STATUS.match(start)
    if match is None:
        raise Refused(
            502, f"{source.name}: an nph- program must begin with a status line, not {start[:40]!r}"
        )
    source.raw = True
    return Response(int(match[1]), (), source)


class ProgramSource(Source):
    """The body that a program writes. unwanted: it is not sent, but the program may write it to its end."""

    unwanted = False

    def __init__(self, program: Program, name: str, timeout: float) -> None:
        self.program = program
        self.name = name
        self.timeout = timeout
        self.left_over = b""
        self.finished = False

    async def first(self) -> bytes:
        """Return the first bytes; they stay for receive(). Raises Refused(502, 504)."""
        while len(self.left_over) < 16 and (data := await self.read()):
            self.left_over += data
        return self.left_over

    async def read_head(self) -> bytes:
        """Return the head, its last line's end included, without the empty line. Raises Refused(502, 504)."""
        head = b""
        while True:
            match = FIRST_END.match(head) or HEAD_END.search(head)
            if match is not None:
                self.left_over = head[match.end() :]
                return head[: match.start() + 1] if match.start() else b""
            if len(head) > MAX_HEAD:
                raise Refused(502, f"{self.name}: its head has more than {MAX_HEAD} bytes")
            data = await self.read()
            if not data:
                what = "its output ends within the head" if head else "it wrote nothing"
                raise Refused(502, f"{self.name}: {what} (exit status {self.program.status})")
            head += data

    async def read(self) -> bytes:
        """Return the next output. Raises Refused: 504 for silence, 502 for a crash."""
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

    async def receive(self) -> bytes:
        if self.left_over:
            data, self.left_over = self.left_over, b""
            return data
        return await self.read()

    async def discard(self) -> None:
        """Let the program finish a body that is not sent, within reason."""
        count = len(self.left_over)
        self.left_over = b""
        while count <= DISCARD and (data := await self.read()):
            count += len(data)

    async def close(self) -> None:
        try:
            if self.unwanted:
                await self.discard()
        except Refused as refused:
            logger.errors.warning(refused.cause)
        finally:
            if not self.finished:
                self.finished = True
                self.program.end()
