"""The driver for SQLite: a database that is one file, in the standard library. See drivers.py."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator, Sequence
from functools import partial
from urllib.parse import quote

from ewe.database.drivers import Database, Result
from ewe.database.protocol import DatabaseError, Parameters, Value

BUSY_TIMEOUT_S = 5.0  # seconds that SQLite waits for another process that writes
# Bytes of one value or row. The time of a single step, such as instr(), grows with the square of this size, and
# interrupt() has no effect within a step. The limit for reading is lower, because a visitor may write the statement
MAX_READ_BYTES = 16_000_000
MAX_WRITTEN_BYTES = 100_000_000


class SQLite:
    """A connection to a file of SQLite. No statement can make a read-only connection write.

    Two things protect it: the file is opened with mode=ro, and an authorizer refuses access to other files (ATTACH,
    and functions that load or write files). The authorizer is needed because mode=ro protects one file only.
    """

    def __init__(self, database: Database) -> None:
        """Open the file, which must exist. Raises DatabaseError("UNAVAILABLE")."""
        self.may_write = database.write
        mode = "rw" if database.write else "ro"
        try:
            self.connection = sqlite3.connect(
                f"file:{quote(os.fsencode(database.source))}?mode={mode}",
                uri=True,
                timeout=BUSY_TIMEOUT_S,
                # None: execute() begins the transactions. The module itself does so only for some statements that
                # write: not for "WITH ... INSERT". The change would stay even if it ends with an error
                isolation_level=None,
                check_same_thread=False,
            )
            # connect() reads nothing: this shows whether the file is a database
            self.connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
        except sqlite3.Error as reason:
            raise DatabaseError("UNAVAILABLE", f"{database.source}: {reason}") from None
        max_bytes = MAX_WRITTEN_BYTES if database.write else MAX_READ_BYTES
        self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max_bytes)
        self.connection.set_authorizer(partial(authorize, database.write))

    def execute(self, statement: str, parameters: Parameters) -> Result:
        """Run a statement (DatabaseConnection.execute)."""
        try:
            # A read-only connection needs no transaction
            if self.may_write:
                self.connection.execute("BEGIN")
            cursor = self.connection.execute(statement, parameters)
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as reason:
            raise self.error_for_gateway(reason) from None
        columns = tuple(name for name, *_ in cursor.description or ())
        return Result(columns, self.rows(cursor))

    def rows(self, cursor: sqlite3.Cursor) -> Generator[Sequence[Value], None, None]:
        """Yield a cursor's rows. A text may have bytes that are not UTF-8: they become U+FFFD."""
        try:
            try:
                yield from cursor
            except sqlite3.OperationalError as reason:
                if not str(reason).startswith(NOT_UTF8):
                    raise
                # The cursor still stands at this row. From here on each text costs a call of Python
                self.connection.text_factory = partial(str, encoding="utf-8", errors="replace")
                yield from cursor
        except (sqlite3.Error, UnicodeDecodeError) as reason:
            raise self.error_for_gateway(reason) from None
        finally:
            self.connection.text_factory = str
            cursor.close()

    def error_for_gateway(self, reason: Exception) -> DatabaseError:
        """Return the error for the gateway: is the statement its cause, or the file?"""
        is_unavailable = getattr(reason, "sqlite_errorname", "").startswith(UNAVAILABLE)
        return DatabaseError("UNAVAILABLE" if is_unavailable else "STATEMENT", str(reason))

    def end(self, commit: bool) -> None:
        """Commit or roll back the transaction, if there is one. Raises DatabaseError if a commit fails."""
        if not self.connection.in_transaction:
            return
        try:
            if commit:
                self.connection.commit()
                return
        except sqlite3.Error as reason:
            raise self.error_for_gateway(reason) from None
        finally:
            if self.connection.in_transaction:
                self.connection.rollback()

    def cancel(self) -> None:
        self.connection.interrupt()

    def is_alive(self) -> bool:
        return True

    def close(self) -> None:
        self.connection.close()


NOT_UTF8 = "Could not decode to UTF-8"  # the beginning of the error for such a text
# Names of errors that the file or another process causes, and not the statement
UNAVAILABLE = (
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_CANTOPEN",
    "SQLITE_IOERR",
    "SQLITE_FULL",
    "SQLITE_CORRUPT",
)
# Actions of the authorizer that reach beyond the one file: sqlite.org/c3ref/c_alter_table.html
OTHER_FILE_ACTIONS = frozenset({sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})
READING_ACTIONS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})
# Pragmas that only describe tables
DESCRIBING_PRAGMAS = frozenset(
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
# When SQLite opens a virtual table, such as a full-text index or pragma_table_info(), it asks whether it may write
# these. It writes nothing then. SQLite itself refuses a statement that would write them.
SCHEMA_TABLES = frozenset({"sqlite_master", "sqlite_schema"})
FORBIDDEN_FUNCTIONS = frozenset({"load_extension", "writefile", "edit", "fts3_tokenizer"})


def authorize(
    may_write: bool, action: int, first: str | None, second: str | None, schema: str | None, *_: object
) -> int:
    """Decide whether a statement may do an action; return SQLITE_OK or SQLITE_DENY.

    SQLite calls this for each action (sqlite3_set_authorizer()). A statement that may write may do so in its own
    file only. first, second: the arguments of the action, such as the name of a table, a pragma or a function.
    schema: "main" or "temp".
    """
    if action == sqlite3.SQLITE_PRAGMA:
        allowed = (first or "").lower() in DESCRIBING_PRAGMAS
    elif action == sqlite3.SQLITE_FUNCTION:
        allowed = (second or "").lower() not in FORBIDDEN_FUNCTIONS
    elif may_write and action == sqlite3.SQLITE_INSERT:
        # A temporary table stays in the connection: the next request would read it in place of the file's table
        allowed = schema != "temp"
    elif may_write:
        allowed = action not in OTHER_FILE_ACTIONS
    elif action == sqlite3.SQLITE_UPDATE:
        allowed = first in SCHEMA_TABLES  # SQLite asks for it without writing
    else:
        allowed = action in READING_ACTIONS
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
