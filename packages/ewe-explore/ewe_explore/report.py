"""explore(): explore a scenario and return the result, for tests, notebooks and the command.

    from ewe_explore import explore

    def scenario():
        ...

    def test_my_pool():
        explore(scenario, runs=500).check()      # raises RaceFound; its message is the timeline

Read next: search.py.
"""

from __future__ import annotations

import math
import shlex
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ewe_explore.explain import Story, story_of
from ewe_explore.page import page
from ewe_explore.program import ExploredProgram, of_function
from ewe_explore.scheduler import Deviation, Options, ProgramError, Run, Schedule, active_run
from ewe_explore.search import FailingSchedule, Replay, Search, failure_of
from ewe_explore.shrink import Shrinker
from ewe_explore.timeline import timeline

DEFAULT_SEARCH_S = 10.0
NO_VERDICT = ("stuck", "unusable")  # kinds of problems that are not failures of a schedule


class RaceFound(AssertionError):
    """The scenario fails with some schedule. The message is the timeline."""


@dataclass
class Exploration:
    """The result of a search. failure: None if every run passed.

    runs: the runs of the search; 0 for a replay that failed. exhaustive: the search tried every schedule. levels:
    the search tried all schedules with up to so many deviations; -1: not even the empty one. longest: the steps of
    the longest run. most_lanes: the threads of the run with most of them, with the main one. unseen: accesses that
    are no steps, each with its line: the search is not exhaustive then.
    """

    program: ExploredProgram
    seed: int
    runs: int
    seconds: float
    exhaustive: bool
    levels: int
    longest: int
    most_lanes: int = 0
    failure: FailingSchedule | None = None
    story: Story | None = None
    unseen: tuple[str, ...] = ()

    def text(self, width: int = 100, colour: bool = False) -> str:
        """Return the report for a terminal."""
        if self.story is None:
            return self.verdict()
        drawn = timeline(self.story, width, colour)
        if len(self.story.lanes) == 1:  # nothing to draw
            drawn = f"✗ {self.story.headline}"
        parts = [drawn, ""]
        why = [f"Why: {text}" if not index else text for index, text in enumerate(self.story.why)]
        parts += [textwrap.fill(text, max(width, 40), break_on_hyphens=False) for text in why]
        parts += ["", self.verdict()]
        return "\n".join(parts)

    def verdict(self) -> str:
        """Return the result in one or two lines."""
        name = f"{self.program.path.name}: "
        if self.program.scenario not in ("", "scenario"):
            name += f"{self.program.scenario}: "
        if self.failure is None:
            return f"{name}no failure in {self.runs_in_words()}{self.covered()}"
        small = smallest(self.failure) if self.failure.complete else "perhaps not the smallest"
        found = f"found in run {self.runs:,}" if self.runs else "replayed"
        return (
            f"{name}{found}; the schedule has {switches_in_words(self.failure.schedule)} ({small})\n"
            f"again: {self.command()}"
        )

    def runs_in_words(self) -> str:
        """Return the number of runs: `1 run`, `1,200 runs`."""
        return f"{self.runs:,} run{'s' if self.runs != 1 else ''}"

    def covered(self) -> str:
        """Return a part of the verdict: the schedules that the search has covered completely.

        Of the empty schedule alone (levels 0), or of none (-1), it says nothing.
        """
        if self.exhaustive and self.most_lanes == 1:
            return ": it starts no thread, so there is one schedule (--model CLASS explores a model)"
        if self.exhaustive:
            return ": these are all schedules"
        levels = f"up to {self.levels} chosen switch{'es' if self.levels != 1 else ''}"
        if self.unseen:
            not_all = f"not all schedules, because the explorer does not see {unseen_in_words(self.unseen)}"
            return (
                f"; {not_all}" if self.levels < 1 else f"; every schedule with {levels} passes, but {not_all}"
            )
        return "" if self.levels < 1 else f"; every schedule with {levels} passes"

    def command(self) -> str:
        """Return the command that repeats the failure."""
        arguments = ["ewe-explore", path_from_here(self.program.path)]
        arguments += self.program.arguments()
        arguments += self.flags()
        if self.failure is not None:
            arguments += ["--schedule", schedule_text(self.failure.schedule)]
        return shlex.join(arguments)

    def flags(self) -> list[str]:
        """Return the options of the command that change the meaning of a schedule."""
        options = self.program.options
        arguments = []
        if options.spurious:
            arguments.append("--spurious")
        if options.early_timeouts:
            arguments.append("--early-timeouts")
        if options.max_steps != Options().max_steps:
            arguments += ["--max-steps", str(options.max_steps)]
        return arguments

    def html(self) -> str:
        """Return the failure as a page. Raises ValueError if there is none."""
        if self.story is None:
            raise ValueError("nothing failed, so there is no timeline to show")
        return page(self.story, self.program.path.name)

    def check(self) -> Exploration:
        """Return this exploration if nothing failed; else raise RaceFound."""
        if self.failure is not None:
            raise RaceFound("\n" + self.text(96))
        return self


def unseen_in_words(unseen: tuple[str, ...]) -> str:
    """Return the first of the accesses that are no steps, and the number of the others."""
    first, *others = unseen
    return f"{first}, and {len(others)} more" if others else first


def path_from_here(path: Path) -> str:
    """Return a path relative to the current directory if the file is below it, else the whole path."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def switches_in_words(schedule: Schedule) -> str:
    """Describe the length of a schedule in words."""
    count = len(schedule)
    return (
        "no chosen switch: the default schedule fails"
        if not count
        else f"{count} chosen switch{'es' * (count > 1)}"
    )


def smallest(failure: FailingSchedule) -> str:
    """Return what is proven about smaller schedules than that of a complete failure."""
    return "no schedule with fewer switches fails" + (" in this way" if failure.others else "")


def schedule_text(schedule: Schedule) -> str:
    """Return a schedule in the form of the command line: `17:2,31:0`, or `none` for the empty schedule."""
    return ",".join(f"{decision}:{lane}" for decision, lane in schedule) or "none"


def read_schedule(text: str) -> Schedule:
    """Parse a schedule. `17:2,31:0` has two deviations: lane 2 runs next at decision 17, and lane 0 at 31.

    Raises ValueError with one line.
    """
    if text.strip() in ("", "none"):
        return ()
    found: list[Deviation] = []
    for part in text.split(","):
        index, colon, lane = part.strip().partition(":")
        if not (colon and index.isascii() and index.isdigit() and lane.isascii() and lane.isdigit()):
            raise ValueError(f"{part.strip()!r} is not a part of a schedule; write a schedule as 17:2,31:0")
        found.append(Deviation(int(index), int(lane)))
    return tuple(sorted(found))


def explore(
    scenario: Callable[[], Any] | ExploredProgram,
    seconds: float = DEFAULT_SEARCH_S,
    seed: int = 1,
    runs: int | None = None,
    *,
    spurious: bool = False,
    early_timeouts: bool = False,
    max_steps: int = 20_000,
    progress: Callable[[int], None] | None = None,
) -> Exploration:
    """Search for a schedule with which a scenario fails, for at most `seconds` or `runs`.

    Then make its failure small, for at most `seconds` again, or DEFAULT_SEARCH_S if that is longer. With `runs`,
    the limit is MAX_SHRINK_STEPS of shrink.py instead, which may take some minutes.

    scenario: a function at the top of a file. It starts threads and has assertions. spurious: conditions may wake
    up without a notify. early_timeouts: a timeout may expire while other threads still work. Raises ProgramError if
    the scenario cannot be explored.
    """
    options = Options(max_steps=max_steps, spurious=spurious, early_timeouts=early_timeouts)
    program = scenario if isinstance(scenario, ExploredProgram) else of_function(scenario, options)
    began = time.monotonic()
    search = Search(program.start, program.options, seed)
    failed: Run | None = None
    # A number of runs replaces the limit of time, so that the search is the same on every machine
    while failed is None and (search.runs < runs if runs is not None else time.monotonic() - began < seconds):
        run = search.attempt()
        if run is None:  # no schedule is left
            break
        if progress is not None:
            progress(search.runs)
        if run.problem is not None:
            failed = run
    result = Exploration(
        program,
        seed,
        runs=search.runs,
        seconds=0.0,
        exhaustive=failed is None and search.exhausted() and not search.unseen and not program.unseen,
        levels=search.finished_levels(),
        longest=search.most_steps,
        most_lanes=search.most_lanes,
        unseen=(*search.unseen, *(program.unseen if search.exhausted() else ())),
    )
    if failed is not None:
        if failed.problem is not None and failed.problem.kind in NO_VERDICT:
            raise ProgramError(failed.problem.headline)
        # Without a limit of time for the search, shrink.py's number of steps is the limit
        until = time.monotonic() + max(seconds, DEFAULT_SEARCH_S) if runs is None else math.inf
        result.failure = Shrinker(search, failure_of(failed), until).shrink()
        add_story(result)
    result.seconds = time.monotonic() - began
    return result


def replay(program: ExploredProgram, schedule: Schedule) -> Exploration:
    """Run a program with one schedule; `failure` of the result is None if the run passed.

    Raises ProgramError if the program is stuck or cannot be explored.
    """
    result = Exploration(program, seed=0, runs=0, seconds=0.0, exhaustive=False, levels=-1, longest=0)
    result.failure = FailingSchedule(
        schedule,
        problem=None,  # type: ignore[arg-type] # add_story() sets it
        preemptions=0,
        steps=0,
    )
    run = add_story(result)
    if run.problem is None:
        result.failure = None
        result.runs = 1
    elif run.problem.kind in NO_VERDICT:
        raise ProgramError(run.problem.headline)
    return result


def add_story(result: Exploration) -> Run:
    """Run the schedule of a failure once more, record all values, and add the story to the result; return the run.

    If this run passes, as the replay of a wrong schedule may, the result stays without a story.
    """
    assert result.failure is not None
    run = Run(Replay(result.failure.schedule), replace(result.program.options), detailed=True)
    result.program.start(run)
    if run.problem is not None:
        result.failure = replace(
            failure_of(run),
            complete=result.failure.complete,
            others=result.failure.others,
            tried=result.failure.tried,
        )
        result.story = story_of(run)
        result.story.facts = facts_for_page(result)
    return run


def facts_for_page(result: Exploration) -> dict[str, str]:
    """Return the facts about the search for a page: label -> text."""
    failure = result.failure
    assert failure is not None
    found = {"schedule": schedule_text(failure.schedule), "steps": f"{failure.steps:,}"}
    if result.runs:
        found = {"found in run": f"{result.runs:,}", "seed": str(result.seed), **found}
    if failure.complete:
        found["smallest"] = smallest(failure)
    return {**found, "command": result.command()}


def always(invariant: Callable[[], object]) -> None:
    """Make the explorer check an invariant before every step of the scenario, and at the end of each thread.

    invariant: a function that returns False, or raises, if the invariant is broken. It must not change any object.
    Outside of an exploration, it is called once.
    """
    if (run := active_run()) is not None:
        run.invariants.append(invariant)
    elif invariant() is False:
        raise AssertionError("the invariant is broken")
