"""The supervisor: keeps a number of worker processes alive, and handles signals for all of them.

One process opens the sockets and forks the workers. All workers accept from the same listening sockets: the kernel
gives each connection to one of them. The supervisor serves no client itself. It waits, and replaces workers:

    fork ──▶ worker in place 0     a worker dies young: its place is filled later and later
         ──▶ worker in place 1     HUP: new workers start in every place, then the old ones retire
         ──▶ worker in place 2     TTIN: one more place; TTOU: the last place is given up

worker_table.py says what a worker can go through, and which method here each event calls.

A change of workers (HUP; with `reload` also a changed source file, ewe.server.sources) never leaves the server
without one that serves. The old workers go on until every new one has reported that it serves (ewe.server.reports).
If one reports that it cannot, the new ones end, the old configuration comes back, and the old workers stay:

    change() ──▶ new workers start ──┬─ all serve ──────▶ settle(): the old ones retire
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
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from ewe import logger
from ewe.gateway import orphans
from ewe.server import systemd
from ewe.server.children import LONGEST_S, Place, how_ended
from ewe.server.new_worker import NewWorker, sources_of_this_process
from ewe.server.reports import Reports
from ewe.server.worker import (
    CUT,
    FAILED,
    LAST_MOMENT,
    ONLY_MANY,
    STOPPED,
    STOPS,
    UNUSABLE,
    ignore_stops,
)
from ewe.server.worker_table import (
    BEGINNING,
    COMING,
    RETIRING,
    SERVING,
    STARTING,
    XSWITCH,
    Event,
    WorkerProcess,
)
from ewe.streams.descriptors import nonblocking_pipe
from ewe.streams.listener import StartError

if TYPE_CHECKING:
    import socket

    from ewe.server.processor_factory import ProcessorFactory
    from ewe.server.sources import Sources
    from ewe.server.worker_table import State

ORDERS = (signal.SIGCHLD, signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR2)
ONCE = (
    signal.SIGCHLD,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)  # asked twice, they do the same as once
HURRY_S = 0.5  # that old workers have for connections without a request, once sources have changed


class Supervisor:
    """Keeps factory.workers processes alive. Each has a place, from 0."""

    def __init__(self, factory: ProcessorFactory, sockets: list[socket.socket]) -> None:
        self.factory = factory
        self.sockets = sockets
        self.count = factory.workers
        self.workers: dict[int, WorkerProcess] = {}  # by process id
        self.places: defaultdict[int, Place] = defaultdict(Place)  # by number, and XSWITCH
        self.generation = 1  # the newest one that serves
        # While the next generation comes: what serves until then
        self.changed_from: ProcessorFactory | None = None
        self.noted: list[int] = []  # signals that have arrived and wait for run()
        self.interrupts = 0
        self.stopping = False
        self.unusable = ""  # why one of the first workers cannot serve
        self.reports = Reports()
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
            self.start_xswitch()
        for place in range(self.count):
            self.start(place, BEGINNING)
        is_ready = not self.factory.imports_in_workers
        if is_ready:
            ready()
        while self.workers or not self.stopping:
            if not is_ready and not self.stopping and not self.are_any(BEGINNING):
                is_ready = True
                ready()
            self.wait()
            for noted in self.take_noted():
                self.act(noted)
            self.reap()
            if self.is_complete() and not self.stopping:
                self.settle()
            self.look_at_sources()
            self.start_due()
            if self.stopping and all(each.place == XSWITCH for each in self.workers.values()):
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

        if self.stopping:
            moments = [self.deadline]
        else:
            plans = [each.due for each in self.places.values()]
            plans += [each.hurry_at for each in self.workers.values() if each.state is RETIRING]
            moments = [when for when in plans if when is not None]
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
                self.tell_xswitch(number)
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
        for each in self.workers.values():
            if each.place != XSWITCH or number == signal.SIGKILL:
                self.kill(each, number)

    def tell_xswitch(self, number: int) -> None:
        """Send a signal to X-Switch, if there is one."""
        for each in self.workers.values():
            if each.place == XSWITCH:
                self.kill(each, number)

    def kill(self, worker: WorkerProcess, number: int) -> None:
        """Send a signal to a worker."""
        os.kill(worker.pid, number)  # it is not reaped yet, so no other process has this number

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
        self.places[self.count].due = None
        for each in self.in_place():
            if each.place == self.count:
                self.happen(each, Event.RETIRE)

    # What happens to workers: the methods that worker_table.TABLE names, and who calls them

    def happen(self, worker: WorkerProcess, event: Event, code: int = 0) -> None:
        """Do what the table says for an event. code: the exit code of a worker that has ended."""
        getattr(self, worker.happen(event))(worker, code)

    def in_place(self) -> list[WorkerProcess]:
        """Return the workers that have their place: not X-Switch, and none that retires. By process id."""
        return sorted(
            (each for each in self.workers.values() if each.place != XSWITCH and each.in_place),
            key=lambda each: each.pid,
        )

    def are_any(self, state: State) -> bool:
        """Return whether a worker is in a state."""
        return any(each.state is state for each in self.workers.values())

    def do_nothing(self, worker: WorkerProcess, code: int) -> None:
        """The new state is all."""

    def tell_to_retire(self, worker: WorkerProcess, code: int) -> None:
        """Let a worker end as soon as its connections have ended; X-Switch stops."""
        self.kill(worker, signal.SIGTERM if worker.place == XSWITCH else signal.SIGHUP)

    def tell_to_finish(self, worker: WorkerProcess, code: int) -> None:
        """Have a worker that retires close its idle connections."""
        self.kill(worker, signal.SIGTERM)

    def stop_unusable(self, worker: WorkerProcess, code: int) -> None:
        """Stop: a first worker cannot serve, and says why."""
        self.unusable = worker.failure
        self.stop(signal.SIGTERM)

    def note_status(self, worker: WorkerProcess, code: int) -> None:
        """Note how a worker has ended that was told to stop."""
        if worker.place == XSWITCH and code == -signal.SIGTERM:
            code = 0  # X-Switch was told to stop before it had a handler for that: it had no request
        if code == UNUSABLE and worker.failure:
            code = 0  # it was still to import when the stop came, and could not: it had no request
        self.status = self.status or (CUT if code else STOPPED)

    def replace(self, worker: WorkerProcess, code: int) -> None:
        """Plan a new worker for the place of one that ended. If workers die young there, wait longer each time."""
        if worker.failure:
            logger.errors.error(worker.failure)
        place = self.places[worker.place]
        ended = f"{worker.name} (pid {worker.pid})"
        if code == STOPPED:
            place.plan_at_once()
            logger.errors.debug(f"{ended} retired")
        else:
            seconds = place.plan_after_death(worker.born)
            wait = f" in {seconds:g} s" if seconds else ""
            logger.errors.error(f"{ended} {how_ended(code)}; starting another{wait}")

    # Changes: the next generation replaces the workers

    def reload(self) -> None:
        """Read the configuration again, and have new workers serve with it (HUP)."""
        if self.stopping:
            return
        self.undo()
        before = self.factory.copy()
        if not self.factory.renew():
            return
        self.tell_xswitch(signal.SIGHUP)
        self.change(before)

    def change(self, before: ProcessorFactory) -> None:
        """Start the next generation in all places; the old workers retire once all of it serve.

        before: what the factory was before the change.
        """
        self.changed_from = before
        for place in range(self.count):
            self.places[place].due = None
            self.start(place)
        if any(self.places[place].due is not None for place in range(self.count)):
            self.take_back("not all could be forked")

    def coming(self) -> list[WorkerProcess]:
        """Return the workers of the next generation."""
        return [each for each in self.in_place() if each.generation > self.generation]

    def is_complete(self) -> bool:
        """Return whether a change is in progress, and the next generation serves in every place."""
        if self.changed_from is None:
            return False
        serving = {each.place for each in self.coming() if each.state is SERVING}
        return serving.issuperset(range(self.count)) and not self.are_any(COMING)

    def settle(self) -> None:
        """Retire the old workers: the next generation serves."""
        self.generation += 1
        self.changed_from = None
        for each in self.in_place():
            if each.generation < self.generation:
                self.happen(each, Event.RETIRE)
                if self.sources is not None:
                    # Else a browser's kept connection would show the old version once more.
                    each.hurry_at = time.monotonic() + HURRY_S
        if self.sources is not None:
            logger.errors.info("the new workers serve")
        self.factory.report_applications()

    def give_up(self, worker: WorkerProcess, code: int) -> None:
        """Go on with the old workers: a new one has ended before it could serve."""
        self.take_back(worker.failure or f"{worker.name} (pid {worker.pid}) {how_ended(code)}")

    def take_back(self, reason: str) -> None:
        """Log why a change cannot be, and undo it."""
        old = [each for each in self.in_place() if each.generation <= self.generation]
        goes_on = "the old ones go on" if old else "no old one is left"
        logger.errors.error(f"the new workers cannot start, {goes_on}: {reason}")
        self.undo()

    def undo(self) -> None:
        """If a change is in progress, end its workers and go back to the old configuration."""
        if self.changed_from is None:
            return
        self.factory.restored(self.changed_from)
        for each in self.coming():
            self.happen(each, Event.RETIRE)
        self.changed_from = None
        held = {each.place for each in self.in_place()}
        for place in range(self.count):
            self.places[place].due = None
            if place not in held:  # an old worker has ended meanwhile
                self.places[place].plan(LONGEST_S)

    def read_reports(self) -> None:
        """Read what workers report."""
        for pid, word, text in self.reports.read():
            worker = self.workers.get(pid)
            if word == "source" and self.sources is not None:
                self.sources.add(text)
            elif worker is None:
                continue
            elif word == "failed":
                worker.failure = text
            elif word == "ready":
                self.happen(worker, Event.READY)

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
            self.places[XSWITCH].plan(1)
        else:
            self.workers[pid] = WorkerProcess(pid, XSWITCH, self.generation, SERVING)

    def end_xswitch(self) -> None:
        """Stop X-Switch, now that no worker needs it."""
        for each in self.workers.values():
            if each.state is SERVING:
                self.happen(each, Event.RETIRE)

    def start(self, place: int, state: State = STARTING) -> None:
        """Start a worker in a place: while a change is in progress, one of the next generation."""
        if place == XSWITCH:
            return self.start_xswitch()
        generation = self.generation
        if self.changed_from is not None:
            generation, state = generation + 1, COMING
        pid = self.fork(place)
        if pid > 0:
            self.workers[pid] = WorkerProcess(pid, place, generation, state)

    def fork(self, place: int) -> int:
        """Fork a worker and return its process id, -1 if that cannot be; the child never returns."""
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS | {signal.SIGHUP})  # until the child has its handlers
        try:
            pid = os.fork()
        except OSError as reason:
            logger.errors.error(f"cannot fork a worker: {reason.strerror}; trying again in 1 s")
            self.places[place].plan(1)
            pid = -1
        if pid == 0:
            status = FAILED
            try:
                status = self.new_worker(place)
            finally:
                os._exit(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS | {signal.SIGHUP})
        return pid

    def new_worker(self, place: int) -> int:
        """Be a worker, in the process that was forked; return its exit status."""
        new = NewWorker(self.factory, self.sockets, self.lifeline, self.reports, self.sources is not None)
        return new.run(str(place + 1), (self.held, self.wake, self.wake_writer))

    def start_due(self) -> None:
        """Start the workers that are due, and hurry those that are to end."""
        now = time.monotonic()
        for number, place in list(self.places.items()):
            if place.is_due(now) and not self.stopping:
                place.due = None
                self.start(number)
        for each in list(self.workers.values()):
            if each.is_to_hurry(now) and not self.stopping:
                self.happen(each, Event.HURRY)

    def reap(self) -> None:
        """Read the status of the workers that have ended."""
        for pid, raw in orphans.reap(self.workers):  # one by one: a signal to one that is reaped would fail
            self.read_reports()  # this worker's, too
            worker = self.workers.pop(pid)
            code = os.waitstatus_to_exitcode(raw)
            if code < 0:
                orphans.end(self.workers)
            self.ended(worker, code)

    def ended(self, worker: WorkerProcess, code: int) -> None:
        """Find out what the end of a worker means, and act on it."""
        if self.stopping:
            event = Event.AT_STOP
        elif self.changed_from is not None and worker.in_place and self.is_old(worker):
            event = Event.SUPERSEDED
        elif code == UNUSABLE and worker.failure:
            event = Event.UNUSABLE  # without its report it has not said so: a library has called exit(3)
        else:
            event = Event.DIED
        self.happen(worker, event, code)

    def is_old(self, worker: WorkerProcess) -> bool:
        """Return whether a worker is one that a change replaces; X-Switch never is."""
        return worker.place != XSWITCH and worker.generation <= self.generation
