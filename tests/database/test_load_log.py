"""`ewe-dbd load`: the logs that servers write, and lines that no server should have written."""

from __future__ import annotations

import gzip
import os
import pwd
import signal
import socket
import sqlite3
import subprocess
from base64 import b64encode
from pathlib import Path

import pytest
from support.server import Start, free_port, wait_until
from support.wire import read_all

from ewe.database.access_log import MAX_LINE_CHARS, open_log, rows_of
from ewe.database.cli import main

AGENT = 'He said "hi" \\ back [22/Nov/2026:19:12:46 +0000] "GET / HTTP/1.1" 200 1'
NAME = 'John [x] "Q" Smith'
HEAD = b"Host: a\r\nConnection: close\r\n"
REQUESTS = (
    b"GET /quoted HTTP/1.1\r\n"
    + HEAD
    + b'Referer: http://x/"q"\r\nUser-Agent: '
    + AGENT.encode()
    + b"\r\n\r\n",
    b'GET /"a"\\b HTTP/1.1\r\n' + HEAD + b"\r\n",
    b"GET /named HTTP/1.1\r\n"
    + HEAD
    + b"Authorization: Basic "
    + b64encode(f"{NAME}:x".encode())
    + b"\r\n\r\n",
    b"\x16\x03\x01\x02\r\n\r\n",
    b"GET\r\n\r\n",
    b"nonsense here and there\r\n\r\n",
    b"HEAD /head HTTP/1.1\r\n" + HEAD + b"\r\n",
    b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n" + HEAD + b"\r\n",
    b"GET /\xc3\xa9 HTTP/1.1\r\n" + HEAD + b"User-Agent: \xc3\xa9\tq\r\n\r\n",
)
NGINX = """\
daemon off; master_process off; pid {where}/pid; error_log {where}/errors;
events {{}}
http {{
  log_format vhost '$host:$server_port $remote_addr - $remote_user [$time_local] "$request" $status '
    '$body_bytes_sent "$http_referer" "$http_user_agent"';
  access_log {where}/combined.log combined;
  access_log {where}/vhost.log vhost;
  client_body_temp_path {where}; proxy_temp_path {where}; fastcgi_temp_path {where};
  uwsgi_temp_path {where}; scgi_temp_path {where};
  server {{ listen 127.0.0.1:{port}; root {where}; }}
}}
"""
APACHE = """\
ServerRoot {where}
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
{user}
PidFile {where}/pid
ErrorLog {where}/errors
Listen 127.0.0.1:{port}
ServerName localhost
DocumentRoot {where}
CustomLog {where}/common.log "%h %l %u %t \\"%r\\" %>s %b"
CustomLog {where}/combined.log "%h %l %u %t \\"%r\\" %>s %O \\"%{{Referer}}i\\" \\"%{{User-Agent}}i\\""
CustomLog {where}/vhost.log "%v:%p %h %l %u %t \\"%r\\" %>s %b \\"%{{Referer}}i\\" \\"%{{User-Agent}}i\\""
"""
COLUMNS = "address, user, request, status, bytes, referrer, agent"


def loaded(log: Path) -> list[tuple[str, str, str, int, int, str, str]]:
    """Load a log; return its rows. No line may be left out."""
    database = log.with_suffix(".db")
    lines = len(log.read_bytes().splitlines())
    assert main(["load", str(log), str(database)]) == 0
    connection = sqlite3.connect(database)
    try:
        rows = connection.execute(f"SELECT {COLUMNS} FROM log").fetchall()
    finally:
        connection.close()
    assert len(rows) == lines > 0, log.read_text(errors="replace")
    return rows


def ask_all(port: int) -> None:
    """Send each of the requests on a connection of its own."""
    for request in REQUESTS:
        with socket.create_connection(("127.0.0.1", port), 30) as sock:
            try:
                sock.sendall(request)
                sock.shutdown(socket.SHUT_WR)
                read_all(sock)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it has refused what came first


def check_rows(rows: list[tuple[str, str, str, int, int, str, str]], address: str = "127.0.0.1") -> None:
    """Check what every server logs of the requests."""
    assert {row[0] for row in rows} == {address}
    found = {row[2]: row for row in rows}
    # The common format has neither
    assert found["GET /quoted HTTP/1.1"][5:] in {('http://x/"q"', AGENT), ("-", "-")}
    assert 'GET /"a"\\b HTTP/1.1' in found
    assert found["HEAD /head HTTP/1.1"][3] == 404
    assert any(row[2].startswith("GET /xxxxxxxx") and row[3] == 414 for row in rows)
    assert any(row[2].startswith("\\x16") and row[3] == 400 for row in rows)
    assert len(rows) == len(REQUESTS)


@pytest.mark.starts_processes
def test_the_log_of_each_model(start: Start, model: str, tmp_path: Path) -> None:
    server = start(model)
    ask_all(server.port)
    assert server.stop() == 0
    check_rows(loaded(server.access_file))


@pytest.mark.starts_processes
@pytest.mark.parametrize("family", ["ipv6", "unix"])
def test_the_log_of_other_addresses(family: str, start: Start, tmp_path: Path) -> None:
    port = free_port()
    place = f"[::1]:{port}" if family == "ipv6" else f"unix:{tmp_path}/socket"
    server = start("thread", "--bind", "127.0.0.1:0", "--bind", place)
    if family == "ipv6":
        sock = socket.create_connection(("::1", port), 30)
    else:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(f"{tmp_path}/socket")
    with sock:
        sock.sendall(REQUESTS[0])
        read_all(sock)
    server.stop()
    (row,) = loaded(server.access_file)
    assert row[0] == ("::1" if family == "ipv6" else "unix:")
    assert row[5:] == ('http://x/"q"', AGENT)


def run_peer(command: list[str], port: int) -> None:
    """Run another server, ask it all, and stop it."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )

    def listens() -> bool:
        assert process.poll() is None, process.communicate()
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
        except ConnectionRefusedError:
            return False
        return True

    try:
        wait_until(listens, 30)
        ask_all(port)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


@pytest.mark.needs("nginx")
@pytest.mark.starts_processes
def test_the_logs_of_nginx(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "nginx.conf").write_text(NGINX.format(where=tmp_path, port=port))
    run_peer(["/usr/sbin/nginx", "-c", str(tmp_path / "nginx.conf")], port)
    for name in ("combined", "vhost"):
        rows = loaded(tmp_path / f"{name}.log")
        check_rows(rows)
        # Which nginx logs though nobody has checked the password
        assert {row[1] for row in rows} == {"-", NAME}


@pytest.mark.needs("apache2")
@pytest.mark.starts_processes
def test_the_logs_of_apache(tmp_path: Path) -> None:
    port = free_port()
    user = "" if os.geteuid() else f"User nobody\nGroup #{pwd.getpwnam('nobody').pw_gid}"
    (tmp_path / "apache.conf").write_text(APACHE.format(where=tmp_path, port=port, user=user))
    run_peer(["/usr/sbin/apache2", "-X", "-f", str(tmp_path / "apache.conf")], port)
    for name in ("common", "combined", "vhost"):
        check_rows([row for row in loaded(tmp_path / f"{name}.log") if row[3] != 408])


AT = "[22/Nov/2026:19:12:46 +0000]"


@pytest.mark.parametrize(
    ("line", "address", "user", "asked", "size", "agent"),
    [
        (f'::1 - - {AT} "GET / HTTP/1.1" 200 5', "::1", "-", "GET / HTTP/1.1", 5, "-"),
        (f'::1 - bob smith {AT} "GET /" 200 -', "::1", "bob smith", "GET /", 0, "-"),
        (f'fe80::1%eth0 - - {AT} "" 400 0 "-" ""', "fe80::1%eth0", "-", "-", 0, "-"),
        (f'www.example.org:80 1.2.3.4 - - {AT} "GET /" 200 5 "-" "x"', "1.2.3.4", "-", "GET /", 5, "x"),
        (f'www.example.org:80 ::1 - a b {AT} "GET /" 200 5 "-" "x"\r\n', "::1", "a b", "GET /", 5, "x"),
        (f'host.example ident "" {AT} "-" 408 - "-" "-"', "host.example", '""', "-", 0, "-"),
        (f'a - [x] {AT} "GET /\\\\x41\\x22\\x16\\t" 200 5', "a", "[x]", 'GET /\\x41"\\x16\\t', 5, "-"),
        (f'a - - {AT} "x" 200 {"9" * 30}', "a", "-", "x", 9223372036854775807, "-"),
        (f'a - - {AT} "x" 200 1{"0" * 5000}', "a", "-", "x", 9223372036854775807, "-"),
        (f'a - - {AT} "x" 200 5 "-" "y" 677 pool 0', "a", "-", "x", 5, "y"),
        (f'a - - {AT} "x" 200 5 "-" "half', "a", "-", "x", 5, "-"),
    ],
)  # fmt: skip
def test_odd_lines(line: str, address: str, user: str, asked: str, size: int, agent: str) -> None:
    (row,) = rows_of([line])
    assert row is not None
    assert (row[0], row[1], row[3], row[5], row[7]) == (address, user, asked, size, agent)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\0" * 100,
        f'a - - {AT} "GET /',
        f'a - - {AT} "GET /" OK 5',
        f'a - - {AT} "GET /" 200 5x',
        f'a - - {AT} "GET /" ２００ 5',
        'a - - [yesterday] "GET /" 200 5',
        f'- {AT} "GET /" 200 5',
        f'a - - {AT} "{"x" * MAX_LINE_CHARS}" 200 5',
        '{"remote_addr": "127.0.0.1", "status": 200}',
        "2026-11-22 19:12:46 127.0.0.1 GET / - 200",
    ],
)
def test_lines_that_are_no_rows(line: str) -> None:
    assert list(rows_of([line])) == [None]


def test_a_log_is_read_by_lines_of_bounded_length(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    line = f'a - - {AT} "x\ry" 200 5\n'.encode()
    log.write_bytes(
        line + b"\xff" * (3 * MAX_LINE_CHARS) + b"\n" + line + b"z" * (MAX_LINE_CHARS + 1) + b"\n" + line[:-1]
    )
    with open_log(str(log)) as lines:
        kept = list(lines)
    assert max(map(len, kept)) <= MAX_LINE_CHARS + 1
    assert [row and row[3] for row in rows_of(kept)] == ["x\ry", None, "x\ry", None, "x\ry"]


def test_a_compressed_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f'a - - {AT} "GET /" 200 5\n'.encode() * 1000
    whole, half = tmp_path / "access.log.2.gz", tmp_path / "half.gz"
    whole.write_bytes(gzip.compress(text))
    half.write_bytes(whole.read_bytes()[:-20])
    database = tmp_path / "access.db"
    assert main(["load", str(whole), str(database)]) == 0
    assert "1000 rows added" in capsys.readouterr().out
    assert main(["load", str(half), str(database)]) == 2
    said = capsys.readouterr().err
    assert "it is no whole gzip file" in said or "Error" in said
    assert said.count("\n") == 1
    connection = sqlite3.connect(database)
    assert connection.execute("SELECT COUNT(*) FROM log").fetchone() == (1000,)  # nothing of the half one
    connection.close()


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (b"", 0, "0 rows added to the table log, 0 lines left out"),
        (b"root:x:0:0\nnobody:x\n", 2, "none of its 2 lines is in the common or the combined format"),
        (b"\x1f\x8bnot gzip", 2, "access.log: "),
    ],
)
def test_what_is_no_log(
    content: bytes, status: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "access.log"
    log.write_bytes(content)
    assert main(["load", str(log), str(tmp_path / "access.db")]) == status
    output, errors = capsys.readouterr()
    assert said in output + errors and (output + errors).count("\n") == 1
