"""The command `ewe-dbd`: what it prints, and what it says of wrong settings."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from ewe.database.access_log import ADDRESSES, REPORT, ROW, lines_of, sample
from ewe.database.cli import main


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing = 1", "unknown setting nothing"),
        ("listen = ['http://x']", "listen must be a list of unix:PATH, HOST:PORT, fifo:PATH or mq:NAME"),
        ("[databases.log]", "[databases.log]: place is missing"),
        ("[databases.log]\nplace = 'a.db'\ndriver = 'oracle'", "driver must be one of sqlite"),
        ("databases = 1", "databases must be a table"),
        ("connections = 0", "connections must be 1 to 1000"),
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
        ([], 2, "nothing to listen on"),
        (["--listen", "unix:here"], 2, "no database"),
        (["--listen", "here"], 2, "--listen must be"),
        (["--nothing"], 2, "unrecognized arguments"),
        (["status"], 2, "which demon?"),
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
    file.write_text("time-limit = '1m'\n[databases.log]\nplace = 'a.db'\nusers = ['alice']\n")
    assert main(["--config", str(file), "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert 'time-limit = "1m"' in printed and f'place = "{tmp_path}/a.db"' in printed
    again = tmp_path / "again.toml"
    again.write_text(printed)
    assert main(["--config", str(again), "--print-config"]) == 0
    assert capsys.readouterr().out == printed
    assert main(["--config", str(again), "--check-config"]) == 0
    assert "a.db cannot be opened" in capsys.readouterr().err


def test_the_sample_is_the_papers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = tmp_path / "access.db"
    assert main(["sample", str(database), "--rows", "5000"]) == 0
    assert main(["sample", str(database), "--rows", "5000"]) == 0  # made again, not added to
    assert "5000 rows" in capsys.readouterr().out
    connection = sqlite3.connect(database)
    assert connection.execute("SELECT COUNT(*) FROM log").fetchone() == (5000,)
    assert len(connection.execute(REPORT).fetchall()) == ADDRESSES
    connection.close()
    rows = list(sample(1000))
    assert rows == list(sample(1000))
    assert {sum(len(str(each)) for each in row) for row in rows} == {ROW}


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
    assert list(lines_of(["", '" " " [ ] "'])) == [None, None]
