"""The database demon that ewe starts for the setting `database`, as one more kept program.

    ewe ── fork ──▶ program manager ── fork ──▶ ewe-dbd       databases.toml, written by ewe, names the databases
     └─ workers ── unix:ewe-dbd ────────────────▶┘            in a directory that only the workers' user may enter

The manager holds the listening socket, and the demon inherits it. While the manager starts the demon again,
requests wait in the backlog. Only the workers' user may ask the demon (SO_PEERCRED). Every database is read only.

The manager loads the demon's modules and forks. A new Python could fail: once root is given up, ewe's directory may
not be readable. A fork is also faster: the demon is back after some milliseconds. ewe's other processes never load
these modules.

Read next: ewe/database/inherited.py, the other side of the fork.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from ewe.config.messages import quoted
from ewe.config.setting_types import parse_database
from ewe.server.kept_programs import Forked, Program, Running

if TYPE_CHECKING:
    from ewe.config.settings import Config

DEMON = "ewe.database.inherited"


class DemonProgram(Program):
    """The demon: its socket and its settings file, both in a private directory."""

    setting = "database"
    rereads = True

    def __init__(self, directory: str, config: Config) -> None:
        super().__init__("ewe-dbd", 1, os.path.join(directory, "ewe-dbd"))
        self.address = f"unix:{self.path}"
        self.settings = os.path.join(directory, "databases.toml")
        names = ", ".join(parse_database(each)[0] for each in config.database)
        browse = f"; visitors may browse them at {config.browser}/ (browser)" if config.browser else ""
        self.described = f"a database demon at {self.address} runs for {names} (database){browse}"
        write_settings(config, self.settings)

    def preload(self) -> None:
        importlib.import_module(DEMON).preload(self.settings)

    def start(self, output: int) -> Running:
        demon = importlib.import_module(DEMON)
        return Forked(lambda: demon.serve(self.settings, self.socket.fileno(), output))


def needs_demon(config: Config) -> bool:
    """Return whether ewe is to start a demon: it has databases, and no demon is named."""
    return bool(config.database) and config.dbd is None


def write_settings(config: Config, path: str) -> None:
    """Write the demon's settings file, in one piece: the demon may read it at any time.

    A connection string may contain a password, so the file is for the workers' user alone, as its directory is.
    """
    lines = []
    for each in config.database:
        name, driver, place = parse_database(each)
        place = os.path.abspath(place) if driver == "sqlite" else place
        lines += [f"[databases.{quoted(name)}]", f"driver = {quoted(driver)}", f"place = {quoted(place)}"]
    fresh = f"{path}.new"
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        file.write("\n".join(lines) + "\n")
    if os.geteuid() == 0:
        owner = os.stat(os.path.dirname(path))
        os.chown(fresh, owner.st_uid, owner.st_gid)
    os.replace(fresh, path)
