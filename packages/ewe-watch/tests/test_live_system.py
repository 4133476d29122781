"""ewe-watch on a system that lacks something: IPv6, /proc, a process, or the right to kill a server."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ewe.config.command import UsageError
from ewe.server.worker import Worker
from ewe_watch.live import foreign, meters, model_process
from ewe_watch.live.choice import parse_choice
from ewe_watch.live.command import shows_browser
from ewe_watch.live.demonstration import MOST_MS, whole_number
from ewe_watch.live.foreign import ForeignProcess
from ewe_watch.live.model_process import ModelProcess, ServerProcess, StartFailure
from ewe_watch.live.serve import PageWorker

LISTENING = "  0: 0100007F:1F90 00000000:0000 0A 00000000:00000003 00:00000000 00000000     0        0 4711\n"


def test_a_kernel_without_ipv6_has_no_table_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tcp").write_text(f"  sl  local_address\n{LISTENING}")
    monkeypatch.setattr(meters, "TCP", (tmp_path / "tcp", tmp_path / "tcp6"))
    assert meters.backlogs([8080]) == {8080: 3}


def test_the_backlog_is_read_without_the_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has the listening sockets first. After many short connections, the others are many thousands."""
    ended = LISTENING.replace(" 0A ", " 06 ")
    (tmp_path / "tcp").write_text(f"  sl  local_address\n{LISTENING}{ended}{LISTENING}")
    (tmp_path / "tcp6").write_text(f"  sl  local_address\n{LISTENING}")
    monkeypatch.setattr(meters, "TCP", (tmp_path / "tcp", tmp_path / "tcp6"))
    assert meters.backlogs([8080]) == {8080: 6}


def test_a_connection_that_only_the_server_has_to_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one that waits in the backlog: it has no inode. Not that of another port."""
    line = LISTENING.replace(" 0A ", " {} ").replace("4711", "{}").replace("1F90", "{}")
    states = [
        ("08", 11, "1F90"),
        ("08", 0, "1F90"),
        ("01", 12, "1F90"),
        ("08", 13, "1F91"),
        ("08", 14, "1F90"),
    ]
    lines = [line.format(port, state, inode) for state, inode, port in states]
    (tmp_path / "tcp").write_text("".join(["  sl  local_address\n", *lines]))
    monkeypatch.setattr(meters, "TCP", (tmp_path / "tcp", tmp_path / "tcp6"))
    assert meters.left_connections([8080, 8082]) == {8080: 2, 8082: 0}


def test_a_system_without_proc_shows_no_backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "TCP", (tmp_path / "tcp", tmp_path / "tcp6"))
    assert meters.backlogs([8080]) is None and meters.left_connections([8080]) is None


def test_a_model_for_which_there_is_no_process_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*words: Any, **how: Any) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    guard: Any = None
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(StartFailure, match="thread does not start: Resource temporarily unavailable"):
        ModelProcess(parse_choice("-t"), tmp_path, 1, guard)
    assert set(os.listdir("/proc/self/fd")) == before and not list(tmp_path.iterdir())


def test_a_server_from_outside_for_which_there_is_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(foreign, "free_port", refuse)
    guard: Any = None
    with pytest.raises(StartFailure, match="server does not start: Too many open files"):
        ForeignProcess(foreign.foreign_choice("./server {port}"), tmp_path, 1, guard)


def test_a_log_that_cannot_be_read_is_no_other_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The director knows a StartFailure: it then shows the model as it was before."""
    monkeypatch.setattr(model_process, "START_S", 0.05)
    server: Any = object.__new__(ModelProcess)
    server.choice, server.log = parse_choice("-t"), tmp_path / "log"
    server.process = SimpleNamespace(poll=lambda: None)
    with pytest.raises(StartFailure, match="thread is not ready: the server did not say why"):
        server.wait_for_banner()


def test_a_signal_within_the_handler_of_another_one_waits_for_no_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As TERM and HUP at the end of a session: Event.set() has a lock, which the thread would take twice."""
    worker: Any = object.__new__(PageWorker)
    sets: list[int] = []

    def set_event() -> None:
        sets.append(len(sets))
        if len(sets) == 1:
            worker.on_stop(signal.SIGHUP, None)

    monkeypatch.setattr(Worker, "on_stop", lambda self, number, frame: None)
    worker.director = SimpleNamespace(stopping=SimpleNamespace(set=set_event), end_readers=lambda: None)
    worker.on_stop(signal.SIGTERM, None)
    assert sets == [0]


@pytest.mark.starts_processes
def test_a_server_is_stopped_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later, the number of its process group may be that of another program."""
    guard: Any = SimpleNamespace(remove=lambda group: None)
    server = ServerProcess()
    server.process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    server.pid, server.guard, server.log = server.process.pid, guard, tmp_path / "log"
    server.stop()
    signals: list[int] = []
    monkeypatch.setattr(ServerProcess, "signal", lambda self, number: signals.append(number))
    server.stop()
    assert signals == [] and not server.alive()


@pytest.mark.parametrize(
    ("pid", "number"),
    [(os.getpid(), []), (2**22 + 1, [signal.SIGKILL])],
    ids=["of-another", "of-none"],
)
def test_a_server_that_has_ended_may_have_the_number_of_another_program(
    pid: int, number: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process has the second number (proc(5): pid_max). A group of this number has children of the server."""
    signals: list[int] = []
    monkeypatch.setattr(ServerProcess, "signal", lambda self, number: signals.append(number))
    server: Any = ServerProcess()
    server.process = SimpleNamespace(poll=lambda: 0, wait=lambda seconds: 0)
    server.pid, server.log = pid, tmp_path / "log"
    server.guard = SimpleNamespace(remove=lambda group: None)
    server.stop()
    assert signals == number


@pytest.mark.starts_processes
def test_a_server_that_cannot_be_killed_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that sudo has started: it belongs to another account."""
    guard: Any = SimpleNamespace(remove=lambda group: None)
    monkeypatch.setattr(model_process, "STOP_S", 0.05)
    monkeypatch.setattr(ServerProcess, "signal", lambda self, number: None)
    server = ServerProcess()
    server.process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    server.pid, server.guard, server.log = server.process.pid, guard, tmp_path / "log"
    server.stop()
    assert server.alive()
    server.process.kill()
    server.process.wait()


@pytest.mark.parametrize(
    ("wanted", "variables", "terminal", "shown"),
    [
        (None, {"DISPLAY": ":0"}, True, True),
        (None, {"WAYLAND_DISPLAY": "wayland-0"}, True, True),
        (None, {}, True, False),
        (None, {"DISPLAY": ":0"}, False, False),
        (None, {"DISPLAY": ":0", "SSH_CONNECTION": "192.0.2.1 1 192.0.2.2 22"}, True, False),
        (False, {"DISPLAY": ":0"}, True, False),
        (True, {}, False, True),
    ],
)
def test_a_browser_is_shown_at_a_terminal_of_a_graphical_session(
    monkeypatch: pytest.MonkeyPatch,
    wanted: bool | None,
    variables: dict[str, str],
    terminal: bool,
    shown: bool,
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: terminal))
    assert shows_browser(wanted) is shown
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert shows_browser(wanted) is bool(wanted)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("40", 40),
        ("", 0),
        ("-1", 0),
        ("x", 0),
        ("999999999", MOST_MS),
        pytest.param("9" * 5000, MOST_MS, id="long"),
    ],
)
def test_a_number_of_a_query_may_have_any_length(text: str, number: int) -> None:
    """int() of 5,000 digits raises ValueError, so the page would have status 500."""
    assert whole_number(text) == number


def test_without_a_free_descriptor_a_server_from_outside_shows_no_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An OSError would end the thread that publishes all changes."""

    def no_descriptor(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    server: Any = object.__new__(ForeignProcess)
    server.port, server.names, server.held, server.pending = (
        80,
        {7: "1.1"},
        {"1/1": foreign.HeldConnection("1.1", False)},
        [],
    )
    monkeypatch.setattr(foreign, "tcp_sockets", no_descriptor)
    assert server.read() == (b"", [])
    assert server.names == {7: "1.1"} and server.held
    monkeypatch.setattr(meters.psutil, "Process", no_descriptor)
    assert meters.descendants(1) == []


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('./server {port} {"x"}', "{x} is unknown"),
        ("./server {p}", "{p} is unknown"),
        ("./server", "{port} is missing"),
    ],
)
def test_the_holes_of_a_command_are_those_of_its_words(line: str, text: str) -> None:
    """The quotes of a shell are removed first: {"x"} is {x} in the word that the server gets."""
    with pytest.raises(UsageError) as raised:
        foreign.foreign_choice(line)
    assert text in str(raised.value)


def test_a_setting_with_a_value_cannot_be_negated() -> None:
    with pytest.raises(UsageError, match="--no-parking is not an option: parking has a value"):
        parse_choice("-p --no-parking always")


@pytest.mark.parametrize(
    ("model", "limit"),
    [
        ("-n", 1), ("-p --poolthreads 5", 5), ("-p --parking never", 5), ("-p --poolthreads 5..20", 20),
        ("-p --poolthreads 4 --workers 2", 8), ("-t --connections 8", 8), ("-t", 1000), ("-f", 256), ("-a", 1),
        ("--model prefork --workers 3", 3), ("--model ewe_watch.live.faulty:ForkWithoutWait", 256),
    ],
)  # fmt: skip
def test_how_many_workers_a_model_can_occupy(model: str, limit: int) -> None:
    assert parse_choice(model).worker_limit == limit
