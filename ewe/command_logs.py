"""The log and the trace of `ewe-xswitch` and `ewe-dbd`: their options, and the errors when they are opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ewe.config.messages import ConfigError
from ewe.logger import LEVELS
from ewe.trace import Trace, failure_to_open, trace_at

if TYPE_CHECKING:
    from ewe.config.command_parser import CommandParser


def add_log_options(parser: CommandParser, note: str = "") -> None:
    """Add --log and --log-level. note: the end of the help text of --log."""
    parser.add_argument(
        "--log",
        metavar="FILE",
        default="-",
        help=f"the log [-: standard error; syslog: the log daemon]{note}",
    )
    parser.add_argument(
        "--log-level",
        metavar="LEVEL",
        choices=LEVELS,
        default="info",
        help="error, warning, info or debug [info]",
    )


@contextmanager
def opening_log(path: str) -> Iterator[None]:
    """Raise ConfigError in place of an error of opening the log. path: the value of --log."""
    try:
        yield
    except OSError as reason:
        raise ConfigError(f"cannot write {path}: {reason.strerror} (--log)") from None
    except ValueError:
        raise ConfigError(
            f"--log {path}: expected syslog: or syslog:FACILITY, such as syslog:local3"
        ) from None


def open_trace(path: str | None) -> Trace | None:
    """Return the trace that writes to a file; None without a path. Raises ConfigError."""
    try:
        return trace_at(path) if path else None
    except OSError as reason:
        raise ConfigError(failure_to_open(str(path), reason)) from None
