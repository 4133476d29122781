"""The event loop's stream over a transport in memory: faults, and a client that takes its time."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ewe import logger
from ewe.config.settings import Config
from ewe.streams.base import Disconnected, Timeout, Want
from ewe.streams.blocking import run
from ewe.streams.event import Clock, EventStream
from ewe.streams.event_poller import EventPoller
from ewe.streams.loops import SameLoopChannel, open_channel
from ewe.streams.traced import TracedStream
from ewe.streams.watcher import watcher_of
from ewe.trace import Trace


class Transport:
    """A transport whose buffer the test empties. aborted: how often abort() was called."""

    def __init__(self, buffered: int = 0) -> None:
        self.buffered = buffered
        self.aborted = 0

    def get_extra_info(self, name: str) -> Any:
        return ("192.0.2.1", 40000)

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def set_write_buffer_limits(self, high: int) -> None:
        """Do nothing: the test calls resume_writing()."""

    def abort(self) -> None:
        self.aborted += 1

    def close(self) -> None:
        """Do nothing: the test empties the buffer."""


def stream_with(converse: Any = None) -> EventStream:
    """Return a stream; converse: returns its conversation."""
    model: Any = SimpleNamespace(
        loop=None, clock=Clock(), executor=None, converse=converse, admit=lambda stream: True
    )
    return EventStream(model, ("here", 2), Config())


@pytest.mark.parametrize("fault", [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_fault_is_no_abort(fault: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit status of a worker counts aborted conversations. A fault is in the log, under every model."""
    lines: list[str] = []
    monkeypatch.setattr(logger.errors, "exception", lines.append)

    async def fails(stream: EventStream) -> None:
        raise fault

    stream, transport = stream_with(fails), Transport()
    stream.connection_made(transport)  # type: ignore[arg-type]
    assert lines == ["a conversation with 192.0.2.1 failed"]
    assert transport.aborted == 1 and not stream.aborted


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        (("192.0.2.1", 7), ("192.0.2.1", 7)),
        (("2001:db8::1", 7, 0, 0), ("2001:db8::1", 7)),
        ("", ("unix:", 0)),
        ("c", ("unix:", 0)),
        ("/run/client", ("unix:", 0)),
        (b"\0abstract", ("unix:", 0)),
    ],
)
def test_the_address_of_a_client(peer: Any, client: tuple[str, int]) -> None:
    """A client may bind its own Unix socket to any path; it has no address that ewe could log or trust."""
    family = socket.AF_INET if isinstance(peer, tuple) else socket.AF_UNIX
    transport: Any = SimpleNamespace(
        get_extra_info=lambda name: peer if name == "peername" else SimpleNamespace(family=family)
    )
    stream = stream_with()
    stream.model.admit = lambda stream: False  # type: ignore[method-assign]
    stream.connection_made(transport)
    assert stream.client == client


def test_a_client_that_reads_a_little_before_a_file_is_waited_for() -> None:
    """Each wait of a send may take write_timeout: only a client that has read nothing meanwhile is too slow."""
    stream, transport = stream_with(), Transport(1000)
    stream.transport = transport  # type: ignore[assignment]
    draining = stream.drain()
    draining.send(None)
    transport.buffered = 900
    draining.throw(Timeout())
    with pytest.raises(Timeout):
        draining.throw(Timeout())


@pytest.mark.parametrize(("min_rate", "left"), [(0, 999), (100, 300)])
def test_a_client_that_reads_the_last_bytes_slowly_gets_them(min_rate: int, left: int) -> None:
    """They are in the transport's buffer after the conversation has ended. A client that stops loses them."""

    async def ends(stream: EventStream) -> None:
        transport.buffered = 1000

    stream, transport = stream_with(ends), Transport()
    stream.timeouts = Config(write_timeout=7, min_rate=min_rate)
    stream.connection_made(transport)  # type: ignore[arg-type]
    now = stream.clock.now
    transport.buffered = left
    stream.check_deadline(now + 8)
    assert not transport.aborted
    stream.check_deadline(now + 14)
    assert not transport.aborted
    transport.buffered -= 0 if min_rate == 0 else 7 * min_rate - 1
    stream.check_deadline(now + 16)
    assert transport.aborted == 1


def test_bytes_that_have_arrived_are_read_before_a_timeout() -> None:
    """The process was not scheduled for a while. uvloop calls the tick before it reads."""
    results: list[object] = []

    async def receives(stream: EventStream) -> None:
        stream.set_deadline(1)
        try:
            results.append(await stream.receive())
        except Timeout:
            results.append(Timeout)

    ours, client = socket.socketpair()
    with ours, client:
        stream = stream_with()
        transport: Any = Transport()
        transport.get_extra_info = lambda name: ours
        stream.transport = transport
        stream.conversation = receives(stream)
        stream.step()
        client.sendall(b"late")
        stream.check_deadline(stream.clock.now + 9)
        assert stream.want is Want.BYTES and not results
        ours.recv(9)
        stream.check_deadline(stream.clock.now + 99)
    assert results == [Timeout]


class Loop:
    """A loop that cannot watch another descriptor than 1. watched: those that it watches."""

    def __init__(self) -> None:
        self.watched: set[int] = set()

    def add_reader(self, descriptor: int, *callback: Any) -> None:
        if descriptor != 1:
            raise OSError(28, "no space for another one")
        self.watched.add(descriptor)

    def remove_reader(self, descriptor: int) -> None:
        self.watched.discard(descriptor)


def test_a_descriptor_that_cannot_be_watched_leaves_none_behind() -> None:
    """The next file with the number of a forgotten descriptor would wake the wrong conversation."""
    stream = stream_with()
    stream.loop = loop = Loop()
    with pytest.raises(OSError, match="no space"):
        EventPoller(stream).wait([1, 2], 0, 9).send(None)
    assert not loop.watched


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe: the end to read, and the end to write."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.mark.parametrize("ended", [True, False])
def test_a_wait_that_is_over_finds_the_bytes_that_the_loop_has_not_seen(
    pipe: tuple[int, int], ended: bool
) -> None:
    """The loop did not run for a while. After `ended` and after the time limit, output that has come is read."""
    reader, writer = pipe
    stream: Any = stream_with()
    stream.loop = SimpleNamespace(add_reader=lambda *_: None, remove_reader=lambda *_: None)
    stream.watcher = SimpleNamespace(waiting={reader: None}, watch_again=lambda *_: None)
    stream.client_ended = ended
    poller, seconds, since = EventPoller(stream), 9 if ended else -1, stream.clock.now - 99
    os.write(writer, b"x")
    assert run(poller.wait([reader], since, seconds)) == [reader]
    assert run(poller.readable(reader, since, seconds)) is True
    os.read(reader, 1)
    if ended:
        for wait in (poller.wait([reader], since, seconds), poller.readable(reader, since, seconds)):
            with pytest.raises(Disconnected):
                run(wait)
    else:
        assert run(poller.wait([reader], since, seconds)) == []
        assert run(poller.readable(reader, since, seconds)) is False


def test_the_watcher_of_a_loop_goes_with_it() -> None:
    """Otherwise each loop that has waited for an upstream would leave a descriptor open."""
    loop = asyncio.new_event_loop()
    watcher = weakref.ref(watcher_of(loop))
    assert watcher() is not None
    loop.close()
    del loop
    gc.collect()
    assert watcher() is None


def test_an_application_of_asyncio_runs_on_the_model_loop_also_with_a_trace(tmp_path: Path) -> None:
    """It has started there: a connection to a database, say, belongs to that loop."""
    stream = stream_with()
    stream.loop = object()
    traced = TracedStream(stream, Trace(str(tmp_path / "trace")), "1.1")
    for each in (stream, traced):
        channel = open_channel(each, "asyncio")
        assert isinstance(channel, SameLoopChannel) and channel.loop is stream.loop
