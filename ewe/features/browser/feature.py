"""The feature: which page a path names, what must be asked for it, and the status when something fails.

Who may see it: every client that reaches the server. ewe listens on loopback unless told otherwise, and there it
refuses what a page of another site has sent a visitor for (ewe.gateway.own_names). A database that browser-hidden
names does not exist here.

A form changes only tables that browser-edit names, and only if the demon lets ewe change the database. A form on
another site must not be able to send one in a visitor's name: browsers say where a form comes from, in
Sec-Fetch-Site and in Origin, and ewe refuses what comes from elsewhere.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ewe.config.setting_types import parse_saved_query, parse_table
from ewe.database.protocol import DatabaseError, Value
from ewe.features.browser import pages, settings, statements, urls
from ewe.features.browser.asking import EXPORT_S, ROWS_S, SQL_ROWS, SQL_S, Asking
from ewe.features.browser.pages import Answer, Known, Listing, Place, Rows
from ewe.features.browser.schema import Schema, Table, quote
from ewe.features.browser.statements import Statement
from ewe.features.browser.urls import BadRequest, View
from ewe.gateway.connections import RETRY
from ewe.gateway.own_names import misdirected
from ewe.http.conditional import outcome
from ewe.http.messages import Request, Response
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.config.settings import Config
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
MOST_FORM = 1 << 20  # bytes
EDITS = ("insert", "edit", "delete")
READS = ("GET", "HEAD")
# What a visitor reads for each kind of error: title and text. The database's own words are for the log.
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
    """Answers below one path with pages on the site's databases."""

    def __init__(self, config: Config, databases: Databases) -> None:
        self.base = (config.browser or "").rstrip("/") + "/"
        self.hosts = config.names
        self.names = [name for name in databases.names if name not in config[settings.HIDDEN]]
        self.editable = {parse_table(each) for each in config[settings.EDIT]}
        self.editor = config[settings.SQL]
        self.development = config.development
        self.asking = Asking(databases)
        self.saved: dict[str, dict[str, str]] = {}
        queries = config[settings.QUERY]
        for database, name, sql in map(parse_saved_query, queries):
            self.saved.setdefault(database, {})[name] = sql

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer below the base; None elsewhere. Raises HTTPError, Disconnected."""
        path = request.path
        if not path.startswith(self.base):
            return moved(self.base) if path == self.base[:-1] else None
        if (refused := misdirected(request, io, self.hosts)) is not None:
            return refused
        parts = path[len(self.base) :].split("/")
        place = Place(self.base, parts[0] if parts[0] in self.names else "")
        try:
            return await self.answer(request, parts, io)
        except BadRequest as error:
            return self.problem(place, 400, "This address cannot be understood", error.cause)
        except HTTPError as error:
            if error.status != 404:
                raise
            return self.problem(place, 404, "There is no such page", error.cause)
        except DatabaseError as error:
            return self.failed(place, error)

    async def answer(self, request: Request, parts: list[str], io: Stream) -> Response:
        """Return the answer for the parts of a path. Raises HTTPError, DatabaseError."""
        *directories, last = parts
        last, _, suffix = last.partition(".")
        names = [urls.decode_name(each) for each in (*directories, last)]
        is_edit = len(parts) == 3 and last in EDITS and not suffix
        if request.method not in READS and not (is_edit and request.method == "POST"):
            allowed = "GET, HEAD, POST" if is_edit else "GET, HEAD"
            raise HTTPError(
                405, f"the browser of databases does not take {request.method}", (("Allow", allowed),)
            )
        if suffix and (not last or len(parts) == 1):
            raise HTTPError(404, "A file has the name of a table or a query, and .csv or .json.")
        if len(parts) == 1:
            if last:
                self.known(names[0])
                return moved(f"{self.base}{urls.encode_name(names[0])}/")
            return self.reply(request, await self.databases(io))
        database = self.known(names[0])
        place = Place(self.base, database)
        if suffix and suffix not in EXPORTS:
            raise HTTPError(404, f"There is no “.{suffix}” of this: only .csv and .json.")
        if len(parts) == 2:
            if not last:
                return await self.database(request, place, io)
            if last == "-sql":
                return await self.sql(request, place, suffix, io)
            return await self.table(request, place, names[1], suffix, io)
        if len(parts) == 3 and directories[1] == "-saved":
            return await self.saved_query(request, place, names[2], suffix, io)
        if len(parts) == 3 and (last == "row" or is_edit):
            return await self.row(request, place, names[1], last, suffix, io)
        raise HTTPError(404, "The address has too many parts.")

    def known(self, name: str) -> str:
        """Return the name of a database that is open for browsing. Raises HTTPError."""
        if name not in self.names:
            raise HTTPError(404, f"There is no database “{name[:60]}” here.")
        return name

    def reply(self, request: Request, text: str, status: int = 200, cause: str = "") -> Response:
        """Return a page, or 304 if the client has this one."""
        body = text.encode("utf-8", "replace")
        if status != 200:
            return Response(status, FIELDS, body, cause=cause)
        etag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        fields = (*FIELDS, ("ETag", etag))
        if request.conditional and outcome(request, etag, None) == 304:
            return Response(304, fields)
        return Response(200, fields, body)

    def problem(
        self, place: Place, status: int, title: str, text: str, cause: str = "", detail: str = ""
    ) -> Response:
        """Return a page for what went wrong."""
        page = pages.problem_page(place, title, text, detail).encode("utf-8", "replace")
        return Response(
            status, (*FIELDS, *(RETRY if status == 503 else ())), page, cause=cause or f"{title}: {text}"
        )

    def failed(self, place: Place, error: DatabaseError, text: str = "", status: int = 0) -> Response:
        """Return the page of an error of a database. text, status: in place of the usual ones."""
        title, usual = WORDS[error.kind]
        detail = str(error) if self.development else ""
        return self.problem(
            place, status or error.status, title, text or usual, f"{error.kind}: {error}", detail
        )

    # -----------------------------------------------------------------------------------------------------
    # Pages

    async def databases(self, io: Stream) -> str:
        """Return the page of all databases."""
        known = []
        for name in self.names:
            try:
                schema = await self.asking.schema(name, io)
            except DatabaseError:  # the demon's log has it
                known.append(Known(name, None, {}))
            else:
                known.append(Known(name, schema, {}))
        return pages.databases_page(Place(self.base), known)

    async def database(self, request: Request, place: Place, io: Stream) -> Response:
        """Return the page of one database."""
        schema = await self.asking.schema(place.database, io)
        known = await self.asking.counts_of(place.database, schema, io)
        first = next(iter(schema.tables), "")
        sql = f"SELECT *\nFROM {quote(first)}\nLIMIT 20" if first else "SELECT 1"
        saved = self.saved.get(place.database, {})
        return self.reply(request, pages.database_page(place, known, saved, self.editor, sql))

    async def table(self, request: Request, place: Place, name: str, suffix: str, io: Stream) -> Response:
        """Return the rows of a table: a page of them, or all of them as a file."""
        schema, table = await self.table_named(place, name, io)
        place = place._replace(table=name)
        view = urls.view_of(table, request.query)
        try:
            if suffix:
                statement = statements.rows_of(schema, table, view.first(), limit=False)
                return await self.export(place, statement, name, suffix, io, EXPORT_S)
            return self.reply(
                request, pages.table_page(place, await self.listing(place, schema, table, view, io))
            )
        except DatabaseError as error:
            self.asking.schemas.pop(place.database, None)
            if error.kind == "STATEMENT" and view != View():
                return self.failed(place, error, REFUSED_FILTER, 400)
            raise

    async def listing(self, place: Place, schema: Schema, table: Table, view: View, io: Stream) -> Listing:
        """Return all that the page of a table shows. Raises DatabaseError."""
        asking, database = self.asking, place.database
        statement = statements.rows_of(schema, table, view)
        rows = await asking.rows(database, statement, io, view.size)
        if view.before:
            rows.rows.reverse()
        total = await asking.count(database, schema, table, view, io)
        facets = [await asking.facet(database, schema, table, view, name, io) for name in view.facets]
        wanted = []
        for key in table.foreign:
            if len(key.columns) == 1 and key.columns[0] in rows.columns:
                at = rows.columns.index(key.columns[0])
                values = [row[at] for row in rows.rows]
                values += [
                    value
                    for each in facets
                    if each.column == key.columns[0]
                    for value, _ in each.values or ()
                ]
                wanted.append((key, values))
        labels = await asking.labels(database, schema, wanted, io)
        editable = (database, table.name) in self.editable and not table.is_view
        return Listing(schema, table, view, rows, total, facets, labels, statement, editable, self.editor)

    async def table_named(self, place: Place, name: str, io: Stream) -> tuple[Schema, Table]:
        """Return the schema and a table of it. Raises HTTPError, DatabaseError."""
        schema = await self.asking.schema(place.database, io)
        if name not in schema.tables:
            raise HTTPError(404, f"The database {place.database} has no table “{name[:60]}”.")
        return schema, schema.tables[name]

    async def export(
        self, place: Place, statement: Statement, name: str, suffix: str, io: Stream, seconds: float
    ) -> Response:
        """Return all rows of a statement as a file, which is sent as the rows come. Raises DatabaseError."""
        layout, kind = EXPORTS[suffix]
        result = await self.asking.ask(place.database, statement, io, layout=layout, seconds=seconds)
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

    async def sql(self, request: Request, place: Place, suffix: str, io: Stream) -> Response:
        """Return the page of the SQL editor, with the result of a statement if there is one."""
        if not self.editor:
            raise HTTPError(404, "The SQL editor is off here (browser-sql).")
        said = dict(urls.parameters_of(request.query))
        sql = said.get("sql", "").replace("\r\n", "\n").strip()
        return await self.run_sql(request, place, sql, said, "", suffix, io)

    async def saved_query(
        self, request: Request, place: Place, name: str, suffix: str, io: Stream
    ) -> Response:
        """Return the page of a saved query."""
        sql = self.saved.get(place.database, {}).get(name)
        if sql is None:
            raise HTTPError(404, f"The database {place.database} has no saved query “{name[:60]}”.")
        said = dict(urls.parameters_of(request.query))
        return await self.run_sql(request, place, sql, said, name, suffix, io)

    async def run_sql(
        self,
        request: Request,
        place: Place,
        sql: str,
        said: dict[str, str],
        name: str,
        suffix: str,
        io: Stream,
    ) -> Response:
        """Run a statement that a visitor wrote, or a saved query (name), and return its page or its rows."""
        given = {each: said.get(f":{each}", "") for each in statements.parameters_in(sql)}
        parameters: dict[str, Value] = {each: number_or_text(value) for each, value in given.items()}
        if suffix:
            try:
                return await self.export(
                    place, Statement(sql, parameters), name or place.database, suffix, io, SQL_S
                )
            except DatabaseError as error:
                if error.kind == "STATEMENT" and not name:
                    return self.problem(place, 400, "The database refuses this statement", str(error))
                raise
        answer, status, cause = Answer(), 200, ""
        if sql:
            answer, status, cause = await self.answer_to(
                place, sql, parameters, said.get("explain") == "1" and not name, not name, io
            )
        page = pages.sql_page(place, sql, given, answer, title=name, editor=not name)
        return self.reply(request, page, status, cause)

    async def answer_to(
        self,
        place: Place,
        sql: str,
        parameters: dict[str, Value],
        explain: bool,
        is_visitors: bool,
        io: Stream,
    ) -> tuple[Answer, int, str]:
        """Return what came of a statement, the status, and the cause of a failure for the log.

        Raises DatabaseError for what is not the statement's fault.
        """
        schema = await self.asking.schema(place.database, io)
        began = time.perf_counter()
        run = Statement(schema.dialect.explain + sql if explain else sql, parameters)
        try:
            rows = await self.asking.rows(place.database, run, io, SQL_ROWS, SQL_S)
        except DatabaseError as error:
            cause = f"{error.kind}: {error}"
            if error.kind == "TIMEOUT":
                return Answer(error=f"This took longer than {SQL_S:g} s, and was cancelled."), 504, cause
            if error.kind == "STATEMENT":
                words = str(error) if is_visitors or self.development else "The database refuses this query."
                return Answer(error=words), 400, cause
            raise
        took_ms = (time.perf_counter() - began) * 1000
        return Answer(rows, "", explain, took_ms), 200, ""

    # -----------------------------------------------------------------------------------------------------
    # One row

    async def row(
        self, request: Request, place: Place, name: str, action: str, suffix: str, io: Stream
    ) -> Response:
        """Return the page of one row, or the form that changes it, or what came of the form."""
        schema, table = await self.table_named(place, name, io)
        place = place._replace(table=name)
        editable = (place.database, name) in self.editable and not table.is_view
        if action in EDITS and not editable:
            raise HTTPError(404, f"There are no forms for the table {name} (browser-edit).")
        if action == "insert":
            return await self.insert(request, place, schema, table, io)
        key = key_of(table, request.query)
        statement = statements.row_of(schema, table, key)
        try:
            if suffix:
                return await self.export(place, statement, name, suffix, io, ROWS_S)
            rows = await self.asking.rows(place.database, statement, io, 1)
        except DatabaseError as error:
            if error.kind == "STATEMENT":
                return self.failed(place, error, REFUSED_FILTER, 400)
            raise
        if not rows.rows:
            raise HTTPError(404, f"The table {name} has no such row.")
        if action == "row":
            return self.reply(
                request, await self.row_text(place, schema, table, rows, statement, editable, io)
            )
        row = dict(zip(rows.columns, rows.rows[0], strict=True))
        change = self.edit if action == "edit" else self.delete
        return await change(request, place, schema, table, key, row, io)

    async def row_text(
        self,
        place: Place,
        schema: Schema,
        table: Table,
        rows: Rows,
        statement: Statement,
        editable: bool,
        io: Stream,
    ) -> str:
        """Return the page of one row, with the rows that lead to it."""
        row = dict(zip(rows.columns, rows.rows[0], strict=True))
        referring: list[tuple[Any, int | None]] = []
        for each in schema.referring.get(table.name, ()):
            values = [row.get(name) for name in each.others]
            if None in values:
                continue
            view = View()
            for column, value in zip(each.columns, values, strict=True):
                view = view.filtered(column, "eq", pages.plain(value))
            count = await self.asking.count(place.database, schema, schema.tables[each.table], view, io)
            referring.append((each, count))
        wanted = [(each, [row[each.columns[0]]]) for each in table.foreign if len(each.columns) == 1]
        labels = await self.asking.labels(place.database, schema, wanted, io)
        return pages.row_page(
            place, schema, table, rows, referring, labels, statement, editable=editable, editor=self.editor
        )

    async def insert(
        self, request: Request, place: Place, schema: Schema, table: Table, io: Stream
    ) -> Response:
        """Show the form for a new row, or insert what it has sent."""
        if request.method != "POST":
            return self.reply(request, pages.edit_page(place, table, None))
        given = await form_of(request)
        values: dict[str, str | None] = {}
        for column in table.columns.values():
            text = given.get("v." + column.name)
            # An empty field leaves the choice to the database, except where only a text can be meant
            if text is not None and (text or (column.not_null and not column.filled and not column.key)):
                values[column.name] = text
        statement = statements.insert_of(schema, table, values)

        def again(words: str) -> str:
            return pages.edit_page(place, table, None, words, given)

        return await self.change(place, statement, place.of_table(), again, io)

    async def edit(
        self, request: Request, place: Place, schema: Schema, table: Table, key: list[Value], row: dict[str, Value],
        io: Stream,
    ) -> Response:  # fmt: skip
        """Show the form to change a row, or change the columns whose value is another than before."""
        if request.method != "POST":
            return self.reply(request, pages.edit_page(place, table, row))
        given = await form_of(request)
        changed: dict[str, str | None] = {}
        for name, column in table.columns.items():
            text = given.get("v." + name)
            before = row.get(name)
            if text is None or column.filled == "computed" or isinstance(before, bytes):
                continue
            value = None if f"null.{name}" in given and not (before is None and text) else text
            if value is None:
                if before is not None:
                    changed[name] = None
            elif before is None or value != pages.plain(before).replace("\r\n", "\n"):
                changed[name] = value
        if not changed:
            return see_other(place.of_row(table.name, key))
        after = [
            number_or_same(changed.get(name, value), value)
            for name, value in zip(table.key, key, strict=True)
        ]
        statement = statements.update_of(schema, table, key, changed)

        def again(words: str) -> str:
            return pages.edit_page(place, table, row, words, given)

        return await self.change(place, statement, place.of_row(table.name, after), again, io)

    async def delete(
        self, request: Request, place: Place, schema: Schema, table: Table, key: list[Value], row: dict[str, Value],
        io: Stream,
    ) -> Response:  # fmt: skip
        """Ask whether to delete a row, or delete it."""
        if request.method != "POST":
            return self.reply(request, pages.delete_page(place, table, row))
        await form_of(request)

        def again(words: str) -> str:
            return pages.delete_page(place, table, row, words)

        return await self.change(place, statements.delete_of(schema, table, key), place.of_table(), again, io)

    async def change(
        self, place: Place, statement: Statement, target: str, again: Callable[[str], str], io: Stream
    ) -> Response:
        """Have a change run, and lead the client to a page that can be reloaded; or show the form again."""
        try:
            await self.asking.change(place.database, statement, io)
        except DatabaseError as error:
            if error.kind != "STATEMENT":
                raise
            words = f"{REFUSED_CHANGE} {error}" if self.development else REFUSED_CHANGE
            body = again(words).encode("utf-8", "replace")
            return Response(409, FIELDS, body, cause=f"{error.kind}: {error}")
        return see_other(target)


def moved(target: str) -> Response:
    """Return the way to the same place with a slash at its end."""
    return Response(308, (("Location", target), ("Content-Type", "text/plain")), target.encode())


def see_other(target: str) -> Response:
    """Return the way to a page after a form: it is fetched by GET, so a reload sends nothing again."""
    return Response(303, (("Location", target), ("Content-Type", "text/plain")), target.encode())


def key_of(table: Table, query: str | None) -> list[Value]:
    """Return the key that a query names. Raises BadRequest, HTTPError."""
    if not table.key:
        raise HTTPError(404, f"The rows of {table.name} have no key, so a row has no page.")
    values = [value for name, value in urls.parameters_of(query) if name == "key"]
    if len(values) != len(table.key):
        raise BadRequest(f"A row of {table.name} is named by its key: {', '.join(table.key)}.")
    return [value_of_key(text) for text in values]


def value_of_key(text: str) -> Value:
    """Return the value that pages.key_text() has made a text of. Raises BadRequest."""
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
    """Return a part of a key after a change: a whole number stays one."""
    if isinstance(text, str) and isinstance(before, int) and statements.WHOLE.fullmatch(text):
        return int(text)
    return text


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form that a page of this site has sent. Raises HTTPError."""
    refuse_other_sites(request)
    kind = request.values.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPError(415, f"a form of the type {kind[:60]!r}")
    data = bytearray()
    while piece := await request.body.receive():
        data += piece
        if len(data) > MOST_FORM:
            raise HTTPError(413, f"a form of more than {MOST_FORM} bytes")
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        raise BadRequest("The form is not encoded as a browser does it.") from None
    fields = dict(urls.parameters_of(text))
    if any("\0" in value for value in fields.values()):
        raise BadRequest("A field cannot hold the character NUL.")
    return {name: value.replace("\r\n", "\n") for name, value in fields.items()}


def refuse_other_sites(request: Request) -> None:
    """Refuse a form of another site. Raises HTTPError.

    Every browser says in one of two fields where a form comes from. A program that sends neither is no browser, and
    carries no visitor's rights.
    """
    site = request.values.get("sec-fetch-site")
    origin = request.values.get("origin")
    if site is not None:
        allowed = site in ("same-origin", "none")
    else:
        allowed = origin is None or origin.partition("://")[2] == request.host
    if not allowed:
        raise HTTPError(403, f"a form of another site: Sec-Fetch-Site {site}, Origin {origin}")
