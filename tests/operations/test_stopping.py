"""The stop of the server by itself, without a process: its signals, its deadline, and the exit status."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from ewe.server import stopping
from ewe.server.stopping import Stopping
from ewe.server.worker import ABORT_TIMEOUT_S, ABORTED, FAILED, STOPPED

GRACE_S = 5.0
INT, TERM, QUIT = signal.SIGINT, signal.SIGTERM, signal.SIGQUIT


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still until the test sets `now`."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(stopping, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.mark.parametrize(
    ("numbers", "sent"),
    [
        ((TERM, TERM), [TERM, TERM]),
        ((INT, INT), [TERM, QUIT]),
        ((INT, TERM), [TERM, TERM]),
        ((QUIT,), [QUIT]),
    ],
)
def test_quit_and_a_second_int_abort_the_requests(numbers: tuple[int, ...], sent: list[int]) -> None:
    stop = Stopping()
    assert not stop
    assert [stop.begin_or_hasten(number, GRACE_S) for number in numbers] == sent
    assert stop


def test_a_second_signal_only_brings_the_deadline_forward(clock: SimpleNamespace) -> None:
    stop = Stopping()
    stop.begin_or_hasten(TERM, GRACE_S)
    assert stop.deadline == clock.now + GRACE_S + 2 * ABORT_TIMEOUT_S
    first = stop.deadline
    clock.now += 1
    stop.begin_or_hasten(TERM, GRACE_S)
    assert stop.deadline == first
    stop.begin_or_hasten(QUIT, GRACE_S)
    assert stop.deadline == clock.now + ABORT_TIMEOUT_S < first


def test_it_kills_again_if_a_worker_still_runs(clock: SimpleNamespace) -> None:
    stop = Stopping()
    assert not stop.is_overdue()  # it has not begun
    stop.begin_or_hasten(QUIT, GRACE_S)
    clock.now = stop.deadline
    assert not stop.is_overdue()
    clock.now += 0.1
    assert stop.is_overdue()
    stop.note_kill()
    assert not stop.is_overdue() and stop.status == ABORTED
    clock.now += ABORT_TIMEOUT_S
    assert stop.is_overdue()


def test_one_aborted_worker_decides_the_status() -> None:
    stop = Stopping()
    stop.note_status(STOPPED)
    assert stop.status == STOPPED
    for code in (FAILED, STOPPED):
        stop.note_status(code)
    assert stop.status == ABORTED
