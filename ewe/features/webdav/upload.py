"""PUT: the body of a request becomes a file (RFC 9110 section 9.3.4).

A client that reads the file meanwhile gets the old one or the new one, never a part. The body goes into a file
without a name; when all of it has come, the file gets its name in one step:

    body ──▶ O_TMPFILE, no name ──▶ fsync ──▶ locked: conditions once more ──▶ link(".ewe-...") ──▶ rename(name)

A file without a name vanishes by itself if the client leaves, the disk is full or the server is killed. Only
between link and rename is there a second name, and it is hidden. Where the file system knows no O_TMPFILE (NFS,
overlayfs before Linux 6.3), the unfinished file has the hidden name from the beginning, and a server that is killed
leaves it.

**Lost updates** (RFC 9110 section 13.1.1): two people edit a page, and the second PUT destroys the first. A client
that sends If-Match with the ETag of what it has read gets 412 instead. The condition is checked before the body is
read, and again under a lock of the directory, in which all processes of the server change the directory in turn.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from typing import TYPE_CHECKING

from ewe.features.static import File
from ewe.features.webdav.tree import OUR_FILES, Place, Tree, refusal
from ewe.gateway.spool import write
from ewe.http import conditional
from ewe.http.dates import parse_date
from ewe.http.messages import Request, Response
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.streams.base import Stream

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
TMPFILE: int = getattr(os, "O_TMPFILE", 0)  # 0: this system has no files without a name
NO_NAME = TMPFILE | os.O_WRONLY | os.O_CLOEXEC
NOT_A_FILE = ("Allow", "OPTIONS, PROPFIND, PROPPATCH, COPY, MOVE, DELETE")


class NewFile:
    """A file that is being written. It has no name, or a hidden one where the file system knows no O_TMPFILE.

    descriptor: of the file. name: the hidden name, "" for none.
    """

    def __init__(self, directory: int) -> None:
        """Make the file. directory: a descriptor, open as long as this object is in use. Raises OSError."""
        self.directory = directory
        self.name = ""
        if TMPFILE:
            try:
                self.descriptor = os.open(".", NO_NAME, 0o666, dir_fd=directory)
                return
            except OSError as reason:
                if reason.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                    raise
        name = hidden_name()
        self.descriptor = os.open(name, NEW, 0o666, dir_fd=directory)
        self.name = name

    def link(self) -> str:
        """Return a hidden name of the file, which it gets now if it has none. Raises OSError."""
        if not self.name:
            name = hidden_name()
            source = f"/proc/self/fd/{self.descriptor}"
            os.link(source, name, dst_dir_fd=self.directory, follow_symlinks=True)
            self.name = name
        return self.name

    def take_name(self, place: Place) -> None:
        """Take the name of a place, in one step; what has the name now is replaced. Raises OSError.

        The new file has the mode of the old one, but may not be executed.
        """
        if place.about is not None:
            os.fchmod(self.descriptor, stat.S_IMODE(place.about.st_mode) & 0o666)
        os.rename(self.link(), place.name, src_dir_fd=self.directory, dst_dir_fd=place.parent)
        self.name = ""

    def close(self) -> None:
        """Close the file; it vanishes if it has not taken a name."""
        os.close(self.descriptor)
        if self.name:
            try:
                os.unlink(self.name, dir_fd=self.directory)
            except OSError:
                pass  # the administrator was faster


def hidden_name() -> str:
    """Return a new name for an unfinished file."""
    return OUR_FILES + secrets.token_hex(8)


async def put(request: Request, io: Stream, tree: Tree, most: int) -> Response:
    """Write the body of a request to the file at its path. most: bytes that the body may have. Raises HTTPError."""
    if "content-range" in request.values:  # RFC 9110 section 14.5
        raise HTTPError(400, "webdav: PUT of a part of a file (Content-Range)")
    if (
        request.values.get("content-encoding", "identity").lower() != "identity"
    ):  # the coding would be forgotten
        raise HTTPError(415, "webdav: PUT with Content-Encoding")
    if request.length is not None and request.length > most:
        raise too_large(most)
    if request.path.endswith("/"):
        raise HTTPError(409, "webdav: PUT to a path with a slash at its end; MKCOL makes a directory")
    with tree.place(request.path, missing=409) as place:
        check_conditions(request, place)
        if place.is_directory or not place.name:
            raise HTTPError(405, f"webdav: PUT to the directory {place.real}", (NOT_A_FILE,))
        try:
            tree.check_place(place)
            file = NewFile(place.parent)
        except OSError as reason:
            raise refusal(reason, place.real) from None
        try:
            tree.check(place.real, file.descriptor)
            await receive(request, io, file.descriptor, most)
            return await io.call(finish, request, place, file)
        except OSError as reason:
            raise refusal(reason, place.real) from None
        finally:
            file.close()


async def receive(request: Request, io: Stream, descriptor: int, most: int) -> None:
    """Write a body to a file, and wait until it is on the disk. Raises HTTPError, OSError."""
    size = 0
    while piece := await request.body.receive():
        size += len(piece)
        if size > most:
            raise too_large(most)
        write(descriptor, piece)
    await io.call(os.fsync, descriptor)


def too_large(most: int) -> HTTPError:
    """Return the answer for a body that is too large."""
    return HTTPError(413, f"webdav: the body has more than {most} bytes (webdav max-size)")


def finish(request: Request, place: Place, file: NewFile) -> Response:
    """Give a file that is complete its name, if the request's conditions still hold. Raises HTTPError, OSError."""
    with place.locked():
        before = place.look()
        check_conditions(request, place)
        if place.is_directory:
            raise HTTPError(405, f"webdav: {place.real} has become a directory", (NOT_A_FILE,))
        file.take_name(place)
        etag = etag_of(os.fstat(file.descriptor))
    return Response(204 if before is not None else 201, (("ETag", etag),))


def etag_of(about: os.stat_result) -> str:
    """Return the entity tag that a GET of the file has."""
    return File("", about, "", "", False).etag


def check_conditions(request: Request, place: Place) -> None:
    """Raise HTTPError(412) if a condition of a request that changes a file does not hold: RFC 9110 section 13.2.2.

    ewe has no locks, so a condition on one (If, RFC 4918 section 10.4) never holds.
    """
    if "if" in request.values:
        raise HTTPError(412, "webdav: the field If asks for a lock, and ewe has none")
    if not request.conditional:
        return
    get, about = request.values.get, place.about
    etag = etag_of(about) if about is not None and not place.is_directory else None
    matching = conditional.tags(get("if-match"))
    if matching is not None:
        if about is None or (matching != ["*"] and etag not in matching):
            raise HTTPError(412, f"webdav: If-Match does not hold for {place.real}")
    else:
        since = parse_date(get("if-unmodified-since") or "")
        if since is not None and about is not None and int(about.st_mtime) > since:
            raise HTTPError(412, f"webdav: {place.real} was modified since")
    differing = conditional.tags(get("if-none-match"))
    if differing is not None and about is not None:
        weak = [tag.removeprefix("W/") for tag in differing]
        if differing == ["*"] or etag in weak:
            raise HTTPError(412, f"webdav: If-None-Match does not hold for {place.real}")
