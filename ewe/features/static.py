"""Files: from the path of a URL to a response.

A request passes these steps:

    respond ─▶ in the cache? ─▶ method ─▶ open ─▶ a directory? ─▶ compressed variant ─▶ conditions ─▶ range ─▶ file
                    │                                  │
                    └──▶ response                      └──▶ index file, or listing

**The cache** contains small files with their responses, and larger ones as open files. ewe re-checks a cached file
at most once a second (FILE_CHECK_S). If time, size and inode are the same, the file is unchanged. A file that
changed less than SETTLED_S ago is not cached, because a second change could leave the same time stamp. An open file
can be changed in place. Each request therefore asks the kernel for its time and size (fstat), so that the head of a
response belongs to its body. The system frees a deleted file only when it is closed. When ewe opens another larger
file for the cache, it therefore closes those that no request has asked for in UNUSED_S, also those of a site that a
reload has replaced.

**No path leads out of the root.** ewe first opens a file, then asks the kernel for the real path of the open file.
A check of the path before the open would not be safe: a user could replace the file by a symbolic link in between.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from _weakref import ref
from itertools import takewhile
from operator import attrgetter
from typing import TYPE_CHECKING

from ewe.bounded import SETTLED_S
from ewe.gateway.protected_sources import ProtectedSources, is_sql_page
from ewe.gateway.true_names import real_path, true_name
from ewe.http import conditional, ranges
from ewe.http.dates import http_date
from ewe.http.error_pages import error_page, html_escape, link_page
from ewe.http.media_types import content_type
from ewe.http.messages import (
    METHODS,
    CachedFile,
    FileResponse,
    Region,
    Request,
    Response,
    copy_of,
    encode_head,
)
from ewe.http.negotiation import preferred_coding
from ewe.http.status import REASONS, HTTPError
from ewe.http.target import percent_encode
from ewe.streams.base import COPIED_BYTES
from ewe.streams.descriptors import descriptor_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ewe.config.settings import Config
    from ewe.streams.base import Stream

# Bytes; files up to this size are read and cached, larger ones are sent by sendfile(2)
MAX_CACHED_BYTES = 64 * 1024
# Errors of open() that also mean that the file does not exist
NO_SUCH_FILE = frozenset({errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO, errno.ENODEV})
MAX_OPEN_FILES = 32  # descriptors that one process keeps for the next request; fewer if it may have few
FILE_CHECK_S = 1.0  # seconds until a cached file is checked again
UNUSED_S = 10.0  # seconds after the last check until an open file may be closed
ENTRY_BYTES = 1024  # bytes of memory for an entry of the cache, without the file itself
# A FIFO or a terminal must not block the server.
OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
HIDDEN = re.compile(r"/(?:\.|(?:WEB|META)-INF(?:/|\Z))", re.IGNORECASE)
CODINGS = (("br", ".br"), ("zstd", ".zst"), ("gzip", ".gz"))  # sidecars, the smallest first
ALLOW = ("Allow", "GET, HEAD, OPTIONS")
NOT_MODIFIED = frozenset({"ETag", "Last-Modified", "Vary"})  # fields of a 304: RFC 9110 section 15.4.5


class OpenFile(Region):
    """A whole file that the cache and the responses in progress share. The last of them to let it go closes it."""

    __slots__ = ()

    def __init__(self, descriptor: int, size: int) -> None:
        super().__init__(descriptor, 0, size)
        KEPT[descriptor] = None

    def __del__(self) -> None:
        """Close the file."""
        KEPT.pop(self.file, None)
        os.close(self.file)


# The descriptors of this process that are OpenFiles, and the entry of a cache that has each
KEPT: dict[int, ref[CacheEntry] | None] = {}


def close_unused_files(now: float) -> None:
    """Close the open files that no request has asked for in UNUSED_S. now: time.monotonic()."""
    for kept in list(KEPT.values()):
        entry = kept() if kept is not None else None
        if entry is not None and now - entry.checked_at > UNUSED_S:
            entry.file.opened = None


class File:
    """One representation of a file: the fields of its response, and its bytes if it is small.

    file_status: os.stat_result of the file. media_type: its Content-Type. coding: of a compressed variant; else "".
    varies: compressed variants exist, so that the response depends on Accept-Encoding. opened: the file itself, if
    it is larger and in the cache. head: the encoded status and field lines of the response with the whole file; b""
    until they are needed. field_lines: the same without the status line, from the first range on.
    """

    __slots__ = (
        "body", "etag", "field_lines", "fields", "file_version", "head", "media_type", "modified",
        "not_modified", "opened", "path", "response", "size", "whole_fields",
    )  # fmt: skip

    def __init__(
        self, path: str, file_status: os.stat_result, media_type: str, coding: str, varies: bool
    ) -> None:
        self.path = path
        self.size = file_status.st_size
        self.file_version = file_version(file_status)
        # Never later than now: RFC 9110 section 8.8.2.1
        self.modified = float(min(file_status.st_mtime_ns // 10**9, int(time.time())))
        self.media_type = media_type
        suffix = "-" + coding if coding else ""
        # ctime is used, because mtime can be set back after a change, and a strong tag must change (section 8.8.1).
        self.etag = f'"{file_status.st_ctime_ns:x}-{file_status.st_size:x}-{file_status.st_ino:x}{suffix}"'
        fields = [
            ("ETag", self.etag),
            ("Last-Modified", http_date(self.modified)),
            ("Accept-Ranges", "bytes"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        if coding:
            fields.append(("Content-Encoding", coding))
        if varies:
            fields.append(("Vary", "Accept-Encoding"))
        self.fields = tuple(fields)
        self.whole_fields = (("Content-Type", media_type), *fields)
        self.body: bytes | None = None
        self.response: CachedFile | None = None
        self.opened: OpenFile | None = None
        self.head = self.field_lines = b""
        self.not_modified: Response | None = None  # the 304, once it was asked for


# Of the os.stat_result of a file: the attributes of which at least one changes when the file's contents change
file_version = attrgetter("st_mtime_ns", "st_ctime_ns", "st_size", "st_ino", "st_dev")


class CacheEntry:
    """An entry of the cache, for one path.

    sidecars: the compressed variants beside the file. If there are none, every client gets the same response.
    checked_at: the time.monotonic() of the last revalidate(). cost: bytes of memory, as the setting `cache` counts
    them.
    """

    __slots__ = ("__weakref__", "checked_at", "cost", "file", "sidecars")

    def __init__(self, file: File, sidecars: tuple[tuple[str, str], ...], checked_at: float) -> None:
        self.file = file
        self.cost = ENTRY_BYTES + (file.size if file.opened is None else 0)
        self.sidecars = sidecars
        self.checked_at = checked_at


class LazyListing(Response):
    """The listing of a directory, which listed() makes: a large directory takes long, and directory() must not
    wait.

    path: the path of the URL; it ends in a slash. descriptor: the open directory. shown_root: symbolic links that
    lead out of it are not listed; "": all links are.
    """

    __slots__ = ("descriptor", "path", "shown_root", "static")

    def __init__(self, static: Static, path: str, descriptor: int) -> None:
        super().__init__(200, release=lambda: os.close(descriptor))
        self.static = static
        self.path = path
        self.descriptor = descriptor
        self.shown_root = "" if static.follows_links else static.root

    async def listed(self, request: Request, io: Stream) -> Response:
        """Return the listing, and close the directory. Raises HTTPError, Disconnected."""
        from ewe.features.indexes import INLINE_NAMES, first_names, kept_page

        try:
            if (response := kept_page(request, self.path, self.descriptor, self.shown_root)) is not None:
                return response
            names = first_names(self.descriptor)
            if len(names) <= INLINE_NAMES:
                return self.listing_of(request, self.descriptor, names)
        finally:
            os.close(self.descriptor)
        return await io.call(self.listing_of_many_names, request)

    def listing_of_many_names(self, request: Request) -> Response:
        """Return the listing of a directory with many names. May block. Raises HTTPError."""
        from ewe.features.indexes import LISTING_TURNS

        with LISTING_TURNS.one_at_a_time():
            # The directory is opened only now: many waiting requests would otherwise use up all descriptors.
            descriptor = self.static.open(self.static.name(self.path))
            if descriptor is None:
                raise HTTPError(404, "the directory was removed meanwhile")
            try:
                if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                    raise HTTPError(404, "the directory was replaced by a file meanwhile")
                return self.listing_of(request, descriptor)
            finally:
                os.close(descriptor)

    def listing_of(self, request: Request, descriptor: int, names: list[str] | None = None) -> Response:
        """Return the listing of an open directory. Raises HTTPError.

        names: all its names, if the caller has read them; None: they are read here.
        """
        from ewe.features.indexes import listing

        directory = self.static.name(self.path)
        return listing(request, self.path, descriptor, self.shown_root, directory, names)


class Static:
    """Answers with the files below a directory."""

    def __init__(
        self,
        config: Config,
        root: str = "",
        prefix: str = "",
        protected: ProtectedSources | None = None,
        owner: int | None = None,
    ) -> None:
        """root: the directory, without symbolic links; "": config.documentroot. prefix: the beginning of its URLs,
        such as `/~alice`. protected: the protected sources; None: those of the root without further programs.
        owner: only files of this user id may be sent; None: all files.
        """
        self.root = root or real_path(config.documentroot)
        self.below = self.root.rstrip("/") + "/"  # the beginning of every real path below the root
        self.prefix = prefix
        self.prefix_length = len(prefix)
        self.protected = protected or ProtectedSources(self.root)
        self.owner = owner
        self.index_names = config.defaultindex
        self.lists_directories = config.indexes
        self.follows_links = config.symlinks == "follow"
        # The path of each file is that of its URL; an alias with variables, or of one file, has other URLs
        self.has_urls = True
        self.room = config.cache  # bytes of the cache at most
        self.used_bytes = 0  # of the cache
        self.cache: dict[str, CacheEntry] = {}
        # A sixteenth of the process's descriptors at most: clients and programs need the others.
        self.max_open_files = min(MAX_OPEN_FILES, (descriptor_limit() or MAX_OPEN_FILES * 16) // 16)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the response for the file or directory at the request's path. Raises HTTPError."""
        try:  # on a Python without the GIL, get() would take a lock that all threads share
            entry = self.cache[request.path]
        except KeyError:
            entry = None
        if entry is not None:
            if time.monotonic() - entry.checked_at > FILE_CHECK_S and not self.revalidate(
                request.path, entry
            ):
                self.forget(request.path)
            elif not entry.sidecars and request.method in ("GET", "HEAD"):
                file = entry.file
                response: Response | None = file.response  # with the whole file, if it is small
                if response is None or request.conditional:
                    response = self.response_from_cache(request, file)
                if response is not None:
                    return response
                self.forget(request.path)
        if request.method not in ("GET", "HEAD"):
            return self.other_method(request)
        response = self.serve(request, request.path)
        if type(response) is LazyListing:
            return await response.listed(request, io)
        return response

    def other_method(self, request: Request) -> Response:
        """Answer OPTIONS. Refuse other methods by 405, unknown ones by 501 (RFC 9110 section 9.1)."""
        if request.method == "OPTIONS":
            return Response(204, (ALLOW,))
        if request.method not in METHODS:
            raise HTTPError(501, f"method {request.method!r} to a file")
        raise HTTPError(405, f"{request.method} to a file", (ALLOW,))

    def explain(self, request: Request, why: str, client_request: Request | None = None) -> Iterator[str]:
        """Yield the lines of `ewe --explain` for a file or a directory, or for a missing file.

        why: the reason why the files answer, which the line shows. client_request: the request with the path in the
        client's URL, if `request` has another path because of an alias; None: it is `request`.
        """
        try:
            if request.method in ("GET", "HEAD"):
                yield from self.explain_path(request.path, why, client_request or request)
            else:
                yield f"  answer    {self.other_method(request).status}, Allow: {ALLOW[1]}"
        except HTTPError as refused:
            yield f"  answer    {refused.status}: {refused.cause}"

    def explain_path(self, path: str, why: str, client_request: Request) -> Iterator[str]:
        """Yield the lines for the file or the directory at a path. Raises HTTPError(403, 404)."""
        name = self.name(path)
        if hidden(path):
            raise HTTPError(404, "its name begins with a dot, or is WEB-INF or META-INF")
        descriptor = self.open(name)
        if descriptor is None:
            yield self.line_for_missing_file(path, why)
            return
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                yield f"  answer    the file {name}   ({why})"
            elif not path.endswith("/"):
                query = "" if client_request.query is None else f"?{client_request.query}"
                target = f"{percent_encode(client_request.path)}/{query}"
                yield f"  answer    301, Location: {target}   ({name} is a directory)"
            elif index := next((each for each in self.index_names if self.is_index_file(path + each)), ""):
                why = f"the first of {', '.join(self.index_names)} that is there"
                of_index = copy_of(client_request)
                of_index.path += index
                yield from self.explain_path(path + index, why, of_index)
            elif self.lists_directories:
                yield f"  answer    a listing of {name}   (it has no {' or '.join(self.index_names)})"
            else:
                yield f"  answer    403: {name} has no {' or '.join(self.index_names)}, and indexes is off"
        finally:
            os.close(descriptor)

    def line_for_missing_file(self, path: str, why: str) -> str:
        """Return the line of `ewe --explain` for a path without a file."""
        return f"  answer    404: there is no {self.name(path)}   ({why})"

    # Path to file

    def name(self, path: str) -> str:
        """Return the file name for the path of a URL."""
        return self.root + path[self.prefix_length :]

    def has(self, path: str) -> bool:
        """Return whether a regular file, perhaps a program, is at path. Raises HTTPError(403, 404)."""
        descriptor = None if hidden(path) else self.open(self.name(path), for_program=True)
        if descriptor is None:
            return False
        try:
            return stat.S_ISREG(os.fstat(descriptor).st_mode)
        finally:
            os.close(descriptor)

    has_or_variant = has  # overridden in Languages

    def index_of(self, path: str) -> str:
        """Return the name of the index file of the directory at path; "" if there is none."""
        return next((name for name in self.index_names if self.has(path + name)), "")

    def has_index(self, path: str) -> bool:
        """Return whether the directory at path has an index file. Raises HTTPError(403, 404)."""
        return self.index_of(path) != ""

    def has_earlier_index(self, path: str, index: str) -> bool:
        """Return whether an index file comes before `index`, the path of the one that answers for a directory."""
        earlier = takewhile(lambda name: path + name != index, self.index_names)
        return any(self.is_index_file(path + name) for name in earlier)

    def is_index_file(self, path: str) -> bool:
        """Return whether serve() may find a file for the path of an index file."""
        return os.path.exists(self.name(path))

    def serve(self, request: Request, path: str) -> Response | None:
        """Return the response for the file or directory at path; None if neither exists. Raises HTTPError."""
        if hidden(path):
            raise HTTPError(404, "the name begins with a dot, or is WEB-INF or META-INF")
        descriptor = self.open(self.name(path))
        if descriptor is None:
            return None
        response: Response | None
        owns_descriptor = False  # the response closes the descriptor
        try:
            file_status = os.fstat(descriptor)
            if stat.S_ISDIR(file_status.st_mode):
                response = self.directory(request, path, descriptor)
                # The response of an index file owns the file's descriptor, not the directory's.
                owns_descriptor = type(response) is LazyListing
                return response
            if not stat.S_ISREG(file_status.st_mode):
                raise HTTPError(404, "neither a file nor a directory")
            response = self.file(request, path, descriptor, file_status)
            owns_descriptor = response.release is not None
            return response
        finally:
            if not owns_descriptor:
                os.close(descriptor)

    def open(self, name: str, *, for_program: bool = False) -> int | None:
        """Open a file or directory; return its descriptor, or None if it does not exist. Raises HTTPError(403,
        404).

        for_program: a program will answer, and the file will not be sent, so it may be a protected source.
        """
        try:
            descriptor = os.open(name, OPEN_FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:
            raise HTTPError(403, f"{name} may not be read") from None
        except OSError as reason:
            if reason.errno in NO_SUCH_FILE:
                return None
            raise
        try:
            self.raise_if_not_public(descriptor, name, for_program)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def raise_if_not_public(self, descriptor: int, name: str, for_program: bool) -> None:
        """Raise HTTPError if a file lies outside the root, is a program, or belongs to another user."""
        try:
            real = true_name(descriptor, name)
        except OSError as reason:
            raise HTTPError(404, f"{name}: {reason.strerror}") from None
        inside = real == self.root or real.startswith(self.below)
        if not inside and not self.follows_links:
            raise HTTPError(404, f"{name} leads out of the document root (symlinks = inside)")
        if not for_program and self.protected.protects(name, real, descriptor):
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise HTTPError(403, f"{real} is a protected directory: nothing in it is sent")
            raise HTTPError(403, f"{real} belongs to a program, which is never sent as a file")
        if not for_program and is_sql_page(name, real):
            raise HTTPError(404, f"{real} is a page from SQL, whose source is never sent (database)")
        if self.owner is not None:
            file_status = os.fstat(descriptor)
            uid, mode = file_status.st_uid, file_status.st_mode
            # A user can make a hard link to a file of root.
            of_root = inside and uid == 0 and bool(mode & stat.S_IROTH)
            if uid != self.owner and not of_root and not (inside and stat.S_ISDIR(mode)):
                cause = f"{real} belongs to uid {uid}: not to the user, nor is it root's for everybody"
                raise HTTPError(403, cause)

    def directory(self, request: Request, path: str, descriptor: int) -> Response | None:
        """Return the response with the directory's index file, or its LazyListing, which then owns the descriptor.

        A 301 if the path lacks the slash at its end: relative links of the page need it. Raises HTTPError(403) if
        there is no index file and directories are not listed (setting `indexes`), and the HTTPErrors of serve().
        """
        if not path.endswith("/"):
            query = "" if request.query is None else "?" + request.query
            return redirect(percent_encode(path) + "/" + query)
        for name in self.index_names:
            if os.access(name, os.F_OK, dir_fd=descriptor):
                response = self.serve(request, path + name)
                if response is not None:
                    return response
        if not self.lists_directories:
            raise HTTPError(403, f"{path} has no {' or '.join(self.index_names)}, and indexes is off")
        return LazyListing(self, path, descriptor)

    # File to response

    def file(self, request: Request, path: str, descriptor: int, file_status: os.stat_result) -> Response:
        """Return the response with a regular file, or with the compressed variant that the client prefers.

        descriptor, file_status: of the open file. A small file that has not changed for SETTLED_S is cached.
        """
        sidecars = self.sidecars(self.name(path))
        coding = ""
        if sidecars:
            coding = preferred_coding(request.values.get("accept-encoding"), dict(sidecars))
        media_type = self.media_type_of(path)
        if coding:
            try:
                other = self.open(self.name(path) + dict(sidecars)[coding])
            except HTTPError:
                other = None  # the file itself is sent instead
            if other is not None:
                os.dup2(other, descriptor, inheritable=False)  # the caller closes `descriptor`
                os.close(other)
                return self.answer(
                    request, File(path, os.fstat(descriptor), media_type, coding, varies=True), descriptor
                )
        file = File(path, file_status, media_type, coding="", varies=bool(sidecars))
        settled = time.time() - file_status.st_ctime > SETTLED_S
        if file.size <= MAX_CACHED_BYTES:
            file.body = read(descriptor, file.size)
        if file.body is not None:
            file.response = response = CachedFile(200, file.whole_fields, file.body)
            response.prepare_variants(no_room)
            if settled:
                cached_path = request.path  # for a directory, its path and its index file
                self.remember(cached_path, file, sidecars)
                # The cache keeps this function, which must not keep the request with its fields and its body.
                response.take_room = lambda size: self.take_room(cached_path, file, size)
        elif settled and not sidecars and self.room and (opened := self.opened(descriptor, file.size)):
            file.opened = opened
            file.head = encode_head(200, REASONS[200], file.whole_fields)
            self.remember(request.path, file, sidecars)
        return self.answer(request, file, descriptor)

    def opened(self, descriptor: int, size: int) -> OpenFile | None:
        """Return a file for the cache to keep open; None if enough are open, or if no descriptor is left.

        descriptor, size: of the open file; the cache gets a duplicate.
        """
        close_unused_files(time.monotonic())
        if len(KEPT) >= self.max_open_files:
            return None
        try:
            return OpenFile(os.dup(descriptor), size)
        except OSError:
            return None

    def media_type_of(self, path: str) -> str:
        """Return the Content-Type of the file at path."""
        return content_type(os.path.basename(path))

    def sidecars(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return the (coding, suffix) of each compressed variant beside a file."""
        return tuple((coding, suffix) for coding, suffix in CODINGS if os.path.isfile(name + suffix))

    def answer(self, request: Request, file: File, descriptor: int) -> Response:
        """Return the response with an open file after its conditions and ranges: 200, 206, 304, 412 or 416.

        Source: RFC 9110 section 13.2.2.
        """
        if request.conditional and (refusal := refused_by_condition(request, file)) is not None:
            return refusal
        body = file.body if file.body is not None else Region(descriptor, 0, file.size)
        response = self.partial_response(request, file, body) or whole_response(file, descriptor)
        if isinstance(response.body, tuple):
            response.release = lambda: os.close(descriptor)
        return response

    def response_from_cache(self, request: Request, file: File) -> Response | None:
        """Return the response with a file in the cache: 200, 206, 304, 412 or 416.

        None: the file has changed, or another thread has closed it.
        """
        opened = file.opened  # another thread may let it go
        if opened is not None and file_version(os.fstat(opened.file)) != file.file_version:
            return None
        if request.conditional:
            if (refusal := refused_by_condition(request, file)) is not None:
                return refusal
            body = file.body if opened is None else opened
            if body is not None and (part := self.partial_response(request, file, body)) is not None:
                return part
        if opened is None:
            return file.response
        # A middleware may make another response with this body: the body keeps the file open, not the response.
        return FileResponse(200, file.whole_fields, (opened,), head=file.head)

    def partial_response(self, request: Request, file: File, body: bytes | Region) -> Response | None:
        """Return a 206 or 416, or None to send the whole file. body: the whole file."""
        values = request.values
        value = values.get("range")
        if value is None or request.method != "GET":
            return None
        if "if-range" in values:
            now = time.time()
            if not conditional.range_applies(request, file.etag, file.modified, now):
                return None
        found = ranges.satisfiable_ranges(value, file.size)
        if found is None:
            return None  # the field is malformed, or has too many ranges
        if not found:  # no range lies in the file
            return error_page(
                416, f"range {value[:80]!r} of {file.size}", ranges.unsatisfiable_fields(file.size)
            )
        if not file.field_lines:  # they are encoded once for all responses
            file.head = file.head or encode_head(200, REASONS[200], file.whole_fields)
            file.field_lines = file.head.partition(b"\r\n")[2]
        # A single part leaves in one system call with the head. Several do not, and would all be in memory.
        parts = [part_of(body, offset, count, len(found) == 1) for offset, count in found]
        return ranges.partial_response(
            found, parts, file.size, file.media_type, file.fields, file.field_lines
        )

    # The cache: path -> file, at most self.room bytes. Each entry is checked again after FILE_CHECK_S.

    def remember(self, path: str, file: File, sidecars: tuple[tuple[str, str], ...]) -> None:
        """Cache a small file. If the cache is full, drop all other files first."""
        entry = CacheEntry(file, sidecars, time.monotonic())
        if entry.cost > self.room:
            return
        if path in self.cache:
            self.forget(path)
        if self.used_bytes + entry.cost > self.room:
            self.forget_all()
        self.cache[path] = entry
        self.used_bytes += entry.cost
        if file.opened is not None:
            KEPT[file.opened.file] = ref(entry)

    def take_room(self, path: str, file: File, size: int) -> bool:
        """Count `size` more bytes, and ENTRY_BYTES, for a cached file; return whether the cache has room for them.

        Return False if the file is no longer cached. If the cache is full, drop all files and return False. The
        next request for the file will find room.
        """
        cost = size + ENTRY_BYTES
        entry = self.cache.get(path)
        if entry is None or entry.file is not file or entry.cost + cost > self.room:
            return False
        if self.used_bytes + cost > self.room:
            self.forget_all()
            return False
        entry.cost += cost
        self.used_bytes += cost
        return True

    def forget(self, path: str) -> None:
        """Drop an entry."""
        entry = self.cache.pop(path, None)
        if entry is not None:
            self.used_bytes -= entry.cost

    def forget_all(self) -> None:
        """Drop all entries."""
        # In this order: the entry that another thread adds in between is dropped, and its bytes stay counted for a
        # while. In the other order it would stay uncounted, and the cache could exceed its room.
        self.used_bytes = 0
        self.cache.clear()

    def revalidate(self, path: str, entry: CacheEntry) -> bool:
        """Return whether the file of an entry and its sidecars are unchanged. If so, note the time of the check.

        path: of the entry. For a directory, its index file must still be the first one.
        """
        name = self.name(entry.file.path)
        if path.endswith("/") and self.has_earlier_index(path, entry.file.path):
            return False
        try:
            descriptor = self.open(name)
            if descriptor is None:
                return False
            try:
                unchanged = file_version(os.fstat(descriptor)) == entry.file.file_version
            finally:
                os.close(descriptor)
        except (OSError, HTTPError):
            return False
        if unchanged and self.sidecars(name) == entry.sidecars:
            entry.checked_at = time.monotonic()
            return True
        return False


def hidden(path: str) -> bool:
    """Return whether a path contains a name that begins with a dot, or the name WEB-INF or META-INF, where Java
    applications have their code.

    .well-known at the root is public: RFC 8615.
    """
    if path == "/.well-known" or path.startswith("/.well-known/"):
        path = path.removeprefix("/.well-known")
    return HIDDEN.search(path) is not None


def refused_by_condition(request: Request, file: File) -> Response | None:
    """Return the 304 or 412 if a condition of the request forbids to send the file, else None."""
    status = conditional.status_by_conditions(request, file.etag, file.modified)
    if status == 304:
        if file.not_modified is None:
            file.not_modified = Response(304, (field for field in file.fields if field[0] in NOT_MODIFIED))
        return file.not_modified
    return error_page(412, "the condition does not hold") if status == 412 else None


def whole_response(file: File, descriptor: int) -> Response:
    """Return the 200 with the whole file."""
    if file.response is not None:
        return file.response
    return FileResponse(200, file.whole_fields, (Region(descriptor, 0, file.size),))


def no_room(size: int) -> bool:
    """Return False, as take_room() of a file that is not cached."""
    return False


def read(descriptor: int, size: int) -> bytes | None:
    """Return the bytes of a file; None if its size has changed meanwhile."""
    data = os.read(descriptor, size + 1)
    return data if len(data) == size else None


def part_of(whole: bytes | Region, offset: int, count: int, reads: bool) -> bytes | Region:
    """Return a range of a file: its bytes, or a Region of an open file.

    reads: a short part of an open file is read, up to COPIED_BYTES. If the file has become shorter meanwhile,
    return the Region: the response is then aborted as it is sent.
    """
    if isinstance(whole, bytes):
        return whole[offset : offset + count]
    if reads and count <= COPIED_BYTES:
        data = os.pread(whole.file, count, whole.offset + offset)
        if len(data) == count:
            return data
    return whole.part(offset, count)


def redirect(target: str) -> Response:
    """Return the 301 to another URL."""
    page = link_page("Moved", f'It is <a href="{html_escape(target)}">here</a>.')
    return Response(301, (("Location", target), ("Content-Type", "text/html; charset=utf-8")), page)
