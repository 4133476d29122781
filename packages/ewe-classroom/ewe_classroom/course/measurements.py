"""What a student measures of a server, for the questions of a lab.

    ewe-course measure pool -- python3 server.py {port} {root} {workers}

One client, two, four, eight and sixteen ask again and again (a closed loop, without think time), for a moment each.
Then clients stall with half a request, and the processes are counted. The numbers go into a file,
measurements.json. Answers to a lab's questions are computed from it (questions.py), so each student has others.
"""

from __future__ import annotations

import json
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import psutil

from ewe.closed_loop import ClosedLoad, ClosedLoop, WrongAnswer
from ewe.config.messages import ConfigError
from ewe_classroom.course import other_measurements
from ewe_classroom.grader import processes
from ewe_classroom.grader.load import STATUS_DIGITS
from ewe_classroom.grader.sandbox import SandboxLimits
from ewe_classroom.grader.subject import ServedFiles, StartCommand, Subject

CLIENT_COUNTS = (1, 2, 4, 8, 16)
IDLE_CONNECTION_COUNTS = (0, 100)
SETTLE_S = 0.3  # in which the server starts threads for the stalled clients
CLOSED_LOOP_S = 1.0  # of each closed loop
REQUEST = b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
REQUESTED_PATH = "/hello.txt"
PROGRAMS = {"cgi": "/cgi-bin/hello"}  # a lab whose servers run programs -> the one that is measured, too
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
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Measurements:
    """Read a file of measurements. Raises ConfigError."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        table.setdefault("program_ms", {})
        for key in ("rate", "time_ms", "tasks", "memory_kib", "program_ms"):
            table[key] = {int(clients): value for clients, value in table[key].items()}
        return Measurements(**table)
    except OSError as reason:
        raise ConfigError(f"cannot read {path}: {reason.strerror}; ewe-course measure makes it") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(f"{path}: not a file of measurements; ewe-course measure makes one") from None


def measure(
    lab: str, start_command: StartCommand, workers: int, say: Callable[[str], None], *, what: str = "server"
) -> Measurements:
    """Measure the figures of a lab (`measures` in lab.toml). say: called with each step.

    Raises ConfigError, NotStarted.
    """
    if what == "engine":
        return Measurements(
            lab, 1, {}, {}, {}, {}, 0.0, more=other_measurements.of_engine(start_command, say)
        )
    if what == "data":
        return Measurements(
            lab, 1, {}, {}, {}, {}, 0.0, more=other_measurements.of_data(Path(start_command.command[0]), say)
        )
    with tempfile.TemporaryDirectory(prefix="ewe-course-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        port = processes.free_port()
        with Subject(
            start_command, ServedFiles(directory), workers, SandboxLimits(), port, directory / "output"
        ) as subject:
            found = measured(lab, subject, workers, say)
            return replace(found, more=other_measurements.of_caching(port)) if what == "caching" else found


def measured(lab: str, subject: Subject, workers: int, say: Callable[[str], None]) -> Measurements:
    """Return the figures of a server that runs."""
    port = subject.port
    rates, times, tasks, memory = {}, {}, {}, {}
    answers = 0
    cpu = cpu_seconds(subject)
    for clients in CLIENT_COUNTS:
        responses, response_s, duration_s = closed_loop(port, clients)
        if not responses:
            raise ConfigError(
                f"no response in {RESPONSE_TIMEOUT_S:g} s with {clients} clients: is this the server of the lab?"
            )
        rates[clients], times[clients] = (
            round(responses / duration_s, 1),
            round(response_s / responses * 1000, 3),
        )
        answers += responses
        say(f"{clients:3} clients: {rates[clients]:8.1f} responses/s, {times[clients]:8.3f} ms each")
    cpu = cpu_seconds(subject) - cpu
    programs = {}
    if lab in PROGRAMS:
        responses, response_s, _ = closed_loop(port, 1, PROGRAMS[lab])
        if not responses:
            raise ConfigError(f"no response of the program {PROGRAMS[lab]}: is this the server of the lab?")
        programs[1] = round(response_s / responses * 1000, 3)
        say(f"  1 client of a program: {programs[1]:8.3f} ms each")
    for count in IDLE_CONNECTION_COUNTS:
        stalled = [hold(port) for _ in range(count)]
        time.sleep(SETTLE_S)
        tasks[count] = sum(each.num_threads() for each in family(subject))
        memory[count] = sum(each.memory_full_info().pss for each in family(subject)) // 1024
        for each in stalled:
            each.close()
        say(f"{count:3} stalled: {tasks[count]:8} threads, {memory[count]:8} KiB")
    return Measurements(lab, workers, rates, times, tasks, memory, round(cpu / answers * 1e6, 1), programs)


class OkAnswer:
    """An answer that has to be 200. Its end is the end of the connection, so its framing does not matter."""

    begins = b""

    def feed(self, data: bytes) -> bool:
        if len(self.begins) < STATUS_DIGITS.stop:
            self.begins += data[: STATUS_DIGITS.stop]
        if not data and self.begins[STATUS_DIGITS] != b"200":
            raise WrongAnswer("not 200")
        return not data


def closed_loop(port: int, clients: int, path: str = REQUESTED_PATH) -> tuple[int, float, float]:
    """Have clients ask again and again; return responses, the sum of their times, and the duration, in seconds."""
    load = ClosedLoad(
        ("127.0.0.1", port),
        REQUEST % path.encode(),
        OkAnswer,
        clients,
        CLOSED_LOOP_S,
        stall_timeout_s=RESPONSE_TIMEOUT_S,
    )
    found = ClosedLoop(load).run()
    return len(found.times_s), sum(found.times_s), found.seconds


def hold(port: int) -> socket.socket:
    """Return a connection on which half a request was sent."""
    client = socket.create_connection(("127.0.0.1", port), RESPONSE_TIMEOUT_S)
    client.sendall(REQUEST[:3])
    return client


def family(subject: Subject) -> list[psutil.Process]:
    """Return the processes of a server."""
    found = []
    for pid in subject.running():
        try:
            found.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            pass
    return found


def cpu_seconds(subject: Subject) -> float:
    """Return the CPU time of a server, its ended children's included."""
    return sum(sum(each.cpu_times()[:4]) for each in family(subject))
