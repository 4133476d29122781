"""SVG pictures: scales with round ticks, text with an estimated width, and labels that do not overlap.

All lengths are in the coordinates of the picture. Colors are CSS classes: the style sheet of the page defines `.s0`
or `.hatch` for light mode, dark mode and print.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

WIDTH = 400  # the width of every picture: two fit side by side on a desktop, one fills a phone
SMALL, NORMAL = 10.5, 12.5  # font sizes
ROUNDING_ERROR = 0.01  # by which a text may be wider than a room that was computed from its own width
SERIES = 10  # the number of different colors, markers and dashes
WIDE = set("mwMWQOGDHNU@%—")  # letters wider than the average
NARROW = set("iljtf.,:;'|!()[]I ")
# Python has such functions in xml.sax.saxutils, which imports urllib.request, http.client and email.
TEXT_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
VALUE_ESCAPES = TEXT_ESCAPES | str.maketrans({'"': "&quot;", "\t": "&#9;", "\n": "&#10;", "\r": "&#13;"})
UNFIT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # not allowed in XML 1.0


def clean(text: str) -> str:
    """Escape a text for XML, and replace the characters that XML does not allow."""
    return UNFIT.sub("\ufffd", text).translate(TEXT_ESCAPES)


def quoted(text: str) -> str:
    """Return a text as the value of an attribute, with its quotes."""
    return '"' + UNFIT.sub("\ufffd", text).translate(VALUE_ESCAPES) + '"'


def width(text: str, size: float = NORMAL) -> float:
    """Estimate the width of a text in a sans serif font. The result is rather too wide than too narrow."""
    units = sum(0.36 if letter in NARROW else 0.88 if letter in WIDE else 0.6 for letter in text)
    return units * size


def shortened(text: str, room: float, size: float = NORMAL) -> str:
    """Shorten a text to the width `room`, with an ellipsis."""
    room += ROUNDING_ERROR
    whole, fits = 0.0, 0
    for index, letter in enumerate(text):
        whole += width(letter, size)
        if whole + width("…", size) <= room:
            fits = index + 1
        elif whole > room:
            return text[:fits].rstrip() + "…"
    return text


@dataclass
class Picture:
    """An SVG picture. name: unique in the page; title, text: for screen readers. kind: the CSS class of a part."""

    name: str
    title: str
    text: str
    height: float = 0
    parts: list[str] = field(default_factory=list)

    def add(self, part: str) -> None:
        self.parts.append(part)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self.add(f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def rect(self, x: float, y: float, wide: float, high: float, kind: str) -> None:
        at = f'x="{x:.1f}" y="{y:.1f}" width="{max(wide, 0.8):.1f}" height="{high:.1f}"'
        self.add(f'<rect class="{kind}" {at}/>')

    def write(
        self, x: float, y: float, text: str, *, size: float = NORMAL, anchor: str = "start", kind: str = ""
    ) -> None:
        extra = f' class="{kind}"' if kind else ""
        self.add(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}"{extra}>{clean(text)}</text>'
        )

    def marker(self, x: float, y: float, series: int) -> None:
        """Draw the marker of a series. Markers differ in shape, not only in color."""
        self.add(
            f'<path class="s{series % SERIES} mark" transform="translate({x:.1f} {y:.1f})" '
            f'd="{MARKERS[series % len(MARKERS)]}"/>'
        )

    def path(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        steps = " ".join(f"{'L' if index else 'M'}{x:.1f} {y:.1f}" for index, (x, y) in enumerate(points))
        self.add(f'<path class="{kind}" fill="none" d="{steps}"/>')

    def svg(self) -> str:
        name = re.sub(r"[^A-Za-z0-9_-]", "-", self.name)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height:.0f}" role="img" '
            f'aria-labelledby="{name}-t {name}-d"><title id="{name}-t">{clean(self.title)}</title>'
            f'<desc id="{name}-d">{clean(self.text)}</desc>' + "".join(self.parts) + "</svg>"
        )


MARKERS = (  # paths around (0, 0), about 7 wide
    "M-3.3 0a3.3 3.3 0 1 0 6.6 0a3.3 3.3 0 1 0 -6.6 0Z",
    "M-3 -3H3V3H-3Z",
    "M0 -4L3.8 3H-3.8Z",
    "M0 -4.2L4.2 0L0 4.2L-4.2 0Z",
    "M0 4L3.8 -3H-3.8Z",
    "M-1.2 -4H1.2V-1.2H4V1.2H1.2V4H-1.2V1.2H-4V-1.2H-1.2Z",
    "M-4 -2.4L-2.4 -4L0 -1.6L2.4 -4L4 -2.4L1.6 0L4 2.4L2.4 4L0 1.6L-2.4 4L-4 2.4L-1.6 0Z",
    "M-4 0L0 -2L4 0L0 2Z",
    "M-2 -4H2L4 0L2 4H-2L-4 0Z",
    "M0 -4L4 4L0 1.5L-4 4Z",
)


# ---------------------------------------------------------------------------------------------------------
# Scales


@dataclass(frozen=True)
class Scale:
    """Maps numbers to coordinates: `low` to `start`, and `high` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self, room: float) -> list[float]:
        """Return the numbers to mark. Their distance is at least `room`."""
        most = max(2, int(abs(self.end - self.start) / room))
        return log_ticks(self.low, self.high, most) if self.log else nice_ticks(self.low, self.high, most)


def scale_for(values: Sequence[float], start: float, end: float, *, log: bool = False) -> Scale:
    """Return a scale for the values: it begins at zero, or, if logarithmic, at the smallest value."""
    positive = [value for value in values if value > 0 and math.isfinite(value)]
    if log and positive:
        low, high = min(positive), max(positive)
        if high / low < 2:
            low, high = low / 1.5, high * 1.5
        return Scale(low, high, start, end, log=True)
    high = max(positive, default=1.0)
    step = nice_step(high, 4)
    return Scale(0.0, math.ceil(high / step - 1e-9) * step, start, end)


def nice_step(span: float, most: int) -> float:
    """Return the smallest step (1, 2 or 5 times a power of ten) that divides the span into at most `most` parts."""
    power: float = 10.0 ** math.floor(math.log10(span / most))
    for factor in (1, 2, 5, 10):
        if span / (factor * power) <= most + 1e-9:
            break
    return factor * power


def nice_ticks(low: float, high: float, most: int) -> list[float]:
    """Return the multiples of nice_step() from low to high."""
    step = nice_step(high - low, most)
    first = math.ceil(low / step - 1e-9)
    return [step * index for index in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most `most` ticks between two positive numbers, for a logarithmic scale. most: at least 2.

    There are three choices: the powers of ten with their multiples by 2 and 5, those with their multiples by 3, and
    the powers of ten alone. The ticks are the first choice with at least 2 and at most `most` numbers. If no choice
    fits because there are too many powers of ten, the ticks are each second one, or each third one, and so on. If
    there are fewer than two, the ticks are those of nice_ticks(): there may be one more than `most`, or none.
    """
    # A tick at `low` or `high` itself must not be lost by a rounding error, so both are compared with a tolerance.
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [f * 10.0**power for power in powers for f in factors if low <= f * 10.0**power * 1.000001]
        found = [value for value in found if value <= high * 1.000001]
        if 2 <= len(found) <= most:
            return found
    if len(found) <= most:  # only the powers of ten are left, and there are fewer than two
        return [value for value in nice_ticks(low, high, most) if value > 0]
    return found[:: math.ceil(len(found) / most)]


def spread(wanted: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Move the wanted positions apart by at least `apart`, in their order; stay within low and high if possible."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    positions = [0.0] * len(wanted)
    last = low - apart
    for index in order:
        last = positions[index] = max(wanted[index], last + apart)
    limit = high + apart
    for index in reversed(order):
        limit = positions[index] = min(positions[index], limit - apart)
    return positions
