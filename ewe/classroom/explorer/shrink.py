"""Shrinking: the smallest schedule with which the program still fails in the same way.

Smaller means: fewer preemptions (switches away from a lane that could have gone on), then fewer deviations, then
fewer steps. A found schedule becomes small in three passes:

1. *Leave out.* Delta debugging (Zeller and Hildebrandt, 2002): drop halves of the deviations, then quarters, then
   single ones, as long as the program still fails. No single deviation of what is left can be dropped.
2. *Move.* Replace one deviation by another one at an earlier or later decision, and keep the better failure.
3. *Prove.* Try every schedule with fewer deviations. Either one fails, and is the better failure; or none does, and
   the schedule is minimal by construction: it is the answer, and not only the best found. The search may have done
   this already. Where it would take too many runs, the report says so.

Every run after a failing one is normalized: the deviations that really happened are kept, the others are dropped.

Read next: explain.py.
"""

from __future__ import annotations

from ewe.classroom.explorer.scheduler import Run, Schedule
from ewe.classroom.explorer.search import Failure, Replay, Search, failure_of

MOVES = 400  # runs for pass 2
PROOF = 1500  # runs for pass 3


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
        """Try every schedule with fewer deviations than the best."""
        search = Search(self.search.start, self.search.options, 0)
        budget = PROOF
        while budget > 0:
            depth = len(self.best.schedule)
            waiting = any(level.waiting for level in search.levels[:depth])
            if not waiting:
                break
            schedule = search.take()
            if schedule is None:
                break
            budget -= 1
            self.runs += 1
            run = search.run_level(schedule)
            if self.best.problem.same(run.problem):
                found = failure_of(run)
                if found.key() < self.best.key():
                    self.best = found
                    self.leave_out()
        depth = len(self.best.schedule)
        self.complete = not any(level.waiting or level.dropped for level in search.levels[:depth])
        self.best.complete = self.complete

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
