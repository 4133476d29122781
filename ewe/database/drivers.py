"""Drivers: what the demon needs of a database, over DB-API 2.0 (PEP 249), the call-level interface of Python.

The demon runs any statement on any table (paper, section 3.1), so it uses a generic interface and dynamic SQL. A
driver is a class with the methods of `Connection`; DRIVERS names them. One more database is one more entry.

A worker of the demon calls a connection from one thread. Only cancel() may come from another.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple, Protocol

from ewe.database.protocol import DatabaseError, Parameters, Value
from ewe.registry import load


class Database(NamedTuple):
    """One database of the settings. place: a file for SQLite, a connection string for PostgreSQL.

    user: the account of PostgreSQL to connect as; "": that of the connection string.
    """

    name: str
    driver: str
    place: str
    write: bool
    user: str = ""


class Result(NamedTuple):
    """What a statement returns: the names of its columns, and its rows, which are fetched as they are taken.

    Rows that are not taken to their end must be closed before the connection is used again.
    """

    columns: tuple[str, ...]
    rows: Generator[Sequence[Value], None, None]


class Connection(Protocol):
    """An open connection to one database."""

    def execute(self, statement: str, parameters: Parameters) -> Result:
        """Run one statement. Raises DatabaseError("STATEMENT" or "UNAVAILABLE")."""

    def end(self, commit: bool) -> None:
        """End the transaction, if there is one. Raises DatabaseError if it cannot be committed."""

    def cancel(self) -> None:
        """End the statement that runs now, if there is one. Any thread may call this. Raises nothing."""

    def is_alive(self) -> bool:
        """Return whether the connection can still be used."""

    def close(self) -> None:
        """Close it. Raises nothing."""


DRIVERS = {"sqlite": "ewe.database.sqlite:SQLite", "postgresql": "ewe.database.postgresql:PostgreSQL"}


def connect(database: Database) -> Connection:
    """Open a connection. Raises DatabaseError("UNAVAILABLE")."""
    try:
        driver = load(DRIVERS[database.driver])
    except ImportError as missing:
        text = f"the driver {database.driver} needs {missing.name}: pip install 'ewe-server[database]'"
        raise DatabaseError("UNAVAILABLE", text) from None
    connection: Connection = driver(database)
    return connection
