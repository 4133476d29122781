"""What the main module asks of suexecme: in turn, within the queue timeout, and never without end."""

from __future__ import annotations

import errno
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.server import wait_until
from support.xswitch_client import PYTHON_HELLO, xswitch

from ewe.logger import ErrorLog
from ewe.xswitch import channel
from ewe.xswitch.engine_kinds import WORK_PLACEHOLDER, EngineKind
from ewe.xswitch.privileged import rules
from ewe.xswitch.privileged import suexecme as suexecme_module
from ewe.xswitch.privileged.preloaded import ANSWER_SECONDS
from ewe.xswitch.privileged.rules import Refusal
from ewe.xswitch.privileged.suexecme import Suexecme
from ewe.xswitch.privileged.work import WorkDirectories
from ewe.xswitch.process import Account, EngineLimits
from ewe.xswitch.settings import Settings
from ewe.xswitch.switch.loop import EventLoop
from ewe.xswitch.switch.orders import MAX_UNANSWERED, SILENT_SECONDS, Orders

pytestmark = pytest.mark.starts_processes

Made = tuple[Orders, socket.socket, list[Any]]


@pytest.fixture
def made() -> Iterator[Made]:
    """Orders, the other end of their socket, and a list for answers."""
    main, suexecme = channel.pair()
    loop = EventLoop(lambda fault: pytest.fail(str(fault)))
    suexecme.settimeout(5)
    with main, suexecme:
        yield Orders(main, Settings(queue_timeout=2.0, max_queue=30), loop), suexecme, []
    loop.close()


def next_order(suexecme: socket.socket) -> dict[str, Any]:
    received = channel.receive(suexecme)
    assert received is not None
    for descriptor in received[1]:
        os.close(descriptor)
    return received[0]


def noted(answers: list[Any], name: str) -> Callable[[dict[str, Any]], None]:
    return lambda answer: answers.append((name, answer.get("status", 200)))


def test_users_take_turns(made: Made) -> None:
    orders, suexecme, answers = made
    for number in range(20):
        orders.ask("alice", {"order": f"alice {number}"}, noted(answers, "alice"))
    orders.ask("bob", {"order": "bob"}, noted(answers, "bob"))
    came = []
    for _ in range(21):
        order = next_order(suexecme)
        came.append(order["order"])
        orders.answered({"id": order["id"]})
    assert came.index("bob") <= MAX_UNANSWERED + 1
    assert [each for each in came if each != "bob"] == [f"alice {number}" for number in range(20)]
    assert len(answers) == 21 and not orders.queues and not orders.in_flight


def test_the_end_of_an_engine_is_ordered_before_all_else(made: Made) -> None:
    orders, suexecme, answers = made
    for number in range(2 * MAX_UNANSWERED):
        orders.ask("alice", {"order": number}, noted(answers, "alice"))
    orders.kill_engine(4711)
    came = [next_order(suexecme) for _ in range(MAX_UNANSWERED + 1)]
    assert came[-1] == {"order": "kill", "pid": 4711}


def test_what_waits_too_long_is_refused_and_closed(made: Made) -> None:
    orders, _, answers = made
    descriptors_to_pass = os.pipe()
    for number in range(MAX_UNANSWERED):
        orders.ask("alice", {"order": number}, noted(answers, "sent"))
    orders.ask("alice", {"order": "last"}, noted(answers, "last"), descriptors_to_pass)
    now = time.monotonic()
    assert orders.tick(now + 1) and answers == []
    assert orders.tick(now + 3) and answers == [("last", 503)]
    for descriptor in descriptors_to_pass:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    assert not orders.tick(now + SILENT_SECONDS + 1)
    orders.refuse_all()
    assert answers == [("last", 503)] + [("sent", 503)] * MAX_UNANSWERED


def test_suexecme_may_wait_for_a_preloaded_parent(made: Made) -> None:
    """After ANSWER_SECONDS suexecme kills a parent that hangs, and starts the engine by its command."""
    orders, _, answers = made
    orders.ask("alice", {"order": "start"}, noted(answers, "alice"))
    assert orders.tick(time.monotonic() + ANSWER_SECONDS + 1)


def test_what_nobody_wants_any_more_is_not_sent(made: Made) -> None:
    orders, suexecme, answers = made
    wanted = [True]
    for number in range(MAX_UNANSWERED):
        orders.ask("alice", {"order": number}, noted(answers, "alice"))
    orders.ask("alice", {"order": "dropped"}, noted(answers, "alice"), is_wanted=lambda: wanted[0])
    orders.ask("alice", {"order": "kept"}, noted(answers, "alice"))
    wanted[0] = False
    came = []
    for _ in range(MAX_UNANSWERED + 1):
        order = next_order(suexecme)
        came.append(order["order"])
        orders.answered({"id": order["id"]})
    assert came == [*range(MAX_UNANSWERED), "kept"] and len(answers) == MAX_UNANSWERED + 1


def test_a_queue_has_an_end(made: Made) -> None:
    orders, _, answers = made
    for number in range(MAX_UNANSWERED + 31):
        orders.ask("alice", {"order": number}, noted(answers, "alice"))
    orders.loop.call_due_timers(time.monotonic())
    assert answers == [("alice", 503)]


def test_an_engine_starts_only_as_the_user_it_was_asked_for() -> None:
    with xswitch() as running:
        script = running.script("hello.py", PYTHON_HELLO)
        suexecme = Suexecme.__new__(Suexecme)
        suexecme.settings = Settings(roots=(str(running.site),))
        suexecme.preloaded = {}
        with pytest.raises(Refusal, match=r"its owner has changed to .* since it was identified"):
            suexecme.start(str(script), 4_000_000, "python", [])


def test_an_engine_that_cannot_be_forked_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM's work directory is made before the fork, and nothing else would remove it."""
    made = []

    def start(command: Sequence[str], *_: Any) -> int:
        made.append(command[-1])
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(suexecme_module, "start", start)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    suexecme = Suexecme.__new__(Suexecme)
    suexecme.settings, suexecme.work_directories = Settings(), WorkDirectories()
    kind = EngineKind("java", command=("java", WORK_PLACEHOLDER), protocol="fastcgi")
    account = Account("me", os.geteuid(), os.getegid(), (), "/")
    with pytest.raises(BlockingIOError):
        suexecme.start_by_command(kind, account, EngineLimits(), "", "", [0, 2])
    assert made[0].startswith(str(tmp_path)) and not os.listdir(suexecme.work_directories.base)


def test_a_directory_that_vanishes_while_a_script_is_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_path(real: str, top: str, owners: set[int]) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    (tmp_path / "x.py").write_text(PYTHON_HELLO)
    monkeypatch.setattr(rules, "check_path", check_path)
    with pytest.raises(Refusal, match="replaced again and again"):
        rules.examine(str(tmp_path / "x.py"), Settings(roots=(str(tmp_path),), script_user="daemon"))


def test_a_fault_of_suexecme_costs_one_order(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its end would be that of all engines. The log has the traceback, and the descriptors are closed."""
    orders, main = channel.pair()
    suexecme = Suexecme.__new__(Suexecme)
    suexecme.to_main, suexecme.settings, suexecme.log = main, Settings(), ErrorLog("-", "info")

    def fail(*_: object) -> int:
        raise RecursionError("too deep")

    monkeypatch.setattr(suexecme, "start", fail)
    monkeypatch.setattr(suexecme, "kill_engine", fail)
    descriptor = os.open(os.devnull, os.O_RDONLY)
    with orders, main:
        order = {"order": "start", "id": 7, "path": "/x.py", "uid": 1, "engine": "python"}
        suexecme.handle_order(order, [descriptor])
        assert channel.receive(orders) == ({"id": 7, "refused": "a fault of suexecme", "status": 500}, [])
        suexecme.handle_order({"order": "kill", "pid": 1}, [])
    with pytest.raises(OSError):
        os.fstat(descriptor)
    assert capfd.readouterr().err.count("RecursionError: too deep") == 2


def test_a_kill_that_the_system_refuses_costs_no_other_engine(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The order has no id, and no answer."""
    orders, main = channel.pair()
    suexecme = Suexecme.__new__(Suexecme)
    suexecme.to_main, suexecme.settings, suexecme.log = main, Settings(), ErrorLog("-", "info")

    def fail(pid: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(suexecme, "kill_engine", fail)
    with orders, main:
        suexecme.handle_order({"order": "kill", "pid": 1}, [])
        orders.setblocking(False)
        with pytest.raises(BlockingIOError):
            channel.receive(orders)
    assert "order 'kill' failed: Operation not permitted" in capfd.readouterr().err


def test_a_path_of_many_parts_holds_suexecme_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user may lay forty links with two thousand directories each: all other users would wait for suexecme."""
    (tmp_path / "d").mkdir()
    (tmp_path / "last.py").write_text(PYTHON_HELLO)
    links = [tmp_path / f"{number}.py" for number in range(rules.MAX_LINKS)]
    for link, target in zip(links, [*links[1:], tmp_path / "last.py"], strict=True):
        link.symlink_to("d/../" * 200 + target.name)
    looks: list[str] = []
    lstat = os.lstat

    def look(path: str) -> os.stat_result:
        looks.append(path)
        return lstat(path)

    monkeypatch.setattr(os, "lstat", look)
    with pytest.raises(Refusal, match="no script: File name too long") as refused:
        rules.examine(str(links[0]), Settings(roots=(str(tmp_path),), script_user="daemon"))
    assert refused.value.status == 404 and len(looks) <= rules.MAX_PARTS
    assert rules.resolve_links(str(links[-1]))[0] == os.path.realpath(tmp_path / "last.py")


def test_a_suexecme_that_hangs_is_replaced() -> None:
    """As on a file system whose server is down: its requests get 503, and the next ones are answered."""
    with xswitch("queue-timeout = '1s'") as running:
        script = running.script("hello.py", PYTHON_HELLO)
        assert running.ask(script).status == 200
        hung = running.members()["suexecme"]
        os.kill(hung, signal.SIGSTOP)
        waits = [running.asking(running.script(f"new-{number}.py", PYTHON_HELLO)) for number in range(8)]
        assert running.ask(script).status == 200  # a script with a running engine is served as before
        assert {wait().status for wait in waits} == {503}
        running.wait_for_log("suexecme does not answer; both processes start again")
        assert running.ask(script).status == 200
        assert running.members()["suexecme"] != hung


def test_a_flood_of_a_refused_script_costs_suexecme_one_look() -> None:
    with xswitch() as running:
        refused = running.script("open.py", PYTHON_HELLO, 0o777)
        stopping = threading.Event()
        asked = [0]

        def flood() -> None:
            with running.connect() as connection:
                while not stopping.is_set():
                    assert connection.ask(refused).status == 403
                    asked[0] += 1

        threads = [threading.Thread(target=flood) for _ in range(40)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: asked[0] > 40, 20)
            suexecme = running.members()["suexecme"]
            ran = switches(suexecme)
            already = asked[0]
            for number in range(10):
                assert running.ask(running.script(f"{number}.py", PYTHON_HELLO)).status == 200
            wait_until(lambda: asked[0] > already + 200, 20)
            assert switches(suexecme) - ran < 200
        finally:
            stopping.set()
            for thread in threads:
                thread.join(20)
        refused.chmod(0o755)
        assert running.ask(refused).status == 200  # and a refusal is not remembered beyond the change


def switches(pid: int) -> int:
    """Return how often a process has waited for something."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches"))
