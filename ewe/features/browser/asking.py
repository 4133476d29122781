"""Asking: send the browser's statements to the daemon, with limits of time, rows and bytes.

A page must come even if the database is large. Three parts of a page are not essential: a count of rows, the most
frequent values, and the labels of other rows. They have a short time limit, and the page shows if it was exceeded.

Two results are cached, for at most a second: the schema, which every page needs, and the counts of rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ewe.bounded import TimedCache
from ewe.database.protocol import ClientRequest, DatabaseError, Value
from ewe.features.browser.pages import DatabaseOverview, Facet, Rows
from ewe.features.browser.schema import DIALECTS, ForeignKey, Schema, Table, schema_of
from ewe.features.browser.statements import (
    FACET_VALUES,
    BoundStatement,
    count_of,
    counts_of,
    facet_of,
    statement_of_labels,
)
from ewe.features.browser.urls import View
from ewe.features.databases.asking import Databases, ResultSource, from_json

if TYPE_CHECKING:
    from ewe.streams.base import Stream

CACHE_S = 1.0  # seconds for which a schema and a count are cached
ROWS_TIMEOUT_S = 5.0  # for the rows of a page
COUNT_S = 0.5  # for a count of rows
FACET_S = 0.2  # for the most frequent values of a column, and for the labels of other rows
SQL_TIMEOUT_S = 1.0  # for a visitor's statement
EXPORT_TIMEOUT_S = 60.0  # for a file with all rows, which is sent while the database reads them
SQL_ROWS = 1000  # of a visitor's statement, on a page
SCHEMA_ROWS = 20_000  # columns of all tables
MAX_BYTES = 4 << 20  # of the rows of a page
MAX_COUNTS = 200  # in memory
NOT_COUNTED = -1  # in place of a number: counting took too long
MAX_TABLES = 100  # tables for which the page of a database counts the rows


class Asking:
    """Asks the databases of a site. io: the client's stream, which waits for the answer."""

    def __init__(self, databases: Databases) -> None:
        self.databases = databases
        self.schemas: dict[str, tuple[float, Schema]] = {}  # database -> monotonic() of the reading, schema
        # database, statement, parameters -> rows; None: they take too long to count
        self.counts: TimedCache[tuple[str, str, tuple[Value, ...]], int | None] = TimedCache(
            MAX_COUNTS, CACHE_S
        )

    async def ask(
        self, database: str, statement: BoundStatement, io: Stream, *, layout: str = "ROWS",
        rows: int | None = None, seconds: float = ROWS_TIMEOUT_S,
    ) -> ResultSource:  # fmt: skip
        """Return the result of a statement that only reads. Raises DatabaseError, Disconnected.

        layout: ROWS, or CSV or JSON for a file. rows: the most rows; None: no limit. seconds: the time limit.
        """
        request = ClientRequest(
            database,
            statement.sql,
            layout,
            statement.parameters,
            rows=rows,
            time_limit=seconds,
            read_only=True,
        )
        return await self.databases.ask(request, io)

    async def rows(
        self,
        database: str,
        statement: BoundStatement,
        io: Stream,
        max_rows: int,
        seconds: float = ROWS_TIMEOUT_S,
    ) -> Rows:
        """Return at most `max_rows` rows of a statement that only reads, and no more than MAX_BYTES of them.

        Raises DatabaseError.
        """
        result = await self.ask(database, statement, io, rows=max_rows + 1, seconds=seconds)
        data = bytearray()
        large = False
        try:
            while piece := await result.next():
                data += piece
                if len(data) > MAX_BYTES:
                    large = True
                    break
        finally:
            await result.close()
        lines = data.splitlines()
        if large:
            lines.pop()  # the last line is incomplete
            if len(lines) < 2:
                raise DatabaseError("TOO MANY ROWS", f"one row has more than {MAX_BYTES >> 20} MB: export it")
        columns, *rows = json.loads(b"[" + b",".join(lines) + b"]", object_hook=from_json)
        return Rows(columns, rows[:max_rows], large or len(rows) > max_rows, large)

    async def change(self, database: str, statement: BoundStatement, io: Stream) -> None:
        """Run a statement that changes the database. Raises DatabaseError."""
        request = ClientRequest(
            database, statement.sql, "ROWS", statement.parameters, rows=1, time_limit=ROWS_TIMEOUT_S
        )
        await self.databases.rows(request, io, writes=True)
        self.counts.clear()

    async def schema(self, database: str, io: Stream) -> Schema:
        """Return the schema of a database. Raises DatabaseError."""
        read_at, known = self.schemas.get(database, (0.0, None))
        now = time.monotonic()
        if known is not None and now - read_at < CACHE_S:
            return known
        dialects = DIALECTS if known is None else (known.dialect,)
        # The second statement of each dialect leaves the views out: one with a fault makes the first one fail.
        ways = [(dialect, sql) for dialect in dialects for sql in (dialect.columns, dialect.tables)]
        for dialect, sql in ways:
            try:
                columns = await self.rows(database, BoundStatement(sql, {}), io, SCHEMA_ROWS)
            except DatabaseError as error:
                # This database does not have the catalogue of the other kind
                if error.kind != "STATEMENT" or (dialect, sql) == ways[-1]:
                    self.schemas.pop(database, None)
                    raise
                continue
            keys = await self.rows(database, BoundStatement(dialect.keys, {}), io, SCHEMA_ROWS)
            schema = schema_of(dialect, columns.rows, keys.rows)
            self.schemas[database] = (now, schema)
            return schema
        raise AssertionError("one dialect returns or raises")

    async def count(self, database: str, schema: Schema, table: Table, view: View, io: Stream) -> int | None:
        """Return the number of rows of a view; None if the count takes too long."""
        statement = count_of(schema, table, view)
        key = (database, statement.sql, tuple(statement.parameters.values()))
        known = self.counts.get(key, NOT_COUNTED)
        if known != NOT_COUNTED:
            return known
        rows = await self.rows_or_none(database, statement, io, max_rows=1, seconds=COUNT_S)
        count = int(str(rows[0][0])) if rows else None  # the only column of the only row
        self.counts[key] = count
        return count

    async def counts_of(self, database: str, schema: Schema, io: Stream) -> DatabaseOverview:
        """Return a database with the counts of its first tables; without counts if they take too long."""
        tables = [table for table in schema.tables.values() if not table.is_view][:MAX_TABLES]
        counts: dict[str, int] = {}
        if tables:
            rows = await self.rows_or_none(database, counts_of(tables), io, max_rows=1, seconds=COUNT_S)
            if rows:  # the only row has a column for each table
                counts = {table.name: int(str(count)) for table, count in zip(tables, rows[0], strict=True)}
        return DatabaseOverview(database, schema, counts)

    async def facet(
        self, database: str, schema: Schema, table: Table, view: View, column: str, io: Stream
    ) -> Facet:
        """Return the most frequent values of a column, among the rows that the filters of `view` select."""
        statement = facet_of(schema, table, view, column)
        found = await self.rows_or_none(database, statement, io, FACET_VALUES + 1, FACET_S)
        values = None if found is None else [(value, int(str(count))) for value, count in found]
        return Facet(column, values)

    async def labels(
        self, database: str, schema: Schema, found: Iterable[tuple[ForeignKey, Iterable[Value]]], io: Stream
    ) -> dict[str, dict[Value, str]]:
        """Return column -> value -> label of the row to which the value leads by a foreign key.

        found: each foreign key with the values that the page shows in its column. A label that the database cannot
        find within FACET_S is missing in the result.
        """
        labels: dict[str, dict[Value, str]] = {}
        for key, values in found:
            different = [value for value in dict.fromkeys(values) if value is not None]
            statement = statement_of_labels(schema, key, different)
            column = key.columns[0]
            # A column may have several foreign keys. The pages link along the first one, so only its labels fit.
            if statement is None or schema.tables[key.table].foreign_key(column) != key:
                continue
            rows = await self.rows_or_none(database, statement, io, len(different), FACET_S) or []
            labels[column] = {value: str(label) for value, label in rows if label is not None}
        return labels

    async def rows_or_none(
        self, database: str, statement: BoundStatement, io: Stream, max_rows: int, seconds: float
    ) -> list[list[Value]] | None:
        """Return at most `max_rows` rows for a part of a page that is not essential. Raises DatabaseError.

        Return None, so that the page comes without this part, if the rows take longer than `seconds`, if the
        database refuses the statement, or if one row is too large. Other errors concern the whole page, and are
        raised: for example, the daemon cannot be reached.
        """
        try:
            return (await self.rows(database, statement, io, max_rows, seconds)).rows
        except DatabaseError as error:
            if error.kind in ("TIMEOUT", "STATEMENT", "TOO MANY ROWS"):
                return None
            raise
