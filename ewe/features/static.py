"""Files: from the path of a URL to a response. The order in which a request meets the parts:

    respond ─▶ in the cache? ─▶ method ─▶ open ─▶ a directory? ─▶ compressed variant ─▶ conditions ─▶ range ─▶ file
                    │                                  │
                    └──▶ response                      └──▶ index file, or listing

**The cache** holds small files with their responses. ewe re-checks a cached file at most once a second (FRESH):
if time, size and inode are the same, so is the file. A file that changed less than SETTLED ago is not cached,
because a second change could leave the same time stamp.

**Nothing leads out.** A file is opened first, and the kernel is asked for the true name of what was opened. A check
by name before the open could be outrun: a user may replace a file by a symbolic link in between.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from typing import TYPE_CHECKING

from ewe.gateway.claims import Claims, is_sql_page
from ewe.gateway.true_names import real_path, true_name
from ewe.http import conditional, ranges
from ewe.http.dates import http_date
from ewe.http.error_pages import error_page, html_escape, link_page
from ewe.http.media_types import content_type
from ewe.http.messages import METHODS, CachedFile, FileResponse, Region, Request, Response
from ewe.http.negotiation import preferred_coding
from ewe.http.status import HTTPError
from ewe.http.target import percent_encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ewe.config.settings import Config
    from ewe.streams.base import Stream

SMALL = 64 * 1024  # bytes: files up to this size are read and cached, larger ones are sent by sendfile
# Errors of open() that also mean: there is no such file
NO_SUCH_FILE = frozenset({errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO, errno.ENODEV})
FRESH = 1.0  # seconds for which a cached file is not checked again
# A file changed less than this many seconds ago is not cached: time stamps have tick resolution (10 ms), so a
# second change could go unnoticed.
SETTLED = 0.05
COST = 1024  # bytes that an entry of the cache takes besides the file
# A FIFO or a terminal must not block the server.
OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
HIDDEN = re.compile(r"/(?:\.|(?:WEB|META)-INF(?:/|\Z))", re.IGNORECASE)
CODINGS = (("br", ".br"), ("zstd", ".zst"), ("gzip", ".gz"))  # sidecars, the smallest first
ALLOW = ("Allow", "GET, HEAD, OPTIONS")
NOT_MODIFIED = frozenset({"ETag", "Last-Modified", "Vary"})  # fields of a 304: RFC 9110 section 15.4.5


class File:
    """One representation of a file: the fields of its response, and its bytes if it is small."""

    __slots__ = ("body", "etag", "fields", "identity", "kind", "modified", "path", "response", "size")

    def __init__(self, path: str, about: os.stat_result, kind: str, coding: str, varies: bool) -> None:
        self.path = path
        self.size = about.st_size
        self.identity = identity(about)
        # never later than now: RFC 9110 section 8.8.2.1
        self.modified = float(min(about.st_mtime_ns // 10**9, int(time.time())))
        self.kind = kind
        suffix = "-" + coding if coding else ""
        # ctime, because mtime can be set back after a change, and a strong tag must change too (section 8.8.1)
        self.etag = f'"{about.st_ctime_ns:x}-{about.st_size:x}-{about.st_ino:x}{suffix}"'
        fields = [
            ("ETag", self.etag),
            ("Last-Modified", http_date(self.modified)),
            ("Accept-Ranges", "bytes"),
        ]
        fields.append(("X-Content-Type-Options", "nosniff"))
        if coding:
            fields.append(("Content-Encoding", coding))
        if varies:
            fields.append(("Vary", "Accept-Encoding"))
        self.fields = tuple(fields)
        self.body: bytes | None = None
        self.response: CachedFile | None = None


def identity(about: os.stat_result) -> tuple[int, ...]:
    """Return the attributes of a file of which at least one changes when its contents change."""
    return (about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino, about.st_dev)


class Remembered:
    """An entry of the cache, for one path. sidecars: the variants beside the file; plain: it has none.

    cost: bytes of memory, as the setting `cache` counts them.
    """

    __slots__ = ("checked", "cost", "file", "plain", "sidecars")

    def __init__(self, file: File, sidecars: tuple[tuple[str, str], ...], checked: float) -> None:
        self.file = file
        self.cost = file.size + COST
        self.sidecars = sidecars
        self.plain = not sidecars
        self.checked = checked


class Unlisted(Response):
    """A directory whose listing is still to be made, which may take long.

    path: ends in a slash. descriptor: of the open directory.
    """

    __slots__ = ("descriptor", "path", "static")

    def __init__(self, static: Static, path: str, descriptor: int) -> None:
        super().__init__(200, release=lambda: os.close(descriptor))
        self.static = static
        self.path = path
        self.descriptor = descriptor

    async def listed(self, request: Request, io: Stream) -> Response:
        """Return the listing, and close the directory. Raises HTTPError, Disconnected."""
        from ewe.features.indexes import FEW, first_names

        try:
            names = first_names(self.descriptor)
            if len(names) <= FEW:
                return self.list(request, self.descriptor, names)
        finally:
            os.close(self.descriptor)
        return await io.call(self.make, request)

    def make(self, request: Request) -> Response:
        """Return the listing of a directory with many names. May block. Raises HTTPError."""
        from ewe.features.indexes import TURNS

        with TURNS.taken():
            # Opened only now: many that wait for their turn would hold all descriptors.
            descriptor = self.static.open(self.static.name(self.path))
            if descriptor is None:
                raise HTTPError(404, "the directory was removed meanwhile")
            try:
                if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                    raise HTTPError(404, "the directory was replaced by a file meanwhile")
                return self.list(request, descriptor)
            finally:
                os.close(descriptor)

    def list(self, request: Request, descriptor: int, names: list[str] | None = None) -> Response:
        """Return the listing of an open directory. names: as for ewe.features.indexes. Raises HTTPError."""
        from ewe.features.indexes import listing

        root = "" if self.static.follows else self.static.root
        return listing(request, self.path, descriptor, root, self.static.name(self.path), names)


class Static:
    """Serve the files below a directory."""

    def __init__(
        self,
        config: Config,
        root: str = "",
        prefix: str = "",
        claims: Claims | None = None,
        owner: int | None = None,
    ) -> None:
        """Serve config.documentroot, or a user's directory.

        root: instead of config.documentroot, without symbolic links. prefix: the beginning of its URLs, such as
        `/~alice`. claims: which files are programs. owner: the user id whose files may be sent; None: all.
        """
        self.root = root or real_path(config.documentroot)
        self.below = self.root.rstrip("/") + "/"  # how the name of every file below the root begins
        self.prefix = prefix
        self.skip = len(prefix)
        self.claims = claims or Claims(self.root)
        self.owner = owner
        self.index = config.defaultindex
        self.indexes = config.indexes
        self.follows = config.symlinks == "follow"
        self.room = config.cache
        self.taken = 0
        self.cache: dict[str, Remembered] = {}

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the response for the file or directory at the request's path. Raises HTTPError."""
        try:  # get() would share a lock between all threads of a Python without a global one
            known = self.cache[request.path]
        except KeyError:
            known = None
        if known is not None:
            if time.monotonic() - known.checked > FRESH and not self.look_again(known):
                self.forget(request.path)
            elif known.plain and not request.conditional and request.method in ("GET", "HEAD"):
                return known.file.response
        if request.method not in ("GET", "HEAD"):
            return self.other_method(request)
        response = self.serve(request, request.path)
        if type(response) is Unlisted:
            return await response.listed(request, io)
        return response

    def other_method(self, request: Request) -> Response:
        """Answer OPTIONS, refuse the rest: 405, or 501 for an unknown method (RFC 9110 section 9.1)."""
        if request.method == "OPTIONS":
            return Response(204, (ALLOW,))
        if request.method not in METHODS:
            raise HTTPError(501, f"method {request.method!r} to a file")
        raise HTTPError(405, f"{request.method} to a file", (ALLOW,))

    def explain(self, request: Request, why: str, asked: Request) -> Iterator[str]:
        """Yield the lines of `ewe --explain` for a file or a directory, or for its absence.

        asked: the client's request, which an alias may have sent to another path.
        """
        if request.method not in ("GET", "HEAD", "OPTIONS"):
            yield f"  answer    405: {request.method} to a file"
            return
        try:
            yield from self.explain_path(request.path, why, asked)
        except HTTPError as refused:
            yield f"  answer    {refused.status}: {refused.cause}"

    def explain_path(self, path: str, why: str, asked: Request) -> Iterator[str]:
        """Yield the lines for the file or the directory at a path. Raises HTTPError(403, 404)."""
        name = self.name(path)
        if hidden(path):
            raise HTTPError(404, "its name begins with a dot, or is WEB-INF or META-INF")
        descriptor = self.open(name)
        if descriptor is None:
            yield self.absent(path, why)
            return
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                yield f"  answer    the file {name}   ({why})"
            elif not path.endswith("/"):
                target = percent_encode(asked.path) + "/" + ("" if asked.query is None else f"?{asked.query}")
                yield f"  answer    301, Location: {target}   ({name} is a directory)"
            elif index := next((each for each in self.index if os.path.exists(name + each)), ""):
                yield f"  answer    the file {name}{index}   (the first of {', '.join(self.index)} that is there)"
            elif self.indexes:
                yield f"  answer    a listing of {name}   (it has no {' or '.join(self.index)})"
            else:
                yield f"  answer    403: {name} has no {' or '.join(self.index)}, and indexes is off"
        finally:
            os.close(descriptor)

    def absent(self, path: str, why: str) -> str:
        """Return the line of `ewe --explain` for a path without a file."""
        return f"  answer    404: there is no {self.name(path)}   ({why})"

    # Path to file

    def name(self, path: str) -> str:
        """Return the name of the file that a URL's path leads to."""
        return self.root + path[self.skip :]

    def has(self, path: str) -> bool:
        """Return whether a regular file is at path, for a program to answer. Raises HTTPError(403, 404)."""
        descriptor = None if hidden(path) else self.open(self.name(path), for_program=True)
        if descriptor is None:
            return False
        try:
            return stat.S_ISREG(os.fstat(descriptor).st_mode)
        finally:
            os.close(descriptor)

    def index_of(self, path: str) -> str:
        """Return the name of the file that answers for the directory at path, "" if there is none."""
        return next((name for name in self.index if self.has(path + name)), "")

    def serve(self, request: Request, path: str) -> Response | None:
        """Answer with the file or directory at path; None if there is none. Raises HTTPError."""
        if hidden(path):
            raise HTTPError(404, "the name begins with a dot, or is WEB-INF or META-INF")
        descriptor = self.open(self.name(path))
        if descriptor is None:
            return None
        response: Response | None = None
        try:
            about = os.fstat(descriptor)
            if stat.S_ISDIR(about.st_mode):
                response = self.directory(request, path, descriptor)
                return response
            if not stat.S_ISREG(about.st_mode):
                raise HTTPError(404, "neither a file nor a directory")
            response = self.file(request, path, descriptor, about)
            return response
        finally:
            if response is None or response.release is None:
                os.close(descriptor)

    def open(self, name: str, *, for_program: bool = False) -> int | None:
        """Open a file or directory; return its descriptor, or None if there is none. Raises HTTPError(403, 404).

        for_program: a program will answer and the file will not be sent, so it may be claimed.
        """
        try:
            descriptor = os.open(name, OPEN)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:
            raise HTTPError(403, f"{name} may not be read") from None
        except OSError as reason:
            if reason.errno in NO_SUCH_FILE:
                return None
            raise
        try:
            self.check(descriptor, name, for_program)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def check(self, descriptor: int, name: str, for_program: bool) -> None:
        """Raise HTTPError if a file lies outside the root, is a program, or belongs to another user."""
        try:
            real = true_name(descriptor, name)
        except OSError as reason:
            raise HTTPError(404, f"{name}: {reason.strerror}") from None
        inside = real == self.root or real.startswith(self.below)
        if not inside and not self.follows:
            raise HTTPError(404, f"{name} leads out of the document root (symlinks = inside)")
        if not for_program and self.claims.claim(name, real, descriptor):
            raise HTTPError(403, f"{real} belongs to a program, which is never sent as a file")
        if not for_program and is_sql_page(name, real):
            raise HTTPError(404, f"{real} is a page from SQL, whose source is never sent (database)")
        if self.owner is not None:
            about = os.fstat(descriptor)
            # Root's file may be there as a hard link.
            of_root = inside and about.st_uid == 0 and bool(about.st_mode & stat.S_IROTH)
            if about.st_uid != self.owner and not of_root and not (inside and stat.S_ISDIR(about.st_mode)):
                cause = (
                    f"{real} belongs to uid {about.st_uid}: not to the user, nor is it root's for everybody"
                )
                raise HTTPError(403, cause)

    def directory(self, request: Request, path: str, descriptor: int) -> Response | None:
        """Answer with the directory's index file, or a listing of it."""
        if not path.endswith("/"):
            query = "" if request.query is None else "?" + request.query
            return redirect(percent_encode(path) + "/" + query)
        for name in self.index:
            if os.access(name, os.F_OK, dir_fd=descriptor):
                response = self.serve(request, path + name)
                if response is not None:
                    return response
        if not self.indexes:
            raise HTTPError(403, f"{path} has no {' or '.join(self.index)}, and indexes is off")
        return Unlisted(self, path, descriptor)

    # File to response

    def file(self, request: Request, path: str, descriptor: int, about: os.stat_result) -> Response:
        """Answer with a regular file, or the variant of it that the client prefers."""
        sidecars = self.sidecars(self.name(path))
        coding = ""
        if sidecars:
            coding = preferred_coding(request.values.get("accept-encoding"), dict(sidecars))
        kind = self.kind_of(path)
        if coding:
            try:
                other = self.open(self.name(path) + dict(sidecars)[coding])
            except HTTPError:
                other = None  # the file itself may be served all the same
            if other is not None:
                os.dup2(other, descriptor, inheritable=False)
                os.close(other)
                return self.answer(request, File(path, os.fstat(descriptor), kind, coding, True), descriptor)
        file = File(path, about, kind, "", bool(sidecars))
        if file.size <= SMALL:
            file.body = read(descriptor, file.size)
        if file.body is not None:
            file.response = response = CachedFile(200, (("Content-Type", kind), *file.fields), file.body)
            response.variants, response.keep = {}, no_room
            if time.time() - about.st_ctime > SETTLED:
                self.remember(request.path, file, sidecars)  # of a directory: what answers for it
                response.keep = lambda size: self.keep(request.path, file, size)
        return self.answer(request, file, descriptor)

    def kind_of(self, path: str) -> str:
        """Return the Content-Type of the file at path."""
        return content_type(os.path.basename(path))

    def sidecars(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return the (coding, suffix) of each compressed variant beside a file."""
        return tuple((coding, suffix) for coding, suffix in CODINGS if os.path.isfile(name + suffix))

    def answer(self, request: Request, file: File, descriptor: int) -> Response:
        """Apply conditions and ranges: RFC 9110 section 13.2.2."""
        status = conditional.outcome(request, file.etag, file.modified) if request.conditional else None
        if status == 304:
            return Response(304, (field for field in file.fields if field[0] in NOT_MODIFIED))
        if status == 412:
            return error_page(412, "the condition does not hold")
        response = self.part(request, file, descriptor) or whole(file, descriptor)
        if isinstance(response.body, tuple):
            response.release = lambda: os.close(descriptor)
        return response

    def part(self, request: Request, file: File, descriptor: int) -> Response | None:
        """Return a 206 or 416, or None to send the whole file."""
        value = request.values.get("range")
        if value is None or request.method != "GET":
            return None
        if not conditional.range_applies(request, file.etag, file.modified, time.time()):
            return None
        found = ranges.wanted(value, file.size)
        if found is None:
            return None
        if not found:
            return error_page(416, f"range {value[:80]!r} of {file.size}", ranges.unsatisfiable(file.size))
        return ranges.partial(found, file.size, file.kind, file.fields, descriptor)

    # The cache: path -> file, at most self.room bytes; each entry is checked again after FRESH seconds

    def remember(self, path: str, file: File, sidecars: tuple[tuple[str, str], ...]) -> None:
        """Cache a small file; if there is no room, forget all others first."""
        entry = Remembered(file, sidecars, time.monotonic())
        if entry.cost > self.room:
            return
        if path in self.cache:
            self.forget(path)
        if self.taken + entry.cost > self.room:
            self.cache.clear()
            self.taken = 0
        self.cache[path] = entry
        self.taken += entry.cost

    def keep(self, path: str, file: File, size: int) -> bool:
        """Count `size` more bytes, and COST, for a file; return whether there is room, and it is still cached.

        If there is no room, forget all files first, as remember() does. The next request of the file finds room.
        """
        cost = size + COST
        entry = self.cache.get(path)
        if entry is None or entry.file is not file or entry.cost + cost > self.room:
            return False
        if self.taken + cost > self.room:
            self.cache.clear()
            self.taken = 0
            return False
        entry.cost += cost
        self.taken += cost
        return True

    def forget(self, path: str) -> None:
        """Drop an entry."""
        known = self.cache.pop(path, None)
        if known is not None:
            self.taken -= known.cost

    def look_again(self, known: Remembered) -> bool:
        """Return whether file and variants are unchanged; if they are, the entry is good for another second."""
        name = self.name(known.file.path)
        try:
            descriptor = self.open(name)
            if descriptor is None:
                return False
            try:
                unchanged = identity(os.fstat(descriptor)) == known.file.identity
            finally:
                os.close(descriptor)
        except (OSError, HTTPError):
            return False
        if unchanged and self.sidecars(name) == known.sidecars:
            known.checked = time.monotonic()
            return True
        return False


def hidden(path: str) -> bool:
    """Return whether a name on the path begins with a dot, or is private to a web application of Java.

    .well-known at the root is public: RFC 8615.
    """
    if path == "/.well-known" or path.startswith("/.well-known/"):
        path = path.removeprefix("/.well-known")
    return HIDDEN.search(path) is not None


def whole(file: File, descriptor: int) -> Response:
    """Return the 200 with the whole file."""
    if file.response is not None:
        return file.response
    return FileResponse(200, (("Content-Type", file.kind), *file.fields), (Region(descriptor, 0, file.size),))


def no_room(size: int) -> bool:
    """Return False: the file is not cached."""
    return False


def read(descriptor: int, size: int) -> bytes | None:
    """Return the bytes of a file; None if its size has changed meanwhile."""
    data = os.read(descriptor, size + 1)
    return data if len(data) == size else None


def redirect(target: str) -> Response:
    """Return the 301 to another place."""
    page = link_page("Moved", f'It is <a href="{html_escape(target)}">here</a>.')
    return Response(301, (("Location", target), ("Content-Type", "text/html; charset=utf-8")), page)
