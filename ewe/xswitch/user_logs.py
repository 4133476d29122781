"""A log for each user, with the messages about the user's scripts, in a directory of root's (`user-logs`).

suexecme opens the file (open_log) and hands it to the main process with each answer about a script (UserLogs). A
file that was moved away, by logrotate for example, is therefore replaced within seconds, without a signal.
"""

from __future__ import annotations

import os
import stat
import time

from ewe.logger import UNPRINTABLE_IN_MESSAGE, escaped
from ewe.xswitch.process import Account

MAX_LOG = 1 << 20  # bytes; a longer file becomes NAME.log.1, and replaces the earlier one
MAX_OPEN = 1000  # users whose file the main process keeps open


def doubt(directory: str) -> str:
    """Return why logs cannot be in a directory, "" if they can: only root, or we, may write there."""
    at = os.path.realpath(directory)
    if not directory.startswith("/") or not os.path.isdir(at):
        return f"there is no directory {directory}"
    while True:
        status = os.stat(at)
        if status.st_uid not in (0, os.geteuid()):
            return f"{at} belongs to uid {status.st_uid}: nobody but root may write where the logs are"
        if status.st_mode & 0o022 and (
            at == os.path.realpath(directory) or not status.st_mode & stat.S_ISVTX
        ):
            return f"{at} is writable by others: chmod go-w {at}"
        if at == "/":
            return ""
        at = os.path.dirname(at)


def open_log(directory: str, account: Account) -> int:
    """Return a descriptor of a user's log, to append to. Raises OSError.

    The file belongs to the user, so that it counts towards the user's disk quota. The directory is writable for
    root only (or for the user who runs X-Switch): the file's owner can change its content, and cannot replace it.
    """
    path = os.path.join(directory, os.path.basename(account.name) + ".log")
    descriptor = open_one(path, account)
    if os.fstat(descriptor).st_size > MAX_LOG:
        os.close(descriptor)
        os.rename(path, path + ".1")
        descriptor = open_one(path, account)
    return descriptor


def open_one(path: str, account: Account) -> int:
    """Open a log, or create it. Raises OSError."""
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
    """The open logs. When there are too many, the one opened first is closed."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[int, int]] = {}  # user -> descriptor, bytes that may still be written

    def take(self, user: str, descriptor: int) -> None:
        """Use this descriptor for a user's messages from now on."""
        self.drop(user)
        self.files[user] = descriptor, MAX_LOG
        if len(self.files) > MAX_OPEN:
            self.drop(next(iter(self.files)))

    def drop(self, user: str) -> None:
        """Close a user's file."""
        if user in self.files:
            os.close(self.files.pop(user)[0])

    def clear(self) -> None:
        """Close all files."""
        for user in list(self.files):
            self.drop(user)

    def write(self, user: str, message: str) -> None:
        """Write a line with the time. Nothing is written if the user has no log, or the disk is full."""
        if user not in self.files:
            return
        descriptor, room = self.files[user]
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {escaped(message, UNPRINTABLE_IN_MESSAGE)}\n"
        data = line.encode("utf-8", "backslashreplace")
        if len(data) > room:  # full, until suexecme opens it again
            return
        self.files[user] = descriptor, room - len(data)
        try:
            os.write(descriptor, data)
        except OSError:
            pass
