"""Processes: start one and stop its whole session, pin it to a core, read its CPU time.

When a `with running(...)` block is left, also by an exception, the process and its whole session have ended. This
works on Linux only: the figures are read from /proc.
"""

from __future__ import annotations

import fcntl
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
from typing import IO, NamedTuple

from ewe_lab.bench.guard import tell_guards

TICKS_PER_S = os.sysconf("SC_CLK_TCK")  # clock ticks a second: the unit of /proc/PID/stat and /proc/stat
ENDED_STATES = "ZX"  # proc(5): a zombie, and a dead process
IGNORES_CHILDREN = 1 << (signal.SIGCHLD - 1)  # the bit of SIGCHLD in the mask SigIgn of /proc/PID/status
TERM_TO_KILL_S = 5.0  # seconds that a process may take to end after SIGTERM
KILL_ROUNDS, KILL_PAUSE_S = 100, 0.01  # how often the rest of a session is killed, until no process is left
MAX_READINGS_OF_TREE = 5  # of a tree whose processes start and end meanwhile
OUTPUT_BYTES = 65536  # of a child's output that are read
FIGURES_BYTES = 16 << 20  # of the figures that a child prints, as JSON
DEBIAN_PACKAGES = {"nginx": "nginx-light", "wrk": "wrk"}  # tool: the package that has it


class LabError(Exception):
    """An experiment cannot go on; the text is one line."""


class ProcessKey(NamedTuple):
    """The identity of a process: its pid alone may be given to a later process. started: as in ProcessStat."""

    pid: int
    started: int


@dataclass(frozen=True)
class ProcessStat:
    """One line of /proc/PID/stat. own, waited: CPU seconds of the process, and of the children it waited for.

    core: the core on which it was last seen. started: in clock ticks since the machine started.
    """

    pid: int
    state: str
    parent: int
    session: int
    own: float
    waited: float
    core: int = 0
    started: int = 0

    @property
    def key(self) -> ProcessKey:
        """The pid and the start time."""
        return ProcessKey(self.pid, self.started)


def read_process(pid: int) -> ProcessStat | None:
    """Read /proc/PID/stat of a process. Return None if the process no longer exists."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name of the program may contain blanks and parentheses: the fields are counted from behind it. proc(5)
    # counts from 1, and the name is field 2
    fields = dict(enumerate(text.rpartition(")")[2].split(), 3))
    user, system, children_user, children_system = (
        int(fields[number]) / TICKS_PER_S for number in range(14, 18)
    )
    return ProcessStat(
        pid,
        state=fields[3],
        parent=int(fields[4]),
        session=int(fields[6]),
        own=user + system,
        waited=children_user + children_system,
        core=int(fields[39]),
        started=int(fields[22]),
    )


def has_ended(pid: int) -> bool:
    """Whether a process has ended, whether or not its parent has waited for it."""
    process = read_process(pid)
    return process is None or process.state in ENDED_STATES


def processes() -> list[ProcessStat]:
    """Return all processes of the machine."""
    found = [read_process(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()]
    return [process for process in found if process is not None]  # None: it ended meanwhile


def process_tree(*roots: int) -> list[ProcessStat]:
    """Return processes and all their descendants."""
    everyone = processes()
    found = [process for process in everyone if process.pid in roots]
    for parent in found:  # the loop also reaches the children that it appends
        found += [process for process in everyone if process.parent == parent.pid]
    return found


def cpu_seconds(*roots: int) -> float:
    """Return the CPU seconds (user and system) that processes and their descendants have used so far.

    A process that has ended counts too: as a zombie, or in the total of the parent that has waited for it. The tree
    is read again until two readings have the same processes, at most MAX_READINGS_OF_TREE times.
    """
    for _ in range(MAX_READINGS_OF_TREE):
        family = process_tree(*roots)
        total = sum(own_cpu_seconds(process) + process.waited for process in family)
        if [process.pid for process in process_tree(*roots)] == [process.pid for process in family]:
            break  # otherwise a process may have been counted twice, or not at all
    return total


def forgets_children(pid: int) -> bool:
    """Whether the CPU time of a process's children is lost when they end; False if the process has ended.

    The process ignores SIGCHLD, as the daemon of Apache's mod_cgid does. It then waits for no child, and the kernel
    adds the CPU time of an ended child to nothing.
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    mask = next((line.split()[1] for line in text.splitlines() if line.startswith("SigIgn:")), "0")
    return bool(int(mask, 16) & IGNORES_CHILDREN)


def forgetful_processes(family: Iterable[ProcessStat]) -> list[ProcessStat]:
    """Return the processes among `family` that have children there, and whose children's CPU time is lost."""
    family = list(family)
    parents = {process.parent for process in family}
    return [process for process in family if process.pid in parents and forgets_children(process.pid)]


def own_cpu_seconds(process: ProcessStat) -> float:
    """Return the CPU seconds of one process from its CPU clock: the times in /proc come in steps of 10 ms."""
    try:
        # The clock id of clock_getcpuclockid(3) on Linux: the inverted pid, and three bits that mean CPU time
        return time.clock_gettime(~process.pid << 3 | 2)
    except OSError:
        return process.own


def busy_seconds_by_core() -> dict[int, float]:
    """Return, for each core, the seconds that it has been busy with programs since the machine started.

    Interrupts are left out: the load itself causes most of them, and they belong to no program.
    """
    found = {}
    for line in Path("/proc/stat").read_text(errors="replace").splitlines():
        name, *ticks = line.split()
        if name.startswith("cpu") and name[3:].isdecimal():
            # proc(5): user, nice, system, idle, iowait, irq, softirq, steal; behind them the time of guests, which
            # user and nice include
            user, nice, system, *_, steal = map(int, ticks[:8])
            found[int(name[3:])] = (user + nice + system + steal) / TICKS_PER_S
    return found


def busy_seconds(cores: Sequence[int]) -> float:
    """Return the seconds that cores have been busy with programs since the machine started, without interrupts."""
    by_core = busy_seconds_by_core()
    return sum(by_core.get(core, 0.0) for core in cores)


def busy_seconds_of_core(core: int) -> float:
    """Return the seconds that a core has been busy with programs since the machine started. Raises LabError."""
    by_core = busy_seconds_by_core()
    if core not in by_core:
        raise LabError(f"core {core} is not in /proc/stat")
    return by_core[core]


def share_of_core(busy_s: float, measured_s: float) -> float:
    """Return the share of a measurement in which a core was busy, from 0 to 1.

    busy_s: CPU seconds, from the start of the load generator to its end. measured_s: the seconds of the
    measurement, which is shorter: the generator also starts and ends. As a share of the longer time a full core
    would not seem full. The shares of a core, of the server and of the load generator all have this divisor, so
    that one may be subtracted from another.
    """
    return min(busy_s / measured_s, 1.0) if measured_s > 0 else 0.0


def two_cores() -> tuple[int, int]:
    """Return the core for the server and the core for the load: the same core if there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[-1]


def server_core() -> int:
    """Return the core for the server."""
    return two_cores()[0]


def load_core() -> int:
    """Return the core for the load."""
    return two_cores()[1]


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Pin this process, and each child that it starts in the block, to one core. None: do not pin."""
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
    """Run a command in a new session; yield its process. No process of the session is left when the block ends.

    output: receives standard error, and standard output if `stdout` is None. core: on which the command runs, None
    for any. cwd, env: its working directory and its environment, None for ours. Raises OSError if it does not
    start.
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
    tell_guards("+", started.pid)
    try:
        yield started
    finally:
        try:
            started.terminate()
            started.wait(TERM_TO_KILL_S)
        except subprocess.TimeoutExpired:
            started.kill()
        finally:
            started.poll()  # its exit status, before a signal to the session can change it
            end_session(started.pid)  # the id of a new session is the pid of its first process
            tell_guards("-", started.pid)  # before wait(), after which the number may be another program's
            started.wait()


def end_session(session: int) -> None:
    """Kill the processes of a session, and wait until none is left, at most about a second."""
    for _ in range(KILL_ROUNDS):  # a process may fork between the listing and the signal
        pids = [
            process.pid
            for process in processes()
            if process.session == session and process.state not in ENDED_STATES
        ]
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(KILL_PAUSE_S)


def end_descendants(spared: set[int]) -> None:
    """Kill our descendants and their sessions, except the processes `spared`.

    A block of running() stops its own process. An interrupt in the middle of a start leaves one without a block.
    """
    new = [process for process in process_tree(os.getpid()) if process.pid not in spared | {os.getpid()}]
    for session in {process.session for process in new} - {os.getsid(0)}:  # our own session lives on
        end_session(session)


def allow_descriptors(wanted: int) -> int:
    """Raise our limit of descriptors to `wanted`, or to the hard limit if that is lower; return the limit.

    Children inherit the limit. It is never lowered.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    new_limit = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft == resource.RLIM_INFINITY or soft >= new_limit:  # high enough; infinity is -1, and no count
        return wanted if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (new_limit, hard))
    return new_limit


def wait_for_end(started: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait at most `seconds` for a child to end; return whether it has ended.

    The child stays a zombie, so that its CPU time can still be read: wait() would remove it.
    """
    descriptor = os.pidfd_open(started.pid)
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def bounded_file(size: int = OUTPUT_BYTES) -> IO[bytes]:
    """Return an unnamed file in memory that never has more than `size` bytes: write(2) beyond them gets EPERM.

    For the output of a load generator, which may print a line for each failed request. size: a multiple of the size
    of a page; by default, what output_text() reads. The file has zero bytes where nothing is written. A seal
    forbids that it grows (memfd_create(2), F_SEAL_GROW in fcntl(2)).
    """
    descriptor = os.memfd_create("output", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    return open(descriptor, "r+b")


def output_text(output: IO[bytes], size: int = OUTPUT_BYTES) -> str:
    """Return the first 64 KB of a child's output, without moving the position at which it writes.

    size: another number of bytes. The zero bytes at the end of a bounded_file() are left out. If there are more
    bytes, the last line may be a part of one, and is left out.
    """
    data = os.pread(output.fileno(), size, 0).rstrip(b"\0")
    if len(data) == size:
        data = data[: data.rfind(b"\n") + 1] or data
    return data.decode(errors="replace")


def last_line(text: str) -> str:
    """Return the last line that is not empty, the one that names the error; "it said nothing" if there is none."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")


def why_no_figures(output: IO[bytes], error_output: IO[bytes]) -> str:
    """Return why a child printed no figures that can be read, in one line.

    output: a bounded_file() of FIGURES_BYTES, which may be full. error_output: the child's standard error.
    """
    if os.pread(output.fileno(), 1, FIGURES_BYTES - 1) not in (b"", b"\0"):
        return f"the figures have more than {FIGURES_BYTES:,} bytes"
    return last_line(output_text(error_output))


def find_tool(name: str) -> str | None:
    """Return the path of a program, None if it is not installed.

    /usr/sbin is searched too: on Debian it is not on the PATH of users.
    """
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/sbin")


def missing_programs_text(names: Iterable[str]) -> str:
    """Return one line that names the missing programs and their packages, "" if none is missing."""
    lacking = [name for name in names if not find_tool(name)]
    packages = " ".join(DEBIAN_PACKAGES.get(name, name) for name in lacking)
    return f"{' and '.join(lacking)} missing: apt install {packages}" if lacking else ""


def path_of_tool(name: str) -> str:
    """Return the path of a program. Raises LabError if it is not installed."""
    if found := find_tool(name):
        return found
    raise LabError(missing_programs_text([name]))
