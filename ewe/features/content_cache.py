"""The content cache around a feature, or around a lead of a location: see ewe.gateway.content_cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ewe.features.base import Feature
    from ewe.gateway.content_cache import ContentCache
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream


class CachedLead:
    """A lead of a location (ewe.sites.leads) whose responses are kept."""

    def __init__(self, inner: Any, cache: ContentCache) -> None:
        self.inner = inner
        self.cache = cache
        self.why: str = inner.why

    async def lead(self, request: Request, rest: str, found: Any, io: Stream) -> Response | None:
        """Answer with a copy, or ask the lead. Raises what the lead raises."""
        return await self.cache.answer(
            self, request, io, lambda asked: self.inner.lead(asked, rest, found, io)
        )


class Cached:
    """A feature whose responses are kept."""

    def __init__(self, feature: Feature, cache: ContentCache) -> None:
        self.feature = feature
        self.cache = cache

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer with a copy, or ask the feature. Raises what the feature raises."""
        return await self.cache.answer(self, request, io, lambda asked: self.feature.respond(asked, io))
