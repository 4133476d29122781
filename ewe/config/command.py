"""The shell around each command of ewe: its arguments, its line about a failure, its exit status.

A command is a function that takes its arguments and returns its exit status. `@entry_point` makes the main() of it,
which an entry point or a test calls. Everything that ends a command otherwise ends here:

    event                                               exit status
    ------------------------------------------------    ------------------------------------------------------
    the command returns                                 the number that it returns, DONE (0) if all went well
    --help, --version (SystemExit)                      0
    Failure: the command cannot do its work             FAILED (1), and one line on standard error
    ConfigError, UsageError: a setting or a word is     WRONG_USAGE (2), and one line on standard error
    wrong, also if it names a file that cannot be used
    Ctrl-C (KeyboardInterrupt)                          INTERRUPTED (130), as shells count: 128 + SIGINT
    Ctrl-C while a server starts (@interrupt_stops)     DONE (0): the user has asked the server to stop
    the reader of the output is gone (ewe-lab | head)   `unread`: 0 if a part of the output is of use, else 1
    the output cannot be written (a full disk)          FAILED (1), and one line on standard error

An exception carries its exit status. A room below this one therefore raises a subclass of `Failure` and knows no
command. A server that serves has signal handlers, and returns its status itself.
"""

from __future__ import annotations

import sys
from functools import wraps

from ewe.config.command_parser import CommandParser, when_output_is_closed
from ewe.config.messages import ConfigError, Failure, one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import NoReturn, ParamSpec, Protocol

    P = ParamSpec("P")

    class Main(Protocol):
        """The function that an entry point calls. argv: None stands for the process's own arguments."""

        def __call__(self, argv: Sequence[str] | None = None) -> int: ...


DONE = 0
FAILED = Failure.exit_status
WRONG_USAGE = ConfigError.exit_status
INTERRUPTED = 130


class UsageError(ConfigError):
    """The command line makes no sense. The text is one line."""


class RaisingParser(CommandParser):
    """Raises UsageError for a wrong command line. `@entry_point` then reports it under the command's own name."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with the message."""
        raise UsageError(message)


def entry_point(
    name: str, *, unread: int = FAILED, interrupted: str = ""
) -> Callable[[Callable[[list[str]], int]], Main]:
    """Return a decorator that makes a command's main() of the function that does its work.

    name: the first word of a line about a failure. unread: the exit status if the reader of the output is gone.
    interrupted: a line for standard error after Ctrl-C; "": no line.
    """

    def decorated(run: Callable[[list[str]], int]) -> Main:
        @when_output_is_closed(name, unread)
        @wraps(run)
        def main(argv: Sequence[str] | None = None) -> int:
            try:
                return run(sys.argv[1:] if argv is None else list(argv))
            except Failure as error:
                print(f"{name}: {one_line(str(error))}", file=sys.stderr)
                return error.exit_status
            except SystemExit as done:  # argparse has answered --help or --version
                return int(done.code or DONE)
            except KeyboardInterrupt:
                if interrupted:
                    print(interrupted, file=sys.stderr)
                return INTERRUPTED

        return main

    return decorated


def page_printer(name: str, page: Callable[[], Iterable[str]]) -> Main:
    """Return the main() of a command without arguments that prints a page of docs/.

    page: returns the parts of the page, of one line or several.
    """

    @entry_point(name, unread=DONE)
    def main(arguments: list[str]) -> int:
        RaisingParser(prog=name, description="Print a page of docs/.", allow_abbrev=False).parse_args(
            arguments
        )
        print("\n".join(page()))
        return DONE

    return main


def interrupt_stops(serve: Callable[P, int]) -> Callable[P, int]:
    """Return `serve` with status 0 for Ctrl-C before the server has installed its signal handlers."""

    @wraps(serve)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return serve(*args, **kwargs)
        except KeyboardInterrupt:
            return DONE

    return run
