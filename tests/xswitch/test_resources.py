"""Engines start and end by what the machine has left: memory, pressure, and the limits of a container."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.accounts import User, two_users
from support.scheduler_bench import Bench, end_of
from support.server import wait_until
from support.xswitch_client import HEAD, PYTHON_HELLO, xswitch

from ewe.xswitch.settings import Settings
from ewe.xswitch.switch.resources import EXPECTED_BYTES, MachineReader, MachineReading, Resources

MB = 1 << 20
RESERVE = 64 * MB


def retired(*requests: object) -> list[bool]:
    """Return whether the engine of each request has ended."""
    return [request.engine.retired for request in requests]  # type: ignore[attr-defined]


# The scheduler


def test_below_the_reserve_the_number_of_engines_does_not_grow() -> None:
    """An engine starts only in the place of an idle one, of the pair that was used least recently."""
    bench = Bench(reserve_memory=RESERVE)
    old, middle, new = (bench.ask(user) for user in ("alice", "bob", "carl"))
    for request in (old, middle, new):
        end_of(request)
    bench.reading = MachineReading(RESERVE - 1)
    bench.scheduler.resources.update()
    fourth = bench.ask("dora")
    assert fourth.engine is not None and retired(old, middle, new) == [True, False, False]
    assert bench.ask("bob").engine is middle.engine  # an idle engine of the pair needs no memory
    fifth, sixth = bench.ask("alice"), bench.ask("alice")
    assert fifth.engine is not None and retired(new) == [True] and sixth.engine is None
    assert len(bench.scheduler.engines) == 3
    bench.reading = MachineReading(RESERVE + 100 * MB)
    bench.scheduler.tick(1)
    assert sixth.engine is not None and len(bench.scheduler.engines) == 4


def test_idle_engines_end_a_pair_a_second_until_there_is_memory() -> None:
    bench = Bench(reserve_memory=RESERVE)
    first = [bench.ask("alice") for _ in range(2)]
    busy, last = bench.ask("bob"), bench.ask("carl", "perl")
    for request in (*first, last):
        end_of(request)
    bench.reading = MachineReading(RESERVE - 1)
    bench.scheduler.tick(1)
    assert retired(*first, busy, last) == [True, True, False, False]
    bench.scheduler.tick(1.1)  # no new reading: the ended engines give their memory back in a moment
    assert retired(last) == [False]
    bench.reading = MachineReading(RESERVE)
    bench.scheduler.tick(2)
    assert retired(last) == [False]
    bench.reading = MachineReading(RESERVE - 1)
    bench.scheduler.tick(3)
    assert retired(busy, last) == [False, True]
    assert bench.scheduler.counters["shrunk"] == 3
    assert [line.partition(":")[0] for line in bench.said] == [
        "63 MB of memory are available, and reserve-memory is 64 MB",
        "there is enough memory again",
        "63 MB of memory are available, and reserve-memory is 64 MB",
    ]


def test_the_last_engine_is_always_allowed() -> None:
    """Other programs may have the memory: X-Switch then serves one user after the other."""
    bench = Bench(reserve_memory=RESERVE)
    bench.reading = MachineReading(0)
    bench.scheduler.tick(1)
    first, second = bench.ask("alice"), bench.ask("bob")
    assert first.engine is not None and second.engine is None
    end_of(first)
    assert second.engine is not None and retired(first) == [True]
    assert len(bench.scheduler.engines) == 1


def test_a_surge_does_not_start_more_engines_than_there_is_memory_for() -> None:
    """All come between two readings, and no engine has taken its memory yet."""
    bench = Bench(reserve_memory=RESERVE)
    bench.reading = MachineReading(RESERVE + 10 * EXPECTED_BYTES)
    bench.scheduler.resources.update()
    surge = [bench.ask(f"user-{number}") for number in range(100)]
    assert sum(request.engine is not None for request in surge) == 10
    bench.scheduler.tick(1)  # the reading is the same: the engines still start
    assert len(bench.scheduler.engines) == 10
    while bench.busy():
        bench.busy()[0].done()
    assert all(request.engine is not None for request in surge)  # everyone is served, ten at a time
    assert len(bench.scheduler.engines) <= 10


def test_a_promise_is_as_large_as_an_engine_of_the_language() -> None:
    resources = Resources(
        Settings(reserve_memory=RESERVE), lambda: MachineReading(RESERVE + 90 * MB), lambda *_: None
    )
    resources.note_size("java", 80 * MB)
    resources.note_size("java", 40 * MB)
    assert not resources.memory_shortage("java")
    resources.note_start("java")
    assert resources.memory_shortage("perl") and not resources.memory_shortage()
    resources.update()
    assert resources.memory_shortage("perl")
    resources.update()
    assert not resources.memory_shortage("perl")


def test_a_large_engine_of_one_user_does_not_stop_the_others_for_ever() -> None:
    settings = Settings(reserve_memory=RESERVE, max_memory=100 * MB)
    resources = Resources(settings, lambda: MachineReading(RESERVE + 99 * MB), lambda *_: None)
    resources.note_size("python", 900 * MB)  # it is replaced at once, as larger than max-memory
    assert resources.engine_bytes["python"] == 100 * MB and resources.memory_shortage("python")
    for _ in range(60):
        resources.update()
    assert not resources.memory_shortage("python")
    resources.note_size("python", 2 * MB)  # the others are small
    for _ in range(3600):
        resources.update()
    assert resources.engine_bytes["python"] == EXPECTED_BYTES
    resources.engine_bytes["perl"] = 2 * MB
    resources.update()
    assert resources.engine_bytes["perl"] == 2 * MB


def test_pressure_of_memory_counts_as_too_little_and_that_of_processors_makes_a_user_wait() -> None:
    bench = Bench(max_memory_pressure=20, max_cpu_pressure=50)
    idle, alices = bench.ask("bob"), bench.ask("alice")
    end_of(idle)
    bench.reading = MachineReading(None, 0.0, 50.1)
    bench.scheduler.tick(1)
    again = bench.ask("alice")
    assert again.engine is None and bench.ask("carl").engine is not None and retired(idle) == [False]
    bench.reading = MachineReading(None, 0.0, 50.0)
    bench.scheduler.tick(2)
    assert again.engine is not None
    bench.reading = MachineReading(None, 20.1, 0.0)
    bench.scheduler.tick(3)
    assert retired(idle, alices) == [True, False] and bench.ask("dora").engine is None
    assert "processes wait for memory 20.1 % of the time" in bench.said[0]


def test_without_numbers_nothing_changes() -> None:
    for settings, reading in (({"reserve_memory": 0}, MachineReading(0)), ({}, MachineReading())):
        bench = Bench(**settings)  # type: ignore[arg-type]
        bench.reading = reading
        bench.scheduler.tick(1)
        assert all(bench.ask(user).engine is not None for user in "abc")


# What the system says


def system(tmp_path: Path, available_kb: int = 500_000) -> Path:
    """Make a directory that looks like /proc."""
    (tmp_path / "pressure").mkdir()
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text(
        f"MemTotal: 900000 kB\nMemFree: 1 kB\nMemAvailable:   {available_kb} kB\n"
    )
    for name, share in (("memory", "1.25"), ("cpu", "70.00")):
        text = f"some avg10={share} avg60=0.00 avg300=0.00 total=2173254\nfull avg10=9.00 avg60=0 total=1\n"
        (tmp_path / "pressure" / name).write_text(text)
    return tmp_path


def test_memory_and_pressure_are_read(tmp_path: Path) -> None:
    proc = system(tmp_path)
    assert MachineReader(str(proc)).read() == MachineReading(500_000 * 1024, 1.25, 70.0)
    for damaged in ("", "MemAvailable: much kB\n", "MemAvailable:\n"):
        (proc / "meminfo").write_text(damaged)
        (proc / "pressure" / "cpu").write_text(damaged)
        assert MachineReader(str(proc)).read() == MachineReading(None, 1.25, 0.0)
    assert MachineReader(str(tmp_path / "none")).read() == MachineReading()
    real = MachineReader().read()
    assert real.memory is not None and real.memory > 0


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_has_what_its_cgroups_leave(tmp_path: Path, version: int) -> None:
    """The limit of an ancestor holds, too. The file cache can be had back."""
    proc, mount = system(tmp_path), tmp_path / "cg"
    inner = mount / "outer" / "inner"
    inner.mkdir(parents=True)
    names = ("memory.max", "memory.current", "inactive_file")
    controller, kind, options = "", "cgroup2", "rw"
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        controller, kind, options = "memory", "cgroup", "rw,memory"
    (proc / "self" / "cgroup").write_text(f"{4 if version == 1 else 0}:{controller}:/outer/inner\n")
    (proc / "self" / "mountinfo").write_text(f"1 2 0:3 / {mount} rw - {kind} x {options}\n")
    for directory, most, used in ((inner, "max", 9), (mount / "outer", str(300 * MB), 250 * MB)):
        texts = (most, str(used), f"anon 5\n{names[2]} {30 * MB}\n")
        for name, text in zip((*names[:2], "memory.stat"), texts, strict=True):
            (directory / name).write_text(text)
    assert MachineReader(str(proc)).read().memory == 80 * MB
    (mount / "outer" / names[0]).write_text("max\n" if version == 2 else "9223372036854771712\n")
    assert MachineReader(str(proc)).read().memory == 500_000 * 1024


# X-Switch itself


@pytest.mark.starts_processes
def test_a_reserve_that_the_machine_does_not_have_leaves_one_engine_until_a_reload() -> None:
    with two_users() as (alice, bob), xswitch("reserve-memory = '1000000g'") as running:
        scripts = [user.write("hello.py", PYTHON_HELLO) for user in (alice, bob)]
        for script in scripts * 2:
            assert running.ask(script).text == "hello\n"
            assert len(running.engines()) <= 1
        running.wait_for_log("reserve-memory is 1024000000 MB: the number of engines does not grow")
        status = running.status()
        assert status["counters"]["evicted"] + status["counters"].get("shrunk", 0) >= 3
        assert "reserve-memory" in status["resources"]["scarce"]
        wait_until(lambda: not running.engines(), 20)  # idle engines end
        config = running.directory / "xswitch.toml"
        config.write_text(config.read_text().replace("1000000g", "1m"))
        os.kill(running.process.pid, signal.SIGHUP)
        running.wait_for_log("there is enough memory again")
        for script in scripts:
            assert running.ask(script).status == 200
        assert len(running.engines()) == 2


ROOM = 100 * MB  # above the reserve, before the first engine
# 4 MB for each request, which ends when the file `go` is there
SURGE = f"""import os, time
memory = b"x" * (4 << 20)
while not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
    time.sleep(0.05)
print("{HEAD}\\nhello")
"""
MEMINFO_IS = 'mount --bind "$0" /proc/meminfo && exec "$@"'


class SmallMachine:
    """A /proc/meminfo for one X-Switch: what the engines take is missing from ROOM, as on a machine of that size.

    What other programs do at the same time changes nothing. taken_bytes: by another program, which a test invents.
    readings: (engines, bytes that all engines have), each tenth of a second.
    """

    def __init__(self, file: Path, users: tuple[User, ...]) -> None:
        self.file, self.users = file, users
        self.taken_bytes = 0
        self.readings: list[tuple[int, int]] = []
        self.ending = threading.Event()
        self.write(0)
        self.thread = threading.Thread(target=self.run)

    def write(self, used_bytes: int) -> None:
        available_kb = max(RESERVE + ROOM - used_bytes, 0) >> 10
        with open(self.file, "r+" if self.file.exists() else "w") as file:
            file.write(f"MemAvailable: {available_kb:12} kB\n")  # always of one length: nobody reads a half

    def run(self) -> None:
        while not self.ending.wait(0.1):
            sizes = [size for user in self.users for pid in user.processes() if (size := pss_bytes(pid))]
            self.readings.append((len(sizes), sum(sizes)))
            self.write(sum(sizes) + self.taken_bytes)

    def has_no_room(self) -> bool:
        """Return whether no engine has started for three seconds, although requests wait."""
        counts = [count for count, _ in self.readings[-30:]]
        return len(counts) == 30 and counts[0] > 1 and len({*counts}) == 1


def pss_bytes(pid: int) -> int:
    """Return the memory of a process, shared pages in part; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


@contextmanager
def small_machine(tmp_path: Path, users: tuple[User, ...]) -> Iterator[SmallMachine]:
    machine = SmallMachine(tmp_path / "meminfo", users)
    machine.thread.start()
    try:
        yield machine
    finally:
        machine.ending.set()
        machine.thread.join()


@pytest.mark.starts_processes
@pytest.mark.timeout(200)
def test_a_surge_takes_the_room_and_leaves_the_reserve(tmp_path: Path) -> None:
    """Engines grow and stop before the reserve, all 60 are answered; idle engines end for another program."""
    prefix = ("unshare", "--mount", "sh", "-c", MEMINFO_IS, str(tmp_path / "meminfo"))
    settings = "reserve-memory = '64m'\nmax-engines = 60\nmax-engines-per-user = 30\nidle = '10m'\n"
    settings += "queue-timeout = '5m'\n"  # the requests wait until the engines have stopped growing
    with (
        two_users() as users,
        small_machine(tmp_path, users) as machine,
        xswitch(settings, prefix=prefix) as running,
    ):
        scripts = [user.write("surge.py", SURGE) for user in users]
        waiting = [running.asking(script) for script in scripts * 30]
        wait_until(machine.has_no_room, 60, lambda: f"{machine.readings[-40:]}\n{running.log()}")
        most = max(count for count, _ in machine.readings)
        assert 4 <= most < 60 and running.status()["counters"]["started"] == most
        for user in users:
            user.write("go", "")
        assert [wait().status for wait in waiting] == [200] * 60
        assert max(size for _, size in machine.readings) <= ROOM  # the reserve was never touched
        machine.taken_bytes = ROOM + MB
        running.wait_for_log(
            "reserve-memory is 64 MB: the number of engines does not grow, and idle ones end"
        )
        wait_until(lambda: len(running.engines()) == 0, 20, running.log)
        machine.taken_bytes = 0
        running.wait_for_log("there is enough memory again")
        assert running.ask(scripts[0]).status == 200
