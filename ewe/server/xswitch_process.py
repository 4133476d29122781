"""The X-Switch process of the xswitch model: its socket, and the user of the workers.

This module opens the socket, and X-Switch inherits it. While the supervisor restarts X-Switch, requests wait in the
socket's backlog. The socket is in a directory that only the workers' user may enter, so no other user of the
machine can connect to it. The feature declares the command of the process (Feature.process).
"""

from __future__ import annotations

import os
import pwd
import socket
from typing import TYPE_CHECKING

from ewe.config.feature_table import XSWITCH, feature
from ewe.scratch import Scratch
from ewe.streams.listener import StartError

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.declaration import SupervisedProcess

BACKLOG = 1024  # connections that wait for X-Switch, also while it is started again


class XSwitchProcess:
    """The X-Switch that the supervisor starts. user: the workers' account; None if they keep their account."""

    def __init__(self, config: Config) -> None:
        """Raises StartError, ConfigError."""
        self.process: SupervisedProcess = feature(XSWITCH).process
        self.process.check(config)
        root = os.geteuid() == 0
        self.user = config.user or ("nobody" if root else None)
        try:
            account = pwd.getpwnam(self.user) if self.user else pwd.getpwuid(os.geteuid())
        except KeyError:
            if self.user:
                raise StartError(f"there is no user {self.user!r} (user)") from None
            raise StartError(
                f"X-Switch runs scripts as accounts, and uid {os.geteuid()} has none in /etc/passwd; "
                "start ewe as an account that is there, or under another model"
            ) from None
        self.directory = Scratch("ewe-xswitch-")
        path = os.path.join(self.directory.path, "socket")
        self.address = f"unix:{path}"
        try:
            self.socket = socket.socket(socket.AF_UNIX)
        except OSError:
            self.directory.close()
            raise
        try:
            self.socket.bind(path)
            self.socket.listen(BACKLOG)
            self.socket.set_inheritable(True)
            if root:
                for name in (path, self.directory.path):
                    os.chown(name, account.pw_uid, account.pw_gid)
        except OSError:  # such as a TMPDIR too long for the path of a socket: nothing else calls close()
            self.close()
            raise

    def completed(self, config: Config) -> Config:
        """Return a configuration completed for the workers, and for the process."""
        return self.process.completed(config, self.address, self.user)

    def command(self, config: Config, trace: int | None = None) -> list[str]:
        """Return the command that starts X-Switch. trace: an inheritable descriptor of the trace; None: no trace is
        written.
        """
        return self.process.command(config, self.socket.fileno(), self.user, trace)

    def close(self) -> None:
        """Remove the socket."""
        self.socket.close()
        self.directory.close()


def inherited_trace(path: str | None) -> int | None:
    """Return an inheritable copy of the trace's descriptor, which the caller closes; None without a trace."""
    if path is None:
        return None
    from ewe.trace import trace_at

    descriptor = os.dup(trace_at(path).file)
    os.set_inheritable(descriptor, True)
    return descriptor
