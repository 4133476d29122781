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
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, Any, Iterable, NoReturn  # noqa: UP035

MARK = "@ewe-lab "
SILENCE_S = 20.0  # seconds without a line of the lab after which the agent gives up
TICKS = os.sysconf("SC_CLK_TCK")
MEMORY_SHARE = 0.05  # share of the time that may be spent on reading memory
PR_SET_PDEATHSIG = 1  # of prctl(2)
LISTENING = "0A"  # the state of a socket in /proc/net/tcp
OLDEST = (3, 11)  # Python that a worker needs
INIT = ("systemd", "init")  # the first process holds the sockets of servers that have not started


class Failed(Exception):
    """The order cannot be carried out; the text is one line."""


class Machine:
    """The state of the agent. worker: the process that it started."""

    def __init__(self) -> None:
        self.last_line = time.monotonic()
        self.lock = threading.Lock()
        self.worker: subprocess.Popen[bytes] | None = None

    def say(self, **fields: object) -> None:
        """Send a message. A lab that does not listen any more ends the agent."""
        with self.lock:
            try:
                sys.stdout.write(MARK + json.dumps(fields) + "\n")
                sys.stdout.flush()
            except (OSError, ValueError):
                self.finish()

    def finish(self, *_: object) -> NoReturn:
        """End the worker with its process group, and this process."""
        if self.worker is not None:
            try:
                os.killpg(self.worker.pid, signal.SIGKILL)
            except OSError:
                pass
        os._exit(0)

    def guard(self) -> None:
        """End if the lab is silent."""
        while time.monotonic() - self.last_line < SILENCE_S:
            time.sleep(1)
        self.finish()


# ---------------------------------------------------------------------------------------------------------
# The resources of a server


def text(path: str) -> str:
    """Return the text of a file of /proc, "" if it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def numbers(entries: Iterable[str]) -> list[int]:
    """Return the numbers among names."""
    return [int(name) for name in entries if name.isdigit()]


def holders(port: int) -> list[int]:
    """Return the processes that listen at a TCP port. Raises Failed."""
    if not os.path.exists("/proc/net/tcp"):
        raise Failed("that machine has no /proc/net/tcp: resources are read on Linux only")
    sockets: set[str] = set()
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in text(file).splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                sockets.add(f"socket:[{fields[9]}]")
    if not sockets:
        raise Failed(f"no process of that machine listens at port {port}")
    found = [pid for pid in numbers(os.listdir("/proc")) if holds(pid, sockets)]
    servers = [pid for pid in found if pid != 1 or name_of(pid) not in INIT]
    if found and not servers:
        raise Failed(f"{name_of(1)} holds port {port} and has not started the server yet")
    if not servers:
        raise Failed(
            f"the account {os.geteuid()} may not see which process listens at port {port}: log in as its owner or"
            " as root"
        )
    return servers


def holds(pid: int, sockets: set[str]) -> bool:
    """Whether a process has one of the sockets open, as far as this account may know."""
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
    return text(f"/proc/{pid}/comm").strip()


def stat_of(pid: int) -> tuple[str, int, float, float, int] | None:
    """Return (state, parent, own CPU seconds, those of ended children, threads); None if it has ended."""
    fields = text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) < 18:
        return None
    ticks = [int(number) for number in fields[11:15]]
    try:
        own = time.clock_gettime(~pid << 3 | 2)  # the CPU clock of the process, in finer steps than /proc
    except OSError:
        own = sum(ticks[:2]) / TICKS
    return fields[0], int(fields[1]), own, sum(ticks[2:]) / TICKS, int(fields[17])


def memory_of(pid: int) -> int:
    """Return the PSS of a process in bytes, its RSS if this account may not read PSS; 0 if it has ended."""
    for path, name in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        for line in text(f"/proc/{pid}/{path}").splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


class ResourceReader:
    """Reads the resources of the processes that listen at a port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.roots = holders(port)
        # (process, thread): context switches, of ended threads too
        self.switches: dict[tuple[int, int], list[int]] = {}
        self.memory_again = 0.0

    def names(self) -> list[str]:
        """Return the names of the servers, each once."""
        return sorted({name_of(pid) for pid in self.roots} - {""})

    def reading(self) -> dict[str, object]:
        """Return the resources used so far. Raises Failed if the servers have ended."""
        found: dict[int, tuple[str, int, float, float, int]] = {}
        for pid in numbers(os.listdir("/proc")):
            stat = stat_of(pid)
            if stat is not None:
                found[pid] = stat
        family = [pid for pid in self.roots if pid in found]
        if not family:
            raise Failed(f"the server at port {self.port} has ended")
        for parent in family:  # grows meanwhile
            family += [pid for pid, stat in found.items() if stat[1] == parent and pid not in family]
        alive = [pid for pid in family if found[pid][0] not in "ZX"]
        for pid in alive:
            self.count_switches(pid)
        return {
            "cpu": sum(found[pid][2] + found[pid][3] for pid in family),
            "processes": len(alive),
            "threads": sum(found[pid][4] for pid in alive),
            "descriptors": self.descriptors(alive),
            "memory": self.memory(alive),
            "voluntary": sum(pair[0] for pair in self.switches.values()),
            "involuntary": sum(pair[1] for pair in self.switches.values()),
        }

    def count_switches(self, pid: int) -> None:
        """Note the context switches of a process's threads."""
        directory = f"/proc/{pid}/task"
        try:
            threads = numbers(os.listdir(directory))
        except OSError:
            return
        for thread in threads:
            lines = text(f"{directory}/{thread}/status").splitlines()
            counts = [int(line.split()[1]) for line in lines if "voluntary_ctxt_switches" in line]
            if len(counts) == 2:
                self.switches[pid, thread] = counts

    def descriptors(self, family: list[int]) -> int | None:
        """Return the number of open descriptors; None if this account may not see those of one process."""
        try:
            return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in family)
        except OSError:
            return None

    def memory(self, family: list[int]) -> int | None:
        """Return the memory in bytes; None if it was read too recently (PSS is slow for many processes)."""
        began = time.monotonic()
        if began < self.memory_again:
            return None
        found = sum(memory_of(pid) for pid in family)
        now = time.monotonic()
        self.memory_again = now + (now - began) / MEMORY_SHARE
        return found


# ---------------------------------------------------------------------------------------------------------
# A worker of locust


def die_with_parent() -> None:
    """Become the leader of a session, and be killed if the agent is."""
    os.setsid()
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        pass


def start_worker(machine: Machine, order: dict[str, Any], archive: bytes) -> None:
    """Start the worker of an order, and pass on its lines. Raises Failed."""
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
    code, errors, words = tempfile.TemporaryFile(), tempfile.TemporaryFile(), tempfile.TemporaryFile()
    code.write(archive)
    code.flush()
    words.write(json.dumps(order["load"]).encode())
    words.seek(0)
    own = {name: value for name, value in os.environ.items() if not name.startswith("LOCUST_")}
    machine.worker = subprocess.Popen(
        [sys.executable, "-m", order["module"]],
        stdin=words,
        stdout=subprocess.PIPE,
        stderr=errors,
        cwd="/",
        env={**own, "PYTHONPATH": f"/proc/self/fd/{code.fileno()}", "PYTHONDONTWRITEBYTECODE": "1"},
        pass_fds=(code.fileno(),),
        preexec_fn=die_with_parent,
    )
    threading.Thread(target=pass_on, args=(machine, machine.worker, errors), daemon=True).start()


def pass_on(machine: Machine, worker: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
    """Send the worker's lines to the lab, and at its end its status and last words."""
    assert worker.stdout is not None
    for line in worker.stdout:
        machine.say(said=line.decode(errors="replace").strip()[:1000])
    status = worker.wait()
    errors.seek(max(errors.seek(0, os.SEEK_END) - 4096, 0))
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    machine.say(ended=status, error=lines[-1][:300] if lines else "")


# ---------------------------------------------------------------------------------------------------------


def carry_out(machine: Machine, order: dict[str, Any]) -> ResourceReader | None:
    """Carry out an order; return the reader, if it asks for one. Raises Failed."""
    if order["role"] == "reader":
        reader = ResourceReader(order["port"])
        reader.reading()
        machine.say(ready=", ".join(reader.names()), processes=len(reader.roots))
        return reader
    if order["role"] == "clock":
        machine.say(ready="clock")
        return None
    start_worker(machine, order, sys.stdin.buffer.read(order["bytes"]))
    machine.say(ready="worker")
    return None


def main() -> None:
    """Take the order, then answer until the lab has ended."""
    machine = Machine()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, machine.finish)
    threading.Thread(target=machine.guard, daemon=True).start()
    try:
        reader = carry_out(machine, json.loads(sys.stdin.buffer.readline().decode()))
        for line in sys.stdin.buffer:
            machine.last_line = time.monotonic()
            if line == b"c\n":
                machine.say(clock=time.time())
            elif line == b"r\n" and reader is not None:
                machine.say(**reader.reading())
    except Failed as reason:
        machine.say(failed=str(reason))
    except (ValueError, KeyError, OSError) as reason:
        machine.say(failed=f"the agent failed: {reason}")
    machine.finish()


if __name__ == "__main__":
    main()
