"""The supervisor, the command's own process: it opens the sockets and keeps suexecme and the main process running.

    supervisor     root; here                 opens the listening sockets, reads the settings, opens the log
       |-- suexecme   root; privileged/       starts engines as users; started first
       |     `-- engines                      each as its user
       `-- main       nobody; switch/         serves the sockets

The supervisor does as little as possible, because no process restarts it. It never reads a request. Both children
are forked, not executed: they inherit the settings and the log, and the main process inherits the listening
sockets.

When a process dies:

    suexecme or main    The two cannot work without each other: a new suexecme knows no engines, and a new main
                        process has none. The supervisor therefore ends the other one too, with all engines, and
                        starts both again. The listening sockets stay open here: a web server that connects
                         meanwhile waits in the backlog for a moment. After MAX_FAILURES ends in a row, each of them
                         soon after a start (BACK_OFF), the supervisor ends with status 1. If the machine lacks the
                         resources for new processes, the supervisor waits for them.
    the supervisor      The kernel kills the main process (PR_SET_PDEATHSIG). suexecme notices that, kills all
                        engines and ends. No process is left.
    its own parent      If `--parent` names it: the kernel sends TERM to the supervisor, which stops normally.

Leftover processes of engines become children of suexecme, or of the supervisor if suexecme has ended. end_orphans()
kills them.

Signals: TERM and INT stop; HUP reads the settings again; USR1 opens the log again. All signals are blocked, and
sigwait() takes them one at a time. No handler can therefore interrupt the code.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shutil
import signal
import socket
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ewe.child_processes import has_exited, keep_exit_statuses, send_signal, wait_until
from ewe.child_slots import BackOff, ChildSlot
from ewe.config.messages import ConfigError, Failure
from ewe.config.setting_types import parse_address
from ewe.log_files import names_file
from ewe.logger import ErrorLog, load_traceback
from ewe.streams import systemd
from ewe.trace import Trace
from ewe.xswitch import channel
from ewe.xswitch.certificates import read_certificates
from ewe.xswitch.engine_kinds import ENGINES
from ewe.xswitch.privileged.cgroups import remove_left_cgroups
from ewe.xswitch.privileged.leftovers import LeftoverProcesses, children_of
from ewe.xswitch.privileged.suexecme import Suexecme
from ewe.xswitch.privileged.work import base_directory, remove_empty
from ewe.xswitch.process import (
    PR_SET_NO_NEW_PRIVS,
    become_subreaper,
    end_with_parent,
    leave_session_keyring,
    prctl,
)
from ewe.xswitch.public import public_engines_directory, with_engines_in
from ewe.xswitch.setting_types import OVER_TLS
from ewe.xswitch.settings import Settings, write_copy

BACKLOG = 1024
# Seconds that suexecme may take to kill its engines; END_SECONDS in suexecme.py is longer
SUEXECME_ENDS_S = 2.0
MAIN_STOPS_S = 15.0  # that the main process may take to stop
KILL_TIMEOUT_S = 5.0  # that a killed process may take to end; in a hung file system it may never end
LEFTOVER_TIMEOUT_S = 10.0  # that leftover processes may take to end
# A child that lives for less than 2 s has failed at its start. Both children start again at once.
BACK_OFF = BackOff(young_s=2.0, shortest_s=0.0, longest_s=0.0)
RETRY_S = 2.0  # between two attempts to fork the children
MAX_FAILURES = 5  # in a row, before the supervisor gives up
# Settings that change only at a restart
RESTART_SETTINGS = ("listen", "socket_mode", "socket_group", "user", "cgroup", "prime", "trace")
STOPS = {signal.SIGTERM, signal.SIGINT}
SIGNALS = {signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1, *STOPS}


class StartError(Failure):
    """X-Switch cannot start. The text is one line."""


def bind(address: str, settings: Settings) -> socket.socket:
    """Return the listening socket of an address of --listen. Raises StartError, ConfigError."""
    try:
        if address.startswith("unix:"):
            return bind_unix(address.removeprefix("unix:"), settings)
        kind, host, port = parse_address(address.removeprefix(OVER_TLS))
        if kind == "fd":  # the parent has made the socket, and removes it
            return socket.socket(fileno=port)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except ValueError:
        raise ConfigError(f"listen: {address} is neither unix:PATH nor HOST:PORT") from None
    except OSError as reason:
        # A path that is too long has no strerror
        raise StartError(f"cannot listen on {address}: {reason.strerror or reason}") from None


def bind_unix(path: str, settings: Settings) -> socket.socket:
    """Return a listening Unix socket; replace a stale one. Raises OSError, StartError."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        error = probe.connect_ex(path)
    if error in (0, errno.EAGAIN):  # EAGAIN: the backlog of the other server is full
        raise StartError(f"cannot listen on unix:{path}: another server does already")
    if error == errno.ECONNREFUSED:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise StartError(f"cannot listen on unix:{path}: it is a file, not a socket; choose another path")
        os.unlink(path)
    elif error != errno.ENOENT:
        raise OSError(error, os.strerror(error))
    listener = socket.socket(socket.AF_UNIX)
    umask_before = os.umask(0o777 & ~settings.socket_mode)  # the mode holds from the first moment on
    try:
        listener.bind(path)
        listener.listen(BACKLOG)
        if settings.socket_group:
            os.chown(path, -1, socket_gid(settings))
    except (OSError, StartError):
        listener.close()
        raise
    finally:
        os.umask(umask_before)
    return listener


def address_of(listener: socket.socket, address: str) -> str:
    """Return the address of a socket, in the form of --listen. address: as the settings write it."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    host, port, *_ = name  # IPv6 has four elements
    scheme = OVER_TLS if address.startswith(OVER_TLS) else ""
    return scheme + (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


class Supervisor:
    """Keeps suexecme and the main process running."""

    def __init__(
        self,
        settings: Settings,
        reload: Callable[[], Settings],
        log: ErrorLog,
        parent: int = 0,
        log_file: str = "-",
        trace: Trace | None = None,
    ) -> None:
        """Open the sockets. Raises StartError, ConfigError.

        reload: reads the settings again. parent: a pid; the supervisor stops when that process ends; 0 for none.
        log_file: the file that receives standard error, or "-", "off" or "syslog:...". trace: where the main
        process writes events; None: nowhere.
        """
        self.uid, self.gid = main_process_ids(settings)
        checked_settings = read_certificates(settings)
        # Only now: if a certificate were refused afterwards, nothing would remove a copy of the engine programs
        self.programs_directory = public_engines_directory()
        self.settings = with_engines_in(checked_settings, self.programs_directory)
        self.reload: Callable[[], Settings] = lambda: read_certificates(
            with_engines_in(reload(), self.programs_directory)
        )
        self.log = log
        self.log_file = log_file
        self.trace = trace
        self.listeners: list[socket.socket] = []
        self.suexecme_pid = self.main_pid = 0
        self.to_suexecme = socket.socket(socket.AF_UNIX)  # a placeholder until suexecme runs
        self.leftovers = LeftoverProcesses(lambda: {self.suexecme_pid, self.main_pid})
        self.pid = os.getpid()
        self.parent = parent
        try:
            for address in settings.listen:
                self.listeners.append(bind(address, settings))
        except BaseException:
            self.close()
            raise

    def run(self) -> int:
        """Serve until TERM or INT; return the exit status."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        keep_exit_statuses()
        become_subreaper()
        if self.parent:
            end_with_parent(self.parent, signal.SIGTERM)
        slot = ChildSlot(BACK_OFF)
        is_announced = False
        try:
            while not slot.has_failed(MAX_FAILURES):
                started_at = time.monotonic()
                try:
                    self.start_children()
                except OSError as reason:
                    # No failure of a child: the machine lacks processes, descriptors or memory, for some time
                    self.log.error(
                        f"X-Switch's processes do not start: {reason.strerror}; trying again in {RETRY_S:g} s"
                    )
                    self.end_children()
                    if self.is_stopped_within(RETRY_S):
                        return 0
                    continue
                if not is_announced:
                    is_announced = True
                    self.announce_start()
                if self.wait_for_end():
                    return 0
                slot.plan_after_death(started_at)
            self.log.error(
                f"X-Switch's processes have ended {MAX_FAILURES} times soon after their start: X-Switch stops"
            )
            return 1
        finally:
            self.end_children()
            remove_left_cgroups(self.settings.cgroup)
            self.close()

    def announce_start(self) -> None:
        """Tell the log and the service manager that X-Switch serves."""
        addresses = ", ".join(map(address_of, self.listeners, self.settings.listen))
        self.log.info(f"X-Switch listens on {addresses} (pid {os.getpid()})")
        for warning in self.settings.warnings():
            self.log.warning(warning)
        self.tell_service_manager("READY=1")

    def start_children(self) -> None:
        """Start suexecme, then the main process: suexecme is forked before any code reads the network.

        Raises OSError.
        """
        # Each child keeps its own ends; `with` closes this process's copies of them
        main_end, to_main = channel.pair()
        with main_end:
            with to_main:
                self.to_suexecme.close()
                self.to_suexecme, to_supervisor = channel.pair()
                self.to_suexecme.setblocking(False)
                with to_supervisor:
                    self.suexecme_pid = self.fork(lambda: self.run_suexecme(to_main, to_supervisor, main_end))
            self.main_pid = self.fork(lambda: self.run_main(main_end))

    def fork(self, run_child: Callable[[], int]) -> int:
        """Fork a child that calls `run_child` and exits with its result; return the child's pid.

        An exception of `run_child` is logged, and the exit status is then 1.
        """
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            status = run_child()
        except Exception:
            self.log.exception("X-Switch failed")
        finally:
            os._exit(status)

    def run_suexecme(
        self, to_main: socket.socket, to_supervisor: socket.socket, main_end: socket.socket
    ) -> int:
        """Run suexecme in this new process; return its exit status.

        suexecme ends when the main process does, after it has killed all engines. to_main, to_supervisor: its ends
        of the channels to these processes. main_end: the other end of `to_main`, which the main process needs.
        """
        main_end.close()
        self.to_suexecme.close()
        for listener in self.listeners:
            listener.close()
        if self.trace is not None:  # no engine may get it
            os.close(self.trace.file)
        suexecme = Suexecme(to_main, to_supervisor, self.settings, self.log)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # suexecme has handlers for them by now
        suexecme.run()
        if os.getppid() != self.pid:  # the supervisor was killed: remove the copies in its place
            self.remove_program_copies()
        return 0

    def run_main(self, orders: socket.socket) -> int:
        """Run the main process, as the configured user; return its exit status. orders: its channel to suexecme."""
        # Import before root is dropped: the user may not be allowed to read Python's directories.
        from ewe.xswitch.switch.main import serve

        load_traceback()
        "".encode("idna")  # loads the codec, with which ssl encodes a peer's address
        owner = os.geteuid()
        if owner == 0:
            leave_session_keyring()
            os.setgroups([self.gid])
            os.setresgid(self.gid, self.gid, self.gid)
            os.setresuid(self.uid, self.uid, self.uid)
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        self.to_suexecme.close()
        for number in (signal.SIGHUP, signal.SIGUSR1):  # a closing terminal sends HUP to all its processes
            signal.signal(number, signal.SIG_IGN)
        end_with_parent(self.pid)  # after the change of user, which clears this setting: prctl(2)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return serve(self.settings, self.listeners, orders, self.log, self.trace, owner)

    def wait_for_end(self) -> bool:
        """Wait for signals until a child has ended, then end the other; return whether a signal asked to stop."""
        while True:
            number = signal.sigwait(SIGNALS)
            if number in STOPS:
                self.announce_stop(number)
                send_signal(self.main_pid, signal.SIGTERM)
                self.wait_or_kill(self.main_pid, MAIN_STOPS_S)
                self.end_children()
                return True
            if number == signal.SIGHUP:
                self.tell_service_manager("RELOADING=1")
                self.change_settings()
                self.tell_service_manager("READY=1")
            elif number == signal.SIGUSR1:
                self.reopen_log()
            elif ended_child := self.find_ended_child():
                name = "suexecme" if ended_child == self.suexecme_pid else "the main module"
                self.log.error(f"{name} has ended; starting both again")
                self.end_children()
                return False

    def is_stopped_within(self, seconds: float) -> bool:
        """Wait while no child runs; return whether a signal asks to stop. Other signals stay pending."""
        found = signal.sigtimedwait(STOPS, seconds)
        if found is not None:
            self.announce_stop(found.si_signo)
        return found is not None

    def announce_stop(self, number: int) -> None:
        """Tell the log and the service manager that X-Switch stops."""
        self.log.info(f"{signal.Signals(number).name}: stopping")
        self.tell_service_manager("STOPPING=1")

    def tell_service_manager(self, state: str) -> None:
        """Send a state to the service manager, unless ewe has started this X-Switch: then ewe is its service."""
        if not self.parent:
            systemd.notify(state)

    def change_settings(self) -> None:
        """Read the settings again, for suexecme, which passes them to the main process, and for later children.

        Settings that cannot be used change nothing. RESTART_SETTINGS keep their values.
        """
        old_settings = self.settings
        try:
            new_settings = self.reload()
        except ConfigError as error:
            self.log.error(f"the settings cannot be used, the old ones stay: {error}")
            return
        for name in RESTART_SETTINGS:
            if getattr(new_settings, name) != getattr(old_settings, name):
                self.log.warning(f"{name.replace('_', '-')}: a change needs a restart")
        kept = {name: getattr(old_settings, name) for name in RESTART_SETTINGS}
        if not new_settings.certificates and any(each.startswith(OVER_TLS) for each in old_settings.listen):
            kept["certificates"] = old_settings.certificates  # a tls: address stays until the restart
        self.settings = replace(new_settings, **kept)
        for warning in self.settings.warnings():
            self.log.warning(warning)
        try:
            copy = write_copy(self.settings)
            try:
                channel.send(self.to_suexecme, {"settings": True}, [copy])
            finally:
                os.close(copy)
        except OSError as reason:
            self.log.error(f"suexecme does not take the new settings until its next start: {reason.strerror}")
        else:
            self.log.info("the settings were read again")

    def reopen_log(self) -> None:
        """Open the log's file again, for all three processes: the main process may lack the permission."""
        try:
            redirect_standard_error(self.log_file)
        except OSError as reason:
            self.log.error(f"cannot write {self.log_file}: {reason.strerror}; the old file stays in use")
            return
        try:
            if names_file(self.log_file):
                channel.send(self.to_suexecme, {"log": True}, [2])
        except OSError as reason:
            self.log.error(f"suexecme keeps the old log until its next start: {reason.strerror}")

    def find_ended_child(self) -> int:
        """Return the pid of suexecme or of the main process if it has ended; do not reap it.

        If neither has ended, kill and reap the orphans, and return 0.
        """
        for pid in (self.suexecme_pid, self.main_pid):
            if pid and has_exited(pid):
                return pid
        self.end_orphans()
        return 0

    def end_orphans(self) -> None:
        """Kill and reap the processes that became children of the supervisor when suexecme ended."""
        if remaining := self.leftovers.kill_all(self.reap_orphans, LEFTOVER_TIMEOUT_S):
            self.log.error(f"{remaining} processes of users still run although they were killed")

    def reap_orphans(self) -> None:
        """Reap orphans that have ended."""
        for pid in set(children_of(self.pid)) - {self.suexecme_pid, self.main_pid}:
            os.waitpid(pid, os.WNOHANG)

    def wait_or_kill(self, pid: int, seconds: float) -> None:
        """Wait for a child's end; kill it after `seconds`. The child is not reaped."""
        if not wait_until(lambda: has_exited(pid), seconds):
            send_signal(pid, signal.SIGKILL)
            if not wait_until(lambda: has_exited(pid), KILL_TIMEOUT_S):
                self.log.error(
                    f"process {pid} still runs although it was killed: X-Switch goes on without it"
                )

    def end_children(self) -> None:
        """End both: kill the main process, and wait for suexecme, which then kills its engines and ends."""
        if self.main_pid:
            send_signal(self.main_pid, signal.SIGKILL)
            self.wait_or_kill(self.main_pid, KILL_TIMEOUT_S)
            os.waitpid(self.main_pid, os.WNOHANG)  # reap it
            self.main_pid = 0
        if self.suexecme_pid:
            self.wait_or_kill(self.suexecme_pid, SUEXECME_ENDS_S)
            os.waitpid(self.suexecme_pid, os.WNOHANG)
            self.suexecme_pid = 0
        self.end_orphans()

    def close(self) -> None:
        """Close the sockets, and remove their names and all temporary directories."""
        for listener in self.listeners:
            if listener.family == socket.AF_UNIX and f"unix:{listener.getsockname()}" in self.settings.listen:
                with suppress(OSError):
                    os.unlink(listener.getsockname())
            elif listener.family == socket.AF_UNIX and self.parent not in (0, os.getppid()):
                # The parent made this socket in a directory of ewe.scratch, and was killed: remove both in its
                # place
                directory = os.path.dirname(listener.getsockname())
                with suppress(OSError):
                    os.unlink(listener.getsockname())
                    os.unlink(os.path.join(directory, ".lock"))
                    os.rmdir(directory)
            listener.close()
        remove_empty(base_directory(self.pid))
        self.remove_program_copies()

    def remove_program_copies(self) -> None:
        """Remove the copies of the engine programs, if there are any."""
        if self.programs_directory != ENGINES:
            shutil.rmtree(self.programs_directory, ignore_errors=True)


def redirect_standard_error(path: str) -> None:
    """Redirect standard error to a file: every message is then in the log. Raises OSError.

    Do nothing for a log that is not a file: "-", "off" and "syslog:".
    """
    if names_file(path):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
        os.dup2(file, 2)
        os.close(file)


def socket_gid(settings: Settings) -> int:
    """Return the gid of the group that may connect to the socket. Raises StartError."""
    try:
        return grp.getgrnam(settings.socket_group).gr_gid
    except KeyError:
        raise StartError(f"socket-group: there is no group {settings.socket_group}") from None


def check_accounts(settings: Settings) -> None:
    """Raise StartError if the configured user or group does not exist, or is root."""
    main_process_ids(settings)
    if settings.socket_group:
        socket_gid(settings)


def main_process_ids(settings: Settings) -> tuple[int, int]:
    """Return uid and gid of the main process: the configured ones, or this process's own if it is not root."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    # Engines run as this account, not the main process: here only check, before the start, that it may be used
    account_for("script-user", settings.runs_scripts)
    entry = account_for("user", settings.user)
    return entry.pw_uid, entry.pw_gid


def account_for(setting: str, name: str) -> pwd.struct_passwd:
    """Return the account that a setting names. Raises StartError if there is none, or if it is root."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise StartError(f"{setting}: there is no user {name}") from None
    if entry.pw_uid == 0:
        raise StartError(f"{setting}: {name} is root; name another")
    return entry
