"""Shrinking: find the smallest schedule with which the program still fails in the same way.

A deviation is a decision at which another lane (thread) runs than by default (scheduler.py).

A schedule is smaller if it has fewer deviations; then, if it has fewer preemptions (deviations that stop a lane
that could go on; the others only choose the successor of a waiting lane); then, if it has fewer steps. Three passes
make a schedule small:

1. *Leave out.* Delta debugging (Zeller and Hildebrandt, 2002): drop halves of the deviations, then quarters, then
   single ones, as long as the program still fails. Afterwards no single deviation can be dropped.
2. *Prove.* Try every smaller schedule: with fewer deviations, or with as many and fewer preemptions. If one fails,
   it is the better failure. If none fails, the schedule is minimal by construction. If this would take more than
   MAX_PROOF_RUNS runs, the report says so.
3. *Move.* Replace one deviation by a deviation at an earlier decision, and keep the shorter run.

After a failing run the schedule is normalized: it keeps only the deviations that really happened.

Possible failure: the program is large, and one run takes seconds. The shrinking then ends at a time that its caller
gives, and after MAX_SHRINK_STEPS in any case. The smallest failure so far is the result. If pass 2 has not ended,
the report does not call it the smallest.

Read next: explain.py.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import NamedTuple

from ewe_explore.scheduler import Deviation, Run, Schedule, last_decision
from ewe_explore.search import MAX_UNTRIED_SCHEDULES, FailingSchedule, Replay, Search, failure_of

MAX_PROOF_RUNS = 1500  # runs for pass 2
MOVE_RUNS = 400  # runs for pass 3
# Steps of all runs together: some minutes. They end the shrinking at the same run on every machine
MAX_SHRINK_STEPS = 20_000_000
MAX_MOVE_DECISIONS = 40  # by how many decisions pass 3 moves a deviation to an earlier place


class ScheduleSize(NamedTuple):
    """The size of a schedule: one with fewer deviations is smaller, and of those one with fewer preemptions."""

    deviations: int
    preemptions: int


class Shrinker:
    """Makes one failure small. until: a time of time.monotonic(), after which no run begins."""

    def __init__(self, search: Search, found: FailingSchedule, until: float = math.inf) -> None:
        self.search = search
        self.until = until
        self.steps = 0  # of all runs of the shrinking
        self.best = found  # the smallest failing schedule so far
        # Of the schedules that fail in another way. Not the failure itself: it would keep the objects of its run
        self.smallest_other: ScheduleSize | None = None
        self.runs = 0
        # The schedules that were run -> whether they fail in the same way
        self.seen: dict[Schedule, bool] = {}

    def fails(self, schedule: Schedule) -> bool:
        """Run a schedule; return whether it fails in the same way. Keep it if it is better."""
        if schedule in self.seen:
            return self.seen[schedule]
        run = self.run(schedule)
        same = self.best.problem.is_same_failure(run.problem)
        self.seen[schedule] = same
        if same:
            self.keep_better(failure_of(run))
        return same

    def keep_better(self, found: FailingSchedule) -> None:
        """Keep a failure of the same kind if it is smaller than the best one."""
        if found.key() < self.best.key():
            self.best = found

    def run(self, schedule: Schedule) -> Run:
        """Run a schedule once; return the run."""
        self.runs += 1
        run = Run(Replay(schedule), self.search.options)
        self.search.run_program(run)
        self.steps += len(run.steps)
        self.search.note_run(run)  # it may show more lines at which a switch can matter
        return run

    def is_over(self) -> bool:
        """Return whether the time or the steps of the shrinking are used up."""
        return self.steps >= MAX_SHRINK_STEPS or time.monotonic() >= self.until

    def shrink(self) -> FailingSchedule:
        """Return the smallest failure that was found within the limits."""
        self.leave_out()
        self.prove()
        self.move()
        self.leave_out()
        self.best.others = self.smallest_other is not None and self.is_smaller(self.smallest_other)
        self.best.tried = self.runs
        # A smaller schedule may need a switch at an access that no run has shown. The empty one is the smallest
        self.best.complete = not self.best.schedule or (self.best.complete and not self.search.unseen)
        return self.best

    def leave_out(self) -> None:
        """Drop deviations, first halves of the schedule, then smaller parts, until no single one can be dropped."""
        # How many neighbouring deviations one attempt drops
        part_size = max(len(self.best.schedule) // 2, 1)
        while self.best.schedule:
            schedule = self.best.schedule
            for start in range(0, len(schedule), part_size):
                if self.is_over():
                    return
                shorter = schedule[:start] + schedule[start + part_size :]
                # If the shorter schedule fails, fails() has stored it in `best`: begin again with that schedule
                if self.fails(shorter) and len(self.best.schedule) < len(schedule):
                    break
            # The loop found no part of this size without which the program still fails
            else:
                if part_size == 1:
                    return
                part_size = max(part_size // 2, 1)
            # `best` may be shorter now: a part is at most half of it, so that another part stays
            part_size = max(min(part_size, len(self.best.schedule) // 2), 1)

    def prove(self) -> None:
        """Try every schedule that is smaller than the best one. Note whether all were tried.

        A run may show more lines at which a switch can matter; the smaller schedules are then tried again.
        """
        budget = self.runs + MAX_PROOF_RUNS
        known = -1
        complete = True
        while complete and known < len(self.search.shared_lines):
            known = len(self.search.shared_lines)
            complete = self.try_smaller(budget)
        self.best.complete = complete

    def try_smaller(self, budget: int) -> bool:
        """Try the schedules that are smaller than the best one; return whether all were tried.

        A schedule that fails in the same way becomes the best one. budget: the number of runs at which this ends,
        from the begin of the shrinking.
        """
        untried: deque[tuple[Schedule, ScheduleSize]] = deque([((), ScheduleSize(0, 0))])
        dropped = False  # there were more than MAX_UNTRIED_SCHEDULES
        while untried and self.runs < budget and not self.is_over():
            schedule, size = untried.popleft()
            if not self.is_smaller(size):
                continue
            run = self.run(schedule)
            if self.best.problem.is_same_failure(run.problem):
                self.keep_better(failure_of(run))
            elif run.problem is not None:
                other = ScheduleSize(len(run.deviations), run.preemptions)
                self.smallest_other = min(other, self.smallest_other or other)
            if run.problem is not None or tuple(run.deviations) != schedule:
                continue  # its last deviation did not happen, and the schedule without it was tried before
            for deviation in self.search.deviations(run, last_decision(schedule)):
                is_preemption = run.branches[deviation.decision].default_goes_on
                next_size = ScheduleSize(size.deviations + 1, size.preemptions + is_preemption)
                if not self.is_smaller(next_size):
                    continue
                if len(untried) >= MAX_UNTRIED_SCHEDULES:
                    dropped = True
                    break
                untried.append(((*schedule, deviation), next_size))
        return not dropped and not any(self.is_smaller(size) for _, size in untried)

    def is_smaller(self, size: ScheduleSize) -> bool:
        """Return whether a schedule of this size is smaller than the best one."""
        return size < ScheduleSize(len(self.best.schedule), self.best.preemptions)

    def move(self) -> None:
        """Try other decisions for each deviation, as long as this makes the failure better."""
        budget = self.runs + MOVE_RUNS
        improved = True
        while improved and self.runs < budget:
            improved = False
            before = self.best
            for position, (decision, lane) in enumerate(before.schedule):
                # A deviation stays behind the one before it
                earliest = last_decision(before.schedule[:position]) + 1
                for earlier in range(max(earliest, decision - MAX_MOVE_DECISIONS), decision):
                    if self.runs >= budget or self.is_over():
                        break
                    moved = Deviation(earlier, lane)
                    self.fails((*before.schedule[:position], moved, *before.schedule[position + 1 :]))
            if self.best.key() < before.key():
                # A moved schedule has as many deviations: prove() still holds
                self.best.complete = before.complete
                improved = True
