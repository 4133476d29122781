"""LibCGI, figure 1: a library fails, in the server or in an engine, while other clients send requests.

A library runs in the server's process, so a fault in it could end the server and all conversations. Figure 1 of
the paper shows the remedy: the fault is caught, the client gets status 500, and the library is unloaded. The same
faults are caused under three isolations:

    in place        the library in ewe's process; guard.c recovers from the fault
    in an engine    the library in a process of X-Switch; its end is the recovery
    CGI program     the same code as a program, for comparison: each request has its own process

    clients of the library A ──────────────────x─x──────────── some requests may be lost
    clients of the library B ───────────────────────────────── no request should be lost
                                   ▲ one request makes A fail  ├─ recovery ─┤ the first right answer of A

Possible failures: ewe blocks a library that faults too often, so each fault has a new copy of it (copy_program()).

Read next: ewe/libcgi/guard.c.
"""

from __future__ import annotations

import http.client
import itertools
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from ewe.xswitch.engine_kinds import LIBCGI_PROGRAM as HOST
from ewe_lab.bench.experiment import Bench, RunningServer, ServerUnderTest
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.bench.verdicts import FAILS, HOLDS, NOT_TESTABLE, Finding
from ewe_lab.stacks import backends, compiled, gateways

FAULTS = ("loop", "crash", "abort", "exit")
IN_SERVER, IN_ENGINE, CGI_PROGRAM = "in place", "in an engine", "CGI program"
CLIENTS_OF_EACH_LIBRARY = 4  # clients that call the failing library, and as many that call another library
ROUND_COUNTS = (2, 10)  # of each fault, quick and full
CALL_TIME_LIMIT = "1s"  # of a call
QUIET_LOAD_S = 0.1  # seconds of quiet load before and after a fault
ANSWER_TIMEOUT_S = 15.0  # seconds for one answer
ANSWER = b"x" * 27 + b"\n"
HOST_MISSING = "LibCGI's engine is not built: ewe-xswitch libcgi"
NO_RECOVERY = "the library did not answer again"  # a note of a sample
REMARKS = (
    f"Before, during and after each fault {2 * CLIENTS_OF_EACH_LIBRARY} clients send requests without a pause. "
    "Half of them call the failing library, half another one. A request of theirs is lost if it is not answered "
    "with 200 and 28 bytes.",
    f"Recovery: from the answer to the fault until the same library has answered again. "
    f"A call may take {CALL_TIME_LIMIT}.",
    "Each fault has a new copy of the library, because ewe blocks a library for a while after three faults.",
)


@dataclass
class FaultClient:
    """A client in a thread, which sends one request after another.

    stopped: another thread sets it to stop the client. asked: the requests so far. lost: the wrong answers.
    """

    url: str
    path: str
    stopped: threading.Event
    asked: int = 0
    lost: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Send requests until the event `stopped` is set."""
        while not self.stopped.is_set():
            self.asked += 1
            status, body = get(self.url, self.path)
            if (status, body) != (200, ANSWER):
                self.lost.append(f"{status} with {len(body)} bytes")


def get(url: str, path: str) -> tuple[int, bytes]:
    """Return the status and the body of an answer; 0 and b"" if there was none."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


@contextmanager
def clients_of(url: str, paths: Sequence[str]) -> Iterator[list[FaultClient]]:
    """Run a client for each path during the block; yield the clients."""
    stopped = threading.Event()
    clients = [FaultClient(url, path, stopped) for path in paths]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield clients
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def run(lab: Bench) -> Iterator[Cell]:
    """Cause every fault under each isolation; yield the cells."""
    if lacking := compiled.why_missing():
        lab.notes.append(f"All programs are left out: {lacking}")
        return
    directory = lab.directory / "faults"
    directory.mkdir(exist_ok=True)
    numbers = itertools.count()  # of the copies of the library: each copy has a new name
    for isolation in (IN_SERVER, IN_ENGINE, CGI_PROGRAM):
        if lacking := why_missing(isolation):
            lab.notes.append(f"{isolation}: left out, {lacking}")
            continue
        try:
            with serve_programs(lab, isolation, directory) as server:
                for fault in FAULTS:
                    yield from measure_fault(lab, server, isolation, fault, directory, numbers)
        except LabError as reason:
            yield Cell("all faults", isolation, value="extra.lost", unit="requests", failure=str(reason))
    lab.notes += REMARKS


def why_missing(isolation: str) -> str:
    """Return the reason if no program can run under an isolation here, else ""."""
    if isolation == CGI_PROGRAM:
        return ""
    if isolation == IN_ENGINE and not Path(HOST).exists():
        return HOST_MISSING
    return gateways.why_no_libcgi()


@contextmanager
def serve_programs(lab: Bench, isolation: str, directory: Path) -> Iterator[RunningServer]:
    """Run ewe with the libraries, or programs, of a directory; yield the server. Raises LabError.

    isolation: where they run.
    """
    tested = ServerUnderTest(
        isolation,
        model="thread",
        options=("--libcgi-timeout", CALL_TIME_LIMIT, "--program-timeout", CALL_TIME_LIMIT),
    )
    with ExitStack() as exits:
        if isolation == CGI_PROGRAM:
            tested = gateways.with_options(tested, "--cgi-path", str(directory))
        elif isolation == IN_SERVER:
            # in_process() takes one library and serves all of its directory: this one need not exist
            tested = gateways.in_process(directory / "none.so", tested)
        else:
            _pid, socket = exits.enter_context(backends.run_xswitch(lab, root=directory))
            # If root runs the lab, ewe gets another account, which must be able to connect
            socket.chmod(0o666)
            options = ("--libcgi-path", str(directory), "--libcgi-isolation", "process")
            tested = gateways.with_options(tested, *options, "--xswitch", f"unix:{socket}")
        yield exits.enter_context(lab.start(tested, lab.site([])))


def copy_program(isolation: str, directory: Path, name: str) -> str:
    """Make a copy of the library, or of the program for CGI_PROGRAM; return the path of its URL. Raises LabError.

    name: of the copy, without its ending.
    """
    is_program = isolation == CGI_PROGRAM
    ending = ".cgi" if is_program else ".so"
    first = directory / f"first{ending}"  # compiled once, then copied
    if not first.exists():
        source = compiled.SOURCES / "faults.c"
        if is_program:
            compiled.build(source, first, "-DPROGRAM")
        else:
            compiled.build_library(source, first)
    shutil.copy(first, directory / f"{name}{ending}")
    return f"/{'cgi-bin' if is_program else 'libcgi-bin'}/{name}{ending}"


def measure_fault(
    lab: Bench, server: RunningServer, isolation: str, fault: str, directory: Path, numbers: Iterator[int]
) -> Iterator[Cell]:
    """Cause one fault in each round; yield its two cells: the lost requests, and the time until recovery.

    numbers: of the copies that have no name yet. If the server does not answer any more, the cells keep the samples
    until then: they have the fault that ended it.
    """
    lost = Cell(fault, isolation, value="extra.lost", unit="requests")
    recovery = Cell(fault, f"{isolation}: recovery", value="extra.millis", unit="ms")
    for _ in range(lab.repeats * int(lab.quick_or_full(*ROUND_COUNTS))):
        path = copy_program(isolation, directory, f"faults{next(numbers)}")
        other = copy_program(isolation, directory, f"faults{next(numbers)}")  # does not fail
        silent = [each for each in (path, other) if get(server.url, each) != (200, ANSWER)]
        if silent:
            lost.failure = recovery.failure = f"{silent[0].rpartition('/')[2]} does not answer {isolation}"
            break
        sample = cause_fault(server.url, path, other, fault)
        lost.samples.append(sample)
        recovery.samples.append(sample)
    yield lost
    yield recovery


def cause_fault(url: str, path: str, other: str, fault: str) -> Sample:
    """Let a library fail while clients call it and another one; return the sample.

    path, other: of the two libraries' URLs. fault: one of FAULTS.
    """
    with clients_of(url, [path] * CLIENTS_OF_EACH_LIBRARY + [other] * CLIENTS_OF_EACH_LIBRARY) as clients:
        time.sleep(QUIET_LOAD_S)
        status, _ = get(url, f"{path}?{fault}")
        began = time.monotonic()
        again = recovers(url, path)
        millis = (time.monotonic() - began) * 1e3
        time.sleep(QUIET_LOAD_S)
    extra = {
        "lost": float(sum(len(client.lost) for client in clients)),
        # The first clients are those of the failing library
        "same": float(sum(len(client.lost) for client in clients[:CLIENTS_OF_EACH_LIBRARY])),
        "status": float(status),
        "millis": millis,
    }
    request_count = sum(client.asked for client in clients)
    answered = request_count - int(extra["lost"])
    sample = Sample("sockets", seconds=0.0, requests=request_count, replies=answered, extra=extra)
    sample.connections = request_count
    sample.notes += [f"{count} requests lost: {what}" for what, count in count_wrong_answers(clients)]
    if not again:
        sample.notes.append(NO_RECOVERY)
    return sample


def count_wrong_answers(clients: Sequence[FaultClient]) -> list[tuple[str, int]]:
    """Return the wrong answers that the clients received, and the number of each."""
    found = sorted(each for client in clients for each in client.lost)
    return [(what, len([*group])) for what, group in itertools.groupby(found)]


def recovers(url: str, path: str) -> bool:
    """Send requests until one has the right answer; return whether one had. None is sent after ANSWER_TIMEOUT_S."""
    end = time.monotonic() + ANSWER_TIMEOUT_S
    while time.monotonic() < end:
        if get(url, path) == (200, ANSWER):
            return True
        time.sleep(0.005)
    return False


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim holds if ewe answers every fault in its process with an error, and the library answers again.
    """
    found = [cell for cell in table.cells if cell.column == IN_SERVER and cell.samples]
    if not found:
        return Finding(NOT_TESTABLE, "No library was called in place.")
    samples = [sample for cell in found for sample in cell.samples]
    caught = sum(sample.extra["status"] >= 500 for sample in samples)
    again = sum(NO_RECOVERY not in sample.notes for sample in samples)
    summary = f"In place {caught} of {len(samples)} faults were answered with a status from 500 on"
    summary += f", and {again} times the library answered again"
    for isolation in (IN_SERVER, IN_ENGINE, CGI_PROGRAM):
        cells = [cell for cell in table.cells if cell.column == isolation and cell.samples]
        if cells:
            count = sum(sample.extra["lost"] for cell in cells for sample in cell.samples)
            request_count = sum(sample.requests for cell in cells for sample in cell.samples)
            summary += f"; {isolation} other clients lost {count:.0f} of {request_count:,} requests"
    return Finding(HOLDS if caught == again == len(samples) else FAILS, f"{summary}.")
