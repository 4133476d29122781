"""The feature: chooses the page for a path, asks the daemon for its data, and chooses the status after a failure.

Every client that reaches the server may see the pages. By default, ewe listens only on loopback, and there it
refuses requests that a page of another site has caused (ewe.gateway.own_names). The browser does not show a
database that browser-hidden names.

A form changes only the tables that browser-edit names, and only if the daemon allows ewe to change the database. A
page of another site must not be able to send a form in a visitor's name. Browsers send the origin of a form in
Sec-Fetch-Site and in Origin, and ewe refuses forms of other sites.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from ewe.config.setting_types import parse_saved_query, parse_table
from ewe.database.protocol import DatabaseError, Value
from ewe.features import database_settings as settings
from ewe.features.browser import pages, statements, urls
from ewe.features.browser.asking import EXPORT_TIMEOUT_S, ROWS_TIMEOUT_S, SQL_ROWS, SQL_TIMEOUT_S, Asking
from ewe.features.browser.pages import DatabaseOverview, PageTrail, StatementResult, TableListing
from ewe.features.browser.schema import ForeignKey, Schema, Table, quote
from ewe.features.browser.statements import BoundStatement
from ewe.features.browser.urls import BadRequest, View
from ewe.gateway.connections import RETRY
from ewe.gateway.own_forms import form_data
from ewe.gateway.own_names import misdirected_response
from ewe.http.conditional import status_by_conditions
from ewe.http.error_pages import error_page
from ewe.http.messages import Request, Response
from ewe.http.status import HTTPError
from ewe.http.target import percent_encode

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.base import Explanation
    from ewe.features.databases.asking import Databases
    from ewe.streams.base import Stream

FIELDS = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Cache-Control", "no-cache"),
    (
        "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'",
    ),
    ("Referrer-Policy", "same-origin"),
    ("X-Content-Type-Options", "nosniff"),
)
EXPORTS = {"csv": ("CSV", "text/csv; charset=utf-8"), "json": ("JSON", "application/json")}
MAX_FORM_BYTES = 1 << 20  # of the form that changes a row: its values come in one piece
MAX_FORM_FIELDS = 4000  # of this form: two for each column, and SQLite allows 2,000 columns
EDITS = ("insert", "edit", "delete")
READS = ("GET", "HEAD")
# The title and the text for visitors, for each kind of error. The database's own message goes to the log.
WORDS = {
    "UNAVAILABLE": (
        "The database does not answer",
        "It may be starting again. Please try again in a moment.",
    ),
    "TIMEOUT": (
        "This takes too long",
        "The database has cancelled the query. More filters, or another order, may help.",
    ),
    "FORBIDDEN": ("The database is not open to this server", "The server's log tells its administrator why."),
    "TOO MANY ROWS": ("The answer is too large for a page", "Download it as CSV or JSON, or add filters."),
    "STATEMENT": ("The database refuses this", "The server's log tells its administrator why."),
    "MESSAGE": ("Something went wrong here", "The server's log tells its administrator why."),
}
REFUSED_CHANGE = "The database refuses this change: a value may be missing, be taken, or have the wrong type."
REFUSED_FILTER = "The database does not understand this: a value may not fit the type of its column."


class Browser:
    """Answers below one path with pages about the site's databases."""

    def __init__(self, config: Config, databases: Databases) -> None:
        self.path = (config[settings.BROWSER] or "").rstrip("/") + "/"
        self.base = percent_encode(self.path)  # for links
        self.hosts = config.names
        self.names = [name for name in databases.names if name not in config[settings.BROWSER_HIDDEN]]
        self.editable = {parse_table(each) for each in config[settings.BROWSER_EDIT]}
        self.editor = config[settings.BROWSER_SQL]
        self.development = config.development
        self.asking = Asking(databases)
        self.saved: dict[str, dict[str, str]] = {}
        queries = config[settings.BROWSER_QUERY]
        for database, name, sql in map(parse_saved_query, queries):
            self.saved.setdefault(database, {})[name] = sql

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the response for a path below the base; None for other paths. Raises HTTPError, Disconnected."""
        path = request.path
        if not path.startswith(self.path):
            return redirect(308, self.base) if path == self.path[:-1] else None
        if (refused := misdirected_response(request, io, self.hosts)) is not None:
            return refused
        parts = path[len(self.path) :].split("/")
        trail = PageTrail(self.base, parts[0] if parts[0] in self.names else "")
        try:
            return await self.answer(request, parts, io)
        except BadRequest as error:
            return self.problem(trail, 400, "This address cannot be understood", error.cause)
        except HTTPError as error:
            if error.status != 404:
                raise
            return self.problem(trail, 404, "There is no such page", error.cause)
        except DatabaseError as error:
            return self.failed(trail, error)

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the line about a path below the base. Only the daemon knows whether such a table exists."""
        if request.path == self.path[:-1]:
            yield f"  answer    308, Location: {self.base}   (browser)"
            return True
        if not request.path.startswith(self.path):
            return False
        yield f"  answer    the browser of databases, for all paths below {self.path}   (browser)"
        return True

    async def answer(self, request: Request, parts: list[str], io: Stream) -> Response:
        """Return the answer for the parts of a path. Raises HTTPError, DatabaseError.

        The paths: "" (all databases), DATABASE/, DATABASE/TABLE, DATABASE/-sql, DATABASE/-saved/QUERY and
        DATABASE/TABLE/row; in place of row, a form: insert, edit or delete. All but the first two and the forms may
        end in .csv or .json.
        """
        *directories, last = parts
        last, _, suffix = last.partition(".")
        names = [urls.decode_name(each) for each in (*directories, last)]
        is_edit = len(parts) == 3 and last in EDITS and not suffix
        check_method(request, is_edit)
        if suffix and (not last or len(parts) == 1):
            raise HTTPError(404, "A file has the name of a table or a query, and .csv or .json.")
        if len(parts) == 1:
            if last:
                self.checked_name(names[0])
                return redirect(308, f"{self.base}{urls.encode_name(names[0])}/")
            return self.reply(request, await self.databases(io))
        database = self.checked_name(names[0])
        trail = PageTrail(self.base, database)
        if suffix and suffix not in EXPORTS:
            raise HTTPError(404, f"There is no “.{suffix}” of this: only .csv and .json.")
        match (*directories[1:], last):  # the path below the database
            case ("",):
                return await self.database(request, trail, io)
            case ("-sql",):
                return await self.sql(request, trail, suffix, io)
            case (_,):
                return await self.table(request, trail, names[1], suffix, io)
            case ("-saved", _):
                return await self.saved_query(request, trail, names[2], suffix, io)
            case (_, _) if last == "row" or is_edit:
                return await self.row(request, trail, names[1], last, suffix, io)
        raise HTTPError(404, "The address has too many parts.")

    def checked_name(self, name: str) -> str:
        """Return the name of a database that is open for browsing. Raises HTTPError."""
        if name not in self.names:
            raise HTTPError(404, f"There is no database “{name[:60]}” here.")
        return name

    def reply(self, request: Request, text: str, status: int = 200, cause: str = "") -> Response:
        """Return a page; a 304 if the client has the same page already; a 412 if it wants another one (If-Match).

        text: the page. cause: the reason of another status than 200, for the error log; "" writes no line.
        """
        body = text.encode("utf-8", "replace")
        if status != 200:
            return Response(status, FIELDS, body, cause=cause)
        etag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        fields = (*FIELDS, ("ETag", etag))
        condition = status_by_conditions(request, etag, None) if request.conditional else None
        if condition == 412:
            return error_page(412, "the page has changed: it has another entity tag")
        return Response(304, fields) if condition == 304 else Response(200, fields, body)

    def problem(
        self, trail: PageTrail, status: int, title: str, text: str, cause: str = "", detail: str = ""
    ) -> Response:
        """Return an error page. title, text, detail: shown to the visitor. cause: for the error log; "": title and
        text.
        """
        page = pages.problem_page(trail, title, text, detail).encode("utf-8", "replace")
        return Response(
            status, (*FIELDS, *(RETRY if status == 503 else ())), page, cause=cause or f"{title}: {text}"
        )

    def failed(self, trail: PageTrail, error: DatabaseError, text: str = "", status: int = 0) -> Response:
        """Return the page for an error of a database.

        text, status: replace those of the error; "" and 0: the usual ones. Only with `development` the page has the
        database's own message; the error log always has it.
        """
        title, usual = WORDS[error.kind]
        detail = str(error) if self.development else ""
        return self.problem(
            trail, status or error.status, title, text or usual, cause=f"{error.kind}: {error}", detail=detail
        )

    # Pages

    async def databases(self, io: Stream) -> str:
        """Return the page of all databases."""
        overviews = []
        for name in self.names:
            schema: Schema | None = None
            with suppress(DatabaseError):  # the daemon's log contains the reason
                schema = await self.asking.schema(name, io)
            overviews.append(DatabaseOverview(name, schema, counts={}))
        return pages.databases_page(PageTrail(self.base), overviews)

    async def database(self, request: Request, trail: PageTrail, io: Stream) -> Response:
        """Return the page of one database."""
        schema = await self.asking.schema(trail.database, io)
        overview = await self.asking.counts_of(trail.database, schema, io)
        first = next(iter(schema.tables), "")
        sql = f"SELECT *\nFROM {quote(first)}\nLIMIT 20" if first else "SELECT 1"
        saved = self.saved.get(trail.database, {})
        return self.reply(request, pages.database_page(trail, overview, saved, self.editor, sql))

    async def table(self, request: Request, trail: PageTrail, name: str, suffix: str, io: Stream) -> Response:
        """Return the rows of a table: a page of them, or all of them as a file.

        name: of the table. suffix: "csv" or "json" for a file; "" for a page. Raises HTTPError, DatabaseError.
        """
        schema, table = await self.table_named(trail, name, io)
        trail = trail._replace(table=name)
        view = urls.view_of(table, request.query)
        try:
            if suffix:
                statement = statements.rows_of(schema, table, view.first(), limit=False)
                return await self.export(trail, statement, name, suffix, io, EXPORT_TIMEOUT_S)
            return self.reply(
                request, pages.table_page(trail, await self.listing(trail, schema, table, view, io))
            )
        except DatabaseError as error:
            # The table may have changed since the schema was read: have the next request read it again.
            self.asking.schemas.pop(trail.database, None)
            if error.kind == "STATEMENT" and view != View():
                return self.failed(trail, error, REFUSED_FILTER, 400)
            raise

    async def listing(
        self, trail: PageTrail, schema: Schema, table: Table, view: View, io: Stream
    ) -> TableListing:
        """Return the data for the page of a table. Raises DatabaseError."""
        asking, database = self.asking, trail.database
        statement = statements.rows_of(schema, table, view)
        rows = await asking.rows(database, statement, io, view.size)
        if view.before:  # the page before a row is read backwards from this row
            rows.rows.reverse()
        total = await asking.count(database, schema, table, view, io)
        facets = [await asking.facet(database, schema, table, view, name, io) for name in view.facets]
        values_by_key = []  # the values, in the rows and in the facets, whose labels the page shows
        for key in table.foreign:
            column = key.columns[0]
            if len(key.columns) == 1 and column in rows.columns:
                at = rows.columns.index(column)
                values = [row[at] for row in rows.rows]
                values += [
                    value for facet in facets if facet.column == column for value, _ in facet.values or ()
                ]
                values_by_key.append((key, values))
        labels = await asking.labels(database, schema, values_by_key, io)
        editable = (database, table.name) in self.editable and not table.is_view
        return TableListing(
            schema, table, view, rows, total, facets, labels, statement, editable, self.editor
        )

    async def table_named(self, trail: PageTrail, name: str, io: Stream) -> tuple[Schema, Table]:
        """Return the schema, and the table with this name. Raises HTTPError, DatabaseError."""
        schema = await self.asking.schema(trail.database, io)
        if name not in schema.tables:
            raise HTTPError(404, f"The database {trail.database} has no table “{name[:60]}”.")
        return schema, schema.tables[name]

    async def export(
        self, trail: PageTrail, statement: BoundStatement, name: str, suffix: str, io: Stream, seconds: float
    ) -> Response:
        """Return all rows of a statement as a file, which is sent as the rows come. Raises DatabaseError.

        name: of the file. suffix: "csv" or "json". seconds: the time limit of the statement.
        """
        layout, kind = EXPORTS[suffix]
        result = await self.asking.ask(trail.database, statement, io, layout=layout, seconds=seconds)
        file = "".join(each if each.isascii() and (each.isalnum() or each in "-_") else "_" for each in name)
        fields = (
            ("Content-Type", kind),
            ("Cache-Control", "no-cache"),
            (
                "Content-Disposition",
                f'{"attachment" if suffix == "csv" else "inline"}; filename="{file}.{suffix}"',
            ),
            ("X-Content-Type-Options", "nosniff"),
        )
        return Response(200, fields, result)

    async def sql(self, request: Request, trail: PageTrail, suffix: str, io: Stream) -> Response:
        """Return the page of the SQL editor, with the result of a statement if there is one.

        suffix: "csv" or "json" for the rows alone; "" for the page. Raises HTTPError(404) if the editor is off.
        """
        if not self.editor:
            raise HTTPError(404, "The SQL editor is off here (browser-sql).")
        fields = dict(urls.parameters_of(request.query))
        sql = fields.get("sql", "").replace("\r\n", "\n").strip()
        return await self.run_sql(request, trail, sql, fields, "", suffix, io)

    async def saved_query(
        self, request: Request, trail: PageTrail, name: str, suffix: str, io: Stream
    ) -> Response:
        """Return the page of a saved query. suffix: "csv" or "json" for the rows alone; "" for the page.

        Raises HTTPError(404) for an unknown name.
        """
        sql = self.saved.get(trail.database, {}).get(name)
        if sql is None:
            raise HTTPError(404, f"The database {trail.database} has no saved query “{name[:60]}”.")
        fields = dict(urls.parameters_of(request.query))
        return await self.run_sql(request, trail, sql, fields, name, suffix, io)

    async def run_sql(
        self,
        request: Request,
        trail: PageTrail,
        sql: str,
        fields: dict[str, str],
        query_name: str,
        suffix: str,
        io: Stream,
    ) -> Response:
        """Run a visitor's statement or a saved query, and return its page, or its rows as a file.

        sql: the statement; "" shows the page without a result. fields: of the URL; ":id" is the value of the
        parameter :id, and explain=1 asks for the plan of a visitor's statement. query_name: of the saved query; ""
        for a visitor's own statement. suffix: "csv" or "json" for a file; "" for the page.

        A page shows a failure that the statement has caused. In place of a file, the client gets such a page only
        for a visitor's own statement. Raises DatabaseError for any other failure.
        """
        is_visitors = not query_name
        given = {each: fields.get(f":{each}", "") for each in statements.parameters_in(sql)}
        parameters: dict[str, Value] = {each: number_or_text(value) for each, value in given.items()}
        if suffix:
            try:
                return await self.export(
                    trail,
                    BoundStatement(sql, parameters),
                    query_name or trail.database,
                    suffix,
                    io,
                    SQL_TIMEOUT_S,
                )
            except DatabaseError as error:
                # Only a visitor who has written the statement can mend it, and may read the database's own message.
                if error.kind == "STATEMENT" and is_visitors:
                    return self.problem(trail, 400, "The database refuses this statement", str(error))
                raise
        result = StatementResult()
        if sql:
            explain = is_visitors and fields.get("explain") == "1"
            result = await self.result_of(
                trail, sql, parameters, io, explain=explain, is_visitors=is_visitors
            )
        page = pages.sql_page(trail, sql, given, result, title=query_name, editor=is_visitors)
        return self.reply(request, page, result.status, result.cause)

    async def result_of(
        self,
        trail: PageTrail,
        sql: str,
        parameters: dict[str, Value],
        io: Stream,
        *,
        explain: bool,
        is_visitors: bool,
    ) -> StatementResult:
        """Run a statement; return its result, or the failure that it has caused.

        explain: run the statement that asks for the plan. is_visitors: a visitor has written the statement, and may
        read the database's message about it. Raises DatabaseError for a failure that the statement has not caused.
        """
        schema = await self.asking.schema(trail.database, io)
        began = time.perf_counter()
        run = BoundStatement(schema.dialect.explain + sql if explain else sql, parameters)
        try:
            rows = await self.asking.rows(trail.database, run, io, SQL_ROWS, SQL_TIMEOUT_S)
        except DatabaseError as error:
            cause = f"{error.kind}: {error}"
            if error.kind == "TIMEOUT":
                words = f"This took longer than {SQL_TIMEOUT_S:g} s, and was cancelled."
                return StatementResult(error=words, status=504, cause=cause)
            if error.kind == "STATEMENT":
                words = str(error) if is_visitors or self.development else "The database refuses this query."
                return StatementResult(error=words, status=400, cause=cause)
            raise
        took_ms = (time.perf_counter() - began) * 1000
        return StatementResult(rows, explained=explain, took_ms=took_ms)

    # One row

    async def row(
        self, request: Request, trail: PageTrail, name: str, action: str, suffix: str, io: Stream
    ) -> Response:
        """Return the page of one row, or the form that changes it, or the result of the form.

        name: of the table. action: the last segment of the path: row, insert, edit or delete. suffix: "json" for
        the row as data, else "".
        """
        schema, table = await self.table_named(trail, name, io)
        trail = trail._replace(table=name)
        editable = (trail.database, name) in self.editable and not table.is_view
        if action in EDITS and not editable:
            raise HTTPError(404, f"There are no forms for the table {name} (browser-edit).")
        if action == "insert":
            return await self.insert(request, trail, schema, table, io)
        key = key_in_query(table, request.query)
        statement = statements.row_of(table, key)
        try:
            if suffix:
                return await self.export(trail, statement, name, suffix, io, ROWS_TIMEOUT_S)
            rows = await self.asking.rows(trail.database, statement, io, 1)
        except DatabaseError as error:
            if error.kind == "STATEMENT":
                return self.failed(trail, error, REFUSED_FILTER, 400)
            raise
        if not rows.rows:
            raise HTTPError(404, f"The table {name} has no such row.")
        row = dict(zip(rows.columns, rows.rows[0], strict=True))  # column -> value, of the only row
        if action == "row":
            text = await self.row_text(trail, schema, table, row, statement, editable, io)
            return self.reply(request, text)
        change = self.edit if action == "edit" else self.delete
        return await change(request, trail, schema, table, key, row, io)

    async def row_text(
        self,
        trail: PageTrail,
        schema: Schema,
        table: Table,
        row: dict[str, Value],
        statement: BoundStatement,
        editable: bool,
        io: Stream,
    ) -> str:
        """Return the page of one row, with links to the rows that refer to it, and their number.

        row: column -> value. statement: the one that has found the row, for the page. editable: the page has links
        to the forms that change the row. Raises DatabaseError.
        """
        # Each foreign key of another table by which rows refer to this one, with their number
        referring: list[tuple[ForeignKey, int | None]] = []
        for key in schema.referring.get(table.name, ()):
            values = [row.get(name) for name in key.other_columns]
            # No row refers to NULL. The filter of a link is text, which cannot be equal to bytes.
            if any(value is None or isinstance(value, bytes) for value in values):
                continue
            view = pages.rows_with(key.columns, values)
            count = await self.asking.count(trail.database, schema, schema.tables[key.table], view, io)
            referring.append((key, count))
        # The values of this row whose labels the page shows
        values_by_key = [(key, [row[key.columns[0]]]) for key in table.foreign if len(key.columns) == 1]
        labels = await self.asking.labels(trail.database, schema, values_by_key, io)
        return pages.row_page(
            trail, schema, table, row, referring, labels, statement, editable=editable, editor=self.editor
        )

    async def insert(
        self, request: Request, trail: PageTrail, schema: Schema, table: Table, io: Stream
    ) -> Response:
        """Show the form for a new row, or insert the row that the form has sent."""
        if request.method != "POST":
            return self.reply(request, pages.edit_page(trail, table, None))
        sent = await form_of(request)
        values: dict[str, str | None] = {}
        for column in table.columns.values():
            text = sent.get("v." + column.name)
            # For an empty field the database chooses the value, unless the column can only contain text
            if text is not None and (text or (column.not_null and not column.filled_by and not column.key)):
                values[column.name] = text
        statement = statements.insert_of(schema, table, values)
        form_again = partial(pages.edit_page, trail, table, None, given=sent)
        return await self.change(trail, statement, trail.of_table(), form_again, io)

    async def edit(
        self, request: Request, trail: PageTrail, schema: Schema, table: Table, key: list[Value],
        row: dict[str, Value], io: Stream,
    ) -> Response:  # fmt: skip
        """Show the form to change a row, or change the columns whose values differ from before."""
        if request.method != "POST":
            return self.reply(request, pages.edit_page(trail, table, row))
        sent = await form_of(request)
        changed: dict[str, str | None] = {}
        for name, column in table.columns.items():
            text = sent.get("v." + name)
            before = row.get(name)
            if text is None or column.filled_by == "computed" or isinstance(before, bytes):
                continue
            # The box NULL is checked from the start if the value was NULL: then a text counts.
            value = None if f"null.{name}" in sent and not (before is None and text) else text
            if value is None:
                if before is not None:
                    changed[name] = None
            elif before is None or value != with_line_feeds(pages.plain(before)):
                changed[name] = value
        if not changed:
            return redirect(303, trail.of_row(table.name, key))
        after = [
            number_or_same(changed.get(name, value), value)
            for name, value in zip(table.key, key, strict=True)
        ]
        statement = statements.update_of(schema, table, key, changed)
        form_again = partial(pages.edit_page, trail, table, row, given=sent)
        return await self.change(trail, statement, trail.of_row(table.name, after), form_again, io)

    async def delete(
        self, request: Request, trail: PageTrail, schema: Schema, table: Table, key: list[Value],
        row: dict[str, Value], io: Stream,
    ) -> Response:  # fmt: skip
        """Ask for a confirmation to delete a row, or delete it."""
        if request.method != "POST":
            return self.reply(request, pages.delete_page(trail, table, row))
        await form_of(request)
        page_again = partial(pages.delete_page, trail, table, row)
        statement = statements.delete_of(table, key)
        return await self.change(trail, statement, trail.of_table(), page_again, io)

    async def change(
        self,
        trail: PageTrail,
        statement: BoundStatement,
        target: str,
        page_with: Callable[[str], str],
        io: Stream,
    ) -> Response:
        """Run a statement that changes a row; redirect the client to `target`, a page that can be reloaded.

        page_with: returns the page of the form with a message, for a change that the database refuses.
        """
        try:
            await self.asking.change(trail.database, statement, io)
        except DatabaseError as error:
            if error.kind != "STATEMENT":
                raise
            words = f"{REFUSED_CHANGE} {error}" if self.development else REFUSED_CHANGE
            body = page_with(words).encode("utf-8", "replace")
            return Response(409, FIELDS, body, cause=f"{error.kind}: {error}")
        return redirect(303, target)


def check_method(request: Request, is_edit: bool) -> None:
    """Raise HTTPError(405) for a method that a page does not take. is_edit: it is a form, which takes POST too."""
    if request.method in READS or (is_edit and request.method == "POST"):
        return
    allowed = "GET, HEAD, POST" if is_edit else "GET, HEAD"
    raise HTTPError(405, f"the browser of databases does not take {request.method}", (("Allow", allowed),))


def redirect(status: int, target: str) -> Response:
    """Return a redirect. After a form the status is 303: the browser uses GET, so a reload sends no form."""
    return Response(status, (("Location", target), ("Content-Type", "text/plain")), target.encode())


def key_in_query(table: Table, query: str | None) -> list[Value]:
    """Return the key of a row in a query. Raises BadRequest, HTTPError."""
    if not table.key:
        raise HTTPError(404, f"The rows of {table.name} have no key, so a row has no page.")
    values = [value for name, value in urls.parameters_of(query) if name == "key"]
    if len(values) != len(table.key):
        raise BadRequest(f"A row of {table.name} is named by its key: {', '.join(table.key)}.")
    key = [value_of_key(text) for text in values]
    if None in key:  # a change would change all of these rows
        raise HTTPError(404, "SQLite allows several rows with NULL in their key, so such a row has no page.")
    return key


def value_of_key(text: str) -> Value:
    """Return the value of a text that pages.key_text() has written. Raises BadRequest."""
    if not text.startswith("["):
        if "\0" in text:
            raise BadRequest("A key cannot hold the character NUL.")
        return text
    if (values := urls.values_in(text)) is None or len(values) != 1:
        raise BadRequest("“key” does not name a row.")
    return values[0]


def number_or_text(text: str) -> Value:
    """Return a parameter of a visitor's statement: a number if it is written as one."""
    if statements.WHOLE.fullmatch(text):
        return int(text)
    return float(text) if statements.DECIMAL.fullmatch(text) else text.replace("\0", "")


def number_or_same(text: Value, before: Value) -> Value:
    """Return a part of a key after a change: an integer stays an integer."""
    if isinstance(text, str) and isinstance(before, int) and statements.WHOLE.fullmatch(text):
        return int(text)
    return text


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form that a page of this site has sent. Raises HTTPError, BadRequest."""
    data = await form_data(request, MAX_FORM_BYTES)
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        raise BadRequest("The form is not encoded as a browser does it.") from None
    fields = dict(urls.parameters_of(text, MAX_FORM_FIELDS))
    if any("\0" in value for value in fields.values()):
        raise BadRequest("A field cannot hold the character NUL.")
    return {name: with_line_feeds(value) for name, value in fields.items()}


def with_line_feeds(text: str) -> str:
    """Return a text in which each line ends in LF. A browser sends every line end of a form as CRLF."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
