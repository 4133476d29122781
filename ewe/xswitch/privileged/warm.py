"""A warm parent: an engine program that has loaded its modules, and forks for each user who needs an engine.

The parent runs `engines/warm_python.py` or `engines/warm_perl.pl` under the interpreter of the engine's command, as
suexecme's own user (root). Messages go over a nameless socket pair, one JSON object a packet:

    suexecme -> parent    {"account": [name, uid, gid, [group …], home], "limits": {"cpu": seconds …},
                          "environment": {…}}, with the engine's descriptors
    engine -> suexecme    {"pid": P}: the new process itself answers; P is 0 if there was no room to fork

The parent forks twice, and the process in between ends at once. suexecme thereby adopts the engine, and learns of
its end in reap(). Before the engine serves, it starts a session and becomes the account's user.
"""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

from ewe.xswitch import channel
from ewe.xswitch.engine_kinds import ENGINES, EngineKind
from ewe.xswitch.process import Account, Limits, clean_environment, start

ANSWER_SECONDS = 5.0  # that a warm parent may take to answer
# What runs a warm parent, by the extension of the engine's file
PROGRAMS = {
    ".py": ("-s", f"{ENGINES}/warm_python.py"),
    ".pl": (f"{ENGINES}/warm_perl.pl",),
}


class WarmParent:
    """The parent of one language, as suexecme sees it."""

    def __init__(self, kind: EngineKind) -> None:
        """Start it. Raises OSError."""
        self.kind = kind
        self.channel, child_end = channel.pair()
        self.channel.settimeout(ANSWER_SECONDS)
        program = PROGRAMS[os.path.splitext(kind.command[-1])[1]]
        command = [kind.command[0], *program, *kind.command[1:], *(kind.warm or ())]
        # The parent keeps our uid: the name and the home are for its environment alone.
        ours = Account("nobody", os.geteuid(), os.getegid(), (), "/")
        with child_end:
            self.pid = start(
                command,
                {**clean_environment(ours), **kind.variables},
                {0: child_end.fileno(), 1: 2, 2: 2},
                lambda: None,
                adopts=False,
            )

    def start(self, account: Account, limits: Limits, descriptors: list[int]) -> int:
        """Return the pid of a new engine, 0 if there is none.

        A parent that does not answer within ANSWER_SECONDS is ended, so that it cannot start an engine later.
        """
        order = {
            "account": account,
            "limits": limits._asdict(),
            "environment": {**clean_environment(account), **self.kind.variables},
        }
        try:
            channel.send(self.channel, order, descriptors)
            answer = channel.receive(self.channel)
        except OSError:
            answer = None
        if answer is None:
            answer = self.last_answer()
            self.end()
        return int(answer[0]["pid"]) if answer is not None else 0

    def last_answer(self) -> tuple[dict[str, Any], list[int]] | None:
        """Take no more answers; return the one that came after all. A child that has yet to answer ends instead."""
        try:
            self.channel.shutdown(socket.SHUT_RD)
            return channel.receive(self.channel)
        except OSError:
            return None

    def close(self) -> None:
        """Close our end; the parent ends."""
        self.channel.close()

    def end(self) -> None:
        """End the parent; its engines live on."""
        self.close()
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
