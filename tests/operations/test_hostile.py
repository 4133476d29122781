"""Clients, programs, disks and signals that do their worst: the others are served as if nothing were."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.examples import seconds
from support.proc import age, children, group_members, is_gone, open_files, state
from support.server import MODELS, ROOT, Server, Start, wait_until, write_program
from support.wire import read_response, reset

GET = b"GET / HTTP/1.1\r\nHost: ewe\r\n\r\n"
WELCOME = b"<!DOCTYPE html><title>ewe</title>welcome\n"
LARGE = random.Random(5).randbytes(64 * 1024) * 200  # 12.5 MB
CONCURRENT = ("thread", "pool", "asyncio", "asyncio --loop asyncio")
PLAIN = "#!/bin/sh\nprintf 'Content-Type: a/b\\n\\n'\n"


def ask_for(path: str) -> bytes:
    """Return a request."""
    return f"GET {path} HTTP/1.1\r\nHost: ewe\r\n\r\n".encode()


def assert_idle(server: Server, seconds: float = 20) -> None:
    """A new client is served, and nothing went wrong within the server itself."""
    with server.connect(seconds) as sock:
        sock.sendall(GET)
        assert read_response(sock)[::2] == (200, WELCOME)
    assert "Traceback" not in server.log(), server.log()


def waits_for_connections(pid: int) -> bool:
    """Does a process sleep in poll, epoll or accept?"""
    return state(pid) == "S" and any("eventpoll" in link for link in open_files(pid).values())


# --- Connections --------------------------------------------------------------------------------------


def test_resets_at_every_stage(start: Start, model_or_loop: str) -> None:
    server = start(model_or_loop, "--head-timeout", "2s", "--poolthreads", "4")
    (server.root / "large").write_bytes(LARGE)
    write_program(server.cgi / "echo", PLAIN + "exec cat\n")
    write_program(server.cgi / "slow", "#!/bin/sh\necho $$ > ../htdocs/slow\nexec sleep 60\n")
    assert_idle(server)
    before = sum(len(open_files(pid)) for pid in server.processes())
    for _ in range(3):
        reset(server.connect())  # before a byte
        for request, answer in (
            (GET[:20], 0),  # within the head
            (b"POST /cgi-bin/echo HTTP/1.1\r\nHost: ewe\r\nContent-Length: 9000\r\n\r\n" + bytes(4000), 0),
            (b"POST /cgi-bin/echo HTTP/1.1\r\nHost: ewe\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", 0),
            (ask_for("/large"), 1),  # within the response
            (ask_for("/large"), 1_000_000),
            (ask_for("/large") * 3, 100),
            (GET, 100),  # between two requests
            (b"GET /nothing HTTP/1.1\r\n\r\n", 0),  # within an error
        ):
            sock = server.connect()
            sock.sendall(request)
            while answer > 0:
                answer -= len(sock.recv(answer))
            reset(sock)
    sock = server.connect()
    sock.sendall(ask_for("/cgi-bin/slow"))  # during a program
    wait_until(lambda: (server.root / "slow").exists() and (server.root / "slow").read_text(), 20, server.log)
    reset(sock)
    program = int((server.root / "slow").read_text())
    wait_until(lambda: is_gone(program), 20, "the program lives on")
    assert_idle(server)
    processes = server.processes()
    before += len(processes)  # the cache of each may have the large file open
    wait_until(lambda: sum(len(open_files(pid)) for pid in processes) <= before, 20, "descriptors are left")


def test_half_closed_clients_are_answered(server: Server) -> None:
    (server.root / "large").write_bytes(LARGE)
    write_program(server.cgi / "quick", PLAIN + "sleep 0.1; echo quick\n")
    for path, body in (("/", WELCOME), ("/large", LARGE), ("/cgi-bin/quick", b"quick\n")):
        with server.connect() as sock:
            sock.sendall(ask_for(path))
            sock.shutdown(socket.SHUT_WR)
            assert read_response(sock)[::2] == (200, body)
            assert sock.recv(1) == b""


@pytest.mark.parametrize("name", [*CONCURRENT, "fork", "prefork --workers 6"])
def test_clients_that_never_speak(start: Start, name: str) -> None:
    """They hold up nobody, are told nothing, and may not stay."""

    def connect(timeout: str) -> tuple[Server, list[socket.socket]]:
        server = start(name, "--head-timeout", timeout)
        return server, [server.connect() for _ in range(5 if "prefork" in name else 100)]

    server, silent = connect("60s")
    time.sleep(0.2)
    assert_idle(server)  # well before the 60 s are over
    for sock in silent:
        sock.close()
    server, silent = connect("1s")
    for sock in silent:
        assert sock.recv(1) == b""
        sock.close()


def test_tls_to_a_plain_port(server: Server) -> None:
    with server.connect() as sock:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)))
        status, fields, _ = read_response(sock)
    assert (status, fields["connection"]) == (400, "close")  # 408 if the server had waited for the rest
    assert_idle(server)


@pytest.mark.parametrize("name", [*CONCURRENT, "fork", "prefork --workers 8"])
def test_a_full_backlog(start: Start, name: str) -> None:
    """TCP repeats a connection that does not fit into the backlog: late, but every client is served."""
    server = start(name, "--backlog", "5")
    os.killpg(server.pid, signal.SIGSTOP)
    clients = []
    try:
        for _ in range(20):
            sock = socket.socket()
            sock.setblocking(False)
            assert sock.connect_ex(("127.0.0.1", server.port)) == errno.EINPROGRESS
            clients.append(sock)
        time.sleep(0.3)
    finally:
        os.killpg(server.pid, signal.SIGCONT)
    for sock in clients:
        sock.settimeout(15)
        wait_until(lambda sock=sock: is_connected(sock), 20, "it does not connect")
        sock.sendall(GET.replace(b"Host", b"Connection: close\r\nHost"))
        assert read_response(sock)[0] == 200
        sock.close()


def is_connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


# --- The system runs out ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CONCURRENT, "prefork --workers 2"])
def test_out_of_descriptors(start: Start, name: str) -> None:
    """It says so, without filling the log; goes on with those it has; and takes the others up later."""
    server = start(name)
    kept = server.connect()
    kept.sendall(GET)
    assert read_response(kept)[0] == 200
    serving = sorted(children(server.pid)) if "prefork" in name else [server.pid]
    for pid in serving:  # a worker that has not opened all that it needs would end
        wait_until(lambda pid=pid: waits_for_connections(pid), 20, server.log)  # type: ignore[misc]
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in serving}
    for pid, (_, hard) in limits.items():
        # The limit is about numbers: prefork gets none that is not in use now, the others fifteen.
        used = set(map(int, os.listdir(f"/proc/{pid}/fd")))
        free = sorted(set(range(max(used) + 20)) - used)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (free[0 if "prefork" in name else 15], hard))
    others = [server.connect() for _ in range(60)]
    for sock in others:
        sock.sendall(GET)
    drops = name == "asyncio" and "uvloop" in server.log()  # libuv closes what it has no descriptor for
    if not drops:
        server.wait_for_log("cannot accept: Too many open files")
    time.sleep(1)
    if "prefork" in name:  # its worker has let it go for one that waits
        assert kept.recv(1) == b""
    else:
        for _ in range(10):  # those it has are answered, be it that files cannot be opened either
            kept.sendall(GET)
            assert read_response(kept)[0] in (200, 503)
    for pid, limit in limits.items():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
    kept.close()
    for sock in others:  # nobody was dropped
        with contextlib.suppress(*([OSError] if drops else [])):
            assert read_response(sock)[0] in (200, 503)
        sock.close()
    assert_idle(server)
    assert server.log().count("cannot accept") <= len(serving)
    assert len([line for line in server.log().splitlines() if ": 503, " not in line]) < 5, server.log()


def test_a_file_truncated_while_it_is_sent(server: Server) -> None:
    (server.root / "large").write_bytes(LARGE)
    with server.connect() as sock:
        sock.sendall(ask_for("/large"))
        data = sock.recv(100_000)
        os.truncate(server.root / "large", 1000)
        data += b"".join(iter(lambda: received(sock), b""))
    head, _, body = data.partition(b"\r\n\r\n")
    assert b"Content-Length: %d\r\n" % len(LARGE) in head + b"\r\n"
    # Cut, never padded to its length. What the kernel had been handed by then was handed without a copy, so
    # that it may have changed in the socket, as with any server that uses sendfile(2).
    assert len(body) < len(LARGE) and body[:1000] == LARGE[:1000]
    assert_idle(server)


def received(sock: socket.socket) -> bytes:
    """Return the received bytes, b"" at an end of any kind."""
    try:
        return sock.recv(1_000_000)
    except ConnectionError:
        return b""


@pytest.mark.parametrize("name", [*CONCURRENT, "fork", "prefork"])
def test_logs_on_a_full_disk(start: Start, name: str) -> None:
    server = start(name, "--access-log", "/dev/full", "--logfile", "/dev/full")
    write_program(server.cgi / "loud", PLAIN + "echo loud >&2; echo said\n")
    for _ in range(20):
        with server.connect() as sock:
            sock.sendall(GET + ask_for("/cgi-bin/loud") + b"nonsense\r\n\r\n")
            assert [read_response(sock)[0] for _ in range(3)] == [200, 200, 400]
    assert server.stop() == 0


# --- Much of a little ---------------------------------------------------------------------------------


def test_a_deep_pipeline_read_slowly(server: Server) -> None:
    count = 1000
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(20)
        sock.connect(("127.0.0.1", server.port))
        sock.sendall(GET * (count - 1) + b"GET / HTTP/1.1\r\nHost: ewe\r\nConnection: close\r\n\r\n")
        data = b""
        while piece := sock.recv(20_000):
            data += piece
            time.sleep(0.002)
    assert data.count(b"HTTP/1.1 200 OK\r\n") == data.count(WELCOME) == count
    assert data.endswith(WELCOME)


def test_ten_thousand_tiny_chunks(server: Server) -> None:
    write_program(server.cgi / "echo", PLAIN + "exec cat\n")
    body = b"".join(b"%d" % (number % 10) for number in range(10_000))
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    with server.connect(20) as sock:
        sock.sendall(b"POST /cgi-bin/echo HTTP/1.1\r\nHost: ewe\r\nTransfer-Encoding: chunked\r\n\r\n")
        for start in range(0, len(chunks), 1000):
            sock.sendall(chunks[start : start + 1000])
        sock.sendall(b"0\r\n\r\n" + GET)
        assert read_response(sock)[::2] == (200, body)
        assert read_response(sock)[::2] == (200, WELCOME)


# --- Signals ------------------------------------------------------------------------------------------


def test_a_kept_connection_survives_a_reload(server: Server, variant: str) -> None:
    """Closed while idle it might meet a request on its way: it is closed with the next answer."""
    with server.connect() as sock:
        sock.sendall(GET)
        assert read_response(sock)[0] == 200
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("configuration was read again")
        # The event loop and the pool look about themselves four times a second, blocking streams each second.
        assert_closed_with_an_answer(sock, 0.6 if variant.startswith(("asyncio", "pool")) else 1.2)
    assert_idle(server)


def assert_closed_with_an_answer(sock: socket.socket, silent_for: float) -> None:
    time.sleep(silent_for)
    sock.sendall(GET)
    status, fields, body = read_response(sock)
    assert (status, fields["connection"], body) == (200, "close", WELCOME)
    assert sock.recv(1) == b""


LATE = """import os, signal, time
from ewe.processors.fork import Fork
fork = os.fork
def late():
    child = fork()
    if child:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGHUP)
    return child
os.fork = late
class Late(Fork):
    name = "late"
"""


def test_a_reload_that_comes_within_a_fork(start: Start, tmp_path: Path) -> None:
    """The child answers before its parent knows of it."""
    (tmp_path / "late.py").write_text(LATE)
    server = start("late:Late", env={"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    with server.connect() as sock:
        sock.sendall(GET)
        assert read_response(sock)[0] == 200
        server.wait_for_log("configuration was read again")
        assert_closed_with_an_answer(sock, 1.2)


class Other(threading.Thread):
    """A client that asks over one connection while something is killed. pid: of the worker that serves it."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.server = server
        self.sock = server.connect()
        self.pid = worker_of(self.sock)
        self.answered = 0
        self.failed = ""
        self.over = False

    def run(self) -> None:
        try:
            while not self.over:
                self.sock.sendall(ask_for("/large" if self.answered % 4 == 0 else "/"))
                status, fields, body = read_response(self.sock)
                assert (status, body) == (200, WELCOME if self.answered % 4 else LARGE)
                self.answered += 1
                if fields.get("connection") == "close":  # of prefork, for a client that waits
                    self.sock.close()
                    self.sock = self.server.connect()
        except Exception as reason:
            self.failed = repr(reason)[:200]
        self.sock.close()


def worker_of(sock: socket.socket) -> int:
    """Return the process that serves a connection."""
    sock.sendall(ask_for("/cgi-bin/parent"))
    return int(read_response(sock)[2])


@pytest.mark.parametrize(
    "name", ["fork", "prefork --workers 8", "thread --workers 2", "pool --workers 2", "asyncio --workers 2"]
)
def test_a_kill_takes_only_what_it_held(start: Start, name: str) -> None:
    server = start(name)
    (server.root / "large").write_bytes(LARGE)
    write_program(server.cgi / "parent", PLAIN + "echo $PPID\n")
    others = [Other(server) for _ in range(4)]
    victim = server.connect()
    killed = worker_of(victim)
    time.sleep(max(0, 1.1 - age(killed)))  # one that dies younger than a second is replaced later
    for other in others:
        other.start()
    victim.sendall(ask_for("/large"))
    data = victim.recv(100_000)
    before = set(children(server.pid))
    os.kill(killed, signal.SIGKILL)
    data += b"".join(iter(lambda: received(victim), b""))
    body = data.partition(b"\r\n\r\n")[2]
    assert len(body) < len(LARGE) and LARGE.startswith(body)
    victim.close()
    assert_idle(server)
    if name != "fork":
        wait_until(lambda: set(children(server.pid)) - before, 20, "no new worker")
    time.sleep(0.3)
    for other in others:
        other.over = True
    for other in others:
        other.join(20)
        assert other.pid == killed or (other.answered and not other.failed), other.failed
    wait_until(lambda: "Z" not in children(server.pid).values(), 20, "a zombie is left")


# --- Programs -----------------------------------------------------------------------------------------

BAD = {
    "endless": PLAIN + "exec cat /dev/zero\n",
    "endless-head": "#!/bin/sh\nexec yes 'X-Long: field'\n",
    "no-newline": "#!/bin/sh\nprintf 'Content-Type: text/plain'\n",
    "endless-line": "#!/bin/sh\nexec tr '\\0' x < /dev/zero\n",
    "lives-on": PLAIN + "echo done; exec >&- 2>&-; exec sleep 61\n",
    "stubborn": PLAIN + "trap '' TERM HUP INT; echo begun; while :; do sleep 0.2; done\n",
    "parent": PLAIN + "sleep 62 & sleep 62 & echo $!; exec sleep 62\n",
    "loud": PLAIN + "yes 'a line of no use to anybody' | head -n 1000000 >&2; echo loud\n",
}


@pytest.mark.parametrize("name", [*CONCURRENT, "fork", "prefork"])
def test_bad_programs(start: Start, name: str) -> None:
    server = start(name, "--poolthreads", "8")
    for file, text in BAD.items():
        write_program(server.cgi / file, text.replace("\n", f"\necho $$ > ../htdocs/{file}.pid\n", 1))
    found: dict[str, object] = {}

    def client(file: str) -> None:
        with server.connect(20) as sock:
            sock.sendall(ask_for(f"/cgi-bin/{file}"))
            try:
                if file in ("endless", "stubborn", "parent"):  # we leave
                    sock.recv(100)
                    time.sleep(0.3)
                    found[file] = "left"
                else:
                    found[file] = read_response(sock)[::2]
            except OSError as reason:
                found[file] = reason

    threads = [threading.Thread(target=client, args=(file,)) for file in BAD]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    assert_idle(server)
    for thread in threads:
        thread.join(20)
    assert found["lives-on"] == (200, b"done\n")
    assert found["loud"] == (200, b"loud\n")
    for file in ("endless-head", "no-newline", "endless-line"):
        assert isinstance(found[file], tuple) and found[file][0] == 502, found[file]  # type: ignore[index]
    for file in BAD:
        pid = int((server.root / f"{file}.pid").read_text())
        wait_until(lambda pid=pid: is_gone(pid), 20, f"{file} lives on")
        wait_until(lambda pid=pid: not group_members(pid), 20, f"what {file} started lives on")
    assert_idle(server)
    assert len(server.log().splitlines()) < 1100  # a thousand lines of a program's, and how many more
    server.wait_for_log("999000 more lines of standard error")


# --- All of it at once --------------------------------------------------------------------------------


@pytest.mark.starts_processes
@pytest.mark.parametrize("name", [*MODELS, "xswitch"])
def test_a_short_soak(name: str) -> None:
    """A few seconds each; `python tests/support/soak.py --model ... --seconds 600` is the long one."""
    script = str(ROOT / "tests" / "support" / "soak.py")
    command = [sys.executable, script, "--model", name, "--seconds", str(seconds(4)), "--seed", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "<HUP>" in ended.stdout and "<USR1>" in ended.stdout
    assert ("<KILL>" in ended.stdout) is (name in ("fork", "prefork", "xswitch"))
