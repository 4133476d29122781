"""The report of the RDBMS paper by software of today: PHP with a persistent PDO connection, and Datasette.

    php-fpm     nginx and php-fpm; each process of php-fpm keeps its connection (PDO::ATTR_PERSISTENT)
    Datasette   a saved query, with a template that writes the table and nothing else. SQLite only

All send the same bytes as the scenarios. Raises LabError.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from ewe.database.access_log import REPORT
from ewe_lab.bench.experiment import Bench, ServedPath
from ewe_lab.bench.processes import find_tool, running, server_core
from ewe_lab.load.child import environment
from ewe_lab.stacks import backends, reports, webservers
from ewe_lab.stacks.databases import DATABASE_NAME, SQLITE, LabDatabase
from ewe_lab.stacks.servers import StartedServer, free_port, wait_for_port
from ewe_lab.stacks.webservers import BackendProgram, Setup

TEMPLATE = """\
<table>
<thead><tr>{% for column in columns %}<th>{{ column }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows %}<tr>{% for value in row %}{% if value is number %}<td class="number">{% else %}<td>\
{% endif %}{{ value }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table>

"""  # jinja2 drops the last newline
SETTINGS = ("sql_time_limit_ms", "20000"), ("max_returned_rows", "1000"), ("default_cache_ttl", "0")


def why_fpm_is_missing(database: LabDatabase) -> str:
    """Return why php-fpm behind nginx cannot run here, "" if it can."""
    if not find_tool("nginx"):
        return "apt install nginx-light"
    return reports.missing_php_module(database) if backends.php_fpm() else "apt install php-fpm"


def why_datasette_is_missing(database: LabDatabase) -> str:
    """Return why Datasette cannot run here, "" if it can."""
    if database.name != SQLITE:
        return "it is for SQLite alone"
    return "" if find_spec("datasette") else "pip install datasette"


def own_directory(lab: Bench) -> Path:
    """Make a directory that all accounts may enter."""
    directory = Path(tempfile.mkdtemp(prefix="report-", dir=lab.directory))
    directory.chmod(0o755)
    return directory


@contextmanager
def php_fpm(lab: Bench, database: LabDatabase) -> Iterator[ServedPath]:
    """Run nginx, and php-fpm on the same core; yield the server and the path of the URL with the report."""
    directory = own_directory(lab)
    script, socket, core = directory / "report.php", directory / "socket", server_core()
    reports.write_page(script, database)
    script.chmod(0o644)
    with ExitStack() as exits:
        output = exits.enter_context(tempfile.TemporaryFile())
        fpm = exits.enter_context(
            running(backends.fpm_command(directory, str(socket)), output, core, cwd=directory)
        )
        backends.wait_for_socket(fpm, socket, output, "php-fpm")
        os.chmod(socket, 0o666)  # nginx's worker may run under another account
        behind = BackendProgram(script, f"unix:{socket}", gateway="fastcgi", keeps=True)
        setup = Setup(directory, free_port(), root=directory, behind=behind)
        command = [*lab.command_prefix, *webservers.nginx(setup)]
        web = exits.enter_context(running(command, output, core, cwd=directory, env=environment()))
        wait_for_port(web, setup.port, output, "nginx")
        yield ServedPath(
            StartedServer(
                web.pid,
                f"http://127.0.0.1:{setup.port}/",
                command="nginx, php-fpm",
                other_pids=(fpm.pid, *database.pids),
            ),
            "/report.php",
        )


@contextmanager
def datasette(lab: Bench, database: LabDatabase) -> Iterator[ServedPath]:
    """Run Datasette on the servers' core; yield the server and the path of the report."""
    directory = own_directory(lab)
    templates = directory / "templates"
    templates.mkdir()
    (templates / f"query-{DATABASE_NAME}-report.html").write_text(TEMPLATE)
    metadata = {"databases": {DATABASE_NAME: {"queries": {"report": {"sql": REPORT}}}}}
    (directory / "metadata.json").write_text(json.dumps(metadata))
    copy = directory / f"{DATABASE_NAME}.db"
    copy.symlink_to(database.source)  # Datasette names the database after the file
    port = free_port()
    settings = [word for pair in SETTINGS for word in ("--setting", *pair)]
    command = [
        *lab.command_prefix, sys.executable, "-m", "datasette", "serve", str(copy), "--host", "127.0.0.1",
        "--port", str(port), "--metadata", str(directory / "metadata.json"), "--template-dir", str(templates),
        *settings,
    ]  # fmt: skip
    with (
        tempfile.TemporaryFile() as output,
        running(command, output, server_core(), cwd=directory, env=environment()) as started,
    ):
        wait_for_port(started, port, output, "Datasette")
        yield ServedPath(
            StartedServer(started.pid, f"http://127.0.0.1:{port}/", "datasette serve"),
            f"/{DATABASE_NAME}/report",
        )
