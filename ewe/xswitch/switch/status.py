"""X-Switch's status page, as text or JSON: the engines, with their scripts, sizes and times.

`ewe-xswitch status` asks over X-Switch's own socket. Over a Unix socket, an account sees its own engines, and some
accounts see all (Control.part_for). Over TCP, each process that may connect sees all engines, because its account
is not known. A web server's clients need the URL /xswitch-status. It exists only with `status = true`, only for a
loopback address, and shows all engines. Behind a proxy on this machine every client has such an address.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from ewe.config.defaults import XSWITCH_STATUS_PATH
from ewe.trace import escaped
from ewe.xswitch.settings import Settings
from ewe.xswitch.switch.context import Context
from ewe.xswitch.switch.control import ActionRefused, Control
from ewe.xswitch.switch.engine import Engine
from ewe.xswitch.switch.engine_starter import EngineStarter
from ewe.xswitch.switch.exchange import Exchange
from ewe.xswitch.switch.exchange_table import DONE, IDENTIFYING
from ewe.xswitch.switch.peers import Peers
from ewe.xswitch.switch.scheduler import ENDINGS, Scheduler
from ewe.xswitch.switch.web_server_connection import WebServerConnection

MAX_MEASURED = 1000  # engines whose memory the status shows: a message has no room for more
AS_JSON = {b"QUERY_STRING": b"json"}  # parameters with which status_response() returns JSON
COLUMNS = ("user", "language", "pid", "state", "requests", "age", "idle", "private", "shared", "script")

Memory = dict[str, list[int]]  # pid -> private and shared bytes


class StatusRequests:
    """Begins requests for the status page, and answers them."""

    def __init__(
        self,
        context: Context,
        starter: EngineStarter,
        peers: Peers,
        count_connections: Callable[[], int],
        owner: int,
    ) -> None:
        """count_connections: returns how many web servers' connections are open.

        owner: the uid of the account that started X-Switch.
        """
        self.context = context
        self.starter = starter
        self.peers = peers
        self.count_connections = count_connections
        self.control = Control(context, owner)
        self.started_at = time.monotonic()

    def begin(
        self, client: WebServerConnection, params: dict[bytes, bytes], body: Sequence[bytes]
    ) -> Exchange:
        """Start a request for the status page, or for an action (control.py); return its exchange.

        The numbers for metrics ("counts") are sent at once, the status once suexecme has measured the engines.

        body: the pieces that have arrived. A body of a wrong length is refused, as for a script, unless the answer
        came first.
        """
        exchange = client.new_exchange(params, XSWITCH_STATUS_PATH, body)
        if exchange.state is DONE:
            return exchange
        if b"XSWITCH_ACTION" in params:
            return self.begin_action(client, params, exchange)
        if not may_see_status(params, self.context.settings):
            exchange.fail(
                404,
                "the status is for loopback addresses only, and needs status = true in X-Switch's settings",
            )
            return exchange
        if params.get(b"XSWITCH_STATUS") == b"counts":
            numbers = collect_metrics(self.context.scheduler, self.count_connections())
            exchange.answer(status_response(numbers, AS_JSON))
            return exchange

        def response(status: dict[str, Any]) -> bytes:
            if b"XSWITCH_STATUS" in params:
                # The account that asks over X-Switch's own socket may not see the engines of all users
                status = self.control.part_for(client.socket, status)
            return status_response(status, params)

        self.answer_with_status(exchange, list(self.starter.engine_by_pid), response)
        return exchange

    def begin_action(
        self, client: WebServerConnection, params: dict[bytes, bytes], exchange: Exchange
    ) -> Exchange:
        """Start a request that lists engines, ends them or shows messages (control.py); return its exchange.

        The action `list` is answered once suexecme has measured the engines, all others at once.
        """
        try:
            action = self.control.action_of(client.socket, params)
        except ActionRefused as reason:
            self.context.log.warning(f"an action was refused: {reason}")
            exchange.answer(status_response({"error": str(reason)}, AS_JSON))
            return exchange
        if action.name != "list":
            exchange.answer(status_response(self.control.carry_out(action), AS_JSON))
            return exchange

        self.answer_with_status(
            exchange,
            [engine.pid for engine in self.control.engines_named_by(action)],
            lambda status: status_response(self.control.visible_part(status, action), AS_JSON),
        )
        return exchange

    def collect_status(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the status: engines, queues, resources and counters, and the engines on other machines.

        All times are in seconds, all sizes in bytes. answer: the answer of suexecme to the order `measure`, with
        `memory` and `limits`. It has neither if suexecme has refused the order.
        """
        now = time.monotonic()
        scheduler = self.context.scheduler
        memory: Memory = answer.get("memory", {})
        engines = sorted(scheduler.engines, key=lambda engine: engine.key)
        return {
            "uptime": round(now - self.started_at, 1),
            "engines": [
                {**describe(engine, now, memory), "ends": scheduler.draining.get(engine, "")}
                for engine in engines
            ],
            "waiting": {user: scheduler.waiting_of(user) for user in scheduler.queues},
            "connections": self.count_connections(),
            "limits": answer.get("limits", ""),
            "resources": scheduler.resources.describe(),
            "counters": dict(sorted(scheduler.counters.items())),
            "far": self.peers.describe(now),
        }

    def answer_with_status(
        self, exchange: Exchange, pids: Sequence[int], response: Callable[[dict[str, Any]], bytes]
    ) -> None:
        """Make suexecme measure the memory of engines, then answer an exchange with the response to the status.

        Only root may read every engine's memory. pids: of the engines to measure; 0 belongs to one that suexecme
        has not started yet. response: returns the response, from the status (collect_status).
        """

        def on_measured(answer: dict[str, Any]) -> None:
            if exchange.state is IDENTIFYING:  # the client has not left in the meantime
                exchange.answer(response(self.collect_status(answer)))

        order = {"order": "measure", "pids": [pid for pid in pids if pid][:MAX_MEASURED]}
        self.starter.orders.ask("", order, on_measured)


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


def collect_metrics(scheduler: Scheduler[Any, Engine], connections: int) -> dict[str, Any]:
    """Return the numbers for a web server's metrics: no user, no script, and nothing that suexecme must measure.

    connections: the number of web servers' open connections.
    """
    engines = {language: {"busy": 0, "idle": 0} for language in scheduler.languages}
    for engine in scheduler.engines:
        engines[engine.language]["busy" if engine.is_busy() else "idle"] += 1
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
        "user": engine.user,
        "language": engine.language,
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
