"""Redirects and rewrites: no visitor chooses the server to which a redirect leads, and a query has only ASCII."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ewe.config.messages import ConfigError
from ewe.config.settings import Config
from ewe.http.limits import RequestLimits
from ewe.http.parser import parse_request
from ewe.http.status import HTTPError
from ewe.sites import make_site
from ewe.streams.blocking import run

# What a visitor may write behind /go, in a path or as a query
TEXTS = (
    "", "/x", "x", ".evil.example/", "evil.example/", "@evil.example/", ":@evil.example/", "//evil.example/",
    "/%5Cevil.example", "%5C%5Cevil.example/", "%09//evil.example", "%0D%0A//evil.example", "%3F.evil.example",
    "%23.evil.example", "://evil.example/",
)  # fmt: skip


class Io:
    """What a site asks of a stream for a redirect."""

    server: tuple[str, int] = ("::1", 80)
    client = ("127.0.0.1", 1)
    scheme = "http"
    endpoints = None
    tried = None
    variables: dict[bytes, bytes] = {}


def answer(locations: str, directory: Path, head: str) -> tuple[int, str]:
    """Return the status of a site with these locations, and its Location. head: of the request."""
    file = directory / "ewe.toml"
    file.write_text(f"documentroot = '{directory}'\n[[site]]\n{locations}")
    site = make_site(Config.load(environ={}, file=str(file)))
    request = parse_request(f"{head}\r\n\r\n".encode(), RequestLimits())
    try:
        response = run(site.respond(request, Io()))  # type: ignore[arg-type]
    except HTTPError as refused:
        return refused.status, ""
    return response.status, dict(response.fields).get("Location", "")


def redirect_of(redirect: str, directory: Path, target: str) -> tuple[int, str]:
    """Return the status and the Location of a redirect of the pattern ^/go(.*)$."""
    locations = f"[[site.location]]\npattern = '^/go(?P<all>(.*))$'\nredirect = '{redirect}'\n"
    return answer(locations, directory, f"GET {target} HTTP/1.1\r\nHost: a.example:80")


def server_in_browser(url: str) -> str:
    """Return the server to which a browser goes from http://a.example. It takes a backslash for a slash."""
    found = re.match(r"(?:https?:[/\\]*|[/\\]{2,})([^/\\?#]*)", url, re.IGNORECASE)
    return found[1].rpartition("@")[2].partition(":")[0] if found else "a.example"


@pytest.mark.parametrize(
    ("redirect", "servers"),
    [
        ("https://w.example$1", r"w\.example"),
        ("https://w.example$1/x", r"w\.example"),
        ("https://w.example${all}$1?q=$1", r"w\.example"),
        ("https://w.example$query", r"w\.example"),
        ("https://w.example:84$1", r"w\.example"),
        (r"HTTPS:\\w.example$1", r"w\.example"),
        ("https:w.example$1", r"w\.example"),
        ("https://$1.w.example/", r".*\.w\.example"),
        ("https://$query.w.example", r".*\.w\.example"),
        ("https://b-$1-c.w.example$1", r".*-c\.w\.example"),
        ("https://$1.$host/", r".*\.a\.example"),
        ("https://$1@w.example/", r"w\.example"),
        ("app:///$1", r"a\.example"),
        ("$scheme://$host$1", r"a\.example"),
        ("${scheme}://${host}:84${1}", r"a\.example"),
        ("https://$host$query", r"a\.example"),
        ("$scheme$query", r"a\.example"),
        ("$1", r"a\.example"),
        ("/$1", r"a\.example"),
        ("/$query$1", r"a\.example"),
    ],
)
def test_no_visitor_chooses_the_server_of_a_redirect(tmp_path: Path, redirect: str, servers: str) -> None:
    """An open redirect: a visitor trusts the name of the site in a link, and arrives at another server."""
    for text in TEXTS:
        as_query = re.sub("%(?:5C|09|0D|0A|3F|23)", r"\\", text)
        for target in (f"/go{text}", f"/go?{as_query}"):
            status, location = redirect_of(redirect, tmp_path, target)
            assert status in (302, 400), (target, status)
            if status == 302:
                assert re.fullmatch(servers, server_in_browser(location)), (target, location)
    assert redirect_of(redirect, tmp_path, "/go")[0] == 302


@pytest.mark.parametrize(
    ("redirect", "location"),
    [
        ("https://w.example$1", "https://w.example/x/y?q"),
        ("https://w.example.$1", "https://w.example./x/y?q"),
        ("https://w.example$all", "https://w.example/x/y?q"),
        ("https://w.example$path", "https://w.example/gox/y?q"),
        ("https://w.example/$1?", "https://w.example/x/y?"),
        ("https://$query.w.example$1#top", "https://q.w.example/x/y#top"),
        ("https://$host$1?", "https://a.example/x/y?"),
        ("https://$host:8443$all?", "https://a.example:8443/x/y?"),
        ("app:///$1?", "app:///x/y?"),
        ("file:///x?", "file:///x?"),
        ("mailto:ada@w.example", "mailto:ada@w.example?q"),
    ],
)
def test_a_group_behind_a_server_is_a_path(tmp_path: Path, redirect: str, location: str) -> None:
    assert redirect_of(redirect, tmp_path, "/gox/y?q") == (302, location)


@pytest.mark.parametrize(
    "redirect",
    [
        "https://$1", "https://$1/x", "https://$1:443/", "https://$1.", "https:$1", "https:/$path",
        "https://ada@$1", "https://$host@$1", "https://", "https://:80/", "$scheme://$query/",
        "https://$1.org/", "https://$1example.org/", "https://a.$1.org:84/", "https://$1$host/", "https:///$1", "app://$1",
    ],
)  # fmt: skip
def test_a_redirect_whose_server_a_visitor_would_choose_is_an_error(tmp_path: Path, redirect: str) -> None:
    with pytest.raises(ConfigError, match=r"would choose the server|names no server"):
        redirect_of(redirect, tmp_path, "/go")


@pytest.mark.parametrize(
    "redirect", ["https://w.example:$1$all", "https://$host:$1", "https://w.example:$1/x"]
)
def test_a_group_is_no_port(tmp_path: Path, redirect: str) -> None:
    with pytest.raises(ConfigError, match=r"\$1 is no port"):
        redirect_of(redirect, tmp_path, "/go")


def test_the_server_of_a_client_that_names_none(tmp_path: Path) -> None:
    """HTTP/1.0 needs no Host. The address of the server then takes its place, as a URL writes it."""
    locations = "[[site.location]]\nprefix = '/'\nredirect = 'https://$host$path'\n"
    assert answer(locations, tmp_path, "GET /x HTTP/1.0") == (302, "https://[::1]/x")


def test_a_rewrite_encodes_the_query_of_the_setting(tmp_path: Path) -> None:
    """The query is a part of a URL: a redirect, a program and an upstream get only ASCII."""
    locations = (
        "[[site.location]]\nprefix = '/old'\nrewrite = '/new?q=ö €&p=$path&x=10%25'\n"
        "[[site.location]]\nprefix = '/new'\nredirect = '/found'\n"
    )
    location = "/found?q=%C3%B6%20%E2%82%AC&p=%2Fold%2F%C3%B6&x=10%25"
    assert answer(locations, tmp_path, "GET /old/%C3%B6 HTTP/1.1\r\nHost: a") == (302, location)
