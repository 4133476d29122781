"""Shrinking: the smallest schedule with which the program still fails in the same way.

Smaller means: fewer deviations; then fewer preemptions among them (switches away from a lane that could have gone
on; the others only choose who follows a lane that waits); then fewer steps. Three passes make a schedule small:

1. *Leave out.* Delta debugging (Zeller and Hildebrandt, 2002): drop halves of the deviations, then quarters, then
   single ones, as long as the program still fails. No single deviation of what is left can be dropped.
2. *Prove.* Try every schedule with fewer deviations, and those of as many with fewer preemptions. Either one fails,
   and is the better failure; or none does, and the schedule is minimal by construction. Where this would take too
   many runs (PROOF), the report says so.
3. *Move.* Replace one deviation by another one at an earlier decision, and keep the shorter run.

Every run after a failing one is normalized: the deviations that really happened are kept, the others are dropped.

Read next: explain.py.
"""

from __future__ import annotations

from collections import deque

from ewe_explore.scheduler import Run, Schedule
from ewe_explore.search import Failure, Replay, Search, failure_of

PROOF = 1500  # runs for pass 2
MOVES = 400  # runs for pass 3


class Shrinker:
    """Makes one failure small."""

    def __init__(self, search: Search, found: Failure) -> None:
        self.search = search
        self.best = found
        self.runs = 0
        self.seen: dict[Schedule, bool] = {}

    def fails(self, schedule: Schedule) -> bool:
        """Run a schedule; if it fails in the same way and is better, keep it."""
        if schedule in self.seen:
            return self.seen[schedule]
        run = self.run(schedule)
        same = self.best.problem.same(run.problem)
        self.seen[schedule] = same
        if same:
            found = failure_of(run)
            if found.key() < self.best.key():
                self.best = found
        return same

    def run(self, schedule: Schedule) -> Run:
        self.runs += 1
        run = Run(Replay(schedule), self.search.options)
        self.search.start(run)
        return run

    def shrink(self) -> Failure:
        """Return the smallest failure."""
        self.leave_out()
        self.prove()
        self.move()
        self.leave_out()
        self.best.tried = self.runs
        return self.best

    def leave_out(self) -> None:
        """Drop deviations until no single one can be dropped."""
        size = max(len(self.best.schedule) // 2, 1)
        while self.best.schedule:
            schedule = self.best.schedule
            for start in range(0, len(schedule), size):
                shorter = schedule[:start] + schedule[start + size :]
                if self.fails(shorter) and len(self.best.schedule) < len(schedule):
                    break
            else:
                if size == 1:
                    return
                size = max(size // 2, 1)
            size = max(min(size, len(self.best.schedule) // 2), 1)

    def prove(self) -> None:
        """Try every schedule with fewer deviations than the best, and those of as many with fewer preemptions."""
        waiting: deque[tuple[Schedule, int]] = deque([((), 0)])
        budget = self.runs + PROOF
        while waiting and self.runs < budget:
            schedule, cost = waiting.popleft()
            if not self.is_smaller(len(schedule), cost):
                continue
            run = self.run(schedule)
            if self.best.problem.same(run.problem):
                found = failure_of(run)
                if found.key() < self.best.key():
                    self.best = found
            if run.problem is not None or tuple(run.deviations) != schedule:
                continue  # its last deviation did not happen: the schedule without it was tried
            last = schedule[-1][0] if schedule else -1
            for index, lane in self.search.deviations(run, last):
                more = cost + (run.branches[index].current >= 0)
                if self.is_smaller(len(schedule) + 1, more):
                    waiting.append(((*schedule, (index, lane)), more))
        self.best.complete = not any(self.is_smaller(len(schedule), cost) for schedule, cost in waiting)

    def is_smaller(self, deviations: int, preemptions: int) -> bool:
        """Return whether a schedule would be smaller than the best."""
        return (deviations, preemptions) < (len(self.best.schedule), self.best.preemptions)

    def move(self) -> None:
        """Try other decisions for each deviation, as long as this makes the failure better."""
        budget = self.runs + MOVES
        improved = True
        while improved and self.runs < budget:
            improved = False
            before = self.best
            for place, (index, lane) in enumerate(before.schedule):
                low = before.schedule[place - 1][0] + 1 if place else 0
                for earlier in range(max(low, index - 40), index):
                    if self.runs >= budget:
                        break
                    moved = (*before.schedule[:place], (earlier, lane), *before.schedule[place + 1 :])
                    self.fails(moved)
            if self.best.key() < before.key():
                self.best.complete = before.complete
                improved = True
