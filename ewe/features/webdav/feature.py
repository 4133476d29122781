"""The feature WebDAV: the methods for one location of a site (setting `webdav`).

    webdav = true
    webdav = { write = false }                  # clients may list and read
    webdav = { max-size = "100m" }              # the size of one file; max-body limits it, too

    OPTIONS          DAV: 1, and the methods
    GET, HEAD        the static files, without their cache: a client that has just written a file reads the new one
    PROPFIND         a file or directory (Depth: 0), or a directory with its members (Depth: 1)
    PROPPATCH        is refused, for each property
    PUT              upload.py
    DELETE, MKCOL, COPY, MOVE      changes.py

There are no locks (class 2). docs/sites.md describes the consequences for clients.

Possible failures: in a location with `webdav` and without `auth` or `allow`, every client may write. ewe warns
about this. On loopback, these clients include the pages of other sites, which the feature refuses
(ewe.gateway.own_names).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from ewe.features.static import Static
from ewe.features.webdav import changes, properties
from ewe.features.webdav.properties import Wanted
from ewe.features.webdav.tree import DIRECTORY_FLAGS, DavPath, Tree, names_in, refusal
from ewe.features.webdav.upload import put
from ewe.gateway.own_names import misdirected_response
from ewe.gateway.true_names import NAME_ONLY_FLAGS
from ewe.http.messages import Request, Response, Source
from ewe.http.status import HTTPError
from ewe.http.target import parse_target
from ewe.streams.base import Disconnected
from ewe.streams.descriptors import EXHAUSTED

if TYPE_CHECKING:
    from collections.abc import Callable

    from ewe.config.settings import Config
    from ewe.features.base import Explanation
    from ewe.gateway.protected_sources import ProtectedSources
    from ewe.streams.base import Stream

READS = ("OPTIONS", "GET", "HEAD", "PROPFIND")
WRITES = ("PUT", "DELETE", "MKCOL", "COPY", "MOVE", "PROPPATCH")
PIECE_MEMBERS = 200  # members of a directory in one piece of an answer
PIECE_CHARS = 256 * 1024  # characters of a piece, and at most one member more: clients choose the names in it


class WebDAV:
    """Answers with files that clients may list, read and write."""

    def __init__(
        self,
        config: Config,
        root: str,
        prefix: str,
        protected: ProtectedSources,
        covers: Callable[[str], bool],
        top: str,
        options: Mapping[str, Any],
        languages: Collection[str] = (),
        index: Collection[str] = (),
        has_log_in: bool = False,
    ) -> None:
        """options: the keys of the setting, `write` and perhaps `max-size`. The other arguments are those of Tree.

        has_log_in: clients must send a password. A browser sends no password for a page of another site.
        """
        self.tree = Tree(root, prefix, protected, covers, top, languages, index)
        self.static = Static(config.replace("webdav", cache=0), root, prefix, protected)
        self.max_bytes = options.get("max-size", config.max_body)
        methods = (*READS, *WRITES) if options["write"] else READS
        self.allow = ("Allow", ", ".join(methods))
        self.methods = frozenset(methods)
        self.hosts = None if has_log_in else config.names

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the response to a request below the location. Raises HTTPError."""
        method = request.method
        if self.hosts is not None and (refused := misdirected_response(request, io, self.hosts)) is not None:
            return refused
        if method not in self.methods:
            raise HTTPError(405, f"webdav: {method}", (self.allow,))
        if method in ("GET", "HEAD"):
            return await self.static.respond(request, io)
        if method == "OPTIONS":
            return Response(204, (self.allow, ("DAV", "1"), ("MS-Author-Via", "DAV")))
        try:
            if method == "PUT":
                return await put(request, io, self.tree, self.max_bytes)
            if method == "PROPFIND":
                return await self.propfind(request, io)
            if method == "PROPPATCH":
                return await self.proppatch(request)
            return await self.change(request, io)
        except OSError as reason:
            raise refusal(reason, request.path) from None

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the line about the directory of the files."""
        yield f"  answer    WebDAV, for the files below {self.tree.root}"
        return True

    async def change(self, request: Request, io: Stream) -> Response:
        """Answer DELETE, MKCOL, COPY and MOVE."""
        if await request.body.receive():
            raise HTTPError(415, f"webdav: {request.method} with a body")
        if request.method == "DELETE":
            return await io.call(changes.delete, request, self.tree)
        if request.method == "MKCOL":
            return await io.call(changes.make_directory, request, self.tree)
        target = self.destination(request)
        depth = request.values.get("depth", "infinity").lower()
        moves = request.method == "MOVE"
        if depth not in (("infinity",) if moves else ("0", "infinity")):
            raise HTTPError(400, f"webdav: {request.method} with Depth: {depth[:20]}")
        overwrites = request.values.get("overwrite", "T").upper()
        if overwrites not in ("T", "F"):
            raise HTTPError(400, "webdav: Overwrite is neither T nor F")

        def transfer() -> Response:
            return changes.transfer(
                request, self.tree, target, moves=moves, overwrites=overwrites == "T", deep=depth != "0"
            )

        return await io.call(transfer)

    def destination(self, request: Request) -> str:
        """Return the path of the field Destination. Raises HTTPError (400, 403, 502)."""
        value = request.values.get("destination")
        if value is None:
            raise HTTPError(400, f"webdav: {request.method} without Destination")
        other = Request("GET", value, request.version)
        other.host = request.host
        parse_target(other)
        if plain_host(other.host) != plain_host(request.host):
            raise HTTPError(502, f"webdav: Destination is at another server, {other.host[:80]!r}")
        if other.query is not None:
            raise HTTPError(400, "webdav: Destination has a query")
        if not self.tree.contains(other.path.rstrip("/")):
            raise HTTPError(403, "webdav: Destination is outside this location")
        return other.path

    async def proppatch(self, request: Request) -> Response:
        """Refuse to change properties."""
        names = properties.parse_proppatch(await body_of(request))
        with self.tree.resource(request.path) as resource:
            self.checked_status(resource)
            path = href(resource)
        return answer(properties.refused_changes(path, names))

    async def propfind(self, request: Request, io: Stream) -> Response:
        """Answer with the properties of a file or directory, and of its members."""
        depth = request.values.get("depth", "infinity").lower()
        if depth not in ("0", "1", "infinity"):
            raise HTTPError(400, f"webdav: PROPFIND with Depth: {depth[:20]}")
        wanted = properties.parse_propfind(await body_of(request))
        with self.tree.resource(request.path) as resource:
            file_status = self.checked_status(resource)
            if depth == "infinity" and resource.is_directory:
                return Response(403, (properties.CONTENT_TYPE,), properties.FINITE.encode(),
                                cause="webdav: PROPFIND with Depth: infinity")  # fmt: skip
            path = href(resource)
            first = properties.response_of(path, path.rstrip("/").rpartition("/")[2], file_status, wanted)
            if depth == "0" or not resource.is_directory:
                return answer(properties.HEAD + first + properties.END)
            dir_fd = resource.open(DIRECTORY_FLAGS)
        try:
            names = await io.call(self.member_names, request.path)
        except BaseException:
            os.close(dir_fd)
            raise
        members = Members(self.tree, io, dir_fd, names, resource, wanted, properties.HEAD + first)
        return Response(207, (properties.CONTENT_TYPE,), members)

    def member_names(self, path: str) -> list[str]:
        """Return the names in the directory at a path. May block. Raises HTTPError: 403 if there are too many.

        An executor thread may still run this method when its client has left. It therefore opens the directory
        itself, and uses no descriptor that the conversation closes.
        """
        with self.tree.resource(path) as resource:
            dir_fd = resource.open(DIRECTORY_FLAGS)
            try:
                return names_in(dir_fd, resource.real, 403)
            finally:
                os.close(dir_fd)

    def checked_status(self, resource: DavPath) -> os.stat_result:
        """Return the os.stat_result of a file or directory that the client may see.

        Raises HTTPError: 404 if it does not exist; 403 if it belongs to a program or to another location
        (Tree.check_resource()).
        """
        if resource.file_status is None:
            raise HTTPError(404, f"webdav: there is no {resource.real}")
        self.tree.check_resource(resource)
        return resource.file_status


class Members(Source):
    """The answer to a PROPFIND of a directory, in pieces."""

    def __init__(
        self,
        tree: Tree,
        io: Stream,
        dir_fd: int,
        names: list[str],
        resource: DavPath,
        wanted: Wanted,
        head: str,
    ) -> None:
        """dir_fd: the open directory of `resource`. names: of its members. wanted: the properties to send.

        head: the first part of the answer. close() closes the descriptor. But if the client leaves while an
        executor thread runs piece(), the stream closes it after the thread.
        """
        self.tree, self.io, self.dir_fd, self.wanted = tree, io, dir_fd, wanted
        self.path, self.real = resource.path, resource.real
        # "" after the first piece; None once piece() has returned the last one
        self.head: str | None = head
        self.names = iter(names)
        self.abandoned = False

    async def receive(self) -> bytes:
        """Return the next piece; b"" at the end."""
        if self.head is None:
            return b""
        try:
            return await self.io.call(self.piece, abandoned=lambda: os.close(self.dir_fd))
        except Disconnected:
            # An executor thread may still read the directory. The stream then calls `abandoned`.
            self.abandoned = True
            raise

    def piece(self) -> bytes:
        """Return the next piece: the head at first, up to PIECE_MEMBERS members, and the end at last. May block."""
        parts = [self.head or ""]
        self.head = ""
        size = 0
        for _ in range(PIECE_MEMBERS):
            if size > PIECE_CHARS:
                break
            name = next(self.names, None)
            if name is None:
                parts.append(properties.END)
                self.head = None
                break
            parts.append(self.member(name))
            size += len(parts[-1])
        return "".join(parts).encode() or b"\n"

    def member(self, name: str) -> str:
        """Return the element of one member; "" if clients may not see it. Raises OSError without a descriptor."""
        path, real = f"{self.path}/{name}", f"{self.real.rstrip('/')}/{name}"
        try:
            descriptor = os.open(name, NAME_ONLY_FLAGS | os.O_NOFOLLOW, dir_fd=self.dir_fd)
        except OSError as reason:
            # A client that synchronizes two directories would take a missing member for a deleted one.
            if reason.errno in EXHAUSTED:
                raise
            return ""  # the member was deleted meanwhile, or the server may not search the directory
        try:
            file_status = os.fstat(descriptor)
            if not (stat.S_ISREG(file_status.st_mode) or stat.S_ISDIR(file_status.st_mode)):
                return ""
            if not self.tree.shows(path, real, name, descriptor):
                return ""
        finally:
            os.close(descriptor)
        slash = "/" if stat.S_ISDIR(file_status.st_mode) else ""
        return properties.response_of(path + slash, name, file_status, self.wanted)

    async def close(self) -> None:
        """Close the directory, unless the stream closes it."""
        if not self.abandoned:
            os.close(self.dir_fd)


def href(resource: DavPath) -> str:
    """Return the path of a resource in a URL. The path of a directory has a slash at its end."""
    return resource.path + "/" if resource.is_directory else resource.path


def answer(xml: str) -> Response:
    """Return the 207 with a document."""
    return Response(207, (properties.CONTENT_TYPE,), xml.encode())


async def body_of(request: Request) -> bytes:
    """Return the body of a request, an XML document. Raises HTTPError(413)."""
    pieces = []
    size = 0
    while piece := await request.body.receive():
        size += len(piece)
        if size > properties.MAX_XML_BYTES:
            raise HTTPError(413, f"webdav: a body of XML with more than {properties.MAX_XML_BYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def plain_host(host: str) -> str:
    """Return a host without the default port of its scheme."""
    return host.lower().removesuffix(":80").removesuffix(":443")
