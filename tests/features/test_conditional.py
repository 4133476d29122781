"""Conditional requests: the tables of RFC 9110 section 13, and the same over real sockets."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from support import web
from support.server import WAYS_TO_WAIT, Start

from ewe.http.conditional import entity_tags, range_applies, status_by_conditions
from ewe.http.dates import http_date
from ewe.http.limits import RequestLimits
from ewe.http.messages import Request
from ewe.http.parser import parse_request

ETAG = '"abc-1"'
MODIFIED = 784111777.0
SAME = "Sun, 06 Nov 1994 08:49:37 GMT"
OLDER = "Sun, 06 Nov 1994 08:49:36 GMT"
NEWER = "Sun, 06 Nov 1994 08:49:38 GMT"
FUTURE = "Fri, 01 Jan 2199 00:00:00 GMT"


def request(*lines: str) -> Request:
    """Return a GET request with these field lines."""
    text = "\r\n".join(("GET / HTTP/1.1", "Host: ewe", *lines, "", ""))
    return parse_request(text.encode("latin-1"), RequestLimits())


# Entity tags: section 8.8.3


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", []),
        ("*", ["*"]),
        ('"a"', ['"a"']),
        ('W/"a"', ['W/"a"']),
        ('""', ['""']),
        ('"a","b"', ['"a"', '"b"']),
        ('"a" , W/"b",\t"c"', ['"a"', 'W/"b"', '"c"']),
        (', "a", , "b",', ['"a"', '"b"']),  # empty elements: section 5.6.1.2
        ('"a,b", "c"', ['"a,b"', '"c"']),  # a comma may stand in a tag
        (r'"a\"', [r'"a\"']),  # and a backslash is only a backslash
        ('"\xe9"', ['"\xe9"']),
        ("", []),
        (",", []),
        ("a", []),
        ('"a', []),
        ('w/"a"', []),  # W/ is case-sensitive
        ('"a b"', []),
        ('"a" "b"', []),
        ('"a", *', []),
        ('*, "a"', []),
        ('"a", b', []),
    ],
)
def test_tags(value: str, expected: list[str]) -> None:
    assert entity_tags(value) == expected


TAGS = some.lists(
    some.builds(
        lambda weak, text: f'{weak}"{text}"',
        some.sampled_from(["", "W/"]),
        some.text(some.sampled_from("aW/,*!#~\\\x80\xe9\xff"), max_size=9),
    ),
    min_size=1,
    max_size=9,
)
COMMAS = some.sampled_from([",", ", ", " ,", "\t,\t", ", ,", ",,, "])


@settings(deadline=None)
@given(TAGS, some.lists(COMMAS, min_size=3, max_size=3))
def test_any_list_of_tags_is_read(wanted: list[str], commas: list[str]) -> None:
    value = wanted[0] + "".join(comma + tag for comma, tag in zip(itertools.cycle(commas), wanted[1:]))
    assert entity_tags(value) == wanted


@pytest.mark.parametrize("end", ["", "x", '"', ","])
@pytest.mark.parametrize("unit", [", ", ",\t", '"a", ', '"a" ,  ,', 'W/"', '"', " "])
def test_a_hostile_list_costs_little(unit: str, end: str) -> None:
    value = unit * (16000 // len(unit)) + end
    assert entity_tags(value) is not None


# Section 13.2.2


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((), None),
        # Step 1: If-Match, strong comparison
        ((f"If-Match: {ETAG}",), None),
        (("If-Match: *",), None),
        ((f'If-Match: "x", {ETAG}',), None),
        (('If-Match: "x"', f"If-Match: {ETAG}"), None),
        (('If-Match: "x"',), 412),
        ((f"If-Match: W/{ETAG}",), 412),
        (("If-Match: abc-1",), 412),
        (("If-Match:",), 412),
        # Step 2: If-Unmodified-Since, only without If-Match
        ((f"If-Unmodified-Since: {SAME}",), None),
        ((f"If-Unmodified-Since: {NEWER}",), None),
        ((f"If-Unmodified-Since: {OLDER}",), 412),
        ((f"If-Match: {ETAG}", f"If-Unmodified-Since: {OLDER}"), None),
        (('If-Match: "x"', f"If-Unmodified-Since: {SAME}"), 412),
        # Step 3: If-None-Match, weak comparison
        ((f"If-None-Match: {ETAG}",), 304),
        ((f"If-None-Match: W/{ETAG}",), 304),
        (("If-None-Match: *",), 304),
        ((f'If-None-Match: "x", W/"y", W/{ETAG}',), 304),
        (('If-None-Match: "x"',), None),
        (('If-None-Match: "ABC-1"',), None),
        (("If-None-Match: abc-1",), None),
        # Step 4: If-Modified-Since, only without If-None-Match
        ((f"If-Modified-Since: {SAME}",), 304),
        ((f"If-Modified-Since: {NEWER}",), 304),
        ((f"If-Modified-Since: {FUTURE}",), 304),
        ((f"If-Modified-Since: {OLDER}",), None),
        (('If-None-Match: "x"', f"If-Modified-Since: {SAME}"), None),  # EWE section 5.1: it said 304
        ((f"If-None-Match: {ETAG}", f"If-Modified-Since: {OLDER}"), 304),
        # The first pair goes before the second
        ((f"If-Match: {ETAG}", f"If-None-Match: {ETAG}"), 304),
        (('If-Match: "x"', f"If-None-Match: {ETAG}"), 412),
        ((f"If-Unmodified-Since: {OLDER}", f"If-Modified-Since: {SAME}"), 412),
        ((f"If-Unmodified-Since: {SAME}", f"If-Modified-Since: {SAME}"), 304),
        # The other two forms of a date: section 5.6.7
        (("If-Modified-Since: Sunday, 06-Nov-94 08:49:37 GMT",), 304),
        (("If-Modified-Since: Sunday, 06-Nov-94 08:49:36 GMT",), None),
        (("If-Modified-Since: Sun Nov  6 08:49:37 1994",), 304),
        (("If-Modified-Since: Sun Nov  6 08:49:36 1994",), None),
        (("If-Unmodified-Since: Sunday, 06-Nov-94 08:49:36 GMT",), 412),
        (("If-Unmodified-Since: Sun Nov  6 08:49:36 1994",), 412),
        # A value that is not a date is ignored: sections 13.1.3 and 13.1.4
        (("If-Modified-Since: yesterday",), None),
        (("If-Modified-Since:",), None),
        (("If-Modified-Since: 784111777",), None),
        (("If-Modified-Since: Sun, 06 Nov 1994 08:49:37",), None),
        (("If-Modified-Since: Sun, 06 Nov 1994 08:49:37 +0000",), None),
        (("If-Modified-Since: Sun, 31 Feb 2094 08:49:37 GMT",), None),
        ((f"If-Modified-Since: {SAME}, {SAME}",), None),
        ((f"If-Modified-Since: {SAME}", f"If-Modified-Since: {SAME}"), None),
        (("If-Unmodified-Since: yesterday",), None),
        ((f"If-Unmodified-Since: {OLDER}", f"If-Unmodified-Since: {OLDER}"), None),
    ],
)
def test_outcome(lines: tuple[str, ...], expected: int | None) -> None:
    assert status_by_conditions(request(*lines), ETAG, MODIFIED) == expected


# Each field: its line, and whether its condition holds; None where there is no (valid) field.
MATCH = {"": None, f'If-Match: "x", {ETAG}': True, "If-Match: *": True, f'If-Match: W/{ETAG}, "x"': False}
UNMODIFIED = {"": None, SAME: True, FUTURE: True, OLDER: False, "never": None}
NONE_MATCH = {"": None, 'If-None-Match: "x"': True, f'If-None-Match: "x", W/{ETAG}': False}
MODIFIED_SINCE = {"": None, OLDER: True, SAME: False, NEWER: False, "never": None}


def test_the_order_in_all_combinations() -> None:
    """All combinations of the fields, compared with a literal reading of section 13.2.2."""
    for match, unmodified, none_match, since in itertools.product(
        MATCH, UNMODIFIED, NONE_MATCH, MODIFIED_SINCE
    ):
        first = UNMODIFIED[unmodified] if MATCH[match] is None else MATCH[match]
        second = MODIFIED_SINCE[since] if NONE_MATCH[none_match] is None else NONE_MATCH[none_match]
        expected = 412 if first is False else 304 if second is False else None
        lines = [match, none_match]
        lines += [f"If-Unmodified-Since: {unmodified}"] if unmodified else []
        lines += [f"If-Modified-Since: {since}"] if since else []
        lines = [line for line in lines if line]
        assert status_by_conditions(request(*lines), ETAG, MODIFIED) == expected, lines


@pytest.mark.parametrize(
    ("lines", "age", "expected"),
    [
        ((), 0, True),
        ((f"If-Range: {ETAG}",), 0, True),
        (('If-Range: "x"',), 100, False),
        ((f"If-Range: W/{ETAG}",), 100, False),
        ((f'If-Range: {ETAG}, "x"',), 100, False),
        (("If-Range: *",), 100, False),
        (("If-Range: abc-1",), 100, False),
        ((f"If-Range: {SAME}",), 100, True),
        (("If-Range: Sunday, 06-Nov-94 08:49:37 GMT",), 100, True),
        (("If-Range: Sun Nov  6 08:49:37 1994",), 100, True),
        ((f"If-Range: {OLDER}",), 100, False),
        ((f"If-Range: {NEWER}",), 100, False),  # an exact match, not a comparison: section 13.1.5
        (("If-Range: soon",), 100, False),
        ((f"If-Range: {SAME}",), 0.5, False),  # too young for a date to be strong: section 8.8.2.2
    ],
)
def test_if_range(lines: tuple[str, ...], age: float, expected: bool) -> None:
    assert range_applies(request(*lines), ETAG, MODIFIED, MODIFIED + age) is expected


# The same over a socket


FILES = {"/small.bin": bytes(range(256)) * 4, "/large.bin": os.urandom(100_000)}
FILE_CONDITIONS: list[tuple[dict[str, str], int]] = [  # TAG stands for the file's own tag
    ({"If-None-Match": "TAG"}, 304),
    ({"If-None-Match": 'W/"x", W/TAG'}, 304),
    ({"If-None-Match": '"x"', "If-Modified-Since": SAME}, 200),
    ({"If-Modified-Since": SAME}, 304),
    ({"If-Modified-Since": OLDER}, 200),
    ({"If-Match": '"x"'}, 412),
    ({"If-Match": "TAG"}, 200),
    ({"If-Unmodified-Since": OLDER}, 412),
    ({"If-Unmodified-Since": SAME}, 200),
]
OTHER_CONDITIONS: list[tuple[str, str, dict[str, str], int]] = [
    # Step 5: If-Range
    ("GET", "", {"Range": "bytes=0-9", "If-Range": "TAG"}, 206),
    ("GET", "", {"Range": "bytes=0-9", "If-Range": SAME}, 206),
    ("GET", "", {"Range": "bytes=0-9", "If-Range": '"x"'}, 200),
    ("GET", "", {"Range": "bytes=0-9", "If-Range": NEWER}, 200),
    ("GET", "", {"Range": "bytes=0-9", "If-Range": "TAG", "If-None-Match": "TAG"}, 304),
    ("GET", "", {"Range": "bytes=0-9", "If-Range": "TAG", "If-Match": '"x"'}, 412),
    ("GET", "", {"If-Range": '"x"'}, 200),
    # Where the answer would be no 2xx, conditions are ignored: section 13.2.1
    ("GET", "/missing", {"If-Match": '"x"'}, 404),
    ("GET", "/missing", {"If-None-Match": "*"}, 404),
    ("POST", "", {"If-Match": '"x"'}, 405),
]
ALL_CONDITIONS = [
    (method, "", *row) for method in ("GET", "HEAD") for row in FILE_CONDITIONS
] + OTHER_CONDITIONS


@pytest.fixture(scope="module", params=WAYS_TO_WAIT)
def client(request: pytest.FixtureRequest, start_shared: Start) -> Iterator[httpx.Client]:
    """A client of a server for each way to wait, which serves FILES."""
    server = start_shared(request.param)
    for path, content in FILES.items():
        (server.root / path[1:]).write_bytes(content)
        os.utime(server.root / path[1:], (MODIFIED, MODIFIED + 0.75))  # a part of a second is not compared
    with web.Client(base_url=server.url) as client:
        yield client


@pytest.mark.parametrize("path", FILES)
def test_conditions_of_a_file(client: httpx.Client, path: str) -> None:
    fresh = client.get(path)
    assert (fresh.headers["last-modified"], http_date(MODIFIED)) == (SAME, SAME)
    etag = fresh.headers["etag"]
    for method, other, conditions, status in ALL_CONDITIONS:
        headers = {name: value.replace("TAG", etag) for name, value in conditions.items()}
        response = client.request(method, other or path, headers=headers)
        assert response.status_code == status, (method, other, conditions)
        if status == 304:
            assert response.content == b"" and response.headers["etag"] == etag
            assert "content-type" not in response.headers
    assert client.get(path).content == FILES[path]  # and nothing of all this sticks
