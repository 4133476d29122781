"""All pages of a book in one document, to read without a network, or to print: `README.md?print`.

The pages come in the order of the contents, each as an article. Two pages may have the same anchors, so each anchor
gets the name of its page: #guards of sites.md becomes #sites.md:guards. Links between the pages become links inside
of the document.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from ewe.features.markdown.book import above, inside, relative
from ewe.features.markdown.convert import ABSOLUTE
from ewe.features.markdown.layout import bare
from ewe.http.error_pages import html_escape
from ewe.http.target import percent_encode

if TYPE_CHECKING:
    from ewe.features.markdown.book import Book

MAX_ARTICLES = 150  # fewer than the pages in the cache, so that a second document finds them there
MAX_BYTES = 8 * 1024 * 1024  # HTML of the pages together
TAG = re.compile(r"<[A-Za-z][^<>]*>")
ATTRIBUTE = re.compile(r'(\s(?:id|name|href|src)=")([^"]*)(?=")')


def printed(book: Book, language: str, body_of: Callable[[str], bytes | None]) -> str:
    """Return the document. language: of the contents.

    body_of: returns the HTML of the page at a path; None if it cannot be made, or if there is no time left.
    """
    articles: list[str] = []
    left_out: list[str] = []
    size = 0
    for path in book.order:
        body = body_of(path) if size < MAX_BYTES and len(articles) < MAX_ARTICLES else None
        if body is None:
            page = book.pages[path]
            left_out.append(f'<li><a href="{relative(path, book.contents)}">{html_escape(page.title)}</a>\n')
            continue
        size += len(body)
        text = PageInDocument(book, path).text(body.decode())
        articles.append(f'<article id="{anchor_of(book, path)}">\n{text}\n</article>')
    title = html_escape(book.pages[book.contents].title)
    if left_out:
        articles.append(
            '<article lang="en"><p>With these pages, the document would be too long:</p>\n'
            f"<ul>\n{''.join(left_out)}</ul></article>"
        )
    return bare("\n".join(articles), title, "", language)


def anchor_of(book: Book, path: str) -> str:
    """Return the anchor of a page in the document."""
    return percent_encode(path[len(book.directory) :])


class PageInDocument:
    """Changes the anchors, links and pictures of one page for the document."""

    def __init__(self, book: Book, path: str) -> None:
        """path: of the page."""
        self.book = book
        self.anchor = anchor_of(book, path)
        self.directory = above(path)
        # The document has the URL of the contents, perhaps in another directory than the page. This prefix leads
        # from there to the page's directory. It comes in front of each relative link and picture of the page.
        self.link_prefix = relative(self.directory, book.contents)

    def text(self, body: str) -> str:
        """Return the HTML of a page, changed."""
        return TAG.sub(lambda tag: ATTRIBUTE.sub(self.attribute, tag[0]), body)

    def attribute(self, match: re.Match[str]) -> str:
        """Return an attribute, changed. match: of ATTRIBUTE: ` href="` and the value, without the last quote."""
        begin, value = match[1], match[2]
        if begin.endswith(('id="', 'name="')):
            return f"{begin}{self.anchor}:{value}"
        if value.startswith("#"):
            return f"{begin}#{self.anchor}:{value[1:]}"
        if not value or ABSOLUTE.match(value) is not None:
            return match[0]
        if begin.endswith('href="'):
            file, mark, fragment = value.partition("#")
            path = inside(self.book.directory, self.directory, file) if "?" not in file else ""
            if path in self.book.positions:
                return f"{begin}#{anchor_of(self.book, path)}" + (f":{fragment}" if mark else "")
        return f"{begin}{self.link_prefix}{value}"
