"""Trusted proxies: behind one, a request's client is not the peer of the connection.

    client 203.0.113.9 ── https ──▶ nginx 10.0.0.2 ── http ──▶ ewe
                                    X-Forwarded-For: 203.0.113.9
                                    X-Forwarded-Proto: https

Programs, redirects, limits and the access log need the client's address and scheme, not nginx's. A feature asks the
stream for them (`io.client`, `io.scheme`, `io.server`). Therefore identify() sets these three before a feature sees
the request, and no other part of ewe knows about proxies. identify() sets them for each request: a proxy sends the
requests of many clients over one connection.

- ewe believes only peers of the setting trusted-proxies. For all other peers nothing changes.
- The PROXY protocol (proxy_protocol.py) gives the same information once, at the start of a connection.
- Equal heads share one Request, even if one peer is trusted and another is not. identify() therefore changes the
  stream. If the proxy names another Host, the request is copied with that host.

Read next: http/forwarded.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from ewe.http.addresses import Networks
from ewe.http.forwarded import X_FORWARDED_FIELDS, Hop, Origin, origin_of, parse_forwarded, parse_x_forwarded
from ewe.http.messages import Request, with_host
from ewe.streams.base import Endpoints

if TYPE_CHECKING:
    from ewe.streams.base import Stream

NO_PARAMS: tuple[object, bytes] = (None, b"")
MAX_CACHED_FIELD_CHARS = 512  # of the fields; longer ones are not cached


class TrustedProxies:
    """Sets a stream's client, server and scheme to the values that trusted proxies give for a request."""

    def __init__(self, names: tuple[str, ...], fields: str) -> None:
        """names: addresses, networks, "unix". fields: "x-forwarded" or "forwarded". Raises ValueError."""
        self.networks = Networks(names)
        self.field_names = ("forwarded",) if fields == "forwarded" else X_FORWARDED_FIELDS
        self.parse: Callable[..., list[Hop]] = parse_forwarded if fields == "forwarded" else parse_x_forwarded
        # Fast path, same meaning: the requests of one client carry the same fields.
        self.cached_read = functools.lru_cache(maxsize=1024)(self.read)

    def read(self, *values: str) -> Origin:
        """Return the origin in the values of the fields.

        Raises HTTPError(400) for a malformed Forwarded field, or a malformed host.
        """
        return origin_of(self.parse(*values), self.networks)

    def identify(self, request: Request, stream: Stream) -> Request:
        """Set the stream's client, server and scheme for this request; return the request, or a copy for its host.

        Raises HTTPError(400) if a trusted proxy names a malformed host, or its Forwarded field is malformed.
        """
        endpoints = stream.endpoints
        if endpoints is None:
            trusted = stream.client[0] in self.networks
            endpoints = Endpoints(stream.client, stream.server, stream.scheme, trusted)
            stream.endpoints = endpoints
            stream.peer = stream.peer or stream.client
        if not endpoints.trusted:
            return request
        reset(stream)
        values = request.values
        fields = [values.get(name, "") for name in self.field_names]
        read = self.cached_read if sum(map(len, fields)) <= MAX_CACHED_FIELD_CHARS else self.read
        origin = read(*fields)
        if origin.client is not None and origin.client != stream.client:
            stream.client = origin.client
        host = origin.host or request.host
        if origin.scheme or origin.port:
            scheme = origin.scheme or endpoints.scheme
            port = origin.port or port_of(host) or (443 if scheme == "https" else 80)
            stream.scheme = scheme
            stream.server = server_of(endpoints.server[0], port)
        if stream.client != endpoints.client:
            stream.gateway_params, stream.libcgi_block = NO_PARAMS, b""
        return request if host == request.host else with_host(request, host)


def http_peer(stream: Stream) -> str:
    """Return the address that has sent this request over HTTP: that of a trusted proxy, otherwise the client's.

    `peer` alone does not tell: it may be a balancer that speaks the PROXY protocol, and passes no HTTP on.
    """
    endpoints = stream.endpoints
    if endpoints is not None and not endpoints.trusted:
        return stream.client[0]
    return (stream.peer or stream.client)[0]


def reset(stream: Stream) -> None:
    """Set the stream's client, server and scheme back to the connection's, before the next request is read."""
    endpoints = stream.endpoints
    if endpoints is not None:
        if stream.client != endpoints.client:
            stream.gateway_params, stream.libcgi_block = NO_PARAMS, b""
        stream.client, stream.server, stream.scheme = endpoints.client, endpoints.server, endpoints.scheme


def port_of(host: str) -> int:
    """Return the port of a checked uri-host[:port], 0 if it has none."""
    _, colon, port = host.rpartition(":")
    return int(port) if colon and port.isdigit() else 0


@functools.lru_cache(maxsize=256)
def server_of(address: str, port: int) -> tuple[str, int]:
    """Return (address, port): the same object for the same values, because features compare it by identity."""
    return address, port
