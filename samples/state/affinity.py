"""Session affinity: a process keeps baskets in its memory, and ewe leads each visitor to the same process again.

    python affinity.py a.sock &  python affinity.py b.sock &
    ewe --scgi /affinity=unix:a.sock --scgi /affinity=unix:b.sock --fastcgi-affinity at

The fastest and the frailest state: a dictionary. It is lost when its process ends, and its visitors stay with the
process however busy that is. ewe's cookie `at` only names the process. The process itself sets a cookie with the
number of the session.

The process speaks SCGI: for each request the length of the head, names and values that each end in NUL, the body.
"""

from __future__ import annotations

import secrets
import socket
import sys
from io import BytesIO

from basket import Basket, Environ, Start, added, cookie, see_other, set_cookie, show, with_one_more

baskets: dict[str, Basket] = {}


def app(environ: Environ, start: Start) -> list[bytes]:
    """Show the basket of the visitor's session; add to it."""
    number = cookie(environ, "session")
    if goods := added(environ):
        if number not in baskets:
            number = secrets.token_hex(16)
        baskets[number] = with_one_more(baskets.get(number, {}), goods)
        return see_other(start, environ["SCRIPT_NAME"] or "/", [set_cookie(environ, "session", number)])
    return show(start, baskets.get(number, {}))


def answer(connection: socket.socket) -> None:
    """Answer one request of SCGI."""
    with connection, connection.makefile("rwb") as file:
        length = b""
        while (digit := file.read(1)).isdigit():
            length += digit
        if not length:
            return  # the web server has closed the connection without a request
        parts = file.read(int(length)).decode("latin-1").split("\0")
        file.read(1)  # the comma after the head
        environ: Environ = dict(zip(parts[::2], parts[1::2], strict=False))
        environ["wsgi.input"] = BytesIO(file.read(int(environ["CONTENT_LENGTH"])))
        environ["wsgi.url_scheme"] = environ.get("REQUEST_SCHEME", "http")

        def start(status: str, fields: list[tuple[str, str]]) -> None:
            head = [f"Status: {status}", *(f"{name}: {value}" for name, value in fields), "", ""]
            file.write("\r\n".join(head).encode("latin-1"))

        file.writelines(app(environ, start))


if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(sys.argv[1])
        listening.listen(100)
        while True:
            answer(listening.accept()[0])
