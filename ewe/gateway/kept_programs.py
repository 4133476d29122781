"""Programs that ewe keeps running: their sockets and their processes.

A feature makes a KeptProgram for each program that has to run before the first request (Feature.programs). The
program manager of the server (ewe.server.program_manager) starts their processes, and knows none of them by name.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ewe.config.settings import Config

BACKLOG = 1024  # connections that wait for a program, also while it is started again
PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR2)  # by the manager
# Orders to the manager. They stay blocked until ManagerProcess.run() has set their handlers. To ignore them until
# then would discard one that has arrived.
ORDERS = (signal.SIGHUP, signal.SIGUSR1)


class ProcessHandle(Protocol):
    """A running process: the attributes of subprocess.Popen that the manager uses."""

    pid: int
    returncode: int

    def poll(self) -> int | None:
        """Return the exit status, or -N if signal N ended the process; None while it runs."""


class KeptProgram:
    """One program: the number of its processes, its listening socket, and the socket's path.

    setting: the key of the setting that asks for the program. rereads: the names of the settings that its processes
    read again at HUP; () means that HUP replaces the processes. hidden: hide_socket() has renamed the socket.
    start_message: a line for the log once the program is started; "": none.
    """

    setting = ""
    rereads: tuple[str, ...] = ()
    start_message = ""

    def __init__(self, name: str, count: int, path: str) -> None:
        """Open the socket. name: for messages. count: the number of processes. Raises OSError."""
        self.name = name
        self.count = count
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            self.socket.bind(path)
            self.socket.listen(BACKLOG)
        except OSError:
            self.socket.close()
            raise
        self.hidden = False

    def completed(self, config: Config) -> Config:
        """Return a configuration in which the settings also name the program's socket."""
        raise NotImplementedError

    def write_settings(self, config: Config) -> None:
        """Write the values of `rereads` for the processes, which then read them at HUP. Raises OSError."""

    def preload(self) -> None:
        """Load the modules for start(): after root is given up, their directory may not be readable."""

    def start(self, output: int) -> ProcessHandle:
        """Start a process, with the socket as descriptor 0, and `output` as 1 and 2. Raises OSError."""
        raise NotImplementedError

    def hide_socket(self) -> None:
        """Rename the socket, so that connect(2) fails, and close the connections in its backlog."""
        if not self.hidden:
            rename_if_there(self.path, self.path + ".hidden")
            self.hidden = True
        # The processes share the flags of the socket. The manager calls this while none of them runs. A process
        # that the program has left behind may take a connection first: a blocking accept() would then not return.
        self.socket.setblocking(False)
        try:
            with suppress(OSError):  # BlockingIOError: the backlog is empty; EMFILE: it stays as it is
                while True:
                    self.socket.accept()[0].close()
        finally:
            self.socket.setblocking(True)

    def show_socket(self) -> None:
        """Undo hide_socket(): give the socket its name back, so that clients can connect again."""
        if self.hidden:
            rename_if_there(self.path + ".hidden", self.path)
            self.hidden = False


def rename_if_there(path: str, new: str) -> None:
    """Rename a socket, unless it was removed, such as by a cleaner of /tmp: the other programs must go on."""
    with suppress(FileNotFoundError):
        os.rename(path, new)


class ForkedProcess:
    """A forked process that runs a function."""

    def __init__(self, function: Callable[[], None]) -> None:
        """Raises OSError."""
        self.returncode = 0
        self.ended = False
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                signal.set_wakeup_fd(-1)
                os.setpgid(0, 0)
                prepare_program_process()
                function()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)

    def poll(self) -> int | None:
        """Return the exit status, or -N if signal N ended the process; None while it runs."""
        if not self.ended:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if os.WIFSTOPPED(status):  # the child has made this process its tracer (PTRACE_TRACEME)
                os.kill(self.pid, signal.SIGKILL)
                return None
            self.ended = pid != 0
            self.returncode = os.waitstatus_to_exitcode(status) if pid else 0
        return self.returncode if self.ended else None


def prepare_program_process() -> None:
    """Prepare a process that the manager has just forked: the signals that end a program must reach it.

    The kernel sends it TERM if the manager dies.
    """
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    except AttributeError:
        pass  # only Linux has prctl(2); on other systems a program outlives a manager that was killed
    # A program would inherit an ignored signal, even over exec(2).
    for number in (*IGNORED, *ORDERS):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
