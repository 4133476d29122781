"""Processes: start them so that none is left behind, pin them to a core, read the CPU time that they used.

When a `with running(...)` block is left, also by an exception, the process and its whole session have ended. Linux
only: the figures are read from /proc.
"""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

TICKS = os.sysconf("SC_CLK_TCK")  # units of a second in /proc/PID/stat and /proc/stat
ENDS_IN = 5.0  # seconds that a process may take to end after SIGTERM
DEBIAN = {"nginx": "nginx-light", "wrk": "wrk"}  # tool: the package that has it


class LabError(Exception):
    """An experiment cannot go on; the text is one line."""


@dataclass(frozen=True)
class Process:
    """One line of /proc/PID/stat. own, waited: CPU seconds of the process, and of the children it waited for."""

    pid: int
    state: str
    parent: int
    session: int
    own: float
    waited: float


def process(pid: int) -> Process | None:
    """Return what /proc says of a process, None if it no longer exists."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # of proc(5) the third and those that follow
    ticks = [int(number) for number in fields[11:15]]
    return Process(
        pid,
        fields[0],
        int(fields[1]),
        int(fields[3]),
        sum(ticks[:2]) / TICKS,
        sum(ticks[2:]) / TICKS,
    )


def processes() -> list[Process]:
    """Return all processes of the machine."""
    found = [process(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()]
    return [each for each in found if each is not None]


def tree(*roots: int) -> list[Process]:
    """Return processes and all their descendants."""
    everyone = processes()
    found = [each for each in everyone if each.pid in roots]
    for parent in found:  # grows meanwhile
        found += [each for each in everyone if each.parent == parent.pid]
    return found


def cpu_seconds(*roots: int) -> float:
    """Return the CPU seconds (user and system) that processes and their descendants have used so far.

    Those that have ended count too, once their parent has waited for them. A zombie can still be asked.
    """
    for _ in range(5):
        family = tree(*roots)
        total = sum(own_seconds(each) + each.waited for each in family)
        if [each.pid for each in tree(*roots)] == [each.pid for each in family]:
            break  # otherwise one may have been counted twice, or not at all
    return total


def own_seconds(of: Process) -> float:
    """Return the CPU seconds of one process from its CPU clock: those in /proc come in steps of 10 ms."""
    try:
        return time.clock_gettime(~of.pid << 3 | 2)  # what clock_getcpuclockid(3) returns on Linux
    except OSError:
        return of.own


def core_seconds(core: int) -> float:
    """Return the seconds that a core has been busy since the machine started, with any program."""
    for line in Path("/proc/stat").read_text(errors="replace").splitlines():
        name, *ticks = line.split()
        if name == f"cpu{core}":
            user, nice, system, _idle, _iowait, *others = (int(number) for number in ticks[:8])
            return (user + nice + system + sum(others)) / TICKS
    raise LabError(f"core {core} is not in /proc/stat")


def two_cores() -> tuple[int, int]:
    """Return the core for the server and the core for the load: the same core if there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[-1]


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Pin what is started in this block to one core. None: do not pin."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def running(
    command: Sequence[str],
    output: IO[bytes],
    core: int | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: IO[bytes] | int = subprocess.DEVNULL,
    stdout: IO[bytes] | int | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a new session, which is empty when the block is left.

    output: receives standard error, and standard output if `stdout` is None.
    """
    with on_core(core):
        started = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=output if stdout is None else stdout,
            stderr=output,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )
    try:
        yield started
    finally:
        try:
            started.terminate()
            started.wait(ENDS_IN)
        except subprocess.TimeoutExpired:
            started.kill()
        finally:
            started.poll()
            end_session(started.pid)
            started.wait()


def end_session(session: int) -> None:
    """Kill the remaining processes of a session."""
    for _ in range(100):
        left = [each.pid for each in processes() if each.session == session and each.state not in "ZX"]
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)


def end_children(but: set[int]) -> None:
    """Kill our descendants and their sessions, except `but`: an interrupt may come at any point of a start."""
    new = [each for each in tree(os.getpid()) if each.pid not in but and each.pid != os.getpid()]
    for session in {each.session for each in new} - {os.getsid(0)}:
        end_session(session)


def allow_descriptors(wanted: int) -> int:
    """Raise our limit of descriptors to `wanted`, as far as the system lets us; return the limit.

    Children inherit it. It is never lowered.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return wanted if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def ended(started: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for a child to end, at most `seconds`. It stays a zombie, whose CPU time can still be read."""
    descriptor = os.pidfd_open(started.pid)
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def text_of(output: IO[bytes]) -> str:
    """Return the first 64 KB of a child's output, without moving the position at which it writes."""
    return os.pread(output.fileno(), 65536, 0).decode(errors="replace")


def one_line(text: str) -> str:
    """Return the last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")


def find_tool(name: str) -> str | None:
    """Return the path of a program. /usr/sbin is searched too: on Debian it is not on the PATH of users."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/sbin")


def missing(names: Iterable[str]) -> str:
    """Return one line that names the missing programs and their packages, "" if none is missing."""
    lacking = [name for name in names if not find_tool(name)]
    packages = " ".join(DEBIAN.get(name, name) for name in lacking)
    return f"{' and '.join(lacking)} missing: apt install {packages}" if lacking else ""


def tool(name: str) -> str:
    """Return the path of a program. Raises LabError."""
    if found := find_tool(name):
        return found
    raise LabError(missing([name]))
