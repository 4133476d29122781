"""What a student measures of a server, for the questions of a lab.

    ewe-course measure pool -- python3 server.py {port} {root} {workers}

One client, two, four, eight and sixteen ask again and again (a closed loop, without think time), for a moment each.
Then clients are held with half a request, and the processes are counted. The numbers go into a file,
measurements.json. Answers to a lab's questions are computed from it (questions.py), so each student has others.
"""

from __future__ import annotations

import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import psutil

from ewe.config.messages import ConfigError
from ewe_classroom.course import other_measurements
from ewe_classroom.grader import processes
from ewe_classroom.grader.sandbox import Limits
from ewe_classroom.grader.subject import Recipe, Site, Subject

CLIENTS = (1, 2, 4, 8, 16)
HELD = (0, 100)
SECONDS = 1.0  # of each closed loop
REQUEST = b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
FILE = "/hello.txt"
PROGRAMS = {"cgi": "/cgi-bin/hello"}  # a lab whose servers run programs -> the one that is measured, too
PATIENCE = 10.0  # seconds that one response may take


@dataclass(frozen=True)
class Measurements:
    """rate: clients -> responses a second. time_ms: clients -> mean time of a response, in milliseconds.

    tasks, memory_kib: held clients -> threads of all processes; their memory (proportional set size).
    cpu_us: CPU time of all processes for one response, in microseconds.
    program_ms: clients -> mean time of a CGI program's response, in milliseconds; empty if the lab has no programs.
    more: what only this lab asks about, by its name (other_measurements.py).
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
        raise ConfigError(f"{path}: {reason.strerror}; ewe-course measure makes it") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(f"{path}: not a file of measurements; ewe-course measure makes one") from None


def measure(
    lab: str, recipe: Recipe, workers: int, say: Callable[[str], None], *, what: str = "server"
) -> Measurements:
    """Measure what a lab measures (`measures` in lab.toml). say: told of each step.

    Raises ConfigError, NotStarted.
    """
    if what == "engine":
        return Measurements(lab, 1, {}, {}, {}, {}, 0.0, more=other_measurements.of_engine(recipe, say))
    if what == "data":
        return Measurements(
            lab, 1, {}, {}, {}, {}, 0.0, more=other_measurements.of_data(Path(recipe.command[0]), say)
        )
    with tempfile.TemporaryDirectory(prefix="ewe-course-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        port = processes.free_port()
        with Subject(recipe, Site(directory), workers, Limits(), port, directory / "output") as subject:
            found = measured(lab, subject, workers, say)
            return replace(found, more=other_measurements.of_caching(port)) if what == "caching" else found


def measured(lab: str, subject: Subject, workers: int, say: Callable[[str], None]) -> Measurements:
    """Return what is measured of a server that runs."""
    port = subject.port
    rates, times, tasks, memory = {}, {}, {}, {}
    answers = 0
    cpu = cpu_seconds(subject)
    for clients in CLIENTS:
        done, spent, took = closed_loop(port, clients)
        if not done:
            raise ConfigError(
                f"no response in {PATIENCE:g} s with {clients} clients: is this the server of the lab?"
            )
        rates[clients], times[clients] = round(done / took, 1), round(spent / done * 1000, 3)
        answers += done
        say(f"{clients:3} clients: {rates[clients]:8.1f} responses/s, {times[clients]:8.3f} ms each")
    cpu = cpu_seconds(subject) - cpu
    programs = {}
    if lab in PROGRAMS:
        done, spent, _ = closed_loop(port, 1, PROGRAMS[lab])
        if not done:
            raise ConfigError(f"no response of the program {PROGRAMS[lab]}: is this the server of the lab?")
        programs[1] = round(spent / done * 1000, 3)
        say(f"  1 client of a program: {programs[1]:8.3f} ms each")
    for count in HELD:
        held = [hold(port) for _ in range(count)]
        time.sleep(0.3)
        tasks[count] = sum(each.num_threads() for each in family(subject))
        memory[count] = sum(each.memory_full_info().pss for each in family(subject)) // 1024
        for each in held:
            each.close()
        say(f"{count:3} held:    {tasks[count]:8} threads, {memory[count]:8} KiB")
    return Measurements(lab, workers, rates, times, tasks, memory, round(cpu / answers * 1e6, 1), programs)


def closed_loop(port: int, clients: int, path: str = FILE) -> tuple[int, float, float]:
    """Have clients ask again and again; return responses, the sum of their times, and the duration, in seconds."""
    until = time.monotonic() + SECONDS
    lock = threading.Lock()
    totals = [0.0, 0.0]

    def ask() -> None:
        while (began := time.monotonic()) < until:
            try:
                whole = exchange(port, path)
            except OSError:
                return
            if whole:
                with lock:
                    totals[0] += 1
                    totals[1] += time.monotonic() - began

    began = time.monotonic()
    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return int(totals[0]), totals[1], time.monotonic() - began


def exchange(port: int, path: str) -> bool:
    """Ask once over a new connection; return whether a response with status 200 has come."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
        client.sendall(REQUEST % path.encode())
        answer = b""
        while data := client.recv(65536):
            answer += data
    return answer[9:12] == b"200"


def hold(port: int) -> socket.socket:
    """Return a connection on which half a request was sent."""
    client = socket.create_connection(("127.0.0.1", port), PATIENCE)
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
