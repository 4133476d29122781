"""Asking: what the browser has the demon run, within limits of time, rows and bytes.

A page must come, however large the database is. Three things are not essential for a page: a count of rows, the
most frequent values, the names of other rows. They have a short limit of time, and the page says if it was passed.

What stays in memory between two requests is trusted for a second at most: the schema, which every page needs, and
the counts of rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ewe.bounded import TimedCache
from ewe.database.protocol import ClientRequest, DatabaseError, Value
from ewe.features.browser.pages import Facet, Known, Rows
from ewe.features.browser.schema import DIALECTS, ForeignKey, Schema, Table, schema_of
from ewe.features.browser.statements import Statement, count_of, counts_of, facet_of, labels_of
from ewe.features.browser.urls import View
from ewe.features.databases.asking import Databases, Result, from_json

if TYPE_CHECKING:
    from ewe.streams.base import Stream

TRUSTED_S = 1.0  # how long the schema and a count are not asked for again
ROWS_S = 5.0  # for the rows of a page
COUNT_S = 0.5  # for a count of rows
FACET_S = 0.2  # for the most frequent values of a column, and for the names of other rows
SQL_S = 1.0  # for a visitor's statement
EXPORT_S = 60.0
SQL_ROWS = 1000  # of a visitor's statement, on a page
SCHEMA_ROWS = 20_000  # columns of all tables
MOST_BYTES = 4 << 20  # of the rows of a page
MAX_COUNTS = 200  # in memory
NOT_COUNTED = -1
MOST_TABLES = 100  # whose rows are counted on the page of a database


class Asking:
    """Asks the databases of a site for one kind of thing each. io: the client's stream, whose model waits."""

    def __init__(self, databases: Databases) -> None:
        self.databases = databases
        self.schemas: dict[str, tuple[float, Schema]] = {}
        self.counts: TimedCache[tuple[str, str, tuple[Value, ...]], int | None] = TimedCache(
            MAX_COUNTS, TRUSTED_S
        )

    async def ask(
        self, database: str, statement: Statement, io: Stream, *, layout: str = "ROWS", rows: int | None = None,
        seconds: float = ROWS_S,
    ) -> Result:  # fmt: skip
        """Return the result of a statement that only reads. Raises DatabaseError, Disconnected."""
        request = ClientRequest(
            database, statement.sql, layout, statement.parameters, None, rows, seconds, read_only=True
        )
        return await self.databases.ask(request, io)

    async def rows(
        self, database: str, statement: Statement, io: Stream, most: int, seconds: float = ROWS_S
    ) -> Rows:
        """Return at most `most` rows of a statement that only reads, and no more than MOST_BYTES of them.

        Raises DatabaseError.
        """
        result = await self.ask(database, statement, io, rows=most + 1, seconds=seconds)
        data = bytearray()
        large = False
        try:
            while piece := await result.next():
                data += piece
                if len(data) > MOST_BYTES:
                    large = True
                    break
        finally:
            await result.close()
        lines = data.splitlines()
        if large:
            lines.pop()  # it is not whole
            if len(lines) < 2:
                raise DatabaseError(
                    "TOO MANY ROWS", f"one row has more than {MOST_BYTES >> 20} MB: export it"
                )
        columns, *rows = json.loads(b"[" + b",".join(lines) + b"]", object_hook=from_json)
        return Rows(columns, rows[:most], large or len(rows) > most, large)

    async def change(self, database: str, statement: Statement, io: Stream) -> None:
        """Have a statement run that changes the database. Raises DatabaseError."""
        request = ClientRequest(database, statement.sql, "ROWS", statement.parameters, None, 1, ROWS_S)
        await self.databases.rows(request, io, writes=True)
        self.counts.clear()

    async def schema(self, database: str, io: Stream) -> Schema:
        """Return the schema of a database. Raises DatabaseError."""
        known = self.schemas.get(database)
        now = time.monotonic()
        if known is not None and now - known[0] < TRUSTED_S:
            return known[1]
        dialects = DIALECTS if known is None else (known[1].dialect,)
        ways = [(dialect, sql) for dialect in dialects for sql in (dialect.columns, dialect.tables)]
        for dialect, sql in ways:
            try:
                columns = await self.rows(database, Statement(sql, {}), io, SCHEMA_ROWS)
            except DatabaseError as error:
                # The catalogue of another database does not exist here
                if error.kind != "STATEMENT" or (dialect, sql) == ways[-1]:
                    self.schemas.pop(database, None)
                    raise
                continue
            keys = await self.rows(database, Statement(dialect.keys, {}), io, SCHEMA_ROWS)
            schema = schema_of(dialect, columns.rows, keys.rows)
            self.schemas[database] = (now, schema)
            return schema
        raise AssertionError("one dialect returns or raises")

    async def count(self, database: str, schema: Schema, table: Table, view: View, io: Stream) -> int | None:
        """Return how many rows a view has; None if the count takes too long."""
        statement = count_of(schema, table, view)
        key = (database, statement.sql, tuple(statement.parameters.values()))
        known = self.counts.get(key, NOT_COUNTED)
        if known != NOT_COUNTED:
            return known
        found = await self.optional(database, statement, io, 1, COUNT_S)
        count = int(str(found[0][0])) if found else None
        self.counts[key] = count
        return count

    async def counts_of(self, database: str, schema: Schema, io: Stream) -> Known:
        """Return a database with the rows of its first tables; without them, if the counts take too long."""
        tables = [table for table in schema.tables.values() if not table.is_view][:MOST_TABLES]
        counts: dict[str, int] = {}
        if tables:
            found = await self.optional(database, counts_of(tables), io, 1, COUNT_S)
            if found:
                counts = {table.name: int(str(count)) for table, count in zip(tables, found[0], strict=True)}
        return Known(database, schema, counts)

    async def facet(
        self, database: str, schema: Schema, table: Table, view: View, column: str, io: Stream
    ) -> Facet:
        """Return the most frequent values of a column."""
        statement = facet_of(schema, table, view, column)
        found = await self.optional(database, statement, io, 100, FACET_S)
        values = None if found is None else [(value, int(str(count))) for value, count in found]
        return Facet(column, values)

    async def labels(
        self, database: str, schema: Schema, found: Iterable[tuple[ForeignKey, Iterable[Value]]], io: Stream
    ) -> dict[str, dict[Value, str]]:
        """Return, by column, what people call the rows to which the column's values lead."""
        labels: dict[str, dict[Value, str]] = {}
        for key, values in found:
            different = [value for value in dict.fromkeys(values) if value is not None]
            statement = labels_of(schema, key, different)
            if statement is None:
                continue
            rows = await self.optional(database, statement, io, len(different), FACET_S) or []
            labels[key.columns[0]] = {value: str(label) for value, label in rows if label is not None}
        return labels

    async def optional(
        self, database: str, statement: Statement, io: Stream, most: int, seconds: float
    ) -> list[list[Value]] | None:
        """Return rows that a page can do without; None if they take too long, or the database refuses them."""
        try:
            return (await self.rows(database, statement, io, most, seconds)).rows
        except DatabaseError as error:
            if error.kind in ("TIMEOUT", "STATEMENT", "TOO MANY ROWS"):
                return None
            raise
