"""The status page: what the server does now, and what it has done since its start (setting `status`).

    /ewe-status            a page for people
    /ewe-status?json       the same numbers as JSON
    /ewe-status/metrics    the same in the text format of Prometheus, version 0.0.4

The numbers are those of the scoreboard (ewe.scoreboard): every process counts in its own row, and whichever process
answers adds all rows up. A request is counted where its line of the access log is written, so both say the same.

X-Switch and the database daemon keep their own counters. The page asks them (Feature.measures), and waits
ANSWER_TIMEOUT_S at most: it says of a process that does not answer that it is down, and why. Their numbers have no
names of users, of scripts or of statements.

**Who may see it.** Only the addresses in `status-allow`: this machine's own, until the setting says otherwise.
Behind a proxy on this machine every client has such an address. A request that a proxy has passed on is therefore
refused, unless `trusted-proxies` names the proxy, and the proxy names the client: then the client's own address
counts. A page of a stranger could make a browser on this machine ask (ewe.gateway.own_names), so a client with a
loopback address must ask for a name of this machine.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from ewe import __version__, logger, scoreboard
from ewe.config.feature_table import features
from ewe.features.answered_by import noted
from ewe.features.base import Middleware
from ewe.features.declaration import Feature, MeasuredProcess, MeasureError
from ewe.features.guards.client import client_of
from ewe.features.status_metrics import metrics
from ewe.features.status_page import page
from ewe.gateway.own_names import foreign_host_response
from ewe.http.addresses import Networks, parse_ip
from ewe.http.messages import Response
from ewe.http.status import HTTPError
from ewe.scoreboard import FILES, OTHER
from ewe.streams.base import Timeout
from ewe.timeouts import KINDS

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.base import Explanation
    from ewe.features.plan import HasProxies
    from ewe.http.messages import Request
    from ewe.streams.base import Stream

# Fields that a proxy adds: RFC 7239, RFC 9110 section 7.6.3, and older ones
PROXY_FIELDS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")
ANSWER_TIMEOUT_S = 0.8  # seconds in which X-Switch and the database daemon must tell their numbers, together
FIELDS = (("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"))
HTML = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"),
    *FIELDS,
)
JSON = (("Content-Type", "application/json"), *FIELDS)
METRICS = (("Content-Type", "text/plain; version=0.0.4; charset=utf-8"), *FIELDS)
# The names under which the columns of the scoreboard are shown: of the server, and of each of its processes
OF_SERVER = {
    "connections": scoreboard.CONNECTIONS,
    "busy": scoreboard.BUSY,
    "queue": scoreboard.QUEUE,
    "workers": scoreboard.WORKERS,
    "accepted": scoreboard.ACCEPTED,
    "refused": scoreboard.REFUSED,
    "requests": scoreboard.REQUESTS,
    "bytes": scoreboard.BYTES,
    "aborted": scoreboard.ABORTED,
}
OF_PROCESS = {
    "pid": scoreboard.PID,
    "began": scoreboard.BEGAN,
    **{name: OF_SERVER[name] for name in ("connections", "busy", "queue", "workers", "requests", "bytes")},
}


class Status(Middleware):
    """Counts the requests that begin, and answers those for the status. ewe.server.counted counts their ends."""

    def __init__(self, config: Config) -> None:
        self.path = (config.status or "").rstrip("/")
        self.paths = (self.path, f"{self.path}/metrics")
        self.board = scoreboard.shared()
        self.allowed = Networks(config.status_allow)
        self.names = [name for site in config.sites for name in site.names]
        self.model = config.concurrency
        found = [each.measures(config) for each in features(config) if each.measures is not None]
        self.measured = [each for each in found if each is not None]

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the status, or the inner handler's response. Raises HTTPError(403, 405)."""
        io.answered_by = FILES  # until another feature answers (noted())
        self.board.apply(begun)
        if request.path in self.paths:
            io.answered_by = "status"
            return await self.answer(request, io)
        return await self.inner.respond(request, io)

    async def answer(self, request: Request, io: Stream) -> Response:
        """Return the status in the form that the request asks for, or a 421. Raises HTTPError(403, 405)."""
        if hides_client(request, io):
            raise HTTPError(
                403,
                "a proxy that trusted-proxies does not name, or that does not name the client, has passed this"
                " request on (status)",
            )
        client = client_of(io)
        if client not in self.allowed:
            raise HTTPError(403, "the client's address is not in status-allow")
        address = parse_ip(client)
        if address is not None and address.is_loopback:
            refused = foreign_host_response(request, self.names)
            if refused is not None:
                return refused
        refuse_method(request)
        numbers = self.numbers()
        seconds = ANSWER_TIMEOUT_S / max(len(self.measured), 1)
        for each in self.measured:
            numbers[each.name] = await measured(each, request, io, seconds)
        if request.path != self.path:
            return Response(200, METRICS, "".join(metrics(numbers)).encode())
        if request.query is not None and "json" in request.query:
            return Response(200, JSON, json.dumps(numbers, indent=2).encode() + b"\n")
        return Response(200, HTML, page(numbers, self.path).encode())

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the line about the status, or the inner handler's lines. Raises HTTPError(405).

        The question names no client, so the line does not say whether status-allow admits the client.
        """
        if request.path not in self.paths:
            return (yield from super().explain(request, io))
        refuse_method(request)
        yield "  answer    the status of the server, for the addresses in status-allow   (status)"
        return True

    def numbers(self) -> dict[str, Any]:
        """Return all numbers of the server. Durations are in seconds, sizes in bytes, the rate per second."""
        board = self.board
        board.refresh()  # so this process has a row
        rows = list(board.rows())
        now = time.monotonic()
        sums = scoreboard.add_up(row for _, row in rows)
        processes = [
            {
                **{name: row[column] for name, column in OF_PROCESS.items()},
                "cpu": max(row[scoreboard.CPU_MICROS] - row[scoreboard.CPU_BEFORE], 0) / 1e6,
            }
            for alive, row in rows
            if alive
        ]
        states = Counter[str]()
        for _, row in rows:
            states.update(scoreboard.states_of(row))
        by_feature: dict[str, dict[str, int]] = {}
        for (feature, status), column in board.matrix.items():
            if sums[column]:
                by_feature.setdefault(feature, {})[str(status) if status else OTHER] = sums[column]
        return {
            "server": f"ewe {__version__}",
            "model": self.model,
            "pid": os.getpid(),
            "uptime": round(time.time() - board.began, 3),
            **{name: sums[column] for name, column in OF_SERVER.items()},
            "states": states,
            "rate": round(sum(scoreboard.rate_of(row, now) for _, row in rows), 2),
            "cpu": sums[scoreboard.CPU_MICROS] / 1e6,
            "lost_log_lines": logger.lost_lines(),
            "timeouts": dict(zip(KINDS, sums[scoreboard.TIMEOUTS : scoreboard.MATRIX], strict=True)),
            "duration": {
                "sum": sums[scoreboard.MICROS] / 1e6,
                "bounds": list(scoreboard.BUCKETS_S),
                "counts": sums[scoreboard.HISTOGRAM : scoreboard.TIMEOUTS],
            },
            "by_feature": by_feature,
            "processes": sorted(processes, key=lambda each: each["pid"]),
        }


async def measured(process: MeasuredProcess, request: Request, io: Stream, seconds: float) -> dict[str, Any]:
    """Return the numbers of a process behind the server, or the reason why it does not tell them."""
    try:
        return {"up": True, **await process.numbers(request, io, seconds)}
    except HTTPError as reason:
        error = reason.cause
    except (MeasureError, OSError) as reason:
        error = getattr(reason, "strerror", None) or str(reason)
    except Timeout:
        error = f"silent for {seconds:g} s"
    return {"up": False, "error": error}


def hides_client(request: Request, io: Stream) -> bool:
    """Return whether a proxy has passed a request on without naming its client, so that io.client is the proxy.

    A trusted proxy names the client in a header of the PROXY protocol, or in the field of the setting
    trusted-fields. It does not name the client in another field, or by "for=unknown" (RFC 7239 section 6.2).
    """
    endpoints = io.endpoints
    if endpoints is not None:
        by_proxy_header = io.peer != endpoints.client
        if by_proxy_header or (endpoints.trusted and io.client != endpoints.client):
            return False
    return any(request.get(name) is not None for name in PROXY_FIELDS)


def refuse_method(request: Request) -> None:
    """Raise HTTPError(405) for a method that does not read."""
    if request.method not in ("GET", "HEAD"):
        raise HTTPError(405, f"{request.method} to the status", (("Allow", "GET, HEAD"),))


def begun(row: memoryview[int]) -> None:
    """Count a request that the site begins to answer."""
    row[scoreboard.BUSY] += 1


def server_middleware(site: HasProxies) -> Status:
    """Return the middleware around all sites."""
    return Status(site.config)


FEATURE = Feature("status", server_middleware=server_middleware, answered_by=noted)
