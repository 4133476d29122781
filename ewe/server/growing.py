"""Growing: when the supervisor looks at its workers, what it sees, and how many workers there should be.

    a client waits in the backlog ─▶ the supervisor wakes ─▶ LOOK_S later: plan_difference() ─▶ more workers
    more workers than the least   ─▶ plan_difference() each second                           ─▶ fewer workers

The supervisor watches the listening sockets together with its own pipes, but it accepts nothing. If a worker is
idle, the worker accepts a new connection at once, and the supervisor mostly sleeps on: the kernel wakes both, and
the supervisor finds nothing to wait for. A supervisor that has seen a client looks LOOK_S later, and does not watch
the sockets until then, so that many clients wake it ten times a second at most.

At a look the workers are starved if none is idle and a client waits. A worker that has not reported yet, and a
planned one, count as idle: it will take a client soon. Two kinds of workers do not count, since a debugger or
SIGSTOP may have stopped them: one that says that it is idle, although a client has waited for LONG_WAIT_S, and one
that has not reported START_S after its fork. The second may also hang in an import.

Possible failures: during a change of workers (HUP) and during a stop, the supervisor does not look. On a machine
without a free processor, a new worker may need seconds to begin. If clients have waited for LONG_WAIT_S, the
workers therefore end kept connections as if no more could start. growth.py lists the others.

Read next: ewe/processors/growth.py, seats.py; supervisor.py.
"""

from __future__ import annotations

import mmap
import time
from typing import TYPE_CHECKING

from ewe.config.count_range import MOST
from ewe.processors.growth import LOOK_S, Growth
from ewe.processors.seats import BUSY, IDLE
from ewe.streams.listener import poll_of

SEATS = 4 * MOST  # with the workers that retire, of several generations
# If a client has waited for so many seconds, workers end kept connections, and idle workers do not count.
LONG_WAIT_S = 0.5
# A worker reports that it serves within so many seconds after its fork, unless the processors are overloaded.
START_S = 5.0
# Seconds between two looks while no client waits, and there are more workers than the least
QUIET_LOOK_S = 1.0

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from ewe.config.count_range import CountRange


class Seats:
    """The seats of all workers of a server. map: their bytes."""

    def __init__(self) -> None:
        self.map = memoryview(mmap.mmap(-1, SEATS))
        self.unused = range(1, SEATS - 1)  # numbers that no worker has had
        self.free: list[int] = []  # numbers whose workers have ended

    def take_seat(self) -> int:
        """Return the number of a free seat, and clear it: its worker has not begun to serve."""
        if self.free:
            number = self.free.pop()
        elif self.unused:
            number, self.unused = self.unused[0], self.unused[1:]
        else:
            number = SEATS - 1  # the workers without a seat share the last one
        self.map[number] = BUSY
        return number

    def free_seat(self, number: int) -> None:
        """Free the seat of a worker that has been reaped. Call it once for each worker."""
        if number != SEATS - 1:
            self.free.append(number)

    def is_idle(self, number: int) -> bool:
        """Return whether the worker of a seat waits for a client."""
        return number != SEATS - 1 and self.map[number] == IDLE

    def tell_whether_more_start(self, more_start: bool) -> None:
        """Tell the workers whether another worker starts if all are busy."""
        self.map[0] = more_start


class Growing:
    """Decides how many workers a supervisor keeps.

    due_at: the time.monotonic() of the next look; None: when a client waits.
    """

    def __init__(self, sockets: Sequence[socket.socket], span: CountRange) -> None:
        self.sockets = sockets
        self.backlogs = poll_of(sock.fileno() for sock in sockets)
        self.seats = Seats()
        self.growth = Growth(span, time.monotonic())
        self.due_at: float | None = None
        self.has_seen_client = False
        # The time.monotonic() of the first of the looks without a break that saw a client
        self.waits_since: float | None = None

    @property
    def span(self) -> CountRange:
        """The limits of the number of workers."""
        return self.growth.span

    @span.setter
    def span(self, span: CountRange) -> None:
        self.growth.span = span
        if self.due_at is None:  # there may be more workers now than the new least
            self.due_at = time.monotonic() + LOOK_S

    def watched(self) -> Sequence[socket.socket]:
        """Return the sockets that end the supervisor's wait when a client waits."""
        return self.sockets if self.span.grows and not self.has_seen_client else ()

    def plan_look(self) -> None:
        """Plan a look, since a client waits."""
        self.has_seen_client = True
        self.due_at = time.monotonic() + LOOK_S

    def next_look_at(self) -> float | None:
        """Return the time.monotonic() of the next look; None if there is none before a client waits."""
        return self.due_at if self.span.grows else None

    def plan_difference(self, count: int, idle: int) -> int:
        """Return how many workers to start, or, as a negative number, how many to end; plan the next look."""
        self.has_seen_client = bool(self.backlogs.poll(0))
        now = time.monotonic()
        if not self.has_seen_client:
            self.waits_since = None
        elif self.waits_since is None:
            self.waits_since = now
        difference = self.growth.plan_difference(now, count, idle, self.has_seen_client and idle == 0)
        if self.has_seen_client:
            self.due_at = now + LOOK_S
        else:
            self.due_at = now + QUIET_LOOK_S if count + difference > self.span.least else None
        return difference

    def waits_are_short(self) -> bool:
        """Return whether the clients that wait, if there are any, have not waited for long."""
        return self.waits_since is None or time.monotonic() - self.waits_since < LONG_WAIT_S
