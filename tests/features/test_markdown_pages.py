"""Markdown files whose page would take hours are sent as they are."""

from __future__ import annotations

import gc
import sys
import time
from contextlib import suppress

import markdown
import pytest
from support import web
from support.server import Start

from ewe.features.markdown_pages import EXTENSIONS, HEADING, LARGEST, TAG, TooSlow, bounded

HOSTILE = ["[", "![", "<a@", "<![CDATA[", "\\", "# a\n", "*_", "`a", "a  \n", "[a](<b", "a\n=\n", "[TOC]\n\n"]


@pytest.mark.parametrize("model", ["serial", "thread", "pool", "asyncio"])
def test_a_page_that_takes_too_long(start: Start, model: str) -> None:
    """Its source is sent, it is not tried twice, and others have their pages."""
    server = start(model, "--markdown", constants={"ewe.features.markdown_pages.SECONDS": 0.5})
    (server.root / "good.md").write_text("# A page\n\nof *words*")
    (server.root / "slow.md").write_text("[" * LARGEST)
    (server.root / "nested.md").write_text("".join(" " * 4 * depth + "* a\n" for depth in range(300)))
    url = f"http://127.0.0.1:{server.port}"
    for name in ("slow", "slow", "nested"):
        answer = web.get(f"{url}/{name}.md", timeout=60)
        assert answer.headers["content-type"].startswith("text/markdown")
        assert answer.content == (server.root / f"{name}.md").read_bytes()
    assert "<em>words</em>" in web.get(f"{url}/good.md").text
    log = server.log()
    assert log.count("'slow.md' is sent as it is: its page takes more than 0.5 s") == 1
    assert log.count("'nested.md' is sent as it is") == 1 and "Traceback" not in log


@pytest.mark.parametrize("text", HOSTILE)
def test_the_library_calls_functions_all_the_time(text: str) -> None:
    """The bound holds only then: else a page takes hours. Some versions of Python need no bound for some texts."""
    source = text * (LARGEST // len(text))
    with suppress(TooSlow):
        bounded(lambda: markdown.markdown(source, extensions=EXTENSIONS), 0.1)
    assert sys.getprofile() is None


def test_a_heading_is_found_in_bounded_time() -> None:
    """Also one that is never closed, of tags that are never closed."""
    for text in ("<h1>" * (LARGEST // 4), "<h1 " * (LARGEST // 4), "<h1>" + "<" * LARGEST):
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
