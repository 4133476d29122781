"""The main module: one event loop between web servers, which speak FastCGI, and engines.

It has no privileges: who a script belongs to, and its engine, it has from suexecme.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ewe.logger import ErrorLog
from ewe.xswitch import channel
from ewe.xswitch.fastcgi_link import FastCGILink
from ewe.xswitch.front import Front
from ewe.xswitch.links import EngineLink, Link
from ewe.xswitch.loop import Loop
from ewe.xswitch.pool import Pool, Waiter
from ewe.xswitch.protocol import ProtocolError
from ewe.xswitch.settings import EngineKind, Settings, from_message
from ewe.xswitch.shared import SharedLink
from ewe.xswitch.status import STATUS_PATH, answer_status
from ewe.xswitch.task import NO_ENGINE, Task
from ewe.xswitch.user_logs import UserLogs
from ewe.xswitch.webapp import WEB_INF, Applications, NoApplication

TICK = 0.1  # seconds between looks at what takes too long
LOOKED = 2.0  # seconds that suexecme's word on a script holds while the file is the same
MAX_FOUND = 5000  # scripts whose owner is remembered
GRACE = 10.0  # seconds that requests have to end at a stop
AT_ONCE = 64  # connections taken before others have their turn
CROWDED = 1.0  # seconds until it is tried again where there are no descriptors for one
MAX_WALK = 50  # parts of a path that may follow the script's name


class Found(NamedTuple):
    """What suexecme has said of a script."""

    signature: tuple[int, ...]
    until: float
    user: str
    kind: EngineKind | None
    path: str  # without links: one may lead elsewhere by the time that an engine is free
    variables: dict[bytes, bytes]  # of its environment, whatever the web server says


class Switch:
    """The main module."""

    def __init__(self, settings: Settings, orders: socket.socket, log: ErrorLog) -> None:
        """orders: to suexecme."""
        self.settings = settings
        self.orders = orders
        self.log = log
        self.user_logs = UserLogs()
        self.loop = Loop(self.on_fault)
        self.pool = Pool(settings, self.start_engine)
        self.fronts: set[Front] = set()
        self.links: dict[int, Link] = {}  # pid -> engine
        self.replies: dict[
            int, Callable[[dict[str, Any]], None]
        ] = {}  # id of an order -> who waits for its answer
        self.orders_sent = 0
        self.found: dict[str, Found] = {}
        self.applications = Applications()
        self.since = time.monotonic()
        self.stopping = False
        self.failed = False
        orders.setblocking(False)
        self.loop.add_reader(orders, self.on_orders)
        self.loop.call_later(TICK, self.tick)

    # A request comes

    def accept(self, front: Front, params: dict[bytes, bytes], body: Sequence[bytes]) -> Task | None:
        """Take a request: find out what its script is, and whose. body: what has come of it, b"" its end."""
        self.pool.counters["requests"] += 1
        if params.get(b"SCRIPT_NAME", b"") + params.get(b"PATH_INFO", b"") == STATUS_PATH or (
            params.get(b"DOCUMENT_URI") == STATUS_PATH
        ):
            front.end(answer_status(self, params), 0)
            return None
        file = script_file(params)
        try:
            application = self.applications.find(file, params, self.settings)
        except NoApplication as reason:
            Task(front, params, file).fail(reason.status, str(reason))
            return None
        if application is not None:
            path = f"{application.directory}/{WEB_INF}"
            signature = signature_of(path)
        else:
            path, signature = script_path(file, params)
        task = Task(front, params, path)
        task.application = application
        if task.input_left < 0:
            task.fail(400, "CONTENT_LENGTH is no number")
        for piece in body:
            if not task.ended:
                task.on_input(piece)
        if task.ended:
            return task
        if not task.script:
            task.fail(400, "SCRIPT_FILENAME is missing: the web server must send it")
        elif self.stopping:
            task.fail(503, "stopping")
        else:
            self.look(task, signature)
        return task

    def look(self, task: Task, signature: tuple[int, ...]) -> None:
        """Learn whose script it is: from memory, while it is the same file, or from suexecme."""
        found = self.found.get(task.script)
        if found is not None and found.signature == signature and found.until > time.monotonic():
            self.submit(task, found)
            return

        def looked(answer: dict[str, Any]) -> None:
            if "refused" in answer:
                task.user = answer.get("user", "")
                task.fail(answer["status"], answer["refused"])
                return
            until = time.monotonic() + LOOKED
            kind = self.settings.kind_for(task.script, answer["interpreter"])
            variables = own_variables(answer["user"], answer["home"], answer["path"])
            found = Found(signature, until, answer["user"], kind, answer["path"], variables)
            if len(self.found) >= MAX_FOUND:
                self.found.clear()
            self.found[task.script] = found
            if not task.ended and task.front is not None:
                self.submit(task, found)

        self.order({"order": "look", "path": task.script}, (), looked)

    def submit(self, task: Task, found: Found) -> None:
        """Hand a request to the pool."""
        kind = self.kind_for(task, found)
        if kind is None:
            cause = "no engine for it: neither its directory, its extension nor its first line names one"
            task.fail(500, cause, NO_ENGINE)
            return
        task.user, task.script, task.own = found.user, found.path, found.variables
        if task.application is not None:
            task.application = task.application.at(os.path.dirname(found.path))
        task.key = (found.user, kind.name)
        try:
            if kind.protocol == "engine":
                task.write_lines()
        except ProtocolError as error:
            task.fail(431, str(error))
            return
        self.pool.submit(task)

    def kind_for(self, task: Task, found: Found) -> EngineKind | None:
        """Return the engine for a script; the web server may name it, as the paper's mod_x does."""
        named = task.params.get(b"XSWITCH_ENGINE")
        if named:
            return self.settings.engines.get(named.decode("latin-1"))
        return found.kind

    # Engines

    def start_engine(self, waiter: Waiter) -> Link | None:
        """Begin an engine for a request, and give it the request; None: that was refused."""
        task: Task = waiter  # type: ignore[assignment]
        kind = self.settings.engines.get(task.key[1])
        if kind is None:
            task.fail(500, f"there is no engine {task.key[1]} any more")
            return None
        try:
            link, given = (
                self.engine_link(task, kind) if kind.protocol == "engine" else self.fastcgi_link(task, kind)
            )
        except OSError as reason:
            task.fail(503, f"no sockets for an engine: {reason.strerror}")
            return None

        def started(answer: dict[str, Any]) -> None:
            if "pid" in answer:
                link.pid = answer["pid"]
                self.links[link.pid] = link
                if link.closed:
                    self.bury(link)
            elif not link.closed:
                link.refused(answer["status"], answer["refused"])

        link.give(task)  # before the order: what listens for it is ours until then
        numbers = [each if isinstance(each, int) else each.fileno() for each in given]
        self.order({"order": "start", "path": task.script, "engine": kind.name}, numbers, started)
        for each in given:
            os.close(each) if isinstance(each, int) else each.close()
        return link

    def engine_link(self, task: Task, kind: EngineKind) -> tuple[Link, Sequence[socket.socket | int]]:
        """Return our end of an engine that speaks the engine protocol, and its descriptors."""
        data, its_data = socket.socketpair()
        control, its_control = socket.socketpair()
        errors, its_errors = os.pipe2(os.O_CLOEXEC)
        return EngineLink(self, task.key, data, control, errors), (its_data, its_errors, its_control)

    def fastcgi_link(self, task: Task, kind: EngineKind) -> tuple[Link, Sequence[socket.socket | int]]:
        """Return our end of an engine that speaks FastCGI, and its descriptors.

        It is given a listening socket, to which we connect; then its name is removed, so that nobody else can.
        Until then it is in a directory that only we may enter.
        """
        directory = tempfile.mkdtemp(prefix="xswitch-")
        path = os.path.join(directory, "engine")
        listener = socket.socket(socket.AF_UNIX)
        data = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(path)
            listener.listen(kind.connections)
            data.connect(path)
            door = os.open(path, os.O_PATH | os.O_CLOEXEC) if kind.connections > 1 else -1
            os.unlink(path)
        except OSError:
            listener.close()
            data.close()
            raise
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        errors, its_errors = os.pipe2(os.O_CLOEXEC)
        if kind.connections > 1:
            link: Link = SharedLink(self, task.key, data, errors, door, kind.connections)
        else:
            link = FastCGILink(self, task.key, data, errors)
        return link, (listener, its_errors)

    def bury(self, link: Link) -> None:
        """Have suexecme end an engine, and all that it has left behind."""
        if link.pid:
            self.links.pop(link.pid, None)
            self.bury_process(link.pid)

    def bury_process(self, pid: int) -> None:
        """The same, again and again until suexecme has room for the order."""
        try:
            channel.send(self.orders, {"order": "bury", "pid": pid})
        except BlockingIOError:
            self.loop.call_later(TICK, self.bury_process, pid)
        except OSError:
            pass  # it has gone, and its engines with it

    # Orders and answers

    def order(
        self,
        message: dict[str, Any],
        descriptors: Sequence[int],
        then: Callable[[dict[str, Any]], None],
    ) -> None:
        """Send an order to suexecme; then: called with its answer."""
        self.orders_sent += 1
        self.replies[self.orders_sent] = then
        try:
            channel.send(self.orders, {**message, "id": self.orders_sent}, descriptors)
        except (OSError, ValueError) as reason:
            del self.replies[self.orders_sent]
            text = getattr(reason, "strerror", None) or str(reason)
            self.loop.call_soon(then, {"refused": f"suexecme cannot be asked: {text}", "status": 503})

    def on_orders(self) -> None:
        """Take what suexecme says."""
        try:
            received = channel.receive(self.orders)
        except BlockingIOError:
            return
        except OSError:
            received = None
        if received is None:
            self.loop.remove_reader(self.orders)
            self.log.error("suexecme has gone; starting anew")
            self.fall()
            return
        message, descriptors = received
        for descriptor in descriptors:
            self.user_logs.take(message["user"], descriptor)
        if "ended" in message:
            if (link := self.links.pop(message["ended"], None)) is not None:
                link.ended(message["status"])
        elif "settings" in message:
            self.change_settings(from_message(message["settings"]))
        elif (then := self.replies.pop(message["id"], None)) is not None:
            then(message)

    def change_settings(self, settings: Settings) -> None:
        """Go on with other settings; idle engines whose kind has changed end, the others stay."""
        before, self.settings = self.settings, settings
        self.pool.settings = settings
        self.found.clear()
        self.user_logs.clear()
        for worker in [worker for workers in self.pool.idle.values() for worker in workers]:
            language = worker.key[1]
            if settings.engines.get(language) != before.engines.get(language):
                self.pool.end(worker)

    def fall(self) -> None:
        """suexecme has gone, and every engine with it: tell all who wait, and end."""
        self.stopping = self.failed = True
        for link in list(self.pool.workers):
            link.broken("suexecme has gone")  # type: ignore[attr-defined]
        for front in list(self.fronts):
            if front.task is not None:
                front.task.fail(502, "suexecme has gone")
        self.loop.call_later(0.05, self.loop.stop)  # for what is being written

    # Web servers

    def listen(self, listener: socket.socket) -> None:
        """Take connections as they come."""
        self.loop.add_reader(listener, lambda: self.take(listener))

    def take(self, listener: socket.socket) -> None:
        """Take the connections that wait."""
        for _ in range(AT_ONCE):
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as reason:
                self.log.error(f"cannot take connections: {reason.strerror}")
                self.loop.remove_reader(listener)
                self.loop.call_later(CROWDED, self.listen_again, listener)
                return
            Front(self, sock)

    def listen_again(self, listener: socket.socket) -> None:
        """Go on after a pause."""
        if not self.stopping:
            self.listen(listener)

    # Time

    def tick(self) -> None:
        """Look for what takes too long."""
        self.loop.call_later(TICK, self.tick)
        now = time.monotonic()
        self.pool.tick(now)
        for front in [front for front in self.fronts if front.leaves_at < now]:
            front.close()

    def say(self, user: str, message: str, level: str = "warning") -> None:
        """Log what concerns a user's script, and let the user know."""
        self.log.write(level, f"{user or '-'} {message}")
        self.user_logs.write(user, message)

    def on_fault(self, fault: Exception) -> None:
        """Log a fault of our own code, which the event loop is handling."""
        self.log.exception("fault in the main module")

    def stop(self, listeners: Sequence[socket.socket]) -> None:
        """Take no more requests; end when those that run have ended, within reason."""
        self.stopping = True
        for listener in listeners:
            self.loop.remove_reader(listener)
        for front in list(self.fronts):
            if front.task is None:
                (front.leave_off if front.outbox.pending else front.close)()
        self.end_with_the_last(time.monotonic() + GRACE)

    def end_with_the_last(self, until: float) -> None:
        """Look again and again whether all have ended."""
        if self.fronts and time.monotonic() < until:
            self.loop.call_later(0.02, self.end_with_the_last, until)
        else:
            self.loop.stop()


def script_file(params: dict[bytes, bytes]) -> str:
    """Return the file that the web server names; Apache says proxy:fcgi://localhost/path."""
    raw = params.get(b"SCRIPT_FILENAME", b"")
    if raw.startswith(b"proxy:"):
        raw = b"/" + raw.partition(b"://")[2].partition(b"/")[2]
    return os.fsdecode(raw)


def signature_of(path: str) -> tuple[int, ...]:
    """Return what changes when a file or directory does, empty if we cannot see it."""
    try:
        return signed(os.stat(path))
    except (OSError, ValueError):
        return ()


def signed(status: os.stat_result) -> tuple[int, ...]:
    """Return what of a file's status changes when the file does."""
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def script_path(whole: str, params: dict[bytes, bytes]) -> tuple[str, tuple[int, ...]]:
    """Return the script's path, and what changes when the script does (empty if we cannot see it).

    What follows its name in the path becomes PATH_INFO, where the web server has left it there.
    """
    path = whole
    signature: tuple[int, ...] = ()
    for _ in range(MAX_WALK):
        try:
            status = os.stat(path)
        except NotADirectoryError:
            path = os.path.dirname(path)
            continue
        except (OSError, ValueError):
            return whole, ()
        if not stat.S_ISREG(status.st_mode):
            return whole, ()
        signature = signed(status)
        break
    if path is not whole:
        rest = os.fsencode(whole[len(path) :])
        params[b"PATH_INFO"] = rest
        params[b"SCRIPT_NAME"] = params.get(b"SCRIPT_NAME", b"").removesuffix(rest)
    return path, signature


def own_variables(user: str, home: str, path: str) -> dict[bytes, bytes]:
    """Return what a script's environment says of it and of its owner, whatever a web server says."""
    return {
        b"SCRIPT_FILENAME": os.fsencode(path),
        b"PATH": b"/usr/local/bin:/usr/bin:/bin",
        b"HOME": os.fsencode(home),
        b"USER": user.encode(),
    }


def serve(
    settings: Settings,
    listeners: Sequence[socket.socket],
    orders: socket.socket,
    log: ErrorLog,
) -> int:
    """Serve until a signal or suexecme's end; return the exit status."""
    switch = Switch(settings, orders, log)
    for listener in listeners:
        listener.setblocking(False)
        switch.listen(listener)
    for number in (signal.SIGTERM, signal.SIGINT):
        switch.loop.add_signal_handler(number, lambda: switch.stop(listeners))
    switch.loop.run()
    for front in list(switch.fronts):
        front.close()
    return 1 if switch.failed else 0
