"""Several sites on one server, built from the tables [[site]]."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ewe.config.feature_table import STEPS, feature
from ewe.features.plan import ServerPlan
from ewe.gateway.protected_sources import ProtectedSources
from ewe.http.virtual_hosts import VirtualHost, VirtualHosts
from ewe.site import Site
from ewe.sites.build import SiteBuilder
from ewe.sites.certificates import BuiltSite, Certificates, PlainAddresses
from ewe.sites.routes import Hosts
from ewe.streams.listener import socket_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ewe.config.settings import Config
    from ewe.gateway.shared_protection import ProtectedPattern


def secrets_of(config: Config) -> Iterator[str]:
    """Yield the files that no site may send: the settings file, TLS keys, and the secrets of middlewares."""
    files: list[object] = [config.file]
    for table, site_config in zip(config.sites, config.each_site(), strict=False):
        files += [site_config.tls_cert, site_config.tls_key]
        # `steps` has the keys of a table that have a middleware, such as auth = { file = "users.htpasswd" }
        for each in (table, *table.locations):
            for key, value in each.steps.items():
                secret = feature(STEPS[key].module).keys[key].secret
                files += [value.get(secret)] if secret and isinstance(value, dict) else []
    yield from (os.path.abspath(each) for each in files if each and isinstance(each, str))


def several(config: Config, **plan_arguments: Any) -> Site:
    """Return the site of a server whose settings have [[site]]. Raises ValueError with a text of one line."""
    protected: list[ProtectedSources | ProtectedPattern] = []
    server = ServerPlan(config, protected, **plan_arguments)
    certificates = Certificates()
    builders = []
    for table, site_config in zip(config.sites, config.each_site(), strict=True):
        context = certificates.context_of(site_config, table)
        host = VirtualHost(table.names, socket_names(table.listen))
        builders.append((host, table, SiteBuilder(site_config, server, table), context))
    server.protect(ProtectedSources("/", directories=secrets_of(config)))
    built = [
        BuiltSite(host, table, builder.plan, server.in_site_middlewares(builder.handler()), context)
        for host, table, builder, context in builders
    ]
    hosts = VirtualHosts([(each.host, each) for each in built])
    root = built[0].handler
    if len(built) > 1:
        root = Hosts(VirtualHosts([(each.host, each.handler) for each in built]))
    site = Site(config, server.limits, root)
    site.imported, site.built = server.applications, built
    site.tls = certificates.initial_context(built, hosts)
    if site.tls is not None and any(each.tls is None for each in built):
        site.plain_at = PlainAddresses(hosts)
    return site
