"""What X-Switch tells about itself: /xswitch-status, as text or JSON, to loopback only."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ewe.xswitch.links import Link
    from ewe.xswitch.main import Switch

STATUS_PATH = b"/xswitch-status"
COLUMNS = ("user", "language", "pid", "state", "requests", "age", "idle", "private", "shared", "script")


def answer_status(switch: Switch, params: dict[bytes, bytes]) -> bytes:
    """Return the answer to a request for the status: JSON if the query says so, else a table of text."""
    if not is_loopback(params.get(b"REMOTE_ADDR", b"")):
        return b"Status: 403 Forbidden\r\nContent-Type: text/plain\r\n\r\n403 Forbidden\n"
    status = collect(switch)
    if b"json" in params.get(b"QUERY_STRING", b""):
        return b"Content-Type: application/json\r\n\r\n" + json.dumps(status).encode() + b"\n"
    return b"Content-Type: text/plain; charset=utf-8\r\n\r\n" + as_text(status).encode(
        "utf-8", "backslashreplace"
    )


def is_loopback(address: bytes) -> bool:
    """Is this an address of the machine itself?"""
    return address.startswith(b"127.") or address == b"::1"


def collect(switch: Switch) -> dict[str, Any]:
    """Return the engines, the queue and the counters. Times in seconds, memory in bytes."""
    pool = switch.pool
    now = time.monotonic()
    links: list[Link] = sorted(pool.workers, key=lambda link: link.key)  # type: ignore[arg-type]
    return {
        "uptime": round(now - switch.since, 1),
        "engines": [describe(link, now) for link in links],
        "waiting": {user: sum(map(len, queues.values())) for user, queues in pool.queues.items()},
        "connections": len(switch.fronts),
        "counters": dict(sorted(pool.counters.items())),
    }


def describe(link: Link, now: float) -> dict[str, Any]:
    """Return what is known of an engine."""
    private, shared = link.memory_parts()
    return {
        "user": link.key[0],
        "language": link.key[1],
        "pid": link.pid,
        "state": "busy" if link.task is not None else "idle",
        "requests": link.served,
        "age": round(now - link.since, 1),
        "idle": round(now - link.used, 1) if link.task is None else 0,
        "private": private,
        "shared": shared,
        "script": link.script,
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
