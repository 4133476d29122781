"""Compression: gzip, brotli or zstd for a response that is not compressed yet (settings compress, compress-*).

    request ─▶ plain_tags() ─▶ the site's features ─▶ finish() ─▶ the client
               "abc-gzip" also                        a type to compress? large enough? not coded already?
               asks for "abc"                          │
                                                       ├─ a cached file      a response from its variants
                                                       ├─ bytes              encoded at once
                                                       └─ a file, a program  Encoded, piece by piece

**One resource, several representations.** A response that could be compressed has `Vary: Accept-Encoding`, even if
it is not compressed. A compressed response has another entity tag: "abc" becomes W/"abc-gzip". The tag is weak,
because the bytes depend on the version of a library and on the times of flushes. A client sends the tag back in
If-None-Match. No feature knows this tag, so plain_tags() adds "abc" to the list. A 304 gets the tag that the client
has sent.

**Ranges are never compressed**: a request with Range, If-Range or If-Match gets the plain representation, which has
another tag. A client can therefore not join bytes of two representations (section 15.3.7.3).

**Time.** Compression takes computing time, and must not block an event loop. A body is encoded in parts of 32 KB.
Each part takes about a millisecond, and the stream's call() makes the call: beside an event loop, an executor
thread computes without the interpreter's lock. Parts of up to 16 KB are encoded directly. The output of a program
is flushed whenever the program pauses. The first line of a slow program therefore arrives at once, and so does each
event of text/event-stream.

**Secrets.** A page that contains a secret and repeats text of its visitor must not be compressed over TLS: the
length shows how similar the two are (BREACH, 2013). ewe cannot recognize such pages. `public` therefore excludes
all responses for one visitor, as far as the header fields show it: Cookie, Authorization, Set-Cookie,
`Cache-Control: private`, or a user whom ewe has authorized. docs/sites.md explains more.

Possible failures: a body ends early. The encoded body has no Content-Length, so the client could not notice it.
Encoded therefore raises an exception, and the connection is aborted before the last chunk.

Read next: ewe.http.codings (the coders), ewe.http.negotiation (the choice).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from ewe.bounded import BoundedDict
from ewe.features import compression_settings as settings
from ewe.features.base import Middleware
from ewe.features.declaration import Feature
from ewe.features.fastcgi_settings import FASTCGI_AUTHORIZER
from ewe.features.guards.limit_rate import BodySource
from ewe.http.codings import NAMES, CoderMaker, encode, makers
from ewe.http.conditional import entity_tags
from ewe.http.messages import (
    FileResponse,
    Request,
    Response,
    Source,
    StorableResponse,
    with_fields,
)
from ewe.http.negotiation import preferred_coding, with_vary
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.plan import Plan
    from ewe.streams.base import Stream

PART_BYTES = 32 * 1024  # bytes that one call() encodes, in about a millisecond
INLINE_BYTES = 16 * 1024  # bytes that are encoded without call(), in at most half a millisecond
MAX_WHOLE_BYTES = 64 * 1024  # bytes; a body up to this size is encoded as a whole, so its length is known
MAX_STREAMS = 100  # bodies that are encoded piece by piece at the same time, each with up to 1 MB of memory
MAX_CACHED_RESULTS = 512  # cached results for values of Accept-Encoding, and for those of Content-Type
MAX_CACHED_KEY_CHARS = 128  # characters; the result for a longer value is not cached
ENCODED_TAG = re.compile(rf'W/"([\x21\x23-\x7e\x80-\xff]*)-(?:{"|".join(NAMES)})"')
# Fields that would be wrong for a compressed body (RFC 9530), and fields of a body that is coded or partial
# already.
NOT_FOR_COMPRESSION = frozenset({
    "content-encoding", "content-range", "content-digest", "repr-digest", "digest", "content-md5",
})  # fmt: skip
NO_TRANSFORM = re.compile(r"(?:^|[,\s])no-transform(?:$|[,\s])", re.IGNORECASE)  # RFC 9111 section 5.2.2.6
PRIVATE = re.compile(r"(?:^|[,\s])private(?:$|[,\s=])", re.IGNORECASE)
STATUSES = frozenset({200, 201, 202, 203})  # and all errors, since their pages may be long
# The variables by which a guard identifies the visitor. Other variables may come from `env`.
VISITOR = frozenset({b"REMOTE_USER", b"AUTH_TYPE", b"HTTP_AUTHORIZATION"})
T = TypeVar("T")


class Compression(Middleware):
    """Compresses responses. Raises ValueError for a coding whose package is not installed."""

    def __init__(self, config: Config) -> None:
        self.compresses = config[settings.COMPRESS]  # "files", "public" or "all"
        self.guarded = bool(config[FASTCGI_AUTHORIZER])  # filters do not see the variables of an authorizer
        self.min_bytes = config[settings.COMPRESS_MIN_SIZE]
        self.makers = makers(config[settings.COMPRESS_CODINGS])
        patterns = "|".join(
            re.escape(each).replace(r"\*", "[^;]*") for each in config[settings.COMPRESS_TYPES]
        )
        self.pattern = re.compile(rf"(?:{patterns})\s*(?:;.*)?" if patterns else r"(?!)", re.IGNORECASE)
        self.types: BoundedDict[str, bool] = BoundedDict(MAX_CACHED_RESULTS)
        self.choices: BoundedDict[str, str] = BoundedDict(MAX_CACHED_RESULTS)
        self.streams: set[Encoded] = set()

    # Which coding

    def choice(self, request: Request) -> str:
        """Return the coding that a client gets, "" for none."""
        accepts = request.values.get("accept-encoding")
        if accepts is None or (request.conditional and needs_plain(request)):
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
        if response.length is not None and response.length < self.min_bytes:
            return False
        kind = ""
        # A response that a content cache gives to all clients contains no secret.
        public = isinstance(
            response, FileResponse if self.compresses == "files" else (FileResponse, StorableResponse)
        )
        harmless = public or self.compresses == "all"
        if not harmless and (self.compresses == "files" or self.guarded or identifies_visitor(request, io)):
            return False
        for field_name, value in response.fields:
            name = field_name.lower()
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
        """Return the inner handler's response, perhaps compressed. Raises the inner handler's exceptions."""
        asked = plain_tags(request) if request.conditional else request
        response = await self.inner.respond(asked, io)
        return None if response is None else await self.finish(request, response, io)

    async def finish(self, request: Request, response: Response, io: Stream) -> Response:
        """Return the response for the client: compressed, or with Vary, or unchanged."""
        if isinstance(response, StorableResponse):
            try:
                return response.variants[self.choice(request)]
            except KeyError:
                pass
        if response.status == 304:
            return for_client_with_copy(request, response, self.choice(request))
        if not self.suits(request, response, io):
            if isinstance(response, StorableResponse):
                response.variants.update(dict.fromkeys(("", *self.makers), response))
            return response
        coding = self.choice(request)
        if isinstance(response, StorableResponse):
            return await self.variant(response, coding, io)
        if not coding:
            return response.with_fields(with_vary(response.fields, "Accept-Encoding"))
        return await self.encoded(request, response, coding, io)

    async def variant(self, response: StorableResponse, coding: str, io: Stream) -> Response:
        """Return the variant of a kept response for a coding ("": the plain body), and store it if there is room.

        The plain body is also the variant of a coding that does not make it shorter.
        """
        assert isinstance(response.body, bytes)
        body = await self.whole(coding, response.body, io) if coding else response.body
        if coding and len(body) < len(response.body):
            found = StorableResponse(
                response.status, fields_of(response.fields, coding), body, reason=response.reason
            )
        else:
            fields = with_vary(response.fields, "Accept-Encoding")
            found = StorableResponse(response.status, fields, response.body, reason=response.reason)
        found.prepare_variants(response.take_room)
        # A variant with the plain body needs no more memory: the cache has these bytes already.
        if response.take_room(len(body) if found.body is body and coding else 0):
            response.variants[coding] = found
        return found

    async def whole(self, coding: str, body: bytes, io: Stream) -> bytes:
        """Return the encoded form of a whole body."""
        make = self.makers[coding]
        return encode(make, body) if len(body) <= INLINE_BYTES else await io.call(encode, make, body)

    async def encoded(self, request: Request, response: Response, coding: str, io: Stream) -> Response:
        """Return a response with a coding. A short body of bytes is encoded at once, any other piece by piece."""
        body = response.body
        if type(body) is bytes and len(body) <= MAX_WHOLE_BYTES and response.length == len(body):
            whole = await self.whole(coding, body, io)
            fields = fields_of(response.fields, coding)
            return Response(response.status, fields, whole, reason=response.reason, cause=response.cause)
        if request.version == (1, 0) or len(self.streams) >= MAX_STREAMS:
            # HTTP/1.0 has no chunks: only the close would end the body, and a client could not notice an early end.
            return response.with_fields(with_vary(response.fields, "Accept-Encoding"))
        # The response to HEAD has no Content-Length, since ewe would have to encode the body: RFC 9110 section
        # 9.3.2.
        source = Encoded(response, self.makers[coding], io, self.streams)
        found = Response(response.status, fields_of(response.fields, coding), source, reason=response.reason)
        found.cause = response.cause
        source.sent_response = found
        return found


def needs_plain(request: Request) -> bool:
    """Return whether a request needs the plain representation: for a range, or for the strong tag of If-Match."""
    values = request.values
    return "range" in values or "if-range" in values or "if-match" in values


def identifies_visitor(request: Request, io: Stream) -> bool:
    """Return whether a request identifies its visitor. A program's response may then contain a secret."""
    values = request.values
    return "cookie" in values or "authorization" in values or not VISITOR.isdisjoint(io.variables)


def remember(memory: BoundedDict[str, T], key: str, value: T) -> None:
    """Cache the result for a text, if the text is short."""
    if len(key) <= MAX_CACHED_KEY_CHARS:
        memory[key] = value


# Entity tags


def plain_tags(request: Request) -> Request:
    """Add the plain tag of each compressed tag to If-None-Match, for the features; return the request."""
    value = request.values.get("if-none-match")
    if value is None or "-" not in value:
        return request
    more = [tag for opaque in ENCODED_TAG.findall(value) if (tag := f'W/"{opaque}"') not in value]
    if not more:  # no compressed tag, or the filter of another location has added the plain tags already
        return request
    fields = tuple(field for field in request.fields if field[0] != "if-none-match")
    return with_fields(request, (*fields, ("if-none-match", ", ".join((value, *more)))))


def for_client_with_copy(request: Request, response: Response, coding: str) -> Response:
    """Return a 304 with Vary, and with the tag of the copy that the client has: RFC 9110 section 15.4.5.

    The feature that made the 304 knows only the plain tag "abc". The client may have the copy W/"abc-gzip".
    coding: the one in which the client would get the response now, "" for none.
    """
    plain_tag = (response.get("etag") or "").removeprefix("W/")
    fields = with_vary(response.fields, "Accept-Encoding")
    value = request.values.get("if-none-match") or ""
    client_tags = entity_tags(value)
    for opaque in ENCODED_TAG.findall(value):
        if (added_tag := f'W/"{opaque}"') in client_tags:
            client_tags.remove(added_tag)  # plain_tags() has added it, in the filter of another location
    if plain_tag and plain_tag not in client_tags and "W/" + plain_tag not in client_tags:
        # The client may have copies in several codings: the tag of the one that it would get now comes first.
        for each in (coding, *NAMES):
            if each and (coded_tag := weak(plain_tag, each)) in client_tags:
                fields = tuple((name, coded_tag if name.lower() == "etag" else text) for name, text in fields)
                break
    return Response(304, fields, reason=response.reason)


def weak(tag: str, coding: str) -> str:
    """Return the tag of a compressed representation: "abc" -> W/"abc-gzip"."""
    return f'W/{tag.removeprefix("W/")[:-1]}-{coding}"'


def fields_of(fields: tuple[tuple[str, str], ...], coding: str) -> tuple[tuple[str, str], ...]:
    """Return the fields of a response with a coding: its tag, Content-Encoding, Vary, and no Accept-Ranges."""
    found = []
    for name, value in fields:
        lower_name = name.lower()
        if lower_name == "etag" and value.endswith('"'):
            value = weak(value, coding)
        if lower_name != "accept-ranges":
            found.append((name, value))
    return with_vary((*found, ("Content-Encoding", coding)), "Accept-Encoding")


# Bodies that come piece by piece


class Encoded(Source):
    """The body of a response, encoded piece by piece. sent_response: has this body; its cause goes to the log."""

    sent_response: Response

    def __init__(self, plain: Response, make: CoderMaker, io: Stream, streams: set[Encoded]) -> None:
        """plain: the response to encode; it is closed with this body. streams: the bodies that are being sent."""
        self.plain = plain
        self.coder = make(plain.length)
        self.io = io
        self.streams = streams
        self.left_bytes = plain.length  # of the plain body that are still to come; None if unknown
        self.live = isinstance(plain.body, Source)  # a piece comes when a program writes it
        self.source = plain.body if isinstance(plain.body, Source) else BodySource(plain.body)
        self.part = memoryview(b"")  # the bytes of a piece that are not encoded yet
        self.ended = False
        streams.add(self)

    async def close(self) -> None:
        """Count the body no longer, and release the resources of the plain one."""
        self.streams.discard(self)
        await self.plain.close()

    async def receive(self) -> bytes:
        """Return the next encoded bytes; b"" at the end. Raises HTTPError if the plain body ends early.

        A coder may take a whole part and return nothing, because it collects bytes for a better compression.
        receive() must not return b"" before the end, so it then encodes the next part.
        """
        while not self.ended:
            part = await self.next_part()
            if not part:
                if self.left_bytes:
                    raise HTTPError(502, f"{self.left_bytes} bytes of its Content-Length did not come")
                self.ended = True
                return self.coder.finish()
            # All bytes that the program has written are encoded now, and the program may pause. The client should
            # get these bytes: flush() returns all of them, while add() may keep some for later.
            encode_part = self.coder.flush if self.live and not self.part else self.coder.add
            data = encode_part(part) if len(part) <= INLINE_BYTES else await self.io.call(encode_part, part)
            await self.io.share(len(part))
            if data:
                return data
        return b""

    async def next_part(self) -> bytes:
        """Return at most PART_BYTES of the plain body; b"" at its end."""
        if not self.part:
            self.part = memoryview(await self.source.receive())
        if self.left_bytes is not None:
            if len(self.part) > self.left_bytes:
                self.part = self.part[: self.left_bytes]
                self.sent_response.cause = f"more than the {self.plain.length} bytes of its Content-Length"
            self.left_bytes -= min(len(self.part), PART_BYTES)
        part, self.part = bytes(self.part[:PART_BYTES]), self.part[PART_BYTES:]
        return part


def middleware(plan: Plan, config: Config) -> Compression:
    """Return the middleware for the settings of a location. Locations with equal settings share one."""
    key = (Compression, *(config[setting] for setting in settings.SETTINGS))
    found: Compression = plan.shared(key, lambda: Compression(config))
    return found


FEATURE = Feature("compression", settings=settings.SETTINGS, middleware=middleware)
