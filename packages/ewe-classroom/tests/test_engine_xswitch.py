"""The engine that the check engine-xswitch starts: its account, the files that it can read and that it leaves.

Each forger below is a correct engine with other work at its start. It passes the check: X-Switch has run it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from classroom_server import AS_ROOT, processes_of
from support.resources import open_python

import ewe
from ewe_classroom.course.one_source import solution
from ewe_classroom.grader import engine_xswitch, scheme
from ewe_classroom.grader.engine_scene import EngineScene
from ewe_classroom.grader.engine_xswitch import (
    XSwitchAccounts,
    XSwitchServer,
    accounts_for,
    sitecustomize_text,
)
from ewe_classroom.grader.sandbox import OWN_UIDS, SHARED_DIRECTORIES, SandboxLimits, SubjectAccount
from ewe_classroom.grader.scene import FailedExpectation, Scene
from ewe_classroom.grader.subject import Subject

# The grader, for an engine that runs under the Python of its first argument.
GRADES = """
import sys
from ewe_classroom.grader import cli

sys.executable = sys.argv.pop(1)
sys.exit(cli.main())
"""
MAIN = 'if __name__ == "__main__":\n'
# It looks for the directory of the grading and for the processes of ewe and X-Switch among its parents.
READS = """
import stat


def words_of(pid):
    try:
        return open(f"/proc/{pid}/cmdline").read().split(chr(0))
    except OSError:
        return []


def parent_of(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])


def look_at_files(seen):
    for path in FORBIDDEN:
        try:
            found = os.listdir(path) if os.path.isdir(path) else open(path).read()
        except OSError:
            continue
        if found:
            print("reads", path, found, file=seen)


def look_at_parents(seen):
    pid, known = os.getppid(), []
    while "--cgi-path" not in words_of(pid):
        known += [pid, *open(f"/proc/{pid}/task/{pid}/children").read().split()]
        pid = parent_of(pid)
    for each in map(int, [*known, pid, *open(f"/proc/{pid}/task/{pid}/children").read().split()]):
        if words_of(each)[1:2] == ["-m"]:
            try:
                os.kill(each, 0)
                print("may end", each, file=seen)
            except PermissionError:
                print("sees", words_of(each)[2], file=seen)
            except ProcessLookupError:
                pass
    words = words_of(pid)
    grading = os.path.dirname(words[words.index("--cgi-path") + 1])
    print("mode", oct(os.stat(os.path.dirname(grading)).st_mode & 0o777), file=seen)
    for directory, _, names in os.walk(grading):
        print("enters", os.path.basename(directory), file=seen)


with open(SEEN, "a") as seen:
    print("account", os.getuid(), file=seen)
    look_at_files(seen)
    look_at_parents(seen)
"""
# The solution ends after a script if a process is left. This engine goes on, so that X-Switch has to kill both.
LEAVES = """
import time

Engine.has_leftovers = lambda engine: False

with open(SEEN, "a") as seen:
    print("account", os.getuid(), file=seen)
for directory in DIRECTORIES:
    os.makedirs(f"{directory}/ewe-left-{os.getpid()}/deep")
if os.fork() == 0:
    os.setsid()
    os.closerange(0, 1024)
    time.sleep(600)
"""


def seen_by(directory: Path, work: str, *options: str, check: str = "engine-xswitch") -> list[str]:
    """Grade an engine that does this work at its start; return the lines that it has written to SEEN."""
    seen = directory / "seen"
    seen.touch()
    seen.chmod(0o666)
    before, main, after = solution((scheme.LABS / "engine" / "engine.py").read_text()).partition(MAIN)
    (directory / "engine.py").write_text(f"{before}SEEN = {str(seen)!r}\n{work}\n\n{main}{after}")
    done = subprocess.run(
        [
            *(sys.executable, "-c", GRADES, open_python(), "--lab", "engine", "--only", check),
            *(*options, "--work", "engine.py", "engine.py"),
        ],
        cwd=directory, capture_output=True, text=True, timeout=170, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return seen.read_text().splitlines()


def account_of(lines: set[str]) -> int:
    """Return the user id of all lines `account UID`, which are the same."""
    (line,) = lines
    return int(line.removeprefix("account "))


@pytest.mark.needs("root", "a Python for every account", "a mount namespace")
@pytest.mark.starts_processes
def test_an_engine_behind_xswitch_reads_no_solution_and_no_other_submission(tmp_path: Path) -> None:
    """It also cannot enter the directory of ewe's copy, or send a signal to a process of ewe or X-Switch."""
    other = tmp_path / "class" / "bo.py"
    other.parent.mkdir()
    other.write_text("the engine of another student\n")
    home = Path(ewe.__file__).resolve().parent
    paths = (
        scheme.LABS / "engine",
        scheme.LABS / "engine" / "engine.py",
        home / "xswitch" / "engines",
        other,
    )
    work = f"FORBIDDEN = {[*map(str, paths)]!r}\n{READS}"
    seen = seen_by(tmp_path, work, "--hide", str(other.parent))
    accounts = {line for line in seen if line.startswith("account")}
    assert account_of(accounts) in OWN_UIDS
    assert set(seen) - accounts == {
        *("mode 0o710", "sees ewe", "sees ewe.xswitch"),
        *("enters grading", "enters cgi-bin", "enters documents"),
    }


@pytest.mark.needs("root", "a Python for every account")
@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("check", "engines"),
    # An endless script ends the first engine of engine-xswitch.
    [("engine-xswitch", 2), ("engine-answers", 1)],
)
def test_an_engine_leaves_no_file_and_no_process(check: str, engines: int, tmp_path: Path) -> None:
    directories = [each for each in SHARED_DIRECTORIES if os.path.isdir(each) and is_open(each)]
    seen = seen_by(tmp_path, f"DIRECTORIES = {directories!r}\n{LEAVES}", check=check)
    assert len(seen) >= engines
    uid = account_of({*seen})
    left = [
        each.path for name in directories for each in os.scandir(name) if each.name.startswith("ewe-left-")
    ]
    assert [path for path in left if os.stat(path).st_uid == uid] == [] and processes_of(uid) == []


@pytest.mark.starts_processes
def test_an_engine_has_the_limits_of_a_server(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text("import time\ndata = bytearray(9_000_000)\ntime.sleep(600)\n")
    grades = GRADES.replace("sys.exit", "cli.subject.MAX_MEMORY_BYTES = 1 << 20\nsys.exit")
    subprocess.run(
        [*(sys.executable, "-c", grades, sys.executable, "--lab", "engine", "--only", "engine-answers"),
         *("--json", "report.json", *AS_ROOT, "engine.py")],
        cwd=tmp_path, capture_output=True, timeout=170, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    (verdict,) = json.loads((tmp_path / "report.json").read_text())["verdicts"]
    assert "it uses too much: its processes use" in verdict["did"] and "MB of memory" in verdict["did"]


def test_an_answer_without_an_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_xswitch, "MAX_OUTPUT_BYTES", 1 << 20)
    server = object.__new__(XSwitchServer)
    server.scene = cast(EngineScene, Scene(cast(Subject, SimpleNamespace(site=None, workers=1))))
    server.scene.asked = 0

    def flood() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for _ in range(16):
                connection.sendall(b"x" * (1 << 20))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.port = listener.getsockname()[1]
        floods = threading.Thread(target=flood)
        floods.start()
        with pytest.raises(FailedExpectation, match="got more than 1 MB"):
            server.ask("/cgi-bin/probe.py")
        floods.join()


def test_an_answer_that_is_cut_is_no_response(tmp_path: Path) -> None:
    server = object.__new__(XSwitchServer)
    server.scene = cast(EngineScene, Scene(cast(Subject, SimpleNamespace(site=None, workers=1))))
    server.scene.asked = 0
    server.log = tmp_path / "ewe.log"
    server.log.touch()

    def cut() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.port = listener.getsockname()[1]
        cutter = threading.Thread(target=cut)
        cutter.start()
        with pytest.raises(FailedExpectation, match=r"got no response: .*98 more expected"):
            server.ask("/cgi-bin/probe.py")
        cutter.join()


def is_open(directory: str) -> bool:
    return bool(os.stat(directory).st_mode & stat.S_IWOTH)


@pytest.mark.parametrize("account", [None, SubjectAccount("number 61200", 61200, 61200, is_own=True)])
def test_the_engine_and_the_server_share_no_account(
    account: SubjectAccount | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share the group of the grading, which alone may enter its directories."""
    nobody = SubjectAccount("nobody", 65534, 65534)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(engine_xswitch, "named_account", lambda name: nobody)
    monkeypatch.setattr(engine_xswitch, "own_account", lambda: SubjectAccount("61201", 61201, 61201, True))
    accounts = accounts_for(SandboxLimits(account))
    expected = account or nobody
    assert accounts is not None and (accounts.engine.uid, accounts.engine.gid) == (expected.uid, expected.gid)
    assert (accounts.server.uid, accounts.server.gid) == (61201, expected.gid)


def test_without_root_there_is_no_other_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert accounts_for(SandboxLimits()) is None


def test_the_accounts_have_names_for_the_python_of_ewe(monkeypatch: pytest.MonkeyPatch) -> None:
    root = pwd.getpwuid(0)
    # monkeypatch puts the functions of pwd back.
    for name in ("getpwnam", "getpwuid"):
        monkeypatch.setattr(pwd, name, getattr(pwd, name))
    engine, server = SubjectAccount("ewe-engine-7", 7, 9), SubjectAccount("ewe-server-8", 8, 9)
    exec(sitecustomize_text(XSwitchAccounts(engine, server)), {})
    for account in (engine, server):
        entry = pwd.getpwnam(account.name)
        assert (entry, entry.pw_uid, entry.pw_gid) == (pwd.getpwuid(account.uid), account.uid, account.gid)
    assert pwd.getpwuid(0) == pwd.getpwnam(root.pw_name) == root
    with pytest.raises(KeyError):
        pwd.getpwnam("ewe-engine-9")
