"""The status as metrics for Prometheus, in its text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ewe import __version__

OF_SERVER = {
    "busy": ("busy", "Requests that are being answered."),
    "cpu": ("cpu_seconds_total", "CPU time of the processes, without that of programs."),
    "queue": ("queue", "Conversations that wait for a worker of the pool."),
    "workers": ("workers", "Processes that have served and live; of a pool, its threads."),
    "accepted": ("connections_accepted_total", "Accepted connections."),
    "refused": ("connections_refused_total", "Connections that a limit has refused."),
    "bytes": ("response_body_bytes_total", "Bytes of the bodies of responses, also of aborted ones."),
    "aborted": ("responses_aborted_total", "Responses that were not sent to their end."),
    "lost_log_lines": ("log_lines_lost_total", "Lines that the logs could not take."),
}
OF_XSWITCH = {
    "queue": ("queue", "Requests that wait for an engine."),
    "connections": ("connections", "Connections of web servers."),
    "requests": ("requests_total", "Requests for scripts."),
    "refused": ("refused_total", "Requests that found no room or no engine (503)."),
    "started": ("engines_started_total", "Started engines."),
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
    yield from family("ewe_connections", "gauge", "Open connections of clients, by state.")
    for state, count in numbers["states"].items():
        yield f'ewe_connections{{state="{state}"}} {count}\n'
    yield from singles("ewe", OF_SERVER, numbers)
    yield from family("ewe_processes", "gauge", "Processes that have served a connection, and live.")
    yield f"ewe_processes {len(numbers['processes'])}\n"
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
    yield from singles("ewe_xswitch", OF_XSWITCH, numbers)
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
    yield from singles("ewe_database", OF_DATABASE, numbers)


def singles(prefix: str, table: dict[str, tuple[str, str]], numbers: dict[str, Any]) -> Iterator[str]:
    """Yield the metrics of a table, which have no labels. table: key in `numbers` -> (name, help)."""
    for key, (name, help) in table.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        yield from family(f"{prefix}_{name}", kind, help)
        yield f"{prefix}_{name} {numbers[key]}\n"


def family(name: str, kind: str, help: str) -> Iterator[str]:
    """Yield the two lines that introduce a metric."""
    yield f"# HELP {name} {help}\n# TYPE {name} {kind}\n"


def escaped(value: str) -> str:
    """Return the value of a label."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
