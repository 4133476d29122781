"""The feature: which method of WebDAV does what, for one location of a site (setting `webdav`).

    webdav = true
    webdav = { write = false }                  # clients may list and read
    webdav = { max-size = "100m" }              # of one file; max-body bounds it, too

    OPTIONS          DAV: 1, and the methods
    GET, HEAD        the static files, without their cache: who has just written a file reads it, not the one before
    PROPFIND         a file or directory (Depth: 0), or a directory with its members (Depth: 1)
    PROPPATCH        is refused, property by property
    PUT              upload.py
    DELETE, MKCOL, COPY, MOVE      changes.py

There are no locks (class 2). What that means for clients is in docs/webdav.md.

What can go wrong: a location with `webdav` and without `auth` or `allow` lets everybody write. ewe warns of it. On
loopback, everybody includes the pages of other sites, which the feature refuses (ewe.gateway.own_names).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ewe.features.static import Static
from ewe.features.webdav import changes, properties
from ewe.features.webdav.properties import Wanted
from ewe.features.webdav.tree import Place, Tree, refusal
from ewe.features.webdav.upload import put
from ewe.gateway.own_names import misdirected
from ewe.gateway.true_names import LOOK
from ewe.http.messages import Request, Response, Source
from ewe.http.status import HTTPError
from ewe.http.target import parse_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from ewe.config.settings import Config
    from ewe.features.base import Explanation
    from ewe.gateway.claims import Claims
    from ewe.streams.base import Stream

READS = ("OPTIONS", "GET", "HEAD", "PROPFIND")
WRITES = ("PUT", "DELETE", "MKCOL", "COPY", "MOVE", "PROPPATCH")
AT_ONCE = 200  # members of a directory in one piece of an answer


class WebDAV:
    """Files that clients list, read and write."""

    def __init__(
        self,
        config: Config,
        root: str,
        prefix: str,
        claims: Claims,
        covers: Callable[[str], bool],
        top: str,
        options: Mapping[str, Any],
        languages: Collection[str] = (),
        index: Collection[str] = (),
        has_log_in: bool = False,
    ) -> None:
        """options: write, and max-size if there is one. The others are as Tree takes them.

        has_log_in: whether clients give a password. A browser sends none to a page of another site.
        """
        self.tree = Tree(root, prefix, claims, covers, top, languages, index)
        self.static = Static(config.replace("webdav", cache=0), root, prefix, claims)
        self.most = options.get("max-size", config.max_body)
        methods = (*READS, *WRITES) if options["write"] else READS
        self.allow = ("Allow", ", ".join(methods))
        self.methods = frozenset(methods)
        self.hosts = None if has_log_in else config.names

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the response to a request below the location. Raises HTTPError."""
        method = request.method
        if self.hosts is not None and (refused := misdirected(request, io, self.hosts)) is not None:
            return refused
        if method not in self.methods:
            raise HTTPError(405, f"webdav: {method}", (self.allow,))
        if method in ("GET", "HEAD"):
            return await self.static.respond(request, io)
        if method == "OPTIONS":
            return Response(204, (self.allow, ("DAV", "1"), ("MS-Author-Via", "DAV")))
        try:
            if method == "PUT":
                return await put(request, io, self.tree, self.most)
            if method == "PROPFIND":
                return await self.propfind(request, io)
            if method == "PROPPATCH":
                return await self.proppatch(request, io)
            return await self.change(request, io)
        except OSError as reason:
            raise refusal(reason, request.path) from None

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the directory of the files."""
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

    async def proppatch(self, request: Request, io: Stream) -> Response:
        """Refuse to change properties."""
        names = properties.parse_proppatch(await body_of(request))
        with self.tree.place(request.path) as place:
            self.reach(place)
            path = href(place)
        return answer(properties.refused_changes(path, names))

    async def propfind(self, request: Request, io: Stream) -> Response:
        """Answer with the properties of a file or directory, and of its members."""
        depth = request.values.get("depth", "infinity").lower()
        if depth not in ("0", "1", "infinity"):
            raise HTTPError(400, f"webdav: PROPFIND with Depth: {depth[:20]}")
        wanted = properties.parse_propfind(await body_of(request))
        with self.tree.place(request.path) as place:
            about = self.reach(place)
            if depth == "infinity" and place.is_directory:
                return Response(403, (properties.CONTENT_TYPE,), properties.FINITE.encode(),
                                cause="webdav: PROPFIND with Depth: infinity")  # fmt: skip
            path = href(place)
            first = properties.response_of(path, path.rstrip("/").rpartition("/")[2], about, wanted)
            if depth == "0" or not place.is_directory:
                return answer(properties.HEAD + first + properties.END)
            directory = place.open(os.O_RDONLY | os.O_DIRECTORY)
        members = Members(self.tree, io, directory, place, wanted, properties.HEAD + first)
        return Response(207, (properties.CONTENT_TYPE,), members)

    def reach(self, place: Place) -> os.stat_result:
        """Return what is at a place. Raises HTTPError: 404 if nothing is, 403 if clients cannot reach it."""
        if place.about is None:
            raise HTTPError(404, f"webdav: there is no {place.real}")
        self.tree.check_place(place)
        return place.about


class Members(Source):
    """The answer to a PROPFIND of a directory, in pieces."""

    def __init__(
        self, tree: Tree, io: Stream, directory: int, place: Place, wanted: Wanted, head: str
    ) -> None:
        """directory: its descriptor, which is this object's from now on. head: what comes first."""
        self.tree, self.io, self.directory, self.wanted = tree, io, directory, wanted
        self.path, self.real = place.path, place.real
        self.head: str | None = head
        self.names: Iterator[str] | None = None

    async def receive(self) -> bytes:
        """Return the next piece, b"" at the end."""
        if self.head is None:
            return b""
        return await self.io.call(self.piece)

    def piece(self) -> bytes:
        """Return the head, then AT_ONCE members at a time, and the end. May block."""
        if self.names is None:
            self.names = iter(sorted(os.listdir(self.directory)))
        parts = [self.head or ""]
        self.head = ""
        for _ in range(AT_ONCE):
            name = next(self.names, None)
            if name is None:
                parts.append(properties.END)
                self.head = None
                break
            parts.append(self.member(name))
        return "".join(parts).encode() or b"\n"

    def member(self, name: str) -> str:
        """Return the element of one member, "" for one that clients do not see."""
        path, real = f"{self.path}/{name}", f"{self.real.rstrip('/')}/{name}"
        try:
            descriptor = os.open(name, LOOK | os.O_NOFOLLOW, dir_fd=self.directory)
        except OSError:
            return ""  # it was deleted meanwhile
        try:
            about = os.fstat(descriptor)
            if not (stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)):
                return ""
            if not self.tree.shows(path, real, name, descriptor):
                return ""
        finally:
            os.close(descriptor)
        slash = "/" if stat.S_ISDIR(about.st_mode) else ""
        return properties.response_of(path + slash, name, about, self.wanted)

    async def close(self) -> None:
        """Close the directory."""
        os.close(self.directory)


def href(place: Place) -> str:
    """Return the path of a place in a URL: a directory's has a slash at its end."""
    return place.path + "/" if place.is_directory else place.path


def answer(xml: str) -> Response:
    """Return the 207 with a document."""
    return Response(207, (properties.CONTENT_TYPE,), xml.encode())


async def body_of(request: Request) -> bytes:
    """Return the body of a request, which is XML. Raises HTTPError(413)."""
    pieces = []
    size = 0
    while piece := await request.body.receive():
        size += len(piece)
        if size > properties.MAX_XML:
            raise HTTPError(413, f"webdav: a body of XML with more than {properties.MAX_XML} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def plain_host(host: str) -> str:
    """Return a host without the port that its scheme has anyway."""
    return host.lower().removesuffix(":80").removesuffix(":443")
