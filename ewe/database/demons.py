"""The processes that run statements: each has its part of the connections, by default one.

**Why processes.** Some statements cannot be cancelled. SQLite looks between two steps whether it should stop, and
`instr()` of two long texts is one step that takes minutes. A thread within it cannot be ended; a process can. The
demon cancels a statement at its time limit. If the statement still runs KILL_AFTER_S later, the demon kills its
process, answers the gateway with TIMEOUT, and starts another process. The system also bounds the memory of a
process (`memory`). With fewer demons than connections, a statement that must be killed takes the others of its
process along.

The paper's demon runs one statement after the other, and asks for "a regulating entity to route requests to idle
demons" (section 3.5). Here this is the process that gateways speak to. It decides, since it alone knows everything:

                       ┌──────────── regulating process (demon.py) ────────────┐
    gateways ──frames─▶│ who may ask · one queue · which demon runs how much   │
        ▲              └── job + the gateway's descriptor ──┬───── done ──▲───┘
        │                                         ┌─────────▼────────┐    │
        └────────── result, directly ─────────────│ demon 1: workers │────┤
        └────────── result, directly ─────────────│ demon 2: workers │────┘
                                                  └──────────────────┘

- **Least busy** is the demon that runs the fewest statements. The regulating process counts what it has handed out
  and what was reported done; it asks nobody. Among equals, one whose connection fits comes first.
- **Not the kernel.** Demons that accept from one socket would share connections, not requests. ewe keeps its
  connections to the demon, so one of them could be flooded while another is idle.
- **Results do not pass through the regulating process.** A job takes the gateway's descriptor along (SCM_RIGHTS),
  and the demon writes to it. What a request costs more is one message there and one back.
- **`connections` bounds all demons together**, since it is what a licence counts.
- **A demon that dies** takes its statements with it. Each gateway gets an error, or is closed if a part of its
  result was just being sent (worker.py, Mark). Another demon is started. If the regulating process dies, the demons
  read the end of their socket and end.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import resource
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ewe.database.drivers import Database
from ewe.database.lines import Line, unpacked
from ewe.database.protocol import DatabaseError
from ewe.database.worker import Job, Mark, Worker
from ewe.logger import ErrorLog

LENGTH = struct.Struct(">I")
STUCK = 5.0  # seconds in which a demon has to take an order
KILL_AFTER_S = 2.0  # after its time limit a statement that could not be cancelled ends with its process
RECEIVE = 64 * 1024
LOG = "log"  # the order to open the log again


class Channel:
    """One end of the socket between the regulating process and a demon: objects and descriptors, in order.

    Both ends are processes of one program and one account, so pickle is safe here.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.data = bytearray()
        self.descriptors: deque[int] = deque()

    def send(self, message: object, descriptors: list[int] | None = None) -> None:
        """Send an object, and descriptors with its first bytes. Raises OSError, TimeoutError."""
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        data = LENGTH.pack(len(content)) + content
        if descriptors:
            data = data[socket.send_fds(self.socket, [data], descriptors) :]
        if data:
            self.socket.sendall(data)

    def receive(self) -> list[Any]:
        """Return the objects that have arrived. Raises EOFError at the end, BlockingIOError."""
        data, descriptors, _, _ = socket.recv_fds(self.socket, RECEIVE, 16, socket.MSG_CMSG_CLOEXEC)
        if not data:
            raise EOFError
        self.data += data
        self.descriptors += descriptors
        messages = []
        while len(self.data) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self.data)[0]
            if len(self.data) < end:
                break
            messages.append(pickle.loads(self.data[LENGTH.size : end]))
            del self.data[:end]
        return messages


class Remote:
    """A worker in a demon's process, as the regulating process sees it.

    gone: the gateway of the last job cannot be used any more.
    """

    def __init__(self, demon: DemonProcess, number: int, mark: Mark, done: Callable[[Remote], None]) -> None:
        self.demon = demon
        self.number = number
        self.mark = mark
        self.done = done
        self.database: Database | None = None
        self.gone = False
        self.job: Job | None = None
        self.expires = 0.0

    @property
    def load(self) -> int:
        """Return how many statements its demon runs."""
        return self.demon.running

    def start(self, job: Job) -> None:
        """Have the worker answer a request."""
        self.job = job
        self.database = job.database
        self.expires = time.monotonic() + job.time_limit
        self.demon.running += 1
        self.mark.open()
        descriptors, about = job.line.packed()
        self.demon.order((self.number, about, job._replace(line=None)), descriptors)  # type: ignore[arg-type]

    def cancel(self, error: DatabaseError) -> None:
        """Cancel the statement that runs now."""
        if self.job is not None:
            self.demon.order((self.number, error.kind, str(error)))

    def hurry(self) -> None:
        """Have the time of the statement be over now."""
        self.expires = min(self.expires, time.monotonic())

    def check_time(self, now: float) -> None:
        """Cancel the statement if its time is over; if it does not hear that, end it with its process."""
        if now > self.expires:
            self.cancel(DatabaseError("TIMEOUT", "cancelled after the time limit"))
        if now > self.expires + KILL_AFTER_S:
            self.demon.kill(self)

    def lost(self) -> DatabaseError:
        """Return the error for the gateway of a job whose process has ended."""
        if self.demon.stuck is self:
            return DatabaseError("TIMEOUT", "ended with its process: nothing else could cancel it")
        if self.demon.stuck is not None:
            return DatabaseError("UNAVAILABLE", "ended with its process, since another statement hung in it")
        return DatabaseError("UNAVAILABLE", "the process that ran the statement has ended")

    def finished(self, gone: bool, connected: bool) -> None:
        """Note that the demon has reported the end of a statement, or has died."""
        assert self.job is not None
        self.demon.running -= 1
        self.demon.served += 1
        self.database = self.job.database if connected else None
        self.job = None
        self.gone = gone
        self.done(self)


class DemonProcess:
    """One demon, as the regulating process sees it. workers: by their numbers."""

    def __init__(self, log: ErrorLog, count: int, memory: int, done: Callable[[Remote], None]) -> None:
        """count: of its workers. memory: that it may take, in bytes. Raises OSError."""
        self.running = self.served = 0
        self.born = time.monotonic()
        self.stuck: Remote | None = None  # whose statement this process was killed for
        marks = [Mark(mmap.mmap(-1, count), number) for number in range(count)]
        self.workers = [Remote(self, number, mark, done) for number, mark in enumerate(marks)]
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            be_demon(theirs, log, marks, memory)
        theirs.close()
        ours.settimeout(STUCK)
        self.channel = Channel(ours)

    def fileno(self) -> int:
        """Return the descriptor of its socket."""
        return self.channel.socket.fileno()

    def order(self, message: tuple[Any, ...] | str, descriptors: list[int] | None = None) -> None:
        """Send an order. A demon that does not take it is killed; its end is then read from the socket."""
        try:
            self.channel.send(message, descriptors)
        except OSError:
            self.kill()

    def read(self) -> None:
        """Take what it reports. Raises EOFError if it has ended."""
        try:
            messages = self.channel.receive()
        except OSError:
            raise EOFError from None
        for number, gone, connected in messages:
            self.workers[number].finished(gone, connected)

    def kill(self, stuck: Remote | None = None) -> None:
        """Kill the process. stuck: the worker whose statement cannot be ended otherwise."""
        self.stuck = self.stuck or stuck
        try:
            os.kill(self.pid, signal.SIGKILL)
        except OSError:
            pass  # it has ended

    def close(self) -> None:
        """End the process, and reap it."""
        self.channel.socket.close()
        self.kill()
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass  # it was reaped by another


def be_demon(sock: socket.socket, log: ErrorLog, marks: list[Mark], memory: int) -> None:
    """Be a demon, in a new process: take orders until the regulating process has ended; never return."""
    status = 1
    try:
        gc.freeze()  # nothing of the parent's is to be closed a second time
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)  # the regulating process tells what they mean
        kept = sorted({0, 1, 2, sock.fileno(), log.file.descriptor} - {-1})
        for before, after in zip(kept, [*kept[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
            os.closerange(before + 1, after)
        bound_memory(memory)
        Orders(Channel(sock), log, marks).run()
        status = 0
    except BaseException as bug:
        log.write("error", f"a demon ends: {type(bug).__name__}: {bug}")
    finally:
        os._exit(status)


def bound_memory(more: int) -> None:
    """Bound the memory that this process may have: what it has now, and so many bytes more.

    Where the system does not tell how much that is (macOS), there is no bound.
    """
    try:
        with open("/proc/self/statm", "rb") as file:
            now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = now + more if hard == resource.RLIM_INFINITY else min(now + more, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


class Orders:
    """The side of a demon: the workers, and the orders for them."""

    def __init__(self, channel: Channel, log: ErrorLog, marks: list[Mark]) -> None:
        self.channel = channel
        self.log = log
        self.marks = marks
        self.workers: dict[int, Worker] = {}
        self.lines: dict[int, Line] = {}

    def run(self) -> None:
        """Follow orders until there is nobody who gives them."""
        while True:
            try:
                messages = self.channel.receive()
            except (EOFError, ConnectionError):
                return
            for message in messages:
                match message:
                    case str(order) if order == LOG:
                        self.log.file.open()
                    case (int(number), str(kind), str(text)):
                        self.workers[number].cancel(DatabaseError(kind, text))
                    case (int(number), about, job):
                        self.start(number, about, job)

    def start(self, number: int, about: tuple[Any, ...], job: Job) -> None:
        """Have a worker answer a request."""
        line = unpacked([self.channel.descriptors.popleft()], about)
        self.lines[number] = line
        worker = self.workers.get(number)
        if worker is None:
            worker = Worker(self.log, self.marks[number], lambda worker: self.report(number, worker))
            self.workers[number] = worker
        worker.start(job._replace(line=line))

    def report(self, number: int, worker: Worker) -> None:
        """Report that a worker has finished; called in its thread."""
        self.lines.pop(number).close()
        message = pickle.dumps((number, worker.gone, worker.database is not None), pickle.HIGHEST_PROTOCOL)
        try:
            # One short message is sent whole, so that those of several threads do not mix
            self.channel.socket.send(LENGTH.pack(len(message)) + message)
        except OSError:
            pass  # the regulating process has ended
