"""The gateway interface, CGI/1.1: what a program is told of a request, and how its answer is read. RFC 3875.

The same whether the program is started for the request (ewe.features.cgi) or waits for it behind a socket
(ewe.features.fastcgi): variables() makes the meta-variables, response() reads a Source's head.
"""

from __future__ import annotations

import functools
import os
import re
from typing import TYPE_CHECKING, NamedTuple

from ewe import __version__, logger
from ewe.http import BODILESS, Refused, Request, Response, Source, parse_fields, unescape

if TYPE_CHECKING:
    from ewe.http import Limits
    from ewe.streams import Stream

MAX_HEAD = 64 * 1024  # bytes of a program's head
SHORT_HEAD = 512  # bytes of one that is remembered
HEAD_END = re.compile(rb"\n\r?\n")
FIRST_END = re.compile(rb"\A\r?\n")  # a head that is empty
STATUS = re.compile(r"([2-5][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
NPH_STATUS = re.compile(rb"HTTP/[0-9]\.[0-9] ([1-5][0-9]{2})[ \r\n]")
LOCAL = re.compile(r"/[\x21-\x7e]*")
ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[\x21-\x7e]+")
ALLOW = ("Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
DISCARD = 1024 * 1024  # bytes of a body nobody wants that are read, before the program is ended
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


# ---------------------------------------------------------------------------------------------------------
# The request: section 4


def variables(
    request: Request, io: Stream, script: Script, length: int, document_root: str
) -> dict[bytes, bytes]:
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
    environment = {name.encode(): value.encode("latin-1", "replace") for name, value in values.items()}
    for field, text in request.values.items():
        if variable := variable_of(field):
            environment[variable] = text.encode("latin-1", "replace")
    if request.host:  # the target's, where it has one: RFC 9112 section 3.2.2
        environment[b"HTTP_HOST"] = request.host.encode("latin-1", "replace")
    paths = {
        "SCRIPT_NAME": script.name,
        "SCRIPT_FILENAME": script.file,
        "DOCUMENT_ROOT": document_root,
    }
    if script.path_info:
        paths["PATH_INFO"] = script.path_info
        paths["PATH_TRANSLATED"] = document_root + script.path_info
    return environment | {name.encode(): os.fsencode(path) for name, path in paths.items()}


@functools.lru_cache(maxsize=1024)
def variable_of(field: str) -> bytes:
    """Return the variable of a field, by its lower-case name; b"" where no program sees it."""
    if field in WITHHELD or not FIELD_NAME.fullmatch(field):
        return b""
    return b"HTTP_" + field.upper().replace("-", "_").encode()


def arguments(request: Request) -> list[bytes]:
    """Return the command line of an indexed query, one without "=": section 4.4."""
    query = request.query
    if not query or "=" in query or request.method not in ("GET", "HEAD"):
        return []
    words = [os.fsencode(unescape(word)) for word in query.split("+")]
    return [] if any(b"\0" in word for word in words) else words


def refuse_trace(request: Request) -> None:
    """Refuse what no program answers: RFC 9110 section 9.3.8 leaves TRACE to the server. Raises Refused(405)."""
    if request.method == "TRACE":
        raise Refused(405, "TRACE to a program", (ALLOW,))


def split_host(host: str) -> tuple[str, str]:
    """Return the name and the port ("" if none) of a Host field."""
    name, colon, port = host.rpartition(":")
    return (name, port) if colon and not port.endswith("]") else (host, "")


# ---------------------------------------------------------------------------------------------------------
# The response: section 6


async def response(request: Request, script: Script, source: GatewaySource, limits: Limits) -> Response:
    """Return the response whose head and body a source brings. Raises Refused: 502, and what read() raises."""
    if is_nph(script):
        return await non_parsed(source)
    head = parse_head(await source.read_head(), script.name, limits)
    if head.target is not None:
        await source.discard()  # the program may go on for a while: Location first, then the work
        await source.close()
        return Response(200, target=head.target)
    if head.length is not None:
        source.length = head.length
    number = head.status
    if number == 205:  # it has no content, and says so with a length of 0: RFC 9110 section 15.3.6
        await source.discard()
        await source.close()
        return Response(number, head.fields, reason=head.reason)
    if source.finished and source.length in (None, len(source.left_over)) and request.method != "HEAD":
        whole, source.left_over = source.left_over, b""  # it has all come with the head: its length is known
        return Response(number, head.fields, b"" if number in BODILESS else whole, reason=head.reason)
    found = Response(number, head.fields, source, reason=head.reason)
    source.unwanted = request.method == "HEAD" or number in BODILESS
    return found


class Head(NamedTuple):
    """What a program's head says. target: of a local redirect. fields: those that are passed on."""

    status: int
    reason: str | None
    target: str | None
    length: int | None
    fields: tuple[tuple[str, str], ...]


def parse_head(head: bytes, name: str, limits: Limits) -> Head:
    """Return what a program's head says; lines end in LF or CRLF (section 6.2). Raises Refused(502)."""
    try:
        return (parsed_head if len(head) <= SHORT_HEAD else parsed_head.__wrapped__)(head, limits)
    except Refused as refused:
        raise Refused(502, f"{name}: {refused.cause}") from None


@functools.lru_cache(maxsize=512)  # most programs write the same head again and again
def parsed_head(head: bytes, limits: Limits) -> Head:
    """Return what a head says. Raises Refused."""
    text = head.decode("latin-1").replace("\r\n", "\n").replace("\n", "\r\n")
    try:
        parse_fields(text, limits)
    except Refused as refused:
        raise Refused(502, f"in its head {refused.cause}") from None
    fields = []
    for line in text.split("\r\n")[:-1]:
        own, _, value = line.partition(":")
        fields.append((own, value.strip(" \t")))
    names = [own.lower() for own, _ in fields]
    if not {"content-type", "location", "status"} & set(names):
        raise Refused(502, "its head has neither Content-Type, Location nor Status")
    for once in ("content-type", "location", "status", "content-length"):
        if names.count(once) > 1:
            raise Refused(502, f"its head has {once} more than once")
    values = {name: value for name, (_, value) in zip(names, fields, strict=True)}
    location, status = values.get("location"), values.get("status")
    if location is not None and status is None and LOCAL.fullmatch(location):
        return Head(200, None, location, None, ())
    passed = tuple(field for name, field in zip(names, fields, strict=True) if name not in NOT_PASSED_ON)
    length = content_length(values["content-length"]) if "content-length" in values else None
    return Head(*response_status(status, location), None, length, passed)


def response_status(status: str | None, location: str | None) -> tuple[int, str | None]:
    """Return the status, and the reason that the program gives for it, of a document or client redirect.

    Sections 6.2.1, 6.2.3, 6.2.4 and 6.3.3. Raises Refused(502).
    """
    if location is not None and not (ABSOLUTE.fullmatch(location) or status is not None):
        raise Refused(502, f"Location {location[:80]!r} is neither a path nor a URL")
    if status is None:
        return 200 if location is None else 302, None
    match = STATUS.fullmatch(status)
    if match is None:
        raise Refused(502, f"Status {status[:40]!r} is malformed")
    return int(match[1]), match[2]


def content_length(value: str) -> int:
    """Return the Content-Length that a program declares. Raises Refused(502)."""
    if not (value.isascii() and value.isdigit() and len(value) < 19):
        raise Refused(502, f"Content-Length {value[:40]!r} is malformed")
    return int(value)


def is_nph(script: Script) -> bool:
    """Does this program write its own head? Section 5."""
    return os.path.basename(script.file).startswith("nph-")


async def non_parsed(source: GatewaySource) -> Response:
    """Return the response of an nph- program, which writes its own head: section 5."""
    start = await source.first()
    match = NPH_STATUS.match(start)
    if match is None:
        raise Refused(
            502, f"{source.name}: an nph- program must begin with a status line, not {start[:40]!r}"
        )
    source.raw = True
    return Response(int(match[1]), (), source)


class GatewaySource(Source):
    """The body that a program writes. unwanted: it is not sent, but the program may write it to its end."""

    unwanted = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.left_over = b""
        self.finished = False

    async def read(self) -> bytes:
        """Return the next output, b"" at its end. Raises Refused: 504 for silence, 502 for a crash."""
        raise NotImplementedError

    def how_it_ended(self) -> str:
        """Return the exit status, in words for the log."""
        raise NotImplementedError

    def end(self) -> None:
        """End what still writes."""
        raise NotImplementedError

    async def first(self) -> bytes:
        """Return the first bytes; they stay for receive(). Raises Refused(502, 504)."""
        while len(self.left_over) < 16 and (data := await self.read()):
            self.left_over += data
        return self.left_over

    async def read_head(self) -> bytes:
        """Return the head, its last line's end included, without the empty line. Raises Refused(502, 504)."""
        head, self.left_over = self.left_over, b""
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
                raise Refused(502, f"{self.name}: {what} ({self.how_it_ended()})")
            head += data

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
                self.end()
