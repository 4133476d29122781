"""The command `ewe-xswitch`: serve, ask a running one how it is, or build the Java engine.

Exit codes: 0 stopped as asked, 1 could not start or failed, 2 wrong usage or configuration.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ewe import __version__
from ewe.config import ConfigError, one_line
from ewe.xswitch.settings import DEFAULTS, GENERAL, Settings, load, read_table

if TYPE_CHECKING:
    from typing import NoReturn

SAID = ("user", "userdir", "min-uid", "time-limit")  # settings that the command line may say as well
ASKS_FOR = 5.0  # seconds that `status` waits

DESCRIPTION = """Run CGI scripts as their owners in persistent engines, behind any web server that speaks FastCGI.
`ewe-xswitch status` tells how a running one is; `ewe-xswitch java` builds the engine for Java."""


class UsageError(Exception):
    """The command line makes no sense; the text is one line."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        if arguments[:1] == ["status"]:
            return status(arguments[1:])
        return java(arguments[1:]) if arguments[:1] == ["java"] else run(arguments)
    except (ConfigError, UsageError) as error:
        return fail(2, error)
    except SystemExit as done:  # argparse has answered --help or --version
        return int(done.code or 0)
    except KeyboardInterrupt:
        return 0


def fail(code: int, error: Exception) -> int:
    """Say in one line what is wrong; return the exit status."""
    print(f"ewe-xswitch: {one_line(str(error))}", file=sys.stderr)
    return code


def run(arguments: Sequence[str]) -> int:
    """Serve. Raises ConfigError, UsageError."""
    parser = Parser(prog="ewe-xswitch", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument(
        "--listen", metavar="ADDRESS", action="append", help="unix:PATH, HOST:PORT or fd://N; may be repeated"
    )
    parser.add_argument("--root", metavar="PATH", action="append", help="one more of the settings' roots")
    for key in SAID:
        parser.add_argument(f"--{key}", metavar=key.upper(), help=f"instead of the settings' {key}")
    parser.add_argument("--config", metavar="FILE", help="settings (TOML); read anew on HUP")
    parser.add_argument(
        "--default",
        metavar="KEY=VALUE",
        action="append",
        help="where the settings say nothing; may be repeated",
    )
    parser.add_argument(
        "--parent", metavar="PID", type=int, default=0, help="stop when this process has ended"
    )
    parser.add_argument("--log", metavar="FILE", default="-", help="the log [-: standard error]")
    parser.add_argument("--check-config", action="store_true", help="check the settings, and end")
    parser.add_argument("--version", action="version", version=f"ewe-xswitch {__version__}")
    options = parser.parse_args(arguments)
    file = options.config and os.path.abspath(options.config)
    said = {key: getattr(options, key.replace("-", "_")) for key in SAID}
    given = read_table({key: raw for key, raw in said.items() if raw is not None}, GENERAL, "command line")
    base = defaults(options.default or ())
    if options.listen:
        given |= read_table({"listen": options.listen}, GENERAL, "command line")

    def read() -> Settings:
        settings = load(file, base)
        return replace(settings, roots=(*settings.roots, *(options.root or ())), **given)

    settings = read()
    from ewe.xswitch.supervisor import StartError, Supervisor, check

    if options.check_config:
        try:
            check(settings)
        except StartError as error:
            raise ConfigError(f"{file or 'command line'}: {error}") from None
        for doubt in settings.doubts():
            print(f"ewe-xswitch: {doubt}", file=sys.stderr)
        print(f"configuration ok ({file or 'no file'})")
        return 0
    if not settings.listen:
        raise UsageError("nothing to listen on: say --listen unix:PATH or --listen HOST:PORT")
    from ewe import descriptors
    from ewe.logger import ErrorLog

    try:
        log = ErrorLog(options.log)
    except OSError as reason:
        raise ConfigError(f"--log {options.log}: {reason.strerror}") from None
    descriptors.allow_all()
    try:
        return Supervisor(settings, read, log, options.parent).run()
    except StartError as error:
        return fail(1, error)


def defaults(said: Sequence[str]) -> Settings:
    """Return the settings that hold where a file says nothing. Raises ConfigError."""
    table: dict[str, object] = dict(each.partition("=")[::2] for each in said)
    return replace(DEFAULTS, **read_table(table, GENERAL, "--default"))


def status(arguments: Sequence[str]) -> int:
    """Print how a running X-Switch is. Raises ConfigError, UsageError."""
    parser = Parser(
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
        return fail(1, Exception(f"{address}: {text}"))
    print(answer.partition("\r\n\r\n")[2], end="")
    return 0


def java(arguments: Sequence[str]) -> int:
    """Build the Java engine. Raises UsageError."""
    parser = Parser(
        prog="ewe-xswitch java",
        description="Build the engine for Java, once: it needs Maven, a JDK (17 or newer), and the network.",
    )
    parser.parse_args(arguments)
    from ewe.xswitch.java import BuildError, build

    try:
        print(f"built: {build()}")
    except BuildError as error:
        return fail(1, error)
    return 0


def ask(address: str, query: bytes) -> str:
    """Return what an X-Switch answers to a request for its status. Raises OSError, ValueError."""
    from ewe.fastcgi import FastCGIError, Output, Requester
    from ewe.kinds import parse_address

    with socket.socket(socket.AF_UNIX if address.startswith("unix:") else socket.AF_INET) as sock:
        sock.settimeout(ASKS_FOR)
        sock.connect(
            address.removeprefix("unix:") if address.startswith("unix:") else parse_address(address)[1:]
        )
        requester = Requester()
        params = {b"SCRIPT_NAME": b"/xswitch-status", b"REMOTE_ADDR": b"127.0.0.1", b"QUERY_STRING": query}
        sock.sendall(requester.begin(params.items()) + requester.input(b""))
        answer = b""
        while requester.running and (piece := sock.recv(65536)):
            try:
                answer += b"".join(event.data for event in requester.feed(piece) if isinstance(event, Output))
            except FastCGIError as error:
                raise ValueError(f"no X-Switch: {error}") from None
    if requester.running:
        raise ValueError("it closed the connection without an answer")
    return answer.decode("utf-8", "backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
