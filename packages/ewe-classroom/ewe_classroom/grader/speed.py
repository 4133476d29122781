"""Speed as a ratio: the student's server beside a reference server, in alternating slices of the same minute.

A rate (requests a second) depends more on the machine than on the server: on other programs, on the processor share
of a container, on the laptop. But if two servers are measured by turns, the machine is the same for both, and the
ratio of their rates stays the same:

    reference ▕▔▔▏    ▕▔▔▏▕▔▔▏    ▕▔▔▏          one slice: a closed loop of k clients for 0.2 s (load.py)
    student       ▕▔▔▏▕▔▔▏    ▕▔▔▏▕▔▔▏          the order in a pair alternates, so a drift favours neither
                  pair 1  pair 2  pair 3  …      each pair gives a ratio; their median is the ratio of the report

The spread is the middle half of the pairs' ratios, from the first quartile to the third. A wide spread means that
the machine was too busy for a precise result. The report then says so, and the student loses no mark.

Rules:

1. A server claims a load: a number of simultaneous clients (the scheme's `clients`, or --claim). The grader
   measures with one client, half the claim, the claim, and twice the claim.
2. A server that fails one request in any of these slices has no speed. The rule is from Tim Brecht's course CS 856
   at Waterloo: "if you can serve 100 requests per second but your server crashes at 200 your recorded speed will
   be 0".
3. The scheme decides about points; by default there are none. The upper end of the spread has to reach a threshold.

The second ratio is the CPU time of one response: the CPU time of all processes of a server, ended children
included, divided by the responses. A busy machine hardly changes this ratio. The third ratio is the 99th percentile
of the response time, with half of the claimed clients.

Possible failures: the client needs a processor, too. If the client is busy nearly all the time, the client and not
the server limits the rate. The report then says that the true ratio may be larger.

Read next: leaderboard.py in ewe_classroom/course.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import ewe
from ewe_classroom.grader import processes
from ewe_classroom.grader.check import Check
from ewe_classroom.grader.load import Slice, closed_loop
from ewe_classroom.grader.sandbox import SandboxLimits, SubjectAccount, network_of, own_account
from ewe_classroom.grader.scene import Scene
from ewe_classroom.grader.scheme import SpeedMark, SpeedPlan
from ewe_classroom.grader.subject import MODEL_OPTIONS, NotStarted, StartCommand, Subject, from_path
from ewe_classroom.grader.verdicts import ERROR, FAILED, PASSED, Verdict

SLICE_S = 0.2
WARM_UP_S = 0.05
MIN_PAIRS = 5
MAX_PAIRS = 15  # at the claimed load, while the spread is wide
NARROW_SPREAD = 0.1  # as a share of the ratio: below this spread, no more pairs are needed
NOISY_SPREAD = 0.3  # as a share of the ratio: above this spread, the result is unreliable
CLIENT_BUSY_SHARE = 0.85  # share of a processor above which the client may limit the rate
BUSY_BESIDE_SHARE = 0.5  # share of a processor above which a server may have slowed the reference
KEPT_CONNECTIONS = 32  # connections whose memory is counted
PATH = "/bytes.bin"
SIG_CHLD_BIT = 1 << signal.SIGCHLD - 1  # of SigIgn in /proc/PID/status: signal n is bit n - 1 (proc(5))

SPEED = Check(
    "speed",
    proves="the speed of the server, as a ratio to a reference server on the same machine",
    sends="GET in closed loops of 1 client, half the claimed load, the claimed load and twice that, by turns with "
    "the reference",
    expects="the file in response to every request; the report shows ratios",
    why="A rate alone measures the machine. A server that fails under twice its claimed load has no speed.",
    hint="Accept quickly, give listen() a large backlog, and let clients wait instead of refusing them.",
    function=lambda scene: None,
    fresh=True,
    descriptors=0,
    options={},
)


@dataclass
class Ratio:
    """The ratio of student to reference: the median of the pairs, and their quartiles."""

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
    """The results of a measurement. failure: the reason if the server has no speed, else ""."""

    reference: str
    claim: int
    failure: str = ""
    rates: dict[int, Ratio] = field(default_factory=dict)  # clients -> ratio of the rates
    cpu: float | None = None  # ratio of the CPU time for one response
    cpu_unknown: str = ""  # the reason if cpu is None
    p99: float | None = None  # ratio of the 99th percentiles, with half the claimed clients
    memory_kib: float | None = None  # the server's memory for one stalled connection
    # Share of a processor that the client used while it measured the student's server
    client_busy: float = 0.0
    # Share of a processor that the student's server used while the clients asked only the reference
    busy_beside: float = 0.0

    @property
    def rate(self) -> Ratio | None:
        """Return the ratio at the claimed load; None for a server without a speed."""
        return None if self.failure else self.rates.get(self.claim)

    @property
    def noisy(self) -> bool:
        return self.rate is not None and self.rate.spread > NOISY_SPREAD

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "noisy": self.noisy}

    def earned(self, marks: tuple[SpeedMark, ...]) -> int:
        """Return the most points of a mark whose ratio the upper end of the spread reaches; 0 for none."""
        if self.rate is None:
            return 0
        return max((mark.points for mark in marks if self.rate.high >= mark.ratio), default=0)


def ratio(pairs: list[tuple[float, float]]) -> Ratio:
    """Return the ratio for pairs of rates (student, reference)."""
    ratios = sorted(student / reference for student, reference in pairs)
    # quantiles() needs two values; a single one is its own median and quartiles.
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive") if ratios[1:] else ratios * 3
    return Ratio(round(median, 4), low=round(low, 4), high=round(high, 4), pairs=len(ratios))


def reference_command(plan: SpeedPlan, lab: str, directory: Path) -> StartCommand:
    """Return the start command of the reference: a model of ewe, or the lab's solution, written to `directory`."""
    if plan.reference == "solution":
        # Imported here, because the course imports the grader.
        from ewe_classroom.course import labs

        solution = labs.lab(lab)
        for name, text in solution.files(solution.variant("python"), solved=True).items():
            (directory / name).write_text(text, encoding="utf-8")
        return from_path(str(directory / solution.variant("python").work[0]))
    home = str(Path(ewe.__file__).resolve().parents[1])
    words = (sys.executable, "-P", "-m", "ewe", "--model", plan.reference, "--port", "{port}", "--documentroot",
             "{root}", "--threads", "{workers}", *MODEL_OPTIONS)  # fmt: skip
    return StartCommand(words, directory, plan.reference, {"PYTHONPATH": home})


class MeasuredServer:
    """One of the two servers, with the results of its slices. pids: returns the ids of its processes.

    network: its clients have addresses in 127.NETWORK.0.0/16, each slice another one.
    """

    def __init__(self, subject: Subject, pids: Callable[[], list[int]], network: int) -> None:
        self.subject = subject
        self.pids = pids
        self.network = network
        self.slices: list[Slice] = []
        # 250 addresses in each of 250 networks; the last number is never 0 or 255.
        self.addresses = (f"127.{network}.{n // 250 % 250}.{n % 250 + 1}" for n in count())

    def measure_slice(self, clients: int, seconds: float) -> Slice:
        """Measure one slice (load.py), and add it to the results.

        clients: the number of clients that ask at the same time. seconds: how long they send new requests.
        """
        body = self.subject.site.files[PATH]
        with reached(self.subject):
            found = closed_loop(self.subject.port, clients, seconds, PATH, body, next(self.addresses))
        self.slices.append(found)
        return found

    def cpu_s(self) -> float:
        """Return the CPU time of all processes of the server and of their ended children, in seconds."""
        ticks = 0  # added before the division: equal numbers then give a difference of exactly 0
        for pid in self.pids():
            ticks += sum(map(int, processes.stat_fields(f"/proc/{pid}/stat")[processes.CPU_TIME_FIELDS]))
        return ticks / processes.TICKS_PER_S

    def forgets_children(self) -> bool:
        """Return whether a process ignores SIGCHLD. The kernel then does not add up its children's CPU time."""
        for pid in self.pids():
            for line in processes.read(f"/proc/{pid}/status").splitlines():
                if line.startswith("SigIgn:") and int(line.split()[1], 16) & SIG_CHLD_BIT:
                    return True
        return False


def reached(server: Subject) -> AbstractContextManager[None]:
    """Return a context in which this thread can connect to a server, also to one in a private network."""
    return network_of(server.pid) if server.limits.own_network else nullcontext()


def reference_account(account: SubjectAccount | None) -> SubjectAccount | None:
    """Return the account of the reference, if `account` is that of the student's server.

    The user ids differ if only this grading uses the account. Otherwise the student's server could stop the
    reference (SIGSTOP) while it is measured, and so raise its own ratio. The group is the same, because only this
    group may enter the directories of the grading.
    """
    if account is None or not account.is_own:
        return account
    # own_account() returns no user id twice. is_own=False: the account shares its group.
    return replace(own_account(), gid=account.gid, is_own=False)


@contextmanager
def reference_server(
    start_command: StartCommand, student: Subject, limits: SandboxLimits, port: int, output: Path
) -> Iterator[Subject]:
    """Run the reference beside the student's server. Raises NotStarted.

    limits: of the reference, with its account (reference_account).

    The reference is added to student.own_children, so that it does not count as a process of the student's server.
    """
    reference = Subject(start_command, student.site, student.workers, limits, port, output)
    student.own_children.add(reference.pid)
    try:
        with reached(reference):
            reference.wait_until_ready()
        yield reference
    finally:
        # reference.close() would also end the student's server, because both are children of the grader. Children
        # come before their parents, which might start new ones.
        for pid in processes.family([reference.pid])[::-1]:
            if pid != reference.pid and processes.runs(pid):
                processes.kill(pid)
        reference.process.kill()
        reference.process.wait()
        student.own_children.discard(reference.pid)


def measure(student: Subject, reference: Subject, plan: SpeedPlan, name: str) -> Speed:
    """Compare two running servers. name: the name of the reference, for messages.

    If a request fails, the result has this failure, and the measurement ends.
    """
    speed = Speed(name, plan.clients)
    both = Comparison(
        MeasuredServer(student, student.running, network=1),
        MeasuredServer(reference, lambda: processes.family([reference.pid]), network=2),
        plan.clients,
    )
    both.warm_up()
    cpu_s_before = both.cpu_s()
    for clients in sorted({1, max(1, plan.clients // 2), plan.clients, 2 * plan.clients}):
        try:
            speed.rates[clients] = both.ratio_of_rates(clients)
        except RequestFailed as failed:
            who = "" if failed.side is both.mine else f"the reference, {name}: "
            speed.failure = f"{who}{load_text(clients, plan.clients)}: {failed}"
            return speed
    used_s = [after - before for after, before in zip(both.cpu_s(), cpu_s_before, strict=True)]
    if both.mine.forgets_children():
        speed.cpu_unknown = (
            "the server ignores SIGCHLD, so the kernel does not add up the CPU time of its children"
        )
    elif min(used_s) > 0:  # 0: less than a tick of the kernel's clock
        speed.cpu = both.ratio_of_cpu(*used_s)
    speed.p99 = both.ratio_of_p99(max(1, plan.clients // 2))
    speed.client_busy = both.client_busy()
    speed.busy_beside = round(both.beside_cpu_s / both.beside_s, 3)
    speed.memory_kib = memory_of_connection(student)
    return speed


class RequestFailed(Exception):
    """A request of a slice has failed. The message says how. side: the server that was asked."""

    def __init__(self, side: MeasuredServer, failure: str) -> None:
        super().__init__(failure)
        self.side = side


class Comparison:
    """The student's server (mine) and the reference (other), which are measured by turns.

    claim: the number of clients that the student's server claims to serve.
    """

    def __init__(self, mine: MeasuredServer, other: MeasuredServer, claim: int) -> None:
        self.mine = mine
        self.other = other
        self.claim = claim
        self.beside_s = 0.0  # of the slices of the reference
        self.beside_cpu_s = 0.0  # the CPU time that the student's server has used in them

    def warm_up(self) -> None:
        """Ask each server for a moment: it may load modules and files at its first requests."""
        for side in (self.mine, self.other):
            side.measure_slice(1, WARM_UP_S)
            side.slices.clear()

    def cpu_s(self) -> tuple[float, float]:
        """Return the CPU time of the two servers, in seconds."""
        return self.mine.cpu_s(), self.other.cpu_s()

    def ratio_of_rates(self, clients: int) -> Ratio:
        """Measure pairs of slices with this number of clients; return the ratio. Raises RequestFailed.

        At the claimed load there are more pairs while the spread is wide.
        """
        pairs: list[tuple[float, float]] = []  # the rates of the student's server and of the reference
        while len(pairs) < MIN_PAIRS or (
            clients == self.claim and len(pairs) < MAX_PAIRS and ratio(pairs).spread > NARROW_SPREAD
        ):
            pairs.append(self.rates_of_pair(clients, mine_first=bool(len(pairs) % 2)))
        return ratio(pairs)

    def rates_of_pair(self, clients: int, *, mine_first: bool) -> tuple[float, float]:
        """Measure a slice of each server; return the rates of the student's and of the reference.

        Raises RequestFailed.
        """
        if mine_first:
            mine = self.slice_of_mine(clients)
            return mine.rate, self.slice_of_other(clients).rate
        other = self.slice_of_other(clients)
        return self.slice_of_mine(clients).rate, other.rate

    def slice_of_mine(self, clients: int) -> Slice:
        """Measure a slice of the student's server. Raises RequestFailed."""
        found = self.mine.measure_slice(clients, SLICE_S)
        if found.failure:
            raise RequestFailed(self.mine, found.failure)
        return found

    def slice_of_other(self, clients: int) -> Slice:
        """Measure a slice of the reference, and what the student's server uses meanwhile. Raises RequestFailed."""
        before_s = self.mine.cpu_s()
        found = self.other.measure_slice(clients, SLICE_S)
        self.beside_s += found.seconds
        self.beside_cpu_s += self.mine.cpu_s() - before_s
        if found.failure:
            raise RequestFailed(self.other, found.failure)
        return found

    def ratio_of_cpu(self, mine_s: float, other_s: float) -> float:
        """Return the ratio of the CPU time for one response. mine_s, other_s: the CPU time for all of them."""
        mine_count, other_count = (
            sum(len(each.times_s) for each in side.slices) for side in (self.mine, self.other)
        )
        return round((mine_s / mine_count) / (other_s / other_count), 3)

    def ratio_of_p99(self, clients: int) -> float:
        """Return the ratio of the 99th percentiles of the response time with this number of clients.

        It is the median of the pairs: one bad slice would decide the percentile of all times together.
        """
        slices = (
            [each for each in side.slices if each.clients == clients] for side in (self.mine, self.other)
        )
        ratios = [p99(mine) / p99(other) for mine, other in zip(*slices, strict=True)]
        return round(statistics.median(ratios), 3)

    def client_busy(self) -> float:
        """Return the share of a processor that the client used at the claimed load of the student's server."""
        at_claim = [each for each in self.mine.slices if each.clients == self.claim]
        return round(sum(each.own_cpu_s for each in at_claim) / sum(each.seconds for each in at_claim), 3)


def load_text(clients: int, claim: int) -> str:
    """Describe a load in words."""
    if clients == 2 * claim:
        return f"with {clients} clients at once, twice the {claim} that it claims to serve"
    return f"with {clients} {'client' if clients == 1 else 'clients'} at once"


def p99(part: Slice) -> float:
    """Return the time in seconds that 99 of 100 responses of a slice do not exceed."""
    times_s = sorted(part.times_s)
    rank = -(-len(times_s) * 99 // 100)  # rounded up, and counted from 1
    return times_s[rank - 1]


def memory_of_connection(student: Subject) -> float:
    """Return the server's memory for one connection with half a request, in KiB."""
    scene = Scene(student)
    try:
        scene.settle()
        before = sum(map(processes.memory_share_bytes, student.running()))
        for _ in range(KEPT_CONNECTIONS):
            scene.hold_half(PATH)
        scene.settle()
        during = sum(map(processes.memory_share_bytes, student.running()))
    finally:
        scene.close()
    return round(max(0, during - before) / KEPT_CONNECTIONS / 1024, 1)


def fill_in_verdict(speed: Speed, verdict: Verdict, plan: SpeedPlan) -> None:
    """Fill in the verdict from the results of a measurement: points, status and texts."""
    verdict.earned = speed.earned(plan.marks)
    if speed.failure:
        # A failure of the reference begins with these words (measure, run_speed), and is not the student's.
        is_students = not speed.failure.startswith("the reference")
        verdict.status = FAILED if is_students else ERROR
        verdict.did = f"{speed.failure}; so the server has no speed" if is_students else speed.failure
        verdict.should = (
            f"answer every request of {2 * speed.claim} clients; clients may have to wait"
            if is_students
            else "measure again; report it if it happens again"
        )
        verdict.because = (
            "the backlog of listen() is too small, a limit refuses clients, or an error ends a worker"
        )
        return
    rate = speed.rate
    assert rate is not None
    verdict.status = PASSED
    verdict.facts = [f"{rate.text()} of the rate of {speed.reference}, with {speed.claim} clients"]
    if speed.noisy:
        verdict.facts[0] += (
            f"; the spread of {rate.spread:.0%} is too large to tell: measure again on a quieter machine"
        )
    if speed.client_busy > CLIENT_BUSY_SHARE:
        verdict.facts.append("the client was busy all the time, so the ratio may be larger")
    if speed.busy_beside > BUSY_BESIDE_SHARE:
        verdict.facts.append(
            f"the server used {speed.busy_beside:.2f} of a processor while the clients asked only the reference, so"
            " the ratio may be smaller"
        )
    if speed.cpu is not None:
        verdict.facts.append(f"{speed.cpu:.2f} of its CPU time for a response")
    if speed.cpu_unknown:
        verdict.facts.append(f"no CPU time: {speed.cpu_unknown}")
    if speed.p99 is not None:
        verdict.facts.append(
            f"{speed.p99:.2f} of its 99th percentile with {max(1, speed.claim // 2)} clients"
        )
    if speed.memory_kib is not None:
        verdict.facts.append(f"{speed.memory_kib:g} KiB for a stalled connection")


def run_speed(
    student: Subject, plan: SpeedPlan, lab: str, directory: Path, port: int, *, own_network: bool
) -> Speed:
    """Start the reference beside the running server of the student; measure both; end the reference.

    port: of the reference. own_network: the reference gets a separate network, so that the student's server
    cannot connect to it, and hold its workers.
    """
    reference_directory = directory / "reference"
    reference_directory.mkdir(mode=0o755, exist_ok=True)
    account = reference_account(student.limits.account)
    if account is not None and account != student.limits.account:
        # The directory gets the lab's solution, which the student's server must not read.
        os.chown(reference_directory, account.uid, -1)
        reference_directory.chmod(0o700)
    else:
        # mkdir() applies the umask, and the reference may run as another account.
        reference_directory.chmod(0o755)
    # also_hidden are paths of ewe, which a student's server may not read. The reference runs ewe, and must.
    limits = replace(student.limits, account=account, also_hidden=(), own_network=own_network)
    start_command = reference_command(plan, lab, reference_directory)
    name = f"the lab's solution ({lab})" if plan.reference == "solution" else f"ewe --model {plan.reference}"
    try:
        with reference_server(
            start_command, student, limits, port, reference_directory / "output"
        ) as reference:
            return measure(student, reference, plan, name)
    except NotStarted as problem:
        return Speed(name, plan.clients, f"the reference, {name}, did not start: {problem}")
