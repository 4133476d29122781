"""The explorer: find the races of a program with threads systematically, and show how each race happens.

An ordinary test may meet a race once in a hundred runs on one machine, and the race is gone when the programmer
repeats the test. The explorer does not depend on luck. It runs the program's threads one at a time, and decides at
each lock, queue, condition, socket and shared variable which thread runs next. Every decision is a number, so a run
is a list of numbers:

    source ──instrument──▶ program ──▶ scheduler ◀── search: which schedule next?
                                          │ a run fails
                                          ▼
                           shrink ──▶ the smallest schedule ──▶ explain ──▶ timeline, page
                                          │
                                          └──▶ `ewe-explore FILE --schedule 17:2`: the same failure, every time

    scheduler.py    one thread at a time, decisions, virtual time, deadlocks            (begin here)
    primitives.py   locks, conditions, semaphores, events, barriers   threads.py  queues.py  network.py
    instrument.py   points in the source             points.py    the steps of these points
    calls.py        the calls of libraries           reach.py     the objects that a step may use
    modules.py      the modules that the program imports
    search.py       delay bounding and PCT           shrink.py    the smallest failing schedule
    explain.py      the failure in words             waits.py  notifies.py  wording.py
    timeline.py     the failure in a terminal        page.py  lanes.py
    program.py      files and scenarios              report.py    explore()     cli.py   the command
    harness.py      a model of ewe with clients in memory             samples/  broken and correct programs

The meaning of a result: a failure is real, and its schedule is the proof. "No failure" is a statement about the
schedules that the explorer tried, and the report counts them. It speaks of all schedules only if no access of the
program was hidden.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ewe_explore.report import Exploration, RaceFound, always, explore
    from ewe_explore.scheduler import ProgramError

__all__ = ["Exploration", "ProgramError", "RaceFound", "always", "explore"]


def __getattr__(name: str) -> object:
    """Import a name at its first use: ewe-grade and ewe-watch need lanes.py and pages.py alone."""
    if name in __all__:
        module = "scheduler" if name == "ProgramError" else "report"
        found: object = getattr(import_module(f"ewe_explore.{module}"), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
