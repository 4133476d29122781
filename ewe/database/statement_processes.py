"""Statement processes: they run the statements. Each has a part of the connections, by default one.

**Why processes.** Some statements cannot be cancelled. SQLite checks for a cancellation between two steps, and
`instr()` of two long texts is one step that takes minutes. A thread within such a step cannot be ended; a process
can. The daemon cancels a statement at its time limit. If the statement still runs KILL_AFTER_S later, the daemon
kills its process, answers the gateway with TIMEOUT, and starts another process. The system also limits the memory
of a process (`memory`). If there are fewer processes than connections, the kill also ends the other statements of
the process.

The paper's daemon runs one statement after the other, and asks for "a regulating entity to route requests to idle
demons" (section 3.5). Here this is the *regulating process*, which gateways connect to. It decides, because only it
knows the state of all statement processes. (The setting `daemons` counts statement processes: the paper calls each
of them a demon.)

                       ┌─────────── regulating process (daemon.py) ────────────┐
    gateways ──frames─▶│ rights · one queue · load of each process             │
        ▲              └── job + the gateway's descriptor ──┬───── done ──▲───┘
        │                                        ┌──────────▼─────────┐   │
        └────────── result, directly ────────────│ process 1: workers │───┤
        └────────── result, directly ────────────│ process 2: workers │───┘
                                                 └────────────────────┘

- **The least busy process** is the one that runs the fewest statements. The regulating process counts the jobs that
  it has handed out and the jobs that were reported done. Among equals, a process whose connection fits comes first.
- **Why the kernel does not decide.** Processes that accept from one socket would share connections, not requests.
  ewe keeps its connections to the daemon, so one process could be flooded while another is idle.
- **Results do not pass through the regulating process.** A job carries the gateway's descriptor (SCM_RIGHTS), and
  the process writes to it. A request costs only one additional message in each direction.
- **`connections` limits all processes together**, because a licence counts connections.
- **A process that dies** ends its statements. Each gateway gets an error, or is closed if a part of its result was
  just being sent (worker.py, ErrorFlag). Another process is started. If the regulating process dies, the others
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

from ewe.child_processes import exit_status, send_signal
from ewe.database.acceptors import GatewayConnection, unpack_connection
from ewe.database.drivers import Database
from ewe.database.protocol import DatabaseError
from ewe.database.worker import ErrorFlag, Job, WorkerThread
from ewe.logger import ErrorLog

LENGTH = struct.Struct(">I")
ORDER_TIMEOUT_S = 5.0  # seconds in which a statement process must accept an order
# Seconds after a statement's time limit at which its process is killed, if the cancellation had no effect
KILL_AFTER_S = 2.0
# Seconds between two orders to cancel a statement: the first may come before the statement has begun
RETRY_CANCEL_S = 0.1
RECEIVE_BYTES = 64 * 1024  # bytes that one call reads at most
MAX_DESCRIPTORS = 16  # the number of descriptors that one call receives at most
REOPEN_LOG = "log"  # the order to open the log again


class Channel:
    """One end of the socket between the regulating process and a statement process.

    The socket carries objects and descriptors, in order. It blocks: in the regulating process for ORDER_TIMEOUT_S
    at most. Both ends are processes of one program and one account, so pickle is safe here.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.data = bytearray()  # bytes of incomplete messages
        self.descriptors: deque[int] = deque()  # received, and not used yet

    def send(self, message: object, descriptors: list[int] | None = None) -> None:
        """Send an object, and descriptors with its first bytes. Raises OSError, TimeoutError."""
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        data = LENGTH.pack(len(content)) + content
        if descriptors:
            sent_bytes = socket.send_fds(self.socket, [data], descriptors)
            data = data[sent_bytes:]
        if data:
            self.socket.sendall(data)

    def receive(self) -> list[Any]:
        """Wait for bytes, and return the objects that are complete now. Raises EOFError at the end, OSError.

        Descriptors that arrive with the bytes are appended to `descriptors`.
        """
        data, descriptors, _, _ = socket.recv_fds(
            self.socket, RECEIVE_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        if not data:
            raise EOFError
        self.data += data
        self.descriptors += descriptors
        messages = []
        while len(self.data) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self.data)
            end = LENGTH.size + length
            if len(self.data) < end:
                break
            messages.append(pickle.loads(self.data[LENGTH.size : end]))
            del self.data[:end]
        return messages


class RemoteWorker:
    """A worker in a statement process, as the regulating process sees it.

    error_flag: shows whether the regulating process may still answer the job with an error. on_done: called after
    each job. job: the running one, or None. expires_at: when its time limit ends (time.monotonic()).
    cancel_again_at: the earliest time of the next order to cancel it. gateway_lost: the connection to the gateway
    of the last job cannot be used any more.
    """

    def __init__(
        self,
        process: StatementProcess,
        number: int,
        error_flag: ErrorFlag,
        on_done: Callable[[RemoteWorker], None],
    ) -> None:
        """number: of the worker in its process. The class describes the others."""
        self.process = process
        self.number = number
        self.error_flag = error_flag
        self.on_done = on_done
        self.database: Database | None = None
        self.gateway_lost = False
        self.job: Job | None = None
        self.expires_at = self.cancel_again_at = 0.0

    def start(self, job: Job) -> None:
        """Make the worker answer a request. The time limit of the statement begins now."""
        self.job = job
        self.database = job.database
        self.expires_at = time.monotonic() + job.time_limit_s
        self.cancel_again_at = 0.0
        self.process.running_count += 1
        self.error_flag.allow()
        descriptors, packed_connection = job.gateway_connection.pack()
        # The process makes its own object of the connection, from `packed_connection`
        job = job._replace(gateway_connection=None)  # type: ignore[arg-type]
        self.process.send_order((self.number, packed_connection, job), descriptors)

    def cancel(self, error: DatabaseError) -> None:
        """Cancel the running statement, unless the last order to do so is younger than RETRY_CANCEL_S."""
        now = time.monotonic()
        if self.job is not None and now >= self.cancel_again_at:
            self.cancel_again_at = now + RETRY_CANCEL_S
            self.process.send_order((self.number, error.kind, str(error)))

    def expire_now(self) -> None:
        """Set the deadline of the statement to now."""
        self.expires_at = min(self.expires_at, time.monotonic())

    def check_deadline(self, now: float) -> None:
        """Cancel a statement that is over its deadline; if that has no effect, kill its process."""
        if now > self.expires_at:
            self.cancel(
                DatabaseError("TIMEOUT", "the statement was cancelled after the time limit (time-limit)")
            )
        if now > self.expires_at + KILL_AFTER_S:
            self.process.kill(self)

    def loss_error(self) -> DatabaseError:
        """Return the error for the gateway of a job whose process has ended."""
        if self.process.stuck_worker is self:
            return DatabaseError(
                "TIMEOUT",
                "the process of the statement was killed, since the statement did not react to its cancellation",
            )
        if self.process.stuck_worker is not None:
            return DatabaseError(
                "UNAVAILABLE",
                "the process of the statement was killed, since another statement in it did not end",
            )
        return DatabaseError("UNAVAILABLE", "the process that ran the statement has ended")

    def note_end(self, gateway_lost: bool, is_connected: bool) -> None:
        """Note that the process has reported the end of the job, and call on_done().

        gateway_lost: the connection to the gateway cannot be used any more. is_connected: the worker keeps its
        connection to the database.
        """
        assert self.job is not None
        self.process.running_count -= 1
        self.process.ended_count += 1
        self.database = self.job.database if is_connected else None
        self.job = None
        self.gateway_lost = gateway_lost
        self.on_done(self)


class StatementProcess:
    """One statement process, as the regulating process sees it. workers: in the order of their numbers."""

    def __init__(
        self,
        log: ErrorLog,
        worker_count: int,
        memory_bytes: int,
        on_done: Callable[[RemoteWorker], None],
        worker_class: type[WorkerThread] = WorkerThread,
    ) -> None:
        """Fork the process. Raises OSError.

        memory_bytes: the limit for its statements.
        """
        self.running_count = self.ended_count = 0  # jobs
        self.started_at = time.monotonic()
        # The process was killed because of this worker's statement
        self.stuck_worker: RemoteWorker | None = None
        memory_of_flags = mmap.mmap(-1, worker_count)
        error_flags = [ErrorFlag(memory_of_flags, number) for number in range(worker_count)]
        self.workers = [
            RemoteWorker(self, number, error_flag, on_done) for number, error_flag in enumerate(error_flags)
        ]
        our_end, process_end = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            run_statement_process(process_end, log, error_flags, memory_bytes, worker_class)
        process_end.close()
        our_end.settimeout(ORDER_TIMEOUT_S)
        self.channel = Channel(our_end)

    def fileno(self) -> int:
        """Return the descriptor of the socket to the process."""
        return self.channel.socket.fileno()

    def send_order(self, message: tuple[Any, ...] | str, descriptors: list[int] | None = None) -> None:
        """Send an order. Kill a process that does not accept it; its end is then read from the socket."""
        try:
            self.channel.send(message, descriptors)
        except OSError:
            self.kill()

    def read_reports(self) -> bool:
        """Handle the reports of the process; return False if it has ended."""
        try:
            messages = self.channel.receive()
        except (EOFError, OSError):
            return False
        for number, gateway_lost, is_connected in messages:  # from OrderExecutor.report()
            self.workers[number].note_end(gateway_lost, is_connected)
        return True

    def kill(self, stuck: RemoteWorker | None = None) -> None:
        """Kill the process. stuck: the worker whose statement cannot be ended otherwise."""
        self.stuck_worker = self.stuck_worker or stuck
        send_signal(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process, and reap it."""
        self.channel.socket.close()
        self.kill()
        exit_status(self.pid)


def run_statement_process(
    sock: socket.socket,
    log: ErrorLog,
    error_flags: list[ErrorFlag],
    memory_bytes: int,
    worker_class: type[WorkerThread],
) -> None:
    """Run a statement process: carry out orders until the regulating process has ended; never return."""
    status = 1
    try:
        # The parent's objects must not be collected here: they would close descriptors that now have other files
        gc.freeze()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)  # the regulating process handles them, and sends orders
        trace_descriptor = worker_class.trace.file if worker_class.trace else -1
        used_descriptors = sorted({0, 1, 2, sock.fileno(), log.file.descriptor, trace_descriptor} - {-1})
        # Close all descriptors between two used ones, and above the last
        for lower, upper in zip(
            used_descriptors, [*used_descriptors[1:], os.sysconf("SC_OPEN_MAX")], strict=True
        ):
            os.closerange(lower + 1, upper)
        limit_memory(memory_bytes)
        OrderExecutor(Channel(sock), log, error_flags, worker_class).run()
        status = 0
    except BaseException as bug:
        log.write("error", f"a statement process ends: {type(bug).__name__}: {bug}")
    finally:
        os._exit(status)


def reopen(log: ErrorLog) -> None:
    """Open a log again after it was renamed; if that fails, the old file stays in use."""
    try:
        log.file.open()
    except OSError as reason:
        log.write("error", f"cannot write {log.file.path}: {reason.strerror}; the old file stays in use")


def limit_memory(extra_bytes: int) -> None:
    """Limit the address space of this process to its present size plus `extra_bytes`.

    If the system has no /proc, which tells the present size, there is no limit (macOS).
    """
    try:
        with open("/proc/self/statm", "rb") as file:
            pages, *_ = file.read().split()  # the size of the address space: proc(5)
            present_bytes = int(pages) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit_bytes = present_bytes + extra_bytes
    if hard != resource.RLIM_INFINITY:
        limit_bytes = min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, hard))


class OrderExecutor:
    """Carries out the orders of the regulating process, in the statement process, by its workers."""

    def __init__(
        self, channel: Channel, log: ErrorLog, error_flags: list[ErrorFlag], worker_class: type[WorkerThread]
    ) -> None:
        """channel: to the regulating process. error_flags: one for each worker."""
        self.worker_class = worker_class
        self.channel = channel
        self.log = log
        self.error_flags = error_flags
        # By the number of the worker, as in the orders: a worker begins with its first job
        self.workers: dict[int, WorkerThread] = {}
        self.gateway_connections: dict[int, GatewayConnection] = {}  # those to which the workers answer

    def run(self) -> None:
        """Carry out orders until the regulating process has ended."""
        while True:
            try:
                messages = self.channel.receive()
            except (EOFError, ConnectionError):
                return
            for message in messages:
                match message:
                    case str(order) if order == REOPEN_LOG:
                        reopen(self.log)
                    # From RemoteWorker.cancel(): the kind and the text of the error for the gateway
                    case (int(number), str(kind), str(text)):
                        self.workers[number].cancel(DatabaseError(kind, text))
                    # From RemoteWorker.start()
                    case (int(number), tuple(packed_connection), Job() as job):
                        self.start(number, packed_connection, job)

    def start(self, number: int, packed_connection: tuple[Any, ...], job: Job) -> None:
        """Make a worker answer a request. number: of the worker.

        packed_connection: the arguments that GatewayConnection.pack() has returned in the regulating process. The
        descriptor of the connection has arrived with this order, or before it. job: without the connection.
        """
        gateway_connection = unpack_connection([self.channel.descriptors.popleft()], packed_connection)
        self.gateway_connections[number] = gateway_connection
        worker = self.workers.get(number)
        if worker is None:
            worker = self.worker_class(
                self.log, self.error_flags[number], lambda worker: self.report(number, worker)
            )
            self.workers[number] = worker
        worker.start(job._replace(gateway_connection=gateway_connection))

    def report(self, number: int, worker: WorkerThread) -> None:
        """Report that a worker has finished its job, to StatementProcess.read_reports(). Runs in the worker's
        thread.
        """
        # This process's copy of the connection: the regulating process keeps the gateway's connection open
        self.gateway_connections.pop(number).close()
        is_connected = worker.database is not None  # the worker keeps its connection to the database
        message = pickle.dumps((number, worker.gateway_lost, is_connected), pickle.HIGHEST_PROTOCOL)
        try:
            # One short message is sent completely, so messages of several threads do not mix
            self.channel.socket.send(LENGTH.pack(len(message)) + message)
        except OSError:
            pass  # the regulating process has ended
