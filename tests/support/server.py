"""The real command as a process, and what a test does with one: ask it, wait for it, look at its processes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.fork_server import Forked
from support.wire import read_all

ROOT = Path(__file__).resolve().parents[2]
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

    def connect(self, timeout: float = 20) -> socket.socket:
        """Return a new connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def ask(self, request: bytes, timeout: float = 20) -> bytes:
        """Send raw bytes on a new connection, end our side, and return all that comes back."""
        with self.connect(timeout) as sock:
            sock.sendall(request)
            sock.shutdown(socket.SHUT_WR)
            return read_all(sock)

    def log(self) -> str:
        """Return what was written to standard error: banner and error log."""
        return self.log_file.read_text(errors="replace")

    def wait_for_log(self, text: str, seconds: float = 20) -> str:
        """Return the log once it has text; fail after so many seconds."""
        wait_until(lambda: text in self.log(), seconds, lambda: f"{text!r} is not in the log:\n{self.log()}")
        return self.log()

    def stop(self, number: int = signal.SIGTERM, seconds: float = 30) -> int:
        """Send a signal, and return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)


def wait_until(condition: Callable[[], Any], seconds: float, what: Callable[[], str] | str = "") -> None:
    """Return once condition() is true; fail after so many seconds of a machine that has nothing else to do.

    It waits longer: other tests run beside this one, and a test that waits for an event does not measure time.
    """
    end = time.monotonic() + BUSY * seconds
    while not condition():
        if time.monotonic() > end:
            pytest.fail((what() if callable(what) else what) or "timed out")
        time.sleep(0.01)


def write_program(path: Path, text: str) -> Path:
    """Write an executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return path


def needs(*programs: str) -> pytest.MarkDecorator:
    """Leave a test out where a program is not installed; .ci/run installs them all."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [program for program in programs if not shutil.which(program, path=path)]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


Start = Callable[..., Server]
