"""State in a signed cookie: the browser keeps the basket, and a signature shows that this site wrote it.

    Set-Cookie: basket=eyJ3b29sIjoyfQ.5d1f...      the basket as JSON in base64, and HMAC-SHA256 of it

The server keeps only the key. All servers of a site need the same key, and the key must survive a restart. The
visitor can read the basket, and can send an old basket again (a used voucher), but cannot write another basket. The
browser sends the cookie with each request, and accepts up to 4,096 bytes.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress

from basket import Basket, Environ, Start, added, cookie, see_other, set_cookie, show, with_one_more


def key() -> bytes:
    """Return the key of the site, which is made at the first start.

    Several processes of a server start at the same time. No process may read a key that another one has not written
    completely, so the file gets its final name when it is complete.
    """
    if not os.path.exists("basket.key"):
        own = f"basket.key.{os.getpid()}"
        with open(os.open(own, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
        with suppress(FileExistsError):
            os.link(own, "basket.key")
        os.unlink(own)
    with open("basket.key", "rb") as file:
        return file.read()


KEY = key()


def app(environ: Environ, start: Start) -> list[bytes]:
    """Show the basket of the cookie. If the visitor adds goods, set a cookie with the new basket."""
    basket = read(cookie(environ, "basket"))
    if goods := added(environ):
        value = written(with_one_more(basket, goods))
        return see_other(start, environ["SCRIPT_NAME"] or "/", [set_cookie(environ, "basket", value)])
    return show(start, basket)


def written(basket: Basket) -> str:
    """Return a basket as the value of a cookie."""
    data = urlsafe_b64encode(json.dumps(basket).encode()).rstrip(b"=").decode()
    return f"{data}.{signature(data)}"


def read(value: str) -> Basket:
    """Return the basket of a cookie; an empty one if this site has not signed it."""
    data, _, signed = value.partition(".")
    # compare_digest() takes the same time for each wrong signature, so an attacker cannot guess it byte by byte.
    if not hmac.compare_digest(signature(data).encode(), signed.encode()):
        return {}
    basket: Basket = json.loads(urlsafe_b64decode(data + "=" * (-len(data) % 4)))
    return basket


def signature(data: str) -> str:
    """Return the HMAC-SHA256 of `data`. Only the owner of the key can compute it."""
    return hmac.new(KEY, data.encode(), "sha256").hexdigest()
