"""The gateway's side of the transports: for each kind of address, an object that Client uses like a socket.

transports.py explains the four transports.
"""

from __future__ import annotations

import os
import select
import socket
import time
from typing import Protocol

from ewe.database.transports import (
    CLOSES,
    HAS_DATA,
    MAX_MESSAGE_BYTES,
    NOTE_PIPE,
    OPENS,
    PAYLOAD,
    QUEUED_REPLIES,
    SECRET_BYTES,
    close_all,
    is_locked,
    new_id,
    open_queue,
    parse_transport,
    posix_ipc_module,
    receive_message,
    remove_file,
    remove_queue,
    send_message,
    wait_for,
    write_all,
)

RETRY_CONNECT_S = 0.01  # seconds between two attempts to connect to a daemon whose backlog is full
DAEMON_CHECK_S = 0.5  # seconds between two checks whether the daemon of a queue still runs


class DaemonConnection(Protocol):
    """A connection to the daemon: the part of a socket's interface that Client uses."""

    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...
    def settimeout(self, value: float, /) -> None: ...
    def close(self) -> None: ...


def connect_to_daemon(address: str, timeout_s: float) -> DaemonConnection:
    """Return a connection to an address of a daemon. Raises OSError, ValueError."""
    kind, host, port = parse_transport(address)
    if kind == "fifo":
        return PipeToDaemon(host, timeout_s)
    if kind == "mq":
        return QueueToDaemon(host, timeout_s)
    if kind == "tcp":
        sock = socket.create_connection((host, port), timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    if kind != "unix":
        raise ValueError(address)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(timeout_s)
        connect_unix(sock, host, timeout_s)
    except OSError:
        sock.close()
        raise
    return sock


def connect_unix(sock: socket.socket, path: str, timeout_s: float) -> None:
    """Connect a socket that has a timeout to the Unix socket at a path. Raises OSError.

    If the daemon's backlog is full, connect(2) does not wait for room, but fails at once. connect_unix() therefore
    tries again, for at most `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return sock.connect(path)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_CONNECT_S)


class PipeToDaemon:
    """Two named pipes: requests go through one, replies come through the other."""

    def __init__(self, directory: str, timeout_s: float) -> None:
        """Make two pipes in the daemon's directory, and announce them (transports.py). Raises OSError."""
        self.timeout_s = timeout_s
        self.reader = self.writer = reader_until_open = -1  # -1: not open yet
        note_pipe = os.open(os.path.join(directory, NOTE_PIPE), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        name = new_id()
        request_path = os.path.join(directory, f"{name}.request")
        reply_path = os.path.join(directory, f"{name}.reply")
        try:
            for path in (request_path, reply_path):
                os.mkfifo(path)
                os.chmod(path, 0o666)  # the daemon may have another account; only it learns the name
            # Without a reader, the pipe could not be opened for writing
            reader_until_open = os.open(request_path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self.writer = os.open(request_path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self.reader = os.open(reply_path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            write_all(lambda data: os.write(note_pipe, data), note_pipe, f"\n{name}\n".encode(), timeout_s)
            if self.recv(1) != b"\n":  # the daemon's sign that it has opened both
                raise ConnectionRefusedError(f"fifo:{directory}: the daemon does not take the connection")
        except BaseException:
            self.close()
            for path in (request_path, reply_path):
                remove_file(path)  # perhaps it was not made yet, or the daemon has removed it
            raise
        finally:
            close_all((note_pipe, reader_until_open))

    def settimeout(self, value: float, /) -> None:
        self.timeout_s = value

    def sendall(self, data: bytes, /) -> None:
        write_all(lambda piece: os.write(self.writer, piece), self.writer, data, self.timeout_s)

    def recv(self, size: int, /) -> bytes:
        wait_for(self.reader, select.POLLIN, self.timeout_s)
        return os.read(self.reader, size)

    def close(self) -> None:
        """Close both pipes; a second call does no harm."""
        close_all((self.reader, self.writer))
        self.reader = self.writer = -1


class QueueToDaemon:
    """The daemon's queue for requests, and a queue of this gateway for replies.

    The name of the queue for replies is removed as soon as the daemon has opened it. secret: begins each reply,
    which proves that the daemon has written it. token: begins each message to the daemon, and identifies this
    gateway; b"" until the daemon has sent it.
    """

    is_closed = False

    def __init__(self, name: str, timeout_s: float) -> None:
        """Open the daemon's queue, make one for replies, and exchange secret and token. Raises OSError.

        name: of the daemon's queue. timeout_s: of each wait.
        """
        self.timeout_s = timeout_s
        self.secret = os.urandom(SECRET_BYTES)
        self.unread = b""  # received, and not returned by recv() yet
        self.token = b""
        self.request_queue = open_queue(name, read=False)
        if not is_locked(self.request_queue.mqd):
            self.request_queue.close()
            raise ConnectionRefusedError(f"mq:{name.removeprefix('/')}: no daemon reads it")
        queue_id = new_id()
        try:
            self.reply_queue = open_queue(
                f"{name}.{queue_id}",
                flags=posix_ipc_module().O_CREX,
                max_messages=QUEUED_REPLIES,
                max_message_size=MAX_MESSAGE_BYTES,
            )
        except OSError as reason:
            self.request_queue.close()
            raise OSError(f"{reason} (ulimit -q bounds the queues of an account)") from None
        try:
            self.send_message_to_daemon(OPENS + queue_id.encode() + self.secret + b"%d" % os.getpid())
            self.token = self.recv(SECRET_BYTES)  # the daemon's first message
        except BaseException:
            self.close()
            raise
        finally:
            remove_queue(f"{name}.{queue_id}")

    def send_message_to_daemon(self, message: bytes) -> None:
        """Send a message to the daemon. Raises OSError."""
        while True:
            try:
                send_message(self.request_queue.mqd, message)
                return
            except BlockingIOError:
                wait_for(self.request_queue.mqd, select.POLLOUT, self.timeout_s)

    def settimeout(self, value: float, /) -> None:
        self.timeout_s = value

    def sendall(self, data: bytes, /) -> None:
        for position in range(0, len(data), PAYLOAD):
            self.send_message_to_daemon(HAS_DATA + self.token + data[position : position + PAYLOAD])

    def recv(self, size: int, /) -> bytes:
        """Return at most `size` bytes, b"" at the end. Raises TimeoutError after `timeout_s`, OSError."""
        deadline = time.monotonic() + self.timeout_s
        while not self.unread:
            try:
                message = receive_message(self.reply_queue)
            except BlockingIOError:
                self.wait_for_message(deadline)
                continue
            if message[:SECRET_BYTES] == self.secret:
                self.unread = message[SECRET_BYTES:]
                if not self.unread:
                    return b""  # a message without data: the daemon has closed the connection
            elif time.monotonic() > deadline:
                # An account that writes here without end must not prolong the wait
                raise TimeoutError(f"no answer within {self.timeout_s:g} s")
        data, self.unread = self.unread[:size], self.unread[size:]
        return data

    def wait_for_message(self, deadline: float) -> None:
        """Wait for a message, at most DAEMON_CHECK_S. The caller tries again until `deadline` (time.monotonic()).

        Raises TimeoutError after `deadline`; ConnectionError if the daemon has ended.
        """
        try:
            wait_for(
                self.reply_queue.mqd,
                select.POLLIN,
                min(DAEMON_CHECK_S, max(deadline - time.monotonic(), 0.0)),
            )
        except TimeoutError:
            if not is_locked(self.request_queue.mqd):
                raise ConnectionResetError("the daemon has ended") from None
            if time.monotonic() > deadline:
                raise

    def close(self) -> None:
        """Tell the daemon, if it has given a token, and close both queues; a second call does no harm."""
        if self.is_closed:
            return
        self.is_closed = True
        if self.token:
            try:
                send_message(self.request_queue.mqd, CLOSES + self.token)
            except OSError:
                pass  # the daemon's queue is full; the daemon notices the end of this process
        self.request_queue.close()
        self.reply_queue.close()
