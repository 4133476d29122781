"""Drivers: the daemon's interface to a database, over DB-API 2.0 (PEP 249), the call-level interface of Python.

The daemon runs any statement on any table (paper, section 3.1). It therefore uses a generic interface and dynamic
SQL. A driver is a class with the methods of `DatabaseConnection`; DRIVERS names them. Each further database needs
one more entry.

A worker of the daemon calls a connection from one thread. Only cancel() may be called from another.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple, Protocol

from ewe.database.protocol import DatabaseError, Parameters, Value
from ewe.registry import load


class Database(NamedTuple):
    """One database of the settings. source: a file for SQLite, a connection string for PostgreSQL.

    user: the account of PostgreSQL to connect as; "": that of the connection string.
    """

    name: str
    driver: str
    source: str
    write: bool
    user: str = ""


class Result(NamedTuple):
    """The result of a statement: the names of its columns, and its rows, which are fetched when they are read.

    If the rows are not read to their end, close them before the connection is used again.
    """

    columns: tuple[str, ...]
    rows: Generator[Sequence[Value], None, None]


class DatabaseConnection(Protocol):
    """An open connection to one database."""

    def execute(self, statement: str, parameters: Parameters) -> Result:
        """Run one statement. Raises DatabaseError("STATEMENT" or "UNAVAILABLE")."""

    def end(self, commit: bool) -> None:
        """End the transaction, if there is one. Raises DatabaseError if it cannot be committed."""

    def cancel(self) -> None:
        """Cancel the running statement, if there is one. Any thread may call this. Raises nothing."""

    def is_alive(self) -> bool:
        """Return whether the connection can still be used."""

    def close(self) -> None:
        """Close the connection. Raises nothing."""


DRIVERS = {"sqlite": "ewe.database.sqlite:SQLite", "postgresql": "ewe.database.postgresql:PostgreSQL"}


def connect(database: Database) -> DatabaseConnection:
    """Open a connection. Raises DatabaseError("UNAVAILABLE")."""
    try:
        driver = load(DRIVERS[database.driver])
    except ImportError as missing:
        text = f"the driver {database.driver} needs {missing.name}: pip install 'ewe-server[database]'"
        raise DatabaseError("UNAVAILABLE", text) from None
    connection: DatabaseConnection = driver(database)
    return connection
