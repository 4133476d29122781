"""Kill -9 anything under load: clear statuses, nothing hangs, nothing is left, service is back in a second."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.proc import alive, command_line, descendants, look
from support.server import wait_until
from support.xswitch_client import HEAD, Connection, XSwitch, xswitch

from ewe.child_processes import exit_status
from ewe.gateway import orphans
from ewe.xswitch import supervisor
from ewe.xswitch.privileged import leftovers
from ewe.xswitch.privileged.cgroups import UserCgroups
from ewe.xswitch.privileged.drop_ins import DropIns
from ewe.xswitch.privileged.suexecme import Suexecme
from ewe.xswitch.process import Account
from ewe.xswitch.settings import Settings
from ewe.xswitch.supervisor import Supervisor

pytestmark = pytest.mark.starts_processes
LIBC = ctypes.CDLL(None)

WORK_PLACEHOLDER = f"""import time
time.sleep(0.01)
print("{HEAD}\\nhello")
"""


class Load:
    """Some clients that ask all the time. outcomes: how often each status came; 0 for a connection that broke.

    cut_off: how many of these had an answer that had begun.
    """

    def __init__(self, running: XSwitch, script: str, clients: int = 6) -> None:
        self.outcomes: Counter[int] = Counter()
        self.cut_off = 0
        self.slowest = 0.0
        self.stopping = False
        self.threads = [threading.Thread(target=self.ask, args=(running, script)) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def ask(self, running: XSwitch, script: str) -> None:
        while not self.stopping:
            began = time.monotonic()
            try:
                with Connection(running.address, timeout=30) as connection:
                    reply = connection.ask(script)
                status = reply.status
                self.cut_off += status == 0 and bool(reply.fields)
            except TimeoutError:
                status = -1
            except OSError:
                status = 0
            self.outcomes[status] += 1
            self.slowest = max(self.slowest, time.monotonic() - began)

    def end(self) -> None:
        self.stopping = True
        for thread in self.threads:
            thread.join(40)
            assert not thread.is_alive()


def kill_engine(running: XSwitch) -> int:
    return int(next(each["pid"] for each in running.engines()))


def has_answered(load: Load, count: int) -> bool:
    return load.outcomes[200] > count


def has_ended(pids: set[int]) -> bool:
    return not alive(pids)


VICTIMS: dict[str, Callable[[XSwitch], int]] = {
    "engine": kill_engine,
    "main": lambda running: running.members()["main"],
    "suexecme": lambda running: running.members()["suexecme"],
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_kill_under_load(victim: str) -> None:
    with xswitch("max-engines-per-user = 4\nqueue-timeout = '20s'") as running:
        script = str(running.script("work.py", WORK_PLACEHOLDER))
        load = Load(running, script)
        wait_until(lambda: load.outcomes[200] > 50, 20)
        for _ in range(3):
            before = descendants(running.process.pid)
            pid = VICTIMS[victim](running)
            os.kill(pid, signal.SIGKILL)
            good = load.outcomes[200]
            wait_until(partial(has_answered, load, good + 20), 20, running.log)
            if victim != "engine":
                wait_until(partial(has_ended, before - {running.process.pid}), 20, f"left of {before}")
        load.end()
        assert load.outcomes.keys() <= {200, 502, 503, 0}, load.outcomes
        assert load.outcomes[200] > 100 and load.slowest < 25
        if victim == "engine":
            # A killed request is tried once more, but for one whose answer was on its way, without its mark.
            assert load.outcomes.keys() <= {200, 0}, load.outcomes
            assert load.outcomes[0] == load.cut_off <= 3, load.outcomes


@pytest.mark.parametrize("victim", ["main", "suexecme"])
def test_service_is_back_as_soon_as_it_was_there_first(victim: str) -> None:
    """Within a second where nothing else runs; what a busy machine adds, the first start tells."""
    began = time.monotonic()
    with xswitch() as running:
        script = running.script("work.py", WORK_PLACEHOLDER)
        assert running.ask(script).status == 200
        first = time.monotonic() - began
        again = []
        for _ in range(3):  # another process may delay one of them; a fault delays all
            os.kill(running.members()[victim], signal.SIGKILL)
            began = time.monotonic()
            wait_until(partial(is_answered, running, script), 20, running.log)
            again.append(time.monotonic() - began)
        assert min(again) < 1 + 2 * first, (again, first)
        running.wait_for_log("starting both again")


def is_answered(running: XSwitch, script: Path) -> bool:
    try:
        return running.ask(script).status == 200
    except OSError:
        return False


def test_a_kill_of_all_three_processes_leaves_no_engine() -> None:
    with xswitch() as running:
        for name in ("a", "b"):
            running.ask(running.script(f"{name}.py", WORK_PLACEHOLDER))
        spin = running.script("spin.py", f"print('{HEAD}', flush=True)\nwhile True: pass")
        wait = running.asking(spin)
        wait_until(lambda: any(each["state"] == "busy" for each in running.engines()), 20)
        family = descendants(running.process.pid)
        os.kill(running.process.pid, signal.SIGKILL)
        running.process.wait()
        wait_until(lambda: not alive(family), 20, lambda: f"left: {alive(family)}")
        assert wait().status == 0


def test_a_main_module_that_cannot_live_ends_all() -> None:
    with xswitch() as running:
        for _ in range(12):
            if running.process.poll() is not None:
                break
            try:
                os.kill(running.members()["main"], signal.SIGKILL)
            except (IndexError, OSError):
                pass
            time.sleep(0.3)
        assert running.process.wait(60) == 1
        running.wait_for_log("X-Switch stops")


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    """A supervisor for which the machine has no more processes; its methods are not those of a real one."""
    monkeypatch.setattr(supervisor, "RETRY_S", 0)
    monkeypatch.setattr(supervisor, "become_subreaper", Mock())
    for name in ("pthread_sigmask", "signal"):
        monkeypatch.setattr(signal, name, Mock())
    made = Supervisor.__new__(Supervisor)
    made.parent, made.log, made.settings = 0, Mock(), Settings(cgroup="off")
    made.end_children = made.close = made.announce_start = Mock()  # type: ignore[method-assign]
    made.wait_for_end = Mock(return_value=True)  # type: ignore[method-assign]
    return made


def test_a_machine_without_processes_does_not_end_the_supervisor(waiting: Supervisor) -> None:
    """Once there are some again, X-Switch serves, and its service manager learns that."""
    failures = [BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))] * 2 * supervisor.MAX_FAILURES
    waiting.start_children = Mock(side_effect=[*failures, None])  # type: ignore[method-assign]
    waiting.announce_start = announced = Mock()  # type: ignore[method-assign]
    assert waiting.run() == 0
    announced.assert_called_once_with()


def test_a_supervisor_that_waits_for_resources_stops_when_it_is_told(
    waiting: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting.start_children = Mock(side_effect=OSError(errno.EMFILE, ""))  # type: ignore[method-assign]
    monkeypatch.setattr(signal, "sigtimedwait", Mock(side_effect=[None, Mock(si_signo=signal.SIGTERM)]))
    assert waiting.run() == 0


# Starts a command with the end of children ignored, as some daemons do: the kernel would then reap them itself.
IGNORING = """import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_start_by_a_process_that_ignores_the_end_of_its_children() -> None:
    with xswitch(prefix=("/usr/bin/python3", "-c", IGNORING)) as running:
        assert running.ask(running.script("a.py", WORK_PLACEHOLDER)).status == 200
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0, running.log()


def test_a_killed_parent_leaves_nothing() -> None:
    """suexecme tidies up: engines, what a script has left behind, and copies of the engines' programs."""
    leaves = "import os, time\nif os.fork() == 0: os.setsid(); time.sleep(60)\n"
    with xswitch(copy_mode=0o700) as running:
        waits = running.asking(
            running.script("leaves.py", f"{leaves}print('{HEAD}\\n', flush=True)\ntime.sleep(60)")
        )
        wait_until(lambda: len(descendants(running.process.pid)) >= 6, 20, running.log)
        members = descendants(running.process.pid)
        commands = "".join(map(command_line, members))
        copies = {Path(name) for name in re.findall(r"/[^\0]*/xswitch-engines-[^/\0]+", commands)}
        os.kill(running.process.pid, signal.SIGKILL)
        assert waits().status == 0
        wait_until(partial(has_ended, members), 20, lambda: f"left: {alive(members)} of {members}")
        if os.geteuid() == 0:
            assert copies
            wait_until(lambda: not any(copy.exists() for copy in copies), 20, f"left of {copies}")


def test_an_engine_that_does_not_lead_a_session_yet_is_killed() -> None:
    """Between fork() and setsid() it has no process group. A pid that is not of our child is left alone."""
    suexecme = Suexecme.__new__(Suexecme)
    suexecme.killed_pids, suexecme.leftovers = set(), Mock()
    # The shell's child stands for a foreign process: it leads no group, and is not our child.
    shell = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE)
    assert shell.stdout is not None
    with shell.stdout:
        foreign = int(shell.stdout.readline())
    account = Account("me", os.geteuid(), os.getegid(), (), "/")
    suexecme.engines = {shell.pid: account, foreign: account}
    try:
        for pid in (foreign, shell.pid):
            suexecme.kill_engine(pid)
        assert shell.wait(20) == -signal.SIGKILL
        assert alive({foreign})
    finally:
        os.kill(foreign, signal.SIGKILL)


def test_a_thread_that_ends_hides_no_children_of_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program ends its threads while suexecme looks for its children: its other children must not get away."""
    listdir = os.listdir
    child = subprocess.Popen(["sleep", "60"])
    try:
        with monkeypatch.context() as patched:
            # No thread has this number
            patched.setattr(os, "listdir", lambda path: ["1073741824", *listdir(path)])
            children = leftovers.children_of(os.getpid())
    finally:
        child.kill()
        child.wait(20)
    assert child.pid in children and not leftovers.children_of(child.pid)


def traced_child() -> int:
    """Return a child that has made this process its tracer, and stops: its parent's waitpid() tells of it."""
    pid = os.fork()
    if pid == 0:
        LIBC.ptrace(0, 0, None, None)  # PTRACE_TRACEME
        os.kill(os.getpid(), signal.SIGUSR2)
        os._exit(0)
    wait_until(lambda: look(pid).state in "tT", 20)
    return pid


def test_an_engine_that_is_traced_ends_no_other() -> None:
    """A script can have suexecme trace it. A stop is not its end, and it would wait for suexecme."""
    suexecme = Suexecme.__new__(Suexecme)
    suexecme.killed_pids, suexecme.self_ended, suexecme.preloaded = set(), {}, {}
    suexecme.work_directories, suexecme.leftovers, suexecme.log = Mock(), Mock(), Mock()
    suexecme.cgroups, suexecme.namespaces, suexecme.oom_kills = UserCgroups(), Mock(), {}
    suexecme.drop_ins = DropIns()
    told: list[dict[str, object]] = []
    suexecme.send_to_main = told.append  # type: ignore[assignment, method-assign]
    pid = traced_child()
    suexecme.engines = {pid: Account("me", os.geteuid(), os.getegid(), (), "/")}
    wait_until(lambda: suexecme.reap() is not None and bool(told), 20)
    assert told == [{"ended": pid, "status": -signal.SIGKILL, "cause": ""}]


def test_the_processes_of_the_server_are_not_stopped_by_a_trace() -> None:
    pid = traced_child()
    ended: list[tuple[int, int]] = []
    wait_until(lambda: not ended.extend(orphans.reap({pid})) and bool(ended), 20)
    assert [(found, os.waitstatus_to_exitcode(status)) for found, status in ended] == [(pid, -signal.SIGKILL)]
    assert exit_status(traced_child()) == -signal.SIGKILL


@pytest.mark.parametrize("victim", ["main", "suexecme"])
def test_settings_that_were_read_anew_stay(victim: str) -> None:
    """A new process in the place of a killed one has the new settings, also with a thousand directories."""
    many = "[directories]\n" + "".join(
        f'"/home/student-{number}/public_html/cgi-bin/exercises-of-a-week" = "perl"\n'
        for number in range(1000)
    )
    with xswitch("time-limit = '60s'") as running:
        script = running.script("slow.py", f"import time\ntime.sleep(3)\nprint('{HEAD}')\n")
        members = running.members()
        config = running.directory / "xswitch.toml"
        config.write_text(f'time-limit = "0.5s"\nuser = "daemon"\nroots = ["{running.site}"]\n{many}')
        running.process.send_signal(signal.SIGHUP)
        running.wait_for_log("the settings were read again")
        running.wait_for_log("user: a change needs a restart")
        wait_until(lambda: running.ask(script).status == 504, 20)
        assert running.members() == members
        os.kill(members[victim], signal.SIGKILL)
        running.wait_for_log("has ended; starting both again")
        assert running.ask(script).status == 504
