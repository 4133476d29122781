"""The content cache: ewe keeps responses of programs, if their Cache-Control allows it (setting content-cache).

    request ─▶ kept? ──fresh──────────────────────────────────────────────▶ the copy, with its Age
                 │───stale, with ETag or Last-Modified─▶ program: 304 ─────▶ the copy, fresh again
                 └───none──────────────────────────────▶ program: 200 ─────▶ the client, and the cache

It is a shared cache inside the origin server. RFC 9111 says which responses it may keep, and for which clients;
ewe.http.caching has these rules. This file has the memory and the order of events.

**Where it stands**: around each feature that runs programs, behind authorizers and the guards of a location. A
request that they refuse never reaches the cache. Files are not cached here: they have their own cache.

**The key** is the scheme, the host, the target exactly as it was sent, the path after a rewrite, the feature, the
variables that an authorizer or an error page has set (REDIRECT_STATUS), and the version of HTTP; then the values of
the fields that Vary names. Two spellings of one path are two keys, because a program sees REQUEST_URI.

**Only a plain request makes a copy**: one with no field by which a program might choose its response, apart from
those of Vary (unkeyed_fields() in ewe.http.caching). Other requests run the program, and change nothing here. They
may get a copy: it has the content that each plain visitor gets. Thus a stranger cannot run the program more often
by adding a field.

**One program for many clients**: if a copy has expired and a hundred clients ask, the first request runs the
program, and the others wait for its copy (InFlightRequest). They do not wait for its client: if that client reads
slowly, one of them runs the program again. If the response must not be kept, ewe remembers the key for a while:
later requests for it do not wait.

**Memory** is bounded by the setting, for each process. The least recently used copies are dropped first. A model
with a process for each connection (fork) has a cache for each connection, which is of little use.

Possible failure: a program is changed, and its old output is sent until its lifetime ends. A POST, PUT or DELETE
that succeeds drops the copies of its URL, and of the URL in its Location, in its own process only (section 4.4). A
response for which the program was asked before such a change may be of the time before it, and is not kept.

Read next: content_copies.py (one copy), ewe.http.caching (the rules).
"""

from __future__ import annotations

import math
import time
from _thread import allocate_lock
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ewe.bounded import TimedCache
from ewe.gateway.content_copies import URL, Copy, Key, directives_of, is_fresh, validation_request
from ewe.http.caching import (
    OF_VISITOR,
    directives,
    fields_in_vary,
    freshness_lifetime,
    is_personal,
    may_store,
    selecting_values,
    unkeyed_fields,
)
from ewe.http.error_pages import error_page
from ewe.http.messages import FileResponse, Request, Response, Source
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.streams.base import Stream
    from ewe.streams.wake_events import WakeEvent

SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "REPORT", "SEARCH"})
COPY_DIVISOR = 8  # no copy takes more than 1/8 of the memory
MAX_COPIES_OF_URL = 16  # for different values of the fields in Vary
SHARED_WAIT_S = 10.0  # seconds that a request waits for a program that another request runs
SLOW_CLIENT_S = 0.5  # seconds that a client may take to read the body while other requests wait for it
NOT_KEPT_S = 60.0  # how long a key is remembered if its response must not be kept
MAX_NOT_KEPT = 1024  # such keys in memory
MAX_CHANGED = 1024  # changed URLs in memory
HIT = "hit"  # a fresh copy answers: the word of Cache-Status (RFC 9211 section 2.1)
Ask = Callable[[Request], Awaitable["Response | None"]]


class Miss(NamedTuple):
    """A GET or HEAD request that no copy answers.

    ask: runs the program. copy, reason: the result of select(). unkeyed: fields of the request that forbid keeping
    the response, unless Vary names them. personal: the request identifies its user.
    """

    key: Key
    request: Request
    ask: Ask
    copy: Copy | None
    reason: str
    unkeyed: frozenset[str]
    personal: bool

    def is_plain(self) -> bool:
        """Return whether only the response can forbid to keep it.

        The request then has no credentials, no condition, no `no-store`, and no field of `unkeyed`.
        """
        if self.unkeyed or self.personal or self.request.conditional:
            return False
        return "no-store" not in directives(self.request.values.get("cache-control"))


class InFlightRequest:
    """An in-flight request: a program runs for it. waiting: the events that wake other requests, which want its
    output too.

    recorder: the body that is being sent; None while the program has not answered. handed_at: the time.monotonic()
    at which the client was given the last piece; None while the program is asked for the next one. client_s:
    seconds that the client took for the earlier pieces.
    """

    def __init__(self) -> None:
        self.waiting: list[WakeEvent] = []
        self.recorder: RecordedBody | None = None
        self.handed_at: float | None = None
        self.client_s = 0.0

    def note_piece_taken(self) -> None:
        """Note that the client has taken the last piece, if it was given one."""
        self.client_s = self.seconds_of_client()
        self.handed_at = None

    def seconds_of_client(self) -> float:
        """Return the seconds that the client has taken for all pieces until now."""
        handed_at = self.handed_at  # once: the client's thread may change it
        return self.client_s if handed_at is None else self.client_s + time.monotonic() - handed_at

    def take_over(self) -> bool:
        """Return whether the client reads too slowly for the waiting requests: the caller must run the program.

        The times of the slow client are forgotten: those of the caller's client begin.
        """
        if self.seconds_of_client() < SLOW_CLIENT_S:
            return False
        self.recorder, self.handed_at, self.client_s = None, None, 0.0
        return True

    def wake_others(self) -> None:
        """Wake the waiting requests. The caller has the lock of the cache."""
        while self.waiting:
            self.waiting.pop().set()


class ContentCache:
    """Keeps responses of programs, in at most `max_bytes` of memory (setting content-cache)."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.max_copy_bytes = max_bytes // COPY_DIVISOR
        self.used_bytes = 0
        self.copies: dict[URL, list[Copy]] = {}  # the most recently used come last
        self.in_flight: dict[Key, InFlightRequest] = {}
        self.not_kept: TimedCache[Key, bool] = TimedCache(MAX_NOT_KEPT, NOT_KEPT_S)
        # hash() of a URL, since clients choose long ones -> the time.monotonic() of its last change. All other URLs
        # count as changed at others_changed_at.
        self.changed_at: dict[int, float] = {}
        self.others_changed_at = -math.inf
        self.lock = allocate_lock()

    # An answer: RFC 9111 section 4

    async def answer(self, feature: object, request: Request, io: Stream, ask: Ask) -> Response | None:
        """Return a copy, or the response of `ask`; None if that passes the request on. Raises what `ask` raises.

        feature: the feature that answers; each has its own copies.
        """
        if "upgrade" in request.values:  # perhaps a WebSocket: its answer lasts as long as the connection
            return await ask(request)
        url = (io.scheme, request.host.lower(), io.server, request.target)
        if request.method not in ("GET", "HEAD") or request.length != 0:
            return await self.write_through(url, request, ask)
        variables = variables_of_site(io.variables)
        key = (url, request.path, request.query, id(feature), variables, request.version)
        personal = is_personal(request, io.variables)
        request_directives = directives(request.values.get("cache-control") or request.values.get("pragma"))
        copy, reason = self.select(key, request, request_directives, personal=personal)
        if copy is not None and reason == HIT:
            return copy.respond(request)
        if "only-if-cached" in request_directives:
            return error_page(504, "only-if-cached, and no fresh copy is kept")
        trusted = io.endpoints is not None and io.endpoints.trusted
        unkeyed = unkeyed_fields(request, io.scheme, io.server[1], trusted)
        miss = Miss(key, request, ask, copy, reason, unkeyed, personal=personal)
        if not may_collapse(miss):
            return await self.forward(miss)
        in_flight = self.begin_request(key)
        if in_flight is None:
            has_ended, in_flight = await self.wait_for_other_request(key, io)
            new_copy, new_reason = self.select(key, request, request_directives, personal=personal)
            if has_ended and new_copy is not None and new_reason == HIT:
                remaining_s = new_copy.lifetime_s - new_copy.age_s()
                return new_copy.respond(request, f"ewe; hit; ttl={remaining_s}; collapsed")
        return await self.forward_once(miss, in_flight)

    async def write_through(self, url: URL, request: Request, ask: Ask) -> Response | None:
        """Return the response to a request that no copy can answer. If it is unsafe, drop the copies of its URL.

        Source: RFC 9111 sections 4 and 4.4.
        """
        response = await ask(request)
        if request.method not in SAFE and response is not None and response.status < 400:
            self.invalidate(url, response)
        return response

    def select(
        self, key: Key, request: Request, request_directives: dict[str, str], *, personal: bool
    ) -> tuple[Copy | None, str]:
        """Return the copy that a request selects (section 4.1), and HIT if it answers (section 4.2).

        In place of HIT stands the reason to ask the program: uri-miss, vary-miss, stale, request or bypass, the
        words of Cache-Status (RFC 9211 section 2.2). The copy is None if there is none, or if this client must not
        get it.

        request_directives: section 5.2.1. personal: the request identifies its user.
        """
        values = request.values
        copy = self.find(key, request)
        may_use = copy is None or copy.shared or not personal
        if not may_use or "if-match" in values or "if-unmodified-since" in values:
            return None, "bypass"
        if copy is None:
            url, *_ = key
            return None, "vary-miss" if url in self.copies else "uri-miss"
        if is_fresh(copy, request_directives):
            return copy, HIT
        return copy, "request" if copy.age_s() < copy.lifetime_s else "stale"

    async def forward_once(self, miss: Miss, in_flight: InFlightRequest | None) -> Response | None:
        """Do what forward() does, once for this request and those that wait for the output of the program.

        in_flight: its waiting requests are woken once the copy is stored, or must not be. None: no request waits
        for this one.
        """
        recorder = None
        try:
            response = await self.forward(miss)
            if response is not None and isinstance(response.body, RecordedBody):
                recorder = response.body
                recorder.in_flight = in_flight
                if in_flight is not None:
                    in_flight.recorder = recorder
            return response
        finally:
            if recorder is None:
                self.end_request(miss.key, in_flight)

    async def forward(self, miss: Miss) -> Response | None:
        """Ask the program, to validate a copy if there is one, and keep its response if that is allowed."""
        request, copy = miss.request, miss.copy
        if copy is not None and may_validate(miss, copy):
            request = validation_request(request, copy)
        asked_at = time.monotonic()
        try:
            response = await miss.ask(request)
        except HTTPError as error:
            if copy is not None and copy.may_replace_error(error.status):
                return copy.respond(miss.request, f"ewe; hit; fwd={miss.reason}; fwd-status={error.status}")
            raise
        if response is None or response.target is not None or isinstance(response, FileResponse):
            return response
        if copy is not None and request is not miss.request and response.status == 304:
            return await self.freshen(miss, copy, response, asked_at)
        if copy is not None and copy.may_replace_error(response.status):
            await response.close()
            return copy.respond(miss.request, f"ewe; hit; fwd={miss.reason}; fwd-status={response.status}")
        return self.store_if_allowed(miss, response, asked_at)

    async def freshen(
        self, miss: Miss, copy: Copy, not_modified: Response, asked_at: float
    ) -> Response | None:
        """Return the copy with the fields of the program's 304, and keep it so (section 4.3.4).

        asked_at: see store(). If the 304 forbids keeping it, ask the program for the whole response.
        """
        await not_modified.close()
        fresh = copy.freshened(miss.request, not_modified, personal=miss.personal)
        if fresh is not None:
            self.store(fresh, asked_at, replaced=copy)
            return fresh.respond(miss.request, f"ewe; hit; fwd={miss.reason}; fwd-status=304")
        url, *_ = miss.key
        self.drop([url])
        asked_at = time.monotonic()
        response = await miss.ask(miss.request)
        return None if response is None else self.store_if_allowed(miss, response, asked_at)

    def store_if_allowed(self, miss: Miss, response: Response, asked_at: float) -> Response:
        """Return a program's response with Cache-Status. If section 3 allows it, keep it once it is complete.

        asked_at: see store().
        """
        status = f"ewe; fwd={miss.reason}"
        if miss.request.method != "GET":
            return with_status(response, status)
        cache_control = directives_of(response)
        if not self.may_keep(miss, response, cache_control):
            # An error may pass, and the response to any other request tells nothing about a plain one.
            if response.status < 500 and miss.is_plain():
                self.remember_not_kept(miss.key)
            return with_status(response, status)
        names = fields_in_vary(response) or ()
        if unnamed := miss.unkeyed.difference(names):
            return with_status(response, f'{status}; detail="{min(unnamed)}"')
        body = response.body
        if isinstance(body, Source):
            # Keep the fields as the program has sent them.
            plain = Response(response.status, response.fields, reason=response.reason)
            response.body = RecordedBody(self, miss.key, miss.request, plain, body, names, asked_at)
        elif isinstance(body, bytes) and response.length == len(body):
            copy = Copy(miss.key, miss.request, response, body, names, cache_control)
            stored = self.store(copy, asked_at)
            status += "; stored" if stored else ""
        return with_status(response, status)

    def may_keep(self, miss: Miss, response: Response, cache_control: dict[str, str]) -> bool:
        """Return whether the response to a GET may be kept, and whether the copy could ever be used.

        cache_control: the directives of the response.
        """
        # Seconds for which a copy may be used unasked; 0: only once the program has confirmed it by a 304
        usable_s = freshness_lifetime(cache_control, response, time.time())
        if usable_s is None or (
            usable_s == 0 and not (response.get("etag") or response.get("last-modified"))
        ):
            return False
        return (response.length or 0) <= self.max_copy_bytes and may_store(
            miss.request, response, cache_control, personal=miss.personal
        )

    # In-flight requests: the others wait

    def begin_request(self, key: Key) -> InFlightRequest | None:
        """Return the InFlightRequest of the first request that runs the program; None if another request runs it.

        If the response of this key must not be kept, each request gets an InFlightRequest for which no other
        request waits.
        """
        with self.lock:
            if self.not_kept.get(key, False):
                return InFlightRequest()
            if key in self.in_flight:
                return None
            in_flight = self.in_flight[key] = InFlightRequest()
            return in_flight

    async def wait_for_other_request(self, key: Key, io: Stream) -> tuple[bool, InFlightRequest | None]:
        """Wait for a program that another request runs; return whether it has ended.

        If the client of that request reads so slowly that the others would wait for the client, one of them takes
        the InFlightRequest over: return it.
        """
        event = io.wake_event()
        try:
            with self.lock:
                in_flight = self.in_flight.get(key)
                if in_flight is None:
                    return True, None
                in_flight.waiting.append(event)
            try:
                until = time.monotonic() + SHARED_WAIT_S
                while (left_s := until - time.monotonic()) > 0:
                    if await event.wait(min(left_s, SLOW_CLIENT_S)):
                        return True, None
                    with self.lock:
                        if in_flight.take_over():
                            return False, in_flight
                return False, None
            finally:
                with self.lock:
                    if event in in_flight.waiting:
                        in_flight.waiting.remove(event)
        finally:
            event.close()

    def end_request(self, key: Key, in_flight: InFlightRequest | None) -> None:
        """End an in-flight request, and wake the requests that wait for its output."""
        if in_flight is None:
            return
        with self.lock:
            if self.in_flight.get(key) is in_flight:
                del self.in_flight[key]
            in_flight.wake_others()

    def remember_not_kept(self, key: Key) -> None:
        """Remember for NOT_KEPT_S that this key's response must not be kept: its requests do not wait for each
        other.
        """
        with self.lock:
            self.not_kept[key] = True

    # Memory

    def find(self, key: Key, request: Request) -> Copy | None:
        """Return the copy that a request selects (section 4.1), the newest if there are several; None without one.

        The copies of its URL become the most recently used.
        """
        url, *_ = key
        with self.lock:
            copies = self.copies.pop(url, None)
            if copies is None:
                return None
            self.copies[url] = copies  # at the end of the dictionary: store() drops from its beginning
            for copy in copies:  # the newest copy comes first
                if copy.key == key and selecting_values(copy.vary_names, request) == copy.vary_values:
                    return copy
        return None

    def store(self, copy: Copy, asked_at: float, replaced: Copy | None = None) -> bool:
        """Keep a copy in place of the one that the same fields select; return whether it is kept.

        It is not kept if it is too large, or if its URL has changed since the program was asked for it. asked_at:
        the time.monotonic() of that. replaced: the copy that it replaces in any case, because a 304 has changed the
        fields.

        To make room, the oldest copies of the same URL are dropped, then all copies of the URLs that were least
        recently used.
        """
        if copy.cost > self.max_copy_bytes:
            return False
        url, *_ = copy.key
        same = (copy.key, copy.vary_names, copy.vary_values)
        with self.lock:
            if asked_at <= self.changed_at.get(hash(url), self.others_changed_at):
                return False
            old = self.copies.pop(url, [])
            others = [each for each in old if each is not replaced]
            copies = [
                copy,
                *(each for each in others if (each.key, each.vary_names, each.vary_values) != same),
            ]
            del copies[MAX_COPIES_OF_URL:]
            # Otherwise the loop below would drop all copies of this URL, the new one among them.
            while sum(each.cost for each in copies) > self.max_bytes:
                copies.pop()
            self.copies[url] = copies
            self.used_bytes += sum(each.cost for each in copies) - sum(each.cost for each in old)
            self.not_kept.forget(copy.key)
            while self.used_bytes > self.max_bytes:
                oldest = next(iter(self.copies))
                self.used_bytes -= sum(each.cost for each in self.copies.pop(oldest))
        return True

    def drop(self, urls: Iterable[URL]) -> None:
        """Drop all copies of some URLs."""
        with self.lock:
            for url in urls:
                self.used_bytes -= sum(each.cost for each in self.copies.pop(url, ()))

    def invalidate(self, url: URL, response: Response) -> None:
        """Drop the copies of a changed URL, and of the URL in Location on the same host: section 4.4."""
        scheme, host, server, target = url
        targets = {target}
        for name in ("location", "content-location"):
            value = response.get(name) or ""
            if value.lower().startswith(f"{scheme}://{host}/"):
                value = value[len(scheme) + 3 + len(host) :]
            if value.startswith("/"):
                targets.add(value.partition("#")[0])
        urls = [(scheme, host, server, each) for each in targets]
        self.note_change(urls)
        self.drop(urls)

    def note_change(self, urls: list[URL]) -> None:
        """Note that URLs change now: responses in progress are not kept, and no further request waits for them."""
        now = time.monotonic()
        with self.lock:
            if len(self.changed_at) + len(urls) > MAX_CHANGED:
                self.changed_at.clear()
                self.others_changed_at = now
            self.changed_at.update((hash(url), now) for url in urls)
            for key in [key for key in self.in_flight if key[0] in urls]:
                self.in_flight.pop(key).wake_others()


def variables_of_site(variables: Mapping[bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
    """Return the variables that an authorizer, a location or an error page has added, without those of a visitor.

    A page may depend on each of them. If it depends on a visitor's variable, is_personal() decides.
    """
    if not variables:
        return ()
    return tuple(sorted(each for each in variables.items() if each[0] not in OF_VISITOR))


def may_collapse(miss: Miss) -> bool:
    """Return whether others may wait for the response to a request (collapsed requests, RFC 9111 section 4)."""
    if miss.reason not in ("uri-miss", "stale") or miss.request.method != "GET" or miss.personal:
        return False
    return not miss.unkeyed or (miss.copy is not None and miss.unkeyed.issubset(miss.copy.vary_names))


def may_validate(miss: Miss, copy: Copy) -> bool:
    """Return whether a request may ask the program to confirm a copy: RFC 9111 section 4.3.1.

    A 304 changes the fields of the copy. A request with a field of `unkeyed` that Vary does not name must therefore
    validate none.
    """
    has_validator = bool(copy.etag) or copy.last_modified is not None
    return miss.request.method == "GET" and has_validator and miss.unkeyed.issubset(copy.vary_names)


def with_status(response: Response, status: str) -> Response:
    """Return a response with Cache-Status (RFC 9211), after the entry of a cache in front of the program."""
    return response.with_fields((*response.fields, ("Cache-Status", status)))


class RecordedBody(Source):
    """The body of a response that is kept once all of it was sent. in_flight: its request, if others wait."""

    in_flight: InFlightRequest | None = None

    def __init__(
        self,
        cache: ContentCache,
        key: Key,
        request: Request,
        response: Response,
        body: Source,
        names: tuple[str, ...],
        asked_at: float,
    ) -> None:
        """cache, key: where the copy is stored. request: selects it (Vary). response: the status and the fields to
        keep.

        body: the program's own, whose pieces are collected. names: the fields of the request that Vary names.
        asked_at: see ContentCache.store().
        """
        self.cache, self.key, self.request, self.response = cache, key, request, response
        self.body, self.names, self.asked_at = body, names, asked_at
        self.length = body.length
        self.received_at = time.monotonic()
        self.pieces: list[bytes] = []
        self.size = 0  # bytes in `pieces`
        self.recording = True  # the pieces are collected; False once they are stored, or must not be

    async def receive(self) -> bytes:
        """Return the next piece of the body, b"" at the end, and record it; store the copy at the end of a complete
        body.

        Recording stops once the body is larger than a copy may be. Raises the exceptions of the program's body.
        """
        if (in_flight := self.timed_request()) is not None:
            in_flight.note_piece_taken()
        piece = await self.body.receive()
        if not self.recording:
            return piece
        if (in_flight := self.timed_request()) is not None:
            in_flight.handed_at = time.monotonic()
        if piece:
            self.pieces.append(bytes(piece))
            self.size += len(piece)
            if self.size > self.cache.max_copy_bytes:
                self.cache.remember_not_kept(self.key)
                self.forget()
        else:
            # A faulty Source may return None, which is not the end: ewe.response_writer aborts the response.
            end: Any = piece
            if end == b"" and self.length in (None, self.size):
                cache_control = directives_of(self.response)
                whole = b"".join(self.pieces)
                copy = Copy(
                    self.key, self.request, self.response, whole, self.names, cache_control, self.received_at
                )
                self.cache.store(copy, self.asked_at)
            self.forget()
        return piece

    def timed_request(self) -> InFlightRequest | None:
        """Return the InFlightRequest for which this client's times count.

        None: no other request waits for this one, or one has taken the InFlightRequest over.
        """
        return self.in_flight if self.in_flight is not None and self.in_flight.recorder is self else None

    def forget(self) -> None:
        """Drop the recorded pieces, and wake the waiting requests."""
        self.recording = False
        self.pieces = []
        self.cache.end_request(self.key, self.timed_request())

    async def close(self) -> None:
        """Drop what was recorded, and release the program's body."""
        self.forget()
        await self.body.close()
