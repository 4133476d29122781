"""Markdown files as pages: /notes.md is read by people, so a browser gets HTML.

Off by default; the setting `markdown` switches it on. The file itself is at /notes.md?source. A page is made once
for each version of its file and kept with its entity tag, so that a reload of the browser costs a 304.

HTML in a Markdown file stays HTML, as in a file *.html beside it: who may write one may write the other.

What can go wrong: some texts take the library hours, such as 256 KB of "[". Its time for a page is therefore
bounded (SECONDS). Nothing can stop the library, but it calls functions all the time, and bounded() looks at the
clock at each call. The file is then sent as it is, like a file that is too large, until it changes.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ewe import logger
from ewe.bounded import BoundedDict
from ewe.features.base import Mount
from ewe.features.declaration import Feature
from ewe.features.static import File, Static, hidden, identity
from ewe.http import conditional
from ewe.http.dates import http_date
from ewe.http.error_pages import error_page, html_escape
from ewe.http.messages import Response

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from ewe.config.settings import Config
    from ewe.features.base import Explanation
    from ewe.features.plan import Plan
    from ewe.http.messages import Request
    from ewe.streams.base import Stream

LARGEST = 256 * 1024  # bytes; a larger file is sent as it is, since making its page takes seconds
SECONDS = 5.0  # of a processor's time, for one page
MAX_PAGES = 200  # in memory
LIBRARY = ("markdown.", "html.", "_markupbase", "xml.")  # Markdown, and the parser that it uses
EXTENSIONS = ["fenced_code", "sane_lists", "tables", "toc"]
# A search that fails must not look at the rest of the page again at each "<"
HEADING = re.compile(r"<h[1-6](?:\s[^<>]*)?>(.*?)(?:</h[1-6]>|\Z)", re.DOTALL)
TAG = re.compile(r"<[^<>]*>")
PAGE = """<!DOCTYPE html>
<html lang="{language}">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --paper: #fbfaf5; --panel: #f1f2e9; --ink: #1f2a24; --line: #d3d8cb;
  --accent: #1d6b45 }}
@media (prefers-color-scheme: dark) {{ :root {{ --paper: #151a18; --panel: #1f2623; --ink: #e5e9e4; --line: #3a443f;
  --accent: #86d3a8 }} }}
html {{ background: var(--paper); color: var(--ink) }}
a {{ color: var(--accent) }}
body {{ max-width: 42rem; margin: 2rem auto; padding: 0 1rem; font: 1.05rem/1.55 system-ui, sans-serif }}
h1, h2, h3 {{ line-height: 1.2 }}
pre, code {{ font: .92em/1.45 ui-monospace, monospace; background: var(--panel); border-radius: .25rem }}
code {{ padding: .1em .3em }}
pre {{ padding: .8rem 1rem; overflow-x: auto }}
pre code {{ padding: 0; background: none }}
table {{ display: block; overflow-x: auto; border-collapse: collapse }}
th, td {{ padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }}
img {{ max-width: 100% }}
blockquote {{ margin-left: 0; padding-left: 1rem; border-left: .25rem solid var(--line) }}
footer {{ margin-top: 3rem; font-size: .85rem }}
</style>
<main>
{body}
</main>
<footer lang="en"><a href="?source">The Markdown source</a></footer>
</html>
"""


class MarkdownPages:
    """Answers for the Markdown files below a document root."""

    def __init__(self, config: Config, static: Static) -> None:
        """Raises ValueError if the package markdown is not installed."""
        try:
            import markdown
        except ImportError:
            raise ValueError(
                "the package markdown is not installed: pip install markdown (markdown)"
            ) from None
        self.convert = markdown.markdown
        self.static = static
        self.languages = config.languages
        self.kept: BoundedDict[tuple[str, tuple[int, ...]], tuple[File, bytes | None]] = BoundedDict(
            MAX_PAGES
        )

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer with the page of a Markdown file; None for other paths, and for ?source. Raises HTTPError."""
        path = request.path
        if not path.endswith(".md") or request.query == "source" or request.method not in ("GET", "HEAD"):
            return None
        if hidden(path) or (descriptor := self.static.open(self.static.name(path))) is None:
            return None
        try:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST:
                return None
            key = (path, identity(about))
            found = self.kept.get(key)
            if found is None:
                source = os.read(descriptor, LARGEST)
        finally:
            os.close(descriptor)
        if found is None:
            file = File(path, about, "text/html; charset=utf-8", "", False)
            file.etag = file.etag[:-1] + '-page"'  # not that of the source
            found = file, await io.call(self.page, source, os.path.basename(path))
            self.kept[key] = found
        file, page = found
        if page is None:
            return None
        status = conditional.outcome(request, file.etag, file.modified) if request.conditional else None
        if status == 412:
            return error_page(412, "the condition does not hold")
        fields = (("ETag", file.etag), ("Last-Modified", http_date(file.modified)))
        return (
            Response(304, fields)
            if status == 304
            else Response(200, (("Content-Type", file.kind), *fields), page)
        )

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the file whose page answers. Raises HTTPError(403, 404)."""
        path = request.path
        is_page = path.endswith(".md") and request.query != "source" and self.static.has(path)
        if is_page:
            yield f"  answer    the page of {self.static.name(path)}   (markdown)"
        return is_page

    def page(self, source: bytes, name: str) -> bytes | None:
        """Return the page of a Markdown text, None if it takes too long. name: its title without a heading."""
        text = source.decode("utf-8", "replace")
        try:
            body = bounded(lambda: self.convert(text, extensions=EXTENSIONS), SECONDS)
        except (TooSlow, RecursionError):
            logger.errors.warning(
                f"{name!r} is sent as it is: its page takes more than {SECONDS:g} s, or it is nested too deeply"
                " (markdown)"
            )
            return None
        body = body.replace("<pre>", '<pre tabindex="0">')  # to scroll long lines with the keyboard
        heading = HEADING.search(body)
        title = TAG.sub("", heading[1]) if heading else html_escape(name)
        return PAGE.format(title=title, body=body, language=self.language_of(name)).encode()

    def language_of(self, name: str) -> str:
        """Return the language of a file: the one in its name (page.de.md), or the site's first one, or English.

        A page must name its language, so that a screen reader pronounces it. ewe does not guess from the text.
        """
        suffixes = {part.lower() for part in name.split(".")[1:]}
        named = [each for each in self.languages if each.lower() in suffixes]
        return (*named, *self.languages, "en")[0]


class TooSlow(Exception):
    """A call took more of a processor's time than it may."""


def bounded(function: Callable[[], str], seconds: float) -> str:
    """Return function(), called in this thread. Raises TooSlow once that took `seconds` of a processor's time.

    The function must call others all the time: the clock is looked at only then. The exception is raised in code of
    the library alone. Python would drop it in a callback of the garbage collector, and the bound with it.
    """
    ends = time.thread_time() + seconds

    def look(frame: FrameType, *_: object) -> None:
        if time.thread_time() > ends and frame.f_globals.get("__name__", "").startswith(LIBRARY):
            raise TooSlow

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        return function()
    finally:
        sys.setprofile(before)


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield the pages of the site. Raises ValueError if the package markdown is not installed."""
    yield Mount("/", MarkdownPages(plan.config, plan.static))


FEATURE = Feature("markdown", settings=("markdown",), mounts=mounts)
