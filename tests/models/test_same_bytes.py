"""The promise of the README: under each model, the same bytes go in and the same bytes come out.

What the bytes must be comes from a conversation in memory over the same files (support/memory.py). The servers of
all variants then answer the same, whether a request arrives whole, in segments, or cut within its lines. What the
rules are is tested in tests/http and tests/features; CGI programs have `test_programs_under_every_model`.
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterator
from pathlib import Path

from support.memory import in_pieces, talk
from support.server import Server

from ewe.config.settings import Config
from ewe.http.dates import http_date
from ewe.sites import make_site

THEN = 1_000_000_000  # when all files were changed
END = b" HTTP/1.1\r\nHost: ewe\r\n"
THEN_TEXT, BEFORE = http_date(THEN).encode(), http_date(THEN - 1).encode()


def make_files(root: Path) -> None:
    """Make files of all kinds."""
    (root / "directory").mkdir()
    (root / "listed").mkdir()
    (root / "directory" / "index.html").write_text("index of a directory")
    (root / "listed" / "one.txt").write_text("one")
    (root / "small.txt").write_bytes(b"small\n")
    (root / "empty.txt").touch()
    (root / "large.bin").write_bytes(bytes(range(256)) * 3000)
    (root / "page.html").write_bytes(b"page " * 100)
    (root / "page.html.gz").write_bytes(gzip.compress(b"page " * 100, mtime=0))
    (root / ".secret").write_text("secret")
    (root / "out").symlink_to("/etc/passwd")
    for path in (*root.glob("*.*"), root / "directory" / "index.html", root / "listed" / "one.txt"):
        os.utime(path, (THEN, THEN))


def exchanges() -> Iterator[bytes]:
    """Yield what a client sends on one connection, before it ends its side."""
    targets = (
        b"/", b"/small.txt", b"/empty.txt", b"/large.bin", b"/page.html", b"/directory", b"/directory/",
        b"/listed/", b"/listed?x", b"/missing", b"/.secret", b"/out", b"/a%2fb", b"/%00", b"/../x", b"*", b"/%zz",
        b"//small.txt", b"http://other/small.txt", b"https://ewe/", b"/" + b"x" * 9000,
        b"/small.txt?" + b"y" * 4000,
    )  # fmt: skip
    for target in targets:
        for method in (b"GET", b"HEAD"):
            yield method + b" " + target + END + b"\r\n"
    for target in (b"/", b"/small.txt", b"/missing", b"*"):
        for method in (b"POST", b"OPTIONS"):
            yield method + b" " + target + END + b"\r\n"
    for method in (b"PUT", b"DELETE", b"TRACE", b"CONNECT", b"BREW", b"get", b"X" * 100, b"(", b""):
        yield method + b" /small.txt" + END + b"X-Secret: needle\r\n\r\n"
    for path in (b"/large.bin", b"/page.html"):
        for fields in (
            b"Range: bytes=0-4\r\n", b"Range: bytes=-3\r\n", b"Range: bytes=2-1\r\n", b"Range: bytes=9999999-\r\n",
            b"If-None-Match: *\r\n", b'If-Match: "x"\r\n', b"If-Modified-Since: " + THEN_TEXT + b"\r\n",
            b"If-Unmodified-Since: " + BEFORE + b"\r\n", b'Range: bytes=0-4\r\nIf-Range: "x"\r\n',
            b"Accept-Encoding: gzip\r\n", b"Accept-Encoding: gzip\r\nRange: bytes=0-4\r\n",
            b"Connection: close\r\n", b"Connection: keep-alive\r\n", b"Connection: x, Close\r\n",
            b"Expect: tea\r\n", b"Host: again\r\n",
            b"Content-Length: 5\r\nExpect: 100-continue\r\n", b"Content-Length: x\r\n", b"Upgrade: h2c\r\n",
            b"Content-Length: 99999999999\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Bad line\r\n",
            b"X: " + b"x" * 20_000 + b"\r\n", b"X: y\r\n" * 200, b"A : b\r\n", b" folded: b\r\n", b"A: \x01\r\n",
        ):  # fmt: skip
            yield b"GET " + path + END + fields + b"\r\n"
    for version in (b"1.0", b"1.9", b"2.0", b"3", b"0.9"):
        yield b"GET /small.txt HTTP/" + version + b"\r\nHost: ewe\r\n\r\n"
    yield b"GET /small.txt HTTP/1.0\r\n\r\n"
    yield b"GET /small.txt HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" * 3
    yield from (
        b"",
        b"\r\n",
        b"\r\n\r\nGET /\r\n\r\n",
        b"GET / HTTP/1.1\r\nHo",
        b"GET /",
        b"\x16\x03\x01\x02\x00\x01",
    )
    get = b"GET /small.txt" + END + b"\r\n"
    post = b"POST /small.txt" + END
    for body in (
        b"Content-Length: 5\r\n\r\nhello", b"Content-Length: 5\r\n\r\nhel", b"Content-Length: 0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n003\r\nabc\r\n0\r\nA: b\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    ):  # fmt: skip
        yield get + post + body + get + b"\r\n" + get
        yield get.replace(b"\r\n\r\n", b"\r\n" + body) + get
    yield b"".join(
        (get, b"GET /large.bin" + END + b"\r\n", b"HEAD /large.bin" + END + b"\r\n",
         b"GET /missing" + END + b"\r\n",
         post + b"Content-Length: 3\r\n\r\nabc", b"OPTIONS *" + END + b"\r\n", get * 20,
         b"GET /" + END + b"Connection: close\r\n\r\n", get)
    )  # fmt: skip


EXCHANGES = [*dict.fromkeys(exchanges())]


def cut(data: bytes) -> Iterator[list[bytes]]:
    """Yield a client's bytes whole, then cut within the first line, at the end of the first head, and behind it."""
    yield [data]
    head = data.find(b"\r\n\r\n") + 4
    yield in_pieces(data, [9, head - 3, head, head + 2])


def but_for_dates(data: bytes) -> bytes:
    """Return answers without the lines that depend on the time."""
    return re.sub(rb"\r\nDate: [^\r]*", b"", data)


def test_the_same_bytes_under_every_model(shared_server: Server) -> None:
    root = shared_server.root
    make_files(root)
    site = make_site(Config(documentroot=str(root), cgi_path=str(shared_server.cgi)))
    answered = 0
    wrong: list[str] = []
    for data in EXCHANGES:
        expected = but_for_dates(talk(site, data).output())
        answered += expected.count(b"HTTP/1.1 ")
        for pieces in cut(data):
            found = but_for_dates(shared_server.ask_in_pieces(pieces))
            if found != expected:
                wrong.append(
                    f"{data[:80]!r} in {len(pieces)} pieces: {found[:300]!r}, expected {expected[:300]!r}"
                )
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:10])
    assert answered > 150
