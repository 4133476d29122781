"""The declarations at the top of a page from SQL: its database, its parameters, and its statements.

A page is SQL above a line `---`, and HTML below it. In the SQL part, comments of one form are declarations:

    -- database: library
    -- parameter: q text = ''
    -- query: books
    -- rows: 20
    -- sort: title, year desc
    SELECT title, author, year FROM books WHERE title LIKE '%' || :q || '%'
    ---
    <h1>Books</h1> {{ books.table() }}

A line `-- word: ...` is always a declaration, so a misspelled word is an error and not a comment. Other comments
stay in their statement. Everything is checked when the file is read: a page that uses an undeclared parameter never
runs.

The declarations are SQL comments, not TOML or tags: the author of such a page knows SQL, and can try its statements
unchanged in sqlite3 or psql.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from urllib.parse import quote

from ewe.database.protocol import Value
from ewe.sqlpages.values import TYPES, BadValue, Parameter

DEFAULT_ROWS = 100  # rows of a query on one page, if the page does not set a number
MAX_ROWS = 5000  # rows that a page may set; a page is made in memory
STATEMENT_TIMEOUT_S = 5.0  # seconds that a statement may take, if the page does not set a time
MIN_SECONDS, MAX_SECONDS = 0.01, 3600  # the least and the most seconds that a page may set
MAX_STATEMENTS = 50  # statements of one page
MAX_ERROR_CHARS = 1000  # of a PageError's text
MAX_SORT_COLUMNS = 2000  # SQLite sorts by no more; each request reads them all
MAX_COMPARED_NAMES, MAX_COMPARED_CHARS = 200, 40  # names, and their characters, for "did you mean"
# A user writes these files, and a line may have a megabyte. None of these patterns may scan the rest of the text
# again and again: "(.*?)[ \t]*\Z" does so at each space, and a token without an end, such as "/*", at each
# beginning.
DECLARATION = re.compile(r"--[ \t]*([a-z]+)[ \t]*:(?!:)[ \t]*(.*)", re.DOTALL)
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
PARAMETER = re.compile(r"(\w+)(?:\s+(\w+))??(\s+required)?(?:\s*=\s*(.*))?")
SORT = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^\s",]+))(?:\s+(asc|desc))?\s*', re.IGNORECASE)
# `quoted`: text in which :name is not a parameter (strings, quoted names, comments, casts). Then parameters, and
# the semicolon
TOKENS = re.compile(
    r"""(?P<quoted> '(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*` | --[^\n]* | /\*.*?(?:\*/|\Z) | ::
              | \$(?P<tag>[A-Za-z_]\w*)?\$ .*? (?:\$(?(tag)(?P=tag))\$|\Z) )
      | (?<![\w:]):(?P<name>[A-Za-z_]\w*) | (?P<semicolon>;)""",
    re.VERBOSE | re.DOTALL,
)
IS_NULL = re.compile(r"\s+IS\s+(?:NOT\s+)?NULL\b", re.IGNORECASE)
# Names that a template or a URL already uses
RESERVED_NAMES = {
    "page", "sort", "post", "query", "results", "loop", "self", "super", "caller", "varargs", "kwargs", "range",
    "dict", "namespace", "cycler", "joiner", "true", "false", "none", *keyword.kwlist,
}  # fmt: skip
PAGE_DECLARATIONS = ("database", "title", "parameter", "query", "post")
QUERY_DECLARATIONS = ("rows", "sort", "time", "if", "empty")
POST_DECLARATIONS = ("redirect", "time")


class PageError(Exception):
    """A page that cannot be used. The text is one line. line: in the file, from 1; 0: unknown."""

    def __init__(self, line: int, text: str) -> None:
        """text: cut after MAX_ERROR_CHARS, since a word of the page, such as an unknown type, may be very long."""
        super().__init__(text[:MAX_ERROR_CHARS])
        self.line = line


@dataclass
class Statement:
    """One statement. parameters: the names it uses. line: where its SQL begins. time_limit_s: in seconds."""

    name: str
    line: int
    sql: str = ""
    parameters: tuple[str, ...] = ()
    time_limit_s: float = STATEMENT_TIMEOUT_S


@dataclass
class Query(Statement):
    """A statement that reads.

    rows_per_page: the rows that one page shows at most. sort: columns by which a visitor may sort, each with True
    for descending first. needed_parameter: run the query only if this parameter is given. empty_status: the status
    of the page if the query finds no row; 0: the usual page.
    """

    rows_per_page: int = DEFAULT_ROWS
    sort: tuple[tuple[str, bool], ...] = ()
    needed_parameter: str = ""
    empty_status: int = 0


@dataclass
class PostStatement(Statement):
    """A statement that writes, run by a form. redirect: where the visitor is sent afterwards, "" to the page."""

    redirect: str = ""


@dataclass
class Declarations:
    """The declarations of a file. template: None without one. offset: lines of the file before the template."""

    database: str = ""
    title: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)
    queries: dict[str, Query] = field(default_factory=dict)
    posts: dict[str, PostStatement] = field(default_factory=dict)
    template: str | None = None
    offset: int = 0


def parse(text: str) -> Declarations:
    """Return the declarations of a file, and its template. Raises PageError."""
    return DeclarationParser(text).read()


class DeclarationParser:
    """Reads a file line by line; `line` is the number of the current one."""

    def __init__(self, text: str) -> None:
        """text: of the file. A byte order mark is removed."""
        self.lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
        self.line = 0  # number of the current line, from 1
        self.declarations = Declarations()
        self.statement: Statement | None = None  # the statement whose SQL is being read
        self.sql: list[str] = []  # its lines so far
        self.has_sql = False  # one of these lines is not blank

    def read(self) -> Declarations:
        """Return the declarations. Raises PageError."""
        declarations = self.declarations
        for number, line in enumerate(self.lines, 1):
            self.line = number
            if line.rstrip() == "---":
                declarations.template = "\n".join(self.lines[number:])
                declarations.offset = number
                break
            if (match := DECLARATION.match(line)) is not None:
                self.declare(match[1], match[2].rstrip(" \t"))
                self.sql.append("")  # keeps the line numbers of the statement
            else:
                self.add_sql_line(line)
        self.end_statement()
        if not declarations.queries and not declarations.posts and declarations.template is None:
            raise PageError(
                1, "the page declares nothing: it needs `-- query: NAME`, or a line --- before its HTML"
            )
        return declarations

    def add_sql_line(self, line: str) -> None:
        """Add a line of SQL. Raises PageError if no statement has begun."""
        if self.statement is not None:
            self.sql.append(line)
            self.has_sql = self.has_sql or line.strip() != ""
        elif line.strip() and not line.lstrip().startswith("--"):
            hint = "; HTML stands below a line ---" if line.lstrip().startswith(("<", "{")) else ""
            raise PageError(self.line, f"SQL needs a name: write `-- query: NAME` above it{hint}")

    def declare(self, word: str, rest: str) -> None:
        """Handle a declaration `-- word: rest`: call the method declare_WORD(), query_WORD() or post_WORD().

        Raises PageError.
        """
        if word in PAGE_DECLARATIONS:
            getattr(self, f"declare_{word}")(rest)
            return
        statement = self.statement
        all_words: Sequence[str] = (*PAGE_DECLARATIONS, *QUERY_DECLARATIONS, *POST_DECLARATIONS)
        if word not in all_words:
            near = get_close_matches(word, all_words, 1)
            hint = f", did you mean {near[0]}?" if near else f": use {', '.join(dict.fromkeys(all_words))}"
            raise PageError(self.line, f"unknown declaration {word!r}{hint}")
        # Declarations of a statement stand above its SQL
        if isinstance(statement, Query) and word in QUERY_DECLARATIONS and not self.has_sql:
            getattr(self, f"query_{word}")(statement, rest)
        elif isinstance(statement, PostStatement) and word in POST_DECLARATIONS and not self.has_sql:
            getattr(self, f"post_{word}")(statement, rest)
        else:
            owner = "query" if word in QUERY_DECLARATIONS else "post"
            raise PageError(self.line, f"{word} stands between `-- {owner}: NAME` and its SQL")

    # Declarations of the page

    def declare_database(self, rest: str) -> None:
        """Set the database of the page: `-- database: NAME`. Raises PageError."""
        if not rest or any(letter.isspace() for letter in rest) or self.declarations.database:
            raise PageError(self.line, "database needs one name, once")
        self.declarations.database = rest

    def declare_title(self, rest: str) -> None:
        """Set the title of the page: `-- title: TEXT`."""
        self.declarations.title = rest

    def declare_parameter(self, rest: str) -> None:
        """Add the parameter of `-- parameter: NAME TYPE = DEFAULT`. rest: the text after the colon."""
        match = PARAMETER.fullmatch(rest)
        if match is None:
            raise PageError(self.line, "a parameter is written: NAME TYPE = DEFAULT, or NAME TYPE required")
        name, kind, required, default = match.groups()
        if kind == "required" and not required:  # NAME required, without a type
            kind, required = None, "required"
        self.check_name(name)
        kind = kind or "text"
        if kind not in TYPES:
            raise PageError(self.line, f"unknown type {kind!r}: use {', '.join(TYPES)}")
        value = None
        if default is not None:
            try:
                value = parse_default(kind, default)
            except BadValue as bad:
                raise PageError(self.line, f"the default of {name} {bad}") from None
        self.declarations.parameters[name] = Parameter(name, kind, value, required=required is not None)

    def declare_query(self, rest: str) -> None:
        """Begin a query: `-- query: NAME`. Its SQL follows. Raises PageError."""
        self.begin_statement(Query(self.new_statement_name(rest), self.line))

    def declare_post(self, rest: str) -> None:
        """Begin a statement that a form runs: `-- post: NAME`. Its SQL follows. Raises PageError."""
        self.begin_statement(PostStatement(self.new_statement_name(rest), self.line))

    # Declarations of a statement

    def query_rows(self, query: Query, rest: str) -> None:
        """Set the number of rows of a page: `-- rows: 20`. Raises PageError."""
        # len(): MAX_ROWS is shorter, and int() refuses thousands of digits
        if not rest.isdecimal() or len(rest) > 9 or not 1 <= int(rest) <= MAX_ROWS:
            raise PageError(self.line, f"rows is a number from 1 to {MAX_ROWS}")
        query.rows_per_page = int(rest)

    def query_sort(self, query: Query, rest: str) -> None:
        """Set the columns by which a visitor may sort: `-- sort: title, year desc`. Raises PageError."""
        query.sort = tuple(islice(self.sort_columns(rest), MAX_SORT_COLUMNS + 1))
        if len(query.sort) > MAX_SORT_COLUMNS:
            raise PageError(self.line, f"sort has more than {MAX_SORT_COLUMNS} columns")

    def sort_columns(self, rest: str) -> Iterator[tuple[str, bool]]:
        """Yield the columns of a list: name, descending. Raises PageError."""
        position = 0
        while match := SORT.match(rest, position):
            quoted_name, name, direction = match.groups()
            yield quoted_name.replace('""', '"') if quoted_name else name, (direction or "").lower() == "desc"
            position = match.end()
            if position == len(rest):
                return
            if rest[position] != ",":
                break
            position += 1
        raise PageError(self.line, "sort is a list of columns: title, year desc")

    def query_time(self, query: Statement, rest: str) -> None:
        """Set the time limit of a statement: `-- time: 10`, in seconds. Raises PageError."""
        try:
            query.time_limit_s = float(rest.removesuffix("s"))
        except ValueError:
            query.time_limit_s = 0  # refused below
        if not MIN_SECONDS <= query.time_limit_s <= MAX_SECONDS:
            raise PageError(self.line, f"time is a number of seconds, from {MIN_SECONDS:g} to {MAX_SECONDS}")

    post_time = query_time

    def query_if(self, query: Query, rest: str) -> None:
        """Run the query only if a parameter is given: `-- if: NAME`. A later check finds unknown names."""
        query.needed_parameter = rest

    def query_empty(self, query: Query, rest: str) -> None:
        """Answer 404 if the query finds no row: `-- empty: 404`. Raises PageError."""
        if rest != "404":
            raise PageError(self.line, "empty can only be 404: no such page if the query finds no row")
        query.empty_status = 404

    def post_redirect(self, post: PostStatement, rest: str) -> None:
        """Set the page to which the client goes afterwards: `-- redirect: PATH`. Raises PageError."""
        if rest.startswith(("//", "/\\", "\\")) or re.match(r"[^/?#]*[:{]", rest):
            raise PageError(self.line, "redirect leads to a page of this site: list.sql.html?id={id}")
        post.redirect = quote(rest, safe="/?#[]@!$&'()*+,;=%{}")

    # Statements

    def new_statement_name(self, name: str) -> str:
        """End the previous statement, and check the name of the next. Raises PageError."""
        self.end_statement()
        self.check_name(name)
        if len(self.declarations.queries) + len(self.declarations.posts) >= MAX_STATEMENTS:
            raise PageError(self.line, f"more than {MAX_STATEMENTS} statements")
        return name

    def check_name(self, name: str) -> None:
        """Raise PageError for a name that is taken, or malformed."""
        if NAME.fullmatch(name) is None:
            raise PageError(
                self.line, f"{name[:40]!r} is not a name: use letters, digits and _, a letter first"
            )
        declarations = self.declarations
        if name in RESERVED_NAMES:
            raise PageError(self.line, f"the name {name} has a meaning in pages: take another")
        if name in declarations.parameters or name in declarations.queries or name in declarations.posts:
            raise PageError(self.line, f"the name {name} is declared twice")

    def begin_statement(self, statement: Query | PostStatement) -> None:
        """Add a statement to the declarations; the lines that follow are its SQL."""
        self.statement = statement
        self.sql, self.has_sql = [], False
        if isinstance(statement, Query):
            self.declarations.queries[statement.name] = statement
        else:
            self.declarations.posts[statement.name] = statement

    def end_statement(self) -> None:
        """Check the statement that ends here, if there is one, and give it its SQL and its parameters.

        Raises PageError.
        """
        statement, self.statement = self.statement, None
        if statement is None:
            return
        line_of_name = statement.line
        blank = next((number for number, line in enumerate(self.sql) if line.strip()), len(self.sql))
        statement.line += blank
        statement.sql, names = self.checked_sql("\n".join(self.sql[blank:]).rstrip(), statement.line)
        if not statement.sql:
            raise PageError(line_of_name, f"{statement.name} has no SQL")
        needed_parameter = statement.needed_parameter if isinstance(statement, Query) else ""
        used_names = [needed_parameter, *names] if needed_parameter else names
        parameters = self.declarations.parameters
        if undeclared := next((name for name in used_names if name not in parameters), ""):
            same = [name for name in parameters if name.lower() == undeclared.lower()]
            near = same or near_names(undeclared, parameters)
            hint = f", did you mean :{near[0]}?" if near else f": write `-- parameter: {undeclared}` above"
            raise PageError(
                statement.line, f"{statement.name} uses :{undeclared}, which is not declared{hint}"
            )
        statement.parameters = tuple(dict.fromkeys(names))
        # PostgreSQL must know the type of each parameter, and `:name IS NULL` does not show it
        statement.sql = with_typed_null_tests(statement.sql, self.declarations.parameters)

    def checked_sql(self, sql: str, line: int) -> tuple[str, list[str]]:
        """Return a statement without its last semicolon, and the names of its parameters. Raises PageError.

        The statement is "" if `sql` has only comments. Only comments may follow the semicolon. line: of the file,
        where `sql` begins.
        """
        names = []
        end: int | None = None  # the position of the semicolon
        has_sql = False  # True once there is more than comments and a semicolon
        # The end of the last token. SQL that is no token stands between two tokens
        position = 0
        for match in TOKENS.finditer(sql):  # strings, quoted names, comments; parameters; semicolons
            has_sql_before = sql[position : match.start()].strip() != ""
            is_comment = (match["quoted"] or "").startswith(("--", "/*"))
            if end is not None and (has_sql_before or not is_comment):
                line_of_token = line + sql.count("\n", 0, match.start())
                raise PageError(line_of_token, "only one statement stands below each name")
            has_sql = has_sql or has_sql_before or not (is_comment or match["semicolon"])
            if match["name"]:
                names.append(match["name"])
            if match["semicolon"]:
                end = match.start()
            position = match.end()
        rest = sql[position:].strip()
        if end is not None and rest:
            line_of_rest = line + sql.count("\n", 0, sql.rindex(rest))
            raise PageError(line_of_rest, "only one statement stands below each name")
        return (sql[:end] if has_sql or rest else ""), names


def near_names(name: str, names: Iterable[str]) -> list[str]:
    """Return the most similar of the names, if one is similar.

    The time of a comparison grows with the square of the length, so long names and many names are not compared.
    """
    compared = [each for each in names if len(each) <= MAX_COMPARED_CHARS][:MAX_COMPARED_NAMES]
    return get_close_matches(name, compared, 1) if len(name) <= MAX_COMPARED_CHARS else []


def with_typed_null_tests(sql: str, parameters: Mapping[str, Parameter]) -> str:
    """Add a type to each :name in `:name IS NULL`. The meaning stays the same.

    PostgreSQL must know the type of every parameter, and this test does not show it.
    """

    def with_type(match: re.Match[str]) -> str:
        """Return a token as it is, or, before IS NULL, the parameter with its type."""
        if not match["name"] or IS_NULL.match(sql, match.end()) is None:
            return match[0]
        return f"CAST({match[0]} AS {TYPES[parameters[match['name']].kind].sql})"

    return TOKENS.sub(with_type, sql)


def with_nulls(sql: str, kinds: Mapping[str, str]) -> str:
    """Replace each :name in kinds by a NULL of the type that kinds gives: PostgreSQL needs the type."""

    def null_or_token(match: re.Match[str]) -> str:
        """Return a NULL for a parameter in `kinds`; any other token as it is."""
        kind = kinds.get(match["name"] or "")
        return match[0] if kind is None else f"CAST(NULL AS {TYPES[kind].sql})"

    return TOKENS.sub(null_or_token, sql)


def parse_default(kind: str, text: str) -> Value:
    """Return the value of a default: 'text' in quotes as in SQL, a number, or null. Raises BadValue.

    kind: of the parameter, a key of TYPES.
    """
    text = text.strip()
    if text.lower() == "null":
        return None
    is_quoted = len(text) >= 2 and text[0] == text[-1] == "'"
    if kind in ("text", "date") and not is_quoted:
        raise BadValue("is written in quotes: 'abc'")
    return TYPES[kind].read(text[1:-1].replace("''", "'") if is_quoted else text)
