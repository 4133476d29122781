"""CGI/1.1 (RFC 3875): the variables that a program gets, and how its output becomes a response.

CGI is a contract between two programs that know nothing of each other: a web server, and a script in any language.
The server describes the request in environment variables and sends the request's body to standard input. The
script writes a short head, an empty line and a body to standard output:

    request ─▶ variables()  REQUEST_METHOD=POST           script ─▶ Content-Type: text/html
               arguments()  PATH_INFO=/add/3                        Status: 201 Created
               body      ─▶ CONTENT_LENGTH=12                                                  (an empty line)
                                                                    <!DOCTYPE html>...   ─▶ response()

The contract is the same if the program is not started for the request but waits for it behind a socket, as with
FastCGI and X-Switch. Only the transport differs. This module therefore works on a GatewaySource, not on a pipe or
a socket:

    features/cgi/programs.py ─▶ RunningProgram (programs.py): a GatewaySource over pipes ┐
    responder.py             ─▶ ResponderSource: a GatewaySource over a socket           ├─▶ response()
    features/xswitch.py      ─▶ the same, to X-Switch                                    ┘

The head decides the kind of the response: a document, a redirect for the client, a local redirect ("Location:
/path" without a status: the server answers that path itself, section 6.2.2), or the whole HTTP response of a script
named nph-*, which is passed on unparsed (section 5).

Possible failures, and ewe's reaction:

- A script frames its response itself, or splits it with a stray line end. Only the server decides about length and
  connection. Fields that frame a response are checked or dropped (NOT_PASSED_ON). A head that could split the
  response is refused with 502.
- A script writes a head that RFC 3875 forbids but every server understands: no Content-Type, two of them, an HTTP
  status line. If the meaning is clear, ewe accepts the head too (parsed_head).
- A client sends the field "Proxy", which would become HTTP_PROXY, a setting of many libraries. WITHHELD lists the
  fields that no program sees.
- A script dies within its body. The response has begun, so only an aborted connection can tell the client.

Read next: scripts.py (which file a URL names), programs.py, records.py.
"""

from __future__ import annotations

import functools
import os
import re
from typing import TYPE_CHECKING, NamedTuple

from ewe import __version__, logger
from ewe.http.fields import parse_fields
from ewe.http.messages import Request, Response, Source, encode_head
from ewe.http.status import BODILESS_STATUSES, REASONS, HTTPError
from ewe.http.target import host_in_url, percent_decode

if TYPE_CHECKING:
    from ewe.gateway.scripts import Script
    from ewe.http.limits import RequestLimits
    from ewe.streams.base import Stream

MAX_HEAD_BYTES = 64 * 1024  # of a program's head
MAX_CACHED_HEAD_BYTES = 512  # longer heads are not cached
HEAD_END = re.compile(rb"\n\r?\n")
FIRST_END = re.compile(rb"\A\r?\n")  # the end of an empty head
STATUS = re.compile(r"([2-5][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
NPH_STATUS = re.compile(rb"HTTP/[0-9]\.[0-9] (101|[2-5][0-9]{2})[ \r\n]")
STATUS_LINE = re.compile(r"HTTP/1\.[01] ([2-5][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
FIELD_LINE = re.compile(r"[A-Za-z0-9-]+:")
LOCAL = re.compile(r"/[\x21\x22\x24-\x7e]*")  # not with "#": a fragment is for the client to resolve
NOT_IN_URLS = re.compile(r"[^\x21-\x7e]")
ALLOW = ("Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
NO_END = "it must print an empty line between its fields and its document"
MAX_DISCARDED_BYTES = 1024 * 1024  # of an unwanted body, read before the program is ended
# Fields of a program's head that only the server may set (RFC 3875 section 6.3). Content-Length becomes the length
# of the Source.
NOT_PASSED_ON = frozenset({
    "status", "connection", "keep-alive", "proxy-authenticate", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade", "date", "server", "content-length",
})  # fmt: skip
# Fields that no program sees as HTTP_*: they have their own variables, concern only the server (section 4.1.18), or
# are dangerous (HTTP_PROXY is a setting of many libraries).
WITHHELD = frozenset({
    "content-length", "content-type", "authorization", "proxy-authorization", "proxy", "transfer-encoding",
})  # fmt: skip
MAX_CACHED_NAME_CHARS = 64  # longer field names are not cached, or clients could fill the memory
FIELD_NAME = re.compile(r"[a-z0-9-]+")  # no "_": Content_Length would become CONTENT_LENGTH, too


# ---------------------------------------------------------------------------------------------------------
# The request: section 4


def variables(
    request: Request, io: Stream, script: Script, length: int, document_root: str
) -> dict[bytes, bytes]:
    """Return the meta-variables of section 4.1, and those that all servers add.

    length: of the body, in bytes; without a body the variable is not set.
    """
    return request_variables(request, io, script, length, document_root) | connection_variables(io)


def connection_variables(io: Stream) -> dict[bytes, bytes]:
    """Return the meta-variables that depend on the client's connection alone."""
    client, port = io.client
    address = client.encode("latin-1", "replace")
    return {
        b"SERVER_ADDR": io.server_address().encode("latin-1", "replace"),
        b"REMOTE_ADDR": address,
        # A name would need a question to the DNS. RFC 3875 section 4.1.9 allows the address in its place
        b"REMOTE_HOST": address,
        b"REMOTE_PORT": b"%d" % port,
    }


def request_variables(
    request: Request, io: Stream, script: Script, length: int, document_root: str
) -> dict[bytes, bytes]:
    """Return the meta-variables of the request, its script and the server, and Stream.variables.

    connection_variables() has the others. length: of the request's body, in bytes.
    """
    scheme = io.scheme
    server_name, server_port = name_and_port(request, io)
    values = {
        "GATEWAY_INTERFACE": "CGI/1.1",
        "SERVER_SOFTWARE": f"ewe/{__version__}",
        "SERVER_NAME": server_name,
        "SERVER_PORT": server_port,
        "SERVER_PROTOCOL": request.protocol,
        "REQUEST_METHOD": request.method,
        "REQUEST_SCHEME": scheme,
        "REQUEST_URI": request.target,
        "QUERY_STRING": request.query or "",
    }
    if scheme == "https":
        values["HTTPS"] = "on"
    if request.body.length != 0:
        values["CONTENT_LENGTH"] = str(length)
    if (kind := request.values.get("content-type")) is not None:
        values["CONTENT_TYPE"] = kind
    environment = {name.encode(): value.encode("latin-1", "replace") for name, value in values.items()}
    for field, text in request.values.items():
        if (
            variable := cached_variable_of(field)
            if len(field) <= MAX_CACHED_NAME_CHARS
            else variable_of(field)
        ):
            environment[variable] = text.encode("latin-1", "replace")
    if request.host:  # the host of the target, if it has one: RFC 9112 section 3.2.2
        environment[b"HTTP_HOST"] = request.host.encode("latin-1", "replace")
    paths = {"SCRIPT_NAME": script.name, "SCRIPT_FILENAME": script.file, "DOCUMENT_ROOT": document_root}
    if script.path_info:
        paths["PATH_INFO"] = script.path_info
        paths["PATH_TRANSLATED"] = document_root + script.path_info
    environment |= {name.encode(): os.fsencode(path) for name, path in paths.items()}
    return environment | io.variables if io.variables else environment


def name_and_port(request: Request, io: Stream) -> tuple[str, str]:
    """Return SERVER_NAME and SERVER_PORT: sections 4.1.14 and 4.1.15.

    Without a host in the request (HTTP/1.0) the name is the address of the listening socket, or localhost. An IPv6
    address has brackets. A Unix socket has no port: it is then that of Host, or that of the scheme, unless a
    trusted proxy sets it (proxies.py).
    """
    host, port_of_host = split_host(request.host)
    address, port = io.server
    is_unix_socket = address == "localhost" and (io.peer or io.client)[0] == "unix:"
    if is_unix_socket and (io.endpoints is None or io.server is io.endpoints.server):
        return host or address, port_of_host or ("443" if io.scheme == "https" else "80")
    return host or host_in_url(address), str(port)


def variable_of(field: str) -> bytes:
    """Return the name of the variable for a field of the request; b"" for a field that no program sees (WITHHELD).

    field: its name, in lower case.
    """
    if field in WITHHELD or not FIELD_NAME.fullmatch(field):
        return b""
    return b"HTTP_" + field.upper().replace("-", "_").encode()


cached_variable_of = functools.lru_cache(maxsize=1024)(variable_of)


def arguments(request: Request) -> list[bytes]:
    """Return the command-line arguments of the script: the words of a query without "=", such as "?blue+green".

    Source: RFC 3875 section 4.4.
    """
    query = request.query
    if not query or "=" in query or request.method not in ("GET", "HEAD"):
        return []
    words = [os.fsencode(percent_decode(word)) for word in query.split("+")]
    return [] if any(b"\0" in word for word in words) else words


def refuse_trace(request: Request) -> None:
    """Raise HTTPError(405) for TRACE, which no program may answer: RFC 9110 section 9.3.8."""
    if request.method == "TRACE":
        raise HTTPError(405, "TRACE to a program", (ALLOW,))


def split_host(host: str) -> tuple[str, str]:
    """Return the name and the port ("" if none) of a Host field."""
    name, colon, port = host.rpartition(":")
    return (name, port) if colon and not port.endswith("]") else (host, "")


# ---------------------------------------------------------------------------------------------------------
# The response: section 6


async def response(
    request: Request, script: Script, source: GatewaySource, limits: RequestLimits
) -> Response:
    """Return the response that a source delivers. Raises HTTPError: 502, and those of GatewaySource.receive()."""
    if is_nph(script):
        return await non_parsed(source)
    head = parse_head(await source.read_head(), script.name, limits)
    if head.target is not None:
        await source.discard()  # some programs print Location first, and do their work afterwards
        await source.close()
        return Response(200, target=head.target)
    if head.length is not None:
        source.length = head.length
    status = head.status
    if status == 205:  # a 205 has no content, and Content-Length: 0 says so: RFC 9110 section 15.3.6
        await source.discard()
        await source.close()
        return Response(status, head.fields, reason=head.reason)
    if source.finished and source.length in (None, len(source.body_start)) and request.method != "HEAD":
        whole = source.take_body_start()  # the whole body came with the head, so its length is known
        return Response(status, head.fields, whole, reason=head.reason, head=head.encoded)
    source.discards_body = request.method == "HEAD" or status in BODILESS_STATUSES
    return Response(status, head.fields, source, reason=head.reason, head=head.encoded)


class ProgramHead(NamedTuple):
    """A program's head, parsed. target: of a local redirect. length: in bytes. fields: for the client.

    encoded: status line and fields as they are sent; b"" if they are not encoded yet.
    """

    status: int
    reason: str | None
    target: str | None
    length: int | None
    fields: tuple[tuple[str, str], ...]
    encoded: bytes = b""


def parse_head(head: bytes, name: str, limits: RequestLimits) -> ProgramHead:
    """Parse a program's head (section 6.2). Its lines end in LF or CRLF. Raises HTTPError(502)."""
    # A long head goes past the cache of lru_cache (__wrapped__), so that the cache stays small.
    parse = parsed_head if len(head) <= MAX_CACHED_HEAD_BYTES else parsed_head.__wrapped__
    try:
        return parse(head, limits)
    except HTTPError as refused:
        raise HTTPError(502, f"{name}: {refused.cause}") from None


@functools.lru_cache(maxsize=512)  # most programs write the same head for every request
def parsed_head(head: bytes, limits: RequestLimits) -> ProgramHead:
    """Parse a head. Raises HTTPError.

    Old programs write heads that RFC 3875 does not allow. If the meaning is clear, ewe accepts them as other
    servers do: no Content-Type, two of them, a status line of HTTP, a relative Location. ewe refuses a head that
    could frame or split the response in two ways, or that servers read differently.
    """
    text = head.decode("latin-1").replace("\r\n", "\n").replace("\n", "\r\n")
    first_line, _, rest = text.partition("\r\n")
    status_line = STATUS_LINE.fullmatch(first_line)  # None: the head begins with a field
    text = rest if status_line is not None else text
    try:
        parse_fields(text, limits)
    except HTTPError as refused:
        hint = advice(text) if refused.status == 400 else ""
        raise HTTPError(502, f"in its head {refused.cause}{hint}") from None
    fields = head_fields(text)
    values = {lower_name: value for lower_name, _, value in fields}
    location, status = values.get("location"), values.get("status")
    if status is None and status_line is not None:
        status = f"{status_line[1]} {status_line[2] or ''}".strip()
    if location is not None and status is None and LOCAL.fullmatch(location):
        return ProgramHead(200, None, location, None, ())
    passed = tuple((name, value) for lower_name, name, value in fields if lower_name not in NOT_PASSED_ON)
    length = content_length(values["content-length"]) if "content-length" in values else None
    number, reason = response_status(status, location)
    reason = REASONS.get(number, "Unknown") if reason is None else reason
    return ProgramHead(number, reason, None, length, passed, encode_head(number, reason, passed))


def head_fields(text: str) -> list[tuple[str, str, str]]:
    """Return the fields of a checked head: the name in lower case, the name, the value. Raises HTTPError(502).

    Of two fields Content-Type the last one counts. Location and Status may come twice with the same value.
    """
    values: dict[str, str] = {}
    fields: list[tuple[str, str, str]] = []
    for line in text.split("\r\n")[:-1]:
        name, _, value = line.partition(":")
        lower_name, value = name.lower(), value.strip(" \t")
        if lower_name == "location":
            value = escape_spaces(value)
        if lower_name in ("location", "status", "content-length") and lower_name in values:
            if value != values[lower_name] or lower_name == "content-length":
                raise HTTPError(502, f"its head has {lower_name} more than once")
            continue
        if lower_name == "content-type" and lower_name in values:
            fields = [field for field in fields if field[0] != lower_name]
        values[lower_name] = value
        fields.append((lower_name, name, value))
    return fields


def advice(text: str) -> str:
    """Return advice, for the log, to the author of a program whose head has a line that is not a field."""
    begun = FIELD_LINE.match(text) is not None
    return f"; {NO_END}" if begun else '; a program prints "Content-Type: text/html" and an empty line first'


def escape_spaces(location: str) -> str:
    """Percent-encode characters that no URL has, such as the space in "view.cgi?name=Ada Lovelace"."""
    return NOT_IN_URLS.sub(lambda match: f"%{ord(match[0]):02X}", location)


def response_status(status: str | None, location: str | None) -> tuple[int, str | None]:
    """Return status and reason of a document or a client redirect. Raises HTTPError(502).

    Sections 6.2.1, 6.2.3, 6.2.4 and 6.3.3.
    """
    if location == "":
        raise HTTPError(502, "its Location is empty")
    if status is None:
        return 200 if location is None else 302, None
    match = STATUS.fullmatch(status)
    if match is None:
        raise HTTPError(502, f"Status {status[:40]!r} is malformed")
    return int(match[1]), match[2]


def content_length(value: str) -> int:
    """Return the Content-Length that a program declares. Raises HTTPError(502)."""
    if not (value.isascii() and value.isdigit() and len(value) < 19):
        raise HTTPError(502, f"Content-Length {value[:40]!r} is malformed")
    return int(value)


def is_nph(script: Script) -> bool:
    """Return whether a script writes the whole HTTP response itself: section 5."""
    return script.file.startswith("nph-", script.file.rfind("/") + 1)


async def non_parsed(source: GatewaySource) -> Response:
    """Return the unparsed response of an nph- script: section 5. Raises HTTPError(502)."""
    start = await source.read_start()
    match = NPH_STATUS.match(start)
    if match is None:
        raise HTTPError(
            502,
            f"{source.name}: an nph- program must begin with the status line of a final response,"
            f" not {start[:40]!r}",
        )
    source.raw = True
    return Response(int(match[1]), (), source)


class GatewaySource(Source):
    """The output of a program: read_head() first, then receive() until the body's end.

    name: the script's, for the log. body_start: body bytes that were read with the head. finished: the output has
    ended. discards_body: the client does not get the body, but the program may write it to its end.
    """

    discards_body = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.body_start = b""
        self.finished = False

    async def receive(self) -> bytes:
        """Return body_start, if there is any, else the next output; b"" at the end of the output.

        Raises HTTPError: 504 for silence, 502 for a crash.
        """
        raise NotImplementedError

    def how_it_ended(self) -> str:
        """Return the exit status in words, for the log."""
        raise NotImplementedError

    def end(self) -> None:
        """End a program that is still writing."""
        raise NotImplementedError

    async def read_start(self) -> bytes:
        """Return the first 16 bytes or more, and keep them for receive(). Raises HTTPError(502, 504).

        They show whether the output begins with a status line and its code, or with a head.
        """
        start = b""
        while len(start) < 16 and (data := await self.receive()):
            start += data
        self.body_start = start
        return start

    async def read_head(self) -> bytes:
        """Return the head with its last line's end, without the empty line. Raises HTTPError(502, 504)."""
        head = b""
        while True:
            data = await self.receive()
            if not data:
                fault = f"its output ends within the head: {NO_END}" if head else "it wrote nothing"
                raise HTTPError(502, f"{self.name}: {fault} ({self.how_it_ended()})")
            searched = max(len(head) - 2, 0)  # the end may begin in the last two bytes before
            head += data
            # A head that begins with a line end (LF, or 13: CR) is empty.
            end = FIRST_END.match(head) if head[0] <= 13 else None
            end = end or HEAD_END.search(head, searched)
            # The limit also holds for a head that has come whole: it does not depend on how the pieces arrive.
            if (len(head) if end is None else end.start()) > MAX_HEAD_BYTES:
                raise HTTPError(502, f"{self.name}: its head has more than {MAX_HEAD_BYTES} bytes")
            if end is not None:
                self.body_start = head[end.end() :]
                return head[: end.start() + 1] if end.start() else b""

    def take_body_start(self) -> bytes:
        """Return the bytes that were read with the head; b"" on a second call."""
        data, self.body_start = self.body_start, b""
        return data

    async def discard(self) -> None:
        """Read and drop an unwanted body, up to MAX_DISCARDED_BYTES, so that the program can finish."""
        count = len(self.body_start)
        self.body_start = b""
        while count <= MAX_DISCARDED_BYTES and (data := await self.receive()):
            count += len(data)

    async def close(self) -> None:
        """End the program; read its unwanted output before, so that it can finish."""
        try:
            if self.discards_body:
                await self.discard()
        except HTTPError as refused:
            logger.errors.warning(refused.cause)
        finally:
            if not self.finished:
                self.finished = True
                self.end()
