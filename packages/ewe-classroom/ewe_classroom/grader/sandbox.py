"""The sandbox: a private network, limits and an account for the programs of students.

    the grader ── private_network() ─▶ a network namespace with a private loopback: port 8080 is free in each run
        │         adopt_orphans()   ─▶ leftover processes of a server become children of the grader
        └─ Popen(preexec_fn=SandboxLimits) ─▶ the server: limits (setrlimit), account, dies with the grader

The network namespace also keeps the server from reaching other machines. It needs root, or a kernel that allows
user namespaces. Without both, the grader uses a free port of the host.

Under root each grading has a separate account: a user id that no account of the system and no process has, and a
group with the same number. If all gradings shared an account such as nobody, one submission could send signals to
the server of another, and a fork bomb would use up the processes of both, because the kernel counts processes for
each account. Only the group of the grading may enter its directories (close_to_others). They contain files that
the server must be able to write, such as its trace; without this protection another submission could falsify them.

A separate account also owns all files that its programs leave in directories that every account may write. The
grader removes these files, so that no submission finds the files of an earlier one (remove_files_of).
The solutions of the labs lie in the grader's package, so a submission could read them: at work, or by an #include
in its build. The server and its build therefore get a mount namespace in which these directories are empty
(`hidden`), and so is the folder with the submissions of a class. Like the network namespace, this needs root or
user namespaces. If the server has the grader's account, it can find a way around this.

The sandbox protects a host from accidents: endless loops, fork bombs, growing files. It does not protect from
malice: run submissions of strangers in a container or a virtual machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import pwd
import resource
import signal
import socket
import stat
import struct
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ewe.scratch import remove
from ewe.server.privileges import leave_session_keyring
from ewe_classroom.grader import processes

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x40000000
MS_RDONLY, MS_BIND, MS_REC, MS_PRIVATE = 0x1, 0x1000, 0x4000, 0x40000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
# User ids for temporary accounts. systemd also takes the ids of DynamicUser= from this range, because no account of
# a person, of a package or of a container lies in it.
OWN_UIDS = range(61184, 65520)
KILLER_UIDS = range(60578, 61184)  # the user ids before them, which systemd leaves unused (end_account)
ACCOUNT_LOCKS = "/run/ewe-accounts.lock"  # only root may write there
claimed_uids: set[int] = set()  # by this process (claim)
# Every account may write there. A system may lack some of them.
SHARED_DIRECTORIES = ("/tmp", "/var/tmp", "/dev/shm", "/run/lock", "/var/lib/php/sessions")
BLOCK_BYTES = 512  # the unit of st_blocks (stat(2))
# What a file counts for beside its blocks. A disk has room for a limited number of files, also of empty ones, and a
# tmpfs such as /dev/shm keeps each of them in memory.
INODE_BYTES = 4096
MAX_FILE_BYTES = 64 << 20  # of one file that a server writes
MAX_SHARED_MEMORY_BYTES = 1 << 30  # of System V, all segments of a submission together
SHARED_MEMORY_PAGES = "/proc/sys/kernel/shmall"  # their limit in pages, of the IPC namespace of the writer
MAX_KILL_ROUNDS = 100  # the most rounds of killing the processes of a program
MAX_FORK_ROUNDS = 3  # if new processes still appear after so many rounds, kill all of the account at once
libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class SubjectAccount:
    """The account of a server under test. name: for messages. is_own: only this grading uses the account."""

    name: str
    uid: int
    gid: int
    is_own: bool = False


def named_account(name: str) -> SubjectAccount:
    """Return an account of the system. Raises KeyError if there is no such account."""
    entry = pwd.getpwnam(name)
    return SubjectAccount(name, entry.pw_uid, entry.pw_gid)


def own_account() -> SubjectAccount:
    """Return an account with a user id and a group that no process uses. claim() keeps it for this process.

    The search begins at a number that depends on the process id, so that graders that start at the same moment take
    different numbers.
    """
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            taken.add(os.stat(f"/proc/{pid}").st_uid)
        except OSError:
            pass  # the process has ended
    first_index = os.getpid() % len(OWN_UIDS)
    candidates = (*OWN_UIDS[first_index:], *OWN_UIDS[:first_index])
    free = (number for number in candidates if number not in taken and claim(number))
    # Without a free id, two gradings share one: better than no grading.
    uid = next(free, OWN_UIDS[first_index])
    return SubjectAccount(f"number {uid}", uid, uid, is_own=True)


def claim(uid: int) -> bool:
    """Keep a user id for this process until it ends; return False if it, or another grader, has claimed the id.

    A server of the other grader need not run yet, so a look at the processes is not enough. The byte `uid` of
    ACCOUNT_LOCKS stands for the id. The kernel releases the lock of the byte when the process ends, also if it is
    killed. Where the file cannot be opened or locked, as in a container without /run, graders rely on their process
    ids alone.
    """
    if uid in claimed_uids:
        return False
    try:
        descriptor = account_locks()
    except OSError:
        pass
    else:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, uid)
        except OSError as reason:
            # fcntl(2): one of the two if another process has the lock.
            if reason.errno in (errno.EAGAIN, errno.EACCES):
                return False
    claimed_uids.add(uid)
    return True


@functools.cache
def account_locks() -> int:
    """Return the descriptor of ACCOUNT_LOCKS. It stays open: its close would release all locks of this process."""
    return os.open(ACCOUNT_LOCKS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def close_to_others(directory: Path, account: SubjectAccount | None) -> None:
    """Let only the group of an account enter a directory.

    If `account` is None, any account may enter: the server runs as the grader's account and, if this is root, may
    drop root itself, as nginx and Apache do.
    """
    # Execute permission without read permission: an account that may enter cannot list the directory.
    if account is None:
        directory.chmod(0o711)
    else:
        os.chown(directory, -1, account.gid)  # -1: the owner stays
        directory.chmod(0o710)


def end_account(account: SubjectAccount | None) -> None:
    """Kill all processes of an account if only this grading uses it; otherwise do nothing.

    A process that forks and ends immediately can escape a loop over /proc. kill(2) with -1 signals all processes of
    the caller's effective account except the caller, and none of them can fork meanwhile. The caller is a forked
    child that executes no program, because the account may already have reached its process limit.

    The processes of the account may send signals, too: a SIGSTOP to the child would keep the grader waiting for it.
    They may do so only if the child's real or saved user id is their own, so it has one of KILLER_UIDS.
    """
    if account is None or not account.is_own:
        return
    killer = KILLER_UIDS[account.uid % len(KILLER_UIDS)]
    for _ in range(MAX_FORK_ROUNDS):
        child = os.fork()
        if child == 0:
            try:
                os.setresuid(killer, account.uid, killer)
                os.kill(-1, signal.SIGKILL)
            finally:
                os._exit(0)
        # Several accounts share a killer's user id, so the child of another grader may have killed this one.
        if not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
            return


def end_all(
    process: subprocess.Popen[bytes] | None, others: Collection[int], account: SubjectAccount | None
) -> None:
    """Kill and reap a program and all processes that it has started. The grader has adopted the orphans among them.

    process: the program's first process; None if that was reaped already. others: the grader's children that are
    not the program's. account: of the program. A process may fork before it is killed, so the search is repeated
    until it finds none.
    """
    seen: set[int] = set()
    for round_number in range(MAX_KILL_ROUNDS):
        found = [pid for pid in processes.children_of_grader() if pid not in others]
        if round_number >= MAX_FORK_ROUNDS and not seen.issuperset(found):
            end_account(account)  # the processes fork as fast as this loop kills them
        family = processes.family(found)
        seen.update(family)
        for pid in family:
            processes.kill(pid)
        for pid in found:
            if process is None or pid != process.pid:  # Popen itself has to reap this one, below
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        if process is not None:
            process.wait()
        if not found:
            return


def remove_files_of(account: SubjectAccount | None) -> None:
    """Remove the files of an account from the shared directories if only this grading uses it.

    Call it when no process of the account is left: a process could put a link in the place of a directory.
    """
    if account is None or not account.is_own:
        return
    for each in files_of(account):
        if each.is_dir(follow_symlinks=False):
            # shutil.rmtree() of Python 3.11 calls itself for each level, and so fails below a thousand directories.
            remove(each.path)
        else:
            Path(each.path).unlink(missing_ok=True)


def files_of(account: SubjectAccount) -> list[os.DirEntry[str]]:
    """Return the files and directories of an account that are directly in SHARED_DIRECTORIES.

    Also return those in a directory there that every account may write, such as /tmp/.X11-unix.
    """
    found = []
    waiting = list(SHARED_DIRECTORIES)
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:  # this system has no such directory, or it was removed meanwhile
            continue
        for each in entries:
            try:
                about = each.stat(follow_symlinks=False)
            except OSError:  # removed meanwhile
                continue
            if about.st_uid == account.uid:
                found.append(each)
            elif stat.S_ISDIR(about.st_mode) and about.st_mode & stat.S_IWOTH:
                waiting.append(each.path)
    return found


def disk_bytes_of(account: SubjectAccount, directory: Path, pids: Iterable[int]) -> int:
    """Return how many bytes of the disk an account uses in `directory` and in SHARED_DIRECTORIES.

    pids: processes whose removed files count, too. The disk keeps such a file until no process has it open.
    """
    removed = {key: about for pid in pids for key, about in processes.removed_files(pid).items()}
    used_bytes = sum(file_bytes(about) for about in removed.values() if about.st_uid == account.uid)
    waiting = [str(directory), *(each.path for each in files_of(account))]
    # A stack, because os.walk() of Python 3.11 calls itself for each level. A program can make thousands of levels.
    while waiting:
        path = waiting.pop()
        # The file was removed meanwhile, or its path is too long for the system.
        with contextlib.suppress(OSError):
            about = os.lstat(path)
            used_bytes += file_bytes(about) if about.st_uid == account.uid else 0
            if stat.S_ISDIR(about.st_mode):
                with os.scandir(path) as entries:
                    waiting += [each.path for each in entries]
    return used_bytes


def file_bytes(about: os.stat_result) -> int:
    """Return how many bytes of the disk a file takes. An empty file takes INODE_BYTES."""
    return about.st_blocks * BLOCK_BYTES + INODE_BYTES


def become(account: SubjectAccount) -> None:
    """Drop root permanently: take the user id and the group of an account, and leave the keys of root.

    The user id comes last: without root's, the process could not change its groups.
    """
    leave_session_keyring()
    os.setgroups([])
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)


def private_network() -> bool:
    """Move this process into a new network namespace with a loopback interface; return False if the system refuses.

    The system may refuse the second step of two: then the process would be in a network without a loopback
    interface. Ubuntu 24.04 refuses the map of user ids, and a container without CAP_NET_ADMIN the interface. Call
    it before the process starts threads: the kernel refuses a user namespace to a process with several threads.
    """
    with processes.parents_signal_kept():
        return may_have_private_network() and enter_private_network()


def may_have_private_network() -> bool:
    """Return whether the system lets this process enter a private network. This process does not change."""
    return succeeds_in_child(enter_private_network)


@contextlib.contextmanager
def network_of(pid: int) -> Iterator[None]:
    """Let this thread use the network namespace of a process while the block runs. Raises OSError."""
    with contextlib.ExitStack() as stack:
        descriptors = []
        for path in ("/proc/thread-self/ns/net", f"/proc/{pid}/ns/net"):
            opened = processes.look_inside(pid, partial(os.open, path, os.O_RDONLY | os.O_CLOEXEC))
            stack.callback(os.close, opened)
            descriptors.append(opened)
        own, other = descriptors
        with processes.parents_signal_kept():
            enter_network(other)
            try:
                yield
            finally:
                enter_network(own)


def enter_network(descriptor: int) -> None:
    """Move this thread into the network namespace of a descriptor (setns(2)). Raises OSError."""
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def enter_private_network() -> bool:
    """Do the steps of private_network(). After False, this process may have done one of them."""
    try:
        if not new_namespaces(CLONE_NEWNET):
            return False
        # The loopback interface of a new namespace is down. The argument is a struct ifreq: a name of 16 bytes, and
        # the flags (netdevice(7)).
        with socket.socket() as sock:
            fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    except OSError:
        return False
    return True


def new_namespaces(flags: int) -> bool:
    """Move this process into new namespaces; return False if the system refuses.

    An account without root needs a new user namespace, too. Raises OSError if it cannot be set up.
    """
    if libc.unshare(flags) == 0:
        return True
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0 or libc.unshare(CLONE_NEWUSER | flags) != 0:
        return False
    # Map the user id to itself, so that files keep their owners inside the namespace. Without "deny", the kernel
    # refuses the map of groups (user_namespaces(7)).
    for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{file}", "w") as out:
            out.write(text)
    return True


def hide(paths: Sequence[str]) -> bool:
    """Make directories and files empty for this process and its descendants; return False if the system refuses.

    Their shared memory of System V is private, too: a segment would outlive the processes, and the next submission
    could read it. It has a limit: the limits of processes do not count a segment that no process uses.
    """
    try:
        refused = not new_namespaces(CLONE_NEWNS | CLONE_NEWIPC)
    except OSError:
        return False
    # MS_PRIVATE: otherwise the mounts below would also reach the rest of the system.
    if refused or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        return False
    # An older kernel lets only root of the whole system write the limits of a namespace.
    with contextlib.suppress(OSError), open(SHARED_MEMORY_PAGES, "w") as out:
        out.write(str(MAX_SHARED_MEMORY_BYTES // os.sysconf("SC_PAGE_SIZE")))
    # A path that was removed meanwhile has nothing to hide.
    return all(cover(path) for path in outermost(paths) if os.path.lexists(path))


def outermost(paths: Sequence[str]) -> list[str]:
    """Return the paths that are not below another one of them.

    cover() makes a directory empty, so a path below it does not exist any more, and cannot be covered.
    """
    return [
        path
        for path in dict.fromkeys(paths)
        if not any(path != other and Path(path).is_relative_to(other) for other in paths)
    ]


def cover(path: str) -> bool:
    """Mount an empty directory, or an empty file, over a path; return False if the system refuses."""
    name = os.fsencode(path)
    if os.path.isdir(path):
        return bool(libc.mount(b"none", name, b"tmpfs", MS_RDONLY, b"size=4k,mode=000") == 0)
    return bool(libc.mount(b"/dev/null", name, None, MS_BIND, None) == 0)


def hideable(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the paths if the system lets this process hide all of them, else none."""
    return tuple(paths) if succeeds_in_child(lambda: hide(paths)) else ()


def succeeds_in_child(attempt: Callable[[], bool]) -> bool:
    """Return whether an attempt succeeds in a forked child. This process does not change."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if attempt() else 1
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, in place of process 1."""
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def set_no_new_privileges() -> None:
    """Make the kernel ignore setuid bits for this process and its children, for example that of sudo."""
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


@dataclass(frozen=True)
class SandboxLimits:
    """The resource limits of a server under test.

    An instance is a preexec_fn: Popen calls it between fork and exec.
    """

    account: SubjectAccount | None = None  # None: the grader's account
    cpu_s: int = 300
    file_bytes: int = MAX_FILE_BYTES
    data_bytes: int = 0  # memory that one process may write, with the stacks of its threads; 0: no limit
    descriptors: int = 1024
    processes: int = 2000  # the kernel counts all processes and threads of the account
    hidden: tuple[str, ...] = ()  # paths that are empty for the server; hideable() has returned them
    # More such paths, which hideable() did not try: parts of ewe, which the grader's own programs need
    also_hidden: tuple[str, ...] = ()
    own_network: bool = False  # a private network for this program alone; network_of() reaches it

    def __call__(self) -> None:
        """Set the limits and the account of this process, between fork and exec. What needs root comes first.

        Raises OSError, which Popen turns into a SubprocessError without a text.
        """
        grader = os.getppid()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a program inherits the blocked signals of the grader
        if self.own_network and not enter_private_network():
            raise OSError("the program gets no private network")
        # Before the limits: hide() may open files, the maps of user ids (new_namespaces()), and needs descriptors.
        if self.hidden and not hide((*self.hidden, *self.also_hidden)):
            # hideable() tried `hidden`, so this is rare: the memory is full. The solutions must stay unreadable.
            raise OSError("the paths that the program may not read cannot be hidden")
        for kind, maximum in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_CPU, self.cpu_s),
            (resource.RLIMIT_FSIZE, self.file_bytes),
            (resource.RLIMIT_NOFILE, self.descriptors),
        ):
            lower(kind, maximum)
        if self.data_bytes:
            lower(resource.RLIMIT_DATA, self.data_bytes)
        if self.account is not None:
            lower(resource.RLIMIT_NPROC, self.processes)
            become(self.account)
        set_no_new_privileges()
        # Last, because a change of the account clears this setting.
        processes.end_with_parent(signal.SIGKILL, grader)


def lower(kind: int, maximum: int) -> None:
    """Lower the soft and the hard limit of a resource. Never raise a limit."""
    _, hard = resource.getrlimit(kind)
    maximum = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
    resource.setrlimit(kind, (maximum, maximum))
