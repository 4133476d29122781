"""Clients that locust is not for: connections that are opened and then say nothing, or say one thing only."""

from __future__ import annotations

import errno
import fcntl
import resource
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

from ewe.lab.experiment import Bench, Contender, Load, Running
from ewe.lab.processes import LabError
from ewe.lab.results import Cell

HIGH = 1024  # from here on are descriptors of connections that only stay open
SPARE = 200  # descriptors that are left for everything else
OPENS_IN = 20.0  # seconds in which all connections have to be open
AT_ONCE = 64  # connections that are opened together: the rest waits, so that no backlog overflows
SILENT = b"GET /index.html HTTP/1.1\r\nHost: localhost\r\n"  # the end of the head never comes
ASKING = SILENT + b"\r\n"


def address(url: str) -> tuple[str, int]:
    """Return host and port of a URL."""
    parts = urlsplit(url)
    assert parts.hostname and parts.port
    return parts.hostname, parts.port


@contextmanager
def connections(url: str, count: int, say: bytes = b"") -> Iterator[list[socket.socket]]:
    """Hold connections open within the block, each after saying something. Raises LabError.

    Those that the server's backlog does not take are missing from the list.
    """
    allow(count + SPARE, count + SPARE + HIGH)
    opened: list[socket.socket] = []
    end = time.monotonic() + OPENS_IN
    try:
        while len(opened) < count and time.monotonic() < end:
            batch = dial(address(url), min(AT_ONCE, count - len(opened)), end)
            opened += batch
            if not batch:
                break
            for sock in batch:
                try:
                    sock.send(say)
                except OSError:
                    pass  # it was closed; whoever counts answers will see
        yield opened
    finally:
        for sock in opened:
            sock.close()


def allow(least: int, wanted: int) -> None:
    """Raise this process's limit of descriptors as far as wanted. Raises LabError below the least."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < least:
        raise LabError(f"the limit of descriptors is {hard}, and {least} are needed: ulimit -Hn {least}")
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


def out_of_the_way(sock: socket.socket) -> socket.socket:
    """Return the socket with a high descriptor: select() cannot wait for those above 1023, and others need it."""
    try:
        high = fcntl.fcntl(sock, fcntl.F_DUPFD_CLOEXEC, HIGH)
    except OSError:
        return sock  # the limit of descriptors is too low
    sock.close()
    return socket.socket(fileno=high)


def dial(where: tuple[str, int], count: int, end: float) -> list[socket.socket]:
    """Open connections together; return those that came about within a second."""
    waiting: dict[int, socket.socket] = {}
    done: list[socket.socket] = []
    poll = select.poll()
    try:
        for _ in range(count):
            sock = out_of_the_way(socket.socket())
            sock.setblocking(False)
            waiting[sock.fileno()] = sock
            if sock.connect_ex(where) not in (0, errno.EINPROGRESS):
                continue
            poll.register(sock, select.POLLOUT)
        until = min(end, time.monotonic() + 1.0)
        while waiting and time.monotonic() < until:
            for descriptor, event in poll.poll(50):
                poll.unregister(descriptor)
                sock = waiting.pop(descriptor)
                if event & (select.POLLERR | select.POLLHUP):
                    sock.close()
                else:
                    done.append(sock)
    finally:
        for sock in waiting.values():
            sock.close()
    return done


def answered(sockets: Sequence[socket.socket], quiet: float) -> int:
    """Return on how many of these connections an answer of status 200 begins, until none did for so long."""
    poll = select.poll()
    by_descriptor = {sock.fileno(): sock for sock in sockets}
    for sock in sockets:
        poll.register(sock, select.POLLIN)
    end, count = time.monotonic() + quiet, 0
    while by_descriptor and time.monotonic() < end:
        for descriptor, _ in poll.poll(50):
            poll.unregister(descriptor)
            end = time.monotonic() + quiet
            try:
                count += by_descriptor.pop(descriptor).recv(64).startswith(b"HTTP/1.1 200")
            except OSError:
                pass  # reset: no answer
    return count


def once(
    lab: Bench,
    contender: Contender,
    load: Load,
    cell: Cell,
    root: Path,
    around: Callable[[Running], Iterator[None]] | None = None,
) -> Cell:
    """Measure a cell once: a point of a sweep, whose neighbours are its repeats.

    around: what goes on while the load runs. A LabError becomes the cell's failure.
    """
    cell.load = load.words()
    try:
        with lab.start(contender, root, tls=bool(load.tls)) as server:
            cell.command = server.command
            with contextmanager(around)(server) if around else nullcontext():
                cell.samples.append(lab.load(server, load))
    except LabError as reason:
        cell.failure = str(reason)
    return cell
