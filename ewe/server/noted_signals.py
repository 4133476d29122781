"""The signals that the supervisor has received and has not acted on yet.

A signal may arrive between any two instructions of the supervisor. Its handler therefore only notes the number, and
the supervisor's loop takes all noted numbers at one place:

    handler: note() ──▶ noted ──▶ run(): take() ──▶ a stop, then TTIN and TTOU, then one each of HUP, USR1, ...

Read next: supervisor.py.
"""

from __future__ import annotations

import signal

from ewe.server.worker import STOPS

# Several of one of these signals have the same effect as one.
ONCE = (signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class NotedSignals:
    """The numbers of the noted signals, in the order in which they have come."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __bool__(self) -> bool:
        return bool(self.numbers)

    def note(self, number: int, frame: object) -> None:
        """Note a signal. This is the handler of each signal."""
        self.numbers.append(number)

    def take(self) -> list[int]:
        """Return the signals to act on, a stop first.

        One reload answers several HUPs, and a stop does not wait for a reload, since starting all workers takes
        longer than sending the next HUP. INT, TTIN and TTOU count each time.
        """
        taken, self.numbers = self.numbers, []
        once = {number for number in taken if number in ONCE}
        rest = [number for number in taken if number not in ONCE]
        return [*sorted(rest, key=lambda number: number not in STOPS), *sorted(once)]
