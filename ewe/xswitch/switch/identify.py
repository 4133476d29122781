"""Whose script is it, and may it run? suexecme says so; its answers are remembered for a moment.

Only suexecme, which runs as root, may look into every user's directory, and it carries out one order at a time.
Asking it for every request would be slow, and a flood of requests for one script would delay all users. An answer
therefore holds for REMEMBERED_SECONDS while the file is the same: its signature (times, size, inode) is compared
for each request. A refusal is remembered in the same way. While suexecme identifies a script, further requests for
it wait for the same answer.
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

REMEMBERED_SECONDS = 2.0
MAX_SCRIPTS = 5000  # whose owner is remembered, and as many that were refused
MAX_WALK = 50  # parts of a path that may follow the script's name

Signature = tuple[int, ...]  # what changes when a file does; empty if the main process cannot see the file


class Identified(NamedTuple):
    """A script that may run.

    path: without symbolic links, since one may lead elsewhere by the time that an engine is free. variables: of the
    script's environment; they replace those of the web server.
    """

    signature: Signature
    until: float
    user: str
    uid: int
    kind: EngineKind | None
    path: str
    variables: dict[bytes, bytes]


class RefusedScript(NamedTuple):
    """A script that may not run. status: for the client. reason: for the log."""

    signature: Signature
    until: float
    user: str
    status: int
    reason: str


Answer = Identified | RefusedScript


class Identifier:
    """Asks suexecme, and remembers its answers."""

    def __init__(self, context: Context, orders: Orders) -> None:
        self.context = context
        self.orders = orders
        self.identified: BoundedDict[str, Identified] = BoundedDict(MAX_SCRIPTS)  # by path
        self.refused: BoundedDict[str, RefusedScript] = BoundedDict(MAX_SCRIPTS)
        self.waiting: dict[tuple[str, Signature], list[Callable[[Answer], None]]] = {}

    def identify(self, path: str, signature: Signature, then: Callable[[Answer], None]) -> None:
        """Call `then` with the answer for a script, now or once suexecme has said it."""
        answer = self.identified.get(path) or self.refused.get(path)
        if answer is not None and answer.signature == signature and answer.until > time.monotonic():
            then(answer)
            return
        key = path, signature
        if key in self.waiting:
            self.waiting[key].append(then)
            return
        self.waiting[key] = [then]

        def answered(message: dict[str, Any]) -> None:
            answer = self.remember(path, signature, message)
            for each in self.waiting.pop(key):
                try:
                    each(answer)
                except Exception as fault:  # the other requests for this script go on
                    self.context.loop.on_fault(fault)

        self.orders.ask(self.user_of(path), {"order": "identify", "path": path}, answered)

    def remember(self, path: str, signature: Signature, message: dict[str, Any]) -> Answer:
        """Return suexecme's answer, and keep it unless it is a passing failure."""
        until = time.monotonic() + REMEMBERED_SECONDS
        if "refused" in message:
            refused = RefusedScript(
                signature, until, message.get("user", ""), message["status"], message["refused"]
            )
            if refused.status != 503:
                self.identified.pop(path, None)
                self.refused[path] = refused
            return refused
        kind = self.context.settings.kind_for(path, message["interpreter"], message["path"])
        variables = own_variables(message["user"], message["home"], message["path"])
        identified = Identified(
            signature, until, message["user"], message["uid"], kind, message["path"], variables
        )
        self.refused.pop(path, None)
        self.identified[path] = identified
        return identified

    def user_of(self, path: str) -> str:
        """Return in whose turn suexecme identifies a path: that of the home it lies in, "" for the site."""
        home, found, _ = path.partition(f"/{self.context.settings.userdir.strip('/')}/")
        return home if found else ""

    def clear(self) -> None:
        """Forget all answers."""
        self.identified.clear()
        self.refused.clear()


def script_file(params: dict[bytes, bytes]) -> str:
    """Return the file that the web server names; Apache says proxy:fcgi://localhost/path."""
    raw = params.get(b"SCRIPT_FILENAME", b"")
    if raw.startswith(b"proxy:"):
        raw = b"/" + raw.partition(b"://")[2].partition(b"/")[2]
    return os.fsdecode(raw)


def signature_of(path: str) -> Signature:
    """Return the signature of a file or directory."""
    try:
        return signed(os.stat(path))
    except (OSError, ValueError):
        return ()


def signed(status: os.stat_result) -> Signature:
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def script_path(whole: str, params: dict[bytes, bytes]) -> tuple[str, Signature]:
    """Return the script's path, and its signature.

    Some web servers leave PATH_INFO in SCRIPT_FILENAME: what follows the script's name becomes PATH_INFO here.
    """
    path = whole
    signature: Signature = ()
    for _ in range(MAX_WALK):
        try:
            status = os.stat(path)
        except NotADirectoryError:
            path = os.path.dirname(path)
            continue
        except (OSError, ValueError):
            return whole, ()
        if not stat.S_ISREG(status.st_mode):
            return whole, ()
        signature = signed(status)
        break
    if path is not whole:
        rest = os.fsencode(whole[len(path) :])
        params[b"PATH_INFO"] = rest
        params[b"SCRIPT_NAME"] = params.get(b"SCRIPT_NAME", b"").removesuffix(rest)
    return path, signature


def own_variables(user: str, home: str, path: str) -> dict[bytes, bytes]:
    """Return the variables of a script's environment that the web server has no say in."""
    return {
        b"SCRIPT_FILENAME": os.fsencode(path),
        b"PATH": SEARCH_PATH.encode(),
        b"HOME": os.fsencode(home),
        b"USER": user.encode(),
    }
