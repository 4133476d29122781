"""What every response of a real site has, in memory: methods, HEAD, error pages, limits.

That it is the same over sockets, under every model: tests/models/test_same_bytes.py.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from support.memory import Answer, answers, talk
from support.wire import request_of

from ewe.config.settings import Config
from ewe.http.dates import parse_date
from ewe.site import Site
from ewe.sites import make_site as site_of


def make_site(root: Path, **settings: object) -> Site:
    """Return a site with a few files."""
    (root / "index.html").write_text("welcome")
    (root / "small.txt").write_bytes(b"small\n")
    (root / "empty.txt").touch()
    (root / "large.bin").write_bytes(bytes(range(256)) * 1000)
    (root / "directory").mkdir()
    return site_of(Config(documentroot=str(root), cgi_path=str(root / "none"), **settings))


@pytest.fixture
def small_site(tmp_path: Path) -> Site:
    """A site with the default settings."""
    return make_site(tmp_path)


def ask(site: Site, line: str, *fields: str) -> Answer:
    """Return the answer to one request."""
    [answer] = answers(talk(site, request_of(line, *fields)).output(), line.partition(" ")[0])
    return answer


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/", 200), ("/small.txt", 200), ("/empty.txt", 200), ("/large.bin", 200), ("/missing", 404),
        ("/directory", 301), ("/%00", 400), ("/" + "x" * 10_000, 414), ("/ HTTP/3.0", 505),
    ],
)  # fmt: skip
def test_head_is_get_without_the_body(small_site: Site, target: str, status: int) -> None:
    got, *heads = (ask(small_site, f"{method} {target}") for method in ("GET", "HEAD", "HEAD"))
    for answer in (got, *heads):
        del answer.fields["date"]
    assert got.status == status and int(got.fields["content-length"]) == len(got.body)
    for answer in heads:
        assert (answer.status, answer.fields, answer.body) == (status, got.fields, b"")


@pytest.mark.parametrize("target", ["/small.txt", "/large.bin", "/"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "TRACE"])
def test_what_a_file_does_not_do(small_site: Site, method: str, target: str) -> None:
    answer = ask(small_site, f"{method} {target}", "X-Secret: needle")
    assert (answer.status, answer.fields["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert b"needle" not in answer.body  # TRACE echoes nothing


@pytest.mark.parametrize("target", ["/small.txt", "/", "/missing"])
@pytest.mark.parametrize("method", ["BREW", "get", "LINK", "PROPFIND", "X" * 100])
def test_methods_that_nothing_knows(small_site: Site, method: str, target: str) -> None:
    assert ask(small_site, f"{method} {target}").status == 501


def test_options(small_site: Site) -> None:
    answer = ask(small_site, "OPTIONS /small.txt")
    assert (answer.status, answer.fields["allow"], answer.body) == (204, "GET, HEAD, OPTIONS", b"")
    answer = ask(small_site, "OPTIONS *")
    assert answer.status == 204
    assert set(answer.fields["allow"].split(", ")) >= {"GET", "HEAD", "POST", "OPTIONS"}
    assert ask(small_site, "CONNECT ewe:80").status == 501


ONCE = (
    "date",
    "server",
    "content-length",
    "content-type",
    "etag",
    "last-modified",
    "connection",
    "allow",
    "vary",
)
MARK = "needle<b>'\""
PATH = "/needle%3Cb%3E"
RESPONSES = [
    ("GET /small.txt", (), 200, ""),
    ("GET /large.bin", (), 200, ""),
    ("HEAD /large.bin", (), 200, ""),
    ("OPTIONS *", (), 204, ""),
    ("OPTIONS /small.txt", (), 204, ""),
    ("GET /small.txt", ("Range: bytes=0-1",), 206, ""),
    ("GET /small.txt", ("Range: bytes=0-1,3-3",), 206, ""),
    ("GET /directory?needle", (), 301, ""),
    ("GET /small.txt", ("If-None-Match: *",), 304, ""),
    ("GET /large.bin", ("If-None-Match: *",), 304, ""),
    (f"GET {PATH}", ("Content-Length: needle",), 400, "Content-Length is malformed"),
    ("GET /needle%00", (), 400, "encoded NUL"),
    ("GET /../../needle", (), 400, "above the root"),
    (f"GET {PATH}", ("Host: needle",), 400, "more than one Host"),
    ("GET needle", (), 400, "the target is malformed"),
    ("GET /directory/", (), 403, "indexes is off"),
    (f"GET {PATH}?{PATH}", (f"Referer: {MARK}", f"User-Agent: {MARK}"), 404, "no such file"),
    ("GET /needle%2f", (), 404, "encoded slash"),
    (f"POST {PATH}", (), 405, "POST to a file"),
    ("GET /small.txt", ('If-Match: "needle"',), 412, "condition"),
    (f"POST {PATH}", ("Content-Length: 2000",), 413, "max-body"),
    (f"GET /{'needle' * 3000}", (), 414, "max-target"),
    ("GET /small.txt", ("Range: bytes=99-",), 416, "bytes=99-"),
    (f"GET {PATH}", ("Expect: needle",), 417, "expectation"),
    (f"GET {PATH}", ("X: " + "needle" * 4000,), 431, "max-field"),
    (f"NEEDLE {PATH}", (), 501, "method 'NEEDLE' to a file"),
    (f"POST {PATH}", ("Transfer-Encoding: needle, chunked",), 501, "transfer coding"),
    (f"GET {PATH} HTTP/2.0", (), 505, "not spoken"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "fields", "status", "cause"),
    RESPONSES,
    ids=[f"{status}-{number}" for number, (_, _, status, _) in enumerate(RESPONSES)],
)
def test_every_response(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    fields: tuple[str, ...],
    status: int,
    cause: str,
) -> None:
    """The fields of every response. An error page names only the error; the reason is in the log."""
    reasons: list[str] = []
    for level in ("debug", "info", "warning"):
        monkeypatch.setattr(f"ewe.logger.errors.{level}", reasons.append)
    site = make_site(tmp_path, max_body="1k", indexes=False)
    before = int(time.time())
    output = talk(site, request_of(line, *fields)).output()
    [answer] = answers(output, line.partition(" ")[0])
    assert answer.status == status
    top = output.partition(b"\r\n\r\n")[0]
    names = Counter(each.partition(b":")[0].decode().lower() for each in top.split(b"\r\n"))
    assert all(names[name] <= 1 for name in ONCE), names
    date = parse_date(answer.fields["date"])
    assert date is not None and before - 1 <= date <= time.time()
    assert answer.fields["server"] == "ewe" and "transfer-encoding" not in answer.fields
    if status in (204, 304):
        assert "content-length" not in answer.fields and answer.body == b""
    else:
        assert int(answer.fields["content-length"]) == len(answer.body) or line.startswith("HEAD")
    if status >= 400:
        text = answer.body.decode()
        assert answer.fields["content-type"] == "text/html; charset=utf-8"
        assert text.startswith("<!DOCTYPE html>") and len(text) < 2000 and str(status) in text
        whole = output.decode("latin-1").lower()
        for secret in ("needle", str(tmp_path).lower(), "traceback", "(max-", "python"):
            assert secret not in whole
        assert any(f": {status}, " in reason and cause in reason for reason in reasons), reasons


SMALL = {"max_body": "1k", "max_target": 100, "max_field": 200, "max_fields": 5, "max_head": 500}


@pytest.mark.parametrize(
    ("data", "status"),
    [
        # 413 by length, before any byte of the body; a length above every integer is 400; a smaller body is read
        (request_of("POST /small.txt", "Content-Length: 1025"), 413),
        (request_of("POST /small.txt", "Content-Length: 1025", "Expect: 100-continue"), 413),
        (request_of("POST /small.txt", "Content-Length: " + "9" * 30), 400),
        (request_of("GET /small.txt", "Content-Length: 1024") + b"x" * 1024, 200),
        # 414, also while the line goes on for ever
        (request_of("GET /small.txt?" + "x" * 89), 200),
        (request_of("GET /small.txt?" + "x" * 90), 414),
        (b"GET /" + b"x" * 300, 414),
        # 431: a field, their number, all of them, and while they go on
        (request_of("GET /small.txt", "X: " + "x" * 197), 200),
        (request_of("GET /small.txt", "X: " + "x" * 198), 431),
        (request_of("GET /small.txt", *["X: y"] * 4), 200),
        (request_of("GET /small.txt", *["X: y"] * 5), 431),
        (request_of("GET /small.txt", *["X: " + "x" * 150] * 3), 431),
        (b"GET / HTTP/1.1\r\nHost: ewe\r\n" + b"X: y\r\n" * 100, 431),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else value[-30:].decode(),
)
def test_limits(tmp_path: Path, data: bytes, status: int) -> None:
    stream = talk(make_site(tmp_path, **SMALL), data)
    [answer] = answers(stream.output())
    assert answer.status == status
    assert (answer.fields.get("connection") == "close") is stream.lingered is (status >= 400)
