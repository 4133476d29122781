"""Loops: how a conversation works together with coroutines of asyncio, under every model.

An application of asyncio (ASGI) awaits asyncio's futures, so it runs as a Task of an event loop. A conversation
awaits its stream, and its model resumes it. Neither can await what the other one awaits. They meet at a Meeting:

    the application, on a loop                Meeting              the conversation, under any model
    post(item)  ───────────────────────────▶  items  ───────────▶  await take()
    function(*arguments)  ◀────────────────────────────────────────  call(function, *arguments)

Which loop, and what a meeting costs, is the model's decision:

- **asyncio, X-Switch**: the model's own loop, in the same thread. post() resumes the conversation directly, as
  the loop's callbacks do, and call() is a call. From Python 3.12 on, the application starts in place, and an answer
  that never waits costs no round of the loop. Python 3.11 starts every Task in the loop's next round.
- **serial, fork, prefork, thread, pool**: one loop for each process, in a separate thread (LoopThread). The
  conversation waits in poll(2) for a Waker and for its client's end; two changes of thread for each answer.

Why one loop for a process, and not one for each thread? What an application opens when it starts (a pool of
database connections, a queue, a background task) belongs to the loop on which it was opened, and all requests use
it. A second loop could not. A loop that runs only while a request is answered would stop the background tasks.

What can go wrong: a fork copies the loop's memory, but not its thread. LoopThread.of_this_process() therefore
compares the number of the process, and a child starts another loop. Signals are blocked in the loop's thread,
since Python handles them in the main thread. A resumed conversation may find that it was woken for an item that it
has taken already, so take() looks again.

Read next: gateway/asgi.py, which speaks ASGI over a meeting.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from contextvars import Context
from typing import Any, Protocol, TypeVar

from ewe.streams.base import Disconnected, Poller, Stream, Timeout, Want
from ewe.streams.descriptors import Waker
from ewe.streams.event import EventPoller, EventStream
from ewe.streams.flag import Flag
from ewe.streams.poller import HALF_CLOSED

T = TypeVar("T")

# A signal that arrives just before a thread begins to wait does not interrupt the wait, and its handler runs only
# afterwards. Waits for what a handler may change are therefore at most this long.
LOOK_S = 1.0
# What rooms above, which may not import asyncio, use of it
Cancelled = asyncio.CancelledError
Event = asyncio.Event
get_running_loop = asyncio.get_running_loop


class Meeting(Protocol):
    """Connects one conversation with one coroutine of a loop."""

    loop: asyncio.AbstractEventLoop
    items: deque[Any]

    def post(self, item: Any) -> None:
        """Give the conversation an item; on the loop. The conversation may go on before post() returns."""
        ...

    def post_soon(self, item: Any) -> None:
        """Give the conversation an item; on the loop. The conversation goes on after the coroutine has paused."""
        ...

    async def take(self, seconds: float) -> Any:
        """Return the next item; in the conversation. Raises Timeout after `seconds`, Disconnected."""
        ...

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have the loop call a function; in the conversation."""
        ...

    def close(self) -> None:
        """End the meeting; in the conversation."""
        ...


class EventMeeting:
    """A meeting in one thread: the conversation's loop is the coroutine's, too."""

    __slots__ = ("items", "loop", "stream")

    def __init__(self, stream: EventStream) -> None:
        self.stream = stream
        self.loop = stream.loop
        self.items: deque[Any] = deque()

    def post(self, item: Any) -> None:
        self.items.append(item)
        self.stream.happened(Want.PROGRAM)

    def post_soon(self, item: Any) -> None:
        self.items.append(item)
        if len(self.items) == 1:
            self.loop.call_soon(self.stream.happened, Want.PROGRAM)

    async def take(self, seconds: float) -> Any:
        if not self.items:
            stream, clock = self.stream, self.stream.clock
            began = clock.now
            while not self.items:
                if stream.ended and clock.now > max(began, stream.client_ended_at) + HALF_CLOSED:
                    raise Disconnected
                left = began + seconds - clock.now
                if left < 0:
                    raise Timeout
                try:
                    await stream.wait(Want.PROGRAM, min(left, HALF_CLOSED))
                except Timeout:
                    continue
        return self.items.popleft()

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        function(*arguments)

    def close(self) -> None:
        pass


class ThreadMeeting:
    """A meeting of two threads: the conversation may block, and the loop has a separate thread."""

    __slots__ = ("bell", "items", "loop", "open", "poller")

    # Those of meetings that have ended. One that rings late only makes take() look once more.
    bells: deque[Waker] = deque()

    def __init__(self, poller: Poller, loop: asyncio.AbstractEventLoop) -> None:
        self.poller = poller
        self.loop = loop
        self.items: deque[Any] = deque()
        self.open = True
        try:
            self.bell = self.bells.pop()
        except IndexError:
            self.bell = Waker()

    def post(self, item: Any) -> None:
        self.items.append(item)
        if self.open:
            self.bell.wake()

    post_soon = post

    async def take(self, seconds: float) -> Any:
        while not self.items:
            if not await self.poller.wait((self.bell.reader,), time.monotonic(), seconds):
                raise Timeout
            self.bell.clear()
        return self.items.popleft()

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            pass  # the loop is closed: the process ends

    def close(self) -> None:
        if self.open:
            self.open = False
            self.bells.append(self.bell)


def meet(io: Stream, choice: str) -> Meeting:
    """Return a meeting for the conversation over this stream. choice: the kind of loop (setting `loop`)."""
    poller = io.poller()
    if isinstance(poller, EventPoller):
        return EventMeeting(poller.stream)
    return ThreadMeeting(poller, LoopThread.of_this_process(choice).loop)


def start_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], context: Context
) -> asyncio.Task[T]:
    """Run a coroutine as a Task, on the running loop. From Python 3.12 on it runs in place to its first wait."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, context=context, eager_start=True)
    return loop.create_task(work, context=context)


class LoopThread:
    """An event loop in a separate thread; the loop of all applications of this process."""

    current: LoopThread | None = None
    starting = threading.Lock()

    def __init__(self, choice: str) -> None:
        self.process = os.getpid()
        self.loop = loop_maker(choice)[0]()
        self.thread = threading.Thread(target=self.work, name="applications", daemon=True)
        self.thread.start()

    @classmethod
    def of_this_process(cls, choice: str) -> LoopThread:
        """Return this process's loop; start it if there is none."""
        found = cls.current
        if found is None or found.process != os.getpid():
            with cls.starting:
                found = cls.current
                if found is None or found.process != os.getpid():
                    found = cls.current = cls(choice)
        return found

    @classmethod
    def existing(cls) -> LoopThread | None:
        """Return this process's loop, None if it was not started."""
        found = cls.current
        return found if found is not None and found.process == os.getpid() else None

    def work(self) -> None:
        """Run the loop, in its thread."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, from another thread, and return what it returns."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        while not future.done():
            wait((future,), LOOK_S)
        return future.result()

    def close(self) -> None:
        """Stop the loop, and end its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
        LoopThread.current = None


async def until(event: asyncio.Event, seconds: float, given_up: Flag) -> bool:
    """Wait until an event is set; return False if `seconds` pass, or if `given_up` is raised, before it is."""
    if event.is_set():
        return True
    task = asyncio.ensure_future(event.wait())
    await settle(task, seconds, given_up)
    task.cancel()
    return event.is_set()


async def unless(work: Coroutine[Any, Any, None], given_up: Flag) -> None:
    """Run a coroutine to its end, or until `given_up` is raised; then it is cancelled. Raises what it raises."""
    task = asyncio.ensure_future(work)
    await settle(task, math.inf, given_up)
    if task.done():
        task.result()
    else:
        task.cancel()


async def settle(task: asyncio.Future[Any], seconds: float, given_up: Flag) -> None:
    """Wait until a task has ended, `seconds` have passed, or `given_up` is raised."""
    loop = asyncio.get_running_loop()
    told = loop.create_future()

    def tell() -> None:
        loop.call_soon_threadsafe(resolve, told)

    expires = time.monotonic() + seconds
    given_up.watchers.append(tell)
    try:
        while not given_up.raised and not task.done() and (left := expires - time.monotonic()) > 0:
            both = (task, told)
            await asyncio.wait(both, timeout=min(left, LOOK_S), return_when=asyncio.FIRST_COMPLETED)
    finally:
        given_up.watchers.remove(tell)


def resolve(future: asyncio.Future[None]) -> None:
    """Give a future its result, unless it has one."""
    if not future.done():
        future.set_result(None)


def loop_maker(choice: str) -> tuple[Callable[[], asyncio.AbstractEventLoop], str]:
    """Return the function that makes the loop of a choice (auto, uvloop, asyncio), and the loop's name.

    Raises ImportError if the choice is uvloop and uvloop is not installed.
    """
    if choice != "asyncio":
        try:
            import uvloop
        except ImportError:
            if choice == "uvloop":
                raise
        else:
            return uvloop.new_event_loop, "uvloop"
    return asyncio.new_event_loop, "asyncio"
