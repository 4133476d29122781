"""Error pages of a site's own: `error-pages = { 404 = "/404.html", 503 = "/busy.html" }`.

The page is what the site answers for that path: a file, or what a program says. The status stays, and so do the
fields that belong to it (Allow, Retry-After, WWW-Authenticate ...). If the page itself cannot be had, the client
gets ewe's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ewe import logger
from ewe.config.messages import ConfigError, quoted
from ewe.features.base import Middleware, respond_with
from ewe.features.declaration import Feature, Key
from ewe.http.local_redirect import moved
from ewe.http.messages import Request, Response
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.streams.base import Stream

# Fields that describe ewe's own page, or the file of the site's page
OF_PAGE = frozenset({"content-type", "x-content-type-options"})
OF_FILE = frozenset({"etag", "last-modified", "accept-ranges", "location"})
STATUS = b"REDIRECT_STATUS"


class ErrorPages(Middleware):
    """The pages of one location, by status."""

    def __init__(self, pages: dict[int, str]) -> None:
        self.pages = pages

    @classmethod
    def from_table(cls, value: object, place: str) -> ErrorPages:
        """Return the pages that a table names. Raises ConfigError."""
        expected = 'expected statuses from 400 to 599 and paths, such as { 404 = "/404.html" }'
        if not isinstance(value, Mapping) or not value:
            raise ConfigError(f"{place} {quoted(value)}: {expected}")
        pages = {}
        for status, path in value.items():
            if not (str(status).isdigit() and 400 <= int(status) <= 599):
                raise ConfigError(f"{place} status {quoted(str(status))}: {expected}")
            if not isinstance(path, str) or not path.startswith("/") or not path.isprintable() or " " in path:
                raise ConfigError(f"{place} path {quoted(path)}: {expected}")
            pages[int(status)] = path
        return cls(pages)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the inner handler's response, with the page of its status if there is one."""
        response = await self.inner.respond(request, io)
        if response is None or (path := self.pages.get(response.status)) is None:
            return response
        target = request.target.encode("latin-1")  # a page that is a program sees what the visitor asked for
        variables = {STATUS: b"%d" % response.status, b"REDIRECT_URL": target, b"REQUEST_URI": target}
        try:
            page = await respond_with(io.variables | variables, self.site, moved(request, path), io)
            if page is None:
                raise HTTPError(404, "there is no such file")
        except HTTPError as error:
            logger.errors.warning(f"page {path} of {response.status}: {error.cause} (error-pages)")
            return response
        if page.status != 200:
            await page.close()
            said = page.status
            logger.errors.warning(f"page {path} of {response.status}: its answer is {said} (error-pages)")
            return response
        kept = [field for field in response.fields if field[0].lower() not in OF_PAGE]
        own = [field for field in page.fields if field[0].lower() not in OF_FILE]
        cause = response.cause
        await response.close()
        if isinstance(page.body, bytes):  # perhaps of a cache: never changed
            return Response(response.status, (*own, *kept), page.body, cause=cause)
        page.status, page.reason, page.cause = response.status, response.reason, cause
        page.fields = (*own, *kept)
        return page


FEATURE = Feature(
    "error-pages",
    keys={
        "error-pages": Key(
            "the site's own pages for statuses", '{ 404 = "/missing.html" }', ErrorPages.from_table
        )
    },
)
