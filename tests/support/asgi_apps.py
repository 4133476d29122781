"""Applications of ASGI 3 without a framework, which tests/features/test_asgi.py serves.

Each is small, and shows the request that it got. `bare` chooses by the path. An event beside a response is a line
in the file `notes` of the directory in which the server runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
from typing import Any

TEXT = [(b"content-type", b"text/plain")]


def note(line: str) -> None:
    """Write a line into the file of the test's directory: applications run in the directory of the server."""
    with open("notes", "a") as file:
        file.write(line + "\n")


async def bare(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer by the function that the path names."""
    if scope["type"] == "lifespan":
        await lifespan(scope, receive, send)
    else:
        await PAGES[scope["path"].removeprefix(scope["root_path"]).split("/")[1]](scope, receive, send)


async def lifespan(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Start and stop, and note both; keep something that belongs to the loop."""
    assert (await receive())["type"] == "lifespan.startup"
    scope["state"]["loop"] = asyncio.get_running_loop()
    scope["state"]["list"] = []
    note(f"up {os.getpid()}")
    await send({"type": "lifespan.startup.complete"})
    assert (await receive())["type"] == "lifespan.shutdown"
    await asyncio.sleep(0.01)
    note(f"down {os.getpid()}")
    await send({"type": "lifespan.shutdown.complete"})


async def answer(send: Any, body: bytes, status: int = 200, headers: Any = TEXT) -> None:
    """Send a whole response."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def show(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Show the scope."""
    shown = {key: value for key, value in scope.items() if key != "state"}
    await answer(send, json.dumps(shown, default=lambda raw: raw.decode("latin-1")).encode())


async def state(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Say whether this request runs on the loop of the startup, and count in what the startup made."""
    scope["state"]["list"].append(1)
    scope["state"]["mine"] = scope["state"].get("mine", 0) + 1
    same = scope["state"]["loop"] is asyncio.get_running_loop()
    await answer(send, f"{same} {len(scope['state']['list'])} {scope['state']['mine']}".encode())


async def echo(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Send each piece of the body back as it comes."""
    await send({"type": "http.response.start", "status": 200, "headers": TEXT})
    more = True
    while more:
        message = await receive()
        more = message["type"] == "http.request" and message["more_body"]
        await send({"type": "http.response.body", "body": message.get("body", b""), "more_body": more})


async def count(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Count the bytes of the body; say how much memory this process has needed, in KB."""
    total, more = 0, True
    while more:
        message = await receive()
        total += len(message["body"])
        more = message["more_body"]
    await answer(send, b"%d %d" % (total, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))


async def pour(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Send as many megabytes as the query says, and note when that is done or the client has left."""
    headers = TEXT
    if scope["query_string"].startswith(b"-"):  # without a length
        size = int(scope["query_string"][1:])
    else:
        size = int(scope["query_string"])
        headers = [*TEXT, (b"Content-Length", b"%d" % (size << 20))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    sent = 0
    try:
        for _ in range(size * 16):
            await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
            sent += 65536
    except OSError:
        note(f"left {sent}")
        raise
    await send({"type": "http.response.body"})
    note(f"poured {sent}")


async def silent(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Wait for the client to leave, and note it."""
    note("waits")
    while (await receive())["type"] != "http.disconnect":
        pass
    note("disconnect")


async def listen(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Begin a response, wait until the exchange is over, and note it. The query is its status."""
    await send({"type": "http.response.start", "status": int(scope["query_string"]), "headers": TEXT})
    await send({"type": "http.response.body", "body": b"begun", "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass
    note("over")


async def sleep(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer once as many requests sleep as the query says."""
    SLEEPERS.append(1)
    while len(SLEEPERS) < int(scope["query_string"]):
        await asyncio.sleep(0.01)
    await answer(send, b"slept")


SLEEPERS: list[int] = []


async def trickle(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Send a line, and the next one once the file `go` exists."""
    await send({"type": "http.response.start", "status": 200, "headers": TEXT})
    await send({"type": "http.response.body", "body": b"first\n", "more_body": True})
    while not os.path.exists("go"):
        await asyncio.sleep(0.01)
    await send({"type": "http.response.body", "body": b"second\n"})


async def later(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer, and work on after the response."""
    await answer(send, b"now")
    assert (await receive())["type"] in ("http.request", "http.disconnect")
    await asyncio.sleep(0.5)
    note("later")


async def before(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Fail before the head."""
    raise ValueError("a fault <before> the head")


async def head(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Fail after http.response.start, which the client has not seen."""
    await send({"type": "http.response.start", "status": 200, "headers": TEXT})
    raise ValueError("a fault at the head")


async def within(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Fail within the body."""
    await send({"type": "http.response.start", "status": 200, "headers": TEXT})
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    raise ValueError("a fault within the body")


async def nothing(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Return without a response."""


async def wrong(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Send a Content-Length, from the query, that is not the body's."""
    length = [*TEXT, (b"content-length", scope["query_string"].removesuffix(b"-")), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    if scope["query_string"].endswith(b"-"):
        await send({"type": "http.response.body", "body": b"four", "more_body": True})
        await send({"type": "http.response.body"})
    else:
        await send({"type": "http.response.body", "body": b"four"})


async def twice(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Send messages that break the protocol, and report the exceptions."""
    said = []
    for message in (
        {"type": "http.response.body"}, {"type": "nonsense"}, {"type": "http.response.start", "status": 99},
        {"type": "http.response.start", "status": 200}, {"type": "http.response.start", "status": 200},
    ):  # fmt: skip
        try:
            await send(message)
            said.append("taken")
        except Exception as reason:
            said.append(type(reason).__name__)
    await send({"type": "http.response.body", "body": " ".join(said).encode()})
    try:
        await send({"type": "http.response.body"})
    except RuntimeError:
        note("over")


async def split(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Send a field that would split the response."""
    await answer(send, b"", headers=[(b"x-split", b"a\r\nset-cookie: b")])


async def path_send(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Name a file as the body."""
    await send({"type": "http.response.start", "status": 200, "headers": TEXT})
    await send({"type": "http.response.pathsend", "path": os.path.abspath("big")})


async def empty(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer 204."""
    await answer(send, b"", 204)


async def bodiless(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer GET with a body, and HEAD without one."""
    await answer(send, b"body" if scope["method"] == "GET" else b"")


async def leave(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Call sys.exit()."""
    raise SystemExit("an application may not end the server")


PAGES = {
    "show": show, "state": state, "echo": echo, "count": count, "pour": pour, "silent": silent, "sleep": sleep,
    "trickle": trickle, "later": later, "before": before, "head": head, "within": within, "nothing": nothing,
    "wrong": wrong, "twice": twice, "split": split, "file": path_send, "empty": empty, "exit": leave,
    "listen": listen, "bodiless": bodiless,
}  # fmt: skip


async def failing(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Fail at the startup."""
    assert (await receive())["type"] == "lifespan.startup"
    await send({"type": "lifespan.startup.failed", "message": "Traceback\n  ...\nOSError: no database\n"})


async def hanging(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Never end the startup, and note that it was reached."""
    note("starts")
    await asyncio.sleep(3600)


async def stubborn(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Start, and never end the shutdown."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        note("stays")
        await asyncio.sleep(3600)
    await answer(send, b"here")
