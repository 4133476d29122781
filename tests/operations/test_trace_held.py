"""The trace writes several events at once. A reader still sees where a worker waits or hangs."""

from __future__ import annotations

import os
import signal
import socket
import time
from itertools import pairwise
from pathlib import Path

import pytest
from support.server import Server, Start, wait_until
from support.wire import read_all
from test_trace import GET, LAST, Event, by_connection, check_order, events

from ewe.config.settings import Config
from ewe.processors.base import model_named
from ewe.server.trace import traced
from ewe.sites import make_site
from ewe.streams.base import Stream
from ewe.streams.blocking import run
from ewe.streams.traced import ROOM_BYTES
from ewe.trace import MAX_HELD_CHARS, MAX_TEXT_CHARS, Trace

PIPE_BUF = 4096  # bytes: a longer write to a pipe may be split (pipe(7))
HANGS = """
import pathlib, time
from ewe.http.messages import Response, Source

class Slow(Source):
    parts = 0
    async def receive(self):
        self.parts += 1
        if self.parts == 2:
            reached("between")
            time.sleep(600)
        return b"a part"

def reached(name):
    pathlib.Path(__file__).with_name(name).touch()

class Hangs:
    def __init__(self, config, path): pass
    async def respond(self, request, io):
        if request.path == "/hangs/between":
            return Response(200, (), Slow())
        reached("before")
        time.sleep(600)
"""


def last(path: Path) -> Event:
    """Return the last event of the connection that was accepted last."""
    (*_, connection) = by_connection(path).values()
    return connection[-1]


def start_hanging(start: Start, variant: str, tmp_path: Path) -> tuple[Server, Path]:
    path = tmp_path / "trace"
    (tmp_path / "hangs.py").write_text(HANGS)
    return start(variant, "--trace", str(path), "--mount", "/hangs/=hangs:Hangs"), path


@pytest.mark.parametrize(
    ("where", "event"), [("before", ("request", "GET /hangs/before")), ("between", ("sent", ""))]
)
def test_where_a_feature_hangs_is_in_the_file(
    start: Start, variant: str, tmp_path: Path, where: str, event: tuple[str, str]
) -> None:
    """The event before a feature's code is written before this code runs; kill -9 takes none of them."""
    server, path = start_hanging(start, variant, tmp_path)
    with server.connect() as sock:
        sock.sendall(GET)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")
        sock.sendall(f"GET /hangs/{where} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        wait_until(lambda: (tmp_path / where).exists(), 20)
        seen = last(path)
        os.killpg(server.pid, signal.SIGKILL)
    assert seen.name == event[0] and seen.text.startswith(event[1])
    assert last(path) == seen
    (connection,) = by_connection(path).values()
    assert next(each.text for each in connection if each.name == "answered") == "200 files"


def test_a_kept_connection_that_is_silent_waits(start: Start, variant: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    server = start(variant, "--trace", str(path))
    with server.connect() as sock:
        sock.sendall(GET)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")
        wait_until(lambda: last(path).name in ("waits", "parked"), 20)
        time.sleep(0.05)
        assert (last(path).name, last(path).text) in [("waits", "request"), ("parked", "bytes")]


def test_a_client_that_does_not_read_is_seen(start: Start, variant: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    server = start(variant, "--trace", str(path))
    (server.root / "large").write_bytes(bytes(20_000_000))
    with server.connect() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: "sends" in [event.name for event in events(path)], 20)
        time.sleep(0.1)
        assert (last(path).name, last(path).text) in [("sends", ""), ("parked", "room")]


def test_the_events_of_a_worker_are_in_order(start: Start, variant: str, tmp_path: Path) -> None:
    """Serial and prefork may end a connection before its last request, since the other clients wait."""
    path = tmp_path / "trace"
    server = start(variant, "--trace", str(path))
    sockets = [server.connect() for _ in range(4)]
    for sock in sockets:
        sock.sendall(GET * 5 + LAST)
    answers = []
    for sock in sockets:
        answers.append(read_all(sock).count(b"HTTP/1.1 "))
        sock.close()
    server.stop()
    workers: dict[tuple[int, int], list[float]] = {}
    for event in events(path):
        workers.setdefault((event.process, event.thread), []).append(event.seconds)
    for seconds in workers.values():
        assert all(before <= after for before, after in pairwise(seconds))
    requests = []
    for connection in by_connection(path).values():
        check_order(connection)
        requests.append([event.name for event in connection].count("request"))
    assert sorted(requests) == sorted(answers) and min(answers) > 0
    if variant.split()[0] not in ("serial", "prefork"):
        assert answers == [6] * 4


class ScriptedStream(Stream):
    """A client that makes `left` requests."""

    left = 10

    def __init__(self, config: Config) -> None:
        super().__init__(("127.0.0.1", 5), ("127.0.0.1", 80), config)

    async def next_request(self, seconds: float) -> bytes:
        self.left -= 1
        return GET if self.left >= 0 else b""

    async def send(self, *parts: bytes) -> None:
        pass


@pytest.mark.parametrize(("may_block", "writes"), [(True, 3), (False, 2)])
def test_a_request_is_a_few_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_block: bool, writes: int
) -> None:
    """Over a stream that blocks: before the handler, before send(2), before recv(2).

    Another stream parks instead of the last two. This one never parks, so its events after `request` are written
    with those of the next request.
    """
    (tmp_path / "index.html").write_text("hello")
    path = tmp_path / "trace"
    config = Config(documentroot=tmp_path, trace=str(path))
    model = traced(model_named("serial"), str(path))
    processor = model(make_site(config), config)
    counted: list[bytes] = []
    append = Trace.append
    monkeypatch.setattr(Trace, "append", lambda trace, lines: append(trace, lines) or counted.append(lines))
    stream = ScriptedStream(config)
    stream.may_block = may_block
    processor.register(stream)
    run(processor.converse(stream))
    processor.forget(stream)
    (connection,) = by_connection(path).values()
    assert [event.name for event in connection].count("answered") == 10
    assert len(counted) <= 10 * writes + 5  # accepted, ended, closed


def test_a_short_connection_is_four_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a model that begins a conversation at once: before recv(2), before the handler, at the next recv(2), at
    the end. A long response is a write more, since its client may not read it.
    """
    path = tmp_path / "trace"
    writes: list[bytes] = []
    append = Trace.append
    monkeypatch.setattr(Trace, "append", lambda trace, lines: append(trace, lines) or writes.append(lines))
    sizes = []
    for size in (10, ROOM_BYTES):
        root = tmp_path / str(size)  # one file for both would be believed for a second
        root.mkdir()
        (root / "index.html").write_bytes(bytes(size))
        config = Config(documentroot=root, trace=str(path))
        processor = traced(model_named("serial"), str(path))(make_site(config), config)
        stream = ScriptedStream(config)
        stream.left = 1
        processor.register(stream)
        run(processor.converse(stream))
        processor.forget(stream)
        sizes.append(len(writes))
        writes.clear()
    assert sizes == [4, 5]
    for connection in by_connection(path).values():
        check_order(connection)


def test_lost_events_of_one_write_are_all_counted(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    trace = Trace(str(path))
    for _ in range(3000):
        trace.hold("answered", "1.1", "200 files")
        trace.write("sends", "1.1")
    written = sum(b" lost " not in line for line in os.read(reader, 1 << 20).splitlines())
    os.close(reader)
    assert 100 < written < 6000
    assert trace.lost[0] == 6000 - written


def test_held_lines_and_one_more_are_one_write_to_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace"
    trace = Trace(str(path))
    sizes: list[int] = []
    append = Trace.append
    monkeypatch.setattr(
        Trace, "append", lambda trace, lines: append(trace, lines) or sizes.append(len(lines))
    )
    for number in range(200):
        trace.hold("answered", "1.1", "200 files")
        if number % 31 == 0:
            trace.write("request", "1.1", "/" + "\U0001f411" * MAX_TEXT_CHARS)
    trace.write("closed", "1.1")
    assert max(sizes) <= PIPE_BUF and len(sizes) > 200 * 40 / MAX_HELD_CHARS
    assert len(path.read_text().splitlines()) == 208


@pytest.mark.starts_processes
def test_a_forked_child_does_not_write_its_parents_held_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    trace = Trace(str(path))
    trace.hold("answered", "1.1", "200 files")
    child = os.fork()
    if not child:
        trace.write("runs", "1.2")
        os._exit(0)
    os.waitpid(child, 0)
    trace.write("sends", "1.1")
    assert sorted(event.name for event in events(path)) == ["answered", "runs", "sends"]


def test_a_signal_handler_may_write(tmp_path: Path) -> None:
    """A handler runs between two statements of hold() or write(): each line is written once."""
    path = tmp_path / "trace"
    trace = Trace(str(path))
    signals = 0

    def handler(number: int, frame: object) -> None:
        nonlocal signals
        signals += 1
        trace.write("ended", "2.1", "by a signal")

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    try:
        for number in range(20_000):
            trace.hold("answered", f"1.{number}", "200 files")
            trace.write("sends", f"1.{number}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    lines = path.read_text().splitlines()
    assert signals > 10 and len(lines) == 40_000 + signals
    assert len(set(lines)) + sum(" ended " in line for line in lines) >= 40_000 + signals
