"""Stopping: bounded, graceful, and nothing outlives the server. Under every model.

The fixture checks after each test that no process (zombies included) of the server's session is left.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.proc import children, is_gone, look, wake_ups
from support.server import Server, Start, wait_until, write_program
from support.wire import read_response

from ewe.config.settings import Config
from ewe.processors.fork import Fork
from ewe.server.noted_signals import NotedSignals
from ewe.server.worker import ABORT_TIMEOUT_S, Worker

GET = b"GET / HTTP/1.1\r\nHost: ewe\r\n\r\n"
IN_PROGRESS = "1 request is in progress, and may end within "
# It ends once there is a file "finish", and at the latest after a minute.
SLEEPER = """#!/bin/sh
echo $$ > "$DOCUMENT_ROOT/started"
sleep 60 &
echo $! > "$DOCUMENT_ROOT/grandchild"
until [ -e "$DOCUMENT_ROOT/finish" ]; do sleep 0.05; done
kill $!
echo "Content-Type: text/plain"
echo
echo slept
"""


def begin_sleep(server: Server) -> socket.socket:
    """Ask for a program that sleeps, and return once it runs."""
    write_program(server.cgi / "sleep", SLEEPER)
    sock = server.connect(20)
    sock.sendall(b"GET /cgi-bin/sleep HTTP/1.1\r\nHost: ewe\r\n\r\n")
    pid_file = server.root / "grandchild"
    wait_until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"), 30, server.log)
    return sock


def test_an_alarm_that_is_not_the_servers_ends_nothing(start: Start, model: str) -> None:
    """A library may have set it. Before a stop the server has none."""
    server = start(model)
    with begin_sleep(server) as sock:
        wait_until(lambda: (server.root / "started").exists(), 20)
        for pid in children(server.pid) if model == "prefork" else [server.pid]:
            os.kill(pid, signal.SIGALRM)
        (server.root / "finish").touch()
        assert b"slept" in read_response(sock)[2]
    assert server.stop() == 0, server.log()


def has_ended(pid_file: Path) -> bool:
    """Has the process whose number is in the file ended?"""
    return not pid_file.exists() or is_gone(int(pid_file.read_text()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_connections_are_closed_at_once(start: Start, variant: str, number: int) -> None:
    server = start(variant, "--grace", "40s")
    with server.connect() as idle:
        idle.sendall(GET)
        assert read_response(idle)[0] == 200
        server.process.send_signal(number)
        assert idle.recv(1) == b""
        assert server.stop(number, 20) == 0, server.log()  # half the grace: nothing waited for it
    assert refuses_connections(server)


def refuses_connections(server: Server) -> bool:
    """Return whether no process listens any more."""
    try:
        server.connect().close()
    except OSError:
        return True
    return False


def test_a_request_in_progress_is_answered(start: Start, variant: str) -> None:
    server = start(variant)
    with begin_sleep(server) as busy:
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log(IN_PROGRESS)
        assert wake_ups(server.pid, 0.25) < 20, "the server polls while it drains"
        (server.root / "finish").touch()
        status, fields, body = read_response(busy)
        assert (status, body) == (200, b"slept\n")
        assert fields["connection"] == "close"
    assert server.stop() == 0, server.log()
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_says_what_it_waits_for(start: Start, variant: str, number: int) -> None:
    server = start(variant)
    started = server.cgi.parent / "started"
    write_program(server.cgi / "slow", f"#!/bin/sh\ntouch {started}\nexec sleep 60\n")
    with server.connect() as sock:
        sock.sendall(b"GET /cgi-bin/slow HTTP/1.1\r\nHost: ewe\r\n\r\n")
        wait_until(started.exists, 30)
        os.kill(server.pid, number)
        server.wait_for_log(IN_PROGRESS)
        server.stop(signal.SIGQUIT)


def test_after_the_grace_work_is_ended(start: Start, variant: str) -> None:
    server = start(variant, "--grace", "500ms")
    with begin_sleep(server) as busy:
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.stop(signal.SIGTERM) == 4, server.log()
        assert time.monotonic() - began > 0.4
        assert_broken(busy)
    assert_gone(server)
    assert " 0 requests did not end" not in server.log()
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGINT), (signal.SIGQUIT,)])
def test_at_once(start: Start, variant: str, numbers: tuple[int, ...]) -> None:
    server = start(variant, "--grace", "59s")
    with begin_sleep(server) as busy:
        for number in numbers:
            server.process.send_signal(number)
            if number == signal.SIGINT:
                server.wait_for_log(IN_PROGRESS)  # two signals at once would be one
        assert server.process.wait(20) == 4, server.log()  # a third of the grace
        assert_broken(busy)
    assert_gone(server)
    assert "Traceback" not in server.log()


def assert_gone(server: Server) -> None:
    """The program and what it started have ended."""
    wait_until(lambda: has_ended(server.root / "started"), 30, "the program lives on")
    wait_until(lambda: has_ended(server.root / "grandchild"), 30, "what the program started lives on")


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
        assert server.stop() == 4, server.log()
    assert "Traceback" not in server.log()


@pytest.mark.parametrize(
    "name",
    ["fork", "prefork --workers 1", "prefork --workers 2", "thread --workers 2", "asyncio --workers 2"],
)
def test_a_killed_worker_takes_its_programs_along(start: Start, name: str) -> None:
    server = start(name)
    with begin_sleep(server) as busy:
        shell = int((server.root / "started").read_text())
        worker = look(shell).parent
        assert worker != server.pid
        os.kill(worker, signal.SIGKILL)
        assert_broken(busy)
        assert_gone(server)
    # before anything else happens: with its last worker gone, the parent still has the programs to reap
    wait_until(lambda: "Z" not in children(server.pid).values(), 30, lambda: f"left: {children(server.pid)}")
    wait_until(lambda: not refuses_connections(server), 30)
    with server.connect() as sock:
        sock.sendall(GET)
        assert read_response(sock)[0] == 200
    assert server.stop() == 0, server.log()


def test_a_stop_right_after_the_start(start: Start, variant: str) -> None:
    server = start(variant)
    assert server.stop(signal.SIGTERM) == 0, server.log()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR2], ids=lambda each: each.name)
def test_signals_during_a_stop_do_not_change_the_status(start: Start, number: int) -> None:
    """They arrive until the last moment, also while the interpreter ends. The supervisor only notes them."""
    server = start("prefork")
    os.kill(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + 30
    while server.process.poll() is None and time.monotonic() < deadline:
        os.kill(server.pid, number)
        time.sleep(0.001)
    assert server.process.poll() == 0, server.log()


def test_a_terminal_interrupts_the_whole_group(start: Start, model: str) -> None:
    """Ctrl-C reaches the workers and children as well as the main process; it counts once."""
    server = start(model)
    with begin_sleep(server) as busy:
        os.killpg(server.pid, signal.SIGINT)
        server.wait_for_log(IN_PROGRESS)
        (server.root / "finish").touch()
        assert read_response(busy)[2] == b"slept\n"
    assert server.process.wait(30) == 0, server.log()


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
    wait_until(lambda: not children(server.pid), 30, lambda: f"left: {children(server.pid)}")


@pytest.mark.starts_processes
def test_a_stop_between_a_childs_end_and_its_removal() -> None:
    from ewe.processors.fork import Fork

    parent = Fork.__new__(Fork)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    parent.children = {child: "127.0.0.1"}
    parent.signal_children(signal.SIGTERM)
    assert child in parent.children  # reap(), which has read the status, removes it


def test_a_further_signal_gives_a_process_that_hangs_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = object.__new__(Worker)
    aborts: list[int] = []
    alarms: list[float] = []
    processor: Any = SimpleNamespace(abort=lambda: aborts.append(1))
    worker.processor = processor
    worker.stopping = worker.aborted = False
    worker.interrupts, worker.exit_from = 0, 0.0
    with monkeypatch.context() as patch:
        patch.setattr(signal, "setitimer", lambda timer, seconds: alarms.append(seconds))
        worker.on_quit(signal.SIGQUIT, None)
        exit_from = worker.exit_from
        worker.on_quit(signal.SIGQUIT, None)
        worker.on_stop(signal.SIGTERM, None)
    assert alarms == [ABORT_TIMEOUT_S] and worker.exit_from == exit_from > 0 and len(aborts) == 2


def idle_worker() -> Worker:
    """Return a worker that serves nothing."""
    worker = object.__new__(Worker)
    worker.stopping = worker.aborted = False
    worker.waiting = {}
    return worker


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1], ids=lambda each: each.name)
def test_a_signal_within_its_own_handler_waits(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each handler took longer than the time to the next signal. None is lost, and the stack stays short."""
    worker = idle_worker()
    calls: list[int] = []
    running: list[int] = []

    def handler(number: int, frame: object) -> None:
        assert not running, "within another handler"
        running.append(number)
        calls.append(number)
        if len(calls) < 5000:
            worker.on_signal(number, None)
        running.clear()

    for name in ("on_reload", "on_reopen"):
        monkeypatch.setattr(worker, name, handler)
    worker.on_signal(number, None)
    assert calls == [number] * 5000 and not worker.waiting


def test_a_reload_delays_no_stop_and_no_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload may hang. A status that is being written answers each USR2, and an abort each QUIT."""
    worker = idle_worker()
    seen: list[str] = []

    def reload(number: int, frame: object) -> None:
        seen.append("reload")
        worker.on_signal(signal.SIGUSR1, None)
        worker.on_signal(signal.SIGUSR2, None)
        worker.on_signal(signal.SIGQUIT, None)
        worker.on_signal(signal.SIGHUP, None)  # too late: the stop has begun
        seen.append("reloaded")

    def note(name: str, number: int) -> None:
        seen.append(name)
        worker.on_signal(number, None)

    monkeypatch.setattr(signal, "setitimer", lambda timer, seconds: None)
    monkeypatch.setattr(worker, "on_reload", reload)
    monkeypatch.setattr(worker, "on_reopen", lambda number, frame: seen.append("reopen"))
    monkeypatch.setattr(worker, "report_status", lambda: note("status", signal.SIGUSR2))
    processor: Any = SimpleNamespace(abort=lambda: note("abort", signal.SIGQUIT))
    worker.processor = processor
    worker.on_signal(signal.SIGHUP, None)
    assert seen == ["reload", "status", "abort", "reloaded", "reopen"]


def test_a_reload_during_a_stop_reads_nothing(start: Start, model: str) -> None:
    server = start(model)
    with begin_sleep(server) as sock:
        os.kill(server.pid, signal.SIGTERM)
        server.wait_for_log(IN_PROGRESS)
        os.kill(server.pid, signal.SIGHUP)
        os.kill(server.pid, signal.SIGUSR2)  # both may wait together: Python calls the handler of HUP first
        server.wait_for_log(" status: ")
        (server.root / "finish").touch()
        assert b"slept" in read_response(sock)[2]
    assert server.process.wait(30) == 0, server.log()
    assert "the configuration was read again" not in server.log()


@pytest.mark.parametrize("name", ["thread", "pool", "pool --parking never"])
def test_threads_can_be_stopped(start: Start, name: str) -> None:
    """EWE section 5.3: a thread ended only with its client. Here a client that stays on does not keep it."""
    server = start(name, "--grace", "40s")
    clients = [server.connect() for _ in range(4)]
    for sock in clients:
        sock.sendall(GET)
        assert read_response(sock)[0] == 200
    assert server.stop(seconds=20) == 0, server.log()  # half the grace
    for sock in clients:
        sock.close()


def test_a_request_that_came_while_the_server_had_no_processor_is_answered(
    start: Start, variant: str
) -> None:
    """The deadline of the idle connection has passed meanwhile. ewe reads the bytes that have arrived first."""
    server = start(variant, "--idle", "500ms")
    with server.connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: ewe\r\n\r\n")
        assert read_response(sock)[0] == 200
        with server.held_up():
            sock.sendall(b"GET / HTTP/1.1\r\nHost: ewe\r\nConnection: close\r\n\r\n")
            time.sleep(1.2)
        assert read_response(sock)[0] == 200


def test_a_stop_waits_for_no_reload_and_many_reloads_are_one() -> None:
    signals = NotedSignals()
    hup, usr1, ttin = signal.SIGHUP, signal.SIGUSR1, signal.SIGTTIN
    for number in (hup, usr1, ttin, hup, usr1, hup, ttin, signal.SIGTERM, signal.SIGINT, signal.SIGINT):
        signals.note(number, None)
    found = signals.take()
    assert found[:3] == [signal.SIGTERM, signal.SIGINT, signal.SIGINT]
    assert found[3:5] == [ttin, ttin] and sorted(found[5:]) == [hup, usr1]
    assert not signals and signals.take() == []


@pytest.mark.parametrize(
    ("finishing", "aborting", "number"),
    [(False, False, signal.SIGHUP), (True, False, signal.SIGTERM), (True, True, signal.SIGQUIT)],
)
def test_a_child_that_is_forked_at_a_stop_hears_of_it(
    monkeypatch: pytest.MonkeyPatch, finishing: bool, aborting: bool, number: int
) -> None:
    """The signal came between accept(2) and fork(2). A child must not outlive the server."""
    site: Any = SimpleNamespace(tls=None)
    processor = Fork(site, Config())
    processor.stopping, processor.finishing = True, finishing
    processor.asked_to_abort.raised = aborting
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fork", lambda: 4711)
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    accepted: Any = SimpleNamespace(client=("192.0.2.1", 1), socket=SimpleNamespace(close=lambda: None))
    processor.start(accepted)
    assert sent == [(4711, number)]
