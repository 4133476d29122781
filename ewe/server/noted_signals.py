"""The signals that the supervisor has received and has not acted on yet.

A signal may arrive between any two instructions of the supervisor. Its handler therefore only notes the number, and
the supervisor's loop takes all noted numbers at one place. Python also writes a byte to a pipe, which ends the
supervisor's wait (signal.set_wakeup_fd()):

    handler: note() ──▶ noted ──▶ run(): take() ──▶ a stop, then TTIN and TTOU, then one each of HUP, USR1, ...

Read next: supervisor.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from ewe.server.worker import STOPS
from ewe.streams.descriptors import nonblocking_pipe

# Several of one of these signals have the same effect as one.
ONCE = (signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class NotedSignals:
    """The numbers of the noted signals, in the order in which they have come.

    pipe: the reading and the writing end of the pipe, -1 before listen().
    """

    def __init__(self) -> None:
        self.noted: list[int] = []
        self.pipe = (-1, -1)

    def __bool__(self) -> bool:
        return bool(self.noted)

    def listen(self, signums: Iterable[int]) -> None:
        """Note these signals from now on."""
        self.pipe = nonblocking_pipe()
        # The supervisor reads its end only after poll(2) has reported it. Only the writer must never block.
        os.set_blocking(self.pipe[0], True)
        for signum in signums:
            signal.signal(signum, self.note)
        signal.set_wakeup_fd(self.pipe[1], warn_on_full_buffer=False)

    @property
    def reader(self) -> int:
        """The end of the pipe that is readable after a signal."""
        return self.pipe[0]

    def drain(self) -> None:
        """Read the bytes of the pipe, which is readable."""
        os.read(self.reader, 4096)

    def note(self, signum: int, frame: object) -> None:
        """Note a signal. This is the handler of each signal."""
        self.noted.append(signum)

    def take(self) -> list[int]:
        """Return the signals to act on, a stop first.

        One reload answers several HUPs, and a stop does not wait for a reload, since starting all workers takes
        longer than sending the next HUP. INT, TTIN and TTOU count each time.
        """
        taken, self.noted = self.noted, []
        once = {signum for signum in taken if signum in ONCE}
        rest = [signum for signum in taken if signum not in ONCE]
        return [*sorted(rest, key=lambda signum: signum not in STOPS), *sorted(once)]
