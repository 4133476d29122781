"""The command's own process: opens the sockets, starts suexecme and the main module, and anew when one fails.

The sockets stay open here, so that who connects while the two are started anew waits a moment. When this process
is killed, the kernel kills the other two (PR_SET_PDEATHSIG), and the engines with suexecme.
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from ewe.config import ConfigError
from ewe.kinds import parse_address
from ewe.logger import ErrorLog
from ewe.xswitch import channel
from ewe.xswitch.process import PR_SET_NO_NEW_PRIVS, dies_with, orphans_come_here, prctl
from ewe.xswitch.public import published, relocated
from ewe.xswitch.settings import ENGINES, Settings
from ewe.xswitch.suexecme import Suexecme, children

BACKLOG = 1024
ENDS_IN = 2.0  # seconds that suexecme may take to end its engines
STOPS_IN = 15.0  # seconds that the main module may take to stop
QUICK = 2.0  # seconds; two processes that live less have failed at once
FAILURES = 5  # in a row
SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


class StartError(Exception):
    """X-Switch cannot start; the text is one line."""


def bind(address: str, settings: Settings) -> socket.socket:
    """Return the listening socket of an address, unix:PATH, HOST:PORT or fd://N. Raises StartError, ConfigError."""
    try:
        if address.startswith("unix:"):
            return bind_unix(address.removeprefix("unix:"), settings)
        kind, host, port = parse_address(address)
        if kind == "fd":  # made, and to be removed, by who started us
            return socket.socket(fileno=port)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except ValueError:
        raise ConfigError(f"listen: {address} is neither unix:PATH nor HOST:PORT") from None
    except OSError as reason:
        raise StartError(f"cannot listen on {address}: {reason.strerror}") from None


def bind_unix(path: str, settings: Settings) -> socket.socket:
    """Return a listening Unix socket; one that a server has left behind is replaced. Raises OSError, StartError."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
            raise StartError(f"cannot listen on unix:{path}: somebody does already")
        except ConnectionRefusedError:
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
    """Return the address of a socket, as --listen has it."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"


class Supervisor:
    """Keeps both processes."""

    def __init__(
        self, settings: Settings, reload: Callable[[], Settings], log: ErrorLog, parent: int = 0
    ) -> None:
        """Open the sockets. reload: reads the settings anew. parent: without whom we stop; 0: nobody.

        Raises StartError, ConfigError.
        """
        self.uid, self.gid = identity(settings)
        self.programs = published()
        self.settings = relocated(settings, self.programs)
        self.reload = lambda: relocated(reload(), self.programs)
        self.log = log
        self.listeners: list[socket.socket] = []
        self.suexecme = self.main = 0
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
                self.start()
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
        """Start both: suexecme first, so that nothing has read the network before it."""
        orders, its_orders = channel.pair()
        self.suexecme = self.fork(lambda: self.be_suexecme(its_orders, orders))
        its_orders.close()
        self.main = self.fork(lambda: self.be_main(orders))
        orders.close()

    def fork(self, be: Callable[[], int]) -> int:
        """Return the pid of a child that does this and ends."""
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

    def be_suexecme(self, orders: socket.socket, other: socket.socket) -> int:
        """Be suexecme. It ends when the main module does, and so outlives us by as long as it takes to tidy up."""
        other.close()
        for listener in self.listeners:
            listener.close()
        suexecme = Suexecme(orders, self.settings, self.reload, self.log)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # now that it has handlers for them
        suexecme.run()
        if os.getppid() != self.pid:  # the parent was killed: nobody else will
            self.remove_programs()
        return 0

    def be_main(self, orders: socket.socket) -> int:
        """Be the main module, as the configured user."""
        from ewe.xswitch.main import serve  # now: the user may not be allowed to read where Python lies

        if os.geteuid() == 0:
            os.setgroups([self.gid])
            os.setresgid(self.gid, self.gid, self.gid)
            os.setresuid(self.uid, self.uid, self.uid)
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        dies_with(self.pid)  # now: the kernel forgets it with a change of user
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return serve(self.settings, self.listeners, orders, self.log)

    def watch(self) -> bool:
        """Wait until one of the two has ended, which ends the other; return whether that was asked for."""
        while True:
            number = signal.sigwait(SIGNALS)
            if number in (signal.SIGTERM, signal.SIGINT):
                self.log.info(f"{signal.Signals(number).name}: stopping")
                self.send(self.main, signal.SIGTERM)
                self.wait(self.main, STOPS_IN)
                self.end()
                return True
            if number == signal.SIGHUP:
                self.send(self.suexecme, signal.SIGHUP)
            elif ended := self.ended():
                name = "suexecme" if ended == self.suexecme else "the main module"
                self.log.error(f"{name} has ended; starting anew")
                self.end()
                return False

    def ended(self) -> int:
        """Return which of the two has ended, 0 if neither has; orphans are reaped on the way."""
        for pid in (self.suexecme, self.main):
            if pid and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return pid
        self.end_orphans()
        return 0

    def end_orphans(self) -> None:
        """Kill and reap what has been left to us: all that suexecme could not see to."""
        for pid in set(children()) - {self.suexecme, self.main}:
            self.send(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def send(self, pid: int, number: int) -> None:
        """Send a signal to a child of ours, if it is there."""
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def wait(self, pid: int, seconds: float) -> None:
        """Wait for a child's end, and kill it after so many seconds."""
        end = time.monotonic() + seconds
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            left = end - time.monotonic()
            if left <= 0:
                self.send(pid, signal.SIGKILL)
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
                return
            signal.sigtimedwait({signal.SIGCHLD}, left)

    def end(self) -> None:
        """End both; suexecme ends when the main module has gone, and its engines with it."""
        if self.main:
            self.send(self.main, signal.SIGKILL)
            os.waitpid(self.main, 0)
            self.main = 0
        if self.suexecme:
            self.wait(self.suexecme, ENDS_IN)
            os.waitpid(self.suexecme, 0)
            self.suexecme = 0
        self.end_orphans()

    def close(self) -> None:
        """Close the sockets, and remove what has a name."""
        for listener in self.listeners:
            if listener.family == socket.AF_UNIX and f"unix:{listener.getsockname()}" in self.settings.listen:
                with suppress(OSError):
                    os.unlink(listener.getsockname())
            elif listener.family == socket.AF_UNIX and self.parent not in (0, os.getppid()):
                with suppress(OSError):  # who made it was killed
                    os.unlink(listener.getsockname())
                    os.rmdir(os.path.dirname(listener.getsockname()))
            listener.close()
        self.remove_programs()

    def remove_programs(self) -> None:
        """Remove the copies of the engines, if there are any."""
        if self.programs != ENGINES:
            shutil.rmtree(self.programs, ignore_errors=True)


def group_of(settings: Settings) -> int:
    """Return the number of the group that may connect. Raises StartError."""
    try:
        return grp.getgrnam(settings.socket_group).gr_gid
    except KeyError:
        raise StartError(f"socket-group: there is no group {settings.socket_group}") from None


def check(settings: Settings) -> None:
    """Raise StartError where user and group are not as they must be."""
    identity(settings)
    if settings.socket_group:
        group_of(settings)


def identity(settings: Settings) -> tuple[int, int]:
    """Return user and group of the main module: the configured ones, or our own if we are not root."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    try:
        entry = pwd.getpwnam(settings.user)
    except KeyError:
        raise StartError(f"user: there is no user {settings.user}") from None
    if entry.pw_uid == 0:
        raise StartError("user: the main module must not be root; name another")
    return entry.pw_uid, entry.pw_gid
