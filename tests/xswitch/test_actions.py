"""Actions on engines: list, restart, drain, log. Each account reaches its own engines, and no request is lost."""

from __future__ import annotations

import io
import json
import os
import pwd
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support.accounts import User
from support.scheduler_bench import Bench, Engine, end_of
from support.server import wait_until
from support.xswitch_client import HEAD, PYTHON_HELLO, XSwitch, xswitch

from ewe.xswitch import commands
from ewe.xswitch.cli import main
from ewe.xswitch.engine_kinds import EngineKind
from ewe.xswitch.settings import Settings
from ewe.xswitch.switch.context import Context
from ewe.xswitch.switch.control import Action, ActionRefused, Control
from ewe.xswitch.switch.recent_lines import MAX_LINE_CHARS, MAX_LINES, MAX_USERS, RecentLines
from ewe.xswitch.user_limits import UserLimits

# The scheduler


def replacing(bench: Bench) -> list[Engine]:
    """Make the scheduler of a bench note the engines that it replaces."""
    replaced: list[Engine] = []
    bench.scheduler.replace = replaced.append  # type: ignore[assignment]
    return replaced


def test_a_busy_engine_that_drains_keeps_its_request_and_gets_no_other() -> None:
    bench = Bench()
    replaced = replacing(bench)
    request = bench.ask("alice")
    engine = request.engine
    assert engine is not None and not bench.scheduler.drain(engine, "restarted")
    other = bench.ask("alice")
    assert other.engine not in (None, engine) and not engine.retired and not replaced
    end_of(request)
    assert engine.retired and replaced == [engine] and request.refused == 0
    end_of(other)
    assert bench.ask("alice").engine is other.engine
    assert bench.scheduler.counters["restarted"] == 1 and not bench.scheduler.draining
    assert bench.scheduler.engines_of_user == {"alice": 1} and bench.scheduler.engines_of_key == {
        ("alice", "python"): 1
    }


def test_an_idle_engine_ends_at_once_and_a_waiting_request_gets_its_place() -> None:
    bench = Bench(max_engines_per_user=1)
    replaced = replacing(bench)
    request = bench.ask("alice")
    engine = request.engine
    assert engine is not None
    end_of(request)
    assert bench.scheduler.drain(engine, "drained") and engine.retired and not replaced
    first = bench.ask("alice")
    assert first.engine is not None
    bench.scheduler.drain(first.engine, "drained")
    bench.scheduler.drain(first.engine, "drained")
    waits = bench.ask("alice")
    assert waits.engine is None  # the draining engine still counts
    end_of(first)
    assert waits.engine is not None and bench.scheduler.counters["drained"] == 2


def test_an_engine_that_dies_while_it_drains_is_replaced_if_that_was_asked() -> None:
    for why, count in (("restarted", 1), ("drained", 0)):
        bench = Bench()
        replaced = replacing(bench)
        request = bench.ask("alice")
        assert request.engine is not None
        bench.scheduler.drain(request.engine, why)
        bench.now = 100
        bench.scheduler.tick(100.0)
        assert request.refused == 504 and len(replaced) == count
        assert not (bench.scheduler.engines or bench.scheduler.engines_of_key or bench.scheduler.draining)
        bench.scheduler.drain(request.engine, why)  # too late: nothing happens
        assert not bench.scheduler.draining


def test_a_language_with_one_engine_for_each_user_starts_the_next_while_the_old_one_drains() -> None:
    """A JVM that answers for minutes must not keep its user's other requests waiting."""
    bench = Bench()
    bench.scheduler.settings = Settings(engines={"python": EngineKind("python", ("x",), per_user=1)})
    request = bench.ask("alice")
    assert request.engine is not None
    waits = bench.ask("alice")
    assert waits.engine is None
    bench.scheduler.drain(request.engine, "restarted")
    assert waits.engine is not None and waits.engine is not request.engine


def test_an_engine_with_room_for_several_requests_gets_none_while_it_drains() -> None:
    bench = Bench()
    kind = EngineKind("java", ("x",), connections=8, protocol="fastcgi", per_user=1)
    bench.scheduler.settings = Settings(engines={"java": kind})
    request = bench.ask("alice", "java")
    assert request.engine is not None
    shared: Any = request.engine
    shared.has_room = lambda: True
    assert bench.scheduler.take_idle(("alice", "java")) is shared
    bench.scheduler.drain(shared, "drained")
    assert bench.scheduler.take_idle(("alice", "java")) is None


# Rights, without processes

MINE = os.getuid()


@contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """Connect as an account: the kernel notes the effective uid of connect(2)."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(MINE)


def control(owner: int = MINE, **settings: Any) -> Control:
    scheduler, given = Bench().scheduler, Settings(**settings)
    scheduler.limits.change_settings(given)
    return Control(Context(given, Mock(), Mock(), scheduler, Mock()), owner)


def asked(given: dict[bytes, bytes], of: Control | None = None) -> Action:
    mine, its = socket.socketpair()
    with mine, its:
        return (of or control()).action_of(its, {b"XSWITCH_ACTION": b"drain", **given})


def test_a_scope_restricts_and_a_parameter_restricts_further() -> None:
    assert asked({}).user == asked({b"XSWITCH_SCOPE": b"all"}).user == ""
    assert asked({b"XSWITCH_SCOPE": b"user:alice"}).user == "alice"
    assert asked({b"XSWITCH_SCOPE": b"all", b"XSWITCH_USER": b"bob"}).user == "bob"
    assert asked({b"XSWITCH_PIDS": b" 7 8"}).pids == {7, 8}
    assert asked({b"XSWITCH_FOR": b"ada"}).by.startswith("ada (by ")


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({b"XSWITCH_ACTION": b""}, "there is no action ''"),
        ({b"XSWITCH_ACTION": b"kill\n"}, "there is no action 'kill\\n'"),
        ({b"XSWITCH_SCOPE": b""}, "neither all nor user:NAME"),
        ({b"XSWITCH_SCOPE": b"user:"}, "neither all nor user:NAME"),
        ({b"XSWITCH_SCOPE": b"ALL"}, "neither all nor user:NAME"),
        ({b"XSWITCH_SCOPE": b"user:alice", b"XSWITCH_USER": b"bob"}, "alice may not act for 'bob'"),
        ({b"XSWITCH_SCOPE": b"user:*", b"XSWITCH_USER": b"bob"}, "* may not act for 'bob'"),
        ({b"XSWITCH_USER": b"a" * 300}, "more than 256 bytes"),
        *(({b"XSWITCH_PIDS": pids}, "expected numbers") for pids in (
            b"0", b"x", b"-1", b" ", b"1 x", b"\xb2", b"9" * 30, b"1 " + b"9" * 30,
            b" ".join(b"%d" % pid for pid in range(1, 1002)),
        )),
    ],
)  # fmt: skip
def test_a_malformed_action_is_refused_in_a_line(given: dict[bytes, bytes], cause: str) -> None:
    with pytest.raises(ActionRefused) as caught:
        asked(given)
    assert cause in str(caught.value) and "\n" not in str(caught.value)


def test_an_account_without_rights_reaches_only_itself_whatever_it_says() -> None:
    stranger = control(owner=MINE + 1)
    with acting_as(MINE or pwd.getpwnam("nobody").pw_uid):  # root reaches everything
        me = asked({}, stranger)
        assert me.user
        for given in (
            {b"XSWITCH_SCOPE": b"all"}, {b"XSWITCH_SCOPE": b"user:bob"}, {b"XSWITCH_USER": b"bob"},
        ):  # fmt: skip
            with pytest.raises(ActionRefused):
                asked(given, stranger)
        assert asked({}, control(owner=MINE + 1, managers=(me.user,))).user == ""


def test_an_action_that_is_restricted_shows_only_its_engines_and_limits() -> None:
    here = control(users={"alice": UserLimits(private=True)})
    engines = [
        {"user": user, "language": language, "pid": 0}  # 0: an engine that is starting
        for user in ("alice", "bob")
        for language in ("php", "python")
    ]
    status = {"engines": engines, "waiting": {"alice": 1, "bob": 2}, "limits": ""}
    found = here.visible_part(status, Action("list", "alice", language="php"))
    assert found["engines"] == engines[:1] and found["waiting"] == {"alice": 1}
    assert {user: limits["private"] for user, limits in found["limits"].items()} == {"alice": True}
    assert here.limits_by_setting("bob")["private"] is False


def test_over_tcp_nobody_can_tell_who_asks() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    over_tcp = pytest.raises(ActionRefused, match="over TCP")
    with listener, socket.create_connection(listener.getsockname()) as peer, over_tcp:
        control().action_of(peer, {b"XSWITCH_ACTION": b"list"})


@pytest.mark.parametrize("text", ["", "File not found.", "404", "[]"])
def test_the_answer_of_another_server_is_a_line(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "ask_status_page", lambda address, params: text)
    assert main(["log", "--listen", "unix:/x"]) == 1
    assert capsys.readouterr().err == "ewe-xswitch: unix:/x: it is no X-Switch of this version\n"


def test_recent_lines_are_bounded() -> None:
    lines = RecentLines()
    lines.add("", "of nobody")
    for number in range(MAX_LINES + 5):
        lines.add("alice", f"{number} " + "x" * 1000)
    found = lines.lines_of("alice")
    assert len(found) == MAX_LINES and found[0][2].startswith("5 ")
    assert all(len(line) == MAX_LINE_CHARS and user == "alice" for _, user, line in found)
    for number in range(MAX_USERS):
        lines.add(f"user-{number}", "x")
    assert lines.lines_of("alice") == [] and len(lines.of_user) == MAX_USERS
    assert [user for _, user, _ in lines.lines_of("")] == [f"user-{number}" for number in range(100, 200)]


# With accounts

WAITS = f"""import os, time
stop = os.environ["QUERY_STRING"]
while stop and not os.path.exists(stop): time.sleep(0.01)
print("{HEAD}\\n", os.getpid())
"""


@pytest.fixture(scope="module")
def running(users: tuple[User, User]) -> Iterator[XSwitch]:
    """An X-Switch with a socket that is open to every account."""
    with tempfile.TemporaryDirectory(prefix="test-actions-") as directory:
        os.chmod(directory, 0o755)
        with xswitch(
            "socket-mode = '0666'\ntime-limit = '20s'\n", listen=f"unix:{directory}/x.sock"
        ) as started:
            yield started


def pids_of(running: XSwitch, user: User) -> list[int]:
    return [each["pid"] for each in running.engines() if each["user"] == user.name]


Run = Callable[..., tuple[int, str]]


class Terminal(io.StringIO):
    """Standard input of a person."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(running: XSwitch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `ewe-xswitch`; return its exit status, and what it says."""

    def command(*arguments: str) -> tuple[int, str]:
        status = main([*arguments, "--listen", running.address])
        said = capsys.readouterr()
        return status, said.out + said.err

    return command


@pytest.mark.starts_processes
def test_alice_reaches_her_engines_and_root_all(running: XSwitch, users: tuple[User, User], run: Run) -> None:
    alice, bob = users
    for user in users:
        assert running.ask(user.write("hello.py", PYTHON_HELLO)).status == 200
    [of_bob] = pids_of(running, bob)
    with acting_as(alice.uid):
        for arguments in ((str(of_bob),), ("--user", bob.name), ("--user", "root")):
            for name in ("restart", "drain"):
                status, said = run(name, *arguments)
                assert status == 1 and ("no such engine" in said or "may not act for" in said)
        assert run("limits", "--user", bob.name)[0] == run("log", "--user", bob.name)[0] == 1
        status, said = run("limits")
        assert status == 0 and f"{alice.name}  private     no\n" in said and bob.name not in said
        params = {"SCRIPT_NAME": "/xswitch-status", "XSWITCH_ACTION": "list"}
        for scope in ("all", f"user:{bob.name}", "user:root"):
            assert "error" in json.loads(running.ask("", **params, XSWITCH_SCOPE=scope).body)
        shown = json.loads(running.ask("", **params).body)
        assert {each["user"] for each in shown["engines"]} == {alice.name} and "counters" not in shown
        [mine] = pids_of(running, alice)
        status, said = run("status")
        assert status == 0 and f"{alice.name}  python" in said and bob.name not in said
        assert run("restart", "--all") == (0, f"restarted {mine}\n")
    wait_until(lambda: pids_of(running, alice) not in ([], [mine]), 20, running.log)
    assert pids_of(running, bob) == [of_bob]
    running.wait_for_log(f"restart of {alice.name}'s python engine {mine}: {alice.name}")
    assert run("drain", "--user", bob.name, "--language", "perl") == (0, "no such engine\n")
    assert run("drain", str(of_bob), str(mine)) == (
        1, f"ended {of_bob}\newe-xswitch: {mine}: no such engine, or not one of this account's\n",
    )  # fmt: skip
    assert pids_of(running, bob) == []


@pytest.mark.starts_processes
def test_a_restart_loses_no_request(
    running: XSwitch, users: tuple[User, User], run: Run, tmp_path: Path
) -> None:
    """The old engine ends after its request, although that is a POST, and a new one is there."""
    alice, _ = users
    script = alice.write("waits.py", WAITS)
    stop = alice.home / "stop"
    run("drain", "--all")
    waits = running.asking(script, QUERY_STRING=str(stop), REQUEST_METHOD="POST")
    wait_until(lambda: [each["state"] for each in running.engines()] == ["busy"], 20)
    [old] = pids_of(running, alice)
    assert run("restart", str(old)) == (0, f"{old} runs a request: it is restarted after it\n")
    assert "busy, then restarted" in run("status")[1]
    other = running.ask(script).text.split()
    assert other != [str(old)]
    alice.write("../stop", "")
    reply = waits()
    assert (reply.status, reply.text.split()) == (200, [str(old)]), running.log()
    wait_until(
        lambda: len(pids_of(running, alice)) == 2 and old not in pids_of(running, alice), 20, running.log
    )
    stop.unlink()


@pytest.mark.starts_processes
def test_requests_go_on_while_all_engines_are_restarted_and_drained(
    running: XSwitch, users: tuple[User, User], run: Run
) -> None:
    scripts = [user.write("waits.py", WAITS) for user in users]
    wrong: list[object] = []

    def ask(script: Path) -> None:
        with running.connect() as connection:
            for _ in range(40):
                reply = connection.ask(script, b"x", QUERY_STRING="")
                if reply.status != 200:
                    wrong.append(reply)

    threads = [threading.Thread(target=ask, args=(script,)) for script in scripts * 2]
    for thread in threads:
        thread.start()
    actions = 0
    while any(thread.is_alive() for thread in threads):
        assert run(("restart", "drain")[actions % 2], "--all")[0] == 0
        actions += 1
    assert not wrong and actions > 2, running.log()
    counters = running.status()["counters"]
    assert counters["restarted"] > 1 and counters["drained"] > 1 and "retried" not in counters


@pytest.mark.starts_processes
def test_a_hostile_name_is_one_line(running: XSwitch, users: tuple[User, User], run: Run) -> None:
    alice, _ = users
    script = alice.write("a\x1b[31m\nb.py", f"import sys\nsys.stderr.write('\\x1b[2J\\n')\n{PYTHON_HELLO}")
    assert running.ask(script).status == 200
    said = run("status")[1] + run("log", "--user", alice.name)[1]
    assert "\x1b" not in said and "\\x1b[31m\\nb.py" in said


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("requests", 1 << 20, "1048576"),
        ("memory", 200 << 20, "200m"),
        ("memory", 3 << 40, "3145728m"),
        ("file-size", 1 << 20, "1m for each file"),
        ("time-limit", 0.5, "0.5 s"),
        ("private", False, "no"),
        ("cpu-share", None, "no limit"),
    ],
)
def test_a_limit_is_shown_with_all_its_digits(name: str, value: float | None, shown: str) -> None:
    assert commands.limit_text(name, value) == shown


def test_the_question_before_an_end_counts_the_chosen_engines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --all and a pid, only the engine of the pid ends."""
    choices = []

    def list_engines(address: str, action: bytes, choice: dict[bytes, str]) -> dict[str, Any]:
        choices.append(choice[b"XSWITCH_PIDS"])
        return {"engines": [{"user": "alice", "language": "php", "pid": 7}]}

    monkeypatch.setattr(commands, "ask_action", list_engines)
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    options = commands.parser_of("drain").parse_args(["--all", "7"])
    assert not commands.is_confirmed("drain", "unix:none", options)
    assert choices == ["7"]
    assert "(engines: 1, users: 1). Sure?" in capsys.readouterr().out


@pytest.mark.starts_processes
def test_the_commands_without_an_engine_or_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, status, said in (
        (["restart", "--listen", "unix:none"], 2, "which engines? ewe-xswitch restart PID, --user NAME"),
        (["drain", "0", "--listen", "unix:none"], 2, "a PID is a number from 1"),
        (["drain", "x", "--listen", "unix:none"], 2, "invalid int value"),
        (["drain", "1"], 2, "name the address of X-Switch"),
        (["log", "--listen", "unix:none"], 1, "unix:none: No such file or directory"),
    ):
        assert main(arguments) == status
        text = capsys.readouterr().err
        assert said in text and text.count("\n") == 1, text
    with xswitch("") as behind:
        assert main(["drain", "--all", "--listen", behind.address]) == 1
        assert "over TCP X-Switch cannot tell who asks" in capsys.readouterr().err


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("words", "answer", "ends"),
    [((), "y\n", True), ((), "n\n", False), ((), "", False), (("--yes",), "n\n", True)],
)
def test_all_in_a_terminal_is_asked_about(
    running: XSwitch, users: tuple[User, User], run: Run, monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...], answer: str, ends: bool,
) -> None:  # fmt: skip
    alice, _ = users
    assert running.ask(alice.write("hello.py", PYTHON_HELLO)).status == 200
    count = len(running.engines())
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    status, said = run("drain", "--all", *words)
    assert (f"drain all of them (engines: {count}, " in said) == (not words)
    assert (status, "nothing is done" in said) == ((0, False) if ends else (1, True))
    assert (running.engines() == []) == ends
