"""Child processes that are replaced when they end: the back-off before the next start.

A child that ends is replaced at once. If each child dies soon after its start, the server would start children all
the time, and they would serve almost nothing. Each slot of a child therefore doubles its wait from death to death.
The first child that lives for YOUNG_S resets the wait:

    dies after 0.1 s ─▶ 0.25 s ─▶ dies after 0.1 s ─▶ 0.5 s ─▶ ... ─▶ 8 s          lives for a second ─▶ 0

The supervisor has a ChildSlot for each worker, the program manager one for each process of a FastCGI program.

Read next: supervisor.py; program_manager.py.
"""

from __future__ import annotations

import time

SHORTEST_S, LONGEST_S = 0.25, 8.0  # the wait before the next start, if the last child has died young
YOUNG_S = 1.0  # a child that ends before this age has died young


class ChildSlot:
    """The slot of one child. due_at: the time.monotonic() of the next start; None while no start is planned.

    back_off_s: the last wait, while children die young.
    """

    def __init__(self) -> None:
        self.due_at: float | None = None
        self.back_off_s = 0.0

    def plan(self, seconds: float) -> None:
        """Plan the next start in this number of seconds."""
        self.due_at = time.monotonic() + seconds

    def plan_after_death(self, born: float) -> float:
        """Plan the next start after a death; return the wait in seconds. born: when the child started."""
        is_young = time.monotonic() - born < YOUNG_S
        self.back_off_s = min(max(SHORTEST_S, self.back_off_s * 2), LONGEST_S) if is_young else 0.0
        self.plan(self.back_off_s)
        return self.back_off_s

    def plan_at_once(self) -> None:
        """Plan the next start without a wait, after a child that has ended as intended."""
        self.back_off_s = 0.0
        self.plan(0)

    def has_failed_twice(self) -> bool:
        """Return whether the last two children have died young: then the wait has grown."""
        return self.back_off_s > SHORTEST_S

    def is_due(self, now: float) -> bool:
        """Return whether the next child should start now."""
        return self.due_at is not None and self.due_at <= now


def how_ended(code: int) -> str:
    """Describe an exit code of os.waitstatus_to_exitcode() for a log line."""
    return f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
