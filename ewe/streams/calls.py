"""Calls that may block, made by threads beside an event loop: what `await stream.call()` is under the event model.

A WSGI application, or the driver of a database, waits in the kernel as long as it likes. In most models that holds
one thread or one process, which is what the model has them for, and the call is made in place. An event loop has
one thread for all connections. There the call hops to another thread, and its conversation pauses:

    event loop                                        call threads, at most `call-threads`
    conversation ── put(call) ──▶ waiting ──popleft──▶ call.run()
         ▲ pauses                                          │
         └── step() ◀── drain() ◀── done ◀──append─────────┘
                          ▲ call_soon_threadsafe(), once for all calls that end before the loop's next round

The hop is as cheap as it can be made: no Future, no Task, no lock on the way. Both queues are deques, whose append
and popleft are atomic. What costs is waking a thread (a futex) and the interpreter's lock, which only one thread
holds at a time. A thread is therefore woken only if it is needed:

- All threads sleep: one is woken.
- One is awake, and makes calls faster than one in PATIENCE seconds: it will take this call, too. To wake another
  would only make two threads compete for the interpreter's lock.
- No call was taken for PATIENCE seconds: the calls block. One more thread is woken, or started. If calls still wait
  after PATIENCE seconds, the number of threads that are awake doubles (look).

A call that nobody waits for any more (the client has left, or the deadline has passed) is dropped. A call that has
not begun is never made. One that has begun cannot be stopped: nothing ends a thread from outside. Its result is
forgotten, and `abandoned` is called in a thread afterwards, so that what the call has opened can be closed.

What can go wrong, and where it is prevented:

- A thread finds nothing to do just when a call comes, and falls asleep. It announces its sleep first, and looks
  once more (work).
- Calls that never return hold all threads, and other calls wait until their deadlines. Nothing else is held: files
  are still served.
- A stop: close() waits for calls in progress, as the thread model does; the server's grace bounds the wait.

Read next: EventStream.call() in streams/event.py; Stream.call() in streams/base.py, which is the contract.
"""

from __future__ import annotations

import time
from _thread import LockType, allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ewe import logger

if TYPE_CHECKING:
    import asyncio

PATIENCE = 0.001  # seconds that a call may wait before another thread is woken for it


class Call:
    """One call. ended: told in the loop's thread when the call has ended. abandoned: see Stream.call()."""

    __slots__ = ("abandoned", "arguments", "dropped", "ended", "error", "function", "value")

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        ended: Callable[[], None] | None,
        abandoned: Callable[[], None] | None = None,
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.ended = ended
        self.abandoned = abandoned
        self.dropped = False  # nobody waits for the call any more
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Make the call, unless it was dropped, and keep its outcome."""
        if self.dropped:
            return
        try:
            self.value = self.function(*self.arguments)
        except BaseException as error:
            self.error = error

    def result(self) -> Any:
        """Return what the function returned, or raise what it raised."""
        error, self.error = self.error, None
        if error is None:
            return self.value
        try:
            raise error
        finally:
            del error  # else the traceback holds this frame, and the frame the traceback


class CallThreads:
    """The threads of one event loop. work() runs in them, every other method in the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        """most: how many threads there may be; each is started when it is first needed."""
        self.loop = loop
        self.most = most
        self.waiting: deque[Call | None] = deque()  # None: the threads end
        self.done: deque[Call] = deque()
        self.told = False  # the loop is going to call drain()
        self.count = 0  # threads that were started
        self.ended: SimpleQueue[None] = SimpleQueue()  # one entry for each thread that has ended
        self.sleeping: list[LockType] = []
        self.taken = 0.0  # when a thread last took a call, or was woken for one
        self.watching = False  # the loop is going to call look()
        self.first: Call | None = None  # the call that had waited longest at the last look

    def put(self, call: Call) -> None:
        """Have a thread make a call."""
        self.waiting.append(call)
        now = time.monotonic()
        if len(self.sleeping) == self.count or now - self.taken > PATIENCE:
            self.taken = now  # by the thread that wakes; else each call that comes now would wake one more
            self.wake()
        elif not self.watching:
            self.watching = True
            self.loop.call_later(PATIENCE, self.look)

    def wake(self) -> None:
        """Wake a thread; start one if none sleeps. Raises RuntimeError if the system gives not even one."""
        try:
            self.sleeping.pop().release()
        except IndexError:
            if self.count < self.most:
                self.count += 1
                try:
                    start_new_thread(self.work, ())
                except RuntimeError:
                    self.count -= 1
                    if not self.count:
                        self.waiting.clear()
                        raise

    def look(self) -> None:
        """Double the number of threads that are awake, if the same call waits as at the last look."""
        self.watching = False
        try:
            first = self.waiting[0]
        except IndexError:
            self.first = None
            return
        if first is self.first:
            for _ in range(max(1, self.count - len(self.sleeping))):
                self.wake()
        self.first = first
        if self.sleeping or self.count < self.most:  # else each thread that is done takes the next call
            self.watching = True
            self.loop.call_later(PATIENCE, self.look)

    def work(self) -> None:
        """Make calls, in a thread, until close()."""
        waiting, done, sleeping = self.waiting, self.done, self.sleeping
        lock = allocate_lock()
        lock.acquire()
        while True:
            try:
                call = waiting.popleft()
            except IndexError:
                sleeping.append(lock)
                # A call that came before put() could see this thread asleep: take the announcement back, unless
                # the loop has begun to wake this thread.
                if waiting:
                    try:
                        sleeping.remove(lock)
                        continue
                    except ValueError:
                        pass
                lock.acquire()
                continue
            if call is None:
                self.ended.put(None)
                return
            self.taken = time.monotonic()
            call.run()
            done.append(call)
            if not self.told:
                self.told = True
                self.loop.call_soon_threadsafe(self.drain)
            del call  # else what it returned would live as long as this thread sleeps

    def drain(self) -> None:
        """Resume the conversations whose calls have ended."""
        self.told = False  # first: a call that ends from now on tells the loop again
        while self.done:
            self.settle(self.done.popleft(), self.put)

    def settle(self, call: Call, put: Callable[[Call], None]) -> None:
        """Tell that a call has ended, if it was waited for; else have its `abandoned` called."""
        if not call.dropped:
            if call.ended is not None:
                call.ended()
            else:
                try:
                    call.result()
                except BaseException:
                    logger.errors.exception("a call that was given up could not be cleaned up")
        elif call.abandoned is not None:
            put(Call(call.abandoned, (), None))

    def close(self) -> None:
        """End the threads, once their calls have ended, and clean up after those that were dropped."""
        # First one None for each thread: a thread that announces its sleep from now on finds its own.
        self.waiting.extend([None] * self.count)
        while self.sleeping:
            self.sleeping.pop().release()
        for _ in range(self.count):
            self.ended.get()  # a signal handler may run meanwhile: abort() bounds the wait
        while self.done:
            self.settle(self.done.popleft(), self.clean_up)

    def clean_up(self, call: Call) -> None:
        """Make a call in place, now that there are no threads and no loop."""
        call.run()
        self.settle(call, self.clean_up)
