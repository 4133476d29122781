"""Pages from SQL: books.sql.html in the document root becomes a page, books.sql.csv and books.sql.json its data.

    GET  /books.sql.html?q=sea ─▶ the file, compiled ─▶ its queries, one after the other ─▶ its template ─▶ page
    GET  /books.sql.csv?q=sea  ─▶ its first query, all rows, as the demon sends them
    POST /books.sql.html       ─▶ one statement that writes ─▶ 303 to the page

The same page answers for /books, and index.sql.html for its directory, if no file of that name is there.

**What is checked, and where.** The file is opened as Static opens one: nothing outside the document root, no hidden
name. Values of a visitor are bound (ewe.sqlpages.values). A query runs as a subquery, which can only read
(ewe.sqlpages.results). A POST needs a page that declares it, a database that may be written, and a form of the
same site (cross_site()). The file itself is never sent: ewe.gateway.claims refuses it, whether or not there are
databases.

**Users.** ewe asks the demon with its own account, so the demon cannot tell one user's page from another's. A page
of ~alice may therefore use only a database whose name names her: `~alice`, or `~alice:shop`.

**Errors.** A visitor gets a page with the right status. What the database says goes to the error log, with the file
and the line, and into the page only with `development`.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

from ewe.bounded import BoundedDict, TimedCache
from ewe.database.protocol import ClientRequest, DatabaseError, Value
from ewe.features.base import Mount
from ewe.features.declaration import Feature
from ewe.features.static import FRESH, SETTLED, Static, hidden, identity
from ewe.gateway.connections import RETRY
from ewe.http.conditional import tags
from ewe.http.error_pages import error_page, html_escape, link_page
from ewe.http.messages import METHODS, Request, Response
from ewe.http.status import HTTPError
from ewe.http.target import percent_encode
from ewe.sqlpages.declarations import Declarations, PageError, Post, Query, Statement, parse, with_nulls
from ewe.sqlpages.values import BadValue, bound, fields_of

try:
    from ewe.sqlpages.results import Choice, Page, Result, filled, select
    from ewe.sqlpages.templates import STYLE, Environment, Template

    MISSING = ""
except ImportError as missing:
    MISSING = f"pages from SQL need {missing.name}: pip install 'ewe-server[pages]'"

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ewe.config.settings import Config
    from ewe.features.base import Explanation
    from ewe.features.databases.asking import Databases
    from ewe.features.plan import Plan
    from ewe.streams.base import Stream

T = TypeVar("T")

SUFFIX = ".sql.html"
EXPORTS = {".sql.csv": "CSV", ".sql.json": "JSON"}
TYPES = {"CSV": "text/csv; charset=utf-8; header=present", "JSON": "application/json"}
INDEX = "index" + SUFFIX
MAX_FILE = 1 << 20  # bytes of a page's file
MAX_FORM = 256 * 1024  # bytes of a form
POST_ROWS = 1000  # that a statement which writes may return
MAX_PAGES = 200  # compiled
MAX_ENVIRONMENTS = 20  # directories of pages
MAX_PATHS = 1000
PAGE_CACHE_S = 1.0
FORM = "application/x-www-form-urlencoded"
FIELDS = (
    ("Cache-Control", "no-cache"),
    ("X-Content-Type-Options", "nosniff"),
)
# A page of another site must not show a form of this one in a frame and have the visitor click into it
HTML = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Security-Policy", "frame-ancestors 'self'"),
)


class Compiled:
    """A file as it was read: its declarations, its template once it is needed, or why it cannot be used."""

    __slots__ = ("checked", "declarations", "error", "identity", "template")

    def __init__(self, about: os.stat_result, text: str) -> None:
        self.identity = identity(about)
        self.checked = time.monotonic()
        self.template: Template | None = None
        self.error: PageError | None = None
        self.declarations = Declarations()
        try:
            self.declarations = parse(text)
        except PageError as error:
            self.error = error


class SQLPages:
    """The pages from SQL below one document root."""

    def __init__(self, config: Config, databases: Databases, static: Static, owner: str = "") -> None:
        """static: opens the files. owner: the user to whom the document root belongs, "" for the site."""
        self.databases = databases
        self.static = static
        self.owner = owner
        self.development = config.development
        self.known: TimedCache[str, tuple[str, str] | None] = TimedCache(MAX_PATHS, PAGE_CACHE_S)
        self.sources: BoundedDict[str, Compiled] = BoundedDict(MAX_PAGES)
        self.environments: BoundedDict[str, Environment] = BoundedDict(MAX_ENVIRONMENTS)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer with the page that the path leads to, None if it leads to none. Raises HTTPError."""
        found = self.find(request.path)
        if found is None:
            return None
        file, kind = found
        if MISSING:
            return self.failure(500, MISSING)
        source = self.source(file)
        try:
            if source.error is not None:
                raise source.error
            return await self.answer(Asked(self, request, io, file, source), kind)
        except PageError as error:
            where = f"{self.static.name(file)}, line {error.line}" if error.line else self.static.name(file)
            return self.failure(500, f"{where}: {error}")
        except BadValue as bad:
            return failed_page(400, str(bad), f"{bad}. Please go back and correct it.")

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the file of the page that answers. Raises HTTPError(403, 404)."""
        found = self.find(request.path)
        if found is not None:
            yield f"  answer    the page from SQL of {self.static.name(found[0])}   (database)"
        return found is not None

    async def answer(self, asked: Asked, kind: str) -> Response:
        """Answer with a page or its data, or refuse the method. Raises PageError, BadValue, HTTPError."""
        method = asked.request.method
        posts = kind == "" and asked.declarations.posts
        allow = ("Allow", "GET, HEAD, POST, OPTIONS" if posts else "GET, HEAD, OPTIONS")
        if method in ("GET", "HEAD"):
            return await (asked.export(kind) if kind else asked.page())
        if method == "POST" and posts:
            return await asked.post()
        if method == "OPTIONS":
            return Response(204, (allow,))
        if method not in METHODS:
            raise HTTPError(501, f"method {method!r} to a page from SQL")
        raise HTTPError(405, f"{method} to a page from SQL that declares no `-- post:`", (allow,))

    def failure(self, status: int, cause: str) -> Response:
        """Return the page of an error; for developers with its cause."""
        fields = RETRY if status == 503 else ()
        if self.development:
            return failed_page(status, cause, cause, fields)
        return error_page(status, cause, fields)

    # Path to file

    def find(self, path: str) -> tuple[str, str] | None:
        """Return the path of the page's file, and the kind of export, "" for the page.

        Raises HTTPError(403, 404).
        """
        if ".sql." in path:
            # Never remembered: a page that has just come must not be taken for a file.
            return self.find_uncached(path)
        return self.known.find(path, self.find_uncached)

    def find_uncached(self, path: str) -> tuple[str, str] | None:
        """Find the page on the disk. Raises HTTPError(403, 404)."""
        if path.endswith(SUFFIX):
            return (path, "") if self.is_page(path) else None
        for suffix, kind in EXPORTS.items():
            if path.endswith(suffix):
                file = path.removesuffix(suffix) + SUFFIX
                return (file, kind) if self.is_page(file) else None
        if hidden(path) or len(path) < self.static.skip:
            return None
        if path.endswith("/"):
            file = path + INDEX
            return (file, "") if self.is_page(file) and not self.static.index_of(path) else None
        file = path + SUFFIX
        if (
            "." in path.rpartition("/")[2]
            or os.path.lexists(self.static.name(path))
            or not self.is_page(file)
        ):
            return None
        return file, ""

    def is_page(self, path: str) -> bool:
        """Return whether the file of a page is at path, no part of other pages. Raises HTTPError(403, 404)."""
        return not path.rpartition("/")[2].startswith("_") and self.static.has(path)

    # File to page

    def source(self, path: str) -> Compiled:
        """Return the file at path, read again if it has changed since. Raises HTTPError."""
        known = self.sources.get(path)
        if known is not None and time.monotonic() - known.checked < FRESH:
            return known
        text, about = self.read(path)
        if known is not None and identity(about) == known.identity:
            known.checked = time.monotonic()
            return known
        source = Compiled(about, text)
        if time.time() - about.st_ctime > SETTLED:
            self.sources[path] = source
        return source

    def read(self, path: str) -> tuple[str, os.stat_result]:
        """Return the text of a file, and what it is. Raises HTTPError."""
        name = self.static.name(path)
        descriptor = None if hidden(path) else self.static.open(name, for_program=True)
        if descriptor is None:
            raise HTTPError(404, f"{name} is gone")
        with open(descriptor, "rb", buffering=0) as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                raise HTTPError(404, f"{name} is no file")
            if about.st_size > MAX_FILE:
                raise HTTPError(500, f"{name} is larger than {MAX_FILE} bytes")
            data = file.read(MAX_FILE + 1) or b""
        try:
            return data.decode(), about
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise HTTPError(500, f"{name}, line {line}: it is not UTF-8: save it as UTF-8") from None

    def template(self, source: Compiled, path: str) -> Template:
        """Return the compiled template of a file. Raises PageError."""
        if source.template is None:
            found = source.declarations
            source.template = Template(
                self.environment_of(path.rpartition("/")[0]), found.template, found.offset
            )
        return source.template

    def environment_of(self, directory: str) -> Environment:
        """Return the environment in which the pages of a directory are compiled. What they extend lies below it."""

        def load(name: str) -> tuple[str, Callable[[], bool]]:
            place = f"{directory}/{name}"
            try:
                text, about = self.read(place)
            except HTTPError as error:
                raise FileNotFoundError(error.cause) from None
            known = identity(about)
            return text, lambda: self.is_same(place, known)

        environment = self.environments.get(directory)
        if environment is None:
            environment = self.environments[directory] = Environment(load)
        return environment

    def is_same(self, path: str, known: tuple[int, ...]) -> bool:
        """Return whether a file that a page extends is unchanged."""
        try:
            return identity(os.stat(self.static.name(path))) == known
        except OSError:
            return False

    # Page to database

    def database(self, declared: str) -> str:
        """Return the name of a page's database. Raises HTTPError: 404 if it belongs to another user, 500."""
        names = self.databases.names
        if self.owner:
            own = f"~{self.owner}"
            name = declared or own
            if (name != own and not name.startswith(own + ":")) or (names and name not in names):
                raise HTTPError(
                    404, f"a page of {own} may use the databases {own} and {own}:NAME; {name!r} is none"
                )
            return name
        if not declared:
            if len(names) == 1:
                return names[0]
            raise PageError(
                1, f"which database? Write `-- database: NAME`; there are: {', '.join(names) or 'any'}"
            )
        if names and declared not in names:
            raise PageError(1, f"no database {declared!r}; there are: {', '.join(names)} (database)")
        return declared


class Asked:
    """One request to a page."""

    def __init__(self, pages: SQLPages, request: Request, io: Stream, file: str, source: Compiled) -> None:
        """file: the page's path. Raises HTTPError, PageError, BadValue."""
        self.pages = pages
        self.request = request
        self.io = io
        self.file = file
        self.source = source
        self.declarations = source.declarations
        self.database = pages.database(self.declarations.database)
        self.given = fields_of(request.query or "")

    async def page(self) -> Response:
        """Run the queries and fill the template. Raises PageError, BadValue, HTTPError."""
        found = self.declarations
        template = await self.call(self.pages.template, self.source, self.file)
        page = Page(found, self.request.path, self.given, STYLE)
        used = [name for query in found.queries.values() for name in query.parameters]
        values = bound(used, found.parameters, self.given)
        results: dict[str, Result] = {}
        for query in found.queries.values():
            prefix = f"{query.name}." if results else ""
            choice = Choice(query, prefix, self.given)
            asked = not query.needs or values.get(query.needs, self.given.get(query.needs)) not in (None, "")
            columns: list[str] = []
            rows: list[list[Value]] = []
            if asked:
                try:
                    columns, rows = await self.rows(query, select(query, choice), values)
                except DatabaseError as error:
                    return self.refused(query, error)
            if query.empty and asked and not rows:
                return failed_page(query.empty, f"query {query.name} finds no row", "There is no such page.")
            result = results[query.name] = Result(page, query, choice, prefix, columns, rows)
            result.asked = asked
        unused = {name: each.default for name, each in found.parameters.items() if name not in values}
        variables = {**unused, **values, **results, "page": page, "results": results}
        body = await self.call(template.render, variables)
        data = body.encode("utf-8", "replace")
        await self.io.share(len(data))
        return with_tag(self.request, data)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return function(*arguments), which works on a template.

        A user's template may take all of its 2 seconds for each request. Beside an event loop, a thread therefore
        works on it, and the loop answers others. The site's own templates are not worth a thread.
        """
        if self.pages.owner:
            return await self.io.call(function, *arguments)
        return function(*arguments)

    async def rows(
        self, query: Query, sql: str, values: Mapping[str, Value]
    ) -> tuple[list[str], list[list[Value]]]:
        """Return the columns and rows of a query, one row more than the page shows. Raises DatabaseError."""
        request = self.client_request(query, sql, values, "ROWS", query.rows + 1)
        columns, rows, _ = await self.pages.databases.rows(request, self.io)
        return columns, rows

    def client_request(
        self, statement: Statement, sql: str, values: Mapping[str, Value], layout: str, rows: int | None
    ) -> ClientRequest:
        """Return what the demon is asked for."""
        parameters = {name: values[name] for name in statement.parameters if values[name] is not None}
        if len(parameters) < len(statement.parameters):
            missing = [name for name in statement.parameters if name not in parameters]
            sql = with_nulls(sql, {name: self.declarations.parameters[name].kind for name in missing})
        return ClientRequest(
            self.database,
            sql,
            layout,
            parameters,
            os.getpid(),
            rows,
            statement.seconds,
            read_only=isinstance(statement, Query),
        )

    def refused(self, statement: Statement, error: DatabaseError) -> Response:
        """Return the page for an error of the database."""
        where = f"{self.pages.static.name(self.file)}, line {statement.line}"
        cause = f"{where}: {statement.name}: database {self.database}: {error.kind}: {error}"
        return self.pages.failure(error.status, cause)

    async def export(self, layout: str) -> Response:
        """Return all rows of a query, as they come. Raises BadValue, HTTPError."""
        found = self.declarations
        name = self.given.get("query", next(iter(found.queries), ""))
        if name not in found.queries:
            raise HTTPError(404, f"{self.file} has no query {name[:40]!r}")
        query = found.queries[name]
        prefix = "" if name == next(iter(found.queries)) else f"{name}."
        values = bound(query.parameters, found.parameters, self.given)
        sql = select(query, Choice(query, prefix, self.given), whole=True)
        # The demon's own limits hold: it counts the time for which a slow client takes the rows
        request = replace(self.client_request(query, sql, values, layout, None), time_limit=None)
        try:
            body = await self.pages.databases.ask(request, self.io)
        except DatabaseError as error:
            return self.refused(query, error)
        fields = [("Content-Type", TYPES[layout]), *FIELDS]
        if layout == "CSV":
            stem = percent_encode(self.file.rpartition("/")[2].removesuffix(SUFFIX))
            fields.append(("Content-Disposition", f"attachment; filename*=UTF-8''{stem}.csv"))
        return Response(200, fields, body)

    async def post(self) -> Response:
        """Run the statement that a form asks for, and send the visitor on. Raises BadValue, HTTPError."""
        request, found = self.request, self.declarations
        if reason := cross_site(request):
            return failed_page(403, reason, "This form was not sent from this site, so nothing was changed.")
        if (request.get("content-type") or "").partition(";")[0].strip().lower() != FORM:
            raise HTTPError(415, f"a form must be {FORM}", (("Accept", FORM),))
        fields = await form(request)
        name = fields.get("post", next(iter(found.posts)) if len(found.posts) == 1 else "")
        if name not in found.posts:
            raise HTTPError(400, f"the form's field post names none of: {', '.join(found.posts)}")
        post = found.posts[name]
        values = bound(post.parameters, found.parameters, {**self.given, **fields})
        asked = self.client_request(post, post.sql, values, "ROWS", POST_ROWS)
        try:
            table = await self.pages.databases.rows(asked, self.io, writes=True)
        except DatabaseError as error:
            if error.kind == "STATEMENT" and any(
                word in str(error) for word in ("constraint failed", "violates")
            ):
                return failed_page(409, f"{post.name}: {error}", self.told(error))
            return self.refused(post, error)
        row = dict(zip(table.columns, table.rows[0], strict=True)) if table.rows else {}
        return see_other(self.target(post, {**values, **row}))

    def told(self, error: DatabaseError) -> str:
        """Return the words for values that the database's rules forbid."""
        more = f" {error}" if self.pages.development else ""
        return f"The database does not accept these values. Please go back and change them.{more}"

    def target(self, post: Post, values: Mapping[str, Value]) -> str:
        """Return where a visitor is sent after a post. Raises PageError."""
        if not post.redirect:
            query = f"?{self.request.query}" if self.request.query else ""
            return percent_encode(self.request.path) + query
        try:
            return filled(post.redirect, values)
        except KeyError as missing:
            name = missing.args[0]
            text = f"redirect: {{{name}}} is neither a parameter of {post.name} nor a column that it returns"
            raise PageError(post.line, text) from None


def cross_site(request: Request) -> str:
    """Return why a form may come from another site, "" if it does not.

    A browser says where a request comes from, and no page of another site can change that. Sec-Fetch-Site is sent
    on secure connections and to this machine; Origin with every POST. A client that sends neither is no browser, so
    no page of another site could have led it here (Fetch Standard; Fetch Metadata).
    """
    site = request.get("sec-fetch-site")
    if site is not None:
        return "" if site in ("same-origin", "none") else f"Sec-Fetch-Site is {site[:40]!r}"
    origin = request.get("origin")
    if origin is None:
        return ""
    host = origin.partition("://")[2]
    if host and host.lower() == request.host.lower():
        return ""
    return f"Origin is {origin[:80]!r}, Host {request.host!r}"


async def form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises HTTPError(413), BadValue."""
    data = bytearray()
    if request.length is not None and request.length > MAX_FORM:
        raise HTTPError(413, f"a form of {request.length} bytes: at most {MAX_FORM}")
    while piece := await request.body.receive():
        data += piece
        if len(data) > MAX_FORM:
            raise HTTPError(413, f"a form of more than {MAX_FORM} bytes")
    try:
        return fields_of(data.decode("ascii"))
    except UnicodeDecodeError:
        raise BadValue("The form is not encoded as its type says") from None


def with_tag(request: Request, data: bytes) -> Response:
    """Return a page, with a tag by which a client need not fetch it again while it stays the same."""
    tag = f'"{blake2b(data, digest_size=12).hexdigest()}"'
    fields = (("ETag", tag), *FIELDS)
    if request.conditional:
        matching = tags(request.values.get("if-match"))
        if matching is not None and matching != ["*"] and tag not in matching:
            return error_page(412, "the page is another by now")
        differing = tags(request.values.get("if-none-match"))
        if differing and (differing == ["*"] or tag in (each.removeprefix("W/") for each in differing)):
            return Response(304, fields)
    return Response(200, (*HTML, *fields), data)


def see_other(target: str) -> Response:
    """Return the 303 to a page."""
    page = link_page("Done", f'It is done: <a href="{html_escape(target)}">go on</a>.')
    fields = (
        ("Location", target),
        ("Content-Type", "text/html; charset=utf-8"),
        ("Cache-Control", "no-store"),
    )
    return Response(303, fields, page)


def failed_page(status: int, cause: str, text: str, fields: tuple[tuple[str, str], ...] = ()) -> Response:
    """Return the page of an error with words that fit it. cause: for the log."""
    return error_page(status, cause, fields, text=text)


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield the pages of the site."""
    yield Mount("/", SQLPages(plan.config, plan.provided("databases"), plan.static))


FEATURE = Feature("sql-pages", mounts=mounts)
