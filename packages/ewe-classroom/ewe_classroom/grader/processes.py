"""What /proc tells about a server and its processes: who runs, who sleeps, who holds which descriptor. proc(5).

The grader never asks a server how it works. It looks at the server from outside, as `ps` and `lsof` do. The command
therefore needs nothing but Linux, neither in the server nor beside the grader.

**Calm** is the idea that replaces sleeps. A test of concurrency must often decide that something does *not* happen:
"the next client is not answered while the pool's workers are busy". A sleep cannot decide that; on a busy machine
the answer may come a moment later. But a process that sleeps in the kernel does nothing until an event wakes it:

    every thread of the server sleeps (state S)
    no thread has had a turn on a processor since the last look (/proc/PID/task/TID/schedstat)
    every byte that the client sent has arrived (SIOCOUTQ is 0)
      └─▶ the server waits for the client, and nothing more will happen: it is calm

A server that is held up by other programs has a thread in state R, which waits for a processor. It is not calm, and
the grader goes on waiting. A verdict about a calm server therefore does not depend on the speed of the machine.

What can go wrong: the looks at two threads are not simultaneous, so that one thread may wake another between
them. Its count of turns has then changed at the next look. A server that polls (it sleeps for a short time, over
and over) is never calm for long; scene.py says how long the grader then waits.

Read next: scene.py, which waits for calm.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import signal
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
STATES = {
    "01": "ESTABLISHED",
    "02": "SYN_SENT",
    "03": "SYN_RECV",
    "04": "FIN_WAIT1",
    "05": "FIN_WAIT2",
    "06": "TIME_WAIT",
    "07": "CLOSE",
    "08": "CLOSE_WAIT",
    "09": "LAST_ACK",
    "0A": "LISTEN",
    "0B": "CLOSING",
}
# Functions of the kernel in which threads sleep (wchan), by their beginnings, and the calls that lead there.
CALLS = {
    "inet_csk_accept": "accept()",
    "wait_woken": "recv() or send()",
    "sk_wait_data": "recv()",
    "sk_stream_wait_memory": "send()",
    "futex": "a lock or a condition",
    "do_futex": "a lock or a condition",
    "ep_poll": "epoll_wait()",
    "do_epoll": "epoll_wait()",
    "do_select": "select()",
    "poll_schedule_timeout": "poll() or select()",
    "do_sys_poll": "poll()",
    "do_wait": "wait()",
    "hrtimer_nanosleep": "sleep()",
    "common_nsleep": "sleep()",
    "pipe_read": "a read of a pipe",
    "pipe_wait": "a read of a pipe",
    "anon_pipe_read": "a read of a pipe",
    "pipe_write": "a write to a pipe",
    "anon_pipe_write": "a write to a pipe",
    "wait_for_partner": "opening a FIFO",
}
CLOSED_BY_PEER = {"CLOSE_WAIT", "CLOSE", "LAST_ACK"}


@dataclass(frozen=True)
class Task:
    """One thread at one moment. turns: how often it was given a processor; the times are in seconds."""

    pid: int
    tid: int
    state: str
    turns: int
    ran_s: float
    queued_s: float

    @property
    def asleep(self) -> bool:
        """Return whether the thread waits for an event. A zombie will never run again."""
        return self.state in "SZXT"


@dataclass(frozen=True)
class Connection:
    """One row of /proc/net/tcp. peer is 0 for a listening socket; unread: bytes that the process has not read."""

    port: int
    peer: int
    state: str
    unread: int
    inode: str


def read(path: str) -> str:
    """Return the text of a file of /proc; "" if its process has gone."""
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def stat_fields(path: str) -> list[str]:
    """Return the fields of a stat file from the third on: the second, the name, may hold spaces and brackets."""
    return read(path).rpartition(")")[2].split()


def thread_ids(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process, zombies included."""
    return [int(word) for tid in thread_ids(pid) for word in read(f"/proc/{pid}/task/{tid}/children").split()]


def family(roots: Iterable[int]) -> list[int]:
    """Return these processes and all that descend from them, the eldest first."""
    found: list[int] = []
    waiting = list(roots)
    while waiting:
        pid = waiting.pop(0)
        if pid not in found:
            found.append(pid)
            waiting += children(pid)
    return found


def tasks(pids: Iterable[int]) -> dict[int, Task]:
    """Return all threads of these processes by their numbers."""
    found = {}
    for pid in pids:
        for tid in thread_ids(pid):
            fields = stat_fields(f"/proc/{pid}/task/{tid}/stat")
            times = read(f"/proc/{pid}/task/{tid}/schedstat").split()
            if fields and len(times) == 3:
                ran, queued, turns = map(int, times)
                found[tid] = Task(pid, tid, fields[0], turns, ran / 1e9, queued / 1e9)
    return found


def state(pid: int) -> str:
    """Return the state of a process as a letter, Z for a zombie; "" if it has gone."""
    return "".join(stat_fields(f"/proc/{pid}/stat")[:1])


def name(pid: int) -> str:
    return read(f"/proc/{pid}/comm").strip() or "?"


def runs(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    return state(pid) not in ("", "Z", "X")


def memory(pid: int) -> int:
    """Return the bytes of memory that belong to a process alone (RssAnon)."""
    match = re.search(r"RssAnon:\s+(\d+) kB", read(f"/proc/{pid}/status"))
    return int(match[1]) * 1024 if match else 0


def memory_share(pid: int) -> int:
    """Return the same, where a page that n processes share counts as an n-th: slower, and fair to children."""
    match = re.search(r"Pss_Anon:\s+(\d+) kB", read(f"/proc/{pid}/smaps_rollup"))
    return int(match[1]) * 1024 if match else 0


def blocked_in(pid: int, tid: int) -> str:
    """Return the call in which a thread sleeps; "" if the system does not say."""
    where = read(f"/proc/{pid}/task/{tid}/wchan").strip()
    for start, call in CALLS.items():
        if where.startswith(start):
            return call
    return "" if where == "0" else where


def sockets() -> dict[str, Connection]:
    """Return the TCP sockets of this network namespace by their inodes.

    A connection that no process has accepted yet, or that all have closed, has the inode 0. Such rows get a made-up
    key, so that all are kept.
    """
    found = {}
    for file in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for row, line in enumerate(read(file).splitlines()[1:]):
            words = line.split()
            port, peer = (int(word.rpartition(":")[2], 16) for word in words[1:3])
            unread = int(words[4].partition(":")[2], 16)
            entry = Connection(port, peer, STATES.get(words[3], words[3]), unread, words[9])
            found[words[9] if words[9] != "0" else f"{file} {row}"] = entry
    return found


def descriptors(pid: int) -> dict[int, str]:
    """Return what each descriptor of a process leads to: a path, `socket:[INODE]`, `pipe:[INODE]`, …"""
    found = {}
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return {}
    for entry in names:
        try:
            found[int(entry)] = os.readlink(f"/proc/{pid}/fd/{entry}")
        except OSError:
            continue
    return found


def inode(target: str) -> str:
    """Return the inode of a descriptor that is a socket, else ""."""
    return target[8:-1] if target.startswith("socket:[") else ""


def described(target: str, known: dict[str, Connection]) -> str:
    """Return a descriptor in words: the peer and the state of a connection, or the path of a file."""
    number = inode(target)
    if not number:
        return target
    connection = known.get(number)
    if connection is None:
        return "a socket without a connection"
    if connection.state == "LISTEN":
        return f"the listening socket of port {connection.port}"
    closed = ", which its client has closed" if connection.state in CLOSED_BY_PEER else ""
    return f"the connection of client port {connection.peer} in state {connection.state}{closed}"


def listens(port: int) -> str:
    """Return the inode of the socket that listens on a port; "" if none does."""
    for entry in sockets().values():
        if entry.port == port and entry.state == "LISTEN":
            return entry.inode
    return ""


def holders(number: str, pids: Iterable[int]) -> Iterator[int]:
    """Yield the processes that hold a socket with this inode."""
    for pid in pids:
        if any(inode(target) == number for target in descriptors(pid).values()):
            yield pid


def free_port() -> int:
    """Return a port of the loopback address on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kill(pid: int) -> None:
    """Kill a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def children_of_grader() -> list[int]:
    """Return the grader's children. Orphans of the server are among them: sandbox.adopt_orphans()."""
    return children(os.getpid())


def user_name(uid: int) -> str:
    """Return the name of an account; its number if it has none, as in many containers."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def permits(path: Path, uid: int, gid: int, need: int) -> bool:
    """Return whether a file's permissions give an account these rights (4 read, 1 enter or execute)."""
    try:
        found = path.stat()
    except OSError:
        return False
    shift = 6 if uid == found.st_uid else 3 if gid == found.st_gid else 0
    return found.st_mode >> shift & need == need


def may_enter(path: Path, uid: int, gid: int) -> bool:
    return permits(path, uid, gid, 0o1)


def is_readable(path: Path, uid: int, gid: int) -> bool:
    """Return whether an account may reach and read a file, by the permissions of the file and its directories."""
    return permits(path, uid, gid, 0o4) and all(may_enter(part, uid, gid) for part in path.parents)
