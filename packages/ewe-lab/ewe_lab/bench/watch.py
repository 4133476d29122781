"""The resources that a server uses while a load runs: CPU, memory, threads, processes, descriptors, switches.

    with Watch(server.pid, core) as watch:
        watch.begin(); ...; watch.end()
    watch.usage()

A thread reads /proc once a second, for the whole process tree. It runs on the core on which the Watch was made,
which should not be the server's. core: the server's core; beside: the load's; None: not pinned.

CPU time is exact and includes processes that have ended. The context switches of a process after the last reading
are not counted if the process ends. A peak between two readings is missed. Memory is PSS: each shared page is
divided among the processes that share it. The kernel counts PSS page by page. If that is slow, the Watch reads PSS
less often, so that reading takes at most a twentieth of the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import psutil

from ewe_lab.bench.processes import ENDED_STATES, core_seconds, cpu_seconds, process_tree
from ewe_lab.bench.results import Second, Usage

SAMPLE_EVERY_S = 1.0  # seconds
HALF_SAMPLE_S = SAMPLE_EVERY_S / 2
MAX_READING_SHARE = 0.05  # share of the time that may be spent on reading memory


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
    """Reads the resources of a process and its descendants, between begin() and end()."""

    def __init__(
        self, pid: int, core: int | None = None, beside: int | None = None, other_pids: tuple[int, ...] = ()
    ) -> None:
        """core: of the server. beside: another core to watch.

        other_pids: processes that work for the server without being its children.
        """
        self.pids = (pid, *other_pids)
        self.cores = (core, beside)  # the server's, and the one beside it
        self.readings: list[Reading] = []
        self.switches: dict[tuple[int, int], tuple[int, int]] = {}  # (process, thread): context switches
        self.next_memory_reading = 0.0  # the earliest time of the next reading of memory
        # Busy seconds of both cores: until end() since the machine started, then since begin()
        self.core_busy_s: list[float | None] = []
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
        """Take the first reading, and start the thread."""
        self.take_reading()
        self.core_busy_s = [None if core is None else core_seconds(core) for core in self.cores]
        self.thread = threading.Thread(target=self.read_each_second, daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Take the last reading; turn core_busy_s into the differences since begin()."""
        self.stop.set()
        self.core_busy_s = [
            None if core is None or before is None else core_seconds(core) - before
            for core, before in zip(self.cores, self.core_busy_s, strict=True)
        ]
        self.take_reading()

    def read_each_second(self) -> None:
        """Read at the end of each second, counted from the first reading."""
        number = 1
        while not self.stop.wait(max(self.readings[0].at + number * SAMPLE_EVERY_S - time.monotonic(), 0)):
            self.take_reading()
            number = int((time.monotonic() - self.readings[0].at) / SAMPLE_EVERY_S) + 1

    def take_reading(self) -> None:
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
                    sum(known_values(threads_of(each) for each in family)),
                    sum_of_known(descriptors_of(each) for each in family),
                    self.memory(family),
                    sum(voluntary for voluntary, _ in self.switches.values()),
                    sum(involuntary for _, involuntary in self.switches.values()),
                )
            )

    def family(self) -> Iterator[psutil.Process]:
        """Yield the processes that are alive."""
        for each in process_tree(*self.pids):
            if each.state not in ENDED_STATES:
                try:
                    yield psutil.Process(each.pid)
                except psutil.NoSuchProcess:
                    pass

    def memory(self, family: list[psutil.Process]) -> float | None:
        """Return the memory in bytes; None if it was read too recently."""
        began = time.monotonic()
        if began < self.next_memory_reading:
            return None
        found = sum_of_known(memory_of(each) for each in family)
        now = time.monotonic()
        self.next_memory_reading = now + (now - began) / MAX_READING_SHARE
        return found

    def usage(self) -> Usage:
        """Return the resources used from begin() to end()."""
        return replace(usage_of_readings(self.readings), core=self.busy_share(0))

    def usage_between(self, start: float, end: float) -> Usage | None:
        """Return the resources used between two times, in seconds since begin(); None without two readings between.

        The readings are a second apart. The figures are those from the first to the last reading of the interval,
        and CPU time is scaled to the length of the interval.
        """
        first = self.readings[0].at
        inside = [
            each for each in self.readings if start - HALF_SAMPLE_S <= each.at - first < end + HALF_SAMPLE_S
        ]
        if len(inside) < 2:
            return None
        found = usage_of_readings(inside)
        return replace(found, cpu=found.cpu * (end - start) / (inside[-1].at - inside[0].at))

    def busy_share(self, core_index: int) -> float | None:
        """Return the share of the time in which one of `cores` was busy; None if it was not watched."""
        length = self.readings[-1].at - self.readings[0].at
        busy = self.core_busy_s[core_index]
        return None if busy is None or length <= 0 else min(busy / length, 1.0)

    def fill(self, timeline: list[Second]) -> None:
        """Add to each second the reading at its end."""
        first = self.readings[0].at
        for before, reading in zip(self.readings, self.readings[1:], strict=False):
            number = round((reading.at - first) / SAMPLE_EVERY_S) - 1
            length = reading.at - before.at
            if not 0 <= number < len(timeline) or length < SAMPLE_EVERY_S / 2:
                continue
            second = timeline[number]
            second.cpu = (reading.cpu - before.cpu) / length
            second.memory = reading.memory
            second.threads, second.processes = reading.threads, reading.processes
            second.descriptors = reading.descriptors
            second.switches = reading.voluntary + reading.involuntary - before.voluntary - before.involuntary


def usage_of_readings(readings: Sequence[Reading]) -> Usage:
    """Return the resources used from the first to the last reading."""
    first, last = readings[0], readings[-1]
    return Usage(
        cpu=last.cpu - first.cpu,
        memory=max_of_known(each.memory for each in readings),
        threads=max_of_known(each.threads for each in readings),
        processes=max_of_known(each.processes for each in readings),
        descriptors=max_of_known(each.descriptors for each in readings),
        voluntary=last.voluntary - first.voluntary,
        involuntary=last.involuntary - first.involuntary,
    )


# ---------------------------------------------------------------------------------------------------------
# One process. None: the process has ended, or we may not read its figures.

Number = TypeVar("Number", int, float)


def threads_of(process: psutil.Process) -> int | None:
    """Return the number of threads of a process."""
    try:
        return int(process.num_threads())
    except psutil.Error:
        return None


def descriptors_of(process: psutil.Process) -> int | None:
    """Return the number of open descriptors of a process."""
    try:
        return int(process.num_fds())
    except psutil.Error:
        return None


def memory_of(process: psutil.Process) -> float | None:
    """Return the PSS of a process in bytes, or its RSS if we may not read its PSS."""
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
    """Return the context switches so far of each thread of a process. psutil reads only the first thread."""
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


def known_values(values: Iterator[Number | None]) -> list[Number]:
    """Return the values that are known."""
    return [value for value in values if value is not None]


def sum_of_known(values: Iterator[Number | None]) -> Number | None:
    """Return the sum of the known values, None if there is none."""
    found = known_values(values)
    return sum(found) if found else None


def max_of_known(values: Iterator[Number | None]) -> Number | None:
    """Return the greatest of the known values, None if there is none."""
    return max(known_values(values), default=None)
