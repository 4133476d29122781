"""Temporary directories that the next start removes if their owner was killed.

A process that ends in any way but SIGKILL removes its directory. After SIGKILL, the directory stays. How can a
later process know that nobody uses it? A process id does not tell: the system gives it to another process. A lock
does: the kernel releases a flock(2) when the last process that holds it has ended, however it ended.

    /tmp/ewe-grade-x1b2c3d4/.lock     a file of the owner's account, locked as long as the owner runs

The owner creates the file under another name, locks it, and then renames it. A file .lock that is not locked
therefore belongs to a dead owner. A directory without one is left alone: it is being made, or it is not of this
kind.

What can go wrong: everybody may write in /tmp, and root may be the one who cleans up. The directory is opened
without following a link, the lock must be a regular file of this account, and shutil.rmtree() descends by
descriptors and never through a link. Child processes share the lock until they execute another program, so a worker
that outlives its supervisor keeps the directory.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile

LOCK = ".lock"
AT_MOST = 100  # directories that one start removes


class Scratch:
    """A temporary directory of this process. path: its name. close() removes it."""

    def __init__(self, prefix: str, place: str | None = None) -> None:
        """Make it in `place`, by default where temporary files are, and remove those of dead owners there.

        Raises OSError.
        """
        place = tempfile.gettempdir() if place is None else place
        remove_abandoned(prefix, place)
        self.path = tempfile.mkdtemp(prefix=prefix, dir=place)
        name = os.path.join(self.path, LOCK)
        self.lock = os.open(name + ".new", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        os.rename(name + ".new", name)

    def close(self) -> None:
        """Remove the directory with all that is in it."""
        if self.lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self.lock)
            self.lock = -1


def remove_abandoned(prefix: str, place: str) -> None:
    """Remove the directories with this prefix whose owner, a process of this account, has ended."""
    try:
        at = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        found = [name for name in os.listdir(at) if name.startswith(prefix)]
        for name in found[:AT_MOST]:
            lock = lock_of_the_dead(name, at)
            if lock >= 0:
                shutil.rmtree(name, ignore_errors=True, dir_fd=at)
                os.close(lock)
    finally:
        os.close(at)


def lock_of_the_dead(name: str, at: int) -> int:
    """Return the lock of a directory, taken from an owner that has ended; -1 if it must be left alone.

    at: the descriptor of the directory that has it.
    """
    try:
        directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    except OSError:
        return -1
    try:
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        lock = os.open(LOCK, flags, dir_fd=directory)
    except OSError:
        return -1
    finally:
        os.close(directory)
    about = os.fstat(lock)
    try:
        if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
    except OSError:
        pass  # its owner runs
    os.close(lock)
    return -1
