"""The gateway's side of the transports: what Client uses like a socket, for each address. See transports.py."""

from __future__ import annotations

import os
import select
import socket
import time
from typing import Protocol

from ewe.database.transports import (
    DOOR,
    MESSAGE,
    PAYLOAD,
    REPLIES,
    SECRET,
    is_locked,
    new_id,
    open_queue,
    parse_transport,
    queues,
    receive_message,
    send_message,
    wait_for,
    write_all,
)

CROWDED = 0.01  # seconds between two attempts to connect to a demon whose backlog is full
LOOK = 0.5  # seconds between two looks whether the demon of a queue still runs


class End(Protocol):
    """A line to the demon: the part of a socket that Client uses."""

    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...
    def settimeout(self, value: float, /) -> None: ...
    def close(self) -> None: ...


def connected(address: str, timeout_s: float) -> End:
    """Return a line to an address of a demon. Raises OSError, ValueError."""
    kind, host, port = parse_transport(address)
    if kind == "fifo":
        return PipeEnd(host, timeout_s)
    if kind == "mq":
        return QueueEnd(host, timeout_s)
    if kind == "tcp":
        sock = socket.create_connection((host, port), timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    if kind != "unix":
        raise ValueError(address)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(timeout_s)
        connect(sock, host, timeout_s)
    except OSError:
        sock.close()
        raise
    return sock


def connect(sock: socket.socket, path: str, timeout_s: float) -> None:
    """Connect to a Unix socket. If its backlog is full, connect(2) fails at once: try again. Raises OSError."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            return sock.connect(path)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(CROWDED)


class PipeEnd:
    """Two named pipes."""

    def __init__(self, directory: str, timeout_s: float) -> None:
        """Raises OSError."""
        self.timeout_s = timeout_s
        self.reader = self.writer = held = -1
        door = os.open(os.path.join(directory, DOOR), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        name = new_id()
        paths = [os.path.join(directory, f"{name}.{part}") for part in ("request", "reply")]
        try:
            for path in paths:
                os.mkfifo(path)
                os.chmod(path, 0o666)  # the demon may have another account; only it learns the name
            held = os.open(
                paths[0], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            )  # or nothing could be written yet
            self.writer = os.open(paths[0], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self.reader = os.open(paths[1], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            write_all(lambda data: os.write(door, data), door, f"{name}\n".encode(), timeout_s)
            if self.recv(1) != b"\n":
                raise ConnectionRefusedError(f"fifo:{directory}: the demon does not take the connection")
        except BaseException:
            self.close()
            for path in paths:
                try:
                    os.unlink(path)
                except OSError:
                    pass  # it was not made yet, or the demon has removed it
            raise
        finally:
            os.close(door)
            if held >= 0:
                os.close(held)

    def settimeout(self, value: float, /) -> None:
        self.timeout_s = value

    def sendall(self, data: bytes, /) -> None:
        write_all(lambda piece: os.write(self.writer, piece), self.writer, data, self.timeout_s)

    def recv(self, size: int, /) -> bytes:
        wait_for(self.reader, select.POLLIN, self.timeout_s)
        return os.read(self.reader, size)

    def close(self) -> None:
        for descriptor in (self.reader, self.writer):
            if descriptor >= 0:
                os.close(descriptor)
        self.reader = self.writer = -1


class QueueEnd:
    """The demon's queue, and one for replies, whose name is removed as soon as the demon has opened it."""

    def __init__(self, name: str, timeout_s: float) -> None:
        """Raises OSError."""
        self.timeout_s = timeout_s
        self.secret = os.urandom(SECRET)
        self.rest = b""
        self.token = b""
        self.demon = open_queue(name, read=False)
        if not is_locked(self.demon.mqd):
            self.demon.close()
            raise ConnectionRefusedError(f"mq:{name[1:]}: no demon reads it")
        own, module = new_id(), queues()
        try:
            self.replies = open_queue(
                f"{name}.{own}", flags=module.O_CREX, max_messages=REPLIES, max_message_size=MESSAGE
            )
        except OSError as reason:
            self.demon.close()
            raise OSError(f"{reason} (ulimit -q bounds the queues of an account)") from None
        try:
            self.put(b"O" + own.encode() + self.secret + b"%d" % os.getpid())
            self.token = self.recv(SECRET)
        except BaseException:
            self.close()
            raise
        finally:
            module.unlink_message_queue(f"{name}.{own}")

    def put(self, message: bytes) -> None:
        """Send a message to the demon. Raises OSError."""
        while True:
            try:
                send_message(self.demon.mqd, message)
                return
            except BlockingIOError:
                wait_for(self.demon.mqd, select.POLLOUT, self.timeout_s)

    def settimeout(self, value: float, /) -> None:
        self.timeout_s = value

    def sendall(self, data: bytes, /) -> None:
        for at in range(0, len(data), PAYLOAD):
            self.put(b"D" + self.token + data[at : at + PAYLOAD])

    def recv(self, size: int, /) -> bytes:
        end = time.monotonic() + self.timeout_s
        while not self.rest:
            try:
                message = receive_message(self.replies)
            except BlockingIOError:
                self.wait(end)
                continue
            if message[:SECRET] == self.secret:  # any account may write to the queue
                self.rest = message[SECRET:]
                if not self.rest:
                    return b""
        data, self.rest = self.rest[:size], self.rest[size:]
        return data

    def wait(self, end: float) -> None:
        """Wait for a message. Raises TimeoutError, ConnectionError if the demon has ended."""
        try:
            wait_for(self.replies.mqd, select.POLLIN, min(LOOK, max(end - time.monotonic(), 0.0)))
        except TimeoutError:
            if not is_locked(self.demon.mqd):
                raise ConnectionResetError("the demon has ended") from None
            if time.monotonic() > end:
                raise

    def close(self) -> None:
        if self.token:
            try:
                send_message(self.demon.mqd, b"C" + self.token)
            except OSError:
                pass  # its queue is full; the demon sees when this process ends
        self.demon.close()
        self.replies.close()
