"""The search of a book, by the titles and headings of its pages: `README.md?q=two+words`.

A heading is found if it contains all words of the query that the title of its page does not contain. Letter case
does not matter, and no character has a special meaning. The headings are in memory (book.py), so a search takes
milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ewe.features.indexes import CONTROLS, as_unicode, parameters
from ewe.features.markdown.book import relative
from ewe.features.markdown.layout import MAX_QUERY_CHARS, bare, header_of
from ewe.http.error_pages import html_escape
from ewe.http.target import percent_decode, percent_encode

if TYPE_CHECKING:
    from ewe.features.markdown.book import Book, Chapter
    from ewe.features.markdown.outline import Heading

MAX_WORDS = 10  # of a search; each is looked for on every page
MAX_RESULTS = 50  # pages
MAX_SHOWN = 12  # headings of one page


class PageMatch(NamedTuple):
    """A page that a search finds. headings: those with all words of the query that the title lacks.

    in_title: the title has all words. The headings are then those that have all words, too.
    """

    page: Chapter
    in_title: bool
    headings: list[Heading]


def query_of(query: str) -> str | None:
    """Return the words that a form has sent; None if the query of the URL has no `q`."""
    value = parameters(query).get("q")
    if value is None:
        return None
    # Nearly every character is at most %XX%XX%XX in a URL.
    words = as_unicode(percent_decode(value[: 9 * MAX_QUERY_CHARS].replace("+", " ")))
    return words.translate(CONTROLS)[:MAX_QUERY_CHARS].strip()


def results(book: Book, query: str, here: str) -> str:
    """Return the page of results. here: the path of the page whose form has sent the query."""
    words = query.casefold().split()[:MAX_WORDS]
    found = list(filter(None, (match_in_page(page, words) for page in book.pages.values())))
    found.sort(key=lambda match: not match.in_title)
    items = "".join(result_item(match, here) for match in found[:MAX_RESULTS])
    count = f"{len(found) or 'No'} page{'' if len(found) == 1 else 's'}"
    summary = f"<p>{count} with <b>{html_escape(query)}</b> in the title or a heading."
    if len(found) > MAX_RESULTS:
        summary += f" The first {MAX_RESULTS} are shown."
    if book.is_cut:
        summary += f" The search covers {len(book.pages)} pages; more exist."
    body = f'<h1>Search</h1>\n{summary}</p>\n<ol class="found">\n{items}</ol>'
    return bare(body, f"Search: {html_escape(query)}", header_of(book, here, query))


def match_in_page(page: Chapter, words: list[str]) -> PageMatch | None:
    """Return how a page matches the words of a query; None if it does not match."""
    title = page.title.casefold()
    missing = [word for word in words if word not in title]
    headings = []
    for heading in page.headings:
        text = heading.text.casefold()
        # If the title has all words, a heading needs all of them, too.
        if all(word in text for word in missing or words) and heading.text != page.title:
            headings.append(heading)
    return PageMatch(page, not missing, headings) if words and (headings or not missing) else None


def result_item(match: PageMatch, here: str) -> str:
    """Return one result. here: as in results()."""
    headings = match.headings
    link = relative(match.page.path, here)
    shown = "".join(
        f'<li><a href="{link}#{percent_encode(each.anchor)}">{html_escape(each.text)}</a>\n'
        for each in headings[:MAX_SHOWN]
    )
    rest = f"<li>and {len(headings) - MAX_SHOWN} more\n" if len(headings) > MAX_SHOWN else ""
    inner = f"<ul>\n{shown}{rest}</ul>" if headings else ""
    return f'<li><a href="{link}">{html_escape(match.page.title)}</a>{inner}\n'
