"""Folding: one lane for the threads that do not explain a failure.

A program with 40 clients would draw 40 lanes, and the two lanes that matter would be far apart. explain.py chooses
the lanes to fold. This module makes the story that a timeline draws: the steps of the folded lanes are in one lane,
each with the name of its thread.

Read next: timeline.py and page.py, which draw it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from ewe_explore.explain import Story, TimelineEvent
from ewe_explore.wording import listed

MAX_SERIES = 3  # the longest series of steps of folded lanes that a terminal shows


def fold(story: Story) -> Story:
    """Return a story with one lane in place of its folded lanes; the story itself if it has none.

    The lane has the highest number. The number and the order of the events stay the same.
    """
    if not story.folded:
        return story
    lane = len(story.lanes)
    events = [
        replace(event, lane=lane, text=f"{story.lanes[event.lane]} {event.text}")
        if event.lane in story.folded and event.kind in ("step", "wait")
        else replace(event, lane=lane if event.lane in story.folded else event.lane)
        for event in story.events
    ]
    return replace(story, lanes=[*story.lanes, label(story)], events=events)


def label(story: Story) -> str:
    """Return the name of the lane of the folded threads."""
    return f"{len(story.folded)} other threads"


def fold_for_terminal(story: Story) -> Story:
    """Return a folded story in which one event stands for a long series of events about folded lanes.

    Such a series consists of steps of folded lanes, or of steps with one verb by which another lane starts or joins
    folded lanes.
    """
    folded = fold(story)
    if folded is story:
        return story
    found: list[TimelineEvent] = []
    pairs = zip(story.events, folded.events, strict=True)
    for (lane, verb), group in groupby(pairs, key=lambda pair: series_of(story, pair[0])):
        series = list(group)
        if lane < 0 or len(series) <= MAX_SERIES:
            found += [event for _, event in series]
        elif verb:
            names = [before.text.removeprefix(f"{verb} ") for before, _ in series]
            found.append(replace(series[0][1], text=f"{verb} {listed(names, 2)}"))
        else:
            names = list(dict.fromkeys(story.lanes[before.lane] for before, _ in series))
            found.append(
                TimelineEvent("step", len(story.lanes), f"{len(series)} steps of {listed(names, 2)}")
            )
    name = f"{label(story)}: {story.folded_states}"
    return replace(folded, lanes=[*story.lanes, name], events=found)


def series_of(story: Story, event: TimelineEvent) -> tuple[int, str]:
    """Return the series that an event may belong to: a lane and a verb; lane -1 if it stays an event.

    All steps of folded lanes have one lane, and no verb.
    """
    if event.kind == "step" and event.step is not None and event.lane not in story.folded:
        other = getattr(event.step.target, "explored_lane", None)
        if other is not None and other.number in story.folded and event.step.verb in ("starts", "joins"):
            return event.lane, event.step.verb
    return (len(story.lanes), "") if event.lane in story.folded and event.kind != "gap" else (-1, "")
