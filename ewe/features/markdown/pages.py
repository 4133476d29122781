"""The handler of Markdown pages: conditions, the cache, and the pages that a book has besides.

    /notes.md            the page of a file             /notes.md?source    the file itself
    /notes.md?q=words    the search of its book         /README.md?print    all pages of the book in one
    /                    the contents, if the directory is a book and has no index file

A page is made once for each version of its file, and cached with its entity tag, so that a reload in the browser
gets a 304. The navigation on a page depends on other files, too. ewe therefore checks the book of a cached page
once a second (CachedPage.check_at). If the book has changed, the page is put together again; its text is converted
only once.

The entity tag contains a checksum of the page, because a page changes with its book, and with the version of ewe.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ewe.bounded import BoundedDict, TimedCache
from ewe.features.indexes import as_unicode
from ewe.features.markdown import layout
from ewe.features.markdown.book import CHECK_S, MAX_FILE_BYTES, Book, Books
from ewe.features.markdown.convert import Converted, convert
from ewe.features.markdown.print import printed
from ewe.features.markdown.search import query_of, results
from ewe.features.static import File, Static, file_version, hidden
from ewe.gateway.turns import Turns
from ewe.http import conditional
from ewe.http.dates import http_date
from ewe.http.error_pages import error_page, html_escape, link_page
from ewe.http.messages import Response
from ewe.http.status import HTTPError
from ewe.http.target import percent_encode

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.base import Explanation
    from ewe.http.messages import Request
    from ewe.streams.base import Stream

MAX_PAGES = 200  # pages in memory
MAX_CACHED_BYTES = 32 * 1024 * 1024  # HTML of all these pages but the newest
MAX_DIRECTORIES = 1_000  # directories in memory, with the contents of their books
MAX_DOCUMENTS = 4  # books in memory, each as one document
DOCUMENT_S = 10.0  # CPU time for the pages of one document that are not in the cache
PAGE_TURN_TIMEOUT_S = 60.0  # a page takes PAGE_CPU_S at most, which is longer on a busy machine
PAGE_TURNS, DOCUMENT_TURNS = Turns(PAGE_TURN_TIMEOUT_S), Turns()
KIND = "text/html; charset=utf-8"


class CachedPage:
    """A page in the cache. body: the HTML of the text, in bytes; None if the file is sent as it is.

    converted: the title and the headings of the text. response: with the whole page, None before assemble(). etag,
    modified: its validators. book_version: of the book of its navigation, 0 without a book; None before assemble().
    check_at: the monotonic() at which the book is checked.
    """

    __slots__ = ("body", "book_version", "check_at", "converted", "etag", "file", "modified", "response")

    def __init__(self, file: File, converted: Converted | None) -> None:
        self.file = file
        self.body = converted.body.encode("utf-8", "replace") if converted is not None else None
        # The body is kept once, as bytes.
        self.converted = converted._replace(body="") if converted is not None else None
        self.check_at = 0.0
        self.book_version: int | None = None
        self.etag, self.modified = "", file.modified
        self.response: Response | None = None


class OpenedPage(NamedTuple):
    """The file of a page when it was opened. page: the one in the cache. source: without one, the file's bytes."""

    file_status: os.stat_result
    page: CachedPage | None
    source: bytes


class MarkdownPages:
    """Answers for the Markdown files below a directory."""

    def __init__(self, config: Config, static: Static, zone: Callable[[str], object]) -> None:
        """zone: returns a value that is the same for paths with the same guards (Books needs it).

        Raises ValueError if the package markdown is not installed.
        """
        try:
            import markdown
        except ImportError:
            raise ValueError(
                "the package markdown is not installed: pip install markdown (markdown)"
            ) from None
        self.library = markdown
        self.static = static
        self.languages = config.languages
        self.books = Books(static, zone)
        # (path, version of the file) -> page
        self.cached_pages: BoundedDict[tuple[str, tuple[int, ...]], CachedPage] = BoundedDict(MAX_PAGES)
        # (path, version of the book) -> the HTML of all its pages in one document (?print)
        self.documents: BoundedDict[tuple[str, int], bytes] = BoundedDict(MAX_DOCUMENTS)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the page of a Markdown file; None for other paths, and for ?source. Raises HTTPError."""
        path, query = request.path, request.query
        if not path.endswith(".md") or query == "source" or request.method not in ("GET", "HEAD"):
            return None
        if hidden(path) or (opened := self.open(path)) is None:
            return None
        page = opened.page
        if query is not None and (made := await io.call(self.search_or_print_page, path, query)) is not None:
            etag = f'"{zlib.crc32(made):x}-{len(made):x}"'
            return answer(request, response_with(made, etag), etag, None)
        if page is None or page.check_at <= time.monotonic():
            page = await io.call(self.renewed, path, opened)
        return answer(request, page.response, page.etag, page.modified) if page.response is not None else None

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the line about the Markdown file that answers. Raises HTTPError(403, 404)."""
        path = request.path
        is_page = (
            path.endswith(".md")
            and request.query != "source"
            and request.method in ("GET", "HEAD")
            and not hidden(path)
            and self.open(path) is not None
        )
        if is_page:
            yield f"  answer    the page of {self.static.name(path)}   (markdown)"
        return is_page

    def open(self, path: str) -> OpenedPage | None:
        """Open the file of a page, and close it again; None: no page can be made. Raises HTTPError(403, 404)."""
        if (descriptor := self.static.open(self.static.name(path))) is None:
            return None
        try:
            file_status = os.fstat(descriptor)
            if not stat.S_ISREG(file_status.st_mode) or file_status.st_size > MAX_FILE_BYTES:
                return None
            page = self.cached_pages.get((path, file_version(file_status)))
            source = os.read(descriptor, MAX_FILE_BYTES) if page is None else b""
            return OpenedPage(file_status, page, source)
        finally:
            os.close(descriptor)

    def renewed(self, path: str, opened: OpenedPage) -> CachedPage:
        """Return the page of a file, assembled again if the book of its navigation has changed.

        May take seconds.
        """
        page = opened.page or self.convert_file(path, opened)
        if page.response is not None:  # a new page has none yet: other requests for it come here, too
            page.check_at = time.monotonic() + CHECK_S  # other requests get the page as it was
        if page.converted is not None and page.body is not None:
            book = self.books.book_of(path)
            version = book.version if book is not None else 0
            if version != page.book_version:
                self.assemble(page, path, book, is_new=page.book_version is None)
                page.book_version = version
        page.check_at = time.monotonic() + CHECK_S
        return page

    def convert_file(self, path: str, opened: OpenedPage) -> CachedPage:
        """Convert the text of a file; return its page, which is not put together yet.

        Many clients may ask for a new page at once: one thread converts it, and the others get it from the cache.
        """
        name, key = os.path.basename(path), (path, file_version(opened.file_status))
        with PAGE_TURNS.one_at_a_time():
            if (page := self.cached_pages.get(key)) is None:
                text = opened.source.decode("utf-8", "replace")
                made = convert(self.library, text, path[self.static.prefix_length :], as_unicode(name))
                if sum(len(each.body or b"") for each in list(self.cached_pages.values())) > MAX_CACHED_BYTES:
                    self.cached_pages.clear()
                page = self.cached_pages[key] = CachedPage(
                    File(path, opened.file_status, KIND, coding="", varies=False), made
                )
        return page

    def assemble(self, page: CachedPage, path: str, book: Book | None, *, is_new: bool) -> None:
        """Make the whole page from its parts. is_new: for the first time."""
        assert page.converted is not None and page.body is not None
        name = os.path.basename(path)
        title = page.converted.title or html_escape(as_unicode(name))
        whole = layout.page(
            page.body.decode(), title, self.language_of(name), page.converted.headings, path, book
        ).encode("utf-8", "replace")
        now = int(time.time())
        if not is_new:
            page.modified = float(now)  # the navigation changed, perhaps because a file was removed
        elif book is not None:
            page.modified = max(page.file.modified, float(min(book.modified, now)))
        page.etag = f'{page.file.etag[:-1]}-page-{zlib.crc32(whole):x}"'
        page.response = response_with(whole, page.etag, ("Last-Modified", http_date(page.modified)))

    def language_of(self, name: str) -> str:
        """Return the language of a file: the one in its name (page.de.md), or the site's first one, or English.

        A page must name its language, so that a screen reader can pronounce it. ewe does not guess it from the
        text.
        """
        suffixes = {part.lower() for part in name.split(".")[1:]}
        named = [each for each in self.languages if each.lower() in suffixes]
        return (*named, *self.languages, "en")[0]

    # The search, and the document with all pages

    def search_or_print_page(self, path: str, query: str) -> bytes | None:
        """Return the page for ?q= (results of the search), or for ?print of the contents (the whole book).

        Return None for another query, and for a path outside of all books.
        """
        words = query_of(query)
        if words is None and query != "print":
            return None
        book = self.books.book_of(path)
        if book is None:
            return None
        if words is not None:
            return results(book, words, path).encode("utf-8", "replace")
        return self.document(book) if path == book.contents else None

    def document(self, book: Book) -> bytes:
        """Return all pages of a book as one document, from the cache or in DOCUMENT_S of CPU time.

        One thread makes a document at a time. The others wait, and may then find it in the cache.
        """
        key = (book.contents, book.version)
        with DOCUMENT_TURNS.one_at_a_time():
            if (made := self.documents.get(key)) is None:
                deadline = time.thread_time() + DOCUMENT_S

                def body_of(path: str) -> bytes | None:
                    return self.body_of(path, deadline)

                made = printed(book, self.language_of(book.contents), body_of).encode("utf-8", "replace")
                # A document that lacks pages is not cached: the next request goes on with those.
                if time.thread_time() < deadline:
                    self.documents[key] = made
        return made

    def body_of(self, path: str, deadline: float) -> bytes | None:
        """Return the HTML of the page at a path; None if it has none.

        deadline: the time.thread_time() from which no file is converted any more. A page that is not in the cache
        is then None, too.
        """
        try:
            opened = self.open(path)
        except (HTTPError, OSError):
            opened = None
        if opened is None:
            return None
        page = opened.page
        if page is None and time.thread_time() < deadline:
            page = self.convert_file(path, opened)
        return page.body if page is not None else None


class Contents:
    """Redirects from a directory without an index file to the contents of its book, instead of listing it."""

    def __init__(self, static: Static, books: Books) -> None:
        self.static = static
        self.books = books
        # The path of a directory -> the path of its contents; "" for a directory that is no book
        self.contents_by_directory: TimedCache[str, str] = TimedCache(MAX_DIRECTORIES, CHECK_S)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the redirect; None for other paths, and for a query, such as that of a sorted listing."""
        if not request.path.endswith("/") or not self.may_be_book(request):
            return None
        contents = self.contents_by_directory.get(request.path, None)
        if contents is None:
            contents = self.contents_by_directory[request.path] = await io.call(
                self.contents_of, request.path
            )
        if not contents:
            return None
        target = percent_encode(contents)
        body = link_page("Contents", f'The contents are <a href="{html_escape(target)}">here</a>.')
        return Response(302, (("Location", target), ("Content-Type", KIND)), body)

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the line about the redirect."""
        is_asked = request.path.endswith("/") and self.may_be_book(request)
        contents = self.contents_of(request.path) if is_asked else ""
        if contents:
            yield f"  answer    302, Location: {percent_encode(contents)}   (markdown: the contents of a book)"
        return bool(contents)

    def may_be_book(self, request: Request) -> bool:
        """Return whether a request for a directory has no query, and the cache has no index file for it."""
        path = request.path
        return (
            request.query is None
            and request.method in ("GET", "HEAD")
            and path not in self.static.cache
            and not hidden(path)
        )

    def contents_of(self, path: str) -> str:
        """Return the path of the contents of a directory; "" if it is no book, or has an index file."""
        try:
            if self.static.has_index(path):
                return ""
            book = self.books.book(path, self.books.zone(path))
        except (HTTPError, OSError):
            return ""
        return book.contents if book is not None else ""


def answer(request: Request, response: Response, etag: str, modified: float | None) -> Response:
    """Return the response with a page; a 304 or a 412 if the conditions of the request ask for it.

    response: as response_with() returns it. etag, modified: the validators of the page. modified: the time of its
    last change in seconds since the epoch; None for a page without a date.
    """
    if not request.conditional:
        return response  # the Response keeps its encoded head for the next request
    status = conditional.status_by_conditions(request, etag, modified)
    if status == 412:
        return error_page(412, "the condition does not hold")
    # The first field is Content-Type. A 304 has no body, so it does not have that field.
    return Response(304, response.fields[1:]) if status == 304 else response


def response_with(page: bytes, etag: str, *more: tuple[str, str]) -> Response:
    """Return the response with a page. more: fields that a 304 has, too. Content-Type comes first, for answer()."""
    return Response(200, (("Content-Type", KIND), ("ETag", etag), *more), page)
