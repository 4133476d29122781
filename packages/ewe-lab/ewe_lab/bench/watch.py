"""What a server uses while a load runs: CPU, memory, threads, processes, descriptors, context switches.

    with Watch(server.pid, core) as watch:
        watch.begin(); ...; watch.end()
    watch.usage()

A thread reads /proc once a second, for the whole process tree. It runs on the core on which the Watch was made,
which should not be the server's. core: the server's core; beside: the load's; None: not pinned.

CPU time is exact and includes processes that have ended. Context switches lack those between the last reading and
the end of a process. A peak between two readings is missed. Memory is PSS: each shared page is divided among the
processes that share it. The kernel counts PSS page by page, so it is read less often where that is slow, and for at
most a twentieth of the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import psutil

from ewe_lab.bench.processes import core_seconds, cpu_seconds, tree
from ewe_lab.bench.results import Second, Usage

EVERY = 1.0  # seconds
HALF = EVERY / 2
SHARE = 0.05  # share of the time that may be spent on reading memory


@dataclass(frozen=True)
class Reading:
    """One reading. cpu, voluntary, involuntary: totals so far."""

    at: float
    cpu: float
    processes: int
    threads: int
    descriptors: int | None
    memory: float | None
    voluntary: int
    involuntary: int


class Watch:
    """Reads what a process and its descendants use, between begin() and end()."""

    def __init__(
        self, pid: int, core: int | None = None, beside: int | None = None, also: tuple[int, ...] = ()
    ) -> None:
        """also: processes that work for the server without being its children."""
        self.pids = (pid, *also)
        self.cores = (core, beside)
        self.readings: list[Reading] = []
        self.switches: dict[tuple[int, int], tuple[int, int]] = {}  # (process, thread): context switches
        self.memory_again = 0.0  # not before this time
        self.busy: list[float | None] = []  # seconds, of both cores
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop.set()
        if self.thread:
            self.thread.join()

    def begin(self) -> None:
        """Start to read."""
        self.look()
        self.busy = [None if core is None else core_seconds(core) for core in self.cores]
        self.thread = threading.Thread(target=self.look_each_second, daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Read for the last time."""
        self.stop.set()
        self.busy = [
            None if core is None or before is None else core_seconds(core) - before
            for core, before in zip(self.cores, self.busy, strict=True)
        ]
        self.look()

    def look_each_second(self) -> None:
        """Read at the end of each second, counted from the first reading."""
        number = 1
        while not self.stop.wait(max(self.readings[0].at + number * EVERY - time.monotonic(), 0)):
            self.look()
            number = int((time.monotonic() - self.readings[0].at) / EVERY) + 1

    def look(self) -> None:
        """Add a reading."""
        with self.lock:
            at, cpu = time.monotonic(), cpu_seconds(*self.pids)
            family = list(self.family())
            for each in family:
                self.switches.update(switches(each.pid))
            self.readings.append(
                Reading(
                    at,
                    cpu,
                    len(family),
                    sum(known(threads_of(each) for each in family)),
                    total(descriptors_of(each) for each in family),
                    self.memory(family),
                    sum(voluntary for voluntary, _ in self.switches.values()),
                    sum(involuntary for _, involuntary in self.switches.values()),
                )
            )

    def family(self) -> Iterator[psutil.Process]:
        """Yield the processes that are alive."""
        for each in tree(*self.pids):
            if each.state not in "ZX":
                try:
                    yield psutil.Process(each.pid)
                except psutil.NoSuchProcess:
                    pass

    def memory(self, family: list[psutil.Process]) -> float | None:
        """Return the memory in bytes; None if it was read too recently."""
        began = time.monotonic()
        if began < self.memory_again:
            return None
        found = total(memory_of(each) for each in family)
        now = time.monotonic()
        self.memory_again = now + (now - began) / SHARE
        return found

    def usage(self) -> Usage:
        """Return what was used from begin() to end()."""
        return replace(used(self.readings), core=self.share(0))

    def usage_between(self, start: float, end: float) -> Usage | None:
        """Return what was used in a part of the time, in seconds since begin(); None without two readings in it.

        The readings are a second apart: the figures are those from the first to the last reading in that part,
        and CPU time is scaled up to the whole part.
        """
        first = self.readings[0].at
        inside = [each for each in self.readings if start - HALF <= each.at - first < end + HALF]
        if len(inside) < 2:
            return None
        found = used(inside)
        return replace(found, cpu=found.cpu * (end - start) / (inside[-1].at - inside[0].at))

    def share(self, which: int) -> float | None:
        """Return the share of one of the two cores that was busy with any program; None: it was not watched."""
        length = self.readings[-1].at - self.readings[0].at
        busy = self.busy[which]
        return None if busy is None or length <= 0 else min(busy / length, 1.0)

    def fill(self, timeline: list[Second]) -> None:
        """Add to each second what was seen at its end."""
        first = self.readings[0].at
        for before, reading in zip(self.readings, self.readings[1:], strict=False):
            number = round((reading.at - first) / EVERY) - 1
            length = reading.at - before.at
            if not 0 <= number < len(timeline) or length < EVERY / 2:
                continue
            second = timeline[number]
            second.cpu = (reading.cpu - before.cpu) / length
            second.memory = reading.memory
            second.threads, second.processes = reading.threads, reading.processes
            second.descriptors = reading.descriptors
            second.switches = reading.voluntary + reading.involuntary - before.voluntary - before.involuntary


def used(readings: Sequence[Reading]) -> Usage:
    """Return what was used from the first to the last reading."""
    first, last = readings[0], readings[-1]
    return Usage(
        last.cpu - first.cpu,
        peak(each.memory for each in readings),
        peak(each.threads for each in readings),
        peak(each.processes for each in readings),
        peak(each.descriptors for each in readings),
        last.voluntary - first.voluntary,
        last.involuntary - first.involuntary,
    )


# ---------------------------------------------------------------------------------------------------------
# One process. None: it has ended, or we may not read its figures.

Number = TypeVar("Number", int, float)


def threads_of(process: psutil.Process) -> int | None:
    """Return how many threads it has."""
    try:
        return int(process.num_threads())
    except psutil.Error:
        return None


def descriptors_of(process: psutil.Process) -> int | None:
    """Return how many descriptors it has open."""
    try:
        return int(process.num_fds())
    except psutil.Error:
        return None


def memory_of(process: psutil.Process) -> float | None:
    """Return its PSS, or RSS where PSS may not be read."""
    try:
        return float(process.memory_full_info().pss)
    except psutil.AccessDenied:
        try:
            return float(process.memory_info().rss)
        except psutil.Error:
            return None
    except psutil.Error:
        return None


def switches(pid: int) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the context switches of each of its threads so far (psutil knows those of the first only)."""
    found = {}
    for task in Path(f"/proc/{pid}/task").glob("*/status"):
        try:
            lines = task.read_text(errors="replace").splitlines()
        except OSError:
            continue
        counts = [int(line.split()[1]) for line in lines if "voluntary_ctxt_switches" in line]
        if len(counts) == 2:
            found[pid, int(task.parent.name)] = (counts[0], counts[1])
    return found


def known(values: Iterator[Number | None]) -> list[Number]:
    """Return the values that are known."""
    return [value for value in values if value is not None]


def total(values: Iterator[Number | None]) -> Number | None:
    """Return the sum of the known values, None if there is none."""
    found = known(values)
    return sum(found) if found else None


def peak(values: Iterator[Number | None]) -> Number | None:
    """Return the greatest of the known values, None if there is none."""
    return max(known(values), default=None)
