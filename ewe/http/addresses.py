"""IP addresses of clients, and networks, for settings that name peers, such as trusted-proxies."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from ewe.bounded import BoundedDict

Address = IPv4Address | IPv6Address

UNIX = "unix"  # how a setting names the clients of Unix sockets
UNIX_CLIENT = "unix:"  # the address of such a client in Stream.client
MAX_ADDRESSES = 1024  # addresses whose result is cached
MAX_ADDRESS_CHARS = 64  # characters of an address with its scope


def parse_ip(text: str) -> Address | None:
    """Return the IP address in a text; None if the text is not one, such as "unix:" or "unknown".

    An IPv4 address in an IPv6 socket (::ffff:192.0.2.1) counts as the IPv4 address. The scope of a link-local
    address (%eth0) is dropped.
    """
    if len(text) > MAX_ADDRESS_CHARS or not text.isascii():
        return None
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return unmapped_address(address)


def unmapped_address(address: Address) -> Address:
    """Return the IPv4 address in an IPv4-mapped IPv6 address (::ffff:192.0.2.1); any other address unchanged."""
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


class Networks:
    """A set of addresses (192.0.2.1), networks (10.0.0.0/8, fd00::/8), and "unix" for clients of Unix sockets."""

    def __init__(self, names: Iterable[str]) -> None:
        """names: addresses, networks and "unix", as a setting lists them.

        Raises ValueError for a malformed name, and for a network whose address has host bits set.
        """
        self.unix = False
        self.networks: list[IPv4Network | IPv6Network] = []
        for name in names:
            if name == UNIX:
                self.unix = True
                continue
            network = ip_network(name)
            address = network.network_address
            # A client's address in ::ffff:0:0/96 counts as the IPv4 address (parse_ip), as does a network in it.
            if network.prefixlen >= 96 and unmapped_address(address) is not address:
                network = ip_network((unmapped_address(address), network.prefixlen - 96))
            self.networks.append(network)
        # A client's address -> whether the set contains it. Most requests come from an address seen before.
        self.known: BoundedDict[str, bool] = BoundedDict(MAX_ADDRESSES)

    def __contains__(self, client: str) -> bool:
        """Return whether the set contains the address of a client (Stream.client)."""
        try:
            return self.known[client]
        except KeyError:
            pass
        if client == UNIX_CLIENT:
            return self.unix
        address = parse_ip(client)
        found = address is not None and any(
            address.version == network.version and address in network for network in self.networks
        )
        if len(client) <= MAX_ADDRESS_CHARS:
            self.known[client] = found
        return found
