"""Requests and responses. The parser makes a Request from a head. A feature answers with a Response.

`await request.body.receive()` reads the body of a request. The body of a response has one of three forms:

    bytes                        small and complete: sent with the head in one system call
    (bytes or Region, ...)       parts of open files: the kernel copies them (sendfile)
    a Source                     pieces that come one after the other, for example from a program

ewe.response_writer sends a response. Sources: RFC 9110 (semantics), RFC 9112 (HTTP/1.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from ewe.bounded import BoundedDict
from ewe.http.fields import FIELD_LINE, REASON, joined
from ewe.http.status import BODILESS_STATUSES, REASONS

# The methods that RFC 9110 section 9.3 and RFC 5789 define, except CONNECT. Programs also get other methods, such
# as WebDAV's PROPFIND; a request for a file with such a method is answered with 501.
METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"})
# The fields by which a response depends on more than the target: RFC 9110 sections 13.1 and 14.2.
CONDITIONS = frozenset(
    {"if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range", "range"}
)

MAX_REQUESTS = 1024  # the entries of one RequestCache
MAX_CACHED_HEAD_CHARS = 2048  # characters of a head

V = TypeVar("V")


class BodyReader:
    """The methods of a request's body. NoBody and ewe.body.Body implement them."""

    length: int | None
    finished: bool
    pending: bytes

    async def receive(self) -> bytes:
        """Return the next decoded bytes; b"" at the end. Raises HTTPError, Timeout, Disconnected."""
        raise NotImplementedError

    async def look_ahead(self) -> None:
        """Read the beginning of the body before a feature answers."""
        raise NotImplementedError

    async def send_continue(self) -> None:
        """Send "100 Continue" to a client that waits for it before it sends the body."""
        raise NotImplementedError

    def known_length(self) -> int | None:
        """Return the length in bytes, None if unknown.

        The length of a chunked body is known after its end has arrived, and before receive() has returned a piece.
        """
        return self.length

    def has_arrived(self) -> bool:
        """Return whether receive() would return bytes, or the end, without waiting."""
        raise NotImplementedError

    def count_wait(self, seconds: float) -> None:
        """Count seconds for which the caller has waited for the client's next bytes, for min_rate."""
        raise NotImplementedError

    def may_be_skipped(self) -> bool:
        """Return whether the rest of the body is short enough to be read and dropped."""
        raise NotImplementedError

    async def skip(self) -> bool:
        """Read and drop the rest if it is short; return whether the body has been read to its end."""
        raise NotImplementedError


class NoBody(BodyReader):
    """The body of a request without a body."""

    length: int | None = 0
    finished = True
    pending = b""

    async def receive(self) -> bytes:
        """Return b"", the end."""
        return b""


NO_BODY = NoBody()


class Request:
    """One request. It is never changed: requests without a body and with equal heads share one Request.

    method, target: as sent. version: (1, 0) or (1, 1), which decides the rules of this exchange.
    path: percent-decoded once, dot segments removed, repeated slashes merged; bytes that are not UTF-8 are
    surrogate-escaped, as in file names. query: as sent; None if there is no "?".
    fields: the (name, value) pairs in the order sent, names in lower case. values: name -> value; the values of
    equal names are joined by ", " (RFC 9110 section 5.3). host: uri-host[:port] of the target; "" if unknown.
    length: the length of the body in bytes; 0 without a body, None if it is chunked. keep_alive: the client allows
    the connection to stay open. expects: the client waits for "100 Continue". conditional: one of CONDITIONS is
    present. line: the request line.
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
        self.conditional = not CONDITIONS.isdisjoint(self.values)
        self.body: BodyReader = NO_BODY
        self.protocol = "HTTP/1.1" if version == (1, 1) else "HTTP/1.0"
        self.line = f"{method} {target} {self.protocol}"

    def get(self, name: str) -> str | None:
        """Return the value of a field, by its name in lower case; None if there is no such field."""
        return self.values.get(name)


class RequestCache(BoundedDict[Request, V]):
    """A cache of results that depend only on a Request, for later exchanges with the same Request.

    A conversation remembers only requests with a short head and without a body, so only these are shared by
    exchanges. For other requests the cache stores nothing: otherwise a client could fill the memory of each worker
    with a thousand long heads.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(MAX_REQUESTS)

    def __setitem__(self, request: Request, value: V) -> None:
        """Store a result, unless the request has a body or a long head."""
        if request.body is NO_BODY:
            size = len(request.line)
            for name, text in request.fields:
                size += len(name) + len(text)
            if size <= MAX_CACHED_HEAD_CHARS:
                super().__setitem__(request, value)


def with_host(request: Request, host: str) -> Request:
    """Return a copy of a request, with the same body and another host."""
    other = copy_of(request)
    other.host = host
    return other


def copy_of(request: Request) -> Request:
    """Return a copy of a request, with the same body. The caller may change the copy before it passes it on."""
    # The module copy is not used: it imports another module, and each module makes a fork slower.
    other = object.__new__(Request)
    for name in Request.__slots__:
        setattr(other, name, getattr(request, name))
    return other


def with_fields(request: Request, fields: tuple[tuple[str, str], ...]) -> Request:
    """Return a copy of a request, with the same body and other fields, whose names are in lower case."""
    other = copy_of(request)
    other.fields = fields
    other.values = joined(fields)
    other.conditional = not CONDITIONS.isdisjoint(other.values)
    return other


def hides_authorization(variables: Mapping[bytes, bytes]) -> bool:
    """Return whether ewe has checked the field Authorization, and hides it from programs (pass-authorization).

    variables: Stream.variables of the exchange.
    """
    return b"AUTH_TYPE" in variables and b"HTTP_AUTHORIZATION" not in variables


class Response:
    """One response. Its body is bytes, a tuple of bytes and Regions, or a Source.

    status: 200 to 599, or 101 with a raw Source. fields: (name, value) pairs without Date, Connection,
    Content-Length and Transfer-Encoding, which ewe.response_writer adds. length: the length of the body in bytes;
    None if unknown. cause: the reason of a failure, for the error log. target: of a local redirect; the site
    answers for this target instead. release: called once when the body is no longer needed, to close the file of
    its Regions. cached_head: some fields, and their encode_head() or b"". encoded_head: the result of encoded();
    b"" before its first call. If the body is bytes, the Response is never changed, and may be sent many times.
    """

    __slots__ = (
        "body", "cached_head", "cause", "encoded_head", "fields", "length", "reason", "release", "status", "target",
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
        """head: the result of encode_head() for this status, reason and fields, if the caller has cached it; b""
        else.

        cause, release, target: see the class. reason: the text after the status; None: the usual one.

        Raises TypeError for a body of another type, ValueError for another status.
        """
        given: Any = status  # a feature may give anything
        if not isinstance(given, int) or not (200 <= given <= 599 or given == 101):
            raise ValueError(f"the status of a response is {given!r}")
        self.status = status
        self.fields = tuple(fields)
        self.cached_head = (self.fields, head)
        self.body = b"" if status in BODILESS_STATUSES and isinstance(body, bytes) else body
        self.reason = reason if reason is not None else REASONS.get(status, "Unknown")
        self.cause = cause
        self.target = target
        self.release = release
        self.encoded_head = b""
        self.length = len(body) if type(body) is bytes else body_size(body)  # most bodies: without a call

    def encoded(self) -> bytes:
        """Return the status line and the field lines, each with its CRLF, without the empty line.

        Content-Length is one of them if the length is known and the status allows a body (RFC 9110 section 8.6).
        Raises ValueError if a name, a value or the reason could split the response (RFC 9110 section 5.5), or if
        the response was sent before and its body is closed.
        """
        if not self.encoded_head:
            if self.body is CLOSED:
                raise ValueError("the response was sent before")
            fields, head = self.cached_head
            if not head or fields is not self.fields:  # a feature has set other fields
                head = encode_head(self.status, self.reason, self.fields)
            if self.length is not None and self.status not in BODILESS_STATUSES:
                head = b"%bContent-Length: %d\r\n" % (head, self.length)
            self.encoded_head = head
        return self.encoded_head

    def with_body(self, body: bytes) -> Response:
        """Return a copy with another body; the head and the length stay those of this response.

        The body must therefore have the same length. b"" is allowed for a copy that only keeps the head:
        with_body() of that copy gets the real body later. If encoded() was called before, the copy's head is not
        encoded again.
        """
        other = Response.__new__(Response)
        other.status = self.status
        other.fields = self.fields
        other.cached_head = self.cached_head
        other.body = body
        other.reason = self.reason
        other.cause = self.cause
        other.target = self.target
        other.release = self.release
        other.length = self.length
        other.encoded_head = self.encoded_head
        return other

    def with_fields(self, fields: Iterable[tuple[str, str]]) -> Response:
        """Return the response with other fields. If its body is bytes, return a copy, since it may be sent many
        times.

        Any other response is for one request. It is changed, not copied: its class may be a subclass with another
        close().
        """
        if type(self.body) is not bytes:
            self.fields = tuple(fields)
            self.encoded_head = b""
            return self
        other = Response.__new__(Response)
        other.status = self.status
        other.fields = tuple(fields)
        other.cached_head = (other.fields, b"")  # no head was made of these fields
        other.body = self.body
        other.reason = self.reason
        other.cause = self.cause
        other.target = self.target
        other.release = self.release
        other.length = self.length
        other.encoded_head = b""
        return other

    def get(self, name: str) -> str | None:
        """Return the value of the first field with this name (in lower case); None if there is no such field."""
        for field_name, value in self.fields:
            if field_name.lower() == name:
                return value
        return None

    async def close(self) -> None:
        """Release the resources of the body, such as a running program, and call `release`. Only bytes stay."""
        body = self.body
        if not isinstance(body, bytes):
            # An idle conversation keeps its last response, and the Regions of its body would keep their files open.
            self.body = CLOSED
            self.encoded_head = b""  # encoded() would then raise ValueError
        try:
            if isinstance(body, Source):
                await body.close()
        finally:
            if self.release is not None:
                release, self.release = self.release, None
                release()


class FileResponse(Response):
    """A response whose body is a whole file. The body does not depend on the request."""

    __slots__ = ()


class StorableResponse(Response):
    """A response that a cache may store.

    variants: the responses that replace this one, by content coding ("" for none), or by the requested path if the
    file is one of several languages. ewe.features.compression and ewe.features.languages fill this dictionary.
    filtered: the responses with the fields that a filter has changed, by the filter, each with the second for which
    it is valid (ewe.features.field_filter). take_room: a function that asks the cache to store this many more
    bytes, and returns whether there is room.
    """

    __slots__ = ("filtered", "take_room", "variants")

    def prepare_variants(self, take_room: Callable[[int], bool]) -> None:
        """Make the dictionaries for the variants, which are empty. take_room: of the cache that stores them."""
        self.take_room = take_room
        self.variants: dict[str, Response] = {}
        self.filtered: dict[object, tuple[int, StorableResponse]] = {}


class CachedFile(StorableResponse, FileResponse):
    """The response of a small file."""

    __slots__ = ()


def encode_head(status: int, reason: str, fields: Iterable[tuple[str, str]]) -> bytes:
    """Return a status line and field lines, each with its CRLF. Raises ValueError like Response.encoded()."""
    if REASON.fullmatch(reason) is None:
        raise ValueError(f"reason {reason[:80]!r} cannot stand in a response")
    lines = [f"HTTP/1.1 {status} {reason}\r\n"]
    for name, value in fields:
        line = f"{name}: {value}"
        if FIELD_LINE.fullmatch(line) is None:
            raise ValueError(f"field {line[:80]!r} cannot stand in a response")
        lines.append(line + "\r\n")
    return "".join(lines).encode("latin-1")


class Region:
    """A part of an open file: `count` bytes from `offset` on. file: a descriptor.

    owner: an object that closes the descriptor when nothing refers to it any more; None: the response closes it, or
    the region itself does, in a subclass.
    """

    __slots__ = ("count", "file", "offset", "owner")

    def __init__(self, file: int, offset: int, count: int, owner: object = None) -> None:
        self.file = file
        self.offset = offset
        self.count = count
        self.owner = owner

    def part(self, offset: int, count: int) -> Region:
        """Return a part of this region, with which its file stays open. offset: from the region's beginning."""
        owner = self.owner or self  # a subclass may close the descriptor itself
        return Region(self.file, self.offset + offset, count, owner)


class Source:
    """A body that comes piece by piece. length: the length in bytes, None if unknown.

    raw: the pieces are a complete response with a head (RFC 3875 section 5), and are sent to the client unchanged.
    bounds_client_time: the source itself bounds the time in which the client takes all pieces. Otherwise min_rate
    bounds that time.
    """

    length: int | None = None
    raw = False
    bounds_client_time = False

    async def receive(self) -> bytes:
        """Return the next piece; b"" at the end. An exception aborts the response."""
        raise NotImplementedError

    async def close(self) -> None:
        """Release the resources of the source. This is called once, also if the response was aborted."""


CLOSED = (b"", b"")  # the body of a response that has been sent, and cannot be sent again; compared with `is`


def body_size(body: bytes | tuple[bytes | Region, ...] | Source) -> int | None:
    """Return the length of a response's body in bytes; None if unknown. Raises TypeError for another type."""
    if isinstance(body, bytes):
        return len(body)
    if isinstance(body, Source):
        return body.length
    try:
        pieces: Any = body
        if not isinstance(pieces, tuple | list):  # the first look at a generator would be the last
            raise TypeError
        size = 0
        for piece in pieces:
            size += len(piece) if isinstance(piece, bytes) else piece.count
        return size
    except (TypeError, AttributeError):  # such as text.count, which is a method
        kind = type(body).__name__
        raise TypeError(
            f"the body of a response is {kind}; it must be bytes, a Source, or a tuple of bytes and Regions"
        ) from None
