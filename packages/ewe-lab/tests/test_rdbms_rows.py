"""The figures of the RDBMS paper, made again."""

from __future__ import annotations

import hashlib
import http.client
import itertools
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lab_bench import quick_lab
from support.known_server import BODY, KnownServers

from ewe.database import access_log
from ewe_lab import cli
from ewe_lab.bench.experiment import Chart, ServedPath
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.experiments import r_c2, r_f5, r_f7, r_f8, r_f9, r_t1
from ewe_lab.experiments.catalog import CATALOG
from ewe_lab.experiments.r_f8 import column_of
from ewe_lab.load.http_clients import PingResult, run_clients, timings_in
from ewe_lab.load.http_pinger import sample_of
from ewe_lab.report import fit
from ewe_lab.report.charts import draw
from ewe_lab.stacks import database_ways, databases, report_servers, sessions
from ewe_lab.stacks.database_ways import (
    CGI_DAEMON,
    DATASETTE,
    EMBEDDED,
    IN_PROCESS,
    ODBC,
    SERVER_API,
    TYPE_2,
    WAYS,
)
from ewe_lab.stacks.databases import POSTGRESQL, SQLITE, LabDatabase
from ewe_lab.stacks.servers import StartedServer

DIGEST = hashlib.sha256(BODY).hexdigest()


@pytest.fixture(scope="module")
def known() -> Iterator[KnownServers]:
    servers = KnownServers()
    yield servers
    servers.close()


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the databases have 300 rows, so that a report takes no time."""
    monkeypatch.setattr(databases, "sample", lambda: access_log.sample(300))


def cell(
    name: str, column: str, figure: float, value: str = "extra.response", x: float | None = None
) -> Cell:
    """Return a cell that was measured."""
    part = value.removeprefix("extra.")
    return Cell(name, column, x, value, samples=[Sample("pinger", 1.0, extra={part: figure})])


# The pinger


@pytest.mark.starts_processes
def test_the_pinger_measures_each_request_over_a_connection_of_its_own(known: KnownServers) -> None:
    found = run_clients(known("delay"), 3, 2, DIGEST)
    assert found.errors == {}
    assert len(found.connect) == len(found.response) == 6
    assert min(found.response) >= 0.05 > min(found.connect)  # the server waits after the connection is there
    assert 6 * len(BODY) < found.received < 6 * (len(BODY) + 200)


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        ("status", "status"),
        ("cut", "res"),
        ("cut-head", "res"),
        ("until-close", ""),
        ("chunked", ""),
        ("cut-chunk", "res"),
        ("nonsense", "other"),
    ],
)
def test_an_answer_is_whole_or_an_error(known: KnownServers, behaviour: str, kind: str) -> None:
    found = run_clients(known(behaviour), 1, 2, DIGEST)
    if not kind:
        assert (found.errors, len(found.response)) == ({}, 2)
        return
    assert (found.errors, found.response) == ({kind: 2}, [])
    with pytest.raises(LabError, match=f"no request was answered as it should be: 2 {kind}"):
        sample_of(found, 1, 2, 0.0)


@pytest.mark.starts_processes
def test_other_bytes_are_an_error(known: KnownServers) -> None:
    assert run_clients(known("plain"), 1, 1, hashlib.sha256(b"other").hexdigest()).errors == {"other": 1}


def test_the_times_that_a_program_tells() -> None:
    head = b"Server-Timing: con;dur=1.5, ret;dur=2\r\nServer-timing: con-wall;dur=3, ret-wall;dur=4\r\n"
    assert dict(timings_in(b"HTTP/1.1 200 OK\r\n" + head)) == {
        "con": 1.5,
        "ret": 2,
        "con_wall": 3,
        "ret_wall": 4,
    }
    assert dict(timings_in(b"HTTP/1.1 200 OK\r\nServer-Timing: db;dur=1\r\n")) == {}


def test_a_sample_has_means_and_the_medians_of_what_was_told() -> None:
    found = PingResult(2.0, [0.001, 0.003], [0.01, 0.03], {"con": [1, 2, 9]}, {"ct": 1}, 10, 0.5)
    sample = sample_of(found, 3, 1, cpu_s=0.4)
    assert sample.extra == pytest.approx({"response": 20, "connect": 2, "duration": 2, "con": 2})
    assert (sample.requests, sample.replies, sample.client, sample.micros) == (3, 2, 0.25, 200_000)


# The fit


def test_a_parabola_is_found_again() -> None:
    curve = fit.fit_quadratic([(x, 3 + 2 * x - 0.5 * x * x) for x in (1, 2, 4, 16)])
    assert curve is not None
    assert (curve.a, curve.b, curve.c, curve.share) == pytest.approx((3, 2, -0.5, 1))


def test_noise_is_not_explained() -> None:
    curve = fit.fit_quadratic([(0, 0), (1, 1), (2, 0), (3, 1), (0, 1), (1, 0), (2, 1), (3, 0)])
    assert curve is not None and curve(1.5) == pytest.approx(0.5) and curve.share < 0.01


@pytest.mark.parametrize("points", [[], [(1, 2)], [(1, 2), (1, 3), (4, 5)]])
def test_too_few_points_have_no_curve(points: list[tuple[float, float]]) -> None:
    assert fit.fit_quadratic(points) is None
    assert fit.curve_points(points) == points


def test_a_scatter_plot_has_a_mark_for_each_figure_and_a_curve() -> None:
    cells = [cell("one", "c", y, x=x) for x, y in ((1, 1), (4, 9), (8, 8), (16, 30))]
    table = ExperimentTable("R-F5", cells=cells)
    scatter, joined = (
        draw(Chart(kind, "Times", x="clients", y="ms"), table, None, "s").svg for kind in ("scatter", "lines")
    )
    assert scatter.count(' mark"') == joined.count(' mark"') == 4
    assert scatter.count("L") > joined.count("L") + 10


# R-F5, R-F7, R-F8: the ways


@contextmanager
def running_ways(
    lab: object, database: LabDatabase, daemon: object, names: object
) -> Iterator[tuple[dict, dict]]:
    """Two ways that run, and one that does not."""
    server = StartedServer(1, "http://127.0.0.1:1/", "ewe")
    ways = {EMBEDDED: ServedPath(server, "/1"), CGI_DAEMON: ServedPath(server, "/7")}
    yield ways, {IN_PROCESS: "it does not start"}


@pytest.fixture
def asked_ways(monkeypatch: pytest.MonkeyPatch, few_rows: None) -> list[tuple[str, int]]:
    """Have R-F5 measure two ways at full speed, with answers at once; return the list of what it asks."""
    asked: list[tuple[str, int]] = []

    def counted(lab: object, server: object, path: str, clients: int, requests: int, digest: str) -> Sample:
        assert digest
        asked.append((path, clients))
        return Sample("pinger", 1.0, extra={"response": 1.0})

    monkeypatch.setattr(r_f5, "start_ways", running_ways)
    monkeypatch.setattr(r_f5, "ping", counted)
    monkeypatch.setattr(r_f5, "LINKS", {"full speed": ""})
    monkeypatch.setattr(databases, "why_missing", lambda name: "" if name == SQLITE else "no such thing")
    return asked


@pytest.mark.starts_processes
def test_a_way_that_does_not_answer_the_first_request_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, asked_ways: list[tuple[str, int]]
) -> None:
    answer = r_f5.ping

    def refused(lab: Any, server: Any, path: str, **how: Any) -> Sample:
        if path == "/1":
            raise LabError("no request was answered as it should be: 4 status")
        return answer(lab, server, path, **how)

    monkeypatch.setattr(r_f5, "ping", refused)
    with quick_lab() as lab:
        cells = list(r_f5.run(lab))
    failures = [each.failure for each in cells if each.server == r_f5.FIRST]
    assert failures == ["no request was answered as it should be: 4 status"] * len(r_f5.QUICK_CLIENT_COUNTS)
    assert all(each.samples for each in cells if each.server == r_f5.SECOND) and len(asked_ways) > 1


@pytest.mark.starts_processes
def test_every_number_of_clients_is_measured_for_every_way(asked_ways: list[tuple[str, int]]) -> None:
    asked = asked_ways
    with quick_lab() as lab:
        cells = list(r_f5.run(lab))
        assert f"{POSTGRESQL} is left out: no such thing" in lab.notes
    assert asked[:2] == [("/1", r_f5.WARM_UP_CLIENTS), ("/7", r_f5.WARM_UP_CLIENTS)]
    assert sorted(asked[2:]) == sorted(itertools.product(("/1", "/7"), r_f5.QUICK_CLIENT_COUNTS))
    assert {each.failure for each in cells if each.server == r_f5.THIRD} == {"it does not start"}
    assert [each.x for each in cells if each.server == r_f5.FIRST] == list(r_f5.QUICK_CLIENT_COUNTS)


def times(column: str, *by_count: tuple[float, float, float]) -> list[Cell]:
    """Return the cells of scenarios 1, 2 and 3 for 1, 16 ... clients."""
    return [
        cell(row, column, time, x=x)
        for x, figures in zip((1, 16), by_count, strict=True)
        for row, time in zip((r_f5.FIRST, r_f5.SECOND, r_f5.THIRD), figures, strict=True)
    ]


@pytest.mark.parametrize(
    ("few", "many", "word"),
    [
        ((30, 20, 10), (300, 200, 100), "holds"),
        ((30, 20, 10), (21, 20.5, 20), "holds in part"),  # alike, and the gap closes
        ((10, 20, 30), (100, 200, 300), "does not hold"),
    ],
)
def test_the_claim_of_figure_5(few: tuple, many: tuple, word: str) -> None:
    table = ExperimentTable("R-F5", cells=times(r_f5.column_of(POSTGRESQL, "full speed"), few, many))
    finding = r_f5.check(table)
    assert finding.word == word
    assert f"{many[0] / many[1]:.2f} and {many[0] / many[2]:.2f}" in finding.sentence
    assert r_f5.check(ExperimentTable("R-F5")).word == "not testable"
    # One number of clients shows no growth: only the order is judged
    of_one_count = replace(table, cells=[each for each in table.cells if each.x == 16])
    assert r_f5.check(of_one_count).word == ("does not hold" if many == (100, 200, 300) else "holds")


@pytest.mark.parametrize(
    ("sqlite", "postgresql", "word"),
    [(10, 10, "holds"), (10, 30, "holds in part"), (10, 4, "holds in part"), (30, 30, "does not hold")],
)
def test_the_claim_of_figure_7(sqlite: float, postgresql: float, word: str) -> None:
    cells = [cell(name, place, 12) for name in SERVER_API for place in (SQLITE, POSTGRESQL)]
    cells += [cell(CGI_DAEMON, SQLITE, sqlite), cell(CGI_DAEMON, POSTGRESQL, postgresql)]
    assert r_f7.check(ExperimentTable("R-F7", cells=cells)).word == word
    assert r_f7.check(ExperimentTable("R-F7", cells=cells[:-2])).word == "not testable"


@pytest.mark.parametrize(
    ("con", "wall", "word"), [(9, 30, "holds"), (0.1, 30, "holds in part"), (0.1, 1, "does not hold")]
)
def test_the_claim_of_figure_8(con: float, wall: float, word: str) -> None:
    cells = []
    for name, connects in (
        (EMBEDDED, 1.0 if con > 1 else 2.0),
        (ODBC, con),
        (TYPE_2, con),
        (CGI_DAEMON, 0.1),
    ):
        cells.append(cell(name, column_of(SQLITE, r_f8.CON), connects, "extra.con"))
        cells.append(cell(name, column_of(SQLITE, r_f8.RET), 10, "extra.ret"))
        waits = wall if name == CGI_DAEMON else 10
        cells.append(cell(name, column_of(SQLITE, r_f8.RET, "wall"), waits, "extra.ret_wall"))
    cells.append(cell(r_f8.ADDED_TIME_ROW, column_of(SQLITE, "a call"), 140, "extra.micros"))
    finding = r_f8.check(ExperimentTable("R-F8", cells=cells))
    assert finding.word == word
    assert "the daemon adds at most 140 µs to a call (the target is 150 µs)" in finding.sentence
    without_daemon = [each for each in cells if each.server != CGI_DAEMON]
    word_without = "holds" if con > 1 else "does not hold"
    assert r_f8.check(ExperimentTable("R-F8", cells=without_daemon)).word == word_without
    without_ret = [each for each in cells if (each.server, each.value) != (ODBC, "extra.ret")]
    assert (
        "connecting is of the CPU time 1 " in r_f8.check(ExperimentTable("R-F8", cells=without_ret)).sentence
    )


@pytest.mark.starts_processes
def test_what_the_daemon_adds(monkeypatch: pytest.MonkeyPatch, few_rows: None) -> None:
    monkeypatch.setattr(r_f8, "CALLS_PER_BLOCK", (20, 20))
    with (
        quick_lab() as lab,
        databases.open_database(lab, SQLITE) as database,
        databases.daemon(lab, database) as daemon,
    ):
        found = r_f8.measure_added_time(lab, database, daemon)
        assert found.failure == "" and len(found.samples) == 1
        assert all(sample.extra["daemon"] > sample.extra["direct"] > 0 for sample in found.samples)
        monkeypatch.setattr(r_f8, "fragments", lambda *of: [b"something else"])
        assert (
            r_f8.measure_added_time(lab, database, daemon).failure
            == "the daemon's answer differs from the driver's"
        )


@pytest.mark.starts_processes
@pytest.mark.needs("PostgreSQL", "psycopg")
def test_both_databases_have_the_same_report(few_rows: None) -> None:
    with (
        quick_lab() as lab,
        databases.open_database(lab, SQLITE) as sqlite,
        databases.open_database(lab, POSTGRESQL) as postgresql,
    ):
        assert postgresql.digest == sqlite.digest
        assert postgresql.length == sqlite.length > 500
        assert str(postgresql.port) in postgresql.jdbc


def test_postgresql_that_is_starting_up_has_time_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class StartingUp(Exception):
        """As psycopg.OperationalError."""

    def connect(*_: object, **__: object) -> None:
        raise StartingUp("the database system is starting up")

    pauses: list[float] = []
    module = SimpleNamespace(connect=connect, OperationalError=StartingUp, Error=StartingUp)
    monkeypatch.setitem(sys.modules, "psycopg", module)
    monkeypatch.setattr(databases, "time", SimpleNamespace(sleep=pauses.append))
    with pytest.raises(LabError, match="PostgreSQL does not start"):
        databases.load_sample("dbname=postgres")
    assert sum(pauses) > 5


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    sqlite, postgresql = LabDatabase(SQLITE, "x"), LabDatabase(POSTGRESQL, "x")
    monkeypatch.setattr(report_servers, "find_spec", lambda name: None)
    assert WAYS[DATASETTE].why_missing(sqlite) == f"{DATASETTE} on SQLite is left out: pip install datasette"
    assert "SQLite alone" in WAYS[DATASETTE].why_missing(postgresql)
    assert WAYS[TYPE_2].why_missing(postgresql).endswith("its driver is that of SQLite")
    monkeypatch.setattr(report_servers, "find_tool", lambda name: None)
    assert WAYS[database_ways.FPM].why_missing(sqlite).endswith("apt install nginx-light")
    monkeypatch.setattr(databases, "server_programs", str)
    assert databases.why_missing(POSTGRESQL) == "apt install postgresql"


def test_a_postgresql_without_its_server_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of the clients has psql in a directory of the same name."""
    monkeypatch.setattr(databases, "POSTGRES_DIRECTORY", str(tmp_path))
    for version, program in (("16", "psql"), ("9.6", "initdb"), ("15", "initdb")):
        (tmp_path / version / "bin").mkdir(parents=True)
        (tmp_path / version / "bin" / program).touch()
    assert databases.server_programs() == f"{tmp_path}/15/bin"
    for version in ("9.6", "15"):
        (tmp_path / version / "bin" / "initdb").unlink()
    assert databases.why_missing(POSTGRESQL) == "apt install postgresql"


def test_root_needs_an_account_for_postgresql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(databases, "ACCOUNT", "no-such-account")
    with pytest.raises(LabError, match="there is no account no-such-account"):
        databases.as_account(tmp_path)


# R-F9: a session's state


@pytest.mark.starts_processes
def test_sessions_are_counted_in_every_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(r_f9, "ROUND_COUNTS", (2, 2))
    monkeypatch.setattr(r_f9, "REQUESTS_PER_TIER", (3, 3))
    with quick_lab() as lab:
        cells = list(r_f9.run(lab))
    assert [each.failure for each in cells] == [""] * len(r_f9.ROWS)
    assert all(len(each.samples) == 2 and (each.median or 0) > 0 for each in cells)


@pytest.mark.starts_processes
def test_a_tier_that_loses_its_state_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(connection: http.client.HTTPConnection, tier: r_f9.MeasuredTier) -> None:
        tier.cookie, tier.visits = "", 7
        visit(connection, tier)

    visit = r_f9.visit
    monkeypatch.setattr(r_f9, "ROWS", {"in the process": "memory"})
    monkeypatch.setattr(r_f9, "visit", forgetful)
    with quick_lab() as lab:
        (found,) = r_f9.run(lab)
    assert (
        found.failure
        == "/state/memory lost its state: 200, b\"<p>Visit 1. <a href='?visits=1'>Again</a></p>\\n\""
    )


def test_a_table_of_sessions_that_cannot_be_made_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def full_disk(lab: object) -> Iterator[None]:
        raise sqlite3.OperationalError("database or disk is full")
        yield

    monkeypatch.setattr(r_f9, "run_application", full_disk)
    assert {each.failure for each in r_f9.run(SimpleNamespace(notes=[]))} == {"database or disk is full"}


def test_a_forged_cookie_counts_from_the_start() -> None:
    good = sessions.sign(41)
    assert sessions.checked_count(good) == 41
    assert sessions.checked_count("99" + good[2:]) == 0
    assert sessions.checked_count("") == sessions.checked_count("x.y") == 0
    count, headers = sessions.count_visit("cookie", {"HTTP_COOKIE": f"a=b; session={good}"})
    assert count == 42 and sessions.sign(42) in headers[0][1]


def test_a_name_of_the_visitors_own_is_not_a_files_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv(sessions.SESSIONS, str(tmp_path))
    count, headers = sessions.count_visit("file", {"HTTP_COOKIE": "session=..secret"})
    assert count == 1 and "secret" not in headers[0][1]


@pytest.mark.parametrize(
    ("process", "file", "word"),
    [(10, 20, "holds"), (19, 20, "holds in part"), (25, 20, "holds in part"), (50, 40, "does not hold")],
)
def test_the_claim_of_figure_9(process: float, file: float, word: str) -> None:
    figures = dict(zip(r_f9.TIERS, (9, process, file, 30), strict=True))
    cells = [cell(name, r_f9.COLUMN, figure, "extra.micros") for name, figure in figures.items()]
    assert r_f9.check(ExperimentTable("R-F9", cells=cells)).word == word


# R-T1 and R-C2


@pytest.mark.parametrize(
    ("api", "fastcgi", "servlet", "word", "marks"),
    [
        (50, 200, 400, "holds", [1, 3, 2, 2]),
        (50, 200, 1200, "holds in part", [1, 3, 1, 2]),
        (1500, 200, 1200, "does not hold", [1, 1, 1, 2]),
    ],
)
def test_marks_for_performance(
    api: float, fastcgi: float, servlet: float, word: str, marks: list[int]
) -> None:
    found = {kind: r_t1.cells_of(kind) for kind in r_t1.KINDS}
    for (_, timed), micros in zip(found.values(), (1000, api, servlet, fastcgi), strict=True):
        timed.samples.append(Sample("pinger", 1.0, extra={"micros": micros}))
    r_t1.give_marks(found)
    assert [marked.median for marked, _ in found.values()] == marks
    assert [marked.paper for marked, _ in found.values()] == [1, 3, 2, 2]
    cells = [each for pair in found.values() for each in pair]
    assert r_t1.check(ExperimentTable("R-T1", cells=cells)).word == word


def test_a_kind_of_gateway_is_not_faster_by_chance() -> None:
    cells = [cell(kind, r_t1.TIMES, 50, "extra.micros") for kind in (r_t1.API, r_t1.CGI, r_t1.SERVLET)]
    for each, times_us in zip(cells[1:], ((940, 960, 950), (800, 1220, 850)), strict=True):
        each.samples = [Sample("pinger", 0, extra={"micros": micros}) for micros in times_us]
    found = r_t1.check(ExperimentTable("R-T1", cells=cells))
    assert found.word == "holds in part"
    assert "server API 19.0, servlet 1.1 (may be chance)" in found.sentence


@pytest.mark.parametrize(
    ("busy", "idle", "word"), [(2, 4, "holds"), (1, 4, "holds in part"), (1, 1, "does not hold")]
)
def test_the_claim_about_daemons(busy: float, idle: float, word: str) -> None:
    cells = []
    for column in r_c2.COLUMNS:
        gain = idle if r_c2.IDLE in column else busy
        for count, rate in ((1, 10), (4, round(10 * gain))):
            cells.append(Cell("daemons", column, count, samples=[Sample("pinger", 1.0, replies=rate)]))
    assert r_c2.check(ExperimentTable("R-C2", cells=cells)).word == word


# The set of all


def test_a_document_stands_for_its_experiments() -> None:
    rows = [id for id in CATALOG if id.startswith("R-")]
    assert len(rows) >= 7
    assert cli.expand_documents(["R"], CATALOG) == cli.expand_documents(["r"], CATALOG) == rows
    assert cli.expand_documents(["RDBMS", "E-T2"], CATALOG) == [*rows, "E-T2"]
    assert cli.expand_documents(["GROW", "nothing"], CATALOG) == ["GROW", "nothing"]
