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
nobody, if its parent ended first. `ProcessTreeClock` therefore keeps the last reading of each process. A parent
that ignores SIGCHLD, such as the daemon of Apache's mod_cgid, never waits, and the CPU time of its programs is
lost. While the lab has such a process, other programs have at most what their own clocks say. A program that
becomes a daemon leaves the tree: a process that was once in the tree stays in it. The interrupts of the kernel are
left out, because the load itself causes most of them. With more than two cores the lab's own processes may also run
elsewhere: only those count that were last seen on a watched core.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ewe_lab.bench.processes import (
    TICKS_PER_S,
    ProcessKey,
    ProcessStat,
    busy_seconds,
    forgetful_processes,
    own_cpu_seconds,
    processes,
)

READ_EVERY_S = 1.0  # seconds between two readings
MIN_WINDOW_S = 0.5  # of a shorter time no share is known: the busy time of a core comes in ticks of 10 ms
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
        self.members: dict[ProcessKey, CpuReading] = {}
        self.forgetful: set[ProcessKey] = set()  # those members whose children's CPU time is lost

    def cpu_seconds_since_last_call(self, everyone: Iterable[ProcessStat], cores: Sequence[int]) -> float:
        """Return the CPU seconds that the process tree used on the cores since the last call.

        `own` of a living process is counted as it grows. When a process has ended and its parent has waited for it,
        the kernel adds all that the process ever used to the parent's `waited` at once. Earlier calls have counted
        a part of that, the last reading of the process, so this call subtracts it.

        everyone: all processes of the machine. cores: those whose time counts. A living process counts if it was
        last seen on one of them. For a process that has ended, the core is not known, and it counts always.
        """
        family = self.family(list(everyone))
        readings = {
            key: CpuReading(own_cpu_seconds(process), process.waited) for key, process in family.items()
        }
        # Only a process with a child shows that it never waits for children. It may have none at a later reading,
        # so it stays in the set as long as it lives
        self.forgetful = (self.forgetful & set(family)) | {
            process.key for process in forgetful_processes(family.values())
        }
        used = waited = 0.0
        for key, reading in readings.items():
            before = self.members.get(key)
            is_on_cores = family[key].core in cores
            # It has started since the last call. (The caller ignores the result of the first call)
            if before is None:
                used += (reading.own + reading.waited) if is_on_cores else 0.0
                continue
            used += max(reading.own - before.own, 0.0) if is_on_cores else 0.0
            waited += reading.waited - before.waited
        counted_before_end = sum(
            member.own + member.waited for key, member in self.members.items() if key not in readings
        )
        self.members = readings
        return used + max(waited - counted_before_end, 0.0)

    def family(self, everyone: Sequence[ProcessStat]) -> dict[ProcessKey, ProcessStat]:
        """Return the root and its descendants, and the members of the last reading with theirs.

        everyone: all processes of the machine.
        """
        children: dict[int, list[ProcessStat]] = {}
        for process in everyone:
            children.setdefault(process.parent, []).append(process)
        earlier_members = self.members
        # The root, and the processes that were in the tree once: a daemon has another parent now
        to_visit = [
            process for process in everyone if process.pid == self.root or process.key in earlier_members
        ]
        found: dict[ProcessKey, ProcessStat] = {}
        while to_visit:
            process = to_visit.pop()
            if process.key not in found:
                found[process.key] = process
                to_visit += children.get(process.pid, ())
        return found


class StrangersClock:
    """The CPU seconds of all processes that do not belong to a tree, as far as /proc knows them.

    It is a lower bound: a process that starts and ends between two readings is missed, unless its parent waits.
    """

    def __init__(self) -> None:
        self.readings: dict[ProcessKey, float] = {}  # CPU seconds so far

    def cpu_seconds_since_last_call(
        self, strangers: Iterable[ProcessStat], cores: Sequence[int], started_after: float
    ) -> float:
        """Return the CPU seconds that the strangers used on the cores since the last call.

        started_after: in clock ticks since the machine started: a process that is new and older has been seen by no
        call, and is not counted yet.
        """
        used, readings = 0.0, {}
        for process in strangers:
            key = process.key
            readings[key] = process.own + process.waited
            before = self.readings.get(key, 0.0 if process.started >= started_after else readings[key])
            used += max(readings[key] - before, 0.0) if process.core in cores else 0.0
        self.readings = readings
        return used


@dataclass(frozen=True)
class ForeignReading:
    """A moment of a watch: the time, and the seconds that other programs had until then."""

    at: float
    foreign_s: float


class OtherProgramsWatch:
    """Watches the cores until the block is left. busy, everyone: the readings, for tests.

    take_reading() and cores_since() tell what other programs had during one measurement, from the same clock.
    """

    def __init__(
        self,
        cores: Iterable[int],
        busy: Callable[[Sequence[int]], float] = busy_seconds,
        everyone: Callable[[], Iterable[ProcessStat]] = processes,
    ) -> None:
        self.cores = sorted(set(cores))
        self.read_busy_seconds, self.list_processes = busy, everyone
        self.tree_clock, self.strangers_clock = ProcessTreeClock(os.getpid()), StrangersClock()
        self.busy_s = self.lab_s = 0.0  # busy seconds of the cores, and those of the lab among them
        self.last_busy_s = 0.0  # the last reading: busy seconds since the machine started
        self.last_ticks = 0.0  # the last reading: clock ticks since the machine started
        self.began = self.ended = 0.0  # the times of the first and the last reading
        self.lock = threading.Lock()  # a measurement reads beside the thread
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

    def take_reading(self, *, first: bool = False) -> ForeignReading:
        """Add the CPU seconds since the last reading to the totals; return the moment and the sum.

        first: there is no reading before it.
        """
        with self.lock:
            # Both clocks are read one after the other, so that they cover the same time
            busy_s = self.read_busy_seconds(self.cores)
            everyone = list(self.list_processes())
            lab_s = self.tree_clock.cpu_seconds_since_last_call(everyone, self.cores)
            strangers_s = self.strangers_clock.cpu_seconds_since_last_call(
                (each for each in everyone if each.key not in self.tree_clock.members),
                self.cores,
                self.last_ticks,
            )
            self.last_ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_S
            self.ended = time.monotonic()
            if self.tree_clock.forgetful:
                # The rest of the busy time is that of programs of the lab which have ended
                lab_s = max(lab_s, busy_s - self.last_busy_s - strangers_s)
            if first:
                self.began = self.ended
            else:
                self.busy_s += busy_s - self.last_busy_s
                self.lab_s += lab_s
            self.last_busy_s = busy_s
            return ForeignReading(self.ended, self.busy_s - self.lab_s)

    def cores_since(self, begin: ForeignReading) -> float | None:
        """Take a reading; return how many cores other programs had since the reading `begin`.

        None if less than MIN_WINDOW_S has passed.
        """
        end = self.take_reading()
        length = end.at - begin.at
        return max((end.foreign_s - begin.foreign_s) / length, 0.0) if length >= MIN_WINDOW_S else None

    def foreign_share(self) -> float:
        """Return the share of the cores, 0 to 1, that other programs had from the first reading to the last."""
        length = (self.ended - self.began) * len(self.cores)
        return min(max((self.busy_s - self.lab_s) / length, 0.0), 1.0) if length > 0 else 0.0
