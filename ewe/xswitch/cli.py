"""The command `ewe-xswitch`: serve, ask a running X-Switch (commands.py), or build an engine.

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
from ewe.command_logs import add_log_options, open_trace, opening_log
from ewe.config.command import RaisingParser, UsageError, entry_point, interrupt_stops
from ewe.config.linux import needs_linux
from ewe.config.messages import ConfigError, Failure
from ewe.config.table_kinds import TableKind
from ewe.config.tables import by_field_name
from ewe.log_files import names_file
from ewe.logger import ErrorLog
from ewe.xswitch.setting_types import OVER_TLS
from ewe.xswitch.settings import DEFAULTS, GENERAL_KEYS, Settings, load, origins_in

# Checks the values of general settings on the command line
SETTINGS_TABLE = TableKind("settings", GENERAL_KEYS)
# Settings that an option of the same name replaces
OVERRIDING_OPTIONS = ("user", "userdir", "min-uid", "time-limit", "trace")
COMMANDS = ("status", "limits", "log", "restart", "drain")  # of commands.py
PACKAGE_COMMANDS = ("pack", "install", "remove", "packages")  # of package_commands.py
BUILT_ENGINES = {
    "java": "Build the engine for Java, once: it needs Maven, a JDK (17 or newer), and the network.",
    "libcgi": "Build the engine that runs shared libraries (.so), once: it needs a C compiler.",
}

DESCRIPTION = """Run CGI scripts as their owners in persistent engines, behind any web server that speaks FastCGI.
`ewe-xswitch status` tells how a running one is, `limits` and `log` show the limits and messages of users, and
`restart` and `drain` end engines without losing a request. `pack`, `install`, `remove` and `packages` are for
applications in one file. `ewe-xswitch java` builds the engine for Java, and
`ewe-xswitch libcgi` the engine for LibCGI libraries."""


@entry_point("ewe-xswitch")
def main(arguments: list[str]) -> int:
    """Run the command, or the subcommand that the first argument names; return the exit status."""
    name, *own_arguments = arguments or [""]
    if name in BUILT_ENGINES:
        return build_engine(name, own_arguments)
    if name in COMMANDS:
        from ewe.xswitch import commands

        return commands.run(name, own_arguments)
    if name in PACKAGE_COMMANDS:
        from ewe.xswitch import package_commands

        return package_commands.run(name, own_arguments)
    return run(arguments)


def run(arguments: Sequence[str]) -> int:
    """Serve, or print or check the settings. Raises Failure, ConfigError."""
    options = parser_of_run().parse_args(arguments)
    command = CommandLine(options)
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
        "--listen",
        metavar="ADDRESS",
        action="append",
        help="unix:PATH, HOST:PORT, tls:HOST:PORT or fd://N; may be repeated",
    )
    parser.add_argument(
        "--root",
        metavar="PATH",
        action="append",
        help="a directory of scripts besides the settings' roots; may be repeated",
    )
    for key in OVERRIDING_OPTIONS:
        parser.add_argument(f"--{key}", metavar=key.upper(), help=f"instead of the settings' {key}")
    parser.add_argument("--config", metavar="FILE", help="settings (TOML); HUP reads them again")
    parser.add_argument(
        "--default",
        metavar="KEY=VALUE",
        action="append",
        help="a setting that the settings file omits; may be repeated",
    )
    parser.add_argument(
        "--parent", metavar="PID", type=int, default=0, help="stop when this process has ended"
    )
    add_log_options(parser, "; USR1 opens it again")
    parser.add_argument("--check-config", action="store_true", help="check the settings, and end")
    parser.add_argument(
        "--print-config", action="store_true", help="print every setting, with where it came from, and end"
    )
    parser.add_argument("--version", action="version", version=f"ewe-xswitch {__version__}")
    return parser


class CommandLine:
    """The options of the command line, and the settings that they lead to."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Read the settings for the first time. Raises ConfigError."""
        self.options = options
        self.file: str | None = options.config and os.path.abspath(options.config)
        self.roots: Sequence[str] = options.root or ()
        options_given = {key: getattr(options, key.replace("-", "_")) for key in OVERRIDING_OPTIONS}
        options_given["listen"] = options.listen or None
        overrides = {key: raw for key, raw in options_given.items() if raw is not None}
        self.overrides = by_field_name(SETTINGS_TABLE.read_at("command line:", overrides))
        self.base = defaults_with(options.default or ())
        self.settings = self.read()

    def read(self) -> Settings:
        """Read the file again and return the settings; the command line takes precedence. Raises ConfigError."""
        settings = load(self.file, self.base)
        return replace(settings, roots=(*settings.roots, *self.roots), **self.overrides)

    def origins(self) -> dict[str, str]:
        """Return the origin of each setting that is not a default."""
        command_line = {*self.overrides, *(("roots",) if self.roots else ())}
        return {
            **{option.partition("=")[0]: "--default" for option in self.options.default or ()},
            **origins_in(self.file),
            **{key.replace("_", "-"): "command line" for key in command_line},
        }


def print_settings(command: CommandLine) -> int:
    """Print every setting and its origin; return the exit status."""
    from ewe.xswitch.settings_page import as_toml

    print("\n".join(as_toml(command.settings, command.origins())))
    return 0


def check_settings(command: CommandLine) -> int:
    """Check whether X-Switch could serve with these settings; return the exit status. Raises ConfigError."""
    from ewe.streams import listener
    from ewe.xswitch.certificates import read_certificates
    from ewe.xswitch.supervisor import StartError, check_accounts

    where = command.file or "command line"
    read_certificates(command.settings)
    try:
        check_accounts(command.settings)
    except StartError as error:
        raise ConfigError(f"{where}: {error}") from None
    for address in command.settings.listen:
        try:
            note = listener.try_address(address.removeprefix(OVER_TLS))
        except listener.StartError as error:
            raise ConfigError(f"{where}: listen: {error}") from None
        if note:
            print(f"ewe-xswitch: note: {note} (listen)", file=sys.stderr)
    check_log(command)
    for warning in command.settings.warnings():
        print(f"ewe-xswitch: {warning}", file=sys.stderr)
    print(f"configuration ok ({command.file or 'no file'})")
    return 0


def check_log(command: CommandLine) -> None:
    """Raise ConfigError if X-Switch could not write the log of the command line (--log)."""
    log = command.options.log
    if log.startswith("syslog:"):
        open_error_log(command).file.close()
    elif names_file(log):
        written = log if os.path.exists(log) else os.path.dirname(os.path.abspath(log))
        if not os.access(written, os.W_OK):
            raise ConfigError(f"cannot write {log}: {written} does not exist, or is not writable (--log)")


@interrupt_stops
def serve(command: CommandLine) -> int:
    """Serve until a signal ends X-Switch; return the exit status. Raises StartError, ConfigError."""
    from ewe.streams import descriptors
    from ewe.xswitch.supervisor import Supervisor, redirect_standard_error

    if not command.settings.listen:
        raise UsageError("no address to listen on: write --listen unix:PATH or --listen HOST:PORT")
    options = command.options
    log_file = os.path.abspath(options.log) if names_file(options.log) else options.log
    with opening_log(options.log):
        redirect_standard_error(log_file)
    log = open_error_log(command)
    trace = open_trace(command.settings.trace)
    descriptors.raise_descriptor_limit()
    return Supervisor(command.settings, command.read, log, options.parent, log_file, trace).run()


def open_error_log(command: CommandLine) -> ErrorLog:
    """Open the log; return it. Raises ConfigError.

    For a log in a file, write to standard error: redirect_standard_error() has made that the file.
    """
    path = command.options.log
    with opening_log(path):
        return ErrorLog("-" if names_file(path) else path, command.options.log_level)


def defaults_with(options_given: Sequence[str]) -> Settings:
    """Return the settings for keys that the file omits: X-Switch's defaults, with those of --default.

    Raises ConfigError.

    options_given: KEY=VALUE of each --default.
    """
    table: dict[str, object] = {}
    for option in options_given:
        key, _, value = option.partition("=")
        table[key] = value
    checked = SETTINGS_TABLE.read_at("--default:", table)  # an error begins with this text
    return replace(DEFAULTS, **by_field_name(checked))


def build_engine(name: str, arguments: Sequence[str]) -> int:
    """Build an engine. name: a key of BUILT_ENGINES. Raises BuildError, UsageError."""
    RaisingParser(prog=f"ewe-xswitch {name}", description=BUILT_ENGINES[name]).parse_args(arguments)
    if name == "java":
        from ewe.xswitch.tools.java import build
    else:
        from ewe.xswitch.tools.libcgi import build
    print(f"built: {build()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
