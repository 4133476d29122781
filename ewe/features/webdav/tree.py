"""From the path of a URL to a name in an open directory.

A path is walked from the root, one directory after the other. Each is opened relative to the one before, and none
may be a symbolic link (openat(2)):

    /dav/notes/today.txt ─▶ open(root) ─▶ open("notes", dir_fd) ─▶ Place(parent=that descriptor, name="today.txt")

All that happens to the file then uses the descriptor and the name. A user who exchanges a directory for a link in
between changes nothing: the descriptor still is the directory that was opened.

Four kinds of names are out of reach, for reading their properties and for writing:

- hidden ones (".git", ".ewe.toml"), which the static files do not send either, and those with control characters;
- symbolic links, devices, sockets;
- programs and all that is in their directories (ewe.gateway.claims), and pages from SQL: who may write a file shall
  not run programs by it;
- paths that another location of the site covers. Its guards would not be asked. The same holds for a file that is
  sent in place of such a path: compressed, in a language, or as the index of a directory.

Read next: upload.py, changes.py.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from ewe.features.languages import answered_by
from ewe.features.static import hidden
from ewe.gateway.claims import Claims, is_sql_page
from ewe.gateway.true_names import LOOK
from ewe.http.status import HTTPError

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PATIENCE = 2.0  # seconds for another request that changes the same directory
OUR_FILES = ".ewe-"  # how the names of unfinished files begin; hidden, as all names with a dot
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
STATUSES = {
    errno.ENOENT: 404, errno.ENOTDIR: 404, errno.ELOOP: 403, errno.EACCES: 403, errno.EPERM: 403, errno.EROFS: 403,
    errno.ENAMETOOLONG: 414, errno.EFBIG: 413, errno.ENOSPC: 507, errno.EDQUOT: 507, errno.EXDEV: 502,
    errno.ENOTEMPTY: 409, errno.EBUSY: 409, errno.EISDIR: 409, errno.EEXIST: 409,
    errno.EMFILE: 503, errno.ENFILE: 503,
}  # fmt: skip


def refusal(reason: OSError, what: str) -> HTTPError:
    """Return the answer for a system call that failed. what: the file's name, for the log."""
    status = STATUSES.get(reason.errno or 0, 500)
    return HTTPError(status, f"webdav: {what}: {reason.strerror}")


class Place:
    """A name in an open directory.

    parent: the directory's descriptor. name: "" for the root itself. path: of the URL, without a slash at its end.
    real: the whole name of the file. about: what is there, None if nothing is.
    """

    def __init__(self, parent: int, name: str, path: str, real: str) -> None:
        self.parent = parent
        self.name = name
        self.path = path
        self.real = real
        self.about = self.look()

    def look(self) -> os.stat_result | None:
        """Look again at what is there. Raises HTTPError(403) for what is neither a file nor a directory."""
        try:
            self.about = os.stat(self.name or ".", dir_fd=self.parent, follow_symlinks=False)
        except OSError as reason:
            self.about = None
            if reason.errno != errno.ENOENT:
                raise refusal(reason, self.real) from None
            return None
        if not (stat.S_ISREG(self.about.st_mode) or stat.S_ISDIR(self.about.st_mode)):
            raise HTTPError(403, f"webdav: {self.real} is neither a file nor a directory")
        return self.about

    @property
    def is_directory(self) -> bool:
        """Whether a directory is there."""
        return self.about is not None and stat.S_ISDIR(self.about.st_mode)

    def open(self, flags: int = os.O_RDONLY) -> int:
        """Open what is there, without following a link or waiting for a device. Raises OSError."""
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(self.name or ".", flags, dir_fd=self.parent)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other request change this directory meanwhile. May block. Raises HTTPError(503)."""
        # Another descriptor: flock(2) does not tell two holders of one descriptor apart.
        lock = os.open(".", DIRECTORY, dir_fd=self.parent)
        try:
            until = time.monotonic() + PATIENCE
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise HTTPError(
                            503, f"webdav: {self.real}: its directory is locked", (("Retry-After", "1"),)
                        ) from None
                    time.sleep(0.002)
            yield
        finally:
            os.close(lock)


class Tree:
    """The directory that a location shows."""

    def __init__(
        self,
        root: str,
        prefix: str,
        claims: Claims,
        covers: Callable[[str], bool] = lambda path: True,
        top: str = "",
        languages: Collection[str] = (),
        index: Collection[str] = (),
    ) -> None:
        """root: without links. prefix: the part of URLs that stands for it, without a slash at its end.

        claims: which files are programs. covers: whether a path belongs to this location, and not to another.
        top: the path of the location, without a slash at its end. languages, index: those of all locations of the
        site, languages in lower case.
        """
        self.root = root.rstrip("/") or "/"
        self.prefix = prefix
        self.claims = claims
        self.covers = covers
        self.top = top or prefix
        self.languages = languages
        self.index = index

    def is_top(self, place: Place) -> bool:
        """Return whether a place is the location itself, or holds it."""
        return not place.name or (self.top + "/").startswith(place.path + "/")

    def contains(self, path: str) -> bool:
        """Return whether a path of the site is in this tree."""
        below = path == self.prefix or path.startswith(self.prefix + "/")
        return below and self.is_ours(path)

    def is_ours(self, path: str) -> bool:
        """Return whether a file of this path is this location's, and so are all URLs that the file may answer.

        A client who writes /a.csv.gz or /a.en.csv writes what others get for /a.csv.
        """
        return all(self.covers(each) for each in answered_by(path, self.languages, self.index))

    @contextmanager
    def place(self, path: str, missing: int = 404) -> Iterator[Place]:
        """Open the directory of a path. Raises HTTPError.

        missing: the status if there is none; 404 for a path that is to be read. What is hidden is not there for
        readers (404), and must not be written (403).
        """
        path = path.rstrip("/")
        if hidden(path) or "/." in path[len(self.prefix) :]:
            why = "webdav: the name begins with a dot, or is WEB-INF or META-INF"
            raise HTTPError(404 if missing == 404 else 403, why)
        if CONTROL.search(path):
            raise HTTPError(403, "webdav: the name has control characters")
        names = [name for name in path[len(self.prefix) :].split("/") if name]
        real = "/".join((self.root.rstrip("/"), *names)) if names else self.root
        parent = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in names[:-1]:
                try:
                    child = os.open(name, DIRECTORY, dir_fd=parent)
                except OSError as reason:
                    status = missing if reason.errno in (errno.ENOENT, errno.ENOTDIR) else None
                    raise HTTPError(
                        status or refusal(reason, real).status,
                        f"webdav: {real}: {reason.strerror} ({name!r})",
                    ) from None
                os.close(parent)
                parent = child
            yield Place(parent, names[-1] if names else "", path, real)
        except UnicodeEncodeError:
            raise HTTPError(404, "webdav: no file has such a name") from None
        finally:
            os.close(parent)

    def check_path(self, path: str, *, is_directory: bool) -> None:
        """Raise HTTPError(403) if a file or a directory at a path belongs to another location.

        path: without a slash at its end. A client reaches a directory by the path with the slash.
        """
        if not (self.covers(path + "/") if is_directory else self.is_ours(path)):
            raise HTTPError(403, f"webdav: {path} belongs to another location of the site")

    def check(self, real: str, descriptor: int) -> None:
        """Raise HTTPError(403) if a file of this name is, or would be, a program. descriptor: the open file."""
        if self.claims.claim(real, real, descriptor) or is_sql_page(real, real):
            raise HTTPError(403, f"webdav: {real} is a program's, and no client may read or change it")

    def check_place(self, place: Place) -> None:
        """Raise HTTPError(403) if what is at a place is a program's or another location's.

        Where nothing is yet, something new is checked: a file, which takes the path without a slash at its end.
        """
        self.check_path(place.path, is_directory=place.is_directory)
        descriptor = place.open(LOOK) if place.about is not None else os.dup(place.parent)
        try:
            self.check(place.real, descriptor)
        finally:
            os.close(descriptor)

    def shows(self, path: str, real: str, name: str, descriptor: int) -> bool:
        """Return whether clients may see a member of a directory. path, real, descriptor: the member's."""
        if hidden("/" + name):
            return False
        as_file, as_directory = self.is_ours(path), self.covers(path + "/")
        if as_file != as_directory:  # a location with `path` or `pattern` covers one of the two
            is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            as_file = as_directory if is_directory else as_file
        if not as_file:
            return False
        return not (self.claims.claim(real, real, descriptor) or is_sql_page(real, real))
