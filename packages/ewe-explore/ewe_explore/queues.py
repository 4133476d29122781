"""The queues of `queue`, and the clock of `time`, under the scheduler.

put() and get() are one step each. In the standard library they take a lock and wait on a condition. That lock is
always released soon, so a program cannot observe the steps in between, and a schedule is shorter without them.

Read next: network.py.
"""

from __future__ import annotations

import datetime
import queue
import time
from abc import ABCMeta
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Self

from ewe_explore.primitives import Primitive, Unexplored
from ewe_explore.scheduler import START_TIME_S, Abandoned, active_run, synchronization_step

Empty = queue.Empty
Full = queue.Full
ShutDown: type[Exception] = getattr(queue, "ShutDown", RuntimeError)  # Python 3.13


class Queue(Primitive):
    """A first-in first-out queue; maxsize 0 means no limit. Subclasses override _init, _put, _get and _qsize."""

    mutex = Unexplored()
    not_empty = Unexplored()
    not_full = Unexplored()
    all_tasks_done = Unexplored()

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__()
        self.maxsize = maxsize
        self.unfinished_tasks = 0
        self.is_shutdown = False
        self.call_without_points(self._init, maxsize)

    def call_without_points(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method that a subclass may override; return its result.

        Its accesses to variables are no points, since queue.Queue holds its lock during the call. The scheduler
        calls _qsize(), too, to find out which lanes can run. A point inside would make the scheduler call itself.
        """
        run = active_run()
        if run is None:
            return method(*arguments)
        lane = run.current
        before, lane.has_points = lane.has_points, False
        try:
            return method(*arguments)
        finally:
            lane.has_points = before

    def _init(self, maxsize: int) -> None:
        self.queue: Any = deque()

    def _put(self, item: Any) -> None:
        self.queue.append(item)

    def _get(self) -> Any:
        return self.queue.popleft()

    def _qsize(self) -> int:
        return len(self.queue)

    def current_size(self) -> int:
        """Return the number of items, without a step."""
        return int(self.call_without_points(self._qsize))

    def has_room(self) -> bool:
        return self.is_shutdown or self.maxsize <= 0 or self.current_size() < self.maxsize

    def has_item(self) -> bool:
        return self.is_shutdown or self.current_size() > 0

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put an item into the queue as queue.Queue does; a lane that has to wait is blocked.

        Outside of a run and within an invariant, nothing waits. Raises Full, ShutDown.
        """
        # A queue without a limit ignores the timeout, as in the standard library
        if block and self.maxsize > 0 and timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        run = self.point("puts into")
        if run is not None and not self.has_room():
            if not block:
                self.note_failure(run)
                raise Full
            if not self.wait(run, "waits for room in", self.has_room, timeout, then="puts into"):
                raise Full
        if self.is_shutdown:
            raise ShutDown
        self.call_without_points(self._put, item)
        self.unfinished_tasks += 1
        self.recompute_runnable_lanes()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the next item as queue.Queue does; a lane that has to wait is blocked. Raises Empty, ShutDown."""
        if block and timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        run = self.point("gets from")
        if not self.has_item():
            if run is None or not block:
                if run is not None:
                    self.note_failure(run)
                raise Empty
            if not self.wait(run, "waits for an item of", self.has_item, timeout, then="gets from"):
                raise Empty
        if self.current_size() == 0:
            raise ShutDown
        item = self.call_without_points(self._get)
        self.recompute_runnable_lanes()
        return item

    def put_nowait(self, item: Any) -> None:
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def qsize(self) -> int:
        self.look("looks at the size of")
        return self.current_size()

    def empty(self) -> bool:
        self.look("looks at the size of")
        return self.current_size() == 0

    def full(self) -> bool:
        self.look("looks at the size of")
        return 0 < self.maxsize <= self.current_size()

    def task_done(self) -> None:
        """Count an item as done, as queue.Queue does: join() ends when all are."""
        if self.run_is_over():
            return
        self.point("marks an item done in")
        if self.unfinished_tasks <= 0:
            raise ValueError("task_done() called too many times")
        self.unfinished_tasks -= 1
        self.recompute_runnable_lanes()

    def join(self) -> None:
        run = self.point("joins")
        if run is not None and self.unfinished_tasks:
            self.wait(
                run, "waits for the last item of", lambda: self.unfinished_tasks == 0, None, then="sees"
            )

    def shutdown(self, immediate: bool = False) -> None:
        """Shut down as queue.Queue does since Python 3.13: calls that wait raise ShutDown.

        immediate: drop the items; otherwise get() still returns those that are in the queue. An item that get() has
        returned still counts for join(), until task_done().
        """
        if self.run_is_over():  # the lanes unwind
            return
        self.point("shuts down")
        self.is_shutdown = True
        if immediate:
            while self.current_size():
                self.call_without_points(self._get)
                self.unfinished_tasks = max(self.unfinished_tasks - 1, 0)
        self.recompute_runnable_lanes()


class LifoQueue(Queue):
    """A queue that returns the newest item first."""

    def _init(self, maxsize: int) -> None:
        self.queue = []

    def _get(self) -> Any:
        return self.queue.pop()


class PriorityQueue(Queue):
    """A queue that returns the smallest item first."""

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
    """Let virtual time pass; other lanes run first, even if `seconds` is 0."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    run = active_run()
    if run is None:
        return
    if run.over:
        raise Abandoned
    if run.inside_invariant:
        return
    lane = run.current
    lane.yields = True  # sleep(0) is a request to let other threads run
    if seconds:
        run.block(synchronization_step(run, f"sleeps {seconds:g} s", lane), lambda: False, seconds)
    else:
        run.point(synchronization_step(run, "yields", lane))


def monotonic() -> float:
    run = active_run()
    return run.now if run is not None else time.monotonic()


def wall_clock() -> float:
    run = active_run()
    return START_TIME_S + run.now if run is not None else time.time()


class RealDates(ABCMeta):
    """Makes isinstance() and issubclass() accept the real class for its stand-in: libraries return its objects.

    A subclass of a stand-in accepts its own objects only. It may inherit from ABC, too, whose metaclass is ABCMeta.
    """

    def __instancecheck__(cls, value: object) -> bool:
        real = REAL_CLASSES.get(cls)
        return super().__instancecheck__(value) if real is None else isinstance(value, real)

    def __subclasscheck__(cls, kind: type) -> bool:
        real = REAL_CLASSES.get(cls)
        return super().__subclasscheck__(kind) if real is None else issubclass(kind, real)


class AsReal:
    """Makes an object of a stand-in look like one of the real class. An object of a subclass stays as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        text = super().__repr__()
        return f"datetime.{text}" if type(self) in REAL_CLASSES else text

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle and copy it as an object of the real class, which pickle finds by its name."""
        reduced = super().__reduce_ex__(protocol)
        real = REAL_CLASSES.get(type(self))
        return reduced if real is None else (real, *reduced[1:])


class VirtualDate(AsReal, datetime.date, metaclass=RealDates):
    """datetime.date by the explorer's clock, so that a date agrees with that of VirtualDatetime."""

    __slots__ = ()

    @classmethod
    def today(cls) -> Self:
        return cls.fromtimestamp(wall_clock())


class VirtualDatetime(AsReal, datetime.datetime, metaclass=RealDates):
    """datetime.datetime by the explorer's clock.

    By the real clock, a loop until a moment would never end: while the loop sleeps, only virtual time passes.
    """

    __slots__ = ()

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Self:
        return cls.fromtimestamp(wall_clock(), tz)

    @classmethod
    def utcnow(cls) -> Self:
        return cls.fromtimestamp(wall_clock(), datetime.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> Self:
        return cls.fromtimestamp(wall_clock())


REAL_CLASSES: dict[type, type] = {VirtualDate: datetime.date, VirtualDatetime: datetime.datetime}
for kind, real in REAL_CLASSES.items():
    # As a program sees it, and for reach.py, by which objects of this module never change
    kind.__module__, kind.__name__, kind.__qualname__ = "datetime", real.__name__, real.__name__


def local_time(function: Callable[..., Any]) -> Any:
    """Return time.localtime(), gmtime() or ctime() by the explorer's clock, if no time is given."""
    return lambda seconds=None: function(wall_clock() if seconds is None else seconds)


def strftime(form: str, moment: Any = None) -> str:
    return time.strftime(form, time.localtime(wall_clock()) if moment is None else moment)


def in_ns(clock: Any) -> Any:
    """Return a clock that counts nanoseconds."""
    return lambda: int(clock() * 1_000_000_000)
