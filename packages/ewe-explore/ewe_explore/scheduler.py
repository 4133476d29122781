"""The scheduler: runs a program's threads one at a time, and decides at every step which thread goes next.

A race shows itself when the system switches from one thread to another at an unlucky moment. On a real machine the
moments are chosen by timers, caches and luck. Here every moment is chosen by a *schedule*, so that an unlucky one
can be searched for, kept, and run again:

    lane 0  main      ──point──point──┐                              ┌──point── ...
    lane 1  worker 1                  └──point──block                │
    lane 2  worker 2                               └──point──point───┘
                      decision 0, 1, ...   2, ...         3, 4, ...      each has a number

Each thread of the program is a real thread of Python, here called a lane. A lane runs only while it holds its
baton, and there is one baton for all: a lane gives it away in point() or block(), and then waits until it comes
back. Two calls make a program controllable:

- point(step): the lane is about to do something that other lanes can observe: a lock, a queue, a shared variable.
  The scheduler records the step and decides who goes on.
- block(): the lane cannot go on until a condition holds. Others run meanwhile.

A *decision* exists where more than one lane could run. The default decision is the one without a switch: the
current lane goes on; where it cannot, the next one in number does. A schedule lists only the decisions that
differ, as pairs "decision:lane". `17:2` says: at decision 17, lane 2 goes on. The empty schedule is the program
without a surprise, and each pair is one surprise (Emmi, Qadeer and Rakamaric call the number of such pairs the
delay bound, POPL 2011).

Time is virtual. A lane that sleeps is blocked until a deadline; when all lanes are blocked, the clock jumps to the
earliest deadline. No test waits, and no result depends on the speed of the machine.

What ends a run: the last thread that is not a daemon ends; an exception in any thread; a broken invariant; a
deadlock (no lane can run, and no deadline is left); too many steps (a livelock or a busy wait). Then every lane
that still lives is unwound: Abandoned is raised where it stands.

What can go wrong: a lane that blocks outside the scheduler, in a system call, keeps the baton. The
thread that started the run is a watchdog: if no step was made for `stall_s` seconds, it says where the lane is. A
lane that runs a loop without a write is taken to wait for another lane, and loses its turn after SPIN steps.

Read next: search.py, which chooses schedules; instrument.py, which puts points into the student's code.
"""

from __future__ import annotations

import _thread
import ctypes
import gc
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol

from ewe.config.messages import Failure
from ewe_explore.names import source

HERE = str(Path(__file__).parent) + "/"
SAMPLES = HERE + "samples/"
SPIN = 60  # steps without a write after which a lane is taken to wait in a loop
SLICE = 3000  # steps after which a lane that computes loses its turn
RAISES = 50  # times that Abandoned is raised in one lane; then it is left parked
EPOCH = 1_136_073_600.0  # what time.time() says at the start of a run: 1 January 2006

Schedule = tuple[tuple[int, int], ...]  # (decision, lane) where the decision is not the default one


class Abandoned(BaseException):
    """The run is over: the lane that this is raised in ends."""


class ProgramError(Failure):
    """A program cannot be explored; the text is one line."""

    exit_status = 2


class Named(Protocol):
    """An object of which a step tells: a lock, a queue, a socket."""

    label: str


@dataclass(slots=True)
class Step:
    """One thing that a lane did, or was about to do when the run ended.

    kind: read, write, call (an access to an object), sync (a primitive), life (a thread starts or ends), print.
    target and attribute: the object, and which part of it; None is the object as a whole. before: what a part held.
    """

    lane: int
    kind: str
    verb: str
    name: str
    target: Any
    attribute: str | None
    writes: bool
    file: str
    line: int
    before: str = ""
    after: str = ""
    note: str = ""
    decision: int = -1  # the decision that was taken at this step, if there was one
    index: int = 0
    hidden: bool = False  # the step after it tells the same
    done: int = -1  # its place in the order in which steps happened; -1: the run ended before

    def key(self) -> tuple[int, str | None]:
        """Return what identifies the object and its part within one run."""
        return id(self.target), self.attribute


@dataclass(slots=True)
class Branch:
    """A decision: who could run, who would by default, and who was chosen. current: -1 if it had to give way."""

    lanes: tuple[int, ...]
    default: int
    chosen: int
    current: int
    step: int


@dataclass
class Problem:
    """What was wrong with a run. kind: exception, assertion, invariant, deadlock, steps, stuck, unusable."""

    kind: str
    headline: str
    lane: int = 0
    file: str = ""
    line: int = 0
    type: str = ""
    waits: list[Wait] = field(default_factory=list)

    def same(self, other: Problem | None) -> bool:
        """Return whether another run failed in the same way."""
        if other is None or self.kind != other.kind or self.type != other.type:
            return False
        return self.kind in ("deadlock", "steps") or (self.file, self.line) == (
            other.file,
            other.line,
        )


@dataclass
class Wait:
    """What a lane waits for at the end of a run, and who holds it."""

    lane: int
    verb: str
    name: str  # of the target
    target: Any
    file: str
    line: int
    holder: int | None
    holds: list[str]


class Lane:
    """A thread of the program: a column of the timeline."""

    def __init__(self, number: int, name: str, target: Callable[[], Any], daemon: bool) -> None:
        self.number = number
        self.name = name
        self.target = target
        self.daemon = daemon
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.ended = _thread.allocate_lock()
        self.ended.acquire()
        self.ident = 0
        self.done = False
        self.ready: Callable[[], bool] | None = None  # None: it may run
        self.deadline: float | None = None
        self.optional = False  # may it go on although `ready` does not hold (a spurious wake-up)?
        self.yields = False  # prefer others at the next decision
        self.reads = 0  # steps since its last write
        self.steps = 0  # steps since it was chosen last
        self.last: Step | None = None
        self.born = 0  # the number of steps when it started
        self.raised = 0
        self.held: list[Any] = []
        self.waiting: Step | None = None
        self.pending: list[tuple[int, Any]] = []  # objects of accesses that have begun (instrument.py)
        self.thread: Any = None


class Strategy(Protocol):
    """Takes the decisions of a run."""

    def choose(self, run: Run, lanes: list[Lane], default: Lane, index: int) -> Lane:
        """Return one of `lanes`."""


@dataclass
class Options:
    """How a program is run.

    max_steps: of one run. stall_s: real seconds without a step after which a lane counts as stuck.
    """

    max_steps: int = 20_000
    stall_s: float = 3.0
    spurious: bool = False
    early_timeouts: bool = False
    user: tuple[str, ...] = ()  # directories with the student's files


ACTIVE: list[Run] = []  # the run in progress, if there is one


class Run:
    """One execution of the program under one strategy. detailed: keep values of variables for the timeline."""

    def __init__(self, strategy: Strategy, options: Options, detailed: bool = False) -> None:
        self.strategy = strategy
        self.options = options
        self.detailed = detailed
        self.lanes: list[Lane] = []
        self.steps: list[Step] = []
        self.branches: list[Branch] = []
        self.deviations: list[tuple[int, int]] = []
        self.preemptions = 0
        self.now = 0.0
        self.over = False
        self.problem: Problem | None = None
        self.done = _thread.allocate_lock()
        self.done.acquire()
        self.current: Lane
        self.dirty = True
        self.cached: list[Lane] = []
        self.invariants: list[Callable[[], object]] = []
        self.inside_invariant = False
        self.names: dict[tuple[str, int], int] = {}  # how many objects each line has made
        self.result: Any = None
        self.network: Any = None
        self.unfinished: Step | None = None  # a write whose new value is not yet known
        self.happened = 0

    # From outside

    def execute(self, main: Callable[[], Any]) -> None:
        """Run `main` as lane 0, and all that it starts, until the run is over."""
        collects = gc.isenabled()
        gc.disable()  # a finalizer must not run at a moment that no schedule chose
        state = random.getstate()
        random.seed(0)
        self.main = main
        self.current = self.add("main", self.call_main, daemon=False)
        self.begin(self.current)
        ACTIVE.append(self)
        try:
            self.current.baton.release()
            self.watch()
            self.unwind()
        finally:
            ACTIVE.remove(self)
            random.setstate(state)
            if collects:
                gc.enable()

    def call_main(self) -> None:
        self.result = self.main()

    def watch(self) -> None:
        """Wait for the end of the run; a lane that makes no step for stall_s seconds ends it."""
        seen = -1
        since = time.monotonic()
        while not self.done.acquire(timeout=0.25):
            count = len(self.steps) + len(self.branches)
            if count != seen:
                seen, since = count, time.monotonic()
            elif time.monotonic() - since > self.options.stall_s and not self.over:
                self.problem = self.stuck()
                self.over = True
                raise_in(self.current.ident, Abandoned)
                return

    def stuck(self) -> Problem:
        """Say where the current lane is: it blocks, or computes, where no schedule reaches it."""
        lane = self.current
        first = self.frame_of(lane)
        place = (first.f_code.co_filename, first.f_lineno) if first else ("", 0)
        call = innermost(lane.ident)
        blocks = call is not None and place[0] != call.f_code.co_filename
        within = f" (in {call.f_code.co_qualname}())" if blocks and call is not None else ""
        where = f"{short(place[0])}:{place[1]}{within}, and has made no step for {self.options.stall_s:g} s"
        if blocks:
            text = f"{lane.name} blocks at {where}: the explorer cannot control this call; leave it out"
        else:
            text = f"{lane.name} computes at {where}: does this loop end?"
        return Problem("stuck", text, lane.number, *place)

    def frame_of(self, lane: Lane) -> FrameType | None:
        """Return the innermost frame of a lane that is in the student's files, else its innermost frame."""
        found = innermost(lane.ident)
        frame = found
        while frame is not None:
            if frame.f_code.co_filename.startswith(self.options.user):
                return frame
            frame = frame.f_back
        return found

    def unwind(self) -> None:
        """End the lanes that still live, one after the other; a lane that does not end is left parked."""
        for lane in self.lanes:
            if lane.ident and not lane.done:
                self.current = lane
                try:
                    lane.baton.release()
                except RuntimeError:
                    pass  # it runs, and ends at its next step
                lane.ended.acquire(timeout=1.0)

    # Lanes

    def add(self, name: str, target: Callable[[], Any], daemon: bool) -> Lane:
        """Add a lane that does not run yet."""
        lane = Lane(len(self.lanes), name, target, daemon)
        self.lanes.append(lane)
        return lane

    def begin(self, lane: Lane) -> None:
        """Start the real thread of a lane; it waits for its baton."""
        lane.ident = -1
        lane.born = len(self.steps)
        started = _thread.allocate_lock()
        started.acquire()
        _thread.start_new_thread(self.bootstrap, (lane, started))
        started.acquire()
        self.dirty = True

    def bootstrap(self, lane: Lane, started: Any) -> None:
        """Be the real thread of a lane."""
        lane.ident = _thread.get_ident()
        started.release()
        lane.baton.acquire()
        try:
            if not self.over:
                lane.target()
        except Abandoned:
            pass
        except SystemExit as reason:
            if lane.number == 0 and reason.code not in (None, 0):
                self.crash(lane, reason)
        except BaseException as reason:
            self.crash(lane, reason)
        finally:
            self.leave(lane)

    def crash(self, lane: Lane, reason: BaseException) -> None:
        """End the run because of an exception in a lane."""
        if self.over:
            return
        if isinstance(reason, ProgramError):
            self.finish(Problem("unusable", str(reason)))
            return
        file, line = place_of(reason, self.options.user)
        kind = "assertion" if isinstance(reason, AssertionError) else "exception"
        text = str(reason).split("\n", 1)[0]
        if file.startswith(HERE) and not file.startswith(SAMPLES):  # an assertion of harness.py
            words = f"{lane.name}: {text}"
        elif kind == "assertion":
            code = source(file, line)
            code = f"`{code}`" if code.startswith("assert") and len(code) <= 70 else "an assertion"
            words = f"{lane.name}: {code} does not hold ({short(file)}:{line})" + (
                f": {text}" if text else ""
            )
        else:
            what = f"{type(reason).__name__}: {text}" if text else type(reason).__name__
            words = f"{lane.name} dies of {what}, at {short(file)}:{line}"
        self.finish(Problem(kind, words, lane.number, file, line, type(reason).__name__))

    def leave(self, lane: Lane) -> None:
        """End a lane, and hand the baton on."""
        lane.done = True
        lane.held.clear()
        self.dirty = True
        if not self.over:
            step = Step(lane.number, "life", "ends", "", lane, None, True, "", 0)
            self.record(step)
            self.happen(step)
            following = self.next_lane()
            if following is not None:
                self.current = following
                following.baton.release()
        lane.ended.release()

    def finish(self, problem: Problem | None) -> None:
        """End the run; a second problem is not looked at."""
        if not self.over:
            self.over = True
            self.problem = problem
            self.complete_write()
            self.done.release()

    def fail(self, problem: Problem) -> NoReturn:
        """End the run from inside a lane."""
        self.finish(problem)
        raise Abandoned

    # What lanes call

    def mine(self) -> bool:
        """Return whether the caller may make a step. Raises Abandoned in a lane whose run is over."""
        lane = self.current
        if lane.ident != _thread.get_ident():
            raise Abandoned
        if self.over:
            lane.raised += 1
            if lane.raised > RAISES:  # it catches everything: leave it parked
                lane.ended.release()
                lane.baton.acquire()
                lane.baton.acquire()
            raise Abandoned
        return not self.inside_invariant

    def record(self, step: Step) -> None:
        """Add a step, and complete the one before: its write has happened."""
        self.complete_write()
        step.index = len(self.steps)
        self.steps.append(step)

    def complete_write(self) -> None:
        """Note the value that the last write has left."""
        last, self.unfinished = self.unfinished, None
        if last is not None:
            last.after = peek(last.target, last.attribute)

    def point(self, step: Step, decides: bool = True) -> None:
        """Record what the current lane is about to do, and decide who goes on, if it `decides`."""
        if not self.mine():
            return
        lane = self.current
        if self.invariants:
            self.check_invariants(lane)
        self.record(step)
        if len(self.steps) >= self.options.max_steps:
            self.fail(self.too_long())
        lane.steps += 1
        lane.reads = 0 if step.writes else lane.reads + 1
        if lane.reads >= SPIN or lane.steps >= SLICE:
            lane.yields = True
            lane.reads = lane.steps = 0
        syncs = step.kind == "sync"
        if decides:
            lanes = self.runnable()
            if len(lanes) > 1:
                step.decision = len(self.branches)
                chosen = self.decide(lanes, lane)
                if chosen is not lane:
                    self.switch(chosen)
        lane.yields = False
        self.dirty = self.dirty or syncs
        self.happen(step)
        if self.detailed and step.attribute is not None:
            step.before = peek(step.target, step.attribute)
            if step.writes:
                self.unfinished = step

    def happen(self, step: Step) -> None:
        """Note that a step happens now: its lane may have been stopped just before it."""
        step.done = self.happened
        self.lanes[step.lane].last = step
        self.happened += 1

    def block(
        self, step: Step, ready: Callable[[], bool], seconds: float | None, spurious: bool = False
    ) -> bool:
        """Wait until ready() holds; return False if `seconds` passed first. spurious: it may also return early."""
        if not self.mine():
            raise Abandoned
        lane = self.current
        self.record(step)
        if len(self.steps) >= self.options.max_steps:
            self.fail(self.too_long())
        self.happen(step)
        lane.ready = ready
        lane.deadline = None if seconds is None else self.now + max(seconds, 0.0)
        lane.optional = (spurious and self.options.spurious) or (
            seconds is not None and self.options.early_timeouts
        )
        lane.waiting = step
        lane.steps = lane.reads = 0
        self.dirty = True
        following = self.next_lane()
        if following is None:
            raise Abandoned
        if following is not lane:
            self.switch(following)
        in_time = ready()
        if not in_time and lane.deadline is not None and self.now < lane.deadline and not spurious:
            self.now = lane.deadline  # an early timeout
        lane.ready = lane.deadline = lane.waiting = None
        lane.optional = False
        self.dirty = True
        return in_time

    def switch(self, lane: Lane) -> None:
        """Give the baton to another lane, and wait until it comes back."""
        me = self.current
        self.current = lane
        lane.steps = 0
        lane.baton.release()
        me.baton.acquire()
        self.dirty = True
        if self.over:
            raise Abandoned

    # Decisions

    def runnable(self) -> list[Lane]:
        """Return the lanes that could go on, in the order of their numbers."""
        if self.dirty:
            now = self.now
            self.cached = [
                lane
                for lane in self.lanes
                if lane.ident
                and not lane.done
                and (
                    lane.ready is None
                    or lane.optional
                    or (lane.deadline is not None and lane.deadline <= now)
                    or lane.ready()
                )
            ]
            self.dirty = False
        return self.cached

    def next_lane(self) -> Lane | None:
        """Return who goes on now that the current lane cannot; None if the run has ended."""
        while True:
            if all(lane.done or lane.daemon for lane in self.lanes):
                self.finish(None)
                return None
            lanes = self.runnable()
            certain = [lane for lane in lanes if self.is_certain(lane)]
            if certain:
                return lanes[0] if len(lanes) == 1 else self.decide(lanes, None)
            deadlines = [lane.deadline for lane in self.lanes if not lane.done and lane.deadline is not None]
            if not deadlines:
                self.finish(self.deadlock())
                return None
            self.now = max(self.now, min(deadlines))
            self.dirty = True

    def is_certain(self, lane: Lane) -> bool:
        """Return whether a lane could go on without a spurious wake-up or an early timeout."""
        if lane.ready is None or not lane.optional:
            return True
        return lane.ready() or (lane.deadline is not None and lane.deadline <= self.now)

    def decide(self, lanes: list[Lane], current: Lane | None) -> Lane:
        """Let the strategy choose among several lanes, and record what it chose."""
        default = current
        if default is None or default.yields:
            start = self.current.number
            others = [lane for lane in lanes if lane is not current and self.is_certain(lane)] or lanes
            default = min(others, key=lambda lane: (lane.number <= start, lane.number))
        index = len(self.branches)
        chosen = self.strategy.choose(self, lanes, default, index)
        if chosen is not default:
            self.deviations.append((index, chosen.number))
            if current is default:
                self.preemptions += 1
        numbers = tuple(lane.number for lane in lanes)
        at = current.number if current is not None and current is default else -1
        self.branches.append(Branch(numbers, default.number, chosen.number, at, len(self.steps) - 1))
        return chosen

    # What can be wrong

    def check_invariants(self, lane: Lane) -> None:
        """Call the student's invariants. They run without steps."""
        self.inside_invariant = True
        try:
            for invariant in self.invariants:
                if invariant() is False:
                    code = getattr(invariant, "__code__", None)
                    file, line = (code.co_filename, code.co_firstlineno) if code else ("", 0)
                    text = f"the invariant at {short(file)}:{line} is broken after a step of {self.last_name(lane)}"
                    self.fail(Problem("invariant", text, lane.number, file, line))
        except Abandoned:
            raise
        except BaseException as reason:
            file, line = place_of(reason, self.options.user)
            text = f"the invariant at {short(file)}:{line} is broken: {reason}"
            self.fail(Problem("invariant", text, lane.number, file, line))
        finally:
            self.inside_invariant = False

    def last_name(self, lane: Lane) -> str:
        """Return the name of the lane that made the last step."""
        return self.lanes[self.steps[-1].lane].name if self.steps else lane.name

    def waits(self) -> list[Wait]:
        """Return what every blocked lane waits for."""
        found = []
        for lane in self.lanes:
            step = lane.waiting
            if lane.done or step is None:
                continue
            owner = getattr(step.target, "owner", None)
            holder = owner.number if isinstance(owner, Lane) else None
            holds = [each.label for each in lane.held]
            found.append(
                Wait(lane.number, step.verb, named(step), step.target, step.file, step.line, holder, holds)
            )
        return found

    def deadlock(self) -> Problem:
        """Say which lanes wait without end."""
        waits = self.waits()
        joins = [wait for wait in waits if not hasattr(wait.target, "lane")]
        stuck = [wait for wait in joins if not self.lanes[wait.lane].daemon] or joins or waits
        names = " and ".join(self.lanes[wait.lane].name for wait in stuck)
        verb = "waits" if len(stuck) == 1 else "wait"
        first = stuck[0] if stuck else None
        kind = "deadlock"
        if self.lanes[0].done:
            text = f"the program cannot end: {names} {verb} without end"
        else:
            text = f"deadlock: {names} {verb} without end"
        if first is None:
            return Problem(kind, text)
        return Problem(kind, text, first.lane, first.file, first.line, waits=waits)

    def too_long(self) -> Problem:
        """Say that the run has used up its steps."""
        recent = {step.lane for step in self.steps[-500:]}
        names = " and ".join(lane.name for lane in self.lanes if lane.number in recent)
        last = next((step for step in reversed(self.steps) if step.file), self.steps[-1])
        text = (
            f"the program has not ended after {self.options.max_steps:,} steps: {names} "
            f"{'goes' if len(recent) == 1 else 'go'} round in a loop (a busy wait or a livelock), "
            f"last at {short(last.file)}:{last.line}"
        )
        return Problem("steps", text, last.lane, last.file, last.line, waits=self.waits())


def named(step: Step) -> str:
    """Return the name of what a step is about. Primitives are numbered when all of them are known."""
    if step.kind == "sync" and not step.name:
        return str(getattr(step.target, "label", ""))
    return step.name


def active() -> Run | None:
    """Return the run in progress, None outside of one."""
    return ACTIVE[-1] if ACTIVE else None


def innermost(ident: int) -> FrameType | None:
    """Return the innermost frame of a thread."""
    return sys._current_frames().get(ident)


def raise_in(ident: int, error: type[BaseException]) -> None:
    """Raise an exception in a thread that computes, at its next instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(error))


def short(file: str) -> str:
    """Return the name of a file without its directories."""
    return file.rpartition("/")[2] or "?"


def place_of(reason: BaseException, user: tuple[str, ...]) -> tuple[str, int]:
    """Return the innermost line of the student's files in a traceback, else the innermost line."""
    found = ("", 0)
    last = ("", 0)
    trace = reason.__traceback__
    while trace is not None:
        last = (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        if last[0].startswith(user):
            found = last
        trace = trace.tb_next
    return found if found[0] else last


def place() -> tuple[str, int]:
    """Return the line of the program that called the explorer: the innermost frame outside of it."""
    frame: FrameType | None = sys._getframe(1)
    first: FrameType | None = None
    user = ACTIVE[-1].options.user if ACTIVE else ()
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(user) and user:
            return file, frame.f_lineno
        if first is None and (not file.startswith(HERE) or file.startswith(SAMPLES)):
            first = frame
        frame = frame.f_back
    return (first.f_code.co_filename, first.f_lineno) if first is not None else ("", 0)


PLAIN = (int, float, str, bytes, bool, type(None))
SIZED = (list, tuple, dict, set, frozenset)


def peek(target: Any, attribute: str | None) -> str:
    """Return what a part of an object holds, without calling any of the program's code."""
    if attribute is None:
        return ""
    frame = getattr(target, "frame", None) if type(target).__name__ == "Variable" else None
    if isinstance(frame, FrameType):
        return show(frame.f_locals.get(attribute, frame.f_globals.get(attribute)))
    if attribute == "[]":
        value = target
    else:
        try:
            value = object.__getattribute__(target, "__dict__").get(attribute, ...)
        except (AttributeError, TypeError):
            return ""
        if value is ...:
            return ""
    return show(value)


def show(value: Any) -> str:
    """Return a short text for a value: itself if it is plain, else its size."""
    kind = type(value)
    if kind in PLAIN:
        text = repr(value)
        return text if len(text) <= 24 else text[:23] + "…"
    if kind in SIZED or kind.__name__ in ("deque", "OrderedDict", "defaultdict", "Counter"):
        if all(type(each) in PLAIN for each in list(value)[:4]) and len(value) <= 4:
            text = repr(list(value) if kind.__name__ == "deque" else value)
            if len(text) <= 28:
                return text
        return f"{len(value)} items" if len(value) != 1 else "1 item"
    return ""
