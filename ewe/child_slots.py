"""Slots of child processes that are replaced when they end: the back-off before the next start.

A child that ends is replaced at once. If each child dies soon after its start, the server would start children all
the time, and they would serve almost nothing. Each slot of a child therefore doubles its wait from death to death.
The first child that lives for YOUNG_S resets the wait:

    dies after 0.1 s ─▶ 0.25 s ─▶ dies after 0.1 s ─▶ 0.5 s ─▶ ... ─▶ 8 s          lives for a second ─▶ 0

Four keepers of processes use this rule, each with its own limits (BackOff): the supervisor for each worker, the
program manager for each process of a FastCGI program, the database daemon for each statement process, and the
supervisor of X-Switch for its two processes.

Read next: server/supervisor.py; server/program_manager.py.
"""

from __future__ import annotations

import time
from typing import NamedTuple

SHORTEST_S, LONGEST_S = 0.25, 8.0  # the wait before the next start, if the last child has died young
YOUNG_S = 1.0  # a child that ends before this age has died young


class BackOff(NamedTuple):
    """The limits of one keeper. young_s: a child that ends before this age has died young.

    shortest_s, longest_s: the wait after the first such child, and after many of them in a row.
    """

    young_s: float = YOUNG_S
    shortest_s: float = SHORTEST_S
    longest_s: float = LONGEST_S


DEFAULT_BACK_OFF = BackOff()  # of workers, and of the processes of FastCGI programs


class ChildSlot:
    """The slot of one child. due_at: the time.monotonic() of the next start; None while no start is planned.

    back_off_s: the last wait, while children die young. young_deaths: the number of them in a row.
    """

    def __init__(self, limits: BackOff = DEFAULT_BACK_OFF) -> None:
        self.limits = limits
        self.due_at: float | None = None
        self.back_off_s = 0.0
        self.young_deaths = 0

    def plan(self, seconds: float) -> None:
        """Plan the next start in this number of seconds."""
        self.due_at = time.monotonic() + seconds

    def plan_after_death(self, born: float) -> float:
        """Plan the next start after a death; return the wait in seconds. born: when the child started."""
        young_s, shortest_s, longest_s = self.limits
        is_young = time.monotonic() - born < young_s
        self.young_deaths = self.young_deaths + 1 if is_young else 0
        self.back_off_s = min(max(shortest_s, self.back_off_s * 2), longest_s) if is_young else 0.0
        self.plan(self.back_off_s)
        return self.back_off_s

    def plan_at_once(self) -> None:
        """Plan the next start without a wait, after a child that has ended as intended."""
        self.back_off_s, self.young_deaths = 0.0, 0
        self.plan(0)

    def has_failed(self, times: int) -> bool:
        """Return whether the last children died young. times: the least number of them."""
        return self.young_deaths >= times

    def is_due(self, now: float) -> bool:
        """Return whether the next child should start now."""
        return self.due_at is not None and self.due_at <= now
