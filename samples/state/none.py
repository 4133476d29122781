"""No state: each request contains all that the answer needs, and the server forgets the request.

No state is kept, so none can be lost, forged or shared. No basket holds more than one of the goods.
"""

from __future__ import annotations

from basket import Environ, Start, added, show


def app(environ: Environ, start: Start) -> list[bytes]:
    """Show a basket with what this request adds."""
    goods = added(environ)
    return show(start, {goods: 1} if goods else {})
