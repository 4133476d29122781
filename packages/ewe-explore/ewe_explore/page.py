"""The timeline as a page: one file of HTML with its style inside, for a browser, a lecture or a report.

Wide windows show a column for each thread. Narrow ones show the threads as rails on the left, as a history of
commits is drawn, and the words beside them. This module decides what stands where, and templates/story.html.j2
writes it.

Read next: pages.py, which has the templates, and cli.py.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from typing import NamedTuple

from ewe_explore.explain import Event, Story
from ewe_explore.pages import render
from ewe_explore.scheduler import short

CONTEXT = 3  # lines of source around a line that takes part
WHOLE = 70  # a file of so many lines is shown whole
DOT = 0.8  # rem: the room of a thread's dot before a line of source


class Rail(NamedTuple):
    """A piece of a thread's line, in one row. state: on, waits or "". dot: the class of its dot, "" without one."""

    lane: int
    column: int
    state: str
    dot: str


class Row(NamedTuple):
    """A row of the timeline. kind: as of an Event. column, span: of its step, or of the arrow of a switch."""

    kind: str
    text: str
    line: int = 0
    lane: int = 0
    rails: tuple[Rail, ...] = ()
    column: int = 0
    span: int = 0
    shape: str = ""
    arrow: str = ""


class Line(NamedTuple):
    """A line of source. kind: bad, hit or nothing. lanes: the threads that came here."""

    number: int
    text: str
    kind: str
    lanes: list[int]


class Listing(NamedTuple):
    """The source of a file. lines: None where some are left out. width: of the dots before each line, in rem."""

    name: str
    lines: list[Line | None]
    width: str


def page(story: Story, title: str) -> str:
    """Return a story as a whole page."""
    used = sorted({event.lane for event in story.events})
    return render(
        "ewe_explore",
        "story.html.j2",
        title=f"{title}: {story.headline}",
        name=title,
        headline=capital(story.headline, story.lanes),
        why=[text.split("`") for text in story.why],
        facts=[(key, value) for key, value in story.facts.items() if key != "command"],
        command=story.facts.get("command", ""),
        names=story.lanes,
        lanes=used,
        rows=rows(story, {lane: place for place, lane in enumerate(used)}),
        sentences=[told(story, text) for text in story.sentences],
        listings=[found for file in story.files if (found := listing(story, file)) is not None],
    )


def capital(text: str, names: list[str]) -> str:
    """Return a headline with a capital letter, unless it begins with a thread's name."""
    return text if text.startswith(tuple(names)) else text[:1].upper() + text[1:]


def told(story: Story, text: str) -> tuple[int, str, str]:
    """Return a sentence: number and name of the thread that it begins with ("" if there is none), and the rest."""
    for number, name in enumerate(story.lanes):
        if text.startswith(name + " "):
            return number, name, text[len(name) :]
    return 0, "", text


def rows(story: Story, places: dict[int, int]) -> Iterator[Row]:
    """Yield the rows of the timeline. places: of the lanes, from left to right."""
    states = dict.fromkeys(places, "")
    for event in story.events:
        if event.kind in ("fail", "gap"):
            yield Row(event.kind, event.text)
            continue
        for lane in states:
            if states[lane] == "on":
                states[lane] = ""
        states[event.lane] = "on"
        yield stop(event, places, states, story) if event.kind == "stop" else step(event, places, states)
        states[event.lane] = "waits" if event.kind in ("wait", "stop") else ""


def rails(event: Event, places: dict[int, int], states: dict[int, str]) -> Iterator[Rail]:
    """Yield the cells of a row: a piece of each lane's line."""
    for lane, place in places.items():
        here = lane == event.lane and event.kind != "stop"
        state = "on" if here else states[lane].replace("on", "")
        yield Rail(lane, place + 2, state, shape(event) if here else "")


def shape(event: Event) -> str:
    """Return the class of an event's dot."""
    return "wait" if event.kind == "wait" else "write" if event.writes else "read"


def step(event: Event, places: dict[int, int], states: dict[int, str]) -> Row:
    """Return the row of a step."""
    cells = tuple(rails(event, places, states))
    column = places[event.lane] + 2
    return Row(event.kind, event.text, event.line, event.lane, cells, column, shape=shape(event))


def stop(event: Event, places: dict[int, int], states: dict[int, str], story: Story) -> Row:
    """Return the row of a switch: an arrow from the lane that is stopped to the one that goes on."""
    here, there = places[event.lane], places.get(event.other, places[event.lane])
    return Row(
        "stop",
        f"{story.lanes[event.lane]} {event.text}",
        event.line,
        event.lane,
        tuple(rails(event, places, states)),
        min(here, there) + 2,
        abs(here - there) + 1,
        arrow="right" if there > here else "left",
    )


def listing(story: Story, file: str) -> Listing | None:
    """Return the source of a file, with the lines that take part; None if it cannot be read."""
    lines = [line.rstrip("\n") for line in linecache.getlines(file)]
    if not lines:
        return None
    hits = story.files[file]
    last = story.events[-1]
    shown = set(range(1, len(lines) + 1))
    if len(lines) > WHOLE:
        shown = {near for line in hits for near in range(line - CONTEXT, line + CONTEXT + 1)} & shown
    users: dict[int, list[int]] = {}
    for event in story.events:
        if event.file == file and event.kind != "fail" and event.lane not in users.setdefault(event.line, []):
            users[event.line].append(event.lane)
    found: list[Line | None] = []
    before = 0
    for number in sorted(shown):
        if number != before + 1:
            found.append(None)
        before = number
        kind = "bad" if (last.file, last.line) == (file, number) else "hit" if number in hits else ""
        found.append(Line(number, lines[number - 1], kind, users.get(number, [])))
    width = max((len(lanes) for lanes in users.values()), default=0)
    return Listing(short(file), found, f"{width * DOT:.1f}")
