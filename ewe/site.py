"""The site: where a URL leads. It asks the features mounted at a path, in order, until one answers."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from typing import TYPE_CHECKING

from ewe.config.defaults import XSWITCH_STATUS_PATH
from ewe.config.setting_types import parse_application, parse_database, parse_mount, parse_responder
from ewe.features.files import static_files
from ewe.gateway.claims import Claims, is_in, with_languages
from ewe.gateway.true_names import real_path
from ewe.http.error_pages import error_page
from ewe.http.limits import Limits
from ewe.http.messages import Request, Response
from ewe.http.status import HTTPError
from ewe.http.target import parse_target
from ewe.registry import directories_of

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.asgi import ASGI
    from ewe.features.authorizers import Authorizers
    from ewe.features.base import Feature
    from ewe.features.compression import Compression
    from ewe.features.wsgi import WSGI
    from ewe.features.xswitch import XSwitch
    from ewe.gateway.asgi import Application
    from ewe.gateway.content_cache import ContentCache
    from ewe.gateway.database import Databases
    from ewe.gateway.proxies import TrustedProxies
    from ewe.streams.base import Stream

IDLE_SOCKET = 75.0  # seconds that a connection may be idle where it costs only a socket
IDLE_WORKER = 5.0  # seconds where it occupies a process or a thread
MAX_REDIRECTS = 10  # local redirects of one request, RFC 3875 section 6.2.2


class Site:
    """All that one server offers; the same under every model."""

    # Addresses of a server with TLS that speak without it, as pairs of address and port: those of some [[site]]
    plain_at: Container[tuple[str, int]] | None = None

    def __init__(
        self,
        config: Config,
        *,
        holds_idle: bool = False,
        many_calls: bool = False,
        many_processes: bool = False,
        imports: bool = True,
    ) -> None:
        """holds_idle: an idle connection occupies a worker, so it is kept for a shorter time.

        many_calls, many_processes: several threads of a process, or several processes, call an application at once.
        imports: import the applications now. If not, import_applications() does it in each worker.
        """
        self.config = config
        self.many_calls = many_calls
        self.many_processes = many_processes
        self.imports = imports
        self.persistent = config.persistent
        # Heads seen before. ewe.conversation fills it; it is the site's because the limits are.
        self.heads: dict[bytes, Request] = {}
        self.limits = Limits(
            config.max_target, config.max_head, config.max_field, config.max_fields, config.max_body
        )
        self.idle = config.idle if config.idle is not None else IDLE_WORKER if holds_idle else IDLE_SOCKET
        self.tls = None
        if config.tls == "self" or config.tls_cert is not None:
            from ewe.streams.tls import server_context

            self.tls = server_context(config.tls_cert, config.tls_key)
        self.proxies: TrustedProxies | None = None
        if config.trusted_proxies:
            from ewe.gateway.proxies import TrustedProxies

            self.proxies = TrustedProxies(config.trusted_proxies, config.trusted_fields)
        elif config.proxy_protocol:
            raise ValueError(
                "no peer may send a PROXY header: name the proxy in trusted-proxies (proxy-protocol)"
            )
        self.databases: Databases | None = None
        if config.database or config.dbd is not None:
            from ewe.gateway.database import Databases

            self.databases = Databases(config)
        switch = None
        if config.xswitch is not None:
            from ewe.features.xswitch import XSwitch

            switch = XSwitch(config, self.limits)
        claims = self.claims(switch)
        self.static = static_files(config, claims=claims)
        self.wsgi: list[WSGI] = []
        self.asgi: list[ASGI] = []
        self.mounts = list(self.features(switch, claims))
        self.content_cache = self.cache_of(config)
        if self.content_cache is not None:
            from ewe.features.content_cache import Cached

            self.mounts = [(path, Cached(feature, self.content_cache)) for path, feature in self.mounts]
        self.authorizers: Authorizers | None = None
        if config.fastcgi_authorizer:
            from ewe.features.authorizers import Authorizers

            self.authorizers = Authorizers(config, self.static.root, self.limits)
        self.compression: Compression | None = None
        if config.compress != "off":
            from ewe.features.compression import Compression

            self.compression = Compression(config)
        self.limits.encoded_slashes = bool(config.proxy)
        self.wrap()

    def cache_of(self, config: Config) -> ContentCache | None:
        """Return what keeps the responses of programs, if the settings give it memory."""
        if not config.content_cache:
            return None
        from ewe.gateway.content_cache import ContentCache

        return ContentCache(config.content_cache)

    def wrap(self) -> None:
        """Have paths with %2F checked, and responses compressed, if the settings say so. Other sites never ask."""
        if self.limits.encoded_slashes:
            from ewe.features.encoded_slashes import site_with_encoded_slashes

            self.__dict__["respond"] = site_with_encoded_slashes(lambda request, io: self, self.respond)
        if self.compression is not None:
            from ewe.features.compression import compressed_site

            self.__dict__["respond"] = compressed_site(self.compression, self.respond)

    def proxy_at(self, path: str) -> object | None:
        """Return the proxy that answers for a path, None if another feature may (ewe.features.encoded_slashes)."""
        from ewe.features.encoded_slashes import first_is_proxy

        return first_is_proxy(self.mounts, path) if self.authorizers is None else None

    def features(self, switch: XSwitch | None, claims: Claims) -> Iterator[tuple[str, Feature]]:
        """Yield the features in the order in which they are asked, each with the beginning of the paths it is for.

        Each is imported only where the settings need it: a forked child copies what its parent has loaded. The
        static files are not among them; respond() asks them last.
        """
        config = self.config
        for path, name in map(parse_mount, config.mount):
            from ewe.features.base import Mounted, make

            yield path, Mounted(make(name, config, path), path)
        if self.databases is not None and config.browser is not None:
            from ewe.features.browser.feature import Browser

            yield config.browser, Browser(config, self.databases)
        yield from self.applications_of(config)
        if switch is not None and config.xswitch_status:
            yield XSWITCH_STATUS_PATH, switch
        if os.path.isdir(config.cgi_path):
            from ewe.features.cgi import CGI

            yield "/cgi-bin/", CGI(config, self.static, self.limits, switch)
        if os.path.isdir(config.libcgi_path):
            yield from self.libcgi(config, switch)
        if config.userdir is not None:
            from ewe.features.users import Users

            yield "/~", Users(config, switch, claims, self.databases)
        proxies = dict(self.proxied(config))
        last = proxies.pop("/", None)
        yield from proxies.items()
        if config.fastcgi or config.scgi or config.uwsgi:
            from ewe.features.fastcgi import features

            for feature in features(config, self.static, self.limits):
                yield "/", feature
        if switch is not None:
            from ewe.features.pages import SitePages

            yield "/", SitePages(switch, self.static.root, config.defaultindex)
        if self.databases is not None:
            from ewe.features.sql_pages import SQLPages

            yield "/", SQLPages(config, self.databases, self.static)
        if config.markdown:
            from ewe.features.markdown_pages import MarkdownPages

            yield "/", MarkdownPages(config, self.static)
        if last is not None:
            yield "/", last

    def proxied(self, config: Config) -> Iterator[tuple[str, Feature]]:
        """Yield the paths for which other HTTP servers answer."""
        if config.proxy:
            from ewe.features.proxy import features

            yield from features(config)

    def libcgi(self, config: Config, switch: XSwitch | None) -> Iterator[tuple[str, Feature]]:
        """Yield what answers for the site's libraries: this process, or X-Switch."""
        if config.libcgi_isolation == "in-place":
            from ewe.features.libcgi import LibCGI

            libcgi = LibCGI(config, self.static.root, self.limits)
            if config.libcgi_status:
                from ewe.features.libcgi_status import LibCGIStatus

                yield "/libcgi-status", LibCGIStatus(libcgi, config.names)
            yield "/libcgi-bin/", libcgi
        elif switch is not None:
            from ewe.features.libcgi_process import LibCGIProcess

            yield "/libcgi-bin/", LibCGIProcess(config, switch, self.static.root)

    def applications_of(self, config: Config) -> Iterator[tuple[str, Feature]]:
        """Yield the applications, the longest path first: one at / leaves the others theirs.

        Raises ValueError for two at the same path: an application answers everything below its path.
        """
        named = [(*parse_application(each), "wsgi") for each in config.wsgi]
        named += [(*parse_application(each), "asgi") for each in config.asgi]
        at: dict[str, tuple[str, str]] = {}
        for path, name, kind in named:
            other, its = at.setdefault(path.rstrip("/"), (name, kind))
            if (other, its) != (name, kind):
                raise ValueError(
                    f"two applications at {path}: {other} ({its}) and {name} ({kind}): mount one elsewhere"
                )
        for path, name, kind in sorted(named, key=lambda found: -len(found[0])):
            if kind == "wsgi":
                yield path, self.wsgi_application(config, path, name)
            else:
                yield path, self.asgi_application(config, path, name)

    def wsgi_application(self, config: Config, path: str, name: str) -> WSGI:
        """Return the feature of a WSGI application. Raises ValueError if it is imported now, and cannot be."""
        from ewe.features.wsgi import WSGI

        found = WSGI(config, path, name, threads=self.many_calls, processes=self.many_processes)
        self.wsgi.append(found)
        if self.imports:
            found.load()
        return found

    def asgi_application(self, config: Config, path: str, name: str) -> ASGI:
        """Return the feature of an ASGI application. Raises ValueError if it is imported now, and cannot be."""
        from ewe.features.asgi import ASGI

        found = ASGI(config, path, name)
        self.asgi.append(found)
        if self.imports:
            found.load()
        return found

    def import_applications(self) -> None:
        """Import the applications, in a worker that has just started. Raises ValueError, in one line."""
        for wsgi in self.wsgi:
            wsgi.load()
        for asgi in self.asgi:
            asgi.load()

    @property
    def applications(self) -> list[Application]:
        """The applications of ASGI, which are started before the first request."""
        return [each.application for each in self.asgi]

    @property
    def application_names(self) -> list[str]:
        """The names of all applications, each once: module:app."""
        return list(dict.fromkeys([*(each.name for each in self.wsgi), *(each.name for each in self.asgi)]))

    def claims(self, switch: XSwitch | None) -> Claims:
        """Return which files of the document root are programs and therefore never sent."""
        config = self.config
        root = real_path(config.documentroot)
        extensions: list[str] = []
        directories: list[str] = []
        programs = os.path.realpath(config.cgi_path)
        holds_files = is_in(root, programs)
        if not holds_files:
            directories.append(programs)
        libraries = os.path.realpath(config.libcgi_path)
        if not is_in(root, libraries):
            directories.append(libraries)
        else:
            extensions.append(".so")
        for _, driver, place in map(parse_database, config.database):
            if driver == "sqlite" and place:  # with the files that SQLite keeps beside it
                directories += [os.path.abspath(place) + end for end in ("", "-journal", "-wal", "-shm")]
        for where, _ in map(parse_responder, (*config.fastcgi, *config.scgi, *config.uwsgi)):
            if where[0] == ".":
                extensions.append(where)
            elif where != "/":
                directories.append(root + where)
        if switch is not None:
            from ewe.features.pages import EXTENSIONS

            extensions += EXTENSIONS
            directories += switch.directories
        # `ewe .` may serve the directory that has its settings. No client may read the settings or a private key.
        for each in (config.file, config.xswitch_config, config.tls_key or config.tls_cert):
            if each and (config.symlinks == "follow" or is_in(os.path.realpath(each), root)):
                directories.append(os.path.abspath(each))
        extensions = with_languages(extensions, config.languages)
        modules = [name for _, name in map(parse_application, (*config.wsgi, *config.asgi))]
        modules += [name for _, name in map(parse_mount, config.mount) if ":" in name]
        sources = [directory for each in modules for directory in directories_of(each)]
        return Claims(root, extensions, directories, programs if holds_files else "", sources)

    async def respond(self, request: Request, io: Stream) -> Response:
        """Return the response of the first feature that answers. Raises HTTPError, and what a feature raises."""
        if self.authorizers is not None:
            decision = await self.authorizers.decide(request, io)
            if isinstance(decision, Response):
                return decision if decision.target is None else await self.follow(request, decision, io)
            request = decision
        for prefix, feature in self.mounts:
            if request.path.startswith(prefix):
                response = await feature.respond(request, io)
                if response is not None:
                    return response if response.target is None else await self.follow(request, response, io)
        if request.path == "*":
            return Response(204, (("Allow", "GET, HEAD, POST, OPTIONS"),))
        return await self.static.respond(request, io) or error_page(404, "there is no such file")

    async def follow(self, request: Request, response: Response, io: Stream) -> Response:
        """Answer a local redirect as if the client had asked for its target (RFC 3875 section 6.2.2)."""
        redirects = request.redirects + 1
        if redirects > MAX_REDIRECTS:
            raise HTTPError(
                500, f"more than {MAX_REDIRECTS} local redirects, the last to {response.target!r}"
            )
        return await self.respond(moved(request, response.target or "/", redirects), io)


def moved(request: Request, target: str, redirects: int) -> Request:
    """Return the request for the target of a local redirect: GET or HEAD, without a body."""
    fields = tuple(
        (name, value) for name, value in request.fields if not name.startswith(("content-", "if-", "range"))
    )
    method = "HEAD" if request.method == "HEAD" else "GET"
    other = Request(method, target, request.version, fields)
    try:
        parse_target(other)
    except HTTPError as refused:
        raise HTTPError(502, f"a local redirect: {refused.cause}") from None
    other.host = request.host
    other.redirects = redirects
    return other
