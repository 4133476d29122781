"""A warm parent: an engine program that has loaded its modules, and forks for each user who needs an engine.

The parent runs `engines/warm_python.py` or `engines/warm_perl.pl` under the interpreter of the engine's command. It
is asked over a nameless socket pair, descriptors beside the order; its children lead sessions of their own:

    {"account": [name, uid, gid, [group …], home], "limits": {"cpu": seconds …}, "environment": {…}}   {"pid"}
"""

from __future__ import annotations

import os
import signal

from ewe.xswitch import channel
from ewe.xswitch.process import Account, Limits, clean_environment, start
from ewe.xswitch.settings import ENGINES, EngineKind

PATIENCE = 5.0  # seconds that a fork may take
PROGRAMS = {
    ".py": ("-s", f"{ENGINES}/warm_python.py"),
    ".pl": (f"{ENGINES}/warm_perl.pl",),
}  # by an engine's name


class WarmParent:
    """The parent of one language, as suexecme sees it."""

    def __init__(self, kind: EngineKind) -> None:
        """Start it. Raises OSError."""
        self.kind = kind
        self.channel, its = channel.pair()
        self.channel.settimeout(PATIENCE)
        program = PROGRAMS[os.path.splitext(kind.command[-1])[1]]
        command = [kind.command[0], *program, *kind.command[1:], *(kind.warm or ())]
        nobody = Account("nobody", os.geteuid(), os.getegid(), (), "/")
        with its:
            self.pid = start(
                command,
                {**clean_environment(nobody), **kind.environment},
                {0: its.fileno(), 1: 2, 2: 2},
                lambda: None,
                adopts=False,
            )

    def start(self, account: Account, limits: Limits, descriptors: list[int]) -> int:
        """Return the pid of a new engine, 0 if the parent does not answer."""
        order = {
            "account": account,
            "limits": limits._asdict(),
            "environment": {**clean_environment(account), **self.kind.environment},
        }
        try:
            channel.send(self.channel, order, descriptors)
            answer = channel.receive(self.channel)
        except OSError:
            return 0
        return int(answer[0]["pid"]) if answer else 0

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
