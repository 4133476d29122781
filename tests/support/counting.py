"""Count what a request costs a real server: system calls and Python calls. Neither depends on the machine's speed.

    a server ── strace -f ─▶ a line for each system call ──┐
             ── sitecustomize ─▶ a line for each Python call ──┴─▶ cut into requests ─▶ the median of many

One client sends one request after the other, so that each of them costs the same. A timer of the server (the Date
line once a second, the deadlines of an event loop four times a second) adds its calls to a few requests. The figure
of a row is therefore the median of blocks of ten requests, divided by ten. `tests/house/counts.toml` holds the
figures, and `make counts` writes it.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, pairwise
from pathlib import Path
from statistics import median_low
from types import FrameType
from typing import Any, NamedTuple

import ewe
from ewe.bounded import SETTLED_S
from support.server import ROOT, Server, Start, wait_until, write_program
from support.wire import read_response

SOURCE = Path(ewe.__file__).parent
WARM_UP = 20  # requests that are not counted: caches are filled, threads have their memory
COUNTED = 200
STRACE_ENDS_S = 5.0
SETTLE_S = 0.002  # after a connection, for its child or thread to end before the next connection
# The scheduler decides whether a thread has to wait for another one, and the allocator when it returns memory. The
# serial model and prefork look at their backlog by the clock.
BY_CHANCE = {"futex", "sched_yield", "restart_syscall", "poll", "brk"}
BY_THE_CLOCK = {
    "SerialStream.others_still_wait",
    "Serial.others_wait",
    "Prefork.others_wait",
    "Seat.more_start",
    "Listener.has_waiting",
}
SYSTEM_CALL = re.compile(r"^(\d+) +(?:(\w+)\(|<\.\.\. \w+ resumed>)")
REQUEST = re.compile(r'"(?:GET|HEAD) /')
KB = 1024
CHANGED, LAST_MODIFIED = 1_700_000_000, "Tue, 14 Nov 2023 22:13:20 GMT"
COUNTED_SITE = Path(__file__).parent / "counted"


class Calls:
    """The functions of ewe that one thread calls while this object is its profile function: file and name."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note a call."""
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(SOURCE):
            self.made.append((file.relative_to(SOURCE).as_posix(), frame.f_code.co_qualname))

    def of_a_request(self, first: str) -> list[tuple[str, str]]:
        """Return the calls for one of several equal requests: for the one with the fewest, since timers add calls.

        first: the function with which each request begins.
        """
        starts = [number for number, (_, name) in enumerate(self.made) if name == first]
        return min((self.made[begin:end] for begin, end in pairwise(starts)), key=len)


class Row(NamedTuple):
    """One kind of request.

    kept: on one connection. log: with an access log. counted: the number of requests. slack: the difference that
    the scheduler may make, since it decides how often the server waits for this client, or for its own children.
    """

    path: str
    fields: str = ""
    method: str = "GET"
    status: int = 200
    kept: bool = True
    log: bool = False
    counted: int = COUNTED
    slack: int = 0


ROWS = {
    "1 KB": Row("1k.html"),
    "16 KB": Row("16k.html"),
    "128 KB": Row("128k.html", slack=12),
    "a connection each": Row("1k.html", "Connection: close\r\n", kept=False, slack=1),
    "304": Row("1k.html", f"If-Modified-Since: {LAST_MODIFIED}\r\n", status=304),
    "HEAD": Row("1k.html", method="HEAD"),
    "404": Row("none.html", status=404),
    "range": Row("16k.html", "Range: bytes=100-299\r\n", status=206, slack=1),
    "CGI": Row("cgi-bin/hello", counted=60, slack=40),
    "log": Row("1k.html", log=True),
}
HELLO = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nhello\\n'\n"


def make_site(root: Path, cgi: Path) -> None:
    """Write the files that the rows request."""
    for size in (1, 16, 128):
        file = root / f"{size}k.html"
        file.write_bytes(b"w" * size * KB)
        os.utime(file, (CHANGED, CHANGED))
    write_program(cgi / "hello", HELLO)
    time.sleep(2 * SETTLED_S)  # a file that has just changed is not cached


class Client:
    """Sends requests of one row, each after the response to the one before."""

    def __init__(self, server: Server, row: Row) -> None:
        self.server = server
        self.row = row
        self.request = f"{row.method} /{row.path} HTTP/1.1\r\nHost: a\r\n{row.fields}\r\n".encode()
        self.socket: socket.socket | None = None

    def ask(self, count: int = 1) -> None:
        """Send this number of requests."""
        for _ in range(count):
            if self.socket is None:
                self.socket = self.server.connect()
            self.socket.sendall(self.request)
            assert read_response(self.socket, self.row.method)[0] == self.row.status
            if not self.row.kept:
                assert self.socket.recv(1) == b""
                self.close()

    def close(self) -> None:
        """Close the connection, and give its thread or process the time to end."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None
            time.sleep(SETTLE_S)


def count_system_calls(start: Start, model: str) -> dict[str, int]:
    """Return the system calls of a request of each row under one model. Threads and processes count together."""
    return {
        name: cost
        for log in (False, True)
        for name, cost in system_calls_of(
            start(model, *one_process(model), "--access-log", "access.log" if log else "off"), log
        ).items()
    }


def one_process(model: str) -> Sequence[str]:
    """Return the option for a prefork with one process: with several, chance decides which of them wake."""
    return ("--workers", "1") if model == "prefork" else ()


def rows(log: bool) -> dict[str, Row]:
    """Return the rows of a server with an access log, or of one without."""
    return {name: row for name, row in ROWS.items() if row.log == log}


def system_calls_of(server: Server, log: bool) -> dict[str, int]:
    """Return the system calls of a request for each row of a running server."""
    make_site(server.root, server.cgi)
    found = rows(log)
    ask(server, ROWS["1 KB"], WARM_UP)
    trace = server.root.parent / "trace"
    with traced(server.processes(), trace):
        for row in found.values():
            ask(server, row, WARM_UP + row.counted)
    costs = iter(requests_of(trace.read_text(errors="replace").splitlines()))
    figures = {name: figure([*islice(costs, WARM_UP + row.counted)][WARM_UP:]) for name, row in found.items()}
    assert next(costs, None) is None, "a head was read in several pieces"
    return figures


def figure(costs: Sequence[Counter[str]]) -> int:
    """Return the calls of one request, given those of many: the sum of the medians of each system call."""
    return sum(median_low(cost[name] for cost in costs) for name in set().union(*costs))


def ask(server: Server, row: Row, count: int) -> None:
    """Send a number of requests of a row."""
    client = Client(server, row)
    client.ask(count)
    client.close()


@contextmanager
def traced(processes: Sequence[int], trace: Path) -> Iterator[None]:
    """Write each system call of some processes, their threads and descendants to a file."""
    command = ["strace", "-f", "-qq", "-s", "16", "-o", str(trace), *(f"--attach={pid}" for pid in processes)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        try:
            wait_until(
                lambda: all(map(is_traced, processes)) or strace.poll() is not None,
                10,
                "strace does not attach",
            )
            assert strace.poll() is None, strace.communicate()[1]
            yield
        finally:
            strace.terminate()  # it writes the rest of its lines
            try:
                strace.wait(STRACE_ENDS_S)
            except subprocess.TimeoutExpired:
                # It waits for a process in vfork(2) to stop, and that process waits for a child that strace holds.
                strace.kill()


def is_traced(pid: int) -> bool:
    """Return whether every thread of a process is traced."""
    tasks = list(Path(f"/proc/{pid}/task").glob("*/status"))
    return all(not re.search(r"^TracerPid:\s+0$", task.read_text(), re.MULTILINE) for task in tasks)


def requests_of(lines: Sequence[str]) -> list[Counter[str]]:
    """Return the system calls of each request in a trace, by name. A request begins where its head is read.

    The calls of a program count until it is executed.
    """
    costs: list[Counter[str]] = []
    programs: set[str] = set()
    for line in lines:
        found = SYSTEM_CALL.match(line)
        if not found or found[1] in programs:
            continue
        name = found[2]
        if REQUEST.search(line):
            costs.append(Counter())
        if costs and name and name not in BY_CHANCE:
            costs[-1][name] += 1
        if name == "execve":
            programs.add(found[1])
    return costs


def count_python_calls(start: Start, model: str, calls: Path) -> dict[str, int]:
    """Return the calls of ewe's functions for a request of each row under one model. calls: a file to write."""
    counted = {
        "PYTHONPATH": f"{COUNTED_SITE}{os.pathsep}{ROOT}",
        "EWE_TEST_SOURCE": str(SOURCE),
        "EWE_TEST_CALLS": str(calls),
    }
    found: dict[str, int] = {}
    for log in (False, True):
        access = "access.log" if log else "off"
        server = start(model, *one_process(model), "--access-log", access, env=counted)
        make_site(server.root, server.cgi)
        for name, row in rows(log).items():
            client = Client(server, row)
            client.ask(WARM_UP)
            costs = []
            with calls.open() as file:
                file.seek(0, os.SEEK_END)
                for _ in range(row.counted):
                    client.ask()
                    names = (line.rstrip("\n").partition(":")[2] for line in file)
                    costs.append(Counter(name for name in names if name not in BY_THE_CLOCK))
            client.close()
            found[name] = figure(costs)
        server.stop()
    return found


def count_faults(start: Start) -> int:
    """Return the page faults of a request on its own connection under the fork model: of parent and child."""
    server = start("fork", "--access-log", "off", env={})
    make_site(server.root, server.cgi)
    row = ROWS["a connection each"]
    ask(server, row, WARM_UP)
    before = faults(server.pid)
    ask(server, row, COUNTED)
    return round((faults(server.pid) - before) / COUNTED)


def faults(pid: int) -> int:
    """Return the page faults of a process, and of those of its children whose status it has read: proc(5)."""
    figures = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(figures[7]) + int(figures[8])
