"""The database demon: gateways ask, permanent connections answer.

    gateway ──frame──▶ main thread ──job──▶ worker 1: connection to `log`  ──▶ database
    gateway ──frame──▶    epoll    queue ─▶ worker 2: connection to `shop`
                            ▲                  │ sends the result to the gateway itself
                            └── socket: done ──┘

A worker runs in another process (demons.py, worker.py), which this one kills if a statement cannot be ended
otherwise. The lines to gateways may be sockets, pipes or message queues (lines.py), which makes no difference here.

This process has one thread, and it never waits for a database. It accepts, reads requests, decides who may ask, and
hands each request to a worker. A request waits in one queue for all databases, first come, first served: no gateway
waits longer than those who came before it, however often others ask.

Who may ask is decided by the kernel's word, not by the peer's: on a Unix socket, the user id of the process that
connected (SO_PEERCRED). If the permissions of the socket decided instead, every student's script could use every
database. The owner of a named pipe or a message queue is as good. On TCP there is no such word, so a key is asked
for. What a peer may take before it has proved itself is bounded (gateways.py).

A worker blocks while it sends to a gateway that reads slowly, for at most `write_timeout`.

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

from ewe.database.demons import LOG, DemonProcess, Remote
from ewe.database.drivers import DRIVERS
from ewe.database.gateways import BEGUN_S, Complaints, Gateway, Gateways
from ewe.database.lines import Acceptor, Line, name_of, open_acceptors
from ewe.database.protocol import (
    ClientRequest,
    DatabaseError,
    ProtocolError,
    ServerResponse,
    decode_request,
    encode_response,
)
from ewe.database.settings import DatabaseSettings, Settings, unknown
from ewe.database.worker import Job
from ewe.logger import ErrorLog
from ewe.registry import load

LOOK = 0.1  # seconds between two looks at the deadlines
YOUNG = 1.0  # seconds: a demon that ends younger than this is started again only after so long
GRACE = 10.0  # seconds in which the demon finishes what it has begun when it is asked to stop


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
        preload(settings.databases.values())
        self.accounts = accounts_of(settings, log)
        self.acceptors = open_acceptors(settings.listen, settings.write_timeout)
        self.listening = {acceptor.fileno(): acceptor for acceptor in self.acceptors}
        self.gateways = Gateways()
        self.complaints = Complaints()
        self.closing: list[Line] = []
        self.queue: deque[Waiting] = deque()
        self.running: dict[Remote, Gateway] = {}
        self.free: list[Remote] = []
        self.workers: list[Remote] = []
        self.finished: deque[Remote] = deque()
        self.demons: dict[int, DemonProcess] = {}  # by descriptor
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
                for descriptor, events in self.epoll.poll(LOOK):
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
        elif (gateway := self.gateways.by_descriptor.get(descriptor)) is not None:
            if gateway.busy and self.finished:
                self.collect()
            if self.gateways.by_descriptor.get(descriptor) is not gateway:
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
                gateway = self.gateways.by_descriptor.get(line.fileno())
                if gateway is None:
                    self.welcome(Gateway(line, acceptor))
                elif not gateway.busy:
                    self.receive(gateway)
                elif line.is_overfull():
                    self.leave(gateway)
        except OSError as reason:
            # No descriptor is left. epoll would report the connection again at once
            self.log.write("error", f"cannot accept: {reason.strerror}; trying again in {LOOK:g} s")
            self.listen_for(0)
            self.listen_again_at = time.monotonic() + LOOK

    def welcome(self, gateway: Gateway) -> None:
        """Take a new connection. One of an account that may use no database is closed at once."""
        line = gateway.line
        if gateway.uid is not None and not self.may_come(gateway.uid):
            self.refused += 1
            self.complain(gateway, "it may use no database here, so the connection is closed (users)")
            error = DatabaseError("FORBIDDEN", f"{gateway.who} may not use a database here")
            self.say(gateway, ServerResponse(b"", False, error))
            gateway.acceptor.forget(line)
            line.close()
            return
        self.gateways.add(gateway)
        self.epoll.register(line.fileno(), line.idle_events)
        self.keep_bounds()

    def may_come(self, uid: int) -> bool:
        """Return whether an account may ask anything: a database, or the status."""
        return uid in (0, os.geteuid()) or any(uid in accounts for accounts in self.accounts.values())

    def keep_bounds(self) -> None:
        """Close connections as long as there are too many, or they hold too much."""
        for gateway, why in self.gateways.surplus():
            self.complain(gateway, f"a connection is closed: {why}")
            if gateway.busy:
                self.leave(gateway)
            else:
                error = DatabaseError("UNAVAILABLE", "too many requests at once")
                self.say(gateway, ServerResponse(b"", False, error))
            self.drop(gateway)

    def complain(self, gateway: Gateway, message: str) -> None:
        """Log what a peer does wrong."""
        if words := self.complaints.words(gateway.uid, f"{gateway.who}: {message}"):
            self.log.write("warning", words)

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
            gateway.feed(data, self.settings)
        except ProtocolError as error:
            self.refuse(gateway, DatabaseError("MESSAGE", str(error)), closes=True)
            return
        self.next_request(gateway)
        self.keep_bounds()

    def next_request(self, gateway: Gateway) -> None:
        """Queue the gateway's next request, if it is whole; a gateway that takes no answers is dropped."""
        gateway.asked = 0
        try:
            while not gateway.left:
                size = len(gateway.decoder.data)
                fields = gateway.decoder.frame()
                if fields is None:
                    break
                self.gateways.begun.pop(gateway, None)
                request = decode_request(fields)
                if not request.database:
                    self.say(gateway, self.status(gateway))
                    continue
                try:
                    self.admit(gateway, request)
                except DatabaseError as error:
                    self.refuse(gateway, error)
                    continue
                gateway.asked = size - len(gateway.decoder.data)
                break
        except ProtocolError as error:
            self.refuse(gateway, DatabaseError("MESSAGE", str(error)), closes=True)
        self.gateways.note(gateway)
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
        if self.gateways.by_descriptor.get(gateway.line.fileno()) is not gateway:
            return  # it waited in the queue, and was dropped
        events = select.EPOLLONESHOT if gateway.left else gateway.line.busy_events
        self.epoll.modify(gateway.line.fileno(), events)
        gateway.muted = True

    def job(self, gateway: Gateway, request: ClientRequest) -> Job:
        """Return the job of a request that the gateway may make. Raises DatabaseError."""
        own = self.settings.databases.get(request.database)
        # The same words for a database that does not exist and one that is not for this peer
        if own is None or not gateway.may_use(own, self.accounts[request.database], request.key):
            reason = (
                unknown(request.database, self.settings) if own is None else "it may not use this database"
            )
            self.complain(gateway, f"{request.database[:60]!r}: {reason}")
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
            self.complain(gateway, str(error))
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
                worker.hurry()

    def drop(self, gateway: Gateway) -> None:
        """Close a gateway's connection, once the events that epoll has reported together are handled.

        An event of this line may still be among them. If its number were free, a new line could get that event.
        """
        line = gateway.line
        if self.gateways.remove(gateway):
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
                key=lambda each: (each.demon.running, each.database != database, each.database is not None),
            )
            self.free.remove(worker)
            self.running[worker] = waiting.gateway
            worker.start(waiting.job)

    def finish(self, worker: Remote) -> None:
        """Note that a worker is free."""
        self.finished.append(worker)

    def collect(self) -> None:
        """Take back the workers that have finished, and have as many as the settings say."""
        self.take_back()
        self.resize()

    def take_back(self) -> None:
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
                worker.hurry()
            worker.check_time(now)
        for gateway in self.gateways.late(now):
            error = DatabaseError("MESSAGE", f"no whole request came within {BEGUN_S:g} s")
            self.refuse(gateway, error, closes=True)
        while self.stop_by is None and self.starts and now >= self.starts[0][0]:
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
        several = settings.demons or self.settings.demons
        for name in ("listen", "demons", "memory", *(("connections",) if several else ())):
            if getattr(settings, name) != getattr(self.settings, name):
                self.log.write("warning", f"HUP: {name} has changed: restart the demon for it")
                settings = replace(settings, **{name: getattr(self.settings, name)})
        self.settings = settings
        self.accounts = accounts_of(settings, self.log)
        self.resize()
        self.log.write("info", "HUP: the settings are read again")

    def resize(self) -> None:
        """Have as many demons as the settings say; one that runs a statement ends after it."""
        demons, connections = self.settings.demons, self.settings.connections
        if demons:
            if not self.demons and not self.starts:
                for number in range(demons):
                    self.start_demon((connections + number) // demons)
            return
        while len(self.demons) + len(self.starts) < connections:
            self.start_demon(1)
        while len(self.demons) + len(self.starts) > connections and self.free:
            self.forget(self.free[0].demon)

    def start_demon(self, connections: int) -> None:
        """Start a demon with so many connections; try again later if the system has no process for it."""
        try:
            demon = DemonProcess(self.log, connections, self.settings.memory, self.finish)
        except OSError as reason:
            self.log.write("error", f"cannot start a demon: {reason.strerror}; trying again in {YOUNG:g} s")
            self.starts.append((time.monotonic() + YOUNG, connections))
            return
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
        self.take_back()
        running = [(remote, self.running.pop(remote)) for remote in demon.workers if remote.job is not None]
        young = time.monotonic() - demon.born < YOUNG
        self.starts.append((time.monotonic() + (YOUNG if young else 0.0), len(demon.workers)))
        self.forget(demon)
        why = "was killed, since a statement did not end" if demon.stuck is not None else "has ended"
        self.log.write("error", f"a demon (pid {demon.pid}) {why}; starting another")
        for remote, gateway in running:
            self.tell_of_loss(gateway, remote)

    def forget(self, demon: DemonProcess) -> None:
        """End a demon, whose workers have nothing to do any more."""
        self.epoll.unregister(demon.fileno())
        del self.demons[demon.fileno()]
        demon.close()
        self.workers = [each for each in self.workers if each.demon is not demon]
        self.free = [each for each in self.free if each.demon is not demon]

    def tell_of_loss(self, gateway: Gateway, worker: Remote) -> None:
        """Tell a gateway that the process which ran its statement has ended, or close it within an answer."""
        gateway.busy = False
        if gateway.left or not worker.mark.is_open():
            self.drop(gateway)
            return
        assert worker.job is not None
        error = worker.lost()
        self.log.write(
            "warning", f"{gateway.who}: database {worker.job.database.name}: {error.kind}: {error}"
        )
        self.refuse(gateway, error)
        self.await_request(gateway)

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
        """Close all that is open, and kill what still runs."""
        for gateway in list(self.gateways.by_descriptor.values()):
            self.drop(gateway)
        self.close_lines()
        for acceptor in self.acceptors:
            acceptor.close()
        for demon in self.demons.values():
            demon.close()


def preload(databases: Iterable[DatabaseSettings]) -> None:
    """Load the drivers once, for all processes that are forked. Each request is told of one that is missing."""
    for driver in {own.driver for own in databases}:
        try:
            load(DRIVERS[driver])
        except ImportError:
            pass


def names_of(workers: Iterable[Remote]) -> list[str]:
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
