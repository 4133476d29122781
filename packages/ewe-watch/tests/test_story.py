"""What the picture must show under each model: the workers that stand still, and the queue."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_traces import ALL, COLLAPSE, SILENT, MadeTrace, Visitor, made

import ewe_watch.story as story_module
from ewe_watch.document import document
from ewe_watch.events import parse, read
from ewe_watch.story import BUSY, PARKED, QUEUED, SENDS, WAITS, TraceStory, story_of_events


def story_of(trace: MadeTrace) -> TraceStory:
    return story_of_events(map(parse, trace.text().splitlines()))


def standing_still(story: TraceStory) -> dict[str, float]:
    """Return for how long each worker waits for clients."""
    found: dict[str, float] = {}
    for span in story.all_spans():
        if span.on_client and span.state == WAITS:
            found[span.worker] = found.get(span.worker, 0.0) + span.end - span.begin
    return found


def deepest(story: TraceStory) -> int:
    return max(step.queued for step in story.steps)


def test_the_pool_of_2006_collapses_under_six_silent_clients() -> None:
    story = story_of(made("pool, never"))
    assert len(story.lanes()) == 5
    assert (
        all(seconds >= 9.9 for seconds in standing_still(story).values()) and len(standing_still(story)) == 5
    )
    assert deepest(story) == 13  # the sixth silent client, and twelve visitors
    sixth = story.connections["7120.14"]
    [wait] = [span for span in story.spans if span.connection == sixth.name and span.state == QUEUED]
    assert wait.end - wait.begin == pytest.approx(9.9, abs=0.1)
    at = wait.begin + 1
    held = {span.worker for span in story.spans if span.state == WAITS and span.begin < at < span.end}
    assert held == {lane.worker for lane in story.lanes()}


@pytest.mark.parametrize(("model", "workers"), [("pool, always", 5), ("event", 1)])
def test_a_silent_client_that_is_parked_holds_no_worker(model: str, workers: int) -> None:
    story = story_of(made(model))
    assert len(story.lanes()) == workers
    assert standing_still(story) == {}
    assert max(step.parked for step in story.steps) >= len(SILENT)
    longest = max(span.end - span.begin for span in story.spans if span.state == QUEUED)
    assert longest < 0.05
    assert not story.occupied and not story.queued and not story.parked


@pytest.mark.parametrize("model", ["fork", "thread"])
def test_each_connection_has_its_worker(model: str) -> None:
    story = story_of(made(model))
    assert len(story.lanes()) == len(COLLAPSE)
    assert sum(seconds > 9 for seconds in standing_still(story).values()) == len(SILENT)
    detail = story.lanes()[0].detail
    assert detail == ("process 7131" if model == "fork" else "thread 7131")
    longest = max(span.end - span.begin for span in story.spans if span.state == QUEUED)
    assert longest < 0.001


@pytest.mark.parametrize(("model", "workers"), [("serial", 1), ("prefork", 5)])
def test_a_worker_that_accepts_leaves_its_queue_in_the_kernel(model: str, workers: int) -> None:
    story = story_of(made(model))
    assert len(story.lanes()) == workers
    assert deepest(story) == 1
    assert sum(standing_still(story).values()) == pytest.approx(60, abs=1)


@pytest.mark.parametrize("model", ALL)
def test_every_visitor_is_answered_once(model: str) -> None:
    story = story_of(made(model))
    visitors = [visitor for visitor in COLLAPSE if visitor not in SILENT]
    assert len(story.requests) == len(visitors)
    assert {request.line for request in story.requests} == {visitor.line for visitor in visitors}
    assert {(request.status, request.feature, request.bytes) for request in story.requests} == {
        ("200", "files", 1280)
    }
    assert all(request.first_byte < request.last_byte for request in story.requests)  # type: ignore[operator]
    assert all(connection.closed and not connection.state for connection in story.connections.values())


@pytest.mark.parametrize("model", ALL)
def test_a_worker_has_one_connection_at_a_time(model: str) -> None:
    story = story_of(made(model))
    last: dict[str, float] = {}
    for span in story.all_spans():
        assert span.begin < span.end
        if span.worker:
            assert span.begin >= last.get(span.worker, 0.0)
            last[span.worker] = span.end


def test_a_story_can_be_asked_at_each_event() -> None:
    story = TraceStory()
    lines = made("pool, never").text().splitlines()
    for line in lines[:120]:
        story.feed(parse(line))
    open_spans = [span for span in story.all_spans() if span.goes_on]
    assert {span.state for span in open_spans} <= {QUEUED, BUSY, WAITS, SENDS, PARKED}
    assert all(span.end == story.ended for span in open_spans)
    before = len(story.spans)
    for line in lines[120:]:
        story.feed(parse(line))
    assert len(story.spans) > before and not [span for span in story.all_spans() if span.goes_on]


def test_a_slow_reader_holds_its_worker() -> None:
    trace = MadeTrace("thread")
    name = trace.accept(1, Visitor(0), 0.0)
    for seconds, event, text in [(0.1, "runs", ""), (0.2, "request", "GET /"), (0.3, "answered", "200 files"),
                                 (0.4, "sends", ""), (8.4, "sent", 9000), (8.5, "ended", "")]:  # fmt: skip
        trace.say(seconds, event, name, "7120/7131", text)
    [span] = [span for span in story_of(trace).spans if span.state == SENDS]
    assert span.on_client and span.end - span.begin == pytest.approx(8)


def test_refused_and_lost_events() -> None:
    trace = MadeTrace("pool")
    trace.say(1.0, "refused", "-", "7120/7120", "192.0.2.1 max-connections")
    trace.say(1.1, "lost", "-", "7120/7120", "17")
    trace.say(1.2, "of-tomorrow", "7120.1", "7120/7120", "17")
    story = story_of(trace)
    assert [refusal.text for refusal in story.refusals] == ["192.0.2.1 max-connections"]
    assert story.lost == 17


def test_a_worker_that_takes_another_connection_has_left_the_first_one() -> None:
    """The event `parked` of the first connection is lost."""
    trace = MadeTrace("asyncio")
    for number in (1, 2):
        trace.accept(number, Visitor(number), number)
        trace.say(number + 0.1, "runs", f"7120.{number}", "7120/7120")
    story = story_of(trace)
    assert story.connections["7120.1"].state == PARKED
    assert story.occupied["7120/7120"].name == "7120.2"


def test_a_process_that_stops_frees_its_workers() -> None:
    trace = MadeTrace("prefork")
    name = trace.accept(1, Visitor(0), 0.0)
    trace.say(0.1, "runs", name, "7131/7131")
    trace.say(0.5, "stops", "-", "7131/7131")
    trace.say(0.9, "lost", "-", "7120/7120", 1)
    assert [span.end for span in story_of(trace).spans if span.worker] == [pytest.approx(8100.5)]


def test_many_short_lived_workers_share_rows() -> None:
    visitors = [Visitor(0.1 * number, work=0.15) for number in range(50)]
    lanes = story_of(made("fork", visitors)).lanes()
    assert len(lanes) == 50
    assert {lane.row for lane in lanes} == {0, 1}  # two work at once


@pytest.mark.parametrize("kind", ["closed 1", "stops -"])
def test_many_processes_take_time_in_proportion(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Under the model fork each connection has its own process."""
    looked: list[str] = []
    name_of = story_module.process_of

    def counted(worker: str) -> str:
        looked.append(worker)
        return name_of(worker)

    monkeypatch.setattr(story_module, "process_of", counted)
    for processes in (100, 200):
        looked.clear()
        what, _, connection = kind.partition(" ")
        story = TraceStory()
        for pid in range(1, processes + 1):
            story.feed(parse(f"{pid}.0 runs {pid}.1 {pid}/{pid}"))
        for pid in range(1, processes + 1):
            of = connection if connection == "-" else f"{pid}.1"
            story.feed(parse(f"{pid + 500}.0 {what} {of} {pid}/{pid}"))
        assert len(story.lanes()) == processes and not story.occupied
        assert len(looked) < 10 * processes


SCHEDULED = """\
10.0 arrival 40112 - /a
10.1 dispatch 40112 A /a
10.2 arrival 40113 - /b
10.3 arrival 40114 - /c c
10.4 drop 40113 - /b
11.0 completion 40112 A /a
11.5 dispatch 40114 B /c c
12.0 completion 40114 B /c c
12.5 arrival 40112 - /d
13.0 dispatch 40112 A /d
13.5 completion 40112 A /d
"""


def test_the_short_form_of_a_student_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(SCHEDULED)
    story = story_of_events(read(path))
    assert [lane.detail for lane in story.lanes()] == ["A in the trace", "B in the trace"]
    assert [story.label(each) for each in story.connections] == ["40112", "40113", "40114"]
    assert [(each.line, each.worker) for each in story.requests] == [
        ("/a", "0/1"),
        ("/c c", "0/2"),
        ("/d", "0/1"),
    ]
    spans = [(span.begin, span.end, span.state, story.label(span.connection)) for span in story.all_spans()]
    assert spans == [
        (10.0, 10.1, QUEUED, "40112"),
        (10.1, 11.0, BUSY, "40112"),
        (10.2, 10.4, QUEUED, "40113"),
        (10.3, 11.5, QUEUED, "40114"),
        (11.5, 12.0, BUSY, "40114"),
        (12.5, 13.0, QUEUED, "40112"),
        (13.0, 13.5, BUSY, "40112"),
    ]
    assert [each.text for each in story.refusals] == ["40113 overload"]
    assert deepest(story) == 2 and not story.queued and not story.occupied


def lived(worker: int, began: float, ended: float) -> list[str]:
    return [f"{began} begins - 7/{worker} ", f"{ended} ends - 7/{worker} "]


def story_of_lives(lives: list[tuple[int, float, float]]) -> TraceStory:
    lines = [
        "1.0 model - 7/7 pool of 2..99",
        *(line for each in lives for line in lived(*each)),
        "99.0 stops - 7/7",
    ]
    return story_of_events(sorted(map(parse, lines), key=lambda event: event.seconds))


def test_a_pool_that_grows_has_the_lives_of_its_threads() -> None:
    story = story_of_lives([(8, 1.5, 98.0), (9, 1.6, 100.0), (10, 20.0, 60.0)])
    del story.worker_ended["7/9"]  # the process ended first
    lanes = story.lanes()
    assert [(lane.detail, lane.row, lane.began, lane.ended) for lane in lanes] == [
        ("thread 8", 0, 1.5, 98.0),
        ("thread 9", 1, 1.6, 99.0),
        ("thread 10", 2, 20.0, 60.0),
    ]
    assert document(story, "x")["workers"][2]["began"] == 19_000_000
    assert story_of_lives([(8, 1.5, 2.0), (8, 3.0, 4.0)]).lanes()[0][-2:] == (
        1.5,
        4.0,
    )  # the number came again


def test_idle_workers_that_live_at_once_share_no_row() -> None:
    alternate = [(8 + each, 2.0 + each % 2 * 40, 40.0 + each % 2 * 40) for each in range(60)]
    rows = [lane.row for lane in story_of_lives(alternate).lanes()]
    assert sorted(rows) == sorted([*range(30), *range(30)])
