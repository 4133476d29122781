"""The child that a Python engine forks before its request comes: python_spare.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engines import HEAD, PYTHON, PatientDriver, isolated
from support.proc import children_of, state
from support.server import wait_until

from ewe.xswitch import engines
from ewe.xswitch.tools.driver import Driver

pytestmark = pytest.mark.starts_processes

WHO = f"import os\nprint({HEAD!r}, os.getpid())\n"


@pytest.fixture
def engine() -> Iterator[Driver]:
    with Driver(PYTHON, isolated("fork")) as driver:
        yield driver


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "run.py"
    path.write_text(WHO)
    return path


def printed_by(code: str) -> str:
    """Return the output of Python code that may import the modules of the engine."""
    run = [sys.executable, "-c", f"import sys\nsys.path.insert(0, {engines.__path__[0]!r})\n{code}"]
    return subprocess.run(run, capture_output=True, text=True).stdout


def spare_of(engine: Driver) -> int:
    """Wait until an engine has no child but one that waits for a request; return its pid."""
    found: list[int] = []

    def waits() -> bool:
        found[:] = children_of(engine.pid)
        found[:] = [pid for pid in found if state(pid) != "Z"]
        return [state(pid) for pid in found] == ["S"]

    wait_until(waits, 20)
    return found[0]


def ask(engine: Driver, script: Path, **variables: str) -> str:
    answer = engine.ask(str(script), environment=variables, seconds=30)
    assert answer.status == 0, answer
    return answer.output.decode().partition(HEAD)[2].strip()


def test_the_spare_runs_the_next_script_and_sees_all_as_it_is(engine: Driver, script: Path) -> None:
    """An edit of the script itself counts as well; the engine then learns, in a child that it forks for that."""
    own = script.with_name("own.py")
    own.write_text("")
    script.write_text(
        f"{WHO}import own\nprint(os.environ['PART'], own.said, sorted(os.listdir('/proc/self/fd')))\n"
    )
    for number in range(5):
        own.write_text(f"said = {number}\n")
        part = "x" * (10 if number % 2 else 150_000)  # more than a pipe holds
        spare = spare_of(engine) if number else 0
        pid, *said = ask(engine, script, PART=part).split(maxsplit=3)
        # the last is the descriptor of the listing itself
        assert said == [part, str(number), "['0', '1', '2', '3']"]
        assert pid == str(spare) or not number
    script.write_text(f"{WHO}print('edited')\n")
    assert ask(engine, script).endswith("edited")


def test_a_spare_that_has_ended_costs_no_answer(engine: Driver, script: Path) -> None:
    for _ in range(3):
        ask(engine, script)
        spare = spare_of(engine)
        os.kill(spare, signal.SIGKILL)
        wait_until(lambda pid=spare: state(pid) == "Z", 10)
        assert ask(engine, script) != str(spare)


def test_a_script_that_stops_itself_goes_on(engine: Driver, script: Path) -> None:
    """The process stops itself when the script has ended. A stop by the script itself does not count as the end."""
    script.write_text(f"{WHO}if 'STOP' in os.environ: os.kill(os.getpid(), 19)\nprint('whole')\n")
    ask(engine, script)
    spare = spare_of(engine)

    def wake() -> None:
        wait_until(lambda: state(spare) == "T", 10)
        os.kill(spare, signal.SIGCONT)

    waker = threading.Thread(target=wake)
    waker.start()
    assert ask(engine, script, STOP="1").split() == [str(spare), "whole"]
    waker.join()


def test_what_a_script_holds_is_free_when_it_is_answered(engine: Driver, script: Path) -> None:
    script.write_text(
        f"import fcntl, os\nfile = open({str(script)!r})\nfcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        f"print({HEAD!r}, 'locked', flush=True)\nkept = [file]\nkept.append(kept)\nos.stat = os.kill = None\n"
    )
    for _ in range(30):
        assert ask(engine, script) == "locked"


def test_an_engine_ends_with_its_spare(engine: Driver, script: Path) -> None:
    ask(engine, script)
    spare = spare_of(engine)
    os.kill(engine.pid, signal.SIGKILL)
    wait_until(lambda: state(spare) in ("", "Z"), 10)


def test_a_process_that_forks_and_is_forked_writes_nothing_into_its_parents_memory() -> None:
    """That memory holds the state of the parent's child. If another process writes it, the parent waits forever."""
    code = (
        "import os, python_fork, python_spare as spare\n"
        "spare.progress_memory[spare.PROGRESS] = spare.DONE\n"
        "begin = lambda: (spare.begin_child(), os.write(python_fork.CONTROL_DESCRIPTOR, b'begun'))\n"
        "_, new = python_fork.start_server_process(begin)\n"
        "print(os.read(new, 5), spare.progress_memory[spare.PROGRESS] == spare.DONE)\n"
    )
    assert printed_by(code) == "b'begun' True\n"


def test_a_zygote_that_cannot_be_forked_ends_no_engine() -> None:
    """As at the user's limit of processes. The request is answered already, and no descriptor stays open."""
    code = (
        "import os, types, python_fork\n"
        "profile = types.SimpleNamespace(zygote_pid=0, zygote_socket=0)\n"
        "def full(): raise BlockingIOError(11, 'full')\n"
        "os.fork, used = full, os.listdir('/proc/self/fd')\n"
        "python_fork.start_zygote(profile, None)\n"
        "print(profile.zygote_pid, os.listdir('/proc/self/fd') == used)\n"
    )
    assert printed_by(code) == "0 True\n"


def test_a_zygote_that_is_reaped_among_leftover_processes_is_forgotten() -> None:
    """Its profile has no zygote from then on, and the socket to it is closed: a child answers the next request."""
    code = (
        "import os, python_fork, python_preload as preload\n"
        "profile = preload.profiles['script'] = preload.ImportProfile(preload.__file__)\n"
        "used = os.listdir('/proc/self/fd')\n"
        "profile.zygote_pid, profile.zygote_socket = python_fork.start_server_process(lambda: None)\n"
        "os.waitid(os.P_PID, profile.zygote_pid, os.WEXITED | os.WNOWAIT)\n"
        "print(python_fork.script_processes_have_ended(), preload.zygote_pids())\n"
        "print(os.listdir('/proc/self/fd') == used)\n"
    )
    assert printed_by(code) == "True []\nTrue\n"


def test_a_request_that_a_reaped_process_has_not_taken_may_go_to_another() -> None:
    code = (
        "import os, python_fork\n"
        "reader, writer = os.pipe()\n"
        "os.close(reader)\n"
        "print(python_fork.ask_process(writer, b'lines', 1 << 22))\n"  # a pid that no child has
    )
    assert printed_by(code) == "None\n"


@pytest.mark.parametrize("isolation", ["auto", "fork"])
@pytest.mark.parametrize("fault", ["no process", "no file"])
def test_a_fault_of_the_process_that_forks_leaves_no_body_behind(
    tmp_path: Path, isolation: str, fault: str
) -> None:
    """At the limit of processes, or if the script is gone. Each answer is whole or none; no body is mixed up."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nfork = os.fork\n"
        "def fork_below_the_limit():\n"
        f"    if os.path.exists('{tmp_path}/full'): raise BlockingIOError(11, 'full')\n"
        "    return fork()\nos.fork = fork_below_the_limit\n"
    )
    script, other = tmp_path / "echo.py", tmp_path / "other.py"
    for each in (script, other):
        each.write_text(f"import logging, os, sys\nprint({HEAD!r}, os.getppid())\nprint(sys.stdin.read())\n")
    environment = {**isolated(isolation), "PYTHONPATH": str(tmp_path)}
    with PatientDriver(PYTHON, environment) as engine:
        first = ask(engine, script)
        wait_until(lambda: ask(engine, script) != first, 30)  # until the script has a zygote
        (tmp_path / "full").touch() if fault == "no process" else script.unlink()
        try:
            for number in range(2):
                body = f"left {number}"
                answer = engine.ask(str(script), body=body.encode())
                assert answer.output == b"" or answer.output.endswith(f"\n{body}\n".encode())
                if answer.status is None:
                    return
            (tmp_path / "full").unlink(missing_ok=True)
            answer = engine.ask(str(other), body=b"mine")
        except ConnectionError:
            return  # the engine has ended
        assert answer.output.endswith(b"\nmine\n"), answer


def test_a_directory_that_is_gone_costs_no_engine(engine: Driver, script: Path) -> None:
    """Without a body, nothing can be left for the next script. The error names the directory."""
    ask(engine, script)
    for _ in range(2):
        answer = engine.ask(str(script.parent / "gone" / "x.py"), seconds=30)
        assert (answer.output, answer.status) == (b"", 1) and b"No such file" in answer.errors
        assert b"/gone'" in answer.errors
    ask(engine, script)


def test_at_most_four_scripts_have_a_zygote() -> None:
    """A fifth script gets one only when another zygote had no request for a while: that zygote ends."""
    code = (
        "import os, python_preload as preload\n"
        "def profile(name):\n"
        "    made = preload.profiles[name] = preload.ImportProfile(preload.__file__)\n"
        "    made.recorded_modules, made.read_variables = [('json', '', (), 0)], {}\n"
        "    return made\n"
        "for number in range(4):\n"
        "    made = profile(str(number))\n"
        "    made.zygote_pid, made.zygote_socket = 1 << 22, os.dup(0)\n"  # a pid that no child has
        "fifth = profile('fifth')\n"
        "print(preload.profile_needing_zygote('fifth'))\n"
        "preload.profiles['0'].used_at -= preload.IDLE_SECONDS\n"
        "print(preload.profile_needing_zygote('fifth') is fifth, len(preload.zygote_pids()))\n"
    )
    assert printed_by(code) == "None\nTrue 3\n"
