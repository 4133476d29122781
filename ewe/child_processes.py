"""Child processes: send a signal to one, find out whether it has exited, wait for its exit with a limit.

A process id names one process until the exit status of that process has been read. Afterwards the kernel may give
the number to a new process, and a signal to the number would reach the new process:

    fork() ──▶ it runs ──▶ it has exited: a zombie keeps the number ──▶ status read (reaped): the number is free
                           has_exited() is True, and reads no status

A keeper of processes ends a child in three steps. It asks by a signal, waits with a limit, and then kills:

    send_signal(pid, SIGTERM) ──▶ wait_until(exited, seconds) ──┬─ True ───────────────────────▶ exit_status(pid)
                                                                └─ False ──▶ send_signal(SIGKILL) ──▶ ...

Possible failures. A child may make this process its tracer (PTRACE_TRACEME) and stop. It would stay stopped without
a limit, since this process does not trace: both functions that look at a child therefore kill it. Another part of
this process may call waitpid(-1) and read the status first: for both functions such a child has exited. A killed
process in a hung file system may never end. A caller that must go on gives wait_until() a limit after SIGKILL, too.

Read next: server/program_manager.py and xswitch/supervisor.py, two keepers; child_slots.py, the start of the next
child; gateway/exits.py, which waits for an exit by a descriptor.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

# The first and the longest pause between two looks at a condition. Most processes end within milliseconds.
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.01


def send_signal(pid: int, signum: int) -> None:
    """Send a signal to a process, if it still runs and this process may signal it."""
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        pass


def keep_exit_statuses() -> None:
    """Have the kernel keep the exit status of each child until this process reads it.

    The process that has started this one may ignore SIGCHLD, and execve(2) keeps that. The kernel would then reap
    the children: their exit statuses would be lost, and their numbers would be free at once.
    """
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def has_exited(pid: int) -> bool:
    """Return whether a child has exited. Its exit status stays unread, and its number stays its own.

    Python has waitid(2) on macOS from 3.13 on. Before, this function raises NotImplementedError.
    """
    if not hasattr(os, "waitid"):
        raise NotImplementedError("os.waitid()")
    try:
        about = os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    if about is not None and about.si_code == os.CLD_TRAPPED:  # it has made this process its tracer
        send_signal(pid, signal.SIGKILL)
    return about is not None and about.si_code in (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED)


def exit_status(pid: int) -> int:
    """Wait for a child, read its exit status, and return it; -N: signal N ended it; 0: another reader was first."""
    try:
        # Only a child that has made this process its tracer is reported as stopped. It would never exit by itself.
        while os.WIFSTOPPED(status := os.waitpid(pid, 0)[1]):
            send_signal(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return 0


def how_ended(code: int) -> str:
    """Describe an exit code of os.waitstatus_to_exitcode() for a log line."""
    return f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds, `seconds` at most; return whether it holds.

    SIGCHLD could end the wait sooner, but another part of the process may wait for that signal.
    """
    deadline = time.monotonic() + seconds
    pause_s = SHORTEST_PAUSE_S
    while not condition():
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            return False
        time.sleep(min(pause_s, remaining_s))
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
    return True
