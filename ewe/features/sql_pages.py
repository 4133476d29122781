"""Pages from SQL: books.sql.html in the document root becomes a page, books.sql.csv and books.sql.json its data.

    GET  /books.sql.html?q=sea ─▶ the compiled file ─▶ its queries, one after the other ─▶ its template ─▶ page
    GET  /books.sql.csv?q=sea  ─▶ its first query ─▶ all rows, as the daemon sends them
    POST /books.sql.html       ─▶ one statement that writes ─▶ 303 to the page

The same page also answers for /books, and index.sql.html for its directory, if no file has that name.

**Checks.** Static opens the file, so it cannot be outside the document root or have a hidden name. Values of a
visitor are bound as parameters (ewe.sqlpages.values). A query runs as a subquery, which can only read
(ewe.sqlpages.results). A POST needs a page that declares it, a database that may be written, and a form of the same
site (ewe.gateway.own_forms). The file itself is never sent: ewe.gateway.protected_sources refuses it, even if there
are no databases.

**Users.** ewe connects to the daemon with its own account, so the daemon cannot distinguish the pages of two users.
A page of ~alice may therefore use only a database whose name contains hers: `~alice`, or `~alice:shop`.

**Errors.** A visitor gets a page with the right status. The database's message goes to the error log, with the file
and the line. The page shows it only with `development`.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote

from ewe import logger
from ewe.bounded import SETTLED_S, BoundedDict, TimedCache
from ewe.database.protocol import ClientRequest, DatabaseError, Value
from ewe.features.base import Mount
from ewe.features.declaration import Feature
from ewe.features.static import FILE_CHECK_S, Static, file_version, hidden
from ewe.gateway.connections import RETRY
from ewe.gateway.own_forms import cross_site, form_body
from ewe.http.conditional import status_by_conditions
from ewe.http.error_pages import error_page, html_escape, link_page
from ewe.http.messages import METHODS, Request, Response
from ewe.http.status import HTTPError
from ewe.http.target import percent_encode
from ewe.sqlpages.declarations import (
    Declarations,
    PageError,
    PostStatement,
    Query,
    Statement,
    parse,
    with_nulls,
)
from ewe.sqlpages.values import BadValue, fields_of, values_to_bind

try:
    from ewe.sqlpages.results import Choice, Page, QueryResult, fill_placeholders, select_statement
    from ewe.sqlpages.templates import STYLE, Environment, PageTemplate

    MISSING = ""  # the cause of a 500 for each page; "": all libraries are installed
except ImportError as missing:
    MISSING = f"pages from SQL need {missing.name}: pip install 'ewe-server[pages]'"

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ewe.config.settings import Config
    from ewe.features.base import Explanation
    from ewe.features.databases.asking import Databases, ResultTable
    from ewe.features.plan import Plan
    from ewe.streams.base import Stream

T = TypeVar("T")

SUFFIX = ".sql.html"
EXPORTS = {".sql.csv": "CSV", ".sql.json": "JSON"}
TYPES = {"CSV": "text/csv; charset=utf-8; header=present", "JSON": "application/json"}
INDEX = "index" + SUFFIX
MAX_PAGE_BYTES = 1 << 20  # of a page's file
MAX_FORM_BYTES = 256 * 1024  # of a form
POST_ROWS = 1000  # rows that a statement which writes may return
MAX_PAGES = 200  # compiled pages in memory
# Bytes of the files of all these pages but the newest. Declarations may take 50 times as much memory.
MAX_COMPILED_BYTES = 4 << 20
MAX_ENVIRONMENTS = 20  # directories of pages
MAX_PATHS = 1000  # cached results of SQLPages.find()
PAGE_CACHE_S = 1.0  # seconds that a cached result of SQLPages.find() is valid
FIELDS = (
    ("Cache-Control", "no-cache"),
    ("X-Content-Type-Options", "nosniff"),
)
# frame-ancestors: a page of another site must not show this page in a frame, where it could lead the visitor to
# click in a form without knowing it (clickjacking)
HTML = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Security-Policy", "frame-ancestors 'self'"),
)


class PageFile(NamedTuple):
    """The file that answers for a path. export: "CSV" or "JSON" for the page's data, "" for the page itself."""

    path: str
    export: str = ""


class CompiledPage:
    """The contents of a page's file: its declarations, or its error. The template is compiled at its first use.

    size: of the file, in bytes.
    """

    __slots__ = ("checked_at", "declarations", "error", "file_version", "size", "template")

    def __init__(self, file_status: os.stat_result, text: str) -> None:
        """file_status, text: of the file. A fault in the declarations is kept in `error`."""
        self.file_version = file_version(file_status)
        self.size = file_status.st_size
        self.checked_at = time.monotonic()  # when the file was last compared with `file_version`
        self.template: PageTemplate | None = None
        self.error: PageError | None = None
        self.declarations = Declarations()
        try:
            self.declarations = parse(text)
        except PageError as error:
            self.error = error


class SQLPages:
    """The pages from SQL below one document root."""

    def __init__(self, config: Config, databases: Databases, static: Static, owner: str = "") -> None:
        """static: opens the files. owner: the user to whom the document root belongs; "" for the site."""
        self.databases = databases
        self.static = static
        self.owner = owner
        self.development = config.development
        self.known_paths: TimedCache[str, PageFile | None] = TimedCache(MAX_PATHS, PAGE_CACHE_S)
        self.compiled_pages: BoundedDict[str, CompiledPage] = BoundedDict(MAX_PAGES)
        self.environments: BoundedDict[str, Environment] = BoundedDict(MAX_ENVIRONMENTS)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the response of the page at the path; None if there is none. Raises HTTPError."""
        found = self.find(request.path)
        if found is None:
            return None
        if MISSING:
            return self.failure(500, MISSING)
        compiled = self.fresh_page(found.path)
        if compiled is None:
            compiled = await self.call(io, self.compiled_page, found.path)
        try:
            if compiled.error is not None:
                raise compiled.error
            return await self.answer(PageRequest(self, request, io, found.path, compiled), found.export)
        except PageError as error:
            line = f", line {error.line}" if error.line else ""
            return self.failure(500, f"{self.static.name(found.path)}{line}: {error}")
        except BadValue as bad:
            return error_page(400, str(bad), text=f"{bad}. Please go back and correct it.")

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the line about the page that answers. Raises HTTPError(403, 404)."""
        found = self.find(request.path)
        if found is not None:
            yield f"  answer    the page from SQL of {self.static.name(found.path)}   (database)"
        return found is not None

    async def answer(self, page_request: PageRequest, export: str) -> Response:
        """Return a page or its data (export: see PageFile). Raises PageError, BadValue, HTTPError."""
        method = page_request.request.method
        posts = not export and page_request.declarations.posts
        allow = ("Allow", "GET, HEAD, POST, OPTIONS" if posts else "GET, HEAD, OPTIONS")
        if method in ("GET", "HEAD"):
            return await (page_request.export(export) if export else page_request.page())
        if method == "POST" and posts:
            return await page_request.post()
        if method == "OPTIONS":
            return Response(204, (allow,))
        if method not in METHODS:
            raise HTTPError(501, f"method {method!r} to a page from SQL")
        raise HTTPError(405, f"{method} to a page from SQL that declares no `-- post:`", (allow,))

    async def call(self, io: Stream, function: Callable[..., T], *arguments: Any) -> T:
        """Return function(*arguments). The function reads a page, or compiles or renders a template.

        A user's declarations may take a second to read, and a user's template RENDER_TIMEOUT_S for each request.
        Beside an event loop, an executor thread therefore makes the call. The site's own pages are trusted.
        """
        return await io.call(function, *arguments) if self.owner else function(*arguments)

    def failure(self, status: int, cause: str) -> Response:
        """Return the page of an error. With `development`, it shows the cause."""
        fields = RETRY if status == 503 else ()
        return error_page(status, cause, fields, text=cause if self.development else "")

    # Path to file

    def find(self, path: str) -> PageFile | None:
        """Return the file that answers for a path; None if there is none. Raises HTTPError(403, 404)."""
        if ".sql." in path:  # the path names a page's file itself, as books.sql.html does
            # The result is not cached: a page that has just been written must not be sent as a file.
            return self.find_uncached(path)
        return self.known_paths.find(path, self.find_uncached)

    def find_uncached(self, path: str) -> PageFile | None:
        """Find the file on the disk; return as find(). Raises HTTPError(403, 404)."""
        if path.endswith(SUFFIX):
            return PageFile(path) if self.is_page(path) else None
        for suffix, kind in EXPORTS.items():
            if path.endswith(suffix):
                file = path.removesuffix(suffix) + SUFFIX
                return PageFile(file, kind) if self.is_page(file) else None
        # A path that is shorter than the mount's prefix names no file
        if hidden(path) or len(path) < self.static.prefix_length:
            return None
        if path.endswith("/"):
            file = path + INDEX
            return PageFile(file) if self.is_page(file) and not self.static.index_of(path) else None
        if "." in path.rpartition("/")[2] or os.path.lexists(self.static.name(path)):
            return None
        file = path + SUFFIX
        return PageFile(file) if self.is_page(file) else None

    def is_page(self, path: str) -> bool:
        """Return whether path is the file of a page, and not a part of other pages. Raises HTTPError(403, 404)."""
        return not path.rpartition("/")[2].startswith("_") and self.static.has(path)

    # File to page

    def fresh_page(self, path: str) -> CompiledPage | None:
        """Return the contents of the file at `path` if they are in memory, and at most FILE_CHECK_S old."""
        cached = self.compiled_pages.get(path)
        return cached if cached is not None and time.monotonic() - cached.checked_at < FILE_CHECK_S else None

    def compiled_page(self, path: str) -> CompiledPage:
        """Return the contents of the file at `path`. Read the file again if it has changed. Raises HTTPError."""
        text, file_status = self.read(path)
        cached = self.compiled_pages.get(path)
        if cached is not None and file_version(file_status) == cached.file_version:
            cached.checked_at = time.monotonic()
            return cached
        compiled = CompiledPage(file_status, text)
        # A second change within one tick of the file system's clock would leave the times as they are
        if time.time() - file_status.st_ctime > SETTLED_S:
            if sum(each.size for each in list(self.compiled_pages.values())) > MAX_COMPILED_BYTES:
                self.compiled_pages.clear()
            self.compiled_pages[path] = compiled
        return compiled

    def read(self, path: str) -> tuple[str, os.stat_result]:
        """Return the text of the file at a URL's path, and its os.stat_result. Raises HTTPError."""
        name = self.static.name(path)
        descriptor = None if hidden(path) else self.static.open(name, for_program=True)
        if descriptor is None:
            raise HTTPError(404, f"{name} does not exist any more")
        try:  # open(descriptor) would not close the descriptor of a directory
            file_status = os.fstat(descriptor)
            if not stat.S_ISREG(file_status.st_mode):
                raise HTTPError(404, f"{name} is not a regular file")
            if file_status.st_size > MAX_PAGE_BYTES:
                raise HTTPError(500, f"{name} is larger than {MAX_PAGE_BYTES} bytes")
            data = os.read(descriptor, MAX_PAGE_BYTES)
        finally:
            os.close(descriptor)
        try:
            return data.decode(), file_status
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise HTTPError(500, f"{name}, line {line}: the file is not UTF-8: save it as UTF-8") from None

    def template(self, compiled: CompiledPage, path: str) -> PageTemplate:
        """Return the template of a file, compiled at the first call. Raises PageError.

        path: of the file. The templates that it extends are below its directory. `offset` is the number of lines
        before the template, for the line numbers in messages.
        """
        if compiled.template is None:
            declarations = compiled.declarations
            compiled.template = PageTemplate(
                self.environment_of(path.rpartition("/")[0]), declarations.template, declarations.offset
            )
        return compiled.template

    def environment_of(self, directory: str) -> Environment:
        """Return the jinja2 environment that renders the pages of a directory.

        A page may extend only templates below its directory.
        """

        def load(name: str) -> tuple[str, Callable[[], bool]]:
            """Return the text of a file, and a test whether the file is unchanged. Raises FileNotFoundError."""
            path = f"{directory}/{name}"
            try:
                text, file_status = self.read(path)
            except HTTPError as error:
                raise FileNotFoundError(error.cause) from None
            version = file_version(file_status)
            return text, lambda: self.is_template_unchanged(path, version)

        environment = self.environments.get(directory)
        if environment is None:
            environment = self.environments[directory] = Environment(load)
        return environment

    def is_template_unchanged(self, path: str, version: tuple[int, ...]) -> bool:
        """Return whether a file that a page extends still has this file_version()."""
        try:
            return file_version(os.stat(self.static.name(path))) == version
        except OSError:
            return False

    # Page to database

    def database(self, declared: str) -> str:
        """Return the name of a page's database. declared: the name that the page's file declares, or "".

        Raises HTTPError(404) if the database belongs to another user; PageError, in line 1 of the page, if the
        declaration is missing or wrong.
        """
        # The setting `database`; empty if the daemon alone knows the names
        names = self.databases.names
        if self.owner:
            own = f"~{self.owner}"
            name = declared or own
            if (name != own and not name.startswith(own + ":")) or (names and name not in names):
                raise HTTPError(
                    404,
                    f"a page of {own} may use the databases {own} and {own}:NAME; {name!r} is not one of them",
                )
            return name
        if not declared:
            if len(names) == 1:
                return names[0]
            raise PageError(
                1,
                f"the page names no database: write `-- database: NAME`; there are: {', '.join(names) or 'any'}",
            )
        if names and declared not in names:
            raise PageError(1, f"no database {declared!r}; there are: {', '.join(names)} (database)")
        return declared


class PageRequest:
    """One request to a page."""

    def __init__(
        self, pages: SQLPages, request: Request, io: Stream, file: str, compiled: CompiledPage
    ) -> None:
        """file: the path of the page's file, in the form of a URL's path. Raises HTTPError, PageError, BadValue."""
        self.pages = pages
        self.request = request
        self.io = io
        self.file = file
        self.compiled = compiled
        self.declarations = compiled.declarations
        self.database = pages.database(self.declarations.database)
        self.url_fields = fields_of(request.query or "")

    async def page(self) -> Response:
        """Run the queries and fill the template. Raises PageError, BadValue, HTTPError."""
        declarations = self.declarations
        pages = self.pages
        template = await pages.call(self.io, pages.template, self.compiled, self.file)
        page = Page(declarations, self.request.path, self.url_fields, STYLE)
        values = self.values_of_page()
        results: dict[str, QueryResult] = {}
        for query in declarations.queries.values():
            # The parameters of the first query, such as `sort`, have no prefix in the URL.
            found = await self.result_of(query, page, values, prefix=f"{query.name}." if results else "")
            if isinstance(found, Response):
                return found
            results[query.name] = found
        defaults = {name: each.default for name, each in declarations.parameters.items()}
        variables = {**defaults, **values, **results, "page": page, "results": results}
        body = await pages.call(self.io, template.render, variables)
        data = body.encode("utf-8", "replace")
        await self.io.share(len(data))
        return with_tag(self.request, data)

    def values_of_page(self) -> dict[str, Value]:
        """Return the values of the parameters in the URL that the page uses. Raises BadValue."""
        declarations = self.declarations
        used = [name for query in declarations.queries.values() for name in query.parameters]
        # A template may use a parameter that no query uses.
        used += [name for name, text in self.url_fields.items() if text and name in declarations.parameters]
        return values_to_bind(used, declarations.parameters, self.url_fields)

    async def result_of(
        self, query: Query, page: Page, values: Mapping[str, Value], prefix: str
    ) -> QueryResult | Response:
        """Run a query, and return its result, or the error page to send in place of the page. Raises BadValue.

        values: of the page's parameters. prefix: begins the query's names in the URL ("loans.").
        """
        choice = Choice(query, prefix, self.url_fields)
        if not self.should_run(query, values):
            result = QueryResult(page, query, choice, prefix, [], [])
            result.asked = False
            return result
        try:
            table = await self.rows(query, select_statement(query, choice), values)
        except DatabaseError as error:
            return self.page_for_error(query, error)
        if query.empty_status and not table.rows:
            return error_page(
                query.empty_status, f"query {query.name} finds no row", text="There is no such page."
            )
        return QueryResult(page, query, choice, prefix, table.columns, table.rows)

    def should_run(self, query: Query, values: Mapping[str, Value]) -> bool:
        """Return whether a query runs: always, or only if the parameter of `-- if:` is given and not empty."""
        name = query.needed_parameter
        return not name or values.get(name, self.url_fields.get(name)) not in (None, "")

    async def rows(self, query: Query, sql: str, values: Mapping[str, Value]) -> ResultTable:
        """Return the columns and rows of a query. Raises DatabaseError.

        The rows are those of the page, and one more if there is a next page.
        """
        request = await self.daemon_request(
            query, sql, values, layout="ROWS", max_rows=query.rows_per_page + 1
        )
        return await self.pages.databases.rows(request, self.io)

    async def daemon_request(
        self, statement: Statement, sql: str, values: Mapping[str, Value], layout: str, max_rows: int | None
    ) -> ClientRequest:
        """Return the request to the daemon for a statement.

        layout: of the answer: "ROWS", "CSV" or "JSON". max_rows: None for no limit.
        """
        parameters = {name: values[name] for name in statement.parameters if values[name] is not None}
        if len(parameters) < len(statement.parameters):
            # PostgreSQL must know the type of each parameter: those without a value become a NULL with a type
            missing = [name for name in statement.parameters if name not in parameters]
            kinds = {name: self.declarations.parameters[name].kind for name in missing}
            sql = await self.pages.call(self.io, with_nulls, sql, kinds)
        return ClientRequest(
            self.database,
            sql,
            layout,
            parameters,
            os.getpid(),
            max_rows,
            statement.time_limit_s,
            read_only=isinstance(statement, Query),
        )

    def page_for_error(self, statement: Statement, error: DatabaseError) -> Response:
        """Return the page for an error of the database."""
        where = f"{self.pages.static.name(self.file)}, line {statement.line}"
        cause = f"{where}: {statement.name}: database {self.database}: {error.kind}: {error}"
        return self.pages.failure(error.status, cause)

    async def export(self, layout: str) -> Response:
        """Return a response with all rows of one query, sent as the daemon yields them. Raises BadValue, HTTPError.

        layout: "CSV" or "JSON". The parameter `query` names the query; without it, the first one is sent.
        """
        declarations = self.declarations
        first_name = next(iter(declarations.queries), "")
        name = self.url_fields.get("query", first_name)
        if name not in declarations.queries:
            raise HTTPError(404, f"{self.file} has no query {name[:40]!r}")
        query = declarations.queries[name]
        # Only the first query has `sort` without a prefix in the URL; others have `NAME.sort`, as on the page.
        prefix = "" if name == first_name else f"{name}."
        values = values_to_bind(query.parameters, declarations.parameters, self.url_fields)
        if not self.should_run(query, values):
            raise HTTPError(
                404, f"{self.file}: {name} is not run without the parameter {query.needed_parameter}"
            )
        sql = select_statement(query, Choice(query, prefix, self.url_fields), whole=True)
        # The daemon's own time limits apply, since a slow client may take long to read the rows.
        request = await self.daemon_request(query, sql, values, layout, max_rows=None)
        request = replace(request, time_limit=None)
        try:
            body = await self.pages.databases.ask(request, self.io)
        except DatabaseError as error:
            return self.page_for_error(query, error)
        fields = [("Content-Type", TYPES[layout]), *FIELDS]
        if layout == "CSV":
            file = self.file.rpartition("/")[2].removesuffix(SUFFIX) + ".csv"
            # RFC 8187 section 3.2.1 allows fewer characters than a path
            encoded = quote(file, safe="", errors="surrogateescape")
            fields.append(("Content-Disposition", f"attachment; filename*=UTF-8''{encoded}"))
        return Response(200, fields, body)

    async def post(self) -> Response:
        """Run the statement that a form asks for, and redirect the visitor. Raises BadValue, HTTPError."""
        request, declarations = self.request, self.declarations
        if reason := cross_site(request):
            text = "This form was not sent from this site, so nothing was changed."
            return error_page(403, reason, text=text)
        fields = fields_of_form(await form_body(request, MAX_FORM_BYTES))
        only_post = next(iter(declarations.posts)) if len(declarations.posts) == 1 else ""
        name = fields.get("post", only_post)
        if name not in declarations.posts:
            raise HTTPError(400, f"the form's field post names none of: {', '.join(declarations.posts)}")
        post = declarations.posts[name]
        values = values_to_bind(post.parameters, declarations.parameters, {**self.url_fields, **fields})
        daemon_request = await self.daemon_request(post, post.sql, values, layout="ROWS", max_rows=POST_ROWS)
        try:
            table = await self.pages.databases.rows(daemon_request, self.io, writes=True)
        except DatabaseError as error:
            if error.kind == "STATEMENT" and any(
                word in str(error) for word in ("constraint failed", "violates")
            ):
                return error_page(409, f"{post.name}: {error}", text=self.message_for(error))
            return self.page_for_error(post, error)
        row = dict(zip(table.columns, table.rows[0], strict=True)) if table.rows else {}
        return see_other(self.target(post, {**values, **row}))

    def message_for(self, error: DatabaseError) -> str:
        """Return the text for values that a constraint of the database forbids."""
        more = f" {error}" if self.pages.development else ""
        return f"The database does not accept these values. Please go back and change them.{more}"

    def target(self, post: PostStatement, values: Mapping[str, Value]) -> str:
        """Return the URL to which the visitor is redirected after a post. Raises PageError."""
        if not post.redirect:
            query = f"?{self.request.query}" if self.request.query else ""
            return percent_encode(self.request.path) + query
        try:
            target = fill_placeholders(post.redirect, values)
        except KeyError as missing:
            name = missing.args[0]
            text = f"redirect: {{{name}}} is neither a parameter of {post.name} nor a column that it returns"
            raise PageError(post.line, text) from None
        except ValueError as reason:  # the statement has changed the database, so the visitor gets no error
            where = f"{self.pages.static.name(self.file)}, line {post.line}"
            logger.errors.warning(f"{where}: redirect: {reason}: the visitor is sent to the page itself")
            return percent_encode(self.request.path)
        # If a value is empty, /{a}/{b} begins with two slashes, and a browser would take the other value for a host
        return "/" + target.lstrip("/") if target.startswith("//") else target


def fields_of_form(data: bytes) -> dict[str, str]:
    """Return the fields of a form. data: its body. Raises BadValue."""
    try:
        return fields_of(data.decode("ascii"))
    except UnicodeDecodeError:
        raise BadValue("The form is not encoded as its type says") from None


def with_tag(request: Request, data: bytes) -> Response:
    """Return a page with an entity tag, so that a client need not fetch an unchanged page again."""
    tag = f'"{blake2b(data, digest_size=12).hexdigest()}"'
    fields = (("ETag", tag), *FIELDS)
    status = status_by_conditions(request, tag, None) if request.conditional else None
    if status == 412:
        return error_page(412, "the page has changed: it has another entity tag")
    return Response(304, fields) if status == 304 else Response(200, (*HTML, *fields), data)


def see_other(target: str) -> Response:
    """Return the 303 to a page."""
    page = link_page("Done", f'It is done: <a href="{html_escape(target)}">go on</a>.')
    fields = (
        ("Location", target),
        ("Content-Type", "text/html; charset=utf-8"),
        ("Cache-Control", "no-store"),
    )
    return Response(303, fields, page)


def mounts(plan: Plan) -> Iterator[Mount]:
    yield Mount("/", SQLPages(plan.config, plan.provided("databases"), plan.static))


FEATURE = Feature("sql-pages", mounts=mounts)
