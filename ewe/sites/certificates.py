"""The certificates of several sites: the choice of one for a handshake, and the addresses without TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from ewe.config.messages import ConfigError
from ewe.http.virtual_hosts import VirtualHost, VirtualHosts, listens_at

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ssl import SSLContext

    from ewe.config.settings import Config
    from ewe.config.site_tables import SiteTable
    from ewe.features.base import Handler
    from ewe.features.plan import Plan


class BuiltSite(NamedTuple):
    """One [[site]] with the objects built from it. tls: None if the site has no certificate."""

    host: VirtualHost
    table: SiteTable
    plan: Plan
    handler: Handler
    tls: SSLContext | None


class PlainAddresses:
    """The server's addresses whose sites have no certificate."""

    def __init__(self, hosts: VirtualHosts[BuiltSite]) -> None:
        self.hosts = hosts

    def __contains__(self, server: object) -> bool:
        """Return whether the sites at an (address, port) of the server speak plain HTTP."""
        return self.hosts.choose("", cast("tuple[str, int]", server)).tls is None


class Certificates:
    """The TLS contexts of all sites. Sites with the same certificate share one."""

    def __init__(self) -> None:
        self.contexts: dict[tuple[str | None, ...], SSLContext] = {}

    def context_of(self, config: Config, table: SiteTable) -> SSLContext | None:
        """Return the context of a site; None if the site has no certificate. Raises ConfigError."""
        if config.tls != "self" and config.tls_cert is None:
            return None
        from ewe.streams.tls import server_context

        key = (config.tls, config.tls_cert, config.tls_key)
        if key not in self.contexts:
            try:
                self.contexts[key] = server_context(config.tls_cert, config.tls_key)
            except ValueError as reason:
                raise ConfigError(f"{table.origin}: {reason}") from None
        return self.contexts[key]

    def initial_context(
        self, built: Sequence[BuiltSite], hosts: VirtualHosts[BuiltSite]
    ) -> SSLContext | None:
        """Return the context with which every handshake begins; None if no site has a certificate.

        Raises ConfigError if one of two sites at the same address has a certificate and the other has none: before
        the client's first byte the server cannot know which of them the client wants.
        """
        for index, site in enumerate(built):
            for other in built[:index]:
                if (site.tls is None) != (other.tls is None) and share_an_address(site.host, other.host):
                    without, has = (site, other) if site.tls is None else (other, site)
                    raise ConfigError(
                        f"{without.table.origin}: this site has no certificate (tls-cert), and that of"
                        f" {has.table.origin} at the same address has one: give both one, or different addresses"
                        " (listen)"
                    )
        if not self.contexts:
            return None
        first = next(site.tls for site in built if site.tls is not None)
        if len(self.contexts) == 1:
            return first
        from ewe.streams.tls import by_name

        def choose(name: str, server: tuple[str, int]) -> SSLContext:
            return hosts.choose(name, server).tls or first

        return by_name(choose, first)


def share_an_address(one: VirtualHost, other: VirtualHost) -> bool:
    """Return whether two sites share an address of the server."""
    return (
        not one.listen
        or not other.listen
        or any(
            listens_at(one, address) or listens_at(other, each)
            for address in other.listen
            for each in one.listen
        )
    )
