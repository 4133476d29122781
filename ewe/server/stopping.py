"""The stop of the server: when it must have ended, how hard it is, and the exit status that it leads to.

    a signal ──▶ begin_or_hasten() ──▶ TERM for the workers, or QUIT (at QUIT, at a second INT): abort the requests
                         │ all workers have ended                  │ the deadline has passed
                         ▼                                         ▼
                  status STOPPED, or ABORTED              note_kill(): the supervisor sends KILL,
                  if a worker has aborted requests        and the status is ABORTED

A second signal may bring the deadline forward, and never moves it back: otherwise a service manager that repeats
TERM would keep the server alive. A stop also begins without a signal, if one of the first workers cannot serve.

Read next: supervisor.py, which sends the signals; worker.py, how a worker stops.
"""

from __future__ import annotations

import signal
import time

from ewe.server.worker import ABORT_TIMEOUT_S, ABORTED, STOPPED


class Stopping:
    """The stop, which is true once it has begun.

    deadline: the time.monotonic() at which the supervisor kills the workers. status: the exit status of the server.
    unusable: the reason why one of the first workers cannot serve; "": that is not why the server stops.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self.interrupts = 0
        self.deadline = 0.0
        self.status = STOPPED
        self.unusable = ""

    def __bool__(self) -> bool:
        return self.has_begun

    def begin_or_hasten(self, signum: int, grace_s: float) -> int:
        """Begin or hasten the stop, because of a signal; return the signal for the workers.

        grace_s: the time that requests in progress have.
        """
        self.interrupts += signum == signal.SIGINT
        at_once = signum == signal.SIGQUIT or self.interrupts > 1
        extra_s = 0.0 if at_once else grace_s + ABORT_TIMEOUT_S
        deadline = time.monotonic() + ABORT_TIMEOUT_S + extra_s
        # A further TERM gives the workers no more time.
        self.deadline = min(deadline, self.deadline) if self.has_begun else deadline
        self.has_begun = True
        return signal.SIGQUIT if at_once else signal.SIGTERM

    def is_overdue(self) -> bool:
        """Return whether the stop has begun, and its deadline has passed."""
        return self.has_begun and time.monotonic() > self.deadline

    def note_kill(self) -> None:
        """Note that the supervisor kills the workers. If one still runs ABORT_TIMEOUT_S later, it kills again."""
        self.status = ABORTED
        self.deadline += ABORT_TIMEOUT_S

    def note_status(self, code: int) -> None:
        """Note the exit status of a worker that has ended: the server's own tells of aborted requests."""
        if code != STOPPED:
            self.status = ABORTED
