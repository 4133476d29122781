"""Trusted proxies: they name the client of a request, before any site gets the request (setting `trusted-proxies`).

Read next: ewe.gateway.proxies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.features.base import Middleware
from ewe.features.declaration import Feature
from ewe.features.proxy_settings import OF_TRUSTED_PROXIES, TRUSTED_FIELDS, TRUSTED_PROXIES
from ewe.gateway.proxies import TrustedProxies

if TYPE_CHECKING:
    from ewe.features.plan import HasProxies
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream


class ProxyHeaders(Middleware):
    """Sets the client of each request from the fields of trusted proxies."""

    def __init__(self, proxies: TrustedProxies) -> None:
        self.proxies = proxies

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Identify the client, then return the inner handler's response. Raises HTTPError(400)."""
        return await self.inner.respond(self.proxies.identify(request, io), io)


def server_middleware(site: HasProxies) -> ProxyHeaders:
    """Return the middleware around all sites of a server. Raises ValueError for an invalid network."""
    site.proxies = TrustedProxies(site.config[TRUSTED_PROXIES], site.config[TRUSTED_FIELDS])
    return ProxyHeaders(site.proxies)


FEATURE = Feature(
    "trusted-proxies",
    settings=OF_TRUSTED_PROXIES,
    server_middleware=server_middleware,
    late=("ewe.gateway.proxies",),
)
