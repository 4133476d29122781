"""The parser of ewe's command lines: the same words under each version of Python.

argparse changes from version to version. Since 3.13 it shows a value once for an option with two names. Since 3.14
it colors help on a terminal, and wherever FORCE_COLOR is set. The message about a word that is none of the choices
has been worded in four ways. Here ewe decides instead.

A command's output may have no reader any more (`ewe-lab list | head`), or its disk may be full. Python writes the
rest of its buffer at the end of the process, too late for an `except`: the last line would be a complaint of
Python's. when_output_is_closed() writes it before.

A parent may also start a command with a standard stream closed. Python's stream is None then, and the next file
that is opened gets the number: a listening socket, or a client's connection. A log would be written into it.
open_standard_streams() gives the number to /dev/null before.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from functools import wraps

from ewe.config.messages import Failure, nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn, ParamSpec

    P = ParamSpec("P")


DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class HelpFormatter(argparse.HelpFormatter):
    """Writes each option with all its names, then its value once."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Return an option as --help shows it: all its names, then its value once."""
        if not action.option_strings:
            return super()._format_action_invocation(action)
        words = [", ".join(action.option_strings)]
        if action.nargs != 0:
            words.append(self._format_args(action, self._get_default_metavar_for_optional(action)))
        return " ".join(words).rstrip()


class CommandParser(argparse.ArgumentParser):
    """Reports an error as one line, with the nearest word if a choice is misspelt, and writes no colors."""

    def __init__(self, **options: Any) -> None:
        if sys.version_info >= (3, 14):
            options["color"] = False
        options.setdefault("formatter_class", HelpFormatter)
        super().__init__(**options)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Write the message to standard error, and raise SystemExit with the status."""
        flush_stdout()  # what --help and --version have said
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        """Write the message with the name of the command, and raise SystemExit(2)."""
        self.exit(2, f"{self.prog}: {message}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise ArgumentError if a value is not one of the choices; name the nearest one."""
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            text = f"there is no {value!r}{nearest(str(value), known) or '; there are ' + ', '.join(known)}"
            raise argparse.ArgumentError(action if action.option_strings else None, text)


def when_output_is_closed(name: str, status: int) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Return a decorator for a command's main(): if the reader of its output has gone, the command ends quietly. If
    the output cannot be written, it ends with one line.

    name: of the command, for that line. status: the exit status if the reader has gone, 0 if a part of the output
    is of use, else 1.
    """

    def decorated(main: Callable[P, int]) -> Callable[P, int]:
        @wraps(main)
        def run(*args: P.args, **kwargs: P.kwargs) -> int:
            open_standard_streams()
            try:
                try:
                    done = main(*args, **kwargs)
                except BrokenPipeError:
                    flush_stdout()
                    return status
                except OSError as reason:
                    if reason.errno not in DISK_IS_FULL or reason.filename is not None:
                        raise
                    flush_stdout()
                    raise unwritten(reason) from None
                return done if flush_stdout() else status
            except Failure as error:
                print(f"{name}: {error}", file=sys.stderr)
                return error.exit_status

        return run

    return decorated


def open_standard_streams() -> None:
    """Open /dev/null for each standard stream that is closed."""
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= 2:  # open(2) returns the lowest free number
        os.set_inheritable(nowhere, True)
    os.close(nowhere)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))


def flush_stdout() -> bool:
    """Flush standard output. Return False if its reader has gone. Raises Failure after another error.

    After an error, Python's flush at exit goes to /dev/null.
    """
    try:
        sys.stdout.flush()
    except OSError as reason:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        if isinstance(reason, BrokenPipeError):
            return False
        raise unwritten(reason) from None
    return True


def unwritten(reason: OSError) -> Failure:
    """Return the failure of a command whose output cannot be written."""
    return Failure(f"cannot write the output: {reason.strerror}")
