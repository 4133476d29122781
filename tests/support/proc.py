"""What /proc tells about processes, for tests: proc(5)."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

MAX_STAT = 4096  # bytes that one read of /proc/PID/stat gives; the line is shorter


class Process(NamedTuple):
    """One process. state: a letter; Z is a zombie, which has ended and waits for its parent to learn of it."""

    pid: int
    state: str
    parent: int
    group: int
    session: int


def look(pid: int) -> Process | None:
    """Return the facts about a process, None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            line = file.read(MAX_STAT)
    except OSError:
        return None
    # The name may hold spaces and brackets
    state, parent, group, session, _ = line.rpartition(b")")[2].split(maxsplit=4)
    return Process(pid, state.decode(), int(parent), int(group), int(session))


def pids() -> list[int]:
    """Return the numbers of all processes that can be seen."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def processes() -> list[Process]:
    """Return all processes that can be seen."""
    found = [look(pid) for pid in pids()]
    return [each for each in found if each is not None]


def state(pid: int) -> str:
    """Return the state of a process, "" if it has ended."""
    found = look(pid)
    return "" if found is None else found.state


def alive(pids: set[int]) -> set[int]:
    """Return those of these processes that run; zombies do not."""
    return {pid for pid in pids if state(pid) not in ("", "Z")}


def wake_ups(pid: int, seconds: float) -> int:
    """Return how often the threads of a process have gone to sleep by themselves within these seconds."""

    def count() -> int:
        texts = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status"))
        return sum(map(int, re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", texts, re.MULTILINE)))

    before = count()
    time.sleep(seconds)
    return count() - before


def is_asleep(pid: int) -> bool:
    """Return whether all threads of a process wait; False if one ends meanwhile."""
    try:
        lines = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return False
    return all(line.rpartition(")")[2].split()[0] == "S" for line in lines)


def children_of(pid: int) -> list[int]:
    """Return the children of a process's main thread, the eldest first."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descendants(pid: int) -> set[int]:
    """Return all processes that descend from one, and itself."""
    found = {pid}
    parents = {each.pid: each.parent for each in processes()}
    while new := {child for child, parent in parents.items() if parent in found} - found:
        found |= new
    return found


def resident_kilobytes(pid: int) -> int:
    """Return how much memory a process has, what it shares included."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def peak_memory(pids: Iterable[int]) -> int:
    """Return the most bytes that one of these processes has ever held; those that have gone do not count."""
    peaks = [0]
    for pid in pids:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            peaks += [int(size) * 1024 for size in re.findall(r"VmHWM:\s+(\d+) kB", status)]
    return max(peaks)


def children(pid: int) -> dict[int, str]:
    """Return the children of a process: pid -> state letter (Z: zombie)."""
    return {each.pid: each.state for each in processes() if each.parent == pid}


def session_members(session: int) -> list[int]:
    """Return the processes of a session: all that a server started and that is not gone.

    Zombies are left out: once the server is gone they are its heirs' (the system's first process) to reap.
    """
    found = []
    for pid in pids():
        with contextlib.suppress(OSError):  # it has gone meanwhile
            if os.getsid(pid) == session and pid != session and not is_gone(pid):
                found.append(pid)
    return found


def group_members(group: int) -> list[int]:
    """Return the processes of a process group that run."""
    return [each.pid for each in processes() if each.group == group and each.state != "Z"]


def is_gone(pid: int) -> bool:
    """Has a process ended? A zombie has."""
    return state(pid) in ("", "Z")


def age(pid: int) -> float:
    """Return the seconds since a process began."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")


def command_line(pid: int) -> str:
    """Return the command line of a process, each argument ended by NUL; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def open_files(pid: int) -> dict[int, str]:
    """Return the open files of a process: descriptor -> "pipe:[123]", a path, ...; {} if it has ended."""
    found = {}
    try:
        for entry in os.listdir(f"/proc/{pid}/fd"):
            try:
                found[int(entry)] = os.readlink(f"/proc/{pid}/fd/{entry}")
            except FileNotFoundError:
                continue  # closed since
    except OSError:
        return {}
    return found
