"""The explorer: finds the races of a program with threads, on purpose, and shows how each happens.

A test that starts threads and hopes finds a race on one machine in a hundred runs, and the race is gone when
somebody looks. The explorer takes the hope out. It runs the program's threads one at a time, and decides itself
who goes on at each lock, queue, condition, socket and shared variable. Every decision is a number, so a run is a
list of numbers:

    source ──instrument──▶ program ──▶ scheduler ◀── search: which schedule next?
                                          │ a run fails
                                          ▼
                           shrink ──▶ the smallest schedule ──▶ explain ──▶ timeline, page
                                          │
                                          └──▶ `ewe-explore FILE --schedule 17:2`: the same failure, every time

    scheduler.py    one thread at a time, decisions, virtual time, deadlocks            (begin here)
    primitives.py   locks, conditions, semaphores, events, barriers   threads.py  queues.py  network.py
    instrument.py   points at shared variables       modules.py   what the program imports
    search.py       delay bounding and PCT           shrink.py    the smallest failing schedule
    explain.py      the story in words               timeline.py  page.py
    program.py      files and scenarios              report.py    explore()     cli.py   the command
    harness.py      a model of ewe with clients in memory             samples/  broken and correct programs

What an exploration says: a failure is real, and its schedule is the proof. No failure is a statement about the
schedules that were tried, and the report counts them.
"""

from ewe_explore.report import Exploration, RaceFound, always, explore
from ewe_explore.scheduler import ProgramError

__all__ = ["Exploration", "ProgramError", "RaceFound", "always", "explore"]
