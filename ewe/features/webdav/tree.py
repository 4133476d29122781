"""The tree of a location: find the name for a URL's path in an open directory.

ewe opens the directories of a path one after the other, from the root. Each is opened relative to the previous one,
and none may be a symbolic link (openat(2)):

    /dav/notes/today.txt ─▶ open(root) ─▶ open("notes", dir_fd) ─▶ DavPath(parent_fd, name="today.txt")

All operations on the file then use the descriptor and the name. If a user replaces a directory by a symbolic link
in between, this has no effect: the descriptor still refers to the directory that was opened.

Clients can neither read the properties of four kinds of files, nor write them:

- hidden names (".git", ".ewe.toml"), which the static files do not send either, and names with control characters;
- symbolic links, devices, sockets;
- programs and all files in their directories (ewe.gateway.protected_sources), and pages from SQL: the permission to
  write files must not be a permission to run programs;
- paths that another location of the site covers, since its guards would not be asked, and paths below the location
  about which an authorizer decides (`fastcgi-authorizer`). The same is true for a file that is sent for such a
  path: as a compressed variant, as a variant in a language, or as an index file.

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
from itertools import islice
from weakref import WeakValueDictionary

from ewe.features.languages import paths_answered_by
from ewe.features.static import hidden
from ewe.gateway.protected_sources import ProtectedSources, is_sql_page
from ewe.gateway.shared_table import SharedLock
from ewe.gateway.true_names import NAME_ONLY_FLAGS
from ewe.http.status import HTTPError
from ewe.streams.descriptors import EXHAUSTED

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LOCK_TIMEOUT_S = 2.0  # seconds to wait for another request that changes the same directory
LOCK_RETRY_S = 0.002  # seconds between two tries
MAX_NAMES = 100_000  # in one directory; a user of the machine may fill a directory with millions
OUR_FILES = ".ewe-"  # the beginning of the names of unfinished files; hidden, since it begins with a dot
RETRY = (("Retry-After", "1"),)  # the field of a 503
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
ADDITION_LOCKS: WeakValueDictionary[str, SharedLock] = WeakValueDictionary()  # root -> its lock
STATUSES = dict.fromkeys(EXHAUSTED, 503) | {
    errno.ENOENT: 404, errno.ENOTDIR: 404, errno.ELOOP: 403, errno.EACCES: 403, errno.EPERM: 403, errno.EROFS: 403,
    errno.ENAMETOOLONG: 414, errno.EFBIG: 413, errno.ENOSPC: 507, errno.EDQUOT: 507, errno.EXDEV: 502,
    errno.ENOTEMPTY: 409, errno.EBUSY: 409, errno.EISDIR: 409, errno.EEXIST: 409,
}  # fmt: skip


def refusal(reason: OSError, what: str) -> HTTPError:
    """Return the HTTPError for a failed system call. what: the file's name, for the log."""
    status = STATUSES.get(reason.errno or 0, 500)
    return HTTPError(status, f"webdav: {what}: {reason.strerror}", RETRY if status == 503 else ())


def names_in(dir_fd: int, real: str, status: int) -> list[str]:
    """Return the names in a directory, sorted. May block.

    dir_fd: its descriptor. real: its path, for the message. Raises OSError; HTTPError with this status if the
    directory has more than MAX_NAMES names.
    """
    with os.scandir(dir_fd) as items:
        names = [item.name for item in islice(items, MAX_NAMES + 1)]
    if len(names) > MAX_NAMES:
        raise HTTPError(status, f"webdav: {real} has more than {MAX_NAMES} members")
    return sorted(names)


def addition_lock(root: str) -> SharedLock:
    """Return the lock of Tree.adding() for a root. Its first Tree makes it, before any process is forked.

    After a reload, the old and the new processes share it: the old Trees exist until the new ones are made. Raises
    OSError.
    """
    lock = ADDITION_LOCKS.get(root)
    if lock is None:
        lock = ADDITION_LOCKS[root] = SharedLock()
    return lock


class DavPath:
    """A name in an open directory.

    parent_fd: the directory's descriptor. name: "" for the root itself. path: of the URL, without a slash at its
    end. real: the full path of the file. file_status: its os.stat_result; None if the file does not exist.
    """

    def __init__(self, parent_fd: int, name: str, path: str, real: str) -> None:
        self.parent_fd = parent_fd
        self.name = name
        self.path = path
        self.real = real
        self.file_status = self.restat()

    def restat(self) -> os.stat_result | None:
        """Update and return `file_status`. Raises HTTPError(403) if the name is neither a file nor a directory."""
        try:
            self.file_status = os.stat(self.name or ".", dir_fd=self.parent_fd, follow_symlinks=False)
        except OSError as reason:
            self.file_status = None
            if reason.errno != errno.ENOENT:
                raise refusal(reason, self.real) from None
            return None
        if not (stat.S_ISREG(self.file_status.st_mode) or stat.S_ISDIR(self.file_status.st_mode)):
            raise HTTPError(403, f"webdav: {self.real} is neither a file nor a directory")
        return self.file_status

    @property
    def is_directory(self) -> bool:
        """Whether the name is a directory."""
        return self.file_status is not None and stat.S_ISDIR(self.file_status.st_mode)

    def open(self, flags: int = os.O_RDONLY) -> int:
        """Open the file or directory, without following a link or waiting for a device. Raises OSError."""
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(self.name or ".", flags, dir_fd=self.parent_fd)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory against changes by other requests. May block. Raises HTTPError(503)."""
        # A new descriptor is necessary: flock(2) does not distinguish two holders of one descriptor.
        lock = os.open(".", DIRECTORY_FLAGS, dir_fd=self.parent_fd)
        try:
            until = time.monotonic() + LOCK_TIMEOUT_S
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise HTTPError(503, f"webdav: {self.real}: its directory is locked", RETRY) from None
                    time.sleep(LOCK_RETRY_S)
            yield
        finally:
            os.close(lock)


class Tree:
    """The directory that a location makes available."""

    def __init__(
        self,
        root: str,
        prefix: str,
        protected: ProtectedSources,
        covers: Callable[[str], bool] = lambda path: True,
        top: str = "",
        languages: Collection[str] = (),
        index: Collection[str] = (),
    ) -> None:
        """root: a path without links. prefix: the beginning of URLs for the root, without a slash at its end.

        protected: the protected sources. covers: returns whether a path belongs to this location. top: the path of
        the location, without a slash at its end; "": the prefix. languages, index: the languages (in lower case)
        and the index files of all locations of the site.
        """
        self.root = root.rstrip("/") or "/"
        self.prefix = prefix
        self.protected = protected
        self.covers = covers
        self.top = top or prefix
        self.languages = languages
        self.index_names = index
        self.addition_lock = addition_lock(self.root)

    @contextmanager
    def adding(self, real: str, *, moves_directory: bool = False) -> Iterator[None]:
        """Hold the lock for adding a name to a tree. All processes, and all locations with this root, share it.

        Many requests that add names hold it together. A MOVE of a directory holds it alone: from the check of the
        members until the directory has its new path. Another request could otherwise add a member that was not
        checked, and that another location would then send. The check of many members takes seconds. Two locations
        have different locks if the root of one contains the root of the other. May block.

        real: the path, for a message. Raises HTTPError(503).
        """
        if not self.addition_lock.acquire(LOCK_TIMEOUT_S, exclusive=moves_directory):
            why = "other requests change this location" if moves_directory else "a directory is being moved"
            raise HTTPError(503, f"webdav: {real}: {why}", RETRY)
        try:
            yield
        finally:
            self.addition_lock.release()

    def is_top(self, resource: DavPath) -> bool:
        """Return whether a resource is the location's own directory, or contains it."""
        return not resource.name or (self.top + "/").startswith(resource.path + "/")

    def contains(self, path: str) -> bool:
        """Return whether a path of the site is in this tree."""
        below = path == self.prefix or path.startswith(self.prefix + "/")
        return below and self.is_ours(path)

    def is_ours(self, path: str) -> bool:
        """Return whether this location covers a file's path, and all URLs for which the file may be sent.

        For example, a client that writes /a.csv.gz or /a.en.csv changes the response for /a.csv.
        """
        return all(self.covers(each) for each in paths_answered_by(path, self.languages, self.index_names))

    @contextmanager
    def resource(self, path: str, missing: int = 404) -> Iterator[DavPath]:
        """Open the parent directory of a path, and yield the DavPath. Raises HTTPError.

        missing: the status if the parent does not exist; 404 means that the path will be read. A hidden name gives
        404 for a reader, and 403 for a writer.
        """
        path = path.rstrip("/")
        if hidden(path) or "/." in path[len(self.prefix) :]:
            why = "webdav: the name begins with a dot, or is WEB-INF or META-INF"
            raise HTTPError(404 if missing == 404 else 403, why)
        if CONTROL.search(path):
            raise HTTPError(403, "webdav: the name has control characters")
        names = [name for name in path[len(self.prefix) :].split("/") if name]
        real = "/".join((self.root.rstrip("/"), *names)) if names else self.root
        parent_fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in names[:-1]:
                try:
                    child = os.open(name, DIRECTORY_FLAGS, dir_fd=parent_fd)
                except OSError as reason:
                    status = missing if reason.errno in (errno.ENOENT, errno.ENOTDIR) else None
                    raise HTTPError(
                        status or refusal(reason, real).status,
                        f"webdav: {real}: {reason.strerror} ({name!r})",
                    ) from None
                os.close(parent_fd)
                parent_fd = child
            yield DavPath(parent_fd, names[-1] if names else "", path, real)
        except UnicodeEncodeError:
            raise HTTPError(404, "webdav: no file has such a name") from None
        finally:
            os.close(parent_fd)

    def check_parent(self, resource: DavPath) -> None:
        """Raise HTTPError if a resource's parent directory is no longer at the path where ewe opened it: 409.

        A PUT or COPY checks the path at its beginning, and may take long. If another request moves the directory
        meanwhile, the file would get another path, which may belong to another location of the site. Raises
        HTTPError(403) if there is a link at the path now; OSError.
        """
        with self.resource(resource.path, missing=409) as now:
            if not os.path.samestat(os.fstat(now.parent_fd), os.fstat(resource.parent_fd)):
                raise HTTPError(409, f"webdav: the directory of {resource.real} was moved meanwhile")

    def check_path(self, path: str, *, is_directory: bool) -> None:
        """Raise HTTPError(403) if a file or a directory at a path belongs to another location.

        path: without a slash at its end. The URL of a directory has the slash.
        """
        if not (self.covers(path + "/") if is_directory else self.is_ours(path)):
            raise HTTPError(
                403, f"webdav: {path} belongs to another location of the site, or to an authorizer"
            )

    def refuse_program(self, real: str, descriptor: int) -> None:
        """Raise HTTPError(403) if a file with this path is, or would be, a program. descriptor: the open file."""
        if self.protected.protects(real, real, descriptor) or is_sql_page(real, real):
            raise HTTPError(403, f"webdav: {real} is a program's, and no client may read or change it")

    def check_resource(self, resource: DavPath) -> None:
        """Raise HTTPError(403) if a resource belongs to a program or to another location.

        If it does not exist, it is checked as a new file: its path has no slash at its end.
        """
        self.check_path(resource.path, is_directory=resource.is_directory)
        exists = resource.file_status is not None  # a new file has no mode yet: its directory stands for it
        descriptor = resource.open(NAME_ONLY_FLAGS) if exists else os.dup(resource.parent_fd)
        try:
            self.refuse_program(resource.real, descriptor)
        finally:
            os.close(descriptor)

    def shows(self, path: str, real: str, name: str, descriptor: int) -> bool:
        """Return whether clients may see a member of a directory.

        path, real: the member's path in the URL and in the file system. descriptor: the open member.
        """
        if hidden("/" + name) or CONTROL.search(name):
            return False
        try:
            as_file, as_directory = self.is_ours(path), self.covers(path + "/")
        except HTTPError:
            # 414: the path is too long for the pattern of a location, so no client can request it.
            return False
        if as_file != as_directory:  # a location with `path` or `pattern` covers one of the two
            is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            as_file = as_directory if is_directory else as_file
        if not as_file:
            return False
        return not (self.protected.protects(real, real, descriptor) or is_sql_page(real, real))
