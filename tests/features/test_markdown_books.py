"""Books: the navigation, the search and the document with all pages, and what must not be in them."""

from __future__ import annotations

import html
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from urllib.parse import quote

import httpx
import markdown
import pytest
from support import web
from support.examples import some
from support.memory import MemoryStream
from support.server import MODELS, ROOT, Start, wait_until

from ewe.cli import with_manual
from ewe.config.feature_table import MANUAL
from ewe.config.settings import Config
from ewe.features.markdown import book as books
from ewe.features.markdown.convert import convert, leaves
from ewe.features.markdown.layout import MAX_QUERY_CHARS
from ewe.features.markdown.outline import Anchors, outline
from ewe.features.markdown.pages import MarkdownPages
from ewe.features.markdown.search import query_of, results
from ewe.features.static import Static
from ewe.http.dates import parse_date
from ewe.http.messages import Request
from ewe.sites import make_site
from ewe.sites.explain import explain
from ewe.streams.blocking import run

NO_WAIT = {"ewe.features.markdown.book.CHECK_S": 0.05, "ewe.features.markdown.pages.CHECK_S": 0.05}
README = """# The *book*

[Second](b.md#x), then [first](a.md), [second](b.md) again, `[code](code.md)`, [a part](part/c.md), [none](none.md).

```
[in code](code.md)
```
"""


def write(root: Path, **pages: str) -> None:
    """Write a Markdown file for each page; two underscores in the name stand for a slash."""
    for name, text in pages.items():
        file = root / (name.replace("__", "/") + ".md")
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def book_in(root: Path, directory: str = "/") -> books.Book | None:
    """Return the book of a directory of a site without locations."""
    return books.Books(Static(Config(documentroot=str(root))), lambda path: None).book(directory, None)


def found(root: Path) -> books.Book:
    """Return the book at the top."""
    book = book_in(root)
    assert book is not None
    return book


BOOK_B, BOOK_C = (
    "# B & <i>b</i>\n\n## x\n\n[a](a.md#x-1) [top](#x)",
    "# C\n\n[B](../b.md#x) [up](../../x.md)\n\n![p](p.png)",
)


@pytest.fixture(scope="module", params=MODELS)
def reader(request: pytest.FixtureRequest, start_shared: Start) -> Iterator[httpx.Client]:
    """A client of a server of each model with a book, for the tests that leave it as it is."""
    server = start_shared(request.param, "--markdown")
    (server.root / "index.html").unlink(missing_ok=True)
    write(
        server.root, README=README, a="# A\n\n## x\n\n## x\n\n## y", b=BOOK_B, part__c=BOOK_C,
        other="# Other\n\n## Needle\n", code="# Code\n",
    )  # fmt: skip
    with web.Client(base_url=server.url) as client:
        yield client


def test_a_directory_leads_to_its_book(reader: httpx.Client) -> None:
    """Only a listing with a question is still a listing."""
    to = reader.get("/")
    assert (to.status_code, to.headers["location"]) == (302, "/README.md")
    assert "Index of" in reader.get("/?sort=name").text


def test_a_page_of_a_book_has_its_neighbours(reader: httpx.Client) -> None:
    page = reader.get("b.md").text
    assert '<a rel="prev" href="./README.md">← The book</a>' in page
    assert '<a rel="next" href="./a.md">A →</a>' in page and '<h2 id="x">' in page
    below = reader.get("part/c.md").text
    assert '<a rel="prev" href="../a.md">' in below and 'rel="next"' not in below
    assert '<form role="search" action="../README.md">' in below
    assert '<span class="outside" title="../../x.md">up (<code>x.md</code>)</span>' in below
    other = reader.get("other.md").text  # the search finds it, but no order has it
    assert '<a rel="' not in other and 'href="./README.md"' in other


def test_a_page_of_many_headings_has_a_table_of_them(reader: httpx.Client) -> None:
    many = reader.get("a.md").text
    assert "<aside>" in many and '<a href="#x-1">x</a>' in many
    assert "<aside>" not in reader.get("b.md").text


@pytest.mark.parametrize("path", ["README.md", "README.md?q=needle", "README.md?print"])
def test_conditions_of_a_book(reader: httpx.Client, path: str) -> None:
    page = reader.get(path)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    again = reader.get(path, headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert reader.get(path, headers={"If-Match": '"no"'}).status_code == 412
    head = reader.head(path)
    assert (head.headers["content-length"], head.content) == (str(len(page.content)), b"")


def test_the_search_of_a_book(reader: httpx.Client) -> None:
    result = reader.get("README.md?q=needle").text
    assert '<a href="./other.md#needle">Needle</a>' in result and "1 page with <b>needle</b>" in result
    assert reader.post("README.md?q=needle").status_code == 405
    assert reader.get("none.md?q=needle").status_code == reader.get("none.md?print").status_code == 404


def test_a_whole_book_on_one_page(reader: httpx.Client) -> None:
    whole = reader.get("README.md?print").text
    assert re.findall('<article id="(.*?)"', whole) == ["README.md", "b.md", "a.md", "part/c.md"]
    for link in ("#b.md:x", "#a.md", "#a.md:x-1", "#part/c.md", "none.md"):
        assert f'href="{"./" * (link[0] != "#")}{link}"' in whole, link
    assert 'id="a.md:x-1"' in whole and 'src="./part/p.png"' in whole and "Needle" not in whole
    assert reader.get("a.md?print").text == reader.get("a.md").text
    assert reader.get("README.md?source").text == README


def test_a_book_that_changes(start: Start) -> None:
    server = start("pool", "--markdown", constants=NO_WAIT)
    write(server.root, README="[a](a.md)", a="# A")
    url = f"{server.url}README.md"
    before = web.get(url)
    assert "A →" in before.text and web.get(f"{server.url}README.md?print").text.count("<article") == 2
    write(server.root, a="# Another")
    wait_until(lambda: "Another →" in web.get(url).text, 20)
    after = web.get(url, headers={"If-None-Match": before.headers["etag"]})
    assert after.status_code == 200 and after.headers["etag"] != before.headers["etag"]
    first, second = (parse_date(each.headers["last-modified"]) for each in (before, after))
    assert first is not None and second is not None and first <= second
    assert "Another" in web.get(f"{url}?print").text
    (server.root / "a.md").unlink()
    wait_until(lambda: "<header" not in web.get(url).text, 20)
    assert web.get(f"{url}?q=a").text == web.get(f"{url}?print").text == web.get(url).text


def test_without_links_there_is_no_book(start: Start) -> None:
    """Pages stay plain, and directories are listed."""
    server = start("asyncio", "--markdown")
    (server.root / "index.html").unlink()
    write(
        server.root,
        notes="# N",
        README="# R\n\n[me](README.md) [x](http://a/b.md) [out](../x.md)",
        sub__a="# A",
    )
    for name in ("notes.md", "README.md", "sub/a.md"):
        page = web.get(server.url + name).text
        assert "<header" not in page and "<nav" not in page and "<aside" not in page and "<form" not in page
    assert "Index of" in web.get(server.url).text
    write(server.root, sub__index="[a](a.md)")
    wait_until(lambda: "<header" in web.get(f"{server.url}sub/index.md").text, 20)


def test_an_index_file_stays(start: Start) -> None:
    server = start(
        "thread", "--markdown", "--languages", "de", "--mount", "/-=ewe.features.markdown.manual:Manual"
    )
    write(server.root, README="[a](a.md)", a="# A", sub__README="[a](a.md)", sub__a="# A")
    (server.root / "sub" / "index.de.html").write_text("deutsch")
    assert "welcome" in web.get(server.url).text
    assert web.get(f"{server.url}sub/").text == "deutsch"
    assert web.get(f"{server.url}-/").headers["location"] == "/-/README.md"


SITE = """
[[site]]
names = "localhost"
markdown = true
documentroot = {root!r}
[[site.location]]
prefix = "/secret"
allow = "192.0.2.1"
[[site.location]]
pattern = "mine[.]md$"
methods = "GET"
"""


LINKED = (  # all but good.md are no pages of the book
    ".hidden.md", "WEB-INF/a.md", "secret/a.md", "mine.md", "link.md", "out/outside.md", "loop.md", "fifo.md",
    "dir.md", "good.md", "../outside.md", "%2e%2e/outside.md", "a%00b.md",
)  # fmt: skip


@pytest.mark.starts_processes
def test_no_page_that_the_server_refuses(start: Start, tmp_path: Path) -> None:
    """Hidden files, protected sources, links out of the root, and pages of locations with other guards."""
    outside = tmp_path / "outside.md"
    outside.write_text("# Needle outside")
    (tmp_path / "ewe.toml").write_text(SITE.format(root=str(tmp_path / "htdocs")))
    server = start("pool", "--config", str(tmp_path / "ewe.toml"), env={})
    root = server.root
    write(root, README="# R\n\n" + " ".join(f"[x]({name})" for name in LINKED), good="# Needle good")
    write(root, secret__a="# Needle secret", mine="# Needle mine")
    write(root, **{".hidden": "# Needle hidden", "WEB-INF__a": "# Needle private"})
    (root / "link.md").symlink_to(outside)
    (root / "out").symlink_to(tmp_path)
    (root / "loop.md").symlink_to("loop.md")
    os.mkfifo(root / "fifo.md")
    (root / "dir.md").mkdir()
    page = web.get(f"{server.url}README.md?q=needle").text
    assert re.findall(r"Needle (\w+)", page) == ["good"]
    whole = web.get(f"{server.url}README.md?print").text
    assert re.findall(r"Needle (\w+)", whole) == ["good"] and whole.count("<article") == 2
    assert "<header" not in web.get(f"{server.url}mine.md").text
    assert "good" not in web.get(f"{server.url}mine.md?q=needle").text
    assert web.get(f"{server.url}secret/a.md?q=needle").status_code == 403


def test_pages_below_a_mount_are_in_no_book_above(start: Start) -> None:
    """The mounted handler may be a guard."""
    server = start("pool", "--markdown", "--mount", "/sub=ewe.features.markdown.manual:Manual")
    write(server.root, README="[a](a.md) [b](sub/b.md)", a="# A", sub__b="# Needle")
    assert "No pages" in web.get(f"{server.url}README.md?q=needle").text


def test_pages_that_an_authorizer_guards_are_in_no_book_above(start: Start) -> None:
    """The authorizer, which nobody reaches here, is asked for the path of a request alone."""
    server = start("pool", "--markdown", "--fastcgi-authorizer", "/sub=unix:/none")
    write(server.root, README="[a](a.md) [b](sub/b.md)", a="# A", sub__b="# Needle")
    assert web.get(f"{server.url}sub/b.md").status_code == 503
    assert "No pages" in web.get(f"{server.url}README.md?q=needle").text
    assert "Needle" not in web.get(f"{server.url}README.md?print").text


@pytest.mark.parametrize(
    "query",
    ["q=", "q=+", "q=%00%ff%3Cb%3E", "q=.*(%5B", "q=%", "q=a&q=b", "q=%22%27", "q", "print=1", "Print"],
)
def test_hostile_queries(query: str, start: Start) -> None:
    server = start("asyncio", "--markdown")
    write(server.root, README="# R\n\n[a](a.md)", a="# A.*")
    page = web.get(f"{server.url}README.md?{query}")
    assert page.status_code == 200 and "<b><b>" not in page.text and "\0" not in page.text
    assert page.text.count("<main>") == 1


def test_a_long_query(start: Start) -> None:
    server = start("asyncio", "--markdown", "--max-target", "100k")
    write(server.root, README="# R\n\n[a](a.md)", a="# A")
    for query in ("a" * 10_000, "a+" * 5_000, "%C3%A9" * 1_600):
        page = web.get(f"{server.url}README.md?q={query}")
        assert page.status_code == 200 and len(page.content) < 10_000
    assert len(query_of("q=" + "%C3%A9" * 1_600) or "") <= MAX_QUERY_CHARS


NAMES = [
    "with space.md",
    "100%.md",
    "déjà.md",
    "a&b.md",
    "q?.md",
    "h#.md",
    "c:d.md",
    "-x.md",
    '"quoted".md',
    "a(b).md",
    "<i>.md",
]


@pytest.mark.parametrize("form", ["<{}>", "{}"])
def test_names(form: str, start: Start) -> None:
    """Every link of the navigation and of the search leads to its page, and every text is text."""
    server = start("thread", "--markdown")
    for name in NAMES:
        (server.root / name).write_text(f"# `<b>` {html.escape(name[:-3])}\n\n[r](README.md)\n")
    links = " ".join(f"[x]({form.format(quote(name))})" for name in NAMES)
    (server.root / "README.md").write_text(f"# `</title><script>` &\n\n{links}\n")
    (server.root / os.fsdecode(b"\xff.md")).write_text("no heading")
    with web.Client(base_url=server.url) as client:
        at, seen = "README.md", []
        while at:
            page = client.get(at)
            assert page.status_code == 200 and "<b>" not in page.text and "<script>" not in page.text
            seen.append(at)
            match = re.search(r'rel="next" href="\./([^"]*)"', page.text)
            at = match[1] if match is not None else ""
        assert len(seen) == len(NAMES) + 1
        result = client.get("README.md?q=%3Cb%3E").text
        hits = re.findall(r'<li><a href="\./([^"]*)"', result)
        assert len(hits) == len(NAMES) and all(client.get(hit).status_code == 200 for hit in hits)
        whole = client.get("README.md?print").text
        ids = re.findall(r'id="([^"]*)"', whole)
        assert len(ids) == len(set(ids)) and whole.count('href="#README.md"') == len(NAMES)
        assert client.get("%FF.md").status_code == 200


@pytest.mark.takes_time
def test_many_files_and_large_ones(root: Path) -> None:
    """10,000 files, one of 50 MB, and contents that link them all."""
    for number in range(10_000):
        os.close(os.open(root / f"{number:05}.md", os.O_CREAT | os.O_WRONLY))
    with (root / "00001.md").open("w") as large:
        large.truncate(50_000_000)
    (root / "README.md").write_text(
        "[a](00001.md)\n" + "".join(f"[x]({number:05}.md)\n" for number in range(9_000))
    )
    began = time.thread_time()
    book = found(root)
    assert time.thread_time() - began < 2
    assert len(book.pages) == books.MAX_PAGES and book.is_cut and book.pages["/00001.md"].title == "00001.md"
    assert f"{books.MAX_PAGES} pages; more exist" in results(book, "00001", "/README.md")


def test_many_files_that_may_not_be_sent(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "MAX_OPENED", 100)
    for number in range(200):
        (root / f"0{number:03}.md").symlink_to("/etc/passwd")
    write(root, README="[a](a.md)", a="# A", z="# Z")
    book = found(root)
    assert book.is_cut and list(book.pages) == ["/README.md", "/a.md"]


def test_much_text(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "MAX_BYTES", 10_000)
    write(root, README="[a](a0.md)", **{f"a{number}": "# a\n" * 500 for number in range(20)})
    book = found(root)
    assert book.is_cut and 4 < len(book.pages) < 8


def test_large_files_count_the_same_at_each_reading(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a book would lose pages at its next reading, although no file has changed."""
    monkeypatch.setattr(books, "MAX_FILE_BYTES", 100)
    monkeypatch.setattr(books, "MAX_BYTES", 1_000)
    write(root, README="[a](a.md)", a="# A", **{f"b{number}": "x" * 200 for number in range(30)})
    reader = books.Books(Static(Config(documentroot=str(root))), lambda path: None)
    first = reader.read_and_cache(("/", None), None)
    again = reader.read_and_cache(("/", None), first)
    assert first is not None and again is not None and not again.is_cut
    assert again.pages == first.pages and len(again.pages) == 32


def test_a_document_is_bounded(start: Start) -> None:
    """A page that takes too long, one that is too large, and those for which no time is left, are named."""
    constants = {
        "ewe.features.markdown.convert.PAGE_CPU_S": 0.3,
        "ewe.features.markdown.print.MAX_BYTES": 5_000,
    }
    server = start("asyncio", "--markdown", constants=constants)
    write(
        server.root,
        README="[a](slow.md) [b](large.md) [c](c.md) [d](d.md)",
        slow="[" * 250_000,
        c="c " * 4_000,
        d="# D",
    )
    write(server.root, large="large\n\n" * 50_000)
    whole = web.get(f"{server.url}README.md?print", timeout=60).text
    assert whole.count("<article id=") == 2
    assert re.findall(r'<li><a href="(.*?)">', whole) == ["./slow.md", "./large.md", "./d.md"]


def test_a_document_without_some_pages_is_made_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for a document was over before all pages were made. The next request has time for the others."""
    config = Config(documentroot=str(root))
    handler = MarkdownPages(config, Static(config), lambda path: None)
    write(root, README="[a](a.md)", a="# A")
    with monkeypatch.context() as patch:
        patch.setattr("ewe.features.markdown.pages.DOCUMENT_S", 0.0)
        first = handler.search_or_print_page("/README.md", "print")
    whole = handler.search_or_print_page("/README.md", "print")
    assert first is not None and first.count(b"<article id=") == 0
    assert whole is not None and whole.count(b"<article id=") == 2
    assert handler.search_or_print_page("/README.md", "print") is whole


def test_pages_that_link_each_other_and_links_to_directories(root: Path) -> None:
    write(
        root,
        README="[a](a.md) [a](./x/../a.md) [d](sub/) [e]() [f](#a) [g](?a)",
        a="[r](README.md) [a](a.md)",
    )
    (root / "again").symlink_to(".")
    write(root, again__x="# X")
    book = found(root)
    assert book.order == ["/README.md", "/a.md"] and "/x.md" in book.pages
    inner = book_in(root, "/again/again/")
    assert inner is not None and inner.order == ["/again/again/README.md", "/again/again/a.md"]


def test_the_outline_of_a_page_is_that_of_the_library() -> None:
    """For the project's own pages, all headings and anchors are the same."""
    for page in some(sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("packages/*/docs/*.md")])):
        text = page.read_text()
        converted = convert(markdown, text, "/x.md", page.name)
        assert converted is not None
        assert [each for each in outline(text).headings if each.level in (2, 3)] == converted.headings, page


def test_the_outline_of_hostile_texts_takes_linear_time() -> None:
    for text in (
        "#",
        "# a\n",
        "[",
        "](",
        "`",
        "a\n=\n",
        "[a]: <",
        "](<",
        "# [",
        "# <",
        "# *_",
        "```\n",
        "\\",
        "&",
    ):
        for source in (
            text * (books.MAX_FILE_BYTES // len(text)),
            "# " + text * (books.MAX_FILE_BYTES // len(text)),
        ):
            began = time.thread_time()
            outline(source)
            assert time.thread_time() - began < 2, text


def test_headings() -> None:
    text = "Under\n=====\n\n# A `#b` *c* [d](e) \\* &amp; #\n\n~~~\n# no\n~~~\n\n"
    text += "two\nlines\n---\n\n## A\n## A\n## ?\n"
    assert outline(text).title == "Under"
    assert [(each.level, each.text) for each in outline(text).headings] == [
        (1, "Under"), (1, "A #b c d * &"), (2, "A"), (2, "A"), (2, "?"),
    ]  # fmt: skip
    anchors = Anchors()
    assert [anchors(each) for each in ("Ä b_c, d!", "A", "A-1", "A", "A", "??")] == [
        "ä-b_c-d", "a", "a-1", "a-2", "a-3", "section",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["# T\n---\n", "# T\nfoo\n---\n", "foo\n---\nbar\n---\n"])
def test_a_heading_is_no_part_of_a_paragraph(text: str) -> None:
    """The outline has the headings of the page, whose converter is Python-Markdown."""
    page = markdown.markdown(text, extensions=["fenced_code"])
    headings = re.findall(r"<h([1-6])>(.*?)</h", page)
    assert [(str(each.level), each.text) for each in outline(text).headings] == headings


def test_links_that_leave_the_directory() -> None:
    for target, depth in (
        ("../x", 0),
        ("a/../../x", 0),
        ("../../x", 1),
        ("%2e%2e/x", 0),
        ("..\\x", 0),
        ("..", 0),
        ("../é%41", 0),
    ):
        assert leaves(target, depth), target
    for target, depth in (("../x", 1), ("a/../x", 0), ("http://a/../..", 0), ("/../x", 0), ("#../x", 0),
                          ("?../x", 0), ("a..b", 0), ("", 0), ("mailto:a..@b", 0)):  # fmt: skip
        assert not leaves(target, depth), target


def test_the_internal_links_of_ewes_own_book(start: Start) -> None:
    """Each link of each page leads to a page and a heading that are there; in the document, too."""
    server = start("pool", "--markdown", "--documentroot", str(ROOT / "docs"))
    pages: dict[str, str] = {}
    with web.Client(base_url=server.url, timeout=60) as client:
        for file in sorted((ROOT / "docs").glob("*.md")):
            pages[file.name] = client.get(file.name).text
        whole = client.get("README.md?print").text
    assert len(pages) == whole.count("<article id=")
    for name, text in pages.items():
        for link in re.findall(r'<a [^>]*href="([^"]*)"', text):
            file, _, anchor = link.removeprefix("./").partition("#")
            if "://" in link or "?" in link:
                continue
            target = pages[file or name] if not file.endswith((".svg", ".png")) else ""
            assert not anchor or f'id="{anchor}"' in target, f"{name}: {link}"
    ids = set(re.findall(r' id="([^"]*)"', whole))
    for link in re.findall(r'href="#([^"]*)"', whole):
        assert link in ids, link


def test_clients_that_come_at_once_get_the_same_page(start: Start) -> None:
    """None of them gets a page without its book, and the text is converted once."""
    server = start("thread", "--markdown")
    write(server.root, README="# R\n\n[a](a.md)\n\n" + "*a* `b` " * 5_000, a="# A")
    with ThreadPoolExecutor(8) as clients:
        pages = list(
            clients.map(lambda path: web.get(server.url + path).text, ["README.md", "README.md?q=a"] * 8)
        )
    assert len(set(pages[::2])) == len(set(pages[1::2])) == 1
    assert "<header" in pages[0] and "<h1>Search</h1>" in pages[1]


def test_a_client_that_comes_while_a_new_page_waits_for_its_book(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the page, too, and not the source of the page."""
    write(root, README="# R\n\n[a](a.md)", a="# A")
    config = Config(documentroot=str(root))
    pages = MarkdownPages(config, Static(config), lambda path: None)
    book_of, arrived, may_go_on = pages.books.book_of, SimpleQueue[str](), Event()

    def slow(path: str) -> books.Book | None:
        arrived.put("in the book")
        may_go_on.wait(10)
        return book_of(path)

    monkeypatch.setattr(pages.books, "book_of", slow)
    request = Request("GET", "/a.md", (1, 1), path="/a.md")
    found = []
    with ThreadPoolExecutor(2) as clients:
        for _ in range(2):
            found.append(clients.submit(lambda: run(pages.respond(request, MemoryStream([])))))
            found[-1].add_done_callback(lambda _: arrived.put("answered"))
            arrived.get(timeout=10)
        may_go_on.set()
    first, second = (future.result() for future in found)
    assert first is not None and second is not None and first.body == second.body


def test_the_manual_of_the_sample_site(start: Start, model: str) -> None:
    """The link of the welcome page works with the documentation and without it."""
    assert with_manual(Config()).mount == (MANUAL,)
    assert with_manual(Config(mount=["/x=a:B"])).mount == ("/x=a:B",)
    server = start(model, "--documentroot", str(ROOT / "htdocs"), "--mount", MANUAL)
    plain = start(model, "--documentroot", str(ROOT / "htdocs"))
    with web.Client(base_url=server.url, follow_redirects=True) as client:
        assert '<a href="/docs/">' in client.get("/").text
        contents = client.get("docs")
        assert str(contents.url).endswith("/docs/README.md") and "<header" in contents.text
        assert client.get("docs/gateways.svg").headers["content-type"].startswith("image/svg+xml")
        assert '<a href="./sites.md">' in client.get("docs/running.md?q=sites").text
        assert client.get("docs/none").status_code == client.get("docs/.git").status_code == 404
        assert client.post("docs/README.md").status_code == 405
    assert "ewe --markdown docs" in web.get(f"{plain.url}docs/").text


def test_the_manual_is_explained() -> None:
    site = make_site(Config(documentroot=str(ROOT / "htdocs"), mount=[MANUAL]))
    lines = {
        path: "\n".join(explain(site, f"http://x{path}", ("", 80)))
        for path in ("/docs/", "/docs/README.md", "/docs/x")
    }
    assert "302, Location: /docs/README.md" in lines["/docs/"]
    assert "the page of" in lines["/docs/README.md"] and "404" in lines["/docs/x"]
