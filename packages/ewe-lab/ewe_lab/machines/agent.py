"""The program that runs on another machine for the lab: `ssh HOST python3 -c LOADER`, with this text on its input.

It uses the standard library only, since nothing is installed for it, and syntax that Python 3.7 understands. Each
message is a line of JSON after MARK, so that what a login shell prints first can be told apart:

    lab -> agent    {"role": "reader", "port": 8080}, {"role": "clock"},
                    or {"role": "worker", "bytes": N, ...} and N bytes of a zip file
    agent -> lab    {"ready": ...} or {"failed": "why"}
    lab -> agent    r (read the resources), c (read the clock), an empty line (the lab is still there)
    agent -> lab    {"at": seconds, "cpu": ...}, {"clock": seconds}
    agent -> lab    {"said": a line of the worker}, {"ended": status, "error": its last words}

A reader finds the processes that hold the listening socket of the port, with their descendants, and adds up their
CPU time, memory and context switches. It names a process only if /proc shows that it holds the socket: it never
guesses. A worker is locust with the modules of the zip file, which lies in a file without a name.

The agent ends when its input ends (the lab has ended or was killed), when the lab is silent for SILENCE_S, or
by SIGHUP, SIGINT and SIGTERM. It kills the worker first; the kernel does so if the agent is killed.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, Any, Iterable, NamedTuple, NoReturn  # noqa: UP035

MARK = "@ewe-lab "
SILENCE_S = 20.0  # seconds without a line of the lab after which the agent gives up
TICKS = os.sysconf("SC_CLK_TCK")
ENDED_STATES = "ZX"  # proc(5): a zombie, and a dead process
NANOSECONDS_PER_S = 1e9
MAX_READING_SHARE = 0.05  # share of the time that may be spent on reading memory
MAX_LINE_LENGTH, MAX_ERROR_LENGTH = 1000, 300  # characters of a worker's line that are passed on
ERROR_BYTES = 65536  # of a worker's standard error, which may have a traceback for each user
PR_SET_PDEATHSIG = 1  # of prctl(2)
LISTENING = "0A"  # the state of a socket in /proc/net/tcp
OLDEST = (3, 11)  # Python that a worker needs
INIT = ("systemd", "init")  # the first process holds the sockets of servers that have not started


class Failed(Exception):
    """The order cannot be carried out; the text is one line."""


class Machine:
    """The state of the agent. worker: the process that it started."""

    def __init__(self) -> None:
        self.last_line_at = time.monotonic()  # when the lab sent its last line
        self.lock = threading.Lock()
        self.worker: subprocess.Popen[bytes] | None = None

    def send_message(self, **fields: object) -> None:
        """Send a message to the lab. If the lab does not listen any more, the agent ends."""
        with self.lock:
            try:
                sys.stdout.write(MARK + json.dumps(fields) + "\n")
                sys.stdout.flush()
            except (OSError, ValueError):
                self.kill_worker_and_exit()

    def kill_worker_and_exit(self, *_: object) -> NoReturn:
        """Kill the worker with its process group, and end this process. Also a handler of signals."""
        if self.worker is not None:
            try:
                os.killpg(self.worker.pid, signal.SIGKILL)
            except OSError:
                pass  # it has ended
        os._exit(0)

    def exit_after_silence(self) -> None:
        """Wait until the lab has been silent for SILENCE_S; then end the agent."""
        while time.monotonic() - self.last_line_at < SILENCE_S:
            time.sleep(1)
        self.kill_worker_and_exit()


# ---------------------------------------------------------------------------------------------------------
# The resources of a server


def text_of_file(path: str) -> str:
    """Return the text of a file of /proc, "" if it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def numbers(entries: Iterable[str]) -> list[int]:
    """Return the numbers among names: in /proc and below it, the names of processes, threads and descriptors."""
    return [int(name) for name in entries if name.isdigit()]


def listening_pids(port: int) -> list[int]:
    """Return the processes that listen at a TCP port. Raises Failed if there is none, or none that we may see."""
    if not os.path.exists("/proc/net/tcp"):
        raise Failed("that machine has no /proc/net/tcp: resources are read on Linux only")
    sockets: set[str] = set()
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in text_of_file(file).splitlines()[1:]:  # the first line has the titles
            _, local_address, _, state, _, _, _, _, _, inode = line.split()[:10]
            if state == LISTENING and int(local_address.rpartition(":")[2], 16) == port:
                sockets.add(f"socket:[{inode}]")
    if not sockets:
        raise Failed(f"no process of that machine listens at port {port}")
    found = [pid for pid in numbers(os.listdir("/proc")) if has_open(pid, sockets)]
    # systemd holds the sockets of the services that it starts on demand; it is not their server
    servers = [pid for pid in found if pid != 1 or name_of(pid) not in INIT]
    if found and not servers:
        raise Failed(f"{name_of(1)} holds port {port} and has not started the server yet")
    if not servers:
        raise Failed(
            f"the account {os.geteuid()} may not see which process listens at port {port}: log in as its owner or"
            " as root"
        )
    return servers


def has_open(pid: int, sockets: set[str]) -> bool:
    """Whether a process has one of the sockets open; False if this account may not see its descriptors."""
    directory = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(directory):
            try:
                if os.readlink(directory + "/" + name) in sockets:
                    return True
            except OSError:
                pass
    except OSError:
        pass
    return False


def name_of(pid: int) -> str:
    """Return the name of a process."""
    return text_of_file(f"/proc/{pid}/comm").strip()


class ProcessFigures(NamedTuple):
    """The figures of a process. own, waited: CPU seconds of the process, and of the children that it waited for."""

    state: str
    parent: int
    own: float
    waited: float
    threads: int


def figures_of(pid: int) -> ProcessFigures | None:
    """Return the figures of a process; None if it has ended."""
    # The fields behind the name, which is field 2 of proc(5) and may contain blanks
    fields = dict(enumerate(text_of_file(f"/proc/{pid}/stat").rpartition(")")[2].split(), 3))
    if 20 not in fields:
        return None
    user, system, children_user, children_system = (int(fields[number]) / TICKS for number in range(14, 18))
    try:
        # The id of the CPU clock of a process, which has finer steps than /proc: see clock_getcpuclockid(3)
        own = time.clock_gettime(~pid << 3 | 2)
    except OSError:
        own = user + system
    return ProcessFigures(
        state=fields[3],
        parent=int(fields[4]),
        own=own,
        waited=children_user + children_system,
        threads=int(fields[20]),
    )


def all_processes() -> dict[int, ProcessFigures]:
    """Return the figures of all processes of the machine, by their ids."""
    found = ((pid, figures_of(pid)) for pid in numbers(os.listdir("/proc")))
    return {pid: figures for pid, figures in found if figures is not None}


def family_of(servers: Iterable[int], processes: dict[int, ProcessFigures]) -> list[int]:
    """Return the ids of the servers that run, and of their descendants."""
    family = [pid for pid in servers if pid in processes]
    for parent in family:  # the loop also reaches the children that it appends
        family += [pid for pid, child in processes.items() if child.parent == parent and pid not in family]
    return family


def memory_of(pid: int) -> int:
    """Return the PSS of a process in bytes, its RSS if this account may not read PSS; 0 if it has ended."""
    for path, name in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        for line in text_of_file(f"/proc/{pid}/{path}").splitlines():
            if line.startswith(name):
                _, kilobytes, _ = line.split()
                return int(kilobytes) * 1024
    return 0


class ResourceReader:
    """Reads the resources of the processes that listen at a port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.servers = listening_pids(port)
        # (process, thread): [voluntary, involuntary] context switches, of ended threads too
        self.switches: dict[tuple[int, int], list[int]] = {}
        # (process, thread): [ns on a core, ns of waiting for one, times that it got one], of ended threads too
        self.times_ns: dict[tuple[int, int], list[int]] = {}
        self.next_memory_reading = 0.0  # the earliest time of the next reading of memory

    def names(self) -> list[str]:
        """Return the names of the servers, each once."""
        return sorted({name_of(pid) for pid in self.servers} - {""})

    def read(self) -> dict[str, object]:
        """Return the resources used so far. Raises Failed if the servers have ended."""
        processes = all_processes()
        family = family_of(self.servers, processes)
        if not family:
            raise Failed(f"the server at port {self.port} has ended")
        alive = [pid for pid in family if processes[pid].state not in ENDED_STATES]
        for pid in alive:
            self.note_threads(pid)
        return {
            "cpu": sum(processes[pid].own + processes[pid].waited for pid in family),
            "processes": len(alive),
            "threads": sum(processes[pid].threads for pid in alive),
            "descriptors": self.descriptors(alive),
            "memory": self.read_memory(alive),
            "voluntary": sum(voluntary for voluntary, _ in self.switches.values()),
            "involuntary": sum(involuntary for _, involuntary in self.switches.values()),
            "run_s": sum(run_ns for run_ns, _, _ in self.times_ns.values()) / NANOSECONDS_PER_S,
            "wait_s": sum(wait_ns for _, wait_ns, _ in self.times_ns.values()) / NANOSECONDS_PER_S,
        }

    def note_threads(self, pid: int) -> None:
        """Note, for each thread of a process, its context switches and its times on and without a core so far."""
        directory = f"/proc/{pid}/task"
        try:
            threads = numbers(os.listdir(directory))
        except OSError:
            return
        for thread in threads:
            lines = text_of_file(f"{directory}/{thread}/status").splitlines()
            # Two lines: voluntary_ctxt_switches, then nonvoluntary_ctxt_switches
            counts = [int(line.split()[1]) for line in lines if "voluntary_ctxt_switches" in line]
            if len(counts) == 2:
                self.switches[pid, thread] = counts
            # Three numbers: nanoseconds on a core, nanoseconds of waiting for one, times that it got one
            times_ns = [int(part) for part in text_of_file(f"{directory}/{thread}/schedstat").split()]
            if len(times_ns) == 3:
                self.times_ns[pid, thread] = times_ns

    def descriptors(self, family: list[int]) -> int | None:
        """Return the number of open descriptors; None if this account may not see those of one process."""
        try:
            return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in family)
        except OSError:
            return None

    def read_memory(self, family: list[int]) -> int | None:
        """Return the memory in bytes; None if it was read too recently (PSS is slow for many processes).

        Note when it may be read next.
        """
        began = time.monotonic()
        if began < self.next_memory_reading:
            return None
        found = sum(memory_of(pid) for pid in family)
        now = time.monotonic()
        # The pause is so long that reading takes at most this share of the time
        self.next_memory_reading = now + (now - began) / MAX_READING_SHARE
        return found


# ---------------------------------------------------------------------------------------------------------
# A worker of locust


def die_with_parent() -> None:
    """Become the leader of a session, and be killed if the agent is. The child calls it before exec."""
    os.setsid()
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        pass


def start_worker(machine: Machine, order: dict[str, Any], archive: bytes) -> None:
    """Start the worker of an order, and a thread that passes its lines on to the lab. Raises Failed.

    archive: a zip file with the modules that the worker imports.
    """
    if sys.version_info < OLDEST:
        version = ".".join(map(str, sys.version_info[:2]))
        raise Failed(f"its python3 is {version} and must be 3.11 or later (--load-python)")
    from importlib import metadata

    try:
        found = metadata.version("locust")
    except metadata.PackageNotFoundError:
        raise Failed(
            "its Python has no locust: pip install locust there, or name another (--load-python)"
        ) from None
    if found.split(".")[:2] != order["locust"].split(".")[:2]:
        raise Failed(f"it has locust {found}, and this machine {order['locust']}: install one version")
    # Files without a name: nothing is left on the machine when the processes have ended
    zip_file, load_file = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    error_file = bounded_file()
    zip_file.write(archive)
    zip_file.flush()
    load_file.write(json.dumps(order["load"]).encode())
    load_file.seek(0)  # the worker reads it from the start, as its standard input
    variables = {name: value for name, value in os.environ.items() if not name.startswith("LOCUST_")}
    # Python imports modules from a zip file on its path. /proc/self/fd names the open file, which has no other name
    variables["PYTHONPATH"] = f"/proc/self/fd/{zip_file.fileno()}"
    machine.worker = subprocess.Popen(
        [sys.executable, "-m", order["module"]],
        stdin=load_file,
        stdout=subprocess.PIPE,
        stderr=error_file,
        cwd="/",
        env={**variables, "PYTHONDONTWRITEBYTECODE": "1"},
        pass_fds=(zip_file.fileno(),),
        preexec_fn=die_with_parent,
    )
    arguments = (machine, machine.worker, error_file)
    threading.Thread(target=pass_lines_to_lab, args=arguments, daemon=True).start()


def bounded_file() -> IO[bytes]:
    """Return an unnamed file in memory that never has more than ERROR_BYTES: a worker cannot fill the disk.

    ewe_lab.bench.processes has the same function, which the agent cannot import.
    """
    descriptor = os.memfd_create("errors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, ERROR_BYTES)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    return open(descriptor, "r+b")


def pass_lines_to_lab(machine: Machine, worker: subprocess.Popen[bytes], error_file: IO[bytes]) -> None:
    """Send the worker's lines to the lab, and at its end its status and a line of its standard error.

    The line is the last one of the first 64 KB. If there are more bytes, the line that they cut is left out.
    """
    assert worker.stdout is not None
    for line in worker.stdout:
        machine.send_message(said=line.decode(errors="replace").strip()[:MAX_LINE_LENGTH])
    status = worker.wait()
    errors = os.pread(error_file.fileno(), ERROR_BYTES, 0).rstrip(b"\0")
    if len(errors) == ERROR_BYTES:
        errors = errors[: errors.rfind(b"\n") + 1] or errors
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip()]
    machine.send_message(ended=status, error=lines[-1][:MAX_ERROR_LENGTH] if lines else "")


# ---------------------------------------------------------------------------------------------------------


def carry_out_order(machine: Machine, order: dict[str, Any]) -> ResourceReader | None:
    """Carry out an order: make a reader of resources, start a worker, or only agree to be asked for the clock.

    main() answers each question for the clock, so that the lab can compare the two. Return the reader, if the order
    is for one, else None. Raises Failed.
    """
    if order["role"] == "reader":
        reader = ResourceReader(order["port"])
        reader.read()  # raises Failed now, before the load, if nothing can be read
        machine.send_message(ready=", ".join(reader.names()), processes=len(reader.servers))
        return reader
    if order["role"] == "clock":
        machine.send_message(ready="clock")
        return None
    start_worker(machine, order, sys.stdin.buffer.read(order["bytes"]))
    machine.send_message(ready="worker")
    return None


def main() -> None:
    """Take the order, then answer until the lab has ended."""
    machine = Machine()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, machine.kill_worker_and_exit)
    threading.Thread(target=machine.exit_after_silence, daemon=True).start()
    try:
        reader = carry_out_order(machine, json.loads(sys.stdin.buffer.readline().decode()))
        for line in sys.stdin.buffer:
            machine.last_line_at = time.monotonic()  # an empty line says only that the lab is still there
            if line == b"c\n":
                machine.send_message(clock=time.time())
            elif line == b"r\n" and reader is not None:
                machine.send_message(**reader.read())
    except Failed as reason:
        machine.send_message(failed=str(reason))
    except (ValueError, KeyError, OSError) as reason:
        machine.send_message(failed=f"the agent failed: {reason}")
    machine.kill_worker_and_exit()


if __name__ == "__main__":
    main()
