"""The supervisor: keeps a number of worker processes alive, and acts on signals for all of them.

TERM, INT and QUIT stop (see ewe.worker); HUP puts a worker with the configuration as it is now in each
worker's place; TTIN and TTOU add a worker and let one go; USR1 and USR2 are passed on.

Where the model needs a server of its own behind it (X-Switch), that is one more process to keep alive: the first
to start, the last to stop.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ewe import logger, orphans, systemd
from ewe.identity import become
from ewe.worker import CUT, FAILED, LAST_MOMENT, STOPPED, STOPS, Worker, ignore_stops

if TYPE_CHECKING:
    import socket

    from ewe.blueprint import Blueprint

ORDERS = (signal.SIGCHLD, signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR2)
LEAVING = -1  # the place of a worker that was told to retire
COMPANION = -2  # the place of the server that the workers need: X-Switch
MAX_BACK_OFF = 8.0  # seconds between two starts of a worker that dies at once
YOUNG = 1.0  # seconds: a worker that dies younger than this dies "at once"


class Supervisor:
    """Keeps blueprint.workers processes alive, each in a place of its own, from 0."""

    def __init__(self, blueprint: Blueprint, sockets: list[socket.socket]) -> None:
        self.blueprint = blueprint
        self.sockets = sockets
        self.count = blueprint.workers
        self.workers: dict[int, tuple[int, float]] = {}  # pid -> place, time of its start
        self.due: dict[int, float] = {}  # place -> when to start a worker there
        self.back_off: dict[int, float] = {}  # place -> seconds, while workers die young there
        self.noted: list[int] = []  # signals that came
        self.interrupts = 0
        self.stopping = False
        self.companion_told = False
        self.deadline = 0.0
        self.status = STOPPED

    def run(self, ready: Callable[[], None]) -> int:
        """Start the workers, replace those that die, until told to stop; return the exit status."""
        # Its end is closed when we die, however we die: workers that see it finish.
        self.lifeline, self.held = os.pipe()
        self.wake, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(self.wake, True)
        for number in (*STOPS, *ORDERS):
            signal.signal(number, self.note)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        orphans.adopt()
        gc.collect()
        gc.freeze()  # what is here now is shared with the workers as long as nobody touches it
        if self.blueprint.companion:
            self.start(COMPANION)
        for place in range(self.count):
            self.start(place)
        ready()
        while self.workers or not self.stopping:
            self.wait()
            while self.noted:
                self.act(self.noted.pop(0))
            self.reap()
            self.start_due()
            if self.stopping and all(place == COMPANION for place, _ in self.workers.values()):
                self.end_companion()
            if self.stopping and time.monotonic() > self.deadline:
                self.tell(signal.SIGKILL)
                self.status = CUT
                self.deadline += LAST_MOMENT
        ignore_stops()
        return self.status

    # Signals

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
        if number in (signal.SIGUSR1, signal.SIGUSR2):
            if number == signal.SIGUSR1:
                logger.reopen_logs()
            else:
                logger.errors.error(f"status: supervisor of {self.count} workers: {sorted(self.workers)}")
            self.tell(number)
        elif number == signal.SIGHUP:
            self.reload()
        elif number in (signal.SIGTTIN, signal.SIGTTOU):
            self.change_count(1 if number == signal.SIGTTIN else -1)
        elif number in STOPS:
            self.stop(number)

    def tell(self, number: int) -> None:
        """Send all workers a signal."""
        for pid, (place, _) in self.workers.items():
            if place != COMPANION or number == signal.SIGKILL:
                os.kill(pid, number)  # not reaped yet, so its number is its own

    def stop(self, number: int) -> None:
        """Have all workers finish; at the second INT, or QUIT, end."""
        self.interrupts += number == signal.SIGINT
        at_once = number == signal.SIGQUIT or self.interrupts > 1
        if not self.stopping:
            systemd.notify("STOPPING=1")
        self.stopping = True
        grace = 0.0 if at_once else self.blueprint.config.grace + LAST_MOMENT
        self.deadline = time.monotonic() + LAST_MOMENT + grace
        self.tell(signal.SIGQUIT if at_once else signal.SIGTERM)

    def reload(self) -> None:
        """Read the configuration again, and replace the workers: first start the new, then let the old go."""
        if self.stopping or not self.blueprint.renew():
            return
        for pid in [pid for pid, (place, _) in self.workers.items() if place == COMPANION]:
            os.kill(pid, signal.SIGHUP)
        old = [pid for pid, (place, _) in self.workers.items() if place not in (LEAVING, COMPANION)]
        self.due.clear()
        for place in range(self.count):
            self.start(place)
        for pid in old:
            self.retire(pid)

    def retire(self, pid: int) -> None:
        """Have a worker end once its connections have."""
        self.workers[pid] = (LEAVING, 0.0)
        os.kill(pid, signal.SIGHUP)

    def change_count(self, difference: int) -> None:
        """Add a worker, or let the last one go; one always stays."""
        if self.stopping or self.count + difference < 1:
            return
        self.count += difference
        logger.errors.info(f"{self.count} workers from now on")
        if difference > 0:
            self.start(self.count - 1)
            return
        self.due.pop(self.count, None)
        for pid in [pid for pid, (place, _) in self.workers.items() if place == self.count]:
            self.retire(pid)

    # Workers

    def start_companion(self) -> None:
        """Start the server that the workers need."""
        assert self.blueprint.companion is not None
        command = self.blueprint.companion.command(self.blueprint.config)
        try:
            pid = os.posix_spawn(
                command[0], command, os.environ, setsigmask=(), setsigdef=(*STOPS, *ORDERS), setsid=False
            )
        except OSError as reason:
            logger.errors.error(f"{command[0]} cannot be started: {reason.strerror}; trying again in 1 s")
            self.due[COMPANION] = time.monotonic() + 1
        else:
            self.workers[pid] = (COMPANION, time.monotonic())

    def end_companion(self) -> None:
        """Ask it to stop, now that nobody needs it."""
        if not self.companion_told:
            self.companion_told = True
            for pid in self.workers:
                os.kill(pid, signal.SIGTERM)

    def start(self, place: int) -> None:
        """Fork a worker; the child never returns."""
        if place == COMPANION:
            return self.start_companion()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS | {signal.SIGHUP})  # until it has handlers of its own
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
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS | {signal.SIGHUP})

    def be_worker(self, place: int) -> int:
        """Run a processor in this new process."""
        os.close(self.held)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if self.blueprint.companion:
            become(self.blueprint.companion.user, self.blueprint.config.group)
        return Worker(self.blueprint, self.sockets, str(place + 1), self.lifeline).run()

    def start_due(self) -> None:
        """Start the workers whose time has come."""
        now = time.monotonic()
        for place in [place for place, when in self.due.items() if when <= now and not self.stopping]:
            del self.due[place]
            self.start(place)

    def reap(self) -> None:
        """Take the status of workers that ended, and see to their replacement."""
        for pid, raw in orphans.reap(self.workers):
            place, born = self.workers.pop(pid)
            code = os.waitstatus_to_exitcode(raw)
            if code < 0:
                orphans.end(self.workers)
            if self.stopping:
                self.status = self.status or (CUT if code else STOPPED)
            elif place != LEAVING:
                self.replace(place, pid, code, time.monotonic() - born < YOUNG)

    def replace(self, place: int, pid: int, code: int, was_young: bool) -> None:
        """Have another worker take the place of one that ended; later and later where they die young."""
        name = "X-Switch" if place == COMPANION else f"worker {place + 1}"
        if code == STOPPED:
            self.back_off[place] = 0.0
            logger.errors.debug(f"{name} (pid {pid}) retired")
        else:
            longer = min(max(0.25, self.back_off.get(place, 0.0) * 2), MAX_BACK_OFF)
            self.back_off[place] = longer if was_young else 0.0
            how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
            wait = f" in {longer:g} s" if was_young else ""
            logger.errors.error(f"{name} (pid {pid}) {how}; starting another{wait}")
        self.due[place] = time.monotonic() + self.back_off[place]
