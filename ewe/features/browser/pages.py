"""Pages: rows to HTML. Functions from values to text; no I/O.

All that comes from a database or a visitor is text. It passes through shown() or cell() before it becomes HTML.
The pages need no scripts: filters, sorting, paging and the editor are links and forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ewe.database.protocol import Value
from ewe.features import indexes
from ewe.features.browser.schema import Column, ForeignKey, Schema, Table
from ewe.features.browser.statements import FACET_VALUES, BoundStatement, cursor_in
from ewe.features.browser.style import STYLE
from ewe.features.browser.urls import OPERATORS, Filter, View, cursor_text, encode_name, query_of
from ewe.http.error_pages import html_document, html_escape

MAX_CELL_CHARS = 300  # characters of a value on a page of rows
MAX_LINE_CHARS = 60  # characters of a value that a form shows in a field of one line
ONE_LINE_CHARS = 40  # characters that are kept on one line
MAX_LABEL_CHARS = 60  # characters of a label beside a link
# A value may have several lines and tabs, which stay.
CONTROLS = {code: sign for code, sign in indexes.CONTROLS.items() if code not in (9, 10)}
BODY = """<nav class="crumbs" aria-label="Path">{crumbs}</nav>
<main>
{content}
</main>"""


class Rows(NamedTuple):
    """The rows on a page. has_more: more rows exist. large: rows were left out because of their size."""

    columns: list[str]
    rows: list[list[Value]]
    has_more: bool
    large: bool = False


class PageTrail(NamedTuple):
    """The position of a page in the site.

    base: the path of the page of all databases. database, table: names; "" for a page above them.
    """

    base: str
    database: str = ""
    table: str = ""

    def of_database(self) -> str:
        """Return the path of the database."""
        return f"{self.base}{encode_name(self.database)}/"

    def of_table(self, name: str = "") -> str:
        """Return the path of a table of the database. name: "" for this table."""
        return self.of_database() + encode_name(name or self.table)

    def of_row(self, table: str, key: Iterable[Value], action: str = "row") -> str:
        """Return the URL of a row."""
        return f"{self.of_table(table)}/{action}{query_of(('key', key_text(value)) for value in key)}"


def page(trail: PageTrail, title: str, body: Iterable[str], last: str = "") -> str:
    """Return a whole page.

    last: the last word of the breadcrumbs, if it is not the name of a database or table; "": that name.
    """
    links = [f'<a href="{html_escape(trail.base)}">databases</a>']
    if trail.database:
        links.append(f'<a href="{html_escape(trail.of_database())}">{shown(trail.database)}</a>')
    if trail.table:
        links.append(f'<a href="{html_escape(trail.of_table())}">{shown(trail.table)}</a>')
    if last:
        links.append(shown(last))
    html = BODY.format(crumbs=" / ".join(links), content="\n".join(body))
    return html_document(shown(title), STYLE, html)


# Values


def shown(text: str) -> str:
    """Return a text as visible HTML."""
    return html_escape(text if text.isprintable() else text.translate(CONTROLS))


def cell(value: Value) -> str:
    """Return a value as the contents of a cell, shortened for a page with many rows."""
    if type(value) is str:
        if len(value) > MAX_CELL_CHARS:
            return f"{shown(value[:MAX_CELL_CHARS])}<i>… {len(value):,} characters</i>"
        return shown(value)
    if value is None:
        return "<i>NULL</i>"
    if isinstance(value, bytes):
        return f"<i>{len(value):,} bytes</i>"
    return str(value)


def key_text(value: Value) -> str:
    """Return a part of a key as a parameter of a URL: a text unchanged, any other value as JSON in brackets."""
    return value if isinstance(value, str) and not value.startswith("[") else cursor_text([value])


def plain(value: Value) -> str:
    """Return a value as text, for the comparison with a filter and for editing."""
    return "" if value is None else str(value)


def number(count: int | None, word: str = "row") -> str:
    """Return a count with its noun. None means that counting took too long."""
    if count is None:
        return f"many {word}s"
    return f"{count:,} {word}{'' if count == 1 else 's'}"


# All databases, one database


class DatabaseOverview(NamedTuple):
    """A database, for its own page and for the page of all databases.

    schema: None if the database does not answer; its own page needs one. counts: table -> rows, on its own page
    only.
    """

    name: str
    schema: Schema | None
    counts: dict[str, int]


def databases_page(trail: PageTrail, databases: Iterable[DatabaseOverview]) -> str:
    """Return the page of all databases."""
    cards = []
    for database in databases:
        where = PageTrail(trail.base, database.name)
        schema = database.schema
        about = "The database does not answer." if schema is None else tables_in_words(schema)
        title = "" if schema is None else schema.dialect.title
        cards.append(
            f'<li><h2><a href="{html_escape(where.of_database())}">{shown(database.name)}</a>'
            f"<small>{title}</small></h2><p>{about}"
        )
    body = ["<h1>Databases</h1>"]
    body += (
        ['<ul class="cards">', *cards, "</ul>"] if cards else ["<p>No database is open for browsing here."]
    )
    return page(trail, "Databases", body)


def tables_in_words(schema: Schema) -> str:
    """Return the number of tables of a database, and the names of the first ones."""
    names = list(schema.tables)
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (
        f"{number(len(names), 'table')}: {shown(', '.join(names[:8]))}{more}"
        if names
        else "It has no tables."
    )


def database_page(
    trail: PageTrail, overview: DatabaseOverview, saved: dict[str, str], editor: bool, sql: str
) -> str:
    """Return the page of a database. saved: statements by name. editor: show a field for SQL, with `sql` in it."""
    _, schema, counts = overview
    assert schema is not None
    tables = [table for table in schema.tables.values() if not table.is_view]
    views = [table for table in schema.tables.values() if table.is_view]
    body = [
        f"<h1>{shown(trail.database)}<small>{schema.dialect.title}, {number(len(tables), 'table')}</small></h1>"
    ]
    for title, some in (("", tables), ("Views", views)):
        if some:
            body += [f"<h2>{title}</h2>"] if title else []
            body += ['<ul class="cards">', *(table_card(trail, each, counts) for each in some), "</ul>"]
    if saved:
        body += ["<h2>Saved queries</h2>", '<ul class="cards">']
        for name, statement in saved.items():
            url = html_escape(f"{trail.of_database()}-saved/{encode_name(name)}")
            body.append(f'<li><h2><a href="{url}">{shown(name)}</a></h2><p>{shown(statement)}')
        body.append("</ul>")
    if editor:
        body += ["<h2>SQL</h2>", editor_form(trail, sql, {})]
    return page(trail, trail.database, body)


def table_card(trail: PageTrail, table: Table, counts: dict[str, int]) -> str:
    """Return the card of a table: its name, the number of rows, its columns."""
    count = "" if table.is_view else number(counts.get(table.name))
    columns = shown(", ".join(table.columns))
    return (
        f'<li><h2><a href="{html_escape(trail.of_table(table.name))}">{shown(table.name)}</a>'
        f"<small>{count}</small></h2><p>{columns}"
    )


# Rows of a table


class Facet(NamedTuple):
    """The most frequent values of a column, each with its count; None: counting took too long."""

    column: str
    values: list[tuple[Value, int]] | None


class RowLinks(NamedTuple):
    """The links to the pages of rows. at: the index of the column with the link. url_of: returns the URL for a row.

    The URL is "" if a part of the row's key is NULL, as SQLite allows: other rows may have the same key.
    """

    at: int
    url_of: Callable[[Sequence[Value]], str]


class TableListing(NamedTuple):
    """The data for the page of a table.

    labels: column -> value -> the label of the row to which the value refers. editable: the page has forms. editor:
    the SQL editor exists.
    """

    schema: Schema
    table: Table
    view: View
    rows: Rows
    total: int | None
    facets: list[Facet]
    labels: dict[str, dict[Value, str]]
    statement: BoundStatement
    editable: bool
    editor: bool


def table_page(trail: PageTrail, listing: TableListing) -> str:
    """Return the page of a table's rows."""
    table, view = listing.table, listing.view
    url = html_escape(trail.of_table())
    chosen = " match" if view.filters or view.search else ""
    body = [f"<h1>{shown(table.name)}<small>{number(listing.total)}{chosen}</small></h1>"]
    if view.filters or view.search:
        body.append(chips(url, view))
    body += [filter_form(url, table, view), facets(url, listing)]
    above, below = (paging_links(url, listing, label) for label in ("Pages", "Pages, below the rows"))
    if listing.rows.rows:
        body += [above, rows_table(trail, listing), below]
    else:
        body.append("<p>No row matches." if chosen else "<p>There are no rows.")
    if listing.rows.large:
        body.append(
            '<p class="problem">These rows are large, so the page ends early. The next page goes on.</p>'
        )
    body += [exports(url, listing), sql_details(trail, listing.statement, listing.editor)]
    body.append(columns_details(trail, table))
    return page(trail, f"{table.name}: {trail.database}", body)


def chips(url: str, view: View) -> str:
    """Return the filters in use, each as a link to the page without it. url: the path of the page."""
    items = []
    for each in view.filters:
        words = f"{each.column} {OPERATORS[each.op].text.replace(' (a, b, …)', '')} {each.value}".rstrip()
        items.append(f'<li><a href="{url}{html_escape(view.without(each).query())}">{shown(words)}</a>')
    if view.search:
        without = replace(view.first(), search="")
        items.append(f'<li><a href="{url}{html_escape(without.query())}">search: {shown(view.search)}</a>')
    return f'<ul class="chips" aria-label="Filters in use; follow one to remove it">{"".join(items)}</ul>'


def filter_form(url: str, table: Table, view: View) -> str:
    """Return the form to search and to filter, with a line for each filter in use, and an empty line."""
    kind = "full-text search" if table.search else "search"
    # A filter may also name the row id, which is the key of its table but not a column.
    columns = dict.fromkeys((*table.columns, *table.key))
    parts = [
        f'<form action="{url}"><fieldset class="filters">',
        f'<div class="search"><input type="search" name="search" value="{shown(view.search)}"'
        f' placeholder="{kind}" aria-label="Search"></div>',
    ]
    for each in (*view.filters, None):
        column, op, value = (each.column, each.op, each.value) if each else ("", "", "")
        names = options([("", "column …"), *((name, name) for name in columns)], column)
        operators = options([(key, operator.text) for key, operator in OPERATORS.items()], op)
        last = "<button>Apply</button>" if each is None else ""
        parts.append(
            f'<div class="filter"><select name="column" aria-label="Column">{names}</select>'
            f'<select name="op" aria-label="Operator">{operators}</select>'
            f'<input name="value" value="{shown(value)}" placeholder="value" aria-label="Value">{last}</div>'
        )
    kept = ("sort", "desc", "facet", "size")
    parts += (
        f'<input type="hidden" name="{name}" value="{html_escape(value)}">'
        for name, value in view.parameters()
        if name in kept
    )
    return "".join(parts) + "</fieldset></form>"


def options(choices: Iterable[tuple[str, str]], chosen: str) -> str:
    """Return the options of a selection: (value, words)."""
    return "".join(
        f'<option value="{html_escape(value)}"{" selected" if value == chosen else ""}>{shown(words)}</option>'
        for value, words in choices
    )


def facets(url: str, listing: TableListing) -> str:
    """Return a box with the most frequent values for each requested column, and links that request others."""
    view = listing.view
    boxes = "".join(facet_box(url, listing, each) for each in listing.facets)
    others = [name for name in listing.table.columns if name not in view.facets]
    links = " ".join(
        f'<a href="{url}{html_escape(view.with_facets((*view.facets, name)).query())}">{shown(name)}</a>'
        for name in others
    )
    more = f'<details><summary>Most frequent values of …</summary><p class="links">{links}</p></details>'
    return (f'<div class="facets">{boxes}</div>' if boxes else "") + (more if others else "")


def facet_box(url: str, listing: TableListing, facet: Facet) -> str:
    """Return the most frequent values of a column. Each is a link that adds or removes the filter for it.

    url: the path of the page. A facet is a column with its most frequent values, and the number of rows for each.
    """
    view = listing.view
    less = html_escape(view.with_facets(name for name in view.facets if name != facet.column).query())
    head = f'<section class="facet"><h2>{shown(facet.column)} <a href="{url}{less}" title="Remove">×</a></h2>'
    if facet.values is None:
        return f"{head}<p class=quiet>It takes too long to count these values.</p></section>"
    most = max((count for _, count in facet.values), default=1)
    items = []
    for value, count in facet.values[:FACET_VALUES]:
        op, text = ("null", "") if value is None else ("eq", plain(value))
        used = next(
            (each for each in view.filters if (each.column, each.op, each.value) == (facet.column, op, text)),
            None,
        )
        target = view.without(used) if used else view.filtered(facet.column, op, text)
        label = listing.labels.get(facet.column, {}).get(value)
        words = f"{cell(value)} <small>{shown(label)}</small>" if label else cell(value) or "<i>empty</i>"
        if isinstance(value, bytes):
            link = f"<span>{words}</span>"
        else:
            on = ' class="on"' if used else ""
            link = f'<a{on} href="{url}{html_escape(target.query())}">{words}</a>'
        items.append(f'<li style="--share:{count * 100 // most}%">{link}<span>{count:,}</span>')
    more = "<p class=quiet>There are more values.</p>" if len(facet.values) > FACET_VALUES else ""
    return f"{head}<ol>{''.join(items)}</ol>{more}</section>"


def paging_links(url: str, listing: TableListing, label: str) -> str:
    """Return the links to the first, the previous and the next page, if these exist.

    label: the name of this landmark, unique on the page.
    """
    links = [
        f'<a href="{url}{html_escape(view.query())}" rel="{relation}">{words}</a>'
        for relation, words, view in neighbours(listing)
    ]
    return f'<nav class="links paging" aria-label="{label}">{"".join(links)}</nav>' if links else ""


def neighbours(listing: TableListing) -> Iterator[tuple[str, str, View]]:
    """Yield the relation, the text and the view of each page to which a page links."""
    table, view, (columns, rows, has_more, _) = listing.table, listing.view, listing.rows
    has_previous = has_more if view.before else bool(view.after or view.offset)
    has_next = has_more or bool(view.before)
    if has_previous:
        yield "first", "⇤ First", view.first()
    if not rows:
        return
    first = view.first()
    if not table.key:
        if has_previous:
            yield "prev", "← Previous", replace(first, offset=max(0, view.offset - view.size))
        if has_next:
            yield "next", "Next →", replace(first, offset=view.offset + len(rows))
        return
    if has_previous:
        yield "prev", "← Previous", replace(first, before=cursor_in(table, view, columns, rows[0]))
    if has_next:
        yield "next", "Next →", replace(first, after=cursor_in(table, view, columns, rows[-1]))


def rows_table(trail: PageTrail, listing: TableListing) -> str:
    """Return the table of rows. It takes most of a page's time, so each column's formatter is made only once."""
    table, view, (columns, rows, _, _) = listing.table, listing.view, listing.rows
    url = html_escape(trail.of_table())
    heads = "".join(head(url, table, view, name) for name in columns)
    formatters = [formatter(trail, listing, name) for name in columns]
    classes = [class_attribute(is_number(table, name), rows, index) for index, name in enumerate(columns)]
    lines = []
    row_links = links_to_rows(trail, table, columns)
    for row in rows:
        cells = [
            f"<td{attribute}>{format_(value)}"
            for value, format_, attribute in zip(row, formatters, classes, strict=True)
        ]
        if row_links is not None and (url_of_row := row_links.url_of(row)):
            at = row_links.at
            text = cell(row[at]) or "<i>empty</i>"
            cells[at] = f'<td{classes[at]}><a href="{url_of_row}">{text}</a>'
        lines.append(f"<tr>{''.join(cells)}\n")
    return (
        f'<div class="scroll" tabindex="0"><table>\n<thead><tr>{heads}</thead>\n<tbody>\n{"".join(lines)}'
        "</tbody></table></div>"
    )


def is_number(table: Table, name: str) -> bool:
    """Return whether a column contains numbers that people compare; these are aligned to the right."""
    return name not in table.columns or table.columns[name].is_number


def class_attribute(has_numbers: bool, rows: Sequence[Sequence[Value]], index: int) -> str:
    """Return the attribute `class` of a column's cells: n for numbers, w if a text is long enough to be wrapped.

    index: of the column in each row. Return "" for other columns.
    """
    if has_numbers:
        return ' class="n"'
    values = (row[index] for row in rows)
    is_long = any(isinstance(value, str) and len(value) > ONE_LINE_CHARS for value in values)
    return ' class="w"' if is_long else ""


def links_to_rows(trail: PageTrail, table: Table, columns: Sequence[str]) -> RowLinks | None:
    """Return the links to the rows of a table; None if it has no key. columns: of the rows."""
    if not table.key:
        return None
    key_indexes = [columns.index(name) for name in table.key]
    path = html_escape(trail.of_table())

    def url_of(row: Sequence[Value]) -> str:
        if len(key_indexes) == 1 and type(key := row[key_indexes[0]]) is int:  # the usual case
            return f"{path}/row?key=%5B{key}%5D"
        values = [row[index] for index in key_indexes]
        if None in values:
            return ""
        return path + "/row" + html_escape(query_of(("key", key_text(value)) for value in values))

    return RowLinks(key_indexes[0], url_of)


def head(url: str, table: Table, view: View, name: str) -> str:
    """Return the head of a column: a link that sorts by it, or reverses the order."""
    # columns_of() puts the row id before the columns of a table without a primary key.
    kind = shown(table.columns[name].type.lower()) if name in table.columns else "row id"
    arrow, state, link_descends = "", "", False
    if name == view.sort:
        link_descends = not view.descending
        arrow, order = (" ↓", "descending") if view.descending else (" ↑", "ascending")
        state = f' aria-sort="{order}"'
    mark = ' class="n"' if is_number(table, name) else ""
    link = html_escape(view.sorted(name, link_descends).query())
    return f'<th scope="col"{state}{mark}><a href="{url}{link}">{shown(name)}{arrow}</a><small>{kind}</small>'


def formatter(trail: PageTrail, listing: TableListing, name: str) -> Callable[[Value], str]:
    """Return the function that formats the cells of a column. It makes a foreign key a link to the other row."""
    key = listing.table.foreign_key(name)
    if key is None:
        return cell
    labels = listing.labels.get(name, {})

    def linked(value: Value) -> str:
        if value is None:
            return cell(value)
        label = f" <small>{shown(labels[value][:MAX_LABEL_CHARS])}</small>" if value in labels else ""
        url = html_escape(link_to_other(trail, listing.schema, key, [value]))
        return f'<a href="{url}">{cell(value)}</a>{label}'

    return linked


def link_to_other(trail: PageTrail, schema: Schema, key: ForeignKey, values: Sequence[Value]) -> str:
    """Return the URL of the row that a foreign key leads to."""
    other = schema.tables[key.other]
    if key.other_columns == other.key:
        return trail.of_row(other.name, values)
    return trail.of_table(other.name) + rows_with(key.other_columns, values).query()


def rows_with(columns: Iterable[str], values: Iterable[Value]) -> View:
    """Return the view of the rows that have these values in these columns."""
    pairs = zip(columns, values, strict=True)
    return View(tuple(Filter(column, "eq", plain(value)) for column, value in pairs))


def exports(url: str, listing: TableListing) -> str:
    """Return the links to all rows of the view as files, and to the form for a new row. url: path of the page."""
    query = html_escape(replace(listing.view.first(), facets=(), size=View.size).query())
    links = [f'<a href="{url}.csv{query}">CSV</a>', f'<a href="{url}.json{query}">JSON</a>']
    if listing.editable:
        links.append(f'<a href="{url}/insert">Insert a row</a>')
    return f'<nav class="links" aria-label="Export"><span>All of these rows as</span>{"".join(links)}</nav>'


def columns_details(trail: PageTrail, table: Table) -> str:
    """Return the columns with their types and keys."""
    rows = "".join(column_row(trail, table, column) for column in table.columns.values())
    heads = "".join(f'<th scope="col">{name}' for name in ("Column", "Type", "", "Key"))
    inner = f'<div class="scroll"><table><thead><tr>{heads}</thead><tbody>{rows}</tbody></table></div>'
    index = f"<p>The full-text index is {shown(table.search)}.</p>" if table.search else ""
    return f"<details><summary>{number(len(table.columns), 'column')}</summary>{inner}{index}</details>"


def column_row(trail: PageTrail, table: Table, column: Column) -> str:
    """Return the row of a column: name, type, constraints, keys."""
    facts = ["not null"] if column.not_null else []
    if column.filled_by:
        facts.append("computed" if column.filled_by == "computed" else f"default {column.filled_by}")
    keys = [f"primary key{f' ({column.key})' if len(table.key) > 1 else ''}"] if column.key else []
    for key in table.foreign:
        if column.name in key.columns:
            other_column = key.other_columns[key.columns.index(column.name)]
            url = html_escape(trail.of_table(key.other))
            keys.append(f'→ <a href="{url}">{shown(key.other)}</a>.{shown(other_column)}')
    cells = (shown(column.name), shown(column.type), shown(", ".join(facts)), "<br>".join(keys))
    return "<tr>" + "".join(f"<td>{each}" for each in cells) + "\n"


# SQL


def sql_details(trail: PageTrail, statement: BoundStatement, editor: bool) -> str:
    """Return the SQL that was run, with links to edit and to explain it."""
    return f"<details><summary>SQL</summary>{sql_block(statement)}{sql_links(trail, statement, editor)}</details>"


def sql_block(statement: BoundStatement) -> str:
    """Return a statement with the values of its parameters."""
    values = "".join(f"\n-- :{name} = {value!r}" for name, value in statement.parameters.items())
    return f"<pre>{shown(statement.sql + values)}</pre>"


def sql_links(trail: PageTrail, statement: BoundStatement, editor: bool) -> str:
    """Return the links from a statement of ours to the editor."""
    if not editor:
        return ""
    asked = [("sql", statement.sql)]
    asked += [(f":{name}", plain(value)) for name, value in statement.parameters.items()]
    url = html_escape(trail.of_database() + "-sql")
    edit, explain = html_escape(query_of(asked)), html_escape(query_of([*asked, ("explain", "1")]))
    return f'<p class="links"><a href="{url}{edit}">Edit the SQL</a><a href="{url}{explain}">Explain</a></p>'


def editor_form(trail: PageTrail, sql: str, parameters: dict[str, str]) -> str:
    """Return the form for a statement. parameters: a field for each."""
    url = html_escape(trail.of_database() + "-sql")
    lines = min(max(sql.count("\n") + 2, 5), 25)
    fields = parameter_fields(parameters)
    return (
        f'<form action="{url}"><textarea name="sql" rows="{lines}" aria-label="SQL" spellcheck="false"'
        f' autocapitalize="off">\n{shown(sql)}</textarea>'
        f'<p class="links">{fields}</p><p class="links"><button>Run</button>'
        '<label><input type="checkbox" name="explain" value="1"> explain only</label></p></form>'
    )


def parameter_fields(parameters: dict[str, str]) -> str:
    """Return a field for each parameter of a statement, with its value."""
    return "".join(
        f'<label>:{shown(name)} <input name=":{html_escape(name)}" value="{shown(value)}"></label>'
        for name, value in parameters.items()
    )


class StatementResult(NamedTuple):
    """The result of a statement: rows, or the text of an error. explained: the rows are the query plan.

    status: of the response with the page. cause: of an error, for the error log; "" without one.
    """

    rows: Rows | None = None
    error: str = ""
    explained: bool = False
    took_ms: float = 0.0
    status: int = 200
    cause: str = ""


def sql_page(
    trail: PageTrail,
    sql: str,
    parameters: dict[str, str],
    result: StatementResult,
    *,
    title: str = "",
    editor: bool = True,
) -> str:
    """Return the page of a statement and its result.

    title: of a saved query; "" for a visitor's own statement. editor: the visitor may edit the statement.
    """
    body = [f"<h1>{shown(title or 'SQL')}</h1>"]
    body.append(editor_form(trail, sql, parameters) if editor else saved_form(trail, title, sql, parameters))
    if result.error:
        body.append(f'<div class="problem" role="alert">{shown(result.error)}</div>')
    rows = result.rows
    if rows is not None:
        body.append(f'<p class="quiet">{result_words(rows, result)}</p>')
        if result.explained:
            body.append(plan(rows))
        elif rows.rows:
            body.append(plain_table(rows))
        statement = [("sql", sql)] if editor else []
        asked = query_of(statement + [(f":{name}", value) for name, value in parameters.items()])
        path = trail.of_database() + ("-sql" if editor else f"-saved/{encode_name(title)}")
        body.append(
            f'<nav class="links"><span>All rows as</span><a href="{html_escape(path + ".csv" + asked)}">CSV</a>'
            f'<a href="{html_escape(path + ".json" + asked)}">JSON</a></nav>'
        )
    return page(trail, f"{title or 'SQL'}: {trail.database}", body, title or "SQL")


def saved_form(trail: PageTrail, name: str, sql: str, parameters: dict[str, str]) -> str:
    """Return the form of a saved query: its parameters; the statement is only shown."""
    url = html_escape(f"{trail.of_database()}-saved/{encode_name(name)}")
    fields = parameter_fields(parameters)
    form = f'<form action="{url}"><p class="links">{fields}<button>Run</button></p></form>' if fields else ""
    return f"<pre>{shown(sql)}</pre>{form}"


def result_words(rows: Rows, result: StatementResult) -> str:
    """Return a sentence: how many rows a result has, and how long it took."""
    took = f" in {result.took_ms:,.1f} ms"
    if result.explained:
        return f"The plan of the database,{took}."
    if rows.large:
        return f"The first {number(len(rows.rows))}{took}; the rows are large, and the page ends here."
    if rows.has_more:
        return f"The first {number(len(rows.rows))}{took}; there are more."
    return f"{number(len(rows.rows))}{took}."


def plan(rows: Rows) -> str:
    """Return the plan of a statement: the last column, which in SQLite is indented by the rows' parents."""
    depth: dict[Value, int] = {}
    lines = []
    for row in rows.rows:
        level = 0
        if len(row) == 4:  # id, parent, notused, detail
            level = depth[row[0]] = depth.get(row[1], -1) + 1
        lines.append("  " * level + plain(row[-1]))
    text = "\n".join(lines)
    return f"<pre>{shown(text)}</pre>"


def plain_table(rows: Rows) -> str:
    """Return the table of a statement's result. A column holds numbers if all its values are numbers.

    The schema does not tell the types of these columns: a statement may compute them.
    """
    classes = []
    for index in range(len(rows.columns)):
        are_numbers = all(isinstance(row[index], int | float) for row in rows.rows)
        classes.append(class_attribute(are_numbers, rows.rows, index))
    named = zip(classes, rows.columns, strict=True)
    heads = "".join(f'<th scope="col"{attribute}>{shown(name)}' for attribute, name in named)
    lines = [
        "<tr>"
        + "".join(f"<td{attribute}>{cell(value)}" for attribute, value in zip(classes, row, strict=True))
        for row in rows.rows
    ]
    body = "\n".join(lines)
    return (
        f'<div class="scroll fits" tabindex="0"><table>\n<thead><tr>{heads}</thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


# One row


def row_page(
    trail: PageTrail,
    schema: Schema,
    table: Table,
    row: dict[str, Value],
    referring: list[tuple[ForeignKey, int | None]],
    labels: dict[str, dict[Value, str]],
    statement: BoundStatement,
    *,
    editable: bool,
    editor: bool,
) -> str:
    """Return the page of one row: its values, the rows to which it refers, and the rows that refer to it."""
    key = [row[name] for name in table.key]
    title = plain(row[table.label_column]) if table.label_column else ", ".join(map(plain, key))
    body = [f"<h1>{shown(title[:200])}<small>{shown(table.name)}</small></h1>"]
    if editable:
        edit, delete = (html_escape(trail.of_row(table.name, key, action)) for action in ("edit", "delete"))
        body.append(f'<p class="links"><a href="{edit}">Edit</a><a href="{delete}">Delete</a></p>')
    lines = [
        f'<tr><th scope="row">{shown(name)}<td class="text">{value_of(trail, schema, table, row, name, labels)}'
        for name in row
    ]
    rows_html = "\n".join(lines)
    body.append(f'<div class="scroll"><table><tbody>\n{rows_html}\n</tbody></table></div>')
    if referring:
        body += ["<h2>Rows that lead here</h2>", '<ul class="cards">']
        for each, count in referring:
            view = rows_with(each.columns, [row[name] for name in each.other_columns])
            url = html_escape(trail.of_table(each.table) + view.query())
            by = shown(", ".join(each.columns))
            body.append(
                f'<li><h2><a href="{url}">{shown(each.table)}</a><small>{number(count)}</small></h2><p>by {by}'
            )
        body.append("</ul>")
    body.append(sql_details(trail, statement, editor))
    return page(trail, f"{title[:80]}: {table.name}", body, ", ".join(map(plain, key))[:60])


def value_of(
    trail: PageTrail,
    schema: Schema,
    table: Table,
    row: dict[str, Value],
    name: str,
    labels: dict[str, dict[Value, str]],
) -> str:
    """Return the HTML of a value in full: a link to the other row if the column belongs to a foreign key.

    name: the column. trail: makes the URL of the link. labels: column -> value -> the label of the other row, which
    is shown beside the link.
    """
    value = row[name]
    text = shown(value) if isinstance(value, str) else cell(value)
    if value is None:
        return text
    # A key of this column alone comes first, since `labels` has the labels of its rows.
    key = table.foreign_key(name) or next((each for each in table.foreign if name in each.columns), None)
    # In SQL, a key with a NULL in one of its columns refers to no row.
    if key is None or any(row[column] is None for column in key.columns):
        return text
    label = f" <small>{shown(labels[name][value])}</small>" if value in labels.get(name, {}) else ""
    url = html_escape(link_to_other(trail, schema, key, [row[column] for column in key.columns]))
    return f'<a href="{url}">{text}</a>{label}'


# Forms and error pages


def edit_page(
    trail: PageTrail,
    table: Table,
    row: dict[str, Value] | None,
    problem: str = "",
    given: dict[str, str] | None = None,
) -> str:
    """Return the form for a new row (row: None) or to change one.

    problem: why the database has refused the change; "": it was not asked. given: what the visitor has sent
    already; None: nothing.
    """
    title = "Insert a row" if row is None else "Edit the row"
    body = [f"<h1>{title}<small>{shown(table.name)}</small></h1>"]
    if problem:
        body.append(f'<div class="problem" role="alert">{shown(problem)}</div>')
    body.append('<form method="post"><div class="form">')
    for column in table.columns.values():
        value = row[column.name] if row is not None else None
        if column.filled_by == "computed" or column.is_bytes or isinstance(value, bytes):
            continue
        body.append(field_of(column, value, row is not None, given))
    body.append('</div><p class="links"><button>Save</button></p></form>')
    return page(trail, f"{title}: {table.name}", body, title)


def field_of(column: Column, value: Value, is_edit: bool, given: dict[str, str] | None) -> str:
    """Return the field of one column in a form, with a checkbox for NULL if the column may be NULL.

    value: of the row. is_edit: the form changes a row; otherwise it adds one. given: the fields that the visitor
    has sent, if the form is shown again.
    """
    name = html_escape(column.name)
    text = (given or {}).get("v." + column.name, plain(value))
    is_null = ("null." + column.name) in given if given is not None else is_edit and value is None
    if len(text) > MAX_LINE_CHARS or "\n" in text or "\r" in text:
        lines = min(4 + text.count("\n"), 20)
        field = f'<textarea name="v.{name}" id="f-{name}" rows="{lines}">\n{html_escape(text)}</textarea>'
    else:
        field = f'<input name="v.{name}" id="f-{name}" value="{html_escape(text)}">'
    hints = [column.type.lower()] if column.type else []
    if not is_edit and (column.filled_by or column.key):
        hints.append(f"empty: {column.filled_by}" if column.filled_by else "empty: the database chooses")
    null = ""
    if is_edit and not column.not_null and not column.key:
        checked = " checked" if is_null else ""
        null = f'<label><input type="checkbox" name="null.{name}" value="1"{checked}> NULL</label>'
    hint = f"<small>{shown(', '.join(hints))} {null}</small>"
    return f'<label for="f-{name}">{shown(column.name)}</label><span class="field">{field}{hint}</span>'


def delete_page(trail: PageTrail, table: Table, row: dict[str, Value], problem: str = "") -> str:
    """Return the page that asks whether to delete a row. problem: why the database has refused it; "": it was not
    asked.
    """
    lines = [f'<tr><th scope="row">{shown(name)}<td>{cell(value)}' for name, value in row.items()]
    body = [f"<h1>Delete this row?<small>{shown(table.name)}</small></h1>"]
    if problem:
        body.append(f'<div class="problem" role="alert">{shown(problem)}</div>')
    body.append(f'<div class="scroll"><table><tbody>{"".join(lines)}</tbody></table></div>')
    body.append('<form method="post"><p class="links"><button class="danger">Delete</button></p></form>')
    return page(trail, f"Delete: {table.name}", body, "Delete")


def problem_page(trail: PageTrail, title: str, text: str, detail: str = "") -> str:
    """Return an error page. detail: the database's own message, for visitors who may read it; "" for others."""
    body = [f"<h1>{shown(title)}</h1>", f"<p>{shown(text)}</p>"]
    if detail:
        body.append(f'<div class="problem">{shown(detail)}</div>')
    return page(trail, title, body)
