"""The basket itself, which all six samples share. A basket maps each of the goods to its number."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from typing import Any
from urllib.parse import parse_qs

GOODS = ("wool", "feta", "bell")
Basket = dict[str, int]
Environ = dict[str, Any]
Start = Callable[..., Any]
PAGE = """<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Basket</title>
<style>:root {{ color-scheme: light dark }} body {{ font: 1.1rem system-ui; margin: 2rem }}</style>
<h1>Your basket</h1><p>{lines}
<form method="post" action="{action}">{buttons}</form></html>
"""


def added(environ: Environ) -> str:
    """Return which of the goods the visitor adds with this request; "" for none."""
    if environ["REQUEST_METHOD"] != "POST":
        return ""
    size = min(int(environ.get("CONTENT_LENGTH") or 0), 100)
    (goods,) = parse_qs(environ["wsgi.input"].read(size).decode("latin-1")).get("add", [""])[:1]
    return goods if goods in GOODS else ""


def cookie(environ: Environ, name: str) -> str:
    """Return the value of a cookie of the visitor's browser; "" without one."""
    pairs = (pair.strip().partition("=") for pair in environ.get("HTTP_COOKIE", "").split(";"))
    return next((value for own, _, value in pairs if own == name), "")


def set_cookie(environ: Environ, name: str, value: str) -> tuple[str, str]:
    """Return the header field that sets a cookie. Only this sample gets the cookie, and no script can read it."""
    secure = "; Secure" if environ["wsgi.url_scheme"] == "https" else ""
    path = environ["SCRIPT_NAME"] or "/"
    return "Set-Cookie", f"{name}={value}; Path={path}; Max-Age=86400; HttpOnly; SameSite=Lax{secure}"


def show(start: Start, basket: Basket, action: str = "") -> list[bytes]:
    """Answer with the page of a basket. action: the target of its form; "": the address of the page."""
    lines = (
        ", ".join(f"{count} × {escape(goods)}" for goods, count in sorted(basket.items())) or "It is empty."
    )
    buttons = " ".join(f'<button name="add" value="{goods}">Add {goods}</button>' for goods in GOODS)
    body = PAGE.format(lines=lines, action=escape(action), buttons=buttons).encode()
    start("200 OK", [("Content-Type", "text/html; charset=utf-8"), ("Cache-Control", "no-store")])
    return [body]


def see_other(start: Start, target: str, fields: Iterable[tuple[str, str]] = ()) -> list[bytes]:
    """Redirect the browser from a form to a page that it may load again."""
    start("303 See Other", [("Location", target), ("Content-Type", "text/plain"), *fields])
    return []


def with_one_more(basket: Basket, goods: str) -> Basket:
    """Return a basket with one more of the goods."""
    return basket | {goods: basket.get(goods, 0) + 1}
