"""Temporary directories that the next start removes if their owner was killed.

A process removes its directory when it ends. After SIGKILL the directory stays. How can a later process know that
no other process uses it? A process id does not show it, since the system may give the id to another process. A lock
does: the kernel releases a flock(2) when the last process that holds the lock has ended, for any reason.

    /tmp/ewe-grade-x1b2c3d4/.lock     a file of the owner's account, locked as long as the owner runs

The owner creates the file under another name, locks it, and then renames it to .lock. A file .lock that is not
locked therefore belongs to a dead owner. A directory without such a file is not removed: its owner is just creating
it, or it is another kind of directory.

Possible failures: every account may write in /tmp, and root may do the cleaning. The directory is therefore opened
without following a symbolic link, and the lock must be a regular file of this account. remove() descends by
descriptors and never through a link. An account that may write in the directory can create thousands of nested
directories. shutil.rmtree() of older Pythons fails on them, and would fail again at each later start, so Removal
has its own method. Child processes share the lock until they execute another program, so a worker that outlives its
supervisor keeps the directory.
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
MAX_REMOVED = 100  # directories that one start removes
BATCH_ENTRIES = 1000  # entries of a directory that are read and then removed together
DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Scratch:
    """A temporary directory of this process. path: its name. close() removes it."""

    def __init__(self, prefix: str, parent: str | None = None) -> None:
        """Create the directory in `parent`, by default the system's directory of temporary files.

        First remove the directories of dead owners there. Raises OSError.
        """
        parent = tempfile.gettempdir() if parent is None else parent
        remove_abandoned(prefix, parent)
        self.path = tempfile.mkdtemp(prefix=prefix, dir=parent)
        name = os.path.join(self.path, LOCK)
        self.lock = -1
        try:
            self.lock = os.open(name + ".new", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self.lock, fcntl.LOCK_EX)
            os.rename(name + ".new", name)
        except OSError:  # such as a full disk: without the lock, no later start would remove the directory
            remove(self.path)
            if self.lock >= 0:
                os.close(self.lock)
            raise

    def close(self) -> None:
        """Remove the directory and its contents."""
        if self.lock >= 0:
            remove(self.path)
            os.close(self.lock)
            self.lock = -1


def remove_abandoned(prefix: str, parent: str) -> None:
    """Remove the directories with this prefix whose lock belongs to this account, and is not locked."""
    try:
        at = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        found = [name for name in os.listdir(at) if name.startswith(prefix)]
        for name in found[:MAX_REMOVED]:
            lock = lock_of_the_dead(name, at)
            if lock >= 0:
                remove(name, at)
                os.close(lock)
    finally:
        os.close(at)


def lock_of_the_dead(name: str, at: int) -> int:
    """Lock a directory whose owner has ended; return the lock, or -1 if the directory must not be removed.

    at: the descriptor of the parent directory.
    """
    try:
        directory = os.open(name, DIRECTORY_FLAGS, dir_fd=at)
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
        pass  # the owner still runs
    os.close(lock)
    return -1


def remove(name: str, at: int | None = None) -> None:
    """Remove a directory and its contents, the lock last. Entries that cannot be removed stay.

    at: the descriptor of the parent directory; None if `name` is a path.
    """
    try:
        top = os.open(name, DIRECTORY_FLAGS, dir_fd=at)
    except OSError:
        return
    try:
        Removal(top).run()
        try_call(os.unlink, LOCK, dir_fd=top)
    finally:
        os.close(top)
    try_call(os.rmdir, name, dir_fd=at)


class Removal:
    """Empties a directory, except for its lock. top: the descriptor of the directory.

    A nested directory is first moved to the top. No path is then long, and two descriptors are enough.
    """

    def __init__(self, top: int) -> None:
        self.top = top
        self.waiting: deque[str] = deque()  # directories at the top that are not removed yet
        self.unique = os.urandom(8).hex()
        self.numbers = count()

    def run(self) -> None:
        """Remove the contents of the directory."""
        self.empty(self.top)
        # Another account may have made a directory of this name. A lock, which is a file, is skipped below.
        self.waiting.append(LOCK)
        while self.waiting:
            name = self.waiting.popleft()
            try:
                directory = os.open(name, DIRECTORY_FLAGS, dir_fd=self.top)
            except OSError:
                continue
            try:
                self.empty(directory)
            finally:
                os.close(directory)
            try_call(os.rmdir, name, dir_fd=self.top)

    def empty(self, directory: int) -> None:
        """Remove the files of a directory, and move its directories to the top."""
        kept = {LOCK} if directory == self.top else set()
        while True:
            with os.scandir(directory) as entries:
                found = list(islice((each for each in entries if each.name not in kept), BATCH_ENTRIES))
            if not found:
                return
            for entry in found:
                if not self.remove_or_move(entry, directory):
                    kept.add(entry.name)

    def remove_or_move(self, entry: os.DirEntry[str], directory: int) -> bool:
        """Remove a file, or move a directory to the top; return whether the entry is gone."""
        if not entry.is_dir(follow_symlinks=False):
            return try_call(os.unlink, entry.name, dir_fd=directory)
        if directory == self.top:
            self.waiting.append(entry.name)
            return False
        name = f"{self.unique}-{next(self.numbers)}"
        moved = try_call(os.rename, entry.name, name, src_dir_fd=directory, dst_dir_fd=self.top)
        if moved:
            self.waiting.append(name)
        return moved


def try_call(call: Callable[..., None], *names: str, **where: int | None) -> bool:
    """Call a function of the module os; return whether it succeeded."""
    try:
        call(*names, **where)
    except OSError:
        return False
    return True
