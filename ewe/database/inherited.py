"""The demon as a process that ewe forks: its socket is inherited, its messages go through a pipe to ewe's log.

ewe/server/demon_program.py is the other side of the fork.
"""

from __future__ import annotations

import gc
import os
from dataclasses import replace

from ewe import logger
from ewe.config.messages import ConfigError
from ewe.database import layouts, sqlite  # noqa: F401  while the directory of ewe can still be read
from ewe.database.demon import Demon
from ewe.database.settings import Settings, load
from ewe.logger import LEVELS, UNPRINTABLE_IN_MESSAGE, ErrorLog, escaped


class Lines(ErrorLog):
    """Messages without time and level, which ewe's log adds. It shows them as warnings, so others are left out."""

    def __init__(self) -> None:
        super().__init__("-", "warning")

    def write(self, level: str, message: str) -> None:
        if LEVELS[level] <= self.level:
            self.file.write(escaped(message, UNPRINTABLE_IN_MESSAGE) + "\n")


def preload(file: str) -> None:
    """Load the drivers that a settings file names, in the parent and before it gives up root."""
    if any(own.driver == "postgresql" for own in load(file).databases.values()):
        try:
            from ewe.database import postgresql  # noqa: F401
        except ImportError:
            pass  # each request is told what to install


def serve(file: str, listening: int, output: int) -> None:
    """Serve the databases of a settings file until TERM; HUP reads the file again.

    listening: a listening socket. output: where messages go. No other descriptor of the parent stays open.
    """
    gc.freeze()  # nothing of the parent's is to be closed a second time, when its number may be another file's
    for number, old in enumerate((listening, output, output)):
        os.dup2(old, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    logger.errors.file.descriptor = (
        -1
    )  # closed with the others: a message of our log must not go to that number

    def read() -> Settings:
        return replace(load(file), listen=("fd://0",))

    log = Lines()
    try:
        Demon(read(), read, log).run()
    except ConfigError as error:
        log.write("error", str(error))
        raise SystemExit(1) from None
