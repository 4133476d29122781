"""The command `ewe-dbd`: what it prints, and what it says of wrong settings."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from support.server import accepts, wait_until

from ewe.config.messages import ConfigError
from ewe.database import cli
from ewe.database.access_log import ADDRESS_COUNT, REPORT, ROW_BYTES, rows_of, sample
from ewe.database.cli import main
from ewe.database.drivers import Database, connect
from ewe.database.settings import DatabaseSettings, Settings
from ewe.logger import ErrorLog


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing = 1", 'unknown key "nothing"'),
        (
            "listen = ['http://x']",
            'listen = ["http://x"]: expected a list of unix:PATH, HOST:PORT, fifo:PATH or mq:NAME',
        ),
        ("[databases.log]", "databases.log: source is missing: a file for SQLite"),
        (
            "[databases.log]\nsource = 'a.db'\ndriver = 'oracle'",
            'databases.log.driver = "oracle": expected "sqlite"',
        ),
        ("databases = 1", "databases = 1: expected tables: [databases.NAME]"),
        ("connections = 0", "connections = 0: expected 1 to 1000"),
        ("[databases", "Expected"),
    ],
)
def test_a_wrong_setting_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    file = tmp_path / "dbd.toml"
    file.write_text(text)
    assert main(["--config", str(file), "--check-config"]) == 2
    told = capsys.readouterr().err
    assert words in told and told.startswith(f"ewe-dbd: {file}") and told.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "no address to listen on"),
        (["--listen", "unix:here"], 2, "no database"),
        (["--listen", "here"], 2, '--listen "here": expected unix:PATH'),
        (["--nothing"], 2, "unrecognized arguments"),
        (["status"], 2, "name the address of the daemon"),
        (["status", "--listen", "unix:/nothing/here"], 1, "/nothing/here: No such file"),
        (["status", "--listen", "here"], 2, "no address"),
        (["load", "/nothing/here", "x.db"], 2, "/nothing/here: No such file"),
        (["sample", "/nothing/here/x.db"], 2, "unable to open"),
    ],
)
def test_a_wrong_command_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    assert main(arguments) == code
    told = capsys.readouterr().err
    assert words in told and told.startswith("ewe-dbd: ") and told.count("\n") == 1


def test_settings_are_printed_as_a_file_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "dbd.toml"
    file.write_text("time-limit = '1m'\n[databases.log]\nsource = 'a.db'\nusers = ['alice']\n")
    assert main(["--config", str(file), "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert 'time-limit = "1m"' in printed and f'source = "{tmp_path}/a.db"' in printed
    again = tmp_path / "again.toml"
    again.write_text(printed)
    assert main(["--config", str(again), "--print-config"]) == 0
    assert capsys.readouterr().out == printed
    assert main(["--config", str(again), "--check-config"]) == 0
    assert "a.db cannot be opened" in capsys.readouterr().err


def test_former_names_of_settings_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "dbd.toml"
    (tmp_path / "a.db").touch()
    file.write_text("demons = 2\n[databases.log]\nplace = 'a.db'\n")
    assert main(["--config", str(file), "--check-config"]) == 0
    assert capsys.readouterr().err == (
        f"ewe-dbd: {file}: demons is now called daemons\n"
        f"ewe-dbd: {file}: databases.log: place is now called source\n"
    )
    assert main(["--config", str(file), "--print-config"]) == 0
    assert "\ndaemons = 2\n" in capsys.readouterr().out
    file.write_text("demons = 2\ndaemons = 3\n")
    assert main(["--config", str(file)]) == 2
    assert "demons is the former name of daemons: keep one" in capsys.readouterr().err


def test_the_sample_is_the_papers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = tmp_path / "access.db"
    assert main(["sample", str(database), "--rows", "5000"]) == 0
    assert main(["sample", str(database), "--rows", "5000"]) == 0  # made again, not added to
    assert "5000 rows" in capsys.readouterr().out
    connection = sqlite3.connect(database)
    assert connection.execute("SELECT COUNT(*) FROM log").fetchone() == (5000,)
    assert len(connection.execute(REPORT).fetchall()) == ADDRESS_COUNT
    connection.close()
    rows = list(sample(1000))
    assert rows == list(sample(1000))
    assert {sum(len(str(each)) for each in row) for row in rows} == {ROW_BYTES}


def test_a_log_is_loaded_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "access.log"
    log.write_text(
        '127.0.0.1 - alice [22/Nov/2026:19:12:46 +0000] "GET / HTTP/1.1" 200 1024 "-" "curl/8" 677 pool 0\n'
        '::1 - - [22/Nov/2026:19:12:47 +0000] "GET /\\"x\\" HTTP/1.1" 304 -\n'
        "not a line of a log\n",
        encoding="utf-8",
    )
    database = tmp_path / "access.db"
    assert main(["load", str(log), str(database)]) == 0
    assert main(["load", str(log), str(database)]) == 0  # added to
    assert "2 rows added to the table log, 1 lines left out" in capsys.readouterr().out
    connection = sqlite3.connect(database)
    rows = connection.execute("SELECT address, user, request, status, bytes FROM log").fetchall()
    connection.close()
    assert (
        rows
        == [
            ("127.0.0.1", "alice", "GET / HTTP/1.1", 200, 1024),
            ("::1", "-", 'GET /"x" HTTP/1.1', 304, 0),
        ]
        * 2
    )
    assert list(rows_of(["", '" " " [ ] "'])) == [None, None]


def test_a_new_database_that_may_be_written_is_made(tmp_path: Path) -> None:
    new, kept, only_read = tmp_path / "new.db", tmp_path / "kept.db", tmp_path / "read.db"
    kept.write_bytes(b"as it was")
    settings = Settings(
        databases={
            "new": DatabaseSettings(source=str(new), write=True),
            "kept": DatabaseSettings(source=str(kept), write=True),
            "read": DatabaseSettings(source=str(only_read)),
        }
    )
    log = ErrorLog(str(tmp_path / "log"))
    for _ in range(2):  # the second call finds the file
        cli.make_missing_files(settings, log)
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line.partition("info: ")[2] for line in lines] == [f"{new}: made, an empty SQLite database"]
    assert new.stat().st_size == 0 and new.stat().st_mode & 0o777 == 0o600
    assert kept.read_bytes() == b"as it was" and not only_read.exists()
    nowhere = Settings(databases={"a": DatabaseSettings(source=str(tmp_path / "no" / "a.db"), write=True)})
    with pytest.raises(
        ConfigError, match=r"\[databases.a\] source: cannot make .*a\.db: No such file or dir"
    ):
        cli.make_missing_files(nowhere, log)


def test_a_database_may_lie_below_a_directory_whose_name_is_not_utf8(tmp_path: Path) -> None:
    directory = tmp_path / os.fsdecode(b"\xff ?%23")
    directory.mkdir()
    (directory / "a.db").touch()
    connection = connect(Database("a", "sqlite", str(directory / "a.db"), write=False))
    assert list(connection.execute("SELECT 1", ()).rows) == [(1,)]
    connection.close()


def test_an_inherited_socket_is_no_address_to_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "dbd.toml"
    (tmp_path / "a.db").touch()
    file.write_text("listen = ['fd://3']\n[databases.log]\nsource = 'a.db'\n")
    assert main(["time", "--config", str(file), "log", "SELECT 1", "--calls", "1"]) == 0
    title, in_process = capsys.readouterr().out.splitlines()
    assert title.index("kept") + len("kept") == len(in_process.removesuffix("         0"))


@pytest.mark.starts_processes
def test_the_daemon_writes_into_a_database_that_was_not_there(tmp_path: Path) -> None:
    file, address = tmp_path / "dbd.toml", f"unix:{tmp_path}/dbd.sock"
    file.write_text(f'listen = ["{address}"]\n[databases.new]\nsource = "new.db"\nwrite = true\n')
    command = [sys.executable, "-m", "ewe.database.cli"]
    with subprocess.Popen([*command, "--config", str(file)], stderr=subprocess.PIPE, text=True) as daemon:
        try:
            wait_until(lambda: accepts(tmp_path / "dbd.sock"), 20)
            for statement in ("CREATE TABLE t (a)", "INSERT INTO t VALUES (7)", "SELECT a FROM t"):
                done = subprocess.run(
                    [*command, "ask", "new", statement, "--listen", address],
                    capture_output=True, text=True, timeout=30,
                )  # fmt: skip
                assert done.returncode == 0, done.stderr
            assert done.stdout.split() == ["a", "7"]
        finally:
            daemon.terminate()


def test_a_key_that_crosses_the_network_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each address counts, not only the first one."""
    file, database = tmp_path / "dbd.toml", "[databases.log]\nsource = 'a.db'\nkey = '0123456789abcdef'\n"
    (tmp_path / "a.db").touch()
    for addresses, warned in (("'127.0.0.1:9001'", ""), ("'127.0.0.1:9001', '0.0.0.0:9002'", "0.0.0.0:9002")):
        file.write_text(f"listen = [{addresses}]\n{database}")
        assert main(["--config", str(file), "--check-config"]) == 0
        said = capsys.readouterr().err
        assert (f"the key crosses the network unencrypted ({warned})" in said) == bool(warned)
