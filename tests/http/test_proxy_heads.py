"""What a reverse proxy sends to the next server, and what it takes from it."""

from __future__ import annotations

import re

import pytest
from support.http_upstream import BAD_HEADS

from ewe.config.setting_types import parse_origin, parse_proxy
from ewe.http.limits import RequestLimits
from ewe.http.mapping import Mapping
from ewe.http.messages import Request
from ewe.http.parser import parse_request
from ewe.http.request_head import forwarding_fields, passed_fields, passes_through_ewe, target_for, via_line
from ewe.http.response_head import parse_response_head
from ewe.http.status import HTTPError


def request(target: str = "/", *fields: str, method: str = "GET") -> Request:
    """Return a request, parsed."""
    lines = "".join(f"{field}\r\n" for field in fields)
    return parse_request(
        f"{method} {target} HTTP/1.1\r\nHost: a.org\r\n{lines}\r\n".encode("latin-1"), RequestLimits()
    )


@pytest.mark.parametrize(
    ("target", "prefix", "replacement", "sent"),
    [
        ("/app/x?y=%20&z", "/app", None, "/app/x?y=%20&z"),
        ("/app/x", "/app", "/", "/x"),
        ("/app", "/app", "/", "/"),
        ("/app/", "/app", "/", "/"),
        ("/app?a", "/app", "/", "/?a"),
        ("/app/x", "/app", "/other", "/other/x"),
        ("/app", "/app", "/other", "/other"),
        ("/app/x", "/app", "/other/", "/other/x"),
        ("/app/", "/app", "/other/", "/other/"),
        ("/x", "", "/base", "/base/x"),
        ("/app/a%20b/%C3%A9", "/app", None, "/app/a%20b/%C3%A9"),  # the client's encoding
        ("/app/a%20b", "/app", "/", "/a%20b"),
        ("/%61pp/a%20b", "/app", "/", "/a%20b"),
        ("/x/../app//y", "/app", None, "/app/y"),  # what the site has looked at
        ("/app/%2e%2e/app/y", "/app", None, "/app/y"),
        ("/app/./y", "/app", "/", "/y"),
        ("http://b.org/app/x?q", "/app", None, "/app/x?q"),
        ("http://b.org", "", None, "/"),
        ("/app?", "/app", None, "/app?"),
        ("/app/.well-known/a:b%2Bc", "/app", None, "/app/.well-known/a:b%2Bc"),  # no dot segment
    ],
)
def test_targets(target: str, prefix: str, replacement: str | None, sent: str) -> None:
    assert target_for(request(target), prefix, replacement) == sent


@pytest.mark.parametrize(
    ("prefix", "replacement", "sent"),
    [("/app", None, "/app/a%20b"), ("/app", "/", "/a%20b"), ("/a", "/", "/z")],
)
def test_a_target_after_a_rewrite(prefix: str, replacement: str | None, sent: str) -> None:
    asked = request("/ab")
    asked.path = "/a/z" if prefix == "/a" else "/app/a b"
    assert target_for(asked, prefix, replacement) == sent


def test_fields_that_do_not_go_on() -> None:
    asked = request(
        "/", "Connection: close, X-Secret, cookie", "X-Secret: 1", "Cookie: a=b", "Keep-Alive: 5", "TE: trailers",
        "Proxy-Connection: x", "Upgrade: h2c", "Trailer: x", "Expect: 100-continue", "Max-Forwards: 3",
        "Forwarded: for=1.1.1.1", "X-Forwarded-For: 1.1.1.1", "X-Forwarded-Prefix: /", "X_Forwarded_For: 1.1.1.1",
        "X-Real-IP: 1.1.1.1", "Proxy: evil", "Proxy-Authorization: x", "Via: 1.1 a", "Content-Length: 0",
        "accept: */*", "Authorization: Basic eA==", "X-Forwarded: y",
    )  # fmt: skip
    assert passed_fields(asked) == ["Accept: */*\r\n", "Authorization: Basic eA==\r\n", "X-Forwarded: y\r\n"]
    assert via_line(asked) == "Via: 1.1 a, 1.1 ewe\r\n"
    assert passes_through_ewe(request("/", "Via: 1.1 ewe, 1.0 ewe (x), 1.1 ewes, HTTP/1.1 ewe")) == 3


def test_who_the_client_is() -> None:
    lie = request("/", "X-Forwarded-For: 6.6.6.6", "Forwarded: for=6.6.6.6")
    direct = forwarding_fields(lie, "203.0.113.9", "https", "203.0.113.9", "x-forwarded")
    assert direct == [
        "X-Forwarded-For: 203.0.113.9\r\n",
        "X-Forwarded-Host: a.org\r\n",
        "X-Forwarded-Proto: https\r\n",
        'Forwarded: for=203.0.113.9;proto=https;host="a.org"\r\n',
    ]
    behind = forwarding_fields(lie, "2001:db8::9", "http", "10.0.0.1", "x-forwarded")
    assert behind[0] == "X-Forwarded-For: 6.6.6.6, 10.0.0.1\r\n"
    assert behind[3] == 'Forwarded: for="[2001:db8::9]", for=10.0.0.1;proto=http;host="a.org"\r\n'
    behind = forwarding_fields(lie, "6.6.6.6", "http", "unix:", "forwarded")
    assert behind[0] == "X-Forwarded-For: 6.6.6.6, unknown\r\n"
    assert behind[3] == 'Forwarded: for=6.6.6.6, for=unknown;proto=http;host="a.org"\r\n'


def test_good_response_heads() -> None:
    head = parse_response_head(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: X-Own\r\nX-Own: 1\r\nDate: x\r\nServer: y\r\n"
        b"Transfer-Encoding: Chunked\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n"
    )
    assert head.fields == (("Content-Type", "text/html"), ("Set-Cookie", "a"), ("Set-Cookie", "b"))
    assert (head.status, head.chunked, head.length, head.reusable, head.mapped) == (
        200,
        True,
        None,
        True,
        True,
    )
    head = parse_response_head(b"HTTP/1.0 404\r\nContent-Length: 5\r\n\r\n")
    assert (head.status, head.reason, head.length, head.http_1_0, head.reusable) == (
        404,
        "Not Found",
        5,
        True,
        False,
    )
    assert parse_response_head(b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n\r\n").reusable
    assert not parse_response_head(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").reusable
    assert parse_response_head(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n").reusable
    assert parse_response_head(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n").reusable
    chunked = b"Transfer-Encoding: chunked"  # of a body that these statuses cannot have
    for framing in (b"204 A\r\nContent-Length: 5", b"204 A\r\n" + chunked, b"304 A\r\n" + chunked):
        assert not parse_response_head(b"HTTP/1.1 %b\r\n\r\n" % framing).reusable


@pytest.mark.parametrize("head", BAD_HEADS)
def test_bad_response_heads(head: bytes) -> None:
    with pytest.raises(HTTPError) as refused:
        parse_response_head(head)
    assert refused.value.status == 502


def test_mapping_where_the_path_is_replaced() -> None:
    mapping = Mapping("/app", "/", ("127.0.0.1:3000",))
    located = {
        "/login?x": "/app/login?x",
        "/": "/app/",
        "login": "login",
        "//b.org/x": "//b.org/x",
        "http://127.0.0.1:3000/login#a": "/app/login#a",
        "http://127.0.0.1:3000": "/app/",
        "https://a.org/login": "https://a.org/app/login",
        "https://a.org": "https://a.org/app/",
        "https://b.org/login": "https://b.org/login",
    }
    for value, expected in located.items():
        assert mapping.map_field("location", value, "a.org") == expected
    assert mapping.map_field("set-cookie", "a=/; Path=/; HttpOnly", "a.org") == "a=/; Path=/app/; HttpOnly"
    assert mapping.map_field("set-cookie", "a=b;path=/x", "a.org") == "a=b;path=/app/x"
    assert mapping.map_field("set-cookie", "a=b", "a.org") == "a=b"
    other = Mapping("/app", "/shop/", ("b",))
    assert other.map_field("location", "/shop/x", "a.org") == "/app/x"
    assert other.map_field("location", "/shopping", "a.org") == "/shopping"
    assert other.map_field("set-cookie", "a; Path=/shop", "a.org") == "a; Path=/app"
    same = Mapping("/app", None, ("127.0.0.1:3000",))
    assert same.map_field("location", "/login", "a.org") == "/login"
    assert same.map_field("location", "http://127.0.0.1:3000/app/x", "a.org") == "/app/x"
    assert same.map_field("set-cookie", "a; Path=/", "a.org") == "a; Path=/"


def test_a_path_of_the_settings_is_encoded_for_the_client() -> None:
    mapping = Mapping("/日本 ü", "/", ("127.0.0.1:3000",))
    encoded = "/%E6%97%A5%E6%9C%AC%20%C3%BC"
    assert mapping.map_field("location", "/login", "a.org") == f"{encoded}/login"
    assert mapping.map_field("set-cookie", "a=b; Path=/", "a.org") == f"a=b; Path={encoded}/"
    assert target_for(request(f"{encoded}/x"), "/日本 ü", "/") == "/x"


@pytest.mark.parametrize(
    ("prefix", "encoded"),
    [("/100%", "/100%25"), ("/a?b", "/a%3Fb"), ("/a#b", "/a%23b"), ("/a;b", "/a%3Bb"), ('/"<', "/%22%3C")],
)
def test_no_character_of_a_location_ends_the_path(prefix: str, encoded: str) -> None:
    mapping = Mapping(prefix, "/", ("127.0.0.1:3000",))
    assert mapping.map_field("location", "/x", "a.org") == f"{encoded}/x"
    assert mapping.map_field("set-cookie", "a=b; Path=/", "a.org") == f"a=b; Path={encoded}/"


def test_an_upstream_may_encode_its_path_with_small_letters() -> None:
    mapping = Mapping("/app", "/%C3%BC", ("127.0.0.1:3000",))
    for encoded in ("/%c3%bc", "/%C3%bc"):
        assert mapping.map_field("location", f"{encoded}/%c3?x", "a.org") == "/app/%c3?x"
        assert mapping.map_field("set-cookie", f"a=b; Path={encoded}", "a.org") == "a=b; Path=/app"


def test_the_path_of_a_cookie_is_the_one_that_browsers_send() -> None:
    mapping = Mapping("/a:b&c[d]|e", "/", ("127.0.0.1:3000",))
    assert mapping.map_field("set-cookie", "a=b; Path=/", "a.org") == "a=b; Path=/a:b&c[d]|e/"


@pytest.mark.parametrize(
    "target", ["//evil.example/", "/\\evil.example", "/\t/evil.example", "///evil.example/a?b"]
)
def test_no_mapped_location_names_another_server(target: str) -> None:
    """The upstream repeats the client's path, on its own address or below its own prefix, where it is harmless."""
    for prefix, replacement in (("", "/base"), ("", "/base/"), ("", None), ("/app", None), ("", "/")):
        mapping = Mapping(prefix, replacement, ("127.0.0.1:3000",))
        for before in ("http://127.0.0.1:3000", "http://127.0.0.1:3000/base", "/base"):
            located = mapping.map_field("location", before + target, "a.org")
            assert re.match(r"/[^/\\\t]", located), (prefix, replacement, before, located)


def test_settings() -> None:
    assert parse_proxy("/=unix:/run/a.sock") == ("/", "unix:/run/a.sock")
    assert parse_origin("unix:/run/a.sock") == ("unix:/run/a.sock", None)
    assert parse_origin("http://h:1/a/b") == ("h:1", "/a/b")
    for bad in (
        "https://h",
        "http://",
        "http://h:99999",
        "http://h/?q",
        "h:80",
        "http://u@h",
        "fd://3",
        "http://h/ ",
    ):
        with pytest.raises(ValueError):
            parse_origin(bad)
    for bad in ("app=http://h", ".php=http://h", "/app", "/app="):
        with pytest.raises(ValueError):
            parse_proxy(bad)
