"""The content cache: what it keeps, for whom and how long, and that no one can poison it. RFC 9111."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as some
from support.memory import MemoryStream
from support.server import MODELS, Server, Start, wait_until, write_program
from support.wire import read_response, request_of

from ewe.config.settings import Config
from ewe.features.compression import Compression
from ewe.features.content_cache import Cached
from ewe.gateway import content_cache, content_copies
from ewe.gateway.content_cache import SHARED_WAIT_S, ContentCache, RecordedBody
from ewe.http.caching import NEUTRAL, delta_seconds, directives, fields_in_vary, freshness_lifetime
from ewe.http.dates import http_date
from ewe.http.limits import RequestLimits
from ewe.http.messages import FileResponse, Request, Response, Source, StorableResponse
from ewe.http.parser import parse_request
from ewe.http.response_head import options_of
from ewe.http.status import HTTPError
from ewe.streams.base import Endpoints
from ewe.streams.blocking import run


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, {}),
        ("", {}),
        ("max-age=5", {"max-age": "5"}),
        ("Max-Age=5 , Public", {"max-age": "5", "public": ""}),
        ('private="set-cookie, x", no-cache', {"private": "set-cookie, x", "no-cache": ""}),
        ('max-age="5"', {"max-age": "5"}),
        ("max-age=5, max-age=3", {"max-age": "3"}),
        ("max-age=3, max-age=5", {"max-age": "3"}),
        ("max-age=x, no-store", {"max-age": "x", "no-store": ""}),
        (",,, no-store ,,", {"no-store": ""}),
        ("max age=5, no-store", {"no-store": ""}),
        ('x="a, no-store', {"no-store": ""}),  # a quotation without an end hides nothing
        ("\xe9, no-store", {"no-store": ""}),
        ("max-age=", {"max-age": ""}),
        ("max-age = 5", {}),
    ],
)
def test_directives(value: str | None, expected: dict[str, str]) -> None:
    assert directives(value) == expected


@given(some.text(some.sampled_from('abno-store=", \\\t1;\xe9')))
def test_no_field_confuses_directives(text: str) -> None:
    assert "no-store" in directives(text.replace('"', "").replace("\\", "") + ", no-store")
    directives(text)


@pytest.mark.parametrize("unit", [",", " ", "a=", 'a="', "a,", '"', "=", 'a="\\', "a=1,"])
def test_hostile_directives_cost_little(unit: str) -> None:
    began = time.process_time()
    directives(unit * (16000 // len(unit)))
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"Cache-Control": "public"}, None),
        ({"Cache-Control": "max-age=60"}, 60),
        ({"Cache-Control": "max-age=60, s-maxage=10"}, 10),
        ({"Cache-Control": "s-maxage=x, max-age=60"}, 0),
        ({"Cache-Control": "max-age=-1"}, 0),
        ({"Cache-Control": "max-age=99999999999999999999"}, 1 << 31),
        ({"Cache-Control": "max-age=60, no-cache"}, 0),
        ({"Expires": http_date(1060)}, 60),
        ({"Expires": http_date(900)}, 0),
        ({"Expires": "0"}, 0),
        ({"Expires": http_date(1060), "Cache-Control": "max-age=5"}, 5),
    ],
)
def test_lifetime(fields: dict[str, str], expected: int | None) -> None:
    response = Response(200, fields.items())
    assert freshness_lifetime(directives(fields.get("Cache-Control")), response, 1000.0) == expected
    assert delta_seconds("\xb2") == 0


def test_selecting() -> None:
    assert fields_in_vary(Response(200, (("Vary", "b, A"), ("vary", "c,,")))) == ("a", "b", "c")
    assert fields_in_vary(Response(200, (("Vary", "a, *"),))) is None
    assert fields_in_vary(Response(200, (("Vary", ",".join("abcdefghi")),))) is None


# One cache, one program, in memory


class Program(Source):
    """A body that comes in pieces; an exception among them is raised."""

    def __init__(self, *pieces: bytes | Exception, length: int | None = None) -> None:
        self.pieces = [*pieces]
        self.length = length
        self.closed = 0

    async def receive(self) -> bytes:
        piece = self.pieces.pop(0) if self.pieces else b""
        if isinstance(piece, Exception):
            raise piece
        return piece

    async def close(self) -> None:
        self.closed += 1


class Place:
    """A cache around a feature. says: the response, or a function that makes it; seen: the requests that it got."""

    def __init__(self, room: int = 1 << 20) -> None:
        self.cache = ContentCache(room)
        self.says: Response | Callable[[Request], Response | None] = Response(200)
        self.seen: list[Request] = []
        self.cached = Cached(self, self.cache)
        self.io = MemoryStream([])

    async def respond(self, request: Request, io: object) -> Response | None:
        self.seen.append(request)
        return self.says(request) if callable(self.says) else self.says

    def ask(self, line: str = "GET /", *fields: str, host: str = "ewe") -> tuple[str, bytes]:
        """Return Cache-Status without its name, and the body, read to its end."""
        lines = "\r\n".join((f"{line} HTTP/1.1", f"Host: {host}", *fields, "", ""))
        response = run(self.cached.respond(parse_request(lines.encode("latin-1"), RequestLimits()), self.io))
        assert response is not None
        self.response = response
        body = response.body
        if isinstance(body, Source):
            pieces = []
            while piece := run(body.receive()):
                pieces.append(piece)
            run(response.close())
            body = b"".join(pieces)
        assert isinstance(body, bytes)
        self.check()
        return (response.get("cache-status") or "").removeprefix("ewe; "), body

    def check(self) -> None:
        """The memory that is counted is the memory that is held."""
        held = sum(copy.cost for copies in self.cache.copies.values() for copy in copies)
        assert held == self.cache.used_bytes <= self.cache.max_bytes
        assert not self.cache.in_flight


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that lets time pass."""
    passed = [0.0]

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return 1000 + passed[0]

        @staticmethod
        def time() -> float:
            return 1_000_000_000 + passed[0]

    def go(seconds: float) -> None:
        passed[0] += seconds

    for module in (content_cache, content_copies):
        monkeypatch.setattr(module, "time", Clock)
    return go


def page(
    control: str = "max-age=60", *fields: tuple[str, str], status: int = 200, body: object = b"a"
) -> Response:
    """Return a program's response."""
    return Response(status, (("Content-Type", "text/html"), ("Cache-Control", control), *fields), body)  # type: ignore[arg-type]


def test_a_copy_and_its_age(place: Place, clock: Callable[[float], None]) -> None:
    place.says = page("max-age=60", ("Age", "10"), ("X", "y"))
    assert place.ask() == ("fwd=uri-miss; stored", b"a")
    place.says = page(body=b"b")
    clock(5.5)
    assert place.ask() == ("hit; ttl=45", b"a")
    assert (place.response.get("age"), place.response.get("x")) == ("15", "y")
    assert place.ask("HEAD /") == ("hit; ttl=45", b"a")
    clock(45)
    assert place.ask() == ("fwd=stale; stored", b"b")  # stale is never sent
    assert place.ask() == ("hit; ttl=60", b"b")
    assert len(place.seen) == 2


@pytest.mark.parametrize(
    "control, fields",
    [("max-age=60", ()), ("public", (("Expires", http_date(1_000_000_060)),))],
)
def test_the_age_of_a_copy_begins_with_the_head(
    place: Place, clock: Callable[[float], None], control: str, fields: tuple[tuple[str, str], ...]
) -> None:
    """A slow client, or a slow program, takes 40 seconds for the body."""

    class SlowProgram(Program):
        async def receive(self) -> bytes:
            clock(20)
            return await super().receive()

    place.says = lambda request: page(control, *fields, body=SlowProgram(b"a"))
    assert place.ask() == ("fwd=uri-miss", b"a")
    assert place.ask() == ("hit; ttl=20", b"a")
    assert place.response.get("age") == "40"
    clock(20)
    assert place.ask()[0] == "fwd=stale"


@pytest.mark.parametrize(
    ("response", "lines", "is_kept"),
    [
        (page(), (), True),
        (page("public, max-age=1"), (), True),
        (page("s-maxage=9, max-age=0"), (), True),
        (page("private, max-age=60"), (), False),
        (page('private="x", max-age=60'), (), False),
        (page("no-store, max-age=60"), (), False),
        (page("max-age=0"), (), False),
        (page("no-cache, max-age=60"), (), False),
        (page("public"), (), False),
        (Response(200, (), b"a"), (), False),
        (Response(200, (("Expires", http_date(time.time() + 1_000_000)),), b"a"), (), True),
        (page("max-age=60", ("Set-Cookie", "a=b")), (), False),
        (page("max-age=60", ("set-cookie", "a=b")), (), False),
        (page("max-age=60", ("Vary", "*")), (), False),
        (page("max-age=60", ("Vary", "Cookie, *")), (), False),
        (page("max-age=60", ("Content-Range", "bytes 0-0/5"), status=206), (), False),
        (page(status=404), (), True),
        (page(status=301), (), True),
        (page(status=500), (), False),
        (page(status=503), (), False),
        (page(status=401), (), False),
        (page(status=403), (), False),
        (page(), ("Cache-Control: no-store",), False),
        # Credentials in the request
        (page(), ("Authorization: Basic eA==",), False),
        (page("public, max-age=9"), ("Authorization: Basic eA==",), True),
        (page("s-maxage=9"), ("Authorization: Basic eA==",), True),
        (page(), ("Cookie: a=b",), False),
        (page("public, max-age=9"), ("Cookie: a=b",), False),
        (page("public, max-age=9", ("Vary", "Cookie")), ("Cookie: a=b",), True),
        # Fields that a program may obey, but that are not in the key
        (page(), ("X-Forwarded-Host: evil",), False),
        (page(), ("X-Original-URL: /admin",), False),
        (page(), ("Forwarded: host=evil",), False),
        (page(), ("X-HTTP-Method-Override: DELETE",), False),
        (page("max-age=9", ("Vary", "X-Forwarded-Host")), ("X-Forwarded-Host: evil",), True),
        (page(), ("X-Forwarded-Ssl: on",), False),
        (page(), ("X-Nobody-Has-Heard-Of: this",), False),
        (page(), ("Content-Type: text/html",), False),
        (page(), ("Accept_Language: de",), False),
        (page("max-age=9", ("Vary", "Accept-Language")), ("Accept_Language: de",), False),
        (page("max-age=9", ("Vary", "X")), ("X: a", "Y: b"), False),
        (page("max-age=9", ("Vary", "X, Y")), ("X: a", "Y: b"), True),
        # A proxy drops what Connection names
        (page(), ("Connection: close, Keep-Alive,, TE", "TE: trailers"), True),
        (page("max-age=9", ("Vary", "Accept")), ("Connection: close, ACCEPT", "Accept: a/b"), False),
        (page("max-age=9", ("Vary", "Accept, Connection")), ("Connection: Accept", "Accept: a/b"), False),
        # A proxy writes these for each client
        (page("max-age=9", ("Vary", "X-Forwarded-For")), (), False),
        (page("max-age=9", ("Vary", "X-Real-IP")), ("X-Real-IP: 192.0.2.1",), False),
        # Bodies
        (page(body=Program(b"a", b"")), (), True),
        (page(body=Program(b"a", length=1)), (), True),
        (page(body=Program(b"a", length=2)), (), False),
        (page(body=Program(b"a" * (1 << 17))), (), False),
        (page(body=Program(*[b"a" * 1000] * 140)), (), False),
        (page(body=b"a" * (1 << 17)), (), False),
        (FileResponse(200, (("Cache-Control", "max-age=9"),), b"a"), (), False),
    ],
)
def test_what_is_kept(place: Place, response: Response, lines: tuple[str, ...], is_kept: bool) -> None:
    place.says = response
    _, body = place.ask("GET /", *lines)
    place.says = page(body=b"other")
    status, again = place.ask("GET /", *(line for line in lines if "no-store" not in line))
    assert (status.startswith("hit"), again == body) == (is_kept, is_kept)


def test_whom_a_copy_is_for(place: Place) -> None:
    place.says = page()
    place.ask()
    for line in ("Cookie: a=b", "Authorization: Basic eA=="):
        assert place.ask("GET /", line)[0] == "fwd=bypass"
    assert place.ask()[0] == "hit; ttl=60"


def test_keys(place: Place) -> None:
    """Another host, target, scheme, server, feature, or field of Vary: another copy."""
    place.says = lambda request: page(
        "max-age=60", ("Vary", "X, Accept-Language"), body=request.host.encode()
    )
    assert place.ask(host="one")[1] == b"one"
    assert place.ask(host="evil") == ("fwd=uri-miss; stored", b"evil")
    assert place.ask(host="ONE") == ("hit; ttl=60", b"one")
    for line in ("GET /?", "GET /?a", "GET //", "GET /.", "GET http://one/"):
        assert place.ask(line, host="one")[0].startswith("fwd=uri-miss")
    assert place.ask("GET /", "X: y", host="one")[0].startswith("fwd=vary-miss")
    assert place.ask("GET /", "X: y", host="one")[0].startswith("hit")
    assert place.ask("GET /", "X: z", host="one")[0].startswith("fwd=vary-miss")
    assert place.ask("GET /", "X: y", "Accept-Language: de", host="one")[0].startswith("fwd=vary-miss")
    other = Place()
    other.cached.cache = place.cache
    assert other.cached.cache is place.cache and other.ask(host="one")[0].startswith("fwd=")
    place.io.server = ("192.0.2.2", 81)
    assert place.ask(host="one")[0].startswith("fwd=uri-miss")
    place.io.scheme = "https"
    assert place.ask(host="one")[0].startswith("fwd=uri-miss")


def test_a_host_in_capitals_leaves_no_copy(place: Place) -> None:
    """A program that sends such a visitor to the right spelling would else send all visitors in a circle."""
    place.says = lambda request: page(
        "max-age=60", ("Location", "http://one/"), status=200 if request.host == "one" else 301
    )
    assert place.ask(host="One") == ('fwd=uri-miss; detail="host"', b"a")
    assert place.ask(host="one") == ("fwd=uri-miss; stored", b"a") and place.response.status == 200
    assert place.ask(host="One") == ("hit; ttl=60", b"a") and place.response.status == 200


def test_the_version_is_part_of_the_key(place: Place) -> None:
    place.says = lambda request: page(body=b"%d.%d" % request.version)
    for version in (b"1.0", b"1.1", b"1.0"):
        request = parse_request(b"GET / HTTP/%b\r\nHost: ewe\r\n\r\n" % version, RequestLimits())
        response = run(place.cached.respond(request, place.io))
        assert response is not None and response.body == version


def test_what_an_authorizer_says_is_part_of_the_key(place: Place) -> None:
    place.says = lambda request: page(body=place.io.variables.get(b"TIER", b"none"))
    request = parse_request(b"GET / HTTP/1.1\r\nHost: ewe\r\n\r\n", RequestLimits())
    for tier in (b"gold", b"free", b"gold"):
        place.io.variables = {b"TIER": tier}
        response = run(place.cached.respond(request, place.io))
        assert response is not None and response.body == tier
    place.io.variables = {}
    assert place.ask()[1] == b"none"


@pytest.mark.parametrize("name", [b"REMOTE_USER", b"AUTH_TYPE", b"HTTP_AUTHORIZATION"])
def test_what_an_authorizer_says_of_a_visitor_is_for_that_visitor(place: Place, name: bytes) -> None:
    """An authorizer may know visitors by their addresses, and name them to the program by one variable alone."""
    place.says = lambda request: page(body=place.io.variables.get(name, b"nobody"))
    request = parse_request(b"GET / HTTP/1.1\r\nHost: ewe\r\n\r\n", RequestLimits())
    for visitor in (b"ada", b"bob"):
        place.io.variables = {name: visitor}
        response = run(place.cached.respond(request, place.io))
        assert response is not None and response.body == visitor
    place.io.variables = {}
    assert place.ask()[1] == b"nobody"
    place.says = page("public, max-age=60", body=b"for all")
    place.cache.drop([*place.cache.copies])
    assert place.ask()[1] == b"for all"
    place.io.variables = {name: b"ada"}
    assert place.ask()[0].startswith("hit")


def test_behind_a_trusted_proxy(place: Place) -> None:
    client = ("192.0.2.1", 50000)
    place.io.endpoints = Endpoints(client, place.io.server, "http", True)
    place.io.scheme, place.io.server = "https", (place.io.server[0], 443)  # as the proxy says
    place.says = page()
    for number, (fields, is_kept) in enumerate(
        (
            (("X-Forwarded-For: 192.0.2.7", "X-Forwarded-Proto: https", "X-Forwarded-Host: ewe"), True),
            (("X-Forwarded-Host: evil, ewe",), False),
            (("Forwarded: for=192.0.2.7;proto=https",), True),
            (("Forwarded: for=192.0.2.7;HOST=evil",), False),
            (("Forwarded: for=192.0.2.7;proto=http, for=192.0.2.8;proto=https",), False),
            (("X-Original-URL: /admin",), False),
            (("X-Forwarded-Proto: http",), False),
            (("X-Forwarded-Proto: http, https",), False),
            (("X-Forwarded-Port: 443", "Via: 1.1 proxy", "X-Request-Id: 1"), True),
            (("X-Forwarded-Port: 666",), False),
            (("X-Forwarded-Ssl: on",), False),
        )
    ):
        place.ask(f"GET /{number}", *fields)
        assert place.ask(f"GET /{number}")[0].startswith("hit") == is_kept


# Heads of clients as they are, with what each sends to a server over plain HTTP, and over HTTPS
CLIENTS = {
    "chrome": """
User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/141.0.0.0 Safari/537.36
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8
Connection: keep-alive
Cache-Control: max-age=0
sec-ch-ua: "Chromium";v="141", "Not?A_Brand";v="8"
sec-ch-ua-mobile: ?0
sec-ch-ua-platform: "Linux"
Upgrade-Insecure-Requests: 1
Sec-Fetch-Site: same-origin
Sec-Fetch-Mode: navigate
Sec-Fetch-User: ?1
Sec-Fetch-Dest: document
Sec-Fetch-Storage-Access: active
Referer: https://ewe/
Accept-Encoding: gzip, deflate, br, zstd
Accept-Language: de-DE,de;q=0.9
DNT: 1
If-None-Match: "x"
If-Modified-Since: Sat, 01 Jan 2000 00:00:00 GMT""",
    "firefox": """
User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8
Accept-Language: de,en-US;q=0.7,en;q=0.3
Accept-Encoding: gzip, deflate, br, zstd
DNT: 1
Sec-GPC: 1
Connection: keep-alive
Upgrade-Insecure-Requests: 1
Sec-Fetch-Dest: document
Sec-Fetch-Mode: navigate
Sec-Fetch-Site: none
Sec-Fetch-User: ?1
Priority: u=0, i
Pragma: no-cache
Cache-Control: no-cache
TE: trailers""",
    "safari": """
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8
Sec-Fetch-Site: none
Connection: keep-alive
Sec-Fetch-Mode: navigate
User-Agent: Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 Version/17.6 Safari/605.1.15
Accept-Language: en-GB,en;q=0.9
Sec-Fetch-Dest: document
Accept-Encoding: gzip, deflate
Priority: u=0, i""",
    "curl": """
User-Agent: curl/8.15.0
Accept: */*""",
    "wget": """
User-Agent: Wget/1.21.3
Accept: */*
Accept-Encoding: identity
Connection: Keep-Alive""",
    "libwww-perl": """
TE: deflate,gzip;q=0.3
Connection: TE, close
User-Agent: libwww-perl/6.68""",
    "googlebot": """
Connection: keep-alive
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8
From: googlebot(at)googlebot.com
User-Agent: Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)
Accept-Encoding: gzip, deflate, br
If-Modified-Since: Sat, 01 Jan 2000 00:00:00 GMT""",
    "feed reader": """
User-Agent: Tiny Tiny RSS/23
Accept: */*
If-None-Match: "1"
Accept-Encoding: gzip""",
    "download manager": """
User-Agent: aria2/1.36.0
Accept: */*
Range: bytes=0-
If-Range: "1"
Pragma: no-cache
Cache-Control: no-cache""",
}


@pytest.mark.parametrize("client", CLIENTS)
def test_browsers_and_robots_leave_copies_and_get_them(place: Place, client: str) -> None:
    place.says = page()
    lines = CLIENTS[client].strip().split("\n")
    assert place.ask("GET /", *lines)[0] == "fwd=uri-miss; stored"
    wanted = [line for line in lines if "no-cache" not in line and "max-age=0" not in line]
    assert place.ask("GET /", *wanted)[0].startswith("hit")


def test_an_odd_field_gets_a_copy_and_changes_none(place: Place, clock: Callable[[float], None]) -> None:
    place.says = page("max-age=9", ("ETag", '"1"'), ("X", "old"))
    assert place.ask("GET /", "X-Odd: 1")[0] == 'fwd=uri-miss; detail="x-odd"'
    place.ask()
    assert place.ask("GET /", "X-Odd: 1")[0] == "hit; ttl=9"
    clock(10)  # a 304 would give the copy new fields
    place.says = lambda request: Response(
        304, (("ETag", '"1"'), ("X", "odd"), ("Cache-Control", "max-age=99"))
    )
    assert place.ask("GET /", "X-Odd: 1", 'If-None-Match: "1"')[0] == "fwd=stale"
    assert place.seen[-1].values["if-none-match"] == '"1"'
    assert place.ask() == ("hit; fwd=stale; fwd-status=304", b"a")
    place.says = page("no-store")  # nor does it say that the others need not wait for one another
    clock(100)
    place.ask("GET /", "X-Odd: 1")
    assert not place.cache.not_kept


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("Cache-Control: no-store", page()),
        ("Authorization: Basic eDp5", page()),
        ('If-None-Match: "1"', page(status=304)),
        ("Range: bytes=0-0", page("max-age=60", ("Content-Range", "bytes 0-0/1"), status=206)),
    ],
)
def test_only_a_plain_request_says_that_no_response_is_kept(place: Place, field: str, says: Response) -> None:
    """Otherwise a stranger could have the program run for each plain request, also for many at once."""
    place.says = says
    assert "stored" not in place.ask("GET /", field)[0]
    assert not place.cache.not_kept


def test_the_texts_that_a_client_chooses_count_as_memory(place: Place) -> None:
    place.says = page("max-age=60", ("Vary", "Accept-Language"))
    target = "/?" + "q" * 5000
    place.ask(f"GET {target}", f"Accept-Language: {'a' * 4000}")
    assert place.cache.used_bytes > 2 * len(target) + 4000


NAMES = some.sampled_from((
    "Accept-Language", "Connection", "Content-Type", "Cookie", "Forwarded", "Front-End-Https", "HX-Request",
    "Origin", "Purpose", "Save-Data", "Sec-CH-Prefers-Color-Scheme", "Sec-Purpose", "Surrogate-Capability", "Via",
    "X", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Ssl", "X-Original-Uri", "X-Requested-With",
    "X_Forwarded_Host",
))  # fmt: skip
OTHERS = some.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=20).filter(
    lambda name: name not in NEUTRAL | {"authorization", "upgrade", "transfer-encoding", "trailer", "expect"}
)
VALUES = some.sampled_from(
    ("stranger", "stranger, close", "close, accept, stranger", "accept-language, stranger")
)


@given(
    some.dictionaries(some.one_of(NAMES, OTHERS), VALUES, max_size=4),
    some.sampled_from(
        ("", "Accept-Language", "X, Accept-Language", "Cookie, Origin", "X-Forwarded-Host", "Connection")
    ),
    some.sampled_from(("max-age=60", "public, max-age=60", "no-cache")),
)
def test_no_visitor_sees_a_field_of_another(fields: dict[str, str], vary: str, control: str) -> None:
    """The program's page has all fields that a program or a next server gets."""
    place = Place()

    def says(request: Request) -> Response:
        named = options_of((request.values.get("connection", ""),))
        seen = [f"{name}={value}" for name, value in request.fields if name not in named]
        return page(
            control,
            ("Vary", vary),
            ("ETag", '"1"'),
            ("X-Seen", "; ".join(seen)),
            body="\n".join(seen).encode(),
        )

    place.says = says
    place.ask("GET /", *(f"{name}: {value}" for name, value in fields.items()))
    for language in (None, "de", "stranger"):
        _, body = place.ask("GET /", *([f"Accept-Language: {language}"] if language else []))
        for text in (body.decode().replace("\n", "; "), place.response.get("x-seen") or ""):
            shown = dict(field.partition("=")[::2] for field in text.split("; "))
            written_for = shown.pop("accept-language", None)
            assert "stranger" not in "".join(shown.values())
            # A page that chooses by a field that Vary does not name is kept as it is
            assert written_for == language or text == "" or "Accept-Language" not in vary


def test_validation(place: Place, clock: Callable[[float], None]) -> None:
    modified = http_date(900_000_000)
    place.says = page("max-age=9", ("ETag", 'W/"1"'), ("Last-Modified", modified), ("X", "old"))
    place.ask()
    clock(10)
    place.says = lambda request: Response(
        304, (("ETag", 'W/"1"'), ("X", "new"), ("Cache-Control", "max-age=20"))
    )
    assert place.ask("GET /", 'If-None-Match: "x"') == ("hit; fwd=stale; fwd-status=304", b"a")
    assert place.seen[-1].values["if-none-match"] == 'W/"1"'
    assert place.seen[-1].values["if-modified-since"] == modified
    clock(15)
    assert place.ask() == ("hit; ttl=5", b"a")
    assert (place.response.get("x"), place.response.get("age")) == ("new", "15")
    # The client's own conditions
    for tag, status in (('"1"', 304), ('W/"1"', 304), ('"2"', 200)):
        place.ask("GET /", f"If-None-Match: {tag}")
        assert place.response.status == status
    place.ask("GET /", f"If-Modified-Since: {modified}")
    assert place.response.status == 304 and place.response.get("content-type") is None
    # The representation has changed
    clock(10)
    place.says = page(body=b"b")
    assert place.ask() == ("fwd=stale; stored", b"b")
    # A 304 that takes the permission back
    place.says = page("no-cache", ("ETag", '"3"'))
    clock(100)
    place.ask()
    place.says = lambda request: (
        Response(304, (("ETag", '"3"'), ("Set-Cookie", "a=b")))
        if "if-none-match" in request.values
        else page("private", body=b"mine")
    )
    assert place.ask() == ("fwd=stale", b"mine")
    assert not place.cache.copies


def test_a_304_may_name_further_fields_in_vary(place: Place, clock: Callable[[float], None]) -> None:
    """Sections 4.1 and 4.3.4: the copy has the new Vary, and is for the requests that this Vary selects."""
    place.says = page("max-age=9", ("ETag", '"1"'), ("Vary", "Accept"))
    place.ask("GET /", "Accept-Language: de")
    clock(10)
    place.says = lambda request: Response(304, (("ETag", '"1"'), ("Vary", "Accept-Language")))
    assert place.ask("GET /", "Accept-Language: de") == ("hit; fwd=stale; fwd-status=304", b"a")
    place.says = page(body=b"b")
    assert place.ask("GET /", "Accept-Language: de")[1] == b"a"
    assert place.ask("GET /", "Accept-Language: fr") == ("fwd=vary-miss; stored", b"b")
    assert place.ask("GET /", "Accept-Language: de", "Accept: a/b")[1] == b"b"


def test_a_304_may_say_by_which_field_the_program_chooses(place: Place) -> None:
    """The copy is then for the requests with the value of the one that was validated, and for no others."""
    place.says = page("max-age=60", ("ETag", '"1"'))
    place.ask()
    place.says = Response(304, (("ETag", '"1"'), ("Vary", "Accept-Language")))
    assert place.ask("GET /", "Cache-Control: no-cache") == ("hit; fwd=request; fwd-status=304", b"a")
    place.says = page("max-age=60", ("Vary", "Accept-Language"), body=b"auf Deutsch")
    assert place.ask("GET /", "Accept-Language: de") == ("fwd=vary-miss; stored", b"auf Deutsch")
    assert place.ask() == ("hit; ttl=60", b"a")


def test_a_response_that_is_always_validated(place: Place) -> None:
    place.says = page("no-cache", ("ETag", '"1"'))
    place.ask()
    place.says = lambda request: Response(304, (("ETag", '"1"'),))
    assert place.ask() == ("hit; fwd=stale; fwd-status=304", b"a")


def test_errors_and_stale_copies(place: Place, clock: Callable[[float], None]) -> None:
    def broken(request: Request) -> Response:
        raise HTTPError(502, "it fell over")

    for control, uses_stale in (
        ("max-age=9", False),
        ("max-age=9, stale-if-error=60", True),
        ("max-age=9, stale-if-error=60, must-revalidate", False),
        ("s-maxage=9, stale-if-error=60", False),
    ):
        place.says = page(control)
        place.ask(f"GET /{control.replace(' ', '')}")
        clock(30)
        place.says = page(status=503, body=b"sorry")
        status, body = place.ask(f"GET /{control.replace(' ', '')}")
        assert (body == b"a") == uses_stale == (status == "hit; fwd=stale; fwd-status=503")
        place.says = broken
        if uses_stale:
            assert place.ask(f"GET /{control.replace(' ', '')}")[1] == b"a"
            clock(100)
        with pytest.raises(HTTPError):
            place.ask(f"GET /{control.replace(' ', '')}")
        place.check()


def test_wishes_of_the_client(place: Place, clock: Callable[[float], None]) -> None:
    place.says = page()
    place.ask()
    clock(10)
    for wish, status in (
        ("Cache-Control: max-age=10", "hit; ttl=50"),
        ("Cache-Control: min-fresh=49", "hit; ttl=50"),
        ("Cache-Control: max-stale=99", "hit; ttl=50"),
        ("Cache-Control: max-age=5", "fwd=request; stored"),
        ("Cache-Control: no-cache", "fwd=request; stored"),
        ("Pragma: no-cache", "fwd=request; stored"),
        ("Cache-Control: min-fresh=61", "fwd=request; stored"),
        ("Cache-Control: only-if-cached", "hit; ttl=60"),
    ):
        assert place.ask("GET /", wish)[0] == status, wish
    place.ask("GET /other", "Cache-Control: only-if-cached")
    assert place.response.status == 504
    place.ask("GET /", 'If-Match: "x"')
    assert place.seen[-1].values["if-match"] == '"x"'


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "BREW"])
def test_a_change_drops_copies(place: Place, method: str) -> None:
    for target in ("/a", "/b", "/c"):
        place.says = page()
        place.ask(f"GET {target}")
    place.says = Response(500, (("Location", "/b"),))
    place.ask(f"{method} /a")
    assert place.ask("GET /a")[0] == "hit; ttl=60"
    place.says = Response(303, (("Location", "http://EWE/b#x"), ("Content-Location", "http://evil/c")))
    place.ask(f"{method} /a")
    place.says = page()
    assert [place.ask(f"GET {target}")[0] for target in ("/a", "/b", "/c")] == [
        "fwd=uri-miss; stored", "fwd=uri-miss; stored", "hit; ttl=60"
    ]  # fmt: skip


def test_a_response_from_before_a_change_is_not_kept(place: Place) -> None:
    """The program reads what the POST changes before the POST, and its response ends after it."""

    def changed_meanwhile(request: Request) -> Response:
        place.says = page(body=b"new")
        place.ask("POST /")
        return page(body=b"old")

    place.says = changed_meanwhile
    assert place.ask() == ("fwd=uri-miss", b"old")
    assert place.ask() == ("fwd=uri-miss; stored", b"new")


def test_a_body_that_a_client_reads_across_a_change_is_not_kept(place: Place) -> None:
    place.says = page(body=Program(b"old"))
    response = run(place.cached.respond(parse_request(PLAIN, RequestLimits()), place.io))
    assert response is not None and isinstance(response.body, RecordedBody)
    place.says = page(body=b"new")
    place.ask("POST /")
    assert run(response.body.receive()) == b"old" and run(response.body.receive()) == b""
    run(response.close())
    assert place.ask() == ("fwd=uri-miss; stored", b"new")


PLAIN = b"GET / HTTP/1.1\r\nHost: ewe\r\n\r\n"


def test_a_304_from_before_a_change_brings_no_copy_back(place: Place) -> None:
    place.says = page("no-cache", ("ETag", '"1"'), body=b"old")
    place.ask()

    def changed_meanwhile(request: Request) -> Response:
        place.says = page(body=b"new")
        place.ask("POST /")
        return Response(304, (("ETag", '"1"'), ("Cache-Control", "max-age=60")))

    place.says = changed_meanwhile
    assert place.ask()[1] == b"old"  # its program has said so before the change
    assert place.ask() == ("fwd=uri-miss; stored", b"new")


def test_many_changes_take_bounded_memory(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that the cache has forgotten only forbids to keep a response."""
    monkeypatch.setattr(content_cache, "MAX_CHANGED", 8)
    place.says = page(body=Program(b"old"))
    response = run(place.cached.respond(parse_request(PLAIN, RequestLimits()), place.io))
    assert response is not None and isinstance(response.body, RecordedBody)
    place.says = page()
    place.ask("POST /")
    for number in range(30):
        place.ask(f"POST /{number}")
        assert len(place.cache.changed_at) <= 8
    assert run(response.body.receive()) == b"old" and run(response.body.receive()) == b""
    run(response.close())
    assert place.ask() == ("fwd=uri-miss; stored", b"a")


def test_what_passes_by(place: Place) -> None:
    """None, local redirects, HEAD, failing and abandoned bodies leave nothing behind."""
    place.says = lambda request: None
    with pytest.raises(AssertionError):
        place.ask()
    place.says = Response(200, target="/elsewhere")
    assert place.ask() == ("", b"") and place.response is place.says
    place.says = page()
    assert place.ask("GET /", "Connection: Upgrade", "Upgrade: websocket")[0] == ""
    assert place.ask("HEAD /")[0] == "fwd=uri-miss"
    place.says = page(body=Program(b"a", HTTPError(502, "cut")))
    with pytest.raises(HTTPError):
        place.ask()
    run(place.response.close()) if isinstance(place.response.body, RecordedBody) else None
    place.says = source = page(body=Program(b"a", b"b"))
    inner = source.body
    response = run(
        place.cached.respond(parse_request(b"GET / HTTP/1.1\r\nHost: ewe\r\n\r\n", RequestLimits()), place.io)
    )
    assert response is not None and isinstance(response.body, Source)
    run(response.body.receive())
    run(response.close())
    assert isinstance(inner, Program) and inner.closed == 1
    assert not place.cache.copies


def test_memory_is_bounded() -> None:
    place = Place(room=64 * 1024)
    place.says = lambda request: page(
        "max-age=60", ("Vary", "X"), body=b"x" * (len(request.target) * 10 % 3000)
    )
    for number in range(300):
        place.ask(f"GET /{'a' * (number % 90)}", f"X: {number}")
    place.says = page(body=b"x" * 2500)
    place.ask("GET /mine")
    assert place.ask("GET /mine")[0].startswith("hit")
    for number in range(40):
        place.ask(f"GET /{number}")
        assert place.ask("GET /mine")[0].startswith("hit")  # used lately
    assert max(map(len, place.cache.copies.values())) <= 16
    # A cache whose keys are all passed on stays small, too.
    place.says = page("private")
    for number in range(1100):
        place.ask(f"GET /private{number}")
    assert len(place.cache.not_kept) <= 1024


def test_the_newest_copies_of_one_url_stay_when_all_of_them_are_too_large() -> None:
    place = Place(room=64 * 1024)
    place.says = lambda request: page("max-age=60", ("Vary", "X"), body=b"x" * 2500)
    for number in range(30):
        assert "stored" in place.ask("GET /", f"X: {number}")[0]
        assert place.ask("GET /", f"X: {number}")[0].startswith("hit")
    assert [place.ask("GET /", f"X: {number}")[0][:3] for number in (29, 28, 27, 0)] == ["hit"] * 3 + ["fwd"]


def test_compressed_copies_are_kept_beside_the_copy(place: Place) -> None:
    compression = Compression(Config(compress="public"))
    place.says = page(body=b"sheep " * 500)
    place.ask()
    place.ask("GET /", "Accept-Encoding: gzip")
    request = parse_request(b"GET / HTTP/1.1\r\nHost: ewe\r\nAccept-Encoding: gzip\r\n\r\n", RequestLimits())
    first = run(compression.finish(request, place.response, place.io))
    assert first.get("content-encoding") == "gzip" and first.get("age") == "0"
    assert run(compression.finish(request, place.response, place.io)) is first


def test_a_compressed_body_that_does_not_fit_takes_no_room(place: Place) -> None:
    """Otherwise the next body would not be kept either, although it fits, and each request would make it again."""
    place.says = page(body=b"sheep " * 500)
    place.ask()
    place.ask()
    response = place.response
    assert isinstance(response, StorableResponse)
    assert not response.take_room(3001)
    assert response.take_room(2000) and not response.take_room(1001) and response.take_room(1000)


# Over sockets

PROGRAM = """#!/bin/sh
echo x >> runs
while [ -e hold ]; do sleep 0.02; done
echo "Content-Type: text/plain"
case $QUERY_STRING in
private*) echo "Cache-Control: private" ;;
*) echo "Cache-Control: max-age=600" ; echo 'ETag: "v1"' ;;
esac
echo
case $QUERY_STRING in
*long) yes sheep | head -n 20000 ;;
huge) head -c 7500000 /dev/zero ;;
*) echo "hello $HTTP_HOST" ;;
esac
"""


@pytest.mark.parametrize("model", MODELS)
def test_under_every_model(start: Start, model: str) -> None:
    server = start(
        model,
        "--content-cache",
        "128m",
        "--compress",
        "public",
        *(("--workers", "1") if model == "prefork" else ()),
    )
    write_program(server.cgi / "page", PROGRAM)
    with closing(server.connect()) as sock:
        for query, expected in (("", b"hello ewe\n"), ("long", b"sheep\n" * 20000)):
            for number in range(3):
                sock.sendall(request_of(f"GET /cgi-bin/page?{query}"))
                status, fields, body = read_response(sock)
                assert (status, body) == (200, expected)
                assert fields["cache-status"].startswith("ewe; hit; ttl=" if number else "ewe; fwd=uri-miss")
                assert ("age" in fields) == bool(number)
            sock.sendall(request_of(f"HEAD /cgi-bin/page?{query}"))
            _, fields, _ = read_response(sock, "HEAD")
            assert fields["content-length"] == str(len(expected))
            sock.sendall(request_of(f"GET /cgi-bin/page?{query}", 'If-None-Match: "v1"'))
            assert read_response(sock)[0] == 304
            for coding in ("gzip", "gzip"):  # stored, and a hit
                sock.sendall(request_of(f"GET /cgi-bin/page?{query}", f"Accept-Encoding: {coding}"))
                _, fields, body = read_response(sock)
                if query:
                    assert (fields["content-encoding"], fields["etag"]) == (coding, f'W/"v1-{coding}"')
        sock.sendall(request_of("GET /cgi-bin/page", "Host: other").replace(b"Host: ewe\r\n", b""))
        assert read_response(sock)[2] == b"hello other\n"
        for _ in range(2):
            sock.sendall(request_of("GET /cgi-bin/page?private"))
            assert read_response(sock)[1]["cache-status"] == "ewe; fwd=uri-miss"
    assert (server.cgi / "runs").read_text() == "x\n" * 5
    if model in ("thread", "pool", "asyncio"):
        one_run_for_many(server)
        nobody_waits_for_an_old_response(server)
        a_slow_client_holds_nobody(server)


def one_run_for_many(server: Server) -> None:
    """Requests for the same page wait for the program that the first one runs; others do not wait."""
    (server.cgi / "hold").touch()
    (server.cgi / "runs").unlink()
    found: list[str] = []

    def ask(query: str) -> None:
        with closing(server.connect()) as sock:
            sock.sendall(request_of(f"GET /cgi-bin/page?{query}"))
            found.append(query + read_response(sock)[1]["cache-status"])

    threads = [threading.Thread(target=ask, args=("many",))]
    threads[0].start()
    wait_until((server.cgi / "runs").exists, 10)
    threads += [threading.Thread(target=ask, args=("many",)) for _ in range(3)]
    for thread in threads[1:]:
        thread.start()
    time.sleep(0.5)  # most of them have come; one that comes later finds the copy
    (server.cgi / "hold").unlink()
    for thread in threads:
        thread.join(20)
    assert (server.cgi / "runs").read_text() == "x\n"
    assert len(found) == 4 and sum("hit" in each for each in found) == 3
    assert sum("collapsed" in each for each in found) >= 1


def nobody_waits_for_an_old_response(server: Server) -> None:
    """The client that changes a page gets the new one. The program still makes the old one for another client."""
    write_program(server.cgi / "comments", COMMENTS)
    (server.cgi / "hold").touch()

    def ask(method: str) -> bytes:
        with closing(server.connect()) as sock:
            sock.sendall(request_of(f"{method} /cgi-bin/comments"))
            return read_response(sock)[2]

    old: list[bytes] = []
    other = threading.Thread(target=lambda: old.append(ask("GET")))
    other.start()
    wait_until((server.cgi / "has-read").exists, 20)
    ask("POST")
    release = threading.Timer(0.5, (server.cgi / "hold").unlink)
    release.start()
    assert ask("GET") == b"a comment\n"
    release.join()
    other.join(20)
    assert old == [b""] and ask("GET") == b"a comment\n"


# A script that reads the comments, and then takes its time, as long as `hold` is there.
COMMENTS = """#!/bin/sh
[ $REQUEST_METHOD = POST ] && { echo "a comment" > said; printf 'Status: 204\\n\\n'; exit; }
found=$(cat said 2>/dev/null)
: > has-read
while [ -e hold ]; do sleep 0.02; done
printf 'Content-Type: text/plain\\nCache-Control: max-age=60\\n\\n'
[ -z "$found" ] || echo "$found"
"""


def a_slow_client_holds_nobody(server: Server) -> None:
    """A request waits for a program, not for the client that has it run: it runs the program again, for all."""

    def ask() -> str:
        with closing(server.connect()) as sock:
            sock.sendall(request_of("GET /cgi-bin/page?huge"))
            _, fields, body = read_response(sock)
            assert len(body) == 7_500_000
            return fields["cache-status"]

    with closing(socket.socket()) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(request_of("GET /cgi-bin/page?huge"))
        assert slow.recv(100).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        assert ask() == "ewe; fwd=uri-miss"
        assert time.monotonic() - began < SHARED_WAIT_S  # or it has waited in vain
        assert ask().startswith("ewe; hit")


class Echo(BaseHTTPRequestHandler):
    """A next server whose page has the fields that it got, and that trusts its Vary."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = "\n".join(f"{name}: {value}" for name, value in self.headers.items()).encode()
        self.send_response(200)
        for name, value in (("Cache-Control", "max-age=60"), ("Vary", "Accept, Accept-Language")):
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def test_a_stranger_plants_nothing(start: Start, model: str) -> None:
    """Whatever a stranger sends, the next visitor gets the page that the visitor's own request makes."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as behind:
        threading.Thread(target=behind.serve_forever, daemon=True).start()
        proxy = ("--proxy", f"/app=http://127.0.0.1:{behind.server_port}")
        server = start(model, "--content-cache", "1m", *proxy)
        script = '#!/bin/sh\nprintf "Cache-Control: max-age=60\\nContent-Type: text/plain\\n\\n"\nenv | grep ^HTTP_'
        write_program(server.cgi / "env", script)
        visitor = ("Accept: text/html", "Accept-Language: de")
        odd = (
            "X-Forwarded-Ssl: on",
            "X-Forwarded-Protocol: ssl",
            "X-Original-Uri: /admin",
            "X-Odd: stranger",
        )
        with closing(server.connect()) as sock:

            def ask(path: str, *fields: str) -> tuple[str, str]:
                sock.sendall(request_of(f"GET {path}", *fields))
                status, found, body = read_response(sock)
                assert status == 200
                return found["cache-status"], body.decode()

            for number, field in enumerate(("Connection: Accept-Language, Accept", *odd)):
                for path in (f"/app/{number}", f"/cgi-bin/env?{number}"):
                    assert "detail=" in ask(path, *visitor, field)[0]
                    status, page = ask(path, *visitor)
                    assert "hit" not in status and "text/html" in page and "de" in page
                    assert not any(line.partition(": ")[2] in page for line in odd)
                    assert "hit" in ask(path, *visitor)[0] or "fork" in model
        behind.shutdown()
