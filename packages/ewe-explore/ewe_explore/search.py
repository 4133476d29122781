"""The search: which schedules are tried, and in which order.

A program of n threads and k decisions has about n to the k schedules; almost all of them do the same. Two searches
take turns, because each finds what the other is slow to find:

*Fewest surprises first.* Run the program with the empty schedule, then with every schedule of one deviation, then
of two. Each run shows the decisions that the next ones can change. This is delay bounding (Emmi, Qadeer,
Rakamaric, POPL 2011), a relative of CHESS's context bounding (Musuvathi, Qadeer, PLDI 2007). Most races need one
or two unlucky switches, however long the program is, so the few schedules of a low level find most of them. A
level that was searched to its end is a statement: no schedule with so few deviations fails.

*Priorities by lot.* Probabilistic concurrency testing (PCT; Burckhardt, Kothari, Musuvathi, Nagarakatte, ASPLOS
2010) draws a priority for each thread and runs the highest one that can run. At d - 1 random steps it lowers the
priority of the running thread below all others. A race that needs d ordered steps is found with a probability of at
least 1 / (n * k^(d - 1)) in each run, in every program: the guarantee that the first search lacks for a race
that hides at a high level.

Both switch only where a switch can matter: at an access to something that two lanes have used and one has
changed. The runs so far tell which lines those are. This is a heuristic (each run may add lines), and saves most
of the work.

A failure is then made small (shrink.py) and told (explain.py, timeline.py, page.py).

Read next: shrink.py; program.py for what a program is.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ewe_explore.scheduler import Lane, Options, Problem, Run, Schedule, Step

Start = Callable[[Run], None]  # executes the program in a run
Hot = set[tuple[str, int, str]]  # lines at which a switch can matter
DEPTHS = (2, 3, 1, 4)  # of the races that PCT looks for, in turn
WAITING = 200_000  # schedules that wait to be tried, at most


class Replay:
    """Takes the decisions of a schedule, and the default decision elsewhere."""

    def __init__(self, schedule: Schedule) -> None:
        self.chosen = dict(schedule)

    def choose(self, run: Run, lanes: list[Lane], default: Lane, index: int) -> Lane:
        wanted = self.chosen.get(index)
        if wanted is not None:
            for lane in lanes:
                if lane.number == wanted:
                    return lane
        return default


class Priorities:
    """PCT: the lane with the highest priority runs; it changes at a few random steps."""

    def __init__(self, seed: int, depth: int, length: int, hot: Hot) -> None:
        self.random = random.Random(seed)
        self.hot = hot
        self.priorities: dict[int, float] = {}
        self.changes = {self.random.randrange(max(length, 1)) for _ in range(depth - 1)}
        self.count = 0
        self.lowest = 0.0

    def choose(self, run: Run, lanes: list[Lane], default: Lane, index: int) -> Lane:
        for lane in run.lanes:
            if lane.number not in self.priorities:
                self.priorities[lane.number] = self.random.random() + 1.0
        current = run.current
        if current.yields:
            self.lower(current)
        step = run.steps[-1]
        forced = default is not current and not current.yields
        if not forced and (step.file, step.line, step.verb) not in self.hot:
            return default
        if not forced:
            if self.count in self.changes:
                self.lower(current)
            self.count += 1
        certain = [lane for lane in lanes if run.is_certain(lane)]
        if len(certain) < len(lanes) and self.random.random() < 0.1:
            certain = [lane for lane in lanes if lane not in certain]
        return max(certain or lanes, key=lambda lane: self.priorities[lane.number])

    def lower(self, lane: Lane) -> None:
        """Give a lane the lowest priority."""
        self.lowest -= 1.0
        self.priorities[lane.number] = self.lowest


@dataclass
class Failure:
    """A schedule with which the program fails. complete: every schedule with fewer deviations passes."""

    schedule: Schedule
    problem: Problem
    preemptions: int
    steps: int
    complete: bool = False
    tried: int = 0  # runs that shrinking took

    def key(self) -> tuple[int, int, int]:
        """Return what makes a failure better than another: few deviations, few preemptions, few steps."""
        return len(self.schedule), self.preemptions, self.steps


def failure_of(run: Run) -> Failure:
    """Return the failure of a run that has failed."""
    assert run.problem is not None
    return Failure(tuple(run.deviations), run.problem, run.preemptions, len(run.steps))


@dataclass
class Level:
    """Schedules with the same number of deviations, which wait to be tried."""

    waiting: deque[Schedule] = field(default_factory=deque)
    tried: int = 0
    dropped: bool = False  # there were more than WAITING


class Search:
    """Tries schedules until one fails. levels[d]: those of d deviations."""

    def __init__(self, start: Start, options: Options, seed: int) -> None:
        self.start = start
        self.options = options
        self.random = random.Random(seed)
        self.levels: list[Level] = [Level(deque([()]))]
        self.hot: Hot = set()
        self.length = 20  # decisions at hot lines in the longest run so far
        self.runs = 0
        self.lots = 0
        self.longest = 0

    def attempt(self) -> Run | None:
        """Try one more schedule; return its run, None if all schedules have been tried."""
        systematic = self.runs % 2 == 0 or not self.hot
        schedule = self.take() if systematic else None
        if schedule is not None:
            return self.run_level(schedule)
        if not self.hot and self.runs:
            return None  # nothing is shared, and every schedule of forced switches was tried
        if self.exhausted():
            return None
        return self.run_lot()

    def exhausted(self) -> bool:
        """Return whether every schedule, of however many deviations, was tried."""
        return all(not level.waiting and not level.dropped for level in self.levels)

    def run_level(self, schedule: Schedule) -> Run:
        """Try a schedule, and add those with one more deviation to the next level."""
        run = self.execute(Replay(schedule))
        depth = len(schedule)
        self.levels[depth].tried += 1
        # If the last deviation did not happen, this run was the same as one of the level below
        if tuple(run.deviations) == schedule and run.problem is None:
            if len(self.levels) == depth + 1:
                self.levels.append(Level())
            following = self.levels[depth + 1]
            last = schedule[-1][0] if schedule else -1
            for deviation in self.deviations(run, last):
                if len(following.waiting) >= WAITING:
                    following.dropped = True
                    break
                following.waiting.append((*schedule, deviation))
        return run

    def run_lot(self) -> Run:
        """Try priorities by lot."""
        depth = DEPTHS[self.lots % len(DEPTHS)]
        self.lots += 1
        return self.execute(Priorities(self.random.getrandbits(32), depth, self.length, self.hot))

    def execute(self, strategy: Replay | Priorities) -> Run:
        """Run the program once, and learn from it where switches matter."""
        run = Run(strategy, self.options)
        self.start(run)
        self.runs += 1
        self.longest = max(self.longest, len(run.steps))
        shared = shared_keys(run)
        count = 0
        for step in run.steps:
            if step.decision >= 0 and step.key() in shared:
                self.hot.add((step.file, step.line, step.verb))
                count += 1
        self.length = max(self.length, count)
        return run

    def take(self) -> Schedule | None:
        """Return the next schedule of the lowest level that has one, by lot."""
        for level in self.levels:
            if level.waiting:
                # A random rotation by little: near the order of generation, but another one for each seed
                place = self.random.randrange(min(len(level.waiting), 64))
                level.waiting.rotate(-place)
                found = level.waiting.popleft()
                level.waiting.rotate(place)
                return found
        return None

    def deviations(self, run: Run, after: int) -> Iterator[tuple[int, int]]:
        """Yield the deviations that a run offers after a decision: where a switch can matter."""
        shared = shared_keys(run)
        for index in range(after + 1, len(run.branches)):
            branch = run.branches[index]
            if branch.current >= 0 and not matters(run.steps[branch.step], shared):
                continue
            for lane in branch.lanes:
                if lane != branch.default:
                    yield index, lane

    def finished_levels(self) -> int:
        """Return the highest number of deviations up to which every schedule was tried; -1 if none was."""
        done = -1
        for depth, level in enumerate(self.levels):
            if level.waiting or level.dropped:
                break
            done = depth
        return done


def matters(step: Step, shared: set[tuple[int, str | None]]) -> bool:
    """Return whether a switch before a step can change what happens."""
    return step.kind == "print" or step.key() in shared


def shared_keys(run: Run) -> set[tuple[int, str | None]]:
    """Return the objects, or their parts, that several lanes use and one changes.

    A change counts if a lane that had started before uses the object, too: what a thread prepares before it starts
    another one is not shared.
    """
    users: dict[tuple[int, str | None], int] = {}
    for step in run.steps:
        if step.target is not None:
            key = step.key()
            users[key] = users.get(key, 0) | 1 << step.lane
    several = {key for key, lanes in users.items() if lanes & (lanes - 1)}
    born = [lane.born for lane in run.lanes]
    found: set[tuple[int, str | None]] = set()
    for step in run.steps:
        if step.writes and step.target is not None and (key := step.key()) in several and key not in found:
            lanes = users[key] & ~(1 << step.lane)
            if any(lanes >> number & 1 and start <= step.index for number, start in enumerate(born)):
                found.add(key)
    return found
