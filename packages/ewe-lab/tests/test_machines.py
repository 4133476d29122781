"""Targets and load on other machines: what an agent says is checked, and nothing is left running there."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import four_machines
import pytest
from support.proc import command_line
from support.server import wait_until

from ewe_lab.bench import processes
from ewe_lab.bench.experiment import Load
from ewe_lab.bench.processes import OUTPUT_BYTES, LabError
from ewe_lab.bench.results import Cell, Sample, Usage, load
from ewe_lab.load.histogram import Histogram
from ewe_lab.load.merged import merge_counts, pack_counts, pack_histogram
from ewe_lab.load.probe import probe
from ewe_lab.load.recorder import Recorder
from ewe_lab.machines import agent, session, workers
from ewe_lab.machines.session import Session, SshHost, parse_host, ssh_command
from ewe_lab.machines.watch import TargetServer, TargetWatch, parse_reading
from ewe_lab.report.terminal import row_texts

MACHINES = ("root", "ip", "sshd", "/dev/net/tun")

# ---------------------------------------------------------------------------------------------------------
# Without another machine


@pytest.mark.parametrize(
    "text",
    [
        "-oProxyCommand=id",
        "a@-oProxyCommand=id",
        "-l@host",
        "a b",
        "a;id",
        "$(id)",
        "",
        "a:0",
        "a:65536",
        "a\n",
    ],
)
def test_a_host_is_never_an_option_of_ssh(text: str) -> None:
    with pytest.raises(LabError, match="is not a host for ssh"):
        parse_host(text)


def test_a_host_with_all_its_parts() -> None:
    assert parse_host("me@lab-7.example:2222") == SshHost("lab-7.example", "me", 2222)
    assert parse_host("[fe80::1]") == SshHost("fe80::1")
    command = ssh_command(parse_host("me@lab7:2222"), ("ssh", "-i", "key"), 5557, "true")
    assert command[:4] == ["ssh", "-i", "key", "-T"] and command[-3:] == ["--", "lab7", "true"]
    assert "BatchMode=yes" in command and "127.0.0.1:0:127.0.0.1:5557" in command


GARBAGE = {
    "head -c 200000 /dev/zero; sleep 60": "no message of the lab's agent",
    "yes hello": "no message of the lab's agent",
    "echo '@ewe-lab [1'; sleep 60": "no message of the lab's agent",
    "echo '@ewe-lab 7'; sleep 60": "no message of the lab's agent",
    """echo '@ewe-lab {"failed": "\\u001b[31mno"}'; sleep 60""": r"lab7: \?\[31mno$",
    "echo 'Permission denied (publickey).' >&2; exit 255": "ssh-copy-id",
    "echo 'Host key verification failed.' >&2; exit 255": "check and accept its key",
    "exit 3": "ssh ended with status 3",
    "exec >&-; exec sleep 60": r"ssh closed its output, and did not end within 0\.2 s",
    "sleep 60": "did not answer in time",
}


@pytest.mark.starts_processes
@pytest.mark.parametrize("script", GARBAGE)
def test_what_ssh_brings_is_checked(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "CONNECT_S", 3.0)
    monkeypatch.setattr(session, "END_S", 0.2)
    fake = tmp_path / "ssh"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    with Session(SshHost("lab7"), ssh=(str(fake),)) as talk, pytest.raises(LabError, match=GARBAGE[script]):
        talk.begin({"role": "clock"})
    assert talk.process.returncode is not None


@pytest.mark.starts_processes
def test_an_ssh_that_does_not_start_leaves_no_descriptor_open(tmp_path: Path) -> None:
    fake = tmp_path / "ssh"
    fake.write_bytes(b"no program")
    fake.chmod(0o755)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(LabError, match="does not start: Exec format error") as raised:
        Session(SshHost("lab7"), ssh=(str(fake),))
    assert os.listdir("/proc/self/fd") == before, raised.traceback  # which keeps the session


@pytest.mark.starts_processes
def test_standard_error_of_another_machine_fills_no_disk(tmp_path: Path) -> None:
    """The conversation goes on, and the first words are kept."""
    fake = tmp_path / "ssh"
    fake.write_text(
        "#!/bin/sh\necho 'Permission denied (publickey).' >&2\nhead -c 1000000 /dev/zero >&2\n"
        'echo \'@ewe-lab {"ready": "nginx"}\'\nexec cat >/dev/null\n'
    )
    fake.chmod(0o755)
    with Session(SshHost("lab7"), ssh=(str(fake),)) as talk:
        assert talk.begin({"role": "reader"}) == {"ready": "nginx"}
        assert os.fstat(talk.errors.fileno()).st_size == OUTPUT_BYTES
        assert talk.error_text().startswith("Permission denied (publickey).\n")


@pytest.mark.starts_processes
def test_an_ssh_that_does_not_end_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real ssh may have started a ProxyCommand."""
    monkeypatch.setattr(session, "END_S", 0.2)
    fake = tmp_path / "ssh"
    fake.write_text('#!/bin/sh\nsleep 300 &\necho \'@ewe-lab {"ready": "nginx"}\'\nwait\n')
    fake.chmod(0o755)
    with Session(SshHost("lab7"), ssh=(str(fake),)) as talk:
        talk.begin({"role": "reader"})
        assert len(family_of(talk)) == 2
    assert family_of(talk) == []


def family_of(talk: Session) -> list[int]:
    """Return the processes of a session that have not ended."""
    return [
        each.pid
        for each in processes.processes()
        if each.session == talk.process.pid and each.state not in processes.ENDED_STATES
    ]


@pytest.mark.parametrize("answer", [None, "1", -1, float("nan"), float("inf"), 10**400])
def test_a_clock_that_cannot_be_is_said(answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = object.__new__(Session)
    talk.host = SshHost("lab7")
    monkeypatch.setattr(talk, "ask", lambda word: {"clock": answer})
    with pytest.raises(LabError, match="lab7 has no clock to read"):
        talk.clock_offset()


class Talker:
    """A session whose worker prints without end. The load ends after its third line."""

    data = b"\n"
    lines = 0

    def __init__(self, stopped: threading.Event) -> None:
        self.stopped = stopped

    def send(self, data: bytes, deadline: float) -> None:
        pass

    def receive(self, deadline: float) -> dict[str, str]:
        assert not self.stopped.is_set(), "the end of the load did not stop the reading"
        self.lines += 1
        if self.lines == 3:
            self.stopped.set()
        return {"said": "a line"}


def test_a_worker_that_prints_without_end_does_not_hold_the_lab() -> None:
    keeper = workers.SessionKeeper([], None)  # type: ignore[arg-type]
    talker = Talker(keeper.stopped)
    keeper.exchange_signs_of_life(talker)  # type: ignore[arg-type]
    assert talker.lines == 3


AGENT = """import ewe_lab.machines.agent as agent
agent.SILENCE_S = {silence_s}
agent.main()
"""
SLEEPER = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


@pytest.mark.starts_processes
@pytest.mark.needs("locust")
@pytest.mark.parametrize(
    ("silence_s", "closes"), [(3600, True), (10, False)], ids=["end of input", "silence"]
)
def test_an_agent_without_a_lab_ends_with_its_worker(silence_s: int, closes: bool) -> None:
    """The silence is longer than the start of the worker takes on a busy machine."""
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("sleeper.py", SLEEPER)
    code = archive.getvalue()
    order = {
        "role": "worker",
        "bytes": len(code),
        "module": "sleeper",
        "locust": version("locust"),
        "load": {},
    }
    command = [sys.executable, "-c", AGENT.format(silence_s=silence_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdin is not None and agent.stdout is not None
        try:
            agent.stdin.write(json.dumps(order).encode() + b"\n" + code)
            agent.stdin.flush()
            said = [json.loads(agent.stdout.readline().removeprefix(session.MARK)) for _ in range(2)]
            (worker,) = (int(each["said"]) for each in said if "said" in each)
            if closes:
                agent.stdin.close()
            wait_until(lambda: agent.poll() is not None and not command_line(worker), 20)
        finally:
            agent.kill()


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpu": float("nan")},
        {"cpu": "1"},
        {"cpu": 10**400},
        {"memory": -1},
        {"memory": 10**400},
        {"threads": None},
        {"processes": -1},
        {"descriptors": -1},
        {"descriptors": 10**400},
        {"voluntary": 10**400},
        {"run_s": "1"},
        {"wait_s": -0.5},
        {"wait_s": float("nan")},
    ],
)
def test_figures_of_an_agent_are_checked(wrong: dict[str, object]) -> None:
    right: dict[str, object] = {"cpu": 1, "memory": None, "descriptors": 3, "processes": 1, "threads": 1,
                                "voluntary": 5, "involuntary": 0}  # fmt: skip
    assert parse_reading(right).cpu == 1
    assert parse_reading(right | {"run_s": 2, "wait_s": 0.5}).wait_s == 0.5
    with pytest.raises(LabError, match="cannot be read"):
        parse_reading(right | wrong)


BUSY = """import socket, sys, time
sock = socket.create_server(("127.0.0.1", 0)); print(sock.getsockname()[1], flush=True)
while sys.stdin.read(1):
    end = time.process_time() + 0.2
    while time.process_time() < end: pass
    print()
"""


@pytest.mark.starts_processes
def test_the_resources_of_the_process_at_a_port() -> None:
    with subprocess.Popen(
        [sys.executable, "-uc", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as busy:
        assert busy.stdin is not None and busy.stdout is not None
        server = TargetServer(f"http://127.0.0.1:{busy.stdout.readline().strip()}/", SshHost(""))
        with server.watch(None) as watch:
            watch.begin()
            busy.stdin.write("x")
            busy.stdin.flush()
            busy.stdout.readline()
            watch.end()
        usage = watch.usage()
        assert usage is not None and usage.memory and "python" in watch.sentence()
        assert 0.2 <= usage.cpu < 1
        assert usage.wait_s is not None and usage.wait_s >= 0
        assert (usage.processes, usage.threads) == (1, 1)
        busy.stdin.close()


@pytest.mark.starts_processes
def test_resources_that_cannot_be_read_are_unknown() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        watch = TargetWatch(SshHost(""), unused.getsockname()[1], None, ("ssh",))
        with watch:
            watch.begin()
            watch.end()
    assert watch.usage() is None
    assert "no process of that machine listens at port" in watch.sentence()


def test_a_table_says_that_the_resources_of_a_target_are_unknown() -> None:
    known = row_texts(
        Cell("web1", samples=[Sample("locust", 1.0, 9, 9, usage=Usage(0.1, 5e6), elsewhere=True)])
    )
    unknown = row_texts(Cell("web1", samples=[Sample("locust", 1.0, 9, 9, elsewhere=True)]))
    assert (unknown["CPU µs"], unknown["memory"]) == ("unknown", "unknown")
    assert "unknown" not in known.values()


REDIRECTING = """import socket
sock = socket.create_server(("127.0.0.1", 0)); print(sock.getsockname()[1], flush=True)
client, _ = sock.accept(); client.recv(65536)
client.sendall(b"HTTP/1.1 302 Found\\r\\nLocation: /there\\r\\nContent-Length: 0\\r\\n\\r\\n"); client.recv(1)
"""


@pytest.mark.starts_processes
def test_a_redirect_is_said() -> None:
    with subprocess.Popen([sys.executable, "-c", REDIRECTING], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        wrong, remark = probe(f"http://127.0.0.1:{server.stdout.readline().strip()}/here", None)
    assert wrong == ""
    assert remark == "/here is answered with the redirect 302, which the load does not follow."


def recorded(seed: int, count: int) -> Recorder:
    """A recorder with times that grow, in the first second of two."""
    found = Recorder(False)
    found.set_window(0.0, 2.0)
    for number in range(count):
        found.requests += 1
        found.replies += 1
        found.second_of(0.5).replies += 1
        found.service.add((seed + number) / 1000)
        found.times_by_second[0].add((seed + number) / 1000)
    found.errors["ref"] += seed
    return found


def test_percentiles_are_those_of_all_workers_together() -> None:
    """One worker has the fast answers, and few; a mean of percentiles would be far off."""
    parts = json.loads(json.dumps([pack_counts(recorded(1, 50)), pack_counts(recorded(1000, 950))]))
    sample = merge_counts(parts, scheduled=False).sample("locust")
    whole = Histogram()
    for times in (range(1, 51), range(1000, 1950)):
        for milliseconds in times:
            whole.add(milliseconds / 1000)
    assert sample.service == whole.times()
    assert (sample.replies, sample.rate, sample.errors) == (1000, 500.0, {"ref": 1001})
    assert sample.timeline[0].replies == 1000


NO_TIMES = pack_histogram(Histogram())


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"service": None},
        {"seconds": [[1]]},
        {"errors": []},
        {"length": 1e12},
        {"service": NO_TIMES | {"counts": [[1 << 60, 1]]}},
        {"service": NO_TIMES | {"counts": [[-1, 1]]}},
    ],
)
def test_counts_of_a_worker_are_checked(wrong: dict[str, object]) -> None:
    part = pack_counts(recorded(1, 5)) | wrong if wrong else {}
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        merge_counts([part], scheduled=False)


def test_an_infinite_count_of_a_worker_is_an_error() -> None:
    with pytest.raises(OverflowError):
        merge_counts([pack_counts(recorded(1, 5)) | {"received": math.inf}], scheduled=False)


@pytest.mark.starts_processes
@pytest.mark.needs("locust")
def test_the_modules_that_travel_are_enough(tmp_path: Path) -> None:
    """The worker starts from the zip file alone, on a machine without ewe, and says why it cannot go on."""
    assert "ewe_lab/load/worker.py" in zipfile.ZipFile(BytesIO(workers.archive())).namelist()
    (tmp_path / "code.zip").write_bytes(workers.archive())
    order = {"url": "http://no-such-host.invalid/", "load": {}, "number": 0, "of": 1, "port": 1}
    done = subprocess.run(
        [sys.executable, "-c", "import runpy, sys; sys.meta_path[:] = [each for each in sys.meta_path if"
         " 'editable' not in repr(each)]; runpy.run_module('ewe_lab.load.worker', run_name='__main__')"],
        input=json.dumps(order), env={"PYTHONPATH": str(tmp_path / "code.zip"), "PATH": os.environ["PATH"]},
        cwd=tmp_path, capture_output=True, text=True, timeout=170,
    )  # fmt: skip
    assert done.stderr.startswith("cannot load http://no-such-host.invalid/: "), done.stderr


@pytest.mark.starts_processes
@pytest.mark.parametrize(("offset", "said"), [(5.0, "ahead of ours"), (-5.0, "behind ours"), (0.0, "")])
def test_a_clock_that_differs_is_said(
    offset: float, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is read through a program that stands for ssh and drops its options."""
    fake = tmp_path / "ssh"
    fake.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    fake.chmod(0o755)
    own = time.time
    monkeypatch.setattr(session.time, "time", lambda: own() - offset)
    hosts = workers.LoadHosts([parse_host("lab7"), parse_host("lab7")], (str(fake),), sys.executable)
    hosts.check_clocks()
    assert len(hosts.notes) == bool(said)
    assert not said or said in hosts.notes[0]
    ahead, error = hosts.offsets["lab7"]
    assert abs(ahead - offset) <= error + 0.001


@pytest.mark.starts_processes
def test_the_error_of_a_worker_that_floods_is_a_whole_line() -> None:
    """Only the first 64 KB of its standard error are kept."""
    messages: list[dict[str, object]] = []
    machine = SimpleNamespace(send_message=lambda **message: messages.append(message))
    program = "import os\nwhile True: os.write(2, b'no answer came\\n' * 1000)"
    with agent.bounded_file() as errors:
        flooding = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=errors)
        agent.pass_lines_to_lab(machine, flooding, errors)  # type: ignore[arg-type]
        assert flooding.stdout is not None
        flooding.stdout.close()
    assert [each["error"] for each in messages] == ["no answer came"]


START_TIMES = """
from ewe_lab.load import worker, users
from ewe_lab.bench.experiment import Load
load, times = Load(users=6, think=0.6), []
users.gevent.sleep = lambda seconds=0: times.append(round(seconds, 3))
for index in range(2):
    plan = worker.plan_of(load, "http://127.0.0.1:1/", index, 2)
    for _ in range(3):
        user = object.__new__(users.ClosedUser)
        user.plan = plan
        user.on_start()
print(sorted(times))
"""


@pytest.mark.starts_processes
@pytest.mark.needs("locust")
def test_the_users_of_several_workers_begin_at_equal_distances() -> None:
    """Six users of two machines think 0.6 s each: one sends every 0.1 s, and no two of them together."""
    done = subprocess.run([sys.executable, "-c", START_TIMES], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[0.0, 0.1, 0.2, 0.3, 0.4, 0.5]\n", done.stderr


@pytest.mark.starts_processes
@pytest.mark.needs("locust")
def test_workers_share_users_and_a_schedule(tmp_path: Path) -> None:
    """Two workers of this machine: their users, and the requests of an open loop, are as many as one has."""
    fake = tmp_path / "ssh"
    fake.write_text(
        "#!/bin/sh\nfor last; do case $last in 127.0.0.1:0:*) echo Allocated port ${last##*:} for remote forward"
        ' >&2;; esac; done\nexec sh -c "$last"\n'
    )
    fake.chmod(0o755)
    hosts = workers.LoadHosts([parse_host("a"), parse_host("b")], (str(fake),), sys.executable)
    command = [sys.executable, "-m", "ewe", "-a", "--host", "127.0.0.1", "--port", "0", "--access-log", "off"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ewe:
        try:
            assert ewe.stdout is not None
            found = re.search(r"http://\S+", ewe.stdout.readline())
            assert found is not None
            closed = hosts.run(Load(users=7, think=0.1, seconds=2, warm_up=0.5, path="/"), found[0], None)
            arrivals = Load("arrivals", rate=40, seconds=2, warm_up=0.5, path="/")
            opened = hosts.run(arrivals, found[0], None)
        finally:
            ewe.terminate()
    assert closed.errors == opened.errors == {}
    assert 14 <= closed.replies <= 7 * 21  # each user sends at most one request in a think time
    assert opened.response is not None and 78 <= opened.response.count <= 82


# ---------------------------------------------------------------------------------------------------------
# Four machines: namespaces with an sshd in each


@pytest.fixture(scope="module")
def network() -> Iterator[four_machines.Network]:
    with four_machines.four_machines() as found:
        yield found


def comparison(network: four_machines.Network, out: Path, *more: str) -> list[str]:
    """The command that loads `server` from both other machines."""
    address = four_machines.address
    url = f"http://{address('server')}:{four_machines.PORT}/"
    hosts = f"{address('load1')},{address('load2')}"
    return network.compare("--target", url, "--load-from", hosts, "--users", "8", "--repeats", "1", "--warm-up",
                           "200ms", "--out", str(out), *more)  # fmt: skip


def run(command: list[str], out: Path) -> tuple[subprocess.CompletedProcess[str], list[Sample], str]:
    """Run a comparison; return it with the samples and the notes of its table."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    (table,) = load(out / "results.json").tables
    failures = [cell.failure for cell in table.cells]
    return (
        done,
        [sample for cell in table.cells for sample in cell.samples],
        " ".join([*table.notes, *failures]),
    )


def left_behind(network: four_machines.Network) -> list[str]:
    """The agents and workers on the two machines of the load, and locust's master."""
    lines = [command_line(pid) for machine in ("lab", "load1", "load2") for pid in network.pids(machine)]
    return [line for line in lines if "ewe_lab.load" in line or "exec(" in line]


@pytest.mark.starts_processes
@pytest.mark.needs(*MACHINES, "locust")
def test_load_from_two_machines_to_a_third(network: four_machines.Network, tmp_path: Path) -> None:
    done, samples, notes = run(comparison(network, tmp_path, "--time", "2s"), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 users for 2.2 s" in done.stderr
    (sample,) = samples
    assert sample.errors == {} and sample.replies >= 8
    assert sample.service is not None and sample.service.buckets[0][0] >= 0.002  # 1 ms each way
    assert sample.usage is not None and sample.usage.cpu > 0
    assert f"at port {four_machines.PORT} on {four_machines.address('server')}" in notes
    wait_until(lambda: not left_behind(network), 10)


@contextmanager
def under_load(network: four_machines.Network, out: Path) -> Iterator[subprocess.Popen[str]]:
    """A comparison of a minute, once both workers run. A lab that is killed leaves its directory in `out`."""
    with subprocess.Popen(
        comparison(network, out, "--time", "60s"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(out)},
    ) as started:
        wait_until(lambda: len([1 for line in left_behind(network) if "load.worker" in line]) == 2, 40)
        yield started


@pytest.mark.starts_processes
@pytest.mark.needs(*MACHINES, "locust")
@pytest.mark.parametrize("victim", ["ewe_lab.load.worker", "exec("], ids=["worker", "agent"])
def test_a_worker_that_dies_is_one_line(network: four_machines.Network, tmp_path: Path, victim: str) -> None:
    with under_load(network, tmp_path) as started:
        pids = [pid for pid in network.pids("load2") if victim in command_line(pid)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        out, _ = started.communicate(timeout=150)
    assert started.returncode == 1
    assert four_machines.address("load2") in out
    wait_until(lambda: not left_behind(network), 10)


@pytest.mark.starts_processes
@pytest.mark.needs(*MACHINES, "locust")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_after_the_end_of_the_lab(
    network: four_machines.Network, tmp_path: Path, number: int
) -> None:
    with under_load(network, tmp_path) as started:
        started.send_signal(number)
        started.communicate(timeout=150)
    assert started.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    wait_until(lambda: not left_behind(network), 10)


@pytest.mark.starts_processes
@pytest.mark.needs(*MACHINES, "locust")
def test_a_machine_that_refuses_or_is_not_there_is_one_line(
    network: four_machines.Network, tmp_path: Path
) -> None:
    refused = comparison(network, tmp_path, "--ssh", f"{network.ssh} -o IdentityFile=/dev/null")
    refused = [word.replace("-F", "-o PreferredAuthentications=none -F") for word in refused]
    _, samples, notes = run(refused, tmp_path)
    assert not samples and "Permission denied" in notes and "ssh-copy-id" in notes
    absent = comparison(network, tmp_path, "--load-from", f"{four_machines.NETWORK}.77")
    _, samples, notes = run(absent, tmp_path)
    assert not samples and f"{four_machines.NETWORK}.77" in notes
    no_locust = comparison(network, tmp_path, "--load-python", "/usr/bin/python3")
    _, samples, notes = run(no_locust, tmp_path)
    assert not samples and ("no locust" in notes or "3.11 or later" in notes or "not found" in notes)
