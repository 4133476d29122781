"""How a process becomes an engine: its descriptors, its limits, its user, and the loss of its privileges.

This file imports no module of ewe: a preloaded parent loads it under the engine's interpreter, which may lack ewe.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

# <sys/prctl.h>
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

CONTROL_DESCRIPTOR = 3  # an engine's descriptor of its control socket; 0 and 1 are its data socket, 2 the log
CANNOT_START = 127  # exit status of an engine that could not be started; its standard error has the reason
END_OF_DESCRIPTORS = 1 << 20  # above all numbers of descriptors: the kernel's default for fs.nr_open

CLONE_NEWNS = 0x00020000  # <linux/sched.h>
# keyctl(2), for which the C library has no function: its number on 64-bit machines, and its first argument
KEYCTL_NUMBERS = {
    "x86_64": 250, "aarch64": 219, "loongarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280,
}  # fmt: skip
JOIN_SESSION_KEYRING = 1
libc = ctypes.CDLL(None, use_errno=True)
prctl = libc.prctl


class EngineLimits(NamedTuple):
    """The resources that one engine may use; 0: no limit.

    cpu: seconds, for all requests together. memory: bytes of address space. processes: of the user, in all engines
    together. files: open descriptors. file_size: bytes of each file that the engine writes.
    """

    cpu: int = 0
    memory: int = 0
    processes: int = 0
    files: int = 0
    file_size: int = 0


class Account(NamedTuple):
    """A user for whom engines are started."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def become_subreaper() -> None:
    """Adopt orphans among the descendants of this process: they become its children (prctl(2))."""
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Make the kernel send this process a signal when its parent ends; exit now if the parent has ended already."""
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
    """Start a command as the leader of a new session; return its pid. Raises OSError if no process can be made.

    descriptors: {number in the new process: number in this one}. become: called in the new process before the
    command replaces it. adopts: the new process adopts its orphaned descendants; otherwise the caller's process
    does. A command that cannot be run ends with status CANNOT_START and a line on its standard error.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        prepare_process(descriptors)
        become()
        if adopts:
            become_subreaper()
        end_with_parent(parent)
        os.execvpe(command[0], list(command), environment)
    except BaseException as reason:
        text = getattr(reason, "strerror", None) or reason
        os.write(2, f"{command[0]} cannot be started: {text}\n".encode())
    finally:
        os._exit(CANNOT_START)


def prepare_process(descriptors: Mapping[int, int]) -> None:
    """Lead a new session, with these descriptors and no others, and with the default signal actions.

    descriptors: {new number: present number}. The new numbers must be 0, 1, 2 ... without a gap: a descriptor in a
    gap would stay open.

    The scheduling policy is SCHED_BATCH: the process gets as much CPU time, but does not preempt the process that
    wakes it. The main process can then hand out all pending requests before engines run, which halves the number of
    context switches.
    """
    os.setsid()
    with suppress(OSError):  # the system may forbid this to an unprivileged user
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    last = max(descriptors)
    # Copy all first, above the new numbers: a number may be that of another one's source
    copies = {number: duplicate_above(source, last + 1) for number, source in descriptors.items()}
    for number, copy in copies.items():
        os.dup2(copy, number)
    os.closerange(last + 1, END_OF_DESCRIPTORS)
    for number in signal.valid_signals():
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)


def duplicate_above(descriptor: int, least: int) -> int:
    """Return a copy of a descriptor whose number is at least `least`."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least)


def become(account: Account, limits: EngineLimits, cgroup: str = "", namespace: str = "") -> None:
    """Set the limits, then become the user, and drop all privileges for good. Raises OSError.

    This process still has the memory of root's process, with the key of `tls-key`. The user's other processes
    cannot read it: the kernel gives /proc/PID to root until execve(2) has replaced the memory (PR_SET_DUMPABLE).

    cgroup: the file `cgroup.procs` of the cgroup to enter; "": none. namespace: the file of the mount namespace to
    enter; "": none.
    """
    if cgroup:
        with open(cgroup, "w", encoding="utf-8") as file:
            file.write("0")  # this process
    if namespace:
        enter_namespace(namespace)
    set_limits(limits)
    if os.geteuid() == 0:
        leave_session_keyring()
        os.setgroups(account.groups)
        os.setresgid(account.gid, account.gid, account.gid)
        os.setresuid(account.uid, account.uid, account.uid)
    # Real, effective and saved uid
    if os.getresuid() != (account.uid,) * 3 or (account.uid and 0 in os.getresuid()):
        raise PermissionError(None, f"could not become {account.name}")
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    try:
        os.chdir(account.home)
    except OSError:
        os.chdir("/")


def leave_session_keyring() -> None:
    """Join a new, empty session keyring (keyrings(7)). Raises OSError.

    root's session keyring may have keys, and each process that has the keyring may read them, also as another user.
    A system without keyrings has none to leave, nor has a container that forbids the call. The server has the same
    function (ewe.server.privileges), because this file imports no module of ewe.
    """
    number = KEYCTL_NUMBERS.get(os.uname().machine) if sys.maxsize > 1 << 32 else None
    if number is None or libc.syscall(ctypes.c_long(number), ctypes.c_long(JOIN_SESSION_KEYRING), None) >= 0:
        return
    error = ctypes.get_errno()
    if error not in (errno.ENOSYS, errno.EPERM):
        # EDQUOT: root has too many keys
        raise OSError(error, f"{os.strerror(error)}: session keyring, see sysctl kernel.keys")


def enter_namespace(namespace: str) -> None:
    """Enter a mount namespace: setns(2). Raises OSError."""
    file = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        raise_if_failed(libc.setns(file, CLONE_NEWNS), namespace)
    finally:
        os.close(file)


def raise_if_failed(result: int, name: str) -> None:
    """Raise OSError if a C function has failed: its result is then not 0. name: of the file, or of the function."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def set_limits(limits: EngineLimits) -> None:
    """Set the resource limits: setrlimit(2). A limit never rises above the hard limit that holds already."""
    amounts = {
        resource.RLIMIT_CPU: limits.cpu,
        resource.RLIMIT_AS: limits.memory,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_NOFILE: limits.files,
        resource.RLIMIT_FSIZE: limits.file_size,
    }
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash writes no core file
    for limited_resource, amount in amounts.items():
        if amount:  # 0: no limit
            _soft, hard = resource.getrlimit(limited_resource)
            amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
            resource.setrlimit(limited_resource, (amount, amount))
    if limits.file_size:
        # The script's write fails with EFBIG. The default action would end the engine
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def clean_environment(account: Account) -> dict[str, str]:
    """Return the environment that an engine starts with. Each request brings the script's own environment."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",  # equals ewe.config.defaults.SEARCH_PATH; no import of ewe here
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "LANG": "C.UTF-8",
        # As `python3` has it for a CGI script, whose environment names no locale (PEP 540): a file that the script
        # opens is UTF-8, also after the script has set another locale
        "PYTHONUTF8": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
