"""The status as a page for people: a few numbers, and three tables."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from ewe.http.error_pages import html_document, html_escape
from ewe.http.status import REASONS

STYLE = """html { font: 1rem/1.5 system-ui, sans-serif; background: var(--paper); color: var(--ink) }
body { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 3rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.05rem; margin-top: 2rem }
h1, h2 { font-weight: 650 } p, caption { color: var(--quiet) }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .75rem; margin: 1rem 0 }
dl div { background: var(--panel); border-radius: .4rem; padding: .6rem .8rem }
dt { color: var(--quiet); font-size: .85rem }
dd { margin: 0; font-size: 1.35rem; font-variant-numeric: tabular-nums }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100% }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap;
  font-variant-numeric: tabular-nums }
th:first-child, td:first-child { text-align: left }
th { color: var(--quiet); font-weight: 400 }
.down { color: #b3261e; font-weight: 600 } @media (prefers-color-scheme: dark) { .down { color: #ff9a90 } }
a { color: var(--accent) } meter { width: 8rem; vertical-align: middle }
"""
BODY = """<main>
<h1>{server}: {model}</h1>
<p>Up {uptime}. The same as <a href="?json">JSON</a>, and for <a href="{metrics}">Prometheus</a>.
{tiles}
<h2>Requests by feature and status</h2>
{features}
{timeouts}
{process_sections}
<h2>Duration of requests</h2>
{durations}
<h2>Processes</h2>
{processes}
</main>"""


def page(numbers: dict[str, Any], path: str) -> str:
    """Return the page. numbers: as Status.numbers() returns them, with their units. path: of the page itself."""
    shown = [
        ("open connections", count(numbers["connections"])),
        ("wait for a request", count(numbers["states"]["waiting"])),
        ("send a request's head", count(numbers["states"]["reading"])),
        ("requests in progress", count(numbers["busy"])),
        ("wait for a worker", count(numbers["queue"])),
        ("workers", count(numbers["workers"])),
        ("requests", count(numbers["requests"])),
        ("mean rate", f"{numbers['requests'] / max(numbers['uptime'], 0.001):.1f} /s"),
        ("rate of the last 10 s", f"{numbers['rate']:.1f} /s"),
        ("CPU time", cpu_time(numbers["cpu"])),
        ("bytes sent", size(numbers["bytes"])),
        ("connections accepted", count(numbers["accepted"])),
        ("connections refused", count(numbers["refused"])),
        ("responses aborted", count(numbers["aborted"])),
        ("log lines lost", count(numbers["lost_log_lines"])),
    ]
    server = html_escape(numbers["server"])
    body = BODY.format(
        server=server,
        model=html_escape(numbers["model"]),
        uptime=interval(numbers["uptime"]),
        metrics=html_escape(f"{path}/metrics"),
        tiles=tiles(shown),
        features=features(numbers["by_feature"]),
        timeouts=timeouts(numbers["timeouts"]),
        process_sections=process_sections(numbers),
        durations=durations(numbers["duration"]),
        processes=processes(numbers["processes"], time.time()),
    )
    return html_document(f"Status of {server}", STYLE, body)


def features(by_feature: dict[str, dict[str, int]]) -> str:
    """Return the table of requests: a row for each feature, a column for each status that occurred."""
    statuses = sorted({status for counts in by_feature.values() for status in counts})
    rows = [
        (html_escape(feature), *(count(counts.get(status, 0)) for status in statuses))
        for feature, counts in by_feature.items()
    ]
    return table(("feature", *map(titled, statuses)), rows)


def timeouts(by_kind: dict[str, int]) -> str:
    """Return the timeouts in one sentence."""
    said = ", ".join(f"{kind} {count(number)}" for kind, number in by_kind.items() if number)
    return f"<p>Timeouts: {said}." if said else "<p>No timeouts."


def process_sections(numbers: dict[str, Any]) -> str:
    """Return a section each for X-Switch and for the database daemon, if the server uses them.

    numbers: those of page(). For each process "up" tells whether it answers, and "error" why it does not.
    """
    return "\n".join(
        f"<h2>{title}</h2>\n" + (section(numbers[key]) if numbers[key]["up"] else down(numbers[key]["error"]))
        for key, title, section in (
            ("xswitch", "X-Switch", of_xswitch),
            ("database", "Database daemon", of_database),
        )
        if key in numbers
    )


def down(error: str) -> str:
    """Return the line about a process that does not tell its numbers."""
    return f"<p class=down>Down: {html_escape(error)}."


def of_xswitch(numbers: dict[str, Any]) -> str:
    """Return the numbers of X-Switch: tiles, and a row for each language."""
    shown = [
        ("requests", count(numbers["requests"])),
        ("wait for an engine", count(numbers["queue"])),
        ("refused (503)", count(numbers["refused"])),
        ("engines started", count(numbers["started"])),
        ("timeouts in the queue", count(numbers["queue_timeouts"])),
        ("timeouts of scripts", count(numbers["program_timeouts"])),
    ]
    rows = [
        (html_escape(language), *map(count, states.values()))
        for language, states in numbers["engines"].items()
    ]
    if not rows:
        return tiles(shown) + "<p>No engine was started yet."
    ended = [
        f"{why.removesuffix('_ended')} {count(number)}" for why, number in numbers["ended"].items() if number
    ]
    ends = f"<p>Idle engines that were ended: {', '.join(ended)}." if ended else ""
    return tiles(shown) + table(("engines", "busy", "idle"), rows) + ends


def of_database(numbers: dict[str, Any]) -> str:
    """Return the numbers of the database daemon: tiles, and a row for each database."""
    shown = [
        ("statements", count(numbers["served"])),
        ("connections in use", count(numbers["running"])),
        ("wait for a connection", count(numbers["waiting"])),
        ("connections of gateways", count(numbers["gateways"])),
        ("refused", count(numbers["refused"])),
    ]
    rows = [(html_escape(name), count(number)) for name, number in numbers["connections"].items()]
    return tiles(shown) + (
        table(("database", "open connections"), rows) if rows else "<p>No connection is open."
    )


def tiles(shown: Iterable[tuple[str, str]]) -> str:
    """Return a few numbers, each with its name."""
    return "<dl>\n" + "\n".join(f"<div><dt>{name}<dd>{number}</div>" for name, number in shown) + "\n</dl>"


def titled(status: str) -> str:
    """Return a status with its reason, for people who do not know it by heart."""
    reason = REASONS.get(int(status), "client left" if status == "499" else "") if status.isdigit() else ""
    return f'<abbr title="{reason}">{status}</abbr>' if reason else status


def durations(duration: dict[str, Any]) -> str:
    """Return the histogram of durations, without its empty ends."""
    counts = duration["counts"]
    labels = [f"up to {seconds(bound)}" for bound in duration["bounds"]]
    labels.append(f"over {seconds(duration['bounds'][-1])}")
    used = [at for at, number in enumerate(counts) if number]
    if not used:
        return "<p>No request was answered yet."
    most = max(counts)
    rows = [
        (labels[at], count(counts[at]), f'<meter max="{most}" value="{counts[at]}">{counts[at]}</meter>')
        for at in range(used[0], used[-1] + 1)
    ]
    mean = duration["sum"] / sum(counts)
    return table(("duration", "requests", ""), rows) + f"<p>Mean: {seconds(mean)}."


def processes(rows: list[dict[str, Any]], now: float) -> str:
    """Return the table of processes. now: the time.time()."""
    counted = {
        "open connections": "connections", "in progress": "busy", "wait for a worker": "queue",
        "workers": "workers", "requests": "requests",
    }  # fmt: skip
    cells = [
        (
            str(row["pid"]),
            interval(max(now - row["began"], 0)),
            cpu_time(row["cpu"]),
            *(count(row[name]) for name in counted.values()),
            size(row["bytes"]),
        )
        for row in rows
    ]
    return table(("process", "up", "CPU time", *counted, "bytes sent"), cells)


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table. The cells are HTML."""
    head = "".join(f"<th scope=col>{each}" for each in heads)
    body = "\n".join("<tr>" + "".join(f"<td>{cell}" for cell in row) for row in rows)
    return f'<div class="wide"><table><tr>{head}\n{body}</table></div>'


def count(number: int) -> str:
    """Return a number with a thin space between thousands."""
    return f"{number:,}".replace(",", "\u202f")


def size(number: float) -> str:
    """Return a number of bytes, in a unit that people read."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def seconds(value: float) -> str:
    """Return a duration of less than a minute."""
    return f"{value:g} s" if value >= 0.9995 else f"{value * 1000:.3g} ms"  # not "1e+03 ms"


def cpu_time(value: float) -> str:
    """Return a number of seconds of CPU time."""
    return f"{value:.1f} s" if value < 60 else interval(value)


def interval(value: float) -> str:
    """Return a long duration."""
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    shown = [f"{number} {unit}" for number, unit in parts if number] or ["0 s"]
    return " ".join(shown[:2])
