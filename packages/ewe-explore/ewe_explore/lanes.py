"""Lanes: pictures in which each row is a worker, a thread or a client, and time runs from left to right.

Three programs draw such pictures: ewe-watch the workers of a server, ewe-grade the clients of a test, ewe-explore
the threads of a program. A reader who knows one of them can then read the others, so this module holds the parts
that the three share:

    KINDS ──style()────────────▶ CSS: two colours of each kind, in light, dark and forced colours
      │ ───definitions()───────▶ SVG: the tile of each kind as a pattern
      │ ───description()───────▶ JSON: the same tiles for a program in the page, which draws on a canvas
      └──── LanePicture ───────▶ SVG without a program: svg(), legend(), table() in a page; svg_file() for a slide

**A kind** is the activity of a row during a span of time: it computes, it stands still, it waits in a queue. The
kinds differ in their pattern as well as in their colour. About one reader in twenty confuses red with green, a
printer may have no colours, and a system with forced colours (CSS Color Adjustment, section 3) replaces them. The
tile of a kind is a path in a square of TILE_PX units. SVG and a canvas (Path2D) read the same notation, so the tile
exists once.

**A picture** consists of lanes. A lane has spans, marks (a shape at a moment: a request was sent, a variable was
written), areas (a number over time: the length of a queue) and a line that shows how long it existed. Moments are
vertical lines through all lanes, and arrows lead from one lane to another. The axis has labels. All positions are
pixels, which the caller computes: from seconds for a server, from steps for a schedule.

Names stay visible while a wide picture scrolls: they are a separate SVG, which the style makes sticky. The
picture is one image for a screen reader, so table() gives the same in text. Each text is escaped here.

Read next: ewe/svg.py, which measures and escapes texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ewe import svg

TILE_PX = 10  # the side of a pattern's square
# Heights of a row, and of a span in it. Rows are multiples of a tile, so that the pattern is alike in each row.
ROW_PX, BAR_PX = 2 * TILE_PX, 14
MIN_SPAN_PX = 2  # the width of a shorter span, which a reader could not see
TOP_PX = TILE_PX // 2  # above the first row
AXIS_PX, MOMENT_LABELS_PX = 20, 16  # heights
MAX_NAME_CHARS = 24
FONT_PX = 12  # of a name
LETTER_PX = 7  # the width of a letter of a name
TEXT_GAP_PX = 8  # between a name and the lanes
BASELINE_PX = 4  # from the middle of a row to the baseline of its name
ARROW_HEAD_PX = 5
FILE_MARGIN_PX, HEADING_PX = 16, 30  # of a file: around it, and the height of a heading
NOTE_PX, LEGEND_PX = 18, 24  # heights of a line
LEGEND_GAP_PX = 20  # between two items
SAMPLE_WIDTH_PX, SAMPLE_HEIGHT_PX = 30, 16  # of a picture in the legend
MARKS = {  # paths around (0, 0)
    "open": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
    "dot": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
    "send": "M-4 -5L5 0L-4 5Z",
    "square": "M-4 -4H4V4H-4Z",
    "good": "M-5 -6H5V6H-5Z",
    "bad": "M0 -7L7 0L0 7L-7 0Z",
    "end": "M-4 -4l8 8m0 -8l-8 8",
}


LIGHT, DARK = 0, 1  # the indexes of the colours of a LaneKind
PLAIN = "plain"  # the kind of an area with a dashed outline and a pale ground
DOTS = "M1 1H3.5V3.5H1ZM6 6H8.5V8.5H6Z"


class LaneKind(NamedTuple):
    """The activity of a row in a span. line, soft: the strong and the pale colour, each in light and in dark mode.

    tile: the path of the pattern, "" for a plain background. solid: the background has the strong colour.
    """

    name: str
    tile: str
    line: tuple[str, str]
    soft: tuple[str, str]
    solid: bool = False
    filled: bool = False  # the tile is an area, not a line


KINDS = {
    kind.name: kind
    for kind in (
        LaneKind("busy", "", ("#0b6bb0", "#57b1ee"), ("#0b6bb0", "#57b1ee"), solid=True),
        LaneKind("blocked", "M0 0H5V5H0M5 5H10V10H5", ("#0b6bb0", "#57b1ee"), ("#cfe5f6", "#143a57"), filled=True),
        LaneKind("sends", "M3 3H6.5V6.5H3Z", ("#0f8f6a", "#4ccfa4"), ("#fff", "#12161b"), solid=True, filled=True),
        LaneKind("client", "M-1 11L11 -1M-11 11L1 -1M9 11L21 -1", ("#c84e00", "#ff9a56"), ("#fbd9c3", "#5a2c10")),
        LaneKind("other", "M5 0V10", ("#8250a8", "#c9a2ea"), ("#e6d9f0", "#3f2a52")),
        LaneKind("queue", DOTS, ("#946400", "#efbc4b"), ("#f6dfa6", "#4f3c10"), filled=True),
        LaneKind("backlog", DOTS, ("#946400", "#efbc4b"), ("#f6dfa6", "#4f3c10"), solid=True, filled=True),
        LaneKind("engine", "M-1 5H11", ("#5b46b2", "#ab9cf2"), ("#d9d2f6", "#2a2252"), solid=True),
        LaneKind("database", "M5 1L9 5L5 9L1 5Z", ("#00727a", "#4cc5cf"), ("#c4e9ec", "#0e3f44"), solid=True),
        LaneKind("zombie", "M2 2L8 8M8 2L2 8", ("#5b6673", "#aeb9c4"), ("#dde2e7", "#2b343e")),
        LaneKind("free", "", ("#d5dbe1", "#38424e"), ("#eef1f4", "#1d242c")),
    )
}  # fmt: skip


class LaneSpan(NamedTuple):
    """A span of a lane, from x = begin to x = end. kind: a name of KINDS. tip: its text.

    part: its height as a part of the bar, from 0 to 1. A span that stands for several short ones is lower.
    """

    begin: float
    end: float
    kind: str
    tip: str
    part: float = 1.0


class LaneArea(NamedTuple):
    """A number over time, such as the length of a queue: an area on the lower edge of its lane.

    points: pairs of an x and the height up to there, in pixels, after the first one, at which the area begins. An
    area may be higher than a lane. It then needs lanes without a name above its own. kind: one of KINDS, or PLAIN.
    """

    points: list[tuple[float, float]]
    kind: str
    tip: str


class LaneMark(NamedTuple):
    """A mark at one moment of a lane. shape: a name of MARKS."""

    x: float
    shape: str
    tip: str


class LaneMoment(NamedTuple):
    """A moment of all lanes. kind: "quiet" (dotted) or "event" (solid, with its label)."""

    x: float
    kind: str
    label: str
    tip: str


class LaneArrow(NamedTuple):
    """An arrow between two lanes, by their numbers."""

    x: float
    origin: int
    target: int
    tip: str


class LaneTick(NamedTuple):
    """A label of the axis."""

    x: float
    label: str


@dataclass
class DrawnLane:
    """A row. first, last: the ends of the line that shows how long the lane existed; equal: no line.

    colour: the CSS class of a dot before the name, "" for none.
    """

    name: str
    spans: list[LaneSpan] = field(default_factory=list)
    marks: list[LaneMark] = field(default_factory=list)
    first: float = 0.0
    last: float = 0.0
    colour: str = ""
    areas: list[LaneArea] = field(default_factory=list)


@dataclass
class LanePicture:
    """A picture of lanes. All lengths are in pixels.

    label: a text for screen readers. width: of the lanes. axis: the title of the axis, such as `time`.
    page: the width of the page's box; a wider picture scrolls. note: a sentence below the picture.
    """

    label: str
    width: float
    lanes: list[DrawnLane]
    ticks: list[LaneTick] = field(default_factory=list)
    moments: list[LaneMoment] = field(default_factory=list)
    arrows: list[LaneArrow] = field(default_factory=list)
    axis: str = "time"
    page: float = 982.0
    note: str = ""

    @property
    def left(self) -> int:
        """The width of the column of names, in pixels."""
        return left_of([lane.name for lane in self.lanes], dots=any(lane.colour for lane in self.lanes))

    @property
    def bottom(self) -> float:
        """The lower end of the lanes."""
        return TOP_PX + ROW_PX * len(self.lanes)

    @property
    def height(self) -> float:
        """The height of the picture."""
        labels = any(moment.label for moment in self.moments)
        return self.bottom + AXIS_PX + (MOMENT_LABELS_PX if labels else 0)

    @property
    def is_wide(self) -> bool:
        """Whether the picture is wider than a page."""
        return self.left + self.width > self.page

    def html(self) -> str:
        """Return the picture, its note, and its table, which a reader opens."""
        note = f'<p class="ln-key">{svg.clean(self.note)}</p>' if self.note else ""
        return (
            f'{self.svg()}<p class="ln-scrolls">The picture is wider than the page: it scrolls to the right.</p>'
            f'{note}<details class="ln-more"><summary>the same as a table</summary>{self.table()}</details>'
        )

    def svg(self) -> str:
        """Return the picture as HTML: the names, and the lanes, which scroll."""
        name = svg.quoted(self.label)
        return (
            f'<div class="ln-box{" ln-wide" if self.is_wide else ""}" tabindex="0" role="region" aria-label={name}>'
            f"{self.names()}{self.body()}</div>"
        )

    def names(self) -> str:
        """Return the SVG of the names. A screen reader takes them from the table."""
        return picture(self.left, self.height, self.inside_names(), 'class="ln-names" aria-hidden="true"')

    def inside_names(self) -> str:
        """Return the elements of the names."""
        left = self.left
        parts = []
        for number, lane in enumerate(self.lanes):
            y = middle(number)
            parts.append(band(number, left))
            if lane.colour:
                parts.append(f'<circle class="{lane.colour}" cx="11" cy="{y:g}" r="5"/>')
            parts.append(text(left - TEXT_GAP_PX, y + BASELINE_PX, lane.name[:MAX_NAME_CHARS], "end"))
        parts.append(text(left - TEXT_GAP_PX, self.height - 6, self.axis, "end", "ln-dim"))
        return "".join(parts)

    def body(self) -> str:
        """Return the SVG of the lanes."""
        return picture(
            self.width, self.height, self.inside_body(), f'role="img" aria-label={svg.quoted(self.label)}'
        )

    def inside_body(self) -> str:
        """Return the elements of the lanes."""
        parts = []
        for number, lane in enumerate(self.lanes):
            parts.append(band(number, self.width))
            parts += lane_parts(lane, middle(number))
        for moment in self.moments:
            parts.append(vertical(moment.x, TOP_PX, self.bottom, f"ln-{moment.kind}", moment.tip))
            if moment.label:
                parts.append(text(moment.x, self.bottom + 12, moment.label, "middle"))
        for arrow in self.arrows:
            start, end = middle(arrow.origin), middle(arrow.target)
            head = ARROW_HEAD_PX if end > start else -ARROW_HEAD_PX  # it points down or up
            parts.append(vertical(arrow.x, start, end - head, "ln-arrow", arrow.tip))
            # The triangle overlaps the line a little
            parts.append(
                f'<path class="ln-head" d="M{arrow.x - 4:g} {end - 1.4 * head:g}h8L{arrow.x:g} {end:g}Z"/>'
            )
        for lane_number, lane in enumerate(self.lanes):
            parts += [mark(each, middle(lane_number)) for each in lane.marks]
        parts += [text(tick.x, self.height - 6, tick.label, "middle", "ln-dim") for tick in self.ticks]
        return "".join(parts)

    def table(self, heading: str = "row") -> str:
        """Return the texts of spans, areas, marks and moments as a table, in their order. heading: of the lanes."""
        found: list[tuple[float, str, str]] = []
        for lane in self.lanes:
            found += [(each.x, lane.name, each.tip) for each in lane.marks]
            found += [(span.begin, lane.name, span.tip) for span in lane.spans if span.tip]
            found += [(area.points[0][0], lane.name, area.tip) for area in lane.areas]
        found += [(each.x, "all", each.tip) for each in self.moments]
        rows = "".join(
            f'<tr><th scope="row">{svg.clean(name)}</th><td>{svg.clean(tip)}</td></tr>'
            for _, name, tip in sorted(found, key=lambda row: row[0])
        )
        return (
            f'<table class="ln-table"><thead><tr><th scope="col">{svg.clean(heading)}</th>'
            f'<th scope="col">at, and what</th></tr></thead><tbody>{rows}</tbody></table>'
        )


def left_of(names: Iterable[str], *, dots: bool = False) -> int:
    """Return the width that names need. dots: each has a dot before it."""
    return 18 + 14 * dots + LETTER_PX * max((len(name[:MAX_NAME_CHARS]) for name in names), default=0)


def middle(number: int) -> float:
    """Return the y coordinate of a lane, by its number."""
    return TOP_PX + ROW_PX * number + ROW_PX / 2


def picture(width: float, height: float, body: str, attributes: str) -> str:
    """Return an SVG element of this size, in pixels, with these attributes."""
    return f'<svg {attributes} width="{width:g}" height="{height:g}">{body}</svg>'


def band(number: int, width: float) -> str:
    """Return the background of a lane: every second lane has one."""
    if number % 2:
        return ""
    return (
        f'<rect class="ln-band" x="0" y="{TOP_PX + ROW_PX * number:g}" width="{width:g}" height="{ROW_PX}"/>'
    )


def text(x: float, y: float, words: str, anchor: str, kind: str = "ln-text") -> str:
    """Return an SVG text. anchor: the part of the text that is at x: start, middle or end. kind: a CSS class."""
    return f'<text class="{kind}" x="{x:.5g}" y="{y:g}" text-anchor="{anchor}">{svg.clean(words)}</text>'


def tipped(tip: str) -> str:
    """Return the SVG title that the mouse shows."""
    return f"<title>{svg.clean(tip)}</title>" if tip else ""


def vertical(x: float, top: float, bottom: float, kind: str, tip: str) -> str:
    """Return a vertical line with a text that the mouse shows. kind: a CSS class."""
    position = f'x1="{x:.5g}" x2="{x:.5g}" y1="{top:g}" y2="{bottom:g}"'
    return f'<line class="{kind}" {position}>{tipped(tip)}</line>'


def lane_parts(lane: DrawnLane, y: float) -> Iterable[str]:
    """Yield the line, the areas and the spans of a lane. y: its middle."""
    if lane.last > lane.first:
        yield f'<line class="ln-line" x1="{lane.first:.5g}" x2="{lane.last:.5g}" y1="{y:g}" y2="{y:g}"/>'
    bottom = y + BAR_PX / 2
    for area in lane.areas:
        steps = "".join(f"V{bottom - high:.5g}H{x:.5g}" for x, high in area.points)
        outline = f"M{area.points[0][0]:.5g} {bottom:g}{steps}V{bottom:g}Z"
        yield f'<path class="ln-bar ln-{area.kind}" d="{outline}">{tipped(area.tip)}</path>'
    for span in lane.spans:
        width, height = max(span.end - span.begin, MIN_SPAN_PX), BAR_PX * span.part
        position = f'x="{span.begin:.5g}" y="{bottom - height:.5g}" width="{width:.5g}" height="{height:.5g}"'
        yield f'<rect class="ln-bar ln-{span.kind}" {position}>{tipped(span.tip)}</rect>'


def mark(each: LaneMark, y: float) -> str:
    """Return the SVG of a mark on a lane whose middle is at y."""
    return (
        f'<path class="ln-mark ln-{each.shape}" transform="translate({each.x:.5g} {y:g})" '
        f'd="{MARKS[each.shape]}">{tipped(each.tip)}</path>'
    )


def legend(samples: Sequence[tuple[str, str]]) -> str:
    """Return the items of a legend. samples: pairs of a name and a text.

    A name is one of KINDS or MARKS, PLAIN, "arrow", or "line NAME" with NAME as in LaneMoment.kind: "line quiet".
    """
    return "".join(f"<span>{sample(name)}{svg.clean(words)}</span>" for name, words in samples)


def sample(name: str) -> str:
    """Return the picture beside a text of the legend. name: as in legend(); "line NAME" is the line of a moment."""
    middle_x = SAMPLE_WIDTH_PX // 2
    if name in KINDS or name == PLAIN:
        body = f'<rect class="ln-bar ln-{name}" x="1" y="1" width="{SAMPLE_WIDTH_PX - 2}" height="{BAR_PX}"/>'
    elif name in MARKS:
        body = mark(LaneMark(middle_x, name, ""), SAMPLE_HEIGHT_PX // 2)
    elif name == "arrow":
        body = '<line class="ln-arrow" x1="15" x2="15" y1="0" y2="10"/><path class="ln-head" d="M11 9h8L15 16Z"/>'
    else:
        body = vertical(middle_x, 0, SAMPLE_HEIGHT_PX, f"ln-{name.removeprefix('line ')}", "")
    return picture(SAMPLE_WIDTH_PX, SAMPLE_HEIGHT_PX, body, 'aria-hidden="true"')


def definitions() -> str:
    """Return the patterns, once for a page: the spans name them."""
    patterns = "".join(
        f'<pattern id="ln-{kind.name}" width="{TILE_PX}" height="{TILE_PX}" patternUnits="userSpaceOnUse">'
        f'<rect class="ln-ground-{kind.name}" width="{TILE_PX}" height="{TILE_PX}"/>'
        f'<path class="ln-tile-{kind.name}" d="{kind.tile}"/></pattern>'
        for kind in KINDS.values()
        if kind.tile
    )
    return f'<svg class="ln-defs" width="0" height="0" aria-hidden="true"><defs>{patterns}</defs></svg>'


class FilePart(NamedTuple):
    """A picture of a file, with its heading above it, and lines of text below it."""

    heading: str
    picture: LanePicture
    notes: Sequence[str] = ()


def svg_file(title: str, parts: Sequence[FilePart], samples: Sequence[tuple[str, str]]) -> str:
    """Return an SVG file of pictures, one above the other, with one legend (samples: as in legend()) for all.

    title: for screen readers. Programs for slides know neither the variables of CSS nor its media queries, so the
    file has the colours of light mode as numbers. The lanes of all pictures begin at the same x.
    """
    left = max(part.picture.left for part in parts)
    width = left + max(part.picture.width for part in parts)
    body: list[str] = []
    y = float(FILE_MARGIN_PX)
    for part in parts:
        drawn = part.picture
        body.append(text(FILE_MARGIN_PX, y + HEADING_PX / 2, part.heading, "start", "ln-heading"))
        y += HEADING_PX
        body.append(moved(FILE_MARGIN_PX + left - drawn.left, y, drawn.inside_names()))
        body.append(moved(FILE_MARGIN_PX + left, y, drawn.inside_body()))
        y += drawn.height
        for note in part.notes:
            y += NOTE_PX
            shown = svg.shortened(note, width, FONT_PX)
            body.append(text(FILE_MARGIN_PX, y, shown, "start", "ln-text"))
        y += FILE_MARGIN_PX
    x = 0.0
    for name, words in samples:
        wide = SAMPLE_WIDTH_PX + TEXT_GAP_PX + svg.width(words, FONT_PX)
        if x and x + wide > width:
            x, y = 0.0, y + LEGEND_PX
        words_svg = text(SAMPLE_WIDTH_PX + TEXT_GAP_PX, SAMPLE_HEIGHT_PX / 2 + BASELINE_PX, words, "start")
        body.append(moved(FILE_MARGIN_PX + x, y, sample(name) + words_svg))
        x += wide + LEGEND_GAP_PX
    whole_width, height = width + 2 * FILE_MARGIN_PX, y + LEGEND_PX + FILE_MARGIN_PX
    paper = f'<rect class="ln-paper" width="{whole_width:g}" height="{height:g}"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{whole_width:g}" height="{height:g}" '
        f'viewBox="0 0 {whole_width:g} {height:g}"><title>{svg.clean(title)}</title><style>{file_style()}</style>'
        f"{definitions()}{paper}{''.join(body)}</svg>\n"
    )


def moved(x: float, y: float, body: str) -> str:
    """Return elements whose origin is at (x, y)."""
    return f'<g transform="translate({x:g} {y:g})">{body}</g>'


def file_style() -> str:
    """Return the style of an SVG file: that of a picture, with the colours of light mode as numbers."""
    colours = dict(FILE_COLOURS)
    for kind in KINDS.values():
        colours |= {kind.name: kind.line[LIGHT], f"{kind.name}-soft": kind.soft[LIGHT]}
    rules = "".join(style_of(kind) for kind in KINDS.values()) + PICTURE_STYLE + FILE_STYLE
    return VARIABLE.sub(lambda found: colours[found[1]], rules)


def description() -> list[dict[str, Any]]:
    """Return the fields of the kinds (LaneKind) for the JavaScript of a page. The colours come from style()."""
    return [
        {"name": kind.name, "tile": kind.tile, "solid": kind.solid, "filled": kind.filled}
        for kind in KINDS.values()
    ]


def style() -> str:
    """Return the style: a strong and a soft colour of each kind, and the parts of a picture.

    It uses --ink, --dim, --paper, --card, --line, --good and --bad of the page.
    """
    light, dark, forced = (
        " ".join(f"--{kind.name}: {line}; --{kind.name}-soft: {soft};" for kind, line, soft in found)
        for found in (
            [(kind, kind.line[LIGHT], kind.soft[LIGHT]) for kind in KINDS.values()],
            [(kind, kind.line[DARK], kind.soft[DARK]) for kind in KINDS.values()],
            [(kind, "CanvasText", "Canvas") for kind in KINDS.values()],
        )
    )
    return (
        f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
        f"@media (forced-colors: active) {{ :root {{ {forced} }} }}\n"
        + "".join(style_of(kind) for kind in KINDS.values())
        + PICTURE_STYLE
        + BOX_STYLE
    )


def style_of(kind: LaneKind) -> str:
    """Return the style of a kind."""
    strong, soft = f"var(--{kind.name})", f"var(--{kind.name}-soft)"
    ground, line = (strong, soft) if kind.solid else (soft, strong)
    if not kind.tile:
        return f".ln-{kind.name} {{ fill: {ground} }}\n"
    tile = f"fill: {line}" if kind.filled else f"fill: none; stroke: {line}; stroke-width: 2"
    return (
        f".ln-ground-{kind.name} {{ fill: {ground} }} .ln-tile-{kind.name} {{ {tile} }} "
        f".ln-{kind.name} {{ fill: url(#ln-{kind.name}); stroke: {strong} }}\n"
    )


VARIABLE = re.compile(r"var\(--([a-z-]+)\)")  # a variable of CSS
FILE_COLOURS = {  # of a file, which has no page
    "ink": "#1c2430", "dim": "#56616f", "paper": "#fff", "card": "#f4f6f8", "good": "#1f7a4d", "bad": "#b3261e"
}  # fmt: skip
FILE_STYLE = """\
.ln-paper { fill: var(--paper) }
.ln-heading { font: 600 16px system-ui, sans-serif; fill: var(--ink) }
"""
PICTURE_STYLE = """\
.ln-text, .ln-dim { font: 12px system-ui, sans-serif; fill: var(--ink) }
.ln-dim { fill: var(--dim) }
.ln-band { fill: var(--card) }
.ln-line { stroke: var(--dim); stroke-width: 1.2 }
.ln-bar { stroke-width: .8 }
.ln-plain { fill: var(--card); stroke: var(--dim); stroke-width: 1.4; stroke-dasharray: 4 2 }
.ln-mark { stroke: var(--ink); stroke-width: 1.6; fill: var(--ink) }
.ln-open, .ln-square { fill: var(--paper) }
.ln-dot, .ln-send { stroke: var(--paper); stroke-width: 1 }
.ln-good { fill: var(--good); stroke: var(--paper) }
.ln-bad { fill: var(--bad); stroke: var(--paper) }
.ln-end { fill: none; stroke-width: 1.8 }
.ln-quiet { stroke: var(--dim); stroke-dasharray: 2 3 }
.ln-event { stroke: var(--bad); stroke-width: 1.5 }
.ln-arrow { stroke: var(--ink); stroke-width: 1.6; stroke-dasharray: 4 2 }
.ln-head { fill: var(--ink) }
"""
BOX_STYLE = """\
.ln-box { display: flex; overflow-x: auto; background: var(--paper); border: 1px solid var(--line);
  border-radius: 6px; padding: .3rem 0 }
.ln-box svg { display: block; flex: none; forced-color-adjust: none }
.ln-names { position: sticky; left: 0; background: var(--paper); border-right: 1px solid var(--line) }
.ln-defs { position: absolute }
.ln-key { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; font-size: .85rem; color: var(--dim);
  margin: .8rem 0 0 }
.ln-key b { font-weight: 600; color: var(--ink) }
.ln-key span { display: inline-flex; align-items: center; gap: .35rem }
.ln-key svg { flex: none; forced-color-adjust: none }
.ln-scrolls { display: none; font-size: .85rem; color: var(--dim); margin: .3rem 0 0 }
.ln-scrolls::before { content: "⇢ " }
.ln-wide + .ln-scrolls { display: block }
details.ln-more { border: 0; background: none; margin: .2rem 0; font-size: .85rem }
.ln-more > summary { display: list-item; cursor: pointer; color: var(--dim); padding: .1rem 0;
  list-style: inside disclosure-closed }
.ln-more[open] > summary { list-style-type: disclosure-open }
.ln-table { border-collapse: collapse; font-size: .85rem; margin: .4rem 0; width: 100% }
.ln-table th, .ln-table td { text-align: left; vertical-align: top; padding: .15rem .6rem;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere }
.ln-table th { font-weight: 600; white-space: nowrap }
@media (max-width: 66rem) { .ln-box + .ln-scrolls { display: block } }
@media (max-width: 44rem) { .ln-names { max-width: 8.4rem } }
"""
