"""ewe's own documentation as a book, at /docs/ of the sample site (ewe.cli mounts it there)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ewe.config.messages import docs_page
from ewe.features.base import explained
from ewe.features.files import static_files
from ewe.features.markdown.pages import Contents, MarkdownPages
from ewe.gateway.true_names import real_path

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.base import Explanation, Handler
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream


class Manual:
    """Answers with the pages and pictures of docs/: in the clone that runs, or where pip has installed them."""

    def __init__(self, config: Config, path: str) -> None:
        """path: the path at which the documentation is mounted. Raises ValueError without the package markdown."""
        directory = os.path.dirname(os.path.abspath(docs_page("README.md")))
        self.static = static_files(config, real_path(directory), path.rstrip("/"))
        # zone: all pages are in one zone, since no location separates them
        pages = MarkdownPages(config, self.static, zone=lambda path: None)
        self.handlers: tuple[Handler, ...] = (pages, Contents(self.static, pages.books))

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the page or the file; None if there is neither. Raises HTTPError."""
        for handler in self.handlers:
            if (response := await handler.respond(request, io)) is not None:
                return response
        return await self.static.respond(request, io)

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the line about the page or the file that answers. Raises HTTPError(403, 404)."""
        for handler in self.handlers:
            if (yield from explained(handler, request, io)):
                return True
        yield from self.static.explain(request, "the documentation of ewe")
        return True
