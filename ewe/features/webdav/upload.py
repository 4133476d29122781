"""PUT: the body of a request becomes a file (RFC 9110 section 9.3.4).

A client that reads the file meanwhile gets the old file or the new one, never a part. ewe writes the body to a file
without a name. When the body is complete, the file gets its name in one step:

    body ──▶ O_TMPFILE, no name ──▶ fsync ──▶ locked: conditions once more ──▶ link(".ewe-...") ──▶ rename(name)

The kernel deletes a file without a name if the client leaves, the disk is full or the server is killed. The file
has a hidden name only between link and rename. If the file system does not support O_TMPFILE (NFS, overlayfs before
Linux 6.3), the unfinished file has the hidden name from the beginning, and a server that is killed leaves it
behind.

**Lost updates** (RFC 9110 section 13.1.1): two people edit a page, and the second PUT destroys the changes of the
first. If a client sends If-Match with the ETag of the version that it has read, it gets 412 instead. The condition
is checked before the body is read, and again while the directory is locked. All processes of the server take this
lock before they change the directory.

Possible failure: the client leaves while finish() waits for the lock in an executor thread, beside an event loop.
If its descriptors were closed now, their numbers could soon belong to the file and the directory of another PUT.
finish() would then publish the unfinished file of another client. They stay open until finish() has returned.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ewe.features.static import File
from ewe.features.webdav.tree import OUR_FILES, DavPath, Tree, refusal
from ewe.gateway.spool import write
from ewe.http import conditional
from ewe.http.dates import parse_date
from ewe.http.messages import Request, Response
from ewe.http.status import HTTPError
from ewe.streams.base import Disconnected

if TYPE_CHECKING:
    from collections.abc import Callable

    from ewe.streams.base import Stream

NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
TMPFILE: int = getattr(os, "O_TMPFILE", 0)  # 0: the system does not support files without a name
UNNAMED_FILE_FLAGS = TMPFILE | os.O_WRONLY | os.O_CLOEXEC
NOT_A_FILE = ("Allow", "OPTIONS, PROPFIND, PROPPATCH, COPY, MOVE, DELETE")


class NewFile:
    """A file that is being written. It has no name, or a hidden one if the file system does not support O_TMPFILE.

    descriptor: the open file. name: the hidden name; "" if the file has none.
    """

    def __init__(self, dir_fd: int) -> None:
        """Create the file. dir_fd: its directory, which stays open while this object is used. Raises OSError."""
        self.dir_fd = dir_fd
        self.name = ""
        if TMPFILE:
            try:
                self.descriptor = os.open(".", UNNAMED_FILE_FLAGS, 0o666, dir_fd=dir_fd)
                return
            except OSError as reason:
                if reason.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                    raise
        name = hidden_name()
        self.descriptor = os.open(name, NEW_FILE_FLAGS, 0o666, dir_fd=dir_fd)
        self.name = name

    def ensure_name(self) -> str:
        """Return the hidden name of the file; give it one first if it has none. Raises OSError."""
        if not self.name:
            name = hidden_name()
            # A file opened with O_TMPFILE has no name, and gets one by this link: open(2).
            source = f"/proc/self/fd/{self.descriptor}"
            os.link(source, name, dst_dir_fd=self.dir_fd, follow_symlinks=True)
            self.name = name
        return self.name

    def take_name(self, resource: DavPath) -> None:
        """Replace the file of a resource, in one step; keep its mode, without execute bits. Raises OSError."""
        if resource.file_status is not None:
            os.fchmod(self.descriptor, stat.S_IMODE(resource.file_status.st_mode) & 0o666)
        self.rename_to(resource.name, resource.parent_fd)

    def rename_to(self, name: str, dir_fd: int) -> None:
        """Publish the file under a name in a directory, in one step. Raises OSError."""
        os.rename(self.ensure_name(), name, src_dir_fd=self.dir_fd, dst_dir_fd=dir_fd)
        self.name = ""

    def close(self) -> None:
        """Close the file, and delete it unless rename_to() has published it.

        The kernel deletes a file without a name when its last descriptor is closed.
        """
        os.close(self.descriptor)
        if self.name:
            try:
                os.unlink(self.name, dir_fd=self.dir_fd)
            except OSError:
                pass  # an administrator has deleted the file already


def hidden_name() -> str:
    """Return a new name for an unfinished file."""
    return OUR_FILES + secrets.token_hex(8)


async def put(request: Request, io: Stream, tree: Tree, max_bytes: int) -> Response:
    """Write the body of a request to the file at its path. max_bytes: the largest body. Raises HTTPError."""
    if "content-range" in request.values:  # RFC 9110 section 14.5
        raise HTTPError(400, "webdav: PUT of a part of a file (Content-Range)")
    # ewe does not store the coding, so later clients would get the coded bytes without it.
    if request.values.get("content-encoding", "identity").lower() != "identity":
        raise HTTPError(415, "webdav: PUT with Content-Encoding")
    if request.length is not None and request.length > max_bytes:
        raise too_large(max_bytes)
    if request.path.endswith("/"):
        raise HTTPError(409, "webdav: PUT to a path with a slash at its end; MKCOL makes a directory")
    with ExitStack() as descriptors:
        resource = descriptors.enter_context(tree.resource(request.path, missing=409))
        check_conditions(request, resource)
        if resource.is_directory or not resource.name:
            raise HTTPError(405, f"webdav: PUT to the directory {resource.real}", (NOT_A_FILE,))
        try:
            tree.check_resource(resource)
            file = NewFile(resource.parent_fd)
        except OSError as reason:
            raise refusal(reason, resource.real) from None
        descriptors.callback(file.close)
        try:
            tree.refuse_program(resource.real, file.descriptor)
            await receive(request, file.descriptor, max_bytes)
            return await call_with(descriptors, io, lambda: finish(request, tree, resource, file))
        except OSError as reason:
            raise refusal(reason, resource.real) from None


async def call_with(descriptors: ExitStack, io: Stream, function: Callable[[], Response]) -> Response:
    """Return function(), which uses descriptors, and close them after it. Raises its exceptions, Disconnected.

    If the client leaves, an executor thread may still run the function. The stream then closes the descriptors.
    """
    held = descriptors.pop_all()
    try:
        response = await io.call(function, abandoned=held.close)
    except Disconnected:
        raise
    except BaseException:
        held.close()
        raise
    held.close()
    return response


async def receive(request: Request, descriptor: int, max_bytes: int) -> None:
    """Write a body to a file. Raises HTTPError, OSError."""
    size = 0
    while piece := await request.body.receive():
        size += len(piece)
        if size > max_bytes:
            raise too_large(max_bytes)
        write(descriptor, piece)


def too_large(max_bytes: int) -> HTTPError:
    """Return the HTTPError for a body that is too large."""
    return HTTPError(413, f"webdav: the body has more than {max_bytes} bytes (webdav max-size)")


def finish(request: Request, tree: Tree, resource: DavPath, file: NewFile) -> Response:
    """Wait until a complete file is on the disk, and give it its name if the request's conditions still hold.

    Raises HTTPError, OSError.
    """
    os.fsync(file.descriptor)
    with resource.locked(), tree.adding(resource.real):
        tree.check_parent(resource)
        before = resource.restat()
        check_conditions(request, resource)
        if resource.is_directory:
            raise HTTPError(405, f"webdav: {resource.real} has become a directory", (NOT_A_FILE,))
        file.take_name(resource)
        etag = etag_of(os.fstat(file.descriptor))
    return Response(204 if before is not None else 201, (("ETag", etag),))


def etag_of(file_status: os.stat_result) -> str:
    """Return the entity tag that the response to a GET of the file has."""
    return File("", file_status, media_type="", coding="", varies=False).etag


def check_conditions(request: Request, resource: DavPath) -> None:
    """Raise HTTPError(412) if a condition of a request that changes a file does not hold: RFC 9110 section 13.2.2.

    ewe has no WebDAV locks, so a condition on a lock (If, RFC 4918 section 10.4) never holds.
    """
    if "if" in request.values:
        raise HTTPError(412, "webdav: the field If asks for a lock, and ewe has none")
    if not request.conditional:
        return
    get, file_status = request.values.get, resource.file_status
    etag = etag_of(file_status) if file_status is not None and not resource.is_directory else None
    if (value := get("if-match")) is not None:
        matching = conditional.entity_tags(value)
        if file_status is None or (matching != ["*"] and etag not in matching):
            raise HTTPError(412, f"webdav: If-Match does not hold for {resource.real}")
    else:
        since = parse_date(get("if-unmodified-since") or "")
        if since is not None and file_status is not None and int(file_status.st_mtime) > since:
            raise HTTPError(412, f"webdav: {resource.real} was modified since")
    if (value := get("if-none-match")) is not None and file_status is not None:
        differing = conditional.entity_tags(value)
        weak = [tag.removeprefix("W/") for tag in differing]
        if differing == ["*"] or etag in weak:
            raise HTTPError(412, f"webdav: If-None-Match does not hold for {resource.real}")
