"""Turn a Markdown text into one self-contained page: it contains its style and pictures, and loads nothing.

A page stands in a handout, away from the other pages of the documentation. A link to another file would lead
nowhere, so only its text stays. Links to sections of the page, and to the web, stay links.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ewe_classroom.course.locales import ENGLISH

LINK_TO_FILE = re.compile(r'<a href="(?!#|https?:)[^"]*">(.*?)</a>', re.DOTALL)
IMAGE = re.compile(r'<img alt="([^"]*)" src="([^"]*)"[^>]*>')
XMLNS = ' xmlns="http://www.w3.org/2000/svg"'
MIN_SECTIONS_FOR_CONTENTS = 4  # a page with fewer sections has no table of contents


class MarkdownMissing(ImportError):
    """The package that reads Markdown, or jinja2, is not installed."""


def to_html(text: str, title: str, pictures: Mapping[str, str] | None = None, locale: str = ENGLISH) -> str:
    """Return the page. Raises MarkdownMissing.

    pictures: SVG files that the text may show; name -> source. The page leaves out other pictures.
    locale: the natural language of the text; browsers hyphenate and read aloud by it.
    """
    try:
        from markdown import Markdown

        from ewe_explore.pages import render
    except ImportError:
        raise MarkdownMissing from None
    reader = Markdown(
        extensions=["tables", "fenced_code", "sane_lists", "toc"],
        extension_configs={"toc": {"toc_depth": "2-2"}},  # the contents list only headings of level 2 (##)
    )
    # The texts have no HTML. With a seed they have a student's name, which must not become a part of the page.
    reader.preprocessors.deregister("html_block")
    reader.inlinePatterns.deregister("html")
    # A link to another file would lead nowhere: only its text stays.
    body = LINK_TO_FILE.sub(r"\1", reader.convert(text))
    body = IMAGE.sub(lambda image: inline_picture(image, pictures or {}), body)
    # The template puts the table of contents between the title with the first paragraph, and the rest.
    lead, _, rest = body.partition("</p>")
    sections: list[dict[str, Any]] = getattr(reader, "toc_tokens", [])  # the extension adds this attribute
    contents = sections if len(sections) >= MIN_SECTIONS_FOR_CONTENTS else []
    return render(
        "ewe_classroom",
        "text.html.j2",
        title=title,
        lead=f"{lead}</p>",
        contents=contents,
        body=rest,
        locale=locale,
    )


def inline_picture(image: re.Match[str], pictures: Mapping[str, str]) -> str:
    """Return HTML that contains the SVG source of a picture, in place of an <img> that would load it.

    image: a match of IMAGE. pictures: name -> SVG source. Return "" if `pictures` lacks this picture.
    """
    alt, name = image.groups()
    if name not in pictures:
        return ""
    # Within HTML, <svg> needs no namespace.
    picture = pictures[name].replace(XMLNS, "")
    return f'<span class="figure" role="img" aria-label="{alt}">{picture}</span>'
