"""The numbers of a trace as a picture that stands still: for a slide (--svg), and for a page without its program.

The page of a trace draws on a canvas, because a canvas can zoom into 40,000 spans. A slide needs a picture without
a program. LanePicture of ewe_explore draws it, as it draws the timelines of ewe-grade and ewe-explore:

    document ──TraceDrawing──▶ LanePicture ──┬── svg_of(): a file for a slide
                                             └── page.py: the picture of a page whose program does not run

The lanes are those of the page: the queue, the parked connections, the workers, the engines and the connections to
databases. A span that is narrower than COLUMN_PX is not drawn alone. All such spans of a column become one span of
the kind that has most of their time. It is as high as the part of the column that they fill, and high enough to be
seen. A picture therefore has a limited number of spans, however long its trace is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ewe import svg
from ewe_explore.lanes import (
    PLAIN,
    ROW_PX,
    DrawnLane,
    FilePart,
    LaneArea,
    LaneMark,
    LaneMoment,
    LanePicture,
    LaneSpan,
    LaneTick,
    definitions,
    legend,
    svg_file,
)
from ewe_watch.behind import DATABASE, ENGINE
from ewe_watch.moment import duration_of_micros
from ewe_watch.story import BACKLOG, BUSY, OCCUPYING, OF_CLIENT, PARKED, QUEUED, SENDS

LANES_PX = 1100  # the width of the lanes in a file
PAGE_PX = 1280  # the width of a page, in which a picture need not scroll
COLUMN_PX = 2
LEAST_PART = 0.4  # of a bar, for spans that share a column: lower ones would not be seen
AREA_ROWS = 3  # the height of an area in lanes
AREA_PX = AREA_ROWS * ROW_PX - 8
LEAST_MOST = 4  # connections: an area of fewer ones does not have the full height
TICK_PX = 90  # the least distance of two labels of the axis
MARK_PX = 10  # the least distance of two refused connections, and of the labels of two moments
LEGEND = (
    ("busy", "computes for a connection"), ("sends", "sends the response"),
    ("client", "stands still: waits for its client"),
    ("other", "stands still: waits for a program, a server or a call"), ("free", "free"),
    ("backlog", "in the kernel's backlog, not accepted yet"), ("queue", "waits in a queue"),
    (PLAIN, "parked: its client is waited for, without a worker"),
    ("engine", "an engine runs a script"), ("database", "a database runs a statement"),
    ("end", "refused"), ("line quiet", "a moment of the list"),
)  # fmt: skip
WAITS_FOR = {ENGINE: "wait for an engine", DATABASE: "wait for a database"}


class Work(NamedTuple):
    """A span of a row, in microseconds. kind: a name of lanes.KINDS."""

    begin: int
    end: int
    kind: str
    tip: str


def svg_of(documents: Sequence[dict[str, Any]]) -> str:
    """Return an SVG file of one or more traces, with one axis of time and one scale of the queue for all."""
    parts = [
        FilePart(heading(document), drawn, notes(document))
        for document, drawn in zip(documents, lane_pictures(documents), strict=True)
    ]
    title = " and ".join(document["name"] for document in documents)
    return svg_file(f"{title}: what each worker does", parts, legend_of([part.picture for part in parts]))


def lane_pictures(documents: Sequence[dict[str, Any]], width: float = LANES_PX) -> list[LanePicture]:
    """Return the pictures of some traces. documents: those of document.py. width: of the lanes, in pixels."""
    micros = max(1, *(document["duration"] for document in documents))
    most = {
        state: max(LEAST_MOST, *(max(counts(document, state), default=0) for document in documents))
        for state in (QUEUED, PARKED)
    }
    return [TraceDrawing(document, width, width / micros, most).picture() for document in documents]


def picture_html(documents: Sequence[dict[str, Any]]) -> str:
    """Return the pictures as a part of a page, with their tables and one legend. Its style is lanes.style()."""
    pictures = lane_pictures(documents)
    items = "".join(
        f"<h2>{svg.clean(heading(document))}</h2>{drawn.html()}"
        for document, drawn in zip(documents, pictures, strict=True)
    )
    return f'{definitions()}{items}<p class="ln-key">{legend(legend_of(pictures))}</p>'


def heading(document: dict[str, Any]) -> str:
    """Return the line above a picture: the model, its description, and the name of the trace."""
    model = f"{document['model']}: {document['description']} " if document["model"] else ""
    return f"{model}({document['name']})"


def notes(document: dict[str, Any]) -> list[str]:
    """Return the moments of a trace as numbered lines."""
    return [f"{number}: {moment['text']}" for number, moment in enumerate(document["moments"], 1)]


def legend_of(pictures: Sequence[LanePicture]) -> list[tuple[str, str]]:
    """Return the items of the legend that the pictures need."""
    used = {"line quiet"} if any(drawn.moments for drawn in pictures) else set()
    for lane in (lane for drawn in pictures for lane in drawn.lanes):
        used |= {span.kind for span in lane.spans} | {area.kind for area in lane.areas}
        used |= {mark.shape for mark in lane.marks}
    return [item for item in LEGEND if item[0] in used]


@dataclass
class TraceDrawing:
    """Computes the picture of a trace. document: its numbers. width: of the lanes, in pixels. most: see area()."""

    document: dict[str, Any]
    width: float
    px_per_micro: float
    most: dict[str, int]

    def picture(self) -> LanePicture:
        """Return the picture."""
        document = self.document
        lanes: list[DrawnLane] = []
        if document["connections"]:
            lanes += self.waiting()
            lanes[-1].marks = self.refusals()
        if any(document["queue"][PARKED]):
            lanes += self.area("parked", document["queue"], PARKED, self.most[PARKED], PLAIN)
        lanes += [*self.workers(), *self.behind()]
        label = f"{heading(document)}: the queue, and what each worker does"
        return LanePicture(label, self.width, lanes, self.ticks(), list(self.moments()), page=PAGE_PX)

    def waiting(self) -> list[DrawnLane]:
        """Return the lanes of the connections in the queue, and above them of those in the backlog."""
        numbers, most = self.document["queue"], self.most[QUEUED]
        lanes = self.area("queue", numbers, QUEUED, most, "queue")
        if any(numbers[BACKLOG]):
            both = numbers | {QUEUED: counts(self.document, QUEUED)}
            above = self.area("waiting", both, QUEUED, most, "backlog")
            above[-1].areas += lanes[-1].areas
            return above
        return lanes

    def ticks(self) -> list[LaneTick]:
        """Return the labels of the axis. A label is centred, so the right end has no room for one."""
        last_s = self.width * (1 - TICK_PX / 3 / self.width) / self.px_per_micro / 1e6
        seconds = svg.nice_ticks(0.0, last_s, max(2, int(self.width / TICK_PX)))
        return [LaneTick(max(at * 1e6 * self.px_per_micro, TICK_PX / 5), f"{at:g} s") for at in seconds]

    def workers(self) -> list[DrawnLane]:
        """Return a lane for each row of workers."""
        document, spans = self.document, self.document["spans"]
        work: dict[int, list[Work]] = defaultdict(list)
        for number, state in enumerate(spans["state"]):
            if state in OCCUPYING:
                label = document["connections"][spans["connection"][number]]["label"]
                request = spans["request"][number]
                line = f": {document['requests'][request]['line']}" if request >= 0 else ""
                kind = kind_of(state, spans["want"][number])
                row = document["workers"][spans["worker"][number]]["row"]
                work[row].append(work_of(spans, number, kind, f"connection {label}{line}"))
        rows: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for each in document["workers"]:
            rows[each["row"]].append(each)
        return [
            DrawnLane(
                name_of([each["name"] for each in workers], "workers"),
                [*self.lives(workers), *self.drawn(work[row])],
            )
            for row, workers in sorted(rows.items())
        ]

    def lives(self, workers: list[dict[str, Any]]) -> list[LaneSpan]:
        """Return the lives of the workers of a row. Lives that are less than a column apart become one."""
        if any(each["began"] is None for each in workers):  # it is not in the trace
            return [LaneSpan(0, self.document["duration"] * self.px_per_micro, "free", "")]
        lives: list[LaneSpan] = []
        for each in sorted(workers, key=lambda each: each["began"]):
            life = self.life(each)
            if lives and life.begin - lives[-1].end < COLUMN_PX:
                life = lives.pop()._replace(end=life.end)
            lives.append(life)
        return lives

    def behind(self) -> Iterator[DrawnLane]:
        """Yield the lanes of X-Switch's engines, and those of the connections to databases, with their queues."""
        behind = self.document["behind"]
        spans = behind["spans"]
        work: dict[int, list[Work]] = defaultdict(list)
        for number, lane in enumerate(spans["lane"]):
            if lane >= 0:
                text = behind["requests"][spans["request"][number]]["text"]
                kind, row = behind["lanes"][lane]["kind"], behind["lanes"][lane]["row"]
                work[row].append(work_of(spans, number, kind, text))
        rows: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for each in behind["lanes"]:
            rows[each["row"]].append(each)
        before = ""  # the kind of the row above
        for row, lanes in sorted(rows.items()):
            kind = lanes[0]["kind"]
            queue = behind["queues"][kind]
            if kind != before and any(queue[QUEUED]):
                yield from self.area(WAITS_FOR[kind], queue, QUEUED, max(2, *queue[QUEUED]), "queue")
            before = kind
            lives = [self.life(each) for each in lanes]
            name = name_of([each["name"] for each in lanes], "one after another")
            yield DrawnLane(name, [*lives, *self.drawn(work[row])])

    def life(self, lane: dict[str, Any]) -> LaneSpan:
        """Return the time in which an engine or a connection to a database lives."""
        ended = self.document["duration"] if lane["ended"] is None else lane["ended"]
        return LaneSpan(lane["began"] * self.px_per_micro, ended * self.px_per_micro, "free", "")

    def drawn(self, work: Iterable[Work]) -> list[LaneSpan]:
        """Return the spans to draw: the wide ones as they are, after one for each column of narrow ones.

        The narrow spans of a column would be too many to draw. The span in their place has the kind that took most
        of the time, and is as high as the part of the column that all of them fill.
        """
        wide: list[LaneSpan] = []
        columns: dict[int, Counter[str]] = defaultdict(Counter)
        for each in work:
            left, right = each.begin * self.px_per_micro, each.end * self.px_per_micro
            if right - left >= COLUMN_PX:
                wide.append(LaneSpan(left, right, each.kind, each.tip))
            else:
                columns[int(left // COLUMN_PX)][each.kind] += each.end - each.begin
        narrow = []
        for column, micros in columns.items():
            [(kind, _)] = micros.most_common(1)
            part = micros.total() * self.px_per_micro / COLUMN_PX
            left = column * COLUMN_PX
            narrow.append(LaneSpan(left, left + COLUMN_PX, kind, "", min(max(part, LEAST_PART), 1.0)))
        return [*narrow, *wide]

    def area(
        self, name: str, numbers: dict[str, list[int]], state: str, most: int, kind: str
    ) -> list[DrawnLane]:
        """Return the lanes of an area: the last one has it. It shows the mean of each column, as on the page.

        numbers: the column `time`, in microseconds, and the column `state` with the number from then on. most: the
        number at full height. kind: of a LaneArea.
        """
        times, counts = numbers["time"], numbers[state]
        means: dict[int, float] = defaultdict(float)
        ends = [*times[1:], self.document["duration"]][: len(times)]  # there may be no step at all
        for begin, end, count in zip(times, ends, counts, strict=True):
            left, right = begin * self.px_per_micro / COLUMN_PX, end * self.px_per_micro / COLUMN_PX
            for column in range(int(left), int(right) + 1) if count else ():
                means[column] += count * max(min(right, column + 1) - max(left, column), 0.0)
        lanes = [DrawnLane("") for _ in range(AREA_ROWS)]
        highest = max(counts, default=0)
        lanes[0].name, lanes[1].name = name, f"up to {highest:,}"
        if means:
            heights = [round(means.get(column, 0.0) / most * AREA_PX, 1) for column in range(max(means) + 1)]
            lanes[-1].areas = [LaneArea(outline(heights), kind, f"{name}: {highest:,} at most")]
        return lanes

    def refusals(self) -> list[LaneMark]:
        """Return a mark for each refused connection, unless it would cover the one before."""
        marks: list[LaneMark] = []
        for each in self.document["refusals"]:
            x = each["time"] * self.px_per_micro
            if not marks or x - marks[-1].x >= MARK_PX:
                marks.append(
                    LaneMark(x, "end", f"{duration_of_micros(each['time'])}: refused {each['text']}")
                )
        return marks

    def moments(self) -> Iterator[LaneMoment]:
        """Yield a line at the begin of each moment, labelled by its number; moments at one place share a label."""
        before: LaneMoment | None = None
        for number, moment in enumerate(self.document["moments"], 1):
            x = moment["begin"] * self.px_per_micro
            tip = f"{duration_of_micros(moment['begin'])}: {moment['text']}"
            if before is not None and x - before.x < MARK_PX:
                before = before._replace(label=f"{before.label}, {number}", tip=f"{before.tip} {tip}")
                continue
            if before is not None:
                yield before
            before = LaneMoment(x, "quiet", str(number), tip)
        if before is not None:
            yield before


def counts(document: dict[str, Any], state: str) -> list[int]:
    """Return the column of a state. The connections in the backlog stand above those in the queue."""
    numbers = document["queue"]
    if state != QUEUED:
        return list(numbers[state])
    return [queued + backlog for queued, backlog in zip(numbers[QUEUED], numbers[BACKLOG], strict=True)]


def work_of(spans: dict[str, list[Any]], number: int, kind: str, text: str) -> Work:
    """Return a span of the columns `spans`. text: its connection, or its script."""
    begin, end = spans["begin"][number], spans["end"][number]
    tip = f"{duration_of_micros(begin)}, for {duration_of_micros(end - begin)}: {text}"
    return Work(begin, end, kind, tip)


def outline(heights: Sequence[float]) -> list[tuple[float, float]]:
    """Return the points of a LaneArea. heights: of each column, in pixels.

    The first point is the left end of the area, with height 0. Each other one is the right end of a stretch of
    equal columns, with their height: [5, 5, 2] becomes (0, 0), (2 columns, 5), (3 columns, 2).
    """
    points = [(0.0, 0.0)]
    for column, high in enumerate(heights, 1):
        if points[-1][1] == high:  # the stretch goes on: the new point replaces the last one
            points.pop()
        points.append((float(column * COLUMN_PX), high))
    return points


def kind_of(state: str, want: str) -> str:
    """Return the kind of a span of a worker, as a name of lanes.KINDS."""
    if state in (BUSY, SENDS):
        return state
    return "client" if want in OF_CLIENT else "other"


def name_of(names: Sequence[str], several: str) -> str:
    """Return the name of a lane. several: a word for more than one name."""
    return names[0] if len(names) == 1 else f"{len(names)} {several}"
