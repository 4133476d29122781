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
from support.engines import HEAD, PYTHON, isolated
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
    """Its process stops at its end; if it stops before, that is not its end."""
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
    """It says how far the parent's child is. If another process writes into it, the parent waits for ever."""
    code = (
        "import os, python_fork, python_spare as spare\n"
        "spare.memory[0] = spare.DONE\n"
        "_, new = python_fork.start(lambda: (spare.begin(), os.write(python_fork.CONTROL, b'begun')))\n"
        "print(os.read(new, 5), spare.memory[0] == spare.DONE)\n"
    )
    run = [sys.executable, "-c", f"import sys\nsys.path.insert(0, {engines.__path__[0]!r})\n{code}"]
    assert subprocess.run(run, capture_output=True, text=True).stdout == "b'begun' True\n"
