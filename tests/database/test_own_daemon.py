"""The daemon that ewe starts for the setting `database`: it serves, comes back, changes at HUP, ends with ewe."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sqlite3
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from support import web
from support.daemon import FEATURE
from support.proc import is_gone
from support.server import Server, Start, run_command, wait_until

from ewe import logger
from ewe.config.settings import Config
from ewe.database.client import Client
from ewe.database.protocol import ClientRequest, DatabaseError
from ewe.features.databases.daemon_program import DaemonProgram, write_settings
from ewe.server import processor_factory
from ewe.server.program_manager import ProgramManager

ONE = "/ask/?SELECT n FROM numbers"


def make_database(path: Path, number: int) -> Path:
    """Make a database whose table `numbers` holds one number."""
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE numbers (n)")
    connection.execute("INSERT INTO numbers VALUES (?)", [number])
    connection.commit()
    connection.close()
    return path


def started(start: Start, model: str, directory: Path, *options: str) -> Server:
    """Start ewe with the database `shop`, and the feature that asks it at /ask/."""
    (directory / "asks.py").write_text(FEATURE)
    place = make_database(directory / "shop.db", 1)
    return start(model, "--mount", "/ask=asks:Asks", "--database", f"shop={place}", *options)


def address_of(server: Server) -> str:
    """Return the address of the server's daemon, which the log names."""
    match = re.search(r"daemon at (unix:\S+) ", server.wait_for_log("a database daemon at"))
    assert match is not None
    return match[1]


def pid_of(address: str) -> int:
    """Return the process that serves at an address."""
    with Client(address) as client:
        return int(json.loads(b"".join(client.ask(ClientRequest("", ""))))["pid"])


def test_it_serves_and_comes_back_when_it_is_killed(start: Start, model: str, tmp_path: Path) -> None:
    """Under load: each request is answered, or refused with 503 and Retry-After."""
    server = started(start, model, tmp_path)
    assert web.get(server.url + ONE).text == "n\r\n1\r\n"
    address = address_of(server)
    first = pid_of(address)
    stop = threading.Event()
    wrong: list[str] = []

    def ask() -> None:
        while not stop.is_set():
            answer = web.get(server.url + ONE, timeout=60)
            if answer.status_code != 200 and (answer.status_code, answer.headers.get("retry-after")) != (
                503,
                "1",
            ):
                wrong.append(f"{answer.status_code} {answer.text}")

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: is_gone(first), 10)
    wait_until(lambda: web.get(server.url + ONE, timeout=60).status_code == 200, 10)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert pid_of(address) != first
    server.wait_for_log(f"ewe-dbd (pid {first}) was ended by signal 9; starting another")
    assert server.stop() == 0
    assert not os.path.exists(os.path.dirname(address[5:]))
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("model", ["thread", "prefork", "xswitch"])
def test_it_ends_with_a_server_that_is_killed(start: Start, model: str, tmp_path: Path) -> None:
    server = started(start, model, tmp_path)
    address = address_of(server)
    daemon = pid_of(address)
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: is_gone(daemon), 30)
    directory = Path(
        address[5:]
    ).parent  # as nobody, the manager can only empty it, if TMPDIR is root's alone
    wait_until(lambda: not directory.exists() or not any(directory.iterdir()), 10)


@pytest.mark.parametrize("model", ["thread", "prefork"])
def test_hup_changes_the_databases(start: Start, model: str, tmp_path: Path) -> None:
    settings = tmp_path / "ewe.toml"
    (tmp_path / "asks.py").write_text(FEATURE)
    first, second = (make_database(tmp_path / f"{n}.db", n) for n in (1, 2))
    settings.write_text(f"database = ['shop={first}']\nmount = ['/ask=asks:Asks']\n")
    server = start(model, "--config", str(settings))
    assert web.get(server.url + ONE).text == "n\r\n1\r\n"
    daemon = pid_of(address_of(server))
    settings.write_text(f"database = ['shop={second}']\nmount = ['/ask=asks:Asks']\n")
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: web.get(server.url + ONE).text == "n\r\n2\r\n", 20)
    assert pid_of(address_of(server)) == daemon
    settings.write_text(f"database = ['shop={tmp_path}/3.db']\nmount = ['/ask=asks:Asks']\n")
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_log("database shop: there is no file")
    assert web.get(server.url + ONE).text == "n\r\n2\r\n"
    settings.write_text("mount = ['/ask=asks:Asks']\n")  # no database any more
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: web.get(server.url + ONE).status_code == 503, 20)
    settings.write_text(f"database = ['shop={first}']\nmount = ['/ask=asks:Asks']\n")
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: web.get(server.url + ONE).text == "n\r\n1\r\n", 20)
    assert "Traceback" not in server.log()


def test_the_first_database_needs_a_restart(start: Start, tmp_path: Path) -> None:
    settings = tmp_path / "ewe.toml"
    settings.write_text("")
    server = start("thread", "--config", str(settings))
    settings.write_text(f"database = ['shop={make_database(tmp_path / 'shop.db', 1)}']\n")
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_log("database: a change needs a restart")
    assert web.get(server.url).status_code == 200


@pytest.mark.needs("root")
@pytest.mark.parametrize("model", ["thread", "prefork"])
def test_it_runs_as_the_user(start: Start, model: str, tmp_path: Path) -> None:
    server = started(start, model, tmp_path, "--user", "nobody")
    address = address_of(server)
    assert web.get(server.url + ONE).text == "n\r\n1\r\n", server.log()
    assert os.stat(f"/proc/{pid_of(address)}").st_uid == 65534
    assert os.stat(os.path.dirname(address[5:])).st_mode & 0o777 == 0o700
    # Root may ask for the status, and is no user of the database
    with Client(address) as client, pytest.raises(DatabaseError, match="may not use"):
        list(client.ask(ClientRequest("shop", "SELECT 1")))


def test_a_statement_that_writes_is_refused(start: Start, tmp_path: Path) -> None:
    server = started(start, "thread", tmp_path)
    assert web.get(server.url + "ask/?DELETE FROM numbers").status_code == 500
    server.wait_for_log("not authorized")
    assert web.get(server.url + ONE).text == "n\r\n1\r\n"


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("place", "start_says", "check_says"),
    [
        ("none.db", "database log: there is no file 'none.db' (database)", ""),
        ("text.db", "", "note: database log cannot be opened: text.db: file is not a database (database)"),
        pytest.param(
            "postgresql:host=/nothing/here",
            "",
            "note: database log cannot be opened: log: connection",
            marks=pytest.mark.needs("psycopg"),
        ),
    ],
)
def test_a_place_that_cannot_be_opened(tmp_path: Path, place: str, start_says: str, check_says: str) -> None:
    (tmp_path / "htdocs").mkdir()
    (tmp_path / "text.db").write_text("This is no database. " * 100)
    checked = run_command(tmp_path, "--check-config", "--database", f"log={place}", "0")
    assert (start_says or check_says) in checked.stderr
    assert checked.returncode == (1 if start_says else 0), checked.stderr
    if start_says:
        assert start_says in run_command(tmp_path, "--database", f"log={place}", "0").stderr


def test_a_change_that_fails_gives_the_daemon_its_old_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_factory, "open_logs", lambda config: None)
    restarted: list[Config] = []
    manager = object.__new__(ProgramManager)
    manager.programs = [object.__new__(DaemonProgram)]
    monkeypatch.setattr(manager, "restart", restarted.append)
    old, new = (object.__new__(processor_factory.ProcessorFactory) for _ in range(2))
    for factory, database in ((old, "log=a.db"), (new, "log=b.db")):
        factory.config = Config(database=[database])
        factory.programs = manager
    undone = new.config
    new.undo_renewal(old)
    new.restore_programs(undone)
    new.restore_programs(old.config)  # the databases are the same
    assert restarted == [old.config]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
def test_settings_that_cannot_be_written_at_hup_name_the_program(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, said: str
) -> None:
    """write(2) names no file in its error. The program may also be that of a mounted feature."""
    log: list[str] = []
    monkeypatch.setattr(logger.errors, "error", log.append)
    manager = object.__new__(ProgramManager)
    manager.programs = [object.__new__(DaemonProgram)]
    manager.programs[0].name, manager.pid = "ewe-dbd", 0
    monkeypatch.setattr(DaemonProgram, "write_settings", Mock(side_effect=fault))
    manager.restart(Config())
    [line] = log
    assert line.startswith(f"cannot write the settings of ewe-dbd, its old ones stay: {said}")
    assert line.endswith(" (database)")


def test_the_settings_of_the_daemon_are_written_through_no_link(tmp_path: Path) -> None:
    """The workers' account owns the directory. Under the xswitch model, root writes there at HUP."""
    path, fresh, victim = (tmp_path / name for name in ("databases.toml", "databases.toml.new", "victim"))
    victim.write_text("root's\n")
    fresh.symlink_to(victim)
    write_settings(Config(database=["log=access.db"]), str(path))
    assert victim.read_text() == "root's\n" and not path.is_symlink()
    assert '[databases."log"]' in path.read_text() and path.stat().st_mode & 0o777 == 0o600


def test_its_modules_are_in_no_process_of_ewe(start: Start, tmp_path: Path) -> None:
    """The manager loads them, and the daemon."""
    (tmp_path / "loaded.py").write_text(
        "import sys\nfrom ewe.http.messages import Response\n"
        "class Loaded:\n"
        "    def __init__(self, config, path): pass\n"
        "    async def respond(self, request, io):\n"
        "        return Response(200, (), ' '.join(sys.modules).encode())\n"
    )
    place = make_database(tmp_path / "shop.db", 1)
    server = start("thread", "--mount", "/loaded=loaded:Loaded", "--database", f"shop={place}", env={})
    loaded = web.get(server.url + "loaded").text.split()
    assert "ewe.features.databases.asking" in loaded and "ewe.database.protocol" in loaded
    assert not {"sqlite3", "ewe.database.daemon", "ewe.database.settings"}.intersection(loaded)
