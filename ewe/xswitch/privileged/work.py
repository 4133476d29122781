"""A directory of an engine's own: compiled pages, uploads. Its user's, closed to others, gone with the engine.

What removes it runs as that user: however much there is, it costs suexecme no time and can do no harm.
"""

from __future__ import annotations

import os
import stat
import tempfile
import time

from ewe.xswitch.process import Account, Limits, become, clean_environment, start

PATIENCE = 1.5  # seconds that suexecme waits for removals when it ends


class Works:
    """The directories of all engines."""

    def __init__(self) -> None:
        self.prefix = f"xswitch-work-{os.getppid()}-"  # the same after a start anew
        self.of: dict[int, tuple[str, Account]] = {}  # pid of an engine -> its directory
        self.removers: set[int] = set()  # pids
        for entry in list(os.scandir(tempfile.gettempdir())):
            if entry.name.startswith(self.prefix):
                self.remove_left(entry.path)

    def remove_left(self, directory: str) -> None:
        """Remove what a suexecme before this one could not, for it was killed; as whoever owns it."""
        try:
            status = os.lstat(directory)
        except OSError:
            return
        if stat.S_ISDIR(status.st_mode):
            self.remove(directory, Account("", status.st_uid, status.st_gid, (), "/"))

    def make(self, account: Account) -> str:
        """Make one. Raises OSError."""
        directory = tempfile.mkdtemp(prefix=self.prefix)
        os.chown(directory, account.uid, account.gid)
        return directory

    def belongs(self, directory: str, pid: int, account: Account) -> None:
        """Note whose it is; directory "": the engine has none."""
        if directory:
            self.of[pid] = directory, account

    def ended(self, pid: int) -> None:
        """An engine has ended: remove what was its own."""
        if pid in self.of:
            self.remove(*self.of.pop(pid))

    def remove(self, directory: str, account: Account) -> None:
        """Remove one, as its user."""
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
            pass  # no room for a process: it stays
        finally:
            os.close(nothing)

    def end(self) -> None:
        """Remove all that is left, of engines that were killed; wait for it, within reason."""
        for pid in list(self.of):
            reaped(pid, 0)
            self.ended(pid)
        end = time.monotonic() + PATIENCE
        while self.removers and time.monotonic() < end:
            self.removers = {pid for pid in self.removers if not reaped(pid, os.WNOHANG)}
            time.sleep(0.01)


def reaped(pid: int, options: int) -> bool:
    """Has this child ended? Its status is taken."""
    try:
        return os.waitpid(pid, options)[0] != 0
    except ChildProcessError:
        return True
