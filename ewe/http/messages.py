"""Requests and responses. The parser makes a Request of a head; a feature answers with a Response.

The body of a request is read with `await request.body.receive()`. The body of a response is one of three things:

    bytes                        small, and complete: sent with the head in one system call
    (bytes or Region, ...)       parts of open files: the kernel copies them (sendfile)
    a Source                     pieces that come one after the other, from a program for instance

ewe.response_writer sends a response. Sources: RFC 9110 (semantics), RFC 9112 (HTTP/1.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from ewe.bounded import BoundedDict
from ewe.http.fields import FIELD_LINE, joined
from ewe.http.status import BODILESS, REASONS

# The methods that RFC 9110 section 9.3 and RFC 5789 define, except CONNECT. A program gets any other token as well,
# such as WebDAV's PROPFIND; for a file the answer is 501.
METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"})
# The fields that make an answer depend on more than the target: RFC 9110 sections 13.1 and 14.2.
CONDITIONS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range", "range")

MAX_REQUESTS = 1024
MAX_REMEMBERED = 2048  # characters of a head

V = TypeVar("V")


class BodyReader:
    """The calls that a request's body offers. NoBody and ewe.body.Body have them."""

    length: int | None
    finished: bool
    pending: bytes

    async def receive(self) -> bytes:
        """Return the next decoded bytes, b"" at the end. Raises HTTPError, Timeout, Disconnected."""
        raise NotImplementedError

    async def look_ahead(self) -> None:
        """Read the beginning of the body before a feature answers."""
        raise NotImplementedError

    async def invite(self) -> None:
        """Ask a client that waits for "100 Continue" for the body."""
        raise NotImplementedError

    def known_length(self) -> int | None:
        """Return the length in bytes; also of a chunked body, once its end has come and before a piece is taken."""
        return self.length

    def has_arrived(self) -> bool:
        """Return whether receive() would find something without waiting: bytes, or the end."""
        raise NotImplementedError

    def may_be_skipped(self) -> bool:
        """Return whether the rest of the body is short enough to be read and dropped."""
        raise NotImplementedError

    async def skip(self) -> bool:
        """Read a short rest and drop it; return whether the body has been read to its end."""
        raise NotImplementedError


class NoBody(BodyReader):
    """The body of a request that has none."""

    length: int | None = 0
    finished = True
    pending = b""

    async def receive(self) -> bytes:
        """Return b"", the end."""
        return b""


NO_BODY = NoBody()


class Request:
    """One request. It is never changed: equal heads of requests without a body share one Request.

    method, target: as sent. version: (1, 0) or (1, 1); its rules hold for this exchange.
    path: percent-decoded once, dot segments removed, repeated slashes merged; bytes that are not UTF-8 are
    surrogate-escaped, as in file names. query: as sent, None without "?".
    fields: each (name, value) in the order sent, names in lower case. values: name -> value; the values of equal
    names are joined by ", " (RFC 9110 section 5.3). host: uri-host[:port] of the target, "" if unknown.
    length: the body's, in bytes; 0 without a body, None if it is chunked. keep_alive: the client lets the
    connection stay open. expects: the client waits for "100 Continue". conditional: one of CONDITIONS is present.
    line: the request line.
    """

    __slots__ = (
        "body", "conditional", "expects", "fields", "host", "keep_alive", "length", "line", "method",
        "path", "protocol", "query", "target", "values", "version",
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
        self.keep_alive = False
        self.expects = False
        self.conditional = any(name in self.values for name in CONDITIONS)
        self.body: BodyReader = NO_BODY
        self.protocol = f"HTTP/{version[0]}.{version[1]}"
        self.line = f"{method} {target} {self.protocol}"

    def get(self, name: str) -> str | None:
        """Return the value of a field, by its name in lower case; None if there is no such field."""
        return self.values.get(name)


class MadeOfRequests(BoundedDict[Request, V]):
    """What one part of the server has made of requests, for the next exchange with the same Request.

    Only short heads without a body are remembered by a conversation, and so shared by exchanges. What is made of
    any other request is not kept: with a thousand long heads a client could fill the memory of each worker.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(MAX_REQUESTS)

    def __setitem__(self, request: Request, value: V) -> None:
        if request.body is NO_BODY:
            size = len(request.line)
            for name, text in request.fields:
                size += len(name) + len(text)
            if size <= MAX_REMEMBERED:
                super().__setitem__(request, value)


def with_host(request: Request, host: str) -> Request:
    """Return a copy of a request, of the same body, that asks for another host."""
    other = copy_of(request)
    other.host = host
    return other


def copy_of(request: Request) -> Request:
    """Return a copy of a request, of the same body, that may be changed until others see it."""
    # Without the module copy: it loads a further one, and a forked child pays for each
    other = object.__new__(Request)
    for name in Request.__slots__:
        setattr(other, name, getattr(request, name))
    return other


def with_fields(request: Request, fields: tuple[tuple[str, str], ...]) -> Request:
    """Return a copy of a request, of the same body, that has other fields; their names are in lower case."""
    other = copy_of(request)
    other.fields = fields
    other.values = joined(fields)
    other.conditional = any(name in other.values for name in CONDITIONS)
    return other


def hides_authorization(variables: Mapping[bytes, bytes]) -> bool:
    """Return whether ewe has checked the field Authorization, and programs may not see it (pass-authorization).

    variables: of the exchange (Stream.variables).
    """
    return b"AUTH_TYPE" in variables and b"HTTP_AUTHORIZATION" not in variables


class Response:
    """One response. Its body is bytes, a tuple of bytes and Regions, or a Source.

    status: 200 to 599. fields: (name, value) pairs without Date, Connection, Content-Length and Transfer-Encoding:
    ewe.response_writer alone decides those. length: the body's, in bytes; None if unknown. cause: for the error
    log, why the client does not get what it wanted. target: a local redirect; the site answers for this target
    instead. release: called once when the body is no longer needed, to close the file of its Regions. A Response
    whose body is bytes is never changed, so it may be sent many times.
    """

    __slots__ = (
        "_encoded", "body", "cause", "fields", "length", "reason", "release", "remembered", "status", "target",
    )  # fmt: skip

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
        head: bytes = b"",
    ) -> None:
        """head: what encode_head() makes of status, reason and fields, if the caller remembers it."""
        self.status = status
        self.fields = tuple(fields)
        self.remembered = (self.fields, head)
        self.body = b"" if status in BODILESS and isinstance(body, bytes) else body
        self.reason = reason if reason is not None else REASONS.get(status, "Unknown")
        self.cause = cause
        self.target = target
        self.release = release
        self._encoded: bytes | None = None
        self.length = body_size(body)

    def encoded(self) -> bytes:
        """Return the status line and the field lines, each with its CRLF, without the empty line.

        Content-Length is among them if the length is known and the status has a body (RFC 9110 section 8.6).
        Raises ValueError if a name or a value could split the response (RFC 9110 section 5.5).
        """
        if self._encoded is None:
            fields, head = self.remembered
            if not head or fields is not self.fields:  # a feature has added to the fields
                head = encode_head(self.status, self.reason, self.fields)
            if self.length is not None and self.status not in BODILESS:
                head = b"%bContent-Length: %d\r\n" % (head, self.length)
            self._encoded = head
        return self._encoded

    def with_body(self, body: bytes) -> Response:
        """Return the same response with another body of the same length: cheaper than to make and encode one."""
        other = Response.__new__(Response)
        other.status = self.status
        other.fields = self.fields
        other.body = body
        other.reason = self.reason
        other.cause = self.cause
        other.target = self.target
        other.release = self.release
        other.length = self.length
        other._encoded = self._encoded
        return other

    def with_fields(self, fields: Iterable[tuple[str, str]]) -> Response:
        """Return the response with other fields: a copy if its body is bytes, since it may be sent many times.

        Any other response is for one request, and may know by itself how to close what its body holds.
        """
        if type(self.body) is not bytes:
            self.fields = tuple(fields)
            self._encoded = None
            return self
        other = Response.__new__(Response)
        other.status = self.status
        other.fields = tuple(fields)
        other.remembered = (other.fields, b"")
        other.body = self.body
        other.reason = self.reason
        other.cause = self.cause
        other.target = self.target
        other.release = self.release
        other.length = self.length
        other._encoded = None
        return other

    def get(self, name: str) -> str | None:
        """Return the value of the first field of a name in lower case; None if there is no such field."""
        for own, value in self.fields:
            if own.lower() == name:
                return value
        return None

    async def close(self) -> None:
        """Release what the body holds: a file, a program."""
        if isinstance(self.body, Source):
            await self.body.close()
        if self.release is not None:
            self.release()


class FileResponse(Response):
    """The whole of a file: nothing in its body depends on the request."""

    __slots__ = ()


class KeptResponse(Response):
    """A response that a cache may hold.

    variants: the responses that replace it, by content coding ("" for none), or by the path that was asked for
    if it is one of several languages; ewe.features.compression and ewe.features.languages fill them.
    keep: counts bytes that the cache is to hold besides; it returns whether there is room.
    """

    __slots__ = ("keep", "variants")
    keep: Callable[[int], bool]
    variants: dict[str, Response]


class CachedFile(KeptResponse, FileResponse):
    """The response of a small file."""

    __slots__ = ()


def encode_head(status: int, reason: str, fields: Iterable[tuple[str, str]]) -> bytes:
    """Return a status line and field lines, each with its CRLF. Raises ValueError as Response.encoded()."""
    lines = [f"HTTP/1.1 {status} {reason}\r\n"]
    for name, value in fields:
        line = f"{name}: {value}"
        if FIELD_LINE.fullmatch(line) is None:
            raise ValueError(f"field {line[:80]!r} cannot stand in a response")
        lines.append(line + "\r\n")
    return "".join(lines).encode("latin-1")


class Region:
    """A part of an open file: `count` bytes from `offset` on. file: a descriptor."""

    __slots__ = ("count", "file", "offset")

    def __init__(self, file: int, offset: int, count: int) -> None:
        self.file = file
        self.offset = offset
        self.count = count


class Source:
    """A body that comes piece by piece. length: in bytes, None if unknown.

    raw: the pieces are a complete response, with its head (RFC 3875 section 5), and go to the client as they are.
    """

    length: int | None = None
    raw = False

    async def receive(self) -> bytes:
        """Return the next piece, b"" at the end. An exception ends the response early."""
        raise NotImplementedError

    async def close(self) -> None:
        """Release what the source holds. Called once, however the response ended."""


def body_size(body: bytes | tuple[bytes | Region, ...] | Source) -> int | None:
    """Return the length of a response body in bytes, None when unknown. Raises TypeError for another type."""
    if isinstance(body, bytes):
        return len(body)
    if isinstance(body, Source):
        return body.length
    try:
        return sum(len(piece) if isinstance(piece, bytes) else piece.count for piece in body)
    except (TypeError, AttributeError):  # such as text.count, which is a method
        kind = type(body).__name__
        raise TypeError(
            f"the body of a response is {kind}; it must be bytes, a Source, or a tuple of bytes and Regions"
        ) from None
