"""ewe/http/parser.py alone, without a socket: the grammar of HTTP/1.1, each rule with the section it is from.

Tables show the rules; hypothesis looks for what the tables forgot.
"""

from __future__ import annotations

import calendar
import email.utils
import ipaddress
import os
import re
import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from ewe.http import dates
from ewe.http.chunked import ChunkedDecoder
from ewe.http.dates import http_date, parse_date
from ewe.http.fields import parse_fields, parsed_lines
from ewe.http.limits import RequestLimits
from ewe.http.lines import check_partial_head
from ewe.http.messages import CONDITIONS, METHODS, NO_BODY, Region, Request, Response, Source
from ewe.http.parser import parse_request
from ewe.http.status import HTTPError
from ewe.http.target import percent_decode, percent_encode, remove_dot_segments
from ewe.streams.blocking import run

LIMITS = RequestLimits()
SMALL = RequestLimits(max_target=40, max_head=300, max_field=100, max_fields=5, max_body=1000)
quick = settings(max_examples=examples(200), deadline=None)


def head(line: str = "GET / HTTP/1.1", *fields: str, host: str | None = "Host: a") -> bytes:
    """Return a head: request line and fields, with a Host unless told otherwise."""
    lines = [line, *([host] if host is not None else []), *fields]
    return "".join(line + "\r\n" for line in lines).encode("latin-1") + b"\r\n"


def parse(line: str = "GET / HTTP/1.1", *fields: str, host: str | None = "Host: a") -> Request:
    """Parse such a head."""
    return parse_request(head(line, *fields, host=host), LIMITS)


def status_of(data: bytes, limits: RequestLimits = LIMITS) -> int:
    """Return the status with which a head is refused, 0 if it is not."""
    try:
        parse_request(data, limits)
    except HTTPError as refused:
        assert refused.cause and "\n" not in refused.cause and refused.cause.isprintable()
        return refused.status
    return 0


# --- RFC 9112 section 3: the request line -----------------------------------------------------------------


@pytest.mark.parametrize("method", [*sorted(METHODS), "get", "PROPFIND", "!#$%&'*+-.^_`|~09", "X" * 32])
def test_methods(method: str) -> None:
    """RFC 9110 section 9.1."""
    assert parse(f"{method} /a HTTP/1.1").method == method


@pytest.mark.parametrize(
    ("method", "status"),
    [
        ("X" * 33, 501),
        ("X" * 500, 501),
        ("CONNECT", 501),  # in authority-form it is understood, but there is no tunnel here
        ("G(T", 400),
        ("G\xc9T", 400),
        ("G\tT", 400),
        ("", 400),
        ('"GET"', 400),
        ("GET:", 400),
        ("GET/", 400),
    ],
)
def test_methods_that_are_refused(method: str, status: int) -> None:
    target = "a:80" if method == "CONNECT" else "/"
    assert status_of(head(f"{method} {target} HTTP/1.1")) == status


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("HTTP/1.1", 0),
        ("HTTP/1.0", 0),
        ("HTTP/1.2", 0),  # a higher minor version is understood as the highest of ours: RFC 9110 section 2.5
        ("HTTP/1.9", 0),
        ("HTTP/0.9", 505),
        ("HTTP/2.0", 505),
        ("HTTP/3.1", 505),
        ("HTTP/9.9", 505),
        ("HTTP/2", 400),  # RFC 9112 section 2.3: DIGIT "." DIGIT, and the name is case-sensitive
        ("HTTP/1", 400),
        ("HTTP/11.1", 400),
        ("HTTP/1.10", 400),
        ("HTTP/01.1", 400),
        ("HTTP/1.", 400),
        ("HTTP/.1", 400),
        ("HTTP/+1.1", 400),
        ("HTTP/1,1", 400),
        ("http/1.1", 400),
        ("Http/1.1", 400),
        ("HTTPS/1.1", 400),
        ("HTTP /1.1", 400),
        ("HTTP/ 1.1", 400),
        ("HTTP/1.1 ", 400),
        ("HTTP/1.1\t", 400),
        ("HTTP/1.\xb9", 400),  # a digit to Python's str.isdigit(), not to us
        ("", 400),
    ],
)
def test_versions(version: str, status: int) -> None:
    assert status_of(head(f"GET / {version}")) == status


def test_the_rules_are_those_of_the_version() -> None:
    assert parse("GET / HTTP/1.0").version == (1, 0)
    assert parse("GET / HTTP/1.1").version == parse("GET / HTTP/1.7").version == (1, 1)
    assert parse("GET / HTTP/1.0").line == "GET / HTTP/1.0"


@pytest.mark.parametrize(
    "line",
    [
        "GET  / HTTP/1.1",  # one SP and no other white space: RFC 9112 section 3, strict
        "GET /  HTTP/1.1",
        "GET\t/ HTTP/1.1",
        "GET /\tHTTP/1.1",
        " GET / HTTP/1.1",
        "GET / HTTP/1.1 HTTP/1.1",
        "GET /a b HTTP/1.1",
        "GET /",  # HTTP/0.9
        "GET",
        "GET HTTP/1.1",
        "GET  HTTP/1.1",
        "",
        "/ HTTP/1.1",
        "GET\x0b/ HTTP/1.1",
        "GET\xa0/ HTTP/1.1",
        "GET / HTTP/1.1\x00",
    ],
)
def test_request_lines_that_are_refused(line: str) -> None:
    assert status_of(head(line)) == 400


def test_a_request_line_that_is_too_long() -> None:
    """RFC 9112 section 3: 414 for the target, 501 for a method longer than any; the first limit decides."""
    assert status_of(head("GET /" + "a" * 39 + " HTTP/1.1"), SMALL) == 0
    assert status_of(head("GET /" + "a" * 40 + " HTTP/1.1"), SMALL) == 414
    assert status_of(head("GET /" + "a b" * 40 + " HTTP/1.1"), SMALL) == 400
    assert status_of(head("GET /" + "a" * 40 + " b HTTP/1.1"), SMALL) == 414
    assert status_of(head("X" * 33), SMALL) == 501
    assert status_of(head("X" * 33 + " /" + "a" * 40 + " HTTP/1.1"), SMALL) == 501


# --- RFC 9112 section 3.2, RFC 3986: the target ------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/", "/", None),
        ("/?", "/", ""),
        ("/a?b", "/a", "b"),
        ("/a?b?c=/d", "/a", "b?c=/d"),  # RFC 3986 section 3.4: / and ? may stand in a query
        ("/a?%41%2f", "/a", "%41%2f"),  # a query is left as it was sent
        ("/a?100%&%4g&%", "/a", "100%&%4g&%"),
        ("/%41", "/A", None),  # an escape of an unreserved character means the character: section 6.2.2.2
        ("/%c3%a9", "/é", None),
        ("/%C3%A9", "/é", None),
        ("/%ff", "/\udcff", None),  # not UTF-8: a file name all the same
        ("/%2541", "/%41", None),  # decoded once
        ("/%252e%252e/", "/%2e%2e/", None),
        ("/a+b", "/a+b", None),  # a plus is a plus in a path
        ("/%3Fa", "/?a", None),
        ("/%20", "/ ", None),
        ("/a;b=c", "/a;b=c", None),
        ("/~a!$&'()*,=:@", "/~a!$&'()*,=:@", None),
        ("/[a]|b", "/[a]|b", None),  # browsers send these characters unescaped
        ("/?{a}^`|\\[]", "/", "{a}^`|\\[]"),
        ("/a/./b", "/a/b", None),  # RFC 3986 section 5.2.4
        ("/a/../b", "/b", None),
        ("/a/b/../../c", "/c", None),
        ("/a/..", "/", None),
        ("/a/b/..", "/a/", None),
        ("/a/.", "/a/", None),
        ("/.", "/", None),
        ("/./", "/", None),
        ("/%2e/a", "/a", None),
        ("/a/%2E%2e/b", "/b", None),
        ("/a/.%2e/b", "/b", None),
        ("//a", "/a", None),  # repeated slashes are one
        ("///", "/", None),
        ("/a//b//", "/a/b/", None),
        ("/a/..//b", "/b", None),
        ("/...", "/...", None),
        ("/..a/a..", "/..a/a..", None),
        ("/.a/.b", "/.a/.b", None),
        ("/%5c..%5ca", "/\\..\\a", None),  # a backslash is a character of a name
        ("/%0d%0aX", "/\r\nX", None),
        ("/a?..%2f", "/a", "..%2f"),
        ("http://b/c?d", "/c", "d"),  # absolute-form: section 3.2.2
        ("http://b", "/", None),
        ("http://b?d", "/", "d"),
        ("http://b/", "/", None),
        ("HTTP://b/c", "/c", None),
        ("https://b:1/c", "/c", None),
        ("http://b/a/../c", "/c", None),
    ],
)
def test_targets(target: str, path: str, query: str | None) -> None:
    request = parse(f"GET {target} HTTP/1.1")
    assert (request.path, request.query, request.target) == (path, query, target)


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("a", 400),
        ("a/b", 400),
        ("?a", 400),
        ("*", 400),  # asterisk-form is for OPTIONS: section 3.2.4
        ("a:80", 400),  # authority-form is for CONNECT: section 3.2.3
        ("*/", 400),
        ("/*#", 400),
        ("/a#b", 400),  # there is no fragment in a target: section 3.2
        ("/?a#b", 400),
        ("http://b/#c", 400),
        ("/%", 400),
        ("/%4", 400),
        ("/%g1", 400),
        ("/%u0041", 400),
        ("/<a>", 400),
        ('/"', 400),
        ("/\\", 400),
        ("/{}", 400),
        ("/^", 400),
        ("/`", 400),
        ('/?"', 400),
        ("/?<>", 400),
        ("/\xe9", 400),  # bytes above ASCII are to be escaped: RFC 3986 section 2
        ("/?\xe9", 400),
        ("/\x7f", 400),
        ("/%00", 400),
        ("/a%00.html", 400),
        ("/..", 400),  # never above the root
        ("/../a", 400),
        ("/%2e%2e", 400),
        ("/a/../../b", 400),
        ("/a/../%2E./b", 400),
        ("/%2f", 404),  # no name has a slash in it
        ("/a%2Fb", 404),
        ("/..%2fa", 404),
        ("http:///a", 400),  # RFC 9110 section 4.2.1: a recipient must reject an empty host
        ("http://", 400),
        ("http:/a", 400),
        ("http:a", 400),
        ("http://u@b/", 400),  # RFC 9110 section 4.2.4: userinfo is an attack
        ("http://u:p@b/", 400),
        ("http://b:x/", 400),
        ("http://b:99999/", 400),
        ("http://b c/", 400),
        ("http://b\\c/", 400),
        ("http://[::1/", 400),
        ("ftp://b/", 400),
        ("file:///etc/passwd", 400),
        ("://b/", 400),
    ],
)
def test_targets_that_are_refused(target: str, status: int) -> None:
    assert status_of(head(f"GET {target} HTTP/1.1")) == status


def test_options_of_the_server() -> None:
    """RFC 9112 section 3.2.4, and its absolute-form: a target with neither path nor query."""
    for target in ("*", "http://b", "http://b:80"):
        request = parse(f"OPTIONS {target} HTTP/1.1")
        assert (request.path, request.query) == ("*", None)
    assert parse("OPTIONS http://b/ HTTP/1.1").path == "/"
    assert parse("OPTIONS http://b?c HTTP/1.1").path == "/"


def test_an_absolute_target_wins_over_host() -> None:
    """RFC 9112 section 3.2.2: a server must ignore Host then, but it must still be there and well-formed."""
    assert parse("GET http://b:81/ HTTP/1.1", host="Host: a").host == "b:81"
    assert status_of(head("GET http://b/ HTTP/1.1", host=None)) == 400
    assert status_of(head("GET http://b/ HTTP/1.1", host="Host: a b")) == 400
    assert status_of(head("GET http://b/ HTTP/1.0", host=None)) == 0


SEGMENTS = st.sampled_from(
    ["", ".", "..", "...", "a", ".a", "a.", "..a", "%2e", "%2E%2e", ".%2e", "%2e.", "%25", "%5c", "%c3%a9",
     "%ff", "%252e", "%7E", "%0a", "a%20b", "..%5c..", "%3a"]
)  # fmt: skip
PATHS = st.lists(SEGMENTS, min_size=1, max_size=8).map(lambda segments: "/" + "/".join(segments))


@settings(max_examples=examples(500), deadline=None)
@given(PATHS)
def test_a_path_never_escapes(path: str) -> None:
    try:
        resolved = remove_dot_segments(path)
    except HTTPError as refused:
        assert refused.status == 400
        return
    assert resolved.startswith("/") and "//" not in resolved
    assert not {".", ".."} & set(resolved.split("/"))
    assert os.path.normpath("/root" + resolved).startswith("/root")
    # Resolving is idempotent, and where the name leads does not depend on what the dots were written as.
    assert remove_dot_segments(percent_encode(resolved)) == resolved
    assert remove_dot_segments(path.replace("%2e", ".").replace("%2E", ".")) == resolved
    plain = os.path.normpath(percent_decode(path))
    assert resolved.rstrip("/") == (plain if plain != "//" else "/").replace("//", "/").rstrip("/")


@quick
@given(st.binary(max_size=40))
def test_escape_is_undone_by_unescape(raw: bytes) -> None:
    """Any file name can be written in a URL, and is found again (RFC 3986 section 2.1)."""
    name = raw.decode("utf-8", "surrogateescape")
    escaped = percent_encode(name)
    assert percent_decode(escaped) == name
    assert re.fullmatch(r"[A-Za-z0-9\-._~!$'()*+,=@/]*(?:%[0-9A-F]{2}[A-Za-z0-9\-._~!$'()*+,=@/]*)*", escaped)
    if b"\0" not in raw and not {b"", b".", b".."} & set(raw.split(b"/")):
        assert remove_dot_segments("/" + escaped) == "/" + name


# --- RFC 9112 section 3.2, RFC 9110 section 7.2: Host ------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["a", "a.b", "A", "a:80", "a:", "127.0.0.1:4000", "[::1]", "[::1]:80", "[2001:db8::1:0:2]:443", "[::]",
     "[::ffff:192.0.2.1]", "[1:2:3:4:5:6:7:8]", "a_b", "a-b~c", "%41", "xn--bcher-kva.example", "a:65535", "a."],
)  # fmt: skip
def test_hosts(host: str) -> None:
    assert parse(host=f"Host: {host}").host == host
    assert parse(host=f"hOST:\t {host} \t").host == host


@pytest.mark.parametrize(
    "host",
    ["", " ", "a b", "a,b", "a, a", "u@a", "a/", "a/b", "http://a", "a?b", "a#b", "a\\b", "a:b", "a:80:80",
     "a:-1", "a:+80", "a:65536", "a:000080", ":80", "::1", "[::1", "::1]", "[]", "[a]", "[:]", "[:::]", "[1]",
     "[1:2:3:4:5:6:7:8:9]", "[::1::2]", "[12345::]", "[::1.2.3]", "[::256.1.1.1]", "[::1%25eth0]", "[v1.a]",
     "[::1]a", "[::1]:x", "a\xe9", "%", "%4", "%zz", "a;b", "a=b", "<a>", "a'b", "a\tb", '"a"'],
)  # fmt: skip
def test_hosts_that_are_refused(host: str) -> None:
    assert status_of(head(host=f"Host: {host}")) == 400


def test_exactly_one_host() -> None:
    """RFC 9112 section 3.2: a server must refuse a 1.1 request without Host, and any with two."""
    assert status_of(head(host=None)) == 400
    assert status_of(head("GET / HTTP/1.0", host=None)) == 0
    for line in ("GET / HTTP/1.1", "GET / HTTP/1.0"):
        assert status_of(head(line, "Host: a")) == 400
        assert status_of(head(line, "HOST: b")) == 400
    assert status_of(head("GET / HTTP/1.0", host="Host: a b")) == 400


@quick
@given(st.lists(st.sampled_from(["::", ":", "1", "ffff", "12345", "0", "1.2.3.4", "1.2.3", "01.2.3.4", "."])))
def test_literal_addresses_as_the_library_reads_them(parts: list[str]) -> None:
    text = "".join(parts)
    try:
        ipaddress.IPv6Address(text)
        good = True
    except ValueError:
        good = False
    assert (status_of(head(host=f"Host: [{text}]")) == 0) == good


@quick
@given(st.ip_addresses(v=6), st.booleans())
def test_every_literal_address(address: ipaddress.IPv6Address, long: bool) -> None:
    text = address.exploded if long else str(address)
    assert parse(host=f"Host: [{text}]").host == f"[{text}]"


# --- RFC 9112 section 5: fields ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("A: b", ("a", "b")),
        ("A:b", ("a", "b")),
        ("a:\t b \t", ("a", "b")),  # OWS around the value is not part of it: section 5.1
        ("A:", ("a", "")),
        ("A: ", ("a", "")),
        ("A: b c\td", ("a", "b c\td")),
        ("A: \xe9\x80\xff", ("a", "\xe9\x80\xff")),  # obs-text is opaque: RFC 9110 section 5.5
        ("!#$%&'*+-.^_`|~09Az: b", ("!#$%&'*+-.^_`|~09az", "b")),
        ("A: b:c", ("a", "b:c")),
        ("A::", ("a", ":")),
        ('A: "b\\"', ("a", '"b\\"')),
        ("A: \xa0b\xa0", ("a", "\xa0b\xa0")),  # only SP and HTAB are white space
        ("A: \x85", ("a", "\x85")),
    ],
)
def test_field_lines(line: str, field: tuple[str, str]) -> None:
    assert parse("GET / HTTP/1.1", line).fields == (("host", "a"), field)


@pytest.mark.parametrize(
    "line",
    [
        "A : b",  # section 5.1: no white space before the colon; such a request is refused
        "A\t: b",
        " A: b",  # section 5.2: obs-fold, refused
        "\tb",
        " ",
        "A",
        ": b",
        ":",
        "A b: c",
        "\xc9: b",
        "A(b): c",
        "A/b: c",
        '"A": b',
        "A\x00: b",
        "A: b\x00",  # RFC 9110 section 5.5: CR, LF and NUL are dangerous
        "A: b\x01",
        "A: b\x0b",
        "A: b\x0c",
        "A: b\x1f",
        "A: b\x7f",
        "A: b\rc",
        "A: b\r",
        "A: b\nC: d",
        "A: b\n",
        "\nA: b",
        "A: b\r\n c",
    ],
)
@pytest.mark.parametrize("place", ["first", "last"])
def test_field_lines_that_are_refused(line: str, place: str) -> None:
    fields = (line, "B: c") if place == "first" else ("B: c", line)
    assert status_of(head("GET / HTTP/1.1", *fields)) == 400
    if place == "first":
        assert status_of(head("GET / HTTP/1.1", line, host="Host: a")) == 400
        assert status_of(f"GET / HTTP/1.1\r\n{line}\r\nHost: a\r\n\r\n".encode("latin-1")) == 400


def test_lines_of_one_name_are_a_list() -> None:
    """RFC 9110 section 5.3; cookies are the exception: RFC 6265 section 5.4."""
    request = parse("GET / HTTP/1.1", "A: 1", "B: 2", "a: 3", "Cookie: c=1", "Cookie: d=2")
    assert request.fields == (
        ("host", "a"),
        ("a", "1"),
        ("b", "2"),
        ("a", "3"),
        ("cookie", "c=1"),
        ("cookie", "d=2"),
    )
    assert request.get("a") == "1, 3" and request.get("cookie") == "c=1; d=2" and request.get("z") is None


def test_limits_of_the_head() -> None:
    """RFC 9110 section 5.4, RFC 6585 section 5: 431."""
    assert status_of(head("GET / HTTP/1.1", *["A: b"] * 4), SMALL) == 0
    assert status_of(head("GET / HTTP/1.1", *["A: b"] * 5), SMALL) == 431
    assert status_of(head("GET / HTTP/1.1", "A: " + "b" * 97), SMALL) == 0
    assert status_of(head("GET / HTTP/1.1", "A: " + "b" * 98), SMALL) == 431
    long = head("GET / HTTP/1.1", *["A: " + "b" * 60] * 4)
    assert len(long) <= 300 and status_of(long, SMALL) == 0
    assert status_of(head("GET / HTTP/1.1", *["A: " + "b" * 80] * 4), SMALL) == 431


@pytest.mark.parametrize("name", sorted(CONDITIONS))
def test_conditional(name: str) -> None:
    assert parse("GET / HTTP/1.1", f"{name.upper()}: x").conditional
    assert not parse("GET / HTTP/1.1", f"x-{name}: x").conditional


def test_a_head_without_fields() -> None:
    assert parse_request(b"GET / HTTP/1.0\r\n\r\n", LIMITS).fields == ()
    assert parse_fields("", LIMITS) == ()


# --- RFC 9112 section 6: framing ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ((), 0),
        (("Content-Length: 0",), 0),
        (("Content-Length: 5",), 5),
        (("content-length:5",), 5),
        (("Content-Length: \t5\t ",), 5),
        (("Content-Length: 2147483648",), 2147483648),
        (("Transfer-Encoding: chunked",), None),
        (("transfer-encoding:\tChunkeD ",), None),
    ],
)
def test_lengths(fields: tuple[str, ...], length: int | None) -> None:
    assert parse("POST / HTTP/1.1", *fields).length == length


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (("Content-Length:",), 400),  # section 6.3 rule 5: an invalid Content-Length is unrecoverable
        (("Content-Length: -1",), 400),
        (("Content-Length: +5",), 400),
        (("Content-Length: 5 5",), 400),
        (("Content-Length: 5,",), 400),
        (("Content-Length: 5, 5",), 400),  # a list of the same length: section 6.3 lets us choose, strict
        (("Content-Length: 5, 6",), 400),
        (("Content-Length: 5", "Content-Length: 5"), 400),
        (("Content-Length: 5", "Content-Length: 6"), 400),
        (("Content-Length: 5", "content-length:"), 400),
        (("Content-Length: 0x5",), 400),
        (("Content-Length: 5.0",), 400),
        (("Content-Length: 1e1",), 400),
        (("Content-Length: 05",), 400),  # some read it as octal
        (("Content-Length: 00",), 400),
        (("Content-Length: 1_0",), 400),  # a number to Python's int()
        (("Content-Length: \xb2",), 400),
        (("Content-Length: \xa05",), 400),
        (('Content-Length: "5"',), 400),
        (("Content-Length: five",), 400),
        (("Content-Length: 2147483649",), 413),
        (("Content-Length: 9223372036854775808",), 413),
        (("Content-Length: 18446744073709551616",), 400),  # RFC 9110 section 8.6: it overflows
        (("Content-Length: " + "9" * 500,), 400),
        (("Content-Length: 5", "Transfer-Encoding: chunked"), 400),  # section 6.1: how requests are smuggled
        (("Transfer-Encoding: chunked", "Content-Length: 0"), 400),
        (("Transfer-Encoding:",), 400),  # section 6.3 rule 4: the last coding has to be chunked
        (("Transfer-Encoding: identity",), 400),
        (("Transfer-Encoding: gzip",), 400),
        (("Transfer-Encoding: chunked, identity",), 400),
        (("Transfer-Encoding: chunked, gzip",), 400),
        (("Transfer-Encoding: chunked", "Transfer-Encoding: identity"), 400),
        (("Transfer-Encoding: chunked, chunked",), 400),  # section 6.1: never applied twice
        (("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), 400),
        (("Transfer-Encoding: chunked,",), 400),
        (("Transfer-Encoding: xchunked",), 400),
        (("Transfer-Encoding: chunkedx",), 400),
        (("Transfer-Encoding: chunked;a=b",), 400),
        (("Transfer-Encoding: chunked foo",), 400),
        (('Transfer-Encoding: "chunked"',), 400),
        (("Transfer-Encoding: 'chunked'",), 400),
        (("Transfer-Encoding: \xa0chunked",), 400),
        (("Transfer-Encoding: chunked\x0b",), 400),
        (("Transfer-Encoding : chunked",), 400),
        (("Transfer-Encoding: gzip, chunked",), 501),  # section 6.1: an unknown coding
        (("Transfer-Encoding: gzip", "Transfer-Encoding: chunked"), 501),
        (("Transfer-Encoding: identity, chunked",), 501),
    ],
)
def test_framing_that_is_refused(fields: tuple[str, ...], status: int) -> None:
    assert status_of(head("POST / HTTP/1.1", *fields)) == status


def test_no_transfer_encoding_in_1_0() -> None:
    """RFC 9112 section 6.1: such framing is faulty."""
    assert status_of(head("POST / HTTP/1.0", "Transfer-Encoding: chunked")) == 400
    assert parse("POST / HTTP/1.0", "Content-Length: 3").length == 3


def test_a_body_that_is_too_large() -> None:
    assert status_of(head("POST / HTTP/1.1", "Content-Length: 1000"), SMALL) == 0
    assert status_of(head("POST / HTTP/1.1", "Content-Length: 1001"), SMALL) == 413


# --- RFC 9112 section 9.3: persistence; RFC 9110 section 10.1.1: Expect -----------------------------------


@pytest.mark.parametrize(
    ("version", "fields", "keeps"),
    [
        ("1.1", (), True),
        ("1.1", ("Connection: close",), False),
        ("1.1", ("Connection: CLOSE",), False),
        ("1.1", ("Connection: keep-alive",), True),
        ("1.1", ("Connection: a, close ,b",), False),
        ("1.1", ("Connection: keep-alive", "Connection: close"), False),
        ("1.1", ("Connection: closed",), True),
        ("1.1", ("Connection:",), True),
        ("1.0", (), False),
        ("1.0", ("Connection: keep-alive",), True),
        ("1.0", ("Connection: Keep-Alive",), True),
        ("1.0", ("Connection: keep-alive, close",), False),
        ("1.0", ("Connection: x",), False),
        ("1.0", ("Keep-Alive: 300",), False),
        ("1.3", (), True),
    ],
)
def test_persistence(version: str, fields: tuple[str, ...], keeps: bool) -> None:
    assert parse(f"GET / HTTP/{version}", *fields).keep_alive is keeps


@pytest.mark.parametrize(
    ("version", "fields", "expects"),
    [
        ("1.1", ("Expect: 100-continue", "Content-Length: 5"), True),
        ("1.1", ("Expect: 100-Continue", "Transfer-Encoding: chunked"), True),
        ("1.1", ("Expect: 100-continue",), False),  # nothing to wait for
        ("1.1", ("Expect: 100-continue", "Content-Length: 0"), False),
        ("1.0", ("Expect: 100-continue", "Content-Length: 5"), False),  # a 1.0 client cannot expect
        ("1.0", ("Expect: x", "Content-Length: 5"), False),
        ("1.1", ("Expect: x",), 417),
        ("1.1", ("Expect: 100-continue, x",), 417),
        ("1.1", ("Expect: 200-ok", "Content-Length: 5"), 417),
    ],
)
def test_expectations(version: str, fields: tuple[str, ...], expects: bool | int) -> None:
    data = head(f"POST / HTTP/{version}", *fields)
    if expects == 417:
        assert status_of(data) == 417
    else:
        assert parse_request(data, LIMITS).expects is expects


# --- A head of which only a part has arrived ----------------------------------------------------------------

PIECES_OF_HEADS = st.sampled_from(
    ["GET", "POST", " ", "  ", "/", "/a", "*", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "\r\n", "\r\n", "\r\n", "\n",
     "\r", "Host: a", "A: b", "A : b", ":", "\t", "\x00", "\x7f", "\xe9", "Content-Length: 5", "b" * 30, "%", " c"]
)  # fmt: skip
HEADS = st.lists(PIECES_OF_HEADS, max_size=12).map("".join)
NEARLY_HEADS = st.tuples(
    st.just("GET / HTTP/1.1\r\nHost: a\r\nA: b\r\n\r\n"),
    st.integers(0, 37),
    st.integers(0, 2),
    PIECES_OF_HEADS,
).map(lambda drawn: drawn[0][: drawn[1]] + drawn[3] + drawn[0][drawn[1] + drawn[2] :])


def prefixes(data: bytes) -> range:
    """Return the lengths of all prefixes that do not hold the end of the head."""
    end = data.find(b"\r\n\r\n")
    return range(len(data) if end < 0 else end + 4)


@settings(max_examples=examples(500), deadline=None)
@given(HEADS | NEARLY_HEADS)
def test_what_is_refused_early_would_be_refused_late(text: str) -> None:
    """And nothing that could become a good head is refused before its end."""
    data = text.encode("latin-1")
    for limits in (LIMITS, RequestLimits(max_target=20, max_head=60, max_field=25, max_fields=3)):
        early = None
        for size in prefixes(data):
            try:
                check_partial_head(data[:size], limits)
                assert early is None, "a longer prefix cannot be better"
            except HTTPError as refused:
                early = early or refused
        # With any bytes after it, the whole head is refused, too.
        for rest in (b"", b"\r\n\r\n", b"\n\r\n\r\n", b" HTTP/1.1\r\nHost: a\r\n\r\n", b": b\r\n\r\n"):
            whole = data + rest
            end = whole.find(b"\r\n\r\n")
            if early is not None and end >= 0:
                assert status_of(whole[: end + 4], limits)


NAMES = st.text("ABCxyz-09_", min_size=1, max_size=9)
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=20)


@quick
@given(st.sampled_from(sorted(METHODS)), PATHS, st.lists(st.tuples(NAMES, VALUES)))
def test_a_good_head_is_never_refused_early(method: str, path: str, fields: list[tuple[str, str]]) -> None:
    data = head(f"{method} {path} HTTP/1.1", *(f"X-{name}: {value}" for name, value in fields))
    for size in prefixes(data):
        check_partial_head(data[:size], LIMITS)


@pytest.mark.parametrize(
    ("arrived", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),  # a TLS greeting
        (b"GET /\r\n", 400),  # HTTP/0.9
        (b"GET / HTTP/1.1\n", 400),
        (b"\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\n", 400),
        (b"GET / HTTP/1.1\r\nA\rb", 400),
        (b"PRI * HTTP/2.0\r\n", 505),  # the preface of HTTP/2
        (b"GET /" + b"a" * 9000, 414),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 40000, 431),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200, 431),
        (b"GET / HTTP/1.1\r\nA: b\r\n folded", 400),
        (b"GET / HTTP/1.1\r\nA : b", 400),
        (b"GET / HTTP/1.1\r\n: b", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\nB\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"X" * 80 + b" y", 400),
    ],
)
def test_refused_at_once(arrived: bytes, status: int) -> None:
    with pytest.raises(HTTPError) as info:
        check_partial_head(arrived, LIMITS)
    assert info.value.status == status
    assert verdict(bytewise(arrived), LIMITS) == verdict([arrived], LIMITS)


LINES = st.sampled_from(
    (b"GET / HTTP/1.1", b"GET /a b HTTP/1.1", b"GET /" + b"a" * 50, b"X" * 40, b"HTTP/2.0", b"A: b", b"C : d",
     b" e", b"A: " + b"b" * 30, b"\r\n", b"\r\n", b"\r\n", b"\r", b"\n", b"\x00", b"x" * 70, b"\r\n\r\n")
)  # fmt: skip


def verdict(pieces: list[bytes], limits: RequestLimits) -> tuple[object, ...]:
    """Return the result of a head that arrives in these pieces, as the conversation reads it."""
    arrived, checked = b"", 0
    try:
        for piece in pieces:
            arrived += piece
            end = arrived.find(b"\r\n\r\n")
            if end >= 0:
                return (parse_request(arrived[: end + 4], limits).line,)
            checked = check_partial_head(arrived, limits, checked)
    except HTTPError as refused:
        line = arrived if refused.offset is None else arrived[: refused.offset + 1]
        return refused.status, refused.cause, refused.offset, line[:200].partition(b"\r\n")[0]
    return ()


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(LINES, max_size=8).map(b"".join) | HEADS.map(lambda text: text.encode("latin-1")), st.data())
def test_a_verdict_does_not_depend_on_how_the_bytes_arrive(data: bytes, drawn: st.DataObject) -> None:
    cuts = sorted(drawn.draw(st.sets(st.integers(0, len(data)), max_size=5)))
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    for limits in (LIMITS, RequestLimits(max_target=40, max_head=100, max_field=25, max_fields=3)):
        whole = verdict([data], limits)
        assert verdict(pieces, limits) == verdict(bytewise(data), limits) == whole


@pytest.mark.parametrize("begun", [b"g", b"5x", b"-1", b"0x5", b"5 6", b"1234567890123456", b"5\r;", b" 5"])
def test_a_bad_chunk_is_refused_at_once(begun: bytes) -> None:
    with pytest.raises(HTTPError, match="400"):
        ChunkedDecoder(LIMITS).feed(begun)


def test_a_head_that_comes_byte_by_byte_is_cheap() -> None:
    data = b"GET / HTTP/1.1\r\n" + (b"A: " + b"b" * 10_000 + b"\r\n") * 3
    checked = 0
    began = time.process_time()
    for size in range(1, len(data), 10):
        checked = check_partial_head(data[:size], LIMITS, checked)
    assert time.process_time() - began < 0.5  # it takes 0.05 s, and 0.7 s with the pattern alone


# --- RFC 9112 section 7.1: chunked bodies --------------------------------------------------------------------


def decode(pieces: list[bytes], limits: RequestLimits = LIMITS) -> tuple[bytes, bytes | None]:
    """Return the body, and the bytes after it (None: the body has not ended)."""
    decoder = ChunkedDecoder(limits)
    body = b""
    for place, piece in enumerate(pieces):
        body += decoder.feed(piece)
        while not (decoder.needs_data or decoder.finished):
            body += decoder.feed(b"")
        if decoder.finished:
            return body, decoder.rest + b"".join(pieces[place + 1 :])
    return body, None


def bytewise(data: bytes) -> list[bytes]:
    """Cut data into single bytes."""
    return [data[i : i + 1] for i in range(len(data))]


@pytest.mark.parametrize(
    ("data", "body", "rest"),
    [
        (b"0\r\n\r\n", b"", b""),
        (b"0\r\n\r\nGET", b"", b"GET"),
        (b"5\r\nhello\r\n0\r\n\r\n", b"hello", b""),
        (b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\nrest", b"hello world", b"rest"),
        (b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789", b""),
        (b"a\r\n0123456789\r\n0\r\n\r\n", b"0123456789", b""),
        (b"000005\r\nhello\r\n000\r\n\r\n", b"hello", b""),
        (b"2\r\n\r\n\r\n0\r\n\r\n", b"\r\n", b""),
        (b"5;a\r\nhello\r\n0;b=c\r\n\r\n", b"hello", b""),  # extensions: section 7.1.1
        (b'5;a="b;\\"c"\r\nhello\r\n0\r\n\r\n', b"hello", b""),
        (b"5 ; a = b ;c\r\nhello\r\n0\r\n\r\n", b"hello", b""),
        (b"0\r\nA: b\r\nContent-Length: 9\r\n\r\nrest", b"", b"rest"),  # trailers are dropped: section 7.1.2
        (b"5\r\nhel", b"hel", None),
        (b"5\r\nhello\r\n0\r\n", b"hello", None),
        (b"5\r\nhello\r\n0\r\nA: b\r\n", b"hello", None),
    ],
)
def test_chunked_bodies(data: bytes, body: bytes, rest: bytes | None) -> None:
    assert decode([data]) == (body, rest)
    assert decode(bytewise(data)) == (body, rest)
    assert decode([b"", *bytewise(data), b""]) == (body, rest)


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n",
        b"g\r\n",
        b"-1\r\n",
        b"+5\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"5 \r\nhello\r\n",  # BWS is only there before an extension
        b"5\t\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"5h\r\nhello\r\n",
        b"5,5\r\nhello\r\n",
        b"5 5\r\nhello\r\n",
        b"1_0\r\n",
        b"\xb25\r\n",
        b"5;\r\nhello\r\n",
        b"5;=b\r\nhello\r\n",
        b"5;a b\r\nhello\r\n",
        b"5;a\x00=b\r\n",
        b'5;a="b\r\nhello\r\n',
        b'5;a="b"c\r\nhello\r\n',
        b"5;a\nhello\r\n",  # a bare LF ends no line: section 2.2, here strict
        b"5\nhello\r\n",
        b"5\rhello\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhello0\r\n\r\n",  # section 7.1: the CRLF behind the data
        b"5\r\nhello!\r\n0\r\n\r\n",
        b"5\r\nhello\r\r\n0\r\n\r\n",
        b"5\r\nhello\r\n\r\n0\r\n\r\n",
        b"4\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhell\r\n0\r\n\r\n",
        b"1" + b"0" * 15 + b"\r\n",  # section 7.1: no overflow
        b"f" * 16 + b"\r\n",
        b"f" * 17 + b"\r\n",
        b"0" * 2000 + b"\r\n",
        b"0\r\nA\r\n\r\n",  # trailers have the grammar of fields
        b"0\r\nA : b\r\n\r\n",
        b"0\r\n b\r\n\r\n",
        b"0\r\nA: b\n\r\n",
        b"0\r\nA: \x00\r\n\r\n",
        b"0\r\n\n",
        b"5;" + b"a" * 1100 + b"\r\nhello\r\n",
    ],
)
def test_chunked_bodies_that_are_refused(data: bytes) -> None:
    for pieces in ([data], bytewise(data)):
        with pytest.raises(HTTPError) as info:
            decode(pieces)
        assert info.value.status == 400


def test_limits_of_a_chunked_body() -> None:
    def refused(data: bytes) -> int:
        statuses = []
        for pieces in ([data], bytewise(data)):
            with pytest.raises(HTTPError) as info:
                decode(pieces, SMALL)
            statuses.append(info.value.status)
        assert len(set(statuses)) == 1
        return statuses[0]

    assert refused(b"3e9\r\n") == 413  # as soon as it is declared
    assert refused(b"1f4\r\n" + b"a" * 500 + b"\r\n1f5\r\n") == 413
    assert refused(b"fffffffffffffff\r\n") == 413
    assert refused(b"0\r\nA: " + b"b" * 100 + b"\r\n\r\n") == 431
    assert refused(b"0\r\n" + b"A: b\r\n" * 60 + b"\r\n") == 431
    assert refused(b"".join(b"1;" + b"a" * 1000 + b"\r\nx\r\n" for _ in range(17))) == 400
    assert decode([b"3e8\r\n" + b"a" * 1000 + b"\r\n0\r\n\r\n"], SMALL)[0] == b"a" * 1000


def test_many_chunks_at_once_take_linear_time() -> None:
    """A quarter of a million chunks in one piece: the remaining bytes are not copied once for each chunk."""
    chunks = 250_000
    began = time.process_time()
    assert decode([b"1\r\na\r\n" * chunks + b"0\r\n\r\n"]) == (b"a" * chunks, b"")
    assert time.process_time() - began < 5  # it takes 0.4 s; with copies 9 s


TOKENS = st.text("!#$%&'*+-.^_`|~09AZaz", min_size=1, max_size=5)
QUOTED = st.text('\t !#[]~"\\;\x80\xff', max_size=5).map(
    lambda text: '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
)
BWS = st.sampled_from(["", "", " ", "\t "])
EXTENSION_VALUES = st.tuples(BWS, st.just("="), BWS, TOKENS | QUOTED).map("".join)
EXTENSION = st.tuples(BWS, st.just(";"), BWS, TOKENS, st.just("") | EXTENSION_VALUES).map("".join)
EXTENSIONS = st.lists(EXTENSION, max_size=2).map("".join)
TRAILERS = st.lists(st.sampled_from(["A: b", "c:", "Host: x", "Content-Length: 5", "D: \xe9"]), max_size=3)


Chunked = tuple[bytes, bytes, list[int]]


@st.composite
def chunked_bodies(draw: st.DrawFn) -> Chunked:
    """Return a chunked body, what it decodes to, and where the bytes are that cannot be changed unnoticed."""
    coded = b""
    body = b""
    structure: list[int] = []

    def crlf() -> None:
        nonlocal coded
        structure.extend((len(coded), len(coded) + 1))
        coded += b"\r\n"

    for data in draw(st.lists(st.binary(min_size=1, max_size=20), max_size=4)):
        form = draw(st.sampled_from(["%x", "%X", "%04x"]))
        coded += (form % len(data) + draw(EXTENSIONS)).encode("latin-1")
        crlf()
        coded += data
        body += data
        crlf()
    coded += (draw(st.sampled_from(["0", "00"])) + draw(EXTENSIONS)).encode("latin-1")
    crlf()
    for line in draw(TRAILERS):
        coded += line.encode("latin-1")
        crlf()
    crlf()
    return coded, body, structure


@settings(max_examples=examples(300), deadline=None)
@given(chunked_bodies(), st.binary(max_size=9), st.data())
def test_any_cut_decodes_to_the_same(drawn: Chunked, rest: bytes, data: st.DataObject) -> None:
    coded, body, _ = drawn
    cuts = sorted(data.draw(st.sets(st.integers(0, len(coded) + len(rest)), max_size=6)))
    whole = coded + rest
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert decode(pieces) == (body, rest)
    assert decode(bytewise(whole)) == (body, rest)


@settings(max_examples=examples(300), deadline=None)
@given(chunked_bodies(), st.data())
def test_a_broken_chunked_body_is_noticed(drawn: Chunked, data: st.DataObject) -> None:
    """One byte is changed. A broken line end is always noticed. Another change is read as the grammar says."""
    coded, _, structure = drawn
    place = data.draw(st.sampled_from(structure) | st.integers(0, len(coded) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != coded[place]))
    broken = coded[:place] + bytes((byte,)) + coded[place + 1 :]
    expected = by_the_book(broken)
    for pieces in ([broken], bytewise(broken)):
        try:
            found: object = decode(pieces)
        except HTTPError as refused:
            assert refused.status in (400, 413)
            found = None
        else:
            if found[1] is None:  # type: ignore[index]
                found = None
        assert found == expected


def test_a_broken_line_end_is_never_taken_for_one() -> None:
    coded = b"5;a=b\r\nhello\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n"
    for place in range(len(coded)):
        if coded[place] in b"\r\n":
            for byte in range(256):
                if byte != coded[place]:
                    broken = coded[:place] + bytes((byte,)) + coded[place + 1 :]
                    with pytest.raises(HTTPError):
                        assert decode([broken])[1] is not None, broken
                        raise HTTPError(400, "unfinished")


CHUNK_LINE = re.compile(
    rb"([0-9A-Fa-f]{1,15})((?:[ \t]*;[ \t]*[!#-'*+\-.^-z|~0-9A-Z]+"
    rb"(?:[ \t]*=[ \t]*(?:[!#-'*+\-.^-z|~0-9A-Z]+|\"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*\"))?)*)\r\n"
)
TRAILER_LINE = re.compile(rb"[!#-'*+\-.^-z|~0-9A-Z]+:[\t -~\x80-\xff]*\r\n")


def by_the_book(data: bytes) -> tuple[bytes, bytes] | None:
    """Decode a whole chunked body in the simplest way: section 7.1.3. None: it is bad, or has no end."""
    body = b""
    while match := CHUNK_LINE.match(data):
        size = int(match[1], 16)
        data = data[match.end() :]
        if size == 0:
            while trailer := TRAILER_LINE.match(data):
                data = data[trailer.end() :]
            return (body, data[2:]) if data.startswith(b"\r\n") else None
        if data[size : size + 2] != b"\r\n":
            return None
        body += data[:size]
        data = data[size + 2 :]
    return None


# --- RFC 9110 section 5.6.7: dates ---------------------------------------------------------------------------

MOMENTS = st.integers(-62135596800, 253402300799)  # the years 1 to 9999


@quick
@given(MOMENTS)
def test_dates_round_trip(seconds: int) -> None:
    assert parse_date(http_date(seconds)) == seconds
    assert parse_date(http_date(seconds + 0.9 if seconds >= 0 else seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "year"), [(-(10**17), "0001"), (-(10**11), "0001"), (10**12, "9999"), (10**17, "9999")]
)
def test_dates_beyond_the_calendar(seconds: int, year: str) -> None:
    """An account can give its files such times: they must fail neither the file nor a listing that has it."""
    assert parse_date(http_date(seconds)) in (-62_135_596_800, 253_402_300_799)
    assert http_date(seconds)[12:16] == year


@quick
@given(st.integers(0, 4102444800))
def test_dates_as_the_library_has_them(seconds: int) -> None:
    assert http_date(seconds) == email.utils.formatdate(seconds, usegmt=True)
    parsed = email.utils.parsedate(http_date(seconds))
    assert parsed is not None and calendar.timegm(parsed) == seconds
    assert parse_date(email.utils.formatdate(seconds, usegmt=True)) == seconds


@quick
@given(MOMENTS)
def test_obsolete_forms(seconds: int) -> None:
    year, month, day, hour, minute, second, weekday, _, _ = time.gmtime(seconds)
    assert parse_date(f"{time.asctime(time.gmtime(seconds))[:20]}{year:04}") == seconds
    now = time.gmtime().tm_year
    if now - 49 <= year <= now + 49:  # two digits mean the nearest such year
        name = calendar.day_name[weekday]
        date = f"{name}, {day:02}-{calendar.month_abbr[month]}-{year % 100:02}"
        assert parse_date(f"{date} {hour:02}:{minute:02}:{second:02} GMT") == seconds


@pytest.mark.parametrize("now", [2026, 2060, 2099, 2100])
def test_years_of_two_digits(now: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A date more than 50 years ahead was meant in the past."""
    today = SimpleNamespace(tm_year=now)
    monkeypatch.setattr(dates, "time", SimpleNamespace(gmtime=lambda: today))
    for ahead, expected in ((50, now + 50), (51, now - 49), (-49, now - 49), (0, now)):
        text = f"Sunday, 01-Jan-{(now + ahead) % 100:02} 00:00:00 GMT"
        assert parse_date(text) == calendar.timegm((expected, 1, 1, 0, 0, 0))
    assert parse_date("Sunday, 01-Jan-0050 00:00:00 GMT") is None
    assert parse_date("Sat, 01 Jan 0050 00:00:00 GMT") == -60589296000  # four digits are four digits


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "784111777",
        "Sun, 06 Nov 1994 08:49:37",
        "Sun, 06 Nov 1994 08:49:37 UTC",
        "Sun, 06 Nov 1994 08:49:37 gmt",
        "Sun, 06 Nov 1994 08:49:37 +0000",
        "sun, 06 nov 1994 08:49:37 GMT",
        "Sun, 6 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 94 08:49:37 GMT",
        "Sun 06 Nov 1994 08:49:37 GMT",
        "Sun,06 Nov 1994 08:49:37 GMT",
        " Sun, 06 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37 GMT\n",
        "Sun, 00 Nov 1994 08:49:37 GMT",
        "Sun, 31 Nov 1994 08:49:37 GMT",
        "Sun, 29 Feb 1900 08:49:37 GMT",
        "Sun, 29 Feb 2023 08:49:37 GMT",
        "Sun, 06 Nov 1994 24:00:00 GMT",
        "Sun, 06 Nov 1994 08:60:37 GMT",
        "Sun, 06 Nov 1994 08:49:61 GMT",
        "Sun, 06 Nov 0000 08:49:37 GMT",
        "Sun, 06 Nov \u0661994 08:49:37 GMT",
        "Sunday, 06-Nov-1994 08:49:37 GMT",
        "Sun, 06-Nov-94 08:49:37 GMT",
        "Sun Nov 6 08:49:37 1994",
        "Sun Nov  6 08:49:37 94",
        "Sun Nov  6 08:49:37 1994 GMT",
    ],
)
def test_no_dates(text: str) -> None:
    assert parse_date(text) is None


def test_a_leap_second() -> None:
    assert parse_date("Sat, 31 Dec 2016 23:59:60 GMT") == parse_date("Sun, 01 Jan 2017 00:00:00 GMT")


@quick
@given(st.text(max_size=40) | st.from_regex(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", fullmatch=True))
def test_any_text_is_a_date_or_none(text: str) -> None:
    parsed = parse_date(text)
    assert parsed is None or parse_date(http_date(parsed)) == parsed


# --- Responses -------------------------------------------------------------------------------------------------


def test_an_encoded_response() -> None:
    response = Response(200, (("A", "b"), ("C", "\xe9")), b"body")
    assert response.encoded() == b"HTTP/1.1 200 OK\r\nA: b\r\nC: \xe9\r\nContent-Length: 4\r\n"
    assert response.encoded() is response.encoded()
    assert response.get("a") == "b" and response.get("z") is None
    assert Response(299).encoded().startswith(b"HTTP/1.1 299 ")


def test_a_copy_with_another_body_before_and_after_the_head_is_encoded() -> None:
    """The copy has the head and the length of the response; the empty copy of a cache gets its body later."""
    response = Response(200, (("A", "b"),), b"body")
    copy = response.with_body(b"BODY")
    assert copy.encoded() == response.encoded() and copy.body == b"BODY"
    kept = response.with_body(b"")
    assert kept.with_body(b"Body").encoded() is response.encoded()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("A", "b\r\nC: d"),
        ("A", "b\r"),
        ("A", "b\n"),
        ("A", "b\x00"),
        ("A", "\x7f"),
        ("A", "\x1b"),
        ("A", "\u20ac"),  # above latin-1
        ("A", "\r\n\r\n<html>"),
        ("A\r\nB", "c"),
        ("A\n", "b"),
        ("A ", "b"),
        ("A B", "c"),
        ("", "b"),
        ("\xc9", "b"),
        ("A\x00", "b"),
    ],
)
def test_a_response_cannot_be_split(name: str, value: str) -> None:
    """RFC 9110 section 5.5."""
    with pytest.raises(ValueError, match="cannot stand in a response"):
        Response(200, ((name, value),)).encoded()


@pytest.mark.parametrize("reason", ["OK\r\nC: d", "OK\n", "\rOK", "a\x00b"])
def test_a_reason_cannot_split_a_response(reason: str) -> None:
    with pytest.raises(ValueError, match="cannot stand in a response"):
        Response(200, reason=reason).encoded()


@quick
@given(st.text(), st.text())
def test_a_response_is_never_split(name: str, value: str) -> None:
    try:
        encoded = Response(200, ((name, value),)).encoded()
    except ValueError:
        return
    assert (
        encoded.count(b"\r\n") == encoded.count(b"\n") == encoded.count(b"\r") == 3 and b"\0" not in encoded
    )


class Unknown(Source):
    """A body of unknown length."""


@pytest.mark.parametrize(
    ("response", "length"),
    [
        (Response(200), b"0"),
        (Response(200, (), b"abc"), b"3"),
        (Response(200, (), (b"abc", Region(0, 5, 10), b"d")), b"14"),
        (Response(200, (), Unknown()), None),
        (Response(204), None),  # RFC 9110 section 8.6: no Content-Length with 204
        (Response(204, (), b"abc"), None),
        (Response(304, (), b"abc"), None),
    ],
)
def test_content_length(response: Response, length: bytes | None) -> None:
    encoded = response.encoded()
    assert (b"Content-Length: %s\r\n" % length in encoded) if length else (b"Content-Length" not in encoded)


def test_a_status_without_content_drops_it() -> None:
    """RFC 9110 sections 15.3.5 and 15.4.5: a client would read bytes after the head as the next response."""
    assert Response(204, (), b"abc").body == Response(304, (), b"abc").body == b""


def test_closing_a_response() -> None:
    closed = []

    class Body(Source):
        async def close(self) -> None:
            closed.append("source")

    run(Response(200, (), Body(), release=lambda: closed.append("file")).close())
    run(Response(200).close())
    assert closed == ["source", "file"]


def test_no_body() -> None:
    assert run(NO_BODY.receive()) == b"" and NO_BODY.length == 0 and NO_BODY.finished


# --- What keeps it safe: whatever the bytes, a Request or HTTPError, in linear time ------------------------------


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    for candidate in (data + b"\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n" + data + b"\r\n\r\n"):
        end = candidate.find(b"\r\n\r\n")
        assert status_of(candidate[: end + 4]) in (0, 400, 404, 413, 414, 417, 431, 501, 505)


@pytest.mark.parametrize(
    "data",
    [
        b"GET " + b"/" * 8000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /" + b"%41" * 2600 + b"% HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET " + b"/." * 4000 + b"# HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET http://" + b"a." * 4000 + b", HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: " + b"%41" * 5000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nA:" + b" " * 16000 + b"\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 5000 + b"\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: " + b"," * 16000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: " + b"close," * 2000 + b"\r\n\r\n",
    ],
)  # fmt: skip
def test_no_head_takes_long(data: bytes) -> None:
    began = time.process_time()
    status_of(data)
    assert time.process_time() - began < 0.5


def test_no_chunk_extension_takes_long() -> None:
    began = time.process_time()
    for line in (
        b"1" + b" ;a" * 340 + b"(",
        b"1;a" + b" " * 1000 + b"(",
        b'1;a="' + b"\\a" * 500,
        b"1" + b";a=b" * 250,
    ):
        try:
            ChunkedDecoder(LIMITS).feed(line + b"\r\n")
        except HTTPError:
            pass
    assert time.process_time() - began < 0.5


def test_too_many_field_lines_are_refused_before_they_are_parsed() -> None:
    """9,000 lines would block an event loop, and replace the lines of other clients in the cache."""
    kept = dict(parsed_lines)
    with pytest.raises(HTTPError, match="max-fields"):
        parse_fields("".join(f"name-{number}:\r\n" for number in range(9000)), LIMITS)
    assert parsed_lines == kept


def test_the_ranges_of_a_download_replace_no_line_in_the_cache() -> None:
    """A player of films asks for another range each time, and the lines of other clients stay in the cache."""
    kept = dict(parsed_lines)
    assert parse_fields("Range: bytes=0-99\r\nrange: bytes=100-199\r\n", LIMITS)[1] == (
        "range",
        "bytes=100-199",
    )
    assert parsed_lines == kept
