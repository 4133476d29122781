"""What a model costs, and how many connections wait for it in the kernel: read from /proc, by psutil where it can.

The listen backlog is known to the kernel alone. In /proc/net/tcp, the receive queue of a listening socket is the
number of connections that no accept(2) has taken (Linux, Documentation/networking/proc_net_tcp). Other systems than
Linux do not show it; then `backlog` returns None.

Memory is the proportional set size (PSS): a page that several processes share counts only once. Without it, the
forked children of a model would seem to need far more memory than they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

LISTENING, CLOSE_WAIT = "0A", "08"
# Processes whose memory is read exactly: reading it takes the kernel about a millisecond each
MOST_WITH_PSS = 24
NO_INODE = "0"  # of a connection that no accept(2) has taken
TCP = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


class TcpSocket(NamedTuple):
    """A line of /proc/net/tcp. All numbers but the inode have hexadecimal digits.

    local, remote: IP:PORT. queues: the bytes to send, a colon, and the received ones, or the backlog of a listening
    socket. inode: NO_INODE for a connection that no accept(2) has taken.
    """

    local: str
    remote: str
    state: str
    queues: str
    inode: str

    @property
    def local_port(self) -> int:
        """The port of this end."""
        return int(self.local.rpartition(":")[2], 16)

    @property
    def remote_port(self) -> int:
        """The port of the other end."""
        return int(self.remote.rpartition(":")[2], 16)

    @property
    def receive_queue(self) -> int:
        """The bytes that no recv(2) has taken; of a listening socket, the connections in its backlog."""
        return int(self.queues.partition(":")[2], 16)


def tcp_sockets(*, listening_only: bool = False) -> Iterator[TcpSocket]:
    """Yield each TCP socket of this machine, the listening ones first. Raises OSError.

    listening_only: read no further in a table. The kernel makes the lines while they are read, and a table may have
    ten thousands of connections that have ended (TIME_WAIT).
    """
    for path in TCP:
        if path.name == "tcp6" and not path.exists():
            return  # the kernel has no IPv6
        with path.open(encoding="ascii") as file:
            next(file, "")  # the names of the columns
            for fields in map(str.split, file):
                found = TcpSocket(fields[1], fields[2], fields[3], fields[4], fields[9])
                if listening_only and found.state != LISTENING:
                    break
                yield found


def backlogs(ports: Iterable[int]) -> dict[int, int] | None:
    """Return how many connections are in the backlog of each port that listens; None if it cannot be known."""
    wanted = frozenset(ports)
    found: dict[int, int] = {}
    try:
        for sock in tcp_sockets(listening_only=True):
            # Several sockets may listen at one port: IPv4, IPv6, SO_REUSEPORT
            if (port := sock.local_port) in wanted:
                found[port] = found.get(port, 0) + sock.receive_queue
    except OSError:
        return None
    return found


def left_connections(ports: Iterable[int]) -> dict[int, int] | None:
    """Return how many connections of each port their client has closed, and the server has not; None if unknown.

    TCP calls this state CLOSE_WAIT (RFC 9293 section 3.3.2). A connection in the backlog has no inode, and does not
    count: the server does not know it yet.
    """
    found = dict.fromkeys(ports, 0)
    try:
        for sock in tcp_sockets():
            if sock.state == CLOSE_WAIT and sock.inode != NO_INODE and sock.local_port in found:
                found[sock.local_port] += 1
    except OSError:
        return None
    return found


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have started; [] if it has ended.

    [] also if this process cannot read /proc, because no descriptor is free: psutil then raises OSError.
    """
    try:
        return [each.pid for each in psutil.Process(pid).children(recursive=True)]
    except (psutil.Error, OSError):
        return []


class CostMeter:
    """Measures a process and all its descendants. CPU time is a difference, so the first measurement has none.

    zombies: the processes that had ended at the last measurement without a parent that had read their status.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.known: dict[int, psutil.Process] = {}
        self.zombies: frozenset[int] = frozenset()

    def measure(self) -> dict[str, Any]:
        """Return CPU (percent of one processor), memory (bytes) and numbers; {} if the process has ended."""
        found = self.processes()
        if not found:
            return {}
        # The objects of the last measurement: psutil keeps in them the CPU time from which it subtracts
        self.known = {each.pid: self.known.get(each.pid, each) for each in found}
        totals = {"cpu": 0.0, "memory": 0, "threads": 0, "processes": 0, "zombies": 0, "descriptors": 0}
        zombies = set()
        for number, process in enumerate(self.known.values()):
            with suppress(psutil.Error):
                if process.status() == psutil.STATUS_ZOMBIE:
                    zombies.add(process.pid)
                else:
                    add(totals, process, exact=number < MOST_WITH_PSS)
        self.zombies = frozenset(zombies)
        return totals | {"zombies": len(zombies)}

    def processes(self) -> list[psutil.Process]:
        """Return the process and its descendants; [] if it has ended."""
        try:
            first = psutil.Process(self.pid)
            return [first, *first.children(recursive=True)]
        except psutil.Error:
            return []


def add(totals: dict[str, Any], process: psutil.Process, *, exact: bool) -> None:
    """Add one process to the totals. exact: add its PSS, if there is one, else its RSS. Raises psutil.Error."""
    with process.oneshot():
        totals["processes"] += 1
        totals["threads"] += process.num_threads()
        totals["cpu"] += process.cpu_percent()
        totals["descriptors"] += process.num_fds()
        full = process.memory_full_info() if exact else process.memory_info()
        totals["memory"] += getattr(full, "pss", full.rss)
