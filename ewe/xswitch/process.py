"""A process becomes an engine: its descriptors, limits, user, and what it must never regain.

Stands alone (no import of ewe), since a warm engine parent loads it under an interpreter of its own.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

# <sys/prctl.h>
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

CONTROL = 3  # the descriptor of an engine's control socket; 0 and 1 are its data socket, 2 the log
CANNOT_START = 127  # exit status of an engine that could not be started; its standard error says why

prctl = ctypes.CDLL(None, use_errno=True).prctl


class Limits(NamedTuple):
    """What one engine may use; 0: as much as there is.

    cpu: seconds in its life. memory: bytes of address space. processes: of its user, all engines together.
    files: open descriptors.
    """

    cpu: int = 0
    memory: int = 0
    processes: int = 0
    files: int = 0


class Account(NamedTuple):
    """A user whose engines we start."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def orphans_come_here() -> None:
    """Have what the descendants of this process leave behind become its children: prctl(2)."""
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def dies_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends; end now if that has happened."""
    prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    descriptors: Mapping[int, int],
    become: Callable[[], None],
    adopts: bool = True,
) -> int:
    """Start a command in a session of its own, with these descriptors {its: ours}; return its pid.

    become: called in the new process before the command replaces it. adopts: what it leaves behind becomes its
    own child again, not ours. Raises OSError where there is no room
    for a process; a command that cannot be run ends with CANNOT_START and a line on its standard error.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        arrange(descriptors)
        become()
        if adopts:
            orphans_come_here()
        dies_with(parent)
        os.execvpe(command[0], list(command), environment)
    except BaseException as reason:
        text = getattr(reason, "strerror", None) or reason
        os.write(2, f"{command[0]} cannot be started: {text}\n".encode())
    finally:
        os._exit(CANNOT_START)


def arrange(descriptors: Mapping[int, int]) -> None:
    """Lead a session; have these descriptors and no other; signals as a program expects them.

    Scheduled as work in batches, which gets as much of the processor, but does not interrupt whoever wakes it:
    the main module hands out what it has at hand, then engines run, with half the switches between them.
    """
    os.setsid()
    with suppress(OSError):  # whoever has started us may not be allowed to
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    last = max(descriptors)
    copies = {its: duplicate(ours, last + 1) for its, ours in descriptors.items()}
    for its, copy in copies.items():
        os.dup2(copy, its)
    os.closerange(last + 1, 1 << 20)
    for number in signal.valid_signals():
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)


def duplicate(descriptor: int, least: int) -> int:
    """Return a copy of a descriptor whose number is at least so much."""
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least)


def become(account: Account, limits: Limits) -> None:
    """Take limits, then groups and user, and give up what could lead back. Raises OSError."""
    set_limits(limits)
    if os.geteuid() == 0:
        os.setgroups(account.groups)
        os.setresgid(account.gid, account.gid, account.gid)
        os.setresuid(account.uid, account.uid, account.uid)
    if os.getresuid() != (account.uid,) * 3 or (account.uid and 0 in os.getresuid()):
        raise PermissionError(None, f"could not become {account.name}")
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # /proc/self is the user's own again
    try:
        os.chdir(account.home)
    except OSError:
        os.chdir("/")


def set_limits(limits: Limits) -> None:
    """Set the resource limits: setrlimit(2)."""
    wanted = {
        resource.RLIMIT_CPU: limits.cpu,
        resource.RLIMIT_AS: limits.memory,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_NOFILE: limits.files,
    }
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for which, amount in wanted.items():
        if amount:
            hard = resource.getrlimit(which)[1]
            amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
            resource.setrlimit(which, (amount, amount))


def clean_environment(account: Account) -> dict[str, str]:
    """Return the environment that an engine starts with; a script's comes with each request."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
