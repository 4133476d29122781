"""Builds the shim on demand, beside its source: `make libcgi`, `ewe --build-libcgi`.

A wheel of ewe has no binary, only this directory. The first user who wants LibCGI runs the compiler, which takes a
second. The name of the result contains a hash of all its sources. After an update of ewe the old shim is therefore
not found, and never called with other definitions of its structures. The result is written under another name and
renamed, so a server never loads an incomplete file.

A server with libraries imports this module for preload(). Functions that run the compiler import the modules that
only they need: tempfile imports random, and subprocess imports threading. Each of these two has a handler that
every forked child would run, and a child of the fork model would copy 70 more pages.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from ewe.config.messages import Failure

DIRECTORY = Path(__file__).resolve().parent
TARGET = DIRECTORY / "target"
SOURCES = (
    "core.c", "guard.c", "environment.c", "output.c", "patch.c", "spool.c", "stack.c", "child.c", "signals.c",
    "threads.c", "ends.c", "destructors.c",
)  # fmt: skip
HEADERS = ("core.h", "internal.h", "ewe_libcgi.h")
FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-fPIC")
OPTIONS = ("-shared", "-fvisibility=hidden")  # of the shim
LIBRARIES = ("-ldl", "-lpthread")  # parts of libc since glibc 2.34
preloaded: Path | None = None  # the shim that preload() has loaded
HASH_DIGITS = 16  # of the hash of the sources, in a file's name
COMPILE_TIMEOUT_S = 120.0  # seconds that the compiler may take


class BuildError(Failure):
    """Something cannot be built. The text is one line."""


def shim_file() -> Path:
    """Return the path of the shim of this source, built or not."""
    digest = hashlib.sha256(" ".join((*FLAGS, *OPTIONS, os.uname().machine)).encode())
    for name in (*SOURCES, *HEADERS):
        digest.update((DIRECTORY / name).read_bytes())
    return TARGET / f"libcgi-{digest.hexdigest()[:HASH_DIGITS]}.so"


def preload() -> None:
    """Load the shim if it is built, and store its path in `preloaded`.

    A process that gives up root may not be able to read this directory later. To load the same path again needs no
    file (ewe/features/libcgi/shim.py, which also says why RTLD_GLOBAL is necessary).
    """
    import ctypes

    global preloaded
    path = shim_file()
    if path.exists():
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError:
            return  # the code that needs the shim gets the same error, and reports it
        preloaded = path


def build() -> Path:
    """Build the shim unless it exists; return its path. Raises BuildError."""
    target = shim_file()
    if not target.exists():
        compile_c(target, (DIRECTORY / name for name in SOURCES), OPTIONS)
        for old_shim in TARGET.glob("libcgi-*.so"):
            if old_shim != target:
                old_shim.unlink(missing_ok=True)  # of older source; a process that has loaded it keeps it
    return target


def compiler_command(variable: str, default_compiler: str) -> list[str]:
    """Return the program and the options that an environment variable names, separated as a shell does.

    If the variable is not set, or blank, return the default compiler. Raises BuildError if a quote has no end.
    """
    import shlex

    try:
        return shlex.split(os.environ.get(variable, "")) or [default_compiler]
    except ValueError as reason:
        raise BuildError(f"the environment variable {variable} names no compiler: {reason}") from None


def compile_c(target: Path, sources: Iterable[Path], options: tuple[str, ...]) -> None:
    """Compile C files into one file, which appears only when it is complete. Raises BuildError.

    The environment variable CC names another compiler, as for make.
    """
    import shutil
    import tempfile

    compiler = compiler_command("CC", "cc")
    if shutil.which(compiler[0]) is None:
        raise BuildError(
            f"there is no C compiler {compiler[0]!r}: install gcc and libc6-dev, or name one (CC=clang)"
        )
    try:
        target.parent.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=target.parent, prefix="new-", suffix=".so", delete=False
        ) as new_file:
            pass  # only the name is needed: the compiler writes the file
    except OSError as reason:
        raise BuildError(
            f"cannot write {target.parent}: {reason.strerror}; run this command as its owner"
        ) from None
    try:
        command = [*compiler, *FLAGS, *options, "-o", new_file.name, *map(str, sources), *LIBRARIES]
        run(command)
        os.chmod(new_file.name, 0o755)  # the server may be another user
        os.rename(new_file.name, target)
    finally:
        Path(new_file.name).unlink(missing_ok=True)  # after an error: rename() has not moved it


def run(command: list[str]) -> None:
    """Run the compiler. Raises BuildError with the first line that reports an error."""
    import subprocess

    try:
        completed = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMPILE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[0]} has not ended within {COMPILE_TIMEOUT_S:g} s") from None
    if completed.returncode:
        lines = [line for line in (completed.stderr + completed.stdout).splitlines() if line.strip()]
        first_line = lines[0] if lines else "it says nothing"
        error_line = next((line for line in lines if "error" in line), first_line)
        raise BuildError(f"{command[0]} failed: {error_line}")
