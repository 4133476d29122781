"""The database daemon: gateways ask, permanent connections answer.

    gateway ──frame──▶ main thread ──job──▶ worker 1: connection to `log`  ──▶ database
    gateway ──frame──▶    epoll    queue ─▶ worker 2: connection to `shop`
                            ▲                  │ sends the result to the gateway itself
                            └── socket: done ──┘

The daemon consists of several processes. This file is the regulating process, which gateways connect to. The
workers are in statement processes (statement_processes.py, worker.py). The regulating process kills a statement
process if a statement cannot be ended otherwise. The connections to gateways may be sockets, pipes or message
queues (acceptors.py); this file treats all alike.

The regulating process has one thread, and it never waits for a database. It accepts connections, reads requests,
checks the rights of each gateway, and gives each request to a worker. All requests wait in one queue for all
databases, first come, first served: a gateway that asks often cannot overtake one that asked before it.

The kernel, not the peer, says which account asks: on a Unix socket, the user id of the process that connected
(SO_PEERCRED). If the permissions of the socket decided instead, every student's script could use every database.
The owner of a named pipe or a message queue proves the account just as well. TCP has no such proof, so the daemon
asks for a key. A peer that has not proved its account yet may use only bounded resources (gateways.py).

A worker blocks while it sends to a gateway that reads slowly: for `write_timeout` without a byte, and at the latest
until a second after the statement's time limit.
"""

from __future__ import annotations

import json
import os
import pwd
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from ewe.child_slots import BackOff, ChildSlot
from ewe.database.acceptors import (
    Acceptor,
    GatewayConnection,
    account_name,
    cached_account_name,
    open_acceptors,
)
from ewe.database.drivers import DRIVERS
from ewe.database.gateways import REQUEST_TIMEOUT_S, Gateway, Gateways, LogRateLimit
from ewe.database.protocol import (
    ClientRequest,
    DatabaseError,
    ProtocolError,
    ServerResponse,
    decode_request,
    encode_response,
    error_response,
)
from ewe.database.settings import MAX_QUOTED_NAME_CHARS, Settings, unknown_database
from ewe.database.statement_processes import REOPEN_LOG, RemoteWorker, StatementProcess, reopen
from ewe.database.worker import Job, WorkerThread
from ewe.logger import ErrorLog
from ewe.registry import load
from ewe.streams import systemd

DEADLINE_CHECK_S = 0.1  # seconds between two checks of the deadlines
# A process that always fails at its start must not use all of the processor. The wait does not grow, since a
# statement that ends its process must not keep the other gateways waiting.
RESTART_S = 1.0
BACK_OFF = BackOff(young_s=RESTART_S, shortest_s=RESTART_S, longest_s=RESTART_S)
WAKEUP_BYTES = 4096  # bytes that one read takes out of the pipe for signals
GRACE_S = 10.0  # seconds that running requests have when the daemon is asked to stop


class QueuedJob:
    """A request in the queue. queued_at: by time.monotonic()."""

    def __init__(self, gateway: Gateway, job: Job) -> None:
        self.gateway = gateway
        self.job = job
        self.queued_at = time.monotonic()


class PendingStart(ChildSlot):
    """A statement process that is to start. connections: the number of its workers."""

    def __init__(self, connections: int) -> None:
        super().__init__(BACK_OFF)
        self.connections = connections


class Daemon:
    """Serves until it is asked to stop; see the module's docstring."""

    worker_class: type[WorkerThread] = WorkerThread

    def __init__(self, settings: Settings, reload: Callable[[], Settings], log: ErrorLog) -> None:
        """Open the addresses. reload: reads the settings again. Raises ewe.streams.listener.StartError."""
        self.settings = settings
        self.reload = reload
        self.log = log
        preload_drivers(settings)
        self.accounts = accounts_of(settings, log)  # database -> the uids that may use it
        self.acceptors = open_acceptors(settings.listen, settings.write_timeout)
        self.acceptors_by_descriptor = {acceptor.fileno(): acceptor for acceptor in self.acceptors}
        self.gateways = Gateways()
        self.log_rate_limit = LogRateLimit()
        self.dropped_connections: list[GatewayConnection] = []  # until close_dropped()
        self.queue: deque[QueuedJob] = deque()
        self.gateways_by_worker: dict[RemoteWorker, Gateway] = {}  # those whose requests run
        self.idle_workers: list[RemoteWorker] = []  # the one that was idle longest comes first
        self.workers: list[RemoteWorker] = []
        self.finished_workers: deque[RemoteWorker] = deque()  # have answered; until take_back_workers()
        self.processes: dict[int, StatementProcess] = {}  # by descriptor
        self.pending_starts: list[PendingStart] = []  # of processes that have ended, or could not be started
        self.ended_count = 0  # jobs
        self.refused_count = 0  # requests and connections that got an error without a worker
        # The monotonic time at which the daemon ends; None: it was not asked to stop
        self.stop_by: float | None = None
        # After a lack of descriptors, the monotonic time at which epoll watches the acceptors again; else None
        self.listen_again_at: float | None = None
        self.signals: deque[int] = deque()
        self.epoll = select.epoll()
        # Python writes the numbers of signals to this pipe, which wakes epoll
        self.wakeup_reader, self.wakeup_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    # The main thread

    def run(self) -> None:
        """Serve until TERM or INT; HUP reads the settings again, USR1 opens the log again."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, lambda number, _: self.signals.append(number))
        signal.set_wakeup_fd(self.wakeup_writer, warn_on_full_buffer=False)
        self.epoll.register(self.wakeup_reader, select.EPOLLIN)
        for descriptor in self.acceptors_by_descriptor:
            self.epoll.register(descriptor, select.EPOLLIN)
        try:
            self.adjust_processes()
            systemd.notify("READY=1")  # only now: a HUP before the handlers would end the daemon
            while not self.is_over():
                for descriptor, events in self.epoll.poll(DEADLINE_CHECK_S):
                    self.handle_events(descriptor, events)
                self.close_dropped()
                while self.signals:
                    self.on_signal(self.signals.popleft())
                self.collect_finished()
                self.enforce_deadlines(time.monotonic())
                self.dispatch()
        finally:
            self.close()

    def handle_events(self, descriptor: int, events: int) -> None:
        """Handle the events that epoll reports of one descriptor."""
        if descriptor == self.wakeup_reader:
            os.read(self.wakeup_reader, WAKEUP_BYTES)
        elif descriptor in self.acceptors_by_descriptor:
            self.accept(self.acceptors_by_descriptor[descriptor])
        elif descriptor in self.processes:
            process = self.processes[descriptor]
            if not process.read_reports():
                self.replace_process(process)
        elif (gateway := self.gateways.by_descriptor.get(descriptor)) is not None:
            self.handle_gateway_events(gateway, events)

    def handle_gateway_events(self, gateway: Gateway, events: int) -> None:
        """Read the request of a gateway, or drop the gateway if it has left.

        A busy gateway has a request that waits or runs. Its next bytes stay unread until that is answered.
        """
        # A worker may have answered since the last round. Its gateway is then no longer busy, and the event may be
        # the next request
        if gateway.is_busy and self.finished_workers:
            self.collect_finished()
        if self.gateways.by_descriptor.get(gateway.connection.fileno()) is not gateway:
            return  # collect_finished() has dropped it
        if gateway.is_busy:
            if gateway.connection.shows_end(events):
                self.gateway_left(gateway)
            self.watch_only_for_end(gateway)
        elif events & select.EPOLLIN:
            self.receive(gateway)
        else:
            self.drop(gateway)

    def accept(self, acceptor: Acceptor) -> None:
        """Accept connections, and read the bytes that the acceptor has received for existing ones."""
        try:
            for connection in acceptor.ready_connections():
                gateway = self.gateways.by_descriptor.get(connection.fileno())
                if gateway is None:
                    self.register_gateway(Gateway(connection, acceptor))
                elif not gateway.is_busy:
                    self.receive(gateway)
                else:
                    # The connection keeps a busy gateway's bytes until the request is answered, up to a limit
                    if connection.must_be_dropped():
                        self.gateway_left(gateway)
                    self.gateways.update(gateway)
                    self.enforce_limits()
        except OSError as reason:
            # No descriptor is left. epoll would report the waiting connection again at once, and the loop would
            # spin. Watch for no connections until listen_again_at
            self.log.write(
                "error", f"cannot accept: {reason.strerror}; trying again in {DEADLINE_CHECK_S:g} s"
            )
            self.watch_listeners(0)  # no events
            self.listen_again_at = time.monotonic() + DEADLINE_CHECK_S

    def register_gateway(self, gateway: Gateway) -> None:
        """Register a new connection. If its account may use no database, close it at once."""
        connection = gateway.connection
        if gateway.uid is not None and not self.may_connect(gateway.uid):
            self.refused_count += 1
            self.log_fault(gateway, "it may use no database here, so the connection is closed (users)")
            error = DatabaseError("FORBIDDEN", f"{gateway.peer_name} may not use a database here")
            self.send_now_or_drop(gateway, error_response(error))
            gateway.acceptor.forget(connection)
            connection.close()
            return
        self.gateways.add(gateway)
        self.epoll.register(connection.fileno(), connection.idle_events)
        self.enforce_limits()

    def may_connect(self, uid: int) -> bool:
        """Return whether an account may ask anything: a database, or the status."""
        return uid in (0, os.geteuid()) or any(uid in accounts for accounts in self.accounts.values())

    def enforce_limits(self) -> None:
        """Close connections while there are too many, or while their requests take too much memory."""
        for gateway, reason in self.gateways.connections_to_close():
            self.log_fault(gateway, f"a connection is closed: {reason}")
            if gateway.is_busy:
                self.gateway_left(gateway)
            else:
                error = DatabaseError("UNAVAILABLE", "too many requests at once")
                self.send_now_or_drop(gateway, error_response(error))
            self.drop(gateway)

    def log_fault(self, gateway: Gateway, message: str) -> None:
        """Log a peer's fault, unless its account has had enough lines (LogRateLimit)."""
        if line := self.log_rate_limit.line_to_log(gateway.uid, f"{gateway.peer_name}: {message}"):
            self.log.write("warning", line)

    def watch_listeners(self, events: int) -> None:
        """Make epoll report these events of the listening sockets."""
        for descriptor in self.acceptors_by_descriptor:
            self.epoll.modify(descriptor, events)

    def receive(self, gateway: Gateway) -> None:
        """Read a gateway's bytes; once a request is complete, queue it."""
        try:
            data = gateway.connection.receive()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop(gateway)
            return
        try:
            gateway.feed(data, self.settings)
        except ProtocolError as error:
            self.refuse(gateway, DatabaseError("MESSAGE", str(error)), closes=True)
            return
        self.queue_next_request(gateway)
        self.enforce_limits()

    def queue_next_request(self, gateway: Gateway) -> None:
        """Queue the gateway's next request, if it is complete; drop a gateway that does not read its answers.

        A request without a database asks for the status. It is answered here, and so is one that is refused. The
        first request that is queued ends the loop: a gateway has at most one request in the queue.
        """
        gateway.request_bytes = 0  # of the request before, which is answered
        while not gateway.has_left:
            size = len(gateway.decoder.data)
            try:
                fields = gateway.decoder.next_frame()
                if fields is None:
                    break
                if gateway.is_authenticated:  # a refused request gives a peer without a key no more time
                    self.gateways.incomplete_since.pop(gateway, None)
                request = decode_request(fields)
            except ProtocolError as error:
                self.refuse(gateway, DatabaseError("MESSAGE", str(error)), closes=True)
                return
            if self.queue_or_answer(gateway, request):
                gateway.request_bytes = size - len(gateway.decoder.data)
                break
        self.gateways.update(gateway)
        if gateway.has_left:
            self.drop(gateway)
        elif not gateway.is_busy and gateway.connection.has_received():
            self.receive(gateway)

    def queue_or_answer(self, gateway: Gateway, request: ClientRequest) -> bool:
        """Queue a request, and return True: the gateway is busy until its answer.

        Or answer it here with the status, or with an error, and return False.
        """
        if not request.database:
            self.send_now_or_drop(gateway, self.status_response(gateway))
            return False
        try:
            job = self.job_for(gateway, request)
            if len(self.queue) >= self.settings.queue:  # the setting: how many may wait
                raise DatabaseError("UNAVAILABLE", "the queue is full (queue)")
        except DatabaseError as error:
            self.refuse(gateway, error)
            return False
        gateway.is_busy = True
        self.queue.append(QueuedJob(gateway, job))
        return True

    def watch_only_for_end(self, gateway: Gateway) -> None:
        """Make epoll report only the disconnection of a busy gateway, once. The connection keeps its next bytes."""
        if self.gateways.by_descriptor.get(gateway.connection.fileno()) is not gateway:
            return  # the gateway waited in the queue, and was dropped
        events = select.EPOLLONESHOT if gateway.has_left else gateway.connection.busy_events
        self.epoll.modify(gateway.connection.fileno(), events)
        gateway.is_muted = True

    def job_for(self, gateway: Gateway, request: ClientRequest) -> Job:
        """Return the job of a request. Raises DatabaseError if the gateway may not make this request."""
        database_settings = self.settings.databases.get(request.database)
        quoted_name = repr(request.database[:MAX_QUOTED_NAME_CHARS])
        # The same message for a database that does not exist and for one that this peer may not use
        if database_settings is None or not gateway.may_use(
            database_settings, self.accounts[request.database], request.key
        ):
            reason = (
                unknown_database(request.database, self.settings)
                if database_settings is None
                else "it may not use this database"
            )
            self.log_fault(gateway, f"{quoted_name}: {reason}")
            raise DatabaseError("FORBIDDEN", f"{gateway.peer_name} may not use a database {quoted_name}")
        user = ""
        if database_settings.per_user:
            if gateway.uid is None:
                raise DatabaseError("FORBIDDEN", f"{quoted_name} is not used through TCP (per-user)")
            user = account_name(gateway.uid)
        time_limit_s = min(self.settings.time_limit, request.time_limit or self.settings.time_limit)
        return Job(
            request,
            database_settings.database(request.database, read_only=request.read_only, user=user),
            gateway.connection,
            max_rows=self.settings.rows,
            time_limit_s=time_limit_s,
            write_timeout_s=self.settings.write_timeout,
        )

    def refuse(self, gateway: Gateway, error: DatabaseError, *, closes: bool = False) -> None:
        """Answer with an error. closes: close the connection, since the beginning of its next frame is unknown."""
        self.refused_count += 1
        self.send_now_or_drop(gateway, error_response(error))
        if closes:
            self.log_fault(gateway, str(error))
            self.drop(gateway)

    def send_now_or_drop(self, gateway: Gateway, response: ServerResponse) -> None:
        """Send a short response without waiting; note that a gateway without room for it has left."""
        if not gateway.connection.send_now(encode_response(response)):
            gateway.has_left = True

    def gateway_left(self, gateway: Gateway) -> None:
        """Note that a gateway has left while its request waits or runs.

        A waiting request leaves the queue. cancel_expired_statements() cancels a running one.
        """
        gateway.has_left = True
        for queued in [queued for queued in self.queue if queued.gateway is gateway]:
            self.queue.remove(queued)
            self.drop(gateway)

    def drop(self, gateway: Gateway) -> None:
        """Forget a gateway, and close its connection after all events that epoll has reported together are handled.

        An event of this connection may still be among them. If its descriptor were free, a new connection could get
        that event.
        """
        connection = gateway.connection
        if self.gateways.remove(gateway):
            self.epoll.unregister(connection.fileno())
            gateway.acceptor.forget(connection)
            self.dropped_connections.append(connection)

    def close_dropped(self) -> None:
        """Close the connections that were dropped."""
        while self.dropped_connections:
            self.dropped_connections.pop().close()

    # Jobs

    def dispatch(self) -> None:
        """Give waiting requests to free workers, in order.

        The least busy process comes first. Among its equals, a worker whose connection fits comes first, then a
        worker without a connection.
        """
        while self.queue and self.idle_workers:
            queued = self.queue.popleft()
            if queued.gateway.has_left:
                self.drop(queued.gateway)
                continue
            database = queued.job.database
            worker = min(
                self.idle_workers,
                key=lambda idle: (
                    idle.process.running_count,
                    idle.database != database,
                    idle.database is not None,
                ),
            )
            self.idle_workers.remove(worker)
            self.gateways_by_worker[worker] = queued.gateway
            worker.start(queued.job)

    def collect_finished(self) -> None:
        """Call take_back_workers(), and adjust the number of statement processes to the settings."""
        self.take_back_workers()
        self.adjust_processes()

    def take_back_workers(self) -> None:
        """Make the workers that have finished idle again, and read the next requests of their gateways."""
        while self.finished_workers:
            worker = self.finished_workers.popleft()
            gateway = self.gateways_by_worker.pop(worker)
            gateway.is_busy = False
            self.ended_count += 1
            # The worker that was idle longest stands first; its connection is replaced first
            self.idle_workers.append(worker)
            if worker.gateway_lost or gateway.has_left:
                self.drop(gateway)
                continue
            self.await_request(gateway)

    def await_request(self, gateway: Gateway) -> None:
        """Continue with a gateway that has its answer: its next request may have come already."""
        if gateway.is_muted:
            self.epoll.modify(gateway.connection.fileno(), gateway.connection.idle_events)
            gateway.is_muted = False
        if gateway.connection.has_received():
            self.receive(gateway)
        else:
            self.queue_next_request(gateway)

    def enforce_deadlines(self, now: float) -> None:
        """Enforce the deadlines of waiting requests, running statements, incomplete requests, and pauses."""
        if self.listen_again_at is not None and now >= self.listen_again_at and self.stop_by is None:
            self.listen_again_at = None
            self.watch_listeners(select.EPOLLIN)
        self.refuse_expired_requests(now)
        self.cancel_expired_statements(now)
        for gateway in self.gateways.overdue_gateways(now):
            error = DatabaseError("MESSAGE", f"the request was not complete within {REQUEST_TIMEOUT_S:g} s")
            self.refuse(gateway, error, closes=True)
        if self.pending_starts and self.stop_by is None:
            pending, self.pending_starts = self.pending_starts, []
            for start in pending:
                if start.is_due(now):
                    # If the system cannot make a process, start_process() plans another start.
                    self.start_process(start.connections)
                else:
                    self.pending_starts.append(start)

    def refuse_expired_requests(self, now: float) -> None:
        """Refuse the requests that have waited longer than `queue_timeout` for a worker."""
        while self.queue and now - self.queue[0].queued_at > self.settings.queue_timeout:  # [0]: the oldest
            queued = self.queue.popleft()
            queued.gateway.is_busy = False
            self.refuse(
                queued.gateway, DatabaseError("UNAVAILABLE", "no connection became free (queue-timeout)")
            )
            self.await_request(queued.gateway)

    def cancel_expired_statements(self, now: float) -> None:
        """Cancel the statements that are over their time limit, and those of gateways that have left."""
        for worker, gateway in self.gateways_by_worker.items():
            if gateway.has_left:  # cancel again: the statement may not have begun when the gateway left
                worker.cancel(DatabaseError("TIMEOUT", "cancelled, since the gateway has left"))
                worker.expire_now()
            worker.check_deadline(now)

    # Signals, status

    def on_signal(self, number: int) -> None:
        """Handle a signal: TERM and INT stop the daemon, the second one at once."""
        if number == signal.SIGHUP:
            systemd.notify("RELOADING=1")
            self.read_settings()
            systemd.notify("READY=1")  # with the new settings or the old ones
        elif number == signal.SIGUSR1:
            self.reopen_log()
        elif self.stop_by is None:
            systemd.notify("STOPPING=1")
            self.stop_by = time.monotonic() + GRACE_S
            for descriptor in self.acceptors_by_descriptor:
                self.epoll.unregister(descriptor)
        else:
            self.stop_by = 0.0  # the second signal: do not wait for running requests

    def reopen_log(self) -> None:
        """Open the log again after it was renamed, in all processes."""
        reopen(self.log)
        for process in self.processes.values():
            process.send_order(REOPEN_LOG)

    def read_settings(self) -> None:
        """Read the settings again; a faulty file changes nothing. Some settings change only at a restart."""
        try:
            settings = self.reload()
        except ValueError as error:
            self.log.write("error", f"the settings cannot be used, the old ones stay: {error}")
            return
        # With `daemons`, each statement process was started with its part of the connections
        shares_connections = settings.daemons or self.settings.daemons
        for name in (
            "listen",
            "daemons",
            "memory",
            "trace",
            *(("connections",) if shares_connections else ()),
        ):
            if getattr(settings, name) != getattr(self.settings, name):
                self.log.write("warning", f"{name}: a change needs a restart")
                settings = replace(settings, **{name: getattr(self.settings, name)})
        self.settings = settings
        self.accounts = accounts_of(settings, self.log)
        cached_account_name.cache_clear()  # a uid may belong to another account now
        self.adjust_processes()
        self.log.write("info", "the settings were read again")

    def adjust_processes(self) -> None:
        """Start or end statement processes as the settings demand. A process ends only while it is idle.

        With the setting `daemons`, so many processes share the connections, and their number does not change. With
        its default, 0, each connection has its own process.
        """
        daemons, connections = self.settings.daemons, self.settings.connections
        if daemons:
            if not self.processes and not self.pending_starts:
                for number in range(daemons):
                    # The parts differ by 1 at most, and their sum is `connections`
                    self.start_process((connections + number) // daemons)
            return
        while len(self.processes) + len(self.pending_starts) < connections:
            self.start_process(1)
        while len(self.processes) + len(self.pending_starts) > connections and self.idle_workers:
            self.end_process(self.idle_workers[0].process)

    def start_process(self, connections: int) -> None:
        """Start a statement process with `connections` workers. If the system cannot make one, try again later."""
        try:
            process = StatementProcess(
                self.log, connections, self.settings.memory, self.finished_workers.append, self.worker_class
            )
        except OSError as reason:
            self.log.write(
                "error",
                f"cannot start a statement process: {reason.strerror}; trying again in {RESTART_S:g} s",
            )
            start = PendingStart(connections)
            start.plan(RESTART_S)
            self.pending_starts.append(start)
            return
        self.processes[process.fileno()] = process
        self.gateways.process_count = len(self.processes)
        self.epoll.register(process.fileno(), select.EPOLLIN)
        self.workers += process.workers
        self.idle_workers += process.workers

    def replace_process(self, process: StatementProcess) -> None:
        """Replace a statement process that has ended: report the loss to the gateways that it served.

        A process that has run for less than RESTART_S is replaced only after RESTART_S, any other at once.
        """
        # Some of its workers may have reported the end of their jobs: these jobs are not lost
        self.take_back_workers()
        lost = [
            (worker, self.gateways_by_worker.pop(worker))
            for worker in process.workers
            if worker.job is not None
        ]
        start = PendingStart(len(process.workers))
        start.plan_after_death(process.started_at)
        self.pending_starts.append(start)
        self.end_process(process)
        event = (
            "was killed, since a statement did not end" if process.stuck_worker is not None else "has ended"
        )
        self.log.write("error", f"a statement process (pid {process.pid}) {event}; starting another")
        for worker, gateway in lost:
            self.report_loss(gateway, worker)

    def end_process(self, process: StatementProcess) -> None:
        """End a process whose workers are idle or lost, and forget it and its workers."""
        self.epoll.unregister(process.fileno())
        del self.processes[process.fileno()]
        self.gateways.process_count = len(self.processes)
        process.close()
        self.workers = [worker for worker in self.workers if worker.process is not process]
        self.idle_workers = [worker for worker in self.idle_workers if worker.process is not process]

    def report_loss(self, gateway: Gateway, worker: RemoteWorker) -> None:
        """Tell a gateway that the process of its statement has ended.

        If the process ended while it sent a part of the answer, close the connection: an error would be read as the
        rest of that part.
        """
        gateway.is_busy = False
        if gateway.has_left or not worker.error_flag.is_allowed():
            self.drop(gateway)
            return
        assert worker.job is not None
        error = worker.loss_error()
        self.log.write(
            "warning", f"{gateway.peer_name}: database {worker.job.database.name}: {error.kind}: {error}"
        )
        self.refuse(gateway, error)
        self.await_request(gateway)

    def status_response(self, gateway: Gateway) -> ServerResponse:
        """Return the daemon's state as JSON; an error for all accounts but root and the daemon's own."""
        if gateway.uid not in (0, os.geteuid()):
            error = DatabaseError(
                "FORBIDDEN", "only root and the daemon's own account may ask for the status"
            )
            return error_response(error)
        processes = [
            {
                "pid": process.pid,
                "running": process.running_count,
                "served": process.ended_count,
                "connections": connected_databases(process.workers),
            }
            for process in self.processes.values()
        ]
        finished_count = len(self.finished_workers)  # take_back_workers() has not counted their jobs yet
        summary = {
            "pid": os.getpid(),
            "gateways": len(self.gateways),
            "waiting": len(self.queue),
            "running": len(self.gateways_by_worker) - finished_count,
            "connections": connected_databases(self.workers),
            "served": self.ended_count + finished_count,
            "refused": self.refused_count,
            "daemons": processes,
            "demons": processes,  # the former name of the key, which programs may read
        }
        return ServerResponse(json.dumps(summary, indent=2).encode() + b"\n", more=False)

    def is_over(self) -> bool:
        """Return whether the daemon has been asked to stop, and no work is left or the time is over."""
        if self.stop_by is None:
            return False
        return time.monotonic() > self.stop_by or not (
            self.gateways_by_worker or self.queue or self.finished_workers
        )

    def close(self) -> None:
        """Close everything, and kill the processes that still run."""
        for gateway in list(self.gateways.by_descriptor.values()):
            self.drop(gateway)
        self.close_dropped()
        for acceptor in self.acceptors:
            acceptor.close()
        for process in self.processes.values():
            process.close()


def preload_drivers(settings: Settings) -> None:
    """Load the drivers once, before the statement processes are forked. Each request reports a missing driver."""
    for driver in {database_settings.driver for database_settings in settings.databases.values()}:
        try:
            load(DRIVERS[driver])
        except ImportError:
            pass


def connected_databases(workers: Iterable[RemoteWorker]) -> list[str]:
    """Return the names of the databases that workers are connected to."""
    return [worker.database.name for worker in workers if worker.database is not None]


def accounts_of(settings: Settings, log: ErrorLog) -> dict[str, set[int]]:
    """Return the uids that may use each database. A name without an account is logged.

    The names are looked up at the start: a lookup needs a descriptor, and later there may be none.
    """
    uids_by_database: dict[str, set[int]] = {}
    for database, database_settings in settings.databases.items():
        uids = uids_by_database[database] = set() if database_settings.users else {os.geteuid()}
        for name in database_settings.users:
            try:
                uids.add(pwd.getpwnam(name).pw_uid)
            except KeyError:
                log.write("warning", f"[databases.{database}] users: there is no account {name!r}")
    return uids_by_database
