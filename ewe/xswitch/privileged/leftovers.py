"""Kills leftover processes: those that an engine left behind, which belong to no running engine.

A process that outlives its parent becomes a child of this process (process.become_subreaper). Leftover processes
may fork as fast as they are killed: each kill makes room for the next fork. Before it kills them, suexecme disables
them:

    1. suexecme forbids each leftover process and all its descendants to fork (RLIMIT_NPROC 0, which only root can
       raise again), and stops them: they take no CPU time from suexecme.
    2. suexecme repeats this until a walk finds no new leftover process. Disabled processes still count against
       their user's process limit, so the others soon cannot fork.
    3. Then suexecme kills all of them at once.

One call of walk() visits the children of suexecme once. Between two walks suexecme carries out orders. After
suexecme has ended, the supervisor does the same with kill_all().
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from ewe.child_processes import send_signal

PAUSE_SECONDS = 0.005  # between two walks, so that killed processes can end


class LeftoverProcesses:
    """The leftover processes of some users, or of all.

    spared_pids: returns the children of this process that are not leftovers. Processes in their sessions are
    spared, too.
    """

    def __init__(self, spared_pids: Callable[[], Collection[int]]) -> None:
        self.spared_pids = spared_pids
        self.uids: set[int] | None = set()  # users whose leftover processes are sought; None: all users
        self.disabled_pids: set[int] = set()  # leftover processes that the last walk has found

    def is_seeking(self) -> bool:
        """Return whether leftover processes are being sought."""
        return self.uids is None or bool(self.uids)

    def seek(self, uids: set[int] | None) -> None:
        """Kill these users' leftover processes in the next walks; None: those of all users."""
        self.uids = None if uids is None or self.uids is None else self.uids | uids

    def walk(self) -> None:
        """Find the leftover processes: disable them, or kill all if none is new. Stop seeking if there are none."""
        leftover_pids = self.find_and_disable()
        if not leftover_pids:
            self.uids = set()
        elif leftover_pids <= self.disabled_pids:
            # The last walk has already disabled all of them. None can fork any more, so no new one follows the kill
            for pid in leftover_pids:
                send_signal(pid, signal.SIGKILL)
        self.disabled_pids = leftover_pids

    def find_and_disable(self) -> set[int]:
        """Return the pids of the leftover processes and their descendants; disable the new ones."""
        spared_pids = self.spared_pids()
        to_examine = [
            pid
            for pid in children_of(os.getpid())
            if pid not in spared_pids
            and session_of(pid) not in spared_pids
            and (self.uids is None or uid_of(pid) in self.uids)
        ]
        leftover_pids: set[int] = set()
        while to_examine:
            pid = to_examine.pop()
            if pid not in leftover_pids:
                leftover_pids.add(pid)
                if pid not in self.disabled_pids:
                    disable_process(pid)
                to_examine += children_of(pid)
        return leftover_pids

    def kill_all(self, reap: Callable[[], object], seconds: float) -> int:
        """Kill the leftover processes of all users within `seconds`; return how many still run then, usually 0.

        reap: reaps the children that have ended.
        """
        deadline = time.monotonic() + seconds
        self.seek(None)  # those of all users
        while self.is_seeking() and time.monotonic() < deadline:
            reap()
            self.walk()
            if self.is_seeking():
                time.sleep(PAUSE_SECONDS)
        return len(self.disabled_pids)  # a walk that finds no leftover process empties this set


def disable_process(pid: int) -> None:
    """Forbid a process to fork (RLIMIT_NPROC 0), and stop it (SIGSTOP)."""
    try:
        resource.prlimit(pid, resource.RLIMIT_NPROC, (0, 0))
    except OSError:
        pass  # the process has ended
    send_signal(pid, signal.SIGSTOP)


def children_of(pid: int) -> list[int]:
    """Return the children of all threads of a process; none if it has ended."""
    children: list[int] = []
    with suppress(OSError):  # the process has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            # suppress(): a thread that has ended has no file; the others' children count
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children += map(int, file.read().split())
    return children


def session_of(pid: int) -> int:
    """Return the session of a process, 0 if it has ended."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def uid_of(pid: int) -> int:
    """Return the uid of a process, -1 if it has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            # Uid:    1000    1000    1000    1000  (the first is the real uid)
            return next(int(line.split()[1]) for line in file if line.startswith(b"Uid:"))
    except (OSError, StopIteration):
        return -1
