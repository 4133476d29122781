"""A worker: runs one processor in one process, and turns signals into its finish() and abort().

    TERM, first INT     finish(): accept no more, let requests in progress end, for `grace` seconds
                          └─ an alarm after `grace`: abort(): abort the connections, kill the programs
                               └─ an alarm after ABORT_TIMEOUT_S: _exit(), for a process that still hangs
    QUIT, second INT    abort() at once
    HUP                 read the configuration again; below a supervisor: retire, since a new worker has read it
    USR1                reopen the logs
    USR2                write status and stacks to the error log

The next stage bounds the time of each stage, so that a stop always ends. The exit status is STOPPED, ABORTED if
requests were aborted, or FAILED if the model itself failed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

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
ONLY_MANY = "TTIN and TTOU change the number of workers, where there are many (workers)"
ABORT_TIMEOUT_S = 2.0  # seconds from abort() until a process that hangs is ended


def ignore_signals() -> None:
    """Ignore each further signal of the server: the process is ending.

    At its end, Python restores the default action of each signal that has a handler. HUP would then change the exit
    status, and TTIN could halt the process. SIGALRM is left alone, since its timer is off.
    """
    signal.set_wakeup_fd(-1)
    for number in HANDLED - {signal.SIGALRM}:
        signal.signal(number, signal.SIG_IGN)


def kill_programs() -> int:
    """Kill the programs that still run; return their number. The module is loaded only if a program was started."""
    programs = sys.modules.get("ewe.gateway.programs")
    return programs.kill_all() if programs is not None else 0


def log_failure(failure: str) -> None:
    """Log the reason why a server with a single process cannot serve, unless it is ""."""
    if failure:
        logger.errors.error(failure)


class Worker:
    """Runs a processor in this process, and turns signals into its finish() and abort()."""

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
        # The time.monotonic() from which an alarm ends the process. An earlier alarm is that of `grace`.
        self.exit_from = 0.0
        logger.access.name_worker(self.processor.name, name)

    def run(self, ready: Callable[[], None] = lambda: None) -> int:
        """Serve until a stop; return the exit status. ready: called once the signal handlers are installed."""
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

    def on_stop(self, number: int, frame: object) -> None:
        """TERM, INT: let requests in progress end; at the second INT, abort them."""
        self.interrupts += number == signal.SIGINT
        if self.interrupts > 1:
            self.on_quit(number, frame)
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

    def on_quit(self, number: int, frame: object) -> None:
        """QUIT, second INT: abort all requests now. If the process still runs after ABORT_TIMEOUT_S, end it.

        A further signal sets no other alarm: it would give a process that hangs more time.
        """
        if self.aborted:
            self.processor.abort()
            return
        self.aborted = True
        # An alarm of `grace` may be pending already. This moment lies between it and the alarm that is set here.
        self.exit_from = time.monotonic() + ABORT_TIMEOUT_S / 2
        self.processor.abort()
        signal.setitimer(signal.ITIMER_REAL, ABORT_TIMEOUT_S)

    def on_alarm(self, number: int, frame: object) -> None:
        """ALRM: abort after `grace`, or end the process ABORT_TIMEOUT_S after abort(). Ignore it before a stop."""
        if self.aborted:
            # The alarm of `grace` may come together with QUIT, and on_quit() run first. The alarm that on_quit()
            # has set comes later.
            if time.monotonic() >= self.exit_from:
                kill_programs()
                os._exit(ABORTED)
        elif self.stopping:
            grace = self.factory.config.grace
            logger.errors.warning(
                f"{self.processor.unfinished()} requests did not end in {grace:g} s (grace)"
            )
            self.on_quit(number, frame)

    def on_reopen(self, number: int, frame: object) -> None:
        """USR1: reopen the logs."""
        self.factory.reopen_logs()
        self.processor.signalled(signal.SIGUSR1)

    def on_reload(self, number: int, frame: object) -> None:
        """HUP: read the configuration again; below a supervisor, retire."""
        if self.supervised:
            self.processor.retire()
        elif self.factory.renew():
            logger.access.name_worker(self.processor.name, self.name)
            self.processor.adopt(self.factory.conversations(), self.factory.config)
            self.factory.report_applications()

    def on_count(self, number: int, frame: object) -> None:
        """TTIN, TTOU: only a supervisor can change the number of workers."""
        if not self.supervised:
            logger.errors.warning(ONLY_MANY)

    def on_status(self, number: int, frame: object) -> None:
        """USR2: write status and stacks to the error log."""
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
