"""Addresses: which clients a location answers (settings `allow` and `deny`).

    allow = ["192.0.2.0/24", "2001:db8::/32", "unix"]
    deny = ["192.0.2.66"]

The order in the file does not matter. A client is refused with 403 if its address is in `deny`, or if there is an
`allow` without its address.

An IPv4 client of a socket that listens on :: has a mapped address (::ffff:192.0.2.1); it is matched as IPv4. "unix"
stands for the clients of Unix sockets.

Possible failures: behind a proxy all clients have the proxy's address. client.py says which address counts.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING

from ewe.config.messages import Reason, quoted
from ewe.config.setting_types import list_of
from ewe.features.base import Middleware
from ewe.features.declaration import Feature, StepKey
from ewe.features.guards.client import client_of
from ewe.http.addresses import Networks
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream


def _network(raw: object) -> str:
    """Return an address or a network of the settings `allow` and `deny`, as it was written.

    Raises ValueError, or Reason: a ValueError whose text tells the user the remedy.
    """
    if not isinstance(raw, str) or not raw:
        raise ValueError(raw)
    if raw == "all":
        raise Reason("leave the setting out: allow alone refuses all others, deny alone lets them pass")
    try:
        Networks([raw])
    except ValueError:
        try:
            # Bits after the prefix are set, as in 192.0.2.7/24. With strict=False, ip_network() clears them.
            network = ip_network(raw, strict=False)
        except ValueError:
            raise ValueError(raw) from None
        raise Reason(f"not {quoted(raw)}; the network is {network}") from None
    return raw


NETWORKS = list_of(
    "NETWORKS",
    'addresses and networks such as ["192.0.2.7", "192.0.2.0/24", "2001:db8::/32", "unix"]',
    _network,
    lone=True,
    least=1,
)


class Deny(Middleware):
    """Refuses the clients of some networks (setting `deny`)."""

    def __init__(self, networks: tuple[str, ...]) -> None:
        self.networks = Networks(networks)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the inner handler's response for a client of another network. Raises HTTPError(403)."""
        if client_of(io) in self.networks:
            raise HTTPError(403, "the client's address is in deny")
        return await self.inner.respond(request, io)


class Allow(Middleware):
    """Refuses all clients except those of some networks (setting `allow`)."""

    def __init__(self, networks: tuple[str, ...]) -> None:
        self.networks = Networks(networks)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the inner handler's response for a client of these networks. Raises HTTPError(403)."""
        if client_of(io) not in self.networks:
            raise HTTPError(403, "the client's address is not in allow")
        return await self.inner.respond(request, io)


FEATURE = Feature(
    "addresses",
    keys={
        "deny": StepKey(NETWORKS, "addresses of clients that get 403", Deny),
        "allow": StepKey(NETWORKS, "addresses of clients that are let in; all others get 403", Allow),
    },
)
