"""Priming by history: the profile of use, its file, and engines that are there before the visitors come."""

from __future__ import annotations

import json
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.accounts import two_users
from support.scheduler_bench import Bench, Engine, end_of
from support.server import wait_until
from support.xswitch_client import PYTHON_HELLO, xswitch

from ewe.xswitch.switch.primer import MAX_FILE_BYTES, Primer
from ewe.xswitch.switch.resources import MachineReading
from ewe.xswitch.switch.use_profile import (
    MAX_KEYS,
    MAX_SCRIPT_CHARS,
    MAX_SCRIPTS,
    SLOT_SECONDS,
    SLOTS,
    Damaged,
    Key,
    UseProfile,
    from_values,
)
from ewe.xswitch.user_limits import UserLimits

ALICE: Key = ("alice", "python")
DAY = SLOTS * SLOT_SECONDS
NINE = 9 * 3600.0


# The profile


def test_a_habit_is_known_after_a_day_and_forgotten_after_three_without_use() -> None:
    profile = UseProfile()
    profile.note_request(ALICE, "/a.py", 1)
    profile.note_request(ALICE, "/a.py", 3)
    profile.end_slot(36)
    assert [profile.expected_engines(ALICE, (slot,)) for slot in (35, 36, 37)] == [0, 3, 0]
    assert (
        profile.expected_engines(ALICE, (35, 36)) == 3
        and profile.expected_engines(("bob", "python"), (36,)) == 0
    )
    found = []
    for _ in range(12):
        profile.end_slot(36)
        found.append(profile.expected_engines(ALICE, (36,)))
    assert found[:6] == [2, 2, 1, 1, 1, 1] and found[-1] == 0 and not profile.keys
    once = UseProfile()
    once.note_request(ALICE, "/a.py", 1)
    wanted = []
    for _ in range(4):
        once.end_slot(0)
        wanted.append(once.expected_engines(ALICE, (0,)))
    assert wanted == [1, 1, 1, 0]  # its day, a weekend, and then no more


def test_a_profile_is_bounded_and_comes_back_from_its_stored_form() -> None:
    profile = UseProfile()
    for number in range(MAX_KEYS + 5):
        for script in range(MAX_SCRIPTS + 3):
            profile.note_request((f"user-{number}", "perl"), f"/{script}.pl", number + 1)
        profile.end_slot(number % SLOTS)
    assert len(profile.keys) == MAX_KEYS
    assert profile.keys["user-9", "perl"].scripts == ["/6.pl", "/5.pl", "/4.pl", "/3.pl"]
    values = json.loads(json.dumps(profile.as_values()))
    assert from_values(values).as_values() == values
    assert len(json.dumps(values)) < 1 << 20
    profile.drop_script(("user-9", "perl"), "/6.pl")
    assert profile.keys["user-9", "perl"].scripts == ["/5.pl", "/4.pl", "/3.pl"]
    for script in ("/5.pl", "/4.pl", "/3.pl", "/no.pl"):
        profile.drop_script(("user-9", "perl"), script)
    assert ("user-9", "perl") not in profile.keys


def test_the_largest_profile_can_be_read_again() -> None:
    """The longest paths, of bytes that JSON writes as six characters each, fit into the file."""
    profile = UseProfile()
    for number in range(MAX_KEYS):
        key = f"user-{number}", "python"
        for script in range(MAX_SCRIPTS):
            profile.note_request(key, f"/{script}" + "\udcff" * (MAX_SCRIPT_CHARS - 2), 999)
        profile.note_request(key, "/" + "a" * MAX_SCRIPT_CHARS, 999)
        profile.keys[key].peaks = dict.fromkeys(range(SLOTS), 333.333)
    text = json.dumps(profile.as_values())
    assert len(text) < MAX_FILE_BYTES
    found = from_values(json.loads(text))
    assert len(found.keys) == MAX_KEYS
    assert {script[:2] for script in found.keys["user-7", "python"].scripts} == {"/0", "/1", "/2", "/3"}


ROW = {"user": "alice", "language": "python", "scripts": ["/a.py"], "peaks": {"36": 1.0}}


@pytest.mark.parametrize(
    "values",
    [
        [], {}, {"version": 2, "keys": []}, {"version": 1}, {"version": 1, "keys": [ROW] * (MAX_KEYS + 1)},
        *({"version": 1, "keys": [row]} for row in (
            3, {}, {**ROW, "user": 3}, {**ROW, "scripts": []}, {**ROW, "scripts": ["a.py"]},
            {**ROW, "scripts": ["/\ud800"]}, {**ROW, "scripts": ["/" + "a" * 400]}, {**ROW, "scripts": ["/a\0"]},
            {**ROW, "scripts": "/a.py"}, {**ROW, "peaks": []},
            {**ROW, "peaks": {"96": 1}}, {**ROW, "peaks": {"-1": 1}}, {**ROW, "peaks": {"1": "x"}},
            {**ROW, "peaks": {"1": -1}}, {**ROW, "peaks": {"1": float("nan")}}, {**ROW, "peaks": {"1": True}},
            *({**ROW, "todays_peak": peak} for peak in (-1, 1.5, True, None, 1001)),
        )),
        *({"version": 1, "keys": [], "slot_number": number} for number in (-1, 1.5, True, "36")),
    ],
)  # fmt: skip
def test_a_damaged_profile_is_refused(values: object) -> None:
    with pytest.raises(Damaged):
        from_values(values)


# The primer, with a fake clock


class PrimedBench(Bench):
    """A bench whose primer starts engines at once."""

    def __init__(self, file: Path, begins_at: float = NINE, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.time = begins_at
        self.log = Mock()
        self.refuses = False
        self.asked: list[str] = []
        self.primer = Primer(str(file), self.scheduler, self.begin, self.log, lambda: self.time)

    def begin(self, key: Key, script: str, decided: Callable[[bool], None]) -> None:
        self.asked.append(script)
        if not self.refuses:
            self.scheduler.add_idle(Engine(self, key))
            self.scheduler.counters["primed"] += 1
        decided(not self.refuses)

    def visit(self, user: str) -> None:
        self.primer.note_request((user, "python"), f"/{user}.py")
        end_of(self.ask(user))

    def pass_to(self, seconds: float) -> None:
        """Let the time go on, with a tick each minute."""
        while self.time < seconds:
            self.time = min(self.time + 60, seconds)
            self.primer.tick()
            self.scheduler.tick(self.time)


def test_an_engine_is_there_before_the_visitor_of_the_next_day(tmp_path: Path) -> None:
    bench = PrimedBench(tmp_path / "profile")
    bench.visit("alice")
    bench.pass_to(NINE + DAY - 180)
    assert not bench.scheduler.engines and bench.scheduler.counters["idle_ended"] == 1
    bench.pass_to(NINE + DAY - 60)  # two minutes before the slot
    assert [engine.key for engine in bench.scheduler.engines] == [ALICE] and bench.asked == ["/alice.py"]
    bench.pass_to(NINE + DAY + 600)  # it is kept through the slot, longer than `idle`
    assert bench.scheduler.counters["idle_ended"] == 1
    started = bench.scheduler.counters["started"]
    bench.visit("alice")
    assert bench.scheduler.counters["started"] == started
    bench.pass_to(NINE + DAY + SLOT_SECONDS + 600)
    assert not bench.scheduler.engines and bench.scheduler.counters["primed"] == 1


def test_the_profile_outlives_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "profile"
    bench = PrimedBench(file)
    bench.visit("alice")
    bench.pass_to(NINE + SLOT_SECONDS)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and not list(tmp_path.glob("*.new"))
    again = PrimedBench(file)
    again.time = NINE + DAY - 90
    again.primer.tick()
    assert [engine.key for engine in again.scheduler.engines] == [ALICE]
    assert not again.log.warning.called and not again.log.error.called


@pytest.mark.parametrize(
    ("usual", "visits", "restart", "expected"),
    [
        # A restart in the quarter of the visit: the visit counts at the end of the quarter
        ({}, True, NINE + 300, 1.0),
        ({"36": 1.0}, True, NINE + 300, 1.0),
        # A restart after the quarter, and on the next day
        ({}, True, NINE + SLOT_SECONDS, 1.0),
        ({"36": 0.6}, True, NINE + DAY + 60, 0.7),
        # Nobody knows who would have come after the stop: the usual peak stays
        ({"36": 3.0}, True, NINE + SLOT_SECONDS, 3.0),
        ({"36": 1.0}, False, NINE + SLOT_SECONDS, 1.0),
        # A quarter that was seen to its end without a visit counts
        ({"36": 1.0}, False, NINE + 300, 0.75),
    ],
)
def test_the_present_quarter_outlives_a_restart(
    tmp_path: Path, usual: dict[str, float], visits: bool, restart: float, expected: float
) -> None:
    file = tmp_path / "profile"
    if usual:
        file.write_text(json.dumps({"version": 1, "keys": [{**ROW, "peaks": usual}]}))
    stopped = PrimedBench(file)
    if visits:
        stopped.visit("alice")
    stopped.primer.save()
    again = PrimedBench(file, restart)
    if restart < NINE + SLOT_SECONDS:
        again.pass_to(NINE + SLOT_SECONDS)
    assert again.primer.profile.keys[ALICE].peaks == {36: pytest.approx(expected)}
    assert not again.log.warning.called


def test_priming_takes_nothing_from_visitors(tmp_path: Path) -> None:
    """Not above a limit, not while memory is short or requests wait; a script that may not run is dropped."""
    (tmp_path / "p").write_text(json.dumps({"version": 1, "keys": [{**ROW, "peaks": {"36": 4}}]}))
    limited = PrimedBench(tmp_path / "p", users={"alice": UserLimits(engines=2)})
    limited.pass_to(NINE + 600)
    assert len(limited.scheduler.engines) == 2
    full = PrimedBench(tmp_path / "p", max_engines=3)
    full.ask("bob")
    full.pass_to(NINE + 600)
    assert len(full.scheduler.engines) == 3
    short = PrimedBench(tmp_path / "p", reserve_memory=100)
    short.reading = MachineReading(99)
    short.scheduler.resources.update()
    short.pass_to(NINE + 600)
    assert not short.scheduler.engines and not short.asked
    refused = PrimedBench(tmp_path / "p")
    refused.refuses = True
    refused.pass_to(NINE + 600)
    assert refused.asked == ["/a.py"] and not refused.primer.profile.keys and not refused.primer.starting


def test_an_engine_that_ends_at_once_is_not_primed_without_end(tmp_path: Path) -> None:
    (tmp_path / "p").write_text(json.dumps({"version": 1, "keys": [ROW]}))
    bench = PrimedBench(tmp_path / "p")
    for _ in range(50):
        bench.time += 1
        bench.primer.tick()
        for engine in list(bench.scheduler.engines):
            bench.scheduler.engine_lost(engine)
    assert len(bench.asked) == 6


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"{", "Expecting property name"), (b"\xff", "utf-8"), (b"\xff\xfe{\0", "utf-8"),
     (b'{"version": 9}', "no profile of version 1"),
     (b"[" * 100_000, ""), (b" " * (MAX_FILE_BYTES + 1), "larger than 16 MB"), (None, "no regular file")],
)  # fmt: skip
def test_a_damaged_file_costs_a_line_of_the_log(tmp_path: Path, content: bytes | None, said: str) -> None:
    file = tmp_path / "profile"
    if content is None:
        os.mkfifo(file)
    else:
        file.write_bytes(content)
    bench = PrimedBench(file)
    [line] = [call.args[0] for call in bench.log.warning.call_args_list]
    assert line.startswith(f"{file}: ") and said in line and "without history (prime)" in line
    assert json.loads(file.read_bytes()) == {"version": 1, "slot_number": 36, "keys": []}
    assert not bench.log.error.called
    kept = tmp_path / "profile.damaged"
    assert line.endswith(f"it is kept as {kept}")
    assert kept.is_fifo() if content is None else kept.read_bytes() == content


def test_a_directory_that_is_not_there_costs_a_line(tmp_path: Path) -> None:
    bench = PrimedBench(tmp_path / "none" / "profile")
    [line] = [call.args[0] for call in bench.log.error.call_args_list]
    assert "No such file or directory; its directory must belong to the account of X-Switch (prime" in line
    bench.visit("alice")
    assert bench.primer.profile.keys


# X-Switch itself


@pytest.mark.starts_processes
def test_x_switch_has_the_engine_before_the_first_request(tmp_path: Path) -> None:
    """Its profile is kept at a stop, and belongs to the account of the main process."""
    with two_users() as (alice, bob):
        state = alice.home.parent / "state"
        state.mkdir()
        account = pwd.getpwnam("nobody")
        os.chown(state, account.pw_uid, account.pw_gid)
        script = alice.write("hello.py", PYTHON_HELLO)
        always = {str(slot): 1.0 for slot in range(SLOTS)}
        row = {"user": alice.name, "language": "python", "scripts": [str(script)], "peaks": always}
        gone = {**row, "user": bob.name, "scripts": [str(bob.public / "gone.py")]}
        file = state / "profile"
        file.write_text(json.dumps({"version": 1, "keys": [row, gone]}))
        os.chown(file, account.pw_uid, account.pw_gid)
        with xswitch(f"prime = '{file}'") as running:
            wait_until(lambda: [each["user"] for each in running.engines()] == [alice.name], 20, running.log)
            [engine] = running.engines()
            assert engine["requests"] == 0 and running.status()["counters"]["primed"] == 1
            assert running.ask(script).text == "hello\n"
            assert [(each["pid"], each["requests"]) for each in running.engines()] == [(engine["pid"], 1)]
            assert running.status()["counters"]["started"] == 1
        kept = json.loads(file.read_text())["keys"]
        assert [each["user"] for each in kept] == [alice.name] and file.stat().st_uid == account.pw_uid
        os.chown(file, alice.uid, alice.gid)
        file.chmod(0o644)
        with xswitch(f"prime = '{file}'") as running:
            running.wait_for_log(
                f"it belongs to uid {alice.uid}, not to the account of X-Switch; the profile"
            )
            assert running.ask(script).status == 200
