"""The command `ewe-dbd`: serve databases to gateways, ask a running daemon, or make the sample database.

Exit status: 0 done, 1 could not start or failed, 2 wrong usage or settings, 130 after Ctrl-C in a subcommand.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from ewe import __version__
from ewe.command_logs import add_log_options, open_trace, opening_log
from ewe.config.command import RaisingParser, UsageError, entry_point, interrupt_stops
from ewe.config.linux import needs_linux
from ewe.config.messages import ConfigError, Failure
from ewe.config.tables import toml
from ewe.database.protocol import LAYOUTS, ClientRequest
from ewe.database.settings import DATABASE_KEYS, GENERAL_KEYS, LISTEN, Settings, load, unknown_database
from ewe.database.transports import ADDRESS, parse_transport
from ewe.log_files import names_file
from ewe.logger import ErrorLog
from ewe.trace import exposure_warning

DESCRIPTION = """Hold connections to databases open, and run statements for gateways.
Also: `ewe-dbd status`, `ask`, `time`, `sample` and `load`, each with --help."""


@entry_point("ewe-dbd")
def main(arguments: list[str]) -> int:
    """Run the command, or a subcommand; return the exit status."""
    name, *own_arguments = arguments or [""]
    subcommands = {"status": status, "ask": ask, "time": time_calls, "sample": sample, "load": load_log}
    subcommand = subcommands.get(name)
    return subcommand(own_arguments) if subcommand is not None else run(arguments)


def run(arguments: Sequence[str]) -> int:
    """Serve, or print or check the settings. Raises Failure, ConfigError."""
    parser = RaisingParser(prog="ewe-dbd", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", help="settings (TOML); HUP reads them again")
    parser.add_argument("--listen", metavar="ADDRESS", action="append", help=ADDRESS)
    add_log_options(parser)
    parser.add_argument("--trace", metavar="FILE", help="a line for each event of a statement")
    parser.add_argument("--check-config", action="store_true", help="check the settings, and end")
    parser.add_argument("--print-config", action="store_true", help="print every setting, and end")
    parser.add_argument("--version", action="version", version=f"ewe-dbd {__version__}")
    options = parser.parse_args(arguments)
    file = None if options.config is None else os.path.abspath(options.config)

    def read() -> Settings:
        """Return the settings of the file, with those of the command line in their place. Raises ConfigError."""
        settings = load(file)
        overrides = {"listen": tuple(options.listen or ()), "trace": options.trace}
        return replace(settings, **{key: value for key, value in overrides.items() if value})

    for address in options.listen or ():
        LISTEN.read_at("--listen", address)  # raises ConfigError for a malformed address
    settings = read()
    if options.print_config:
        print("\n".join(as_toml(settings)))
        return 0
    for warning in warnings_about(settings):
        print(f"ewe-dbd: {warning}", file=sys.stderr)
    if options.check_config:
        print(f"configuration ok ({file or 'no file'})")
        return 0
    if reason := needs_linux("the database daemon", shlex.join(["ewe-dbd", *arguments])):
        raise Failure(reason)
    return serve(settings, read, options.log, options.log_level)


@interrupt_stops
def serve(settings: Settings, read: Callable[[], Settings], log_file: str, level: str) -> int:
    """Serve until a signal ends the daemon; return the exit status. Raises StartError, ConfigError.

    read: reads the settings again. level: of the messages that are logged.
    """
    from ewe.database.traced import daemon_class

    if not settings.listen:
        raise UsageError(
            "no address to listen on: write --listen unix:PATH, or listen = [...] in the settings"
        )
    if not settings.databases:
        raise UsageError("no database: add a table [databases.NAME] with a source to the settings (--config)")
    with opening_log(log_file):
        log = ErrorLog(os.path.abspath(log_file) if names_file(log_file) else log_file, level)
    trace = open_trace(settings.trace)

    def read_and_make_files() -> Settings:
        """Return the settings read again, and make the missing files of their databases."""
        settings_read = read()
        make_missing_files(settings_read, log)
        return settings_read

    make_missing_files(settings, log)
    daemon = daemon_class(trace)(settings, read_and_make_files, log)
    log.write("info", f"ewe-dbd serves {', '.join(settings.databases)} at {', '.join(settings.listen)}")
    daemon.run()
    return 0


def make_missing_files(settings: Settings, log: ErrorLog) -> None:
    """Make and log each file of SQLite that is missing and that statements may write.

    The daemon's account alone may read the file. Raises ConfigError if a file cannot be made.
    """
    for name, database_settings in settings.databases.items():
        source = database_settings.source
        if database_settings.driver != "sqlite" or not database_settings.write:
            continue
        try:
            os.close(os.open(source, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            continue
        except OSError as reason:
            raise ConfigError(
                f"[databases.{name}] source: cannot make {source}: {reason.strerror}; write = true needs a file"
            ) from None
        log.write("info", f"{source}: made, an empty SQLite database")


def warnings_about(settings: Settings) -> list[str]:
    """Return a warning, in one line, for each setting that is valid but probably a mistake."""
    lines = [*settings.renamed]
    if settings.trace and (reason := exposure_warning(settings.trace)):
        lines.append(reason)
    for name, database_settings in settings.databases.items():
        source = database_settings.source
        if (
            database_settings.driver == "sqlite"
            and not (database_settings.write and not os.path.lexists(source))
            and not os.access(source, os.R_OK | (os.W_OK if database_settings.write else 0))
        ):
            lines.append(
                f"[databases.{name}] source: {source} cannot be opened; the daemon tries at each request"
            )
        far_addresses = [
            address
            for address in settings.listen
            if kind_of(address) == "tcp" and not address.startswith(("127.", "localhost", "[::1]"))
        ]
        if database_settings.key and far_addresses:
            lines.append(
                f"[databases.{name}] key: the key crosses the network unencrypted ({', '.join(far_addresses)});"
                " use a Unix socket"
            )
    return lines


def kind_of(address: str) -> str:
    """Return the kind of an address of the daemon: unix, tcp, fifo, mq, or fd for an inherited socket."""
    kind, _, _ = parse_transport(address)
    return kind


def as_toml(settings: Settings) -> list[str]:
    """Return the settings as the lines of a file."""
    lines = [
        f"{name} = {toml(key.kind, getattr(settings, name.replace('-', '_')))}"
        for name, key in GENERAL_KEYS.items()
    ]
    for database, database_settings in settings.databases.items():
        lines += ["", f"[databases.{database}]"]
        for name, key in DATABASE_KEYS.items():
            value = getattr(database_settings, name.replace("-", "_"))
            if value not in ("", ()):  # a key that is not set
                lines.append(f"{name} = {toml(key.kind, value)}")
    return lines


def add_address_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a running daemon."""
    parser.add_argument(
        "--config", metavar="FILE", help="the settings file of the daemon, which names its address"
    )
    parser.add_argument("--listen", metavar="ADDRESS", help="the address of the daemon")


def address_of(options: argparse.Namespace) -> str:
    """Return the address of a running daemon. Raises ConfigError, UsageError."""
    address = options.listen or next(iter(load(options.config).listen), "")
    if not address:
        raise UsageError("name the address of the daemon: --listen ADDRESS or --config FILE")
    return str(address)


def status(arguments: Sequence[str]) -> int:
    """Print the status of a running daemon. Raises DatabaseError, ConfigError, UsageError."""
    parser = RaisingParser(prog="ewe-dbd status", description="Print the state of a running daemon as JSON.")
    add_address_options(parser)
    # A request without a database is one for the status
    return print_answer(address_of(parser.parse_args(arguments)), ClientRequest(database="", statement=""))


def ask(arguments: Sequence[str]) -> int:
    """Run one statement and print its result. Raises DatabaseError, ConfigError, UsageError."""
    parser = RaisingParser(prog="ewe-dbd ask", description="Run one statement through a running daemon.")
    parser.add_argument("database")
    parser.add_argument("statement")
    parser.add_argument("parameter", nargs="*", help="texts for the statement's ? in order")
    parser.add_argument(
        "--layout",
        choices=[layout.lower() for layout in LAYOUTS],
        default="csv",
        help="the format of the result [csv]",
    )
    add_address_options(parser)
    parser.add_argument("--key", default="", help="the key of the database, for a daemon on TCP")
    options = parser.parse_args(arguments)
    request = ClientRequest(
        options.database,
        options.statement,
        options.layout.upper(),
        options.parameter,
        # As in the paper, a request names the gateway's process. Only a trace reads it
        client=os.getpid(),
        key=options.key,
    )
    return print_answer(address_of(options), request)


def print_answer(address: str, request: ClientRequest) -> int:
    """Ask a daemon, and print its answer; return the exit status. Raises DatabaseError, UsageError."""
    from ewe.database.client import Client

    try:
        with Client(address) as daemon:
            for piece in daemon.ask(request):
                sys.stdout.buffer.write(piece)
            sys.stdout.flush()
    except ValueError:
        raise UsageError(f"{address}: no address; it must be {ADDRESS}") from None
    return 0


def time_calls(arguments: Sequence[str]) -> int:
    """Time a statement at each address of a running daemon. Raises DatabaseError, ConfigError, UsageError."""
    from ewe.database import timing

    parser = RaisingParser(
        prog="ewe-dbd time",
        description="Time a statement in process, and through a running daemon at each of its addresses.",
    )
    parser.add_argument("database")
    parser.add_argument("statement")
    parser.add_argument("--config", metavar="FILE", required=True, help="the settings of the daemon")
    parser.add_argument("--calls", type=int, default=1000, help="how many calls are timed [1000]")
    options = parser.parse_args(arguments)
    settings = load(options.config)
    database_settings = settings.databases.get(options.database)
    if database_settings is None:
        raise UsageError(unknown_database(options.database, settings))
    # Over TCP the daemon asks for a key. A client cannot connect to an inherited socket
    kinds = ("unix", "fifo", "mq", "tcp") if database_settings.key else ("unix", "fifo", "mq")
    addresses = [address for address in settings.listen if kind_of(address) in kinds]
    request = ClientRequest(
        options.database, options.statement, "CSV", key=database_settings.key, read_only=True
    )
    database = database_settings.database(options.database, read_only=True)
    for line in timing.table(timing.measure(database, request, addresses, options.calls)):
        print(line)
    return 0


def sample(arguments: Sequence[str]) -> int:
    """Make the sample database. Raises ConfigError, UsageError."""
    from ewe.database import access_log

    parser = RaisingParser(
        prog="ewe-dbd sample",
        description="Write 50,000 rows of an access log into a database, the same each time.",
    )
    parser.add_argument("database", help="a file; its table `log` is made again")
    parser.add_argument(
        "--rows", type=int, default=access_log.ROWS, help=f"how many rows [{access_log.ROWS}]"
    )
    options = parser.parse_args(arguments)
    written, _ = access_log.write_rows(options.database, access_log.sample(options.rows), new=True)
    print(f"{options.database}: {written} rows in the table log")
    return 0


def load_log(arguments: Sequence[str]) -> int:
    """Load a web server's access log. Raises ConfigError, UsageError."""
    from ewe.database import access_log

    parser = RaisingParser(
        prog="ewe-dbd load",
        description="Add a common or combined access log to the table `log` of a database.",
    )
    parser.add_argument("log", help="the log file, also one compressed by gzip; -: standard input")
    parser.add_argument("database")
    options = parser.parse_args(arguments)
    try:
        with access_log.open_log(options.log) as lines:
            rows = access_log.rows_of(lines)
            written, left_out = access_log.write_rows(options.database, rows, new=False)
    except OSError as reason:
        raise ConfigError(f"cannot read {options.log}: {reason.strerror or reason}") from None
    if left_out and not written:
        raise ConfigError(
            f"{options.log}: none of its {left_out} lines is in the common or the combined format"
        )
    print(f"{options.database}: {written} rows added to the table log, {left_out} lines left out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
