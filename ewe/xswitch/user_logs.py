"""A log for each user, with the messages about the user's scripts, in a directory that root owns (`user-logs`).

suexecme opens the file (open_log) and passes it to the main process with each answer about a script (UserLogs). If
a file is moved away, for example by logrotate, a new one replaces it within seconds, without a signal.
"""

from __future__ import annotations

import os
import stat
import time

from ewe.logger import UNPRINTABLE_IN_MESSAGE, escaped
from ewe.xswitch.process import Account

MAX_LOG_BYTES = 1 << 20  # a longer file becomes NAME.log.1, and replaces the earlier one
MAX_OPEN_LOGS = 1000  # users whose file the main process keeps open


def directory_fault(directory: str) -> str:
    """Return why a directory is unfit for logs, "" if it is fit.

    Only root and this process's own account may be able to replace a log, or a directory above it.
    """
    path = os.path.realpath(directory)
    if not directory.startswith("/") or not os.path.isdir(path):
        return f"there is no directory {directory}"
    while True:
        status = os.stat(path)
        if status.st_uid not in (0, os.geteuid()):
            return f"{path} belongs to uid {status.st_uid}: nobody but root may write where the logs are"
        # In a sticky directory such as /tmp, others cannot replace the directory below it
        if status.st_mode & 0o022 and (
            path == os.path.realpath(directory) or not status.st_mode & stat.S_ISVTX
        ):
            return f"{path} is writable by others: chmod go-w {path}"
        if path == "/":
            return ""
        path = os.path.dirname(path)


def open_log(directory: str, account: Account) -> int:
    """Return a descriptor of a user's log, to append to. Raises OSError.

    The file belongs to the user, so it counts towards the user's disk quota. Only root (or the user who runs
    X-Switch) may write to the directory: the file's owner can change its content, but cannot replace it.
    """
    path = os.path.join(directory, os.path.basename(account.name) + ".log")
    descriptor = open_or_create(path, account)
    if os.fstat(descriptor).st_size > MAX_LOG_BYTES:
        os.close(descriptor)
        os.rename(path, path + ".1")
        descriptor = open_or_create(path, account)
    return descriptor


def open_or_create(path: str, account: Account) -> int:
    """Open a log, or create it, as its user's file; return the descriptor. Raises OSError."""
    # O_NOFOLLOW, O_NONBLOCK: the user may have put a link or a FIFO there
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileExistsError(0, "not a regular file")
        if status.st_uid != account.uid:
            os.fchown(descriptor, account.uid, account.gid)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class UserLogs:
    """The open logs. If there are too many, the one opened first is closed."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[int, int]] = {}  # user -> descriptor, bytes that may still be written

    def use_descriptor(self, user: str, descriptor: int) -> None:
        """Use this descriptor for a user's messages from now on."""
        self.drop(user)
        self.files[user] = descriptor, MAX_LOG_BYTES
        if len(self.files) > MAX_OPEN_LOGS:
            self.drop(next(iter(self.files)))

    def drop(self, user: str) -> None:
        """Close a user's file."""
        if user in self.files:
            descriptor, _ = self.files.pop(user)
            os.close(descriptor)

    def clear(self) -> None:
        """Close all files."""
        for user in list(self.files):
            self.drop(user)

    def write(self, user: str, message: str) -> None:
        """Write a line with the time into a user's log.

        Do nothing if no log is open for the user, or if the log or the disk is full.
        """
        if user not in self.files:
            return
        descriptor, remaining_bytes = self.files[user]
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {escaped(message, UNPRINTABLE_IN_MESSAGE)}\n"
        data = line.encode("utf-8", "backslashreplace")
        if len(data) > remaining_bytes:  # the file is full, until suexecme opens it again
            return
        self.files[user] = descriptor, remaining_bytes - len(data)
        try:
            os.write(descriptor, data)
        except OSError:
            pass
