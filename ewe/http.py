"""The grammar of HTTP/1.1: bytes to Request, Response to bytes. No I/O, no socket, no clock.

Sources: RFC 9110 (semantics), RFC 9112 (HTTP/1.1), RFC 3986 (targets). Where the RFC leaves a choice and
the choice concerns framing, the target or Host, the strict side is taken: what two readers could
understand differently is refused (RFC 9112 sections 11.1 and 11.2 tell why).

A head is read whole: one pattern for the request line, one for all field lines, then split. Start with
parse_request(); Response.encoded() writes heads. Chunked bodies and dates have files of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "Limits",
    "Refused",
    "Request",
    "Response",
    "check_partial_head",
    "parse_fields",
    "parse_request",
]

REASONS = {
    100: "Continue", 200: "OK", 201: "Created", 202: "Accepted", 204: "No Content",
    205: "Reset Content", 206: "Partial Content", 301: "Moved Permanently", 302: "Found", 303: "See Other",
    304: "Not Modified", 307: "Temporary Redirect", 308: "Permanent Redirect",
    400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
    405: "Method Not Allowed", 406: "Not Acceptable", 408: "Request Timeout", 409: "Conflict",
    410: "Gone", 411: "Length Required", 412: "Precondition Failed", 413: "Content Too Large",
    414: "URI Too Long", 415: "Unsupported Media Type", 416: "Range Not Satisfiable",
    417: "Expectation Failed", 421: "Misdirected Request", 422: "Unprocessable Content",
    426: "Upgrade Required", 428: "Precondition Required", 429: "Too Many Requests",
    431: "Request Header Fields Too Large", 500: "Internal Server Error", 501: "Not Implemented",
    502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout",
    505: "HTTP Version Not Supported", 507: "Insufficient Storage",
}  # fmt: skip

# The methods this server knows; any other token is answered 501 (RFC 9110 section 9.1).
METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"})

# The fields that make an answer depend on more than the target: RFC 9110 sections 13.1 and 14.2.
CONDITIONS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range", "range")


class Refused(Exception):
    """A request that will not be served as it stands.

    status: what to send. cause: one line for our log, never for the client. fields: further response
    fields, such as Allow. Where the head or the body could not be read, the connection closes after it.
    """

    def __init__(self, status: int, cause: str, fields: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(status, cause)
        self.status = status
        self.cause = cause
        self.fields = tuple(fields)


class Limits:
    """What a request may measure: bytes, except max_fields (a count). Config has attributes of these names."""

    def __init__(
        self,
        max_target: int = 8 * 1024,
        max_head: int = 32 * 1024,
        max_field: int = 16 * 1024,
        max_fields: int = 100,
        max_body: int = 2 * 1024**3,
    ) -> None:
        self.max_target = max_target
        self.max_head = max_head
        self.max_field = max_field
        self.max_fields = max_fields
        self.max_body = max_body


class BodyReader:
    """What a request's body offers: an interface, for types only."""

    length: int | None
    finished: bool

    async def receive(self) -> bytes:
        """Return the next decoded bytes, b"" at the end. Raises Refused, Timeout, Disconnected."""
        raise NotImplementedError

    async def look_ahead(self) -> None:
        """Read some of it before anything answers."""
        raise NotImplementedError

    def may_be_skipped(self) -> bool:
        """Is what was not read cheap to read off?"""
        raise NotImplementedError

    async def skip(self) -> bytes | None:
        """Read off what is left; return what follows the body, None to close instead."""
        raise NotImplementedError


class NoBody(BodyReader):
    """The body of a request without one; the same calls as conversation.Body."""

    length: int | None = 0
    finished = True

    async def receive(self) -> bytes:
        """Return b"": the end."""
        return b""


NO_BODY = NoBody()


NOT_NOTED = (None, "")


class Request:
    """One request head, taken apart. It is never changed, so equal heads without body share one Request.

    method, target: as sent. version: (1, 0) or (1, 1), what the rules of this exchange are.
    path: decoded once, dot segments resolved, repeated slashes merged; bytes that are not UTF-8 are
    surrogate-escaped, as in file names. query: as sent, None without "?".
    fields: each (name, value) in the order sent, names in lower case. values: name -> value, lines of
    one name joined by ", " (RFC 9110 section 5.3). host: uri-host[:port] of the target, "" when unknown.
    length: of the body in bytes, 0 without one, None when chunked. keeps: the client lets the connection
    be kept. expects: it waits for "100 Continue". conditional: one of CONDITIONS is present.
    body: has receive() -> bytes, b"" at the end. redirects: local ones so far. line: the request line.
    noted: the access log's cache of what it writes of it.
    """

    __slots__ = (
        "body", "conditional", "expects", "fields", "host", "keeps", "length", "line", "method", "noted",
        "path", "protocol", "query", "redirects", "target", "values", "version",
    )  # fmt: skip

    def __init__(
        self,
        method: str,
        target: str,
        version: tuple[int, int],
        fields: tuple[tuple[str, str], ...] = (),
        *,
        path: str = "/",
        query: str | None = None,
        host: str = "",
    ) -> None:
        self.method = method
        self.target = target
        self.version = version
        self.fields = fields
        self.values = joined(fields)
        self.path = path
        self.query = query
        self.host = host
        self.length: int | None = 0
        self.keeps = False
        self.expects = False
        self.conditional = any(name in self.values for name in CONDITIONS)
        self.redirects = 0
        self.body: BodyReader = NO_BODY
        self.protocol = f"HTTP/{version[0]}.{version[1]}"
        self.line = f"{method} {target} {self.protocol}"
        self.noted: tuple[object, str] = NOT_NOTED

    def get(self, name: str) -> str | None:
        """Return the value of the field of this lower-case name, or None."""
        return self.values.get(name)


def joined(fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Map each name to its value; lines of one name become a list (RFC 9110 section 5.3; cookies: RFC 6265)."""
    values: dict[str, str] = {}
    for name, value in fields:
        if name in values:
            values[name] += ("; " if name == "cookie" else ", ") + value
        else:
            values[name] = value
    return values


# ---------------------------------------------------------------------------------------------------------
# The head. RFC 9112 section 3: request-line = method SP request-target SP HTTP-version

TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]"  # tchar: RFC 9110 section 5.6.2
REQUEST_LINE = re.compile(rf"({TOKEN}+) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])")
# What a request line may begin with; its last CR may be that of an empty line before it.
BEGUN_LINE = re.compile(rf"(?:{TOKEN}+(?: (?:[\x21-\x7e]+(?: [HTP/0-9.]{{0,8}})?)?)?)?\r?".encode())
# field-line = field-name ":" OWS field-value OWS; field-value is visible, obs-text, space or tab: section 5
FIELD_LINES = re.compile(rf"(?:{TOKEN}+:[\t\x20-\x7e\x80-\xff]*\r\n)*")
FIELD_LINE = re.compile(rf"{TOKEN}+:[\t\x20-\x7e\x80-\xff]*")
BEGUN_FIELD = re.compile(rf"(?:{TOKEN}+(?::[\t\x20-\x7e\x80-\xff]*)?)?\r?")
BEGINNING = 64  # bytes of a line that has not ended
# What no head may hold wherever it stands: control characters, a CR or LF alone (a last CR may go on).
NEVER_IN_HEAD = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?=[^\n])")
IN_HEAD = bytes({*b"\t\r\n", *range(0x20, 0x7F), *range(0x80, 0x100)})


def parse_request(head: bytes, limits: Limits) -> Request:
    """Return the request whose head this is: from the request line to the empty line, CRLFs included.

    Raises Refused: 400 bad syntax, framing or Host; 414 and 431 past a limit; 417 for an expectation other
    than 100-continue; 413 for a declared body past the limit; 501 unknown method or coding; 505 version.
    """
    if len(head) > limits.max_head:
        raise Refused(431, f"the head has {len(head)} bytes; the limit is {limits.max_head} (max-head)")
    text = head.decode("latin-1")
    line, _, rest = text.partition("\r\n")
    method, target, version = parse_request_line(line, limits)
    fields = parse_fields(rest[:-2], limits)
    request = Request(method, target, version, fields)
    values = request.values
    request.host = parse_host(values.get("host"), fields, version)
    locate(request)
    request.length = body_length(values, fields, version, limits)
    request.keeps = keeps_connection(values.get("connection"), version)
    if method not in METHODS:
        raise Refused(501, f"method {method[:40]!r} is unknown")
    expectation = values.get("expect")
    if expectation is not None and version == (1, 1):  # a 1.0 client cannot expect: RFC 9110 section 10.1.1
        if expectation.lower() != "100-continue":
            raise Refused(417, f"expectation {expectation[:40]!r} is unknown")
        request.expects = request.length != 0
    return request


def parse_request_line(line: str, limits: Limits) -> tuple[str, str, tuple[int, int]]:
    """Return method, target and version. A minor version above 1 is understood as 1 (RFC 9110 section 2.5)."""
    match = REQUEST_LINE.fullmatch(line)
    if match is None:
        if len(line) > limits.max_target:
            raise Refused(414, f"the request line has {len(line)} bytes and cannot be read (max-target)")
        raise Refused(400, f"the request line is malformed: {line[:80]!r}")
    method, target, major, minor = match.groups()
    if len(target) > limits.max_target:
        raise Refused(
            414, f"the target has {len(target)} bytes; the limit is {limits.max_target} (max-target)"
        )
    if major != "1":
        raise Refused(505, f"HTTP/{major}.{minor} is not spoken here")
    return method, target, (1, 0) if minor == "0" else (1, 1)


def parse_fields(block: str, limits: Limits) -> tuple[tuple[str, str], ...]:
    """Return (lower-case name, value) of each field line of a block in which every line ends in CRLF."""
    if FIELD_LINES.fullmatch(block) is None:
        raise Refused(400, f"a field line is malformed: {first_bad_line(block)[:80]!r}")
    lines = block.split("\r\n")
    lines.pop()
    if len(lines) > limits.max_fields:
        raise Refused(
            431, f"there are {len(lines)} field lines; the limit is {limits.max_fields} (max-fields)"
        )
    fields = []
    for line in lines:
        if len(line) > limits.max_field:
            raise Refused(431, f"field {line[:40]!r} has {len(line)} bytes; the limit is {limits.max_field}")
        name, _, value = line.partition(":")
        fields.append((name.lower(), value.strip(" \t")))
    return tuple(fields)


def first_bad_line(block: str) -> str:
    """Return the line to blame when FIELD_LINES did not match."""
    for line in block.split("\r\n"):
        if FIELD_LINE.fullmatch(line) is None:
            return line
    return block


def check_partial_head(arrived: bytes, limits: Limits, checked: int = 0) -> int:
    """Refuse a head that can no longer become a good one, without waiting for its end.

    So that a client that sends bare line feeds, HTTP/0.9, a folded field or a TLS greeting hears of it at
    once. checked: what an earlier call returned, so that each line is read once, however slowly it comes;
    of the line that has not ended the first BEGINNING bytes are looked at. Raises as parse_request().
    """
    fresh = arrived[checked:]
    if bad := never_in_head(fresh):
        place = checked + bad.start()
        raise Refused(400, f"byte {arrived[place]:#04x} at {place} cannot stand in a head: {arrived[:40]!r}")
    if not checked:
        line, ends, fresh = fresh.partition(b"\r\n")
        if not ends:
            check_begun_line(line, limits)
            return 0
        parse_request_line(line.decode("latin-1"), limits)
    if len(arrived) > limits.max_head:
        raise Refused(431, f"the head has more than {limits.max_head} bytes (max-head)")
    lines, ends, begun = fresh.rpartition(b"\r\n")
    parse_fields((lines + ends).decode("latin-1"), limits)
    if BEGUN_FIELD.fullmatch(begun[:BEGINNING].decode("latin-1")) is None:
        raise Refused(400, f"no field line begins like this: {begun[:BEGINNING]!r}")
    return len(arrived) - len(begun)


def check_begun_line(line: bytes, limits: Limits) -> None:
    """Refuse the beginning of no request line."""
    if BEGUN_LINE.fullmatch(line[:BEGINNING]) is None:
        raise Refused(400, f"no request line begins like this: {line[:BEGINNING]!r}")
    if len(line) > limits.max_target + 64:  # 64: a method, two spaces and the version
        raise Refused(414, f"the request line has more than {limits.max_target} bytes (max-target)")
    if len(line) > limits.max_head:
        raise Refused(431, f"the head has more than {limits.max_head} bytes (max-head)")


def never_in_head(data: bytes) -> re.Match[bytes] | None:
    """Find what no head may hold.

    Where there is nothing to be found, counting is ten times as fast as the pattern: a client may send byte by
    byte, and each time the whole is looked at.
    """
    lines = data.count(b"\r\n")
    if data.count(b"\n") == lines == data.count(b"\r", 0, -1) and not data.translate(None, IN_HEAD):
        return None
    return NEVER_IN_HEAD.search(data)


# ---------------------------------------------------------------------------------------------------------
# Host and target

# uri-host [":" port]: RFC 9112 section 3.2. Sub-delimiters are legal in a reg-name, but no host has them,
# and a comma would make two hosts of one: refused.
HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|(?:[0-9A-Za-z._~-]|%[0-9A-Fa-f]{2})+)(?::([0-9]{0,5}))?")
GROUP = re.compile(r"[0-9A-Fa-f]{1,4}")  # h16, and IPv4address: RFC 3986 section 3.2.2
IPV4 = re.compile(r"(?:(?:[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])(?:\.(?!$)|$)){4}")
ABSOLUTE = re.compile(r"https?://([^/?#]*)([^#]*)", re.IGNORECASE)
# pchar (RFC 3986 section 3.3) and what browsers send unescaped all the same: [ ] | in paths, those and
# { } ^ ` \ in queries (the URL standard's percent-encode sets). Never < > " # or bytes above ASCII.
PATH = re.compile(r"(?:/(?:[A-Za-z0-9\-._~!$&'()*+,;=:@\[\]|]|%[0-9A-Fa-f]{2})*)+")
QUERY = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?\[\]|{}^`\\]|%[0-9A-Fa-f]{2})*")
ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")


def parse_host(host: str | None, fields: tuple[tuple[str, str], ...], version: tuple[int, int]) -> str:
    """Return Host as sent: exactly one in HTTP/1.1, at most one in 1.0 (RFC 9112 section 3.2), well-formed."""
    if host is None:
        if version == (1, 1):
            raise Refused(400, "there is no Host field")
        return ""
    if sum(name == "host" for name, _ in fields) != 1:
        raise Refused(400, "there is more than one Host field")
    return checked_host(host)


def checked_host(host: str) -> str:
    """Return host, or raise Refused(400)."""
    match = HOST.fullmatch(host)
    if match is None or (match[2] and int(match[2]) > 65535) or (match[1] and not is_ipv6(match[1])):
        raise Refused(400, f"the host is malformed: {host[:80]!r}")
    return host


def is_ipv6(text: str) -> bool:
    """Is this an IPv6address? Eight groups, or at most seven and one "::"; IPv4 may stand for the last two."""
    head, gap, tail = text.partition("::")
    groups = [group for part in (head, tail) if part for group in part.split(":")]
    count = len(groups)
    if groups and IPV4.fullmatch(groups[-1]) and not text.endswith(":"):
        groups.pop()
        count += 1
    return all(map(GROUP.fullmatch, groups)) and (count <= 7 if gap else count == 8)


def locate(request: Request) -> None:
    """Set path, query and (from a target in absolute-form) host: RFC 9112 sections 3.2.1 to 3.2.4."""
    target = request.target
    if target == "*":
        if request.method != "OPTIONS":
            raise Refused(400, f"target * with method {request.method[:40]}")
        request.path = "*"
        return
    if request.method == "CONNECT":  # authority-form; there is no tunnel here
        raise Refused(501, "method CONNECT is not implemented")
    if not target.startswith("/"):
        match = ABSOLUTE.fullmatch(target)
        if match is None:
            raise Refused(400, f"the target is malformed: {target[:80]!r}")
        request.host = checked_host(match[1])  # and Host is ignored: section 3.2.2
        target = match[2] if match[2].startswith("/") else "/" + match[2]
        if request.method == "OPTIONS" and not match[2]:
            request.path = "*"  # section 3.2.4: the absolute-form of OPTIONS *
            return
    path, mark, query = target.partition("?")
    if PATH.fullmatch(path) is None or QUERY.fullmatch(query) is None:
        raise Refused(400, f"the target is malformed: {target[:80]!r}")
    request.path = resolve(path)
    request.query = query if mark else None


def resolve(path: str) -> str:
    """Decode a path once and resolve its dot segments (RFC 3986 section 5.2.4); never above the root.

    An encoded slash is refused with 404: no file name holds one, and decoded it would be another path.
    """
    if "%" in path:
        if "%2f" in path or "%2F" in path:
            raise Refused(404, "the path has an encoded slash")
        path = unescape(path)
        if "\0" in path:
            raise Refused(400, "the path has an encoded NUL")
    if "/." not in path and "//" not in path:
        return path
    kept: list[str] = []
    segments = path.split("/")
    for segment in segments:
        if segment == "..":
            if not kept:
                raise Refused(400, "the path leads above the root")
            kept.pop()
        elif segment not in ("", "."):
            kept.append(segment)
    ends_in_slash = bool(kept) and segments[-1] in ("", ".", "..")
    return "/" + "/".join(kept) + ("/" if ends_in_slash else "")


def unescape(text: str) -> str:
    """Decode %HH once; what is then not UTF-8 is surrogate-escaped, so that any file name can be asked for."""
    raw = ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), text.encode("latin-1"))
    return raw.decode("utf-8", "surrogateescape")


def escape(path: str) -> str:
    """Encode a decoded path for a URL: the inverse of unescape(), slashes kept."""
    raw = path.encode("utf-8", "surrogateescape")
    return "".join(chr(byte) if byte in UNESCAPED else f"%{byte:02X}" for byte in raw)


UNESCAPED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$'()*+,=@/")


# ---------------------------------------------------------------------------------------------------------
# Framing: RFC 9112 sections 6 and 9.3

LENGTH = re.compile(r"0|[1-9][0-9]{0,18}")  # no sign, no list, no zeros in front; below 2**63


def body_length(
    values: Mapping[str, str], fields: tuple[tuple[str, str], ...], version: tuple[int, int], limits: Limits
) -> int | None:
    """Return the length of the body in bytes, 0 without one, None when it is chunked.

    Raises Refused(400) for all that could be framed in two ways, 413 past max_body, 501 for other codings.
    """
    coding = values.get("transfer-encoding")
    length = values.get("content-length")
    if coding is not None:
        if length is not None:
            raise Refused(400, "both Content-Length and Transfer-Encoding")
        if version != (1, 1):
            raise Refused(400, "Transfer-Encoding in an HTTP/1.0 request")
        codings = [name.strip(" \t").lower() for name in coding.split(",")]
        if "" in codings:
            raise Refused(400, f"transfer coding {coding[:40]!r} has an empty element")
        if codings[-1] != "chunked" or codings.count("chunked") > 1:
            raise Refused(400, f"transfer coding {coding[:40]!r} does not end in one chunked")
        if len(codings) > 1:
            raise Refused(501, f"transfer coding {coding[:40]!r} is not implemented")
        return None
    if length is None:
        return 0
    if LENGTH.fullmatch(length) is None or sum(name == "content-length" for name, _ in fields) != 1:
        if length.isascii() and length.isdigit() and len(length) > 19 and length[0] != "0":
            raise Refused(413, f"Content-Length has {len(length)} digits")
        raise Refused(400, f"Content-Length is malformed: {length[:40]!r}")
    if int(length) > limits.max_body:
        raise Refused(413, f"a body of {length} bytes is declared; the limit is {limits.max_body} (max-body)")
    return int(length)


def keeps_connection(connection: str | None, version: tuple[int, int]) -> bool:
    """Does the client let the connection persist? RFC 9112 section 9.3."""
    if connection is None:
        return version == (1, 1)
    options = {option.strip(" \t").lower() for option in connection.split(",")}
    if "close" in options:
        return False
    return version == (1, 1) or "keep-alive" in options


# ---------------------------------------------------------------------------------------------------------
# Responses


BODILESS = frozenset({204, 304})  # RFC 9110 sections 15.3.5 and 15.4.5


class Response:
    """One response. Its body is bytes, a tuple of bytes and Regions, or a Source (known length or not).

    status: 200 to 599. fields: (name, value) pairs without Date, Connection, Content-Length and
    Transfer-Encoding, which conversation.py decides alone. length: of the body, None when unknown.
    A Response of bytes is never changed once sent, so it may be sent many times.
    """

    __slots__ = ("_encoded", "body", "cause", "fields", "length", "reason", "release", "status", "target")

    def __init__(
        self,
        status: int,
        fields: Iterable[tuple[str, str]] = (),
        body: bytes | tuple[bytes | Region, ...] | Source = b"",
        *,
        cause: str = "",
        release: Callable[[], None] | None = None,
        target: str | None = None,
        reason: str | None = None,
    ) -> None:
        self.status = status
        self.fields = tuple(fields)
        self.body = b"" if status in BODILESS and isinstance(body, bytes) else body
        self.reason = reason if reason is not None else REASONS.get(status, "Unknown")
        self.cause = cause  # for the error log: why this is not what the client wanted
        self.target = target  # a local redirect: the site answers for this target instead
        self.release = release  # called once the body is no longer needed: closes the file of its Regions
        self._encoded: bytes | None = None
        self.length = body_size(body)

    def encoded(self) -> bytes:
        """Return the status line and the fields, each line with its CRLF, without the empty line.

        Content-Length is there when the length is known and the status has a body (RFC 9110 section 8.6).
        Raises ValueError where a name or a value could split the response (RFC 9110 section 5.5).
        """
        if self._encoded is None:
            lines = [f"HTTP/1.1 {self.status} {self.reason}\r\n"]
            for name, value in self.fields:
                line = f"{name}: {value}"
                if FIELD_LINE.fullmatch(line) is None:
                    raise ValueError(f"field {line[:80]!r} cannot stand in a response")
                lines.append(line + "\r\n")
            if self.length is not None and self.status not in BODILESS:
                lines.append(f"Content-Length: {self.length}\r\n")
            self._encoded = "".join(lines).encode("latin-1")
        return self._encoded

    def get(self, name: str) -> str | None:
        """Return the value of the first field of this lower-case name, or None."""
        return next((value for own, value in self.fields if own.lower() == name), None)

    async def close(self) -> None:
        """Let go of what the body holds: a file, a program."""
        if isinstance(self.body, Source):
            await self.body.close()
        if self.release is not None:
            self.release()


class Region:
    """A part of an open file: count bytes from offset on; file is a descriptor."""

    __slots__ = ("count", "file", "offset")

    def __init__(self, file: int, offset: int, count: int) -> None:
        self.file = file
        self.offset = offset
        self.count = count


class Source:
    """A body that comes piece by piece. length: in bytes, None when unknown.

    raw: True when the pieces are a whole response of their own, head included (RFC 3875 section 5), which
    goes to the client as it is.
    """

    length: int | None = None
    raw = False

    async def receive(self) -> bytes:
        """Return the next piece, b"" at the end. Raises whatever ends the response early."""
        raise NotImplementedError

    async def close(self) -> None:
        """Called once, however the response ended."""


def body_size(body: bytes | tuple[bytes | Region, ...] | Source) -> int | None:
    """Return the length of a response body in bytes, None when unknown."""
    if isinstance(body, bytes):
        return len(body)
    if isinstance(body, Source):
        return body.length
    return sum(len(piece) if isinstance(piece, bytes) else piece.count for piece in body)
