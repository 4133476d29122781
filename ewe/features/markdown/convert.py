"""From Markdown to HTML, in bounded time.

HTML in a Markdown file stays HTML, as in a file *.html beside it: a user who may write one may write the other.

**Links.** The source of a page may lie in a repository, where `../src/main.py` is a file. A server of the pages
alone would answer 404. The rule: a relative link that leaves the directory that is served (with `..` above its
top) is shown as text with its path, and is no link. All other links stay as they are written. Links between pages
therefore work here as on GitHub, since the anchors are GitHub's, too (outline.py).

**Tables** are put into a box, which scrolls if the table is wider than the page.

Possible failures: the library needs hours for some texts, such as 256 KB of "[". Its time for a page is therefore
bounded (PAGE_CPU_S). A running call of the library cannot be stopped from outside, but it calls other functions all
the time, and bounded() checks the clock at these calls. A short text can also make a page of many gigabytes, so the
size of a page is bounded (MAX_PAGE_CHARS). Above a bound, ewe sends the file itself, like a file that is too
large, until the file changes.
"""

from __future__ import annotations

import html
import re
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree.ElementTree import Element

from ewe import logger
from ewe.features.markdown.outline import Anchors, Heading
from ewe.http.target import percent_decode

if TYPE_CHECKING:
    from types import FrameType

PAGE_CPU_S = 5.0  # CPU time for one page
MAX_PAGE_CHARS = 8 * 1024 * 1024  # characters of one page, without its raw HTML
ELEMENT_CHARS = 10  # characters that each element counts for, besides its text and its attributes
CO_GENERATOR = 0x20  # of the module inspect: the code of a generator
LOOK_S = 0.01  # seconds between two looks at the clock of the thread, which costs a system call
LIBRARY = ("markdown.", "html.", "_markupbase", "xml.")  # the modules of Markdown and of its parser
EXTENSIONS = ["fenced_code", "sane_lists", "tables", "toc"]
# If the pattern does not match, the search must not scan the rest of the page again at each "<".
HEADING = re.compile(r"<h[1-6](?:\s[^<>]*)?>(.*?)(?:</h[1-6]>|\Z)", re.DOTALL)
TAG = re.compile(r"<[^<>]*>")
ABSOLUTE = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*:|[/?#]|\Z"
)  # the beginning of a link that is no relative path


class Converted(NamedTuple):
    """A text as HTML. title: of its first heading, as HTML, or "". headings: those of level 2 and 3."""

    body: str
    title: str
    headings: list[Heading]


def convert(library: Any, text: str, path: str, name: str) -> Converted | None:
    """Return a Markdown text as HTML; None if that takes too long, or if the page is too large.

    library: the module markdown. path: the path of the file below the directory that is served. name: of the file,
    for the log.
    """
    markdown = library.Markdown(extensions=EXTENSIONS, extension_configs={"toc": {"slugify": Anchors()}})
    markdown.treeprocessors.register(LinksAndTables(path.count("/") - 1), "ewe", 1)
    try:
        body = bounded(lambda: markdown.convert(text), PAGE_CPU_S)
    except (TooSlow, PageTooLarge, RecursionError):
        logger.errors.warning(
            f"{name!r} is sent as it is: its page takes more than {PAGE_CPU_S:g} s, has more than"
            f" {MAX_PAGE_CHARS >> 20} MB, or is nested too deeply (markdown)"
        )
        return None
    body = body.replace("<pre>", '<pre tabindex="0">')  # to scroll long lines with the keyboard
    heading = HEADING.search(body)
    return Converted(body, TAG.sub("", heading[1]) if heading else "", list(flat(markdown.toc_tokens)))


def flat(tokens: list[Any]) -> list[Heading]:
    """Return the headings of level 2 and 3 in the library's tree, which is at most six levels deep, in order."""
    found = []
    for token in tokens:
        if token["level"] in (2, 3):
            found.append(Heading(token["level"], html.unescape(token["name"]), token["id"]))
        found += flat(token["children"])
    return found


class LinksAndTables:
    """A step of the library: it makes text of links that leave the directory, and puts tables into boxes."""

    def __init__(self, depth: int) -> None:
        """depth: the number of directories between the page and the top of the served directory."""
        self.depth = depth

    def run(self, root: Element) -> None:
        """Change the tree of a page: <table> gets a <div> around it; <a> that leaves the directory becomes <span>.

        In an ElementTree, `tail` is the text after an element's end. It must stay behind the new <div>.
        """
        check_size(root)
        for element in list(root.iter()):
            for at, child in enumerate(element):
                if child.tag == "table":
                    element[at] = box = Element("div", {"class": "table", "tabindex": "0"})
                    box.append(child)
                    box.tail, child.tail = child.tail, None
            if element.tag == "a" and leaves(target := element.get("href", ""), self.depth):
                element.tag = "span"
                element.attrib.clear()
                element.attrib["class"] = "outside"
                self.name_target(element, target)

    def name_target(self, element: Element, target: str) -> None:
        """Add the path of a link to its text, or replace the text if it is the end of the path."""
        file = target.partition("#")[0]
        path = file.lstrip("./").rstrip("/") or file
        element.set("title", file)
        text = "".join(element.itertext())
        if path.endswith(text):
            del element[:]
            element.text = path
        elif not text.endswith(path):
            code = Element("code")
            code.text, code.tail = path, ")"
            if len(element):
                element[-1].tail = f"{element[-1].tail or ''} ("
            else:
                element.text = f"{element.text or ''} ("
            element.append(code)


def check_size(root: Element) -> None:
    """Raise PageTooLarge for a tree that becomes a page of more than MAX_PAGE_CHARS.

    A short text can make a large page: each `[TOC]` stands for all headings, and each use of a reference for its
    whole target. The elements of all `[TOC]` are the same objects. They take no memory here, but in the page.
    """
    size = 0
    for _ in root.iter():  # without a call: bounded() makes each call slow
        size += ELEMENT_CHARS
        if size > MAX_PAGE_CHARS:
            raise PageTooLarge
    for element in root.iter():
        for text in (element.text, element.tail, *element.attrib.values()):
            if text:
                size += len(text)
        if size > MAX_PAGE_CHARS:
            raise PageTooLarge


def leaves(target: str, depth: int) -> bool:
    """Return whether a relative link leads above the top. depth: of the page. Browsers take \\ for a slash."""
    if ABSOLUTE.match(target) is not None or ".." not in (path := decoded(target)):
        return False
    for segment in path.replace("\\", "/").split("/"):
        if segment == "..":
            depth -= 1
            if depth < 0:
                return True
        elif segment not in ("", "."):
            depth += 1
    return False


def decoded(target: str) -> str:
    """Return the path of a link, percent-decoded."""
    path = target.partition("#")[0].partition("?")[0]
    return percent_decode(path.encode().decode("latin-1")) if "%" in path else path


class PageTooLarge(Exception):
    """A page has more characters than its limit."""


class TooSlow(Exception):
    """A call has used more CPU time than its limit."""


def bounded(function: Callable[[], str], seconds: float) -> str:
    """Return function(), called in this thread. Raises TooSlow if it uses more than `seconds` of CPU time.

    The function must call other functions all the time: only then is the clock checked. TooSlow is raised only in
    the library's code, and in no generator. In a callback of the garbage collector, and in a generator that is
    closed, Python would report and ignore the exception, and the limit would have no effect.
    """
    ends = time.thread_time() + seconds
    next_look, is_late = 0.0, False

    def check_clock(frame: FrameType, *_: object) -> None:
        nonlocal next_look, is_late
        if is_late:
            is_generator = frame.f_code.co_flags & CO_GENERATOR
            if not is_generator and frame.f_globals.get("__name__", "").startswith(LIBRARY):
                raise TooSlow
        elif (now := time.monotonic()) >= next_look:
            next_look, is_late = now + LOOK_S, time.thread_time() > ends

    before = sys.getprofile()
    sys.setprofile(check_clock)
    try:
        return function()
    finally:
        sys.setprofile(before)
