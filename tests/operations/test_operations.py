"""Operations: reloading without a failed request, more and fewer workers, status, service managers, privileges."""

from __future__ import annotations

import errno
import os
import pwd
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from support import needs, web
from support.proc import children
from support.server import MODELS, ROOT, Server, Start, run_command, wait_until, write_program
from support.wire import read_response

from ewe import logger
from ewe.config.settings import Config
from ewe.log_files import LogFile, first_changeable_directory
from ewe.server.privileges import KEYCTL_NUMBERS, become
from ewe.server.processor_factory import ProcessorFactory
from ewe.server.run import StartError, managed_programs, pid_file, serve_with_xswitch
from ewe.streams.systemd import notify

GET = b"GET / HTTP/1.1\r\nHost: ewe\r\n\r\n"


class Load(threading.Thread):
    """A client that asks over kept connections, opening another whenever it is told that this one ends."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.answered = 0
        self.failed: list[str] = []
        self.over = False

    def run(self) -> None:
        while not self.over:
            try:
                self.hold_connection()
            except (OSError, ConnectionError) as reason:
                self.failed.append(repr(reason))

    def hold_connection(self) -> None:
        """Ask until the server announces the close."""
        with self.server.connect() as sock:
            while not self.over:
                sock.sendall(GET)
                status, fields, body = read_response(sock)
                if status != 200 or b"ewe" not in body:
                    self.failed.append(f"{status} {body!r}")
                self.answered += 1
                if fields.get("connection") == "close":
                    return


def under_load(server: Server, act: Callable[[], None]) -> None:
    """Do something while four clients ask; each is answered before and after, and no request fails."""
    loads = [Load(server) for _ in range(4)]

    def each_is_answered(times: int) -> None:
        wanted = [load.answered + times for load in loads]
        wait_until(
            lambda: all(load.answered >= count for load, count in zip(loads, wanted, strict=True)),
            30,
            lambda: f"answered: {[load.answered for load in loads]}, wanted: {wanted}\n{server.log()}",
        )

    for load in loads:
        load.start()
    try:
        each_is_answered(5)
        act()
        each_is_answered(20)
    finally:
        for load in loads:
            load.over = True
    for load in loads:
        load.join(20)
    assert not [failure for load in loads for failure in load.failed]


def configured(tmp_path: Path, index: str) -> tuple[str, ...]:
    """Write ewe.toml, and return the options that name it."""
    (tmp_path / "ewe.toml").write_text(f'defaultindex = "{index}"\nhead-timeout = "20s"\n')
    return ("--config", str(tmp_path / "ewe.toml"))


def test_reload_fails_no_request(start: Start, variant: str, tmp_path: Path) -> None:
    if variant == "serial" or variant == "pool --parking never":
        variant += " --idle 1s"  # one client after the other: each of the four has its turn
    server = start(variant, *configured(tmp_path, "index.html"))
    (server.root / "other.html").write_text("<title>ewe</title>another page\n")
    before = set(children(server.pid))

    def reload() -> None:
        configured(tmp_path, "other.html")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("configuration was read again")

    if variant.startswith("serial"):
        reload()
    else:
        under_load(server, reload)
    wait_until(lambda: "another page" in web.get(server.url).text, 20, server.log)
    if "workers" in variant or variant == "prefork":
        wait_until(lambda: not before & set(children(server.pid)), 20, server.log)
    assert server.stop() == 0, server.log()
    assert "Traceback" not in server.log()


def test_a_port_that_needs_a_restart_leaves_bind_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(logger.errors, "warning", warnings.append)
    factory = object.__new__(ProcessorFactory)
    factory.supervised, factory.serves_in_one = True, False
    factory.config = Config(bind=["127.0.0.1:5000"])
    for _ in range(2):
        factory.config = factory.with_fixed_settings(Config(bind=["127.0.0.1:5000"], port=4001))
    assert factory.config.bind == ("127.0.0.1:5000",)
    assert warnings == 2 * ["port: a change needs a restart"]


def test_a_bad_configuration_is_refused(start: Start, model: str, tmp_path: Path) -> None:
    server = start(model, *configured(tmp_path, "index.html"))
    (tmp_path / "ewe.toml").write_text('defaultindx = "other.html"\n')
    server.process.send_signal(signal.SIGHUP)
    log = server.wait_for_log("the old one stays")
    assert 'did you mean "defaultindex"?' in log
    assert "welcome" in web.get(server.url).text
    (tmp_path / "ewe.toml").write_text("backlog = 5\n")
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_log("backlog: a change needs a restart")
    assert "welcome" in web.get(server.url).text


def test_a_refused_configuration_opens_no_log(start: Start, model: str, tmp_path: Path) -> None:
    """Its syntax is right, but its site cannot be built: the old log stays in use, and says why."""
    file, old, new = (tmp_path / name for name in ("ewe.toml", "old.log", "new.log"))
    file.write_text(f'logfile = "{old}"\n')
    server = start(model, "--config", str(file))
    file.write_text(f'logfile = "{new}"\ntls-cert = "/nowhere.pem"\n')
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "the old one stays" in old.read_text(), 20, server.log)
    assert not new.exists() and "welcome" in web.get(server.url).text


def test_a_reload_may_change_what_a_head_may_measure(start: Start, model: str, tmp_path: Path) -> None:
    """ewe does not use a head that it remembered under the old limits."""
    file = tmp_path / "ewe.toml"
    file.write_text("max-target = 1000\n")
    server = start(model, "--config", str(file))
    url = server.url + "?" + "a" * 200
    assert web.get(url).status_code == web.get(url).status_code == 200
    file.write_text("max-target = 100\n")
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: web.get(url).status_code == 414, 20, server.log)


def test_a_reload_may_change_the_log_format(start: Start, variant: str, tmp_path: Path) -> None:
    """Requests are remembered with what the log writes of them: never in the format of before."""
    (tmp_path / "ewe.toml").write_text("log-format = '%s %b %{model}n'\n")
    server = start(variant)
    wait_until(lambda: web.get(server.url).status_code == 200, 20)
    (tmp_path / "ewe.toml").write_text("log-format = 'anew %{model}n %U'\n")
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_log("configuration was read again")

    def is_renewed() -> bool:
        assert web.get(server.url).status_code == 200
        return "anew " in (tmp_path / "access.log").read_text()

    wait_until(is_renewed, 20)
    lines = (tmp_path / "access.log").read_text().splitlines()
    name = "asyncio" if "asyncio" in variant else variant.split()[0]
    assert set(lines) <= {f"200 41 {name}", f"anew {name} /"}, lines
    assert "Traceback" not in server.log()


def test_a_request_in_progress_survives_a_reload(start: Start, variant: str) -> None:
    server = start(variant)
    started, go = server.root / "started", server.root / "go"
    text = f"touch {started}; until [ -e {go} ]; do sleep 0.02; done; printf 'Content-Type: a/b\\n\\ndone\\n'"
    write_program(server.cgi / "slow", f"#!/bin/sh\n{text}\n")
    with server.connect() as sock:
        sock.sendall(b"GET /cgi-bin/slow HTTP/1.1\r\nHost: ewe\r\n\r\n")
        wait_until(started.exists, 20, server.log)
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("configuration was read again")
        go.touch()
        assert read_response(sock)[2] == b"done\n"
    assert web.get(server.url).status_code == 200


@pytest.mark.parametrize("name", ["prefork --workers 2", "asyncio --workers 2"])
def test_more_and_fewer_workers(start: Start, name: str) -> None:
    server = start(name)

    def change(number: int, count: int) -> None:
        server.process.send_signal(number)
        wait_until(lambda: len(children(server.pid)) == count, 20, server.log)

    def all_of_it() -> None:
        change(signal.SIGTTIN, 3)
        change(signal.SIGTTIN, 4)
        change(signal.SIGTTOU, 3)

    if name.startswith("asyncio"):
        under_load(server, all_of_it)
    else:
        all_of_it()
    change(signal.SIGTTOU, 2)
    change(signal.SIGTTOU, 1)
    server.process.send_signal(signal.SIGTTOU)
    time.sleep(0.3)
    assert len(children(server.pid)) == 1
    assert web.get(server.url).status_code == 200


def test_status(start: Start, variant: str) -> None:
    server = start(variant)
    with server.connect() as sock:
        sock.sendall(GET)
        assert read_response(sock)[0] == 200
        server.process.send_signal(signal.SIGUSR2)
        server.wait_for_log("status: thread")
        assert "connections" in server.log()
        wait_until(lambda: ", in serve" in server.log(), 20, server.log)
    wait_until(lambda: web.get(server.url).status_code == 200, 20)
    assert "Traceback" not in server.log()


@pytest.mark.starts_processes
def test_sockets_of_a_service_manager(tmp_path: Path) -> None:
    """LISTEN_FDS and NOTIFY_SOCKET: the process is told its own number, so a shell execs the server."""
    (tmp_path / "htdocs").mkdir()
    (tmp_path / "htdocs" / "index.html").write_text("welcome")
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.bind(str(tmp_path / "notify"))
    told.settimeout(10)
    with told, socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        script = f'exec 3<&{listening.fileno()}; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@"'
        process = subprocess.Popen(
            ["/bin/bash", "-c", script, "sh", sys.executable, "-m", "ewe", "-t", "--access-log", "off"],
            pass_fds=[listening.fileno()], cwd=tmp_path, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT), "NOTIFY_SOCKET": str(tmp_path / "notify")},
        )  # fmt: skip
        try:
            assert told.recv(1000).decode().split("\n") == ["READY=1", f"MAINPID={process.pid}"]
            assert web.get(f"http://127.0.0.1:{port}/").text == "welcome"
            process.send_signal(signal.SIGHUP)
            reloading = told.recv(1000).decode()
            assert reloading.startswith("RELOADING=1\nMONOTONIC_USEC=") and reloading[27:].isdigit()
            assert told.recv(1000) == b"READY=1"
            process.terminate()
            assert told.recv(1000) == b"STOPPING=1"
        finally:
            process.terminate()
            assert process.wait(60) == 0


@pytest.mark.starts_processes
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_sockets_of_a_service_manager_and_listen(tmp_path: Path, address: str) -> None:
    """A site listens where the manager has opened a socket: ewe uses that socket, and opens no second one."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "index.html").write_text("site one")
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_server(("127.0.0.1", 0)) as free:
        port, other = listening.getsockname()[1], free.getsockname()[1]
        free.close()
        listen = f'listen = ["{address}:{port}", "127.0.0.1:{other}"]'
        (tmp_path / "ewe.toml").write_text(f'access-log = "off"\n[[site]]\ndocumentroot = "one"\n{listen}\n')
        script = f'exec 3<&{listening.fileno()}; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@"'
        process = subprocess.Popen(
            ["/bin/bash", "-c", script, "sh", sys.executable, "-m", "ewe", "-t"], pass_fds=[listening.fileno()],
            cwd=tmp_path, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        try:
            assert process.stderr is not None
            banner = process.stderr.readline()
            assert f":{port}/ http://127.0.0.1:{other}/ (" in banner, banner
            for each in (port, other):
                assert web.get(f"http://127.0.0.1:{each}/").text == "site one"
        finally:
            process.terminate()
            process.communicate(timeout=60)
        assert process.returncode == 0


@pytest.mark.starts_processes
def test_sockets_of_a_service_manager_that_bind_leaves_unused(tmp_path: Path) -> None:
    """One line names the setting, the sockets, and what to write; a socket that bind names is used."""
    (tmp_path / "htdocs").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        descriptors = f"exec 3<&{first.fileno()} 4<&{second.fileno()}"
        script = f'{descriptors}; export LISTEN_PID=$$ LISTEN_FDS=2; exec "$@"'
        process = subprocess.Popen(
            ["/bin/bash", "-c", script, "sh", sys.executable, "-m", "ewe", "-t", "--bind", "127.0.0.1:0", "--bind", "fd://3"],
            pass_fds=[first.fileno(), second.fileno()], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "service manager" in line)
            assert "bind 127.0.0.1:0, fd://3: sockets of the service manager are not used (1)" in line
            assert line.endswith("leave out bind, or name fd://4 there\n")
        finally:
            process.terminate()
            process.communicate(timeout=10)


@pytest.mark.parametrize("name", ["notify", "of@ada"])
def test_the_service_manager_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Only an "@" at the beginning of NOTIFY_SOCKET stands for an abstract address."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / name))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / name))
        manager.settimeout(10)
        notify("READY=1", "MAINPID=1")
        assert manager.recv(100) == b"READY=1\nMAINPID=1"


def test_the_pid_file(start: Start, model: str, tmp_path: Path) -> None:
    path = tmp_path / "ewe.pid"
    path.write_text(
        f"{os.getpid()}\n"
    )  # the file of a server that died; another process has its number by now
    server = start(model, "--pid-file", str(path))
    assert path.read_text() == f"{server.pid}\n"
    other = run_command(tmp_path, "0", "--pid-file", str(path))
    assert other.returncode == 1 and f"names process {server.pid}, which runs" in other.stderr
    assert path.read_text() == f"{server.pid}\n"
    server.stop(signal.SIGKILL)
    again = start(model, "--pid-file", str(path))  # what the first one started may still be there
    assert path.read_text() == f"{again.pid}\n"
    assert again.stop() == 0
    assert not path.exists()


@pytest.mark.needs("root")
def test_becoming_another_user(start: Start, model: str, tmp_path: Path) -> None:
    for directory in (tmp_path, *tmp_path.parents):  # pytest's directories are for their owner alone
        if any(part.startswith("pytest-of-") for part in directory.parts):
            directory.chmod(0o755)
    shutil.chown(tmp_path, "nobody")
    server = start(model, "--user", "nobody")
    write_program(server.cgi / "who", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\nid -u; id -G\n")
    nobody = pwd.getpwnam("nobody")
    uid, groups = web.get(server.url + "cgi-bin/who").text.splitlines()
    assert int(uid) == nobody.pw_uid
    assert {int(group) for group in groups.split()} == set(os.getgrouplist("nobody", nobody.pw_gid))


def open_to_all(tmp_path: Path) -> None:
    """Let every account enter pytest's directories, which are for their owner alone."""
    for directory in (tmp_path, *tmp_path.parents):
        if any(part.startswith("pytest-of-") for part in directory.parts):
            directory.chmod(0o755)


@pytest.mark.needs("root")
@pytest.mark.parametrize("name", [*MODELS, "asyncio --workers 2", "xswitch"], ids=lambda name: name)
def test_logs_that_root_has_made(start: Start, name: str, tmp_path: Path) -> None:
    """New logs in a directory of root's: the account that serves can be reloaded and its logs rotated."""
    open_to_all(tmp_path)
    (tmp_path / "logs").mkdir()
    access, errors = tmp_path / "logs" / "access", tmp_path / "logs" / "errors"
    (tmp_path / "ewe.toml").write_text("indexes = true\n")
    options = ("--config", str(tmp_path / "ewe.toml"), "--user", "nobody", "--logfile", str(errors))
    server = start(name, *options, "--access-log", str(access))
    nobody = pwd.getpwnam("nobody")
    for log in (access, errors):
        status = log.stat()
        assert (status.st_uid, status.st_gid) == (nobody.pw_uid, nobody.pw_gid)
        assert status.st_mode & 0o777 == 0o640
    assert ("may not make files in" in errors.read_text()) is (name != "xswitch")
    (server.root / "list").mkdir()
    assert web.get(server.url + "list/").status_code == 200
    (tmp_path / "ewe.toml").write_text("indexes = false\n")
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: web.get(server.url + "list/").status_code == 403, 20, errors.read_text)
    for log in (access, errors):
        log.rename(f"{log}.1")
        if name != "xswitch":  # as logrotate's `create 0640 nobody nogroup` does; X-Switch's parent is root
            log.touch(0o640)
            shutil.chown(log, nobody.pw_uid, nobody.pw_gid)
    server.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: access.exists() and errors.exists(), 20)

    def is_logged() -> bool:
        assert web.get(server.url + "?after").status_code == 200
        return "GET /?after" in access.read_text()

    wait_until(is_logged, 20, lambda: Path(f"{errors}.1").read_text())
    assert access.stat().st_uid == errors.stat().st_uid == nobody.pw_uid
    assert "Permission denied" not in Path(f"{errors}.1").read_text() + errors.read_text()


@pytest.mark.needs("root")
def test_logs_that_stay_roots(start: Start, tmp_path: Path) -> None:
    """Others could have changed where the new file is, or it was root's before: it is said, and HUP works."""
    open_to_all(tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs").chmod(0o777)
    access, errors = tmp_path / "logs" / "access", tmp_path / "errors"
    errors.touch(0o600)
    (tmp_path / "ewe.toml").write_text("indexes = true\n")
    options = ("--config", str(tmp_path / "ewe.toml"), "--user", "nobody", "--logfile", str(errors))
    server = start("pool", *options, "--access-log", str(access))
    assert access.stat().st_uid == errors.stat().st_uid == 0
    said = errors.read_text()
    assert f"user nobody may not write {access}, so USR1 cannot open it again" in said
    assert f"user nobody may not write {errors}, so USR1 cannot open it again" in said
    done = run_command(tmp_path, *options, "--access-log", str(access), "--port", "0", "--check-config")
    assert done.returncode == 0 and f"user nobody may not write {access}" in done.stderr, done.stderr
    (server.root / "list").mkdir()
    assert web.get(server.url + "list/").status_code == 200
    (tmp_path / "ewe.toml").write_text("indexes = false\n")
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: web.get(server.url + "list/").status_code == 403, 20, errors.read_text)
    assert web.get(server.url + "?later").status_code == 200
    wait_until(lambda: "?later" in access.read_text(), 20)
    errors.rename(tmp_path / "errors.1")
    server.process.send_signal(signal.SIGUSR1)
    old = tmp_path / "errors.1"
    wait_until(
        lambda: f"cannot write {errors}: Permission denied; the old file stays in use" in old.read_text(), 20
    )


@pytest.mark.needs("root")
def test_where_a_log_may_be_given_away(tmp_path: Path) -> None:
    """Not below a directory, or a symbolic link, that another account can replace."""
    open_to_all(tmp_path)
    for name in ("own", "of/nobody", "of/games", "wide", "sticky/own", "links"):
        (tmp_path / name).mkdir(parents=True)
    nobody, games = pwd.getpwnam("nobody").pw_uid, pwd.getpwnam("games").pw_uid
    os.chown(tmp_path / "of" / "nobody", nobody, -1)
    os.chown(tmp_path / "of" / "games", games, -1)
    (tmp_path / "of" / "games" / "inner").mkdir()
    (tmp_path / "of" / "games" / "link").symlink_to(tmp_path / "own")
    (tmp_path / "links" / "own").symlink_to("../own")
    (tmp_path / "links" / "hop").symlink_to(tmp_path / "of" / "games" / "link")
    (tmp_path / "links" / "loop").symlink_to("loop")
    (tmp_path / "wide").chmod(0o777)
    (tmp_path / "sticky").chmod(0o1777)
    for name, found in {
        "own": "", "own/../own": "", "of/nobody": "", "sticky/own": "", "links/own": "",
        "of/games": "of/games", "of/games/inner": "of/games", "of/games/link": "of/games", "links/hop": "of/games",
        "wide": "wide", "links/loop": "links",
    }.items():  # fmt: skip
        assert first_changeable_directory(f"{tmp_path}/{name}", nobody) == (
            f"{tmp_path}/{found}" if found else ""
        ), name


@pytest.mark.needs("root")
@pytest.mark.parametrize("target", ["file", "new"])
def test_root_follows_no_link_that_another_account_has_made(tmp_path: Path, target: str) -> None:
    """The account of the server could else have root append to any file, or create it, at the next start."""
    open_to_all(tmp_path)
    (tmp_path / "file").write_text("root's\n")
    nobody = pwd.getpwnam("nobody").pw_uid
    for name, mode in {"nobody": 0o755, "wide": 0o777, "sticky": 0o1777}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
        if name == "nobody":
            os.chown(tmp_path / name, nobody, -1)
        link = tmp_path / name / "access.log"
        link.symlink_to(tmp_path / target)
        os.chown(link, nobody, -1, follow_symlinks=False)
        with pytest.raises(OSError, match="symbolic link that root has not made"):
            LogFile(str(link), 1)
        assert (tmp_path / "file").read_text() == "root's\n" and not (tmp_path / "new").exists()
        os.chown(link, 0, -1, follow_symlinks=False)
        log = LogFile(str(link), 1)
        log.write("a line\n")
        log.close()
        assert (tmp_path / target).read_text().endswith("a line\n")
        (tmp_path / target).unlink()
        (tmp_path / "file").write_text("root's\n")
    (tmp_path / "link").symlink_to(tmp_path / target)  # no other account can change this directory
    os.chown(tmp_path / "link", nobody, -1, follow_symlinks=False)
    LogFile(str(tmp_path / "link"), 1).close()


def test_a_pid_file_of_another_kind_is_not_removed(tmp_path: Path) -> None:
    """Root would remove /dev/null, for example."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    with pytest.raises(StartError, match=r"Invalid argument \(pid-file\)"), pid_file(str(path)):
        pass
    assert path.exists()


# An interpreter that ignores the end of its children, as some daemons do: execve(2) keeps that.
IGNORING = f"""#!{sys.executable}
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])
"""
WAITS = 'import subprocess; print(subprocess.call(["false"]))'
PROGRAMS = {
    "killed": "printf 'Content-Type: text/plain\\n\\npart'\nkill -9 $$\n",
    "failing": "printf 'Content-Type: text/plain\\n\\nall'\nexit 3\n",
    "silent": "exit 4\n",
    "parent": f"printf 'Content-Type: text/plain\\n\\n'\n{sys.executable} -c '{WAITS}'\n",
}


def answer_of(server: Server, program: str) -> bytes:
    """Return the answer of a program, or the way in which it was cut."""
    try:
        return server.ask(b"GET /cgi-bin/%b HTTP/1.0\r\n\r\n" % program.encode())
    except ConnectionResetError:
        return b"reset"


def test_a_parent_that_ignores_the_end_of_children_changes_nothing(
    start: Start, tmp_path: Path, model: str
) -> None:
    """A killed program is no complete answer, and each exit status is logged."""
    write_program(tmp_path / "ignoring", IGNORING)
    seen = []
    for python in (sys.executable, str(tmp_path / "ignoring")):
        server = start(model, env={}, python=python)
        for name, text in PROGRAMS.items():
            write_program(server.cgi / name, f"#!/bin/sh\n{text}")
        answers = [answer_of(server, name) for name in PROGRAMS]
        assert server.stop() == 0, server.log()
        said = sorted(re.findall(r"(?:exit status|signal) \d+", server.log()))
        seen.append(([re.sub(rb"Date: .*", b"", each) for each in answers], said))
    assert seen[0] == seen[1] and answers[-1].endswith(b"\n1\n")


BLOCKING = IGNORING.replace(
    "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
)


SHOWS_MASK = """
import re
print("Content-Type: text/plain\\n")
print(re.findall(r"SigBlk:\\s*(\\w+)", open("/proc/self/status").read())[0])
"""


@pytest.mark.needs("/proc")
def test_a_parent_that_blocks_signals_blocks_none_of_a_program(
    start: Start, tmp_path: Path, model: str
) -> None:
    """execve(2) keeps the mask, and a program of the server would have it, too."""
    write_program(tmp_path / "blocking", BLOCKING)
    server = start(model, env={}, python=str(tmp_path / "blocking"))
    write_program(server.cgi / "mask", f"#!{sys.executable}\n{SHOWS_MASK}")  # a shell would clear its mask
    assert int(server.ask(b"GET /cgi-bin/mask HTTP/1.0\r\n\r\n").split()[-1], 16) == 0
    assert server.stop() == 0, server.log()


def test_a_parent_that_blocks_signals_hides_no_dead_worker(start: Start, tmp_path: Path) -> None:
    write_program(tmp_path / "blocking", BLOCKING)
    server = start("prefork", "--workers", "2", env={}, python=str(tmp_path / "blocking"))
    for worker in children(server.pid):
        os.kill(worker, signal.SIGKILL)
        server.wait_for_log(f"(pid {worker}) was ended by signal 9; starting another")
    assert server.stop() == 0, server.log()


@pytest.mark.starts_processes
@pytest.mark.needs("root")
def test_checks_as_another_account_by_a_parent_that_ignores_the_end_of_children(tmp_path: Path) -> None:
    open_to_all(tmp_path)
    (tmp_path / "htdocs").mkdir()
    write_program(tmp_path / "ignoring", IGNORING)
    done = subprocess.run(
        [tmp_path / "ignoring", "-m", "ewe", "--user", "nobody", "--check-config"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "configuration ok (no file)\n"), done.stderr


@pytest.mark.starts_processes
@pytest.mark.parametrize("before", [None, "4711\n"])
def test_a_full_disk_leaves_no_empty_pid_file(tmp_path: Path, before: str | None) -> None:
    """A limit of 0 for the size of files stands for a full disk. `before`: the file of a server that died."""
    path = tmp_path / "pid"
    if before is not None:
        path.write_text(before)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            with pytest.raises(StartError, match=r"File too large \(pid-file\)"), pid_file(str(path)):
                pass
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not path.exists()


def test_the_pid_file_of_another_server_is_not_removed(tmp_path: Path) -> None:
    """An administrator, or a program that cleans /tmp, may delete the file of a server that runs."""
    path = tmp_path / "pid"
    with pid_file(str(path)):
        path.unlink()
        path.write_text("1\n")
    assert path.read_text() == "1\n"
    path.unlink()
    with pid_file(str(path)):
        assert path.read_text() == f"{os.getpid()}\n"
    assert not path.exists()


@pytest.mark.needs("root")
@pytest.mark.parametrize("name", ["thread", "xswitch"])
def test_root_is_warned_of_settings_that_others_can_write(start: Start, tmp_path: Path, name: str) -> None:
    """Root has read them before it becomes the account of the workers."""
    open_to_all(tmp_path)
    file = tmp_path / "ewe.toml"
    file.touch()
    file.chmod(0o666)
    server = start(name, "--config", str(file), "--user", "nobody")
    server.wait_for_log("it is writable by others (mode 0666): who can write it decides what root runs")


@pytest.mark.needs("root")
def test_root_writes_no_pid_file_through_a_link_of_another_account(tmp_path: Path) -> None:
    open_to_all(tmp_path)
    victim, directory = tmp_path / "victim", tmp_path / "run"
    victim.write_text("root's\n")
    directory.mkdir()
    link = directory / "ewe.pid"
    link.symlink_to(victim)
    nobody = pwd.getpwnam("nobody").pw_uid
    for path in (directory, link):
        os.chown(path, nobody, -1, follow_symlinks=False)
    with pytest.raises(StartError, match="symbolic link that root has not made"), pid_file(str(link)):
        pass
    assert victim.read_text() == "root's\n"


@pytest.mark.starts_processes
@pytest.mark.needs("root")
def test_a_log_that_is_a_link_of_the_account_ends_the_start(tmp_path: Path) -> None:
    open_to_all(tmp_path)
    (tmp_path / "logs").mkdir()
    nobody = pwd.getpwnam("nobody").pw_uid
    link = tmp_path / "logs" / "access.log"
    link.symlink_to(tmp_path / "victim")
    os.chown(tmp_path / "logs", nobody, -1)
    os.chown(link, nobody, -1, follow_symlinks=False)
    done = run_command(tmp_path, "--user", "nobody", "--access-log", str(link), "--port", "0")
    assert done.returncode == 1 and "symbolic link that root has not made" in done.stderr, done.stderr
    assert not (tmp_path / "victim").exists()


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    "model", ["pool --user nobody", "asyncio --user nobody --workers 2", "fork --user nobody", "xswitch"]
)
def test_an_ewe_that_only_root_may_enter(start: Start, tmp_path: Path, model: str) -> None:
    """ewe loads all modules at its start: later its account could not read them."""
    for directory in (tmp_path, *tmp_path.parents):
        if any(part.startswith("pytest-of-") for part in directory.parts):
            directory.chmod(0o755)
    (tmp_path / "access.log").touch()
    (tmp_path / "access.log").chmod(0o666)
    copy = tmp_path / "copy"
    left_out = shutil.ignore_patterns("lab", "target")
    shutil.copytree(ROOT / "ewe", copy / "ewe", ignore=left_out)
    copy.chmod(0o700)
    server = start(model, env={"PYTHONPATH": str(copy)})
    (server.root / "list").mkdir()
    (server.root / "list" / "file.strange").write_text("strange")
    listing = web.get(server.url + "list/")
    assert listing.status_code == 200 and "file.strange" in listing.text, server.log()
    assert web.get(server.url + "list/", headers={"Accept": "application/json"}).json()[0]["size"] == 7
    assert web.get(server.url + "list/file.strange").text == "strange"
    assert web.get(server.url + "nothing").status_code == 404
    assert "Traceback" not in server.log()


@pytest.mark.needs("root")
def test_root_runs_no_programs(start: Start, model: str, tmp_path: Path) -> None:
    """Not for a network, unless told to; for this machine alone it does, and files are for everybody."""
    for directory in (tmp_path, *tmp_path.parents):
        if any(part.startswith("pytest-of-") for part in directory.parts):
            directory.chmod(0o755)
    for user, status in ((None, 403), ("root", 200), ("nobody", 200)):
        options = ("--user", user, "--access-log", "off") if user else ()
        server = start(model, "--bind", "127.0.0.1:0", "--bind", "0.0.0.0:0", *options)
        found = re.search(r"http://0\.0\.0\.0:(\d+)/", server.log())
        assert found
        write_program(server.cgi / "who", "#!/bin/sh\nprintf 'Content-Type: a/b\\n\\n'; id -un\n")
        for port, expected in ((server.port, 200), (int(found[1]), status)):
            answer = web.get(f"http://127.0.0.1:{port}/cgi-bin/who")
            assert answer.status_code == expected
            assert expected != 200 or answer.text == f"{user or 'root'}\n"
            assert web.get(f"http://127.0.0.1:{port}/").status_code == 200
        # The log gets its line after the client has its answer
        said = server.wait_for_log("would run as root") if user is None else server.log()
        assert ("would run as root" in said) is (user is None)
        assert ("root runs no programs for a network" in said) is (user is None)


@pytest.mark.starts_processes
def test_an_unknown_user_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "htdocs").mkdir()
    done = run_command(tmp_path, "0", "--user", "no-such-user")
    assert done.returncode == 1
    assert done.stderr.startswith("ewe: ") and done.stderr.count("\n") == 1 and "user" in done.stderr


# Puts a key into a new session keyring, becomes nobody, and prints whether the keyring has the key. add_key(2) has
# a number two below that of keyctl(2), and 10 is KEYCTL_SEARCH
KEY_OF_ROOT = """import ctypes, os
from ewe.server.privileges import JOIN_SESSION_KEYRING, KEYCTL_NUMBERS, become
keyctl = KEYCTL_NUMBERS[os.uname().machine]
call = ctypes.CDLL(None).syscall
call(keyctl, JOIN_SESSION_KEYRING, None)
call(keyctl - 2, b"user", b"ewe:test", b"secret", 6, -3)
find = lambda: call(keyctl, 10, -3, b"user", b"ewe:test", 0) > 0
print(find())
become("nobody", None)
print(find(), os.getuid())
"""


@pytest.mark.starts_processes
@pytest.mark.needs("root")
def test_a_process_that_has_given_up_root_has_no_key_of_root() -> None:
    """Otherwise a CGI script could read the keys of the log-in that has started ewe (keyrings(7))."""
    if sys.platform != "linux" or os.uname().machine not in KEYCTL_NUMBERS:
        needs.lacks("root", "no keyrings whose system calls have known numbers")
    done = subprocess.run([sys.executable, "-c", KEY_OF_ROOT], cwd=ROOT, capture_output=True, text=True)
    first, *rest = done.stdout.split()
    if first == "False":
        needs.lacks("root", "no keyrings that this account may use")
    assert rest == ["False", str(pwd.getpwnam("nobody").pw_uid)], done.stderr


@pytest.mark.starts_processes
@pytest.mark.needs("root")
@pytest.mark.parametrize("library", ["_ctypes", "ctypes"])
def test_a_python_without_ctypes_does_not_give_up_root(library: str) -> None:
    """A file with `_ctypes` may be lacking in a Python that was built without libffi."""
    if sys.platform != "linux" or os.uname().machine not in KEYCTL_NUMBERS:
        needs.lacks("root", "no keyrings whose system calls have known numbers")
    program = (
        f"import sys; sys.modules[{library!r}] = None\nfrom ewe.server.privileges import become\n"
        "from ewe.streams.listener import StartError\ntry: become('nobody', None)\n"
        "except StartError as reason: print(reason)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == (
        "root cannot become nobody: the session keyring cannot be left: Python lacks ctypes (user, group)\n"
    ), done.stderr


def test_an_account_that_root_may_not_become_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "initgroups", refuse)
    with pytest.raises(
        StartError, match=r"root cannot become nobody: Operation not permitted \(user, group\)"
    ):
        become("nobody", None)


@pytest.mark.parametrize(
    "begin",
    [
        lambda: serve_with_xswitch(Config(concurrency="xswitch"), None),
        lambda: managed_programs(Config(fastcgi_start=["/app=sleep 1"]), None).__enter__(),
    ],
)
def test_a_system_without_a_temporary_directory_is_one_line(
    monkeypatch: pytest.MonkeyPatch, begin: Callable[[], object]
) -> None:
    def refuse(**_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(StartError, match=r"No usable temporary directory found \(TMPDIR\)"):
        begin()


def test_a_unix_socket_outlives_a_worker(start: Start, tmp_path: Path) -> None:
    """Python 3.13 would remove its name with the first worker that retires."""
    path = tmp_path / "ewe.sock"
    server = start("asyncio --workers 2", "--bind", "127.0.0.1:0", "--bind", f"unix:{path}")
    before = set(children(server.pid))
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: not before & set(children(server.pid)), 20, server.log)
    with web.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://ewe") as client:
        assert client.get("/").status_code == 200
    assert server.stop() == 0 and not path.exists()


IMPATIENT = """
import os, signal
from pathlib import Path

class Impatient:
    def __init__(self, config, path):
        try:
            Path("told").touch(exist_ok=False)
        except FileExistsError:
            return
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU):
            os.kill(os.getpid(), number)

    async def respond(self, request, io):
        return None
"""


@pytest.mark.parametrize("programs", [(), ("--fastcgi-start", ".x=sleep 99")], ids=["", "program"])
@pytest.mark.parametrize("model", [*MODELS, "pool --workers 2"])
def test_signals_before_their_handlers_wait_for_them(
    start: Start, tmp_path: Path, model: str, programs: tuple[str, ...]
) -> None:
    """A feature sends each signal while the server makes its first site; a program manager is then forked."""
    (tmp_path / "impatient.py").write_text(IMPATIENT)
    server = start(model, "--mount", "/now=impatient:Impatient", *programs)
    assert (tmp_path / "told").exists()
    server.wait_for_log(" status: ")
    server.wait_for_log("the configuration was read again")
    assert b"welcome" in server.ask(GET)
    assert server.stop() == 0, server.log()
