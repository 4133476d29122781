"""Descriptor sets: the calls of epoll(7) mean the same with poll(2), also while another thread waits."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support.server import wait_until
from support.wire import reset

from ewe.streams import descriptor_set as module
from ewe.streams.descriptor_set import (
    ENDED,
    EPOLLIN,
    EPOLLONESHOT,
    EPOLLOUT,
    EPOLLRDHUP,
    GONE,
    OPEN,
    PollSet,
    polled_state,
)

END_ONCE = EPOLLRDHUP | EPOLLONESHOT
LONG = 30.0  # seconds that only a set that misses an event waits


@pytest.fixture(params=["epoll", "poll", "poll without POLLRDHUP"])
def watched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty set of each kind."""
    if request.param == "poll without POLLRDHUP":
        monkeypatch.setattr(module, "POLLRDHUP", 0)
        monkeypatch.setattr(module, "CLOSING", select.POLLIN)
    made = select.epoll() if request.param == "epoll" else PollSet()
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected TCP sockets: ours, and the peer's."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        peer = stack.enter_context(socket.create_connection(listening.getsockname()))
        ours = stack.enter_context(listening.accept()[0])
        yield ours, peer


def waiting(watched: Any, seconds: float = LONG) -> tuple[threading.Thread, list[Any]]:
    """Wait for a set in another thread; return the thread, and what it will have found."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(watched.poll(seconds)), daemon=True)
    thread.start()
    if isinstance(watched, PollSet):
        wait_until(lambda: watched.waits, 30)
    return thread, found


def numbers(found: list[tuple[int, int]]) -> list[int]:
    return [number for number, _ in found]


def test_what_is_ready_is_reported_until_it_is_read(watched: Any, pair: Any) -> None:
    ours, peer = pair
    watched.register(ours.fileno(), EPOLLIN)
    assert watched.poll(0) == []
    peer.send(b"x")
    assert watched.poll(LONG) == [(ours.fileno(), EPOLLIN)] == watched.poll(LONG)
    ours.recv(1)
    assert watched.poll(0) == []
    watched.unregister(ours.fileno())
    peer.send(b"x")
    assert watched.poll(0.05) == []


def test_once(watched: Any, pair: Any) -> None:
    ours, peer = pair
    watched.register(ours.fileno(), EPOLLIN | EPOLLONESHOT)
    peer.send(b"x")
    assert numbers(watched.poll(LONG)) == [ours.fileno()]
    assert watched.poll(0.05) == []
    watched.modify(ours.fileno(), EPOLLOUT | EPOLLONESHOT)
    assert watched.poll(LONG) == [(ours.fileno(), EPOLLOUT)]
    watched.unregister(ours.fileno())  # as the pool does with one that was reported
    assert watched.poll(0) == []


def test_a_wait_ends_when_its_time_is_over(watched: Any) -> None:
    began = time.monotonic()
    assert watched.poll(0.1) == [] and time.monotonic() - began >= 0.1


def test_a_registration_counts_during_a_wait(watched: Any, pair: Any) -> None:
    ours, peer = pair
    peer.send(b"x")
    thread, found = waiting(watched)
    watched.register(ours.fileno(), EPOLLIN | EPOLLONESHOT)
    thread.join(LONG)
    assert numbers(found) == [ours.fileno()]


@pytest.mark.takes_time
def test_what_was_unregistered_during_a_wait_is_not_reported(watched: Any, pair: Any) -> None:
    ours, peer = pair
    watched.register(ours.fileno(), EPOLLIN)
    thread, found = waiting(watched, 0.5)
    watched.unregister(ours.fileno())
    peer.send(b"x")
    thread.join(LONG)
    assert not thread.is_alive() and found == []


def test_several_threads_wait(watched: Any, pair: Any) -> None:
    """Each event reaches one of them, and no thread keeps the others from their turn."""
    ours, _ = pair
    waits = [waiting(watched), *(waiting_too(watched) for _ in range(3))]
    for _ in waits:
        before = sum(len(found) for _, found in waits)
        watched.register(ours.fileno(), EPOLLOUT | EPOLLONESHOT)
        wait_until(lambda before=before: sum(len(found) for _, found in waits) > before, 30)
        watched.unregister(ours.fileno())
    for thread, found in waits:
        thread.join(LONG)
        assert numbers(found) == [ours.fileno()]


def waiting_too(watched: Any) -> tuple[threading.Thread, list[Any]]:
    """As waiting(), while another thread waits already."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(watched.poll(LONG)), daemon=True)
    thread.start()
    return thread, found


def test_the_end_of_a_peer_is_not_its_bytes(watched: Any, pair: Any) -> None:
    ours, peer = pair
    watched.register(ours.fileno(), END_ONCE)
    assert watched.poll(0) == []
    peer.shutdown(socket.SHUT_WR)
    assert numbers(watched.poll(LONG)) == [ours.fileno()]
    assert watched.poll(0.05) == []


def test_bytes_do_not_end_the_wait_for_an_end(
    watched: Any, pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrived bytes are not looked at again and again either: the wait would be a busy loop."""
    looks: list[int] = []
    look = module.peeked_state
    monkeypatch.setattr(module, "peeked_state", lambda number: (looks.append(number), look(number))[1])
    ours, peer = pair
    watched.register(ours.fileno(), END_ONCE)
    peer.send(b"the next request")
    assert watched.poll(0.1) == []
    peer.send(b" and more")
    assert watched.poll(0.1) == []
    assert len(looks) < 5


def test_a_reset_is_reported_to_who_waits_for_the_end(watched: Any, pair: Any) -> None:
    ours, peer = pair
    watched.register(ours.fileno(), END_ONCE)
    reset(peer)
    assert numbers(watched.poll(LONG)) == [ours.fileno()]


def test_a_closed_descriptor_is_forgotten(watched: Any, pair: Any) -> None:
    ours, peer = pair
    number = ours.fileno()
    watched.register(number, EPOLLIN)
    ours.close()
    assert watched.poll(0.05) == []
    os.dup2(peer.fileno(), number)  # another file has the number now
    try:
        watched.register(number, EPOLLOUT)
        assert watched.poll(LONG) == [(number, EPOLLOUT)]
    finally:
        os.close(number)


def test_a_number_that_is_registered_again_is_what_it_is_now(pair: Any) -> None:
    """A PollSet is not told that a descriptor was closed, so that register() takes a number that it knows."""
    ours, _ = pair
    watched = PollSet()
    watched.register(ours.fileno(), EPOLLIN)
    watched.register(ours.fileno(), EPOLLOUT)
    assert watched.poll(LONG) == [(ours.fileno(), EPOLLOUT)]
    watched.unregister(ours.fileno())
    watched.unregister(ours.fileno())
    watched.close()


@pytest.mark.parametrize("hidden", [False, True])
def test_what_a_peer_does(pair: Any, monkeypatch: pytest.MonkeyPatch, hidden: bool) -> None:
    if hidden:
        monkeypatch.setattr(module, "POLLRDHUP", 0)
        monkeypatch.setattr(module, "CLOSING", select.POLLIN)
    ours, peer = pair

    assert polled_state(ours.fileno(), ended=False) == OPEN
    peer.shutdown(socket.SHUT_WR)
    wait_until(lambda: polled_state(ours.fileno(), ended=False) == ENDED, 30)
    assert polled_state(ours.fileno(), ended=True) == ENDED
    reset(peer)
    wait_until(lambda: polled_state(ours.fileno(), ended=True) == GONE, 30)
