"""Pages that are programs, on a site with X-Switch: PHP pages, and Java web applications.

They are among the other files, not in a cgi-bin, and ewe must never send their source. On a site without X-Switch,
the setting `fastcgi` names the upstream that runs PHP.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ewe.bounded import TimedCache
from ewe.features.base import Mount, ProtectedSource
from ewe.features.declaration import Feature
from ewe.gateway import scripts
from ewe.gateway.protected_sources import is_in, names_of
from ewe.gateway.scripts import INDEX, Script, is_application, script_of
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.features.base import Explanation
    from ewe.features.plan import LocationPlan, Plan
    from ewe.features.xswitch import XSwitch
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

EXTENSION = ".php"
# The extensions of pages that X-Switch runs: PHP, and Java. Java's pages are protected even if their application
# has no WEB-INF yet.
EXTENSIONS = (EXTENSION, ".jsp", ".jspx", ".jspf")
MAX_PATHS = 1000  # in memory, with the page of each or None (only of paths that can be no page: find())
PAGE_CACHE_S = 1.0  # seconds for which a path keeps its page


class Pages:
    """The pages below one document root."""

    def __init__(
        self, root: str, prefix: str, index_names: Sequence[str], directories: Sequence[str]
    ) -> None:
        """root: the document root. prefix: the beginning of the pages' URLs. index_names: of index files.

        directories: directories in which every file is a script.
        """
        self.root = root
        self.prefix = prefix
        self.index_names = with_index_page(index_names)
        self.directories = [name for each in directories for name in names_of(each)]
        self.scripts_by_path: TimedCache[str, Script | None] = TimedCache(MAX_PATHS, PAGE_CACHE_S)

    def find(self, path: str) -> Script | None:
        """Return the page for a path; None if there is none. Raises HTTPError(403, 404)."""
        if EXTENSION not in path and not self.directories:
            return self.scripts_by_path.find(path, self.find_uncached)
        # A path without a page is not cached: a page that has just been written must not be sent as a file. A page
        # that is cached and gone does no harm: X-Switch looks for its file again.
        return self.scripts_by_path.find_existing(path, self.find_uncached)

    def find_uncached(self, path: str) -> Script | None:
        """Find the page on the disk. Raises HTTPError(403, 404)."""
        script = script_of(self.root, self.prefix, path, self.index_names)
        if script is not None and self.is_page(script.file):
            return script
        if path.endswith(EXTENSION) and not os.path.isdir(self.root + path[len(self.prefix) :]):
            raise HTTPError(404, "no such page")
        return None

    def is_page(self, file: str) -> bool:
        """Return whether X-Switch runs this file."""
        if file.endswith(EXTENSION) or is_application(file):
            return True
        if not self.directories:
            return False
        try:
            real = os.path.realpath(file)
        except OSError:
            real = file  # a symbolic link in the path has just been replaced
        return any(is_in(real, each) or is_in(file, each) for each in self.directories)


def with_index_page(index_names: Sequence[str]) -> Sequence[str]:
    """Return the names of index files, with that of a PHP page."""
    return index_names if INDEX in index_names else (*index_names, INDEX)


class SitePages:
    """Answers with the pages of the site's document root, or of another directory below a prefix."""

    def __init__(self, switch: XSwitch, root: str, index_names: Sequence[str], prefix: str = "") -> None:
        """switch: runs the pages. root: the directory. index_names: of index files. prefix: the beginning of its
        URLs.
        """
        self.switch = switch
        self.pages = Pages(root, prefix, index_names, switch.directories)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the response of the page at the path; None if there is none. Raises HTTPError."""
        script = self.pages.find(request.path)
        return None if script is None else await self.switch.run(script, request, io, self.pages.root)

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the lines about the page that answers. Raises HTTPError(403, 404)."""
        page = self.pages.find(request.path)
        if page is not None:
            yield from scripts.lines_about_script(page, "X-Switch")
        return page is not None


def protected(plan: Plan, root: str) -> Iterator[ProtectedSource]:
    """Yield the extensions of the pages that X-Switch runs; none on a site without X-Switch."""
    for extension in EXTENSIONS if plan.provided("xswitch") is not None else ():
        yield ProtectedSource(extension=extension)


def mounts(plan: Plan) -> Iterator[Mount]:
    if (switch := plan.provided("xswitch")) is not None:
        yield Mount("/", SitePages(switch, plan.static.root, plan.config.defaultindex))


def files(location: LocationPlan) -> Iterator[Mount]:
    """Yield the mount of the pages among the files of `alias`."""
    if (switch := location.plan.provided("xswitch")) is not None:
        static = location.static
        pages = SitePages(switch, static.root, location.config.defaultindex, static.prefix)
        yield Mount("/", pages, bare=True)


FEATURE = Feature("pages", protected=protected, mounts=mounts, files=files)
