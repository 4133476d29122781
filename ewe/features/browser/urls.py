"""URLs: parse the URL of a request, and make the URL of each page.

    BASE/                                  the databases
    BASE/log/                              the tables of one database
    BASE/log/requests                      rows          .csv .json
    BASE/log/requests/row?key=17           one row       .json
    BASE/log/requests/insert, edit, delete forms, where a table is named for them
    BASE/log/-sql?sql=SELECT...&:p0=404    the SQL editor   .csv .json
    BASE/log/-saved/slowest?:p0=404        a saved query    .csv .json

A name may contain any character, but a path may not. encode_name() writes each ASCII character except letters,
digits, _ and - as ~XX, and a leading - as well. A table `a/b.csv` is therefore a~2Fb~2Ecsv, and never conflicts
with the words above.

The rows that a page shows are a View. A filter is three parameters in a row, as a form without scripts sends them:

    ?column=status&op=ge&value=500&column=method&op=eq&value=GET&search=shop&sort=bytes&desc=1&facet=address

Paging is by key: `after` contains the last row's value in the sorted column, and its key, as JSON. The database
then finds any page by an index. With OFFSET, it would have to read all rows before the page. A view of the database
has no key, so `offset` is used for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote_plus

from ewe.database.layouts import json_object
from ewe.database.protocol import Value
from ewe.features.browser.schema import Table
from ewe.features.databases.asking import from_json
from ewe.http.status import HTTPError
from ewe.http.target import percent_encode

PAGE_ROWS = 100  # on one page, unless its URL says otherwise
MAX_ROWS = 1000  # on one page
MAX_FILTERS = 20  # of one page; each makes its statement slower
MAX_FACETS = 5  # of one page; each is a statement that counts
MAX_VALUES = 1000  # of all filters “is one of” of one page; a statement takes 4,096 parameters
MAX_PARAMETERS = 200  # of a query string
MAX_OFFSET = 10_000_000  # rows before a page of a table without a key; the database has to skip them


class Operator(NamedTuple):
    """An operator of a filter. text: for people."""

    text: str
    takes_value: bool


# The name of each operator in a URL -> the operator
OPERATORS = {
    "eq": Operator("=", True),
    "ne": Operator("≠", True),
    "gt": Operator(">", True),
    "ge": Operator("≥", True),
    "lt": Operator("<", True),
    "le": Operator("≤", True),
    "contains": Operator("contains", True),
    "lacks": Operator("does not contain", True),
    "begins": Operator("begins with", True),
    "ends": Operator("ends with", True),
    "in": Operator("is one of (a, b, …)", True),
    "null": Operator("is NULL", False),
    "notnull": Operator("is not NULL", False),
}


class BadRequest(HTTPError):
    """A URL has an invalid parameter. The text is for the visitor."""

    def __init__(self, text: str) -> None:
        super().__init__(400, text)


@dataclass(frozen=True)
class Filter:
    """One condition on a column. op: a key of OPERATORS."""

    column: str
    op: str
    value: str


@dataclass(frozen=True)
class View:
    """A selection of a table's rows, and their order. Column names are those of the schema.

    after, before: the position of a row in the order; () at the beginning. offset: used if there is no key.
    """

    filters: tuple[Filter, ...] = ()
    search: str = ""
    sort: str = ""
    descending: bool = False
    facets: tuple[str, ...] = ()
    size: int = PAGE_ROWS
    after: tuple[Value, ...] = ()
    before: tuple[Value, ...] = ()
    offset: int = 0

    def first(self) -> View:
        """Return the same view from its beginning."""
        return replace(self, after=(), before=(), offset=0)

    def filtered(self, column: str, op: str, value: str) -> View:
        """Return this view from its beginning with one more filter."""
        return replace(self.first(), filters=(*self.filters, Filter(column, op, value)))

    def without(self, one: Filter) -> View:
        """Return this view from its beginning without one filter."""
        return replace(self.first(), filters=tuple(each for each in self.filters if each != one))

    def sorted(self, column: str, descending: bool) -> View:
        """Return this view in another order."""
        return replace(self.first(), sort=column, descending=descending)

    def with_facets(self, facets: Iterable[str]) -> View:
        """Return this view with the most frequent values of other columns."""
        return replace(self, facets=tuple(facets))

    def parameters(self) -> Iterator[tuple[str, str]]:
        """Yield the parameters of a query that asks for this view."""
        for one_filter in self.filters:
            yield "column", one_filter.column
            yield "op", one_filter.op
            yield "value", one_filter.value
        if self.search:
            yield "search", self.search
        if self.sort:
            yield "sort", self.sort
        if self.descending:
            yield "desc", "1"
        for facet in self.facets:
            yield "facet", facet
        if self.size != PAGE_ROWS:
            yield "size", str(self.size)
        for name, cursor in (("after", self.after), ("before", self.before)):
            if cursor:
                yield name, cursor_text(cursor)
        if self.offset:
            yield "offset", str(self.offset)

    def query(self) -> str:
        """Return the query of a URL with its question mark; "" for the plain view."""
        return query_of(self.parameters())


def query_of(parameters: Iterable[tuple[str, str]]) -> str:
    """Return the query of a URL with its question mark; "" without parameters."""
    pairs = [f"{quote_plus(name, safe=':')}={quote_plus(value)}" for name, value in parameters]
    return "?" + "&".join(pairs) if pairs else ""


def parameters_of(query: str | None, most: int = MAX_PARAMETERS) -> list[tuple[str, str]]:
    """Return the parameters of a query or of a form, in order. Raises BadRequest, also for more than `most`."""
    try:
        return parse_qsl(query or "", keep_blank_values=True, max_num_fields=most, errors="strict")
    except ValueError:
        raise BadRequest(
            f"The address, or the form, is not UTF-8, or has more than {most} parameters."
        ) from None


def view_of(table: Table, query: str | None) -> View:
    """Return the view that a query asks for. Unknown parameters are ignored.

    Raises BadRequest for a column that the table does not have, and for invalid values.
    """
    if not query:
        return PLAIN
    parameters: dict[str, str] = {}
    lists: dict[str, list[str]] = {"column": [], "op": [], "value": [], "facet": []}
    for name, value in parameters_of(query):
        if name in lists:
            lists[name].append(value)
        else:
            parameters[name] = value
    search = parameters.get("search", "").strip()
    if "\0" in search:
        raise BadRequest("A search cannot hold the character NUL.")
    return View(
        filters=tuple(filters_of(table, lists)),
        search=search,
        sort=column_of(table, parameters["sort"], also=table.key) if parameters.get("sort") else "",
        descending=parameters.get("desc", "") == "1",
        facets=facets_of(table, lists["facet"]),
        size=whole_number(parameters, "size", PAGE_ROWS, 1, MAX_ROWS),
        after=cursor_of(table, parameters, "after"),
        before=cursor_of(table, parameters, "before"),
        offset=whole_number(parameters, "offset", 0, 0, MAX_OFFSET),
    )


PLAIN = View()


def filters_of(table: Table, lists: dict[str, list[str]]) -> Iterator[Filter]:
    """Yield the filters of a query that have a column. Raises BadRequest."""
    columns, operators, values = lists["column"], lists["op"], lists["value"]
    if not len(columns) == len(operators) == len(values):
        raise BadRequest("A filter is column, op and value, in this order; one of them is missing.")
    # The form also sends an empty line, which is no filter.
    if sum(map(bool, columns)) > MAX_FILTERS:
        raise BadRequest(f"These are more than {MAX_FILTERS} filters.")
    count = 0  # values of the operator “in” so far
    for column, op, value in zip(columns, operators, values, strict=True):
        if not column:
            continue
        if op not in OPERATORS:
            raise BadRequest(f"There is no operator “{op[:40]}”. There are: {', '.join(OPERATORS)}.")
        if "\0" in value:
            raise BadRequest("A filter cannot hold the character NUL.")
        count += value.count(",") + 1 if op == "in" else 0
        if count > MAX_VALUES:
            raise BadRequest(f"The filters “in” have more than {MAX_VALUES} values.")
        yield Filter(column_of(table, column, also=table.key), op, value if OPERATORS[op].takes_value else "")


def facets_of(table: Table, names: list[str]) -> tuple[str, ...]:
    """Return the columns for which the most frequent values are requested. Raises BadRequest."""
    columns = tuple(dict.fromkeys(column_of(table, name) for name in names if name))
    if len(columns) > MAX_FACETS:
        raise BadRequest(f"These are more than {MAX_FACETS} columns to count the values of.")
    return columns


def column_of(table: Table, name: str, also: tuple[str, ...] = ()) -> str:
    """Return `name` if the table has a column of this name. Raises BadRequest if it has none.

    also: further valid names, such as SQLite's row id, which is in the key but is not a column.
    """
    if name not in table.columns and name not in also:
        raise BadRequest(f"The table {table.name} has no column “{name[:60]}”.")
    return name


def whole_number(parameters: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    """Return the value of a parameter as a whole number; `default` if it is missing or empty.

    parameters: of the query. Raises BadRequest unless the number is from `least` to `most`.
    """
    text = parameters.get(name) or str(default)
    # len(): `most` is shorter, and int() fails for thousands of digits.
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise BadRequest(f"{name} must be a whole number from {least} to {most}.")
    return int(text)


def cursor_text(cursor: Iterable[Value]) -> str:
    """Return a row's position in the order as the value of a parameter."""
    return json.dumps([json_object(value) for value in cursor], separators=(",", ":"), ensure_ascii=False)


def cursor_of(table: Table, parameters: dict[str, str], name: str) -> tuple[Value, ...]:
    """Return the position in a query: the value of the sorted column, if there is one, then the key.

    Raises BadRequest.
    """
    if not (text := parameters.get(name)):
        return ()
    cursor = values_in(text)
    if cursor is None or not table.key or len(cursor) != len(table.key) + bool(parameters.get("sort")):
        raise BadRequest(f"“{name}” does not name a row. Please begin on the first page.")
    return tuple(cursor)


def values_in(text: str) -> list[Value] | None:
    """Return the values of a text that cursor_text() has written; None if the text has another form."""
    try:
        values: Any = json.loads(text, object_hook=from_json)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return values if isinstance(values, list) and all(map(is_value, values)) else None


# A NUL, and a surrogate: JSON can name it, and UTF-8 cannot encode it
NOT_IN_VALUES = re.compile(r"[\x00\ud800-\udfff]")


def is_value(value: object) -> bool:
    """Return whether a database can compare this value."""
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 63
    if isinstance(value, str):
        return NOT_IN_VALUES.search(value) is None
    return value is None or isinstance(value, float | bytes)


NOT_IN_NAMES = re.compile(r"[\x00-\x2c./:-@\[-^`{-\x7f]|^-")
ENCODED = re.compile("~([0-7][0-9A-F])")


def encode_name(name: str) -> str:
    """Return the name of a table as one segment of a path."""
    return percent_encode(NOT_IN_NAMES.sub(lambda found: f"~{ord(found[0]):02X}", name))


def decode_name(segment: str) -> str:
    """Return the name of a table from a segment of a decoded path."""
    return ENCODED.sub(lambda found: chr(int(found[1], 16)), segment)
