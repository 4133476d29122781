"""The content cache around the programs of a site: see ewe.gateway.content_cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.features.answered_by import AnsweredBy
from ewe.features.base import Handler, Middleware
from ewe.features.content_cache_settings import CONTENT_CACHE, SETTINGS
from ewe.features.declaration import Feature

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.encoded_slashes import WithProxies
    from ewe.features.plan import Plan
    from ewe.gateway.content_cache import ContentCache
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream


class Cached(Middleware):
    """Caches the responses of the inner handler."""

    def __init__(self, inner: Handler, cache: ContentCache) -> None:
        self.inner = inner
        self.cache = cache
        self.feature = inner.feature if isinstance(inner, AnsweredBy) else ""  # also that of a cached copy

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return a cached copy, or call the inner handler. Raises the inner handler's exceptions."""
        response = await self.cache.answer(self, request, io, lambda asked: self.inner.respond(asked, io))
        if self.feature and response is not None:
            io.answered_by = self.feature
        return response


class CachedProxy(Cached):
    """Caches the responses of a proxy. Only this class has proxy_at(): any other handler may answer without one."""

    inner: WithProxies

    def proxy_at(self, path: str) -> object | None:
        """Return the inner handler's proxy for a path (ewe.features.encoded_slashes)."""
        return self.inner.proxy_at(path)


def cache_of(plan: Plan, config: Config) -> ContentCache:
    """Return the cache of the site, or a separate one if a location sets another size.

    config: the settings of the site, or of a location. plan: of its document root. All parts of a site whose size
    comes from the same settings share the cache.
    """
    from ewe.gateway.content_cache import ContentCache

    size, site_plan = config[CONTENT_CACHE], plan.parent
    if site_plan is not None and site_plan.config[CONTENT_CACHE] == size:
        # The location has another document root than the site, and the same size.
        return cache_of(site_plan, site_plan.config)
    sets_size = plan.config if plan.config[CONTENT_CACHE] == size else config
    cache: ContentCache = plan.shared((ContentCache, sets_size), lambda: ContentCache(size))
    return cache


def wrap(plan: Plan, config: Config, handler: Handler) -> Handler:
    """Wrap a handler in a cache."""
    made = CachedProxy if hasattr(handler, "proxy_at") else Cached
    return made(handler, cache_of(plan, config))


FEATURE = Feature("content-cache", settings=SETTINGS, wrap=wrap, late=("ewe.gateway.content_cache",))
