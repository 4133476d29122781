"""The primitives of `threading`, for programs under the scheduler: locks, conditions, semaphores, events, barriers.

Each operation is a point, and a wait is a block with the condition that ends it. Nothing here waits in the
kernel: a lock is a variable with its owner's name, since only one lane runs at a time. What is left is the
meaning, and it is that of the standard library: the same errors, the same order (notify() wakes the waiter that
has waited longest), and the same freedom: who gets a lock that several lanes wait for is a decision.

Two points are left out on purpose. A lock's release and the beginning of Condition.wait() are recorded and decide
nothing: a switch just before them shows other lanes nothing that a switch at the step before did not show.

Read next: threads.py and queues.py, which are built like this file.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ewe_explore.names import name_of
from ewe_explore.scheduler import ACTIVE, Abandoned, Lane, Run, Step, place


class Primitive:
    """What all primitives have: a label for people, and steps of kind `sync`."""

    controlled = True  # its methods have their own points
    made_at: tuple[str, int] = ("", 0)
    made_as = 0
    called = ""  # its name, where the line that made it says none

    def __init__(self) -> None:
        self.names: dict[tuple[str, int], int] = ACTIVE[-1].names if ACTIVE else {}
        self.made_at = place() if ACTIVE else ("", 0)
        self.made_as = self.names.get(self.made_at, 0) + 1
        self.names[self.made_at] = self.made_as

    @property
    def label(self) -> str:
        """Return the name of the primitive, from the line that has made it."""
        if self.called:
            return self.called
        several = self.names.get(self.made_at, 0) > 1
        name = name_of(*self.made_at) or type(self).__name__.lower()
        return f"{name} {self.made_as}" if several else name

    def step(self, run: Run, verb: str, note: str = "") -> Step:
        """Return a step of the current lane on this primitive."""
        file, line = place()
        return Step(run.current.number, "sync", verb, "", self, None, True, file, line, note=note)

    def point(self, verb: str, note: str = "", decides: bool = True) -> Run | None:
        """Be a point of the run in progress; return the run, None outside of one. Raises Abandoned."""
        if not ACTIVE:
            return None
        run = ACTIVE[-1]
        if run.inside_invariant:
            return None
        run.point(self.step(run, verb, note), decides)
        return run

    def quiet(self) -> bool:
        """Return whether the run is over or absent: a release then does nothing, so that lanes can be unwound."""
        return not ACTIVE or ACTIVE[-1].over

    def wait(
        self,
        run: Run,
        verb: str,
        ready: Callable[[], bool],
        seconds: float | None,
        then: str = "",
        spurious: bool = False,
    ) -> bool:
        """Block the current lane until ready() holds; return False after `seconds`.

        then: what the lane does when the wait is over. The attempt before the wait is not shown.
        """
        last = run.current.last
        if then and last is not None and last.target is self:
            last.hidden = True
        in_time = run.block(self.step(run, verb), ready, seconds, spurious)
        if then:
            after = self.step(run, then if in_time else "waits no longer for")
            run.point(after, decides=False)
        return in_time


def limit(blocking: bool, timeout: float) -> float | None:
    """Return the seconds of a call with the two arguments of Lock.acquire(); None waits without a limit."""
    if not blocking and timeout != -1:
        raise ValueError("can't specify a timeout for a non-blocking call")
    if timeout < 0 and timeout != -1:
        raise ValueError("timeout value must be a non-negative number")
    return None if timeout == -1 else timeout


class Lock(Primitive):
    """A mutual exclusion: one owner at a time. Any lane may release it."""

    def __init__(self) -> None:
        super().__init__()
        self.owner: Lane | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        seconds = limit(blocking, timeout)
        run = self.point("acquires")
        if run is None:
            return True
        if self.owner is not None:
            if not blocking:
                return False
            if not self.wait(run, "waits for", self.is_free, seconds, "acquires"):
                return False
        self.take(run)
        return True

    def is_free(self) -> bool:
        return self.owner is None

    def take(self, run: Run) -> None:
        """Make the current lane the owner."""
        self.owner = run.current
        run.current.held.append(self)
        run.dirty = True

    def release(self) -> None:
        if self.quiet():
            self.owner = None
            return
        run = self.point("releases", decides=False)
        if self.owner is None:
            raise RuntimeError("release unlocked lock")
        self.give_up(run)

    def give_up(self, run: Run | None) -> None:
        """Make the lock free."""
        owner, self.owner = self.owner, None
        if owner is not None and self in owner.held:
            owner.held.remove(self)
        if run is not None:
            run.dirty = True

    def _at_fork_reinit(self) -> None:
        """Be called in a forked child, which there is none of."""

    def locked(self) -> bool:
        self.point("looks at")
        return self.owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    # What a Condition needs of its lock

    def is_mine(self) -> bool:
        return self.owner is not None

    def release_all(self) -> int:
        """Release the lock wholly; return how often it was held."""
        self.give_up(ACTIVE[-1] if ACTIVE else None)
        return 1

    def take_again(self, run: Run, count: int) -> None:
        """Take the lock as it was before release_all()."""
        self.take(run)


class RLock(Lock):
    """A lock that its owner may take several times."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        run = ACTIVE[-1] if ACTIVE else None
        if run is not None and not run.over and self.owner is run.current:
            self.count += 1
            return True
        if not super().acquire(blocking, timeout):
            return False
        self.count = 1
        return True

    def release(self) -> None:
        if self.quiet():
            self.owner = None
            return
        if self.owner is not ACTIVE[-1].current:
            raise RuntimeError("cannot release un-acquired lock")
        self.count -= 1
        if self.count == 0:
            super().release()

    def __enter__(self) -> bool:
        return self.acquire()

    def is_mine(self) -> bool:
        return bool(ACTIVE) and self.owner is ACTIVE[-1].current

    def release_all(self) -> int:
        count, self.count = self.count, 0
        super().release_all()
        return count

    def take_again(self, run: Run, count: int) -> None:
        super().take_again(run, count)
        self.count = count


LOST = "no thread waits: it has no effect"


class Waiter:
    """One wait for a condition."""

    notified = False


class Condition(Primitive):
    """Lanes wait until another one notifies them. A notify that no lane waits for is lost."""

    def __init__(self, lock: Any = None) -> None:
        super().__init__()
        self.lock: Lock = RLock() if lock is None else lock
        if lock is None:  # it has the condition's name
            self.lock.made_as = self.names[self.made_at] = self.made_as
        self.waiters: deque[Waiter] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return self.lock.acquire(blocking, timeout)

    def release(self) -> None:
        self.lock.release()

    def __enter__(self) -> bool:
        return self.lock.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lock.release()

    def wait(self, timeout: float | None = None) -> bool:  # type: ignore[override] # as in the standard library
        if not ACTIVE:
            return True
        run = ACTIVE[-1]
        if run.over:
            raise Abandoned
        if not self.lock.is_mine():
            raise RuntimeError("cannot wait on un-acquired lock")
        waiter = Waiter()
        self.waiters.append(waiter)
        count = self.lock.release_all()
        run.dirty = True
        try:
            notified = super().wait(
                run, "waits on", lambda: waiter.notified and self.lock.is_free(), timeout, spurious=True
            )
        finally:
            if waiter in self.waiters:
                self.waiters.remove(waiter)
        if not self.lock.is_free():
            super().wait(run, "wants the lock of", self.lock.is_free, None)
        self.lock.take_again(run, count)
        woken = self.step(run, "goes on after" if notified or waiter.notified else "wakes from")
        run.point(woken, decides=False)
        return waiter.notified or timeout is None

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None or not ACTIVE else ACTIVE[-1].now + timeout
        result = predicate()
        while not result:
            left = None if end is None else end - ACTIVE[-1].now
            if left is not None and left <= 0:
                break
            self.wait(left)
            result = predicate()
        return result

    def notify(self, n: int = 1) -> None:
        self.wake("notifies", n)

    def notify_all(self) -> None:
        self.wake("notifies all of", len(self.waiters))

    notifyAll = notify_all

    def wake(self, verb: str, count: int) -> None:
        """Notify `count` waiters, the longest first."""
        if self.quiet():
            return
        if not self.lock.is_mine():
            raise RuntimeError("cannot notify on un-acquired lock")
        self.point(verb)
        step = ACTIVE[-1].current.last
        waiting = list(self.waiters)  # now: a waiter's timeout may have come at the point
        if step is not None and not waiting:
            step.note = LOST
        for waiter in waiting[: count if verb == "notifies" else None]:
            waiter.notified = True
            self.waiters.remove(waiter)
        ACTIVE[-1].dirty = True


class Semaphore(Primitive):
    """A counter that waits at zero."""

    bound: int | None = None

    def __init__(self, value: int = 1) -> None:
        super().__init__()
        if value < 0:
            raise ValueError("semaphore initial value must be >= 0")
        self._value = value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        if not blocking and timeout is not None:
            raise ValueError("can't specify timeout for non-blocking acquire")
        run = self.point("acquires")
        if run is None:
            return True
        if self._value == 0:
            if not blocking:
                return False
            if not self.wait(run, "waits for", lambda: self._value > 0, timeout, "acquires"):
                return False
        self._value -= 1
        run.dirty = True
        return True

    def release(self, n: int = 1) -> None:
        if self.quiet():
            return
        if n < 1:
            raise ValueError("n must be one or more")
        self.point("releases")
        if self.bound is not None and self._value + n > self.bound:
            raise ValueError("Semaphore released too many times")
        self._value += n
        ACTIVE[-1].dirty = True

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class BoundedSemaphore(Semaphore):
    """A semaphore that is never released more often than acquired."""

    def __init__(self, value: int = 1) -> None:
        super().__init__(value)
        self.bound = value


class Event(Primitive):
    """A flag that lanes wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.flag = False

    def is_set(self) -> bool:
        if not self.quiet():
            step = self.step(ACTIVE[-1], "looks at")
            step.writes = False
            if not ACTIVE[-1].inside_invariant:
                ACTIVE[-1].point(step)
        return self.flag

    isSet = is_set

    def set(self) -> None:
        if self.quiet():
            return
        self.point("sets")
        self.flag = True
        ACTIVE[-1].dirty = True

    def clear(self) -> None:
        if self.quiet():
            return
        self.point("clears")
        self.flag = False

    def wait(self, timeout: float | None = None) -> bool:  # type: ignore[override] # as in the standard library
        run = self.point("waits for")
        if run is not None and not self.flag:
            super().wait(run, "waits for", lambda: self.flag, timeout, "sees")
        return self.flag


class Round:
    """One use of a barrier: all who came, or broken."""

    def __init__(self) -> None:
        self.count = 0
        self.full = self.broken = False


class Barrier(Primitive):
    """Lanes wait for each other until `parties` have come."""

    def __init__(
        self, parties: int, action: Callable[[], object] | None = None, timeout: float | None = None
    ) -> None:
        super().__init__()
        self.parties = parties
        self.action = action
        self.timeout = timeout
        self.round = Round()

    @property
    def n_waiting(self) -> int:
        return self.round.count

    @property
    def broken(self) -> bool:
        return self.round.broken

    def wait(self, timeout: float | None = None) -> int:  # type: ignore[override] # as in the standard library
        run = self.point("comes to")
        if run is None:
            return 0
        mine = self.round
        if mine.broken:
            raise threading.BrokenBarrierError
        number = mine.count
        mine.count += 1
        if mine.count == self.parties:
            try:
                if self.action is not None:
                    self.action()
            except BaseException:
                self.abort()
                raise
            mine.full = True
            self.round = Round()
            run.dirty = True
            return number
        seconds = self.timeout if timeout is None else timeout
        if not super().wait(run, "waits at", lambda: mine.full or mine.broken, seconds, "leaves"):
            self.abort()
        if not mine.full:
            raise threading.BrokenBarrierError
        return number

    def reset(self) -> None:
        if not self.quiet():
            self.point("resets")
            self.abort()
            self.round = Round()

    def abort(self) -> None:
        self.round.broken = True
        if ACTIVE:
            ACTIVE[-1].dirty = True
