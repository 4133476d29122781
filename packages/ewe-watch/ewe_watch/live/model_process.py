"""A model as a process: the command `ewe` on a free port of the loopback interface, with a pipe for its trace.

The pipe (FIFO) is open for reading before the server starts, so the server finds a reader. It stays open for
writing here, too: otherwise the end of a forked child would look like the end of the trace.

Each server has its own session. A Ctrl-C in the terminal reaches only ewe-watch, which stops the servers in
order. stop() ends the whole process group, so that no child of a server and no program remains. guard.py does so if
ewe-watch is killed.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from ewe.config.messages import Failure
from ewe.scoreboard import is_alive
from ewe_watch.events import TraceEvent, parse
from ewe_watch.live.choice import ModelChoice
from ewe_watch.live.guard import STOP_S, ModelGuard

PIPE_BYTES = 1024 * 1024
READ_BYTES = 256 * 1024
START_S = 20.0  # the longest start, on a busy machine
BANNER = re.compile(r"ewe: http://127\.0\.0\.1:(\d+)/ \((.*?); pid")
# Clients that are held on purpose: the server must not end them before the lecturer does.
PATIENT = {
    "head-timeout": "300", "body-timeout": "300", "write-timeout": "300", "idle": "300", "program-timeout": "300",
    "min-rate": "0", "grace": "1",
}  # fmt: skip


class StartFailure(Failure):
    """A model does not start. The text is one line."""


class ServerProcess:
    """A server in its own session. port: where it listens. pid: of its first process, which leads the group."""

    process: subprocess.Popen[bytes]
    guard: ModelGuard
    pid: int
    port: int
    description: str
    log: Path
    is_stopped = False

    def read(self) -> tuple[bytes, list[TraceEvent]]:
        """Return the lines of the trace that have come, and their events. It never waits."""
        raise NotImplementedError

    def calls_now(self) -> dict[str, str]:
        """Return what each thread does: PID/TID -> text. {} for a server whose trace says it."""
        return {}

    def alive(self) -> bool:
        """Return whether the first process runs."""
        return self.process.poll() is None

    def log_text(self) -> str:
        """Return the log so far; "" if it cannot be read now: the system may have no free descriptor."""
        try:
            return self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def stop(self) -> None:
        """End the server with all its processes, and remove its log. A second call does nothing.

        The process group has ended then, and its number may be that of another program. A first process may also
        have ended long before: alive() has read its status, and the kernel gives its number again.
        """
        if self.is_stopped:
            return
        self.is_stopped = True
        if was_alive := self.alive():
            self.signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        # Children may have ignored SIGTERM, or outlive their parent: while they are in the group, no other process
        # gets its number
        if was_alive or not is_alive(self.pid):
            self.signal(signal.SIGKILL)
        # A server that runs as another account (sudo) cannot be killed.
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        self.guard.remove(self.pid)  # the guard need not kill this group any more if ewe-watch dies
        self.log.unlink(missing_ok=True)

    def signal(self, number: int) -> None:
        """Send a signal to the whole process group, if there still is one."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


class ModelProcess(ServerProcess):
    """A model of ewe that runs, and its trace."""

    def __init__(self, choice: ModelChoice, directory: Path, number: int, guard: ModelGuard) -> None:
        """Start the server and wait until it listens. number: makes the names of its files. Raises StartFailure."""
        self.choice = choice
        self.guard = guard
        self.pipe = directory / f"trace-{number}"
        self.log = directory / f"log-{number}"
        self.rest = b""  # the beginning of a line whose end has not come yet
        self.reader = self.keeper = -1  # the descriptors of the pipe; the keeper holds it open for writing
        try:
            self.open_pipe()
            self.process = self.start(directory)
        except OSError as reason:  # the system has no descriptors or processes left
            self.close_pipe()
            self.log.unlink(missing_ok=True)
            raise StartFailure(f"{choice.label} does not start: {reason.strerror}") from None
        self.pid = self.process.pid
        guard.add(self.pid)
        try:
            self.port, self.description = self.wait_for_banner()
        except BaseException:
            self.stop()
            raise

    def open_pipe(self) -> None:
        """Make the pipe for the trace, and open it for reading and writing. Raises OSError."""
        self.pipe.unlink(missing_ok=True)
        os.mkfifo(self.pipe, 0o600)
        self.reader = os.open(self.pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.keeper = os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with suppress(OSError):  # a small limit of the system's: lost events are counted
                fcntl.fcntl(self.reader, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def close_pipe(self) -> None:
        """Close and remove the pipe. It may be called twice."""
        for descriptor in (self.reader, self.keeper):
            with suppress(OSError):
                os.close(descriptor)
        self.reader = self.keeper = -1
        self.pipe.unlink(missing_ok=True)

    def start(self, directory: Path) -> subprocess.Popen[bytes]:
        """Start the command with the settings of the choice; return its process. {site} in a value: `directory`."""
        patient = {key: value for key, value in PATIENT.items() if key not in self.choice.values}
        words = self.choice._replace(values=self.choice.values | patient).words()
        words = [word.replace("{site}", str(directory)) for word in words]
        command = [
            sys.executable, "-m", "ewe", *words, "--port", "0", "--trace", str(self.pipe),
            "--documentroot", str(directory / "htdocs"), "--cgi-path", str(directory / "cgi-bin"),
            "--mount", "/=ewe_watch.live.demonstration:Gates", "--access-log", "off",
        ]  # fmt: skip
        # A model of a student's is imported from the directory in which ewe-watch was called.
        paths = [str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
        # Without the user's EWE_ settings: the page shows only the options that the choice names
        environment = {key: value for key, value in os.environ.items() if not key.startswith("EWE_")}
        with self.log.open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=directory,
                env=environment | {"PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,
            )

    def wait_for_banner(self) -> tuple[int, str]:
        """Wait for ewe's first line; return its port and the model's description. Raises StartFailure."""
        deadline = time.monotonic() + START_S
        while True:
            text = self.log_text()
            if found := BANNER.search(text):
                return int(found[1]), found[2]
            ended = self.process.poll() is not None
            if ended or time.monotonic() > deadline:
                lines = text.strip().splitlines()
                reason = lines[-1].removeprefix("ewe: ") if lines else "the server did not say why"
                raise StartFailure(
                    f"{self.choice.label} {'does not start' if ended else 'is not ready'}: {reason}"
                )
            time.sleep(0.02)

    def read(self) -> tuple[bytes, list[TraceEvent]]:
        """Return the complete lines that have come, and their events. It never waits."""
        pieces = [self.rest]
        size = 0
        while size < PIPE_BYTES and self.reader >= 0:
            try:
                data = os.read(self.reader, READ_BYTES)
            except BlockingIOError:
                break
            if not data:  # no writer is left
                break
            pieces.append(data)
            size += len(data)
        whole, newline, self.rest = b"".join(pieces).rpartition(b"\n")
        events = []
        for line in whole.decode("utf-8", "replace").splitlines():
            with suppress(ValueError):  # the beginning of a line before an event `lost` (events.py)
                events.append(parse(line))
        return whole + newline, events

    def stop(self) -> None:
        """End the server with all its processes, and remove its files and the pipe. It may be called twice."""
        super().stop()
        self.close_pipe()
