"""Actions on running engines: list, restart, drain, log; and the rights of the accounts that ask for them.

The commands `ewe-xswitch restart`, `drain`, `limits` and `log`, and ewe's page of engines, ask over X-Switch's own
socket. They ask for the status page with these FastCGI parameters, which no client of a web server can set, because
a client's fields become parameters HTTP_…:

    XSWITCH_ACTION      list, restart, drain or log
    XSWITCH_SCOPE       "all", or "user:NAME": the engines that the action may reach. Without it: all that the
                        process that asks may reach
    XSWITCH_PIDS        these engines only, as numbers with spaces between them
    XSWITCH_USER        engines of this user only
    XSWITCH_LANGUAGE    engines of this language only
    XSWITCH_FOR         the visitor who has asked the web server, for the log

**Rights.** The kernel says which account has connected to a Unix socket (SO_PEERCRED, unix(7)). No parameter can
change that. Root, the account that started X-Switch and the accounts of the setting `managers` reach all engines,
and can restrict themselves by XSWITCH_SCOPE: a web server that has authenticated alice sends "user:alice". Every
other account reaches its own engines. Over TCP the account is unknown, so there are no actions.

**restart** ends an engine and starts another one in its place; **drain** only ends it. Neither loses a request: an
engine that runs one gets no new request, and ends after it (Scheduler.drain).

Each action that ends an engine is a line of the log.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
from typing import Any, NamedTuple

from ewe.xswitch.settings import Settings
from ewe.xswitch.switch.context import Context
from ewe.xswitch.switch.engine import Engine
from ewe.xswitch.user_limits import UserLimits

ACTIONS = ("list", "restart", "drain", "log")
END_CAUSES = {"restart": "restarted", "drain": "drained"}  # the reason of an engine's end: scheduler.ENDINGS
CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
MAX_PIDS = 1000  # in one action
MAX_PID_DIGITS = 9  # more than Linux's largest pid has
MAX_NAME_BYTES = 256  # of an account, and of a language


class ActionRefused(Exception):
    """An action is not allowed, or is malformed. The text is one line."""


class Action(NamedTuple):
    """An action, and the engines that it names.

    name: one of ACTIONS. user: "" means the engines of all users. pids, language: empty means any. by: the account
    that asks, for the log.
    """

    name: str
    user: str
    pids: frozenset[int] = frozenset()
    language: str = ""
    by: str = ""

    def includes(self, user: str, language: str, pid: int) -> bool:
        """Return whether an engine of this user, language and pid is one that the action names."""
        return (
            self.user in ("", user)
            and self.language in ("", language)
            and (not self.pids or pid in self.pids)
        )


class Control:
    """Checks actions and carries them out."""

    def __init__(self, context: Context, owner: int) -> None:
        """owner: the uid of the account that started X-Switch."""
        self.context = context
        self.owner = owner

    def action_of(self, peer: socket.socket, params: dict[bytes, bytes]) -> Action:
        """Return the action that a request asks for. Raises ActionRefused.

        peer: the connection, by which the kernel knows the account. params: see the top of this file.
        """
        name = text_parameter(params, b"XSWITCH_ACTION")
        if name not in ACTIONS:
            raise ActionRefused(f"there is no action {name!r}: expected {', '.join(ACTIONS)}")
        account, reaches_all = rights_of(peer, self.owner, self.context.settings)
        scope = text_parameter(params, b"XSWITCH_SCOPE")
        user = "" if reaches_all else account  # "" is every user
        if scope.startswith("user:") and len(scope) > len("user:"):
            scope_user = scope.removeprefix("user:")
            if user not in ("", scope_user):
                raise ActionRefused(f"{account} may not act for {scope_user!r}: only root and `managers` may")
            user = scope_user
        elif scope == "all":
            if not reaches_all:
                raise ActionRefused(f"{account} may not act for all users: only root and `managers` may")
        elif b"XSWITCH_SCOPE" in params:
            raise ActionRefused("XSWITCH_SCOPE is neither all nor user:NAME")
        named_user = text_parameter(params, b"XSWITCH_USER")
        if named_user and user not in ("", named_user):
            raise ActionRefused(f"{user} may not act for {named_user!r}: a user reaches only own engines")
        visitor = text_parameter(params, b"XSWITCH_FOR")
        return Action(
            name,
            named_user or user,
            pids=pids_parameter(params.get(b"XSWITCH_PIDS", b"")),
            language=text_parameter(params, b"XSWITCH_LANGUAGE"),
            by=f"{visitor} (by {account})" if visitor else account,
        )

    def engines_named_by(self, action: Action) -> list[Engine]:
        """Return the engines that an action names, among those that it may reach."""
        engines = self.context.scheduler.engines
        return [engine for engine in engines if action.includes(engine.user, engine.language, engine.pid)]

    def carry_out(self, action: Action) -> dict[str, Any]:
        """Carry out `log`, `restart` or `drain`; return the answer.

        Of the pids in the answer, `ended` have ended, `ending` still run a request, and `unknown` name no engine
        that the action may reach.
        """
        if action.name == "log":
            return {"log": self.context.recent_lines.lines_of(action.user)}
        ended: list[int] = []
        ending: list[int] = []
        for engine in self.engines_named_by(action):
            has_ended = self.context.scheduler.drain(engine, END_CAUSES[action.name])
            (ended if has_ended else ending).append(engine.pid)
            self.context.log.info(
                f"{action.name} of {engine.user}'s {engine.language} engine {engine.pid}: {action.by}"
            )
        return {
            "ended": sorted(ended),
            "ending": sorted(ending),
            "unknown": sorted(action.pids - {*ended, *ending}),
        }

    def visible_part(self, status: dict[str, Any], action: Action) -> dict[str, Any]:
        """Return the part of a status (collect_status()) that an action may see, with the limits of its users."""
        engines = [
            row for row in status["engines"] if action.includes(row["user"], row["language"], row["pid"])
        ]
        waiting = {user: count for user, count in status["waiting"].items() if action.user in ("", user)}
        users = {action.user} if action.user else {row["user"] for row in engines} | waiting.keys()
        part = {
            "engines": engines,
            "waiting": waiting,
            "limits": {user: self.limits_by_setting(user) for user in sorted(users)},
            "kept": status["limits"],  # how the system enforces the limits, in words
        }
        if not action.user:
            part |= {name: status[name] for name in ("uptime", "connections", "resources", "counters")}
        return part

    def part_for(self, peer: socket.socket, status: dict[str, Any]) -> dict[str, Any]:
        """Return the part of a status for the process at the other end: other users' engines are left out.

        Over TCP the account is unknown: a process that may connect there may run any script, and sees all.
        """
        if peer.family != socket.AF_UNIX:
            return status
        try:
            account, reaches_all = rights_of(peer, self.owner, self.context.settings)
        except ActionRefused:
            return {**status, "engines": [], "waiting": {}}
        if reaches_all:
            return status
        engines = [row for row in status["engines"] if row["user"] == account]
        waiting = {user: count for user, count in status["waiting"].items() if user == account}
        return {**status, "engines": engines, "waiting": waiting}

    def limits_by_setting(self, user: str) -> dict[str, float | None]:
        """Return the limits of a user, and whether `private` holds, by their names in the settings.

        None: no limit (0 in the settings), or none that X-Switch sets.
        """
        settings = self.context.settings
        limits: UserLimits = self.context.scheduler.limits.limits_of(user)

        def of_an_engine(name: str) -> int | None:
            own_limit = getattr(limits, name)
            return (getattr(settings.limits, name) if own_limit is None else own_limit) or None

        return {
            "engines": self.context.scheduler.max_engines_of(user),
            "requests": limits.requests,
            "time-limit": limits.time_limit or settings.time_limit,
            "memory": of_an_engine("memory"),
            "processes": of_an_engine("processes"),
            "cpu": of_an_engine("cpu"),
            "cpu-share": limits.cpu_share,
            "file-size": of_an_engine("file_size"),
            "private": settings.is_private(limits),
        }


def rights_of(peer: socket.socket, owner: int, settings: Settings) -> tuple[str, bool]:
    """Return the account of the process that has connected, and whether it reaches the engines of all users.

    Raises ActionRefused.
    """
    if peer.family != socket.AF_UNIX:
        raise ActionRefused(
            "over TCP X-Switch cannot tell who asks: use its Unix socket (listen = unix:PATH)"
        )
    try:
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        _pid, uid, _gid = CREDENTIALS.unpack(credentials)
        account = pwd.getpwuid(uid).pw_name
    except OSError as reason:
        raise ActionRefused(f"the system does not tell who asks: {reason.strerror}") from None
    except KeyError:
        raise ActionRefused(f"uid {uid} has no account") from None
    return account, uid in (0, owner) or account in settings.managers


def text_parameter(params: dict[bytes, bytes], name: bytes) -> str:
    """Return a parameter as text, "" without one. Raises ActionRefused."""
    raw = params.get(name, b"")
    if len(raw) > MAX_NAME_BYTES:
        raise ActionRefused(f"{name.decode()} has more than {MAX_NAME_BYTES} bytes")
    return os.fsdecode(raw)


def pids_parameter(raw: bytes) -> frozenset[int]:
    """Return the pids in a parameter. Raises ActionRefused."""
    words = raw.split()
    numbers = [int(word) for word in words if word.isdigit() and len(word) <= MAX_PID_DIGITS]
    if raw and (not words or len(numbers) != len(words) or 0 in numbers or len(words) > MAX_PIDS):
        raise ActionRefused(f"XSWITCH_PIDS: expected numbers of processes, 1 to {MAX_PIDS} of them")
    return frozenset(numbers)
