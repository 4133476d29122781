"""Loads against servers whose behaviour is known: the numbers and the kinds of errors have to be theirs."""

from __future__ import annotations

import errno
import io
import itertools
import math
import os
import random
import re
import shlex
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support.known_server import DELAY, KnownServers

from ewe_lab.bench.experiment import Load, ServerUnderTest
from ewe_lab.bench.processes import OUTPUT_BYTES, LabError
from ewe_lab.bench.progress import Progress
from ewe_lab.bench.results import ERRORS, Cell, ExperimentTable, Sample, Times, figure, times_needed
from ewe_lab.bench.verdicts import winners
from ewe_lab.experiments.child_process import figures_of
from ewe_lab.lab_bench import LabBench
from ewe_lab.load import ab, child, httperf
from ewe_lab.load.child import run_locust
from ewe_lab.load.client import (
    BadAnswer,
    LoadConnection,
    error_kind,
    load_target,
)
from ewe_lab.load.histogram import Histogram
from ewe_lab.load.probe import probe
from ewe_lab.load.recorder import Recorder
from ewe_lab.load.run import choose_tool, measure_with_wrk, run
from ewe_lab.load.wrk import WrkReport
from ewe_lab.report import report
from ewe_lab.report.summary import outcomes

pytestmark = pytest.mark.starts_processes


@pytest.fixture(scope="module")
def known() -> Iterator[KnownServers]:
    servers = KnownServers()
    yield servers
    servers.close()


FLOODING_TOOL = """\
#!{python}
import os
try:
    for _ in range(200):
        os.write(1, b"no answer came\\n" * 1000)
except OSError:
    pass
open({size!r}, "w").write(str(os.fstat(1).st_size))
"""


@pytest.mark.parametrize("tool", ["wrk", "ab", "httperf"])
def test_a_load_generator_that_prints_without_end_fills_no_disk(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may print a line for each failed request. The error has the last line that was kept."""
    size = tmp_path / "size"
    (tmp_path / tool).write_text(FLOODING_TOOL.format(python=sys.executable, size=str(size)))
    (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    shape = "arrivals" if tool == "httperf" else "saturation"
    load = Load(
        shape, users=0 if tool == "httperf" else 1, rate=1, sessions=1, seconds=5, warm_up=0, tool=tool
    )
    with pytest.raises(LabError, match=f"^{tool}: no answer came$"):
        run(load, "http://127.0.0.1:9/")
    assert int(size.read_text()) == OUTPUT_BYTES


def test_a_line_without_end_of_a_child_ends_the_load() -> None:
    reader, writer = os.pipe()
    child_of_load = subprocess.Popen(["cat", "/dev/zero"], stdout=writer)
    os.close(writer)
    try:
        with open(reader, "rb") as answer, pytest.raises(LabError, match="printed a line of more than"):
            list(child.lines_within(answer, 60.0))
    finally:
        child_of_load.kill()
        child_of_load.wait()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("print([0] * (1 << 23))", r"the figures have more than 16,777,216 bytes"),
        ("raise SystemExit('no answer came')", "no answer came"),
    ],
)
@pytest.mark.starts_processes
def test_figures_that_cannot_be_read_say_why(
    program: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that prints too much dies of a write that the kernel refuses: its error names no limit."""
    (tmp_path / "figures_of_a_child.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(LabError, match=f"^{message}$"):
        figures_of("figures_of_a_child", [], 60.0, "too long")


def test_the_pieces_of_a_line_are_joined() -> None:
    """A pipe has 64 KB: the sample of a long run arrives in pieces, and short lines arrive together."""
    lines = [b"begin", b"", b"a" * 200_000, b"b" * 65_536, b"end"]
    with tempfile.TemporaryFile() as text:
        text.write(b"".join(line + b"\n" for line in lines))
        text.seek(0)
        with subprocess.Popen(["cat"], stdin=text, stdout=subprocess.PIPE) as child_of_load:
            assert child_of_load.stdout is not None
            assert list(child.lines_within(child_of_load.stdout, 60.0)) == lines


def free_url() -> str:
    """The URL of a port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return f"http://127.0.0.1:{sock.getsockname()[1]}/"


def closed(seconds: float = 1.0, **other: object) -> Load:
    return replace(Load(users=5, think=0.02, seconds=seconds, warm_up=0.3), **other)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------
# Measurements


def test_a_fixed_delay(known: KnownServers) -> None:
    load = closed(2.0, users=10, length=1000)
    url = known("delay")
    sample = run_locust(load, url)
    times = sample.service
    assert times is not None
    assert sample.response is None  # a closed loop has no schedule
    assert sample.errors == {}
    # A busy machine delays most answers, but not the fastest of two hundred: think time is no part of it.
    assert DELAY <= times.buckets[0][0] < DELAY + load.think
    assert times.p50 <= times.p90 <= times.p95 <= times.p99 <= times.max
    assert times.mean is not None
    # Little's law is the most that ten users can ask; on a busy machine they wake late and ask less. One user
    # after the other would reach a tenth of it.
    most = load.users / (times.mean + load.think)
    # Each user may have one reply whose request was sent before the count began.
    assert most / 2 < sample.rate < most * 1.1 + load.users / sample.seconds
    assert sample.requests == pytest.approx(sample.replies, abs=load.users)
    assert 2.0 <= sample.seconds < 20
    assert [second.at for second in sample.timeline[:2]] == [0, 1]
    assert sum(second.replies for second in sample.timeline) == sample.replies
    assert sample.replies <= times.count <= sample.replies + load.users  # those under way at the end, too
    assert times.at_least is None
    assert all(second.p50 is None or second.p50 >= DELAY for second in sample.timeline)
    assert sum(count for _, count in times.buckets) == times.count
    assert len(times.buckets) < 200
    assert sample.connections <= load.users  # one each, and on an idle machine all are made in the warm-up
    assert sample.client is not None
    assert 0 < sample.client < 1.1


def test_a_stall_is_in_the_response_time_and_not_in_the_service_time(known: KnownServers) -> None:
    """The server stands still for 1 s in every 4; requests are due 100 times a second, over ten connections.

    A quarter of the requests is due within the stall, and waits 0 to 1 s for its end: with 90 of 100 answered,
    the response time has reached 0.6 s. Only ten requests are on their way when the stall begins: the service
    time shows the stall in its maximum alone. A closed loop sends nothing meanwhile, and shows no more. The
    bounds compare the two clocks with each other, and leave room for a machine that is slow itself.
    """
    load = Load("arrivals", rate=100, users=10, seconds=4, warm_up=0.3, length=1000)
    url = known("frozen")
    with ThreadPoolExecutor(1) as beside:
        loop = beside.submit(run_locust, closed(4.0, users=10, think=0.05), url)
        sample = run_locust(load, url)
    looped = loop.result()
    response, service = sample.response, sample.service
    assert response is not None
    assert service is not None
    assert sample.errors == {}
    assert [second.due for second in sample.timeline] == [100] * 4
    assert response.count == 400  # the late ones, too
    assert response.p90 > 0.3
    assert response.p95 > 0.5
    assert service.p90 < response.p90 / 2
    assert service.max > 0.7
    slowest = [second.p99 or 0 for second in sample.timeline]
    assert max(slowest) > 0.5  # and it shows when
    assert min(slowest) < max(slowest) / 2
    assert looped.service is not None
    assert looped.service.p90 < response.p90 / 2


def test_a_request_that_never_gets_a_connection_is_lost(known: KnownServers) -> None:
    """One connection serves at most twenty of a hundred requests a second. At the end most of the others wait."""
    load = Load("arrivals", rate=100, users=1, seconds=2, warm_up=0, timeout=0.5, length=1000)
    sample = run_locust(load, known("delay"))
    response = sample.response
    due = sum(second.due or 0 for second in sample.timeline)
    assert due == 200
    assert response is not None
    assert response.count + sample.errors.get("ct", 0) == due
    assert response.all == due
    assert (sample.lost or 0) > 0.5
    assert response.at_least is not None and response.p99 >= response.at_least
    assert sum(sum(second.errors.values()) for second in sample.timeline) == sample.errors["ct"]


def test_a_request_that_waits_is_lost_in_the_phase_in_which_it_was_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    recorder = Recorder(scheduled=True)
    recorder.set_window(10.0, 13.0)
    recorder.divide_into_phases([1.0, 2.0])
    for client, due in enumerate((9.5, 10.5, 11.5, 12.5)):
        recorder.count_waiting(client, due)
    recorder.count_sent(2, 12.0, 11.5)  # the only one that got a connection
    clock[0] = 14.0
    sample = recorder.sample("locust")
    assert (sample.requests, sample.errors) == (1, {"ct": 3})
    assert [phase.errors for phase in sample.phases] == [{"ct": 1}, {"ct": 2}]
    assert sample.response is not None and (sample.response.all, sample.response.at_least) == (3, 1.5)
    assert sample.service is not None and (sample.service.all, sample.service.max) == (1, 2.0)


def test_arrivals_keep_their_schedule(known: KnownServers) -> None:
    url = known("delay")
    load = Load("arrivals", rate=40, calls=3, think=0.05, seconds=2, warm_up=0.4)
    sample = run_locust(load, url)
    assert sample.sessions == 80  # one session after the other would be seven
    assert sample.response is not None and sample.service is not None
    # Three calls each, but for sessions that are under way at the beginning or at the end of the count.
    due = sum(second.due or 0 for second in sample.timeline)
    lasts = load.calls * (sample.response.max + load.think)
    assert abs(due - 240) <= load.rate * lasts
    assert sample.response.count == due
    assert (
        abs(sample.replies + sample.extra.get("late", 0) - due)
        <= load.rate * load.calls * sample.response.max + 1
    )
    assert abs(sample.connections - 80) <= load.rate * sample.response.max + 1
    assert DELAY <= sample.service.buckets[0][0] < DELAY + load.think
    assert sample.service.p50 <= sample.response.p50 * 1.001


def test_a_number_of_sessions_is_counted_whole(known: KnownServers) -> None:
    load = Load("arrivals", rate=50, sessions=40, calls=3, think=0.05, seconds=20, timeout=2)
    url = known("plain")
    sample = run_locust(load, url)
    assert (sample.requests, sample.replies, sample.connections, sample.errors) == (120, 120, 40, {})
    assert sample.received == 120 * 1041
    assert 39 / 50 + 2 * 0.05 <= sample.seconds < 15  # it ends with the last session, not with its time


def test_sessions_are_cut_off_when_their_time_is_over(known: KnownServers) -> None:
    load = Load("arrivals", rate=20, sessions=1000, seconds=1, timeout=0.5)
    url = known("plain")
    sample = run_locust(load, url)
    assert 1 <= sample.replies <= 20 * sample.seconds + 1
    assert [note for note in sample.notes if note.startswith("cut off after 1 s")]


def test_phases(known: KnownServers) -> None:
    load = Load("arrivals", phases=((1.0, 20.0), (1.0, 100.0), (1.0, 40.0)), warm_up=0.3)
    url = known("plain")
    sample = run_locust(load, url)
    assert [second.due for second in sample.timeline] == [20, 100, 40]
    assert sample.response is not None and sample.response.count == 160
    answered = [phase.response.count if phase.response else 0 for phase in sample.phases]
    assert answered == [20, 100, 40]
    assert [phase.seconds for phase in sample.phases] == [1.0, 1.0, 1.0]
    assert sum(phase.replies for phase in sample.phases) == sample.replies
    assert not any(phase.timeline for phase in sample.phases)


def test_visitors_who_do_not_know_of_each_other_come_at_random_times(known: KnownServers) -> None:
    load = Load("arrivals", rate=100, seconds=4, warm_up=0, poisson=True)
    dues = [second.due or 0 for second in run_locust(load, known("plain")).timeline]
    assert 320 < sum(dues) < 480 and max(dues) - min(dues) > 2  # evenly spaced: 100 each, give or take one


def test_a_visitor_looks_at_one_page_after_the_other(known: KnownServers) -> None:
    load = Load("arrivals", rate=50, sessions=20, calls=2, paths=("/there", "/missing"), seconds=20)
    sample = run_locust(load, known("paths"))
    assert (sample.replies, sample.errors, sample.connections) == (20, {"status": 20}, 20)
    closed = run_locust(
        Load(users=1, think=0.01, paths=("/there", "/missing"), seconds=1, warm_up=0), known("paths")
    )
    assert abs(closed.replies - closed.errors["status"]) <= 1 < closed.replies


@pytest.mark.parametrize("reopens", [True, False])
def test_a_browser_asks_again_where_the_server_has_closed_a_kept_connection(
    known: KnownServers, reopens: bool
) -> None:
    load = Load("arrivals", rate=50, sessions=10, calls=2, think=0.05, seconds=20, reopens=reopens)
    sample = run_locust(load, known("leaves"))
    if reopens:
        assert (sample.replies, sample.errors, sample.connections) == (20, {}, 20)
    else:
        assert (sample.replies, sample.errors, sample.connections) == (10, {"res": 10}, 10)


@pytest.mark.parametrize(("behaviour", "answered"), [("reset", 0), ("cut-head", 0), ("fades", 5)])
def test_a_browser_does_not_ask_again_on_a_new_connection_or_after_a_part(
    known: KnownServers, behaviour: str, answered: int
) -> None:
    load = Load("arrivals", rate=50, sessions=5, calls=2, seconds=20, reopens=True)
    sample = run_locust(load, known(behaviour))
    assert (sample.replies, sample.errors, sample.connections) == (answered, {"res": 5}, 5)


# ---------------------------------------------------------------------------------------------------------
# Errors


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        ("silent", "ct"),
        ("reset", "res"),
        ("cut", "res"),
        ("status", "status"),
    ],
)
def test_errors_by_kind(known: KnownServers, behaviour: str, expected: str) -> None:
    patience = 0.5 if expected == "ct" else 10.0
    load = Load("arrivals", rate=30, sessions=12, seconds=20, timeout=patience, length=1000)
    url = known(behaviour)
    sample = run_locust(load, url)
    assert sample.errors == {expected: 12}
    assert sample.replies == 0
    assert sample.requests == 12
    assert [sum(second.errors.values()) for second in sample.timeline][:1] != [0]
    if behaviour == "silent":
        assert 11 / 30 + 0.5 <= sample.seconds < 15


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        ("silent", "ct"),
        ("trickle", "ct"),
        ("reset", "res"),
        ("cut", "res"),
        ("cut-chunk", "res"),
        ("cut-head", "res"),
        ("nonsense", "other"),
        ("short", "other"),
    ],
)
def test_what_a_client_raises(known: KnownServers, behaviour: str, expected: str) -> None:
    url = known(behaviour)
    patience = 0.3 if expected == "ct" else 10.0
    connection = LoadConnection(load_target(Load(length=1000, timeout=patience), url))
    began = time.monotonic()
    with pytest.raises((OSError, BadAnswer)) as raised:
        connection.ask()
    assert error_kind(raised.value) == expected
    assert expected in ERRORS
    assert connection.sock is None
    if expected == "ct":
        assert 0.25 < time.monotonic() - began < 10


def test_kinds_of_errors() -> None:
    assert error_kind(TimeoutError()) == "ct"  # our timer
    assert error_kind(OSError(errno.ETIMEDOUT, "")) == "st"  # the kernel's
    assert error_kind(OSError(errno.EMFILE, "")) == "fd"
    assert error_kind(OSError(errno.EADDRNOTAVAIL, "")) == "addr"
    assert error_kind(BrokenPipeError(errno.EPIPE, "")) == "res"
    assert error_kind(OSError(errno.EIO, "")) == error_kind(ValueError()) == "other"
    assert error_kind(ssl.SSLError("The read operation timed out")) == "ct"
    assert error_kind(ssl.SSLEOFError(8, "")) == "res"


def test_refused() -> None:
    sample = run_locust(closed(), free_url())
    assert sample.replies == 0
    assert set(sample.errors) == {"ref"}
    # A user who was refused waits 0.1 s before the next request.
    assert 5 <= sample.errors["ref"] <= 5 * (sample.seconds / 0.1 + 1)


def test_no_descriptor_left(known: KnownServers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "running", limited(child.running))
    load = Load("arrivals", rate=300, sessions=100, seconds=10, timeout=2)
    url = known("silent")
    sample = run_locust(load, url)
    assert set(sample.errors) == {"ct", "fd"}
    assert sum(sample.errors.values()) == 100
    assert sample.errors["fd"] == 100 - (128 - 64)
    assert "as many as the load can hold" in sample.notes[0]


def limited(running):  # type: ignore[no-untyped-def]
    """The same, with a limit of 128 descriptors."""
    return lambda command, *rest, **more: running(
        ["sh", "-c", f"ulimit -n 128; exec {shlex.join(command)}"], *rest, **more
    )


def test_what_waits_in_a_closed_loop_is_lost(known: KnownServers) -> None:
    """A user without an answer at the end is an error, and has waited at least until then."""
    url = known("silent")
    sample = run_locust(closed(0.5, timeout=1.2), url)
    assert (sample.replies, sample.errors, sample.lost) == (0, {"ct": 5}, 1.0)
    assert sum(second.errors.get("ct", 0) for second in sample.timeline) == 5
    times = sample.service
    assert times is not None and (times.count, times.mean) == (0, None)
    assert 0.7 < times.p50 < 20 and times.is_lower_bound(times.p50)


def test_a_load_waits_only_so_long_for_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request in progress when the load gives up is counted with the time that it has waited."""
    recorder, clock = Recorder(scheduled=False), [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    recorder.begin, recorder.end = 10.0, 12.0
    for who, sent in enumerate((9.0, 11.0, 12.5)):  # the third was sent after the end
        recorder.count_sent(who, sent)
    assert recorder.count_under_way() == 2
    clock[0] = 12.2
    recorder.count_end(1, 11.0, 11.0, "", 0, 100)
    assert recorder.count_under_way() == 1
    clock[0] = 17.0
    sample = recorder.sample("locust")
    assert (sample.replies, sample.errors, sample.extra) == (0, {"ct": 1}, {"late": 1.0})
    assert sample.service is not None and sample.service.count == 1
    assert sample.service.max == 8.0 and sample.service.at_least == 8.0


def test_the_mean_so_far_is_noted_at_round_numbers() -> None:
    """What a curve over requests is drawn of: after 1, 2, 5, 10 ... answers, none of them twice."""
    recorder = Recorder(scheduled=False)
    recorder.begin = 0.0
    for number in range(1, 121):
        recorder.record_times(number, 0.0, 0.0)
        recorder.record_times(1.0, 0.0, 0.0, answered=False)  # which is no answer
    assert [count for count, _ in recorder.running] == [1, 2, 5, 10, 20, 50, 100]
    assert recorder.running[-1][1] == pytest.approx(50.5)


def test_who_is_answered_late_is_not_lost(known: KnownServers) -> None:
    """A request that is under way at the end has its timeout like any other."""
    url = known("delay")
    sample = run_locust(closed(0.3, think=0.0), url)
    assert sample.errors == {} and sample.service is not None
    assert 1 <= sample.extra["late"] <= 5
    assert sample.service.count == sample.replies + sample.extra["late"]


def test_a_server_that_starves_its_users_is_known_by_them() -> None:
    """The pool of 2006 serves five fast, and the others never: the percentiles are those of all."""
    load = closed(1.0, users=10, timeout=1.5, length=1024)
    with LabBench(Progress(file=io.StringIO()), repeats=1) as lab:
        options = ("--poolthreads", "5", "--parking", "never")
        pool = ServerUnderTest("pool", model="pool", options=options)
        cells = [
            lab.fill_cell(each, load, Cell(each.name), lab.site([]))
            for each in (pool, ServerUnderTest("thread", model="thread"))
        ]
    starved, whole = (cell.samples[0] for cell in cells)
    assert starved.errors == {"ct": 5} and starved.replies and starved.service is not None
    assert starved.service.at_least is not None and not starved.service.is_lower_bound(starved.service.p50)
    assert starved.lost == pytest.approx(5 / (starved.replies + 5), rel=0.2)
    assert (whole.errors, whole.lost) == ({}, 0.0)
    assert winners(cells) == []  # there is no contest with one alone
    table = ExperimentTable("compare", cells=cells)
    assert "only thread answered almost every request" in outcomes(cells)
    assert re.search(r"^pool .* 5 ct$", report.text(table, None), re.M)


@pytest.mark.parametrize("behaviour", ["plain", "chunked", "until-close", "old", "close", "early"])
@pytest.mark.parametrize("keep_alive", [True, False])
def test_answers_are_read_to_their_end(known: KnownServers, behaviour: str, keep_alive: bool) -> None:
    url = known(behaviour)
    connection = LoadConnection(load_target(Load(length=1000, timeout=5, keep_alive=keep_alive), url))
    for _ in range(3):
        connection.ask()
    kept = keep_alive and behaviour in ("plain", "chunked", "early")
    assert connection.connections == (1 if kept else 3)
    connection.close()
    assert probe(f"{url}index.html", 1000) == ("", "")


def test_a_probe_says_what_is_wrong(known: KnownServers) -> None:
    url = known("status")
    assert probe(url, None) == ("a first request was answered with 500", "")
    url = known("plain")
    assert probe(url, 999) == ("a first request failed: the body has 1000 bytes, not 999", "")
    assert "refused" in probe(free_url(), None)[0]
    assert "Name or service" in probe("http://no-such-host.invalid/", None)[0]


def test_a_load_that_cannot_run_says_why_in_a_line() -> None:
    with pytest.raises(LabError, match=r"^the load failed: .*is not the URL of a server$"):
        run_locust(closed(), "gopher://x/")


# ---------------------------------------------------------------------------------------------------------
# The parts


def test_the_histogram_is_exact_to_three_digits() -> None:
    chance = random.Random(1)
    times = sorted(10 ** chance.uniform(-4.5, 1.5) for _ in range(20_000))
    histogram = Histogram()
    for each in times:
        histogram.add(each)
    shares = (0.001, 0.25, 0.5, 0.9, 0.99, 0.9999, 1.0)
    for share, found in zip(shares, histogram.percentiles(*shares), strict=True):
        assert found == pytest.approx(times[math.ceil(share * len(times)) - 1], rel=0.001, abs=1e-7)
    summary = histogram.times()
    assert summary is not None
    assert (summary.count, summary.max) == (20_000, times[-1])
    assert summary.mean == pytest.approx(statistics.fmean(times))
    assert len(summary.buckets) <= 250
    assert summary.buckets[-1][0] >= summary.max * 0.999
    below = sum(count for end, count in summary.buckets if end <= 0.1)
    assert below == pytest.approx(sum(each <= 0.1 for each in times), rel=0.01)


def test_a_window_that_is_set_does_not_move_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that wakes up late neither leaves out what was due, nor counts what came after the end."""
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    recorder = Recorder(scheduled=True)
    recorder.set_window(10.0, 12.0)
    clock[0] = 10.9
    recorder.start()
    clock[0] = 13.0
    for due in (9.9, 10.0, 11.9, 12.0):
        recorder.count_due(due, starts_session=True)
    recorder.stop()
    sample = recorder.sample("locust")
    assert (sample.sessions, sample.seconds) == (2, 2.0)


def test_a_phase_has_what_was_due_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    recorder = Recorder(scheduled=True)
    recorder.set_window(10.0, 13.0)
    recorder.divide_into_phases([1.0, 2.0])
    for who, (due, ends, error) in enumerate(((10.5, 10.7, ""), (10.9, 11.9, ""), (12.0, 12.5, "ct"))):
        recorder.count_due(due)
        recorder.count_sent(who, due)
        clock[0] = ends
        recorder.count_end(who, due, due, error, 1, 100)
    recorder.count_dropped(10.1)
    first, second = recorder.sample("locust").phases
    assert (first.requests, first.replies, first.errors) == (2, 1, {"fd": 1})
    assert first.response is not None and first.response.count == 2  # the answer came in the second phase
    assert (second.requests, second.replies, second.errors) == (1, 1, {"ct": 1})


def test_an_answer_at_the_bound_of_two_phases_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes while the phases count: all of them must go by one reading of the clock."""
    clock = itertools.count(10.9995, 0.001)
    recorder = Recorder(scheduled=True)
    recorder.set_window(10.0, 13.0)
    recorder.divide_into_phases([1.0, 2.0])
    recorder.count_due(10.5)
    recorder.count_sent(1, 10.5)
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    recorder.count_end(1, 10.5, 10.5, "", 1, 100)
    sample = recorder.sample("locust")
    assert [phase.replies for phase in sample.phases] == [1, 0] and sample.replies == 1


def test_nothing_has_no_times() -> None:
    assert Histogram().times() is None


def test_what_ends_after_the_run_counts_for_times_and_not_for_the_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    recorder = Recorder(scheduled=True)
    recorder.begin, recorder.end = 10.0, 12.0
    for due, ends, error in (
        (9.5, 10.5, ""),
        (10.0, 11.5, ""),
        (11.0, 13.0, ""),
        (11.5, 14.0, "ct"),
        (12.5, 13, ""),
    ):
        recorder.count_due(due)
        clock[0] = ends
        recorder.count_end(1, due, due + 0.25, error, 1, 100)
    sample = recorder.sample("locust")
    assert (sample.replies, sample.extra, sample.errors) == (2, {"late": 1.0}, {"ct": 1})
    assert sample.response is not None
    assert sample.response.count == 2  # due within
    assert sample.response.max == sample.response.at_least == 2.5  # of the one that was never answered
    assert sample.service is not None
    assert sample.service.max == 2.25
    assert [second.due for second in sample.timeline] == [1, 2]
    assert [second.replies for second in sample.timeline] == [1, 1]


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (Load(users=50, think=0.1, seconds=10), "50 users, 100 ms think time, 10 s"),
        (Load(users=1, seconds=0.5), "1 user, no think time, 500 ms"),
        (
            Load("saturation", users=32, keep_alive=False),
            "32 connections at full speed, 5 s, a connection a request",
        ),
        (Load("saturation", users=1, tls="parity"), "1 connection at full speed, 5 s, TLS 1.2 AES256-SHA"),
        (
            Load("arrivals", rate=50, sessions=500, calls=10, think=0.1),
            "500 sessions at 50/s, 10 calls each, 100 ms think time",
        ),
        (Load("arrivals", rate=500, users=20, seconds=300), "500 sessions/s, over 20 connections, 5 min"),
        (Load("arrivals", phases=((30, 22), (10, 100))), "22/s for 30 s then 100/s for 10 s"),
    ],
)
def test_a_load_in_words(load: Load, words: str) -> None:
    assert load.description() == words


def test_the_tool_for_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"wrk", "ab"}
    monkeypatch.setattr("ewe_lab.load.run.find_tool", lambda name: name if name in here else None)
    saturation = Load("saturation", users=8)
    assert choose_tool(Load(users=8)) == choose_tool(Load("arrivals", rate=1)) == "locust"
    assert choose_tool(saturation) == "wrk"
    assert (
        choose_tool(replace(saturation, keep_alive=False))
        == choose_tool(replace(saturation, tls="parity"))
        == "ab"
    )
    assert choose_tool(replace(saturation, tool="locust")) == "locust"
    here.clear()
    assert choose_tool(saturation) == choose_tool(replace(saturation, tls="parity")) == "locust"
    for wrong in (Load("spiral"), Load(tool="wrk"), Load("arrivals", tool="ab")):
        with pytest.raises(LabError, match="shape"):
            choose_tool(wrong)


def test_what_ab_reports() -> None:
    text = (
        "Time taken for tests:   2.000 seconds\nComplete requests:      300\nFailed requests:        2\n"
        "   (Connect: 0, Receive: 1, Length: 0, Exceptions: 1)\nNon-2xx responses:      3\n"
        "Total transferred:      3600 bytes\nTime per request:       5.373 [ms] (mean)\n"
        "Time per request:       0.672 [ms] (mean, across all concurrent requests)\n"
    )
    assert ab.parse_ab(text) == {
        "seconds": 2.0, "complete": 300.0, "failed": 2.0, "cut": 1.0, "other_length": 0.0, "status": 3.0,
        "received": 3600.0, "mean": 5.373,
    }  # fmt: skip
    with pytest.raises(LabError, match=r"^ab: apr_socket_recv: Connection reset by peer"):
        ab.parse_ab("Benchmarking x\napr_socket_recv: Connection reset by peer (104)\n")
    handshake = (
        "SSL handshake failed (1).\n80C5:error:0A000126:SSL routines:read:unexpected eof:../x.c:318:\n"
    )
    with pytest.raises(
        LabError, match=r"^ab: no TLS connection with this protocol and cipher: unexpected eof$"
    ):
        ab.parse_ab(text + handshake)


def test_a_late_answer_that_wrk_counts_is_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 answers ten came after the time limit, and five had a bad status: 15 of 100 requests are lost."""
    found = WrkReport(100, 1.0, 0.0, 100.0, {"timeout": 10, "non-2xx": 5})
    monkeypatch.setattr("ewe_lab.load.run.run_wrk", lambda url, **options: found)
    load = Load("saturation", users=1, warm_up=0.0)
    sample = measure_with_wrk(load, "http://127.0.0.1:1/", None, Window(), ())
    assert (sample.requests, sample.replies, sample.errors) == (100, 85, {"ct": 10, "status": 5})
    assert sample.lost == 0.15


class Window:
    """An observer that notes its calls."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def begin(self) -> None:
        self.notes.append("begin")

    def end(self) -> None:
        self.notes.append("end")


def test_a_run_of_ab_that_a_reset_ended_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's CPU time is that of the run whose replies are counted."""
    window = Window()

    def run_once(load: Load, url: str, seconds: float, core: int | None, prefix: object) -> ab.AbReport:
        window.notes.append("ab")
        if window.notes.count("ab") == 1:
            raise LabError("ab: apr_socket_recv: Connection reset by peer (104)")
        return ab.AbReport({"seconds": 1.0, "complete": 5.0}, None, 0.1)

    monkeypatch.setattr(ab, "run_ab_once", run_once)
    sample = ab.run_ab(Load("saturation", users=1, warm_up=0.0), "http://127.0.0.1:1/", None, window, ())
    assert sample.replies == 5
    assert window.notes == ["begin", "ab", "begin", "ab", "end"]


def test_ab_compares_the_length_of_an_answer_that_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With -l, a connection that the server closes without a byte is an answer, and the fastest of all."""
    commands: list[list[str]] = []

    def start(command: list[str], output: object, core: int | None) -> None:
        commands.append(command)
        raise LabError("not started")

    monkeypatch.setattr(ab, "running", start)
    monkeypatch.setattr(ab, "path_of_tool", lambda name: name)
    for length in (None, 1024):
        with pytest.raises(LabError, match="not started"):
            ab.run_ab_once(Load("saturation", users=1, length=length), "http://127.0.0.1:1/", 1.0, None, ())
    assert ["-l" in command for command in commands] == [True, False]


def test_a_failure_that_ab_counts_twice_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten answers have another length: three were cut by a reset, five have a bad status, and two are empty."""
    figures = {
        "seconds": 1.0,
        "complete": 100.0,
        "failed": 13.0,
        "cut": 3.0,
        "other_length": 10.0,
        "status": 5.0,
    }
    monkeypatch.setattr(ab, "run_ab_once", lambda *arguments: ab.AbReport(figures, None, 0.1))
    load = Load("saturation", users=1, warm_up=0.0, length=1024)
    sample = ab.run_ab(load, "http://127.0.0.1:1/", None, Window(), ())
    assert (sample.replies, sample.errors) == (90, {"status": 5, "res": 5})


HTTPERF = """\
Total: connections 500 requests 557 replies 215 test-duration 19.100 s
Reply time [ms]: response 2.3 transfer 0.1
Reply status: 1xx=0 2xx=210 3xx=0 4xx=1 5xx=4
Net I/O: 10.0 KB/s (0.1*10^6 bps)
Errors: total 482 client-timo 479 socket-timo 1 connrefused 0 connreset 2
Errors: fd-unavail 3 addrunavail 0 ftab-full 4 other 0
"""


def test_what_httperf_reports() -> None:
    sample = httperf.parse_httperf(HTTPERF)
    assert (sample.connections, sample.requests, sample.replies, sample.seconds) == (500, 557, 210, 19.1)
    assert sample.errors == {"ct": 479, "st": 1, "res": 2, "fd": 7, "status": 5}
    assert sample.extra == {"reply_time": pytest.approx(0.0024)}
    with pytest.raises(LabError, match="httperf: bad"):
        httperf.parse_httperf("bad\n")


def test_ab_writes_rubbish_for_few_replies(tmp_path: Path) -> None:
    """The end of the file that ab 2.3 wrote for 40 replies: the 99th percentile is another thing's memory."""
    path = tmp_path / "times.csv"
    lines = [f"{share},{2 + share / 10:.3f}" for share in range(97)]
    path.write_text("\n".join(["Percentage served,Time in ms", *lines, "97,20.837", "98,20.837", "99,0.257"]))
    with path.open("a") as file:
        file.write("\n100,20.837\n")
    found = ab.read_times(path, {"complete": 40.0, "mean": 4.0})
    assert found is not None and (found.p99, found.max, found.p50) == (0.020837, 0.020837, 0.007)
    path.write_text(path.read_text().replace("99,0.257", "99,777.0"))
    found = ab.read_times(path, {"complete": 40.0, "mean": 4.0})
    assert found is not None and found.p99 == 0.020837
    found = ab.read_times(path, {"complete": 4000.0, "mean": 4.0})
    assert found is not None and found.max == 0.777


@pytest.mark.parametrize(("name", "least"), [("p50", 20), ("p90", 100), ("p95", 200), ("p99", 1000)])
def test_a_percentile_needs_ten_times_beyond_it(name: str, least: int) -> None:
    assert times_needed(name) == least
    for count, printed in ((least, 0.5), (least - 1, None)):
        sample = Sample("ab", 1.0, service=Times(count, 0.1, 0.5, 0.5, 0.5, 0.5, 0.5))
        assert figure(sample, f"service.{name}") == printed
    waiting = Times(1, 0.1, 5.0, 5.0, 5.0, 5.0, 5.0, [(5.0, least)], at_least=5.0)
    assert figure(Sample("locust", 1.0, service=waiting), f"service.{name}") == 5.0
