"""Statements: the SQL for the requests of the browser. Names come from the schema, values are parameters.

The functions are pure. They return a BoundStatement, which the daemon runs and the page shows.

The order of a page's rows must be total, or some rows would be shown twice or never. Rows are therefore sorted by
the sorted column, and then by the key. The next page begins after (value, key) of the last row. Both databases
compare such pairs, as in ("bytes", "id") > (:a0, :a1). A comparison with NULL is neither true nor false, so NULLs
are separate cases.

Possible failure: SQLite allows NULL in a primary key that is not INTEGER. Such rows have no order among each other,
and a page that is reached by a cursor in the key may leave them out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ewe.database.protocol import Value
from ewe.features.browser.schema import SQLITE, ForeignKey, Schema, Table, quote
from ewe.features.browser.urls import BadRequest, Filter, View

FACET_VALUES = 20  # the most frequent values of a column that a page shows
WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]{0,17})\.[0-9]{1,17}")
COMPARISONS = {"eq": "=", "ne": "<>", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}
# The parts of a statement that are not parameters (strings, names, comments, casts), and then a parameter
PARAMETER = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | \[[^\]]*(?:\]|\Z) | `[^`]*` | --[^\n]* | /\*.*?(?:\*/|\Z) | ::
      | (?<![\w:]):(?P<name>[A-Za-z_]\w*)""",
    re.VERBOSE | re.DOTALL,
)


class BoundStatement(NamedTuple):
    """SQL and the values of its parameters, by name."""

    sql: str
    parameters: dict[str, Value]


def rows_of(schema: Schema, table: Table, view: View, *, limit: bool = True) -> BoundStatement:
    """Return the statement for a page of rows. It asks for one more row, which shows that another page follows.

    limit: False for all rows, for an export: without SQLite's row id, which is not a column.
    """
    parameters: dict[str, Value] = {}
    conditions = conditions_of(schema, table, view, parameters)
    backwards = bool(view.before)
    if limit and (cursor := view.before or view.after):
        conditions.append(after_cursor(schema, table, view, cursor, backwards, parameters))
    columns = columns_of(table) if limit else "*"
    lines = [f"SELECT {columns}", f"FROM {quote(table.name)}", *where(conditions)]
    if order := order_of(table, view, backwards):
        lines.append(f"ORDER BY {', '.join(order)}")
    if limit:
        offset = f" OFFSET {view.offset}" if view.offset and not table.key else ""
        lines.append(f"LIMIT {view.size + 1}{offset}")
    return BoundStatement("\n".join(lines), parameters)


def count_of(schema: Schema, table: Table, view: View) -> BoundStatement:
    """Return the statement that counts the rows of a view."""
    parameters: dict[str, Value] = {}
    conditions = conditions_of(schema, table, view, parameters)
    lines = ["SELECT COUNT(*)", f"FROM {quote(table.name)}", *where(conditions)]
    return BoundStatement("\n".join(lines), parameters)


def counts_of(tables: Iterable[Table]) -> BoundStatement:
    """Return the statement that counts the rows of several tables. The result is one row with a column for each."""
    counts = ", ".join(f"(SELECT COUNT(*) FROM {quote(table.name)})" for table in tables)
    return BoundStatement(f"SELECT {counts}", {})


def facet_of(schema: Schema, table: Table, view: View, column: str) -> BoundStatement:
    """Return the statement for the most frequent values of a column, with one value more than the page shows."""
    parameters: dict[str, Value] = {}
    conditions = conditions_of(schema, table, view, parameters)
    name = quote(column)
    # By position: a column may have any name, also that of the count
    lines = [f"SELECT {name}, COUNT(*)", f"FROM {quote(table.name)}", *where(conditions)]
    lines += [f"GROUP BY {name}", "ORDER BY 2 DESC, 1", f"LIMIT {FACET_VALUES + 1}"]
    return BoundStatement("\n".join(lines), parameters)


def row_of(table: Table, key: Sequence[Value]) -> BoundStatement:
    """Return the statement for the row with this key."""
    conditions, parameters = conditions_of_key(table, key)
    lines = [f"SELECT {columns_of(table)}", f"FROM {quote(table.name)}", *where(conditions)]
    return BoundStatement("\n".join(lines), parameters)


def statement_of_labels(schema: Schema, key: ForeignKey, values: Sequence[Value]) -> BoundStatement | None:
    """Return the statement that reads the labels of the rows to which a foreign key refers; None if there are none.

    A label is the value of a column such as `name` or `title`. The key has one column, with these values.
    """
    other = schema.tables[key.other]
    if not other.label_column or not values:
        return None
    parameters = {f"v{number}": value for number, value in enumerate(values)}
    names = ", ".join(f":{name}" for name in parameters)
    referenced = quote(key.other_columns[0])
    columns = f"{referenced}, {quote(other.label_column)}"
    sql = f"SELECT {columns}\nFROM {quote(other.name)}\nWHERE {referenced} IN ({names})"
    return BoundStatement(sql, parameters)


def insert_of(schema: Schema, table: Table, values: dict[str, str | None]) -> BoundStatement:
    """Return the statement that inserts a row. values: the values of the columns in the form."""
    parameters = {
        f"p{number}": bound(schema, table, name, value) for number, (name, value) in enumerate(values.items())
    }
    names = ", ".join(map(quote, values))
    placeholders = ", ".join(f":{name}" for name in parameters)
    if not values:
        return BoundStatement(f"INSERT INTO {quote(table.name)} DEFAULT VALUES", {})
    return BoundStatement(f"INSERT INTO {quote(table.name)} ({names})\nVALUES ({placeholders})", parameters)


def update_of(
    schema: Schema, table: Table, key: Sequence[Value], values: dict[str, str | None]
) -> BoundStatement:
    """Return the statement that changes the row with this key. Raises BadRequest if there is nothing to change."""
    if not values:
        raise BadRequest("The form changes no column.")
    conditions, parameters = conditions_of_key(table, key)
    changes = []
    for number, (name, value) in enumerate(values.items()):
        parameters[f"p{number}"] = bound(schema, table, name, value)
        changes.append(f"{quote(name)} = :p{number}")
    lines = [f"UPDATE {quote(table.name)}", f"SET {', '.join(changes)}", *where(conditions)]
    return BoundStatement("\n".join(lines), parameters)


def delete_of(table: Table, key: Sequence[Value]) -> BoundStatement:
    """Return the statement that deletes the row with this key."""
    conditions, parameters = conditions_of_key(table, key)
    return BoundStatement("\n".join([f"DELETE FROM {quote(table.name)}", *where(conditions)]), parameters)


def conditions_of_key(table: Table, key: Sequence[Value]) -> tuple[list[str], dict[str, Value]]:
    """Return the conditions that only the row with this key fulfils, one for each column, and their parameters.

    The parameters are k0, k1, ... No value is NULL. Each value is bound as it is, and not as bound() would: the URL
    of the row says its type (pages.key_text()), and in a column of SQLite without a type, 5 and '5' are two keys.
    """
    conditions = [f"{quote(name)} = :k{number}" for number, name in enumerate(table.key)]
    return conditions, {f"k{number}": value for number, value in enumerate(key)}


# Parts of statements


def columns_of(table: Table) -> str:
    """Return the select list of a table: all columns, and before them the row id if it is the key."""
    if not table.row_id:
        return "*"
    # SQLite names the column of the result rowid, also if the query says _rowid_ or oid
    alias = "" if table.row_id == "rowid" else f" AS {quote(table.row_id)}"
    return f"{quote(table.row_id)}{alias}, *"


def where(conditions: Sequence[str]) -> list[str]:
    """Return the WHERE clause, if there is one."""
    return ["WHERE " + "\n  AND ".join(conditions)] if conditions else []


def conditions_of(schema: Schema, table: Table, view: View, parameters: dict[str, Value]) -> list[str]:
    """Return the conditions of a view's filters and its search; add their parameters."""
    conditions = [
        condition(schema, table, one_filter, f"p{number}", parameters)
        for number, one_filter in enumerate(view.filters)
    ]
    if view.search:
        conditions.append(search(schema, table, view.search, parameters))
    return conditions


def condition(
    schema: Schema, table: Table, one_filter: Filter, name: str, parameters: dict[str, Value]
) -> str:
    """Return the condition of a filter; add its parameters. name: the beginning of their names."""
    column = quote(one_filter.column)
    if one_filter.op in ("null", "notnull"):
        return f"{column} IS {'NOT ' if one_filter.op == 'notnull' else ''}NULL"
    if one_filter.op == "in":
        values = [part.strip() for part in one_filter.value.split(",")]
        names = [f"{name}_{number}" for number in range(len(values))]
        parameters.update(
            (parameter, bound(schema, table, one_filter.column, value))
            for parameter, value in zip(names, values, strict=True)
        )
        return f"{column} IN ({', '.join(':' + parameter for parameter in names)})"
    if one_filter.op in COMPARISONS:
        parameters[name] = bound(schema, table, one_filter.column, one_filter.value)
        return f"{column} {COMPARISONS[one_filter.op]} :{name}"
    pattern = like_escaped(one_filter.value)
    before, after = {"begins": ("", "%"), "ends": ("%", "")}.get(one_filter.op, ("%", "%"))
    parameters[name] = before + pattern + after
    return like(schema, column, name, negated=one_filter.op == "lacks")


def search(schema: Schema, table: Table, text: str, parameters: dict[str, Value]) -> str:
    """Return the condition for rows that contain a text: by the full-text index, else in any text column."""
    if table.search:
        words = ('"' + word.replace('"', '""') + '"' for word in text.split())
        parameters["search"] = " ".join(words)
        index = quote(table.search)
        if table.search == table.name:
            return f"{index} MATCH :search"
        return f"rowid IN (SELECT rowid FROM {index} WHERE {index} MATCH :search)"
    columns = [each.name for each in table.columns.values() if each.is_text] or list(table.columns)
    parameters["search"] = f"%{like_escaped(text)}%"
    return "(" + " OR ".join(like(schema, quote(name), "search") for name in columns) + ")"


def like(schema: Schema, column: str, name: str, *, negated: bool = False) -> str:
    """Return a comparison with a pattern that ignores case. column: quoted."""
    text = schema.dialect.as_text.format(column)
    return f"{text} {'NOT ' if negated else ''}{schema.dialect.like} :{name} ESCAPE '\\'"


def like_escaped(text: str) -> str:
    r"""Return a text as a pattern that matches only this text.

    >>> like_escaped("100%")
    '100\\%'
    """
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def bound(schema: Schema, table: Table, column: str, value: Value) -> Value:
    """Return the parameter for a value of a URL or a form, which is text.

    PostgreSQL reads the text as the column's type. SQLite does so only where a column has a type with an affinity
    (sqlite.org/datatype3.html section 4.2): in the column of a view, 5 and '5' differ. There a number is bound.
    """
    known = table.columns.get(column)
    if not isinstance(value, str) or schema.dialect is not SQLITE or (known is not None and known.is_text):
        return value
    if WHOLE.fullmatch(value):
        return int(value)
    return float(value) if DECIMAL.fullmatch(value) else value


def order_of(table: Table, view: View, backwards: bool) -> list[str]:
    """Return the terms of the ORDER BY clause: the sorted column, then the key."""
    down = " DESC" if view.descending != backwards else ""
    return [quote(name) + down for name in ordered_by(table, view)]


def ordered_by(table: Table, view: View) -> Iterator[str]:
    """Yield the columns by which a view is ordered: the sorted column, if there is one, then the key."""
    if view.sort:
        yield view.sort
    yield from (name for name in table.key if name != view.sort)


def cursor_in(table: Table, view: View, columns: Sequence[str], row: Sequence[Value]) -> tuple[Value, ...]:
    """Return the position of a row in the order, for the parameters `after` and `before`."""
    names = ([view.sort] if view.sort else []) + list(table.key)
    return tuple(row[columns.index(name)] for name in names)


def after_cursor(
    schema: Schema,
    table: Table,
    view: View,
    cursor: Sequence[Value],
    backwards: bool,
    parameters: dict[str, Value],
) -> str:
    """Return the condition for the rows that follow a cursor, the position of a row; add its parameters.

    cursor: as cursor_in() has made it: the value of the sorted column, if there is one, then the key. backwards:
    the condition is for the rows before the cursor, which the statement reads in the reverse order. The module's
    docstring says why NULLs are separate cases.
    """
    sorted_and_key = ([view.sort] if view.sort else []) + list(table.key)
    values = dict(zip(sorted_and_key, cursor, strict=True))
    names = list(ordered_by(table, view))  # each column once, although the sorted column may be in the key
    first = names[0]
    ascending = view.descending == backwards  # reading backwards reverses the order
    # A NULL has no parameter: only the sorted column, which is the first, is compared with NULL.
    parameters |= {f"a{at}": values[name] for at, name in enumerate(names) if at or values[name] is not None}

    def follows(start: int) -> str:
        """Return the comparison of the columns from `start` on with their values in the cursor."""
        sign = ">" if ascending else "<"
        left = ", ".join(map(quote, names[start:]))
        right = ", ".join(f":a{at}" for at in range(start, len(names)))
        return f"({left}) {sign} ({right})" if len(names) - start > 1 else f"{left} {sign} {right}"

    column = table.columns.get(first)
    if not view.sort or (column is not None and column.not_null):
        return follows(0)
    nulls_come_first = ascending == schema.dialect.nulls_first
    is_null, is_not_null = f"{quote(first)} IS NULL", f"{quote(first)} IS NOT NULL"
    if values[first] is not None:
        return follows(0) if nulls_come_first else f"({follows(0)} OR {is_null})"
    if len(names) == 1:  # the sorted column is the whole key
        return is_not_null if nulls_come_first else "1 = 0"
    same_null = f"{is_null} AND {follows(1)}"  # the rows with NULL, too, are in the order of their keys
    return f"(({same_null}) OR {is_not_null})" if nulls_come_first else f"({same_null})"


def parameters_in(sql: str) -> list[str]:
    """Return the names of the parameters in a visitor's statement, without duplicates.

    >>> parameters_in("SELECT ':no', a::text FROM t WHERE b = :yes -- :no")
    ['yes']
    """
    names = (found["name"] for found in PARAMETER.finditer(sql) if found["name"])
    return list(dict.fromkeys(names))
