"""The database daemon as a process: access, protection of the databases, and failures."""

from __future__ import annotations

import json
import os
import pwd
import resource
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.daemon import ME, Daemon
from support.proc import peak_memory
from support.server import ROOT, free_port, wait_until

from ewe.database.client import Client
from ewe.database.protocol import (
    MAX_ERROR_CHARS,
    MAX_FRAME_BYTES,
    ClientRequest,
    DatabaseError,
    FrameDecoder,
    decode_response,
    encode_request,
)

pytestmark = pytest.mark.starts_processes
ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT max(n) FROM c"
COUNT = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT ?) SELECT n, 'text' FROM c"
NOBODY = pwd.getpwnam("nobody")


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="ewe-dbd-") as name:
        Path(name).chmod(0o755)
        made = Daemon(Path(name))
        yield made
        made.stop(signal.SIGKILL)


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    """One daemon for the tests that only ask."""
    with tempfile.TemporaryDirectory(prefix="ewe-dbd-") as name:
        Path(name).chmod(0o755)
        made = Daemon(Path(name))
        try:
            made.start()
            yield made
            assert made.stop() == 0
        finally:
            made.stop(signal.SIGKILL)


LAYOUTS = {
    "TABLE": '<td class="number">1</td><td>&lt;b&gt;&quot;wool&quot; &amp; ü&lt;/b&gt;</td>'
    '<td class="number">2.5</td><td>AP8=</td>',
    "PRE": "1\t&lt;b&gt;&quot;wool&quot; &amp; ü&lt;/b&gt;\t2.5\tAP8=\n",
    "OPTION": '<option value="1">&lt;b&gt;&quot;wool&quot; &amp; ü&lt;/b&gt; 2.5 AP8=</option>',
    "JSON": '{"id": 1, "name": "<b>\\"wool\\" & ü</b>", "price": 2.5, "image": "AP8="}',
    "CSV": '1,"<b>""wool"" & ü</b>",2.5,AP8=\r\n',
    "XML": '<row><value column="id">1</value>'
    '<value column="name">&lt;b&gt;&quot;wool&quot; &amp; ü&lt;/b&gt;</value>',
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_shows_text_as_text(shared: Daemon, layout: str) -> None:
    assert LAYOUTS[layout] in shared.ask("SELECT * FROM goods", layout=layout)


@pytest.mark.parametrize(
    "value",
    [None, 0, -(2**63), 2**63 - 1, 1.5, "", "'; DROP TABLE goods; --", "a\0b", "日本 <script>", b"\0\xff"],
)
def test_a_parameter_is_bound_and_never_pasted(shared: Daemon, value: object) -> None:
    shown = json.loads(shared.ask("SELECT ? AS it, typeof(?) AS type", [value, value]))[0]
    expected = "AP8=" if value == b"\0\xff" else value
    assert shown["it"] == expected
    assert json.loads(shared.ask("SELECT COUNT(*) AS n FROM goods"))[0]["n"] == 1


def test_a_text_that_is_not_utf8_comes_through(shared: Daemon) -> None:
    """The rows before and after it do, too. The next statement does not notice."""
    rows = "VALUES ('ü', 1), (CAST(x'ff41' AS TEXT), 2), ('日本', x'ff'), ('', CAST(x'e4' AS TEXT))"
    found = json.loads(shared.ask(f"SELECT column1 AS a, column2 AS b FROM ({rows})"))
    assert [list(row.values()) for row in found] == [
        ["ü", 1],
        ["\ufffdA", 2],
        ["日本", "/w=="],
        ["", "\ufffd"],
    ]
    assert json.loads(shared.ask("SELECT 'ü' AS a")) == [{"a": "ü"}]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM goods",
        "CREATE TABLE more (id)",
        "CREATE TEMP TABLE more (id)",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA writable_schema = 1",
        "UPDATE sqlite_master SET sql = ''",
        "UPDATE sqlite_schema SET name = 'x'",
        "ATTACH 'more.db' AS more",
        "VACUUM INTO 'more.db'",
        "SELECT load_extension('x')",
        "SELECT 1; DELETE FROM goods",
        "SELECT * FROM nothing",
        "",
        "BEGIN",
    ],
)
def test_a_statement_that_may_not_be_is_refused(shared: Daemon, statement: str) -> None:
    before = sorted(os.listdir(shared.directory))
    if statement:
        with pytest.raises(DatabaseError) as refused:
            shared.ask(statement)
        assert refused.value.kind == "STATEMENT" and "\n" not in str(refused.value)
    else:
        assert shared.ask(statement) == "[]\n"
    assert sorted(os.listdir(shared.directory)) == before
    assert json.loads(shared.ask("SELECT COUNT(*) AS n FROM goods"))[0]["n"] == 1


@pytest.mark.parametrize(
    "statement",
    [
        "ATTACH 'more.db' AS more",
        "VACUUM INTO 'more.db'",
        "PRAGMA writable_schema=1",
        "CREATE TEMP TABLE goods (id)",
        "CREATE VIEW temp.goods AS SELECT 1",
    ],
)
def test_who_may_write_writes_to_one_file_only(shared: Daemon, statement: str) -> None:
    before = sorted(os.listdir(shared.directory))
    with pytest.raises(DatabaseError):
        shared.ask(statement, database="shop")
    assert sorted(os.listdir(shared.directory)) == before


def test_a_statement_that_may_only_read_changes_nothing_where_others_may(shared: Daemon) -> None:
    """A visitor may write a statement of their own in a page that also has forms."""
    for statement in (
        "DELETE FROM goods",
        "DROP TABLE goods",
        "WITH a AS (SELECT 1) INSERT INTO goods SELECT * FROM a",
    ):
        with pytest.raises(DatabaseError) as refused:
            shared.ask(statement, database="shop", read_only=True)
        assert refused.value.kind == "STATEMENT"
    assert json.loads(shared.ask("SELECT COUNT(*) AS n FROM goods", database="shop", read_only=True))[0]["n"]
    shared.ask("UPDATE goods SET price = price", database="shop")


def test_the_schema_and_a_full_text_index_may_be_read(daemon: Daemon) -> None:
    with sqlite3.connect(daemon.directory / "log.db") as connection:
        connection.executescript(
            "CREATE VIRTUAL TABLE words USING fts5(text); INSERT INTO words VALUES ('wool')"
        )
    connection.close()
    daemon.start()
    assert '"wool"' in daemon.ask("SELECT text FROM words WHERE words MATCH 'wo*'")
    columns = daemon.ask("SELECT c.name FROM pragma_table_list AS t JOIN pragma_table_xinfo(t.name) AS c")
    assert '"price"' in columns


def test_a_change_is_kept_whole_or_not_at_all(shared: Daemon) -> None:
    shared.ask("INSERT INTO goods (id, name) VALUES (?, ?)", [7, "ewe"], database="shop")
    with pytest.raises(DatabaseError):
        shared.ask(
            "INSERT INTO goods (id, name) SELECT 8 - n, 'x' FROM (SELECT 0 AS n UNION SELECT 1)",
            database="shop",
        )
    rows = json.loads(shared.ask("SELECT id FROM goods ORDER BY id", database="shop"))
    assert [row["id"] for row in rows] == [1, 7]


@pytest.mark.needs("root")
def test_a_database_is_for_its_users(shared: Daemon) -> None:
    assert may_nobody_use(shared, "log") == "yes"
    for database in ("shop", "staff", "unknown", ""):  # "": the status
        assert may_nobody_use(shared, database) == "FORBIDDEN"


@pytest.mark.needs("root")
def test_accounts_are_looked_up_when_the_settings_are_read(daemon: Daemon) -> None:
    daemon.databases["log"] = [f"users = ['{ME}', 'nobody-at-all']"]
    daemon.start()
    assert "[databases.log] users: there is no account 'nobody-at-all'" in daemon.log.read_text()
    assert may_nobody_use(daemon, "log") == "FORBIDDEN"
    daemon.databases["log"] = [f"users = ['{ME}', 'nobody']"]
    daemon.settings()
    os.kill(daemon.pid, signal.SIGHUP)
    wait_until(lambda: may_nobody_use(daemon, "log") == "yes", 5)


def may_nobody_use(daemon: Daemon, database: str) -> str:
    """Ask as the account nobody; return "yes", or the kind of the error."""
    code = (
        "import os, sys; from ewe.database.client import Client\n"
        "from ewe.database.protocol import ClientRequest, DatabaseError\n"
        "os.setgroups([]); os.setgid(int(sys.argv[4])); os.setuid(int(sys.argv[3]))\n"
        "try: list(Client(sys.argv[1]).ask(ClientRequest(sys.argv[2], 'SELECT 1'))); print('yes', end='')\n"
        "except DatabaseError as error: print(error.kind, end='')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, daemon.address, database, str(NOBODY.pw_uid), str(NOBODY.pw_gid)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_tcp_asks_for_a_key(daemon: Daemon) -> None:
    port = free_port()
    unix = daemon.address
    daemon.general.insert(0, "")
    daemon.databases["log"].append("key = 'sesame'")
    daemon.address = f"{unix}', '127.0.0.1:{port}"
    settings = daemon.settings()
    daemon.address = unix
    command = [sys.executable, "-m", "ewe.database.cli", "--config", str(settings), "--log", str(daemon.log)]
    daemon.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
    wait_until(daemon.answers, 10)
    daemon.address = f"127.0.0.1:{port}"
    assert daemon.ask("SELECT 2 AS n", key="sesame", layout="CSV") == "n\r\n2\r\n"
    for database, key in (("log", ""), ("log", "Sesame"), ("shop", ""), ("shop", "sesame")):
        with pytest.raises(DatabaseError) as refused:
            daemon.ask("SELECT 2", database=database, key=key)
        assert refused.value.kind == "FORBIDDEN"


@pytest.mark.parametrize(
    "cut", [b"", b"\0", b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\5D\0\0\0\\9"]
)
def test_bytes_that_are_no_request_end_one_connection_only(shared: Daemon, cut: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(shared.address[5:])
        sock.sendall(cut)
        sock.shutdown(socket.SHUT_WR)
        answer = sock.recv(4096)
        if answer:
            decoder = FrameDecoder()
            decoder.feed(answer)
            response = decode_response(decoder.next_frame() or [])
            assert response.error is not None and response.error.kind == "MESSAGE"
            assert sock.recv(4096) == b""
    assert shared.answers()


def test_requests_in_one_segment_are_answered_in_order(shared: Daemon) -> None:
    requests = [ClientRequest("log", "SELECT ? AS n", "CSV", [number]) for number in range(5)]
    with Client(shared.address) as client:
        client.socket.sendall(b"".join(map(encode_request, requests[:-1])))
        client.socket.settimeout(20)
        assert b"".join(client.ask(requests[-1])) == b"n\r\n0\r\n"
        decoder, answers = client.decoder, []
        while len(answers) < 4:
            fields = decoder.next_frame()
            if fields is None:
                decoder.feed(client.socket.recv(4096))
            else:
                answers.append(decode_response(fields).fragment)
    assert answers == [b"n\r\n%d\r\n" % number for number in (1, 2, 3, 4)]


@pytest.mark.parametrize("length", [100_000, MAX_FRAME_BYTES - 36])
def test_an_error_that_quotes_a_long_name_is_cut(shared: Daemon, length: int) -> None:
    """The name of the second one fits into a request, and would not fit into a response."""
    size = shared.log.stat().st_size
    with pytest.raises(DatabaseError, match="no such column: aaaa") as refused:
        shared.ask("SELECT " + "a" * length, layout="CSV")
    assert refused.value.kind == "STATEMENT" and len(str(refused.value)) == MAX_ERROR_CHARS
    assert shared.log.stat().st_size - size < 2 * MAX_ERROR_CHARS


def test_a_result_that_is_not_read_to_its_end_is_not_part_of_the_next(shared: Daemon) -> None:
    with Client(shared.address, 60) as client:
        for rows in (50_000, 10):  # the first is longer than the buffers; all of the second may have arrived
            unfinished = client.ask(ClientRequest("log", COUNT, "CSV", [rows]))
            assert next(unfinished).startswith(b"n,'text'\r\n1,text")
            assert b"".join(client.ask(ClientRequest("log", "SELECT 1 AS n", "CSV"))) == b"n\r\n1\r\n"
        unfinished = client.ask(ClientRequest("log", COUNT, "CSV", [50_000]))
        next(unfinished)
        next(client.ask(ClientRequest("log", COUNT, "CSV", [50_000])))
        with pytest.raises(DatabaseError, match="another request has ended this result"):
            next(unfinished)
    wait_until(lambda: shared.status()["running"] == 0, 5)


def test_a_long_result_needs_no_memory(shared: Daemon) -> None:
    text = "sheep " * 40
    wide, rows = COUNT.replace("'text'", f"'{text}' AS text"), 100_000
    shared.ask(wide, [1000])
    processes = [shared.pid, *(each["pid"] for each in shared.status()["daemons"])]  # type: ignore[attr-defined]
    before = peak_memory(processes)
    size = 0
    with Client(shared.address, 60) as client:
        for piece in client.ask(ClientRequest("log", wide, "CSV", [rows], time_limit=49.0)):
            size += len(piece)
    assert size == len("n,text\r\n") + sum(len(f"{n},{text}\r\n") for n in range(1, rows + 1))
    assert size > 20 << 20 and peak_memory(processes) - before < 8 << 20


def test_rows_end_where_the_gateway_asks_and_fail_where_the_daemon_says(daemon: Daemon) -> None:
    daemon.general.append("rows = 1000")
    daemon.start()
    assert daemon.ask(COUNT, [5000], rows=3, layout="CSV").count("\r\n") == 4
    with pytest.raises(DatabaseError) as refused:
        daemon.ask(COUNT, [1001])
    assert (refused.value.kind, refused.value.status) == ("TOO MANY ROWS", 500)
    assert daemon.ask(COUNT, [1000], layout="CSV").count("\r\n") == 1001


@pytest.mark.parametrize(
    "beginning", ["", "; ", "-- a comment\n", "/* a comment */ ", "WITH more(name) AS (VALUES ('wool')) "]
)
def test_a_statement_that_ends_with_an_error_has_changed_nothing(daemon: Daemon, beginning: str) -> None:
    """The error comes after a part of the result, when the whole change is made."""
    daemon.general.append("rows = 1000")
    daemon.start()
    rows = COUNT.replace("SELECT n, ", "SELECT ")
    with pytest.raises(DatabaseError, match="more than 1000 rows"):
        daemon.ask(f"{beginning}INSERT INTO goods (name) {rows} RETURNING id", [1001], "shop")
    assert json.loads(daemon.ask("SELECT COUNT(*) AS n FROM goods", database="shop"))[0]["n"] == 1


@pytest.mark.parametrize("statement", ["BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT one"])
def test_no_statement_leaves_a_transaction_open(shared: Daemon, statement: str) -> None:
    """The next request on the same connection is whole, and other connections see its change."""
    with suppress(DatabaseError):
        shared.ask(statement, database="shop")
    shared.ask("INSERT INTO goods (id, name) VALUES (9, 'ewe')", database="shop")
    try:
        assert json.loads(shared.ask("SELECT name FROM goods WHERE id = 9", database="shop", read_only=True))
    finally:
        shared.ask("DELETE FROM goods WHERE id = 9", database="shop")


def test_a_slow_statement_is_cancelled_and_the_next_is_not(daemon: Daemon) -> None:
    daemon.general[0] = "connections = 1"
    daemon.start()
    with pytest.raises(DatabaseError) as refused:
        daemon.ask(ENDLESS, time_limit=0.3)
    assert (refused.value.kind, refused.value.status) == ("TIMEOUT", 504)
    assert daemon.answers()


# One step of SQLite that nothing cancels: 38 minutes
INSTR = (
    "SELECT instr(replace(hex(zeroblob(7000000)),'00','a'), replace(hex(zeroblob(3500000)),'00','a')||'b')"
)


def test_a_statement_that_hears_nothing_ends_with_its_process_and_harms_no_other(daemon: Daemon) -> None:
    daemon.general = ["connections = 2", 'time-limit = "50s"', 'queue-timeout = "50s"']
    daemon.start()
    with Client(daemon.address, 60) as client, Client(daemon.address, 60) as other:
        other.socket.sendall(encode_request(ClientRequest("shop", ENDLESS)))
        wait_until(lambda: daemon.status()["running"] == 1, 5)
        for _ in range(2):  # over the same connection: it is at the beginning of an answer
            with pytest.raises(DatabaseError) as refused:
                list(client.ask(ClientRequest("log", INSTR, time_limit=0.3)))
            assert refused.value.kind == "TIMEOUT"
        assert b"".join(client.ask(ClientRequest("log", "SELECT 1 AS n", "CSV"))) == b"n\r\n1\r\n"
        wait_until(lambda: daemon.status()["running"] == 1, 5)  # the other statement goes on
    assert "was killed, since a statement did not end" in daemon.log.read_text()


def test_a_statement_that_hears_nothing_ends_when_its_gateway_has_left(daemon: Daemon) -> None:
    daemon.general[0] = "connections = 1"
    daemon.start()
    leaving = Client(daemon.address)
    leaving.socket.sendall(encode_request(ClientRequest("log", INSTR)))
    wait_until(lambda: daemon.status()["running"] == 1, 5)
    leaving.socket.close()
    wait_until(lambda: daemon.status()["running"] == 0, 30)  # its time limit is 50 s
    assert daemon.answers()


def test_a_stop_is_bounded_whatever_a_statement_does(daemon: Daemon) -> None:
    daemon.general = ["connections = 1", 'time-limit = "50s"']
    daemon.start()
    with Client(daemon.address) as client:
        client.socket.sendall(encode_request(ClientRequest("log", INSTR)))
        wait_until(lambda: daemon.status()["running"] == 1, 5)
        process = daemon.status()["daemons"][0]["pid"]  # type: ignore[index]
        assert daemon.stop() == 0  # waits 30 s at most
    wait_until(lambda: not os.path.exists(f"/proc/{process}"), 5)


MUCH = {
    "a row": "SELECT " + ", ".join(["zeroblob(15000000)"] * 30),
    "a sum of texts": "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 40)"
    " SELECT " + ", ".join(["group_concat(hex(zeroblob(180000)), n)"] * 40) + " FROM c",
    "a long text": "SELECT replace(hex(zeroblob(15000000)), '0', 'abcdefgh')",
}


@pytest.mark.parametrize("what", MUCH)
def test_a_statement_has_a_bound_of_memory(daemon: Daemon, what: str) -> None:
    daemon.general = ["connections = 1", 'memory = "64m"', 'time-limit = "20s"']
    daemon.start()
    with pytest.raises(DatabaseError) as refused:
        daemon.ask(MUCH[what])
    assert refused.value.kind == "STATEMENT"
    assert "memory" in str(refused.value) or "too big" in str(refused.value)
    processes = [daemon.pid, *(each["pid"] for each in daemon.status()["daemons"])]  # type: ignore[attr-defined]
    assert peak_memory(processes) < 160 << 20
    assert daemon.answers()


def test_a_gateway_that_reads_slowly_ends_no_statement_process(daemon: Daemon) -> None:
    """The process also runs the statements of others. A statement that waits for its gateway can be ended alone."""
    daemon.general = ["connections = 2", "daemons = 1", 'time-limit = "1s"', 'write-timeout = "50s"']
    daemon.start()
    processes = [each["pid"] for each in daemon.status()["daemons"]]  # type: ignore[attr-defined]
    with Client(daemon.address) as slow:
        slow.socket.sendall(encode_request(ClientRequest("log", COUNT, "CSV", [500_000])))
        wait_until(lambda: daemon.status()["running"] == 1, 5)
        wait_until(lambda: daemon.status()["running"] == 0, 10)
        assert [each["pid"] for each in daemon.status()["daemons"]] == processes  # type: ignore[attr-defined]
    assert daemon.answers()


def test_a_gateway_that_leaves_frees_its_connection(daemon: Daemon) -> None:
    daemon.general[0] = "connections = 1"
    daemon.start()
    leaving = Client(daemon.address)
    leaving.socket.sendall(encode_request(ClientRequest("log", ENDLESS)))
    wait_until(lambda: daemon.status()["running"] == 1, 5)
    waiting = Client(daemon.address)
    waiting.socket.sendall(encode_request(ClientRequest("log", "SELECT 1")))
    wait_until(lambda: daemon.status()["waiting"] == 1, 5)
    waiting.socket.close()  # it leaves the queue
    wait_until(lambda: daemon.status()["waiting"] == 0, 5)
    leaving.socket.close()  # its statement is cancelled long before its time limit of 50 s
    wait_until(lambda: daemon.status()["running"] == 0, 2)
    assert daemon.answers()


def test_a_full_queue_and_a_long_wait_are_said(daemon: Daemon) -> None:
    daemon.general = ["connections = 1", "queue = 1", 'queue-timeout = "300ms"', 'time-limit = "20s"']
    daemon.start()
    with Client(daemon.address) as first, Client(daemon.address) as second:
        first.socket.sendall(encode_request(ClientRequest("log", ENDLESS)))
        wait_until(lambda: daemon.status()["running"] == 1, 5)
        asked = second.ask(ClientRequest("log", "SELECT 1"))
        second_result: list[DatabaseError] = []

        def wait() -> None:
            try:
                list(asked)
            except DatabaseError as error:
                second_result.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: daemon.status()["waiting"] == 1 or second_result, 5)
        thread.join(20)
        assert [error.kind for error in second_result] == ["UNAVAILABLE"]
        assert second_result[0].status == 503


def test_a_request_behind_a_refused_one_is_answered(daemon: Daemon) -> None:
    daemon.general = ["connections = 1", 'queue-timeout = "200ms"', 'time-limit = "20s"']
    daemon.start()
    with Client(daemon.address) as first, Client(daemon.address) as second:
        first.socket.sendall(encode_request(ClientRequest("log", ENDLESS)))
        wait_until(lambda: daemon.status()["running"] == 1, 5)
        second.socket.sendall(encode_request(ClientRequest("log", "SELECT 1")) * 2)
        second.socket.settimeout(20)
        errors = []
        while len(errors) < 2:
            while (fields := second.decoder.next_frame()) is None:
                second.decoder.feed(second.socket.recv(4096))
            errors.append(decode_response(fields).error)
    assert [error and error.kind for error in errors] == ["UNAVAILABLE"] * 2


def test_fewer_connections_are_kept_after_a_hup(daemon: Daemon) -> None:
    daemon.start()
    with Client(daemon.address) as busy:
        busy.socket.sendall(encode_request(ClientRequest("log", ENDLESS)))
        wait_until(lambda: daemon.status()["running"] == 1, 5)
        for database in ("shop", "staff"):
            daemon.ask("SELECT 1", database=database)
        daemon.general[0] = "connections = 1"
        daemon.settings()
        os.kill(daemon.pid, signal.SIGHUP)
        wait_until(lambda: daemon.status()["connections"] == ["log"], 5)
    assert daemon.answers()


def test_no_descriptor_left_is_said_and_is_no_end(daemon: Daemon) -> None:
    daemon.start()
    with Client(daemon.address) as stays:  # the connection of another test of the start may not be closed yet
        wait_until(lambda: alone(stays), 5)
        no_descriptor_left(daemon)


def alone(client: Client) -> bool:
    """Return whether a client is the only one of its daemon."""
    return bool(json.loads(b"".join(client.ask(ClientRequest("", ""))))["gateways"] == 1)


def no_descriptor_left(daemon: Daemon) -> None:
    soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir(f"/proc/{daemon.pid}/fd")))
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (min(set(range(1000)) - used), hard))
    # A descriptor of `used` may have been open for a moment only: the first client could take its number
    clients = [Client(daemon.address) for _ in range(8)]
    try:
        wait_until(lambda: "cannot accept: Too many open files" in daemon.log.read_text(), 5)
        before = daemon.log.read_text().count("cannot accept")
        time.sleep(1)  # it tries again some times a second, and not as fast as it can
        assert daemon.log.read_text().count("cannot accept") - before < 50
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (soft, hard))
        answer = clients[-1].ask(ClientRequest("log", "SELECT 1 AS n", "CSV"))
        assert b"".join(answer) == b"n\r\n1\r\n"
    finally:
        for each in clients:
            each.socket.close()


@pytest.mark.timeout(300)
def test_no_gateway_waits_much_longer_than_the_others(daemon: Daemon) -> None:
    """200 gateways on 4 connections, each asks five times. How long one waits is counted in answers to others."""
    daemon.general.append('queue-timeout = "300s"')
    daemon.start()
    answered: list[int] = []
    overtaken: list[int] = []
    lock = threading.Lock()
    together = threading.Barrier(200)

    def ask() -> None:
        with Client(daemon.address, 300) as client:
            together.wait(300)
            for _ in range(5):
                before = len(answered)
                list(client.ask(ClientRequest("log", COUNT, "CSV", [500])))
                with lock:
                    answered.append(1)
                    overtaken.append(len(answered) - before)

    threads = [threading.Thread(target=ask) for _ in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert len(overtaken) == 1000
    assert max(overtaken) < 3 * statistics.median(overtaken)


def test_connections_are_used_again_and_replaced_when_they_do_not_fit(daemon: Daemon) -> None:
    daemon.general[0] = "connections = 1"
    daemon.start()
    for database in ("log", "shop", "log"):
        daemon.ask("SELECT 1", database=database)
        wait_until(lambda database=database: daemon.status()["connections"] == [database], 5)


def test_a_database_that_is_put_in_place_of_another_is_seen(daemon: Daemon) -> None:
    daemon.start()
    with sqlite3.connect(daemon.directory / "new.db") as connection:
        connection.execute("CREATE TABLE goods (id)")
    connection.close()
    os.replace(daemon.directory / "new.db", daemon.directory / "log.db")
    assert json.loads(daemon.ask("SELECT COUNT(*) AS n FROM goods"))[0]["n"] == 0
    (daemon.directory / "log.db").unlink()
    with pytest.raises(DatabaseError) as refused:
        daemon.ask("SELECT 1")
    assert refused.value.kind == "UNAVAILABLE"
    sqlite3.connect(daemon.directory / "log.db").execute("CREATE TABLE goods (id)").connection.close()
    assert json.loads(daemon.ask("SELECT COUNT(*) AS n FROM goods"))[0]["n"] == 0


def test_hup_reads_the_settings_again_and_keeps_the_old_ones_if_they_are_wrong(daemon: Daemon) -> None:
    daemon.start()
    with pytest.raises(DatabaseError):
        daemon.ask("SELECT 1", database="new")
    os.link(daemon.directory / "log.db", daemon.directory / "new.db")
    daemon.databases["new"] = ["unknown = 1"]
    daemon.settings()
    os.kill(daemon.pid, signal.SIGHUP)
    wait_until(lambda: "unknown key" in daemon.log.read_text(), 5)
    assert daemon.answers()
    daemon.databases["new"] = []
    daemon.settings()
    os.kill(daemon.pid, signal.SIGHUP)
    wait_until(lambda: "read again" in daemon.log.read_text(), 5)
    assert daemon.ask("SELECT 1 AS n", database="new", layout="CSV") == "n\r\n1\r\n"


def test_a_stop_lets_statements_end(daemon: Daemon) -> None:
    daemon.start()
    result: list[str] = []
    thread = threading.Thread(target=lambda: result.append(daemon.ask(COUNT, [20_000], layout="CSV")))
    thread.start()
    wait_until(lambda: daemon.status()["running"] == 1 or result, 5)
    assert daemon.stop() == 0
    thread.join(20)
    assert result and result[0].endswith("20000,text\r\n")
    assert not os.path.exists(daemon.address[5:])


def test_a_daemon_that_was_killed_starts_again_at_the_same_address(daemon: Daemon) -> None:
    daemon.start()
    daemon.stop(signal.SIGKILL)
    assert os.path.exists(daemon.address[5:])
    with pytest.raises(DatabaseError) as refused:
        daemon.ask("SELECT 1")
    assert refused.value.kind == "UNAVAILABLE"
    daemon.start()
    assert daemon.answers()
