"""Several sites on one server, and locations on each: what the tables [[site]] and [[site.location]] make.

A server without such tables has one ewe.site.Site, and nothing here is loaded. Read virtual.py first: its respond()
is the order in which a request meets the parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.site import Site

if TYPE_CHECKING:
    from ewe.config.settings import Config


def make_site(config: Config, **how: bool) -> Site:
    """Return what a server with this configuration offers. how: as Site takes it. Raises ValueError."""
    if config.sites or config.env or config.pass_authorization:
        from ewe.sites.virtual import Sites

        return Sites(config, **how)
    return Site(config, **how)
