"""The real command as a process, and what a test does with one: ask it, wait for it, look at its processes."""

from __future__ import annotations

import errno
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from support.fork_server import EWE_CLI, OVER, XSWITCH_CLI, Forked, ForkServer, is_heavy, shared_fork_server
from support.proc import children, session_members
from support.wire import read_all

ROOT = Path(__file__).resolve().parents[2]
# What a client meets whose server has closed the connection with a reset: the last, at shutdown(2)
LOST = (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN)
# Every forked server of this run is one as on another system than Linux (support/other_system.py).
ELSEWHERE = bool(os.environ.get("EWE_TEST_ELSEWHERE"))
BUSY = 4  # times as long as on an idle machine that an event may take
MODELS = ("serial", "fork", "prefork", "thread", "pool", "asyncio")
# As MODELS, and what a model can be set to besides.
VARIANTS = (
    *MODELS,
    "pool --parking never",
    "pool --parking idle",
    "asyncio --loop asyncio",
    "thread --workers 2",
    "asyncio --workers 2",
)
# One variant for each way to wait: in the kernel, parked, and in each event loop. For what a conversation says and
# reads, where it makes no difference who runs it.
WAYS_TO_WAIT = ("thread", "pool", "asyncio", "asyncio --loop asyncio")


class Server:
    """A running ewe. url: with the slash. port: the real one. root, cgi: the directories it serves."""

    def __init__(self, process: subprocess.Popen[bytes] | Forked, port: int, log: Path, tmp: Path) -> None:
        self.process = process
        self.pid = process.pid
        self.port = port
        self.url = f"http://127.0.0.1:{port}/"
        self.log_file = log
        self.access_file = tmp / "access.log"
        self.root = tmp / "htdocs"
        self.cgi = tmp / "cgi-bin"

    def connect(self, timeout: float = 60) -> socket.socket:
        """Return a new connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def ask(self, request: bytes, timeout: float = 60) -> bytes:
        """Send raw bytes on a new connection, end our side, and return all that comes back."""
        with self.connect(timeout) as sock:
            sock.sendall(request)
            with suppress(OSError):  # ENOTCONN: an aborted response has ended in a reset already
                sock.shutdown(socket.SHUT_WR)
            return read_all(sock)

    def ask_in_pieces(self, pieces: list[bytes]) -> bytes:
        """Send these segments on a new connection, end our side, and return all that comes back."""
        with self.connect() as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                for piece in pieces:
                    sock.sendall(piece)
                sock.shutdown(socket.SHUT_WR)
            except OSError as reason:
                if reason.errno not in LOST:
                    raise
                # it has refused what came first, and has lingered for as long as it does
            return read_all(sock)

    def log(self) -> str:
        """Return the server's standard error: banner and error log."""
        return self.log_file.read_text(errors="replace")

    def wait_for_log(self, text: str, seconds: float = 20) -> str:
        """Return the log once it has text; fail after so many seconds."""
        wait_until(lambda: text in self.log(), seconds, lambda: f"{text!r} is not in the log:\n{self.log()}")
        return self.log()

    def processes(self) -> list[int]:
        """Return the server's processes: its first, and its workers or the children that hold conversations."""
        return [self.pid, *children(self.pid)]

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Stop the server's processes during the block: bytes that clients send meanwhile arrive all at once."""
        os.killpg(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.pid, signal.SIGCONT)

    def stop(self, number: int = signal.SIGTERM, seconds: float = 90) -> int:
        """Send a signal, and return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)


class Starter:
    """Starts servers that serve `directory`/htdocs and `directory`/cgi-bin, and stops them all at the end."""

    def __init__(self, directory: Path, fork_servers: Callable[..., ForkServer]) -> None:
        self.directory = directory
        self.fork_servers = fork_servers
        self.servers: list[Server] = []
        (directory / "htdocs").mkdir()
        (directory / "cgi-bin").mkdir()
        (directory / "htdocs" / "index.html").write_text("<!DOCTYPE html><title>ewe</title>welcome\n")

    def __call__(
        self,
        model: str = "pool",
        *options: str,
        env: dict[str, str] | None = None,
        constants: dict[str, float] | None = None,
        elsewhere: bool = ELSEWHERE,
        python: str = sys.executable,
    ) -> Server:
        """Start ewe and return once it listens.

        The model may bring options of its own ("pool --parking never"). The server is forked from one that has
        imported ewe (support/fork_server.py); with `env`, even an empty one, it is the command itself in a new
        process of `python`. constants: what the forked server has for constants of ewe,
        {"ewe.gateway.programs.EXIT_TIMEOUT_S": 0.3}: only for tests that wait for that time to pass, and in which
        nothing has to be done within it. elsewhere: the forked server has nothing that Linux alone has
        (support/other_system.py).
        """
        log = self.directory / f"stderr.{len(self.servers)}"
        arguments = [
            "--model", *model.split(),
            *(() if "--bind" in options else ("--port", "0")),
            "--documentroot", str(self.directory / "htdocs"), "--cgi-path", str(self.directory / "cgi-bin"),
            "--access-log", str(self.directory / "access.log"), *options,
        ]  # fmt: skip
        process: Forked | subprocess.Popen[bytes]
        with log.open("wb") as output:
            if env is None:
                process = self.fork_servers(is_heavy(model, options), elsewhere).start(
                    arguments, self.directory, log, constants or {}
                )
            else:
                assert not constants
                process = subprocess.Popen(
                    [python, "-m", "ewe", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=self.directory,
                    env={**os.environ, "PYTHONPATH": str(ROOT), **env},
                    start_new_session=True,
                )
        server = Server(process, 0, log, self.directory)
        self.servers.append(server)
        banner = re.compile(r"https?://127\.0\.0\.1:(\d+)/")
        wait_until(
            lambda: banner.search(server.log()) or process.poll() is not None,
            30,
            lambda: f"no banner; it said:\n{server.log()}",
        )
        found = banner.search(server.log())
        assert found, f"it ended with {process.poll()}:\n{server.log()}"
        server.port = int(found[1])
        server.url = f"http://127.0.0.1:{server.port}/"
        return server

    def stop(self) -> None:
        """Stop every server; fail if one leaves a process behind."""
        for server in self.servers:
            Path(f"{server.log_file}{OVER}").touch()
            try:
                server.stop(signal.SIGQUIT, 60)
            finally:
                end = time.monotonic() + 30
                while (left := session_members(server.pid)) and time.monotonic() < end:
                    time.sleep(0.01)
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                server.process.poll()
            assert not left, f"processes outlived the server: {left}"


def run_command(
    directory: Path,
    *arguments: str,
    module: str = "ewe",
    seconds: float = 90,
    python: str = sys.executable,
) -> subprocess.CompletedProcess[str]:
    """Run the command in a directory to its end: a start that fails, or a question."""
    if module in ("ewe", "ewe.xswitch.cli") and python == sys.executable:
        return run_forked(directory, arguments, seconds, EWE_CLI if module == "ewe" else XSWITCH_CLI)
    return subprocess.run(
        [python, "-m", module, *arguments],
        cwd=directory, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip


def run_forked(
    directory: Path,
    arguments: tuple[str, ...],
    seconds: float,
    command: str,
    constants: dict[str, float] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, forked from a process that has imported it.

    command: the module of its main(). constants: what this run has for constants, as for Starter.
    """
    with tempfile.TemporaryDirectory(prefix="ewe-command-") as place:
        output, errors = Path(place, "output"), Path(place, "errors")
        server = shared_fork_server(command)
        process = server.start([*arguments], directory, errors, constants or {}, output)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(seconds)
            raise
        return subprocess.CompletedProcess(arguments, status, output.read_text(), errors.read_text())


def accepts(path: Path) -> bool:
    """Return whether a server listens at a Unix socket: its file is there a moment earlier."""
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex(str(path)) == 0


def wait_until(condition: Callable[[], Any], seconds: float, what: Callable[[], str] | str = "") -> None:
    """Return once condition() is true; fail after so many seconds of a machine that has nothing else to do.

    It waits longer: other tests run beside this one, and a test that waits for an event does not measure time.
    """
    end = time.monotonic() + BUSY * seconds
    while not condition():
        if time.monotonic() > end:
            pytest.fail((what() if callable(what) else what) or "timed out")
        time.sleep(0.01)


def free_port() -> int:
    """Return a port of 127.0.0.1 for a server that cannot be told to take any port and say which.

    The kernel gives ports from 32768 on to clients, and to servers that ask for port 0. It would give such a port
    away before the server listens. Each process of pytest takes one port in 64.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = random.randrange(10_000 + worker % 64, 32_000, 64)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def write_program(path: Path, text: str) -> Path:
    """Write an executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return path


def write_waiting_program(path: Path, size: int) -> tuple[Path, Path]:
    """Write a script that makes a file `begun`, waits for a file `go`, and writes `size` bytes; return both."""
    begun, go = path.with_name("begun"), path.with_name("go")
    lines = (
        "#!/bin/sh",
        f": > {begun}",
        f"while [ ! -e {go} ]; do sleep 0.02; done",
        "printf 'Content-Type: text/plain\\n\\n'",
        f"head -c {size} /dev/zero",
        "",
    )
    write_program(path, "\n".join(lines))
    return begun, go


Start = Callable[..., Server]
