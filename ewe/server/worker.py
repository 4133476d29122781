"""A worker: runs one processor in one process, and turns signals into its finish() and abort().

    TERM, first INT     finish(): accept no more, let requests in progress end, for `grace` seconds
                          └─ an alarm after `grace`: abort(): abort the connections, kill the programs
                               └─ an alarm after ABORT_TIMEOUT_S: _exit(), for a process that still hangs
    QUIT, second INT    abort() at once
    HUP                 read the configuration again; below a supervisor: retire, since a new worker has read it
    USR1                reopen the logs
    USR2                write status and stacks to the error log

SIGNALS lists the stages in which each signal has an effect, and its method. The next stage bounds the time of each
stage, so that a stop always ends. The exit status is STOPPED, ABORTED if requests were aborted, or FAILED if the
model itself failed.

Python may run a handler within another one. Signals that come faster than they are handled would fill the stack.
HUP, USR1, TTIN and TTOU therefore wait for each other, and several of one that wait count once (on_signal()).
A stop and a status wait for none: a reload may hang.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from ewe import logger
from ewe.streams import systemd
from ewe.streams.listener import Listener

if TYPE_CHECKING:
    import socket

    from ewe.server.processor_factory import ProcessorFactory

# Exit statuses: stopped by a signal; a fault of ewe; requests were aborted
STOPPED, FAILED, ABORTED = 0, 1, 4
UNUSABLE = 3  # exit status of a worker below a supervisor, after it has reported why it cannot serve
STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}
# All signals that the server has handlers for. Without the handlers, each of them ends or stops a process.
HANDLED = STOPS | {
    *(signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU)
}
COUNT_IS_FIXED = "TTIN and TTOU change the number of workers, where there are many (workers)"
ABORT_TIMEOUT_S = 2.0  # seconds from abort() until a process that hangs is ended


class WorkerStage(Enum):
    """The stages of a worker."""

    SERVING = "it accepts connections, or will soon"
    FINISHING = "it accepts none, and requests in progress end"
    ABORTING = "requests in progress are aborted"


SERVING, FINISHING, ABORTING = WorkerStage
ALWAYS = (SERVING, FINISHING, ABORTING)


class SignalMethod(NamedTuple):
    """The effect of a signal: in these stages, a method of Worker is called.

    waits: the method waits for the handlers of other signals (on_signal()).
    """

    stages: tuple[WorkerStage, ...]
    method: str
    waits: bool = False


SIGNALS: dict[int, SignalMethod] = {
    signal.SIGTERM: SignalMethod(ALWAYS, "on_stop"),
    signal.SIGINT: SignalMethod(ALWAYS, "on_stop"),
    signal.SIGQUIT: SignalMethod(ALWAYS, "on_quit"),
    signal.SIGALRM: SignalMethod((FINISHING, ABORTING), "on_alarm"),
    signal.SIGHUP: SignalMethod((SERVING,), "on_reload", waits=True),
    signal.SIGUSR1: SignalMethod(ALWAYS, "on_reopen", waits=True),
    signal.SIGUSR2: SignalMethod(ALWAYS, "on_status"),
    signal.SIGTTIN: SignalMethod((SERVING,), "on_count", waits=True),
    signal.SIGTTOU: SignalMethod((SERVING,), "on_count", waits=True),
}


def ignore_signals() -> None:
    """Ignore each further signal of the server: the process is ending.

    At its end, Python restores the default action of each signal that has a handler. HUP would then change the exit
    status, and TTIN could halt the process. SIGALRM is left alone, since its timer is off.
    """
    signal.set_wakeup_fd(-1)
    for signum in HANDLED - {signal.SIGALRM}:
        signal.signal(signum, signal.SIG_IGN)


def kill_programs() -> int:
    """Kill the programs that still run; return their number. The module is loaded only if a program was started."""
    programs = sys.modules.get("ewe.gateway.programs")
    return programs.kill_all() if programs is not None else 0


def log_failure(failure: str) -> None:
    """Log the reason why a server with a single process cannot serve, unless it is ""."""
    if failure:
        logger.errors.error(failure)


class Worker:
    """Runs a processor in this process, and turns signals into its finish() and abort().

    waiting: signals that wait for the handler of another one -> the frame that each has interrupted.
    """

    handles_waiting = False
    is_aborting = False
    is_reporting = False

    def __init__(
        self,
        factory: ProcessorFactory,
        sockets: list[socket.socket],
        name: str,
        lifeline: int = -1,
        report: Callable[[str], None] | None = None,
    ) -> None:
        """name: the name in the access log. lifeline: the supervisor's pipe; -1 if this is the only process.

        report: a function that tells the supervisor why this worker cannot serve, or "" if it serves; None without
        a supervisor.
        """
        self.factory = factory
        self.report = report or log_failure
        self.name = name
        self.processor = factory.make()
        self.supervised = lifeline >= 0
        if self.supervised and factory.config.retire:
            self.processor.retire_after(factory.config.retire)
        # A supervisor may also have one worker, as beside X-Switch: no other takes turns with it.
        takes_turns = factory.workers > 1 and self.processor.connection_limit > 1
        self.listener = self.processor.listener = Listener(sockets, lifeline, takes_turns)
        self.listener.limit_sends(factory.config.write_timeout)  # a reload may have changed it
        self.began = time.monotonic()
        self.interrupts = 0
        self.stopping = self.aborted = False
        self.waiting: dict[int, object] = {}
        # The time.monotonic() from which an alarm ends the process. An earlier alarm is that of `grace`.
        self.exit_from = 0.0
        logger.access.name_worker(self.processor.name, name)

    def run(self, ready: Callable[[], None] = lambda: None) -> int:
        """Serve until a stop; return the exit status. ready: called once the signal handlers are installed."""
        for signum in SIGNALS:
            signal.signal(signum, self.on_signal)
        signal.set_wakeup_fd(self.listener.wake_writer, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        try:
            failure = self.processor.start_conversations()
            self.report(failure)
            if failure:
                return UNUSABLE if self.supervised else FAILED
            ready()
            self.processor.serve(self.listener)
            if not self.listener.closed:
                logger.errors.error(
                    f"the {self.processor.name} model has ended without a stop: its serve() has returned"
                )
                return FAILED
        except Exception:
            logger.errors.exception(f"the {self.processor.name} model failed")
            return FAILED
        finally:
            self.processor.stop_conversations()  # the alarm still bounds the time of this call
            signal.setitimer(signal.ITIMER_REAL, 0)
            ignore_signals()
            self.processor.aborted += kill_programs()
            logger.report_losses()
        return ABORTED if self.processor.aborted else STOPPED

    @property
    def stage(self) -> WorkerStage:
        """The stage of this worker."""
        if self.aborted:
            return ABORTING
        return FINISHING if self.stopping else SERVING

    def on_signal(self, signum: int, frame: object) -> None:
        """Call the method that SIGNALS names: now, or after the handlers for which the signal waits.

        This is the handler of each signal.
        """
        if not SIGNALS[signum].waits:
            self.call_method_for(signum, frame)
            return
        self.waiting[signum] = frame
        # If `handles_waiting` is set, an outer call of this method handles them.
        while self.waiting and not self.handles_waiting:
            self.handles_waiting = True
            try:
                first, *_ = self.waiting  # no signal in between
                self.call_method_for(first, self.waiting.pop(first))
            finally:
                self.handles_waiting = False

    def call_method_for(self, signum: int, frame: object) -> None:
        """Call the method for a signal, if the signal has an effect in this stage."""
        found = SIGNALS[signum]
        if self.stage in found.stages:
            getattr(self, found.method)(signum, frame)

    def on_stop(self, signum: int, frame: object) -> None:
        """TERM, INT: let requests in progress end; at the second INT, abort them."""
        self.interrupts += signum == signal.SIGINT
        if self.interrupts > 1:
            self.on_quit(signum, frame)
        elif not self.stopping and not self.aborted:
            self.stopping = True
            if not self.supervised:
                systemd.notify("STOPPING=1")
            self.processor.finish()
            grace = self.factory.config.grace
            # The alarm calls abort() when `grace` is over. A time of 0 would switch the timer off.
            signal.setitimer(signal.ITIMER_REAL, grace or 0.001)
            if (count := self.processor.in_progress()) and grace:
                requests = "1 request is" if count == 1 else f"{count} requests are"
                logger.errors.warning(
                    f"{requests} in progress, and may end within {grace:g} s (grace); a second Ctrl-C ends all now"
                )

    def on_quit(self, signum: int, frame: object) -> None:
        """QUIT, second INT: abort all requests now. If the process still runs after ABORT_TIMEOUT_S, end it.

        A further signal sets no other alarm: it would give a process that hangs more time.
        """
        if self.aborted:
            self.abort()
            return
        self.aborted = True
        # An alarm of `grace` may be pending already. This moment lies between it and the alarm that is set here.
        self.exit_from = time.monotonic() + ABORT_TIMEOUT_S / 2
        self.abort()
        signal.setitimer(signal.ITIMER_REAL, ABORT_TIMEOUT_S)

    def abort(self) -> None:
        """Abort all requests. A signal that arrives meanwhile does not begin that a second time."""
        if not self.is_aborting:
            self.is_aborting = True
            try:
                self.processor.abort()
            finally:
                self.is_aborting = False

    def on_alarm(self, signum: int, frame: object) -> None:
        """ALRM: abort after `grace`, or end the process ABORT_TIMEOUT_S after abort()."""
        if self.aborted:
            # The alarm of `grace` may come together with QUIT, and on_quit() run first. The alarm that on_quit()
            # has set comes later.
            if time.monotonic() >= self.exit_from:
                kill_programs()
                os._exit(ABORTED)
        else:
            grace = self.factory.config.grace
            logger.errors.warning(
                f"{self.processor.unfinished()} requests did not end in {grace:g} s (grace)"
            )
            self.on_quit(signum, frame)

    def on_reopen(self, signum: int, frame: object) -> None:
        """USR1: reopen the logs."""
        self.factory.reopen_logs()
        self.processor.signalled(signal.SIGUSR1)

    def on_reload(self, signum: int, frame: object) -> None:
        """HUP: read the configuration again; below a supervisor, retire."""
        if self.supervised:
            self.processor.retire()
        elif self.factory.renew():
            logger.access.name_worker(self.processor.name, self.name)
            self.processor.adopt(self.factory.conversations(), self.factory.config)
            self.factory.report_applications()

    def on_count(self, signum: int, frame: object) -> None:
        """TTIN, TTOU: only a supervisor can change the number of workers."""
        if not self.supervised:
            logger.errors.warning(COUNT_IS_FIXED)

    def on_status(self, signum: int, frame: object) -> None:
        """USR2: write status and stacks to the error log. One that is being written answers this signal, too."""
        if not self.is_reporting:
            self.is_reporting = True
            try:
                self.report_status()
            finally:
                self.is_reporting = False

    def report_status(self) -> None:
        """Write status and stacks to the error log, and tell child processes to do the same."""
        processor = self.processor
        streams = list(processor.live)
        idle = sum(stream.idle for stream in streams)
        programs = sum(len(stream.own_programs or ()) for stream in streams)
        requests = processor.served + sum(stream.requests for stream in streams)
        say = logger.errors.tell  # at every log level: the administrator has asked for these lines
        say(
            f"status: {processor.name}, worker {self.name}, up {time.monotonic() - self.began:.0f} s,"
            f" {len(streams)} connections ({idle} idle), {programs} programs, {requests} requests,"
            f" {logger.lost_lines()} log lines lost"
        )
        for thread, top in sys._current_frames().items():
            say(f"status: thread {thread}")
            for line in traceback.format_stack(top):
                for part in line.rstrip().split("\n"):
                    say("| " + part)
        processor.signalled(signal.SIGUSR2)
