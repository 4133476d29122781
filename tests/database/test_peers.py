"""What a peer of the daemon can take from it and from the others, before it has shown that it may ask and after."""

from __future__ import annotations

import difflib
import fcntl
import json
import os
import pwd
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.daemon import Daemon
from support.proc import peak_memory
from support.server import ROOT, free_port, wait_until

from ewe.database import gateways, statement_processes
from ewe.database.acceptors import Acceptor, QueueConnection, SocketConnection, account_name
from ewe.database.client import Client
from ewe.database.daemon import Daemon as DaemonOfLines
from ewe.database.daemon import PendingStart
from ewe.database.gateways import Gateway, Gateways, LogRateLimit
from ewe.database.protocol import (
    ClientRequest,
    DatabaseError,
    FrameDecoder,
    database_and_key,
    decode_response,
    encode_request,
)
from ewe.database.settings import MAX_QUOTED_NAME_CHARS, DatabaseSettings, Settings, unknown_database
from ewe.database.statement_processes import RemoteWorker, StatementProcess
from ewe.logger import ErrorLog

starts = pytest.mark.starts_processes
root = pytest.mark.needs("root")  # another account connects
BEGUN = struct.pack(">I", 1 << 20) + bytes(4000)  # of a request of 1 MB, and never whole
CODE = """
import sys, ewe.database.daemon, ewe.database.gateways, ewe.database.cli
ewe.database.daemon.REQUEST_TIMEOUT_S = ewe.database.gateways.REQUEST_TIMEOUT_S = 0.5
sys.exit(ewe.database.cli.main())
"""


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """A daemon at a Unix socket and at a port. Only root, and clients with the key, may use it."""
    with tempfile.TemporaryDirectory(prefix="ewe-dbd-") as name:
        Path(name).chmod(0o755)
        made = Daemon(Path(name))
        made.databases = {"log": ["key = 'sesame'"]}
        yield made
        made.stop(signal.SIGKILL)


def start(daemon: Daemon, code: str = CODE) -> str:
    """Start the daemon, and return its address on TCP."""
    tcp, unix = f"127.0.0.1:{free_port()}", daemon.address
    command = [sys.executable, "-c", code, "--config", str(daemon.settings()), "--log", str(daemon.log)]
    command += ["--listen", unix, "--listen", tcp]
    daemon.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
    wait_until(daemon.answers, 10)
    return tcp


def connected(address: str) -> socket.socket:
    host, _, port = address.partition(":")
    sock = socket.create_connection((host, int(port)), 30)
    return sock


def error_of(sock: socket.socket) -> DatabaseError | None:
    """Return the error that comes before the end of the connection."""
    decoder = FrameDecoder()
    while data := sock.recv(4096):
        decoder.feed(data)
    fields = decoder.next_frame()
    return None if fields is None else decode_response(fields).error


@starts
@root
def test_an_account_that_may_use_no_database_is_closed_before_it_says_anything(daemon: Daemon) -> None:
    start(daemon)
    code = (
        "import os, socket, sys; os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))\n"
        "sock = socket.socket(socket.AF_UNIX); sock.settimeout(30); sock.connect(sys.argv[1])\n"
        "while data := sock.recv(4096): sys.stdout.buffer.write(data)"
    )
    nobody = str(pwd.getpwnam("nobody").pw_uid)
    done = subprocess.run(
        [sys.executable, "-c", code, daemon.address[5:], nobody], capture_output=True, check=True, timeout=60
    )
    assert b"FORBIDDEN" in done.stdout
    assert "it may use no database here" in daemon.log.read_text()


@starts
def test_a_request_that_has_begun_is_whole_in_time_or_its_connection_ends(daemon: Daemon) -> None:
    tcp = start(daemon)
    slow = socket.socket(socket.AF_UNIX)
    slow.settimeout(30)
    slow.connect(daemon.address[5:])
    slow.sendall(BEGUN)
    silent = connected(tcp)  # it shows no key
    with Client(daemon.address) as idle, Client(tcp) as known:
        request = ClientRequest("log", "SELECT 1 AS n", "CSV", key="sesame")
        list(known.ask(request))
        for sock in (slow, silent):
            error = error_of(sock)
            assert error is not None and "the request was not complete" in str(error)
        # A connection that has shown its account or its key may be silent for as long as it likes
        assert b"".join(idle.ask(request)) == b"".join(known.ask(request)) == b"n\r\n1\r\n"
    slow.close()
    silent.close()


@starts
def test_a_long_request_on_tcp_shows_its_key_first(daemon: Daemon) -> None:
    tcp = start(daemon, CODE.replace("0.5", "30"))
    long = f"SELECT length('{'x' * 500_000}') AS n"
    for key in ("", "Sesame"):
        with connected(tcp) as sock:
            sock.sendall(encode_request(ClientRequest("log", long, key=key))[:5000])
            error = error_of(sock)
            assert error is not None and error.kind == "MESSAGE" and "needs a right key" in str(error)
    with Client(tcp) as client:
        answer = client.ask(ClientRequest("log", long, "CSV", key="sesame"))
        assert b"".join(answer) == b"n\r\n500000\r\n"
    with connected(tcp) as sock:  # a short one is refused when it is whole
        sock.sendall(encode_request(ClientRequest("log", "SELECT 1")))
        decoder = FrameDecoder()
        decoder.feed(sock.recv(4096))
        refused = decode_response(decoder.next_frame() or []).error
        assert refused is not None and refused.kind == "FORBIDDEN"


@starts
def test_peers_without_a_key_take_neither_descriptors_nor_memory(daemon: Daemon) -> None:
    tcp = start(daemon, CODE.replace("0.5", "600"))
    _, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (150, hard))
    peers = [connected(tcp) for _ in range(200)]
    try:
        for each in peers:
            try:
                each.sendall(BEGUN[:3000])
            except OSError:
                pass  # it has made room for a later one
        assert daemon.answers()
        with Client(tcp) as client:
            request = ClientRequest("log", "SELECT 1 AS n", "CSV", key="sesame")
            assert b"".join(client.ask(request)) == b"n\r\n1\r\n"
        assert int(str(daemon.status()["gateways"])) <= 150 - gateways.RESERVED_DESCRIPTORS
        assert "cannot accept" not in daemon.log.read_text()
        assert peak_memory([daemon.pid]) < 100 << 20
    finally:
        for each in peers:
            each.close()


class FakeLine(SocketConnection):
    """A line with a number, and an account."""

    def __init__(self, number: int, uid: int | None) -> None:
        self.number = number
        self.uid = uid

    def fileno(self) -> int:
        return self.number


class FakeQueue(FakeLine):
    """A line with two descriptors, which keeps 600 bytes until they are received."""

    descriptor_count = 2

    def received_bytes(self) -> int:
        return 600


def gateway(
    all_: Gateways, number: int, uid: int | None, unanswered_bytes: int = 0, kind: type[FakeLine] = FakeLine
) -> Gateway:
    made = Gateway(kind(number, uid), Acceptor())
    made.decoder.data += bytes(unanswered_bytes)
    made.last_received_at = number
    all_.add(made)
    return made


def closed(all_: Gateways) -> list[int]:
    numbers = []
    for each, _ in all_.connections_to_close():
        numbers.append(each.connection.fileno())
        all_.remove(each)
    return numbers


def test_who_has_most_connections_loses_the_one_that_was_silent_for_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateways, "max_descriptors", lambda process_count: 3)
    all_ = Gateways()
    few = gateway(all_, 1, 1)
    many = [gateway(all_, number, None) for number in (3, 4)]
    many[0].is_busy = True
    assert closed(all_) == []
    gateway(all_, 5, None)
    assert closed(all_) == [4]  # 3 is answered just now
    gateway(all_, 6, 2)
    assert closed(all_) == [5]
    assert {few, many[0]} < set(all_.by_descriptor.values())


def test_a_connection_counts_with_all_its_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "max_descriptors", lambda process_count: 5)
    all_ = Gateways()
    for number in (1, 2):
        gateway(all_, number, 1)
    gateway(all_, 3, 2, kind=FakeQueue)
    assert closed(all_) == []
    gateway(all_, 4, 2, kind=FakeQueue)
    assert closed(all_) == [3]  # account 2 has four of six
    assert all_.descriptor_count == 4


def test_each_statement_process_takes_a_descriptor_from_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = gateways.RESERVED_DESCRIPTORS + 20
    monkeypatch.setattr(gateways.resource, "getrlimit", lambda number: (limit, limit))
    all_ = Gateways()
    for number in range(1, 21):
        gateway(all_, number, 1)
    assert closed(all_) == []
    all_.process_count = 2
    assert closed(all_) == [1, 2]


def test_bytes_that_a_connection_keeps_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "MAX_UNANSWERED_BYTES", 1000)
    all_ = Gateways()
    gateway(all_, 1, 1, 500)
    busy = gateway(all_, 2, 2, kind=FakeQueue)
    assert closed(all_) == [2] and busy.unanswered_bytes == 0
    assert all_.unanswered_bytes == 500


def test_who_holds_most_bytes_loses_its_longest_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "MAX_UNANSWERED_BYTES", 1000)
    all_ = Gateways()
    gateway(all_, 1, 1, 400)
    gateway(all_, 2, 2, 300)
    gateway(all_, 3, 2, 200)
    assert closed(all_) == []
    gateway(all_, 4, 3, 350)
    assert closed(all_) == [2]  # account 2 has 500
    assert all_.unanswered_bytes == 400 + 200 + 350


def test_a_log_of_complaints_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(gateways.time, "monotonic", lambda: now[0])
    limit = LogRateLimit()
    words = [limit.line_to_log(1, "wrong") for _ in range(50)]
    assert words == ["wrong"] * 10 + [""] * 40
    assert limit.line_to_log(2, "wrong") == "wrong"
    now[0] = 11.0
    assert limit.line_to_log(1, "wrong") == "wrong (40 such lines were left out)"


def test_a_long_name_of_a_database_is_not_compared_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a comparison grows with the name, which may have 1 MB, and the daemon has one thread."""
    compared: list[int] = []

    def get_close_matches(word: str, *_: object) -> list[str]:
        compared.append(len(word))
        return []

    monkeypatch.setattr(difflib, "get_close_matches", get_close_matches)
    settings = Settings(databases={"log": DatabaseSettings("log.db")})
    assert len(unknown_database("x" * (1 << 20), settings)) < 100
    assert compared == [MAX_QUOTED_NAME_CHARS]


def test_the_first_fields_of_a_long_request_are_its_database_and_key() -> None:
    frame = encode_request(ClientRequest("log", "SELECT 1" + " " * 9000, key="sesame"))
    assert database_and_key(frame[:100]) == ("log", "sesame")
    assert database_and_key(frame[:15]) == ("log", "")
    for wrong in (b"", b"\0\0\0\5", frame[:4] + b"S\0\0\0\1x", frame[:4] + b"D\0\0\0\1\xff"):
        assert database_and_key(wrong) == ("", "")
    assert json.dumps(database_and_key(frame[:4] + frame[12:200]))  # whatever it is, it raises nothing


@pytest.fixture
def lines() -> Iterator[DaemonOfLines]:
    """A daemon without statement processes, whose methods a test calls one by one."""
    daemon = DaemonOfLines(Settings(), Settings, ErrorLog("off"))
    yield daemon
    daemon.close()
    daemon.epoll.close()
    os.close(daemon.wakeup_reader)
    os.close(daemon.wakeup_writer)


def joined(daemon: DaemonOfLines, uid: int | None) -> tuple[Gateway, socket.socket]:
    """Return a new gateway of the daemon, and the gateway's end of the connection."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    made = Gateway(SocketConnection(ours, uid, "test"), Acceptor())
    daemon.epoll.register(ours.fileno())
    daemon.gateways.add(made)
    return made, theirs


def test_refused_requests_give_a_peer_without_a_key_no_more_time(lines: DaemonOfLines) -> None:
    stranger, theirs = joined(lines, None)
    lines.gateways.incomplete_since[stranger] = 1.0
    with theirs:
        theirs.sendall(encode_request(ClientRequest("log", "SELECT 1")))
        lines.receive(stranger)
        assert theirs.recv(4096) and lines.gateways.incomplete_since == {stranger: 1.0}


def test_a_request_for_the_status_reads_no_request_of_another_gateway(lines: DaemonOfLines) -> None:
    """Otherwise a thousand gateways that all ask for it would be a thousand nested calls."""
    asks, own_end = joined(lines, os.geteuid())
    other, other_end = joined(lines, os.geteuid())
    worker = RemoteWorker(None, 0, None, lines.finished_workers.append)  # type: ignore[arg-type]
    lines.gateways_by_worker[worker] = other
    lines.finished_workers.append(worker)
    with own_end, other_end:
        status = json.loads(lines.status_response(asks).fragment)
        assert (status["running"], status["served"], len(lines.finished_workers)) == (0, 1, 1)
    lines.finished_workers.clear()


def test_a_uid_of_another_account_is_looked_up_again_at_hup(
    lines: DaemonOfLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With per-user, the name decides as which role of PostgreSQL the gateway's statement runs."""
    uid, names = 2**31 - 7, iter(("alice", "bob"))
    monkeypatch.setattr("pwd.getpwuid", lambda uid: SimpleNamespace(pw_name=next(names)))
    monkeypatch.setattr(lines, "adjust_processes", lambda: None)
    assert [account_name(uid), account_name(uid)] == ["alice", "alice"]
    lines.read_settings()
    assert account_name(uid) == "bob"


def test_a_process_that_must_wait_for_its_start_delays_no_other(
    lines: DaemonOfLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    monkeypatch.setattr(lines, "start_process", started.append)
    later, sooner = PendingStart(1), PendingStart(2)
    later.due_at, sooner.due_at = 101.0, 100.0
    lines.pending_starts += [later, sooner]
    lines.enforce_deadlines(100.0)
    assert started == [2] and lines.pending_starts == [later]
    lines.enforce_deadlines(101.0)
    assert started == [2, 1] and not lines.pending_starts


class FakeProcess(StatementProcess):
    """A statement process that takes orders and carries none out."""

    def __init__(self) -> None:
        self.orders: list[object] = []

    def send_order(self, message: object, descriptors: list[int] | None = None) -> None:
        self.orders.append(message)


def test_a_statement_is_cancelled_ten_times_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy daemon comes by ten thousand times a second. The orders would fill the socket, and it would wait."""
    now = [100.0]
    monkeypatch.setattr(statement_processes.time, "monotonic", lambda: now[0])
    process = FakeProcess()
    worker = RemoteWorker(process, 0, None, lambda _: None)  # type: ignore[arg-type]
    worker.job, worker.expires_at = object(), 99.0  # type: ignore[assignment]
    for expected in (1, 1, 2):
        for _ in range(50):
            worker.check_deadline(now[0])
        assert len(process.orders) == expected
        now[0] += 0.06


def test_the_end_of_a_process_is_seen_at_a_descriptor_above_1023() -> None:
    """select(2) takes no descriptor above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        low = os.pidfd_open(os.getpid())
        connection = QueueConnection(fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1024), -1, 0, b"")
        os.close(low)
        with pytest.raises(BlockingIOError):
            connection.receive()
        connection.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
