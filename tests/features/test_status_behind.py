"""The status of X-Switch and of the database daemon, timeouts by kind, and the dashboard's queries."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from support.needs import require
from support.proc import children_of
from support.server import ROOT, Server, Start, wait_until, write_program

DASHBOARD = ROOT / "share" / "grafana" / "ewe.json"
SCRIPT = "#!/usr/bin/env python3\nprint('Content-Type: text/plain\\n\\nhi')\n"


def get(server: Server, path: str) -> bytes:
    head, _, body = server.ask(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    ).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    return body


def numbers(server: Server) -> dict[str, Any]:
    found = json.loads(get(server, "/ewe-status?json"))
    assert isinstance(found, dict)
    return found


def metrics(server: Server) -> dict[str, float]:
    """Return each metric by its name and the values of its labels."""
    text = get(server, "/ewe-status/metrics").decode()
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def make_database(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("CREATE TABLE log (name)")
    path.chmod(0o644)
    return path


def stopped(server: Server) -> list[int]:
    """Stop the processes of X-Switch as a fault would; return their pids."""
    found = [
        pid
        for pid in children_of(server.process.pid)
        if b"ewe.xswitch" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    found += [child for pid in found for child in children_of(pid)]
    for pid in found:
        os.kill(pid, signal.SIGSTOP)
    return found


def test_engines_and_requests_of_xswitch(start: Start) -> None:
    server = start("xswitch", "--status", "/ewe-status")
    write_program(server.cgi / "hello.py", SCRIPT)
    for _ in range(3):
        get(server, "/cgi-bin/hello.py")
    found = metrics(server)
    assert found["ewe_xswitch_up"] == 1 and found["ewe_xswitch_requests_total"] == 3
    assert found["ewe_xswitch_engines python idle"] == 1 and found["ewe_xswitch_engines python busy"] == 0
    assert found["ewe_xswitch_engines_started_total"] == 1 and found["ewe_xswitch_queue"] == 0
    os.kill(server.process.pid, signal.SIGHUP)
    wait_until(lambda: "read again" in server.log(), 20)
    assert metrics(server)["ewe_xswitch_requests_total"] == numbers(server)["xswitch"]["requests"] == 3
    page = get(server, "/ewe-status").decode()
    assert "<h2>X-Switch</h2>" in page and "<tr><td>python<td>0<td>1" in page
    assert os.environ.get("USER", "?x?") not in json.dumps(numbers(server)["xswitch"])  # no names of users


def test_a_dead_xswitch_is_said_so_within_a_second(start: Start) -> None:
    server = start("xswitch", "--status", "/ewe-status")
    write_program(server.cgi / "hello.py", SCRIPT)
    get(server, "/cgi-bin/hello.py")
    pids = stopped(server)
    try:
        began = time.monotonic()
        assert metrics(server)["ewe_xswitch_up"] == 0
        once = time.monotonic() - began
        assert numbers(server)["xswitch"] == {
            "up": False,
            "error": "X-Switch: silent for 0.8 s (program-timeout)",
        }
        assert "Down: X-Switch: silent" in get(server, "/ewe-status").decode()
        assert once < 60  # a hang would last for program-timeout
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: metrics(server)["ewe_xswitch_up"] == 1, 20)


def test_connections_and_statements_of_the_daemon(start: Start, model: str, tmp_path: Path) -> None:
    require("Linux")
    database = make_database(tmp_path / "demo.db")
    options = ("--database", f"demo={database}", "--browser", "/db", "--status", "/ewe-status")
    server = start(model, *options)
    assert metrics(server)["ewe_database_statements_total"] == 0
    get(server, "/db/demo/log")
    found = metrics(server)
    assert found["ewe_database_up"] == 1 and found["ewe_database_statements_total"] > 0
    assert found["ewe_database_connections demo"] >= 1 and found["ewe_database_queue"] == 0
    assert "<h2>Database daemon</h2>" in get(server, "/ewe-status").decode()


def test_a_daemon_that_is_not_there(start: Start, tmp_path: Path) -> None:
    require("Linux")
    options = ("--database", "demo", "--dbd", f"unix:{tmp_path / 'none'}", "--status", "/ewe-status")
    server = start("asyncio", *options)
    found = numbers(server)["database"]
    assert not found["up"] and "cannot be reached: No such file or directory" in found["error"]
    assert metrics(server)["ewe_database_up"] == 0


def test_timeouts_by_kind(start: Start, model: str) -> None:
    times = ("--head-timeout", "1", "--body-timeout", "1", "--idle", "1", "--program-timeout", "1")
    server = start(model, "--status", "/ewe-status", *times)
    write_program(server.cgi / "slow", "#!/bin/sh\nexec sleep 30\n")
    write_program(server.cgi / "read", "#!/bin/sh\nexec cat >/dev/null\n")
    asked = {
        "silent": b"",
        "head": b"GET / HTTP/1.1\r\n",
        "keep-alive": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "program": b"GET /cgi-bin/slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "body": b"POST /cgi-bin/read HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1",
    }
    for data in asked.values():  # one after the other: a serial server has one worker
        with server.connect() as sock:
            sock.sendall(data)
            read_to_end(sock)
    wait_until(lambda: sum(numbers(server)["timeouts"].values()) >= len(asked), 20)
    found = numbers(server)["timeouts"]
    assert {kind: count for kind, count in found.items() if count} == {
        "head": 2, "keep-alive": 1, "program": 1, "body": 1,
    }  # fmt: skip
    assert metrics(server)["ewe_timeouts_total head"] == 2
    assert "Timeouts: head 2, body 1, keep-alive 1, program 1." in get(server, "/ewe-status").decode()


def test_timeouts_of_upstreams_and_of_writing(start: Start, model: str) -> None:
    """A server that takes a connection and says nothing; a client that asks for a large file and reads nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"/api=http://127.0.0.1:{silent.getsockname()[1]}"
        options = ("--proxy", url, "--proxy-timeout", "1", "--write-timeout", "1", "--status", "/ewe-status")
        server = start(model, *options)
        with open(server.root / "large.bin", "wb") as large:
            large.truncate(64 << 20)
        answer = server.ask(b"GET /api/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 504"), answer
        with server.connect() as sock:
            sock.sendall(b"GET /large.bin HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            time.sleep(1.5)  # longer than write-timeout; a serial server answers nobody else meanwhile
            wait_until(lambda: numbers(server)["timeouts"]["write"] == 1, 20)
    found = numbers(server)["timeouts"]
    assert {kind: count for kind, count in found.items() if count} == {"upstream": 1, "write": 1}


def test_a_timeout_in_the_queue_of_a_responder(start: Start) -> None:
    """The one connection that fastcgi-connections allows is taken by a request that gets no answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"/app=127.0.0.1:{silent.getsockname()[1]}"
        limits = ("--fastcgi-connections", "1", "--fastcgi-queue-timeout", "1")
        server = start("thread", "--fastcgi", address, *limits, "--status", "/ewe-status")
        request = b"GET /app/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        with server.connect() as first:
            first.sendall(request)
            with silent.accept()[0] as held:
                held.recv(1)  # the request has the connection now
                assert server.ask(request).startswith(b"HTTP/1.1 503")
        assert numbers(server)["timeouts"]["queue"] == 1


def read_to_end(sock: socket.socket) -> None:
    while sock.recv(65536):
        pass


def test_the_dashboard_asks_only_for_metrics_that_exist(start: Start, tmp_path: Path) -> None:
    require("Linux")
    database = make_database(tmp_path / "demo.db")
    server = start("xswitch", "--status", "/ewe-status", "--database", f"demo={database}", "--browser", "/db")
    write_program(server.cgi / "hello.py", SCRIPT)
    get(server, "/cgi-bin/hello.py")
    get(server, "/db/demo/log")
    known = {name.partition(" ")[0] for name in metrics(server)}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = {
        name for panel in panels for each in panel["targets"] for name in re.findall(r"ewe_\w+", each["expr"])
    }
    assert asked <= known, asked - known
    assert {
        name for name in known if name.startswith(("ewe_xswitch", "ewe_database", "ewe_timeouts"))
    } <= asked | {"ewe_xswitch_connections"}
