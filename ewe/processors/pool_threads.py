"""The pool's threads: how many there are, and when there are more or fewer.

The main thread looks at the threads, and growth.py decides:

    main thread: adjust_threads() ─┬─ the queue makes a conversation wait for LOOK_S ─▶ start_new_thread: work()
                                   └─ some threads were idle for a whole window ─▶ one None in the queue for each

**When is a pool starved?** It is not enough that all threads are busy and the queue is not empty. A pool whose
clients are as fast as the server always looks like this, and one more thread would only compete for the same
processor. A conversation has to wait for too long: adjust_threads() counts the conversations that the threads have
taken from the queue since the last look. If these are fewer than the queue had then, one has waited for LOOK_S.

Each thread writes only to its own PoolThread, so these counts need no lock. The main thread alone adds threads, and
it alone orders them to end. The thread that finds the order (None) ends, whichever thread it is. It is between two
conversations then, so no client notices.

Possible failures: the system refuses a thread. The pool goes on with those that it has, says so once, and tries
again after REFUSED_S. A thread that ends takes its count with it. adjust_threads() therefore compares the counts of
each thread, and not their sum. A server that stops at once ends before the kernel has run its last thread. Python
then frees the state of that thread, which would begin with it (SIGSEGV). end() therefore waits for each beginning.

Read next: pool.py.
"""

from __future__ import annotations

import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ewe import logger
from ewe.config.count_range import CountRange, range_of
from ewe.processors.growth import LOOK_S, Growth

if TYPE_CHECKING:
    from ewe.config.settings import Config

REFUSED_S = 10.0  # seconds without another attempt after the system has refused a thread


def threads_of(config: Config) -> CountRange:
    """Return how many threads a pool has. By default it grows, but not with parking = never (as in 2006)."""
    starves = config.parking == "never" and config.origin("poolthreads") == "default"
    return CountRange(int(config.poolthreads)) if starves else range_of(config.poolthreads)


class PoolThread:
    """The counts of one thread. taken: the entries of the queue that it took. seen: `taken` at the last look.

    not_begun: a lock that the thread releases when it begins.
    """

    __slots__ = ("is_busy", "not_begun", "seen", "taken")

    def __init__(self) -> None:
        self.not_begun = allocate_lock()
        self.not_begun.acquire()
        self.is_busy = False
        self.taken = self.seen = 0


class PoolThreads:
    """The threads of a pool.

    work: what a thread runs; it gets its PoolThread. queue: where the threads find conversations, and None.
    changed: called with the number of threads, when it changes. look_from: the time.monotonic() of the next look.
    """

    def __init__(
        self,
        work: Callable[[PoolThread], None],
        queue: SimpleQueue[Any],
        span: CountRange,
        changed: Callable[[int], None],
    ) -> None:
        self.work = work
        self.queue = queue
        self.changed = changed
        self.growth = Growth(span, time.monotonic())
        self.threads: set[PoolThread] = set()
        self.count = 0  # without those that are ordered to end
        self.last_queue_length = 0  # the length of the queue at the last look
        self.look_from = 0.0

    def start(self) -> int:
        """Start the first threads; return how many were started, since the system may refuse threads."""
        wanted = self.growth.span.least
        if (reason := self.start_threads(wanted)) is not None:
            logger.errors.error(f"{self.count} of {wanted} threads run (poolthreads): {reason}")
        self.look_from = time.monotonic() + LOOK_S
        return self.count

    def start_threads(self, number: int) -> RuntimeError | None:
        """Start some threads; return the reason if the system refuses one; None: all of them run."""
        for _ in range(number):
            thread = PoolThread()
            self.threads.add(thread)
            try:
                start_new_thread(self.run, (thread,))
            except RuntimeError as reason:
                self.threads.discard(thread)
                return reason
            self.count += 1
        return None

    def run(self, thread: PoolThread) -> None:
        """Work, in a thread, until the thread is ordered to end."""
        thread.not_begun.release()
        try:
            self.work(thread)
        finally:
            self.threads.discard(thread)

    def order_to_end(self, number: int) -> None:
        """Order some threads to end."""
        for _ in range(number):
            self.queue.put(None)
        self.count -= number

    def end(self) -> None:
        """Order all threads to end, and wait until each has begun: only then the interpreter may end."""
        self.order_to_end(self.count)
        for thread in list(self.threads):
            thread.not_begun.acquire()

    def wait_s(self) -> float:
        """Return the seconds that the main thread waits for a connection, if parking = never; -1: without limit."""
        span = self.growth.span
        # A fixed number of threads, and all of them run
        if span.least == span.most == self.count:
            return -1
        if self.queue.qsize():
            return LOOK_S
        # The smallest number of threads runs, so none can end. Nothing waits in the queue, so no other is needed.
        if self.count == span.least:
            # Only the main thread queues a new connection. It then calls adjust_threads() before its next wait.
            return -1
        return max(self.growth.window_ends - time.monotonic(), LOOK_S)

    def look_at_threads(self) -> tuple[int, int]:
        """Return how many entries of the queue the threads have taken since the last look; how many are idle."""
        taken = idle = 0
        for thread in list(self.threads):
            taken += thread.taken - thread.seen
            thread.seen = thread.taken
            idle += not thread.is_busy
        return taken, idle

    def adjust_threads(self, now: float) -> None:
        """Start or end threads if LOOK_S has passed since the last look, and the number of threads may change.

        now: the time.monotonic(). The module's docstring says when a pool is starved.
        """
        span = self.growth.span
        # Nothing can change if the number is fixed (both ends of the span are equal) and all of these threads run.
        if now < self.look_from or span.least == span.most == self.count:
            return
        self.look_from = now + LOOK_S
        taken, idle = self.look_at_threads()
        starved = idle == 0 and self.last_queue_length > taken
        self.last_queue_length = self.queue.qsize()
        difference = self.growth.plan_difference(now, self.count, idle, starved)
        if difference > 0 and (reason := self.start_threads(difference)) is not None:
            logger.errors.error(f"{self.count} threads go on, another cannot start (poolthreads): {reason}")
            self.look_from = now + REFUSED_S
        elif difference < 0:
            self.order_to_end(-difference)
        if difference:
            logger.errors.debug(f"the pool has {self.count} threads")
            self.changed(self.count)
