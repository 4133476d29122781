"""The browser's statements on a connection of the daemon's drivers: for the tests of both databases."""

from __future__ import annotations

from ewe.database.drivers import DatabaseConnection
from ewe.database.protocol import Value
from ewe.features.browser.pages import Facet, PageTrail, Rows, TableListing, neighbours, table_page
from ewe.features.browser.schema import Dialect, Schema, Table, schema_of
from ewe.features.browser.statements import BoundStatement, count_of, rows_of
from ewe.features.browser.urls import View, view_of

MOST_PAGES = 100


def run(connection: DatabaseConnection, statement: BoundStatement) -> tuple[list[str], list[list[Value]]]:
    """Return columns and rows of a statement."""
    result = connection.execute(statement.sql, statement.parameters)
    rows = [list(row) for row in result.rows]
    connection.end(commit=False)
    return list(result.columns), rows


def schema_in(connection: DatabaseConnection, dialect: Dialect) -> Schema:
    """Return the schema of an open database."""
    columns, keys = (run(connection, BoundStatement(sql, {}))[1] for sql in (dialect.columns, dialect.keys))
    return schema_of(dialect, columns, keys)


def listing_of(connection: DatabaseConnection, schema: Schema, table: Table, view: View) -> TableListing:
    """Return what the page of a view shows."""
    statement = rows_of(schema, table, view)
    columns, rows = run(connection, statement)
    found = Rows(columns, rows[: view.size], len(rows) > view.size)
    if view.before:
        found.rows.reverse()
    total = int(str(run(connection, count_of(schema, table, view))[1][0][0]))
    facets = [Facet(name, []) for name in view.facets]
    return TableListing(schema, table, view, found, total, facets, {}, statement, True, True)


def pages_from(
    connection: DatabaseConnection, schema: Schema, table: Table, view: View, relation: str
) -> list[list[list[Value]]]:
    """Return the rows of a page and of those that its links of one relation lead to: as a visitor follows them."""
    pages = []
    while len(pages) < MOST_PAGES:
        listing = listing_of(connection, schema, table, view)
        pages.append(listing.rows.rows)
        assert (
            "<table>" in table_page(PageTrail("/-/databases/", "db", table.name), listing)
            or not listing.rows.rows
        )
        further = [view for name, _, view in neighbours(listing) if name == relation]
        if not further:
            return pages
        view = view_of(table, further[0].query()[1:])
    raise AssertionError("the pages do not end")


def check_paging(connection: DatabaseConnection, schema: Schema, table: Table, view: View) -> None:
    """Check that the pages hold all rows once, in order, and that the way back shows the same pages."""
    everything = run(connection, rows_of(schema, table, View(**{**view.__dict__, "size": 1000})))[1]
    there = pages_from(connection, schema, table, view, "next")
    assert [row for page in there for row in page] == everything
    assert all(len(page) == view.size for page in there[:-1])
    last = view
    for _ in there[1:]:
        listing = listing_of(connection, schema, table, last)
        last = next(each for name, _, each in neighbours(listing) if name == "next")
    assert pages_from(connection, schema, table, last, "prev")[::-1] == there
