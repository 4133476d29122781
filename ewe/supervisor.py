"""The supervisor: keeps a number of worker processes alive, and passes signals on to them."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ewe import logger
from ewe.worker import CUT, FAILED, LAST_MOMENT, STOPPED, STOPS, Worker, ignore_stops

if TYPE_CHECKING:
    import socket

    from ewe.config import Config
    from ewe.processors.base import Processor

MAX_BACK_OFF = 8.0  # seconds between two starts of a worker that dies at once
YOUNG = 1.0  # seconds: a worker that dies younger than this dies "at once"


class Supervisor:
    """Keeps a number of worker processes alive."""

    def __init__(
        self, make: Callable[[], Processor], sockets: list[socket.socket], config: Config, count: int
    ) -> None:
        self.make = make
        self.sockets = sockets
        self.config = config
        self.count = count
        self.workers: dict[int, tuple[int, float]] = {}  # pid -> place, time of its start
        self.due: dict[int, float] = {}  # place -> when to start a worker there
        self.back_off = [0.0] * count
        self.noted: list[int] = []  # signals that came
        self.interrupts = 0
        self.stopping = False
        self.deadline = 0.0
        self.status = STOPPED

    def run(self, ready: Callable[[], None]) -> int:
        """Start the workers, replace those that die, until told to stop; return the exit status."""
        # Its end is closed when we die, however we die: workers that see it finish.
        self.lifeline, self.held = os.pipe()
        self.wake, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(self.wake, True)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, self.note)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()  # what is here now is shared with the workers as long as nobody touches it
        for place in range(self.count):
            self.start(place)
        ready()
        while self.workers or not self.stopping:
            self.wait()
            while self.noted:
                self.act(self.noted.pop(0))
            self.reap()
            now = time.monotonic()
            for place in [place for place, when in self.due.items() if when <= now and not self.stopping]:
                del self.due[place]
                self.start(place)
            if self.stopping and now > self.deadline:
                self.tell(signal.SIGKILL)
                self.status = CUT
                self.deadline = now + LAST_MOMENT
        ignore_stops()
        return self.status

    def note(self, number: int, frame: object) -> None:
        """Take note of a signal; run() acts on it."""
        self.noted.append(number)

    def wait(self) -> None:
        """Wait for a signal, or until something is due."""
        from select import select

        moments = [self.deadline] if self.stopping else list(self.due.values())
        seconds = max(0.0, min(moments) - time.monotonic()) if moments else None
        if not self.noted and select([self.wake], [], [], seconds)[0]:
            os.read(self.wake, 4096)

    def act(self, number: int) -> None:
        """Do what a signal asks for."""
        if number == signal.SIGUSR1:
            logger.reopen_logs()
            self.tell(number)
        elif number != signal.SIGCHLD:
            self.interrupts += number == signal.SIGINT
            at_once = number == signal.SIGQUIT or self.interrupts > 1
            self.stopping = True
            self.deadline = (
                time.monotonic() + LAST_MOMENT + (0 if at_once else self.config.grace + LAST_MOMENT)
            )
            self.tell(signal.SIGQUIT if at_once else signal.SIGTERM)

    def tell(self, number: int) -> None:
        """Send all workers a signal."""
        for pid in self.workers:
            os.kill(pid, number)  # not reaped yet, so its number is its own

    def start(self, place: int) -> None:
        """Fork a worker; the child never returns."""
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # until the worker has handlers of its own
        try:
            pid = os.fork()
        except OSError as reason:
            logger.errors.error(f"cannot fork a worker: {reason.strerror}; trying again in 1 s")
            self.due[place] = time.monotonic() + 1
            pid = -1
        if pid == 0:
            status = FAILED
            try:
                status = self.be_worker(place)
            finally:
                os._exit(status)
        if pid > 0:
            self.workers[pid] = (place, time.monotonic())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def be_worker(self, place: int) -> int:
        """Run a processor in this new process."""
        os.close(self.held)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        processor = self.make()
        if self.config.retire:
            processor.retire_after(self.config.retire)
        return Worker(processor, self.sockets, self.config, str(place + 1), self.lifeline).run()

    def reap(self) -> None:
        """Take the status of workers that ended, and see to their replacement."""
        while self.workers:
            pid, raw = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            place, born = self.workers.pop(pid, (-1, 0.0))
            if place < 0:
                continue
            code = os.waitstatus_to_exitcode(raw)
            if self.stopping:
                self.status = self.status or (CUT if code else STOPPED)
                continue
            now = time.monotonic()
            if code == STOPPED:
                self.back_off[place] = 0.0
                logger.errors.debug(f"worker {place + 1} (pid {pid}) retired")
            else:
                was_young = now - born < YOUNG
                self.back_off[place] = (
                    min(max(0.25, self.back_off[place] * 2), MAX_BACK_OFF) if was_young else 0.0
                )
                how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
                wait = f" in {self.back_off[place]:g} s" if self.back_off[place] else ""
                logger.errors.error(f"worker {place + 1} (pid {pid}) {how}; starting another{wait}")
            self.due[place] = now + self.back_off[place]
