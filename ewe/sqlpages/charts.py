"""Charts of a query's columns, as SVG without scripts: bars, and lines. The page's style sheet has the colours.

Text that a database holds is drawn as text. A value that is no number is left out of the chart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ewe.database.protocol import Value
from ewe.svg import SERIES, SMALL, WIDTH, Picture, Scale, scale, shortened, width

MAX_BARS = 60
MAX_POINTS = 2000  # of one line
MAX_LABEL = 200  # characters; few of them fit
ROW, BAR = 18, 12  # distance and height of bars
HIGH = 180  # of a plot with lines
Columns = Sequence[Sequence[Value]]


def figure(value: Value) -> float | None:
    """Return a value as a figure that can be drawn, None if it is none. Numbers may be written as text."""
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    if abs(number) < 1e-300:
        return 0.0  # no step between two of them could be told from 0
    return number if math.isfinite(number) and abs(number) < 1e300 else None


def shown(number: float) -> str:
    """Return a figure as people read it."""
    if number == int(number) and abs(number) < 1e15:
        return f"{int(number):,}"
    return f"{number:,.2f}" if 0.01 <= abs(number) < 1e6 else f"{number:.3g}"


def axis_of(values: Sequence[float], start: float, end: float) -> Scale:
    """Return an axis that holds the values and zero."""
    low, high = min(0.0, *values), max(0.0, *values)
    if low == 0:
        return scale([high or 1.0], start, end)
    step = 10.0 ** math.floor(math.log10(high - low))
    return Scale(math.floor(low / step) * step, math.ceil(high / step) * step, start, end)


def bars(name: str, title: str, names: Sequence[str], columns: Columns) -> str:
    """Return horizontal bars. columns: their labels, their lengths."""
    found = [
        ("" if label is None else str(label)[:MAX_LABEL], number)
        for label, value in zip(*columns, strict=True)
        if (number := figure(value)) is not None
    ]
    drawn = found[:MAX_BARS]
    if not drawn:
        return ""
    left = min(150.0, max(width(label) for label, _ in drawn) + 10)
    room = max(width(shown(number), SMALL) for _, number in drawn) + 8
    axis = axis_of([number for _, number in drawn], left, WIDTH - room)
    told = "; ".join(f"{label} {shown(number)}" for label, number in drawn)
    picture = Picture(name, title or f"{names[1]} by {names[0]}", f"{names[1]} by {names[0]}: {told}.")
    y = heading(picture)
    bottom = y + len(drawn) * ROW
    for tick in axis.ticks(60):
        picture.line(axis(tick), y - 2, axis(tick), bottom, "grid")
    for label, number in drawn:
        picture.write(left - 8, y + 10.5, shortened(label, left - 10), anchor="end", kind="name")
        start, end = sorted((axis(0), axis(number)))
        picture.rect(start, y, end - start, BAR, "s0")
        picture.write(end + 4, y + 10, shown(number), size=SMALL)
        y += ROW
    picture.line(axis(0), bottom - len(drawn) * ROW - 2, axis(0), bottom, "axis")
    if len(found) > MAX_BARS:
        picture.write(WIDTH / 2, y + 14, f"the first {MAX_BARS} of {len(found)}", anchor="middle", kind="dim")
        y += 18
    picture.height = y + 4
    return framed(picture)


def heading(picture: Picture) -> float:
    """Write the title; return where the plot begins."""
    picture.write(4, 15, shortened(picture.title, WIDTH - 8), kind="title")
    return 28.0


def framed(picture: Picture) -> str:
    """Return a picture as a figure of the page."""
    return f'<figure class="chart">{picture.svg()}</figure>\n'


def lines(name: str, title: str, names: Sequence[str], columns: Columns) -> str:
    """Return a line for each column but the first, which is x: figures, or labels in the order of the rows."""
    xs = [figure(value) for value in columns[0]][:MAX_POINTS]
    labels = [("" if value is None else str(value)[:MAX_LABEL]) for value in columns[0]][:MAX_POINTS]
    numeric = all(x is not None for x in xs)
    places = [float(x or 0) for x in xs] if numeric else [float(index) for index in range(len(xs))]
    found = [
        [
            (x, number)
            for x, value in zip(places, column, strict=False)
            if (number := figure(value)) is not None
        ]
        for column in columns[1:]
    ]
    ys = [y for line in found for _, y in line]
    if not ys:
        return ""
    left = max(width(shown(tick), SMALL) for tick in axis_of(ys, 0, 100).ticks(40)) + 10
    what = f"{', '.join(names[1:])} by {names[0]}"
    picture = Picture(name, title or what, f"{what}, {len(places)} points, from {labels[0]} to {labels[-1]}.")
    top = heading(picture)
    if len(found) > 1:
        top = legend(picture, names[1:], top)
    up = axis_of(ys, top + HIGH, top)
    low, high = min(places), max(places)
    across = Scale(low, high if high > low else low + 1, left + 4, WIDTH - 12)
    for tick in up.ticks(40):
        picture.line(left, up(tick), WIDTH - 8, up(tick), "grid" if tick else "axis")
        picture.write(left - 5, up(tick) + 3.5, shown(tick), size=SMALL, anchor="end", kind="dim")
    for series, line in enumerate(found):
        picture.path([(across(x), up(y)) for x, y in sorted(line)], f"line s{series % SERIES}")
        if len(line) <= 40:
            for x, y in line:
                picture.marker(across(x), up(y), series)
    ticks_below(picture, across, labels, numeric, top + HIGH + 15)
    picture.height = top + HIGH + 24
    return framed(picture)


def legend(picture: Picture, names: Sequence[str], y: float) -> float:
    """Write which line is which; return where the plot begins."""
    x = 8.0
    for series, text in enumerate(names):
        wide = width(text) + 30
        if x > 8 and x + wide > WIDTH:
            x, y = 8.0, y + 17
        picture.marker(x, y + 2, series)
        picture.write(x + 9, y + 6, shortened(text, WIDTH - 30))
        x += wide
    return y + 18


def ticks_below(picture: Picture, across: Scale, labels: Sequence[str], numeric: bool, y: float) -> None:
    """Write figures, or the labels of rows, below a plot, those that do not touch."""
    if numeric:
        plain = all(len(label) <= 4 for label in labels)  # years have no thousands
        marks = [(tick, f"{tick:g}" if plain else shown(tick)) for tick in across.ticks(56)]
    else:
        marks = [(float(index), shortened(label, 90, SMALL)) for index, label in enumerate(labels)]
    last = -100.0
    for place, text in marks:
        half = width(text, SMALL) / 2
        x = min(max(across(place), half + 2), WIDTH - half - 2)
        if x - half > last + 6:
            picture.write(x, y, text, size=SMALL, anchor="middle", kind="dim")
            last = x + half
