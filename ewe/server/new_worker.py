"""A new worker: the steps of a process between the supervisor's fork and its first connection.

    supervisor ── fork ──▶ close the supervisor's descriptors ─▶ give up root ─▶ import ─▶ Worker.run(): serve
                                                                                   └─ it fails: report, exit

Signals stay blocked from before the fork until this process has its handlers, so that no signal is lost. During the
import a stop signal ends the process at once: it serves no request yet, and the import of a module may take long,
or never end. A USR1 waits for the end of the import. Otherwise a rotation of the logs would end the worker.

Read next: worker.py; supervisor.py, which reads the report.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ewe import logger
from ewe.processors.base import UnknownModel
from ewe.registry import in_words
from ewe.server.privileges import become
from ewe.server.worker import HANDLED, STOPPED, STOPS, UNUSABLE, Worker
from ewe.streams.listener import StartError

if TYPE_CHECKING:
    import socket

    from ewe.processors.seats import Seat
    from ewe.server.processor_factory import ProcessorFactory
    from ewe.server.reports import Reports


class NewWorker:
    """A process that is about to become a worker.

    lifeline: the supervisor's pipe. tells_sources: report the directories from which the program was loaded
    (setting `reload`). seat: where the worker says whether it is idle.
    """

    def __init__(
        self,
        factory: ProcessorFactory,
        sockets: list[socket.socket],
        lifeline: int,
        reports: Reports,
        tells_sources: bool,
        seat: Seat,
    ) -> None:
        self.factory = factory
        self.sockets = sockets
        self.lifeline = lifeline
        self.reports = reports
        self.tells_sources = tells_sources
        self.seat = seat

    def run(self, name: str, foreign: Iterable[int]) -> int:
        """Serve until a stop; return the exit status. foreign: descriptors that only the supervisor needs."""
        # First of all: Python must not write a signal to a descriptor whose number belongs to another file.
        signal.set_wakeup_fd(-1)
        for descriptor in foreign:
            os.close(descriptor)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        stop_with(self.lifeline)
        if self.factory.xswitch_process:
            become(self.factory.xswitch_process.user, self.factory.config.group)
        if self.factory.imports_in_workers and (failure := self.load_program()):
            self.report(failure)
            return UNUSABLE
        worker = Worker(self.factory, self.sockets, name, self.lifeline, self.report)
        worker.processor.seat = self.seat
        return worker.run()

    def report(self, failure: str) -> None:
        """Report that this worker serves, or the reason why it cannot."""
        self.reports.send(failure, sources_of_this_process() if self.tells_sources else ())

    def load_program(self) -> str:
        """Import the present version of the applications; return the reason of a failure, or ""."""
        for signum in (*STOPS, signal.SIGHUP):  # an import may take long, and a stop need not wait for it
            signal.signal(signum, lambda *_: os._exit(STOPPED))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS | {signal.SIGHUP})
        try:
            self.factory.load()
        except (StartError, UnknownModel) as reason:
            return str(reason)
        except Exception as reason:
            return f"a worker cannot import: {in_words(reason)}"
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        return ""


def stop_with(lifeline: int) -> None:
    """Have the kernel send SIGTERM to this process when the lifeline ends (fcntl(2), F_SETSIG).

    A worker that waits for a silent client does not watch the lifeline. Other systems than Linux have no F_SETSIG.
    """
    if sys.platform == "linux":
        try:
            # A new description of the pipe: the workers share the old one, and a description has one owner.
            end = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY | os.O_NONBLOCK)
            fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGTERM)
            fcntl.fcntl(end, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
        except OSError as reason:
            logger.errors.debug(
                f"a worker will not stop at once if its supervisor is killed: {reason.strerror}"
            )


def sources_of_this_process() -> list[str]:
    """Return the directories in which the supervisor watches this process's sources (setting `reload`)."""
    # Only `reload` needs the module, and a fork is faster without it.
    from ewe.server.sources import source_directories

    return source_directories()
