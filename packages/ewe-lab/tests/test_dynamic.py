"""Programs behind web servers, as in the thesis: configurations, missing packages, measurements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from lab_bench import quick_lab, tried
from support.java_site import build_once

from ewe_lab.bench.processes import LabError, processes
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.bench.verdicts import NOT_TESTABLE, judge
from ewe_lab.experiments import t_dt1c, thesis_dynamic, thesis_memory
from ewe_lab.experiments.catalog import CATALOG
from ewe_lab.experiments.papers import given
from ewe_lab.experiments.thesis_dynamic import PLAIN, DynamicTest
from ewe_lab.experiments.thesis_static import BEST_COLUMN_PREFIX, KEEP_ALIVE, NO_KEEP_ALIVE, TLS_1_3_PREFIX
from ewe_lab.stacks import backends, ways, webservers
from ewe_lab.stacks.backends import opener
from ewe_lab.stacks.programs import PAGE_JSP, PAGE_SERVLET, PERL, PROGRAMS, programs_directory
from ewe_lab.stacks.ways import ServingStack, serve_stack
from ewe_lab.stacks.webservers import APACHE_MODULES, BackendProgram, Setup

IDS = ("T-DT1", "T-DT1a", "T-DT1w", "T-DT1c", "T-DT2", "T-DT2s", "T-DT3", "T-DT4", "T-HS2", "T-HS3")
TESTS = {id: thesis_dynamic.described(**given(id)) for id in IDS}


# The tests of the thesis


@pytest.mark.parametrize("id", TESTS)
def test_printed_figures_have_a_way_each(id: str) -> None:
    test: DynamicTest = TESTS[id]
    names = [stack.name for stack in test.stacks]
    assert len(names) == len(set(names))
    for column, printed in test.printed.items():
        assert set(printed) <= set(names), column
        if CATALOG[id].reference:
            assert printed[CATALOG[id].reference][0] == CATALOG[id].paper_reference


@pytest.mark.parametrize("id", TESTS)
def test_loads_are_bounded(id: str) -> None:
    test: DynamicTest = TESTS[id]
    assert all(0 < count <= 1000 for count in (*test.clients, *test.quick))
    for stack in test.stacks:
        assert (1 <= stack.children <= 16 or stack.language == "java") and 1 <= stack.processes <= 8
        if stack.by == "cgi":
            assert stack.max_connections(keep_alive=True) <= 10
        else:
            assert stack.max_connections(keep_alive=False) >= 1000


def test_what_is_printed() -> None:
    assert TESTS["T-DT1"].printed[NO_KEEP_ALIVE]["apache mod_php"] == ["Apache mod_php", 7_000]
    assert TESTS["T-DT1"].printed[KEEP_ALIVE]["apache mod_php"] == ["Apache mod_php", 10_000]
    assert TESTS["T-DT1w"].printed[KEEP_ALIVE]["nginx 8"] == ["Nginx 8", 5_100]
    assert TESTS["T-DT1w"].printed[NO_KEEP_ALIVE]["lighttpd 1"] == ["Lighttpd 1", 4_000]
    assert TESTS["T-DT2"].printed[KEEP_ALIVE]["nginx uwsgi"] == ["Nginx uWSGI", 8_000]
    assert TESTS["T-HS2"].printed[KEEP_ALIVE]["lighttpd 4"] == ["Lighttpd, several", 4_500]
    assert TESTS["T-HS3"].printed[KEEP_ALIVE]["lighttpd 4"] == ["Lighttpd, several", 1_900]
    assert TESTS["T-DT2s"].printed[NO_KEEP_ALIVE]["lighttpd 4"] == ["Lighttpd FastCGI", 1_700]


# Configurations


def setup(tmp_path: Path, name: str = "page.php", processes: int = 1, **more: object) -> Setup:
    behind = BackendProgram(tmp_path / name, **more)  # type: ignore[arg-type]
    return Setup(tmp_path, 8080, tmp_path, processes=processes, behind=behind)


@pytest.mark.needs("nginx")
def test_nginx_speaks_either_protocol(tmp_path: Path) -> None:
    webservers.nginx(setup(tmp_path, address="unix:/run/x", gateway="uwsgi", processes=4))
    text = (tmp_path / "nginx.conf").read_text()
    assert "worker_processes 4;" in text and "server unix:/run/x;" in text and "uwsgi_pass behind;" in text
    assert "fastcgi_param" not in text and f'uwsgi_param SCRIPT_FILENAME "{tmp_path}/page.php";' in text
    webservers.nginx(setup(tmp_path, address="127.0.0.1:9000", keeps=True))
    text = (tmp_path / "nginx.conf").read_text()
    assert "server 127.0.0.1:9000; keepalive" in text and "fastcgi_pass behind; fastcgi_keep_conn on;" in text


@pytest.mark.needs("apache2")
def test_apache_loads_what_a_way_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webservers, "mod_php", lambda: "/there/libphp8.2.so")
    for by, words in {
        "mod_php": ("LoadModule php_module /there/libphp8.2.so", "SetHandler application/x-httpd-php"),
        "fastcgi": ("LoadModule proxy_fcgi_module", '"proxy:unix:/run/x|fcgi://localhost/"'),
        "uwsgi": ("LoadModule proxy_uwsgi_module", '"proxy:unix:/run/x|uwsgi://localhost/"'),
        "cgi": (f"LoadModule cgid_module {APACHE_MODULES}/mod_cgid.so", "SetHandler cgi-script"),
    }.items():
        webservers.apache("prefork")(setup(tmp_path, address="unix:/run/x", gateway=by))
        text = (tmp_path / "apache.conf").read_text()
        assert all(word in text for word in (*words, "mpm_prefork_module", 'LocationMatch "^/page\\.php$"'))


@pytest.mark.needs("lighttpd")
def test_lighttpd_with_and_without_processes(tmp_path: Path) -> None:
    webservers.lighttpd(setup(tmp_path, address="unix:/run/x"))
    text = (tmp_path / "lighttpd.conf").read_text()
    assert '"socket" => "/run/x"' in text and '".php"' in text and "max-worker" not in text
    webservers.lighttpd(setup(tmp_path, address="127.0.0.1:9000"))
    assert '"host" => "127.0.0.1", "port" => 9000' in (tmp_path / "lighttpd.conf").read_text()
    webservers.lighttpd(setup(tmp_path, "page.py", gateway="cgi", processes=2))
    text = (tmp_path / "lighttpd.conf").read_text()
    assert 'cgi.assign = ( ".py" => "" )' in text and "server.max-worker = 2" in text


# Missing packages


def test_what_a_way_lacks_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "find_tool", lambda name: None)
    monkeypatch.setattr(ways, "php_fpm", lambda: "")
    monkeypatch.setattr(webservers, "mod_php", lambda: "")
    monkeypatch.setattr(ways, "missing_tomcat_packages", lambda: "tomcat10 default-jdk-headless")
    lacks = {
        ServingStack("nginx", "php-fpm", "php"): "nginx-light php-fpm",
        ServingStack("apache-prefork", "mod_php", "php"): "apache2 libapache2-mod-php",
        ServingStack("apache-event", "uwsgi", "python", label="apache uwsgi"): "apache2 uwsgi-plugin-python3",
        ServingStack("lighttpd", "cgi", "php"): "lighttpd php-cgi",
        ServingStack("ewe", "xswitch", "php"): "php-cgi",
        ServingStack("tomcat", "jsp", "java"): "tomcat10 default-jdk-headless",
    }
    for stack, packages in lacks.items():
        assert stack.why_missing == f"{stack.name} is left out: apt install {packages}"
    assert not ServingStack("ewe", "cgi", "python").why_missing


@pytest.mark.parametrize(
    ("front", "options", "lacks"),
    [
        ("gunicorn", ("-k", "gevent"), "gevent"),
        ("ewe", ("--loop", "uvloop"), "uvloop"),
        ("uvicorn", (), "uvicorn"),
    ],
)
def test_what_pip_installs_is_named_before_what_apt_installs(
    monkeypatch: pytest.MonkeyPatch, front: str, options: tuple[str, ...], lacks: str
) -> None:
    monkeypatch.setattr(ways, "find_tool", lambda name: None)
    monkeypatch.setattr(ways, "find_spec", lambda name: None if name == lacks else name)
    stack = ServingStack(front, "uwsgi", "python", options=options)
    assert stack.why_missing == f"{stack.name} is left out: pip install {lacks}"
    monkeypatch.setattr(ways, "find_spec", lambda name: name)
    assert stack.why_missing == f"{stack.name} is left out: apt install uwsgi-plugin-python3"


def test_a_way_that_lacks_something_says_so_before_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is not the web server's 502. The test for FCGI.pm runs the Perl that the programs name."""
    asked: list[str] = []
    monkeypatch.setattr(backends, "find_tool", lambda name: asked.append(name))
    monkeypatch.setattr(ways, "find_tool", lambda name: f"/bin/{name}")
    with quick_lab() as lab:
        with pytest.raises(LabError, match="nginx fcgi is left out: apt install libfcgi-perl"):
            serve_stack(lab, ServingStack("nginx", "fcgi", "perl", program="hello")).__enter__()
        assert asked == [PERL] and PROGRAMS["hello_fcgi.pl"].startswith(f"#!{PERL}\n")
        monkeypatch.setattr(ways, "find_spec", lambda name: None)
        with pytest.raises(LabError, match="gunicorn wsgi is left out: pip install gunicorn"):
            serve_stack(lab, ServingStack("gunicorn", "wsgi", "python")).__enter__()
        monkeypatch.setattr(webservers, "LIGHTTPD_MODULES", "/nowhere")
        with pytest.raises(LabError, match="lighttpd cgi is left out: apt install lighttpd-mod-openssl"):
            serve_stack(lab, ServingStack("lighttpd", "cgi", "python"), tls=True).__enter__()


def test_what_is_missing_is_a_note_and_what_is_gone_is_not_testable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "find_tool", lambda name: None)
    test = DynamicTest(
        (ServingStack("nginx", "uwsgi", "python"),), {KEEP_ALIVE: {}}, {KEEP_ALIVE: ("Cherokee", 4_500.0)}
    )
    with quick_lab() as lab:
        cells = list(thesis_dynamic.run(lab, test))
        assert any("apt install" in note for note in lab.notes) and thesis_dynamic.CHEROKEE in lab.notes
    assert [(cell.server, cell.paper, cell.samples, cell.failure) for cell in cells] == [
        ("cherokee", 4_500, [], "")
    ]
    (verdict,) = judge(ExperimentTable("T-DT1", cells=cells), CATALOG["T-DT1"])
    assert verdict.verdict == NOT_TESTABLE


# For real


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    "stack",
    [
        tried(ServingStack("nginx", "php-fpm", "php", tcp=True)),
        tried(ServingStack("nginx", "uwsgi", "python", processes=2)),
        tried(ServingStack("nginx", "fcgi", "perl", children=1, program="hello")),
        tried(ServingStack("apache-prefork", "mod_php", "php")),
        tried(ServingStack("apache-event", "php-fpm", "php")),
        tried(ServingStack("apache-prefork", "cgi", "php")),
        tried(ServingStack("apache-worker", "uwsgi", "python")),
        tried(ServingStack("lighttpd", "php-cgi", "php")),
        tried(ServingStack("lighttpd", "fastcgi", "python", children=1)),
        tried(ServingStack("lighttpd", "cgi", "python")),
        tried(ServingStack("ewe", "php-fpm", "php")),
        tried(ServingStack("ewe", "cgi", "php")),
        tried(ServingStack("ewe", "uwsgi", "python", children=1)),
        tried(ServingStack("ewe", "wsgi", "python", model="thread")),
        tried(ServingStack("ewe", "asgi", "python")),
        tried(ServingStack("gunicorn", "wsgi", "python")),
        tried(ServingStack("uvicorn", "asgi", "python", options=("--http", "h11"))),
    ],
)
def test_stacks_answer(stack: ServingStack) -> None:
    """Each stack serves its page, and leaves no process behind."""
    with quick_lab() as lab:
        with serve_stack(lab, stack) as (server, path):
            thesis_dynamic.probe(server.url.rstrip("/") + path, stack.page)
            started = {server.pid, *server.other_pids}
            assert bool(server.other_pids) is stack.is_backed
        assert not started & {each.pid for each in processes() if each.state not in "ZX"}


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    "stack",
    [
        tried(ServingStack("tomcat", "jsp", "java")),
        tried(ServingStack("ewe", "xswitch", "java", children=0, program="jsp")),
    ],
)
def test_servlets_and_jsp_pages_answer(stack: ServingStack) -> None:
    """Tomcat's and ewe's own, one start for both: the application of a JSP page has the servlet too."""
    build_once()
    with quick_lab() as lab, serve_stack(lab, stack) as (server, path):
        url = server.url.rstrip("/") + path
        thesis_dynamic.probe(url, PAGE_JSP)
        thesis_dynamic.probe(url.removesuffix(".jsp"), PAGE_SERVLET)


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    "stack",
    [
        tried(ServingStack("lighttpd", "fastcgi", "python", children=1)),
        tried(ServingStack("apache-event", "uwsgi", "python", children=1)),
        tried(ServingStack("ewe", "xswitch", "php")),
    ],
)
def test_stacks_answer_over_tls(stack: ServingStack) -> None:
    with quick_lab() as lab, serve_stack(lab, stack, tls=True) as (server, path):
        assert server.url.startswith("https://")
        thesis_dynamic.probe(server.url.rstrip("/") + path, stack.page)


@pytest.mark.starts_processes
@pytest.mark.needs("nginx", "php-fpm")
def test_a_test_over_tls_has_three_columns_and_says_what_tls_costs() -> None:
    """A program behind nginx, and one in ewe, which has no cipher of 2011."""
    tried = (ServingStack("nginx", "php-fpm", "php"), ServingStack("ewe", "wsgi", "python"))
    test = DynamicTest(
        tried, {KEEP_ALIVE: {}}, quick=(2,), plain={KEEP_ALIVE: {"nginx php-fpm": ("Nginx", 3_800.0)}}
    )
    with quick_lab() as lab:
        cells = list(thesis_dynamic.run(lab, test))
        costs = [note for note in lab.notes if note.startswith("TLS 1.3 divides")]
    assert [(cell.server, cell.column, cell.failure) for cell in cells] == [
        (stack.name, column, "")
        for stack in tried
        for column in ((BEST_COLUMN_PREFIX + KEEP_ALIVE,) if stack.front != "ewe" else ())
        + (TLS_1_3_PREFIX + KEEP_ALIVE, PLAIN + KEEP_ALIVE)
    ]
    assert not [cell for cell in cells if cell.samples[0].errors or not cell.samples[0].replies]
    assert [(cell.server, cell.paper) for cell in cells if cell.paper] == [("nginx php-fpm", 3_800)]
    assert len(costs) == 1 and all(stack.name in costs[0] for stack in tried)


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    "stack",
    [
        tried(ServingStack("apache-prefork", "mod_php", "php", children=1)),
        tried(ServingStack("lighttpd", "php-cgi", "php", children=1)),
        tried(ServingStack("nginx", "php-fpm", "php", children=1)),
        tried(ServingStack("ewe", "xswitch", "php", children=1)),
    ],
)
def test_php_runs_with_its_opcache_or_without(stack: ServingStack) -> None:
    """Whatever the machine's own settings of PHP say."""
    with quick_lab() as lab:
        page = "<?php echo extension_loaded('Zend OPcache') && opcache_get_status() ? 'on' : 'off';"
        (programs_directory(lab) / "page.php").write_text(page)
        for opcache in (False, True):
            tuned = replace(stack, opcache=opcache)
            with (
                serve_stack(lab, tuned) as (server, path),
                opener().open(server.url.rstrip("/") + path) as answer,
            ):
                assert answer.read() == (b"on" if opcache else b"off")


@pytest.mark.starts_processes
@pytest.mark.needs("nginx", "php-fpm")
def test_a_way_is_measured_with_all_that_works_for_it() -> None:
    stack = ServingStack("nginx", "php-fpm", "php")
    test = DynamicTest((stack,), {KEEP_ALIVE: {stack.name: ("Nginx and Lighttpd", 4_000.0)}}, quick=(2, 4))
    with quick_lab() as lab:
        cells = list(thesis_dynamic.run(lab, test))
    assert [(cell.column, cell.x, cell.failure) for cell in cells] == [
        (KEEP_ALIVE, 2, ""), (KEEP_ALIVE, 4, ""), (BEST_COLUMN_PREFIX + KEEP_ALIVE, None, ""),
    ]  # fmt: skip
    top = cells[-1]
    assert (top.paper, top.paper_server) == (4_000, "Nginx and Lighttpd")
    sample = top.samples[0]
    assert sample.replies > 20 and not sample.errors
    assert sample.usage is not None and sample.usage.processes == 7  # nginx: 2, php-fpm: 1 and its 4
    assert (sample.micros or 0) > 5


def test_the_luck_of_the_best_point_is_not_in_its_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """One point of the sweep was lucky: its figure is that of new measurements alone, as many as --repeats says."""
    rates = iter((100, 130, 100, 101, 99, 98, 102))

    @contextmanager
    def running(*_: object, **__: object) -> Iterator[tuple[SimpleNamespace, str]]:
        yield SimpleNamespace(url="http://127.0.0.1:9/", command="nginx"), "/page"

    monkeypatch.setattr(thesis_dynamic, "serve_stack", running)
    monkeypatch.setattr(thesis_dynamic, "probe", lambda *_: None)
    stack = ServingStack("nginx", "php-fpm", "php")
    test = DynamicTest((stack,), {KEEP_ALIVE: {stack.name: ("Nginx", 4_000.0)}}, clients=(1, 2, 4))
    lab = SimpleNamespace(
        quick=False, repeats=4, notes=[], quick_or_full=lambda quick, full: full,
        load=lambda server, load: Sample("wrk", 1, replies=next(rates)),
    )  # fmt: skip
    *sweep, top = thesis_dynamic.measure(lab, test, stack)
    assert [cell.median for cell in sweep] == [100, 130, 100]
    assert sorted(top.values) == [98, 99, 101, 102]


def test_a_way_that_fails_is_a_row_that_cannot_be_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def failing(*_: object, **__: object) -> Iterator[None]:
        raise LabError("it does not start")
        yield

    stack = ServingStack("nginx", "php-fpm", "php")
    monkeypatch.setattr(ServingStack, "why_missing", "")
    for module in (thesis_dynamic, thesis_memory):
        monkeypatch.setattr(module, "serve_stack", failing)
    lab = SimpleNamespace(quick=True, notes=[])
    (cell,) = thesis_dynamic.measure(
        lab, DynamicTest((stack,), {KEEP_ALIVE: {stack.name: ("Nginx", 4_000.0)}}), stack
    )
    assert (cell.column, cell.paper, cell.failure) == (f"best: {KEEP_ALIVE}", 4_000, "it does not start")
    first, *others = thesis_memory.run(
        lab, [stack], {thesis_memory.PROGRAM: {stack.name: ("PHP-FPM", 4140.0)}}, {}
    )
    assert (first.column, first.paper) == (thesis_memory.PROGRAM, 4140)
    assert {each.failure for each in (first, *others)} == {"it does not start"}


def over(kind: str, few: float, many: float) -> list[Cell]:
    return [
        Cell(f"{kind}, 4 php-fpm", NO_KEEP_ALIVE, x, samples=[Sample("wrk", 1, replies=int(rate))])
        for x, rate in ((50, few), (250, many))
    ]


@pytest.mark.parametrize(
    ("unix", "tcp", "word"),
    [
        (50, 900, "holds"),
        (900, 900, "holds in part"),
        (900, 100, "does not hold"),
        (50, 100, "holds in part"),
    ],
)
def test_the_claim_about_sockets(unix: float, tcp: float, word: str) -> None:
    assert (
        t_dt1c.check(
            ExperimentTable("T-DT1c", cells=[*over("Unix", 1000, unix), *over("TCP", 1000, tcp)])
        ).word
        == word
    )
    assert t_dt1c.check(ExperimentTable("T-DT1c", cells=over("Unix", 1000, unix))).word == "not testable"


def test_a_point_that_was_not_measured_is_no_collapse() -> None:
    failed = Cell("Unix, 4 php-fpm", NO_KEEP_ALIVE, 500, failure="it did not start")
    table = ExperimentTable("T-DT1c", cells=[*over("Unix", 1000, 900), failed])
    assert t_dt1c.lowest_ratio(table, "Unix") == 0.9


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    "stack",
    [
            tried(ServingStack("nginx", "php-fpm", "php")), tried(ServingStack("ewe", "xswitch", "php")),
            tried(ServingStack("ewe", "xswitch", "python")),
    ],
)  # fmt: skip
def test_the_memory_of_what_runs_a_program(stack: ServingStack) -> None:
    """The program's process is not the web server's; the total includes both."""
    with quick_lab() as lab:
        cells = list(thesis_memory.run(lab, [stack], {}, {}))
    assert [cell.column for cell in cells] == [
        thesis_memory.PROGRAM,
        thesis_memory.SERVER,
        thesis_memory.ALL_PROCESSES,
    ]
    extra = cells[0].samples[0].extra
    assert extra["program"] != extra["server"] and min(extra.values()) > 1000
    assert cells[0].samples[0].usage is not None and cells[0].samples[0].usage.processes > 2
