"""Turns: one thread computes after the other, and none waits for ever for one that hangs."""

from __future__ import annotations

import threading
import time

import pytest

from ewe.gateway import turns
from ewe.gateway.turns import Turns


def test_one_after_the_other() -> None:
    shared = Turns()
    inside: list[int] = []
    most: list[int] = []

    def compute(number: int) -> None:
        with shared.one_at_a_time():
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.001)  # the other threads run
            inside.remove(number)

    threads = [threading.Thread(target=compute, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1] * 20


def test_a_turn_ends_with_an_exception() -> None:
    shared = Turns()
    with pytest.raises(ZeroDivisionError), shared.one_at_a_time():
        raise ZeroDivisionError
    assert not shared.lock.locked()


def test_who_hangs_does_not_hold_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_TIMEOUT_S", 0.01)
    shared = Turns()
    with shared.one_at_a_time():
        with shared.one_at_a_time():
            pass
        assert shared.lock.locked()  # it is still the first one's
    assert not shared.lock.locked()
