"""The queues of `queue`, and the clock of `time`, under the scheduler.

put() and get() are one step each. In the standard library they take a lock and wait on a condition; that lock is
always released soon, so that the steps between show a program nothing new, and a schedule is shorter without them.

Read next: network.py.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from heapq import heappop, heappush
from typing import Any

from ewe_explore.primitives import Primitive
from ewe_explore.scheduler import ACTIVE, EPOCH, Abandoned, Step, place

Empty = queue.Empty
Full = queue.Full
ShutDown: type[Exception] = getattr(queue, "ShutDown", RuntimeError)  # Python 3.13


class Queue(Primitive):
    """A first-in first-out queue; maxsize 0 is no limit. Subclasses override _init, _put, _get and _qsize."""

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__()
        self.maxsize = maxsize
        self.unfinished_tasks = 0
        self.is_shutdown = False
        self._init(maxsize)

    def _init(self, maxsize: int) -> None:
        self.queue: Any = deque()

    def _put(self, item: Any) -> None:
        self.queue.append(item)

    def _get(self) -> Any:
        return self.queue.popleft()

    def _qsize(self) -> int:
        return len(self.queue)

    def has_room(self) -> bool:
        return self.is_shutdown or self.maxsize <= 0 or self._qsize() < self.maxsize

    def has_item(self) -> bool:
        return self.is_shutdown or self._qsize() > 0

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if block and timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        run = self.point("puts into")
        if run is not None and not self.has_room():
            if not block:
                raise Full
            if not self.wait(run, "waits for room in", self.has_room, timeout, "puts into"):
                raise Full
        if self.is_shutdown:
            raise ShutDown
        self._put(item)
        self.unfinished_tasks += 1
        self.changed()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if block and timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        run = self.point("gets from")
        if not self.has_item():
            if run is None or not block:
                raise Empty
            if not self.wait(run, "waits for an item of", self.has_item, timeout, "gets from"):
                raise Empty
        if self._qsize() == 0:
            raise ShutDown
        item = self._get()
        self.changed()
        return item

    def changed(self) -> None:
        """Have the scheduler look again who may run."""
        if ACTIVE:
            ACTIVE[-1].dirty = True

    def put_nowait(self, item: Any) -> None:
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def qsize(self) -> int:
        self.look()
        return self._qsize()

    def empty(self) -> bool:
        self.look()
        return self._qsize() == 0

    def full(self) -> bool:
        self.look()
        return 0 < self.maxsize <= self._qsize()

    def look(self) -> None:
        """Be a point that changes nothing."""
        if not self.quiet() and not ACTIVE[-1].inside_invariant:
            step = self.step(ACTIVE[-1], "looks at the size of")
            step.writes = False
            ACTIVE[-1].point(step)

    def task_done(self) -> None:
        if self.quiet():
            return
        self.point("marks an item done in")
        if self.unfinished_tasks <= 0:
            raise ValueError("task_done() called too many times")
        self.unfinished_tasks -= 1
        self.changed()

    def join(self) -> None:
        run = self.point("joins")
        if run is not None and self.unfinished_tasks:
            self.wait(run, "waits for the last item of", lambda: self.unfinished_tasks == 0, None, "sees")

    def shutdown(self, immediate: bool = False) -> None:
        if self.quiet():
            return
        self.point("shuts down")
        self.is_shutdown = True
        if immediate:
            while self._qsize():
                self._get()
            self.unfinished_tasks = 0
        self.changed()


class LifoQueue(Queue):
    """The last item comes out first."""

    def _init(self, maxsize: int) -> None:
        self.queue = []

    def _get(self) -> Any:
        return self.queue.pop()


class PriorityQueue(Queue):
    """The smallest item comes out first."""

    def _init(self, maxsize: int) -> None:
        self.queue = []

    def _put(self, item: Any) -> None:
        heappush(self.queue, item)

    def _get(self) -> Any:
        return heappop(self.queue)


class SimpleQueue(Queue):
    """A queue without a limit and without task_done()."""

    def __init__(self) -> None:
        super().__init__(0)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(item)


# The clock


def sleep(seconds: float) -> None:
    """Let virtual time pass; others go first, even if `seconds` is 0."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    if not ACTIVE:
        return
    run = ACTIVE[-1]
    if run.over:
        raise Abandoned
    if run.inside_invariant:
        return
    file, line = place()
    lane = run.current
    lane.yields = True
    verb = f"sleeps {seconds:g} s" if seconds else "yields"
    step = Step(lane.number, "sync", verb, "", lane, None, True, file, line)
    if seconds:
        run.block(step, lambda: False, seconds)
    else:
        lane.yields = True
        run.point(step)


def monotonic() -> float:
    return ACTIVE[-1].now if ACTIVE else time.monotonic()


def wall_clock() -> float:
    return EPOCH + ACTIVE[-1].now if ACTIVE else time.time()


def in_ns(clock: Any) -> Any:
    """Return a clock of nanoseconds."""
    return lambda: int(clock() * 1_000_000_000)
