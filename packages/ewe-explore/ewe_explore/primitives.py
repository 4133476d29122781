"""The primitives of `threading`, for programs under the scheduler: locks, conditions, semaphores, events, barriers.

Each operation is a point, and each wait calls block() with the condition that ends it. No call waits in the kernel:
a lock is just a variable with its owner, because only one lane runs at a time. The behaviour is that of the
standard library: the same errors, and the same order (notify() wakes the waiter that has waited longest). If
several lanes wait for a lock, the scheduler decides which lane gets it.

A lock's release and the beginning of Condition.wait() are recorded, but they are no decisions: a lane that waits
for the lock cannot tell a switch just before them from one just after them. A program that tests whether a lock is
held can tell: by locked(), or by an acquire() that may fail. In such a program both are decisions
(Run.releases_decide).

After the end of a run, run_is_over() is true, and calls such as release(), notify() and set() make no point. The
lanes then unwind: their `with` and `finally` blocks still make these calls.

Read next: threads.py and queues.py, which have the same structure.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ewe_explore.calls import with_step
from ewe_explore.names import name_of
from ewe_explore.scheduler import (
    NOWHERE,
    Abandoned,
    CodeLocation,
    InvariantHasToWait,
    Lane,
    PartUse,
    Problem,
    Run,
    Step,
    active_run,
    base_name,
    line_of_program,
    synchronization_step,
    this_run,
)


class Primitive:
    """The base of all primitives: a label for messages, and steps of kind `sync`."""

    is_stand_in = True  # for a class of the standard library; its methods have their own points
    line_of_creation = NOWHERE  # the line that created it
    creation_number = 0  # 1 for the first object that this line has created
    fixed_name = ""  # a fixed name, which replaces the name from the source line

    def __init__(self) -> None:
        run = active_run()
        self.objects_per_line: dict[CodeLocation, int] = run.objects_per_line if run is not None else {}
        self.line_of_creation = line_of_program() if run is not None else NOWHERE
        self.creation_number = self.objects_per_line.get(self.line_of_creation, 0) + 1
        self.objects_per_line[self.line_of_creation] = self.creation_number

    @property
    def explorer_label(self) -> str:
        """Return the name of the primitive, from the source line that made it."""
        if self.fixed_name:
            return self.fixed_name
        several = self.objects_per_line.get(self.line_of_creation, 0) > 1
        name = name_of(*self.line_of_creation) or type(self).__name__.lower()
        return f"{name} {self.creation_number}" if several else name

    def step(self, run: Run, verb: str, note: str = "", writes: bool = True) -> Step:
        """Return a step of the current lane on this primitive. writes: it may change the primitive."""
        return synchronization_step(run, verb, self, note=note, writes=writes)

    def point(
        self, verb: str, note: str = "", decides: bool = True, uses: tuple[PartUse, ...] = ()
    ) -> Run | None:
        """Record a step, and let the scheduler decide which lane runs next. Return the run.

        Return None, without a step, outside of a run, and while an invariant is checked: its accesses do not count.
        verb, note: texts for the timeline. decides=False: record only. uses: the parts of other objects that the
        operation uses, so that the search knows which steps on these objects conflict with it. Raises Abandoned if
        the run is over.
        """
        run = active_run()
        if run is None or run.inside_invariant:
            return None
        # Not self.step(): a subclass of Thread may have an attribute of this name
        step = Primitive.step(self, run, verb, note)
        step.other_uses = uses
        run.point(step, decides)
        return run

    def run_is_over(self) -> bool:
        """Whether no run is in progress. A release then makes no step, so that the lanes can unwind."""
        run = active_run()
        return run is None or run.over

    def look(self, verb: str = "looks at") -> None:
        """Record a step that only reads, and let the scheduler decide which lane runs next."""
        if not self.run_is_over() and not inside_invariant():
            run = this_run()
            run.point(self.step(run, verb, writes=False))

    def look_from_invariant(self, is_free: bool, blocking: bool) -> bool:
        """Return whether an invariant could acquire this primitive. Neither this nor its release changes anything.

        Raises InvariantHasToWait if the invariant would have to wait for a lane.
        """
        if not is_free and blocking:
            raise InvariantHasToWait
        return is_free

    def recompute_runnable_lanes(self) -> None:
        """Make the scheduler compute the runnable lanes again."""
        if (run := active_run()) is not None:
            run.runnable_is_stale = True

    def wait(
        self,
        run: Run,
        verb: str,
        ready: Callable[[], bool],
        seconds: float | None,
        then: str = "",
        spurious: bool = False,
    ) -> bool:
        """Block the current lane until ready() is true; return False after `seconds` (None: no limit).

        verb: of the wait, in the timeline. then: the verb of the step after it, such as "acquires"; "" for no step.
        The step before the wait was the attempt at the same operation: with `then`, the timeline hides it.
        """
        last_step = run.current.last_step
        if then and last_step is not None and last_step.target is self:
            last_step.hidden = True
        in_time = run.block(Primitive.step(self, run, verb), ready, seconds, spurious)
        if then:
            next_step = Primitive.step(self, run, then if in_time else "waits no longer for")
            run.point(next_step, decides=False)
        return in_time

    def note_failure(self, run: Run) -> bool:
        """Note that the last step has failed, because the caller does not wait; return False."""
        if run.current.last_step is not None:
            run.current.last_step.failed = True
        return False


class Unexplored:
    """An attribute of a class of the standard library that its stand-in lacks.

    Without it, a program that uses the attribute would fail with an AttributeError, as if that was its mistake.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Primitive | None, owner: type) -> Any:
        """End the run: the program cannot be explored. Raises Abandoned; AttributeError outside of a run."""
        run = active_run()
        if instance is None or run is None:
            raise AttributeError(f"{owner.__name__}.{self.name}")
        file, line = line_of_program()
        text = f"{base_name(file)}:{line}: the explorer has no {owner.__name__}.{self.name}; leave it out"
        run.fail(Problem("unusable", text))


def inside_invariant() -> bool:
    """Return whether an invariant is being checked."""
    run = active_run()
    return run is not None and run.inside_invariant


def acquire_timeout(blocking: bool, timeout: float) -> float | None:
    """Return the timeout in seconds for the arguments of Lock.acquire(); None: no limit. Raises ValueError."""
    if not blocking and timeout != -1:
        raise ValueError("can't specify a timeout for a non-blocking call")
    if timeout < 0 and timeout != -1:
        raise ValueError("timeout value must be a non-negative number")
    return None if timeout == -1 else timeout


class Lock(Primitive):
    """A mutual exclusion lock: it has at most one owner. Any lane may release it."""

    def __init__(self) -> None:
        super().__init__()
        self.owner: Lane | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock as threading.Lock does; return whether the lane owns it now."""
        seconds = acquire_timeout(blocking, timeout)
        if inside_invariant():
            return self.look_from_invariant(self.owner is None, blocking)
        run = self.point("acquires")
        # Outside of a run, no other lane can be between two of its steps: the lock is free
        if run is None:
            return True
        if self.owner is not None:
            if not blocking:
                return self.note_failure(run)
            if not self.wait(run, "waits for", self.is_free, seconds, then="acquires"):
                return False
        self.become_owner(run)
        return True

    def is_free(self) -> bool:
        return self.owner is None

    def become_owner(self, run: Run) -> None:
        """Make the current lane the owner of the lock."""
        self.owner = run.current
        run.current.held_locks.append(self)
        self.recompute_runnable_lanes()

    def release(self) -> None:
        """Free the lock as threading.Lock does. Raises RuntimeError if it has no owner."""
        if self.run_is_over():
            self.owner = None
            return
        if inside_invariant():
            return
        run = this_run()
        if self.owner is not run.current and not run.releases_decide:
            # Other lanes can observe the moment of this release, which is no decision
            run.note_unseen(f"the moment of the release of {self.explorer_label}", *line_of_program())
        self.point("releases", decides=run.releases_decide)
        if self.owner is None:
            raise RuntimeError("release unlocked lock")
        self.free_lock()

    def free_lock(self) -> None:
        """Free the lock without a step; lanes that wait for it become runnable."""
        owner, self.owner = self.owner, None
        if owner is not None and self in owner.held_locks:
            owner.held_locks.remove(self)
        self.recompute_runnable_lanes()

    def _at_fork_reinit(self) -> None:
        """Do nothing: under the scheduler no process forks."""

    def locked(self) -> bool:
        self.point("looks at")
        return self.owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    # Interface for Condition

    def is_mine(self) -> bool:
        """Return whether any lane owns the lock, as Condition asks a Lock: it does not know its owner."""
        run = active_run()
        if run is not None and not run.over and self.owner is not run.current:
            # The answer depends on the moment of another lane's acquire() or release()
            run.note_unseen(f"whether {self.explorer_label} is locked here", *line_of_program())
        return self.owner is not None

    def release_all(self) -> int:
        """Release the lock completely; return the count for take_with_count()."""
        self.free_lock()
        return 1

    def take_with_count(self, run: Run, count: int) -> None:
        """Take the lock again, with the count from release_all()."""
        self.become_owner(run)


class RLock(Lock):
    """A lock that its owner may take several times."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, or count once more if the lane owns it; return whether the lane owns it now.

        Counting is no step: other lanes cannot observe it.
        """
        if inside_invariant():
            return super().acquire(blocking, timeout)
        run = active_run()
        if run is not None and not run.over and self.owner is run.current:
            self.count += 1
            return True
        if not super().acquire(blocking, timeout):
            return False
        self.count = 1
        return True

    def release(self) -> None:
        """Count one release; the last one frees the lock. Raises RuntimeError if the lane does not own it."""
        if self.run_is_over():
            self.owner = None
            return
        if inside_invariant():
            return
        if self.owner is not this_run().current:
            raise RuntimeError("cannot release un-acquired lock")
        self.count -= 1
        if self.count == 0:
            super().release()

    def __enter__(self) -> bool:
        return self.acquire()

    def is_mine(self) -> bool:
        run = active_run()
        return run is not None and self.owner is run.current

    def release_all(self) -> int:
        count, self.count = self.count, 0
        super().release_all()
        return count

    def take_with_count(self, run: Run, count: int) -> None:
        super().take_with_count(run, count)
        self.count = count


LOST_NOTIFY = "no thread waits: it has no effect"


class Waiter:
    """One wait of a lane for a condition."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.notified = False


class Condition(Primitive):
    """Lanes wait until another lane notifies them. A notify without a waiting lane is lost."""

    def __init__(self, lock: Any = None) -> None:
        super().__init__()
        self.lock: Lock = RLock() if lock is None else lock
        # A new lock has the name of the condition, and counts as the same object of the source line.
        if lock is None:
            self.lock.creation_number = self.objects_per_line[self.line_of_creation] = self.creation_number
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
        """Release the lock, wait for a notify, and take the lock again; return False after the timeout."""
        run = active_run()
        if run is None:
            return True
        if run.over:
            raise Abandoned
        if run.inside_invariant:
            raise RuntimeError("an invariant cannot wait for a condition")
        if not self.lock.is_mine():
            raise RuntimeError("cannot wait on un-acquired lock")
        # A program that tests whether the lock is held may see it held until here
        if run.releases_decide:
            run.point(self.lock.step(run, "is about to release"))
        waiter = Waiter(run.current)
        self.waiters.append(waiter)
        count = self.lock.release_all()
        self.recompute_runnable_lanes()
        try:
            # The lane goes on when it is notified and the lock is free
            notified = super().wait(
                run, "waits on", lambda: waiter.notified and self.lock.is_free(), timeout, spurious=True
            )
        finally:
            # After a timeout or a spurious wake-up: no later notify is for this wait
            if waiter in self.waiters:
                self.waiters.remove(waiter)
        if not self.lock.is_free():  # after a timeout, another lane may have the lock
            super().wait(run, "wants the lock of", self.lock.is_free, None)
        self.lock.take_with_count(run, count)
        run.current.notified = None
        woken = self.step(run, "goes on after" if notified or waiter.notified else "wakes from")
        run.point(woken, decides=False)
        return waiter.notified or timeout is None

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until predicate() is true, at most `timeout` seconds of Run.now in all; return its last result."""
        run = active_run()
        if run is None:  # no other lane can change the result
            return predicate()
        end = None if timeout is None else run.now + timeout
        result = predicate()
        while not result:
            left = None if end is None else end - run.now
            if left is not None and left <= 0:
                break
            self.wait(left)
            result = predicate()
        return result

    def notify(self, n: int = 1) -> None:
        self.wake("notifies", n)

    def notify_all(self) -> None:
        self.wake("notifies all of", None)

    notifyAll = notify_all

    def wake(self, verb: str, count: int | None) -> None:
        """Notify `count` waiters (None: all), in the order in which they began to wait. verb: of the step."""
        if self.run_is_over():
            return
        if not self.lock.is_mine():
            raise RuntimeError("cannot notify on un-acquired lock")
        self.point(verb)
        step = this_run().current.last_step
        waiting = list(self.waiters)  # read after the point, because a waiter may have timed out there
        if step is not None and not waiting:
            step.note = LOST_NOTIFY
        for waiter in waiting[:count]:
            waiter.notified, waiter.lane.notified = True, step
            self.waiters.remove(waiter)
        self.recompute_runnable_lanes()


class Semaphore(Primitive):
    """A counter: acquire() waits while it is zero."""

    bound: int | None = None

    def __init__(self, value: int = 1) -> None:
        super().__init__()
        if value < 0:
            raise ValueError("semaphore initial value must be >= 0")
        # A program may read it under this name of threading.Semaphore
        self._value = value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take one from the counter as threading.Semaphore does; return whether that was possible in time."""
        if not blocking and timeout is not None:
            raise ValueError("can't specify timeout for non-blocking acquire")
        if inside_invariant():
            return self.look_from_invariant(self._value > 0, blocking)
        run = self.point("acquires")
        # Outside of a run, no other lane can have taken anything, and release() gives nothing back
        if run is None:
            return True
        if self._value == 0:
            if not blocking:
                return self.note_failure(run)
            if not self.wait(run, "waits for", lambda: self._value > 0, timeout, then="acquires"):
                return False
        self._value -= 1
        self.recompute_runnable_lanes()
        return True

    def release(self, n: int = 1) -> None:
        """Add n to the counter as threading.Semaphore does. Raises ValueError above the bound."""
        if self.run_is_over() or inside_invariant():
            return
        if n < 1:
            raise ValueError("n must be one or more")
        self.point("releases")
        if self.bound is not None and self._value + n > self.bound:
            raise ValueError("Semaphore released too many times")
        self._value += n
        self.recompute_runnable_lanes()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class BoundedSemaphore(Semaphore):
    """A semaphore that refuses more releases than acquires."""

    def __init__(self, value: int = 1) -> None:
        super().__init__(value)
        self.bound = value


class Event(Primitive):
    """A flag that lanes wait for. A set() ends every wait in progress, even if a clear() follows at once."""

    def __init__(self) -> None:
        super().__init__()
        self.flag = False
        self.set_count = 0  # calls of set() so far: a wait ends at the next one

    def is_set(self) -> bool:
        """Return the flag. It is a step that only reads, except in the check of an invariant."""
        self.look()
        return self.flag

    isSet = is_set

    def set(self) -> None:
        """Set the flag: the lanes that wait for it can run again. After a run no lane waits, so do nothing."""
        if self.run_is_over():
            return
        self.point("sets")
        self.flag = True
        self.set_count += 1
        self.recompute_runnable_lanes()

    def clear(self) -> None:
        if self.run_is_over():
            return
        self.point("clears")
        self.flag = False

    def wait(self, timeout: float | None = None) -> bool:  # type: ignore[override] # as in the standard library
        """Wait for a set(), at most `timeout` seconds; return whether the flag was set at the begin or since."""
        run = self.point("waits for")
        if run is None or self.flag:
            return self.flag
        # Not the flag: a clear() may follow the set() before this lane gets its turn
        earlier = self.set_count
        return super().wait(run, "waits for", lambda: self.set_count > earlier, timeout, then="sees")


class Round:
    """One use of a barrier. count: the lanes that have come. full: all have come. broken: one gave up."""

    def __init__(self) -> None:
        self.count = 0
        self.full = self.broken = False


class Barrier(Primitive):
    """Lanes wait for each other until `parties` lanes have come."""

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
        """Return how many lanes wait. It is a step that only reads."""
        self.look()
        return self.round.count

    @property
    def broken(self) -> bool:
        """Return whether a lane gave up. It is a step that only reads."""
        self.look()
        return self.round.broken

    def wait(self, timeout: float | None = None) -> int:  # type: ignore[override] # as in the standard library
        """Wait for the other lanes; return how many had come before this one. Raises BrokenBarrierError."""
        run = self.point("comes to")
        if run is None:
            return 0
        self.wait_for_action(run)
        this_round = self.round  # a lane that wakes up late must not look at the next round
        if this_round.broken:
            raise threading.BrokenBarrierError
        arrival_index = this_round.count
        this_round.count += 1
        if this_round.count == self.parties:
            self.call_action()
            this_round.full = True
            self.round = Round()
            self.recompute_runnable_lanes()
            return arrival_index
        seconds = self.timeout if timeout is None else timeout

        def is_over() -> bool:
            return this_round.full or this_round.broken

        if not super().wait(run, "waits at", is_over, seconds, then="leaves"):
            self.wait_for_action(run)
            if not this_round.full:
                self.break_round(this_round)
        if not this_round.full:
            raise threading.BrokenBarrierError
        return arrival_index

    def call_action(self) -> None:
        """Call the action of a full round, if there is one; break the round if it fails."""
        try:
            if self.action is not None:
                with_step(self.action, *self.line_of_creation)()
        except BaseException:
            self.break_round(self.round)
            raise

    def wait_for_action(self, run: Run) -> None:
        """Wait while the last lane of a round calls the action: it holds the barrier's lock in threading.Barrier.

        Without this wait a lane could come to the full round, or replace it.
        """

        def is_free() -> bool:
            return self.round.count < self.parties or self.round.broken

        while not is_free():
            super().wait(run, "waits for the action of", is_free, None)

    def reset(self) -> None:
        """Break the round, and begin another one. After a run, do nothing."""
        if self.end_round("resets"):
            self.round = Round()

    def abort(self) -> None:
        """Break the barrier: the lanes that wait at it get BrokenBarrierError. After a run, do nothing."""
        self.end_round("aborts")

    def end_round(self, verb: str) -> bool:
        """Break the round, once no lane calls its action; return False after a run. verb: of the step."""
        run = None if self.run_is_over() else self.point(verb)
        if run is None:
            return False
        self.wait_for_action(run)
        self.break_round(self.round)
        return True

    def break_round(self, broken: Round) -> None:
        broken.broken = True
        self.recompute_runnable_lanes()
