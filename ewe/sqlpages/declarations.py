"""The declarations at the top of a page from SQL: which database, which parameters, which statements.

A page is SQL above a line `---`, and HTML below it. In the SQL part, comments of one form are declarations:

    -- database: library
    -- parameter: q text = ''
    -- query: books
    -- rows: 20
    -- sort: title, year desc
    SELECT title, author, year FROM books WHERE title LIKE '%' || :q || '%'
    ---
    <h1>Books</h1> {{ books.table() }}

A line `-- word: ...` always is a declaration, so a misspelled word is an error and no comment. Other comments stay
in their statement. Everything is checked when the file is read: a page that uses a parameter without declaring it
never runs.

Why SQL and not TOML or tags: the author of such a page knows SQL, and can try its statements in sqlite3 or psql as
they are.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from urllib.parse import quote

from ewe.database.protocol import Value
from ewe.sqlpages.values import TYPES, BadValue, Parameter

ROWS = 100  # of a query on one page, if the page does not say
MAX_ROWS = 5000  # a page is made in memory
SECONDS = 5.0  # that a statement may take, if the page does not say
MAX_STATEMENTS = 50
# A user writes these files, and a line may have a megabyte. None of these patterns may look at a rest of the text
# again and again: "(.*?)[ \t]*\Z" does at each space, and what is never closed, such as "/*", at each beginning.
DECLARATION = re.compile(r"--[ \t]*([a-z]+)[ \t]*:(?!:)[ \t]*(.*)", re.DOTALL)
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
PARAMETER = re.compile(r"(\w+)(?:\s+(\w+))??(\s+required)?(?:\s*=\s*(.*))?")
SORT = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^\s",]+))(?:\s+(asc|desc))?\s*', re.IGNORECASE)
# Where :name is no parameter: in strings, quoted names, comments, casts
TOKENS = re.compile(
    r"""(?P<kept> '(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*` | --[^\n]* | /\*.*?(?:\*/|\Z) | ::
              | \$(?P<tag>[A-Za-z_]\w*)?\$ .*? (?:\$(?(tag)(?P=tag))\$|\Z) )
      | (?<![\w:]):(?P<name>[A-Za-z_]\w*) | (?P<semicolon>;)""",
    re.VERBOSE | re.DOTALL,
)
IS_NULL = re.compile(r"\s+IS\s+(?:NOT\s+)?NULL\b", re.IGNORECASE)
# Names that a template or a URL already uses
TAKEN = {
    "page", "sort", "post", "query", "results", "loop", "self", "super", "caller", "varargs", "kwargs", "range",
    "dict", "namespace", "cycler", "joiner", "true", "false", "none", *keyword.kwlist,
}  # fmt: skip
OF_PAGE = ("database", "title", "parameter", "query", "post")
OF_QUERY = ("rows", "sort", "time", "if", "empty")
OF_POST = ("redirect", "time")


class PageError(Exception):
    """A page that cannot be used. The text is one line. line: in the file, from 1; 0: unknown."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


@dataclass
class Statement:
    """One statement. parameters: the names it uses. line: where its SQL begins. seconds: that it may take."""

    name: str
    line: int
    sql: str = ""
    parameters: tuple[str, ...] = ()
    seconds: float = SECONDS


@dataclass
class Query(Statement):
    """A statement that reads.

    rows: of one page. sort: columns by which a visitor may sort, each with True for descending first. needs: it is
    run only if this parameter is given. empty: the status of the page if there is no row; 0: of no consequence.
    """

    rows: int = ROWS
    sort: tuple[tuple[str, bool], ...] = ()
    needs: str = ""
    empty: int = 0


@dataclass
class Post(Statement):
    """A statement that writes, run by a form. redirect: where the visitor is sent after it, "" to the page."""

    redirect: str = ""


@dataclass
class Declarations:
    """What a file declares. template: None if it declares only. offset: lines of the file before the template."""

    database: str = ""
    title: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)
    queries: dict[str, Query] = field(default_factory=dict)
    posts: dict[str, Post] = field(default_factory=dict)
    template: str | None = None
    offset: int = 0


def parse(text: str) -> Declarations:
    """Return what a file declares, and its template. Raises PageError."""
    return Reader(text).read()


class Reader:
    """Reads a file line by line; `line` is the number of the current one."""

    def __init__(self, text: str) -> None:
        self.lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
        self.line = 0
        self.found = Declarations()
        self.statement: Statement | None = None
        self.sql: list[str] = []

    def read(self) -> Declarations:
        """Return the declarations. Raises PageError."""
        for number, line in enumerate(self.lines, 1):
            self.line = number
            if line.rstrip() == "---":
                self.found.template = "\n".join(self.lines[number:])
                self.found.offset = number
                break
            if (match := DECLARATION.match(line)) is not None:
                self.declare(match[1], match[2].rstrip(" \t"))
                self.sql.append("")  # so that the lines of a statement keep their numbers
            else:
                self.take(line)
        self.end_statement()
        if not self.found.queries and not self.found.posts and self.found.template is None:
            raise PageError(
                1, "the page declares nothing: it needs `-- query: NAME`, or a line --- before its HTML"
            )
        return self.found

    def take(self, line: str) -> None:
        """Take a line of SQL. Raises PageError if no statement has begun."""
        if self.statement is not None:
            self.sql.append(line)
        elif line.strip() and not line.lstrip().startswith("--"):
            hint = "; HTML stands below a line ---" if line.lstrip().startswith(("<", "{")) else ""
            raise PageError(self.line, f"SQL needs a name: write `-- query: NAME` above it{hint}")

    def declare(self, word: str, rest: str) -> None:
        """Take a declaration. Raises PageError."""
        if word in OF_PAGE:
            getattr(self, f"of_{word}")(rest)
            return
        statement = self.statement
        known: Sequence[str] = (*OF_PAGE, *OF_QUERY, *OF_POST)
        if word not in known:
            near = get_close_matches(word, known, 1)
            hint = f", did you mean {near[0]}?" if near else f": {', '.join(dict.fromkeys(known))}"
            raise PageError(self.line, f"no declaration {word!r}{hint}")
        if isinstance(statement, Query) and word in OF_QUERY and "".join(self.sql).strip() == "":
            getattr(self, f"query_{word}")(statement, rest)
        elif isinstance(statement, Post) and word in OF_POST and "".join(self.sql).strip() == "":
            getattr(self, f"post_{word}")(statement, rest)
        else:
            owner = "query" if word in OF_QUERY else "post"
            raise PageError(self.line, f"{word} stands between `-- {owner}: NAME` and its SQL")

    # Declarations of the page

    def of_database(self, rest: str) -> None:
        if not rest or any(letter.isspace() for letter in rest) or self.found.database:
            raise PageError(self.line, "database needs one name, once")
        self.found.database = rest

    def of_title(self, rest: str) -> None:
        self.found.title = rest

    def of_parameter(self, rest: str) -> None:
        match = PARAMETER.fullmatch(rest)
        if match is None:
            raise PageError(self.line, "a parameter is written: NAME TYPE = DEFAULT, or NAME TYPE required")
        name, kind, required, default = match.groups()
        if kind == "required" and not required:
            kind, required = None, "required"
        self.check_name(name)
        kind = kind or "text"
        if kind not in TYPES:
            raise PageError(self.line, f"no type {kind!r}: {', '.join(TYPES)}")
        value = None
        if default is not None:
            try:
                value = literal(kind, default)
            except BadValue as bad:
                raise PageError(self.line, f"the default of {name} {bad}") from None
        self.found.parameters[name] = Parameter(name, kind, value, required is not None)

    def of_query(self, rest: str) -> None:
        self.begin(Query(self.named(rest), self.line))

    def of_post(self, rest: str) -> None:
        self.begin(Post(self.named(rest), self.line))

    # Declarations of a statement

    def query_rows(self, query: Query, rest: str) -> None:
        if not rest.isdecimal() or not 1 <= int(rest[:9]) <= MAX_ROWS:
            raise PageError(self.line, f"rows is a number from 1 to {MAX_ROWS}")
        query.rows = int(rest)

    def query_sort(self, query: Query, rest: str) -> None:
        query.sort = tuple(self.columns(rest))

    def columns(self, rest: str) -> Iterator[tuple[str, bool]]:
        """Yield the columns of a list: name, descending. Raises PageError."""
        at = 0
        while match := SORT.match(rest, at):
            yield match[1].replace('""', '"') if match[1] else match[2], (match[3] or "").lower() == "desc"
            at = match.end()
            if at == len(rest):
                return
            if rest[at] != ",":
                break
            at += 1
        raise PageError(self.line, "sort is a list of columns: title, year desc")

    def query_time(self, query: Statement, rest: str) -> None:
        try:
            query.seconds = float(rest.removesuffix("s"))
        except ValueError:
            query.seconds = 0
        if not 0.01 <= query.seconds <= 3600:
            raise PageError(self.line, "time is a number of seconds, at least 0.01")

    post_time = query_time

    def query_if(self, query: Query, rest: str) -> None:
        query.needs = rest

    def query_empty(self, query: Query, rest: str) -> None:
        if rest != "404":
            raise PageError(self.line, "empty can only be 404: no such page if the query finds no row")
        query.empty = 404

    def post_redirect(self, post: Post, rest: str) -> None:
        if rest.startswith(("//", "/\\", "\\")) or re.match(r"[^/?#]*[:{]", rest):
            raise PageError(self.line, "redirect leads to a page of this site: list.sql.html?id={id}")
        post.redirect = quote(rest, safe="/?#[]@!$&'()*+,;=%{}")

    # Statements

    def named(self, name: str) -> str:
        """End the statement before, and check the name of the next. Raises PageError."""
        self.end_statement()
        self.check_name(name)
        if len(self.found.queries) + len(self.found.posts) >= MAX_STATEMENTS:
            raise PageError(self.line, f"more than {MAX_STATEMENTS} statements")
        return name

    def check_name(self, name: str) -> None:
        """Raise PageError for a name that is taken, or is none."""
        if NAME.fullmatch(name) is None:
            raise PageError(self.line, f"{name[:40]!r} is no name: letters, digits and _, the first a letter")
        found = self.found
        if name in TAKEN:
            raise PageError(self.line, f"the name {name} has a meaning in pages: take another")
        if name in found.parameters or name in found.queries or name in found.posts:
            raise PageError(self.line, f"the name {name} is declared twice")

    def begin(self, statement: Query | Post) -> None:
        """Begin a statement."""
        self.statement = statement
        self.sql = []
        if isinstance(statement, Query):
            self.found.queries[statement.name] = statement
        else:
            self.found.posts[statement.name] = statement

    def end_statement(self) -> None:
        """Check the statement that ends here. Raises PageError."""
        statement, self.statement = self.statement, None
        if statement is None:
            return
        lines, begins = list(self.sql), statement.line
        while lines and not lines[0].strip():
            del lines[0]
            statement.line += 1
        statement.sql, names = self.checked("\n".join(lines).rstrip(), statement.line)
        if not statement.sql:
            raise PageError(begins, f"{statement.name} has no SQL")
        unknown = [name for name in names if name not in self.found.parameters]
        needs = statement.needs if isinstance(statement, Query) else ""
        if needs and needs not in self.found.parameters:
            unknown.insert(0, needs)
        if unknown:
            same = [name for name in self.found.parameters if name.lower() == unknown[0].lower()]
            near = same or get_close_matches(unknown[0], self.found.parameters, 1)
            hint = f", did you mean :{near[0]}?" if near else f": write `-- parameter: {unknown[0]}` above"
            raise PageError(
                statement.line, f"{statement.name} uses :{unknown[0]}, which is not declared{hint}"
            )
        statement.parameters = tuple(dict.fromkeys(names))
        statement.sql = with_typed_tests(statement.sql, self.found.parameters)

    def checked(self, sql: str, line: int) -> tuple[str, list[str]]:
        """Return a statement without its last semicolon, and the parameters in it. Raises PageError."""
        names = []
        end: int | None = None
        code = False
        at = 0
        for match in TOKENS.finditer(sql):
            between = sql[at : match.start()].strip() != ""
            comment = (match["kept"] or "").startswith(("--", "/*"))
            if end is not None and (between or not comment):
                where = line + sql.count("\n", 0, match.start())
                raise PageError(where, "only one statement stands below each name")
            code = code or between or not (comment or match["semicolon"])
            if match["name"]:
                names.append(match["name"])
            if match["semicolon"]:
                end = match.start()
            at = match.end()
        rest = sql[at:].strip()
        if end is not None and rest:
            where = line + sql.count("\n", 0, sql.rindex(rest))
            raise PageError(where, "only one statement stands below each name")
        return (sql[:end] if code or rest else ""), names


def with_typed_tests(sql: str, parameters: Mapping[str, Parameter]) -> str:
    """Return a statement with a type for each :name in `:name IS NULL`, which means the same with it.

    PostgreSQL must know the type of every parameter, and this test does not tell it.
    """

    def typed(match: re.Match[str]) -> str:
        if not match["name"] or IS_NULL.match(sql, match.end()) is None:
            return match[0]
        return f"CAST({match[0]} AS {TYPES[parameters[match['name']].kind].sql})"

    return TOKENS.sub(typed, sql)


def with_nulls(sql: str, kinds: Mapping[str, str]) -> str:
    """Return a statement with a NULL in place of each :name in kinds, which gives its type: for PostgreSQL, too."""

    def null(match: re.Match[str]) -> str:
        kind = kinds.get(match["name"] or "")
        return match[0] if kind is None else f"CAST(NULL AS {TYPES[kind].sql})"

    return TOKENS.sub(null, sql)


def literal(kind: str, text: str) -> Value:
    """Return a default: 'text' in quotes as in SQL, a number, or null. Raises BadValue."""
    text = text.strip()
    if text.lower() == "null":
        return None
    quoted = len(text) >= 2 and text[0] == text[-1] == "'"
    if kind in ("text", "date") and not quoted:
        raise BadValue("is written in quotes: 'abc'")
    return TYPES[kind].read(text[1:-1].replace("''", "'") if quoted else text)
