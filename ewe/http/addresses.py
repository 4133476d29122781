"""Addresses of clients, and networks: for settings that name peers, such as trusted-proxies."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from ewe.bounded import BoundedDict

Address = IPv4Address | IPv6Address

UNIX = "unix"  # how a setting names the clients of Unix sockets
UNIX_CLIENT = "unix:"  # their address in Stream.client
MAX_ADDRESSES = 1024  # whose verdict is remembered
LONGEST = 64  # characters of an address with its scope


def parse_ip(text: str) -> Address | None:
    """Return the IP address that a text stands for; None for another text, such as "unix:" or "unknown".

    An IPv4 address in an IPv6 socket (::ffff:192.0.2.1) counts as the IPv4 address. The scope of a link-local
    address (%eth0) is dropped.
    """
    if len(text) > LONGEST or not text.isascii():
        return None
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return plain(address)


def plain(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for (::ffff:192.0.2.1), any other as it is."""
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


class Networks:
    """A set of addresses: single ones (192.0.2.1), networks (10.0.0.0/8, fd00::/8), and "unix" for Unix sockets."""

    def __init__(self, names: Iterable[str]) -> None:
        """Raises ValueError for a name that is none of these, or a network whose address has bits of a host."""
        self.unix = False
        self.networks: list[IPv4Network | IPv6Network] = []
        for name in names:
            if name == UNIX:
                self.unix = True
            else:
                self.networks.append(ip_network(name))
        self.known: BoundedDict[str, bool] = BoundedDict(MAX_ADDRESSES)

    def __contains__(self, client: str) -> bool:
        """Return whether the address of a client (Stream.client) is one of these."""
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
        if len(client) <= LONGEST:
            self.known[client] = found
        return found
