"""Growth: how many workers there should be, if their number may change.

A fixed number of workers is wrong twice. If every client holds a worker, the next client waits, although the
machine has nothing to do. If few clients come, most workers only occupy memory. Apache's MPMs therefore change the
number of their workers between two limits, and so do ewe's prefork (processes) and pool (threads):

                   all workers are busy, and a client waits
              ┌────────────────────────────────────────────────┐
      least ──┤   1 more, then 2, 4, 8, 16, 32 at each look    ├──▶ most
              └────────────────────────────────────────────────┘
                   some workers were idle for a whole WINDOW_S: they end

**When must the number grow?** When all workers are busy and something waits. One of the two is not enough. If all
are busy and nothing waits, nobody gains. If something waits and a worker is idle, the worker is about to take it.
The caller decides this (`starved`), because a process and a thread show it in different ways: ewe.server.growing
for prefork, pool_threads.py for the pool.

**When may it shrink?** Not when a worker is idle now, because the next client may come at once. Growth remembers
the smallest number of idle workers that it saw during WINDOW_S. That many workers were idle all the time, and
nobody would have noticed their absence. They end together, except for one (SPARE), for the next client.

Possible failures, and where each is prevented:

- A burst starts too many workers (thundering growth). The caller looks LOOK_S after the last look, and counts a
  worker that has not begun to serve as an idle one. The number of new workers doubles only while this is not
  enough.
- The number oscillates. Growth is fast and shrinking is slow, and each growth begins another window.
- Growth while a stop is in progress. The caller does not look any more then.
- The system refuses a thread or a process. The caller goes on with the workers that it has (pool_threads.py tries
  again after REFUSED_S; the supervisor plans the start again, and a planned start counts as an idle worker).
- Workers die as fast as the supervisor forks them. The slot of a dead worker is a planned start, too.

Read next: pool_threads.py; ewe/server/growing.py.
"""

from __future__ import annotations

from ewe.config.count_range import CountRange

LOOK_S = 0.1  # seconds between two looks at the workers
MAX_STEP = 32  # new workers at one look
SPARE = 1  # idle workers that stay: a new client takes one, and finds the others started within LOOK_S or two
WINDOW_S = 10.0  # a worker that was idle for so long is not needed


class Growth:
    """Decides by how much a number of workers changes.

    span: the limits; they may change at any time.
    """

    def __init__(self, span: CountRange, now: float) -> None:
        """now: the time.monotonic() of the first window."""
        self.span = span
        self.begin_window(now)

    def begin_window(self, now: float) -> None:
        """Forget how many workers were idle."""
        self.step = 1
        self.least_idle = self.span.most
        self.window_ends = now + WINDOW_S

    def plan_difference(self, now: float, count: int, idle: int, starved: bool) -> int:
        """Return how many workers to start, or, as a negative number, how many to end.

        count: the workers now, with those that are about to start. idle: how many of them are idle. starved: all
        are busy, and something waits.
        """
        span = self.span  # read once: a signal handler may replace it
        least, most = span.least, span.most
        if count < least:
            return least - count
        if count > most:  # the limits have changed
            return most - count
        self.least_idle = min(self.least_idle, idle)
        if starved and count < most:
            step = min(self.step, most - count)
            self.begin_window(now)
            self.least_idle = 0  # all are busy
            self.step = min(2 * step, MAX_STEP)
            return step
        if now < self.window_ends:
            return 0
        not_needed = min(self.least_idle - SPARE, count - least)
        self.begin_window(now)
        self.least_idle = idle
        return -max(not_needed, 0)
