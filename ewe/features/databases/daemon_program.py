"""The database daemon that ewe starts for the setting `database`, as a program of the program manager.

    ewe ── fork ──▶ program manager ── fork ──▶ ewe-dbd       databases.toml, written by ewe, lists the databases
     └─ workers ── unix:ewe-dbd ────────────────▶┘            in a directory that only the workers' user may enter

The manager opens the listening socket, and the daemon inherits it. While the manager restarts the daemon, requests
wait in the backlog. Only the workers' user may use the daemon (SO_PEERCRED). Every database is read only.

The manager loads the daemon's modules and forks. A new Python process could fail: after root is given up, ewe's
directory may not be readable. A fork is also faster: the daemon restarts in some milliseconds. ewe's other
processes never load these modules.

Read next: ewe/database/inherited.py, the other side of the fork.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ewe.config.messages import quoted
from ewe.config.setting_types import parse_database
from ewe.features.database_settings import BROWSER, DATABASE, DBD
from ewe.gateway.kept_programs import ForkedProcess, KeptProgram, ProcessHandle

if TYPE_CHECKING:
    from ewe.config.settings import Config


class DaemonProgram(KeptProgram):
    """The daemon, with its socket and its settings file, both in a private directory."""

    setting = DATABASE.key
    rereads = (DATABASE.name,)

    def __init__(self, config: Config, path: str) -> None:
        """path: of the socket. The settings file is in the same directory. Raises OSError."""
        super().__init__("ewe-dbd", 1, path)
        self.address = f"unix:{self.path}"
        self.settings = os.path.join(os.path.dirname(path), "databases.toml")
        names = ", ".join(parse_database(each).name for each in config[DATABASE])
        url_path = config[BROWSER]
        browse = f"; visitors may browse them at {url_path}/ (browser)" if url_path else ""
        self.start_message = f"a database daemon at {self.address} runs for {names} (database){browse}"
        write_settings(config, self.settings)
        self.trace_path = config.trace

    def completed(self, config: Config) -> Config:
        """Return a configuration in which `dbd` names the daemon's socket, unless it names another daemon."""
        needs_daemon = config[DATABASE] and config[DBD] is None
        return config.replace(self.setting, dbd=self.address) if needs_daemon else config

    def write_settings(self, config: Config) -> None:
        """Write the databases of a configuration, which the daemon reads at HUP. Raises OSError."""
        if config[DATABASE]:
            write_settings(config, self.settings)

    def preload(self) -> None:
        """Import the daemon's modules, and the drivers of its databases: after root is given up, their directory
        may not be readable.
        """
        from ewe.database import inherited

        inherited.preload(self.settings)

    def start(self, output: int) -> ProcessHandle:
        """Fork a process that runs the daemon on the program's socket. Raises OSError.

        output: the descriptor of a pipe to ewe's log, for the daemon's messages.
        """
        from ewe.database import inherited

        trace = None
        if self.trace_path is not None:
            from ewe.trace import trace_at

            trace = trace_at(self.trace_path)  # the server has opened it before the manager was forked
        return ForkedProcess(lambda: inherited.serve(self.settings, self.socket.fileno(), output, trace))


def write_settings(config: Config, path: str) -> None:
    """Write the daemon's settings file, and replace the old one in one step, since the daemon may read at any time.

    A connection string may contain a password, so only the workers' user may read the file and its directory. That
    user owns the directory, and root may write the file: a symbolic link there must not lead root elsewhere.
    """
    lines = []
    for database in config[DATABASE]:
        name, driver, source = parse_database(database)
        source = os.path.abspath(source) if driver == "sqlite" else source
        lines += [f"[databases.{quoted(name)}]", f"driver = {quoted(driver)}", f"source = {quoted(source)}"]
    fresh = f"{path}.new"
    with suppress(FileNotFoundError):
        os.unlink(fresh)
    # O_EXCL makes a new file, and follows no link.
    new = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(new, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
        if os.geteuid() == 0:
            owner = os.stat(os.path.dirname(path))
            os.fchown(new, owner.st_uid, owner.st_gid)
    os.replace(fresh, path)
