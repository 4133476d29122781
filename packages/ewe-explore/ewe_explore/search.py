"""The search: the order in which the explorer tries schedules.

A program of n threads and k decisions has about n to the k schedules; almost all of them have the same effect. Two
methods take turns, because each finds failures that the other finds slowly:

*Fewest deviations first.* Run the program with the empty schedule, then with every schedule of one deviation, then
of two. Each run shows the decisions that later schedules can change. This is delay bounding (Emmi, Qadeer,
Rakamaric, POPL 2011), a relative of CHESS's context bounding (Musuvathi, Qadeer, PLDI 2007). Most races need one or
two unlucky switches, however long the program is, so the few schedules of a low level find most of them. A
completely searched level is a proof: no schedule with so few deviations fails.

*Random priorities.* Probabilistic concurrency testing (PCT; Burckhardt, Kothari, Musuvathi, Nagarakatte, ASPLOS
2010) draws a priority for each thread and runs the highest one that can run. At d - 1 random steps it lowers the
priority of the running thread below all others. A race that needs d ordered steps is found with a probability of at
least 1 / (n * k^(d - 1)) in each run, in every program. The first method has no such guarantee for a race that
needs many deviations.

Both methods switch only where a switch can matter: at the lines that access an object which two lanes have used
and one lane has changed (shared_keys()). A lane may use an object only after a certain switch, so each run may
show more lines. Every earlier schedule then gets the deviations at these lines, too (Search.skipped). The search
is complete when all schedules were tried and no run has shown a new line.

Why this loses no outcome: let lane A lose its turn before a step a at another line, and let b be the first step of
another lane that conflicts with a. The steps from there to b have the same effects if A goes on, and the search has
tried a run that begins so. Both a and b are in this run. They conflict, so their lines would be known.

The search knows only steps. A run notes what it cannot see as a step (Run.unseen, Step.unseen), such as a call
whose effects are unknown. The report then claims nothing about all schedules.

shrink.py then makes a failure small, and explain.py, timeline.py and page.py show it.

Read next: shrink.py; program.py, which defines a program.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ewe_explore.scheduler import (
    Deviation,
    Lane,
    Options,
    PartKey,
    Problem,
    Run,
    Schedule,
    Step,
    base_name,
    last_decision,
)

RunProgram = Callable[[Run], None]  # executes the program in a run
Line = tuple[str, int, str, str]  # a place in the source: file, line, verb, and the text of the access
SharedLines = set[Line]  # lines at which a switch can matter
DEPTHS = (2, 3, 1, 4)  # depths of the races for which PCT searches, in turn
UNCERTAIN_SHARE = 0.1  # of the decisions at which a lane with a spurious wake-up or an early timeout may run
MAX_UNTRIED_SCHEDULES = 200_000  # the most untried schedules of a level
MAX_SKIPPED_DECISIONS = 200_000  # the most decisions that the search keeps for lines which are not known yet
MAX_ROTATION = 64  # how far the search reaches into the untried schedules of a level, at random


class Replay:
    """Makes the decisions of a schedule, and default decisions otherwise."""

    def __init__(self, schedule: Schedule) -> None:
        self.chosen = dict(schedule)

    def choose(self, run: Run, lanes: list[Lane], default: Lane, index: int) -> Lane:
        """Return the lane that the schedule names for this decision; the default without one that can run."""
        scheduled = self.chosen.get(index)
        if scheduled is not None:
            for lane in lanes:
                if lane.number == scheduled:
                    return lane
        return default


class Priorities:
    """PCT: the lane with the highest priority runs; priorities change at a few random steps."""

    def __init__(self, seed: int, depth: int, decision_count: int, shared_lines: SharedLines) -> None:
        """depth: the d of the module's docstring; decision_count: its k, of a run of usual length."""
        self.random = random.Random(seed)
        self.shared_lines = shared_lines
        self.priorities: dict[int, float] = {}  # by the number of the lane
        # The numbers of the decisions at which the current lane gets the lowest priority
        self.priority_changes = {self.random.randrange(max(decision_count, 1)) for _ in range(depth - 1)}
        self.decisions = 0  # decisions so far
        self.lowest = 0.0  # the lowest priority so far

    def choose(self, run: Run, lanes: list[Lane], default: Lane, index: int) -> Lane:
        """Return the lane with the highest priority; the default at a line that touches no shared object."""
        for lane in run.lanes:
            if lane.number not in self.priorities:
                self.priorities[lane.number] = self.random.random() + 1.0  # above those that were lowered
        current = run.current
        if current.yields:
            self.give_lowest_priority(current)
        step = run.steps[-1]
        current_is_blocked = default is not current and not current.yields
        if not current_is_blocked and line_of(step) not in self.shared_lines:
            return default
        if not current_is_blocked:
            if self.decisions in self.priority_changes:
                self.give_lowest_priority(current)
            self.decisions += 1
        candidates = [lane for lane in lanes if run.can_run_without_early_wake_up(lane)]
        # Sometimes try a lane that only a spurious wake-up or an early timeout wakes
        if len(candidates) < len(lanes) and self.random.random() < UNCERTAIN_SHARE:
            candidates = [lane for lane in lanes if lane not in candidates]
        return max(candidates or lanes, key=lambda lane: self.priorities[lane.number])

    def give_lowest_priority(self, lane: Lane) -> None:
        """Give a lane the lowest priority."""
        self.lowest -= 1.0
        self.priorities[lane.number] = self.lowest


@dataclass
class FailingSchedule:
    """A failing schedule. steps: of its run. complete: every smaller schedule passes, or fails in another way.

    others: a smaller schedule fails in another way.
    """

    schedule: Schedule
    problem: Problem
    preemptions: int
    steps: int
    complete: bool = False
    others: bool = False
    tried: int = 0  # the runs of the shrinking

    def key(self) -> tuple[int, int, int]:
        """Return a sort key: failures with few deviations, then few preemptions, then few steps are better."""
        return len(self.schedule), self.preemptions, self.steps


def failure_of(run: Run) -> FailingSchedule:
    """Return the failure of a failed run."""
    assert run.problem is not None
    return FailingSchedule(tuple(run.deviations), run.problem, run.preemptions, len(run.steps))


@dataclass
class Level:
    """The untried schedules with the same number of deviations. tried: the number of tried ones."""

    untried: deque[Schedule] = field(default_factory=deque)
    tried: int = 0
    dropped: bool = False  # there were more than MAX_UNTRIED_SCHEDULES


class SkippedDecision(NamedTuple):
    """A decision of a run at which the search has tried no deviation. lanes: the other lanes that could run."""

    schedule: Schedule  # of the run
    decision: int
    lanes: tuple[int, ...]


class Search:
    """Tries schedules one at a time. levels[d]: the schedules with d deviations from the default decisions."""

    def __init__(self, run_program: RunProgram, options: Options, seed: int) -> None:
        self.run_program = run_program
        self.options = options
        self.random = random.Random(seed)
        self.levels: list[Level] = [Level(deque([()]))]  # at first only the empty schedule
        self.shared_lines: SharedLines = set()
        self.skipped: dict[Line, list[SkippedDecision]] = {}  # by the line of the step
        self.skipped_count = 0
        # The fewest deviations of a schedule whose skipped decisions were not kept; None: all were kept
        self.lost_depth: int | None = None
        self.unseen: dict[
            str, None
        ] = {}  # accesses that runs could not see, each once, in the order of the runs
        self.decision_count = 20  # the most decisions of a run at shared lines so far, and at least 20
        self.runs = 0
        self.priority_runs = 0  # runs with random priorities
        self.most_steps = 0  # the most steps of a run so far
        self.most_lanes = 0  # of a run so far

    def attempt(self) -> Run | None:
        """Try one more schedule; return its run, or None if all schedules have been tried.

        The two methods of the module's docstring take turns: fewest deviations first, and random priorities. As
        long as no access to a shared object is known, only the first one is used.
        """
        systematic = self.runs % 2 == 0 or not self.shared_lines
        schedule = self.next_schedule() if systematic else None
        if schedule is not None:
            return self.run_level(schedule)
        if not self.shared_lines and self.runs:
            return None  # no object is shared, and every schedule of forced switches was tried
        if self.exhausted():
            return None
        return self.run_with_priorities()

    def exhausted(self) -> bool:
        """Return whether every schedule of every level was tried."""
        return all(not level.untried and not level.dropped for level in self.levels)

    def run_level(self, schedule: Schedule) -> Run:
        """Try a schedule, and add its extensions by one deviation to the next level; return the run."""
        run = self.execute(Replay(schedule))
        self.levels[len(schedule)].tried += 1
        # If the program is not deterministic, the lane of a deviation may be unable to run. The run has then
        # followed a schedule of a lower level, which has the extensions
        if run.problem is None and tuple(run.deviations) != schedule:
            self.unseen["what makes two runs of one schedule differ, such as a clock or a file"] = None
        elif run.problem is None:
            for deviation in self.deviations(run, last_decision(schedule)):
                self.add(schedule, deviation)
            self.keep_skipped(run, schedule)
        return run

    def add(self, schedule: Schedule, deviation: Deviation) -> None:
        """Add the extension of a schedule by a deviation to the next level."""
        depth = len(schedule) + 1
        if len(self.levels) == depth:
            self.levels.append(Level())
        level = self.levels[depth]
        if len(level.untried) >= MAX_UNTRIED_SCHEDULES:
            level.dropped = True
        else:
            level.untried.append((*schedule, deviation))

    def keep_skipped(self, run: Run, schedule: Schedule) -> None:
        """Keep the decisions of a run, after the last one of its schedule, at which deviations() yields nothing.

        A later run may show that a switch can matter there.
        """
        for index in range(last_decision(schedule) + 1, len(run.branches)):
            branch = run.branches[index]
            line = line_of(run.steps[branch.step])
            if not branch.default_goes_on or line in self.shared_lines:
                continue
            if self.skipped_count >= MAX_SKIPPED_DECISIONS:
                depth = len(schedule)
                self.lost_depth = depth if self.lost_depth is None else min(depth, self.lost_depth)
                return
            others = tuple(lane for lane in branch.lanes if lane != branch.default)
            self.skipped.setdefault(line, []).append(SkippedDecision(schedule, index, others))
            self.skipped_count += 1

    def note_run(self, run: Run) -> int:
        """Add the lines of a run at which a switch can matter; return the number of decisions at such lines.

        Add the deviations at the new lines to the earlier schedules, too. Also note what the run could not see.
        """
        shared = shared_keys(run)
        decisions = 0
        self.unseen.update(run.unseen)
        for step in run.steps:
            if not matters(step, shared):
                continue
            decisions += step.decision >= 0
            if step.unseen:
                self.unseen[step.unseen] = None
            line = line_of(step)
            if line not in self.shared_lines:
                self.shared_lines.add(line)
                self.try_skipped(line)
        self.unseen.update(dict.fromkeys(unseen_in_queues(run)))
        return decisions

    def try_skipped(self, line: Line) -> None:
        """Add the deviations at a new line to the schedules that were tried before."""
        skipped = self.skipped.pop(line, [])
        self.skipped_count -= len(skipped)
        for each in skipped:
            for lane in each.lanes:
                self.add(each.schedule, Deviation(each.decision, lane))
        if self.lost_depth is not None:  # the line may have skipped decisions that were not kept
            if len(self.levels) == self.lost_depth + 1:
                self.levels.append(Level())
            for level in self.levels[self.lost_depth + 1 :]:
                level.dropped = True

    def run_with_priorities(self) -> Run:
        """Run the program once with random priorities, for a race of the next depth."""
        depth = DEPTHS[self.priority_runs % len(DEPTHS)]
        self.priority_runs += 1
        seed = self.random.getrandbits(32)
        return self.execute(Priorities(seed, depth, self.decision_count, self.shared_lines))

    def execute(self, strategy: Replay | Priorities) -> Run:
        """Run the program once; return the run. Add the lines of its accesses to shared objects to `shared_lines`.

        Also raise `most_steps`, the most steps of a run, and `decision_count`, the most decisions of a run at such
        accesses. Priorities change only there, so decision_count is the k of the module's docstring.
        """
        run = Run(strategy, self.options)
        self.run_program(run)
        self.runs += 1
        self.most_steps = max(self.most_steps, len(run.steps))
        self.most_lanes = max(self.most_lanes, len(run.lanes))
        self.decision_count = max(self.decision_count, self.note_run(run))
        return run

    def next_schedule(self) -> Schedule | None:
        """Remove an untried schedule, chosen at random, from the lowest level that has one; return it.

        None: all were tried.
        """
        for level in self.levels:
            if level.untried:
                # Rotate by a small random number: the order stays similar, but differs between seeds.
                index = self.random.randrange(min(len(level.untried), MAX_ROTATION))
                level.untried.rotate(-index)
                found = level.untried.popleft()
                level.untried.rotate(index)
                return found
        return None

    def deviations(self, run: Run, after: int) -> Iterator[Deviation]:
        """Yield the possible deviations of a run after a decision, at the lines where a switch can matter.

        after: the number of the decision; -1 for all. A lane that cannot go on needs a switch at any step.
        """
        for index in range(after + 1, len(run.branches)):
            branch = run.branches[index]
            if branch.default_goes_on and line_of(run.steps[branch.step]) not in self.shared_lines:
                continue
            for lane in branch.lanes:
                if lane != branch.default:
                    yield Deviation(index, lane)

    def finished_levels(self) -> int:
        """Return the number of deviations up to which every schedule was tried; -1 if no level is complete."""
        done = -1
        for depth, level in enumerate(self.levels):
            if level.untried or level.dropped:
                break
            done = depth
        return done


def line_of(step: Step) -> Line:
    """Return the place of a step in the source. The name of a primitive is no part: it may differ between runs."""
    return step.file, step.line, step.verb, step.name if step.kind in ("read", "write") else ""


def matters(step: Step, shared: set[PartKey]) -> bool:
    """Return whether a switch before a step can change the result. The end of a lane may end the run."""
    if step.target is None:
        return False
    return step.kind == "life" or any(key in shared for key, _ in step.uses())


def shared_keys(run: Run) -> set[PartKey]:
    """Return the objects, or their parts, that several lanes use and one lane changes.

    A change counts only if another user of the object had started before: an object that a thread prepares before
    it starts another thread is not shared.
    """
    users: dict[PartKey, int] = {}  # -> a set of lanes, as an integer with a bit for each
    for step in run.steps:
        if step.target is not None:
            for key, _ in step.uses():
                users[key] = users.get(key, 0) | 1 << step.lane
    several = {key for key, lanes in users.items() if lanes & (lanes - 1)}  # more than one bit is set
    start_indexes = [lane.start_index for lane in run.lanes]
    found: set[PartKey] = set()
    for step in run.steps:
        if step.target is None:
            continue
        for key, writes in step.uses():
            if writes and key in several and key not in found:
                others = users[key] & ~(1 << step.lane)
                if any(
                    others >> lane & 1 and start <= step.index for lane, start in enumerate(start_indexes)
                ):
                    found.add(key)
    return found


def unseen_in_queues(run: Run) -> Iterator[str]:
    """Yield the accesses within the methods of a queue that conflict with a step of another lane.

    These accesses are no steps (Lane.has_points): the queue's lock excludes only other calls of the queue.
    """
    if not run.accesses_in_queues:
        return
    lanes: dict[PartKey, set[tuple[int, bool]]] = {}
    for step in run.steps:
        if step.target is not None:
            for key, writes in step.uses():
                lanes.setdefault(key, set()).add((step.lane, writes))
    for step in run.accesses_in_queues.values():
        for key, writes in step.uses():
            if any(lane != step.lane and (writes or also) for lane, also in lanes.get(key, ())):
                yield f"{step.name} within a method that a queue calls ({base_name(step.file)}:{step.line})"
