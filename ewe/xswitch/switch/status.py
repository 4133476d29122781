"""X-Switch's status page, as text or JSON: the engines, with their scripts, sizes and times.

`ewe-xswitch status` asks over X-Switch's own socket. Over a Unix socket, an account sees its own engines, and some
accounts see all (Control.part_for). Over TCP, each process that may connect sees all engines, because its account
is not known. A web server's clients need the URL /xswitch-status. It exists only with `status = true`, only for a
loopback address, and shows all engines. Behind a proxy on this machine every client has such an address.
"""

from __future__ import annotations

import json
import time
from typing import Any

from ewe.trace import escaped
from ewe.xswitch.settings import Settings
from ewe.xswitch.switch.engine import Engine
from ewe.xswitch.switch.scheduler import ENDINGS, LANGUAGE, USER, Scheduler

COLUMNS = ("user", "language", "pid", "state", "requests", "age", "idle", "private", "shared", "script")

Memory = dict[str, list[int]]  # pid -> private and shared bytes


def status_response(status: dict[str, Any], params: dict[bytes, bytes]) -> bytes:
    """Return the response to a request for the status: JSON if the query contains "json", else a table of text.

    status: from StatusRequests.collect_status(). params: the web server's parameters of the request.
    """
    if b"json" in params.get(b"QUERY_STRING", b""):
        return b"Content-Type: application/json\r\n\r\n" + json.dumps(status).encode() + b"\n"
    return b"Content-Type: text/plain; charset=utf-8\r\n\r\n" + as_text(status).encode(
        "utf-8", "backslashreplace"
    )


def may_see_status(params: dict[bytes, bytes], settings: Settings) -> bool:
    """Return whether a request may see a status: it comes from `ewe-xswitch status`, or from a loopback address.

    The command, and ewe for its metrics, set XSWITCH_STATUS. A web server's client cannot set it: the fields of its
    request become variables HTTP_….
    """
    return b"XSWITCH_STATUS" in params or (settings.status and is_loopback(params.get(b"REMOTE_ADDR", b"")))


def is_loopback(address: bytes) -> bool:
    """Return whether this is a loopback address."""
    return address.startswith(b"127.") or address == b"::1"


def collect_status(
    scheduler: Scheduler[Any, Engine], connections: int, started_at: float, answer: dict[str, Any]
) -> dict[str, Any]:
    """Return the status of this machine: its engines, queues, resources and counters.

    All times are in seconds, all sizes in bytes.

    connections: the number of web servers' open connections. started_at: the time.monotonic() at which the main
    process started. answer: the answer of suexecme to the order `measure`, with `memory` and `limits`. It has
    neither if suexecme has refused the order. status_requests.py adds the engines on other machines ("far").
    """
    now = time.monotonic()
    memory: Memory = answer.get("memory", {})
    engines = sorted(scheduler.engines, key=lambda engine: engine.key)
    return {
        "uptime": round(now - started_at, 1),
        "engines": [
            {**describe(engine, now, memory), "ends": scheduler.draining.get(engine, "")}
            for engine in engines
        ],
        "waiting": {user: scheduler.waiting_of(user) for user in scheduler.queues},
        "connections": connections,
        "limits": answer.get("limits", ""),
        "resources": scheduler.resources.describe(),
        "counters": dict(sorted(scheduler.counters.items())),
    }


def collect_metrics(scheduler: Scheduler[Any, Engine], connections: int) -> dict[str, Any]:
    """Return the numbers for a web server's metrics: no user, no script, and nothing that suexecme must measure.

    connections: the number of web servers' open connections.
    """
    engines = {language: {"busy": 0, "idle": 0} for language in scheduler.languages}
    for engine in scheduler.engines:
        engines[engine.key[LANGUAGE]]["busy" if engine.is_busy() else "idle"] += 1
    counters = scheduler.counters
    return {
        "engines": engines,
        "queue": scheduler.waiting,
        "connections": connections,
        "requests": counters["requests"],
        "refused": counters["refused"],
        "started": counters["started"],
        "queue_timeouts": counters["late"],
        "program_timeouts": counters["timed_out"],
        "ended": {name: counters[name] for name in ENDINGS},
    }


def describe(engine: Engine, now: float, memory: Memory) -> dict[str, Any]:
    """Return the row of one engine for the status. now: the monotonic time."""
    private, shared = memory.get(str(engine.pid), (0, 0))
    busy = engine.is_busy()
    return {
        "user": engine.key[USER],
        "language": engine.key[LANGUAGE],
        "pid": engine.pid,
        "state": "busy" if busy else "idle",
        "requests": engine.ended_requests,
        "age": round(now - engine.started_at, 1),
        "idle": 0 if busy else round(now - engine.used_at, 1),
        "private": private,
        "shared": shared,
        "script": engine.script,
    }


def remote_engines_line(remote: dict[str, Any]) -> str:
    """Return a line about engines on another machine (FarEngine.describe)."""
    reason = f" ({remote['reason']})" if remote["reason"] else ""
    return (
        f"engines {remote['engines']} on {remote['address']}: {remote['state']} for {remote['seconds']:g} s"
        f"{reason}; {remote['running']} requests run, {remote['requests']} have ended,"
        f" {remote['connections']} connections"
    )


def as_text(status: dict[str, Any]) -> str:
    """Return the status as a table for people; memory in KB."""
    rows = [list(COLUMNS)]
    for engine in status["engines"]:
        shown = {**engine, "private": f"{engine['private'] >> 10}K", "shared": f"{engine['shared'] >> 10}K"}
        if end_cause := engine["ends"]:
            shown["state"] = f"busy, then {end_cause}"
        # escaped(): a script's name may contain a line break, which would begin a false row
        rows.append([escaped(str(shown[column])) for column in COLUMNS])
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    waiting = ", ".join(f"{user} {count}" for user, count in status["waiting"].items()) or "nobody"
    lines += ["", f"up {status['uptime']:g} s, {status['connections']} connections; waiting: {waiting}"]
    resources = status["resources"]
    if resources["memory_available"] is not None:
        available_mb, reserve_mb = resources["memory_available"] >> 20, resources["reserve_memory"] >> 20
        scarcity = f"; {resources['scarce']}" if resources["scarce"] else ""
        lines.append(f"memory: {available_mb}M available, {reserve_mb}M in reserve{scarcity}")
    # "far": engines on other machines
    lines += [escaped(remote_engines_line(remote)) for remote in status["far"]]
    if status["limits"]:
        lines.append(f"limits of users: {status['limits']}")
    lines.append(", ".join(f"{name} {count}" for name, count in status["counters"].items()))
    return "\n".join(lines) + "\n"
