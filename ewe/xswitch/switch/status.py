"""X-Switch's status page, as text or JSON: the engines of all users, with their scripts, sizes and times.

`ewe-xswitch status` asks over X-Switch's own socket: everyone who may connect to it may see the status. Everyone
else needs the URL /xswitch-status, which is only there with `status = true`, and only for a loopback address.
Behind a proxy on this machine every client has such an address.
"""

from __future__ import annotations

import json
import time
from typing import Any

from ewe.xswitch.settings import Settings
from ewe.xswitch.switch.engine import Engine
from ewe.xswitch.switch.scheduler import Scheduler

COLUMNS = ("user", "language", "pid", "state", "requests", "age", "idle", "private", "shared", "script")

Memory = dict[str, list[int]]  # pid -> private and shared bytes


def render(status: dict[str, Any], params: dict[bytes, bytes]) -> bytes:
    """Return the response to a request for the status: JSON if the query says so, else a table of text."""
    if b"json" in params.get(b"QUERY_STRING", b""):
        return b"Content-Type: application/json\r\n\r\n" + json.dumps(status).encode() + b"\n"
    return b"Content-Type: text/plain; charset=utf-8\r\n\r\n" + as_text(status).encode(
        "utf-8", "backslashreplace"
    )


def may_see_status(params: dict[bytes, bytes], settings: Settings) -> bool:
    """Return whether a request may see the status: from `ewe-xswitch status`, or over a URL from this machine.

    The command sets XSWITCH_STATUS. A client cannot: its headers become variables HTTP_….
    """
    return b"XSWITCH_STATUS" in params or (settings.status and is_loopback(params.get(b"REMOTE_ADDR", b"")))


def is_loopback(address: bytes) -> bool:
    """Return whether this is an address of the machine itself."""
    return address.startswith(b"127.") or address == b"::1"


def collect(
    scheduler: Scheduler[Any, Engine], connections: int, since: float, memory: Memory
) -> dict[str, Any]:
    """Return the engines, the queue and the counters. Times in seconds, memory in bytes.

    connections: open ones of web servers. since: when the main process started.
    """
    now = time.monotonic()
    engines = sorted(scheduler.engines, key=lambda engine: engine.key)
    return {
        "uptime": round(now - since, 1),
        "engines": [describe(engine, now, memory) for engine in engines],
        "waiting": {user: sum(map(len, queues.values())) for user, queues in scheduler.queues.items()},
        "connections": connections,
        "counters": dict(sorted(scheduler.counters.items())),
    }


def describe(engine: Engine, now: float, memory: Memory) -> dict[str, Any]:
    """Return the row of one engine."""
    private, shared = memory.get(str(engine.pid), (0, 0))
    busy = engine.is_busy()
    return {
        "user": engine.key[0],
        "language": engine.key[1],
        "pid": engine.pid,
        "state": "busy" if busy else "idle",
        "requests": engine.served,
        "age": round(now - engine.since, 1),
        "idle": 0 if busy else round(now - engine.used, 1),
        "private": private,
        "shared": shared,
        "script": engine.script,
    }


def as_text(status: dict[str, Any]) -> str:
    """Return the status as a table for people; memory in KB."""
    rows = [list(COLUMNS)]
    for engine in status["engines"]:
        shown = {**engine, "private": f"{engine['private'] >> 10}K", "shared": f"{engine['shared'] >> 10}K"}
        rows.append([str(shown[column]) for column in COLUMNS])
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    waiting = ", ".join(f"{user} {count}" for user, count in status["waiting"].items()) or "nobody"
    lines += ["", f"up {status['uptime']:g} s, {status['connections']} connections; waiting: {waiting}"]
    lines.append(", ".join(f"{name} {count}" for name, count in status["counters"].items()))
    return "\n".join(lines) + "\n"
