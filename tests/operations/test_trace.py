"""The setting `trace`: a line for each event of each connection, the same events under every model."""

from __future__ import annotations

import os
import pwd
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest
from support import trace_cost
from support.memory import MemoryStream
from support.server import ROOT, Server, Start, run_command, wait_until, write_program

from ewe.streams.blocking import run
from ewe.streams.traced import TracedStream
from ewe.trace import MAX_TEXT_CHARS, Trace, earlier_run_warning, trace_at

LINE = re.compile(r"(\d+\.\d{6}) ([a-z-]+) (-|\d+\.\d+) (\d+)/(\d+) (.*)")
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /nope HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class Event(NamedTuple):
    seconds: float
    name: str
    connection: str
    process: int
    thread: int
    text: str


def events(path: Path) -> list[Event]:
    found = []
    for line in path.read_text().splitlines():
        match = LINE.fullmatch(line)
        assert match, line
        found.append(Event(float(match[1]), match[2], match[3], int(match[4]), int(match[5]), match[6]))
    return found


def by_connection(path: Path) -> dict[str, list[Event]]:
    """Return the events of each connection, in the order of their names."""
    found: dict[str, list[Event]] = defaultdict(list)
    for event in events(path):
        if event.connection != "-":
            found[event.connection].append(event)
    return dict(found)


def names(connection: list[Event]) -> list[str]:
    return [event.name for event in connection]


def check_order(connection: list[Event]) -> None:
    """Check what holds for every connection: a worker runs it, or it pauses, and each wait and send ends."""
    state, open_wait, open_send = "accepted", False, False
    assert connection[0].name == "accepted" and connection[-1].name == "closed", names(connection)
    for event in connection[1:-1]:
        if event.name == "runs":
            assert state != "runs", names(connection)
            state = "runs"
        elif event.name in ("parked", "ended"):
            assert state == "runs", names(connection)
            state = event.name
        elif event.name == "ready":
            assert state in ("accepted", "parked"), names(connection)
        else:
            assert state == "runs", names(connection)
        if event.name in ("waits", "goes-on"):
            assert open_wait is (event.name == "goes-on"), names(connection)
            open_wait = not open_wait
        if event.name in ("sends", "sent"):
            assert open_send is (event.name == "sent"), names(connection)
            open_send = not open_send
    assert state == "ended" and not open_wait and not open_send, names(connection)


def talk(server: Server) -> None:
    """Make two requests on a connection, and read to its end."""
    with server.connect() as sock:
        sock.sendall(GET)
        time.sleep(0.05)
        sock.sendall(LAST)
        while sock.recv(65536):
            pass


def test_every_model_writes_the_same_events_of_a_connection(
    start: Start, variant: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace"
    server = start(variant, "--trace", str(path))
    talk(server)
    server.stop()
    (connection,) = by_connection(path).values()
    check_order(connection)
    texts = [(event.name, event.text) for event in connection]
    told = [each for each in texts if each[0] in ("accepted", "request", "answered", "ended")]
    assert re.fullmatch(r"127\.0\.0\.1:\d+( backlog=\d+\.\d{3})?", told[0][1])
    assert told[1:] == [
        ("request", "GET /"),
        ("answered", "200 files"),
        ("request", "GET /nope"),
        ("answered", "404 files"),
        ("ended", "the server closes"),
    ]
    assert ("waits", "request") in texts
    model = [event for event in events(path) if event.name == "model"]
    assert model and all(event.text.startswith(variant.split()[0]) for event in model)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600  # it holds what people have asked for


def test_a_program_begins_and_ends(start: Start, model: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    server = start(model, "--trace", str(path))
    write_program(server.cgi / "hello.py", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nhello'\n")
    assert b"hello" in server.ask(b"GET /cgi-bin/hello.py HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    server.stop()
    (connection,) = by_connection(path).values()
    check_order(connection)
    (began,) = [event for event in connection if event.name == "program"]
    (ended,) = [event for event in connection if event.name == "exited"]
    assert began.text == ended.text and began.text.isdigit()
    assert "200 cgi" in [event.text for event in connection if event.name == "answered"]
    assert ("waits", "program") in [(event.name, event.text) for event in connection]


@pytest.mark.parametrize("secured", ["thread", "pool", "asyncio"])
def test_over_tls(start: Start, secured: str, tmp_path: Path) -> None:
    import ssl

    path = tmp_path / "trace"
    server = start(secured, "--trace", str(path), "--tls", "self")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with server.connect() as sock, context.wrap_socket(sock) as secure:
        secure.sendall(LAST)
        assert secure.recv(65536).startswith(b"HTTP/1.1 404")
    server.stop()
    (connection,) = by_connection(path).values()
    check_order(connection)
    assert ("answered", "404 files") in [(event.name, event.text) for event in connection]


def test_six_silent_clients_and_a_pool_of_five(start: Start, tmp_path: Path) -> None:
    """The pool of 2006: five silent clients hold its workers, and the sixth client waits in the queue."""
    path = tmp_path / "trace"
    server = start("pool --parking never", "--trace", str(path), "--poolthreads", "5")
    silent = [server.connect() for _ in range(5)]
    wait_until(lambda: names_of_all(path).count("waits") == 5, 20)
    with server.connect() as visitor:
        visitor.sendall(LAST)
        wait_until(lambda: names_of_all(path).count("ready") == 6, 20)
        waiting = [each for each in by_connection(path).values() if "runs" not in names(each)]
        assert [names(each) for each in waiting] == [["accepted", "ready"]]
        assert len({event.thread for event in events(path) if event.name == "runs"}) == 5
        silent[0].close()
        assert visitor.recv(65536).startswith(b"HTTP/1.1 404")
    for sock in silent:
        sock.close()


@pytest.mark.parametrize(
    ("options", "lives"),
    [("serial", 1), ("fork", 2), ("thread", 2), ("pool", 3), ("pool --parking never", 3), ("prefork", 4)],
)
def test_the_life_of_each_worker(start: Start, options: str, lives: int, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    server = start(
        options, "--trace", str(path), "--poolthreads", "3", "--workers", "4" if options == "prefork" else "1"
    )
    for _ in range(2):
        talk(server)
    if options in ("fork", "thread"):
        wait_until(lambda: names_of_all(path).count("ends") == 2, 20)
    server.stop()
    began = [event[3:5] for event in events(path) if event.name == "begins"]
    ended = [event[3:5] for event in events(path) if event.name == "ends"]
    stopped = {event.process for event in events(path) if event.name == "stops"}
    assert len(set(began)) == len(began) == lives and len(set(ended)) == len(ended)
    assert all(worker in ended or worker[0] in stopped for worker in began)
    of_connections = {event[3:5] for event in events(path) if event.name == "request"}
    assert of_connections <= set(began)  # no request without a worker, and two requests make no second life


def names_of_all(path: Path) -> list[str]:
    return [event.name for event in events(path)]


@pytest.mark.parametrize("parks", ["pool", "asyncio"])
def test_silent_clients_hold_no_worker_where_the_conversation_parks(
    start: Start, parks: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace"
    server = start(parks, "--trace", str(path))
    silent = [server.connect() for _ in range(6)]
    wait_until(lambda: names_of_all(path).count("parked") == 6, 20)
    talk(server)
    for sock in silent:
        sock.close()


def test_a_refused_connection(start: Start, model: str, tmp_path: Path) -> None:
    if model == "serial":
        model = "thread"  # it has no second connection that could be refused
    path = tmp_path / "trace"
    server = start(model, "--trace", str(path), "--connections-per-client", "1", "--workers", "1")
    with server.connect() as first:
        first.sendall(GET)
        assert first.recv(10)
        if model == "prefork":
            return  # a worker has no second connection either
        with server.connect() as second:
            assert second.recv(1000).startswith(b"HTTP/1.1 503")
    wait_until(lambda: "refused" in names_of_all(path), 20)
    (refused,) = [event for event in events(path) if event.name == "refused"]
    assert refused.text == "127.0.0.1 connections-per-client"


@pytest.mark.parametrize("parking", ["never", "idle"])
def test_a_full_queue_is_named(start: Start, parking: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    options = ("--poolthreads", "1", "--queue", "1", "--overload", "refuse", "--trace", str(path))
    server = start(f"pool --parking {parking}", *options)
    with server.connect() as holds:
        holds.sendall(GET[:10])  # half a head occupies the thread
        wait_until(lambda: ("waits", "bytes") in {(event.name, event.text) for event in events(path)}, 20)
        with server.connect() as queued:
            queued.sendall(GET[:10])
            wait_until(lambda: names_of_all(path).count("ready") == 2, 20)
            with server.connect() as refused:
                assert refused.recv(1000).startswith(b"HTTP/1.1 503")
    wait_until(lambda: "refused" in names_of_all(path), 20)
    assert [event.text for event in events(path) if event.name == "refused"] == ["127.0.0.1 queue"]
    assert "connections are open (queue)" in server.log()


def test_how_a_conversation_ends(start: Start, way_to_wait: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    server = start(way_to_wait, "--trace", str(path), "--head-timeout", "0.5")
    late, gone = server.connect(), server.connect()
    gone.sendall(b"GET")
    wait_until(lambda: names_of_all(path).count("accepted") == 2, 20)
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    gone.close()
    wait_until(lambda: names_of_all(path).count("closed") == 2, 20)
    late.close()
    why = {event.text for event in events(path) if event.name == "ended"}
    assert why == {"no request came in time", "the client has left"}
    assert {event.text for event in events(path) if event.name == "goes-on"} >= {"timeout", "left"}


def test_clients_that_leave_before_they_are_accepted(start: Start, way_to_wait: str, tmp_path: Path) -> None:
    """uvloop then has no address of the client, and the connection is not registered."""
    path = tmp_path / "trace"
    server = start(way_to_wait, "--trace", str(path))
    with server.held_up():
        for _ in range(3):
            with server.connect() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    talk(server)
    server.stop()
    assert "error" not in server.log()
    for connection in by_connection(path).values():
        check_order(connection)


def test_a_pipe_loses_events_and_holds_no_conversation(start: Start, model: str, tmp_path: Path) -> None:
    """Nobody reads the pipe until it is full: the events are counted, and the server answers on."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    server = start(model, "--trace", str(path))
    request = GET * 200 + LAST
    for _ in range(3):
        assert server.ask(request).count(b"HTTP/1.1 200") == 200
    assert len(read_pipe(reader)) > 50_000
    server.ask(LAST)  # now there is room
    lost = re.search(rb" lost - \d+/\d+ (\d+)\n", read_pipe(reader))
    assert lost and int(lost[1]) > 100
    os.close(reader)
    assert server.ask(LAST).startswith(b"HTTP/1.1 404")  # no reader is left


def read_pipe(reader: int) -> bytes:
    """Return what is in the pipe."""
    text = b""
    while True:
        try:
            text += os.read(reader, 65536)
        except BlockingIOError:
            return text


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkfifo, "no program reads this pipe"),
        (os.mkdir, "Is a directory"),
    ],
)
@pytest.mark.starts_processes
def test_a_trace_that_cannot_be_written_ends_the_start(tmp_path: Path, make: object, why: str) -> None:
    path = tmp_path / "trace"
    make(path)  # type: ignore[operator]
    ended = run_command(tmp_path, "--documentroot", str(tmp_path), "--port", "0", "--trace", str(path))
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1
    assert f"cannot write '{path}': {why} (trace)" in ended.stderr


def test_lines_stay_whole_and_short(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    trace = Trace(str(path))
    trace.write("request", "1.1", "GET /" + "x" * 10_000)
    trace.write("request", "1.1", "GET /\udcff")
    lines = path.read_text().splitlines()
    assert len(lines) == 2 and max(map(len, lines)) <= 500
    assert lines[1].endswith(r"GET /\udcff")


def test_a_trace_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ewe.trace.MAX_BYTES", 10_000)
    monkeypatch.setattr("ewe.trace.CHECK_EVERY", 10)
    path = tmp_path / "trace"
    trace = Trace(str(path))
    for _ in range(1000):
        trace.write("waits", "1.1", "request")
    size = path.stat().st_size
    assert 10_000 <= size < 11_000
    assert trace.lost[0] == 1000 - len(path.read_text().splitlines())
    os.truncate(path, 0)
    trace.write("goes-on", "1.1")
    assert [event.name for event in events(path)] == ["lost", "goes-on"]


def test_a_full_disk_cuts_no_later_line(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    trace = Trace(str(path))
    trace.write("waits", "1.1", "request")
    line_bytes = path.stat().st_size
    room = 20 * line_bytes + line_bytes // 2  # the disk takes the beginning of a line
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        for _ in range(49):
            trace.write("waits", "1.1", "request")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.stat().st_size == room and not path.read_text().endswith("\n")
    trace.write("goes-on", "1.1")
    *whole, cut, lost, last = path.read_text().splitlines()
    assert all(LINE.fullmatch(line) for line in (*whole, lost, last)) and not LINE.fullmatch(cut)
    assert lost.endswith(f" {50 - len(whole)}") and " goes-on " in last


MINE = """
from ewe.processors.base import Processor

class Mine(Processor):
    def serve(self, listener):
        for accepted in listener:
            self.run(self.stream_of(accepted))
"""


@pytest.mark.starts_processes
def test_a_model_of_a_student(start: Start, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    path = tmp_path / "trace"
    server = start("mine:Mine", "--trace", str(path), env={})
    talk(server)
    server.stop()
    (connection,) = by_connection(path).values()
    check_order(connection)


@pytest.mark.starts_processes
def test_a_server_without_a_trace_does_not_load_it() -> None:
    code = "import ewe.server.run, ewe.processors.pool, sys; print([m for m in sys.modules if 'trace' in m])"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not [name for name in eval(found.stdout) if name.startswith("ewe.")]


def test_a_reload_begins_a_trace_in_new_workers(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    settings = tmp_path / "ewe.toml"
    settings.write_text("")
    server = start("thread --workers 2", "--config", str(settings))
    settings.write_text(f"trace = '{path}'\n")
    os.kill(server.pid, signal.SIGHUP)
    server.wait_for_log("was read again")
    wait_until(lambda: talk(server) or (path.exists() and "closed" in names_of_all(path)), 20)


def test_a_reload_of_one_process_begins_no_trace(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    settings = tmp_path / "ewe.toml"
    settings.write_text("")
    server = start("thread", "--config", str(settings))
    settings.write_text(f"trace = '{path}'\n")
    os.kill(server.pid, signal.SIGHUP)
    server.wait_for_log("trace: a change needs a restart")
    talk(server)
    assert not path.exists()


def test_a_trace_that_has_events_already_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    assert earlier_run_warning(str(path)) == ""
    trace_at(str(path)).write("model", "-", "pool")
    assert earlier_run_warning(str(path)) == ""  # they are of this run
    (tmp_path / "old").write_bytes(path.read_bytes())
    old = str(tmp_path / "old")
    assert earlier_run_warning(old).startswith(f"trace: {old} has events of an earlier run")
    assert earlier_run_warning(old) == ""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert earlier_run_warning(str(tmp_path / "pipe")) == ""
    os.close(reader)


def test_a_start_that_adds_to_a_trace_warns(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    start("thread", "--trace", str(path)).stop()
    start("thread", "--trace", str(path)).wait_for_log("has events of an earlier run")


def test_the_cost_of_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the difference of the medians for the events of a request; runs without and with a trace alternate."""
    told: list[bool] = []
    cpu_us = iter((10.0, 21.0, 12.0, 24.0, 11.0, 23.0))

    def measure(model: str, seconds: int, directory: Path, trace: Path | None) -> trace_cost.Run:
        told.append(trace is not None)
        return trace_cost.Run(next(cpu_us), 4.0 if trace else 0.0, 0)

    monkeypatch.setattr(trace_cost, "measure", measure)
    assert " ".join(trace_cost.row("thread", 3, 1).split()) == "thread 11.0 10..12 23.0 4.00 3.00 0"
    assert told == [False, True] * 3


@pytest.mark.needs("root")
def test_root_writes_no_trace_through_a_link_of_another_account(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("root's\n")
    tmp_path.chmod(0o1777)
    (tmp_path / "trace").symlink_to(tmp_path / "victim")
    os.chown(tmp_path / "trace", pwd.getpwnam("nobody").pw_uid, -1, follow_symlinks=False)
    with pytest.raises(OSError, match="symbolic link that root has not made"):
        Trace(str(tmp_path / "trace"))
    assert (tmp_path / "victim").read_text() == "root's\n"


def test_a_line_of_escapes_is_as_short_as_any_other(tmp_path: Path) -> None:
    """A pipe splits a longer one, and an escape has up to ten characters."""
    trace = Trace(str(tmp_path / "trace"))
    trace.write("request", "1.1", "/" + "\U000e0001" * MAX_TEXT_CHARS)
    trace.write("request", "1.1", "/" + "\U0001f411" * MAX_TEXT_CHARS)
    lines = (tmp_path / "trace").read_bytes().splitlines(keepends=True)
    assert len(lines) == 2 and max(map(len, lines)) < 4096 and rb"/\U000e0001" in lines[0]


@pytest.mark.parametrize("number", ["", "x", "-1", "9" * 10, "9" * 5000])
def test_a_descriptor_that_cannot_exist(number: str) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        Trace(f"fd://{number}")


@pytest.mark.parametrize(
    ("in_handshake", "what", "why"),
    [(True, "bytes", "timeout"), (False, "request", "no request came in time")],
)
def test_a_wait_for_a_handshake_is_none_for_a_request(
    tmp_path: Path, in_handshake: bool, what: str, why: str
) -> None:
    path = tmp_path / "trace"
    stream = TracedStream(MemoryStream([]), Trace(str(path)), "1.1")
    stream.in_handshake = in_handshake
    assert run(stream.next_request(0)) == b"" and stream.why == why
    stream.end()
    stream.trace.write("closed", "1.1")  # writes the held events, too
    assert ("waits", what) in [(event.name, event.text) for event in events(path)]


@pytest.mark.parametrize(
    ("attribute", "why"),
    [
        ("gives_way", "another client waits"),
        ("finishing", "the server stops"),
        # A process that retires, or has other settings, leaves an idle connection open
        ("stopping", "the client closes"),
    ],
)
def test_why_an_idle_connection_has_ended(tmp_path: Path, attribute: str, why: str) -> None:
    below = MemoryStream([])
    setattr(below, attribute, True)
    stream = TracedStream(below, Trace(str(tmp_path / "trace")), "1.1")
    assert run(stream.next_request(9)) == b"" and stream.why == why
