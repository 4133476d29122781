"""One fixture starts the real command, under every model; tests speak to it over real sockets."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
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

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path, tmp: Path) -> None:
        self.process = process
        self.pid = process.pid
        self.port = port
        self.url = f"http://127.0.0.1:{port}/"
        self.log_file = log
        self.access_file = tmp / "access.log"
        self.root = tmp / "htdocs"
        self.cgi = tmp / "cgi-bin"

    def connect(self, timeout: float = 10) -> socket.socket:
        """Return a new connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def ask(self, request: bytes, timeout: float = 10) -> bytes:
        """Send raw bytes on a new connection, end our side, and return all that comes back."""
        with self.connect(timeout) as sock:
            sock.sendall(request)
            sock.shutdown(socket.SHUT_WR)
            return read_all(sock)

    def log(self) -> str:
        """Return what was written to standard error: banner and error log."""
        return self.log_file.read_text(errors="replace")

    def wait_for_log(self, text: str, seconds: float = 5) -> str:
        """Return the log once it has text; fail after so many seconds."""
        wait_until(lambda: text in self.log(), seconds, lambda: f"{text!r} is not in the log:\n{self.log()}")
        return self.log()

    def stop(self, number: int = signal.SIGTERM, seconds: float = 15) -> int:
        """Send a signal, and return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)


def read_all(sock: socket.socket) -> bytes:
    """Return everything until the server closes."""
    data = b""
    while piece := sock.recv(65536):
        data += piece
    return data


def read_response(sock: socket.socket, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """Read one response off a kept connection, byte-exact; return status, fields (lower case), body."""
    file = sock.makefile("rb", buffering=0)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = file.read(1)
        if not byte:
            raise ConnectionError(f"the connection ended within a head: {head!r}")
        head += byte
    lines = head.decode("latin-1").split("\r\n")
    status = int(lines[0].split(" ")[1])
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:-2])}
    body = b""
    if method == "HEAD" or status in (204, 304) or status < 200:
        return status, fields, body
    if fields.get("transfer-encoding") == "chunked":
        while True:
            line = b""
            while not line.endswith(b"\r\n"):
                line += read_exactly(file, 1)
            size = int(line, 16)
            body += read_exactly(file, size)
            assert read_exactly(file, 2) == b"\r\n"
            if size == 0:
                return status, fields, body
    if "content-length" in fields:
        return status, fields, read_exactly(file, int(fields["content-length"]))
    return status, fields, read_all(sock)


def read_exactly(file: Any, count: int) -> bytes:
    """Return count bytes."""
    data = b""
    while len(data) < count:
        piece = file.read(count - len(data))
        if not piece:
            raise ConnectionError(f"the connection ended after {len(data)} of {count} bytes")
        data += piece
    return data


def wait_until(condition: Callable[[], Any], seconds: float, what: Callable[[], str] | str = "") -> None:
    """Return once condition() is true; fail after so many seconds."""
    end = time.monotonic() + seconds
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


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts ewe: start("thread", "--grace", "1s") -> Server.

    The model may bring options of its own ("pool --parking never"). Serves tmp_path/htdocs and
    tmp_path/cgi-bin, which exist (a small index.html is there). Access log: tmp_path/access.log. When the
    test ends every server is stopped, and must have left no process behind.
    """
    servers: list[Server] = []
    (tmp_path / "htdocs").mkdir()
    (tmp_path / "cgi-bin").mkdir()
    (tmp_path / "htdocs" / "index.html").write_text("<!DOCTYPE html><title>ewe</title>welcome\n")

    def start_one(model: str = "pool", *options: str, env: dict[str, str] | None = None) -> Server:
        log = tmp_path / f"stderr.{len(servers)}"
        command = [
            sys.executable, "-m", "ewe", "--model", *model.split(),
            *(() if "--bind" in options else ("--port", "0")),
            "--documentroot", str(tmp_path / "htdocs"), "--cgi-path", str(tmp_path / "cgi-bin"),
            "--access-log", str(tmp_path / "access.log"), *options,
        ]  # fmt: skip
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
                start_new_session=True,
            )
        server = Server(process, 0, log, tmp_path)
        servers.append(server)
        banner = re.compile(r"https?://127\.0\.0\.1:(\d+)/")
        wait_until(
            lambda: banner.search(server.log()) or process.poll() is not None,
            10,
            lambda: f"no banner; it said:\n{server.log()}",
        )
        found = banner.search(server.log())
        assert found, f"it ended with {process.poll()}:\n{server.log()}"
        server.port = int(found[1])
        server.url = f"http://127.0.0.1:{server.port}/"
        return server

    yield start_one
    for server in servers:
        try:
            server.stop(signal.SIGQUIT, 10)
        finally:
            end = time.monotonic() + 2
            while (left := session_members(server.pid)) and time.monotonic() < end:
                time.sleep(0.01)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            server.process.poll()
        assert not left, f"processes outlived the server: {left}"


def session_members(session: int) -> list[int]:
    """Return the processes of a session: all that a server started and that is not gone.

    Zombies are left out: once the server is gone they are its heirs' (the system's first process) to reap.
    """
    members = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                text = Path(f"/proc/{entry}/stat").read_text(errors="replace")
            except OSError:
                continue
            fields = text.rpartition(")")[2].split()
            if int(fields[3]) == session and int(entry) != session and fields[0] != "Z":
                members.append(int(entry))
    return members


def children(pid: int) -> dict[int, str]:
    """Return the children of a process: pid -> state letter (Z: zombie)."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                text = Path(f"/proc/{entry}/stat").read_text(errors="replace")
            except OSError:
                continue
            fields = text.rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found[int(entry)] = fields[0]
    return found


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    """Each model in turn."""
    return str(request.param)


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    """Each model in turn, and the ways in which it can be set."""
    return str(request.param)


@pytest.fixture
def server(start: Start, variant: str) -> Server:
    """A server of each variant in turn, with default settings."""
    return start(variant)
