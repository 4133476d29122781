"""The files of the logs: how they are opened and written, who owns them, and the count of lost lines.

Each line is one write(2) to a descriptor opened with O_APPEND, so lines of several processes never mix.

**Whose file it is.** Started as root with `user`, ewe opens its logs as root and then gives up root. A log that it
has created must belong to the account: otherwise neither a reload (HUP) nor a rotation (USR1) could open it again.
Each new file is therefore given to OWNER. A file that already exists keeps its owner. A symbolic link that another
account may have made is not followed (followed()).

**Lost lines.** A log that cannot be written never stops the server: if the disk is full, or the reader of a pipe is
slow, the line is lost. The administrator must hear of it within seconds, so the first loss is reported at once, in
the error log or, if that cannot be written either, on standard error. Later reports come every REPORT_S at most:

    a line is lost ──▶ "cannot be written: No space left on device"   Losses.last is set
         │
         ▼  every REPORT_S while lines are lost
    "812 lines could not be written: No space left on device"
         │
         ▼  a line is written, REPORT_S after the last report at the earliest
    "96 lines could not be written; it can be written again"          Losses.last is 0.0 again

All processes of the server share the counters (Losses), which are made before fork(2). A process that has lost no
line pays nothing for all of this: write() looks at `careful`, as it would have to for a pipe.

**Other logs.** The log daemon of the system takes each line as one datagram (Syslog). If standard error leads to
systemd's journal, each message begins with its priority (in_journal).

A full disk may take the first half of a line. The half is cut off again. Where that is impossible, a line feed
ends it before the next line.
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
FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK


class Owner:
    """The account that new logs are given to, as (uid, gid); None: they stay the creator's."""

    account: tuple[int, int] | None = None


class Counter:
    """A counter for all processes, once it is shared. Each call is one step, also in a signal handler."""

    def __init__(self) -> None:
        self.own = 0
        self.descriptor = -1

    def share(self) -> None:
        """Count for the processes that are forked from now on, too: by an eventfd(2), where the system has them."""
        if not hasattr(os, "eventfd"):
            return  # each process counts for itself
        try:
            self.descriptor = os.eventfd(self.own, EVENTFD_FLAGS)
        except OSError:  # no descriptor is left: as above
            return
        # Not at the exit: a process that has closed all descriptors may use the number for another file.
        weakref.finalize(self, os.close, self.descriptor).atexit = False

    def add(self, count: int) -> None:
        """Add to the counter."""
        if self.descriptor < 0:
            self.own += count
        elif count:
            os.write(self.descriptor, count.to_bytes(8, sys.byteorder))

    def take(self) -> int:
        """Return the count, and begin at 0 again."""
        if self.descriptor < 0:
            count, self.own = self.own, 0
            return count
        try:
            return int.from_bytes(os.read(self.descriptor, 8), sys.byteorder)
        except BlockingIOError:
            return 0

    def value(self) -> int:
        """Return the count."""
        count = self.take()
        self.add(count)
        return count


class Losses:
    """The lost lines of one log. unreported: since the last report. total: since the start.

    last: one number, when a loss was last reported, on time.monotonic(); 0.0 while no line is lost.
    """

    def __init__(self) -> None:
        self.unreported = Counter()
        self.total = Counter()
        self.last = memoryview(bytearray(8)).cast("d")
        self.shared = False

    def share(self) -> None:
        """Count for the processes that are forked from now on, too."""
        if not self.shared:
            self.shared = True
            self.unreported.share()
            self.total.share()
            last = memoryview(mmap(-1, PAGESIZE)).cast("d")
            last[0] = self.last[0]
            self.last = last

    def is_open(self) -> bool:
        """Return whether lines were lost, and no line has been written since."""
        return self.last[0] > 0.0


class LogFile:
    """A file that lines are appended to. path: its name, "-" for a standard stream, "off" for none.

    careful: whether a write has more to look at than its result: the file is no regular one, or lines were lost.
    has_clock: whether what reads the lines adds the time.
    """

    tell: Callable[[str], None]  # writes a message about a log: ewe.logger sets it
    has_clock = False

    def __init__(self, path: str, standard: int, before: Mapping[str, int] | None = None) -> None:
        """Open path, and create it if it does not exist. Raises OSError.

        before: the descriptors of the logs that are open, by their paths. One of them is used again if this process
        may no longer open its file.
        """
        self.path = path
        self.standard = standard
        self.losses = Losses()
        self.descriptor = -1
        self.may_block = self.careful = self.torn = False
        self.open((before or {}).get(path, -1))

    def open(self, before: int = -1) -> None:
        """Open the file, or open it again after it was renamed (USR1). before: a descriptor of this log.

        Raises OSError; the old file then stays in use.
        """
        if self.path == "off":
            return
        if self.path == "-":
            self.descriptor = self.standard
            self.has_clock = self.standard == 2 and in_journal()
        else:
            fresh = append_to(self.path, self.descriptor if self.descriptor >= 0 else before)
            if self.descriptor >= 0:
                os.dup2(fresh, self.descriptor, inheritable=False)
                os.close(fresh)
            else:
                self.descriptor = fresh
        try:
            self.may_block = self.has_clock or not stat.S_ISREG(os.fstat(self.descriptor).st_mode)
        except OSError:
            self.may_block = True
        self.careful = self.may_block or self.losses.is_open()

    def take_over(self, old: LogFile) -> None:
        """Use the descriptor and the counters of an old log from now on: a thread may be writing to that number."""
        if old.path != self.path:
            old.report()
        self.losses = old.losses
        self.careful = self.may_block or self.losses.is_open()
        if old.descriptor > 2 and self.descriptor > 2 and not isinstance(old, Syslog):
            os.dup2(self.descriptor, old.descriptor, inheritable=False)
            os.close(self.descriptor)
            self.descriptor = old.descriptor

    def close(self) -> None:
        """Close a log that was opened for nothing."""
        if self.descriptor > 2:
            os.close(self.descriptor)

    def write(self, line: str, level: str = "info") -> None:
        """Write one line, which ends in a line feed. Never raises, and never waits for a slow reader of a pipe."""
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
        elif failure := self.failure(data, level):
            self.lose(failure)
        elif self.losses.is_open():
            self.recover()
        else:  # another process has reported that the log can be written again
            self.careful = self.may_block

    def try_to_write(self, line: str, level: str) -> bool:
        """Write one line, and return whether it was written. It is not counted as lost."""
        return not self.failure(line.encode("utf-8", "backslashreplace"), level)

    def failure(self, data: bytes, level: str) -> str:
        """Write one line; return why it could not be written, or ""."""
        if self.has_clock:
            data = b"<%d>%b" % (SEVERITIES[level], data)
        if self.torn:
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
        self.torn = False
        return ""

    def take_back(self, count: int) -> None:
        """Cut off the bytes of a line that could only be written in part."""
        if not count:
            return
        try:
            # Another process cannot have written behind them: there was no room.
            os.ftruncate(self.descriptor, os.fstat(self.descriptor).st_size - count)
        except OSError:  # no regular file, or one that can only grow (chattr +a)
            self.torn = True

    def lose(self, reason: str) -> None:
        """Count a lost line, and report it unless lost lines were reported just now."""
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
        """Report that the log can be written again; not before REPORT_S, since lines may be lost by turns."""
        if time.monotonic() - self.losses.last[0] >= REPORT_S:
            self.losses.last[0] = 0.0
            self.careful = self.may_block
            self.report("; it can be written again")

    def report(self, more: str = "") -> None:
        """Report how many lines were lost since the last report, if any."""
        if count := self.losses.unreported.take():
            lines = "1 line" if count == 1 else f"{count} lines"
            self.tell(f"log {self.path}: {lines} could not be written{more}")


class Syslog(LogFile):
    """A log that is sent to the system's log daemon, a datagram for each line. path: as for parse_syslog().

    A message is that of syslog(3): <PRIORITY>TAG[PID]: TEXT, in the form of RFC 3164. The daemon adds the time. The
    library's own syslog() is not used, because it waits for a daemon that does not read.

    Each datagram is sent to the daemon's address, so that a daemon that was started again gets those that follow.
    """

    has_clock = True

    def open(self, before: int = -1) -> None:
        """Open a socket, and look whether there is a daemon. Does nothing if the socket is open. Raises OSError."""
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

    def take_over(self, old: LogFile) -> None:
        """Use the counters of an old log from now on. A thread that writes to it still keeps it open."""
        if old.path != self.path:
            old.report()
        self.losses = old.losses

    def close(self) -> None:
        """Close a log that was opened for nothing."""
        self.socket.close()

    def failure(self, data: bytes, level: str) -> str:
        """Send one line; return why it could not be sent, or ""."""
        head = b"<%d>ewe[%d]: " % (self.priority + SEVERITIES[level], os.getpid())
        try:
            self.socket.sendto(head + data.rstrip(b"\n")[:PIPE_BUF], self.address)
        except BlockingIOError:
            return SLOW
        except OSError as error:
            return error.strerror or str(error)
        return ""


def open_log(path: str, standard: int, before: Mapping[str, int] | None = None) -> LogFile:
    """Return the log that a path names, open. before: as for LogFile. Raises OSError."""
    return Syslog(path, standard) if path.startswith("syslog:") else LogFile(path, standard, before)


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
    """Return whether standard error leads to systemd's journal: systemd.exec(5), JOURNAL_STREAM."""
    try:
        status = os.fstat(2)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def append_to(path: str, before: int) -> int:
    """Return a new descriptor of a log, to append to; a file that is created is given to OWNER. Raises OSError.

    before: the descriptor under which this log is open, or -1. A copy of it is the result if this process may not
    open the file, and no other file has taken its name.
    """
    try:
        try:
            made = os.open(path, FLAGS | os.O_EXCL, 0o640)
        except FileExistsError:
            place, flag = followed(path)
            return os.open(place, FLAGS | flag, 0o640)
    except PermissionError:
        if before < 0 or not is_same(path, before):
            raise
        return os.dup(before)
    give_away(made, path)
    return made


def followed(path: str, links: int = 0) -> tuple[str, int]:
    """Return the path to open for a log, and O_NOFOLLOW if its last part must be no symbolic link. Raises OSError.

    Another account that can change the log's directory could put a link there, and so have root append lines to any
    file, or create it. Root therefore follows only a link that root has made. links: that were followed.
    """
    directory = os.path.dirname(os.path.abspath(path))
    if os.geteuid() != 0 or not (changeable(directory) or stat.S_IMODE(os.stat(directory).st_mode) & 0o022):
        return path, 0
    status = os.lstat(path) if os.path.lexists(path) else None
    if status is None or not stat.S_ISLNK(status.st_mode):
        return path, os.O_NOFOLLOW
    target = os.readlink(path)
    now = os.lstat(path)
    if status.st_uid != 0 or (now.st_ino, now.st_ctime_ns) != (status.st_ino, status.st_ctime_ns):
        raise OSError(
            errno.ELOOP, "it is a symbolic link that root has not made, where others may make links", path
        )
    if links == MAX_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return followed(os.path.join(directory, target), links + 1)


def is_same(path: str, descriptor: int) -> bool:
    """Return whether a path still names an open file, as far as this process may look. Raises OSError."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
    except PermissionError:
        return True


def give_away(made: int, path: str) -> None:
    """Give a log that root has just created to OWNER, unless other accounts can choose where it is."""
    if Owner.account is None or os.geteuid() != 0:
        return
    try:
        if not changeable(os.path.join(os.getcwd(), os.path.dirname(path)), Owner.account[0]):
            os.fchown(made, *Owner.account)
    except OSError:
        pass  # a file system without owners; ewe.server.access warns of a log that the account may not write


def changeable(directory: str, account: int = 0) -> str:
    """Return the first directory on the way to an absolute path that others can change, "" if there is none.

    Others are all users but root and `account`, a uid; the account may own the last directory alone. Somebody else
    could put a symbolic link in the place of a directory, and so have root create files below /etc. In a directory
    with the sticky bit (/tmp) nobody can replace what is root's. Raises OSError.
    """
    at, rest, links = "/", directory.split("/"), 0
    while True:
        rest = [name for name in rest if name not in ("", ".")]
        status = os.stat(at)
        its_own = status.st_uid == 0 or (not rest and status.st_uid == account)
        if not its_own or (status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX):
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
    """Return whether a line can be written to this pipe or terminal without waiting."""
    from select import POLLOUT, poll

    poller = poll()
    poller.register(descriptor, POLLOUT)
    return bool(poller.poll(0))
