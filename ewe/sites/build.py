"""Builders: make the tree of handlers of one site from the tables of a settings file.

Plan          the features of the site's document root (ewe.features.plan)
SiteBuilder   a Location for each [[site.location]], and a last one for every other path
LocationBuilder   the handlers of one location, from its keys
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.config.feature_table import FILTERS, GUARDS, STEPS, LocationMiddleware, feature, is_on
from ewe.config.setting_types import parse_variable
from ewe.features.plan import Plan
from ewe.sites.routes import FeatureChain, Location, SiteRoutes, UnguardedSite, Variables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ewe.config.settings import Config
    from ewe.config.site_tables import LocationTable, SiteTable
    from ewe.features.base import Handler, Middleware
    from ewe.features.plan import ServerPlan
    from ewe.sites.match import Match


class SiteBuilder:
    """Makes the routes of one site. Raises ConfigError, ValueError."""

    def __init__(self, config: Config, server: ServerPlan, table: SiteTable | None) -> None:
        """config: includes the site's settings. table: the [[site]]; None for a server without tables."""
        self.config = config
        self.tables: Sequence[LocationTable] = table.locations if table is not None else ()
        self.table = table
        # By the id() of the table that has the key, and the key
        self.middlewares_of_keys: dict[tuple[int, str], Middleware] = {}
        self.plan = Plan(config, server)
        self.routes = SiteRoutes(has_table=table is not None)
        self.plan.locate = self.routes.find
        self.unguarded_site = UnguardedSite(self.routes)
        self.routes.guarded = any(guard.setting and is_on(config, guard.setting) for guard in GUARDS)
        self.feature_chain = self.feature_chain_of(self.plan)
        for each in self.tables:
            self.routes.locations.append(self.location(each))
        self.routes.locations.append(self.location(None))

    def handler(self) -> Handler:
        """Return the handler of the site: its routes; without locations and middlewares, its FeatureChain."""
        # Such routes would only pass each request on. The FeatureChain keeps them for local redirects.
        if len(self.routes.locations) == 1 and self.routes.locations[0].handler is self.feature_chain:
            alone = FeatureChain(self.plan.mounts, self.plan.static)
            alone.site = self.routes
            return alone
        return self.routes

    def feature_chain_of(self, plan: Plan) -> FeatureChain:
        """Return the handler for the features of a document root."""
        feature_chain = FeatureChain(plan.mounts, plan.static)
        feature_chain.guarded = self.routes.guarded
        return feature_chain

    def location(self, table: LocationTable | None) -> Location:
        """Return the location of a table; for None, the last location, which covers every path."""
        config = self.config.with_values(table.own_settings) if table is not None else self.config
        guards, guard_keys = self.middlewares(GUARDS, table, config)
        filters, filter_keys = self.middlewares(FILTERS, table, config)
        match: Match | None = None
        if table is None:
            inner = self.with_variables(self.feature_chain, config)
        else:
            from ewe.sites.locations import LocationBuilder

            has_log_in = any(STEPS[key].is_log_in for key in guard_keys)
            builder = LocationBuilder(self, table, config, is_guarded=has_log_in)
            match, inner = builder.match, builder.handler()
        location = Location(match, inner, guards, filters, self.unguarded_site)
        location.guard_keys, location.filter_keys = guard_keys, filter_keys
        return location

    def with_variables(self, handler: Handler, config: Config) -> Handler:
        """Wrap a handler, so that its programs get the variables of a location's settings."""
        names = (parse_variable(each) for each in (*self.config.env, *config.env))
        variables = {name.encode(): value.encode() for name, value in names}
        if not variables and not config.pass_authorization:
            return handler
        return Variables(handler, variables, passes_authorization=config.pass_authorization)

    def middlewares(
        self, declared: Sequence[LocationMiddleware], table: LocationTable | None, config: Config
    ) -> tuple[list[Middleware], list[str]]:
        """Return the middlewares of a location, in the order of the feature table, and the keys that ask for them.

        declared: GUARDS or FILTERS. A key of the location wins over the same key of the site. Raises ConfigError.
        """
        found: list[Middleware] = []
        keys: list[str] = []
        for each in declared:
            if each.setting:
                if is_on(config, each.setting):
                    found.append(feature(each.module).middleware(self.plan, config))
                continue
            owner = table if table is not None and each.key in table.steps else self.table
            if owner is not None and each.key in owner.steps:
                keys.append(each.key)
                found.append(self.middleware_of_key(each.module, owner, each.key))
        return found, keys

    def middleware_of_key(self, module: str, owner: LocationTable | SiteTable, key: str) -> Middleware:
        """Return the middleware that a key asks for. owner: the table with the key. Raises ConfigError.

        All locations share a middleware of the [[site]] table, so that it counts the requests to all of them.
        """
        # By id(): two tables may have the same label, since the lines of inline tables are not known.
        owner_and_key = (id(owner), key)
        if owner_and_key not in self.middlewares_of_keys:
            made = feature(module).keys[key].middleware(owner.label_of(key), owner.steps[key])
            self.middlewares_of_keys[owner_and_key] = made
        return self.middlewares_of_keys[owner_and_key]
