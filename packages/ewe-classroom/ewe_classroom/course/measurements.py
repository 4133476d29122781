"""What a student measures of a server, for the questions of a lab.

    ewe-course measure pool --command './server {port} {root} {workers}'

One client, two, four, eight and sixteen ask again and again (a closed loop, without think time), for a moment each.
Then clients stall with half a request, and the processes are counted. The numbers go into a file,
measurements.json. Answers to a lab's questions are computed from it (questions.py), so each student has others.
"""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from ewe.closed_loop import ClosedLoad, ClosedLoop, WrongAnswer
from ewe.config.messages import ConfigError
from ewe_classroom.course import other_measurements
from ewe_classroom.grader import processes
from ewe_classroom.grader.formats import write
from ewe_classroom.grader.responses import STATUS_DIGITS
from ewe_classroom.grader.sandbox import SandboxLimits
from ewe_classroom.grader.subject import ServedFiles, StartCommand, Subject

CLIENT_COUNTS = (1, 2, 4, 8, 16)
IDLE_CONNECTION_COUNTS = (0, 100)
SETTLE_S = 0.3  # in which the server starts threads for the stalled clients
CLOSED_LOOP_S = 1.0  # of each closed loop
REQUEST = b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
REQUESTED_PATH = "/hello.txt"
PROGRAMS = {"cgi": "/cgi-bin/hello"}  # a lab whose servers run programs -> the one that is measured, too
MAX_FIGURE = 1e15  # no rate, time or memory is so large; a product of two figures is finite
RESPONSE_TIMEOUT_S = 10.0  # if no client gets a byte for so long, all requests in progress fail


@dataclass(frozen=True)
class Measurements:
    """rate: clients -> responses a second. time_ms: clients -> mean time of a response, in milliseconds.

    tasks, memory_kib: stalled clients -> threads of all processes; their memory (proportional set size).
    cpu_us: CPU time of all processes for one response, in microseconds.
    program_ms: clients -> mean time of a CGI program's response, in milliseconds; empty if the lab has no programs.
    more: the figures for this lab alone, by its name (other_measurements.py).
    """

    lab: str
    workers: int
    rate: dict[int, float]
    time_ms: dict[int, float]
    tasks: dict[int, int]
    memory_kib: dict[int, int]
    cpu_us: float
    program_ms: dict[int, float] = field(default_factory=dict)
    more: dict[str, float] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the file that load() reads. Raises ConfigError."""
        write(path, json.dumps(asdict(self), indent=1) + "\n")


def load(path: Path) -> Measurements:
    """Read a file that Measurements.save() has written.

    Raises ConfigError if it cannot be read, lacks a figure, or has a value that is none (checked_figure()).
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        table.setdefault("program_ms", {})  # a file may lack it, since not every lab has programs
        for key in ("rate", "time_ms", "tasks", "memory_kib", "program_ms"):
            # JSON has turned the numbers of clients into strings.
            table[key] = {int(clients): checked_figure(value) for clients, value in table[key].items()}
        table["workers"], table["cpu_us"] = checked_figure(table["workers"]), checked_figure(table["cpu_us"])
        table["more"] = {str(name): checked_figure(value) for name, value in table.get("more", {}).items()}
        return Measurements(**table)
    except OSError as reason:
        raise ConfigError(f"cannot read {path}: {reason.strerror}; ewe-course measure makes it") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ConfigError(f"{path}: not a file of measurements; ewe-course measure makes one") from None


def checked_figure(value: Any) -> Any:
    """Return a value of a file unchanged. Raises ValueError unless it is a number within MAX_FIGURE of 0."""
    # NaN fails each comparison.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_FIGURE:
        raise ValueError(f"{value!r} is no figure")
    return value


def measure(
    lab: str, start_command: StartCommand, workers: int, say: Callable[[str], None], *, what: str = "server"
) -> Measurements:
    """Measure the figures of a lab. say: called with each step.

    what: the object to measure (`measures` in lab.toml): "server", "caching", "engine", or "data". For "data", the
    command is the path of a file of runs. Raises ConfigError, NotStarted.
    """
    # The figures of a server, which an engine and a file of runs do not have.
    none = Measurements(lab, workers=1, rate={}, time_ms={}, tasks={}, memory_kib={}, cpu_us=0.0)
    if what == "engine":
        return replace(none, more=other_measurements.of_engine(start_command, say))
    if what == "data":
        return replace(none, more=other_measurements.of_data(Path(start_command.command[0]), say))
    with tempfile.TemporaryDirectory(prefix="ewe-course-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # as root, the server may take another account, which has to read its files
        port = processes.free_port()
        with Subject(
            start_command, ServedFiles(directory), workers, SandboxLimits(), port, directory / "output"
        ) as subject:
            found = measure_server(lab, subject, workers, say)
            return replace(found, more=other_measurements.of_caching(port)) if what == "caching" else found


def measure_server(lab: str, subject: Subject, workers: int, say: Callable[[str], None]) -> Measurements:
    """Measure a server that runs; return its figures. Raises ConfigError if it does not answer.

    say: called with a line for each number of clients.
    """
    port = subject.port
    rates, times_ms, tasks, memory_kib = {}, {}, {}, {}
    all_responses = 0
    cpu_s_before = cpu_seconds(subject)
    for clients in CLIENT_COUNTS:
        found = run_closed_loop(port, clients)
        if not found.responses:
            raise ConfigError(
                f"no response in {RESPONSE_TIMEOUT_S:g} s with {clients} clients: is this the server of the lab?"
            )
        rates[clients], times_ms[clients] = round(found.rate, 1), round(found.mean_ms, 3)
        all_responses += found.responses
        say(f"{clients:3} clients: {rates[clients]:8.1f} responses/s, {times_ms[clients]:8.3f} ms each")
    # Taken before the programs run: the CPU time of a response is that of a file.
    cpu_us = round((cpu_seconds(subject) - cpu_s_before) / all_responses * 1e6, 1)
    program_ms = {}
    if lab in PROGRAMS:
        found = run_closed_loop(port, 1, PROGRAMS[lab])
        if not found.responses:
            raise ConfigError(f"no response of the program {PROGRAMS[lab]}: is this the server of the lab?")
        program_ms[1] = round(found.mean_ms, 3)
        say(f"  1 client of a program: {program_ms[1]:8.3f} ms each")
    for count in IDLE_CONNECTION_COUNTS:
        stalled = [connect_stalled(port) for _ in range(count)]
        time.sleep(SETTLE_S)
        tasks[count], memory_kib[count] = threads_and_memory_kib(subject)
        for each in stalled:
            each.close()
        say(f"{count:3} stalled: {tasks[count]:8} threads, {memory_kib[count]:8} KiB")
    return Measurements(
        lab, workers, rate=rates, time_ms=times_ms, tasks=tasks, memory_kib=memory_kib, cpu_us=cpu_us,
        program_ms=program_ms,
    )  # fmt: skip


class OkAnswer:
    """An answer that has to be 200. Its end is the end of the connection, so its framing does not matter."""

    begins = b""

    def feed(self, data: bytes) -> bool:
        """Take the next bytes, b"" at the connection's end; return whether the answer is complete.

        The request has Connection: close, so the end of the connection completes an answer. Raises WrongAnswer.
        """
        if len(self.begins) < STATUS_DIGITS.stop:  # the status line may come in several pieces
            self.begins += data[: STATUS_DIGITS.stop]
        if not data and self.begins[STATUS_DIGITS] != b"200":
            raise WrongAnswer("not 200")
        return not data


class LoopResult(NamedTuple):
    """The responses of one closed loop. sum_s: their times together. duration_s: of the loop."""

    responses: int
    sum_s: float
    duration_s: float

    @property
    def rate(self) -> float:
        """The responses of one second."""
        return self.responses / self.duration_s

    @property
    def mean_ms(self) -> float:
        """The mean time of a response in milliseconds. There must be at least one response."""
        return self.sum_s / self.responses * 1000


def run_closed_loop(port: int, clients: int, path: str = REQUESTED_PATH) -> LoopResult:
    """Let clients ask again and again for CLOSED_LOOP_S; return their responses."""
    load = ClosedLoad(
        ("127.0.0.1", port),
        REQUEST % path.encode(),
        OkAnswer,
        clients,
        CLOSED_LOOP_S,
        stall_timeout_s=RESPONSE_TIMEOUT_S,
    )
    found = ClosedLoop(load).run()
    return LoopResult(len(found.times_s), sum(found.times_s), found.seconds)


def connect_stalled(port: int) -> socket.socket:
    """Return a connection on which a part of a request was sent. Raises ConfigError."""
    try:
        client = socket.create_connection(("127.0.0.1", port), RESPONSE_TIMEOUT_S)
        client.sendall(REQUEST[:3])  # `GET`: no server can answer yet
    except OSError as reason:
        raise ConfigError(
            f"a stalled client could not connect ({reason}): has the server ended, or is its backlog too small?"
        ) from None
    return client


def processes_of(subject: Subject) -> list[psutil.Process]:
    """Return the processes of a server that have not ended yet."""
    found = []
    for pid in subject.running():
        try:
            found.append(psutil.Process(pid))
        except psutil.NoSuchProcess:  # it has ended since running() found it
            pass
    return found


def threads_and_memory_kib(subject: Subject) -> tuple[int, int]:
    """Return the threads of all processes of a server, and their memory in KiB (proportional set size).

    A page of memory that n processes share counts as 1/n in the proportional set size of each.
    """
    threads = memory_bytes = 0
    for process in processes_of(subject):
        # The process may have ended since processes_of() found it.
        with contextlib.suppress(psutil.NoSuchProcess):
            memory_bytes += process.memory_full_info().pss
            threads += process.num_threads()
    return threads, memory_bytes // 1024


def cpu_seconds(subject: Subject) -> float:
    """Return the CPU time of all processes of a server and of their ended children, in seconds."""
    total_s = 0.0
    for process in processes_of(subject):
        # A child of a forking server may have ended since processes_of() found it. Its parent then has its time.
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return total_s
