"""The listening sockets of one process: which client is accepted next, and which paths are removed."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ewe import logger
from ewe.config.settings import Config
from ewe.processors.pool import Pool
from ewe.processors.thread import Thread
from ewe.server.worker import Worker
from ewe.streams.blocking import TIMEVAL
from ewe.streams.listener import (
    Accepted,
    Listener,
    StartError,
    close_sockets,
    conflict_of,
    names_of,
    open_sockets,
    why_not_opened,
)


@pytest.fixture
def two() -> Iterator[list[socket.socket]]:
    """Two listening sockets."""
    sockets = open_sockets(["127.0.0.1:0", "127.0.0.1:0"], 9, 50)
    yield sockets
    close_sockets(sockets)


@pytest.mark.parametrize("excludes", [True, False])
def test_all_addresses_exclude_each_on_linux_only(monkeypatch: pytest.MonkeyPatch, excludes: bool) -> None:
    """macOS lets the socket of one address listen beside the one of all: a check must not refuse them."""
    monkeypatch.setattr("ewe.streams.listener.WILDCARD_EXCLUDES_EACH", excludes)
    for one, other in (
        ("127.0.0.1:80", "0.0.0.0:80"),
        ("0.0.0.0:80", "127.0.0.1:80"),
        ("[::]:80", "[::1]:80"),
    ):
        assert bool(conflict_of(one, [other])) == excludes
        assert conflict_of(one, [one]) and not conflict_of(one, [other.replace(":80", ":81")])
    assert not conflict_of("0.0.0.0:80", ["[::]:80"])


def test_a_name_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def resolve(host: str, port: int, **_: object) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"192.0.2.{len(asked)}", port))]

    names_of.cache_clear()
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    addresses = [f"{name}.test:80" for name in "abcd"]
    assert not any(conflict_of(each, addresses[:number]) for number, each in enumerate(addresses))
    assert sorted(asked) == ["a.test", "b.test", "c.test", "d.test"]
    names_of.cache_clear()


def accepted_ports(sockets: list[socket.socket], clients: list[int]) -> list[int]:
    """Connect clients, each to one of the sockets (by its index); return the indices in the order of accept()."""
    ports = [sock.getsockname()[1] for sock in sockets]
    listening = Listener(sockets)
    with ExitStack() as stack:
        for index in clients:
            stack.enter_context(socket.create_connection(("127.0.0.1", ports[index])))
        found = []
        while (accepted := listening.accept(seconds=0)) is not None:
            accepted.socket.close()
            found.append(ports.index(accepted.server[1]))
    listening.close_descriptors()
    return found


def test_clients_of_two_sockets_are_accepted_one_after_the_other(two: list[socket.socket]) -> None:
    """A model that serves one client at a time loses no other one."""
    assert sorted(accepted_ports(two, [0, 1])) == [0, 1]


def test_a_busy_socket_does_not_keep_the_clients_of_another_waiting(two: list[socket.socket]) -> None:
    for busy, other in ((0, 1), (1, 0)):
        found = accepted_ports(two, [busy, busy, busy, other])
        assert sorted(found) == sorted([busy, busy, busy, other]) and other in found[:2]


def test_a_conversation_that_ends_while_the_next_connection_is_asked_for(
    two: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread wakes the listener only if no connection is accepted; otherwise the wait would have no end."""
    site: Any = SimpleNamespace(tls=None)
    processor = Thread(site, Config())
    looks = iter(["connections", "", ""])
    monkeypatch.setattr(processor, "limit_reached", lambda: next(looks))
    listening = Listener(two)
    with socket.create_connection(two[0].getsockname()):
        accepted = processor.next_connection(listening, 0)
        assert accepted is not None
        accepted.socket.close()
    listening.close_descriptors()


@pytest.mark.parametrize(
    ("number", "pauses"), [(errno.EACCES, True), (errno.EMFILE, True), (errno.ECONNABORTED, False)]
)
def test_a_failure_of_accept_is_no_endless_loop(
    two: list[socket.socket], monkeypatch: pytest.MonkeyPatch, number: int, pauses: bool
) -> None:
    """A rule of the system may forbid each accept(2): the client stays in the backlog, and epoll reports it."""
    lines: list[str] = []
    monkeypatch.setattr(logger.errors, "error", lines.append)

    def fails() -> None:
        raise OSError(number, "it fails")

    listening = Listener(two)
    listening.sockets[two[0].fileno()] = SimpleNamespace(accept=fails)  # type: ignore[assignment]
    with socket.create_connection(two[0].getsockname()):
        assert listening.accept(seconds=0) is None
    assert bool(lines) is bool(listening.accept_from) is pauses
    listening.close_descriptors()


def test_the_pause_after_a_failure_makes_no_wait_longer(two: list[socket.socket]) -> None:
    listening = Listener(two)
    began = time.monotonic()
    listening.accept_from = began + 20
    assert listening.accept(seconds=0) is None and time.monotonic() - began < 10
    listening.close_descriptors()


class OneWait(Listener):
    """A listener whose first wait is its last."""

    def wait(self, seconds: float, max_accepts: int) -> tuple[list[Accepted], list[int]]:
        found = super().wait(0, max_accepts)
        self.closed = True
        return found


def test_a_burst_does_not_exceed_the_connection_limit(
    two: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    site: Any = SimpleNamespace(tls=None)
    pool = Pool(site, Config(connections=3))
    begun: list[Accepted] = []
    monkeypatch.setattr(pool, "begin", begun.append)
    listening = OneWait(two)
    with ExitStack() as stack:
        for sock in two * 3:
            stack.enter_context(socket.create_connection(sock.getsockname()))
        pool.serve_parked(listening)
        for each in begun:
            each.socket.close()
    listening.close_descriptors()
    assert len(begun) == 3


@pytest.mark.parametrize("supervised", [True, False])
def test_another_write_timeout_counts_for_the_next_clients(
    two: list[socket.socket], supervised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listening sockets are those of the start: a reload opens no others."""
    monkeypatch.setattr(logger.access, "name_worker", lambda *names: None)
    site: Any = SimpleNamespace(tls=None)
    processor, after = Thread(site, Config()), Config(write_timeout=7)
    factory: Any = SimpleNamespace(make=lambda: processor, workers=1)
    factory.config = after if supervised else Config()
    worker = Worker(factory, two, "1")
    if not supervised:
        processor.adopt(site, after)
    with socket.create_connection(two[0].getsockname()):
        accepted = worker.listener.accept(seconds=0)
        assert accepted is not None
        limit = accepted.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, TIMEVAL.size)
        accepted.socket.close()
    worker.listener.close_descriptors()
    assert TIMEVAL.unpack(limit) == (7, 0)


def test_the_path_of_an_inherited_socket_stays(tmp_path: Path) -> None:
    """The program that has opened it, such as systemd, goes on listening there."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "inherited"))
        close_sockets(open_sockets([f"fd://{os.dup(sock.fileno())}", f"unix:{tmp_path / 'own'}"], 9, 50))
    assert [path.name for path in tmp_path.iterdir()] == ["inherited"]


def test_a_server_whose_backlog_is_full_is_a_server(tmp_path: Path) -> None:
    """A start ends with a message, and does not wait for a place in the backlog."""
    address = f"unix:{tmp_path / 'socket'}"
    sockets = open_sockets([address], 0, 50)
    with ExitStack() as stack:
        error = 0
        while not error:
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            error = client.connect_ex(str(tmp_path / "socket"))
        assert error == errno.EAGAIN
        with pytest.raises(StartError, match="is in use by another server; choose another path"):
            open_sockets([address], 9, 50)
    close_sockets(sockets)


def test_a_socket_that_cannot_listen_leaves_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(sock: socket.socket, backlog: int) -> None:
        raise OSError(errno.EADDRINUSE, "in use")

    monkeypatch.setattr(socket.socket, "listen", fails)
    with pytest.raises(StartError):
        open_sockets([f"unix:{tmp_path / 'socket'}"], 9, 50)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("address", "remedy"), [("unix:/run/s", "another path"), ("a:80", "a port above 1023")]
)
def test_an_address_without_permission(address: str, remedy: str) -> None:
    assert why_not_opened(address, PermissionError(errno.EACCES, "denied")).endswith(f"; choose {remedy}")
