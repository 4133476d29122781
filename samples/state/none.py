"""No state: each request says all that the answer needs, and the server forgets it.

Nothing is kept, so nothing can be lost, forged or shared. And no basket fills.
"""

from __future__ import annotations

from basket import Environ, Start, added, show


def app(environ: Environ, start: Start) -> list[bytes]:
    """Show a basket with what this request adds."""
    goods = added(environ)
    return show(start, {goods: 1} if goods else {})
