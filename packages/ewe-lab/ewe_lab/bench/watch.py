"""The resources that a server uses while a load runs: CPU, memory, threads, descriptors, switches, waits.

    with Watch(server.pid, core) as watch:
        watch.begin(); ...; watch.end()
    watch.usage()

A thread reads /proc once a second, for the whole process tree. It runs on the core on which the Watch was made,
which should not be the server's.

CPU time is exact and includes processes that have ended, with one exception: programs of a process that ignores
SIGCHLD, such as the CGI programs of Apache's mod_cgid. The kernel adds their CPU time to nothing. The server's CPU
time is then that of its core, and a note of the sample says so. The context switches of a process after the last
reading are not counted if the process ends. Its waits for a core are missing in the same way: if the threads that
were read had less than MIN_READ_SHARE of the CPU time, the waits are unknown. A peak between two readings is
missed. Memory is PSS: each shared page is divided among the processes that share it. The kernel counts PSS page by
page. If that is slow, the Watch reads PSS less often, so that reading takes at most a twentieth of the time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

import psutil

from ewe_lab.bench.processes import (
    ENDED_STATES,
    ProcessStat,
    busy_seconds_of_core,
    cpu_seconds,
    forgetful_processes,
    process_tree,
    share_of_core,
)
from ewe_lab.bench.results import Second, Usage

SERVER, LOAD = "server", "load"  # the two cores that a Watch may watch
SAMPLE_EVERY_S = 1.0  # seconds
HALF_SAMPLE_S = SAMPLE_EVERY_S / 2
NANOSECONDS_PER_S = 1e9
# Share of the CPU time. If the threads that were read had less, the waits of the others are missing
MIN_READ_SHARE = 0.9
MAX_READING_SHARE = 0.05  # share of the time that may be spent on reading memory
CPU_OF_CORE = (
    "its programs are not waited for, so the kernel forgets their CPU time: the CPU time is that of the server's"
    " core, with all that ran there"
)
CPU_NOT_KNOWN = (
    "its programs are not waited for, so the kernel forgets their CPU time, which the CPU time lacks"
)


class ThreadKey(NamedTuple):
    """A thread, and the process to which it belongs: their ids."""

    pid: int
    thread: int


class Switches(NamedTuple):
    """The context switches of a thread. involuntary: the kernel gave its core to another thread."""

    voluntary: int
    involuntary: int


class ThreadTimes(NamedTuple):
    """The seconds that a thread ran, and the seconds that it could run and waited for a core."""

    run_s: float
    wait_s: float


@dataclass(frozen=True)
class Reading:
    """One reading. at: a time of time.monotonic(). cpu, core_s, voluntary, involuntary: totals so far.

    cpu is in seconds; voluntary and involuntary are context switches. memory: bytes. core_s: the busy seconds of
    the server's core. run_s, wait_s: the seconds that the threads ran, and that they waited for a core. None: not
    read.
    """

    at: float
    cpu: float
    processes: int
    threads: int
    descriptors: int | None
    memory: float | None
    voluntary: int
    involuntary: int
    core_s: float | None = None
    run_s: float | None = None
    wait_s: float | None = None


class Watch:
    """Reads the resources of a process and its descendants, between begin() and end()."""

    def __init__(
        self,
        pid: int,
        server_core: int | None = None,
        load_core: int | None = None,
        other_pids: tuple[int, ...] = (),
    ) -> None:
        """server_core, load_core: the cores whose busy time is watched; None: that one is not watched.

        other_pids: processes that work for the server without being its children.
        """
        self.pids = (pid, *other_pids)
        self.cores = {SERVER: server_core, LOAD: load_core}
        self.readings: list[Reading] = []
        self.switches: dict[ThreadKey, Switches] = {}
        self.times: dict[ThreadKey, ThreadTimes] = {}
        self.next_memory_reading = 0.0  # the earliest time of the next reading of memory
        self.busy_at_begin_s: dict[str, float] = {}  # by core: its busy seconds since the machine started
        self.core_busy_s: dict[str, float] = {}  # by core: its busy seconds from begin() to end()
        # Whether the server has programs that nobody waits for: then `cpu` of the readings lacks their CPU time
        self.forgets_programs = False
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
        """Take the first reading, and start the thread. A second call forgets the readings before it."""
        with self.lock:  # a reading that the thread takes at this moment is also forgotten
            self.readings.clear()
        self.take_reading()
        self.busy_at_begin_s = self.read_cores()
        if self.thread is None:
            self.thread = threading.Thread(target=self.read_each_second, daemon=True)
            self.thread.start()

    def end(self) -> None:
        """Take the last reading, and note how busy the cores have been since begin()."""
        self.stop.set()
        self.core_busy_s = {
            role: busy_s - self.busy_at_begin_s[role] for role, busy_s in self.read_cores().items()
        }
        self.take_reading()

    def read_cores(self) -> dict[str, float]:
        """Return, for each watched core, the seconds that it has been busy since the machine started."""
        return {role: busy_seconds_of_core(core) for role, core in self.cores.items() if core is not None}

    def read_each_second(self) -> None:
        """Read at the end of each second, counted from the first reading."""
        first, next_index = self.readings[0].at, 1
        while not self.stop.wait(max(first + next_index * SAMPLE_EVERY_S - time.monotonic(), 0)):
            self.take_reading()
            # The next whole second; a slow reading may have taken several
            next_index = int((time.monotonic() - first) / SAMPLE_EVERY_S) + 1

    def take_reading(self) -> None:
        """Add a reading to `readings`."""
        # Before the lock: another reading may hold it for long, and the server goes on meanwhile
        at, cpu = time.monotonic(), cpu_seconds(*self.pids)
        server_core = self.cores[SERVER]
        core_s = None if server_core is None else busy_seconds_of_core(server_core)
        with self.lock:
            tree = process_tree(*self.pids)
            self.forgets_programs = self.forgets_programs or bool(forgetful_processes(tree))
            family = list(living_processes(tree))
            for process in family:
                # The last figures of ended threads stay
                self.switches.update(switches(process.pid))
                self.times.update(run_and_wait_times(process.pid))
            self.readings.append(
                Reading(
                    at,
                    cpu,
                    processes=len(family),
                    threads=sum(known_values(threads_of(process) for process in family)),
                    descriptors=sum_of_known(descriptors_of(process) for process in family),
                    memory=self.read_memory(family),
                    voluntary=sum(each.voluntary for each in self.switches.values()),
                    involuntary=sum(each.involuntary for each in self.switches.values()),
                    core_s=core_s,
                    run_s=sum(each.run_s for each in self.times.values()),
                    wait_s=sum(each.wait_s for each in self.times.values()),
                )
            )

    def read_memory(self, family: list[psutil.Process]) -> float | None:
        """Return the memory in bytes; None if it was read too recently. Note when it may be read next."""
        began = time.monotonic()
        if began < self.next_memory_reading:
            return None
        found = sum_of_known(memory_of(process) for process in family)
        now = time.monotonic()
        # The pause is so long that reading takes at most this share of the time
        self.next_memory_reading = now + (now - began) / MAX_READING_SHARE
        return found

    def usage(self) -> Usage:
        """Return the resources used from begin() to end()."""
        return usage_of_readings(self.readings_with_programs())

    def readings_with_programs(self) -> list[Reading]:
        """Return the readings. Their CPU time is that of the server's core if that of its programs is lost."""
        if not self.forgets_programs:
            return self.readings
        return [
            reading if reading.core_s is None else replace(reading, cpu=reading.core_s)
            for reading in self.readings
        ]

    def note_on_cpu(self) -> str:
        """Return why the CPU time is not that of the server's processes, "" if it is."""
        if not self.forgets_programs:
            return ""
        return CPU_NOT_KNOWN if self.cores[SERVER] is None else CPU_OF_CORE

    def usage_between(self, start: float, end: float) -> Usage | None:
        """Return the resources used between two times, in seconds since begin(); None without two readings between.

        start, end: of a phase of the load. A reading counts as inside if it is at most half a second outside.

        The readings are a second apart. The figures are those from the first to the last reading of the interval,
        and CPU time is scaled to the length of the interval.
        """
        first = self.readings[0].at
        inside = [
            reading
            for reading in self.readings_with_programs()
            if start - HALF_SAMPLE_S <= reading.at - first < end + HALF_SAMPLE_S
        ]
        if len(inside) < 2:
            return None
        found = usage_of_readings(inside)
        return replace(found, cpu=found.cpu * (end - start) / (inside[-1].at - inside[0].at))

    def busy_share(self, role: str, measured_s: float) -> float | None:
        """Return the share of the measured time in which a core was busy; None if it was not watched.

        role: SERVER or LOAD. measured_s: of the load, as in share_of_core().
        """
        busy_s = self.core_busy_s.get(role)
        return None if busy_s is None or measured_s <= 0 else share_of_core(busy_s, measured_s)

    def add_to_timeline(self, timeline: list[Second]) -> None:
        """Add to each second the reading at its end."""
        first = self.readings[0].at
        for before, reading in pairwise(self.readings_with_programs()):
            # A reading about k seconds after the first ends the second with the index k - 1
            second_index = round((reading.at - first) / SAMPLE_EVERY_S) - 1
            length = reading.at - before.at
            # The last reading comes when the load ends, perhaps early in a second: so short a part is left out
            if not 0 <= second_index < len(timeline) or length < HALF_SAMPLE_S:
                continue
            second = timeline[second_index]
            second.cpu = (reading.cpu - before.cpu) / length
            second.memory = reading.memory
            second.threads, second.processes = reading.threads, reading.processes
            second.descriptors = reading.descriptors
            switches_so_far, switches_before = (
                each.voluntary + each.involuntary for each in (reading, before)
            )
            second.switches = switches_so_far - switches_before


def usage_of_readings(readings: Sequence[Reading]) -> Usage:
    """Return the resources used from the first to the last reading."""
    first, last = readings[0], readings[-1]
    return Usage(
        # Not below 0: a program whose CPU time is lost may have run at the first reading
        cpu=max(last.cpu - first.cpu, 0.0),
        memory=max_of_known(reading.memory for reading in readings),
        threads=max_of_known(reading.threads for reading in readings),
        processes=max_of_known(reading.processes for reading in readings),
        descriptors=max_of_known(reading.descriptors for reading in readings),
        voluntary=last.voluntary - first.voluntary,
        involuntary=last.involuntary - first.involuntary,
        wait_s=wait_of_readings(first, last),
    )


def wait_of_readings(first: Reading, last: Reading) -> float | None:
    """Return the seconds that the threads waited for a core between two readings; None if they are not known.

    They are not known if threads with more than a tenth of the CPU time ended without a reading, as those of a
    server that starts a process for each connection. A kernel that does not measure them says 0 for each thread.
    """
    if first.run_s is None or first.wait_s is None or last.run_s is None or last.wait_s is None:
        return None
    run_s = last.run_s - first.run_s
    if run_s <= 0 or run_s < MIN_READ_SHARE * (last.cpu - first.cpu):
        return None
    return last.wait_s - first.wait_s


# ---------------------------------------------------------------------------------------------------------
# One process. None: the process has ended, or we may not read its figures.

Number = TypeVar("Number", int, float)


def living_processes(tree: Iterable[ProcessStat]) -> Iterator[psutil.Process]:
    """Yield the processes of a tree that have not ended."""
    for process in tree:
        if process.state not in ENDED_STATES:
            try:
                yield psutil.Process(process.pid)
            except psutil.NoSuchProcess:
                pass  # it has ended meanwhile


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


def switches(pid: int) -> dict[ThreadKey, Switches]:
    """Return the context switches so far of each thread of a process. psutil would read the first thread only."""
    found: dict[ThreadKey, Switches] = {}
    for thread, text in thread_files(pid, "status"):
        lines = text.splitlines()
        # Two lines: voluntary_ctxt_switches, then nonvoluntary_ctxt_switches
        counts = [int(line.split()[1]) for line in lines if "voluntary_ctxt_switches" in line]
        if len(counts) == 2:
            found[ThreadKey(pid, thread)] = Switches(*counts)
    return found


def run_and_wait_times(pid: int) -> dict[ThreadKey, ThreadTimes]:
    """Return the times so far of each thread of a process.

    A thread waits while it could run and the core is busy with another thread. While it sleeps, as for a client,
    it does not wait.
    """
    found: dict[ThreadKey, ThreadTimes] = {}
    for thread, text in thread_files(pid, "schedstat"):
        # Three numbers: nanoseconds on a core, nanoseconds of waiting for one, times that it got one
        parts = text.split()
        if len(parts) == 3:
            found[ThreadKey(pid, thread)] = ThreadTimes(
                int(parts[0]) / NANOSECONDS_PER_S, int(parts[1]) / NANOSECONDS_PER_S
            )
    return found


def thread_files(pid: int, name: str) -> Iterator[tuple[int, str]]:
    """Yield each thread of a process with the text of its file `name` in /proc; nothing if the process has ended.

    Path.glob() would raise an error for a process that ends while its threads are listed.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        try:
            yield int(thread), Path(f"/proc/{pid}/task/{thread}/{name}").read_text(errors="replace")
        except OSError:
            # The thread has ended, or the kernel has no such file
            continue


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
