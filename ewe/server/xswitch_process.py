"""The X-Switch process of the xswitch model: its socket, its command, and the user of the workers.

This module opens the socket, and X-Switch inherits it. While the supervisor restarts X-Switch, requests wait in the
socket's backlog. The socket is in a directory that only the workers' user may enter, so no other user of the
machine can connect to it.
"""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys

from ewe.config.feature_table import XSWITCH
from ewe.config.messages import ConfigError
from ewe.config.settings import Config
from ewe.scratch import Scratch
from ewe.streams.listener import StartError

BACKLOG = 1024  # connections that wait for X-Switch, also while it is started again
COMMAND = sys.executable, "-m", XSWITCH


class XSwitchProcess:
    """The X-Switch that the supervisor starts. user: the workers' account; None if they keep their account."""

    def __init__(self, config: Config) -> None:
        """Raises StartError, ConfigError."""
        check_xswitch_settings(config)
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
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(path)
        self.socket.listen(BACKLOG)
        self.socket.set_inheritable(True)
        self.address = f"unix:{path}"
        if root:
            for name in (path, self.directory.path):
                os.chown(name, account.pw_uid, account.pw_gid)

    def completed(self, config: Config) -> Config:
        """Return a configuration completed by X-Switch's address, the workers' user, and users' directories."""
        found = {"xswitch": self.address}
        if self.user is not None:
            found["user"] = self.user
        if config.userdir is None:
            found["userdir"] = "public_html"
        return config.replace("the xswitch model", **found)

    def command(self, config: Config, trace: int | None = None) -> list[str]:
        """Return the command that starts X-Switch. trace: an inheritable descriptor of the trace; None: no trace is
        written.
        """
        assert config.userdir is not None
        # X-Switch uses these for the keys that its own file (--config) omits
        defaults = {
            "userdir": config.userdir,
            "min-uid": config.min_uid,
            "time-limit": Config.program_timeout.show(config.program_timeout),
            "status": str(config.xswitch_status).lower(),
        }
        if self.user is not None:
            # Workers may stay root (user), but X-Switch need not.
            defaults["user"] = "nobody" if self.user == "root" else self.user
            if any("engines" in location.values for site in config.sites for location in site.locations):
                # The workers serve the page of engines. X-Switch lets `managers` act on the engines of all users.
                defaults["managers"] = self.user
        command = [
            *COMMAND, "--listen", f"fd://{self.socket.fileno()}", "--parent", str(os.getpid()),
            "--log", config.logfile, "--log-level", config.loglevel,
        ]  # fmt: skip
        for root in roots_of(config):
            command += ["--root", root]
        for key, value in defaults.items():
            command += ["--default", f"{key}={value}"]
        if config.xswitch_config is not None:
            command += ["--config", os.path.abspath(config.xswitch_config)]
        if trace is not None:
            command += ["--trace", f"fd://{trace}"]
        return command

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


def roots_of(config: Config) -> list[str]:
    """Return the directories whose scripts X-Switch may run: those of all sites and of their locations."""
    found: list[str] = []
    for site_config in config.each_site():
        found += [site_config.cgi_path, site_config.documentroot]
        if site_config.libcgi_isolation == "process":
            found.append(site_config.libcgi_path)
    for location in (each for table in config.sites for each in table.locations):
        for key in ("root", "alias"):
            if (path := location.values.get(key)) is not None:
                # A variable of the location, such as $1, ends the fixed part of the path.
                path = path.partition("$")[0]
                found.append(path if os.path.isdir(path) else os.path.dirname(path) or ".")
    # /dev/null means that there is no directory of programs: `ewe -x DIR`
    return [*dict.fromkeys(os.path.realpath(each) for each in found if each != os.devnull)]


def check_xswitch_settings(config: Config) -> None:
    """Run X-Switch to check its settings file. Raises ConfigError."""
    if config.xswitch_config is not None:
        command = [*COMMAND, "--check-config", "--config", os.path.abspath(config.xswitch_config)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise ConfigError(done.stderr.strip().rpartition("\n")[2].removeprefix("ewe-xswitch: "))
