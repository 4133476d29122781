"""The scenarios of the RDBMS paper: each gives the same page, and a clear answer when its database is down."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
from database.test_postgresql import PostgreSQL
from lab_bench import quick_lab
from support import needs
from support.server import MODELS

from ewe.libcgi.build import build
from ewe_lab.bench.experiment import ServerUnderTest
from ewe_lab.lab_bench import LabBench
from ewe_lab.load.http_clients import CPU_TIMING
from ewe_lab.stacks import databases, reports
from ewe_lab.stacks.databases import POSTGRESQL, SQLITE, LabDatabase, RunningDaemon
from ewe_lab.stacks.gateways import CGI, LIBCGI
from ewe_lab.stacks.reports import BY_NAME, DYNAMIC, SCENARIOS, STATIC, Scenario

pytestmark = [pytest.mark.starts_processes, pytest.mark.timeout(180)]
NAMES = tuple(BY_NAME)
KEPT = (
    "5 in process, pool",
    "6 in process, one connection",
    "FastCGI, kept connection",
    "X-Switch, kept connection",
)
NO_DAEMON = RunningDaemon("unix:/nonexistent/daemon.sock", os.getpid())
DOWN = b"The database does not answer. Please try again later.\n"
WRONG = b"The database could not make this report.\n"


@pytest.fixture(scope="module")
def lab() -> Iterator[LabBench]:
    needs.require("gcc")
    build()
    with quick_lab() as made:
        yield made


@pytest.fixture(scope="module")
def sqlite(lab: LabBench) -> Iterator[tuple[LabDatabase, RunningDaemon]]:
    with databases.open_database(lab, SQLITE) as database, databases.daemon(lab, database) as daemon:
        yield database, daemon


@pytest.fixture(scope="module")
def server(lab: LabBench) -> Iterator[PostgreSQL]:
    """A PostgreSQL with the sample, that can be stopped."""
    needs.require("PostgreSQL", "psycopg")
    with tempfile.TemporaryDirectory(prefix="ewe-pg-", dir=lab.directory) as name:
        Path(name).chmod(0o755)
        made = PostgreSQL(Path(name))
        made.source += " port=5432"
        try:
            made.start()
            databases.load_sample(made.source)
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="module")
def postgresql(lab: LabBench, server: PostgreSQL) -> Iterator[tuple[LabDatabase, RunningDaemon]]:
    database = databases.with_report(LabDatabase(POSTGRESQL, server.source))
    with databases.daemon(lab, database) as daemon:
        yield database, daemon


def get(url: str) -> tuple[int, str, bytes]:
    """Return the status, the head and the body."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=60) as answer:
            return answer.status, str(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, str(error.headers), error.read()


def needed(scenario: Scenario, database: LabDatabase) -> None:
    """Skip the test if the scenario cannot run here."""
    if why := scenario.why_missing(database):
        needs.left_out(why)


def check_page(lab: LabBench, scenario: Scenario, database: LabDatabase, daemon: RunningDaemon) -> None:
    """Ask under one model by static and dynamic SQL, twice each, so that a connection may have been kept."""
    needed(scenario, database)
    with (
        reports.start_scenario(
            lab, scenario, database, daemon, ServerUnderTest(scenario.name, model="thread")
        ) as (
            found,
            path,
        ),
        lab.start(found, lab.site([])) as running,
    ):
        for sql in scenario.sql * 2:
            status, head, body = get(running.url.rstrip("/") + reports.report_url(path, sql))
            assert (status, hashlib.sha256(body).hexdigest()) == (200, database.digest), (sql, body[:300])
            told = CPU_TIMING.search(f"\r\n{head}".replace("\n", "\r\n").replace("\r\r", "\r").encode())
            assert told is not None and float(told[2]) > 0, head
            assert "con-wall;dur=" in head
        if scenario.keeps != reports.NONE and scenario.gateway == LIBCGI:
            assert float(told[1]) == 0.0  # the connection was kept


@pytest.mark.parametrize("name", NAMES)
def test_every_scenario_gives_the_page_from_sqlite(
    name: str, lab: LabBench, sqlite: tuple[LabDatabase, RunningDaemon]
) -> None:
    check_page(lab, BY_NAME[name], *sqlite)


@pytest.mark.parametrize("name", NAMES)
def test_every_scenario_gives_the_page_from_postgresql(
    name: str,
    lab: LabBench,
    sqlite: tuple[LabDatabase, RunningDaemon],
    postgresql: tuple[LabDatabase, RunningDaemon],
) -> None:
    assert postgresql[0].digest == sqlite[0].digest
    check_page(lab, BY_NAME[name], *postgresql)


@pytest.mark.parametrize("model", MODELS)
def test_the_page_under_each_model(
    model: str, lab: LabBench, sqlite: tuple[LabDatabase, RunningDaemon]
) -> None:
    database, daemon = sqlite
    in_process, cgi = BY_NAME["in process, daemon"], BY_NAME["7 CGI, daemon"]
    with (
        reports.start_scenario(lab, in_process, database, daemon, ServerUnderTest("both", model=model)) as (
            found,
            library,
        ),
        reports.start_scenario(lab, cgi, database, daemon, found) as (both, program),
        lab.start(both, lab.site([])) as running,
    ):
        for path in (library, program, library):
            status, _, body = get(running.url.rstrip("/") + path)
            assert (status, hashlib.sha256(body).hexdigest()) == (200, database.digest), path


@pytest.mark.parametrize("name", KEPT[:2])
def test_threads_share_what_a_library_keeps(
    name: str, lab: LabBench, sqlite: tuple[LabDatabase, RunningDaemon]
) -> None:
    database, daemon = sqlite
    with (
        reports.start_scenario(
            lab, BY_NAME[name], database, daemon, ServerUnderTest(name, model="thread")
        ) as (
            found,
            path,
        ),
        lab.start(found, lab.site([])) as running,
        ThreadPoolExecutor(8) as pool,
    ):
        urls = [running.url.rstrip("/") + reports.report_url(path, sql) for sql in (STATIC, DYNAMIC)] * 12
        answers = list(pool.map(get, urls))
    assert {hashlib.sha256(body).hexdigest() for _, _, body in answers} == {database.digest}
    if name == "6 in process, one connection":  # initfunc() has made it, and no thread makes another
        assert [head for _, head, _ in answers if "con;dur=0.000," not in head] == []


@pytest.mark.parametrize(
    ("name", "kind"), [(name, (SQLITE, POSTGRESQL)[number % 2]) for number, name in enumerate(NAMES)]
)
def test_without_a_database_the_answer_is_503(name: str, kind: str, lab: LabBench, tmp_path: Path) -> None:
    scenario = BY_NAME[name]
    gone = (
        f"host={tmp_path} port=5432 user=nobody dbname=none" if kind == POSTGRESQL else f"{tmp_path}/gone.db"
    )
    database = LabDatabase(kind, gone)
    needed(scenario, database)
    with (
        reports.start_scenario(lab, scenario, database, NO_DAEMON, ServerUnderTest(name, model="thread")) as (
            found,
            path,
        ),
        lab.start(found, lab.site([])) as running,
    ):
        status, head, body = get(running.url.rstrip("/") + path)
    assert (status, body) == (503, DOWN)
    assert "text/plain" in head
    assert list(tmp_path.iterdir()) == []  # no driver has made the file


def test_a_connection_that_cannot_be_made_read_only_runs_no_statement(
    monkeypatch: pytest.MonkeyPatch, lab: LabBench, sqlite: tuple[LabDatabase, RunningDaemon]
) -> None:
    database, daemon = sqlite
    scenario = BY_NAME["2 CGI, ODBC"]
    needed(scenario, database)
    monkeypatch.setattr(reports, "READ_ONLY_STATEMENT", "nonsense")
    tested = ServerUnderTest(scenario.name, model="thread")
    with (
        reports.start_scenario(lab, scenario, database, daemon, tested) as (found, path),
        lab.start(found, lab.site([])) as running,
    ):
        status, _, body = get(running.url.rstrip("/") + path)
    assert (status, body) == (503, DOWN)


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_connection_is_made_again(
    name: str, lab: LabBench, server: PostgreSQL, postgresql: tuple[LabDatabase, RunningDaemon]
) -> None:
    database, daemon = postgresql
    needed(BY_NAME[name], database)
    with (
        reports.start_scenario(
            lab, BY_NAME[name], database, daemon, ServerUnderTest(name, model="thread")
        ) as (
            found,
            path,
        ),
        lab.start(found, lab.site([])) as running,
    ):
        url = running.url.rstrip("/") + path
        assert get(url)[0] == 200
        server.stop()
        try:
            assert get(url)[::2] == (503, DOWN)
        finally:
            server.start()
        assert hashlib.sha256(get(url)[2]).hexdigest() == database.digest
        server.stop()
        server.start()  # a restart that no request has noticed
        assert hashlib.sha256(get(url)[2]).hexdigest() == database.digest


BAD = (
    "nonsense",
    "SELECT address FROM log",
    "SELECT address, 1, 2 FROM log",
    "SELECT address, 1 FROM nothing",
    "DELETE FROM log",
    "\0",
    "x" * 5000,
)
TABLES = BAD[1:3]  # which the daemon makes of any columns


def run_by_hand(program: Path, statement: str) -> tuple[bytes, bytes, int]:
    """Run a CGI program; return the first line of its head, its body and the lines for the log."""
    query = f"sql={quote(statement)}" if statement else ""
    done = subprocess.run([program], env={"QUERY_STRING": query}, capture_output=True, timeout=170)
    head, _, body = done.stdout.partition(b"\r\n\r\n")
    return head.partition(b"\r\n")[0], body, done.stderr.count(b"\n")


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize("name", ["1 CGI, embedded SQL", "2 CGI, ODBC", "7 CGI, daemon"])
def test_a_wrong_statement_is_an_error_and_changes_nothing(
    name: str, kind: str, lab: LabBench, request: pytest.FixtureRequest
) -> None:
    database, daemon = request.getfixturevalue(kind)
    scenario = BY_NAME[name]
    needed(scenario, database)
    program = reports.build_program(lab, scenario, database, daemon)
    wrong = [each for each in BAD if scenario.through != reports.DAEMON or each not in TABLES]
    if scenario.part(database) == "ecpg":
        wrong.remove(TABLES[0])  # embedded SQL leaves the second variable as it was
    failed = (b"Status: 500 Internal Server Error", WRONG, 1)
    assert {each[:40]: run_by_hand(program, each) for each in wrong} == {each[:40]: failed for each in wrong}
    assert hashlib.sha256(run_by_hand(program, "")[1]).hexdigest() == database.digest


@pytest.mark.parametrize("name", ["3 in process, a connection each", "X-Switch, kept connection"])
def test_a_wrong_statement_in_a_process_that_stays(
    name: str, lab: LabBench, postgresql: tuple[LabDatabase, RunningDaemon]
) -> None:
    database, daemon = postgresql
    needed(BY_NAME[name], database)
    with (
        reports.start_scenario(
            lab, BY_NAME[name], database, daemon, ServerUnderTest(name, model="thread")
        ) as (
            found,
            path,
        ),
        lab.start(found, lab.site([])) as running,
    ):
        url = running.url.rstrip("/") + path
        for statement in ("nonsense", "DELETE FROM log"):
            assert get(f"{url}?sql={quote(statement)}")[::2] == (500, WRONG), statement
        assert hashlib.sha256(get(url)[2]).hexdigest() == database.digest


def test_what_lacks_a_package_is_left_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    database = LabDatabase(POSTGRESQL, "")
    monkeypatch.setattr(reports.gateways, "why_no_libcgi", lambda: "")
    monkeypatch.setattr(
        reports, "NEEDED_PACKAGES", {name: ("/none", of[1]) for name, of in reports.NEEDED_PACKAGES.items()}
    )
    monkeypatch.setattr(reports, "odbc_driver_of", lambda name: "")
    monkeypatch.setattr(reports, "find_tool", lambda name: None)
    monkeypatch.setattr(reports.compiled, "why_missing", lambda: "")
    found = {
        scenario.name: scenario.why_missing(database).partition("left out: ")[2] for scenario in SCENARIOS
    }
    assert found == {
        "1 CGI, embedded SQL": "apt install libecpg-dev",
        "2 CGI, ODBC": "apt install unixodbc-dev odbc-postgresql",
        "3 in process, a connection each": "apt install libpq-dev",
        "5 in process, pool": "apt install libpq-dev",
        "6 in process, one connection": "apt install libpq-dev",
        "7 CGI, daemon": "",
        "in process, daemon": "",
        "FastCGI, kept connection": "apt install libpq-dev",
        "X-Switch, kept connection": "apt install php-cgi",
    }
    monkeypatch.setattr(reports.gateways, "why_no_libcgi", lambda: "LibCGI is not built")
    assert BY_NAME["in process, daemon"].why_missing(database) == (
        "in process, daemon on PostgreSQL is left out: LibCGI is not built"
    )
    assert {each.gateway for each in SCENARIOS} >= {CGI, LIBCGI}
