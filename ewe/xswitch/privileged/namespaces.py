"""Private file systems: all engines of one user share a mount namespace (mount_namespaces(7); setting `private`).

A script may read everything that its user may read: also files in /tmp, and files of other users with a careless
mode. In the namespace of alice, such places contain only files of alice and of X-Switch:

    /tmp, /var/tmp, /dev/shm      a tmpfs of PRIVATE_TMP_SIZE, which ends with her last engine
    /home (private-homes)         a tmpfs, read-only: /home/alice alone is mounted into it
    all the rest                  as outside

suexecme makes the namespace when a user's first engine starts: a child of suexecme leaves the common namespace
(unshare(2)), mounts, and ends. An open descriptor of /proc/PID/ns/mnt keeps the namespace. Each engine enters it
with setns(2) before it gives up root (process.become), so the main process cannot order another one.

Some files below a hidden directory must stay visible: the user's home, the site's roots, the engine programs, and
the directories for `{work}`. They are opened before (O_PATH), and mounted at their old names afterwards.

docs/xswitch.md, "Private file systems", says which attacks this does not stop.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NoReturn

from ewe.xswitch.engine_kinds import ENGINES
from ewe.xswitch.process import CLONE_NEWNS, Account, libc, raise_if_failed
from ewe.xswitch.public import COPIES_PREFIX
from ewe.xswitch.settings import Settings

# <sys/mount.h>
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 1, 2, 4, 32, 4096, 16384, 1 << 19
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
PRIVATE_TMP_SIZE = "size=64m,nr_inodes=32k"  # of each of them, for all engines of a user: tmpfs(5)
MAX_REASON_BYTES = 4096
MADE = b"+"  # the report of a child that has made a namespace; any other is an errno and a file


class UserNamespaces:
    """The mount namespaces of users with engines."""

    def __init__(self) -> None:
        self.descriptors: dict[int, int] = {}  # by uid

    def prepare(self, account: Account, settings: Settings, work_base: str) -> str:
        """Return the file of an account's namespace; make it for the first engine. Raises OSError.

        work_base: the directory with the directories for `{work}`.
        """
        if account.uid not in self.descriptors:
            homes = [home for home in map(os.path.realpath, settings.private_homes) if os.path.isdir(home)]
            visible = [account.home, work_base, *settings.roots, *programs_of(settings)]
            self.descriptors[account.uid] = make_namespace(homes, visible)
        return f"/proc/{os.getpid()}/fd/{self.descriptors[account.uid]}"

    def remove(self, uid: int) -> None:
        """Forget the namespace of a user without engines. It ends with the last process in it."""
        if uid in self.descriptors:
            os.close(self.descriptors.pop(uid))


def programs_of(settings: Settings) -> list[str]:
    """Return the absolute paths in the engines' commands: their programs must stay visible in a namespace.

    Instead of X-Switch's own engine programs, return the directory that contains them: the installed one (ENGINES),
    or the copy of public.py, such as /tmp/xswitch-engines-abc123.
    """
    copies_prefix = os.path.join(tempfile.gettempdir(), COPIES_PREFIX)
    programs = set()
    for path in (word for kind in settings.engines.values() for word in kind.command if word.startswith("/")):
        if path.startswith(ENGINES + "/"):
            programs.add(ENGINES)
        elif path.startswith(copies_prefix):
            # "abc123" of /tmp/xswitch-engines-abc123/python.py
            random_part, _, _ = path.removeprefix(copies_prefix).partition("/")
            programs.add(copies_prefix + random_part)
        else:
            programs.add(path)
    return sorted(programs)


def make_namespace(homes: Sequence[str], visible: Iterable[str]) -> int:
    """Return a descriptor of a new mount namespace. Raises OSError.

    homes: directories to hide, beside TEMPORARY. visible: files and directories that stay visible.

    A child makes the namespace and reports by one pipe. It waits at the other until the parent has a descriptor: a
    namespace ends with its last process or descriptor.
    """
    pipes: list[int] = []
    try:
        pipes += os.pipe2(os.O_CLOEXEC)
        pipes += os.pipe2(os.O_CLOEXEC)
        child = os.fork()
    except OSError:
        for descriptor in pipes:
            os.close(descriptor)
        raise
    report_reader, report_writer, end_reader, end_writer = pipes
    if not child:
        hold_namespace(homes, visible, pipes)
    os.close(report_writer)
    os.close(end_reader)
    try:
        report = os.read(report_reader, MAX_REASON_BYTES)
        if report == MADE:
            return os.open(f"/proc/{child}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        if not report:
            raise OSError(errno.ECHILD, "the process that makes it has ended")
        number, _, path = os.fsdecode(report).partition(" ")
        raise OSError(int(number), os.strerror(int(number)), path or None)
    finally:
        os.close(report_reader)
        os.close(end_writer)
        os.waitpid(child, 0)


def hold_namespace(homes: Sequence[str], visible: Iterable[str], pipes: Sequence[int]) -> NoReturn:
    """Make a namespace in this child, report it or the failure, and hold it until the parent has opened it.

    homes, visible, pipes: those of make_namespace(). This process ends here: it is a copy of suexecme.
    """
    try:
        _report_reader, report_writer, end_reader, end_writer = pipes
        os.close(end_writer)
        arrange_mounts(homes, visible)
        os.write(report_writer, MADE)
        os.read(end_reader, 1)  # returns b"" once the parent has closed its end, or has ended
    except OSError as reason:
        text = f"{reason.errno or 0} {reason.filename or ''}"
        os.write(report_writer, os.fsencode(text)[:MAX_REASON_BYTES])
    finally:
        os._exit(0)


def arrange_mounts(homes: Sequence[str], visible: Iterable[str]) -> None:
    """Leave the common mount namespace, and hide directories in the new one. Raises OSError.

    homes: directories to hide, beside TEMPORARY. visible: files and directories that stay visible.
    """
    raise_if_failed(libc.unshare(CLONE_NEWNS), "unshare")
    mount("none", "/", "", MS_REC | MS_SLAVE)  # mounts here do not appear outside
    temporary = [path for path in map(os.path.realpath, TEMPORARY) if os.path.isdir(path)]
    hidden = outermost([*temporary, *homes])
    opened: dict[str, int] = {}
    names = {name for path in visible for name in names_with_and_without_links(path)}
    below = [name for name in names if any(name.startswith(directory + "/") for directory in hidden)]
    # Open them before a mount hides them
    for path in outermost(below):
        with suppress(FileNotFoundError):
            opened[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)
    for path in hidden:
        mode = 0o1777 if path in temporary else 0o755
        mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, f"{PRIVATE_TMP_SIZE},mode={mode:o}")
    os.umask(0o022)
    # Mount each at its old name, for which the new file system needs a directory or a file
    for path, descriptor in opened.items():
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.makedirs(path, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
        mount(f"/proc/self/fd/{descriptor}", path, "", MS_BIND | MS_REC)
    for path in hidden:  # read-only only now: the directories above had to be made first
        if path not in temporary:
            mount("tmpfs", path, "tmpfs", MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)


def names_with_and_without_links(path: str) -> set[str]:
    """Return the given name of a file that stays visible, and its name after the links among its directories.

    Directories are hidden by their names without links. If /home is a link to /srv/home, /srv/home is hidden, and
    only the second name is below it.
    """
    directory, name = os.path.split(os.path.normpath(path))
    return {os.path.join(directory, name), os.path.join(os.path.realpath(directory), name)}


def outermost(paths: Iterable[str]) -> list[str]:
    """Return each path that is not below another one, once."""
    highest: list[str] = []
    for path in sorted(set(paths)):  # a directory comes before the paths below it
        if not any(path.startswith(directory.rstrip("/") + "/") for directory in highest):
            highest.append(path)
    return highest


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """Call mount(2). Raises OSError. kind: of the file system. data: its options."""
    words = [os.fsencode(word) for word in (source, target, kind)]
    raise_if_failed(libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None), target)


def namespace_obstacle() -> str:
    """Return why this process cannot make mount namespaces, "" if it can."""
    if os.geteuid() != 0:
        return "only root may make a mount namespace"
    try:
        os.close(make_namespace(homes=(), visible=()))
    except OSError as reason:
        return f"the system allows no mount namespace ({reason.filename}: {reason.strerror})"
    return ""
