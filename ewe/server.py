"""The server: opens the sockets, starts the worker processes, answers signals, stops gracefully.

serve() runs a model in this process; with more than one worker it supervises processes that each run it.

Signals: TERM and the first INT finish what is in progress, for config.grace seconds; a second INT, or QUIT,
ends all at once; USR1 reopens the logs. Exit status: 0, or 4 when work had to be ended.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ewe import logger, programs
from ewe.listener import Listener, StartError, close_sockets, open_sockets, url
from ewe.processors.base import Processor, UnknownModel, find
from ewe.site import Site

if TYPE_CHECKING:
    import socket

    from ewe.config import Config

STOPPED, FAILED, CUT = 0, 1, 4  # exit statuses
STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1}
LAST_MOMENT = 2.0  # seconds between the end of all conversations and the end of a process that hangs on
RESERVE = 64  # descriptors that are not for connections
MAX_BACK_OFF = 8.0  # seconds between two starts of a worker that dies at once
YOUNG = 1.0  # seconds: a worker that dies younger than this dies "at once"


def serve(config: Config) -> int:
    """Serve until told to stop; return the exit status. Raises StartError, UnknownModel."""
    model = find(config.concurrency)
    if not os.path.isdir(config.documentroot):
        raise StartError(f"document root {config.documentroot!r} is not a directory (documentroot)")
    try:
        words = model.words(config)
        logger.open_logs(config.logfile, config.loglevel, config.access_log, config.log_format)
    except ImportError as reason:
        raise StartError(f"loop {config.loop!r}: {reason}; install it, or choose another (loop)") from None
    except OSError as reason:
        raise StartError(f"cannot write the log {reason.filename!r}: {reason.strerror}") from None
    except ValueError as reason:
        raise StartError(str(reason)) from None
    raise_descriptor_limit()
    addresses = config.bind or (f"{bracketed(config.host)}:{config.port}",)
    sockets = open_sockets(addresses, config.backlog, config.write_timeout)
    workers = (config.workers or model.workers) if model.supervised else 1

    site = Site(config, holds_idle=model.idle_holds(config))  # once: workers inherit it, its modules too

    def make() -> Processor:
        processor = model(site, config)
        limit_to_descriptors(processor)
        return processor

    try:
        if workers == 1 and not (model.supervised and model.many_processes):
            return Worker(make(), sockets, config, "0").run(lambda: banner(sockets, words, workers))
        return Supervisor(make, sockets, config, workers).run(lambda: banner(sockets, words, workers))
    finally:
        close_sockets(sockets)


def bracketed(host: str) -> str:
    """Return a host as it stands in front of a port."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def banner(sockets: list[socket.socket], words: str, workers: int) -> None:
    """Say in one line where the server is, which model it runs, and how to stop it."""
    where = " ".join(url(sock) for sock in sockets)
    count = f", {workers} workers" if workers > 1 and "processes" not in words else ""
    print(f"ewe: {where} ({words}{count}; pid {os.getpid()}; Ctrl-C stops)", file=sys.stderr, flush=True)


def raise_descriptor_limit() -> None:
    """Allow as many open files as the system lets us."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        pass  # a system whose "unlimited" is not what it grants


def limit_to_descriptors(processor: Processor) -> None:
    """Keep a model's ceiling below the descriptors there are, if it holds its connections in one process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and processor.name != "fork":
        processor.ceiling = min(processor.ceiling, max(soft - RESERVE, 1))


def ignore_stops() -> None:
    """We are ending already: another signal must not turn a clean exit status into a death by signal."""
    signal.set_wakeup_fd(-1)
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


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
            self.processor.cut += programs.kill_all()
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
        programs.kill_all()
        os._exit(CUT)

    def on_reopen(self, number: int, frame: object) -> None:
        """USR1."""
        logger.reopen_logs()
        self.processor.signalled(signal.SIGUSR1)


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


__all__ = ["StartError", "UnknownModel", "serve"]
