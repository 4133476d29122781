"""The server under test, from outside: its end, its output, its name; files that the grader reads from it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from classroom_server import make_nested
from support.server import wait_until

from ewe.config.messages import ConfigError
from ewe_classroom.grader import cli as grade_cli
from ewe_classroom.grader import (
    engine_scene,
    processes,
    queue_races,
    race_bursts,
    run_scene,
    site_programs,
    subject,
)
from ewe_classroom.grader import scene as scene_module
from ewe_classroom.grader.apart import IMPORT_DIRECTORIES
from ewe_classroom.grader.engine_scene import EngineSubject
from ewe_classroom.grader.library_queues import library_queue, with_imports
from ewe_classroom.grader.located import locate_submission
from ewe_classroom.grader.responses import ResponseSplitter
from ewe_classroom.grader.sandbox import SandboxLimits, SubjectAccount
from ewe_classroom.grader.scene import FailedExpectation, Scene, SceneClient
from ewe_classroom.grader.subject import LOG_END_BYTES, BadSubject, Subject
from ewe_classroom.grader.submission import Submission

# The server has many processes, and the grader two rounds to kill them: in the first one the server dies, in the
# second one its children, which the grader then has adopted.
CLOSES = """
import sys, time
from pathlib import Path
from ewe_classroom.grader import processes, sandbox, subject

sandbox.MAX_KILL_ROUNDS = 2
sandbox.adopt_orphans()
directory = Path(sys.argv[1])
forks = "import os, time\\nfor _ in range(60):\\n    if not os.fork(): break\\ntime.sleep(60)"
server = subject.Subject(
    subject.StartCommand((sys.executable, "-c", forks), directory, ""), subject.ServedFiles(directory), 1,
    sandbox.SandboxLimits(), 1, directory / "output",
)
while len(server.family()) < 61:
    time.sleep(0.01)
server.close()
print(processes.children_of_grader())
"""


@pytest.mark.starts_processes
def test_a_server_that_is_closed_has_no_process_left(tmp_path: Path) -> None:
    """A process needs a moment to die, and would occupy the port of the next server."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(IMPORT_DIRECTORIES)}
    done = subprocess.run(
        [sys.executable, "-c", CLOSES, str(tmp_path)],
        capture_output=True, text=True, check=True, env=variables,
    )  # fmt: skip
    assert done.stdout == "[]\n"


def test_the_last_lines_of_a_long_output_are_its_end() -> None:
    with tempfile.TemporaryFile() as errors:
        errors.write(b"a line\n" * 2 * LOG_END_BYTES + b"the last one\n")
        errors.flush()
        position = errors.seek(3)
        engine = object.__new__(EngineSubject)
        engine.engine = cast(Any, SimpleNamespace(errors=errors))
        assert engine.log(2) == "a line\nthe last one"
        assert errors.tell() == position


def test_an_output_that_the_server_has_removed_or_replaced_is_empty(tmp_path: Path) -> None:
    server = object.__new__(Subject)
    server.output = tmp_path / "output"
    assert server.log() == ""
    server.output.mkdir()
    assert server.log() == ""
    server.output.rmdir()
    os.mkfifo(server.output)
    assert server.log() == ""


def test_a_server_that_removes_the_reports_of_the_race_detector_or_its_trace_fails(tmp_path: Path) -> None:
    bursts = object.__new__(race_bursts.Bursts)
    bursts.scene = object.__new__(Scene)
    bursts.scene.subject = cast(
        Subject, SimpleNamespace(output=tmp_path / "output", trace=tmp_path / "trace")
    )
    with pytest.raises(FailedExpectation, match="removed or replaced the file of its output"):
        bursts.output()
    os.mkfifo(bursts.scene.subject.trace)
    with pytest.raises(FailedExpectation, match="removed or replaced the file of its trace"):
        bursts.traced_positions()


@pytest.mark.parametrize("building", [False, True])
def test_a_submission_for_which_this_machine_has_no_process_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, building: bool
) -> None:
    """The grader has a fault then, and the submission is graded again. Wrong usage would end the whole class."""
    site = subject.ServedFiles(tmp_path)

    def start(number: int) -> None:
        def fails(*_: object, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(subprocess, "Popen", fails)
        command = subject.StartCommand(("server",), tmp_path, "server")
        if building:
            submission.build("make")
        else:
            Subject(command, site, 1, SandboxLimits(), 0, tmp_path / "output")

    submission = Submission(tmp_path, SandboxLimits(), str(tmp_path))
    try:
        for number in subject.FAULTS_OF_MACHINE:
            with pytest.raises(OSError, match=os.strerror(number)):
                start(number)
        with pytest.raises(ConfigError if building else subject.NotStarted, match="Exec format error"):
            start(errno.ENOEXEC)
    finally:
        submission.close()


def test_a_full_gate_is_no_fault_of_the_grader(tmp_path: Path) -> None:
    """Every account may write into the FIFO of a gate."""
    root = tmp_path / "site"
    root.mkdir()
    site_programs.write(root)
    gate = os.open(site_programs.gate_of(root, "gate-1"), os.O_RDWR | os.O_NONBLOCK)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(gate, b"x" * 4096)
    assert site_programs.open_gate(root, "gate-1")
    os.close(gate)
    assert not site_programs.open_gate(root, "gate-1")


LONG_NAME = "a" * 300


@pytest.mark.parametrize("from_path", [subject.from_path, engine_scene.from_path, run_scene.from_path])
def test_a_name_that_is_too_long_is_wrong_usage(from_path: Callable[[str], object]) -> None:
    for name in (LONG_NAME, f"{LONG_NAME}/server.py"):
        assert locate_submission(name, "server") == name
    with pytest.raises(BadSubject, match="not a file"):
        from_path(LONG_NAME)


def test_a_link_to_a_name_that_is_too_long_is_no_file(tmp_path: Path) -> None:
    """A student may leave such a link. An exception would leave the submission without a report."""
    (tmp_path / "server.py").symlink_to(LONG_NAME)
    with pytest.raises(BadSubject, match=r"a directory without server.py"):
        locate_submission(str(tmp_path), "server")
    assert library_queue("python", [tmp_path / "server.py"]) == ""
    assert with_imports(tmp_path / "server.py") == [tmp_path / "server.py"]


def test_an_argument_that_is_too_long_for_a_name_names_no_file(tmp_path: Path) -> None:
    command = subject.StartCommand(("/bin/true", "{port}", LONG_NAME, ""), tmp_path, "")
    grade_cli.check_readable(command, SubjectAccount("nobody", 65534, 65534))


def test_the_copy_for_the_explorer_replaces_directories_of_any_depth(tmp_path: Path) -> None:
    """A program with the grader's account may have left them there."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "server.py").touch()
    (tmp_path / "queue").mkdir()
    make_nested(tmp_path / "queue", 1500)
    scene = SimpleNamespace(subject=SimpleNamespace(output=tmp_path / "output"))
    directory = queue_races.copy_of_submission(cast(Scene, scene), source)
    assert os.listdir(directory) == ["server.py"]


def test_a_body_in_small_pieces_does_not_fill_the_record() -> None:
    """Of each response, the record has the beginning."""
    pieces = [b"HTTP/1.1 200 OK\r\n", b"Content-Length: 15\r\n\r\n", b"HTTP/", b"HTTP/", b"HTTP/"]
    waiting = iter([*pieces, *pieces[:1], b"HTTP/", b"HTTP/"])
    notes: list[dict[str, Any]] = []
    client = object.__new__(SceneClient)
    client.name, client.received_bytes, client.reader = "A", 0, ResponseSplitter()
    client.scene = cast(
        Scene, SimpleNamespace(note=lambda **note: notes.append(note), flood_text=lambda more_bytes: "")
    )
    client.sock = cast(Any, SimpleNamespace(recv=lambda size: next(waiting)))
    for _ in range(8):
        client.receive()
    assert [note["bytes"] for note in notes if note["do"] == "got"] == ["HTTP/1.1 200 OK\r\n"] * 2
    assert len(client.answers) == 1


def test_many_connections_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them may have 32 MB, and a check has up to 400 of them."""
    monkeypatch.setattr(scene_module, "MAX_SCENE_BYTES", 1 << 20)
    body = b"x" * (700 << 10)

    def flood() -> None:
        for _ in range(3):
            connection, _ = listener.accept()
            connections.append(connection)
            with contextlib.suppress(ConnectionError):  # the clients end before they have read all
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + body)

    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        floods = threading.Thread(target=flood)
        floods.start()
        port = listener.getsockname()[1]
        scene = Scene(cast(Subject, SimpleNamespace(site=None, workers=0, port=port)))
        clients = [scene.client() for _ in range(3)]
        while scene.received_bytes < 3 * len(body):
            scene.pump(0.1)
            if any(client.reader.too_much for client in clients):
                break
        for each in clients:
            each.sock.close()
        floods.join()
        for connection in connections:
            connection.close()
    faults = [client.reader.fault for client in clients if client.reader.too_much]
    assert set(faults) == {"more than 1 MB on all connections together"}


# The system call exit() ends one thread alone, as pthread_exit() does. Its number is the argument.
WITHOUT_FIRST_THREAD = """
import ctypes, sys, threading, time

data = bytearray(b"x") * (32 << 20)
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).syscall(int(sys.argv[1]), 0)
"""
EXIT_NUMBERS = {"x86_64": 60, "aarch64": 93}


@pytest.mark.starts_processes
@pytest.mark.skipif(os.uname().machine not in EXIT_NUMBERS, reason="the number of exit() is unknown")
def test_a_process_whose_first_thread_has_ended_runs() -> None:
    """Its directory in /proc is that of a zombie: without memory and descriptors, and with no limit for them."""
    words = [sys.executable, "-c", WITHOUT_FIRST_THREAD, str(EXIT_NUMBERS[os.uname().machine])]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL) as process:
        pid = process.pid
        try:
            wait_until(lambda: processes.first_state(pid) == "Z", 10)
            assert processes.runs(pid) and processes.state(pid) == "S" and process.poll() is None
            assert processes.memory_with_shared_bytes(pid) > 32 << 20
            assert processes.memory_share_with_shared_bytes(pid) > 32 << 20
            assert processes.descriptors(pid)[0] == "/dev/null"
        finally:
            process.kill()
    assert not processes.runs(pid)


def test_a_process_that_has_ended_has_read_no_byte() -> None:
    assert processes.bytes_read(os.getpid()) > 0 and processes.bytes_read(0) == 0
