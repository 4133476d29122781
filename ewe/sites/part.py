"""A site without locations: what a [[site]] offers below them, and what a location with `root` offers.

Each has its features, made of its settings. The claims of all are shared, and so are the applications of WSGI and
ASGI, which exist once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.http.messages import Request, Response
from ewe.site import Site
from ewe.sites.claims import PatternClaims, SharedClaims

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ewe.config.settings import Config
    from ewe.config.site_tables import LocationTable
    from ewe.features.base import Feature
    from ewe.features.xswitch import XSwitch
    from ewe.gateway.claims import Claims
    from ewe.gateway.content_cache import ContentCache
    from ewe.streams.base import Stream


class Part(Site):
    """A site without locations."""

    tables: Sequence[LocationTable] = ()  # of the site's locations

    def __init__(
        self, config: Config, together: list[Claims | PatternClaims], parent: Part | None = None, **how: bool
    ) -> None:
        """together: the claims of all sites. parent: has the applications, which exist once."""
        self.together = together
        self.parent = parent
        self.mounted: list[tuple[str, Feature]] = []
        self.how = how
        super().__init__(config, **how)
        if config.userdir_settings and config.userdir is not None:
            from ewe.features.users import Users
            from ewe.sites.homes import Homes

            # Around the content cache: a log-in is asked for before a copy is sent.
            users = [
                (prefix, feature, getattr(feature, "feature", feature)) for prefix, feature in self.mounts
            ]
            self.mounts = [
                (prefix, Homes(inner, feature) if isinstance(inner, Users) else feature)
                for prefix, feature, inner in users
            ]
        self.guard, self.authorizers = self.authorizers, None  # asked once, before any location

    def claims(self, switch: XSwitch | None) -> Claims:
        self.switch = switch
        return SharedClaims.of(super().claims(switch), self.together)

    def applications_of(self, config: Config) -> Iterator[tuple[str, Feature]]:
        self.mounted = (
            self.parent.mounted if self.parent is not None else list(super().applications_of(config))
        )
        return iter(self.mounted)

    def cache_of(self, config: Config) -> ContentCache | None:
        """Return the site's content cache, unless a location has another one."""
        parent = self.parent
        if parent is not None and config.content_cache == parent.config.content_cache:
            return parent.content_cache
        return super().cache_of(config)

    def wrap(self) -> None:
        """Do nothing: a location's finishers compress."""

    def location_of(self, path: str) -> object:
        """Return the location that covers a path."""
        raise NotImplementedError

    async def offer(self, request: Request, io: Stream) -> Response:
        """Return the answer of the first feature that answers, as a site without locations does."""
        return await Site.respond(self, request, io)

    async def follow(self, request: Request, response: Response, io: Stream) -> Response:
        """Leave a local redirect to the site, whose locations may cover its target."""
        return response
