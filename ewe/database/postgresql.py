"""The driver for PostgreSQL, with psycopg, which the extra `database` installs. See drivers.py.

Rows are read from the connection as they come (libpq's single-row mode), so a result of any size needs constant
memory. This mode uses the extended protocol, which refuses two statements in one request.

A statement may change the session (search_path, set_config()), and the next request would find the change. On a
connection that may only read, each statement is therefore rolled back, which undoes such changes. Some state
outlives a commit or a rollback: PREPARE, LISTEN, locks of pg_advisory_lock(). DISCARD ALL after every statement
ends it. Each statement thus begins in a fresh session.

PostgreSQL parses a long row of operator characters, `/*/*/*...` or `+++...`, in a time that grows with the square
of its length: half a minute for 100 KB. Neither a time limit nor the end of the connection stops that. The driver
therefore refuses such a statement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping, Sequence

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.types.json import set_json_loads
from psycopg.types.string import TextLoader

from ewe.database.drivers import Database, Result
from ewe.database.protocol import DatabaseError, Parameters, Value

CONNECT_TIMEOUT_S = 10
MAX_OPERATOR_CHARS = 500  # of operators in a row
# Types with values that Python's classes lack: infinity, years before 1 and after 9999, the time 24:00. Ranges and
# arrays of them use the same loaders.
TYPES_OF_TIME = ("date", "time", "timetz", "timestamp", "timestamptz")
OPERATOR = r"[-~!@#^&|`?+*/%<>=]"
OPERATORS = re.compile(f"(?<!{OPERATOR}){OPERATOR}{{{MAX_OPERATOR_CHARS + 1}}}")
# The characters of names and of the tags of $tag$: PostgreSQL takes each character above ASCII for a letter
NAME = r"A-Za-z0-9_\x80-\U0010ffff"
# Text in which a character only looks like a parameter: strings, names, comments; then parameters and escapes. The
# end of a word begins no string with a prefix: LIKE'...' has no escapes, and a$b$ is a name
TOKENS = re.compile(
    rf"""
      (?P<not_a_parameter> (?<![{NAME}$])[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
              | (?<![{NAME}$])\$(?P<tag>(?![0-9])[{NAME}]+)?\$ .*? (?:\$(?(tag)(?P=tag))\$|\Z)
              | --[^\n]* | /\*.*?(?:\*/|\Z) | :: )
    | \?(?P<second_question_mark>\?)? | :(?P<name>[A-Za-z_]\w*)
    """,
    re.VERBOSE | re.DOTALL,
)


class PostgreSQL:
    """A connection to PostgreSQL."""

    def __init__(self, database: Database) -> None:
        """Connect. Raises DatabaseError("UNAVAILABLE")."""
        self.may_write = database.write
        try:
            parameters = psycopg.conninfo.make_conninfo(database.source, user=database.user or None)
            # None: psycopg prepares no statement, which DISCARD ALL in discard() would remove
            self.connection = psycopg.connect(
                parameters, connect_timeout=CONNECT_TIMEOUT_S, prepare_threshold=None
            )
        except psycopg.Error as reason:
            raise DatabaseError("UNAVAILABLE", f"{database.name}: {reason}") from None
        self.connection.read_only = not database.write
        set_json_loads(json_value, self.connection)  # instead of Python's objects, which no message carries
        adapters = self.connection.adapters
        for name, loader in LOADERS_OF_TIME.items():
            adapters.register_loader(name, loader)
        # Python's class for it has no months, and takes 30 days for one
        adapters.register_loader("interval", TextLoader)

    def execute(self, statement: str, parameters: Parameters) -> Result:
        """Run a statement (DatabaseConnection.execute), with the parameters in the form of psycopg."""
        if "\0" in statement:
            # libpq would send the statement up to the NUL: a DELETE without its condition
            raise DatabaseError("STATEMENT", "the statement contains a NUL character")
        if OPERATORS.search(statement):
            fault = f"more than {MAX_OPERATOR_CHARS} operator characters in a row"
            raise DatabaseError("STATEMENT", f"{fault}: pass such a text as a parameter")
        query, values = psycopg_style(statement, parameters)
        cursor = self.connection.cursor()
        rows = self.rows(cursor, query, values)
        # The names of the columns are known after the first row, or at the end
        first_row = next(rows, None)
        columns = tuple(column.name for column in cursor.description or ())
        return Result(columns, with_first_row(first_row, rows))

    def rows(
        self, cursor: psycopg.Cursor, query: str, values: Parameters | None
    ) -> Generator[Sequence[Value], None, None]:
        """Run a statement and yield its rows; convert each value to a type that a message can carry."""
        try:
            for row in cursor.stream(query.encode(), values):
                yield tuple(value if isinstance(value, Value) else as_text(value) for value in row)
        except psycopg.ProgrammingError as reason:
            # stream() raises this after it has run a statement without rows; then the server gives no SQLSTATE
            if reason.sqlstate is not None or cursor.description is not None or self.has_failed_on_server():
                raise self.error_for_gateway(reason) from None
        except (psycopg.Error, ValueError) as reason:
            raise self.error_for_gateway(reason) from None
        finally:
            cursor.close()

    def has_failed_on_server(self) -> bool:
        """Return whether the transaction has failed on the server, or is within COPY."""
        status = psycopg.pq.TransactionStatus
        return self.connection.info.transaction_status in (status.ACTIVE, status.INERROR)

    def error_for_gateway(self, reason: Exception) -> DatabaseError:
        """Return the error for the gateway: is the statement its cause, or a lost connection?"""
        return DatabaseError("STATEMENT" if self.is_alive() else "UNAVAILABLE", str(reason))

    def end(self, commit: bool) -> None:
        """Commit or roll back, and end all state of the session. Without the right to write, always roll back."""
        try:
            if commit and self.may_write:
                self.connection.commit()
            else:
                self.connection.rollback()
        except psycopg.Error as reason:
            raise self.error_for_gateway(reason) from None
        self.discard()

    def discard(self) -> None:
        """Reset the session's state; close a connection that cannot be reset. Raises nothing: a commit is done."""
        try:
            # Not with a cursor: that would begin a transaction, in which DISCARD ALL is refused
            status = self.connection.pgconn.exec_(b"DISCARD ALL").status
        except psycopg.Error:
            status = psycopg.pq.ExecStatus.FATAL_ERROR
        if status != psycopg.pq.ExecStatus.COMMAND_OK:
            self.connection.close()

    def cancel(self) -> None:
        """Ask the server to cancel the running statement."""
        try:
            self.connection.cancel()
        except psycopg.Error:
            pass  # the connection is lost, and with it the statement

    def is_alive(self) -> bool:
        return not (self.connection.closed or self.connection.broken)

    def close(self) -> None:
        self.connection.close()


def json_value(encoded: str | bytes) -> object:
    """Return a value of the types json and jsonb; an object or a list as the text that the server sends."""
    text = encoded.decode() if isinstance(encoded, bytes) else encoded
    return text if text.lstrip().startswith(("{", "[")) else json.loads(text)


def as_text(value: object) -> str:
    """Return the text of a value that no message carries.

    Arrays and records have the form of Python's lists and tuples. Their numbers and dates have the usual form:
    1.50, where str() of the list would give Decimal('1.50').
    """
    if not isinstance(value, list | tuple):
        return str(value)
    items = ", ".join([repr(item) if isinstance(item, str | bytes) else as_text(item) for item in value])
    return f"[{items}]" if isinstance(value, list) else f"({items})"


def or_text(loader: type[Loader]) -> type[Loader]:
    """Return a loader that gives the server's text for a value that `loader` refuses."""

    class LoaderOrText(Loader):
        def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
            super().__init__(oid, context)
            self.loader = loader(oid, context)

        def load(self, data: Buffer) -> object:
            try:
                return self.loader.load(data)
            except (psycopg.DataError, NotImplementedError):  # timestamptz in a DateStyle other than ISO
                return bytes(data).decode()

    return LoaderOrText


def loader_of(name: str) -> type[Loader]:
    """Return psycopg's loader for the text of a type."""
    found = psycopg.adapters.get_loader(psycopg.adapters.types[name].oid, psycopg.pq.Format.TEXT)
    assert found is not None
    return found  # type: ignore[return-value]


LOADERS_OF_TIME = {name: or_text(loader_of(name)) for name in TYPES_OF_TIME}


def with_first_row(
    first_row: Sequence[Value] | None, rows: Generator[Sequence[Value], None, None]
) -> Generator[Sequence[Value]]:
    """Yield the first row, if there is one, then the others.

    execute() reads the first row early, to learn the names of the columns.
    """
    if first_row is not None:
        yield first_row
    yield from rows


def psycopg_style(statement: str, parameters: Parameters) -> tuple[str, Parameters | None]:
    """Return a statement with psycopg's placeholders in place of ? and :name, and its parameters.

    The parameters are None if there are none. ?? stands for the operator ? of jsonb. A :name that is not a
    parameter stays, as in the slice of an array [a:b]. Raises DatabaseError for a wrong number of parameters.
    """
    named = isinstance(parameters, Mapping)
    has_parameters = len(parameters) > 0

    def converted(match: re.Match[str]) -> str:
        """Return a token of the statement in the form of psycopg: quoted text, a comment, or a placeholder."""
        if match["not_a_parameter"] is not None:
            return escaped(match[0])
        if (name := match["name"]) is not None:
            return f"%({name})s" if named and name in parameters else match[0]
        if match["second_question_mark"]:
            return "?"  # the operator, written ??
        if named or not has_parameters:
            return "?"  # no parameter has a position: leave the text as it is
        return "%s"

    def escaped(text: str) -> str:
        """Return a text in which psycopg sees no placeholder. Without parameters it looks for none."""
        return text.replace("%", "%%") if has_parameters else text

    parts: list[str] = []
    position = 0
    for match in TOKENS.finditer(statement):
        parts += (escaped(statement[position : match.start()]), converted(match))
        position = match.end()
    parts.append(escaped(statement[position:]))
    count = parts.count("%s")
    # rows() would drop psycopg's own error
    if has_parameters and not named and count != len(parameters):
        raise DatabaseError("STATEMENT", f"{count} placeholders for {len(parameters)} parameters")
    return "".join(parts), parameters if has_parameters else None
