"""Pages from SQL through the real server: pages, forms, exports, under every model; and what must never happen."""

from __future__ import annotations

import re
import signal
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import web
from support.demon import Demon
from support.server import MODELS, ROOT, Start

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


class Library(Demon):
    """A demon with the databases `books` (may be changed), `shelf` (may not) and the blog."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        allowed = "users = ['root', 'nobody']"
        self.databases = {
            "log": [allowed],
            "books": ["write = true", allowed],
            "shelf": ["place = 'books.db'", allowed],
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
        path.write_text(path.read_text().replace("place = 'shelf.db'\n", ""))
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
