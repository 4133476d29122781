"""Executor threads: they make calls that may block, beside an event loop. `await stream.call()` uses them.

A WSGI application, or the driver of a database, may wait in the kernel for a long time. In most models such a call
occupies one thread or one process, which the model has given to the connection, and the conversation's own thread
makes the call. An event loop has one thread for all connections. There an executor thread makes the call, and the
conversation pauses:

    event loop                                        executor threads, at most `call-threads`
    conversation ── put(call) ──▶ waiting ──popleft──▶ call.run()
         ▲ pauses                                          │
         └── step() ◀── drain() ◀── done ◀──append─────────┘
                          ▲ call_soon_threadsafe(), once for all calls that end before the loop's next round

The change of threads is cheap: it needs no Future, no Task and no lock. Both queues are deques; their append() and
popleft() are atomic. Two costs remain: waking a thread (a futex), and the interpreter's lock, which only one thread
holds at a time. A thread is therefore woken only if it is needed:

- All threads sleep: one is woken, in the loop's next round. Many clients of a busy server send in the same round.
  A thread that the first of them woke would compete with the loop for the interpreter's lock: it would take the
  lock for each call and give it back, instead of once for all calls of the round. The call of a single client waits
  for one more round of the loop.
- One thread is awake, and takes calls faster than one in WAKE_AFTER_S: this thread will take the new call, too.
  A second thread would only compete with it for the interpreter's lock.
- No thread has taken a call for WAKE_AFTER_S: the calls block. One more thread is woken, or started. If calls
  still wait after WAKE_AFTER_S, the number of threads that are awake doubles (wake_more).

A call is dropped when its conversation waits for it no longer: the client has left, or the deadline has passed. If
the call has not begun, it is never made. If it has begun, it cannot be stopped: nothing ends a thread from outside.
Its result is dropped, and a thread then calls `abandoned`, which can close the files that the call has opened.

Possible failures, and where each is prevented:

- A thread finds no call, and falls asleep at the moment when a call comes. The thread announces its sleep first,
  and looks for a call once more (work).
- Calls that never return occupy all threads, and other calls wait until their deadlines. Requests that need no
  executor thread, such as those for files, are still served.
- The server stops: close() waits for calls in progress, as the thread model does. The setting `grace` bounds the
  wait.

Read next: EventStream.call() in streams/event.py; Stream.call() in streams/base.py, which is the contract.
"""

from __future__ import annotations

import errno
import time
from _thread import LockType, allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ewe import logger

if TYPE_CHECKING:
    import asyncio

WAKE_AFTER_S = 0.001  # seconds that a call may wait before another thread is woken for it


class ExecutorCall:
    """One call of function(*arguments): an executor thread makes it, and stores `value` or `error`.

    resume: a function that the loop's thread calls when the call has ended, to resume the conversation; None if no
    conversation waits. abandoned: called instead of `resume` if the call was dropped; see Stream.call().
    """

    __slots__ = ("abandoned", "arguments", "dropped", "error", "function", "resume", "value")

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        resume: Callable[[], None] | None,
        abandoned: Callable[[], None] | None = None,
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.resume = resume
        self.abandoned = abandoned
        self.dropped = False  # the conversation waits for the call no longer
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Make the call, unless it was dropped, and keep its result or its exception."""
        if self.dropped:
            return
        try:
            self.value = self.function(*self.arguments)
        except BaseException as error:
            self.error = error

    def result(self) -> Any:
        """Return the function's result, or raise its exception."""
        error, self.error = self.error, None
        if error is None:
            return self.value
        try:
            raise error
        finally:
            del error  # otherwise the traceback refers to this frame, and the frame to the traceback


class ExecutorThreads:
    """The executor threads of one event loop. work() runs in them, every other method in the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_threads: int) -> None:
        """max_threads: the largest number of threads. Each thread starts when it is first needed."""
        self.loop = loop
        self.max_threads = max_threads
        self.waiting: deque[ExecutorCall | None] = deque()  # None ends the thread that takes it
        self.ended_calls: deque[ExecutorCall] = deque()
        self.drain_scheduled = False  # the loop is going to call drain()
        self.count = 0  # started threads
        self.thread_ends: SimpleQueue[None] = SimpleQueue()  # one entry for each thread that has ended
        self.sleeping: list[LockType] = []  # one lock for each thread that waits for a call
        self.last_taken_at = 0.0  # time.monotonic() when a thread last took a call, or was woken for one
        self.wake_planned = False  # the loop is going to call wake_for_round()
        self.watching = False  # the loop is going to call wake_more()
        self.first: ExecutorCall | None = None  # the call that had waited longest when wake_more() last ran

    def put(self, call: ExecutorCall) -> None:
        """Have a thread make a call."""
        self.waiting.append(call)
        if self.wake_planned:
            return
        now = time.monotonic()
        if len(self.sleeping) == self.count or now - self.last_taken_at > WAKE_AFTER_S:
            if self.sleeping:
                self.wake_planned = True
                self.loop.call_soon(self.wake_for_round)
            else:
                self.last_taken_at = now  # the new thread will take a call; until then no other one is woken
                self.wake()
        else:
            self.watch()

    def wake_for_round(self) -> None:
        """Wake a thread for the calls of the loop's last round, unless a thread has taken them already."""
        self.wake_planned = False
        if not self.waiting:
            return
        if len(self.waiting) > 1:
            self.watch()  # the first call may block
        self.last_taken_at = time.monotonic()  # the woken thread will take a call
        self.wake()

    def watch(self) -> None:
        """Plan wake_more(), unless it is planned."""
        if not self.watching:
            self.watching = True
            self.loop.call_later(WAKE_AFTER_S, self.wake_more)

    def wake(self) -> None:
        """Wake a sleeping thread. If none sleeps, start another one, up to max_threads.

        Raises OSError(EAGAIN) if no thread runs, and the system refuses to start one.
        """
        try:
            self.sleeping.pop().release()
        except IndexError:
            if self.count < self.max_threads:
                self.count += 1
                try:
                    start_new_thread(self.work, ())
                except RuntimeError as reason:
                    self.count -= 1
                    # If other threads run, one of them takes the call later.
                    if not self.count:
                        self.waiting.clear()
                        # EAGAIN is one of the errors for which the client gets a 503 (EXHAUSTED in descriptors.py).
                        raise OSError(errno.EAGAIN, str(reason)) from None

    def wake_more(self) -> None:
        """Double the number of threads that are awake, if the first call has waited since the last wake_more().

        Plan the next wake_more(), unless no call waits or all threads are awake.
        """
        self.watching = False
        try:
            first = self.waiting[0]
        except IndexError:
            self.first = None
            return
        if first is self.first:
            awake = self.count - len(self.sleeping)
            # 0 for a moment: a thread that has found no call is in `sleeping` already while it looks once more
            for _ in range(max(1, awake)):
                self.wake()
        # If every thread is awake already, another wake_more() would change nothing. Then no reference to the call
        # stays, since it would keep the call's result in memory.
        self.watching = bool(self.sleeping) or self.count < self.max_threads
        self.first = first if self.watching else None
        if self.watching:
            self.loop.call_later(WAKE_AFTER_S, self.wake_more)

    def work(self) -> None:
        """Make calls, in a thread, until close()."""
        waiting, sleeping = self.waiting, self.sleeping
        lock = allocate_lock()
        lock.acquire()  # so that a second acquire() waits, until wake() releases the lock
        while True:
            try:
                call = waiting.popleft()
            except IndexError:
                sleeping.append(lock)
                # A call may have come before put() could see this thread in `sleeping`. Then remove the thread from
                # `sleeping` again, unless the loop has just begun to wake it.
                if waiting:
                    try:
                        sleeping.remove(lock)
                        continue
                    except ValueError:
                        pass
                lock.acquire()  # sleep
                continue
            if call is None:
                self.thread_ends.put(None)
                return
            self.last_taken_at = time.monotonic()
            call.run()
            self.ended_calls.append(call)
            if not self.drain_scheduled:
                self.drain_scheduled = True
                self.loop.call_soon_threadsafe(self.drain)
            del call  # otherwise the call's result would stay in memory while this thread sleeps

    def drain(self) -> None:
        """Resume the conversations whose calls have ended."""
        self.drain_scheduled = False  # before the loop: a call that ends from now on schedules drain() again
        while self.ended_calls:
            self.resume_or_abandon(self.ended_calls.popleft(), self.put)

    def resume_or_abandon(self, call: ExecutorCall, put: Callable[[ExecutorCall], None]) -> None:
        """Resume the conversation of a call that has ended, or have `abandoned` called if the call was dropped."""
        if not call.dropped:
            if call.resume is not None:
                call.resume()
            else:
                try:
                    call.result()
                except BaseException:
                    logger.errors.exception("a call that was given up could not be cleaned up")
        elif call.abandoned is not None:
            put(ExecutorCall(call.abandoned, (), None))

    def close(self) -> None:
        """End the threads when their calls have ended, and clean up after dropped calls."""
        # One None for each thread comes first: a thread that adds itself to `sleeping` from now on finds it.
        self.waiting.extend([None] * self.count)
        while self.sleeping:
            self.sleeping.pop().release()
        for _ in range(self.count):
            self.thread_ends.get()  # for a call that never returns, an alarm ends the process (server/worker.py)
        while self.ended_calls:
            self.resume_or_abandon(self.ended_calls.popleft(), self.clean_up)

    def clean_up(self, call: ExecutorCall) -> None:
        """Make a call in this thread, since the executor threads have ended."""
        call.run()
        self.resume_or_abandon(call, self.clean_up)
