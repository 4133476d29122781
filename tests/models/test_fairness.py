"""One client that always has something to do, and the others: a thread or a loop that serves many goes round.

The server is stopped (SIGSTOP) while both clients send, so that it finds both waiting; the access log shows which
client was answered first. No clock is read. Kept connections divide themselves among the workers of a server.
"""

from __future__ import annotations

import os
import signal
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from types import SimpleNamespace
from typing import Any

import pytest
from support.proc import children_of, is_asleep
from support.server import Server, Start, wait_until

from ewe.config.settings import Config
from ewe.features.indexes import INLINE_NAMES
from ewe.processors import event
from ewe.processors.base import Processor
from ewe.processors.prefork import Prefork
from ewe.processors.serial import Serial
from ewe.streams.blocking import TIMEVAL
from ewe.streams.listener import Listener
from ewe.streams.serial import TICK_S

SHARED = ("asyncio --loop uvloop", "asyncio --loop asyncio", "pool --poolthreads 1")
OTHER = b"GET /?other HTTP/1.1\r\nHost: ewe\r\n\r\n"


def lines(server: Server) -> list[str]:
    """Return the lines of the access log."""
    return server.access_file.read_text().splitlines() if server.access_file.exists() else []


def order(server: Server, first: bytes, count: int) -> int:
    """Send `first` on one connection, then a request on another; return how many were answered before that.

    count: how many answers `first` gets.
    """
    with server.connect() as busy, server.connect() as other:
        for sock in (busy, other):  # both are known to the server, and it waits for both
            sock.sendall(b"HEAD /?known HTTP/1.1\r\nHost: ewe\r\n\r\n")
            assert sock.recv(1000).startswith(b"HTTP/1.1 200")
        wait_until(lambda: len(lines(server)) == 2, 30)
        os.kill(server.pid, signal.SIGSTOP)
        busy.sendall(first)
        other.sendall(OTHER)
        os.kill(server.pid, signal.SIGCONT)
        wait_until(lambda: len(lines(server)) >= count + 3, 30, lambda: f"{len(lines(server))} lines")
    return next(number for number, line in enumerate(lines(server)[2:]) if "?other" in line)


@pytest.mark.parametrize("name", SHARED)
def test_a_pipeline_of_thousands(start: Start, name: str) -> None:
    count = 1500
    server = start(name, "--requests", "0")
    assert order(server, b"HEAD /?busy HTTP/1.1\r\nHost: ewe\r\n\r\n" * count, count) < count / 5


@pytest.mark.parametrize("name", SHARED)
def test_requests_that_cost_much_and_send_little(start: Start, name: str) -> None:
    server = start(name)
    for number in range(INLINE_NAMES):  # a page of more names is kept for a second
        (server.root / f"{number}.txt").touch()
    (server.root / "index.html").unlink()
    assert order(server, b"HEAD /?busy HTTP/1.1\r\nHost: ewe\r\n\r\n" * 40, 40) < 10


@pytest.mark.parametrize("name", SHARED)
def test_a_body_of_tiny_chunks(start: Start, name: str) -> None:
    """A chunk of one byte takes longer to decode than to send."""
    server = start(name)
    head = b"POST / HTTP/1.1\r\nHost: ewe\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert order(server, head + b"1\r\nx\r\n" * 9000 + b"0\r\n\r\n", 1) == 0


@pytest.mark.parametrize("name", SHARED)
def test_a_download_whose_client_left(start: Start, name: str, tmp_path: Path) -> None:
    """ewe does not encrypt the rest of the file after the client has left."""
    server = start(name, "--tls", "self")
    with (server.root / "large").open("wb") as file:
        file.truncate(1 << 32)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with context.wrap_socket(server.connect()) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: ewe\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        client.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: lines(server), 30)
    assert str(1 << 32) not in lines(server)[0]


# A worker that serves one connection at a time

ALONE = ("serial", "prefork --workers 1")
ASK = b"HEAD /?busy HTTP/1.1\r\nHost: ewe\r\n\r\n"


@pytest.mark.parametrize("name", ALONE)
def test_a_client_that_never_pauses_lets_another_have_the_worker(start: Start, name: str) -> None:
    server = start(name, "--requests", "0", "--idle", "600s")
    with server.connect() as busy, server.connect() as other:
        busy.sendall(ASK)
        assert b"Connection: close" not in busy.recv(1000)
        other.sendall(OTHER)
        answers = 0
        while b"Connection: close" not in (answer := ask_again(busy)):
            assert answer.startswith(b"HTTP/1.1 200")
            answers += 1
        assert busy.recv(1000) == b""  # and not a reset
        assert other.recv(1000).startswith(b"HTTP/1.1 200")
        # Nobody waits now: the connection stays.
        for _ in range(200):
            other.sendall(ASK)
            assert b"Connection: close" not in other.recv(1000)


def ask_again(sock: socket.socket) -> bytes:
    sock.sendall(ASK)
    return sock.recv(1000)


@pytest.mark.parametrize("name", ALONE)
def test_an_idle_connection_ends_when_another_client_waits(start: Start, name: str) -> None:
    server = start(name, "--idle", "600s")
    with server.connect() as idle:
        idle.sendall(ASK)
        assert idle.recv(1000).startswith(b"HTTP/1.1 200")
        time.sleep(3 * TICK_S)
        assert ask_again(idle).startswith(b"HTTP/1.1 200")  # nobody waits, so it stays
        with server.connect() as other:
            other.sendall(OTHER)
            assert other.recv(1000).startswith(b"HTTP/1.1 200")
            assert idle.recv(1000) == b""


@pytest.mark.parametrize("model", [Serial, Prefork])
def test_a_worker_for_one_client_looks_often(model: type[Processor]) -> None:
    """Each look counts as TICK_S: if the kernel waited for longer, so would idle, head-timeout and the others."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        site: Any = SimpleNamespace(tls=None)
        processor = model(site, Config())
        processor.listener = Listener([listening])
        processor.listener.close()
        processor.serve(processor.listener)
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
            tick = accepted.getsockopt(SOL_SOCKET, socket.SO_RCVTIMEO, TIMEVAL.size)
        processor.listener.close_descriptors()
    assert TIMEVAL.unpack(tick) == (0, round(TICK_S * 1e6))


def test_an_idle_connection_of_a_trusted_proxy_stays(start: Start) -> None:
    server = start("serial", "--idle", "600s", "--trusted-proxies", "127.0.0.1")
    with server.connect() as idle, server.connect() as other:
        idle.sendall(ASK)
        assert idle.recv(1000).startswith(b"HTTP/1.1 200")
        other.sendall(OTHER)
        time.sleep(3 * TICK_S)
        while b"Connection: close" not in ask_again(idle):  # it ends after an exchange
            time.sleep(0.01)
        assert other.recv(1000).startswith(b"HTTP/1.1 200")


def test_a_silent_client_keeps_the_worker_until_its_time_is_over(start: Start) -> None:
    """Without a request there is nothing to end: the lesson of the serial model stays."""
    server = start("serial", "--head-timeout", "1s")
    with server.connect() as silent, server.connect() as other:
        other.sendall(OTHER)
        other.settimeout(2 * TICK_S)
        with pytest.raises(TimeoutError):
            other.recv(1000)
        other.settimeout(20)
        assert other.recv(1000).startswith(b"HTTP/1.1 200")
        assert silent.recv(1000) == b""


@pytest.mark.parametrize("name", ["serial", "prefork"])
def test_many_clients_that_never_pause_are_all_served(start: Start, name: str) -> None:
    server = start(name)
    answered: Counter[int] = Counter()
    over = threading.Event()

    def client(number: int) -> None:
        while not over.is_set():
            with server.connect() as sock:
                answer = b""
                while b"Connection: close" not in answer and not over.is_set():
                    answer = ask_again(sock)
                    if not answer:
                        break  # an idle connection that the server has just ended
                    answered[number] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(answered) == 24, 30, lambda: f"{len(answered)} of 24 clients were answered")
    over.set()
    for thread in threads:
        thread.join()


# Several workers that hold many connections each


@pytest.mark.parametrize("name", ("thread", "pool"))
def test_workers_hold_about_equally_many_connections(start: Start, name: str) -> None:
    """All workers sleep before each client: a worker that is awake might take it before another one has woken."""
    count = 12
    server = start(f"{name} --workers 2")
    with ExitStack() as stack:
        for number in range(count):
            wait_until(lambda: all(map(is_asleep, children_of(server.pid))), 30)
            client = stack.enter_context(server.connect())
            client.sendall(OTHER)
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
            wait_until(lambda number=number: len(lines(server)) == number + 1, 30)  # type: ignore[misc]
    held = Counter(line.split()[-1] for line in lines(server))
    assert sorted(held) == ["1", "2"]
    assert min(held.values()) >= count / 3


@pytest.mark.parametrize(("takes_turns", "yields"), [(True, 1), (False, 0)])
def test_a_loop_beside_others_yields_for_each_connection(
    monkeypatch: pytest.MonkeyPatch, takes_turns: bool, yields: int
) -> None:
    """Its spread over workers is no promise (docs/architecture.md): a client wakes all loops that sleep."""
    count = []
    monkeypatch.setattr(event, "let_others_run", lambda: count.append(1))
    model = SimpleNamespace(
        listener=SimpleNamespace(takes_turns=takes_turns), limit_reached=lambda: "connections"
    )
    assert isinstance(event.Event.accepted(model, ("127.0.0.1", 80)), event.RefusedConnection)  # type: ignore[arg-type]
    assert len(count) == yields


def test_the_end_of_a_turn_does_not_begin_to_accept_again() -> None:
    """Another thread has stopped watching the sockets: without room, they would end each wait at once."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        number = listening.fileno()
        listener = Listener([listening], takes_turns=True)
        listener.watch_sockets(True)
        listener.accepting = False  # the first half of watch_sockets(False), in another thread
        listener.end_turn(number)
        with socket.create_connection(listening.getsockname()):
            assert listener.watched.poll(0) == []
            listener.watch_sockets(True)
            assert [ready for ready, _ in listener.watched.poll(5)] == [number]
        listener.close_descriptors()
