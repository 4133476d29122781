"""State in the URL: the query contains the basket, as in ?bell=1&wool=2.

The server keeps no state, and any server can answer. A bookmark keeps the basket, and a link gives it to others.
The visitor can write any basket into the address: never put a price, a name or a permission there.
"""

from __future__ import annotations

from urllib.parse import parse_qs, urlencode

from basket import GOODS, Basket, Environ, Start, added, see_other, show, with_one_more

MOST = 1000


def app(environ: Environ, start: Start) -> list[bytes]:
    """Show the basket of the address. If the visitor adds goods, redirect to the address of the new basket."""
    basket = basket_in(environ.get("QUERY_STRING", ""))
    if goods := added(environ):
        return see_other(start, "?" + urlencode(sorted(with_one_more(basket, goods).items())))
    return show(start, basket, "?" + urlencode(sorted(basket.items())))


def basket_in(query: str) -> Basket:
    """Return the basket of a query. The visitor may have written anything, so each part is checked."""
    found = {goods: values[-1] for goods, values in parse_qs(query).items() if goods in GOODS}
    numbers = {
        goods: int(text)
        for goods, text in found.items()
        if text.isascii() and text.isdigit() and len(text) < 5
    }
    return {goods: count for goods, count in numbers.items() if 0 < count <= MOST}
