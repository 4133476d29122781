"""A stop wakes the code that waits on an event loop; it does not poll (streams/loops.py)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest
from support.server import wait_until as wait_until_true

from ewe import logger
from ewe.streams import loops
from ewe.streams.descriptors import EXHAUSTED
from ewe.streams.flag import Flag
from ewe.streams.loops import LoopThread, run_loop, run_unless_given_up, wait_until


@pytest.fixture(autouse=True)
def no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the interval of polling an hour long."""
    monkeypatch.setattr(loops, "LOOK_S", 3600.0)


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    found = LoopThread("asyncio")
    yield found
    found.close()


async def waiting(flag: Flag) -> None:
    """Return once a thread waits for the flag, and the loop sleeps."""
    while not flag.watchers:
        await asyncio.sleep(0)


def test_an_event_and_a_flag_end_a_wait() -> None:
    async def go(end: str) -> bool:
        event, flag = asyncio.Event(), Flag()
        wait = asyncio.ensure_future(wait_until(event, 3600, flag))
        await waiting(flag)
        if end == "event":
            event.set()
        else:
            threading.Thread(target=flag.set).start()
        done = await asyncio.wait_for(wait, 30)
        assert not flag.watchers
        return done

    assert asyncio.run(go("event")) is True
    assert asyncio.run(go("flag")) is False


def test_the_end_of_time_and_what_was_there_before() -> None:
    async def go() -> None:
        event, raised = asyncio.Event(), Flag()
        raised.set()
        assert await wait_until(event, 0, Flag()) is False
        assert await wait_until(event, 3600, raised) is False
        event.set()
        assert await wait_until(event, 0, Flag()) is True

    asyncio.run(go())


def test_a_signal_ends_what_the_main_thread_waits_for(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop while an application starts: the handler raises the flag, and the start is given up."""
    monkeypatch.setattr(loops, "LOOK_S", 0.5)  # the signal may come just before the wait begins
    flag, cancelled = Flag(), threading.Event()

    async def never() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(os.kill, os.getpid(), signal.SIGUSR1)
        try:
            await loop.create_future()
        finally:
            cancelled.set()

    before = signal.signal(signal.SIGUSR1, lambda *_: flag.set())
    try:
        thread.run(run_unless_given_up(never(), flag))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert cancelled.wait(30)


def test_a_system_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one of a lacking resource, for which a client gets a 503. The loop is closed."""
    made: list[asyncio.AbstractEventLoop] = []

    def fails(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def make() -> asyncio.AbstractEventLoop:
        made.append(asyncio.new_event_loop())
        return made[0]

    monkeypatch.setattr(loops, "loop_kind", lambda choice: loops.LoopKind(choice, make))
    monkeypatch.setattr(threading.Thread, "start", fails)
    with pytest.raises(OSError, match="can't start new thread") as refused:
        LoopThread("asyncio")
    assert refused.value.errno in EXHAUSTED and made[0].is_closed()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_task_that_calls_exit_ends_no_loop(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    """The other applications of the process run on the same loop."""
    lines: list[str] = []
    monkeypatch.setattr(logger.errors, "exception", lines.append)

    async def exits() -> None:
        raise kind

    async def answers() -> int:
        return 7

    tasks: list[asyncio.Task[None]] = []
    thread.loop.call_soon_threadsafe(lambda: tasks.append(thread.loop.create_task(exits())))
    wait_until_true(lambda: lines, 30)
    assert asyncio.run_coroutine_threadsafe(answers(), thread.loop).result(30) == 7
    assert lines == ["a task of an application has called exit()"]
    assert isinstance(tasks[0].exception(), kind)


def test_an_exit_in_the_round_of_a_stop_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop forgets the stop. A run that went on would never end, and neither would the server."""
    lines: list[str] = []
    monkeypatch.setattr(logger.errors, "exception", lines.append)
    loop = asyncio.new_event_loop()
    loop.call_soon(loop.stop)
    loop.call_soon(sys.exit)
    run_loop(loop)
    loop.close()
    assert lines == ["a task of an application has called exit()"]
