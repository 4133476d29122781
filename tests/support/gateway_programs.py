"""One program behind every gateway: what it does is the last word of the path, its name. It uses no module of ewe.

    echo        the request's body, and X-Length: how long it was told that the body is
    large       LARGE bytes, all different
    much        64 MB, for a client that leaves; with a query, as many MB as it says
    sink        how many bytes the request's body has; keeps none of them
    fails       fails before it has written anything
    fails-late  fails after 100,000 of the 1,000,000 bytes that it has promised

As a CGI script this file is run itself, also by X-Switch's engine. `wsgi` and `asgi` are mounted. program() is what
a server of FastCGI, SCGI or uwsgi calls (tests/gateway/test_every_gateway.py). LIBRARY is the same in C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

LARGE = 1_000_003
PIECE = bytes(range(256)) * 256

LIBRARY = r"""
#include <ewe_libcgi.h>
#include <string.h>
void processfunc(char *input)
{
    static const char head[] = "Content-Type: application/octet-stream\n";
    const char *what = strrchr(getenv("PATH_INFO"), '/') + 1, *length = getenv("CONTENT_LENGTH");
    char piece[65536];
    long left = !strcmp(what, "large") ? 1000003 : 64L << 20;
    for (size_t at = 0; at < sizeof piece; at++) piece[at] = (char)at;
    if (!strcmp(what, "fails")) abort();
    lputs(head);
    if (!strcmp(what, "echo")) {
        lprintf("X-Length: %s\n\n", length ? length : "0");
        if (input) lwrite(input, strtoul(length, NULL, 10));
        return;
    }
    if (!strcmp(what, "fails-late")) {
        lputs("Content-Length: 1000000\n\n");
        lwrite(piece, 65536);
        lwrite(piece, 34464);
        abort();
    }
    lputs("\n");
    for (; left > 0; left -= (long)sizeof piece)
        lwrite(piece, left < (long)sizeof piece ? (size_t)left : sizeof piece);
}
"""


def program(what: str, body: bytes, query: str = "") -> tuple[list[tuple[str, str]], Iterator[bytes]]:
    """Return the fields of the answer, and its pieces. Raises RuntimeError where it is to fail."""
    fields = [("Content-Type", "application/octet-stream")]
    if what == "fails":
        raise RuntimeError("as asked")
    if what == "echo":
        return [*fields, ("X-Length", str(len(body)))], iter([body])
    if what == "fails-late":
        return [*fields, ("Content-Length", "1000000")], failing()
    if what == "sink":
        return fields, iter([body])
    size = LARGE if what == "large" else int(query or 64) << 20
    return fields, (PIECE[: size - at] for at in range(0, size, len(PIECE)))


def counted(pieces: Iterable[bytes]) -> bytes:
    """Return the number of bytes in the pieces, in decimal."""
    return b"%d" % sum(map(len, pieces))


def failing() -> Iterator[bytes]:
    """Yield 100,000 bytes, and fail."""
    yield PIECE
    yield PIECE[:34464]
    raise RuntimeError("as asked")


def expected_large() -> bytes:
    """Return what `large` answers."""
    return (PIECE * (LARGE // len(PIECE) + 1))[:LARGE]


def wsgi(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """The program as a WSGI application."""
    what, file = environ["PATH_INFO"].rpartition("/")[2], environ["wsgi.input"]
    body = counted(iter(lambda: file.read(65536), b"")) if what == "sink" else file.read()
    fields, pieces = program(what, body, environ["QUERY_STRING"])
    start_response("200 OK", fields)
    return pieces


async def asgi(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """The program as an ASGI application."""
    assert scope["type"] == "http"
    what, body, size, more = scope["path"].rpartition("/")[2], b"", 0, True
    while more:
        message = await receive()
        size += len(message["body"])
        body += message["body"] if what != "sink" else b""
        more = message["more_body"]
    body = b"%d" % size if what == "sink" else body
    fields, pieces = program(what, body, scope["query_string"].decode())
    headers = [(name.encode(), value.encode()) for name, value in fields]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body"})


def main() -> None:
    """The program as a CGI script."""
    length = int(os.environ.get("CONTENT_LENGTH") or 0)
    what, file = os.environ["PATH_INFO"].rpartition("/")[2], sys.stdin.buffer
    blocks = (file.read(min(65536, length - at)) for at in range(0, length, 65536))
    body = counted(blocks) if what == "sink" else file.read(length)
    fields, pieces = program(what, body, os.environ["QUERY_STRING"])
    out = sys.stdout.buffer
    out.write("".join(f"{name}: {value}\n" for name, value in fields).encode() + b"\n")
    for piece in pieces:
        out.write(piece)
    out.flush()


if __name__ == "__main__":
    main()
