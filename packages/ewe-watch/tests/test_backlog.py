"""The wait in the kernel's backlog, which the event `accepted` tells: in the story, in numbers and in pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
from devtools import Browser
from made_traces import MAIN, STEP_S, MadeTrace, Visitor

from ewe_watch import cli
from ewe_watch.document import document
from ewe_watch.events import accepted_client, read
from ewe_watch.moments import moments
from ewe_watch.perfetto import trace_events
from ewe_watch.picture import svg_of
from ewe_watch.story import BACKLOG, TraceStory, story_of_events

CLIENTS = 5
WORK_S = 1.0


def serial(directory: Path, *, told: bool = True) -> Path:
    """Write the trace of a serial server: five clients come at 0.5 s, and each is served for a second.

    told: whether the server's system says how long a connection was in the backlog.
    """
    trace = MadeTrace("serial one connection at a time")
    free_at = 0.5
    for number in range(1, CLIENTS + 1):
        name, wait_s = f"7120.{number}", free_at - 0.5
        more = f" backlog={wait_s:.3f}" if told else ""
        trace.say(free_at, "accepted", name, MAIN, f"127.0.0.1:{40000 + number}{more}")
        visitor = Visitor(free_at, work=WORK_S)
        free_at = trace.talk(name, visitor, free_at + STEP_S, MAIN, free_at)
    return trace.write(directory / f"serial-{told}.trace")


def story_of(path: Path) -> TraceStory:
    return story_of_events(read(path))


@pytest.fixture(scope="module")
def chromium(one_chromium: Browser) -> Iterator[Browser]:
    with one_chromium.fresh() as page:
        yield page


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:40112 backlog=0.500", ("127.0.0.1:40112", 0.5)),
        ("127.0.0.1:40112", ("127.0.0.1:40112", None)),
        ("::1:40112 backlog=0.000", ("::1:40112", 0.0)),
        ("port 40112", ("port 40112", None)),
        ("unix::0", ("unix::0", None)),
        ("127.0.0.1:1 backlog=nan", ("127.0.0.1:1 backlog=nan", None)),
    ],
)
def test_the_parts_of_the_event(text: str, parts: tuple[str, float | None]) -> None:
    assert accepted_client(text) == parts


def test_four_of_five_clients_are_in_the_backlog_of_a_serial_server(tmp_path: Path) -> None:
    story = story_of(serial(tmp_path))
    spans = [span for span in story.all_spans() if span.state == BACKLOG]
    assert sorted(round(span.end - span.begin) for span in spans) == [1, 2, 3, 4]
    assert {round(span.begin - story.began, 3) for span in spans} == {0.5}
    assert all(not span.worker for span in spans)
    depths = [depth for depth, _ in groupby(step.backlog for step in story.all_steps())]
    assert depths[depths.index(4) :] == [4, 3, 2, 1, 0] and max(depths) == 4
    arrived = [each.arrived or 0 for each in story.connections.values()]
    assert all(abs(each - arrived[0]) < 0.002 for each in arrived)


def test_a_wait_below_a_tick_of_the_kernel_is_none(tmp_path: Path) -> None:
    trace = MadeTrace("serial")
    trace.say(0.5, "accepted", "7120.1", MAIN, "127.0.0.1:1 backlog=0.008")
    trace.say(0.5, "runs", "7120.1", MAIN)
    story = story_of(trace.write(tmp_path / "trace"))
    (connection,) = story.connections.values()
    assert connection.backlog_s == 0.008 and connection.arrived == connection.accepted
    assert BACKLOG not in {span.state for span in story.all_spans()}


def test_a_wait_that_began_before_the_trace_begins_with_it(tmp_path: Path) -> None:
    trace = MadeTrace("serial")
    trace.say(0.5, "accepted", "7120.1", MAIN, "127.0.0.1:1 backlog=3.000")
    story = story_of(trace.write(tmp_path / "trace"))
    assert [span.begin for span in story.spans] == [story.began]
    assert story.connections["7120.1"].backlog_s == 3.0


def test_the_numbers_have_the_wait(tmp_path: Path) -> None:
    found = document(story_of(serial(tmp_path)), "serial")
    connections = found["connections"]
    assert [round(each["backlog"] / 1e6) for each in connections] == [0, 1, 2, 3, 4]
    assert connections[4]["accepted"] - connections[4]["arrived"] == connections[4]["backlog"]
    assert max(found["queue"]["backlog"]) == 4
    assert [each["address"] for each in connections[:1]] == ["127.0.0.1:40001"]


def test_a_trace_that_does_not_say_it_has_none(tmp_path: Path) -> None:
    found = document(story_of(serial(tmp_path, told=False)), "serial")
    assert {each["backlog"] for each in found["connections"]} == {None}
    assert not any(found["queue"]["backlog"])
    assert "not accepted yet" not in svg_of([found])


def test_the_moments_count_it(tmp_path: Path) -> None:
    found = {each.kind: each for each in moments(story_of(serial(tmp_path)))}
    assert found["queue-wait"].text == "Connection 5 waited 4.00 s in the backlog."
    assert found["deepest-queue"].text == "4 connections waited for a worker at once, for 1.00 s."
    assert "5.00 s after it came. 4.00 s of them it was in the backlog." in found["served-last"].text


def test_a_wait_in_both_queues_is_one_wait(tmp_path: Path) -> None:
    trace = MadeTrace("pool")
    trace.say(3, "accepted", "7120.1", MAIN, "127.0.0.1:1 backlog=2.000")
    trace.say(4, "runs", "7120.1", "7120/7131")
    found = {each.kind: each for each in moments(story_of(trace.write(tmp_path / "trace")))}
    assert found["queue-wait"].text == "Connection 1 waited 2.00 s in the backlog, then 1.00 s in the queue."
    assert found["queue-wait"].end - found["queue-wait"].begin == pytest.approx(3)


def test_perfetto_has_a_counter_and_a_pair_for_each_wait(tmp_path: Path) -> None:
    events = list(trace_events(story_of(serial(tmp_path))))
    assert max(each["args"]["backlog"] for each in events if each["ph"] == "C") == 4
    pairs = [each for each in events if each.get("cat") == BACKLOG]
    assert [each["ph"] for each in pairs] == ["b", "e"] * 4
    assert {each["name"] for each in pairs} >= {"connection 5 is in the backlog"}


def test_the_picture_for_a_slide_has_an_area(tmp_path: Path) -> None:
    text = svg_of([document(story_of(serial(tmp_path)), "serial")])
    assert "not accepted yet" in text and "waiting: 4 at most" in text


@pytest.mark.starts_processes
def test_the_page_shows_it(tmp_path: Path, chromium: Browser) -> None:
    """The table, the tip over the area, and the sentence of the replay: four clients wait while one is served."""
    page = tmp_path / "page.html"
    assert cli.main([str(serial(tmp_path)), "-o", str(page)]) == 0
    chromium.open(page)
    assert not chromium.errors
    assert "in the kernel's backlog, not accepted yet" in chromium.run("byId('legend').textContent")
    table = chromium.run("document.querySelectorAll('#tables table')[1].innerText")
    waits = re.findall(r"127\.0\.0\.1:\d+\s+[\d.]+ m?s\s+(< 10 ms|[\d.]+ s)", table)
    assert waits == ["< 10 ms", "1.00 s", "2.00 s", "3.00 s", "4.00 s"]
    assert (
        chromium.run("countsAt(traces[0], 1e6, 'backlog')[0]")
        == "4 in the kernel's backlog, not accepted yet"
    )
    chromium.run("go(1e6)")
    assert "4 in the backlog, 0 in the queue" in chromium.run("byId('now').textContent")
    assert not chromium.errors
