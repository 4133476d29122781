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

from ewe.xswitch.engine_kinds import ENGINES, JAVA_DIRECTORY, LIBCGI_PROGRAM
from ewe.xswitch.settings import Settings

COPIES_PREFIX = "xswitch-engines-"  # the name of a directory with copies begins with it


def is_public(path: str) -> bool:
    """Return whether everyone may read a file, or enter a directory, and enter all directories above it.

    If a symbolic link is on the way, this must hold for the path without links, too.
    """
    real = os.path.realpath(path)
    if real != path and not is_public(real):
        return False
    if not os.stat(path).st_mode & (stat.S_IXOTH if os.path.isdir(path) else stat.S_IROTH):
        return False
    return path == "/" or is_public(os.path.dirname(path))


def public_engines_directory() -> str:
    """Return a directory with the engine programs that everyone may read: ENGINES itself, or a new copy."""
    if os.geteuid() != 0 or all(is_public(os.path.join(ENGINES, name)) for name in os.listdir(ENGINES)):
        return ENGINES
    directory = tempfile.mkdtemp(prefix=COPIES_PREFIX)
    os.chmod(directory, 0o755)
    for name in os.listdir(ENGINES):
        if name.endswith((".py", ".pl")):  # the others are built, see below
            copy = shutil.copy(os.path.join(ENGINES, name), directory)
            os.chmod(copy, 0o644)
    if os.path.exists(LIBCGI_PROGRAM):
        copied_program = os.path.join(directory, os.path.relpath(LIBCGI_PROGRAM, ENGINES))
        copy_tree(os.path.dirname(LIBCGI_PROGRAM), os.path.dirname(copied_program))
        os.chmod(copied_program, 0o755)  # the only copy that is executed
    if os.path.isdir(JAVA_DIRECTORY):
        copy_tree(JAVA_DIRECTORY, os.path.join(directory, os.path.relpath(JAVA_DIRECTORY, ENGINES)))
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


def with_engines_in(settings: Settings, directory: str) -> Settings:
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
