"""The pictures of a report: coordinates and labels. ewe_explore.lanes draws the timelines as SVG, as those
of ewe-explore; templates/report_pictures.html.j2 draws the ratios.

A timeline has a lane for each client. Time runs to the right in steps, not in seconds, because only the order
matters: each column is one step of the schedule. The axis below the lanes names the seconds of some steps. A short
scene has wide columns, so that its picture fills the page; a long one is wider than the page, and scrolls.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ewe_explore.lanes import DrawnLane, LaneMark, LaneMoment, LanePicture, LaneSpan, LaneTick, left_of

MAX_LANES = 30
MAX_COLUMNS = 150
PAGE_WIDTH_PX = 982  # the width of a page's box, in pixels
MIN_COLUMN_PX, MAX_COLUMN_PX = 13, 110
LEFT_PADDING_PX = 4
MIN_TICK_PX = 58  # the least distance of two labels of the axis
LABEL_CHARS = 20  # characters of a lane's name
RATIOS_WIDTH_PX, RATIOS_LEFT_PX, RATIOS_TEXT_PX = 560, 110, 60  # whole picture, labels, numbers at the right
RATIO_ROW_PX, RATIO_FIRST_Y_PX = 26, 32
MIN_MAX_RATIO, RATIO_MARGIN = 1.25, 1.1

END_STEPS = {"close", "reset", "closed-by-server", "reset-by-server", "refused", "too-much"}
HELD_WORKER = "held-worker"  # noted once the scene knows that the client has had a worker all the time
WAITS, SERVED = "queue", "busy"  # kinds of spans: a client waits as a connection in the queue of a server
LEGEND = (
    ("open", "connects"), ("send", "sends"), (WAITS, "waits"), (SERVED, "holds a worker"),
    ("good", "has its response"), ("bad", "got status 503"), ("end", "the connection ends"),
    ("line quiet", "the grader waits for an event, or until the server sleeps"),
)  # fmt: skip
# Actions on the server, or on the gate of a CGI program: they belong to no client
SCENE_STEPS = ("signal", "kill", "limit", "start-again", "open-gate")


class RatioRow(NamedTuple):
    """The row of a number of clients. y: its middle. low, median, high: x coordinates, as SVG writes them.

    ratio: the median as a text.
    """

    clients: int
    y: int
    low: str
    median: str
    high: str
    ratio: str


class Ratios(NamedTuple):
    """The rate of the student's server, divided by that of the reference: a row for each number of clients.

    A row has a dot for the median and a band for the spread. left, one: the x coordinates of the ratios 0 and 1, in
    pixels. reference: the name of the reference.
    """

    width: int
    height: int
    left: int
    one: str
    reference: str
    rows: list[RatioRow]


def ratios(speed: dict[str, Any] | None) -> Ratios | None:
    """Return the picture of the ratios of rates, or None if they were not measured.

    speed: the fields of speed.Speed, as in a report.
    """
    if speed is None or speed["failure"]:
        return None
    rates = {int(clients): found for clients, found in speed["rates"].items()}
    # The ratio at the right end: more than the largest one, and more than 1, whose line has to be in the picture.
    max_ratio = max(MIN_MAX_RATIO, *(found["high"] * RATIO_MARGIN for found in rates.values()))
    px_per_ratio = (RATIOS_WIDTH_PX - RATIOS_LEFT_PX - RATIOS_TEXT_PX) / max_ratio
    rows = []
    for index, (clients, found) in enumerate(rates.items()):
        low, median, high = (x_of_ratio(found[key], px_per_ratio) for key in ("low", "median", "high"))
        y = index * RATIO_ROW_PX + RATIO_FIRST_Y_PX
        rows.append(RatioRow(clients, y, low, median, high, ratio=f"{found['median']:.2f}"))
    return Ratios(
        width=RATIOS_WIDTH_PX,
        height=(len(rates) + 1) * RATIO_ROW_PX,
        left=RATIOS_LEFT_PX,
        one=x_of_ratio(1.0, px_per_ratio),
        reference=speed["reference"],
        rows=rows,
    )


def x_of_ratio(ratio: float, px_per_ratio: float) -> str:
    """Return the x coordinate of a ratio, in pixels, as SVG writes it."""
    return f"{RATIOS_LEFT_PX + ratio * px_per_ratio:.1f}"


def timeline(steps: list[dict[str, Any]]) -> LanePicture | None:
    """Return the timeline of a scene, or None if no client acted."""
    all_names = dict.fromkeys(step["lane"] for step in steps if "lane" in step)  # each once, in order
    names = list(all_names)[:MAX_LANES]
    if not names:
        return None
    # Steps of the clients in the lanes, and steps without a lane. A note, or a received byte, has no column.
    shown = [
        step
        for step in steps
        if step["do"] not in ("got", "note", HELD_WORKER) and step.get("lane", "") in (*names, "")
    ]
    is_truncated = len(shown) > MAX_COLUMNS
    shown = shown[:MAX_COLUMNS]
    held = {step["lane"] for step in steps if step["do"] == HELD_WORKER}
    # The room to the right of the names.
    page_px = PAGE_WIDTH_PX - left_of(name[:LABEL_CHARS] for name in names)
    column_px = max(MIN_COLUMN_PX, min(MAX_COLUMN_PX, page_px // (len(shown) + 1)))
    xs = [column_px * index + column_px // 2 + LEFT_PADDING_PX for index in range(len(shown))]
    width = max(column_px * (len(shown) + 1), page_px)
    return LanePicture(
        "timeline of the clients",
        width,
        [lane(name, shown, xs, held_worker=name in held) for name in names],
        ticks(shown, xs, width),
        [moment(step, x) for step, x in zip(shown, xs, strict=True) if step["do"] in ("wait", *SCENE_STEPS)],
        page=PAGE_WIDTH_PX,
        note="The picture ends before the last step." if is_truncated else "",
    )


def ticks(shown: list[dict[str, Any]], xs: list[int], width: int) -> list[LaneTick]:
    """Return the labels of the axis: a step gets one if its time differs from the last label's and it fits."""
    found: list[LaneTick] = []
    for step, x in zip(shown, xs, strict=True):
        label = f"{step['t']:.2f} s"  # centred at x, so half of it needs room on each side
        if x + MIN_TICK_PX / 2 <= width and (
            not found or (x - found[-1].x >= MIN_TICK_PX and label != found[-1].label)
        ):
            found.append(LaneTick(max(x, MIN_TICK_PX // 2), label))
    return found


def moment(step: dict[str, Any], x: int) -> LaneMoment:
    """Return the vertical line of a step that belongs to no client: a wait, or an action on the server."""
    # An action has no outcome. That of a wait is whether its condition became true.
    happened = step.get("happened", True)
    outcome = "" if happened else " (no: the server was quiescent, or had ended)"
    if step["do"] == "wait":
        return LaneMoment(x, "quiet", "", f"{step['t']:.3f} s: wait: {step.get('what')}{outcome}")
    label = str(step.get("signal", step.get("gate", step["do"])))
    return LaneMoment(x, "event", label, f"{step['t']:.3f} s: {label}{outcome}")


def lane(name: str, shown: list[dict[str, Any]], xs: list[int], *, held_worker: bool) -> DrawnLane:
    """Return the lane of one client: spans while the client waits or has a worker, and marks for its actions.

    held_worker: the scene has proven that the client had a worker from its first bytes to its response.
    """
    spans: list[LaneSpan] = []
    marks: list[LaneMark] = []
    points: list[int] = []  # x coordinates of the client's steps: its lane reaches from the first to the last
    waits_from: int | None = None  # the x coordinate at which the open span begins
    kind = WAITS  # of the open span
    for step, x in zip(shown, xs, strict=True):
        if step.get("lane") != name:
            continue
        do, tip = step["do"], hint(step)
        points.append(x)
        if do == "connect":
            marks.append(LaneMark(x, "open", tip))
        elif do == "send":
            if waits_from is None:
                waits_from, kind = x, SERVED if held_worker else WAITS
            marks.append(LaneMark(x, "send", tip))
        elif do == "served" and waits_from is not None:
            spans.append(LaneSpan(waits_from, x, kind, ""))
            waits_from, kind = x, SERVED
        elif do == "answered" or do in END_STEPS:
            if waits_from is not None:
                spans.append(LaneSpan(waits_from, x, kind, ""))
                waits_from = None
            answer = "bad" if step.get("status") == 503 else "good"
            marks.append(LaneMark(x, answer if do == "answered" else "end", tip))
    if waits_from is not None:  # the client still waits at the end of the scene
        points.append(xs[-1])
        spans.append(LaneSpan(waits_from, points[-1], kind, ""))
    first, last = (points[0], points[-1]) if points else (0, 0)
    tips = {WAITS: "waits", SERVED: "holds a worker"}
    spans = [span._replace(tip=tips[span.kind]) for span in spans]
    return DrawnLane(name[:LABEL_CHARS], spans, marks, first, last)


def hint(step: dict[str, Any]) -> str:
    """Return the text that a mark shows when the mouse is over it."""
    text = f"{step['t']:.3f} s: {step['do']}"
    if "bytes" in step:
        text += f" {step['bytes'][:80]!r}"
    if "status" in step:
        text += f": status {step['status']}"
    return text
