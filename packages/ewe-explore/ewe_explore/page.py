"""The timeline as a page: one file of HTML that contains its style, for a browser, a lecture or a report.

A picture shows which thread runs at each step, and which ones wait. Below it, a table has the steps in words, with
a column for each thread. The numbers of the steps join the two. This module computes the lanes, the rows and the
texts; lanes.py draws the picture, as it draws those of ewe-grade, and templates/story.html.j2 writes the page.

Read next: pages.py, which loads the templates, and cli.py.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from typing import NamedTuple

from markupsafe import Markup

from ewe_explore import lanes
from ewe_explore.explain import Story, TimelineEvent
from ewe_explore.folding import fold
from ewe_explore.lanes import (
    DrawnLane,
    LaneArrow,
    LaneMark,
    LaneMoment,
    LanePicture,
    LaneSpan,
    LaneTick,
    left_of,
)
from ewe_explore.pages import prepare, render
from ewe_explore.scheduler import base_name
from ewe_explore.wording import whole_name

CONTEXT_LINES = 3  # lines of source to show around a line of an event
MAX_WHOLE_LINES = 70  # a longer file is shown in part: the lines around the events
COLOUR_COUNT = 6  # of threads, in templates/story.css
PAGE_WIDTH_PX = 1150  # the width of the page's box, in pixels
MIN_COLUMN_PX, MAX_COLUMN_PX = 18, 80  # widths of a step
MIN_TICK_PX = 36  # the least distance of two numbers of steps
RUNS, WAITS, STOPPED = "busy", "other", "queue"  # kinds of spans
SHAPES = {"read": "open", "write": "dot", "wait": "square"}
LEGEND = (
    (RUNS, "runs"), (STOPPED, "is stopped, and could go on"), (WAITS, "waits for another thread"),
    ("arrow", "another thread gets the turn"), ("open", "a step"), ("dot", "writes a shared variable"),
    ("square", "begins to wait"), ("line event", "the program fails"),
)  # fmt: skip
DOT_REM = 0.8  # rem: the width of a thread's dot before a line of source

prepare()  # the explorer imports this module before it explores a program


class TimelineRow(NamedTuple):
    """A row of the table. kind: the kind of a TimelineEvent. number: of the step in the picture; 0: none."""

    kind: str
    text: str
    number: int = 0
    line: int = 0
    lane: int = 0
    shape: str = ""


class SourceLine(NamedTuple):
    """A line of source. kind: "bad", "hit" or "". lanes: the threads that executed the line."""

    number: int
    text: str
    kind: str
    lanes: list[int]


class SourceListing(NamedTuple):
    """The source of a file. lines: None marks a gap. width: the width of the dots before each line, in rem."""

    name: str
    lines: list[SourceLine | None]
    width: str


def page(story: Story, title: str) -> str:
    """Return a story as a whole page."""
    shown = fold(story)  # its events have the numbers of those of the story
    used = sorted({event.lane for event in shown.events})
    drawn = picture(shown, used)
    whole = picture(story, sorted({event.lane for event in story.events})).svg() if story.folded else ""
    return render(
        "ewe_explore",
        "story.html.j2",
        title=f"{title}: {story.headline}",
        name=title,
        headline=capital(story.headline, story.lanes),
        why=[text.split("`") for text in story.why],
        facts=[(key, value) for key, value in story.facts.items() if key != "command"],
        command=story.facts.get("command", ""),
        names=shown.lanes,
        lanes=used,
        folded=f"{shown.lanes[-1]}: {story.folded_states}" if story.folded else "",
        whole=Markup(whole),
        style=Markup(lanes.style()),
        picture=Markup(lanes.definitions() + drawn.svg()),  # lanes.py escapes its texts
        legend=Markup(lanes.legend(LEGEND)),
        rows=list(rows(shown)),
        sentences=[split_name(story, text) for text in story.sentences],
        listings=[found for file in story.files if (found := listing(shown, file)) is not None],
    )


def capital(text: str, names: list[str]) -> str:
    """Return a headline with a capital letter, unless it begins with a thread's name."""
    begins_with_name = any(whole_name(name).match(text) for name in names)
    return text if begins_with_name else text[:1].upper() + text[1:]


def split_name(story: Story, text: str) -> tuple[int, str, str]:
    """Split a sentence into the number and name of the thread at its beginning ("" without one), and the rest.

    If several names match, the longest one counts: "worker 1 waits" is about "worker 1", not about "worker".
    """
    matching = [each for each in enumerate(story.lanes) if text.startswith(each[1] + " ")]
    if not matching:
        return 0, "", text
    number, name = max(matching, key=lambda each: len(each[1]))
    return number, name, text[len(name) :]


def rows(story: Story) -> Iterator[TimelineRow]:
    """Yield the rows of the table below the picture."""
    number = 0
    for event in story.events:
        # The failure, and a gap where rows are left out, are no steps: they have no number in the picture
        if event.kind in ("fail", "gap"):
            yield TimelineRow(event.kind, event.text)
            continue
        number += 1
        text = f"{story.lanes[event.lane]} {event.text}" if event.kind == "stop" else event.text
        yield TimelineRow(event.kind, text, number, event.line, event.lane, shape(event))


def shape(event: TimelineEvent) -> str:
    """Return the class of an event's mark."""
    return "wait" if event.kind == "wait" else "write" if event.writes else "read"


class OpenSpan(NamedTuple):
    """A span of a lane that goes on. begin: x of its left end, in pixels. kind: as in LaneSpan, or "" for none."""

    begin: float
    kind: str


class ThreadLanes:
    """The lanes of a story while its events are told. used: the threads that are shown."""

    def __init__(self, story: Story, used: list[int]) -> None:
        self.lanes = {each: DrawnLane(story.lanes[each], colour=f"l{each % COLOUR_COUNT}") for each in used}
        self.open_spans: dict[int, OpenSpan] = {}  # by the number of the lane

    def begin(self, lane: int, x: float, kind: str) -> None:
        """End the span of a lane, and begin another one at x, unless the span is of this kind; kind "": none."""
        before = self.open_spans.get(lane, OpenSpan(x, ""))
        if before.kind == kind:
            return
        if before.kind:
            self.lanes[lane].spans.append(LaneSpan(before.begin, x, before.kind, ""))
        self.open_spans[lane] = OpenSpan(x, kind)

    def turn(self, lane: int, x: float) -> None:
        """Give a lane the turn; the span of the lane that has had it ends."""
        for other, span in list(self.open_spans.items()):
            if other != lane and span.kind == RUNS:
                self.begin(other, x, "")
        self.begin(lane, x, RUNS)


def picture(story: Story, used: list[int]) -> LanePicture:
    """Return the picture of a story: a lane for each thread of `used`, and a column for each event."""
    threads = ThreadLanes(story, used)
    lanes = list(threads.lanes.values())
    room = PAGE_WIDTH_PX - left_of((lane.name for lane in lanes), dots=True)
    column = max(MIN_COLUMN_PX, min(MAX_COLUMN_PX, room // (len(story.events) + 1)))
    width = max(column * (len(story.events) + 1), room)
    found = LanePicture("timeline of the threads", width, lanes, axis="step", page=PAGE_WIDTH_PX)
    number, x = 0, 0.0
    for index, event in enumerate(story.events):
        x = column * (index + 0.5)
        if event.kind in ("fail", "gap"):
            failed = event.kind == "fail"
            found.moments.append(
                LaneMoment(x, "event" if failed else "quiet", "✗" if failed else "⋯", event.text)
            )
            continue
        number += 1
        if not found.ticks or x - found.ticks[-1].x >= MIN_TICK_PX:
            found.ticks.append(LaneTick(x, str(number)))
        lane = threads.lanes[event.lane]
        lane.first, lane.last = lane.first or x, x  # the line of the lane: from its first event to its last
        if event.kind == "stop":
            threads.begin(event.lane, x, STOPPED)
            if event.other in used and event.other != event.lane:
                arrow = LaneArrow(x, used.index(event.lane), used.index(event.other), event.text)
                found.arrows.append(arrow)
            continue
        threads.turn(event.lane, x - column / 2)
        lane.marks.append(LaneMark(x, SHAPES[shape(event)], f"{number}: {event.text}"))
        if event.kind == "wait":
            threads.begin(event.lane, x, WAITS)
    for each in used:  # end the spans that still go on
        threads.begin(each, x, "")
    return found


def listing(story: Story, file: str) -> SourceListing | None:
    """Return the source of a file, with the lines of events marked; None if the file cannot be read.

    Before each line there is a dot for each thread that executed it.
    """
    lines = [line.rstrip("\n") for line in linecache.getlines(file)]
    if not lines:
        return None
    event_lines = story.files[file]
    last = story.events[-1]
    shown = set(range(1, len(lines) + 1))
    if len(lines) > MAX_WHOLE_LINES:
        shown = {
            near for line in event_lines for near in range(line - CONTEXT_LINES, line + CONTEXT_LINES + 1)
        } & shown
    lanes_of_line: dict[int, list[int]] = {}
    for event in story.events:
        if (
            event.file == file
            and event.kind != "fail"
            and event.lane not in lanes_of_line.setdefault(event.line, [])
        ):
            lanes_of_line[event.line].append(event.lane)
    found: list[SourceLine | None] = []
    before = 0
    for number in sorted(shown):
        if number != before + 1:
            found.append(None)
        before = number
        kind = "bad" if (last.file, last.line) == (file, number) else "hit" if number in event_lines else ""
        found.append(SourceLine(number, lines[number - 1], kind, lanes_of_line.get(number, [])))
    width = max((len(lanes) for lanes in lanes_of_line.values()), default=0)
    return SourceListing(base_name(file), found, f"{width * DOT_REM:.1f}")
