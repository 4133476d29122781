"""The supervisor, the command's own process: it opens the sockets and keeps suexecme and the main process running.

    supervisor     root; here                 opens the listening sockets, reads the settings, opens the log
       |-- suexecme   root; privileged/       starts engines as users; started first
       |     `-- engines                      each as its user
       `-- main       nobody; switch/         serves the sockets

It does as little as possible, since nobody restarts it. It never reads a request. Both children are forked, not
executed: they inherit the settings and the log, and the main process inherits the listening sockets.

What happens when a process dies:

    suexecme or main    The two cannot work without each other: a new suexecme knows no engines, and a new main
                        process has none. The other one is therefore ended too, with all engines, and both are
                        started again. The listening sockets stay open here: a web server that connects meanwhile
                        waits in the backlog for a moment. After FAILURES ends in a row, of which each but the first
                        came within QUICK seconds, the supervisor ends with status 1.
    the supervisor      The kernel kills the main process (PR_SET_PDEATHSIG); suexecme sees that, kills all engines
                        and ends. No process is left.
    its own parent      If `--parent` names it: the kernel sends the supervisor TERM, and it stops as asked.

What engines leave behind becomes a child of suexecme, and of the supervisor when suexecme is gone: end_orphans()
kills it.

Signals: TERM and INT stop; HUP reads the settings again; USR1 opens the log again. All signals are blocked and
taken one at a time by sigwait(), so that no handler can interrupt anything.
"""

from __future__ import annotations

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

from ewe.config.messages import ConfigError, Failure
from ewe.config.setting_types import parse_address
from ewe.log_files import names_file
from ewe.logger import ErrorLog
from ewe.xswitch import channel
from ewe.xswitch.engine_kinds import ENGINES
from ewe.xswitch.privileged.strays import Strays, children_of
from ewe.xswitch.privileged.suexecme import Suexecme
from ewe.xswitch.process import PR_SET_NO_NEW_PRIVS, dies_with, orphans_come_here, prctl
from ewe.xswitch.public import published, relocated
from ewe.xswitch.settings import Settings, copy_of

BACKLOG = 1024
ENDS_IN = 2.0  # seconds that suexecme may take to kill its engines; END_SECONDS in suexecme.py is longer
STOPS_IN = 15.0  # seconds that the main process may take to stop
KILLED_IN = 5.0  # seconds that a killed process may take to end; in a hung file system it may never
LEFT_ENDS_IN = 10.0  # seconds that processes left behind may take to end
QUICK = 2.0  # seconds; children that live for less have failed at once
FAILURES = 5  # in a row, before the supervisor gives up
AT_START = ("listen", "socket_mode", "socket_group", "user")  # settings that hold until a new start
SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1}


class StartError(Failure):
    """X-Switch cannot start. The text is one line."""


def bind(address: str, settings: Settings) -> socket.socket:
    """Return the listening socket of an address, unix:PATH, HOST:PORT or fd://N. Raises StartError, ConfigError."""
    try:
        if address.startswith("unix:"):
            return bind_unix(address.removeprefix("unix:"), settings)
        kind, host, port = parse_address(address)
        if kind == "fd":  # made by our parent, which also removes it
            return socket.socket(fileno=port)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except ValueError:
        raise ConfigError(f"listen: {address} is neither unix:PATH nor HOST:PORT") from None
    except OSError as reason:
        raise StartError(f"cannot listen on {address}: {reason.strerror}") from None


def bind_unix(path: str, settings: Settings) -> socket.socket:
    """Return a listening Unix socket, in place of one left behind. Raises OSError, StartError."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
            raise StartError(f"cannot listen on unix:{path}: another server does already")
        except ConnectionRefusedError:
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise StartError(
                    f"cannot listen on unix:{path}: it is a file, not a socket; choose another path"
                ) from None
            os.unlink(path)
        except FileNotFoundError:
            pass
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o777 & ~settings.socket_mode)
    try:
        listener.bind(path)
        listener.listen(BACKLOG)
        if settings.socket_group:
            os.chown(path, -1, group_of(settings))
    except (OSError, StartError):
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def name_of(listener: socket.socket) -> str:
    """Return the address of a socket, in the form of --listen."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"


class Supervisor:
    """Keeps suexecme and the main process running."""

    def __init__(
        self,
        settings: Settings,
        reload: Callable[[], Settings],
        log: ErrorLog,
        parent: int = 0,
        log_file: str = "-",
    ) -> None:
        """Open the sockets. Raises StartError, ConfigError.

        reload: reads the settings again. parent: a pid; the supervisor stops when that process ends; 0 for none.
        log_file: the file that standard error leads to, see log_here().
        """
        self.uid, self.gid = identity(settings)
        self.programs = published()
        self.settings = relocated(settings, self.programs)
        self.reload: Callable[[], Settings] = lambda: relocated(reload(), self.programs)
        self.log = log
        self.log_file = log_file
        self.listeners: list[socket.socket] = []
        self.suexecme = self.main = 0
        self.to_suexecme = socket.socket(socket.AF_UNIX)  # a placeholder until suexecme runs
        self.strays = Strays(lambda: {self.suexecme, self.main})
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
        orphans_come_here()
        if self.parent:
            dies_with(self.parent, signal.SIGTERM)
        failures = 0
        try:
            while failures < FAILURES:
                began = time.monotonic()
                try:
                    self.start()
                except OSError as reason:
                    self.log.error(f"X-Switch's processes do not start: {reason.strerror}")
                    self.end()
                    failures += 1
                    time.sleep(QUICK)
                    continue
                if not failures:
                    names = ", ".join(map(name_of, self.listeners))
                    self.log.info(f"X-Switch listens on {names} (pid {os.getpid()})")
                    for doubt in self.settings.doubts():
                        self.log.warning(doubt)
                if self.watch():
                    return 0
                failures = failures + 1 if time.monotonic() - began < QUICK else 1
            self.log.error(f"ended {FAILURES} times at once: giving up")
            return 1
        finally:
            self.end()
            self.close()

    def start(self) -> None:
        """Start both: suexecme first, so that it is forked before anything reads the network. Raises OSError."""
        orders, its_orders = channel.pair()
        with orders:
            with its_orders:
                self.to_suexecme.close()
                self.to_suexecme, supervisor = channel.pair()
                self.to_suexecme.setblocking(False)
                with supervisor:
                    self.suexecme = self.fork(lambda: self.be_suexecme(its_orders, supervisor, orders))
            self.main = self.fork(lambda: self.be_main(orders))

    def fork(self, be: Callable[[], int]) -> int:
        """Return the pid of a child that calls `be` and ends with the status that it returns."""
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            status = be()
        except Exception:
            self.log.exception("X-Switch failed")
        finally:
            os._exit(status)

    def be_suexecme(self, orders: socket.socket, supervisor: socket.socket, other: socket.socket) -> int:
        """Be suexecme. It ends when the main process does, and has killed all engines by then."""
        other.close()
        self.to_suexecme.close()
        for listener in self.listeners:
            listener.close()
        suexecme = Suexecme(orders, supervisor, self.settings, self.log)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # now that suexecme has handlers for them
        suexecme.run()
        if os.getppid() != self.pid:  # the supervisor was killed, and cannot do it
            self.remove_programs()
        return 0

    def be_main(self, orders: socket.socket) -> int:
        """Be the main process, as the configured user."""
        # Imported before root is dropped: the user may not be allowed to read Python's directories.
        from ewe.xswitch.switch.main import serve

        if os.geteuid() == 0:
            os.setgroups([self.gid])
            os.setresgid(self.gid, self.gid, self.gid)
            os.setresuid(self.uid, self.uid, self.uid)
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        self.to_suexecme.close()
        for number in (signal.SIGHUP, signal.SIGUSR1):  # a terminal that closes sends HUP to all
            signal.signal(number, signal.SIG_IGN)
        dies_with(self.pid)  # after the change of user, which resets it: prctl(2)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return serve(self.settings, self.listeners, orders, self.log)

    def watch(self) -> bool:
        """Wait for signals until a child has ended, then end the other; return whether we were asked to stop."""
        while True:
            number = signal.sigwait(SIGNALS)
            if number in (signal.SIGTERM, signal.SIGINT):
                self.log.info(f"{signal.Signals(number).name}: stopping")
                self.send(self.main, signal.SIGTERM)
                self.wait(self.main, STOPS_IN)
                self.end()
                return True
            if number == signal.SIGHUP:
                self.change_settings()
            elif number == signal.SIGUSR1:
                self.reopen_log()
            elif ended := self.ended():
                name = "suexecme" if ended == self.suexecme else "the main module"
                self.log.error(f"{name} has ended; starting both again")
                self.end()
                return False

    def change_settings(self) -> None:
        """Read the settings again, for both children and for those that will replace them."""
        before = self.settings
        try:
            settings = self.reload()
        except ConfigError as error:
            self.log.error(f"settings not read: {error}")
            return
        for name in AT_START:
            if getattr(settings, name) != getattr(before, name):
                self.log.warning(f"{name.replace('_', '-')} has changed, which only a new start takes up")
        self.settings = replace(settings, **{name: getattr(before, name) for name in AT_START})
        for doubt in self.settings.doubts():
            self.log.warning(doubt)
        try:
            copy = copy_of(self.settings)
            try:
                channel.send(self.to_suexecme, {"settings": True}, [copy])
            finally:
                os.close(copy)
        except OSError as reason:
            self.log.error(f"suexecme does not take the new settings until its next start: {reason.strerror}")
        else:
            self.log.info("settings read again")

    def reopen_log(self) -> None:
        """Open the log's file again, for all three processes: the main process may not be allowed to."""
        try:
            log_here(self.log_file)
        except OSError as reason:
            self.log.error(f"log {self.log_file}: {reason.strerror}; the old file stays in use")
            return
        try:
            if names_file(self.log_file):
                channel.send(self.to_suexecme, {"log": True}, [2])
        except OSError as reason:
            self.log.error(f"suexecme keeps the old log until its next start: {reason.strerror}")

    def ended(self) -> int:
        """Return the pid of a child that has ended, 0 if neither has; reap orphans."""
        for pid in (self.suexecme, self.main):
            if pid and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return pid
        self.end_orphans()
        return 0

    def end_orphans(self) -> None:
        """Kill and reap the processes that have become our children since suexecme ended."""
        if left := self.strays.end(self.reap_orphans, LEFT_ENDS_IN):
            self.log.error(f"{left} processes of users do not end")

    def reap_orphans(self) -> None:
        """Take the exit status of orphans that have ended."""
        for pid in set(children_of(self.pid)) - {self.suexecme, self.main}:
            os.waitpid(pid, os.WNOHANG)

    def send(self, pid: int, number: int) -> None:
        """Send a signal to a child, if it still runs."""
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def wait(self, pid: int, seconds: float) -> None:
        """Wait for a child's end; kill it after so many seconds."""
        if not self.has_ended(pid, seconds):
            self.send(pid, signal.SIGKILL)
            if not self.has_ended(pid, KILLED_IN):
                self.log.error(f"process {pid} does not end though it is killed: going on without it")

    def has_ended(self, pid: int, seconds: float) -> bool:
        """Return whether a child ends within so many seconds. Its exit status is not taken."""
        end = time.monotonic() + seconds
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            left = end - time.monotonic()
            if left <= 0:
                return False
            signal.sigtimedwait({signal.SIGCHLD}, left)
        return True

    def end(self) -> None:
        """End both: kill the main process, and wait for suexecme, which then kills its engines and ends."""
        if self.main:
            self.send(self.main, signal.SIGKILL)
            self.wait(self.main, KILLED_IN)
            os.waitpid(self.main, os.WNOHANG)
            self.main = 0
        if self.suexecme:
            self.wait(self.suexecme, ENDS_IN)
            os.waitpid(self.suexecme, os.WNOHANG)
            self.suexecme = 0
        self.end_orphans()

    def close(self) -> None:
        """Close the sockets, and remove their names."""
        for listener in self.listeners:
            if listener.family == socket.AF_UNIX and f"unix:{listener.getsockname()}" in self.settings.listen:
                with suppress(OSError):
                    os.unlink(listener.getsockname())
            elif listener.family == socket.AF_UNIX and self.parent not in (0, os.getppid()):
                directory = os.path.dirname(listener.getsockname())
                with suppress(OSError):  # our parent made it, and was killed
                    os.unlink(listener.getsockname())
                    os.unlink(os.path.join(directory, ".lock"))  # of ewe.scratch
                    os.rmdir(directory)
            listener.close()
        self.remove_programs()

    def remove_programs(self) -> None:
        """Remove the copies of the engine programs, if there are any."""
        if self.programs != ENGINES:
            shutil.rmtree(self.programs, ignore_errors=True)


def log_here(path: str) -> None:
    """Have standard error lead to a file, so that every message is in the log. Raises OSError.

    Nothing is changed for a log that is no file: "-", "off" and "syslog:".
    """
    if names_file(path):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
        os.dup2(file, 2)
        os.close(file)


def group_of(settings: Settings) -> int:
    """Return the gid of the group that may connect. Raises StartError."""
    try:
        return grp.getgrnam(settings.socket_group).gr_gid
    except KeyError:
        raise StartError(f"socket-group: there is no group {settings.socket_group}") from None


def check(settings: Settings) -> None:
    """Raise StartError if the configured user or group does not exist, or is root."""
    identity(settings)
    if settings.socket_group:
        group_of(settings)


def identity(settings: Settings) -> tuple[int, int]:
    """Return uid and gid of the main process: the configured ones, or our own if we are not root."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
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
