"""The moments: each in words with numbers, and none where nothing has happened."""

from __future__ import annotations

import pytest
from made_traces import MAIN, POOL, MadeTrace, Visitor, in_turn, made

from ewe_watch.events import parse
from ewe_watch.moment import several
from ewe_watch.moments import Moment, duration, moments
from ewe_watch.story import story_of_events


def moments_of(trace: MadeTrace) -> dict[str, Moment]:
    return {moment.kind: moment for moment in moments(story_of_events(map(parse, trace.text().splitlines())))}


def test_the_collapse_of_a_pool() -> None:
    found = moments_of(made("pool, never"))
    assert set(found) == {"queue-wait", "deepest-queue", "held-worker", "served-last"}
    assert found["queue-wait"].text == "Connection 14 waited 9.90 s in the queue."
    assert found["deepest-queue"].text == "13 connections waited for a worker at once, for 3.50 s."
    assert found["held-worker"].text.startswith(
        "Worker 3 stood still for 10.0 s, because the client of connection 13"
    )
    assert found["held-worker"].text.endswith(
        "For 9.98 s of this time, up to 13 connections waited for a worker."
    )
    assert found["served-last"].connection == "7120.26"
    begins = [moment.begin for moment in found.values()]
    assert begins == sorted(begins)


@pytest.mark.parametrize("model", ["fork", "thread", "pool, always", "event"])
def test_nothing_is_invented(model: str) -> None:
    assert moments_of(made(model)) == {}


@pytest.mark.parametrize("model", ["serial", "prefork"])
def test_a_worker_that_accepts_its_connections_itself(model: str) -> None:
    [moment] = moments_of(made(model)).values()
    assert moment.kind == "held-worker"
    assert moment.text.endswith("It accepts its connections itself, and accepted none in this time.")


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ("queue", "The server did not accept the client 192.0.2.1: the limit queue was reached."),
        ("overload", "The queue was full, and the server dropped a request of the client 192.0.2.1 from it."),
    ],
)
def test_the_first_of_several_refusals(limit: str, text: str) -> None:
    trace = MadeTrace("pool")
    for seconds in (1.0, 2.0):
        trace.say(seconds, "refused", "-", MAIN, f"192.0.2.1 {limit}")
    [moment] = moments_of(trace).values()
    assert moment.text == f"{text} It was the first of 2."


def test_a_client_that_no_worker_took() -> None:
    trace = MadeTrace("pool")
    in_turn(trace, [Visitor(0.1)], POOL, at_once=True)
    trace.accept(7, Visitor(0), 1.0)
    trace.accept(8, Visitor(0), 3.0)
    found = moments_of(trace)["served-last"]
    assert found.title == "A client that was never served"
    assert found.text.startswith(
        "Connection 7 got no byte: 2.00 s after it was accepted, at the end of the trace"
    )
    assert found.text.endswith("2 clients were never served.")


STAYS = [
    # After the client has left, the worker waits for a program that ignores SIGTERM
    pytest.param([(4.0, "exited", "7400"), (4.001, "ended", "the client has left")], 2.001,
                 ": it waited for a program to end.", id="a program"),
    pytest.param([(4.5, "ended", "the client has left")], 2.5, ".", id="anything else"),
    pytest.param([(5.0, "lost", "1")], 3.0, ", and still was when the trace ended.", id="the end of the trace"),
]  # fmt: skip


@pytest.mark.parametrize(("rest", "seconds", "words"), STAYS)
def test_a_worker_that_outlives_its_client(
    rest: list[tuple[float, str, str]], seconds: float, words: str
) -> None:
    trace = MadeTrace("thread")
    name = trace.accept(1, Visitor(0), 0.1)
    for at, event, text in [
        (0.2, "runs", ""), (0.3, "request", "GET /cgi-bin/slow"), (0.4, "program", "7400"),
        (0.5, "waits", "program"), (2.0, "goes-on", "left"), *rest,
    ]:  # fmt: skip
        trace.say(at, event, "-" if event == "lost" else name, POOL[0], text)
    moment = moments_of(trace)["outlived-client"]
    took = duration(seconds)
    assert (
        moment.text == f"Worker 1 stayed occupied for {took} after the client of connection 1 had left{words}"
    )
    assert moment.begin == pytest.approx(8102.0) and moment.end == pytest.approx(8102.0 + seconds)
    assert (moment.connection, moment.worker) == (name, POOL[0])


def test_a_worker_that_notices_at_once_that_its_client_has_left() -> None:
    trace = MadeTrace("thread")
    name = trace.accept(1, Visitor(0), 0.1)
    for at, event, text in [(0.2, "runs", ""), (0.3, "waits", "program"), (3.0, "goes-on", "left")]:
        trace.say(at, event, name, POOL[0], text)
    trace.end(name, 3.05, POOL[0], "the client has left")
    assert "outlived-client" not in moments_of(trace)


def test_a_hand_over_does_not_cut_the_time_with_a_queue() -> None:
    """Two connections wait one after the other, the first in the backlog, too: one of them waits for 4 s."""
    trace = MadeTrace("pool")
    trace.say(3.0, "accepted", "7120.1", MAIN, "192.0.2.1:1 backlog=2.000")
    for number, begins in ((1, 3.0), (2, 4.0)):
        if number > 1:
            trace.say(begins, "accepted", f"7120.{number}", MAIN, f"192.0.2.{number}:1")
        trace.say(begins, "ready", f"7120.{number}", MAIN)
        trace.say(begins + 1, "runs", f"7120.{number}", "7120/7121")
    assert moments_of(trace)["deepest-queue"].text == "One connection waited for a worker, for 4.00 s."


def test_a_client_that_was_overtaken() -> None:
    trace = MadeTrace("pool")
    slow = trace.accept(1, Visitor(0), 0.1)
    for number in (2, 3):
        quick = trace.accept(number, Visitor(0), 0.2 * number)
        trace.talk(quick, Visitor(0), 0.2 * number + 0.00001, POOL[number], 0)
    trace.talk(slow, Visitor(0), 2.0, POOL[0], 0)
    assert moments_of(trace)["served-last"].text.endswith("2 clients came later, and were served before it.")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 µs"),
        (0.00082, "820 µs"),
        (0.0045, "4.50 ms"),
        (0.999, "999 ms"),
        (0.9996, "1.00 s"),
        (0.0009996, "1.00 ms"),
        (9.996, "10.0 s"),
        (99.96, "100 s"),
        (31.24, "31.2 s"),
        (1.0, "1.00 s"),
    ],
)
def test_a_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_one_has_no_plural() -> None:
    assert (several(0, "workers"), several(1, "workers"), several(1200, "workers")) == (
        "0 workers",
        "1 worker",
        "1,200 workers",
    )
