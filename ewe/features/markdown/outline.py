"""The outline of a Markdown text: its headings with their anchors, and the pages to which it links.

A book needs the outlines of all its pages for the names in the navigation and for the search. To convert a page
takes fifty times as long as to scan it for its headings, so outline() scans: line by line, outside of blocks of
code, in a time that is proportional to the length of the text. The scan knows the headings `# Title` and those that
are underlined. It may miss a heading inside a list; the page itself shows it all the same.

**Anchors** are those of GitHub, so that a link such as `sites.md#guards` works there and here. An anchor has the
letters of the heading in lower case, with a hyphen for each space; a second heading with the same text gets -1.
"""

from __future__ import annotations

import html
import re
from typing import NamedTuple

MAX_HEADINGS = 500  # of one page
MAX_LINKS = 2_000  # of one page
MAX_HEADING_CHARS = 300  # of a heading that are read

FENCE = re.compile(r"(`{3,}|~{3,})")
UNDERLINE = re.compile(r"(?:=+|-+) *\Z")
CODE = re.compile(r"`[^`]*`")
INLINE_LINK = re.compile(r"\]\(\s*(?:<([^<>]*)>|([^\s<>()]+))")
REFERENCE = re.compile(r" {0,3}\[[^\]]*\]: *<?([^\s<>]+)")
# The parts of a heading that the page does not show: targets of links, HTML, signs for emphasis, backslashes
LINKED = re.compile(r"!?\[([^\[\]]*)\]\([^()]*\)")
TAG = re.compile(r"<[^<>]*>")
EMPHASIS = re.compile(r"(?<!\\)(?:\*+|(?<!\w)_+|_+(?!\w))")
BACKSLASH = re.compile(r"\\([^\w\s])")
NOT_IN_ANCHOR = re.compile(r"[^\w\- ]")


class Heading(NamedTuple):
    """A heading. level: 1 to 6. text: without markup, not escaped. anchor: the fragment of its URL."""

    level: int
    text: str
    anchor: str


class Outline(NamedTuple):
    """title: the first heading, or "". links: the targets of the links, in their order, as they are written."""

    title: str
    headings: list[Heading]
    links: list[str]


class Anchors:
    """The anchors of one page: GitHub's, each only once. The library calls an object with a heading's text."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def __call__(self, text: str, separator: str = "-") -> str:
        """Return the anchor of the next heading of the page."""
        first = anchor = NOT_IN_ANCHOR.sub("", text.strip().lower()).replace(" ", separator) or "section"
        while anchor in self.seen:
            self.seen[first] += 1
            anchor = f"{first}{separator}{self.seen[first]}"
        self.seen[anchor] = 0
        return anchor


def outline(text: str) -> Outline:
    """Return the outline of a Markdown text."""
    headings: list[Heading] = []
    links: list[str] = []
    anchors = Anchors()
    # fence: the characters that began the block of code around the line. before: the line before. paragraph: how
    # many lines of its paragraph are before the line; an underline must be the second line.
    fence, before, paragraph = "", "", 0
    for line in text.replace("\r\n", "\n").split("\n"):
        opening = FENCE.match(line)
        if opening is not None and (not fence or line.rstrip() == fence):
            fence, before, paragraph = "" if fence else opening[1], "", 0
            continue
        if fence:
            continue
        paragraph = paragraph + 1 if before else 0
        level, words = heading_of(line, before if paragraph == 1 else "")
        if 1 <= level <= 6 and len(headings) < MAX_HEADINGS and (words := plain(words)):
            headings.append(Heading(level, words, anchors(words)))
        if "]" in line and len(links) < MAX_LINKS:
            links += targets(line)
        before = "" if level else line.strip()  # a heading is no part of a paragraph
    return Outline(headings[0].text if headings else "", headings, links)


def heading_of(line: str, above: str) -> tuple[int, str]:
    """Return level and text of a heading; level 0 for another line. above: the text that `line` may underline."""
    if line.startswith("#"):
        words = line.lstrip("#")
        return len(line) - len(words), words.strip().rstrip("#")
    if above and line[:1] in ("=", "-") and UNDERLINE.match(line) is not None:
        return 1 if line[0] == "=" else 2, above
    return 0, ""


def plain(text: str) -> str:
    """Return the text of a heading, without the markup around its words. Code keeps its signs."""
    parts = text[:MAX_HEADING_CHARS].split("`")
    for at in range(0, len(parts), 2):
        part = TAG.sub("", LINKED.sub(r"\1", parts[at]))
        parts[at] = BACKSLASH.sub(r"\1", EMPHASIS.sub("", part))
    return html.unescape("".join(parts)).strip()


def targets(line: str) -> list[str]:
    """Return the targets of the links in a line."""
    reference = REFERENCE.match(line)  # [name]: target
    if reference is not None:
        return [reference[1]]
    # [text](<target>) or [text](target); links in `code` do not count
    return [in_brackets or bare for in_brackets, bare in INLINE_LINK.findall(CODE.sub("", line))]
