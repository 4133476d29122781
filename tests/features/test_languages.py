"""Languages: which file answers for a name, RFC 4647, and that no cache mixes the languages."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some
from support.memory import Answer, answers, talk
from support.server import WAYS_TO_WAIT, Start
from support.wire import read_response, request_of

from ewe.config.settings import Config
from ewe.features.static import Static
from ewe.http.negotiation import preferred_language, weights
from ewe.site import Site
from ewe.sites import make_site


@pytest.mark.parametrize(
    ("accepts", "there", "expected"),
    [
        (None, "en de", "en"),
        ("", "en de", "en"),
        ("de", "en de", "de"),
        ("DE", "en de", "de"),
        ("de", "en DE", "DE"),
        ("fr", "en de", "en"),  # the default, no 406
        ("fr, de", "en de", "de"),
        ("de;q=0.5, en;q=0.6", "de en", "en"),
        ("en;q=0.5, de;q=0.5", "de en", "en"),  # the client's order
        ("de-CH-1996", "en de", "de"),
        ("de-CH", "en de de-AT", "de"),
        ("zh-Hant-CN-x-private1-private2", "en zh-Hant", "zh-Hant"),  # RFC 4647 section 3.4
        ("zh-Hant-CN-x-private1-private2", "en zh", "zh"),
        ("en", "de en-GB", "en-GB"),
        ("en-US", "de en-GB", "en-GB"),  # a sibling
        ("en-US, fr;q=0.1", "de en-GB fr", "fr"),
        ("pt-PT", "en pt-BR", "pt-BR"),
        ("zh-Hant-TW, es", "en zh-CN", "zh-CN"),
        ("en-US, en-GB;q=0", "de en-GB", "de"),
        ("i-klingon", "en i-lux", "en"),
        ("en-US, en", "de en-GB", "en-GB"),
        ("de-CH, en", "fr en de", "de"),
        ("*", "en de", "en"),
        ("fr, *;q=0.1", "en de", "en"),
        ("de;q=0.5, *", "en de", "en"),
        ("en;q=0.5, *", "en de", "de"),
        ("en;q=0", "en de", "de"),
        ("en;q=0, *", "en de", "de"),
        ("en;q=0, de;q=0", "en de", "en"),
        ("*;q=0", "en de", "en"),
        ("*;q=0, de", "en de", "de"),
        ("de;q=0, de-AT", "de de-AT", "de-AT"),
        ("de-AT;q=0, de", "de-AT de", "de"),
        ("d\xe9, de;q=2, de;q=x, =, ;, en-", "en de", "en"),
        ("de;level=1", "en de", "en"),
        ("de" + "-ab" * 15, "en de", "de"),
        ("de" + "-ab" * 16, "en de", "en"),  # no tag is so long, and a lookup would take long
    ],
)
def test_preferred_language(accepts: str | None, there: str, expected: str) -> None:
    assert preferred_language(accepts, there.split()) == expected


@given(some.text(some.sampled_from("; ,=q01.*-endx\xe9")), some.text(some.sampled_from("; ,=q01.*-endx\xe9")))
def test_no_field_confuses_the_choice(one: str, other: str) -> None:
    for value in (one, f"en;q={one}", f"de, {one}, {other};q=0.{one}"):
        assert preferred_language(value, ("en", "de", "de-x")) in ("en", "de", "de-x")
        assert all(0 <= weight <= 1 for weight in weights(value).values())


@pytest.mark.parametrize(
    "unit", ["de;q=0.5,", "a-b-c-d-e-f-g-h-i,", ",", "x;q=0,", "*;q=0,", "-", "-a", "a1;q=0.001;"]
)
def test_a_hostile_field_costs_little(unit: str) -> None:
    long = "a" + "".join(unit.replace("x", f"x{number}") for number in range(16000 // len(unit)))
    began = time.process_time()
    assert preferred_language(long, ("en", "de")) in ("en", "de")
    assert time.process_time() - began < 0.2


def site_of(directory: Path, **settings: object) -> Site:
    """Return a site in several languages."""
    for name in (
        "page.en.html",
        "page.html.de",
        "both.fr.html",
        "both.html",
        "d/index.pt-br.html",
        "plain.html",
    ):
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"this is {name}\n" * 100)
    (directory / "page.html.de.gz").write_bytes(gzip.compress(b"this is page.html.de.gz"))
    (directory / ".secret.en.html").write_text("secret")
    (directory / "program.en.php").write_text("<?php ?>")
    (directory / "other.php.en").write_text("<?php ?>")
    while time.time() - os.stat(directory / "page.html.de.gz").st_ctime < 0.06:
        time.sleep(0.01)
    config = Config(documentroot=directory, languages="en, de, pt-BR, fr", cgi_path="/nowhere", **settings)
    return make_site(config)


def ask(site: Site, line: str, *fields: str) -> Answer:
    """Return a site's answer."""
    return answers(talk(site, request_of(line, *fields)).output(), line.partition(" ")[0])[0]


def test_which_file_answers(tmp_path: Path) -> None:
    site = site_of(tmp_path, fastcgi=".php=127.0.0.1:1")
    for _ in range(2):  # the second time from the cache
        for target, accepts, name, language in (
            ("/page.html", "de", "page.html.de", "de"),
            ("/page.html", "en", "page.en.html", "en"),
            ("/page.html", "fr", "page.en.html", "en"),
            ("/page.html", "de-CH, en;q=0.1", "page.html.de", "de"),
            ("/both.html", "fr", "both.html", ""),  # the asked file itself is there
            ("/d/", "de", "d/index.pt-br.html", "pt-BR"),
            ("/d/index.html", "de", "d/index.pt-br.html", "pt-BR"),
            ("/page.html.de", "en", "page.html.de", ""),
            ("/page.en.html", "de", "page.en.html", ""),
            ("/plain.html", "de", "plain.html", ""),
        ):
            for method in ("GET", "HEAD"):
                answer = ask(site, f"{method} {target}", f"Accept-Language: {accepts}")
                assert answer.status == 200 and answer.fields["content-type"] == "text/html; charset=utf-8"
                assert answer.fields.get("content-language", "") == language
                assert answer.fields.get("content-location", "") == (f"/{name}" if language else "")
                assert ("Accept-Language" in answer.fields.get("vary", "")) == bool(language)
                assert int(answer.fields["content-length"]) == (tmp_path / name).stat().st_size
                if method == "GET":
                    assert answer.body == (tmp_path / name).read_bytes()
    for target in ("/missing.html", "/.secret.html", "/page", "/d", "/page.html/", "/page.html.de/x"):
        assert ask(site, f"GET {target}").status in (301, 404), target
    assert ask(site, "POST /page.html").status == 405
    assert ask(site, "GET /program.php").status in (403, 404)
    for target in ("/other.php", "/other.php.en"):
        assert ask(site, f"GET {target}").status == 403


TRY = """
languages = ["en", "de"]
cgi-path = "none"
[[site]]
[[site.location]]
prefix = "/"
try = ["$path", "/both.html"]
"""


def test_a_variant_is_a_file_for_try(tmp_path: Path) -> None:
    site_of(tmp_path)  # makes the files
    settings = tmp_path / "ewe.toml"
    settings.write_text(f'documentroot = "{tmp_path}"\n{TRY}')
    site = make_site(Config.load(environ={}, file=str(settings)))
    for target, name in (
        ("/page.html", "page.html.de"),
        ("/plain.html", "plain.html"),
        ("/none.html", "both.html"),
        ("/.secret.html", "both.html"),
    ):
        answer = ask(site, f"GET {target}", "Accept-Language: de")
        assert (answer.status, answer.body) == (200, (tmp_path / name).read_bytes()), target


def test_tags_ranges_and_codings(tmp_path: Path) -> None:
    site = site_of(tmp_path, compress="files")
    for _ in range(2):
        tags = {}
        for language in ("en", "de"):
            accept = f"Accept-Language: {language}"
            whole = ask(site, "GET /page.html", accept)
            tags[language] = whole.fields["etag"]
            assert whole.fields["vary"] == "Accept-Encoding, Accept-Language" or language == "en"
            part = ask(site, "GET /page.html", accept, "Range: bytes=8-19", f"If-Range: {tags[language]}")
            assert (part.status, part.body) == (206, whole.body[8:20])
            assert part.fields["content-language"] == language and "Accept-Language" in part.fields["vary"]
            same = ask(site, "GET /page.html", accept, f"If-None-Match: {tags[language]}")
            assert same.status == 304 and "Accept-Language" in same.fields["vary"]
            assert same.fields["content-location"] == whole.fields["content-location"]
        other = ask(site, "GET /page.html", "Accept-Language: de", f"If-None-Match: {tags['en']}")
        assert other.status == 200
        packed = ask(site, "GET /page.html", "Accept-Language: de", "Accept-Encoding: gzip")
        assert gzip.decompress(packed.body) == b"this is page.html.de.gz"
        packed = ask(site, "GET /page.html", "Accept-Language: en", "Accept-Encoding: gzip")
        assert gzip.decompress(packed.body) == (tmp_path / "page.en.html").read_bytes()
        assert set(packed.fields["vary"].split(", ")) == {"Accept-Encoding", "Accept-Language"}
        assert packed.fields["content-language"] == "en"
    held = static_of(site).used_bytes
    for _ in range(20):
        ask(site, "GET /page.html", "Accept-Language: en", "Accept-Encoding: gzip")
    assert static_of(site).used_bytes == held


def static_of(site: Site) -> Static:
    """Return the files of a site."""
    assert site.plan is not None
    return site.plan.static


def test_a_variant_that_changes(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    assert b"this is page.en.html" in ask(site, "GET /page.html").body
    (tmp_path / "page.en.html").write_text("changed")
    static_of(site).cache["/page.en.html"].checked_at = 0.0
    assert ask(site, "GET /page.html").body == b"changed"
    (tmp_path / "page.en.html").unlink()
    assert b"this is page.html.de" in ask(site, "GET /page.html").body
    (tmp_path / "page.html").write_text("none")
    assert ask(site, "GET /page.html", "Accept-Language: de").body == b"none"


def test_a_file_without_a_url_of_its_own_names_none(tmp_path: Path) -> None:
    """Of an alias with a variable, ewe knows the file of a URL, and not the URL of each file."""
    site_of(tmp_path / "files")
    (tmp_path / "ewe.toml").write_text(
        f"documentroot = '{tmp_path}'\nlanguages = ['en', 'de']\n[[site]]\n[[site.location]]\n"
        f"pattern = '^/of/(.*)$'\nalias = '{tmp_path}/files/$1'\n"
        f"[[site.location]]\nprefix = '/in'\nalias = '{tmp_path}/files'\n"
    )
    site = make_site(Config.load(environ={}, file=str(tmp_path / "ewe.toml")))
    for _ in range(2):  # the second time from the cache
        for directory, url in (("of", None), ("in", "/in/page.en.html")):
            answer = ask(site, f"GET /{directory}/page.html")
            assert (answer.status, answer.fields["content-language"]) == (200, "en")
            assert answer.fields.get("content-location") == url


@pytest.mark.parametrize("model", WAYS_TO_WAIT[:3])
def test_under_every_way_to_wait(start: Start, model: str) -> None:
    server = start(model, "--languages", "en,de")
    for name in ("a.en.txt", "a.de.txt"):
        (server.root / name).write_text(name)
    with server.connect() as sock:
        for accepts in ("de", "en", "de", "fr"):
            sock.sendall(request_of("GET /a.txt", f"Accept-Language: {accepts}"))
            language = accepts.replace("fr", "en")
            status, fields, body = read_response(sock)
            assert (status, fields["content-language"], body) == (200, language, f"a.{language}.txt".encode())
