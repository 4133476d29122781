"""The table of an exchange: every state, every event, with fakes of a few lines and no socket."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from ewe.xswitch.protocol import ProtocolError
from ewe.xswitch.settings import Settings
from ewe.xswitch.switch.exchange import MAX_WAITING_BYTES, Exchange, ScriptRunner
from ewe.xswitch.switch.exchange_table import TABLE, BodyState, Event, IllegalEvent, State
from ewe.xswitch.switch.response_head import MAX_HEAD_BYTES, NO_ENGINE, without_own_field

HEAD = b"Content-Type: text/plain\n\n"


class Recorder:
    """Notes every call that an exchange makes, with its arguments; it is client, engine and scheduler."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))

    def names(self) -> list[str]:
        return [name for name, *_ in self.calls]


class Services:
    """What the main process offers."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.settings = Settings()
        self.is_stopping = False
        self.scheduler: Any = Recorder()
        self.said: list[str] = []

    def log_for_user(self, user: str, message: str, level: str = "warning") -> None:
        self.said.append(message)


class Bench:
    """One exchange between its fakes."""

    def __init__(self, **params: str) -> None:
        values = {"REQUEST_METHOD": "GET", **params}
        self.client, self.engine, self.services = Recorder(), Recorder(), Services()
        self.exchange = Exchange(
            self.client, self.services, {k.encode(): v.encode() for k, v in values.items()}, "/x.py"
        )

    def bring_to(self, state: State) -> Exchange:
        """Lead the exchange to a state by the events that lead there."""
        exchange = self.exchange
        exchange.body_arrived(b"")
        if state is State.IDENTIFYING:
            return exchange
        exchange.identified()
        if state is not State.WAITING:
            exchange.assigned(self.engine)
        if state is State.HEAD:
            exchange.output_arrived(HEAD[:9])
        if state is State.RESPONDING:
            exchange.output_arrived(HEAD)
        if state is State.ABANDONED:
            exchange.client_left()
        if state is State.DONE:
            exchange.complete(HEAD, 0)
        assert exchange.state is state
        for recorder in (self.client, self.engine, self.services.scheduler):
            recorder.calls.clear()
        return exchange


DETAILS: dict[Event, tuple[Any, ...]] = {
    Event.ANSWERED: (HEAD, 0),
    Event.REFUSED: (503, "full"),
    Event.OUTPUT: (HEAD,),
    Event.COMPLETED: (HEAD, 0),
    Event.RETRIED: ("ended by signal 9",),
    Event.FAILED: (502, "ended by signal 9", "refused"),
}

# What an exchange does in each step, as calls of its client (c), its engine (e) and the scheduler (s)
EFFECTS = {
    "do_nothing": "",
    "enter_queue": "s.submit",
    "enter_queue_again": "s.submit",
    "leave_queue": "s.withdraw",
    "leave_queue_with_error": "c.end_response s.withdraw",
    "note_engine": "",
    "send": "c.send_output",
    "send_last": "c.end_response",
    "send_error": "c.end_response",
    "break_off": "c.break_off",
    "log_failure": "",
    "log_unseen_failure": "",
    "log_overdue": "",
    "let_engine_end": "e.client_left e.resume_output",
}


@pytest.mark.parametrize("event", Event, ids=lambda event: event.name)
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_every_event_in_every_state(state: State, event: Event) -> None:
    bench = Bench()
    exchange = bench.bring_to(state)
    details = (bench.engine,) if event is Event.ASSIGNED else DETAILS.get(event, ())
    if (state, event) not in TABLE:
        with pytest.raises(IllegalEvent, match=f"^{event.name} in state {state.name}$"):
            exchange.handle(event, *details)
        assert exchange.state is state
        assert not bench.client.calls and not bench.engine.calls and not bench.services.scheduler.calls
        return
    exchange.handle(event, *details)
    following, action = TABLE[state, event]
    assert exchange.state is following
    done = [f"c.{name}" for name in bench.client.names()] + [f"e.{name}" for name in bench.engine.names()]
    done += [f"s.{name}" for name in bench.services.scheduler.names()]
    assert sorted(done) == EFFECTS[action].split()


def test_every_state_is_reached_and_left() -> None:
    assert {following for following, _ in TABLE.values()} == set(State) - {State.IDENTIFYING}
    assert {state for state, _ in TABLE} == set(State) - {State.DONE}
    assert {event for _, event in TABLE} == set(Event)
    for state in set(State) - {State.DONE}:
        assert {event for each, event in TABLE if each is state} & {Event.FAILED, Event.COMPLETED}


def test_a_client_that_is_there_gets_exactly_one_end() -> None:
    for (state, event), (following, action) in TABLE.items():
        ends = "c.end_response" in EFFECTS[action] or "c.break_off" in EFFECTS[action]
        absent = state is State.ABANDONED or event is Event.LEFT
        assert ends == (following is State.DONE and not absent), (state, event)


# The request's body


@pytest.mark.parametrize("state", [State.RUNNING, State.HEAD, State.RESPONDING])
def test_a_client_that_leaves_within_its_body_ends_the_engine(state: State) -> None:
    bench = Bench()
    exchange = bench.bring_to(state)
    exchange.body_state = BodyState.COMING
    exchange.client_left()
    assert exchange.state is State.ABANDONED
    assert bench.engine.calls == [("fail", "the client left before its body was complete")]
    exchange.engine_failed("the client left before its body was complete")
    assert exchange.state is State.DONE and not bench.client.calls


def test_a_body_waits_for_its_engine() -> None:
    bench = Bench(REQUEST_METHOD="POST", CONTENT_LENGTH=str(MAX_WAITING_BYTES + 9))
    exchange = bench.exchange
    exchange.identified()
    exchange.body_arrived(bytes(MAX_WAITING_BYTES))
    assert not bench.client.calls
    exchange.body_arrived(b"12345")
    assert bench.client.names() == ["pause_reading"]
    exchange.assigned(bench.engine)
    assert exchange.take_body() == [bytes(MAX_WAITING_BYTES), b"12345"]
    assert bench.client.names() == ["pause_reading", "resume_reading"]
    exchange.body_arrived(b"6789")
    exchange.body_arrived(b"")
    assert bench.engine.calls == [("body_received", 0), ("send_body", b"6789"), ("send_body", b"")]
    with pytest.raises(IllegalEvent):
        exchange.body_arrived(b"")


@pytest.mark.parametrize("state", [each for each in State if each not in (State.ABANDONED, State.DONE)])
@pytest.mark.parametrize(("length", "status"), [("3", 400), ("", 411)])
def test_a_body_of_another_length_is_rejected(state: State, length: str, status: int) -> None:
    bench = Bench(CONTENT_LENGTH=length)
    exchange = bench.exchange
    exchange.body_bytes_left = 0
    exchange = bench.bring_to(state)
    exchange.body_state = BodyState.COMING
    exchange.body_arrived(b"four")
    assert exchange.state is State.DONE
    assert bench.services.counters["cut" if state is State.RESPONDING else f"status_{status}"] == 1
    has_engine = state in (State.RUNNING, State.HEAD, State.RESPONDING)
    assert bench.engine.names() == (["discard"] if has_engine else [])
    assert bench.client.names() == (["break_off"] if state is State.RESPONDING else ["end_response"])


# The end of an engine


@pytest.mark.parametrize("state", [State.RUNNING, State.HEAD])
def test_a_safe_request_is_repeated_once(state: State) -> None:
    bench = Bench()
    exchange = bench.bring_to(state)
    exchange.engine_failed("ended by signal 9")
    assert exchange.state is State.WAITING and bench.services.counters["retried"] == 1
    exchange.assigned(bench.engine)
    assert exchange.take_body() == [b""]
    exchange.output_arrived(HEAD + b"whole")
    assert ("send_output", HEAD + b"whole") in bench.client.calls  # nothing of the first attempt
    exchange.engine_failed("ended by signal 9")
    assert exchange.state is State.DONE and bench.client.names()[-1] == "break_off"


@pytest.mark.parametrize(
    ("state", "said", "counter"),
    [
        (State.RESPONDING, "/x.py: cut within its response, ended by signal 9", "cut"),
        (State.ABANDONED, "/x.py: its client had left; ended by signal 9", "abandoned"),
    ],
)
def test_a_status_that_was_not_sent_is_not_logged(state: State, said: str, counter: str) -> None:
    bench = Bench()
    bench.bring_to(state).engine_failed("ended by signal 9")
    assert bench.services.said == [said] and bench.services.counters == {counter: 1}


@pytest.mark.parametrize(
    ("params", "stopping"),
    [
        ({"REQUEST_METHOD": "POST"}, False),
        ({"CONTENT_LENGTH": "1"}, False),
        ({}, True),
    ],
)
def test_another_request_is_not_repeated(params: dict[str, str], stopping: bool) -> None:
    bench = Bench(**params)
    bench.exchange.body_bytes_left = 0
    exchange = bench.bring_to(State.RUNNING)
    bench.services.is_stopping = stopping
    exchange.engine_failed("ended by signal 9")
    assert exchange.state is State.DONE and bench.services.counters["status_502"] == 1


def test_only_the_time_in_the_queue_counts_as_a_wait_for_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    bench = Bench()
    exchange = bench.bring_to(State.IDENTIFYING)
    now[0] = 9.0  # a package was being installed
    exchange.identified()
    assert exchange.queued_at == 9.0
    exchange.assigned(bench.engine)
    now[0] = 60.0
    exchange.engine_failed("ended by signal 9")
    assert exchange.state is State.WAITING
    assert exchange.queued_at == 60.0  # the engine has run the script until now


def test_a_third_engine_is_not_tried() -> None:
    bench = Bench()
    exchange = bench.bring_to(State.RUNNING)
    exchange.engine_failed("first")
    exchange.assigned(bench.engine)
    exchange.engine_failed("second")
    assert exchange.state is State.DONE and bench.client.names() == ["end_response"]
    assert bench.services.said[-1] == "/x.py: 502, second"


@pytest.mark.parametrize(
    ("state", "counter"),
    [(State.RUNNING, "timed_out"), (State.RESPONDING, "timed_out"), (State.ABANDONED, "abandoned")],
)
def test_time_is_over(state: State, counter: str) -> None:
    bench = Bench()
    bench.bring_to(state).timed_out("ended after 5 s (time-limit)")
    assert bench.exchange.state is State.DONE and bench.services.counters[counter] == 1
    assert ("time-limit" in bench.services.said[-1]) == (counter == "timed_out")


@pytest.mark.parametrize("state", [State.RUNNING, State.HEAD, State.ABANDONED])
def test_an_engine_that_wrote_nothing(state: State) -> None:
    bench = Bench()
    exchange = bench.bring_to(state)
    exchange.withheld_head = b""
    exchange.complete(b"", 3)
    assert exchange.state is State.DONE
    assert bench.services.counters["status_502"] == (state is not State.ABANDONED)


def test_no_engine_is_not_an_error_of_the_log() -> None:
    bench = Bench()
    bench.exchange.fail(500, "no engine for it", NO_ENGINE)
    (_, page, status) = bench.client.calls[0]
    assert b"X-Switch: no-engine\r\n" in page and status == 0
    assert bench.services.counters == {"no_engine": 1}


# The head


def test_the_head_is_held_back_until_it_is_whole() -> None:
    bench = Bench()
    exchange = bench.bring_to(State.RUNNING)
    for byte in b"Content-Type: text/plain\nX-Switch : no-engine\nA: b\n":
        exchange.output_arrived(bytes((byte,)))
        assert exchange.state is State.HEAD and not bench.client.calls
    exchange.output_arrived(b"\nX-Switch: body\n")
    exchange.output_arrived(b"more")
    assert bench.client.calls == [
        ("send_output", b"Content-Type: text/plain\nA: b\n\nX-Switch: body\n"),
        ("send_output", b"more"),
    ]


@pytest.mark.parametrize(
    ("held", "data", "last", "expected"),
    [
        (b"", b"A: b\n", False, None),
        (b"", b"A: b\n", True, b"A: b\n"),
        (b"", b"A: b\n\nx", False, b"A: b\n\nx"),
        (b"A: b\r\n", b"\r\nx", False, b"A: b\r\n\r\nx"),
        (b"A: b\r\n\r", b"\nx", False, b"A: b\r\n\r\nx"),
        (b"", b"\nbody", False, b"\nbody"),
        (b"", b"x-SWITCH: no-engine\n\n", False, b"\n"),
        (b"x-swi", b"tch: no-engine\n\n", False, b"\n"),
        (b"", b"x-switch: a", True, b""),
        (b"", b"A" * MAX_HEAD_BYTES, False, None),
        (b"", b"A" * (MAX_HEAD_BYTES + 1), True, b"A" * (MAX_HEAD_BYTES + 1)),
    ],
)
def test_heads(held: bytes, data: bytes, last: bool, expected: bytes | None) -> None:
    assert without_own_field(held, data, last) == expected


@pytest.mark.parametrize("line", [b"A: b\n", b"X-Switch: a\n"])
@pytest.mark.parametrize("piece_bytes", [1000, MAX_HEAD_BYTES, 10 * MAX_HEAD_BYTES])
def test_a_field_of_x_switch_never_follows_a_long_head(line: bytes, piece_bytes: int) -> None:
    """The head is 502 before a byte of it is sent, and the engine ends: its script still writes."""
    bench = Bench()
    exchange = bench.bring_to(State.RUNNING)
    head = b"A: b\n" + line * (MAX_HEAD_BYTES // len(line) + 1)
    for begin in range(0, len(head), piece_bytes):
        if exchange.state is not State.DONE:
            exchange.output_arrived(head[begin : begin + piece_bytes])
    [(name, page, _)] = bench.client.calls
    assert name == "end_response" and page.startswith(b"Status: 502")
    assert [name for name, *_ in bench.engine.calls] == ["discard"]
    assert "more than 65536 bytes" in bench.services.said[-1]


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"Status: 404\r\nX-Switch: refused\r\n\r\n", b"Status: 404\r\nX-Switch: refused\r\n\r\n"),
        (b"Status: 500\r\nX-Switch: no-engine\r\n\r\n", b"Status: 500\r\n\r\n"),
    ],
)
def test_only_a_refusal_of_another_x_switch_stays_marked(head: bytes, expected: bytes) -> None:
    assert without_own_field(b"", head, is_far=True) == expected
    assert b"X-Switch" not in (without_own_field(b"", head) or b"")


def test_a_request_that_the_protocol_cannot_carry() -> None:
    bench = Bench(HTTP_X="a\0b")
    bench.exchange.own_variables = {b"SCRIPT_FILENAME": b"/x.py"}
    with pytest.raises(ProtocolError):
        bench.exchange.make_engine_request()


def test_the_fakes_are_like_the_real_ones() -> None:
    """ScriptRunner is what an exchange calls: the engine has all of it."""
    from ewe.xswitch.switch.engine import Engine

    names = {name for name in vars(ScriptRunner) if not name.startswith("_")}
    assert names and all(callable(getattr(Engine, name)) for name in names)
