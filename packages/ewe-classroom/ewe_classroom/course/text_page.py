"""A Markdown text as one self-contained page: style in it, no script, no other server."""

from __future__ import annotations

from ewe.config.messages import ConfigError
from ewe_explore.pages import render


def to_html(text: str, title: str) -> str:
    """Return the page. Raises ConfigError if the package that reads Markdown is not installed."""
    try:
        from markdown import markdown
    except ImportError:
        raise ConfigError("pages of assignments need Markdown: pip install markdown") from None
    body = markdown(text, extensions=["tables", "fenced_code", "sane_lists"])
    return render("ewe_classroom", "text.html.j2", title=title, body=body)
