"""Virtual hosts: which of several sites a request is for, by its Host field and by the server's address.

Source: RFC 9110 section 7.2 (Host). Order: an exact name, then the longest wildcard, then the first site without a
name, then the first site. Sites that listen on some addresses only are left out for other addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from ewe.bounded import BoundedDict

T = TypeVar("T")
MAX_HOSTS = 1024  # whose site is remembered: clients choose the names
ANY = frozenset({"0.0.0.0", "::", "*"})


class Host(NamedTuple):
    """What one site answers for. names: "example.org" or "*.example.org", in lower case; none: every name.

    listen: (address, port) of the server; none: every one.
    """

    names: tuple[str, ...]
    listen: tuple[tuple[str, int], ...] = ()


class VirtualHosts(Generic[T]):
    """Chooses one of several things, each of which belongs to a Host. There is at least one."""

    def __init__(self, all: Sequence[tuple[Host, T]]) -> None:
        self.all = all
        self.by_address = any(host.listen for host, _ in all)
        self.known: BoundedDict[tuple[str, tuple[str, int] | None], T] = BoundedDict(MAX_HOSTS)

    def choose(self, host: str, server: tuple[str, int]) -> T:
        """Return what answers. host: as sent, with or without a port. server: where the client has connected to."""
        key = (host, server if self.by_address else None)
        try:
            return self.known[key]
        except KeyError:
            found = self.known[key] = self.choose_uncached(name_of(host), server)
            return found

    def choose_uncached(self, name: str, server: tuple[str, int]) -> T:
        """Return what answers, by the order above. name: in lower case, without a port."""
        here = [each for each in self.all if not each[0].listen or hears(each[0], server)] or self.all
        for host, found in here:
            if name in host.names:
                return found
        for wildcard in parents(name):
            for host, found in here:
                if wildcard in host.names:
                    return found
        return next((found for host, found in here if not host.names), here[0][1])


def hears(host: Host, server: tuple[str, int]) -> bool:
    """Return whether a site listens on this address of the server."""
    return any(
        port == server[1] and (address in ANY or address == server[0]) for address, port in host.listen
    )


def name_of(host: str) -> str:
    """Return the name in a Host field: without a port and a final dot, in lower case."""
    name, colon, port = host.rpartition(":")
    if colon and not port.endswith("]"):
        host = name
    return host.lower().removesuffix(".")


def parents(name: str) -> list[str]:
    """Return the wildcards that match a name, the longest first: *.www.example.org, *.example.org, *.org."""
    labels = name.split(".")
    return ["*." + ".".join(labels[at:]) for at in range(1, len(labels))]
