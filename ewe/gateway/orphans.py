"""Orphans: programs that outlive their worker because the worker was killed.

A worker ends its programs itself. A worker that is killed (SIGKILL, out of memory) cannot do that: its programs
become orphans. The kernel gives orphans to the nearest ancestor process that has asked for them:

    supervisor (or the parent of the fork model): PR_SET_CHILD_SUBREAPER
      └── worker, killed                              adopt() asks for orphans
            └── program ─▶ child of the supervisor    kill_orphans() kills it, reap() reads its exit status

A program that called setsid(2) has left its session on purpose (a daemon), and stays.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Container, Iterator
from contextlib import suppress

PR_SET_CHILD_SUBREAPER = 36  # <sys/prctl.h>


def adopt_orphans() -> None:
    """Ask the kernel to make orphans below this process its children, if this server starts programs at all.

    On a system without this call, orphans become children of the first process (init).
    """
    # A site with a feature that starts programs has imported this module when it was built.
    if "ewe.gateway.programs" not in sys.modules:
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def kill_orphans(own: Collection[int]) -> None:
    """Kill the adopted children of this process, each with its process group. own: the children it has started."""
    for pid in children():
        try:
            group = os.getpgid(pid)
            # A program in another session is a daemon, and stays. This process must not kill its own group.
            if pid not in own and os.getsid(pid) == os.getsid(0) and group != os.getpgrp():
                os.killpg(group, signal.SIGKILL)
        except OSError:
            pass  # the process has just ended


def reap(own: Container[int]) -> Iterator[tuple[int, int]]:
    """Read the status of every child that has ended; yield process id and wait status of those in `own`.

    Adopted children that kill_orphans() has killed are reaped without a report. A child that makes this process its
    tracer (PTRACE_TRACEME) and stops would wait for this process without a limit: it is killed.
    """
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return  # there are no children
        if pid == 0:
            return  # none has ended
        if os.WIFSTOPPED(status):
            with suppress(PermissionError):  # the child runs as another account now
                os.kill(pid, signal.SIGKILL)
        elif pid in own:
            yield pid, status


def children() -> list[int]:
    """Return the children of this process; none if /proc does not list them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []
