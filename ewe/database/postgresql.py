"""The driver of PostgreSQL, by psycopg, which the extra `database` installs. See drivers.py.

Rows are taken from the connection as they come (libpq's single-row mode), so that a result of any size needs
constant memory. This mode uses the extended protocol, which refuses two statements in one request.

What a statement sets (search_path, set_config()) would stay for the next request. A database that is only read is
therefore rolled back after each statement, which undoes that, too. Some state outlives a rollback: PREPARE, LISTEN,
locks of pg_advisory_lock(). DISCARD ALL ends it after every statement, so that each begins in a fresh session.

PostgreSQL reads a long row of operator characters, `/*/*/*...` or `+++...`, in a time that grows with the square of
its length: half a minute for 100 KB. Neither a time limit nor the end of the connection ends that. Such a statement
is therefore refused.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence

import psycopg

from ewe.database.drivers import Database, Result
from ewe.database.protocol import DatabaseError, Parameters, Value

CONNECT = 10  # seconds
MAX_OPERATORS = 500  # characters in a row
OPERATOR = r"[-~!@#^&|`?+*/%<>=]"
OPERATORS = re.compile(f"(?<!{OPERATOR}){OPERATOR}{{{MAX_OPERATORS + 1}}}")
# What may hold a character that looks like a parameter: strings, names, comments; then what is one, or is escaped
TOKENS = re.compile(
    r"""
      (?P<kept> [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
              | \$(?P<tag>[A-Za-z_]\w*)?\$ .*? (?:\$(?(tag)(?P=tag))\$|\Z)
              | --[^\n]* | /\*.*?(?:\*/|\Z) | :: )
    | \?(?P<question>\?)? | :(?P<name>[A-Za-z_]\w*)
    """,
    re.VERBOSE | re.DOTALL,
)


class PostgreSQL:
    """A connection to PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self.write = database.write
        try:
            place = psycopg.conninfo.make_conninfo(database.place, user=database.user or None)
            self.connection = psycopg.connect(place, connect_timeout=CONNECT, prepare_threshold=None)
        except psycopg.Error as reason:
            raise DatabaseError("UNAVAILABLE", f"{database.name}: {reason}") from None
        self.connection.read_only = not database.write

    def execute(self, statement: str, parameters: Parameters) -> Result:
        if OPERATORS.search(statement):
            more = f"more than {MAX_OPERATORS} operator characters in a row"
            raise DatabaseError("STATEMENT", f"{more}: pass such a text as a parameter")
        query, values = psycopg_style(statement, parameters)
        cursor = self.connection.cursor()
        rows = self.rows(cursor, query, values)
        # The first row, or the end, tells the names of the columns
        first = next(rows, None)
        columns = tuple(each.name for each in cursor.description or ())
        return Result(columns, after(first, rows))

    def rows(
        self, cursor: psycopg.Cursor, query: str, values: Parameters | None
    ) -> Generator[Sequence[Value], None, None]:
        """Run a statement and yield its rows, each value as one that a message may hold."""
        try:
            for row in cursor.stream(query.encode(), values):
                yield tuple(each if isinstance(each, Value) else str(each) for each in row)
        except psycopg.ProgrammingError as reason:
            # A statement without rows has been carried out when stream() says so; the server gives no SQLSTATE
            if reason.sqlstate is not None or cursor.description is not None or self.failed_on_server():
                raise self.failed(reason) from None
        except (psycopg.Error, UnicodeError) as reason:
            raise self.failed(reason) from None
        finally:
            cursor.close()

    def failed_on_server(self) -> bool:
        """Return whether the transaction cannot go on."""
        return self.connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR

    def failed(self, reason: Exception) -> DatabaseError:
        """Return the error for the gateway."""
        return DatabaseError("STATEMENT" if self.is_alive() else "UNAVAILABLE", str(reason))

    def end(self, commit: bool) -> None:
        try:
            if commit and self.write:
                self.connection.commit()
            else:
                self.connection.rollback()
            self.discard()
        except psycopg.Error as reason:
            raise self.failed(reason) from None

    def discard(self) -> None:
        """Forget the session's state; close a connection that cannot. Raises psycopg.Error."""
        # Not by a cursor: that would begin a transaction, in which DISCARD ALL is refused
        if self.connection.pgconn.exec_(b"DISCARD ALL").status != psycopg.pq.ExecStatus.COMMAND_OK:
            self.connection.close()

    def cancel(self) -> None:
        try:
            self.connection.cancel()
        except psycopg.Error:
            pass  # the connection is lost, and with it the statement

    def is_alive(self) -> bool:
        return not (self.connection.closed or self.connection.broken)

    def close(self) -> None:
        self.connection.close()


def after(
    first: Sequence[Value] | None, rows: Generator[Sequence[Value], None, None]
) -> Generator[Sequence[Value]]:
    """Yield the first row, if there is one, and the others."""
    if first is not None:
        yield first
    yield from rows


def psycopg_style(statement: str, parameters: Parameters) -> tuple[str, Parameters | None]:
    """Return a statement with psycopg's placeholders in place of ? and :name, and its parameters.

    ?? stands for the operator ? of jsonb. A :name that is no parameter stays, as in the slice of an array [a:b].
    """
    named = isinstance(parameters, Mapping)
    bound = len(parameters) > 0

    def placeholder(match: re.Match[str]) -> str:
        name = match["name"]
        if match["kept"] is not None:
            return escaped(match[0])
        if name is not None:
            return f"%({name})s" if named and name in parameters else match[0]
        return "?" if match["question"] or named or not bound else "%s"

    def escaped(text: str) -> str:
        return text.replace("%", "%%") if bound else text

    parts: list[str] = []
    at = 0
    for match in TOKENS.finditer(statement):
        parts += (escaped(statement[at : match.start()]), placeholder(match))
        at = match.end()
    parts.append(escaped(statement[at:]))
    return "".join(parts), parameters if bound else None
