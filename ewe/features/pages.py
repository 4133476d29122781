"""Pages that are programs, on a site with X-Switch: PHP pages, and web applications of Java.

They lie among the other files, not in a cgi-bin, and their source must never be sent. On a site without X-Switch,
the setting `fastcgi` names the server that runs PHP.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ewe.bounded import TimedCache
from ewe.features.base import Claim, Mount
from ewe.features.declaration import Feature
from ewe.gateway import scripts
from ewe.gateway.claims import is_in, names_of
from ewe.gateway.scripts import INDEX, Script, is_application, script_of
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.features.base import Explanation
    from ewe.features.plan import LocationPlan, Plan
    from ewe.features.xswitch import XSwitch
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

EXTENSION = ".php"
# What X-Switch runs among the files: PHP, and Java's pages, also those that an application is about to get its
# WEB-INF for.
EXTENSIONS = (EXTENSION, ".jsp", ".jspx", ".jspf")
MAX_PATHS = 1000
PAGE_CACHE_S = 1.0


class Pages:
    """The pages below one document root."""

    def __init__(self, root: str, prefix: str, indexes: Sequence[str], directories: Sequence[str]) -> None:
        """prefix: what their URLs begin with. indexes: of a directory. directories: all files there are scripts."""
        self.root = root
        self.prefix = prefix
        self.indexes = indexes if INDEX in indexes else (*indexes, INDEX)
        self.directories = [name for each in directories for name in names_of(each)]
        self.known: TimedCache[str, Script | None] = TimedCache(MAX_PATHS, PAGE_CACHE_S)

    def find(self, path: str) -> Script | None:
        """Return the page that a path leads to, None if it leads to none. Raises HTTPError(403, 404)."""
        if EXTENSION in path or self.directories:
            # Never remembered: a page that has just come must not be taken for a file.
            return self.find_uncached(path)
        return self.known.find(path, self.find_uncached)

    def find_uncached(self, path: str) -> Script | None:
        """Find the page on the disk. Raises HTTPError(403, 404)."""
        script = script_of(self.root, self.prefix, path, self.indexes)
        if script is not None and self.is_page(script.file):
            return script
        if path.endswith(EXTENSION) and not os.path.isdir(self.root + path[len(self.prefix) :]):
            raise HTTPError(404, "no such page")
        return None

    def is_page(self, file: str) -> bool:
        """Does X-Switch run this file, wherever it lies?"""
        if file.endswith(EXTENSION) or is_application(file):
            return True
        if not self.directories:
            return False
        try:
            real = os.path.realpath(file)
        except OSError:
            real = file  # a link on the way was exchanged in this moment
        return any(is_in(real, each) or is_in(file, each) for each in self.directories)


class SitePages:
    """Answers with the pages of the site's own document root, or of another directory below a prefix."""

    def __init__(self, switch: XSwitch, root: str, indexes: Sequence[str], prefix: str = "") -> None:
        self.switch = switch
        self.pages = Pages(root, prefix, indexes, switch.directories)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer with what a page says, None if the path leads to none. Raises HTTPError."""
        script = self.pages.find(request.path)
        return None if script is None else await self.switch.run(script, request, io, self.pages.root)

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield which page answers. Raises HTTPError(403, 404)."""
        page = self.pages.find(request.path)
        if page is not None:
            yield from scripts.explained(page, "X-Switch")
        return page is not None


def claims(plan: Plan, root: str) -> Iterator[Claim]:
    """Yield the extensions of pages that are programs."""
    for extension in EXTENSIONS if plan.provided("xswitch") is not None else ():
        yield Claim(extension=extension)


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield the pages of the site."""
    if (switch := plan.provided("xswitch")) is not None:
        yield Mount("/", SitePages(switch, plan.static.root, plan.config.defaultindex))


def files(location: LocationPlan) -> Iterator[Mount]:
    """Yield the pages among the files of an alias."""
    if (switch := location.plan.provided("xswitch")) is not None:
        static = location.static
        pages = SitePages(switch, static.root, location.config.defaultindex, static.prefix)
        yield Mount("/", pages, bare=True)


FEATURE = Feature("pages", claims=claims, mounts=mounts, files=files)
