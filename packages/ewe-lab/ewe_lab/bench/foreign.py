"""The CPU time that other programs take while an experiment runs: the one clock on which every verdict depends.

    with OtherProgramsWatch(cores) as watch:
        ...                     # the experiment
    watch.foreign_share()       # of the cores, 0 to 1

A rate or a time that was measured beside a compiler is the compiler's too. Most experiments have their own client.
None of them should have to remember to look at the cores, so the lab looks around every experiment alike: a thread
reads /proc once a second. The busy time of the cores, less that of the lab and of all its descendants, is that of
other programs.

                 busy time of the cores (user, nice, system, steal)
    foreign  =  - CPU time of the lab and of all its descendants

Possible failures. A process that ends takes its CPU time with it: to its parent, which has waited for it, or to
nobody, if its parent ended first. `ProcessTreeClock` therefore keeps the last reading of each process. A program
that becomes a daemon leaves the tree: a process that was once in the tree stays in it. The interrupts of the kernel
are left out, because the load itself causes most of them. With more than two cores the lab's own processes may also
run elsewhere: only those count that were last seen on a watched core.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ewe_lab.bench.processes import TICKS_PER_S, ProcessStat, own_cpu_seconds, processes

READ_EVERY_S = 1.0  # seconds between two readings
# Of one core: if other programs had more, rates and times are no longer the server's
MAX_FOREIGN_SHARE = 0.25


@dataclass(frozen=True)
class CpuReading:
    """CPU seconds of a process: its own, and of the children that it waited for."""

    own: float
    waited: float


class ProcessTreeClock:
    """The CPU seconds of a process and all its descendants, those included that have ended."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.members: dict[tuple[int, int], CpuReading] = {}  # by pid and start time

    def cpu_seconds_since_last_call(self, everyone: Iterable[ProcessStat], cores: Sequence[int]) -> float:
        """Return the CPU seconds that the process tree used on the cores since the last call.

        `own` of a living process is counted as it grows. When a process has ended and its parent has waited for it,
        all that it ever used appears in the parent's `waited` at once. The part of it that it had used by the last
        call was counted then, and is taken off.
        """
        family = self.family(list(everyone))
        readings = {
            key: CpuReading(own_cpu_seconds(process), process.waited) for key, process in family.items()
        }
        used = waited = 0.0
        for key, reading in readings.items():
            before = self.members.get(key)
            is_on_cores = family[key].core in cores
            if before is None:  # a process that is new in the tree
                used += (reading.own + reading.waited) if is_on_cores else 0.0
                continue
            used += max(reading.own - before.own, 0.0) if is_on_cores else 0.0
            waited += reading.waited - before.waited
        counted_before_end = sum(
            member.own + member.waited for key, member in self.members.items() if key not in readings
        )
        self.members = readings
        return used + max(waited - counted_before_end, 0.0)

    def family(self, everyone: Sequence[ProcessStat]) -> dict[tuple[int, int], ProcessStat]:
        """Return the root and its descendants, and those of an earlier reading with their descendants."""
        children: dict[int, list[ProcessStat]] = {}
        for process in everyone:
            children.setdefault(process.parent, []).append(process)
        earlier_members = self.members
        # The root, and the processes that were in the tree once: a daemon has another parent now
        to_visit = [
            process
            for process in everyone
            if process.pid == self.root or (process.pid, process.started) in earlier_members
        ]
        found: dict[tuple[int, int], ProcessStat] = {}
        while to_visit:
            process = to_visit.pop()
            if (process.pid, process.started) not in found:
                found[process.pid, process.started] = process
                to_visit += children.get(process.pid, ())
        return found


def busy_seconds(cores: Sequence[int]) -> float:
    """Return the seconds that cores have been busy with programs since the machine started, without interrupts."""
    found = 0.0
    for line in Path("/proc/stat").read_text(errors="replace").splitlines():
        name, *ticks = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in cores:
            # proc(5): user, nice, system, idle, iowait, irq, softirq, steal
            user, nice, system, *_, steal = map(int, ticks[:8])
            found += (user + nice + system + steal) / TICKS_PER_S
    return found


class OtherProgramsWatch:
    """Watches the cores until the block is left. busy, everyone: the readings, for tests."""

    def __init__(
        self,
        cores: Iterable[int],
        busy: Callable[[Sequence[int]], float] = busy_seconds,
        everyone: Callable[[], Iterable[ProcessStat]] = processes,
    ) -> None:
        self.cores = sorted(set(cores))
        self.read_busy_seconds, self.list_processes = busy, everyone
        self.tree_clock = ProcessTreeClock(os.getpid())
        self.busy_s = self.lab_s = 0.0  # busy seconds of the cores, and those of the lab among them
        self.last_busy_s = 0.0  # the last reading: busy seconds since the machine started
        self.began = self.ended = 0.0  # the times of the first and the last reading
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.read_each_second, daemon=True)

    def __enter__(self) -> OtherProgramsWatch:
        self.take_reading(first=True)
        self.thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stopped.set()
        self.thread.join()
        self.take_reading()

    def read_each_second(self) -> None:
        """Take a reading each second until the block is left."""
        while not self.stopped.wait(READ_EVERY_S):
            self.take_reading()

    def take_reading(self, first: bool = False) -> None:
        """Add the CPU seconds since the last reading to the totals. first: there is no reading before it."""
        # Both clocks are read one after the other, so that they cover the same time
        busy_s = self.read_busy_seconds(self.cores)
        lab_s = self.tree_clock.cpu_seconds_since_last_call(self.list_processes(), self.cores)
        self.ended = time.monotonic()
        if first:
            self.began = self.ended
        else:
            self.busy_s += busy_s - self.last_busy_s
            self.lab_s += lab_s
        self.last_busy_s = busy_s

    def foreign_share(self) -> float:
        """Return the share of the cores, 0 to 1, that other programs had from the first reading to the last."""
        length = (self.ended - self.began) * len(self.cores)
        return min(max((self.busy_s - self.lab_s) / length, 0.0), 1.0) if length > 0 else 0.0
