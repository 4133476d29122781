"""Media types by name: from our own table, on every machine."""

from __future__ import annotations

import mimetypes
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from ewe.http.media_types import DEFAULT, TYPES, content_type

TYPE = re.compile(r"[a-z]+/[a-z0-9][a-z0-9.+-]*(?:; charset=utf-8)?")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("index.html", "text/html; charset=utf-8"),
        ("INDEX.HTM", "text/html; charset=utf-8"),
        ("notes.txt", "text/plain; charset=utf-8"),
        ("style.css", "text/css; charset=utf-8"),
        ("app.js", "text/javascript; charset=utf-8"),
        ("app.min.js", "text/javascript; charset=utf-8"),
        ("module.mjs", "text/javascript; charset=utf-8"),
        ("drawing.svg", "image/svg+xml; charset=utf-8"),
        ("feed.xml", "application/xml; charset=utf-8"),
        ("readme.md", "text/markdown; charset=utf-8"),
        ("README", "text/plain; charset=utf-8"),
        ("Makefile", "text/plain; charset=utf-8"),
        # JSON has no charset: RFC 8259 section 11
        ("data.json", "application/json"),
        ("code.wasm", "application/wasm"),
        ("photo.jpeg", "image/jpeg"),
        ("favicon.ico", "image/vnd.microsoft.icon"),
        ("font.woff2", "font/woff2"),
        ("paper.pdf", "application/pdf"),
        # A compressed file is itself, not what it holds: its bytes are sent as they are
        ("archive.tar.gz", "application/gzip"),
        ("page.html.gz", "application/gzip"),
        ("page.html.zst", "application/zstd"),
        ("page.html.Z", DEFAULT),
        # Unknown
        ("file", DEFAULT),
        ("file.", DEFAULT),
        ("file.no-such-thing", DEFAULT),
        ("js", DEFAULT),
        ("", DEFAULT),
        # A name is never read as a URL
        ("data:text/html,x", DEFAULT),
        ("data:text/html;base64,x.no-such-thing", DEFAULT),
    ],
)
def test_content_type(name: str, expected: str) -> None:
    assert content_type(name) == expected


def test_the_table_is_well_formed() -> None:
    for extension, kind in TYPES.items():
        assert extension == extension.lower() and TYPE.fullmatch(kind), extension


def test_the_system_cannot_change_our_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """On some machines, JavaScript is called text/plain."""
    monkeypatch.setattr(mimetypes, "guess_type", lambda *_, **__: ("text/x-wrong", None))
    assert content_type("app.js") == "text/javascript; charset=utf-8"
    assert content_type("file.no-such-thing") == "text/x-wrong; charset=utf-8"


@settings(deadline=None)
@given(some.text(some.characters(exclude_characters="/\0")))
def test_any_name_has_a_type_that_may_stand_in_a_field(name: str) -> None:
    for each in (name, "data:" + name, "data:" + name + ",", name + ".html"):
        assert re.fullmatch(r"[!-~]+/[!-~]+(?:; charset=utf-8)?", content_type(each))
