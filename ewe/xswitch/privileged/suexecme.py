"""suexecme, a root process, starts engines as the owners of their scripts when the main process orders it.

A web server's scripts should run as their owners, but only root can start a process as another user, and a process
that reads requests from the network should not be root. X-Switch therefore has three processes:

    supervisor     root       opens the listening sockets, starts the other two and starts them again
       |-- suexecme   root    this file: reads no network; one loop, one order at a time
       |     |-- engine       the script's owner, from its first instruction on
       |     |-- warm parent  root, as is each process that it forks, until that has become its user (warm.py)
       |     `-- engine       another owner
       `-- main       nobody  reads the network; may ask suexecme, and cannot do anything itself

suexecme trusts the main process with nothing. An order names a script and a language, never a command, a user or
limits: those come from the settings. Before each start suexecme examines the script again (rules.py), as the file
may have changed. An attacker who had taken over the main process could only start engines of scripts that may run
anyway.

Orders come over a nameless socket pair, one JSON object a packet, descriptors beside it (channel.py):

    {"order": "identify", "id": N, "path": P}       whose script is this, and may it run?
    {"order": "start", "id": N, "path": P, "uid": U, "engine": E}
                                                    start an engine for its owner, who must still be U;
                                                    descriptors: data, errors, control (engine protocol)
                                                    or listening socket, errors (FastCGI)
    {"order": "measure", "id": N, "pids": [P ...]}  how much memory do these engines have?
    {"order": "kill", "pid": N}                     kill an engine, then its user's strays (strays.py)

Answers carry the id:

    {"user", "uid", "home", "interpreter", "path"}  to identify
    {"pid"}                                         to start
    {"memory": {P: [private, shared]}}              to measure
    {"refused", "status"}                           to identify and start, if suexecme does not carry out the order;
                                                    with "user" if a user, and no system account, owns the script

`kill` has no answer. An answer with "user" comes with a descriptor of the user's log, if the user has one. When an
engine's process ends, suexecme sends {"ended": P, "status"} without an order.

What happens when a process dies:

    an engine    suexecme reaps it and tells the main process; what the engine left behind becomes suexecme's own
                 children, and is killed once the main process orders it (strays.py)
    main         the end of the socket pair: suexecme kills every engine and ends
    suexecme     the kernel kills the engines (PR_SET_PDEATHSIG); the main process ends; what engines left behind
                 becomes the supervisor's children
    supervisor   the kernel kills the main process (PR_SET_PDEATHSIG), and suexecme ends as above

The supervisor reads the settings again on HUP and sends {"settings"} with a descriptor of a file that holds them;
on USR1 it sends {"log"} with a descriptor of the log. suexecme passes both on to the main process.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Sequence
from typing import Any

from ewe.logger import ErrorLog
from ewe.xswitch import channel
from ewe.xswitch.engine_kinds import WORK, EngineKind
from ewe.xswitch.privileged.rules import Refusal, account_to_notify, examine
from ewe.xswitch.privileged.strays import PAUSE_SECONDS, Strays
from ewe.xswitch.privileged.warm import WarmParent
from ewe.xswitch.privileged.work import Works
from ewe.xswitch.process import CONTROL, Account, become, clean_environment, orphans_come_here, start
from ewe.xswitch.settings import Settings, read_copy
from ewe.xswitch.user_logs import doubt, open_log

# That processes left behind by engines may take to end, when suexecme ends. A supervisor that runs kills suexecme
# after ENDS_IN, and ends them itself.
END_SECONDS = 10.0


class Suexecme:
    """The loop, and its engines."""

    def __init__(
        self, main: socket.socket, supervisor: socket.socket, settings: Settings, log: ErrorLog
    ) -> None:
        self.main = main
        self.supervisor = supervisor
        self.settings = settings
        self.log = log
        self.log_directory = log_directory_of(settings)
        self.engines: dict[int, Account] = {}  # pid -> owner; each engine leads a session
        self.killed: set[int] = set()  # engines that were killed, and have not ended yet
        # pid -> uid of engines that ended by themselves, kept until the kill order for their strays comes
        self.ended_alone: dict[int, int] = {}
        self.warm: dict[str, WarmParent] = {}
        self.works = Works()
        self.strays = Strays(self.spared)
        self.wake, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)  # suexecme ends when the main process does

    def run(self) -> None:
        """Carry out orders until the main process has ended. No engine outlives this method."""
        orphans_come_here()
        self.start_warm()
        poller = select.poll()
        poller.register(self.main, select.POLLIN)
        poller.register(self.wake, select.POLLIN)
        poller.register(self.supervisor, select.POLLIN)
        try:
            while True:
                pause = PAUSE_SECONDS * 1000 if self.strays.wanted() else None
                ready = {descriptor for descriptor, _ in poller.poll(pause)}
                if self.wake in ready:
                    os.read(self.wake, 4096)
                    self.strays.seek(self.reap())
                if self.supervisor.fileno() in ready and not self.hear_supervisor():
                    poller.unregister(self.supervisor)
                if self.main.fileno() in ready:
                    received = channel.receive(self.main)
                    if received is None:
                        return
                    self.handle_order(*received)
                if self.strays.wanted():
                    self.strays.turn()
        finally:
            self.end_all()

    def hear_supervisor(self) -> bool:
        """Take new settings or a new log, and pass them on; return False if the supervisor has ended."""
        received = channel.receive(self.supervisor)
        if received is None:
            return False
        message, [descriptor] = received
        if "log" in message:
            os.dup2(descriptor, 2)
        else:
            self.settings = read_copy(descriptor)
            self.log_directory = log_directory_of(self.settings)
            self.start_warm()
        self.tell(message, [descriptor])
        os.close(descriptor)
        return True

    def handle_order(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Carry out an order of the main process."""
        try:
            if message["order"] == "identify":
                account, answer = self.identify(message["path"])
                self.tell_of(account, {"id": message["id"], **answer})
            elif message["order"] == "start":
                pid = self.start(message["path"], message["uid"], message["engine"], descriptors)
                self.tell({"id": message["id"], "pid": pid})
            elif message["order"] == "measure":
                memory = {pid: memory_of(pid) for pid in message["pids"] if pid in self.engines}
                self.tell({"id": message["id"], "memory": memory})
            elif message["order"] == "kill":
                self.kill_engine(message["pid"])
        except Refusal as refusal:
            refused = {"id": message["id"], "refused": refusal.reason, "status": refusal.status}
            self.tell_of(account_to_notify(message["path"], self.settings), refused)
        except OSError as reason:
            self.log.error(f"{message.get('path')}: order '{message['order']}' failed: {reason.strerror}")
            self.tell({"id": message["id"], "refused": str(reason.strerror), "status": 503})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def tell(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message to the main process, if it still runs."""
        try:
            channel.send(self.main, message, descriptors)
        except OSError:
            pass

    def tell_of(self, account: Account | None, message: dict[str, Any]) -> None:
        """Send a message that concerns a user, with a descriptor of the user's log."""
        descriptors = []
        if account is not None:
            message["user"] = account.name
            if self.log_directory and account.name not in (self.settings.user, self.settings.runs_scripts):
                try:
                    descriptors.append(open_log(self.log_directory, account))
                except OSError as reason:
                    self.log.warning(f"user-logs: no log for {account.name}: {reason.strerror}")
        self.tell(message, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def identify(self, path: str) -> tuple[Account, dict[str, Any]]:
        """Return a script's owner, and what the main process must know of the script. Raises Refusal."""
        script = examine(path, self.settings)
        return script.account, {
            "uid": script.account.uid,
            "home": script.account.home,
            "interpreter": script.interpreter,
            "path": script.path,
        }

    def start(self, path: str, uid: int, engine: str, descriptors: list[int]) -> int:
        """Return the pid of a new engine for the owner of a script. Raises Refusal, OSError."""
        kind = self.settings.engines.get(engine)
        if kind is None:
            raise Refusal(f"there is no engine {engine}", 500)
        if kind.program and not os.path.exists(kind.program):
            raise Refusal(f"the engine {engine} is not built: run `ewe-xswitch {engine}`", 503)
        account = examine(path, self.settings).account
        if account.uid != uid:
            raise Refusal(f"its owner has changed to {account.name} since it was identified", 503)
        warm = self.warm.get(engine)
        pid = 0 if warm is None else warm.start(account, self.settings.limits_of(kind), descriptors)
        pid = pid or self.start_cold(kind, account, descriptors)
        self.engines[pid] = account
        return pid

    def start_cold(self, kind: EngineKind, account: Account, descriptors: list[int]) -> int:
        """Start an engine by its command; return its pid. Raises OSError."""
        limits = self.settings.limits_of(kind)
        first, errors, *control = descriptors
        if kind.protocol == "engine":
            numbers = {0: first, 1: first, 2: errors, CONTROL: control[0]}
        else:
            numbers = {0: first, 1: errors, 2: errors}
        environment = {**clean_environment(account), **kind.variables}
        command = kind.command
        work = self.works.make(account) if any(WORK in word for word in command) else ""
        if work:
            command = tuple(word.replace(WORK, work) for word in command)
        # An engine of ours adopts the processes that a script leaves behind, to find and reap them. php-cgi or a
        # JVM would never reap them, and its user could soon start no more processes.
        adopts = kind.protocol == "engine"
        try:
            pid = start(command, environment, numbers, lambda: become(account, limits), adopts)
        except OSError:
            self.works.remove_unused(work)
            raise
        self.works.belongs(work, pid, account)
        return pid

    # Ends

    def reap(self) -> set[int]:
        """Take the exit status of every child that has ended, and tell the main process of engines.

        Return the uids of killed engines: their children in other sessions have become our children only now.
        """
        uids: set[int] = set()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return uids
            if not pid:
                return uids
            if os.WIFSTOPPED(status):
                # A script has made this process its tracer (PTRACE_TRACEME), and waits for it without a limit.
                os.kill(pid, signal.SIGKILL)
                continue
            self.works.removers.discard(pid)
            if pid in self.engines:
                uid = self.engines.pop(pid).uid
                if pid in self.killed:
                    self.killed.remove(pid)
                    uids.add(uid)
                else:
                    self.ended_alone[pid] = uid
                self.works.ended(pid)
                self.tell({"ended": pid, "status": os.waitstatus_to_exitcode(status)})
            for name, warm in list(self.warm.items()):
                if warm.pid == pid:
                    self.log.error(f"the warm parent of {name} has ended; engines start without it")
                    warm.close()
                    del self.warm[name]

    def kill_engine(self, pid: int) -> None:
        """Kill an engine, then every process of its user that belongs to no running engine."""
        account = self.engines.get(pid)
        if account is not None:
            self.killed.add(pid)
            kill_session(pid)
            self.strays.seek({account.uid})
        elif pid in self.ended_alone:
            self.strays.seek({self.ended_alone.pop(pid)})

    def spared(self) -> set[int]:
        """Return the children that are no strays. A process in the session of one of them belongs to it.

        Our own session is among them, so that a process which has not left it yet is spared.
        """
        return {*self.engines, *self.works.removers, os.getsid(0), *(warm.pid for warm in self.warm.values())}

    def end_all(self) -> None:
        """Kill every engine, and every process that they have left behind."""
        for pid in (*self.engines, *(warm.pid for warm in self.warm.values())):
            kill_session(pid)
        self.engines.clear()
        for warm in self.warm.values():
            warm.close()
        self.warm.clear()
        if left := self.strays.end(self.reap, END_SECONDS):
            self.log.error(f"{left} processes of users do not end")
        self.works.end()

    # Warm parents

    def start_warm(self) -> None:
        """Start a warm parent for each language that should have one, and end those that are no longer wanted."""
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


def kill_session(pid: int) -> None:
    """Kill an engine or a warm parent, and the processes of its process group.

    A process that we have just forked has no group until it calls setsid(). We then kill the process alone, once we
    have checked that it is our child: the pid of a child names no other process until we take its exit status.
    """
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        if is_child(pid):
            os.kill(pid, signal.SIGKILL)


def is_child(pid: int) -> bool:
    """Return whether a process is our child; one that has ended is, until we take its exit status."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def log_directory_of(settings: Settings) -> str:
    """Return the directory of the users' logs, "" if there is none, or if others may write into it."""
    return "" if settings.user_logs and doubt(settings.user_logs) else settings.user_logs


def memory_of(pid: int) -> tuple[int, int]:
    """Return the private and the shared bytes of a process in memory; 0 if the system does not tell.

    A forked process shares pages with its parent until one of them writes. Only smaps_rollup tells them apart, and
    only root and the process's user may read it.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            lines = [line.split() for line in file.read().splitlines()[1:]]
    except OSError:
        return 0, 0
    sizes = {line[0]: int(line[1]) * 1024 for line in lines}
    private = sizes.get(b"Private_Clean:", 0) + sizes.get(b"Private_Dirty:", 0)
    return private, sizes.get(b"Rss:", 0) - private
