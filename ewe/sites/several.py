"""Several sites on one server, made of the tables [[site]]."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ewe.config.setting_types import parse_address
from ewe.features.plan import Server
from ewe.gateway.claims import Claims
from ewe.http.virtual_hosts import Host, VirtualHosts
from ewe.site import Site
from ewe.sites.build import SiteBuilder
from ewe.sites.certificates import Built, Certificates, PlainAddresses
from ewe.sites.routes import Hosts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ewe.config.settings import Config
    from ewe.gateway.shared_claims import PatternClaims


def secrets_of(config: Config) -> Iterator[str]:
    """Yield the files of the settings, which no site sends: the settings themselves, keys, and passwords."""
    files: list[object] = [config.file]
    for table, own in zip(config.sites, config.each_site(), strict=False):
        files += [own.tls_cert, own.tls_key]
        steps = [table.steps, *(location.steps for location in table.locations)]
        files += [each["auth"].get("file", "") for each in steps if isinstance(each.get("auth"), dict)]
    yield from (os.path.abspath(each) for each in files if each and isinstance(each, str))


def several(config: Config, **how: Any) -> Site:
    """Return the site of a server whose settings have [[site]]. Raises ValueError, in one line."""
    claims: list[Claims | PatternClaims] = []
    server = Server(config, claims, **how)
    certificates = Certificates()
    builders = []
    for table, own in zip(config.sites, config.each_site(), strict=True):
        context = certificates.context_of(own, table)
        own = own.replace("its context is made", tls="off", tls_cert=None)
        host = Host(table.names, tuple(parse_address(each)[1:] for each in table.listen))
        builders.append((host, table, SiteBuilder(own, server, table), context))
    server.claim(Claims("/", (), [*secrets_of(config)]))
    built = [
        Built(host, table, builder.plan, server.checked(builder.handler()), context)
        for host, table, builder, context in builders
    ]
    hosts = VirtualHosts([(each.host, each) for each in built])
    root = built[0].handler
    if len(built) > 1:
        root = Hosts(VirtualHosts([(each.host, each.handler) for each in built]))
    site = Site(config, server.limits, root)
    site.imported, site.built = server.applications, built
    site.tls = certificates.context(built, hosts)
    if site.tls is not None and any(each.tls is None for each in built):
        site.plain_at = PlainAddresses(hosts)
    return site
