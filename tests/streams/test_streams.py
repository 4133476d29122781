"""One contract, checked over every kind of stream: the promises in the docstring of ewe/streams/base.py.

Each check runs over real sockets. The conversation is a small coroutine, in a thread of its own, over one end of
a connection: driven once for a blocking stream, by a poller for a parked one, by an event loop for an event
stream. The test is the client at the other end. Waits are made short, so that deadlines can be seen to pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import lru_cache
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from support import needs
from support.server import wait_until
from support.wire import read_all, read_exactly, reset

import ewe.streams.base
import ewe.streams.blocking
import ewe.streams.event
import ewe.streams.event_poller
import ewe.streams.loops
import ewe.streams.poller
import ewe.streams.pool
from ewe.config.settings import Config
from ewe.gateway import programs
from ewe.gateway.programs import RunningProgram
from ewe.gateway.scripts import Script
from ewe.gateway.upstream import Upstream, UpstreamAddress
from ewe.http.messages import Request, Response, Source
from ewe.http.status import HTTPError
from ewe.processors.pool_parking import Parking, PoolTask
from ewe.response_writer import send_response
from ewe.streams.base import (
    CALL_COST_BYTES,
    TURN_BYTES,
    Disconnected,
    Stream,
    Timeout,
    Wait,
    Want,
)
from ewe.streams.blocking import TIMEVAL, BlockingStream, run, set_timeouts
from ewe.streams.calls import ExecutorCall, ExecutorThreads
from ewe.streams.descriptor_set import EPOLLIN, EPOLLONESHOT, descriptor_set
from ewe.streams.event import Clock, EventStream
from ewe.streams.event_poller import EventPoller
from ewe.streams.parking import ParkedPoll
from ewe.streams.poller import HALF_CLOSED_S, BlockingPoller
from ewe.streams.pool import PoolStream, PoolWakeEvent
from ewe.timeouts import TimeoutCounter

try:
    import uvloop
except ImportError:
    uvloop = None  # type: ignore[assignment]

KINDS = ("blocking", "pool, parking idle", "pool, parking always", "asyncio", "uvloop")
SLICE = 0.2  # seconds, for ewe.streams.SLICE
SLACK = 20.0  # seconds: less than any wait that the test does not mean, more than a busy machine takes
BUFFER = 64 * 1024  # bytes the kernel holds for each side, about
SCRIPT = Script("/bin/sh", "script", "")
Talk = Callable[[Stream], Awaitable[Any]]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make what is a matter of seconds a matter of tenths."""
    monkeypatch.setattr(ewe.streams.blocking, "RECEIVE_TIMEOUT_S", SLICE)
    monkeypatch.setattr(ewe.streams.base, "LINGER_S", 0.4)
    monkeypatch.setattr(ewe.streams.event, "DEADLINE_CHECK_S", 0.05)
    for module in (ewe.streams.poller, ewe.streams.loops, ewe.streams.pool, ewe.streams.event_poller):
        monkeypatch.setattr(module, "HALF_CLOSED_S", 0.5)


class Connection:
    """A connection whose server side holds a conversation. client: the test's end. stream: the server's."""

    def __init__(self, kind: str, talk: Talk, **settings: Any) -> None:
        self.kind = kind
        self.talk = talk
        self.timeouts = Config(**{"write_timeout": 50, **settings})
        self.stream: Stream
        self.outcome: Any = None
        self.error: BaseException | None = None
        self.client, self.server = pair()
        self.client.settimeout(40)
        begun = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(begun,), daemon=True)
        self.thread.start()
        assert begun.wait(30)

    async def converse(self, stream: Stream) -> None:
        """Talk, and keep how it ended."""
        try:
            self.outcome = await self.talk(stream)
        except BaseException as error:
            self.error = error

    def run(self, begun: threading.Event) -> None:
        """Hold the conversation, as the kind of stream wants it to be held."""
        try:
            if self.kind in ("asyncio", "uvloop"):
                self.run_event(begun)
            elif self.kind == "blocking":
                set_timeouts(self.server, SLICE, self.timeouts.write_timeout)
                self.stream = BlockingStream(self.server, ("peer", 1), ("here", 2), self.timeouts)
                begun.set()
                run(self.converse(self.stream))
                self.stream.close()
            else:
                set_timeouts(self.server, SLICE, self.timeouts.write_timeout)
                always = self.kind.endswith("always")
                self.stream = PoolStream(self.server, ("peer", 1), ("here", 2), self.timeouts, always)
                begun.set()
                run_parked(self.stream, self.converse(self.stream))
                self.stream.close()
        except BaseException as error:
            self.error = error
            begun.set()

    def run_event(self, begun: threading.Event) -> None:
        """Run an event loop with one connection, and the look at deadlines of the asyncio model."""
        loop = asyncio.new_event_loop() if self.kind == "asyncio" else uvloop.new_event_loop()
        clock = Clock()
        calls = ExecutorThreads(loop, self.timeouts.call_threads)

        def start(stream: Stream) -> Coroutine[Any, Any, None]:
            begun.set()
            return self.converse(stream)

        model = SimpleNamespace(
            loop=loop, clock=clock, executor=calls, converse=start, admit=lambda stream: True,
            connection_lost=lambda stream: loop.stop(),
        )  # fmt: skip
        stream = EventStream(model, ("here", 2), self.timeouts)
        self.stream = stream

        def tick() -> None:
            clock.now = time.monotonic()
            stream.check_deadline(clock.now)
            loop.call_later(ewe.streams.event.DEADLINE_CHECK_S, tick)

        tick()
        loop.run_until_complete(loop.connect_accepted_socket(lambda: stream, self.server))
        if not stream.lost:
            loop.run_forever()
        calls.close()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    def result(self, seconds: float = 40) -> Any:
        """Return what the conversation returned, or raise what it raised."""
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "the conversation does not end"
        if self.error is not None:
            raise self.error
        return self.outcome


def pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection with small buffers."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        client.connect(listener.getsockname())
        return client, listener.accept()[0]


def run_parked(stream: PoolStream, conversation: Coroutine[Any, Any, None]) -> None:
    """Run a conversation that parks, as the pool does, with a separate poller."""
    error: Exception | None = None
    while True:
        try:
            wait = conversation.send(None) if error is None else conversation.throw(error)
        except StopIteration:
            return
        error = None
        if wait.want is Want.TURN:
            continue
        poller = select.poll()
        if wait.event is not None:
            poller.register(stream.socket, wait.event.client_events & ~select.EPOLLONESHOT)
            while not (wait.event.is_set or poller.poll(10) or error):
                error = Timeout() if time.monotonic() > wait.expires else None
            continue
        poller.register(stream.socket, select.POLLIN if wait.want is Want.BYTES else select.POLLOUT)
        error = None if poller.poll(max(0, wait.expires - time.monotonic()) * 1000) else Timeout()


Connect = Callable[..., Connection]


@pytest.fixture(params=KINDS)
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Return a function that starts a conversation over a new connection: connect(talk) -> Connection.

    When the test ends the conversations must have ended too, and left no descriptor open.
    """
    kind = str(request.param)
    if kind == "uvloop":  # what it opens once for good
        needs.require("uvloop")
        loop = uvloop.new_event_loop()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    before = descriptors()
    connections: list[Connection] = []

    def connect(talk: Talk, **settings: Any) -> Connection:
        connections.append(Connection(kind, talk, **settings))
        return connections[-1]

    yield connect
    for connection in connections:
        connection.client.close()
        connection.thread.join(20)
        assert not connection.thread.is_alive(), "the conversation does not end"
    wait_until(lambda: descriptors() <= before, 30, lambda: f"left open: {descriptors() - before}")


def descriptors() -> set[str]:
    """Return this process's open descriptors and what they are."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith(("socket:", "pipe:", "anon_inode:", "/tmp")):
                found.add(f"{name} {target}")
    return found


@contextlib.contextmanager
def file_of(data: bytes) -> Iterator[int]:
    """Yield the descriptor of a file with this content."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        yield file.fileno()


@lru_cache(maxsize=4)
def pattern(size: int) -> bytes:
    """Return bytes that are different everywhere."""
    numbers = array("I", range(size // 4))
    numbers.byteswap()
    return numbers.tobytes()


async def read_to_end(stream: Stream) -> bytes:
    """Return all that comes."""
    stream.set_deadline(50)
    data = b""
    while piece := await stream.receive():
        data += piece
    return data


# --- receive() ------------------------------------------------------------------------------------------------


def test_receive_returns_what_comes(connect: Connect) -> None:
    async def talk(stream: Stream) -> list[bytes]:
        stream.set_deadline(50)
        pieces = [await stream.receive()]
        await stream.send(b"next")
        pieces.append(await stream.receive())
        return pieces

    connection = connect(talk)
    connection.client.sendall(b"one")
    assert connection.client.recv(9) == b"next"
    connection.client.sendall(b"two")
    assert connection.result() == [b"one", b"two"]


def test_after_the_end_always_the_end(connect: Connect) -> None:
    async def talk(stream: Stream) -> list[bytes]:
        stream.set_deadline(50)
        return [await stream.receive() for _ in range(4)] + [await stream.next_request(50)]

    connection = connect(talk)
    connection.client.sendall(b"one")
    time.sleep(0.1)
    connection.client.shutdown(socket.SHUT_WR)
    assert connection.result() == [b"one", b"", b"", b"", b""]


def test_much_that_comes_is_whole(connect: Connect) -> None:
    data = pattern(3_000_000)
    connection = connect(read_to_end)
    connection.client.sendall(data)
    connection.client.shutdown(socket.SHUT_WR)
    assert connection.result() == data


@pytest.mark.takes_time
def test_what_comes_early_waits_but_not_without_bound(connect: Connect) -> None:
    """A client that sends without end is held back while the conversation does not read."""
    data = pattern(8_000_000)

    async def talk(stream: Stream) -> tuple[int, bytes]:
        await stream.send(bytes(2_000_000))  # the client does not read it, so this waits
        held = len(getattr(stream, "arrived", b""))
        return held, await read_to_end(stream)

    connection = connect(talk)
    sender = threading.Thread(target=lambda: (connection.client.sendall(data), connection.client.shutdown(1)))
    sender.start()
    sender.join(0.5)
    assert sender.is_alive()
    received = len(read_exactly(connection.client.makefile("rb", buffering=0), 2_000_000))
    held, arrived = connection.result()
    sender.join()
    assert received == 2_000_000 and arrived == data
    assert held <= 1_000_000


# --- Deadlines of receive() -----------------------------------------------------------------------------------


def test_receive_has_a_deadline(connect: Connect) -> None:
    async def talk(stream: Stream) -> tuple[float, bytes]:
        stream.set_deadline(0.4)
        began = time.monotonic()
        with pytest.raises(Timeout):
            await stream.receive()
        took = time.monotonic() - began
        await stream.send(b"late")  # the stream is as good as before
        stream.set_deadline(50)
        return took, await stream.receive()

    connection = connect(talk)
    assert connection.client.recv(9) == b"late"
    connection.client.sendall(b"still")
    took, data = connection.result()
    assert data == b"still" and 0.15 <= took < 0.4 + SLACK


@pytest.mark.takes_time
def test_a_trickle_does_not_move_the_deadline(connect: Connect) -> None:
    async def talk(stream: Stream) -> float:
        began = time.monotonic()
        stream.set_deadline(0.6)
        with pytest.raises(Timeout):
            while await stream.receive():
                pass
        return time.monotonic() - began

    connection = connect(talk)
    while connection.thread.is_alive():
        with contextlib.suppress(OSError):
            connection.client.sendall(b"x")
        time.sleep(0.05)
    assert 0.3 <= connection.result() < 0.6 + SLACK


@pytest.mark.takes_time
def test_each_allow_is_a_new_deadline(connect: Connect) -> None:
    passed = threading.Event()

    async def talk(stream: Stream) -> bytes:
        stream.set_deadline(0.3)
        with pytest.raises(Timeout):
            await stream.receive()
        stream.set_deadline(50)  # the one that has passed does not count any more
        passed.set()
        return await stream.receive()

    connection = connect(talk)
    assert passed.wait(20)
    time.sleep(0.4)  # so that it waits for longer than the first deadline was away
    connection.client.sendall(b"x")
    assert connection.result() == b"x"


def test_a_pool_that_parks_idle_limits_the_waits_of_a_unix_socket() -> None:
    """Otherwise a client that sends half a request would occupy a worker without a limit."""
    ours, client = socket.socketpair()
    with ours, client:
        stream = PoolStream(ours, ("unix:", 0), ("localhost", 80), Config(write_timeout=7), False)
        options = (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)
        limits = [ours.getsockopt(socket.SOL_SOCKET, option, TIMEVAL.size) for option in options]
    assert limits == [TIMEVAL.pack(int(stream.tick_s), 0), TIMEVAL.pack(7, 0)]


# --- Waiting between requests ---------------------------------------------------------------------------------


@pytest.mark.takes_time
def test_idle(connect: Connect) -> None:
    async def talk(stream: Stream) -> tuple[bytes, bytes, float]:
        first = await stream.next_request(50)
        began = time.monotonic()
        return first, await stream.next_request(0.5), time.monotonic() - began

    connection = connect(talk)
    connection.client.sendall(b"GET")
    first, second, took = connection.result()
    assert (first, second) == (b"GET", b"") and 0.2 <= took < 0.5 + SLACK
    assert connection.client.recv(9) == b""


def test_a_client_that_leaves_between_requests(connect: Connect) -> None:
    async def talk(stream: Stream) -> bytes:
        return await stream.next_request(50)

    connection = connect(talk)
    connection.client.shutdown(socket.SHUT_WR)
    assert connection.result() == b""


def test_a_reset(connect: Connect) -> None:
    async def idles(stream: Stream) -> bytes:
        return await stream.next_request(50)

    async def receives(stream: Stream) -> bytes:
        stream.set_deadline(50)
        return await stream.receive()

    for talk in (idles, receives):
        connection = connect(talk)
        time.sleep(0.1)
        reset(connection.client)
        with pytest.raises(Disconnected):
            connection.result()


def test_a_client_is_there_until_it_ends_or_leaves(connect: Connect) -> None:
    """By has_client(), a feature's own Disconnected is told from that of a client that has left."""
    asked = threading.Event()

    async def talk(stream: Stream) -> list[bool]:
        stream.set_deadline(50)
        found = [stream.has_client()]
        await stream.receive()
        found.append(stream.has_client())
        asked.set()
        with contextlib.suppress(Disconnected):  # of a reset
            assert await stream.receive() == b""
        return [*found, stream.has_client()]

    for leave in (reset, lambda sock: sock.shutdown(socket.SHUT_WR), socket.socket.close):
        asked.clear()
        connection = connect(talk)
        connection.client.sendall(b"one")
        assert asked.wait(30)
        leave(connection.client)
        assert connection.result() == [True, True, False]


def test_an_aborted_stream_has_no_client(connect: Connect) -> None:
    begun = threading.Event()

    async def talk(stream: Stream) -> bool:
        stream.set_deadline(50)
        begun.set()
        with pytest.raises(Disconnected):
            await stream.receive()
        return stream.has_client()

    connection = connect(talk)
    assert begun.wait(30)
    connection.stream.abort()
    assert connection.result() is False


def test_what_is_not_read_yet_is_not_lost_between_requests(connect: Connect) -> None:
    """A second request that came while the first was answered is there at once."""

    async def talk(stream: Stream) -> list[bytes]:
        first = await stream.next_request(50)
        await stream.send(b"answer")
        stream.set_deadline(50)
        while not first.endswith(b"!"):
            first += await stream.receive()
        return [first]

    connection = connect(talk)
    connection.client.sendall(b"one")
    assert connection.client.recv(9) == b"answer"
    connection.client.sendall(b"two!")
    assert connection.result() == [b"onetwo!"]


# --- send() ---------------------------------------------------------------------------------------------------


def test_parts_arrive_in_order(connect: Connect) -> None:
    async def talk(stream: Stream) -> None:
        await stream.send(b"a", b"b", b"", b"c")
        await stream.send(b"d")
        await stream.send(b"")
        await stream.send(b"e" * 100_000, b"f")

    connection = connect(talk)
    assert read_all(connection.client) == b"abcd" + b"e" * 100_000 + b"f"
    connection.result()


def settled(value: Callable[[], int]) -> int:
    """Return a number once it has not changed for half a second."""
    before = -1
    while (now := value()) != before:
        before = now
        time.sleep(0.5)
    return now


@pytest.mark.takes_time
def test_back_pressure(connect: Connect) -> None:
    """What the client does not read is not taken from the conversation."""
    data = pattern(65536)
    sent = 0

    async def talk(stream: Stream) -> None:
        nonlocal sent
        for _ in range(200):
            await stream.send(data)
            sent += 1

    connection = connect(talk)
    assert settled(lambda: sent) < 40
    digest = hashlib.sha256()
    size = 0
    while piece := connection.client.recv(100_000):
        digest.update(piece)
        size += len(piece)
    connection.result()
    assert size == 200 * 65536 and digest.digest() == hashlib.sha256(data * 200).digest()


@pytest.mark.takes_time
def test_one_large_part_to_a_slow_reader(connect: Connect) -> None:
    """The deadline is one of each wait: a client that reads all the time is not cut off."""
    data = pattern(2_400_000)

    async def talk(stream: Stream) -> float:
        began = time.monotonic()
        await stream.send(data)
        return time.monotonic() - began

    connection = connect(talk, write_timeout=STANDS_STILL, min_rate=1000)
    digest = hashlib.sha256()
    for piece in read_slowly(connection.client):
        digest.update(piece)
    assert connection.result() > STANDS_STILL  # longer than any single wait may take
    assert digest.digest() == hashlib.sha256(data).digest()


STANDS_STILL = 1.0  # seconds that a reader may stand still, as it does on a busy machine
# Seconds that a slow reader takes for 2.4 MB, the last of which wait in its own buffers
SLOW = 1.4 * STANDS_STILL


def read_slowly(sock: socket.socket) -> Iterator[bytes]:
    """Yield what comes, to its end, in so many small steps that 2.4 MB take SLOW seconds at least."""
    while piece := sock.recv(60_000):
        yield piece
        time.sleep(SLOW / 40)


class Endless(Source):
    """A body of unknown length."""

    async def receive(self) -> bytes:
        return bytes(65536)


@pytest.mark.takes_time
@pytest.mark.parametrize("cut", ["times out", "is aborted"])
def test_a_response_that_only_the_close_ends_is_cut_by_a_reset(connect: Connect, cut: str) -> None:
    """After an ordinary close the client would take the part that it has for the whole body."""
    sending = threading.Event()

    async def talk(stream: Stream) -> None:
        request = Request("GET", "/", (1, 0))
        sending.set()
        with pytest.raises(Timeout if cut == "times out" else Disconnected):
            await send_response(stream, request, Response(200, (), Endless()), False, time.perf_counter())

    connection = connect(talk, write_timeout=0.5 if cut == "times out" else 50)
    if cut == "is aborted":
        assert sending.wait(60)
        time.sleep(0.3)  # until the kernel's buffers are full
        connection.stream.abort()
    connection.result()
    with pytest.raises(ConnectionResetError):
        while connection.client.recv(65536):
            pass


class Pieces(Source):
    """A body in 30 pieces, and each takes `seconds`. framing: "chunked", "length" or "raw"."""

    def __init__(self, seconds: float, framing: str, size: int = 65536) -> None:
        self.pieces = iter([bytes(size)] * 30)
        self.seconds = seconds
        self.length = 30 * size if framing == "length" else None
        self.raw = framing == "raw"

    async def receive(self) -> bytes:
        time.sleep(self.seconds)
        return next(self.pieces, b"")


async def send_pieces(stream: Stream, body: Pieces) -> None:
    """Send a response with this body."""
    await send_response(
        stream, Request("GET", "/", (1, 1)), Response(200, (), body), False, time.perf_counter()
    )


@pytest.mark.takes_time
@pytest.mark.parametrize("framing", ["chunked", "length", "raw"])
def test_a_body_in_pieces_to_a_client_that_reads_too_slowly(connect: Connect, framing: str) -> None:
    """min_rate bounds the time of the whole body, also of an NPH program's."""

    async def talk(stream: Stream) -> None:
        with pytest.raises(Timeout):
            await send_pieces(stream, Pieces(0, framing))

    connection = connect(talk, write_timeout=SLOW / 4, min_rate=20_000_000)
    size = 0
    with contextlib.suppress(ConnectionResetError):  # the end of a raw response that is cut
        for piece in read_slowly(connection.client):
            size += len(piece)
    assert size < 30 * 65536
    connection.result()


@pytest.mark.takes_time
@pytest.mark.parametrize("framing", ["chunked", "length", "raw"])
def test_a_body_in_pieces_that_are_made_slowly(connect: Connect, framing: str) -> None:
    """The time that the source takes is not the client's. write_timeout has room for a reader that stands still."""

    async def talk(stream: Stream) -> None:
        await send_pieces(stream, Pieces(2 * STANDS_STILL / 30, framing))

    connection = connect(talk, write_timeout=1.25 * STANDS_STILL, min_rate=20_000_000)
    assert sum(map(len, iter(lambda: connection.client.recv(65536), b""))) >= 30 * 65536
    connection.result()


@pytest.mark.takes_time
@pytest.mark.parametrize("framing", ["chunked", "length", "raw"])
def test_a_busy_server_is_no_slow_client(connect: Connect, framing: str) -> None:
    """A client whose system takes all bytes at once is not cut if the server's thread is held up."""

    async def talk(stream: Stream) -> None:
        send = stream.send

        async def send_and_be_held_up(*parts: bytes) -> None:
            await send(*parts)
            time.sleep(0.02)

        stream.send = send_and_be_held_up  # type: ignore[method-assign]
        await send_pieces(stream, Pieces(0, framing, size=100))

    connection = connect(talk, write_timeout=0.2, min_rate=20_000_000)
    connection.result()


@pytest.mark.takes_time
def test_a_client_that_does_not_read(connect: Connect) -> None:
    async def talk(stream: Stream) -> float:
        began = time.monotonic()
        with pytest.raises(Timeout):
            while True:
                await stream.send(bytes(65536))
        return time.monotonic() - began

    connection = connect(talk, write_timeout=0.3)
    assert 0.2 <= connection.result() < 0.5 + SLACK


@pytest.mark.parametrize("leave", ["closes", "resets"])
def test_sending_to_a_client_that_left(connect: Connect, leave: str) -> None:
    began = threading.Event()

    async def talk(stream: Stream) -> None:
        stream.set_deadline(50)
        await stream.receive()
        began.set()  # a reset before would have taken the bytes along
        with pytest.raises(Disconnected):
            while True:
                await stream.send(bytes(65536))

    connection = connect(talk)
    connection.client.sendall(b"go")
    assert began.wait(30)
    if leave == "resets":
        reset(connection.client)
    else:
        connection.client.close()
    connection.result()


def test_a_half_closed_client_is_answered(connect: Connect) -> None:
    async def talk(stream: Stream) -> bytes:
        data = await read_to_end(stream)
        for _ in range(30):
            await stream.send(data * 1000)
        return data

    connection = connect(talk)
    connection.client.sendall(b"question")
    connection.client.shutdown(socket.SHUT_WR)
    assert read_all(connection.client) == b"question" * 30_000
    assert connection.result() == b"question"


# --- send_file() ----------------------------------------------------------------------------------------------


def test_a_whole_file(connect: Connect) -> None:
    data = pattern(3_000_000)
    with file_of(data) as file:

        async def talk(stream: Stream) -> None:
            await stream.send_file(file, 0, len(data), b"head ")
            await stream.send(b" tail")

        connection = connect(talk)
        assert read_all(connection.client) == b"head " + data + b" tail"
        connection.result()


def test_a_file_when_no_descriptor_is_left(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pattern(300_000)

    def none_left(_: int) -> int:
        raise OSError(24, "Too many open files")

    async def talk(stream: Stream) -> None:
        with file_of(data) as file, monkeypatch.context() as patch:
            patch.setattr(os, "dup", none_left)
            await stream.send_file(file, 8, len(data) - 8, b"head")

    connection = connect(talk)
    assert read_all(connection.client) == b"head" + data[8:]
    connection.result()


def test_a_part_of_a_file(connect: Connect) -> None:
    data = pattern(1_000_000)
    with file_of(data) as file:

        async def talk(stream: Stream) -> None:
            await stream.send_file(file, 123_456, 500_000)
            await stream.send_file(file, 999_999, 1, b"-")
            await stream.send_file(file, 0, 0, b"nothing")
            await stream.send_file(file, 0, 0)

        connection = connect(talk)
        assert read_all(connection.client) == data[123_456:623_456] + b"-" + data[-1:] + b"nothing"
        connection.result()
        assert os.lseek(file, 0, os.SEEK_CUR) == len(data)  # two conversations may share the descriptor


def test_files_and_bytes_keep_their_order(connect: Connect) -> None:
    """Bytes in a buffer are sent before a file that bypasses the buffer."""
    data = pattern(400_000)
    with file_of(data) as file:

        async def talk(stream: Stream) -> None:
            for _ in range(3):
                await stream.send(b"<" * 200_000)
                await stream.send_file(file, 0, len(data), b"|")
                await stream.send(b">" * 200_000)

        connection = connect(talk)
        time.sleep(0.3)
        expected = (b"<" * 200_000 + b"|" + data + b">" * 200_000) * 3
        assert read_all(connection.client) == expected
        connection.result()


@pytest.mark.takes_time
def test_a_file_to_a_slow_reader(connect: Connect) -> None:
    data = pattern(2_400_000)
    with file_of(data) as file:

        async def talk(stream: Stream) -> float:
            began = time.monotonic()
            await stream.send_file(file, 0, len(data))
            return time.monotonic() - began

        connection = connect(talk, write_timeout=STANDS_STILL, min_rate=1000)
        assert b"".join(read_slowly(connection.client)) == data
        assert connection.result() > STANDS_STILL


@pytest.mark.takes_time
@pytest.mark.parametrize("call", ["send_file", "send_copy"])
def test_a_file_to_a_client_that_reads_too_slowly(connect: Connect, call: str) -> None:
    """min_rate bounds the time of the whole file, although no wait for the client is long. TLS sends a copy."""
    with file_of(pattern(2_400_000)) as file:

        async def talk(stream: Stream) -> None:
            with pytest.raises(Timeout):
                await getattr(stream, call)(file, 0, 2_400_000)

        connection = connect(talk, write_timeout=SLOW / 4, min_rate=20_000_000)
        assert sum(map(len, read_slowly(connection.client))) < 2_400_000
        connection.result()


@pytest.mark.parametrize("size", [0, 100, 500_000])
def test_a_file_that_is_shorter_than_promised(connect: Connect, size: int) -> None:
    """The connection is cut; not a byte is made up."""
    data = pattern(size)
    with file_of(data) as file:

        async def talk(stream: Stream) -> None:
            await stream.send_file(file, 0, len(data) + 1, b"head")

        connection = connect(talk)
        assert read_all(connection.client) == b"head" + data
        with pytest.raises(Disconnected):
            connection.result()


def test_a_file_that_shrinks_while_it_is_sent(connect: Connect) -> None:
    data = pattern(6_000_000)
    with file_of(data) as file:

        async def talk(stream: Stream) -> None:
            await stream.send_file(file, 0, len(data))

        connection = connect(talk)
        first = read_exactly(connection.client.makefile("rb", buffering=0), 1000)
        time.sleep(0.2)  # the client reads no more, so that the conversation waits within the file
        os.ftruncate(file, 3_000_000)
        rest = read_all(connection.client)
        assert data.startswith(first + rest) and len(first + rest) <= 3_000_000
        with pytest.raises(Disconnected):
            connection.result()


@pytest.mark.takes_time
def test_a_file_to_a_client_that_does_not_read(connect: Connect) -> None:
    with file_of(pattern(6_000_000)) as file:

        async def talk(stream: Stream) -> float:
            began = time.monotonic()
            with pytest.raises(Timeout):
                await stream.send_file(file, 0, 6_000_000)
            return time.monotonic() - began

        assert 0.2 <= connect(talk, write_timeout=0.3).result() < 0.5 + SLACK


@pytest.mark.parametrize("leave", ["closes", "resets"])
def test_a_file_to_a_client_that_leaves(connect: Connect, leave: str) -> None:
    with file_of(pattern(6_000_000)) as file:

        async def talk(stream: Stream) -> None:
            with pytest.raises(Disconnected):
                await stream.send_file(file, 0, 6_000_000)
            with pytest.raises(Disconnected):
                for _ in range(100):
                    await stream.send_file(file, 0, 6_000_000)

        connection = connect(talk)
        connection.client.recv(1000)
        time.sleep(0.1)
        if leave == "resets":
            reset(connection.client)
        else:
            connection.client.close()
        connection.result()


# --- finish(), abort(), close() -------------------------------------------------------------------------------


@pytest.mark.takes_time
def test_finish_ends_an_idle_connection(connect: Connect) -> None:
    async def talk(stream: Stream) -> tuple[bytes, float]:
        began = time.monotonic()
        return await stream.next_request(50), time.monotonic() - began

    connection = connect(talk)
    wait_until(lambda: connection.stream.idle, 30)
    time.sleep(0.1)
    connection.stream.finish()
    data, took = connection.result()
    assert data == b"" and took < SLACK and connection.stream.stopping and not connection.stream.aborted
    assert connection.client.recv(9) == b""


@pytest.mark.takes_time
def test_finish_answers_what_came_just_before(connect: Connect) -> None:
    read, sent = threading.Event(), threading.Event()

    async def talk(stream: Stream) -> list[bytes]:
        stream.set_deadline(50)
        first = await stream.receive()
        read.set()
        stream.finish()  # as a signal handler would
        assert sent.wait(30)  # and meanwhile the next request comes
        second = await stream.next_request(50)
        await stream.send(b"answer")
        return [first, second, await stream.next_request(50)]

    connection = connect(talk)
    connection.client.sendall(b"one")
    assert read.wait(30)
    connection.client.sendall(b"two")
    sent.set()
    first, *rest = connection.result()
    # An event loop has no chance to see the second before it is asked for: there it may be too late.
    assert first == b"one" and rest in ([b"two", b""], [b"", b""])
    assert rest[0] or connection.kind in ("asyncio", "uvloop")


@pytest.mark.takes_time
def test_finish_lets_the_exchange_in_progress_end(connect: Connect) -> None:
    began = threading.Event()

    async def talk(stream: Stream) -> bytes:
        data = await stream.next_request(50)
        began.set()
        stream.set_deadline(50)
        while not data.endswith(b"!"):
            data += (piece := await stream.receive())
            assert piece, "the end came early"
        await stream.send(bytes(3_000_000), data)
        return await stream.next_request(50)

    connection = connect(talk)
    connection.client.sendall(b"one ")
    assert began.wait(30)
    connection.stream.finish()
    time.sleep(0.1)  # mostly, it waits for the rest when it hears of the end
    connection.client.sendall(b"two!")
    assert read_all(connection.client)[3_000_000:] == b"one two!"
    assert connection.result() == b""  # and there is no next one


def waits_for_a_request(stream: Stream) -> Awaitable[Any]:
    return stream.next_request(50)


async def waits_for_bytes(stream: Stream) -> None:
    stream.set_deadline(50)
    await stream.receive()


async def waits_for_room(stream: Stream) -> None:
    while True:
        await stream.send(bytes(65536))


async def waits_with_a_file(stream: Stream) -> None:
    with file_of(bytes(6_000_000)) as file:
        await stream.send_file(file, 0, 6_000_000)


async def waits_for_a_program(stream: Stream) -> None:
    program = await start(stream, "sleep 60")
    while await program.receive():
        pass


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    "talk", [waits_for_a_request, waits_for_bytes, waits_for_room, waits_with_a_file, waits_for_a_program]
)
def test_abort_from_another_thread_ends_any_wait(connect: Connect, talk: Talk) -> None:
    ends: list[object] = []

    async def all_of_it(stream: Stream) -> None:
        try:
            ends.append(await talk(stream))
        except Disconnected:
            ends.append("disconnected")
        with pytest.raises(Disconnected):  # there is no way on
            for _ in range(100):
                await stream.send(b"x")

    connection = connect(all_of_it)
    time.sleep(0.25)
    began = time.monotonic()
    connection.stream.abort()
    connection.stream.abort()
    connection.result()
    assert time.monotonic() - began < SLACK
    # A wait for a request ends as at the client's close. In a body, that would be logged as the client's fault.
    assert ends == ["disconnected"] or (talk is not waits_for_bytes and ends in ([b""], [None]))
    assert connection.stream.aborted and connection.stream.stopping
    with contextlib.suppress(ConnectionResetError):
        read_all(connection.client)
    assert not connection.stream.programs


def test_closing_twice(connect: Connect) -> None:
    async def talk(stream: Stream) -> None:
        await stream.send(b"bye")

    connection = connect(talk)
    assert read_all(connection.client) == b"bye"
    connection.result()
    for end in (connection.stream.close, connection.stream.finish, connection.stream.abort) * 2:
        end()


def test_what_was_sent_arrives_before_the_close(connect: Connect) -> None:
    async def talk(stream: Stream) -> None:
        await stream.send(bytes(50_000))

    connection = connect(talk)
    time.sleep(0.3)
    assert len(read_all(connection.client)) == 50_000
    connection.result()


# --- linger() -------------------------------------------------------------------------------------------------


def test_linger_lets_the_answer_arrive(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 9112 section 9.6: without it the unread rest of the request would reset the connection."""
    monkeypatch.setattr(ewe.streams.base, "LINGER_S", 50)  # on a busy machine the client needs its time

    async def talk(stream: Stream) -> None:
        stream.set_deadline(50)
        await stream.receive()
        await stream.send(b"no")
        await stream.linger()

    connection = connect(talk)
    for _ in range(20):
        connection.client.sendall(bytes(10_000))
        time.sleep(0.01)
    connection.client.shutdown(socket.SHUT_WR)
    assert read_all(connection.client) == b"no"
    connection.result()


@pytest.mark.parametrize("goes_on", [False, True])
def test_linger_ends(connect: Connect, goes_on: bool) -> None:
    """A client that does not close, or that sends for ever, holds nothing for long."""

    async def talk(stream: Stream) -> float:
        began = time.monotonic()
        await stream.send(b"no")
        await stream.linger()
        return time.monotonic() - began

    connection = connect(talk)
    assert read_all(connection.client) == b"no"  # our side is closed at once
    with contextlib.suppress(OSError):
        while goes_on:
            connection.client.sendall(bytes(100_000))
    assert connection.result() < 0.4 + SLACK


def test_linger_is_bounded_in_bytes(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ewe.streams.base, "LINGER_S", 50)
    monkeypatch.setattr(ewe.streams.base, "LINGER_BYTES", 300_000)

    async def talk(stream: Stream) -> float:
        began = time.monotonic()
        await stream.linger()
        return time.monotonic() - began

    connection = connect(talk)
    with contextlib.suppress(OSError):
        for _ in range(100):
            connection.client.sendall(bytes(10_000))
            time.sleep(0.005)
    assert connection.result() < SLACK


def test_linger_after_the_client_left(connect: Connect) -> None:
    async def talk(stream: Stream) -> None:
        stream.set_deadline(50)
        with contextlib.suppress(Disconnected):
            await stream.receive()
        await stream.linger()

    connection = connect(talk)
    reset(connection.client)
    connection.result()


# --- Programs -------------------------------------------------------------------------------------------------


async def start(stream: Stream, script: str, seconds: float = 10) -> RunningProgram:
    """Start a shell script that may be silent for so many seconds."""
    stdin = os.open(os.devnull, os.O_RDONLY)
    try:
        return programs.start(stream, ["/bin/sh", "-c", script], {}, "/", stdin, SCRIPT, seconds)
    finally:
        os.close(stdin)


def gone(pid: int) -> bool:
    """Is a process gone, and reaped?"""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.starts_processes
def test_reading_a_program(connect: Connect) -> None:
    async def talk(stream: Stream) -> tuple[bytes, int | None]:
        program = await start(stream, "printf one; sleep 0.2; printf two; sleep 0.2; echo oops >&2; exit 3")
        output = b""
        while piece := await program.receive():
            output += piece
        return output, program.status

    connection = connect(talk)
    assert connection.result() == (b"onetwo", 3)
    assert not connection.stream.programs


@pytest.mark.starts_processes
def test_a_program_that_cannot_be_killed_holds_nothing_up(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that runs as another account after `exec sudo`. A thread reads its status once it ends."""
    killpg = os.killpg

    def refuse(group: int, number: int) -> None:
        raise PermissionError

    async def talk(stream: Stream) -> tuple[int, int | None, bool]:
        program = await start(stream, "exec sleep 60")
        program.kill()
        return program.pid, program.status, bool(stream.programs)

    monkeypatch.setattr(os, "killpg", refuse)
    monkeypatch.setattr(programs, "KILL_TIMEOUT_S", 0.05)
    pid, status, runs = connect(talk).result()
    assert status is None and not runs
    killpg(pid, signal.SIGKILL)
    wait_until(lambda: gone(pid), 30)


@pytest.mark.starts_processes
def test_much_of_a_program(connect: Connect) -> None:
    async def talk(stream: Stream) -> int:
        program = await start(stream, "head -c 3000000 /dev/zero")
        size = 0
        while piece := await program.receive():
            size += len(piece)
            await stream.send(piece)
        return size

    connection = connect(talk)
    assert len(read_all(connection.client)) == connection.result() == 3_000_000


@pytest.mark.starts_processes
def test_a_silent_program(connect: Connect) -> None:
    async def talk(stream: Stream) -> tuple[int, float, int]:
        program = await start(stream, "sleep 60", 0.4)
        began = time.monotonic()
        with pytest.raises(HTTPError) as refused:
            await program.receive()
        return refused.value.status, time.monotonic() - began, program.pid

    status, took, pid = connect(talk).result()
    assert status == 504 and 0.15 <= took < 0.4 + programs.TERM_TO_KILL_S + SLACK
    wait_until(lambda: gone(pid), 30)  # it ended with its stream


@pytest.mark.starts_processes
def test_a_program_that_cannot_be_started(connect: Connect) -> None:
    async def talk(stream: Stream) -> None:
        with pytest.raises(OSError):
            programs.start(stream, ["/nowhere"], {}, "/", 0, SCRIPT, 10)

    connect(talk).result()


@pytest.mark.starts_processes
@pytest.mark.parametrize("leave", ["closes", "resets"])
def test_a_client_that_leaves_a_program(connect: Connect, leave: str) -> None:
    pids: list[int] = []

    async def talk(stream: Stream) -> float:
        program = await start(stream, "sleep 60", 50)
        pids.append(program.pid)
        began = time.monotonic()
        with pytest.raises(Disconnected):
            await program.receive()
        return time.monotonic() - began

    connection = connect(talk)
    wait_until(lambda: pids, 30)
    time.sleep(0.1)
    if leave == "resets":
        reset(connection.client)
    else:
        connection.client.close()
    assert connection.result() < 0.5 + SLACK
    wait_until(lambda: gone(pids[0]), 30)


@pytest.mark.starts_processes
def test_a_half_closed_client_hears_a_program_out(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half-closed client may wait for the answer: ewe gives up only if the program is silent."""
    for module in (ewe.streams.poller, ewe.streams.loops, ewe.streams.event_poller):
        monkeypatch.setattr(module, "HALF_CLOSED_S", 2.0)

    async def talk(stream: Stream) -> bytes:
        await read_to_end(stream)
        program = await start(stream, "for i in 1 2 3 4 5 6 7 8 9; do sleep 0.25; printf $i; done")
        output = b""
        while piece := await program.receive():
            output += piece
            await stream.send(piece)
        return output

    connection = connect(talk)
    connection.client.shutdown(socket.SHUT_WR)
    assert read_all(connection.client) == b"123456789"
    assert connection.result() == b"123456789"


@pytest.mark.starts_processes
def test_a_program_that_is_slow_and_never_silent(connect: Connect) -> None:
    """Each piece of output restarts the timeout, so the total time of the program is not limited."""

    async def talk(stream: Stream) -> bytes:
        program = await start(stream, "for i in 1 2 3 4 5 6 7 8 9; do sleep 0.25; printf $i; done", 2)
        output = b""
        while piece := await program.receive():
            output += piece
        return output

    assert connect(talk).result() == b"123456789"


@pytest.mark.starts_processes
def test_output_that_is_found_late_is_read_although_the_client_has_ended() -> None:
    """The server did not run for a while, and the program was not silent meanwhile."""
    ours, client = socket.socketpair()
    reader, writer = os.pipe()
    poller = BlockingPoller(ours)
    poller.client_ended_at = since = time.monotonic() - 2 * HALF_CLOSED_S
    with ours, client:
        client.shutdown(socket.SHUT_WR)
        os.write(writer, b"x")
        assert run(poller.wait([reader], since, 9)) == [reader]
        os.read(reader, 1)
        with pytest.raises(Disconnected):
            run(poller.wait([reader], since, 9))
    os.close(reader)
    os.close(writer)


def test_two_programs(connect: Connect) -> None:
    async def talk(stream: Stream) -> list[int]:
        return [(await start(stream, "sleep 60")).pid for _ in range(2)]

    pids = connect(talk).result()
    wait_until(lambda: all(map(gone, pids)), 30)


@pytest.mark.parametrize("in_handshake", [True, False])
def test_the_end_of_a_handshake_is_no_timeout_of_a_head(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, in_handshake: bool
) -> None:
    counted: list[str] = []
    monkeypatch.setattr(TimeoutCounter, "count", counted.append)

    async def talk(stream: Stream) -> bytes:
        stream.in_handshake = in_handshake
        return await stream.next_request(0.1)

    assert connect(talk).result() == b""
    assert counted == ([] if in_handshake else ["head"])


def test_the_time_in_the_queue_after_the_client_has_read_is_not_its_own() -> None:
    client, server = pair()
    with client, server:
        stream = PoolStream(server, ("peer", 1), ("here", 2), Config(), True)
        conversation = stream.wait_for_socket_room()
        queue: SimpleQueue[Any] = SimpleQueue()
        parking = Parking(queue)
        task = parking.parked[server.fileno()] = PoolTask(stream, conversation)
        wait = task.wait = conversation.send(None)
        parking.handle_ready(server.fileno())
        assert queue.get(timeout=20) is task
        time.sleep(0.2)
        with pytest.raises(StopIteration):
            conversation.send(None)
        assert wait.ready_at > 0 and stream.queued_s >= 0.2


# --- What needs not wait --------------------------------------------------------------------------------------


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[Stream]:
    """Return a list of the streams that let others go on, one for each time."""
    noted: list[Stream] = []
    for kind in (EventStream, PoolStream):
        own = kind.yield_turn

        async def yield_turn(stream: Any, own: Any = own) -> None:
            noted.append(stream)
            await own(stream)

        monkeypatch.setattr(kind, "yield_turn", yield_turn)
    return noted


def expected(stream: Stream, size: int) -> int:
    """Return how many turns are due at least: where conversations share a thread, one for each TURN_BYTES."""
    shares = isinstance(stream, EventStream) or getattr(stream, "parks_always", False)
    return size // (TURN_BYTES + CALL_COST_BYTES) if shares else 0


async def read_bytewise(stream: Stream) -> int:
    """Read what a program wrote long ago, a byte at a time."""
    program: RunningProgram = await start(stream, "head -c 2000 /dev/zero; echo >&2; exec sleep 60")
    while not select.select([program.stderr], [], [], 0)[0]:
        time.sleep(0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "RECEIVE_BYTES", 1)
        for _ in range(2000):
            assert await program.receive() == b"\0"
    # A program holds a worker of the pool
    return 2000 * CALL_COST_BYTES if isinstance(stream, EventStream) else 0


async def write_piecewise(stream: Stream) -> int:
    """Write to a server behind this one that has room for all of it."""
    here, there = socket.socketpair()
    here.setblocking(False)
    upstream = Upstream(here, stream.poller(), UpstreamAddress("unix:/nowhere"))
    for _ in range(200):
        left, _ = await upstream.exchange(memoryview(b"piece"), 10)
        assert not left
    upstream.close()
    there.close()
    return 200 * CALL_COST_BYTES if isinstance(stream, EventStream) else 0


async def answer_shortly(stream: Stream) -> int:
    """Send many short answers, as to a pipeline."""
    for _ in range(200):
        await stream.send(b"answer")
    return 200 * CALL_COST_BYTES


async def answer_with_files(stream: Stream) -> int:
    """Send many short files."""
    with file_of(b"answer") as file:
        for _ in range(200):
            await stream.send_file(file, 0, 6)
    return 200 * CALL_COST_BYTES


async def work(stream: Stream) -> int:
    """Do what has nothing to do with a socket."""
    for _ in range(200):
        await stream.share(5)
    return 200 * CALL_COST_BYTES


@pytest.mark.starts_processes
@pytest.mark.parametrize("talk", [read_bytewise, write_piecewise, answer_shortly, answer_with_files, work])
def test_what_needs_not_wait_lets_others_go_on(connect: Connect, turns: list[Stream], talk: Talk) -> None:
    connection = connect(talk)
    size = connection.result()
    assert len(turns) >= expected(connection.stream, size)


def test_a_client_that_always_sends_lets_others_go_on(connect: Connect, turns: list[Stream]) -> None:
    """An upload occupies a worker of the pool no longer than a download."""
    connection = connect(read_to_end)
    connection.client.sendall(bytes(8 * TURN_BYTES))
    connection.client.shutdown(socket.SHUT_WR)
    assert len(connection.result()) == 8 * TURN_BYTES
    if isinstance(connection.stream, PoolStream) and connection.stream.parks_always:
        assert len(turns) >= 4
        assert connection.stream.queued_s > 0  # this time is not the client's


def test_a_client_that_leaves_while_others_have_their_turn(connect: Connect) -> None:
    """A conversation that never waits for its client still learns that the client has left."""

    async def talk(stream: Stream) -> None:
        stream.set_deadline(50)
        await stream.receive()
        if not isinstance(stream, EventStream):
            return
        with pytest.raises(Disconnected):
            while True:
                await stream.share(TURN_BYTES)

    connection = connect(talk)
    connection.client.sendall(b"go")
    reset(connection.client)
    connection.result()


# ---------------------------------------------------------------------------------------------------------
# WakeEvents


class GoesOn(PoolWakeEvent):
    """A WakeEvent whose conversation goes on, and clears `wake`, after set() has read it once."""

    reads = 0
    woken = 0

    def read(self) -> Callable[[], None] | None:
        self.reads += 1
        return self.count if self.reads == 1 else None

    def count(self) -> None:
        self.woken += 1

    wake = property(read, lambda self, value: None)  # type: ignore[assignment]


def test_a_conversation_that_goes_on_while_another_wakes_it() -> None:
    event = GoesOn(SimpleNamespace())  # type: ignore[arg-type]
    event.set()
    assert event.woken == 1


class InterruptedListener:
    """Watches descriptors as a Listener does. interrupt: called once, before the next descriptor is watched."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self.watched = descriptor_set()
        self.interrupt = interrupt

    def watch(self, descriptor: int, events: int, again: bool = False) -> None:
        interrupt, self.interrupt = self.interrupt, lambda: None
        interrupt()
        (self.watched.modify if again else self.watched.register)(descriptor, events)

    def unwatch(self, descriptor: int) -> None:
        self.watched.unregister(descriptor)


def test_a_late_wake_up_leaves_the_next_wait_alone() -> None:
    """A thread has read `wake` of an event, and calls it when the conversation parks again, in another Wait."""
    queue: SimpleQueue[PoolTask] = SimpleQueue()
    parking = Parking(queue)
    ours, client = socket.socketpair()
    upstream, other_end = socket.socketpair()
    with ours, client, upstream, other_end:
        stream: Any = SimpleNamespace(socket=ours)
        conversation: Any = None
        task = PoolTask(stream, conversation)
        first, second = (ParkedPoll(EPOLLONESHOT, upstream.fileno(), EPOLLIN) for _ in range(2))
        listener: Any = InterruptedListener(lambda: None)
        parking.open(listener)
        assert parking.park(task, Wait(Want.PROGRAM, math.inf, first))
        late = first.wake
        assert late is not None
        first.set()
        assert queue.get_nowait() is task
        listener.interrupt = late
        assert parking.park(task, Wait(Want.PROGRAM, math.inf, second))
        assert queue.empty() and parking.parked == {ours.fileno(): task}
        second.set()
        assert queue.get_nowait() is task and not parking.parked
        listener.watched.close()


def test_a_bell_that_rings_and_one_that_does_not(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that was set before it is waited for counts."""
    events: list[Any] = []
    # No other look at the event than that of set()
    monkeypatch.setattr("ewe.streams.event_poller.HALF_CLOSED_S", 600.0)

    async def talk(stream: Stream) -> list[bool]:
        silent = stream.wake_event()
        results = [await silent.wait(0.1)]
        silent.close()
        events.append(stream.wake_event())
        results.append(await events[0].wait(600))
        events[0].close()
        last = stream.wake_event()
        last.set()
        results.append(await last.wait(20))
        last.close()
        return results

    connection = connect(talk)
    wait_until(lambda: events, 20)
    if isinstance(connection.stream, EventStream):
        connection.stream.loop.call_soon_threadsafe(events[0].set)
    else:
        events[0].set()
    assert connection.result() == [False, True, True]


@pytest.mark.takes_time
@pytest.mark.parametrize("leaves", [True, False])
def test_who_waits_for_a_bell_notices_that_the_client_left(connect: Connect, leaves: bool) -> None:
    """The client has left, or has closed its sending side, so that ewe soon takes it for gone."""

    async def talk(stream: Stream) -> None:
        event = stream.wake_event()
        try:
            await event.wait(600)
        finally:
            event.close()

    connection = connect(talk)
    if leaves:
        reset(connection.client)
    else:
        connection.client.shutdown(socket.SHUT_WR)
    with pytest.raises(Disconnected):
        connection.result()


# --- call() ---------------------------------------------------------------------------------------------------


def in_place(connection: Connection) -> bool:
    """Does this kind of stream make a call in the thread of its conversation?"""
    return connection.kind not in ("asyncio", "uvloop")


def test_call_returns_what_the_function_returns(connect: Connect) -> None:
    async def talk(stream: Stream) -> tuple[int, int, int]:
        sum_of_two = await stream.call(lambda one, two: one + two, 3, 4)
        return sum_of_two, threading.get_ident(), await stream.call(threading.get_ident)

    connection = connect(talk)
    result, thread, thread_of_call = connection.result()
    assert result == 7
    assert (thread == thread_of_call) == in_place(connection)


def test_call_raises_what_the_function_raises(connect: Connect) -> None:
    async def talk(stream: Stream) -> str:
        with pytest.raises(ZeroDivisionError):
            await stream.call(lambda: 1 // 0)
        with pytest.raises(SystemExit):
            await stream.call(sys.exit, 3)
        return await stream.call(str.upper, "as good as before")

    assert connect(talk).result() == "AS GOOD AS BEFORE"


def test_a_call_has_a_deadline(connect: Connect) -> None:
    """The function is never stopped: `abandoned` comes after it."""
    events: list[str] = []
    raised = threading.Event()

    def late(stream: Stream) -> str:
        if isinstance(stream, EventStream):
            assert raised.wait(20)
        else:
            time.sleep(0.3)
        events.append("returned")
        return "late"

    async def talk(stream: Stream) -> str:
        with pytest.raises(Timeout):
            await stream.call(late, stream, seconds=0.1, abandoned=lambda: events.append("abandoned"))
        events.append("raised")
        raised.set()
        return await stream.call(str, "next", seconds=20, abandoned=lambda: events.append("wrong"))

    connection = connect(talk)
    assert connection.result() == "next"
    expected = ["returned", "abandoned", "raised"]
    if not in_place(connection):
        expected = ["raised", "returned", "abandoned"]
    wait_until(lambda: len(events) == 3, 20)
    assert events == expected


def test_a_late_fault_is_a_timeout(connect: Connect) -> None:
    abandoned, raised = threading.Event(), threading.Event()

    def fail(stream: Stream) -> None:
        if isinstance(stream, EventStream):
            assert raised.wait(20)
        else:
            time.sleep(0.3)
        raise ValueError

    async def talk(stream: Stream) -> None:
        with pytest.raises(Timeout):
            await stream.call(fail, stream, seconds=0.1, abandoned=abandoned.set)
        raised.set()

    connect(talk).result()
    assert abandoned.wait(20)


def test_a_call_whose_client_leaves(connect: Connect) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    events: list[str] = []

    def wait() -> None:
        begun.set()
        assert go_on.wait(20)
        events.append("returned")

    def abandoned() -> None:
        events.append("abandoned")
        ended.set()

    async def talk(stream: Stream) -> None:
        try:
            await stream.call(wait, abandoned=abandoned)
            for _ in range(100):  # in place nobody sees the client leave before something is sent
                await stream.send(b"x")
                time.sleep(0.01)
        except Disconnected:
            events.append("left")
            raise

    connection = connect(talk)
    assert begun.wait(20)
    reset(connection.client)
    if not in_place(connection):
        wait_until(lambda: events == ["left"], 20)  # while the function still runs
    go_on.set()
    with pytest.raises(Disconnected):
        connection.result()
    if in_place(connection):
        assert events == ["returned", "left"]
    else:
        assert ended.wait(20)
        assert events == ["left", "returned", "abandoned"]


class Calls:
    """An event loop in a thread, with call threads. put(call) may come from any thread."""

    def __init__(self, most: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.threads = ExecutorThreads(self.loop, most)
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def put(self, function: Callable[[], Any], abandoned: Callable[[], None] | None = None) -> ExecutorCall:
        """Have a call made, and return it; its `value` comes."""
        call = ExecutorCall(function, (), lambda: None, abandoned)
        self.loop.call_soon_threadsafe(self.threads.put, call)
        return call

    def close(self) -> None:
        """Stop the loop, then the threads."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(20)
        self.threads.close()
        self.loop.close()


@pytest.fixture
def calls() -> Iterator[Calls]:
    made = Calls(3)
    yield made
    if not made.loop.is_closed():
        made.close()


def test_calls_that_come_at_once_and_block_get_threads(calls: Calls) -> None:
    """One thread is woken for all calls, and further threads only because the calls wait."""
    barrier = threading.Barrier(3)
    made = [ExecutorCall(barrier.wait, (20,), lambda: None) for _ in range(3)]

    def put_all() -> None:
        for call in made:
            calls.threads.put(call)

    calls.loop.call_soon_threadsafe(put_all)
    wait_until(lambda: all(call.value is not None for call in made), 20)


def test_the_calls_of_one_round_wake_one_thread_after_it() -> None:
    soon: list[Callable[[], None]] = []
    later: list[Callable[[], None]] = []
    loop: Any = SimpleNamespace(call_soon=soon.append, call_later=lambda _, function: later.append(function))
    threads = ExecutorThreads(loop, 2)
    lock = threading.Lock()
    lock.acquire()
    threads.count = 1
    threads.sleeping.append(lock)  # type: ignore[arg-type]
    for _ in range(3):
        threads.put(ExecutorCall(bytes, (), lambda: None))
    assert soon == [threads.wake_for_round] and lock.locked()
    soon.pop()()
    assert not lock.locked()
    assert later == [threads.wake_more]  # the first call may block
    threads.put(ExecutorCall(bytes, (), lambda: None))  # the thread is awake, and takes it
    assert not soon and len(threads.waiting) == 4


def test_a_thread_that_was_still_awake_has_taken_the_calls_of_the_round() -> None:
    soon: list[Callable[[], None]] = []
    threads = ExecutorThreads(SimpleNamespace(call_soon=soon.append), 2)  # type: ignore[arg-type]
    lock = threading.Lock()
    threads.count = 1
    threads.sleeping.append(lock)  # type: ignore[arg-type]
    threads.put(ExecutorCall(bytes, (), lambda: None))
    threads.sleeping.clear()
    threads.waiting.clear()
    soon.pop()()  # starts no second thread
    assert threads.count == 1 and not threads.wake_planned


def test_calls_that_block_get_threads_up_to_the_limit(calls: Calls) -> None:
    barrier = threading.Barrier(4)  # three calls and the test
    running: list[int] = []
    most: list[int] = []

    def block() -> None:
        running.append(1)
        most.append(len(running))
        barrier.wait(20)
        running.pop()

    made = [calls.put(block) for _ in range(9)]
    for _ in range(3):
        barrier.wait(20)
    calls.close()
    assert [call.error for call in made] == [None] * 9
    assert max(most) == 3 == calls.threads.count


def test_a_call_that_has_waited_is_not_kept_in_memory() -> None:
    planned: list[object] = []
    loop: Any = SimpleNamespace(call_later=lambda seconds, function: planned.append(function))
    threads = ExecutorThreads(loop, 2)
    threads.waiting.append(ExecutorCall(bytes, (), lambda: None))
    threads.count = 1  # one thread is awake, and makes another call; a second one may be started
    threads.wake_more()
    assert threads.first is threads.waiting[0] and len(planned) == 1
    threads.count = 2  # both are awake
    threads.wake_more()
    assert threads.first is None and len(planned) == 1


def test_short_calls_need_one_thread(calls: Calls) -> None:
    """A thread that is awake takes the next call, too; another one is woken only for calls that wait."""
    made = [calls.put(threading.get_ident)]
    wait_until(lambda: made[-1].value is not None, 20)
    for _ in range(50):
        wait_until(lambda: len(calls.threads.sleeping) == calls.threads.count, 20)
        made.append(calls.put(threading.get_ident))
        wait_until(lambda: made[-1].value is not None, 20)
    assert len({call.value for call in made}) == 1


def test_no_call_is_lost_between_threads_that_fall_asleep(calls: Calls) -> None:
    count = 20_000
    made: list[int] = []
    for number in range(count):
        calls.put(lambda number=number: made.append(number))  # type: ignore[misc]
    wait_until(lambda: len(made) == count, 40, lambda: f"{len(made)} calls of {count} were made")
    assert sorted(made) == list(range(count))


def test_a_dropped_call_that_has_not_begun_is_never_made(calls: Calls) -> None:
    go_on = threading.Event()
    events: list[str] = []
    blocking = [calls.put(lambda: go_on.wait(20)) for _ in range(3)]
    wait_until(lambda: len(calls.threads.waiting) == 0 and calls.threads.count == 3, 20)
    dropped = calls.put(lambda: events.append("made"), lambda: events.append("abandoned"))
    wait_until(lambda: len(calls.threads.waiting) == 1, 20)
    dropped.dropped = True
    go_on.set()
    wait_until(lambda: events == ["abandoned"], 20, lambda: f"{events}")
    wait_until(lambda: all(call.value for call in blocking), 20)


def test_a_stop_waits_for_calls_and_cleans_up_after_those_that_were_dropped(calls: Calls) -> None:
    begun, go_on = threading.Event(), threading.Event()
    events: list[str] = []

    def function() -> None:
        begun.set()
        assert go_on.wait(20)
        events.append("returned")

    call = calls.put(function, lambda: events.append("abandoned"))
    assert begun.wait(20)
    call.dropped = True
    threading.Timer(0.3, go_on.set).start()
    calls.close()
    assert events == ["returned", "abandoned"]


def test_a_client_and_a_wake_up_at_once_queue_the_conversation_once() -> None:
    """The main thread is told of the client while another thread resumes the conversation."""
    queue: SimpleQueue[PoolTask] = SimpleQueue()
    parking = Parking(queue)
    ours, client = socket.socketpair()
    main_thread = threading.Thread(target=lambda: parking.handle_ready(ours.fileno()))

    class Parked(dict[int, PoolTask]):
        def get(self, descriptor: int) -> PoolTask | None:  # type: ignore[override]
            found = super().get(descriptor)
            main_thread.start()
            main_thread.join(0.05)  # it is blocked, or it removes the task
            return found

    with ours, client:
        stream: Any = SimpleNamespace(socket=ours)
        conversation: Any = None
        task = PoolTask(stream, conversation)
        event = ParkedPoll(EPOLLONESHOT)
        listener: Any = InterruptedListener(lambda: None)
        parking.open(listener)
        parking.parked = Parked()
        assert parking.park(task, Wait(Want.PROGRAM, math.inf, event))
        event.set()
        main_thread.join()
        assert queue.get_nowait() is task and queue.empty() and not parking.parked
        listener.watched.close()


async def pause(want: Want, seconds: float) -> None:
    await Wait(want, seconds)


def event_either(ours: socket.socket, upstream: int) -> Coroutine[Any, Any, Any]:
    watcher = SimpleNamespace(waiting={upstream: None})
    stream: Any = SimpleNamespace(watcher=watcher, wait=pause)
    return EventPoller(stream).either(upstream, 5)


def pool_either(ours: socket.socket, upstream: int) -> Coroutine[Any, Any, Any]:
    stream = PoolStream(ours, ("192.0.2.1", 5000), ("192.0.2.2", 80), Config(), True)
    return stream.either(upstream, 5)


@pytest.mark.parametrize("either", [event_either, pool_either])
def test_a_deadline_before_an_event_that_is_due(
    either: Callable[[socket.socket, int], Coroutine[Any, Any, Any]],
) -> None:
    """A process that was held up calls its timers, and looks at the descriptors later."""
    ours, client = socket.socketpair()
    upstream, other_end = socket.socketpair()
    with ours, client, upstream, other_end:
        silent = either(ours, upstream.fileno())
        silent.send(None)
        with pytest.raises(Timeout):
            silent.throw(Timeout())
        late = either(ours, upstream.fileno())
        late.send(None)
        other_end.sendall(b"late")
        with pytest.raises(StopIteration) as ended:
            late.throw(Timeout())
        assert not ended.value.value  # the upstream, and not the client
