"""Trusted proxies say who the client of a request is, before any site sees it (setting `trusted-proxies`).

Read next: ewe.gateway.proxies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.features.base import Middleware
from ewe.features.declaration import Feature
from ewe.gateway.proxies import TrustedProxies

if TYPE_CHECKING:
    from ewe.features.plan import HasProxies
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream


class Identified(Middleware):
    """Have trusted proxies name the client of each request."""

    def __init__(self, proxies: TrustedProxies) -> None:
        self.proxies = proxies

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the response to the client that the proxy names. Raises HTTPError(400)."""
        return await self.inner.respond(self.proxies.identify(request, io), io)


def around_server(site: HasProxies) -> Identified:
    """Return the middleware around all sites of a server. Raises ValueError for a network that is none."""
    site.proxies = TrustedProxies(site.config.trusted_proxies, site.config.trusted_fields)
    return Identified(site.proxies)


FEATURE = Feature(
    "trusted-proxies",
    settings=("trusted_proxies", "trusted_fields", "proxy_protocol"),
    server=around_server,
    late=("ewe.gateway.proxies", "ewe.gateway.proxy_protocol"),
)
