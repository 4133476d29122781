"""The daemon's side of the transports: connections to gateways, and the acceptors that make them.

transports.py explains the four transports. Two processes use a connection. The regulating process reads requests
and sends short answers, without waiting. A worker in a statement process sends the result, and waits while the
gateway reads slowly. pack() and unpack_connection() give the connection to the statement process: a Unix socket
carries the descriptors (SCM_RIGHTS, unix(7)).
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import re
import select
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from ewe.database.protocol import FRAGMENT_BYTES, MAX_FRAME_BYTES
from ewe.database.transports import (
    CLOSES,
    HAS_DATA,
    ID_CHARS,
    MAX_MESSAGE_BYTES,
    NOTE_PIPE,
    OPENS,
    PAYLOAD,
    QUEUED_REQUESTS,
    SECRET_BYTES,
    close_all,
    lock,
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
from ewe.streams.listener import StartError, close_sockets, open_sockets

BACKLOG = 1024  # connections that the kernel queues until they are accepted
RECEIVE_BYTES = 64 * 1024  # bytes that one call reads at most
# Notes that PipeAcceptor reads at once. Each may open two descriptors. At the limit of descriptors the daemon drops
# other connections for them, but closes these only after all events that epoll has reported together. The new
# descriptors must therefore fit into RESERVED_DESCRIPTORS (gateways.py)
MAX_NOTES = 16
# Bytes kept free for the lengths, the letters and ContinueFlow of a response's frame
FRAME_OVERHEAD_BYTES = 32
CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
# A note of PipeAcceptor: an ID. A message "O" of QueueAcceptor: see transports.py
NOTE_PATTERN = re.compile(rb"[0-9a-f]{32}")
# Nine digits are more than the largest pid of Linux has. Python raises OverflowError for a pid above 31 bits
OPENING_MESSAGE = re.compile(rb"O([0-9a-f]{32})(.{%d})([0-9]{1,9})" % SECRET_BYTES, re.DOTALL)
# open() of a name that another account has made must not wait for a peer, and must not follow a symbolic link
OPEN_FLAGS = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
# The mode of a directory for pipes: every account may make a file, none may list the files
DIRECTORY_MODE = 0o1733


class GatewayConnection:
    """A gateway's connection. uid: of its process; None if nothing proves it. peer_name: for the log.

    idle_events: the events that epoll reports while the daemon waits for a request. busy_events: those that it
    reports while a request waits or runs; only the gateway's disconnection matters then. fragment_bytes: the most
    bytes of a result in one frame. descriptor_count: the descriptors that the connection needs in the regulating
    process.
    """

    uid: int | None = None
    peer_name = "TCP"
    idle_events = select.EPOLLIN | select.EPOLLRDHUP
    busy_events = select.EPOLLRDHUP | select.EPOLLONESHOT
    fragment_bytes = FRAGMENT_BYTES
    descriptor_count = 1

    def fileno(self) -> int:
        """Return the descriptor that epoll watches."""
        raise NotImplementedError

    def receive(self) -> bytes:
        """Return the bytes that have arrived, b"" at the end. Raises BlockingIOError, OSError."""
        raise NotImplementedError

    def has_received(self) -> bool:
        """Return whether receive() has bytes that epoll does not report."""
        return False

    def received_bytes(self) -> int:
        """Return the number of bytes in this process's memory that receive() will return."""
        return 0

    def shows_end(self, events: int) -> bool:
        """Return whether events of epoll show that the gateway has left."""
        return bool(events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR))

    def must_be_dropped(self) -> bool:
        """Return whether to drop the gateway although its request is not answered: it has sent too many bytes."""
        return False

    def write(self, data: memoryview) -> int:
        """Send the bytes for which there is room; return their number. Raises BlockingIOError, OSError."""
        raise NotImplementedError

    def write_descriptor(self) -> int:
        """Return the descriptor that poll(2) watches until write() has room. It may differ from fileno()."""
        raise NotImplementedError

    def pack(self) -> tuple[list[int], tuple[Any, ...]]:
        """Return the descriptors and arguments for unpack_connection(), which makes the connection elsewhere."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection."""
        raise NotImplementedError

    def send(self, data: bytes, timeout_s: float, deadline: float) -> None:
        """Send all bytes. Raises OSError if the gateway has left, or has read nothing for `timeout_s`.

        Also raises OSError if it would have to wait after `deadline` (time.monotonic()).
        """
        write_all(self.write, self.write_descriptor(), data, timeout_s, deadline)

    def send_now(self, data: bytes) -> bool:
        """Send without waiting; return whether all bytes were sent."""
        view = memoryview(data)
        try:
            while view:
                view = view[self.write(view) :]
        except OSError:
            return False
        return True


class SocketConnection(GatewayConnection):
    """A socket that does not block."""

    def __init__(self, sock: socket.socket, uid: int | None, peer_name: str) -> None:
        self.socket = sock
        self.uid = uid
        self.peer_name = peer_name

    def fileno(self) -> int:
        return self.socket.fileno()

    write_descriptor = fileno

    def receive(self) -> bytes:
        return self.socket.recv(RECEIVE_BYTES)

    def write(self, data: memoryview) -> int:
        return self.socket.send(data)

    def pack(self) -> tuple[list[int], tuple[Any, ...]]:
        return [self.socket.fileno()], ("socket", int(self.socket.family), self.uid, self.peer_name)

    def close(self) -> None:
        self.socket.close()


class PipeConnection(GatewayConnection):
    """Two named pipes: requests come through one, replies go through the other."""

    descriptor_count = 2

    def __init__(self, reader: int, writer: int, uid: int) -> None:
        """reader, writer: descriptors; reader is -1 in a process that only replies."""
        self.reader = reader
        self.writer = writer
        self.uid = uid
        self.peer_name = account_name(uid)

    def fileno(self) -> int:
        return self.reader

    def write_descriptor(self) -> int:
        return self.writer

    def receive(self) -> bytes:
        return os.read(self.reader, RECEIVE_BYTES)

    def write(self, data: memoryview) -> int:
        return os.write(self.writer, data)

    def pack(self) -> tuple[list[int], tuple[Any, ...]]:
        return [self.writer], ("pipe", self.uid)

    def close(self) -> None:
        close_all((self.reader, self.writer))


class QueueConnection(GatewayConnection):
    """A queue for replies. Requests come through the daemon's queue; its acceptor puts them into `inbox`.

    pidfd: a descriptor of the gateway's process (pidfd_open(2)), which epoll reports when the process has ended; -1
    in a process that only replies. secret: begins each message to the gateway. token: begins each message of the
    gateway; b"" in a process that only replies.
    """

    busy_events = select.EPOLLIN | select.EPOLLONESHOT
    fragment_bytes = PAYLOAD - FRAME_OVERHEAD_BYTES  # a frame in one message, as in the paper
    descriptor_count = 2

    def __init__(self, pidfd: int, queue: int, uid: int, secret: bytes, token: bytes = b"") -> None:
        """queue: the descriptor of the queue for replies. pidfd, secret, token: see the class."""
        self.pidfd = pidfd
        self.queue = queue
        self.uid = uid
        self.secret = secret
        self.token = token
        self.peer_name = account_name(uid)
        self.inbox = bytearray()
        self.is_closed = False  # the gateway, or close(), has ended the connection

    def fileno(self) -> int:
        return self.pidfd

    def write_descriptor(self) -> int:
        return self.queue

    def receive(self) -> bytes:
        """Return the bytes in `inbox`, b"" at the end. Raises BlockingIOError if there are none."""
        data = bytes(self.inbox)
        self.inbox.clear()
        if data or self.is_closed:
            return data
        try:
            wait_for(self.pidfd, select.POLLIN, 0)  # a pidfd can be read once the process has ended
        except TimeoutError:
            raise BlockingIOError from None
        return data

    def has_received(self) -> bool:
        return bool(self.inbox) or self.is_closed

    def received_bytes(self) -> int:
        return len(self.inbox)

    def shows_end(self, events: int) -> bool:
        return True  # the process has ended

    def must_be_dropped(self) -> bool:
        """Return whether to drop the gateway: it has closed the connection, or sends without reading answers."""
        return self.is_closed or len(self.inbox) > 2 * MAX_FRAME_BYTES

    def write(self, data: memoryview) -> int:
        piece = data[:PAYLOAD]
        send_message(self.queue, self.secret + piece)
        return len(piece)

    def send_end(self) -> None:
        """Tell the gateway that the connection ends: send a message without data."""
        try:
            send_message(self.queue, self.secret)
        except OSError:
            pass  # the gateway's queue is full, or it has left

    def pack(self) -> tuple[list[int], tuple[Any, ...]]:
        return [self.queue], ("queue", self.uid, self.secret)

    def close(self) -> None:
        """Tell the gateway that the connection ends, in the process that accepted it; close the descriptors."""
        if self.pidfd >= 0 and not self.is_closed:
            self.send_end()
        self.is_closed = True
        close_all((self.pidfd, self.queue))
        self.pidfd = -1


def unpack_connection(descriptors: Sequence[int], arguments: tuple[Any, ...]) -> GatewayConnection:
    """Return a connection that only sends, in another process than the one that accepted it.

    descriptors, arguments: those of pack(). The arguments begin with the kind of the connection.
    """
    match arguments:
        case ("socket", family, uid, peer_name):
            sock = socket.socket(family, socket.SOCK_STREAM, proto=0, fileno=descriptors[0])
            sock.settimeout(0)  # as the other process has set it
            return SocketConnection(sock, uid, peer_name)
        case ("pipe", uid):
            return PipeConnection(reader=-1, writer=descriptors[0], uid=uid)
        case ("queue", uid, secret):
            return QueueConnection(pidfd=-1, queue=descriptors[0], uid=uid, secret=secret)
    raise ValueError(arguments)


# ---------------------------------------------------------------------------------------------------------
# Acceptors


class Acceptor:
    """An address of the daemon, at which connections begin."""

    def fileno(self) -> int:
        """Return the descriptor that epoll watches."""
        raise NotImplementedError

    def ready_connections(self) -> Iterator[GatewayConnection]:
        """Yield new connections, and connections for which the acceptor has received bytes. Raises OSError."""
        raise NotImplementedError

    def forget(self, connection: GatewayConnection) -> None:
        """Note that a connection is closed."""

    def close(self) -> None:
        """Close the acceptor, and remove its name."""
        raise NotImplementedError


class SocketAcceptor(Acceptor):
    """A listening socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock

    def fileno(self) -> int:
        return self.socket.fileno()

    def ready_connections(self) -> Iterator[GatewayConnection]:
        """Yield the next connection of the backlog. The kernel tells the account at a Unix socket."""
        try:
            sock, _ = self.socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            yield SocketConnection(sock, None, "TCP")
            return
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        pid, uid, _ = CREDENTIALS.unpack(credentials)
        yield SocketConnection(sock, uid, f"{account_name(uid)} (pid {pid})")

    def close(self) -> None:
        """Close the socket; remove its name unless the parent process has opened the socket."""
        close_sockets([self.socket])


class PipeAcceptor(Acceptor):
    """A directory in which gateways make pipes, and the pipe that receives their notes."""

    def __init__(self, path: str) -> None:
        """Make the directory `path` and the pipe for notes in it. Raises StartError."""
        self.directory = path
        self.note_pipe = os.path.join(path, NOTE_PIPE)
        self.notes = b""  # the beginning of an incomplete note
        try:
            self.make_directory()
            os.mkfifo(self.note_pipe)
            os.chmod(self.note_pipe, 0o622)
            # Open it for writing, too: otherwise it would be at its end while no gateway has it open
            self.reader = os.open(self.note_pipe, os.O_RDWR | OPEN_FLAGS)
            os.chmod(self.directory, DIRECTORY_MODE)
        except OSError as reason:
            raise StartError(f"fifo:{path}: {reason.strerror}") from None

    def make_directory(self) -> None:
        """Make the directory, or take over that of a daemon that was killed. Raises OSError, StartError."""
        try:
            os.mkdir(self.directory)
        except FileExistsError:
            if not self.is_daemon_directory():
                fault = "is there and is not a daemon's"
            elif self.is_in_use():
                fault = "is in use by another daemon"
            else:
                return self.remove_names()
            raise StartError(f"fifo:{self.directory} {fault}; choose another path") from None

    def is_daemon_directory(self) -> bool:
        """Return whether the directory is one that a daemon of this account has made.

        Usually its mode shows that. Its names do not, since every account may make a file there. A daemon that was
        killed before it had set the mode leaves only names of pipes, or none.
        """
        status = os.lstat(self.directory)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return False
        return stat.S_IMODE(status.st_mode) == DIRECTORY_MODE or all(
            is_pipe_name(name) for name in os.listdir(self.directory)
        )

    def is_in_use(self) -> bool:
        """Return whether a daemon reads the pipe for notes. Another account may have made a pipe of this name."""
        try:
            writer = os.open(self.note_pipe, os.O_WRONLY | OPEN_FLAGS)
        except OSError:
            return False
        is_own = os.fstat(writer).st_uid == os.geteuid()
        os.close(writer)
        return is_own

    def remove_names(self) -> None:
        """Remove all files in the directory. Raises OSError."""
        for name in os.listdir(self.directory):
            remove_file(os.path.join(self.directory, name))

    def fileno(self) -> int:
        return self.reader

    def ready_connections(self) -> Iterator[GatewayConnection]:
        """Yield a connection for each complete note: the ID of a gateway's two pipes, and a line feed.

        Read about MAX_NOTES notes. If the pipe has more, epoll reports it again.
        """
        try:
            data = os.read(self.reader, MAX_NOTES * (ID_CHARS + len("\n")))
        except BlockingIOError:
            return
        *notes, incomplete_note = (self.notes + data).split(b"\n")
        # An incomplete note longer than an ID is malformed. Keep only "-" of it, so that the notes have a bounded
        # size and its remaining bytes cannot look like an ID
        self.notes = incomplete_note if len(incomplete_note) <= ID_CHARS else b"-"
        for note in notes:
            connection = self.open_connection(note.decode()) if NOTE_PATTERN.fullmatch(note) else None
            if connection is not None:
                yield connection

    def open_connection(self, name: str) -> PipeConnection | None:
        """Return the connection of a gateway that has made two pipes; None if it has left, or they are unfit.

        name: the ID of the pipes. Raises OSError if this process has no descriptor left.
        """
        paths = [os.path.join(self.directory, f"{name}.{part}") for part in ("request", "reply")]
        descriptors: list[int] = []
        connection: PipeConnection | None = None
        try:
            for path, mode in zip(paths, (os.O_RDONLY, os.O_WRONLY), strict=True):
                descriptors.append(os.open(path, mode | OPEN_FLAGS))
            statuses = [os.fstat(descriptor) for descriptor in descriptors]
            # A second hard link would be another name of the pipe, which would stay when this name is removed
            is_fit = all(stat.S_ISFIFO(status.st_mode) and status.st_nlink == 1 for status in statuses)
            reader, writer = descriptors
            owner, owner_of_reply_pipe = (status.st_uid for status in statuses)
            if is_fit and owner == owner_of_reply_pipe:
                os.write(writer, b"\n")  # tells the gateway that the connection is open
                connection = PipeConnection(reader, writer, owner)
        except OSError as reason:
            if reason.errno in (errno.EMFILE, errno.ENFILE):
                raise  # no descriptor is left: the daemon's fault, not the gateway's
        finally:
            for path in paths:
                remove_file(path)
            if connection is None:
                close_all(descriptors)
        return connection

    def close(self) -> None:
        """Close the pipe for notes, and remove the directory with all pipes in it."""
        os.close(self.reader)
        try:
            self.remove_names()
            os.rmdir(self.directory)
        except OSError:
            pass  # an account has just made a file, or permission is missing; the next daemon takes it over


def is_pipe_name(name: str) -> bool:
    """Return whether a file of this name can be a pipe of this transport."""
    return name == NOTE_PIPE or re.fullmatch(r"[0-9a-f]{32}\.(request|reply)", name) is not None


class QueueAcceptor(Acceptor):
    """The queue to which all gateways write."""

    def __init__(self, name: str) -> None:
        """Make the queue, and lock it: gateways see by the lock that a daemon reads it. Raises StartError."""
        self.name = name
        self.connections_by_token: dict[bytes, QueueConnection] = {}
        try:
            module = posix_ipc_module()
            self.remove_stale_queue()
            self.queue = open_queue(
                name, flags=module.O_CREX, max_messages=QUEUED_REQUESTS, max_message_size=MAX_MESSAGE_BYTES
            )
            lock(self.queue.mqd)
        except OSError as reason:
            raise StartError(f"mq:{name.removeprefix('/')}: {reason.strerror or reason}") from None

    def remove_stale_queue(self) -> None:
        """Remove the queue of a daemon that was killed. Raises OSError, StartError."""
        try:
            old_queue = open_queue(self.name, write=False)
        except OSError:
            return  # there is none, or it cannot be read: making the new queue then reports that
        try:
            lock(old_queue.mqd)
        except BlockingIOError:
            raise StartError(
                f"mq:{self.name.removeprefix('/')} is in use by another daemon; choose another name"
            ) from None
        finally:
            old_queue.close()
        remove_queue(self.name)

    def fileno(self) -> int:
        return int(self.queue.mqd)

    def ready_connections(self) -> Iterator[GatewayConnection]:
        """Put the bytes of the messages into the inboxes of their connections, and yield those connections.

        A message begins with its kind (OPENS, HAS_DATA, CLOSES) and the token of a connection.
        """
        for _ in range(QUEUED_REQUESTS):  # no more: a busy queue must not delay the other events
            try:
                message = receive_message(self.queue)
            except BlockingIOError:
                return
            kind, token, data = message[:1], message[1 : 1 + SECRET_BYTES], message[1 + SECRET_BYTES :]
            connection = self.connections_by_token.get(token)
            if kind == OPENS:
                if (new_connection := self.open_connection(message)) is not None:
                    yield new_connection
            elif connection is not None and kind in (HAS_DATA, CLOSES):
                connection.inbox += data
                connection.is_closed = connection.is_closed or kind == CLOSES
                yield connection

    def open_connection(self, message: bytes) -> QueueConnection | None:
        """Return the connection of a gateway that has made a queue for replies; None if it cannot be made.

        message: "O", the ID of the queue, the gateway's secret, the pid of its process (transports.py).
        """
        match = OPENING_MESSAGE.fullmatch(message)
        if match is None:
            return None
        queue_id, secret, pid = match[1].decode(), match[2], int(match[3])
        pidfd = reply_queue = -1
        try:
            queue = open_queue(f"{self.name}.{queue_id}", read=False)
            # The descriptor stays open without the object of posix_ipc
            try:
                reply_queue = fcntl.fcntl(queue.mqd, fcntl.F_DUPFD_CLOEXEC, 3)
            finally:
                queue.close()
            uid = os.fstat(reply_queue).st_uid
            pidfd = os.pidfd_open(pid)
            # The connection ends with this process, which must belong to the owner of the queue or to root
            if os.stat(f"/proc/{pid}").st_uid not in (uid, 0):
                raise PermissionError("the process is another account's")
            connection = QueueConnection(pidfd, reply_queue, uid, secret, token=os.urandom(SECRET_BYTES))
            send_message(reply_queue, connection.secret + connection.token)
        except OSError as reason:
            close_all((pidfd, reply_queue))
            if reason.errno in (errno.EMFILE, errno.ENFILE):
                raise  # no descriptor is left: the daemon's fault, not the gateway's
            return None
        self.connections_by_token[connection.token] = connection
        return connection

    def forget(self, connection: GatewayConnection) -> None:
        if isinstance(connection, QueueConnection):
            self.connections_by_token.pop(connection.token, None)

    def close(self) -> None:
        self.queue.close()
        remove_queue(self.name)


def open_acceptors(addresses: Sequence[str], write_timeout_s: float) -> list[Acceptor]:
    """Listen on addresses: those of open_sockets(), fifo:PATH and mq:NAME. Raises StartError."""
    acceptors: list[Acceptor] = []
    try:
        for address in addresses:
            kind, name, _ = parse_transport(address)
            if kind == "fifo":
                acceptors.append(PipeAcceptor(name))
            elif kind == "mq":
                acceptors.append(QueueAcceptor(name))
            else:
                acceptors += map(SocketAcceptor, open_sockets([address], BACKLOG, write_timeout_s))
    except StartError:
        for acceptor in acceptors:
            acceptor.close()
        raise
    return acceptors


def account_name(uid: int) -> str:
    """Return the name of an account, for messages; its number if there is none."""
    try:
        return cached_account_name(uid)
    except KeyError:
        return str(uid)


@lru_cache(1000)
def cached_account_name(uid: int) -> str:
    """Return the name of an account, from a cache: a lookup opens a file. Raises KeyError if there is none."""
    return pwd.getpwuid(uid).pw_name
