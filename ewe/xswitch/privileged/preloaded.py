"""A preloaded parent: an engine program that has loaded its modules, and forks for each user who needs an engine.

The parent runs `engines/preloaded_python.py` or `engines/preloaded_perl.pl` under the interpreter of the engine's
command, as suexecme's own user (root). Messages go over a nameless socket pair, one JSON object in each packet:

    suexecme -> parent    {"account": [name, uid, gid, [group …], home], "limits": {"cpu": seconds …},
                          "cgroup": file, "namespace": file, "environment": {…}}, with the engine's descriptors
    engine -> suexecme    {"pid": P}: the new process itself answers; P is 0 if the fork failed

The parent forks twice: suexecme thereby adopts the engine (preloaded_python.py). Before the engine serves, it
starts a session and becomes the account's user.
"""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

from ewe.child_processes import send_signal
from ewe.xswitch import channel
from ewe.xswitch.engine_kinds import ENGINES, EngineKind
from ewe.xswitch.process import Account, EngineLimits, clean_environment, start

# That a preloaded parent may take to answer; SILENT_SECONDS of switch/orders.py is longer
ANSWER_SECONDS = 5.0
# The program of a preloaded parent, by the extension of the engine's file
PROGRAMS = {
    ".py": (f"{ENGINES}/preloaded_python.py",),
    ".pl": (f"{ENGINES}/preloaded_perl.pl",),
}
# By these, Python finds the packages of an account (`pip install --user`)
PACKAGES_VARIABLES = "HOME", "PYTHONUSERBASE"


class PreloadedParent:
    """The preloaded parent of one language, as suexecme sees it."""

    def __init__(self, kind: EngineKind) -> None:
        """Start the parent. Raises OSError."""
        self.kind = kind
        interpreter, *arguments = kind.command
        engine_file = kind.command[-1]
        # The parent in Perl cannot enter a mount namespace: Perl has no name for setns(2).
        self.enters_namespaces = engine_file.endswith(".py")
        self.channel, child_end = channel.pair()
        self.channel.settimeout(ANSWER_SECONDS)
        _, extension = os.path.splitext(engine_file)
        # The program of the parent loads the engine's file and the modules of `preload`
        command = [interpreter, *PROGRAMS[extension], *arguments, *(kind.preload or ())]
        # The parent keeps suexecme's uid: name and home are only for its environment. Python must add no packages
        # of an account, also if `environment` names a home: root would run their .pth files. The home is therefore
        # no directory. The engine adds the packages of its user.
        own_account = Account("nobody", os.geteuid(), os.getegid(), groups=(), home="/nonexistent")
        variables = {name: value for name, value in kind.variables.items() if name not in PACKAGES_VARIABLES}
        with child_end:
            self.pid = start(
                command,
                {**clean_environment(own_account), **variables},
                {0: child_end.fileno(), 1: 2, 2: 2},  # orders come on 0; 1 and 2 are the log
                lambda: None,  # it keeps its user
                adopts=False,
            )

    def start(
        self,
        account: Account,
        limits: EngineLimits,
        descriptors: list[int],
        cgroup: str = "",
        namespace: str = "",
    ) -> int:
        """Start an engine; return its pid, 0 if there is none.

        descriptors: data socket, pipe for errors, control socket. cgroup, namespace: the files by which the engine
        enters them; "": none.

        Return 0 also if the account's groups make the order too long. suexecme then starts the engine by its
        command.

        A parent that does not answer within ANSWER_SECONDS is killed: it must not start an engine later.
        """
        order = {
            "account": account,
            "limits": limits._asdict(),
            "cgroup": cgroup,
            "namespace": namespace,
            "environment": {**clean_environment(account), **self.kind.variables},
        }
        try:
            channel.send(self.channel, order, descriptors)
            answer = channel.receive(self.channel)
        except ValueError:  # the order is too long, and was not sent
            return 0
        except OSError:
            answer = None
        if answer is None:
            # Too late, or the parent has ended. The engine may have answered after the timeout: last_answer()
            answer = self.last_answer()
            self.end()
        if answer is None:
            return 0
        message, _ = answer
        return int(message["pid"])

    def last_answer(self) -> tuple[dict[str, Any], list[int]] | None:
        """Close the channel for answers; return one that came late, None without one.

        A child that has not answered yet cannot answer any more, and ends.
        """
        try:
            self.channel.shutdown(socket.SHUT_RD)
            return channel.receive(self.channel)
        except OSError:
            return None

    def close(self) -> None:
        """Close suexecme's end; the parent then ends."""
        self.channel.close()

    def end(self) -> None:
        """Kill the parent; its engines continue."""
        self.close()
        send_signal(self.pid, signal.SIGKILL)
