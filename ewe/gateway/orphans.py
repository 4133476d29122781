"""Programs whose worker was killed: adopted by the process above it, and ended.

A worker ends its programs itself, unless it is killed. Then the kernel gives them to the nearest process that
asked for orphans, prctl(2) PR_SET_CHILD_SUBREAPER: the supervisor, or the parent under the fork model. What
called setsid has left on purpose, and is let be.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Container, Iterator

PR_SET_CHILD_SUBREAPER = 36  # <sys/prctl.h>


def adopt() -> None:
    """Have orphans below this process become its children, if it can have any.

    Where the system knows no such thing they become the system's.
    """
    if "ewe.programs" not in sys.modules:
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def end(own: Collection[int]) -> None:
    """Kill the children of this process that are not its own, each with its process group."""
    for pid in children():
        try:
            group = os.getpgid(pid)
            if pid not in own and os.getsid(pid) == os.getsid(0) and group != os.getpgrp():
                os.killpg(group, signal.SIGKILL)
        except OSError:
            pass  # it has just ended


def reap(own: Container[int]) -> Iterator[tuple[int, int]]:
    """Reap every child that has ended; yield process id and status, as waitpid(2) has it, of one's own.

    It goes on where no child of one's own is left: what end() has killed is reaped too.
    """
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return  # there is none
        if pid == 0:
            return  # none has ended
        if pid in own:
            yield pid, status


def children() -> list[int]:
    """Return the children of this process, as far as the system tells."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []
