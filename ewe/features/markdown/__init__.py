"""The feature Markdown: a browser that asks for /notes.md gets a page, and a directory of Markdown is a book.

The feature is off by default; the setting `markdown` switches it on. The way of a request:

    pages.py ──▶ book.py ──▶ outline.py         which pages belong together, their titles and headings
        │
        └─────▶ convert.py ──▶ layout.py        a text becomes HTML, and HTML a page
                               search.py        a page of results
                               print.py         all pages of a book in one

Read next: pages.py, the handler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.features.authorizer_paths import authorizer_paths
from ewe.features.base import Mount
from ewe.features.declaration import Feature
from ewe.features.markdown_settings import SETTINGS
from ewe.gateway.protected_sources import is_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ewe.features.plan import Plan


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield the mount of the Markdown pages. Raises ValueError if the package markdown is not installed."""
    from ewe.features.markdown.pages import Contents, MarkdownPages

    guarded = authorizer_paths(plan.config)
    before = [mount.path for found in plan.mounts_of.values() for mount in found if mount.path != "/"]

    def zone(path: str) -> object:
        asked = (is_in(path, each) for each in guarded)
        return plan.location(path), *(path.startswith(each) for each in before), *asked

    pages = MarkdownPages(plan.config, plan.static, zone)
    yield Mount("/", pages)
    yield Mount("/", Contents(plan.static, pages.books), last=True)


FEATURE = Feature("markdown", settings=SETTINGS, mounts=mounts, late=("ewe.features.markdown.pages",))
