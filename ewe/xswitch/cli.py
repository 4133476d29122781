"""The command `ewe-xswitch`: serve, show the status of a running X-Switch, or build an engine.

Exit status: 0 stopped as asked, 1 could not start or failed, 2 wrong usage or configuration, 130 after Ctrl-C in a
subcommand.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace

from ewe import __version__
from ewe.config.command import RaisingParser, UsageError, entry_point, interrupt_stops
from ewe.config.defaults import XSWITCH_STATUS_PATH
from ewe.config.linux import needs_linux
from ewe.config.messages import ConfigError, Failure
from ewe.config.tables import read_table
from ewe.log_files import names_file
from ewe.logger import LEVELS, ErrorLog
from ewe.xswitch.settings import DEFAULTS, GENERAL, Settings, load, origins_in

SAID = ("user", "userdir", "min-uid", "time-limit")  # settings that the command line may override
ASKS_FOR = 5.0  # seconds that `status` waits for each answer of the socket

DESCRIPTION = """Run CGI scripts as their owners in persistent engines, behind any web server that speaks FastCGI.
`ewe-xswitch status` tells how a running one is; `ewe-xswitch java` builds the engine for Java, and
`ewe-xswitch libcgi` the engine for LibCGI libraries."""


@entry_point("ewe-xswitch")
def main(arguments: list[str]) -> int:
    """Run the command, or a subcommand; return the exit status."""
    subcommands = {"status": status, "java": java, "libcgi": libcgi}
    subcommand = subcommands.get(arguments[0]) if arguments else None
    return subcommand(arguments[1:]) if subcommand is not None else run(arguments)


def run(arguments: Sequence[str]) -> int:
    """Serve, or print or check the settings. Raises Failure, ConfigError."""
    options = parser_of_run().parse_args(arguments)
    command = Command(options)
    if options.print_config:
        return print_settings(command)
    if options.check_config:
        return check_settings(command)
    if reason := needs_linux("X-Switch", shlex.join(["ewe-xswitch", *arguments])):
        raise Failure(reason)
    return serve(command)


def parser_of_run() -> RaisingParser:
    """Return the parser of the command without a subcommand."""
    parser = RaisingParser(prog="ewe-xswitch", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument(
        "--listen", metavar="ADDRESS", action="append", help="unix:PATH, HOST:PORT or fd://N; may be repeated"
    )
    parser.add_argument("--root", metavar="PATH", action="append", help="one more of the settings' roots")
    for key in SAID:
        parser.add_argument(f"--{key}", metavar=key.upper(), help=f"instead of the settings' {key}")
    parser.add_argument("--config", metavar="FILE", help="settings (TOML); HUP reads them again")
    parser.add_argument(
        "--default",
        metavar="KEY=VALUE",
        action="append",
        help="where the settings say nothing; may be repeated",
    )
    parser.add_argument(
        "--parent", metavar="PID", type=int, default=0, help="stop when this process has ended"
    )
    parser.add_argument(
        "--log",
        metavar="FILE",
        default="-",
        help="the log [-: standard error; syslog: the log daemon]; USR1 opens it again",
    )
    parser.add_argument(
        "--log-level",
        metavar="LEVEL",
        choices=LEVELS,
        default="info",
        help="error, warning, info or debug [info]",
    )
    parser.add_argument("--check-config", action="store_true", help="check the settings, and end")
    parser.add_argument(
        "--print-config", action="store_true", help="print every setting, with where it came from, and end"
    )
    parser.add_argument("--version", action="version", version=f"ewe-xswitch {__version__}")
    return parser


class Command:
    """The options of the command line, and the settings that they lead to."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Read the settings for the first time. Raises ConfigError."""
        self.options = options
        self.file: str | None = options.config and os.path.abspath(options.config)
        self.roots: Sequence[str] = options.root or ()
        said = {key: getattr(options, key.replace("-", "_")) for key in SAID}
        said["listen"] = options.listen or None
        given = {key: raw for key, raw in said.items() if raw is not None}
        self.given = read_table(given, GENERAL, "command line")
        self.base = defaults(options.default or ())
        self.settings = self.read()

    def read(self) -> Settings:
        """Return the settings, read from the file again; the command line has the last word. Raises ConfigError."""
        settings = load(self.file, self.base)
        return replace(settings, roots=(*settings.roots, *self.roots), **self.given)

    def origins(self) -> dict[str, str]:
        """Return where each setting came from, if not from the defaults."""
        command_line = {*self.given, *(("roots",) if self.roots else ())}
        return {
            **{each.partition("=")[0]: "--default" for each in self.options.default or ()},
            **origins_in(self.file),
            **{key.replace("_", "-"): "command line" for key in command_line},
        }


def print_settings(command: Command) -> int:
    """Print every setting, with where it came from; return the exit status."""
    from ewe.xswitch.settings_page import as_toml

    print("\n".join(as_toml(command.settings, command.origins())))
    return 0


def check_settings(command: Command) -> int:
    """Check whether X-Switch could serve with these settings; return the exit status. Raises ConfigError."""
    from ewe.streams import listener
    from ewe.xswitch.supervisor import StartError, check

    where = command.file or "command line"
    try:
        check(command.settings)
    except StartError as error:
        raise ConfigError(f"{where}: {error}") from None
    for address in command.settings.listen:
        try:
            note = listener.try_address(address)
        except listener.StartError as error:
            raise ConfigError(f"{where}: listen: {error}") from None
        if note:
            print(f"ewe-xswitch: note: {note} (listen)", file=sys.stderr)
    log = command.options.log
    if log.startswith("syslog:"):
        log_of(command).file.close()
    elif log != "-" and not os.access(os.path.dirname(os.path.abspath(log)), os.W_OK):
        raise ConfigError(f"--log {log}: its directory is not there, or may not be written")
    for doubt in command.settings.doubts():
        print(f"ewe-xswitch: {doubt}", file=sys.stderr)
    print(f"configuration ok ({command.file or 'no file'})")
    return 0


@interrupt_stops
def serve(command: Command) -> int:
    """Serve until a signal ends X-Switch; return the exit status. Raises StartError, ConfigError."""
    from ewe.streams import descriptors
    from ewe.xswitch.supervisor import Supervisor, log_here

    if not command.settings.listen:
        raise UsageError("nothing to listen on: say --listen unix:PATH or --listen HOST:PORT")
    options = command.options
    log_file = os.path.abspath(options.log) if names_file(options.log) else options.log
    try:
        log_here(log_file)
    except OSError as reason:
        raise ConfigError(f"--log {options.log}: {reason.strerror}") from None
    log = log_of(command)
    descriptors.allow_all()
    return Supervisor(command.settings, command.read, log, options.parent, log_file).run()


def log_of(command: Command) -> ErrorLog:
    """Return the log: of a file, standard error leads there. Raises ConfigError."""
    path = command.options.log
    try:
        return ErrorLog("-" if names_file(path) else path, command.options.log_level)
    except OSError as reason:
        raise ConfigError(f"--log {path}: {reason.strerror}") from None
    except ValueError:
        raise ConfigError(
            f"--log {path}: expected syslog: or syslog:FACILITY, such as syslog:local3"
        ) from None


def defaults(said: Sequence[str]) -> Settings:
    """Return the settings that hold where a file says nothing. Raises ConfigError."""
    table: dict[str, object] = dict(each.partition("=")[::2] for each in said)
    return replace(DEFAULTS, **read_table(table, GENERAL, "--default"))


def status(arguments: Sequence[str]) -> int:
    """Print the status of a running X-Switch. Raises Failure, ConfigError."""
    parser = RaisingParser(
        prog="ewe-xswitch status", description="Engines, queue and counters of a running X-Switch."
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--config", metavar="FILE", help="its settings, for the address")
    parser.add_argument("--listen", metavar="ADDRESS", help="its address, unix:PATH or HOST:PORT")
    options = parser.parse_args(arguments)
    address = options.listen or next(iter(load(options.config).listen), "")
    if not address:
        raise UsageError("which X-Switch? Say --listen unix:PATH or --listen HOST:PORT")
    try:
        answer = ask(address, b"json" if options.json else b"")
    except (OSError, ValueError) as reason:
        text = getattr(reason, "strerror", None) or str(reason) or "it does not answer"
        raise Failure(f"{address}: {text}") from None
    print(answer.partition("\r\n\r\n")[2], end="")
    return 0


def java(arguments: Sequence[str]) -> int:
    """Build the Java engine. Raises BuildError, UsageError."""
    parser = RaisingParser(
        prog="ewe-xswitch java",
        description="Build the engine for Java, once: it needs Maven, a JDK (17 or newer), and the network.",
    )
    parser.parse_args(arguments)
    from ewe.xswitch.tools.java import build

    print(f"built: {build()}")
    return 0


def libcgi(arguments: Sequence[str]) -> int:
    """Build the host of LibCGI libraries. Raises BuildError, UsageError."""
    parser = RaisingParser(
        prog="ewe-xswitch libcgi",
        description="Build the engine that runs shared libraries (.so), once: it needs a C compiler.",
    )
    parser.parse_args(arguments)
    from ewe.xswitch.tools.libcgi import build

    print(f"built: {build()}")
    return 0


def ask(address: str, query: bytes) -> str:
    """Return what an X-Switch answers to a request for its status. Raises OSError, ValueError."""
    from ewe.gateway.records import FastCGIError
    from ewe.xswitch.tools.client import Client

    params = {
        b"SCRIPT_NAME": XSWITCH_STATUS_PATH.encode(),
        b"XSWITCH_STATUS": b"1",
        b"QUERY_STRING": query,
    }
    try:
        with Client(address, ASKS_FOR) as client:
            answer = client.ask(params)
    except FastCGIError as error:
        raise ValueError(f"no X-Switch: {error}") from None
    return answer.decode("utf-8", "backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
