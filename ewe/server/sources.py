"""Sources: notice when a file of the program changes (setting `reload`).

Which files? Every `.py` file in a directory from which a worker has loaded a module, and in the directories below
it; and the settings file. Directories, not files, because the next import may need a file that is not there yet.
Left out: Python's own library, installed packages, ewe itself, hidden directories and virtual environments.

How? The supervisor asks the kernel for each file's time, size and inode (stat). inotify(7) would tell without
being asked, but not on every file system: not of changes on the far side of NFS or of a virtual machine's folder.
A stat costs about 2 µs; the interval grows with the number of files, so that looking takes at most one percent of a
core. An editor that writes another file and renames it changes the inode. `git checkout` changes many files, one
after the other: a change is reported when a further look finds no other.

What can go wrong: Python believes a `.pyc` file if time, in whole seconds, and size of the source fit. Two versions
of the same second and size look alike to it. Workers therefore write no `.pyc` files under `reload`.

Read next: ewe/server/supervisor.py, which starts new workers.
"""

from __future__ import annotations

import functools
import os
import site
import sys
import sysconfig
import time

import ewe
from ewe import logger

LOOK = 0.25  # seconds between two looks
QUIET = 0.1  # seconds without a further change, until a change is reported
SHARE = 100  # a look that takes t seconds is followed by a pause of at least SHARE * t
MAX_DIRECTORIES = 1000
FRESH_NS = (
    2_000_000_000  # a directory that changed so recently is read again: another change may have the same time
)
NEVER = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})
Stamp = tuple[int, int, int]


class Sources:
    """The files of some directories, and of the directories below them, and what they were at the last look."""

    def __init__(self) -> None:
        self.roots: set[str] = set()
        self.file: str | None = None  # the settings file
        self.directories: dict[str, tuple[int, list[str]]] = {}  # path -> time in ns, the .py files in it
        self.stamps: dict[str, Stamp] = {}
        self.changed: set[str] = set()  # found, and not reported yet
        self.due = 0.0
        self.warned = False

    def add(self, root: str) -> None:
        """Watch a directory and those below it, from now on."""
        if not any(root == each or root.startswith(each.rstrip("/") + "/") for each in self.roots):
            self.roots.add(root)
            below = root.rstrip("/") + "/"
            self.stamps |= {path: stamp for path, stamp in self.look().items() if path.startswith(below)}

    def watch_file(self, path: str | None) -> None:
        """Watch one more file, in place of the last one that this method was given."""
        if path is not None and path != self.file:
            add_stamp(self.stamps, path)
        self.file = path

    def report(self) -> list[str]:
        """Return the files that have changed, once they are at rest; [] if none has, or if no look is due."""
        began = time.monotonic()
        if began < self.due:
            return []
        fresh = self.look()
        now = {path for path in fresh.keys() | self.stamps.keys() if fresh.get(path) != self.stamps.get(path)}
        self.stamps = fresh
        self.changed |= now
        ended = time.monotonic()
        self.due = ended + max(QUIET if now else LOOK, SHARE * (ended - began))
        if now or not self.changed:
            return []
        found, self.changed = sorted(self.changed), set()
        return found

    def look(self) -> dict[str, Stamp]:
        """Return what each file is now: time, size and inode."""
        seen: dict[str, tuple[int, list[str]]] = {}
        stamps: dict[str, Stamp] = {}
        waiting = sorted(self.roots)
        for directory in waiting:  # which grows meanwhile: the nearest directories first
            if len(seen) >= MAX_DIRECTORIES:
                self.warn()
                break
            try:
                known = seen[directory] = self.read_directory(directory)
            except OSError:
                continue  # it was removed, or may not be read
            waiting += [path for path in known[1] if path.endswith("/")]
            for path in known[1]:
                if not path.endswith("/"):
                    add_stamp(stamps, path)
        if self.file is not None:
            add_stamp(stamps, self.file)
        self.directories = seen
        return stamps

    def read_directory(self, directory: str) -> tuple[int, list[str]]:
        """Return a directory's time, and its sources and directories; these end in "/". Raises OSError."""
        changed = os.stat(directory).st_mtime_ns
        known = self.directories.get(directory)
        if known is not None and known[0] == changed and time.time_ns() - changed > FRESH_NS:
            return known
        found = []
        with os.scandir(directory) as entries:
            for entry in entries:
                path = os.path.join(directory, entry.name)
                if entry.name.endswith(".py"):
                    found.append(path)
                elif entry.is_dir(follow_symlinks=False) and not is_left_out(path):
                    found.append(path + "/")
        return changed, found

    def warn(self) -> None:
        """Say once that there are too many directories."""
        if not self.warned:
            self.warned = True
            logger.errors.warning(
                f"there are more than {MAX_DIRECTORIES} directories of sources: changes in the others start no new"
                " workers; start ewe in the directory of your program (reload)"
            )


def add_stamp(stamps: dict[str, Stamp], path: str) -> None:
    """Note what a file is now, if it exists."""
    try:
        about = os.stat(path)
    except OSError:
        return
    stamps[path] = about.st_mtime_ns, about.st_size, about.st_ino


def is_left_out(directory: str) -> bool:
    """Return whether a directory holds no sources of the program's own."""
    name = os.path.basename(directory)
    return name in NEVER or name.startswith(".") or os.path.exists(os.path.join(directory, "pyvenv.cfg"))


@functools.cache
def foreign_directories() -> tuple[str, ...]:
    """Return where Python's library, installed packages and ewe lie.

    The first call imports modules of Python's, so it is made before root is given up (ewe.server.run.load_all).
    """
    found = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [*site.getsitepackages(), site.getusersitepackages(), os.path.dirname(ewe.__file__)]
    return tuple(os.path.realpath(path) + "/" for path in found)


def loaded() -> dict[str, str]:
    """Return the modules of the program itself that this process has loaded: name -> file."""
    foreign = foreign_directories()
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name != "__main__" and file and not os.path.realpath(file).startswith(foreign):
            found[name] = os.path.abspath(file)
    return found


def directories() -> list[str]:
    """Return the directories from which this process has loaded the program, and the current directory.

    A package is loaded from the directory in which its own directory lies. The current directory is there because
    the module that could not be imported is most likely there.
    """
    found = {os.getcwd()}
    for name, file in loaded().items():
        is_package = os.path.basename(file) == "__init__.py"
        for _ in range(name.count(".") + is_package + 1):
            file = os.path.dirname(file)
        found.add(file)
    return sorted(path for path in found if path != "/")


def forget() -> None:
    """Unload the program's modules, so that they are imported again; no .pyc file may hide a change."""
    for name in loaded():
        del sys.modules[name]
    sys.dont_write_bytecode = True
