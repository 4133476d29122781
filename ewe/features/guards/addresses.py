"""Addresses: which clients a location answers (settings `allow` and `deny`).

    allow = ["192.0.2.0/24", "2001:db8::/32", "unix"]
    deny = ["192.0.2.66"]

The order in the file does not matter. An address that is in `deny` is refused. If there is an `allow`,
an address that is not in it is refused. A refusal is a 403.

An IPv4 client of a socket that listens on :: has a mapped address (::ffff:192.0.2.1); it is matched as IPv4. "unix"
stands for the clients of Unix sockets.

What can go wrong: behind a proxy all clients have the proxy's address. client.py says which address counts.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING

from ewe.config.messages import ConfigError
from ewe.features.base import Middleware
from ewe.features.declaration import Feature, Key
from ewe.features.guards.client import client_of
from ewe.features.guards.tables import expected, texts
from ewe.http.addresses import Networks
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

WHAT = 'addresses and networks such as ["192.0.2.7", "192.0.2.0/24", "2001:db8::/32", "unix"]'


class Deny(Middleware):
    """Refuse some clients, by their addresses (setting `deny`)."""

    def __init__(self, networks: Networks) -> None:
        self.networks = networks

    @classmethod
    def from_table(cls, value: object, place: str) -> Deny:
        """Read the setting. place: how an error message begins. Raises ConfigError."""
        return cls(networks_of(value, place))

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer the other clients. Raises HTTPError(403)."""
        if client_of(request, io) in self.networks:
            raise HTTPError(403, "the client's address is in deny")
        return await self.inner.respond(request, io)


class Allow(Middleware):
    """Refuse all other clients (setting `allow`)."""

    def __init__(self, networks: Networks) -> None:
        self.networks = networks

    @classmethod
    def from_table(cls, value: object, place: str) -> Allow:
        """Read the setting. place: how an error message begins. Raises ConfigError."""
        return cls(networks_of(value, place))

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer these clients. Raises HTTPError(403)."""
        if client_of(request, io) not in self.networks:
            raise HTTPError(403, "the client's address is not in allow")
        return await self.inner.respond(request, io)


def networks_of(value: object, place: str) -> Networks:
    """Return the networks of a setting. place: how an error message begins. Raises ConfigError."""
    names = texts(value, place, WHAT)
    if "all" in names:
        raise ConfigError(
            f'{place} "all": leave the setting out; allow alone refuses all others, deny alone lets them pass'
        )
    for name in names:
        try:
            Networks([name])
        except ValueError:
            raise expected(place, name, WHAT + hint(name)) from None
    return Networks(names)


def hint(name: str) -> str:
    """Return what to write in place of a network whose address has bits of a host; "" for another fault."""
    try:
        return f"; the network is {ip_network(name, strict=False)}"
    except ValueError:
        return ""


FEATURE = Feature(
    "addresses",
    keys={
        "deny": Key(
            "addresses of clients that get 403",
            'a list of addresses and networks: ["192.0.2.0/24"]',
            Deny.from_table,
        ),
        "allow": Key(
            "addresses of clients that are let in; all others get 403",
            "a list of addresses and networks",
            Allow.from_table,
        ),
    },
)
