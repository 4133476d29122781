"""The main module's event loop."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from ewe.xswitch.settings import Settings
from ewe.xswitch.switch.error_lines import ErrorLines
from ewe.xswitch.switch.loop import EventLoop
from ewe.xswitch.switch.outbox import FULL_BYTES, Outbox
from ewe.xswitch.switch.spool import SpoolingOutbox, SpoolSpace


@pytest.fixture
def faults() -> list[Exception]:
    return []


@pytest.fixture
def loop(faults: list[Exception]) -> Iterator[EventLoop]:
    loop = EventLoop(faults.append)
    loop.call_later(10, loop.stop)
    yield loop
    loop.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, other = socket.socketpair()
    ours.setblocking(False)
    with ours, other:
        yield ours, other


Pair = tuple[socket.socket, socket.socket]


def test_readers_and_writers_of_one_socket(loop: EventLoop, pair: Pair) -> None:
    ours, other = pair
    heard: list[str] = []

    def writable() -> None:
        heard.append("writable")
        loop.remove_writer(ours)
        other.sendall(b"x")

    def readable() -> None:
        heard.append(ours.recv(9).decode())
        if len(heard) == 2:
            other.close()
        else:
            loop.remove_reader(ours)
            loop.remove_reader(ours)  # once too often does no harm
            loop.stop()

    loop.add_reader(ours, readable)
    loop.add_writer(ours, writable)
    loop.run()
    assert heard == ["writable", "x", ""]
    assert not loop.readers and not loop.writers


def test_what_is_removed_within_a_round_is_not_called(loop: EventLoop) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    called: list[int] = []

    def readable(number: int) -> None:
        called.append(number)
        for ours, _ in pairs:
            loop.remove_reader(ours)
        loop.call_soon(loop.stop)

    for number, (ours, other) in enumerate(pairs):
        other.sendall(b"x")
        loop.add_reader(ours, lambda number=number: readable(number))
    loop.run()
    assert len(called) == 1
    for ours, other in pairs:
        ours.close()
        other.close()


def test_timers_come_in_turn(loop: EventLoop) -> None:
    called: list[str] = []
    loop.call_later(0.02, called.append, "late")
    loop.call_later(0.03, loop.stop)
    loop.call_soon(called.append, "first")
    loop.call_soon(called.append, "second")
    began = time.monotonic()
    loop.run()
    assert called == ["first", "second", "late"]
    assert time.monotonic() - began >= 0.03


def test_a_fault_does_not_end_the_loop(loop: EventLoop, pair: Pair, faults: list[Exception]) -> None:
    ours, other = pair

    def fail() -> None:
        ours.recv(9)
        raise ValueError("readable")

    def fail_later() -> None:
        raise ValueError("later")

    other.sendall(b"x")
    loop.add_reader(ours, fail)
    loop.call_soon(fail_later)
    loop.call_later(0.05, loop.stop)
    loop.run()
    assert {str(fault) for fault in faults} == {"readable", "later"}


def test_signals_are_told_in_their_turn(loop: EventLoop) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    told: list[int] = []

    def heard() -> None:
        told.append(1)
        loop.stop()

    try:
        loop.add_signal_handler(signal.SIGUSR1, heard)
        loop.call_later(0.02, os.kill, os.getpid(), signal.SIGUSR1)
        loop.run()
        assert told == [1]
    finally:
        loop.close()
        signal.signal(signal.SIGUSR1, before)


def test_an_outbox_says_when_it_is_full_and_when_there_is_room(loop: EventLoop, pair: Pair) -> None:
    ours, other = pair
    said: list[str] = []
    outbox = Outbox(loop, ours, lambda: said.append("full"), lambda: said.append("room"))
    data = os.urandom(FULL_BYTES * 20)
    outbox.send(data)
    assert said == ["full"]
    received = b""

    def receive() -> None:
        nonlocal received
        received += other.recv(FULL_BYTES)
        if len(received) == len(data):
            loop.stop()

    loop.add_reader(other, receive)
    loop.run()
    assert received == data
    assert set(said[1:]) == {"room"} and not loop.writers


@pytest.mark.parametrize("size", [1, FULL_BYTES * 20])
def test_an_outbox_that_nobody_reads_says_so(loop: EventLoop, pair: Pair, size: int) -> None:
    """At once, or when bytes are waiting; but never within send(), whose caller is still working."""
    ours, other = pair
    outbox = Outbox(loop, ours, Mock(), Mock(side_effect=loop.stop))
    if size == 1:
        other.close()
    outbox.send(bytes(size))
    assert not outbox.on_room.called  # type: ignore[attr-defined]
    other.close()
    loop.run()
    assert outbox.on_room.called  # type: ignore[attr-defined]
    assert outbox.failed and not outbox.pending and not loop.writers


def test_a_file_of_a_response_that_cannot_be_read_ends_the_connection(
    loop: EventLoop, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the loop would call the outbox again at once, without an end."""
    ours, other = pair
    outbox = SpoolingOutbox(loop, ours, Mock(), Mock(), SpoolSpace(Settings()))
    outbox.send(bytes(FULL_BYTES * 20))
    assert outbox.file_end
    monkeypatch.setattr(os, "pread", Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
    while loop.writers:
        other.recv(FULL_BYTES * 20)
        outbox.on_writable()
    assert outbox.failed and outbox.on_room.called  # type: ignore[attr-defined]
    outbox.close()


def test_an_incomplete_line_is_logged_when_its_engine_is_closed(loop: EventLoop) -> None:
    reading, writing = os.pipe()
    lines: list[str] = []
    errors = ErrorLines(loop, reading, lines.append)
    errors.begin("/x.py")
    os.write(writing, b"one\ntwo")
    errors.close()
    os.close(writing)
    assert lines == ["/x.py: one", "/x.py: two"]
