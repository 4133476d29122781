"""Applications in Python: a new worker imports them, so that HUP brings a new version of their code.

Python imports a module once. A process that has imported an application keeps that version, and so do the processes
that are forked from it. The supervisor therefore never imports one. Each worker does, in the moment in which it
starts, after root was given up:

    supervisor, clean ──fork──▶ worker: imports shop:app, version 1, serves ...................... retires
                      ──fork──▶ (HUP)   worker: imports shop:app, version 2 ──▶ "ready": serves
                                                └─ it cannot: "failed ...", and the worker of version 1 stays

What can go wrong:

- Python believes a `.pyc` file if the time of the source, in whole seconds, and its size fit. Two versions that
  were saved in one second, or that a tool has given the same time, look alike to it. SourceLoader asks more: the
  `.pyc` file must be younger than the last change of the source's inode (ctime), which no program can set.
- A feature (`mount`) or a model (`model mine:Mine`) may come from the application's package. The supervisor has to
  import them, so their modules stay as they are: outdated() finds these applications.
- The account of the workers may not read Python itself (a Python below root's home). Then the supervisor imports
  the applications before it gives up root, and HUP brings no new version.
- A worker that replaces a dead one imports the files as they are then, also without a HUP.

Read next: ewe/server/supervisor.py, which starts the workers; ewe/registry.py, which imports.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from typing import TYPE_CHECKING, Any

from ewe.server.sources import foreign_directories, loaded

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.abc import PathEntryFinder

AT_REST_NS = 2_000_000_000  # a source that changed more recently gets no .pyc file: it may change again
INSTALLED = frozenset({"site-packages", "dist-packages"})


def outdated(names: Iterable[str]) -> list[str]:
    """Return the applications of which this process has imported a part, so that its workers cannot renew it."""
    packages = {module.partition(".")[0] for module in loaded()}
    return [name for name in names if name.partition(":")[0].partition(".")[0] in packages]


def prepare_imports() -> None:
    """Have this process, a new worker, import applications as their files are now."""
    foreign_directories()  # its first call imports modules, which must not lead to finder() and back
    sys.path_hooks.insert(0, finder)
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()


def finder(directory: str) -> PathEntryFinder:
    """Return what finds the modules of a directory. Raises ImportError if installed packages lie there."""
    at = os.path.realpath(directory) + "/"
    if at.startswith(foreign_directories()) or not INSTALLED.isdisjoint(at.split("/")):
        raise ImportError(directory)
    return find_in(directory)


class SourceLoader(SourceFileLoader):
    """Imports a source. It believes a .pyc file only if that was written after the last change of the source."""

    def get_data(self, path: Any) -> bytes:
        """Return the bytes of a file. Raises OSError, also for a .pyc file that may be older than its source."""
        is_bytecode = os.fspath(path).endswith(tuple(BYTECODE_SUFFIXES))
        if is_bytecode and os.stat(path).st_mtime_ns <= os.stat(self.path).st_ctime_ns:
            raise FileNotFoundError(path)
        return super().get_data(path)

    def set_data(self, path: Any, data: Any, **how: Any) -> None:
        """Write the .pyc file of a source that is at rest."""
        if time.time_ns() - os.stat(self.path).st_ctime_ns > AT_REST_NS:
            super().set_data(path, data, **how)


find_in = FileFinder.path_hook(
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (SourceLoader, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)
