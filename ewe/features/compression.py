"""Compression: gzip, brotli or zstd for a response that is not compressed yet (settings compress, compress-*).

    request ─▶ plain_tags() ─▶ the site's features ─▶ finish() ─▶ the client
               "abc-gzip" also                        a type to compress? large enough? not coded already?
               asks for "abc"                          │
                                                       ├─ a cached file      a response from its variants
                                                       ├─ bytes              encoded in place
                                                       └─ a file, a program  Encoded, piece by piece

**One resource, several representations.** A response that could be compressed says `Vary: Accept-Encoding`, also
when it is not. A compressed one has another entity tag: "abc" becomes W/"abc-gzip". The tag is weak, because the
bytes depend on the version of a library and on the moments of flushing. A client sends the tag back in
If-None-Match. No feature knows it, and plain_tags() therefore adds "abc" to the list. A 304 gets the tag that the
client has.

**Ranges are never compressed**: a request with Range, If-Range or If-Match gets the plain representation, whose tag
is another one. A client can therefore not join bytes of two representations (section 15.3.7.3).

**Time.** Compression is computing, and an event loop must not stand still. A body is encoded in parts of 32 KB.
Each takes about a millisecond, and the stream's call() makes it: beside an event loop that is a thread, which
computes without the interpreter's lock. Parts of up to 16 KB are encoded at once. The
output of a program is flushed whenever the program pauses: the first line of a slow program arrives at once, and so
does an event of text/event-stream.

**Secrets.** A page that shows a secret and repeats text of its visitor must not be compressed over TLS: its length
tells how alike the two are (BREACH, 2013). ewe cannot know which pages do. `public` therefore leaves out all that
belongs to one visitor, as far as the fields show: Cookie, Authorization, Set-Cookie, `Cache-Control: private`, or a
user whom ewe has authorized. docs/compression.md says more.

What can go wrong: a body ends early. The encoded body has no Content-Length by which a client could notice, so
Encoded raises, and the connection is cut before the last chunk.

Read next: ewe.http.codings (the coders), ewe.http.negotiation (the choice).
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, TypeVar

from ewe.bounded import BoundedDict
from ewe.features.base import Middleware
from ewe.features.declaration import Feature
from ewe.http.codings import NAMES, Maker, encode, makers
from ewe.http.conditional import tags
from ewe.http.messages import (
    FileResponse,
    KeptResponse,
    Region,
    Request,
    Response,
    Source,
    with_fields,
)
from ewe.http.negotiation import preferred_coding, with_vary
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.plan import Plan
    from ewe.streams.base import Stream

PART = 32 * 1024  # bytes that are encoded by one call: about a millisecond
AT_ONCE = 16 * 1024  # bytes that are encoded without a call: half a millisecond at most
WHOLE = 64 * 1024  # bytes: a body up to this size is encoded in place, and its length is known
MAX_STREAMS = 100  # bodies that are encoded piece by piece at once, each with up to 1 MB of memory
MAX_REMEMBERED = 512  # values of Accept-Encoding, and of Content-Type, whose meaning is remembered
LONGEST_REMEMBERED = 128  # characters
ENCODED_TAG = re.compile(rf'W/"([\x21\x23-\x7e\x80-\xff]*)-(?:{"|".join(NAMES)})"')
# Fields that a compressed body would make untrue (RFC 9530), and those of a body that is coded, or a part, already.
NOT_FOR_COMPRESSION = frozenset({
    "content-encoding", "content-range", "content-digest", "repr-digest", "digest", "content-md5",
})  # fmt: skip
NO_TRANSFORM = re.compile(r"(?:^|[,\s])no-transform(?:$|[,\s])", re.IGNORECASE)  # RFC 9111 section 5.2.2.6
PRIVATE = re.compile(r"(?:^|[,\s])private(?:$|[,\s=])", re.IGNORECASE)
STATUSES = frozenset({200, 201, 202, 203})  # and the errors, whose pages may be long
# What a guard tells programs of the visitor; other variables may be those of `env`.
VISITOR = frozenset({b"REMOTE_USER", b"AUTH_TYPE", b"HTTP_AUTHORIZATION"})
T = TypeVar("T")


class Compression(Middleware):
    """Compresses responses. Raises ValueError for a coding whose package is not installed."""

    def __init__(self, config: Config) -> None:
        self.compresses = config.compress  # "files", "public" or "all"
        self.guarded = bool(config.fastcgi_authorizer)  # whose variables no filter sees
        self.least = config.compress_min_size
        self.makers = makers(config.compress_codings)
        patterns = "|".join(re.escape(each).replace(r"\*", "[^;]*") for each in config.compress_types)
        self.pattern = re.compile(rf"(?:{patterns})\s*(?:;.*)?" if patterns else r"(?!)", re.IGNORECASE)
        self.types: BoundedDict[str, bool] = BoundedDict(MAX_REMEMBERED)
        self.choices: BoundedDict[str, str] = BoundedDict(MAX_REMEMBERED)
        self.streams: set[Encoded] = set()

    # Which coding

    def choice(self, request: Request) -> str:
        """Return the coding that a client gets, "" for none."""
        accepts = request.values.get("accept-encoding")
        if accepts is None or (request.conditional and of_part(request)):
            return ""
        try:
            return self.choices[accepts]
        except KeyError:
            pass
        chosen = preferred_coding(accepts, self.makers)
        remember(self.choices, accepts, chosen)
        return chosen

    def suits(self, request: Request, response: Response, io: Stream) -> bool:
        """Return whether a client that accepts a coding would get this response compressed."""
        if response.status not in STATUSES and response.status < 400:
            return False
        body = response.body
        if isinstance(body, Source) and body.raw:
            return False
        if response.length is not None and response.length < self.least:
            return False
        kind = ""
        # What a content cache gives to everybody is no secret either.
        public = isinstance(
            response, FileResponse if self.compresses == "files" else (FileResponse, KeptResponse)
        )
        harmless = public or self.compresses == "all"
        if not harmless and (self.compresses == "files" or self.guarded or of_visitor(request, io)):
            return False
        for own, value in response.fields:
            name = own.lower()
            if name in NOT_FOR_COMPRESSION:
                return False
            if name == "content-type":
                kind = value
            if name == "cache-control" and NO_TRANSFORM.search(value):
                return False
            if not harmless and (name == "set-cookie" or (name == "cache-control" and PRIVATE.search(value))):
                return False
        return self.is_compressed_type(kind)

    def is_compressed_type(self, kind: str) -> bool:
        """Return whether the setting compress-types names a Content-Type."""
        known = self.types.get(kind)
        if known is None:
            known = self.pattern.fullmatch(kind) is not None
            remember(self.types, kind, known)
        return known

    # The response

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the inner handler's response, compressed if it is to be. Raises what that raises."""
        asked = plain_tags(request) if request.conditional else request
        response = await self.inner.respond(asked, io)
        return None if response is None else await self.finish(request, response, io)

    async def finish(self, request: Request, response: Response, io: Stream) -> Response:
        """Return a response as the client gets it: compressed, or with Vary, or as it is."""
        if isinstance(response, KeptResponse):
            try:
                return response.variants[self.choice(request)]
            except KeyError:
                pass
        if response.status == 304:
            return of_client(request, response, self.choice(request))
        if not self.suits(request, response, io):
            if isinstance(response, KeptResponse):
                response.variants.update(dict.fromkeys(("", *self.makers), response))
            return response
        coding = self.choice(request)
        if isinstance(response, KeptResponse):
            return await self.variant(response, coding, io)
        if not coding:
            return response.with_fields(with_vary(response.fields, "Accept-Encoding"))
        return await self.encoded(request, response, coding, io)

    async def variant(self, response: KeptResponse, coding: str, io: Stream) -> Response:
        """Return a kept response with a coding, and keep that beside it if its cache has room."""
        assert isinstance(response.body, bytes)
        found: Response
        body = await self.whole(coding, response.body, io) if coding else response.body
        if coding and len(body) < len(response.body):
            found = Response(
                response.status, fields_of(response.fields, coding), body, reason=response.reason
            )
        else:
            fields = with_vary(response.fields, "Accept-Encoding")
            found = Response(response.status, fields, response.body, reason=response.reason)
        if response.keep(len(body) if found.body is body and coding else 0):
            response.variants[coding] = found
        return found

    async def whole(self, coding: str, body: bytes, io: Stream) -> bytes:
        """Return a whole body, encoded."""
        make = self.makers[coding]
        return encode(make, body) if len(body) <= AT_ONCE else await io.call(encode, make, body)

    async def encoded(self, request: Request, response: Response, coding: str, io: Stream) -> Response:
        """Return a response with a coding: of bytes at once, else piece by piece."""
        body = response.body
        if type(body) is bytes and len(body) <= WHOLE and response.length == len(body):
            whole = await self.whole(coding, body, io)
            fields = fields_of(response.fields, coding)
            return Response(response.status, fields, whole, reason=response.reason, cause=response.cause)
        if request.version == (1, 0) or len(self.streams) >= MAX_STREAMS:
            # HTTP/1.0 has no chunks: only the close would end the body, and a client could not tell an early end.
            return response.with_fields(with_vary(response.fields, "Accept-Encoding"))
        # A HEAD has no Content-Length then, because only encoding would tell it: RFC 9110 section 9.3.2.
        source = Encoded(response, self.makers[coding], io, self.streams)
        found = Response(response.status, fields_of(response.fields, coding), source, reason=response.reason)
        found.cause = response.cause
        return found


def of_part(request: Request) -> bool:
    """Return whether a request needs the plain representation: for a range, or for If-Match and its strong tag."""
    values = request.values
    return "range" in values or "if-range" in values or "if-match" in values


def of_visitor(request: Request, io: Stream) -> bool:
    """Return whether a request says who asks, so that a program's answer may hold a secret."""
    values = request.values
    return "cookie" in values or "authorization" in values or not VISITOR.isdisjoint(io.variables)


def remember(memory: BoundedDict[str, T], key: str, value: T) -> None:
    """Remember what a text means, if it is short."""
    if len(key) <= LONGEST_REMEMBERED:
        memory[key] = value


# Entity tags


def plain_tags(request: Request) -> Request:
    """Return a request whose If-None-Match also has the plain tag of each compressed one, for the features."""
    value = request.values.get("if-none-match")
    if value is None or "-" not in value:
        return request
    more = [tag for opaque in ENCODED_TAG.findall(value) if (tag := f'W/"{opaque}"') not in value]
    if not more:  # none, or another location has added them before
        return request
    fields = tuple(field for field in request.fields if field[0] != "if-none-match")
    return with_fields(request, (*fields, ("if-none-match", ", ".join((value, *more)))))


def of_client(request: Request, response: Response, coding: str) -> Response:
    """Return a 304 with the tag that the client has, and with Vary: RFC 9110 section 15.4.5."""
    tag = (response.get("etag") or "").removeprefix("W/")
    fields = with_vary(response.fields, "Accept-Encoding")
    value = request.values.get("if-none-match") or ""
    known = tags(value) or []
    for opaque in ENCODED_TAG.findall(value):
        if (added := f'W/"{opaque}"') in known:
            known.remove(added)  # by plain_tags(), for the features
    if tag and tag not in known and "W/" + tag not in known:
        # The coding that the client would get now is looked for first.
        for each in (coding, *NAMES):
            if each and (own := weak(tag, each)) in known:
                fields = tuple((name, own if name.lower() == "etag" else value) for name, value in fields)
                break
    return Response(304, fields, reason=response.reason)


def weak(tag: str, coding: str) -> str:
    """Return the tag of a compressed representation: "abc" -> W/"abc-gzip"."""
    return f'W/{tag.removeprefix("W/")[:-1]}-{coding}"'


def fields_of(fields: tuple[tuple[str, str], ...], coding: str) -> tuple[tuple[str, str], ...]:
    """Return the fields of a response with a coding: its tag, Content-Encoding, Vary, and no offer of ranges."""
    found = []
    for name, value in fields:
        own = name.lower()
        if own == "etag" and value.endswith('"'):
            value = weak(value, coding)
        if own != "accept-ranges":
            found.append((name, value))
    return with_vary((*found, ("Content-Encoding", coding)), "Accept-Encoding")


# Bodies that come piece by piece


class Encoded(Source):
    """The body of a response, encoded piece by piece."""

    def __init__(self, plain: Response, make: Maker, io: Stream, streams: set[Encoded]) -> None:
        """plain: the response that is encoded, closed with this body. streams: the bodies that are being sent."""
        self.plain = plain
        self.coder = make(plain.length)
        self.io = io
        self.streams = streams
        self.left = plain.length  # bytes of the plain body that are still to come; None if nobody knows
        self.live = isinstance(plain.body, Source)  # its pieces come when a program writes them
        self.pieces: list[bytes | Region] = []
        self.part = memoryview(b"")
        if isinstance(plain.body, bytes):
            self.part = memoryview(plain.body)
        elif isinstance(plain.body, tuple):
            self.pieces = [*plain.body]
        self.ended = False
        streams.add(self)

    async def close(self) -> None:
        self.streams.discard(self)
        await self.plain.close()

    async def receive(self) -> bytes:
        """Return the next encoded bytes, b"" at the end. Raises HTTPError if the plain body ends early."""
        while not self.ended:
            part = await self.next_part()
            if not part:
                if self.left:
                    raise HTTPError(502, f"{self.left} bytes of its Content-Length did not come")
                self.ended = True
                return self.coder.finish()
            # The program may pause now, and what it has said is to arrive.
            encode_part = self.coder.flush if self.live and not self.part else self.coder.add
            data = encode_part(part) if len(part) <= AT_ONCE else await self.io.call(encode_part, part)
            await self.io.share(len(part))
            if data:
                return data
        return b""

    async def next_part(self) -> bytes:
        """Return at most PART bytes of the plain body, b"" at its end."""
        if not self.part:
            self.part = memoryview(await self.next_piece())
        if self.left is not None:
            if len(self.part) > self.left:
                self.part = self.part[: self.left]
                self.plain.cause = "more bytes than its Content-Length"
            self.left -= min(len(self.part), PART)
        part, self.part = bytes(self.part[:PART]), self.part[PART:]
        return part

    async def next_piece(self) -> bytes:
        """Return the next piece of the plain body, b"" at its end."""
        if isinstance(self.plain.body, Source):
            return await self.plain.body.receive()
        while self.pieces:
            piece = self.pieces.pop(0)
            if isinstance(piece, bytes):
                if piece:
                    return piece
                continue
            data = os.pread(piece.file, min(piece.count, PART), piece.offset)
            if data and len(data) < piece.count:
                self.pieces.insert(0, Region(piece.file, piece.offset + len(data), piece.count - len(data)))
            if data:
                return data
        return b""


def around(plan: Plan, config: Config) -> Compression:
    """Return the middleware for the settings of a location; locations with equal settings share one."""
    key = (
        Compression,
        config.compress,
        config.compress_types,
        config.compress_min_size,
        config.compress_codings,
    )
    found: Compression = plan.once(key, lambda: Compression(config))
    return found


FEATURE = Feature(
    "compression",
    settings=("compress", "compress_types", "compress_min_size", "compress_codings"),
    around=around,
)
