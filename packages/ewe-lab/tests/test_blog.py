"""The load of a blog (T-LD): the blog of SQL pages, PHP sites, the phases, and the sentences about them."""

from __future__ import annotations

import os
import re
import sqlite3
import urllib.request
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from lab_bench import quick_lab, tried
from lab_tables import times

from ewe_lab.bench.processes import LabError, processes
from ewe_lab.bench.results import Cell, ExperimentTable, Results, Sample, Second, Usage
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE
from ewe_lab.experiments import t_ld, visitors
from ewe_lab.experiments.catalog import CATALOG
from ewe_lab.experiments.t_ld import CPU, MEMORY, PREFORK, SQL, WORDPRESS
from ewe_lab.experiments.visitors import PARTS, PHASES
from ewe_lab.report import phases, report
from ewe_lab.stacks import databases, mariadb, sql_blog, wordpress
from ewe_lab.stacks.blog import POSTS, POSTS_ON_MAIN_PAGE, posts
from ewe_lab.stacks.databases import POSTGRESQL, SQLITE
from ewe_lab.stacks.sql_blog import BlogSetup
from ewe_lab.stacks.ways import ServingStack, serve_stack

SECONDS = 6.0
LEGEND = "Phase by phase, times from when a request was due"


def read(url: str) -> str:
    """Return the text of a page."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=20) as answer:
        return str(answer.read().decode())


# The blog


def test_the_blog_is_the_same_each_time() -> None:
    found = posts()
    assert found == posts() and len(found) == POSTS
    assert len({post.title for post in found}) > POSTS / 2
    assert all(post.comments and post.paragraphs for post in found)


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    "blog",
    [
        BlogSetup("asyncio"),
        pytest.param(
            BlogSetup("prefork", POSTGRESQL, ("--workers", "2")),
            marks=pytest.mark.needs("PostgreSQL", "psycopg"),
        ),
    ],
    ids=str,
)
def test_the_pages_show_the_posts(blog: BlogSetup) -> None:
    with quick_lab() as lab, blog.serve(lab) as (server, database, paths):
        assert bool(database) is (blog.database == POSTGRESQL) and len(server.other_pids) == 1
        main, post = (read(server.url.rstrip("/") + path) for path in paths)
        newest = posts()[-1]
        for each in posts()[-POSTS_ON_MAIN_PAGE:]:
            assert each.title in main
        assert posts()[0].title not in main
        assert newest.paragraphs[-1] in post
        assert all(comment.text in post for comment in newest.comments)


def test_a_blog_that_cannot_be_written_is_an_error_of_the_lab(tmp_path: Path) -> None:
    with (
        pytest.raises(LabError, match="SQLite: unable to open database file"),
        sql_blog.fill_database(SimpleNamespace(), SQLITE, tmp_path / "nowhere"),
    ):
        pass


def test_what_the_blog_of_sql_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "server_programs", str)
    lacking = BlogSetup("asyncio", POSTGRESQL)
    assert lacking.why_missing == "asyncio PostgreSQL is left out: apt install postgresql"
    with quick_lab() as lab, pytest.raises(LabError, match="apt install postgresql"), lacking.serve(lab):
        pass
    monkeypatch.setattr(sql_blog, "find_spec", lambda name: None)
    assert "pip install 'ewe-server[pages]'" in BlogSetup("asyncio").why_missing
    monkeypatch.setattr(sql_blog, "PACKAGE", Path("/nowhere/ewe"))
    with pytest.raises(LabError, match="sample blog is missing"):
        sql_blog.sample()


# A site of PHP files, as WordPress is one

SITES = (
    ServingStack("apache-prefork", "mod_php", "php"),
    ServingStack("apache-event", "php-fpm", "php"),
    ServingStack("nginx", "php-fpm", "php"),
    ServingStack("lighttpd", "php-fpm", "php"),
    ServingStack("ewe", "php-fpm", "php"),
    ServingStack("ewe", "xswitch", "php"),
)
PHP = "<?php echo basename(__FILE__), ' ', $_GET['p'] ?? 'none', ' ', $_SERVER['SCRIPT_NAME'], \"\\n\";"


@pytest.mark.starts_processes
@pytest.mark.parametrize("stack", [tried(stack) for stack in SITES])
def test_a_site_of_php_files(stack: ServingStack, tmp_path: Path) -> None:
    with quick_lab() as lab:
        root = lab.directory / "php"
        (root / "more").mkdir(parents=True)
        for name in ("index.php", "page.php", "more/index.php"):
            (root / name).write_text(PHP)
        (root / "style.css").write_text("body {}")
        with serve_stack(lab, stack, root=root) as (server, path):
            assert path == "/"
            assert read(f"{server.url}?p=1") == "index.php 1 /index.php\n"
            assert read(f"{server.url}page.php") == "page.php none /page.php\n"
            assert read(f"{server.url}more/") == "index.php none /more/index.php\n"
            assert read(f"{server.url}style.css") == "body {}"


# WordPress and MariaDB


@pytest.mark.starts_processes
def test_what_wordpress_lacks_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(wordpress, "PACKAGE", tmp_path)
    monkeypatch.setattr(wordpress, "THEMES", tmp_path / "themes")
    monkeypatch.setattr(wordpress, "find_tool", lambda name: None)
    monkeypatch.setattr(mariadb, "find_tool", lambda name: None)
    assert wordpress.missing_packages() == "wordpress mariadb-server php-cli php-mysql"
    (tmp_path / "wp-load.php").write_text("")
    assert wordpress.missing_packages().split()[0] == "wordpress-theme-twentytwentythree"
    with quick_lab() as lab:
        with pytest.raises(LabError, match=r"^WordPress is left out: apt install"), wordpress.wordpress(lab):
            pass
        with pytest.raises(LabError, match=r"^MariaDB is missing: apt install mariadb-server$"):
            mariadb.mariadb(lab, "blog").__enter__()
        monkeypatch.setattr(mariadb, "find_tool", lambda name: "/bin/false")
        with pytest.raises(LabError, match="mariadb-install-db failed: it said nothing"):
            mariadb.mariadb(lab, "blog").__enter__()


def test_the_configuration_of_wordpress_holds_any_path() -> None:
    database = mariadb.MariaDBServer(1, Path("/tmp/it's \\ here/socket"), "blog", password="secret")
    text = wordpress.configuration(database)
    assert "define('DB_HOST', 'localhost:/tmp/it\\'s \\\\ here/socket');" in text
    assert "WP_HTTP_BLOCK_EXTERNAL', true" in text and "DISABLE_WP_CRON', true" in text
    assert len(set(re.findall(r"_(?:KEY|SALT)', '(\w{64})'", text))) == 8
    assert "secret" not in repr(database)


def test_the_path_of_a_socket_has_a_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mariadb, "find_tool", lambda name: "/bin/true")
    long = tmp_path / ("x" * 90)
    long.mkdir()
    with quick_lab() as lab, monkeypatch.context() as patch:
        patch.setattr(lab, "directory", long)
        with pytest.raises(LabError, match="set TMPDIR to a shorter directory"):
            mariadb.mariadb(lab, "blog").__enter__()


@pytest.mark.starts_processes
@pytest.mark.needs("WordPress", "MariaDB", "php", "php-cgi", "PHP's mysqli")
def test_wordpress_shows_the_posts_and_leaves_nothing_behind() -> None:
    with quick_lab() as lab:
        with (
            wordpress.wordpress(lab) as blog,
            serve_stack(lab, SITES[-1], root=blog.root) as (server, _),
        ):
            assert [each.pid for each in processes() if each.pid in blog.database_pids]
            main, post = read(server.url), read(server.url.rstrip("/") + blog.post)
            assert posts()[-1].title in main and posts()[-POSTS_ON_MAIN_PAGE].title in main
            assert "Hello world" not in main
            assert all(comment.text in post for comment in posts()[-1].comments)
            owner = os.stat(next(lab.directory.glob("mariadb-*/data"))).st_uid
            assert owner or os.geteuid()  # it never runs as root
        assert not [each.pid for each in processes() if each.pid in blog.database_pids]


# The phases


@pytest.fixture
def few_visitors(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Make the phases short and the blogs few; return the capacities that the experiment measures."""
    monkeypatch.setattr(visitors, "QUICK_S", SECONDS)
    monkeypatch.setattr(visitors, "CAPACITY_TIMES_S", (0.5, 0.5))
    monkeypatch.setattr(visitors, "THINK_TIMES_S", (0.1, 0.1))
    monkeypatch.setattr(wordpress, "missing_packages", lambda: "wordpress")
    monkeypatch.setattr(
        sql_blog, "BLOGS", (BlogSetup("asyncio"), BlogSetup("nowhere"), BlogSetup("pool", full=True))
    )
    asked: list[float] = []
    found = visitors.VisitedBlog.capacity

    def capacity(visited: visitors.VisitedBlog) -> float:
        asked.append(found(visited))
        return 20.0

    monkeypatch.setattr(visitors.VisitedBlog, "capacity", capacity)
    return asked


def check_usage(sample: Sample) -> None:
    """Check that each phase has its usage, unless the busy machine took no reading at its begin or its end."""
    assert any(phase.usage for phase in sample.phases)
    begin = 0
    for phase in sample.phases:
        end = begin + round(phase.seconds)
        around = sample.timeline[max(begin - 1, 0) : end]
        assert phase.usage or sum(second.cpu is not None for second in around) < 2, phase
        begin = end


@pytest.mark.starts_processes
def test_visitors_come_in_three_phases(few_visitors: list[float]) -> None:
    with quick_lab() as lab:
        cells = list(t_ld.run(lab))
        notes = " ".join(lab.notes)
    assert len(few_visitors) == 1 and few_visitors[0] > 0
    whole, *others = [cell for cell in cells if cell.server == "asyncio SQLite"]
    assert [cell.failure for cell in (whole, *others)] == [""] * 6
    assert [cell.column for cell in others] == [MEMORY, CPU, *PARTS]
    sample = whole.samples[0]
    assert not sample.errors and sample.replies > 0
    assert whole.load.startswith(
        "4.4/s for 3 s then 20/s for 1 s then 8.8/s for 2 s, at random times, 2 calls"
    )
    assert [phase.seconds for phase in sample.phases] == [SECONDS * share for share, _ in PHASES]
    assert all(phase.replies for phase in sample.phases)
    check_usage(sample)
    rates = [phase.request_rate for phase in sample.phases]
    assert rates[0] < rates[1] > rates[2]
    assert sample.extra["web server"] > 0 and sample.extra["programs"] > 0 and sample.extra["database"] == 0
    assert all(not cell.samples[0].timeline for cell in others)
    assert not any(cell.server == "pool SQLite" for cell in cells)  # in a full run only
    assert ["nowhere" in cell.failure for cell in cells if cell.server == "nowhere SQLite"] == [True]
    for note in ("WordPress is left out: apt install wordpress", "asyncio SQLite answers 20 visitors"):
        assert note in notes
    assert "pages from SQL: a page takes" in notes


def sampled(
    lost: Sequence[int] = (0, 0, 0),
    memory: float = 2e8,
    cost: float = 50.0,
    seconds: int = 6,
    sessions: int = 100,
    cpu: float = 75.0,
) -> Sample:
    """Return a sample with three phases. lost: errors in each; cost: CPU of a page in ms, nine tenths in PHP."""
    parts = [
        Sample("locust", 2.0, 100, 100 - count, errors={"ct": count} if count else {}, response=times(0.05),
               usage=Usage(1.5, memory, 8, 4), sessions=sessions)
        for count in lost
    ]  # fmt: skip
    timeline = [
        Second(at, 10 + at, p50=0.01, p99=0.02, due=12, cpu=0.5, memory=memory) for at in range(seconds)
    ]
    return Sample(
        "locust", float(seconds), 300, 300 - sum(lost), errors={"ct": sum(lost)}, response=times(0.05),
        usage=Usage(4.5, memory, 8, 4), timeline=timeline, phases=parts,
        extra={"web server": cost / 20, "programs": cost * 0.9, "database": cost / 20, "cpu": cpu},
    )  # fmt: skip


def table(**samples: Sample) -> ExperimentTable:
    """Return a table of WordPress, by the names of servers with _ for a space, and of the blog from SQL."""
    names = {"prefork": PREFORK, "event": "event php-fpm", "nginx": "nginx php-fpm", "ewe": "ewe php-fpm",
             "cached": t_ld.PAGE_CACHE}  # fmt: skip
    cells = [Cell(names[name], WORDPRESS, samples=[sample]) for name, sample in samples.items()]
    return ExperimentTable("T-LD", cells=[*cells, Cell("asyncio SQLite", SQL, samples=[sampled(cost=2.0)])])


def test_what_one_sees_is_told() -> None:
    found = table(prefork=sampled((0, 30, 0), 4e8), nginx=sampled(cost=40.0))
    del found.cells[0].samples[0].extra["programs"]  # mod_php is a part of Apache
    found.cells[0].samples[0].extra["web server"] = 47.5
    told = " ".join(t_ld.observations(found.cells))
    assert "WordPress: a page takes 40 ms (nginx php-fpm) to 50 ms (prefork mod_php) of CPU in all." in told
    assert "its part is 36 ms (nginx php-fpm), the web server's 2 ms (nginx php-fpm), the" in told
    assert "No server kept a queue" in told
    assert "memory at its peak is 200 MB (nginx php-fpm) to 400 MB (prefork mod_php)" in told
    assert "Visitors were lost by prefork mod_php (10 %)." in told.replace("\u00a0", " ")
    assert "pages from SQL: a page takes 2 ms (asyncio SQLite) of CPU in all." in told
    assert "A page of WordPress costs 20 times the CPU time" in told
    found.cells[0].samples[0].phases[-1].response = times(2.5)
    told = " ".join(t_ld.observations(found.cells))
    assert "kept the visitors of the third waiting: prefork mod_php (5 s after 100 ms)." in told
    assert not list(t_ld.observations([]))


def test_a_server_without_an_answer_has_no_cpu_time_of_a_page() -> None:
    """It is not the server with the least CPU time, and does not change the ratio of the two blogs."""
    silent = sampled()
    silent.extra.clear()
    found = table(prefork=sampled(), nginx=silent)
    told = " ".join(t_ld.observations(found.cells))
    assert "WordPress: a page takes 50 ms (prefork mod_php) of CPU in all." in told
    assert "A page of WordPress costs 25 times the CPU time" in told
    found.cells[0].samples[0].extra.clear()
    told = " ".join(t_ld.observations(found.cells))
    assert "WordPress: memory at its peak" in told and "times the CPU time" not in told


def test_a_page_from_a_cache_is_compared_with_no_page_that_is_made() -> None:
    told = " ".join(t_ld.observations(table(ewe=sampled(), cached=sampled(cost=0.5)).cells))
    assert "WordPress: a page takes 50 ms (ewe php-fpm) of CPU in all." in told
    assert (
        "its part is 45 ms (ewe php-fpm), the web server's 2.5 ms (ewe php-fpm), the database's 2.5 ms"
        in told
    )
    assert (
        "WordPress: from a page cache, a page takes 500 µs (ewe php-fpm, page cache) of CPU in all." in told
    )
    assert "A page of WordPress costs 25 times the CPU time" in told


def test_each_server_with_wordpress_has_a_chart_of_its_phases() -> None:
    charts = {chart.value for chart in CATALOG["T-LD"].charts if chart.kind == "timeline"}
    assert {each.stack.name for each in t_ld.TESTED_STACKS} <= charts


@pytest.mark.parametrize(
    ("samples", "word"),
    [
        ({"prefork": sampled((0, 30, 0), 4e8, cpu=100), "event": sampled(), "nginx": sampled()}, HOLDS),
        (
            {"prefork": sampled((0, 30, 0), 4e8, cpu=100), "event": sampled(), "nginx": sampled((0, 30, 0))},
            HOLDS,  # of nginx the claim says only that it needs less
        ),
        ({"prefork": sampled((0, 30, 0), 4e8, cpu=90), "event": sampled(), "nginx": sampled()}, IN_PART),
        ({"prefork": sampled((0, 30, 0), 4e8), "event": sampled(), "nginx": sampled()}, IN_PART),
        ({"prefork": sampled(memory=4e8), "event": sampled(), "nginx": sampled()}, IN_PART),
        ({"prefork": sampled(memory=1e8), "event": sampled((0, 9, 0)), "ewe": sampled((0, 50, 0))}, FAILS),
        ({"prefork": sampled(), "ewe": sampled()}, NOT_TESTABLE),
        ({"prefork": sampled((0, 9, 0), 4e8, sessions=19), "nginx": sampled()}, NOT_TESTABLE),
        ({"event": sampled(), "nginx": sampled()}, NOT_TESTABLE),
    ],
)
def test_the_verdict(samples: dict[str, Sample], word: str) -> None:
    assert t_ld.check(table(**samples)).word == word


# The report


def test_the_report_has_the_phases() -> None:
    found = table(prefork=sampled((0, 30, 0), 4e8), nginx=sampled())
    page = report.html(Results("2026-11-22T10:00:00+00:00", "ewe-lab run T-LD", {}, [found]))
    assert "Phase by phase" in page
    assert page.count("phase 2</text>") == 3  # a chart for each server that was measured, and no other
    text = report.text(found, CATALOG["T-LD"])
    lines = text.replace("\u00a0", " ").splitlines()
    assert [line.split()[:4] for line in lines[lines.index(LEGEND) + 2 :][:3]] == [
        ["prefork", "mod_php", "1", "50"], ["2", "50", "35", "50"], ["3", "50", "50", "50"],
    ]  # fmt: skip
    assert any("30 %  30 ct 75 %" in line for line in lines)
    assert max(map(len, text.splitlines())) <= 100
    without = ExperimentTable(
        "T-LD", cells=[Cell(PREFORK, WORDPRESS, samples=[replace(sampled(), phases=[])])]
    )
    assert "Phase by phase" not in report.text(without, CATALOG["T-LD"])


def test_a_long_run_is_drawn_with_few_points() -> None:
    seconds = [
        Second(
            at,
            at % 2,
            {"ct": 1} if at == 5 else {},
            p50=0.1 * (at + 1),
            p99=1.0 * at,
            cpu=0.5,
            memory=1e6 * at,
        )
        for at in range(300)
    ]
    short = phases.merge_long_timeline(seconds)
    assert len(short) == 100 and [second.at for second in short[:3]] == [0, 3, 6]
    assert (short[1].errors, short[1].p50, short[1].p99) == ({"ct": 1}, pytest.approx(0.5), 5.0)
    assert (short[1].memory, short[1].cpu, short[1].threads) == (5e6, 0.5, None)
    assert phases.merge_long_timeline(seconds[:100]) == seconds[:100]
    empty = phases.merge_long_timeline([Second(at) for at in range(300)])
    assert (empty[0].p50, empty[0].due, empty[0].replies) == (None, None, 0)


def test_phases_begin_one_after_the_other() -> None:
    assert phases.phase_starts(sampled()) == [0.0, 2.0, 4.0]
    assert phases.phase_starts(replace(sampled(), phases=[])) == []


def test_the_rows_of_the_blog_are_those_of_wordpress(tmp_path: Path) -> None:
    with (
        quick_lab() as lab,
        sql_blog.fill_database(lab, databases.SQLITE, tmp_path) as found,
        closing(sqlite3.connect(found.source)) as connection,
    ):
        (count,) = connection.execute("SELECT count(*) FROM posts").fetchone()
        (talk,) = connection.execute("SELECT count(*) FROM comments").fetchone()
    assert (count, talk) == (POSTS, sum(len(post.comments) for post in posts()))
