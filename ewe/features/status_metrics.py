"""The status as metrics for Prometheus, in its text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ewe import __version__

GAUGES = {
    "connections": "Open connections of clients.",
    "busy": "Requests that are being answered.",
    "queue": "Conversations that wait for a worker of the pool.",
    "workers": "Processes that have served and live; of a pool, its threads.",
}
COUNTERS = {
    "accepted": ("connections_accepted", "Accepted connections."),
    "refused": ("connections_refused", "Connections that a limit has refused."),
    "bytes": ("response_body_bytes", "Bytes of the bodies of responses, also of aborted ones."),
    "aborted": ("responses_aborted", "Responses that were not sent to their end."),
    "lost_log_lines": ("log_lines_lost", "Lines that the logs could not take."),
}
OF_DATABASE = {
    "running": ("connections_busy", "Connections that run a statement."),
    "waiting": ("queue", "Statements that wait for a connection."),
    "gateways": ("clients", "Connections of gateways to the daemon."),
    "served": ("statements_total", "Statements that have ended."),
    "refused": ("refused_total", "Requests that the daemon has refused."),
}


def metrics(numbers: dict[str, Any]) -> Iterator[str]:
    """Yield the lines for Prometheus: https://prometheus.io/docs/instrumenting/exposition_formats/."""
    yield from family("ewe_info", "gauge", "The server.")
    yield f'ewe_info{{version="{__version__}",model="{escaped(numbers["model"])}"}} 1\n'
    yield from family("ewe_uptime_seconds", "gauge", "Seconds since the start.")
    yield f"ewe_uptime_seconds {numbers['uptime']}\n"
    for key, help in GAUGES.items():
        yield from family(f"ewe_{key}", "gauge", help)
        yield f"ewe_{key} {numbers[key]}\n"
    yield from family("ewe_processes", "gauge", "Processes that have served a connection, and live.")
    yield f"ewe_processes {len(numbers['processes'])}\n"
    for key, (name, help) in COUNTERS.items():
        yield from family(f"ewe_{name}_total", "counter", help)
        yield f"ewe_{name}_total {numbers[key]}\n"
    yield from family("ewe_timeouts_total", "counter", "Timeouts by what was waited for in vain.")
    for kind, count in numbers["timeouts"].items():
        yield f'ewe_timeouts_total{{kind="{kind}"}} {count}\n'
    yield from family("ewe_requests_total", "counter", "Answered requests.")
    for feature, statuses in numbers["by_feature"].items():
        for status, count in statuses.items():
            yield f'ewe_requests_total{{feature="{feature}",status="{status}"}} {count}\n'
    name = "ewe_request_duration_seconds"
    yield from family(name, "histogram", "From the first bytes of a request to the end of its response.")
    duration = numbers["duration"]
    so_far = 0
    for bound, count in zip((*duration["bounds"], "+Inf"), duration["counts"], strict=True):
        so_far += count
        yield f'{name}_bucket{{le="{bound}"}} {so_far}\n'
    yield f"{name}_sum {duration['sum']}\n{name}_count {so_far}\n"
    for key, lines in (("xswitch", of_xswitch), ("database", of_database)):
        if key in numbers:
            up = numbers[key]["up"]
            yield from family(f"ewe_{key}_up", "gauge", "Whether it tells its numbers.")
            yield f"ewe_{key}_up {int(up)}\n"
            if up:
                yield from lines(numbers[key])


def of_xswitch(numbers: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of X-Switch."""
    yield from family("ewe_xswitch_engines", "gauge", "Engines, by language and state.")
    for language, states in numbers["engines"].items():
        for state, count in states.items():
            yield f'ewe_xswitch_engines{{language="{escaped(language)}",state="{state}"}} {count}\n'
    yield from single("ewe_xswitch_queue", "gauge", "Requests that wait for an engine.", numbers["queue"])
    yield from single(
        "ewe_xswitch_connections", "gauge", "Connections of web servers.", numbers["connections"]
    )
    yield from single("ewe_xswitch_requests_total", "counter", "Requests for scripts.", numbers["requests"])
    yield from single(
        "ewe_xswitch_refused_total",
        "counter",
        "Requests that found no room or no engine (503).",
        numbers["refused"],
    )
    yield from single("ewe_xswitch_engines_started_total", "counter", "Started engines.", numbers["started"])
    yield from family(
        "ewe_xswitch_engines_ended_total", "counter", "Idle engines that were ended, by reason."
    )
    for why, count in numbers["ended"].items():
        yield f'ewe_xswitch_engines_ended_total{{why="{why}"}} {count}\n'
    yield from family("ewe_xswitch_timeouts_total", "counter", "Timeouts in X-Switch.")
    for kind in ("queue", "program"):
        yield f'ewe_xswitch_timeouts_total{{kind="{kind}"}} {numbers[f"{kind}_timeouts"]}\n'


def of_database(numbers: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the database daemon."""
    yield from family("ewe_database_connections", "gauge", "Open connections to each database.")
    for database, count in numbers["connections"].items():
        yield f'ewe_database_connections{{database="{escaped(database)}"}} {count}\n'
    for key, (name, help) in OF_DATABASE.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        yield from single(f"ewe_database_{name}", kind, help, numbers[key])


def single(name: str, kind: str, help: str, value: int) -> Iterator[str]:
    """Yield a metric without labels."""
    yield from family(name, kind, help)
    yield f"{name} {value}\n"


def family(name: str, kind: str, help: str) -> Iterator[str]:
    """Yield the two lines that introduce a metric."""
    yield f"# HELP {name} {help}\n# TYPE {name} {kind}\n"


def escaped(value: str) -> str:
    """Return the value of a label."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
