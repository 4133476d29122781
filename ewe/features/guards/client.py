"""The client of a request, as all guards see it: its address, and the key by which its requests are counted."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address
from typing import TYPE_CHECKING

from ewe.http.addresses import MAX_ADDRESS_CHARS, parse_ip

if TYPE_CHECKING:
    from ewe.streams.base import Stream


def client_of(io: Stream) -> str:
    """Return the IP address of the client of the exchange in progress; "unix:" for a client on a Unix socket.

    io: the client's stream. If the peer is a proxy that trusted-proxies names, the result is the address that the
    proxy has sent (ewe.gateway.proxies).
    """
    return io.client[0]


@lru_cache(maxsize=1024)
def client_key(address: str) -> bytes:
    """Return the key by which a client is counted: the IPv4 address, or the /64 network of an IPv6 address.

    A household or a rented machine has at least a /64 (RFC 6177). A client could otherwise send each request from
    another of its 2^64 addresses.
    """
    ip = parse_ip(address)
    if ip is None:
        return address[:MAX_ADDRESS_CHARS].encode("utf-8", "replace")
    return ip.packed[:8] if isinstance(ip, IPv6Address) else ip.packed
