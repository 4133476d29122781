"""The transports of the daemon, with one daemon and two: the same protocol over each; the end of a line."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import needs
from support.daemon import Daemon
from support.proc import is_gone
from support.server import ROOT, free_port, wait_until

from ewe.database.acceptors import PipeAcceptor, QueueAcceptor, SocketConnection
from ewe.database.cli import main
from ewe.database.client import Client
from ewe.database.daemon import Daemon as DaemonOfLines
from ewe.database.dialing import PipeToDaemon, QueueToDaemon, connect_to_daemon
from ewe.database.gateways import Gateway
from ewe.database.protocol import (
    ClientRequest,
    DatabaseError,
    FrameDecoder,
    ServerResponse,
    decode_response,
    encode_request,
    encode_response,
)
from ewe.database.settings import Settings
from ewe.database.statement_processes import REOPEN_LOG, Channel, OrderExecutor
from ewe.database.transports import parse_transport
from ewe.database.worker import WorkerThread
from ewe.logger import ErrorLog

posix_ipc = needs.module("posix_ipc")
pytestmark = [pytest.mark.starts_processes, pytest.mark.needs("posix_ipc")]
ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT max(n) FROM c"
COUNT = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT ?) SELECT n, 'text' FROM c"
TRANSPORTS = ("unix", "tcp", "fifo", "mq")
ONE = ClientRequest("log", "SELECT 1 AS n", "CSV", key="sesame")


class Daemons(Daemon):
    """A daemon that listens on every transport. at: the address of each."""

    def __init__(self, directory: Path, daemons: int) -> None:
        super().__init__(directory)
        self.at = {
            "unix": self.address,
            "tcp": f"127.0.0.1:{free_port()}",
            "fifo": f"fifo:{directory}/pipes",
            "mq": f"mq:{directory.name}",
        }
        self.general += [f"daemons = {daemons}"]
        self.databases["log"].append("key = 'sesame'")

    def settings(self) -> Path:
        path = super().settings()
        path.write_text(path.read_text().replace(f"['{self.address}']", json.dumps(list(self.at.values()))))
        return path

    def daemons(self) -> list[dict[str, object]]:
        found = self.status()["daemons"]
        assert isinstance(found, list)
        return found


@contextlib.contextmanager
def running(daemons: int) -> Iterator[Daemons]:
    with tempfile.TemporaryDirectory(prefix="ewe-dbd-") as name:
        Path(name).chmod(0o755)
        made = Daemons(Path(name), daemons)
        try:
            made.start()
            yield made
            assert made.stop() in (0, -signal.SIGKILL)
            assert not list(Path(name).glob("pipes")), "names are left behind"
            with pytest.raises(posix_ipc.ExistentialError):
                posix_ipc.MessageQueue("/" + made.directory.name)
        finally:
            made.stop(signal.SIGKILL)
            with contextlib.suppress(posix_ipc.ExistentialError):
                posix_ipc.unlink_message_queue("/" + made.directory.name)


@pytest.fixture(scope="module", params=[1, 2])
def daemon(request: pytest.FixtureRequest) -> Iterator[Daemons]:
    """One daemon, or two, for the tests that leave it as it was."""
    with running(request.param) as made:
        yield made


@pytest.fixture
def one() -> Iterator[Daemons]:
    with running(1) as made:
        yield made


@pytest.fixture
def two() -> Iterator[Daemons]:
    with running(2) as made:
        yield made


def answers(daemon: Daemons, transport: str) -> bool:
    with Client(daemon.at[transport], 30) as client:
        return b"".join(client.ask(ONE)) == b"n\r\n1\r\n"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_requests_and_results_of_any_size(daemon: Daemons, transport: str) -> None:
    long = "ü<'\0" * 100_000
    with Client(daemon.at[transport], 60) as client:
        for _ in range(3):
            assert b"".join(client.ask(ONE)) == b"n\r\n1\r\n"
        asked = ClientRequest("log", "SELECT ? AS text", "JSON", [long], key="sesame")
        assert json.loads(b"".join(client.ask(asked)))[0]["text"] == long
        asked = ClientRequest("log", COUNT, "CSV", [50_000], key="sesame")
        assert sum(map(len, client.ask(asked))) == 10 + sum(len(f"{n},text\r\n") for n in range(1, 50_001))
        with pytest.raises(DatabaseError, match="syntax error"):
            list(client.ask(ClientRequest("log", "SELEC 1", key="sesame")))
        assert b"".join(client.ask(ONE)) == b"n\r\n1\r\n"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_frames_that_are_cut_joined_and_broken(daemon: Daemons, transport: str) -> None:
    """Byte by byte, two in one segment, an end in the middle, and noise: only that line suffers."""
    frame = encode_request(ONE)
    chance = random.Random(transport)
    whole = connect_to_daemon(daemon.at[transport], 30)
    for at in range(len(frame)):
        whole.sendall(frame[at : at + 1])
    whole.sendall(frame + frame)
    decoder, found = FrameDecoder(), []
    while len(found) < 3:
        if (fields := decoder.next_frame()) is None:
            decoder.feed(whole.recv(4096))
        else:
            found.append(decode_response(fields).fragment)
    whole.close()
    assert found == [b"n\r\n1\r\n"] * 3
    for _ in range(10):
        end = connect_to_daemon(daemon.at[transport], 30)
        end.sendall(frame[: chance.randrange(1, len(frame))])
        end.close()
    for _ in range(10):
        noise = bytearray(frame)
        for _ in range(3):
            noise[chance.randrange(len(noise))] = chance.randrange(256)
        end = connect_to_daemon(daemon.at[transport], 30)
        with contextlib.suppress(OSError):
            end.sendall(bytes(noise) + chance.randbytes(50))
        end.close()
    bad = connect_to_daemon(daemon.at[transport], 30)
    bad.sendall(b"\xff" * 8)
    decoder = FrameDecoder()
    while (fields := decoder.next_frame()) is None:
        decoder.feed(bad.recv(4096))
    error = decode_response(fields).error
    assert error is not None and error.kind == "MESSAGE"
    assert bad.recv(4096) == b""
    bad.close()
    assert answers(daemon, transport)


@pytest.mark.needs("root")
@pytest.mark.parametrize("transport", ["fifo", "mq"])
def test_the_owner_of_the_pipes_and_of_the_queue_is_the_account(daemon: Daemons, transport: str) -> None:
    code = (
        "import os, sys; from ewe.database.client import Client\n"
        "import ewe.database.dialing, ewe.database.acceptors, ewe.database.transports, posix_ipc\n"  # as root
        "from ewe.database.protocol import ClientRequest, DatabaseError\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "for name in sys.argv[2:]:\n"
        "    try: print(b''.join(Client(sys.argv[1]).ask(ClientRequest(name, 'SELECT 1', 'CSV'))))\n"
        "    except DatabaseError as error: print(error.kind)\n"
        "try: print(os.listdir(sys.argv[1][5:]))\n"
        "except OSError as error: print(error.strerror)\n"
    )
    command = [sys.executable, "-c", code, daemon.at[transport], "log", "staff", ""]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    *kinds, listed = done.stdout.splitlines()
    assert kinds == ["b'1\\r\\n1\\r\\n'", "FORBIDDEN", "FORBIDDEN"]
    assert listed == ("Permission denied" if transport == "fifo" else "No such file or directory")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_gateway_that_leaves_or_is_killed_ends_its_statement(daemon: Daemons, transport: str) -> None:
    end = connect_to_daemon(daemon.at[transport], 30)
    end.sendall(encode_request(ClientRequest("log", ENDLESS, key="sesame")))
    wait_until(lambda: daemon.status()["running"] == 1, 5)
    end.close()
    wait_until(lambda: daemon.status()["running"] == 0, 5)
    code = (
        "import sys; from ewe.database.client import Client; from ewe.database.protocol import ClientRequest\n"
        "list(Client(sys.argv[1]).ask(ClientRequest('log', sys.argv[2], key='sesame')))"
    )
    with subprocess.Popen([sys.executable, "-c", code, daemon.at[transport], ENDLESS], cwd=ROOT) as killed:
        wait_until(lambda: daemon.status()["running"] == 1, 10)
        killed.kill()
    wait_until(lambda: daemon.status()["running"] == 0, 5)
    wait_until(lambda: daemon.status()["gateways"] == 1, 5)
    assert os.listdir(daemon.at["fifo"][5:]) == ["demon"]


def test_a_queue_cannot_be_used_in_anothers_name(daemon: Daemons) -> None:
    """A process that does not read the reply queue does not learn the token, and cannot send requests."""
    end = connect_to_daemon(daemon.at["mq"], 30)
    assert isinstance(end, QueueToDaemon)
    right, end.token = end.token, os.urandom(16)
    end.sendall(encode_request(ONE))
    for junk in (b"", b"X", b"O", b"O" + b"z" * 32, b"D" + b"\0" * 16, b"O" + b"0" * 32 + b"s" * 16 + b"1"):
        end.send_message_to_daemon(junk)
    end.token = right
    posix_ipc.MessageQueue("/" + daemon.directory.name, read=False).close()
    end.sendall(encode_request(ClientRequest("log", "SELECT 2 AS n", "CSV")))
    decoder = FrameDecoder()
    decoder.feed(end.recv(8192))
    assert decode_response(decoder.next_frame() or []).fragment == b"n\r\n2\r\n"
    end.close()


def test_a_stranger_who_writes_to_the_reply_queue_does_not_prolong_a_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The queue is never empty, and no message begins with the secret."""
    end = QueueToDaemon.__new__(QueueToDaemon)
    end.timeout_s, end.secret, end.unread, end.reply_queue = 0.1, b"s" * 16, b"", None
    monkeypatch.setattr("ewe.database.dialing.receive_message", lambda queue: b"junk of a stranger")
    with pytest.raises(TimeoutError):
        end.recv(1)


def test_a_client_that_cannot_connect_again_says_so_each_time(one: Daemons) -> None:
    """The daemon has ended, and the client has not read its last result to the end."""
    clients = [Client(one.at[transport], 30) for transport in TRANSPORTS]
    for client in clients:
        next(client.ask(ONE))
        client.in_result = True
    one.stop()
    for client in clients:
        with client:
            for _ in range(3):
                with pytest.raises(DatabaseError) as away:
                    next(client.ask(ONE))
                assert away.value.kind == "UNAVAILABLE"


def test_notes_that_are_none_are_left_out(daemon: Daemons) -> None:
    directory = Path(daemon.at["fifo"][5:])
    (directory / ("a" * 32 + ".request")).write_text("no pipe")
    outside = [daemon.directory / f"outside.{part}" for part in ("request", "reply")]
    for path in outside:
        path.touch()
    with open(directory / "demon", "wb", buffering=0) as door:
        for note in (
            b"x\n",
            b"a" * 32 + b"\n",
            b"y" * 4000,
            b"\n",
            b"../outside\n",
            b"0" * 32 + b"\n",
        ):
            door.write(note)
    assert answers(daemon, "fifo")
    assert os.listdir(directory) == ["demon"]
    assert all(path.exists() for path in outside)


def test_an_incomplete_note_of_one_account_does_not_spoil_the_next_note(daemon: Daemons) -> None:
    with open(Path(daemon.at["fifo"][5:]) / "demon", "wb", buffering=0) as door:
        door.write(b"0" * 8)
        assert answers(daemon, "fifo")


@pytest.mark.parametrize("is_killed", [False, True])
def test_files_of_strangers_in_the_directory_do_not_stop_the_next_daemon(
    tmp_path: Path, is_killed: bool
) -> None:
    directory = tmp_path / "pipes"
    acceptor = PipeAcceptor(str(directory))
    (directory / "mine").touch()
    (directory / "mine too").mkdir()
    if is_killed:
        os.close(acceptor.reader)
    else:
        acceptor.close()
    acceptor = PipeAcceptor(str(directory))
    assert sorted(os.listdir(directory)) == ["demon", "mine too"]
    acceptor.close()


def test_a_directory_that_was_removed_does_not_disturb_the_end(tmp_path: Path) -> None:
    acceptor = PipeAcceptor(str(tmp_path / "pipes"))
    (tmp_path / "pipes").rename(tmp_path / "elsewhere")
    acceptor.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(acceptor.reader)


def test_a_queue_that_was_removed_does_not_disturb_the_end() -> None:
    acceptor = QueueAcceptor(f"/ewe-test-removed-{os.getpid()}")
    posix_ipc.unlink_message_queue(acceptor.name)
    acceptor.close()


def test_a_gateway_for_which_one_descriptor_is_missing_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acceptor = PipeAcceptor(str(tmp_path / "pipes"))
    name = "0" * 32
    for part in ("request", "reply"):
        os.mkfifo(tmp_path / "pipes" / f"{name}.{part}")
    open_any = os.open

    def open_requests(path: str, flags: int) -> int:
        if path.endswith(".reply"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_any(path, flags)

    used = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_requests)
        with pytest.raises(OSError, match="Too many open files"):
            acceptor.open_connection(name)
    assert os.listdir("/proc/self/fd") == used
    acceptor.close()


@pytest.fixture
def queues() -> Iterator[tuple[QueueAcceptor, bytes]]:
    """An acceptor, and a message that opens a connection with an existing queue for replies, without its pid."""
    acceptor = QueueAcceptor(f"/ewe-test-{os.getpid()}")
    name = "0" * 32
    replies = posix_ipc.MessageQueue(
        f"{acceptor.name}.{name}", posix_ipc.O_CREX, max_messages=2, max_message_size=8192
    )
    yield acceptor, b"O" + name.encode() + b"s" * 16
    replies.close()
    replies.unlink()
    acceptor.close()


def test_a_number_that_is_no_pid_opens_no_connection(queues: tuple[QueueAcceptor, bytes]) -> None:
    """Each account may write to the queue. An exception would end the daemon."""
    acceptor, message = queues
    for number in (b"0", b"999999999", b"2147483648", b"9999999999"):
        assert acceptor.open_connection(message + number) is None, number
    assert not acceptor.connections_by_token


def test_a_queue_for_which_one_descriptor_is_missing_takes_none(
    queues: tuple[QueueAcceptor, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor_left(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    acceptor, message = queues
    used = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "fcntl", no_descriptor_left)
        with pytest.raises(OSError, match="Too many open files"):
            acceptor.open_connection(message + b"%d" % os.getpid())
    assert os.listdir("/proc/self/fd") == used


def test_a_daemon_that_was_killed_leaves_nothing_in_the_way(one: Daemons) -> None:
    ends = {name: connect_to_daemon(at, 30) for name, at in one.at.items()}
    assert isinstance(ends["fifo"], PipeToDaemon)
    one.stop(signal.SIGKILL)
    for name, at in one.at.items():
        began = time.monotonic()
        with contextlib.suppress(ConnectionResetError):
            assert ends[name].recv(1) == b"", name
        with pytest.raises(DatabaseError) as refused:
            Client(at)
        assert refused.value.kind == "UNAVAILABLE", name
        assert time.monotonic() - began < 20  # its own timeout is 30 s
        ends[name].close()
    one.start()
    assert all(answers(one, name) for name in TRANSPORTS)


@pytest.mark.parametrize("transport", ["fifo", "mq"])
def test_an_address_that_is_in_use_is_said(daemon: Daemons, transport: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ewe.database.cli", "--config", str(daemon.settings()), "--listen"]
    done = subprocess.run(
        [*command, daemon.at[transport]], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "is in use by another daemon; choose another" in done.stderr
    assert done.stderr.count("\n") == 1
    (tmp_path / "mine").touch()
    done = subprocess.run(
        [*command, f"fifo:{tmp_path}"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "is not a daemon's" in done.stderr
    assert os.listdir(tmp_path) == ["mine"]
    assert answers(daemon, transport)


@pytest.mark.parametrize(
    "text", ["fifo:", "mq:", "mq:/", "mq:a/b", "mq:..", "fifo:a\nb", "http://x", "", "mq:ü"]
)
def test_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        parse_transport(text)


# ---------------------------------------------------------------------------------------------------------
# Several daemons


def ask_in_background(daemon: Daemons, statement: str = ENDLESS) -> Client:
    client = Client(daemon.address, 60)
    client.socket.sendall(encode_request(ClientRequest("log", statement)))
    return client


def test_the_least_busy_daemon_gets_the_request(two: Daemons) -> None:
    clients = []
    for load in ([1, 0], [1, 1], [2, 1], [2, 2]):
        clients.append(ask_in_background(two))
        wait_until(lambda load=load: sorted(each["running"] for each in two.daemons()) == sorted(load), 5)
    clients[0].socket.close()  # its daemon, the first or the second, is now the less busy one
    wait_until(lambda: sorted(each["running"] for each in two.daemons()) == [1, 2], 5)
    less = min(two.daemons(), key=lambda each: each["running"])["pid"]
    clients.append(ask_in_background(two))
    wait_until(lambda: {each["pid"]: each["running"] for each in two.daemons()}[less] == 2, 5)
    for client in clients:
        client.socket.close()
    wait_until(lambda: two.status()["running"] == 0, 5)


def test_a_daemon_that_is_killed_is_replaced_and_the_others_go_on(two: Daemons) -> None:
    first, second = ask_in_background(two), ask_in_background(two)
    wait_until(lambda: [each["running"] for each in two.daemons()] == [1, 1], 5)
    before = [each["pid"] for each in two.daemons()]
    os.kill(int(str(before[0])), signal.SIGKILL)
    wait_until(
        lambda: len(two.daemons()) == 2 and before[0] not in [each["pid"] for each in two.daemons()], 10
    )
    assert two.status()["running"] == 1
    errors = []
    for client in (first, second):
        client.socket.settimeout(0.3)
        with contextlib.suppress(TimeoutError):
            client.decoder.feed(client.socket.recv(1000))
            errors.append(decode_response(client.decoder.next_frame() or []).error)
    # One was told, and the other still waits
    assert [str(error) for error in errors] == ["the process that ran the statement has ended"]
    assert two.answers()
    assert "a statement process (pid" in two.log.read_text()
    first.socket.close()
    second.socket.close()


def test_daemons_end_with_the_regulating_process(two: Daemons) -> None:
    pids = [int(str(each["pid"])) for each in two.daemons()]
    client = ask_in_background(two)
    wait_until(lambda: two.status()["running"] == 1, 5)
    two.stop(signal.SIGKILL)
    wait_until(lambda: all(map(is_gone, pids)), 10)
    client.socket.close()
    two.start()


def test_time_limits_hup_and_logs_reach_the_daemons(two: Daemons) -> None:
    with pytest.raises(DatabaseError, match="time limit") as late:
        two.ask(ENDLESS, time_limit=0.2)
    assert late.value.kind == "TIMEOUT"
    two.databases["new"] = []
    os.link(two.directory / "log.db", two.directory / "new.db")
    two.general = ["connections = 6", "daemons = 2"]
    two.settings()
    os.kill(two.pid, signal.SIGHUP)
    wait_until(lambda: "connections: a change needs a restart" in two.log.read_text(), 5)
    wait_until(lambda: two.ask("SELECT 1 AS n", database="new", layout="CSV") == "n\r\n1\r\n", 5)
    two.log.rename(two.directory / "old.log")
    os.kill(two.pid, signal.SIGUSR1)
    wait_until(two.log.exists, 5)

    def is_logged() -> bool:
        with pytest.raises(DatabaseError):
            two.ask("SELEC 1")
        return "syntax error" in two.log.read_text()

    wait_until(is_logged, 5)


def test_bytes_behind_a_result_do_not_begin_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client drops them with its connection."""
    pairs = [socket.socketpair() for _ in range(2)]
    mine = iter([ours for ours, _ in pairs])
    monkeypatch.setattr("ewe.database.client.connect_to_daemon", lambda address, timeout_s: next(mine))
    answer, stray = (encode_response(ServerResponse(text, more=False)) for text in (b"own", b"other"))
    for (_, theirs), data in zip(pairs, (answer + stray, answer), strict=True):
        theirs.sendall(data)
    with Client("unix:/not-used") as client:
        assert list(client.ask(ONE)) == [b"own"]
        assert list(client.ask(ONE)) == [b"own"]
    for _, theirs in pairs:
        theirs.close()


def test_a_log_that_cannot_be_opened_again_ends_no_statement_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ErrorLog(str(tmp_path / "log"))

    def open_again() -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(log.file, "open", open_again)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Channel(ours).send(REOPEN_LOG)
        ours.close()
        OrderExecutor(Channel(theirs), log, [], WorkerThread).run()  # until the end of `ours`
    assert "Permission denied; the old file stays in use" in (tmp_path / "log").read_text()


def test_a_number_is_not_used_again_among_the_same_events(tmp_path: Path) -> None:
    """epoll may have reported an event of a line that is dropped: a new line must not get its number yet."""
    daemon = DaemonOfLines(Settings(), Settings, ErrorLog("off"))
    ours, theirs = socket.socketpair()
    gateway = Gateway(SocketConnection(ours, os.getuid(), "test"), PipeAcceptor(str(tmp_path / "pipes")))
    daemon.gateways.add(gateway)
    daemon.epoll.register(ours.fileno())
    daemon.drop(gateway)
    assert len(daemon.gateways) == 0 and ours.fileno() >= 0
    daemon.close_dropped()
    assert ours.fileno() == -1
    theirs.close()
    gateway.acceptor.close()
    daemon.epoll.close()
    os.close(daemon.wakeup_reader)
    os.close(daemon.wakeup_writer)


def test_a_statement_is_timed_at_each_address(one: Daemons, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["time", "--config", str(one.settings()), "log", "SELECT 1", "--calls", "100"]
    assert main(command) == 0
    lines = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["microseconds a call", "in process", *one.at.values()]
    assert main(["time", "--config", str(one.settings()), "lag", "SELECT 1"]) == 2
    assert "no database 'lag'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["daemons = 5", "connections = 4"], "daemons must not be more than connections"),
        (["[databases.log]", "source = 'a.db'", "per-user = true"], "per-user is for PostgreSQL"),
    ],
)
def test_settings_that_contradict_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], words: str
) -> None:
    file = tmp_path / "dbd.toml"
    file.write_text("\n".join(lines))
    assert main(["--check-config", "--config", str(file)]) == 2
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == 1


def test_a_full_backlog_is_waited_for(tmp_path: Path) -> None:
    """A stranger's connections may fill it for a moment; Linux then refuses a connection at once."""
    path = str(tmp_path / "sock")
    with socket.socket(socket.AF_UNIX) as listening, contextlib.ExitStack() as held:
        listening.bind(path)
        listening.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                one = held.enter_context(socket.socket(socket.AF_UNIX))
                one.setblocking(False)
                one.connect(path)
        with pytest.raises(BlockingIOError):
            connect_to_daemon(f"unix:{path}", 0.05)

        def make_room() -> None:
            while True:
                try:
                    taken.append(listening.accept()[0])
                except OSError:
                    return

        taken: list[socket.socket] = []
        accepting = threading.Thread(target=make_room)
        accepting.start()
        connect_to_daemon(f"unix:{path}", 30).close()
        listening.shutdown(socket.SHUT_RDWR)
        accepting.join()
        for each in taken:
            each.close()
