"""The same little program as a WSGI and as an ASGI application, for servers that run Python in their own process.

    ewe --wsgi /page=ewe_lab.stacks.applications:wsgi_page
    gunicorn ewe_lab.stacks.applications:wsgi_page

This module imports few others, because the memory of the servers that import it is measured.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

WSGI = Callable[[dict[str, Any], Callable[..., Any]], list[bytes]]
ASGI = Callable[
    [dict[str, Any], Callable[..., Any], Callable[[dict[str, Any]], Awaitable[None]]], Awaitable[None]
]

HELLO = "hello world, from a program that keeps nothing over\n"  # 52 bytes, as in table 1 of X-Switch
PAGE_PYTHON = "x" * 749 + "\n"  # 750 bytes, as in DT-2 of the thesis
STREAM_BYTES, STREAM_CHUNK_BYTES = 1024 * 1024, 64 * 1024
HEADERS = [("Content-Type", "text/plain")]
RAW_HEADERS = [(b"content-type", b"text/plain")]


def wsgi(body: bytes) -> WSGI:
    """Return a WSGI application (PEP 3333) that answers every request with `body`."""

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [*HEADERS, ("Content-Length", str(len(body)))])
        return [body]

    return application


def asgi(chunk: bytes, count: int = 1) -> ASGI:
    """Return an ASGI application with a constant answer, which it sends in `count` equal chunks.

    It ignores other events than requests, such as the server's start (lifespan).
    """
    headers = [*RAW_HEADERS, (b"content-length", str(len(chunk) * count).encode())]

    async def application(
        scope: dict[str, Any], receive: Callable[..., Any], send: Callable[[dict[str, Any]], Awaitable[None]]
    ) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for _ in range(count - 1):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": chunk})

    return application


wsgi_hello, wsgi_page = wsgi(HELLO.encode()), wsgi(PAGE_PYTHON.encode())
asgi_hello, asgi_page = asgi(HELLO.encode()), asgi(PAGE_PYTHON.encode())
asgi_stream = asgi(bytes(STREAM_CHUNK_BYTES), STREAM_BYTES // STREAM_CHUNK_BYTES)
