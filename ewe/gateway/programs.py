"""Programs: start one for a request, read its output, and end it with all processes that it started.

    start() ─▶ spawn.py (vfork) ──▶ program, leader of a process group
                                       │ standard output ──▶ receive(): the response's body
                                       │ standard error  ──▶ the error log, line by line
                                       └ pidfd           ──▶ "the program has exited" (exits.py)
    all three are waited for at once, with the poller of the client's stream

A RunningProgram is the source of its response (GatewaySource): the conversation reads from it directly.

ewe starts programs with posix_spawn(3), never with a plain fork(2). A start therefore costs the same for a small
server and for a large one. Each program leads its own process group: Ctrl-C in the server's terminal does not reach
it, and killpg(2) ends it with every process that it started. A process that calls setsid(2) leaves the group on
purpose.

Possible failures, and where each is prevented:

- The program exits, but a child that it left behind keeps its output open: the end of the output never comes. The
  pidfd reports the exit. From the exit on, the output may be silent for EXIT_TIMEOUT_S only.
- The program closes its output and does not exit. It has EXIT_TIMEOUT_S, then its group is killed (wait). A program
  that answers by its exit status has longer: exit_timeout_s.
- The program writes to standard error without end. MAX_ERROR_LINES lines are logged, the others counted
  (StderrLog).
- The client leaves. The poller raises Disconnected. The group gets SIGTERM, and SIGKILL after TERM_TO_KILL_S.
- A signal goes to a process id that was reaped, and belongs to another process now. reap() sends the last signal;
  until the leader is reaped, the kernel reserves its process id.
- The program cannot be killed: it runs as another account (`exec sudo`), or hangs in the kernel. reap() waits for
  KILL_TIMEOUT_S. A thread then waits for the exit, so the server goes on, and its stop stays bounded.

Read next: spawn.py for the start; cgi.py for the variables of a program; streams/poller.py; orphans.py for programs
that outlive a killed worker.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ewe import logger
from ewe.gateway.cgi import GatewaySource
from ewe.gateway.exits import has_exited, start_thread, watched_exit
from ewe.gateway.scripts import fault_of
from ewe.http.status import HTTPError
from ewe.timeouts import count_timeout

if TYPE_CHECKING:
    from ewe.gateway.scripts import Script
    from ewe.streams.base import Stream

RECEIVE_BYTES = 64 * 1024  # bytes read at once
TERM_TO_KILL_S = 0.3  # seconds between SIGTERM and SIGKILL
KILL_TIMEOUT_S = 2.0  # seconds that a killed program may take to end
EXIT_TIMEOUT_S = 2.0  # seconds that a program may take to exit after its output has ended
MAX_ERROR_LINES = 1000  # lines of one program's standard error that go to the log; further lines are counted
MAX_LINE_CHARS = 2000  # of such a line
NO_COMMAND = 127  # exit status of env and of shells when a command does not exist
LAST_ERRORS = 32  # reads of standard error after the end; a pipe may hold 1 MB

running: set[RunningProgram] = set()  # every program of this process that is not reaped yet


def import_before_fork() -> None:
    """Import the modules that start() needs before the server forks: its children then need not import them."""
    import ewe.gateway.spawn  # noqa: F401 - not above: a feature that only wants a StderrLog starts no program


def start(
    io: Stream,
    command: Sequence[str | bytes],
    environment: Mapping[bytes, bytes],
    directory: str,
    stdin: int,
    script: Script,
    timeout_s: float,
) -> RunningProgram:
    """Start a command for the client behind `io`; return the running program.

    Raises OSError; ValueError for a NUL in an argument; RuntimeError if the exit needs a thread and none starts.

    directory: its working directory. stdin: a descriptor, its standard input. timeout_s: how long the program may
    be silent. The program is in io.programs until it is reaped: it ends when the connection is aborted.
    """
    from ewe.gateway.spawn import start as spawn

    ends: list[int] = []
    try:
        ends += os.pipe()
        ends += os.pipe()
        stdout, its_stdout, stderr, its_stderr = ends
        pid = spawn(command, environment, directory, (stdin, its_stdout, its_stderr))
        try:
            program = RunningProgram(io, pid, stdout, stderr, script, timeout_s)
        except (OSError, RuntimeError):  # out of descriptors, or of threads (exits.py)
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
    except BaseException:
        for end in ends:
            os.close(end)
        raise
    os.close(its_stdout)
    os.close(its_stderr)
    return program


class StderrLog:
    """Copies a program's standard error to the log: MAX_ERROR_LINES lines, MAX_LINE_CHARS characters of each."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.line_begin = b""  # a line whose end has not come
        self.line_count = 0

    def take(self, data: bytes) -> None:
        """Log the lines in `data`; b"" is the end."""
        if self.line_count > MAX_ERROR_LINES and data:  # further lines are only counted
            self.line_count += data.count(b"\n")
            self.line_begin = data.rpartition(b"\n")[2][:1]  # enough to count a last line without an end
            return
        *lines, self.line_begin = (self.line_begin + data).split(b"\n")
        if self.line_begin and (not data or len(self.line_begin) > MAX_LINE_CHARS):
            lines.append(self.line_begin)
            self.line_begin = b""
        for line in lines:
            self.line_count += 1
            if self.line_count <= MAX_ERROR_LINES:
                logger.errors.warning(
                    f"{self.name}: {line[:MAX_LINE_CHARS].decode('utf-8', 'surrogateescape')}"
                )

    def end(self) -> None:
        """Log a last line without an end, and how many lines were not logged."""
        if self.line_begin:
            self.take(b"")
        if self.line_count > MAX_ERROR_LINES:
            logger.errors.warning(
                f"{self.name}: {self.line_count - MAX_ERROR_LINES} more lines of standard error"
            )


class RunningProgram(GatewaySource):
    """A running program, which is the body of its response: receive() reads its standard output.

    Its standard error goes to the log meanwhile. exit_timeout_s: how long it may take to exit after the end of its
    output; None: EXIT_TIMEOUT_S.
    """

    exit_timeout_s: float | None = None

    def __init__(
        self, io: Stream, pid: int, stdout: int, stderr: int, script: Script, timeout_s: float
    ) -> None:
        """io: the client's connection. pid: the leader of the program's process group. script: names the program.

        stdout, stderr: the pipes to read; the RunningProgram owns them now. timeout_s: how long the program may be
        silent. Raises OSError if no descriptor is left, RuntimeError if the exit needs a thread and none starts.
        """
        super().__init__(script.name)
        self.exit = watched_exit(pid)
        self.exit_descriptor = self.exit.descriptor  # can be read once the leader has exited
        self.programs_of_stream = io.programs
        self.poller = io.poller()
        self.pid = pid
        self.script = script
        self.timeout_s = timeout_s
        self.stdout = stdout
        self.stderr = stderr
        self.stderr_is_open = True
        self.stderr_log: StderrLog | None = None  # None: the program has written nothing to standard error
        self.leader_exited = False  # processes that the program started may still run
        self.reaped = False  # reap() was called
        self.status: int | None = None  # once it was reaped: the exit status, -N for signal N
        os.set_blocking(self.stdout, False)
        os.set_blocking(self.stderr, False)
        running.add(self)
        self.programs_of_stream.add(self)

    async def receive(self) -> bytes:
        """Return the next bytes of the program's output, b"" at its end.

        The program may be silent for `timeout_s`. Once it has exited, the processes that it left behind may
        be silent for EXIT_TIMEOUT_S. Raises HTTPError: 504 if the program is silent for longer, 502 if a signal
        ended it; Disconnected.
        """
        if self.body_start:
            return self.take_body_start()
        # The time.monotonic() at which the present silence began
        since = time.monotonic()
        while not self.finished:
            try:
                data = os.read(self.stdout, RECEIVE_BYTES)
            except BlockingIOError:
                had_exited = self.leader_exited
                wait_limit = min(self.timeout_s, EXIT_TIMEOUT_S) if had_exited else self.timeout_s
                if await self.ready(self.stdout, since, wait_limit):
                    if self.leader_exited and not had_exited:
                        # The silence of the program itself does not count for the processes that it left behind.
                        since = time.monotonic()
                    continue
                if not self.leader_exited:
                    self.end()
                    count_timeout("program")
                    raise HTTPError(
                        504, f"{self.name}: silent for {self.timeout_s:g} s (program-timeout)"
                    ) from None
                data = b""  # stop waiting for processes that the program left behind
            if data:
                await self.poller.share(len(data))
                return data
            self.finished = True
            status = await self.wait()
            if status is not None and status < 0:  # an incomplete body must not look complete
                raise HTTPError(502, f"{self.name}: ended by signal {-status}")
        return b""

    def how_it_ended(self) -> str:
        """Return the exit status for a message; for NO_COMMAND also the fault of the script, if one is found."""
        if self.status == NO_COMMAND and (fault := fault_of(self.script.file)):
            return f"exit status {self.status}; {fault}"
        return f"exit status {self.status}"

    async def ready(self, descriptor: int, since: float, seconds: float) -> list[int]:
        """Wait until a descriptor can be read, and log standard error meanwhile; return those that are ready.

        The list is empty if `seconds` have passed since `since` (time.monotonic()).
        """
        left_s = since + seconds - time.monotonic()
        if left_s <= 0:
            return []
        watched = [descriptor, self.stderr] if self.stderr_is_open else [descriptor]
        if not self.leader_exited and descriptor != self.exit_descriptor:
            watched.append(self.exit_descriptor)
        ready = await self.poller.wait(watched, since, left_s)
        self.leader_exited = self.leader_exited or self.exit_descriptor in ready
        if self.stderr in ready:
            self.read_errors()
        return ready

    def read_errors(self) -> bool:
        """Log the lines that have arrived on standard error; return whether more may follow."""
        try:
            data = os.read(self.stderr, RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self.stderr_log = self.stderr_log or StderrLog(self.name)
        else:
            self.stderr_is_open = False
        if self.stderr_log is not None:
            self.stderr_log.take(data)
        return self.stderr_is_open

    async def wait(self) -> int | None:
        """Wait up to exit_timeout_s for the exit, after the output has ended; then kill the rest of the group.

        Return the exit status (-N: signal N), None if the program itself had to be killed.
        """
        since = time.monotonic()
        limit = EXIT_TIMEOUT_S if self.exit_timeout_s is None else self.exit_timeout_s
        while self.exit_descriptor not in (ready := await self.ready(self.exit_descriptor, since, limit)):
            if not ready:
                logger.errors.warning(f"{self.name}: ended {limit:g} s after it closed its output")
                self.reap()
                return None
        return self.reap()

    def end(self) -> None:
        """Ask the group to end (SIGTERM), and kill it TERM_TO_KILL_S later."""
        if self.reaped:
            return
        self.signal(signal.SIGTERM)
        self.poller.after(TERM_TO_KILL_S, self.exit_descriptor, self.kill)

    def kill(self) -> None:
        """Kill and reap the group now."""
        if not self.reaped:
            self.reap()

    def signal(self, number: int) -> None:
        """Send a signal to the group, unless reap() was called. Any thread may call this."""
        if not self.reaped:
            signal_group(self.pid, number)

    def reap(self) -> int | None:
        """Kill the rest of the group, read the exit status, close the pipes; return the status.

        Return None if the program cannot be killed.
        """
        self.reaped = True
        signal_group(self.pid, signal.SIGKILL)
        if self.leader_exited or has_exited(self.exit_descriptor, KILL_TIMEOUT_S):
            self.status = self.exit.status()
        else:
            logger.errors.warning(
                f"{self.name}: process {self.pid} runs {KILL_TIMEOUT_S:g} s after it was killed"
            )
            with suppress(RuntimeError):  # without a thread, this process keeps a zombie
                start_thread(self.exit.status)
        for _ in range(LAST_ERRORS):
            if not (self.stderr_is_open and self.read_errors()):
                break
        if self.stderr_log is not None:
            self.stderr_log.end()
        self.exit.close()
        for descriptor in (self.stdout, self.stderr):
            os.close(descriptor)
        running.discard(self)
        self.programs_of_stream.discard(self)
        return self.status


def signal_group(group: int, number: int) -> None:
    """Send a signal to a process group, if it still exists and this process may signal it."""
    try:
        os.killpg(group, number)
    except OSError:
        pass


def kill_all() -> int:
    """Kill every program of this process; return how many there were."""
    count = len(running)
    for program in list(running):
        program.kill()
    return count
