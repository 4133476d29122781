"""The subcommands of `ewe-xswitch` that ask a running X-Switch: status, limits, log, restart, drain.

They reach the engines of the account that runs the command; root and the accounts of `managers` reach those of all
users (ewe.xswitch.switch.control). Over TCP, `status` shows all engines, and the others are refused.
"""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ewe.config.command import RaisingParser, UsageError
from ewe.config.defaults import XSWITCH_STATUS_PATH
from ewe.config.messages import Failure
from ewe.logger import UNPRINTABLE_IN_MESSAGE as MESSAGE
from ewe.logger import escaped
from ewe.xswitch.setting_types import OVER_TLS
from ewe.xswitch.settings import load

STATUS_TIMEOUT_S = 5.0  # seconds that a command waits for each answer of the socket
DESCRIPTIONS = {
    "status": "Print the engines, the queue and the counters of a running X-Switch.",
    "limits": "Print the limits of a user, or of each user who has engines.",
    "log": "Print the latest messages about the scripts of a user, or of all users.",
    "restart": "End engines, and start others in their place. No request is lost: a busy engine ends after it.",
    "drain": "End engines. No request is lost: a busy engine takes no other one, and ends after it.",
}


def run(name: str, arguments: Sequence[str]) -> int:
    """Run a subcommand; return the exit status. Raises Failure, UsageError, ConfigError."""
    options = parser_of(name).parse_args(arguments)
    # Only another X-Switch has a certificate for a tls: address
    addresses = [address for address in load(options.config).listen if not address.startswith(OVER_TLS)]
    address = options.listen or (addresses[0] if addresses else "")
    if not address:
        raise UsageError("name the address of X-Switch: --listen unix:PATH or --listen HOST:PORT")
    return RUN[name](address, options)


def parser_of(name: str) -> RaisingParser:
    """Return the parser of a subcommand."""
    parser = RaisingParser(prog=f"ewe-xswitch {name}", description=DESCRIPTIONS[name])
    parser.add_argument(
        "--config", metavar="FILE", help="the settings file of X-Switch, which names its address"
    )
    parser.add_argument("--listen", metavar="ADDRESS", help="the address of X-Switch, unix:PATH or HOST:PORT")
    if name == "status":
        parser.add_argument("--json", action="store_true", help="print JSON")
        return parser
    parser.add_argument("--user", metavar="NAME", default="", help="only of this user")
    if name in ("restart", "drain"):
        parser.add_argument("--language", metavar="NAME", default="", help="only engines of this language")
        parser.add_argument("--all", action="store_true", help="all engines that this account may end")
        parser.add_argument("--yes", action="store_true", help="with --all in a terminal: do not ask first")
        parser.add_argument("pid", metavar="PID", type=int, nargs="*", help="these engines (see status)")
    return parser


def status(address: str, options: Namespace) -> int:
    """Print the status."""
    print(ask_status_page(address, {b"QUERY_STRING": b"json" if options.json else b""}), end="")
    return 0


def limits(address: str, options: Namespace) -> int:
    """Print the limits of users."""
    answer = ask_action(address, b"list", {b"XSWITCH_USER": options.user})
    for user, limits_of_user in answer["limits"].items():
        for name, value in limits_of_user.items():
            print(f"{escaped(user)}  {name:<11} {limit_text(name, value)}")
    print(f"kept by: {escaped(answer['kept'])}" if answer["limits"] else "no user has an engine; see --user")
    return 0


def limit_text(name: str, value: float | None) -> str:
    """Return a limit for people. name: of the setting; value: in its unit."""
    if value is None:
        return "no limit"
    if name == "private":
        return "yes" if value else "no"
    units = {
        "time-limit": " s",
        "cpu": " s of CPU time for each engine",
        "cpu-share": "% of one CPU",
        "memory": "m",
        "file-size": "m for each file",
    }
    number = value / (1 << 20) if name in ("memory", "file-size") else value
    # Not "g" alone: it has 6 digits, and shows 1048576 as 1.04858e+06
    return f"{round(number, 3):.15g}{units.get(name, '')}"


def log(address: str, options: Namespace) -> int:
    """Print the latest messages."""
    for seconds, user, line in ask_action(address, b"log", {b"XSWITCH_USER": options.user})["log"]:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
        print(moment, escaped(user), escaped(line, MESSAGE))
    return 0


def end_engines(name: str, address: str, options: Namespace) -> int:
    """Order the end of the chosen engines, print each, and return the exit status. name: `restart` or `drain`."""
    if not (options.pid or options.user or options.language or options.all):
        raise UsageError(f"which engines? ewe-xswitch {name} PID, --user NAME, --language NAME or --all")
    if any(pid < 1 for pid in options.pid):
        raise UsageError("a PID is a number from 1")
    must_ask = options.all and not options.yes and sys.stdin.isatty()
    if must_ask and not is_confirmed(name, address, options):
        print("nothing is done")
        return 1
    answer = ask_action(address, name.encode(), engine_parameters(options))
    participle = "restarted" if name == "restart" else "ended"
    # The pid 0 is that of an engine whose process is still being started
    for pid in answer["ended"]:
        print(f"{participle} {pid or '(an engine that was starting)'}")
    for pid in answer["ending"]:
        print(f"{pid or 'an engine that is starting'} runs a request: it is {participle} after it")
    if answer["unknown"]:
        pids = " ".join(map(str, answer["unknown"]))
        raise Failure(f"{pids}: no such engine, or not one of this account's")
    if not answer["ended"] and not answer["ending"]:
        print("no such engine")
    return 0


def engine_parameters(options: Namespace) -> dict[bytes, str]:
    """Return the parameters (control.py) that restrict an action to the engines which the options name.

    options: of the command `restart` or `drain`. A parameter "" restricts nothing: ask_action() leaves it out.
    """
    return {
        b"XSWITCH_PIDS": " ".join(map(str, options.pid)),
        b"XSWITCH_USER": options.user,
        b"XSWITCH_LANGUAGE": options.language,
    }


def is_confirmed(name: str, address: str, options: Namespace) -> bool:
    """Ask the person at the terminal whether to end the chosen engines; return the answer. Raises Failure."""
    engines = ask_action(address, b"list", engine_parameters(options))["engines"]
    users = {engine["user"] for engine in engines}
    has_java = any(engine["language"] == "java" for engine in engines)
    loss = "; sessions of Java applications are lost" if has_java else ""
    counts = f"engines: {len(engines)}, users: {len(users)}"
    print(f"{name} all of them ({counts}){loss}. Sure? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def ask_action(address: str, action: bytes, arguments: Mapping[bytes, str]) -> dict[str, Any]:
    """Make X-Switch carry out an action; return its answer. Raises Failure.

    arguments: parameters of the action (ewe.xswitch.switch.control); "" leaves one out.
    """
    params = {name: os.fsencode(value) for name, value in arguments.items() if value}
    text = ask_status_page(address, {b"XSWITCH_ACTION": action, **params})
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):  # another FastCGI server has answered
        raise Failure(f"{address}: it is no X-Switch of this version")
    if "error" in answer:
        raise Failure(escaped(answer["error"], MESSAGE))
    return answer


def ask_status_page(address: str, params_of_page: Mapping[bytes, bytes]) -> str:
    """Ask X-Switch for its status page; return the body of the answer. Raises Failure.

    params_of_page: QUERY_STRING, or the parameters of an action (control.py).
    """
    from ewe.gateway.records import FastCGIError
    from ewe.xswitch.tools.client import FastCGIClient

    # XSWITCH_STATUS: a program asks over X-Switch's own socket, and not a web server's client (status.py)
    params = {b"SCRIPT_NAME": XSWITCH_STATUS_PATH.encode(), b"XSWITCH_STATUS": b"1", **params_of_page}
    try:
        with FastCGIClient(address, STATUS_TIMEOUT_S) as client:
            answer = client.ask(params)
    except FastCGIError as error:
        raise Failure(f"{address}: no X-Switch: {error}") from None
    except (OSError, ValueError) as reason:  # ValueError: a malformed address
        text = getattr(reason, "strerror", None) or str(reason) or "it does not answer"
        raise Failure(f"{address}: {text}") from None
    _head, _, body = answer.decode("utf-8", "backslashreplace").partition("\r\n\r\n")
    return body


RUN: Mapping[str, Callable[[str, Namespace], int]] = {
    "status": status,
    "limits": limits,
    "log": log,
    "restart": partial(end_engines, "restart"),
    "drain": partial(end_engines, "drain"),
}
