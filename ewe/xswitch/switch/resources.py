"""What the machine has left: memory and processor time, and whether another engine may start.

The X-Switch paper creates and destroys engines "based on available system resources and the current traffic load"
(section 3.2). This file reads the resources once a second:

    memory      MemAvailable of /proc/meminfo, or what the cgroup of this process has left (a container), whichever
                is less. Below `reserve-memory` the number of engines does not grow, and idle ones end.
    pressure    /proc/pressure/memory and cpu: the percentage of the last ten seconds in which a process waited for
                memory or for a processor ("some avg10"). A kernel without these files has no pressure.

One problem is time. An engine takes its memory a moment after its start, and a surge starts many engines between
two readings. Each start is therefore counted as a promise of memory, for the present second and the next one:

    reading      ───────┬───────────────┬───────────────┬──▶ each second
    promises      start  start  start     start
    available =   reading − promises of this second − promises of the second before

The size of a promise is that of the largest idle engine of the language so far, EXPECTED_BYTES before the first.
It is at most `max-memory`, above which an engine is replaced. It becomes smaller each second (DECAY_PER_SECOND):
otherwise one large engine of one user would keep all others from starting engines until the next restart.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ewe.config.cgroup_paths import cgroups_above
from ewe.xswitch.settings import Settings

DECAY_PER_SECOND = 0.999  # factor of a promise's size: half of the size is left after 12 minutes
EXPECTED_BYTES = 16 << 20  # assumed for an engine of a language that has not been measured
MB = 1 << 20


class MachineReading(NamedTuple):
    """One reading.

    memory: bytes that are available; None if the system does not say. Pressures in percent of time.
    """

    memory: int | None = None
    memory_pressure: float = 0.0
    cpu_pressure: float = 0.0


class LimitedCgroup(NamedTuple):
    """A cgroup that may limit this process: its directory, and the names by which it gives its numbers.

    limit_file, use_file: in bytes. cache_field: the bytes of its file cache, in `memory.stat`.
    """

    directory: str
    limit_file: str
    use_file: str
    cache_field: str


class MachineReader:
    """Reads the resources of the machine, or of the container."""

    def __init__(self, proc: str = "/proc") -> None:
        """proc: the directory of the proc file system; a test gives another one."""
        self.proc = proc
        self.cgroups = list(self.limited_cgroups())

    def read(self) -> MachineReading:
        """Return the available memory and the pressures of this moment."""
        sizes = [self.meminfo(), *map(available_in_cgroup, self.cgroups)]
        memory = min((size for size in sizes if size is not None), default=None)
        return MachineReading(memory, self.pressure("memory"), self.pressure("cpu"))

    def meminfo(self) -> int | None:
        """Return the bytes of memory that are available without swapping (MemAvailable), None if unknown."""
        try:
            with open(f"{self.proc}/meminfo", encoding="utf-8") as file:
                # MemAvailable:   12345 kB
                return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
        except (OSError, ValueError, IndexError, StopIteration):
            return None

    def pressure(self, name: str) -> float:
        """Return the percentage of the last ten seconds in which a process waited for this resource."""
        try:
            with open(f"{self.proc}/pressure/{name}", encoding="utf-8") as file:
                _some, avg10, *_ = file.readline().split()  # some avg10=0.12 avg60=0.05 ...
            return float(avg10.removeprefix("avg10="))
        except (OSError, ValueError, IndexError):
            return 0.0

    def limited_cgroups(self) -> Iterator[LimitedCgroup]:
        """Yield the cgroups that may limit this process: an ancestor's limit holds as well.

        First those of cgroups version 2, then those of version 1.
        """
        for controller, *names in (
            ("", "memory.max", "memory.current", "inactive_file"),
            ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            for directory in cgroups_above(self.proc, controller):
                cgroup = LimitedCgroup(directory, *names)
                if os.path.exists(f"{directory}/{cgroup.limit_file}"):
                    yield cgroup


def available_in_cgroup(cgroup: LimitedCgroup) -> int | None:
    """Return the bytes of memory that a cgroup has left, its file cache included; None if it has no limit."""
    directory, limit_file, use_file, cache_field = cgroup
    try:
        with open(f"{directory}/{limit_file}", encoding="utf-8") as file:
            limit_bytes = int(file.read())  # "max", without a limit: ValueError
        with open(f"{directory}/{use_file}", encoding="utf-8") as file:
            used_bytes = int(file.read())
        with open(f"{directory}/memory.stat", encoding="utf-8") as file:
            cache_bytes = next(
                (int(line.split()[1]) for line in file if line.startswith(f"{cache_field} ")), 0
            )
    except (OSError, ValueError, IndexError):
        return None
    return max(limit_bytes - used_bytes + cache_bytes, 0)


class Resources:
    """Decides whether another engine may start. It has no clock: update() is called once a second."""

    def __init__(
        self,
        settings: Settings,
        read: Callable[[], MachineReading],
        log_message: Callable[[str, str], object],
    ) -> None:
        """read: returns a reading. log_message: logs a level and a message."""
        self.settings = settings
        self.read = read
        self.log_message = log_message
        self.engine_bytes: dict[str, int] = {}  # language -> bytes of its largest idle engine so far
        # Promised bytes: those that engines started in this second, and in the second before, are about to take
        self.promised = self.promised_before = 0
        self.logged_reason = ""  # why memory was short at the last update()
        self.reading = read()

    def update(self) -> None:
        """Begin another second: read the resources, and log when memory becomes short, or is no longer short.

        A promise is the memory that an engine which was just started will take. The promises become those of the
        second before, and the sizes of later ones decrease (see the top of this file).
        """
        self.reading = self.read()
        self.promised, self.promised_before = 0, self.promised
        for language, size in self.engine_bytes.items():
            # A size above EXPECTED_BYTES decreases down to it; a smaller one was measured, and stays
            self.engine_bytes[language] = max(int(size * DECAY_PER_SECOND), min(size, EXPECTED_BYTES))
        reason = self.memory_shortage()
        if bool(reason) != bool(self.logged_reason):
            if reason:
                self.log_message(
                    "warning", f"{reason}: the number of engines does not grow, and idle ones end"
                )
            else:
                self.log_message("info", "there is enough memory again: engines start as before")
        self.logged_reason = reason

    def note_start(self, language: str) -> None:
        """Count the memory that a new engine of this language is about to take."""
        self.promised += self.engine_bytes.get(language, EXPECTED_BYTES)

    def note_size(self, language: str, size: int) -> None:
        """Note the size of an idle engine, in bytes."""
        size = int(min(size, self.settings.max_memory_of(language)))
        self.engine_bytes[language] = max(size, self.engine_bytes.get(language, 0))

    def available_bytes(self) -> int | None:
        """Return the bytes that are available, without those that new engines are about to take."""
        memory = self.reading.memory
        return None if memory is None else memory - self.promised - self.promised_before

    def memory_shortage(self, language: str = "") -> str:
        """Return why no memory is left for another engine of this language, "" if there is enough.

        Without a language: for the engines that run already, by the reading alone.
        """
        settings = self.settings
        available_bytes = self.available_bytes() if language else self.reading.memory
        needed_bytes = self.engine_bytes.get(language, EXPECTED_BYTES) if language else 0
        if (
            settings.reserve_memory
            and available_bytes is not None
            and available_bytes - needed_bytes < settings.reserve_memory
        ):
            reserve = f"reserve-memory is {settings.reserve_memory // MB} MB"
            return f"{max(available_bytes, 0) // MB} MB of memory are available, and {reserve}"
        limit = settings.max_memory_pressure
        if limit and self.reading.memory_pressure > limit:
            return f"processes wait for memory {self.reading.memory_pressure:g} % of the time (max-memory-pressure)"
        return ""

    def cpu_is_short(self) -> bool:
        """Return whether the processors are too busy for another engine of a user who has one."""
        limit = self.settings.max_cpu_pressure
        return bool(limit) and self.reading.cpu_pressure > limit

    def describe(self) -> dict[str, object]:
        """Return the resources for the status. Memory in bytes, None if the system does not say."""
        return {
            "memory_available": self.available_bytes(),
            "reserve_memory": self.settings.reserve_memory,
            "memory_pressure": self.reading.memory_pressure,
            "cpu_pressure": self.reading.cpu_pressure,
            "scarce": self.memory_shortage(),
        }
