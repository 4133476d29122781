"""The trace of X-Switch and of the database daemon: in the server's file, or in a separate one."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from support.needs import require
from support.server import Server, Start, accepts, read_all, wait_until, write_program
from support.xswitch_client import xswitch

from ewe.database.client import Client
from ewe.database.protocol import ClientRequest, client_identifier, connection_of
from ewe.trace import Trace, exposure_warning

pytestmark = pytest.mark.starts_processes

LINE = re.compile(r"\d+\.\d{6} ([a-z-]+) (-|\d+\.\d+) (\d+/\d+) (.*)")
SCRIPT = """#!/usr/bin/env python3
import os, time
time.sleep(float(os.environ.get("QUERY_STRING") or 0))
print("Content-Type: text/plain\\n\\n", *[name for name in os.environ if "TRACE" in name])
"""


LOOK = """#!/usr/bin/env python3
import os
print("Content-Type: text/plain\\n")
for number in os.listdir("/proc/self/fd"):
    try:
        print(os.readlink(f"/proc/self/fd/{number}"))
    except OSError:
        pass
"""


def events(path: Path) -> list[tuple[str, str, str, str]]:
    """Return name, connection, worker and text of each event."""
    found = []
    for line in path.read_text().splitlines():
        match = LINE.fullmatch(line)
        assert match, line
        found.append((match[1], match[2], match[3], match[4]))
    return found


def named(path: Path, name: str) -> list[tuple[str, str, str]]:
    return [event[1:] for event in events(path) if event[0] == name]


def ask(server: Server, path: str) -> bytes:
    """Ask, and leave our side open.

    After a half-close the server gives up a script that is silent for HALF_CLOSED_S, and the first engine of a
    busy machine may take longer to start.
    """
    with server.connect() as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return read_all(sock)


def test_a_request_and_its_engine_stand_in_one_file(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    server = start("xswitch", "--trace", str(path))
    write_program(server.cgi / "nap.py", SCRIPT)
    for query in ("", "?0.01"):
        reply = ask(server, f"/cgi-bin/nap.py{query}")
        assert b" 200 " in reply, server.log()
        assert b"TRACE" not in reply  # no script sees the parameter
    server.stop()
    (engine,) = {text.split()[0] for _, _, text in named(path, "x-engine")}
    asked = named(path, "request")
    requests = named(path, "x-request")
    assert [text.split()[0] for _, _, text in requests] == [connection for connection, _, _ in asked]
    assert all(text.endswith(f" python {server.cgi / 'nap.py'}") for _, _, text in requests)  # no query
    assert [text for _, _, text in named(path, "x-runs")] == [engine, engine]
    assert [text for _, _, text in named(path, "x-answered")] == ["ok", "ok"]
    names = [name for name, *_ in events(path) if name.startswith("x-")]
    assert names[0] == "x-begins" and "x-process" in names and names[-1] == "x-stops"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_statement_names_the_connection_that_asks_and_no_value(start: Start, tmp_path: Path) -> None:
    require("Linux")
    path, database = tmp_path / "trace", tmp_path / "demo.db"
    with closing(sqlite3.connect(database)) as made, made:
        made.execute("CREATE TABLE log (name)")
        made.execute("INSERT INTO log VALUES ('topsecret')")
    server = start("pool", "--trace", str(path), "--database", f"demo={database}", "--browser", "/db")
    assert b"topsecret" in ask(server, "/db/demo/log?name=topsecret")
    server.stop()
    (connection,) = [connection for connection, _, text in named(path, "request")]
    statements = {name: text for name, _, text in named(path, "db-request")}
    assert statements and {text.split()[0] for text in statements.values()} == {connection}
    runs, ends = named(path, "db-runs"), named(path, "db-answered")
    assert {name for name, _, _ in runs} == {name for name, _, _ in ends} == set(statements)
    assert all(re.fullmatch(r"\d+\.\d{3} ok", text) for _, _, text in ends)
    assert any('FROM "log"' in text for _, _, text in runs)
    assert not any("topsecret" in text for name, _, _, text in events(path) if name.startswith("db-"))
    opened = named(path, "db-opened")
    assert opened and {worker for _, worker, _ in opened} == {worker for _, worker, _ in runs}


def test_why_an_engine_ends(tmp_path: Path) -> None:
    path = tmp_path / "x.trace"
    settings = f"""trace = '{path}'
max-engines-per-user = 1
time-limit = '1s'
idle = '1s'
"""
    with xswitch(settings) as running:
        script, other = (
            running.script("nap.py", SCRIPT),
            running.script("x.pl", "print qq(Content-Type: a/b\\n\\n);"),
        )
        assert running.ask(script).status == 200
        assert running.ask(other).status == 200
        assert running.ask(script, QUERY_STRING="30").status == 504
        assert running.ask(script).status == 200
        wait_until(lambda: " idle: " in path.read_text(), 20)
    whys = [text.partition(" ")[2].partition(":")[0] for _, _, text in named(path, "x-ended")]
    assert whys == ["evicted", "evicted", "killed", "idle"]
    outcomes = [text for _, _, text in named(path, "x-answered")]
    assert outcomes == ["ok", "ok", "504 ended after 1 s (time-limit)", "ok"]


def test_a_name_of_a_file_makes_no_event(tmp_path: Path) -> None:
    path = tmp_path / "x.trace"
    with xswitch(f"trace = '{path}'\n") as running:
        evil = "a\n1.000000 x-stops - 1\x852\u2028.py"
        reply = running.ask(running.script(evil, SCRIPT))
        assert reply.status == 200, running.log()
    found = events(path)  # each line has the form of an event
    (request,) = [text for name, _, _, text in found if name == "x-request"]
    assert r"a\n1.000000 x-stops" in request
    assert [name for name, *_ in found].count("x-stops") == 1


def test_no_engine_gets_the_descriptor_of_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "x.trace"
    with xswitch(f"trace = '{path}'\n") as running:
        reply = running.ask(running.script("look.py", LOOK))
        assert reply.status == 200 and str(path) not in reply.text and "pipe:" in reply.text
        assert named(path, "x-runs")


def test_a_pipe_that_is_full_holds_no_script(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with xswitch(f"trace = '{path}'\n") as running:
            script = running.script("nap.py", SCRIPT)
            for _ in range(400):  # more events than the pipe has room for
                assert running.ask(script).status == 200
            assert len(os.read(reader, 1 << 20)) > 60_000
            assert running.ask(script).status == 200
            assert re.search(rb" lost - \d+/\d+ [1-9]\d*\n", os.read(reader, 1 << 20))
    finally:
        os.close(reader)


def test_a_daemon_of_its_own_and_a_killed_statement(tmp_path: Path) -> None:
    require("Linux")
    path, settings, address = tmp_path / "d.trace", tmp_path / "dbd.toml", f"unix:{tmp_path / 'sock'}"
    sqlite3.connect(tmp_path / "a.db").close()
    settings.write_text(
        f"listen = ['{address}']\ntime-limit = '0.5s'\nconnections = 1\n[databases.a]\nsource = 'a.db'\n"
    )
    options = ["--config", str(settings), "--trace", str(path)]
    command = [sys.executable, "-m", "ewe.database.cli", *options]
    with subprocess.Popen(command) as daemon:
        try:
            wait_until(lambda: accepts(tmp_path / "sock"), 20)
            with Client(address) as client:
                b"".join(
                    client.ask(ClientRequest("a", "SELECT 'hidden', 7", client=client_identifier("12.34")))
                )
                with pytest.raises(Exception, match=r"cancelled after the time limit"):
                    slow = (
                        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT count(*) FROM n"
                    )
                    b"".join(client.ask(ClientRequest("a", slow)))
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(20)
    requests = named(path, "db-request")
    assert [text for _, _, text in requests] == [f"12.34 uid:{os.geteuid()} a", f"- uid:{os.geteuid()} a"]
    assert named(path, "db-runs")[0][2] == "SELECT ?, ?"
    assert [text.split()[1] for _, _, text in named(path, "db-answered")] == ["ok", "TIMEOUT"]
    assert len(named(path, "db-lost")) == 1 and named(path, "db-stops")


def test_a_connection_is_a_number_and_back() -> None:
    for name in ("1.1", "4194304.4294967295"):
        assert connection_of(client_identifier(name)) == name
    assert (
        connection_of(None) == connection_of(4321) == connection_of(-5) == ""
        and client_identifier("-") is None
    )


@pytest.mark.parametrize("module", ["ewe.xswitch.cli", "ewe.database.cli"])
def test_a_trace_that_cannot_be_written_is_one_line(module: str, tmp_path: Path) -> None:
    require("Linux")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dbd.toml").write_text("[databases.a]\nsource = 'a.db'\n")
    config = ["--config", str(tmp_path / "dbd.toml")] if "database" in module else []
    for where, why in (
        (str(tmp_path / "no/dir"), "No such file or directory"),
        (str(tmp_path / "pipe"), "no program reads this pipe"),
        ("fd://99", "Bad file descriptor"),
        ("fd://x", "Bad file descriptor"),
    ):
        options = ["--listen", f"unix:{tmp_path / 's'}", "--trace", where]
        command = [sys.executable, "-m", module, *config, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode in (1, 2) and f"{why} (trace)" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr


def test_a_file_that_others_can_read_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    Trace(str(path))
    assert exposure_warning(str(path)) == "" == exposure_warning(str(tmp_path / "absent"))
    path.chmod(0o644)
    assert exposure_warning(str(path)).endswith(f"chmod 600 {path}")
