"""Identifies scripts: the owner, and whether the script may run. suexecme decides; its answers are cached.

Only suexecme, which runs as root, may look into every user's directory, and it carries out one order at a time. An
order for every request would be slow, and a flood of requests for one script would delay all users. An answer is
therefore valid for CACHE_SECONDS while the file is the same: its signature (times, size, inode) is compared
for each request. A refusal is cached in the same way. While suexecme identifies a script, further requests for it
wait for the same answer.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ewe.bounded import BoundedDict
from ewe.config.defaults import SEARCH_PATH
from ewe.xswitch.engine_kinds import EngineKind
from ewe.xswitch.switch.context import Context
from ewe.xswitch.switch.orders import Orders

CACHE_SECONDS = 2.0  # that an answer of suexecme is valid
MAX_SCRIPTS = 5000  # cached owners, and as many cached refusals
MAX_PATH_BYTES = 4096  # of a path, its final NUL included: Linux's PATH_MAX
MAX_PATH_INFO_PARTS = 50  # parts of a path that may follow the script's name (PATH_INFO)

Signature = tuple[int, ...]  # differs when a file differs; empty if the main process cannot see the file


class IdentifiedScript(NamedTuple):
    """A script that may run.

    path: without symbolic links, because a link may lead elsewhere when an engine is free. variables: of the
    script's environment; they replace those of the web server. groups: of the user, those with a table
    [groups.NAME].
    """

    signature: Signature
    expires_at: float
    user: str
    uid: int
    kind: EngineKind | None
    path: str
    variables: dict[bytes, bytes]
    groups: tuple[str, ...] = ()


class RefusedScript(NamedTuple):
    """A script that must not run. status: for the client. reason: for the log.

    home: of the user, if a package of the user is being unpacked: the script may be in it.
    """

    signature: Signature
    expires_at: float
    user: str
    status: int
    reason: str
    home: str = ""


Answer = IdentifiedScript | RefusedScript


class Identifier:
    """Asks suexecme, and caches its answers."""

    def __init__(self, context: Context, orders: Orders) -> None:
        self.context = context
        self.orders = orders
        # By path. There are two caches: a flood of refusals must not drop the answers about other scripts
        self.identified_scripts: BoundedDict[str, IdentifiedScript] = BoundedDict(MAX_SCRIPTS)
        self.refused_scripts: BoundedDict[str, RefusedScript] = BoundedDict(MAX_SCRIPTS)
        # (path, signature) of a script that suexecme is identifying -> the callbacks of requests that wait for it
        self.waiting_callbacks: dict[tuple[str, Signature], list[Callable[[Answer], None]]] = {}

    def identify(self, path: str, signature: Signature, on_answer: Callable[[Answer], None]) -> None:
        """Call `on_answer` with suexecme's answer for a script: now if it is cached, else once it has come.

        signature: that of the file now (file_signature). An answer for another signature is out of date.
        """
        answer = self.identified_scripts.get(path) or self.refused_scripts.get(path)
        if answer is not None and answer.signature == signature and answer.expires_at > time.monotonic():
            on_answer(answer)
            return
        key = path, signature
        if key in self.waiting_callbacks:
            self.waiting_callbacks[key].append(on_answer)
            return
        self.waiting_callbacks[key] = [on_answer]

        def answered(message: dict[str, Any]) -> None:
            """Cache suexecme's answer, and pass it to all requests that wait for it."""
            callbacks = self.waiting_callbacks.pop(key)
            answer = self.cache_answer(path, signature, message)
            for callback in callbacks:
                try:
                    callback(answer)
                except Exception as fault:  # the other requests for this script go on
                    self.context.loop.on_fault(fault)

        home = self.context.settings.home_in(path)
        self.orders.ask(home, {"order": "identify", "path": path}, answered)

    def cache_answer(self, path: str, signature: Signature, message: dict[str, Any]) -> Answer:
        """Return suexecme's answer for a path, and cache it.

        A refusal that may soon be wrong is not cached: a temporary failure (503), or one whose script may be in a
        package that is being unpacked (`home`).
        """
        expires_at = time.monotonic() + CACHE_SECONDS
        if "refused" in message:
            refused = RefusedScript(
                signature,
                expires_at,
                user=message.get("user", ""),
                status=message["status"],
                reason=message["refused"],
                home=message.get("installing", ""),
            )
            if refused.status != 503 and not refused.home:
                self.identified_scripts.pop(path, None)
                self.refused_scripts[path] = refused
            return refused
        kind = self.context.settings.engines.get(message["language"]) or self.context.settings.kind_for(
            path, message["interpreter"], message["path"]
        )
        # X-Switch's own variables take precedence over those of the script's package
        variables = {
            **{name.encode(): value.encode() for name, value in message["environment"].items()},
            **own_variables(message["user"], message["home"], message["path"]),
        }
        identified = IdentifiedScript(
            signature,
            expires_at,
            user=message["user"],
            uid=message["uid"],
            kind=kind,
            path=message["path"],
            variables=variables,
            groups=tuple(message["groups"]),
        )
        self.refused_scripts.pop(path, None)
        self.identified_scripts[path] = identified
        return identified

    def clear(self) -> None:
        """Drop all cached answers."""
        self.identified_scripts.clear()
        self.refused_scripts.clear()


def script_file(params: dict[bytes, bytes]) -> str:
    """Return the file that the web server names. Apache sends proxy:fcgi://localhost/path.

    If an address in the settings of the web server ends with a slash, the path begins with two. Only one remains:
    the table [directories] and the names of homes have one.
    """
    raw = params.get(b"SCRIPT_FILENAME", b"")
    if raw.startswith(b"proxy:"):
        _, _, host_and_path = raw.partition(b"://")
        _, _, path = host_and_path.partition(b"/")
        raw = b"/" + path
    if raw.startswith(b"//"):
        raw = b"/" + raw.lstrip(b"/")
    return os.fsdecode(raw)


def file_signature(path: str) -> Signature:
    """Return the signature of a file or directory; () if there is none."""
    try:
        return signature_from_status(os.stat(path))
    except (OSError, ValueError):
        return ()


def signature_from_status(status: os.stat_result) -> Signature:
    """Return the values that differ once the file was changed or replaced."""
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def script_path(file: str, params: dict[bytes, bytes]) -> tuple[str, Signature]:
    """Return the script's path, and its signature; () if there is no regular file.

    file: as the web server names it. Some web servers leave PATH_INFO at its end: this function then moves it to
    `params`, and takes it off SCRIPT_NAME.
    """
    path = file
    signature: Signature = ()
    for _ in range(MAX_PATH_INFO_PARTS):
        try:
            status = os.stat(path)
        except NotADirectoryError:  # a part of the path is a file: PATH_INFO follows it
            path = os.path.dirname(path)
            continue
        except (OSError, ValueError):
            return file, ()
        if not stat.S_ISREG(status.st_mode):
            return file, ()
        signature = signature_from_status(status)
        break
    if path is not file:
        path_info = os.fsencode(file[len(path) :])
        params[b"PATH_INFO"] = path_info
        params[b"SCRIPT_NAME"] = params.get(b"SCRIPT_NAME", b"").removesuffix(path_info)
    return path, signature


def own_variables(user: str, home: str, path: str) -> dict[bytes, bytes]:
    """Return the variables of a script's environment that X-Switch sets itself."""
    return {
        b"SCRIPT_FILENAME": os.fsencode(path),
        b"PATH": SEARCH_PATH.encode(),
        b"HOME": os.fsencode(home),
        b"USER": os.fsencode(user),
    }
