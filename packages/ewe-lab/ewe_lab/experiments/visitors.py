"""The visitors of a blog: how many a server can answer, and three phases of them.

    stack = Stack(lab, server, (mariadb,), ("/", "/?p=1"))
    load, sample = stack.load(stack.capacity())

`sample.phases` are the figures of the phases. sample.extra has the CPU time in ms that each of PARTS took for a
page, and the CPU of all together in the second phase, in percent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ewe_lab.bench.experiment import Bench, Load, Running
from ewe_lab.bench.processes import LabError, cpu_seconds, own_seconds, tree
from ewe_lab.bench.results import Sample

PHASES = ((1 / 2, 0.22), (1 / 6, 1.0), (1 / 3, 0.44))  # share of the time, share of the capacity
SECOND = 1  # the number of the phase at capacity, from 0
QUICK, FULL = 24, 336  # seconds that the phases take together: of all servers four minutes, and an hour
THINK = (0.5, 5)  # seconds between the two pages: quick, and as in the thesis
WEB, PROGRAM, DATABASE = PARTS = ("web server", "programs", "database")
PROGRAMS = (b"php-cgi", b"ewe.xswitch")  # in the command line of what runs the programs
BUSY = 8  # clients at once that find out the capacity
MEASURED = (4, 20)  # seconds that they take: quick, in full
TIMEOUT = 10.0  # seconds after which a visitor gives up


@dataclass(frozen=True)
class Watched:
    """A server, with processes of a database that work for it."""

    server: Running
    database: tuple[int, ...]

    @property
    def pid(self) -> int:
        return self.server.pid

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def command(self) -> str:
        return self.server.command

    @property
    def also(self) -> tuple[int, ...]:
        return (*self.server.also, *self.database)


@dataclass(frozen=True)
class Stack:
    """A server that runs, with what it needs. database: its processes. paths: what a visitor looks at."""

    lab: Bench
    server: Running
    database: tuple[int, ...]
    paths: tuple[str, ...]

    @property
    def visit(self) -> Load:
        """A load of visitors, without a rate."""
        return Load(paths=self.paths, path=self.paths[0], calls=len(self.paths), timeout=TIMEOUT, warm_up=0.0)

    def warm(self, seconds: float = 1.0) -> None:
        """Have every process of PHP load the pages, so that no visitor waits for the compiler."""
        self.lab.load(self.server, replace(self.visit, users=BUSY, seconds=seconds))

    def capacity(self) -> float:
        """Return how many visitors a second are answered if there are always some. Raises LabError."""
        self.warm()
        found = self.lab.load(
            self.server, replace(self.visit, users=BUSY, seconds=self.lab.seconds(*MEASURED))
        )
        if not found.replies:
            raise LabError(
                f"not one page was answered in {found.seconds:.1f} s: the server or the machine is too busy"
            )
        return found.rate / len(self.paths)

    def phases(self, capacity: float) -> Load:
        """Return the load in three phases."""
        length = self.lab.seconds(QUICK, FULL)
        return replace(
            self.visit, shape="arrivals", poisson=True, reopens=True, think=self.lab.seconds(*THINK),
            phases=tuple((length * share, rounded(capacity * of)) for share, of in PHASES),
        )  # fmt: skip

    def load(self, capacity: float) -> tuple[Load, Sample]:
        """Let the visitors come; return the load, and what it showed."""
        load = self.phases(capacity)
        self.lab.probe(self.server, load)
        before = self.spent()
        sample = self.lab.load(Watched(self.server, self.database), load)
        for part, seconds in self.spent().items():
            if sample.replies:
                sample.extra[part] = (seconds - before[part]) / sample.replies * 1e3
        second = sample.phases[SECOND]
        if second.usage:
            sample.extra["cpu"] = second.usage.cpu / second.seconds * 100
        return load, sample

    def spent(self) -> dict[str, float]:
        """Return the CPU seconds so far of each of PARTS."""
        inside = sum(own_seconds(each) for each in tree(self.server.pid) if runs_programs(each.pid))
        beside = cpu_seconds(*self.server.also) if self.server.also else 0.0
        seconds = (
            cpu_seconds(self.server.pid) - inside, inside + beside,
            cpu_seconds(*self.database) if self.database else 0.0,
        )  # fmt: skip
        return dict(zip(PARTS, seconds, strict=True))


def rounded(rate: float) -> float:
    """Return a rate with three digits."""
    return float(f"{rate:.3g}")


def runs_programs(pid: int) -> bool:
    """Whether a process below a web server runs its programs: PHP, or X-Switch."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(name in command for name in PROGRAMS)
