"""Sources: notice when a file of the program changes (setting `reload`).

Which files? The supervisor watches every `.py` file in a directory from which a worker has loaded a module, and in
the directories below it, and the settings file. It watches directories, because the next import may need a file
that does not exist yet. It ignores Python's own library, installed packages, ewe itself, hidden directories and
virtual environments.

How? The supervisor asks the kernel for each file's time, size and inode (stat). inotify(7) would need no polling,
but does not report changes that another machine makes over NFS, or outside of a virtual machine. A stat costs about
2 µs. The interval grows with the number of files, so that polling takes at most one percent of a core. An editor
that writes a new file and renames it changes the inode. `git checkout` changes many files, one after the other. A
change is therefore reported only when the next check finds no further change.

Possible failures: a `.pyc` file may be older than its source (applications.py). Workers therefore write none under
`reload`.

Read next: ewe/server/supervisor.py, which starts new workers.
"""

from __future__ import annotations

import functools
import os
import site
import sys
import sysconfig
import time
from typing import NamedTuple

import ewe
from ewe import logger

CHECK_EVERY_S = 0.25  # seconds between two checks
QUIET_S = 0.1  # seconds without a further change, before a change is reported
MIN_WAIT_RATIO = 100  # after a check of t seconds, take_changes() waits at least MIN_WAIT_RATIO * t
MAX_DIRECTORIES = 1000  # that are watched; further ones are not
# A directory that has changed more recently is read again, since another change may have the same time.
FRESH_NS = 2_000_000_000
EXCLUDED = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})
Stamp = tuple[int, int, int]  # of a file: the time of its last change in ns, its size in bytes, its inode


class Directory(NamedTuple):
    """A directory at the time of its last change. paths: the sources in it, and the directories with a last "/"."""

    changed_ns: int
    paths: list[str]


class SourceWatcher:
    """The files of some directories, and of the directories below them, with their states at the last check."""

    def __init__(self) -> None:
        self.roots: set[str] = set()
        self.file: str | None = None  # the settings file
        self.directories: dict[str, Directory] = {}  # by path
        self.stamps: dict[str, Stamp] = {}
        self.changed: set[str] = set()  # changed files that are not reported yet
        self.due_at = 0.0
        self.warned = False

    def add(self, root: str) -> None:
        """Start to watch a directory and the directories below it."""
        if not any(root == each or root.startswith(each.rstrip("/") + "/") for each in self.roots):
            self.roots.add(root)
            below = root.rstrip("/") + "/"
            self.stamps |= {
                path: stamp for path, stamp in self.read_stamps().items() if path.startswith(below)
            }

    def watch_file(self, path: str | None) -> None:
        """Watch one more file. It replaces the file of an earlier call."""
        if path is not None and path != self.file:
            add_stamp(self.stamps, path)
        self.file = path

    def take_changes(self) -> list[str]:
        """Return the changed files, after QUIET_S without a further change; [] if there are none."""
        began = time.monotonic()
        if began < self.due_at:
            return []
        fresh = self.read_stamps()
        paths = fresh.keys() | self.stamps.keys()
        changed_now = {path for path in paths if fresh.get(path) != self.stamps.get(path)}
        self.stamps = fresh
        self.changed |= changed_now
        ended = time.monotonic()
        self.due_at = ended + max(QUIET_S if changed_now else CHECK_EVERY_S, MIN_WAIT_RATIO * (ended - began))
        if changed_now or not self.changed:
            return []
        found, self.changed = sorted(self.changed), set()
        return found

    def read_stamps(self) -> dict[str, Stamp]:
        """Return the present time, size and inode of each file."""
        seen: dict[str, Directory] = {}
        stamps: dict[str, Stamp] = {}
        waiting = sorted(self.roots)
        for directory in waiting:  # the loop appends to this list, so it visits the nearest directories first
            if len(seen) >= MAX_DIRECTORIES:
                self.warn()
                break
            try:
                seen[directory] = self.read_directory(directory)
            except OSError:
                continue  # the directory was removed, or may not be read
            for path in seen[directory].paths:
                if path.endswith("/"):
                    waiting.append(path)
                else:
                    add_stamp(stamps, path)
        if self.file is not None:
            add_stamp(stamps, self.file)
        self.directories = seen
        return stamps

    def read_directory(self, directory: str) -> Directory:
        """Return a directory, which is read only if it has changed since the last call. Raises OSError."""
        changed_ns = os.stat(directory).st_mtime_ns
        known = self.directories.get(directory)
        if known is not None and known.changed_ns == changed_ns and time.time_ns() - changed_ns > FRESH_NS:
            return known
        found = []
        with os.scandir(directory) as entries:
            for entry in entries:
                path = os.path.join(directory, entry.name)
                if entry.name.endswith(".py"):
                    found.append(path)
                elif entry.is_dir(follow_symlinks=False) and not is_excluded(path):
                    found.append(path + "/")
        return Directory(changed_ns, found)

    def warn(self) -> None:
        """Log once that there are too many directories."""
        if not self.warned:
            self.warned = True
            logger.errors.warning(
                f"there are more than {MAX_DIRECTORIES} directories of sources: changes in the others start no new"
                " workers; start ewe in the directory of your program (reload)"
            )


def add_stamp(stamps: dict[str, Stamp], path: str) -> None:
    """Add the present time, size and inode of a file, if it exists."""
    try:
        about = os.stat(path)
    except OSError:
        return
    stamps[path] = about.st_mtime_ns, about.st_size, about.st_ino


def is_excluded(directory: str) -> bool:
    """Return whether a directory is not watched, since it has no sources of the program itself."""
    name = os.path.basename(directory)
    return name in EXCLUDED or name.startswith(".") or os.path.exists(os.path.join(directory, "pyvenv.cfg"))


@functools.cache
def foreign_directories() -> tuple[str, ...]:
    """Return the directories of Python's library, of installed packages and of ewe.

    The first call imports modules of Python, so run.load_late_modules() makes it before root is given up.
    """
    found = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [*site.getsitepackages(), site.getusersitepackages(), os.path.dirname(ewe.__file__)]
    return tuple(os.path.realpath(path) + "/" for path in found)


def own_modules() -> dict[str, str]:
    """Return name -> file of the loaded modules that belong to the program itself."""
    foreign = foreign_directories()
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name != "__main__" and file and not os.path.realpath(file).startswith(foreign):
            found[name] = os.path.abspath(file)
    return found


def source_directories() -> list[str]:
    """Return the directories from which this process has loaded the program, and the current directory.

    A package is loaded from the directory that contains the package's own directory. The current directory is
    included, since a module that could not be imported is most likely there.
    """
    found = {os.getcwd()}
    for name, file in own_modules().items():
        is_package = os.path.basename(file) == "__init__.py"
        for _ in range(name.count(".") + is_package + 1):
            file = os.path.dirname(file)
        found.add(file)
    return sorted(path for path in found if path != "/")


def unload_own_modules() -> None:
    """Unload the program's modules, so that they are imported again, and write no .pyc files from now on."""
    for name in own_modules():
        del sys.modules[name]
    sys.dont_write_bytecode = True
