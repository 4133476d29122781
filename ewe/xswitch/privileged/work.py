"""Work directories: one for an engine that needs it, for compiled pages and uploads.

It belongs to the engine's user, is closed to others, and is removed when the engine ends. The removal is a process
that runs as that user: it costs suexecme no time, however much there is, and a link in it can do no harm.
"""

from __future__ import annotations

import os
import stat
import tempfile
import time
from contextlib import suppress

from ewe.xswitch.process import Account, Limits, become, clean_environment, start

PATIENCE = 1.5  # seconds that suexecme waits for removals at its end


class Works:
    """The work directories of all engines."""

    def __init__(self) -> None:
        # The supervisor's pid: the same when suexecme is started again.
        self.prefix = f"xswitch-work-{os.getppid()}-"
        self.directories: dict[int, tuple[str, Account]] = {}  # pid of an engine -> its directory
        self.removers: set[int] = set()  # pids
        for entry in list(os.scandir(tempfile.gettempdir())):
            if entry.name.startswith(self.prefix):
                self.remove_left(entry.path)

    def remove_left(self, directory: str) -> None:
        """Remove a directory that an earlier suexecme has left, since it was killed; as the directory's owner."""
        try:
            status = os.lstat(directory)
        except OSError:
            return
        if stat.S_ISDIR(status.st_mode):
            self.remove(directory, Account("", status.st_uid, status.st_gid, (), "/"))

    def make(self, account: Account) -> str:
        """Make a directory for an account. Raises OSError."""
        directory = tempfile.mkdtemp(prefix=self.prefix)
        os.chown(directory, account.uid, account.gid)
        return directory

    def remove_unused(self, directory: str) -> None:
        """Remove a directory whose engine could not be started; "": there is none.

        It is empty. rmdir(2) follows no link, and leaves a directory into which its user has already written.
        """
        if directory:
            with suppress(OSError):
                os.rmdir(directory)

    def belongs(self, directory: str, pid: int, account: Account) -> None:
        """Note the engine that a directory belongs to; "": the engine has none."""
        if directory:
            self.directories[pid] = directory, account

    def ended(self, pid: int) -> None:
        """Remove the directory of an engine that has ended."""
        if pid in self.directories:
            self.remove(*self.directories.pop(pid))

    def remove(self, directory: str, account: Account) -> None:
        """Start the removal of a directory, as its user."""
        command = ("rm", "-rf", "--", directory)
        nothing = os.open(os.devnull, os.O_RDWR)
        try:
            self.removers.add(
                start(
                    command,
                    clean_environment(account),
                    {0: nothing, 1: nothing, 2: nothing},
                    lambda: become(account, Limits(cpu=60)),
                )
            )
        except OSError:
            pass  # no room for a process: the directory stays
        finally:
            os.close(nothing)

    def end(self) -> None:
        """Remove the directories of killed engines, and wait for PATIENCE seconds at most."""
        for pid in list(self.directories):
            reaped(pid, os.WNOHANG)
            self.ended(pid)
        end = time.monotonic() + PATIENCE
        while self.removers and time.monotonic() < end:
            self.removers = {pid for pid in self.removers if not reaped(pid, os.WNOHANG)}
            time.sleep(0.01)


def reaped(pid: int, options: int) -> bool:
    """Return whether a child has ended, and take its exit status."""
    try:
        return os.waitpid(pid, options)[0] != 0
    except ChildProcessError:
        return True
