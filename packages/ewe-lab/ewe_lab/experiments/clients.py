"""Clients beside locust: they open connections and then send nothing, or one request only.

Slow and idle clients need no load generator. A server must hold their connections, and serve the load beside them:

    connections()          opens sockets, sends the first bytes over each one, and holds them during a block
    count_answered()       how many of them get an answer?
    measure_cells(),
    measure_once() ...     start a server, measure a cell, and turn a LabError into the cell's failure

Possible failures: thousands of connections need as many descriptors here, and overflow the server's backlog if they
come at once. connections() raises the limit, and opens MAX_OPENING_CONNECTIONS at a time.
"""

from __future__ import annotations

import errno
import fcntl
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

from ewe_lab.bench.experiment import Bench, Load, RunningServer, ServerUnderTest
from ewe_lab.bench.processes import LabError, allow_descriptors
from ewe_lab.bench.results import Cell, Sample
from ewe_lab.stacks.other_servers import with_warm_up

MIN_IDLE_DESCRIPTOR = 1024  # connections that only stay open have descriptors from this number on
SPARE_DESCRIPTORS = 200  # descriptors for everything else
OPEN_TIMEOUT_S = 20.0  # seconds within which all connections must be open
MAX_OPENING_CONNECTIONS = 64  # connections that are opened together: more could overflow the backlog
BATCH_TIMEOUT_S = 1.0  # seconds in which connections that are opened together must be open
QUIET_S = 1.0  # seconds without an answer: by then every idle connection has had its answer
POLL_MS = 50  # longest wait for an event, after which the deadline is checked
UNFINISHED_HEAD = b"GET /index.html HTTP/1.1\r\nHost: localhost\r\n"  # a head without its end
COMPLETE_HEAD = UNFINISHED_HEAD + b"\r\n"


def host_and_port(url: str) -> tuple[str, int]:
    """Return the host and the port of the URL of a server of ours, which always names both."""
    parts = urlsplit(url)
    assert parts.hostname and parts.port
    return parts.hostname, parts.port


@contextmanager
def connections(url: str, count: int, first_bytes: bytes = b"") -> Iterator[list[socket.socket]]:
    """Hold connections open within the block; yield them. first_bytes: sent over each one. Raises LabError.

    Connections that the server's backlog does not accept are missing from the list.
    """
    needed = count + SPARE_DESCRIPTORS
    if (limit := allow_descriptors(needed + MIN_IDLE_DESCRIPTOR)) < needed:
        raise LabError(f"the limit of descriptors is {limit}, and {needed} are needed: ulimit -Hn {needed}")
    opened: list[socket.socket] = []
    end = time.monotonic() + OPEN_TIMEOUT_S
    try:
        while len(opened) < count and time.monotonic() < end:
            batch = open_connections(
                host_and_port(url), min(MAX_OPENING_CONNECTIONS, count - len(opened)), end
            )
            opened += batch
            if not batch:  # the backlog is full, and the server accepts nothing: more would not open, either
                break
            for sock in batch:
                try:
                    sock.send(first_bytes)
                except OSError:
                    pass  # the server closed it; count_answered() will not count it
        yield opened
    finally:
        for sock in opened:
            sock.close()


def move_to_high_descriptor(sock: socket.socket) -> socket.socket:
    """Return the socket with a high descriptor: select() works below 1024 only, and other code needs select()."""
    try:
        high = fcntl.fcntl(sock, fcntl.F_DUPFD_CLOEXEC, MIN_IDLE_DESCRIPTOR)
    except OSError:
        return sock  # the limit of descriptors is too low
    sock.close()
    return socket.socket(fileno=high)


def open_connections(address: tuple[str, int], count: int, end: float) -> list[socket.socket]:
    """Open connections together; return those that are open within BATCH_TIMEOUT_S.

    address: host and port. end: a time of time.monotonic() after which none is waited for.
    """
    waiting: dict[int, socket.socket] = {}
    done: list[socket.socket] = []
    poll = select.poll()
    try:
        for _ in range(count):
            sock = move_to_high_descriptor(socket.socket())
            sock.setblocking(False)
            waiting[sock.fileno()] = sock
            if sock.connect_ex(address) not in (0, errno.EINPROGRESS):
                continue  # refused; it stays in `waiting`, which is closed below
            poll.register(sock, select.POLLOUT)  # writable: connected, or failed
        until = min(end, time.monotonic() + BATCH_TIMEOUT_S)
        while waiting and time.monotonic() < until:
            for descriptor, event in poll.poll(POLL_MS):
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


def count_answered(sockets: Sequence[socket.socket], quiet_s: float) -> int:
    """Return how many connections get an answer with status 200, until none has got one for `quiet_s` seconds."""
    poll = select.poll()
    by_descriptor = {sock.fileno(): sock for sock in sockets}
    for sock in sockets:
        poll.register(sock, select.POLLIN)
    end, count = time.monotonic() + quiet_s, 0
    while by_descriptor and time.monotonic() < end:
        for descriptor, _ in poll.poll(POLL_MS):
            poll.unregister(descriptor)  # the status line is enough, and comes in the first bytes
            end = time.monotonic() + quiet_s
            try:
                count += by_descriptor.pop(descriptor).recv(64).startswith(b"HTTP/1.1 200")
            except OSError:
                pass  # reset: no answer
    return count


def measure_cells(
    lab: Bench,
    tested: ServerUnderTest,
    root: Path,
    cells: Sequence[Cell],
    measure: Callable[[RunningServer], Sample],
    repeats: int = 1,
) -> Sequence[Cell]:
    """Start a server, and add each sample of `measure` to all cells; return them.

    A LabError becomes the cells' failure.
    """
    try:
        with lab.start(tested, root) as server:
            for _ in range(repeats):
                sample = measure(server)
                for cell in cells:
                    cell.samples.append(sample)
                    cell.command = server.command
    except LabError as reason:
        for cell in cells:
            cell.failure = str(reason)
    return cells


def measure_once(
    lab: Bench,
    tested: ServerUnderTest,
    load: Load,
    cell: Cell,
    root: Path,
    beside: Callable[[RunningServer], AbstractContextManager[None]] | None = None,
) -> Cell:
    """Measure a cell once; return it. The cell is a point of a sweep, so its neighbours take the place of repeats.

    The cell is measured a second time, with a new server, if other programs had the cores. A LabError becomes the
    cell's failure. root: the document root. beside: returns a context manager for a running server, such as one
    that holds idle connections to it: it is entered before the load, and left after it.
    """
    load = with_warm_up(load, tested.kind)
    cell.load = load.description()

    def measure() -> Sample:
        with lab.start(tested, root, tls=bool(load.tls)) as server:
            cell.command = server.command
            with beside(server) if beside else nullcontext():
                return lab.load(server, load)

    try:
        cell.samples.append(lab.undisturbed(measure))
    except LabError as reason:
        cell.failure = str(reason)
    return cell


def measure_repeatedly(lab: Bench, cell: Cell, measure: Callable[[Cell], Cell]) -> Cell:
    """Measure a cell as often as the lab repeats, or until it fails; return the cell.

    measure: adds a sample, or a failure.
    """
    for _ in range(lab.repeats):
        if measure(cell).failure:
            break
    return cell


def measure_beside_idle(lab: Bench, tested: ServerUnderTest, load: Load, cell: Cell, root: Path) -> Cell:
    """Measure a cell once beside `cell.x` idle connections, each of which has had one answer; return the cell.

    The sample's figure `extra.held` is the number of those that were answered.
    """
    count, held = int(cell.x or 0), 0

    @contextmanager
    def hold_idle_connections(server: RunningServer) -> Iterator[None]:
        nonlocal held
        with connections(server.url, count, COMPLETE_HEAD) as opened:
            held = count_answered(opened, QUIET_S)
            yield

    earlier = len(cell.samples)
    measure_once(lab, tested, load, cell, root, beside=hold_idle_connections)
    for sample in cell.samples[earlier:]:
        sample.extra["held"] = held
        if held < count:
            sample.notes.append(f"only {held} of {count} connections were answered")
    return cell


def held_connections(cell: Cell) -> float:
    """Return how many idle connections the server of a measured cell held in each repeat: those with an answer."""
    return min(sample.extra.get("held", cell.x or 0.0) for sample in cell.samples)
