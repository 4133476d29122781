"""The settings of the database daemon: a TOML file with a table for each database.

An example:

listen = ["unix:/run/ewe-dbd.sock"]
[databases.log]
source = "/srv/www/access.db"
users = ["alice", "www-data"]
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ewe.config.messages import ConfigError, nearest, one_line
from ewe.config.setting import Key
from ewe.config.setting_types import BOOL, Kind, duration, list_of, one_of, size, whole
from ewe.config.table_kinds import TableKind
from ewe.config.tables import by_field_name, keys_of, read_file, setting
from ewe.database.drivers import DRIVERS, Database
from ewe.database.transports import ADDRESS, parse_transport

# Each of these functions checks a value of the file, and returns it. Raises ValueError.


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw or raw != one_line(raw):
        raise ValueError(raw)
    return raw


def _path(raw: object) -> str:
    return "" if raw == "" else _text(raw)


def _address(raw: object) -> str:
    parse_transport(address := _text(raw))
    return address


TEXT = Kind("TEXT", "a text in one line", _text)
PATH = Kind("FILE", 'a path in one line, or "" for none', _path)
TEXTS = list_of("TEXT", "a list of texts", _text)
LISTEN = Kind("ADDRESS", ADDRESS, _address)
ADDRESSES = list_of("ADDRESS", f"a list of {ADDRESS}", _address)
SECONDS = duration(0.01)
COUNT = whole(1, 1 << 31, "a whole number from 1")


MAX_QUOTED_NAME_CHARS = 60  # of a database's name that a message quotes: a peer may send any name


@dataclass(frozen=True)
class DatabaseSettings:
    """One table [databases.NAME]."""

    source: str = setting(
        "",
        TEXT,
        "a file for SQLite, relative to the settings file; a connection string for PostgreSQL",
        was="place",
    )
    driver: str = setting("sqlite", one_of(*DRIVERS), "the kind of the database")
    users: tuple[str, ...] = setting(
        (), TEXTS, "accounts that may use it through a Unix socket; none: the daemon's own"
    )
    key: str = setting(
        "", TEXT, "the secret of gateways that use the database through TCP; empty: no gateway may"
    )
    write: bool = setting(False, BOOL, "statements may change the database")
    per_user: bool = setting(
        False,
        BOOL,
        "PostgreSQL: connect as the account of the gateway's process; a connection fits that account only",
    )

    def database(self, name: str, *, read_only: bool = False, user: str = "") -> Database:
        """Return the description of the database for a driver.

        read_only: for a statement that must not change anything. user: the account of the gateway's process.
        """
        may_write = self.write and not read_only
        return Database(name, self.driver, self.source, may_write, user if self.per_user else "")


@dataclass(frozen=True)
class Settings:
    """All settings of the daemon. Times are in seconds."""

    listen: tuple[str, ...] = setting((), ADDRESSES, "the addresses at which gateways connect")
    connections: int = setting(
        4,
        whole(1, 1000, "1 to 1000"),
        "connections to databases, and so statements at once, of all daemons together",
    )
    daemons: int = setting(
        0,
        whole(0, 64, "0 to 64"),
        "processes that run statements; each gets its part of the connections; 0: one for each connection",
        was="demons",
    )
    memory: int = setting(256 << 20, size(16 << 20), "how much memory a process may take for its statements")
    queue: int = setting(1000, COUNT, "requests that may wait for a connection; above it UNAVAILABLE")
    queue_timeout: float = setting(
        10.0, SECONDS, "how long a request waits for a connection; then UNAVAILABLE", was="patience"
    )
    time_limit: float = setting(10.0, SECONDS, "how long a statement may take; then it is cancelled: TIMEOUT")
    write_timeout: float = setting(
        10.0, SECONDS, "how long a gateway may read nothing of its result; then it is dropped"
    )
    rows: int = setting(1_000_000, COUNT, "how many rows a result may have; above it TOO MANY ROWS")
    trace: str = setting("", PATH, "a file, or a named pipe, that gets a line for each event of a statement")
    databases: Mapping[str, DatabaseSettings] = field(default_factory=dict)
    renamed: tuple[str, ...] = ()  # a line for each key that the file calls by its former name


DEFAULTS = Settings()
GENERAL_KEYS = keys_of(Settings)
DATABASE_KEYS = keys_of(DatabaseSettings)
DATABASES = TableKind(
    "tables: [databases.NAME]", others=(TEXT, TableKind("a table", DATABASE_KEYS, needs=("source",)))
)
FILE_TABLE = TableKind(
    "a table", {**GENERAL_KEYS, "databases": Key(DATABASES, "The databases, by their names.")}
)


def from_toml(table: Mapping[str, object], where: str, base: Settings = DEFAULTS) -> Settings:
    """Convert a file's table to settings. where: how an error begins. Raises ConfigError."""
    values = by_field_name(FILE_TABLE.read_at(f"{where}:", table))
    databases = dict(base.databases)
    directory = os.path.dirname(os.path.abspath(where))  # `where` is the file's path
    for name, subtable in values.pop("databases", {}).items():
        database = DatabaseSettings(**by_field_name(subtable))
        if database.per_user and database.driver != "postgresql":
            raise ConfigError(
                f"{where}: [databases.{name}]: per-user is for PostgreSQL: {database.driver} knows no users"
            )
        if database.driver == "sqlite":
            database = replace(database, source=os.path.join(directory, database.source))
        databases[name] = database
    renamed = tuple(FILE_TABLE.renamed(f"{where}:", table))
    settings = replace(base, databases=databases, renamed=renamed, **values)
    if settings.daemons > settings.connections:
        raise ConfigError(f"{where}: daemons must not be more than connections: each needs one")
    return settings


def load(file: str | None) -> Settings:
    """Load a TOML file; None: the defaults. Raises ConfigError."""
    if file is None:
        return DEFAULTS
    return from_toml(read_file(file), file)


def unknown_database(name: str, settings: Settings) -> str:
    """Return the message about a database that the settings do not have."""
    name = name[:MAX_QUOTED_NAME_CHARS]  # to compare a name of 1 MB with others takes a tenth of a second
    return f"no database {name!r}{nearest(name, settings.databases)}"
