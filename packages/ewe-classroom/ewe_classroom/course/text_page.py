"""A Markdown text as one self-contained page: style in it, no script, no other server."""

from __future__ import annotations

from ewe.config.messages import ConfigError
from ewe_classroom.look import document

STYLE = """
body { max-width: 56rem; font-size: 17px; line-height: 1.65 }
p, li, h2, h3 { max-width: 46rem }
h1 { margin-top: .4rem; padding-top: 1.1rem; border-top: 6px solid var(--good); text-wrap: balance }
h1 + p { margin: 0 0 1.8rem; color: var(--dim) }
h1 + p em { font-style: normal }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 2.6rem 0 .7rem }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .4rem }
a { color: var(--note) }
pre { overflow-x: auto; padding: .8rem 1rem; border-radius: 8px; background: var(--card);
  border-left: 4px solid var(--line) }
pre, pre code { font: .82rem/1.5 ui-monospace, "DejaVu Sans Mono", monospace }
p code, li code, td code { background: var(--card); padding: .08rem .3rem; border-radius: 4px }
p code, li code { overflow-wrap: anywhere }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0 }
th { font-size: .88rem; color: var(--dim); border-bottom: 2px solid var(--line) }
td { border-bottom: 1px solid var(--line) }
th, td { text-align: left; vertical-align: top; padding: .35rem 1.2rem .35rem 0 }
li { margin: .3rem 0 }
ol, ul { padding-left: 1.5rem }
blockquote { margin: 1rem 0; padding: .1rem 1rem; border-left: 4px solid var(--wait); background: var(--card) }
@media (max-width: 44rem) { body { font-size: 16px } pre { margin-left: -.9rem; margin-right: -.9rem;
  border-radius: 0 } th, td { padding-right: .8rem } }
"""


def to_html(text: str, title: str) -> str:
    """Return the page. Raises ConfigError if the package that reads Markdown is not installed."""
    try:
        from markdown import markdown
    except ImportError:
        raise ConfigError("pages of assignments need Markdown: pip install markdown") from None
    body = markdown(text, extensions=["tables", "fenced_code", "sane_lists"])
    return document(title, STYLE, body)
