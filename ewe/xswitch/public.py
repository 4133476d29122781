"""The engine programs, where every user may read them.

An engine runs as its user from its first instruction on, and reads its own program as that user. Where ewe is
installed in a place that only root may enter, copies are made in a directory of their own.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from dataclasses import replace

from ewe.xswitch.settings import ENGINES, Settings


def is_public(path: str) -> bool:
    """May everybody read this file, or enter this directory, and all that lead to it?"""
    if not os.stat(path).st_mode & (stat.S_IXOTH if os.path.isdir(path) else stat.S_IROTH):
        return False
    return path == "/" or is_public(os.path.dirname(path))


def published() -> str:
    """Return a directory with the engine programs that everybody may read; it is not ENGINES if it was made."""
    if os.geteuid() != 0 or all(is_public(os.path.join(ENGINES, name)) for name in os.listdir(ENGINES)):
        return ENGINES
    directory = tempfile.mkdtemp(prefix="xswitch-engines-")
    os.chmod(directory, 0o755)
    for name in os.listdir(ENGINES):
        if name.endswith((".py", ".pl")):
            copy = shutil.copy(os.path.join(ENGINES, name), directory)
            os.chmod(copy, 0o644)
    return directory


def relocated(settings: Settings, directory: str) -> Settings:
    """Return settings in which the engine programs lie in another directory."""
    engines = {
        name: replace(kind, command=tuple(word.replace(ENGINES, directory) for word in kind.command))
        for name, kind in settings.engines.items()
    }
    return replace(settings, engines=engines)
