"""A Markdown text as one self-contained page: style in it, no script, no other server."""

from __future__ import annotations

from html import escape

from ewe.config.messages import ConfigError

STYLE = """
:root { color-scheme: light dark; --ink: #1d2327; --dim: #5b6670; --paper: #fff; --card: #f5f6f4; --line: #d8dcd8 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9e7; --dim: #9aa5a0; --paper: #16191a; --card: #1f2425;
  --line: #3a4243 } }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 50rem; background: var(--paper); color: var(--ink);
  font: 17px/1.6 system-ui, sans-serif }
h1 { font-size: 1.7rem; line-height: 1.2 }
h2 { font-size: 1.25rem; margin-top: 2.2rem; border-bottom: 1px solid var(--line) }
h1 + p em { color: var(--dim); font-style: normal }
pre { overflow-x: auto; padding: .8rem; border-radius: 8px; background: var(--card); border: 1px solid var(--line) }
code { font: .88rem/1.45 ui-monospace, monospace }
pre, pre code { font: .8rem/1.45 ui-monospace, monospace }
p code, li code, td code { background: var(--card); padding: .1rem .25rem; border-radius: 4px;
  overflow-wrap: anywhere }
table { border-collapse: collapse; display: block; overflow-x: auto }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line) }
li { margin: .25rem 0 }
@media print { body { max-width: none; font-size: 11pt } }
"""


def to_html(text: str, title: str) -> str:
    """Return the page. Raises ConfigError if the package that reads Markdown is not installed."""
    try:
        from markdown import markdown
    except ImportError:
        raise ConfigError("pages of assignments need Markdown: pip install 'ewe-server[classroom]'") from None
    body = markdown(text, extensions=["tables", "fenced_code", "sane_lists"])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )
