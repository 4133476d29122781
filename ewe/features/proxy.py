"""The reverse proxy: an upstream, which is another HTTP server, answers for all paths below one path.

    proxy = "/app=http://127.0.0.1:3000"        the upstream sees /app/...
    proxy = "/app=http://127.0.0.1:3000/"       the upstream sees /...: the path of the URL replaces /app
    proxy = "/app=unix:/run/app.sock"           a Unix socket; http://unix:/run/app.sock:/ with a path

Several addresses for one path are used in turn. The same class answers for `gateway = "http://..."` of a location.

Read next: gateway/proxy.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ewe.config.messages import ConfigError, quoted
from ewe.config.setting_types import parse_origin, parse_proxy
from ewe.features import fastcgi_settings as shared
from ewe.features import proxy_settings as settings
from ewe.features.base import Mount
from ewe.features.declaration import Feature
from ewe.features.encoded_slashes import EncodedSlashes
from ewe.gateway.affinity import Affinity
from ewe.gateway.cgi import ALLOW, refuse_trace
from ewe.gateway.connections import Connections, HTTPCodec
from ewe.gateway.proxies import http_peer
from ewe.gateway.proxy import SpooledBody, UpstreamExchange
from ewe.gateway.spool import spooled
from ewe.http.mapping import Mapping
from ewe.http.messages import NO_BODY, BodyReader, Request, RequestCache, Response, hides_authorization
from ewe.http.request_head import forwarding_fields, passed_fields, passes_through_ewe, target_for, via_line
from ewe.http.response_head import ResponseHead, is_bodiless, options_of
from ewe.http.status import HTTPError
from ewe.http.target import percent_encode

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.base import Explanation
    from ewe.features.plan import LocationPlan, Plan
    from ewe.streams.base import Stream

MAX_LOOP = 8  # servers named ewe through which a request may pass
NO_UPGRADE: frozenset[str] = frozenset()
NOT_KNOWN: tuple[object, bytes] = (None, b"")


def features(config: Config) -> Iterator[tuple[str, Proxy]]:
    """Yield each path of the setting `proxy` with its Proxy; the longest path first.

    Raises ValueError for an invalid address, and if the addresses for one path have different paths themselves.
    """
    urls: dict[str, list[str]] = {}  # path without its last slash -> the servers for it
    for path, url in map(parse_proxy, config[settings.PROXY]):
        urls.setdefault(path.rstrip("/"), []).append(url)
    for path in sorted(urls, key=len, reverse=True):
        yield path or "/", Proxy(path, urls[path], config, "proxy")


class Proxy:
    """Passes the requests below one path to an upstream."""

    def __init__(self, path: str, urls: Sequence[str], config: Config, setting: str) -> None:
        """urls: of the upstream, at one or several addresses. setting: for error messages. Raises ValueError."""
        self.path = path.rstrip("/")
        origins = [parse_origin(url) for url in urls]
        paths = {path for _, path in origins}
        if len(paths) > 1:
            raise ValueError(f"{' and '.join(urls)} have different paths ({setting})")
        addresses = [address for address, _ in origins]
        upstream_path = paths.pop()
        self.upstream_path = None if upstream_path is None else percent_encode(upstream_path)
        try:
            # The settings of connections have the name of FastCGI, and hold for each kind of upstream.
            self.connections = Connections(
                addresses,
                config[settings.PROXY_KEEP],
                retry_s=config[shared.FASTCGI_RETRY],
                limit=config[shared.FASTCGI_CONNECTIONS],
                queue_timeout_s=config[shared.FASTCGI_QUEUE_TIMEOUT],
                codec=HTTPCodec,
                parks=True,
            )
        except ValueError as reason:
            raise ValueError(f"{reason} ({setting})") from None
        self.name = f"{self.path or '/'} ({urls[0]})"
        self.config = config
        self.timeout_s, self.idle_s = config[settings.PROXY_TIMEOUT], config[settings.PROXY_IDLE]
        self.trusted_fields = config[settings.TRUSTED_FIELDS]
        names = [ascii_address(address) for address in addresses]
        self.host = "localhost" if names[0].startswith("unix:") else names[0].removesuffix(":80")
        self.keeps_host = config[settings.PROXY_HOST] == "client"
        self.upgrades = frozenset(token.lower() for token in config[settings.PROXY_UPGRADE])
        self.mapping = Mapping(self.path, self.upstream_path, (self.host, *names))
        cookie = config[shared.FASTCGI_AFFINITY]
        self.affinity = Affinity.of(cookie, self.path or "/", self.connections.addresses)
        # request -> (the other facts on which the head depends, the head)
        self.heads: RequestCache[tuple[object, bytes]] = RequestCache()
        self.upstream_is_old = False  # it has answered with HTTP/1.0

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the upstream's response; None for another path. Raises HTTPError: 502, 503, 504."""
        path = request.path
        if not self.covers(path):
            return None
        refuse_trace(request)
        if request.method == "OPTIONS" and (path == "*" or forwards_left(request) == 0):
            return Response(204, (ALLOW,))
        if "via" in request.values and passes_through_ewe(request) >= MAX_LOOP:
            raise HTTPError(502, f"{self.name}: the request has passed {MAX_LOOP} servers named ewe: a loop?")
        upgrades = self.upgrades_of(request) if "upgrade" in request.values else NO_UPGRADE
        exchange = UpstreamExchange(
            self.connections,
            request,
            await self.body_of(request),
            io,
            self.head(request, io, upgrades),
            self.name,
            self.timeout_s,
            self.config.body_timeout,
            upgrades,
        )
        if self.affinity is not None:
            exchange.preferred = self.affinity.preferred(request)
        try:
            await exchange.begin()
            response = self.response(request, await exchange.read_head(), exchange)
        except BaseException:
            exchange.end()
            raise
        if self.affinity is not None and exchange.address not in (None, exchange.preferred):
            response.fields += (self.affinity.field(exchange.address, io.scheme),)
        return response

    def covers(self, path: str) -> bool:
        """Return whether a path is this proxy's path, or below it."""
        return path.startswith(self.path + "/") or path == (self.path or "*")

    def proxy_at(self, path: str) -> object | None:
        """Return this proxy, if it answers for a path (ewe.features.encoded_slashes)."""
        return self if self.covers(path) else None

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the line about the upstream, if the proxy covers the path."""
        covers = self.covers(request.path)
        if covers:
            yield f"  answer    the next server of {self.name}"
        return covers

    async def body_of(self, request: Request) -> BodyReader:
        """Return the request's body; a spooled one if the length is unknown and the upstream needs it."""
        body = request.body
        # HTTP/1.0 has no chunks: the head must say the length.
        if self.upstream_is_old and body.known_length() is None:
            return SpooledBody(await spooled(body, self.config.spool))
        return body

    def upgrades_of(self, request: Request) -> frozenset[str]:
        """Return the protocols to which this request may switch: those of Upgrade that the settings allow."""
        if (
            request.method != "GET"
            or request.version != (1, 1)
            or request.body is not NO_BODY
            or "upgrade" not in options_of((request.values.get("connection", ""),))
        ):
            return NO_UPGRADE
        return options_of((request.values["upgrade"],)) & self.upgrades

    def head(self, request: Request, io: Stream, upgrades: frozenset[str]) -> bytes:
        """Return the head for the upstream, without its framing.

        Equal requests without a body share one Request, so the head for the upstream is cached. upgrades: the
        protocols to which the request may switch. They follow from the request, so the key need not contain them.
        """
        peer = http_peer(io)
        hides = bool(io.variables) and hides_authorization(io.variables)
        key = (io.client[0], io.scheme, peer, hides)
        cached_key, encoded = self.heads.get(request, NOT_KNOWN)
        if cached_key == key:
            return encoded
        host = (request.host if self.keeps_host else "") or self.host
        lines = [
            f"{request.method} {target_for(request, self.path, self.upstream_path)} HTTP/1.1\r\nHost: {host}\r\n",
            *forwarding_fields(request, io.client[0], io.scheme, peer, self.trusted_fields),
            *passed_fields(request, hides_authorization=hides),
            via_line(request),
        ]
        if request.method == "OPTIONS" and (left := forwards_left(request)) is not None:
            lines.append(f"Max-Forwards: {left - 1}\r\n")
        if upgrades:
            lines.append(f"Connection: Upgrade\r\nUpgrade: {', '.join(sorted(upgrades))}\r\n")
        elif not self.connections.keeps:
            lines.append("Connection: close\r\n")
        encoded = "".join(lines).encode("latin-1")
        self.heads[request] = (key, encoded)
        return encoded

    def response(self, request: Request, head: ResponseHead, exchange: UpstreamExchange) -> Response:
        """Return the response for the client, from the head of the upstream's response. Raises HTTPError(502)."""
        fields, encoded = head.fields, head.encoded
        self.upstream_is_old = self.upstream_is_old or head.http_1_0
        if head.mapped:
            field, host = self.mapping.map_field, request.host if self.keeps_host else self.host
            fields = tuple((name, field(name.lower(), value, host)) for name, value in fields)
            if fields != head.fields:
                encoded = b""
        if head.status == 101:
            return Response(101, fields, exchange.tunnel(head, self.idle_s), reason=head.reason)
        if not is_bodiless(request.method, head.status) and (whole := exchange.whole_body()) is not None:
            return Response(head.status, fields, whole, reason=head.reason, head=encoded)
        return Response(head.status, fields, exchange, reason=head.reason, head=encoded)


def ascii_address(address: str) -> str:
    """Return HOST:PORT with a host that the field Host may contain: xn--wgv71a for 日本 (RFC 3490)."""
    if address.isascii() or address.startswith("unix:"):
        return address
    host, _, port = address.rpartition(":")
    return f"{host.encode('idna').decode()}:{port}"


def forwards_left(request: Request) -> int | None:
    """Return the number in Max-Forwards; None if it is missing or malformed (RFC 9110 section 7.6.2)."""
    value = request.values.get("max-forwards", "")
    # isdigit() alone is true for "²", which int() does not read.
    return int(value.lstrip("0")[:9] or "0") if value.isascii() and value.isdigit() else None


def allow_encoded_slashes(plan: Plan) -> None:
    """Make the parser decode %2F in paths, and each site check such paths (EncodedSlashes)."""
    plan.limits.encoded_slashes = True
    plan.server.add_site_middleware(EncodedSlashes)


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield the mounts of the proxies. A proxy of all paths comes last. Raises ValueError."""
    for path, proxy in features(plan.config):
        allow_encoded_slashes(plan)
        yield Mount(path, proxy, last=path == "/")


def gateway(location: LocationPlan, kind: str, targets: tuple[str, ...]) -> Proxy:
    """Return the Proxy that passes on the requests of a location. Raises ConfigError, ValueError.

    targets: not used, since they lack the scheme of the URLs in the table.
    """
    urls = location.table.values["gateway"]
    for url in urls:
        try:
            parse_origin(url)
        except ValueError:
            expected = "http://HOST:PORT or http://unix:PATH"
            raise ConfigError(f"{location.label_of('gateway')} {quoted(url)}: expected {expected}") from None
    allow_encoded_slashes(location.plan)
    return Proxy(location.prefix, urls, location.config, "gateway")


def answers_all(config: Config) -> bool:
    """Return whether another server answers every path."""
    return any(each.startswith("/=") for each in config[settings.PROXY])


FEATURE = Feature(
    "proxy",
    settings=settings.OF_NEXT_SERVERS,
    mounts=mounts,
    answers_all=answers_all,
    gateway=gateway,
)
