"""Threads under the scheduler: threading.Thread and Timer, and the functions of `_thread`.

A thread of the program is a lane. start() adds the lane and is a point: the new thread may run at once, or much
later.

Read next: scheduler.py; queues.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ewe_explore.calls import with_step
from ewe_explore.primitives import Event, Primitive
from ewe_explore.scheduler import (
    Lane,
    PartUse,
    Run,
    active_run,
    line_of_program,
    synchronization_step,
    this_run,
)


def lane_name(run: Run, target: Any) -> str:
    """Return a name for a lane: the name of its function, with a number."""
    function = getattr(target, "func", target)
    name = getattr(function, "__name__", "thread").strip("_<>") or "thread"
    number = sum(lane.name.rpartition(" ")[0] == name for lane in run.lanes) + 1
    return f"{name} {number}"


class Thread(Primitive):
    """A thread. start() adds its lane.

    Students write subclasses, with attributes such as `step`, `point` or `wait`. The methods of Primitive are
    therefore called by their class, and the other attributes have names that no program is likely to use.
    """

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        super().__init__()
        self._target = target
        self._args = args
        self._kwargs = dict(kwargs or {})
        self._given = name
        self._name = name or ""
        self._daemonic = bool(daemon)
        self.explored_lane: Lane | None = None
        if (run := active_run()) is not None:
            if daemon is None:
                self._daemonic = run.current.daemon
            run.threads.append(self)

    @property
    def explorer_label(self) -> str:
        if self.explored_lane is not None:
            return self.explored_lane.name
        function = getattr(self._target, "__name__", "")
        return self._name or (f"a thread for {function}()" if function.isidentifier() else "a thread")

    def run(self) -> None:
        """Call the target. A subclass may override this."""
        if self._target is not None:
            with_step(self._target, *self.line_of_creation)(*self._args, **self._kwargs)

    def start(self) -> None:
        """Start the real thread of a new lane. The point after that decides whether the lane runs at once."""
        run = active_run()
        if run is None:
            raise RuntimeError("threads of the explorer can start only during a run")
        if self.explored_lane is not None:
            # The point of the other start is after it, so this one cannot come first in a schedule
            run.note_unseen(f"the order of two starts of {self.explorer_label}", *line_of_program())
            raise RuntimeError("threads can only be started once")
        # A thread without a target is of a subclass that overrides run(): the lane then gets the name of the class
        name = self._given or lane_name(run, self._target if self._target is not None else type(self))
        if run.ends_decide:
            # Another lane may call is_alive() before the start. Otherwise the point after it is enough
            Primitive.point(self, "is about to start")
        self.explored_lane = run.add_lane(name, self.run, self._daemonic)
        self.explored_lane.starter = run.current
        self.explored_lane.thread = self
        run.start_thread(self.explored_lane)
        Primitive.point(self, "starts")

    def join(self, timeout: float | None = None) -> None:
        """Wait until the lane has ended, at most `timeout` seconds, as threading.Thread.join() does."""
        run = Primitive.point(self, "joins")
        lane = self.explored_lane
        if run is not None and (lane is None or run.may_precede_start(lane)):
            run.note_unseen(f"a call of join() before the start of {self.explorer_label}", *line_of_program())
        if lane is None:
            raise RuntimeError("cannot join thread before it is started")
        if not active_run():
            return
        if lane is this_run().current:
            raise RuntimeError("cannot join current thread")
        if run is not None and not lane.has_ended:
            Primitive.wait(
                self, run, "waits for the end of", lambda: lane.has_ended, timeout, "sees the end of"
            )
        if run is not None and lane.has_ended and run.current.number == 0:
            lane.is_joined = True  # Run.is_alone() is true again if the main thread has joined all others

    def is_alive(self) -> bool:
        """Return whether the thread has begun and not ended. It is a step: start and end change the answer."""
        run = active_run()
        if run is not None and not run.inside_invariant:
            # The search must know that the order of this step and of two others matters. The step "ends" has the
            # lane as its target, and the step "starts" has the thread
            target = self if self.explored_lane is None else self.explored_lane
            step = synchronization_step(run, "looks at", target, self.explorer_label, writes=False)
            step.other_uses = (PartUse(self, None, writes=False),)
            run.point(step)
        return self.explored_lane is not None and not self.explored_lane.has_ended

    @property
    def name(self) -> str:
        return self._name or self.explorer_label

    @name.setter
    def name(self, name: str) -> None:
        self._name = str(name)
        if self.explored_lane is not None:
            self.explored_lane.name = self._name

    def getName(self) -> str:
        return self.name

    def setName(self, name: str) -> None:
        self.name = name

    @property
    def daemon(self) -> bool:
        return self._daemonic

    @daemon.setter
    def daemon(self, daemonic: bool) -> None:
        if self.explored_lane is not None:
            raise RuntimeError("cannot set daemon status of active thread")
        self._daemonic = daemonic

    def isDaemon(self) -> bool:
        return self.daemon

    def setDaemon(self, daemonic: bool) -> None:
        self.daemon = daemonic

    @property
    def ident(self) -> int | None:
        return None if self.explored_lane is None else self.explored_lane.number + 1

    native_id = ident

    def __repr__(self) -> str:
        return f"<Thread({self.name})>"


class Timer(Thread):
    """Calls a function after some time, unless it is cancelled."""

    def __init__(
        self,
        interval: float,
        function: Callable[..., Any],
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.interval = interval
        self.function = function
        self.args = list(args or [])
        self.kwargs = dict(kwargs or {})
        self.finished = Event()

    def cancel(self) -> None:
        self.finished.set()

    def run(self) -> None:
        self.finished.wait(self.interval)
        if not self.finished.is_set():
            with_step(self.function, *self.line_of_creation)(*self.args, **self.kwargs)
        self.finished.set()


def current_thread() -> Any:
    """Return the Thread of the current lane."""
    run = active_run()
    if run is None:
        return threading.current_thread()
    lane = run.current
    if lane.thread is None:
        thread = Thread(name=lane.name, daemon=lane.daemon)
        thread.explored_lane = lane
        lane.thread = thread
    return lane.thread


def main_thread() -> Any:
    """Return the Thread of lane 0."""
    run = this_run()
    # current_thread() makes the Thread of a lane at its first call, so let it see lane 0 for a moment.
    before, run.current = run.current, run.lanes[0]
    try:
        return current_thread()
    finally:
        run.current = before


def enumerate_threads() -> list[Any]:
    """Return the threads that have not ended. One of start_new_thread() has no Thread, and is left out."""
    run = active_run()
    if run is None:
        return []
    run.note_unseen("the ends of threads that threading.enumerate() leaves out", *line_of_program())
    main_thread()  # so that lane 0 has its Thread
    return [lane.thread for lane in run.lanes if lane.thread is not None and not lane.has_ended]


def get_ident() -> int:
    """Return the identifier of the current thread: the number of its lane, from 1. Each run has the same ones."""
    run = active_run()
    return run.current.number + 1 if run is not None else threading.get_ident()


def start_new_thread(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> int:
    """Start a lane without a Thread object. The lane is a daemon, as in the standard library."""
    run = this_run()
    line = line_of_program()
    target = lambda: with_step(function, *line)(*args, **(kwargs or {}))  # noqa: E731
    lane = run.add_lane(lane_name(run, function), target, daemon=True)
    run.start_thread(lane)
    run.point(synchronization_step(run, "starts", lane, lane.name))
    return lane.number + 1


def exit_thread() -> None:
    """End the current thread."""
    raise SystemExit


def nothing(*_: Any, **__: Any) -> None:
    """Replace a function that has no meaning under the scheduler."""


def stack_size(_size: int = 0) -> int:
    return 0
