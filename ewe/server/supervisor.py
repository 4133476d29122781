"""The supervisor: replaces worker processes that die, and handles signals for all of them.

One process opens the sockets and forks the workers. All workers accept from the same listening sockets: the kernel
gives each connection to one of them. The supervisor serves no client itself. It waits, and replaces workers:

    fork ──▶ worker in slot 0     if workers die young, the wait before the next start grows
         ──▶ worker in slot 1     HUP: new workers start in every slot, then the old ones retire
         ──▶ worker in slot 2     TTIN: one more slot; TTOU: one less, and its worker retires
         ──▶ ...                  all are busy: more slots; some stay idle: their workers retire (growing.py)

worker_table.py lists the states of a worker, and the method of this module that each event calls. worker_slots.py
holds the workers, their slots and their generations. The server has a state, too: SIGNALS and TASKS below list, for
each state, the methods that a signal or the time calls. run() only follows these tables.

During a change of workers (HUP; with `reload` also a changed source file, ewe.server.sources) the server never
stops serving. The old workers go on until every new one has reported that it serves (ewe.server.reports). If a new
worker reports that it cannot serve, the new ones end, the factory gets its old configuration back, and the old
workers stay:

    begin_change() ──▶ new workers start ──┬─ all serve ──────▶ end_complete_change(): the old ones retire
                                           └─ one has failed ─▶ give_up(): the new ones end

Possible failures: a signal may arrive at any moment, also between fork() and the child's first line. Signals
therefore stay blocked until the child has installed its handlers. The supervisor's own handler only notes a signal,
and run() acts on it. If the supervisor itself is killed, the kernel closes its end of a pipe, the lifeline. Each
worker watches the lifeline together with its sockets, and then finishes. On Linux the kernel also sends it SIGTERM.

If the model needs an X-Switch, the supervisor runs it as one more process: the first to start, the last to stop.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from ewe import logger
from ewe.child_processes import how_ended
from ewe.gateway import orphans
from ewe.processors.seats import Seat
from ewe.server.change import Change
from ewe.server.new_worker import NewWorker, sources_of_this_process
from ewe.server.noted_signals import NotedSignals
from ewe.server.reports import Reports
from ewe.server.stopping import Stopping
from ewe.server.worker import (
    COUNT_IS_FIXED,
    FAILED,
    HANDLED,
    STOPPED,
    STOPS,
    UNUSABLE,
    ignore_signals,
)
from ewe.server.worker_slots import WorkerSlots
from ewe.server.worker_table import COMING, FIRST, SERVING, STARTING, XSWITCH, Event, WorkerProcess
from ewe.streams import systemd
from ewe.streams.listener import StartError, poll_of

if TYPE_CHECKING:
    import socket

    from ewe.server.processor_factory import ProcessorFactory
    from ewe.server.sources import SourceWatcher
    from ewe.server.worker_table import State

LOG_EVERY_S = 10.0  # seconds between two log lines about a fork that fails
HURRY_S = 0.5  # after a change of sources, old workers keep idle connections open for this time


class ServerState(Enum):
    """The states of the server."""

    STEADY = "each slot in use has a worker, or a planned start"
    CHANGING = "begin_change() has started the next generation; it has not ended, and has not failed"
    STOPPING = "stop() was called: the workers end, and none is started"


STEADY, CHANGING, STOPPING = ServerState
RUNNING = (STEADY, CHANGING)
ALWAYS = (STEADY, CHANGING, STOPPING)


class SignalAction(NamedTuple):
    """The effect of a signal: in these states, a method of Supervisor is called with these arguments."""

    states: tuple[ServerState, ...]
    method: str
    arguments: tuple[int, ...] = ()


class Task(NamedTuple):
    """Work of the supervisor: in these states, each turn of run() calls a method of Supervisor.

    next_at: the method that returns the time.monotonic() of its next work; "": only a signal or a report makes work
    for it.
    """

    states: tuple[ServerState, ...]
    method: str
    next_at: str = ""


# SIGCHLD is not here: it only ends the wait, since each turn of run() reaps.
SIGNALS: dict[int, SignalAction] = {
    signal.SIGHUP: SignalAction(RUNNING, "reload"),
    signal.SIGTTIN: SignalAction(RUNNING, "change_count", (1,)),
    signal.SIGTTOU: SignalAction(RUNNING, "change_count", (-1,)),
    signal.SIGUSR1: SignalAction(ALWAYS, "reopen_logs"),
    signal.SIGUSR2: SignalAction(ALWAYS, "log_status"),
    **{signum: SignalAction(ALWAYS, "stop", (signum,)) for signum in STOPS},
}

# The order counts: if one method begins a change or a stop, the next ones belong to the new state.
TASKS = (
    Task(ALWAYS, "handle_signals"),
    Task(ALWAYS, "reap"),
    Task((CHANGING,), "end_complete_change"),
    Task(RUNNING, "reload_changed_sources", next_at="next_look_at_sources"),
    Task(RUNNING, "start_due", next_at="next_start_at"),
    Task(ALWAYS, "grow_or_shrink", next_at="next_look_at_workers"),
    Task((STOPPING,), "end_xswitch_last"),
    Task((STOPPING,), "kill_overdue", next_at="kill_at"),
)


class Supervisor(WorkerSlots):
    """Keeps a worker process running in each slot in use. change: the change in progress."""

    def __init__(self, factory: ProcessorFactory, sockets: list[socket.socket]) -> None:
        super().__init__(sockets, factory.workers)
        self.factory = factory
        self.sockets = sockets
        self.change: Change | None = None
        self.noted = NotedSignals()
        self.stopping = Stopping()
        self.log_from = 0.0
        self.reports = Reports()
        self.sources: SourceWatcher | None = None
        if factory.config.reload:
            self.watch_sources()

    @property
    def state(self) -> ServerState:
        """The state of the server."""
        if self.stopping:
            return STOPPING
        return STEADY if self.change is None else CHANGING

    def run(self, ready: Callable[[], None]) -> int:
        """Start the workers, and replace those that die, until a stop; return the exit status.

        ready: called when the workers have been started; if they import applications, when all of them serve.
        Raises StartError if one of the first workers cannot serve.
        """
        # The kernel closes this process's end when the process dies, for any reason. Workers notice it, and finish.
        self.lifeline, self.lifeline_writer = os.pipe()
        self.noted.listen((signal.SIGCHLD, *SIGNALS))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        orphans.adopt_orphans()
        gc.collect()
        gc.freeze()  # workers share the memory of these objects as long as no garbage collector writes to it
        if self.factory.xswitch_process:
            self.start_xswitch()
        for slot in sorted(self.slots_in_use):
            self.start(slot, FIRST)
        is_ready = not self.factory.imports_in_workers
        if is_ready:
            ready()
        while self.workers or not self.stopping:
            if not is_ready and not self.stopping and self.has_begun():
                is_ready = True
                ready()
            self.wait()
            for task in TASKS:
                if self.state in task.states:
                    getattr(self, task.method)()
        ignore_signals()
        logger.report_losses()  # for a worker that was killed
        if self.stopping.unusable:
            raise StartError(self.stopping.unusable)
        return self.stopping.status

    # Signals

    def wait(self) -> None:
        """Wait for a signal, for a report, for a client, or for the next moment of a task."""
        moments = [
            getattr(self, each.next_at)() for each in TASKS if each.next_at and self.state in each.states
        ]
        next_moment = min((each for each in moments if each is not None), default=None)
        seconds = None if next_moment is None else max(0.0, next_moment - time.monotonic())
        if not self.noted:
            clients = self.growing.watched() if self.state is STEADY else ()
            # poll(2), since an inherited socket (fd://N) may have a number that is too high for select(2)
            watched = poll_of([self.noted.reader, self.reports.reader, *(sock.fileno() for sock in clients)])
            ready = dict(watched.poll(None if seconds is None else seconds * 1000))
            if self.noted.reader in ready:
                self.noted.drain()
            if self.reports.reader in ready:
                self.read_reports()
            if any(sock.fileno() in ready for sock in clients):
                self.growing.plan_look()

    def handle_signals(self) -> None:
        """Call the method that SIGNALS names for each noted signal that has an effect in the server's state."""
        for signum in self.noted.take():
            action = SIGNALS.get(signum)
            if action is not None and self.state in action.states:
                getattr(self, action.method)(*action.arguments)

    def reopen_logs(self) -> None:
        """USR1: open the log files again, here, in the workers and in X-Switch."""
        self.factory.reopen_logs()
        self.signal_xswitch(signal.SIGUSR1)
        self.signal_workers(signal.SIGUSR1)

    def log_status(self) -> None:
        """USR2: log the state of the supervisor; each worker logs its own."""
        logger.errors.tell(
            f"status: supervisor of {len(self.slots_in_use)} workers: {sorted(self.workers)},"
            f" {logger.lost_lines()} log lines lost"
        )
        self.signal_workers(signal.SIGUSR2)

    def signal_workers(self, signum: int) -> None:
        """Send a signal to all workers. X-Switch gets only KILL: end_xswitch_last() stops it."""
        for each in self.workers.values():
            if each.slot != XSWITCH or signum == signal.SIGKILL:
                self.send_signal(each, signum)

    def signal_xswitch(self, signum: int) -> None:
        """Send a signal to X-Switch, if there is one."""
        for each in self.workers.values():
            if each.slot == XSWITCH:
                self.send_signal(each, signum)

    def send_signal(self, worker: WorkerProcess, signum: int) -> None:
        """Send a signal to a worker."""
        os.kill(worker.pid, signum)  # the worker is not reaped yet, so no other process has its id

    def stop(self, signum: int) -> None:
        """Let all workers finish their requests; at QUIT, or at a second INT, abort the requests."""
        if not self.stopping:
            systemd.notify("STOPPING=1")
        self.signal_workers(self.stopping.begin_or_hasten(signum, self.factory.config.grace))

    def kill_at(self) -> float:
        """Return the time.monotonic() at which the stop takes too long."""
        return self.stopping.deadline

    def kill_overdue(self) -> None:
        """Kill the workers if the stop takes too long."""
        if self.stopping.is_overdue():
            self.signal_workers(signal.SIGKILL)
            self.stopping.note_kill()

    def change_count(self, difference: int) -> None:
        """TTIN, TTOU: change the number of workers, or both ends of its range, by one. At least one stays."""
        if self.factory.serves_in_one:
            logger.errors.warning(COUNT_IS_FIXED)
            return
        span = self.growing.span.shifted(difference)
        if span == self.growing.span:
            return
        self.growing.span = span
        logger.errors.info(f"{span} workers from now on")
        self.keep_within_span()

    def keep_within_span(self) -> None:
        """Start or retire workers so that their number is within the limits."""
        span = self.growing.span
        self.start_more(span.least - len(self.slots_in_use))
        for slot in self.slots_beyond(span.most):
            self.retire_slot(slot)

    def start_more(self, count: int) -> None:
        """Start some workers, each in the first slot that is not in use. If the system refuses one, stop there."""
        for slot in self.free_slots(count):
            self.slots_in_use.add(slot)
            self.start(slot)
            if self.slots[slot].due_at is not None:  # this slot tries again, and no others beside it
                return

    def retire_slot(self, slot: int) -> None:
        """Give up a slot, and retire its worker; during a change, both of its workers."""
        self.give_up_slot(slot)
        for each in self.workers_in_slots():
            if each.slot == slot:
                self.handle_event(each, Event.RETIRE)

    # Growth

    def next_look_at_workers(self) -> float | None:
        """Return the time.monotonic() of the next look. During a change or a stop there is none."""
        return self.growing.next_look_at() if self.state is STEADY else None

    def grow_or_shrink(self) -> None:
        """If it is time, start more workers since all are busy, or retire some that were idle for long.

        In each turn, and each state, tell the workers whether more of them start.
        """
        moment = self.next_look_at_workers()
        if moment is not None and moment <= time.monotonic():
            missing, not_needed = self.plan_growth()
            self.start_more(missing)
            for each in not_needed:
                self.retire_slot(each.slot)
            if missing or not_needed:
                why = "all were busy" if missing else f"{len(not_needed)} were idle"
                logger.errors.info(f"{len(self.slots_in_use)} workers, since {why}")
        self.growing.seats.tell_whether_more_start(self.state is STEADY and self.may_start_more())

    # Events of workers: the methods that worker_table.TABLE names, and their callers

    def handle_event(self, worker: WorkerProcess, event: Event, code: int = 0) -> None:
        """Call the method that worker_table.TABLE names for an event. code: the exit code of an ended worker."""
        getattr(self, worker.apply_event(event))(worker, code)

    def do_nothing(self, worker: WorkerProcess, code: int) -> None:
        """Do nothing: the change of state is enough."""

    def tell_to_retire(self, worker: WorkerProcess, code: int) -> None:
        """Tell a worker to end when its connections have ended; tell X-Switch to stop."""
        self.send_signal(worker, signal.SIGTERM if worker.slot == XSWITCH else signal.SIGHUP)

    def tell_to_finish(self, worker: WorkerProcess, code: int) -> None:
        """Tell a worker that retires to close its idle connections."""
        self.send_signal(worker, signal.SIGTERM)

    def stop_unusable(self, worker: WorkerProcess, code: int) -> None:
        """Stop the server, since one of the first workers cannot serve; keep its reason."""
        self.stopping.unusable = worker.failure
        self.stop(signal.SIGTERM)

    def note_status(self, worker: WorkerProcess, code: int) -> None:
        """Note the exit status of a worker that has ended during the stop."""
        if worker.slot == XSWITCH and code == -signal.SIGTERM:
            code = STOPPED  # TERM came before X-Switch had its handlers, so no request was aborted
        if code == UNUSABLE and worker.failure:
            code = STOPPED  # the worker's import failed during the stop, so no request was aborted
        self.stopping.note_status(code)

    def replace(self, worker: WorkerProcess, code: int) -> None:
        """Plan a new worker for the slot of one that has served and has ended."""
        if code == STOPPED:
            self.slots[worker.slot].plan_at_once()
            logger.errors.debug(f"{worker.name} (pid {worker.pid}) retired")
        else:
            self.replace_dead(worker, code)

    def replace_dead(self, worker: WorkerProcess, code: int) -> None:
        """Plan a new worker for the slot of one that has died. If workers die young there, the wait grows.

        A worker that ends before it serves has died with each exit status: a module may call os._exit(0).
        """
        if worker.failure:
            logger.errors.error(worker.failure)
        seconds = self.slots[worker.slot].plan_after_death(worker.born)
        wait = f" in {seconds:g} s" if seconds else ""
        logger.errors.error(f"{worker.name} (pid {worker.pid}) {how_ended(code)}; starting another{wait}")

    # Changes: the next generation replaces the workers

    def reload(self) -> None:
        """HUP: read the configuration again, and start new workers with it."""
        old_factory = self.factory.copy()
        if not self.factory.renew():  # the configuration has an error; a change in progress goes on
            return
        self.signal_xswitch(signal.SIGHUP)
        self.begin_change(old_factory)

    def begin_change(self, old_factory: ProcessorFactory) -> None:
        """Start the next generation in all slots. The old workers retire when all new workers serve.

        old_factory: a copy of the factory before it was renewed. A change in progress is superseded.
        """
        if self.change is not None:  # its workers never served, so a failure returns to the state before it
            old_factory, superseded = self.change.factory, old_factory
            self.leave_change(self.change, superseded)
        self.change = Change(old_factory, frozenset(self.slots_in_use), self.growing.span)
        if self.factory.workers != old_factory.workers:
            self.use_span(self.factory.workers)
        self.cancel_starts()
        for slot in sorted(self.slots_in_use):
            self.start(slot)
        if self.is_restarting():
            self.log_and_undo_change("not all could be forked")

    def end_complete_change(self) -> None:
        """End the change once the next generation serves in every slot: retire the old workers."""
        if self.change is None or not self.next_generation_serves():
            return
        self.generation += 1
        self.change = None
        for each in self.workers_in_slots():
            if each.generation < self.generation:
                self.handle_event(each, Event.RETIRE)
                if self.sources is not None:
                    # Otherwise a browser's open connection would get one more answer from the old version.
                    each.hurry_at = time.monotonic() + HURRY_S
        if self.sources is not None:
            logger.errors.info("the new workers serve")
        self.factory.report_applications()

    def give_up(self, worker: WorkerProcess, code: int) -> None:
        """Go on with the old workers, since a new one has ended before it could serve."""
        self.log_and_undo_change(worker.failure or f"{worker.name} (pid {worker.pid}) {how_ended(code)}")

    def log_and_undo_change(self, reason: str) -> None:
        """Log why a change has failed, and undo it."""
        old = [each for each in self.workers_in_slots() if each.generation <= self.generation]
        old_workers = "the old ones go on" if old else "no old one is left"
        logger.errors.error(f"the new workers cannot start, {old_workers}: {reason}")
        undone = self.factory.config
        self.undo_change()
        self.factory.restore_programs(undone)

    def undo_change(self) -> None:
        """Retire the next generation, and restore the old configuration."""
        if (change := self.change) is None:
            return
        self.leave_change(change, self.factory)
        self.factory.undo_renewal(change.factory)
        self.plan_missing_starts()

    def leave_change(self, change: Change, factory: ProcessorFactory) -> None:
        """Retire the workers of a change. If it has changed their number, return to the slots and span before it.

        factory: the factory with the configuration of the change.
        """
        for each in self.next_generation():
            self.handle_event(each, Event.RETIRE)
        self.cancel_starts()  # first: the slots that only the change uses have starts, too
        if factory.workers != change.factory.workers:  # otherwise TTIN and TTOU have changed them, and count
            self.slots_in_use, self.growing.span = set(change.slots), change.span
        self.change = None

    def read_reports(self) -> None:
        """Read the workers' reports, and act on them."""
        for pid, word, text in self.reports.read():
            worker = self.workers.get(pid)
            if word == "source" and self.sources is not None:
                self.sources.add(text)
            elif worker is None:
                continue
            elif word == "failed":
                worker.failure = text
            elif word == "ready":
                self.handle_event(worker, Event.READY)

    # Sources (setting `reload`)

    def watch_sources(self) -> None:
        """Begin to watch the settings file, and the directories of the program, with the current directory."""
        from ewe.gateway import programs  # noqa: F401  so that orphans.adopt_orphans() knows that programs may run
        from ewe.server.sources import SourceWatcher

        self.sources = SourceWatcher()
        self.sources.watch_file(self.factory.config.file)
        for directory in sources_of_this_process():
            self.sources.add(directory)

    def next_look_at_sources(self) -> float | None:
        """Return the time.monotonic() of the next look at the sources; None if they are not watched."""
        return None if self.sources is None else self.sources.due_at

    def reload_changed_sources(self) -> None:
        """If source files have changed, log their names and begin a change to new workers."""
        if self.sources is None or not (changed := self.sources.take_changes()):
            return
        first = changed[:3]
        with suppress(FileNotFoundError):  # the current directory was removed, too
            first = [os.path.relpath(path) for path in first]
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        logger.errors.info(f"{', '.join(first)}{more} changed: starting new workers")
        old_factory = self.factory.copy()
        # Only a changed settings file is read again. If it has an error, renew() logs that, and the workers stay.
        if self.factory.config.file not in changed or self.factory.renew():
            self.begin_change(old_factory)

    # Workers

    def start_xswitch(self) -> None:
        """Start X-Switch."""
        assert self.factory.xswitch_process is not None
        from ewe.server.xswitch_process import inherited_trace

        trace = None
        try:
            trace = inherited_trace(self.factory.config.trace)
            command = self.factory.xswitch_process.command(self.factory.config, trace)
            # HUP and USR1 stay blocked until X-Switch has handlers for them. Without a handler they would kill it.
            pid = os.posix_spawn(
                command[0], command, os.environ, setsigmask=(signal.SIGHUP, signal.SIGUSR1),
                setsigdef=(signal.SIGCHLD, *SIGNALS), setsid=False,
            )  # fmt: skip
        except OSError as reason:
            logger.errors.error(f"X-Switch cannot be started: {reason.strerror}; trying again in 1 s")
            self.slots[XSWITCH].plan(1)
        else:
            self.workers[pid] = WorkerProcess(pid, XSWITCH, self.generation, SERVING)
        finally:
            if trace is not None:
                os.close(trace)

    def end_xswitch_last(self) -> None:
        """Stop X-Switch if the last worker has ended."""
        if self.has_only_xswitch():
            for each in self.workers.values():
                if each.state is SERVING:
                    self.handle_event(each, Event.RETIRE)

    def start(self, slot: int, state: State = STARTING) -> None:
        """Start a worker in a slot. During a change, it belongs to the next generation."""
        if slot == XSWITCH:
            return self.start_xswitch()
        generation = self.generation
        if self.change is not None:
            generation, state = generation + 1, COMING
        seat = self.growing.seats.take_seat()
        pid = self.fork(slot, seat)
        if pid > 0:
            self.workers[pid] = WorkerProcess(pid, slot, generation, state, seat)
        else:
            self.growing.seats.free_seat(seat)

    def fork(self, slot: int, seat: int) -> int:
        """Fork a worker; return its process id, or -1 if the fork fails. The child never returns."""
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)  # until the child has its handlers
        try:
            pid = os.fork()
        except OSError as reason:
            if (now := time.monotonic()) >= self.log_from:
                self.log_from = now + LOG_EVERY_S
                logger.errors.error(f"cannot fork a worker: {reason.strerror}; trying again each second")
            self.slots[slot].plan(1)
            pid = -1
        if pid == 0:
            status = FAILED
            try:
                status = self.new_worker(slot, seat)
            finally:
                os._exit(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        return pid

    def new_worker(self, slot: int, seat_number: int) -> int:
        """Run a worker in the forked process; return its exit status."""
        seat = Seat(self.growing.seats.map, seat_number)
        tells_sources = self.sources is not None
        new = NewWorker(self.factory, self.sockets, self.lifeline, self.reports, tells_sources, seat)
        try:
            return new.run(str(slot + 1), (self.lifeline_writer, *self.noted.pipe))
        except Exception:  # such as one of a model's own __init__()
            logger.errors.exception(f"worker {slot + 1} cannot start")
            return FAILED

    def start_due(self) -> None:
        """Start the workers that are due, and hurry the retiring ones whose time is over."""
        now = time.monotonic()
        for slot, child in list(self.slots.items()):
            if child.is_due(now):
                child.due_at = None
                self.start(slot)
        for each in list(self.workers.values()):
            if each.is_to_hurry(now):
                self.handle_event(each, Event.HURRY)

    def reap(self) -> None:
        """Reap the workers that have ended, and act on their exit status."""
        # Each worker leaves `workers` before the next one is reaped: a signal to a reaped process would fail.
        for pid, wait_status in orphans.reap(self.workers):
            self.read_reports()  # the report of this worker may be unread
            worker = self.workers.pop(pid)
            if worker.slot != XSWITCH:  # X-Switch has no seat
                self.growing.seats.free_seat(worker.seat)
            code = os.waitstatus_to_exitcode(wait_status)
            if code < 0:
                orphans.kill_orphans(self.workers)
            self.handle_end(worker, code)

    def handle_end(self, worker: WorkerProcess, code: int) -> None:
        """Determine the event that a worker's end is, and act on it."""
        if self.stopping:
            event = Event.AT_STOP
        elif self.change is not None and worker.occupies_slot and self.is_old(worker):
            event = Event.SUPERSEDED
        elif code == UNUSABLE and worker.failure:
            event = Event.UNUSABLE  # the status alone is no proof: a library may have called exit(3)
        else:
            event = Event.DIED
        self.handle_event(worker, event, code)
