"""The file for Perfetto has the fields that the Trace Event Format documents for each phase."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest
from made_traces import ALL, made

from ewe_watch.events import parse
from ewe_watch.perfetto import perfetto
from ewe_watch.story import tell

# Phase -> the fields that it must have
FIELDS = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "b": {"name", "cat", "id", "pid", "tid", "ts"},
    "e": {"name", "cat", "id", "pid", "tid", "ts"},
    "C": {"name", "pid", "ts", "args"},
    "i": {"name", "pid", "tid", "ts", "s"},
}


@pytest.mark.parametrize("model", ALL)
def test_each_event_has_the_documented_fields(model: str) -> None:
    trace = made(model)
    trace.say(1.0, "refused", "-", "7120/7120", "192.0.2.1 max-connections")
    story = tell(map(parse, trace.text().splitlines()))
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
    for spans in lanes.values():  # spans of a thread nest, or follow each other
        assert all(
            end <= begin for (_, end), (begin, _) in zip(sorted(spans), sorted(spans)[1:], strict=False)
        )
    assert all(phases == ["b", "e"] for phases in pairs.values())
    names = {event["args"]["name"] for event in document["traceEvents"] if event["name"] == "thread_name"}
    assert len(names) == len(lanes) == len(story.lanes())
