"""The variables of a template: the results of the queries, their tables, links and charts, and the page.

Only the URL has a visitor's choices: the parameters, and for each query the sort column and the number of the page.
`sort` and `page` belong to the first query; those of the others have the query's name in front (`loans.page`). A
sort column must be declared by the page, so no text of a visitor becomes part of a statement.

Templates of users may use the classes here (see templates.py). Names without a leading underscore are therefore
harmless to call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from urllib.parse import quote, urlencode

from markupsafe import Markup

from ewe.database.protocol import Value
from ewe.sqlpages import charts
from ewe.sqlpages.declarations import Declarations, Query
from ewe.sqlpages.templates import check_can_be_shown
from ewe.sqlpages.values import TYPES

PAGE_NUMBER = re.compile("[1-9][0-9]{0,5}")
PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
MAX_URL_CHARS = 8192  # of a link: servers refuse longer ones
MAX_TABLE_CHARS = 8 << 20  # of a table
MAX_CHART_LINES = 10  # lines of a chart: there are as many colours


class Choice:
    """A visitor's choices for one query. column: to sort by, "" for the page's order. page: from 1."""

    __slots__ = ("column", "descending", "page")

    def __init__(self, query: Query, prefix: str, given: Mapping[str, str]) -> None:
        """prefix: begins the query's names in the URL ("loans."). given: the URL's fields."""
        sort_field = given.get(f"{prefix}sort", "")
        name = sort_field.removeprefix("-")
        is_declared = any(name == column for column, _ in query.sort)
        self.column = name if is_declared else ""
        self.descending = is_declared and sort_field.startswith("-")
        number = given.get(f"{prefix}page", "")
        self.page = int(number) if PAGE_NUMBER.fullmatch(number) else 1

    def order(self, query: Query) -> list[tuple[str, bool]]:
        """Return the columns to sort by, each with True for descending: the chosen one first."""
        if not self.column:
            return list(query.sort)
        others = [(column, descending) for column, descending in query.sort if column != self.column]
        return [(self.column, self.descending), *others]


def select_statement(query: Query, choice: Choice, *, whole: bool = False) -> str:
    """Return the statement to run: the query as a subquery, sorted, and limited to one page and one more row.

    A subquery can only read: a statement that changes a database cannot be one. whole: all rows, for an export.
    """
    parts = [f"SELECT * FROM (\n{query.sql}\n) AS {quoted_identifier(query.name)}"]
    order = choice.order(query)
    if order:
        columns = (
            quoted_identifier(column) + (" DESC" if descending else "") for column, descending in order
        )
        parts.append(f"ORDER BY {', '.join(columns)}")
    if not whole:
        rows_before = (choice.page - 1) * query.rows_per_page
        # One row more than the page has: it shows that there is another page
        parts.append(f"LIMIT {query.rows_per_page + 1} OFFSET {rows_before}")
    return " ".join(parts)


def quoted_identifier(name: str) -> str:
    """Return a name in quotes, so that SQL reads any text as a name."""
    return '"' + name.replace('"', '""') + '"'


class Row:
    """One row. Its columns are attributes; columns whose names cannot be attributes are items: row["count(*)"]."""

    def __init__(self, columns: Sequence[str], values: Sequence[Value]) -> None:
        self.__dict__.update(zip(columns, values, strict=True))

    def __getitem__(self, name: str) -> Value:
        """Return the value of a column. Raises KeyError."""
        value: Value = self.__dict__[name]
        return value

    def __iter__(self) -> Iterator[Value]:
        """Yield the values, in the order of the columns."""
        return iter(self.__dict__.values())


class QueryResult:
    """The rows of one query that are on one page of the result.

    asked: False if the query was not run because its parameter was not given. cut: there are more rows. number: of
    the page, from 1.
    """

    def __init__(
        self,
        page: Page,
        query: Query,
        choice: Choice,
        prefix: str,
        columns: list[str],
        rows: list[list[Value]],
    ) -> None:
        """page: of the template, to which the links lead. prefix: begins the query's names in the URL ("loans.").

        rows: those that `choice.page` shows, and one more if there is another page.
        """
        self._page = page
        self._query = query
        self._choice = choice
        self._prefix = prefix
        self.asked = True
        self.columns = columns
        self.cut = len(rows) > query.rows_per_page
        self._rows = rows[: query.rows_per_page]
        self.number = choice.page

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows of this page."""
        columns = self.columns
        return (Row(columns, row) for row in self._rows)

    def __len__(self) -> int:
        """Return the number of rows on this page."""
        return len(self._rows)

    @property
    def first(self) -> Row | None:
        """Return the first row, None if there is none."""
        return Row(self.columns, self._rows[0]) if self._rows else None

    @property
    def csv(self) -> str:
        """Return the URL of all rows as CSV."""
        return self._export("csv")

    @property
    def json(self) -> str:
        """Return the URL of all rows as JSON."""
        return self._export("json")

    def _export(self, suffix: str) -> str:
        """Return the URL of all rows of this query, in the format that the suffix names."""
        changes: dict[str, Value] = {f"{self._prefix}page": None}
        if self._prefix:
            changes["query"] = self._query.name
        return self._page._file(suffix) + self._page.here(**changes)

    # Tables

    def table(
        self,
        links: Mapping[str, str] | None = None,
        hide: Sequence[object] = (),
        labels: Mapping[str, str] | None = None,
        empty: str = "Nothing was found.",
    ) -> Markup:
        """Return the rows as a table, and links to the other pages.

        links: column -> URL with {column} for a row's value; None: no links. hide: columns left out, or the name of
        one. labels: column -> heading; None: the columns' own names. empty: the text without rows.
        """
        links, labels = links or {}, labels or {}
        # Only dictionaries: a namespace of the template could have a macro as its get(), and a macro that is called
        # from here would run without the checks of the template's time and memory (templates.py)
        if not (isinstance(links, dict) and isinstance(labels, dict)):
            raise TypeError("links and labels must be dictionaries")
        if not self.asked:  # the visitor has not given the parameter without which the query does not run
            return Markup("")
        if not self._rows:
            return Markup(f'<p class="empty">{escape(empty)}</p>\n') + self.pages()
        # A set: with two lists, the time would be the product of their lengths
        hidden = {hide} if isinstance(hide, str) else {name for name in hide if isinstance(name, str)}
        shown = [(index, name) for index, name in enumerate(self.columns) if name not in hidden]
        # PostgreSQL may give many columns one name, and they then have the same label
        head_chars = sum(len(labels.get(name, name)) for _, name in shown)
        if head_chars + len("<td>") * len(shown) * len(self._rows) > MAX_TABLE_CHARS:
            raise ValueError(f"a table longer than {MAX_TABLE_CHARS} characters")
        heads = "".join(self._head(index, name, labels.get(name, name)) for index, name in shown)
        body = f"<thead><tr>{heads}\n<tbody>\n{self._table_rows(shown, links)}"
        return Markup(f'<div class="scroll"><table>\n{body}</table></div>\n') + self.pages()

    def _head(self, index: int, name: str, label: str) -> str:
        """Return the head of a column: a link that sorts, if visitors may sort by the column.

        index: of the column. A second click reverses the order.
        """
        sortable_columns = dict(self._query.sort)  # name -> True for descending first
        number = ' class="number"' if isinstance(self._rows[0][index], NUMBERS) else ""
        if name not in sortable_columns:
            return f"<th{number}>{escape(label)}"
        present_order = self._choice.order(self._query)
        first_column, first_descends = present_order[0] if present_order else ("", False)
        is_sorted = first_column == name  # the rows are sorted by this column now
        will_descend = not first_descends if is_sorted else sortable_columns[name]
        aria = f' aria-sort="{"descending" if first_descends else "ascending"}"' if is_sorted else ""
        url = self._page.here(
            **{f"{self._prefix}sort": ("-" if will_descend else "") + name, f"{self._prefix}page": None}
        )
        return f'<th{number}{aria}><a href="{escape(url)}">{escape(label)}</a>'

    def _table_rows(self, shown: list[tuple[int, str]], links: Mapping[str, str]) -> str:
        """Return the rows of a table. shown: (index, name) of each column. Raises ValueError for a long table."""
        patterns = [links.get(name) for _, name in shown]  # the URL of each column; None: no link
        if not any(patterns) and len(shown) == len(self.columns):  # most tables: faster than _row()
            return "".join([f"<tr>{''.join([html_cell(value) for value in row])}\n" for row in self._rows])
        rows, row_chars = [], 0
        for row in self._rows:
            rows.append(self._row(row, shown, patterns))
            row_chars += len(rows[-1])
            if row_chars > MAX_TABLE_CHARS:  # links may be much longer than the values
                raise ValueError(f"a table longer than {MAX_TABLE_CHARS} characters")
        return "".join(rows)

    def _row(self, row: list[Value], shown: list[tuple[int, str]], patterns: list[str | None]) -> str:
        """Return a row of a table in which some columns are links or are left out.

        shown: (index, name) of each column that is not left out. patterns: the URL of each of them; None: no link.
        """
        cells = []
        values = dict(zip(self.columns, row, strict=True))
        for (index, _), pattern in zip(shown, patterns, strict=True):
            if pattern is None or row[index] is None:
                cells.append(html_cell(row[index]))
            else:
                url = fill_placeholders(pattern, values)
                number = ' class="number"' if isinstance(row[index], NUMBERS) else ""
                cells.append(f'<td{number}><a href="{escape(url)}">{escape(text_of(row[index]))}</a>')
        return f"<tr>{''.join(cells)}\n"

    def pages(self) -> Markup:
        """Return links to the pages before and after, and the numbers of these rows; nothing for a single page."""
        number, rows = self._choice.page, len(self._rows)
        if number == 1 and not self.cut:
            return Markup("")
        name = f"{self._prefix}page"
        links = []
        if number > 1:
            # The first page needs no number in its URL: None removes it
            url = self._page.here(**{name: None if number == 2 else number - 1})
            links.append(f'<a rel="prev" href="{escape(url)}">← Previous</a>')
        first = (number - 1) * self._query.rows_per_page + 1
        more = "; there are more" if self.cut else ""
        links.append(f"Rows {first:,} to {first + rows - 1:,}{more}" if rows else "No more rows")
        if self.cut:
            url = self._page.here(**{name: number + 1})
            links.append(f'<a rel="next" href="{escape(url)}">Next →</a>')
        return Markup(f'<nav class="pages" aria-label="Pages">{" · ".join(links)}</nav>\n')

    # Charts

    def bars(self, x: str, y: str, title: str = "") -> Markup:
        """Return a bar chart: the column x names the bars, the column y is their length. title: "" for none."""
        return Markup(charts.bars(self._page._chart_name(), title, *self._columns(x, y)))

    def lines(self, x: str, *y: str, title: str = "") -> Markup:
        """Return a line chart: one line for each column in y, over the column x. title: "" for none.

        Raises ValueError for more than MAX_CHART_LINES columns, KeyError for a column that does not exist.
        """
        if len(y) > MAX_CHART_LINES:
            raise ValueError(f"a chart of {len(y)} lines: at most {MAX_CHART_LINES}")
        return Markup(charts.lines(self._page._chart_name(), title, *self._columns(x, *y)))

    def _columns(self, *names: str) -> tuple[Sequence[str], list[list[Value]]]:
        """Return the names, and the values of each column. Raises KeyError for a column that does not exist."""
        indexes = []
        for name in names:
            if name not in self.columns:
                existing = ", ".join(self.columns) or "none, since the query was not run"
                check_can_be_shown(name)
                raise KeyError(f"{self._query.name} has no column {str(name)[:40]!r}; there are: {existing}")
            indexes.append(self.columns.index(name))
        return names, [[row[index] for row in self._rows] for index in indexes]


NUMBERS = (int, float)
# Characters that HTML needs escaped. Most texts have none, and this search is faster than escape()
ESCAPED_CHARACTERS = re.compile("[&<>\"']")


def html_cell(value: Value) -> str:
    """Return one cell of a table."""
    if isinstance(value, str):
        return f"<td>{escape(value) if ESCAPED_CHARACTERS.search(value) else value}"
    if isinstance(value, NUMBERS):
        return f'<td class="number">{value}'
    return "<td>" if value is None else f"<td>{escape(text_of(value))}"


def text_of(value: Value) -> str:
    """Return a value as text: NULL is empty, and of bytes the text says only how many they are."""
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    return "" if value is None else str(value)


def fill_placeholders(pattern: str, values: Mapping[str, Value]) -> str:
    """Return a URL with each {name} replaced by its value. The value is percent-encoded, so it adds no / or ? or #.

    Raises KeyError for a name without a value, ValueError for a URL longer than MAX_URL_CHARS.
    """
    remaining_chars = MAX_URL_CHARS - len(pattern)

    def value_of(match: re.Match[str]) -> str:
        """Return the percent-encoded value for one placeholder, and count its characters."""
        nonlocal remaining_chars
        text = text_of(values[match[1]])
        remaining_chars -= len(text)
        if remaining_chars < 0:
            raise ValueError(f"a link longer than {MAX_URL_CHARS} characters")
        return quote(text, safe="")

    if remaining_chars < 0:
        raise ValueError(f"a link longer than {MAX_URL_CHARS} characters")
    return PLACEHOLDER.sub(value_of, pattern)


def check_url_length(parameters: Mapping[str, Value]) -> None:
    """Raise ValueError if the parameters of a URL have more than MAX_URL_CHARS characters.

    A template may give one long text to thousands of parameters: the URL would take gigabytes before its size is
    counted (templates.py). Raises SecurityError for a namespace.
    """
    remaining_chars = MAX_URL_CHARS
    for name, value in parameters.items():
        check_can_be_shown(value)  # a namespace may hold others: its str() might not end
        remaining_chars -= len(name) + len(value if isinstance(value, str | bytes) else str(value))
        if remaining_chars < 0:
            raise ValueError(f"a link longer than {MAX_URL_CHARS} characters")


class Page:
    """The page as its template sees it: `page`."""

    def __init__(self, declarations: Declarations, path: str, given: Mapping[str, str], style: str) -> None:
        """path: of the URL. given: the fields of the URL. style: the style sheet."""
        self._declarations = declarations
        self._path = path
        self._url_fields = given
        self._chart_count = 0  # charts so far: each has its own name
        self.style = Markup(style)
        self.database = declarations.database

    @property
    def title(self) -> str:
        """Return the declared title, or one made from the file's name."""
        name = self._name()
        return self._declarations.title or name.replace("-", " ").replace("_", " ").strip().capitalize()

    def _name(self) -> str:
        """Return the last part of the path without the suffix of a page from SQL; "index" for a directory."""
        _, _, name = self._path.rpartition("/")
        for suffix in (".sql.html", ".sql.csv", ".sql.json"):
            name = name.removesuffix(suffix)
        return name or "index"

    def _file(self, suffix: str) -> str:
        """Return the URL of an export, relative to the page's."""
        return f"{quote(self._name(), safe='', errors='surrogateescape')}.sql.{suffix}"

    def _chart_name(self) -> str:
        """Return a name that no other chart of the page has."""
        self._chart_count += 1
        return f"chart-{self._chart_count}"

    def here(self, **changes: Value) -> str:
        """Return the query of this page's URL with changed values; None removes a value. It begins with "?".

        Raises ValueError for changes that are longer than MAX_URL_CHARS together.
        """
        check_url_length(changes)
        fields: dict[str, Value] = {**self._url_fields, **changes}
        return "?" + urlencode({name: value for name, value in fields.items() if value is not None})

    def url(self, path: str, /, **parameters: Value) -> str:
        """Return the URL of another page with these parameters; None omits a parameter.

        Raises ValueError for parameters that are longer than MAX_URL_CHARS together.
        """
        check_can_be_shown(path)
        check_url_length(parameters)
        query = urlencode({name: value for name, value in parameters.items() if value is not None})
        return f"{path}?{query}" if query else path

    @property
    def parameters(self) -> list[dict[str, Value]]:
        """Return the data for a form: name, type of the input field, and value as in the URL."""
        used = {name for query in self._declarations.queries.values() for name in query.parameters}
        return [
            {
                "name": parameter.name,
                "input": TYPES[parameter.kind].input,
                "value": self._url_fields.get(
                    parameter.name, "" if parameter.default is None else str(parameter.default)
                ),
                "required": parameter.required,
            }
            for parameter in self._declarations.parameters.values()
            if parameter.name in used
        ]
