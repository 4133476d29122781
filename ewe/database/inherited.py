"""The daemon as a process that ewe forks: it inherits its socket, and sends its messages to ewe's log by a pipe.

ewe/features/databases/daemon_program.py is the other side of the fork.
"""

from __future__ import annotations

import fcntl
import gc
import os
from dataclasses import replace

from ewe import logger
from ewe.config.messages import ConfigError
from ewe.database import layouts, sqlite  # noqa: F401  imported while ewe's directory can still be read
from ewe.database.daemon import preload_drivers
from ewe.database.settings import Settings, load
from ewe.database.traced import daemon_class
from ewe.logger import LEVELS, UNPRINTABLE_IN_MESSAGE, ErrorLog, escaped
from ewe.trace import Trace

TRACE_DESCRIPTOR = 3  # the descriptor of the trace in the daemon, after 0 (socket), 1 and 2 (messages)


class PlainErrorLog(ErrorLog):
    """Messages without time and level, which ewe's log adds. ewe logs all as warnings; lower levels are dropped."""

    def __init__(self) -> None:
        super().__init__("-", "warning")

    def write(self, level: str, message: str) -> None:
        if LEVELS[level] <= self.level:
            self.file.write(escaped(message, UNPRINTABLE_IN_MESSAGE) + "\n")


def preload(file: str) -> None:
    """Load the drivers that a settings file names, in the parent, before it drops root."""
    preload_drivers(load(file))


def serve(file: str, listening: int, output: int, trace: Trace | None = None) -> None:
    """Serve the databases of a settings file until TERM; HUP reads the file again.

    listening: a listening socket. output: the pipe for messages. trace: the server's. No other descriptor of the
    parent stays open.
    """
    gc.freeze()  # objects of the parent must not be closed again: their numbers may belong to other files then
    sources = [listening, output, output]  # they become the descriptors 0, 1 and 2
    if trace is not None:
        sources.append(trace.file)  # becomes TRACE_DESCRIPTOR, 3
        trace.file = TRACE_DESCRIPTOR
    # Copies above all numbers that dup2() is about to take
    copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, len(sources)) for descriptor in sources]
    for number, descriptor in enumerate(copies):
        os.dup2(descriptor, number)
    os.closerange(len(sources), os.sysconf("SC_OPEN_MAX"))
    # Its descriptor was closed with the others: a message must not go to another file with the same number
    logger.errors.file.descriptor = -1

    os.environ.pop("NOTIFY_SOCKET", None)  # ewe is the service, and tells the manager its state

    def read() -> Settings:
        """Return the settings of the file; the daemon listens on descriptor 0. Raises ConfigError."""
        return replace(load(file), listen=("fd://0",))

    log = PlainErrorLog()
    try:
        daemon_class(trace)(read(), read, log).run()
    except ConfigError as error:
        log.write("error", str(error))
        raise SystemExit(1) from None
