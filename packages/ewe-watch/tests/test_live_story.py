"""The story of a running server: its changes, its rows, and memory that stays level however long it runs."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from ewe_watch.events import TraceEvent
from ewe_watch.live import live_story
from ewe_watch.live.behind_rows import MOST_ROWS as MOST_ROWS_BEHIND
from ewe_watch.live.director import RECORDING_BYTES, ChangeReader, Recording
from ewe_watch.live.live_story import MOST_ROWS, MOST_SPANS, LiveStory

PID = "7"


def story(model: str = "thread") -> LiveStory:
    found = LiveStory(lambda address: f"visitor {address}", 0.0)
    found.feed(TraceEvent(0.0, "model", "", f"{PID}/{PID}", f"{model} a description"))
    return found


def visit(told: LiveStory, number: int, at: float, worker: str) -> None:
    """Tell a whole connection, ten events within ten milliseconds."""
    kinds = [
        ("accepted", str(number)), ("runs", ""), ("waits", "request"), ("goes-on", ""), ("request", "GET /"),
        ("answered", "200 files"), ("sends", ""), ("sent", "10"), ("ended", "the client closes"), ("closed", ""),
    ]  # fmt: skip
    for step, (kind, text) in enumerate(kinds):
        told.feed(TraceEvent(at + step / 1000, kind, f"{PID}.{number}", worker, text))


def test_a_change_has_what_happened_since_the_last_one() -> None:
    told = story()
    visit(told, 1, 1.0, f"{PID}/11")
    change = told.changes()
    assert change["accepted"] == change["requests"] == change["answered"] == 1 and change["open"] == 0
    assert [span[3] for span in change["spans"]] == ["busy", "waits", "busy", "busy", "sends", "busy"]
    assert {span[5] for span in change["spans"]} == {"visitor 1"}
    assert told.changes()["spans"] == []


def test_an_event_that_lacks_its_connection_does_not_end_the_picture() -> None:
    told = story()
    for kind in ("accepted", "request", "closed"):
        told.feed(TraceEvent(1.0, kind, "", f"{PID}/{PID}", "GET /blocking?ms=9"))
    assert told.changes()["open"] == 0


def test_connections_that_waited_in_the_backlog_are_counted() -> None:
    """A wait below a tick of the kernel is none. The client's name comes from the address alone."""
    told = story()
    for number, more in enumerate(("", " backlog=0.004", " backlog=0.500", " backlog=1.250")):
        told.feed(TraceEvent(2.0, "accepted", f"{PID}.{number}", f"{PID}/{PID}", f"{number}{more}"))
    change = told.changes()
    assert change["accepted"] == 4 and change["from_backlog"] == [2, 1250]
    assert [told.name_of(f"{PID}.{number}") for number in range(4)] == [
        f"visitor {each}" for each in range(4)
    ]


def test_the_main_thread_of_a_pool_is_no_occupied_worker_of_it() -> None:
    for model, held in (("pool", 0), ("asyncio", 1)):
        told = story(model)
        told.feed(TraceEvent(1.0, "accepted", f"{PID}.1", f"{PID}/{PID}", "1"))
        told.feed(TraceEvent(1.1, "runs", f"{PID}.1", f"{PID}/{PID}", ""))
        assert told.changes()["held"] == held


def test_a_page_that_blocks_its_thread_is_told_until_it_answers() -> None:
    told = story()
    for at, kind, text in (
        (1.0, "accepted", "1"),
        (1.1, "runs", ""),
        (1.2, "request", "GET /blocking?ms=9&gate=1"),
    ):
        told.feed(TraceEvent(at, kind, f"{PID}.1", f"{PID}/11", text))
    assert told.changes()["rows"][0][2:5] == ["busy", 1200.0, "page"]
    for at, kind, text in ((1.5, "answered", "200 Gates"), (1.5, "sends", ""), (1.6, "sent", "9")):
        told.feed(TraceEvent(at, kind, f"{PID}.1", f"{PID}/11", text))
    change = told.changes()
    assert [span[3:5] for span in change["spans"]] == [["busy", "page"], ["sends", ""]]
    assert change["rows"][0][2:5] == ["busy", 1600.0, ""]


def test_a_process_that_does_not_exist_any_more_was_waited_for() -> None:
    living = {7, 8}
    told = LiveStory(str, 0.0, lambda process: process in living)
    told.feed(TraceEvent(0.0, "model", "", f"{PID}/{PID}", "fork a description"))
    told.feed(TraceEvent(1.0, "begins", "", "8/8", ""))
    told.feed(TraceEvent(2.0, "ends", "", "8/8", ""))
    assert told.changes()["rows"][0][4] == "ended"
    living.remove(8)
    assert told.changes()["rows"][0][4] == "wait() called"
    living.add(8)
    told.feed(TraceEvent(3.0, "begins", "", "8/8", ""))
    assert told.changes()["rows"][0][4] == ""


def test_the_queue_names_those_that_wait_for_longest() -> None:
    told = story("pool")
    assert told.changes()["queued_names"] == []
    for number in range(12):
        told.feed(TraceEvent(1.0 + number, "accepted", f"{PID}.{number}", f"{PID}/{PID}", str(number)))
    told.feed(TraceEvent(20.0, "runs", f"{PID}.0", f"{PID}/11", ""))
    assert told.changes()["queued_names"] == [f"visitor {number}" for number in range(1, 11)]
    told.feed(TraceEvent(20.1, "parked", f"{PID}.0", f"{PID}/11", "request"))
    for number in range(1, 12):
        told.feed(TraceEvent(21.0, "runs", f"{PID}.{number}", f"{PID}/{11 + number}", ""))
    told.feed(TraceEvent(22.0, "ready", f"{PID}.0", f"{PID}/{PID}", ""))
    assert told.changes()["queued_names"] == ["visitor 0"]


def behind(told: LiveStory, *lines: str) -> dict[str, list[list[object]]]:
    """Tell events of X-Switch and the daemon, as "TIME KIND NAME WORKER TEXT"; return their rows."""
    for line in lines:
        seconds, kind, name, worker, text = line.split(" ", 4)
        told.feed(TraceEvent(float(seconds), kind, name, worker, text))
    found: dict[str, list[list[object]]] = told.changes()["behind"]
    return found


def test_engines_and_connections_have_rows_of_their_own() -> None:
    told = story("xswitch")
    told.feed(TraceEvent(1.0, "accepted", "7.1", "7/7", "1"))
    change = behind(
        told, "1.1 x-request 8.1 8/8 7.1 alice python /a.py", "1.1 x-engine - 8/8 8.1 alice python",
        "1.2 x-runs 8.1 8/8 8.1", "1.2 db-request 9.1 9/9 7.1 uid:7 log", "1.3 db-runs 9.1 9/10 SELECT ?",
    )  # fmt: skip
    assert change["rows"] == [
        ["alice: python", "", "engine", 1200.0, "", "visitor 1", "/a.py", None, "engine"],
        ["log", "no connection", "database", 1300.0, "", "visitor 1", "SELECT ?", None, "database"],
    ]
    change = behind(told, "1.4 x-left 8.1 8/8 ", "1.5 db-answered 9.1 9/10 1.0 ok")
    assert change["spans"] == [
        [0, 1200.0, 1400.0, "engine", "", "visitor 1", "/a.py", None, ""],
        [0, 1300.0, 1500.0, "database", "", "visitor 1", "SELECT ?", None, "ok"],
    ]
    assert [row[2:6] for row in change["rows"]] == [
        ["engine", 1400.0, "", "visitor 1 (its client has left)"], ["", 0, "", "ok"],
    ]  # fmt: skip
    change = behind(told, "1.6 x-answered 8.1 8/8 ok", "1.7 x-ended - 8/8 8.1 idle")
    assert change["rows"][0][4] == "ended" and change["rows"][0][8] == "engine"
    assert behind(told, "1.8 x-engine - 8/8 8.2 bob perl")["rows"][0][0] == "bob: perl"


def test_a_work_tells_which_worker_has_asked_and_how_it_ended() -> None:
    told = story("thread")
    for at, kind, text in ((1.0, "accepted", "1"), (1.1, "runs", ""), (1.2, "request", "GET /a.py")):
        told.feed(TraceEvent(at, kind, "7.1", "7/11", text))
    change = behind(
        told, "1.3 x-request 8.1 8/8 7.1 alice python /a.py", "1.3 x-engine - 8/8 8.1 alice python",
        "1.35 x-queued 8.1 8/8 1",
    )  # fmt: skip
    assert change["queued"] == {"engine": 1, "database": 0}
    change = behind(told, "1.4 x-runs 8.1 8/8 8.1")
    assert change["rows"][0][7] == (0, 1300.0) and change["queued"]["engine"] == 0
    change = behind(told, "1.5 x-left 8.1 8/8 ", "1.6 x-answered 8.1 8/8 502 a crash")
    assert [span[7:] for span in change["spans"]] == [[(0, 1300.0), ""], [None, "502 a crash"]]


def test_a_failure_belongs_to_one_of_two_connections_of_the_same_name() -> None:
    told = story("thread")
    for connection in (10, 11):
        behind(told, f"1.0 db-opened - 9/{connection} demo sqlite")
    change = behind(told, "1.1 db-request 9.1 9/9 - uid:7 demo", "1.2 db-runs 9.1 9/11 SELECT ?",
                    "1.3 db-answered 9.1 9/11 1.0 locked")  # fmt: skip
    assert [(*row[:2], row[5]) for row in change["rows"]] == [
        ("demo", "sqlite, process 9", ""), ("demo", "sqlite, process 9", "locked"),
    ]  # fmt: skip


def test_the_work_of_a_killed_engine_stays_in_the_row_that_the_next_one_takes() -> None:
    told = story("xswitch")
    told.feed(TraceEvent(1.0, "accepted", "7.1", "7/7", "1"))
    behind(told, "1.1 x-request 8.1 8/8 7.1 alice python /a.py", "1.1 x-engine - 8/8 8.1 alice python",
           "1.2 x-runs 8.1 8/8 8.1")  # fmt: skip
    change = behind(told, "1.5 x-queued 8.1 8/8 1", "1.5 x-ended - 8/8 8.1 killed",
                    "1.6 x-engine - 8/8 8.2 alice python",
                    "1.7 x-runs 8.1 8/8 8.2")  # fmt: skip
    assert [span[:4] for span in change["spans"]] == [[0, 1200.0, 1500.0, "engine"]]
    assert [row[2:4] for row in change["rows"]] == [["engine", 1700.0]]


def test_the_rows_of_engines_are_bounded_and_the_others_are_counted() -> None:
    told = story("xswitch")
    begins = [f"1.0 x-engine - 8/8 8.{number} user{number} python" for number in range(MOST_ROWS_BEHIND + 3)]
    change = behind(told, *begins)
    assert (len(change["rows"]), change["hidden"]) == (MOST_ROWS_BEHIND, 3)
    change = behind(told, "2.0 x-ended - 8/8 8.4 idle")
    assert change["hidden"] == 2 and change["rows"][4][0] == f"user{MOST_ROWS_BEHIND}: python"


def test_requests_whose_ends_were_lost_leave_their_queue_and_their_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ewe_watch.behind.MOST_OPEN", 2)
    told = story("xswitch")
    requests = [f"1.0 x-request 8.{number} 8/8 - alice python /a.py" for number in (1, 2, 3, 4)]
    queued = [f"1.2 x-queued 8.{number} 8/8 1" for number in (2, 3, 4)]
    behind(told, "1.0 x-engine - 8/8 8.1 alice python", *requests, "1.1 x-runs 8.1 8/8 8.1", *queued)
    assert list(told.behind.open_requests) == ["8.3", "8.4"]
    assert told.behind.queued["engine"] == 2
    assert told.behind.count_lanes("engine", busy=True) == 0


@pytest.mark.takes_time
@pytest.mark.parametrize("model", ["fork", "thread", "pool"])
def test_memory_stays_level(model: str) -> None:
    """Ten thousand events are twenty seconds at 500 a second. Each worker of `fork` and `thread` is a new one."""
    told = story(model)

    def twenty_seconds(number: int) -> None:
        """Tell the connections of so much time."""
        for each in range(1000):
            visitor = 100 + 1000 * number + each  # no worker has the number of the server's process
            worker = f"{PID}/{visitor if model == 'thread' else 11 + each % 5}"
            worker = f"{visitor}/{visitor}" if model == "fork" else worker
            if model != "pool":
                told.feed(TraceEvent(visitor / 50, "begins", "", worker, ""))
            visit(told, visitor, visitor / 50, worker)
            if model != "pool":
                told.feed(TraceEvent(visitor / 50 + 0.01, "ends", "", worker, ""))
            if each % 3 == 0:
                told.changes()

    def kept_bytes() -> int:
        """Return the memory that code of ewe_watch, or this test, has taken and kept."""
        ours = [tracemalloc.Filter(True, pattern) for pattern in ("*ewe_watch*", __file__)]
        kept = tracemalloc.take_snapshot().filter_traces(ours)
        return sum(each.size for each in kept.traces)

    tracemalloc.start()
    try:
        used: list[int] = []
        for number in range(4):
            twenty_seconds(number)
            if number in (1, 3):  # a snapshot takes as long as its events
                used.append(kept_bytes())
    finally:
        tracemalloc.stop()
    assert abs(used[1] - used[0]) < 33_000, used
    assert len(told.connections) == 0 and len(told.row_workers) <= MOST_ROWS


def test_a_flood_of_spans_is_cut_to_the_longest() -> None:
    told = story("pool")
    for number in range(200):
        visit(told, number, number / 50, f"{PID}/11")
    spans = told.changes()["spans"]
    assert len(spans) == MOST_SPANS and told.hidden == 6 * 200 - MOST_SPANS


def test_a_row_is_given_to_the_next_thread() -> None:
    told = story("thread")
    visit(told, 1, 1.0, f"{PID}/11")
    visit(told, 2, 2.0, f"{PID}/12")
    assert told.row_workers == [f"{PID}/12"]
    other = story("pool")
    visit(other, 1, 1.0, f"{PID}/11")
    visit(other, 2, 2.0, f"{PID}/12")
    assert other.row_workers == [f"{PID}/11", f"{PID}/12"]


def test_each_occupied_worker_counts_also_without_a_row() -> None:
    told = story("fork")
    for number in range(MOST_ROWS + 5):
        told.feed(TraceEvent(1.0, "accepted", f"{PID}.{number}", f"{PID}/{PID}", "5"))
        told.feed(TraceEvent(2.0, "runs", f"{PID}.{number}", f"{100 + number}/{100 + number}", ""))
    change = told.changes()
    assert (len(change["rows"]), change["held"], change["rowless"]) == (MOST_ROWS, MOST_ROWS + 5, 5)


def test_a_process_that_was_killed_holds_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    told = LiveStory(lambda address: address, 0.0, is_running=lambda process: process not in (100, 102))
    for process in (100, 101, 102):
        told.feed(TraceEvent(1.0, "accepted", f"{process}.1", f"{process}/{process}", "5"))
    for process in (100, 101):  # the connection of the third one is in the queue
        told.feed(TraceEvent(2.0, "runs", f"{process}.1", f"{process}/{process}", ""))
    assert (told.changes()["held"], told.queued) == (2, 1)  # the last events may not be read yet
    monkeypatch.setattr(live_story, "GONE_S", 0.0)
    change = told.changes()
    assert (change["held"], change["queued"], change["open"]) == (1, 0, 1)
    told.zombies = frozenset({101})
    assert [span[5] for span in told.changes()["spans"]] == ["5"] and told.occupied == {}


def test_young_events_are_sorted_before_they_are_told() -> None:
    told = story()
    now = time.monotonic()
    told.add(
        [TraceEvent(now - 1, "runs", "7.1", "7/11", ""), TraceEvent(now - 2, "accepted", "7.1", "7/7", "5")]
    )
    assert told.row_now(0, "7/11")[5] == "visitor 5"
    told.add([TraceEvent(now + 60, "ended", "7.1", "7/11", "")])
    assert len(told.waiting) == 1


@pytest.mark.parametrize(
    "before", [b"", b"0.8 x-begins - 6/6 \n0.9 db-begins - 5/5 model\n"], ids=["model", "behind"]
)
def test_a_recording_keeps_the_model_and_the_last_lines(before: bytes) -> None:
    """X-Switch and the database daemon begin before the model does."""
    recording = Recording()
    recording.add(before)
    recording.add(before + b"1.0 model - 7/7 pool\n")
    line = b"1.0 runs 7.1 7/7 " + b"x" * 400 + b"\n"
    for _ in range(RECORDING_BYTES // (100 * len(line)) + 50):
        recording.add(line * 100)
    text = recording.text()
    assert text.startswith(b"1.0 model - 7/7 pool\n1.0 runs") and len(text) <= RECORDING_BYTES + 100 * len(
        line
    )


def test_a_slow_reader_loses_the_oldest_changes() -> None:
    reader = ChangeReader()
    for number in range(1000):
        reader.add_change(b"%d\n" % number)
    lines = reader.next().splitlines()
    assert lines[-1] == b"999" and len(lines) == 200
    reader.end()
    assert reader.next() == b""


def test_a_slow_reader_loses_no_state() -> None:
    """A page that has missed the change of the models would show their work below the titles of others."""
    reader = ChangeReader()
    for name in ("old", "new"):
        reader.add_change(f"picture of {name}\n".encode())
        reader.add_change(b"scene 1\n", "scene")
        reader.add_change(f"all {name}\n".encode(), "all")
    for number in range(1000):
        reader.add_change(b"scene %d\n" % number, "scene")
        reader.add_change(b"%d\n" % number)
    lines = reader.next().splitlines()
    assert lines[:3] == [b"all new", b"scene 999", b"800"] and len(lines) == 202


def test_threads_that_are_seen_from_outside_have_rows_and_say_their_calls() -> None:
    told = story("server")
    told.show_calls({"7/7": "in accept4", "7/8": "in futex"})
    told.feed(TraceEvent(1.0, "accepted", "7.1", "7/7", "5"))
    told.feed(TraceEvent(2.0, "runs", "7.1", "7/8", ""))
    assert [row[:6] for row in told.changes()["rows"]] == [
        ["process 1", "7/7", "", 0, "in accept4", ""], ["thread 1", "7/8", "busy", 2000.0, "", "visitor 5"],
    ]  # fmt: skip
    told.feed(TraceEvent(3.0, "parked", "7.1", "7/8", ""))
    told.show_calls({"7/7": "computes"})
    assert [row[4] for row in told.changes()["rows"]] == ["computes", "ended"]
    told.show_calls({"7/7": "in accept4", "7/9": "in futex"})  # the row of a thread that has ended
    assert told.row_workers == ["7/7", "7/9"]


def test_threads_without_a_connection_take_no_row_from_others() -> None:
    told = story("server")
    calls = {f"7/{number}": "in futex" for number in range(MOST_ROWS + 5)}
    told.show_calls(calls)
    before = list(told.row_workers)
    told.show_calls(calls)
    assert told.row_workers == before == list(calls)[:MOST_ROWS]
    del calls["7/3"]
    told.show_calls(calls)
    assert told.row_workers[3] == f"7/{MOST_ROWS}" and told.row_workers[:3] == before[:3]


def test_a_worker_has_a_row_from_its_begin_to_its_end_and_then_the_next_one_has_it() -> None:
    told = story("fork")
    told.feed(TraceEvent(1.0, "begins", "", "8/8", ""))
    told.feed(TraceEvent(1.5, "begins", "", "9/9", ""))
    change = told.changes()
    assert [row[:5] for row in change["rows"]] == [
        ["process 1", "8/8", "", 0, ""], ["process 2", "9/9", "", 0, ""],
    ]  # fmt: skip
    assert change["lives"] == {"now": [[1000.0, None], [1500.0, None]], "past": []}
    told.feed(TraceEvent(2.0, "ends", "", "8/8", ""))
    change = told.changes()
    assert [row[4] for row in change["rows"]] == ["ended", ""]
    assert change["lives"] == {"now": [[1000.0, 2000.0], [1500.0, None]], "past": [[0, 1000.0, 2000.0]]}
    told.feed(TraceEvent(3.0, "begins", "", "10/10", ""))
    assert told.changes()["lives"] == {"now": [[3000.0, None], [1500.0, None]], "past": []}
    assert told.row_workers == ["10/10", "9/9"]


def test_idle_workers_keep_their_rows_until_a_connection_needs_one() -> None:
    told = story("pool")
    for number in range(MOST_ROWS + 5):
        told.feed(TraceEvent(1.0, "begins", "", f"7/{100 + number}", ""))
    assert told.row_workers == [f"7/{100 + number}" for number in range(MOST_ROWS)]
    told.feed(TraceEvent(2.0, "accepted", "7.1", "7/7", "5"))
    told.feed(TraceEvent(2.0, "runs", "7.1", f"7/{100 + MOST_ROWS}", ""))
    assert told.row_workers[0] == f"7/{100 + MOST_ROWS}"
    assert told.changes()["lives"]["now"][0] == [1000.0, None]


def test_the_workers_of_a_process_that_stops_or_was_killed_end() -> None:
    told = LiveStory(lambda address: address, 0.0, is_running=lambda process: process != 9)
    told.feed(TraceEvent(0.0, "model", "", "7/7", "prefork a description"))
    for process in (8, 9, 10):
        told.feed(TraceEvent(1.0, "begins", "", f"{process}/{process}", ""))
    told.feed(TraceEvent(2.0, "stops", "", "8/8", ""))
    assert [row[4] for row in told.changes()["rows"]] == ["ended", "wait() called", ""]
    assert list(told.lives.began) == ["7/7", "10/10"]


@pytest.mark.parametrize(("model", "rows"), [("asyncio", ["event loop"]), ("pool", [])])
def test_a_loop_has_its_row_before_its_first_connection(model: str, rows: list[str]) -> None:
    assert [row[0] for row in story(model).changes()["rows"]] == rows


def test_an_engine_that_has_ended_has_a_life_until_the_next_one_takes_its_row() -> None:
    told = story("xswitch")
    change = behind(told, "1.0 db-opened - 9/10 log sqlite", "1.1 x-engine - 8/8 8.1 alice python")
    assert change["lives"] == {"now": [[1100.0, None], [1000.0, None]], "past": []}
    change = behind(told, "1.7 x-ended - 8/8 8.1 idle")
    assert change["lives"] == {
        "now": [[1100.0, 1700.0], [1000.0, None]],
        "past": [[0, 1100.0, 1700.0, "engine"]],
    }
    change = behind(told, "1.8 x-engine - 8/8 8.2 bob perl")
    assert change["lives"] == {"now": [[1800.0, None], [1000.0, None]], "past": []}
