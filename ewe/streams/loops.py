"""Loops: how a conversation works together with coroutines of asyncio, under every model.

An asyncio application (ASGI) awaits asyncio's futures, so it runs as a Task of an event loop. A conversation awaits
its stream, and its model resumes it. Neither can await the other's objects. A CallChannel connects the two:

    the application, on a loop              CallChannel            the conversation, under any model
    post(item)  ───────────────────────────▶  items  ───────────▶  await take()
    function(*arguments)  ◀────────────────────────────────────────  call(function, *arguments)

The model decides which loop is used, and so the cost of a channel:

- **asyncio, X-Switch**: the model's own loop, in the same thread. post() resumes the conversation directly, like
  the loop's callbacks, and call() calls the function directly. From Python 3.12 on, the application starts at once,
  and an answer that never waits costs no round of the loop. Python 3.11 starts every Task in the loop's next round.
- **serial, fork, prefork, thread, pool**: one loop for each process, in a separate thread (LoopThread). The
  conversation waits in poll(2) for a Waker, and for its client to leave. Each answer costs two changes of thread.

Why one loop for each process, and not one for each thread? When an application starts, it may open a pool of
database connections, a queue or a background task. These belong to the loop on which they were opened, and all
requests use them. A second loop could not use them. A loop that ran only while a request is answered would stop the
background tasks.

Possible failures: a fork copies the loop's memory, but not its thread. LoopThread.of_this_process() therefore
compares process ids, and a child starts another loop. The loop's thread blocks all signals, since Python handles
them in the main thread. A conversation may be woken for an item that it has taken already, so take() checks `items`
again.

Read next: gateway/asgi.py, which speaks ASGI over a channel.
"""

from __future__ import annotations

import asyncio
import errno
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
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from ewe import logger
from ewe.streams.base import Disconnected, Poller, Stream, Timeout, Want
from ewe.streams.descriptors import Waker
from ewe.streams.flag import Flag
from ewe.streams.poller import HALF_CLOSED_S

if TYPE_CHECKING:
    from ewe.streams.event_poller import PausingStream

T = TypeVar("T")

# A signal that arrives just before a thread begins to wait does not interrupt the wait, and its handler runs only
# afterwards. A wait for a flag that a handler may raise is therefore at most this long.
LOOK_S = 1.0
# For packages above this one, which may not import asyncio themselves.
Cancelled = asyncio.CancelledError
Event = asyncio.Event
get_running_loop = asyncio.get_running_loop


class CallChannel(Protocol):
    """Connects one conversation with one coroutine of a loop."""

    loop: asyncio.AbstractEventLoop
    items: deque[Any]

    def post(self, item: Any) -> None:
        """Give the conversation an item, from the coroutine. The conversation may run before post() returns."""
        ...

    def post_soon(self, item: Any) -> None:
        """Give the conversation an item, from the coroutine. The conversation runs after the coroutine pauses."""
        ...

    async def take(self, seconds: float) -> Any:
        """Return the next item to the conversation. Raises Timeout after `seconds`, Disconnected."""
        ...

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have the loop call a function. The conversation calls this."""
        ...

    def close(self) -> None:
        """End the channel. The conversation calls this."""
        ...


class SameLoopChannel:
    """A channel in one thread: the same loop runs the conversation and the coroutine."""

    __slots__ = ("items", "loop", "stream")

    def __init__(self, stream: PausingStream) -> None:
        self.stream = stream
        self.loop = stream.loop
        self.items: deque[Any] = deque()

    def post(self, item: Any) -> None:
        """Give the conversation an item. If it waits in take(), it runs before post() returns."""
        self.items.append(item)
        self.stream.resume_if_waiting_for(Want.PROGRAM)

    def post_soon(self, item: Any) -> None:
        """Give the conversation an item. If it waits in take(), it runs in the loop's next round."""
        self.items.append(item)
        if len(self.items) == 1:
            self.loop.call_soon(self.stream.resume_if_waiting_for, Want.PROGRAM)

    async def take(self, seconds: float) -> Any:
        """Return the next item; pause until the coroutine has posted one.

        Raises Timeout after `seconds`; Disconnected if the client leaves, or HALF_CLOSED_S after it has closed its
        sending side.
        """
        if not self.items:
            stream, clock = self.stream, self.stream.clock
            began = clock.now
            while not self.items:
                if stream.client_ended and clock.now > max(began, stream.client_ended_at) + HALF_CLOSED_S:
                    raise Disconnected
                left_s = began + seconds - clock.now
                if left_s < 0:
                    raise Timeout
                try:
                    await stream.wait(Want.PROGRAM, min(left_s, HALF_CLOSED_S))
                except Timeout:
                    continue
        return self.items.popleft()

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call the function now: the conversation runs in the thread of the loop."""
        function(*arguments)

    def close(self) -> None:
        """Do nothing: the channel has no descriptor."""


class CrossThreadChannel:
    """A channel of two threads: the conversation may block, and the loop has a separate thread."""

    __slots__ = ("items", "loop", "open", "poller", "waker")

    # The Wakers of ended channels, for reuse. A late wake() only makes take() check `items` once more.
    wakers: deque[Waker] = deque()

    def __init__(self, poller: Poller, loop: asyncio.AbstractEventLoop) -> None:
        self.poller = poller
        self.loop = loop
        self.items: deque[Any] = deque()
        self.open = True
        try:
            self.waker = self.wakers.pop()
        except IndexError:
            self.waker = Waker()

    def post(self, item: Any) -> None:
        """Give the conversation an item, and wake its thread. After close(), the item is lost."""
        self.items.append(item)
        # The Waker of a closed channel may already belong to another channel.
        if self.open:
            self.waker.wake()

    post_soon = post

    async def take(self, seconds: float) -> Any:
        """Return the next item; wait until the loop's thread has posted one. Raises Timeout after `seconds`,
        Disconnected.
        """
        while not self.items:
            ready = await self.poller.wait((self.waker.reader,), since=time.monotonic(), seconds=seconds)
            if not ready:
                raise Timeout
            self.waker.clear()
        return self.items.popleft()

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have the loop call the function in its thread; do nothing if the loop is closed."""
        try:
            self.loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            pass  # the loop is closed: the process ends

    def close(self) -> None:
        """Give the Waker back for the next channel."""
        if self.open:
            self.open = False
            self.wakers.append(self.waker)


def open_channel(io: Stream, choice: str) -> CallChannel:
    """Return a new channel for the conversation over this stream. choice: the kind of loop (setting `loop`)."""
    # Not io.poller(): a trace stands before it, and the application would run on another loop than its start.
    stream: PausingStream | None = io.event_stream()
    if stream is not None:
        return SameLoopChannel(stream)
    return CrossThreadChannel(io.poller(), LoopThread.of_this_process(choice).loop)


def start_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], context: Context
) -> asyncio.Task[T]:
    """Run a coroutine as a Task, on the running loop. context: the Task's context variables.

    From Python 3.12 on it runs to its first wait at once, which saves a round of the loop.
    """
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, context=context, eager_start=True)
    return loop.create_task(work, context=context)


class LoopThread:
    """An event loop in a separate thread. It runs all applications of this process."""

    current: LoopThread | None = None
    starting = threading.Lock()

    def __init__(self, choice: str) -> None:
        """choice: the kind of loop (setting `loop`). Raises OSError if the system starts no thread."""
        self.process = os.getpid()
        self.loop = loop_kind(choice).make()
        self.ends = False  # close() has been called
        self.thread = threading.Thread(target=self.work, name="applications", daemon=True)
        try:
            self.thread.start()
        except RuntimeError as reason:
            self.loop.close()
            raise OSError(errno.EAGAIN, str(reason)) from None  # the client gets a 503

    @classmethod
    def of_this_process(cls, choice: str) -> LoopThread:
        """Return this process's loop; start one if there is none."""
        found = cls.current
        if found is None or found.process != os.getpid():
            with cls.starting:
                found = cls.current
                if found is None or found.process != os.getpid():
                    found = cls.current = cls(choice)
        return found

    @classmethod
    def existing(cls) -> LoopThread | None:
        """Return this process's loop; None if no loop was started."""
        found = cls.current
        return found if found is not None and found.process == os.getpid() else None

    def work(self) -> None:
        """Run the loop, in its thread."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        asyncio.set_event_loop(self.loop)
        while not self.ends:
            run_loop(self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, from another thread, and return its result."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        while not future.done():
            wait((future,), LOOK_S)
        return future.result()

    def close(self) -> None:
        """Stop the loop, and end its thread."""
        self.ends = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
        LoopThread.current = None


def run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until its stop(), or until a task of an application calls exit(), which must not end the server.

    The same holds for a KeyboardInterrupt of a task: Ctrl-C has a handler. A stop() in the round of the exit() is
    lost. The caller therefore checks for itself whether the loop goes on.
    """
    try:
        loop.run_forever()
    except (SystemExit, KeyboardInterrupt):
        logger.errors.exception("a task of an application has called exit()")


async def wait_until(event: asyncio.Event, seconds: float, given_up: Flag) -> bool:
    """Wait until `event` is set. Return False if `seconds` pass, or `given_up` is raised, before that."""
    if event.is_set():
        return True
    task = asyncio.ensure_future(event.wait())
    await wait_for_task(task, seconds, given_up)
    task.cancel()
    return event.is_set()


async def run_unless_given_up(work: Coroutine[Any, Any, None], given_up: Flag) -> None:
    """Run a coroutine to its end; cancel it if `given_up` is raised first. Raises the coroutine's exceptions."""
    task = asyncio.ensure_future(work)
    await wait_for_task(task, seconds=math.inf, given_up=given_up)
    if task.done():
        task.result()
    else:
        task.cancel()


async def wait_for_task(task: asyncio.Future[Any], seconds: float, given_up: Flag) -> None:
    """Wait until a task has ended, `seconds` have passed, or `given_up` is raised."""
    loop = asyncio.get_running_loop()
    raised = loop.create_future()

    def end_wait() -> None:
        loop.call_soon_threadsafe(resolve, raised)

    expires = time.monotonic() + seconds
    given_up.watchers.append(end_wait)
    try:
        while not given_up.raised and not task.done() and (left_s := expires - time.monotonic()) > 0:
            # end_wait() may run in a signal handler just before the loop begins to wait: see LOOK_S.
            left_s = min(left_s, LOOK_S)
            await asyncio.wait((task, raised), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        given_up.watchers.remove(end_wait)


def resolve(future: asyncio.Future[None]) -> None:
    """Give a future the result None, unless it is done."""
    if not future.done():
        future.set_result(None)


class LoopKind(NamedTuple):
    """A kind of event loop: its name, and the function that makes one."""

    name: str
    make: Callable[[], asyncio.AbstractEventLoop]


def loop_kind(choice: str) -> LoopKind:
    """Return the kind of loop for a value of the setting `loop`: auto, uvloop or asyncio.

    Raises ImportError if the choice is uvloop and uvloop is not installed.
    """
    if choice != "asyncio":
        try:
            import uvloop
        except ImportError:
            if choice == "uvloop":
                raise
        else:
            return LoopKind("uvloop", uvloop.new_event_loop)
    return LoopKind("asyncio", asyncio.new_event_loop)
