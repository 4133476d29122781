"""Kills strays: processes that an engine has left behind and that belong to no engine, however fast they fork.

A process that outlives its parent becomes a child of this process (process.orphans_come_here). Killing strays one
by one would never end if they fork: each kill makes room for the next fork. They are therefore banned first:

    1. Each stray and all its descendants are forbidden to fork (RLIMIT_NPROC 0, which only root can raise again)
       and stopped, so that they take no CPU time from this process.
    2. This is repeated until a walk finds no new stray. The banned ones still count against their user's limit on
       processes, so that the others soon cannot fork.
    3. Then all are killed at once.

One call of turn() is one walk. Between two walks suexecme carries out orders.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Collection

PAUSE_SECONDS = 0.005  # between two turns, so that killed processes can end


class Strays:
    """The strays of some users, or of all.

    spared: returns the children of this process that are no strays. Processes in their sessions are spared, too.
    """

    def __init__(self, spared: Callable[[], Collection[int]]) -> None:
        self.spared = spared
        self.uids: set[int] | None = set()  # users whose strays are sought; None: all users
        self.banned: set[int] = set()

    def wanted(self) -> bool:
        """Return whether there are strays to look for."""
        return self.uids is None or bool(self.uids)

    def seek(self, uids: set[int] | None) -> None:
        """Kill these users' strays in the next turns; None: those of all users."""
        self.uids = None if uids is None or self.uids is None else self.uids | uids

    def turn(self) -> None:
        """Walk once: ban new strays, or kill all if there are no new ones; stop seeking if there are none."""
        found = self.walk()
        if not found:
            self.uids = set()
        elif found <= self.banned:
            for pid in found:
                send(pid, signal.SIGKILL)
        self.banned = found

    def walk(self) -> set[int]:
        """Return the strays and their descendants, and ban the new ones."""
        spared = self.spared()
        rest = [
            pid
            for pid in children_of(os.getpid())
            if pid not in spared
            and session_of(pid) not in spared
            and (self.uids is None or uid_of(pid) in self.uids)
        ]
        found: set[int] = set()
        while rest:
            pid = rest.pop()
            if pid not in found:
                found.add(pid)
                if pid not in self.banned:
                    ban(pid)
                rest += children_of(pid)
        return found

    def end(self, reap: Callable[[], object], seconds: float) -> int:
        """Kill the strays of all users within so many seconds; return how many are left.

        reap: takes the exit status of the children that have ended.
        """
        until = time.monotonic() + seconds
        self.seek(None)
        while self.wanted() and time.monotonic() < until:
            reap()
            self.turn()
            if self.wanted():
                time.sleep(PAUSE_SECONDS)
        return len(self.banned)


def ban(pid: int) -> None:
    """Forbid a process to fork, and stop it."""
    try:
        resource.prlimit(pid, resource.RLIMIT_NPROC, (0, 0))
    except OSError:
        pass  # it has ended
    send(pid, signal.SIGSTOP)


def send(pid: int, number: int) -> None:
    """Send a signal to a process, if it still runs."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def children_of(pid: int) -> list[int]:
    """Return the children of a process, those of all its threads."""
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += [int(word) for word in file.read().split()]
    except OSError:
        pass  # it has gone
    return found


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
            return next(int(line.split()[1]) for line in file if line.startswith(b"Uid:"))
    except (OSError, StopIteration):
        return -1
