"""The picture that stands still has the lanes, the kinds and the moments of the page, and a limited size."""

from __future__ import annotations

from collections import Counter
from typing import Any
from xml.etree import ElementTree

import pytest
from made_traces import ALL, MAIN, MadeTrace, Visitor, made, many
from test_behind import story

from ewe_explore.lanes import PLAIN, DrawnLane, LanePicture, LaneSpan
from ewe_watch.document import document
from ewe_watch.events import parse
from ewe_watch.picture import (
    AREA_PX,
    COLUMN_PX,
    LANES_PX,
    LEAST_PART,
    TraceDrawing,
    Work,
    lane_pictures,
    svg_of,
)
from ewe_watch.story import story_of_events


def numbers(trace: MadeTrace) -> dict[str, Any]:
    """Return the document of a trace."""
    return document(story_of_events(map(parse, trace.text().splitlines())), "a.trace")


def lanes_of(picture: LanePicture) -> dict[str, DrawnLane]:
    """Return the lanes with a name."""
    return {lane.name: lane for lane in picture.lanes if lane.name}


def test_the_collapse_of_a_pool() -> None:
    found = numbers(made("pool, never"))
    [picture] = lane_pictures([found])
    lanes = lanes_of(picture)
    workers = [f"worker {number}" for number in range(1, 6)]
    assert list(lanes) == ["queue", "up to 13", *workers]
    # The queue is at its full height for 3.5 s
    px_per_s = LANES_PX / (found["duration"] / 1e6)
    [area] = picture.lanes[2].areas
    widths = {high: x - before for (before, _), (x, high) in zip(area.points, area.points[1:], strict=False)}
    assert max(widths) == AREA_PX and widths[AREA_PX] == pytest.approx(3.5 * px_per_s, abs=2 * COLUMN_PX)
    # Each worker stands still for ten seconds
    for name in workers:
        longest = max(
            (span for span in lanes[name].spans if span.kind != "free"), key=lambda s: s.end - s.begin
        )
        assert longest.kind == "client" and longest.end - longest.begin == pytest.approx(10 * px_per_s, abs=1)
    # Two moments begin at 1.1 s, and two at 7.5 s
    assert [line.label for line in picture.moments] == ["1, 2", "3, 4"]


@pytest.mark.parametrize("model", ALL)
def test_the_work_of_a_lane_is_that_of_the_trace(model: str) -> None:
    found = numbers(made(model))
    [picture] = lane_pictures([found])
    spans, px = found["spans"], LANES_PX / found["duration"]
    drawn = Counter[str]()
    for lane in picture.lanes:
        for span in lane.spans:
            drawn[span.kind] += round((span.end - span.begin) * span.part)
            assert 0 <= span.begin <= span.end <= LANES_PX + COLUMN_PX and LEAST_PART <= span.part <= 1
    waits = [
        (end - begin) * px
        for begin, end, worker, state in zip(
            spans["begin"], spans["end"], spans["worker"], spans["state"], strict=True
        )
        if worker >= 0 and state == "waits"
    ]
    assert drawn["client"] == pytest.approx(sum(waits), abs=COLUMN_PX * (1 + len(waits)))


def test_narrow_spans_share_a_column() -> None:
    """They become one span of the kind with most of their time, as high as their part of the column."""
    drawing = TraceDrawing({}, LANES_PX, COLUMN_PX / 200, {})  # a column is 200 microseconds
    work = [
        Work(0, 100, "busy", "a"), Work(100, 140, "client", "b"), Work(400, 410, "busy", "c"),
        Work(600, 900, "client", "d"),
    ]  # fmt: skip
    assert drawing.drawn(work) == [
        LaneSpan(0, COLUMN_PX, "busy", "", pytest.approx(0.7)),
        LaneSpan(2 * COLUMN_PX, 3 * COLUMN_PX, "busy", "", LEAST_PART),
        LaneSpan(3 * COLUMN_PX, 4.5 * COLUMN_PX, "client", "d"),
    ]


def test_a_long_trace_has_a_picture_of_limited_size() -> None:
    found = numbers(many(60_000))
    assert len(found["spans"]["begin"]) > 20_000
    [picture] = lane_pictures([found])
    columns = LANES_PX / COLUMN_PX
    assert all(len(lane.spans) <= 2 * columns for lane in picture.lanes)
    assert len(svg_of([found])) < 1_000_000


@pytest.mark.parametrize("event", ["closed 1.1 1/2 ", "answered 1.1 1/2 200 files", "later 1.1 1/2 what"])
def test_a_trace_without_a_step_of_the_queue_has_a_picture(event: str) -> None:
    """Such as the end of a trace whose beginning was cut."""
    found = document(story_of_events([parse(f"1.0 {event}")]), "a.trace")
    assert svg_of([found]).startswith("<svg")


def test_parked_and_refused_connections() -> None:
    trace = made("pool, always")
    for at in (3.0, 3.001, 9.0):
        trace.say(at, "refused", "-", MAIN, "192.0.2.1 max-connections")
    [picture] = lane_pictures([numbers(trace)])
    assert "parked" in lanes_of(picture)
    areas = [area for lane in picture.lanes for area in lane.areas]
    assert PLAIN in {area.kind for area in areas}
    marks = [mark for lane in picture.lanes for mark in lane.marks]
    assert [mark.tip for mark in marks] == [  # the second one would cover the first
        "3.00 s: refused 192.0.2.1 max-connections",
        "9.00 s: refused 192.0.2.1 max-connections",
    ]


def test_engines_and_databases_have_lanes_and_queues() -> None:
    [picture] = lane_pictures([document(story(), "x")])
    lanes = lanes_of(picture)
    assert [name for name in lanes if name[:5] != "up to"] == [
        "queue", "parked", "worker 1", "wait for an engine", "alice: python", "bob: perl", "wait for a database",
        "log",
    ]  # fmt: skip
    assert {span.kind for span in lanes["bob: perl"].spans} == {"free", "engine"}
    assert {span.kind for span in lanes["log"].spans} == {"free", "database"}


def test_two_traces_have_one_axis_and_one_file() -> None:
    short = made("event", [Visitor(0.1)])
    documents = [numbers(made("pool, never")), numbers(short)]
    first, second = lane_pictures(documents)
    assert first.ticks == second.ticks and first.width == second.width
    assert max(span.end for lane in second.lanes for span in lane.spans) < LANES_PX / 20
    root = ElementTree.fromstring(svg_of(documents))
    words = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "pool: a pool of 5 threads, parking never (a.trace)" in words
    assert "asyncio: one event loop (a.trace)" in words
    assert any(str(each).startswith("1: Worker 3 stood still for 10.0 s") for each in words)
    assert words.count("stands still: waits for its client") == 1  # one legend for both


def test_the_lives_of_workers_are_the_ground_of_their_lanes() -> None:
    trace = MadeTrace("pool 1..2 threads")
    for worker, began, ended in (("7120/8", 0.0, 10.0), ("7120/9", 4.0, 6.0)):
        trace.say(began, "begins", "-", worker)
        trace.say(ended, "ends", "-", worker)
    [picture] = lane_pictures([numbers(trace)])
    px = LANES_PX / 10
    assert [(lane.name, *lane.spans[0][:3]) for lane in picture.lanes] == [
        ("worker 1", 0, pytest.approx(10 * px), "free"),
        ("worker 2", pytest.approx(4 * px), pytest.approx(6 * px), "free"),
    ]


def test_many_short_lives_of_a_row_have_a_limited_size() -> None:
    drawing = TraceDrawing({}, LANES_PX, 1.0, {})
    lives = drawing.lives([{"began": each, "ended": each + 1} for each in range(10_000)])
    assert lives == [LaneSpan(0, 10_000, "free", "")]
