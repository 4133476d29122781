"""The rows of IPC kinds, of crashes and of the kernel's calls for events: what they measure, and their verdicts."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from lab_bench import quick_lab
from support.server import wait_until

from ewe_lab.bench import processes
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.experiments import queue_policies, r_ipc, sff, t_crash, t_poll, t_st1n
from ewe_lab.lab_bench import LabBench
from ewe_lab.load import ipc_kinds


@pytest.fixture
def lab() -> Iterator[LabBench]:
    with quick_lab() as made:
        yield made


ONLY_SYSTEM_V = """
from ewe_lab.load import ipc_kinds
ipc_kinds.KINDS = {"System V queue": ipc_kinds.system_v_queues}
ipc_kinds.main()
"""


def queues_of(pid: int) -> list[str]:
    """Return the message queues of System V from which a process has received last, or to which it has sent."""
    lines = Path("/proc/sysvipc/msg").read_text().splitlines()[1:]
    return [line for line in lines if str(pid) in line.split()[5:7]]  # lspid, lrpid


@pytest.mark.starts_processes
@pytest.mark.needs("Linux")
def test_an_interrupt_leaves_no_queue_in_the_kernel(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ONLY_SYSTEM_V, "1000000", "3"]
    with (tmp_path / "output").open("wb") as output, processes.running(command, output) as started:
        wait_until(lambda: len(queues_of(started.pid)) == 2, 20)
    assert queues_of(started.pid) == []


@pytest.mark.starts_processes
@pytest.mark.needs("Linux")
@pytest.mark.parametrize("kind", list(ipc_kinds.KINDS))
def test_each_kind_carries_whole_messages(kind: str) -> None:
    """A message that is cut or doubled would stop one of the two processes, or leave bytes in the line."""
    found = ipc_kinds.measure_kind(kind, 20, 1)
    assert sorted(found) == sorted(
        f"{name}{what}" for name in ("exchange", "answer", "stream") for what in ("", " cpu")
    )
    assert all(len(values) == 1 and values[0] > 0 for values in found.values())


ONE_QUEUE_ALLOWED = """
import ctypes, resource
from ewe_lab.load import ipc_kinds
one_queue = ipc_kinds.MAX_QUEUED_MESSAGES * ipc_kinds.MAX_MESSAGE_BYTES * 3 // 2
resource.setrlimit(resource.RLIMIT_MSGQUEUE, (one_queue, one_queue))
try:
    ipc_kinds.posix_queues().__enter__()
except OSError as reason:
    print(reason.strerror)
"""


@pytest.mark.starts_processes
@pytest.mark.needs("Linux")
def test_a_refused_queue_leaves_no_name_of_the_other_in_the_kernel() -> None:
    process = subprocess.Popen([sys.executable, "-c", ONE_QUEUE_ALLOWED], stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate(timeout=60)
    assert output == "Too many open files\n"  # EMFILE, as mq_open(3) says
    assert ctypes.CDLL("librt.so.1").mq_unlink(b"/ewe-lab-%d-0" % process.pid) == -1


@pytest.mark.needs("Linux")
def test_pipes_are_closed() -> None:
    descriptors = set(os.listdir("/proc/self/fd"))
    with ipc_kinds.pipes():
        assert len(os.listdir("/proc/self/fd")) == len(descriptors) + 4
    assert set(os.listdir("/proc/self/fd")) == descriptors


def exchanges(**micros: float) -> ExperimentTable:
    """Return a table of exchanges; a name has _ for a space."""
    cells = []
    for name, each in micros.items():
        samples = [Sample("x", 0, extra={"micros": each})]
        cells.append(
            Cell(name.replace("_", " "), r_ipc.EXCHANGE_COLUMN, value="extra.micros", samples=samples)
        )
    return ExperimentTable("R-IPC", cells=cells)


def test_the_claim_about_queues_can_fail() -> None:
    queues = {"POSIX_queue": 10.0, "System_V_queue": 11.0}
    assert r_ipc.check(exchanges(**queues, Unix_socket=15, TCP_loopback=30)).word == "holds"
    assert r_ipc.check(exchanges(**queues, Unix_socket=8, TCP_loopback=30)).word == "holds in part"
    assert r_ipc.check(exchanges(**queues, Unix_socket=8, TCP_loopback=9)).word == "does not hold"
    assert r_ipc.check(exchanges(**queues)).word == "not testable"


def crashes(**by_model: tuple[int, int]) -> ExperimentTable:
    cells = []
    for model, (lost, again) in by_model.items():
        sample = Sample("x", 0, extra={"lost": lost, "again": again})
        cells += [
            Cell(model, t_crash.LOST_COLUMN, value="extra.lost", samples=[sample]),
            Cell(model, t_crash.NEW_CLIENT_COLUMN, value="extra.again", samples=[sample]),
        ]
    return ExperimentTable("T-CRASH", cells=cells)


def test_both_halves_of_the_claim_about_crashes_are_judged() -> None:
    assert t_crash.check(crashes(fork=(0, 1), asyncio=(6, 0))).word == "holds"
    assert t_crash.check(crashes(fork=(1, 1), asyncio=(6, 0))).word == "holds in part"
    assert t_crash.check(crashes(fork=(1, 1), asyncio=(6, 1))).word == "does not hold"
    assert t_crash.check(crashes(fork=(0, 1))).word == "not testable"


@pytest.mark.starts_processes
@pytest.mark.parametrize(("model", "lost"), [("fork", 0), ("prefork", 0), ("thread", 6), ("asyncio", 6)])
def test_a_crash_takes_the_clients_of_its_process(
    lab: LabBench,
    model: str,
    lost: int,
) -> None:
    tested = next(each for each in t_crash.SERVERS if each.name == model)
    with lab.start(tested, lab.site([])) as server:
        found = t_crash.crash_and_count(server)
    assert found.extra == {"lost": lost, "again": not lost}


def polled(poll: float, epoll: float, select: float = 500, few: float = 50) -> ExperimentTable:
    """Return a table. poll, epoll: with 9,000 connections. select, few: of select and of epoll, with 900."""

    def cells() -> Iterator[Cell]:
        for name, count, value in (
            ("poll", 9000, poll), ("epoll", 9000, epoll), ("select", 900, select), ("epoll", 900, few),
        ):  # fmt: skip
            sample = Sample("x", 1, extra={"micros": value})
            yield Cell(name, "", count, value="extra.micros", samples=[sample])

    return ExperimentTable("T-POLL", cells=list(cells()))


def test_the_claim_about_epoll_can_fail() -> None:
    assert t_poll.check(polled(900, 50)).word == "holds"
    assert t_poll.check(polled(50, 50)).word == "holds in part"
    assert t_poll.check(polled(900, 50, select=50)).word == "holds in part"
    assert t_poll.check(polled(50, 50, select=50)).word == "does not hold"
    found = t_poll.check(polled(900, 60)).sentence
    assert "poll 900 and epoll 60 µs with 9,000 connections" in found
    assert "select 500 and epoll 50 µs with 900 connections" in found
    assert t_poll.check(replace(polled(50, 50), cells=[])).word == "not testable"
    without_epoll_at_9000 = [cell for number, cell in enumerate(polled(900, 60).cells) if number != 1]
    assert t_poll.check(ExperimentTable("T-POLL", cells=without_epoll_at_9000)).word == "not testable"
    fewer = polled(900, 60)
    fewer.cells[0].samples[0].extra["held"] = 5_000  # of the 9,000 connections of poll
    assert t_poll.check(fewer).word == "not testable"


def test_the_claim_about_numbers_of_requests_can_fail() -> None:
    def counted(*rates: int) -> ExperimentTable:
        cells = [
            Cell("nginx", f"{number} requests", 10, samples=[Sample("ab", 1, replies=rate)])
            for number, rate in enumerate(rates)
        ]
        return ExperimentTable("T-ST1n", cells=cells)

    assert t_st1n.check(counted(100, 120)).word == "holds"
    assert t_st1n.check(counted(100, 170)).word == "does not hold"
    assert t_st1n.check(counted(100, 0)).word == "does not hold"
    assert t_st1n.check(counted(100)).word == t_st1n.check(counted(0, 0)).word == "not testable"


def queues(
    fifo: float,
    pure: float,
    before: tuple[float, float, float],
    alike: float = 1.0,
    aged: float | None = None,
) -> ExperimentTable:
    """Return a table of SFF. aged: the mean with ageing, by default that of fifo."""

    def cells() -> Iterator[Cell]:
        for name, mean, one, count in zip(
            (sff.FIFO, sff.AGEING_SFF, sff.PURE_SFF),
            (fifo, fifo if aged is None else aged, pure),
            (1.0, 1.0, alike),
            before,
            strict=True,
        ):
            for times, extra in ((1, {"mean": one}), (4000, {"mean": mean, "before": count})):
                sample = [Sample("x", 1, extra=extra)]
                yield Cell(name, sff.MEAN, times, value="extra.mean", samples=sample)
                yield Cell(name, sff.BEFORE, times, value="extra.before", samples=sample)

    return ExperimentTable("SFF", cells=list(cells()))


def test_the_four_parts_of_the_claim_about_the_shortest_file() -> None:
    assert sff.check(queues(60, 10, (0, 8, 40))).word == "holds"
    assert sff.check(queues(60, 50, (0, 8, 40))).word == "holds in part"
    assert sff.check(queues(60, 10, (0, 9, 40))).word == "holds in part"
    assert sff.check(queues(60, 10, (0, 8, 40), aged=20)).word == "holds in part"
    assert sff.check(queues(60, 50, (0, 9, 40), alike=3, aged=50)).word == "does not hold"
    assert sff.check(replace(queues(60, 10, (0, 8, 40)), cells=[])).word == "not testable"


@pytest.mark.starts_processes
@pytest.mark.parametrize(("policy", "before"), [(sff.FIFO, 0), (sff.AGEING_SFF, 8), (sff.PURE_SFF, 40)])
def test_the_policy_decides_how_many_small_files_come_first(
    lab: LabBench, tmp_path: Path, policy: str, before: int
) -> None:
    tested = next(each for each in sff.SERVERS if each.name == policy)
    root = lab.site([])
    for name, size in (("occupies", sff.OCCUPIES_BYTES), ("small", 100), ("large-9", 1_000_000)):
        (root / name).write_bytes(bytes(size))
    log = tmp_path / "order.log"
    with lab.start(replace(tested, options=(*tested.options, "--access-log", str(log))), root) as server:
        assert sff.measure_emptying(server, "/large-9", log).extra["before"] == before


def policies(orders: tuple[float, ...], drops: dict[str, tuple[int, int, int]]) -> ExperimentTable:
    """Return a table of QUEUE.

    orders: the small files that passed, by server. drops: the three counts by policy.
    """
    cells = [
        Cell(
            tested.name, queue_policies.PASSED, value="extra.x", samples=[Sample("x", 1, extra={"x": count})]
        )
        for tested, count in zip(queue_policies.ORDERS, orders, strict=True)
    ]
    columns = (queue_policies.SMALL_SERVED, queue_policies.LARGE_SERVED, queue_policies.EARLY_SERVED)
    cells += [
        Cell(name, column, value="extra.x", samples=[Sample("x", 1, extra={"x": float(count)})])
        for name, counts in drops.items()
        for column, count in zip(columns, counts, strict=True)
    ]
    return ExperimentTable("QUEUE", cells=cells)


@pytest.mark.parametrize(
    ("orders", "drops", "word"),
    [
        ((0, 0, 40, 40), queue_policies.DROPS, "holds"),
        ((0, 0, 40, 39), queue_policies.DROPS, "holds in part"),
        ((0, 0, 40, 40), queue_policies.DROPS | {"refuse": (6, 2, 0)}, "holds in part"),
        ((1, 1, 0, 0), dict.fromkeys(queue_policies.DROPS, (0, 0, 0)), "does not hold"),
        ((0, 0, 40, 40), {"refuse": (6, 2, 8)}, "not testable"),
    ],
)
def test_the_parts_of_the_claim_about_the_policies_of_a_queue(
    orders: tuple[float, ...], drops: dict[str, tuple[int, int, int]], word: str
) -> None:
    assert queue_policies.check(policies(orders, drops)).word == word


@pytest.mark.starts_processes
def test_the_policies_of_a_queue_decide_which_requests_are_served(lab: LabBench) -> None:
    table = ExperimentTable("QUEUE", cells=list(queue_policies.run(lab)))
    assert queue_policies.check(table).word == "holds", [cell.failure for cell in table.cells]
