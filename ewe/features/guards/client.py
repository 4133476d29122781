"""The client of a request, as all guards see it: one function says which address that is."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ewe.http.messages import Request
    from ewe.streams.base import Stream

MAPPED = bytes(10) + b"\xff\xff"  # ::ffff:0:0/96, RFC 4291 section 2.5.5.2
UNIX = b"unix:"


def client_of(request: Request, io: Stream) -> str:
    """Return the address of the client who sent a request; "unix:" for one on a Unix socket."""
    return io.client[0]


@lru_cache(maxsize=1024)
def packed(address: str) -> bytes:
    """Return an address as 4 or 16 bytes; UNIX for a Unix socket, and for a text that is no address.

    An IPv4 address that is mapped into IPv6 (::ffff:192.0.2.1) is the IPv4 address.
    """
    try:
        data = ip_address(address.partition("%")[0]).packed
    except ValueError:
        return UNIX
    return data[12:] if len(data) == 16 and data.startswith(MAPPED) else data


def who(address: str) -> bytes:
    """Return the key by which a client is counted: the IPv4 address, or the /64 network of an IPv6 address.

    A household or a rented machine has at least a /64 (RFC 6177). A client could otherwise send each request from
    another of its 2^64 addresses.
    """
    data = packed(address)
    return data[:8] if len(data) == 16 else data
