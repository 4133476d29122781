"""A change of the design must not cost: calls for each request, imports at the start, rooms that know a feature."""

from __future__ import annotations

import ast
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.counting import Calls
from support.proc import children_of
from support.wire import read_response

import ewe
from ewe import logger
from ewe.config.feature_table import ANSWERS, SETTINGS, STEPS
from ewe.config.settings import Config
from ewe.conversation import converse
from ewe.server.processor_factory import open_logs
from ewe.sites import make_site
from ewe.streams.blocking import BlockingStream, run, set_timeouts

SOURCE = Path(ewe.__file__).parent
REQUEST = b"GET /page.txt HTTP/1.1\r\nHost: a\r\n\r\n"

# The server reaches these rooms by one table only, in which they are strings: ewe.config.feature_table.
# The interface of features, and the files of a document root, which every site has
INTERFACE = ("base", "declaration", "plan", "static", "files")
APART = ("xswitch", "libcgi", "database", "sqlpages")

# A server of one process that serves files has no use for these.
HEAVY = {
    *(
        "asyncio",
        "ssl",
        "json",
        "email",
        "logging",
        "http",
        "hashlib",
        "multiprocessing",
    ),
    *("dataclasses", "inspect"),  # modules that only tables of sites need
    *("uvloop", "jinja2", "ctypes", "concurrent", "sqlite3", "tomllib", "unittest", "typing_extensions"),
}
# Modules of Python with a handler that runs in each child after fork(2), and writes to some 70 pages more.
RUN_AT_FORK = {"threading", "random"}


MOST_DIRTY_KB = 2300  # 1,920 under Python 3.11, 1,570 under 3.12, 1,680 under 3.13


def calls_of_a_request(config: Config, request: bytes) -> list[tuple[str, str]]:
    """Return the calls for one of several equal requests on one connection."""
    client, server = socket.socketpair()
    calls = Calls()
    stream = BlockingStream(server, ("127.0.0.1", 1), ("127.0.0.1", 2), config)
    set_timeouts(server, 1, 20)
    site = make_site(config)

    def talk() -> None:
        sys.setprofile(calls)
        run(converse(stream, site))

    thread = threading.Thread(target=talk, daemon=True)
    thread.start()
    began = time.monotonic()
    while (
        time.monotonic() - began < 0.3
    ):  # a new file is not cached: its timestamp cannot tell a second change yet
        client.sendall(request)
        assert read_response(client)[0] == 200
    client.close()
    thread.join(30)
    stream.close()
    return calls.of_a_request("recall")


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Callable[[Config], None]]:
    """Give a function that opens the logs of a server's settings; at the end both logs are as before."""
    yield open_logs
    logger.open_logs("off", "warning", "off", "common")


WITH_FILTERS = """
[[site]]
headers = { set = { X-Frame-Options = "DENY" } }
expires = "1h"
"""


# Conversation, site, static files, writer and stream; with tables also the filters. Then the log, with a call for
# each field.
@pytest.mark.parametrize(
    "tables, logged, most_calls, most_files",
    [("", False, 10, 5), ("", True, 18, 7), (WITH_FILTERS, False, 14, 7), (WITH_FILTERS, True, 22, 9)],
)
def test_a_warm_request_for_a_file_makes_few_calls(
    logs: Callable[[Config], None],
    tmp_path: Path,
    tables: str,
    logged: bool,
    most_calls: int,
    most_files: int,
) -> None:
    (tmp_path / "page.txt").write_text("wool" * 250)
    log = tmp_path / "log" if logged else "off"
    lines = f'documentroot = "{tmp_path}"\ncgi-path = "none"\naccess-log = "{log}"\nlog-format = "common"\n'
    (tmp_path / "ewe.toml").write_text(lines + tables)
    config = Config.load(environ={}, file=str(tmp_path / "ewe.toml"))
    logs(config)
    made = calls_of_a_request(config, REQUEST)
    assert len(made) <= most_calls, made
    assert len({file for file, _ in made}) <= most_files, made


MODULE = re.compile(r"\bewe\.(\w+(?:\.\w+)*)")


def names(source: str) -> Iterator[str]:
    """Yield the modules of ewe that a source imports, at any point, or names in a string that is no docstring."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        named: list[str] = []
        if isinstance(node, ast.ImportFrom):
            named = [f"{node.module}.{each.name}" for each in node.names]
        elif isinstance(node, ast.Import):
            named = [each.name for each in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            named = [node.value]
        yield from (module for text in named for module in MODULE.findall(text))


# The keys of the tables that a feature declares. Three of them are fields of HTTP, or a word of ASGI, too.
FEATURE_KEYS = {*STEPS, *ANSWERS} - {"cache-control", "expires", "headers"}


def keys_in(source: str) -> set[str]:
    """Return the keys of FEATURE_KEYS that a source has as a string."""
    nodes = ast.walk(ast.parse(source))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and node.value in FEATURE_KEYS}


def features_in(source: str) -> set[str]:
    """Return the features, and the rooms of APART, whose modules a source names."""
    found = set()
    for module in names(source):
        room, *rest = module.split(".")
        if room in APART:
            found.add(room)
        elif room == "features" and rest and rest[0] not in INTERFACE:
            found.add(f"features.{rest[0]}")
    return found


def test_no_core_file_names_a_feature() -> None:
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        if name.split("/")[0] in ("features", *APART) or name == "config/feature_table.py":
            continue
        source = path.read_text(encoding="utf-8")
        if features := features_in(source) | keys_in(source):
            found[name] = features
    assert found.pop("log_files.py") == {"auth"}  # a facility of syslog, RFC 5424
    assert not found, "only ewe.config.feature_table names features"


@pytest.mark.parametrize(
    ("source", "feature"),
    [
        ("from ewe.features.cgi import programs", "features.cgi"),
        ("from ewe.features import cgi", "features.cgi"),
        ("def late():\n    import ewe.features.cgi", "features.cgi"),
        ("from ewe import xswitch", "xswitch"),
        ("import_module('ewe.libcgi.build').preload()", "libcgi"),
        ("DAEMON = 'ewe.database.inherited'", "database"),
        ("MANUAL = '/docs=ewe.features.markdown.manual:Manual'", "features.markdown"),
        ("command = f'{python} -m ewe.xswitch'", "xswitch"),
        ("from ewe.features.static import Static", ""),
        ("def late():\n    'See ewe.features.cgi.'", ""),
    ],
)
def test_each_way_to_name_a_feature_is_found(source: str, feature: str) -> None:
    assert features_in(source) == ({feature} if feature else set())


def test_a_key_of_a_feature_is_found() -> None:
    assert keys_in("for key in ('webdav', 'index'):\n    x = 'auth'") == {"webdav", "auth"}
    assert not keys_in("def webdav():\n    'Read the keys webdav and auth.'")


def every_module_loaded(program: str, *arguments: str) -> set[str]:
    """Run a program, which prints sys.modules; return the names of the modules.

    Without `site`, Python sees no packages but its own.
    """
    command = [sys.executable, "-S", "-c", program, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.split())


def modules_loaded(program: str, *arguments: str) -> set[str]:
    """Run a program, which prints sys.modules; return the names of their packages."""
    return {name.split(".")[0] for name in every_module_loaded(program, *arguments)}


@pytest.mark.starts_processes
def test_a_bare_server_imports_little_and_needs_nothing_installed(tmp_path: Path) -> None:
    """Each module that is loaded before a fork is memory that each child may copy."""
    program = (
        "import sys\n"
        "from ewe.processors.serial import Serial\n"
        "Serial.serve = lambda self, listener: (print(*sys.modules), self.finish())\n"
        "from ewe.cli import main\n"
        "sys.exit(main())\n"
    )
    loaded = modules_loaded(program, "-n", "0", str(tmp_path))
    assert "ewe" in loaded
    assert not loaded & (HEAVY | RUN_AT_FORK), sorted(loaded & (HEAVY | RUN_AT_FORK))


def parents(module: str) -> Iterator[str]:
    """Yield a module's name, and the names of its packages."""
    parts = module.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


@pytest.mark.starts_processes
def test_the_settings_load_the_files_that_declare_them_and_no_other_part_of_a_feature() -> None:
    """Each command and each process of a server has them in memory, also without any of the features."""
    loaded = every_module_loaded("import sys, ewe.config.settings; print(*sys.modules)")
    allowed = {name for module in SETTINGS for name in parents(module)}
    rooms = ("features", "gateway", "streams", "processors", "server", "sites", *APART)
    others = {name for name in loaded if name.startswith(tuple(f"ewe.{room}" for room in rooms))} - allowed
    assert not others, sorted(others)
    loaded = {name.split(".")[0] for name in loaded}
    assert not loaded & (HEAVY | RUN_AT_FORK), sorted(loaded & (HEAVY | RUN_AT_FORK))


@pytest.mark.starts_processes
@pytest.mark.parametrize("feature", ["cgi.programs", "libcgi.libraries"])
def test_a_feature_of_programs_imports_nothing_that_each_forked_child_would_run(feature: str) -> None:
    loaded = modules_loaded(f"import sys, ewe.features.{feature}; print(*sys.modules)")
    assert not loaded & RUN_AT_FORK, sorted(loaded & RUN_AT_FORK)


@pytest.mark.starts_processes
@pytest.mark.needs("/proc")
def test_a_forked_child_copies_little(tmp_path: Path) -> None:
    """A child of the fork model that has answered a few requests has written to so many pages of its parent's."""
    (tmp_path / "page.txt").write_text("wool" * 250)
    command = [sys.executable, "-m", "ewe", "-f", "0", str(tmp_path), "--access-log", "off"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    ) as server:
        try:
            assert server.stderr is not None
            banner = re.search(r"http://127\.0\.0\.1:(\d+)/", server.stderr.readline())
            assert banner is not None
            with socket.create_connection(("127.0.0.1", int(banner[1])), timeout=30) as client:
                for _ in range(3):
                    client.sendall(REQUEST)
                    assert read_response(client)[0] == 200
                [child] = children_of(server.pid)
                rollup = Path(f"/proc/{child}/smaps_rollup").read_text()
        finally:
            server.terminate()
    found = re.search(r"^Private_Dirty:\s+(\d+) kB$", rollup, re.MULTILINE)
    assert found is not None and int(found[1]) <= MOST_DIRTY_KB, rollup
