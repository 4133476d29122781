"""The database demon: gateways ask, permanent connections answer.

    gateway ──frame──▶ main thread ──job──▶ worker 1: connection to `log`  ──▶ database
    gateway ──frame──▶    epoll    queue ─▶ worker 2: connection to `shop`
                            ▲                  │ sends the result to the gateway itself
                            └──── pipe: done ──┘

The main thread owns everything but the statements: it accepts, reads requests, decides who may ask, and hands each
request to a worker. All its state is its own, so it needs no lock. A request waits in one queue for all databases,
first come, first served: no gateway waits longer than those who came before it, however often others ask.

Who may ask is decided by the kernel's word, not by the peer's: on a Unix socket, the user id of the process that
connected (SO_PEERCRED). If the permissions of the socket decided instead, every student's script could use every
database. On TCP there is no such word, so a key is asked for.

A worker blocks while it sends to a gateway that reads slowly, for at most `write_timeout`.
"""

from __future__ import annotations

import hmac
import json
import os
import pwd
import select
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Container
from functools import lru_cache

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
from ewe.streams.listener import close_sockets, open_sockets

BACKLOG = 1024
LOOK = 0.1  # seconds between two looks at the deadlines
RECEIVE = 64 * 1024
CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
GRACE = 10.0  # seconds in which the demon finishes what it has begun when it is asked to stop


class Gateway:
    """A connection of a gateway. uid: of its process; None on TCP.

    busy: its request waits or runs. left: its connection is of no use any more.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.decoder = Decoder()
        self.uid: int | None = None
        self.who = "TCP"
        self.busy = False
        self.left = False
        if sock.family == socket.AF_UNIX:
            pid, self.uid, _ = CREDENTIALS.unpack(
                sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            )
            self.who = f"{name_of(self.uid)} (pid {pid})"

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
        self.sockets = open_sockets(settings.listen, BACKLOG, settings.write_timeout)
        self.listening = {sock.fileno(): sock for sock in self.sockets}
        self.gateways: dict[int, Gateway] = {}
        self.queue: deque[Waiting] = deque()
        self.running: dict[Worker, Gateway] = {}
        self.free: list[Worker] = []
        self.workers: list[Worker] = []
        self.finished: deque[Worker] = deque()
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
        self.resize()
        try:
            while not self.is_over():
                for descriptor, events in self.epoll.poll(LOOK):
                    self.handle(descriptor, events)
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
        elif (gateway := self.gateways.get(descriptor)) is not None:
            if gateway.busy:
                self.leave(gateway)
            elif events & select.EPOLLIN:
                self.receive(gateway)
            else:
                self.drop(gateway)

    def accept(self, listening: socket.socket) -> None:
        """Take a connection."""
        try:
            sock, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as reason:
            # No descriptor is left. epoll would report the connection again at once
            self.log.write("error", f"cannot accept: {reason.strerror}; trying again in {LOOK:g} s")
            self.listen_for(0)
            self.listen_again_at = time.monotonic() + LOOK
            return
        sock.setblocking(False)
        gateway = Gateway(sock)
        self.gateways[sock.fileno()] = gateway
        self.epoll.register(sock, select.EPOLLIN)

    def listen_for(self, events: int) -> None:
        """Have epoll report these events of the listening sockets."""
        for descriptor in self.listening:
            self.epoll.modify(descriptor, events)

    def receive(self, gateway: Gateway) -> None:
        """Read what a gateway sends; if it is a whole request, queue it."""
        try:
            data = gateway.socket.recv(RECEIVE)
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

    def admit(self, gateway: Gateway, request: ClientRequest) -> None:
        """Queue a request that the gateway may make. Raises DatabaseError."""
        job = self.job(gateway, request)
        if len(self.queue) >= self.settings.queue:
            raise DatabaseError("UNAVAILABLE", "the queue is full (queue)")
        gateway.busy = True
        self.queue.append(Waiting(gateway, job))
        # From here on only its leaving matters: what it sends stays in the socket
        self.epoll.modify(gateway.socket, select.EPOLLRDHUP | select.EPOLLONESHOT)

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
        limit = min(self.settings.time_limit, request.time_limit or self.settings.time_limit)
        return Job(
            request,
            own.database(request.database, read_only=request.read_only),
            gateway.socket,
            gateway.who,
            self.settings.rows,
            limit,
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
        data = encode_response(response)
        try:
            if gateway.socket.send(data, socket.MSG_DONTWAIT) == len(data):
                return
        except OSError:
            pass
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
        """Close a gateway's connection."""
        if self.gateways.pop(gateway.socket.fileno(), None) is not None:
            self.epoll.unregister(gateway.socket)
            gateway.socket.close()

    # Jobs

    def dispatch(self) -> None:
        """Give waiting requests to free workers, in order; a worker whose connection fits comes first."""
        while self.queue and self.free:
            waiting = self.queue.popleft()
            if waiting.gateway.left:
                self.drop(waiting.gateway)
                continue
            database = waiting.job.database
            worker = next((each for each in self.free if each.database == database), None)
            worker = worker or next((each for each in self.free if each.database is None), self.free[0])
            self.free.remove(worker)
            self.running[worker] = waiting.gateway
            waiting.gateway.socket.settimeout(self.settings.write_timeout)
            worker.start(waiting.job)

    def finish(self, worker: Worker) -> None:
        """Note that a worker is free; called in its thread."""
        self.finished.append(worker)
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
            gateway.socket.setblocking(False)
            self.epoll.modify(gateway.socket, select.EPOLLIN)
            self.next_request(gateway)
        self.resize()

    def expire(self, now: float) -> None:
        """Refuse what has waited too long, cancel what runs too long, and accept again after a pause."""
        if self.listen_again_at is not None and now >= self.listen_again_at and self.stop_by is None:
            self.listen_again_at = None
            self.listen_for(select.EPOLLIN)
        while self.queue and now - self.queue[0].since > self.settings.patience:
            waiting = self.queue.popleft()
            waiting.gateway.busy = False
            self.epoll.modify(waiting.gateway.socket, select.EPOLLIN)
            self.refuse(waiting.gateway, DatabaseError("UNAVAILABLE", "no connection became free (patience)"))
            self.next_request(waiting.gateway)  # one that came in the same segment
        for worker in self.running:
            if now > worker.expires:
                worker.cancel(DatabaseError("TIMEOUT", "cancelled after the time limit"))

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
        except OSError as reason:
            self.log.write("error", f"USR1: {self.log.file.path}: {reason.strerror}")

    def read_settings(self) -> None:
        """Read the settings again; those that are wrong change nothing. `listen` needs a restart."""
        try:
            settings = self.reload()
        except ValueError as error:
            self.log.write("error", f"HUP: {error}; the settings stay as they are")
            return
        if settings.listen != self.settings.listen:
            self.log.write("warning", "HUP: listen has changed: restart the demon for it")
        self.settings = settings
        self.accounts = accounts_of(settings, self.log)
        self.resize()
        self.log.write("info", "HUP: the settings are read again")

    def resize(self) -> None:
        """Have as many workers as the settings say; those that run end after their statement."""
        while len(self.workers) < self.settings.connections:
            worker = Worker(self.log, self.finish)
            self.workers.append(worker)
            self.free.append(worker)
        while len(self.workers) > self.settings.connections and self.free:
            worker = self.free.pop(0)
            self.workers.remove(worker)
            worker.jobs.put(None)

    def status(self, gateway: Gateway) -> ServerResponse:
        """Return what the demon does, as JSON; only for root and its own user."""
        if gateway.uid not in (0, os.geteuid()):
            error = DatabaseError("FORBIDDEN", "the status is for the demon's own user and root")
            return ServerResponse(b"", False, error)
        about = {
            "pid": os.getpid(),
            "gateways": len(self.gateways),
            "waiting": len(self.queue),
            "running": len(self.running),
            "connections": [worker.database.name for worker in self.workers if worker.database is not None],
            "served": self.served,
            "refused": self.refused,
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
            worker.jobs.put(None)
        if any(each.startswith("fd:") for each in self.settings.listen):
            for sock in self.sockets:
                sock.close()  # its name belongs to the parent, who may start another demon
        else:
            close_sockets(self.sockets)
        for gateway in list(self.gateways.values()):
            self.drop(gateway)


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


def name_of(uid: int) -> str:
    """Return the name of an account, for messages; its number if there is none."""
    try:
        return known_name(uid)
    except KeyError:
        return str(uid)


@lru_cache(1000)
def known_name(uid: int) -> str:
    """Return the name of an account: a lookup opens a file, which each connection would pay. Raises KeyError."""
    return pwd.getpwuid(uid).pw_name
