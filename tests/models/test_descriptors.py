"""A forked process keeps none of its parent's descriptors, but for those that it uses."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.proc import children, open_files
from support.server import ROOT, Server, Start, free_port, wait_until, write_program
from support.wire import read_all, read_response

from ewe import logger
from ewe.config.settings import Config
from ewe.processors.fork import Fork
from ewe.server.processor_factory import RESERVED_DESCRIPTORS

STANDARD = (0, 1, 2)


def others(pid: int) -> dict[int, str]:
    """Return what a process has open beside its standard streams: descriptor -> "pipe:[123]", a path, ..."""
    return {number: name for number, name in open_files(pid).items() if number not in STANDARD}


def is_writable(pid: int, descriptor: int) -> bool:
    """Was this descriptor of a process opened for writing?"""
    with open(f"/proc/{pid}/fdinfo/{descriptor}", encoding="ascii") as file:
        flags = next(line for line in file if line.startswith("flags:"))
    return int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY


def speak(server: Server) -> socket.socket:
    """Return a connection that is idle after one request."""
    sock = server.connect()
    sock.sendall(b"GET / HTTP/1.1\r\nHost: s\r\n\r\n")
    assert sock.recv(65536).startswith(b"HTTP/1.1 200")
    return sock


def test_a_child_of_fork_holds_its_connection_alone(start: Start) -> None:
    server = start("fork", "--overload", "refuse", "--connections", "2")
    with speak(server), speak(server), server.connect() as refused:
        wait_until(lambda: len(children(server.pid)) == 2, 30)
        assert refused.recv(65536).startswith(b"HTTP/1.1 503")
        parent = set(others(server.pid).values())
        for child in children(server.pid):
            own = others(child)
            shared = {
                name for name in own.values() if name in parent and name.startswith(("pipe:", "socket:"))
            }
            assert not shared, (own, others(server.pid))
            assert not any("eventpoll" in name for name in own.values()), own
            assert sum(name.startswith("socket:") for name in own.values()) == 1, own


def test_the_log_of_a_refusal_counts_the_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the fork model each connection is open in a child, and none in the parent."""
    lines: list[str] = []
    monkeypatch.setattr(logger.errors, "warning", lines.append)
    site: Any = SimpleNamespace(tls=None)
    processor = Fork(site, Config())
    processor.children = {1: "192.0.2.1", 2: "192.0.2.2"}
    processor.report_refusal("192.0.2.3", "connections")
    assert lines == ["192.0.2.3: 503, 2 connections are open (connections)"]


def lifeline_of(worker: int, parent: dict[int, str]) -> list[int]:
    """Return the worker's two descriptors of the one pipe that it shares with its parent; [] if it shares more."""
    pipes = {number: name for number, name in others(worker).items() if name.startswith("pipe:")}
    shared = [number for number, name in pipes.items() if name in parent.values()]
    return shared if len(shared) == 2 and len({pipes[number] for number in shared}) == 1 else []


def test_a_worker_of_prefork_shares_its_lifeline_and_the_listening_socket(start: Start) -> None:
    server = start("prefork", "--workers", "2")
    with speak(server):
        wait_until(lambda: len(children(server.pid)) == 2, 30)
        parent = others(server.pid)
        for child in children(server.pid):
            # The lifeline: the supervisor's end, and one of the worker's own, whose signal tells of its end.
            # A worker that has just been forked still has all that its parent has.
            wait_until(lambda: lifeline_of(child, parent), 30, lambda: str((others(child), parent)))  # noqa: B023
            own, shared = others(child), lifeline_of(child, parent)
            assert not any(is_writable(child, number) for number in shared)
            sockets = [
                name for name in own.values() if name.startswith("socket:") and name in parent.values()
            ]
            assert len(sockets) == 1, (own, parent)


@pytest.mark.parametrize("model", ["thread", "pool", "asyncio", "asyncio --loop asyncio"])
def test_refused_connections_leave_descriptors_for_programs(start: Start, model: str) -> None:
    """The server holds all connections that it may, and others press in: a CGI program still starts."""
    most = 10
    server = start(model, "--connections", str(most), "--overload", "refuse", "--head-timeout", "60s")
    write_program(server.cgi / "hello", "#!/bin/sh\necho Content-Type: text/plain; echo; echo hello")
    with ExitStack() as stack:
        held = [stack.enter_context(speak(server)) for _ in range(most)]
        for _ in range(2):  # the second time the server has imported what it needs
            held[0].sendall(b"GET /cgi-bin/hello HTTP/1.1\r\nHost: s\r\n\r\n")
            assert read_response(held[0])[0] == 200
        for sock in held:
            sock.sendall(b"GET /cgi-bin/hello HTTP/1.1\r\n")  # not idle: no idle timeout ends it
        resource.prlimit(
            server.pid, resource.RLIMIT_NOFILE, (most + RESERVED_DESCRIPTORS, most + RESERVED_DESCRIPTORS)
        )
        refused = [stack.enter_context(server.connect()) for _ in range(RESERVED_DESCRIPTORS + 20)]
        assert all(sock.recv(65536).startswith(b"HTTP/1.1 503") for sock in refused)
        for sock in held:
            sock.sendall(b"Host: s\r\n\r\n")
            assert read_response(sock)[::2] == (200, b"hello\n")


@pytest.mark.starts_processes
@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0<&- 1>&- 2>&-"])
@pytest.mark.parametrize("model", ["thread", "asyncio"])
def test_a_parent_may_close_the_standard_streams(tmp_path: Path, model: str, closed: str) -> None:
    """The server starts, /dev/null has their numbers, and its logs are not written into another file."""
    port = free_port()
    (tmp_path / "page.txt").write_text("welcome")
    command = [sys.executable, "-m", "ewe", "--model", model, "--port", str(port), str(tmp_path)]
    process = subprocess.Popen(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    def answers() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 20) as sock:
            sock.sendall(b"GET /page.txt HTTP/1.0\r\n\r\n")
            return read_all(sock).endswith(b"welcome")
        assert process.poll() is None, "it has ended"
        return False

    try:
        wait_until(answers, 30)
        assert {open_files(process.pid)[number] for number in STANDARD} == {os.devnull}
    finally:
        process.terminate()
        assert process.wait(30) == 0
