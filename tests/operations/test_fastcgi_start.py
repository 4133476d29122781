"""--fastcgi-start: FastCGI programs that ewe starts, keeps running, and ends with itself."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from support import web
from support.proc import command_line, descendants, is_gone, open_files
from support.server import Server, Start, run_command, wait_until, write_program

from ewe.config.settings import Config
from ewe.features.fastcgi_programs import FastCGIProgram
from ewe.server.program_manager import ManagerProcess, ProgramManager, ProgramProcess, hint_about_package
from ewe.streams.listener import StartError

# Waits for a file before it answers, if the query names one; then NAME.held says that it waits.
PAGE = """\
<?php
if (isset($_GET['gate'])) { touch($_GET['gate'] . '.held'); }
while (isset($_GET['gate']) and !file_exists($_GET['gate'])) { usleep(5000); clearstatcache(); }
echo getmypid();
"""


def php(start: Start, model: str, *more: str, command: str = ".php=2:php-cgi", **how: object) -> Server:
    """Start ewe with php-cgi for its pages."""
    server = start(model, "--fastcgi-start", command, *more, **how)  # type: ignore[arg-type]
    (server.root / "pid.php").write_text(PAGE)
    return server


def running(server: Server, name: str = "php-cgi") -> set[int]:
    """Return the processes of a program below the server, those that have just been forked left out."""
    return {pid for pid in descendants(server.pid) if command_line(pid).startswith(name)}


@pytest.mark.needs("php-cgi")
def test_programs_are_started_and_replaced(start: Start, model: str, tmp_path: Path) -> None:
    """One that is killed; all of them at HUP, and no request is lost that is in progress then."""
    server = php(start, model)
    wait_until(lambda: len(running(server)) == 2, 30)
    first = running(server)
    with web.Client(base_url=server.url, headers={"Connection": "close"}) as client:
        assert int(client.get("/pid.php").text) in first
        killed = min(first)
        os.kill(killed, signal.SIGKILL)
        server.wait_for_log(f"php-cgi (pid {killed}) was ended by signal 9; starting another")
        wait_until(lambda: len(running(server) - {killed}) == 2, 30)
        assert client.get("/pid.php").status_code == 200
        before = running(server)
        held: list[str] = []
        waits = threading.Thread(
            target=lambda: held.append(web.get(f"{server.url}pid.php?gate={tmp_path}/gate", timeout=60).text)
        )
        waits.start()
        if model != "serial":  # it has one client at a time
            wait_until((tmp_path / "gate.held").exists, 20)
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("the configuration was read again")
        wait_until(lambda: len(running(server) - before) == 2, 30)
        (tmp_path / "gate").touch()
        waits.join(30)
        assert held and int(held[0]) in before | running(server)
        wait_until(lambda: not running(server) & before, 30)
        assert int(client.get("/pid.php").text) in running(server)
    assert "Traceback" not in server.log()


@pytest.mark.needs("php-cgi")
@pytest.mark.parametrize("model", ["thread", "prefork", "fork", "xswitch"])
def test_programs_end_with_a_server_that_is_killed(start: Start, model: str) -> None:
    server = php(start, model)
    assert web.get(server.url + "pid.php").status_code == 200
    wait_until(lambda: len(running(server)) == 2, 30)
    programs = running(server)
    (directory,) = {
        Path(line.split()[-1]).parent
        for line in Path("/proc/net/unix").read_text().splitlines()
        if "/ewe-programs-" in line and inode_of(min(programs)) in line
    }
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: all(is_gone(pid) for pid in programs), 30)
    wait_until(lambda: not directory.exists(), 20)


def inode_of(pid: int) -> str:
    """Return the inode of the socket that a process has as descriptor 0."""
    return os.readlink(f"/proc/{pid}/fd/0")[len("socket:[") : -1]


@pytest.mark.needs("php-cgi")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_programs_that_have_children(start: Start, number: int, tmp_path: Path) -> None:
    """As php-cgi with PHP_FCGI_CHILDREN: the children end, too, after the requests (the fixture checks this)."""
    server = php(start, "thread", "--grace", "30s", command=".php=php-cgi", env={"PHP_FCGI_CHILDREN": "3"})
    wait_until(lambda: len(running(server)) == 4, 30)
    answers: list[str] = []
    waits = threading.Thread(
        target=lambda: answers.append(web.get(f"{server.url}pid.php?gate={tmp_path}/gate", timeout=60).text)
    )
    waits.start()
    wait_until((tmp_path / "gate.held").exists, 20)
    os.killpg(server.pid, number)  # as a terminal, or a service manager, which send it to all processes
    server.wait_for_log("in progress, and may end within")
    (tmp_path / "gate").touch()
    assert server.process.wait(30) == 0
    waits.join(30)
    assert answers and answers[0].isdigit()


FAILS = """\
#!/bin/sh
echo x >>starts
if [ -e mended ]; then exec php-cgi; fi
echo this is why >&2
exit 3
"""


@pytest.mark.needs("php-cgi")
@pytest.mark.parametrize("model", ["thread", "prefork"])
def test_a_program_that_fails_is_started_later_and_later(start: Start, model: str, tmp_path: Path) -> None:
    """Requests are answered 503 meanwhile; and once it works, they are served."""
    fails = write_program(tmp_path / "fails", FAILS)
    server = php(start, model, command=f".php={fails}")
    for pause in ("0.25", "0.5", "1"):
        server.wait_for_log(f"ended with status 3; starting another in {pause} s (fastcgi-start)")
    server.wait_for_log("fails: this is why")
    assert len((tmp_path / "starts").read_text().split()) <= server.log().count("starting another") + 1
    refused = web.get(server.url + "pid.php")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    (tmp_path / "mended").touch()
    wait_until(lambda: web.get(server.url + "pid.php").status_code == 200, 60)
    assert "Traceback" not in server.log()


def test_a_module_that_is_missing_is_named(start: Start, tmp_path: Path) -> None:
    (tmp_path / "app.pl").write_text("use No::Such;\n")
    server = start("thread", "--fastcgi-start", f"/app=perl {tmp_path}/app.pl")
    server.wait_for_log("perl (pid ")
    server.wait_for_log(": the Perl module No::Such is missing; install it; starting another")
    wait_until(lambda: web.get(server.url + "app").status_code == 503, 20)


def test_what_a_program_lacks() -> None:
    perl = (
        b"Can't locate FCGI.pm in @INC (you may need to install the FCGI module) (@INC contains: /etc/perl)\n"
    )
    assert hint_about_package(perl) == ": the Perl module FCGI is missing; install it (Debian: libfcgi-perl)"
    assert hint_about_package(b"ModuleNotFoundError: No module named 'flup'\n") == (
        ": the Python module flup is missing; install it"
    )
    assert hint_about_package(b"exit") == ""


@pytest.mark.needs("php-cgi")
@pytest.mark.needs("root")
@pytest.mark.parametrize("model", ["thread", "prefork"])
def test_programs_run_as_the_user(start: Start, model: str) -> None:
    server = php(start, model, "--user", "nobody")
    wait_until(lambda: len(running(server)) == 2, 30)
    assert {os.stat(f"/proc/{pid}").st_uid for pid in running(server)} == {65534}
    assert web.get(server.url + "pid.php").status_code == 200


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    "setting", [".php", ".php=", ".php=0:php-cgi", "php=php-cgi", "/a='x", ".php=2:/no/such"]
)
def test_bad_settings_are_one_line(tmp_path: Path, setting: str) -> None:
    (tmp_path / "htdocs").mkdir()
    for check in ((), ("--check-config",)):
        done = run_command(tmp_path, "--fastcgi-start", setting, *check, "0")
        assert done.returncode in (1, 2) and "fastcgi-start" in done.stderr + done.stdout
        assert "Traceback" not in done.stderr


def test_the_manager_waits_while_an_old_process_ends_its_request() -> None:
    """Its successors die young, so their socket is hidden. The manager must not look at them without a pause."""
    program: Any = SimpleNamespace(count=1, hidden=True)
    manager = ManagerProcess([program], -1, 1.0)
    slot = manager.slots[0]
    slot.due_at = None
    old: Any = SimpleNamespace(program=program, started_at=time.monotonic() - 3600, deadline=0.0)
    manager.retiring.append(old)
    assert manager.seconds_to_next_action() is None
    slot.process = young = old.__class__(**{**vars(old), "started_at": time.monotonic()})
    assert young.program.hidden and manager.seconds_to_next_action()


@pytest.mark.parametrize("name", ["thread", "prefork"])
def test_messages_of_programs_are_in_the_new_log_after_a_rotation(
    start: Start, name: str, tmp_path: Path
) -> None:
    log = tmp_path / "errors.log"
    server = start(name, "--logfile", str(log), "--fastcgi-start", "/app=sleep 1000")
    wait_until(lambda: running(server, "sleep") != set(), 20)
    log.rename(tmp_path / "errors.1")
    server.process.send_signal(signal.SIGUSR1)
    wait_until(log.exists, 20)

    def is_told() -> bool:
        for pid in running(server, "sleep"):  # the manager may open the log a moment later than the server
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return "was ended by signal 9; starting another" in log.read_text()

    wait_until(is_told, 20)


def test_root_gives_the_directory_of_the_sockets_away_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its new owner could put a link to any file into the place of a socket, and root would give that file away."""
    given: list[str] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", lambda path, *_: given.append(os.path.basename(path)))
    ProgramManager(Config(fastcgi_start=["/app=sleep 1", ".php=sleep 1"]), "root").close()
    assert sorted(given[:-1]) == ["0", "1"] and given[-1] == "."


@pytest.mark.starts_processes
def test_the_next_start_removes_the_directory_of_a_killed_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else can: SIGKILL has ended the manager, too. That of a server that runs stays."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    settings = Config(fastcgi_start=["/app=sleep 1"])
    other = ProgramManager(settings, None)
    pid = os.fork()
    if pid == 0:
        try:
            ProgramManager(settings, None)
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)  # a fault must not run on into pytest
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert len(list(tmp_path.glob("ewe-programs-*"))) == 2
    manager = ProgramManager(settings, None)
    assert {str(each) for each in tmp_path.iterdir()} == {other.directory, manager.directory}
    manager.close()
    other.close()
    assert not list(tmp_path.iterdir())


def test_a_failed_start_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual reason is a long TMPDIR: the path of a socket has at most 107 bytes (unix(7))."""
    temporary = tmp_path / ("long" * 30)
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with pytest.raises(OSError, match="path too long"):
        ProgramManager(Config(fastcgi_start=["/app=sleep 1"]), None)
    assert not list(temporary.iterdir())


def test_a_manager_that_cannot_be_forked_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    manager = ProgramManager(Config(fastcgi_start=["/app=sleep 1"]), None)
    monkeypatch.setattr(os, "fork", fork)
    with pytest.raises(StartError, match=r"cannot fork the program manager: .* \(fastcgi-start\)$"):
        manager.start()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked
    manager.close()


@pytest.mark.starts_processes
def test_the_manager_keeps_no_listening_socket_of_the_server() -> None:
    """It ends later than a server that was killed. Another server can have the address at once."""
    manager = ProgramManager(Config(fastcgi_start=["/app=sleep 1000"]), None)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        manager.start([listening])
        try:
            inherited = open_files(os.getpid())[listening.fileno()]
            wait_until(lambda: inherited not in open_files(manager.pid).values(), 20)
            assert not manager.has_ended()
        finally:
            manager.close()


def test_the_manager_waits_for_more_descriptors_than_select_can() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, 1024)
    try:
        os.write(writer, b"x")
        assert ManagerProcess([], reader, 1.0).wait_for({reader, high}) == {reader, high}
    finally:
        for descriptor in (reader, writer, high):
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("name", ["thread", "prefork"])
def test_a_reload_after_the_manager_was_killed(start: Start, tmp_path: Path, name: str) -> None:
    """The programs have ended with it. The server goes on, and says what to do."""
    program = write_program(tmp_path / "program", "#!/bin/sh\nexec sleep 1000\n")
    server = start(name, "--fastcgi-start", f".x=1:{program}")
    wait_until(lambda: running(server, "sleep"), 20, server.log)
    [sleeping] = running(server, "sleep")
    manager = psutil.Process(sleeping).ppid()
    os.kill(manager, signal.SIGKILL)
    wait_until(lambda: is_gone(manager), 20)
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_log("the program manager has ended; restart ewe")
    assert "welcome" in web.get(server.url).text
    assert server.stop() == 0, server.log()


@pytest.mark.starts_processes
def test_a_process_that_a_program_left_behind_does_not_block_the_manager(tmp_path: Path) -> None:
    """It takes connections from the same socket while the manager empties the backlog."""
    program = FastCGIProgram(".x", 1, "/bin/true", str(tmp_path / "socket"))
    with program.socket:
        left_behind = os.fork()
        if left_behind == 0:
            signal.alarm(60)
            while True:
                program.socket.accept()[0].close()
        try:
            for _ in range(200):
                with contextlib.ExitStack() as clients:
                    for _ in range(5):
                        client = clients.enter_context(socket.socket(socket.AF_UNIX))
                        client.connect(program.path)
                    program.hide_socket()
                program.show_socket()
                assert os.get_blocking(program.socket.fileno())
        finally:
            os.kill(left_behind, signal.SIGKILL)
            os.waitpid(left_behind, 0)


@pytest.mark.starts_processes
def test_a_group_is_killed_before_its_number_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the exit status is read, another group may get the number, and the signal would reach that group."""
    program = FastCGIProgram(".x", 1, "/bin/true", str(tmp_path / "socket"))
    with program.socket:
        process = ProgramProcess(program)
        wait_until(process.has_exited, 20)
        states: list[str] = []
        monkeypatch.setattr(os, "killpg", lambda pid, number: states.append(psutil.Process(pid).status()))
        process.close()
    assert states == [psutil.STATUS_ZOMBIE]
    assert process.process.returncode == 0 and is_gone(process.pid)


def test_a_removed_socket_ends_no_other_program(tmp_path: Path) -> None:
    """The manager hides the socket of a program that dies young. A cleaner of /tmp may have removed it."""
    program = FastCGIProgram(".x", 1, "/bin/true", str(tmp_path / "socket"))
    with program.socket:
        os.unlink(program.path)
        program.hide_socket()
        program.show_socket()
    assert not program.hidden
