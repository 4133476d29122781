"""Compression during sending: which responses, for which clients, entity tags, and unchanged content."""

from __future__ import annotations

import gzip
import os
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import needs
from support.memory import MemoryStream
from support.server import MODELS, Server, Starter, write_program
from support.wire import read_response, request_of

from ewe.config.settings import Config
from ewe.features import compression as compression_module
from ewe.features.compression import Compression, Encoded
from ewe.features.static import ENTRY_BYTES, MAX_CACHED_BYTES
from ewe.http import codings
from ewe.http.limits import RequestLimits
from ewe.http.messages import Request, Response, Source
from ewe.http.parser import parse_request
from ewe.http.status import HTTPError
from ewe.sites import make_site
from ewe.streams.blocking import run

brotli = needs.module("brotli")
zstd = needs.module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd", "zstd")
pytestmark = pytest.mark.needs("brotli", "zstd")  # a request names several codings

TEXT = "".join(f"{number}: all sheep look the same to a wolf\n" for number in range(1000)).encode()  # 40 KB
LONG = TEXT * 30  # 1.2 MB
DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.decompress,
    "br": lambda body: bytes(brotli.decompress(body)),
    "zstd": lambda body: bytes(zstd.decompress(body)),
    "": bytes,
}
PROGRAM = """#!/bin/sh
echo "Content-Type: text/plain"
count=500
case $QUERY_STRING in
cookie) echo "Set-Cookie: session=1" ;;
still) echo "Cache-Control: max-age=5, No-Transform" ;;
long) count=40000 ;;
tag) echo 'ETag: "abc"'
    case $HTTP_IF_NONE_MATCH in *\\"abc\\"*) echo "Status: 304 Not Modified"; echo; exit ;; esac ;;
esac
echo
if [ "$QUERY_STRING" = slow ]; then
    echo "the first line"
    while [ ! -e go ]; do sleep 0.02; done
fi
[ "$REQUEST_METHOD" = HEAD ] || yes "sheep and wolves" | head -n $count
"""
PROGRAM_TEXT, PROGRAM_LONG = b"sheep and wolves\n" * 500, b"sheep and wolves\n" * 40000


def ask(server: Server, line: str, *fields: str) -> tuple[int, dict[str, str], bytes]:
    """Return status, fields and body of one request on a connection."""
    with server.connect() as sock:
        sock.sendall(request_of(line, *fields, "Connection: close"))
        return read_response(sock, line.partition(" ")[0])


def decoded(fields: dict[str, str], body: bytes) -> bytes:
    """Return a body as the client understands it."""
    return DECODERS[fields.get("content-encoding", "")](body)


SHARED_FILES = {
    "small.txt": TEXT,
    "large.txt": LONG,
    "picture.png": TEXT,
    "tiny.txt": b"x" * 1023,
    "noise.txt": os.urandom(2000),
    "beside.txt": TEXT,
    "beside.txt.gz": gzip.compress(b"of the sidecar"),
}
in_each_coding = pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "identity"])


@pytest.fixture(scope="module")
def published(start_shared: Starter) -> None:
    """The files and the program of the shared servers."""
    for name, content in SHARED_FILES.items():
        (start_shared.directory / "htdocs" / name).write_bytes(content)
    write_program(start_shared.directory / "cgi-bin" / "say", PROGRAM)
    wait_until_settled(start_shared.directory / "htdocs" / "beside.txt.gz")


@pytest.fixture(scope="module", params=MODELS)
def compressing(request: pytest.FixtureRequest, start_shared: Starter, published: None) -> Server:
    """A server of each model that compresses, for the tests that leave it as it is."""
    return start_shared(request.param, "--compress", "all", "--cache", "1m")


@in_each_coding
def test_bodies_come_back_the_same(compressing: Server, coding: str) -> None:
    """Files small and large, programs short and long, with each coding, GET and HEAD."""
    accept = f"Accept-Encoding: {coding}"
    sent = coding.removeprefix("identity")
    for target, expected in (
        ("/small.txt", TEXT),
        ("/small.txt", TEXT),  # from the cache
        ("/large.txt", LONG),
        ("/cgi-bin/say?x", PROGRAM_TEXT),
        ("/cgi-bin/say?long", PROGRAM_LONG),
    ):
        if coding == "br" and "cgi" in target:
            continue  # each program costs a start
        status, fields, body = ask(compressing, f"GET {target}", accept)
        assert (status, fields.get("content-encoding", "")) == (200, sent), target
        assert decoded(fields, body) == expected, target
        assert fields["vary"] == "Accept-Encoding", target
        assert ("accept-ranges" in fields) == (not sent and "cgi" not in target), target
        if sent:
            assert len(body) < len(expected) / 4, target
        of_head = ask(compressing, f"HEAD {target}", accept)[1]
        # A length that only encoding would tell may be missing: RFC 9110 section 9.3.2
        for name in ("date", "transfer-encoding", "content-length"):
            if name != "content-length" or "cgi" in target:
                fields.pop(name, None), of_head.pop(name, None)
        assert of_head == fields, target


@in_each_coding
@pytest.mark.parametrize("target", ["/picture.png", "/tiny.txt"])
def test_what_is_not_compressed(compressing: Server, coding: str, target: str) -> None:
    _, fields, body = ask(compressing, f"GET {target}", f"Accept-Encoding: {coding}")
    assert "content-encoding" not in fields and "vary" not in fields
    assert body == SHARED_FILES[target[1:]]


@pytest.mark.parametrize("target", ["/small.txt", "/large.txt", "/cgi-bin/say?x"])
def test_each_coding_has_a_tag_of_its_own(compressing: Server, target: str) -> None:
    """Asked twice, a file has the same tag; a program that sends no tag has none."""
    codings = ("gzip", "br", "zstd", "identity", "gzip")
    tags = [
        ask(compressing, f"HEAD {target}", f"Accept-Encoding: {coding}")[1].get("etag") for coding in codings
    ]
    if "cgi" in target:
        assert set(tags) == {None}
    else:
        assert tags[0] == tags[-1] and None not in tags and len(set(tags)) == 4, tags


@pytest.mark.parametrize("accept", ["gzip", "identity", "br, gzip;q=0.5"])
def test_a_body_that_compression_does_not_shorten_is_sent_plain(compressing: Server, accept: str) -> None:
    _, fields, body = ask(compressing, "GET /noise.txt", f"Accept-Encoding: {accept}")
    assert "content-encoding" not in fields and fields["vary"] == "Accept-Encoding"
    assert body == SHARED_FILES["noise.txt"]


@pytest.mark.parametrize(
    ("coding", "expected"), [("gzip", b"of the sidecar"), ("zstd", TEXT)], ids=["gzip", "zstd"]
)
def test_a_compressed_file_beside_the_file_is_first(
    compressing: Server, coding: str, expected: bytes
) -> None:
    """For the coding that it has."""
    assert decoded(*ask(compressing, "GET /beside.txt", f"Accept-Encoding: {coding}")[1:]) == expected


def wait_until_settled(path: Path) -> None:
    """Wait until files as old as this one are cached (ewe.bounded.SETTLED_S)."""
    while time.time() - os.stat(path).st_ctime < 0.06:
        time.sleep(0.01)


@pytest.mark.parametrize("target", ["/small.txt", "/large.txt", "/cgi-bin/say?tag"])
def test_a_tag_finds_its_own_coding_again(compressing: Server, target: str) -> None:
    plain = ask(compressing, f"GET {target}")[1]
    packed = ask(compressing, f"GET {target}", "Accept-Encoding: gzip")[1]
    assert packed["etag"] == f'W/{plain["etag"][:-1]}-gzip"'
    for tag, accept in (
        (plain["etag"], "identity"),
        (packed["etag"], "gzip"),
        (packed["etag"], "br, gzip"),
    ):
        conditions = f"Accept-Encoding: {accept}", f"If-None-Match: {tag}"
        status, fields, _ = ask(compressing, f"GET {target}", *conditions)
        assert (status, fields["etag"], fields["vary"]) == (304, tag, "Accept-Encoding"), conditions
    other = packed["etag"].replace("gzip", "lzma")
    assert ask(compressing, f"GET {target}", "Accept-Encoding: gzip", f"If-None-Match: {other}")[0] == 200


def test_a_range_is_never_of_a_compressed_body(compressing: Server) -> None:
    plain = ask(compressing, "GET /small.txt")[1]
    packed = ask(compressing, "GET /small.txt", "Accept-Encoding: gzip")[1]
    for tag, status in ((plain["etag"], 206), (packed["etag"], 200)):
        part = "Range: bytes=10-19", f"If-Range: {tag}"
        found, fields, body = ask(compressing, "GET /small.txt", "Accept-Encoding: gzip", *part)
        assert (found, fields["etag"]) == (status, plain["etag"]) and "content-encoding" not in fields
        assert body == (TEXT[10:20] if status == 206 else TEXT)


def test_a_program_may_forbid_compression(compressing: Server) -> None:
    fields = ask(compressing, "GET /cgi-bin/say?still", "Accept-Encoding: gzip")[1]
    assert "content-encoding" not in fields and "vary" not in fields


def test_an_old_client_gets_a_body_in_pieces_uncompressed(compressing: Server) -> None:
    """HTTP/1.0 has no chunks."""
    fields = ask(compressing, "GET /large.txt HTTP/1.0", "Accept-Encoding: gzip")[1]
    assert "content-encoding" not in fields


def test_the_first_line_comes_at_once(compressing: Server) -> None:
    """The first line of a program is decoded before the program goes on."""
    with compressing.connect() as sock:
        sock.sendall(request_of("GET /cgi-bin/say?slow", "Accept-Encoding: gzip"))
        with sock.makefile("rb") as file:
            while file.readline() != b"\r\n":
                pass
            decoder, text = zlib.decompressobj(31), b""
            while size := int(file.readline(), 16):
                text += decoder.decompress(file.read(size))
                file.readline()
                if text == b"the first line\n":
                    (compressing.cgi / "go").touch()
            assert text == b"the first line\n" + PROGRAM_TEXT
    (compressing.cgi / "go").unlink()


# Without a server


class Program(Source):
    """A body of these pieces."""

    def __init__(self, *pieces: bytes, length: int | None = None) -> None:
        self.pieces = [*pieces]
        self.length = length
        self.closed = 0

    async def receive(self) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    async def close(self) -> None:
        self.closed += 1


def request(*lines: str, line: str = "GET / HTTP/1.1") -> Request:
    """Return a request with these field lines."""
    return parse_request("\r\n".join((line, "Host: ewe", *lines, "", "")).encode("latin-1"), RequestLimits())


def compressed(
    response: Response, *lines: str, line: str = "GET / HTTP/1.1", told: bool = False, **settings: Any
) -> Response:
    """Return a feature's response as a site that compresses sends it. told: an authorizer has named the user."""

    class Inner:
        async def respond(self, request: Request, io: object) -> Response:
            return response

    io = MemoryStream([])
    if told:
        io.variables = {b"REMOTE_USER": b"ada"}
    compression = Compression(Config(**{"compress": "all", **settings}))
    return run(compression.around(Inner(), Inner()).respond(request(*lines, line=line), io))


def text(*fields: tuple[str, str], status: int = 200, body: Any = TEXT, kind: str = "text/plain") -> Response:
    """Return a program's response."""
    return Response(status, (("Content-Type", kind), *fields), body)


GZIP = "Accept-Encoding: gzip"


@pytest.mark.parametrize(
    ("response", "is_compressed"),
    [
        (text(), True),
        (text(status=201), True),
        (text(status=404), True),
        (text(status=500), True),
        (text(status=301), False),
        (text(("Content-Range", "bytes 0-9/10"), status=206), False),
        (text(("Content-Encoding", "br")), False),
        (text(("content-encoding", "identity")), False),
        (text(("Cache-Control", "no-transform")), False),
        (text(("Cache-Control", "public,NO-TRANSFORM , max-age=1")), False),
        (text(("Cache-Control", "x-no-transform-y")), True),
        (text(("Repr-Digest", "sha-256=:AA==:")), False),
        (text(("Content-MD5", "AA==")), False),
        (text(body=b"x" * 1023), False),
        (text(body=b"x" * 1024), True),
        (text(body=Program(TEXT)), True),
        (text(body=Program(b"x", length=1)), False),
        (text(body=Program(TEXT, length=len(TEXT))), True),
        (text(kind="text/html; charset=utf-8"), True),
        (text(kind="TEXT/HTML;charset=x"), True),
        (text(kind="text/event-stream"), True),
        (text(kind="application/ld+json"), True),
        (text(kind="image/svg+xml"), True),
        (text(kind="image/png"), False),
        (text(kind="application/zip"), False),
        (text(kind="application/jsonp"), False),
        (text(kind="x/application/json"), False),
        (text(kind="image/png;text/html"), False),
        (text(kind=""), False),
        (Response(200, (), TEXT), False),
    ],
)
def test_what_is_compressed(response: Response, is_compressed: bool) -> None:
    found = compressed(response, GZIP)
    assert (found.get("content-encoding") == "gzip") == is_compressed
    assert (found.get("vary") == "Accept-Encoding") == is_compressed
    if not is_compressed:
        assert found is response


@pytest.mark.parametrize(
    ("setting", "lines", "response", "told", "is_compressed"),
    [
        ("files", (), text(), False, False),
        ("public", (), text(), False, True),
        ("public", ("Cookie: a=b",), text(), False, False),
        ("public", ("Authorization: Basic eA==",), text(), False, False),
        ("public", (), text(), True, False),
        ("public", (), text(("Set-Cookie", "a=b")), False, False),
        ("public", (), text(("Cache-Control", "max-age=1, private")), False, False),
        ("all", ("Cookie: a=b", "Authorization: Basic eA=="), text(("Set-Cookie", "a=b")), True, True),
    ],
)
def test_pages_of_one_visitor(
    setting: str, lines: tuple[str, ...], response: Response, told: bool, is_compressed: bool
) -> None:
    """BREACH needs a secret and a visitor's text in one compressed page."""
    found = compressed(response, GZIP, *lines, told=told, compress=setting)
    assert (found.get("content-encoding") == "gzip") == is_compressed


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    types = {"compress_types": "application/*", "compress_min_size": "50k"}
    assert compressed(text(kind="application/pdf", body=LONG), GZIP, **types).get("vary")
    assert not compressed(text(kind="application/pdf"), GZIP, **types).get("vary")
    assert not compressed(text(body=LONG), GZIP, **types).get("vary")
    assert not compressed(text(), GZIP, compress_types="").get("vary")
    every = "Accept-Encoding: br, gzip, zstd"
    for order, first in (("", "zstd"), ("gzip, br", "gzip"), ("br", "br")):
        assert compressed(text(), every, compress_codings=order).get("content-encoding") == first

    def missing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(codings, "import_module", missing)
    assert [*codings.makers()] == ["gzip"]
    with pytest.raises(ValueError, match=r"pip install brotli, or leave it out \(compress-codings\)"):
        codings.makers(("gzip", "br"))


def test_fields_merge_and_a_shared_response_stays_as_it_is() -> None:
    shared = text(("Vary", "Cookie"), ("vary", "Origin"), ("ETag", 'W/"x"'), ("Accept-Ranges", "bytes"))
    before = shared.fields
    found = compressed(shared, GZIP)
    assert [field for field in found.fields if field[0].lower() == "vary"] == [
        ("Vary", "Cookie, Origin, Accept-Encoding")
    ]
    assert found.get("etag") == 'W/"x-gzip"' and found.get("accept-ranges") is None
    assert compressed(shared).get("etag") == 'W/"x"'
    assert compressed(text(("Vary", "*")), GZIP).get("vary") == "*"
    assert compressed(text(("Vary", "accept-encoding")), GZIP).get("vary") == "accept-encoding"
    assert shared.fields is before


def test_a_tag_is_translated_for_the_features() -> None:
    seen: list[Request] = []

    class Inner:
        async def respond(self, request: Request, io: object) -> Response:
            seen.append(request)
            return Response(304, (("ETag", '"a"'), ("Vary", "Cookie")))

    compression = Compression(Config(compress="all"))
    for tag, passed, answered in (
        ('W/"a-br"', 'W/"a-br", W/"a"', 'W/"a-br"'),
        ('W/"a-br", W/"a-gzip"', 'W/"a-br", W/"a-gzip", W/"a", W/"a"', 'W/"a-gzip"'),
        ('"a"', '"a"', '"a"'),
        ('"a-gzip"', '"a-gzip"', '"a"'),  # strong: of a compressed file beside a file
        ('"a", W/"a-br"', '"a", W/"a-br", W/"a"', '"a"'),
    ):
        asked = request(f"If-None-Match: {tag}", GZIP)
        found = run(compression.around(Inner(), Inner()).respond(asked, MemoryStream([])))
        assert seen.pop().values["if-none-match"] == passed
        assert (found.get("etag"), found.get("vary")) == (answered, "Cookie, Accept-Encoding")
        assert asked.values["if-none-match"] == tag


def test_a_body_that_ends_early_is_cut() -> None:
    for program, early, cause in (
        (Program(b"x" * 5000, length=5001), True, ""),
        (Program(b"x" * 5000, length=5000), False, ""),
        (Program(b"x" * 5000, b"y", length=5000), False, "more than the 5000 bytes of its Content-Length"),
    ):
        found = compressed(text(body=program), GZIP)
        assert isinstance(found.body, Encoded) and found.length is None
        data = b""
        try:
            while piece := run(found.body.receive()):
                data += piece
            assert not early and gzip.decompress(data) == b"x" * 5000
        except HTTPError as cut:
            assert early and cut.status == 502
        run(found.close())
        assert program.closed == 1 and found.cause == cause


class BrotliDecoder:
    """The decoder keeps the last 16 bytes of a large piece until it is called again."""

    def __init__(self) -> None:
        self.decoder = brotli.Decompressor()

    def __call__(self, data: bytes) -> bytes:
        text = self.decoder.process(data)
        while not self.decoder.is_finished() and (more := self.decoder.process(b"")):
            text += more
        return text


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
def test_every_piece_can_be_decoded_when_it_comes(coding: str) -> None:
    pieces = [b"a" * 3, b"b", b"c" * 100_000, b"d"]
    found = compressed(text(body=Program(*pieces)), f"Accept-Encoding: {coding}")
    assert isinstance(found.body, Encoded)
    decoder: Any = {
        "gzip": lambda: zlib.decompressobj(31).decompress,
        "br": BrotliDecoder,
        "zstd": lambda: zstd.ZstdDecompressor().decompress,
    }[coding]()
    come, wanted = b"", b""
    for piece in pieces:
        wanted += piece
        while len(come) < len(wanted):
            come += decoder(run(found.body.receive()))
        assert come == wanted
    decoder(run(found.body.receive()))
    assert run(found.body.receive()) == b""


@pytest.mark.parametrize("unit", ["gzip;q=0.5,", ",", ";", "q=", "gzip;q=1;", "*;q=0,", "\xff,", "x-gzip , "])
def test_a_hostile_field_costs_little(unit: str) -> None:
    compression = Compression(Config(compress="all"))
    for number in range(1000):
        compression.choice(request(f"Accept-Encoding: br;q=0.{number}, x{number}"))
        compression.is_compressed_type(f"text/x{number}")
    long = unit * (16000 // len(unit))
    began = time.process_time()
    for _ in range(10):
        assert compression.choice(request(f"Accept-Encoding: {long}")) in ("", "gzip")
    assert time.process_time() - began < 1
    assert len(compression.choices) <= 512 and len(compression.types) <= 512
    assert not any(len(key) > 128 for key in compression.choices)


def test_the_cache_counts_what_is_compressed(tmp_path: Path) -> None:
    room = 100 * 1024
    for number in range(8):
        (tmp_path / f"{number}.txt").write_bytes(os.urandom(9000).hex().encode())
    (tmp_path / "edge.txt").write_bytes(b"x" * MAX_CACHED_BYTES)
    wait_until_settled(tmp_path / "edge.txt")
    site = make_site(Config(documentroot=tmp_path, compress="files", cache=room, cgi_path="/nowhere"))
    assert site.plan is not None
    static = site.plan.static
    for name in [f"{number}.txt" for number in range(8)] * 3 + ["edge.txt"] * 3:
        for coding in ("gzip", "br", "zstd", "identity"):
            asked = request(f"Accept-Encoding: {coding}", line=f"GET /{name} HTTP/1.1")
            found = run(site.respond(asked, MemoryStream([])))
            assert isinstance(found.body, bytes)
            assert (
                decoded({"content-encoding": found.get("content-encoding") or ""}, found.body)
                == (tmp_path / name).read_bytes()
            )
            held = 0
            for entry in static.cache.values():
                response = entry.file.response
                held += entry.file.size + ENTRY_BYTES
                for variant in response.variants.values():
                    held += ENTRY_BYTES + (len(variant.body) if variant.body is not response.body else 0)
            assert held == static.used_bytes == sum(entry.cost for entry in static.cache.values()) <= room
    # Unchanged files are compressed once.
    again = [
        run(site.respond(request(GZIP, line="GET /edge.txt HTTP/1.1"), MemoryStream([]))) for _ in range(2)
    ]
    assert again[0] is again[1]
    os.utime(tmp_path / "edge.txt", (1, 1))
    static.cache["/edge.txt"].checked_at = 0.0
    changed = run(site.respond(request(GZIP, line="GET /edge.txt HTTP/1.1"), MemoryStream([])))
    assert changed.get("etag") != again[0].get("etag")


def test_only_so_many_bodies_are_encoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each encoder holds memory as long as its client reads."""
    monkeypatch.setattr(compression_module, "MAX_STREAMS", 3)
    compression = Compression(Config(compress="all"))
    asked = request(GZIP)

    def more() -> Response:
        return run(compression.finish(asked, text(body=Program(TEXT)), MemoryStream([])))

    found = [more() for _ in range(4)]
    assert [each.get("content-encoding") for each in found] == ["gzip"] * 3 + [None]
    assert found[3].get("vary") == "Accept-Encoding"
    run(found[0].with_fields(found[0].fields).close())  # as a finisher changes it
    assert more().get("content-encoding") == "gzip"
