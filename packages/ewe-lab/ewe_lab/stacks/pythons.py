"""Servers written in Python.

gunicorn, uvicorn, waitress and granian run applications and send no files. For them the lab writes an application
of ten lines, which sends the files of the document root. Each function of this module is the preparation of a
server (other_servers.OtherServer): it writes the files that the server needs, and returns its command.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from ewe_lab.stacks import floors
from ewe_lab.stacks.webservers import Setup

WSGI = """\
import os

ROOT = {root!r}


def application(environ, start_response):
    path = os.path.join(ROOT, environ["PATH_INFO"].lstrip("/"))
    try:
        with open(path, "rb") as file:
            body = file.read()
    except OSError:
        start_response("404 Not Found", [("Content-Length", "0")])
        return [b""]
    start_response("200 OK", [("Content-Type", "text/html"), ("Content-Length", str(len(body)))])
    return [body]
"""
ASGI = """\
import os

ROOT = {root!r}


async def application(scope, receive, send):
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    path = os.path.join(ROOT, scope["path"].lstrip("/"))
    status, body = 200, b""
    try:
        with open(path, "rb") as file:
            body = file.read()
    except OSError:
        status = 404
    length = str(len(body)).encode()
    headers = [(b"content-type", b"text/html"), (b"content-length", length)]
    await send({{"type": "http.response.start", "status": status, "headers": headers}})
    await send({{"type": "http.response.body", "body": body}})
"""


def http_server(setup: Setup) -> list[str]:
    """Return the command of the standard library's server: a thread for each connection, with keep-alive."""
    return [
        sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--protocol", "HTTP/1.1",
        "--directory", str(setup.root), str(setup.port),
    ]  # fmt: skip


def gunicorn(setup: Setup) -> list[str]:
    """Write an application that sends files; return the command of gunicorn.

    gunicorn has one worker here, with four threads that read requests themselves.
    """
    setup.write("lab_wsgi.py", WSGI.format(root=str(setup.root)))
    return gunicorn_with(setup, "lab_wsgi:application", "--chdir", str(setup.directory))


def gunicorn_with(setup: Setup, application: str, *options: str) -> list[str]:
    """Return the command of gunicorn with an application."""
    return [
        sys.executable, "-m", "gunicorn", "--bind", f"127.0.0.1:{setup.port}", "--worker-class", "gthread",
        "--threads", "4", "--workers", "1", "--worker-tmp-dir", str(setup.directory), "--log-level", "error",
        *options, application,
    ]  # fmt: skip


def uvicorn(setup: Setup) -> list[str]:
    """Write an application that sends files; return the command of uvicorn: one process, one event loop."""
    setup.write("lab_asgi.py", ASGI.format(root=str(setup.root)))
    return uvicorn_with(setup, "lab_asgi:application", "--app-dir", str(setup.directory))


def uvicorn_with(setup: Setup, application: str, *options: str) -> list[str]:
    """Return the command of uvicorn with an application."""
    return [
        sys.executable, "-m", "uvicorn", "--host", "127.0.0.1", "--port", str(setup.port), "--no-access-log",
        "--lifespan", "off", "--log-level", "error", *options, application,
    ]  # fmt: skip


def waitress(setup: Setup) -> list[str]:
    """Write an application that sends files; return the command of waitress.

    waitress has an event loop that hands complete requests to four threads.
    """
    setup.write("lab_wsgi.py", WSGI.format(root=str(setup.root)))
    return [
        sys.executable, "-m", "waitress", "--listen", f"127.0.0.1:{setup.port}", "--threads", "4",
        "--connection-limit", "2000", "lab_wsgi:application",
    ]  # fmt: skip


def granian(setup: Setup) -> list[str]:
    """Write an application that sends files; return the command of granian.

    granian has an event loop in Rust that runs Python for each request.
    """
    setup.write("lab_asgi.py", ASGI.format(root=str(setup.root)))
    options = ("--interface", "asgi", "--working-dir", str(setup.directory))
    return granian_with(setup, "lab_asgi:application", *options)


def granian_with(setup: Setup, application: str, *options: str) -> list[str]:
    """Return the command of granian with an application."""
    return [
        sys.executable, "-m", "granian", "--host", "127.0.0.1", "--port", str(setup.port), "--no-ws",
        "--workers", "1", "--log-level", "error", *options, application,
    ]  # fmt: skip


def floor(kind: str) -> Callable[[Setup], list[str]]:
    """Return the preparation of the least server of a kind (ewe_lab.stacks.floors): it serves the index of 1 KB."""

    def prepare(setup: Setup) -> list[str]:
        certificate = [str(setup.certificate)] if setup.certificate else []
        page = str(setup.root / "index.html")
        return [sys.executable, "-IS", floors.__file__, kind, str(setup.port), page, *certificate]

    return prepare


COMMANDS = {"gunicorn": gunicorn_with, "uvicorn": uvicorn_with, "granian": granian_with}
