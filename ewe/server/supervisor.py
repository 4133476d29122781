"""The supervisor: keeps a number of worker processes alive, and handles signals for all of them.

One process opens the sockets and forks the workers. All workers accept from the same listening sockets: the kernel
gives each connection to one of them. The supervisor serves no client itself. It waits, and replaces workers:

    fork ──▶ worker in place 0     a worker dies young: its place is filled later and later (back_off)
         ──▶ worker in place 1     HUP: new workers start in every place, then the old ones retire (LEAVING)
         ──▶ worker in place 2     TTIN: one more place; TTOU: the last place is given up

A change of workers (HUP; with `reload` also a changed source file, ewe.server.sources) never leaves the server
without one that serves. The old workers go on until every new one has reported that it serves (ewe.server.reports).
If one reports that it cannot, the new ones end, the old configuration comes back, and the old workers stay:

    change() ──▶ new workers start ──┬─ all are ready ──▶ settle(): the old ones retire
                                     └─ one has failed ─▶ give_up(): the new ones end

What can go wrong: a signal may arrive at any moment, also between fork() and the child's first line. Signals
therefore stay blocked until the child has installed its handlers. The supervisor's own handler only notes a signal;
run() acts on it. If the supervisor itself is killed, the kernel closes its end of a pipe, the lifeline. Each worker
watches the lifeline with its sockets, and finishes.

TERM, INT and QUIT stop all workers (ewe.server.worker says how); USR1 and USR2 are passed on. If the model needs an
X-Switch, that is one more process to keep alive: the first to start, the last to stop.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ewe import logger
from ewe.gateway import orphans
from ewe.processors.base import UnknownModel
from ewe.registry import in_words
from ewe.server import systemd
from ewe.server.privileges import become
from ewe.server.reports import Reports
from ewe.server.worker import (
    CUT,
    FAILED,
    LAST_MOMENT,
    ONLY_MANY,
    STOPPED,
    STOPS,
    UNUSABLE,
    Worker,
    ignore_stops,
)
from ewe.streams.descriptors import nonblocking_pipe
from ewe.streams.listener import StartError

if TYPE_CHECKING:
    import socket

    from ewe.server.processor_factory import ProcessorFactory
    from ewe.server.sources import Sources

ORDERS = (signal.SIGCHLD, signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR2)
ONCE = (
    signal.SIGCHLD,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)  # asked twice, they do the same as once
LEAVING = -1  # the place of a worker that retires
COMPANION = -2  # the place of X-Switch
MAX_BACK_OFF = 8.0  # seconds between two starts of a worker that dies at once
HURRY = 0.5  # seconds that old workers have for connections without a request, once sources have changed
YOUNG = 1.0  # seconds: a worker that dies younger than this counts as dying at once


class Supervisor:
    """Keeps factory.workers processes alive. Each has a place, from 0."""

    def __init__(self, factory: ProcessorFactory, sockets: list[socket.socket]) -> None:
        self.factory = factory
        self.sockets = sockets
        self.count = factory.workers
        self.workers: dict[int, tuple[int, float]] = {}  # pid -> place, time of its start
        self.due: dict[int, float] = {}  # place -> when to start a worker there
        self.back_off: dict[int, float] = {}  # place -> seconds, while workers die young there
        self.noted: list[int] = []  # signals that have arrived and wait for run()
        self.interrupts = 0
        self.stopping = False
        self.xswitch_told = False
        self.first: set[int] = set()  # the workers that the server began with
        self.awaited: set[int] = set()  # those of them that have to report before the server is ready
        self.unusable = ""  # why one of them cannot serve
        self.reports = Reports()
        self.coming: set[int] = set()  # workers of a change that have not reported yet
        self.new: set[int] = set()  # all workers of that change
        self.old: set[int] = set()  # the workers that they replace
        self.before = factory  # what the factory was before that change
        self.hurry: dict[int, float] = {}  # a worker that retires -> when its idle connections are closed
        self.failures: dict[int, str] = {}  # worker -> why it cannot serve, as it has reported
        self.sources: Sources | None = None
        if factory.config.reload:
            self.watch_sources()
        self.deadline = 0.0
        self.status = STOPPED

    def run(self, ready: Callable[[], None]) -> int:
        """Start the workers, and replace those that die, until a stop; return the exit status.

        ready: called once the workers are started; if they import applications, once they serve. Raises StartError
        if one of them cannot.
        """
        # The kernel closes our end when this process dies, for any reason. Workers that notice it finish.
        self.lifeline, self.held = os.pipe()
        self.wake, self.wake_writer = nonblocking_pipe()
        os.set_blocking(self.wake, True)
        for number in (*STOPS, *ORDERS):
            signal.signal(number, self.note)
        signal.set_wakeup_fd(self.wake_writer, warn_on_full_buffer=False)
        orphans.adopt()
        gc.collect()
        gc.freeze()  # workers share these objects' memory as long as no collector touches it
        if self.factory.xswitch_process:
            self.start(COMPANION)
        for place in range(self.count):
            self.start(place)
        self.first = set(self.workers)
        if self.factory.imports_in_workers:
            self.awaited = {pid for pid, (place, _) in self.workers.items() if place != COMPANION}
        is_ready = False
        while self.workers or not self.stopping:
            if not is_ready and not self.awaited and not self.stopping:
                is_ready = True
                ready()
            self.wait()
            for noted in self.take_noted():
                self.act(noted)
            self.reap()
            if self.new and not self.coming and not self.stopping:
                self.settle()
            self.look_at_sources()
            self.start_due()
            if self.stopping and all(place == COMPANION for place, _ in self.workers.values()):
                self.end_xswitch()
            if self.stopping and time.monotonic() > self.deadline:
                self.tell(signal.SIGKILL)
                self.status = CUT
                self.deadline += LAST_MOMENT
        ignore_stops()
        logger.report_losses()  # of a worker that was killed
        if self.unusable:
            raise StartError(self.unusable)
        return self.status

    # Signals

    def note(self, number: int, frame: object) -> None:
        """Note a signal; run() acts on it."""
        self.noted.append(number)

    def take_noted(self) -> list[int]:
        """Return the signals to act on, a stop first.

        One reload answers all HUPs before it, and a stop waits for none: to start all workers takes longer than to
        send the next HUP. INT, TTIN and TTOU count each time.
        """
        noted, self.noted = self.noted, []
        once = {number for number in noted if number in ONCE}
        rest = [number for number in noted if number not in ONCE]
        return [*sorted(rest, key=lambda number: number not in STOPS), *sorted(once)]

    def wait(self) -> None:
        """Wait for a signal or a report, or until a worker is due to start or the sources are to be looked at."""
        from select import select

        moments = [self.deadline] if self.stopping else [*self.due.values(), *self.hurry.values()]
        if self.sources is not None and not self.stopping:
            moments.append(self.sources.due)
        seconds = max(0.0, min(moments) - time.monotonic()) if moments else None
        if not self.noted:
            found = select([self.wake, self.reports.reader], [], [], seconds)[0]
            if self.wake in found:
                os.read(self.wake, 4096)
            if self.reports.reader in found:
                self.read_reports()

    def act(self, number: int) -> None:
        """Carry out one signal."""
        if number in (signal.SIGUSR1, signal.SIGUSR2):
            if number == signal.SIGUSR1:
                logger.reopen_logs()
                for pid in [pid for pid, (place, _) in self.workers.items() if place == COMPANION]:
                    os.kill(pid, number)
            else:
                logger.errors.tell(
                    f"status: supervisor of {self.count} workers: {sorted(self.workers)},"
                    f" {logger.lost_lines()} log lines lost"
                )
            self.tell(number)
        elif number == signal.SIGHUP:
            self.reload()
        elif number in (signal.SIGTTIN, signal.SIGTTOU):
            self.change_count(1 if number == signal.SIGTTIN else -1)
        elif number in STOPS:
            self.stop(number)

    def tell(self, number: int) -> None:
        """Send a signal to all workers. X-Switch gets only KILL: end_xswitch() stops it later."""
        for pid, (place, _) in self.workers.items():
            if place != COMPANION or number == signal.SIGKILL:
                os.kill(pid, number)  # not reaped yet, so no other process has this number

    def stop(self, number: int) -> None:
        """Let all workers finish their requests; at QUIT, or a second INT, end them now."""
        self.interrupts += number == signal.SIGINT
        at_once = number == signal.SIGQUIT or self.interrupts > 1
        if not self.stopping:
            systemd.notify("STOPPING=1")
        self.stopping = True
        grace = 0.0 if at_once else self.factory.config.grace + LAST_MOMENT
        self.deadline = time.monotonic() + LAST_MOMENT + grace
        self.tell(signal.SIGQUIT if at_once else signal.SIGTERM)

    def retire(self, pid: int) -> None:
        """Let a worker end as soon as its connections have ended."""
        self.workers[pid] = (LEAVING, 0.0)
        for group in (self.coming, self.new, self.old):
            group.discard(pid)
        os.kill(pid, signal.SIGHUP)

    def change_count(self, difference: int) -> None:
        """Add a worker, or retire the last one; at least one stays."""
        if self.stopping or self.count + difference < 1:
            return
        if self.factory.serves_in_one:
            logger.errors.warning(ONLY_MANY)
            return
        self.count += difference
        logger.errors.info(f"{self.count} workers from now on")
        if difference > 0:
            self.start(self.count - 1)
            return
        self.due.pop(self.count, None)
        for pid in [pid for pid, (place, _) in self.workers.items() if place == self.count]:
            self.retire(pid)

    # Changes: new workers replace all others

    def reload(self) -> None:
        """Read the configuration again, and have new workers serve with it (HUP)."""
        if self.stopping:
            return
        if self.new:
            self.undo()
        before = self.factory.copy()
        if not self.factory.renew():
            return
        for pid in [pid for pid, (place, _) in self.workers.items() if place == COMPANION]:
            os.kill(pid, signal.SIGHUP)
        self.change(before)

    def change(self, before: ProcessorFactory) -> None:
        """Start new workers in all places; the old ones retire once the new ones are ready."""
        self.before = before
        self.old = {pid for pid, (place, _) in self.workers.items() if place not in (LEAVING, COMPANION)}
        for place in range(self.count):
            self.due.pop(place, None)
            self.start(place)
        serving = {pid for pid, (place, _) in self.workers.items() if place not in (LEAVING, COMPANION)}
        self.new = serving - self.old
        self.coming = set(self.new)
        if len(self.new) < self.count:
            self.give_up("not all could be forked")

    def read_reports(self) -> None:
        """Read what workers report."""
        for pid, word, text in self.reports.read():
            if word == "source" and self.sources is not None:
                self.sources.add(text)
            elif word == "failed":
                self.failures[pid] = text
            elif word == "ready":
                self.coming.discard(pid)
                self.awaited.discard(pid)

    def settle(self) -> None:
        """Retire the old workers: all new ones serve."""
        self.new.clear()
        for pid in sorted(self.old):
            self.retire(pid)
            if (
                self.sources is not None
            ):  # else a browser's kept connection would show the old version once more
                self.hurry[pid] = time.monotonic() + HURRY
        if self.sources is not None:
            logger.errors.info("the new workers serve")
        self.factory.report_applications()

    def give_up(self, reason: str) -> None:
        """Go on with the old workers: a new one cannot serve."""
        goes_on = "the old ones go on" if self.old else "no old one is left"
        logger.errors.error(f"the new workers cannot start, {goes_on}: {reason}")
        self.undo()

    def undo(self) -> None:
        """End the new workers before they have replaced the old ones, and go back to the old configuration."""
        self.factory.restored(self.before)
        for pid in sorted(self.new):
            self.retire(pid)
        self.old.clear()
        held = {place for place, _ in self.workers.values()}
        for place in set(range(self.count)) - held:  # an old worker has ended meanwhile
            self.due[place] = time.monotonic() + MAX_BACK_OFF

    # Sources (setting `reload`)

    def watch_sources(self) -> None:
        """Begin to watch the current directory, where the program most likely is, and the settings file."""
        from ewe.gateway import programs  # noqa: F401  so that orphans.adopt() knows that there may be programs
        from ewe.server.sources import Sources

        self.sources = Sources()
        self.sources.watch_file(self.factory.config.file)
        for directory in sources_of_this_process():
            self.sources.add(directory)

    def look_at_sources(self) -> None:
        """Have new workers serve if a source has changed."""
        if self.sources is None or self.stopping or not (changed := self.sources.report()):
            return
        names = ", ".join(os.path.relpath(path) for path in changed[:3])
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        logger.errors.info(f"{names}{more} changed: starting new workers")
        if self.new:
            self.undo()
        before = self.factory.copy()
        if self.factory.config.file not in changed or self.factory.renew():
            self.change(before)

    # Workers

    def start_xswitch(self) -> None:
        """Start X-Switch."""
        assert self.factory.xswitch_process is not None
        command = self.factory.xswitch_process.command(self.factory.config)
        try:
            # HUP and USR1 stay blocked until X-Switch has handlers for them: until then they would kill it.
            pid = os.posix_spawn(
                command[0], command, os.environ, setsigmask=(signal.SIGHUP, signal.SIGUSR1),
                setsigdef=(*STOPS, *ORDERS), setsid=False,
            )  # fmt: skip
        except OSError as reason:
            logger.errors.error(f"{command[0]} cannot be started: {reason.strerror}; trying again in 1 s")
            self.due[COMPANION] = time.monotonic() + 1
        else:
            self.workers[pid] = (COMPANION, time.monotonic())

    def end_xswitch(self) -> None:
        """Stop X-Switch, now that no worker needs it."""
        if not self.xswitch_told:
            self.xswitch_told = True
            for pid in self.workers:
                os.kill(pid, signal.SIGTERM)

    def start(self, place: int) -> None:
        """Fork a worker; the child never returns."""
        if place == COMPANION:
            return self.start_xswitch()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS | {signal.SIGHUP})  # until the child has its handlers
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
        # First: no signal may be written to a descriptor that is reused for another file.
        signal.set_wakeup_fd(-1)
        for descriptor in (self.held, self.wake, self.wake_writer):
            os.close(descriptor)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if self.factory.xswitch_process:
            become(self.factory.xswitch_process.user, self.factory.config.group)
        if self.factory.imports_in_workers and (failure := self.load_program()):
            self.report(failure)
            return UNUSABLE
        return Worker(self.factory, self.sockets, str(place + 1), self.lifeline, self.report).run()

    def report(self, failure: str) -> None:
        """Report from a worker that it can serve, or why it cannot."""
        self.reports.send(failure, sources_of_this_process() if self.sources is not None else ())

    def load_program(self) -> str:
        """Import applications as they are now, in this worker; return why they cannot be imported, or ""."""
        # A module may take long, or never end: signals end this process meanwhile, since nothing is served yet.
        for number in (*STOPS, signal.SIGHUP):
            signal.signal(number, lambda *_: os._exit(STOPPED))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS | {signal.SIGHUP})
        try:
            self.factory.load()
        except (StartError, UnknownModel) as reason:
            return str(reason)
        except Exception as reason:
            return f"a worker cannot import: {in_words(reason)}"
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, STOPS | {signal.SIGHUP})
        return ""

    def start_due(self) -> None:
        """Start the workers that are due, and hurry those that are to end."""
        now = time.monotonic()
        for place in [place for place, when in self.due.items() if when <= now and not self.stopping]:
            del self.due[place]
            self.start(place)
        for pid in [pid for pid, when in self.hurry.items() if when <= now and not self.stopping]:
            del self.hurry[pid]
            os.kill(pid, signal.SIGTERM)

    def reap(self) -> None:
        """Reap the workers that have ended, and plan their replacement."""
        for pid, raw in orphans.reap(
            self.workers
        ):  # one at a time: a signal to one that is reaped would fail
            place, born = self.workers.pop(pid)
            self.read_reports()  # this worker's, too
            self.hurry.pop(pid, None)
            code = os.waitstatus_to_exitcode(raw)
            failure = self.failures.pop(pid, "")
            self.awaited.discard(pid)
            if code < 0:
                orphans.end(self.workers)
            if self.stopping:
                if place == COMPANION and code == -signal.SIGTERM:
                    code = 0  # X-Switch was told to stop before it had a handler for that: it had no request
                self.status = self.status or (CUT if code else STOPPED)
            elif pid in self.coming:
                self.coming.discard(pid)
                self.new.discard(pid)
                self.give_up(failure or f"worker {place + 1} (pid {pid}) {how_ended(code)}")
            elif pid in self.old:
                self.old.discard(pid)  # a new worker is coming in its place
            elif place != LEAVING:
                self.new.discard(pid)
                # Without its report it has not said so: a library has called exit(3).
                if pid in self.first and code == UNUSABLE and failure:
                    self.unusable = failure
                    self.stop(signal.SIGTERM)
                    continue
                if failure:
                    logger.errors.error(failure)
                self.replace(place, pid, code, time.monotonic() - born < YOUNG)

    def replace(self, place: int, pid: int, code: int, was_young: bool) -> None:
        """Plan a new worker for the place of one that ended. If workers die young there, wait longer each time."""
        name = "X-Switch" if place == COMPANION else f"worker {place + 1}"
        if code == STOPPED:
            self.back_off[place] = 0.0
            logger.errors.debug(f"{name} (pid {pid}) retired")
        else:
            longer = min(max(0.25, self.back_off.get(place, 0.0) * 2), MAX_BACK_OFF)
            self.back_off[place] = longer if was_young else 0.0
            wait = f" in {longer:g} s" if was_young else ""
            logger.errors.error(f"{name} (pid {pid}) {how_ended(code)}; starting another{wait}")
        self.due[place] = time.monotonic() + self.back_off[place]


def how_ended(code: int) -> str:
    """Return an exit code of os.waitstatus_to_exitcode() in words."""
    return f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"


def sources_of_this_process() -> list[str]:
    """Return the directories from which this process has loaded the program (reload)."""
    from ewe.server.sources import directories

    return directories()
