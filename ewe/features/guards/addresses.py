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

from ipaddress import IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING

from ewe.config.messages import ConfigError, quoted
from ewe.features.guards.client import UNIX, client_of, packed
from ewe.features.guards.tables import expected, texts
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

WHAT = 'addresses and networks such as ["192.0.2.7", "192.0.2.0/24", "2001:db8::/32", "unix"]'


class Networks:
    """A set of networks: unix, and the (mask, network) pairs of each length of address in bytes."""

    def __init__(self, names: tuple[str, ...], place: str) -> None:
        """names: as the settings write them. Raises ConfigError; place: how the message begins."""
        self.unix = False
        self.networks: dict[int, list[tuple[int, int]]] = {4: [], 16: []}
        for name in names:
            if name in ("unix", "unix:"):
                self.unix = True
                continue
            try:
                network = ip_network(name, strict=False)
            except ValueError:
                raise expected(place, name, WHAT) from None
            if network.network_address != ip_address(name.partition("/")[0]):
                raise ConfigError(
                    f"{place} {quoted(name)}: the network is {network}; write that, or one address"
                )
            mask, first, size = int(network.netmask), int(network.network_address), network.max_prefixlen // 8
            if (
                isinstance(network, IPv6Network)
                and network.network_address.ipv4_mapped
                and network.prefixlen >= 96
            ):
                mask, first, size = mask & 0xFFFFFFFF, first & 0xFFFFFFFF, 4
            self.networks[size].append((mask, first))

    def __contains__(self, address: bytes) -> bool:
        """Return whether an address, as packed() returns it, is in the set."""
        if address == UNIX:
            return self.unix
        number = int.from_bytes(address)
        return any(number & mask == first for mask, first in self.networks[len(address)])


class Addresses:
    """Let some clients pass, by their addresses."""

    def __init__(self, allow: Networks | None, deny: Networks | None) -> None:
        self.allow = allow
        self.deny = deny

    @classmethod
    def from_table(cls, value: dict[str, object], place: str) -> Addresses:
        """Read the settings. value: {"allow": ..., "deny": ...}, one of them or both. Raises ConfigError.

        place: how an error message begins; the name of the setting follows.
        """
        sets: dict[str, Networks] = {}
        for key, names in value.items():
            found = texts(names, f"{place} {key} =", WHAT)
            if "all" in found:
                raise ConfigError(
                    f'{place} {key} = "all": leave it out; allow alone refuses all others, deny alone allows them'
                )
            sets[key] = Networks(found, f"{place} {key} =")
        return cls(sets.get("allow"), sets.get("deny"))

    async def decide(self, request: Request, io: Stream) -> Request | Response:
        """Return the request. Raises HTTPError(403)."""
        address = packed(client_of(request, io))
        if self.deny is not None and address in self.deny:
            raise HTTPError(403, "the client's address is in deny")
        if self.allow is not None and address not in self.allow:
            raise HTTPError(403, "the client's address is not in allow")
        return request
