"""Error pages of a site's own: `error-pages = { 404 = "/404.html", 503 = "/busy.html" }`.

The page is the site's answer for that path, of a file or of a program. The status stays, and so do the fields that
belong to it (Allow, Retry-After, WWW-Authenticate ...). If the site has no such page, the client gets the response
as it was. The same is true for the page of a script named nph-*: it writes the status line itself, so its status
would replace that of the response.
"""

from __future__ import annotations

from string import punctuation
from typing import TYPE_CHECKING
from urllib.parse import quote

from ewe import logger
from ewe.config.setting_types import Kind, whole
from ewe.config.table_kinds import TableKind
from ewe.features.base import Middleware, respond_with
from ewe.features.declaration import Feature, StepKey
from ewe.http.local_redirect import redirected_request
from ewe.http.messages import Request, Response, Source
from ewe.http.status import HTTPError
from ewe.http.target import PATH, QUERY

if TYPE_CHECKING:
    from ewe.streams.base import Stream

# Fields of the response that describe its body, and go with it: the page replaces the body (RFC 9110 section 8;
# RFC 9530)
REPLACED_FIELDS = frozenset({
    "accept-ranges", "content-digest", "content-disposition", "content-encoding", "content-language",
    "content-location", "content-md5", "content-type", "digest", "etag", "last-modified", "repr-digest",
    "x-content-type-options",
})  # fmt: skip
# Fields of the page that belong to its status 200, and not to that of the response
DROPPED_PAGE_FIELDS = frozenset({"etag", "last-modified", "accept-ranges", "location"})


def _page(raw: object) -> str:
    """Return the path of an error page as the target of a request. Raises ValueError."""
    if not isinstance(raw, str) or not raw.startswith("/") or not raw.isprintable() or " " in raw:
        raise ValueError(raw)
    target = quote(raw, safe=punctuation)  # encodes the ö of /größe.html
    path, _, query = target.partition("?")
    if PATH.fullmatch(path) is None or QUERY.fullmatch(query) is None:
        raise ValueError(raw)
    return target


PAGES = TableKind(
    'statuses from 400 to 599 and paths, such as { 404 = "/404.html" }',
    others=(whole(400, 599, "a status from 400 to 599"), Kind("PATH", "a path, such as /404.html", _page)),
    least=1,
)


class ErrorPages(Middleware):
    """The pages of one location, by status."""

    def __init__(self, pages: dict[int, str]) -> None:
        self.pages = pages

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the inner handler's response; if its status has a page, the page with this status.

        Raises the inner handler's exceptions; for a page, also Disconnected, and OSError if no descriptor is left.
        """
        response = await self.inner.respond(request, io)
        if response is None or (path := self.pages.get(response.status)) is None:
            return response
        # A program that makes the page sees the status, and the visitor's target.
        target = request.target.encode("latin-1")
        variables = {
            b"REDIRECT_STATUS": b"%d" % response.status,
            b"REDIRECT_URL": target,
            b"REQUEST_URI": target,
        }
        try:
            page = await respond_with(
                io.variables | variables, self.site, redirected_request(request, path), io
            )
            if page is None:
                raise HTTPError(404, "there is no such file")
        except HTTPError as error:
            logger.errors.warning(f"page {path} of {response.status}: {error.cause} (error-pages)")
            return response
        except BaseException:
            # Such as Disconnected, if the client has left: nothing else closes the response.
            await response.close()
            raise
        if (fault := fault_of(page)) is not None:
            await page.close()
            logger.errors.warning(f"page {path} of {response.status}: {fault} (error-pages)")
            return response
        kept = (field for field in response.fields if field[0].lower() not in REPLACED_FIELDS)
        fields = (*(field for field in page.fields if field[0].lower() not in DROPPED_PAGE_FIELDS), *kept)
        status, reason, cause = response.status, response.reason, response.cause
        await response.close()
        # A response of bytes may be in a cache, and is never changed. Any other one is for this request alone, and
        # is changed, since its class may override close().
        if isinstance(page.body, bytes):
            return Response(status, fields, page.body, cause=cause, reason=reason)
        page.status, page.reason, page.cause, page.fields = status, reason, cause, fields
        return page


def fault_of(page: Response) -> str | None:
    """Return the reason why a response cannot be an error page; None if it can."""
    if page.status != 200:
        return f"its answer is {page.status}"
    if isinstance(page.body, Source) and page.body.raw:
        return "an nph- script writes the status line itself"
    return None


FEATURE = Feature(
    "error-pages",
    keys={"error-pages": StepKey(PAGES, "the site's own pages for statuses", ErrorPages)},
)
