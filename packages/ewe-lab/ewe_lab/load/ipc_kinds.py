"""The kinds of IPC between two processes: `python -m ewe_lab.load.ipc_kinds COUNT ROUNDS` prints JSON.

A client process and a server process exchange messages. The client sends a request of 64 bytes, which says how many
messages of which size it wants back:

    exchange    64 bytes there, 64 bytes back             the price of a call
    answer      64 bytes there, 5,605 bytes back          the paper's page
    stream      64 bytes there, many times 5,605 back     throughput

Five kinds carry them: a pair of pipes, a pair of Unix sockets, a TCP connection over loopback, two message queues
of POSIX and two of System V. A pipe and a socket carry bytes, so the reader counts them; a queue carries messages.
The functions of the queues are the C library's. They are called by ctypes, which adds a microsecond or two.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from ewe_lab.bench.processes import own_cpu_seconds, read_process

REQUEST_BYTES = 64
ANSWER_BYTES = 5605  # the page of the RDBMS paper
MAX_QUEUED_MESSAGES = 8  # messages of a POSIX queue, below Linux's default limit of 10
MAX_MESSAGE_BYTES = 8192  # bytes of a message, Linux's default limit for both kinds of queues
EXCHANGES_PER_STREAM = 8  # exchanges of which a stream has the messages
IPC_PRIVATE, IPC_RMID = 0, 0  # of sys/ipc.h: a new queue without a key; remove a queue
EXCHANGE, ANSWER, STREAM = "exchange", "answer", "stream"
REQUEST_FORMAT = struct.Struct(f"<II{REQUEST_BYTES - 8}x")  # bytes of a message, messages
Send = Callable[[bytes], object]


@dataclass(frozen=True)
class ChannelEnd:
    """One end of a channel between two processes. receive(size): take a message of `size` bytes."""

    send: Send
    receive: Callable[[int], bytes]


class ChannelEnds(NamedTuple):
    """Both ends of a channel: the client's, which sends requests, and the server's, which answers them."""

    client: ChannelEnd
    server: ChannelEnd


class CallTotals(NamedTuple):
    """The seconds of all calls of a measurement, and the CPU seconds of client and server together."""

    seconds: float
    cpu_s: float


def stream_end(read: Callable[[int], bytes], write: Callable[[bytes], object]) -> ChannelEnd:
    """Return the end of a byte stream. Its receive() calls `read` until a message is complete."""

    def receive(size: int) -> bytes:
        """Return `size` bytes. Raises EOFError if the other end has closed."""
        found = read(size)
        while len(found) < size:
            more = read(size - len(found))
            if not more:
                raise EOFError
            found += more
        return found

    return ChannelEnd(write, receive)


def writer(descriptor: int) -> Callable[[bytes], None]:
    """Return a function that writes all bytes to a pipe."""

    def write(data: bytes) -> None:
        while (written := os.write(descriptor, data)) < len(data):
            data = data[written:]

    return write


@contextmanager
def pipes() -> Iterator[ChannelEnds]:
    """Yield the ends of two pipes, one for each direction."""
    (there, to_server), (back, to_client) = os.pipe(), os.pipe()
    try:
        yield ChannelEnds(
            client=stream_end(lambda size: os.read(back, size), writer(to_server)),
            server=stream_end(lambda size: os.read(there, size), writer(to_client)),
        )
    finally:
        for descriptor in (there, to_server, back, to_client):
            os.close(descriptor)


@contextmanager
def unix_sockets() -> Iterator[ChannelEnds]:
    """Yield the ends of a pair of connected Unix sockets."""
    client, server = socket.socketpair()
    with client, server:
        yield ChannelEnds(stream_end(client.recv, client.sendall), stream_end(server.recv, server.sendall))


@contextmanager
def tcp() -> Iterator[ChannelEnds]:
    """Yield the ends of a TCP connection over loopback, without Nagle's delay."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    with client, server:
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield ChannelEnds(stream_end(client.recv, client.sendall), stream_end(server.recv, server.sendall))


def checked_result(result: int) -> int:
    """Return the result of a function of the C library. Raises OSError for a negative one."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class QueueAttributes(ctypes.Structure):
    """struct mq_attr of mq_open(3)."""

    _fields_ = [
        ("mq_flags", ctypes.c_long),
        ("mq_maxmsg", ctypes.c_long),  # messages in the queue, at most
        ("mq_msgsize", ctypes.c_long),  # bytes of a message, at most
        ("mq_curmsgs", ctypes.c_long),
        ("reserved", ctypes.c_long * 4),
    ]


@contextmanager
def posix_queues() -> Iterator[ChannelEnds]:
    """Yield the ends of two message queues of POSIX. Raises OSError.

    Each name is removed at once: the kernel removes the queue when both processes have ended. A name would stay
    until the machine is started again, also the first one if the second queue is refused (RLIMIT_MSGQUEUE).
    """
    library = ctypes.CDLL("librt.so.1", use_errno=True)
    attributes = ctypes.byref(QueueAttributes(0, MAX_QUEUED_MESSAGES, MAX_MESSAGE_BYTES))
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    queues: list[int] = []

    def channel_end(sending: int, receiving: int) -> ChannelEnd:
        """Return the end that sends to one queue and receives from the other."""
        buffer = ctypes.create_string_buffer(MAX_MESSAGE_BYTES)

        def receive(size: int) -> bytes:
            """Return the next message of the queue. size: not used, since a queue knows where a message ends."""
            length = checked_result(library.mq_receive(receiving, buffer, MAX_MESSAGE_BYTES, None))
            return buffer.raw[:length]

        return ChannelEnd(lambda data: checked_result(library.mq_send(sending, data, len(data), 0)), receive)

    try:
        for number in range(2):
            name = f"/ewe-lab-{os.getpid()}-{number}".encode()
            queues.append(checked_result(library.mq_open(name, flags, 0o600, attributes)))
            library.mq_unlink(name)
        there, back = queues
        yield ChannelEnds(channel_end(there, back), channel_end(back, there))
    finally:
        for queue in queues:
            library.mq_close(queue)


@contextmanager
def system_v_queues() -> Iterator[ChannelEnds]:
    """Yield the ends of two message queues of System V. Raises OSError.

    The kernel keeps such queues until they are removed, which happens at the end of the block.
    """
    library = ctypes.CDLL(None, use_errno=True)
    queues: list[int] = []
    message_type = struct.pack("l", 1)  # mtype of struct msgbuf: it stands before the bytes of each message

    def channel_end(sending: int, receiving: int) -> ChannelEnd:
        """Return the end that sends to one queue and receives from the other."""
        # struct msgbuf of msgop(2)
        buffer = ctypes.create_string_buffer(len(message_type) + MAX_MESSAGE_BYTES)

        def receive(size: int) -> bytes:
            """Return the next message of the queue. size: not used, since a queue knows where a message ends."""
            length = checked_result(
                library.msgrcv(receiving, buffer, ctypes.c_size_t(MAX_MESSAGE_BYTES), ctypes.c_long(0), 0)
            )
            return buffer.raw[len(message_type) : len(message_type) + length]

        def send(data: bytes) -> None:
            checked_result(library.msgsnd(sending, message_type + data, ctypes.c_size_t(len(data)), 0))

        return ChannelEnd(send, receive)

    try:
        for _ in range(2):
            queues.append(checked_result(library.msgget(IPC_PRIVATE, 0o600)))
        there, back = queues
        yield ChannelEnds(channel_end(there, back), channel_end(back, there))
    finally:
        for queue in queues:
            library.msgctl(queue, IPC_RMID, None)


KINDS = {
    "Unix socket": unix_sockets,
    "pipe": pipes,
    "POSIX queue": posix_queues,
    "System V queue": system_v_queues,
    "TCP loopback": tcp,
}


def serve(end: ChannelEnd) -> None:
    """Answer requests until this process is killed."""
    while True:
        size, count = REQUEST_FORMAT.unpack(end.receive(REQUEST_BYTES))
        message = bytes(size)
        for _ in range(count):
            end.send(message)


def measure_kind(kind: str, count: int, rounds: int) -> dict[str, list[float]]:
    """Measure a kind of IPC between this process and a child; return as measure_calls(). Raises OSError.

    kind: a key of KINDS. count: the exchanges and the answers of a round.
    """
    with KINDS[kind]() as (client, server):
        child = os.fork()
        if not child:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                serve(server)
            finally:
                os._exit(0)
        try:
            return measure_calls(client, child, count, rounds)
        finally:
            os.kill(child, signal.SIGKILL)  # it may be in the middle of a stream that nobody reads any more
            os.waitpid(child, 0)


def measure_calls(client: ChannelEnd, child: int, count: int, rounds: int) -> dict[str, list[float]]:
    """Return the µs of a message in each round: by EXCHANGE, ANSWER and STREAM, and of CPU time as `... cpu`.

    client: the end of this process. child: the process at the other end.
    """
    found: dict[str, list[float]] = {}
    for round_number in range(rounds + 1):
        for name, size, answers, calls in (
            (EXCHANGE, REQUEST_BYTES, 1, count),
            (ANSWER, ANSWER_BYTES, 1, count),
            (STREAM, ANSWER_BYTES, count * EXCHANGES_PER_STREAM, 1),
        ):
            total = time_calls(client, child, size=size, answers=answers, calls=calls)
            if round_number > 0:  # the first round warms up
                found.setdefault(name, []).append(total.seconds / (answers * calls) * 1e6)
                found.setdefault(f"{name} cpu", []).append(total.cpu_s / (answers * calls) * 1e6)
    return found


def time_calls(client: ChannelEnd, child: int, *, size: int, answers: int, calls: int) -> CallTotals:
    """Make some calls; return their times.

    child: the server's process. size: of an answer, in bytes. answers: the messages that each call brings back.
    """
    request = REQUEST_FORMAT.pack(size, answers)
    began, cpu_before = time.perf_counter(), cpu_of_both(child)
    for _ in range(calls):
        client.send(request)
        for _ in range(answers):
            client.receive(size)
    return CallTotals(time.perf_counter() - began, cpu_of_both(child) - cpu_before)


def cpu_of_both(child: int) -> float:
    """Return the CPU seconds of this process and of the other one."""
    other = read_process(child)
    return time.process_time() + (own_cpu_seconds(other) if other else 0.0)


def main() -> None:
    """Measure all kinds. A kind that the system refuses has a text in place of figures.

    TERM ends all blocks as an exception does: the kernel would keep the queues of System V.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    count, rounds = map(int, sys.argv[1:3])
    found: dict[str, object] = {}
    for kind in KINDS:
        try:
            found[kind] = measure_kind(kind, count, rounds)
        except OSError as reason:
            found[kind] = f"{kind}: {reason.strerror}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
