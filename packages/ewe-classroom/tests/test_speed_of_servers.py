"""Speed in ratios: the closed loop, the pairs and their spread, twice the load, points by thresholds."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

import pytest
from classroom_server import PYTHON, ZOO

from ewe.config.messages import ConfigError
from ewe_classroom.grader import load, processes, scheme, speed
from ewe_classroom.grader.sandbox import SandboxLimits, SubjectAccount, own_account
from ewe_classroom.grader.subject import ServedFiles, Subject, from_command
from ewe_classroom.grader.verdicts import ERROR, FAILED, PASSED, Verdict

FILE = b"wool\n" * 1000
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(FILE), FILE)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(FILE), FILE)
BUSY = b"HTTP/1.1 503 Busy\r\n\r\n"


@contextmanager
def answering(answer: Callable[[int], bytes]) -> Iterator[int]:
    """Answer each connection in a thread of this process; answer: the bytes for so many connections at once."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    lock = threading.Lock()
    count = 0

    def serve(connection: socket.socket) -> None:
        nonlocal count
        with connection:
            with lock:
                count += 1
                now = count
            try:
                connection.recv(4096)
                connection.sendall(answer(now))
            finally:
                with lock:
                    count -= 1

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=serve, args=(connection,))
            threads.append(thread)
            thread.start()

    threads: list[threading.Thread] = []
    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(("count", "wanted"), [(1, 1), (2, 2), (99, 99), (100, 99), (101, 100), (200, 198)])
def test_the_99th_percentile_is_not_exceeded_by_99_of_100(count: int, wanted: int) -> None:
    times_s = [float(number) for number in range(count, 0, -1)]
    assert speed.p99(load.Slice(1, times_s=times_s)) == wanted


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (GOOD, ""),
        (GOOD[:-1], "closed after 4999 of 5000 bytes"),
        (b"", "closed after 0 bytes, before a response"),
        (GOOD[:-1] + b"!", "other bytes than the file's"),
        (CHUNKED, ""),
        (CHUNKED[:-1], "closed after 5000 bytes of a chunked body"),
        (CHUNKED.replace(b"1388", b"1387"), "a chunked body that cannot be decoded"),
        (CHUNKED.replace(b"wool", b"silk"), "other bytes than the file's"),
        (BUSY, "'HTTP/1.1 503 Busy"),
        (b"x" * 70_000, "head of more than 64 KB"),
    ],
)
def test_a_closed_loop_counts_whole_answers_and_says_what_failed(answer: bytes, says: str) -> None:
    with answering(lambda now: answer) as port:
        found = load.closed_loop(port, 3, 0.05, "/wool.txt", FILE, "127.9.0.1")
    assert says in found.failure and bool(says) == bool(found.failure)
    if not says:
        assert len(found.times_s) >= 3 and found.rate > 0 and max(found.times_s) < found.seconds


def test_a_server_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "STALL_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = load.closed_loop(silent.getsockname()[1], 2, 0.05, "/", FILE, "127.9.0.1")
        assert "2 of 2 clients got nothing" in found.failure
        port = silent.getsockname()[1]
    assert "a connection failed" in load.closed_loop(port, 2, 0.05, "/", FILE, "127.9.0.1").failure


def measured(low: float, middle: float, high: float, **more: object) -> speed.Speed:
    return speed.Speed("ewe --model pool", 16, rates={16: speed.Ratio(middle, low, high, 5)}, **more)  # type: ignore[arg-type]


def test_the_ratio_is_the_median_of_the_pairs_and_the_spread_its_middle_half() -> None:
    found = speed.ratio([(50, 100), (90, 100), (100, 100), (110, 100), (900, 100)])
    assert (found.median, found.low, found.high, found.pairs) == (1.0, 0.9, 1.1, 5)
    assert found.spread == pytest.approx(0.2)
    assert speed.ratio([(1, 4)]).text() == "0.25 (0.25 to 0.25)"


def test_points_are_given_by_the_upper_end_of_the_spread() -> None:
    marks = (scheme.SpeedMark(0.1, points=2), scheme.SpeedMark(0.3, points=4))
    for high, points in ((0.05, 0), (0.1, 2), (0.29, 2), (0.31, 4), (3.0, 4)):
        assert measured(0.01, high / 2, high).earned(marks) == points
    assert measured(1, 1, 1).earned(()) == 0
    assert speed.Speed("r", 16, "it failed", {16: speed.Ratio(1, 1, 1, 5)}).earned(marks) == 0


def test_the_reference_has_another_user_id_than_a_server_with_a_separate_account() -> None:
    """A server could otherwise stop its reference while it is measured."""
    mine = own_account()
    other = speed.reference_account(mine)
    assert other is not None and other.uid != mine.uid
    assert other.gid == mine.gid and not other.is_own
    shared = SubjectAccount("nobody", 65534, 65534)
    assert speed.reference_account(shared) is shared
    assert speed.reference_account(None) is None


def test_a_verdict_says_when_the_spread_is_too_large_to_tell() -> None:
    plan = scheme.SpeedPlan("pool", 16, (scheme.SpeedMark(0.3, points=4),))
    verdict = Verdict("speed", "", 4)
    speed.fill_in_verdict(measured(0.9, 1.0, 1.1, cpu=0.8, p99=1.2, memory_kib=3.5), verdict, plan)
    assert verdict.status == PASSED and verdict.score == 4
    assert verdict.facts[0] == "1.00 (0.90 to 1.10) of the rate of ewe --model pool, with 16 clients"
    assert "0.80 of its CPU time" in verdict.text() and "3.5 KiB" in verdict.text()
    speed.fill_in_verdict(measured(0.2, 0.25, 0.5, client_busy=0.9), verdict, plan)
    assert "too large to tell" in verdict.facts[0] and verdict.score == 4
    assert "the client was busy" in verdict.text()
    assert "while the clients asked only the reference" not in verdict.text()
    speed.fill_in_verdict(measured(0.2, 0.25, 0.5, busy_beside=0.9), verdict, plan)
    assert "used 0.90 of a processor while the clients asked only the reference" in verdict.text()
    speed.fill_in_verdict(speed.Speed("r", 16, "with 32 clients at once: reset"), verdict, plan)
    assert verdict.status == FAILED and verdict.score == 0 and "no speed" in verdict.did
    speed.fill_in_verdict(
        speed.Speed("r", 16, "the reference, r: with 1 client at once: reset"), verdict, plan
    )
    assert verdict.status == ERROR


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("speed = 1", "not a table"),
        ("subject = 'data'\nspeed = {}", "only servers have a speed"),
        ("speed = { refrence = 'pool' }", 'did you mean "reference"?'),
        ("speed = { reference = 'poo' }", "expected one of serial, fork"),
        ("speed = { clients = 0 }", "clients = 0"),
        ("speed = { marks = [1] }", "write pairs"),
        ("speed = { marks = [[0.1, 0.5]] }", "write pairs"),
    ],
)
def test_a_wrong_plan_is_refused_with_its_place(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "grading.toml"
    file.write_text(f"{text}\n[[check]]\nname = 'fifo'\n")
    with pytest.raises(ConfigError) as caught:
        scheme.load(str(file))
    assert says in str(caught.value) and str(file) in str(caught.value)


REFUSES = """
import socket, sys, threading, time
port, root, most = int(sys.argv[1]), sys.argv[2], 6
listener = socket.create_server(("127.0.0.1", port), backlog=64)
count = 0
def serve(connection):
    global count
    count += 1
    head = connection.recv(4096).split()
    if count <= most:
        time.sleep(0.01)
        body = open(root + head[1].decode(), "rb").read()
        connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
    count -= 1
    connection.close()
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]]).start()
"""


@pytest.mark.starts_processes
def test_a_server_beside_its_reference_and_one_that_fails_at_twice_its_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SLICE_S", 0.03), ("MIN_PAIRS", 2), ("MAX_PAIRS", 2)):
        monkeypatch.setattr(speed, name, value)
    families = []
    measure = speed.measure

    def watched(student: Subject, *rest: object) -> speed.Speed:
        families.append([pid == student.pid for pid in student.running()])
        return measure(student, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(speed, "measure", watched)
    tmp_path.chmod(0o755)
    (tmp_path / "refuses.py").write_text(REFUSES)
    site = ServedFiles(tmp_path)
    commands = {
        "good": f"{PYTHON} -S {quote(str(ZOO / 'correct.py'))} thread {{port}} {{root}} {{workers}}",
        "bad": f"{PYTHON} -S {quote(str(tmp_path / 'refuses.py'))} {{port}} {{root}}",
    }
    found = {}
    for name, command in commands.items():
        plan = scheme.SpeedPlan("solution" if name == "bad" else "thread", 4)
        port = processes.free_port()
        with Subject(from_command(command), site, 4, SandboxLimits(), port, tmp_path / "output") as student:
            found[name] = speed.run_speed(
                student, plan, "thread", tmp_path, processes.free_port(), own_network=False
            )
            assert processes.runs(student.pid) and student.family() == [student.pid]
    assert families == [[True], [True]]  # the reference is none of the student's processes
    good, bad = found["good"], found["bad"]
    assert not good.failure and list(good.rates) == [1, 2, 4, 8] and good.rate is not None
    assert 0.02 < good.rate.median < 50 and good.p99 is not None and good.memory_kib is not None
    assert good.reference == "ewe --model thread" and bad.reference == "the lab's solution (thread)"
    assert bad.failure.startswith("with 8 clients at once, twice the 4 that it claims") and bad.rate is None


# A correct server, which also tries to connect to the port of its last argument.
CONNECTS = """
import os, runpy, socket, sys, threading, time

seen, port = sys.argv.pop(), int(sys.argv.pop())

def connect():
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            open(seen, "w").close()
        except OSError:
            time.sleep(0.01)

threading.Thread(target=connect, daemon=True).start()
sys.path.insert(0, os.path.dirname(sys.argv[1]))
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


@pytest.mark.needs("root")
@pytest.mark.starts_processes
@pytest.mark.parametrize(
    "own_network", [False, pytest.param(True, marks=pytest.mark.needs("a private network"))]
)
def test_a_server_cannot_connect_to_the_reference_in_its_own_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_network: bool
) -> None:
    """It could hold the workers of the reference, and so raise its own ratio."""
    for name, value in (("SLICE_S", 0.03), ("MIN_PAIRS", 2), ("MAX_PAIRS", 2)):
        monkeypatch.setattr(speed, name, value)
    tmp_path.chmod(0o755)
    (tmp_path / "connects.py").write_text(CONNECTS)
    port, reference_port, seen = processes.free_port(), processes.free_port(), tmp_path / "seen"
    words = [
        str(tmp_path / "connects.py"), str(ZOO / "correct.py"), "thread", "{port}", "{root}", "{workers}",
        str(reference_port), str(seen),
    ]  # fmt: skip
    command = from_command(f"{PYTHON} -S {' '.join(map(quote, words))}")
    network = os.readlink("/proc/thread-self/ns/net")
    site, limits, plan = ServedFiles(tmp_path), SandboxLimits(), scheme.SpeedPlan("thread", 4)
    with Subject(command, site, 4, limits, port, tmp_path / "output") as student:
        found = speed.run_speed(student, plan, "thread", tmp_path, reference_port, own_network=own_network)
    assert not found.failure and found.rate is not None
    assert seen.exists() != own_network
    assert os.readlink("/proc/thread-self/ns/net") == network
