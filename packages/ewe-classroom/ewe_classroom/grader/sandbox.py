"""The sandbox: a private network, limits and an account for the programs of students.

    the grader ── private_network() ─▶ a network namespace with a private loopback: port 8080 is free in each run
        │         adopt_orphans()   ─▶ what a server leaves behind becomes the grader's child, and is found
        └─ Popen(preexec_fn=Limits) ─▶ the server: limits (setrlimit), account, dies with the grader

The network namespace also keeps the server from reaching other machines. It needs root, or a kernel that lets users
make namespaces; where neither is given the grader uses a free port of the host.

Under root each grading has a separate account: a number that no account of the system and no process has, and the
group of this number. With one account for all, such as nobody, a submission could signal the server of another one
that is graded beside it, and a fork bomb would use up the processes of both, since the kernel counts them for each
account. Only this group may enter the directories of the grading (closed_to_others): they hold files that the
server must be able to write, such as its trace, and another submission could write a trace that fails it.

The sandbox guards a host against accidents: endless loops, fork bombs, files that grow without end. It is no guard
against malice: run submissions of strangers in a container or a virtual machine.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import pwd
import resource
import signal
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
# Numbers for accounts that exist only for a while. systemd takes its own (DynamicUser=) from this range, too: no
# account of a person, of a package or of a container lies in it.
OWN_UIDS = range(61184, 65520)
libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Account:
    """The account of a server under test. name: for messages. is_own: only this grading has processes of it."""

    name: str
    uid: int
    gid: int
    is_own: bool = False


def named_account(name: str) -> Account:
    """Return an account of the system. Raises KeyError."""
    entry = pwd.getpwnam(name)
    return Account(name, entry.pw_uid, entry.pw_gid)


def own_account() -> Account:
    """Return an account that no other process has, with a group that no other process has.

    Graders that start at the same moment have different process ids, and so begin at different numbers.
    """
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            taken.add(os.stat(f"/proc/{pid}").st_uid)
        except OSError:
            pass  # it has ended
    begin = os.getpid() % len(OWN_UIDS)
    numbers = (*OWN_UIDS[begin:], *OWN_UIDS[:begin])
    uid = next((number for number in numbers if number not in taken), OWN_UIDS[begin])
    return Account(f"number {uid}", uid, uid, is_own=True)


def closed_to_others(directory: Path, account: Account | None) -> None:
    """Let an account enter a directory, and no account of another group.

    None: the server runs as the grader's account. If that is root, the server may give up root itself, as nginx and
    Apache do, so any account may enter.
    """
    if account is None:
        directory.chmod(0o711)
    else:
        os.chown(directory, -1, account.gid)
        directory.chmod(0o710)


def end_account(account: Account | None) -> None:
    """Kill all processes of an account that one grading has for itself; leave those of any other account.

    Processes that fork and end at once stay ahead of a walk through /proc. kill(2) with -1 reaches all processes of
    the account that calls it but the caller, and none of them can fork meanwhile. The caller is a child that never
    executes a program, since the account may already have as many processes as it may start.
    """
    if account is None or not account.is_own:
        return
    child = os.fork()
    if child == 0:
        try:
            become(account)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def become(account: Account) -> None:
    """Give up root for an account, for good."""
    os.setgroups([])
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)


def private_network() -> bool:
    """Move this process into a new network namespace with a loopback interface; False if the system refuses.

    Call it before the process has threads: a namespace of users is refused to a process with several.
    """
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWNET if uid == 0 else CLONE_NEWUSER | CLONE_NEWNET) != 0:
        return False
    try:
        if uid != 0:
            # The account keeps its number inside, so that files belong to whom they belonged before.
            for file, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{uid} {uid} 1"),
                ("gid_map", f"{gid} {gid} 1"),
            ):
                with open(f"/proc/self/{file}", "w") as out:
                    out.write(text)
        with socket.socket() as sock:
            fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    except OSError:
        return False
    return True


def adopt_orphans() -> None:
    """Let processes whose parent has ended become children of this process, in place of the system's first one."""
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def gain_nothing() -> None:
    """Have the kernel ignore the setuid bit of what this process executes: sudo, or a file that was handed in."""
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def end_with_parent(number: int) -> None:
    """Have the kernel send this process a signal when its parent has ended."""
    libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


@dataclass(frozen=True)
class Limits:
    """What a server under test may use. Called in the child, between fork and exec."""

    account: Account | None = None  # None: the grader's
    cpu_s: int = 300
    file_bytes: int = 64 << 20
    descriptors: int = 1024
    processes: int = 2000  # threads count too; the kernel counts all of an account

    def __call__(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for kind, most in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_CPU, self.cpu_s),
            (resource.RLIMIT_FSIZE, self.file_bytes),
            (resource.RLIMIT_NOFILE, self.descriptors),
        ):
            lower(kind, most)
        if self.account is not None:
            lower(resource.RLIMIT_NPROC, self.processes)
            become(self.account)
        gain_nothing()
        end_with_parent(signal.SIGKILL)  # last: a change of the account clears it


def lower(kind: int, most: int) -> None:
    """Lower both limits of a kind; one that is lower already stays."""
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))
