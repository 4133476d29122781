"""How a process becomes an engine: its descriptors, its limits, its user, and the privileges that it gives up.

This file imports nothing of ewe: a warm parent loads it under the engine's interpreter, where there may be no ewe.
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

CONTROL = 3  # an engine's descriptor of its control socket; 0 and 1 are its data socket, 2 the log
CANNOT_START = 127  # exit status of an engine that could not be started; its standard error says why

prctl = ctypes.CDLL(None, use_errno=True).prctl


class Limits(NamedTuple):
    """What one engine may use; 0: no limit.

    cpu: seconds, in all requests together. memory: bytes of address space. processes: of the user, in all engines
    together. files: open descriptors.
    """

    cpu: int = 0
    memory: int = 0
    processes: int = 0
    files: int = 0


class Account(NamedTuple):
    """A user for whom engines are started."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def orphans_come_here() -> None:
    """Adopt processes whose parents end, among the descendants of this process: prctl(2)."""
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
    """Start a command as the leader of a new session; return its pid. Raises OSError if there is no room for it.

    descriptors: {its number: ours}. become: called in the new process before the command replaces it. adopts: the
    new process adopts what its descendants leave behind; otherwise we do. A command that cannot be run ends with
    status CANNOT_START and a line on its standard error.
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
    """Lead a new session, with these descriptors and no others, and signals as a program expects them.

    The scheduling policy is SCHED_BATCH: the process gets as much CPU time, but does not interrupt the process that
    wakes it. The main process can then hand out all requests at hand before engines run, which halves the number of
    context switches.
    """
    os.setsid()
    with suppress(OSError):  # an unprivileged user may not be allowed to
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
    """Return a copy of a descriptor whose number is at least `least`."""
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least)


def become(account: Account, limits: Limits) -> None:
    """Set the limits, then become the user, and give up everything that could lead back. Raises OSError."""
    set_limits(limits)
    if os.geteuid() == 0:
        os.setgroups(account.groups)
        os.setresgid(account.gid, account.gid, account.gid)
        os.setresuid(account.uid, account.uid, account.uid)
    if os.getresuid() != (account.uid,) * 3 or (account.uid and 0 in os.getresuid()):
        raise PermissionError(None, f"could not become {account.name}")
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # so that /proc/self belongs to the user again
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
    """Return the environment that an engine starts with. That of a script comes with each request."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",  # ewe.config.defaults.SEARCH_PATH, which cannot be imported here
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
