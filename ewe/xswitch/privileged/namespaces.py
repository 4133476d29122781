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
import os
import stat
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress

from ewe.xswitch.engine_kinds import ENGINES
from ewe.xswitch.process import CLONE_NEWNS, Account, check, libc
from ewe.xswitch.public import COPIES
from ewe.xswitch.settings import Settings

# <sys/mount.h>
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 1, 2, 4, 32, 4096, 16384, 1 << 19
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
PRIVATE_TMP_SIZE = "size=64m,nr_inodes=32k"  # of each of them, for all engines of a user: tmpfs(5)
MAX_REASON_BYTES = 4096


class UserNamespaces:
    """The mount namespaces of users with engines."""

    def __init__(self) -> None:
        self.descriptors: dict[int, int] = {}  # by uid

    def prepare(self, account: Account, settings: Settings, works: str) -> str:
        """Return the file of an account's namespace; make it for the first engine. Raises OSError.

        works: the directory with the directories for `{work}`.
        """
        if account.uid not in self.descriptors:
            hidden = [each for each in map(os.path.realpath, settings.private_homes) if os.path.isdir(each)]
            kept = [account.home, works, *settings.roots, *programs_of(settings)]
            self.descriptors[account.uid] = make(hidden, kept)
        return f"/proc/{os.getpid()}/fd/{self.descriptors[account.uid]}"

    def remove(self, uid: int) -> None:
        """Forget the namespace of a user without engines. It ends with the last process in it."""
        if uid in self.descriptors:
            os.close(self.descriptors.pop(uid))


def programs_of(settings: Settings) -> list[str]:
    """Return the files of engine programs, and the directory of X-Switch's own ones."""
    copies = os.path.join(tempfile.gettempdir(), COPIES)
    paths = []
    for word in {word for kind in settings.engines.values() for word in kind.command if word.startswith("/")}:
        if word.startswith(ENGINES + "/"):
            word = ENGINES
        elif word.startswith(copies):
            word = copies + word.removeprefix(copies).partition("/")[0]
        paths.append(word)
    return paths


def make(homes: Sequence[str], kept: Iterable[str]) -> int:
    """Return a descriptor of a new mount namespace. Raises OSError.

    homes: directories to hide, beside TEMPORARY. kept: files and directories that stay visible.
    """
    origin, to = os.pipe2(os.O_CLOEXEC)
    held, hold = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if not child:
        try:
            os.close(hold)
            arrange_mounts(homes, kept)
            os.write(to, b"+")
            os.read(held, 1)  # until the parent has opened the namespace, or has ended
        except OSError as reason:
            text = f"{reason.errno or 0} {reason.filename or ''}"
            os.write(to, os.fsencode(text)[:MAX_REASON_BYTES])
        finally:
            os._exit(0)
    os.close(to)
    os.close(held)
    try:
        said = os.read(origin, MAX_REASON_BYTES)
        if said == b"+":
            return os.open(f"/proc/{child}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        number, _, path = os.fsdecode(said or b"0 ").partition(" ")
        raise OSError(int(number), os.strerror(int(number)), path or None)
    finally:
        os.close(origin)
        os.close(hold)
        os.waitpid(child, 0)


def arrange_mounts(homes: Sequence[str], kept: Iterable[str]) -> None:
    """Leave the common mount namespace, and hide directories in the new one. Raises OSError."""
    check(libc.unshare(CLONE_NEWNS), "unshare")
    mount("none", "/", "", MS_REC | MS_SLAVE)  # mounts here do not appear outside
    temporary = [each for each in map(os.path.realpath, TEMPORARY) if os.path.isdir(each)]
    hidden = outermost([*temporary, *homes])
    opened: dict[str, int] = {}
    names = {name for path in kept for name in names_of(path)}
    below = [name for name in names if any(name.startswith(each + "/") for each in hidden)]
    for path in outermost(below):
        with suppress(FileNotFoundError):
            opened[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)
    for path in hidden:
        mode = 0o1777 if path in temporary else 0o755
        mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, f"{PRIVATE_TMP_SIZE},mode={mode:o}")
    os.umask(0o022)
    for path, descriptor in opened.items():
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.makedirs(path, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
        mount(f"/proc/self/fd/{descriptor}", path, "", MS_BIND | MS_REC)
    for path in hidden:
        if path not in temporary:
            mount("tmpfs", path, "tmpfs", MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)


def names_of(path: str) -> set[str]:
    """Return the given name of a file that stays visible, and its name after the links among its directories.

    If /home is a link to /srv/home, only the second name is below a hidden directory.
    """
    directory, name = os.path.split(os.path.normpath(path))
    return {os.path.join(directory, name), os.path.join(os.path.realpath(directory), name)}


def outermost(paths: Iterable[str]) -> list[str]:
    """Return each path that is not below another one, once."""
    found: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(each.rstrip("/") + "/") for each in found):
            found.append(path)
    return found


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """Call mount(2). Raises OSError."""
    words = [os.fsencode(word) for word in (source, target, kind)]
    check(libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None), target)


def why_not() -> str:
    """Return why this process cannot make mount namespaces, "" if it can."""
    if os.geteuid() != 0:
        return "only root may make a mount namespace"
    try:
        os.close(make((), ()))
    except OSError as reason:
        return f"the system allows no mount namespace ({reason.filename}: {reason.strerror})"
    return ""
