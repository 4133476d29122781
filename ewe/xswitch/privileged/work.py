"""Work directories: a private directory for compiled pages and uploads, for each engine that needs one.

The directory belongs to the engine's user, is closed to others, and is removed when the engine ends. A process of
that user removes it. The removal thus costs suexecme no time, and a link in the directory can do no harm.
"""

from __future__ import annotations

import os
import stat
import tempfile
import time
from contextlib import suppress

from ewe.xswitch.process import Account, EngineLimits, become, clean_environment, start

# A directory without the owner's permissions could not be emptied. find(1) and rm(1) follow no links
REMOVAL = """find "$1" -type d ! -perm -700 -exec chmod u+rwx {} \\;
exec rm -rf -- "$1"
"""
REMOVAL_CPU_S = 60  # seconds of CPU time that each process of a removal may take: find, each chmod, and rm
REMOVAL_CHECK_S = 0.01  # seconds between two checks whether a removal has ended
REMOVALS_TIMEOUT_S = 1.5  # seconds that suexecme waits for removals when it ends


class WorkDirectories:
    """The work directories of all engines."""

    def __init__(self) -> None:
        # Named by the supervisor's pid, which is the same after a restart of suexecme. All directories are in this
        # one, so that private engines (namespaces.py) see it, and nothing else of the system's /tmp.
        self.base = own_directory(base_directory(os.getppid()))
        self.directories: dict[int, tuple[str, Account]] = {}  # pid of an engine -> its directory
        self.removers: dict[int, str] = {}  # pid of a process -> the directory that it empties
        for entry in list(os.scandir(self.base)):
            self.remove_abandoned(entry.path)

    def remove_abandoned(self, directory: str) -> None:
        """Remove a directory of an earlier suexecme that was killed; as the directory's owner."""
        try:
            status = os.lstat(directory)
        except OSError:
            return
        if stat.S_ISDIR(status.st_mode):
            self.start_removal(directory, Account("", status.st_uid, status.st_gid, groups=(), home="/"))

    def make(self, account: Account) -> str:
        """Make a work directory for an account; return its path. Raises OSError."""
        directory = tempfile.mkdtemp(dir=self.base)
        os.chown(directory, account.uid, account.gid)
        return directory

    def remove_unused(self, directory: str) -> None:
        """Remove an empty directory, such as that of an engine that could not be started; "": there is none.

        rmdir(2) follows no link, and fails if the user has written into the directory.
        """
        if directory:
            with suppress(OSError):
                os.rmdir(directory)

    def note_engine(self, directory: str, pid: int, account: Account) -> None:
        """Note the engine that a directory belongs to; "": the engine has none."""
        if directory:
            self.directories[pid] = directory, account

    def remove_of_engine(self, pid: int) -> None:
        """Start the removal of the directory of an engine that has ended."""
        if pid in self.directories:
            directory, account = self.directories.pop(pid)
            self.start_removal(directory, account)

    def start_removal(self, directory: str, account: Account) -> None:
        """Start a process that empties a directory, as its user; finish_removal() then removes the directory.

        If no descriptor or no process can be made, the directory stays until remove_all().
        """
        with suppress(OSError), open(os.devnull, "r+b", buffering=0) as null:
            remover = start(
                ("sh", "-c", REMOVAL, "sh", directory),
                clean_environment(account),
                dict.fromkeys((0, 1, 2), null.fileno()),
                lambda: become(account, EngineLimits(cpu=REMOVAL_CPU_S)),
            )
            self.removers[remover] = directory

    def finish_removal(self, remover: int) -> None:
        """Remove a directory, which is empty, once the process that has emptied it has ended.

        remover: the pid of that process; the pids of others have no effect.
        """
        if remover in self.removers:
            self.remove_unused(self.removers.pop(remover))

    def remove_all(self) -> None:
        """Remove the directories of all engines, which suexecme has killed before, and the directory above them.

        Wait for the removals for REMOVALS_TIMEOUT_S at most. remove_empty(), which the supervisor calls afterwards,
        removes the directories that have become empty later.
        """
        for pid in list(self.directories):
            # LeftoverProcesses.kill_all() has reaped the engine, unless its time was over
            reap_if_ended(pid)
            self.remove_of_engine(pid)
        with suppress(OSError):
            for entry in list(os.scandir(self.base)):  # also those whose removal could not be started before
                if entry.path not in self.removers.values():
                    self.remove_abandoned(entry.path)
        deadline = time.monotonic() + REMOVALS_TIMEOUT_S
        while self.removers and time.monotonic() < deadline:
            for remover in [remover for remover in self.removers if reap_if_ended(remover)]:
                self.finish_removal(remover)
            time.sleep(REMOVAL_CHECK_S)
        # The base directory stays while a removal still runs: rmdir(2) fails if it is not empty
        self.remove_unused(self.base)


def base_directory(supervisor: int) -> str:
    """Return the directory for the work directories below a supervisor, by its pid."""
    return os.path.join(tempfile.gettempdir(), f"xswitch-work-{supervisor}")


def remove_empty(base: str) -> None:
    """Remove the empty directories that removals have left, once all processes have ended.

    base: another user may have made a link at this path, which is not followed.
    """
    with suppress(OSError):
        status = os.lstat(base)
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            for entry in list(os.scandir(base)):
                with suppress(OSError):
                    os.rmdir(entry.path)
            os.rmdir(base)


def own_directory(path: str) -> str:
    """Make a directory that other users may enter, but not read or change; return its path. Raises OSError.

    Another user may have made something at this path before: the name then gets a random end.
    """
    try:
        os.mkdir(path)
    except FileExistsError:
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            path = tempfile.mkdtemp(prefix=os.path.basename(path) + "-")
    os.chmod(path, 0o711)
    return path


def reap_if_ended(pid: int) -> bool:
    """Reap a child, if it has ended; return whether it has. Do not wait for its end."""
    try:
        reaped_pid, _ = os.waitpid(pid, os.WNOHANG)
        return reaped_pid != 0
    except ChildProcessError:
        return True
