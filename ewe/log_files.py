"""Log files: open and write them, set their owner, and count lost lines.

Each line is one write(2) to a descriptor opened with O_APPEND, so lines of several processes never mix.

**The owner of a log.** If root starts ewe with `user`, ewe opens its logs as root and then gives up root. A log
that ewe has created must belong to the account. Otherwise neither a reload (HUP) nor a rotation (USR1) could open
it again. ewe therefore changes the owner of each new file to Owner.account. A file that already exists keeps its
owner. ewe does not follow a symbolic link that another account may have made (path_to_open()).

**Lost lines.** A log that cannot be written never stops the server: if the disk is full, or the reader of a pipe is
slow, the line is lost. The administrator must know within seconds. The first loss is therefore reported at once, in
the error log or, if that cannot be written either, on standard error. Later reports follow at most every REPORT_S:

    a line is lost ──▶ "cannot be written: No space left on device"   Losses.last is set
         │
         ▼  every REPORT_S while lines are lost
    "812 lines could not be written: No space left on device"
         │
         ▼  a line is written, REPORT_S after the last report at the earliest
    "96 lines could not be written; it can be written again"          Losses.last is 0.0 again

All processes of the server share the counters (Losses), which are made before fork(2). As long as no line is lost,
this costs nothing: write() only checks `careful`, which it would have to check for a pipe anyway.

**Partial lines.** A full disk may store only the beginning of a line. ewe then removes this part. If that is
impossible, a line feed ends the part before the next line.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from mmap import PAGESIZE, mmap

# Linux writes up to this many bytes to a pipe in one piece or not at all: pipe(7)
PIPE_BUF = 4096
REPORT_S = 5.0  # seconds between two reports of lost lines
EVENTFD_FLAGS: int = getattr(os, "EFD_CLOEXEC", 0) | getattr(os, "EFD_NONBLOCK", 0)
STANDARD_OUTPUT, STANDARD_ERROR = 1, 2  # descriptors
MAX_LINKS = 40  # symbolic links on the way to a directory, as in Linux
SLOW, FULL = "its reader does not keep up", "the disk is full"
# Severities, RFC 5424 section 6.2.1, by the levels of the error log; a line of the access log is an "info"
SEVERITIES = {"error": 3, "warning": 4, "info": 6, "debug": 7}
FACILITIES = {
    "user": 1, "mail": 2, "daemon": 3, "auth": 4, "lpr": 6, "news": 7, "uucp": 8, "cron": 9, "authpriv": 10,
    "ftp": 11,
    **{f"local{number}": 16 + number for number in range(8)},
}  # fmt: skip
SYSLOG = re.compile(r"syslog:([a-z0-9]*)(?:@(/.+))?")
DEV_LOG = "/dev/log"
APPEND_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK


class Owner:
    """The owner of new logs, as (uid, gid); None leaves them to the process that creates them."""

    account: tuple[int, int] | None = None


class Counter:
    """A counter that several processes can share. Each call is atomic, also in a signal handler."""

    def __init__(self) -> None:
        self.local_count = 0
        self.descriptor = -1  # of the eventfd; -1: the count is local_count, of this process alone

    def share(self) -> None:
        """Share the counter with processes that are forked later, by an eventfd(2) if the system has it."""
        if not hasattr(os, "eventfd"):
            return
        try:
            self.descriptor = os.eventfd(self.local_count, EVENTFD_FLAGS)
        except OSError:  # no descriptor is left
            return
        # Not at exit: a process that has closed all descriptors may use the number for another file.
        weakref.finalize(self, os.close, self.descriptor).atexit = False

    def add(self, count: int) -> None:
        """Add to the counter."""
        if self.descriptor < 0:
            self.local_count += count
        elif count:
            os.write(self.descriptor, count.to_bytes(8, sys.byteorder))

    def take(self) -> int:
        """Return the count, and reset it to 0."""
        if self.descriptor < 0:
            count, self.local_count = self.local_count, 0
            return count
        try:
            # A read of an eventfd resets it to 0, and fails if it is 0.
            return int.from_bytes(os.read(self.descriptor, 8), sys.byteorder)
        except BlockingIOError:
            return 0

    def value(self) -> int:
        """Return the count."""
        count = self.take()
        self.add(count)
        return count


class Losses:
    """The lost lines of one log. unreported: the number since the last report. total: the number since the start.

    last: one number, in memory that can be shared: the time.monotonic() of the last report of a loss; 0.0 while no
    line is lost.
    """

    def __init__(self) -> None:
        self.unreported = Counter()
        self.total = Counter()
        self.last = memoryview(bytearray(8)).cast("d")
        self.shared = False

    def share(self) -> None:
        """Share the counters with processes that are forked later."""
        if not self.shared:
            self.shared = True
            self.unreported.share()
            self.total.share()
            last = memoryview(mmap(-1, PAGESIZE)).cast("d")
            last[0] = self.last[0]
            self.last = last

    def is_open(self) -> bool:
        """Return whether lines were lost, and no recovery has been reported since."""
        return self.last[0] > 0.0


class LogFile:
    """A file to which lines are appended. path: its name, "-" for a standard stream, "off" for none.

    careful: a write needs more checks, since the file is not a regular file, or since lines were lost. may_block: a
    write may wait for the reader of a pipe. has_partial_line: the last line has no line feed. reader_adds_time: the
    reader of the lines adds the time to them.
    """

    tell: Callable[[str], None]  # writes a message about a log: ewe.logger sets it
    reader_adds_time = False

    def __init__(self, path: str, standard: int, open_files: Mapping[str, int] | None = None) -> None:
        """Open path, and create the file if it does not exist. Raises OSError.

        standard: the descriptor for the path "-": STANDARD_OUTPUT or STANDARD_ERROR. open_files: path -> descriptor
        of the open logs. A descriptor is reused if this process may not open its file any more.
        """
        self.path = path
        self.standard = standard
        self.losses = Losses()
        self.descriptor = -1
        self.may_block = self.careful = self.has_partial_line = False
        self.open((open_files or {}).get(path, -1))

    def open(self, old: int = -1) -> None:
        """Open the file, or open it again after it was renamed (USR1). old: its open descriptor, or -1.

        Raises OSError; the old file then stays in use.
        """
        if self.path == "off":
            return
        if self.path == "-":
            self.descriptor = self.standard
            self.reader_adds_time = self.standard == STANDARD_ERROR and in_journal()
        else:
            fresh = append_to(self.path, self.descriptor if self.descriptor >= 0 else old)
            if self.descriptor >= 0:
                # The number of the descriptor stays the same, since another thread may be writing to it.
                os.dup2(fresh, self.descriptor, inheritable=False)
                os.close(fresh)
            else:
                self.descriptor = fresh
        try:
            self.may_block = self.reader_adds_time or not stat.S_ISREG(os.fstat(self.descriptor).st_mode)
        except OSError:
            self.may_block = True
        self.careful = self.may_block or self.losses.is_open()

    def take_over(self, old: LogFile) -> None:
        """Take over the counters of an old log, and its descriptor, to which a thread may be writing.

        A Syslog has no descriptor for lines. A thread that writes to an old one keeps it open.
        """
        if old.path != self.path:
            old.report()
        self.losses = old.losses
        self.careful = self.may_block or self.losses.is_open()
        if old.descriptor > 2 and self.descriptor > 2 and Syslog not in (type(old), type(self)):
            os.dup2(self.descriptor, old.descriptor, inheritable=False)
            os.close(self.descriptor)
            self.descriptor = old.descriptor

    def close(self) -> None:
        """Close a log that will not be used. The standard streams, 0 to 2, belong to the process and stay open."""
        if self.descriptor > 2:
            os.close(self.descriptor)

    def write(self, line: str, level: str = "info") -> None:
        """Write one line, which ends in a line feed. Never raises, and never waits for a slow reader of a pipe.

        A regular file without losses needs one system call. Other logs, and those with losses, are `careful`.
        """
        data = line.encode("utf-8", "backslashreplace")
        if not self.careful:
            try:
                written = os.write(self.descriptor, data)
            except OSError as error:
                self.lose(error.strerror or str(error))
                return
            if written < len(data):
                self.take_back(written)
                self.lose(FULL)
            elif self.losses.last[0]:  # of another process, which may have no requests any more
                self.recover()
        elif reason := self.checked_write(data, level):
            self.lose(reason)
        elif self.losses.is_open():
            self.recover()
        else:  # another process has reported that the log can be written again
            self.careful = self.may_block

    def try_to_write(self, line: str, level: str) -> bool:
        """Write one line, and return whether it was written. A failure is not counted as a lost line."""
        return not self.checked_write(line.encode("utf-8", "backslashreplace"), level)

    def checked_write(self, data: bytes, level: str) -> str:
        """Write one line; return the reason why it could not be written, or ""."""
        if self.reader_adds_time:  # the journal: a line begins with its severity, sd-daemon(3)
            data = b"<%d>%b" % (SEVERITIES[level], data)
        if self.has_partial_line:
            data = b"\n" + data
        try:
            if self.may_block:
                data = data if len(data) <= PIPE_BUF else data[: PIPE_BUF - 1] + b"\n"
                if not has_room(self.descriptor):
                    return SLOW
            written = os.write(self.descriptor, data)
        except BlockingIOError:
            return SLOW
        except OSError as error:
            return error.strerror or str(error)
        if written < len(data):
            self.take_back(written)
            return FULL
        self.has_partial_line = False
        return ""

    def take_back(self, count: int) -> None:
        """Remove the `count` bytes of a line that could only be written in part."""
        if not count:
            return
        try:
            # No other process can have written after these bytes, since the disk is full.
            os.ftruncate(self.descriptor, os.fstat(self.descriptor).st_size - count)
        except OSError:  # not a regular file, or a file that can only grow (chattr +a)
            self.has_partial_line = True

    def lose(self, reason: str) -> None:
        """Count a lost line, and report it unless the last report was less than REPORT_S ago."""
        self.careful = True
        losses = self.losses
        losses.unreported.add(1)
        losses.total.add(1)
        now = time.monotonic()
        if not losses.is_open():
            losses.last[0] = now
            self.tell(f"log {self.path} cannot be written: {reason}; its lines are lost until it can")
        elif now - losses.last[0] >= REPORT_S:
            losses.last[0] = now
            self.report(f": {reason}")

    def recover(self) -> None:
        """Report that the log can be written again, at the earliest REPORT_S after the last report.

        Writes may succeed and fail alternately, and each change must not cause a report.
        """
        if time.monotonic() - self.losses.last[0] >= REPORT_S:
            self.losses.last[0] = 0.0
            self.careful = self.may_block
            self.report("; it can be written again")

    def report(self, more: str = "") -> None:
        """Report the number of lines lost since the last report, if it is not 0."""
        if count := self.losses.unreported.take():
            lines = "1 line" if count == 1 else f"{count} lines"
            self.tell(f"log {self.path}: {lines} could not be written{more}")


class Syslog(LogFile):
    """A log that is sent to the system's log daemon, one datagram for each line. path: as in parse_syslog().

    A message has the form of syslog(3) and RFC 3164: <PRIORITY>TAG[PID]: TEXT. The daemon adds the time. The C
    library's syslog() is not used, because it waits if the daemon does not read.

    Each datagram is sent to the daemon's address. If the daemon is restarted, it gets the next datagrams.
    """

    reader_adds_time = True

    def open(self, old: int = -1) -> None:
        """Open a socket, and check that a daemon listens; do nothing if the socket is open. Raises OSError."""
        if self.descriptor >= 0:
            return
        facility, self.address = parse_syslog(self.path)
        self.priority = 8 * facility
        self.may_block = self.careful = True
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
                probe.connect(self.address)
        except OSError as error:
            self.socket.close()
            reason = f"no log daemon at {self.address}: {error.strerror or error}"
            raise OSError(error.errno, reason, self.path) from None
        self.descriptor = self.socket.fileno()

    def close(self) -> None:
        """Close a log that will not be used."""
        self.socket.close()

    def checked_write(self, data: bytes, level: str) -> str:
        """Send one line; return the reason why it could not be sent, or ""."""
        head = b"<%d>ewe[%d]: " % (self.priority + SEVERITIES[level], os.getpid())
        try:
            self.socket.sendto(head + data.rstrip(b"\n")[:PIPE_BUF], self.address)
        except BlockingIOError:
            return SLOW
        except OSError as error:
            return error.strerror or str(error)
        return ""


def open_log(path: str, standard: int, open_files: Mapping[str, int] | None = None) -> LogFile:
    """Open the log that a path names, and return it. standard, open_files: as in LogFile. Raises OSError."""
    return Syslog(path, standard) if path.startswith("syslog:") else LogFile(path, standard, open_files)


def names_file(path: str) -> bool:
    """Return whether the path of a log names a file."""
    return path not in ("-", "off") and not path.startswith("syslog:")


def parse_syslog(path: str) -> tuple[int, str]:
    """Return the number of the facility and the socket's path of syslog:[FACILITY][@PATH]. Raises ValueError.

    >>> parse_syslog("syslog:local3")
    (19, '/dev/log')
    """
    match = SYSLOG.fullmatch(path)
    if match is None or (match[1] or "daemon") not in FACILITIES:
        raise ValueError(path)
    return FACILITIES[match[1] or "daemon"], match[2] or DEV_LOG


def in_journal() -> bool:
    """Return whether standard error is connected to systemd's journal: systemd.exec(5), JOURNAL_STREAM."""
    try:
        status = os.fstat(STANDARD_ERROR)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def append_to(path: str, old: int) -> int:
    """Return a new descriptor that appends to a log. A new file gets the owner Owner.account. Raises OSError.

    old: an open descriptor of this log, or -1. If this process may not open the file, and the path still names the
    same file, a duplicate of `old` is returned.
    """
    try:
        try:
            made = os.open(path, APPEND_FLAGS | os.O_EXCL, 0o640)
        except FileExistsError:
            target, flag = path_to_open(path)
            return os.open(target, APPEND_FLAGS | flag, 0o640)
    except PermissionError:
        if old < 0 or not is_same(path, old):
            raise
        return os.dup(old)
    give_to_account(made, path)
    return made


def path_to_open(path: str, links: int = 0) -> tuple[str, int]:
    """Return the path to open for a log, and O_NOFOLLOW if its last part must not be a symbolic link, else 0.

    If another account can change the log's directory, it could put a symbolic link there, and so make root append
    lines to any file, or create any file. Root therefore follows only a link that root has made. links: the number
    of links followed so far. Raises OSError: above all ELOOP, for a link that root may not follow.
    """
    directory = os.path.dirname(os.path.abspath(path))
    if os.geteuid() != 0 or not (
        first_changeable_directory(directory) or stat.S_IMODE(os.stat(directory).st_mode) & 0o022
    ):
        return path, 0
    status = os.lstat(path) if os.path.lexists(path) else None
    if status is None or not stat.S_ISLNK(status.st_mode):
        return path, os.O_NOFOLLOW
    target = os.readlink(path)
    # If another account has replaced the link, `target` may be the target of that account's link.
    now = os.lstat(path)
    if status.st_uid != 0 or (now.st_ino, now.st_ctime_ns) != (status.st_ino, status.st_ctime_ns):
        raise OSError(
            errno.ELOOP, "it is a symbolic link that root has not made, where others may make links", path
        )
    if links == MAX_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return path_to_open(os.path.join(directory, target), links + 1)


def is_same(path: str, descriptor: int) -> bool:
    """Return whether a path still names the file of a descriptor. Raises OSError.

    Return True if this process may not look into the path's directory: a log then keeps its descriptor, which still
    works.
    """
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
    except PermissionError:
        return True


def give_to_account(descriptor: int, path: str) -> None:
    """Give a log that root has just created to Owner.account, unless other accounts can change its path.

    descriptor: of the log. Another account could use a symbolic link to make root create the file in a directory
    such as /etc. The file then stays root's.
    """
    if Owner.account is None or os.geteuid() != 0:
        return
    try:
        if not first_changeable_directory(os.path.join(os.getcwd(), os.path.dirname(path)), Owner.account[0]):
            os.fchown(descriptor, *Owner.account)
    except OSError:
        pass  # a file system without owners; ewe.server.access warns about a log that the account may not write


def first_changeable_directory(directory: str, account: int = 0) -> str:
    """Return the first directory of an absolute path that other users can change; "" if there is none.

    Other users are all except root and `account`, a uid; the account may own only the last directory. Another user
    could replace a directory by a symbolic link, and so make root create files below /etc. In a directory with the
    sticky bit (/tmp) other users cannot replace root's entries. Raises OSError.
    """
    at, rest, links = "/", directory.split("/"), 0
    while True:
        rest = [name for name in rest if name not in ("", ".")]
        status = os.stat(at)
        has_right_owner = status.st_uid == 0 or (not rest and status.st_uid == account)
        others_may_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not has_right_owner or (others_may_write and not status.st_mode & stat.S_ISVTX):
            return at
        if not rest:
            return ""
        name = rest.pop(0)
        if name == "..":
            at = os.path.dirname(at)
        elif os.path.islink(entry := os.path.join(at, name)):
            target = os.readlink(entry)
            rest = target.split("/") + rest
            at = "/" if target.startswith("/") else at
            if (links := links + 1) > MAX_LINKS:
                return at
        else:
            at = entry


def has_room(descriptor: int) -> bool:
    """Return whether a line can be written to a pipe or terminal without waiting."""
    from select import POLLOUT, poll

    poller = poll()
    poller.register(descriptor, POLLOUT)
    return bool(poller.poll(0))
