"""The seats of prefork's workers, when the supervisor looks at them, and the bookkeeping of the pool's threads."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest

from ewe import logger
from ewe.config.count_range import CountRange
from ewe.processors import pool_threads
from ewe.processors.growth import LOOK_S, WINDOW_S
from ewe.processors.pool_threads import REFUSED_S, PoolThread, PoolThreads
from ewe.processors.seats import IDLE
from ewe.server.growing import LONG_WAIT_S, QUIET_LOOK_S, SEATS, Growing, Seats

# Seats


def test_a_seat_is_reused_and_cleared() -> None:
    seats = Seats()
    first, second = seats.take_seat(), seats.take_seat()
    seats.map[first] = seats.map[second] = IDLE
    seats.free_seat(first)
    assert seats.is_idle(second)
    assert seats.take_seat() == first and not seats.is_idle(
        first
    )  # the last worker has left its byte as idle


def test_without_a_free_seat_a_worker_counts_as_busy() -> None:
    seats = Seats()
    numbers = [seats.take_seat() for _ in range(SEATS)]
    assert numbers[-2:] == [SEATS - 1] * 2 and len(set(numbers)) == SEATS - 1 and 0 not in numbers
    seats.map[SEATS - 1] = IDLE
    assert not seats.is_idle(SEATS - 1)


# When the supervisor looks


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def test_only_a_client_that_waits_makes_workers_starve(listening: socket.socket) -> None:
    growing = Growing([listening], CountRange(2, 9))
    assert growing.plan_difference(2, 0) == 0 and growing.due_at is None
    with socket.create_connection(listening.getsockname()):
        assert growing.plan_difference(2, 1) == 0 and growing.due_at is not None
        assert growing.plan_difference(2, 0) == 1
        assert growing.watched() == ()  # until the next look
        assert growing.waits_since is not None
        growing.waits_since -= LONG_WAIT_S
        assert not growing.waits_are_short()
        listening.accept()[0].close()
    assert (
        growing.plan_difference(3, 0) == 0 and growing.waits_are_short() and growing.watched() == [listening]
    )


def test_the_supervisor_sleeps_at_the_least_number(listening: socket.socket) -> None:
    growing = Growing([listening], CountRange(2, 9))
    growing.plan_difference(3, 3)
    assert growing.due_at is not None and growing.due_at <= time.monotonic() + QUIET_LOOK_S
    growing.plan_difference(2, 2)
    assert growing.due_at is None
    growing.span = CountRange(1, 9)
    assert growing.due_at is not None  # two are above the new least
    growing.span = CountRange(2)
    assert growing.next_look_at() is None and growing.watched() == ()


# The pool's threads


class Threads(PoolThreads):
    """Threads of a pool that never run: a test says what each of them has taken, and whether it is busy."""

    def __init__(self, least: int, most: int) -> None:
        self.waiting: SimpleQueue[Any] = SimpleQueue()
        self.numbers: list[int] = []
        super().__init__(lambda own: None, self.waiting, CountRange(least, most), self.numbers.append)
        self.start()
        self.look_from = 0.0

    def each(self, is_busy: bool, took: int = 0) -> None:
        for own in self.threads:
            own.is_busy = is_busy
            own.taken += took


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Start no thread. If the list has an entry, the system refuses each thread."""
    answers: list[bool] = []

    def start_new_thread(run: Callable[..., None], arguments: tuple[PoolThread]) -> None:
        if answers:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pool_threads, "start_new_thread", start_new_thread)
    return answers


def test_a_pool_grows_only_if_its_threads_took_less_than_waited(refused: list[bool]) -> None:
    threads = Threads(2, 9)
    for _ in range(6):
        threads.waiting.put(None)
    threads.each(is_busy=True)
    threads.adjust_threads(1.0)
    assert threads.count == 2  # nothing is known of the time before
    threads.each(is_busy=True, took=3)  # all six, and six others wait now
    threads.adjust_threads(2.0)
    assert threads.count == 2
    threads.each(is_busy=True, took=2)
    threads.adjust_threads(3.0)
    assert threads.count == 3 and threads.numbers == [3]
    threads.each(is_busy=True, took=0)
    threads.adjust_threads(3.0 + LOOK_S / 2)
    assert threads.count == 3  # too early
    threads.adjust_threads(3.0 + 2 * LOOK_S)
    assert threads.count == 5


def test_a_pool_with_an_idle_thread_does_not_grow(refused: list[bool]) -> None:
    threads = Threads(2, 9)
    threads.waiting.put(None)
    threads.each(is_busy=True)
    next(iter(threads.threads)).is_busy = False
    threads.adjust_threads(1.0)
    threads.adjust_threads(2.0)
    assert threads.count == 2


def test_a_refused_thread_is_told_once_and_tried_again_later(
    refused: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(logger.errors, "error", lines.append)
    threads = Threads(2, 9)
    threads.waiting.put(None)
    threads.each(is_busy=True)
    threads.adjust_threads(1.0)
    refused.append(True)
    threads.adjust_threads(2.0)
    assert threads.count == len(threads.threads) == 2 and len(lines) == 1
    assert "2 threads go on" in lines[0] and "poolthreads" in lines[0]
    refused.clear()
    threads.adjust_threads(2.0 + REFUSED_S / 2)
    assert threads.count == 2
    threads.adjust_threads(2.0 + REFUSED_S)
    assert threads.count > 2


def test_idle_threads_are_ordered_to_end_once(refused: list[bool]) -> None:
    threads = Threads(2, 9)
    threads.growth.begin_window(0.0)
    threads.start_threads(4)
    for number in range(1, 4):
        threads.adjust_threads(number * WINDOW_S)
    assert threads.count == 2 and threads.waiting.qsize() == 4
    assert threads.numbers == [2]


def test_a_thread_that_ends_is_forgotten() -> None:
    queue: SimpleQueue[Any] = SimpleQueue()
    threads = PoolThreads(lambda own: queue.get(), queue, CountRange(3), lambda count: None)
    assert threads.start() == 3
    threads.order_to_end(3)
    while threads.threads:
        time.sleep(0.01)
    assert threads.count == 0


def test_the_end_waits_for_threads_that_have_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python frees the state of such a thread when the interpreter ends, and the thread would use it."""
    kept: list[Callable[[], object]] = []
    monkeypatch.setattr(
        pool_threads, "start_new_thread", lambda function, args: kept.append(partial(function, *args))
    )
    queue: SimpleQueue[Any] = SimpleQueue()
    threads = PoolThreads(lambda own: queue.get(), queue, CountRange(2), lambda count: None)
    assert threads.start() == 2
    ends = [threading.Thread(target=threads.end), *(threading.Thread(target=each) for each in kept)]
    for number, each in enumerate(ends):
        each.start()
        ends[0].join(0.1 if number < 2 else 60)
        assert ends[0].is_alive() == (number < 2)
    for each in ends:
        each.join()


def test_a_pool_that_waits_in_the_kernel_wakes_to_grow_and_to_shrink(refused: list[bool]) -> None:
    threads = Threads(2, 9)
    assert threads.wait_s() == -1
    threads.waiting.put(None)
    assert threads.wait_s() == LOOK_S
    threads.waiting.get()
    threads.start_threads(1)
    assert LOOK_S <= threads.wait_s() <= WINDOW_S
    assert Threads(3, 3).wait_s() == -1
