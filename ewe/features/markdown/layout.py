"""The layout of pages: from HTML of a text to a whole page, which contains its style and loads nothing.

    ┌──────────────────────────────────────┐
    │ contents                      search │   of a book only
    ├───────────┬──────────────────────────┤
    │ headings  │ the text                 │   on a narrow screen, the headings are folded above the text
    │           │                          │
    │           │ ← previous        next → │   of a book only
    └───────────┴──────────────────────────┘

On a narrow screen the page itself never scrolls sideways: tables and blocks of code scroll in boxes, and long words
are broken. A shadow at an edge of a box shows that it has more at that side. On paper there is only the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.features.markdown.book import relative
from ewe.http.error_pages import html_document, html_escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ewe.features.markdown.book import Book
    from ewe.features.markdown.outline import Heading

MIN_HEADINGS = 3  # a page with fewer headings needs no list of them
MAX_HEADINGS = 300  # in the list beside a page
MAX_QUERY_CHARS = 200  # of the words in the form of the search
STYLE = """:root { --shade: rgb(0 0 0 / .28) }
@media (prefers-color-scheme: dark) { :root { --shade: rgb(255 255 255 / .3) } }
html { background: var(--paper); color: var(--ink); scroll-padding-top: 1rem; -webkit-text-size-adjust: 100% }
body { max-width: 42rem; margin: 2rem auto; padding: 0 1rem; font: 1.05rem/1.55 system-ui, sans-serif }
main, header, footer { overflow-wrap: anywhere }
a { color: var(--accent) }
h1, h2, h3 { line-height: 1.2 }
h2 { margin-top: 2.2em }
h3 { margin-top: 1.8em }
pre, code { font: .92em/1.45 ui-monospace, monospace; background: var(--panel); border-radius: .25rem }
code { padding: .1em .3em }
pre { padding: .8rem 1rem; overflow-x: auto; overflow-wrap: normal }
pre code { padding: 0; background: none; font-size: 1em }
.table { overflow-x: auto; margin: 1em 0; font-size: .95em }
table { border-collapse: collapse; overflow-wrap: break-word }
.table:has(th:nth-child(3)) table { min-width: 30rem }
.table:has(th:nth-child(4)) table { min-width: 42rem }
main > table { display: block; overflow-x: auto }
/* The covers move with the contents of a box, the shadows stay at its edges: one is seen where more follows. */
pre, .table, main > table { --cover: var(--paper); background: no-repeat local left / 3rem 100%
  linear-gradient(to right, var(--cover) 30%, transparent), no-repeat local right / 3rem 100%
  linear-gradient(to left, var(--cover) 30%, transparent), no-repeat scroll left / 1rem 100%
  linear-gradient(to right, var(--shade), transparent), no-repeat scroll right / 1rem 100%
  linear-gradient(to left, var(--shade), transparent), var(--cover) }
pre { --cover: var(--panel) }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }
th { border-bottom-width: 2px }
img { max-width: 100%; height: auto }
blockquote { margin-left: 0; padding-left: 1rem; border-left: .25rem solid var(--line) }
.outside { color: var(--quiet) }
footer { margin-top: 3rem; font-size: .85rem; color: var(--quiet) }
"""
# Only for pages with a list of headings, or of a book
BOOK_STYLE = """
header { display: flex; flex-wrap: wrap; gap: .6rem 1.5rem; align-items: center; justify-content: space-between;
  margin: -1rem 0 2rem; padding-bottom: .8rem; border-bottom: 1px solid var(--line) }
header a { font-weight: 650; text-decoration: none }
form { display: flex; gap: .4rem; flex: 0 1 20rem }
input, button { font: inherit; font-size: 1rem; color: inherit; background: var(--panel); border-radius: .3rem;
  border: 1px solid var(--line); padding: .25rem .6rem }
input { flex: 1; min-width: 0 }
button { cursor: pointer }
aside { font-size: .92rem; line-height: 1.35; margin-bottom: 2rem }
aside details { background: var(--panel); border-radius: .3rem; padding: .5rem .9rem }
summary { font-weight: 650; cursor: pointer }
aside ul { list-style: none; margin: .6rem 0 .2rem; padding: 0 }
aside li { margin: .45rem 0; overflow-wrap: anywhere }
aside .h3 { padding-left: 1rem }
aside a, .pages a { text-decoration: none }
a:hover, a:focus-visible { text-decoration: underline; text-underline-offset: .15em }
.pages { display: flex; flex-wrap: wrap; gap: .8rem; justify-content: space-between; margin-top: 3rem;
  padding-top: 1rem; border-top: 1px solid var(--line) }
.pages a[rel=next] { margin-left: auto; text-align: right }
.found { padding-left: 0; list-style: none }
.found > li { margin: 1.1rem 0 }
.found ul { margin: .2rem 0 }
@media (min-width: 62rem) {
  .with-list { max-width: 60rem; display: grid; column-gap: 3.5rem;
    grid-template: "h h" auto "a m" 1fr "a f" auto / 14rem minmax(0, 42rem) }
  .with-list header { grid-area: h }
  .with-list aside { grid-area: a; position: sticky; top: 1rem; align-self: start; max-height: calc(100vh - 2rem);
    overflow-y: auto; margin: 0 }
  .with-list main { grid-area: m }
  .with-list main > :first-child { margin-top: 0 }
  .with-list footer { grid-area: f }
  aside details { background: none; padding: 0 }
}
/* A browser that cannot open the list by its style leaves it to the reader. */
@media (min-width: 62rem) { @supports selector(::details-content) {
  aside details::details-content { content-visibility: visible; block-size: auto }
  aside summary { list-style: none; pointer-events: none }
} }
"""
PRINT_STYLE = """
article + article { margin-top: 5rem; border-top: 1px solid var(--line) }
@page { margin: 18mm 16mm }
@media print {
  :root { color-scheme: light; --paper: #fff; --panel: #f3f3f0; --ink: #000; --quiet: #444; --line: #aaa;
    --accent: #0d4f30 }
  html { font-size: 10pt }
  body, .with-list { display: block; max-width: none; margin: 0; padding: 0; font-size: 1rem }
  header, aside, footer, .pages { display: none }
  article + article { margin: 0; border: 0 }
  h1 { break-before: page }
  main > h1:first-child, article:first-child > h1:first-child { break-before: auto }
  h1, h2, h3 { break-after: avoid }
  pre, tr, img, svg { break-inside: avoid }
  pre { white-space: pre-wrap; overflow-wrap: anywhere }
  .table { overflow: visible }
  pre, .table, main > table { background: var(--cover) }
  .table table { min-width: 0; font-size: .85em }
}
"""
BODY = """<body{kind}>
{header}{aside}<main>
{content}
{pages}</main>
{footer}</body>"""


def page(
    body: str,
    title: str,
    language: str,
    headings: Sequence[Heading],
    path: str,
    book: Book | None,
) -> str:
    """Return the whole page of one Markdown file. body, title: HTML.

    language: a language tag such as "en", for the attribute `lang`. headings: those of levels 2 and 3, for the list
    beside the text. path: the URL path of the page, from which its links are relative. book: the book that the page
    belongs to; None for a page without navigation.
    """
    aside = listed(headings)
    links = '<a href="?source">The Markdown source</a>'
    header = pages = ""
    if book is not None:
        header = header_of(book, path)
        pages = neighbours(book, path)
        links += f' · <a href="{relative(book.contents, path)}?print">All pages in one, to print</a>'
    html = BODY.format(
        kind=' class="with-list"' if aside else "",
        header=header,
        aside=aside,
        content=body,
        pages=pages,
        footer=f'<footer lang="en">{links}</footer>\n',
    )
    style = STYLE + (BOOK_STYLE if aside or header else "") + PRINT_STYLE
    return html_document(title, style, html, language)


def bare(body: str, title: str, header: str, language: str = "en") -> str:
    """Return a page that is not made of one Markdown file. body, title, header: HTML."""
    html = BODY.format(kind="", header=header, aside="", content=body, pages="", footer="")
    return html_document(title, STYLE + BOOK_STYLE + PRINT_STYLE, html, language)


def header_of(book: Book, path: str, query: str = "") -> str:
    """Return the link to the contents, and the form of the search. query: the words in the form; "" for none."""
    link = relative(book.contents, path)
    here = ' aria-current="page"' if path == book.contents and not query else ""
    return (
        f'<header lang="en">\n<a href="{link}"{here}>{html_escape(book.pages[book.contents].title)}</a>\n'
        f'<form role="search" action="{link}"><input type="search" name="q" aria-label="Search"'
        f' maxlength="{MAX_QUERY_CHARS}" required value="{html_escape(query)}"> <button>Search</button></form>\n'
        "</header>\n"
    )


def listed(headings: Sequence[Heading]) -> str:
    """Return the list of the headings; "" if they are too few."""
    if len(headings) < MIN_HEADINGS:
        return ""
    items = "".join(
        f'<li class="h{each.level}"><a href="#{html_escape(each.anchor)}">{html_escape(each.text)}</a>\n'
        for each in headings[:MAX_HEADINGS]
    )
    return (
        '<aside>\n<nav aria-label="On this page"><details><summary lang="en">On this page</summary>\n'
        f"<ul>\n{items}</ul></details></nav>\n</aside>\n"
    )


def neighbours(book: Book, path: str) -> str:
    """Return the links to the previous and the next page."""
    links = [
        f'<a rel="{relation}" href="{relative(each.path, path)}">{before}{html_escape(each.title)}{after}</a>\n'
        for relation, each, before, after in zip(
            ("prev", "next"), book.neighbours(path), ("← ", ""), ("", " →"), strict=True
        )
        if each is not None
    ]
    return f'<nav class="pages" aria-label="Pages">\n{"".join(links)}</nav>\n' if links else ""
