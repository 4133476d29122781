"""Temporary directories that the next start removes if their owner was killed.

A process that ends in any way but SIGKILL removes its directory. After SIGKILL, the directory stays. How can a
later process know that nobody uses it? A process id does not tell: the system gives it to another process. A lock
does: the kernel releases a flock(2) when the last process that holds it has ended, however it ended.

    /tmp/ewe-grade-x1b2c3d4/.lock     a file of the owner's account, locked as long as the owner runs

The owner creates the file under another name, locks it, and then renames it. A file .lock that is not locked
therefore belongs to a dead owner. A directory without one is left alone: it is being made, or it is not of this
kind.

What can go wrong: everybody may write in /tmp, and root may be the one who cleans up. The directory is opened
without following a link, and the lock must be a regular file of this account. remove() descends by descriptors and
never through a link. An account that may write in the directory can make it thousands of directories deep: there
shutil.rmtree() of older Pythons fails, and would fail again at each later start. Child processes share the lock
until they execute another program, so a worker that outlives its supervisor keeps the directory.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections import deque
from collections.abc import Callable
from itertools import count, islice

LOCK = ".lock"
AT_MOST = 100  # directories that one start removes
AT_ONCE = 1000  # names of a directory that are read before they are removed
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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
            remove(self.path)
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
                remove(name, at)
                os.close(lock)
    finally:
        os.close(at)


def lock_of_the_dead(name: str, at: int) -> int:
    """Return the lock of a directory, taken from an owner that has ended; -1 if it must be left alone.

    at: the descriptor of the directory that has it.
    """
    try:
        directory = os.open(name, DIRECTORY, dir_fd=at)
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


def remove(name: str, at: int | None = None) -> None:
    """Remove a directory with all that is in it, the lock last. What cannot be removed stays.

    at: the descriptor of the directory that has it, None for a path.
    """
    try:
        top = os.open(name, DIRECTORY, dir_fd=at)
    except OSError:
        return
    try:
        Removal(top).run()
        done(os.unlink, LOCK, dir_fd=top)
    finally:
        os.close(top)
    done(os.rmdir, name, dir_fd=at)


class Removal:
    """Empties a directory, but for its lock. top: its descriptor.

    A directory that lies deeper is first moved to the top. Then no path is long, and two descriptors are enough.
    """

    def __init__(self, top: int) -> None:
        self.top = top
        self.waiting: deque[str] = deque()  # directories at the top
        self.unique = os.urandom(8).hex()
        self.numbers = count()

    def run(self) -> None:
        """Remove what is there."""
        self.empty(self.top)
        while self.waiting:
            name = self.waiting.popleft()
            try:
                directory = os.open(name, DIRECTORY, dir_fd=self.top)
            except OSError:
                continue
            try:
                self.empty(directory)
            finally:
                os.close(directory)
            done(os.rmdir, name, dir_fd=self.top)

    def empty(self, directory: int) -> None:
        """Remove the files of a directory, and let its directories wait at the top."""
        kept = {LOCK} if directory == self.top else set()
        while True:
            with os.scandir(directory) as entries:
                found = list(islice((each for each in entries if each.name not in kept), AT_ONCE))
            if not found:
                return
            for entry in found:
                if not self.take(entry, directory):
                    kept.add(entry.name)

    def take(self, entry: os.DirEntry[str], directory: int) -> bool:
        """Remove a file, or let a directory wait; return whether the name has left the directory."""
        if not entry.is_dir(follow_symlinks=False):
            return done(os.unlink, entry.name, dir_fd=directory)
        if directory == self.top:
            self.waiting.append(entry.name)
            return False
        name = f"{self.unique}-{next(self.numbers)}"
        moved = done(os.rename, entry.name, name, src_dir_fd=directory, dst_dir_fd=self.top)
        if moved:
            self.waiting.append(name)
        return moved


def done(call: Callable[..., None], *names: str, **where: int | None) -> bool:
    """Call a function of the system; return whether it succeeded."""
    try:
        call(*names, **where)
    except OSError:
        return False
    return True
