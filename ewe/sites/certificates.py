"""The certificates of several sites: which one a handshake gets, and where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from ewe.config.messages import ConfigError
from ewe.http.virtual_hosts import Host, VirtualHosts, hears

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ssl import SSLContext

    from ewe.config.settings import Config
    from ewe.config.site_tables import SiteTable
    from ewe.features.base import Handler
    from ewe.features.plan import Plan


class Built(NamedTuple):
    """One [[site]] as it was made. tls: None if it has no certificate."""

    host: Host
    table: SiteTable
    plan: Plan
    handler: Handler
    tls: SSLContext | None


class PlainAddresses:
    """The server's addresses whose sites have no certificate."""

    def __init__(self, hosts: VirtualHosts[Built]) -> None:
        self.hosts = hosts

    def __contains__(self, server: object) -> bool:
        return self.hosts.choose("", cast("tuple[str, int]", server)).tls is None


class Certificates:
    """The TLS contexts of all sites. Sites with the same certificate share one."""

    def __init__(self) -> None:
        self.known: dict[tuple[str | None, ...], SSLContext] = {}

    def context_of(self, config: Config, table: SiteTable) -> SSLContext | None:
        """Return the context of a site, None if it has no certificate. Raises ConfigError."""
        if config.tls != "self" and config.tls_cert is None:
            return None
        from ewe.streams.tls import server_context

        key = (config.tls, config.tls_cert, config.tls_key)
        if key not in self.known:
            try:
                self.known[key] = server_context(config.tls_cert, config.tls_key)
            except ValueError as reason:
                raise ConfigError(f"{table.place}: {reason}") from None
        return self.known[key]

    def context(self, made: Sequence[Built], hosts: VirtualHosts[Built]) -> SSLContext | None:
        """Return the context with which every handshake begins. Raises ConfigError.

        Two sites at the same address must both have a certificate or both have none: nothing tells which of them a
        client wants before its first byte has come.
        """
        for at, site in enumerate(made):
            for there in made[:at]:
                if (site.tls is None) != (there.tls is None) and overlap(site.host, there.host):
                    without, has = (site, there) if site.tls is None else (there, site)
                    raise ConfigError(
                        f"{without.table.place}: this site has no certificate (tls-cert), and that of"
                        f" {has.table.place} at the same address has one: give both one, or different addresses"
                        " (listen)"
                    )
        if not self.known:
            return None
        first = next(site.tls for site in made if site.tls is not None)
        if len(self.known) == 1:
            return first
        from ewe.streams.tls import by_name

        def choose(name: str, server: tuple[str, int]) -> SSLContext:
            return hosts.choose(name, server).tls or first

        return by_name(choose, first)


def overlap(one: Host, other: Host) -> bool:
    """Return whether two sites have an address of the server in common."""
    return (
        not one.listen
        or not other.listen
        or any(hears(one, address) or hears(other, each) for address in other.listen for each in one.listen)
    )
