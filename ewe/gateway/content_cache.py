"""The content cache: what programs answer is kept, if their Cache-Control allows it (setting content-cache).

    request ─▶ kept? ──fresh──────────────────────────────────────────────▶ the copy, with its Age
                 │───stale, with ETag or Last-Modified─▶ program: 304 ─────▶ the copy, fresh again
                 └───none──────────────────────────────▶ program: 200 ─────▶ the client, and the cache

It is a shared cache inside the origin server. Which responses it may keep, and for whom, is RFC 9111, in
ewe.http.caching. This file has the memory and the order of events.

**Where it stands**: around each feature that runs programs, behind authorizers and the guards of a location. What
they refuse never reaches it. Files are not its business: they have their own cache.

**The key** is the scheme, the host, the target exactly as it was sent, what a rewrite has made of it, the feature,
what an authorizer or an error page has said (REDIRECT_STATUS), and the version of HTTP; then the values of the
fields that Vary names. Two spellings of one path are two keys, because a program sees REQUEST_URI.

**A copy is made by a plain request only**: one with no field by which a program might choose its response, apart
from those of Vary (unkeyed() in ewe.http.caching). Other requests run the program, and change nothing here. They
may get a copy: it says what each plain visitor is told. And a stranger cannot run the program more often by adding
a field.

**One program for many clients**: if a copy has expired and a hundred clients ask, the first request runs the
program, and the others wait for its copy (a bell each). They do not wait for its client: if that reads slowly, one
of them runs the program again. A response that must not be kept lets all of them go on.
ewe remembers its key for a while, so that such requests do not wait for each other again.

**Memory** is bounded by the setting, for each process. What was not asked for the longest time goes first. A model
with a process for each connection (fork) has a cache for each connection, which is of little use.

What can go wrong: a program is changed, and its old output is sent until its lifetime ends. A POST, PUT or DELETE
that succeeds drops the copies of its URL, and of the URL in its Location, in its own process only (section 4.4).

Read next: content_copies.py (one copy), ewe.http.caching (the rules).
"""

from __future__ import annotations

import time
from _thread import allocate_lock
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from ewe.bounded import TimedCache
from ewe.gateway.content_copies import URL, Copy, Key, directives_of, is_fresh, validating
from ewe.http.caching import (
    directives,
    is_personal,
    lifetime,
    may_store,
    selected,
    selecting,
    unkeyed,
)
from ewe.http.error_pages import error_page
from ewe.http.messages import (
    FileResponse,
    Request,
    Response,
    Source,
)
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.streams.base import Stream
    from ewe.streams.bells import Bell

SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "REPORT", "SEARCH"})
PART_OF_ROOM = 8  # no copy takes more than this part of the memory
MAX_COPIES = 16  # of one URL, for different values of the fields in Vary
PATIENCE = 10.0  # seconds that a request waits for the program that another one runs
SLOW = 0.5  # seconds that its client may take for the body, if others wait
NOT_KEPT_S = 60.0  # for which a key is remembered whose response must not be kept
MAX_NOT_KEPT = 1024
OF_VISITOR = frozenset({b"REMOTE_USER", b"AUTH_TYPE", b"HTTP_AUTHORIZATION"})
Ask = Callable[[Request], Awaitable["Response | None"]]


class Flight:
    """A program that runs for one request. waiting: the bells of those that want its output too.

    recorder: the body that is being sent; None while the program has not answered. handed: when its client was
    given the last piece, 0.0 while the program is asked for the next one. taken: seconds that the client took for
    the pieces before.
    """

    def __init__(self) -> None:
        self.waiting: list[Bell] = []
        self.recorder: Recorder | None = None
        self.handed = 0.0
        self.taken = 0.0

    def mark(self, handed: float) -> None:
        """Note when the client is given a piece; 0.0: it has taken the piece."""
        if self.handed:
            self.taken += time.monotonic() - self.handed
        self.handed = handed

    def taken_over(self) -> bool:
        """Return whether the client reads too slowly for those that wait; the caller then runs the program."""
        now = time.monotonic()
        if self.taken + now - (self.handed or now) < SLOW:
            return False
        self.recorder, self.handed, self.taken = None, 0.0, 0.0
        return True


class ContentCache:
    """Keeps responses of programs, in at most `room` bytes."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.most = room // PART_OF_ROOM
        self.taken = 0
        self.copies: dict[URL, list[Copy]] = {}  # those that were asked for last come last
        self.flights: dict[Key, Flight] = {}
        self.not_kept: TimedCache[Key, bool] = TimedCache(MAX_NOT_KEPT, NOT_KEPT_S)
        self.lock = allocate_lock()

    # An answer

    async def answer(self, place: object, request: Request, io: Stream, ask: Ask) -> Response | None:
        """Return a copy, or what `ask` returns; None if that passes the request on. Raises what `ask` raises.

        place: the feature that answers; each has its own copies.
        """
        if "upgrade" in request.values:  # a WebSocket, perhaps: its answer takes as long as the connection
            return await ask(request)
        url = (io.scheme, request.host.lower(), io.server, request.target)
        key = (url, request.path, request.query, id(place), said_by_others(io.variables), request.version)
        if request.method not in ("GET", "HEAD") or request.length != 0:
            response = await ask(request)
            if request.method not in SAFE and response is not None and response.status < 400:
                self.invalidate(url, response)
            return response
        personal = is_personal(request, io.variables)
        wishes = directives(request.values.get("cache-control") or request.values.get("pragma"))
        copy = self.find(key, request)
        why = "stale" if copy is not None else "vary-miss" if url in self.copies else "uri-miss"
        if (
            "if-match" in request.values
            or "if-unmodified-since" in request.values
            or not may_use(copy, personal=personal)
        ):
            copy, why = None, "bypass"
        elif copy is not None and is_fresh(copy, wishes):
            return copy.respond(request, f"ewe; hit; ttl={copy.lifetime - copy.age()}")
        elif copy is not None and copy.age() < copy.lifetime:
            why = "request"
        if "only-if-cached" in wishes:
            return error_page(504, "only-if-cached, and no fresh copy is kept")
        flight = None
        odd = unkeyed(request, io.scheme, io.server[1], io.connected is not None and io.connected.trusted)
        if (
            why in ("uri-miss", "stale")
            and request.method == "GET"
            and not personal
            and (not odd or (copy is not None and odd.issubset(copy.names)))
        ):
            flight = self.begun(key)
            if flight is None:
                landed, flight = await self.waited(key, io)
                found = self.find(key, request) if landed else None
                if found is not None and is_fresh(found, wishes) and may_use(found, personal=personal):
                    return found.respond(request, f"ewe; hit; ttl={found.lifetime - found.age()}; collapsed")
        recorder = None
        try:
            response = await self.forward(key, request, copy, why, ask, odd, personal=personal)
            if response is not None and isinstance(response.body, Recorder):
                recorder = response.body
                recorder.flight = flight
                if flight is not None:
                    flight.recorder = recorder
            return response
        finally:
            if recorder is None:
                self.land(key, flight)

    async def forward(
        self,
        key: Key,
        request: Request,
        copy: Copy | None,
        why: str,
        ask: Ask,
        odd: frozenset[str],
        *,
        personal: bool,
    ) -> Response | None:
        """Ask the program, to validate a copy if there is one, and keep its response if that is allowed.

        why: as in Cache-Status. personal: the request says who asks. odd: fields of the request that forbid to keep
        the response, unless Vary names them. A 304 changes the fields of a copy, so a request with such a field
        does not validate one.
        """
        asked = request
        if (
            copy is not None
            and request.method == "GET"
            and (copy.etag or copy.modified is not None)
            and odd.issubset(copy.names)
        ):
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
            fresh = copy.freshened(request, response, personal=personal)
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
        return self.kept(key, request, response, f"ewe; fwd={why}", odd, personal=personal)

    def kept(
        self,
        key: Key,
        request: Request,
        response: Response,
        status: str,
        odd: frozenset[str],
        *,
        personal: bool,
    ) -> Response:
        """Return a program's response with Cache-Status, and keep it if that is allowed, once it is complete.

        odd, personal: as in forward().
        """
        if request.method != "GET":
            return with_status(response, status)
        told = directives_of(response)
        usable = lifetime(told, response, time.time())
        if usable == 0 and not (response.get("etag") or response.get("last-modified")):
            usable = None  # it could never be used
        size, body = response.length, response.body
        if (
            usable is None
            or (size or 0) > self.most
            or not may_store(request, response, told, personal=personal)
        ):
            if response.status < 500 and not odd:
                self.pass_on(key)
            return with_status(response, status)
        names = selecting(response) or ()
        if unnamed := odd.difference(names):
            return with_status(response, f'{status}; detail="{min(unnamed)}"')
        if isinstance(body, Source):
            # The fields are kept as the program has said them.
            plain = Response(response.status, response.fields, reason=response.reason)
            response.body = Recorder(self, key, request, plain, body, names)
        elif isinstance(body, bytes) and size == len(body):
            stored = self.store(Copy(key, request, response, body, names, told))
            status += "; stored" if stored else ""
        return with_status(response, status)

    # Programs that run: the others wait

    def begun(self, key: Key) -> Flight | None:
        """Return the flight of a request that is the first to have the program run; None if another one has."""
        with self.lock:
            if self.not_kept.get(key, False):
                return Flight()
            if key in self.flights:
                return None
            flight = self.flights[key] = Flight()
            return flight

    async def waited(self, key: Key, io: Stream) -> tuple[bool, Flight | None]:
        """Wait for the program that another request has run; return whether it has ended.

        If its client reads so slowly that the others would wait for the client, one of them takes the flight over:
        return it.
        """
        bell = io.bell()
        try:
            with self.lock:
                flight = self.flights.get(key)
                if flight is None:
                    return True, None
                flight.waiting.append(bell)
            try:
                until = time.monotonic() + PATIENCE
                while (left := until - time.monotonic()) > 0:
                    if await bell.heard(min(left, SLOW)):
                        return True, None
                    with self.lock:
                        if flight.taken_over():
                            return False, flight
                return False, None
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
            self.not_kept[key] = True

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

    def store(self, copy: Copy) -> bool:
        """Keep a copy in place of the one that the same fields select; return whether it is not too large.

        The least recently used copies make room.
        """
        if copy.cost > self.most:
            return False
        url = copy.key[0]
        same = (copy.key, copy.names, copy.values)
        with self.lock:
            old = self.copies.pop(url, [])
            copies = [copy, *(each for each in old if (each.key, each.names, each.values) != same)]
            del copies[MAX_COPIES:]
            self.copies[url] = copies
            self.taken += sum(each.cost for each in copies) - sum(each.cost for each in old)
            self.not_kept.forget(copy.key)
            while self.taken > self.room:
                oldest = next(iter(self.copies))
                self.taken -= sum(each.cost for each in self.copies.pop(oldest))
        return True

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


def said_by_others(variables: Mapping[bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
    """Return the variables that an authorizer, a location or an error page has added, without those of a visitor.

    A page may depend on each of them. With a visitor's, is_personal() decides.
    """
    if not variables:
        return ()
    return tuple(sorted(each for each in variables.items() if each[0] not in OF_VISITOR))


def may_use(copy: Copy | None, *, personal: bool) -> bool:
    """Return whether this client may get a copy. One who says who asks gets only copies that are for everybody."""
    return copy is None or copy.shared or not personal


def with_status(response: Response, status: str) -> Response:
    """Return a response with Cache-Status (RFC 9211); a cache in front of a program has said its own before."""
    return response.with_fields((*response.fields, ("Cache-Status", status)))


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
        self.mark(0.0)
        piece = await self.body.receive()
        if not self.keeps:
            return piece
        self.mark(time.monotonic())
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

    def mark(self, handed: float) -> None:
        """Note for those that wait when the client is given a piece; 0.0: it has taken the piece."""
        if self.flight is not None and self.flight.recorder is self:
            self.flight.mark(handed)

    def forget(self) -> None:
        """Keep nothing more, and let those go on that wait."""
        self.keeps = False
        self.pieces = []
        if self.flight is not None and self.flight.recorder is self:
            self.cache.land(self.key, self.flight)

    async def close(self) -> None:
        self.forget()
        await self.body.close()
