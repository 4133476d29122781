"""Several sites on one server, and locations on each: what the tables [[site]] and [[site.location]] make.

A server without such tables has one ewe.site.Site, and nothing here is loaded. Read virtual.py first: its respond()
is the order in which a request meets the parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.site import Site

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream


def make_site(config: Config, **how: bool) -> Site:
    """Return what a server with this configuration offers. how: as Site takes it. Raises ValueError."""
    if config.sites or config.env or config.pass_authorization or config.userdir_settings:
        from ewe.sites.virtual import Sites

        return behind_proxies(Sites(config, **how))
    return behind_proxies(Site(config, **how))


def behind_proxies(site: Site) -> Site:
    """Have trusted proxies say who the client of a request is, before the site sees it; return the site.

    Without the setting trusted-proxies the site stays as it is, and a request costs nothing more.
    """
    if (proxies := site.proxies) is not None:
        answer = site.respond

        async def respond(request: Request, io: Stream) -> Response:
            return await answer(proxies.identify(request, io), io)

        site.respond = respond  # type: ignore[method-assign]
    return site
