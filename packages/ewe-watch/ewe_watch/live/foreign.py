"""A server in any language as a source of events, as far as the system shows it from outside.

Such a server writes no trace. But the kernel tells the system call in which each thread waits, with its arguments
(/proc/PID/task/TID/syscall), the socket of each descriptor (/proc/PID/fd), and the client of each socket
(/proc/net/tcp). From these, read twenty times a second, come the events of a trace:

    a new connection of the port, with an inode: accept(2) has taken it        accepted
    a thread is in a read of that socket                                       runs, waits bytes
    a thread is in a write to it                                               runs, sends
    the thread is in another call                                              parked
    the connection is gone                                                     ended, closed

The call of each other thread is shown as text: a thread "in futex" waits for a lock or a condition, one "in accept"
for a client.

Some facts stay unseen: requests and responses, the server's own queue, work that is shorter than a look, and the
connection of a thread that computes. A connection that no thread reads or writes is shown as parked.

Sources: proc(5); Documentation/networking/proc_net_tcp. Linux only.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ewe.config.command import UsageError
from ewe_watch.events import TraceEvent
from ewe_watch.live.guard import ModelGuard
from ewe_watch.live.meters import CLOSE_WAIT, NO_INODE, backlogs, descendants, tcp_sockets
from ewe_watch.live.model_process import START_S, ServerProcess, StartFailure

DEFAULT_WORKERS = "5"
HOLES = re.compile(r"\{(\w*)\}")
ESTABLISHED = "01"
MOST_THREADS = 200  # threads of a server that one look() reads
# The system calls in which a thread may wait, by their numbers (Linux, asm/unistd.h), for each processor
CALLS = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 19: "readv", 20: "writev", 23: "select", 34: "pause", 35: "nanosleep",
        40: "sendfile", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg",
        61: "wait4", 73: "flock", 74: "fsync", 128: "rt_sigtimedwait", 130: "rt_sigsuspend", 202: "futex",
        230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait",
        288: "accept4", 426: "io_uring_enter", 441: "epoll_pwait2",
    },
    "aarch64": {
        22: "epoll_pwait", 32: "flock", 63: "read", 64: "write", 65: "readv", 66: "writev", 71: "sendfile",
        72: "pselect6", 73: "ppoll", 82: "fsync", 95: "waitid", 98: "futex", 101: "nanosleep",
        115: "clock_nanosleep", 133: "rt_sigsuspend", 137: "rt_sigtimedwait", 202: "accept", 203: "connect",
        206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 242: "accept4", 260: "wait4",
        426: "io_uring_enter", 441: "epoll_pwait2",
    },
}  # fmt: skip
# Those whose first argument is the descriptor of a connection
READS = frozenset(("read", "readv", "recvfrom", "recvmsg"))
WRITES = frozenset(("write", "writev", "sendfile", "sendto", "sendmsg"))
COMPUTES = "computes"  # the thread is in no system call
SOCKET = re.compile(r"socket:\[(\d+)\]")  # of a descriptor in /proc/PID/fd: the inode of its socket
UNSEEN_FIGURES = ("queued", "answered", "refused")  # the page shows "?" for each of them
UNSEEN = "seen from outside: no requests, no queue of the server's own, no work shorter than 50 ms"


class ForeignChoice(NamedTuple):
    """A server of another program. line: its command line, with the holes {port}, {root} and {workers}.

    values: the text of {workers}, if the page has changed it.
    """

    line: str
    values: dict[str, str]

    @property
    def model(self) -> str:
        """The name of the program: the first word of the line, without its directories."""
        return Path(shlex.split(self.line)[0]).name

    @property
    def name(self) -> str:
        """The name of the program."""
        return self.model

    @property
    def label(self) -> str:
        """The command line."""
        return self.line

    @property
    def hint(self) -> str:
        """Nothing: ewe-watch knows no defaults of such a server."""
        return ""

    @property
    def worker_limit(self) -> None:
        """Unknown."""
        return None

    def with_values(self, values: dict[str, str]) -> ForeignChoice:
        """Return the choice with other values. Only the number of workers can change. Raises UsageError."""
        known = {key: value for key, value in (self.values | values).items() if value}
        if known.keys() - {"workers"}:
            raise UsageError("only the number of workers of this server can change")
        if "workers" in known and not known["workers"].isdecimal():
            raise UsageError(f"workers = {known['workers']!r}: expected a number")
        return ForeignChoice(self.line, known)


def foreign_choice(line: str) -> ForeignChoice:
    """Return the choice of a command line. Raises UsageError."""
    try:
        words = shlex.split(line)
    except ValueError as reason:
        raise UsageError(f"--command {line!r}: {reason}") from None
    if not words:
        raise UsageError("--command needs a command line, such as './server {port} {root} {workers}'")
    # In the words, as ForeignProcess fills them: a quote of the shell may stand within a hole
    holes = {hole for word in words for hole in HOLES.findall(word)}
    if wrong := holes - {"port", "root", "workers"}:
        raise UsageError(
            f"--command: {{{min(wrong)}}} is unknown; there are {{port}}, {{root}} and {{workers}}"
        )
    if "port" not in holes:
        raise UsageError("--command: {port} is missing: the server must listen where ewe-watch says")
    return ForeignChoice(line, {})


class ThreadNow(NamedTuple):
    """A thread of the server. worker: PID/TID. call: its system call, "" if it computes.

    connection: the name of the connection that it reads or writes, or "". is_zombie: its process has ended.
    """

    worker: str
    call: str
    connection: str
    is_zombie: bool = False

    @property
    def text(self) -> str:
        """What the thread does, for people."""
        return "ended" if self.is_zombie else f"in {self.call}" if self.call else COMPUTES


class HeldConnection(NamedTuple):
    """A connection that a worker reads or writes. name: of the connection. is_written: the worker writes to it."""

    name: str
    is_written: bool


class ForeignProcess(ServerProcess):
    """A server that runs, and the looks at it."""

    def __init__(self, choice: ForeignChoice, directory: Path, number: int, guard: ModelGuard) -> None:
        """Start the server and wait until it listens. Raises StartFailure."""
        if sys.platform != "linux" or platform.machine() not in CALLS:
            raise StartFailure(f"--command works on Linux on {' and '.join(CALLS)}")
        self.call_names = CALLS[platform.machine()]
        self.log = directory / f"log-{number}"
        self.description = UNSEEN
        values = {"root": str(directory / "htdocs"), "workers": DEFAULT_WORKERS} | choice.values
        words = shlex.split(choice.line)
        try:
            self.port = free_port()
            values["port"] = str(self.port)
            words = [HOLES.sub(lambda hole: values[hole[1]], word) for word in words]
            with self.log.open("wb") as log:
                self.process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as reason:
            self.log.unlink(missing_ok=True)
            raise StartFailure(f"{words[0]} does not start: {reason.strerror}") from None
        self.pid = self.process.pid
        self.guard = guard
        guard.add(self.pid)
        self.names: dict[int, str] = {}  # inode -> connection
        self.held: dict[str, HeldConnection] = {}  # by worker
        self.calls: dict[str, str] = {}  # worker -> what it does, by the last look
        self.numbers = 0
        try:
            self.wait_until_it_listens(choice)
        except BaseException:
            self.stop()
            raise
        self.pending = [self.event("model", "", self.main, f"{choice.model} {UNSEEN}")]

    def wait_until_it_listens(self, choice: ForeignChoice) -> None:
        """Wait until the port listens. Raises StartFailure."""
        deadline = time.monotonic() + START_S
        while not backlogs([self.port]):  # empty until the port listens; then {port: number}, even if it is 0
            if not self.alive() or time.monotonic() > deadline:
                lines = self.log_text().strip().splitlines()
                reason = f": {lines[-1]}" if lines else ""
                raise StartFailure(f"{choice.line}: does not listen on port {self.port}{reason}")
            time.sleep(0.02)

    @property
    def main(self) -> str:
        """The first thread of the first process."""
        return f"{self.pid}/{self.pid}"

    def event(self, kind: str, connection: str, worker: str, text: str = "") -> TraceEvent:
        """Return an event of now."""
        return TraceEvent(time.monotonic(), kind, connection, worker, text)

    def read(self) -> tuple[bytes, list[TraceEvent]]:
        """Look at the server; return the events as lines of a trace, and as events. It never waits."""
        events = [*self.pending, *self.look()]
        self.pending = []
        lines = (
            f"{each.seconds:.6f} {each.kind} {each.connection or '-'} {each.worker} {each.text}\n"
            for each in events
        )
        return "".join(lines).encode("utf-8", "replace"), events

    def calls_now(self) -> dict[str, str]:
        """Return what each thread does, by the last look: PID/TID -> "in futex"."""
        return self.calls

    def look(self) -> Iterator[TraceEvent]:
        """Yield the events of all changes since the last look: new connections, workers' calls, closed connections.

        The order matters: a worker leaves a connection before it, or another worker, takes the next one.
        """
        try:
            peers = self.connections()
        except OSError:  # no descriptor is free: a later look finds the changes
            return
        for inode, peer in peers.items():
            if inode not in self.names:
                self.numbers += 1
                self.names[inode] = f"{self.pid}.{self.numbers}"
                yield self.event("accepted", self.names[inode], self.main, peer)
                yield self.event("parked", self.names[inode], self.main)
        threads = list(self.threads_now(peers))
        self.calls = {each.worker: each.text for each in threads}
        held_now = {
            each.worker: HeldConnection(each.connection, each.call in WRITES)
            for each in threads
            if each.connection
        }
        yield from self.turns_of_workers(held_now)
        for inode in [inode for inode in self.names if inode not in peers]:
            name = self.names.pop(inode)
            self.held = {worker: each for worker, each in self.held.items() if each.name != name}
            yield self.event("ended", name, self.main, "the connection is gone")
            yield self.event("closed", name, self.main)

    def turns_of_workers(self, held_now: dict[str, HeldConnection]) -> Iterator[TraceEvent]:
        """Yield the events of the workers that have left a connection or taken one, or whose call is another one.

        held_now: the connections by worker.
        """
        for worker, before in list(self.held.items()):
            now = held_now.get(worker)
            if now is None or now.name != before.name:
                del self.held[worker]
                yield self.event("parked", before.name, worker)
        for worker, held in held_now.items():
            if self.held.get(worker) != held:
                self.held[worker] = held
                yield self.event("runs", held.name, worker)
                if held.is_written:
                    yield self.event("sends", held.name, worker)
                else:
                    yield self.event("waits", held.name, worker, "bytes")

    def connections(self) -> dict[int, str]:
        """Return the accepted connections: inode -> the client's address.

        A connection that is still in the backlog has the inode 0: no descriptor names it yet. All clients are those
        of ewe-watch, on this machine. Raises OSError.
        """
        port_suffix = f":{self.port:04X}"
        found = {}
        for sock in tcp_sockets():
            is_open = sock.state in (ESTABLISHED, CLOSE_WAIT)
            if sock.local.endswith(port_suffix) and is_open and sock.inode != NO_INODE:
                found[int(sock.inode)] = f"127.0.0.1:{sock.remote_port}"
        return found

    def threads_now(self, peers: dict[int, str]) -> Iterator[ThreadNow]:
        """Yield the threads of the server, and what each of them does; at most MOST_THREADS.

        peers: from connections(). A process or a thread may end while it is looked at: it is left out then.
        """
        threads_left = MOST_THREADS
        for pid in [self.pid, *descendants(self.pid)]:
            with suppress(OSError):
                threads = os.listdir(f"/proc/{pid}/task")[:threads_left]
                threads_left -= len(threads)
                for thread in threads:
                    with suppress(OSError, ValueError):
                        yield self.thread_now(pid, thread, peers)

    def thread_now(self, pid: int, thread: str, peers: dict[int, str]) -> ThreadNow:
        """Return what a thread does now. peers: from connections(). Raises OSError, ValueError if it has ended."""
        # The number of the system call, then its arguments in hexadecimal digits; "running" if the thread is in no
        # system call; "-1 0x0 0x0" for a zombie
        words = Path(f"/proc/{pid}/task/{thread}/syscall").read_text("ascii").split()
        number, *arguments = words
        call = self.call_names.get(int(number), f"call {number}") if number.isdecimal() else ""
        connection = ""
        if call in READS or call in WRITES:
            connection = self.connection_of(pid, int(arguments[0], 16), peers)
        return ThreadNow(f"{pid}/{thread}", call, connection, is_zombie=words == ["-1", "0x0", "0x0"])

    def connection_of(self, pid: int, descriptor: int, peers: dict[int, str]) -> str:
        """Return the name of the connection that a descriptor of a process stands for, or "".

        peers: from connections(). The descriptor may be that of a file or a pipe, or closed by now.
        """
        try:
            socket_found = SOCKET.fullmatch(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
        except OSError:
            return ""
        inode = int(socket_found[1]) if socket_found is not None else 0
        return self.names[inode] if inode in peers else ""


def free_port() -> int:
    """Return a TCP port of the loopback interface that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
