"""Compression, languages and the content cache, different from site to site and from location to location."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from support.server import Server, Start, write_program
from support.wire import read_response, request_of

from ewe.config.messages import ConfigError
from ewe.config.settings import Config

SETTINGS = """
compress = "files"
compress-codings = ["gzip"]

[[site]]
names = ["one"]
documentroot = "one"

[[site.location]]
prefix = "/raw/"
compress = "off"

[[site.location]]
prefix = "/all/"
compress = "all"
headers = { set = { X-Seen = "yes" } }
gateway = "cgi"
content-cache = "1m"
alias = "programs"

[[site.location]]
path = "/front"
gateway = "cgi"
compress = "off"
content-cache = "1m"
alias = "programs/page"
error-pages = { 404 = "/all/page?error" }

[[site]]
names = ["two"]
documentroot = "two"
compress = "off"

[[site.location]]
prefix = "/texts/"
languages = ["en", "de"]
compress = "files"
"""
PROGRAM = """#!/bin/sh
echo x >> runs
echo "Content-Type: text/plain"
echo "Cache-Control: max-age=60"
echo
yes "$QUERY_STRING" | head -n 1000
"""


@pytest.fixture
def server(start: Start, tmp_path: Path) -> Server:
    """A server with two sites."""
    for name in (
        "one/page.txt",
        "one/raw/page.txt",
        "two/page.txt",
        "two/texts/page.de.txt",
        "two/page.de.html",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("sheep " * 1000)
    write_program(tmp_path / "programs" / "page", PROGRAM)
    (tmp_path / "ewe.toml").write_text(SETTINGS)
    return start("thread", "--config", "ewe.toml")


def ask(server: Server, host: str, line: str, *fields: str) -> tuple[int, dict[str, str], bytes]:
    """Return the answer of a site to a client that accepts gzip."""
    with server.connect() as sock:
        message = request_of(line, "Accept-Encoding: gzip", *fields)
        sock.sendall(message.replace(b"Host: ewe", b"Host: " + host.encode()))
        return read_response(sock)


def test_each_location_has_its_settings(server: Server, tmp_path: Path) -> None:
    for host, target, is_compressed in (
        ("one", "/page.txt", True),
        ("one", "/raw/page.txt", False),
        ("two", "/page.txt", False),
        ("two", "/texts/page.txt", True),
        ("one", "/all/page?x", True),
        ("one", "/front?x", False),
    ):
        for number in range(2):
            status, fields, body = ask(server, host, f"GET {target}")
            assert status == 200 and ("content-encoding" in fields) == is_compressed, target
            plain = gzip.decompress(body) if is_compressed else body
            assert plain == (b"x\n" * 1000 if "?" in target else b"sheep " * 1000)
            if "?" in target:
                assert fields["cache-status"].startswith("ewe; hit" if number else "ewe; fwd=uri-miss")
            assert ("x-seen" in fields) == target.startswith("/all/")
    assert (tmp_path / "programs" / "runs").read_text() == "x\n" * 2
    # The page of an error is another answer than the one that is kept for the program.
    status, fields, _ = ask(server, "one", "GET /front/missing")
    assert status == 404
    assert ask(server, "two", "GET /page.html")[0] == 404
    _, fields, _ = ask(server, "one", "GET /page.txt")
    assert fields["etag"].endswith('-gzip"')
    status, same, _ = ask(server, "one", "GET /page.txt", f"If-None-Match: {fields['etag']}")
    assert (status, same["etag"]) == (304, fields["etag"])


def test_a_wrong_value_names_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for key, value in (("compress", '"fast"'), ("languages", '["_"]'), ("content-cache", '"much"')):
        (tmp_path / "ewe.toml").write_text(f'[[site]]\n[[site.location]]\nprefix = "/"\n{key} = {value}\n')
        with pytest.raises(ConfigError, match=rf"{key} = .*expected"):
            Config.load(environ={}, file="ewe.toml")
