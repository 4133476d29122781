"""Turns: one thread computes after the other, and none waits for ever for one that hangs."""

from __future__ import annotations

import os
import threading
import time

import pytest
from support.server import wait_until

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


def test_who_hangs_does_not_hold_the_others() -> None:
    shared = Turns(0.01)
    with shared.one_at_a_time():
        with shared.one_at_a_time():
            pass
        assert shared.lock.locked()  # it is still the first one's
    assert not shared.lock.locked()


@pytest.mark.starts_processes
def test_a_forked_process_begins_with_a_free_turn() -> None:
    """The thread that has the turn does not exist in the child."""
    shared = Turns(60)
    with shared.one_at_a_time():
        child = os.fork()
        if child == 0:
            with shared.one_at_a_time():
                os._exit(0 if shared.lock.locked() else 1)
        wait_until(lambda: os.waitpid(child, os.WNOHANG) == (child, 0), 10)
    assert not shared.lock.locked()
