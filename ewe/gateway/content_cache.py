"""The content cache: what programs answer is kept, if their Cache-Control allows it (setting content-cache).

    request ─▶ kept? ──fresh──────────────────────────────────────────────▶ the copy, with its Age
                 │───stale, with ETag or Last-Modified─▶ program: 304 ─────▶ the copy, fresh again
                 └───none──────────────────────────────▶ program: 200 ─────▶ the client, and the cache

It is a shared cache inside the origin server. Which responses it may keep, and for whom, is RFC 9111, in
ewe.http.caching. This file has the memory and the order of events.

**Where it stands**: around each feature that runs programs, behind authorizers and the deciders of a location. What
they refuse never reaches it. Files are not its business: they have their own cache.

**The key** is the scheme, the host, the target exactly as it was sent, what a rewrite has made of it, and the
feature; then the values of the fields that Vary names. Two spellings of one path are two keys, because a program sees REQUEST_URI.

**One program for many clients**: if a copy has expired and a hundred clients ask, the first request runs the
program, and the others wait for its copy (a bell each). A response that must not be kept lets all of them go on.
ewe remembers its key for a while, so that such requests do not wait for each other again.

**Memory** is bounded by the setting, for each process. What was not asked for the longest time goes first. A model
with a process for each connection (fork) has a cache for each connection, which is of little use.

What can go wrong: a program is changed, and its old output is sent until its lifetime ends. A POST, PUT or DELETE
that succeeds drops the copies of its URL, and of the URL in its Location, in its own process only (section 4.4).

Read next: ewe.http.caching.
"""

from __future__ import annotations

import time
from _thread import allocate_lock
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from ewe.http import conditional
from ewe.http.caching import (
    directives,
    is_keyed,
    is_personal,
    is_shared,
    lifetime,
    may_store,
    seconds,
    selected,
    selecting,
)
from ewe.http.dates import parse_date
from ewe.http.error_pages import error_page
from ewe.http.messages import (
    CONDITIONS,
    FileResponse,
    KeptResponse,
    Request,
    Response,
    Source,
    with_fields,
    with_fields_of,
)
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.features.base import Feature
    from ewe.streams.base import Stream
    from ewe.streams.bells import Bell

SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "REPORT", "SEARCH"})
COST = 2048  # bytes that a copy takes besides its body and its fields
PART_OF_ROOM = 8  # no copy takes more than this part of the memory
MAX_COPIES = 16  # of one URL, for different values of the fields in Vary
PATIENCE = 10.0  # seconds that a request waits for the program that another one runs
NOT_KEPT = 60.0  # seconds for which a key is remembered whose response must not be kept
MAX_NOT_KEPT = 1024
# Fields of a 304: RFC 9110 section 15.4.5
OF_304 = frozenset({"etag", "cache-control", "content-location", "expires", "vary", "last-modified"})
STRICT = frozenset({"must-revalidate", "proxy-revalidate", "s-maxage", "no-cache"})  # RFC 9111 section 4.2.4
# A 304 says nothing of the body, and has none.
NOT_OF_304 = frozenset({"content-encoding", "content-range", "content-type", "content-length"})
# Scheme, host, the server's address and the target; then what a rewrite made of it, and the feature
URL = tuple[str, str, tuple[str, int], str]
Key = tuple[URL, str, str | None, int]
Ask = Callable[[Request], Awaitable["Response | None"]]


class Copy:
    """One kept response."""

    def __init__(
        self,
        key: Key,
        request: Request,
        response: Response,
        body: bytes,
        names: tuple[str, ...],
        told: dict[str, str],
    ) -> None:
        self.key = key
        self.status, self.reason, self.body = response.status, response.reason, body
        self.names, self.values = names, selected(names, request)
        self.began = time.monotonic()
        self.fields = tuple(
            each for each in response.fields if each[0].lower() not in ("age", "cache-status")
        )
        self.cost = COST + 2 * len(body) + sum(len(name) + len(value) for name, value in self.fields)
        self.age_before = seconds(response.get("age"))
        self.lifetime = lifetime(told, response, time.time()) or 0
        self.shared = is_shared(told)
        strict = not STRICT.isdisjoint(told)
        self.grace = 0 if strict else seconds(told.get("stale-if-error"))  # RFC 5861 section 4
        self.etag = response.get("etag") or ""
        self.modified = parse_date(response.get("last-modified") or "")
        self.made: tuple[str, KeptResponse] | None = None

    def age(self) -> int:
        """Return how old the response is, in seconds: section 4.2.3."""
        return self.age_before + int(time.monotonic() - self.began)

    def freshened(self, request: Request, response: Response) -> Copy | None:
        """Return a new copy with the fields of a 304, which replace those of the same names (section 4.3.4).

        None if the 304 says that the response may not be kept any more.
        """
        new = {name.lower() for name, _ in response.fields} - NOT_OF_304
        fields = [field for field in self.fields if field[0].lower() not in new]
        fields += [field for field in response.fields if field[0].lower() in new]
        whole = Response(self.status, fields, self.body, reason=self.reason)
        told = directives_of(whole)
        return (
            Copy(self.key, request, whole, self.body, self.names, told)
            if may_store(request, whole, told)
            else None
        )

    def respond(self, request: Request, status: str) -> Response:
        """Return the response that a client gets; 304 if it has it already. status: for Cache-Status."""
        more = (("Age", str(self.age())), ("Cache-Status", status))
        if request.conditional and self.status == 200:
            modified = float("inf") if self.modified is None else self.modified
            if conditional.outcome(request, self.etag.removeprefix("W/"), modified) == 304:
                return Response(304, (*(each for each in self.fields if each[0].lower() in OF_304), *more))
        said = more[0][1] + status
        if self.made is None or self.made[0] != said:
            response = KeptResponse(self.status, (*self.fields, *more), self.body, reason=self.reason)
            response.variants, response.keep = {}, self.has_room
            self.left = len(self.body)
            self.made = said, response
        return self.made[1]

    def has_room(self, size: int) -> bool:
        """Return whether a compressed body may be kept beside this one; the cost of a copy counts them together."""
        self.left -= size
        return self.left >= 0


class Flight:
    """A program that runs for one request. waiting: the bells of those that want its output too."""

    def __init__(self) -> None:
        self.waiting: list[Bell] = []


class ContentCache:
    """Keeps responses of programs, in at most `room` bytes."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.most = room // PART_OF_ROOM
        self.taken = 0
        self.copies: dict[URL, list[Copy]] = {}  # those that were asked for last come last
        self.flights: dict[Key, Flight] = {}
        self.not_kept: dict[Key, float] = {}
        self.lock = allocate_lock()

    # An answer

    async def answer(self, place: object, request: Request, io: Stream, ask: Ask) -> Response | None:
        """Return a copy, or what `ask` returns; None if that passes the request on. Raises what `ask` raises.

        place: the feature that answers; each has its own copies.
        """
        url = (io.scheme, request.host.lower(), io.server, request.target)
        key = (url, request.path, request.query, id(place))
        if request.method not in ("GET", "HEAD") or request.length != 0:
            response = await ask(request)
            if request.method not in SAFE and response is not None and response.status < 400:
                self.invalidate(url, response)
            return response
        wishes = directives(request.values.get("cache-control") or request.values.get("pragma"))
        copy = self.find(key, request)
        why = "stale" if copy is not None else "vary-miss" if url in self.copies else "uri-miss"
        if (
            "if-match" in request.values
            or "if-unmodified-since" in request.values
            or not may_use(copy, request)
        ):
            copy, why = None, "bypass"
        elif copy is not None and is_fresh(copy, wishes):
            return copy.respond(request, f"ewe; hit; ttl={copy.lifetime - copy.age()}")
        elif copy is not None and copy.age() < copy.lifetime:
            why = "request"
        if "only-if-cached" in wishes:
            return error_page(504, "only-if-cached, and no fresh copy is kept")
        flight = None
        if why in ("uri-miss", "stale") and request.method == "GET" and not is_personal(request):
            flight = self.begun(key)
            if flight is None and await self.waited(key, io):
                found = self.find(key, request)
                if found is not None and is_fresh(found, wishes) and may_use(found, request):
                    return found.respond(request, f"ewe; hit; ttl={found.lifetime - found.age()}; collapsed")
        recorder = None
        trusted = io.connected is not None and io.connected.trusted
        try:
            response = await self.forward(key, request, copy, why, ask, trusted)
            if response is not None and isinstance(response.body, Recorder):
                recorder = response.body
                recorder.flight = flight
            return response
        finally:
            if recorder is None:
                self.land(key, flight)

    async def forward(
        self, key: Key, request: Request, copy: Copy | None, why: str, ask: Ask, trusted: bool
    ) -> Response | None:
        """Ask the program, to validate a copy if there is one, and keep its response if that is allowed.

        why: as in Cache-Status. trusted: a trusted proxy has sent the request.
        """
        asked = request
        if copy is not None and request.method == "GET" and (copy.etag or copy.modified is not None):
            asked = validating(request, copy)
        try:
            response = await ask(asked)
        except HTTPError as error:
            if copy is not None and error.status >= 500 and copy.age() - copy.lifetime < copy.grace:
                return copy.respond(request, f"ewe; hit; fwd={why}; fwd-status={error.status}")
            raise
        if response is None or response.target is not None or isinstance(response, FileResponse):
            return response
        if copy is not None and asked is not request and response.status == 304:
            await response.close()
            fresh = copy.freshened(request, response)
            if fresh is not None:
                self.store(fresh)
                return fresh.respond(request, f"ewe; hit; fwd={why}; fwd-status=304")
            self.drop([key[0]])
            response = await ask(request)
            if response is None:
                return None
        elif copy is not None and response.status >= 500 and copy.age() - copy.lifetime < copy.grace:
            await response.close()
            return copy.respond(request, f"ewe; hit; fwd={why}; fwd-status={response.status}")
        return self.kept(key, request, response, f"ewe; fwd={why}", trusted)

    def kept(self, key: Key, request: Request, response: Response, status: str, trusted: bool) -> Response:
        """Return a program's response with Cache-Status, and keep it if that is allowed, once it is complete."""
        if request.method != "GET":
            return with_status(response, status)
        told = directives_of(response)
        usable = lifetime(told, response, time.time())
        if usable == 0 and not (response.get("etag") or response.get("last-modified")):
            usable = None  # it could never be used
        size, body = response.length, response.body
        if usable is None or (size or 0) > self.most or not may_store(request, response, told):
            if response.status < 500:
                self.pass_on(key)
            return with_status(response, status)
        names = selecting(response) or ()
        if not is_keyed(request, names, trusted):
            return with_status(response, status)
        if isinstance(body, Source):
            # The fields are kept as the program has said them.
            plain = Response(response.status, response.fields, reason=response.reason)
            response.body = Recorder(self, key, request, plain, body, names)
        elif isinstance(body, bytes) and size == len(body):
            self.store(Copy(key, request, response, body, names, told))
            status += "; stored"
        return with_status(response, status)

    # Programs that run: the others wait

    def begun(self, key: Key) -> Flight | None:
        """Return the flight of a request that is the first to have the program run; None if another one has."""
        with self.lock:
            if self.not_kept.get(key, 0.0) > time.monotonic():
                return Flight()
            if key in self.flights:
                return None
            flight = self.flights[key] = Flight()
            return flight

    async def waited(self, key: Key, io: Stream) -> bool:
        """Wait for the program that another request has run; return False if it takes too long."""
        bell = io.bell()
        try:
            with self.lock:
                flight = self.flights.get(key)
                if flight is None:
                    return True
                flight.waiting.append(bell)
            try:
                return await bell.heard(PATIENCE)
            finally:
                with self.lock:
                    if bell in flight.waiting:
                        flight.waiting.remove(bell)
        finally:
            bell.close()

    def land(self, key: Key, flight: Flight | None) -> None:
        """Wake those that wait for a program's output."""
        if flight is None:
            return
        with self.lock:
            if self.flights.get(key) is flight:
                del self.flights[key]
            while flight.waiting:
                flight.waiting.pop().ring()

    def pass_on(self, key: Key) -> None:
        """Remember that a response must not be kept, so that requests do not wait for each other."""
        with self.lock:
            if len(self.not_kept) >= MAX_NOT_KEPT:
                self.not_kept.clear()
            self.not_kept[key] = time.monotonic() + NOT_KEPT

    # Memory

    def find(self, key: Key, request: Request) -> Copy | None:
        """Return the copy that a request selects (section 4.1), the newest if there are several."""
        url = key[0]
        with self.lock:
            copies = self.copies.pop(url, None)
            if copies is None:
                return None
            self.copies[url] = copies
            for copy in copies:
                if copy.key == key and selected(copy.names, request) == copy.values:
                    return copy
        return None

    def store(self, copy: Copy) -> None:
        """Keep a copy in place of the one that the same fields select, and drop the least recently used ones."""
        if copy.cost > self.most:
            return
        url = copy.key[0]
        same = (copy.key, copy.names, copy.values)
        with self.lock:
            old = self.copies.pop(url, [])
            copies = [copy, *(each for each in old if (each.key, each.names, each.values) != same)]
            del copies[MAX_COPIES:]
            self.copies[url] = copies
            self.taken += sum(each.cost for each in copies) - sum(each.cost for each in old)
            self.not_kept.pop(copy.key, None)
            while self.taken > self.room:
                oldest = next(iter(self.copies))
                self.taken -= sum(each.cost for each in self.copies.pop(oldest))

    def drop(self, urls: Iterable[URL]) -> None:
        """Drop all copies of some URLs."""
        with self.lock:
            for url in urls:
                self.taken -= sum(each.cost for each in self.copies.pop(url, ()))

    def invalidate(self, url: URL, response: Response) -> None:
        """Drop what is kept of a URL that was changed, and of the one in Location on the same host: section 4.4."""
        scheme, host, server, target = url
        targets = {target}
        for name in ("location", "content-location"):
            value = response.get(name) or ""
            if value.lower().startswith(f"{scheme}://{host}/"):
                value = value[len(scheme) + 3 + len(host) :]
            if value.startswith("/"):
                targets.add(value.partition("#")[0])
        self.drop((scheme, host, server, each) for each in targets)


def directives_of(response: Response) -> dict[str, str]:
    """Return the directives of a response."""
    return directives(", ".join(value for own, value in response.fields if own.lower() == "cache-control"))


def may_use(copy: Copy | None, request: Request) -> bool:
    """Return whether a copy is for this client: one who says who asks gets only what is for everybody."""
    return copy is None or copy.shared or not is_personal(request)


def is_fresh(copy: Copy, wishes: dict[str, str]) -> bool:
    """Return whether a copy may be used without asking the program. wishes: the client's (section 5.2.1)."""
    age = copy.age()
    if "no-cache" in wishes or ("max-age" in wishes and age > seconds(wishes["max-age"])):
        return False
    return age + seconds(wishes.get("min-fresh")) < copy.lifetime


def validating(request: Request, copy: Copy) -> Request:
    """Return the request that asks whether a copy is still true: section 4.3.1."""
    fields = [field for field in request.fields if field[0] not in CONDITIONS]
    if copy.etag:
        fields.append(("if-none-match", copy.etag))
    modified = next((value for name, value in copy.fields if name.lower() == "last-modified"), None)
    if modified is not None:
        fields.append(("if-modified-since", modified))
    return with_fields(request, tuple(fields))


def with_status(response: Response, status: str) -> Response:
    """Return a response with Cache-Status (RFC 9211); a cache in front of a program has said its own before."""
    return with_fields_of(response, (*response.fields, ("Cache-Status", status)))


class Recorder(Source):
    """The body of a response that is kept once all of it has been sent. flight: of the request, if others wait."""

    flight: Flight | None = None

    def __init__(
        self,
        cache: ContentCache,
        key: Key,
        request: Request,
        response: Response,
        body: Source,
        names: tuple[str, ...],
    ) -> None:
        """response: status and fields to keep."""
        self.cache, self.key, self.request, self.response = cache, key, request, response
        self.body, self.names = body, names
        self.length = body.length
        self.pieces: list[bytes] = []
        self.size = 0
        self.keeps = True

    async def receive(self) -> bytes:
        piece = await self.body.receive()
        if not self.keeps:
            return piece
        if piece:
            self.pieces.append(bytes(piece))
            self.size += len(piece)
            if self.size > self.cache.most:
                self.cache.pass_on(self.key)
                self.forget()
        else:
            if self.length in (None, self.size):
                told = directives_of(self.response)
                copy = Copy(self.key, self.request, self.response, b"".join(self.pieces), self.names, told)
                self.cache.store(copy)
            self.forget()
        return piece

    def forget(self) -> None:
        """Keep nothing more, and let those go on that wait."""
        self.keeps = False
        self.pieces = []
        self.cache.land(self.key, self.flight)

    async def close(self) -> None:
        self.forget()
        await self.body.close()


class CachedLead:
    """A lead of a location (ewe.sites.leads) whose responses are kept."""

    def __init__(self, inner: Any, cache: ContentCache) -> None:
        self.inner = inner
        self.cache = cache
        self.why: str = inner.why

    async def lead(self, request: Request, rest: str, found: Any, io: Stream) -> Response | None:
        """Answer with a copy, or ask the lead. Raises what the lead raises."""
        return await self.cache.answer(
            self, request, io, lambda asked: self.inner.lead(asked, rest, found, io)
        )


class Cached:
    """A feature whose responses are kept."""

    def __init__(self, feature: Feature, cache: ContentCache) -> None:
        self.feature = feature
        self.cache = cache

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer with a copy, or ask the feature. Raises what the feature raises."""
        return await self.cache.answer(self, request, io, lambda asked: self.feature.respond(asked, io))
