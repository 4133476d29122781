"""The event `accepted` says for how long the connection was in the kernel's listen backlog (Linux, TCP)."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.memory import MemoryStream
from support.server import Server, Start, wait_until
from test_trace import LAST, events

from ewe.streams.backlog import wait_in_backlog

TICK_S = 0.01  # of the kernel's clock, at most: HZ is 100 or more
WAIT_S = 0.3
TEXT = re.compile(r"(?P<client>\S+:\d+)( backlog=(?P<seconds>\d+\.\d{3}))?")


def waits(path: Path) -> dict[str, str | None]:
    """Return the client of each connection that was accepted, and its seconds in the backlog as a text."""
    found = {}
    for event in events(path):
        if event.name == "accepted":
            match = TEXT.fullmatch(event.text)
            assert match, event.text
            found[match["client"]] = match["seconds"]
    return found


def held_client(server: Server, bytes_sent: bytes) -> tuple[socket.socket, float]:
    """Return a client that has connected and sent these bytes, and when it was connected."""
    sock = server.connect()
    connected_at = time.monotonic()
    sock.sendall(bytes_sent)
    return sock, connected_at


@pytest.mark.needs("Linux")
@pytest.mark.parametrize("bytes_sent", [b"", LAST], ids=["silent", "with a request"])
def test_a_wait_in_the_backlog_is_told(start: Start, variant: str, tmp_path: Path, bytes_sent: bytes) -> None:
    """The server's processes are stopped while the client connects, so the kernel alone holds the connection."""
    path = tmp_path / "trace"
    server = start(variant, "--trace", str(path))
    with server.held_up():
        sock, connected_at = held_client(server, bytes_sent)
        time.sleep(WAIT_S)
        waited_s = time.monotonic() - connected_at
    with sock:
        wait_until(lambda: bool(waits(path)), 20)
        host, port = sock.getsockname()
    seconds = waits(path)[f"{host}:{port}"]
    assert seconds is not None and float(seconds) >= waited_s - TICK_S


@pytest.mark.needs("Linux")
def test_a_busy_serial_server_leaves_clients_in_the_backlog(start: Start, tmp_path: Path) -> None:
    """The first client is served at once. The others wait until it leaves, and each waits for the one before."""
    path = tmp_path / "trace"
    server = start("serial", "--trace", str(path))
    first = server.connect()
    wait_until(lambda: len(waits(path)) == 1, 20)
    others = [held_client(server, LAST) for _ in range(3)]
    time.sleep(WAIT_S)
    waited_s = [time.monotonic() - connected_at for _, connected_at in others]
    first.close()
    wait_until(lambda: len(waits(path)) == 4, 20)
    told = waits(path)
    for (sock, _), client_s in zip(others, waited_s, strict=True):
        host, port = sock.getsockname()
        assert float(told[f"{host}:{port}"] or 0) >= client_s - TICK_S
        sock.close()


@pytest.mark.needs("Linux")
def test_over_ipv6(start: Start, way_to_wait: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    server = start(way_to_wait, "--trace", str(path), "--bind", "127.0.0.1:0", "--bind", "[::1]:0")
    found = re.search(r"http://\[::1\]:(\d+)/", server.wait_for_log("[::1]"))
    assert found
    with server.held_up():
        sock = socket.create_connection(("::1", int(found[1])), timeout=60)
        connected_at = time.monotonic()
        time.sleep(WAIT_S)
        waited_s = time.monotonic() - connected_at
    with sock:
        wait_until(lambda: bool(waits(path)), 20)
    ((client, seconds),) = waits(path).items()
    assert client.startswith("::1:") and float(seconds or 0) >= waited_s - TICK_S


def test_a_unix_socket_does_not_tell_it(start: Start, way_to_wait: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    where = tmp_path / "socket"
    start(way_to_wait, "--trace", str(path), "--bind", f"unix:{where}", "--bind", "127.0.0.1:0")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(where))
        wait_until(lambda: bool(waits(path)), 20)
    assert waits(path) == {"unix::0": None}


@pytest.mark.needs("Linux")
def test_another_system_does_not_tell_it(start: Start, way_to_wait: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    server = start(way_to_wait, "--trace", str(path), elsewhere=True)
    with server.connect():
        wait_until(lambda: bool(waits(path)), 20)
    assert list(waits(path).values()) == [None]


def test_a_connection_without_a_socket_or_with_a_short_answer_is_unknown() -> None:
    short = SimpleNamespace(getsockopt=lambda *arguments: b"")
    assert wait_in_backlog(MemoryStream(())) is None
    assert wait_in_backlog(SimpleNamespace(client=("127.0.0.1", 5), socket=short)) is None
