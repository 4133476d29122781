"""Information from /proc about a server's processes: their threads, their states, their descriptors (proc(5)).

The grader does not depend on a server's own statements. It observes the server from outside, as `ps` and `lsof` do.
It therefore needs Linux, but no library in the server and no other tool.

**Quiescence** replaces sleeps. A test of concurrency must often prove that an event does *not* happen: "the next
client gets no response while the pool's workers are busy". A sleep cannot prove that: on a busy machine the
response may come a moment later. But a process that sleeps in the kernel does nothing until an event wakes it:

    every thread of the server sleeps (state S)
    no thread has had a turn on a processor since the last look (/proc/PID/task/TID/schedstat)
    every byte that the client sent has arrived (SIOCOUTQ is 0)
      └─▶ the server waits for the client, and nothing more will happen: the server is quiescent

If other programs delay a server, one of its threads is in state R and waits for a processor. The server is then not
quiescent, and the grader goes on waiting. A verdict about a quiescent server therefore does not depend on the speed
of the machine.

Possible failures: the grader cannot read the states of two threads at the same moment, so one thread may wake
another in between. The second thread's count of turns has then changed at the next look. A server that polls (it
sleeps for short times) is never quiescent for long; scene.py describes how long the grader then waits.

Read next: scene.py, which waits until the server is quiescent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import re
import signal
import socket
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PR_SET_PDEATHSIG, PR_GET_PDEATHSIG = 1, 2
ENDED_STATES = "ZX"  # proc(5): a zombie, and a dead process
CPU_TIME_FIELDS = slice(11, 15)  # of stat_fields(): utime, stime, cutime and cstime, in ticks (proc(5))
STATES = {
    "01": "ESTABLISHED",
    "02": "SYN_SENT",
    "03": "SYN_RECV",
    "04": "FIN_WAIT1",
    "05": "FIN_WAIT2",
    "06": "TIME_WAIT",
    "07": "CLOSE",
    "08": "CLOSE_WAIT",
    "09": "LAST_ACK",
    "0A": "LISTEN",
    "0B": "CLOSING",
}
# Prefixes of kernel functions in which threads sleep (wchan), with the system calls that lead to them.
SYSTEM_CALLS = {
    "inet_csk_accept": "accept()",
    "wait_woken": "recv() or send()",
    "sk_wait_data": "recv()",
    "sk_stream_wait_memory": "send()",
    "futex": "a lock or a condition",
    "do_futex": "a lock or a condition",
    "ep_poll": "epoll_wait()",
    "do_epoll": "epoll_wait()",
    "do_select": "select()",
    "poll_schedule_timeout": "poll() or select()",
    "do_sys_poll": "poll()",
    "do_wait": "wait()",
    "hrtimer_nanosleep": "sleep()",
    "common_nsleep": "sleep()",
    "pipe_read": "a read of a pipe",
    "pipe_wait": "a read of a pipe",
    "anon_pipe_read": "a read of a pipe",
    "pipe_write": "a write to a pipe",
    "anon_pipe_write": "a write to a pipe",
    "wait_for_partner": "opening a FIFO",
}
CLOSED_BY_PEER = {"CLOSE_WAIT", "CLOSE", "LAST_ACK"}
libc = ctypes.CDLL(None)


class HiddenProcess(Exception):
    """A process keeps the grader from reading facts about it. The message is one line (hidden_text())."""


@dataclass(frozen=True)
class ThreadSample:
    """One thread at one moment. state: its letter in proc(5), such as R (runs) and S (sleeps).

    turns: how often the kernel gave it a processor. ran_s: how long it ran. queued_s: how long it waited to run.
    """

    pid: int
    tid: int
    state: str
    turns: int
    ran_s: float
    queued_s: float

    @property
    def asleep(self) -> bool:
        """Return whether the thread waits for an event. Zombies count as asleep: they never run again."""
        return self.state in "SZXT"


@dataclass(frozen=True)
class AddressSpace:
    """The anonymous parts of a process's address space: no file is mapped there, as in the stacks of threads.

    size_bytes: also of pages that the process has never touched. guard_count: the number of parts that it may
    neither read nor write; the C library puts such a guard below the stack of each thread. threads: of the process.
    """

    size_bytes: int = 0
    guard_count: int = 0
    threads: int = 0


@dataclass(frozen=True)
class TcpEntry:
    """One row of /proc/net/tcp. port: the socket's own port. peer_port: 0 if the socket listens.

    state: by its name in STATES. unread_bytes: in the receive queue. inode: identifies the socket (socket_inode()).
    """

    port: int
    peer_port: int
    state: str
    unread_bytes: int
    inode: str


def read(path: str) -> str:
    """Return the text of a file below /proc; "" if the process has ended."""
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def stat_fields(path: str) -> list[str]:
    """Return the fields of a stat file from the third on. The second, the name, may contain spaces and brackets.

    The name ends with the last bracket. Return no fields if the process has ended.
    """
    return read(path).rpartition(")")[2].split()


def thread_ids(pid: int) -> list[int]:
    """Return the thread ids of a process; none if it has ended."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process, zombies included."""
    return [int(word) for tid in thread_ids(pid) for word in read(f"/proc/{pid}/task/{tid}/children").split()]


def family(roots: Iterable[int]) -> list[int]:
    """Return these processes and all their descendants, parents before children."""
    found: list[int] = []
    waiting = list(roots)  # whose children have not been read yet
    while waiting:
        pid = waiting.pop(0)
        if pid not in found:  # a process is its own root, and a child of another root
            found.append(pid)
            waiting += children(pid)
    return found


def tasks(pids: Iterable[int]) -> dict[int, ThreadSample]:
    """Return all threads of these processes: thread id -> ThreadSample."""
    found = {}
    for pid in pids:
        for tid in thread_ids(pid):
            fields = stat_fields(f"/proc/{pid}/task/{tid}/stat")
            times = read(f"/proc/{pid}/task/{tid}/schedstat").split()
            if fields and len(times) == 3:  # otherwise the thread has ended
                ran_ns, queued_ns, turns = map(int, times)
                state_letter = fields[0]
                found[tid] = ThreadSample(pid, tid, state_letter, turns, ran_ns / 1e9, queued_ns / 1e9)
    return found


def waited_s() -> float | None:
    """Return the seconds for which this thread could have run and had no processor; None if the system hides it."""
    times = read("/proc/thread-self/schedstat").split()
    return int(times[1]) / 1e9 if len(times) == 3 else None


def state(pid: int) -> str:
    """Return the state of a process as a letter (Z: zombie); "" if there is no such process.

    It is that of a thread which goes on, if the first one has ended (living_thread()).
    """
    return first_state(living_thread(pid))


def first_state(tid: int) -> str:
    """Return the state of a thread, or of the first thread of a process, as a letter; "" if there is none."""
    return "".join(stat_fields(f"/proc/{tid}/stat")[:1])


def living_thread(pid: int) -> int:
    """Return the id of a process, or of one of its threads, if the first thread alone has ended (pthread_exit(3)).

    That one is a zombie without descriptors and memory until all threads have ended. /proc has a directory for the
    id of each thread, with the same files as for a process.
    """
    if first_state(pid) not in ("Z", "X"):
        return pid
    return next((tid for tid in thread_ids(pid) if first_state(tid) not in ("", "Z", "X")), pid)


def cpu_s(pid: int) -> float:
    """Return the processor time of a process, with the threads and the children that it has waited for."""
    return sum(map(int, stat_fields(f"/proc/{pid}/stat")[CPU_TIME_FIELDS])) / TICKS_PER_S


def name(pid: int) -> str:
    """Return the name of a process's program, for a message; "?" if it has ended."""
    return read(f"/proc/{pid}/comm").strip() or "?"


def runs(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    return state(pid) not in ("", "Z", "X")


def memory_bytes(pid: int) -> int:
    """Return the anonymous memory of a process (RssAnon of proc(5)); 0 if it has ended."""
    return sum_of_kb(r"^RssAnon:\s+(\d+) kB", read(f"/proc/{living_thread(pid)}/status"))


def memory_with_shared_bytes(pid: int) -> int:
    """Return the anonymous memory of a process, and the memory that it may share (RssAnon, RssShmem of proc(5))."""
    return sum_of_kb(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", read(f"/proc/{living_thread(pid)}/status"))


def memory_share_bytes(pid: int) -> int:
    """Return the proportional anonymous memory: a page that n processes share counts 1/n (Pss_Anon of proc(5)).

    This is slower than memory_bytes(): the kernel looks at each page.
    """
    return sum_of_kb(r"^Pss_Anon:\s+(\d+) kB", read_private(pid, "smaps_rollup"))


def memory_share_with_shared_bytes(pid: int) -> int:
    """Return the proportional memory of memory_with_shared_bytes() (Pss_Anon, Pss_Shmem)."""
    return sum_of_kb(r"^Pss_(?:Anon|Shmem):\s+(\d+) kB", read_private(pid, "smaps_rollup"))


def sum_of_kb(pattern: str, text: str) -> int:
    """Return the sum of the sizes in lines of a file below /proc, in bytes. pattern: of a line, with its KB."""
    return sum(int(size) * 1024 for size in re.findall(pattern, text, re.MULTILINE))


def address_space(pid: int) -> AddressSpace:
    """Return the address space of a process; an empty one if the process has ended, or hides it."""
    return replace(parse_maps(read_private(pid, "maps")), threads=len(tasks([pid])))


def parse_maps(text: str) -> AddressSpace:
    """Return the anonymous parts of an address space. text: of /proc/PID/maps (proc_pid_maps(5))."""
    size_bytes = guard_count = 0
    for line in text.splitlines():
        # 7f736c1e0000-7f736c1e1000 ---p 00000000 00:00 0, and then the name of a file, or another name in brackets.
        addresses, rights, _offset, _device, _inode, *name = line.split(maxsplit=5)
        # An anonymous part has no name, or one from the program itself: [anon: glibc: pthread stack: 7].
        if not name or name[0].startswith("[anon"):
            start, end = (int(address, 16) for address in addresses.split("-"))
            size_bytes += end - start
            guard_count += rights.startswith("---")
    return AddressSpace(size_bytes, guard_count)


def bytes_read(pid: int) -> int:
    """Return the bytes that a process has read with read() and sendfile(); recv() does not count (proc(5), rchar).

    Raises HiddenProcess.
    """
    match = re.search(r"^rchar: (\d+)", read_private(pid, "io"), re.MULTILINE)
    if match is None and runs(pid):
        raise HiddenProcess(hidden_text(pid, "its count of read bytes"))
    return int(match[1]) if match else 0


def read_private(pid: int, name: str) -> str:
    """Return the text of a private file of a process (look_inside()); "" if the process has ended, or hides it."""

    def text() -> str:
        with open(f"/proc/{living_thread(pid)}/{name}", errors="replace") as file:
            return file.read()

    try:
        return look_inside(pid, text)
    except OSError:
        return ""


def look_inside(pid: int, look: Callable[[], T]) -> T:
    """Return look(), which opens files in /proc/PID that are private to the account of the process.

    Call it with the grader's own rights, and then with those of that account. Raises PermissionError if neither
    suffice, and any other exception of look().
    """
    try:
        return look()
    except PermissionError:
        with owners_rights(pid):
            return look()


@contextlib.contextmanager
def owners_rights(pid: int) -> Iterator[None]:
    """Let this thread read files with the rights of a process's account, and not those of root (setfsuid(2)).

    The kernel shows the descriptors and the memory map of a process to its own account, and to a process with
    CAP_SYS_PTRACE (ptrace(2), "access mode checking"). Docker takes this capability from root: without the
    account's rights, the grader in a container would see no descriptor of a server that runs as another account.
    look_inside() tries both.
    """
    owner = re.search(r"^Uid:\t(\d+).*\nGid:\t(\d+)", read(f"/proc/{pid}/status"), re.MULTILINE)
    if os.geteuid() != 0 or owner is None:
        yield
        return
    with parents_signal_kept():
        try:
            # The group first: without the user id of root, the kernel would refuse it.
            libc.setfsgid(int(owner[2]))
            libc.setfsuid(int(owner[1]))
            yield
        finally:
            libc.setfsuid(0)
            libc.setfsgid(os.getegid())


def end_with_parent(number: int, parent: int | None = None) -> None:
    """Make the kernel send this process the signal `number` when its parent ends; 0: none.

    parent: the process id of the parent. If it has ended already, the kernel sends nothing, and this process sends
    the signal to itself. None: it is not known.
    """
    libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)


@contextlib.contextmanager
def parents_signal_kept() -> Iterator[None]:
    """Keep the signal of end_with_parent() over a block that changes the rights of this process.

    The kernel clears it at each such change (prctl(2)).
    """
    number = ctypes.c_int()
    libc.prctl(PR_GET_PDEATHSIG, ctypes.byref(number), 0, 0, 0)
    try:
        yield
    finally:
        end_with_parent(number.value)


def blocked_in(pid: int, tid: int) -> str:
    """Return the system call or the lock in which a thread sleeps (SYSTEM_CALLS), else the kernel's function.

    Return "" if wchan is "0" or cannot be read: the thread runs, has ended, or the kernel hides the function.
    """
    function = read(f"/proc/{pid}/task/{tid}/wchan").strip()
    for prefix, call in SYSTEM_CALLS.items():
        if function.startswith(prefix):
            return call
    return "" if function == "0" else function


def tcp_sockets() -> dict[str, TcpEntry]:
    """Return the TCP sockets of this network namespace by their inodes.

    A connection that no process has accepted yet, or that all processes have closed, has the inode 0. Each such row
    gets a unique key.
    """
    found = {}
    for file in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for row, line in enumerate(read(file).splitlines()[1:]):
            # The numbers are hexadecimal, and a colon separates a port from its address, or the two queues.
            _, own_address, peer_address, state_code, queues, _, _, _, _, inode, *_ = line.split()
            port, peer_port = (int(address.rpartition(":")[2], 16) for address in (own_address, peer_address))
            _, unread = queues.split(":")  # bytes to be sent, bytes to be read
            tcp_state = STATES.get(state_code, state_code)
            entry = TcpEntry(port, peer_port, tcp_state, unread_bytes=int(unread, 16), inode=inode)
            found[inode if inode != "0" else f"{file} {row}"] = entry
    return found


def descriptors(pid: int) -> dict[int, str]:
    """Return the target of each descriptor of a process: a path, `socket:[INODE]`, `pipe:[INODE]`, …

    Raises HiddenProcess.
    """
    try:
        return look_inside(pid, lambda: visible_descriptors(pid))
    except PermissionError:
        if not runs(pid):
            return {}
        raise HiddenProcess(hidden_text(pid, "its descriptors")) from None


def hidden_text(pid: int, what: str) -> str:
    """Return the message of HiddenProcess. what: the facts that the grader cannot read."""
    return (
        f"process {pid} ({name(pid)}) keeps the grader from reading {what}: it is not dumpable"
        " (prctl(2), PR_SET_DUMPABLE), or its program file cannot be read"
    )


def visible_descriptors(pid: int) -> dict[int, str]:
    """Return the descriptors of a process. Raises PermissionError."""
    found = {}
    try:
        directory = f"/proc/{living_thread(pid)}/fd"
        for entry in os.listdir(directory):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found[int(entry)] = os.readlink(f"{directory}/{entry}")
    except (FileNotFoundError, ProcessLookupError):  # the process has ended
        return {}
    return found


def removed_files(pid: int) -> dict[tuple[int, int], os.stat_result]:
    """Return the removed files that a process has open: (device, inode) -> status; {} if the process hides them."""

    def look() -> dict[tuple[int, int], os.stat_result]:
        found = {}
        directory = f"/proc/{living_thread(pid)}/fd"
        for entry in os.listdir(directory):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                about = os.stat(f"{directory}/{entry}")
                if stat.S_ISREG(about.st_mode) and not about.st_nlink:
                    found[about.st_dev, about.st_ino] = about
        return found

    try:
        return look_inside(pid, look)
    except OSError:
        return {}


def socket_inode(target: str) -> str:
    """Return the inode of a descriptor's target if it is a socket (`socket:[INODE]`), else ""."""
    return target.removeprefix("socket:[").removesuffix("]") if target.startswith("socket:[") else ""


def socket_inodes(pid: int) -> list[str]:
    """Return the inode of each socket that a process has open, once for each descriptor. Raises HiddenProcess."""
    return [inode for target in descriptors(pid).values() if (inode := socket_inode(target))]


def target_text(target: str, entries: Mapping[str, TcpEntry]) -> str:
    """Describe a descriptor's target for a message: the client and state of a connection, or the path of a file.

    entries: the result of tcp_sockets().
    """
    inode = socket_inode(target)
    if not inode:
        return target
    connection = entries.get(inode)
    if connection is None:
        return "a socket without a connection"
    if connection.state == "LISTEN":
        return f"the listening socket of port {connection.port}"
    closed = ", which its client has closed" if connection.state in CLOSED_BY_PEER else ""
    return f"the connection of client port {connection.peer_port} in state {connection.state}{closed}"


def listener_inode(port: int) -> str:
    """Return the inode of the socket that listens on a port; "" if none does."""
    for entry in tcp_sockets().values():
        if entry.port == port and entry.state == "LISTEN":
            return entry.inode
    return ""


def holders(inode: str, pids: Iterable[int]) -> Iterator[int]:
    """Yield the processes that have the socket with this inode open. Raises HiddenProcess."""
    yield from (pid for pid in pids if inode in socket_inodes(pid))


def free_port() -> int:
    """Return a free port of the loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process. Do nothing if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill(pid: int) -> None:
    """Kill a process. Do nothing if it has ended."""
    send_signal(pid, signal.SIGKILL)


@contextlib.contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """Stop processes (SIGSTOP) while the block runs. The kernel goes on accepting connections for them."""
    try:
        for pid in pids:
            send_signal(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            send_signal(pid, signal.SIGCONT)


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number: Python has no name for most real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def children_of_grader() -> list[int]:
    """Return the grader's children, including adopted orphans of the server (sandbox.adopt_orphans())."""
    return children(os.getpid())


def user_name(uid: int) -> str:
    """Return the name of an account, or its number if it has no name, as in many containers."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def permits(path: Path, uid: int, gid: int, need: int) -> bool:
    """Return whether a file's permissions give an account the rights `need` (4: read, 1: enter or execute)."""
    try:
        found = path.stat()
    except OSError:
        return False
    # A mode has three bits each for the owner, the group and all others: rwxrwxrwx.
    shift = 6 if uid == found.st_uid else 3 if gid == found.st_gid else 0
    return found.st_mode >> shift & need == need


def may_enter(path: Path, uid: int, gid: int) -> bool:
    return permits(path, uid, gid, 0o1)


def is_readable(path: Path, uid: int, gid: int) -> bool:
    """Return whether an account may read a file, by the permissions of the file and of all its directories."""
    return permits(path, uid, gid, 0o4) and all(may_enter(part, uid, gid) for part in path.parents)
