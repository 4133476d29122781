"""Limits of one user: [users.NAME] and [groups.NAME], by the main process, by setrlimit and by cgroups v2."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from support import needs
from support.accounts import User
from support.engines import PERL_HEAD
from support.scheduler_bench import Bench, end_of
from support.server import wait_until
from support.xswitch_client import HEAD, PYTHON_HELLO, Reply, XSwitch, xswitch

from ewe.config.cgroup_paths import mount_of
from ewe.config.messages import ConfigError
from ewe.xswitch.engine_kinds import BUILT_IN
from ewe.xswitch.privileged import cgroups
from ewe.xswitch.privileged.cgroups import NoCgroup, UserCgroups, find_base
from ewe.xswitch.privileged.namespaces import UserNamespaces
from ewe.xswitch.privileged.rules import Refusal
from ewe.xswitch.privileged.suexecme import Suexecme
from ewe.xswitch.process import Account, EngineLimits, become, start
from ewe.xswitch.settings import Settings, from_toml, read_copy, write_copy
from ewe.xswitch.supervisor import Supervisor
from ewe.xswitch.switch.limits_of_users import LimitsOfUsers
from ewe.xswitch.tools.driver import Driver
from ewe.xswitch.user_limits import NO_LIMITS, UserLimits

TABLES = {
    "users": {"alice": {"memory": "200m", "engines": 4}},
    "groups": {
        "staff": {"engines": 9, "time-limit": 9, "cpu": 7},
        "all": {"engines": 2, "requests": 5, "cpu": 0},
    },
}


# The settings


def test_the_users_table_comes_before_the_groups_and_these_before_the_general_limits() -> None:
    settings = from_toml(TABLES, "x.toml")
    both = settings.user_limits("alice", {"all", "staff"})
    assert both == UserLimits(engines=4, requests=5, cpu=7, memory=200 << 20, time_limit=9)
    assert settings.user_limits("alice") == UserLimits(engines=4, memory=200 << 20)
    assert settings.user_limits("bob", {"all"}) == UserLimits(engines=2, requests=5, cpu=0)
    assert settings.user_limits("bob") is NO_LIMITS
    descriptor = write_copy(settings)
    assert read_copy(descriptor) == settings
    os.close(descriptor)


def test_limits_of_an_engine() -> None:
    """A cgroup limits all engines together, so the limit of one is only raised to it. A JVM has no limit."""
    settings = Settings(limits=EngineLimits(cpu=60, memory=1000, processes=50, files=9, file_size=8))
    python, java = BUILT_IN["python"], BUILT_IN["java"]
    small, large = (
        UserLimits(cpu=0, memory=10, processes=5),
        UserLimits(memory=3000, processes=0, file_size=0),
    )
    assert settings.engine_limits(python, small) == (0, 10, 5, 9, 8)
    assert settings.engine_limits(python, small, {"memory", "processes"}) == (0, 1000, 50, 9, 8)
    assert settings.engine_limits(python, large, {"memory", "processes"}) == (60, 3000, 0, 9, 0)
    assert settings.engine_limits(java, small) == (0, 0, 5, 9, 8)
    assert settings.engine_limits(python) == settings.limits


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"users": {"alice": {"memory": "much"}}}, 'users.alice.memory = "much": expected a size'),
        ({"users": {"alice": {"engines": 0}}}, "users.alice.engines = 0: expected a whole number from 1"),
        ({"users": {"alice": {"memry": 1}}}, 'users.alice: unknown key "memry"; did you mean "memory"?'),
        (
            {"groups": {"students": {"cpu-share": 0}}},
            "groups.students.cpu-share = 0: expected a whole number of",
        ),
        ({"groups": {"a b": {"time-limit": "x"}}}, 'groups."a b".time-limit = "x": expected a time'),
        ({"users": {"alice": {"requests": True}}}, "users.alice.requests = true: expected a whole number"),
        ({"users": {"alice": 3}}, "users.alice = 3: expected a table"),
        ({"users": 3}, "users = 3: expected tables: [users.NAME]"),
    ],
)
def test_a_wrong_table_is_refused_in_a_line(table: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_toml(table, "x.toml")
    assert str(caught.value).startswith(f"x.toml: {said}") and "\n" not in str(caught.value)


def test_a_table_of_nobody_is_doubted() -> None:
    users = {"no-such": {}, "root": {}, "a\nb\0": {}}
    doubts = from_toml({"users": users, "groups": {"no-such": {}}}, "x").warnings()
    assert doubts[:3] == [
        "[users.no-such]: there is no user no-such: its limits apply to nobody",
        "[users.a\\nb\\x00]: there is no user a\\nb\\x00: its limits apply to nobody",
        "[groups.no-such]: there is no group no-such: its limits apply to nobody",
    ]


def test_a_users_groups_are_noted_and_new_settings_count() -> None:
    limits = LimitsOfUsers(from_toml(TABLES, "x"))
    assert limits.limits_of("bob") is NO_LIMITS
    assert limits.note_groups("bob", ("all",)).engines == 2
    assert limits.limits_of("bob").engines == 2
    limits.change_settings(from_toml({"groups": {"all": {"engines": 3}}}, "x"))
    assert limits.limits_of("bob") == UserLimits(engines=3)
    limits.note_groups("bob", ())
    assert limits.limits_of("bob") is NO_LIMITS


# The scheduler


def test_a_user_at_the_limit_of_requests_is_refused_at_once_and_no_other() -> None:
    bench = Bench()
    bench.scheduler.limits.change_settings(Settings(users={"alice": UserLimits(engines=1, requests=2)}))
    first, second, third = (bench.ask("alice") for _ in range(3))
    assert first.engine is not None and second.engine is None and second.refused == 0
    assert third.refused == 503 and bench.scheduler.counters["refused"] == 1
    assert [bench.ask("bob").engine is not None for _ in range(5)] == [True] * 5
    end_of(first)
    assert second.engine is not None and bench.ask("alice").refused == 0
    assert bench.scheduler.engines_of_user["alice"] == 1


# cgroups


def hierarchy(path: Path, controllers: str = "cpu io memory pids") -> Path:
    """Make a directory with the files of a cgroup v2 without processes."""
    path.mkdir(parents=True)
    (path / "cgroup.controllers").write_text(controllers + "\n")
    (path / "cgroup.procs").write_text("")
    (path / "cgroup.subtree_control").write_text("")
    return path


def of_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_a_users_cgroup_has_the_limits_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_root(monkeypatch)
    base = hierarchy(tmp_path / "base")
    made = UserCgroups.from_setting(str(base))
    assert made.describe() == f"cgroups below {base} (memory, processes, cpu-share)"
    limits = UserLimits(memory=64 << 20, processes=20, cpu_share=150)
    assert made.prepare(1001, limits) == f"{base}/user-1001/cgroup.procs"
    texts = {file.name: file.read_text() for file in (base / "user-1001").iterdir()}
    assert texts == {
        "memory.max": str(64 << 20), "memory.swap.max": "0", "pids.max": "20", "cpu.max": "150000 100000",
    }  # fmt: skip
    made.change_limits(1001, UserLimits(processes=0))
    texts = {file.name: file.read_text() for file in (base / "user-1001").iterdir()}
    assert texts == {
        "memory.max": "max", "memory.swap.max": "max", "pids.max": "max", "cpu.max": "max 100000",
    }  # fmt: skip
    assert made.prepare(1002, UserLimits(engines=3)) == "" and not (base / "user-1002").exists()
    made.change_limits(1002, limits)
    assert not (base / "user-1002").exists()
    (base / "user-1001" / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert made.oom_kill_count(1001) == 2 and made.oom_kill_count(1002) == 0


def test_what_no_controller_keeps_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_root(monkeypatch)
    base = hierarchy(tmp_path / "base", "pids")
    made = UserCgroups.from_setting(str(base))
    assert made.enforced == {"processes"}
    assert made.describe().endswith(
        "(processes); not memory: there is no controller memory; not cpu-share: there is no controller cpu"
    )
    assert made.prepare(1001, UserLimits(memory=5)) == ""
    (base / "cgroup.subtree_control").unlink()
    (base / "cgroup.subtree_control").mkdir()
    assert "cgroup.subtree_control cannot be written" in UserCgroups.from_setting(str(base)).describe()
    bare = hierarchy(tmp_path / "bare", "hugetlb")
    assert "has none of the controllers memory, pids, cpu" in UserCgroups.from_setting(str(bare)).describe()


def test_a_base_that_the_administrator_has_removed_is_no_fault(tmp_path: Path) -> None:
    """suexecme calls remove_all() when it ends, and has other directories to remove afterwards."""
    made = UserCgroups(str(hierarchy(tmp_path / "base")))
    shutil.rmtree(tmp_path / "base")
    made.remove_all()


def test_where_the_cgroups_of_users_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_root(monkeypatch)
    mount = tmp_path / "cg"
    service = hierarchy(mount / "system.slice" / "x.service")
    (hierarchy(service / "main") / "cgroup.procs").write_text("17\n")
    proc = tmp_path / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text("4:memory:/old\n0::/system.slice/x.service/main\n")
    (proc / "mountinfo").write_text(f"25 30 0:23 / {mount} rw - cgroup2 cgroup2 rw\n")
    with pytest.raises(NoCgroup, match="is not delegated: name a directory of cgroups v2"):
        find_base("auto", str(proc.parent))
    monkeypatch.setattr(cgroups, "is_delegated", lambda path: path == str(service))
    assert find_base("auto", str(proc.parent)) == str(service)
    (service / "cgroup.procs").write_text("16\n")
    with pytest.raises(NoCgroup, match="is not delegated"):
        find_base("auto", str(proc.parent))
    for setting, reason in (
        ("off", "cgroup is off"),
        (str(service), "has processes"),
        (str(tmp_path), "is no directory of cgroups v2"),
    ):
        assert reason in UserCgroups.from_setting(setting).describe()
    (proc / "mountinfo").write_text("")
    with pytest.raises(NoCgroup, match="no file system of type cgroup2"):
        find_base("auto", str(proc.parent))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "does not run as root" in UserCgroups.from_setting("auto").describe()


def test_the_owner_of_a_killed_engine_reads_that_memory_was_the_cause(tmp_path: Path) -> None:
    suexecme = Suexecme.__new__(Suexecme)
    suexecme.cgroups = UserCgroups(str(tmp_path), "", frozenset({"memory"}))
    suexecme.oom_kills = {}
    assert suexecme.memory_cause(7) == ""
    (tmp_path / "user-7").mkdir()
    (tmp_path / "user-7" / "memory.events").write_text("oom_kill 1\n")
    assert "no more memory" in suexecme.memory_cause(7)
    assert suexecme.memory_cause(7) == ""  # another signal has killed this one


def test_a_kill_is_reported_once_while_leftover_processes_keep_the_cgroup(tmp_path: Path) -> None:
    """The kernel counts kills as long as the cgroup is there: another signal must not look like one of them."""
    suexecme = Suexecme.__new__(Suexecme)
    suexecme.cgroups = UserCgroups(str(tmp_path), "", frozenset({"memory"}))
    suexecme.oom_kills = {}
    group = tmp_path / "user-7"
    group.mkdir()
    (group / "memory.events").write_text("oom_kill 1\n")  # the file keeps the directory, as a process would
    assert "no more memory" in suexecme.memory_cause(7)
    suexecme.remove_cgroup(7)
    assert suexecme.memory_cause(7) == ""
    (group / "memory.events").unlink()
    suexecme.remove_cgroup(7)
    assert not group.exists() and not suexecme.oom_kills


def test_the_cgroup_that_leftover_processes_have_kept_goes_with_them(tmp_path: Path) -> None:
    """Otherwise it would stay until the end of the user's next engine."""
    suexecme = Suexecme.__new__(Suexecme)
    suexecme.cgroups = UserCgroups(str(hierarchy(tmp_path / "base")), "", frozenset({"memory"}))
    suexecme.oom_kills, suexecme.engines = {}, {1: Account("bob", 1002, 1002, (), "/")}
    suexecme.namespaces = Mock()
    for uid in (1001, 1002):
        suexecme.cgroups.prepare(uid, UserLimits(memory=64 << 20))
    suexecme.remove_if_without_engines(1001)  # the files of this imitation keep it, as a process would
    assert suexecme.cgroups.uids == {1001, 1002}
    for file in (tmp_path / "base").glob("user-*/*"):
        file.unlink()
    suexecme.remove_unused_cgroups()
    assert suexecme.cgroups.uids == {1002}
    assert [path.name for path in (tmp_path / "base").glob("user-*")] == ["user-1002"]


def test_the_cgroups_of_a_killed_suexecme_are_removed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_root(monkeypatch)
    base = hierarchy(tmp_path / "base")
    (base / "user-1001").mkdir()
    supervisor = Supervisor.__new__(Supervisor)
    supervisor.settings, supervisor.parent = Settings(cgroup=str(base)), 0
    supervisor.end_children = supervisor.close = Mock()  # type: ignore[method-assign]
    supervisor.start_children = Mock(side_effect=KeyboardInterrupt)  # type: ignore[method-assign]
    for name in ("ewe.xswitch.supervisor.become_subreaper", "signal.pthread_sigmask", "signal.signal"):
        monkeypatch.setattr(name, Mock())
    with pytest.raises(KeyboardInterrupt):
        supervisor.run()
    assert not list(base.glob("user-*"))


# With the kernel's own cgroups v2, and with accounts


def cgroup2() -> Path:
    """Return where cgroups v2 are mounted, writable for this process; skip the test if nowhere."""
    needs.require("root")
    mount = mount_of("/proc")
    if not mount or not os.access(mount, os.W_OK):
        needs.lacks("root", "no cgroups v2 that this account may divide")
    return Path(mount)


@pytest.fixture
def base() -> Iterator[Path]:
    """A cgroup of the kernel's, removed at the end."""
    path = cgroup2() / f"ewe-test-{os.getpid()}"
    path.mkdir()
    yield path
    for child in path.glob("user-*"):
        child.rmdir()
    path.rmdir()


@pytest.mark.starts_processes
def test_an_engine_is_in_its_users_cgroup_from_its_first_instruction(base: Path) -> None:
    """The place of a process needs no controller, so any machine with cgroups v2 will do."""
    made = UserCgroups(str(base), "", frozenset({"memory"}))
    (base / "user-7").mkdir()
    out, into = os.pipe()
    account = Account("me", os.getuid(), os.getgid(), (), "/")
    entered = str(base / "user-7" / "cgroup.procs")
    command = ["cat", "/proc/self/cgroup"]
    pid = start(command, {}, {0: into, 1: into, 2: into}, lambda: become(account, EngineLimits(), entered))
    os.close(into)
    with open(out, encoding="ascii") as said:
        assert f"0::/{base.name}/user-7\n" in said.read()
    os.waitpid(pid, 0)
    made.remove(7)
    assert not (base / "user-7").exists()


@pytest.mark.starts_processes
def test_a_user_whose_first_engine_does_not_start_keeps_no_cgroup(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This cgroup has no controller, so the kernel has no file for the limit."""
    account = Account("me", os.getuid(), os.getgid(), (), "/")
    monkeypatch.setattr(
        f"{Suexecme.__module__}.examine", lambda path, settings: SimpleNamespace(account=account)
    )
    process = Suexecme.__new__(Suexecme)
    process.settings = Settings(users={"me": UserLimits(memory=1 << 20)})
    process.engines, process.oom_kills = {}, {}
    process.cgroups = UserCgroups(str(base), "", frozenset({"memory"}))
    process.namespaces = UserNamespaces()
    with pytest.raises(Refusal, match="the limits of me"):
        process.start("/script.py", account.uid, "python", [])
    assert not Path(process.cgroups.path(account.uid)).exists()


LIMITS = """time-limit = "20s"
cgroup = "off"
[limits]
processes = 0
[users.{alice}]
requests = 2
engines = 1
memory = "150m"
time-limit = "1s"
file-size = "1m"
"""


@pytest.fixture(scope="module")
def limited(users: tuple[User, User]) -> Iterator[XSwitch]:
    """An X-Switch with limits for alice alone."""
    with xswitch(LIMITS.format(alice=users[0].name)) as running:
        yield running


WAITS = f"import time\ntime.sleep(0.5)\nprint('{HEAD}\\nwaited')\n"


@pytest.mark.starts_processes
def test_alice_at_her_limit_is_refused_while_bob_is_served(
    limited: XSwitch, users: tuple[User, User]
) -> None:
    alice, bob = users
    script, of_bob = (user.write("waits.py", WAITS) for user in users)
    assert limited.ask(script).status == limited.ask(of_bob).status == 200, limited.log()
    waits = [limited.asking(script) for _ in range(2)]
    wait_until(lambda: limited.status()["waiting"].get(alice.name) == 1, 20)
    refused = limited.ask(script)
    his = [limited.asking(of_bob) for _ in range(4)]
    assert [wait().status for wait in his] == [200] * 4
    assert refused.status == 503 and int(refused.fields["retry-after"]) > 0
    assert [wait().status for wait in waits] == [200, 200]
    limited.wait_for_log(f"{script}: 503, {alice.name} has 2 requests at once")
    counts = [each["user"] for each in limited.engines()]
    assert counts.count(alice.name) == 1 < counts.count(bob.name)
    assert "limits of processes (setrlimit); no cgroups: cgroup is off" in limited.status()["limits"]
    limited.wait_for_log("[users] and [groups] are kept by limits of processes (setrlimit)")


EATS = f"""import os
kept = []
if os.environ.get("QUERY_STRING"):
    while True: kept.append(bytes(5_000_000))
print("{HEAD}\\n", len(kept))
"""


@pytest.mark.starts_processes
def test_a_memory_eater_loses_its_own_request_alone(limited: XSwitch, users: tuple[User, User]) -> None:
    alice, bob = users
    of_bob = bob.write("waits.py", WAITS)
    his = limited.asking(of_bob)
    script = alice.write("eats.py", EATS)
    assert limited.ask(script, QUERY_STRING="eat").status in (500, 502)
    assert limited.ask(script).status == 200 and his().status == 200, limited.log()
    fits = "held = bytes(300_000_000)\n" + PYTHON_HELLO
    assert limited.ask(bob.write("fits.py", fits)).text == "hello\n"  # he has the general limit
    assert limited.ask(alice.write("fits.py", fits)).status in (500, 502)


WRITES = {
    "writes.py": f"""import os
with open(os.path.expanduser("~/written-py"), "wb", 0) as file:
    try:
        taken = file.write(bytes(1 << 20)) + file.write(bytes(1))
    except OSError as reason:
        taken = reason.strerror
print("{HEAD}\\n", taken)
""",
    "writes.pl": """open my $file, ">", "$ENV{HOME}/written-pl" or die;
my $taken = syswrite($file, "x" x (1 << 20)) + (syswrite($file, "x") // 0) == (1 << 20) ? $! : "all";
print "Content-Type: text/plain\\r\\n\\r\\n $taken\\n";
""",
}


PROGRAM = f"""#!/usr/bin/perl
$| = 1;
{PERL_HEAD}
open my $file, '>', 'written' or die;
syswrite $file, 'x' x 20_000;
syswrite $file, 'x' or print $!;
kill PIPE => $$;
print 'it goes on';
"""


@pytest.mark.starts_processes
@pytest.mark.needs("Perl")
def test_a_plain_program_reads_that_its_file_is_too_large(tmp_path: Path) -> None:
    """The engine `cgi` gives a program the signals of a new process, except for the one of this limit."""
    program = tmp_path / "program"
    program.write_text(PROGRAM)
    program.chmod(0o755)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    with Driver(BUILT_IN["cgi"].command, become=limit) as engine:
        result = engine.ask(str(program))
    assert result.output.endswith(b"File too large") and result.status is None, result


@pytest.mark.starts_processes
@pytest.mark.parametrize("name", WRITES)
def test_a_file_has_the_size_that_its_user_may_write(
    name: str, limited: XSwitch, users: tuple[User, User]
) -> None:
    """The write fails, and neither the request nor the engine does."""
    alice, bob = users
    hers, his = (limited.ask(user.write(name, WRITES[name])) for user in users)
    assert (hers.status, hers.text) == (200, " File too large\n"), limited.log()
    assert his.status == 200 and "File too large" not in his.text, limited.log()
    written = [Path(user.home, f"written-{name[-2:]}").stat().st_size for user in (alice, bob)]
    assert written == [1 << 20, (1 << 20) + 1]


@pytest.mark.starts_processes
def test_the_time_of_a_request_is_the_users_own(limited: XSwitch, users: tuple[User, User]) -> None:
    late = f"import time\ntime.sleep(1.6)\nprint('{HEAD}\\nlate')\n"
    waits = [limited.asking(user.write("late.py", late)) for user in users]
    assert [wait().status for wait in waits] == [504, 200]
    limited.wait_for_log("late.py: 504, ended after 1 s (time-limit)")


@pytest.mark.starts_processes
def test_limits_that_no_engine_fits_into_harm_their_user_alone(users: tuple[User, User]) -> None:
    """Neither too little memory nor a wrong cgroup stops the others; the log has the reason."""
    alice, bob = users
    base = "/sys/fs/cgroup/no-such"
    settings = f"[users.{alice.name}]\nmemory = '1m'\n[limits]\nprocesses = 0\n"
    with xswitch(f"preload = false\ncgroup = 'off'\n{settings}") as running:
        for name in ("hello.py", "hello.pl"):
            text = PYTHON_HELLO if name.endswith("py") else f'print "{HEAD}\\nhello\\n";'
            assert running.ask(alice.write(name, text)).status in (500, 502, 503)
            assert running.ask(bob.write(name, text)).text == "hello\n", running.log()
    with xswitch(f"cgroup = '{base}'\n{settings}") as running:
        running.wait_for_log(f"no cgroups: {base} is no directory of cgroups v2 (cgroup)")
        assert running.ask(bob.write("hello.py", PYTHON_HELLO)).status == 200


@pytest.mark.starts_processes
def test_a_reload_changes_the_limits_of_a_group(users: tuple[User, User]) -> None:
    """Her table goes, and her group's comes: she has two engines, and a limit that her next engine bears."""
    alice, bob = users
    group = f"{alice.name}-g"
    subprocess.run(["groupadd", group], check=True)
    subprocess.run(["usermod", "-a", "-G", group, alice.name], check=True)
    script = alice.write("limits.py", f"print('{HEAD}\\n', open('/proc/self/limits').read())")
    try:
        with xswitch(
            f"[users.{alice.name}]\nengines = 1\ncpu = 77\n[limits]\nprocesses = 0\ncpu = 99"
        ) as running:
            assert cpu_of(running.ask(script)) == ["77", "77"]
            config = running.directory / "xswitch.toml"
            text = config.read_text().replace(f"[users.{alice.name}]", f"[groups.{group}]")
            config.write_text(text.replace("engines = 1", "engines = 2").replace("77", "55"))
            os.kill(running.process.pid, signal.SIGHUP)
            running.wait_for_log("the settings were read again")
            # The engine that runs keeps its limit. Both requests come at once, so the second one needs a new engine
            script_that_waits = alice.write("waits.py", f"import time\ntime.sleep(0.5)\n{script.read_text()}")
            waits = [running.asking(script_that_waits) for _ in range(2)]
            assert {tuple(cpu_of(wait())) for wait in waits} == {("77", "77"), ("55", "55")}, running.log()
            assert len([each for each in running.engines() if each["user"] == alice.name]) == 2
            config.write_text(text.replace("engines = 1", "engines = 'x'"))
            os.kill(running.process.pid, signal.SIGHUP)
            running.wait_for_log(f'groups.{group}.engines = "x": expected a whole number')
            assert running.ask(bob.write("hello.py", PYTHON_HELLO)).status == 200
    finally:
        subprocess.run(["groupdel", group], check=True)


def cpu_of(reply: Reply) -> list[str]:
    """Return both limits of CPU time in a script's /proc/self/limits."""
    assert reply.status == 200
    return next(line for line in reply.text.splitlines() if "Max cpu time" in line)[25:].split()[:2]
