"""The visitors of a blog: the capacity of a server in visitors a second, and a load in three phases.

    visited = VisitedBlog(lab, server, (mariadb_pid,), ("/", "/?p=1"))
    load, sample = visited.load(visited.capacity())

`sample.phases` are the figures of the phases. `sample.extra` has the CPU time in ms that each of PARTS took for a
page, and the CPU of all parts together in the second phase, in percent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ewe_lab.bench.experiment import Bench, Load, RunningServer
from ewe_lab.bench.processes import LabError, cpu_seconds, own_cpu_seconds, process_tree
from ewe_lab.bench.results import Sample

PHASES = ((1 / 2, 0.22), (1 / 6, 1.0), (1 / 3, 0.44))  # share of the time, share of the capacity
CAPACITY_PHASE = 1  # the number of the phase at capacity, from 0
QUICK_S, FULL_S = 24, 336  # seconds that the phases take together: of all servers four minutes, and an hour
THINK_TIMES_S = (0.5, 5)  # seconds between the two pages: quick, and as in the thesis
WEB, PROGRAM, DATABASE = PARTS = ("web server", "programs", "database")
PROGRAMS = (b"php-cgi", b"ewe.xswitch")  # in the command line of a process that runs the programs
CAPACITY_CLIENTS = 8  # clients at once that measure the capacity
CAPACITY_TIMES_S = (4, 20)  # seconds of this measurement: quick, in full
VISITOR_TIMEOUT_S = 10.0  # seconds after which a visitor gives up


@dataclass(frozen=True)
class ServerWithDatabase:
    """A RunningServer whose `other_pids` have the processes of its database, too."""

    server: RunningServer
    database_pids: tuple[int, ...]

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
    def other_pids(self) -> tuple[int, ...]:
        return (*self.server.other_pids, *self.database_pids)


@dataclass(frozen=True)
class VisitedBlog:
    """A running blog under load. database_pids: the processes of its database. paths: the pages of a visit."""

    lab: Bench
    server: RunningServer
    database_pids: tuple[int, ...]
    paths: tuple[str, ...]

    @property
    def visit(self) -> Load:
        """The load of the visitors, without a rate."""
        return Load(
            paths=self.paths,
            path=self.paths[0],
            calls=len(self.paths),
            timeout=VISITOR_TIMEOUT_S,
            warm_up=0.0,
        )

    def warm(self, seconds: float = 1.0) -> None:
        """Have every process of PHP load the pages, so that no visitor waits for the compiler."""
        self.lab.load(self.server, replace(self.visit, users=CAPACITY_CLIENTS, seconds=seconds))

    def capacity(self) -> float:
        """Return the visitors a second that the server answers at full load. Raises LabError."""
        self.warm()
        sample = self.lab.load(
            self.server,
            replace(self.visit, users=CAPACITY_CLIENTS, seconds=self.lab.quick_or_full(*CAPACITY_TIMES_S)),
        )
        if not sample.replies:
            raise LabError(
                f"not one page was answered in {sample.seconds:.1f} s: the server or the machine is too busy"
            )
        return sample.rate / len(self.paths)

    def load_in_phases(self, capacity: float) -> Load:
        """Return the load in three phases, with visitors at random times. capacity: visitors a second.

        A visitor keeps a connection for all pages, and opens it again if the server closes it between two pages.
        """
        total_s = self.lab.quick_or_full(QUICK_S, FULL_S)
        return replace(
            self.visit, shape="arrivals", poisson=True, reopens=True, think=self.lab.quick_or_full(*THINK_TIMES_S),
            phases=tuple(
                (total_s * share_of_time, round_to_three_digits(capacity * share_of_capacity))
                for share_of_time, share_of_capacity in PHASES
            ),
        )  # fmt: skip

    def load(self, capacity: float) -> tuple[Load, Sample]:
        """Run the load in three phases; return the load and the sample. Raises LabError.

        capacity: visitors a second. `extra` of the sample gets the CPU time of each of PARTS in ms for a page. Its
        "cpu" is that of all parts in the phase at capacity, in percent of a core.
        """
        load = self.load_in_phases(capacity)
        self.lab.probe(self.server, load)
        before = self.cpu_seconds_by_part()
        sample = self.lab.load(ServerWithDatabase(self.server, self.database_pids), load)
        for part, seconds in self.cpu_seconds_by_part().items():
            if sample.replies:
                sample.extra[part] = (seconds - before[part]) / sample.replies * 1e3
        capacity_phase = sample.phases[CAPACITY_PHASE]
        if capacity_phase.usage:
            sample.extra["cpu"] = capacity_phase.usage.cpu / capacity_phase.seconds * 100
        return load, sample

    def cpu_seconds_by_part(self) -> dict[str, float]:
        """Return the CPU seconds that each of PARTS has used so far."""
        # Programs run in descendants of the web server, in processes beside it, or (mod_php) in the server itself
        below_server = sum(
            own_cpu_seconds(each) for each in process_tree(self.server.pid) if runs_programs(each.pid)
        )
        beside_server = cpu_seconds(*self.server.other_pids) if self.server.other_pids else 0.0
        web = cpu_seconds(self.server.pid) - below_server
        database = cpu_seconds(*self.database_pids) if self.database_pids else 0.0
        seconds = (web, below_server + beside_server, database)
        return dict(zip(PARTS, seconds, strict=True))


def round_to_three_digits(rate: float) -> float:
    """Return a rate with three significant digits: a report shows it."""
    return float(f"{rate:.3g}")


def runs_programs(pid: int) -> bool:
    """Whether a process below a web server runs its programs: PHP, or X-Switch."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(name in command for name in PROGRAMS)
