"""The pictures of a report: what stands where. templates/report_pictures.html.j2 draws them as SVG.

A timeline has a lane for each client. Time goes to the right in steps, not in seconds: each column is one step of
the schedule. What matters is the order.

    ○ connects   ▸ sends   ■ amber: waits   ■ blue: has a worker   ■ green: answered   × the connection has ended
"""

from __future__ import annotations

from typing import Any, NamedTuple

MOST_LANES = 30
MOST_COLUMNS = 150
COLUMN, ROW = 18, 22
LABEL = 20  # characters of a lane's name

ENDS = {"close", "reset", "closed-by-server", "reset-by-server", "refused", "too-much"}
EVENTS = ("signal", "kill", "limit", "start-again", "open-gate")


class Ratio(NamedTuple):
    """A row of the ratios. low, median, high: from the left, as SVG has numbers. ratio: the median as a text."""

    clients: int
    y: int
    low: str
    median: str
    high: str
    ratio: str


class Ratios(NamedTuple):
    """The ratios of the rates: a dot for the median, a band for the spread, a line for 1."""

    width: int
    height: int
    left: int
    one: str
    reference: str
    rows: list[Ratio]


class Bar(NamedTuple):
    """A time in which a client waits, or has a worker."""

    kind: str
    x: int
    width: int


class Mark(NamedTuple):
    """What a client does, or what happens to it. tip: for the mouse."""

    kind: str
    x: int
    tip: str


class Lane(NamedTuple):
    """One client: a line while it is connected, from first to last."""

    name: str
    y: int
    first: int
    last: int
    bars: list[Bar]
    marks: list[Mark]


class Line(NamedTuple):
    """A moment for all clients. kind: calm (the grader waits) or event."""

    kind: str
    x: int
    label: str
    tip: str


class Timeline(NamedTuple):
    """The lanes of a scene. bottom: of the lines. is_cut: there are more steps than columns."""

    width: int
    height: int
    left: int
    bottom: int
    row: int
    lanes: list[Lane]
    lines: list[Line]
    is_cut: bool


def ratios(speed: dict[str, Any] | None) -> Ratios | None:
    """Return the ratios of the rates, None if they were not measured."""
    if speed is None or speed["failure"]:
        return None
    rates = {int(clients): found for clients, found in speed["rates"].items()}
    most = max(1.25, *(found["high"] * 1.1 for found in rates.values()))
    width, left = 560, 110
    scale = (width - left - 60) / most
    rows = []
    for number, (clients, found) in enumerate(rates.items()):
        low, median, high = (f"{left + found[key] * scale:.1f}" for key in ("low", "median", "high"))
        rows.append(Ratio(clients, number * 26 + 32, low, median, high, f"{found['median']:.2f}"))
    return Ratios(width, len(rates) * 26 + 26, left, f"{left + scale:.1f}", speed["reference"], rows)


def timeline(steps: list[dict[str, Any]]) -> Timeline | None:
    """Return the lanes of a scene, None if no client acted."""
    names: dict[str, int] = {}
    for step in steps:
        if "lane" in step and len(names) < MOST_LANES:
            names.setdefault(step["lane"], len(names))
    if not names:
        return None
    shown = [
        step for step in steps if step["do"] not in ("got", "note") and step.get("lane", "") in (*names, "")
    ]
    is_cut = len(shown) > MOST_COLUMNS
    shown = shown[:MOST_COLUMNS]
    left = 26 + 7 * max(len(name[:LABEL]) for name in names)
    bottom = (len(names) + 1) * ROW
    return Timeline(
        left + (len(shown) + 1) * COLUMN,
        bottom + (24 if any(step["do"] in EVENTS for step in shown) else 6),
        left,
        bottom,
        ROW,
        [lane(name, (row + 1) * ROW, shown, left) for name, row in names.items()],
        [
            moment(step, left + column * COLUMN)
            for column, step in enumerate(shown)
            if step["do"] in ("wait", *EVENTS)
        ],
        is_cut,
    )


def moment(step: dict[str, Any], x: int) -> Line:
    """Return the line of a step that no client takes."""
    outcome = "" if "happened" not in step or step["happened"] else " (it was calm, or had ended)"
    if step["do"] == "wait":
        return Line("calm", x, "", f"{step.get('what')}{outcome}")
    label = str(step.get("signal", step.get("gate", step["do"])))
    return Line("event", x, label, f"{label}{outcome}")


def lane(name: str, y: int, shown: list[dict[str, Any]], left: int) -> Lane:
    """Return one client's lane: bars while it waits and has a worker, marks for what it does."""
    bars: list[Bar] = []
    marks: list[Mark] = []
    columns: list[int] = []
    waits_from: int | None = None
    kind = "waits"
    for column, step in enumerate(shown):
        if step.get("lane") != name:
            continue
        x, do, tip = left + column * COLUMN, step["do"], hint(step)
        columns.append(x)
        if do == "connect":
            marks.append(Mark("open", x, tip))
        elif do == "send":
            waits_from, kind = (x, "waits") if waits_from is None else (waits_from, kind)
            marks.append(Mark("send", x, tip))
        elif do == "served" and waits_from is not None:
            bars.append(bar(kind, waits_from, x))
            waits_from, kind = x, "served"
        elif do == "answered" or do in ENDS:
            if waits_from is not None:
                bars.append(bar(kind, waits_from, x))
                waits_from = None
            answer = "busy" if step.get("status") == 503 else "done"
            marks.append(Mark(answer if do == "answered" else "end", x, tip))
    if waits_from is not None:
        columns.append(left + len(shown) * COLUMN)
        bars.append(bar(kind, waits_from, columns[-1]))
    first, last = (columns[0], columns[-1]) if columns else (0, 0)
    return Lane(name[:LABEL], y, first, last, bars, marks)


def bar(kind: str, start: int, end: int) -> Bar:
    return Bar(kind, start, max(end - start, 2))


def hint(step: dict[str, Any]) -> str:
    """Return what a mark of the picture says when the mouse is over it."""
    text = f"{step['t']:.3f} s: {step['do']}"
    if "bytes" in step:
        text += f" {step['bytes'][:80]!r}"
    if "status" in step:
        text += f": status {step['status']}"
    return text
