"""Files over real sockets: names, paths, variants, and a cache that nobody notices. The same under every model."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import http.client
import itertools
import os
import re
import socket
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from support import web
from support.examples import examples
from support.proc import descendants, open_files, peak_memory
from support.server import WAYS_TO_WAIT, Server, Start, wait_until
from support.wire import read_response

from ewe.bounded import SETTLED_S
from ewe.config.settings import Config
from ewe.features import languages, static
from ewe.features.files import static_files
from ewe.features.static import COPIED_BYTES, MAX_CACHED_BYTES, CacheEntry, Static, hidden
from ewe.http.dates import http_date, parse_date
from ewe.http.limits import RequestLimits
from ewe.http.messages import Region, Request, Response
from ewe.http.negotiation import preferred_coding
from ewe.http.parser import parse_request
from ewe.http.status import HTTPError
from ewe.streams.blocking import run

Fetched = tuple[int, Message, bytes]
# A test with this mark asks the server that it shares with the tests of this file, once for each way to wait.
in_each_way = pytest.mark.parametrize("shared_server", WAYS_TO_WAIT, indirect=True)


@pytest.fixture
def server(start: Start, way_to_wait: str) -> Server:
    """A server for each way to wait; test_same_bytes.py asks for files under each variant."""
    return start(way_to_wait)


def fetch(server: Server, target: str, *fields: str, method: str = "GET") -> Fetched:
    """Return status, fields and body. Unlike httpx, http.client sends a target as it is given."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        connection.putrequest(method, target, skip_accept_encoding=True)
        for field in fields:
            name, _, value = field.partition(": ")
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        return response.status, response.headers, response.read()


def respond(files: Static, path: str = "/file.txt", *fields: str) -> Response | None:
    """Return the response of Static, without a server."""
    lines = "\r\n".join((f"GET {path} HTTP/1.1", "Host: ewe", *fields, "", ""))
    request = parse_request(lines.encode(), RequestLimits())
    return run(files.respond(request, None))  # type: ignore[arg-type]


# What a file's response says


TEXT = "text/plain; charset=utf-8"
KINDS = {  # the size and the type of each file
    "a.txt": (10, TEXT),
    "a.js": (10, "text/javascript; charset=utf-8"),
    "a.css": (10, "text/css; charset=utf-8"),
    "a.wasm": (10, "application/wasm"),
    "a.svg": (10, "image/svg+xml; charset=utf-8"),
    "unknown": (10, "application/octet-stream"),
    "edge.txt": (MAX_CACHED_BYTES, TEXT),
    "above.txt": (MAX_CACHED_BYTES + 1, TEXT),
    "empty.txt": (0, TEXT),
}


@pytest.fixture(scope="module")
def kinds(shared_server: Server) -> Server:
    """The shared server with the files of KINDS, all of one modification time but the empty one."""
    for name, (size, _) in KINDS.items():
        file = shared_server.root / name
        file.write_bytes(b"x" * size)
        os.utime(file, (10**9, 10**9 if size else -86400))  # before 1970
    return shared_server


@in_each_way
@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, (_, kind) in KINDS.items()], ids=list(KINDS)
)
def test_fields_of_a_file(kinds: Server, name: str, kind: str) -> None:
    first = fetch(kinds, "/" + name)
    status, fields, body = fetch(kinds, "/" + name)  # from the cache, if it is small
    assert status == 200 and body == (kinds.root / name).read_bytes() == first[2]
    expected = {
        "content-type": kind,
        "content-length": str(len(body)),
        "last-modified": http_date(os.stat(kinds.root / name).st_mtime),
        "accept-ranges": "bytes",
        "x-content-type-options": "nosniff",
        "vary": None,
        "content-encoding": None,
        "etag": first[1]["etag"],
    }
    assert {name: fields[name] for name in expected} == expected
    assert re.fullmatch(r'"[!#-~]+"', fields["etag"])  # strong: no W/


@in_each_way
def test_no_two_files_have_one_etag(kinds: Server) -> None:
    etags = {name: fetch(kinds, "/" + name)[1]["etag"] for name in KINDS}
    assert len(set(etags.values())) == len(KINDS), etags


@in_each_way
def test_a_modification_in_the_future_is_one_of_now(shared_server: Server) -> None:
    """RFC 9110 section 8.8.2.1."""
    file = shared_server.root / "tomorrow.txt"
    file.write_text("not yet")
    os.utime(file, (10**9, time.time() + 86400))
    _, fields, _ = fetch(shared_server, "/tomorrow.txt")
    modified, now = parse_date(fields["last-modified"]), parse_date(fields["date"])
    assert modified is not None and now is not None and modified <= now


def test_names(server: Server) -> None:
    """The URL of a file leads to it, for every name of a file."""
    names = [
        b"with space.txt", b"100% wool.txt", b"%41.txt", b"what?.txt", b"a#b.txt", b"a&b=c;d.txt", b"+.txt",
        b"back\\slash.txt", b"quote'\".txt", b"<b>.txt", b"a:b.txt", b"~tilde.txt", b"[x].txt", b"a|b.txt",
        b"caf\xc3\xa9.txt", b"caf\xe9.txt", b"\xff\xfe.txt", b"\xf0\x9f\x90\x91.txt", b"line\nfeed.txt",
        b"a..b.txt", b"x" * 251 + b".txt", b"com1", b"index.html.txt",
    ]  # fmt: skip
    directory = os.fsencode(server.root) + b"/d\xe9j\xe0 vu"
    os.mkdir(directory)
    for name in names:
        for parent in (os.fsencode(server.root), directory):
            with open(parent + b"/" + name, "wb") as file:
                file.write(name)
    with web.Client(base_url=server.url) as client:
        for name in names:
            for parent in ("", "d%E9j%E0%20vu/"):
                response = client.get(parent + quote(name))
                assert (response.status_code, response.content) == (200, name)
    # Names nobody can have, and paths no system call takes
    for target in (
        "/" + "x" * 256,
        "/" + "x" * 5000,
        "/" + "x/" * 2500,
        "/" + "%C3%A9" * 200,
        "/index.html" * 100,
    ):
        assert fetch(server, target)[0] == 404, target[:30]


@pytest.fixture(scope="module")
def directories(shared_server: Server) -> Server:
    """The shared server with directories, each with an index that names it."""
    for name in ("docs", "a b", "caf\u00e9", "evil.example", "what?#", "index"):
        (shared_server.root / name).mkdir()
        (shared_server.root / name / "index.html").write_text(f"index of {name}")
    return shared_server


@in_each_way
@pytest.mark.parametrize(
    ("target", "location"),
    [
        ("/docs", "/docs/"),
        ("/docs?a=1&b=%20", "/docs/?a=1&b=%20"),
        ("/docs?", "/docs/?"),
        ("/docs?/../x//y", "/docs/?/../x//y"),
        ("/a%20b?q", "/a%20b/?q"),
        ("/caf%c3%a9", "/caf%C3%A9/"),
        ("/what%3f%23?x", "/what%3F%23/?x"),
        ("/docs/../docs", "/docs/"),
        # Never to another host: //evil.example would be one (RFC 3986 section 4.2)
        ("//evil.example", "/evil.example/"),
        ("///evil.example", "/evil.example/"),
        ("//evil.example/../evil.example", "/evil.example/"),
        ("/%2e//evil.example", "/evil.example/"),
        ("/docs/..//evil.example", "/evil.example/"),
        ("http://ewe//evil.example", "/evil.example/"),
    ],
)
def test_a_directory_is_redirected_to_its_slash(directories: Server, target: str, location: str) -> None:
    for method in ("GET", "HEAD"):
        status, fields, body = fetch(directories, target, method=method)
        assert (status, fields["location"]) == (301, location), method
        assert (location in body.decode().replace("&amp;", "&")) is (method == "GET")


@in_each_way
def test_a_path_back_to_the_root_is_the_root(directories: Server) -> None:
    for target in ("//evil.example/..", "//evil.example/%2e%2e", "/docs/..", "/.", "//", "/docs/../"):
        status, fields, body = fetch(directories, target)
        assert (status, fields["location"]) == (200, None) and b"welcome" in body, target


@in_each_way
def test_a_directory_is_its_index(directories: Server) -> None:
    for target in ("/docs/", "/docs/.", "/docs/?a=1", "/docs//", "/docs/index.html"):
        status, fields, body = fetch(directories, target)
        assert (status, body) == (200, b"index of docs"), target
        assert fields["content-type"] == "text/html; charset=utf-8" and fields["etag"], target


@in_each_way
def test_an_index_has_conditions_ranges_and_variants(directories: Server) -> None:
    etag = fetch(directories, "/docs/index.html")[1]["etag"]
    assert fetch(directories, "/docs/", f"If-None-Match: {etag}")[0] == 304
    assert fetch(directories, "/docs/", "Range: bytes=0-4")[2] == b"index"
    (directories.root / "index" / "index.html.gz").write_bytes(gzip.compress(b"zipped"))
    status, fields, body = fetch(directories, "/index/", "Accept-Encoding: gzip")
    assert (status, fields["content-encoding"], gzip.decompress(body)) == (200, "gzip", b"zipped")


@in_each_way
def test_a_file_is_no_directory(directories: Server) -> None:
    expected = dict.fromkeys(("/docs/index.html/", "/docs/index.html/x", "/nowhere/"), 404)
    assert {target: fetch(directories, target)[0] for target in expected} == expected


def test_settings_of_the_index(start: Start, way_to_wait: str) -> None:
    server = start(way_to_wait, "--defaultindex", "start.txt", "--no-indexes")
    (server.root / "docs").mkdir()
    (server.root / "docs" / "index.html").write_text("index of docs")
    (server.root / "docs" / "start.txt").write_text("start")
    assert fetch(server, "/docs/")[::2] == (200, b"start")
    assert fetch(server, "/")[0] == 403 and fetch(server, "/docs")[0] == 301


# Compressed variants


PLAIN = b"plain text " * 20_000
VARIANTS_OF_PAGE = {
    "": PLAIN,
    "br": b"brotli",
    "zstd": b"zstandard" * 10_000,
    "gzip": gzip.compress(PLAIN, mtime=0),
}


@pytest.fixture(scope="module")
def page_etags(shared_server: Server) -> dict[str, str]:
    """The tags of page.html on the shared server and of its compressed variants, by the name of their coding."""
    etags = {}
    for coding, suffix in (("", ""), ("br", ".br"), ("zstd", ".zst"), ("gzip", ".gz")):
        (shared_server.root / ("page.html" + suffix)).write_bytes(VARIANTS_OF_PAGE[coding])
    for coding in VARIANTS_OF_PAGE:
        etags[coding] = fetch(shared_server, "/page.html", f"Accept-Encoding: {coding}")[1]["etag"]
    return etags


@in_each_way
@pytest.mark.parametrize(
    ("accepts", "coding"),
    [
        (None, ""),
        ("", ""),
        ("gzip", "gzip"),
        ("x-gzip", "gzip"),
        ("GZIP", "gzip"),
        ("gzip, deflate, br, zstd", "br"),  # browsers send this value
        ("gzip, deflate", "gzip"),
        ("zstd, gzip", "zstd"),
        ("br;q=0.5, gzip;q=0.8, zstd;q=0.6", "gzip"),
        ("br;q=0, gzip;q=0, *", "zstd"),
        ("*", "br"),
        ("*;q=0", ""),
        ("gzip;q=0", ""),
        ("identity, gzip;q=0.5", ""),
        ("identity;q=0", ""),  # nothing it takes is there, so it gets the file
        ("identity;q=0, *", "br"),
        ("identity;q=0, gzip;q=0.001", "gzip"),
        ("deflate", ""),
        ("gzip;q=0\u00b2, br;q=x", ""),  # no weights
    ],
)
def test_a_client_gets_the_variant_it_accepts(
    shared_server: Server, page_etags: dict[str, str], accepts: str | None, coding: str
) -> None:
    """The variant, and its own conditions and ranges."""
    accepted = () if accepts is None else (f"Accept-Encoding: {accepts}",)
    etag, expected = page_etags[coding], VARIANTS_OF_PAGE[coding]

    def ask(*fields: str, method: str = "GET") -> Fetched:
        return fetch(shared_server, "/page.html", *accepted, *fields, method=method)

    status, got, body = ask()
    assert status == 200 and got.get("content-encoding", "") == coding
    assert body == expected
    about = got["vary"], got["content-type"], got["content-length"], got["etag"]
    assert about == ("Accept-Encoding", "text/html; charset=utf-8", str(len(body)), etag)
    assert not etag.startswith("W/")
    status, same, nothing = ask(f"If-None-Match: {etag}")
    assert (status, nothing, same["etag"], same["vary"]) == (304, b"", etag, "Accept-Encoding")
    status, part, piece = ask("Range: bytes=2-4", f"If-Range: {etag}")
    assert (status, piece, part.get("content-encoding", "")) == (206, expected[2:5], coding)
    assert (part["content-range"], part["vary"]) == (f"bytes 2-4/{len(body)}", "Accept-Encoding")
    status, head, nothing = ask(method="HEAD")
    assert (status, nothing, head["content-length"], head["etag"]) == (200, b"", str(len(body)), etag)


@in_each_way
def test_each_variant_has_a_tag_of_its_own(shared_server: Server, page_etags: dict[str, str]) -> None:
    """RFC 9110 section 8.8.3.3."""
    assert len(set(page_etags.values())) == 4, page_etags
    for coding in ("br", "zstd", "gzip"):
        conditions = f"If-None-Match: {page_etags['']}", f"If-Match: {page_etags[coding]}"
        assert fetch(shared_server, "/page.html", f"Accept-Encoding: {coding}", *conditions)[0] == 200, coding


@in_each_way
def test_a_variant_asked_for_by_its_name_is_a_file(shared_server: Server, page_etags: dict[str, str]) -> None:
    status, got, body = fetch(shared_server, "/page.html.gz", "Accept-Encoding: gzip")
    assert (status, got["content-type"], got["content-encoding"]) == (200, "application/gzip", None)
    assert body == VARIANTS_OF_PAGE["gzip"] and "vary" not in got


@in_each_way
def test_variants_of_a_small_file(shared_server: Server) -> None:
    """The cache holds both, and httpx decodes what it gets."""
    (shared_server.root / "style.css").write_text("plain")
    (shared_server.root / "style.css.gz").write_bytes(gzip.compress(b"plain"))
    with web.Client(base_url=shared_server.url) as client:
        settle()
        for coding in ("", "gzip", "gzip", "", "", "br", "gzip"):
            response = client.get("/style.css", headers={"Accept-Encoding": coding})
            assert response.text == "plain" and response.headers["vary"] == "Accept-Encoding"
            assert response.headers.get("content-encoding") == (coding if coding == "gzip" else None)


@in_each_way
def test_a_file_beside_another_that_is_no_variant_of_it(shared_server: Server) -> None:
    """A variant without its file, a directory, a FIFO, and a link out of the document root."""
    root = shared_server.root
    (root / "alone.txt.gz").write_bytes(b"x")
    assert fetch(shared_server, "/alone.txt", "Accept-Encoding: gzip")[0] == 404
    (root / "odd.txt").write_text("odd")
    (root / "odd.txt.gz").mkdir()
    os.mkfifo(root / "odd.txt.br")
    (root.parent / "outside").write_text("secret")
    (root / "odd.txt.zst").symlink_to(root.parent / "outside")
    status, got, body = fetch(shared_server, "/odd.txt", "Accept-Encoding: gzip, br, zstd")
    assert (status, body, got["content-encoding"]) == (200, b"odd", None)
    assert fetch(shared_server, "/odd.txt.zst")[0] == 404


@pytest.mark.parametrize(
    ("accepts", "there", "expected"),
    [
        (None, "br gzip", ""),
        ("br", "gzip", ""),
        ("br, gzip", "gzip", "gzip"),
        ("br, gzip", "br gzip", "br"),
        ("gzip, br", "br gzip", "br"),
        ("gzip;q=1.0, br;q=0.999", "br gzip", "gzip"),
        ("gzip ; q=0.5 , br\t;\tq=0.4", "br gzip", "gzip"),
        ("gzip;Q=0", "gzip", ""),
        ("gzip;q=0.", "gzip", ""),
        ("gzip;q=0.000", "gzip", ""),
        ("gzip;q=", "gzip", ""),
        ("gzip;q=-1", "gzip", ""),
        ("gzip;q=nan", "gzip", ""),
        ("gzip;q=inf", "gzip", ""),
        ("gzip;q=1e1", "gzip", ""),
        ("gzip;q=0\xb2", "gzip", ""),
        ("gzip;q=0.0.1", "gzip", ""),
        ("identity;q=0.5, gzip;q=0.5", "gzip", "gzip"),
        ("identity;q=0.6, gzip;q=0.5", "gzip", ""),
        ("identity;q=0.6, *;q=0.7", "gzip", "gzip"),
        ("*;q=0.1", "zstd gzip", "zstd"),
        ("*;q=0, gzip;q=0.1", "br gzip", "gzip"),
        ("*, br;q=0", "br gzip", "gzip"),
        ("x-gzip;q=0.5, gzip;q=0", "gzip", ""),
        (", ,gzip,", "gzip", "gzip"),
        ("gzipped, xgzip", "gzip", ""),
    ],
)
def test_preferred(accepts: str | None, there: str, expected: str) -> None:
    assert preferred_coding(accepts, there.split()) == expected


@settings(deadline=None)
@given(some.text(some.sampled_from("; ,=q01.\xb2\xe9gzipbr*-")))
def test_no_field_confuses_preferred(text: str) -> None:
    for value in (text, "gzip;q=" + text, f"br, {text}, gzip;q=0.{text}"):
        assert preferred_coding(value, ("br", "gzip")) in ("", "br", "gzip")


# Files that must not be served


def make_ways_out(root: Path) -> None:
    """Write a secret beside a document root, and make links in it that lead inside, outside and around."""
    secret = root.parent / "secret.txt"
    secret.write_text("SECRET")
    sibling = root.parent / "htdocs-evil"  # its name begins as the root's does
    sibling.mkdir()
    (sibling / "secret.txt").write_text("SECRET")
    (root / "open").mkdir()
    (root / "open" / "file.txt").write_text("open")
    (root / "in.txt").symlink_to("open/file.txt")
    (root / "in-absolute.txt").symlink_to(root / "open" / "file.txt")
    (root / "in-directory").symlink_to("open")
    (root / "out.txt").symlink_to(secret)
    (root / "out-relative.txt").symlink_to("../secret.txt")
    (root / "out-twice.txt").symlink_to("out.txt")
    (root / "out-directory").symlink_to(root.parent)
    (root / "out-sibling").symlink_to(sibling)
    (root / "out-password").symlink_to("/etc/passwd")
    os.symlink(secret, os.fsencode(root) + b"/out-\xff")
    (root / "loop").symlink_to("loop")
    (root / "dangling").symlink_to("nothing")
    (root / "null").symlink_to("/dev/null")
    os.mkfifo(root / "fifo")


@pytest.fixture(scope="module")
def ways_out(shared_server: Server) -> Server:
    """The shared server with links in its document root, and a secret beside it."""
    make_ways_out(shared_server.root)
    return shared_server


@in_each_way
@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/in.txt", 200),
        ("/in-absolute.txt", 200),
        ("/in-directory/file.txt", 200),
        ("/in-directory", 301),
        ("/open/../open/./file.txt", 200),
        ("/open/%2e%2e/open/file.txt", 200),
        ("/%6f%70en/file%2Etxt", 200),
        ("/out.txt", 404),
        ("/out-relative.txt", 404),
        ("/out-twice.txt", 404),
        ("/out-directory", 404),
        ("/out-directory/", 404),
        ("/out-directory/secret.txt", 404),
        ("/out-directory/htdocs/open/file.txt", 200),  # out and in again: the opened file is inside
        ("/out-sibling/secret.txt", 404),
        ("/out-password", 404),
        ("/out-%ff", 404),
        ("/loop", 404),
        ("/dangling", 404),
        ("/../secret.txt", 400),
        ("/open/../../secret.txt", 400),
        ("/%2e%2e/secret.txt", 400),
        ("/%2E%2E/secret.txt", 400),
        ("/.%2e/secret.txt", 400),
        ("/open/%2e%2e/%2e%2e/secret.txt", 400),
        ("//../secret.txt", 400),
        ("/..%2fsecret.txt", 404),
        ("/%2e%2e%2fsecret.txt", 404),
        ("/open%2ffile.txt", 404),
        ("/open%2Ffile.txt", 404),
        ("/%252e%252e/secret.txt", 404),  # decoded once
        ("/..%252fsecret.txt", 404),
        ("/..%5csecret.txt", 404),
        ("/open%5c..%5c..%5csecret.txt", 404),
        ("/..\\secret.txt", 400),
        ("/%c0%ae%c0%ae/secret.txt", 404),  # an overlong dot is no dot
        ("/%c0%af../secret.txt", 404),
        ("/open/file.txt%00", 400),
        ("/open/file.txt%00.html", 400),
        ("/%00", 400),
        ("/open/file.txt%20", 404),
        ("/open/file.txt.", 404),
        ("/open/file.txt/", 404),
        ("/open/file.txt/../file.txt", 200),
        ("http://ewe/../secret.txt", 400),
        pytest.param("/" + "../" * 50 + "etc/passwd", 400, id="fifty-steps-up"),
        pytest.param("/{root}/../secret.txt", 404, id="absolute-path-of-the-secret"),
        ("/proc/self/environ", 404),
    ],
)
def test_paths_stay_inside(ways_out: Server, target: str, expected: int) -> None:
    target = target.replace("{root}/..", str(ways_out.root.parent))
    status, _, body = fetch(ways_out, target)
    assert status == expected
    assert b"SECRET" not in body and b"root:" not in body


DOTFILES = {
    ".htpasswd": 404,
    ".git/config": 404,
    "open/.env": 404,
    "open/.well-known/x": 404,
    ".well-known-not/x": 404,
    ".well-known/.env": 404,
    ".well-known/.git/x": 404,
    ".well-known/a/.b/c": 404,
    ".well-known/file": 200,
}


@in_each_way
def test_dotfiles_are_hidden(shared_server: Server) -> None:
    for name in DOTFILES:
        file = shared_server.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("dot")
    assert {name: fetch(shared_server, "/" + name)[0] for name in DOTFILES} == DOTFILES
    encoded = {name.replace(".", "%2e"): status for name, status in DOTFILES.items()}
    assert {name: fetch(shared_server, "/" + name)[0] for name in encoded} == encoded
    assert fetch(shared_server, "/.well-known")[1]["location"] == "/.well-known/"


@in_each_way
def test_neither_files_nor_directories_are_404_at_once(ways_out: Server) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(os.path.relpath(ways_out.root / "socket"))  # a short name: the kernel takes 107 bytes
        for target in ("/fifo", "/socket", "/fifo/", "/fifo"):
            assert fetch(ways_out, target)[0] == 404, target


def test_symlinks_are_followed_if_a_setting_says_so(start: Start, way_to_wait: str) -> None:
    server = start(way_to_wait, "--symlinks", "follow")
    make_ways_out(server.root)
    for target in (
        "/out.txt",
        "/out-relative.txt",
        "/out-twice.txt",
        "/out-directory/secret.txt",
        "/out-sibling/secret.txt",
    ):
        assert fetch(server, target)[::2] == (200, b"SECRET"), target
    for target in ("/loop", "/dangling", "/null", "/fifo", "/..%2fsecret.txt"):
        assert fetch(server, target)[0] == 404, target
    assert fetch(server, "/../secret.txt")[0] == 400


@pytest.fixture(scope="module")
def trap() -> Iterator[Static]:
    """A root with ways out of it, and something to find there."""
    with tempfile.TemporaryDirectory(prefix="ewe-test-") as name:
        root = Path(name) / "root"
        (root / "a" / "b").mkdir(parents=True)
        (root / ".git").mkdir()
        for file in (
            root.parent / "secret",
            root / ".secret",
            root / ".git" / "secret",
            root / "a" / ".secret",
        ):
            file.write_text("SECRET")
        for file in (root / "b", root / "a" / "file", root / "a" / "index.html"):
            file.write_text("public")
        (root / "up").symlink_to("..")
        (root / "a" / "out").symlink_to("../../secret")
        (root / "a" / "in").symlink_to("../a")
        yield Static(Config(documentroot=str(root), indexes=False))


STEPS = "a b up out in file secret .secret .git .. . %2e%2e %2E . .%2e %2f %2F %5c %00 %c0%ae%c0%ae %252e %2e%2e%2f"


@settings(max_examples=examples(1000), deadline=None)
@given(
    some.lists(some.sampled_from([*STEPS.split(), ""]), max_size=9),
    some.sampled_from(["/", "//", "/./", "http://ewe/"]),
    some.sampled_from(["", "/", "?/../", "/.."]),
)
def test_no_path_leads_to_a_secret(trap: Static, steps: list[str], start: str, end: str) -> None:
    try:
        response = respond(trap, start + "/".join(steps) + end)
    except HTTPError as refused:
        assert refused.status in (400, 403, 404)
        return
    if response is not None:
        assert response.status in (200, 301) and response.body != b"SECRET"
        assert re.match(r"/(?!/)", response.get("location") or "/")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", False),
        ("/a", False),
        ("/a.b/c.", False),
        ("/a..b", False),
        ("/.a", True),
        ("/a/.b", True),
        ("/a/.b/c", True),
        ("/...", True),
        ("/.well-known", False),
        ("/.well-known/", False),
        ("/.well-known/acme-challenge/x", False),
        ("/.well-known/.x", True),
        ("/.well-known/a/.x", True),
        ("/.well-known.x", True),
        ("/.well-knownx/y", True),
        ("/a/.well-known/x", True),
    ],
)
def test_hidden(path: str, expected: bool) -> None:
    assert hidden(path) is expected


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user may enter."""
    with tempfile.TemporaryDirectory(prefix="ewe-test-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_what_may_not_be_read_is_403(public: Path) -> None:
    for name in ("file.txt", "other.txt", "other.txt.gz"):
        (public / name).write_text(name)
    (public / "closed").mkdir()
    (public / "closed" / "file.txt").write_text("x")
    for name in ("file.txt", "closed", "other.txt.gz"):
        os.chmod(public / name, 0)
    files = Static(Config(documentroot=str(public), indexes=False))
    root = os.geteuid() == 0
    if root:  # whom permissions do not bind
        os.seteuid(65534)
    try:
        for path in ("/file.txt", "/closed/file.txt", "/closed/"):
            with pytest.raises(HTTPError) as refused:
                respond(files, path)
            assert refused.value.status == 403
        other = respond(files, "/other.txt", "Accept-Encoding: gzip")  # the variant may not, the file may
        assert other is not None and other.body == b"other.txt"
    finally:
        if root:
            os.seteuid(0)
        os.chmod(public / "closed", stat.S_IRWXU)


# Size


def resident(server: Server) -> int:
    """Return the most memory that one process of the server has taken so far, in bytes."""
    return peak_memory({server.pid, *descendants(server.pid)})


@pytest.mark.timeout(120)
def test_a_large_file_in_constant_memory(server: Server) -> None:
    size = 100_000_000
    marks = (0, 59_999_999, size - 5)
    with (server.root / "large.bin").open("wb") as file:
        for mark in marks:
            file.seek(mark)
            file.write(b"mark!")
        assert file.tell() == size
    assert fetch(server, "/index.html")[0] == 200
    before = resident(server)
    buffer = memoryview(bytearray(1_000_000))
    count, found = 0, []
    with server.connect(30) as sock, sock.makefile("rb", buffering=0) as reader:
        for target in (b"/large.bin", b"/index.html"):
            sock.sendall(b"GET " + target + b" HTTP/1.1\r\nHost: ewe\r\n\r\n")
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += reader.read(1) or b""
        assert f"\r\nContent-Length: {size}\r\n".encode() in head
        while count < size:
            got = reader.readinto(buffer[: min(len(buffer), size - count)])
            assert got
            for mark in marks:
                if count <= mark < count + got:
                    found.append(bytes(buffer[mark - count : mark - count + 1]))
            count += got
        assert resident(server) - before < 30_000_000  # while the process that sent it is there
        assert b"welcome" in read_response(sock)[2]  # the next answer follows the last byte
    assert found == [b"m"] * 3
    status, fields, body = fetch(server, "/large.bin", "Range: bytes=-5")
    assert (status, body, fields["content-range"]) == (206, b"mark!", f"bytes {size - 5}-{size - 1}/{size}")


def test_a_file_that_shrinks_is_not_padded(server: Server) -> None:
    file = server.root / "large.bin"
    file.write_bytes(b"x" * 20_000_000)
    with server.connect() as sock:
        sock.sendall(b"GET /large.bin HTTP/1.1\r\nHost: ewe\r\n\r\n")
        assert sock.recv(1000).startswith(b"HTTP/1.1 200 ")
        os.truncate(file, 1000)
        count = 0
        with contextlib.suppress(ConnectionResetError):
            while data := sock.recv(1_000_000):
                count += len(data)
    assert count < 20_000_000  # the client sees that something is missing
    assert fetch(server, "/large.bin")[2] == b"x" * 1000


def count_open(server: Server) -> int:
    """Return the number of descriptors of all processes."""
    return sum(len(open_files(pid)) for pid in descendants(server.pid))


def test_no_descriptor_stays_open(start: Start, model: str) -> None:
    server = start(model)
    content = os.urandom(MAX_CACHED_BYTES * 20)
    for name in ("small.txt", "small.txt.gz", "large.bin", "large.bin.br", "other.bin"):
        (server.root / name).write_bytes(content if "l" in name[:2] or "o" in name[:1] else b"small")
    requests: list[tuple[str, ...]] = [("/directory",), ("/missing",), ("/",)]
    for path in ("/small.txt", "/large.bin", "/other.bin"):
        for accept in ((), ("Accept-Encoding: gzip, br",)):
            for more in ((), ("Range: bytes=0-9",), ("Range: bytes=0-3,7-7",), ("Range: bytes=9999999-",),
                         ("If-None-Match: *",), ('If-Match: "x"',)):  # fmt: skip
                requests.append((path, *accept, *more))

    def all_once() -> None:
        for request in requests:
            for method in ("GET", "HEAD"):
                fetch(server, *request, method=method)
        for accept in (b"", b"Accept-Encoding: br\r\n"):  # clients that leave in the middle
            with server.connect() as sock:
                sock.sendall(b"GET /large.bin HTTP/1.1\r\nHost: ewe\r\n" + accept + b"\r\n")
                sock.recv(10)

    all_once()
    before = []
    wait_until(lambda: before.append(count_open(server)) or before[-1:] * 5 == before[-5:], 30)
    for _ in range(2):
        all_once()
    slack = 10  # connections that are about to be closed; a leak would be of dozens
    wait_until(
        lambda: count_open(server) <= before[-1] + slack,
        30,
        lambda: f"there were {before[-1]} descriptors, and now {count_open(server)}",
    )


# The cache


def tell(number: int, size: int) -> bytes:
    """Return a content of this size that names its number in every byte."""
    return bytes([65 + number]) * size


CHANGED = (
    "rewritten",
    "grown",
    "same-time",
    "replaced",
    "linked",
    "deleted",
    "zipped",
    "unzipped",
    "made",
    "there/",
)


def make_the_first_versions(root: Path, old: bytes, new: bytes) -> None:
    """Write all of CHANGED but the file that is made later."""
    for name in CHANGED[:-2]:
        (root / name).write_bytes(old)
    (root / "unzipped.gz").write_bytes(tell(2, 500))
    (root / "linked").unlink()
    (root / "first").write_bytes(old)
    (root / "second").write_bytes(new)
    (root / "linked").symlink_to("first")
    (root / "there").mkdir()
    (root / "there" / "index.html").write_bytes(old)
    os.utime(root / "same-time", (10**9, 10**9))


def change_all_at_once(root: Path, old: bytes, new: bytes) -> dict[str, bytes]:
    """Change each of CHANGED in its way; return the new content of each, b"" of one that is gone."""
    before = os.stat(root / "same-time")
    (root / "rewritten").write_bytes(new)
    (root / "grown").write_bytes(new * 100)
    (root / "same-time").write_bytes(new)
    os.utime(root / "same-time", (10**9, 10**9))
    assert os.stat(root / "same-time").st_mtime_ns == before.st_mtime_ns
    (root / "new").write_bytes(new)
    os.replace(root / "new", root / "replaced")
    (root / "linked").unlink()
    (root / "linked").symlink_to("second")
    (root / "deleted").unlink()
    (root / "zipped.gz").write_bytes(tell(3, 500))
    (root / "unzipped.gz").unlink()
    (root / "made").write_bytes(new)
    (root / "there" / "index.html").write_bytes(new)
    others = {"grown": new * 100, "deleted": b"", "zipped": tell(3, 500), "unzipped": old}
    return dict.fromkeys(CHANGED, new) | others


@pytest.mark.parametrize("size", [1000, 100_000])
@pytest.mark.parametrize("name", ["fork", "prefork", "thread", "asyncio --workers 2"])
def test_changes_are_seen_within_a_second(start: Start, name: str, size: int) -> None:
    """After any change of a file, and with any cache: old for at most a second, and never half old.

    The cache of a child, of each of several workers, and of threads that share it.
    """
    old, new = tell(0, size), tell(1, size)
    server = start(name)
    versions: dict[str, tuple[str, bytes]] = {}

    def look(*fields: str) -> dict[str, bytes]:
        """Return every file as it is served; each body must be one whole version, with its own length and tag."""
        served = {}
        for name in CHANGED:
            status, got, body = fetch(server, "/" + name, "Accept-Encoding: gzip", *fields)
            served[name] = b"" if status == 404 else body
            if status != 404:
                assert len(set(body)) == 1 and got["content-length"] == str(len(body)), name
            if status == 200:
                assert versions.setdefault(got["etag"], (name, body)) == (name, body)
        return served

    make_the_first_versions(server.root, old, new)
    settle()
    for _ in range(4):
        first = look()  # now every worker knows them
    assert set(first.values()) == {old, tell(2, 500), b""}
    expected = change_all_at_once(server.root, old, new)
    changed = time.monotonic()
    while time.monotonic() < changed + 1.2:
        look()
        time.sleep(0.02)
    for _ in range(4):
        assert look() == expected
    assert look("Range: bytes=0-9") == {name: body[:10] for name, body in expected.items()}
    assert look() == expected


def test_answers_are_not_mixed(server: Server) -> None:
    """One file, requested with all combinations of fields in every order: each response fits its own request."""
    content = hashlib.shake_128(b"ewe").digest(1000)
    (server.root / "file.bin").write_bytes(content)
    with web.Client(base_url=server.url) as client:
        whole = client.get("/file.bin")
        etag = whole.headers["etag"]
        questions: list[tuple[str, dict[str, str], tuple[int, bytes]]] = [
            ("GET", {}, (200, content)),
            ("HEAD", {}, (200, b"")),
            ("GET", {"Range": "bytes=0-9"}, (206, content[:10])),
            ("GET", {"Range": "bytes=-10"}, (206, content[-10:])),
            ("GET", {"Range": "bytes=5000-"}, (416, b"")),
            ("GET", {"If-None-Match": etag}, (304, b"")),
            ("GET", {"If-None-Match": '"x"'}, (200, content)),
            ("GET", {"If-Match": '"x"'}, (412, b"")),
            ("HEAD", {"If-None-Match": etag}, (304, b"")),
            ("POST", {}, (405, b"")),
            ("OPTIONS", {}, (204, b"")),
        ]
        for one, other in itertools.product(questions, repeat=2):
            for method, headers, (status, body) in (one, other):
                response = client.request(method, "/file.bin", headers=headers)
                assert response.status_code == status
                assert body == response.content or status in (405, 412, 416)
                assert ("content-range" in response.headers) is (status in (206, 416))


def test_the_cache_is_bounded(public: Path) -> None:
    for number in range(50):
        (public / f"{number}.txt").write_bytes(b"x" * 1000)
        (public / f"{number}.txt").touch()
    settle()
    files = Static(Config(documentroot=str(public), cache="20k"))
    for number in list(range(50)) * 2:
        response = respond(files, f"/{number}.txt")
        assert response is not None and response.body == b"x" * 1000
        assert 0 < len(files.cache) <= 10 and files.used_bytes <= files.room
    off = Static(Config(documentroot=str(public), cache="0"))
    response = respond(off, "/1.txt")
    assert response is not None and response.body == b"x" * 1000 and not off.cache


class SharedCache(dict[str, CacheEntry]):
    """A cache to which another thread adds an entry while this one has dropped all, and counts them no longer."""

    add: Callable[[], object]

    def clear(self) -> None:
        super().clear()
        self.add()


def test_an_entry_that_comes_while_all_are_dropped_is_counted(public: Path) -> None:
    for name in ("one", "two"):
        (public / f"{name}.txt").write_text(name)
    settle()
    files = Static(Config(documentroot=str(public)))
    respond(files, "/one.txt")
    cache = files.cache = SharedCache(files.cache)
    cache.add = lambda: respond(files, "/two.txt")
    files.forget_all()
    assert list(cache) == ["/two.txt"] and files.used_bytes >= cache["/two.txt"].cost


def settle() -> None:
    """Wait until no file is so young that it is not remembered."""
    time.sleep(SETTLED_S * 1.5)


def age(files: Static, seconds: float) -> None:
    """Let so many seconds pass, as far as the cache can tell."""
    for known in files.cache.values():
        known.checked_at -= seconds


def test_a_file_is_remembered_and_looked_at_again(public: Path) -> None:
    (public / "file.txt").write_text("one")
    settle()
    files = Static(Config(documentroot=str(public)))
    first = respond(files)
    assert first is not None and respond(files) is first
    (public / "file.txt").write_text("two")
    assert respond(files) is first  # believed for a second
    age(files, 1.1)
    second = respond(files)
    assert second is not None and second.body == b"two"
    settle()
    third = respond(files)
    age(files, 1.1)
    assert respond(files) is third  # looked at, and found unchanged


class WatchedRequest(Request):
    """A request that can have a weak reference."""


def test_the_cache_does_not_keep_the_first_request(public: Path) -> None:
    """Its fields may have many KB, and its body refers to the stream of the client."""
    (public / "file.txt").write_text("one")
    settle()
    files = Static(Config(documentroot=str(public)))
    request = WatchedRequest("GET", "/file.txt", (1, 1), path="/file.txt")
    response = run(files.respond(request, None))  # type: ignore[arg-type]
    assert response is not None and files.cache
    watched = weakref.ref(request)
    del request
    assert watched() is None


def test_a_large_file_stays_open_for_the_next_request(public: Path) -> None:
    file = public / "large.bin"
    file.write_bytes(tell(0, 100_000))
    settle()
    files = Static(Config(documentroot=str(public)))
    respond(files, "/large.bin")
    first, second = respond(files, "/large.bin"), respond(files, "/large.bin")
    assert first is not None and second is not None
    assert region_of(first).file == region_of(second).file  # the same descriptor, at the same time
    assert first.encoded() == second.encoded()
    # In place: the descriptor has the new content at once, and the head has to fit it.
    with file.open("r+b") as stream:
        stream.truncate(99_000)
    third = respond(files, "/large.bin")
    assert third is not None and third.length == 99_000 and third.get("etag") != first.get("etag")


def region_of(response: Response) -> Region:
    assert isinstance(response.body, tuple) and isinstance(response.body[0], Region)
    return response.body[0]


def test_a_response_keeps_its_file_open(public: Path) -> None:
    """Also when the cache has dropped the file meanwhile, because another has its name."""
    for content in (tell(0, 100_000), tell(1, 100_000)):
        (public / "new").write_bytes(content)
        os.replace(public / "new", public / "large.bin")
        if content[:1] == b"A":
            settle()
            files = Static(Config(documentroot=str(public)))
            respond(files, "/large.bin")
            response = respond(files, "/large.bin")
    assert response is not None
    age(files, 1.1)
    settle()
    other = respond(files, "/large.bin")
    assert other is not None
    assert os.pread(region_of(response).file, 10, 0) == b"A" * 10
    assert os.pread(region_of(other).file, 10, 0) == b"B" * 10
    descriptor = region_of(response).file
    del response
    with pytest.raises(OSError):
        os.fstat(descriptor)


@pytest.mark.parametrize("size", [1000, 100_000])
@pytest.mark.parametrize("settings", [{}, {"languages": "en"}])
def test_an_index_file_that_comes_first_is_seen(
    public: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], size: int
) -> None:
    """The cached file of a directory is unchanged, but another one answers for the directory now."""
    monkeypatch.setattr(static, "FILE_CHECK_S", 0.0)
    monkeypatch.setattr(languages, "FILE_CHECK_S", 0.0)
    (public / "index.htm").write_bytes(tell(0, size))
    settle()
    config = Config(documentroot=str(public), defaultindex="index.html, index.htm", **settings)
    files = static_files(config)
    for _ in range(2):
        second = respond(files, "/")
    assert second is not None and second.length == size and "/" in files.cache
    (public / ("index.en.html" if settings else "index.html")).write_bytes(b"first")
    first = respond(files, "/")
    assert first is not None and first.body == b"first"


def test_a_large_index_file_leaves_its_directory_closed(public: Path) -> None:
    (public / "index.html").write_bytes(bytes(100_000))
    files = Static(Config(documentroot=str(public), cache="0"))
    before = len(open_files(os.getpid()))
    for fields in ((), ("Range: bytes=0-9",), ('If-Match: "x"',)):
        response = respond(files, "/", *fields)
        assert response is not None
        if response.release is not None:
            response.release()
    assert len(open_files(os.getpid())) == before


def test_a_body_keeps_its_file_open(public: Path) -> None:
    """A middleware has made another response with it, and the cache has dropped the file meanwhile."""
    (public / "large.bin").write_bytes(tell(0, 100_000))
    settle()
    files = Static(Config(documentroot=str(public)))
    respond(files, "/large.bin")
    response = respond(files, "/large.bin")
    assert response is not None and isinstance(response.body, tuple)
    other = Response(200, (), response.body)
    descriptor = region_of(other).file
    del response
    files.cache.clear()
    assert os.pread(descriptor, 10, 0) == b"A" * 10
    run(other.close())
    with pytest.raises(OSError):
        os.fstat(descriptor)


@pytest.mark.parametrize("size", [1000, 100_000])
def test_a_condition_or_a_range_of_a_remembered_file_opens_nothing(
    public: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    content = tell(0, size)
    (public / "file.txt").write_bytes(content)
    settle()
    files = Static(Config(documentroot=str(public)))
    respond(files)
    monkeypatch.setattr(files, "open", lambda *_: pytest.fail("the file was opened"))
    part = respond(files, "/file.txt", "Range: bytes=500-509")
    assert part is not None and part.status == 206
    assert part.body == content[500:510]
    several = respond(files, "/file.txt", "Range: bytes=0-9,20-29")
    assert several is not None and isinstance(several.body, tuple) and len(several.body) == 5
    unsatisfiable = respond(files, "/file.txt", f"Range: bytes={size}-")
    assert unsatisfiable is not None and unsatisfiable.status == 416
    whole = respond(files, "/file.txt", "If-Modified-Since: Thu, 01 Jan 1970 00:00:01 GMT")
    assert whole is not None and whole.status == 200
    etag = whole.get("etag")
    unchanged = respond(files, "/file.txt", f"If-None-Match: {etag}")
    assert unchanged is not None and unchanged.status == 304 and unchanged.get("etag") == etag
    assert respond(files, "/file.txt", f"If-None-Match: {etag}") is unchanged


def test_a_short_part_of_a_large_file_is_read_with_its_head(public: Path) -> None:
    """One system call sends both. The kernel sends a longer part."""
    content = tell(0, 100_000)
    (public / "large.bin").write_bytes(content)
    settle()
    files = Static(Config(documentroot=str(public)))
    for _ in range(2):  # the first response is of a file that is not in the cache yet
        short = respond(files, "/large.bin", f"Range: bytes=50000-{49_999 + COPIED_BYTES}")
        assert short is not None and short.body == content[50_000 : 50_000 + COPIED_BYTES]
        assert short.release is None and short.length == COPIED_BYTES
        long = respond(files, "/large.bin", f"Range: bytes=50000-{50_000 + COPIED_BYTES}")
        assert long is not None
        assert (region_of(long).offset, region_of(long).count) == (50_000, COPIED_BYTES + 1)
    with (public / "large.bin").open("rb") as file:  # a file that becomes shorter before it is read
        whole = Region(file.fileno(), 0, 100_001)
        assert static.part_of(whole, 99_990, 10, True) == content[99_990:]
        shorter = static.part_of(whole, 99_990, 11, True)
        assert isinstance(shorter, Region) and (shorter.offset, shorter.count) == (99_990, 11)


def test_few_files_stay_open(public: Path) -> None:
    for number in range(50):
        (public / f"{number}.bin").write_bytes(bytes(100_000))
    settle()
    before = len(open_files(os.getpid()))
    files = Static(Config(documentroot=str(public)))
    for number in list(range(50)) * 2:
        response = respond(files, f"/{number}.bin")
        assert response is not None
        run(response.close())
        assert len(open_files(os.getpid())) <= before + static.MAX_OPEN_FILES
    del response
    assert len(open_files(os.getpid())) == before + static.MAX_OPEN_FILES
    files.cache.clear()
    assert len(open_files(os.getpid())) == before


def test_a_file_that_nobody_asks_for_is_closed(public: Path) -> None:
    """Also one of a site that a reload has replaced, and that something still holds."""
    for name in ("old", "kept", "new"):
        (public / name).write_bytes(bytes(100_000))
    settle()
    before, config = len(open_files(os.getpid())), Config(documentroot=str(public))
    old, files = Static(config), Static(config)
    for each, path in ((old, "/old"), (files, "/kept"), (files, "/new")):
        if path == "/new":
            age(old, static.UNUSED_S + 1)
        response = respond(each, path)
        assert response is not None and response.release is not None
        response.release()
    del response
    assert len(open_files(os.getpid())) == before + 2  # kept, new
    again = respond(old, "/old")
    assert again is not None and again.length == 100_000 and again.release is not None
    again.release()


def test_without_a_descriptor_for_the_cache(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (public / "large.bin").write_bytes(bytes(100_000))
    settle()

    def none_left(descriptor: int) -> int:
        raise OSError(errno.EMFILE, "no descriptor left")

    monkeypatch.setattr(os, "dup", none_left)
    files = Static(Config(documentroot=str(public)))
    response = respond(files, "/large.bin")
    assert response is not None and response.length == 100_000 and response.release is not None
    response.release()
    assert not files.cache


def test_two_changes_within_one_tick_of_the_clock(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older kernels stamp files every 4 ms: a file that changes twice in that time looks as if it had not."""
    precise: Callable[[os.stat_result], tuple[int, ...]] = static.file_version

    def coarse(about: os.stat_result) -> tuple[int, ...]:
        modified, changed, *rest = precise(about)
        return (modified // 10**7, changed // 10**7, *rest)

    monkeypatch.setattr(static, "file_version", coarse)
    file = public / "file.txt"
    seen = 0
    for _ in range(20):
        file.write_bytes(b"one")
        before = coarse(os.stat(file))
        files = Static(Config(documentroot=str(public)))
        respond(files)
        file.write_bytes(b"two")
        if coarse(os.stat(file)) == before:
            seen += 1
            age(files, 2)
            response = respond(files)
            assert response is not None and response.body == b"two"
    assert seen
