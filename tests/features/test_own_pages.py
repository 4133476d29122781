"""The HTML of ewe's own pages: a language, a title, one <main>, named landmarks, links that are URLs."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support import web
from support.page_structure import faults
from support.server import Server, Start

from ewe.features import indexes
from ewe.features.static import redirect
from ewe.http.error_pages import TEXTS, error_page, fault_page
from ewe.http.messages import Response

pytestmark = pytest.mark.starts_processes
PATHS = [
    "d/", "d/?sort=size", "long/", "long/?page=2", "nothing", "d", "notes.md", "app", "-/databases/",
    "-/databases/shop/", "-/databases/shop/goods", "-/databases/shop/goods?sort=name&size=2",
    "-/databases/shop/goods/row?key=%5B1%5D", "-/databases/shop/-sql?sql=SELECT+1",
    "-/databases/shop/-sql?sql=SELECT", "-/databases/shop/-saved/cheap?:most=2", "-/databases/shop/nothing",
    "-/databases/shop/goods?sort=nothing", "book/README.md", "book/a.md", "book/README.md?q=%3Cb%3E",
    "book/a.md?q=x", "book/README.md?print",
]  # fmt: skip


def text(response: Response) -> str:
    assert isinstance(response.body, bytes)
    return response.body.decode()


def test_the_look_finds_faults() -> None:
    good = '<!DOCTYPE html>\n<html lang="en"><title>t</title><main><p>x</main></html>'
    assert faults(good) == []
    for old, new in (
        (' lang="en"', ""), ("<main>", "<main><main>"), ("<p>", '<p><a href="?key=[1]">x</a>'), ("</main>", ""),
        ("<p>", "</b><p>"), ("<main>", "<nav></nav><nav></nav><main>"), ("<p>", '<p id="a"><i id="a"></i>'),
        ("<title>t</title>", ""), ("<!DOCTYPE html>\n", ""), ("<p>", '<img src="a">'),
    ):  # fmt: skip
        assert faults(good.replace(old, new)), (old, new)


@pytest.mark.parametrize("status", [*TEXTS, 418])
def test_pages_of_errors(status: int) -> None:
    assert faults(text(error_page(status, "cause", text="<b>&"))) == []
    assert faults(text(error_page(status, "cause"))) == []


def test_small_pages() -> None:
    assert faults(text(fault_page('Traceback\n  "</main><b>"\n'))) == []
    assert text(fault_page("x")).count("<pre") == 1
    assert (
        faults(text(redirect('/a"><b>/?x=[1]'.replace("[", "%5B").replace("]", "%5D")))) != []
    )  # it is no URL
    assert faults(text(redirect("/a%22/?x=1"))) == []


@pytest.fixture
def serving(start: Start, tmp_path: Path) -> Server:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.executescript(
            """CREATE TABLE kinds (name TEXT PRIMARY KEY);
            CREATE TABLE goods (id INTEGER PRIMARY KEY, name TEXT NOT NULL, kind TEXT REFERENCES kinds (name));
            INSERT INTO kinds VALUES ('wool'), ('[a]&"b"');
            INSERT INTO goods VALUES (1, 'one', 'wool'), (2, '<b>two</b>', '[a]&"b"'), (3, 'three', NULL);"""
        )
    (tmp_path / "failing.py").write_text("def app(environ, start_response):\n    raise ValueError('<b>')\n")
    (tmp_path / "ewe.toml").write_text(
        f"""markdown = true
        development = true
        languages = ["de", "fr"]
        database = "shop=sqlite:{tmp_path}/shop.db"
        browser = "/-/databases"
        browser-query = "shop/cheap=SELECT * FROM goods WHERE id < :most"
        wsgi = "/app=failing:app"
        """
    )
    server = start("thread", "--config", str(tmp_path / "ewe.toml"), env={"PYTHONPATH": str(tmp_path)})
    (server.root / "d" / "sub").mkdir(parents=True)
    (server.root / "long").mkdir()
    for name in ("a [1]?.txt", "<b>&amp;", '"x"', "c:d"):
        (server.root / "d" / name).write_text("x")
    for number in range(indexes.MAX_SORTED + 1):
        os.close(os.open(server.root / "long" / str(number), os.O_CREAT | os.O_WRONLY))
    (server.root / "notes.md").write_text("# Notes\n\n```\ncode\n```\n\n[x](y)\n")
    (server.root / "notes.fr.md").write_text("# Notes\n")
    (server.root / "book").mkdir()
    (server.root / "book" / "README.md").write_text(
        "# `<b>` &\n\n[a](a.md) [out](../../x.py)\n\n## x\n\n## x\n\n## `<i>`\n"
    )
    (server.root / "book" / "a.md").write_text("# A `<b>`\n\n## x\n\n| a |\n|---|\n| [x](README.md#x-1) |\n")
    return server


def test_pages_of_a_server(serving: Server) -> None:
    with web.Client(base_url=serving.url) as client:
        for path in PATHS:
            page = client.get(path)
            assert page.headers["content-type"] == "text/html; charset=utf-8", path
            assert faults(page.text) == [], path
        assert '<html lang="de">' in client.get("notes.md").text  # the first of the site's languages
        assert '<html lang="fr">' in client.get("notes.fr.md").text
        assert '<pre tabindex="0">' in client.get("notes.md").text
