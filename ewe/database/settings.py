"""The demon's settings: a TOML file. A short one:

listen = ["unix:/run/ewe-dbd.sock"]
[databases.log]
place = "/srv/www/access.db"
users = ["alice", "www-data"]
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ewe.config.messages import ConfigError, nearest, one_line
from ewe.config.setting_types import BOOL, Kind, duration, list_of, size, whole
from ewe.config.tables import Described, described, read_file, read_table, setting, sub_table
from ewe.database.drivers import DRIVERS, Database
from ewe.database.transports import ADDRESS, parse_transport


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw or raw != one_line(raw):
        raise ValueError(raw)
    return raw


def _driver(raw: object) -> str:
    if raw not in DRIVERS:
        raise ValueError(raw)
    return str(raw)


def _address(raw: object) -> str:
    parse_transport(address := _text(raw))
    return address


TEXT = Kind("TEXT", "a text in one line", _text)
TEXTS = list_of("TEXT", "texts", _text)
ADDRESSES = list_of("ADDRESS", ADDRESS, _address)
DRIVER = Kind("DRIVER", f"one of {', '.join(DRIVERS)}", _driver)
SECONDS = duration(0.01)
COUNT = whole(1, 1 << 31, "a whole number from 1")


@dataclass(frozen=True)
class DatabaseSettings:
    """One table [databases.NAME]."""

    place: str = setting(
        "", TEXT, "a file for SQLite, relative to the settings file; a connection string for PostgreSQL"
    )
    driver: str = setting("sqlite", DRIVER, "what speaks to the database")
    users: tuple[str, ...] = setting(
        (), TEXTS, "accounts that may use it through a Unix socket; none: the demon's own"
    )
    key: str = setting("", TEXT, "who knows it may use the database through TCP; none: nobody may")
    write: bool = setting(False, BOOL, "statements may change the database")
    per_user: bool = setting(
        False,
        BOOL,
        "PostgreSQL: connect as the account of the gateway's process; a connection fits that account only",
    )

    def database(self, name: str, *, read_only: bool = False, user: str = "") -> Database:
        """Return what a driver needs to know.

        read_only: for a statement that must not change anything. user: the account of the gateway's process.
        """
        write = self.write and not read_only
        return Database(name, self.driver, self.place, write, user if self.per_user else "")


@dataclass(frozen=True)
class Settings:
    """All settings of the demon. Times are in seconds."""

    listen: tuple[str, ...] = setting((), ADDRESSES, "where gateways connect")
    connections: int = setting(
        4,
        whole(1, 1000, "1 to 1000"),
        "connections to databases, and so statements at once, of all demons together",
    )
    demons: int = setting(
        0,
        whole(0, 64, "0 to 64"),
        "processes that run statements; each gets its part of the connections; 0: one for each connection",
    )
    memory: int = setting(
        256 << 20, size(16 << 20), "that a process which runs statements may take beyond what it starts with"
    )
    queue: int = setting(1000, COUNT, "requests that may wait for a connection; above it UNAVAILABLE")
    patience: float = setting(10.0, SECONDS, "how long a request waits for a connection; then UNAVAILABLE")
    time_limit: float = setting(10.0, SECONDS, "of one statement; then it is cancelled: TIMEOUT")
    write_timeout: float = setting(
        10.0, SECONDS, "how long a gateway may read nothing of its result; then it is dropped"
    )
    rows: int = setting(1_000_000, COUNT, "of one result; above it TOO MANY ROWS")
    databases: Mapping[str, DatabaseSettings] = field(default_factory=dict)


DEFAULTS = Settings()
GENERAL = described(Settings)
DATABASE: dict[str, Described] = described(DatabaseSettings)


def from_toml(table: Mapping[str, object], where: str, base: Settings = DEFAULTS) -> Settings:
    """Return the settings that a file's table makes. where: how an error begins. Raises ConfigError."""
    general = {key: value for key, value in table.items() if key != "databases"}
    settings = replace(base, **read_table(general, GENERAL, where))
    databases = dict(base.databases)
    directory = os.path.dirname(os.path.abspath(where))
    for name, own in sub_table(table, "databases", where).items():
        place = f"{where}: [databases.{name}]"
        if not isinstance(own, dict):
            raise ConfigError(f"{place} must be a table")
        made = DatabaseSettings(**read_table(own, DATABASE, place))
        if not made.place:
            raise ConfigError(f"{place}: place is missing: where is the database?")
        if made.per_user and made.driver != "postgresql":
            raise ConfigError(f"{place}: per-user is for PostgreSQL: {made.driver} knows no users")
        if made.driver == "sqlite":
            made = replace(made, place=os.path.join(directory, made.place))
        databases[name] = made
    if settings.demons > settings.connections:
        raise ConfigError(f"{where}: demons must not be more than connections: each needs one")
    return replace(settings, databases=databases)


def load(file: str | None) -> Settings:
    """Load a TOML file; None: the defaults. Raises ConfigError."""
    if file is None:
        return DEFAULTS
    return from_toml(read_file(file), file)


def unknown(name: str, settings: Settings) -> str:
    """Return the words for a database that the settings do not have."""
    return f"no database {name[:60]!r}{nearest(name, settings.databases)}"
