"""suexecme, a root process, starts engines as the owners of their scripts when the main process orders it.

A web server's scripts should run as their owners, but only root can start a process as another user, and a process
that reads requests from the network should not be root. X-Switch therefore has three processes:

    supervisor     root       opens the listening sockets, starts the other two, and restarts them
       |-- suexecme   root    this file: reads no network; one loop, one order at a time
       |     |-- engine       the script's owner, from its first instruction on
       |     |-- preloaded    root, as is each process that it forks, until that has become its user (preloaded.py)
       |     |   parent
       |     `-- engine       another owner
       `-- main       nobody  reads the network; sends orders to suexecme, and has no privileges itself

suexecme does not trust the main process. An order names a script and a language, never a command, a user or
limits: those come from the settings. Before each start suexecme examines the script again (rules.py), because the
file may have changed. An attacker who had taken over the main process could only start engines for scripts that may
run anyway.

Orders come over a nameless socket pair, one JSON object in each packet, with descriptors beside it (channel.py):

    {"order": "identify", "id": N, "path": P}       who owns this script, and may it run?
    {"order": "start", "id": N, "path": P, "uid": U, "engine": E}
                                                    start an engine for its owner. The owner must still be U.
                                                    descriptors: data, errors, control (engine protocol)
                                                    or listening socket, errors (FastCGI)
    {"order": "measure", "id": N, "pids": [P ...]}  how much memory do these engines use?
    {"order": "kill", "pid": N}                     kill an engine, then its leftover processes (leftovers.py)

Answers carry the id:

    {"user", "uid", "groups", "home", "interpreter", "path", "language", "environment"}
                                                    to identify; groups: those of the settings' [groups]; the last
                                                    two: those of its package (drop_ins.py), if it is in one
    {"pid"}                                         to start
    {"memory": {P: [private, shared]}, "limits": L} to measure; L: how the limits of users are enforced (cgroups.py)
    {"refused", "status"}                           to identify and start, if suexecme does not carry out the order;
                                                    with "user" if the script's owner is not a system account, with
                                                    "installing" (a home) if a package there may have the script

`kill` has no answer. An answer with "user" comes with a descriptor of the user's log, if the user has one. When an
engine's process ends, suexecme sends {"ended": P, "status", "cause"} without an order. The cause is "" unless the
kernel killed it for lack of memory in its user's cgroup. {"package", "user"} is a line about packages of a user
that were installed. {"installed": home} tells that their installation has ended.

When a process dies:

    an engine    suexecme reaps it and tells the main process. The engine's leftover processes become children of
                 suexecme, which kills them when the main process orders it (leftovers.py)
    main         the socket pair ends: suexecme kills every engine and ends
    suexecme     the kernel kills the engines (PR_SET_PDEATHSIG). The main process ends. Leftover processes become
                 children of the supervisor
    supervisor   the kernel kills the main process (PR_SET_PDEATHSIG), and suexecme ends as above

On HUP the supervisor reads the settings again and sends {"settings"} with a descriptor of a file that contains
them. On USR1 it sends {"log"} with a descriptor of the log. suexecme passes both on to the main process.
"""

from __future__ import annotations

import grp
import math
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any

from ewe.logger import ErrorLog
from ewe.xswitch import channel
from ewe.xswitch.engine_kinds import WORK_PLACEHOLDER, EngineKind
from ewe.xswitch.privileged.cgroups import UserCgroups
from ewe.xswitch.privileged.drop_ins import DropIns, settings_for
from ewe.xswitch.privileged.leftovers import PAUSE_SECONDS, LeftoverProcesses
from ewe.xswitch.privileged.namespaces import UserNamespaces, namespace_obstacle
from ewe.xswitch.privileged.preloaded import PreloadedParent
from ewe.xswitch.privileged.rules import Refusal, account_for_log, examine
from ewe.xswitch.privileged.work import WorkDirectories
from ewe.xswitch.process import (
    CONTROL_DESCRIPTOR,
    Account,
    EngineLimits,
    become,
    become_subreaper,
    clean_environment,
    start,
)
from ewe.xswitch.settings import Settings, read_copy
from ewe.xswitch.user_limits import UserLimits
from ewe.xswitch.user_logs import directory_fault, open_log

# Seconds that leftover processes may take to end when suexecme ends. A running supervisor kills suexecme after
# SUEXECME_ENDS_S (supervisor.py), and then kills them itself.
END_SECONDS = 10.0
WAKEUP_BYTES = 4096  # that one read takes out of the pipe for signals


class Suexecme:
    """suexecme: its loop, its engines, and its preloaded parents."""

    def __init__(
        self, to_main: socket.socket, to_supervisor: socket.socket, settings: Settings, log: ErrorLog
    ) -> None:
        """to_main, to_supervisor: the channels to these processes."""
        self.to_main = to_main
        self.to_supervisor = to_supervisor
        self.settings = settings
        self.log = log
        self.log_directory = log_directory_of(settings)
        self.engines: dict[int, Account] = {}  # pid -> owner; each engine leads a session
        self.killed_pids: set[int] = set()  # engines that were killed and have not ended yet
        # pid -> uid of engines that ended by themselves, kept until the order to kill their leftover processes
        self.self_ended: dict[int, int] = {}
        self.preloaded: dict[str, PreloadedParent] = {}
        self.work_directories = WorkDirectories()
        self.cgroups = UserCgroups.from_setting(settings.cgroup)
        self.namespaces = UserNamespaces()
        self.drop_ins = DropIns()
        self.oom_kills: dict[int, int] = {}  # uid -> kills for lack of memory that were reported
        self.leftovers = LeftoverProcesses(self.spared_pids)
        # Python writes the numbers of signals to this pipe, which wakes the poller
        self.wakeup_reader, wakeup_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)  # suexecme ends when the main process does

    def run(self) -> None:
        """Carry out orders until the main process has ended. No engine outlives this method.

        Between orders, reap children, seek and kill leftover processes, and kill installations that take too long.
        """
        become_subreaper()
        self.report_limits()
        self.start_preloaded()
        poller = select.poll()
        poller.register(self.to_main, select.POLLIN)
        poller.register(self.wakeup_reader, select.POLLIN)
        poller.register(self.to_supervisor, select.POLLIN)
        try:
            while True:
                ready = {descriptor for descriptor, _ in poller.poll(self.pause_ms(time.monotonic()))}
                if self.wakeup_reader in ready:
                    os.read(self.wakeup_reader, WAKEUP_BYTES)
                    self.leftovers.seek(self.reap())
                if self.to_supervisor.fileno() in ready and not self.receive_settings_or_log():
                    poller.unregister(self.to_supervisor)
                if self.to_main.fileno() in ready:
                    received = channel.receive(self.to_main)
                    if received is None:
                        return
                    self.handle_order(*received)
                if self.leftovers.is_seeking():
                    self.leftovers.walk()
                    if not self.leftovers.is_seeking():
                        self.remove_unused_cgroups()
                self.drop_ins.end_late(time.monotonic())
        finally:
            self.end_all()

    def pause_ms(self, now: float) -> float | None:
        """Return for how many milliseconds run() may wait for events, None without a limit. now: monotonic.

        The limit is the next walk for leftover processes, or the deadline of an installation.
        """
        pause_s = PAUSE_SECONDS if self.leftovers.is_seeking() else math.inf
        pause_s = min(pause_s, max(0.0, self.drop_ins.next_deadline() - now))
        return None if pause_s == math.inf else pause_s * 1000

    def receive_settings_or_log(self) -> bool:
        """Receive new settings or a new log, use them, and pass them on; return False if the supervisor has ended.

        With new settings, the limits of users change at once, and preloaded parents start again.
        """
        received = channel.receive(self.to_supervisor)
        if received is None:
            return False
        message, descriptors = received
        if not descriptors:  # recvmsg(2) drops a descriptor for which the process has no number left
            self.log.error("new settings, or a new log, did not arrive: too many open files; reload again")
            return True
        [descriptor] = descriptors
        if "log" in message:
            os.dup2(descriptor, 2)
        else:
            self.settings = read_copy(descriptor)
            self.log_directory = log_directory_of(self.settings)
            self.change_cgroups()
            self.start_preloaded()
        self.send_to_main(message, [descriptor])
        os.close(descriptor)
        return True

    def handle_order(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Carry out an order of the main process, answer it, and close its descriptors.

        A refusal, an OSError or a fault of this program becomes the answer. The order `kill` has no answer.
        """
        try:
            if message["order"] == "identify":
                account, answer = self.identify(message["path"])
                self.send_about_user(account, {"id": message["id"], **answer})
            elif message["order"] == "start":
                pid = self.start(message["path"], message["uid"], message["engine"], descriptors)
                self.send_to_main({"id": message["id"], "pid": pid})
            elif message["order"] == "measure":
                memory = {pid: memory_of(pid) for pid in message["pids"] if pid in self.engines}
                self.send_to_main({"id": message["id"], "memory": memory, "limits": self.cgroups.describe()})
            elif message["order"] == "kill":
                self.kill_engine(message["pid"])
        except Refusal as refusal:
            refused = {"id": message["id"], "refused": refusal.reason, "status": refusal.status}
            if message["order"] == "identify" and refusal.status == 404:
                refused["installing"] = self.drop_ins.installing_home(message["path"], self.settings)
            self.send_about_user(account_for_log(message["path"], self.settings), refused)
        except OSError as reason:
            self.log.error(f"{message.get('path')}: order '{message['order']}' failed: {reason.strerror}")
            if "id" in message:
                self.send_to_main({"id": message["id"], "refused": str(reason.strerror), "status": 503})
        except Exception:  # a fault of this program costs one request, and not the engines of all users
            self.log.exception(f"{message.get('path')}: order '{message['order']}' failed")
            if "id" in message:
                self.send_to_main({"id": message["id"], "refused": "a fault of suexecme", "status": 500})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def send_to_main(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message to the main process, if it still runs.

        A user chooses the path and the variables of a script. An answer that is too long for a message becomes a
        refusal.
        """
        try:
            channel.send(self.to_main, message, descriptors)
        except OSError:
            pass
        except ValueError as reason:
            cause = f"suexecme cannot send {reason}: its path and the variables of its package are too long"
            self.send_to_main({"id": message["id"], "refused": cause, "status": 500})

    def send_about_user(self, account: Account | None, message: dict[str, Any]) -> None:
        """Send the main process a message about a user, with a descriptor of the user's log.

        account: the user; None if the user is not known: the message then names none. The accounts of the settings
        `user` and `script-user` have no log.
        """
        descriptors = []
        if account is not None:
            message["user"] = account.name
            if self.log_directory and account.name not in (self.settings.user, self.settings.runs_scripts):
                try:
                    descriptors.append(open_log(self.log_directory, account))
                except OSError as reason:
                    self.log.warning(f"cannot write the log of {account.name}: {reason.strerror} (user-logs)")
        self.send_to_main(message, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def identify(self, path: str) -> tuple[Account, dict[str, Any]]:
        """Return a script's owner, and the facts that the main process needs about the script. Raises Refusal."""
        self.drop_ins.install_changes(path, self.settings)
        script = examine(path, self.settings)
        package = settings_for(script, self.settings)
        return script.account, {
            "uid": script.account.uid,
            "groups": self.groups_of(script.account),
            "home": script.account.home,
            "interpreter": script.interpreter,
            "path": script.path,
            "language": package.language,
            "environment": package.environment,
        }

    def start(self, path: str, uid: int, language: str, descriptors: list[int]) -> int:
        """Start an engine for the owner of a script; return its pid. Raises Refusal, OSError.

        descriptors: the engine's sockets and its end of the pipe for errors.
        """
        kind = self.settings.engines.get(language)
        if kind is None or not kind.command:  # without a command, the engine is on another machine
            raise Refusal(f"there is no engine {language}", 500)
        if kind.program and not os.path.exists(kind.program):
            raise Refusal(f"the engine {language} is not built: run `ewe-xswitch {language}`", 503)
        account = examine(path, self.settings).account
        if account.uid != uid:
            raise Refusal(f"its owner has changed to {account.name} since it was identified", 503)
        try:
            pid = self.start_for(account, language, kind, descriptors)
        except (Refusal, OSError):
            self.remove_if_without_engines(uid)
            raise
        self.engines[pid] = account
        return pid

    def start_for(self, account: Account, language: str, kind: EngineKind, descriptors: list[int]) -> int:
        """Start an engine in the cgroup and the namespace of its account; return its pid. Raises Refusal, OSError.

        descriptors: the engine's sockets and its end of the pipe for errors.
        """
        user_limits = self.user_limits(account)
        limits = self.settings.engine_limits(kind, user_limits, self.cgroups.enforced)
        try:
            cgroup = self.cgroups.prepare(account.uid, user_limits)
        except OSError as reason:
            raise Refusal(
                f"the limits of {account.name}: {reason.filename}: {reason.strerror}", 503
            ) from None
        namespace = self.namespace_of(account, user_limits)
        parent = self.preloaded.get(language)
        if parent is not None and namespace and not parent.enters_namespaces:  # as that of Perl
            parent = None
        # 0: there is no preloaded parent, or it cannot fork
        pid = 0 if parent is None else parent.start(account, limits, descriptors, cgroup, namespace)
        return pid or self.start_by_command(kind, account, limits, cgroup, namespace, descriptors)

    def start_by_command(
        self,
        kind: EngineKind,
        account: Account,
        limits: EngineLimits,
        cgroup: str,
        namespace: str,
        descriptors: list[int],
    ) -> int:
        """Start an engine by the command of its kind; return its pid. Raises OSError.

        cgroup, namespace: the files by which the process enters them; "": none. descriptors: those of the order.
        """
        engine_descriptors = numbered_descriptors(kind, descriptors)
        command = kind.command
        needs_work_directory = any(WORK_PLACEHOLDER in word for word in command)
        work_directory = self.work_directories.make(account) if needs_work_directory else ""
        if work_directory:
            command = tuple(word.replace(WORK_PLACEHOLDER, work_directory) for word in command)
        # An engine of the engine protocol adopts, finds and reaps its script's leftover processes. php-cgi or a JVM
        # would never reap them, and its user could soon start no more processes.
        adopts = kind.protocol == "engine"
        try:
            pid = start(
                command,
                {**clean_environment(account), **kind.variables},
                engine_descriptors,
                lambda: become(account, limits, cgroup, namespace),
                adopts,
            )
        except OSError:
            self.work_directories.remove_unused(work_directory)
            raise
        self.work_directories.note_engine(work_directory, pid, account)
        return pid

    def namespace_of(self, account: Account, user_limits: UserLimits) -> str:
        """Return the path of a user's mount namespace (namespaces.py); "" for none. Raises Refusal.

        The engines in it see a private file system.
        """
        if not self.settings.is_private(user_limits):
            return ""
        try:
            return self.namespaces.prepare(account, self.settings, self.work_directories.base)
        except OSError as reason:
            file = f"{reason.filename}: " if reason.filename else ""
            raise Refusal(
                f"{account.name} has no private file system: {file}{reason.strerror}", 503
            ) from None

    # Limits of users

    def groups_of(self, account: Account) -> list[str]:
        """Return the groups of an account that have a table in the settings."""
        groups = []
        for name in self.settings.groups:
            try:
                if grp.getgrnam(name).gr_gid in account.groups:
                    groups.append(name)
            except (KeyError, ValueError):
                pass  # there is no such group: Settings.warnings() has said so
        return groups

    def user_limits(self, account: Account) -> UserLimits:
        """Return the limits of an account: its own table's, or those of its groups."""
        return self.settings.user_limits(account.name, self.groups_of(account))

    def report_limits(self) -> None:
        """Log whether cgroups or setrlimit(2) enforce the limits of users, if there are any limits.

        Log also which settings have no effect on this system.
        """
        tables = [*self.settings.users.values(), *self.settings.groups.values()]
        if tables:
            self.log.info(f"[users] and [groups] are kept by {self.cgroups.describe()}")
        is_needed = self.settings.private or any(table.private for table in tables)
        if is_needed and (obstacle := namespace_obstacle()):
            self.log.error(f"private: {obstacle}: engines of the users concerned do not start")
        if "cpu_share" not in self.cgroups.enforced and any(table.cpu_share for table in tables):
            self.log.warning("cpu-share has no effect: it needs a cgroup with the controller cpu")

    def change_cgroups(self) -> None:
        """Log how the limits of users are enforced now, and set them in the cgroups of running engines."""
        self.report_limits()
        for account in {account.uid: account for account in self.engines.values()}.values():
            try:
                self.cgroups.change_limits(account.uid, self.user_limits(account))
            except OSError as reason:
                self.log.error(f"the limits of {account.name} do not change: {reason.strerror}")

    def memory_cause(self, uid: int) -> str:
        """Return a text for the log if the kernel has killed an engine because its user's cgroup had no memory.

        Return "" otherwise. Note the number of such kills: each is reported once.
        """
        kills = self.cgroups.oom_kill_count(uid) if self.cgroups.base else 0
        if kills <= self.oom_kills.get(uid, 0):
            return ""
        self.oom_kills[uid] = kills
        return "killed: the engines of this user together have no more memory (`memory` of [users])"

    def remove_cgroup(self, uid: int) -> None:
        """Remove the cgroup of a user without engines.

        It stays while leftover processes are in it, and then with the number of kills that were reported.
        """
        if self.cgroups.remove(uid):
            self.oom_kills.pop(uid, None)

    def remove_unused_cgroups(self) -> None:
        """Remove the cgroups of users without engines: until now, leftover processes have kept them."""
        for uid in self.cgroups.uids - {account.uid for account in self.engines.values()}:
            self.remove_cgroup(uid)

    # Ends

    def reap(self) -> set[int]:
        """Reap every child that has ended, and tell the main process about engines.

        Return the uids of killed engines. Their processes in other sessions have lost their parent now, and have
        become children of suexecme, which is a subreaper: they are sought next.
        """
        uids: set[int] = set()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return uids
            if not pid:
                return uids
            if os.WIFSTOPPED(status):  # waitpid(2) reports a stop only to a tracer
                # A script has made suexecme its tracer (PTRACE_TRACEME), and would stay stopped without a limit.
                os.kill(pid, signal.SIGKILL)
                continue
            self.work_directories.finish_removal(pid)
            if (report := self.drop_ins.take_report(pid, status)) is not None:
                for line in report.lines:
                    self.send_about_user(report.account, {"package": line})
                self.send_to_main({"installed": report.account.home})
            if pid in self.engines and (uid := self.note_engine_end(pid, status)) is not None:
                uids.add(uid)
            self.note_parent_end(pid)

    def note_parent_end(self, pid: int) -> None:
        """Forget a preloaded parent that was reaped; the pids of other children have no effect."""
        for name, parent in list(self.preloaded.items()):
            if parent.pid == pid:
                self.log.error(f"the preloaded parent of {name} has ended; engines start without it")
                parent.close()
                del self.preloaded[name]

    def note_engine_end(self, pid: int, wait_status: int) -> int | None:
        """Note that an engine was reaped, and tell the main process. Return its uid if suexecme has killed it.

        The leftover processes of a killed engine are sought at once. Those of an engine that ended by itself may
        still write output: the main process orders their end once it has read that (self_ended).
        """
        exit_status = os.waitstatus_to_exitcode(wait_status)
        uid = self.engines.pop(pid).uid
        # For lack of memory the kernel sends this signal, as suexecme does
        cause = self.memory_cause(uid) if exit_status == -signal.SIGKILL else ""
        was_killed = pid in self.killed_pids
        self.killed_pids.discard(pid)
        if not was_killed:
            self.self_ended[pid] = uid
        self.work_directories.remove_of_engine(pid)
        self.send_to_main({"ended": pid, "status": exit_status, "cause": cause})
        self.remove_if_without_engines(uid)
        return uid if was_killed else None

    def remove_if_without_engines(self, uid: int) -> None:
        """Remove the cgroup and the namespace of a user, unless the user has engines."""
        if uid not in {account.uid for account in self.engines.values()}:
            self.remove_cgroup(uid)
            self.namespaces.remove(uid)

    def kill_engine(self, pid: int) -> None:
        """Kill an engine, then every process of its user that belongs to no running engine."""
        account = self.engines.get(pid)
        if account is not None:
            self.killed_pids.add(pid)
            kill_session(pid)
            self.leftovers.seek({account.uid})
        elif pid in self.self_ended:  # only its leftover processes can still run
            uid = self.self_ended.pop(pid)
            self.leftovers.seek({uid})

    def spared_pids(self) -> set[int]:
        """Return the children that are not leftovers. A process in the session of one of them is spared, too.

        suexecme's own session is among them: a new process that has not left it yet is spared.
        """
        parents = (parent.pid for parent in self.preloaded.values())
        others = {*self.work_directories.removers, *self.drop_ins.running, os.getsid(0)}
        return {*self.engines, *others, *parents}

    def end_all(self) -> None:
        """Kill every engine and every leftover process."""
        for pid in (*self.engines, *(parent.pid for parent in self.preloaded.values())):
            kill_session(pid)
        self.engines.clear()
        for parent in self.preloaded.values():
            parent.close()
        self.preloaded.clear()
        if remaining := self.leftovers.kill_all(self.reap, END_SECONDS):
            self.log.error(f"{remaining} processes of users still run although they were killed")
        self.cgroups.remove_all()
        self.work_directories.remove_all()

    # Preloaded parents

    def start_preloaded(self) -> None:
        """Start a preloaded parent for each language that should have one; end the others."""
        preloading_kinds = {
            name: kind
            for name, kind in self.settings.engines.items()
            if self.settings.preload and kind.preload is not None
        }
        for name, parent in list(self.preloaded.items()):
            if preloading_kinds.get(name) != parent.kind:
                del self.preloaded[name]
                parent.end()
        for name, kind in preloading_kinds.items():
            if name not in self.preloaded:
                try:
                    self.preloaded[name] = PreloadedParent(kind)
                except OSError as reason:
                    self.log.error(
                        f"cannot start the preloaded parent of {name}: {reason.strerror}; engines start without it"
                    )


def numbered_descriptors(kind: EngineKind, descriptors: Sequence[int]) -> dict[int, int]:
    """Return the descriptors of an engine: its number in the engine's process -> the descriptor of this process.

    descriptors: data socket, pipe for errors and control socket; for FastCGI listening socket and pipe for errors.
    """
    if kind.protocol == "engine":
        data, errors, control = descriptors
        return {0: data, 1: data, 2: errors, CONTROL_DESCRIPTOR: control}
    listener, errors = descriptors
    return {0: listener, 1: errors, 2: errors}  # FastCGI expects its listening socket as descriptor 0


def kill_session(pid: int) -> None:
    """Kill an engine or a preloaded parent, and the processes of its process group.

    A process has no group between fork() and its call of setsid(). Then kill it alone, after a check that it is a
    child of suexecme: the pid of a child names no other process until the child is reaped.
    """
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        if is_child(pid):
            os.kill(pid, signal.SIGKILL)


def is_child(pid: int) -> bool:
    """Return whether a process is a child of suexecme. An ended child counts until it is reaped."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def log_directory_of(settings: Settings) -> str:
    """Return the directory of the users' logs, "" if there is none, or if others may write to it.

    The path has no links: a link in a user's directory could lead elsewhere after this check.
    """
    if not settings.user_logs.startswith("/"):
        return ""
    directory = os.path.realpath(settings.user_logs)
    return "" if directory_fault(directory) else directory


def memory_of(pid: int) -> tuple[int, int]:
    """Return the private and the shared bytes of a process in memory; 0 if the system does not report them.

    A forked process shares pages with its parent until one of them writes. Only smaps_rollup distinguishes them,
    and only root and the process's user may read that file.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            _first_line, *lines = file.read().splitlines()  # the first has the range of addresses
    except (OSError, ValueError):  # ValueError: an empty file
        return 0, 0
    sizes = {}  # "Rss:   1234 kB" -> {b"Rss:": bytes}
    for line in lines:
        name, kilobytes, *_ = line.split()
        sizes[name] = int(kilobytes) * 1024
    private = sizes.get(b"Private_Clean:", 0) + sizes.get(b"Private_Dirty:", 0)
    return private, sizes.get(b"Rss:", 0) - private
