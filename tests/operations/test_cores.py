"""workers = auto: a process for each processor that this process may use, by its affinity and its cgroups."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import web
from support.proc import children
from support.server import ROOT, Server, Start, run_command, wait_until

from ewe.config import cores
from ewe.config.cores import usable_cores
from ewe.config.count_range import CoreCount, CountRange
from ewe.config.messages import ConfigError
from ewe.config.settings import Config
from ewe.processors.base import model_named

MANY = 64  # processors of the machine of a test


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the /proc of a machine with MANY processors; no test of this file needs more of it."""
    monkeypatch.setattr(cores, "allowed_processors", lambda: MANY)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    return tmp_path / "proc"


def cgroup(proc: Path, version: int, own: str, limits: dict[str, str]) -> None:
    """Describe a process in a cgroup. limits: a directory below the mount -> "QUOTA PERIOD"."""
    mount = proc.parent / "cg"
    number, controller, kind = (0, "", "cgroup2") if version == 2 else (4, "cpu,cpuacct", "cgroup")
    (proc / "self" / "cgroup").write_text(f"9:memory:/x\n{number}:{controller}:{own}\n")
    others = "1 2 0:2 / /tmp rw - tmpfs  rw\n"  # its source is the empty text
    (proc / "self" / "mountinfo").write_text(f"{others}1 2 0:3 / {mount} rw - {kind} x rw,{controller}\n")
    for directory, limit in limits.items():
        at = mount / directory
        at.mkdir(parents=True, exist_ok=True)
        if version == 2:
            (at / "cpu.max").write_text(f"{limit}\n")
        else:
            for name, text in zip(("cpu.cfs_quota_us", "cpu.cfs_period_us"), limit.split(), strict=False):
                (at / name).write_text(f"{text}\n")


# The processors


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("quota", "counted"),
    [
        ("50000 100000", 1),  # half a processor
        ("1 100000", 1),
        ("100000 100000", 1),
        ("100001 100000", 2),
        ("150000 100000", 2),  # docker --cpus 1.5
        ("40000 10000", 4),
        ("6500000 100000", MANY),  # the machine has no 65
    ],
)
def test_a_quota_is_rounded_up(machine: Path, version: int, quota: str, counted: int) -> None:
    cgroup(machine, version, "/a/b", {"a/b": quota})
    assert usable_cores(str(machine)) == counted


@pytest.mark.parametrize(("version", "none"), [(1, "-1 100000"), (2, "max 100000")])
def test_the_smallest_quota_of_all_ancestors_holds(machine: Path, version: int, none: str) -> None:
    cgroup(machine, version, "/a/b", {"": none, "a": "300000 100000", "a/b": none})
    assert usable_cores(str(machine)) == 3
    cgroup(machine, version, "/a/b", {"a/b": "200000 100000", "other": "100000 100000"})
    assert usable_cores(str(machine)) == 2
    cgroup(machine, version, "/a/b", {"a": none, "a/b": none})
    assert usable_cores(str(machine)) == MANY


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_that_sees_its_cgroup_as_the_root(machine: Path, version: int) -> None:
    """The path of /proc/self/cgroup is then that of the host, and is not below the mount."""
    cgroup(machine, version, "/docker/4711", {"": "150000 100000"})
    assert usable_cores(str(machine)) == 2


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("quota", ["", "x y", "100000", "0 100000", "100000 0", "-5 -5", "1 2 3", "\xff"])
def test_a_quota_that_makes_no_sense_is_none(machine: Path, version: int, quota: str) -> None:
    cgroup(machine, version, "/", {"": quota})
    if version == 1 and quota == "1 2 3":
        assert usable_cores(str(machine)) == 1
        return
    assert usable_cores(str(machine)) == MANY


def test_a_system_that_describes_nothing(machine: Path) -> None:
    assert usable_cores(str(machine)) == MANY
    assert usable_cores(str(machine / "nowhere")) == MANY


def test_each_way_to_count_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "process_cpu_count", lambda: 7, raising=False)
    assert cores.allowed_processors() == 7
    monkeypatch.setattr(os, "process_cpu_count", lambda: None, raising=False)
    assert cores.allowed_processors() == 1
    monkeypatch.delattr(os, "process_cpu_count")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    assert cores.allowed_processors() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores.allowed_processors() == 1


# The setting


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        *((each, CountRange(3)) for each in ("thread", "pool", "asyncio", "xswitch")),
        ("prefork", CountRange(8, 64)),
        *((each, CountRange(1)) for each in ("serial", "fork")),
    ],
)
def test_which_models_have_a_process_a_core(model: str, expected: CountRange) -> None:
    found = model_named(model).range_of_workers(Config(workers=CoreCount(3)))
    assert found == expected and not isinstance(found, CoreCount), "TTIN makes another number of it"


def test_auto_is_read_from_each_source_and_shown_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cores, "allowed_processors", lambda: 3)
    monkeypatch.setattr(cores, "PROC", str(tmp_path))
    (tmp_path / "ewe.toml").write_text('workers = "auto"\n')
    for config in (
        Config.load(environ={}, file=str(tmp_path / "ewe.toml")),
        Config.load(environ={"EWE_WORKERS": "auto"}),
        Config.load(environ={"WEB_CONCURRENCY": "auto"}),
        Config(workers="auto"),
    ):
        assert isinstance(config.workers, CoreCount) and int(config.workers) == 3
        assert Config.workers.show(config.workers) == str(config.workers) == "auto"
    assert Config(workers="default").workers is None and Config.workers.show(None) == "default"


@pytest.mark.parametrize("value", ["Auto", "", "auto..4", "cores", "0", -1, 1.5, True, ["auto"]])
def test_another_value_is_refused_in_one_line(value: object) -> None:
    with pytest.raises(
        ConfigError, match="expected auto, default, a whole number from 1, or a range"
    ) as error:
        Config(workers=value)
    assert "\n" not in str(error.value)


# The server


def pinned(server: Server, number: int) -> None:
    """Let the server's first process use some processors, as taskset -p does."""
    os.sched_setaffinity(server.pid, set(sorted(os.sched_getaffinity(0))[:number]))


@pytest.mark.needs("two processors")
@pytest.mark.parametrize("model", ["thread", "pool", "asyncio"])
def test_hup_counts_the_processors_again(start: Start, model: str) -> None:
    server = start(model, "--workers", "auto", "--bind", "127.0.0.1:0")
    both = len(os.sched_getaffinity(0))
    wait_until(lambda: len(children(server.pid)) == usable_cores(), 20, server.log)
    for processors in (1, both):
        pinned(server, processors)
        server.process.send_signal(signal.SIGHUP)
        expected = min(processors, usable_cores())
        wait_until(lambda count=expected: len(children(server.pid)) == count, 20, server.log)
        assert web.get(server.url).status_code == 200
    assert "needs a restart" not in server.log()


@pytest.mark.needs("two processors")
@pytest.mark.starts_processes
def test_one_processor_is_one_worker_and_later_two(tmp_path: Path, start: Start) -> None:
    """The server of one worker has a supervisor, too: HUP could start no second worker without it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        options = ["0", str(ROOT / "htdocs"), "-a", "--workers", "auto"]
        command = [sys.executable, "-m", "ewe", "--check-config", *options]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ, check=False)
        server = start("asyncio", "--workers", "auto", env={})
    finally:
        os.sched_setaffinity(0, before)
    assert done.returncode == 0 and "note: workers = auto: 1 here" in done.stderr
    wait_until(lambda: len(children(server.pid)) == 1, 20, server.log)
    pinned(server, 2)
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: len(children(server.pid)) == min(2, usable_cores()), 20, server.log)


@pytest.mark.starts_processes
def test_a_range_without_growth_is_refused_before_the_start(tmp_path: Path) -> None:
    for options in ((), ("--check-config",)):
        done = run_command(tmp_path, *options, "0", ".", "-a", "--workers", "2..4")
        assert done.returncode == 1 and "their number does not grow" in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
