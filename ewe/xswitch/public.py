"""The engine programs, in a directory that every user may read.

An engine runs as its user from its first instruction on, and reads its own program as that user. If ewe is
installed in a directory that only root may enter, the programs are copied to a directory that everyone may read.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from dataclasses import replace

from ewe.xswitch.engine_kinds import ENGINES, JAVA, LIBCGI
from ewe.xswitch.settings import Settings

COPIES = "xswitch-engines-"  # the first part of the name of a directory with copies


def is_public(path: str) -> bool:
    """Return whether everyone may read a file, or enter a directory, and enter all directories above it."""
    if not os.stat(path).st_mode & (stat.S_IXOTH if os.path.isdir(path) else stat.S_IROTH):
        return False
    return path == "/" or is_public(os.path.dirname(path))


def published() -> str:
    """Return a directory with the engine programs that everyone may read: ENGINES itself, or a new copy."""
    if os.geteuid() != 0 or all(is_public(os.path.join(ENGINES, name)) for name in os.listdir(ENGINES)):
        return ENGINES
    directory = tempfile.mkdtemp(prefix=COPIES)
    os.chmod(directory, 0o755)
    for name in os.listdir(ENGINES):
        if name.endswith((".py", ".pl")):
            copy = shutil.copy(os.path.join(ENGINES, name), directory)
            os.chmod(copy, 0o644)
    if os.path.exists(LIBCGI):
        copy_tree(os.path.dirname(LIBCGI), directory + os.path.dirname(LIBCGI).removeprefix(ENGINES))
        os.chmod(directory + LIBCGI.removeprefix(ENGINES), 0o755)
    if os.path.isdir(JAVA):
        copy_tree(JAVA, directory + JAVA.removeprefix(ENGINES))
    return directory


def copy_tree(source: str, target: str) -> None:
    """Copy a directory so that everyone may read it."""
    umask = os.umask(0o022)
    try:
        shutil.copytree(source, target, copy_function=shutil.copyfile)
    finally:
        os.umask(umask)
    for path, _, _ in os.walk(target):
        os.chmod(path, 0o755)


def relocated(settings: Settings, directory: str) -> Settings:
    """Return settings whose engine programs are in another directory."""
    engines = {
        name: replace(
            kind,
            command=tuple(word.replace(ENGINES, directory) for word in kind.command),
            program=kind.program.replace(ENGINES, directory),
        )
        for name, kind in settings.engines.items()
    }
    return replace(settings, engines=engines)
