"""Charts of a query's columns, as SVG without scripts: bars, and lines. The page's style sheet has the colours.

Text from a database is drawn as text. A value that is not a number is left out of the chart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ewe.database.protocol import Value
from ewe.svg import SERIES, SMALL, WIDTH, Picture, Scale, scale_for, shortened, width

# All lengths and positions are in pixels of the picture, which is WIDTH wide
MAX_BARS = 60
MAX_POINTS = 2000  # the number of points of one line
MAX_LABEL_CHARS = 200  # of a label; only a few of them fit
ROW_HEIGHT, BAR_HEIGHT = 18, 12  # the distance from bar to bar, and the height of a bar
MAX_LABEL_WIDTH = 150.0  # the width of a bar's label
MARGIN = 10  # the distance between a text and the plot
PLOT_TOP = 28.0  # the y of the plot, below the title
# The least distance between two ticks: of the axis of bars, the y axis and the x axis of lines
TICK_DISTANCE, Y_TICK_DISTANCE, X_TICK_DISTANCE = 60, 40, 56
MAX_MARKED_POINTS = 40  # a line with more points has no markers
LEGEND_ROW_HEIGHT = 17
MAX_TICK_LABEL_WIDTH = 90  # the width of a row's label below a plot
# Sizes of numbers that the arithmetic of a chart can handle: smaller ones are drawn as 0, larger ones are left out
SMALLEST, LARGEST = 1e-300, 1e300
PLOT_HEIGHT = 180  # the height of a plot with lines
LEAST_SPAN = 1e-6  # the part of a number that an axis for it alone spans
Columns = Sequence[Sequence[Value]]


def number_of(value: Value) -> float | None:
    """Return a value as a number that can be drawn, None if it is no number. Numbers may be written as text."""
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    if abs(number) < SMALLEST:
        return 0.0  # differences of such numbers cannot be told from 0
    return number if math.isfinite(number) and abs(number) < LARGEST else None


def format_number(number: float) -> str:
    """Return a number in the form that people read."""
    if number == int(number) and abs(number) < 1e15:
        return f"{int(number):,}"
    return f"{number:,.2f}" if 0.01 <= abs(number) < 1e6 else f"{number:.3g}"


def axis_of(values: Sequence[float], start: float, end: float) -> Scale:
    """Return an axis that includes the values and zero. start, end: its ends in the picture."""
    low, high = min(0.0, *values), max(0.0, *values)
    if low == 0:
        return scale_for([high or 1.0], start, end)  # 1.0: all values are 0
    # scale_for() has no negative numbers. Round both ends outwards to a multiple of a power of ten.
    step = 10.0 ** math.floor(math.log10(high - low))
    return Scale(math.floor(low / step) * step, math.ceil(high / step) * step, start, end)


def bars(name: str, title: str, names: Sequence[str], columns: Columns) -> str:
    """Return a chart of horizontal bars as SVG; "" if no value is a number.

    name: of the chart, in its page. title: "" for one made from `names`, the names of the two columns. columns: the
    labels, and the lengths of the bars.
    """
    usable = [
        ("" if label is None else str(label)[:MAX_LABEL_CHARS], number)
        for label, value in zip(*columns, strict=True)
        if (number := number_of(value)) is not None
    ]
    drawn = usable[:MAX_BARS]  # (label, length) of each bar
    if not drawn:
        return ""
    plot_left = min(MAX_LABEL_WIDTH, max(width(label) for label, _ in drawn) + MARGIN)
    number_width = max(width(format_number(number), SMALL) for _, number in drawn) + 8
    axis = axis_of([number for _, number in drawn], plot_left, WIDTH - number_width)
    values = "; ".join(f"{label} {format_number(number)}" for label, number in drawn)
    label_name, length_name = names
    description = f"{length_name} by {label_name}"
    picture = Picture(name, title or description, f"{description}: {values}.")
    y = write_title(picture)
    bottom = y + len(drawn) * ROW_HEIGHT
    for tick in axis.ticks(TICK_DISTANCE):
        picture.line(axis(tick), y - 2, axis(tick), bottom, "grid")
    for label, number in drawn:
        picture.write(
            plot_left - 8, y + 10.5, shortened(label, plot_left - MARGIN), anchor="end", kind="name"
        )
        start, end = sorted((axis(0), axis(number)))
        picture.rect(start, y, end - start, BAR_HEIGHT, "s0")
        picture.write(end + 4, y + 10, format_number(number), size=SMALL)
        y += ROW_HEIGHT
    picture.line(axis(0), bottom - len(drawn) * ROW_HEIGHT - 2, axis(0), bottom, "axis")
    if len(usable) > MAX_BARS:
        picture.write(
            WIDTH / 2, y + 14, f"the first {MAX_BARS} of {len(usable)}", anchor="middle", kind="dim"
        )
        y += 18
    picture.height = y + 4
    return as_figure(picture)


def write_title(picture: Picture) -> float:
    """Write the title; return the y at which the plot begins."""
    picture.write(4, 15, shortened(picture.title, WIDTH - 8), kind="title")
    return PLOT_TOP


def as_figure(picture: Picture) -> str:
    """Return a picture as a figure of the page."""
    return f'<figure class="chart">{picture.svg()}</figure>\n'


def lines(name: str, title: str, names: Sequence[str], columns: Columns) -> str:
    """Return a chart as SVG with a line for each column except the first; "" if no value is a number.

    The first column is x: numbers, or labels in the order of the rows. name, title, names: as for bars().
    """
    x_name, *line_names = names
    x_column, *line_columns = columns
    labels = [("" if value is None else str(value)[:MAX_LABEL_CHARS]) for value in x_column[:MAX_POINTS]]
    positions, is_numeric = x_positions(x_column[:MAX_POINTS])
    usable = [points_of(positions, column) for column in line_columns]
    ys = [y for line in usable for _, y in line]
    if not ys:
        return ""
    # The widest label decides where the plot begins. This axis only measures them, so its ends are arbitrary
    plot_left = (
        max(width(format_number(tick), SMALL) for tick in axis_of(ys, 0, 100).ticks(Y_TICK_DISTANCE)) + MARGIN
    )
    description = f"{', '.join(line_names)} by {x_name}"
    picture = Picture(
        name,
        title or description,
        f"{description}, {len(positions)} points, from {labels[0]} to {labels[-1]}.",
    )
    top = write_title(picture)
    if len(usable) > 1:
        top = write_legend(picture, line_names, top)
    y_axis = axis_of(ys, start=top + PLOT_HEIGHT, end=top)  # y grows downwards in a picture
    x_axis = x_axis_of(positions, plot_left)
    for tick in y_axis.ticks(Y_TICK_DISTANCE):
        picture.line(plot_left, y_axis(tick), WIDTH - 8, y_axis(tick), "grid" if tick else "axis")
        picture.write(
            plot_left - 5, y_axis(tick) + 3.5, format_number(tick), size=SMALL, anchor="end", kind="dim"
        )
    for series, line in enumerate(usable):
        picture.path([(x_axis(x), y_axis(y)) for x, y in sorted(line)], f"line s{series % SERIES}")
        if len(line) <= MAX_MARKED_POINTS:
            for x, y in line:
                picture.marker(x_axis(x), y_axis(y), series)
    write_ticks(picture, x_axis, labels, is_numeric, y=top + PLOT_HEIGHT + 15)
    picture.height = top + PLOT_HEIGHT + 24
    return as_figure(picture)


def x_positions(column: Sequence[Value]) -> tuple[list[float], bool]:
    """Return the x of each row, and whether they are the column's numbers. If not, they are the rows' indexes."""
    numbers = [number for value in column if (number := number_of(value)) is not None]
    is_numeric = len(numbers) == len(column)
    return numbers if is_numeric else [float(index) for index in range(len(column))], is_numeric


def points_of(positions: Sequence[float], column: Sequence[Value]) -> list[tuple[float, float]]:
    """Return the points of a line; a row without a number has no point."""
    numbers = zip(positions, map(number_of, column), strict=False)
    return [(x, number) for x, number in numbers if number is not None]


def x_axis_of(positions: Sequence[float], plot_left: float) -> Scale:
    """Return the x axis of a plot, of some width if all positions are equal."""
    low, high = min(positions), max(positions)
    if high == low:
        high = low + max(1.0, abs(low) * LEAST_SPAN)  # a large number plus 1 may be the same number
    return Scale(low, high, start=plot_left + 4, end=WIDTH - 12)


def write_legend(picture: Picture, names: Sequence[str], y: float) -> float:
    """Write the name of each line, from `y` downwards; return the y at which the plot begins."""
    x = 8.0
    for series, text in enumerate(names):
        entry_width = width(text) + 30
        if x > 8 and x + entry_width > WIDTH:
            x, y = 8.0, y + LEGEND_ROW_HEIGHT
        picture.marker(x, y + 2, series)
        picture.write(x + 9, y + 6, shortened(text, WIDTH - 30))
        x += entry_width
    return y + 18


def write_ticks(picture: Picture, x_axis: Scale, labels: Sequence[str], is_numeric: bool, y: float) -> None:
    """Write numbers, or the labels of rows, below a plot; leave out those that would overlap.

    is_numeric: the x of all rows are numbers. y: of the text.
    """
    if is_numeric:
        has_years = all(len(label) <= 4 for label in labels)  # years get no thousands separator
        marks = [
            (tick, f"{tick:g}" if has_years else format_number(tick))
            for tick in x_axis.ticks(X_TICK_DISTANCE)
        ]
    else:
        marks = [
            (float(index), shortened(label, MAX_TICK_LABEL_WIDTH, SMALL))
            for index, label in enumerate(labels)
        ]
    previous_end = -100.0
    for position, text in marks:
        half_width = width(text, SMALL) / 2
        x = min(max(x_axis(position), half_width + 2), WIDTH - half_width - 2)
        if x - half_width > previous_end + 6:
            picture.write(x, y, text, size=SMALL, anchor="middle", kind="dim")
            previous_end = x + half_width
