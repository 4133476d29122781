"""The scheduler: run a program's threads one at a time, and decide at every step which thread runs next.

A race appears when the system switches from one thread to another at an unlucky moment. On a real machine timers,
caches and luck choose these moments. Here a *schedule* chooses them, so the explorer can search for an unlucky
schedule, store it, and run it again:

    lane 0  main      ──point──point──┐                              ┌──point── ...
    lane 1  worker 1                  └──point──block                │
    lane 2  worker 2                               └──point──point───┘
                      decision 0, 1, ...   2, ...         3, 4, ...      each has a number

Each thread of the program is a real thread of Python, here called a lane. Only one lane runs at a time: the lane
with the baton. A lane passes the baton on in point() or block(), and then waits until the baton comes back. Two
calls make a program controllable:

- point(step): the lane is about to make a step that other lanes can observe, at a lock, a queue or a shared
  variable. The scheduler records the step and decides which lane runs next.
- block(): the lane cannot go on until a condition is true. Other lanes run meanwhile.

If more than one lane can run, there is a *decision*. The default decision makes no switch: the current lane goes
on; if it cannot, the lane with the next number runs. A schedule lists only the other decisions, the *deviations*,
as pairs "decision:lane". `17:2` means: at decision 17, lane 2 runs next. The empty schedule has only default
decisions (Emmi, Qadeer and Rakamaric call the number of deviations the delay bound, POPL 2011).

Time is virtual. A lane that sleeps is blocked until a deadline; when all lanes are blocked, the clock jumps to the
earliest deadline. No test waits, and no result depends on the speed of the machine.

A run ends when the last non-daemon thread ends, or at an exception in any thread, a broken invariant, a deadlock
(no lane can run, and no deadline is left), or too many steps (a livelock or a busy wait). The scheduler then ends
every lane that still runs: it raises Abandoned at the lane's current step.

Possible failures: a lane that blocks in a system call, outside the scheduler, keeps the baton. The thread that
started the run is a watchdog: if no lane makes a step for `stall_s` seconds, it reports the lane's line. A lane
that loops without a write probably waits for another lane, and loses its turn after MAX_LOOP_STEPS steps.

Read next: search.py, which chooses schedules; instrument.py, which puts points into the student's code.
"""

from __future__ import annotations

import _thread
import ctypes
import gc
import random
import sys
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn, Protocol

from ewe.config.messages import Failure
from ewe_explore.names import source

PACKAGE_DIRECTORY = str(Path(__file__).parent) + "/"
SAMPLES_DIRECTORY = PACKAGE_DIRECTORY + "samples/"
MAX_LOOP_STEPS = 60  # steps without a write after which a lane counts as waiting in a loop
TIME_SLICE_STEPS = 3000  # steps since a lane was chosen, after which it loses its turn
RECENT_STEPS = 500  # the steps in which a lane that loops must have one
MAX_RAISES = 50  # times that Abandoned is raised in one lane; then the lane stays blocked
CHECK_EVERY_S = 0.25  # how often the watchdog looks for new steps
MAX_END_S = 1.0  # seconds in which a lane must end after the run
MAX_HEADLINE_NAMES = 3  # the most threads that a headline names, if there are many
MAX_QUOTED_CODE_CHARS = 70  # the longest assertion that a headline quotes
START_TIME_S = 1_136_073_600.0  # time.time() at the start of a run: 1 January 2006

PartKey = tuple[int, str | None]  # a part of an object: its id(), and the part as in PartUse.attribute


class Abandoned(BaseException):
    """The run is over. Raised in a lane to end it."""


class InvariantHasToWait(BaseException):
    """An invariant needs a lock that a lane holds: it cannot be checked now. Raised in the invariant."""


class ProgramError(Failure):
    """A program cannot be explored. The message is one line."""

    exit_status = 2


class Deviation(NamedTuple):
    """A decision that is not the default one. decision: its number in the run. lane: the lane that runs next."""

    decision: int
    lane: int


Schedule = tuple[Deviation, ...]  # in the order of the decisions


def last_decision(schedule: Schedule) -> int:
    """Return the number of the last decision that a schedule changes; -1 for the empty schedule."""
    return schedule[-1].decision if schedule else -1


class CodeLocation(NamedTuple):
    """A line of a file."""

    file: str
    line: int


NOWHERE = CodeLocation("", 0)  # no line of a file


class Named(Protocol):
    """An object of a step: a lock, a queue, a socket."""

    explorer_label: str


class PartUse(NamedTuple):
    """The use of one part of an object.

    attribute: the name of an attribute or a variable, "[]" for the contents, None for the whole object.
    """

    target: Any
    attribute: str | None
    writes: bool


@dataclass(slots=True)
class Step:
    """One action that a lane did, or was about to do when the run ended.

    kind: read, write, call (an access to an object), sync (a primitive), life (a thread starts or ends), print.
    target, attribute: as in PartUse. before, after: the old and the new value of this part, as text.
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
    hidden: bool = False  # the next step shows the same action
    failed: bool = False  # a try without a wait, such as get_nowait(), that found the object not ready
    execution_index: int = -1  # its position in the order of execution; -1: the run ended before
    other_uses: tuple[PartUse, ...] = ()  # of the same action, such as those of lists within a list
    # What the explorer cannot see of the action. It matters if lanes share one of the objects; "": it sees all
    unseen: str = ""

    def key(self) -> PartKey:
        """Return an identifier of the object and its part, unique within one run."""
        return id(self.target), self.attribute

    def uses(self) -> list[tuple[PartKey, bool]]:
        """Return the identifiers of all parts that the action uses, each with whether it changes the part."""
        found = [(self.key(), self.writes)]
        if self.other_uses:
            found += [((id(use.target), use.attribute), use.writes) for use in self.other_uses]
        return found


@dataclass(slots=True)
class Branch:
    """A decision: the numbers of the runnable lanes, of the default lane and of the chosen lane.

    default_goes_on: the default is the current lane, which could go on, so each other choice is a preemption. step:
    the index of the step at which the decision was taken.
    """

    lanes: tuple[int, ...]
    default: int
    chosen: int
    default_goes_on: bool
    step: int


@dataclass
class Problem:
    """The failure of a run.

    kind: exception, assertion, invariant, deadlock, steps (too many), stuck (no step for stall_s), unusable (the
    program cannot be explored). headline: one sentence. lane, file, line: of the failure. exception: the name of
    the class, "" for other kinds. waits: the blocked lanes of a deadlock, or of a run with too many steps.
    """

    kind: str
    headline: str
    lane: int = 0
    file: str = ""
    line: int = 0
    exception: str = ""
    waits: list[BlockedLane] = field(default_factory=list)

    def is_same_failure(self, other: Problem | None) -> bool:
        """Return whether another run failed in the same way. other: None if it passed."""
        if other is None or self.kind != other.kind or self.exception != other.exception:
            return False
        return self.kind in ("deadlock", "steps") or (self.file, self.line) == (
            other.file,
            other.line,
        )


@dataclass
class BlockedLane:
    """The wait of a lane at the end of a run. holder: the lane that owns the target. holds: the lane's locks.

    notified: the step of the notify that has ended a wait on a condition. The lane then waits for the condition's
    lock, and the holder is the owner of this lock.
    """

    lane: int
    verb: str
    name: str  # of the target
    target: Any
    file: str
    line: int
    holder: int | None
    holds: list[str]
    notified: Step | None = None


class PendingAccess(NamedTuple):
    """An access whose second point has not come yet (points.py). changed: the object that `+=` changes in place."""

    second_point: int
    target: Any
    changed: Any


def new_signal() -> _thread.LockType:
    """Return a lock that is taken. One thread waits for it by acquire(), and another one releases it."""
    signal = _thread.allocate_lock()
    signal.acquire()
    return signal


class Lane:
    """A thread of the program: a column of the timeline."""

    def __init__(self, number: int, name: str, target: Callable[[], Any], daemon: bool) -> None:
        self.number = number
        self.name = name
        self.target = target
        self.daemon = daemon
        self.starter: Lane | None = None  # the lane that has started it
        self.start_index = 0  # the number of steps of the run when the lane started
        self.thread: Any = None  # its threads.Thread

        # The real thread
        self.ident = 0  # of the real thread; 0: it has not been started
        self.baton = new_signal()  # the lane that runs has the baton; a release passes it to this lane
        self.end_signal = new_signal()
        self.has_ended = False
        self.is_joined = False  # the main thread has waited for its end
        self.abandoned_count = 0  # times that Abandoned was raised in the lane

        # Its wait, if it is blocked
        self.blocked_at: Step | None = None
        # The condition that ends the wait; None: the lane may run
        self.ready: Callable[[], bool] | None = None
        self.deadline: float | None = None  # the end of a wait with a timeout, on the clock Run.now
        self.may_wake_early = False  # the lane may go on although ready() is false (a spurious wake-up)
        self.notified: Step | None = None  # the notify that has ended its last wait on a condition

        # Its steps
        self.last_step: Step | None = None
        self.steps_since_write = 0
        self.steps_in_turn = 0  # since the lane was chosen last
        self.yields = False  # prefer other lanes at the next decision
        self.held_locks: list[Any] = []
        self.pending: list[PendingAccess] = []
        self.receiver: Any = None  # the object of its last method call (calls.py)
        # False while the lane is in a method of a queue that a subclass may override (queues.py)
        self.has_points = True
        self.is_importing = False  # it executes the code of a module, which has no points then (modules.py)


class Strategy(Protocol):
    """Takes the decisions of a run."""

    def choose(self, run: Run, lanes: list[Lane], default: Lane, index: int) -> Lane:
        """Return one of `lanes`."""


@dataclass
class Options:
    """The options of a run.

    max_steps: the most steps of one run. stall_s: real seconds without a step after which a lane counts as stuck.
    """

    max_steps: int = 20_000
    stall_s: float = 3.0
    spurious: bool = False
    early_timeouts: bool = False
    own_directories: tuple[str, ...] = ()  # those with the student's files; each ends with "/"


ACTIVE_RUNS: list[Run] = []  # the run in progress is the last one; empty outside of a run


def active_run() -> Run | None:
    """Return the run in progress; None outside of a run."""
    return ACTIVE_RUNS[-1] if ACTIVE_RUNS else None


def this_run() -> Run:
    """Return the run in progress, in code that only its lanes execute."""
    return ACTIVE_RUNS[-1]


class Run:
    """One execution of the program with one strategy. detailed: record values of variables for the timeline."""

    def __init__(self, strategy: Strategy, options: Options, detailed: bool = False) -> None:
        self.strategy = strategy
        self.options = options
        self.detailed = detailed

        # The state of the scheduler
        self.lanes: list[Lane] = []
        self.current: Lane  # the lane that has the baton
        self.runnable_lanes: list[Lane] = []  # the last result of runnable()
        self.runnable_is_stale = True  # a lane may have become runnable or blocked since then
        self.now = 0.0  # the explorer's clock, in seconds; only waits with a timeout and sleep() advance it
        self.end_signal = new_signal()
        self.over = False
        self.invariants: list[Callable[[], object]] = []
        self.inside_invariant = False
        # Whether a release is a decision: the program tests whether a lock is held (primitives.py)
        self.releases_decide = False
        # Whether the end of each lane is a decision: the program tests whether a thread has ended
        self.ends_decide = False

        # The records of the run
        self.steps: list[Step] = []
        self.executed_steps = 0  # steps that have happened: a recorded step happens when its lane goes on
        self.unfinished_write: Step | None = None  # a write with a still unknown new value
        self.branches: list[Branch] = []
        self.deviations: list[Deviation] = []
        self.preemptions = 0
        self.unseen: dict[str, None] = {}  # accesses that are no steps, each once: "vars(…) (mine.py:3)"
        # Accesses within the methods that a queue calls, which are no steps: each once (points.py)
        self.accesses_in_queues: dict[tuple[PartKey, int, bool], Step] = {}
        self.problem: Problem | None = None
        self.blocked_at_end: list[BlockedLane] = []  # of a detailed run
        self.result: Any = None

        # The objects of the program
        self.threads: list[Any] = []  # each Thread that the program has made, started or not
        self.network: Any = None
        self.own_modules: set[str] = set()  # names of the modules that have points
        self.class_facts: dict[type, Any] = {}  # points.ClassFacts of each class
        self.aliases: dict[int, tuple[Any, str]] = {}  # id() -> object and text of note_alias()
        self.objects_per_line: dict[CodeLocation, int] = {}  # how many objects each line has made

    # Called from outside

    def execute(self, main: Callable[[], Any]) -> None:
        """Run `main` as lane 0, with all the threads that it starts, until the run is over."""
        gc_was_enabled = gc.isenabled()
        gc.disable()  # otherwise a finalizer could run at a moment that the schedule does not control
        state = random.getstate()
        random.seed(0)  # the program gets the same random numbers in each run
        ACTIVE_RUNS.append(self)
        try:
            self.main = main
            self.current = self.add_lane("main", self.call_main, daemon=False)
            self.start_thread(self.current)
            self.current.baton.release()
            try:
                self.wait_for_end()
            finally:
                self.over = True  # also after Ctrl-C: a lane that still runs ends at its next step
                self.end_remaining_lanes()
        finally:
            ACTIVE_RUNS.remove(self)
            random.setstate(state)
            if gc_was_enabled:
                gc.enable()

    def call_main(self) -> None:
        """Call the program; keep its result."""
        self.result = self.main()

    def wait_for_end(self) -> None:
        """Wait for the end of the run. End the run if no lane makes a step for stall_s seconds."""
        last_count = -1
        since = time.monotonic()  # the time of the last new step
        while not self.end_signal.acquire(timeout=CHECK_EVERY_S):
            count = len(self.steps) + len(self.branches)
            if count != last_count:
                last_count, since = count, time.monotonic()
            elif time.monotonic() - since > self.options.stall_s and not self.over:
                self.problem = self.stuck_problem()
                self.over = True
                raise_in_thread(self.current.ident, Abandoned)
                return

    def stuck_problem(self) -> Problem:
        """Describe the place at which the current lane blocks or computes without a step."""
        lane = self.current
        frame = self.frame_of(lane)
        file, line = (frame.f_code.co_filename, frame.f_lineno) if frame else ("", 0)
        innermost = innermost_frame(lane.ident)
        # In a function of another file, such as one of the standard library, it probably waits for the kernel
        blocks = innermost is not None and file != innermost.f_code.co_filename
        within = f" (in {function_name(innermost)}())" if blocks and innermost is not None else ""
        where = f"{base_name(file)}:{line}{within}, and has made no step for {self.options.stall_s:g} s"
        if blocks:
            text = f"{lane.name} blocks at {where}: the explorer cannot control this call; leave it out"
        else:
            text = f"{lane.name} computes at {where}: does this loop end?"
        return Problem("stuck", text, lane.number, file, line)

    def frame_of(self, lane: Lane) -> FrameType | None:
        """Return the innermost frame of a lane in the student's files, or else its innermost frame."""
        found = innermost_frame(lane.ident)
        frame = found
        while frame is not None:
            if frame.f_code.co_filename.startswith(self.options.own_directories):
                return frame
            frame = frame.f_back
        return found

    def end_remaining_lanes(self) -> None:
        """End the remaining lanes, one after the other. A lane that does not end stays blocked."""
        for lane in self.lanes:
            if lane.ident and not lane.has_ended:
                self.current = lane
                try:
                    lane.baton.release()
                except RuntimeError:
                    pass  # the lane runs, and ends at its next step
                lane.end_signal.acquire(timeout=MAX_END_S)

    # Lanes

    def add_lane(self, name: str, target: Callable[[], Any], daemon: bool) -> Lane:
        """Add a lane that does not run yet."""
        lane = Lane(len(self.lanes), name, target, daemon)
        self.lanes.append(lane)
        return lane

    def start_thread(self, lane: Lane) -> None:
        """Start the real thread of a lane, and wait until it exists. The thread waits for the baton."""
        lane.ident = -1  # until the thread has stored its own
        lane.start_index = len(self.steps)
        started = new_signal()
        _thread.start_new_thread(self.run_lane, (lane, started))
        started.acquire()
        self.runnable_is_stale = True

    def run_lane(self, lane: Lane, started: Any) -> None:
        """Run as the real thread of a lane: wait for the baton, then call the lane's target.

        Abandoned ends a lane after the end of the run. SystemExit ends only its own thread, as in Python: it is a
        failure only in the main thread, with a status other than 0. Any other exception is a failure of the run.
        """
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
                self.end_by_exception(lane, reason)
        except BaseException as reason:
            self.end_by_exception(lane, reason)
        finally:
            self.end_lane(lane)

    def end_by_exception(self, lane: Lane, reason: BaseException) -> None:
        """End the run because of an exception in a lane."""
        if self.over:
            return
        if isinstance(reason, ProgramError):
            self.finish(Problem("unusable", str(reason)))
            return
        file, line = location_of(reason, self.options.own_directories)
        kind = "assertion" if isinstance(reason, AssertionError) else "exception"
        text = text_of(reason).split("\n", 1)[0]
        what = f"{type(reason).__name__}: {text}" if text else type(reason).__name__
        # An assertion of harness.py has its text; one of the student has its source line
        if file.startswith(PACKAGE_DIRECTORY) and not file.startswith(SAMPLES_DIRECTORY):
            headline = f"{lane.name}: {text}"
            if kind == "exception" and (start := self.start_of(lane)) is not None:
                # The call of the thread's function has failed, for example with a wrong number of arguments
                file, line = start.file, start.line
                headline = f"{lane.name} dies of {what}; it is started at {base_name(file)}:{line}"
        elif kind == "assertion":
            code = source(file, line)
            is_short = code.startswith("assert") and len(code) <= MAX_QUOTED_CODE_CHARS
            code = f"`{code}`" if is_short else "an assertion"
            headline = f"{lane.name}: {code} does not hold ({base_name(file)}:{line})" + (
                f": {text}" if text else ""
            )
        else:
            headline = f"{lane.name} dies of {what}, at {base_name(file)}:{line}"
        self.finish(Problem(kind, headline, lane.number, file, line, type(reason).__name__))

    def start_of(self, lane: Lane) -> Step | None:
        """Return the step that has started a lane; None for the main thread."""
        for step in self.steps:
            # `is`: a thread of the program may have its own __eq__()
            if step.verb == "starts" and (
                step.target is lane or getattr(step.target, "explored_lane", None) is lane
            ):
                return step
        return None

    def end_lane(self, lane: Lane) -> None:
        """Check the invariants after the lane's last step, end the lane, and pass the baton on.

        A lock that the lane still owns stays locked, as in Python.
        """
        if not self.over and self.is_end_observed(lane):
            with suppress(Abandoned):  # the run may end before this lane does
                self.point(life_step(lane, "is about to end"))
        if self.invariants and not self.over:
            with suppress(Abandoned):  # a broken invariant ends the run, and this lane ends anyway
                self.check_invariants(lane)
        lane.has_ended = True
        lane.held_locks.clear()
        self.runnable_is_stale = True
        if not self.over:
            step = life_step(lane, "ends")
            self.record(step)
            self.note_execution(step)
            following = self.next_lane()
            if following is not None:
                # Not pass_baton(), which would wait until the baton comes back
                self.current = following
                following.baton.release()
        lane.end_signal.release()

    def is_end_observed(self, lane: Lane) -> bool:
        """Return whether other lanes may run between the last step of a lane and its end, with another result.

        The end of the last lane that is no daemon ends the run, and the daemons with it.
        """
        others = [each for each in self.lanes if each is not lane and not each.has_ended]
        return bool(others) and (
            self.ends_decide or (not lane.daemon and all(each.daemon for each in others))
        )

    def is_alone(self) -> bool:
        """Return whether no schedule lets another lane run now: none has started, or the main thread joined all.

        A lane that has ended, and was not joined, could have been stopped before, and run now.
        """
        others = [lane for lane in self.lanes if lane is not self.current and lane.ident]
        return not others or (self.current.number == 0 and all(lane.is_joined for lane in others))

    def may_precede_start(self, lane: Lane) -> bool:
        """Return whether the current lane existed before the start of another lane, and did not start it."""
        return lane.starter is not self.current and self.current.start_index <= lane.start_index

    def note_unseen(self, text: str, file: str, line: int, always: bool = False) -> None:
        """Note that the explorer cannot see an action of the current lane.

        No other lane can disturb a lane that is alone, so its actions are noted only if `always` is set.
        """
        if always or not self.is_alone():
            self.unseen[f"{text} ({base_name(file)}:{line})"] = None

    def note_alias(self, target: Any, text: str) -> None:
        """Note an object that stands for parts of others, such as the result of vars(): its uses are unseen.

        text: the note for a use. The object is kept, so that no other one gets its id().
        """
        self.aliases[id(target)] = target, text

    def finish(self, problem: Problem | None) -> None:
        """End the run. Ignore a second problem."""
        if not self.over:
            if self.detailed:
                self.blocked_at_end = self.blocked_lanes()
            self.over = True
            self.problem = problem
            self.complete_write()
            self.end_signal.release()

    def fail(self, problem: Problem) -> NoReturn:
        """End the run from inside a lane."""
        self.finish(problem)
        raise Abandoned

    # Called by lanes

    def may_step(self) -> bool:
        """Return whether the caller may make a step: not inside an invariant, whose accesses are no steps.

        Raises Abandoned if the run of the caller is over.
        """
        lane = self.current
        if lane.ident != _thread.get_ident():  # a lane of an earlier run, which still unwinds
            raise Abandoned
        if self.over:
            lane.abandoned_count += 1
            if lane.abandoned_count > MAX_RAISES:  # the lane catches every exception: block it permanently
                lane.end_signal.release()
                lane.baton.acquire()
                lane.baton.acquire()  # never released: the thread waits here until the process ends
            raise Abandoned
        return not self.inside_invariant

    def record(self, step: Step) -> None:
        """Add a step. The write of the previous step has now happened, so complete that step."""
        self.complete_write()
        step.index = len(self.steps)
        self.steps.append(step)

    def complete_write(self) -> None:
        """Record the new value after the last write."""
        last, self.unfinished_write = self.unfinished_write, None
        if last is not None:
            last.after = value_text(last.target, last.attribute)

    def point(self, step: Step, decides: bool = True) -> None:
        """Record the next step of the current lane. If `decides`, decide which lane runs next.

        The step itself happens after the return: until then other lanes may run. Raises Abandoned.
        """
        if not self.may_step():
            return
        lane = self.current
        if self.invariants:
            self.check_invariants(lane)
        self.record(step)
        if len(self.steps) >= self.options.max_steps:
            self.fail(self.too_long_problem())
        lane.steps_in_turn += 1
        lane.steps_since_write = 0 if step.writes else lane.steps_since_write + 1
        if decides:
            self.let_other_lanes_run(step, lane)
        # A lane prefers other lanes at one decision only
        lane.yields = False
        # A primitive may wake or block another lane
        self.runnable_is_stale = self.runnable_is_stale or step.kind == "sync"
        self.note_execution(step)
        if self.detailed and step.attribute is not None:
            step.before = value_text(step.target, step.attribute)
            # The write follows this call: the next step of any lane completes it with the new value
            if step.writes:
                self.unfinished_write = step

    def let_other_lanes_run(self, step: Step, lane: Lane) -> None:
        """Decide at a step of the current lane which lane runs next; return when it is this lane's turn again.

        A lane that only reads probably waits in a loop for another lane. A lane with many steps since it was chosen
        computes for long. The default decision is then another lane. Raises Abandoned if the run ends before.
        """
        # Only here, not at each step: the limit may be reached at a step without a decision, such as a print()
        if lane.steps_since_write >= MAX_LOOP_STEPS or lane.steps_in_turn >= TIME_SLICE_STEPS:
            lane.yields = True
            lane.steps_since_write = lane.steps_in_turn = 0
        lanes = self.runnable()
        if len(lanes) > 1:
            step.decision = len(self.branches)
            chosen = self.decide(lanes, lane)
            if chosen is not lane:
                self.pass_baton(chosen)

    def note_execution(self, step: Step) -> None:
        """Note that a step happens now. Its lane may have been stopped between record() and this call."""
        step.execution_index = self.executed_steps
        self.lanes[step.lane].last_step = step
        self.executed_steps += 1

    def block(
        self, step: Step, ready: Callable[[], bool], seconds: float | None, spurious: bool = False
    ) -> bool:
        """Block the current lane until ready() is true; return what ready() says when the lane goes on.

        seconds: the longest wait, by the clock Run.now; None for no limit. spurious: the wait is that of a
        condition, which may also end early if the option of this name is set. Return False after a timeout or an
        early end. Other lanes run meanwhile. Raises Abandoned if the run ends during the wait.
        """
        # False within an invariant: it runs between two steps of its lane, and must not block the lane
        if not self.may_step():
            raise Abandoned
        lane = self.current
        self.record(step)
        if len(self.steps) >= self.options.max_steps:
            self.fail(self.too_long_problem())
        self.note_execution(step)
        lane.ready = ready
        lane.deadline = None if seconds is None else self.now + max(seconds, 0.0)
        lane.may_wake_early = (spurious and self.options.spurious) or (
            seconds is not None and self.options.early_timeouts
        )
        lane.blocked_at = step
        lane.steps_in_turn = lane.steps_since_write = 0
        self.runnable_is_stale = True
        following = self.next_lane()
        # No lane can go on (a deadlock), or only daemons are left: next_lane() has ended the run
        if following is None:
            raise Abandoned
        # The current lane itself may be the next one: its deadline may be the earliest of all
        if following is not lane:
            self.pass_baton(following)
        in_time = ready()
        if not in_time and lane.deadline is not None and self.now < lane.deadline and not spurious:
            # An early timeout. The program takes its whole timeout as passed, so the clock must agree
            self.now = lane.deadline
        lane.ready = lane.deadline = lane.blocked_at = None
        lane.may_wake_early = False
        self.runnable_is_stale = True
        return in_time

    def pass_baton(self, lane: Lane) -> None:
        """Pass the baton to another lane, and wait until it comes back. Raises Abandoned if the run ends before."""
        me = self.current
        self.current = lane
        lane.steps_in_turn = 0
        lane.baton.release()
        me.baton.acquire()
        self.runnable_is_stale = True
        if self.over:
            raise Abandoned

    # Decisions

    def runnable(self) -> list[Lane]:
        """Return the lanes that can run, in the order of their numbers."""
        if self.runnable_is_stale:
            now = self.now
            self.runnable_lanes = [
                lane
                for lane in self.lanes
                if lane.ident
                and not lane.has_ended
                and (
                    lane.ready is None
                    or lane.may_wake_early
                    or (lane.deadline is not None and lane.deadline <= now)
                    or lane.ready()
                )
            ]
            self.runnable_is_stale = False
        return self.runnable_lanes

    def next_lane(self) -> Lane | None:
        """Return the lane that runs next if the current lane cannot go on; None if the run has ended."""
        while True:
            if all(lane.has_ended or lane.daemon for lane in self.lanes):
                self.finish(None)
                return None
            lanes = self.runnable()
            # An early wake-up is a spurious one or an early timeout, which options allow. It alone is no reason to
            # go on: otherwise these options would hide each deadlock
            if any(self.can_run_without_early_wake_up(lane) for lane in lanes):
                return lanes[0] if len(lanes) == 1 else self.decide(lanes, current=None)
            deadlines = [
                lane.deadline for lane in self.lanes if not lane.has_ended and lane.deadline is not None
            ]
            if not deadlines:
                self.finish(self.deadlock_problem())
                return None
            self.now = max(self.now, min(deadlines))  # virtual time: nothing else can happen before
            self.runnable_is_stale = True

    def can_run_without_early_wake_up(self, lane: Lane) -> bool:
        """Return whether a lane can run without a spurious wake-up or an early timeout."""
        if lane.ready is None or not lane.may_wake_early:
            return True
        return lane.ready() or (lane.deadline is not None and lane.deadline <= self.now)

    def decide(self, lanes: list[Lane], current: Lane | None) -> Lane:
        """Let the strategy choose one of several lanes, and record the decision.

        lanes: the lanes that can run. current: the lane that is about to make a step, None if it cannot go on. The
        default is the current lane. If that cannot go on or has to yield, the default is the lane with the next
        higher number, and after the highest number the lowest. A lane that only a spurious wake-up or an early
        timeout would wake is the default only if there is no other.
        """
        default = current
        if default is None or default.yields:
            start = self.current.number
            others = [
                lane for lane in lanes if lane is not current and self.can_run_without_early_wake_up(lane)
            ] or lanes
            default = min(others, key=lambda lane: (lane.number <= start, lane.number))
        index = len(self.branches)
        chosen = self.strategy.choose(self, lanes, default, index)
        if chosen is not default:
            self.deviations.append(Deviation(index, chosen.number))
            if current is default:  # the strategy stops a lane that could go on
                self.preemptions += 1
        numbers = tuple(lane.number for lane in lanes)
        self.branches.append(
            Branch(numbers, default.number, chosen.number, current is default, step=len(self.steps) - 1)
        )
        return chosen

    # Failures

    def check_invariants(self, lane: Lane) -> None:
        """Call the student's invariants; end the run if one is broken. Their accesses are no steps.

        lane: the one that has the baton, between two of its steps. Raises Abandoned if an invariant is broken.
        """
        for invariant in self.invariants:
            self.check_invariant(invariant, lane)

    def check_invariant(self, invariant: Callable[[], object], lane: Lane) -> None:
        """Call one invariant. One that needs a lock is not checked while a lane holds the lock."""
        self.inside_invariant = True
        try:
            if invariant() is False:
                code = getattr(invariant, "__code__", None)
                file, line = (code.co_filename, code.co_firstlineno) if code else ("", 0)
                text = f"the invariant at {base_name(file)}:{line} is broken"
                text += f" after a step of {self.name_of_last_lane(lane)}"
                self.fail(Problem("invariant", text, lane.number, file, line))
        except Abandoned:  # raised by fail() above
            raise
        except InvariantHasToWait:
            return
        except BaseException as reason:  # an assertion of the invariant, or a mistake in it
            file, line = location_of(reason, self.options.own_directories)
            text = f"the invariant at {base_name(file)}:{line} is broken: {text_of(reason)}"
            self.fail(Problem("invariant", text, lane.number, file, line))
        finally:
            self.inside_invariant = False

    def name_of_last_lane(self, lane: Lane) -> str:
        """Return the name of the lane that made the last step; of `lane` before the first step."""
        return self.lanes[self.steps[-1].lane].name if self.steps else lane.name

    def blocked_lanes(self) -> list[BlockedLane]:
        """Return the blocked lanes, each with the step at which it waits."""
        found = []
        for lane in self.lanes:
            step = lane.blocked_at
            # Without a deadlock, a lane may be able to go on that has not had a turn yet
            if lane.has_ended or step is None or (lane.ready is not None and lane.ready()):
                continue
            # The end of a wait on a condition is a wait for its lock
            for_lock = lane.notified is not None or step.verb.startswith("wants the lock")
            owner = getattr(step.target.lock if for_lock else step.target, "owner", None)
            holder = owner.number if isinstance(owner, Lane) else None
            holds = [lock.explorer_label for lock in lane.held_locks]
            found.append(
                BlockedLane(
                    lane=lane.number,
                    verb=step.verb,
                    name=name_of_object(step),
                    target=step.target,
                    file=step.file,
                    line=step.line,
                    holder=holder,
                    holds=holds,
                    notified=lane.notified,
                )
            )
        return found

    def deadlock_problem(self) -> Problem:
        """Return the problem of a deadlock, with the lanes that wait without end."""
        waits = self.blocked_lanes()
        # A lane in join() waits for another lane that waits: the cause is the other lane
        causes = [wait for wait in waits if not hasattr(wait.target, "explored_lane")]
        stuck = [wait for wait in causes if not self.lanes[wait.lane].daemon] or causes or waits
        names = joined_names([self.lanes[wait.lane].name for wait in stuck])
        verb = "waits" if len(stuck) == 1 else "wait"
        first = stuck[0] if stuck else None
        kind = "deadlock"
        if self.lanes[0].has_ended:
            text = f"the program cannot end: {names} {verb} without end"
        else:
            text = f"deadlock: {names} {verb} without end"
        if first is None:
            return Problem(kind, text)
        return Problem(kind, text, first.lane, first.file, first.line, waits=waits)

    def too_long_problem(self) -> Problem:
        """Return the problem of a run that has used up its steps."""
        recent = {step.lane for step in self.steps[-RECENT_STEPS:]}
        names = joined_names([lane.name for lane in self.lanes if lane.number in recent])
        last = next((step for step in reversed(self.steps) if step.file), self.steps[-1])
        text = (
            f"the program has not ended after {self.options.max_steps:,} steps: {names} "
            f"{'goes' if len(recent) == 1 else 'go'} round in a loop (a busy wait or a livelock), "
            f"last at {base_name(last.file)}:{last.line}"
        )
        return Problem("steps", text, last.lane, last.file, last.line, waits=self.blocked_lanes())


def joined_names(names: list[str]) -> str:
    """Return names for a headline; count those after the first MAX_HEADLINE_NAMES of many."""
    if len(names) > MAX_HEADLINE_NAMES + 1:
        names = [*names[:MAX_HEADLINE_NAMES], f"{len(names) - MAX_HEADLINE_NAMES} other threads"]
    return " and ".join(names)


def name_of_object(step: Step) -> str:
    """Return the name of a step's object. A primitive's label may get a number later, if its line makes several."""
    if step.kind == "sync" and not step.name:
        return str(getattr(step.target, "explorer_label", ""))
    return step.name


def function_name(frame: FrameType) -> str:
    """Return the name of the function of a frame; the called one if the frame is that of a step around a call."""
    name = frame.f_code.co_qualname
    return str(frame.f_locals["self"].point.name) if name == "CallWithStep.__call__" else name


def innermost_frame(ident: int) -> FrameType | None:
    """Return the innermost frame of a thread, None if the thread has ended."""
    return sys._current_frames().get(ident)


def raise_in_thread(ident: int, error: type[BaseException]) -> None:
    """Raise an exception in another thread, at its next instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(error))


def text_of(reason: BaseException) -> str:
    """Return the text of an exception. Its __str__() is code of the program, and may fail: then say so."""
    try:
        return str(reason)
    except BaseException:
        return "(its text cannot be made)"


def base_name(file: str) -> str:
    """Return the name of a file without its directories."""
    return file.rpartition("/")[2] or "?"


def location_of(reason: BaseException, own_directories: tuple[str, ...]) -> CodeLocation:
    """Return the innermost line of a traceback in the student's files, or else its innermost line.

    own_directories: as in Options.
    """
    found = NOWHERE
    last = NOWHERE
    trace = reason.__traceback__
    while trace is not None:
        last = CodeLocation(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        if last.file.startswith(own_directories):
            found = last
        trace = trace.tb_next
    return found if found.file else last


def line_of_program() -> CodeLocation:
    """Return the line that called the explorer: that of the innermost frame in the student's files.

    Without such a frame: that of the innermost frame outside the explorer, or else NOWHERE.
    """
    frame: FrameType | None = sys._getframe(1)
    first: FrameType | None = None
    run = active_run()
    own_directories = run.options.own_directories if run is not None else ()
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(own_directories):  # false without any directory
            return CodeLocation(file, frame.f_lineno)
        if first is None and (not file.startswith(PACKAGE_DIRECTORY) or file.startswith(SAMPLES_DIRECTORY)):
            first = frame
        frame = frame.f_back
    return CodeLocation(first.f_code.co_filename, first.f_lineno) if first is not None else NOWHERE


def life_step(lane: Lane, verb: str) -> Step:
    """Return a step of kind `life`, by which a lane ends. It belongs to no line of the program."""
    return Step(lane.number, "life", verb, name="", target=lane, attribute=None, writes=True, file="", line=0)


def synchronization_step(
    run: Run, verb: str, target: Any, name: str = "", *, note: str = "", writes: bool = True
) -> Step:
    """Return a step of kind `sync` of the current lane, at the line of the program that called the explorer.

    target: the primitive. writes: most calls change the primitive, so another lane may see their order.
    """
    file, line = line_of_program()
    return Step(
        run.current.number, "sync", verb, name, target=target, attribute=None, writes=writes, file=file,
        line=line, note=note,
    )  # fmt: skip


MAX_SCALAR_CHARS, MAX_CONTAINER_CHARS, MAX_SHOWN_ITEMS = 24, 28, 4  # of a value in the timeline
SCALAR_TYPES = (int, float, str, bytes, bool, type(None))
CONTAINER_TYPES = (list, tuple, dict, set, frozenset, deque, OrderedDict, defaultdict, Counter)


def value_text(target: Any, attribute: str | None) -> str:
    """Return the value of a part of an object as text, without calling code of the program; "" if it has none.

    attribute: the name of an attribute or a variable, "[]" for the contents of a container, None for no part.
    """
    if attribute is None:
        return ""
    frame = getattr(target, "frame", None) if type(target).__name__ == "Variable" else None
    if isinstance(frame, FrameType):
        return short_value(frame.f_locals.get(attribute, frame.f_globals.get(attribute)))
    if attribute == "[]":
        value = target
    else:
        try:
            # Not getattr(): a property or a __getattr__() of the program would make steps. `...`: no such attribute
            value = object.__getattribute__(target, "__dict__").get(attribute, ...)
        except (AttributeError, TypeError):
            return ""
        if value is ...:
            return ""
    return short_value(value)


def short_value(value: Any) -> str:
    """Return a short text for a value: the value if it is plain, the size of a container, or "".

    No code of the program runs: its classes may have the name of a container, and a __repr__() that makes steps.
    """
    kind = type(value)
    if kind in SCALAR_TYPES:
        text = scalar_text(value)
        return text if len(text) <= MAX_SCALAR_CHARS else text[: MAX_SCALAR_CHARS - 1] + "…"
    if kind not in CONTAINER_TYPES:
        return ""
    if len(value) <= MAX_SHOWN_ITEMS:
        items = [*value, *value.values()] if isinstance(value, dict) else list(value)
        if all(type(each) in SCALAR_TYPES for each in items):
            # The repr() of a defaultdict or a deque would also show how it was made
            text = scalar_text(
                dict(value) if kind is defaultdict else list(value) if kind is deque else value
            )
            if len(text) <= MAX_CONTAINER_CHARS:
                return text
    return f"{len(value)} items" if len(value) != 1 else "1 item"


def scalar_text(value: Any) -> str:
    """Return repr(value); "…" for an integer with more digits than Python converts."""
    try:
        return repr(value)
    except ValueError:
        return "…"
