"""A CGI script in Python as an application of a server: under WSGI, under ASGI and behind FastCGI.

    LAB_SCRIPT=/srv/cgi-bin/hello.py ewe --wsgi /wsgi=ewe_lab.stacks.script_runner:wsgi

The script is compiled once and executed for each request, unmodified, in the server's interpreter: the least work
with which a gateway can run it without a new process. This module is for comparisons. Standard output and the
environment belong to the whole process, so a lock lets one thread run the script at a time. A change that the
script makes to its modules is visible to the next request.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from functools import cache
from types import CodeType
from typing import Any

SCRIPT_VARIABLE = "LAB_SCRIPT"  # the variable that names the script
# read before a script of another thread changes the environment
SCRIPT_PATH = os.environ.get(SCRIPT_VARIABLE, "")
SCRIPT_LOCK = threading.Lock()

Head = list[tuple[str, str]]


@cache
def code_of(script: str) -> CodeType:
    """Return a script, compiled."""
    with open(script, "rb") as file:
        return compile(file.read(), script, "exec")


def output_of(script: str, variables: Mapping[str, str]) -> bytes:
    """Execute a script with these variables; return its output. An exception of the script passes."""
    with SCRIPT_LOCK:
        before, environment = sys.stdout, dict(os.environ)
        os.environ.update(variables)
        written = io.BytesIO()
        sys.stdout = text = io.TextIOWrapper(written, "utf-8")
        try:
            exec(code_of(script), {"__name__": "__main__", "__file__": script})
        except SystemExit:  # sys.exit() ends a script, not the server
            pass
        finally:  # first: flush() raises ValueError if the script has closed its standard output
            sys.stdout = before
            os.environ.clear()
            os.environ.update(environment)
        text.flush()
        return written.getvalue()


def parse_output(output: bytes) -> tuple[str, Head, bytes]:
    """Return the status, the fields and the body of a script's output. `200 OK` if it names no status."""
    # Lines may end with CR LF. Only those of the first 4 KB are replaced: the head is there, most of a body is not
    head, _, body = output.replace(b"\r\n", b"\n", output.count(b"\r\n", 0, 4096)).partition(b"\n\n")
    fields = [
        (name.strip(), value.strip()) for name, _, value in map(split_field, head.decode().splitlines())
    ]
    status = next((value for name, value in fields if name.lower() == "status"), "200 OK")
    return status, [(name, value) for name, value in fields if name.lower() != "status"], body


def split_field(line: str) -> tuple[str, str, str]:
    """Split a field line at its first colon."""
    return line.partition(":")


def wsgi(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer with the script that LAB_SCRIPT names: PEP 3333."""
    # Without the objects of WSGI, such as wsgi.input
    variables = {name: value for name, value in environ.items() if isinstance(value, str)}
    status, fields, body = parse_output(output_of(SCRIPT_PATH, variables))
    start_response(status, fields)
    return [body]


async def asgi(
    scope: MutableMapping[str, Any],
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
    send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
) -> None:
    """Answer with the script that LAB_SCRIPT names: ASGI 3. The script blocks the event loop while it runs."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    variables = {
        "REQUEST_METHOD": scope["method"],
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "PATH_INFO": scope["path"],
    }
    status, fields, body = parse_output(output_of(SCRIPT_PATH, variables))
    headers = [(name.lower().encode(), value.encode()) for name, value in fields]
    await send({"type": "http.response.start", "status": int(status.split()[0]), "headers": headers})
    await send({"type": "http.response.body", "body": body})
