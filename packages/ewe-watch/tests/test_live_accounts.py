"""The page serves its own account first: an own client is accepted while strangers hold connections."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from ewe_watch.live import accounts
from ewe_watch.live.accounts import GONE, MOST_OF_OTHERS, AccountLimitSocket, account_of_client, own_accounts

STRANGER = os.geteuid() + 1
WAIT_S = 30


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def listening(
    stack: ExitStack, own: int, family: socket.AddressFamily = socket.AF_INET
) -> AccountLimitSocket:
    """Return a listening socket for which one account has precedence."""
    host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    server = socket.create_server((host, 0), family=family, backlog=100)
    server.settimeout(WAIT_S)
    return stack.enter_context(AccountLimitSocket(server, frozenset((own,))))


def client_of(stack: ExitStack, server: socket.socket) -> socket.socket:
    return stack.enter_context(socket.create_connection(server.getsockname()[:2], WAIT_S))


def accept_one(stack: ExitStack, server: socket.socket) -> Any:
    """Accept a connection, and return the address of its client."""
    sock, address = server.accept()
    stack.enter_context(sock)
    return address


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_kernel_tells_the_account_of_a_client(stack: ExitStack, family: socket.AddressFamily) -> None:
    server = listening(stack, os.geteuid(), family)
    client = client_of(stack, server)
    accepted = stack.enter_context(server.accept()[0])
    assert account_of_client(accepted) == os.geteuid()
    client.close()
    assert account_of_client(accepted) == GONE


def test_strangers_hold_few_connections_and_the_own_account_comes_next(stack: ExitStack) -> None:
    """All clients are of this account, which is first a stranger's, then the page's own."""
    server = listening(stack, STRANGER)
    strangers = [client_of(stack, server) for _ in range(MOST_OF_OTHERS + 2)]
    held = [stack.enter_context(server.accept()[0]) for _ in range(MOST_OF_OTHERS)]
    server.setblocking(False)
    with pytest.raises(BlockingIOError):
        server.accept()
    for refused in strangers[MOST_OF_OTHERS:]:
        with suppress(ConnectionResetError):
            assert refused.recv(1) == b""
    server.own = frozenset((os.geteuid(),))
    own = client_of(stack, server)
    assert accept_one(stack, server) == own.getsockname()
    server.own = frozenset((STRANGER,))
    held[0].close()
    next_stranger = client_of(stack, server)
    assert accept_one(stack, server) == next_stranger.getsockname()


def test_clients_that_have_left_are_not_served_and_a_stop_can_come_between(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "MOST_CLOSED", 2)
    server = listening(stack, os.geteuid())
    for _ in range(3):
        client_of(stack, server).close()
    own = client_of(stack, server)
    with pytest.raises(ConnectionAbortedError):
        server.accept()
    assert accept_one(stack, server) == own.getsockname()


def test_where_the_system_does_not_tell_all_are_served(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = listening(stack, STRANGER)
    monkeypatch.delattr(socket, "AF_NETLINK")
    clients = [client_of(stack, server) for _ in range(MOST_OF_OTHERS + 2)]
    assert [accept_one(stack, server) for _ in clients] == [client.getsockname() for client in clients]


def test_under_sudo_the_caller_has_precedence_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "1000")
    monkeypatch.setattr(accounts.os, "geteuid", lambda: 0)
    assert own_accounts() == {0, 1000}
    monkeypatch.setattr(accounts.os, "geteuid", lambda: 1001)
    assert own_accounts() == {1001}
