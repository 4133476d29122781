"""Charts of a table, as SVG without scripts. docs/lab.md says why matplotlib does not draw them.

    bars      a group of bars for each server, the document's hatched beside ours. With printed figures the bars are
              ratios to the reference server and grow from 1 to either side of a logarithmic axis. Without them the
              bars are figures, from zero, or on a logarithmic axis if they differ much
    lines     a line for each server against x, named at its end (ewe_lab.report.lines)
    scatter   the same, with a fitted curve in place of a line through the figures
    stacked   a bar for each server, made of the columns' figures, or a bar for each column, made of the servers'
              figures; the document's bar stands above ours
    errors    for each server the share of its sessions that ended in an error, by kind, the document's above ours
    timeline  the figures of one cell's middle sample for each second (ewe_lab.report.lines)

Every figure that is drawn is also in `rows`, for the table under the chart.

All lengths are in pixels. The small numbers in the drawing functions are the gaps between texts and lines, and the
height of a line of text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ewe.svg import NORMAL, SMALL, WIDTH, Picture, Scale, scale_for, shortened, width
from ewe_lab.bench import figures
from ewe_lab.bench.experiment import Chart, Experiment
from ewe_lab.bench.results import ERRORS, Cell, ExperimentTable
from ewe_lab.bench.verdicts import JudgedCell, judge
from ewe_lab.report import lines
from ewe_lab.report.lines import DrawnChart

ROW_PX, BAR_PX, GROUP_GAP_PX = 14, 10, 9  # distance between bars, height of a bar, distance between groups
LABELLED_ROW_PX = 19  # distance between bars with figures inside
LOGARITHMIC_FROM = 30  # figures that differ by more than this factor need a logarithmic axis
PATTERN_COUNT = 4  # different fills of columns
# A count and a kind of error in a paper_note: those of ERRORS that the tables print, and `cr` (UNEXPLAINED_ERROR)
ERROR_COUNT = re.compile(r"(\d[\d,]*) ?(ct|st|ref|res|cr)\b")
REQUEST_COUNT = re.compile(r"of (\d[\d,]*)")


class BarPart(NamedTuple):
    """A part of a stacked bar. share: its length, in the unit of the axis. kind: its CSS class."""

    share: float
    kind: str


@dataclass(frozen=True)
class Bar:
    """One bar. value: its figure. kind: its CSS class, "" for a stacked bar, whose parts have one each.

    text: at the end of the bar. labels: the text inside each part, drawn if there is room.
    """

    value: float
    kind: str
    text: str
    parts: tuple[BarPart, ...] = ()
    labels: tuple[str, ...] = ()


class LegendEntry(NamedTuple):
    """An entry of a legend. kind: the CSS class of the bars or parts that the text explains."""

    kind: str
    text: str


def draw(chart: Chart, table: ExperimentTable, experiment: Experiment | None, name: str) -> DrawnChart:
    """Draw a chart; return it, empty if there is no figure.

    experiment: of the table, None without one: it names the reference servers. name: unique in the page.
    """
    cells = [cell for cell in table.cells if not chart.columns or cell.column in chart.columns]
    if chart.kind == "bars":
        return draw_bars_chart(chart, table, experiment, name)
    if chart.kind == "stacked":
        return draw_stacked_chart(chart, cells, name)
    if chart.kind == "errors":
        return draw_errors_chart(chart, cells, name)
    if chart.kind == "timeline":
        return lines.draw_timeline(chart, cells, name)
    order = without_repeats([cell.server for cell in table.cells])
    return lines.draw_lines_chart(chart, cells, name, order)


def without_repeats(values: Sequence[str]) -> list[str]:
    """Return each value once, in the order of first occurrence."""
    return list(dict.fromkeys(values))


# ---------------------------------------------------------------------------------------------------------
# Bars


def draw_bars_chart(
    chart: Chart, table: ExperimentTable, experiment: Experiment | None, name: str
) -> DrawnChart:
    """Draw a group of bars for each server; return the chart, an empty one if there is no figure."""
    shown = [
        each for each in judge(table, experiment) if not chart.columns or each.cell.column in chart.columns
    ]
    ratios = not chart.value and any(each.paper is not None for each in shown)
    columns = without_repeats([each.cell.column for each in shown])
    bars_by_server = bars_of_ratios(shown, columns) if ratios else bars_of_figures(chart, shown, columns)
    if not bars_by_server:
        return DrawnChart()
    value = chart.value or shown[0].cell.value
    title = chart.y or figures.figure_title(value, shown[0].cell.unit)
    if ratios:
        references = {experiment.references(column)[0] for column in columns} if experiment else set()
        title += f", over {' or '.join(sorted(references))}"
    picture = Picture(name, chart.title, bars_description(chart.title, title, bars_by_server))
    legend = bars_legend(columns, ratios=ratios)
    draw_bars(picture, bars_by_server, legend, title, 1.0 if ratios else None, value)
    head = ["server", "setting", *(["printed ratio", "our ratio"] if ratios else [title])]
    return DrawnChart(picture.svg(), head, [bars_row(chart, each, ratios=ratios) for each in shown])


def bars_of_ratios(shown: Sequence[JudgedCell], columns: Sequence[str]) -> dict[str, list[Bar]]:
    """Return the bars of each server that has one: the document's ratios above ours. columns: all of the chart."""
    bars_by_server: dict[str, list[Bar]] = {}
    for each in shown:
        group = bars_by_server.setdefault(each.cell.server, [])
        if each.paper is not None:
            printed = Bar(each.paper, kind="paper", text=figures.ratio_text(each.paper))
            # Several columns may have the same printed figure: it is drawn once, on top
            if printed not in group:
                group.insert(0, printed)
        if each.ours is not None:
            kind = pattern(columns.index(each.cell.column))
            group.append(Bar(each.ours, kind=kind, text=figures.ratio_text(each.ours)))
    return {server: group for server, group in bars_by_server.items() if group}


def bars_of_figures(
    chart: Chart, shown: Sequence[JudgedCell], columns: Sequence[str]
) -> dict[str, list[Bar]]:
    """Return the bars of each server that has one: a bar for each figure. columns: all of the chart."""
    bars_by_server: dict[str, list[Bar]] = {}
    for cell in (each.cell for each in shown):
        group = bars_by_server.setdefault(cell.server, [])
        if (value := figures.figure_of_cell(cell, chart.value)) is not None:
            text = figures.figure_text(cell, chart.value)
            group.append(Bar(value, kind=pattern(columns.index(cell.column)), text=text))
    return {server: group for server, group in bars_by_server.items() if group}


def bars_row(chart: Chart, judged: JudgedCell, *, ratios: bool) -> list[str]:
    """Return the row of a cell in the table under the chart. ratios: the bars are ratios, else figures."""
    cell = judged.cell
    if ratios:
        return [cell.server, cell.column, figures.ratio_text(judged.paper), figures.ratio_text(judged.ours)]
    return [cell.server, cell.column, figures.figure_text(cell, chart.value)]


def bars_legend(columns: Sequence[str], *, ratios: bool) -> list[LegendEntry]:
    """Return the legend of a bar chart; [] for a single column of figures. ratios: the bars are ratios."""
    if not ratios and len(columns) == 1:
        return []
    entries = [LegendEntry(pattern(index), column or "measured here") for index, column in enumerate(columns)]
    return [LegendEntry("paper", "printed"), *entries] if ratios else entries


def pattern(index: int) -> str:
    """Return the CSS class of the fill for the column with this index."""
    return f"c{index % PATTERN_COUNT}"


def bars_description(title: str, axis_title: str, bars_by_server: dict[str, list[Bar]]) -> str:
    """Return a bar chart in words, for screen readers: its title, the title of its axis, and each bar."""
    summary = "; ".join(
        f"{server} {', '.join(bar.text for bar in group)}" for server, group in bars_by_server.items()
    )
    return f"{title}. {axis_title}: {summary}."


def draw_bars(
    picture: Picture,
    bars_by_server: dict[str, list[Bar]],
    legend: Sequence[LegendEntry],
    axis_title: str,
    middle: float | None,
    value: str,
) -> None:
    """Draw horizontal bars in groups.

    middle: the figure from which the bars grow to both sides, on a logarithmic axis; None: they grow from the left.
    value: the name of the figure, for the ticks.
    """
    left = min(120.0, max(width(server) for server in bars_by_server) + 10)
    # For the text beyond the end of a bar
    room = max(width(bar.text, SMALL) for group in bars_by_server.values() for bar in group) + 8
    values = [bar.value for group in bars_by_server.values() for bar in group]
    axis = axis_of_bars(values, middle, left + (room if middle is not None else 0), WIDTH - room)
    top = draw_legend(picture, legend)
    bottom = top + sum(len(group) * ROW_PX + GROUP_GAP_PX for group in bars_by_server.values())
    # "": the ticks are ratios
    ticks_below(picture, axis, top, bottom, "" if middle is not None else value)
    origin = axis(middle) if middle is not None else axis.start  # axis(figure) is the x of a figure
    y = top + GROUP_GAP_PX / 2
    for server, group in bars_by_server.items():
        group_height = len(group) * ROW_PX
        picture.write(
            left - 8, y + group_height / 2 + 4, shortened(server, left - 10), anchor="end", kind="name"
        )
        for bar in group:
            draw_bar(picture, bar, axis, origin, y, both_sides=middle is not None)
            y += ROW_PX
        y += GROUP_GAP_PX
    picture.line(origin, top, origin, bottom, "axis")
    picture.write(WIDTH / 2, bottom + 32, shortened(axis_title, WIDTH - 8), anchor="middle", kind="dim")
    picture.height = bottom + 40


def axis_of_bars(values: Sequence[float], middle: float | None, start: float, end: float) -> Scale:
    """Return the axis of bars with these figures. middle: as in draw_bars(). start, end: its x."""
    positive = [each for each in values if each > 0] or [1.0]
    if middle is not None:  # the middle lies a little inside the axis, even if no bar grows to one side
        return scale_for([*positive, middle / 1.05, middle * 1.05], start, end, log=True)
    if max(positive) / min(positive) > LOGARITHMIC_FROM:
        # From the power of ten below the least figure, whose bar would have no length otherwise
        return scale_for([*positive, 10 ** floor_log(min(positive))], start, end, log=True)
    return scale_for(positive, start, end)


def floor_log(value: float) -> int:
    """Return the exponent of a power of ten that is at most `value`, a figure above 0."""
    return len(str(int(1 / value))) * -1 if value < 1 else len(str(int(value))) - 1


def draw_bar(picture: Picture, bar: Bar, axis: Scale, origin: float, y: float, *, both_sides: bool) -> None:
    """Draw one bar, of which y is the upper edge, with its text beyond the end.

    A bar with parts has them one after the other. Any other bar reaches from `origin` to the x of its figure.
    both_sides: a bar with a figure below that of the origin grows to the left of it, and a bar with the figure 0 to
    the left end of the logarithmic axis. Else all bars grow to the right, and the figure 0 has no length.
    """
    end = axis(bar.value) if bar.value > 0 else axis.start
    if bar.parts:
        draw_parts(picture, bar, axis, y)
    elif bar.value > 0 or both_sides:
        picture.rect(min(origin, end), y, abs(end - origin), BAR_PX, bar.kind)
    if both_sides and end < origin - 0.5:
        picture.write(end - 4, y + 9, bar.text, size=SMALL, anchor="end")
    else:
        picture.write(max(end, origin) + 4, y + 9, bar.text, size=SMALL)


def draw_parts(picture: Picture, bar: Bar, axis: Scale, y: float) -> None:
    """Draw the parts of a bar, one after the other. A bar with labels is higher."""
    sum_before = 0.0
    for index, (share, kind) in enumerate(bar.parts):
        start, end = axis(sum_before), axis(sum_before + share)
        picture.rect(start, y, end - start, BAR_PX + 4 if bar.labels else BAR_PX, kind)
        if bar.labels and width(bar.labels[index], SMALL) < end - start - 2:
            inside = "" if "faint" in kind else "inside"
            middle = (start + end) / 2
            picture.write(middle, y + 11, bar.labels[index], size=SMALL, anchor="middle", kind=inside)
        sum_before += share


def ticks_below(picture: Picture, axis: Scale, top: float, bottom: float, value: str) -> None:
    """Draw grid lines from `top` to `bottom`, and below them the figures of the ticks that do not overlap.

    value: the name of the figure, "" for ratios.
    """
    end_of_last_text = -100.0  # left of the picture
    for tick in axis.ticks(48):
        x, text = (
            axis(tick),
            figures.named_figure_text(value, tick)
            if value
            else figures.without_trailing_zeros(figures.ratio_text(tick)),
        )
        picture.line(x, top, x, bottom, "grid")
        text_width = width(text, SMALL)
        if x - text_width / 2 > end_of_last_text + 4 and x + text_width / 2 < WIDTH:
            picture.write(x, bottom + 14, text, size=SMALL, anchor="middle", kind="dim")
            end_of_last_text = x + text_width / 2


def draw_legend(picture: Picture, legend: Sequence[LegendEntry]) -> float:
    """Draw a legend above the plot, in as many lines as it takes; return the y at which the plot may begin."""
    x, y = 4.0, 4.0
    for kind, text in legend:
        text = shortened(text, WIDTH - 40)
        entry_width = 16 + width(text) + 14
        if x > 4 and x + entry_width > WIDTH:
            x, y = 4.0, y + 17
        picture.rect(x, y, 12, 10, kind)
        picture.write(x + 16, y + 9.5, text)
        x += entry_width
    return y + (22 if legend else 0)


# ---------------------------------------------------------------------------------------------------------
# Stacked bars


def draw_stacked_chart(chart: Chart, cells: Sequence[Cell], name: str) -> DrawnChart:
    """Draw bars that are made of parts, with the document's above ours; return the chart. name: unique in the page.

    A bar (a whole) is a server, and its parts are columns. With chart.across a bar is a column, and its parts are
    servers.
    """
    parts = without_repeats([part_of(chart, cell) for cell in cells])
    kinds = {part: f"s{index % 10}" for index, part in enumerate(parts)}  # CSS classes, for the colours
    bars_by_server: dict[str, list[Bar]] = {}
    rows = []
    for whole in without_repeats([whole_of(chart, cell) for cell in cells]):
        inside = [cell for cell in cells if whole_of(chart, cell) == whole]
        for source, found in stacked_figures(chart, inside):
            faint = " faint" if source == "printed" else ""
            bar = stack_of(chart, found, [kinds[part_of(chart, cell)] + faint for cell, _ in found], source)
            bars_by_server.setdefault(whole, []).append(bar)
            name_of_bar = f"{whole}, {source}".strip(", ")
            rows += [
                [name_of_bar, part_of(chart, cell), stack_figure_text(chart, cell, value)]
                for cell, value in found
            ]
    if not bars_by_server:
        return DrawnChart()
    axis_title = chart.y or figures.figure_title(chart.value or cells[0].value, cells[0].unit)
    summary = "; ".join(": ".join((" ".join(row[:2]), row[2])) for row in rows)
    picture = Picture(name, chart.title, f"{chart.title}. {axis_title}: {summary}.")
    legend = [LegendEntry(kind, part) for part, kind in kinds.items()]
    draw_stack(picture, bars_by_server, legend, axis_title, chart.value or cells[0].value)
    return DrawnChart(picture.svg(), ["setting" if chart.across else "server", "part", axis_title], rows)


def stacked_figures(chart: Chart, cells: Sequence[Cell]) -> Iterator[tuple[str, list[tuple[Cell, float]]]]:
    """Yield the figures of each bar of a whole, the document's before ours: the source, and cells with figures.

    cells: of the whole. The source is "printed" or "here"; "" for our bar if it is the only one. A bar without any
    length is left out.
    """
    printed = [
        (cell, cell.paper) for cell in cells if cell.paper is not None and shows_printed_figure(chart, cell)
    ]
    ours = [
        (cell, value) for cell in cells if (value := figures.figure_of_cell(cell, chart.value)) is not None
    ]
    for source, found in (("printed", printed), ("here" if printed else "", ours)):
        if sum(value for _, value in found) > 0:
            yield source, found


def whole_of(chart: Chart, cell: Cell) -> str:
    """Return the name of the bar to which a cell belongs."""
    return cell.column if chart.across else cell.server


def part_of(chart: Chart, cell: Cell) -> str:
    """Return the name of the part of a bar that shows a cell."""
    return cell.server if chart.across else cell.column


def shows_printed_figure(chart: Chart, cell: Cell) -> bool:
    """Whether the chart shows the cell's own figure, the one that the document printed."""
    return chart.value in ("", cell.value)


def stack_figure_text(chart: Chart, cell: Cell, value: float) -> str:
    """Return a figure as text. A figure that is not the cell's own has the unit of the axis."""
    return figures.named_figure_text(
        chart.value or cell.value, value, cell.unit if shows_printed_figure(chart, cell) else chart.y
    )


def stack_of(chart: Chart, found: Sequence[tuple[Cell, float]], kinds: Sequence[str], source: str) -> Bar:
    """Return a bar made of cells' figures. A negative figure (some differences are negative) has no length.

    found: cells and their figures. kinds: the CSS class of each part. source: "printed", "here" or "".
    """
    parts = tuple(BarPart(max(value, 0.0), kind) for (_, value), kind in zip(found, kinds, strict=True))
    total = stack_figure_text(chart, found[0][0], sum(value for _, value in found))
    labels = tuple(figures.whole_text(value) for _, value in found)
    return Bar(
        sum(part.share for part in parts),
        kind="",
        text=f"{total} {source}".strip(),
        parts=parts,
        labels=labels,
    )


def draw_stack(
    picture: Picture,
    bars_by_server: dict[str, list[Bar]],
    legend: Sequence[LegendEntry],
    axis_title: str,
    value: str,
) -> None:
    """Draw stacked bars on a linear axis from zero. value: the name of the figure, for the ticks."""
    left = min(120.0, max(width(server) for server in bars_by_server) + 10)
    room = max(width(bar.text, SMALL) for group in bars_by_server.values() for bar in group) + 8
    axis = scale_for([bar.value for group in bars_by_server.values() for bar in group], left, WIDTH - room)
    row = LABELLED_ROW_PX if any(bar.labels for group in bars_by_server.values() for bar in group) else ROW_PX
    top = draw_legend(picture, legend)
    bottom = top + sum(len(group) * row + GROUP_GAP_PX for group in bars_by_server.values())
    ticks_below(picture, axis, top, bottom, value)
    y = top + GROUP_GAP_PX / 2
    for server, group in bars_by_server.items():
        text_y = y + len(group) * row / 2 + 4
        picture.write(left - 8, text_y, shortened(server, left - 10), anchor="end", kind="name")
        for bar in group:
            draw_bar(picture, bar, axis, left, y, both_sides=False)
            y += row
        y += GROUP_GAP_PX
    picture.line(left, top, left, bottom, "axis")
    picture.write(
        WIDTH / 2, bottom + 32, shortened(axis_title, WIDTH - 8, NORMAL), anchor="middle", kind="dim"
    )
    picture.height = bottom + 40


# ---------------------------------------------------------------------------------------------------------
# Errors


def draw_errors_chart(chart: Chart, cells: Sequence[Cell], name: str) -> DrawnChart:
    """Draw, for each server, its errors by kind in percent, the document's above ours; return the chart."""
    errors = list(distinct_errors(cells))
    if not errors:
        return DrawnChart()
    with_errors = {each.server for each in errors}
    bars_by_server: dict[str, list[Bar]] = {cell.server: [] for cell in cells if cell.server in with_errors}
    for each in errors:
        bars_by_server[each.server].append(error_bar(each.percent, each.source))
    rows = [
        [each.server, each.source, kind, figures.percent_text(percent / 100)]
        for each in errors
        for kind, percent in each.percent.items()
    ]
    by_session = any(sample.sessions for cell in cells for sample in cell.samples)
    axis_title = chart.y or f"lost, in percent of {'sessions' if by_session else 'requests'}"
    summary = "; ".join(" ".join(row) for row in rows)
    picture = Picture(name, chart.title, f"{chart.title}. {axis_title.capitalize()}: {summary}.")
    kinds = {kind for each in errors for kind in each.percent}
    order = [kind for kind in (*ERRORS, UNEXPLAINED_ERROR) if kind in kinds]
    legend = [LegendEntry(f"e-{kind}", f"{kind}: {MEANING[kind]}") for kind in order]
    draw_stack(picture, bars_by_server, legend, axis_title, "extra.percent")
    return DrawnChart(picture.svg(), ["server", "whose", "kind", "share"], rows)


class ServerErrors(NamedTuple):
    """The errors that one bar shows. source: "printed", or a label of ours. percent: of all requests, by kind."""

    server: str
    source: str
    percent: dict[str, float]


def distinct_errors(cells: Sequence[Cell]) -> Iterator[ServerErrors]:
    """Yield the errors of each bar of a chart.

    Each setting of a server repeats the document's errors, so they are yielded once.
    """
    with_printed = set()  # servers whose printed errors were yielded
    for cell in cells:
        printed = printed_errors(cell)
        if printed and cell.server not in with_printed:
            with_printed.add(cell.server)
            yield ServerErrors(cell.server, "printed", printed)
        if ours := {kind: share * 100 for kind, share in our_errors(cell).items()}:
            yield ServerErrors(cell.server, cell.column or ("here" if printed else ""), ours)


UNEXPLAINED_ERROR = "cr"  # a kind of the printed tables, which the document does not explain
MEANING = {
    "ct": "client timeout",
    "st": "socket timeout",
    "ref": "refused",
    "res": "reset",
    "fd": "no descriptor",
    "addr": "no port",
    "status": "bad status",
    "other": "other",
    UNEXPLAINED_ERROR: "not in the legend",
}


def error_bar(percent_by_kind: dict[str, float], source: str) -> Bar:
    """Return the bar of errors. source: "printed" for the document's bar, which is paler; else a label of ours."""
    total = sum(percent_by_kind.values())
    faint = " faint" if source == "printed" else ""
    parts = tuple(BarPart(percent, f"e-{kind}{faint}") for kind, percent in percent_by_kind.items())
    return Bar(
        total,
        kind=source if faint else "",
        text=f"{figures.percent_text(total / 100)} {source}".strip(),
        parts=parts,
    )


def printed_errors(cell: Cell) -> dict[str, float]:
    """Return the document's errors from a note such as `881 st, 5 res of 1000`: percent by kind; {} without any."""
    found = REQUEST_COUNT.search(cell.paper_note)
    if not found:
        return {}
    requests = int(found[1].replace(",", ""))
    return {
        kind: int(count.replace(",", "")) / requests * 100
        for count, kind in ERROR_COUNT.findall(cell.paper_note)
    }


def our_errors(cell: Cell) -> dict[str, float]:
    """Return errors by kind, each as a share of the sessions or requests (`Sample.tried`)."""
    sample = figures.middle_sample(cell)
    if sample is None:
        return {}
    return {kind: count / sample.tried for kind, count in sample.errors.items() if count}
