"""LibCGI, figure 1: a library that fails, in the server and in an engine, while other clients ask."""

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

from ewe.xswitch.engine_kinds import LIBCGI as HOST
from ewe_lab.bench.experiment import Bench, Contender, Running
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, Sample, Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, NOT_TESTABLE, Finding
from ewe_lab.stacks import backends, compiled, gateways

FAULTS = ("loop", "crash", "abort", "exit")
IN_PLACE, PROCESS, PROGRAM = "in place", "in an engine", "CGI program"
OTHERS = 4  # clients that ask the same library, and as many that ask another one
ROUNDS = (2, 10)  # of each fault
LIMIT = "1s"  # of a call
BETWEEN = 0.1  # seconds of quiet load before and after a fault
PATIENCE = 15.0  # seconds for one answer
ANSWER = b"x" * 27 + b"\n"
HOST_MISSING = "LibCGI's engine is not built: ewe-xswitch libcgi"
REMARKS = (
    f"Before each fault {2 * OTHERS} clients ask without a pause, half of them the library that will fail, half "
    "another one. A request of theirs is lost if it is not answered with 200 and 28 bytes.",
    f"Recovery: from the answer to the fault until the same library has answered again. A call may take {LIMIT}.",
    "Each fault has a new copy of the library: ewe keeps one out for a while that failed three times.",
)


@dataclass
class Client:
    """A client that asks again and again, in a thread of its process."""

    url: str
    path: str
    over: threading.Event
    asked: int = 0
    lost: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Ask until it is over."""
        while not self.over.is_set():
            self.asked += 1
            status, body = get(self.url, self.path)
            if (status, body) != (200, ANSWER):
                self.lost.append(f"{status} with {len(body)} bytes")


def get(url: str, path: str) -> tuple[int, bytes]:
    """Return the status and the body of an answer; 0 if there was none."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


@contextmanager
def asking(url: str, paths: Sequence[str]) -> Iterator[list[Client]]:
    """Let a client ask each path during the block."""
    over = threading.Event()
    clients = [Client(url, path, over) for path in paths]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield clients
    finally:
        over.set()
        for thread in threads:
            thread.join()


def run(lab: Bench) -> Iterator[Cell]:
    """Let every fault happen in each place."""
    if lacking := compiled.missing():
        lab.notes.append(f"All programs are left out: {lacking}")
        return
    where = lab.directory / "faults"
    where.mkdir(exist_ok=True)
    numbers = itertools.count()
    for place in (IN_PLACE, PROCESS, PROGRAM):
        if lacking := missing(place):
            lab.notes.append(f"{place}: left out, {lacking}")
            continue
        try:
            with served(lab, place, where) as server:
                for fault in FAULTS:
                    yield from cells(lab, server, place, fault, where, numbers)
        except LabError as reason:
            yield Cell(PROGRAM, place, None, "extra.lost", "requests", failure=str(reason))
    lab.notes += REMARKS


def missing(place: str) -> str:
    """Return why a place cannot be had here, "" if it can."""
    if place == PROGRAM:
        return ""
    if place == PROCESS and not Path(HOST).exists():
        return HOST_MISSING
    return gateways.libcgi_lacks()


@contextmanager
def served(lab: Bench, place: str, where: Path) -> Iterator[Running]:
    """Run ewe with the libraries, or programs, of a directory."""
    contender = Contender(
        place, model="thread", options=("--libcgi-timeout", LIMIT, "--program-timeout", LIMIT)
    )
    with ExitStack() as stack:
        if place == PROGRAM:
            contender = gateways.with_options(contender, "--cgi-path", str(where))
        elif place == IN_PLACE:
            contender = gateways.in_place(where / "none.so", contender)
        else:
            _, socket = stack.enter_context(backends.switch(lab, root=where))
            socket.chmod(0o666)
            options = ("--libcgi-path", str(where), "--libcgi-isolation", "process")
            contender = gateways.with_options(contender, *options, "--xswitch", f"unix:{socket}")
        yield stack.enter_context(lab.start(contender, lab.site([])))


def made(place: str, where: Path, name: str) -> str:
    """Make a copy of the library, or of the program; return the path of its URL."""
    ending, options = (".cgi", ["-DPROGRAM"]) if place == PROGRAM else (".so", [])
    first = where / f"first{ending}"
    if not first.exists():
        source = compiled.SOURCES / "faults.c"
        if options:
            compiled.build(source, first, *options)
        else:
            compiled.library(source, first)
    shutil.copy(first, where / f"{name}{ending}")
    return f"/{'cgi-bin' if place == PROGRAM else 'libcgi-bin'}/{name}{ending}"


def cells(
    lab: Bench, server: Running, place: str, fault: str, where: Path, numbers: Iterator[int]
) -> Iterator[Cell]:
    """Let one fault happen as often as the rounds say."""
    lost = Cell(fault, place, None, "extra.lost", "requests")
    recovery = Cell(fault, f"{place}: recovery", None, "extra.millis", "ms")
    for _ in range(lab.repeats * int(lab.seconds(*ROUNDS))):
        path = made(place, where, f"faults{next(numbers)}")
        other = made(place, where, f"faults{next(numbers)}")
        for each in (path, other):
            if get(server.url, each) != (200, ANSWER):
                raise LabError(f"{each.rpartition('/')[2]} does not answer {place}")
        with asking(server.url, [path] * OTHERS + [other] * OTHERS) as clients:
            time.sleep(BETWEEN)
            status, _ = get(server.url, f"{path}?{fault}")
            began = time.monotonic()
            again = recovered(server.url, path)
            millis = (time.monotonic() - began) * 1e3
            time.sleep(BETWEEN)
        extra = {
            "lost": float(sum(len(client.lost) for client in clients)),
            "same": float(sum(len(client.lost) for client in clients[:OTHERS])),
            "status": float(status),
            "millis": millis,
        }
        asked = sum(client.asked for client in clients)
        sample = Sample("sockets", 0.0, asked, asked - int(extra["lost"]), asked, extra=extra)
        said = [f"{count} requests lost: {what}" for what, count in tally(clients)]
        sample.notes += said if again else [*said, "the library did not answer again"]
        lost.samples.append(sample)
        recovery.samples.append(sample)
    yield lost
    yield recovery


def tally(clients: Sequence[Client]) -> list[tuple[str, int]]:
    """Return what the clients got instead of an answer, and how often."""
    found = sorted(each for client in clients for each in client.lost)
    return [(what, len([*group])) for what, group in itertools.groupby(found)]


def recovered(url: str, path: str) -> bool:
    """Ask until there is an answer; return whether there was one in time."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if get(url, path) == (200, ANSWER):
            return True
        time.sleep(0.005)
    return False


def check(table: Table) -> Finding:
    """The claim holds if in place every fault is answered with an error, and the library answers again."""
    found = [cell for cell in table.cells if cell.column == IN_PLACE and cell.samples]
    if not found:
        return Finding(NOT_TESTABLE, "No library was called in place.")
    samples = [sample for cell in found for sample in cell.samples]
    caught = sum(sample.extra["status"] >= 500 for sample in samples)
    again = sum(not any("did not answer" in note for note in sample.notes) for sample in samples)
    told = f"In place {caught} of {len(samples)} faults were answered with status 500"
    told += f", and {again} times the library answered again"
    for place in (IN_PLACE, PROCESS, PROGRAM):
        cells = [cell for cell in table.cells if cell.column == place and cell.samples]
        if cells:
            count = sum(sample.extra["lost"] for cell in cells for sample in cell.samples)
            asked = sum(sample.requests for cell in cells for sample in cell.samples)
            told += f"; {place} other clients lost {count:.0f} of {asked:,} requests"
    return Finding(HOLDS if caught == again == len(samples) else FAILS, f"{told}.")
