"""The file for Perfetto has the fields that the Trace Event Format documents for each phase."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest
from made_traces import ALL, made

from ewe_watch.events import parse
from ewe_watch.perfetto import perfetto
from ewe_watch.story import story_of_events

# Phase -> the fields that it must have
FIELDS = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "b": {"name", "cat", "id", "pid", "tid", "ts"},
    "e": {"name", "cat", "id", "pid", "tid", "ts"},
    "C": {"name", "pid", "ts", "args"},
    "i": {"name", "pid", "tid", "ts", "s"},
}


def assert_nested(spans: list[tuple[int, int]]) -> int:
    """Assert that the (begin, end) of a thread nest, or follow each other, in this order; return the depth."""
    open_ends: list[int] = []
    depth = 0
    for begin, end in sorted(
        spans, key=lambda span: span[0]
    ):  # stable: of equal begins, the outer one is first
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], (begin, end, open_ends)
        open_ends.append(end)
        depth = max(depth, len(open_ends))
    return depth


@pytest.mark.parametrize("model", ALL)
def test_each_event_has_the_documented_fields(model: str) -> None:
    trace = made(model)
    trace.say(1.0, "refused", "-", "7120/7120", "192.0.2.1 max-connections")
    story = story_of_events(map(parse, trace.text().splitlines()))
    document = json.loads(json.dumps(perfetto(story)))
    assert document["displayTimeUnit"] in ("ms", "ns")
    lanes, pairs = defaultdict(list), defaultdict(list)
    for event in document["traceEvents"]:
        assert event.keys() >= FIELDS[event["ph"]], event
        assert all(isinstance(event.get(name, 0), int) for name in ("pid", "tid", "ts", "dur")), event
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in "be":
            pairs[event["cat"], event["id"]].append(event["ph"])
    assert {event["ph"] for event in document["traceEvents"]} == set(FIELDS)
    for spans in lanes.values():
        assert_nested(spans)
    assert all(phases == ["b", "e"] for phases in pairs.values())
    names = {event["args"]["name"] for event in document["traceEvents"] if event["name"] == "thread_name"}
    assert len(names) == len(lanes) == len(story.lanes())


CHILD = """1.0 model - 7/7 fork a process per connection
2.0 begins - 8/8{space}
2.1 accepted 8.1 8/8 127.0.0.1:5
2.1 runs 8.1 8/8{space}
2.5 ended 8.1 8/8 the client closes
2.6 ends - 8/8{space}
3.0 begins - 9/9{space}
3.1 x-engine - 6/6 6.1 alice python
3.2 x-request 6.1 6/6 - alice python /a.py
3.2 x-runs 6.1 6/6 6.1
3.4 x-answered 6.1 6/6 ok
3.5 x-ended - 6/6 6.1 idle
4.0 accepted 9.1 9/9 127.0.0.1:6
"""


def test_the_life_of_a_child_and_of_an_engine_encloses_its_work() -> None:
    story = story_of_events(map(parse, CHILD.format(space=" ").splitlines()))
    events = perfetto(story)["traceEvents"]
    lives = {event["name"]: event for event in events if event.get("cat") == "life"}
    assert {name: (each["ts"], each["dur"], each["args"]) for name, each in lives.items()} == {
        "life of worker 1": (2_000_000, 600_000, {"goes on": False}),
        "life of worker 2": (3_000_000, 1_000_000, {"goes on": True}),
        "life of alice: python": (3_100_000, 400_000, {"goes on": False}),
    }
    assert (lives["life of worker 1"]["pid"], lives["life of worker 1"]["tid"]) == (8, 8)
    for name in ("life of worker 1", "life of alice: python"):
        at = lives[name]["pid"], lives[name]["tid"]
        spans = [
            (event["ts"], event["ts"] + event["dur"])
            for event in events
            if event["ph"] == "X" and (event["pid"], event["tid"]) == at
        ]
        assert assert_nested(spans) == 2


def test_a_life_begins_with_work_that_a_damaged_trace_has_before_it() -> None:
    """The event `begins` was lost, and that of the next worker of the same number was not."""
    lines = ["1.0 model - 7/7 fork a", "2.0 accepted 8.1 8/8 a", "2.1 runs 8.1 8/8 ", "2.5 ended 8.1 8/8 a",
             "3.0 begins - 8/8 ", "3.2 ends - 8/8 "]  # fmt: skip
    (life,) = (
        each
        for each in perfetto(story_of_events(map(parse, lines)))["traceEvents"]
        if each.get("cat") == "life"
    )
    assert (life["ts"], life["dur"]) == (2_100_000, 1_100_000)
