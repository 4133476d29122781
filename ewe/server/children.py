"""Child processes that are kept alive: when the next one starts in a place, and how one has ended.

A child that ends is replaced at once. One that dies young would be replaced again and again, and each start costs
more than it serves. Each place of a child therefore waits longer from death to death, and the first child that
lives for YOUNG_S seconds resets the wait:

    dies after 0.1 s ─▶ 0.25 s ─▶ dies after 0.1 s ─▶ 0.5 s ─▶ ... ─▶ 8 s          lives for a second ─▶ 0

The supervisor keeps workers in places, the program manager FastCGI programs.

Read next: supervisor.py; program_manager.py.
"""

from __future__ import annotations

import time

SHORTEST_S, LONGEST_S = 0.25, 8.0  # between two starts of a child that dies young
YOUNG_S = 1.0  # a child that ends younger than this has died young


class Place:
    """The place of one child. due: when the next one starts there; None while none is planned.

    back_off: seconds between the last two starts, while children die young.
    """

    def __init__(self) -> None:
        self.due: float | None = None
        self.back_off = 0.0

    def plan(self, seconds: float) -> None:
        """Plan the next child."""
        self.due = time.monotonic() + seconds

    def plan_after_death(self, born: float) -> float:
        """Plan the next child after one that was born at this time.monotonic(); return the seconds until then."""
        is_young = time.monotonic() - born < YOUNG_S
        self.back_off = min(max(SHORTEST_S, self.back_off * 2), LONGEST_S) if is_young else 0.0
        self.plan(self.back_off)
        return self.back_off

    def plan_at_once(self) -> None:
        """Plan the next child after one that has ended as it should."""
        self.back_off = 0.0
        self.plan(0)

    def is_due(self, now: float) -> bool:
        """Return whether the next child is to start."""
        return self.due is not None and self.due <= now


def how_ended(code: int) -> str:
    """Return an exit code of os.waitstatus_to_exitcode() in words."""
    return f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
