"""The bench: the start of ewe and other servers, their measured resources, links; and locust beside httperf."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.server import wait_until

from ewe_lab import lab_bench
from ewe_lab.bench import links
from ewe_lab.bench.experiment import Load, ServerUnderTest
from ewe_lab.bench.processes import (
    TICKS_PER_S,
    LabError,
    busy_seconds,
    busy_seconds_of_core,
    find_tool,
    has_ended,
    process_tree,
    processes,
    running,
    server_core,
    share_of_core,
)
from ewe_lab.bench.progress import Progress
from ewe_lab.bench.results import Cell, Sample, Second
from ewe_lab.bench.watch import LOAD, SERVER, Reading, Watch, switches, usage_of_readings
from ewe_lab.lab_bench import CellJob, LabBench, adapted_load, expected_s, why_server_is_missing
from ewe_lab.load.run import run
from ewe_lab.load.wrk import WrkReport
from ewe_lab.stacks import other_servers, servers


class Quiet:
    """A terminal that is none, and forgets."""

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[LabBench]:
    """A bench that measures once, on any core (others test at the same time)."""
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")  # a server that is someone else has to get there
    with LabBench(Progress(file=Quiet()), quick=True, repeats=1) as made:  # type: ignore[arg-type]
        yield made
        directory = made.directory
    assert not directory.exists()


# ---------------------------------------------------------------------------------------------------------
# Trust


def same(one: Sample, other: Sample, sessions: int, calls: int) -> bool:
    """Whether two tools counted the same, but for so many sessions that fared otherwise."""
    return all(
        abs(a - b) <= sessions * calls + 1
        for a, b in (
            (one.requests, other.requests),
            (one.replies, other.replies),
            (one.errors.get("ct", 0), other.errors.get("ct", 0)),
            (sum(one.errors.values()), sum(other.errors.values())),
        )
    )


THREAD = (
    ServerUnderTest("thread", model="thread"),
    Load("arrivals", rate=50, sessions=50, calls=5, think=0.1, seconds=20),
)
POOL = (
    ServerUnderTest("pool", model="pool", options=("--parking", "never", "--poolthreads", "5")),
    Load("arrivals", rate=50, sessions=100, calls=10, think=0.1, seconds=20, timeout=1.5),
)


@pytest.mark.starts_processes
@pytest.mark.parametrize(("tested", "load"), [THREAD, POOL], ids=["thread", "pool"])
def test_locust_and_httperf_count_the_same(lab: LabBench, tested: ServerUnderTest, load: Load) -> None:
    """The loads of 2006, shorter: a thread each answers all; five workers held by thinking clients do not."""
    root = lab.site([])
    found = []
    for tool in ("locust", *(["httperf"] if find_tool("httperf") else [])):
        with lab.start(tested, root) as server:
            found.append(lab.load(server, replace(load, tool=tool)))
    ours, theirs = found[0], found[-1]
    # How many time out in the pool's queue depends on how busy the machine was: two batches of five more or fewer,
    # and one session at each end of the queue. The thread model answers all, however busy the machine is.
    different = 0 if tested.name == "thread" else 12
    assert same(ours, theirs, different, load.calls), (ours, theirs)
    assert abs(ours.errors.get("ct", 0) - theirs.errors.get("ct", 0)) <= different, (ours, theirs)
    assert load.sessions and load.rate
    assert min(ours.seconds, theirs.seconds) > (load.sessions - 1) / load.rate  # both kept the schedule
    if tested.name == "thread":
        assert (ours.requests, ours.replies, ours.errors) == (250, 250, {})
    else:
        # Five at a time think for 0.9 s, and the last session waits until 1.98 + 1.5 s. At most four batches are
        # served, and one or two more if a busy machine begins sessions late. Two batches at least are served,
        # because a worker that a client has left serves the next.
        assert 70 <= ours.errors["ct"] <= 90
        assert ours.replies == 1000 - 10 * ours.errors["ct"]  # each client that is served has all ten answers


# ---------------------------------------------------------------------------------------------------------
# Cells


@pytest.mark.starts_processes
def test_a_cell(lab: LabBench) -> None:
    lab.repeats = 2
    # The reading after two seconds has to come before the children end, also on a busy machine: the switches after
    # the last reading are not counted.
    load = Load(users=10, think=0.05, seconds=2.8, warm_up=0.3, path="/2000.html", length=2000)
    cell = lab.fill_cell(ServerUnderTest("fork", model="fork"), load, Cell("fork"), lab.site([2000]))
    assert cell.failure == ""
    assert cell.command == "ewe --model fork --requests 0"
    assert cell.load == "10 users, 50 ms think time, 2.8 s"
    assert len(cell.samples) == 2
    for sample in cell.samples:
        usage = sample.usage
        assert usage is not None
        assert sample.errors == {}
        assert usage.processes == 11  # and a child for each
        assert usage.threads == 11
        assert usage.descriptors is not None
        assert usage.descriptors > 20
        assert usage.memory is not None
        assert 5e6 < usage.memory < 5e8
        assert 0 < usage.cpu < sample.seconds
        assert usage.voluntary is not None
        assert usage.voluntary >= sample.replies * 0.5  # each falls asleep between requests
        assert sample.timeline[0].processes == 11
        assert sample.timeline[0].cpu is not None
        assert 0 < sample.timeline[0].cpu < 1
    assert os.listdir(lab.directory) == ["site"]


@pytest.mark.starts_processes
def test_a_cell_that_fails_says_why(lab: LabBench) -> None:
    root = lab.site([])
    load = Load(users=1, seconds=1)
    broken = ServerUnderTest("broken", model="thread", options=("--nonsense",))
    cell = lab.fill_cell(broken, load, Cell("broken"), root)
    assert cell.failure.startswith("ewe did not start: ewe: unknown option --nonsense")
    cell = lab.fill_cell(
        ServerUnderTest("thread", model="thread"),
        Load(users=1, path="/missing", seconds=1),
        Cell("thread"),
        root,
    )
    assert (cell.failure, cell.samples) == ("a first request was answered with 404", [])


def test_many_cells_take_turns(lab: LabBench, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.repeats = 3
    order = []

    def once(job: CellJob, repeat: int) -> bool:
        order.append(job.cell.server)
        if job.cell.server == "c":
            job.cell.failure = "no"
        return True

    monkeypatch.setattr(lab, "measure_once", once)
    jobs = [CellJob(ServerUnderTest(name), Load(), Cell(name), Path()) for name in "abc"]
    assert [cell.server for cell in lab.fill_cells_in_turns(jobs)] == ["a", "b", "c"]
    assert order == ["a", "b", "c", "b", "a", "a", "b"]


def test_a_load_fits_the_server() -> None:
    saturation = Load("saturation", users=500)
    assert adapted_load(saturation, ServerUnderTest("serial", most=1)).users == 1
    assert adapted_load(saturation, ServerUnderTest("apache-prefork", "apache-prefork")).users == 256
    assert (
        adapted_load(Load("saturation", users=500, keep_alive=False), ServerUnderTest("serial", most=1)).users
        == 500
    )
    assert adapted_load(Load(users=500), ServerUnderTest("serial", most=1)).users == 500
    # What a Java server does in its first seconds is to compile.
    assert (
        adapted_load(Load(warm_up=1), ServerUnderTest("tomcat", "tomcat")).warm_up
        == other_servers.OTHER_SERVERS["tomcat"].warm_up_s
        == 3
    )
    assert adapted_load(Load(warm_up=5), ServerUnderTest("tomcat", "tomcat")).warm_up == 5


def test_estimates() -> None:
    assert expected_s(Load(seconds=4, warm_up=1)) == lab_bench.OVERHEAD_S + 5
    assert expected_s(Load("arrivals", phases=((1, 2), (3, 4)), warm_up=0)) == lab_bench.OVERHEAD_S + 4
    # A number of sessions has no warm-up
    assert (
        expected_s(Load("arrivals", sessions=100, rate=50, seconds=60, warm_up=1)) == lab_bench.OVERHEAD_S + 2
    )


@pytest.mark.starts_processes
def test_one_core_is_said_so(lab: LabBench) -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        with LabBench(lab.progress, repeats=1) as single:
            assert single.server_core is single.load_core is None
            load = Load(users=1, think=0.05, seconds=0.3, warm_up=0)
            cell = single.fill_cell(
                ServerUnderTest("thread", model="thread"), load, Cell("thread"), single.site([])
            )
            assert cell.samples
            assert single.notes == [lab_bench.ONE_CORE]
    finally:
        os.sched_setaffinity(0, before)


# ---------------------------------------------------------------------------------------------------------
# The measured resources of a server

BUSY = """
import os, sys, threading, time

stop = time.monotonic() + float(sys.argv[1])
for _ in range(3):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
ready, tell = os.pipe()
if os.fork() == 0:
    block = bytearray(os.urandom(1)) * 50_000_000
    os.write(tell, b"x")
    time.sleep(60)
os.read(ready, 1)
print("ready", flush=True)
while time.monotonic() < stop:
    time.sleep(0.001)
time.sleep(60)
"""


@pytest.mark.starts_processes
def test_what_a_tree_of_processes_uses() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BUSY, "30"], stdout=subprocess.PIPE, start_new_session=True
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        family = process_tree(started.pid)
        try:
            with Watch(started.pid) as watch:
                watch.begin()
                began = time.monotonic()
                time.sleep(2.3)
                watch.end()
                lasted = time.monotonic() - began
        finally:
            for each in family:
                os.kill(each.pid, 9)
    usage = watch.usage()
    assert (usage.processes, usage.threads) == (2, 5)
    assert usage.memory is not None
    assert 50e6 < usage.memory < 100e6
    assert usage.voluntary is not None
    assert 50 < usage.voluntary < 1000 * lasted  # it sleeps 1 ms, again and again
    assert 0 < usage.cpu < lasted
    timeline = [Second(number) for number in range(60)]
    watch.add_to_timeline(timeline)
    assert [second.processes for second in timeline[:2]] == [2, 2]
    assert timeline[-1].processes is None
    assert all(second.switches for second in timeline[:2])


def test_what_was_used_in_a_phase() -> None:
    watch = Watch(1)
    for number, (cpu, memory) in enumerate(((0.0, 5e6), (0.5, 7e6), (1.5, 9e6), (2.5, None), (2.6, 6e6))):
        watch.readings.append(Reading(100.0 + number * 1.01, cpu, number, 1, None, memory, 10 * number, 0))
    first, second = watch.usage_between(0.0, 1.0), watch.usage_between(1.0, 4.0)
    assert first is not None and second is not None
    assert (first.cpu, first.memory, first.processes) == (pytest.approx(0.5, rel=0.02), 7e6, 1)
    assert (second.cpu, second.memory, second.processes) == (pytest.approx(2.1, rel=0.02), 9e6, 4)
    assert second.voluntary == 30
    assert watch.usage_between(7.0, 9.0) is None


@pytest.mark.parametrize(
    ("run_s", "wait_s", "waited_s"),
    [
        (1.95, 0.7, 0.5),
        # Threads with more than a tenth of the CPU time ended between two readings
        (1.7, 0.7, None),
        # A kernel that does not measure them
        (1.0, 0.2, None),
        (None, None, None),
    ],
)
def test_waits_for_a_core_are_known_only_if_almost_all_threads_were_read(
    run_s: float | None, wait_s: float | None, waited_s: float | None
) -> None:
    """The server has 1 s of CPU time between two readings."""
    first = Reading(100.0, 3.0, 1, 1, None, None, 0, 0, run_s=1.0, wait_s=0.2)
    last = Reading(102.0, 4.0, 1, 1, None, None, 0, 0, run_s=run_s, wait_s=wait_s)
    found_s = usage_of_readings([first, last]).wait_s
    assert found_s == (None if waited_s is None else pytest.approx(waited_s))


TWO_ON_ONE_CORE = """import os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
if os.fork(): print("ready", flush=True)
while True: pass
"""


@pytest.mark.starts_processes
def test_two_processes_on_one_core_wait_for_each_other() -> None:
    with subprocess.Popen([sys.executable, "-c", TWO_ON_ONE_CORE], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        family = process_tree(started.pid)
        try:
            with Watch(started.pid) as watch:
                watch.begin()
                time.sleep(1.2)
                watch.end()
        finally:
            for each in family:
                os.kill(each.pid, 9)
    usage = watch.usage()
    # Two processes that never sleep share a core: each waits while the other one runs
    assert usage.wait_s is not None and usage.wait_s > 0.5 * usage.cpu


@pytest.mark.starts_processes
def test_a_process_that_has_gone_can_still_be_looked_at() -> None:
    with subprocess.Popen(["true"]) as started:
        started.wait()
    with Watch(started.pid) as watch:
        watch.begin()
        watch.end()
    assert watch.usage().processes == 0


def test_a_full_core_is_full_although_the_load_also_starts_and_ends() -> None:
    """0.6 s are measured, within 0.7 s."""
    watch = Watch(1, server_core=0, load_core=1)
    watch.readings = [Reading(at, 0.0, 1, 1, None, None, 0, 0) for at in (100.0, 100.7)]
    watch.core_busy_s = {SERVER: 0.61, LOAD: 0.15}
    assert watch.busy_share(SERVER, 0.6) == 1.0
    assert watch.busy_share(LOAD, 0.6) == pytest.approx(0.25)


def test_one_denominator_and_no_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that was busy for 0.3 s with programs, for 0.2 s with interrupts, and had 0.1 s of steal."""
    text = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 10 0 20 500 5 7 13 10 0 0\nintr 5\n"
    monkeypatch.setattr(Path, "read_text", lambda path, **options: text)
    assert busy_seconds_of_core(0) == busy_seconds((0, 1)) == 40 / TICKS_PER_S
    assert share_of_core(0.61, 0.6) == 1.0 and share_of_core(1.0, 0.0) == 0.0
    report = WrkReport(100, 0.8, 1e3, 125.0, {}, cpu_s=0.4)
    monkeypatch.setattr("ewe_lab.load.run.run_wrk", lambda *arguments, **options: report)
    # wrk ran for 0.8 s of measured time; the time in which it started counts for no share
    assert run(Load("saturation", users=1, seconds=0.8, warm_up=0, tool="wrk"), "http://x/").client == 0.5


@pytest.mark.starts_processes
@pytest.mark.parametrize("ignores", [True, False])
def test_programs_that_nobody_waits_for_have_the_cpu_time_of_the_core(ignores: bool) -> None:
    """The kernel adds their CPU time to nothing: it was even negative if one ran at the begin."""
    code = (
        "import signal, subprocess, sys, time\n"
        f"signal.signal(signal.SIGCHLD, signal.{'SIG_IGN' if ignores else 'SIG_DFL'})\n"
        "burn = 'import time\\nwhile time.process_time() < 0.4: pass'\n"
        "while True: subprocess.run([sys.executable, '-c', burn])"
    )
    core = server_core()
    with tempfile.TemporaryFile() as output, running([sys.executable, "-c", code], output, core) as started:
        wait_until(lambda: len(process_tree(started.pid)) == 2, 20)
        with Watch(started.pid, core) as watch:
            watch.begin()
            time.sleep(2.5)
            watch.end()
    assert watch.forgets_programs is ignores
    assert watch.usage().cpu > (1.0 if ignores else 0.1)
    assert ("that of the server's core" in watch.note_on_cpu()) is ignores


def test_a_measurement_that_begins_again_forgets_the_first_one() -> None:
    with Watch(os.getpid()) as watch:
        watch.begin()
        again = time.monotonic()
        watch.begin()
        watch.end()
    assert watch.readings[0].at >= again


def test_a_reading_in_progress_is_forgotten_when_a_measurement_begins_again() -> None:
    """The thread had begun it before, and added it after begin() had cleared the readings: it was the first one."""
    watch = Watch(os.getpid())
    earlier = Reading(0.0, 0.0, 1, 1, None, None, 0, 0)
    is_reading = threading.Event()

    def read_slowly() -> None:
        with watch.lock:
            is_reading.set()
            time.sleep(0.05)
            watch.readings.append(earlier)

    thread = threading.Thread(target=read_slowly)
    with watch:
        thread.start()
        is_reading.wait()
        watch.begin()
        thread.join()
    assert earlier not in watch.readings


def test_a_process_that_ends_while_its_threads_are_listed_ends_no_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Path.glob() calls os.scandir(), which raises this error then, and so ended the thread that reads."""

    def scan(path: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(os, "scandir", scan)
    assert switches(os.getpid())


class NotedLock:
    """A lock that notes when it is taken."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    def __enter__(self) -> None:
        self.notes.append("lock")

    def __exit__(self, *exception: object) -> None:
        pass


def test_the_cpu_time_of_the_end_does_not_wait_for_a_slow_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed users go on after the end: their CPU time would count for the replies before it."""
    notes: list[str] = []

    def read_cpu(*pids: int) -> float:
        notes.append("cpu")
        return 0.0

    monkeypatch.setattr("ewe_lab.bench.watch.cpu_seconds", read_cpu)
    watch = Watch(os.getpid())
    watch.lock = NotedLock(notes)  # type: ignore[assignment]
    watch.take_reading()
    assert notes == ["cpu", "lock"]


@pytest.mark.starts_processes
def test_a_server_that_ends_during_its_load_has_no_figures(
    lab: LabBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lab.start(ServerUnderTest("thread", model="thread"), lab.site([])) as server:

        def kill_server(
            load: Load, url: str, core: int | None, watch: Watch, prefix: Sequence[str]
        ) -> Sample:
            watch.begin()
            os.kill(server.pid, signal.SIGKILL)
            wait_until(lambda: has_ended(server.pid), 5)
            watch.end()
            return Sample("wrk", 1.0, 9, 9)

        monkeypatch.setattr(lab_bench, "run", kill_server)
        with pytest.raises(LabError, match="the server ended during the load"):
            lab.load(server, Load())


# ---------------------------------------------------------------------------------------------------------
# Other servers

# Servers that no test needs are tried where they are installed: h2o, Caddy, Yaws, waitress, granian.
NEEDED = {
    "nginx": "nginx",
    "apache-event": "apache2",
    "apache-worker": "apache2",
    "apache-prefork": "apache2",
    "lighttpd": "lighttpd",
    "tomcat": "Tomcat",
}
OTHER_SERVERS = [
    pytest.param(name, marks=pytest.mark.needs(NEEDED[name]) if name in NEEDED else ())
    for name, other_server in other_servers.OTHER_SERVERS.items()
    if name in NEEDED or not other_server.why_missing
]


@pytest.mark.starts_processes
@pytest.mark.parametrize("name", OTHER_SERVERS)
def test_another_server_that_is_here_serves_the_site(lab: LabBench, name: str) -> None:
    with lab.start(ServerUnderTest(name, name), lab.site([5000])) as server:
        family = [each.pid for each in process_tree(server.pid)]
        lab.probe(server, Load(path="/index.html", length=1024))
        if not name.startswith("floor-"):  # a floor answers each request with the index
            lab.probe(server, Load(path="/5000.html", length=5000))
            with pytest.raises(LabError, match="404"):
                lab.probe(server, Load(path="/nothing.html"))
        sessions = {each.session for each in process_tree(server.pid)}
        # Erlang's helper has one of its own, and ends by itself
        assert sessions == {server.pid} or name == "yaws"
    wait_until(
        lambda: not [each for each in processes() if each.pid in family and each.state not in "ZX"], 20
    )
    assert os.listdir(lab.directory) == ["site"]


SECURE = [each for each in OTHER_SERVERS if other_servers.OTHER_SERVERS[str(each.values[0])].tls_file]


@pytest.mark.starts_processes
@pytest.mark.parametrize("name", [*SECURE, "ewe"])
def test_tls(lab: LabBench, name: str) -> None:
    tested = ServerUnderTest("thread", model="thread") if name == "ewe" else ServerUnderTest(name, name)
    with lab.start(tested, lab.site([]), tls=True) as server:
        assert server.url.startswith("https://")
        lab.probe(server, Load(length=1024))


def test_what_is_missing_is_named_with_its_package(lab: LabBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_servers, "find_tool", lambda name: None)
    monkeypatch.setattr(other_servers, "find_spec", lambda name: None)
    wanted = [
        ServerUnderTest("nginx", "nginx"),
        ServerUnderTest("waitress", "waitress"),
        ServerUnderTest("x", "x"),
        ServerUnderTest("thread", model="thread"),
        ServerUnderTest("rope", model="rope"),
    ]
    assert [each.name for each in lab.servers(wanted)] == ["thread"]
    assert lab.notes[:3] == [
        "nginx is not installed: apt install nginx-light",
        "waitress is not installed: pip install waitress",
        "x: there is no server 'x'",
    ]
    assert lab.notes[3].startswith("rope: ")
    with pytest.raises(LabError, match="apt install nginx-light"), lab.start(wanted[0], lab.site([])):
        pass


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    "name", [each for each in OTHER_SERVERS if each.values[0] in other_servers.MULTI_PROCESS_SERVERS]
)
def test_another_server_with_several_processes(lab: LabBench, name: str) -> None:
    with lab.start(ServerUnderTest(name, name, options=("--workers", "2")), lab.site([])) as server:
        lab.probe(server, Load(length=1024))
        assert sum(each.parent == server.pid for each in processes()) == 2


def test_another_server_that_has_one_process_says_so(lab: LabBench) -> None:
    with pytest.raises(LabError, match=r"http\.server with one process only"):
        lab.start(ServerUnderTest("x", "http.server", options=("--workers", "2")), lab.site([])).__enter__()


@pytest.mark.starts_processes
@pytest.mark.needs("nginx")
def test_another_server_that_does_not_start_says_why(lab: LabBench) -> None:
    wrong = servers.run_other_server("nginx", "-y", root=lab.site([]), directory=lab.directory)
    with pytest.raises(LabError, match=r"^nginx does not listen at its port: .*invalid option"), wrong:
        pass


def test_every_server_can_be_explained() -> None:
    for name, other_server in other_servers.OTHER_SERVERS.items():
        assert other_server.name == name
        assert other_server.about
        assert why_server_is_missing(ServerUnderTest(name, name)) == other_server.why_missing


# ---------------------------------------------------------------------------------------------------------
# Links


@pytest.mark.starts_processes
def test_a_link_is_as_slow_as_it_should_be_or_says_why_it_is_not_there(lab: LabBench) -> None:
    load = Load(users=1, seconds=2, warm_up=0.5, path="/131072.html", length=131072)
    with lab.behind_link("100mbit") as why:
        if not why:
            cell = lab.fill_cell(
                ServerUnderTest("thread", model="thread"), load, Cell("thread"), lab.site([131072])
            )
            assert cell.failure == ""
            sample = cell.samples[0]
            assert sample.received * 8 / sample.seconds < 105e6
            # A busy machine leaves the link idle between answers, but hardly within the fastest one.
            assert sample.service is not None
            assert 131072 * 8 / sample.service.buckets[0][0] > 50e6
    assert "\n" not in why
    assert not why or why.startswith("no link of 100mbit")
    assert lab.command_prefix == []


@pytest.mark.starts_processes
@pytest.mark.needs("ip")
def test_links_that_cannot_be_made(lab: LabBench, monkeypatch: pytest.MonkeyPatch) -> None:
    with lab.behind_link("1 tbit") as why:
        assert why == "there is no link of '1 tbit'; there are 10mbit, 100mbit, 1gbit"
    monkeypatch.setattr(links, "LINK_SCRIPT", "echo not permitted >&2; exit 1 # {ip} {tc} {speed}")
    with lab.behind_link("10mbit") as why:
        assert why.startswith("no link of 10mbit can be made here: ")
    monkeypatch.setattr(links, "find_tool", lambda name: None)
    with lab.behind_link("10mbit") as why:
        assert why == "no link of 10mbit: ip and tc missing: apt install iproute2"
