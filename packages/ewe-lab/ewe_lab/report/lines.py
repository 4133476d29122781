"""Line charts: figures against users, rates or sizes, and timelines, which have one figure for each second.

A line joins the figures. In a scatter plot the line is the polynomial of second degree that fits the figures best
(ewe_lab.report.fit).

All lengths are in pixels. The small numbers in the drawing functions are the gaps between texts and lines, and the
height of a line of text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ewe.svg import SERIES, SMALL, WIDTH, Picture, Scale, scale_for, shortened, spread, width
from ewe_lab.bench import figures
from ewe_lab.bench.experiment import Chart
from ewe_lab.bench.results import Cell, Second
from ewe_lab.report import fit, phases

PLOT_HEIGHT_PX = 230  # of a plot
MIN_SHOWN_REST_S = 0.5  # seconds: an incomplete last second is shown only if it is longer than this
PANEL_HEIGHT_PX = 84  # height of a panel of a timeline
PANEL_LEFT_PX, PANEL_RIGHT_PX = 60, WIDTH - 70  # the x of a panel's edges
# Of a line's name, at the right of the plot: the greatest width, and the height
NAME_WIDTH_PX, NAME_HEIGHT_PX = 116, 12.5


@dataclass
class DrawnChart:
    """A chart: the picture, and its figures as a table. All are empty if there is no figure."""

    svg: str = ""
    head: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


@dataclass(frozen=True)
class ChartLine:
    """One line: its name, its points in the order of x, and the number of its colour and mark."""

    name: str
    points: tuple[tuple[float, float], ...]
    series: int = 0
    bounds: frozenset[float] = frozenset()  # the x of figures that are lower bounds

    def text(self, x: float, value: str, unit: str) -> str:
        """Return the figure at an x as text."""
        text = figures.named_figure_text(value, dict(self.points)[x], unit)
        return figures.AT_LEAST + text if x in self.bounds else text


def chart_lines(chart: Chart, cells: Sequence[Cell], order: Sequence[str] = ()) -> list[ChartLine]:
    """Return the lines of a chart: one for each server, or for each server and column if there are several columns.

    A cell without an x or without a figure is left out. order: the servers of the table. If there is one column, a
    server's line has the colour of the server's position in `order`, the same in all charts of the table. Else the
    lines have the colours 0, 1, 2 ...
    """
    columns = {cell.column for cell in cells if cell.x is not None}
    found: dict[str, list[tuple[float, float]]] = {}
    bounds: dict[str, set[float]] = {}
    for cell in cells:
        value = figures.figure_of_cell(cell, chart.value)
        if cell.x is None or value is None or not math.isfinite(value):
            continue
        if (chart.log_x and cell.x <= 0) or (chart.log_y and value <= 0):
            continue  # a logarithmic axis has no zero; the table shows the figure
        name = f"{cell.server}, {cell.column}" if len(columns) > 1 else cell.server
        found.setdefault(name, []).append((cell.x, value))
        if figures.is_lower_bound(figures.middle_sample(cell), chart.value or cell.value):
            bounds.setdefault(name, set()).add(cell.x)
    return [
        ChartLine(
            name,
            tuple(sorted(points)),
            series=order.index(name) if name in order else index,
            bounds=frozenset(bounds.get(name, ())),
        )
        for index, (name, points) in enumerate(found.items())
    ]


def draw_lines_chart(chart: Chart, cells: Sequence[Cell], name: str, order: Sequence[str] = ()) -> DrawnChart:
    """Draw a line for each server against x; return the chart.

    order: of servers, so that each keeps its colour in all charts.
    """
    found = chart_lines(chart, cells, order)
    if not found:
        return DrawnChart()
    value = chart.value or cells[0].value
    unit = cells[0].unit if value == cells[0].value else chart.y
    y_title = chart.y or figures.figure_title(value, unit)
    rows = [
        [line.name, figures.number_text(x), line.text(x, value, unit)]
        for line in found
        for x, _ in line.points
    ]
    ends = "; ".join(f"{line.name} {line.text(line.points[-1][0], value, unit)}" for line in found)
    xs = [x for line in found for x, _ in line.points]
    summary = (
        f"{y_title} against {chart.x or 'x'}, up to {figures.number_text(max(xs))}. At the right end: {ends}."
    )
    picture = Picture(name, chart.title, f"{chart.title}. {summary}")
    draw_lines(picture, chart, found, value, y_title)
    return DrawnChart(picture.svg(), ["server", chart.x or "x", y_title], rows)


def draw_lines(picture: Picture, chart: Chart, lines: Sequence[ChartLine], value: str, y_title: str) -> None:
    """Draw axes, lines, marks, and each line's name at its end.

    lines: at least one. value: the name of the figure, by which a tick of the y axis gets its text.
    """
    names = [shortened(line.name, NAME_WIDTH_PX, SMALL) for line in lines]
    right = WIDTH - max(width(name, SMALL) for name in names) - 22
    curves = [fit.curve_points(line.points) if chart.kind == "scatter" else line.points for line in lines]
    ys = [y for each in (*(line.points for line in lines), *curves) for _, y in each]
    height = max(PLOT_HEIGHT_PX, len(lines) * NAME_HEIGHT_PX)
    top, bottom = 26.0, 26.0 + height
    y_axis = scale_for(ys, bottom, top, log=chart.log_y)
    ticks = y_axis.ticks(28)
    texts = [tick_text(value, tick) for tick in ticks]
    left = max(width(text, SMALL) for text in texts) + 10
    xs = sorted({x for line in lines for x, _ in line.points})
    x_axis = x_scale(xs, left + 4, right, log=chart.log_x)
    picture.write(2, 12, shortened(y_title, WIDTH - 6), kind="dim")
    for tick, text in zip(ticks, texts, strict=True):
        picture.line(left, y_axis(tick), right, y_axis(tick), "grid")
        picture.write(left - 5, y_axis(tick) + 3.5, text, size=SMALL, anchor="end", kind="dim")
    draw_x_axis(picture, x_axis, xs, bottom, chart.x)
    picture.line(left, bottom, right, bottom, "axis")
    ends = [y_axis(curve[-1][1]) for curve in curves]
    # No name covers another one
    name_positions = spread(ends, NAME_HEIGHT_PX, top, bottom)
    for line, curve, name, end, name_y in zip(lines, curves, names, ends, name_positions, strict=True):
        last_x = draw_curve(picture, line, curve, x_axis, y_axis)
        # From the line to its name
        picture.path([(last_x + 4, end), (right + 10, name_y)], f"s{line.series % SERIES} lead")
        picture.write(right + 13, name_y + 3.5, name, size=SMALL, kind="name")
    picture.height = bottom + (38 if chart.x else 22)


def draw_curve(
    picture: Picture, line: ChartLine, curve: Sequence[tuple[float, float]], x_axis: Scale, y_axis: Scale
) -> float:
    """Draw a line along a curve, and a mark at each of its points; return the x of the last mark."""
    kind = f"s{line.series % SERIES} line d{line.series % 4}"
    picture.path([(x_axis(x), y_axis(y)) for x, y in curve], kind)
    points = [(x_axis(x), y_axis(y)) for x, y in line.points]
    for x, y in points:
        picture.marker(x, y, line.series)
    return points[-1][0]


def x_scale(xs: Sequence[float], start: float, end: float, *, log: bool) -> Scale:
    """Return a scale for the x axis: logarithmic from the first to the last of `xs`, or linear from zero.

    start, end: of the axis, in pixels.
    """
    if log and len(xs) > 1:
        return Scale(xs[0], xs[-1], start, end, log=True)
    return scale_for(xs, start, end)


def draw_x_axis(picture: Picture, axis: Scale, xs: Sequence[float], bottom: float, title: str) -> None:
    """Draw the x axis: with the measured x if they are few, else with round figures.

    A figure is left out where it would overlap the one before it.
    """
    end_of_last_text, marks = -100.0, xs if len(xs) <= 12 else axis.ticks(46)
    for mark in marks:
        x, text = axis(mark), figures.number_text(mark)
        picture.line(x, bottom, x, bottom + 4, "axis")
        wide = width(text, SMALL)
        if x - wide / 2 > end_of_last_text + 4 and x + wide / 2 < WIDTH:
            picture.write(x, bottom + 15, text, size=SMALL, anchor="middle", kind="dim")
            end_of_last_text = x + wide / 2
    if title:
        middle = (axis.start + axis.end) / 2
        room_beside = min(middle, WIDTH - middle) - 2
        picture.write(middle, bottom + 31, shortened(title, 2 * room_beside), anchor="middle", kind="dim")


def tick_text(value: str, tick: float) -> str:
    """Return the text of a tick, with its unit if the unit may change along the axis. value: the figure's name."""
    if value == "lost":
        return figures.percent_text(tick) if tick == 0 or tick >= 0.01 else f"{tick * 100:g} %"
    return figures.named_figure_text(value, tick)


# ---------------------------------------------------------------------------------------------------------
# Second by second


class PanelLine(NamedTuple):
    """A line of a panel. figure_of: returns its figure of a second. series: the number of its colour and mark."""

    name: str
    figure_of: Callable[[Second], float | None]
    series: int


@dataclass(frozen=True)
class Panel:
    """One panel of a timeline. value: the name of a figure like these, for the ticks."""

    title: str
    value: str
    lines: tuple[PanelLine, ...]


PANELS = (
    Panel(
        "replies, and errors, in each second",
        "rate",
        (
            PanelLine("replies", lambda second: second.replies, 0),
            PanelLine("errors", lambda second: sum(second.errors.values()), 1),
            PanelLine("due", lambda second: second.due, 2),
        ),
    ),
    Panel(
        "time for an answer",
        "service.p50",
        (PanelLine("p50", lambda second: second.p50, 0), PanelLine("p99", lambda second: second.p99, 1)),
    ),
    Panel(
        "CPU of the server, share of a core", "extra.cpu", (PanelLine("CPU", lambda second: second.cpu, 4),)
    ),
    Panel("memory of the server", "usage.memory", (PanelLine("memory", lambda second: second.memory, 3),)),
    Panel(
        "threads and processes",
        "extra.count",
        (
            PanelLine("threads", lambda second: second.threads, 5),
            PanelLine("processes", lambda second: second.processes, 6),
        ),
    ),
)


def timeline_cell(chart: Chart, cells: Sequence[Cell]) -> Cell | None:
    """Return the cell for a timeline: of the server that the chart names, else the cell with the most errors."""
    timed = [cell for cell in cells if (sample := figures.middle_sample(cell)) and len(sample.timeline) > 1]
    named = [cell for cell in timed if cell.server == chart.value]
    if chart.value or not timed:
        return named[0] if named else None
    return max(timed, key=lambda cell: sum(figures.all_errors(cell).values()))


def draw_timeline(chart: Chart, cells: Sequence[Cell], name: str) -> DrawnChart:
    """Draw each second of a cell's middle sample, a panel for each kind of figure; return the chart."""
    cell = timeline_cell(chart, cells)
    sample = figures.middle_sample(cell) if cell else None
    if cell is None or sample is None:
        return DrawnChart()
    # The last second of the run may be too short to stand beside whole ones
    measured = [second for second in sample.timeline if second.at + MIN_SHOWN_REST_S < sample.seconds]
    seconds = phases.merge_long_timeline(measured)
    title = ", ".join(filter(None, (chart.title, cell.server, cell.column)))
    summary = f"{len(measured)} seconds; {sum(second.replies for second in measured)} replies in all"
    picture = Picture(name, title, f"{title}: {summary}.")
    starts = phases.phase_starts(sample)
    picture.write(2, 13, shortened(f"{cell.server} {cell.column}".strip(), WIDTH - 4), kind="name")
    y = draw_phases(picture, starts, seconds, 18)
    for panel in PANELS:
        y = draw_panel(picture, panel, seconds, y, starts)
    marks = scale_for([second.at for second in seconds] or [1], PANEL_LEFT_PX, PANEL_RIGHT_PX)
    # draw_panel() has left a gap of 14
    draw_x_axis(picture, marks, marks.ticks(50), y - 14, "seconds since the warm-up")
    picture.height = y + 30
    head = ["second", "replies/s", "errors", "p50", "p99", "CPU", "memory", "threads", "processes"]
    return DrawnChart(picture.svg(), head, [second_row(second) for second in seconds])


def draw_phases(picture: Picture, starts: Sequence[float], seconds: Sequence[Second], y: float) -> float:
    """Write the number of each phase above its part of the panels; return the y of the first panel.

    starts: seconds from the begin of the timeline to the begin of each phase. y: of the upper edge of the texts.
    """
    if not starts or not seconds:
        return y
    axis = scale_for([second.at for second in seconds], PANEL_LEFT_PX, PANEL_RIGHT_PX)
    ends = [*starts[1:], seconds[-1].at]
    for number, (start, end) in enumerate(zip(starts, ends, strict=True), 1):
        middle, room = (axis(start) + axis(end)) / 2, axis(end) - axis(start)
        text = f"phase {number}" if width(f"phase {number}", SMALL) < room else str(number)
        picture.write(middle, y + 11, text, size=SMALL, anchor="middle", kind="name")
    return y + 12


def second_row(second: Second) -> list[str]:
    """Return the row of a second in the table under a timeline."""
    counts = (second.threads, second.processes)
    return [
        str(second.at),
        str(second.replies),
        figures.errors_text(second.errors),
        figures.time_text(second.p50),
        figures.time_text(second.p99),
        figures.percent_text(second.cpu),
        figures.size_text(second.memory),
        *(figures.NO_FIGURE if count is None else str(count) for count in counts),
    ]


def draw_panel(
    picture: Picture, panel: Panel, seconds: Sequence[Second], y: float, starts: Sequence[float] = ()
) -> float:
    """Draw a panel, if several seconds have its figures; return the y at which the next panel begins.

    y: of its upper edge. starts: of the phases, in seconds.
    """
    found = list(lines_of_panel(panel, seconds))
    if all(len(line.points) < 2 for line in found):  # one mark alone is no course
        return y
    left, right, top, bottom = PANEL_LEFT_PX, PANEL_RIGHT_PX, y + 22, y + PANEL_HEIGHT_PX
    x_axis = scale_for([second.at for second in seconds] or [1], left, right)
    y_axis = scale_for([value for line in found for _, value in line.points], bottom, top)
    picture.write(2, y + 13, panel.title, kind="dim")
    for tick in y_axis.ticks(24):
        picture.line(left, y_axis(tick), right, y_axis(tick), "grid")
        text = (
            figures.percent_text(tick)
            if panel.value == "extra.cpu"
            else figures.named_figure_text(panel.value, tick)
        )
        picture.write(left - 5, y_axis(tick) + 3.5, text, size=SMALL, anchor="end", kind="dim")
    for start in starts[1:]:
        picture.path([(x_axis(start), top - 4), (x_axis(start), bottom)], "axis d1")
    ends = [y_axis(line.points[-1][1]) for line in found]
    for line, name_y in zip(found, spread(ends, 12, top, bottom), strict=True):
        draw_curve(picture, line, line.points, x_axis, y_axis)
        picture.write(right + 8, name_y + 3.5, line.name, size=SMALL, kind="name")
    picture.line(left, bottom, right, bottom, "axis")
    return bottom + 14


def lines_of_panel(panel: Panel, seconds: Sequence[Second]) -> Iterator[ChartLine]:
    """Yield each line of a panel that has figures. The x of its points is the second."""
    for line in panel.lines:
        points = tuple(
            (second.at, value) for second in seconds if (value := line.figure_of(second)) is not None
        )
        # A line of zeros only, such as of errors, is left out; the first line stays
        if points and (any(value for _, value in points) or line.series == 0):
            yield ChartLine(line.name, points, series=line.series)
