"""Pages from SQL through the real server: pages, forms, exports, under every model; and forbidden effects."""

from __future__ import annotations

import html
import os
import pwd
import re
import select
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import web
from support.daemon import ME, Daemon
from support.memory import MemoryStream
from support.proc import open_files, peak_memory
from support.server import MODELS, ROOT, Server, Start, wait_until
from support.wire import read_all
from support.xswitch_client import account

from ewe.bounded import SETTLED_S
from ewe.config.settings import Config
from ewe.database.protocol import ClientRequest
from ewe.features import sql_pages
from ewe.features.databases.asking import Databases, ResultTable
from ewe.features.sql_pages import SQLPages
from ewe.features.static import Static
from ewe.http.messages import Request
from ewe.http.status import HTTPError
from ewe.streams.blocking import run

BOOKS = """-- database: books
-- title: Our books
-- parameter: q text = ''
-- parameter: since integer
-- query: books
-- rows: 10
-- sort: title, year desc
SELECT id, title, year FROM books
WHERE title LIKE '%' || :q || '%' AND (:since IS NULL OR year >= :since);
-- query: decades
SELECT year / 10 * 10 AS decade, count(*) AS books FROM books GROUP BY 1 ORDER BY 1;
-- post: add
-- redirect: /books.sql.html?q={title}
INSERT INTO books (title, year) VALUES (:q, :since) RETURNING title
---
{% extends "ewe" %}
{% block content %}<h1>{{ page.title }}</h1><p id="q">{{ q }}</p>
{{ books.table(links={"title": "book?id={id}"}, hide=["id"]) }}{{ decades.bars("decade", "books") }}
<a href="{{ books.csv }}">CSV</a>{% endblock %}
"""
NASTY = "<script>alert('1')</script>&\"; DROP TABLE books; --"


class Library(Daemon):
    """A daemon with the databases `books` (may be changed), `shelf` (may not) and the blog."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        allowed = f"users = ['{ME}', 'nobody']"
        self.databases = {
            "log": [allowed],
            "books": ["write = true", allowed],
            "shelf": ["source = 'books.db'", allowed],
            "blog": ["write = true", allowed],
        }
        for name, scripts in {"books": [SCHEMA], "blog": [read("schema.sql"), read("content.sql")]}.items():
            with sqlite3.connect(directory / f"{name}.db") as connection:
                for script in scripts:
                    connection.executescript(script)
            connection.close()

    def settings(self) -> Path:
        """Write the settings; `shelf` is the file of `books`, which it must not change."""
        path = super().settings()
        path.write_text(path.read_text().replace("source = 'shelf.db'\n", ""))
        return path

    def count(self, where: str = "1") -> int:
        """Return the number of books."""
        with sqlite3.connect(self.directory / "books.db") as connection:
            (number,) = connection.execute(f"SELECT count(*) FROM books WHERE {where}").fetchone()
        connection.close()
        return int(number)


SCHEMA = """
CREATE TABLE books (id INTEGER PRIMARY KEY, title TEXT NOT NULL UNIQUE, year INTEGER);
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 25)
INSERT INTO books SELECT i, 'Book ' || substr('0' || i, -2), 1990 + i FROM n;
"""


def read(name: str) -> str:
    return (ROOT / "samples" / "blog" / name).read_text()


@pytest.fixture(scope="module")
def library() -> Iterator[Library]:
    with tempfile.TemporaryDirectory(prefix="ewe-dbd-") as name:
        Path(name).chmod(0o755)
        made = Library(Path(name))
        try:
            made.start()
            yield made
        finally:
            made.stop(signal.SIGKILL)


def post(url: str, data: dict[str, str], **headers: str) -> web.Response:
    return web.post(
        url, data=data, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


@pytest.mark.parametrize("model", MODELS)
def test_under_every_model(start: Start, library: Library, model: str) -> None:
    server = start(model, "--dbd", library.address)
    (server.root / "books.sql.html").write_text(BOOKS)
    url = server.url + "books.sql.html"
    page = web.get(url)
    assert page.status_code == 200, server.log()
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<h1>Our books</h1>" in page.text and page.text.count("<tr>") == 11
    assert '<a href="book?id=1">Book 01</a>' in page.text and "<svg" in page.text
    assert web.get(server.url + "books").text == page.text.replace("books.sql.html", "books")
    assert web.get(url, headers={"If-None-Match": page.headers["etag"]}).status_code == 304
    found = web.get(url + "?q=k+2&sort=-year").text
    assert re.findall(">(Book ..)<", found) == [f"Book {number}" for number in range(25, 19, -1)]
    csv = web.get(server.url + "books.sql.csv?q=k+2&sort=title")
    assert csv.text.splitlines()[:2] == ["id,title,year", "20,Book 20,2010"] and csv.text.count("\n") == 7
    assert web.get(server.url + "books.sql.json?query=decades").json()[-1] == {"decade": 2010, "books": 6}
    head = web.head(url)
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", page.headers["etag"])
    assert web.get(url + "?since=soon").status_code == 400
    title = f"New under {model}"
    done = post(url, {"q": title, "since": "1999"})
    assert (done.status_code, done.headers["location"]) == (
        303,
        f"/books.sql.html?q={title.replace(' ', '%20')}",
    )
    assert library.count(f"title = '{title}'") == 1
    assert post(url, {"q": title, "since": "1999"}).status_code == 409  # UNIQUE


class Asked(Databases):
    """Databases that keep what they are asked."""

    names = ("books",)

    def __init__(self) -> None:
        self.requests: list[tuple[ClientRequest, bool]] = []

    async def rows(self, request: ClientRequest, io: object, *, writes: bool = False) -> ResultTable:
        self.requests.append((request, writes))
        return ResultTable(["title"], [["a"]], False)


def test_a_query_may_only_read_and_is_limited(tmp_path: Path) -> None:
    """The query is a subquery, and the daemon is told in addition that it may only read."""
    (tmp_path / "books.sql.html").write_text(
        BOOKS.partition("---")[0].replace("id, title", "id, title AS decade, 1 AS books, title")
    )
    asked = Asked()
    config = Config(documentroot=str(tmp_path))
    pages = SQLPages(config, asked, Static(config))
    fields = (("content-type", "application/x-www-form-urlencoded"),)
    for method, query in (("GET", "q=a"), ("POST", "q=b&since=7")):
        request = Request(method, "/books", (1, 1), fields, path="/books.sql.html", query=query)
        response = run(pages.respond(request, MemoryStream([])))
        assert response is not None and response.status in (200, 303)
    (books, _), (decades, _), (add, writes) = asked.requests
    assert books.read_only and decades.read_only and not add.read_only and writes
    assert (books.rows, decades.rows, books.time_limit, books.database) == (11, 101, 5.0, "books")
    assert books.parameters == {"q": "a"} and add.parameters == {"q": "b", "since": 7}
    assert decades.parameters == {}
    assert "(CAST(CAST(NULL AS BIGINT) AS BIGINT) IS NULL OR year >= CAST(NULL AS BIGINT))" in books.statement


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [("", 200, "x "), ("name=Bob&n=7", 200, "Bob 7"), ("name=&n=&id=", 200, "x "), ("n=a", 400, "n must be")],
)
def test_a_template_shows_a_parameter_that_no_query_uses(
    tmp_path: Path, query: str, status: int, text: str
) -> None:
    (tmp_path / "hello.sql.html").write_text(
        "-- parameter: name text = 'x'\n-- parameter: n integer\n-- parameter: id integer required\n"
        "---\n<p>{{ name }} {{ n }}</p>"
    )
    config = Config(documentroot=str(tmp_path))
    request = Request("GET", "/hello", (1, 1), path="/hello", query=query)
    response = run(SQLPages(config, Asked(), Static(config)).respond(request, MemoryStream([])))
    assert response is not None and response.status == status
    assert isinstance(response.body, bytes) and f"<p>{text}" in response.body.decode()


def test_the_file_name_of_an_export_is_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(*_: object) -> bytes:
        return b"title\r\n"

    monkeypatch.setattr(Asked, "ask", ask)
    (tmp_path / "a, 'b'=(c).sql.html").write_text(BOOKS)
    config = Config(documentroot=str(tmp_path))
    request = Request("GET", "/", (1, 1), path="/a, 'b'=(c).sql.csv")
    response = run(SQLPages(config, Asked(), Static(config)).respond(request, MemoryStream([])))
    assert response is not None
    name = "a%2C%20%27b%27%3D%28c%29.csv"
    assert response.get("content-disposition") == f"attachment; filename*=UTF-8''{name}"


def test_an_export_has_no_rows_of_a_query_that_its_page_would_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(*_: object) -> bytes:
        return b"title\r\n"

    monkeypatch.setattr(Asked, "ask", ask)
    page = "-- database: books\n-- parameter: q text\n-- query: found\n-- if: q\nSELECT title FROM books"
    (tmp_path / "found.sql.html").write_text(page)
    config = Config(documentroot=str(tmp_path))
    pages = SQLPages(config, Asked(), Static(config))
    for query in (None, "q="):
        request = Request("GET", "/", (1, 1), path="/found.sql.csv", query=query)
        with pytest.raises(HTTPError, match="without the parameter q") as refused:
            run(pages.respond(request, MemoryStream([])))
        assert refused.value.status == 404
    asked = Request("GET", "/", (1, 1), path="/found.sql.csv", query="q=a")
    response = run(pages.respond(asked, MemoryStream([])))
    assert response is not None and response.body == b"title\r\n"


@pytest.mark.parametrize(
    ("redirect", "query", "location"),
    [
        ("/books.sql.html?q={q}", "q=" + "x" * 9000, "/books.sql.html"),
        ("/{q}/{title}", "q=", "/a"),
        ("/{q}/{title}", "q=//b", "/%2F%2Fb/a"),
    ],
)
def test_a_form_leads_to_a_page_of_this_site(
    tmp_path: Path, redirect: str, query: str, location: str
) -> None:
    """The statement has written by then: a text too long for a URL is no error, and an empty one no host."""
    (tmp_path / "books.sql.html").write_text(BOOKS.replace("/books.sql.html?q={title}", redirect))
    fields = (("content-type", "application/x-www-form-urlencoded"),)
    request = Request("POST", "/books", (1, 1), fields, path="/books.sql.html", query=query)
    config = Config(documentroot=str(tmp_path))
    response = run(SQLPages(config, Asked(), Static(config)).respond(request, MemoryStream([])))
    assert response is not None
    assert (response.status, dict(response.fields)["Location"]) == (303, location)


PATHS = (
    "books.sql.html", "BOOKS.SQL.HTML", "Books.Sql.Html", "books.sql.html/", "books.sql.html/more",
    "books.sql%2ehtml", "books%2esql.html", "books.sql.htm%6c", "books.sql.html.", "books.sql.html%20",
    "./books.sql.html", "x/../books.sql.html", "//books.sql.html", "books.sql.html?", "books.sql.html%00",
    "books.sql.html.gz", "books.sql.html.br", "books.sql.html~", "books.sql.html.bak", "link.txt", "link.html",
    "sub/books.sql.html", "_layout.sql.html", "books.sql.html;x",
)  # fmt: skip
SECRET = b"FROM books"


@pytest.mark.parametrize("options", [(), ("--dbd", "unix:/nowhere.sock")])
def test_a_page_is_never_sent_as_text(start: Start, options: tuple[str, ...]) -> None:
    """With databases and without; by other spellings, ranges, sidecars, copies and links."""
    server = start("pool", *options)
    (server.root / "sub").mkdir()
    names = ["books.sql.html", "BOOKS.SQL.HTML", "sub/books.sql.html", "_layout.sql.html"]
    names += ["books.sql.html" + end for end in (".gz", ".br", "~", ".bak", ".zst", ".")]
    for name in names:
        (server.root / name).write_text(BOOKS)
    (server.root / "link.txt").symlink_to("books.sql.html")
    (server.root / "link.html").symlink_to("sub/books.sql.html")
    for path in PATHS:
        for field in (
            "Accept-Encoding: gzip, br, zstd",
            "Range: bytes=0-9",
            "If-None-Match: *",
            "Accept: text/plain",
        ):
            answer = server.ask(
                f"GET /{path} HTTP/1.1\r\nHost: a\r\n{field}\r\nConnection: close\r\n\r\n".encode()
            )
            status = int(answer.split()[1])
            assert SECRET not in answer and b"-- database" not in answer, path
            assert status in ((404, 400) if not options else (404, 400, 503)), (path, status)
    for method in ("POST", "PUT", "OPTIONS", "TRACE", "PROPFIND", "HEAD"):
        answer = server.ask(
            f"{method} /books.sql.html HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()
        )
        assert SECRET not in answer


@pytest.fixture
def pages(start: Start, library: Library) -> Server:
    """A server with the books. Its address is not one of a developer's machine."""
    server = start("pool", "--dbd", library.address)
    (server.root / "books.sql.html").write_text(BOOKS)
    return server


def test_what_a_visitor_writes_is_text_everywhere(pages: Server, library: Library) -> None:
    before = library.count()
    for text in (
        NASTY,
        "' OR 1=1 --",
        '"; DELETE FROM books; --',
        "%",
        "{{ 7 * 7 }}",
        "{% include 'x' %}",
        ":q",
        "ü\u2028",
    ):
        for query in (
            {"q": text},
            {"sort": text},
            {"page": text},
            {"decades.sort": text},
            {text: text},
            {"q": "B", "sort": f"-{text}"},
        ):
            answer = web.get(pages.url + "books.sql.html", params=query)
            assert answer.status_code == 200, pages.log()
            assert "<script" not in answer.text and ">49<" not in answer.text
            assert query.get("q") != text or text == "%" or "Nothing was found." in answer.text
            for suffix in ("csv", "json"):
                assert web.get(pages.url + f"books.sql.{suffix}", params=query).status_code == 200
    assert library.count() == before
    title = NASTY + "\r\nSet-Cookie: a=b"
    done = post(pages.url + "books.sql.html", {"q": title, "since": "2000"})
    assert done.status_code == 303 and "set-cookie" not in done.headers
    shown = web.get(pages.url.rstrip("/") + done.headers["location"]).text
    assert "<script" not in shown and "&lt;script&gt;alert(&#x27;1&#x27;)" in shown
    assert library.count("title LIKE '<script>%'") == 1


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 303),
        ({"Sec-Fetch-Site": "none"}, 303),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://site.example:81"}, 403),
        ({"Origin": "http://site.example:81"}, 303),
        ({"Origin": "http://site.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({}, 303),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
    ],
)
def test_a_form_of_another_site_changes_nothing(tmp_path: Path, fields: dict[str, str], status: int) -> None:
    (tmp_path / "books.sql.html").write_text(BOOKS)
    asked = Asked()
    config = Config(documentroot=str(tmp_path))
    given = {"content-type": "application/x-www-form-urlencoded"}
    given |= {name.lower(): value for name, value in fields.items()}
    request = Request(
        "POST",
        "/books",
        (1, 1),
        tuple(given.items()),
        path="/books.sql.html",
        query="q=a",
        host="Site.example:81",
    )
    try:
        response = run(SQLPages(config, asked, Static(config)).respond(request, MemoryStream([])))
        assert response is not None
        answered = response.status
    except HTTPError as error:
        answered = error.status
    assert (answered, len(asked.requests)) == (status, 1 if status == 303 else 0)


def test_only_a_post_to_a_page_that_declares_it_writes(pages: Server, library: Library) -> None:
    read_only = BOOKS.replace("-- database: books", "-- database: shelf")
    (pages.root / "shelf.sql.html").write_text(read_only)
    (pages.root / "read.sql.html").write_text(BOOKS.partition("-- post")[0])
    tricks = (
        "DELETE FROM books RETURNING id",
        "WITH x AS (SELECT 1) DELETE FROM books",
        "SELECT 1) AS b; DELETE FROM books; --",
    )
    for number, trick in enumerate(tricks):
        (pages.root / f"trick{number}.sql.html").write_text(f"-- database: books\n-- query: x\n{trick}")
    before = library.count()
    assert post(pages.url + "shelf.sql.html", {"q": "a", "since": "1"}).status_code == 500
    answer = post(pages.url + "read.sql.html", {"q": "a", "since": "1"})
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert post(pages.url + "books.sql.csv", {"q": "a", "since": "1"}).status_code == 405
    with web.Client() as client:
        allowed = client.options(pages.url + "books.sql.html").headers["allow"]
    assert allowed == "GET, HEAD, POST, OPTIONS"
    assert web.get(pages.url + "books.sql.html?post=add&q=a&since=1").status_code == 200
    for number, _ in enumerate(tricks):
        assert web.get(pages.url + f"trick{number}.sql.html").status_code == 500
    assert post(pages.url + "books.sql.html", {"post": "other", "q": "a"}).status_code == 400
    assert post(pages.url + "books.sql.html", {"q": "a", "since": "x"}).status_code == 400
    assert post(pages.url + "books.sql.html", {"q": "a" * 300_000}).status_code == 413
    assert library.count() == before
    log = pages.log()
    assert "shelf.sql.html, line 14: add: database shelf: STATEMENT: " in log


def test_a_change_of_a_file_shows_within_a_second(pages: Server) -> None:
    page, layout = pages.root / "a.sql.html", pages.root / "_layout.sql.html"
    layout.write_text("one {% block x %}{% endblock %}")
    page.write_text(
        '-- database: books\n---\n{% extends "_layout.sql.html" %}{% block x %}first{% endblock %}'
    )
    time.sleep(2 * SETTLED_S)  # a file that has just changed is not remembered
    url = pages.url + "a"
    assert web.get(url).text == "one first"
    assert web.get(pages.url + "_layout.sql.html").status_code == 404
    page.write_text(page.read_text().replace("first", "second"))
    wait_until(lambda: web.get(url).text == "one second", 20)
    time.sleep(2 * SETTLED_S)
    layout.write_text(layout.read_text().replace("one", "two"))
    wait_until(lambda: web.get(url).text == "two second", 20)
    page.unlink()
    wait_until(lambda: web.get(url).status_code == 404, 20)
    (pages.root / "sub").mkdir()
    (pages.root / "sub" / "index.sql.html").write_text("-- database: books\n---\nindex")
    assert web.get(pages.url + "sub/").text == "index"
    assert web.get(pages.url + "sub").headers["location"] == "/sub/"
    (pages.root / "sub" / "index.html").write_text("a file")
    wait_until(lambda: web.get(pages.url + "sub/").text == "a file", 20)


ERRORS = {
    "-- database: books\n-- query: x\nSELECT nix": (500, "line 3: x: database books: STATEMENT: no such column"),
    "-- database: books\n-- qery: x\nSELECT 1": (500, "line 2: unknown declaration 'qery', did you mean query?"),
    "-- database: books\n---\n\n{{ nix }}": (500, "line 4: template: 'nix' is undefined"),
    "-- query: x\nSELECT 1": (500, "the page names no database"),
    "-- database: books\n-- query: x\n-- time: 0.2\nWITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    " SELECT count(*) FROM n": (504, "line 4: x: database books: TIMEOUT"),
    "-- database: other\n-- query: x\nSELECT 1": (403, "FORBIDDEN"),
    "-- database: books\n-- query: x\n-- empty: 404\nSELECT 1 WHERE 0": (404, "query x finds no row"),
}  # fmt: skip


def test_an_error_is_told_to_the_log_and_not_to_the_visitor(start: Start, library: Library) -> None:
    server = start("pool", "--dbd", library.address)
    developers = start("pool", "--dbd", library.address, "--development")
    for number, (text, (status, words)) in enumerate(ERRORS.items()):
        (server.root / f"e{number}.sql.html").write_text(text)
        answer = web.get(server.url + f"e{number}.sql.html")
        assert (answer.status_code, words in answer.text) == (status, False), (text, answer.text)
        if status != 404:  # which no error log has
            assert f"e{number}.sql.html, line" in server.wait_for_log(words)
        shown = web.get(developers.url + f"e{number}.sql.html").text
        assert status == 404 or words in html.unescape(shown)
    gone = start("pool", "--dbd", "unix:/nowhere.sock")
    (gone.root / "books.sql.html").write_text(BOOKS)
    for path in ("books.sql.html", "books.sql.csv"):
        answer = web.get(gone.url + path)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_an_export_is_streamed(pages: Server) -> None:
    """A result that is longer than any buffer; a client that leaves does not disturb the next."""
    sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50000)"
    sql += " SELECT i, 'text ' || i AS t FROM n"
    (pages.root / "many.sql.html").write_text(f"-- database: books\n-- query: n\n{sql}")
    url = pages.url + "many.sql.csv"
    with web.Client() as client, client.stream("GET", url) as answer:
        assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''many.csv"
        next(answer.iter_raw())
    lines = web.get(url).text.splitlines()
    assert (len(lines), lines[-1]) == (50_001, "50000,text 50000")
    page = web.get(pages.url + "many.sql.html").text
    assert page.count("<tr>") == 101 and "Rows 1 to 100; there are more" in page
    assert web.get(pages.url + "many.sql.json?query=none").status_code == 404


def test_a_large_result_never_fills_the_memory(pages: Server) -> None:
    """A page is made in memory. An export is sent as the rows come, and may have any size."""
    query = "-- database: books\n-- query: x\nSELECT zeroblob(3000000) AS z FROM books AS a, books AS b"
    (pages.root / "large.sql.html").write_text(query)
    web.get(pages.url + "books.sql.html")
    before = peak_memory([pages.pid])
    assert web.get(pages.url + "large.sql.html").status_code == 500
    pages.wait_for_log("x: database books: TOO MANY ROWS: the rows have more than 16 MB")
    assert peak_memory([pages.pid]) - before < 60e6


def test_a_database_in_the_document_root_is_not_sent(start: Start, tmp_path: Path) -> None:
    names = ("own.db", "own.db-wal", "own.db-journal", "own.db-shm")
    for name in names:
        (tmp_path / "htdocs" / name).write_bytes(b"" if name == "own.db" else b"secret")
    server = start("thread", "--database", f"own={tmp_path}/htdocs/own.db")
    assert [web.get(server.url + name).status_code for name in names] == [403] * 4
    (server.root / "own.db.txt").write_text("a file")
    assert web.get(server.url + "own.db.txt").text == "a file"


def test_what_is_missing_is_named_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_pages, "MISSING", "pages from SQL need jinja2")
    (tmp_path / "books.sql.html").write_text(BOOKS)
    config = Config(documentroot=str(tmp_path))
    request = Request("GET", "/books", (1, 1), path="/books")
    response = run(SQLPages(config, Asked(), Static(config)).respond(request, MemoryStream([])))
    assert response is not None and (response.status, response.cause) == (500, "pages from SQL need jinja2")
    assert isinstance(response.body, bytes) and b"jinja2" not in response.body


class Calling(MemoryStream):
    """A stream that notes its calls, which an executor thread makes beside an event loop."""

    def __init__(self) -> None:
        super().__init__([])
        self.called: list[str] = []

    async def call(self, function: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        self.called.append(function.__name__)
        return function(*arguments)


@pytest.mark.parametrize(
    ("owner", "called"), [("", []), ("alice", ["compiled_page", "template", "with_nulls", "render"])]
)
def test_a_users_page_is_read_and_made_by_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str, called: list[str]
) -> None:
    """The declarations and the template of a user may take long, and would hold an event loop.

    A page in memory needs no call to be read.
    """
    monkeypatch.setattr(Asked, "names", ("~alice",))
    (tmp_path / "page.sql.html").write_text("-- parameter: q\n-- query: a\nSELECT :q\n---\n<p>hello")
    time.sleep(SETTLED_S * 1.5)
    config = Config(documentroot=str(tmp_path))
    pages = SQLPages(config, Asked(), Static(config), owner)
    for expected in (called, called[1:]):
        io = Calling()
        response = run(pages.respond(Request("GET", "/page", (1, 1), path="/page"), io))
        assert response is not None and (response.status, io.called) == (200, expected)


def test_the_compiled_pages_are_bounded_by_their_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user could otherwise fill the memory of the server with 200 pages of a megabyte."""
    monkeypatch.setattr(sql_pages, "MAX_COMPILED_BYTES", 2 * len(BOOKS) - 1)
    for name in "abc":
        (tmp_path / f"{name}.sql.html").write_text(BOOKS)
    time.sleep(SETTLED_S * 1.5)
    config = Config(documentroot=str(tmp_path))
    pages = SQLPages(config, Asked(), Static(config))
    kept = []
    for name in "abc":
        pages.compiled_page(f"/{name}.sql.html")
        kept.append(len(pages.compiled_pages))
    assert kept == [1, 2, 1]


def test_a_directory_in_place_of_a_layout_does_not_stay_open(tmp_path: Path) -> None:
    """A user could otherwise take all descriptors of the server."""
    layout = tmp_path / "_layout.sql.html"
    layout.mkdir()
    (tmp_path / "page.sql.html").write_text('---\n{% extends "_layout.sql.html" %}')
    config = Config(documentroot=str(tmp_path))
    pages = SQLPages(config, Asked(), Static(config))
    response = run(pages.respond(Request("GET", "/page", (1, 1), path="/page"), MemoryStream([])))
    assert response is not None and response.status == 500
    assert str(layout) not in open_files(os.getpid()).values()


@pytest.mark.needs("root")
def test_a_users_template_does_not_hold_the_event_loop(start: Start, tmp_path: Path) -> None:
    """Others are answered while it takes all of its time."""
    with account() as alice:
        public = Path(alice.pw_dir) / "public_html"
        public.mkdir(exist_ok=True)
        loop = "{% for i in range(99999) %}"
        (public / "slow.sql.html").write_text(f"---\n{loop}{loop}{{% endfor %}}{{% endfor %}}")
        for path in (public, *public.iterdir()):
            os.chown(path, alice.pw_uid, alice.pw_gid)
        sqlite3.connect(tmp_path / "own.db").close()
        (tmp_path / "own.db").chmod(0o644)
        server = start(
            "asyncio", "--userdir", "public_html", "--user", "nobody",
            "--database", f"~{alice.pw_name}={tmp_path / 'own.db'}",
            constants={"ewe.sqlpages.templates.RENDER_TIMEOUT_S": 4.0},
        )  # fmt: skip
        with server.connect(60) as slow:
            slow.sendall(b"GET /~%b/slow.sql.html HTTP/1.0\r\n\r\n" % alice.pw_name.encode())
            for _ in range(10):
                assert web.get(server.url).status_code == 200
            assert select.select([slow], [], [], 0)[0] == []
            assert read_all(slow).startswith(b"HTTP/1.1 500 ")
            server.wait_for_log("longer than 4 s")


def give(account: pwd.struct_passwd, *paths: Path) -> None:
    """Make an account the owner of these paths."""
    for path in paths:
        os.chown(path, account.pw_uid, account.pw_gid)


def make_databases(directory: Path, *names: str) -> None:
    """Make databases that every account may read, each with its name in it."""
    for name in names:
        with sqlite3.connect(directory / f"{name}.db") as database:
            database.execute("CREATE TABLE t AS SELECT ? AS word", (name,))
        database.close()
        (directory / f"{name}.db").chmod(0o644)


@pytest.mark.needs("root")
def test_a_users_page_uses_only_databases_that_name_the_user(start: Start, tmp_path: Path) -> None:
    make_databases(tmp_path, "own", "other")
    with account() as alice:
        public = Path(alice.pw_dir) / "public_html"
        public.mkdir(exist_ok=True)
        query = "-- query: x\nSELECT word FROM t"
        texts = {
            "mine": f"-- database: ~{alice.pw_name}:own\n{query}",
            "default": query,
            "other": f"-- database: other\n{query}",
            "longer": f"-- database: ~{alice.pw_name}x\n{query}",
            "none": f"-- database: ~{alice.pw_name}:none\n{query}",
            "bad": "-- query: x\nSELECT 1 AS a\n---\n{{ x.first.b }}",
        }
        for name, text in texts.items():
            (public / f"{name}.sql.html").write_text(text)
        give(alice, public, *public.iterdir())
        databases = {":own": "own", "": "own", "x": "other"}
        given = {f"~{alice.pw_name}{end}": file for end, file in databases.items()} | {"other": "other"}
        options = [f"--database={name}={tmp_path / file}.db" for name, file in given.items()]
        server = start("pool", "--userdir", "public_html", "--user", "nobody", *options)
        found = {name: web.get(f"{server.url}~{alice.pw_name}/{name}.sql.html") for name in texts}
        statuses = {name: answer.status_code for name, answer in found.items()}
        expected = {"mine": 200, "default": 200, "other": 404, "longer": 404, "none": 404, "bad": 500}
        assert statuses == expected, server.log()
        assert "<td>own" in found["mine"].text and "<td>own" in found["default"].text
        assert web.get(f"{server.url}~{alice.pw_name}/mine").text.count("<td>own") == 1
        server.wait_for_log("bad.sql.html, line 4: template: ")  # found without root's modules
        off = start("pool", "--userdir", "public_html", "--user", "nobody")
        for name in texts:
            answer = web.get(f"{off.url}~{alice.pw_name}/{name}.sql.html")
            assert (answer.status_code, "SELECT" in answer.text) == (404, False), name


def test_the_blog(start: Start, library: Library) -> None:
    """The sample under samples/blog, as its README starts it."""
    server = start("asyncio", "--dbd", library.address, "--documentroot", str(ROOT / "samples/blog/htdocs"))
    front = web.get(server.url).text
    assert front.count("<article>") == 10 and "there are more" in front and "Recent comments" in front
    assert web.get(server.url + "?q=cheese").text.count("<article>") > 0
    assert "No post was found." in web.get(server.url + "?q=goats").text
    assert "What the shepherd saw, part 1<" in web.get(server.url + "post?id=1").text
    assert web.get(server.url + "post?id=5000").status_code == 404
    assert web.get(server.url + "post").status_code == 400
    done = post(server.url + "write", {"title": "New <b>", "author": "Ada", "body": "One.\n\nTwo."})
    assert done.status_code == 303
    url = server.url + done.headers["location"]
    assert web.get(url).text.count("<p>") == 2 and "New &lt;b&gt;" in web.get(url).text
    done = post(url, {"author": "Ken", "body": NASTY})
    assert done.headers["location"].endswith("#comments")
    assert "<script" not in web.get(url).text and "&lt;script&gt;" in web.get(url).text
    assert post(url, {"author": "K" * 81, "body": "x"}).status_code == 409
    assert post(url, {"author": "", "body": "x"}).status_code == 400
