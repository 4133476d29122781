"""Markdown files whose page would take hours are sent as they are."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import markdown
import pytest
from support import web
from support.server import Start

from ewe.config.settings import Config
from ewe.features.markdown import convert, pages
from ewe.features.markdown.book import MAX_FILE_BYTES
from ewe.features.markdown.convert import EXTENSIONS, HEADING, LIBRARY, TAG, TooSlow, bounded
from ewe.features.markdown.layout import PRINT_STYLE, STYLE
from ewe.features.markdown.pages import MarkdownPages, OpenedPage
from ewe.features.static import Static

HOSTILE = ["[", "![", "<a@", "<![CDATA[", "\\", "# a\n", "*_", "`a", "a  \n", "[a](<b", "a\n=\n", "[TOC]\n\n"]


@pytest.mark.parametrize("model", ["serial", "thread", "pool", "asyncio"])
def test_a_page_that_takes_too_long(start: Start, model: str) -> None:
    """The source is sent, the page is not tried twice, and other pages are made."""
    server = start(model, "--markdown", constants={"ewe.features.markdown.convert.PAGE_CPU_S": 0.3})
    (server.root / "good.md").write_text("# A page\n\nof *words*")
    (server.root / "slow.md").write_text("[" * MAX_FILE_BYTES)
    (server.root / "nested.md").write_text("".join(" " * 4 * depth + "* a\n" for depth in range(300)))
    url = f"http://127.0.0.1:{server.port}"
    for name in ("slow", "slow", "nested"):
        answer = web.get(f"{url}/{name}.md", timeout=60)
        assert answer.headers["content-type"].startswith("text/markdown")
        assert answer.content == (server.root / f"{name}.md").read_bytes()
    assert "<em>words</em>" in web.get(f"{url}/good.md").text
    log = server.log()
    assert log.count("'slow.md' is sent as it is: its page takes more than 0.3 s") == 1
    assert log.count("'nested.md' is sent as it is") == 1 and "Traceback" not in log


def test_the_cached_pages_are_bounded_by_their_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_CACHED_BYTES", 2000)
    config = Config(documentroot=str(tmp_path))
    handler = MarkdownPages(config, Static(config), lambda path: None)
    kept = []
    for name in "abc":
        file = tmp_path / f"{name}.md"
        file.write_text("x" * 1500)
        handler.convert_file(f"/{name}.md", OpenedPage(file.stat(), None, file.read_bytes()))
        kept.append(len(handler.cached_pages))
    assert kept == [1, 2, 1]


def test_a_box_that_scrolls_has_a_shadow_where_more_follows() -> None:
    """A table that the edge of a narrow screen cuts would look whole. Paper does not scroll."""
    rule = STYLE.partition("pre, .table, main > table {")[2].partition("}")[0]
    assert rule.count(" local ") == rule.count(" scroll ") == rule.count("var(--shade)") == 2
    assert "pre, .table, main > table { background: var(--cover) }" in PRINT_STYLE


@pytest.mark.parametrize("text", HOSTILE)
def test_the_library_calls_functions_all_the_time(text: str) -> None:
    """The bound holds only then: else a page takes hours. Some versions of Python need no bound for some texts."""
    source = text * (MAX_FILE_BYTES // len(text))
    with suppress(TooSlow):
        bounded(lambda: markdown.markdown(source, extensions=EXTENSIONS), 0.1)
    assert sys.getprofile() is None


def test_a_heading_is_found_in_bounded_time() -> None:
    """A heading that is never closed, with tags that are never closed, is found in bounded time, too."""
    for text in (
        "<h1>" * (MAX_FILE_BYTES // 4),
        "<h1 " * (MAX_FILE_BYTES // 4),
        "<h1>" + "<" * MAX_FILE_BYTES,
    ):
        heading = HEADING.search(text)
        TAG.sub("", heading[1] if heading else text)
    heading = HEADING.search('<p><h2 id="a">A <em>word</em></h2><h1>b</h1>')
    assert heading is not None and TAG.sub("", heading[1]) == "A word"


def test_the_bound_survives_a_callback_of_the_garbage_collector() -> None:
    """Python drops an exception that such a callback raises, and would drop the bound with it."""
    begun: list[str] = []

    def called(phase: str, _: object) -> None:
        begun.append(phase)
        ends = time.thread_time() + 0.02
        while time.thread_time() < ends:
            pass

    def slow() -> str:
        while True:
            gc.collect()
            markdown.markdown("a *b*", extensions=EXTENSIONS)

    gc.callbacks.append(called)
    try:
        with pytest.raises(TooSlow):
            bounded(slow, 0.05)
    finally:
        gc.callbacks.remove(called)
    assert begun


def test_the_bound_is_not_raised_in_a_generator_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would write a traceback and ignore the exception."""
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: ignored.append(what.exc_value))
    monkeypatch.setitem(globals(), "__name__", f"{LIBRARY[0]}played")
    begin = time.thread_time()

    def numbers() -> Iterator[int]:
        try:
            yield 1
        finally:
            while time.thread_time() < begin + 0.1:
                pass
            len("a call of a function, when it is late")

    def first() -> int:
        return next(numbers())

    with pytest.raises(TooSlow):
        bounded(lambda: "".join(str(first()) for _ in range(10**9)), 0.02)
    assert not ignored


@pytest.mark.parametrize(
    "text",
    ["# a\n" * 300 + "[TOC]\n\n" * 300, f"[x]: http://a/{'b' * 1000}\n\n" + "[x], " * 600],
)
def test_a_short_text_makes_no_large_page(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the limits of ewe, 256 KB could become many gigabytes: all headings at each [TOC], 20,000 times."""
    monkeypatch.setattr(convert, "MAX_PAGE_CHARS", 500_000)
    assert convert.convert(markdown, text, "/a.md", "a.md") is None
    assert convert.convert(markdown, text[: len(text) // 4], "/a.md", "a.md") is not None
