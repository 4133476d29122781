"""Pages of HTML: templates of jinja2, with one stylesheet for the explorer and the classroom.

templates/page.html.j2 is the frame of each page, and templates/page.css has the palette and the text. A page
extends the frame, and adds the style of what it alone shows:

    {% extends "page.html.j2" %}
    {% block style %}{% include "story.css" %}{% endblock %}
    {% block body %}...{% endblock %}

Each page is one file: its style is in it, and it loads nothing from another server. It follows the reader's choice
of light or dark. jinja2 escapes every value, since a program or a server decides what a page quotes.

jinja2 is imported with this module, before a program is explored: afterwards, the directory of the program is on
Python's path, and a file random.py there would be imported instead of Python's own.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jinja2


@cache
def templates(package: str) -> jinja2.Environment:
    """Return the templates of a package, in its directory templates/, beside the ones of this house."""
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package), jinja2.PackageLoader("ewe_explore")]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )


def render(package: str, template: str, **values: Any) -> str:
    """Return a page, or a part of one, from the template of a package."""
    return templates(package).get_template(template).render(values)
