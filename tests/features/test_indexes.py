"""Directory indexes: the listed names and their order, links that lead to the files, HTML and JSON."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from urllib.parse import urljoin

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import web
from support.proc import open_files
from support.server import MODELS, Start, wait_until

from ewe.config.settings import Config
from ewe.features import indexes
from ewe.features.static import Static
from ewe.http.limits import RequestLimits
from ewe.http.messages import Request, Response
from ewe.http.parser import parse_request
from ewe.http.status import HTTPError
from ewe.http.target import percent_encode
from ewe.streams.base import Stream
from ewe.streams.blocking import run

ODD = [
    b"<script>alert(1)<", b"a&amp;b", b"\"double\" 'single'", b"100%", b"%41", b"%2e%2e", b"what?sort=size",
    b"a#b", b"two\nlines", b"tab\tand\x01", b"caf\xe9.txt", "café.txt".encode(), b"  leading", b"trailing ",
    b"javascript:alert(1)", b"c:", b"back\\slash", b"{name} %(name)s", b"~", b"+ +", b"%", b"?", b"#", b":",
    b"x" * 255, "שלום".encode(), "🐑".encode(), b"\xff" * 255, b"\x7f", b"-rf", b"a;b=c", b"a=b&sort=x",
    b"\r\n\r\n", b"http:x",
]  # fmt: skip

# What a file may be called: 1 to 255 bytes, none of them a slash or NUL; with a dot in front it is hidden.
names = (
    st.one_of(st.binary(max_size=255), st.text(max_size=60).map(lambda text: text.encode("utf-8", "ignore")))
    .map(lambda raw: raw.translate(None, b"/\0"))
    .filter(lambda raw: bool(raw) and not raw.startswith(b"."))
    .map(lambda raw: raw.decode("utf-8", "surrogateescape"))
)


class Page(HTMLParser):
    """What a reader finds on a page: texts, and where the links lead.

    rows: [link, name, size, title of the size, date]. heads: [link, text, aria-sort] of each column.
    crumbs: [link, text, aria-current].
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.heads: list[list[str]] = []
        self.crumbs: list[list[str]] = []
        self.summary = ""
        self.tags: set[str] = set()
        self.part = ""  # of the page: h1, th, tr, p
        self.cell = 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.tags.add(tag)
        if tag in ("title", "style", "h1", "th", "tbody", "p"):
            self.part = tag
        match self.part, tag:
            case "h1", "a":
                self.crumbs.append([values["href"], "", values.get("aria-current", "")])
            case "th", "th":
                self.heads.append(["", "", values.get("aria-sort", "")])
            case "th", "a":
                self.heads[-1][0] = values.get("href", "")
            case "tbody", "tr":
                self.rows.append([""] * 5)
                self.cell = 0
            case "tbody", "td":
                self.cell += 1
                self.rows[-1][3] += values.get("title", "")
            case "tbody", "a":
                self.rows[-1][0] = values["href"]
            case "tbody", "time":
                self.rows[-1][4] = values["datetime"]

    def handle_data(self, data: str) -> None:
        text = data.rstrip("\n")
        if self.part == "h1" and self.crumbs and data not in (" / ", "\n"):
            self.crumbs[-1][1] += text
        elif self.part == "th" and self.heads:
            self.heads[-1][1] += text
        elif self.part == "tbody" and self.cell in (1, 2):
            self.rows[-1][self.cell] += text
        elif self.part == "p":
            self.summary += text

    @property
    def names(self) -> list[str]:
        """The names, without the way up."""
        return [row[1] for row in self.rows if row[0] != "../"]


def make(root: Path, *found: str | bytes, size: int = 0) -> None:
    """Make a file of each name, a directory of a name that ends in a slash."""
    for name in found:
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        if path.endswith(b"/"):
            os.makedirs(path)
        else:
            with open(path, "wb") as file:
                file.truncate(size)


def respond(
    root: Path, query: str | None = None, accept: str | None = None, path: str = "/d/", inside: str = ""
) -> Response:
    """Return the index of a directory."""
    fields = (("accept", accept),) if accept is not None else ()
    request = Request("GET", path, (1, 1), fields, path=path, query=query, host="example.org:4000")
    descriptor = os.open(root, os.O_RDONLY)
    try:
        return indexes.listing(request, path, descriptor, inside)
    finally:
        os.close(descriptor)


def page_of(root: Path, query: str | None = None, path: str = "/d/", inside: str = "") -> Page:
    response = respond(root, query, None, path, inside)
    assert isinstance(response.body, bytes)
    return Page(response.body.decode())


def json_of(root: Path, query: str | None = None) -> list[dict[str, object]]:
    response = respond(root, query, "application/json")
    assert isinstance(response.body, bytes)
    found = json.loads(response.body)
    assert isinstance(found, list)
    return found


# The listed names


def test_the_response(tmp_path: Path) -> None:
    response = respond(tmp_path)
    assert response.status == 200
    assert response.get("content-type") == "text/html; charset=utf-8"
    assert response.get("vary") == "Accept"
    assert response.get("cache-control") == "no-cache"
    assert "default-src 'none'" in (response.get("content-security-policy") or "")
    response.encoded()


def test_files_and_directories_are_listed(tmp_path: Path) -> None:
    make(tmp_path, "poems/")
    make(tmp_path, "ewe.txt", size=4990)
    os.utime(tmp_path / "ewe.txt", (0, 1_000_000_000.9))
    os.utime(tmp_path / "poems", (0, -1))
    assert page_of(tmp_path).rows == [
        ["../", "Parent directory", "", "", ""],
        ["./poems/", "poems/", "", "", "1969-12-31T23:59:59Z"],
        ["./ewe.txt", "ewe.txt", "4.9 KiB", "4,990 B", "2001-09-09T01:46:40Z"],
    ]
    assert json_of(tmp_path) == [
        {"name": "poems", "type": "directory", "size": None, "modified": "1969-12-31T23:59:59Z"},
        {"name": "ewe.txt", "type": "file", "size": 4990, "modified": "2001-09-09T01:46:40Z"},
    ]


def test_what_begins_with_a_dot_is_not_listed(tmp_path: Path) -> None:
    make(tmp_path, ".htaccess", ".git/", ".well-known/", "...", "a.b")
    assert page_of(tmp_path).names == ["a.b"]
    assert [entry["name"] for entry in json_of(tmp_path)] == ["a.b"]


def test_what_cannot_be_fetched_is_not_listed(tmp_path: Path) -> None:
    os.symlink("nowhere", tmp_path / "dangling")
    os.symlink("loop", tmp_path / "loop")
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as sock:
        place = os.open(tmp_path, os.O_RDONLY)  # its path may be too long for a socket's address
        sock.bind(f"/proc/self/fd/{place}/socket")
        os.close(place)
        make(tmp_path, "file")
        os.symlink("file", tmp_path / "link")
        os.symlink(".", tmp_path / "here")
        assert page_of(tmp_path).names == ["here/", "file", "link"]


def test_links_out_of_the_root_are_not_listed(tmp_path: Path) -> None:
    make(tmp_path, "htdocs/d/", "htdocs-private/", "secret", "htdocs/page", "htdocs-private/plan")
    here = tmp_path / "htdocs" / "d"
    for name, target in (
        ("page", "../page"), ("up", ".."), ("secret", "../../secret"), ("plan", "../../htdocs-private/plan"),
        ("root", "/"),
    ):  # fmt: skip
        os.symlink(target, here / name)
    assert page_of(here, inside=str(tmp_path / "htdocs")).names == ["up/", "page"]
    assert page_of(here).names == ["root/", "up/", "page", "plan", "secret"]
    assert page_of(here, path=f"{here}/", inside="/").names == page_of(here).names


def test_what_vanishes_meanwhile_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def names_in(descriptor: int, path: str) -> list[str]:
        found = original(descriptor, path)
        (tmp_path / "gone").unlink()
        return found

    original = indexes.names_in
    make(tmp_path, "gone", "kept")
    monkeypatch.setattr(indexes, "names_in", names_in)
    assert page_of(tmp_path).names == ["kept"]


def test_a_listing_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "MAX_NAMES", 4)
    make(tmp_path, "a", "b", "c", ".d")
    assert page_of(tmp_path).names == ["a", "b", "c"]
    make(tmp_path, "e")
    with pytest.raises(HTTPError) as refused:
        respond(tmp_path)
    assert refused.value.status == 403


@pytest.mark.takes_time
def test_a_long_listing_comes_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing examines the names of one page only, for any requested page: the event loop waits for it."""
    count = 2 * indexes.PAGE_NAMES + 500
    assert count > indexes.MAX_SORTED
    make(tmp_path, *(f"photo {number:05} of a sheep.jpeg" for number in range(count - 1)), "Album/")
    expected = ["Album/", *(f"photo {number:05} of a sheep.jpeg" for number in range(count - 1))]
    examined: list[str] = []
    looked_at = os.stat

    def look(name: str, **how: Any) -> os.stat_result:
        examined.append(name)
        return looked_at(name, **how)

    monkeypatch.setattr(os, "stat", look)
    monkeypatch.setattr(indexes, "natural", None)  # the costly order is not for so many
    found: list[str] = []
    query: str | None = None
    for number in range(1, 4):
        examined.clear()
        response = respond(tmp_path, query)
        assert isinstance(response.body, bytes)
        page = Page(response.body.decode())
        assert len(examined) == len(page.names) == min(indexes.PAGE_NAMES, count - len(found))
        found += page.names
        assert page.summary.count(f"Page {number} of 3") == 2  # above the names and below them
        assert "This directory has 2,500 names" in page.summary
        assert page.heads == [["", "Name", ""], ["", "Size", ""], ["", "Modified", ""]]
        links = dict(re.findall(r'<(.*?)>; rel="(\w+)"', response.get("link") or ""))
        assert set(links) == {f"?page={other}" for other in (number - 1, number + 1) if 1 <= other <= 3}
        assert all(
            f'href="{link}" rel="{relation}"' in response.body.decode() for link, relation in links.items()
        )
        query = f"page={number + 1}&sort=size"
    assert found == expected
    last = json_of(tmp_path, "page=3")
    assert [entry["name"] for entry in last] == expected[2 * indexes.PAGE_NAMES :]
    for odd in ("page=0", "page=4", "page=-1", "page=x", "page=%31", "page=999999999999", "page"):
        assert page_of(tmp_path, odd).names[0] == "Album/"


# Names


@given(
    names, st.booleans(), st.sampled_from(["/", "/d/", "/a?b#c%/ \udcff\n/", "/javascript:x/", "/~u/;p=1/"])
)
def test_every_name_leads_back_to_its_file(name: str, is_directory: bool, path: str) -> None:
    mode = 0o040755 if is_directory else 0o100644
    entry = indexes.DirectoryEntry(name, SimpleNamespace(st_mode=mode, st_size=1, st_mtime_ns=0))  # type: ignore[arg-type]
    page = Page(indexes.as_page([entry], path, "", "name", "asc"))
    href, label = page.rows[-1][:2]
    assert href.startswith("./") and href.isascii() and href.isprintable() and " " not in href
    target = urljoin("http://example.org" + percent_encode(path), href).removeprefix("http://example.org")
    request = parse_request(
        f"GET {target} HTTP/1.1\r\nHost: example.org\r\n\r\n".encode("ascii"), RequestLimits()
    )
    assert request.path == path + name + "/" * is_directory
    assert request.query is None
    assert label == indexes.as_unicode(name).translate(indexes.CONTROLS) + "/" * is_directory
    assert "script" not in page.tags


for odd in ODD:
    test_every_name_leads_back_to_its_file = example(odd.decode("utf-8", "surrogateescape"), False, "/d/")(
        test_every_name_leads_back_to_its_file
    )


@given(st.lists(names.filter(lambda name: name not in (".", "..")), max_size=5))
def test_every_crumb_leads_to_its_directory(parts: list[str]) -> None:
    path = "/" + "".join(part + "/" for part in parts)
    page = Page(indexes.as_page([], path, "", "name", "asc"))
    assert len(page.crumbs) == len(parts) + 1
    for number, (href, _, current) in enumerate(page.crumbs):
        request = parse_request(
            f"GET {href} HTTP/1.1\r\nHost: a\r\n\r\n".encode("ascii"), RequestLimits(100_000, 100_000)
        )
        assert request.path == "/" + "".join(part + "/" for part in parts[:number])
        assert current == ("page" if number == len(parts) else "")


def test_names_are_shown_on_one_line(tmp_path: Path) -> None:
    make(tmp_path, b"two\nlines", b"caf\xe9", b"  spaces", b"\x7f", "evil\u202etxt.exe", "a\u2028b\x85c")
    shown = ["two␊lines", "caf�", "  spaces", "␡", "evil�txt.exe", "a�b�c"]
    assert sorted(page_of(tmp_path).names) == sorted(shown)


def test_odd_names_in_json(tmp_path: Path) -> None:
    make(tmp_path, *ODD)
    response = respond(tmp_path, None, "application/json")
    assert isinstance(response.body, bytes)
    expected = {raw.decode("utf-8", "replace") for raw in ODD}
    assert {entry["name"] for entry in json.loads(response.body)} == expected
    assert len(response.body.splitlines()) == len(ODD) + 2


def test_crumbs() -> None:
    page = Page(indexes.as_page([], "/a & b/ü/", "example.org", "name", "asc"))
    assert page.crumbs == [
        ["/", "example.org", ""],
        ["/a%20%26%20b/", "a & b", ""],
        ["/a%20%26%20b/%C3%BC/", "ü", "page"],
    ]
    page = Page(indexes.as_page([], "/", "", "name", "asc"))
    assert page.crumbs == [["/", "home", "page"]]
    assert page.rows == []  # there is no way up from the root


def test_the_line_below(tmp_path: Path) -> None:
    assert "empty" in page_of(tmp_path).summary
    make(tmp_path, "one", size=1536)
    assert page_of(tmp_path).summary.startswith("1 entry, 1.5 KiB in files.")
    make(tmp_path, "two/")
    make(tmp_path, "three", size=1536)
    assert page_of(tmp_path).summary.startswith("3 entries, 3.0 KiB in files.")


# Order


ORDERS = [
    (None, ["Big/", "small/", "a2", "A10", "b"]),
    ("", ["Big/", "small/", "a2", "A10", "b"]),
    ("sort=name&order=asc", ["Big/", "small/", "a2", "A10", "b"]),
    ("sort=name&order=desc", ["small/", "Big/", "b", "A10", "a2"]),
    ("order=desc", ["small/", "Big/", "b", "A10", "a2"]),
    ("sort=size&order=asc", ["Big/", "small/", "b", "a2", "A10"]),
    ("order=desc&sort=size", ["Big/", "small/", "a2", "A10", "b"]),
    ("sort=date&order=asc", ["small/", "Big/", "A10", "a2", "b"]),
    ("sort=date&order=desc", ["Big/", "small/", "a2", "b", "A10"]),
    ("sort=colour&order=desc", ["Big/", "small/", "a2", "A10", "b"]),
    ("sort=size&order=up", ["Big/", "small/", "b", "a2", "A10"]),
    ("sort=%3Cscript%3E&&=&order", ["Big/", "small/", "a2", "A10", "b"]),
]


@pytest.mark.parametrize(("query", "expected"), ORDERS)
def test_order(tmp_path: Path, query: str | None, expected: list[str]) -> None:
    make(tmp_path, "small/", "Big/")
    for name, size, modified in (("a2", 7, 30), ("A10", 7, 10), ("b", 3, 30), ("small", 0, 1), ("Big", 0, 2)):
        if size:
            make(tmp_path, name, size=size)
        os.utime(tmp_path / name, (0, modified))
    assert page_of(tmp_path, query).names == expected
    assert [entry["name"] for entry in json_of(tmp_path, query)] == [name.rstrip("/") for name in expected]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "",
            [("name=desc", "Name ↑", "ascending"), ("size=desc", "Size", ""), ("date=desc", "Modified", "")],
        ),
        (
            "sort=name&order=desc",
            [("name=asc", "Name ↓", "descending"), ("size=desc", "Size", ""), ("date=desc", "Modified", "")],
        ),
        (
            "sort=size&order=desc",
            [("name=asc", "Name", ""), ("size=asc", "Size ↓", "descending"), ("date=desc", "Modified", "")],
        ),
        (
            "sort=date",
            [("name=asc", "Name", ""), ("size=desc", "Size", ""), ("date=desc", "Modified ↑", "ascending")],
        ),
    ],
)
def test_heads(tmp_path: Path, query: str, expected: list[tuple[str, str, str]]) -> None:
    found = page_of(tmp_path, query).heads
    assert found == [
        ["?sort=" + link.replace("=", "&order="), label, state] for link, label, state in expected
    ]


IN_ORDER = [
    "1", "2.txt", "10.txt", "a", "A1", "a1b2", "A1b10", "a01b11", "a2", "B", "STRASSE 1", "straße 2", "strasse 10",
    "²", "é", "\udcff",
]  # fmt: skip


@given(st.permutations(IN_ORDER))
def test_natural_order(found: list[str]) -> None:
    assert sorted(found, key=indexes.natural) == IN_ORDER


@given(st.lists(names, unique=True), st.randoms(use_true_random=False))
def test_the_order_is_the_same_each_time(found: list[str], random: Random) -> None:
    shuffled = random.sample(found, len(found))
    assert sorted(found, key=indexes.natural) == sorted(shuffled, key=indexes.natural)


# Sizes and dates


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "0 B"), (1, "1 B"), (999, "999 B"), (1000, "1.0 KiB"), (1024, "1.0 KiB"), (10_000, "9.8 KiB"),
        (10_188, "9.9 KiB"), (10_189, "10 KiB"), (128 * 1024, "128 KiB"), (1023 * 1024, "1.0 MiB"),
        (5 * 10**9, "4.7 GiB"), (2**63 - 1, "8.0 EiB"), (2**70, "1024 EiB"),  # sparse files
    ],
)  # fmt: skip
def test_human_sizes(size: int, expected: str) -> None:
    assert indexes.size_for_people(size) == expected


@given(st.integers(0, 2**63 - 1))
def test_a_size_is_short(size: int) -> None:
    assert re.fullmatch(r"(\d{1,3}|\d\.\d) (B|[KMGTPE]iB)", indexes.size_for_people(size))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (-62135596800, "0001-01-01T00:00:00Z"),
        (253402300799, "9999-12-31T23:59:59Z"),
        (253402300800, None),
        (-62135596801, None),
        (2**63, None),
    ],
)
def test_dates(seconds: int, expected: str | None) -> None:
    assert indexes.date(seconds) == expected


def test_a_date_beyond_all_calendars() -> None:
    entry = indexes.DirectoryEntry(
        "a",
        SimpleNamespace(st_mode=0o100644, st_size=1, st_mtime_ns=10**30),  # type: ignore[arg-type]
    )
    assert Page(indexes.as_page([entry], "/", "", "date", "asc")).rows == [["./a", "a", "1 B", "1 B", ""]]
    assert json.loads(indexes.as_json([entry]))[0]["modified"] is None


# HTML or JSON


@pytest.mark.parametrize(
    ("accept", "is_json"),
    [
        ("", False),
        ("*/*", False),
        ("text/html", False),
        ("application/json", True),
        ("Application/JSON", True),
        ("application/json; charset=utf-8", True),
        ("application/*", True),
        ("text/*", False),
        ("image/png", False),
        ("text/html, application/json", False),
        ("application/json, text/html", False),
        ("application/json, text/html;q=0.9", True),
        ("application/json;q=0.8, text/html;q=0.9", False),
        ("application/json;q=0.8,text/html;q=0.75", True),
        ("application/json ; q=0.5 , text/html\t;\tQ=0.4", True),
        ("application/json, text/plain, */*", True),  # axios: among equal weights, a named type
        ("application/json;q=0.5, */*", False),  # the most specific range decides: JSON 0.5, HTML 1
        ("text/html;q=0.5, */*", True),
        ("text/html;q=0, */*;q=0.1", True),
        ("application/json;q=0", False),
        ("application/json;q=0, text/html;q=0", False),
        ("*/*;q=0, application/json;q=0.000", False),
        ("application/json;q=2", False),  # no weight: as if it were not there
        ("application/json;q=", False),
        ("application/json;q=0²", False),
        ("application/json;q=nan", False),
        ("application/json;q=-1, ;;,,;q=1", False),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8", False),
    ],
)
def test_accept(tmp_path: Path, accept: str, is_json: bool) -> None:
    expected = "application/json" if is_json else "text/html; charset=utf-8"
    response = respond(tmp_path, None, accept)
    assert response.get("content-type") == expected
    assert response.get("vary") == "Accept"


@given(st.text())
def test_any_accept_can_be_read(accept: str) -> None:
    indexes.prefers_json(accept)


def test_an_empty_array(tmp_path: Path) -> None:
    assert json_of(tmp_path) == []


def test_imports_are_few() -> None:
    """A forked child imports the module each time it lists a directory."""
    source = Path(indexes.__file__).read_text()
    found = re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE)
    assert set(found) == {"__future__", "itertools", "os", "re", "stat", "time", "zlib", "ewe"}


# Over the wire


def test_a_directory_is_listed(start: Start, way_to_wait: str) -> None:
    server = start(way_to_wait)
    (server.root / "d").mkdir()
    make(server.root / "d", "ewe.txt", ".hidden", size=3)
    page = web.get(server.url + "d/")
    assert page.status_code == 200
    assert Page(page.text).names == ["ewe.txt"]
    program = web.get(server.url + "d/?sort=size", headers={"Accept": "application/json"})
    assert [entry["name"] for entry in program.json()] == ["ewe.txt"]
    head = web.head(server.url + "d/")
    assert head.status_code == 200
    assert head.headers["content-length"] == page.headers["content-length"]
    assert head.content == b""
    moved = web.get(server.url + "d?x=1")
    assert moved.status_code == 301
    assert moved.headers["location"] == "/d/?x=1"
    assert "welcome" in web.get(server.url).text  # an index file comes first


def test_without_indexes(start: Start) -> None:
    server = start("pool", "--no-indexes")
    (server.root / "d").mkdir()
    make(server.root / "d", "secret.txt")
    response = web.get(server.url + "d/")
    assert response.status_code == 403
    assert "secret" not in response.text


def test_every_link_of_a_page_works(start: Start) -> None:
    server = start("asyncio")
    make(server.root, "d/")
    for number, name in enumerate(ODD):
        make(server.root / "d", name, size=number)
    make(server.root / "d", *(b"%d. " % number + name[:200] + b"/" for number, name in enumerate(ODD)))
    get: Callable[[str], bytes] = lambda target: server.ask(  # noqa: E731
        f"GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode("ascii")
    )
    page = Page(get("/d/").partition(b"\r\n\r\n")[2].decode())
    assert len(page.rows) == 1 + 2 * len(ODD)
    sizes = []
    for row in page.rows:
        answer = get(urljoin("/d/", row[0]))
        assert answer.startswith(b"HTTP/1.1 200 "), row
        if not row[0].endswith("/"):
            sizes.append(len(answer.partition(b"\r\n\r\n")[2]))
    assert sorted(sizes) == list(range(len(ODD)))


# The entity tag


def tag(root: Path, query: str | None = None, accept: str | None = None, path: str = "/d/") -> str:
    return respond(root, query, accept, path).get("etag") or ""


def test_the_tag_is_of_all_that_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a", "b", "c/", size=3)
    seen = [tag(tmp_path)]
    assert re.fullmatch(r'"[0-9a-f]+-[0-9a-f]+-3"', seen[0]) and tag(tmp_path) == seen[0]
    before = os.stat(tmp_path).st_mtime_ns, os.stat(tmp_path / "a").st_mtime
    with (tmp_path / "a").open("ab") as file:
        file.write(b"x")
    os.utime(tmp_path / "a", (0, before[1]))
    assert os.stat(tmp_path).st_mtime_ns == before[0]  # the date of the directory tells nothing of it
    seen.append(tag(tmp_path))
    os.utime(tmp_path / "a", (0, 1))
    seen.append(tag(tmp_path))
    (tmp_path / "b").rename(tmp_path / "B")
    seen.append(tag(tmp_path))
    (tmp_path / "B").unlink()
    (tmp_path / "B").mkdir()
    seen.append(tag(tmp_path))
    seen += [tag(tmp_path, "order=desc"), tag(tmp_path, "sort=size"), tag(tmp_path, path="/e/")]
    seen += [tag(tmp_path, accept="application/json")]
    (tmp_path / "c").rmdir()
    seen.append(tag(tmp_path))
    monkeypatch.setattr(indexes, "MAX_SORTED", 1)
    monkeypatch.setattr(indexes, "PAGE_NAMES", 1)
    seen += [tag(tmp_path), tag(tmp_path, "page=2")]
    assert len(set(seen)) == len(seen), seen


@given(st.lists(names, unique=True, max_size=4), st.lists(names, unique=True, max_size=4))
def test_two_lists_have_two_tags(one: list[str], other: list[str]) -> None:
    about: Any = SimpleNamespace(st_mode=0o100644, st_size=1, st_mtime_ns=0)
    tags = [
        indexes.tag_of([indexes.DirectoryEntry(name, about) for name in found], "") for found in (one, other)
    ]
    assert (tags[0] == tags[1]) is (one == other)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("count", [3, indexes.INLINE_NAMES + 5])
def test_a_listing_is_validated(start: Start, model: str, count: int) -> None:
    server = start(model, "--compress", "all", "--compress-codings", "gzip")
    (server.root / "d").mkdir()
    make(server.root / "d", *(f"{number}.txt" for number in range(count)), size=3)
    url = server.url + "d/"
    plain = {"Accept-Encoding": "identity"}
    with web.Client(headers=plain) as client:
        page = client.get(url)
        etag = page.headers["etag"]
        assert etag.startswith('"') and len(Page(page.text).names) == count
        head = client.head(url)
        assert head.headers["etag"] == etag
        assert head.headers["content-length"] == page.headers["content-length"]
        for method in ("GET", "HEAD"):
            for sent in (etag, f'"other", W/{etag}', "*"):
                again = client.request(method, url, headers={"If-None-Match": sent})
                assert (again.status_code, again.content) == (304, b"")
                assert again.headers["etag"] == etag and "Accept" in again.headers["vary"]
                assert again.headers["cache-control"] == "no-cache" and "content-type" not in again.headers
        assert client.get(url, headers={"If-None-Match": '"other"'}).status_code == 200
        assert client.get(url, headers={"If-Match": etag}).status_code == 200
        assert client.get(url, headers={"If-Match": '"other"'}).status_code == 412
        old = {"If-Modified-Since": "Fri, 01 Jan 2999 00:00:00 GMT"}  # a listing has no date
        assert client.get(url, headers=old).status_code == 200
        assert (
            client.get(url, headers={"If-Unmodified-Since": "Thu, 01 Jan 1970 00:00:01 GMT"}).status_code
            == 200
        )
        json_tag = client.get(url, headers={"Accept": "application/json"}).headers["etag"]
        assert json_tag != etag
        gzipped = client.get(url, headers={"Accept-Encoding": "gzip"})
        assert gzipped.text == page.text
        coded = {"Accept-Encoding": "gzip", "If-None-Match": gzipped.headers["etag"]}
        assert client.get(url, headers=coded).status_code == 304
        with (server.root / "d" / "1.txt").open("ab") as file:
            file.write(b"more")
        # The page of a large directory may be a second old
        wait_until(lambda: client.get(url, headers={"If-None-Match": etag}).status_code == 200, 20)
        assert client.get(url).headers["etag"] != etag
        wait_until(lambda: client.get(url, headers=coded).status_code == 200, 20)


def test_the_page_of_a_large_directory_is_kept_until_a_name_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "PAGE_CACHE_S", 3600)
    make(tmp_path, *(f"{number}.txt" for number in range(indexes.INLINE_NAMES + 1)))
    os.utime(tmp_path, (1, 1))
    request = parse_request(b"GET /d/ HTTP/1.1\r\nHost: a\r\n\r\n", RequestLimits())
    other = parse_request(b"GET /d/ HTTP/1.1\r\nHost: b\r\n\r\n", RequestLimits())
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        page = indexes.listing(request, "/d/", descriptor)
        again = indexes.kept_page(request, "/d/", descriptor, "")
        assert again is not None and again.body == page.body and again.fields == page.fields
        assert indexes.kept_page(other, "/d/", descriptor, "") is None
        assert indexes.kept_page(request, "/e/", descriptor, "") is None
        assert indexes.kept_page(request, "/d/", descriptor, "/root") is None
        monkeypatch.setattr(indexes, "PAGE_CACHE_S", 0)
        assert indexes.kept_page(request, "/d/", descriptor, "") is None
        monkeypatch.setattr(indexes, "PAGE_CACHE_S", 3600)
        (tmp_path / "new.txt").touch()
        assert indexes.kept_page(request, "/d/", descriptor, "") is None
        os.utime(tmp_path, (time.time() + 60, time.time() + 60))
        indexes.listing(request, "/d/", descriptor)  # the next name could come with the same date
        assert indexes.kept_page(request, "/d/", descriptor, "") is None
    finally:
        os.close(descriptor)


# Many names


class Calling(Stream):
    """A stream that notes its calls, and which files are open when one begins: it may have to wait for a thread."""

    def __init__(self) -> None:
        super().__init__(("", 0), ("", 0), None)  # type: ignore[arg-type]
        self.calls = 0

    async def call(self, function: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        self.calls += 1
        self.open = [*open_files(os.getpid()).values()]
        return function(*arguments)


def test_a_directory_with_many_names_is_listed_by_a_call(tmp_path: Path) -> None:
    """Beside an event loop a thread makes the listing, so that other clients are answered meanwhile."""
    (tmp_path / "d").mkdir()
    static = Static(Config(), str(tmp_path))
    request = Request("GET", "/d/", (1, 1), path="/d/")
    descriptors = len(os.listdir("/proc/self/fd"))
    for count, calls in ((indexes.INLINE_NAMES, 0), (indexes.INLINE_NAMES + 1, 1)):
        make(tmp_path / "d", *(str(number) for number in range(count)))
        io = Calling()
        response = run(static.respond(request, io))
        assert response is not None and isinstance(response.body, bytes)
        assert io.calls == calls and len(Page(response.body.decode()).names) == count
        if calls:
            assert str(tmp_path / "d") not in io.open
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize("then", ["nothing", "a file", "a link out of the root"])
def test_a_directory_that_is_exchanged_before_its_turn(tmp_path: Path, then: str) -> None:
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    make(root / "d", *(str(number) for number in range(indexes.INLINE_NAMES + 1)))

    class Late(Calling):
        async def call(self, function: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
            (root / "d").rename(tmp_path / "moved")
            if then == "a file":
                (root / "d").write_text("x")
            elif then != "nothing":
                (root / "d").symlink_to(tmp_path / "moved")
            return function(*arguments)

    request = Request("GET", "/d/", (1, 1), path="/d/")
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(HTTPError) as refused:
        run(Static(Config(symlinks="inside"), str(root)).respond(request, Late()))
    assert refused.value.status == 404
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_order_of_many_names(tmp_path: Path) -> None:
    found = [f"{'aB'[number % 2]}{number * 7919 % 5000}" for number in range(5000)]
    expected = sorted(found, key=str.casefold)
    assert indexes.DirectoryPage([*found], "").names == expected[: indexes.PAGE_NAMES]
    assert indexes.DirectoryPage([*found], "5").names == expected[-indexes.PAGE_NAMES :]


def test_clients_who_leave_meanwhile_leave_no_descriptor(start: Start, way_to_wait: str) -> None:
    server = start(way_to_wait)
    (server.root / "d").mkdir()
    make(server.root / "d", *(f"{number}" for number in range(3 * indexes.INLINE_NAMES)))
    assert len(Page(web.get(server.url + "d/").text).names) == 3 * indexes.INLINE_NAMES
    for _ in range(20):
        with server.connect() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.sendall(b"GET /d/ HTTP/1.1\r\nHost: ewe\r\n\r\n")
    listed = str(server.root / "d")
    wait_until(lambda: listed not in open_files(server.pid).values(), 30)
    assert web.get(server.url + "d/").status_code == 200
    assert "Traceback" not in server.log()
