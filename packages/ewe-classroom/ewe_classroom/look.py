"""How the pages of the classroom look: one palette, light and dark, for assignments, reports and leaderboards.

Each page is one file: its style is in it, and it loads nothing from another server.
"""

from __future__ import annotations

from html import escape

PALETTE = """
:root { color-scheme: light dark; --ink: #1c2430; --dim: #5a6675; --paper: #fff; --card: #f4f6f8; --line: #d5dbe1;
  --good: #1f7a4d; --good-soft: #e2f2e9; --bad: #b3261e; --bad-soft: #f3d9d6; --wait: #d9951c; --note: #2f69b0 }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --dim: #9aa7b4; --paper: #12161b; --card: #1b2129;
  --line: #343d48; --good: #5fcb95; --good-soft: #163528; --bad: #ff8f85; --bad-soft: #4a2522; --wait: #e8b450;
  --note: #7db4f0 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 2rem 1.2rem 4rem; max-width: 66rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .4rem; letter-spacing: -.01em }
code, pre { font: .87rem/1.45 ui-monospace, monospace }
.dim { color: var(--dim); margin: .15rem 0; overflow-wrap: anywhere }
@media (max-width: 44rem) { body { padding: 1.2rem .9rem 3rem } h1 { font-size: 1.5rem } }
@media print { body { max-width: none; font-size: 11pt } }
"""


def document(title: str, style: str, body: str) -> str:
    """Return a page. style: CSS after the palette; body: HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{PALETTE}{style}</style></head><body>\n{body}\n</body></html>\n"
    )
