"""Programs: starting one for a request, reading its output, ending it with all that it started.

    start() ─▶ spawn.py (vfork) ──▶ program, leader of a process group
                                       │ standard output ──▶ receive(): the response's body
                                       │ standard error  ──▶ the error log, line by line
                                       └ pidfd           ──▶ "the program has exited"
    all three are waited for at once, with the poller of the client's stream

A Program is the source of its response (GatewaySource): the conversation reads from it directly.

Programs are started with posix_spawn(3), never with a plain fork(2), so a start costs the same for a small server
and for a large one. Each program leads its own process group: Ctrl-C in the server's terminal
does not reach it, and killpg(2) ends it with every process that it started. A process that calls setsid(2) leaves
the group on purpose.

What can go wrong, and where it is prevented:

- The program exits, but a child that it left behind keeps its output open: the end of the output never comes. The
  pidfd tells of the exit, and after it the output may be silent for EXIT seconds only.
- The program closes its output and does not exit. It has EXIT seconds, then its group is killed (wait).
- The program writes to standard error without end. MAX_LINES lines are logged, the others counted (ErrorLog).
- The client leaves. The poller raises Disconnected, and the group gets SIGTERM, FAREWELL seconds later SIGKILL.
- A signal goes to a process id that was reaped, and belongs to another process now. signal() sends only until the
  leader is reaped; until then the kernel keeps its number.

Read next: spawn.py for the start; cgi.py for what a program is told; streams/poller.py; orphans.py for programs
whose worker was killed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ewe import logger
from ewe.gateway.cgi import GatewaySource
from ewe.gateway.scripts import fault_of
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.gateway.scripts import Script
    from ewe.streams.base import Stream

RECEIVE = 64 * 1024  # bytes read at once
FAREWELL = 0.3  # seconds between SIGTERM and SIGKILL
EXIT = 2.0  # seconds that a program may take to exit after its output has ended
MAX_LINES = 1000  # lines of one program's standard error that go to the log; the rest is counted
MAX_LINE = 2000  # characters of such a line
NO_COMMAND = 127  # exit status of env and of shells when a command does not exist
LAST_ERRORS = 32  # reads of standard error after the end; a pipe may hold 1 MB

running: set[Program] = set()  # every program of this process that is not reaped yet


def prepare() -> None:
    """Import what start() needs, before the server forks, so that its children need not."""
    import ewe.gateway.spawn  # noqa: F401 - not above: a feature that only wants an ErrorLog starts no program


def start(
    io: Stream,
    command: Sequence[str | bytes],
    environment: Mapping[bytes, bytes],
    directory: str,
    stdin: int,
    script: Script,
    timeout: float,
) -> Program:
    """Start a command for the client behind `io`; return the program that runs. Raises OSError, ValueError.

    directory: its working directory. stdin: a descriptor, its standard input. timeout: seconds that it may be
    silent. The program is in io.programs until it is reaped, so that it ends when the connection is aborted.
    """
    from ewe.gateway.spawn import start as spawn

    ends: list[int] = []
    try:
        ends += os.pipe()
        ends += os.pipe()
        output, its_output, error, its_error = ends
        pid = spawn(command, environment, directory, (stdin, its_output, its_error))
        try:
            program = Program(io, pid, output, error, script, timeout)
        except OSError:  # there is no descriptor left for the pidfd
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
    except BaseException:
        for end in ends:
            os.close(end)
        raise
    os.close(its_output)
    os.close(its_error)
    return program


class ErrorLog:
    """Copies a program's standard error to the log: MAX_LINES lines, MAX_LINE characters of each."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.begun = b""  # a line whose end has not come
        self.lines = 0

    def take(self, data: bytes) -> None:
        """Log the lines in `data`; b"" is the end."""
        if self.lines > MAX_LINES and data:  # further lines are only counted
            self.lines += data.count(b"\n")
            self.begun = data.rpartition(b"\n")[2][:1]
            return
        *lines, self.begun = (self.begun + data).split(b"\n")
        if self.begun and (not data or len(self.begun) > MAX_LINE):
            lines.append(self.begun)
            self.begun = b""
        for line in lines:
            self.lines += 1
            if self.lines <= MAX_LINES:
                logger.errors.warning(f"{self.name}: {line[:MAX_LINE].decode('utf-8', 'surrogateescape')}")

    def end(self) -> None:
        """Log a last line without an end, and how many lines were not logged."""
        if self.begun:
            self.take(b"")
        if self.lines > MAX_LINES:
            logger.errors.warning(f"{self.name}: {self.lines - MAX_LINES} more lines of standard error")


class Program(GatewaySource):
    """A program that runs, and at the same time the body of its response: receive() reads its standard output.

    Its standard error goes to the log meanwhile.
    """

    def __init__(self, io: Stream, pid: int, output: int, error: int, script: Script, timeout: float) -> None:
        """output, error: the pipes to read, which are the program's from now on. timeout: seconds that it may be
        silent. Raises OSError if no descriptor is left.
        """
        super().__init__(script.name)
        self.exited = os.pidfd_open(pid)
        self.owned = io.programs
        self.poller = io.poller()
        self.pid = pid
        self.script = script
        self.timeout = timeout
        self.output = output
        self.error = error
        self.error_open = True
        self.errors = ErrorLog(script.name)
        self.gone = False  # the program itself has exited
        self.over = False  # it was reaped, or is about to be
        self.status: int | None = None  # once it was reaped: the exit status, -N for signal N
        os.set_blocking(self.output, False)
        os.set_blocking(self.error, False)
        running.add(self)
        self.owned.add(self)

    async def receive(self) -> bytes:
        """Return the next output, b"" at its end. Raises HTTPError(502, 504), Disconnected.

        Once the program itself has exited, processes that it left behind may be silent for EXIT seconds.
        """
        if self.left_over:
            return self.take_left_over()
        since = time.monotonic()
        while not self.finished:
            try:
                data = os.read(self.output, RECEIVE)
            except BlockingIOError:
                patience = min(self.timeout, EXIT) if self.gone else self.timeout
                if await self.ready(self.output, since, patience):
                    continue
                if not self.gone:
                    self.end()
                    raise HTTPError(
                        504, f"{self.name}: silent for {self.timeout:g} s (program-timeout)"
                    ) from None
                data = b""  # processes that the program left behind are not waited for any longer
            if data:
                await self.poller.share(len(data))
                return data
            self.finished = True
            status = await self.wait()
            if status is not None and status < 0:  # an incomplete body must not pass for the whole
                raise HTTPError(502, f"{self.name}: ended by signal {-status}")
        return b""

    def how_it_ended(self) -> str:
        fault = fault_of(self.script.file) if self.status == NO_COMMAND else ""
        return f"exit status {self.status}{fault and '; ' + fault}"

    async def ready(self, descriptor: int, since: float, seconds: float) -> list[int]:
        """Wait until a descriptor can be read, and log standard error meanwhile; return those that are ready.

        The list is empty if `seconds` have passed since `since` (time.monotonic()).
        """
        left = since + seconds - time.monotonic()
        if left <= 0:
            return []
        watched = [descriptor, self.error] if self.error_open else [descriptor]
        if not self.gone and descriptor != self.exited:
            watched.append(self.exited)
        ready = await self.poller.wait(watched, since, left)
        self.gone = self.gone or self.exited in ready
        if self.error in ready:
            self.read_errors()
        return ready

    def read_errors(self) -> bool:
        """Log the lines that have come on standard error; return whether more may follow."""
        try:
            data = os.read(self.error, RECEIVE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.error_open = False
        self.errors.take(data)
        return self.error_open

    async def wait(self) -> int | None:
        """Wait up to EXIT seconds for the exit, after the output has ended; then kill the rest of the group.

        Return the exit status (-N: signal N), None if the program itself had to be killed.
        """
        since = time.monotonic()
        while self.exited not in (ready := await self.ready(self.exited, since, EXIT)):
            if not ready:
                logger.errors.warning(f"{self.name}: ended {EXIT:g} s after it closed its output")
                self.reap()
                return None
        return self.reap()

    def end(self) -> None:
        """Ask the group to end (SIGTERM), and kill it FAREWELL seconds later."""
        if self.over:
            return
        self.signal(signal.SIGTERM)
        self.poller.after(FAREWELL, self.exited, self.kill)

    def kill(self) -> None:
        """Kill and reap the group now."""
        if not self.over:
            self.reap()

    def signal(self, number: int) -> None:
        """Send a signal to the group; any thread may call this. After the leader is reaped nothing is sent."""
        if self.status is not None:
            return
        try:
            os.killpg(self.pid, number)
        except OSError:
            pass

    def reap(self) -> int:
        """Kill what is left of the group, read the exit status, close the pipes; return the status."""
        self.over = True
        self.signal(signal.SIGKILL)
        self.status = status = exit_status(self.pid)
        for _ in range(LAST_ERRORS):
            if not (self.error_open and self.read_errors()):
                break
        self.errors.end()
        for descriptor in (self.exited, self.output, self.error):
            os.close(descriptor)
        running.discard(self)
        self.owned.discard(self)
        return status


def exit_status(pid: int) -> int:
    """Wait for a child process, and return its exit status; -N: signal N has ended it."""
    try:
        while os.WIFSTOPPED(status := os.waitpid(pid, 0)[1]):  # it has made this process its tracer
            os.kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(status)
    except ChildProcessError:  # a waitpid(-1) elsewhere in this process was first
        return 0


def kill_all() -> int:
    """Kill every program of this process; return how many there were."""
    count = len(running)
    for program in list(running):
        program.kill()
    return count
