"""A worker: runs one processor in one process, and turns signals into its finish() and abort().

TERM and the first INT finish what is in progress, for config.grace seconds; a second INT, or QUIT, ends all
at once; USR1 reopens the logs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ewe import logger
from ewe.listener import Listener

if TYPE_CHECKING:
    import socket

    from ewe.config import Config
    from ewe.processors.base import Processor

STOPPED, FAILED, CUT = 0, 1, 4  # exit statuses: as asked; our own fault; work had to be ended
STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1}
LAST_MOMENT = 2.0  # seconds between the end of all conversations and the end of a process that hangs on


def ignore_stops() -> None:
    """We are ending already: another signal must not turn a clean exit status into a death by signal."""
    signal.set_wakeup_fd(-1)
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


def kill_programs() -> int:
    """Kill what is left of the programs; return how many there were. Most servers never load them."""
    programs = sys.modules.get("ewe.programs")
    return programs.kill_all() if programs is not None else 0


class Worker:
    """Runs a processor in this process, and turns signals into its finish() and abort()."""

    def __init__(
        self,
        processor: Processor,
        sockets: list[socket.socket],
        config: Config,
        name: str,
        lifeline: int = -1,
    ) -> None:
        self.processor = processor
        self.config = config
        self.listener = processor.listener = Listener(sockets, lifeline)
        self.interrupts = 0
        self.aborted = False
        logger.access.name_worker(processor.name, name)

    def run(self, ready: Callable[[], None] = lambda: None) -> int:
        """Serve until stopped; return the exit status. ready: called once signals are answered."""
        signal.signal(signal.SIGTERM, self.on_stop)
        signal.signal(signal.SIGINT, self.on_stop)
        signal.signal(signal.SIGQUIT, self.on_quit)
        signal.signal(signal.SIGALRM, self.on_alarm)
        signal.signal(signal.SIGUSR1, self.on_reopen)
        signal.set_wakeup_fd(self.listener.wake_writer, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        ready()
        try:
            self.processor.serve(self.listener)
        except Exception:
            logger.errors.exception(f"the {self.processor.name} model failed")
            return FAILED
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            ignore_stops()
            self.processor.cut += kill_programs()
            logger.report_losses()
        return CUT if self.processor.cut else STOPPED

    def on_stop(self, number: int, frame: object) -> None:
        """TERM, or INT: finish, and at the second INT end."""
        self.interrupts += number == signal.SIGINT
        if self.interrupts > 1:
            self.on_quit(number, frame)
        elif not self.processor.stopping or not self.listener.closed:
            self.processor.finish()
            signal.setitimer(signal.ITIMER_REAL, self.config.grace or 0.001)

    def on_quit(self, number: int, frame: object) -> None:
        """End all now."""
        self.aborted = True
        self.processor.abort()
        signal.setitimer(signal.ITIMER_REAL, LAST_MOMENT)

    def on_alarm(self, number: int, frame: object) -> None:
        """The grace is over; or, after abort(), the last moment."""
        if not self.aborted:
            logger.errors.warning(
                f"{len(self.processor.live)} requests did not end in {self.config.grace:g} s (grace)"
            )
            self.on_quit(number, frame)
            return
        kill_programs()
        os._exit(CUT)

    def on_reopen(self, number: int, frame: object) -> None:
        """USR1."""
        logger.reopen_logs()
        self.processor.signalled(signal.SIGUSR1)
