"""HTML pages from jinja2 templates, with one stylesheet for the explorer and the classroom.

templates/page.html.j2 is the frame of each page, and templates/page.css has the colours and the text style. A page
extends the frame, and adds its own style:

    {% extends "page.html.j2" %}
    {% block style %}{% include "story.css" %}{% endblock %}
    {% block body %}...{% endblock %}

Each page is one file that contains its style and loads nothing from another server. It follows the reader's choice
of light or dark. jinja2 escapes every value, because a page quotes the output of unknown programs and servers.

This module imports jinja2 with the first page: jinja2 takes as long as all other imports of a command. A command
that explores or grades a program calls prepare() before. Later the directory of the program may be on Python's
path, and jinja2 could import a file random.py of the program in place of Python's module.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2


def prepare() -> None:
    """Import jinja2 now."""
    import_module("jinja2")


@cache
def templates(package: str) -> jinja2.Environment:
    """Return the templates in the directory templates/ of a package, and those of ewe_explore."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package), jinja2.PackageLoader("ewe_explore")]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )


def render(package: str, template: str, **values: Any) -> str:
    """Render a template of a package with these values; return the text."""
    return templates(package).get_template(template).render(values)
