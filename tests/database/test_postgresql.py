"""The driver of PostgreSQL, against a real server: what a statement may do, and what a lost connection does."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from glob import glob
from pathlib import Path

import pytest
from support import needs
from support.browsing import check_paging, listing_of, schema_in
from support.browsing import run as rows_of
from support.daemon import Daemon
from support.proc import peak_memory
from support.server import ROOT, wait_until

from ewe.database.client import Client
from ewe.database.drivers import Database, DatabaseConnection, connect
from ewe.database.protocol import ClientRequest, DatabaseError, Parameters, encode_request
from ewe.features.browser import statements
from ewe.features.browser.schema import POSTGRESQL
from ewe.features.browser.urls import OPERATORS, Filter, View
from ewe.sqlpages.declarations import parse, with_nulls
from ewe.sqlpages.results import Choice, select_statement
from ewe.sqlpages.values import values_to_bind

postgresql = needs.module("ewe.database.postgresql", "psycopg")
pytestmark = pytest.mark.starts_processes
PROGRAMS = max(glob("/usr/lib/postgresql/*/bin"), default="")
# What a gateway might send first, to change what its next statement may do
WITHOUT_EFFECT = (
    "SET default_transaction_read_only = off",
    "SET TRANSACTION READ WRITE",
    "COMMIT",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
    "SET search_path = nothing",
)
SERIES = "SELECT n, 'text' FROM generate_series(1, ?::int) n"


class PostgreSQL:
    """A server with an empty database, at a Unix socket only."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.source = f"host={directory} user=postgres dbname=postgres"
        self.account = {}
        if os.geteuid() == 0:  # initdb refuses root
            who = pwd.getpwnam("postgres")
            os.chown(directory, who.pw_uid, who.pw_gid)
            self.account = {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}
        self.run("initdb", "-D", f"{directory}/data", "-A", "trust", "-U", "postgres", "--no-sync")
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, program: str, *arguments: str) -> None:
        command = [shutil.which(program, path=PROGRAMS) or program, *arguments]
        subprocess.run(command, check=True, capture_output=True, timeout=120, cwd="/", **self.account)  # type: ignore[call-overload]

    def start(self) -> None:
        directory = self.directory
        command = [
            f"{PROGRAMS}/postgres",
            "-D",
            f"{directory}/data",
            "-k",
            str(directory),
            "-c",
            "listen_addresses=",
        ]
        with open(directory / "log", "ab") as log:
            self.process = subprocess.Popen([*command, "-F"], stderr=log, cwd="/", **self.account)  # type: ignore[call-overload]
        wait_until(self.answers, 20, lambda: (directory / "log").read_text())

    def answers(self) -> bool:
        try:
            connect(Database("pg", "postgresql", self.source, False)).close()
        except DatabaseError:
            return False
        return True

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)  # at once, as a server that fails
            self.process.wait(20)
            self.process = None


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    needs.require("psycopg", "PostgreSQL")
    with tempfile.TemporaryDirectory(prefix="ewe-pg-") as name:
        Path(name).chmod(0o755)
        made = PostgreSQL(Path(name))
        made.start()
        yield made
        made.stop()


@pytest.fixture
def connections(server: PostgreSQL) -> Iterator[tuple[DatabaseConnection, DatabaseConnection]]:
    """Two connections: one may write, one may only read. A table `goods` with two rows."""
    writes = connect(Database("pg", "postgresql", server.source, True))
    reads = connect(Database("pg", "postgresql", server.source, False))
    run(writes, "DROP TABLE IF EXISTS goods")
    run(
        writes,
        "CREATE TABLE goods (id int, name text, at date DEFAULT '1999-12-31', price numeric DEFAULT 1.50)",
    )
    run(writes, "INSERT INTO goods VALUES (1, 'wool'), (2, '100%')")
    yield writes, reads
    writes.close()
    reads.close()


def run(
    connection: DatabaseConnection, statement: str, parameters: Parameters = ()
) -> list[Sequence[object]]:
    """Run one statement as a worker does."""
    try:
        result = connection.execute(statement, parameters)
        rows = list(result.rows)
    except DatabaseError:
        connection.end(commit=False)
        raise
    connection.end(commit=True)
    return rows


@pytest.mark.parametrize(
    ("statement", "parameters", "rows"),
    [
        ("SELECT * FROM goods WHERE id = 1", (), [(1, "wool", "1999-12-31", "1.50")]),
        ("SELECT name FROM goods WHERE name = ?", ["100%"], [("100%",)]),
        ("SELECT name FROM goods WHERE name = :name", {"name": "100%"}, [("100%",)]),
        ("SELECT id % 2 FROM goods WHERE name LIKE '%'", (), [(1,), (0,)]),
        ("SELECT id % 2, ? FROM goods WHERE name LIKE '1%'", ["'; --"], [(0, "'; --")]),
        ("SELECT $€$ ? $€$, ?", ["b"], [(" ? ", "b")]),
        ("SELECT '? :a', \"id\" /* ? :a */, $$?$$, $a$:a$a$, E'\\'?' FROM goods WHERE id = :a -- ?", {"a": 1},
         [("? :a", 1, "?", ":a", "'?")]),
        ("SELECT ?::int + 1, (array[1,2,3])[1:2]", [4], [(5, "[1, 2]")]),
        ("SELECT '{\"x\": 1}'::jsonb ?? 'x', ?", ["y"], [(True, "y")]),
        ("SELECT '{\"x\": null}'::jsonb, ' [true]'::json, '7'::jsonb, 'null'::json", (),
         [('{"x": null}', " [true]", 7, None)]),
        ("SELECT ?::text IS NULL, ?::float8, ?::bytea", [None, 1.5, b"\0\xff"], [(True, 1.5, b"\0\xff")]),
        ("SELECT 'infinity'::date, '0044-03-15 BC'::timestamp, '24:00'::time, '[2026-01-01,infinity)'::daterange",
         (), [("infinity", "0044-03-15 00:00:00 BC", "24:00:00", "[2026-01-01, infinity)")]),
        ("SELECT array[1.50, NULL], array['2026-01-01'::date], array[array['a']], array[true]", (),
         [("[1.50, None]", "[2026-01-01]", "[['a']]", "[True]")]),
        ("SELECT '1 month 2 days'::interval, '2026-01-01 12:00'::timestamp, '[2026-01-01,2026-02-01)'::daterange",
         (), [("1 mon 2 days", "2026-01-01 12:00:00", "[2026-01-01, 2026-02-01)")]),
        ("SELECT row(1, 'a', 1.50)", (), [("('1', 'a', '1.50')",)]),
        ("DELETE FROM goods WHERE false", (), None),
    ],
)  # fmt: skip
def test_a_statement_and_its_parameters(
    connections: tuple[DatabaseConnection, DatabaseConnection],
    statement: str,
    parameters: Parameters,
    rows: list[object] | None,
) -> None:
    if rows is None:
        assert run(connections[0], statement, parameters) == []
    else:
        assert run(connections[1], statement, parameters) == rows


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM goods",
        "COMMIT; DELETE FROM goods",
        "SELECT 1; DELETE FROM goods",
        "CREATE TABLE more (id int)",
        "nonsense",
        "",
        "SELECT * FROM nothing",
        "DO $$ BEGIN RAISE EXCEPTION 'no'; END $$",
    ],
)
def test_who_may_only_read_changes_nothing(
    connections: tuple[DatabaseConnection, DatabaseConnection], statement: str
) -> None:
    writes, reads = connections
    for before in WITHOUT_EFFECT:
        run(reads, before)
    with pytest.raises(DatabaseError) as refused:
        run(reads, statement)
    assert refused.value.kind == "STATEMENT" and "\n" not in str(refused.value)
    assert run(reads, "SELECT COUNT(*) FROM goods") == [(2,)] == run(writes, "SELECT COUNT(*) FROM goods")


def test_a_failed_statement_leaves_nothing(
    connections: tuple[DatabaseConnection, DatabaseConnection],
) -> None:
    writes, reads = connections
    with pytest.raises(DatabaseError):
        run(writes, "WITH new AS (INSERT INTO goods VALUES (3) RETURNING id) SELECT 1 / (id - 3) FROM new")
    result = writes.execute("INSERT INTO goods SELECT n FROM generate_series(1, 100000) n RETURNING id", ())
    next(result.rows)
    result.rows.close()  # as a worker does at a limit
    writes.end(commit=False)
    assert run(reads, "SELECT COUNT(*) FROM goods") == [(2,)]
    assert writes.is_alive()


def test_a_connection_that_is_lost_after_the_commit_is_no_error(
    connections: tuple[DatabaseConnection, DatabaseConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error would say that nothing has changed."""
    writes, reads = connections
    assert isinstance(writes, postgresql.PostgreSQL)
    commit = writes.connection.commit

    def commit_and_lose() -> None:
        commit()
        writes.connection.pgconn.finish()

    monkeypatch.setattr(writes.connection, "commit", commit_and_lose)
    run(writes, "INSERT INTO goods VALUES (3, 'silk')")
    assert run(reads, "SELECT COUNT(*) FROM goods") == [(3,)] and not writes.is_alive()


def test_placeholders_are_found_outside_of_text_only() -> None:
    assert postgresql.psycopg_style("a = ? AND b LIKE '%?'", [1])[0] == "a = %s AND b LIKE '%%?'"
    assert postgresql.psycopg_style("a = ? AND b LIKE '%?'", [])[0] == "a = ? AND b LIKE '%?'"
    long = "/* " * 300_000  # a user's page may have it: once through the text, not once for each "/*"
    assert postgresql.psycopg_style(long, {"a": 1})[0] == long
    assert postgresql.psycopg_style("a = :a AND b[:b] = ':a'", {"a": 1})[0] == "a = %(a)s AND b[:b] = ':a'"


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (r"a LIKE'b\' AND c = ? AND d = '?'", r"a LIKE'b\' AND c = %s AND d = '?'"),
        (r"a = E'b\'?' AND c = ?", r"a = E'b\'?' AND c = %s"),
        ("a$b$ = ? AND c = $b$?$b$", "a$b$ = %s AND c = $b$?$b$"),
        ("a = $ü$?$ü$ AND b = ?", "a = $ü$?$ü$ AND b = %s"),
        ("a = $€$ ? $€$ AND b = ?", "a = $€$ ? $€$ AND b = %s"),
        ("a€$b$ = ? AND c = $b$?$b$", "a€$b$ = %s AND c = $b$?$b$"),
        ("a€E'b\\' AND c = ? AND d = '?'", "a€E'b\\' AND c = %s AND d = '?'"),
    ],
)
def test_a_prefix_of_a_text_is_a_word(statement: str, expected: str) -> None:
    assert postgresql.psycopg_style(statement, [1])[0] == expected


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("ISO", "2026-01-02 03:04:05+00:00"),
        ("SQL", "01/02/2026 03:04:05 UTC"),
        ("German", "02.01.2026 03:04:05 UTC"),
    ],
)
def test_a_time_comes_through_in_every_style_of_dates(server: PostgreSQL, style: str, expected: str) -> None:
    """A role may have a style for its sessions."""
    source = f"{server.source} options='-c DateStyle={style} -c TimeZone=UTC'"
    with closing(connect(Database("pg", "postgresql", source, False))) as connection:
        assert run(connection, "SELECT '2026-01-02 03:04:05+00'::timestamptz") == [(expected,)]
        assert run(connection, "SELECT date '2026-01-02', '24:00'::time") == [("2026-01-02", "24:00:00")]


def test_copy_is_refused_with_its_reason(server: PostgreSQL) -> None:
    connection = connect(Database("pg", "postgresql", server.source, False))
    with pytest.raises(DatabaseError, match="COPY cannot be used"):
        connection.execute("COPY (SELECT 1) TO STDOUT", ())
    connection.close()


@pytest.mark.parametrize(
    ("statement", "parameters"),
    [
        ("INSERT INTO goods VALUES (?, '%s')", [3, "silk"]),
        ("INSERT INTO goods VALUES (?, ?)", [3]),
        ("SELECT 1", [1]),
    ],
)
def test_a_wrong_number_of_parameters_is_an_error(
    connections: tuple[DatabaseConnection, DatabaseConnection], statement: str, parameters: list[object]
) -> None:
    """Otherwise the gateway would get a result without rows, of a statement that has not run."""
    with pytest.raises(DatabaseError, match="placeholders for") as refused:
        run(connections[0], statement, parameters)  # type: ignore[arg-type]
    assert refused.value.kind == "STATEMENT"
    assert run(connections[0], "SELECT count(*) FROM goods") == [(2,)]


@pytest.fixture
def daemon(server: PostgreSQL) -> Iterator[Daemon]:
    """A daemon whose database `log` is in PostgreSQL."""
    if server.process is None:
        server.start()
    with tempfile.TemporaryDirectory(prefix="ewe-dbd-") as name:
        Path(name).chmod(0o755)
        made = Daemon(Path(name))
        made.databases = {"log": ["driver = 'postgresql'"]}
        made.source = server.source
        try:
            made.start()
            yield made
        finally:
            made.stop(signal.SIGKILL)


def test_a_slow_statement_is_cancelled_in_the_database(daemon: Daemon, server: PostgreSQL) -> None:
    with pytest.raises(DatabaseError) as refused:
        daemon.ask("SELECT pg_sleep(20)", time_limit=0.3)
    assert refused.value.kind == "TIMEOUT"
    with Client(daemon.address) as leaves:
        leaves.socket.sendall(encode_request(ClientRequest("log", "SELECT pg_sleep(20)")))
        wait_until(lambda: daemon.status()["running"] == 1, 5)
    busy = "SELECT COUNT(*) AS n FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%pg_sleep(20)'"
    wait_until(lambda: daemon.ask(busy, layout="CSV") == "n\r\n0\r\n", 5)


def test_a_large_result_comes_through_and_needs_no_memory(daemon: Daemon) -> None:
    daemon.ask(SERIES, [1000])
    before = peak_memory([daemon.pid])
    with Client(daemon.address, 130) as client:
        size = sum(map(len, client.ask(ClientRequest("log", SERIES, "PRE", [200_000], time_limit=120.0))))
    assert size == sum(len(f"{n}\ttext\n") for n in range(1, 200_001)) + len("<pre>\nn\t?column?\n</pre>\n")
    assert peak_memory([daemon.pid]) - before < 8 << 20


def test_a_database_that_stops_is_said_and_one_that_starts_again_is_used(
    daemon: Daemon, server: PostgreSQL
) -> None:
    assert daemon.ask(SERIES, [1])
    server.stop()
    with pytest.raises(DatabaseError) as refused:
        daemon.ask(SERIES, [1])
    assert (refused.value.kind, refused.value.status) == ("UNAVAILABLE", 503)
    server.start()
    assert daemon.ask(SERIES, [1])
    # Each connection that was open is found dead at its next statement, which does not fail for it
    server.stop()
    server.start()
    for _ in range(8):
        assert daemon.ask(SERIES, [1])


def ask_until(stop: threading.Event, address: str, answers: list[str]) -> None:
    """Ask on one connection until the event is set; note what each answer is."""
    with Client(address, 60) as client:
        while not stop.is_set():
            try:
                found = b"".join(client.ask(ClientRequest("log", SERIES, "CSV", [500])))
                answers.append("whole" if found.endswith(b"500,text\r\n") else "cut")
            except DatabaseError as error:
                answers.append(error.kind)


def test_a_database_that_stops_and_starts_under_load(server: PostgreSQL) -> None:
    """With two daemons: an answer, or UNAVAILABLE at once; and the daemon goes on without a restart."""
    if server.process is None:
        server.start()
    with tempfile.TemporaryDirectory(prefix="ewe-dbd-") as name:
        Path(name).chmod(0o755)
        daemon = Daemon(Path(name))
        daemon.general = ["connections = 4", "daemons = 2"]
        daemon.databases = {"log": ["driver = 'postgresql'"]}
        daemon.source = server.source
        stop = threading.Event()
        answers: list[str] = []

        def wait_for(kind: str) -> None:
            seen = len(answers)
            wait_until(lambda: kind in answers[seen:], 20, lambda: f"no {kind}: {set(answers[seen:])}")

        threads = []
        try:
            daemon.start()
            threads = [
                threading.Thread(target=ask_until, args=(stop, daemon.address, answers)) for _ in range(6)
            ]
            for thread in threads:
                thread.start()
            for _ in range(2):
                wait_for("whole")
                server.stop()
                wait_for("UNAVAILABLE")
                server.start()
            wait_for("whole")
            wait_until(lambda: set(answers[-50:]) == {"whole"}, 20)
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
            daemon.stop(signal.SIGTERM)
        assert set(answers) == {"whole", "UNAVAILABLE"}


@pytest.mark.needs("root")
def test_a_connection_fits_a_database_and_a_user(
    server: PostgreSQL, connections: tuple[DatabaseConnection, DatabaseConnection], daemon: Daemon
) -> None:
    """per-user: PostgreSQL sees the account of the gateway's process, and its rights count."""
    writes, _ = connections
    for role in ("root", "nobody"):
        run(writes, f"DROP ROLE IF EXISTS {role}")
        run(writes, f"CREATE ROLE {role} LOGIN")
    try:
        run(writes, "GRANT SELECT ON goods TO root")
        daemon.stop()
        daemon.general[0] = "connections = 1"
        daemon.databases["log"] += ["per-user = true", "users = ['root', 'nobody']"]
        daemon.start()
        assert daemon.ask("SELECT current_user", layout="CSV") == "current_user\r\nroot\r\n"
        assert daemon.ask("SELECT COUNT(*) AS n FROM goods", layout="CSV") == "n\r\n2\r\n"
        backend = daemon.ask("SELECT pg_backend_pid()")
        assert daemon.ask("SELECT pg_backend_pid()") == backend  # used again
        assert as_nobody(daemon, "SELECT current_user") == "current_user\r\nnobody\r\n"
        assert "permission denied for table goods" in as_nobody(daemon, "SELECT * FROM goods")
        # A statement that would change the account of a later request has no effect
        assert "permission denied" in as_nobody(daemon, "SET ROLE root")
        assert daemon.ask("SELECT pg_backend_pid()") != backend  # replaced
    finally:
        daemon.stop()
        run(writes, "REVOKE ALL ON goods FROM root")


def as_nobody(daemon: Daemon, statement: str) -> str:
    """Return the answer for the account nobody: the result, or the text of the error."""
    code = (
        "import os, sys; from ewe.database.client import Client\n"
        "from ewe.database.protocol import ClientRequest, DatabaseError\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "asked = ClientRequest('log', sys.argv[2], 'CSV')\n"
        "try: sys.stdout.buffer.write(b''.join(Client(sys.argv[1]).ask(asked)))\n"
        "except DatabaseError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, daemon.address, statement]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=True)
    return done.stdout.decode()


@pytest.mark.parametrize(
    "text",
    [
        "Ωμέγα",
        "שלום",
        "日本語",
        "🐑👩‍🔬",
        "' OR 1=1; --",
        '"; DROP TABLE goods',
        "<script>&amp;</script>",
        "\\x00",
        "%s",
    ],
)
def test_text_in_every_script(connections: tuple[DatabaseConnection, DatabaseConnection], text: str) -> None:
    writes, reads = connections
    run(writes, "INSERT INTO goods VALUES (3, ?)", [text])
    assert run(reads, "SELECT name FROM goods WHERE name = ?", [text]) == [(text,)]
    assert run(reads, "SELECT COUNT(*) FROM goods") == [(3,)]


def test_nul_is_refused_and_the_connection_stays(
    connections: tuple[DatabaseConnection, DatabaseConnection],
) -> None:
    """A text of PostgreSQL cannot hold NUL. The part of a statement before it does not run."""
    for statement, parameters in (
        ("SELECT ?::text", ["a\0b"]),
        ("SELECT 'a\0b'", []),
        ("DELETE FROM goods\0 WHERE id = 1", []),
    ):
        for connection in connections:
            with pytest.raises(DatabaseError) as refused:
                run(connection, statement, parameters)
            assert refused.value.kind == "STATEMENT", statement
    assert run(connections[1], "SELECT COUNT(*) FROM goods") == [(2,)]


# ---------------------------------------------------------------------------------------------------------
# The browser's statements (ewe/features/browser)

BROWSED = """
CREATE SCHEMA browsed; SET search_path = browsed;
CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.makers (name text PRIMARY KEY);
CREATE TABLE makers (name text PRIMARY KEY, founded date);
CREATE TABLE goods (id serial PRIMARY KEY, name varchar(40) NOT NULL, price numeric(8, 2),
    maker text REFERENCES makers, at timestamptz, tags jsonb, cents int GENERATED ALWAYS AS (price * 100) STORED);
CREATE TABLE stock (good int REFERENCES goods, place text, PRIMARY KEY (good, place));
CREATE TABLE "a;""b" ("c'd" text, n int, maker text REFERENCES elsewhere.makers);
CREATE VIEW cheap AS SELECT name, price FROM goods WHERE price < 5;
INSERT INTO makers VALUES ('Bess', '1820-05-01'), ('Ivy', NULL);
INSERT INTO goods (name, price, maker, at, tags) VALUES ('wool', 2.5, 'Bess', '2026-01-01 UTC', '{"a": 1}'),
    ('Wool 100%', NULL, NULL, NULL, NULL), ('w_ol', 2.5, 'Ivy', '2025-01-01 UTC', '[]'),
    ('7', 9, 'Ivy', NULL, NULL);
INSERT INTO stock SELECT id, place FROM goods, (VALUES ('barn'), ('shop')) AS p (place);
ALTER ROLE postgres SET search_path = browsed;
"""


@pytest.fixture(scope="module")
def browsed(server: PostgreSQL) -> Iterator[DatabaseConnection]:
    server.run(
        "psql", "-h", str(server.directory), "-U", "postgres", "-q", "-v", "ON_ERROR_STOP=1", "-c", BROWSED
    )
    connection = connect(Database("pg", "postgresql", server.source, False))
    yield connection
    connection.close()
    server.run(
        "psql", "-h", str(server.directory), "-U", "postgres", "-c", "ALTER ROLE postgres RESET search_path"
    )


def test_the_browser_reads_the_schema(browsed: DatabaseConnection) -> None:
    schema = schema_in(browsed, POSTGRESQL)
    assert list(schema.tables) == ['a;"b', "cheap", "goods", "makers", "stock"]
    goods = schema.tables["goods"]
    assert goods.key == ("id",) and goods.label_column == "name" and goods.columns["price"].is_number
    assert goods.columns["cents"].filled_by == "computed" and "nextval" in goods.columns["id"].filled_by
    assert goods.columns["name"].not_null and not goods.columns["at"].is_number
    assert [(each.columns, each.other, each.other_columns) for each in goods.foreign] == [
        (("maker",), "makers", ("name",))
    ]
    assert schema.tables["stock"].key == ("good", "place") and schema.tables["cheap"].is_view
    assert [each.table for each in schema.referring["goods"]] == ["stock"]
    assert schema.tables['a;"b'].foreign == ()  # the table of the same name in this schema is another one


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    ("name", "sort"),
    [
        ("goods", ""),
        ("goods", "price"),
        ("goods", "maker"),
        ("goods", "at"),
        ("stock", "place"),
        ("makers", "founded"),
        ("cheap", "price"),
    ],
)
def test_the_browsers_pages_hold_every_row_once(
    browsed: DatabaseConnection, name: str, sort: str, descending: bool
) -> None:
    schema = schema_in(browsed, POSTGRESQL)
    for size in (1, 3):
        check_paging(browsed, schema, schema.tables[name], View(sort=sort, descending=descending, size=size))


@pytest.mark.parametrize(
    ("column", "op", "value", "names"),
    [
        ("price", "eq", "2.50", ["w_ol", "wool"]),
        ("price", "in", "9, 2.5", ["7", "w_ol", "wool"]),
        ("price", "contains", "2.5", ["w_ol", "wool"]),
        ("at", "gt", "2025-06-01", ["wool"]),
        ("name", "begins", "WOOL", ["Wool 100%", "wool"]),
        ("name", "contains", "0%", ["Wool 100%"]),
        ("name", "lacks", "ool", ["7", "w_ol"]),
        ("maker", "null", "", ["Wool 100%"]),
        ("tags", "eq", '{"a":1}', ["wool"]),
        ("name", "eq", "' OR 1=1 --", []),
    ],
)
def test_the_browsers_filters_find_what_they_say(
    browsed: DatabaseConnection, column: str, op: str, value: str, names: list[str]
) -> None:
    schema = schema_in(browsed, POSTGRESQL)
    listing = listing_of(browsed, schema, schema.tables["goods"], View((Filter(column, op, value),)))
    assert sorted(str(row[1]) for row in listing.rows.rows) == names and listing.total == len(names)


def test_the_browsers_other_statements_run(browsed: DatabaseConnection) -> None:
    schema = schema_in(browsed, POSTGRESQL)
    goods = schema.tables["goods"]
    for op in OPERATORS:
        rows_of(
            browsed, statements.rows_of(schema, goods, View((Filter("name", op, "%s :a ? %(b)s"),), "100%"))
        )
    assert rows_of(browsed, statements.facet_of(schema, goods, View(), "maker"))[1][0] == ["Ivy", 2]
    assert rows_of(browsed, statements.facet_of(schema, schema.tables['a;"b'], View(), "n"))[1] == []
    assert rows_of(browsed, statements.row_of(goods, [3]))[1][0][1] == "w_ol"
    labels = statements.statement_of_labels(schema, schema.tables["stock"].foreign[0], [1, 3])
    assert labels is not None and sorted(rows_of(browsed, labels)[1], key=str) == [[1, "wool"], [3, "w_ol"]]
    plan = rows_of(
        browsed,
        statements.BoundStatement(POSTGRESQL.explain + 'SELECT * FROM "goods" WHERE id = :n', {"n": 1}),
    )
    assert "goods" in str(plan[1])
    with pytest.raises(DatabaseError) as refused:
        listing_of(browsed, schema, goods, View((Filter("price", "gt", "dear"),)))
    assert refused.value.kind == "STATEMENT"
    browsed.end(commit=False)


def test_the_blogs_statements_run(server: PostgreSQL) -> None:
    """samples/blog: the same pages as on SQLite, with values and without."""
    blog = ROOT / "samples" / "blog"
    files = []
    for name in ("schema-postgresql.sql", "content.sql"):  # the account of PostgreSQL may not read the clone
        files += ["-f", str(server.directory / name)]
        shutil.copy(blog / name, server.directory / name)
        (server.directory / name).chmod(0o644)
    server.run("psql", "-h", str(server.directory), "-U", "postgres", "-v", "ON_ERROR_STOP=1", "-q", "-c",
               "DROP TABLE IF EXISTS comments, posts", *files, "postgres")  # fmt: skip
    connection = connect(Database("pg", "postgresql", server.source, True))
    given = {"q": "Cheese", "id": "7", "author": "Ada", "body": "x", "title": "A 'title'"}
    counts = []
    try:
        for page in sorted((blog / "htdocs").glob("[!_]*.sql.html")):
            found = parse(page.read_text())
            for query in found.queries.values():
                for fields in (given, {"id": "8"}):
                    values = values_to_bind(query.parameters, found.parameters, fields)
                    for sort in ("", query.sort[0][0] if query.sort else ""):
                        sql = select_statement(query, Choice(query, "", {"sort": sort, "page": "1"}))
                        counts.append(len(run(connection, sql, values)))
            for post in found.posts.values():
                run(connection, post.sql, values_to_bind(post.parameters, found.parameters, given))
        optional = "SELECT id FROM posts WHERE :least IS NULL OR id >= :least"
        assert len(run(connection, optional, {"least": 100})) == 2
        given = parse("-- parameter: q\n-- query: x\nSELECT id FROM posts WHERE :q IS NULL OR title = :q")
        assert len(run(connection, given.queries["x"].sql, {"q": "none"})) == 0
        for kind in ("integer", "number"):
            assert len(run(connection, with_nulls(optional, {"least": kind}))) == 101
        assert run(connection, "SELECT count(*), max(id) FROM posts") == [(101, 1001)]
        assert run(connection, "SELECT count(*), max(id) FROM comments WHERE post = 7") == [(5, 10001)]
    finally:
        connection.close()
    # index: posts (a search, all), talk; post: article, comments
    assert counts == [11, 11, 11, 11, 6, 6, 6, 6, 1, 1, 1, 1, 4, 4, 4, 4]


def test_the_browsers_forms_change_rows(server: PostgreSQL, browsed: DatabaseConnection) -> None:
    writes = connect(Database("pg", "postgresql", server.source, True))
    try:
        schema = schema_in(writes, POSTGRESQL)
        goods = schema.tables["goods"]
        run(
            writes, *statements.insert_of(schema, goods, {"name": "new", "price": "1.25", "at": "2026-02-01"})
        )
        ((key,),) = run(writes, "SELECT id FROM goods WHERE name = 'new'")
        run(writes, *statements.update_of(schema, goods, [str(key)], {"price": None, "tags": "[1]"}))
        assert run(writes, "SELECT price, tags FROM goods WHERE name = 'new'") == [(None, "[1]")]
        run(writes, *statements.delete_of(goods, [int(str(key))]))
        assert run(writes, "SELECT id FROM goods WHERE name = 'new'") == []
    finally:
        writes.close()


@pytest.mark.parametrize(
    ("statement", "trace"),
    [
        ("SELECT pg_advisory_lock(7)::text", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"),
        ("PREPARE mine AS SELECT 1", "SELECT count(*) FROM pg_prepared_statements"),
        ("LISTEN told", "SELECT count(*) FROM pg_listening_channels()"),
        (
            "SELECT set_config('my.secret', 'x', false)",
            "SELECT count(*) WHERE current_setting('my.secret', true) <> ''",
        ),
        ("SET statement_timeout = 1", "SELECT count(*) WHERE current_setting('statement_timeout') <> '0'"),
        (
            "DECLARE kept CURSOR WITH HOLD FOR SELECT 1",
            "SELECT count(*) FROM pg_cursors WHERE name = 'kept'",
        ),
        ("SET ROLE pg_monitor", "SELECT count(*) WHERE current_user <> session_user"),
    ],
)
@pytest.mark.parametrize("write", [False, True])
def test_nothing_of_a_statement_stays_in_the_session(
    server: PostgreSQL, statement: str, trace: str, write: bool
) -> None:
    connection = connect(Database("pg", "postgresql", server.source, write))
    try:
        with suppress(DatabaseError):  # refused at once: as good
            run(connection, statement)
        assert run(connection, trace) == [(0,)]
    finally:
        connection.close()


def test_a_statement_that_postgresql_reads_in_quadratic_time_is_refused(server: PostgreSQL) -> None:
    """No time limit ends the reading, not even the end of the connection."""
    connection = connect(Database("pg", "postgresql", server.source, False))
    try:
        for statement in ("/*" * 10_000, "SELECT " + "+" * 20_000 + "1", "SELECT '" + "=" * 501 + "'"):
            with pytest.raises(DatabaseError, match="operator characters in a row"):
                run(connection, statement)
        assert run(connection, "SELECT " + "- " * 700 + "1 /*" + "*" * 400 + "*/") == [(1,)]
        assert run(connection, "SELECT :text", {"text": "=" * 501}) == [("=" * 501,)]
    finally:
        connection.close()
