"""A worker: runs one processor in one process, and turns signals into its finish() and abort().

TERM and the first INT finish what is in progress, for config.grace seconds; a second INT, or QUIT, ends all
at once. HUP: read the configuration again, or, told by a supervisor, retire for another worker that has.
USR1: reopen the logs. USR2: write status and stacks to the error log.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from ewe import logger, systemd
from ewe.listener import Listener

if TYPE_CHECKING:
    import socket

    from ewe.blueprint import Blueprint

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
        blueprint: Blueprint,
        sockets: list[socket.socket],
        name: str,
        lifeline: int = -1,
    ) -> None:
        """name: for the access log. lifeline: the supervisor's pipe; without one this is the only process."""
        self.blueprint = blueprint
        self.name = name
        self.processor = blueprint.make()
        self.supervised = lifeline >= 0
        if self.supervised and blueprint.config.retire:
            self.processor.retire_after(blueprint.config.retire)
        self.listener = self.processor.listener = Listener(sockets, lifeline)
        self.began = time.monotonic()
        self.interrupts = 0
        self.stopping = self.aborted = False
        logger.access.name_worker(self.processor.name, name)

    def run(self, ready: Callable[[], None] = lambda: None) -> int:
        """Serve until stopped; return the exit status. ready: called once signals are answered."""
        signal.signal(signal.SIGTERM, self.on_stop)
        signal.signal(signal.SIGINT, self.on_stop)
        signal.signal(signal.SIGQUIT, self.on_quit)
        signal.signal(signal.SIGALRM, self.on_alarm)
        signal.signal(signal.SIGUSR1, self.on_reopen)
        signal.signal(signal.SIGUSR2, self.on_status)
        signal.signal(signal.SIGHUP, self.on_reload)
        for number in (signal.SIGTTIN, signal.SIGTTOU):
            signal.signal(number, self.on_count)
        signal.set_wakeup_fd(self.listener.wake_writer, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS | {signal.SIGHUP})
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
        elif not self.stopping:
            self.stopping = True
            if not self.supervised:
                systemd.notify("STOPPING=1")
            self.processor.finish()
            signal.setitimer(signal.ITIMER_REAL, self.blueprint.config.grace or 0.001)

    def on_quit(self, number: int, frame: object) -> None:
        """End all now."""
        self.aborted = True
        self.processor.abort()
        signal.setitimer(signal.ITIMER_REAL, LAST_MOMENT)

    def on_alarm(self, number: int, frame: object) -> None:
        """The grace is over; or, after abort(), the last moment."""
        if not self.aborted:
            grace = self.blueprint.config.grace
            logger.errors.warning(f"{len(self.processor.live)} requests did not end in {grace:g} s (grace)")
            self.on_quit(number, frame)
            return
        kill_programs()
        os._exit(CUT)

    def on_reopen(self, number: int, frame: object) -> None:
        """USR1."""
        logger.reopen_logs()
        self.processor.signalled(signal.SIGUSR1)

    def on_reload(self, number: int, frame: object) -> None:
        """HUP."""
        if self.supervised:
            self.processor.retire()
        elif self.blueprint.renew():
            logger.access.name_worker(self.processor.name, self.name)
            self.processor.adopt(self.blueprint.site, self.blueprint.config)

    def on_count(self, number: int, frame: object) -> None:
        """TTIN, TTOU: for a supervisor only."""
        if not self.supervised:
            logger.errors.warning(
                "TTIN and TTOU change the number of workers, where there are many (workers)"
            )

    def on_status(self, number: int, frame: object) -> None:
        """USR2."""
        processor = self.processor
        streams = list(processor.live)
        idle = sum(stream.idle for stream in streams)
        programs = sum(len(stream.programs) for stream in streams)
        requests = processor.served + sum(stream.requests for stream in streams)
        say = logger.errors.error  # not an error, but asked for: it is written at every level
        say(
            f"status: {processor.name}, worker {self.name}, up {time.monotonic() - self.began:.0f} s,"
            f" {len(streams)} connections ({idle} idle), {programs} programs, {requests} requests"
        )
        for thread, top in sys._current_frames().items():
            say(f"status: thread {thread}")
            for line in traceback.format_stack(top):
                for part in line.rstrip().split("\n"):
                    say("| " + part)
        processor.signalled(signal.SIGUSR2)
