"""Virtual hosts: choose the site of a request by its Host field and by the server's address.

Source: RFC 9110 section 7.2 (Host). Order: an exact name, then the longest wildcard, then the first site without a
name, then the first site. Sites that listen only on other addresses are left out, unless these are all sites.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from ewe.bounded import BoundedDict

T = TypeVar("T")
MAX_HOSTS = 1024  # cached Host fields; clients choose them, so the cache must be bounded
MAX_NAME_CHARS = 255  # RFC 1035 section 2.3.4
MAX_CACHED_HOST_CHARS = MAX_NAME_CHARS + 15  # with a final dot and a port
ANY = frozenset({"0.0.0.0", "::", "*"})


class VirtualHost(NamedTuple):
    """The names and addresses of one site.

    names: "example.org" or "*.example.org", in lower case; empty for every name. listen: the server's (address,
    port) pairs; empty for every address.
    """

    names: tuple[str, ...]
    listen: tuple[tuple[str, int], ...] = ()


class VirtualHosts(Generic[T]):
    """Chooses one of several objects, each of which belongs to a VirtualHost. There is at least one."""

    def __init__(self, sites: Sequence[tuple[VirtualHost, T]]) -> None:
        self.sites = sites
        self.by_address = any(host.listen for host, _ in sites)
        self.known: BoundedDict[tuple[str, tuple[str, int] | None], T] = BoundedDict(MAX_HOSTS)

    def choose(self, host: str, server: tuple[str, int]) -> T:
        """Return the object for a request. host: as sent, with or without a port.

        server: the (address, port) to which the client has connected.
        """
        if len(host) > MAX_CACHED_HOST_CHARS:
            return self.choose_uncached(name_of(host), server)
        key = (host, server if self.by_address else None)
        try:
            return self.known[key]
        except KeyError:
            found = self.known[key] = self.choose_uncached(name_of(host), server)
            return found

    def choose_uncached(self, name: str, server: tuple[str, int]) -> T:
        """Return the object for a request, in the order above. name: the host in lower case, without a port."""
        candidates = [(host, each) for host, each in self.sites if listens_at(host, server)] or self.sites
        for wanted in (name, *wildcards_for(name)):
            for host, each in candidates:
                if wanted in host.names:
                    return each
        _, first = candidates[0]
        return next((each for host, each in candidates if not host.names), first)


def listens_at(host: VirtualHost, server: tuple[str, int]) -> bool:
    """Return whether a site listens on this address of the server. A site without `listen` has every address."""
    server_address, server_port = server
    return not host.listen or any(
        port == server_port and (address in ANY or address == server_address) for address, port in host.listen
    )


def name_of(host: str) -> str:
    """Return the name in a Host field: without a port and a final dot, in lower case."""
    name, colon, port = host.rpartition(":")
    # The last colon of [::1] belongs to the IPv6 address, and no port follows it.
    if colon and not port.endswith("]"):
        host = name
    return host.lower().removesuffix(".")


def wildcards_for(name: str) -> list[str]:
    """Return the wildcards that match a name, the longest first: *.www.example.org, *.example.org, *.org.

    A name above MAX_NAME_CHARS has none: for 16,000 dots they would be 128 MB of text.
    """
    labels = name.split(".") if len(name) <= MAX_NAME_CHARS else []
    return ["*." + ".".join(labels[at:]) for at in range(1, len(labels))]
