"""Speed as a ratio: the student's server beside a reference server, in alternating slices of the same minute.

A number of requests a second tells more about the machine than about the server: a build beside it, half a
processor in a container, another laptop. Two servers measured by turns meet the same machine. Their ratio stays:

    reference ▕▔▔▏    ▕▔▔▏▕▔▔▏    ▕▔▔▏          one slice: a closed loop of k clients for 0.2 s (load.py)
    student       ▕▔▔▏▕▔▔▏    ▕▔▔▏▕▔▔▏          pairs in turned order, so that a drift favours neither
                  pair 1  pair 2  pair 3  …      each pair gives a ratio; their median is the ratio of the report

The middle half of the pairs' ratios (from the first quartile to the third) is the spread. A wide spread says that
the machine was too busy to tell. The report then says so, and no mark is taken away.

Rules:

1. A server claims a load: a number of clients at once (the scheme's `clients`, or --claim). It is measured with one
   client, half the claim, the claim, and twice the claim.
2. A server that fails one request in any of these slices has no speed, above all at twice its claim. The rule is
   from Tim Brecht's course CS 856 at Waterloo: "if you can serve 100 requests per second but your server crashes at
   200 your recorded speed will be 0".
3. Points are the scheme's choice, and none by default. The upper end of the spread has to reach a threshold.

CPU for one response is the second ratio: what all processes of a server used, ended children included, divided by
the responses. A busy machine hardly changes it. The third ratio is the time that 99 of 100 responses stay below,
with half of the claimed clients.

What can go wrong: the client needs a processor, too. Where it is busy nearly all the time, it and not the server
sets the rate. The report then says that the ratio may be larger.

Read next: leaderboard.py in ewe_classroom/course.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import ewe
from ewe_classroom.grader import processes
from ewe_classroom.grader.check import Check
from ewe_classroom.grader.load import Slice, closed_loop
from ewe_classroom.grader.scene import Scene
from ewe_classroom.grader.scheme import SpeedPlan
from ewe_classroom.grader.subject import MODEL_OPTIONS, NotStarted, Recipe, Subject, from_path
from ewe_classroom.grader.verdicts import ERROR, FAILED, PASSED, Verdict

SLICE_S = 0.2
PAIRS = 5
MOST_PAIRS = 15  # at the claimed load, while the spread is wide
NARROW = 0.1  # a spread that needs no more pairs, as a share of the ratio
NOISY = 0.3  # a spread that is too large to tell
CLIENT_BUSY = 0.85  # the share of its processor from which the client may set the rate
HELD = 32  # connections whose memory is counted
PATH = "/bytes.bin"
SIG_CHLD_BIT = 1 << 16

SPEED = Check(
    "speed",
    proves="how fast the server is, as a ratio to a reference server on the same machine",
    sends="GET in closed loops of 1 client, half the claimed load, the claimed load and twice that, by turns with "
    "the reference",
    expects="every request is answered with the file; ratios are reported",
    why="A rate alone tells about the machine. A server that fails under twice its load has no speed.",
    hint="Accept quickly, give listen() a backlog, and let clients wait in place of refusing them.",
    function=lambda scene: None,
    fresh=True,
    descriptors=0,
    options={},
)


@dataclass
class Ratio:
    """A ratio, student to reference, with the quartiles of its pairs."""

    median: float
    low: float
    high: float
    pairs: int

    @property
    def spread(self) -> float:
        """Return the width of the middle half of the pairs, as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0

    def text(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass
class Speed:
    """What was measured. failure: why the server has no speed, "" if it has one."""

    reference: str
    claim: int
    failure: str = ""
    rates: dict[int, Ratio] = field(default_factory=dict)  # clients -> ratio of the rates
    cpu: float | None = None  # ratio of the CPU time for one response
    cpu_unknown: str = ""  # why cpu is None
    p99: float | None = None  # ratio of the 99th percentiles, with half the claimed clients
    memory_kib: float | None = None  # the server's memory for one held connection
    client_busy: float = 0.0  # share of its processor that the client used beside the student's server

    @property
    def rate(self) -> Ratio | None:
        """Return the ratio at the claimed load; None for a server without speed."""
        return None if self.failure else self.rates.get(self.claim)

    @property
    def noisy(self) -> bool:
        return self.rate is not None and self.rate.spread > NOISY

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "noisy": self.noisy}

    def earned(self, marks: tuple[tuple[float, int], ...]) -> int:
        """Return the points: those of the highest threshold that the upper end of the spread reaches."""
        if self.rate is None:
            return 0
        return max((points for least, points in marks if self.rate.high >= least), default=0)


def ratio(pairs: list[tuple[float, float]]) -> Ratio:
    """Return the ratio of pairs (student, reference)."""
    found = sorted(mine / theirs for mine, theirs in pairs)
    low, median, high = statistics.quantiles(found, n=4, method="inclusive") if found[1:] else found * 3
    return Ratio(round(median, 4), round(low, 4), round(high, 4), len(found))


def reference_recipe(plan: SpeedPlan, lab: str, directory: Path) -> Recipe:
    """Return how to start the reference: a model of ewe, or the lab's solution, which is written to a directory."""
    if plan.reference == "solution":
        from ewe_classroom.course import (
            labs,
        )  # the course stands on the grader, and asks only here for the reverse

        solution = labs.lab(lab)
        for name, text in solution.files(solution.way("python"), solved=True).items():
            (directory / name).write_text(text, encoding="utf-8")
        return from_path(str(directory / solution.way("python").work[0]))
    home = str(Path(ewe.__file__).resolve().parents[1])
    words = (sys.executable, "-P", "-m", "ewe", "--model", plan.reference, "--port", "{port}", "--documentroot",
             "{root}", "--threads", "{workers}", *MODEL_OPTIONS)  # fmt: skip
    return Recipe(words, directory, plan.reference, {"PYTHONPATH": home})


class Side:
    """One of the two servers, and what its slices found."""

    def __init__(self, subject: Subject, pids: Callable[[], list[int]], number: int) -> None:
        self.subject = subject
        self.pids = pids
        self.network = number
        self.slices: list[Slice] = []
        self.addresses = (f"127.{number}.{n // 250 % 250}.{n % 250 + 1}" for n in count())

    def slice(self, clients: int, seconds: float) -> Slice:
        body = self.subject.site.files[PATH]
        found = closed_loop(self.subject.port, clients, seconds, PATH, body, next(self.addresses))
        self.slices.append(found)
        return found

    def cpu_s(self) -> float:
        """Return the CPU time of all processes, their ended children included, in seconds."""
        ticks = 0
        for pid in self.pids():
            fields = processes.stat_fields(f"/proc/{pid}/stat")
            ticks += sum(map(int, fields[11:15]))
        return ticks / processes.TICKS

    def forgets_children(self) -> bool:
        """Return whether a process ignores SIGCHLD: the kernel then adds up no CPU time of its children."""
        for pid in self.pids():
            for line in processes.read(f"/proc/{pid}/status").splitlines():
                if line.startswith("SigIgn:") and int(line.split()[1], 16) & SIG_CHLD_BIT:
                    return True
        return False


@contextmanager
def reference_server(recipe: Recipe, student: Subject, port: int, output: Path) -> Iterator[Subject]:
    """Start the reference beside the student's server. Raises NotStarted.

    The student's server is told that the reference is not one of its processes.
    """
    reference = Subject(recipe, student.site, student.workers, student.limits, port, output)
    student.own_children.add(reference.pid)
    try:
        reference.wait_until_ready()
        yield reference
    finally:
        # Not reference.close(), which would end the student's server: both are children of the grader.
        for pid in processes.family([reference.pid])[::-1]:
            if pid != reference.pid and processes.runs(pid):
                processes.kill(pid)
        reference.process.kill()
        reference.process.wait()
        student.own_children.discard(reference.pid)


def measure(student: Subject, reference: Subject, plan: SpeedPlan, name: str) -> Speed:
    """Compare two servers that run."""
    speed = Speed(name, plan.clients)
    mine = Side(student, student.running, 1)
    other = Side(reference, lambda: processes.family([reference.pid]), 2)
    both = (mine, other)
    for side in both:  # the first requests load what a server loads late
        side.slice(1, SLICE_S / 4)
    mine.slices.clear()
    other.slices.clear()
    began = [side.cpu_s() for side in both]
    ordered = sorted({1, max(1, plan.clients // 2), plan.clients, 2 * plan.clients})
    for clients in ordered:
        pairs: list[tuple[float, float]] = []
        while len(pairs) < PAIRS or (
            clients == plan.clients and len(pairs) < MOST_PAIRS and ratio(pairs).spread > NARROW
        ):
            found = {}
            for side in both if len(pairs) % 2 else both[::-1]:
                found[side] = side.slice(clients, SLICE_S)
                if found[side].failure:
                    who = "" if side is mine else f"the reference, {name}: "
                    speed.failure = f"{who}{at_load(clients, plan.clients)}: {found[side].failure}"
                    return speed
            pairs.append((found[mine].rate, found[other].rate))
        speed.rates[clients] = ratio(pairs)
    used = [side.cpu_s() - start for side, start in zip(both, began, strict=True)]
    answers = [sum(len(each.times_s) for each in side.slices) for side in both]
    if mine.forgets_children():
        speed.cpu_unknown = (
            "the server ignores SIGCHLD, and the kernel then adds up no CPU time of its children"
        )
    elif min(used) > 0:
        speed.cpu = round(used[0] / answers[0] * answers[1] / used[1], 3)
    half = max(1, plan.clients // 2)
    # The median of pairs again: one bad slice would decide the percentile of all times together.
    slices = ([each for each in side.slices if each.clients == half] for side in both)
    speed.p99 = round(
        statistics.median(p99(own) / p99(theirs) for own, theirs in zip(*slices, strict=True)), 3
    )
    own = [each for each in mine.slices if each.clients == plan.clients]
    speed.client_busy = round(sum(each.own_cpu_s for each in own) / sum(each.seconds for each in own), 3)
    speed.memory_kib = memory_of_connection(student)
    return speed


def at_load(clients: int, claim: int) -> str:
    """Return a number of clients in words."""
    if clients == 2 * claim:
        return f"with {clients} clients at once, twice the {claim} that it claims to serve"
    return f"with {clients} {'client' if clients == 1 else 'clients'} at once"


def p99(part: Slice) -> float:
    """Return the time that 99 of 100 responses of a slice stay below, in seconds."""
    times = sorted(part.times_s)
    return times[len(times) * 99 // 100 if len(times) > 1 else 0]


def memory_of_connection(student: Subject) -> float:
    """Return the memory that the server needs for a connection that has sent half a request, in KiB."""
    scene = Scene(student)
    try:
        scene.settle()
        before = sum(map(processes.memory_share, student.running()))
        for _ in range(HELD):
            scene.hold("half", PATH)
        scene.settle()
        during = sum(map(processes.memory_share, student.running()))
    finally:
        scene.close()
    return round(max(0, during - before) / HELD / 1024, 1)


def judge(speed: Speed, verdict: Verdict, plan: SpeedPlan) -> None:
    """Fill in the verdict of a measurement."""
    verdict.earned = speed.earned(plan.marks)
    if speed.failure:
        mine = not speed.failure.startswith("the reference")
        verdict.status = FAILED if mine else ERROR
        verdict.did = f"{speed.failure}; so the server has no speed" if mine else speed.failure
        verdict.should = (
            f"answer every request of {2 * speed.claim} clients; some may have to wait"
            if mine
            else "measure again; report it if it happens again"
        )
        verdict.because = (
            "the backlog of listen() is small, a limit refuses clients, or an error ends a worker"
        )
        return
    rate = speed.rate
    assert rate is not None
    verdict.status = PASSED
    verdict.facts = [f"{rate.text()} of the rate of {speed.reference}, with {speed.claim} clients"]
    if speed.noisy:
        verdict.facts[0] += (
            f"; the spread of {rate.spread:.0%} is too large to tell: measure again when less runs"
        )
    if speed.client_busy > CLIENT_BUSY:
        verdict.facts.append("the client was busy all the time, so the ratio may be larger")
    if speed.cpu is not None:
        verdict.facts.append(f"{speed.cpu:.2f} of its CPU time for a response")
    if speed.cpu_unknown:
        verdict.facts.append(f"no CPU time: {speed.cpu_unknown}")
    if speed.p99 is not None:
        verdict.facts.append(
            f"{speed.p99:.2f} of its 99th percentile with {max(1, speed.claim // 2)} clients"
        )
    if speed.memory_kib is not None:
        verdict.facts.append(f"{speed.memory_kib:g} KiB for a held connection")


def run_speed(student: Subject, plan: SpeedPlan, lab: str, directory: Path, port: int) -> Speed:
    """Start the reference beside the student's server, which runs already; measure both; end the reference."""
    place = directory / "reference"
    place.mkdir(mode=0o755, exist_ok=True)
    place.chmod(0o755)
    recipe = reference_recipe(plan, lab, place)
    name = f"the lab's solution ({lab})" if plan.reference == "solution" else f"ewe --model {plan.reference}"
    try:
        with reference_server(recipe, student, port, place / "output") as reference:
            return measure(student, reference, plan, name)
    except NotStarted as problem:
        return Speed(name, plan.clients, f"the reference, {name}, did not start: {problem}")
