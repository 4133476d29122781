"""Exits: a descriptor that can be read once a program has exited. A poller waits for it as for a pipe.

    Linux 5.3   pidfd_open(2)                 the kernel has such a descriptor
    elsewhere   a pipe, and one more thread   the thread waits for the program, and then closes the pipe

An exited process keeps its process id until its parent reads its exit status. Until then a signal cannot reach a
wrong process. The thread therefore only watches for the exit, by waitid(2) with WNOWAIT. Python offers
waitid() on macOS from 3.13 on. In older versions the thread must read the status itself: from the exit until
status() is called, another process group could get the number. The kernel assigns numbers in turn, so all others
are used first.

Possible failure: the system gives a signal of the process to the waiting thread. Python handles it in the main
thread, which may sleep in poll(2) and would not wake up. The thread therefore blocks all signals.

Read next: programs.py.
"""

from __future__ import annotations

import errno
import os
import signal
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable

from ewe.child_processes import exit_status


class PidfdExit:
    """The exit of a child process, on Linux. descriptor: can be read once the process has exited."""

    __slots__ = ("descriptor", "pid")

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self.descriptor = descriptor

    def status(self) -> int:
        """Wait for the process, and return its exit status; -N: signal N ended it."""
        return exit_status(self.pid)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)


class ThreadExit:
    """The exit of a child process; a thread waits for it. descriptor: can be read once the process has exited."""

    __slots__ = ("descriptor", "ended", "found", "pid", "writer")

    def __init__(self, pid: int) -> None:
        """Raises OSError if no descriptor is left, RuntimeError if no thread is."""
        self.pid = pid
        self.found: int | None = None  # the exit status, if the thread has read it
        self.ended = allocate_lock()  # held until the thread ends
        self.ended.acquire()
        self.descriptor, self.writer = os.pipe()
        try:
            start_thread(self.wait)
        except RuntimeError:
            os.close(self.writer)
            os.close(self.descriptor)
            raise

    def wait(self) -> None:
        """Wait for the exit, in the thread."""
        if hasattr(os, "waitid"):
            try:
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:
                pass  # status() was first
        else:
            self.found = exit_status(self.pid)
        os.close(self.writer)
        self.ended.release()

    def status(self) -> int:
        """Wait for the process, and return its exit status; -N: signal N ended it."""
        if hasattr(os, "waitid"):
            return exit_status(self.pid)
        with self.ended:  # the other thread holds this lock until it has the exit status
            return self.found or 0

    def close(self) -> None:
        """Close the descriptor; the thread closes the other end of its pipe."""
        os.close(self.descriptor)


def start_thread(function: Callable[[], object]) -> None:
    """Start a thread that takes no signal. Raises RuntimeError if the system starts none."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        start_new_thread(function, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def has_exited(descriptor: int, seconds: float) -> bool:
    """Wait for an exit, `seconds` at most; return whether it has come. descriptor: that of the exit."""
    from select import POLLIN, poll

    watched = poll()
    watched.register(descriptor, POLLIN)
    return bool(watched.poll(seconds * 1000))


def watched_exit(pid: int) -> PidfdExit | ThreadExit:
    """Return the exit of a child process. Raises OSError if no descriptor is left, RuntimeError if no thread is."""
    if hasattr(os, "pidfd_open"):
        try:
            return PidfdExit(pid, os.pidfd_open(pid))
        except OSError as reason:
            # An older kernel, or a container that forbids the call (seccomp)
            if reason.errno not in (errno.ENOSYS, errno.EPERM):
                raise
    return ThreadExit(pid)
