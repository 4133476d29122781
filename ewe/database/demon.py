"""The database demon: gateways ask, permanent connections answer.

    gateway ──frame──▶ main thread ──job──▶ worker 1: connection to `log`  ──▶ database
    gateway ──frame──▶    epoll    queue ─▶ worker 2: connection to `shop`
                            ▲                  │ sends the result to the gateway itself
                            └──── pipe: done ──┘

A worker is a thread (worker.py), or, with several demons, a thread of another process (demons.py). The lines to
gateways may be sockets, pipes or message queues (lines.py). Neither makes a difference here.

The main thread owns everything but the statements: it accepts, reads requests, decides who may ask, and hands each
request to a worker. All its state is its own, so it needs no lock. A request waits in one queue for all databases,
first come, first served: no gateway waits longer than those who came before it, however often others ask.

Who may ask is decided by the kernel's word, not by the peer's: on a Unix socket, the user id of the process that
connected (SO_PEERCRED). If the permissions of the socket decided instead, every student's script could use every
database. The owner of a named pipe or a message queue is as good. On TCP there is no such word, so a key is asked
for.

A worker blocks while it sends to a gateway that reads slowly, for at most `write_timeout`.

A worker that has finished wakes the main thread only if something waits for that: a request in the queue, or the
next request of the same gateway. Else the next event finds it in `finished`. Each wake-up that is saved is some 15
microseconds of CPU time for each statement.
"""

from __future__ import annotations

import hmac
import json
import os
import pwd
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import replace

from ewe.database.demons import LOG, DemonProcess, Remote
from ewe.database.lines import Acceptor, Line, name_of, open_acceptors
from ewe.database.protocol import (
    ClientRequest,
    DatabaseError,
    Decoder,
    ProtocolError,
    ServerResponse,
    decode_request,
    encode_response,
)
from ewe.database.settings import DatabaseSettings, Settings, unknown
from ewe.database.worker import Job, Worker
from ewe.logger import ErrorLog

LOOK = 0.1  # seconds between two looks at the deadlines
YOUNG = 1.0  # seconds: a demon that ends younger than this is started again only after so long
GRACE = 10.0  # seconds in which the demon finishes what it has begun when it is asked to stop


class Gateway:
    """A connection of a gateway. uid: of its process; None on TCP.

    busy: its request waits or runs. muted: epoll does not report what it sends meanwhile. left: its connection is
    of no use any more.
    """

    def __init__(self, line: Line, acceptor: Acceptor) -> None:
        self.line = line
        self.acceptor = acceptor
        self.decoder = Decoder()
        self.uid = line.uid
        self.who = line.who
        self.busy = False
        self.muted = False
        self.left = False

    def has_more(self) -> bool:
        """Return whether something of a next request has arrived."""
        return bool(self.decoder.data) or self.line.has_received()

    def may_use(self, database: DatabaseSettings, accounts: Container[int], key: str) -> bool:
        """Return whether the gateway may use a database: its account is among these, or on TCP it has the key."""
        if self.uid is None:
            return bool(database.key) and hmac.compare_digest(database.key.encode(), key.encode())
        return self.uid in accounts


class Waiting:
    """A request in the queue. since: by time.monotonic()."""

    def __init__(self, gateway: Gateway, job: Job) -> None:
        self.gateway = gateway
        self.job = job
        self.since = time.monotonic()


class Demon:
    """Serves until it is asked to stop; see the module's text."""

    def __init__(self, settings: Settings, reload: Callable[[], Settings], log: ErrorLog) -> None:
        """Open the addresses. reload: reads the settings again. Raises ewe.streams.listener.StartError."""
        self.settings = settings
        self.reload = reload
        self.log = log
        self.accounts = accounts_of(settings, log)
        self.acceptors = open_acceptors(settings.listen, settings.write_timeout)
        self.listening = {acceptor.fileno(): acceptor for acceptor in self.acceptors}
        self.gateways: dict[int, Gateway] = {}
        self.closing: list[Line] = []
        self.queue: deque[Waiting] = deque()
        self.running: dict[Worker | Remote, Gateway] = {}
        self.free: list[Worker | Remote] = []
        self.workers: list[Worker | Remote] = []
        self.finished: deque[Worker | Remote] = deque()
        self.wants_wake = False  # a worker that finishes must wake the main thread
        self.demons: dict[
            int, DemonProcess
        ] = {}  # by descriptor; empty: the workers are threads of this process
        self.starts: deque[tuple[float, int]] = deque()  # demons to start again: when, and their connections
        self.served = 0
        self.refused = 0
        self.stop_by: float | None = None
        self.listen_again_at: float | None = None
        self.signals: deque[int] = deque()
        self.epoll = select.epoll()
        self.wake_end, self.wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    # The main thread

    def run(self) -> None:
        """Serve until TERM or INT; HUP reads the settings again, USR1 opens the log again."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, lambda number, _: self.signals.append(number))
        signal.set_wakeup_fd(self.wakes, warn_on_full_buffer=False)
        self.epoll.register(self.wake_end, select.EPOLLIN)
        for descriptor in self.listening:
            self.epoll.register(descriptor, select.EPOLLIN)
        try:
            self.resize()
            while not self.is_over():
                # First the flag, then the look: a worker does it the other way round, so neither is missed
                self.wants_wake = bool(self.queue) or self.stop_by is not None
                for descriptor, events in self.epoll.poll(0 if self.finished else LOOK):
                    self.handle(descriptor, events)
                self.close_lines()
                while self.signals:
                    self.on_signal(self.signals.popleft())
                self.collect()
                self.expire(time.monotonic())
                self.dispatch()
        finally:
            self.close()

    def handle(self, descriptor: int, events: int) -> None:
        """Take what epoll reports of one descriptor."""
        if descriptor == self.wake_end:
            os.read(self.wake_end, 4096)
        elif descriptor in self.listening:
            self.accept(self.listening[descriptor])
        elif descriptor in self.demons:
            self.hear(self.demons[descriptor])
        elif (gateway := self.gateways.get(descriptor)) is not None:
            if gateway.busy and self.finished:
                self.collect()
            if self.gateways.get(descriptor) is not gateway:
                return
            if gateway.busy:
                if gateway.line.has_left(events):
                    self.leave(gateway)
                self.mute(gateway)
            elif events & select.EPOLLIN:
                self.receive(gateway)
            else:
                self.drop(gateway)

    def accept(self, acceptor: Acceptor) -> None:
        """Take connections, and what the acceptor has received for those that there are."""
        try:
            for line in acceptor.take():
                gateway = self.gateways.get(line.fileno())
                if gateway is None:
                    self.gateways[line.fileno()] = Gateway(line, acceptor)
                    self.epoll.register(line.fileno(), line.idle_events)
                elif not gateway.busy:
                    self.receive(gateway)
                elif line.is_overfull():
                    self.leave(gateway)
                else:
                    self.wake_after(gateway)
        except OSError as reason:
            # No descriptor is left. epoll would report the connection again at once
            self.log.write("error", f"cannot accept: {reason.strerror}; trying again in {LOOK:g} s")
            self.listen_for(0)
            self.listen_again_at = time.monotonic() + LOOK

    def listen_for(self, events: int) -> None:
        """Have epoll report these events of the listening sockets."""
        for descriptor in self.listening:
            self.epoll.modify(descriptor, events)

    def receive(self, gateway: Gateway) -> None:
        """Read what a gateway sends; if it is a whole request, queue it."""
        try:
            data = gateway.line.receive()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop(gateway)
            return
        try:
            gateway.decoder.feed(data)
        except ProtocolError as error:
            self.refuse(gateway, DatabaseError("MESSAGE", str(error)), closes=True)
            return
        self.next_request(gateway)

    def next_request(self, gateway: Gateway) -> None:
        """Queue the gateway's next request, if it is whole; a gateway that takes no answers is dropped."""
        try:
            while not gateway.left and (fields := gateway.decoder.frame()) is not None:
                request = decode_request(fields)
                if not request.database:
                    self.say(gateway, self.status(gateway))
                    continue
                try:
                    self.admit(gateway, request)
                except DatabaseError as error:
                    self.refuse(gateway, error)
                    continue
                return
        except ProtocolError as error:
            self.refuse(gateway, DatabaseError("MESSAGE", str(error)), closes=True)
        if gateway.left:
            self.drop(gateway)
        elif not gateway.busy and gateway.line.has_received():
            self.receive(gateway)

    def admit(self, gateway: Gateway, request: ClientRequest) -> None:
        """Queue a request that the gateway may make. Raises DatabaseError."""
        job = self.job(gateway, request)
        if len(self.queue) >= self.settings.queue:
            raise DatabaseError("UNAVAILABLE", "the queue is full (queue)")
        gateway.busy = True
        self.queue.append(Waiting(gateway, job))

    def mute(self, gateway: Gateway) -> None:
        """Have epoll report only, and once, that a busy gateway leaves: what it sends stays in its line."""
        if self.gateways.get(gateway.line.fileno()) is not gateway:
            return  # it waited in the queue, and was dropped
        events = select.EPOLLONESHOT if gateway.left else gateway.line.busy_events
        self.epoll.modify(gateway.line.fileno(), events)
        gateway.muted = True
        self.wake_after(gateway)

    def wake_after(self, gateway: Gateway) -> None:
        """Have the worker that serves a gateway wake this thread, as the gateway has sent more."""
        for worker, its in self.running.items():
            if its is gateway:
                worker.wakes = True

    def job(self, gateway: Gateway, request: ClientRequest) -> Job:
        """Return the job of a request that the gateway may make. Raises DatabaseError."""
        own = self.settings.databases.get(request.database)
        # The same words for a database that does not exist and one that is not for this peer
        if own is None or not gateway.may_use(own, self.accounts[request.database], request.key):
            reason = (
                unknown(request.database, self.settings) if own is None else "it may not use this database"
            )
            self.log.write("warning", f"{gateway.who}: {request.database[:60]!r}: {reason}")
            raise DatabaseError(
                "FORBIDDEN", f"{gateway.who} may not use a database {request.database[:60]!r}"
            )
        user = ""
        if own.per_user:
            if gateway.uid is None:
                raise DatabaseError(
                    "FORBIDDEN", f"{request.database[:60]!r} is not used through TCP (per-user)"
                )
            user = name_of(gateway.uid)
        limit = min(self.settings.time_limit, request.time_limit or self.settings.time_limit)
        return Job(
            request,
            own.database(request.database, read_only=request.read_only, user=user),
            gateway.line,
            self.settings.rows,
            limit,
            self.settings.write_timeout,
        )

    def refuse(self, gateway: Gateway, error: DatabaseError, *, closes: bool = False) -> None:
        """Answer with an error, and close the connection if its next frame's beginning is unknown."""
        self.refused += 1
        self.say(gateway, ServerResponse(b"", False, error))
        if closes:
            self.log.write("warning", f"{gateway.who}: {error}")
            self.drop(gateway)

    def say(self, gateway: Gateway, response: ServerResponse) -> None:
        """Send a short response without waiting; a gateway that has no room for it is dropped."""
        if not gateway.line.send_now(encode_response(response)):
            gateway.left = True

    def leave(self, gateway: Gateway) -> None:
        """Note that a gateway has left while its request waits or runs; the statement is cancelled."""
        gateway.left = True
        for waiting in [each for each in self.queue if each.gateway is gateway]:
            self.queue.remove(waiting)
            self.drop(gateway)
        for worker, its in self.running.items():
            if its is gateway:
                worker.cancel(DatabaseError("TIMEOUT", "cancelled, since the gateway has left"))

    def drop(self, gateway: Gateway) -> None:
        """Close a gateway's connection, once the events that epoll has reported together are handled.

        An event of this line may still be among them. If its number were free, a new line could get that event.
        """
        line = gateway.line
        if self.gateways.get(line.fileno()) is gateway:
            del self.gateways[line.fileno()]
            self.epoll.unregister(line.fileno())
            gateway.acceptor.forget(line)
            self.closing.append(line)

    def close_lines(self) -> None:
        """Close the lines that were dropped."""
        while self.closing:
            self.closing.pop().close()

    # Jobs

    def dispatch(self) -> None:
        """Give waiting requests to free workers, in order.

        A worker of the least busy demon comes first, then one whose connection fits, then one without a connection.
        """
        while self.queue and self.free:
            waiting = self.queue.popleft()
            if waiting.gateway.left:
                self.drop(waiting.gateway)
                continue
            database = waiting.job.database
            worker = min(
                self.free,
                key=lambda each: (each.load, each.database != database, each.database is not None),
            )
            self.free.remove(worker)
            self.running[worker] = waiting.gateway
            worker.wakes = waiting.gateway.muted or waiting.gateway.has_more()
            worker.start(waiting.job)

    def finish(self, worker: Worker | Remote) -> None:
        """Note that a worker is free; called in its thread."""
        self.finished.append(worker)
        if not (self.wants_wake or worker.wakes or worker.gone):
            return
        try:
            os.write(self.wakes, b"w")
        except BlockingIOError:
            pass  # the pipe is full, so the main thread is awake

    def collect(self) -> None:
        """Take back the workers that have finished, and listen to their gateways again."""
        while self.finished:
            worker = self.finished.popleft()
            gateway = self.running.pop(worker)
            gateway.busy = False
            self.served += 1
            # The longest idle stands first, and is the one to be replaced
            self.free.append(worker)
            if worker.gone or gateway.left:
                self.drop(gateway)
                continue
            self.await_request(gateway)
        self.resize()

    def await_request(self, gateway: Gateway) -> None:
        """Go on with a gateway that has its answer: its next request may have come already."""
        if gateway.muted:
            self.epoll.modify(gateway.line.fileno(), gateway.line.idle_events)
            gateway.muted = False
        if gateway.line.has_received():
            self.receive(gateway)
        else:
            self.next_request(gateway)

    def expire(self, now: float) -> None:
        """Refuse what has waited too long, cancel what runs too long, and accept again after a pause."""
        if self.listen_again_at is not None and now >= self.listen_again_at and self.stop_by is None:
            self.listen_again_at = None
            self.listen_for(select.EPOLLIN)
        while self.queue and now - self.queue[0].since > self.settings.patience:
            waiting = self.queue.popleft()
            waiting.gateway.busy = False
            self.refuse(waiting.gateway, DatabaseError("UNAVAILABLE", "no connection became free (patience)"))
            self.await_request(waiting.gateway)
        for worker, gateway in self.running.items():
            if gateway.left:  # again: the statement may not have begun when it left
                worker.cancel(DatabaseError("TIMEOUT", "cancelled, since the gateway has left"))
            if now > worker.expires:
                worker.cancel(DatabaseError("TIMEOUT", "cancelled after the time limit"))
                if isinstance(worker, Remote) and now > worker.expires + GRACE:
                    worker.demon.kill()  # it does not even cancel
        while self.starts and now >= self.starts[0][0]:
            self.start_demon(self.starts.popleft()[1])

    # Signals, status

    def on_signal(self, number: int) -> None:
        """Handle a signal: TERM and INT stop the demon, the second one at once."""
        if number == signal.SIGHUP:
            self.read_settings()
        elif number == signal.SIGUSR1:
            self.reopen_log()
        elif self.stop_by is None:
            self.stop_by = time.monotonic() + GRACE
            for descriptor in self.listening:
                self.epoll.unregister(descriptor)
        else:
            self.stop_by = 0.0

    def reopen_log(self) -> None:
        """Open the log again after it was renamed; if that fails, the old file stays in use."""
        try:
            self.log.file.open()
            for demon in self.demons.values():
                demon.order(LOG)
        except OSError as reason:
            self.log.write("error", f"USR1: {self.log.file.path}: {reason.strerror}")

    def read_settings(self) -> None:
        """Read the settings again; those that are wrong change nothing. `listen` needs a restart."""
        try:
            settings = self.reload()
        except ValueError as error:
            self.log.write("error", f"HUP: {error}; the settings stay as they are")
            return
        several = max(settings.demons, self.settings.demons) > 1
        for name in ("listen", "demons", *(("connections",) if several else ())):
            if getattr(settings, name) != getattr(self.settings, name):
                self.log.write("warning", f"HUP: {name} has changed: restart the demon for it")
                settings = replace(settings, **{name: getattr(self.settings, name)})
        self.settings = settings
        self.accounts = accounts_of(settings, self.log)
        self.resize()
        self.log.write("info", "HUP: the settings are read again")

    def resize(self) -> None:
        """Have as many workers as the settings say; those that run end after their statement."""
        demons = self.settings.demons
        if demons > 1:
            if not self.demons and not self.starts:
                for number in range(demons):
                    self.start_demon((self.settings.connections + number) // demons)
            return
        while len(self.workers) < self.settings.connections:
            worker = Worker(self.log, self.finish)
            self.workers.append(worker)
            self.free.append(worker)
        while len(self.workers) > self.settings.connections and self.free:
            idle = self.free.pop(0)
            self.workers.remove(idle)
            idle.stop()

    def start_demon(self, connections: int) -> None:
        """Start a demon with so many connections."""
        demon = DemonProcess(self.log, connections, self.finish)
        self.demons[demon.fileno()] = demon
        self.epoll.register(demon.fileno(), select.EPOLLIN)
        self.workers += demon.workers
        self.free += demon.workers

    def hear(self, demon: DemonProcess) -> None:
        """Take what a demon reports; if it has ended, close the gateways that it served, and start another."""
        try:
            demon.read()
            return
        except EOFError:
            pass
        self.epoll.unregister(demon.fileno())
        del self.demons[demon.fileno()]
        demon.close()
        self.log.write("error", f"a demon (pid {demon.pid}) has ended; starting another")
        self.collect()
        for remote in demon.workers:
            self.workers.remove(remote)
            if remote.job is None:
                self.free.remove(remote)
            else:
                self.drop(self.running.pop(remote))
        young = time.monotonic() - demon.born < YOUNG
        self.starts.append((time.monotonic() + (YOUNG if young else 0.0), len(demon.workers)))

    def status(self, gateway: Gateway) -> ServerResponse:
        """Return what the demon does, as JSON; only for root and its own user."""
        self.collect()
        if gateway.uid not in (0, os.geteuid()):
            error = DatabaseError("FORBIDDEN", "the status is for the demon's own user and root")
            return ServerResponse(b"", False, error)
        about = {
            "pid": os.getpid(),
            "gateways": len(self.gateways),
            "waiting": len(self.queue),
            "running": len(self.running),
            "connections": names_of(self.workers),
            "served": self.served,
            "refused": self.refused,
            "demons": [
                {
                    "pid": demon.pid,
                    "running": demon.running,
                    "served": demon.served,
                    "connections": names_of(demon.workers),
                }
                for demon in self.demons.values()
            ],
        }
        return ServerResponse(json.dumps(about, indent=2).encode() + b"\n", False)

    def is_over(self) -> bool:
        """Return whether the demon has been asked to stop, and may."""
        if self.stop_by is None:
            return False
        return time.monotonic() > self.stop_by or not (self.running or self.queue or self.finished)

    def close(self) -> None:
        """Close all that is open; the threads end with the process."""
        for worker in self.workers:
            worker.cancel(DatabaseError("UNAVAILABLE", "the demon ends"))
            worker.stop()
        for gateway in list(self.gateways.values()):
            self.drop(gateway)
        self.close_lines()
        for acceptor in self.acceptors:
            acceptor.close()
        for demon in self.demons.values():
            demon.close()


def names_of(workers: Iterable[Worker | Remote]) -> list[str]:
    """Return the names of the databases that workers are connected to."""
    return [worker.database.name for worker in workers if worker.database is not None]


def accounts_of(settings: Settings, log: ErrorLog) -> dict[str, set[int]]:
    """Return the user ids that may use each database. A name that no account has is logged.

    The names are looked up now, since a lookup needs a descriptor, and later there may be none.
    """
    found: dict[str, set[int]] = {}
    for database, own in settings.databases.items():
        ids = found[database] = set() if own.users else {os.geteuid()}
        for name in own.users:
            try:
                ids.add(pwd.getpwnam(name).pw_uid)
            except KeyError:
                log.write("warning", f"[databases.{database}] users: there is no account {name!r}")
    return found
