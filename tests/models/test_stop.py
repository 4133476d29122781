"""Stopping: bounded, graceful, and nothing outlives the server. Under every model.

The fixture checks after each test that no process (zombies included) of the server's session is left.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest
from conftest import Server, Start, children, read_response, wait_until, write_program

GET = b"GET / HTTP/1.1\r\nHost: ewe\r\n\r\n"
SLEEPER = """#!/bin/sh
echo $$ > "$DOCUMENT_ROOT/started"
sleep ${QUERY_STRING:-1} &
echo $! > "$DOCUMENT_ROOT/grandchild"
wait
echo "Content-Type: text/plain"
echo
echo slept
"""


def begin_sleep(server: Server, seconds: str) -> socket.socket:
    """Ask for a program that sleeps, and return once it runs."""
    write_program(server.cgi / "sleep", SLEEPER)
    sock = server.connect(20)
    sock.sendall(b"GET /cgi-bin/sleep?%b HTTP/1.1\r\nHost: ewe\r\n\r\n" % seconds.encode())
    wait_until(lambda: (server.root / "grandchild").exists(), 10, server.log)
    return sock


def is_gone(pid_file: Path) -> bool:
    """Has the process whose number is in the file ended?"""
    try:
        state = (
            Path(f"/proc/{int(pid_file.read_text())}/stat")
            .read_text(errors="replace")
            .rpartition(")")[2]
            .split()[0]
        )
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_connections_are_closed_at_once(start: Start, variant: str, number: int) -> None:
    server = start(variant)
    with server.connect() as idle:
        idle.sendall(GET)
        assert read_response(idle)[0] == 200
        began = time.monotonic()
        server.process.send_signal(number)
        assert idle.recv(1) == b""
        assert server.stop(number) == 0, server.log()
        assert time.monotonic() - began < 5  # the grace is 10 s: nothing waited for it
    assert refuses_connections(server)


def refuses_connections(server: Server) -> bool:
    """Is nobody listening any more?"""
    try:
        server.connect(1).close()
    except OSError:
        return True
    return False


def test_a_request_in_progress_is_answered(start: Start, variant: str) -> None:
    server = start(variant)
    with begin_sleep(server, "1") as busy:
        server.process.send_signal(signal.SIGTERM)
        status, fields, body = read_response(busy)
        assert (status, body) == (200, b"slept\n")
        assert fields["connection"] == "close"
    assert server.stop() == 0, server.log()
    assert "Traceback" not in server.log()


def test_after_the_grace_work_is_ended(start: Start, variant: str) -> None:
    server = start(variant, "--grace", "500ms")
    with begin_sleep(server, "60") as busy:
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.stop(signal.SIGTERM) == 4, server.log()
        assert 0.4 < time.monotonic() - began < 8
        assert_broken(busy)
    assert_gone(server)
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGINT), (signal.SIGQUIT,)])
def test_at_once(start: Start, variant: str, numbers: tuple[int, ...]) -> None:
    server = start(variant, "--grace", "30s")
    with begin_sleep(server, "60") as busy:
        began = time.monotonic()
        for number in numbers:
            server.process.send_signal(number)
            time.sleep(0.2)
        assert server.process.wait(15) == 4, server.log()
        assert time.monotonic() - began < 10
        assert_broken(busy)
    assert_gone(server)
    assert "Traceback" not in server.log()


def assert_gone(server: Server) -> None:
    """The program and what it started have ended."""
    wait_until(lambda: is_gone(server.root / "started"), 3, "the program lives on")
    wait_until(lambda: is_gone(server.root / "grandchild"), 3, "what the program started lives on")


def assert_broken(sock: socket.socket) -> None:
    """The connection ended without a whole response."""
    try:
        assert b"slept" not in sock.recv(65536)
    except ConnectionError:
        pass


def test_a_client_that_does_not_read_does_not_hold_the_stop(start: Start, variant: str) -> None:
    server = start(variant, "--grace", "500ms")
    with (server.root / "large").open("wb") as file:
        file.truncate(200 * 1024 * 1024)
    with server.connect() as sock:
        sock.sendall(b"GET /large HTTP/1.1\r\nHost: ewe\r\n\r\n")
        assert sock.recv(1000)
        time.sleep(0.2)
        assert server.stop() == 4, server.log()
    assert "Traceback" not in server.log()


@pytest.mark.parametrize(
    "name",
    ["fork", "prefork --workers 1", "prefork --workers 2", "thread --workers 2", "asyncio --workers 2"],
)
def test_a_killed_worker_takes_its_programs_along(start: Start, name: str) -> None:
    server = start(name)
    with begin_sleep(server, "60") as busy:
        shell = int((server.root / "started").read_text())
        worker = int(Path(f"/proc/{shell}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        assert worker != server.pid
        os.kill(worker, signal.SIGKILL)
        assert_broken(busy)
        assert_gone(server)
    # before anything else happens: with its last worker gone, the parent still has the programs to reap
    wait_until(lambda: "Z" not in children(server.pid).values(), 2, lambda: f"left: {children(server.pid)}")
    wait_until(lambda: not refuses_connections(server), 5)
    with server.connect() as sock:
        sock.sendall(GET)
        assert read_response(sock)[0] == 200
    assert server.stop() == 0, server.log()


def test_a_stop_right_after_the_start(start: Start, variant: str) -> None:
    server = start(variant)
    assert server.stop(signal.SIGTERM, 10) == 0, server.log()


def test_a_terminal_interrupts_the_whole_group(start: Start, model: str) -> None:
    """Ctrl-C reaches the workers and children as well as the main process; it counts once."""
    server = start(model)
    with begin_sleep(server, "1") as busy:
        os.killpg(server.pid, signal.SIGINT)
        assert read_response(busy)[2] == b"slept\n"
    assert server.process.wait(10) == 0, server.log()


def test_forked_children_are_reaped_when_they_end(start: Start) -> None:
    """EWE section 5.2: children stayed zombies until the next request. Here none does for longer than a moment."""
    server = start("fork")
    socks = [server.connect() for _ in range(20)]
    for sock in socks:
        sock.sendall(GET)
        assert read_response(sock)[0] == 200
    assert len(children(server.pid)) == 20
    for sock in socks:
        sock.close()
    wait_until(lambda: not children(server.pid), 5, lambda: f"left: {children(server.pid)}")


@pytest.mark.parametrize("name", ["thread", "pool", "pool --parking never"])
def test_threads_can_be_stopped(start: Start, name: str) -> None:
    """EWE section 5.3: a thread ended only with its client. Here a client that stays on does not keep it."""
    server = start(name)
    clients = [server.connect() for _ in range(4)]
    for sock in clients:
        sock.sendall(GET)
        assert read_response(sock)[0] == 200
    began = time.monotonic()
    assert server.stop() == 0, server.log()
    assert time.monotonic() - began < 5
    for sock in clients:
        sock.close()
