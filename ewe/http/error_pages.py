"""Error pages: small, readable, and without information that the client does not have already."""

from __future__ import annotations

from collections.abc import Iterable

from ewe.http.messages import Response, encode_head
from ewe.http.status import REASONS

PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{status} {reason}</title>
<style>
body {{ font: 1.1rem/1.5 system-ui, sans-serif; max-width: 34rem; margin: 15vh auto; padding: 0 1rem }}
h1 {{ font-size: 1.5rem }} h1 span {{ opacity: .55; font-weight: 400 }}
</style>
<main>
<h1><span>{status}</span> {reason}</h1>
<p>{text}
</main>
</html>
"""
DOCUMENT = """<!DOCTYPE html>
<html lang="{language}">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{palette}{style}</style>
{body}
</html>
"""
# The first rules of each html_document(): the colors of ewe's own pages, on a light and on a dark screen
PALETTE = """
:root { color-scheme: light dark; --paper: #fbfaf5; --panel: #f1f2e9; --ink: #1f2a24; --quiet: #55605a;
  --line: #d3d8cb; --accent: #1d6b45 }
@media (prefers-color-scheme: dark) { :root { --paper: #151a18; --panel: #1f2623; --ink: #e5e9e4;
  --quiet: #a5b0a9; --line: #3a443f; --accent: #86d3a8 } }
"""

PAGE_FIELDS = (("Content-Type", "text/html; charset=utf-8"), ("X-Content-Type-Options", "nosniff"))
MADE_PAGES: dict[int, tuple[bytes, bytes]] = {}  # status: the page, and the status and field lines
TEXTS = {
    400: "The server could not understand this request. Please check the address for typing errors.",
    401: "Please log in: this address needs a name and a password.",
    403: "This address exists, but the server may not show it to you. If you expected a page here, "
    "please tell the owner of this site.",
    404: "There is nothing at this address. Please check it for typing errors.",
    405: "This address does not accept what was sent to it, such as a form. Try to open it as a page.",
    408: "The request did not come in time.",
    412: "The file is not as the request expects it.",
    413: "The request's body is larger than this server takes.",
    414: "The address is longer than this server takes.",
    416: "The file does not have that part.",
    417: "This server does not know what the request expects.",
    421: "The server does not answer for this address on such a connection. A secured one may help.",
    429: "Too many requests came from your address. Please wait a little, then try again.",
    431: "The request's header is larger than this server takes.",
    500: "Something went wrong here. The server's log tells its administrator why.",
    501: "This server does not know that method or coding.",
    502: "The program behind this address did not answer properly.",
    503: "The server is busy. Please try again in a moment.",
    504: "The program behind this address did not answer in time.",
    505: "This server speaks HTTP/1.1 and HTTP/1.0.",
    507: "There is no room to take the request's body.",
}


def error_page(
    status: int, cause: str, fields: Iterable[tuple[str, str]] = (), *, text: str = ""
) -> Response:
    """Return the error page of a status. cause: for the error log only. fields: additional header fields.

    text: the explanation on the page; "": the general text of the status.
    """
    reason = REASONS.get(status, "Error")
    made = MADE_PAGES.get(status) if not text else None
    if made is None:
        shown = html_escape(text) if text else TEXTS.get(status, reason + ".")
        page = PAGE.format(status=status, reason=reason, text=shown).encode()
        made = page, encode_head(status, reason, PAGE_FIELDS)
        if not text:
            MADE_PAGES[status] = made
    page, head = made
    return Response(status, (*PAGE_FIELDS, *fields) if fields else PAGE_FIELDS, page, cause=cause,
        head=b"" if fields else head)  # fmt: skip


def fault_page(traceback: str) -> Response:
    """Return the page of a 500 with a traceback. Only the developer of an application may see it."""
    page = error_page(500, "").body
    assert isinstance(page, bytes)
    # With tabindex, long lines can be scrolled with the keyboard.
    shown = f'<pre tabindex="0">{html_escape(traceback)}</pre>\n</main>\n'.encode("utf-8", "replace")
    return Response(500, PAGE_FIELDS, page.replace(b"</main>\n", shown))


def link_page(title: str, text: str) -> bytes:
    """Return the page for a client that does not follow a redirect. text: HTML."""
    return f'<!DOCTYPE html>\n<html lang="en">\n<title>{title}</title>\n<main><p>{text}</main>\n</html>\n'.encode()


def html_document(title: str, style: str, body: str, language: str = "en") -> str:
    """Return a whole page. title, body: HTML. style: CSS, which follows the rules of PALETTE."""
    return DOCUMENT.format(title=title, palette=PALETTE, style=style, body=body, language=language)


def html_escape(text: str) -> str:
    """Escape a text for HTML. Importing html, for html.escape(), would load a table of all entities."""
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#x27;")):
        text = text.replace(character, entity)
    return text
