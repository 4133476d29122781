"""Applications in Python: each new worker imports them, so that HUP loads a new version of their code.

Python imports a module only once. A process that has imported an application keeps that version, and so do the
processes that it forks. The supervisor therefore never imports an application. Each worker imports the applications
when it starts, after it has given up root:

    supervisor, clean ──fork──▶ worker: imports shop:app, version 1, serves ...................... retires
                      ──fork──▶ (HUP)   worker: imports shop:app, version 2 ──▶ "ready": serves
                                                └─ it fails: "failed ...", and the worker of version 1 stays

Possible failures, and where each is prevented:

- Python uses a `.pyc` file if the time of the source, in whole seconds, and its size match. It cannot distinguish
  two versions of the same size that were saved in one second, or to which a tool has given the same time.
  SourceLoader checks more: the `.pyc` file must be younger than the last change of the source's inode (ctime),
  which no program can set.
- A feature (`mount`) or a model (`model mine:Mine`) may come from the application's package. The supervisor has to
  import it, so its modules keep their version. outdated() finds these applications.
- The account of the workers may not be able to read Python itself (a Python below root's home). Then the supervisor
  imports the applications before it gives up root, and HUP loads no new version.
- A worker that replaces a dead one imports the present files, even without a HUP.

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

from ewe.server.sources import foreign_directories, own_modules

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.abc import PathEntryFinder

AT_REST_NS = 2_000_000_000  # a source that changed more recently gets no .pyc file: it may change again
INSTALLED = frozenset({"site-packages", "dist-packages"})


def outdated(names: Iterable[str]) -> list[str]:
    """Return the applications of which this process has imported a part. Its workers cannot reload that part."""
    packages = {module.partition(".")[0] for module in own_modules()}
    return [name for name in names if name.partition(":")[0].partition(".")[0] in packages]


def prepare_imports() -> None:
    """Make this process, a new worker, import the present version of each application's files."""
    foreign_directories()  # the first call imports modules: inside source_finder(), it would call that again
    sys.path_hooks.insert(0, source_finder)
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()


def source_finder(directory: str) -> PathEntryFinder:
    """Return a finder that imports a directory's sources by SourceLoader. It is one of sys.path_hooks (PEP 302).

    Raises ImportError for a directory of Python, ewe or installed packages: Python then asks its own finder.
    """
    path = os.path.realpath(directory) + "/"
    if path.startswith(foreign_directories()) or not INSTALLED.isdisjoint(path.split("/")):
        raise ImportError(directory)
    return make_finder(directory)


class SourceLoader(SourceFileLoader):
    """Imports a source file. It uses a .pyc file only if that was written after the last change of the source."""

    def get_data(self, path: Any) -> bytes:
        """Return the bytes of a file. Raises OSError, also for a .pyc file that may be older than its source."""
        is_bytecode = os.fspath(path).endswith(tuple(BYTECODE_SUFFIXES))
        if is_bytecode and os.stat(path).st_mtime_ns <= os.stat(self.path).st_ctime_ns:
            raise FileNotFoundError(path)
        return super().get_data(path)

    def set_data(self, path: Any, data: Any, **how: Any) -> None:
        """Write the .pyc file of a source that has not changed for AT_REST_NS."""
        if time.time_ns() - os.stat(self.path).st_ctime_ns > AT_REST_NS:
            super().set_data(path, data, **how)


make_finder = FileFinder.path_hook(
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (SourceLoader, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)
