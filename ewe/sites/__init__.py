"""The sites of a server, as one tree of handlers that is built from the settings.

Read routes.py first: a request passes its nodes from the root to a leaf. build.py makes the nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ewe.config.feature_table import SERVER, feature, is_on
from ewe.features.plan import ServerPlan
from ewe.site import IDLE_SOCKET_S, IDLE_WORKER_S, Site
from ewe.sites.build import SiteBuilder

if TYPE_CHECKING:
    from ewe.config.settings import Config


def make_site(config: Config, *, idle_occupies_worker: bool = False, **plan_arguments: Any) -> Site:
    """Return the site of a server with this configuration. Raises ValueError with a text of one line.

    idle_occupies_worker: an idle connection occupies a worker, so it is closed sooner.
    plan_arguments: of ServerPlan.
    """
    if config.sites:
        from ewe.sites.several import several

        site = several(config, **plan_arguments)
    else:
        site = alone(config, **plan_arguments)
    idle_s = config.idle
    if idle_s is None:  # the setting is auto
        idle_s = IDLE_WORKER_S if idle_occupies_worker else IDLE_SOCKET_S
    site.idle_s = idle_s
    for setting, module in SERVER.items():
        if is_on(config, setting):
            middleware = feature(module).server_middleware(site)
            site.root = middleware.around(site.root, site.root)
    if config.proxy_protocol and site.proxies is None:
        raise ValueError(
            "no peer may send a PROXY header: name the proxy in trusted-proxies (proxy-protocol)"
        )
    site.respond = site.root.respond  # type: ignore[assignment]  # the root answers every request
    return site


def alone(config: Config, **plan_arguments: Any) -> Site:
    """Return the site of a server whose settings have no [[site]]. Raises ValueError with a text of one line."""
    server = ServerPlan(config, **plan_arguments)
    builder = SiteBuilder(config, server, None)
    site = Site(config, server.limits, server.in_site_middlewares(builder.handler()))
    site.imported, site.plan = server.applications, builder.plan
    if config.tls == "self" or config.tls_cert is not None:
        from ewe.streams.tls import server_context

        site.tls = server_context(config.tls_cert, config.tls_key)
    return site
