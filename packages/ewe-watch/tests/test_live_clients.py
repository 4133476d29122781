"""The clients of the live page at a server that is still being written."""

from __future__ import annotations

import asyncio
import socketserver
import threading
from collections.abc import Iterator

import pytest
from support.server import wait_until

from ewe_watch.live import clients
from ewe_watch.live.clients import KINDS, Clients, ModelClients


class Answer(socketserver.StreamRequestHandler):
    """Answers a request with the bytes `answer` of its server, and adds the lines of its head to `lines`."""

    def handle(self) -> None:
        while line := self.rfile.readline().strip():
            self.server.lines.append(line)  # type: ignore[attr-defined]
        self.wfile.write(self.server.answer)  # type: ignore[attr-defined]


@pytest.fixture
def server() -> Iterator[socketserver.ThreadingTCPServer]:
    """A server whose test sets `answer`, and reads the lines of the requests."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer) as found:
        found.lines = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


class LeavesMeanwhile(dict[int, float]):
    """The clients that are alive. The last one leaves after the second look, as another thread may do."""

    looks = 0

    def __len__(self) -> int:
        count = super().__len__()
        self.looks += 1
        if self.looks == 2:
            self.clear()
        return count


def test_a_client_may_leave_while_the_tally_is_read() -> None:
    tally = clients.Tally(sent=1, alive=LeavesMeanwhile({1: 2.0}))
    assert tally.as_json(now=3.5)["waiting"] == 1


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "answered"),
        (b"HTTP/1.1 503 Busy\r\n\r\n", "refused"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", "error"),
        (b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\nn", "lost"),
        (b"", "lost"),
    ],
)
def test_a_slow_reader_tells_how_its_response_ended(
    server: socketserver.ThreadingTCPServer, answer: bytes, end: str
) -> None:
    server.answer = answer  # type: ignore[attr-defined]
    loop, group = Clients(), ModelClients(server.server_address[1])
    loop.send(group, KINDS["slow reader"], 1, gate=1, slowdown=0.01)
    try:
        wait_until(lambda: bool(group.tally("slow reader").ends), 20)
        assert group.tally("slow reader").ends == {end: 1}
    finally:
        loop.stop()


@pytest.mark.takes_time
@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "answered"),
        (b"HTTP/1.1 503 Busy\r\n\r\n", "refused"),
        (b"HTTP/1.1 504 Gateway Timeout\r\n\r\nlate", "error"),
        (b"hello\r\n\r\n", "lost"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "answered"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", "lost"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\nok", "lost"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\nok", "lost"),
    ],
)
def test_a_flood_counts_each_answer(
    server: socketserver.ThreadingTCPServer, monkeypatch: pytest.MonkeyPatch, answer: bytes, end: str
) -> None:
    monkeypatch.setattr(clients, "FLOOD_REQUESTS", 20)
    server.answer = answer  # type: ignore[attr-defined]
    loop, group = Clients(), ModelClients(server.server_address[1])
    loop.send(group, KINDS["flood"], 1, gate=1, slowdown=1.0)
    try:
        wait_until(lambda: bool(group.tally("flood").ends), 20)
        assert group.flooded == {end: 20}
    finally:
        loop.stop()


def test_a_loop_that_is_held_up_does_not_stop_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The director would not end the models and remove its files after an exception."""
    monkeypatch.setattr(clients, "STOP_S", 0.05)
    loop, let_go = Clients(), threading.Event()
    loop.loop.call_soon_threadsafe(let_go.wait)
    loop.stop()
    assert loop.thread.is_alive()
    let_go.set()
    loop.thread.join()
    for task in asyncio.all_tasks(loop.loop):  # that of stop(), if it did not end before the loop
        loop.loop.run_until_complete(task)
    loop.loop.close()


@pytest.mark.parametrize(("slowdown", "target"), [(1.0, b"/page"), (100.0, b"/page?ms=500&gate=7")])
@pytest.mark.parametrize("kind", ["visitor", "keep-alive", "slow sender"])
def test_slow_motion_slows_the_page_of_each_client(
    server: socketserver.ThreadingTCPServer,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    slowdown: float,
    target: bytes,
) -> None:
    monkeypatch.setattr(clients, "SLOW_SEND_S", 0.0)
    server.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"  # type: ignore[attr-defined]
    loop, group = Clients(), ModelClients(server.server_address[1])
    loop.send(group, KINDS[kind], 1, gate=7, slowdown=slowdown)
    try:
        wait_until(lambda: bool(group.tally(kind).ends), 20)
        assert server.lines[0] == b"GET " + target + b" HTTP/1.1"  # type: ignore[attr-defined]
    finally:
        loop.stop()
