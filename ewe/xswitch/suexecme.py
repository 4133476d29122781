"""suexecme: keeps the privilege to start an engine as a user, after checking the script; reads no network.

One loop, started before anything listens. The main module asks over a nameless socket pair (`channel`):

    {"order": "look", "id": N, "path": P}                   whose is this script, and may it run?
    {"order": "start", "id": N, "path": P, "engine": E}     start an engine for its owner; descriptors: data,
                                                            errors, control (or listening socket, errors)
    {"order": "bury", "pid": N}                             end an engine and all that it has left behind

Answers carry the id: {"user", "uid", "home", "interpreter", "path"}, {"pid"} or {"refused", "status", "user"}; the
first and the last come with the descriptor of the user's log, if there are such logs.
{"ended", "status"} comes when an engine has ended, {"settings"} when they were read anew (HUP). Commands, users
and limits come from the settings that were read here, never from the main module.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from ewe.config import ConfigError
from ewe.logger import ErrorLog
from ewe.xswitch import channel
from ewe.xswitch.process import CONTROL, Account, become, clean_environment, orphans_come_here, start
from ewe.xswitch.rules import Refusal, examine, owner_of
from ewe.xswitch.settings import WORK, EngineKind, Settings, as_message
from ewe.xswitch.user_logs import doubt, open_log
from ewe.xswitch.warm import WarmParent
from ewe.xswitch.work import Works

ROUNDS = (
    200  # of killing orphans: one that forks all the time may be ahead for a while, as far as its limit goes
)


class Suexecme:
    """The loop and its engines."""

    def __init__(
        self, main: socket.socket, settings: Settings, reload: Callable[[], Settings], log: ErrorLog
    ) -> None:
        self.main = main
        self.settings = settings
        self.reload = reload
        self.log = log
        self.log_directory = usable(settings)
        self.engines: dict[int, Account] = {}  # pid of a leader of a session -> whose it is
        self.killed: set[int] = set()  # those of them that were, and are ending
        self.ended: dict[int, int] = {}  # pid of one that has ended by itself -> uid, until it is buried
        self.warm: dict[str, WarmParent] = {}
        self.works = Works()
        self.wake, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # it ends when the main module has gone

    def run(self) -> None:
        """Serve until the main module has gone; no engine outlives this."""
        orphans_come_here()
        self.start_warm()
        poller = select.poll()
        poller.register(self.main, select.POLLIN)
        poller.register(self.wake, select.POLLIN)
        try:
            while True:
                ready = {descriptor for descriptor, _ in poller.poll()}
                if self.wake in ready:
                    self.on_signals(os.read(self.wake, 4096))
                if self.main.fileno() in ready:
                    received = channel.receive(self.main)
                    if received is None:
                        return
                    self.obey(*received)
        finally:
            self.end_all()

    def on_signals(self, numbers: bytes) -> None:
        """Do what has been signalled."""
        if signal.SIGCHLD in numbers and (uids := self.reap()):
            self.end_orphans(uids)
        if signal.SIGHUP in numbers:
            before = self.settings
            try:
                self.settings = self.reload()
            except ConfigError as error:
                self.log.error(f"settings not read anew: {error}")
                return
            self.log_directory = usable(self.settings)
            for name in ("listen", "socket_mode", "socket_group", "user"):
                if getattr(self.settings, name) != getattr(before, name):
                    self.log.warning(f"{name.replace('_', '-')} has changed, which only a new start takes up")
            for doubt in self.settings.doubts():
                self.log.warning(doubt)
            self.start_warm()
            self.log.info("settings read anew")
            self.tell({"settings": as_message(self.settings)})

    def obey(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Carry out an order of the main module."""
        try:
            if message["order"] == "look":
                account, answer = self.look(message["path"])
                self.tell_of(account, {"id": message["id"], **answer})
            elif message["order"] == "start":
                self.tell(
                    {"id": message["id"], **self.start(message["path"], message["engine"], descriptors)}
                )
            elif message["order"] == "bury":
                self.bury(message["pid"])
        except Refusal as refusal:
            self.log.warning(f"refused {message['path']}: {refusal.reason}")
            refused = {"id": message["id"], "refused": refusal.reason, "status": refusal.status}
            self.tell_of(owner_of(message["path"], self.settings), refused)
        except OSError as reason:
            self.log.error(f"engine for {message.get('path')} not started: {reason.strerror}")
            self.tell({"id": message["id"], "refused": str(reason.strerror), "status": 503})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def tell(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send to the main module, if it is there."""
        try:
            channel.send(self.main, message, descriptors)
        except OSError:
            pass

    def tell_of(self, account: Account | None, message: dict[str, Any]) -> None:
        """Send what concerns a user, and the user's log with it."""
        descriptors = []
        if account is not None:
            message["user"] = account.name
            if self.log_directory and account.name != self.settings.user:
                try:
                    descriptors.append(open_log(self.log_directory, account))
                except OSError as reason:
                    self.log.warning(f"user-logs: no log for {account.name}: {reason.strerror}")
        self.tell(message, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def look(self, path: str) -> tuple[Account, dict[str, Any]]:
        """Return whose script this is, and what the main module must know of it. Raises Refusal."""
        script = examine(path, self.settings)
        return script.account, {
            "uid": script.account.uid,
            "home": script.account.home,
            "interpreter": script.interpreter,
            "path": script.path,
        }

    def start(self, path: str, engine: str, descriptors: list[int]) -> dict[str, Any]:
        """Start an engine for the owner of a script. Raises Refusal, OSError."""
        kind = self.settings.engines.get(engine)
        if kind is None:
            raise Refusal(f"there is no engine {engine}", 500)
        if kind.program and not os.path.exists(kind.program):
            raise Refusal(f"the engine {engine} is not built: run `ewe-xswitch {engine}`", 500)
        account = examine(path, self.settings).account
        warm = self.warm.get(engine)
        if warm is not None and (pid := warm.start(account, self.settings.limits_of(kind), descriptors)):
            self.engines[pid] = account
            return {"pid": pid}
        pid = self.start_cold(kind, account, descriptors)
        self.engines[pid] = account
        return {"pid": pid}

    def start_cold(self, kind: EngineKind, account: Account, descriptors: list[int]) -> int:
        """Start an engine by its command."""
        limits = self.settings.limits_of(kind)
        first, errors, *control = descriptors
        if kind.protocol == "engine":
            numbers = {0: first, 1: first, 2: errors, CONTROL: control[0]}
        else:
            numbers = {0: first, 1: errors, 2: errors}
        environment = {**clean_environment(account), **kind.environment}
        command = kind.command
        work = self.works.make(account) if any(WORK in word for word in command) else ""
        if work:
            command = tuple(word.replace(WORK, work) for word in command)
        # An engine of ours sees by its children what a script has left. php-cgi or a JVM would never reap them, and
        # its user could soon start no more processes.
        adopts = kind.protocol == "engine"
        pid = start(command, environment, numbers, lambda: become(account, limits), adopts)
        self.works.belongs(work, pid, account)
        return pid

    # Ends

    def reap(self) -> set[int]:
        """Take the exit status of every child that has ended.

        Return whose engines have, that were killed: what they had in other sessions has only now come here.
        """
        uids: set[int] = set()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return uids
            if not pid:
                return uids
            self.works.removers.discard(pid)
            if pid in self.engines:
                uid = self.engines.pop(pid).uid
                if pid in self.killed:
                    self.killed.remove(pid)
                    uids.add(uid)
                else:
                    self.ended[pid] = uid
                self.works.ended(pid)
                self.tell({"ended": pid, "status": os.waitstatus_to_exitcode(status)})
            for name, warm in list(self.warm.items()):
                if warm.pid == pid:
                    self.log.error(f"the warm parent of {name} has ended; engines start without it")
                    warm.close()
                    del self.warm[name]

    def bury(self, pid: int) -> None:
        """End an engine, and what its user has left without an engine to belong to."""
        account = self.engines.get(pid)
        uid = self.ended.pop(pid, -1) if account is None else account.uid
        try:
            if account is not None:
                self.killed.add(pid)
                os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.end_orphans({uid})

    def end_orphans(self, uids: set[int] | None = None) -> None:
        """Kill what engines that have ended left behind: orphans become children of this process.

        uids: only what is theirs. Of others, who left it may still live: an orphan can be in a session of its own.
        """
        killed: set[int] = set()
        for _ in range(ROUNDS):
            living = {*self.engines, *self.works.removers, os.getsid(0)}
            living |= {warm.pid for warm in self.warm.values()}
            orphans = [
                child
                for child in children()
                if child not in living
                and session(child) not in living
                and (uids is None or owner(child) in uids)
            ]
            for orphan in orphans:
                try:
                    os.kill(orphan, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            ended = self.reap()
            if not orphans and not ended:
                return
            if uids is not None:
                uids |= ended
            if killed.issuperset(orphans):  # they are dying; what they have started comes here when they have
                time.sleep(0.001)
            killed.update(orphans)

    def end_all(self) -> None:
        """Kill every engine, and all that they have left."""
        for pid in (*self.engines, *(warm.pid for warm in self.warm.values())):
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.engines.clear()
        for warm in self.warm.values():
            warm.close()
        self.warm.clear()
        self.end_orphans()
        self.works.end()

    # Warm parents

    def start_warm(self) -> None:
        """Start a warm parent for each language that has one, and end those that are no longer wanted."""
        wanted = {
            name: kind
            for name, kind in self.settings.engines.items()
            if self.settings.warm and kind.warm is not None
        }
        for name, warm in list(self.warm.items()):
            if wanted.get(name) != warm.kind:
                del self.warm[name]
                warm.end()
        for name, kind in wanted.items():
            if name not in self.warm:
                try:
                    self.warm[name] = WarmParent(kind)
                except OSError as reason:
                    self.log.error(f"no warm parent for {name}: {reason.strerror}")


def usable(settings: Settings) -> str:
    """Return the directory of the users' logs, "" where there is none or others may write into it."""
    return "" if settings.user_logs and doubt(settings.user_logs) else settings.user_logs


def children() -> list[int]:
    """Return the children of this process."""
    with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
        return [int(word) for word in file.read().split()]


def session(pid: int) -> int:
    """Return the session of a process, 0 if it has gone."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def owner(pid: int) -> int:
    """Return the user of a process, -1 if it has gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(b"Uid:"))
    except (OSError, StopIteration):
        return -1
