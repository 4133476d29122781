"""Programs: started without a copy of the server, read without blocking another, ended with their kin.

subprocess starts them with vfork(2) or posix_spawn(3), never with a plain fork, so that a start costs the
same however large the server is. Each program leads a process group of its own: a terminal's interrupt does
not reach it, and it can be ended with all that it started (what calls setsid leaves the group on purpose).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from ewe import logger

if TYPE_CHECKING:
    import subprocess

RECEIVE = 64 * 1024  # bytes read at once
FAREWELL = 0.3  # seconds between SIGTERM and SIGKILL
EXIT = 2.0  # seconds a program may take to exit once its output has ended
MAX_LINES = 1000  # lines of one program's standard error that go to the log; the rest is counted
MAX_LINE = 2000  # characters of such a line
LAST_ERRORS = 32  # reads of what is left in that pipe at the end; a pipe may hold 1 MB

running: set[Program] = set()  # every program of this process that was not reaped yet


class ProgramWaits(Protocol):
    """How a model waits for the pipes of a program; see ewe.streams."""

    async def wait(
        self,
        descriptors: Sequence[int],
        since: float,
        seconds: float,
        writable: int = -1,
        stays: bool = False,
    ) -> list[int]:
        """Wait until one of the descriptors can be read, or `writable` written; return those.

        Empty: the time is over.

        since: when the program was last heard of, on time.monotonic(). stays: they will be waited for again and
        again, and forget() comes before they are closed. Raises Disconnected when the client left, or has closed
        its side and the program has been silent for HALF_CLOSED seconds.
        """
        ...

    def forget(self, descriptor: int) -> None:
        """A descriptor that stayed is about to be closed."""
        ...

    def after(self, seconds: float, exited: int, function: Callable[[], None]) -> None:
        """Call function once the descriptor `exited` can be read, at the latest after so many seconds."""
        ...


def prepare() -> None:
    """Import what start() needs; called before a server forks, so that its children need not."""
    import subprocess  # noqa: F401 - with it comes threading, which makes every fork dearer


def start(
    owned: set[Program],
    waits: ProgramWaits,
    command: Sequence[str | bytes],
    environment: Mapping[bytes, bytes],
    directory: str,
    stdin: int,
    name: str,
) -> Program:
    """Start command in directory, with stdin (a descriptor) as standard input. Raises OSError.

    name: of the script, for the log. owned: the connection's programs; this one is in it until it is reaped.
    """
    import subprocess

    process = subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=directory,
        env=environment,
        process_group=0,
        bufsize=0,
    )
    return Program(owned, waits, process, name)


class ErrorLog:
    """The standard error of a program: its lines go to our log, MAX_LINES of them, each MAX_LINE long."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.begun = b""  # a line that has not ended
        self.lines = 0

    def take(self, data: bytes) -> None:
        """Log what came; b"": there is no more."""
        *lines, self.begun = (self.begun + data).split(b"\n")
        if self.begun and (not data or len(self.begun) > MAX_LINE):
            lines.append(self.begun)
            self.begun = b""
        for line in lines:
            self.lines += 1
            if self.lines <= MAX_LINES:
                logger.errors.warning(f"{self.name}: {line[:MAX_LINE].decode('utf-8', 'surrogateescape')}")

    def end(self) -> None:
        """Log a line without an end, and how many were not logged."""
        if self.begun:
            self.take(b"")
        if self.lines > MAX_LINES:
            logger.errors.warning(f"{self.name}: {self.lines - MAX_LINES} more lines of standard error")


class Program:
    """A program that runs. receive() reads its standard output; its standard error goes to the log meanwhile."""

    def __init__(
        self, owned: set[Program], waits: ProgramWaits, process: subprocess.Popen[bytes], name: str
    ) -> None:
        assert process.stdout is not None and process.stderr is not None
        self.owned = owned
        self.waits = waits
        self.process = process
        self.name = name
        self.output = process.stdout.fileno()
        self.error = process.stderr.fileno()
        self.exited = os.pidfd_open(process.pid)
        self.error_open = True
        self.errors = ErrorLog(name)
        self.gone = False  # the program itself has exited
        self.over = False
        self.status: int | None = None  # once it was reaped: the exit status, -N for signal N
        os.set_blocking(self.output, False)
        os.set_blocking(self.error, False)
        running.add(self)
        owned.add(self)

    async def receive(self, seconds: float, limit: int = RECEIVE) -> bytes | None:
        """Return the next bytes of standard output, b"" at its end, None if it stays silent for so many seconds.

        Once the program itself has exited, what it left behind with its output open has EXIT seconds.
        Raises Disconnected when the client left.
        """
        since = time.monotonic()
        while True:
            try:
                return os.read(self.output, limit)
            except BlockingIOError:
                pass
            patience = min(seconds, EXIT) if self.gone else seconds
            if not await self.ready(self.output, since, patience):
                return b"" if self.gone else None  # whatever it says on standard error meanwhile

    async def ready(self, descriptor: int, since: float, seconds: float) -> list[int]:
        """Wait for a descriptor, log standard error meanwhile; return what of both can be read.

        Empty: so many seconds have passed since `since`.
        """
        left = since + seconds - time.monotonic()
        if left <= 0:
            return []
        watched = [descriptor, self.error] if self.error_open else [descriptor]
        if not self.gone and descriptor != self.exited:
            watched.append(self.exited)
        ready = await self.waits.wait(watched, since, left)
        self.gone = self.gone or self.exited in ready
        if self.error in ready:
            self.read_errors()
        return ready

    def read_errors(self) -> bool:
        """Log what is there of standard error, a line each; return whether there may be more."""
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
        """Wait for the exit, a short while: its output has ended. What is left of its group is ended then.

        Return the exit status (-N: signal N), None if it had to be ended too.
        """
        since = time.monotonic()
        while self.exited not in (ready := await self.ready(self.exited, since, EXIT)):
            if not ready:
                logger.errors.warning(f"{self.name}: ended {EXIT:g} s after it closed its output")
                self.reap()
                return None
        return self.reap()

    def end(self) -> None:
        """Ask the whole group to end, and kill it a moment later."""
        if self.over:
            return
        self.signal(signal.SIGTERM)
        self.waits.after(FAREWELL, self.exited, self.kill)

    def kill(self) -> None:
        """Kill the whole group now."""
        if not self.over:
            self.reap()

    def signal(self, number: int) -> None:
        """Send a signal to the group, from any thread: until the leader is reaped its number is its own."""
        if self.status is not None:
            return
        try:
            os.killpg(self.process.pid, number)
        except OSError:
            pass

    def reap(self) -> int:
        """Kill what is left of the group, take the exit status, close what was open."""
        self.over = True
        self.signal(signal.SIGKILL)
        self.status = status = self.process.wait()
        for _ in range(LAST_ERRORS):
            if not (self.error_open and self.read_errors()):
                break
        self.errors.end()
        os.close(self.exited)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        running.discard(self)
        self.owned.discard(self)
        return status


def kill_all() -> int:
    """Kill every program of this process; return how many there were."""
    count = len(running)
    for program in list(running):
        program.kill()
    return count
