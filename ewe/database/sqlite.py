"""The driver of SQLite: a database that is one file, in the standard library. See drivers.py."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from urllib.parse import quote

from ewe.database.drivers import Database, Result
from ewe.database.protocol import DatabaseError, Parameters, Value

BUSY = 5.0  # seconds that SQLite waits for another process that writes
# Bytes of one value or row. A single step of a statement, such as instr(), takes time that grows with the square of
# them and hears no interrupt(). Who may only read is often a visitor
LONGEST_READ = 16_000_000
LONGEST_WRITTEN = 100_000_000
AT_ONCE = 100  # rows that are fetched in one call


class SQLite:
    """A connection to a file of SQLite; one that may only read cannot be made to write by any statement.

    Two things protect it: the file is opened with mode=ro, and an authorizer refuses what reaches other files
    (ATTACH, and functions that load or write files), since mode=ro is a property of one file only.
    """

    def __init__(self, database: Database) -> None:
        mode = "rw" if database.write else "ro"
        try:
            self.connection = sqlite3.connect(
                f"file:{quote(database.place)}?mode={mode}",
                uri=True,
                timeout=BUSY,
                isolation_level="DEFERRED" if database.write else None,
                check_same_thread=False,
            )
            self.connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
        except sqlite3.Error as reason:
            raise DatabaseError("UNAVAILABLE", f"{database.place}: {reason}") from None
        longest = LONGEST_WRITTEN if database.write else LONGEST_READ
        self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
        self.connection.set_authorizer(may_write if database.write else may_read)

    def execute(self, statement: str, parameters: Parameters) -> Result:
        try:
            cursor = self.connection.cursor()
            cursor.arraysize = AT_ONCE
            cursor.execute(statement, parameters)
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as reason:
            raise self.failed(reason) from None
        columns = tuple(name for name, *_ in cursor.description or ())
        return Result(columns, self.rows(cursor))

    def rows(self, cursor: sqlite3.Cursor) -> Generator[Sequence[Value], None, None]:
        """Yield a cursor's rows."""
        try:
            yield from cursor
        except (sqlite3.Error, UnicodeDecodeError) as reason:
            raise self.failed(reason) from None
        finally:
            cursor.close()

    def failed(self, reason: Exception) -> DatabaseError:
        """Return the error for the gateway."""
        gone = getattr(reason, "sqlite_errorname", "").startswith(UNAVAILABLE)
        return DatabaseError("UNAVAILABLE" if gone else "STATEMENT", str(reason))

    def end(self, commit: bool) -> None:
        if not self.connection.in_transaction:
            return
        try:
            if commit:
                self.connection.commit()
                return
        except sqlite3.Error as reason:
            raise self.failed(reason) from None
        finally:
            if self.connection.in_transaction:
                self.connection.rollback()

    def cancel(self) -> None:
        self.connection.interrupt()

    def is_alive(self) -> bool:
        return True

    def close(self) -> None:
        self.connection.close()


UNAVAILABLE = (
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_CANTOPEN",
    "SQLITE_IOERR",
    "SQLITE_FULL",
    "SQLITE_CORRUPT",
)
# Actions of the authorizer that reach beyond the one file: sqlite.org/c3ref/c_alter_table.html
BEYOND = frozenset({sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})
READS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})
# Pragmas that only tell of tables
TELLS = frozenset(
    {
        "table_info",
        "table_xinfo",
        "table_list",
        "index_list",
        "index_info",
        "foreign_key_list",
        "data_version",
    }
)
# SQLite asks whether it may write these when it opens a virtual table, which a full-text index is, and so is
# pragma_table_info(). It writes nothing then. A statement that would write them is refused by SQLite itself.
CATALOGUE = frozenset({"sqlite_master", "sqlite_schema"})
DANGEROUS = frozenset({"load_extension", "writefile", "edit", "fts3_tokenizer"})


def may_read(action: int, first: str | None, second: str | None, *_: object) -> int:
    """Decide what a statement may do that must not write: sqlite3_set_authorizer()."""
    if action == sqlite3.SQLITE_PRAGMA:
        allowed = (first or "").lower() in TELLS
    elif action == sqlite3.SQLITE_FUNCTION:
        allowed = (second or "").lower() not in DANGEROUS
    elif action == sqlite3.SQLITE_UPDATE:
        allowed = first in CATALOGUE
    else:
        allowed = action in READS
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def may_write(action: int, first: str | None, second: str | None, *_: object) -> int:
    """Decide what a statement may do that may write, in its own file only."""
    if action == sqlite3.SQLITE_PRAGMA:
        allowed = (first or "").lower() in TELLS
    elif action == sqlite3.SQLITE_FUNCTION:
        allowed = (second or "").lower() not in DANGEROUS
    else:
        allowed = action not in BEYOND
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
