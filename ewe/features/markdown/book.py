"""Books: the Markdown pages of a directory that belong together.

A directory is a book if its README.md or index.md, the contents, links other Markdown files in the directory or
below it. A file README.md that links none, and a directory without contents, are no book: their pages get no
navigation.

    order    the contents, then the linked pages in the order of their first links: previous and next
    pages    those, and the other Markdown files of the directory: the search finds them, too

**A book has only pages that the server would send.** Each file is opened as for a request: hidden names, protected
sources and links out of the document root are left out. A location of the site may have a guard. A book therefore
contains only the pages of one zone: those for which the same location, and the same mounts, answer as for the
page that is asked for.

**Limits.** A book has at most MAX_PAGES pages and MAX_BYTES of text, and `is_cut` says that more exist. ewe checks
the files for changes after a second, or later: the checks take at most one percent of the time (MIN_WAIT_RATIO).
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ewe.bounded import BoundedDict
from ewe.features.indexes import as_unicode
from ewe.features.markdown.convert import ABSOLUTE, decoded
from ewe.features.markdown.outline import Heading, outline
from ewe.features.static import file_version, hidden
from ewe.gateway.turns import Turns
from ewe.http.status import HTTPError
from ewe.http.target import percent_encode

if TYPE_CHECKING:
    from ewe.features.static import Static

# Bytes; a larger file is sent unchanged, since making its page would take seconds
MAX_FILE_BYTES = 256 * 1024
MAX_PAGES = 500  # pages of one book
MAX_BYTES = 8 * 1024 * 1024  # text of one book
MAX_OPENED = 2_500  # files that are opened for one book, if many of them may not be sent
MAX_NAMES = 50_000  # names of a directory that are read
MAX_DEPTH = 8  # directories between a page and its contents
MAX_BOOKS = 50  # books in memory
CHECK_S = 1.0  # seconds until a book is checked for changes
MIN_WAIT_RATIO = 100  # after a check of t seconds, the next one waits at least MIN_WAIT_RATIO * t
BOOK_TURNS = Turns()
CONTENTS = ("README.md", "index.md")


class Chapter(NamedTuple):
    """A page of a book. path: of its URL. title: not escaped. headings: of all levels, the title among them.

    modified: the time of its last change, in seconds since 1970.
    """

    path: str
    file_version: tuple[int, ...]
    modified: int
    title: str
    headings: list[Heading]
    links: list[str]


class Book:
    """The pages of one directory. directory: the path of its URL. is_cut: more pages exist.

    version: changes with any page. modified: the latest change, in seconds since 1970.
    """

    def __init__(
        self,
        directory: str,
        order: list[str],
        pages: dict[str, Chapter],
        directory_modified: int,
        is_cut: bool,
    ) -> None:
        """directory_modified: when a name in the directory last changed, in seconds since 1970."""
        self.directory = directory
        self.order = order
        self.pages = pages
        self.is_cut = is_cut
        self.contents = order[0]
        self.modified = max(directory_modified, *(page.modified for page in pages.values()))
        self.version = hash((is_cut, *order, *((page.path, page.file_version) for page in pages.values())))
        self.positions = {path: at for at, path in enumerate(order)}

    def neighbours(self, path: str) -> tuple[Chapter | None, Chapter | None]:
        """Return the previous and the next page."""
        at = self.positions.get(path)
        if at is None:
            return None, None
        return (
            self.pages[self.order[at - 1]] if at else None,
            self.pages[self.order[at + 1]] if at + 1 < len(self.order) else None,
        )


class Books:
    """The books below one document root. zone: returns a value that is the same for paths with the same guards."""

    def __init__(self, static: Static, zone: Callable[[str], object]) -> None:
        self.static = static
        self.zone = zone
        # (directory, zone) -> (the monotonic() of the next check, the book)
        self.cached: BoundedDict[tuple[str, object], tuple[float, Book | None]] = BoundedDict(MAX_BOOKS)

    def book_of(self, path: str) -> Book | None:
        """Return the book of a page: that of its directory, or of one above that links the page.

        Raises HTTPError(414).
        """
        # A visitor who may read this page may read all pages of its zone: the same guards stand before them.
        zone, directory = self.zone(path), path
        top = self.static.prefix + "/"
        for _ in range(MAX_DEPTH):
            directory = above(directory)
            book = self.book(directory, zone)
            if book is not None and path in book.pages:
                return book
            if directory == top:
                break
        return None

    def book(self, directory: str, zone: object) -> Book | None:
        """Return the book of a directory, from the cache if possible; None if the directory is no book."""
        key = (directory, zone)
        cached = self.cached.get(key)
        if cached is None:
            with BOOK_TURNS.one_at_a_time():
                cached = self.cached.get(key)  # another thread may have read the book meanwhile
                if cached is None:
                    return self.read_and_cache(key, None)
        check_at, book = cached
        if check_at > (now := time.monotonic()):
            return book
        self.cached[key] = now + CHECK_S, book  # requests that come during the check get the book as it was
        return self.read_and_cache(key, book)

    def read_and_cache(self, key: tuple[str, object], before: Book | None) -> Book | None:
        """Read the book of a directory from the disk, cache it, and return it; None, too, is cached.

        before: the book at the last reading.
        """
        began = time.monotonic()
        book = BookReader(self, *key, before).book()
        took = time.monotonic() - began
        self.cached[key] = began + max(CHECK_S, MIN_WAIT_RATIO * took), book
        return book


class MarkdownNames(NamedTuple):
    """The Markdown files of a directory, by name. modified: when a name in the directory last changed.

    is_cut: the directory has more names than ewe reads.
    """

    names: list[str]
    modified: int
    is_cut: bool


class BookReader:
    """Reads the files of a directory."""

    def __init__(self, books: Books, directory: str, zone: object, before: Book | None) -> None:
        """directory: the path of its URL. zone: that of the pages to read (Books.zone): pages of another zone are
        left out. before: the book at the last reading; its unchanged pages are used again.
        """
        self.static = books.static
        self.zone_of = books.zone
        self.directory = directory
        self.zone = zone
        self.known_pages = before.pages if before is not None else {}
        self.text_bytes = 0  # of the book's pages so far
        self.opened = 0  # files that were opened for pages, also those that the server may not send

    def book(self) -> Book | None:
        """Return the book; None if there are no contents, or no other page that they link."""
        contents = next(filter(None, (self.page(self.directory + name) for name in CONTENTS)), None)
        if contents is None:
            return None
        pages = {contents.path: contents}
        # The contents lie in the directory of the book itself, so a link may not begin with "../".
        linked = dict.fromkeys(
            filter(None, (inside(self.directory, self.directory, link) for link in contents.links))
        )
        is_cut = self.add(pages, linked)
        order = list(pages)
        if len(order) == 1:
            return None
        found = self.names()
        is_cut = self.add(pages, (self.directory + name for name in found.names)) or is_cut or found.is_cut
        return Book(self.directory, order, pages, found.modified, is_cut)

    def add(self, pages: dict[str, Chapter], paths: Iterable[str]) -> bool:
        """Add the pages at these paths; return whether the limits of a book leave some of them out.

        A path without a page (page()) adds nothing.
        """
        for path in paths:
            if path in pages:
                continue
            if len(pages) >= MAX_PAGES or self.text_bytes > MAX_BYTES or self.opened > MAX_OPENED:
                return True
            self.opened += 1
            if (page := self.page(path)) is not None:
                pages[path] = page
        return False

    def names(self) -> MarkdownNames:
        """Return the names of the Markdown files in the directory; none if the server may not read it."""
        try:
            descriptor = self.static.open(self.static.name(self.directory))
        except (HTTPError, OSError):
            descriptor = None
        if descriptor is None:
            return MarkdownNames([], 0, False)
        try:
            with os.scandir(descriptor) as items:
                names = [item.name for item in islice(items, MAX_NAMES + 1)]
            modified = os.fstat(descriptor).st_mtime_ns // 10**9
        except OSError:
            return MarkdownNames([], 0, False)
        finally:
            os.close(descriptor)
        markdown = sorted(name for name in names if name.endswith(".md"))
        return MarkdownNames(markdown, modified, is_cut=len(names) > MAX_NAMES)

    def page(self, path: str) -> Chapter | None:
        """Return the page at a path; None if the server would not send it, or if it is in another zone."""
        try:
            if "\0" in path or hidden(path) or self.zone_of(path) != self.zone:
                return None
            descriptor = self.static.open(self.static.name(path))
        except (HTTPError, OSError):
            return None
        if descriptor is None:
            return None
        try:
            file_status = os.fstat(descriptor)
            if not stat.S_ISREG(file_status.st_mode):
                return None
            # A larger file has no page, only a title. Its text is not read, and counts as empty.
            size = file_status.st_size if file_status.st_size <= MAX_FILE_BYTES else 0
            version = file_version(file_status)
            if (known := self.known_pages.get(path)) is not None and known.file_version == version:
                self.text_bytes += size
                return known
            source = os.read(descriptor, size)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        self.text_bytes += len(source)
        found = outline(source.decode("utf-8", "replace"))
        title = found.title or as_unicode(path.rpartition("/")[2])
        links = found.links if path.endswith(CONTENTS) else []
        modified = file_status.st_mtime_ns // 10**9
        return Chapter(path, version, modified, title, found.headings, links)


def inside(top: str, directory: str, link: str) -> str:
    """Return the path of the Markdown file that a link names; "" if it is not below `top`.

    directory: of the page with the link. top: the directory of the book. Both are paths that end in a slash.
    """
    if ABSOLUTE.match(link) is not None:
        return ""
    kept = directory[len(top) :].split("/")[:-1]
    for segment in decoded(link).split("/"):
        if segment == "..":
            if not kept:
                return ""
            kept.pop()
        elif segment not in ("", "."):
            kept.append(segment)
    path = "/".join(kept)
    return top + path if path.endswith(".md") else ""


def above(path: str) -> str:
    """Return the directory that contains a file or a directory, with a slash at its end. path: not "/".

    >>> above("/book/a.md"), above("/book/")
    ('/book/', '/')
    """
    # The search leaves out the last character, which is the slash of a directory.
    return path[: path.rindex("/", 0, -1) + 1]


def relative(path: str, here: str) -> str:
    """Return the link from one page of a book to another. It also works behind a proxy that shortens paths."""
    directory = above(here)
    up = ""
    while not path.startswith(directory):
        directory = above(directory)
        up += "../"
    return (up or "./") + percent_encode(path[len(directory) :])
