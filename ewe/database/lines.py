"""The demon's side of the transports: lines to gateways, and acceptors, where lines begin. See transports.py.

The main thread reads a line and sends short answers; none of that waits. A worker, which may be in another process,
sends the result and waits for room. packed() and unpacked() carry a line into another process: descriptors go by
SCM_RIGHTS.
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

from ewe.database.protocol import FRAGMENT, MAX_FRAME
from ewe.database.transports import (
    DOOR,
    MESSAGE,
    PAYLOAD,
    REQUESTS,
    SECRET,
    lock,
    open_queue,
    parse_transport,
    queues,
    receive_message,
    send_message,
    write_all,
)
from ewe.streams.listener import StartError, close_sockets, open_sockets

BACKLOG = 1024
RECEIVE = 64 * 1024
CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
NOTE = re.compile(rb"[0-9a-f]{32}")
OPEN = re.compile(rb"O([0-9a-f]{32})(.{%d})([0-9]{1,10})" % SECRET, re.DOTALL)
NO_LINK = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class Line:
    """A gateway's connection. uid: of its process; None if nothing proves it. who: for the log.

    idle_events, busy_events: of epoll, while requests are awaited, and while only the gateway's end matters.
    fragment: bytes of a result that go into one frame.
    """

    uid: int | None = None
    who = "TCP"
    idle_events = select.EPOLLIN | select.EPOLLRDHUP
    busy_events = select.EPOLLRDHUP | select.EPOLLONESHOT
    fragment = FRAGMENT

    def fileno(self) -> int:
        """Return the descriptor that epoll watches."""
        raise NotImplementedError

    def receive(self) -> bytes:
        """Return what has arrived, b"" at the end. Raises BlockingIOError, OSError."""
        raise NotImplementedError

    def has_received(self) -> bool:
        """Return whether receive() has something of which epoll does not know."""
        return False

    def has_left(self, events: int) -> bool:
        """Return whether events of epoll say that the gateway has left."""
        return bool(events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR))

    def is_overfull(self) -> bool:
        """Return whether more has been received for the line than a request can be."""
        return False

    def write(self, data: memoryview) -> int:
        """Send what there is room for; return how much. Raises BlockingIOError, OSError."""
        raise NotImplementedError

    def out(self) -> int:
        """Return the descriptor that is written to."""
        raise NotImplementedError

    def packed(self) -> tuple[list[int], tuple[Any, ...]]:
        """Return the descriptors and the arguments from which unpacked() makes the line in another process."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the line."""
        raise NotImplementedError

    def send(self, data: bytes, timeout_s: float) -> None:
        """Send all. Raises OSError: the gateway has left, or has read nothing for so long."""
        write_all(self.write, self.out(), data, timeout_s)

    def send_now(self, data: bytes) -> bool:
        """Send without waiting; return whether all could be sent."""
        view = memoryview(data)
        try:
            while view:
                view = view[self.write(view) :]
        except OSError:
            return False
        return True


class SocketLine(Line):
    """A socket that does not block."""

    def __init__(self, sock: socket.socket, uid: int | None, who: str) -> None:
        self.socket = sock
        self.uid = uid
        self.who = who

    def fileno(self) -> int:
        return self.socket.fileno()

    out = fileno

    def receive(self) -> bytes:
        return self.socket.recv(RECEIVE)

    def write(self, data: memoryview) -> int:
        return self.socket.send(data)

    def packed(self) -> tuple[list[int], tuple[Any, ...]]:
        return [self.socket.fileno()], ("socket", int(self.socket.family), self.uid, self.who)

    def close(self) -> None:
        self.socket.close()


class PipeLine(Line):
    """Two named pipes. reader: of requests; -1 in a process that only replies."""

    def __init__(self, reader: int, writer: int, uid: int) -> None:
        self.reader = reader
        self.writer = writer
        self.uid = uid
        self.who = name_of(uid)

    def fileno(self) -> int:
        return self.reader

    def out(self) -> int:
        return self.writer

    def receive(self) -> bytes:
        return os.read(self.reader, RECEIVE)

    def write(self, data: memoryview) -> int:
        return os.write(self.writer, data)

    def packed(self) -> tuple[list[int], tuple[Any, ...]]:
        return [self.writer], ("pipe", self.uid)

    def close(self) -> None:
        for descriptor in (self.reader, self.writer):
            if descriptor >= 0:
                os.close(descriptor)


class QueueLine(Line):
    """A queue for replies; requests come through the demon's queue, whose acceptor puts them into `inbox`.

    process: a pidfd of the gateway's process; -1 in a process that only replies. token: of its requests.
    """

    busy_events = select.EPOLLIN | select.EPOLLONESHOT
    fragment = PAYLOAD - 32  # a frame in one message, as in the paper

    def __init__(self, process: int, queue: int, uid: int, secret: bytes, token: bytes = b"") -> None:
        self.process = process
        self.queue = queue
        self.uid = uid
        self.secret = secret
        self.token = token
        self.who = name_of(uid)
        self.inbox = bytearray()
        self.closed = False

    def fileno(self) -> int:
        return self.process

    def out(self) -> int:
        return self.queue

    def receive(self) -> bytes:
        data = bytes(self.inbox)
        self.inbox.clear()
        if data or self.closed or select.select([self.process], [], [], 0)[0]:
            return data
        raise BlockingIOError

    def has_received(self) -> bool:
        return bool(self.inbox) or self.closed

    def has_left(self, events: int) -> bool:
        return True  # the process has ended

    def is_overfull(self) -> bool:
        return self.closed or len(self.inbox) > 2 * MAX_FRAME

    def write(self, data: memoryview) -> int:
        piece = data[:PAYLOAD]
        send_message(self.queue, self.secret + piece)
        return len(piece)

    def send_end(self) -> None:
        """Tell the gateway that nothing more comes: a message without data."""
        try:
            send_message(self.queue, self.secret)
        except OSError:
            pass  # its queue is full, or it has left

    def packed(self) -> tuple[list[int], tuple[Any, ...]]:
        return [self.queue], ("queue", self.uid, self.secret)

    def close(self) -> None:
        if self.process >= 0 and not self.closed:
            self.send_end()
        self.closed = True
        for descriptor in (self.process, self.queue):
            if descriptor >= 0:
                os.close(descriptor)
        self.process = -1


def unpacked(descriptors: Sequence[int], about: tuple[Any, ...]) -> Line:
    """Return a line that only sends, in another process than the one that accepted it."""
    match about:
        case ("socket", family, uid, who):
            sock = socket.socket(family, socket.SOCK_STREAM, 0, descriptors[0])
            sock.settimeout(0)  # as the other process has set it
            return SocketLine(sock, uid, who)
        case ("pipe", uid):
            return PipeLine(-1, descriptors[0], uid)
        case ("queue", uid, secret):
            return QueueLine(-1, descriptors[0], uid, secret)
    raise ValueError(about)


# ---------------------------------------------------------------------------------------------------------
# Acceptors


class Acceptor:
    """Where lines begin."""

    def fileno(self) -> int:
        """Return the descriptor that epoll watches."""
        raise NotImplementedError

    def take(self) -> Iterator[Line]:
        """Yield lines that are new, or for which the acceptor has received something. Raises OSError."""
        raise NotImplementedError

    def forget(self, line: Line) -> None:
        """Note that a line is closed."""

    def close(self) -> None:
        """Close it, and remove its name."""
        raise NotImplementedError


class SocketAcceptor(Acceptor):
    """A listening socket. inherited: its name is for the parent to remove."""

    def __init__(self, sock: socket.socket, inherited: bool) -> None:
        self.socket = sock
        self.inherited = inherited

    def fileno(self) -> int:
        return self.socket.fileno()

    def take(self) -> Iterator[Line]:
        try:
            sock, _ = self.socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            yield SocketLine(sock, None, "TCP")
            return
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        pid, uid, _ = CREDENTIALS.unpack(credentials)
        yield SocketLine(sock, uid, f"{name_of(uid)} (pid {pid})")

    def close(self) -> None:
        if self.inherited:
            self.socket.close()
        else:
            close_sockets([self.socket])


class PipeAcceptor(Acceptor):
    """A directory in which gateways make pipes, and the pipe that takes their notes. Raises StartError."""

    def __init__(self, path: str) -> None:
        self.directory = path
        self.door = os.path.join(path, DOOR)
        self.notes = b""
        try:
            self.make_directory()
            os.mkfifo(self.door)
            os.chmod(self.door, 0o622)
            # Open for writing, too: else it would be at its end when no gateway has it open
            self.reader = os.open(self.door, os.O_RDWR | NO_LINK)
        except OSError as reason:
            raise StartError(f"fifo:{path}: {reason.strerror}") from None

    def make_directory(self) -> None:
        """Make the directory, or take over what a demon that was killed has left. Raises OSError, StartError."""
        try:
            os.mkdir(self.directory)
        except FileExistsError:
            about = os.lstat(self.directory)
            left = os.listdir(self.directory) if stat.S_ISDIR(about.st_mode) else ["no directory"]
            if about.st_uid != os.geteuid() or not all(is_of_ours(name) for name in left):
                raise StartError(
                    f"fifo:{self.directory} is there and is not a demon's; choose another path"
                ) from None
            try:
                os.close(os.open(self.door, os.O_WRONLY | NO_LINK))
            except OSError:  # no process reads it
                for name in left:
                    os.unlink(os.path.join(self.directory, name))
            else:
                raise StartError(
                    f"fifo:{self.directory} is in use by another demon; choose another path"
                ) from None
        os.chmod(self.directory, 0o1733)

    def fileno(self) -> int:
        return self.reader

    def take(self) -> Iterator[Line]:
        try:
            data = os.read(self.reader, RECEIVE)
        except BlockingIOError:
            return
        *notes, rest = (self.notes + data).split(b"\n")
        self.notes = rest if len(rest) <= 32 else b"-"  # of a line that is too long only its end matters
        for note in notes:
            if NOTE.fullmatch(note) and (line := self.line(note.decode())) is not None:
                yield line

    def line(self, name: str) -> PipeLine | None:
        """Return the line of a gateway that has made two pipes; None if it has left, or they are not as needed."""
        paths = [os.path.join(self.directory, f"{name}.{part}") for part in ("request", "reply")]
        descriptors: list[int] = []
        try:
            for path, mode in zip(paths, (os.O_RDONLY, os.O_WRONLY), strict=True):
                descriptors.append(os.open(path, mode | NO_LINK))
            abouts = [os.fstat(each) for each in descriptors]
            right = all(stat.S_ISFIFO(each.st_mode) and each.st_nlink == 1 for each in abouts)
            if right and abouts[0].st_uid == abouts[1].st_uid:
                os.write(descriptors[1], b"\n")
                return PipeLine(descriptors[0], descriptors[1], abouts[0].st_uid)
        except OSError as reason:
            if reason.errno in (errno.EMFILE, errno.ENFILE):
                raise
        finally:
            for path in paths:
                remove(path)
        for each in descriptors:
            os.close(each)
        return None

    def close(self) -> None:
        os.close(self.reader)
        for name in os.listdir(self.directory):
            remove(os.path.join(self.directory, name))
        try:
            os.rmdir(self.directory)
        except OSError:
            pass  # a gateway has just made a pipe, or we may not; the next demon takes it over


def is_of_ours(name: str) -> bool:
    """Return whether a file of this name can be a pipe of this transport."""
    return name == DOOR or re.fullmatch(r"[0-9a-f]{32}\.(request|reply)", name) is not None


def remove(path: str) -> None:
    """Remove a name, if it is there."""
    try:
        os.unlink(path)
    except OSError:
        pass


class QueueAcceptor(Acceptor):
    """The queue that all gateways write to. Raises StartError."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: dict[bytes, QueueLine] = {}
        try:
            module = queues()
            self.remove_old()
            self.queue = open_queue(
                name, flags=module.O_CREX, max_messages=REQUESTS, max_message_size=MESSAGE
            )
            lock(self.queue.mqd)
        except OSError as reason:
            raise StartError(f"mq:{name[1:]}: {reason.strerror or reason}") from None

    def remove_old(self) -> None:
        """Remove a queue that a demon has left which was killed. Raises OSError, StartError."""
        try:
            old = open_queue(self.name, write=False)
        except OSError:
            return  # there is none, or it cannot be read, which making ours tells
        try:
            lock(old.mqd)
        except BlockingIOError:
            raise StartError(f"mq:{self.name[1:]} is in use by another demon; choose another name") from None
        finally:
            old.close()
        queues().unlink_message_queue(self.name)

    def fileno(self) -> int:
        return int(self.queue.mqd)

    def take(self) -> Iterator[Line]:
        for _ in range(REQUESTS):
            try:
                message = receive_message(self.queue)
            except BlockingIOError:
                return
            kind, token, data = message[:1], message[1 : 1 + SECRET], message[1 + SECRET :]
            known = self.lines.get(token)
            if kind == b"O":
                if (new := self.line(message)) is not None:
                    yield new
            elif known is not None and kind in (b"D", b"C"):
                known.inbox += data
                known.closed = known.closed or kind == b"C"
                yield known

    def line(self, message: bytes) -> QueueLine | None:
        """Return the line of a gateway that has made a queue for replies; None if it cannot be."""
        match = OPEN.fullmatch(message)
        if match is None:
            return None
        process = copy = -1
        try:
            queue = open_queue(f"{self.name}.{match[1].decode()}", read=False)
            copy = fcntl.fcntl(queue.mqd, fcntl.F_DUPFD_CLOEXEC, 3)
            queue.close()
            uid = os.fstat(copy).st_uid
            process = os.pidfd_open(int(match[3]))
            if os.stat(f"/proc/{int(match[3])}").st_uid not in (uid, 0):
                raise PermissionError("the process is another account's")
            line = QueueLine(process, copy, uid, match[2], os.urandom(SECRET))
            send_message(copy, line.secret + line.token)
        except OSError as reason:
            for each in (process, copy):
                if each >= 0:
                    os.close(each)
            if reason.errno in (errno.EMFILE, errno.ENFILE):
                raise
            return None
        self.lines[line.token] = line
        return line

    def forget(self, line: Line) -> None:
        if isinstance(line, QueueLine):
            self.lines.pop(line.token, None)

    def close(self) -> None:
        self.queue.close()
        queues().unlink_message_queue(self.name)


def open_acceptors(addresses: Sequence[str], write_timeout: float) -> list[Acceptor]:
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
                sockets = open_sockets([address], BACKLOG, write_timeout)
                acceptors += [SocketAcceptor(sock, kind == "fd") for sock in sockets]
    except StartError:
        for each in acceptors:
            each.close()
        raise
    return acceptors


def name_of(uid: int) -> str:
    """Return the name of an account, for messages; its number if there is none."""
    try:
        return known_name(uid)
    except KeyError:
        return str(uid)


@lru_cache(1000)
def known_name(uid: int) -> str:
    """Return the name of an account: a lookup opens a file, which each connection would pay. Raises KeyError."""
    return pwd.getpwuid(uid).pw_name
